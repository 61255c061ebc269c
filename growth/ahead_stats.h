// growth/ahead_stats.h: the setting and the counts of drafting while the target verifies (ahead.h).
#pragma once

#include <cstdint>

#include "files/words.h"

namespace nanospec {

enum class Ahead { kOff, kOn, kAuto };  // auto: where it is faster, as ABTest (trust.h) measures

// Reads off, on or auto. Throws std::invalid_argument.
inline Ahead parse_ahead(const std::string& word) {
  const std::vector<std::string> known = {"off", "on", "auto"};
  return Ahead(place_of("way of drafting ahead", word, word, "--ahead", known, known));
}

struct AheadStats {
  bool wanted = false, able = false;   // whether it was asked for, and whether the drafter can
  double gain = 0;                     // auto: the speed with it over the speed without; 0: not known
  int64_t forwards = 0;                // of the target while the worker drafted
  int64_t outcomes = 0, cut = 0;       // trees that were drafted ahead; trees that the verdict interrupted
  int64_t hits = 0, misses = 0;        // iterations whose tree had been drafted ahead, or had not
  double seconds_saved = 0;            // that the worker took for the trees of hits
  double seconds_waited = 0;           // for the worker, after the verdict
  double forward_seconds = 0;          // of `forwards`
  int64_t forwards_without = 0;        // of the target while the worker was idle
  double forward_seconds_without = 0;  // of those

  double hit_rate() const { return hits + misses > 0 ? double(hits) / double(hits + misses) : 0; }
  double fan_out() const { return forwards > 0 ? double(outcomes) / double(forwards) : 0; }  // trees for each forward
  // How many times as long a forward takes while the worker drafts; 0: not known.
  double contention() const {
    if (forwards == 0 || forwards_without == 0 || !(forward_seconds_without > 0)) return 0;
    return forward_seconds / double(forwards) / (forward_seconds_without / double(forwards_without));
  }
};

inline void add(AheadStats& sum, const AheadStats& part) {
  sum.wanted |= part.wanted;
  sum.able |= part.able;
  sum.gain = part.gain;
  for (auto count : {&AheadStats::forwards, &AheadStats::outcomes, &AheadStats::cut, &AheadStats::hits,
                     &AheadStats::misses, &AheadStats::forwards_without})
    sum.*count += part.*count;
  for (auto seconds : {&AheadStats::seconds_saved, &AheadStats::seconds_waited, &AheadStats::forward_seconds,
                       &AheadStats::forward_seconds_without})
    sum.*seconds += part.*seconds;
}

}  // namespace nanospec
