// tests/tenth.h: how much to run, and of a long sweep that is cut, which cases.
//
// `make prove` runs all. `make test` runs a tenth or so, drawn anew in each run, so that nothing is left out for good.
// The draw is a function of NANOSPEC_SEED: main.cpp sets it where nobody has, says it first, and with what failed
// again. Tests of statistics and of speed keep seeds of their own: their bounds hold for these.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace nanospec {

// Whether tests of many repeats are to run a tenth of them: always, but for `make prove`.
inline bool a_tenth() {
  const char* asked = std::getenv("NANOSPEC_PROVE");
  return !asked || std::string(asked) != "1";
}

// Whether the longest of them are to run a sixtieth or so: under AddressSanitizer, which asks about memory, not
// statistics.
inline bool a_sixtieth() {
#ifdef SANITIZED
  return a_tenth();
#else
  return false;
#endif
}

// What this run draws by. All of it (`make prove`) is the same in each run.
inline uint64_t sweep_seed() {
  const char* seed = std::getenv("NANOSPEC_SEED");
  return a_tenth() && seed ? std::strtoull(seed, nullptr, 10) : 0;
}

// Whether the nth case is drawn: of each `of` cases, in their order, one is.
inline bool drawn(size_t nth, size_t of) {
  uint64_t x = (sweep_seed() + 1) * 0x9E3779B97F4A7C15 + nth / of * 0xD1B54A32D192ED03;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;  // splitmix64
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return (x ^ x >> 31) % of == nth % of;
}

// Whether a sweep runs its nth case: all of them, or of each `of` the one that is drawn.
inline bool runs(size_t nth, size_t of = 10) { return !a_tenth() || drawn(nth, of); }

}  // namespace nanospec
