// rules/verify.h: verification rules: which path through a tree of drafts is accepted, and what token ends it.
//
// In order: the rules by name, what each promises and what drafts it needs; what a rule may ask; the rules. Plain C++,
// like tree.h: a rule asks an oracle for probabilities and for chance. When text is generated, decode.h answers from
// the target, the drafter and random bits; when a rule is proven, study/exactness.cpp answers with every outcome in
// turn. It is the same code that is run and that is proven.
//
// In formulas p is the target's distribution after a node, given the path to it, and q the one that the node's children
// were drawn from: the drafter's, after temperature, top-k and top-p. [v]+ is max(v, 0), norm(v) is v / sum(v).
//
// How to add a rule:
//   1. write `Verdict NAME(const Tree&, Oracle&)` beside the others, and say whose it is;
//   2. give it a line in Rule and, in the same order, in kRules, then in judge;
//   3. add it to kStudies of study/exactness.cpp, which is what `nanospec exact` and the tests go through.
#pragma once

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "growth/shapes.h"
#include "tree.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Rules by name

enum class Rule {  // in the order of kRules
  kMatch,
  kIndependent,
  kRejection,
  kSpecInfer,
  kWithoutReplacement,
  kBlock,
  kTraversal,
  kTypical
};

// What a rule's text is to plain decoding's: the same bytes, another draw of the same distribution, or neither: biased
// though it is often taken for exact, or lossy by intent.
enum class Promise { kSameBytes, kSameDistribution, kBiased, kLossy };

// What the children of a node must be for the rule's proof: any tokens, or a sample of q in the order it was drawn in.
enum class Drafts { kAny, kWithReplacement, kWithoutReplacement };

struct RuleWord {
  const char *word, *what;
  Promise promise;
  Drafts drafts;
  bool chains_only;
};
constexpr RuleWord kRules[] = {
    {"match", "exact: the bytes of plain decoding", Promise::kSameBytes, Drafts::kAny, false},
    {"independent", "biased: each child accepted on its own, min(1, p/q)", Promise::kBiased, Drafts::kAny, false},
    {"rejection", "other draws, same distribution: chains, min(1, p/q), residual", Promise::kSameDistribution,
     Drafts::kWithoutReplacement, true},
    {"specinfer", "the same over siblings, drawn with replacement", Promise::kSameDistribution,
     Drafts::kWithReplacement, false},
    {"without-replacement", "the same, drawn without (Sequoia, RSD)", Promise::kSameDistribution,
     Drafts::kWithoutReplacement, false},
    {"block", "the same distribution: a chain judged as a whole", Promise::kSameDistribution,
     Drafts::kWithoutReplacement, true},
    {"traversal", "the same distribution: a tree judged from its leaves up", Promise::kSameDistribution,
     Drafts::kWithoutReplacement, false},
    {"typical", "lossy: what is likely enough is accepted (Medusa)", Promise::kLossy, Drafts::kAny, false},
};
constexpr const RuleWord& about(Rule rule) { return kRules[int(rule)]; }

// Reads a rule's word; raises invalid_argument for another word, naming the nearest.
inline Rule parse_rule(const std::string& text) {
  std::vector<std::string> words;
  for (const RuleWord& known : kRules) words.push_back(known.word);
  const size_t kind = std::find(words.begin(), words.end(), text) - words.begin();
  if (kind == words.size()) refuse_word("rule", text, "--verify", closest_word(text, words), words);
  return Rule(kind);
}

// Whether a shape decides how many children a node gets before it sees them. One that keeps what looks likely does not:
// what it keeps is no longer a sample of q.
inline bool keeps_all_drawn(const Shape& shape) { return shape.fixed(); }

// Raises invalid_argument where the rule's proof does not cover trees of this shape.
inline void check_rule(Rule rule, const Shape& shape) {
  const std::string word = about(rule).word;
  if (about(rule).chains_only && shape.kind != Shape::kChain)
    throw std::invalid_argument("rule " + word + " judges chains only, not " + shape.name +
                                ": --verify: add --shape chain:K, or choose --verify match");
  if (about(rule).drafts != Drafts::kAny && !keeps_all_drawn(shape))
    throw std::invalid_argument("rule " + word + " wants every token that was drawn, and " + shape.name +
                                " is not fixed beforehand: --verify: add --shape chain:K or tree:DxW, or choose "
                                "--verify match");
}

// ---------------------------------------------------------------------------------------------------------------
// What a rule says, and what it may ask

// An Oracle has:
//   int vocab();                        V
//   p(node), q(node)                    (V) floats or doubles, as above; each valid until the same is asked again
//   bool accept(int node, double a);    true with chance a: always from 1 on, never for NaN. Asked once for a node
//   int draw(int node, const double* weights);  a token in proportion to weights (V). Asked once in a pass
//   int pick(int node);                 a token drawn from p(node)
// Its answers are independent of each other and of what the candidates were drawn with.

using Chances = std::vector<double>;  // (V) sum to 1

template <class Number>
Chances chances(const Number* row, int vocab) {
  return Chances(row, row + vocab);
}

// p becomes the residual norm([a p - q]+); returns the sum before norm. Where nothing is left (a p = q but for
// rounding) p stays.
inline double take_residual(Chances& p, double a, const Chances& q) {
  double left = 0;
  for (size_t x = 0; x < p.size(); x++) left += std::max(0.0, a * p[x] - q[x]);
  if (left > 0)
    for (size_t x = 0; x < p.size(); x++) p[x] = std::max(0.0, a * p[x] - q[x]) / left;
  return left;
}

// q becomes the distribution of the next draw without replacement; false where it has no mass left.
inline bool take_out(Chances& q, int token) {
  double left = 0;
  q[token] = 0;
  for (double chance : q) left += chance;
  if (!(left > 0)) return false;
  for (double& chance : q) chance /= left;
  return true;
}

// The nodes from the root to `last`, all accepted; the token that ends the path is still to come.
inline Verdict path_to(const Tree& tree, int last) {
  Verdict verdict;
  for (int node = last; node >= 0; node = tree.parent[node]) verdict.rows.push_back(node);
  std::reverse(verdict.rows.begin(), verdict.rows.end());
  for (size_t i = 1; i < verdict.rows.size(); i++) verdict.tokens.push_back(tree.token[verdict.rows[i]]);
  return verdict;
}

// ---------------------------------------------------------------------------------------------------------------
// Exact in distribution, down the tree

// Speculative sampling (Leviathan, Kalman, Matias 2023; Chen et al. 2023) along a chain: accept with chance
// min(1, p(x)/q(x)), else draw from the residual norm([p - q]+) and stop; after the last node a token of p.
template <class Oracle>
Verdict rejection(const Tree& tree, Oracle& oracle) {
  Verdict verdict;
  for (int node = 0;;) {
    verdict.rows.push_back(node);
    const int child = tree.first_child(node);
    if (child < 0) {
      verdict.tokens.push_back(oracle.pick(node));
      return verdict;
    }
    Chances p = chances(oracle.p(node), oracle.vocab());
    const Chances q = chances(oracle.q(node), oracle.vocab());
    const int x = tree.token[child];
    if (!oracle.accept(child, p[x] / q[x])) {
      take_residual(p, 1, q);
      verdict.tokens.push_back(oracle.draw(node, p.data()));
      return verdict;
    }
    verdict.tokens.push_back(x);
    node = child;
  }
}

// The same, sibling after sibling, in the order in which they were drawn: each that is rejected leaves its residual to
// the next. `again`: whether a token may be drawn again (then it is a sibling again).
template <class Oracle>
Verdict sibling_by_sibling(const Tree& tree, Oracle& oracle, bool again) {
  Verdict verdict;
  for (int node = 0;;) {
    verdict.rows.push_back(node);
    int child = tree.first_child(node);
    if (child < 0) {
      verdict.tokens.push_back(oracle.pick(node));
      return verdict;
    }
    Chances p = chances(oracle.p(node), oracle.vocab()), q = chances(oracle.q(node), oracle.vocab());
    for (bool more = true; child >= 0; child = more ? tree.next_sibling(child) : -1) {
      const int x = tree.token[child];
      if (oracle.accept(child, p[x] / q[x])) break;
      take_residual(p, 1, q);
      more = again || take_out(q, x);
    }
    verdict.tokens.push_back(child >= 0 ? tree.token[child] : oracle.draw(node, p.data()));
    if (child < 0) return verdict;
    node = child;
  }
}

// SpecInfer (Miao et al. 2023, arXiv 2305.09781): siblings drawn independently from q.
template <class Oracle>
Verdict specinfer(const Tree& tree, Oracle& oracle) {
  return sibling_by_sibling(tree, oracle, true);
}

// Sequoia (Chen et al. 2024, arXiv 2402.12374), RSD (Jeon et al. 2024, arXiv 2402.14160): siblings drawn without
// replacement, as the exponential race does: no slot is spent on a token twice.
template <class Oracle>
Verdict without_replacement(const Tree& tree, Oracle& oracle) {
  return sibling_by_sibling(tree, oracle, false);
}

// ---------------------------------------------------------------------------------------------------------------
// Exact in distribution, from the leaves up: what follows a node also speaks for it

// The chance to end a path at a node whose children are rejected: `reach` is the chance that the node itself was
// granted, `left` the sum of [reach p - q]+.
inline double chance_to_stop(double left, double reach) {
  return left > 0 || reach < 1 ? left / (left + 1 - reach) : 1;
}

// Block verification (Sun et al. 2024, arXiv 2403.10444) of a chain x_1 ... x_g, whose nodes are 1 ... g:
//   P_0 = 1, P_i = min(1, P_{i-1} p(x_i)/q(x_i)); h_g = P_g, before that h_i = Z_i / (Z_i + 1 - P_i) with Z_i the sum
//   of [P_i p - q]+ after x_i. The last i that is accepted, with chance h_i, ends the path: a failure before it does
//   not matter. Then a token of p after x_g, else one of norm([P_i p - q]+).
template <class Oracle>
Verdict block(const Tree& tree, Oracle& oracle) {
  const int last = tree.size() - 1, vocab = oracle.vocab();
  Chances reach = {1};  // P
  for (int i = 1; i <= last; i++) {
    const int x = tree.token[i];
    reach.push_back(std::min(1.0, reach.back() * double(oracle.p(i - 1)[x]) / double(oracle.q(i - 1)[x])));
  }
  for (int i = last;; i--) {
    Chances p = chances(oracle.p(i), vocab);
    const double left = i == last ? 0 : take_residual(p, reach[i], chances(oracle.q(i), vocab));
    if (i > 0 && !oracle.accept(i, i == last ? reach[i] : chance_to_stop(left, reach[i]))) continue;
    Verdict verdict = path_to(tree, i);
    verdict.tokens.push_back(i == last ? oracle.pick(i) : oracle.draw(i, p.data()));
    return verdict;
  }
}

// The subtree of `node`, whose chance to be granted is `reach`: true when the path ends in it, as `verdict` then says.
template <class Oracle>
bool traverse(const Tree& tree, Oracle& oracle, bool again, int node, double reach, Verdict& verdict) {
  int child = tree.first_child(node);
  const bool leaf = child < 0;
  Chances p, q;
  if (!leaf) p = chances(oracle.p(node), oracle.vocab()), q = chances(oracle.q(node), oracle.vocab());
  for (bool more = true; child >= 0 && more; child = tree.next_sibling(child)) {
    const int x = tree.token[child];
    if (traverse(tree, oracle, again, child, std::min(1.0, reach * p[x] / q[x]), verdict)) return true;
    const double left = take_residual(p, reach, q);
    reach = chance_to_stop(left, reach);
    more = again || take_out(q, x);
  }
  if (node > 0 && !oracle.accept(node, reach)) return false;
  verdict = path_to(tree, node);
  verdict.tokens.push_back(leaf ? oracle.pick(node) : oracle.draw(node, p.data()));
  return true;
}

// Traversal verification (Weng et al. 2025, arXiv 2505.12398): the same on a tree. The first leaf is accepted, with its
// whole path, or deleted; then its parent has one child less, p is the residual, and its own chance is smaller; a node
// whose children are all deleted is a leaf. On a chain it is block verification.
template <class Oracle>
Verdict traversal(const Tree& tree, Oracle& oracle, bool again = false) {
  Verdict verdict;
  traverse(tree, oracle, again, 0, 1, verdict);
  return verdict;
}

// ---------------------------------------------------------------------------------------------------------------
// Not exact

// The article's rule, biased, for study: each child is accepted on its own with chance min(1, p(x)/q(x)); the longest
// accepted path wins, of equal ones the first in preorder; then a token of p.
template <class Oracle>
Verdict independent(const Tree& tree, Oracle& oracle) {
  std::vector<char> accepted(tree.size(), 0);
  accepted[0] = 1;
  int last = 0;
  for (int node = 0; node < tree.size(); node++) {
    if (!accepted[node]) continue;
    if (tree.depth[node] > tree.depth[last]) last = node;
    if (tree.first_child(node) < 0) continue;
    const auto *p = oracle.p(node), *q = oracle.q(node);
    for (int c = tree.first_child(node); c >= 0; c = tree.next_sibling(c))
      accepted[c] = oracle.accept(c, double(p[tree.token[c]]) / double(q[tree.token[c]]));
  }
  Verdict verdict = path_to(tree, last);
  verdict.tokens.push_back(oracle.pick(last));
  return verdict;
}

// Typical acceptance (Medusa: Cai et al. 2024, arXiv 2401.10774), lossy by intent: a child is accepted where
// p(x) > min(epsilon, delta exp(-H(p))), H the entropy in nats: where the target is unsure, less will do. No chance is
// taken. The longest accepted path wins, of equal ones the likeliest under the target; then a token of p.
constexpr double kTypicalEpsilon = 0.09, kTypicalDelta = 0.3;  // as Medusa's code has them

template <class Oracle>
Verdict typical(const Tree& tree, Oracle& oracle) {
  std::vector<char> accepted(tree.size(), 0);
  std::vector<double> likelihood(tree.size(), 0);  // log of the path's chance
  accepted[0] = 1;
  int last = 0;
  for (int node = 0; node < tree.size(); node++) {
    if (!accepted[node]) continue;
    const int deeper = tree.depth[node] - tree.depth[last];
    if (deeper > 0 || (deeper == 0 && likelihood[node] > likelihood[last])) last = node;
    if (tree.first_child(node) < 0) continue;
    const Chances p = chances(oracle.p(node), oracle.vocab());
    double entropy = 0;
    for (double chance : p) entropy -= chance > 0 ? chance * std::log(chance) : 0;
    const double least = std::min(kTypicalEpsilon, kTypicalDelta * std::exp(-entropy));
    for (int c = tree.first_child(node); c >= 0; c = tree.next_sibling(c)) {
      accepted[c] = p[tree.token[c]] > least;
      likelihood[c] = likelihood[node] + std::log(p[tree.token[c]]);
    }
  }
  Verdict verdict = path_to(tree, last);
  verdict.tokens.push_back(oracle.pick(last));
  return verdict;
}

// ---------------------------------------------------------------------------------------------------------------

// The verdict of the rule that was asked for.
template <class Oracle>
Verdict judge(Rule rule, const Tree& tree, Oracle& oracle) {
  switch (rule) {
    case Rule::kMatch:
      break;
    case Rule::kIndependent:
      return independent(tree, oracle);
    case Rule::kRejection:
      return rejection(tree, oracle);
    case Rule::kSpecInfer:
      return specinfer(tree, oracle);
    case Rule::kWithoutReplacement:
      return without_replacement(tree, oracle);
    case Rule::kBlock:
      return block(tree, oracle);
    case Rule::kTraversal:
      return traversal(tree, oracle);
    case Rule::kTypical:
      return typical(tree, oracle);
  }
  return match(tree, [&](int node) { return oracle.pick(node); });
}

}  // namespace nanospec
