// draft.h: what a drafter is, and the bigram.
//
// A drafter says which tokens may come next. It never verifies, knows no shape, and cannot change the generated text: a
// bad drafter costs speed alone. In order: what a drafter is asked and told; its three functions; the best candidates
// of a distribution; the bigram drafter. Other kinds of drafters derive from this one in drafters/: those that give
// whole distributions, that read the target's states, that run a model.
//
// How to add a drafter:
//   1. write a struct with `expand`; if it keeps state, also with `begin` and `committed`;
//   2. give its name a line in files/drafter_names.h, and construct it in files/drafters.cpp;
//   3. add it to the sweeps in tests/core/test_decode.cpp (mock) and tests/core/test_sweep.cpp (model).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sample.h"
#include "tree.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// What a drafter is

// How to choose the candidates of the next forward.
struct Draws {
  const Sampling* sampling;
  Noise* noise;    // the target's; null: the likeliest candidates first
  int64_t index;   // index in the text of the root's children; those of a node of depth d are at index + d
  bool kept_only;  // choose among the tokens that top-k and top-p keep of the drafter's own distribution
};

// What a forward committed: n tokens, the last of which is the next root, and the n rows of its tree that stay.
struct Commit {
  const int* tokens;  // (n)
  const int* rows;    // (n) ascending; rows[0] = 0, the root
  int n;
  const Tree& tree;  // the rows' tree
};

struct Drafter {
  virtual ~Drafter() = default;

  // A new text begins: the drafter forgets the last one. text: (n) the prompt; its last token is the first root.
  virtual void begin(const int* /*text*/, int /*n*/) {}

  // Finds the best candidates after n nodes of the growing tree. Those after node k, count[k] <= width of them, go to
  // candidates[k * width ...], best first, no token twice.
  virtual void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws,
                      Candidate* candidates, int* count) = 0;

  // The target has committed tokens. Called after every forward but the last, before the cache keeps its rows.
  virtual void committed(const Commit&) {}

  std::string name;
};

// ---------------------------------------------------------------------------------------------------------------
// From logits to candidates

// A drafter that knows the target's noise g guesses the argmax of its own logit + T g. The guess's chance is
// softmax((logit + T g) / max(kSharpness T, kLeastSharpness)): the noise is certain, and what remains uncertain is the
// difference between the drafter's logits and the target's. A drafter that does not know the noise has
// softmax(logit / max(T, kLeastSharpness)). Both sums are over the whole vocabulary.
constexpr float kSharpness = 0.7f, kLeastSharpness = 0.5f;

// The factor of the scores before the softmax.
inline float sharpness(const Sampling& sampling, bool noise) {
  return 1 / larger(noise ? kSharpness * sampling.temperature : sampling.temperature, kLeastSharpness);
}

// scores: (V) logit + T g of the tokens that may be drafted, -infinity for the others.
inline void score(const float* logits, const float* noise, int vocab, const Sampling& sampling, bool kept_only,
                  float* scores) {
  const float t = noise ? sampling.temperature : 0, lowest = -Format<float>::kInfinity;
  const float* const g = noise ? noise : logits;
  const float least = kept_only ? kept_threshold(Solo{}, logits, vocab, sampling) : lowest;
  Solo{}.each(vocab, [=](int x) {
    const float logit = logits[x] >= least ? logits[x] : lowest;
    const float score = fused(t, g[x], logit);
    scores[x] = score > lowest ? score : lowest;  // lowest also where it is NaN
  });
}

// Replaces the candidates' scores, which stand in `chance`, by their chances among all tokens. scores: (V).
inline void score_to_chance(const float* scores, int vocab, float scale, int n, Candidate* best) {
  if (n == 0) return;
  const float top = best[0].chance;
  const auto weight = [=](float score) { return exp_normal(larger((score - top) * scale, Format<float>::kLogLeast)); };
  const float total = Solo{}.sum<float>(vocab, [=](int x) { return weight(scores[x]); });
  for (int rank = 0; rank < n; rank++) best[rank].chance = weight(best[rank].chance) / total;
}

// Finds the `width` candidates of highest score, best first, of equal ones the lowest token, with their chances among
// all tokens. logits: (V); noise: (V) or null; scores: (V) scratch. Returns how many there are: fewer than `width`
// where fewer tokens have a chance above 0.
inline int top_candidates(const float* logits, const float* noise, int vocab, const Draws& draws, int width,
                          Candidate* best, float* scores) {
  score(logits, noise, vocab, *draws.sampling, draws.kept_only, scores);
  float worst = -Format<float>::kInfinity;  // a token must beat this to be among the best
  int found = 0;
  for (int x = 0; x < vocab; x++) {
    if (!(scores[x] > worst)) continue;
    int at = found < width ? found++ : width - 1;
    for (; at > 0 && best[at - 1].chance < scores[x]; at--) best[at] = best[at - 1];
    best[at] = {x, scores[x]};  // `chance` holds the score until all are found
    if (found == width) worst = best[width - 1].chance;
  }
  score_to_chance(scores, vocab, sharpness(*draws.sampling, noise != nullptr), found, best);
  return found;
}

// ---------------------------------------------------------------------------------------------------------------
// Bigram: the next token from the last one alone

constexpr double kBigramPrior = 4;  // the unigram weighs as much as this many counts

// (V, V) log q(x | c) = log((count(c, x) + a unigram(x)) / (count(c) + a)), a = kBigramPrior. The unigram counts every
// token once more than it occurs, so that no chance is zero. tokens: each in [0, V).
inline std::vector<float> bigram_table(const std::vector<int>& tokens, int vocab) {
  const size_t v = size_t(vocab);
  std::vector<double> unigram(v, 1.0 / double(tokens.size() + v)), total(v, 0);
  for (int token : tokens) unigram[token] += 1.0 / double(tokens.size() + v);
  std::vector<float> table(v * v, 0);  // counts first: exact up to 2^24
  for (size_t i = 1; i < tokens.size(); i++) {
    table[tokens[i - 1] * v + tokens[i]]++;
    total[tokens[i - 1]]++;
  }
  for (size_t c = 0; c < v; c++)
    for (size_t x = 0; x < v; x++)
      table[c * v + x] = float(log((table[c * v + x] + kBigramPrior * unigram[x]) / (total[c] + kBigramPrior)));
  return table;
}

struct Bigram : Drafter {
  const int vocab;                                        // V
  const std::shared_ptr<const std::vector<float>> table;  // (V, V) log q: the next token (columns) after one (rows)

  Bigram(std::vector<float> log_probabilities, int vocab_size)
      : vocab(vocab_size),
        table(std::make_shared<const std::vector<float>>(std::move(log_probabilities))),
        scores_(size_t(vocab_size)) {}

  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    for (int k = 0; k < n; k++) {
      const float* const q = table->data() + size_t(growth.token[nodes[k]]) * size_t(vocab);
      const float* const noise = draws.noise ? draws.noise->row(draws.index + growth.depth[nodes[k]]) : nullptr;
      count[k] = top_candidates(q, noise, vocab, draws, width, candidates + size_t(k) * size_t(width), scores_.data());
    }
  }

 private:
  std::vector<float> scores_;  // (V) scratch
};

}  // namespace nanospec
