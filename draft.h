// draft.h: what a drafter is, and the bigram.
//
// A drafter says which tokens may come next. It never verifies, knows no shape, and cannot change the generated text: a
// bad drafter costs speed alone. In order: what a drafter is asked and told; from logits to the best candidates; its
// functions; the bigram drafter. All other drafters derive from the same struct, in drafters/.
//
// How to add a drafter:
//   1. derive from Drafter and write `logits`. If it keeps state, write `begin` and `committed`; if it runs a model,
//      run it in `prepare`, and for texts side by side in `prepare_all`; if it reads states of the target, keep the
//      argument of `attach`; if it finds its candidates faster than by all its logits, write `expand`;
//   2. give its name a line in DrafterName::Kind and, in the same order, in kDrafters (files/drafters.h);
//      construct it in files/drafters.cpp or, if it runs a model, in files/model_drafters.h;
//   3. add it to the sweeps in tests/core/test_decode.cpp (mock) and tests/core/test_sweep.cpp (model).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sample.h"
#include "tree.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// What a drafter is asked and told

// How to choose the candidates of the next forward.
struct Draws {
  const Sampling* sampling;
  Noise* noise;    // the target's; null: the likeliest candidates first
  int64_t index;   // index in the text of the root's children; those of a node of depth d are at index + d
  bool kept_only;  // choose among the tokens that top-k and top-p keep of the drafter's own distribution
};

// Nodes of a growing tree that its drafter will expand next.
struct Expansion {
  struct Drafter* drafter;
  const Growth* growth;
  std::vector<int> nodes;
};

// What a forward committed: n tokens, the last of which is the next root, and the n rows of its tree that stay.
struct Commit {
  const int* tokens;  // (n)
  const int* rows;    // (n) ascending; rows[0] = 0, the root
  int n;
  const Tree& tree;  // the rows' tree
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

// Replaces the candidates' scores, which stand in `chance`, by their chances among all tokens. scores: (V).
inline void score_to_chance(const float* scores, int vocab, float scale, int n, Candidate* best) {
  const float top = n > 0 ? best[0].chance : 0;
  const auto weight = [=](float score) { return exp_normal(larger((score - top) * scale, Format<float>::kLogLeast)); };
  const float total = Solo{}.sum<float>(vocab, [=](int x) { return weight(scores[x]); });
  for (int rank = 0; rank < n; rank++) best[rank].chance = weight(best[rank].chance) / total;
}

// Finds the `width` candidates of highest logit + T g, best first, of equal ones the lowest token, with their chances
// among all tokens. logits: (V); noise: (V) or null; scores: (V) scratch. Returns how many there are: fewer than
// `width` where fewer tokens have a chance above 0.
template <class G>
int top_candidates(G g, const float* logits, const float* noise, int vocab, const Draws& draws, int width,
                   Candidate* best, float* scores) {
  // A token that may not be drafted, or whose score is NaN, has the lowest score.
  const float t = noise ? draws.sampling->temperature : 0, lowest = -Format<float>::kInfinity;
  const float* const added = noise ? noise : logits;
  const float least = draws.kept_only ? kept_threshold(g, logits, vocab, *draws.sampling) : lowest;
  g.each(vocab, [=](int x) {
    const float score = fused(t, added[x], logits[x]);
    scores[x] = logits[x] >= least && score > lowest ? score : lowest;
  });

  int found = 0;
  // course 3.2
  float worst = lowest;  // a token must beat this to be among the best
  for (int begin = 0; begin < vocab; begin += kLanes) {
    const int end = smaller(begin + kLanes, vocab);
    int near = 0;  // whether a token of this block beats it: in a large vocabulary few blocks have one
    for (int x = begin; x < end; x++) near |= scores[x] > worst;
    for (int x = begin; near != 0 && x < end; x++) {
      if (!(scores[x] > worst)) continue;
      int at = found < width ? found++ : width - 1;
      for (; at > 0 && best[at - 1].chance < scores[x]; at--) best[at] = best[at - 1];
      best[at] = {x, scores[x]};  // `chance` holds the score until all are found
      if (found == width) worst = best[width - 1].chance;
    }
  }
  // end
  score_to_chance(scores, vocab, sharpness(*draws.sampling, noise != nullptr), found, best);
  return found;
}

// ---------------------------------------------------------------------------------------------------------------
// The drafter

struct Drafter {
  std::string name;
  int vocab = 0;          // V
  float temperature = 1;  // of the sampling; set before begin()

  virtual ~Drafter() = default;

  // Called before begin(), with what can be read of the target's last forward (drafters/logits.h says what); and with
  // null when the text is over.
  virtual void attach(const struct TargetRows* /*rows*/) {}

  // A new text begins: the drafter forgets the last one. text: (n) the prompt; its last token is the first root.
  virtual void begin(const int* /*text*/, int /*n*/) {}

  // These nodes of the growing tree will be expanded next: a drafter that runs a model runs it here, once for all.
  virtual void prepare(const Growth& /*growth*/, const int* /*nodes*/, int /*n*/) {}

  // Texts side by side: the same for drafters that another() made, of all texts in one forward. False if it runs none.
  virtual bool prepare_all(const std::vector<Expansion>&) { return false; }

  // (V) logits of the token after a node of the growing tree. Null where the drafter knows nothing, for instance where
  // its model has not run. Valid until the next call. It may be called again for any node that has been expanded since
  // the last commit.
  virtual const float* logits(const Growth& growth, int node) = 0;

  // Finds the best candidates after n nodes of the growing tree. Those after node k, count[k] <= width of them, go to
  // candidates[k * width ...], best first, no token twice. Here they are the best of logits().
  virtual void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws,
                      Candidate* candidates, int* count) {
    prepare(growth, nodes, n);
    scores_.resize(size_t(vocab));
    for (int k = 0; k < n; k++) {
      const float* const row = logits(growth, nodes[k]);
      const float* const noise = row && draws.noise ? draws.noise->row(draws.index + growth.depth[nodes[k]]) : nullptr;
      Candidate* const best = candidates + size_t(k) * size_t(width);
      count[k] = row ? top_candidates(Solo{}, row, noise, vocab, draws, width, best, scores_.data()) : 0;
    }
  }

  // The target has committed tokens. Called after every forward but the last, before the cache keeps its rows.
  virtual void committed(const Commit&) {}

  // The same drafter for another text, which has that seat of the target: what was read is shared, what is learned is
  // not. Null if it must be loaded anew.
  virtual std::unique_ptr<Drafter> another(int /*seat*/) const { return nullptr; }

  // The name, for the statistics, of the drafter that proposed this child of an expanded node: it may consist of some.
  virtual const std::string& author(int /*node*/, int /*token*/) const { return name; }

 private:
  std::vector<float> scores_;  // (V) scratch
};

// ---------------------------------------------------------------------------------------------------------------
// Bigram: the next token from the last one alone

constexpr double kBigramPrior = 4;  // the unigram weighs as much as this many counts

// (v, v) log q(x | c) = log((count(c, x) + a unigram(x)) / (count(c) + a)), a = kBigramPrior. The unigram counts every
// token once more than it occurs, so that no chance is zero. tokens: each in [0, v).
inline std::vector<float> bigram_table(const std::vector<int>& tokens, size_t v) {
  // course 3.1
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
  // end
}

struct Bigram : Drafter {
  const std::shared_ptr<const std::vector<float>> table;  // (V, V) log q: the next token (columns) after one (rows)

  Bigram(std::vector<float> log_q, int its) : table(std::make_shared<const std::vector<float>>(std::move(log_q))) {
    vocab = its;
  }
  const float* logits(const Growth& growth, int node) override {
    return table->data() + size_t(growth.token[node]) * size_t(vocab);
  }
  std::unique_ptr<Drafter> another(int) const override { return std::make_unique<Bigram>(*this); }
};

#ifdef INSTANTIATE  // machine/sampling.cpp
INSTANTIATE int top_candidates(Solo, const float*, const float*, int, const Draws&, int, Candidate*, float*);
#endif

}  // namespace nanospec
