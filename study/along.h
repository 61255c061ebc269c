// study/along.h: how good a drafter's first candidate is along the target's text, depth by depth, and what it costs.
//
// In order: the counts; the stand-in that counts. It is for rule match and for chains.
#pragma once

#include <algorithm>
#include <vector>

#include "commands/calibration.h"
#include "growth/clock.h"
#include "machine/numbers.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The counts

// By depth: [0] is that of the root's child. A place counts if the drafter had a candidate there.
struct AlongCounts {
  std::vector<int64_t> places, right;  // (depths) right: its first candidate (by noise too) was the target's token
  std::vector<int64_t> judged;         // (depths) places where it also had a distribution
  std::vector<double> nats;            // (depths) sum of -log of the token's chance in it, at temperature 1
  int64_t rounds = 0;                  // chains that were drafted
  int64_t model_forwards = 0;          // of the drafter's own model, in these chains
  double seconds = 0;                  // that the drafter took for them

  explicit AlongCounts(int depths)
      : places(size_t(depths)), right(size_t(depths)), judged(size_t(depths)), nats(size_t(depths)) {}
  double rate(int depth) const { return double(right[size_t(depth)]) / double(places[size_t(depth)]); }  // of places
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
  for (int x = 0; x < vocab; x++) sum += exp(double(logits[x] - top));
  return log(sum) - double(logits[token] - top);
}

// ---------------------------------------------------------------------------------------------------------------
// The stand-in

// Drafts the text to come in whole chains, whatever the drafter's candidates are. So every drafter is asked at the same
// places, and at each place at one depth. The first iteration of a text is not counted: a drafter that reads the
// target's states has none there.
class Along : public Knowing {
 public:
  // counts must outlive this.
  Along(Drafter& its, const std::vector<int>& text, AlongCounts& counts) : Knowing(its, text), counts_(counts) {}

  void begin(const int* text, int n) override {
    Knowing::begin(text, n);
    first_ = true;
  }
  void committed(const Commit& commit) override {
    timed([&] { Knowing::committed(commit); });
    first_ = false;
  }

 private:
  bool goes_on(const Growth& growth, int node, const Draws& draws, int token) override {
    const size_t depth = size_t(growth.depth[node]);  // below that of the counts
    Candidate guess = {-1, 0};
    int found = 0;
    timed([&] { drafter.expand(growth, &node, 1, 1, draws, &guess, &found); }, token >= 0);
    if (first_ || token < 0) return true;
    counts_.rounds += depth == 0;
    if (found == 0) return true;
    counts_.places[depth]++;
    counts_.right[depth] += guess.token == token;
    const float* const row = drafter.logits(growth, node);
    if (row) {
      counts_.judged[depth]++;
      counts_.nats[depth] += nats_of(row, vocab, token);
    }
    return true;
  }

  // Does some of the drafter's work, and counts its time and forwards, except in the first iteration.
  template <class Work>
  void timed(Work work, bool counted = true) {
    const int64_t before = drafter.model_forwards;
    Stopwatch watch;
    work();
    if (first_ || !counted) return;
    counts_.seconds += watch.lap();
    counts_.model_forwards += drafter.model_forwards - before;
  }

  AlongCounts& counts_;
  bool first_ = true;
};

}  // namespace nanospec
