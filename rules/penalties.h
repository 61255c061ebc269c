// rules/penalties.h: penalties: a token that the text already contains becomes less likely.
//
// A penalty changes the logits after a node by the tokens before it: those of the text, prompt included, and those on
// the tree's path to the node. Two nodes of one forward have different paths, so each has penalties of its own. So each
// place is penalized as in plain decoding, whatever was guessed.
#pragma once

#include "decode.h"

namespace nanospec {

// The logit of a token that stands n > 0 times before the place. The repetition penalty is that of CTRL (Keskar et al.
// 2019, section 4.1) as transformers computes it. The other two have the formula of OpenAI's completions, but count the
// prompt's tokens too. The order is vLLM's.
inline float penalized(float logit, int n, const Sampling& s) {
  logit = logit > 0 ? logit / s.repetition_penalty : logit * s.repetition_penalty;
  return logit - s.frequency_penalty * float(n) - s.presence_penalty;
}

class Penalized {
 public:
  // (V) the logits after a node of the text's tree; they are valid until the next call. The text may have grown since
  // its tree was drafted.
  const float* row(const float* logits, int vocab, const Sampling& sampling, const Sequence& text, int node) {
    const auto before = [&](auto visit) {  // each token before the place
      for (int64_t i = 0; i < text.draws.index; i++) visit(text.tokens[size_t(i)]);
      for (int at = node; at > 0; at = text.tree.parent[at]) visit(text.tree.token[at]);
    };
    row_.assign(logits, logits + vocab);
    times_.resize(size_t(vocab));
    before([&](int token) { times_[size_t(token)]++; });
    before([&](int token) {
      if (const int n = std::exchange(times_[size_t(token)], 0))
        row_[size_t(token)] = penalized(row_[size_t(token)], n, sampling);
    });
    return row_.data();
  }

 private:
  std::vector<float> row_;
  std::vector<int> times_;  // (V) how often a token stands before the place; 0 between calls
};

}  // namespace nanospec
