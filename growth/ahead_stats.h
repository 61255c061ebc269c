// growth/ahead_stats.h: what is asked for and counted of drafting while the target verifies (ahead.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "files/words.h"

namespace nanospec {

enum class Ahead { kOff, kOn, kAuto };  // auto: where it pays, by Duel (trust.h)

// Reads off, on or auto. Throws invalid_argument.
inline Ahead parse_ahead(const std::string& word) {
  const std::vector<std::string> known = {"off", "on", "auto"};
  const auto at = std::find(known.begin(), known.end(), word);
  if (at == known.end()) refuse_word("way of drafting ahead", word, "--ahead", closest_word(word, known), known);
  return Ahead(at - known.begin());
}

struct AheadStats {
  bool wanted = false, able = false;   // whether it was asked for, and the drafter can
  double gain = 0;                     // auto: the speed with it over that without; 0: not known
  int64_t passes = 0;                  // of the target with the worker at work
  int64_t outcomes = 0, cut = 0;       // trees drafted ahead; others, which the verdict cut short
  int64_t hits = 0, misses = 0;        // next passes whose tree was there, or was not
  double seconds_saved = 0;            // that the trees of hits took the worker
  double seconds_waited = 0;           // for the worker, after the verdict
  double forward_seconds = 0;          // of those passes
  int64_t passes_without = 0;          // with the worker at rest
  double forward_seconds_without = 0;  // of these

  double hit_rate() const { return hits + misses > 0 ? double(hits) / double(hits + misses) : 0; }
  double fan_out() const { return passes > 0 ? double(outcomes) / double(passes) : 0; }  // trees a pass
  // How many times as long a forward takes while the worker drafts; 0: not known.
  double contention() const {
    if (passes == 0 || passes_without == 0 || !(forward_seconds_without > 0)) return 0;
    return forward_seconds / double(passes) / (forward_seconds_without / double(passes_without));
  }
};

inline void count_forward(AheadStats& stats, bool at_work, double seconds) {
  if (at_work) stats.forward_seconds += seconds;
  else stats.passes_without++, stats.forward_seconds_without += seconds;
}

inline void add(AheadStats& sum, const AheadStats& part) {
  sum.wanted |= part.wanted, sum.able |= part.able, sum.gain = part.gain;
  sum.passes += part.passes, sum.outcomes += part.outcomes, sum.cut += part.cut;
  sum.hits += part.hits, sum.misses += part.misses;
  sum.seconds_saved += part.seconds_saved, sum.seconds_waited += part.seconds_waited;
  sum.forward_seconds += part.forward_seconds, sum.passes_without += part.passes_without;
  sum.forward_seconds_without += part.forward_seconds_without;
}

}  // namespace nanospec
