// study/diagnosis.h: counts, iteration by iteration, why drafts are accepted or not.
//
// Nodes "on the path" are the root and the accepted nodes. All counts of guesses are about them: at other nodes the
// target's pick is not known.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

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
  float of_q, of_confidence;  // entropies, in nats
  bool matched;
};

// What was promised of nodes whose parent was on the path, by tenths, and how far off that was.
struct Forecast {
  std::array<Reliability, 10> tenths;  // [i]: chances from i / 10 on; `raw` and `corrected` as in growth/trust.h
  double squares = 0;                  // sum of (chance - 0 or 1)^2

  bool by_raw = false;  // whether it goes by the raw chances or the corrected ones

  double promised(size_t i) const { return by_raw ? tenths[i].raw : tenths[i].corrected; }  // sum of chances
  // Of a tenth's nodes: the mean chance, and the share that was accepted.
  double foretold(size_t i) const { return tenths[i].nodes > 0 ? promised(i) / double(tenths[i].nodes) : 0; }
  double accepted(size_t i) const {
    return tenths[i].nodes > 0 ? double(tenths[i].accepted) / double(tenths[i].nodes) : 0;
  }
  void note(float raw, float corrected, bool accepted) {
    const float chance = by_raw ? raw : corrected;
    Reliability& tenth = tenths[size_t(std::clamp(int(chance * 10), 0, 9))];
    tenth.nodes++;
    tenth.accepted += accepted;
    tenth.raw += double(raw);
    tenth.corrected += double(corrected);
    squares += (double(chance) - accepted) * (double(chance) - accepted);
  }
  double nodes() const {
    double sum = 0;
    for (const Reliability& tenth : tenths) sum += double(tenth.nodes);
    return sum;
  }
  double brier() const { return nodes() > 0 ? squares / nodes() : 0; }  // mean square; a coin scores 0.25
  double calibration_error() const {  // expected: |promised - measured|, over the tenths by their nodes
    double sum = 0;
    for (size_t i = 0; i < tenths.size(); i++) sum += std::fabs(promised(i) - double(tenths[i].accepted));
    return nodes() > 0 ? sum / nodes() : 0;
  }
};

struct Diagnosis {
  explicit Diagnosis(const Shape& its_shape) : shape(its_shape) { raw.by_raw = true; }

  void add(const IterationReport& report) {
    const Tree& tree = report.tree;
    const std::vector<int>& rows = report.verdict.rows;
    forwards++;
    for (int node = 1; node < tree.size(); node++) {
      const size_t depth = size_t(tree.depth[node]);
      grown(drafted, depth)++;
      grown(accepted, depth);
    }
    for (size_t i = 0; i < rows.size(); i++) {
      if (i > 0) accepted[i]++;
      if (tree.first_child(rows[i]) >= 0)
        look_at(report, rows[i], report.verdict.tokens[i], i + 1 < rows.size() ? rows[i + 1] : -1);
    }
    const Stop stop = stop_of(report);
    stops[size_t(stop)]++;
    if (stop == Stop::kNoNode) missing_rank[size_t(rank_of(report, rows.back(), report.verdict.tokens.back()))]++;
  }

  Ranks right_by_rank() const {  // at all depths
    Ranks sum = {};
    for (const Ranks& of_depth : right)
      for (size_t rank = 0; rank < kAskedRanks; rank++) sum[rank] += of_depth[rank];
    return sum;
  }

  Shape shape;
  int64_t forwards = 0;
  std::vector<Unsure> unsure;
  std::vector<int64_t> asked;  // [d]: nodes of depth d on the path that had children
  std::vector<Ranks> right;    // [d][r]: whose rank-r guess was the target's token
  Forecast raw, corrected;
  std::vector<int64_t> drafted, accepted;      // [d]: nodes of depth d; [0]: nothing, the roots do not count
  std::array<int64_t, kStopKinds> stops = {};  // forwards
  Ranks missing_rank = {};                     // kNoNode: the guess's rank

 private:
  // A node on the path that had children. token: what the target chose there; accepted_child: -1: none.
  void look_at(const IterationReport& report, int node, int token, int accepted_child) {
    const Tree& tree = report.tree;
    const int origin = tree.origin[node];
    const size_t depth = size_t(tree.depth[node]);
    Unsure unsure_here = {0, 0, accepted_child >= 0};
    entropies(*report.drafter, report.growth, &origin, 1, report.draws, false, &unsure_here.of_q);
    entropies(*report.drafter, report.growth, &origin, 1, report.draws, true, &unsure_here.of_confidence);
    unsure.push_back(unsure_here);
    grown(asked, depth)++;
    grown(right, depth);
    const int rank = rank_of(report, node, token);
    if (rank >= 0) right[depth][size_t(rank)]++;
    for (int child = tree.first_child(node); child >= 0; child = tree.next_sibling(child)) {
      const float raw_chance = report.growth.raw[tree.origin[child]], chance = report.growth.chance[tree.origin[child]];
      raw.note(raw_chance, chance, child == accepted_child);
      corrected.note(raw_chance, chance, child == accepted_child);
    }
  }

  // Which of the drafter's guesses after an expanded node the token is; -1: none of the best.
  int rank_of(const IterationReport& report, int node, int token) {
    Candidate guesses[kAskedRanks];
    int found = 0;
    const int origin = report.tree.origin[node];
    report.drafter->expand(report.growth, &origin, 1, kAskedRanks, report.draws, guesses, &found);
    for (int rank = 0; rank < found; rank++)
      if (guesses[rank].token == token) return rank;
    return -1;
  }

  Stop stop_of(const IterationReport& report) {
    const int last = report.verdict.rows.back();
    if (report.tree.first_child(last) >= 0)
      return rank_of(report, last, report.verdict.tokens.back()) >= 0 ? Stop::kNoNode : Stop::kNotGuessed;
    if (!report.drafted) return Stop::kNotTried;
    if (report.tree.depth[last] >= report.deepest) return Stop::kEnd;
    return shape.kind > Shape::kCartesian && report.tree.size() - 1 >= shape.budget ? Stop::kBudget : Stop::kShape;
  }
};

// The chance that a mismatched node was less sure than a matched one: 0.5 says nothing, 1 everything (the area under
// the ROC curve; of equal ones each counts half). 0.5 where there are none of one kind.
inline double separation(const std::vector<Unsure>& unsure, bool of_confidence) {
  std::vector<std::pair<float, bool>> sorted;
  for (const Unsure& one : unsure) sorted.push_back({of_confidence ? one.of_confidence : one.of_q, one.matched});
  std::sort(sorted.begin(), sorted.end());
  double below = 0, pairs = 0, mismatched = 0;  // matched nodes below; pairs in the right order
  for (size_t i = 0; i < sorted.size();) {
    double same[2] = {0, 0};
    for (const float entropy = sorted[i].first; i < sorted.size() && sorted[i].first == entropy; i++)
      same[sorted[i].second]++;
    pairs += same[0] * (below + same[1] / 2);
    mismatched += same[0];
    below += same[1];
  }
  return below > 0 && mismatched > 0 ? pairs / (below * mismatched) : 0.5;
}

// Matched and mismatched nodes by entropy, in bins of kEntropyBin nats; the last holds all from there on.
constexpr double kEntropyBin = 0.5;
constexpr size_t kEntropyBins = 10;
struct EntropyBin {
  int64_t matched = 0, mismatched = 0;
  double all() const { return double(matched + mismatched); }
};
inline std::array<EntropyBin, kEntropyBins> by_entropy(const std::vector<Unsure>& unsure, bool of_confidence) {
  std::array<EntropyBin, kEntropyBins> bins;
  for (const Unsure& one : unsure) {
    const double entropy = double(of_confidence ? one.of_confidence : one.of_q);
    EntropyBin& bin = bins[size_t(std::clamp(int(entropy / kEntropyBin), 0, int(kEntropyBins) - 1))];
    (one.matched ? bin.matched : bin.mismatched)++;
  }
  return bins;
}

}  // namespace nanospec
