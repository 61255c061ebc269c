// course/guesses7.h: the drafter of chapter 7: what it guesses after a path of tokens, and what the grader asks of a
// growth by it. The grader and the student's program both ask this drafter.
#pragma once

#include <algorithm>
#include <vector>

#include "course/text6.h"

namespace course {

struct Guess {
  int token;
  float chance;
};

// kMixed: any chances. kEqual: a quarter, a quarter, an eighth, ..., so that many nodes are equally likely. kFew: often
// no guesses, or few, and some of chance 0. kSure: one guess, nearly certain. kPage: of the chapter's page, by the last
// token alone.
enum GuessKind { kMixed, kEqual, kFew, kSure, kPage };

// The best `most` guesses after the path of this hash, which ends with `last`: best first.
inline std::vector<Guess> guesses(uint64_t path, int last, int most, int kind) {
  if (kind == kPage) {
    const std::vector<Guess> after[] = {{{1, 0.6f}, {2, 0.25f}}, {{2, 0.5f}, {3, 0.3f}}, {{3, 0.7f}}, {{0, 0.9f}}};
    return after[last % 4];
  }
  const auto unit = [&](int i) { return float(mixed(path, uint64_t(i) + 1) >> 40) * 0x1p-24f; };
  const int n = kind == kSure ? 1 : kind == kFew ? std::max(0, int(unit(99) * 5) - 1) : most;
  std::vector<Guess> all;
  float total = 0;
  for (int i = 0; i < std::min(n, most); i++) {
    all.push_back({int((mixed(path, 98) % 1000 + uint64_t(i) * 7) % 1000), unit(i) * unit(i) + 0.001f});
    total += all.back().chance;
  }
  std::sort(all.begin(), all.end(), [](const Guess& a, const Guess& b) { return a.chance > b.chance; });
  for (size_t i = 0; i < all.size(); i++)
    all[i].chance = kind == kEqual  ? 0.25f / float(1 << i / 2)
                    : kind == kSure ? 0.999f
                                    : all[i].chance / total * (0.5f + unit(97) / 2);
  if (kind == kFew && all.size() > 2) all.back().chance = 0;
  return all;
}

// What the grader asks for: a growth by this drafter.
struct AskedTree {
  int kind, most, root, budget, deepest;
};

// The hash of a path that is a token longer.
inline uint64_t longer_path(uint64_t path, int token) { return mixed(path, uint64_t(token) + 1000); }

}  // namespace course
