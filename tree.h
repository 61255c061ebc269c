// tree.h: trees of draft tokens: how they grow, and what they look like flat.
//
// In order: the Tree, flat in depth-first preorder; the Growth that becomes one; shapes, which decide what nodes are
// worth a slot, and what a forward of so many costs. Plain C++: it knows nothing of models, drafters, noise or
// machines, and asks for candidates through a callable. Which path is accepted: verify.h.
//
// How to add a shape:
//   1. write grow_NAME(shape, limits, growth, expand) beside the others: expand nodes, add the candidates you want;
//   2. give it a line in Shape::Kind, kShapes, parse_shape (its numbers, if it has any) and grow;
//   3. add its word to the sweeps in tests/test_decode.cpp and tests/test_sweep.cpp: under `match` no shape can change
//   the text;
//   4. say in keeps_all_drawn (verify.h) if it suits the rules that want a sample of the drafter's distribution.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Tree

// N nodes in depth-first preorder; node 0 is the root, the last token emitted. A parent comes before its children, and
// a subtree is the run of nodes [j, end[j]).
struct Tree {
  std::vector<int> token;   // (N)
  std::vector<int> parent;  // (N) -1 for the root
  std::vector<int> depth;   // (N) 0 for the root: the row's position is past + depth
  std::vector<int> end;     // (N) one past the last node of the subtree
  std::vector<int> origin;  // (N) the node's place in the Growth that it came from

  int size() const { return int(token.size()); }

  // Whether row i attends to row j: j is i or an ancestor of i. This is the whole attention mask.
  bool sees(int i, int j) const { return j <= i && i < end[j]; }

  int first_child(int node) const { return node + 1 < end[node] ? node + 1 : -1; }
  int next_sibling(int node) const { return node > 0 && end[node] < end[parent[node]] ? end[node] : -1; }

  // The child of `node` that carries `token`, the first of several; -1 when none does.
  int child(int node, int wanted) const {
    for (int c = first_child(node); c >= 0; c = next_sibling(c))
      if (token[c] == wanted) return c;
    return -1;
  }
};

// What a drafter proposes: a token that may follow a node, and the chance that it is the one, among all tokens.
struct Candidate {
  int token;
  float chance;
  float raw = 0;  // the chance as the drafter gave it, where experience has corrected it (trust.h)
};

// A tree while it grows: nodes in the order of their addition, each after its parent. Node 0 is the root.
struct Growth {
  std::vector<int> token, parent, depth;
  std::vector<float> chance, raw;  // of the candidate that the node was
  std::vector<float> reach;  // estimated chance that the node is on the accepted path: the product of chances to it

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
    token.resize(n), parent.resize(n), depth.resize(n), chance.resize(n), raw.resize(n), reach.resize(n);
  }

 private:
  void push(int its_token, int its_parent, int its_depth, float its_chance, float its_raw, float its_reach) {
    token.push_back(its_token), parent.push_back(its_parent), depth.push_back(its_depth);
    chance.push_back(its_chance), raw.push_back(its_raw), reach.push_back(its_reach);
  }
};

// Lays the growth out in preorder, in two passes; children keep the order of their addition.
inline void flatten(const Growth& growth, Tree& tree) {
  const int n = growth.size();
  tree.token.resize(n), tree.parent.resize(n), tree.depth.resize(n), tree.end.resize(n), tree.origin.resize(n);
  std::vector<int> size(n, 1), place(n), free_place(n);  // of the growth's nodes; where a next child's subtree begins
  for (int i = n - 1; i > 0; i--) size[growth.parent[i]] += size[i];
  for (int i = 0; i < n; i++) {
    const int above = growth.parent[i];
    const int at = place[i] = above < 0 ? 0 : free_place[above];
    if (above >= 0) free_place[above] += size[i];
    free_place[i] = at + 1;
    tree.token[at] = growth.token[i], tree.depth[at] = growth.depth[i], tree.origin[at] = i;
    tree.parent[at] = above < 0 ? -1 : place[above], tree.end[at] = at + size[i];
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Words

// Fewest edits (insert, drop or change a character, swap two neighbours) that turn one word into the other.
inline int edit_distance(const std::string& a, const std::string& b) {
  const int m = int(a.size()), n = int(b.size());
  std::vector<std::vector<int>> edits(m + 1, std::vector<int>(n + 1));  // [i][j]: of the first i and j characters
  for (int i = 0; i <= m; i++)
    for (int j = 0; j <= n; j++) {
      if (i == 0 || j == 0) {
        edits[i][j] = i + j;
        continue;
      }
      edits[i][j] = std::min({edits[i - 1][j - 1] + (a[i - 1] != b[j - 1]), edits[i - 1][j] + 1, edits[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        edits[i][j] = std::min(edits[i][j], edits[i - 2][j - 2] + 1);
    }
  return edits[m][n];
}

// The nearest of `known` to a word that is not among them, the first of several.
inline std::string closest_word(const std::string& word, const std::vector<std::string>& known) {
  const std::string start = word.substr(0, 64);
  std::string best;
  int fewest = std::numeric_limits<int>::max();
  for (const std::string& candidate : known) {
    const int edits = edit_distance(start, candidate);
    if (edits < fewest) fewest = edits, best = candidate;
  }
  return best;
}

// Raises invalid_argument: "unknown KIND 'WORD': --FLAG: did you mean NEAREST? known are A, B, C".
[[noreturn]] inline void refuse_word(const std::string& kind, const std::string& word, const std::string& flag,
                                     const std::string& nearest, const std::vector<std::string>& known) {
  std::string shown = word.substr(0, 64), list;
  for (char& c : shown)
    if (static_cast<unsigned char>(c) < 32) c = '?';
  for (const std::string& one : known) list += (list.empty() ? "" : ", ") + one;
  throw std::invalid_argument("unknown " + kind + " '" + shown + "': " + flag + ": did you mean " + nearest +
                              "? known are " + list);
}

// ---------------------------------------------------------------------------------------------------------------
// Shapes

struct Shape {
  enum Kind { kChain, kFull, kAuto } kind = kAuto;  // in the order of kShapes
  int depth = 0, width = 0;                         // of tree:DxW; chain:K has depth K, width 1
  int budget = 64;                                  // most nodes, the root not counted
  std::string name = "auto";
};

struct ShapeWord {
  const char *word, *form, *what;
};
constexpr ShapeWord kShapes[] = {
    {"chain", "chain:K", "K tokens in a row"},
    {"tree", "tree:DxW", "D tokens deep, W children at every node"},
    {"auto", "auto", "the likeliest nodes, as many as pay on this machine"},
};

// Nodes of the full tree without its root, W + W^2 + ... + W^D; the largest int64_t where it is more than that.
inline int64_t full_tree_nodes(int64_t depth, int64_t width) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  if (width == 1) return depth;
  int64_t level = 1, nodes = 0;
  for (int64_t d = 0; d < depth; d++) {
    if (level > (kMost - nodes) / width) return kMost;
    level *= width, nodes += level;
  }
  return nodes;
}

// Reads a whole number from 1 to 999,999,999; 0 for anything else.
inline int parse_count(const std::string& text) {
  if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != std::string::npos) return 0;
  return std::stoi(text);
}

// Reads a shape. Raises invalid_argument for an unknown word (naming the nearest), for numbers that are none or below
// 1, and for a chain or tree of more nodes than the budget (naming both numbers).
inline Shape parse_shape(const std::string& text, int budget) {
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string word = text.substr(0, colon), numbers = text.substr(std::min(colon + 1, text.size()));
  std::vector<std::string> words, forms;
  for (const ShapeWord& known : kShapes) words.push_back(known.word), forms.push_back(known.form);
  const size_t kind = std::find(words.begin(), words.end(), word) - words.begin();
  if (kind == words.size()) {
    const std::string nearest = closest_word(word, words);
    refuse_word("shape", text, "--shape", forms[std::find(words.begin(), words.end(), nearest) - words.begin()], forms);
  }
  Shape shape;
  shape.kind = Shape::Kind(kind), shape.budget = budget, shape.name = text;
  if (shape.kind == Shape::kAuto) {
    if (text != word) refuse_word("shape", text, "--shape", "auto", forms);
    return shape;
  }
  const size_t cross = std::min(numbers.find('x'), numbers.size());
  shape.depth = parse_count(shape.kind == Shape::kChain ? numbers : numbers.substr(0, cross));
  shape.width = shape.kind == Shape::kChain ? 1 : parse_count(numbers.substr(std::min(cross + 1, numbers.size())));
  if (shape.depth < 1 || shape.width < 1) refuse_word("shape", text, "--shape", forms[kind], forms);
  const int64_t nodes = full_tree_nodes(shape.depth, shape.width);
  if (nodes > budget) {
    const std::string more = nodes == std::numeric_limits<int64_t>::max() ? "more than " : "";
    throw std::invalid_argument("shape " + text + " has " + more + std::to_string(nodes) + " nodes, the budget is " +
                                std::to_string(budget) + ": --shape: choose a smaller shape or raise --budget");
  }
  return shape;
}

// What a target forward of N + 1 rows takes, N = 0, 1, ..., here and now: shape `auto` goes by it. It starts from what
// was measured at load (measure_cost in decode.h), and every forward since is a fresh sample of it. One factor is
// common to all sizes, for the machine that slows down or the past that grows, and one is each size's own.
class Cost {
 public:
  explicit Cost(const std::vector<double>& seconds) : own_(seconds), seen_(seconds.size(), 1) {
    for (double& one : own_) one = std::max(one, 1e-9);  // a clock may be coarse
    publish();
  }

  int most() const { return int(seconds_.size()) - 1; }                // the largest N known
  double seconds(int nodes) const { return seconds_[size_t(nodes)]; }  // never falls as N grows

  // The least seconds that a further node costs, on average over any number of further ones: k of them cost at least
  // k slope(N). It is the steepness of the greatest convex function below the costs; at the largest N infinite.
  double slope(int nodes) const { return slope_[size_t(nodes)]; }

  // A forward took that long. A single pause counts as no more than kFarthest of an error, so it moves the estimate by
  // a few percent; a lasting change of any size arrives within some dozens of passes.
  void observe(int nodes, double seconds) {
    if (nodes > most() || !(seconds > 0)) return;
    constexpr double kFarthest = 0.25, kCommon = 1.0 / 16, kOwn = 1.0 / 8;
    const double expected = common_ * own_[size_t(nodes)];
    const double error = std::max(-kFarthest, std::min(kFarthest, seconds / expected - 1));
    common_ *= 1 + kCommon * error, own_[size_t(nodes)] *= 1 + kOwn * error, seen_[size_t(nodes)]++;
    if (++unpublished_ >= std::max(32, most() / 2)) publish();  // rarely: a forward may take but 20 microseconds
  }

 private:
  // Noise and pauses can make a larger forward look cheaper: such sizes get their mean, each counting as often as it
  // was seen (isotonic regression by pooling adjacent violators).
  void publish() {
    const int sizes = int(own_.size());
    levels_.clear(), seconds_.clear();
    for (int n = 0; n < sizes; n++) {
      levels_.push_back({own_[n], seen_[n], 1});
      while (levels_.size() > 1 && levels_.end()[-2].mean > levels_.back().mean) {
        const Level last = levels_.back();
        levels_.pop_back();
        Level& into = levels_.back();
        into.mean = (into.mean * into.seen + last.mean * last.seen) / (into.seen + last.seen);
        into.seen += last.seen, into.sizes += last.sizes;
      }
    }
    for (const Level& level : levels_) seconds_.insert(seconds_.end(), size_t(level.sizes), common_ * level.mean);

    slope_.assign(own_.size(), std::numeric_limits<double>::infinity());
    const auto steepness = [&](int from, int to) { return (seconds_[to] - seconds_[from]) / (to - from); };
    corners_.clear();  // of the convex function below the costs right of `from`, the nearest last
    for (int from = sizes - 1; from >= 0; from--) {
      while (corners_.size() > 1 && steepness(from, corners_.end()[-2]) <= steepness(from, corners_.back()))
        corners_.pop_back();
      if (!corners_.empty()) slope_[from] = steepness(from, corners_.back());
      corners_.push_back(from);
    }
    unpublished_ = 0;
  }

  struct Level {
    double mean, seen;
    int sizes;
  };
  std::vector<double> own_, seen_;  // (sizes) as measured, before the common factor; how often
  double common_ = 1;
  std::vector<double> seconds_, slope_;  // (sizes) as told
  std::vector<Level> levels_;            // scratch
  std::vector<int> corners_;             // scratch
  int unpublished_ = 0;                  // samples since publish()
};

// What a tree must heed in one pass.
struct Limits {
  int depth;  // deepest node: the window's end, and the tokens still wanted
  // For auto only:
  const Cost* cost = nullptr;  // what a forward takes
  double expand_seconds = 0;   // what the drafter takes to expand a node
  float promise = 1;           // what chance the best child of a node may be hoped to have; 1: nothing is missed
};

// Every node gets its W best candidates, level by level; with W = 1 it is the chain.
template <class Expand>
void grow_full(const Shape& shape, const Limits& limits, Growth& growth, Expand& expand) {
  std::vector<int> level(1, 0), count;
  std::vector<Candidate> candidates;  // (nodes of the level, W)
  for (int depth = 0; depth < std::min(shape.depth, limits.depth) && !level.empty(); depth++) {
    const int nodes = int(level.size()), first = growth.size();
    candidates.resize(size_t(nodes) * shape.width), count.resize(nodes);
    expand(level.data(), nodes, shape.width, candidates.data(), count.data());
    for (int k = 0; k < nodes; k++)
      for (int rank = 0; rank < count[k]; rank++) growth.add(level[k], candidates[size_t(k) * shape.width + rank]);
    level.resize(growth.size() - first);
    for (size_t k = 0; k < level.size(); k++) level[k] = first + int(k);
  }
}

// Does what promises most, again and again: adds the likeliest of the nodes offered, or expands a node, which offers
// its children. Then keeps as many nodes as give the most tokens a second:
//   (1 + sum of reach) / (seconds of the forward + seconds of drafting).
// The N likeliest nodes are the best N nodes, since a node's reach never exceeds its parent's. Growth ends when even
// nodes as likely as the likeliest one left could not raise the rate: with rate r, k more nodes of reach at most q gain
// at most k q tokens and cost at least k slope seconds, so never when q <= r slope. An expansion costs its own time
// too.
template <class Expand>
void grow_auto(const Shape& shape, const Limits& limits, Growth& growth, Expand& expand) {
  constexpr int kWidth = 8, kUnexpanded = -1;  // candidates asked for at a node; a ninth is seldom worth a slot
  struct Offer {
    float reach;                                // of the node, or hoped for from the expansion
    int parent, rank;                           // the rank-th candidate of node `parent`; or to ask for its candidates
    bool operator<(const Offer& other) const {  // the top of the heap promises most; of equal ones the first
      return reach != other.reach ? reach < other.reach : parent > other.parent;
    }
  };
  if (!limits.cost) throw std::logic_error("shape auto knows no costs: measure them first");
  const Cost& cost = *limits.cost;
  const int most = std::min(shape.budget, cost.most());
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

// Grows the tree of one pass under growth's root. expand(nodes, n, width, candidates, count) asks the drafter for the
// `width` best candidates of n nodes: node k's count[k] <= width of them go to candidates[k * width ...], best first.
template <class Expand>
void grow(const Shape& shape, const Limits& limits, Growth& growth, Expand&& expand) {
  switch (shape.kind) {
    case Shape::kChain:
    case Shape::kFull:
      return grow_full(shape, limits, growth, expand);
    case Shape::kAuto:
      return grow_auto(shape, limits, growth, expand);
  }
}

}  // namespace nanospec
