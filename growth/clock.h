// growth/clock.h: measures time, for what learns from it or reports it.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

namespace nanospec {

// Of an even number of values it is the mean of the two in the middle.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n == 0 ? 0 : (values[(n - 1) / 2] + values[n / 2]) / 2;
}

// lap(): seconds since the last lap.
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

// Seconds since the clock was made, as the sum of laps of a Stopwatch, or of a test's watch. Several objects may share
// one clock.
class Clock {
 public:
  explicit Clock(std::function<double()> lap) : lap_(std::move(lap)) {}
  double now() { return now_ += lap_(); }

 private:
  std::function<double()> lap_;
  double now_ = 0;
};

}  // namespace nanospec
