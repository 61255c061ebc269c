// draft.h: drafters: who says which tokens may come next.
//
// In order: the interface; from a drafter's logits to its candidates; candidates for rules that want a sample; the
// bigram drafter; the n-gram drafter; a drafter that knows nothing. Those that learn from the text itself
// are in adapt.h, those that run a model in draft_model.h, all names in drafters.h. A drafter never verifies, knows no
// shape, and cannot change the text under rule `match`: a bad one costs speed.
//
// How to add a drafter:
//   1. write a struct with `logits` (a distribution after a node of the growing tree) or, without one, `expand`;
//      one that keeps state takes it from `begin` and `committed`, one that runs a model does it in `prepare`;
//   2. give its word a line in drafters.h: in DrafterName::Kind and, in the same order, kDrafters, then in load_part;
//      where it runs a model, also in make_drafter of nanospec.cu;
//   3. add it to the sweeps in tests/test_decode.cpp (mock) and tests/test_sweep.cpp (model).
#pragma once

#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "drafters/ngram.h"
#include "sample.h"
#include "tree.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The interface

// How candidates are to be chosen in this pass.
struct Draws {
  const Sampling* sampling;
  Noise* noise;    // null: by chance alone, the likeliest first
  int64_t index;   // place in the text of the root's children: those of a node of depth d are at index + d
  bool kept_only;  // choose among the tokens that top-k/top-p keep of the drafter's own distribution (rules with a q)
};

// What a pass committed: n tokens, the last one of them the next root, and the n rows of the tree that stay.
struct Commit {
  const int* tokens;  // (n)
  const int* rows;    // (n) ascending; rows[0] = 0, the root
  int n;
  const Tree& tree;                        // that the rows belong to
  const float* const* hidden;              // (n) the target's final hidden state (C) at each row; null unless asked for
  const float* const* logits = nullptr;    // (N) the target's at every row of the tree; null unless asked for, or where
                                           // the target keeps them to itself
  const float* const* features = nullptr;  // (n) what the target's layers left at each row (3C); null unless asked for,
                                           // null each where the target keeps them to itself
};

using Table = std::shared_ptr<const std::vector<float>>;

struct Drafter {
  virtual ~Drafter() = default;

  // A new text begins: forget the last one. text: (n) the prompt; its last token is the first root.
  virtual void begin(const int* /*text*/, int /*n*/) {}

  // These nodes of the growing tree are about to be expanded: a drafter that runs a model runs it here, once for all of
  // them. Called within drafting only, so the target is at rest, unless something is supposed.
  virtual void prepare(const Growth& /*growth*/, const int* /*nodes*/, int /*n*/) {}

  // (V) logits of the token after a node of the growing tree; null where the drafter has no distribution, as one that
  // runs a model has none where it was not prepared. Valid until the next call; may be asked again for any node that
  // has been expanded in this pass.
  virtual const float* logits(const Growth& growth, int node) = 0;

  // The best `width` candidates of n nodes of the growing tree, as grow() asks for them. By default from `logits`.
  virtual void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws,
                      Candidate* candidates, int* count);

  // The target has committed tokens: called once after every pass.
  virtual void committed(const Commit&) {}

  // From now on as if a pass had committed these n tokens, of which the target has said nothing yet: growths stand
  // behind them, until the next supposition, unsuppose(), or what came of the pass, committed(). The target may be at
  // work, so all runs on the calling thread. n = 0: nothing is supposed but that; the pass under way can be asked
  // about. Returns false where the drafter cannot: for no tokens, where it never can, as one that needs what the target
  // is about to say, or that is so quick that nothing is gained.
  virtual bool suppose(const int* /*tokens*/, int /*n*/) { return false; }
  virtual void unsuppose() {}

  // The whole of a drafter whose logits follow from the last token alone and never change, and that expands as the
  // default does: (V, V) finite logits of the token after a token. A target may then draft its trees itself. Null:
  // there is none.
  virtual Table table() const { return nullptr; }

  // H: (n) the entropy of what the drafter says after each of n nodes, in nats; 0 where it has no distribution.
  void entropies(const Growth& growth, const int* nodes, int n, const Draws& draws, bool of_confidence, float* H);

  // Whether `committed` is to get hidden states.
  virtual bool wants_hidden() const { return false; }

  // Whether `committed` is to get features.
  virtual bool wants_features() const { return false; }

  // Whether `committed` is to get the target's logits.
  virtual bool wants_logits() const { return false; }

  // Whose candidate this child of an expanded node is, where a drafter speaks for several: a name for the statistics.
  virtual const std::string& author(int /*node*/, int /*token*/) const { return name; }

  int vocab = 0;             // V
  float temperature = 1;     // of the sampling; set before begin()
  int64_t model_passes = 0;  // of a model of its own, or of heads: how many it has run so far, for study
  std::string name;

 private:
  std::vector<float> scores_;  // (V) scratch
};

// ---------------------------------------------------------------------------------------------------------------
// From logits to candidates

// With the target's noise g known, the drafter's guess of the target's pick is the argmax of its own logit + T g, and
// how sure it may be of it is softmax((logit + T g) / max(kSharpness T, kLeastSharpness)): what is left uncertain is
// the difference between its logits and the target's, not the noise. Without the noise it is
// softmax(logit / max(T, kLeastSharpness)). The sum is over the whole vocabulary: all that could have been siblings.
constexpr float kSharpness = 0.7f, kLeastSharpness = 0.5f;

// What scores are multiplied by before the softmax.
inline float sharpness(const Sampling& sampling, bool noise) {
  return 1 / larger(noise ? kSharpness * sampling.temperature : sampling.temperature, kLeastSharpness);
}

// A score that the `width` best of V tokens reach: of eight groups of tokens, each with its largest score, the least of
// these. Where that cannot be said, -infinity.
inline float reached_by_best(const float* scores, int vocab, int width) {
  constexpr int kGroups = 8;
  if (width > kGroups || vocab < kLanes) return -Format<float>::kInfinity;
  float most[kLanes];  // the largest score of each lane, then of each group of lanes
  for (int l = 0; l < kLanes; l++) most[l] = scores[l];
  for (int x = kLanes; x + kLanes <= vocab; x += kLanes)
    for (int l = 0; l < kLanes; l++) most[l] = larger(most[l], scores[x + l]);
  for (int half = kLanes / 2; half >= kGroups; half /= 2)
    for (int l = 0; l < half; l++) most[l] = larger(most[l], most[l + half]);
  for (int half = kGroups / 2; half > 0; half /= 2)
    for (int l = 0; l < half; l++) most[l] = smaller(most[l], most[l + half]);
  return most[0];
}

// The `width` candidates of highest score, best first, of equal ones the lowest token, each with its chance among all
// tokens. logits: (V); noise: (V) or null; scores: (V) scratch. Returns how many there are: `width`, or fewer where
// fewer tokens have a chance at all.
inline int best_candidates(const float* logits, const float* noise, int vocab, const Sampling& sampling, bool kept_only,
                           int width, Candidate* best, float* scores) {
  const Solo solo;
  const float t = noise ? sampling.temperature : 0, lowest = -Format<float>::kInfinity;
  const float* const g = noise ? noise : logits;
  const float least = kept_only ? kept_threshold(logits, vocab, sampling) : lowest;
  solo.each(vocab, [=](int x) {
    const float logit = logits[x] >= least ? logits[x] : lowest;
    const float score = fused(t, g[x], logit);
    scores[x] = score > lowest ? score : lowest;  // also where it is NaN
  });

  // What the next candidate must beat: at first the number just below what the best reach, so that few are looked at.
  float worst = std::nextafter(reached_by_best(scores, vocab, width), lowest);
  int found = 0;
  const auto consider = [&](int x) {
    const float score = scores[x];
    if (!(score > worst)) return;
    int at = found < width ? found++ : width - 1;
    for (; at > 0 && best[at - 1].chance < score; at--) best[at] = best[at - 1];
    best[at] = {x, score};  // the score stands in for the chance until all are found
    if (found == width) worst = best[width - 1].chance;
  };
  int x = 0;
  for (; x + kLanes <= vocab; x += kLanes) {
    uint32_t near = 0;  // bit l: token x + l may enter
    for (int l = 0; l < kLanes; l++) near |= uint32_t(scores[x + l] > worst) << l;
    for (; near != 0; near &= near - 1) consider(x + __builtin_ctz(near));
  }
  for (; x < vocab; x++) consider(x);
  if (found == 0) return 0;

  const float top = best[0].chance;
  const float scale = sharpness(sampling, noise != nullptr);
  const auto weight = [=](float score) { return exp_normal(larger((score - top) * scale, Format<float>::kLogLeast)); };
  const float total = solo.sum<float>(vocab, [=](int x) { return weight(scores[x]); });
  for (int rank = 0; rank < found; rank++) best[rank].chance = weight(best[rank].chance) / total;
  return found;
}

// The entropy, in nats, of what a drafter says after a node: of its distribution before top-k and top-p, at temperature
// 0 as at 1; or, with `of_confidence`, of the confidence above. scores: (V) scratch.
inline float entropy(const float* logits, const float* noise, int vocab, const Sampling& sampling, bool of_confidence,
                     float* scores) {
  const Solo solo;
  const bool coupled = of_confidence && noise;
  const float t = coupled ? sampling.temperature : 0;
  const float scale =
      of_confidence ? sharpness(sampling, coupled) : 1 / (sampling.temperature > 0 ? sampling.temperature : 1.0f);
  const float* const g = coupled ? noise : logits;
  solo.each(vocab, [=](int x) { scores[x] = fused(t, g[x], logits[x]) * scale; });
  const float top = solo.largest<float>(vocab, [=](int x) { return scores[x]; });
  solo.each(vocab, [=](int x) { scores[x] = larger(scores[x] - top, Format<float>::kLogLeast); });
  // With weights w = exp(s) and their sum Z: H = log Z - sum of w s / Z.
  const float Z = solo.sum<float>(vocab, [=](int x) { return exp_normal(scores[x]); });
  const float mean = solo.sum<float>(vocab, [=](int x) { return exp_normal(scores[x]) * scores[x]; }) / Z;
  return log(Z) - mean;
}

inline void Drafter::expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws,
                            Candidate* candidates, int* count) {
  scores_.resize(vocab);
  prepare(growth, nodes, n);
  for (int k = 0; k < n; k++) {
    const float* const row = logits(growth, nodes[k]);
    count[k] = 0;
    if (!row) continue;
    const float* noise = draws.noise ? draws.noise->row(draws.index + growth.depth[nodes[k]]) : nullptr;
    count[k] = best_candidates(row, noise, vocab, *draws.sampling, draws.kept_only, width,
                               candidates + size_t(k) * width, scores_.data());
  }
}

inline void Drafter::entropies(const Growth& growth, const int* nodes, int n, const Draws& draws, bool of_confidence,
                               float* H) {
  scores_.resize(vocab);
  prepare(growth, nodes, n);
  for (int k = 0; k < n; k++) {
    const float* const row = logits(growth, nodes[k]);
    const float* const noise = draws.noise ? draws.noise->row(draws.index + growth.depth[nodes[k]]) : nullptr;
    H[k] = row ? entropy(row, noise, vocab, *draws.sampling, of_confidence, scores_.data()) : 0;
  }
}

// A drafter whose distribution after a node follows from the node's depth alone: neighbours of one depth share their
// candidates, since they share the noise too.
struct DepthDrafter : Drafter {
  // Of a supposition the later depths say what comes behind its tokens, from what is known of the target.
  bool suppose(const int*, int n) override { return supposing = true, shift = n, n < depths(); }
  void unsuppose() override { supposing = false, shift = 0; }
  virtual int depths() const = 0;  // that it says anything of

  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    for (int k = 0; k < n; k++) {
      Candidate* const best = candidates + size_t(k) * width;
      if (k > 0 && growth.depth[nodes[k]] == growth.depth[nodes[k - 1]])
        count[k] = count[k - 1], std::copy_n(best - width, count[k], best);
      else Drafter::expand(growth, nodes + k, 1, width, draws, best, count + k);
    }
  }

  bool supposing = false;  // then the target may be at work
  int shift = 0;           // tokens supposed
};

// ---------------------------------------------------------------------------------------------------------------
// Candidates that are a sample

// q: (V) what a drafter's token after a node is drawn from, after temperature, top-k and top-p: the rules judge by it.
inline void draft_distribution(Drafter& drafter, const Growth& growth, int node, const Sampling& sampling, float* q) {
  const float* logits = drafter.logits(growth, node);
  if (!logits) throw std::runtime_error("this drafter has no distribution: --verify: choose --verify match");
  distribution(logits, drafter.vocab, sampling, q);
}

// Up to `width` tokens after each of n nodes drawn from q, in the order of their drawing, in place of the candidates
// that `expand` chose for these nodes. `again`: each is drawn from all of q, so that one token may come twice; else
// without replacement: the largest log q(x) + gumbel(x) comes first, then the next (the exponential race; Kool, van
// Hoof, Welling 2019). The chances are new for each node of each pass, and shared with nobody.
inline void draw_candidates(Drafter& drafter, const Growth& growth, const int* nodes, int n, int width,
                            const Draws& draws, bool again, Candidate* candidates, int* count) {
  const int vocab = drafter.vocab;
  const Sampling& sampling = *draws.sampling;
  std::vector<float> q(vocab), noise(whole(vocab, kNoiseBlock)), scores(vocab);
  for (int k = 0; k < n; k++) {
    Candidate* const drawn = candidates + size_t(k) * width;
    if (count[k] == 0 && !drafter.logits(growth, nodes[k])) continue;  // the drafter cannot see so far
    Sampling own;                                                      // a seed of this node's own
    own.seed = random_bits(sampling.seed, sampling.sequence, kStreamDraft, uint64_t(draws.index), uint32_t(nodes[k]));
    draft_distribution(drafter, growth, nodes[k], sampling, q.data());
    if (again) {
      count[k] = width;
      for (int i = 0; i < width; i++) drawn[i].token = draw(q.data(), vocab, chance(own, kStreamDraft, 0, i));
    } else {
      make_noise(Solo{}, own, kStreamDraft, 0, vocab, noise.data());
      const float* const race = sampling.temperature > 0 ? noise.data() : nullptr;
      count[k] =
          best_candidates(drafter.logits(growth, nodes[k]), race, vocab, sampling, true, width, drawn, scores.data());
      while (count[k] > 0 && q[drawn[count[k] - 1].token] == 0) count[k]--;  // what q cannot draw
    }
    for (int i = 0; i < count[k]; i++) drawn[i].chance = q[drawn[i].token];
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Bigram: the next token from the last one alone

constexpr int kBigramMostTokens = 8192;  // the table is (V, V) floats
constexpr double kBigramPrior = 4;       // how many sightings the unigram's opinion weighs as much as

// (V, V) log q(x | c) = log((count(c, x) + a unigram(x)) / (count(c) + a)), a = kBigramPrior; the unigram counts every
// token once more than it was seen, so that no chance is zero. tokens: each in [0, V).
inline std::vector<float> bigram_table(const std::vector<int>& tokens, int vocab) {
  const size_t v = size_t(vocab);
  std::vector<double> unigram(v, 1.0 / double(tokens.size() + v)), total(v, 0);
  for (int token : tokens) unigram[token] += 1.0 / double(tokens.size() + v);
  std::vector<float> table(v * v, 0);  // counts first: exact up to 2^24
  for (size_t i = 1; i < tokens.size(); i++) table[tokens[i - 1] * v + tokens[i]]++, total[tokens[i - 1]]++;
  for (size_t c = 0; c < v; c++)
    for (size_t x = 0; x < v; x++)
      table[c * v + x] = float(std::log((table[c * v + x] + kBigramPrior * unigram[x]) / (total[c] + kBigramPrior)));
  return table;
}

struct Bigram : Drafter {
  // log_probabilities: (V, V) of the next token (columns) after a token (rows)
  Bigram(std::vector<float> log_probabilities, int vocab_size)
      : table_(std::make_shared<const std::vector<float>>(std::move(log_probabilities))) {
    vocab = vocab_size;
  }
  const float* logits(const Growth& growth, int node) override {
    return table_->data() + size_t(growth.token[node]) * vocab;
  }
  Table table() const override { return table_; }

 private:
  Table table_;
};

// ---------------------------------------------------------------------------------------------------------------
// N-gram: the next token from the last N - 1

struct Ngram : Drafter {
  Ngrams table;

  explicit Ngram(Ngrams ngrams) : table(std::move(ngrams)), row_(table.vocab) { vocab = table.vocab; }

  void begin(const int* text, int n) override {
    root_ = 0;
    for (int i = std::max(0, n - (table.order - 1)); i < n; i++) root_ = table.next(root_, text[i]);
  }
  void committed(const Commit& commit) override {
    for (int i = 0; i < commit.n; i++) root_ = table.next(root_, commit.tokens[i]);
  }
  const float* logits(const Growth& growth, int node) override {
    table.log_probabilities(context(growth, node, table.order - 1), row_.data());
    return row_.data();
  }

 private:
  // The context after a node, of the last `tokens` tokens at least where the text has as many.
  int context(const Growth& growth, int node, int tokens) const {
    if (tokens == 0) return 0;
    if (node == 0) return root_;
    return table.next(context(growth, growth.parent[node], tokens - 1), growth.token[node]);
  }

  int root_ = 0;            // the context after the text, the growth's root included
  std::vector<float> row_;  // (V)
};

// ---------------------------------------------------------------------------------------------------------------
// Random: what speculation costs when it gains nothing

// Its logits depend on the last token alone, as the bigram's, and on no text: row c is noise of its own.
struct RandomLogits : Drafter {
  Noise rows;

  explicit RandomLogits(int vocab_size) : rows(Sampling(), vocab_size, kStreamInitialize) { vocab = vocab_size; }
  const float* logits(const Growth& growth, int node) override { return rows.row(growth.token[node]); }
};

}  // namespace nanospec
