// course/checks5.cpp: the grader's checks of chapter 5: trees in preorder and the mask. What is right is not computed a
// second time: it is known by its properties, and by walking from parent to parent.
#include <algorithm>

#include "course/judge.h"

namespace course {
namespace {

struct Grown {
  std::vector<int> token, parent;
  std::vector<char> dropped;  // a node below a dropped one is dropped
  int size() const { return int(token.size()); }
};

// n nodes, each after its parent. bushy: 0 gives a chain, 1 any parent.
Grown grown(Examiner& judge, int n, double bushy, double drops) {
  Grown growth;
  for (int i = 0; i < n; i++) {
    const int parent = i == 0 ? -1 : judge.unit() < bushy ? judge.below(i) : i - 1;
    growth.token.push_back(judge.below(1000));
    growth.parent.push_back(parent);
    growth.dropped.push_back(i > 0 && (growth.dropped[parent] || judge.unit() < drops));
  }
  return growth;
}

bool is_above(const std::vector<int>& parent, int low, int high) {  // or the same
  for (int node = low; node >= 0; node = parent[node])
    if (node == high) return true;
  return false;
}

struct Flat {
  std::vector<int> token, parent, depth, end, origin;
};

// Which node of the growth each row is, told by parents alone: the k-th child of a row is the k-th of its node. Empty
// where the two trees have different shapes.
std::vector<int> nodes_by_parents(const Grown& growth, const std::vector<int>& parent) {
  std::vector<std::vector<int>> left(growth.size());  // of each node, its children, the last one first
  for (int i = growth.size() - 1; i > 0; i--)
    if (!growth.dropped[i]) left[growth.parent[i]].push_back(i);
  std::vector<int> node = {0};
  for (int i = 1; i < int(parent.size()); i++) {
    if (parent[i] < 0 || parent[i] >= i || left[node[parent[i]]].empty()) return {};
    node.push_back(left[node[parent[i]]].back());
    left[node[parent[i]]].pop_back();
  }
  return node;
}

std::string picture(const Grown& growth) {
  std::vector<int> dropped;
  for (int i = 0; i < growth.size(); i++)
    if (growth.dropped[i]) dropped.push_back(i);
  return line_of("growth with parents ", growth.parent,
                 dropped.empty() ? ": " : ", dropped " + text_of(dropped) + ": ");
}

void right_tree(const Grown& growth, const Flat& tree) {
  const int kept = int(std::count(growth.dropped.begin(), growth.dropped.end(), 0));
  for (const auto* list : {&tree.token, &tree.parent, &tree.depth, &tree.end, &tree.origin})
    if (int(list->size()) != kept)
      not_passed(picture(growth), int(list->size()), " entries in a list, should be ", kept);
  std::vector<int> place(growth.size(), -1);
  const std::vector<int> depth = depths_of(growth.parent);
  const auto wrong = [&](int row, const auto&... what) { not_passed(picture(growth), "row ", row, what...); };
  // Where parents and tokens say which node each row is, and origin says something else, origin is wrong.
  const std::vector<int> node = nodes_by_parents(growth, tree.parent);
  bool known = !node.empty();
  for (int i = 0; known && i < kept; i++) known = tree.token[i] == growth.token[node[i]];
  for (int i = 0; known && i < kept; i++)
    if (tree.origin[i] != node[i]) wrong(i, ": origin is ", tree.origin[i], ", should be ", node[i]);
  for (int i = 0; i < kept; i++) {
    const int from = tree.origin[i];
    if (from < 0 || from >= growth.size()) wrong(i, ": origin is ", from, ", which the growth lacks");
    if (growth.dropped[from]) wrong(i, ": origin is ", from, ", which was dropped");
    if (place[from] >= 0) wrong(i, ": origin is ", from, " for a second time");
    place[from] = i;
  }
  for (int i = 0; i < kept; i++) {
    const int from = tree.origin[i], above = growth.parent[from], parent = above < 0 ? -1 : place[above];
    if (tree.parent[i] != parent) wrong(i, ": parent is ", tree.parent[i], ", should be ", parent);
    if (parent >= i) wrong(i, ": its parent ", parent, " comes later");
    if (tree.token[i] != growth.token[from]) wrong(i, ": token is ", tree.token[i], ", should be ", growth.token[from]);
    if (tree.depth[i] != depth[from]) wrong(i, ": depth is ", tree.depth[i], ", should be ", depth[from]);
    // Preorder: what follows a node is below the node before it, or below one of that one's ancestors.
    if (i > 0 && !is_above(tree.parent, i - 1, parent))
      wrong(i, ": it stands behind row ", i - 1, ", after the end of the subtree of its parent ", parent);
  }
  std::vector<int> last_child(kept, -1);
  for (int i = 1; i < kept; i++) {
    int& before = last_child[tree.parent[i]];
    if (before > tree.origin[i])
      wrong(i, ": siblings stand in the order of their addition, and ", tree.origin[i], " was added before node ",
            before);
    before = tree.origin[i];
  }
  const std::vector<int> end = ends_of(tree.parent);
  for (int i = 0; i < kept; i++)
    if (tree.end[i] != end[i]) wrong(i, ": end is ", tree.end[i], ", should be ", end[i]);
}

// Asks for the trees of these growths, all in one question.
void right_trees(Examiner& judge, const std::vector<Grown>& growths) {
  const auto put = [](Message& to, const Grown& one) { to.put(one.token).put(one.parent).put(one.dropped); };
  ask_of_each(judge.student, Message().put('f'), growths, put, [](const Grown& growth, Message& answer) {
    Flat tree;
    for (auto* list : {&tree.token, &tree.parent, &tree.depth, &tree.end, &tree.origin}) *list = answer.list<int>();
    right_tree(growth, tree);
  });
}
// So many growths, of up to `most` nodes, in questions of some hundred.
void flattens(Examiner& judge, int many, int most, double drops) {
  for (int done = 0; done < many; done += 500) {
    const auto one = [&] { return grown(judge, judge.between(1, most), judge.unit(), drops); };
    right_trees(judge, times(std::min(500, many - done), one));
  }
}

// A tree in preorder, the arrays that `sees` may use.
Flat in_preorder(Examiner& judge, int n) {
  const std::vector<int> parent = judge.shape(n, judge.unit());
  const std::vector<int> token = times(n, [&] { return judge.below(1000); });
  return {token, parent, depths_of(parent), ends_of(parent), {}};
}

// bit: 1 for Tree::sees, 2 for Forest::sees.
void masks(Examiner& judge, int many, int most, int bit) {
  for (int done = 0; done < many; done += 500) {
    const std::vector<Flat> asked = times(500, [&] { return in_preorder(judge, judge.between(1, most)); });
    const auto put = [](Message& to, const Flat& one) {
      to.put(one.token).put(one.parent).put(one.depth).put(one.end);
    };
    ask_of_each(judge.student, Message().put('s'), asked, put, [&](const Flat& tree, Message& answer) {
      const auto mask = answer.list<char>();
      const int n = int(tree.token.size());
      for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
          const bool sees = mask.at(size_t(i) * n + j) & bit, right = is_above(tree.parent, i, j);
          if (sees != right)
            not_passed("tree with parents ", tree.parent, ": ", bit == 1 ? "Tree" : "Forest", "::sees(", i, ", ", j,
                       ") is ", sees ? "true" : "false", ", and row ", j,
                       right ? " is above or is row " : " is neither above nor is row ", i);
        }
    });
  }
}

}  // namespace

Chapter chapter5() {
  return {5,
          "trees and the mask",
          {{"flatten: the tree of the page", 1,
            cases(right_trees, {{std::vector<Grown>{{{7, 3, 5, 8, 2, 9}, {-1, 0, 0, 1, 2, 1}, {0, 0, 0, 0, 0, 0}}}}})},
           {"flatten: 100,000 growths", 3, [](Examiner& judge) { flattens(judge, 100000, 14, 0); }},
           {"flatten: large growths", 1, [](Examiner& judge) { flattens(judge, 50, 400, 0); }},
           {"flatten: dropped nodes stay out", 2, [](Examiner& judge) { flattens(judge, 5000, 20, 0.2); }},
           {"sees, of a Tree: 100,000 trees", 2, [](Examiner& judge) { masks(judge, 100000, 14, 1); }},
           {"sees, of a Forest", 1, [](Examiner& judge) { masks(judge, 5000, 14, 2); }}}};
}

}  // namespace course
