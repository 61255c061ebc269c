// course/chapter5.cpp: the student's flatten and sees, for the grader and for a table.
#include <cstdio>

#include "course/student.h"
#include "kernels.cuh"
#include "tree.h"

using namespace nanospec;

namespace course {
namespace {

// token, parent, dropped, each of n nodes
Growth growth_of(Message& question) {
  Growth growth;
  const auto token = question.list<int>(), parent = question.list<int>();
  growth.start(token[0]);
  for (size_t i = 1; i < token.size(); i++) growth.add(parent[i], {token[i], 0.5f});
  growth.dropped = question.list<char>();
  return growth;
}

Message flattened(Message& question) {
  Tree tree;  // one for all growths: what the last one left in it must not matter
  return answer_each(question, [&](Message& answer) {
    flatten(growth_of(question), tree);
    for (const auto* list : {&tree.token, &tree.parent, &tree.depth, &tree.end, &tree.origin}) answer.put(*list);
  });
}

// For each tree a byte for each (i, j): 1 where Tree::sees says yes, 2 where Forest::sees does.
Message seen(Message& question) {
  return answer_each(question, [&](Message& answer) {
    Tree tree;
    for (auto* list : {&tree.token, &tree.parent, &tree.depth, &tree.end}) *list = question.list<int>();
    tree.origin = tree.token;
    const int n = tree.size(), first_row[] = {0, n}, slot = 0, past = 0;
    const std::vector<int> root(n, 0);
    const Forest forest{n, 1, tree.end.data(), tree.depth.data(), root.data(), first_row, &slot, &past};
    std::vector<char> mask(size_t(n) * n);
    for (int i = 0; i < n; i++)
      for (int j = 0; j < n; j++) mask[size_t(i) * n + j] = char(tree.sees(i, j) + 2 * forest.sees(i, j));
    answer.put(mask);
  });
}

}  // namespace

Message answer(Message& question) { return question.get<char>() == 'f' ? flattened(question) : seen(question); }

void measure() {
  printf("Full trees of two children at every node\n\n");
  printf(
      "  depth    nodes    pairs that see each other    of all pairs    flatten, microseconds    ns for each node\n");
  for (int depth = 1; depth <= 12; depth++) {
    Growth growth;
    growth.start(0);
    for (int node = 0; node < growth.size(); node++)
      for (int child = 0; child < 2 && growth.depth[node] < depth; child++) growth.add(node, {child, 0.5f});
    Tree tree;
    flatten(growth, tree);
    const double best = fastest(20, [&] { flatten(growth, tree); });
    const int n = tree.size();
    long pairs = 0;
    for (int i = 0; i < n; i++)
      for (int j = 0; j < n; j++) pairs += tree.sees(i, j);
    printf("%7d %8d %28ld %14.2f %% %24.2f %19.1f\n", depth, n, pairs, 100.0 * double(pairs) / n / n, best * 1e6,
           best * 1e9 / n);
  }
}

}  // namespace course
