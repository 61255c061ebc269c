// growth/trust.h: how far a drafter's chances hold, learned from what was accepted, and whether drafting pays at all.
//
// In order: the reliability that is counted; the correction of chances; the pace of trying; the duel of two ways.
// Plain C++ over numbers: it knows no models and no trees, reads no clock, and it cannot change the text under rule
// `match`.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "drafters/newton.h"
#include "machine/numbers.h"
#include "tree.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Reliability

// Verified nodes whose parent was on the accepted path, those of one tenth of the corrected chances: what was promised
// and what came of it.
struct Reliability {
  int64_t nodes = 0, accepted = 0;
  double raw = 0, corrected = 0;  // sums of chances
};
using ReliabilityCurve = std::array<Reliability, 10>;  // [i]: corrected chances from i / 10 on

inline void count(ReliabilityCurve& curve, float raw, float corrected, bool accepted) {
  Reliability& tenth = curve[size_t(std::max(0, std::min(9, int(corrected * 10))))];
  tenth.nodes++, tenth.accepted += accepted, tenth.raw += double(raw), tenth.corrected += double(corrected);
}

// ---------------------------------------------------------------------------------------------------------------
// The correction of chances

// A drafter does not know how wrong its logits are, so its chances are too bold or too timid, and differently for its
// first guess and for the later ones. What is true of them is learned as they are accepted or not: Platt scaling with
// the guess's rank,
//   chance = sigmoid(a logit(raw) + b + c log(1 + rank)),
// moved by one Newton step a pass: by the gradient of what is new, over the curvature of all that was seen, the older
// the less.
class Trust {
 public:
  // The candidates of one node, best first: moves their chances to `raw` and puts the corrected ones in their place,
  // in the same order and with a sum of at most 1.
  void correct(Candidate* candidates, int n) const {
    const float a = float(weights_[0]), b = float(weights_[1]), c = float(weights_[2]);
    float left = 1, last = 1;
    for (int rank = 0; rank < n; rank++) {
      Candidate& candidate = candidates[rank];
      candidate.raw = candidate.chance;
      const float chance = 1 / (1 + exp(-(a * logit(candidate.raw) + b + c * log_of_place(rank))));
      candidate.chance = last = candidate.raw > 0 ? std::min({chance, last, left}) : 0;
      left -= last;
    }
  }

  // A candidate, the rank-th of its siblings (0: the first), was what the target chose, or was not.
  void observe(const Candidate& candidate, int rank, bool accepted) {
    constexpr double kLeastWeight = 1e-3;  // so that a wrong certainty can be unlearned
    const double x[3] = {double(logit(candidate.raw)), 1, double(log_of_place(rank))};
    const double chance = double(candidate.chance), error = double(accepted) - chance;
    const double weight = larger(chance * (1 - chance), kLeastWeight);
    for (int i = 0; i < 3; i++) {
      gradient_[i] += error * x[i];
      for (int j = 0; j <= i; j++) newton_.curvature(i, j) += weight * x[i] * x[j];
    }
    observed_++;
  }

  // Learns from what was observed since the last call.
  void learn() {
    if (observed_ == 0) return;
    constexpr double kForget = 1.0 / 1000, kFarthest = 0.5;
    double step[3];
    newton_.solve(gradient_, step);
    for (int i = 0; i < 3; i++) {
      weights_[i] += larger(-kFarthest, smaller(kFarthest, step[i]));
      gradient_[i] = 0;
    }
    newton_.forget(smaller(kForget * observed_, 0.5));
    observed_ = 0;
  }

 private:
  static float logit(float chance) {
    const float inside = larger(1e-4f, smaller(1 - 1e-3f, chance));
    return log(inside / (1 - inside));
  }

  static float log_of_place(int rank) {  // log(1 + rank); the eighth speaks for those behind it
    constexpr float kLog[] = {0, 0.6931472f, 1.0986123f, 1.3862944f, 1.6094379f, 1.7917595f, 1.9459101f, 2.0794415f};
    return kLog[std::min(rank, 7)];
  }

  double weights_[3] = {0.5, 0, -1};  // a, b, c; what a 4-gram's chances came to at temperature 1
  double gradient_[3] = {};           // of the log-likelihood, since learn()
  Newton<3> newton_{3, 2};
  int observed_ = 0;  // since learn()
};

// ---------------------------------------------------------------------------------------------------------------
// The pace of trying

// Where drafting does not pay, asking the drafter is a cost too: then `auto` lets 1, 2, 4, ... passes go by without.
class Pace {
 public:
  // Whether this pass is to draft.
  bool due() {
    if (waited_ >= wait_) return true;
    waited_++;
    return false;
  }

  // Whether tries are rare: then each one asks the drafter, whatever is thought of it.
  bool rare() const { return wait_ > 0; }

  // A pass that drafted expects to save this much of a plain pass; negative where the tree is not worth its drafting.
  void tried(double gain) {
    constexpr double kNewest = 1.0 / 16, kNewestOfFew = 1.0 / 4;  // a rare try speaks for the passes that went without
    constexpr double kLittle = 0.25;
    constexpr int kLongest = 64, kCheck = 8;
    gain_ += (gain - gain_) * (wait_ > 0 ? kNewestOfFew : kNewest);
    wait_ = gain_ > 0 ? 0 : std::min(kLongest, std::max(1, 2 * wait_));
    // Where little is gained, a plain pass goes by now and then, to know what it would cost.
    waited_ = wait_ == 0 && gain_ < kLittle && ++checked_ % kCheck == 0 ? -1 : 0;
  }

  // The drafter's first guess was right: where tries are rare, perhaps they should not be.
  void was_right() { wait_ /= 8; }

 private:
  double gain_ = 0.1;          // smoothed; some first tries are free
  int wait_ = 0, waited_ = 0;  // passes; waited_ = -1: one pass goes without, though wait_ is 0
  int checked_ = 0;            // tries that gained little
};

// ---------------------------------------------------------------------------------------------------------------
// The duel

// Whether to draft while the target verifies (ahead.h): passes in blocks with it and without it by turns, then what
// took less time a token. The other is looked at again from time to time, the rarer the longer it has lost.
class Duel {
 public:
  bool with() const { return with_; }

  // The speed with it over the speed without; 0: not both are known.
  double gain() const { return each_[0] > 0 && each_[1] > 0 ? each_[0] / each_[1] : 0; }

  // A pass that was made this way took so many seconds for so many tokens. The first of a block has what the last block
  // left, and does not count; nor does one that was not what with() said.
  void passed(bool with, double seconds, int tokens) {
    if (with != with_) return;
    if (passes_++ > 0) seconds_ += seconds, tokens_ += tokens;
    if (passes_ < kBlock) return;
    const double each = seconds_ / tokens_;
    each_[with_] = each_[with_] > 0 ? (each_[with_] + each) / 2 : each;
    passes_ = tokens_ = 0, seconds_ = 0, blocks_++;
    if (blocks_ < kTrial) {
      with_ = !with_;
    } else if (blocks_ == kTrial || looks_) {
      const bool better = each_[1] < each_[0];
      rest_ = blocks_ == kTrial || better == with_ ? kRest : std::min(kLongestRest, 2 * rest_);
      with_ = better, looks_ = false, rested_ = 0;
    } else if (++rested_ == rest_) {
      with_ = !with_, looks_ = true;
    }
  }

 private:
  static constexpr int kBlock = 9, kTrial = 4, kRest = 8, kLongestRest = 64;  // passes; blocks
  double each_[2] = {};  // seconds a token without and with it, smoothed over blocks; 0: not known
  bool with_ = false;
  int passes_ = 0, tokens_ = 0;  // of this block
  double seconds_ = 0;
  int blocks_ = 0;                 // in all
  bool looks_ = false;             // at the one that lost
  int rest_ = kRest, rested_ = 0;  // blocks until it looks
};

// All that is learned of one drafter under one kind of sampling. It may be kept from text to text.
struct Experience {
  Trust trust;
  Pace pace;
  Duel duel;
  double expand_seconds = 1e-6;  // what the drafter takes to expand a node, smoothed
  float promise = 0.7f;          // the chance of a node's best child, smoothed
};

}  // namespace nanospec
