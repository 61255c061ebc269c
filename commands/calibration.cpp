// commands/calibration.cpp: see calibration.h.
#include "commands/calibration.h"

#include "growth/clock.h"

namespace nanospec {

int64_t RankCounts::places() const { return std::accumulate(seen.begin(), seen.end(), int64_t(0)); }

Accuracy RankCounts::accuracy() const {
  constexpr double kPrior = 20;  // places
  Accuracy a;
  a.depths = depths;
  a.ranks = ranks;
  if (!seconds.empty()) a.expand_seconds = std::max(1e-9, median(seconds));
  for (int d = 0; d < depths; d++) {
    a.seen.push_back(double(seen[size_t(d)]));
    const bool mute = seen[size_t(d)] > 0 && silent[size_t(d)] == seen[size_t(d)];
    for (int r = 0; r < ranks; r++) {
      const size_t at = size_t(d) * ranks + r;
      const double prior = d > 0 && !mute ? kPrior : 0, above = d > 0 ? a.at(d - 1, r) : 0;
      const double n = double(seen[size_t(d)]) + prior;
      a.rate.push_back(n > 0 ? (double(right[at]) + prior * above) / n : 0);
    }
  }
  return a;
}

Forced::Forced(Drafter& its, const std::vector<int>& text, RankCounts& counts)
    : StandIn(its), text_(text), counts_(counts), guesses_(size_t(counts.ranks)) {}

void Forced::expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
                    int* count) {
  for (int k = 0; k < n; k++) {
    const size_t place = size_t(draws.index + growth.depth[nodes[k]]);
    const int token = place < text_.size() ? text_[place] : -1;
    count[k] = follows(growth, nodes[k], draws, token);
    if (count[k]) candidates[size_t(k) * size_t(width)] = {token, 1};
  }
}

// Asks the drafter for what follows a node, and counts it. Whether the token (-1: the text ends) is to be proposed.
bool Forced::follows(const Growth& growth, int node, const Draws& draws, int token) {
  int found = 0, rank = 0;
  Stopwatch watch;
  drafter.expand(growth, &node, 1, counts_.ranks, draws, guesses_.data(), &found);
  counts_.seconds.push_back(watch.lap());
  if (token < 0) return false;
  while (rank < found && guesses_[size_t(rank)].token != token) rank++;
  const size_t depth = size_t(growth.depth[node]);  // below that of the counts
  counts_.seen[depth]++;
  counts_.silent[depth] += found == 0;
  if (rank < found) counts_.right[depth * size_t(counts_.ranks) + size_t(rank)]++;
  return (rank < found ? rank : counts_.ranks) < kFollowed;
}

}  // namespace nanospec
