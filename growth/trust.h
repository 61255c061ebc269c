// growth/trust.h: learns how right a drafter's chances are, and whether drafting pays at all.
//
// In order: the counts of reliability; the correction of chances; the pace, or how often to draft; the test of drafting
// ahead; all that is learned about one drafter. Plain C++ over numbers: it knows no models, grows no trees and reads no
// clock. It cannot change the text under rule `match`.
#pragma once

#include <algorithm>
#include <array>

#include "drafters/newton.h"
#include "machine/numbers.h"
#include "tree.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Reliability

// Counts verified nodes whose parent was accepted, for corrected chances between i / 10 and (i + 1) / 10: what chances
// they had, and how many were accepted.
struct Reliability {
  int64_t nodes = 0, accepted = 0;
  double raw = 0, corrected = 0;  // sums of chances
};
using ReliabilityCurve = std::array<Reliability, 10>;  // [i]: corrected chances from i / 10 on

inline void count(ReliabilityCurve& curve, float raw, float corrected, bool accepted) {
  Reliability& bin = curve[size_t(std::max(0, std::min(9, int(corrected * 10))))];
  bin.nodes++;
  bin.accepted += accepted;
  bin.raw += double(raw);
  bin.corrected += double(corrected);
}

// ---------------------------------------------------------------------------------------------------------------
// The correction of chances

// A drafter does not know how wrong its logits are. So its chances are too high or too low, and the first candidate's
// in another way than the later ones'. The correction is learned from verdicts: Platt scaling with the candidate's
// rank,
//   chance = sigmoid(a logit(raw) + b + c log(1 + rank)).
// Each iteration moves a, b, c by one Newton step: the gradient is that of the new observations, the curvature that of
// all of them, with older ones weighing less.
class Trust {
 public:
  // Corrects the chances of one node's candidates, best first, and stores the old ones in `raw`. The order stays, and
  // the sum is at most 1.
  void correct(Candidate* candidates, int n) const {
    const float a = float(weights_[0]), b = float(weights_[1]), c = float(weights_[2]);
    float left = 1, last = 1;
    for (int rank = 0; rank < n; rank++) {
      Candidate& candidate = candidates[rank];
      candidate.raw = candidate.chance;
      const float chance = 1 / (1 + exp(-(a * logit(candidate.raw) + b + c * log_of_rank(rank))));
      candidate.chance = last = candidate.raw > 0 ? std::min({chance, last, left}) : 0;
      left -= last;
    }
  }

  // The target picked this candidate, or did not: it is the rank-th of its siblings (0: the first).
  void observe(const Candidate& candidate, int rank, bool accepted) {
    constexpr double kLeastWeight = 1e-3;  // so that a wrong chance of 0 or 1 can still change
    const double x[3] = {double(logit(candidate.raw)), 1, double(log_of_rank(rank))};
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
    constexpr double kForget = 1.0 / 1000, kMostStep = 0.5;
    newton_.move(gradient_, kMostStep, weights_);
    std::fill(gradient_, gradient_ + 3, 0.0);
    newton_.forget(smaller(kForget * observed_, 0.5));
    observed_ = 0;
  }

 private:
  static float logit(float chance) {
    const float inside = larger(1e-4f, smaller(1 - 1e-3f, chance));
    return log(inside / (1 - inside));
  }

  static float log_of_rank(int rank) {  // log(1 + rank); from the eighth on the same
    constexpr float kLog[] = {0, 0.6931472f, 1.0986123f, 1.3862944f, 1.6094379f, 1.7917595f, 1.9459101f, 2.0794415f};
    return kLog[std::min(rank, 7)];
  }

  double weights_[3] = {0.5, 0, -1};  // a, b, c; those of a 4-gram at temperature 1
  double gradient_[3] = {};           // of the log-likelihood, since learn()
  Newton<3> newton_{3, 2};
  int observed_ = 0;  // since learn()
};

// ---------------------------------------------------------------------------------------------------------------
// The pace

// Where drafting does not pay, `auto` saves the drafter's time too: it drafts only after 1, 2, 4, ... plain forwards.
class Pace {
 public:
  // Whether to draft in this iteration.
  bool due() {
    if (waited_ >= wait_) return true;
    waited_++;
    return false;
  }

  // Whether drafting is rare at present: then the drafter is asked each time, even if little is expected of it.
  bool rare() const { return wait_ > 0; }

  // An iteration that drafted expects to save this part of a plain forward's time; negative: the tree costs more than
  // it gains.
  void observe(double gain) {
    constexpr double kNewest = 1.0 / 16, kNewestOfFew = 1.0 / 4;  // weights of a new gain; larger when drafting is rare
    constexpr double kLittle = 0.25;
    constexpr int kLongest = 64, kCheck = 8;
    gain_ += (gain - gain_) * (wait_ > 0 ? kNewestOfFew : kNewest);
    wait_ = gain_ > 0 ? 0 : std::min(kLongest, std::max(1, 2 * wait_));
    // If the gain is small, one iteration of some is plain, to measure what that costs.
    waited_ = wait_ == 0 && gain_ < kLittle && ++checked_ % kCheck == 0 ? -1 : 0;
  }

  // The drafter's first candidate was right: drafting should become less rare.
  void was_correct() { wait_ /= 8; }

 private:
  double gain_ = 0.1;          // smoothed; at first positive, so that drafting gets a trial
  int wait_ = 0, waited_ = 0;  // iterations; waited_ = -1: one iteration is plain, though wait_ is 0
  int checked_ = 0;            // iterations that gained little
};

// ---------------------------------------------------------------------------------------------------------------
// The test of drafting ahead

// Decides whether to draft while the target verifies (ahead.h). Blocks of iterations with it and without it alternate;
// then the faster one stays. The slower one is tested again from time to time, and the less often the longer it has
// been slower.
class ABTest {
 public:
  bool on() const { return on_; }

  // The speed with it over the speed without; 0 until both are known.
  double gain() const {
    return seconds_per_token_[0] > 0 && seconds_per_token_[1] > 0 ? seconds_per_token_[0] / seconds_per_token_[1] : 0;
  }

  // An iteration with it (on), or without it, took so many seconds for so many tokens. It does not count if it was not
  // what on() asked for; nor does the first of a block, which uses what the last block drafted.
  void observe(bool on, double seconds, int tokens) {
    if (on != on_) return;
    if (iterations_++ > 0) {
      seconds_ += seconds;
      tokens_ += tokens;
    }
    if (iterations_ < kBlock) return;
    const double each = seconds_ / tokens_;
    seconds_per_token_[on_] = seconds_per_token_[on_] > 0 ? (seconds_per_token_[on_] + each) / 2 : each;
    iterations_ = tokens_ = 0;
    seconds_ = 0;
    blocks_++;
    if (blocks_ < kTrial) {
      on_ = !on_;
    } else if (blocks_ == kTrial || retesting_) {
      const bool better = seconds_per_token_[1] < seconds_per_token_[0];
      wait_ = blocks_ == kTrial || better == on_ ? kRest : std::min(kLongestRest, 2 * wait_);
      on_ = better;
      retesting_ = false;
      waited_ = 0;
    } else if (++waited_ == wait_) {
      on_ = !on_;
      retesting_ = true;
    }
  }

 private:
  // kBlock in iterations; the others in blocks.
  static constexpr int kBlock = 9, kTrial = 4, kRest = 8, kLongestRest = 64;
  double seconds_per_token_[2] = {};  // seconds a token without and with it, smoothed over blocks; 0: not known
  bool on_ = false;
  int iterations_ = 0, tokens_ = 0;  // of this block
  double seconds_ = 0;
  int blocks_ = 0;                 // in all
  bool retesting_ = false;         // whether this block tests the slower one
  int wait_ = kRest, waited_ = 0;  // blocks until the next such test
};

// All that is learned about one drafter under one kind of sampling. It may be kept from text to text.
struct Experience {
  Trust trust;
  Pace pace;
  ABTest ahead_test;
  double expand_seconds = 1e-6;  // that the drafter takes to expand a node, smoothed
  float best_chance = 0.7f;      // the chance of a node's best child, smoothed
};

}  // namespace nanospec
