// course/race.h: your entry for the race: a drafter of your own, and the trees that it grows.
#pragma once

// What an entry may want; its own #include would be refused.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <queue>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "draft.h"
#include "growth/likeliest.h"
#include "tree.h"

namespace course {

using namespace nanospec;  // Growth, Candidate; bigram_table of chapter 3, grow_likeliest of chapter 7

// Called before each forward. text: all that is written so far. growth has its root, the last token of the text. Add
// nodes, each under one that is there: growth.add(node, {token, chance}) returns the new node's number. At most 32
// guesses.
using Racer = std::function<void(const std::vector<int>& text, Growth& growth)>;

// Called once, before the race. corpus: a long text of the same language. Tokens are 0 ... vocab - 1.
inline Racer racer(const std::vector<int>& corpus, int vocab) {
  // course 13.1
  // What mostly follows two tokens: a chain of four.
  std::map<std::pair<int, int>, std::vector<int>> follows;
  for (size_t i = 2; i < corpus.size(); i++) {
    std::vector<int>& counts = follows[{corpus[i - 2], corpus[i - 1]}];
    counts.resize(size_t(vocab));
    counts[size_t(corpus[i])]++;
  }
  return [follows](const std::vector<int>& text, Growth& growth) {
    int before = text.size() > 1 ? text[text.size() - 2] : -1, last = text.back(), node = 0;
    while (growth.size() <= 4) {
      const auto found = follows.find({before, last});
      if (found == follows.end()) return;
      before = last;
      last = int(std::max_element(found->second.begin(), found->second.end()) - found->second.begin());
      node = growth.add(node, {last, 0.5f});
    }
  };
  // end
}

}  // namespace course
