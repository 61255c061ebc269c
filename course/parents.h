// course/parents.h: what is known of trees by their nodes' parents, for the grader and for a student's program. A
// parent comes before its children; that of a root is -1.
//
// Here is also the mask of chapter 5, for who has not written it: the grader puts a call of sees_by_parents into
// Forest::sees, which the programs of chapters 2, 10, 11 and 12 use. It goes up from parent to parent, as no kernel
// should. For this, include it before kernels.cuh.
#pragma once

#include <vector>

namespace course {

// The parents of n nodes, each below the one before it.
inline std::vector<int> chain(int n) {
  std::vector<int> parent;
  for (int i = 0; i < n; i++) parent.push_back(i - 1);
  return parent;
}
// A root has depth 0.
inline std::vector<int> depths_of(const std::vector<int>& parent) {
  std::vector<int> depth;
  for (int above : parent) depth.push_back(above < 0 ? 0 : depth[above] + 1);
  return depth;
}
// One past the last node of each node's subtree, where the nodes are in preorder.
inline std::vector<int> ends_of(const std::vector<int>& parent) {
  std::vector<int> end(parent.size());
  for (int i = 0; i < int(parent.size()); i++)
    for (int above = i; above >= 0; above = parent[above]) end[above] = i + 1;
  return end;
}

inline std::vector<int> parents;  // of all rows of a forward; -1 for roots

// From the rows' depths in preorder.
inline void set_parents(const std::vector<int>& depth) {
  parents.assign(depth.size(), -1);
  for (int i = 0; i < int(depth.size()); i++)
    for (int above = i - 1; depth[i] > 0 && parents[i] < 0; above--)
      if (depth[above] == depth[i] - 1) parents[i] = above;
}
inline bool sees_by_parents(int i, int j) {
  while (i > j) i = parents[i];
  return i == j;
}

}  // namespace course
