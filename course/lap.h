// course/lap.h: how the race counts: a text that the target would write, and the trees that a drafter grows for it.
//
// The target picks the text's next token, whatever is drafted: so the text is always plain decoding's, and only the
// number of forwards differs. The grader and the student's program both use this.
#pragma once

#include <vector>

namespace course {

constexpr int kMostNodes = 32;  // of a tree, without the root
// What a forward is said to cost, in milliseconds: the same on every machine, so that a race has one result.
constexpr double kForward = 10, kRow = 0.4;

// A tree: node 0 is the root, the text's last token. A node's parent comes before it.
struct Guesses {
  std::vector<int> token, parent;
};

struct Lap {
  int tokens = 0, forwards = 0, nodes = 0;
  double milliseconds() const { return kForward * forwards + kRow * (forwards + nodes); }
  double a_second() const { return 1000.0 * tokens / milliseconds(); }
  double a_forward() const { return double(tokens) / forwards; }
};

// From token `prompt` on to the end. grow(text so far) returns Guesses.
template <class Grow>
void run_lap(const std::vector<int>& text, size_t prompt, Grow grow, Lap& lap) {
  std::vector<int> written(text.begin(), text.begin() + long(prompt));
  while (written.size() < text.size()) {
    const Guesses guesses = grow(written);
    const size_t before = written.size();
    for (int node = 0; node >= 0 && written.size() < text.size();) {
      const int pick = text[written.size()];
      written.push_back(pick);
      int next = -1;
      for (size_t child = guesses.token.size(); child-- > 1;)
        if (guesses.parent[child] == node && guesses.token[child] == pick) next = int(child);
      node = next;
    }
    lap.tokens += int(written.size() - before);
    lap.nodes += int(guesses.token.size()) - 1;
    lap.forwards++;
  }
}

}  // namespace course
