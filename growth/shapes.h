// growth/shapes.h: the shapes that a tree may have: their names, and the templates of those that are fixed beforehand.
//
// In order: the template, and accuracy, from which the best template for a drafter is computed; shapes by name. Plain
// C++. grow.h grows a tree of a shape.
//
// How to add a shape:
//   1. give it a line in Shape::Kind and, in the same order, in kShapes; read its numbers, if it has any, in
//   parse_shape;
//      make the template of a fixed shape there, or in calibration.h if a file holds it;
//   2. for a shape that uses the drafted candidates: write grow_NAME(shape, limits, growth, expand) in grow.h, and its
//      case in `grow` there;
//   3. add its name to kAllShapes in tests/mock.h, which the sweeps run: under `match` no shape can change the text.
#pragma once

#include <memory>
#include <queue>

#include "files/words.h"
#include "tree.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Templates

// A tree of ranks: each node is the rank-th best candidate (0: the best) after its parent. Nodes are in the order of
// levels; the children of a node are adjacent, with ranks 0, 1, 2, ...; node 0 is the root.
struct Template {
  std::vector<int> parent = {-1}, rank = {0};
  std::vector<int> level = {0, 1};  // [d]: the first node of depth d; the last entry: how many nodes there are

  // Adds a node, whose level the caller counts. Returns its place.
  int add(int above, int its_rank) {
    parent.push_back(above);
    rank.push_back(its_rank);
    return nodes();
  }
  int nodes() const { return int(parent.size()) - 1; }  // the root not counted
  int depth() const { return int(level.size()) - 2; }
};

// Makes a template of nodes in any order that has a parent before its children.
Template by_levels(const std::vector<int>& parent, const std::vector<int>& rank);

// Every node of depth d has widths[d] children: Medusa's cartesian product of its heads' best tokens. If all widths are
// 1 it is a chain; if all are equal, the full tree.
Template cartesian_template(const std::vector<int>& widths);

// The first so many nodes of a template: whole levels, then a part of the next one.
Template truncated(Template t, int nodes);

// How often the rank-th candidate at a depth was right if the path above it was: `nanospec calibrate` measures it.
struct Accuracy {
  int depths = 0, ranks = 0;
  std::vector<double> rate;      // (depths, ranks); depth 0: the root's children
  std::vector<double> seen;      // (depths) at how many places it was measured
  double expand_seconds = 1e-6;  // that the drafter took to expand a node

  double at(int depth, int rank) const { return rate[size_t(depth) * ranks + rank]; }

  // (ranks) the mean over all depths, which sequoia uses.
  std::vector<double> by_rank() const {
    std::vector<double> mean(ranks, 0);
    double all = 0;
    for (int d = 0; d < depths; d++) all += seen[d];
    for (int d = 0; d < depths; d++)
      for (int r = 0; r < ranks; r++) mean[r] += at(d, r) * seen[d] / std::max(all, 1.0);
    return mean;
  }
};

// Medusa's calibrated tree (Cai et al. 2024). Of all next siblings and first children it adds the node that is most
// likely to be accepted, again and again. The chance of a node is the product of the rates along its path.
// chance(depth, rank): the rate. Depths (0: the root's children) are below `depths`, ranks below `ranks`.
template <class Chance>
Template likeliest_template(int depths, int ranks, int nodes, Chance chance) {
  // course 7
  struct Offer {
    double reach, above;  // of the node; of its parent
    int parent, rank, depth;
    bool operator<(const Offer& other) const {  // the likeliest is the queue's top; of equal ones the first
      return reach != other.reach ? reach < other.reach : parent > other.parent;
    }
  };
  std::priority_queue<Offer> offers;
  const auto offer = [&](double above, int parent, int rank, int depth) {
    if (depth < depths && rank < ranks) offers.push({above * chance(depth, rank), above, parent, rank, depth});
  };
  std::vector<int> parent = {-1}, rank = {0};
  offer(1, 0, 0, 0);
  while (!offers.empty() && offers.top().reach > 0 && int(parent.size()) <= nodes) {
    const Offer best = offers.top();
    offers.pop();
    parent.push_back(best.parent);
    rank.push_back(best.rank);
    offer(best.above, best.parent, best.rank + 1, best.depth);
    offer(best.reach, int(parent.size()) - 1, 0, best.depth + 1);
  }
  return by_levels(parent, rank);
  // end
}
inline Template calibrated_template(const Accuracy& accuracy, int nodes) {
  return likeliest_template(accuracy.depths, accuracy.ranks, nodes, [&](int d, int r) { return accuracy.at(d, r); });
}

// Sequoia's dynamic program (Chen et al. 2024, arXiv 2402.12374). a[r]: the chance that the child of rank r is the
// accepted one, the same at every node. T(m, l, b): the most tokens that can be expected of a tree of m nodes (the root
// is one of them) whose paths have at most l nodes and whose root has exactly b children:
//   T(1, l, 0) = 1,   T(m, l, b) = max over y of T(y, l, b - 1) + a[b - 1] best(m - y, l - 1),
//   best(m, l) = max over b of T(m, l, b).
class Sequoia {
 public:
  // For trees of up to `nodes` nodes, the root not counted, and `depths` levels below it.
  Sequoia(const std::vector<double>& a, int nodes, int depths)
      : a_(a), M_(nodes + 1), L_(depths + 1), B_(int(a.size())) {
    for (int l = 1; l <= L_; l++)
      for (int m = 1; m <= M_; m++) {
        if (m == 1) tokens_[place(m, l, 0)] = 1;
        for (int b = 1; b <= B_ && l > 1; b++)
          for (int y = 1; y < m; y++) {
            const double sum = tokens_[place(y, l, b - 1)] + a_[b - 1] * tokens(m - y, l - 1);
            if (!(sum > tokens_[place(m, l, b)])) continue;
            tokens_[place(m, l, b)] = sum;
            split_[place(m, l, b)] = y;
          }
        for (int b = 1; b <= B_; b++)
          if (tokens_[place(m, l, b)] > tokens_[place(m, l, best(m, l))]) best(m, l) = b;
      }
  }

  // The expected tokens of the best tree of exactly m nodes and at most l levels, the root counted in both; -infinity
  // if there is none.
  double tokens(int m, int l) const { return tokens_[place(m, l, best_[size_t(m) * (L_ + 1) + l])]; }

  Template tree(int m, int l) const {
    Template t;
    plant(m, l, 0, t);
    return by_levels(t.parent, t.rank);
  }

 private:
  static constexpr double kNone = -std::numeric_limits<double>::infinity();
  size_t place(int m, int l, int b) const { return (size_t(m) * (L_ + 1) + l) * (B_ + 1) + b; }
  int& best(int m, int l) { return best_[size_t(m) * (L_ + 1) + l]; }

  // Adds the children of a node whose subtree has m nodes and l levels, the last child first.
  void plant(int m, int l, int node, Template& t) const {
    for (int b = best_[size_t(m) * (L_ + 1) + l]; b > 0; b--) {
      const int y = split_[place(m, l, b)];
      plant(m - y, l - 1, t.add(node, b - 1), t);
      m = y;
    }
  }

  std::vector<double> a_;
  int M_, L_, B_;
  std::vector<int> best_ = std::vector<int>(size_t(M_ + 1) * (L_ + 1), 0);  // (M + 1, L + 1) the best b
  std::vector<int> split_ = std::vector<int>(best_.size() * (B_ + 1), 0);   // (M + 1, L + 1, B + 1) the best y
  std::vector<double> tokens_ = std::vector<double>(split_.size(), kNone);  // (M + 1, L + 1, B + 1) T
};

// Sequoia's choice of a size: of all m and l the tree with the smallest (levels t_draft + t_target(m)) / tokens.
// target_seconds(n): of a forward of a root and n nodes.
template <class Seconds>
Template sequoia_template(const Accuracy& accuracy, int nodes, Seconds target_seconds) {
  const int most = std::min(nodes, 256);  // its time grows with nodes^2, and no larger tree has paid
  const Sequoia program(accuracy.by_rank(), most, accuracy.depths);
  double least = target_seconds(0);  // plain decoding
  int best_m = 1, best_l = 1;
  for (int m = 2; m <= most + 1; m++)
    for (int l = 2; l <= accuracy.depths + 1; l++) {
      const double each = ((l - 1) * accuracy.expand_seconds + target_seconds(m - 1)) / program.tokens(m, l);
      if (!(each > 0 && each < least)) continue;
      least = each;
      best_m = m;
      best_l = l;
    }
  return program.tree(best_m, best_l);
}

// ---------------------------------------------------------------------------------------------------------------
// Shapes by name

struct Shape {
  enum Kind {  // in the order of kShapes
    kChain,
    kFull,
    kCartesian,
    kStatic,
    kCalibrated,
    kSequoia,
    kBestFirst,
    kBeam,
    kEntropyStop,
    kEntropyNaive,
    kEntropyWidth,
    kEntropyDepthWidth,
    kAuto
  };
  Kind kind = kAuto;
  int depth = 0, width = 0;  // of chain:K (width 1), tree:DxW, beam:W, and the entropy family (width: of `naive`)
  int budget = 64;           // the most nodes, the root not counted
  std::string name = "auto";
  std::string file;                      // of static:FILE, calibrated:FILE, sequoia:FILE
  float threshold = 0;                   // of the entropy family, in nats
  bool of_confidence = false;            // whether it uses the entropy of the candidates' chances, not of q
  std::shared_ptr<const Template> plan;  // of the fixed shapes; null: not made yet

  // Whether the ranks that get a node are decided before drafting.
  bool fixed() const { return kind <= kSequoia; }
  // Whether it is a full tree of depth and width.
  bool full() const { return kind <= kFull; }
  bool by_entropy() const { return kind >= kEntropyStop && kind <= kEntropyDepthWidth; }
};

struct ShapeWord {
  const char *word, *form, *what;
};
constexpr ShapeWord kShapes[] = {
    {"chain", "chain:K", "K tokens in a row"},
    {"tree", "tree:DxW", "D tokens deep, W children at every node"},
    {"cartesian", "cartesian:A,B,C", "A children at the root, B at each of these, and so on"},
    {"static", "static:FILE", "a tree of ranks, as JSON: [[0], [0, 0], [1], ...]"},
    {"calibrated", "calibrated[:FILE]", "the likeliest ranks, as nanospec calibrate measured"},
    {"sequoia", "sequoia[:FILE]", "the best tree for this machine, by the same measurement"},
    {"best-first", "best-first", "the likeliest nodes, up to the budget"},
    {"beam", "beam:W", "the W likeliest nodes of each depth, then the best of all"},
    {"entropy-stop", "entropy-stop", "a chain that ends where the drafter is unsure"},
    {"entropy-naive", "entropy-naive", "the same, with several children at its end"},
    {"entropy-width", "entropy-width", "more children where the drafter is unsure"},
    {"entropy-depth-width", "entropy-depth-width", "the same, with no child where it is very unsure"},
    {"auto", "auto", "the likeliest nodes, as many as make decoding faster on this machine"},
};
constexpr int kMostDepth = 64;                   // of the entropy family, and of a calibration
constexpr int kBeamDepth = 8, kMostBeam = 1024;  // of beam:W

// Reads a shape. The templates of `static`, `calibrated` and `sequoia` are in files, and are made later. Throws
// std::invalid_argument for an unknown name (the message has the nearest one), for a number that is none or out of
// range, and for a chain, tree or cartesian of more nodes than the budget (the message has both numbers).
Shape parse_shape(const std::string& text, int budget);

}  // namespace nanospec
