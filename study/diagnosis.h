// study/diagnosis.h: counts, iteration by iteration, why drafts are accepted or not.
//
// Nodes "on the path" are the root and the accepted nodes. All counts of guesses are about them: at other nodes the
// target's pick is not known.
#pragma once

#include "drafters/logits.h"
#include "growth/shapes.h"
#include "watch/stats.h"

namespace nanospec {

constexpr int kAskedRanks = 8;  // how many candidates of the drafter are searched for the target's token
using Ranks = std::array<int64_t, kAskedRanks>;

inline int64_t sum_of(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t(0));
}
// counts[i], of counts that grow as they are needed.
template <class T>
T& grown(std::vector<T>& counts, size_t i) {
  if (i >= counts.size()) counts.resize(i + 1);
  return counts[i];
}

// Why a forward committed no more tokens.
enum class Stop {
  kNoNode,      // the target's token was among the drafter's best guesses, but it got no node
  kNotGuessed,  // it was not among them
  kBudget,      // the path ended in a leaf: the budget was full
  kShape,       // the shape had no more levels, or wanted no further node
  kEnd,         // no node could be deeper: the window's end, or that of the text
  kNotTried     // nothing was drafted
};
constexpr const char* kStops[] = {
    "the token was guessed, but got no node",
    "the token was not among the 8 best guesses",
    "leaf: the budget was full",
    "leaf: the shape ended there",
    "leaf: the window's end, or that of the text",
    "drafting was not tried",
};
constexpr size_t kStopKinds = std::size(kStops);

// A node on the path that had children: how unsure the drafter was, and whether one of them was right.
struct Unsure {
  float entropy;  // in nats
  bool right;
};

// Nodes that are alike, and how many of them were right.
struct Bin {
  int64_t nodes = 0, right = 0;
  double promised = 0;  // the sum of their chances
  void note(bool is_right, float chance = 0) {
    nodes++;
    right += is_right;
    promised += double(chance);
  }
  double share() const { return nodes > 0 ? double(right) / double(nodes) : 0; }
  double foretold() const { return nodes > 0 ? promised / double(nodes) : 0; }  // the mean chance
};
constexpr size_t kBins = 10;
using Bins = std::array<Bin, kBins>;
inline Bin& bin_at(Bins& bins, double place) { return bins[size_t(std::clamp(int(place), 0, int(kBins) - 1))]; }

// What was promised of nodes whose parent was on the path, by tenths, and how far off that was.
struct Forecast {
  Bins tenths;         // [i]: chances from i / 10 on
  double squares = 0;  // sum of (chance - 0 or 1)^2

  void note(float chance, bool accepted) {
    bin_at(tenths, double(chance * 10)).note(accepted, chance);
    squares += (double(chance) - accepted) * (double(chance) - accepted);
  }
  double nodes() const {
    double sum = 0;
    for (const Bin& tenth : tenths) sum += double(tenth.nodes);
    return sum;
  }
  double brier() const { return nodes() > 0 ? squares / nodes() : 0; }  // mean square; a coin scores 0.25
  double calibration_error() const {  // expected: |promised - measured|, over the tenths by their nodes
    double sum = 0;
    for (const Bin& tenth : tenths) sum += std::fabs(tenth.promised - double(tenth.right));
    return nodes() > 0 ? sum / nodes() : 0;
  }
};

struct Diagnosis {
  explicit Diagnosis(const Shape& its_shape) : shape(its_shape) {}

  void add(const IterationReport& report) {
    const Tree& tree = report.tree;
    const std::vector<int>& rows = report.verdict.rows;
    forwards++;
    for (int node = 1; node < tree.size(); node++) {
      const size_t depth = size_t(tree.depth[node]);
      grown(drafted, depth)++;
      grown(accepted, depth);
    }
    int rank = -1;  // of what the target chose last, where its node had children
    for (size_t i = 0; i < rows.size(); i++) {
      if (i > 0) accepted[i]++;
      if (tree.first_child(rows[i]) >= 0)
        rank = look_at(report, rows[i], report.verdict.tokens[i], i + 1 < rows.size() ? rows[i + 1] : -1);
    }
    const Stop stop = stop_of(report, rank);
    stops[size_t(stop)]++;
    if (stop == Stop::kNoNode) missing_rank[size_t(rank)]++;
  }

  Ranks right_by_rank() const {  // at all depths
    Ranks sum = {};
    for (const Ranks& of_depth : right)
      for (size_t rank = 0; rank < kAskedRanks; rank++) sum[rank] += of_depth[rank];
    return sum;
  }

  Shape shape;
  int64_t forwards = 0;
  std::vector<Unsure> by_q, by_confidence;     // one entry a node, of both the same nodes
  std::vector<int64_t> asked;                  // [d]: nodes of depth d on the path that had children
  std::vector<Ranks> right;                    // [d][r]: whose rank-r guess was the target's token
  Forecast raw, corrected;                     // as the drafter gives chances, and as experience corrects them
  std::vector<int64_t> drafted, accepted;      // [d]: nodes of depth d; [0]: nothing, the roots do not count
  std::array<int64_t, kStopKinds> stops = {};  // forwards
  Ranks missing_rank = {};                     // kNoNode: the guess's rank

 private:
  // A node on the path that had children. token: what the target chose there; accepted_child: -1: none. Returns which
  // of the drafter's guesses the token is; -1: none of the best.
  int look_at(const IterationReport& report, int node, int token, int accepted_child) {
    const Tree& tree = report.tree;
    const int origin = tree.origin[node];
    const size_t depth = size_t(tree.depth[node]);
    for (bool of_confidence : {false, true}) {
      Unsure here = {0, accepted_child >= 0};
      entropies(*report.drafter, report.growth, &origin, 1, report.draws, of_confidence, &here.entropy);
      (of_confidence ? by_confidence : by_q).push_back(here);
    }
    Candidate guesses[kAskedRanks];
    int found = 0, rank = 0;
    report.drafter->expand(report.growth, &origin, 1, kAskedRanks, report.draws, guesses, &found);
    while (rank < found && guesses[rank].token != token) rank++;
    grown(asked, depth)++;
    grown(right, depth);
    if (rank < found) right[depth][size_t(rank)]++;
    for (int child = tree.first_child(node); child >= 0; child = tree.next_sibling(child)) {
      raw.note(report.growth.raw[tree.origin[child]], child == accepted_child);
      corrected.note(report.growth.chance[tree.origin[child]], child == accepted_child);
    }
    return rank < found ? rank : -1;
  }

  Stop stop_of(const IterationReport& report, int rank) {
    const int last = report.verdict.rows.back();
    if (report.tree.first_child(last) >= 0) return rank >= 0 ? Stop::kNoNode : Stop::kNotGuessed;
    if (!report.drafted) return Stop::kNotTried;
    if (report.tree.depth[last] >= report.deepest) return Stop::kEnd;
    return shape.kind > Shape::kCartesian && report.tree.size() - 1 >= shape.budget ? Stop::kBudget : Stop::kShape;
  }
};

// The chance that a wrong node was less sure than a right one: 0.5 says nothing, 1 everything (the area under the ROC
// curve; of equal ones each counts half). 0.5 where there are none of one kind.
inline double separation(std::vector<Unsure> nodes) {
  std::sort(nodes.begin(), nodes.end(), [](const Unsure& a, const Unsure& b) { return a.entropy < b.entropy; });
  double below = 0, pairs = 0, wrong = 0;  // right nodes below; pairs in the right order
  for (size_t i = 0; i < nodes.size();) {
    double same[2] = {0, 0};
    for (const float entropy = nodes[i].entropy; i < nodes.size() && nodes[i].entropy == entropy; i++)
      same[nodes[i].right]++;
    pairs += same[0] * (below + same[1] / 2);
    wrong += same[0];
    below += same[1];
  }
  return below > 0 && wrong > 0 ? pairs / (below * wrong) : 0.5;
}

// Nodes by entropy, in bins of kEntropyBin nats; the last holds all from there on.
constexpr double kEntropyBin = 0.5;
inline Bins by_entropy(const std::vector<Unsure>& nodes) {
  Bins bins;
  for (const Unsure& one : nodes) bin_at(bins, double(one.entropy) / kEntropyBin).note(one.right);
  return bins;
}

}  // namespace nanospec
