// tests/core/test_tree.cpp: tree.h: a tree by hand, then random ones against a mask built the slow way.
#include "tree.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <random>
#include <set>

#include "tests/tree_by_hand.h"

using namespace nanospec;
using Ints = std::vector<int>;

TEST_CASE("tree: cur -> c0 (c2, c3), c1 (c4, c5) by hand") {
  const Tree tree = tree_by_hand();
  CHECK(tree.token == Ints{9, 0, 2, 3, 1, 4, 5});
  CHECK(tree.parent == Ints{-1, 0, 1, 1, 0, 4, 4});
  CHECK(tree.end == Ints{7, 4, 3, 4, 7, 6, 7});
  CHECK(tree.origin == Ints{0, 1, 3, 4, 2, 5, 6});
  const int L = 10;  // cached positions, cur's own place being L
  Ints positions;
  for (int i = 1; i < 7; i++) positions.push_back(L + tree.depth[i]);
  CHECK(positions == Ints{L + 1, L + 2, L + 2, L + 1, L + 2, L + 2});

  const char* mask[7] = {"1000000",   // cur
                         "1100000",   // c0
                         "1110000",   // c2
                         "1101000",   // c3
                         "1000100",   // c1
                         "1000110",   // c4
                         "1000101"};  // c5
  for (int i = 0; i < 7; i++)
    for (int j = 0; j < 7; j++) CHECK_MESSAGE(tree.sees(i, j) == (mask[i][j] == '1'), "row " << i << " column " << j);

  CHECK(tree.child(0, 1) == 4);
  CHECK(tree.child(4, 5) == 6);
  CHECK(tree.child(4, 2) == -1);
  CHECK(tree.child(6, 2) == -1);
}

TEST_CASE("tree: random trees of up to 500 nodes against a dense mask built by walking the parents") {
  std::mt19937 random(4);
  for (int round = 0; round < 60; round++) {
    const int n = round < 50 ? 1 + int(random() % 120) : 400 + int(random() % 100);
    const int reach = 1 + int(random() % n);  // how far back a parent may lie: 1 is a chain
    Growth growth;
    growth.start(0);
    for (int i = 1; i < n; i++) growth.add(i - 1 - int(random() % std::min(i, reach)), {i, 0.5f});
    Tree tree;
    flatten(growth, tree);
    REQUIRE(tree.size() == n);

    std::vector<std::vector<char>> dense(n, std::vector<char>(n, 0));
    for (int i = 0; i < n; i++)
      for (int j = i; j >= 0; j = growth.parent[j]) dense[i][j] = 1;
    int wrong = 0;
    Ints seen(n, 0), children(n, -1);
    for (int i = 0; i < n; i++) {
      const int from = tree.origin[i];
      seen[from]++;
      wrong += tree.token[i] != growth.token[from] || tree.depth[i] != growth.depth[from];
      wrong += i > 0 && tree.origin[tree.parent[i]] != growth.parent[from];
      if (i > 0) {  // siblings in the order of addition
        wrong += children[tree.parent[i]] > from;
        children[tree.parent[i]] = from;
        wrong += tree.child(tree.parent[i], tree.token[i]) != i;
      }
      for (int j = 0; j < n; j++) wrong += tree.sees(i, j) != bool(dense[from][tree.origin[j]]);
    }
    for (int count : seen) wrong += count != 1;
    CHECK(wrong == 0);
  }
}

TEST_CASE("tree: a growth cut short is the tree of its first nodes") {
  Growth growth;
  growth.start(9);
  growth.add(0, {1, 0.5f}), growth.add(1, {2, 0.5f}), growth.add(0, {3, 0.25f});
  CHECK(growth.reach == std::vector<float>{1, 0.5f, 0.25f, 0.25f});
  growth.shrink(2);
  Tree tree;
  flatten(growth, tree);
  CHECK(tree.token == Ints{9, 1});
  CHECK(tree.end == Ints{2, 2});
}

TEST_CASE("tree: flattening in two sweeps is a depth-first search, whatever subtrees were dropped") {
  std::mt19937 random(9);
  for (int round = 0; round < 300; round++) {
    const int n = 1 + int(random() % 80), reach = 1 + int(random() % n);
    Growth growth;
    growth.start(int(random() % 9));
    for (int i = 1; i < n; i++) {
      growth.add(i - 1 - int(random() % std::min(i, reach)), {int(random() % 9), 0.5f});
      if (growth.dropped[growth.parent[i]] || random() % 6 == 0) growth.drop(i);  // a whole subtree goes
    }
    Tree sweeps, search;
    flatten(growth, sweeps), flatten_by_search(growth, search);
    CHECK(sweeps.token == search.token);
    CHECK(sweeps.parent == search.parent);
    CHECK(sweeps.depth == search.depth);
    CHECK(sweeps.end == search.end);
    CHECK(sweeps.origin == search.origin);
  }
}
