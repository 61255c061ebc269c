// commands/method.h: reads the words of a method.
#pragma once

#include <vector>

#include "commands/engine.h"
#include "files/drafter_names.h"
#include "watch/settings.h"

namespace nanospec {

// A method whose words have been read.
struct Meaning {
  std::vector<DrafterName> drafter;  // the parts of a union, or one; kNone: plain decoding
  Shape shape;
  Rule rule;
  Ahead ahead;
  bool plain() const { return drafter.front().kind == DrafterName::kNone; }
};
// budget: where the method has none of its own. Throws std::invalid_argument for an unknown drafter, shape, rule or way
// of drafting ahead, for a shape larger than the budget, and where the rule cannot judge the shape or does not allow
// drafting ahead.
Meaning read_method(const Method& method, int budget);

}  // namespace nanospec
