// growth/likeliest.h: the likeliest nodes that a budget allows, where all rows cost the same. Shape `best-first` grows
// so; grow.h weighs the nodes against their cost.
#pragma once

#include <queue>

#include "tree.h"

namespace nanospec {

constexpr int kLikeliestWidth = 8;  // candidates of a node: a ninth is seldom worth a row

// Adds the `budget` likeliest of all nodes above which a drafter has a candidate, the likeliest first; of equal ones
// that whose parent was added first. None is deeper than `deepest`, none has reach 0. They are the most tokens that a
// forward of so many rows can expect, since a node's reach never exceeds its parent's. expand(node, candidates) asks
// the drafter for up to kLikeliestWidth candidates, best first, and returns how many there are. That takes time: no
// node is asked about twice, or when the tree is full.
template <class Expand>
void grow_likeliest(int budget, int deepest, Growth& growth, Expand&& expand) {
  // course 7.1
  constexpr int kUnexpanded = -1;
  struct Offer {
    float reach;                                // of the node; or the most that the best child has, for an expansion
    int parent, rank;                           // the rank-th candidate of node `parent`; or kUnexpanded: expand it
    bool operator<(const Offer& other) const {  // the best offer is the queue's top; of equal ones the first
      return reach != other.reach ? reach < other.reach : parent > other.parent;
    }
  };
  std::priority_queue<Offer> offers;
  std::vector<Candidate> candidates;  // (nodes, kLikeliestWidth)
  std::vector<int> count;             // (nodes) how many candidates it has
  const auto offer_expansion = [&](int node) {
    candidates.resize(candidates.size() + kLikeliestWidth);
    count.push_back(0);
    if (growth.depth[node] < deepest) offers.push({growth.reach[node], node, kUnexpanded});
  };
  offer_expansion(0);
  while (!offers.empty() && offers.top().reach > 0 && growth.size() <= budget) {
    const Offer best = offers.top();
    offers.pop();
    Candidate* const its = &candidates[size_t(best.parent) * kLikeliestWidth];
    const int next = best.rank + 1;  // one candidate at a time is offered, since they are sorted
    if (best.rank == kUnexpanded) count[best.parent] = expand(best.parent, its);
    if (next < count[best.parent]) offers.push({growth.reach[best.parent] * its[next].chance, best.parent, next});
    if (best.rank != kUnexpanded) offer_expansion(growth.add(best.parent, its[best.rank]));
  }
  // end
}

}  // namespace nanospec
