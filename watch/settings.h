// watch/settings.h: the settings of decoding.
#pragma once

#include <functional>
#include <memory>

#include "rules/verify.h"
#include "watch/stats.h"

namespace nanospec {

// Picks the next token by its logits (V). It is asked once for each token of the text, in their order.
using Pick = std::function<int(const float* logits)>;

class Cost;         // growth/cost.h
struct Experience;  // growth/trust.h

// Under rule match the text depends on `sampling` alone; under the other rules on the trees too, and so, with shape
// auto, on the clock.
struct Decoding {
  Shape shape;
  Rule rule = Rule::kMatch;
  Sampling sampling;
  int max_new_tokens = 500;
  bool knows_noise = true;  // whether the drafter knows the target's noise, under match; false: for study
  std::function<void(const IterationReport&)> on_iteration = nullptr;  // called after every iteration, for study
  std::shared_ptr<Cost> cost;              // of the target's forwards, which is updated; shape auto needs it
  std::shared_ptr<Experience> experience;  // with the drafter, kept from text to text; null: none yet
  Ahead ahead = Ahead::kOff;               // whether to draft while the target verifies; under match
};

// Throws std::invalid_argument if the rule does not allow drafting ahead: under other rules than match the text would
// depend on which thread is faster.
inline void check_ahead(Ahead ahead, Rule rule) {
  if (ahead != Ahead::kOff && rule != Rule::kMatch)
    refuse_usage(
        "only rule match drafts while the target verifies, not {}: --ahead: leave it out, or choose --verify match",
        about(rule).word);
}

}  // namespace nanospec
