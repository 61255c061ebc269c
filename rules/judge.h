// rules/judge.h: how a rule other than `match` decodes: who judges, and what is drafted for it.
//
// In order: candidates that are a sample of the drafter's distribution; a drafter that gives them; a runner whose
// verdicts are a rule's. What the rules are: verify.h.
#pragma once

#include "decode.h"
#include "drafters/logits.h"
#include "rules/verify.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Candidates that are a sample

// q: (V) what a drafter's token after a node is drawn from, after temperature, top-k and top-p: the rules judge by it.
inline void draft_distribution(LogitsDrafter& drafter, const Growth& growth, int node, const Sampling& sampling,
                               float* q) {
  const float* logits = drafter.logits(growth, node);
  if (!logits) throw std::runtime_error("this drafter has no distribution: --verify: choose --verify match");
  distribution(logits, drafter.vocab, sampling, q);
}

// Up to `width` tokens after each of n nodes drawn from q, in the order of their drawing, in place of the candidates
// that `expand` chose for these nodes. `again`: each is drawn from all of q, so that one token may come twice; else
// without replacement: the largest log q(x) + gumbel(x) comes first, then the next (the exponential race; Kool, van
// Hoof, Welling 2019). The chances are new for each node of each forward, and shared with nobody.
inline void draw_candidates(LogitsDrafter& drafter, const Growth& growth, const int* nodes, int n, int width,
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

// A drafter whose candidates are drawn.
struct SampledDrafter : Drafter {
  LogitsDrafter& drafter;
  const bool again;  // with replacement
  SampledDrafter(LogitsDrafter& its, bool with_replacement) : drafter(its), again(with_replacement) {}

  void begin(const int* text, int n) override { drafter.begin(text, n); }
  void committed(const Commit& commit) override { drafter.committed(commit); }
  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    drafter.expand(growth, nodes, n, width, draws, candidates, count);
    draw_candidates(drafter, growth, nodes, n, width, draws, again, candidates, count);
  }
};

// ---------------------------------------------------------------------------------------------------------------
// The runner

template <class Target>
struct Judge : Host<Target> {
  LogitsDrafter& drafter;
  const Rule rule;
  Judge(Target& target, const Sampling& sampling, Noise& noise, LogitsDrafter& its, Rule r)
      : Host<Target>(target, sampling, noise), drafter(its), rule(r) {}

  Verdict verify(const Growth& growth, const Tree& tree, int64_t index) override {
    if (tree.size() == 1) return Host<Target>::verify(growth, tree, index);
    Oracle oracle = {*this, growth, tree, index, {}, {}};
    return judge(rule, tree, oracle);
  }

 private:
  // What a rule may ask (verify.h), answered by the target, the drafter and random bits.
  struct Oracle {
    Judge& of;
    const Growth& growth;  // what the tree came from
    const Tree& tree;
    const int64_t index;              // place in the text of the root's children
    std::vector<float> p_row, q_row;  // (V)

    int vocab() { return of.vocab_size; }
    const float* p(int node) {
      p_row.resize(size_t(vocab()));
      distribution(of.target.logits(node), vocab(), of.sampling, p_row.data());
      return p_row.data();
    }
    const float* q(int node) {
      q_row.resize(size_t(vocab()));
      draft_distribution(of.drafter, growth, tree.origin[node], of.sampling, q_row.data());
      return q_row.data();
    }
    bool accept(int node, double a) {
      // No two questions share a chance. Rules that walk down from the root ask about each place of the text in one
      // forward only, and in chains a node has its own depth. Traversal asks about places to which the next forward
      // returns, perhaps with another tree: it goes by the forward.
      const int64_t place = of.rule == Rule::kTraversal ? index : index + tree.depth[node] - 1;
      return chance(of.sampling, kStreamAccept, place, node) < a;
    }
    int draw(int node, const double* weights) {
      const double u = chance(of.sampling, kStreamResidual, index + tree.depth[node], 0);
      return nanospec::draw(weights, vocab(), u);
    }
    int pick(int node) { return of.pick_after(tree, node, index); }
  };
};

}  // namespace nanospec
