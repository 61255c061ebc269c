// growth/clock.h: measures time, for what learns from it or reports it; and the middle and the ends of what was
// measured.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

namespace nanospec {

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

// The middle one; of an even number the mean of the two in the middle; 0 of none.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n == 0 ? 0 : (values[(n - 1) / 2] + values[n / 2]) / 2;
}

inline double lowest(const std::vector<double>& v) { return v.empty() ? 0 : *std::min_element(v.begin(), v.end()); }
inline double highest(const std::vector<double>& v) { return v.empty() ? 0 : *std::max_element(v.begin(), v.end()); }

struct Interval {
  double middle = 0, low = 0, high = 0;
};

inline Interval spread_of(const std::vector<double>& runs) { return {median(runs), lowest(runs), highest(runs)}; }

}  // namespace nanospec
