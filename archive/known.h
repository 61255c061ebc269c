// archive/known.h: a drafter that knows the text: each of its guesses is the text's next token.
//
// With it a text that is there already runs through the loop of decoding in chains, as a prompt does: the target's
// picks come out at every place of it, many in a forward.
#pragma once

#include "draft.h"

namespace nanospec {

struct Known : Drafter {
  std::vector<int> text;
  Known(int vocab_size, std::vector<int> its = {}) : text(std::move(its)) {
    name = "known";
    vocab = vocab_size;
  }
  void begin(const int*, int n) override { at_ = size_t(n); }
  void committed(const Commit& commit) override { at_ += size_t(commit.n); }
  const float* logits(const Growth&, int) override { return nullptr; }
  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws&, Candidate* candidates,
              int* count) override {
    for (int k = 0; k < n; k++) {
      const size_t place = at_ + size_t(growth.depth[size_t(nodes[k])]);
      count[k] = place < text.size() ? 1 : 0;
      if (count[k] > 0) candidates[k * width] = {text[place], 1};
    }
  }

 private:
  size_t at_ = 0;  // tokens that are committed
};

}  // namespace nanospec
