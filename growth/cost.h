// growth/cost.h: the time of a forward by its number of nodes, and how many nodes are worth it; shape `auto` uses both.
//
// In order: the nodes that are worth their rows; times as they were measured, made smooth; the cost. Plain C++ over
// numbers.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

namespace nanospec {

// How many of the nodes to verify, the likeliest first, so that a forward gives the most tokens a second:
//   (roots + the sum of their reach) / seconds(roots + their number).
// Of equal rates the one of fewer nodes. reach: (n) of the nodes, in this order. Every root gives one token.
// seconds(rows): of a forward.
template <class Seconds>
int best_prefix(const std::vector<float>& reach, int roots, Seconds seconds) {
  // course 9.1
  double tokens = roots, rate = tokens / seconds(roots);
  int best = 0;
  for (int n = 1; n <= int(reach.size()); n++) {
    tokens += double(reach[n - 1]);
    const double its = tokens / seconds(roots + n);
    if (!(its > rate)) continue;
    rate = its;
    best = n;
  }
  return best;
  // end
}

// The numbers nearest to these that never fall: the sum of weight (number - measured)^2 is the least (isotonic
// regression). All weights are above 0.
inline std::vector<double> never_falling(const std::vector<double>& measured, const std::vector<double>& weight) {
  // course 9.2
  struct Level {  // numbers that are equal in the end, pooled from adjacent violators
    double mean, weight;
    int numbers;
  };
  std::vector<Level> levels;
  for (size_t i = 0; i < measured.size(); i++) {
    levels.push_back({measured[i], weight[i], 1});
    while (levels.size() > 1 && levels.end()[-2].mean > levels.back().mean) {
      const Level last = levels.back();
      levels.pop_back();
      Level& into = levels.back();
      into.mean = (into.mean * into.weight + last.mean * last.weight) / (into.weight + last.weight);
      into.weight += last.weight;
      into.numbers += last.numbers;
    }
  }
  std::vector<double> fitted;
  for (const Level& level : levels) fitted.insert(fitted.end(), size_t(level.numbers), level.mean);
  return fitted;
  // end
}

// The time that a target forward of N + 1 rows takes at present, N = 0, 1, ... It starts from what was measured at load
// (measure.h), and every forward is a new sample. One factor is common to all sizes, since the machine may slow down
// and the past grows; another factor belongs to each size.
class Cost {
 public:
  explicit Cost(const std::vector<double>& seconds) : own_(seconds), seen_(seconds.size(), 1) {
    for (double& one : own_) one = std::max(one, 1e-9);  // a clock may be coarse
    publish();
  }

  int most() const { return int(seconds_.size()) - 1; }                // the largest N known
  double seconds(int nodes) const { return seconds_[size_t(nodes)]; }  // does not fall as N grows

  // A lower bound of the cost of further nodes: k more nodes cost at least k slope(N) seconds. It is the slope of the
  // largest convex function below the costs; at the largest N it is infinite.
  double slope(int nodes) const { return slope_[size_t(nodes)]; }

  // A forward took so many seconds. Its relative error counts as kMostError at most, so a single pause moves the
  // estimate by a few percent; a lasting change of any size is learned in some dozens of forwards.
  void observe(int nodes, double seconds) {
    if (nodes > most() || !(seconds > 0)) return;
    constexpr double kMostError = 0.25, kCommon = 1.0 / 16, kOwn = 1.0 / 8;
    const double expected = common_ * own_[size_t(nodes)];
    const double error = std::max(-kMostError, std::min(kMostError, seconds / expected - 1));
    common_ *= 1 + kCommon * error;
    own_[size_t(nodes)] *= 1 + kOwn * error;
    seen_[size_t(nodes)]++;
    if (++unpublished_ >= std::max(32, most() / 2))
      publish();  // not each time: a forward may take only 20 microseconds
  }

 private:
  // Noise and pauses can make a larger forward look cheaper: such sizes get one cost, by how often they were measured.
  void publish() {
    seconds_ = never_falling(own_, seen_);
    for (double& one : seconds_) one *= common_;

    slope_.assign(own_.size(), std::numeric_limits<double>::infinity());
    const auto steepness = [&](int from, int to) { return (seconds_[to] - seconds_[from]) / (to - from); };
    corners_.clear();  // of the convex function below the costs, to the right of `from`; the nearest one last
    for (int from = int(own_.size()) - 1; from >= 0; from--) {
      while (corners_.size() > 1 && steepness(from, corners_.end()[-2]) <= steepness(from, corners_.back()))
        corners_.pop_back();
      if (!corners_.empty()) slope_[from] = steepness(from, corners_.back());
      corners_.push_back(from);
    }
    unpublished_ = 0;
  }

  std::vector<double> own_, seen_;  // (sizes) as measured, without the common factor; how often
  double common_ = 1;
  std::vector<double> seconds_, slope_;  // (sizes) as published
  std::vector<int> corners_;             // scratch
  int unpublished_ = 0;                  // samples since publish()
};

}  // namespace nanospec
