// growth/grow.h: grows the tree of one forward: which nodes are worth a row.
//
// In order: a tree's limits; shapes that are fixed beforehand; shapes by the chance of a node; shapes by the entropy of
// the drafter. Plain C++: it knows nothing of models, drafters, noise or machines, and asks for candidates through a
// callable.
#pragma once

#include <functional>
#include <numeric>

#include "growth/cost.h"
#include "growth/likeliest.h"
#include "growth/shapes.h"
#include "tree.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Limits

// The limits of one forward's tree.
struct Limits {
  int depth;  // of the deepest node: set by the window's end, and by the tokens that the text still needs
  // For auto only:
  const Cost* cost = nullptr;  // of a forward
  double expand_seconds = 0;   // that the drafter takes to expand a node
  float best_chance = 1;       // expected chance of a node's best child; 1 is never too low
  // For the entropy family only:
  std::function<void(const int* nodes, int n, float* H)> entropy = nullptr;  // of the distributions after n nodes, nats
};

// The nodes of a growth from `first` on.
inline std::vector<int> nodes_from(int first, const Growth& growth) {
  std::vector<int> nodes(size_t(growth.size() - first));
  std::iota(nodes.begin(), nodes.end(), first);
  return nodes;
}

// Adds the best candidates of these nodes of a growth, as many of each as are wanted and the drafter has. Returns them.
template <class Expand>
std::vector<int> add_level(const std::vector<int>& nodes, const std::vector<int>& wanted, Growth& growth,
                           Expand& expand) {
  const int first = growth.size(), width = *std::max_element(wanted.begin(), wanted.end());
  std::vector<int> count(nodes.size());
  std::vector<Candidate> candidates(nodes.size() * width);  // (nodes, width)
  expand(nodes.data(), int(nodes.size()), width, candidates.data(), count.data());
  for (size_t k = 0; k < nodes.size(); k++)
    for (int rank = 0; rank < std::min(wanted[k], count[k]); rank++) growth.add(nodes[k], candidates[k * width + rank]);
  return nodes_from(first, growth);
}

// ---------------------------------------------------------------------------------------------------------------
// Fixed shapes

// Adds the template's nodes, level by level, as far as the drafter has candidates for them.
template <class Expand>
void grow_template(const Template& plan, const Limits& limits, Growth& growth, Expand& expand) {
  std::vector<int> place(plan.parent.size(), -1);  // in the growth, of the template's nodes
  place[0] = 0;
  for (int depth = 1; depth <= std::min(plan.depth(), limits.depth); depth++) {
    std::vector<int> asked, wanted;  // nodes of the growth that have children in the template, and how many
    for (int i = plan.level[depth]; i < plan.level[depth + 1]; i++) {
      const int above = place[plan.parent[i]];
      if (above < 0) continue;
      if (asked.empty() || asked.back() != above) {
        asked.push_back(above);
        wanted.push_back(0);
      }
      wanted.back()++;
    }
    if (asked.empty()) return;
    int next = growth.size();
    add_level(asked, wanted, growth, expand);
    for (int i = plan.level[depth]; i < plan.level[depth + 1] && next < growth.size(); i++)
      if (growth.parent[next] == place[plan.parent[i]]) place[i] = next++;
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Shapes by the chance of a node

// A tree that grows by the chance of its nodes, perhaps beside others that share its forward. expand(node, candidates)
// asks the drafter for up to kLikeliestWidth candidates, best first, and returns how many there are.
template <class Expand>
struct LikeliestTree {
  Growth& growth;
  const Limits& limits;
  Expand expand;
  std::vector<Candidate> candidates = {};  // (nodes, kLikeliestWidth)
  std::vector<int> count = {};             // (nodes) how many candidates it has
  std::vector<char> ready = {};            // (nodes) whether it has been among these:
  std::vector<int> next = {};              // nodes that are likely to be expanded soon
};

// Takes the best offer of all trees, again and again: adds the likeliest node that is offered, or expands a node, which
// offers its children. Then it keeps as many nodes as give the most tokens a second:
//   (trees + sum of reach) / (seconds of the forward + seconds of drafting).
// The N likeliest nodes are the best N nodes, since a node's reach never exceeds its parent's. Growth ends when no
// further nodes can raise the rate r: k more nodes of reach q at most gain at most k q tokens and cost at least k slope
// seconds, so they cannot when q <= r slope. An expansion also costs the drafter's time. One heap serves all trees
// (AdaServe, Li et al. 2025; SmartSpec, Liu et al. 2024, chooses one length for all): a tree whose guesses are poor
// lends its rows to the others. budget: of each tree. prepare(): prepares what is `next` in all trees; if false, it is
// of no use. It may be null.
template <class Expand>
void grow_likeliest(const Cost& cost, int budget, std::vector<LikeliestTree<Expand>>& trees,
                    std::function<bool()> prepare = nullptr) {
  constexpr int kWidth = kLikeliestWidth, kUnexpanded = -1;
  struct Offer {
    float reach;                                // of the node; or expected of the best child, for an expansion
    int tree, parent, rank;                     // the rank-th candidate of node `parent`; or kUnexpanded: expand it
    bool operator<(const Offer& other) const {  // the best offer is the heap's top; of equal ones the first
      if (reach != other.reach) return reach < other.reach;
      return parent != other.parent ? parent > other.parent : tree > other.tree;
    }
  };
  const int roots = int(trees.size()), most = std::min(budget, cost.most() - (roots - 1));
  std::vector<Offer> offers;   // a heap
  std::vector<int> added;      // the trees that the nodes were added to, in this order
  std::vector<float> reached;  // of these nodes
  offers.reserve(64);          // mostly enough
  const auto offer = [&](float reach, int tree, int parent, int rank) {
    offers.push_back({reach, tree, parent, rank});
    std::push_heap(offers.begin(), offers.end());
  };
  const auto offer_node = [&](int tree, int parent, int rank) {  // one candidate at a time, since they are sorted
    const auto& its = trees[tree];
    if (rank < its.count[parent])
      offer(its.growth.reach[parent] * its.candidates[parent * kWidth + rank].chance, tree, parent, rank);
  };
  const auto offer_expansion = [&](int tree, int node) {
    auto& its = trees[tree];
    its.candidates.resize(its.candidates.size() + kWidth);
    its.count.push_back(0);
    its.ready.push_back(0);
    if (its.growth.depth[node] < its.limits.depth && node < most)
      offer(its.growth.reach[node] * its.limits.best_chance, tree, node, kUnexpanded);
  };

  double tokens = roots, spent = 0, rate = roots / cost.seconds(roots - 1);
  const auto pays = [&](float reach, const auto& its) {  // an expansion
    const int n = roots - 1 + int(added.size());
    return reach > rate * (cost.slope(n) + its.limits.expand_seconds);
  };
  const auto prepare_next = [&](int tree, int node) {  // and all expansions that would pay now
    if (!prepare || trees[tree].ready[node]) return;
    trees[tree].next.push_back(node);
    for (const Offer& o : offers)
      if (o.rank == kUnexpanded && !trees[o.tree].ready[o.parent] && pays(o.reach, trees[o.tree]))
        trees[o.tree].next.push_back(o.parent);
    if (!prepare()) prepare = nullptr;
    for (auto& its : trees) {
      for (int its_node : its.next) its.ready[its_node] = 1;
      its.next.clear();
    }
  };
  for (int tree = 0; tree < roots; tree++) {
    trees[tree].candidates.reserve(32 * kWidth);  // this, and the next one, are mostly enough
    trees[tree].count.reserve(32);
    offer_expansion(tree, 0);
  }
  while (!offers.empty()) {
    const int n = roots - 1 + int(added.size());  // rows but one
    const auto [reach, tree, parent, rank] = offers.front();
    if (n >= cost.most() || (rank != kUnexpanded && reach <= rate * cost.slope(n))) break;
    std::pop_heap(offers.begin(), offers.end());
    offers.pop_back();
    auto& its = trees[tree];
    if (its.growth.size() > most) continue;  // it is full
    if (rank != kUnexpanded) {
      const int node = its.growth.add(parent, its.candidates[parent * kWidth + rank]);
      added.push_back(tree);
      reached.push_back(its.growth.reach[node]);
      tokens += its.growth.reach[node];
      rate = std::max(rate, tokens / (cost.seconds(n + 1) + spent));
      offer_node(tree, parent, rank + 1);
      offer_expansion(tree, node);
    } else if (pays(reach, its)) {
      prepare_next(tree, parent);
      its.count[parent] = its.expand(parent, &its.candidates[parent * kWidth]);
      spent += its.limits.expand_seconds;
      offer_node(tree, parent, 0);
    }
  }

  // All of them count the time that drafting has taken.
  const int kept = best_prefix(reached, roots, [&](int rows) { return cost.seconds(rows - 1) + spent; });
  std::vector<int> sizes(size_t(roots), 1);  // of each tree
  for (int i = 0; i < kept; i++) sizes[added[i]]++;
  for (int tree = 0; tree < roots; tree++) trees[tree].growth.shrink(sizes[tree]);
}

// Asks for the candidates of one node.
template <class Expand>
auto one_by_one(Expand& expand) {
  return [&](int node, Candidate* candidates) {
    int count = 0;
    expand(&node, 1, kLikeliestWidth, candidates, &count);
    return count;
  };
}

// Expands the `width` likeliest nodes of each depth. Then the likeliest of all nodes stay, as many as the budget allows
// (EAGLE-2, Li et al. 2024). An ancestor is at least as likely, so it stays too.
template <class Expand>
void grow_beam(const Shape& shape, const Limits& limits, Growth& growth, Expand& expand) {
  const auto likelier = [&](int a, int b) {
    return growth.reach[a] != growth.reach[b] ? growth.reach[a] > growth.reach[b] : a < b;
  };
  const int width = std::min(shape.width, shape.budget);  // of a wider beam no more nodes could stay
  if (width == 0) return;
  std::vector<int> beam(1, 0);
  for (int depth = 0; depth < std::min(shape.depth, limits.depth) && !beam.empty(); depth++) {
    beam = add_level(beam, std::vector<int>(beam.size(), width), growth, expand);
    std::sort(beam.begin(), beam.end(), likelier);
    if (int(beam.size()) > width) beam.resize(width);
  }
  std::vector<int> order = nodes_from(0, growth);
  std::sort(order.begin(), order.end(), likelier);
  for (size_t i = size_t(shape.budget) + 1; i < order.size(); i++) growth.drop(order[i]);
}

// ---------------------------------------------------------------------------------------------------------------
// Shapes by the entropy of the drafter

// How many children a node gets, by the entropy H, in nats, of the drafter's distribution after it. `stop`: a chain
// that ends where H exceeds the threshold. `naive`: the same, with several children at its end. `width`: more children
// for a larger H. `depth-width`: the same, and none where H exceeds the threshold.
inline int children_by_entropy(const Shape& shape, float H) {
  const bool unsure = H > shape.threshold;
  if (shape.kind == Shape::kEntropyStop) return unsure ? 0 : 1;
  if (shape.kind == Shape::kEntropyNaive) return unsure ? shape.width : 1;
  if (shape.kind == Shape::kEntropyDepthWidth && unsure) return 0;
  return H < 0.02f ? 1 : H < 1 ? 2 : std::min(int(std::ceil(4 * H)), 7);
}

// Grows level by level. A node that would get more children than the budget has left gets none.
template <class Expand>
void grow_by_entropy(const Shape& shape, const Limits& limits, Growth& growth, Expand& expand) {
  if (!limits.entropy) throw std::logic_error("shape " + shape.name + " knows no entropies");
  const bool chain = shape.kind == Shape::kEntropyStop || shape.kind == Shape::kEntropyNaive;
  std::vector<int> level(1, 0), asked, wanted;
  std::vector<float> H;  // (level)
  for (int depth = 0; depth < std::min(shape.depth, limits.depth) && !level.empty(); depth++) {
    H.resize(level.size());
    limits.entropy(level.data(), int(level.size()), H.data());
    int left = shape.budget - (growth.size() - 1);
    asked.clear();
    wanted.clear();
    for (size_t k = 0; k < level.size(); k++) {
      const int children = children_by_entropy(shape, H[k]);
      if (children == 0 || children > left) continue;
      asked.push_back(level[k]);
      wanted.push_back(children);
      left -= children;
    }
    if (asked.empty()) return;
    level = add_level(asked, wanted, growth, expand);
    if (chain && wanted[0] > 1) return;
  }
}

// ---------------------------------------------------------------------------------------------------------------

// Grows the tree of one forward from the growth's root. expand(nodes, n, width, candidates, count) asks the drafter for
// the `width` best candidates of n nodes: those of node k, count[k] <= width, go to candidates[k * width ...], best
// first.
template <class Expand>
void grow(const Shape& shape, const Limits& limits, Growth& growth, Expand&& expand) {
  if (shape.fixed() && !shape.plan) throw std::logic_error("shape " + shape.name + " has no template: make it first");
  if (shape.fixed()) return grow_template(*shape.plan, limits, growth, expand);
  if (shape.by_entropy()) return grow_by_entropy(shape, limits, growth, expand);
  if (shape.kind == Shape::kBeam) return grow_beam(shape, limits, growth, expand);
  if (shape.kind == Shape::kBestFirst) return grow_likeliest(shape.budget, limits.depth, growth, one_by_one(expand));
  if (!limits.cost) throw std::logic_error("shape auto knows no costs: measure them first");
  std::vector<LikeliestTree<decltype(one_by_one(expand))>> tree = {{growth, limits, one_by_one(expand)}};
  grow_likeliest(*limits.cost, shape.budget, tree);
}

}  // namespace nanospec
