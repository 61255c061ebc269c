// rules/verify.h: verification rules: which path of a tree is accepted, and which token ends it.
//
// The ring rules/ adds all rules but the exact one, which is `match` in tree.h. It includes the core, drafters/ (what
// candidates are drawn from) and growth/ (which shapes a rule can judge). It hooks into the core's Runner (decode.h):
// judge.h derives one whose verdicts are those of a rule. At every node that it judges a rule costs a distribution of
// the target, and mostly one of the drafter; `match` needs neither.
//
// Here, in order: the rules by name, with their promise and the drafts that they need; what a rule may ask; the rules.
// A rule asks an oracle for probabilities and for random decisions. To generate text, judge.h answers from the target,
// the drafter and random bits. To prove a rule, study/exactness.cpp answers with every outcome in turn. So the code
// that is proven is the code that runs.
//
// In formulas p is the target's distribution after a node, penalties included, and q the one that the node's children
// were drawn from: the drafter's, after temperature, top-k and top-p. [v]+ is max(v, 0), norm(v) is v / sum(v).
//
// How to add a rule:
//   1. write `Verdict NAME(const Tree&, Oracle&)` below, and cite its source;
//   2. give it a line in Rule and, in the same order, in kRules, then in judge;
//   3. add it to kStudies of study/exactness.cpp, which `nanospec exact` and the tests run.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "growth/shapes.h"
#include "machine/numbers.h"
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

// What a rule's text has in common with plain decoding's: the same bytes; or the same distribution; or neither, since
// the rule is biased (though often thought to be exact), or lossy by intent.
enum class Promise { kSameBytes, kSameDistribution, kBiased, kLossy };

// What the rule's proof needs of a node's children: any tokens, or a sample of q in the order of drawing.
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
    {"without-replacement", "the same, drawn without replacement (Sequoia, RSD)", Promise::kSameDistribution,
     Drafts::kWithoutReplacement, false},
    {"block", "the same distribution: a chain judged as a whole", Promise::kSameDistribution,
     Drafts::kWithoutReplacement, true},
    {"traversal", "the same distribution: a tree judged from its leaves up", Promise::kSameDistribution,
     Drafts::kWithoutReplacement, false},
    {"typical", "lossy: what is likely enough is accepted (Medusa)", Promise::kLossy, Drafts::kAny, false},
};
constexpr const RuleWord& about(Rule rule) { return kRules[int(rule)]; }

// Reads a rule's name. Throws std::invalid_argument for an unknown one; the message has the nearest.
inline Rule parse_rule(const std::string& text) {
  const std::vector<std::string> words = column(kRules, &RuleWord::word);
  return Rule(place_of("rule", text, text, "--verify", words, words));
}

// Throws std::invalid_argument if the rule's proof does not hold for trees of this shape. Where a shape is not fixed it
// keeps only likely candidates, and these are no sample of q.
inline void check_rule(Rule rule, const Shape& shape) {
  const std::string word = about(rule).word;
  if (about(rule).chains_only && shape.kind != Shape::kChain)
    refuse_usage("rule {} judges chains only, not {}: --verify: add --shape chain:K, or choose --verify match", word,
                 shape.name);
  if (about(rule).drafts != Drafts::kAny && !shape.fixed())
    refuse_usage(
        "rule {} needs every token that was drawn, and {} is not fixed beforehand: --verify: add --shape chain:K or "
        "tree:DxW, or choose --verify match",
        word, shape.name);
}

// ---------------------------------------------------------------------------------------------------------------
// What a rule may ask

// An Oracle has:
//   int vocab();                        V
//   p(node), q(node)                    (V) floats or doubles, as above; each is valid until the next call of the same
//   bool accept(int node, double a);    true with chance a: always if a >= 1, never if a is NaN; once for each node
//   int draw(int node, const double* weights);  a token in proportion to weights (V); once in each forward
//   int pick(int node);                 a token drawn from p(node)
// Its answers are independent of each other and of the random numbers that drew the candidates.

using Chances = std::vector<double>;  // (V) sum to 1

template <class Number>
Chances chances(const Number* row, int vocab) {
  return Chances(row, row + vocab);
}

// p becomes the residual norm([a p - q]+). Returns the sum before norm. If the sum is 0 (a p = q up to rounding) p
// stays.
inline double take_residual(Chances& p, double a, const Chances& q) {
  // course 4.2
  double left = 0;
  for (size_t x = 0; x < p.size(); x++) left += std::max(0.0, a * p[x] - q[x]);
  if (left > 0)
    for (size_t x = 0; x < p.size(); x++) p[x] = std::max(0.0, a * p[x] - q[x]) / left;
  return left;
  // end
}

// q becomes the distribution of the next draw without replacement. Returns false if no mass is left.
inline bool exclude(Chances& q, int token) {
  double left = 0;
  q[token] = 0;
  for (double chance : q) left += chance;
  if (!(left > 0)) return false;
  for (double& chance : q) chance /= left;
  return true;
}

// The verdict that accepts the nodes from the root to `last`; the bonus token is not in it yet.
inline Verdict path_to(const Tree& tree, int last) {
  Verdict verdict;
  for (int node = last; node >= 0; node = tree.parent[node]) verdict.rows.push_back(node);
  std::reverse(verdict.rows.begin(), verdict.rows.end());
  for (size_t i = 1; i < verdict.rows.size(); i++) verdict.tokens.push_back(tree.token[verdict.rows[i]]);
  return verdict;
}

// ---------------------------------------------------------------------------------------------------------------
// Exact in distribution, down the tree

// Speculative sampling (Leviathan, Kalman, Matias 2023; Chen et al. 2023) along a chain: a node is accepted with chance
// min(1, p(x)/q(x)); else a token is drawn from the residual norm([p - q]+), and the walk ends. After the last node a
// token of p.
template <class Oracle>
Verdict rejection(const Tree& tree, Oracle& oracle) {
  // course 4.1
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
  // end
}

// The same for siblings, one after the other in the order of drawing. When one is rejected, the residual replaces p for
// the next one. with_replacement: a token may be drawn, and be a sibling, more than once.
template <class Oracle>
Verdict sibling_by_sibling(const Tree& tree, Oracle& oracle, bool with_replacement) {
  // course 4.3
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
      more = with_replacement || exclude(q, x);
    }
    verdict.tokens.push_back(child >= 0 ? tree.token[child] : oracle.draw(node, p.data()));
    if (child < 0) return verdict;
    node = child;
  }
  // end
}

// SpecInfer (Miao et al. 2023, arXiv 2305.09781): siblings drawn independently from q.
template <class Oracle>
Verdict specinfer(const Tree& tree, Oracle& oracle) {
  return sibling_by_sibling(tree, oracle, true);
}

// Sequoia (Chen et al. 2024, arXiv 2402.12374), RSD (Jeon et al. 2024, arXiv 2402.14160): siblings drawn without
// replacement, so that no two nodes are spent on one token.
template <class Oracle>
Verdict without_replacement(const Tree& tree, Oracle& oracle) {
  return sibling_by_sibling(tree, oracle, false);
}

// ---------------------------------------------------------------------------------------------------------------
// Exact in distribution, from the leaves up: the nodes that follow a node also decide whether it is accepted

// The chance to end the path at a node whose children are rejected. reach: the chance that the node is accepted; left:
// the sum of [reach p - q]+.
inline double chance_to_stop(double left, double reach) {
  return left > 0 || reach < 1 ? left / (left + 1 - reach) : 1;
}

// Block verification (Sun et al. 2024, arXiv 2403.10444) of a chain x_1 ... x_g, whose nodes are 1 ... g:
//   P_0 = 1, P_i = min(1, P_{i-1} p(x_i)/q(x_i)); h_g = P_g; for i < g: h_i = Z_i / (Z_i + 1 - P_i), with Z_i the sum
//   of [P_i p - q]+ after x_i. Each i is accepted with chance h_i. The last accepted i ends the path; rejections before
//   it do not matter. Then follows a token of p if i = g, else one of norm([P_i p - q]+).
template <class Oracle>
Verdict block(const Tree& tree, Oracle& oracle) {
  // course 4
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
  // end
}

// Judges the subtree of `node`, which is accepted with chance `reach`. Returns whether the path ends in it, and then
// sets `verdict`.
template <class Oracle>
bool traverse(const Tree& tree, Oracle& oracle, bool with_replacement, int node, double reach, Verdict& verdict) {
  // course 4
  int child = tree.first_child(node);
  const bool leaf = child < 0;
  Chances p, q;
  if (!leaf) {
    p = chances(oracle.p(node), oracle.vocab());
    q = chances(oracle.q(node), oracle.vocab());
  }
  for (bool more = true; child >= 0 && more; child = tree.next_sibling(child)) {
    const int x = tree.token[child];
    if (traverse(tree, oracle, with_replacement, child, std::min(1.0, reach * p[x] / q[x]), verdict)) return true;
    const double left = take_residual(p, reach, q);
    reach = chance_to_stop(left, reach);
    more = with_replacement || exclude(q, x);
  }
  if (node > 0 && !oracle.accept(node, reach)) return false;
  verdict = path_to(tree, node);
  verdict.tokens.push_back(leaf ? oracle.pick(node) : oracle.draw(node, p.data()));
  return true;
  // end
}

// Traversal verification (Weng et al. 2025, arXiv 2505.12398): block verification on a tree. The first leaf is
// accepted, with its whole path, or deleted. If it is deleted, its parent has one child less, p becomes the residual,
// and the parent's own chance becomes smaller. A node whose children are all deleted is a leaf. On a chain it is block
// verification.
template <class Oracle>
Verdict traversal(const Tree& tree, Oracle& oracle, bool with_replacement = false) {
  Verdict verdict;
  traverse(tree, oracle, with_replacement, 0, 1, verdict);
  return verdict;
}

// ---------------------------------------------------------------------------------------------------------------
// Not exact

// The article's rule, biased, for study: each child is accepted independently with chance min(1, p(x)/q(x)). The
// longest accepted path wins, of equal ones the first in preorder. Then follows a token of p.
template <class Oracle>
Verdict independent(const Tree& tree, Oracle& oracle) {
  // course 4
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
  // end
}

// Typical acceptance (Medusa: Cai et al. 2024, arXiv 2401.10774), lossy by intent: a child is accepted if
// p(x) > min(epsilon, delta exp(-H(p))), with H the entropy in nats: the higher the entropy the lower the threshold.
// Nothing is random. The longest accepted path wins, of equal ones the likeliest under the target. Then follows a token
// of p.
constexpr double kTypicalEpsilon = 0.09, kTypicalDelta = 0.3;  // as in Medusa's code

template <class Oracle>
Verdict typical(const Tree& tree, Oracle& oracle) {
  // course 4
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
    for (double chance : p) entropy -= chance > 0 ? chance * log(chance) : 0;
    const double least = std::min(kTypicalEpsilon, kTypicalDelta * exp(-entropy));
    for (int c = tree.first_child(node); c >= 0; c = tree.next_sibling(c)) {
      accepted[c] = p[tree.token[c]] > least;
      likelihood[c] = likelihood[node] + log(p[tree.token[c]]);
    }
  }
  Verdict verdict = path_to(tree, last);
  verdict.tokens.push_back(oracle.pick(last));
  return verdict;
  // end
}

// ---------------------------------------------------------------------------------------------------------------

// The verdict of this rule.
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
