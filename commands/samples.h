// commands/samples.h: what several runs of the same thing say: their middle and their ends.
#pragma once

#include "growth/clock.h"

namespace nanospec {

inline double lowest(const std::vector<double>& v) { return v.empty() ? 0 : *std::min_element(v.begin(), v.end()); }
inline double highest(const std::vector<double>& v) { return v.empty() ? 0 : *std::max_element(v.begin(), v.end()); }

struct Interval {
  double middle = 0, low = 0, high = 0;
};

inline Interval spread_of(const std::vector<double>& runs) { return {median(runs), lowest(runs), highest(runs)}; }

}  // namespace nanospec
