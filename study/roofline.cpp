// study/roofline.cpp: see roofline.h.
#include "study/roofline.h"

#include <fstream>

#include "files/words.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The machine

namespace {

// The first line of a file that begins so; "" where there is none.
std::string line_of(const std::string& path, const std::string& begin = "") {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.compare(0, begin.size(), begin) == 0) return line;
  return "";
}

// A cache's bytes over the CPUs that share it: the first CPU's of this level, as the kernel describes it, or as the C
// library knows it, or else `otherwise`.
double cache_share(int level, long known_as, int cpus, double otherwise, bool& assumed) {
  const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(level) + "/";  // 0, 1: L1
  const double bytes = 1024.0 * double(system_number((folder + "size").c_str(), "", 0));
  if (bytes > 0) return bytes / std::max(1, listed_cpus(line_of(folder + "shared_cpu_list")));
  const double told = double(sysconf(known_as));
  assumed = assumed || told <= 0;
  return (told > 0 ? told : otherwise) / cpus;
}

Caches caches_of(int threads) {
  Caches caches;
  caches.l2 = cache_share(2, _SC_LEVEL2_CACHE_SIZE, 1, double(1 << 20), caches.assumed);
  const int sharing = std::max(1, listed_cpus(line_of("/sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list")));
  const int all = sharing > 1 ? (threads + sharing - 1) / sharing * sharing : threads;
  caches.l3 = all * cache_share(3, _SC_LEVEL3_CACHE_SIZE, threads, double(32 << 20), caches.assumed);
  return caches;
}

std::string cpu_name() {
  const std::string line = line_of("/proc/cpuinfo", "model name");
  const size_t colon = line.find(": ");
  return colon == std::string::npos ? "unknown CPU" : line.substr(colon + 2);
}

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  char text[32];
  strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&seconds));
  return text;
}

}  // namespace

int listed_cpus(const std::string& list) {
  int count = 0;
  for (const std::string& range : split_at(list, ',')) {
    int from = 0, to = 0;
    const int read = sscanf(range.c_str(), "%d-%d", &from, &to);
    if (read >= 1) count += read == 2 ? std::max(0, to - from + 1) : 1;
  }
  return count;
}

Machine this_machine() {
#if defined(__clang__)
  const std::string compiler = __VERSION__;
#else
  const std::string compiler = std::string("g++ ") + __VERSION__;
#endif
  const int threads = usable_cores();
  return {cpu_name(), kSimd, compiler, now(), threads, caches_of(threads)};
}

// ---------------------------------------------------------------------------------------------------------------
// Levels of memory

const char* level_name(Level level) { return level == Level::kL2 ? "L2" : level == Level::kL3 ? "L3" : "memory"; }

Level level_of(double bytes, int threads, const Caches& caches) {
  if (bytes <= caches.l2 * threads) return Level::kL2;
  return bytes <= caches.l3 ? Level::kL3 : Level::kMemory;
}

// ---------------------------------------------------------------------------------------------------------------
// Reading

namespace {

constexpr double kRunSeconds = 0.012;  // long beside a barrier, short beside a second
volatile float sink;                   // what is written here had to be computed

// One number that depends on all of them.
float total(const Vec* vectors, int n) {
  float sum = 0, lanes[Vec::width];
  for (int i = 0; i < n; i++) {
    store(lanes, vectors[i]);
    for (float lane : lanes) sum += lane;
  }
  return sum;
}

// Reads n floats: their sum, in as many chains as hide the latency of an addition. Far levels are read faster with a
// prefetch, so many cache lines ahead; near ones without.
constexpr int kChains = 8, kLine = 16, kAhead = 32;
constexpr size_t kStride = size_t(kChains) * Vec::width;
template <bool prefetched>
float read_all(const float* data, size_t n) {
  const Vec one = 1.0f;
  Vec sum[kChains];
  for (Vec& s : sum) s = 0.0f;
  for (size_t i = 0; i + kStride <= n; i += kStride) {
    UNROLL
    for (int c = 0; c < kChains; c++) {
      const float* p = data + i + size_t(c) * Vec::width;
      if (prefetched && c * Vec::width % kLine == 0) __builtin_prefetch(p + kAhead * kLine);
      sum[c] = fused(load(p), one, sum[c]);
    }
  }
  return total(sum, kChains);
}

}  // namespace

Reader::Reader(double most_bytes, int threads) : pool_(threads), data_(size_t(threads)) {
  const size_t each = size_t(most_bytes / threads) / sizeof(float) + kStride;
  for (Array<float>& its : data_) its = Array<float>(each);
  // Written, or they take no memory; each by its reader, so that it lies near.
  pool_.run([&](const Team& team) { std::fill_n(data_[size_t(team.rank)].data(), each, 0.0f); });
}

double Reader::bytes_per_second(double bytes, bool alone) {
  const int threads = pool_.size();
  const size_t floats = std::max<size_t>(size_t(bytes / threads) / sizeof(float) / kStride, 1) * kStride;
  const auto run = [&](float (*read)(const float*, size_t), long sweeps) {
    Stopwatch watch;
    auto sweep = [&](const Team& team) {
      float sum = 0;
      const Range shares = team.share(threads);  // one each, or all
      for (long i = 0; i < sweeps; i++) {
        for (int k = shares.begin; k < shares.end; k++) sum += read(data_[size_t(k)].data(), floats);
        asm volatile("" ::: "memory");  // for all that the compiler knows, the next sweep may find other numbers
      }
      sink = sum;
    };
    pool_.run(sweep, alone);
    return watch.lap();
  };
  const double once = run(read_all<true>, 1);  // brings it near, too
  const long sweeps = std::max(1L, long(kRunSeconds / std::max(once, 1e-7)));
  const double fastest = std::min(run(read_all<true>, sweeps), run(read_all<false>, sweeps));
  return double(floats * sizeof(float)) * threads * double(sweeps) / fastest;
}

// ---------------------------------------------------------------------------------------------------------------
// Multiplying

namespace {

// Each does `steps` rounds of kSums multiply-adds that wait for nothing but their own last, and returns a number that
// depends on all. Twelve hide the latency of two units, and every compiler keeps so many in registers.
constexpr int kSums = 12;
float multiply(long steps, const float* data) {
  const Vec a = load(data), b = load(data + Vec::width);
  Vec sum[kSums];
  for (Vec& s : sum) s = a;
  for (long i = 0; i < steps; i++) {
    UNROLL
    for (int c = 0; c < kSums; c++) sum[c] = fused(a, b, sum[c]);
  }
  return total(sum, kSums);
}

// Operations a second, one run.
double flops(Pool& pool) {
  alignas(64) float data[2 * Vec::width];
  for (float& x : data) x = 1e-3f;
  const auto run = [&](long steps) {
    Stopwatch watch;
    pool.run([&](const Team&) { sink = multiply(steps, data); });
    return watch.lap();
  };
  const double some = run(2000);
  const long steps = std::max(2000L, long(2000 * kRunSeconds / std::max(some, 1e-6)));
  return 2.0 * kSums * Vec::width * pool.size() * double(steps) / run(steps);
}

}  // namespace

double working_set(Level level, int readers, const Caches& caches, double available) {
  const double most = std::min(available / 8, kMostRoofBytes);
  if (level == Level::kMemory) return std::min(most, std::max(4 * caches.l3, double(128 << 20)));
  return std::min(most, level == Level::kL3 ? caches.l3 / 2 : caches.l2 / 2 * readers);
}

Roofline measure_roofline(const Machine& machine, int threads, int runs, const std::function<bool(double)>& working,
                          double most_seconds) {
  Roofline r;
  r.threads = threads;
  const double available = double(available_bytes());
  const auto set_of = [&](Level level, int readers) { return working_set(level, readers, machine.caches, available); };
  double most = 0;  // bytes of a set
  for (Level level : kLevels) most = std::max(most, r.working_set[int(level)] = set_of(level, threads));

  Stopwatch watch;
  Reader reader(most, threads);  // one thread reads what all do: twice the memory would tell no more
  Pool single(1), team(threads);
  const auto measure = [&](Rates& rates, const std::function<double(bool)>& rate) {
    rates.one.push_back(rate(false));
    rates.all.push_back(threads > 1 ? rate(true) : rates.one.back());
  };
  double spent = watch.lap(), longest = 0;  // longest: of a run
  for (int run = 0; run < runs && working(double(run) / runs); run++) {
    if (run > 0 && spent + longest > most_seconds) break;
    for (Level level : kLevels)
      measure(r.read[int(level)],
              [&](bool every) { return reader.bytes_per_second(set_of(level, every ? threads : 1), !every); });
    measure(r.fp32, [&](bool every) { return flops(every ? team : single); });
    const double taken = watch.lap();
    spent += taken;
    longest = std::max(longest, taken);
  }
  return r;
}

}  // namespace nanospec
