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

// Trees in preorder, each behind a past of its own, as Forest in kernels.cuh has them.
template <class List = std::vector<int>>
struct Planted {
  int slots = 0;  // a multiple of 64, where the next one's past begins
  List parent = {}, end = {}, depth = {}, root = {}, first_row = {0}, first_slot = {}, past = {};

  Planted& add(const std::vector<int>& its_parents, int its_past) {
    const int first = first_row.back(), rows = int(its_parents.size());
    for (int above : its_parents) parent.push_back(above < 0 ? -1 : first + above);
    for (int its_end : ends_of(its_parents)) end.push_back(first + its_end);
    for (int its_depth : depths_of(its_parents)) depth.push_back(its_depth);
    root.insert(root.end(), size_t(rows), int(past.size()));
    first_row.push_back(first + rows);
    first_slot.push_back(slots);
    past.push_back(its_past);
    slots += (its_past + rows + 63) / 64 * 64;
    return *this;
  }
};

inline std::vector<int> parents;  // of all rows of a forward; -1 for roots

inline bool sees_by_parents(int i, int j) {
  while (i > j) i = parents[i];
  return i == j;
}

}  // namespace course
