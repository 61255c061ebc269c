// growth/clock.h: time, as those take it who learn from it or report it.
#pragma once

#include <chrono>
#include <functional>

namespace nanospec {

// Seconds since it was last asked.
class Stopwatch {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Seconds that have passed, as a watch tells them, which may be a Stopwatch or a test's: several may go by one clock.
class Clock {
 public:
  explicit Clock(std::function<double()> lap) : lap_(std::move(lap)) {}
  double now() { return now_ += lap_(); }

 private:
  std::function<double()> lap_;
  double now_ = 0;
};

}  // namespace nanospec
