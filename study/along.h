// study/along.h: how good a drafter's first choice is along what the target emits, depth by depth, and what it
// costs.
//
// In order: what is counted; the stand-in that counts. It is for rule match, and for chains.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "drafters/logits.h"
#include "growth/clock.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// What is counted

// By depth: [0] is that of the root's child. A place is one where the drafter had something to say.
struct AlongCounts {
  std::vector<int64_t> places, right;  // (depths) whether its first choice, noise and all, was the target's token
  std::vector<int64_t> judged;         // (depths) places where it had a distribution too
  std::vector<double> nats;            // (depths) sum of -log of what that gave the token, at temperature 1
  int64_t rounds = 0;                  // chains that were drafted
  int64_t passes = 0;                  // of the drafter's own model in them
  double seconds = 0;                  // that the drafter took for them

  explicit AlongCounts(int depths)
      : places(size_t(depths)), right(size_t(depths)), judged(size_t(depths)), nats(size_t(depths)) {}
  int depths() const { return int(places.size()); }
  int64_t drafted() const {
    int64_t sum = 0;
    for (int64_t n : places) sum += n;
    return sum;
  }
};

// -log of the softmax of logits (V) at a token.
inline double nats_of(const float* logits, int vocab, int token) {
  const float top = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (int x = 0; x < vocab; x++) sum += std::exp(double(logits[x] - top));
  return std::log(sum) - double(logits[token] - top);
}

// ---------------------------------------------------------------------------------------------------------------
// The stand-in

// Knows the text to come and drafts it, in whole chains, whatever the drafter would have said: so every drafter is
// asked at the same places, and none at more than one depth. A text's first pass is not counted, since a drafter that
// lives on what the target thought has nothing to go by there.
class Along : public StandIn {
 public:
  // text: the prompt and what the target makes of it. All three must outlive this.
  Along(LogitsDrafter& its, const std::vector<int>& text, AlongCounts& counts)
      : StandIn(its), text_(text), counts_(counts) {}

  void begin(const int* text, int n) override { StandIn::begin(text, n), first_ = true; }
  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    for (int k = 0; k < n; k++) {
      const int depth = growth.depth[nodes[k]];  // below that of the counts
      const size_t place = size_t(draws.index + depth);
      Candidate guess = {-1, 0};
      int found = 0;
      const int64_t before = drafter.model_passes;
      Stopwatch watch;
      drafter.expand(growth, nodes + k, 1, 1, draws, &guess, &found);
      const double seconds = watch.lap();
      count[k] = place < text_.size();
      if (count[k]) candidates[size_t(k) * size_t(width)] = {text_[place], 1};
      if (first_ || !count[k]) continue;
      counts_.seconds += seconds, counts_.passes += drafter.model_passes - before, counts_.rounds += depth == 0;
      if (found > 0) note(growth, nodes[k], depth, guess.token, text_[place]);
    }
  }
  void committed(const Commit& commit) override {
    const int64_t before = drafter.model_passes;
    Stopwatch watch;
    drafter.committed(commit);
    if (!first_) counts_.seconds += watch.lap(), counts_.passes += drafter.model_passes - before;
    first_ = false;
  }

 private:
  void note(const Growth& growth, int node, int depth, int guess, int token) {
    const size_t d = size_t(depth);
    counts_.places[d]++, counts_.right[d] += guess == token;
    const float* const row = drafter.logits(growth, node);
    if (row) counts_.judged[d]++, counts_.nats[d] += nats_of(row, vocab, token);
  }

  const std::vector<int>& text_;
  AlongCounts& counts_;
  bool first_ = true;
};

}  // namespace nanospec
