// study/roofline.h: what this machine can do at most: how fast it reads from each level of memory, how many
// multiply-adds it makes a second (Williams, Waterman, Patterson 2009). Measured on the spot, cached nowhere.
//
// In order: the machine's facts; which level of memory holds so many bytes; the measurement.
#pragma once

#include "growth/clock.h"
#include "machine/launch.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The machine

struct Caches {
  double l2 = 0, l3 = 0;  // bytes: L2 that one thread has to itself; L3 of all CPUs together
  bool assumed = false;   // the system did not tell
};

struct Machine {
  std::string cpu, simd, compiler, date;  // date: UTC, ISO 8601
  int threads = 1;                        // that this process may use
  Caches caches;
};

Machine this_machine();

// How many numbers a list of the kernel names: "0-3,8" has 5. 0 where it is none.
int listed_cpus(const std::string& list);

// ---------------------------------------------------------------------------------------------------------------
// Levels of memory

enum class Level { kL2, kL3, kMemory };
constexpr Level kLevels[] = {Level::kL2, Level::kL3, Level::kMemory};
const char* level_name(Level level);  // "L2", "L3", "memory"

// The nearest level that holds `bytes`, read again and again by `threads` threads, each its share.
Level level_of(double bytes, int threads, const Caches& caches);

// ---------------------------------------------------------------------------------------------------------------
// The measurement

// Bytes, or floating-point operations (a multiply-add is two), in a second: one entry a run.
struct Rates {
  std::vector<double> one, all;  // with one thread, with all
};

struct Roofline {
  int threads = 1;  // what "all" means
  Rates read[3];    // by Level
  double working_set[3] = {0, 0, 0};
  Rates fp32;

  // Medians, with all threads.
  double bandwidth(Level level) const { return median(read[int(level)].all); }
  double peak() const { return median(fp32.all); }
};

// The least time of some work: it must read its bytes, and it must multiply.
struct Bound {
  double seconds = 0;
  bool computes = false;  // whether multiplying takes longer
};
inline Bound bound_of(double bytes, double flops, double bandwidth, double peak) {
  const double reading = bytes / bandwidth, computing = flops / peak;
  return {std::max(computing, reading), computing > reading};
}

// What is read to measure a level: half a cache, which leaves room for what else is in it; four times L3, as long as
// that is not too much.
constexpr double kMostRoofBytes = 900e6;
double working_set(Level level, int readers, const Caches& caches, double available);

// Takes about a second for seven runs; none but the first begins where it would end after most_seconds. `working`
// is called before each run with the share that is done; when it returns false, the measurement ends with the runs that
// it has. Throws std::bad_alloc.
Roofline measure_roofline(const Machine& machine, int threads, int runs, const std::function<bool(double)>& working,
                          double most_seconds = 4);

// Reads memory of its own again and again: the yardstick of whoever reads as many bytes.
class Reader {
 public:
  Reader(double most_bytes, int threads);  // throws std::bad_alloc
  // One run of some ten milliseconds: every thread reads its share of `bytes`, or the caller's reads all of it alone.
  double bytes_per_second(double bytes, bool alone = false);

 private:
  Pool pool_;
  std::vector<Array<float>> data_;  // each thread's own
};

}  // namespace nanospec
