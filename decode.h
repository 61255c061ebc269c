// decode.h: the loop of decoding: draft, grow, flatten, forward, verify, keep.
//
// In order: the window; a text, and what the loop calls besides the drafter: a watcher, a planner of trees, a runner of
// forwards; the planner and the runner of the core; the loop. It reads no clock and no command line, and knows no
// model. Other planners are in growth/, other rules in rules/, other watchers in watch/, a runner of many texts in
// forest/.
//
// A target is anything that has these: the model of target.h, or a mock with known logits.
//   int block_size(); int vocab_size();
//   void prefill(const int* tokens, int n);
//     caches n tokens at positions 0 .. n - 1 and forgets all others; n may be 0
//   void forward(const int* token, const int* depth, const int* end, int n);
//     runs the rows of one tree in preorder; row i stands at position past() + depth[i]
//   const float* logits(int row);  (V) of the last forward
//   void keep(const int* rows, int n);
//     these rows of the last forward, ascending, stay cached: past() grows by n
//   int past();  cached positions
#pragma once

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "draft.h"
#include "sample.h"
#include "tree.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The window

// The model sees the last part of a text of n tokens: the window. This is the index where it begins. It holds at most
// `block` (even) tokens and slides by half of that. It depends on n alone, never on how the text was generated.
inline int window_start(int n, int block) {
  const int half = block / 2;
  return n <= block ? 0 : (n - block + half - 1) / half * half;
}

// How deep a tree may be after n of the text's `end` tokens. It must stay inside the window, and it must not emit more
// than the text needs: a tree of depth d emits up to d + 1 tokens.
inline int room_at(int64_t n, int64_t end, int block) {
  return int(std::min(block - (n - window_start(int(n), block)), end - n - 1));
}

// Caches all tokens of the window but the text's last one, which is the root of the next forward.
template <class Target>
void open_window(Target& target, const std::vector<int>& text) {
  const int n = int(text.size()), start = window_start(n, target.block_size());
  target.prefill(text.data() + start, n - 1 - start);
}

// ---------------------------------------------------------------------------------------------------------------
// A text, and what the loop calls

// Learns, counts, takes the time. The loop calls it after each step; it changes nothing of what the loop does.
struct Watcher {
  virtual ~Watcher() = default;
  virtual void ready() {}  // the cache is ready for the next forward
  virtual void drafted(const Growth&, const Tree&) {}
  virtual void forwarded(const Tree&) {}
  virtual void verified(const Growth&, const Tree&, const Verdict&, int /*emitted*/) {}  // tokens added to the text
  virtual void committed() {}                                                            // the drafter has been told
};

// A text that is decoded. Texts that share the target's forwards are a forest: each has its own tree, past and noise,
// and the bytes that it has alone.
struct Sequence {
  std::vector<int>& tokens;  // begins as the prompt
  int64_t end;               // how many tokens it may have
  Drafter* drafter;          // null for plain decoding, whose trees are the root alone
  Watcher& watcher;
  Noise& noise;                       // the target's
  Draws draws;                        // what the drafter draws with
  std::function<bool(int)> on_token;  // called for each token as it is emitted; if false, the text ends with it

  int seat = 0;  // its place in the target's cache

  // Of the next forward:
  int room = 0;        // how deep the tree may be
  Growth growth = {};  // the tree as it grew
  Tree tree = {};
  bool opens = false;  // whether the window is still to be cached

  int size() const { return int(tokens.size()); }
  bool wanted() const { return size() < end; }
};

// Decides which nodes the trees of a forward have. It asks the drafters for candidates in any order. A tree of the root
// alone is plain decoding.
struct Planner {
  virtual ~Planner() = default;
  virtual void plan(const std::vector<Sequence*>& texts) = 0;  // their trees, from the roots on
};
// One that grows each tree for itself, from the growth's root, no node deeper than `room`.
struct TreePlanner : Planner {
  virtual void grow(Drafter& drafter, const Draws& draws, int room, Growth& growth) = 0;
  void plan(const std::vector<Sequence*>& texts) final {
    for (Sequence* text : texts)
      if (text->drafter) grow(*text->drafter, text->draws, text->room, text->growth);
  }
};

// Runs forwards, verifies trees, and owns the caches.
struct Runner {
  const int block_size, vocab_size;
  Runner(int block, int vocab) : block_size(block), vocab_size(vocab) {}
  virtual ~Runner() = default;

  virtual void open(Sequence& text) = 0;                 // begins to cache the text's window, all but the root
  virtual bool opened(const Sequence&) { return true; }  // whether that is done; if not, forward() goes on with it
  virtual void forward(const std::vector<Sequence*>& texts) = 0;  // runs all nodes of these texts' trees
  virtual Verdict verify(Sequence& text) = 0;                     // after its forward
  virtual void keep(Sequence& text,
                    const Verdict& verdict) = 0;  // the accepted rows stay cached, the others are forgotten
  virtual void close(Sequence&) {}                // the text is over: its place in the cache is free
};

// ---------------------------------------------------------------------------------------------------------------
// The planner and the runner of the core

// The full tree: `depth` levels, `width` children of every node. Width 1: a chain.
struct FullTree : TreePlanner {
  const int depth, width;
  FullTree(int levels, int children) : depth(levels), width(children) {}

  void grow(Drafter& drafter, const Draws& draws, int room, Growth& growth) override {
    for (int d = 0, first = 0; d < std::min(depth, room); d++) {  // the level's nodes begin at `first`
      const int n = growth.size() - first;
      if (n == 0) return;
      level_.resize(size_t(n));
      count_.resize(size_t(n));
      candidates_.resize(size_t(n) * size_t(width));
      for (int k = 0; k < n; k++) level_[size_t(k)] = first + k;
      drafter.expand(growth, level_.data(), n, width, draws, candidates_.data(), count_.data());
      first += n;
      for (int k = 0; k < n; k++)
        for (int rank = 0; rank < count_[size_t(k)]; rank++)
          growth.add(level_[size_t(k)], candidates_[size_t(k * width + rank)]);
    }
  }

 private:
  std::vector<int> level_, count_;     // of one level
  std::vector<Candidate> candidates_;  // (level, width)
};

// Runs the forwards of one text on a target and picks tokens on the host, by the rule `match`.
template <class Target>
struct Host : Runner {
  Target& target;
  explicit Host(Target& its) : Runner(its.block_size(), its.vocab_size()), target(its) {}

  void open(Sequence& text) override { open_window(target, text.tokens); }
  void forward(const std::vector<Sequence*>& texts) override {
    for (const Sequence* text : texts) {  // one, or none
      const Tree& tree = text->tree;
      target.forward(tree.token.data(), tree.depth.data(), tree.end.data(), tree.size());
    }
  }
  Verdict verify(Sequence& text) override {
    return match(text.tree, [&](int node) { return pick_after(text, node); });
  }
  void keep(Sequence&, const Verdict& verdict) override { target.keep(verdict.rows.data(), int(verdict.rows.size())); }

  // (V) what the token after a node of the tree that was run is picked from.
  virtual const float* logits_after(const Sequence&, int node) { return target.logits(node); }
  // The token that the target picks there.
  int pick_after(Sequence& text, int node) {
    const Sampling& sampling = *text.draws.sampling;
    const float* const row =
        sampling.temperature > 0 ? text.noise.row(text.draws.index + text.tree.depth[node]) : nullptr;
    return pick(logits_after(text, node), row, vocab_size, sampling);
  }
};

// ---------------------------------------------------------------------------------------------------------------
// The loop

// Throws std::runtime_error for an empty prompt or a token outside the vocabulary.
inline void check_prompt(const std::vector<int>& text, int vocab) {
  if (text.empty()) throw std::runtime_error("the prompt is empty: --prompt: give at least one token to start from");
  for (int token : text)
    if (token < 0 || token >= vocab)
      throw std::runtime_error("token " + std::to_string(token) + " is outside the vocabulary of " +
                               std::to_string(vocab) + ": the prompt: encode it with this model's tokenizer");
}

// The text's part of an iteration after the forward.
inline void commit(Runner& runner, Sequence& text) {
  const int n = text.size();
  // Verify: the tokens of the accepted path and the bonus token are emitted.
  const Verdict verdict = runner.verify(text);
  int emitted = 0;
  while (text.wanted() && emitted < int(verdict.tokens.size())) {
    text.tokens.push_back(verdict.tokens[emitted++]);
    if (!text.on_token(text.tokens.back())) text.end = text.size();
  }
  text.watcher.verified(text.growth, text.tree, verdict, emitted);
  if (!text.wanted()) return runner.close(text);

  // Tell the drafter, while the target still holds this forward's rows.
  if (text.drafter)
    text.drafter->committed({verdict.tokens.data(), verdict.rows.data(), int(verdict.rows.size()), text.tree});
  text.watcher.committed();

  // Keep the path's rows and forget the others; or, where the window slides, cache the new window.
  text.opens = window_start(text.size(), runner.block_size) != window_start(n, runner.block_size);
  if (text.opens) return runner.open(text);
  runner.keep(text, verdict);
  text.watcher.ready();
}

// Decodes texts side by side, up to `most` of them at a time. next() gives the next text that wants to begin, or null;
// a text that ends leaves its place to it. Throws what check_prompt throws.
inline void generate(Runner& runner, Planner& planner, int most, const std::function<Sequence*()>& next) {
  std::vector<Sequence*> texts, trees;  // those that are decoded; those of them whose window is cached
  for (;;) {
    while (int(texts.size()) < most) {
      Sequence* const text = next();
      if (!text) break;
      check_prompt(text->tokens, runner.vocab_size);
      if (!text->wanted()) {  // no token was asked for
        runner.close(*text);
        continue;
      }
      text->opens = true;
      runner.open(*text);
      if (text->drafter) text->drafter->begin(text->tokens.data(), text->size());
      texts.push_back(text);
    }
    if (texts.empty()) return;

    // Draft and grow: the drafter says which tokens may come next, the planner which of them become nodes.
    trees.clear();
    for (Sequence* text : texts) {
      if (!runner.opened(*text)) continue;
      if (std::exchange(text->opens, false)) text->watcher.ready();
      text->growth.start(text->tokens.back());
      text->draws.index = text->size();
      text->room = room_at(text->size(), text->end, runner.block_size);
      trees.push_back(text);
    }
    planner.plan(trees);

    // Flatten: depth first, so that the attention mask is one integer a row.
    for (Sequence* text : trees) {
      flatten(text->growth, text->tree);
      text->watcher.drafted(text->growth, text->tree);
    }

    // One forward of the target over the roots and all nodes.
    runner.forward(trees);
    for (Sequence* text : trees) text->watcher.forwarded(text->tree);

    for (Sequence* text : trees) commit(runner, *text);
    texts.erase(std::remove_if(texts.begin(), texts.end(), [](Sequence* text) { return !text->wanted(); }),
                texts.end());
  }
}

// Decodes a text alone.
inline void generate(Runner& runner, Planner& planner, Sequence& text) {
  Sequence* waits = &text;
  generate(runner, planner, 1, [&] { return std::exchange(waits, nullptr); });
}

}  // namespace nanospec
