// growth/grow.h: how the tree of one forward grows: which nodes are worth a row.
//
// In order: a tree's limits; shapes that are fixed beforehand; those that go by how likely a node is; those that go by
// how sure the drafter is. Plain C++: it knows nothing of models, drafters, noise or machines, and asks for candidates
// through a callable.
#pragma once

#include <cmath>
#include <functional>

#include "growth/cost.h"
#include "growth/shapes.h"
#include "tree.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Limits

// The limits of one forward's tree.
struct Limits {
  int depth;  // deepest node: the window's end, and the tokens still wanted
  // For auto only:
  const Cost* cost = nullptr;  // what a forward takes
  double expand_seconds = 0;   // what the drafter takes to expand a node
  float promise = 1;           // what chance the best child of a node may be hoped to have; 1: nothing is missed
  // For the entropy family only:
  std::function<void(const int* nodes, int n, float* H)> entropy = nullptr;  // of the distributions after n nodes, nats
};

// ---------------------------------------------------------------------------------------------------------------
// Fixed shapes

// The template's nodes, level by level, as far as the drafter has candidates for them.
template <class Expand>
void grow_template(const Template& plan, const Limits& limits, Growth& growth, Expand& expand) {
  std::vector<int> place(plan.parent.size(), -1);  // in the growth, of the template's nodes
  std::vector<int> asked, count;                   // nodes of the growth that have children in the template
  std::vector<Candidate> candidates;               // (asked, width)
  place[0] = 0;
  for (int depth = 1; depth <= std::min(plan.depth(), limits.depth); depth++) {
    const int first = plan.level[depth], last = plan.level[depth + 1];
    int width = 0;
    asked.clear();
    for (int i = first; i < last; i++) {
      const int above = place[plan.parent[i]];
      if (above >= 0 && (asked.empty() || asked.back() != above)) asked.push_back(above);
      width = std::max(width, plan.rank[i] + 1);
    }
    if (asked.empty()) return;
    candidates.resize(asked.size() * width), count.resize(asked.size());
    expand(asked.data(), int(asked.size()), width, candidates.data(), count.data());
    size_t k = 0;
    for (int i = first; i < last; i++) {
      const int above = place[plan.parent[i]], rank = plan.rank[i];
      if (above < 0) continue;
      while (asked[k] != above) k++;
      if (rank < count[k]) place[i] = growth.add(above, candidates[k * width + rank]);
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Shapes that go by how likely a node is

// What costs nothing more, however large it is.
struct Free {
  int most() const { return std::numeric_limits<int>::max(); }
  double seconds(int) const { return 1; }
  double slope(int) const { return 0; }
};

// Does what promises most, again and again: adds the likeliest of the nodes offered, or expands a node, which offers
// its children. Then keeps as many nodes as give the most tokens a second:
//   (1 + sum of reach) / (seconds of the forward + seconds of drafting).
// The N likeliest nodes are the best N nodes, since a node's reach never exceeds its parent's. Growth ends when even
// nodes as likely as the likeliest one left could not raise the rate: with rate r, k more nodes of reach at most q gain
// at most k q tokens and cost at least k slope seconds, so never when q <= r slope. An expansion costs its own time
// too.
// With Free costs that is shape `best-first`, which fills its budget.
template <class Costs, class Expand>
void grow_likeliest(const Costs& cost, int budget, const Limits& limits, Growth& growth, Expand& expand) {
  constexpr int kWidth = 8, kUnexpanded = -1;  // candidates asked for at a node; a ninth is seldom worth a slot
  struct Offer {
    float reach;                                // of the node, or hoped for from the expansion
    int parent, rank;                           // the rank-th candidate of node `parent`; or to ask for its candidates
    bool operator<(const Offer& other) const {  // the top of the heap promises most; of equal ones the first
      return reach != other.reach ? reach < other.reach : parent > other.parent;
    }
  };
  const int most = std::min(budget, cost.most());
  std::vector<Candidate> candidates;  // those of the i-th expanded node from i * kWidth on
  std::vector<int> first, count;      // of a node: where its candidates begin, and how many there are
  std::vector<Offer> offers;          // a heap
  candidates.reserve(8 * kWidth), first.reserve(32), count.reserve(32), offers.reserve(64);  // mostly enough
  const auto offer = [&](float reach, int parent, int rank) {
    offers.push_back({reach, parent, rank});
    std::push_heap(offers.begin(), offers.end());
  };
  const auto offer_node = [&](int parent, int rank) {  // candidates are offered one at a time: they are sorted
    if (rank < count[parent]) offer(growth.reach[parent] * candidates[first[parent] + rank].chance, parent, rank);
  };
  const auto offer_expansion = [&](int node) {
    first.push_back(-1), count.push_back(0);
    if (growth.depth[node] < limits.depth && node < most) offer(growth.reach[node] * limits.promise, node, kUnexpanded);
  };

  double tokens = 1, spent = 0, rate = 1 / cost.seconds(0);
  offer_expansion(0);
  while (!offers.empty() && growth.size() <= most) {
    const int n = growth.size() - 1;
    const auto [reach, parent, rank] = offers.front();
    if (rank != kUnexpanded && reach <= rate * cost.slope(n)) break;
    std::pop_heap(offers.begin(), offers.end());
    offers.pop_back();
    if (rank != kUnexpanded) {
      const int node = growth.add(parent, candidates[first[parent] + rank]);
      tokens += growth.reach[node];
      rate = std::max(rate, tokens / (cost.seconds(node) + spent));
      offer_node(parent, rank + 1);
      offer_expansion(node);
    } else if (reach > rate * (cost.slope(n) + limits.expand_seconds)) {
      first[parent] = int(candidates.size());
      candidates.resize(candidates.size() + kWidth);
      expand(&parent, 1, kWidth, &candidates[first[parent]], &count[parent]);
      spent += limits.expand_seconds;
      offer_node(parent, 0);
    }
  }

  int best = 0;
  tokens = 0, rate = 0;
  for (int n = 0; n < growth.size(); n++) {  // the drafting is done: all of them have it behind them
    tokens += growth.reach[n];
    if (tokens / (cost.seconds(n) + spent) > rate) rate = tokens / (cost.seconds(n) + spent), best = n;
  }
  growth.shrink(best + 1);
}

// The `width` likeliest nodes of each depth are expanded, then the likeliest of all that were offered stay, as many as
// the budget allows (EAGLE-2, Li et al. 2024): an ancestor is never less likely, so it stays too.
template <class Expand>
void grow_beam(const Shape& shape, const Limits& limits, Growth& growth, Expand& expand) {
  const auto likelier = [&](int a, int b) {
    return growth.reach[a] != growth.reach[b] ? growth.reach[a] > growth.reach[b] : a < b;
  };
  const int width = std::min(shape.width, shape.budget);  // a wider beam's other nodes could not stay
  if (width == 0) return;
  std::vector<int> beam(1, 0), count;
  std::vector<Candidate> candidates;  // (beam, width)
  for (int depth = 0; depth < std::min(shape.depth, limits.depth) && !beam.empty(); depth++) {
    const int first = growth.size();
    candidates.resize(beam.size() * width), count.resize(beam.size());
    expand(beam.data(), int(beam.size()), width, candidates.data(), count.data());
    for (size_t k = 0; k < beam.size(); k++)
      for (int rank = 0; rank < count[k]; rank++) growth.add(beam[k], candidates[k * width + rank]);
    beam.resize(growth.size() - first);
    for (size_t k = 0; k < beam.size(); k++) beam[k] = first + int(k);
    std::sort(beam.begin(), beam.end(), likelier);
    if (int(beam.size()) > width) beam.resize(width);
  }
  std::vector<int> order(growth.size());
  for (int i = 0; i < growth.size(); i++) order[i] = i;
  std::sort(order.begin(), order.end(), likelier);
  for (size_t i = size_t(shape.budget) + 1; i < order.size(); i++) growth.drop(order[i]);
}

// ---------------------------------------------------------------------------------------------------------------
// Shapes that go by how sure the drafter is

// How many children a node gets, by the entropy H of what the drafter says after it, in nats. A chain goes on while H
// is at most the threshold; `naive` gives its last node several children; `width` gives the more the larger H is, and
// `depth-width` none beyond the threshold.
inline int children_by_entropy(const Shape& shape, float H) {
  switch (shape.kind) {
    case Shape::kEntropyStop:
      return H > shape.threshold ? 0 : 1;
    case Shape::kEntropyNaive:
      return H > shape.threshold ? shape.width : 1;
    case Shape::kEntropyDepthWidth:
      if (H > shape.threshold) return 0;
      break;
    default:
      break;
  }
  return H < 0.02f ? 1 : H < 1 ? 2 : std::min(int(std::ceil(4 * H)), 7);
}

// Level by level; a node that would get more children than the budget has left gets none.
template <class Expand>
void grow_by_entropy(const Shape& shape, const Limits& limits, Growth& growth, Expand& expand) {
  if (!limits.entropy) throw std::logic_error("shape " + shape.name + " knows no entropies");
  const bool chain = shape.kind == Shape::kEntropyStop || shape.kind == Shape::kEntropyNaive;
  std::vector<int> level(1, 0), asked, wanted, count;
  std::vector<Candidate> candidates;  // (asked, width)
  std::vector<float> H;               // (level)
  for (int depth = 0; depth < std::min(shape.depth, limits.depth) && !level.empty(); depth++) {
    H.resize(level.size());
    limits.entropy(level.data(), int(level.size()), H.data());
    int left = shape.budget - (growth.size() - 1), width = 0;
    asked.clear(), wanted.clear();
    for (size_t k = 0; k < level.size(); k++) {
      const int children = children_by_entropy(shape, H[k]);
      if (children == 0 || children > left) continue;
      asked.push_back(level[k]), wanted.push_back(children);
      left -= children, width = std::max(width, children);
    }
    if (asked.empty()) return;
    const int first = growth.size();
    candidates.resize(asked.size() * width), count.resize(asked.size());
    expand(asked.data(), int(asked.size()), width, candidates.data(), count.data());
    for (size_t k = 0; k < asked.size(); k++)
      for (int rank = 0; rank < std::min(wanted[k], count[k]); rank++)
        growth.add(asked[k], candidates[k * width + rank]);
    if (chain && width > 1) return;
    level.resize(growth.size() - first);
    for (size_t k = 0; k < level.size(); k++) level[k] = first + int(k);
  }
}

// ---------------------------------------------------------------------------------------------------------------

// Grows the tree of one pass under growth's root. expand(nodes, n, width, candidates, count) asks the drafter for the
// `width` best candidates of n nodes: node k's count[k] <= width of them go to candidates[k * width ...], best first.
template <class Expand>
void grow(const Shape& shape, const Limits& limits, Growth& growth, Expand&& expand) {
  if (shape.fixed()) {
    if (!shape.plan) throw std::logic_error("shape " + shape.name + " has no template: make it first");
    grow_template(*shape.plan, limits, growth, expand);
  } else if (shape.by_entropy()) {
    grow_by_entropy(shape, limits, growth, expand);
  } else if (shape.kind == Shape::kBeam) {
    grow_beam(shape, limits, growth, expand);
  } else if (shape.kind == Shape::kBestFirst) {
    grow_likeliest(Free(), shape.budget, Limits{limits.depth}, growth, expand);
  } else {
    if (!limits.cost) throw std::logic_error("shape auto knows no costs: measure them first");
    grow_likeliest(*limits.cost, shape.budget, limits, growth, expand);
  }
}

}  // namespace nanospec
