// commands/samples.h: what several runs of the same thing say: their middle, their ends, how far they lie apart.
#pragma once

#include <algorithm>
#include <vector>

namespace nanospec {

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n == 0 ? 0 : (values[(n - 1) / 2] + values[n / 2]) / 2;
}
inline double lowest(const std::vector<double>& v) { return v.empty() ? 0 : *std::min_element(v.begin(), v.end()); }
inline double highest(const std::vector<double>& v) { return v.empty() ? 0 : *std::max_element(v.begin(), v.end()); }

// How far the middle four fifths of the runs lie apart, beside their median: 0 for runs that are all alike. One run
// that was disturbed among ten does not show; a machine that is busy all the time does.
inline double unevenness(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size(), cut = n / 10;
  const double middle = median(values);
  return middle > 0 ? (values[n - 1 - cut] - values[cut]) / middle : 0;
}
constexpr double kUneven = 0.15;  // beyond this something else was busy on the machine

}  // namespace nanospec
