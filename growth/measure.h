// growth/measure.h: measures the cost of a target's forwards, at load.
#pragma once

#include "cuda/whole.h"
#include "growth/clock.h"

namespace nanospec {

// A root and n children. To run, it costs as much as any tree of n nodes.
inline Tree star(int n) {
  Growth growth;
  Tree tree;
  growth.start(0);
  for (int i = 0; i < n; i++) growth.add(0, {0, 1});
  flatten(growth, tree);
  return tree;
}

// Seconds of a target forward of N + 1 rows, N = 0 .. budget, for Cost to start from; of a whole iteration, if the
// target runs those. Medians are measured at every N up to 16 and at growing steps after that; between them lie
// straight lines. It takes about `seconds`, if a forward takes a few hundredths of that at most. For a slower model
// only the first sizes are measured. The other sizes, and those beyond the window, lie on the same lines. The past is
// short: a long one would take more time to measure, and later forwards show what it costs. Forgets the target's cache.
template <class Target, class Watch = Stopwatch>
std::vector<double> measure_cost(Target& target, int budget, double seconds = 0.15, Watch watch = {}) {
  constexpr int kPast = 32, kRounds = 9;
  const int block = target.block_size(), past = std::min({kPast, block * 3 / 4, block - 2});
  const int most = std::min(budget, block - 1);
  std::vector<int> sizes = {0, std::min(7, most), 15, 3, 1, 31, 5, 2, 11, 4, most, 6, 8, 9, 10, 12, 13, 14, 16};
  for (int n = 20; n < most; n += n / 4) sizes.push_back(n);  // the most useful sizes come first
  std::vector<std::vector<double>> times(most + 1);
  double spent = 0;
  const std::vector<int> zeros(past, 0);
  const auto measure = [&](int n) {
    const Tree tree = star(n);
    watch.lap();
    if constexpr (Iterates<Target>::value)
      if (target.iterates()) {  // the first two iterations of a size may be slower: they launch, and record a graph
        for (int run = times[n].empty() ? 0 : 2; run < 3; run++) {
          if (target.past() > std::min(past + kPast, block - 2)) target.prefill(zeros.data(), past);
          spent += watch.lap();
          target.iterate(tree, Sampling(), 0);
        }
      }
    if (!iterates(target)) target.forward(tree.token.data(), tree.depth.data(), tree.end.data(), tree.size());
    times[n].push_back(watch.lap());
    spent += times[n].back();
  };
  watch.lap();
  target.prefill(zeros.data(), past);
  spent += watch.lap();
  measure(0);  // warms up
  times[0].clear();
  for (int round = 0; round < kRounds; round++)
    for (size_t k = 0; k < sizes.size(); k++)
      if (sizes[k] <= most && (spent < seconds || (round == 0 && k < 2))) measure(sizes[k]);

  std::vector<double> cost(budget + 1, 0);
  int last = -1;  // the last size measured
  double slope = 0;
  for (int n = 0; n <= budget; n++) {
    if (n > most || times[n].empty()) continue;
    cost[n] = median(times[n]);
    if (last >= 0) slope = std::max(0.0, (cost[n] - cost[last]) / (n - last));
    for (int between = last + 1; last >= 0 && between < n; between++)
      cost[between] = cost[last] + (cost[n] - cost[last]) * (between - last) / (n - last);
    last = n;
  }
  for (int n = last + 1; n <= budget; n++) cost[n] = cost[n - 1] + slope;
  return cost;
}

}  // namespace nanospec
