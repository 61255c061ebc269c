// course/chapter4.cpp: the student's rejection rule, for the grader and for a table.
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>

#include "course/parents.h"
#include "course/student.h"
#include "rules/verify.h"

using namespace nanospec;

namespace course {
namespace {

// What the rule asked for when the script of answers had ended.
struct NextAsked {
  char what;  // a: accept, d: draw, p: pick
  int node;
  double chance;                // of accept
  std::vector<double> weights;  // of draw
};

// Answers from a script. The grader tries every script, so it sees every way that the rule can go.
struct Scripted {
  int V;
  const std::vector<double>&p_rows, &q_rows;  // (nodes, V)
  const std::vector<int>& script;
  size_t at = 0;

  int vocab() const { return V; }
  const double* p(int node) const { return row(p_rows, node); }
  const double* q(int node) const { return row(q_rows, node); }
  bool accept(int node, double chance) { return next({'a', node, chance, {}}) != 0; }
  int draw(int node, const double* weights) { return next({'d', node, 0, {weights, weights + V}}); }
  int pick(int node) { return next({'p', node, 0, {}}); }

 private:
  const double* row(const std::vector<double>& rows, int node) const {
    if (node < 0 || size_t(node + 1) * V > rows.size())
      throw std::runtime_error("the rule asked for the distribution at node " + std::to_string(node) +
                               ", which the tree does not have");
    return &rows[size_t(node) * V];
  }
  int next(NextAsked asked) {
    if (at == script.size()) throw asked;
    return script[at++];
  }
};

// A tree by its nodes, in preorder.
Tree tree_of(const std::vector<int>& token, const std::vector<int>& parent) {
  Tree tree{token, parent, depths_of(parent), ends_of(parent), token};
  std::iota(tree.origin.begin(), tree.origin.end(), 0);
  return tree;
}

}  // namespace

// V, which rule, tokens and parents of the tree, p, q, script -> 'v', rows, tokens; or what the rule asks next
Message answer(Message& question) {
  const int V = question.get<int>();
  const char rule = question.get<char>();
  const auto token = question.list<int>();
  const Tree tree = tree_of(token, question.list<int>());
  const auto p = question.list<double>(), q = question.list<double>();
  const auto script = question.list<int>();
  Scripted oracle{V, p, q, script};
  try {
    const Verdict verdict = rule == 'c' ? rejection(tree, oracle) : sibling_by_sibling(tree, oracle, rule == 's');
    return Message().put('v').put(verdict.rows).put(verdict.tokens);
  } catch (const NextAsked& asked) {
    return Message().put(asked.what).put(asked.node).put(asked.chance).put(asked.weights);
  }
}

// Draws drafts and answers at random, and counts.
struct Dice {
  int V;
  std::vector<double> p_row, q_row;
  std::minstd_rand& chance;

  int vocab() const { return V; }
  const double* p(int) const { return p_row.data(); }
  const double* q(int) const { return q_row.data(); }
  bool accept(int, double a) { return std::uniform_real_distribution<>()(chance) < a; }
  int draw(int, const double* w) { return std::discrete_distribution<>(w, w + V)(chance); }
  int pick(int node) { return draw(node, p_row.data()); }
};

// How often one of so many siblings, drawn independently, is accepted.
double one_accepted(Dice& oracle, int siblings, int rounds) {
  std::vector<int> token(size_t(siblings) + 1, 0), parent(token.size(), 0);
  parent[0] = -1;
  int accepted = 0;
  for (int round = 0; round < rounds; round++) {
    for (int i = 1; i <= siblings; i++) token[i] = oracle.draw(0, oracle.q_row.data());
    accepted += specinfer(tree_of(token, parent), oracle).rows.size() > 1;
  }
  return double(accepted) / rounds;
}

void measure() {
  constexpr int V = 8, K = 4, rounds = 100000;
  std::minstd_rand chance(1);
  printf("Vocabulary 8, %d drafts for each number. TV: total variation distance of p and q, half the sum of |p - q|.\n",
         rounds);
  printf("Chains of 4 guesses; then 1, 2 and 4 siblings after the root, drawn independently: is one accepted?\n\n");
  printf("    TV     first token accepted     tokens for each forward    of 1 sibling    of 2    of 4\n");
  for (double part = 0; part <= 1; part += 0.125) {  // q goes from p to its reverse
    std::vector<double> p(V), q(V);
    for (int x = 0; x < V; x++) p[x] = (x + 1) / 36.0;
    double tv = 0;
    for (int x = 0; x < V; x++) q[x] = (1 - part) * p[x] + part * p[V - 1 - x];
    for (int x = 0; x < V; x++) tv += std::max(0.0, p[x] - q[x]);
    Dice oracle{V, p, q, chance};
    long tokens = 0, first = 0;
    for (int round = 0; round < rounds; round++) {
      std::vector<int> chain = {0};
      for (int i = 0; i < K; i++) chain.push_back(oracle.draw(0, q.data()));
      const Verdict verdict = rejection(tree_of(chain, {-1, 0, 1, 2, 3}), oracle);
      tokens += long(verdict.tokens.size());
      first += verdict.rows.size() > 1;
    }
    printf("%6.3f %22.3f %25.3f", tv, double(first) / rounds, double(tokens) / rounds);
    printf("%18.3f", one_accepted(oracle, 1, rounds));
    for (int siblings : {2, 4}) printf("%8.3f", one_accepted(oracle, siblings, rounds));
    printf("\n");
  }
}

}  // namespace course
