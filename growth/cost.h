// growth/cost.h: the time of a forward by its number of nodes; shape `auto` uses it. Plain C++ over numbers.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

namespace nanospec {

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
  // Noise and pauses can make a larger forward look cheaper. Such sizes get their mean, weighted by how often they were
  // measured (isotonic regression, by pooling adjacent violators).
  void publish() {
    const int sizes = int(own_.size());
    levels_.clear();
    seconds_.clear();
    for (int n = 0; n < sizes; n++) {
      levels_.push_back({own_[n], seen_[n], 1});
      while (levels_.size() > 1 && levels_.end()[-2].mean > levels_.back().mean) {
        const Level last = levels_.back();
        levels_.pop_back();
        Level& into = levels_.back();
        into.mean = (into.mean * into.seen + last.mean * last.seen) / (into.seen + last.seen);
        into.seen += last.seen;
        into.sizes += last.sizes;
      }
    }
    for (const Level& level : levels_) seconds_.insert(seconds_.end(), size_t(level.sizes), common_ * level.mean);

    slope_.assign(own_.size(), std::numeric_limits<double>::infinity());
    const auto steepness = [&](int from, int to) { return (seconds_[to] - seconds_[from]) / (to - from); };
    corners_.clear();  // of the convex function below the costs, to the right of `from`; the nearest one last
    for (int from = sizes - 1; from >= 0; from--) {
      while (corners_.size() > 1 && steepness(from, corners_.end()[-2]) <= steepness(from, corners_.back()))
        corners_.pop_back();
      if (!corners_.empty()) slope_[from] = steepness(from, corners_.back());
      corners_.push_back(from);
    }
    unpublished_ = 0;
  }

  struct Level {
    double mean, seen;
    int sizes;
  };
  std::vector<double> own_, seen_;  // (sizes) as measured, without the common factor; how often
  double common_ = 1;
  std::vector<double> seconds_, slope_;  // (sizes) as published
  std::vector<Level> levels_;            // scratch
  std::vector<int> corners_;             // scratch
  int unpublished_ = 0;                  // samples since publish()
};

}  // namespace nanospec
