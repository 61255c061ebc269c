// rules/judge.h: decoding by a rule other than `match`: its runner, and its candidates.
//
// In order: random draws; candidates that are a sample of the drafter's distribution; a drafter that gives them; a
// runner whose verdicts are those of a rule, after the text's penalties. The rules are in verify.h, the penalties in
// penalties.h.
#pragma once

#include "decode.h"
#include "drafters/logits.h"
#include "rules/penalties.h"
#include "rules/verify.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Draws, and candidates that are a sample

// A uniform number in (0, 1), for rules that draw more than the noise. `item` tells apart the draws at one index.
inline double chance(const Sampling& sampling, Stream stream, int64_t index, int item) {
  return uniform(random_bits(sampling.seed, sampling.sequence, stream, uint64_t(index), uint32_t(item)));
}

// Draws token x with chance weights[x] / sum(weights). u: uniform in (0, 1); weights: (V) >= 0. If all are 0, token 0.
template <class Number>
int draw(const Number* weights, int vocab, double u) {
  double total = 0, sum = 0;
  for (int x = 0; x < vocab; x++) total += weights[x];
  int last = 0;
  for (int x = 0; x < vocab; x++) {
    if (!(weights[x] > 0)) continue;
    sum += weights[x];
    last = x;
    if (sum > u * total) break;
  }
  return last;
}

// Draws up to `width` tokens after each of n nodes from q, the drafter's distribution after temperature, top-k and
// top-p, which the rules compare with the target's. They come in place of the candidates that `expand` chose for them,
// and in the order of drawing. with_replacement: each is drawn from all of q, so a token may be drawn twice. Else the
// token with the largest log q(x) + gumbel(x) comes first, then the next one (the exponential race: Kool, van Hoof,
// Welling 2019). Each node of each forward has its own random numbers.
inline void draw_candidates(Drafter& drafter, const Growth& growth, const int* nodes, int n, int width,
                            const Draws& draws, bool with_replacement, Candidate* candidates, int* count) {
  const int vocab = drafter.vocab;
  const Sampling& sampling = *draws.sampling;
  std::vector<float> q(vocab), noise(whole(vocab, kNoiseBlock)), scores(vocab);
  for (int k = 0; k < n; k++) {
    Candidate* const drawn = candidates + size_t(k) * width;
    const float* const row = drafter.logits(growth, nodes[k]);
    count[k] = 0;  // where the drafter knows nothing
    if (!row) continue;
    Sampling node_sampling;  // with a seed for this node alone
    node_sampling.seed =
        random_bits(sampling.seed, sampling.sequence, kStreamDraft, uint64_t(draws.index), uint32_t(nodes[k]));
    distribution(row, vocab, sampling, q.data());
    if (with_replacement) {
      count[k] = width;
      for (int i = 0; i < width; i++) drawn[i].token = draw(q.data(), vocab, chance(node_sampling, kStreamDraft, 0, i));
    } else {
      make_noise(Solo{}, node_sampling, kStreamDraft, 0, vocab, noise.data());
      const float* const race = sampling.temperature > 0 ? noise.data() : nullptr;
      count[k] = top_candidates(Solo{}, row, race, vocab, draws, width, drawn, scores.data());
      while (count[k] > 0 && q[drawn[count[k] - 1].token] == 0) count[k]--;  // q cannot draw these
    }
    for (int i = 0; i < count[k]; i++) drawn[i].chance = q[drawn[i].token];
  }
}

// A drafter whose candidates are drawn.
struct SampledDrafter : StandIn {
  const bool with_replacement;
  SampledDrafter(Drafter& its, bool replaces) : StandIn(its), with_replacement(replaces) {}

  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    drafter.expand(growth, nodes, n, width, draws, candidates, count);
    draw_candidates(drafter, growth, nodes, n, width, draws, with_replacement, candidates, count);
  }
};

// ---------------------------------------------------------------------------------------------------------------
// The runner

template <class Target>
struct Judge : Host<Target> {
  const Rule rule;
  Judge(Target& target, Rule its) : Host<Target>(target), rule(its) {}

  const float* logits_after(const Sequence& text, int node) override {
    const float* const logits = this->target.logits(node);
    if (!text.draws.sampling->penalizes()) return logits;
    return penalized_.row(logits, this->vocab_size, *text.draws.sampling, text, node);
  }
  Verdict verify(Sequence& text) override {
    if (rule == Rule::kMatch || text.tree.size() == 1) return Host<Target>::verify(text);
    Oracle oracle = {*this, text, *text.draws.sampling, text.draws.index, {}, {}};
    return judge(rule, text.tree, oracle);
  }

 private:
  // Answers a rule's questions (verify.h) from the target, the drafter and random bits.
  struct Oracle {
    Judge& runner;
    Sequence& text;
    const Sampling& sampling;
    const int64_t index;              // index in the text of the root's children
    std::vector<float> p_row, q_row;  // (V)

    int vocab() { return runner.vocab_size; }
    const float* distribution_of(const float* logits, std::vector<float>& row) {
      row.resize(size_t(vocab()));
      distribution(logits, vocab(), sampling, row.data());
      return row.data();
    }
    const float* p(int node) { return distribution_of(runner.logits_after(text, node), p_row); }
    const float* q(int node) {
      return distribution_of(text.drafter->logits(text.growth, text.tree.origin[node]), q_row);
    }
    bool accept(int node, double a) {
      // No two questions share a random number. Rules that walk down from the root ask about each index of the text in
      // one forward only, and in a chain each node has its own depth. Traversal also asks about indices that the next
      // forward asks about again, perhaps with another tree: there the forward's index is used, and the node.
      const int64_t place = runner.rule == Rule::kTraversal ? index : index + text.tree.depth[node] - 1;
      return chance(sampling, kStreamAccept, place, node) < a;
    }
    int draw(int node, const double* weights) {
      const double u = chance(sampling, kStreamResidual, index + text.tree.depth[node], 0);
      return nanospec::draw(weights, vocab(), u);
    }
    int pick(int node) { return runner.pick_after(text, node); }
  };

  Penalized penalized_;
};

}  // namespace nanospec
