// commands/calibration.h: counts how often a drafter's guesses are right. The command that measures is in
// calibrate.cpp; growth/calibration.h has the file of these rates, and the templates that follow from them.
#pragma once

#include "drafters/logits.h"
#include "growth/calibration.h"
#include "growth/clock.h"

namespace nanospec {

// Counts, of the places at depth d whose path was drafted, at how many the candidate of rank r was right.
struct RankCounts {
  using Counts = std::vector<int64_t>;
  int depths, ranks;
  Counts seen = Counts(depths);           // (depths) depth 0: the root's children
  Counts silent = Counts(depths);         // (depths) places where the drafter had no candidates
  Counts right = Counts(depths * ranks);  // (depths, ranks)
  std::vector<double> seconds = {};       // that the drafter took, for each node that it expanded

  int64_t places() const { return std::accumulate(seen.begin(), seen.end(), int64_t(0)); }

  // The rates of a depth that was seldom seen are smoothed towards those of the depth above. A depth where the drafter
  // never had candidates, as heads have none beyond the last one, is not smoothed.
  Accuracy accuracy() const {
    constexpr double kPrior = 20;  // places
    Accuracy a;
    a.depths = depths;
    a.ranks = ranks;
    a.seen.assign(seen.begin(), seen.end());
    if (!seconds.empty()) a.expand_seconds = std::max(1e-9, median(seconds));
    for (int d = 0; d < depths; d++) {
      const bool mute = seen[d] > 0 && silent[d] == seen[d];
      const double prior = d > 0 && !mute ? kPrior : 0, n = double(seen[d]) + prior;
      for (int r = 0; r < ranks; r++) {
        const double above = prior > 0 ? prior * a.at(d - 1, r) : 0;
        a.rate.push_back(n > 0 ? (double(right[d * ranks + r]) + above) / n : 0);
      }
    }
    return a;
  }
};

// Replaces a drafter when the text to come is known, and counts what the drafter would have guessed. At each place it
// asks the drafter, with the noise that the drafter would know, for its candidates; then it proposes the right token,
// where that is one of the drafter's kFollowed best, and nothing elsewhere. So every place is counted at one depth, and
// a root follows a token that was drafted badly, as in decoding. It is for rule match and for chains, which are
// accepted whole.
class Forced : public StandIn {
 public:
  // text: the prompt and the target's continuation. All three arguments must outlive this object.
  Forced(Drafter& its, const std::vector<int>& text, RankCounts& counts) : StandIn(its), text_(text), counts_(counts) {}

  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    constexpr int kFollowed = 2;
    std::vector<Candidate> guesses(counts_.ranks);
    for (int k = 0; k < n; k++) {
      const size_t depth = size_t(growth.depth[nodes[k]]), place = size_t(draws.index) + depth;
      const int token = place < text_.size() ? text_[place] : -1;  // -1: the text ends
      int found = 0, rank = 0;
      Stopwatch watch;
      drafter.expand(growth, &nodes[k], 1, counts_.ranks, draws, guesses.data(), &found);
      counts_.seconds.push_back(watch.lap());
      while (rank < found && guesses[rank].token != token) rank++;
      const bool right = rank < found;
      count[k] = right && rank < kFollowed;
      if (count[k]) candidates[size_t(k) * size_t(width)] = {token, 1};
      if (token < 0) continue;
      counts_.seen[depth]++;  // depth is below that of the counts
      counts_.silent[depth] += found == 0;
      if (right) counts_.right[depth * size_t(counts_.ranks) + size_t(rank)]++;
    }
  }

 private:
  const std::vector<int>& text_;
  RankCounts& counts_;
};

}  // namespace nanospec
