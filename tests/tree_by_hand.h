// tests/tree_by_hand.h: a tree of the shape that the README shows.
#pragma once

#include "tree.h"

namespace nanospec {

// cur -> c0 (c2, c3), c1 (c4, c5), grown level by level; the tokens are 9 for cur and 0 to 5.
inline Tree tree_by_hand() {
  Growth growth;
  growth.start(9);
  const int c0 = growth.add(0, {0, 1}), c1 = growth.add(0, {1, 1});
  growth.add(c0, {2, 1}), growth.add(c0, {3, 1}), growth.add(c1, {4, 1}), growth.add(c1, {5, 1});
  Tree tree;
  flatten(growth, tree);
  return tree;
}

}  // namespace nanospec
