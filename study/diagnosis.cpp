// study/diagnosis.cpp: see diagnosis.h.
#include "study/diagnosis.h"

#include <algorithm>
#include <cmath>

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Forecasts

namespace {
void note(Forecast& forecast, float raw, float corrected, bool accepted) {
  const float chance = forecast.by_raw ? raw : corrected;
  Reliability& tenth = forecast.tenths[size_t(std::max(0, std::min(9, int(chance * 10))))];
  tenth.nodes++, tenth.accepted += accepted, tenth.raw += double(raw), tenth.corrected += double(corrected);
  forecast.squares += (double(chance) - accepted) * (double(chance) - accepted);
}
}  // namespace

int64_t Forecast::nodes() const {
  int64_t sum = 0;
  for (const Reliability& tenth : tenths) sum += tenth.nodes;
  return sum;
}
double Forecast::brier() const { return nodes() > 0 ? squares / double(nodes()) : 0; }
double Forecast::calibration_error() const {
  double sum = 0;
  for (const Reliability& tenth : tenths) sum += std::fabs(promised(tenth) - double(tenth.accepted));
  return nodes() > 0 ? sum / double(nodes()) : 0;
}

// ---------------------------------------------------------------------------------------------------------------
// One pass

void Diagnosis::add(const PassReport& pass) {
  const Tree& tree = pass.tree;
  const std::vector<int>& rows = pass.verdict.rows;
  passes++;
  for (int node = 1; node < tree.size(); node++) {
    const size_t depth = size_t(tree.depth[node]);
    if (depth >= drafted.size()) drafted.resize(depth + 1), accepted.resize(depth + 1);
    drafted[depth]++;
  }
  for (size_t i = 0; i < rows.size(); i++) {
    if (i > 0) accepted[i]++;
    if (tree.first_child(rows[i]) >= 0)
      look_at(pass, rows[i], pass.verdict.tokens[i], i + 1 < rows.size() ? rows[i + 1] : -1);
  }
  const Stop stop = stop_of(pass);
  stops[size_t(stop)]++;
  if (stop == Stop::kNoNode) missing_rank[size_t(rank_of(pass, rows.back(), pass.verdict.tokens.back()))]++;
}

// A node on the path that had children. token: what the target chose there; accepted_child: -1: none.
void Diagnosis::look_at(const PassReport& pass, int node, int token, int accepted_child) {
  const Tree& tree = pass.tree;
  const int origin = tree.origin[node];
  const size_t depth = size_t(tree.depth[node]);
  Unsure unsure_here = {0, 0, accepted_child >= 0};
  pass.drafter->entropies(pass.growth, &origin, 1, pass.draws, false, &unsure_here.of_q);
  pass.drafter->entropies(pass.growth, &origin, 1, pass.draws, true, &unsure_here.of_confidence);
  unsure.push_back(unsure_here);
  if (depth >= asked.size()) asked.resize(depth + 1), right.resize(depth + 1);
  asked[depth]++;
  const int rank = rank_of(pass, node, token);
  if (rank >= 0) right[depth][size_t(rank)]++;
  for (int child = tree.first_child(node); child >= 0; child = tree.next_sibling(child)) {
    const float raw_chance = pass.growth.raw[tree.origin[child]], chance = pass.growth.chance[tree.origin[child]];
    note(raw, raw_chance, chance, child == accepted_child);
    note(corrected, raw_chance, chance, child == accepted_child);
  }
}

// Which of the drafter's guesses after an expanded node the token is; -1: none of the best.
int Diagnosis::rank_of(const PassReport& pass, int node, int token) {
  Candidate guesses[kAskedRanks];
  int found = 0;
  const int origin = pass.tree.origin[node];
  pass.drafter->expand(pass.growth, &origin, 1, kAskedRanks, pass.draws, guesses, &found);
  for (int rank = 0; rank < found; rank++)
    if (guesses[rank].token == token) return rank;
  return -1;
}

Stop Diagnosis::stop_of(const PassReport& pass) {
  const int last = pass.verdict.rows.back();
  if (pass.tree.first_child(last) >= 0)
    return rank_of(pass, last, pass.verdict.tokens.back()) >= 0 ? Stop::kNoNode : Stop::kNotGuessed;
  if (!pass.drafted) return Stop::kNotTried;
  if (pass.tree.depth[last] >= pass.deepest) return Stop::kEnd;
  return shape.kind > Shape::kCartesian && pass.tree.size() - 1 >= shape.budget ? Stop::kBudget : Stop::kShape;
}

// ---------------------------------------------------------------------------------------------------------------
// By entropy

double separation(const std::vector<Unsure>& unsure, bool of_confidence) {
  std::vector<std::pair<float, bool>> sorted;
  for (const Unsure& one : unsure) sorted.push_back({of_confidence ? one.of_confidence : one.of_q, one.matched});
  std::sort(sorted.begin(), sorted.end());
  double below = 0, pairs = 0, mismatched = 0;  // matched nodes below; pairs in the right order
  for (size_t i = 0; i < sorted.size();) {
    double same[2] = {0, 0};
    for (const float entropy = sorted[i].first; i < sorted.size() && sorted[i].first == entropy; i++)
      same[sorted[i].second]++;
    pairs += same[0] * (below + same[1] / 2), mismatched += same[0], below += same[1];
  }
  return below > 0 && mismatched > 0 ? pairs / (below * mismatched) : 0.5;
}

std::array<EntropyBin, kEntropyBins> by_entropy(const std::vector<Unsure>& unsure, bool of_confidence) {
  std::array<EntropyBin, kEntropyBins> bins;
  for (const Unsure& one : unsure) {
    const double entropy = double(of_confidence ? one.of_confidence : one.of_q);
    EntropyBin& bin = bins[size_t(std::max(0, std::min(kEntropyBins - 1, int(entropy / kEntropyBin))))];
    (one.matched ? bin.matched : bin.mismatched)++;
  }
  return bins;
}

}  // namespace nanospec
