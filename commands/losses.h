// commands/losses.h: how well a model predicts a text: the cross-entropy of its tokens, their mean, and how sure that
// is. A target is anything as decode.h describes it.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "machine/numbers.h"

namespace nanospec {

// -log of the chance that these logits (V) give a token, in nats. The sum is one of doubles, in the order of tokens.
inline double token_loss(const float* logits, int vocab, int token) {
  const double most = double(*std::max_element(logits, logits + vocab));
  double sum = 0;
  for (int x = 0; x < vocab; x++) sum += exp(double(logits[x]) - most);
  return most + log(sum) - double(logits[token]);
}

// The losses of the tokens first, first + 1, ... (first is at least 1), each after all tokens before it. The others are
// cached by a prefill; then chains of up to `most_rows` rows give the logits. The last token goes through no forward:
// so there may be one more of them than the target's block.
template <class Target>
std::vector<double> token_losses(Target& target, const std::vector<int>& tokens, int first, int most_rows) {
  const int last = int(tokens.size()) - 1;
  std::vector<double> losses;
  std::vector<int> depth(static_cast<size_t>(most_rows));
  std::iota(depth.begin(), depth.end(), 0);  // of a chain's rows; they all stay
  target.prefill(tokens.data(), first - 1);
  for (int at = first - 1, n; at < last; at += n) {
    n = std::min(most_rows, last - at);
    const std::vector<int> end(size_t(n), n);
    target.forward(tokens.data() + at, depth.data(), end.data(), n);
    for (int i = 0; i < n; i++)
      losses.push_back(token_loss(target.logits(i), target.vocab_size(), tokens[size_t(at + i + 1)]));
    target.keep(depth.data(), n);
  }
  return losses;
}

// The mean of losses, and its standard error: the deviation of one loss, over the square root of n - 1. Losses of
// neighbours are taken as independent, which they are not quite.
struct MeanLoss {
  int64_t n = 0;
  double sum = 0, squares = 0;

  void add(double loss) {
    n++;
    sum += loss;
    squares += loss * loss;
  }
  double mean() const { return n > 0 ? sum / double(n) : 0; }
  double error() const {
    const double variance = n > 1 ? squares / double(n) - mean() * mean() : 0;
    return variance > 0 ? std::sqrt(variance / double(n - 1)) : 0;
  }
  double perplexity() const { return exp(mean()); }
  double perplexity_error() const { return perplexity() * error(); }
};

}  // namespace nanospec
