// watch/settings.h: all that decides how to decode.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "rules/verify.h"
#include "watch/stats.h"

namespace nanospec {

// All that decides how to decode. Under rule match the text depends on `sampling` alone; under the others on the trees
// too, and so, with shape auto, on the clock.
struct Decoding {
  Shape shape;
  Rule rule = Rule::kMatch;
  Sampling sampling;
  int max_new_tokens = 500;
  bool knows_noise = true;  // whether the drafter is told the target's noise, under match; false: for study
  std::function<void(const IterationReport&)> on_iteration = nullptr;  // told of every forward, for study
  std::shared_ptr<Cost> cost;              // of the target's forwards, kept current; shape auto needs it
  std::shared_ptr<Experience> experience;  // with the drafter, kept from text to text; null: none yet
  Ahead ahead = Ahead::kOff;               // whether to draft while the target verifies; under match
};

// Throws invalid_argument where the rule does not allow drafting ahead: under the others the text would depend on who
// was faster.
inline void check_ahead(Ahead ahead, Rule rule) {
  if (ahead != Ahead::kOff && rule != Rule::kMatch)
    throw std::invalid_argument(std::string("only rule match drafts while the target verifies, not ") +
                                about(rule).word + ": --ahead: leave it out, or choose --verify match");
}

}  // namespace nanospec
