// drafters/logits.h: drafters that have a distribution, and what other rings ask of them.
//
// The ring drafters/ adds who else may draft: n-grams of the training text (ngram.h), the text so far (adapt.h,
// suffix.h), small models and the target's first layers (draft_model.h), heads (medusa.h), a network that says several
// tokens at once (parallel.h). It includes the core alone, and reads no files: files/drafters.h makes a drafter by its
// name. It hooks into the core's Drafter (draft.h); features.h hooks into the target's after_layer too, where a drafter
// reads what the layers leave. It costs the drafter's own time, which `auto` weighs; plain decoding pays nothing.
//
// Here, in order: what a drafter may read of the target; a drafter that can suppose; the best candidates, and the
// entropy, of logits; a drafter with logits; one by depth; one that stands in for another; the bigram with logits; one
// that knows nothing.
//
// How to add a drafter:
//   1. derive from LogitsDrafter and write `logits`. One that keeps state takes it from `begin` and `committed`; one
//      that runs a model runs it in `prepare`; one that reads states of the target keeps what `attach` gives it;
//   2. give its word a line in DrafterName::Kind and, in the same order, in kDrafters (files/drafter_names.h); make it
//      in load_part of files/drafters.h, or in model_drafters there where it runs a model;
//   3. add it to the sweeps in tests/core/test_decode.cpp (mock) and tests/core/test_sweep.cpp (model).
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "draft.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Hooks of their own

// What a drafter may read of the target's last forward, until the cache keeps its rows. Null where the target keeps it
// to itself, as a GPU does.
struct TargetRows {
  virtual ~TargetRows() = default;
  virtual const float* logits(int row) const = 0;    // (V)
  virtual const float* hidden(int row) const = 0;    // (C) final hidden state
  virtual const float* features(int row) const = 0;  // (3 C) what an early, a middle and the last layer left
  virtual void tap() const = 0;                      // from now on features are kept; called before a text
};

// A drafter that can be asked about a text that may come, while the target is at work: so all runs on the calling
// thread.
struct Supposes {
  virtual ~Supposes() = default;
  // From now on as if a forward had committed these n tokens, of which the target has said nothing yet: trees stand
  // behind them, until the next supposition, unsuppose(), or what came of the forward, committed(). n = 0: nothing is
  // supposed but that; the forward under way can be asked about. Returns false where the drafter cannot: for no tokens,
  // where it never can, as one that needs what the target is about to say.
  virtual bool suppose(const int* tokens, int n) = 0;
  virtual void unsuppose() = 0;
};

// ---------------------------------------------------------------------------------------------------------------
// From logits to candidates: top_candidates() of draft.h for large vocabularies and small ones alike, the same bits

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

// The tuned twin of top_candidates(): few tokens are looked at, since the worst that can be among the best is known.
inline int best_candidates(const float* logits, const float* noise, int vocab, const Sampling& sampling, bool kept_only,
                           int width, Candidate* best, float* scores) {
  const float lowest = -Format<float>::kInfinity;
  score(logits, noise, vocab, sampling, kept_only, scores);
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
  score_to_chance(scores, vocab, sharpness(sampling, noise != nullptr), found, best);
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

// ---------------------------------------------------------------------------------------------------------------
// A drafter with logits

struct LogitsDrafter : Drafter {
  // (V) logits of the token after a node of the growing tree; null where the drafter has no distribution, as one that
  // runs a model has none where it was not prepared. Valid until the next call; may be asked again for any node that
  // has been expanded since the last commit.
  virtual const float* logits(const Growth& growth, int node) = 0;

  // These nodes of the growing tree are about to be expanded: a drafter that runs a model runs it here, once for all of
  // them. Called within drafting only, so the target is at rest, unless something is supposed.
  virtual void prepare(const Growth& /*growth*/, const int* /*nodes*/, int /*n*/) {}

  // The target that a text begins for, before begin(); null: it is over, and nothing can be read any more.
  virtual void attach(const TargetRows* /*rows*/) {}

  // Whose candidate this child of an expanded node is, where a drafter speaks for several: a name for the statistics.
  virtual const std::string& author(int /*node*/, int /*token*/) const { return name; }

  // By default from `logits`.
  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    scores_.resize(size_t(vocab));
    prepare(growth, nodes, n);
    for (int k = 0; k < n; k++) {
      const float* const row = logits(growth, nodes[k]);
      count[k] = 0;
      if (!row) continue;
      const float* noise = draws.noise ? draws.noise->row(draws.index + growth.depth[nodes[k]]) : nullptr;
      count[k] = best_candidates(row, noise, vocab, *draws.sampling, draws.kept_only, width,
                                 candidates + size_t(k) * size_t(width), scores_.data());
    }
  }

  // H: (n) the entropy of what the drafter says after each of n nodes, in nats; 0 where it has no distribution.
  void entropies(const Growth& growth, const int* nodes, int n, const Draws& draws, bool of_confidence, float* H) {
    scores_.resize(size_t(vocab));
    prepare(growth, nodes, n);
    for (int k = 0; k < n; k++) {
      const float* const row = logits(growth, nodes[k]);
      const float* const noise = draws.noise ? draws.noise->row(draws.index + growth.depth[nodes[k]]) : nullptr;
      H[k] = row ? entropy(row, noise, vocab, *draws.sampling, of_confidence, scores_.data()) : 0;
    }
  }

  int vocab = 0;             // V
  float temperature = 1;     // of the sampling; set before begin()
  int64_t model_passes = 0;  // of a model of its own, or of heads: how many it has run so far, for study

 private:
  std::vector<float> scores_;  // (V) scratch
};

// A drafter whose distribution after a node follows from the node's depth alone: neighbours of one depth share their
// candidates, since they share the noise too.
struct DepthDrafter : LogitsDrafter, Supposes {
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
      else LogitsDrafter::expand(growth, nodes + k, 1, width, draws, best, count + k);
    }
  }

  bool supposing = false;  // then the target may be at work
  int shift = 0;           // tokens supposed
};

// Another drafter, as it is: for those who stand in for one and change a part of it.
struct StandIn : LogitsDrafter {
  LogitsDrafter& drafter;
  explicit StandIn(LogitsDrafter& its) : drafter(its) { vocab = its.vocab, name = its.name; }
  void begin(const int* text, int n) override { drafter.temperature = temperature, drafter.begin(text, n); }
  void prepare(const Growth& growth, const int* nodes, int n) override { drafter.prepare(growth, nodes, n); }
  const float* logits(const Growth& growth, int node) override { return drafter.logits(growth, node); }
  void committed(const Commit& commit) override { drafter.committed(commit); }
  void attach(const TargetRows* rows) override { drafter.attach(rows); }
};

// The core's bigram for those who want its logits: the same candidates.
struct BigramLogits : LogitsDrafter {
  const std::shared_ptr<Bigram> bigram;
  explicit BigramLogits(std::shared_ptr<Bigram> its) : bigram(std::move(its)) {
    vocab = bigram->vocab, name = bigram->name;
  }
  const float* logits(const Growth& growth, int node) override {
    return bigram->table->data() + size_t(growth.token[node]) * size_t(vocab);
  }
  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    bigram->expand(growth, nodes, n, width, draws, candidates, count);
  }
};

// The same drafter as one with logits; null for one that has none. `made` holds what had to be made for that.
inline LogitsDrafter* with_logits(Drafter* drafter, std::unique_ptr<LogitsDrafter>& made) {
  if (auto* const its = dynamic_cast<LogitsDrafter*>(drafter)) return its;
  if (auto* const bigram = dynamic_cast<Bigram*>(drafter))
    made = std::make_unique<BigramLogits>(std::shared_ptr<Bigram>(std::shared_ptr<void>(), bigram));  // not its owner
  return made.get();
}

// ---------------------------------------------------------------------------------------------------------------
// Random: what speculation costs when it gains nothing

// Its logits depend on the last token alone, as the bigram's, and on no text: row c is noise of its own.
struct RandomLogits : LogitsDrafter {
  Noise rows;

  explicit RandomLogits(int vocab_size) : rows(Sampling(), vocab_size, kStreamInitialize) { vocab = vocab_size; }
  const float* logits(const Growth& growth, int node) override { return rows.row(growth.token[node]); }
};

}  // namespace nanospec
