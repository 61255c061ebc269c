// drafters/logits.h: what drafters read and share.
//
// The ring drafters/ adds more drafters: n-grams of the training text (ngram.h), the text so far (adapt.h, suffix.h),
// small models and the target's first layers (draft_model.h), heads (medusa.h, hydra.h), a network that predicts
// several tokens at once (parallel.h). It includes the core alone, and reads no files: files/drafters.cpp loads a
// drafter by its name. It hooks into the core's Drafter (draft.h); features.h reads the target's states and weights
// (target.h). A drafter costs its own time, which `auto` weighs; plain decoding pays nothing.
//
// Here, in order: what a drafter may read of the target; a drafter that drafts ahead; the entropy of logits; the logits
// of a few likely tokens; what the kinds of drafters share; the nodes that a drafter's model has seen; a drafter that
// knows likely tokens; one whose logits depend on depth alone; one that replaces another; one with random logits. How
// to add a drafter: see the head of draft.h.
#pragma once

#include <algorithm>
#include <numeric>
#include <utility>

#include "draft.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// More hooks

// What a drafter may read of the target's last forward, until the cache keeps its rows. Null where it cannot be read,
// as on a GPU.
struct TargetRows {
  virtual ~TargetRows() = default;
  virtual const float* logits(int row) const = 0;    // (V)
  virtual const float* hidden(int row) const = 0;    // (C) final hidden state
  virtual const float* features(int row) const = 0;  // (3 C) hidden states after an early, a middle and the last layer
};

// A drafter that can draft while the target runs, for tokens that the target may commit. It works on the calling thread
// alone.
struct DraftsAhead {
  virtual ~DraftsAhead() = default;
  // Assumes that the current forward commits these n tokens. Trees then continue the text behind them, until the next
  // assume(), rollback() or committed(). With n = 0 the drafter can still be asked about the current tree. Returns
  // false if the drafter cannot; for n = 0 this means that it never can, for instance because it needs the result of
  // the current forward.
  virtual bool assume(const int* tokens, int n) = 0;
  virtual void rollback() = 0;
};

// ---------------------------------------------------------------------------------------------------------------
// Entropy

// H: (n) the entropy, in nats, of a drafter's distribution after each of n nodes, before top-k and top-p; 0 where it
// has none. Temperature 0 counts as 1. With `of_confidence`: that of the candidates' chances (score_to_chance).
void entropies(Drafter& drafter, const Growth& growth, const int* nodes, int n, const Draws& draws, bool of_confidence,
               float* H);

// ---------------------------------------------------------------------------------------------------------------
// The logits of a few likely tokens

constexpr int kManyTokens = 4096;  // from here on it takes time to go through a vocabulary: cheap drafters avoid it

// Logits of which few differ: those of some likely tokens, and one that all others have. Of 49,152 tokens a table or
// the text so far knows some dozens after a context; to go through the others would take most of the time of a draft.
struct Likely {
  std::vector<int> token;    // (n) the likely tokens, in no order
  std::vector<float> logit;  // (n) theirs
  float rest = 0;            // the logit of every other token

  explicit Likely(int vocab) : at_(size_t(vocab), -1) {}

  void clear() {
    for (int x : token) at_[x] = -1;
    token.clear();
    logit.clear();
  }
  // The logit of a token, which is likely from now on. At first it is 0.
  float& add(int x) {
    if (at_[x] < 0) {
      at_[x] = int(token.size());
      token.push_back(x);
      logit.push_back(0);
    }
    return logit[at_[x]];
  }
  int find(int x) const { return at_[x]; }  // its place in `token`; -1: it is one of the others
  float of(int x) const { return at_[x] < 0 ? rest : logit[at_[x]]; }
  int vocab() const { return int(at_.size()); }
  int others() const { return vocab() - int(token.size()); }

  // row: (V) the same logits.
  void spread(float* row) const {
    std::fill(row, row + vocab(), rest);
    for (size_t i = 0; i < token.size(); i++) row[token[i]] = logit[i];
  }

 private:
  std::vector<int> at_;  // (V) see find()
};

// As top_candidates(), among the likely tokens alone. One of the others comes with the chance that they have together
// without noise. scores: scratch.
int best_of_likely(const Likely& likely, const float* noise, const Sampling& sampling, int width, Candidate* best,
                   std::vector<float>& scores);

// The `most` best tokens of `classes` logits, and one logit that all others have together. Class i is token[i]; where
// there are more classes than tokens, those behind are others.
void best_likely(const float* logits, int classes, const std::vector<int>& token, float temperature, int most,
                 Likely& best);

// What any drafter knows of the likely tokens after a node, or nearly so; null where it knows nothing. `best` is used
// where it has logits alone: then it becomes the best of these.
const Likely* likely_of(Drafter& drafter, const Growth& growth, int node, Likely& best);

// ---------------------------------------------------------------------------------------------------------------
// Kinds of drafters

// A new drafter of that kind and name.
template <class Kind, class... Arguments>
std::unique_ptr<Kind> named(const std::string& name, Arguments&&... its) {
  auto drafter = std::make_unique<Kind>(std::forward<Arguments>(its)...);
  drafter->name = name;
  return drafter;
}

// What is in the file of heads, or of a network, that drafts.
template <class Sizes>
struct DrafterFile {
  Sizes sizes;
  std::vector<float> weights;   // flat: the table of these sizes
  std::vector<int> token = {};  // (N) those of the target that it says, the most frequent first; none: all
};

// 0 .. n - 1.
inline std::vector<int> numbers_to(int n) {
  std::vector<int> list(static_cast<size_t>(n));
  std::iota(list.begin(), list.end(), 0);
  return list;
}

// The nodes that a drafter's model has seen in an iteration. A node is known by the tokens of its path: in another
// growth, or in this one grown again, it is the same node.
struct SeenNodes : Growth {
  // -1: not seen.
  int find(const Growth& growth, int node) const {
    if (node == 0) return size() > 0 ? 0 : -1;
    const int above = find(growth, growth.parent[node]);
    return above < 0 ? -1 : child(above, growth.token[node]);
  }
  int child(int above, int its_token) const {
    for (int id = above + 1; id < size(); id++)
      if (parent[id] == above && token[id] == its_token) return id;
    return -1;
  }
  int enter(const Growth& growth, int node) {
    const int id = find(growth, node);
    return id >= 0 ? id : add(enter(growth, growth.parent[node]), {growth.token[node], 1});
  }
};

// A drafter that knows the likely tokens: of a large vocabulary it finds its candidates among them. It may read the
// target.
struct LikelyDrafter : Drafter {
  static constexpr int kGuesses = 32;  // of a network's for a node, that may be drafted

  explicit LikelyDrafter(int vocab_size) : likely_(vocab_size), row_(size_t(vocab_size)) { vocab = vocab_size; }

  // As logits().
  virtual const Likely* likely(const Growth& growth, int node) = 0;
  bool few_tokens() const { return vocab >= kManyTokens; }
  void attach(const TargetRows* its) override { rows = its; }

  const float* logits(const Growth& growth, int node) override {
    const Likely* const some = likely(growth, node);
    if (some) some->spread(row_.data());
    return some ? row_.data() : nullptr;
  }
  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override;

 protected:
  const TargetRows* rows = nullptr;  // of the target
  Likely likely_;                    // what likely() gives
  std::vector<float> row_;           // (V) what logits() gives

 private:
  std::vector<float> some_;  // scratch
};

// A drafter whose distribution after a node depends on the node's depth alone, and on the target's states where the
// root was picked. Nodes of one depth have the same candidates, since they have the same noise too.
struct DepthDrafter : LikelyDrafter, DraftsAhead {
  const int depths;              // how many depths it has distributions for
  const std::vector<int> token;  // (N) which tokens its logits are of, and behind these any other; empty: all (V)

  DepthDrafter(int vocab_size, int its_depths, std::vector<int> its = {})
      : LikelyDrafter(vocab_size), depths(its_depths), token(std::move(its)) {}
  int classes() const { return token.empty() ? vocab : int(token.size()) + 1; }
  virtual const float* at_depth(int depth) = 0;  // (classes) logits; null where the drafter knows nothing

  // Behind n assumed tokens its distributions are those of the depths from n on.
  bool assume(const int*, int n) override {
    assuming = true;
    shift = n;
    return n < depths;
  }
  void rollback() override {
    assuming = false;
    shift = 0;
  }
  const float* logits(const Growth& growth, int node) override {
    return token.empty() ? logits_of(growth, node) : LikelyDrafter::logits(growth, node);
  }
  const Likely* likely(const Growth& growth, int node) override {
    const float* const row = logits_of(growth, node);
    if (row) best_likely(row, classes(), token, temperature, kGuesses, likely_);
    return row ? &likely_ : nullptr;
  }
  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    for (int k = 0; k < n; k++) {
      Candidate* const best = candidates + size_t(k) * width;
      if (k > 0 && growth.depth[nodes[k]] == growth.depth[nodes[k - 1]]) {
        count[k] = count[k - 1];
        std::copy_n(best - width, count[k], best);
      } else if (token.empty()) {
        Drafter::expand(growth, nodes + k, 1, width, draws, best, count + k);
      } else {
        LikelyDrafter::expand(growth, nodes + k, 1, width, draws, best, count + k);
      }
    }
  }

 protected:
  const float* logits_of(const Growth& growth, int node) {
    const int depth = growth.depth[node] + shift;
    return depth < depths ? at_depth(depth) : nullptr;
  }
  float* kept_at(int depth) { return kept_.data() + size_t(depth) * size_t(classes()); }
  bool assuming = false;  // then the target may be running
  int shift = 0;          // how many tokens are assumed

 private:
  std::vector<float> kept_ = std::vector<float>(size_t(depths) * size_t(classes()));  // (depths, classes) logits
};

// Calls another drafter for everything: for classes that derive from it and change one function. It proposes itself.
struct StandIn : Drafter {
  Drafter& drafter;
  explicit StandIn(Drafter& its) : drafter(its) {
    vocab = its.vocab;
    name = its.name;
    temperature = its.temperature;
  }
  void attach(const TargetRows* rows) override { drafter.attach(rows); }
  void begin(const int* text, int n) override {
    drafter.temperature = temperature;
    drafter.begin(text, n);
  }
  void prepare(const Growth& growth, const int* nodes, int n) override { drafter.prepare(growth, nodes, n); }
  bool prepare_all(const std::vector<Expansion>& all) override {
    std::vector<Expansion> inner = all;
    for (Expansion& e : inner) e.drafter = &static_cast<StandIn*>(e.drafter)->drafter;
    return drafter.prepare_all(inner);
  }
  const float* logits(const Growth& growth, int node) override { return drafter.logits(growth, node); }
  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    drafter.expand(growth, nodes, n, width, draws, candidates, count);
  }
  void committed(const Commit& commit) override { drafter.committed(commit); }
};

// Its logits depend on the last token alone, as the bigram's, and on no text: each row is noise. It shows what
// speculation costs when it gains nothing.
struct RandomLogits : Drafter {
  Noise rows;

  explicit RandomLogits(int vocab_size) : rows(Sampling(), vocab_size, kStreamInitialize) { vocab = vocab_size; }
  std::unique_ptr<Drafter> another(int) const override { return named<RandomLogits>(name, vocab); }
  const float* logits(const Growth& growth, int node) override { return rows.row(growth.token[node]); }
};

}  // namespace nanospec
