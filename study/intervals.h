// study/intervals.h: how far runs of the same thing lie apart; and what a sample says of the mean behind it: 95%
// intervals by Student's t. Pure arithmetic.
#pragma once

#include <cmath>

#include "growth/clock.h"

namespace nanospec {

// How far the middle four fifths of the runs lie apart, beside their median: 0 for runs that are all alike. One run
// that was disturbed among ten does not show; a machine that is busy all the time does.
inline double unevenness(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size(), cut = n / 10;
  const double middle = median(values);
  return middle > 0 ? (values[n - 1 - cut] - values[cut]) / middle : 0;
}
constexpr double kUneven = 0.15;  // beyond this something else was busy on the machine

// Of two things that ran in the same rounds: the one's value over the other's, round by round.
inline std::vector<double> quotients(const std::vector<double>& ones, const std::vector<double>& others) {
  std::vector<double> all;
  for (size_t r = 0; r < ones.size(); r++) all.push_back(ones[r] / others[r]);
  return all;
}

// ---------------------------------------------------------------------------------------------------------------
// Intervals
//
// The unit of a sample is a prompt: repeats of a prompt repeat its text, forward by forward, so they tell of the clock
// alone and are brought to their median before. Every prompt has noise of its own, or prompts would not be independent.
// Ratios (speedups) are averaged as logarithms: 2x and 0.5x cancel out.

// What the middle 95% of Student's t with so many degrees of freedom reach to.
inline double student_t(size_t degrees) {
  constexpr double kTable[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                               2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                               2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
  if (degrees == 0) return 0;
  if (degrees <= 30) return kTable[degrees - 1];
  return 1.95996 + 2.3723 / double(degrees) + 2.8225 / double(degrees * degrees);  // to four digits
}

// Of the mean; one value, or none, has an interval of no width: it tells nothing of its error.
inline Interval mean_interval(const std::vector<double>& values) {
  const size_t n = values.size();
  double mean = 0, squares = 0;
  for (double value : values) mean += value / double(n);
  for (double value : values) squares += (value - mean) * (value - mean);
  const double half = n < 2 ? 0 : student_t(n - 1) * std::sqrt(squares / double(n - 1) / double(n));
  return {mean, mean - half, mean + half};
}

// Of the mean's inverse, on a logarithmic scale, so that no end falls below 0. The mean is above 0.
inline Interval inverse_interval(const std::vector<double>& values) {
  const Interval mean = mean_interval(values);
  if (!(mean.middle > 0)) return {};
  const double half = (mean.high - mean.middle) / mean.middle;
  return {1 / mean.middle, std::exp(-half) / mean.middle, std::exp(half) / mean.middle};
}

// The geometric mean of ratios, given by their logarithms.
inline Interval ratio_interval(const std::vector<double>& logarithms) {
  const Interval mean = mean_interval(logarithms);
  return {std::exp(mean.middle), std::exp(mean.low), std::exp(mean.high)};
}

}  // namespace nanospec
