// decode.h: the loop of decoding: draft, grow, flatten, forward, verify, keep.
//
// In order: the window; what the loop calls, the drafter apart: a planner of trees, a runner of forwards, a watcher;
// the planner and the runner of the core; the loop. It reads no clock and no command line, and knows no model. Other
// planners are in growth/, other rules in rules/, other watchers in watch/.
//
// A target is anything that has these: the model of target.h, or a mock with known logits.
//   int block_size(); int vocab_size();
//   prefill(const int* tokens, int n);
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
// What the loop calls

// Decides which nodes the tree has.
struct Planner {
  virtual ~Planner() = default;
  // Grows the tree of the next forward from the growth's root, no node deeper than `room`. It asks the drafter for
  // candidates in any order. A tree of the root alone is plain decoding.
  virtual void grow(Drafter& drafter, const Draws& draws, int room, Growth& growth) = 0;
};

// Runs a forward, verifies the tree, and owns the cache. `index` is the index in the text of the root's children.
struct Runner {
  const int block_size, vocab_size;
  Runner(int block, int vocab) : block_size(block), vocab_size(vocab) {}
  virtual ~Runner() = default;

  virtual void open(const std::vector<int>& text) = 0;        // caches the text's window, all but the root
  virtual void forward(const Tree& tree, int64_t index) = 0;  // runs all nodes of the tree
  virtual Verdict verify(const Growth& growth, const Tree& tree, int64_t index) = 0;  // after its forward
  virtual void keep(const Verdict& verdict) = 0;  // the accepted rows stay cached, the others are forgotten
};

// Learns, counts, takes the time. The loop calls it after each step; it changes nothing of what the loop does.
struct Watcher {
  virtual ~Watcher() = default;
  virtual void ready() {}  // the cache is ready for the next forward
  virtual void drafted(const Growth&, const Tree&) {}
  virtual void forwarded(const Tree&) {}
  virtual void verified(const Growth&, const Tree&, const Verdict&, int /*emitted*/) {}  // tokens added to the text
  virtual void committed() {}                                                            // the drafter has been told
};

// ---------------------------------------------------------------------------------------------------------------
// The planner and the runner of the core

// The full tree: `depth` levels, `width` children of every node. Width 1: a chain.
struct FullTree : Planner {
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

// Runs forwards on a target and picks tokens on the host, by the rule `match`.
template <class Target>
struct Host : Runner {
  Target& target;
  const Sampling& sampling;
  Noise& noise;  // the target's
  Host(Target& its, const Sampling& s, Noise& n)
      : Runner(its.block_size(), its.vocab_size()), target(its), sampling(s), noise(n) {}

  void open(const std::vector<int>& text) override { open_window(target, text); }
  void forward(const Tree& tree, int64_t) override {
    target.forward(tree.token.data(), tree.depth.data(), tree.end.data(), tree.size());
  }
  Verdict verify(const Growth&, const Tree& tree, int64_t index) override {
    return match(tree, [&](int node) { return pick_after(tree, node, index); });
  }
  void keep(const Verdict& verdict) override { target.keep(verdict.rows.data(), int(verdict.rows.size())); }

  // The token that the target picks after a node of the tree that was run.
  int pick_after(const Tree& tree, int node, int64_t index) {
    const float* const row = sampling.temperature > 0 ? noise.row(index + tree.depth[node]) : nullptr;
    return pick(target.logits(node), row, vocab_size, sampling);
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

// Appends max_new_tokens tokens to `text`, which begins as the prompt. on_token(int) is called for each token as it is
// emitted; if it returns false, generation ends with that token. drafter: null for plain decoding, whose trees are the
// root alone. Throws what check_prompt throws.
inline void generate(Runner& runner, Planner& planner, Drafter* drafter, Watcher& watcher, Draws draws,
                     std::vector<int>& text, int max_new_tokens, const std::function<bool(int)>& on_token) {
  check_prompt(text, runner.vocab_size);
  const int64_t end = int64_t(text.size()) + max_new_tokens;
  Growth growth;
  Tree tree;
  runner.open(text);
  if (drafter) drafter->begin(text.data(), int(text.size()));
  watcher.ready();

  for (bool wanted = max_new_tokens > 0; wanted;) {
    const int n = int(text.size());

    // Draft and grow: the drafter says which tokens may come next, the planner which of them become nodes.
    growth.start(text.back());
    draws.index = n;
    if (drafter) planner.grow(*drafter, draws, room_at(n, end, runner.block_size), growth);

    // Flatten: depth first, so that the attention mask is one integer a row.
    flatten(growth, tree);
    watcher.drafted(growth, tree);

    // One forward of the target over the root and all nodes.
    runner.forward(tree, n);
    watcher.forwarded(tree);

    // Verify: the tokens of the accepted path and the bonus token are emitted.
    const Verdict verdict = runner.verify(growth, tree, n);
    int emitted = 0;
    while (wanted && emitted < int(verdict.tokens.size())) {
      text.push_back(verdict.tokens[emitted++]);
      wanted = on_token(text.back()) && int64_t(text.size()) < end;
    }
    watcher.verified(growth, tree, verdict, emitted);
    if (!wanted) return;

    // Tell the drafter, while the target still holds this forward's rows.
    if (drafter) drafter->committed({verdict.tokens.data(), verdict.rows.data(), int(verdict.rows.size()), tree});
    watcher.committed();

    // Keep the path's rows and forget the others; or, where the window slides, cache the new window.
    const bool same_window = window_start(int(text.size()), runner.block_size) == window_start(n, runner.block_size);
    if (same_window) runner.keep(verdict);
    else runner.open(text);
    watcher.ready();
  }
}

}  // namespace nanospec
