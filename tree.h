// tree.h: trees of draft tokens: how they grow, how they lie flat in memory, and which path is accepted.
//
// In order: the Tree, flat in depth-first preorder, with the attention mask; the Growth, a tree while it grows; the
// rule `match`. Plain C++: it includes nothing of the project and knows nothing of models, drafters, noise or machines.
// Here and in other files a student of course/ writes anew what stands between `// course 5.1` and `// end`.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Tree

// N nodes in depth-first preorder. Node 0 is the root: the last token emitted. A parent comes before its children. The
// subtree of node j is the nodes j .. end[j] - 1.
struct Tree {
  std::vector<int> token;   // (N)
  std::vector<int> parent;  // (N) -1 for the root
  std::vector<int> depth;   // (N) 0 for the root; the node's position in the text is past + depth
  std::vector<int> end;     // (N) one past the last node of the subtree
  std::vector<int> origin;  // (N) the node's index in the Growth that it came from

  int size() const { return int(token.size()); }

  // Whether row i attends to row j: j is i or an ancestor of i. This is the whole attention mask.
  bool sees(int i, int j) const { return j <= i && i < end[j]; }  // course 5.2

  int first_child(int node) const { return node + 1 < end[node] ? node + 1 : -1; }
  int next_sibling(int node) const { return node > 0 && end[node] < end[parent[node]] ? end[node] : -1; }

  // The first child of `node` that carries this token; -1 when none does.
  int child(int node, int its_token) const {
    for (int c = first_child(node); c >= 0; c = next_sibling(c))
      if (token[c] == its_token) return c;
    return -1;
  }
};

// What a drafter proposes: a token that may follow a node, and the chance that the target picks it.
struct Candidate {
  int token;
  float chance;
  float raw = 0;  // the drafter's own chance, where a planner has corrected it
};

// A tree while it grows: nodes in the order of their addition, each after its parent. Node 0 is the root.
struct Growth {
  std::vector<int> token, parent, depth;
  std::vector<float> chance, raw;  // of the candidate that became the node
  std::vector<float> reach;        // chance that the node is accepted: the product of the chances on its path
  std::vector<char> dropped;       // whether the tree leaves the node out; whole subtrees are dropped

  int size() const { return int(token.size()); }

  void start(int root) {
    shrink(0);
    push(root, -1, 0, 1, 1, 1);
  }
  int add(int under, const Candidate& candidate) {
    push(candidate.token, under, depth[under] + 1, candidate.chance, candidate.raw, reach[under] * candidate.chance);
    return size() - 1;
  }
  void shrink(int n) {
    for (auto* list : {&token, &parent, &depth}) list->resize(n);
    for (auto* list : {&chance, &raw, &reach}) list->resize(n);
    dropped.resize(n);
  }
  void drop(int node) { dropped[node] = 1; }

 private:
  void push(int its_token, int its_parent, int its_depth, float its_chance, float its_raw, float its_reach) {
    token.push_back(its_token);
    parent.push_back(its_parent);
    depth.push_back(its_depth);
    chance.push_back(its_chance);
    raw.push_back(its_raw);
    reach.push_back(its_reach);
    dropped.push_back(0);
  }
};

// Lays the growth out in preorder, as a depth-first search visits it: children in the order of their addition.
// flatten() computes the same without looking at every pair of nodes; tests compare the two.
inline void flatten_by_search(const Growth& growth, Tree& tree, int node = 0, int parent = -1) {
  // course 5
  if (node == 0) tree = Tree();
  if (growth.dropped[node]) return;
  const int at = tree.size();
  tree.token.push_back(growth.token[node]);
  tree.parent.push_back(parent);
  tree.depth.push_back(growth.depth[node]);
  tree.end.push_back(0);
  tree.origin.push_back(node);
  for (int child = node + 1; child < growth.size(); child++)
    if (growth.parent[child] == node) flatten_by_search(growth, tree, child, at);
  tree.end[at] = tree.size();
  // end
}

// The same, for trees of any size.
inline void flatten(const Growth& growth, Tree& tree) {
  // course 5.1
  // Two loops: the sizes of subtrees, leaves first; then the places of nodes, root first.
  const int n = growth.size();
  std::vector<int> size(n), place(n);  // of each node's subtree; of each node in the tree
  std::vector<int> free_place(n);      // of each node: where its next child goes
  for (int i = n - 1; i >= 0; i--) {
    size[i] += !growth.dropped[i];
    if (i > 0) size[growth.parent[i]] += size[i];
  }
  const int N = size[0];
  for (auto* list : {&tree.token, &tree.parent, &tree.depth, &tree.end, &tree.origin}) list->resize(N);
  for (int i = 0; i < n; i++) {
    if (growth.dropped[i]) continue;
    const int above = growth.parent[i];
    const int at = place[i] = above < 0 ? 0 : free_place[above];
    if (above >= 0) free_place[above] += size[i];
    free_place[i] = at + 1;
    tree.token[at] = growth.token[i];
    tree.parent[at] = above < 0 ? -1 : place[above];
    tree.depth[at] = growth.depth[i];
    tree.end[at] = at + size[i];
    tree.origin[at] = i;
  }
  // end
}

// How many nodes a tree has, the root not counted, when every node of depth d has width_at(d) children: w0 + w0 w1 +
// ... Returns the largest int64_t where the number is larger.
template <class Width>
int64_t tree_nodes(int64_t levels, Width width_at) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  int64_t level = 1, nodes = 0;
  for (int64_t d = 0; d < levels; d++) {
    const int64_t width = width_at(d);
    if (level > (kMost - nodes) / width) return kMost;
    level *= width;
    nodes += level;
  }
  return nodes;
}
inline int64_t full_tree_nodes(int64_t depth, int64_t width) {
  return width == 1 ? depth : tree_nodes(depth, [=](int64_t) { return width; });
}

// ---------------------------------------------------------------------------------------------------------------
// The verdict

// What one forward commits. rows: those that stay in the cache, ascending: the root, then the accepted nodes. tokens:
// those of the accepted nodes, then the bonus token. As many rows as tokens.
struct Verdict {
  std::vector<int> rows, tokens;
};

// The exact rule. At each node the target picks its token, pick(node). If a child carries that token, the child is
// accepted, and the walk goes on from it. If none does, the walk ends: the token is the bonus token. pick() is called
// for the nodes of this path alone. The tokens are those of plain decoding, whatever the tree.
template <class Pick>
Verdict match(const Tree& tree, Pick pick) {
  // course 6.1
  Verdict verdict;
  for (int node = 0; node >= 0;) {
    verdict.rows.push_back(node);
    verdict.tokens.push_back(pick(node));
    node = tree.child(node, verdict.tokens.back());
  }
  return verdict;
  // end
}

}  // namespace nanospec
