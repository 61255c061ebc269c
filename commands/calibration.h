// commands/calibration.h: counts how often a drafter's guesses are right. The command that measures is in
// calibrate.cpp; growth/calibration.h has the file of these rates, and the templates that follow from them.
#pragma once

#include <string>
#include <vector>

#include "drafters/logits.h"
#include "growth/calibration.h"

namespace nanospec {

// Counts, of the places at depth d whose path was drafted, at how many the candidate of rank r was right.
struct RankCounts {
  int depths, ranks;
  std::vector<int64_t> seen;    // (depths) depth 0: the root's children
  std::vector<int64_t> silent;  // (depths) places where the drafter had no candidates
  std::vector<int64_t> right;   // (depths, ranks)
  std::vector<double> seconds;  // that the drafter took, for each node that it expanded

  RankCounts(int most_depths, int most_ranks)
      : depths(most_depths),
        ranks(most_ranks),
        seen(size_t(depths)),
        silent(size_t(depths)),
        right(size_t(depths) * ranks) {}

  int64_t places() const;
  // The rates of a depth that was seldom seen are smoothed towards those of the depth above. A depth where the drafter
  // never had candidates, as heads have none beyond the last one, is not smoothed.
  Accuracy accuracy() const;
};

// Replaces a drafter when the text to come is known, and counts what the drafter would have guessed. At each place it
// asks the drafter, with the noise that the drafter would know, for its candidates; then it proposes the right token,
// where that is one of the drafter's kFollowed best, and nothing elsewhere. So every place is counted at one depth, and
// a root follows a token that was drafted badly, as in decoding. It is for rule match and for chains, which are
// accepted whole.
constexpr int kFollowed = 2;
class Forced : public StandIn {
 public:
  // text: the prompt and the target's continuation. All three arguments must outlive this object.
  Forced(Drafter& its, const std::vector<int>& text, RankCounts& counts);

  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override;

 private:
  bool follows(const Growth& growth, int node, const Draws& draws, int token);

  const std::vector<int>& text_;
  RankCounts& counts_;
  std::vector<Candidate> guesses_;  // (ranks) scratch
};

}  // namespace nanospec
