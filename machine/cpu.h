// machine/cpu.h: the CPU as a machine.
//
// In order: the pool of threads and the team that a piece of work sees; SIMD vectors; the register tile that every
// product here is made of; weights packed in panels, and the matmuls over them; tree attention, forward and backward.
// What a matmul and an attention must compute is said by the portable text in operations.h: these are its tuned twins,
// and tests hold them together, bit for bit where README promises it. Nothing here knows of models.
#pragma once

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sched.h>
#include <sys/mman.h>
#endif

#include "machine/numbers.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Threads

// A number that threads wait for: they spin for a moment, since what they wait for is most often near, and then sleep,
// so that a machine with other work to do gets on with that, and wakes them at once when the number changes.
class Signal {
 public:
  unsigned value() const { return value_.load(std::memory_order_acquire); }
  void raise() {
    value_.fetch_add(1);
    if (sleepers_.load() == 0) return;
    { std::lock_guard<std::mutex> lock(mutex_); }
    changed_.notify_all();
  }
  void wait_beyond(unsigned old) {
    for (int turns = 0; turns < 3000; turns++) {
      if (value() != old) return;
#if defined(__x86_64__)
      _mm_pause();
#endif
    }
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_++;
    changed_.wait(lock, [&] { return value_.load() != old; });
    sleepers_--;
  }

 private:
  alignas(64) std::atomic<unsigned> value_{0};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

// All threads of a team leave it when the last one has come.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void wait() {
    const unsigned round = round_.value();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.raise();
    } else {
      round_.wait_beyond(round);
    }
  }

 private:
  const int threads_;
  alignas(64) std::atomic<int> arrived_{0};
  Signal round_;
};

struct Range {
  int begin, end;
};

// What one thread knows of the team that runs a piece of work: every thread runs the same text (SPMD) on its share.
// On a GPU the team is the one host thread that launches kernels, and `cuda` is set.
struct Team {
  int rank = 0, size = 1;
  Barrier* barrier = nullptr;
  bool cuda = false;

  void wait() const {
    if (size > 1) barrier->wait();
  }
  // This thread's part of 0..n, cut at multiples of `unit`. No result depends on where the cuts are.
  Range share(int n, int unit = 1) const {
    const long units = (n + unit - 1) / unit;
    const int begin = int(units * rank / size) * unit, end = int(units * (rank + 1) / size) * unit;
    return {smaller(begin, n), smaller(end, n)};
  }
};

// Moves the calling thread to the rank-th CPU after `home`, of those that it may use; from there it may be moved again.
// A thread starts on its maker's CPU, and where CPUs share no cache, Linux can leave it there for good: a team that
// takes turns on one CPU, a hundred times slower. Does nothing where it cannot be done.
inline void leave_home(int rank, int home) {
#if defined(__linux__)
  cpu_set_t all, one;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  std::vector<int> cpus;
  int at = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &all)) {
      if (cpu == home) at = int(cpus.size());
      cpus.push_back(cpu);
    }
  if (cpus.empty()) return;
  CPU_ZERO(&one);
  CPU_SET(cpus[size_t(at + rank) % cpus.size()], &one);
  sched_setaffinity(0, sizeof one, &one);
  sched_setaffinity(0, sizeof all, &all);
#else
  (void)rank, (void)home;
#endif
}
// From now on the calling thread, when it wakes, waits for a free core, and takes no other thread's.
inline void give_way() {
#if defined(__linux__)
  const sched_param none{};
  sched_setscheduler(0, SCHED_BATCH, &none);  // where that fails, it is only less polite
#endif
}
inline int current_cpu() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return 0;
#endif
}

// A fixed set of threads that wait for work.
class Pool {
 public:
  // On a GPU the team is one host thread.
  explicit Pool(int threads, bool cuda = false)
      : size_(cuda ? 1 : larger(1, threads)), cuda_(cuda), start_(size_), end_(size_) {
    const int home = current_cpu();
    for (int rank = 1; rank < size_; rank++)
      workers_.emplace_back([this, rank, home] {
        leave_home(rank, home);
        work(rank);
      });
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    call_ = nullptr;
    if (size_ > 1) start_.wait();
    for (auto& worker : workers_) worker.join();
  }
  int size() const { return size_; }
  bool cuda() const { return cuda_; }

  // Calls f(team) on every thread, the caller's among them, or on the caller's `alone`; returns when all have returned.
  // f must not throw where the team has more than one thread.
  template <class F>
  void run(F&& f, bool alone = false) {
    if (size_ == 1 || alone) {
      f(Team{0, 1, nullptr, cuda_});
      return;
    }
    context_ = &f;
    call_ = [](void* context, const Team& team) { (*static_cast<std::remove_reference_t<F>*>(context))(team); };
    start_.wait();
    f(Team{0, size_, &end_, false});
    end_.wait();
  }

 private:
  void work(int rank) {
    for (;;) {
      start_.wait();
      if (!call_) return;
      call_(context_, Team{rank, size_, &end_, false});
      end_.wait();
    }
  }

  const int size_;
  const bool cuda_;
  Barrier start_, end_;  // a team's own barriers are rounds of end_ before its last
  void (*call_)(void*, const Team&) = nullptr;
  void* context_ = nullptr;
  std::vector<std::thread> workers_;
};

// Bytes that can be had without ending another process or this one: Linux promises memory that it does not have, and
// kills who then touches it. SIZE_MAX where it cannot be known.
inline size_t available_bytes() {
  size_t kilobytes = SIZE_MAX >> 10;
  if (FILE* file = fopen("/proc/meminfo", "r")) {
    char line[128];
    while (fgets(line, sizeof line, file))
      if (sscanf(line, "MemAvailable: %zu kB", &kilobytes) == 1) break;
    fclose(file);
  }
  return kilobytes << 10;
}

// Zeroed memory on a cache line's boundary, in huge pages where it is large and the system has them.
// Throws std::bad_alloc.
inline void* allocate_zeroed(size_t bytes) {
  const size_t huge = size_t(2) << 20, align = bytes >= huge ? huge : 64;
  if (bytes > SIZE_MAX - align) throw std::bad_alloc();
  bytes = (bytes + align - 1) / align * align;
  constexpr size_t large = size_t(256) << 20;  // smaller ones are not worth the question
  if (bytes > large && bytes > available_bytes()) throw std::bad_alloc();
  void* p = std::aligned_alloc(align, larger(bytes, align));
  if (!p) throw std::bad_alloc();
#if defined(__linux__)
  if (align == huge) madvise(p, bytes, MADV_HUGEPAGE);
#endif
  memset(p, 0, bytes);
  return p;
}

// Memory of one thread's own, grown when more is asked for; its content is not kept.
inline float* scratch(size_t floats) {
  struct Block {
    float* data = nullptr;
    size_t floats = 0;
    ~Block() { std::free(data); }
  };
  static thread_local Block block;
  if (floats > block.floats) {
    std::free(block.data);
    block.data = nullptr;
    block.floats = 0;
    block.data = static_cast<float*>(allocate_zeroed(floats * sizeof(float)));
    block.floats = floats;
  }
  return block.data;
}

// ---------------------------------------------------------------------------------------------------------------
// SIMD vectors of floats: as wide as the machine that this build is for

#if defined(__AVX512F__)
struct Vec {
  static constexpr int width = 16, registers = 32;
  __m512 v;
};
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Vec broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline void store(float* p, Vec x) { _mm512_storeu_ps(p, x.v); }
inline Vec fused(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
constexpr __mmask16 kAllLanes = 0xffff;  // the unmasked forms make g++ 12 warn of its own header
inline Vec low_halves(Vec x) {
  return {_mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAllLanes, _mm512_castps_si512(x.v), 16))};
}
inline Vec high_halves(Vec x) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x.v), _mm512_set1_epi32(int(0xffff0000))))};
}
constexpr const char* kSimd = "AVX-512";
#elif defined(__AVX2__) && defined(__FMA__)
struct Vec {
  static constexpr int width = 8, registers = 16;
  __m256 v;
};
inline Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline Vec broadcast(float x) { return {_mm256_set1_ps(x)}; }
inline void store(float* p, Vec x) { _mm256_storeu_ps(p, x.v); }
inline Vec fused(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec low_halves(Vec x) { return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x.v), 16))}; }
inline Vec high_halves(Vec x) { return {_mm256_and_ps(x.v, _mm256_castsi256_ps(_mm256_set1_epi32(int(0xffff0000))))}; }
constexpr const char* kSimd = "AVX2";
#else
struct Vec {  // portable text: four floats that a compiler puts in one register where it has such
  static constexpr int width = 4, registers = 16;
  float v[4];
};
inline Vec load(const float* p) { return {{p[0], p[1], p[2], p[3]}}; }
inline Vec broadcast(float x) { return {{x, x, x, x}}; }
inline void store(float* p, Vec x) { memcpy(p, x.v, sizeof x.v); }
inline Vec fused(Vec a, Vec b, Vec c) {
  Vec r;
  for (int l = 0; l < 4; l++) r.v[l] = fused(a.v[l], b.v[l], c.v[l]);
  return r;
}
inline Vec low_halves(Vec x) {
  for (float& lane : x.v) lane = bits_as<float>(bits_as<uint32_t>(lane) << 16);
  return x;
}
inline Vec high_halves(Vec x) {
  for (float& lane : x.v) lane = bits_as<float>(bits_as<uint32_t>(lane) & 0xffff0000u);
  return x;
}
constexpr const char* kSimd = "portable";
#endif

// One vector's worth of memory, and the numbers of one step of k in it: a float fills a lane; of two bf16 side by side
// the first is the lower half (in memory, and so in the register), and either becomes a float by a shift or a mask.
inline Vec load_lanes(const float* p) { return load(p); }
inline Vec load_lanes(const bf16* p) { return load(reinterpret_cast<const float*>(p)); }
template <class B, int step>
inline Vec numbers_of(Vec lanes) {
  if constexpr (kTogether<B> == 1) return lanes;
  else return step == 0 ? low_halves(lanes) : high_halves(lanes);
}

// ---------------------------------------------------------------------------------------------------------------
// The register tile: c (T, R vectors) = or += a (T, K) times b (K, R vectors), one serial sum over k for each output.
// T rows and R vectors change how many outputs are computed at once, never the order within one: an output has the
// same bits whatever tile it falls in, and whether its sum is run in one go or continued (`add`) over blocks of k.

constexpr int kGroup = 16;   // b's columns lie together in groups of 16; groups may lie apart
constexpr int kVectors = 4;  // of b in the widest tile
constexpr int kTileRows = Vec::registers == 32 ? 6 : 3;  // kVectors times as many sums stay in registers
constexpr int kTileColumns = kVectors * Vec::width;
constexpr int kLine = 64;  // bytes of a cache line

template <class B>
struct TileArguments {
  int k;
  const float* a;
  ptrdiff_t a_row, a_k;  // a[t][k] = a[t * a_row + k * a_k]
  const B* b;
  ptrdiff_t b_k, b_group;  // b[k][n] = b[k * b_k + (n / 16) * b_group + n % 16]; of bf16, two k lie side by side:
                           // b[k][n] = b[k / 2 * b_k + (n / 16) * b_group + n % 16 * 2 + k % 2]
  float* c;
  ptrdiff_t c_row;  // c[t][n] = c[t * c_row + n]
  bool add;
  const char* next = nullptr;  // what is fetched into L1 meanwhile, line after line
};

// acc (T, R vectors) += a[.][k] times what one step of k is in `lanes`.
template <class B, int step, int T, int R>
[[gnu::always_inline]] inline void multiply_add(Vec (&acc)[T][R], const Vec (&lanes)[R], const float* a,
                                                ptrdiff_t a_row) {
  Vec bv[R];
  UNROLL
  for (int r = 0; r < R; r++) bv[r] = numbers_of<B, step>(lanes[r]);
  UNROLL
  for (int t = 0; t < T; t++) {
    const Vec av = broadcast(a[t * a_row]);
    UNROLL
    for (int r = 0; r < R; r++) acc[t][r] = fused(av, bv[r], acc[t][r]);
  }
}

// S: the tiles that share the work of fetching; each asks for its part of as many bytes as it reads.
template <int T, int R, int S, class B>
inline void tile(const TileArguments<B>& s) {
  constexpr int width = Vec::width, lines = larger(1, R * width * int(sizeof(float)) / kLine / S);
  Vec acc[T][R];
  UNROLL
  for (int t = 0; t < T; t++) UNROLL
  for (int r = 0; r < R; r++) acc[t][r] = s.add ? load(s.c + t * s.c_row + r * width) : broadcast(0.0f);
  const B* b = s.b;
  const float* a = s.a;
  const char* next = s.next;
  for (int k = 0; k < s.k; k += kTogether<B>, b += s.b_k) {
    UNROLL
    for (int line = 0; line < lines; line++, next += kLine) __builtin_prefetch(next);
    Vec lanes[R];
    UNROLL
    for (int r = 0; r < R; r++)
      lanes[r] = load_lanes(b + (r * width / kGroup) * s.b_group + (r * width) % kGroup * kTogether<B>);
    multiply_add<B, 0>(acc, lanes, a, s.a_row);
    a += s.a_k;
    if constexpr (kTogether<B> == 2) {
      if (k + 1 == s.k) break;
      multiply_add<B, 1>(acc, lanes, a, s.a_row);
      a += s.a_k;
    }
  }
  UNROLL
  for (int t = 0; t < T; t++) UNROLL
  for (int r = 0; r < R; r++) store(s.c + t * s.c_row + r * width, acc[t][r]);
}

template <int R, int S, int T, class B>
inline void tile_of_rows(int rows, const TileArguments<B>& s) {
  if constexpr (T > 0) {
    if (rows == T) tile<T, R, S>(s);
    else tile_of_rows<R, S, T - 1>(rows, s);
  }
}
template <int S, int R, class B>
inline void tile_of_vectors(int rows, int vectors, const TileArguments<B>& s) {
  if constexpr (R > 0) {
    if (vectors == R) tile_of_rows<R, S, kTileRows>(rows, s);
    else tile_of_vectors<S, R - 1>(rows, vectors, s);
  }
}

// The tile for `rows` rows (at most kTileRows) and 1 to kVectors vectors, one of `sharers`.
template <class B>
inline void run_tile(int rows, int vectors, int sharers, const TileArguments<B>& s) {
  if (sharers == 1) return tile_of_vectors<1, kVectors>(rows, vectors, s);
  if (sharers < 4) return tile_of_vectors<2, kVectors>(rows, vectors, s);
  return tile_of_vectors<4, kVectors>(rows, vectors, s);
}

constexpr int kMostTiles = 4;    // that use one block of b in turn
constexpr int kBlockLines = 64;  // of kTileColumns lanes in such a block: 16 KB with AVX-512, 8 with AVX2
constexpr int kAhead = 48;       // how many such lines a lone tile fetches ahead

// c (rows, columns) = or += a times b for any number of rows and a multiple of 16 columns. Up to kTileRows rows are one
// tile, that sweeps over all k. More rows are several tiles, evenly tall, that take turns at each block of b while it
// is in L1 and fetch the next one together: b comes out of memory once, and while they compute.
template <class B>
inline void product(int rows, int columns, const TileArguments<B>& s) {
  constexpr int together = kTogether<B>;
  const bool apart = s.b_group != kGroup * together;
  for (int row = 0, chunk; row < rows; row += chunk) {
    chunk = smaller(rows - row, kMostTiles * kTileRows);
    const int tiles = (chunk + kTileRows - 1) / kTileRows;
    const int block = tiles == 1 || s.k <= 2 * kBlockLines * together ? s.k : kBlockLines * together;
    for (int column = 0; column < columns; column += kTileColumns) {
      const int vectors = smaller(kTileColumns, columns - column) / Vec::width;
      int k = 0;
      do {  // a sum of nothing is written too
        TileArguments<B> part = s;
        part.k = smaller(block, s.k - k);
        part.b = s.b + (column / kGroup) * s.b_group + k / together * s.b_k;
        part.add = s.add || k > 0;
        // What follows this block: more k, or, where groups lie apart, the next columns.
        const ptrdiff_t bytes = ptrdiff_t(sizeof(B)) * (apart ? kTileColumns / kGroup * s.b_group
                                                              : (tiles == 1 ? kAhead : part.k / together) * s.b_k);
        for (int i = 0; i < tiles; i++) {
          const int first = row + chunk * i / tiles, last = row + chunk * (i + 1) / tiles;
          part.a = s.a + first * s.a_row + k * s.a_k;
          part.c = s.c + first * s.c_row + column;
          part.next = reinterpret_cast<const char*>(part.b) + bytes + bytes * i / tiles;
          run_tile(last - first, vectors, tiles, part);
        }
        k += block;
      } while (k < s.k);
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Weights in panels

constexpr int kPanel = kTileColumns;  // outputs side by side in a panel: 64 with AVX-512
HD inline int pad16(int n) { return (n + 15) / 16 * 16; }
HD inline int pad64(int n) { return (n + 63) / 64 * 64; }

// A weight (K inputs, N outputs): for each panel of kPanel outputs (the last is narrower, a multiple of 16, filled with
// zeros) all k in turn, so that a sweep over k reads one stream; bf16 by pairs of k, as the tile wants them. N is what
// a row of the result holds, padded to 16.
// For a GPU (`cuda`) the panels are narrower, so that each lane's 16 bytes lie beside its neighbour's
// (cuda/matmul.cuh):
//   fp32: (N / 16, K, 16)
//   bf16: (N / 16, K / 16, 32 lanes, 8): what each lane of a warp holds of a 16 x 16 tile when tensor cores multiply it
// K too is filled up with zeros there, to a multiple of 16: Pack leaves them, so the memory comes zeroed.
template <class W>
struct Panels {
  W* data = nullptr;
  int k = 0, n = 0;
  bool cuda = false;
  // Where a library multiplies, there are no panels: the weight as it is stored, (k, n) at k * k_stride + n * n_stride.
  const W* stored = nullptr;
  size_t k_stride = 0, n_stride = 0;
  HD int lines() const { return (k + kTogether<W> - 1) / kTogether<W>; }  // steps of k, those side by side being one
  HD size_t size() const {
    if (cuda) return size_t(pad16(k)) * pad16(n);
    return size_t(lines()) * kTogether<W> * pad16(n);
  }
  HD int width(int column) const { return smaller(kPanel, pad16(n) - column / kPanel * kPanel); }
  HD W* at(int row, int column) const {
    if (cuda) return data + at_device(row, column);
    constexpr int together = kTogether<W>;
    const size_t panel = size_t(column / kPanel) * kPanel * lines();
    return data + (panel + size_t(row / together) * width(column) + column % kPanel) * together + row % together;
  }
  // The operand of mma (cuda/instructions.cuh) that is 16 outputs by 16 k. A sum may take its k in any order: the
  // tile's k = 4q .. 4q + 3 stand where the instruction has 2q, 2q + 1, 2q + 8, 2q + 9, so that they are lane (., q)'s,
  // and what it needs of a row of x is one float4.
  HD size_t at_device(int row, int column) const {
    if (sizeof(W) != 2) return (size_t(column / 16) * pad16(k) + row) * 16 + column % 16;
    const int lane = column % 8 * 4 + row % 16 / 4, number = row % 4 / 2 * 4 + column % 16 / 8 * 2 + row % 2;
    return (size_t(column / 16) * (pad16(k) / 16) + row / 16) * 256 + lane * 8 + number;
  }
};

constexpr int kBlockK = 512;  // a block of k that keeps panel and rows in L2 when there are many rows

// Columns `mine` (cut at multiples of kGroup) of out (rows, pad16(N)) = x (rows, K) times w; `after(row, begin, end)`
// then sees each row's finished columns while they are in cache.
template <class W, class After>
inline void matmul_twin(const Range& mine, int rows, const float* x, ptrdiff_t x_row, const Panels<W>& w, float* out,
                        ptrdiff_t out_row, const After& after) {
  const int block = rows > kMostTiles * kTileRows ? kBlockK : w.k;
  for (int begin = mine.begin; begin < mine.end;) {
    const int end = smaller(mine.end, begin / kPanel * kPanel + kPanel);
    for (int k = 0; k < w.k; k += block) {
      TileArguments<W> s;
      s.k = smaller(block, w.k - k);
      s.a = x + k, s.a_row = x_row, s.a_k = 1;
      s.b = w.at(k, begin), s.b_k = w.width(begin) * kTogether<W>, s.b_group = kGroup * kTogether<W>;
      s.c = out + begin, s.c_row = out_row;
      s.add = k > 0;
      product(rows, end - begin, s);
    }
    for (int row = 0; row < rows; row++) after(row, begin, smaller(end, w.n));
    begin = end;
  }
}

// dw (K, N) += x (rows, K) transposed times dy (rows, N), this thread's columns of it. Each panel of dy is copied
// together once a block of rows and serves all K outputs; x is read down its columns as it lies.
inline void matmul_gradient_twin(const Team& team, int rows, int inputs, int outputs, const float* x, ptrdiff_t x_row,
                                 const float* dy, ptrdiff_t dy_row, float* dw) {
  const Range mine = team.share(pad16(outputs), kGroup);
  constexpr int block = 256;
  float* panel = scratch(size_t(block + inputs) * kPanel);
  float* edge = panel + block * kPanel;  // (K, kPanel): the last panel's sums, where it hangs over N's edge
  for (int begin = mine.begin; begin < mine.end;) {
    const int end = smaller(mine.end, begin / kPanel * kPanel + kPanel), width = end - begin;
    const int whole = smaller(end, outputs) - begin;  // columns that exist
    float* sums = dw + begin;
    int sums_row = outputs;
    if (whole < width) {
      sums = edge, sums_row = width;
      for (int k = 0; k < inputs; k++)
        for (int n = 0; n < width; n++) edge[k * width + n] = n < whole ? dw[size_t(k) * outputs + begin + n] : 0.0f;
    }
    for (int row = 0; row < rows; row += block) {
      const int count = smaller(block, rows - row);
      for (int m = 0; m < count; m++) memcpy(panel + m * width, dy + (row + m) * dy_row + begin, sizeof(float) * width);
      TileArguments<float> s;
      s.k = count;
      s.a = x + row * x_row, s.a_row = 1, s.a_k = x_row;
      s.b = panel, s.b_k = width, s.b_group = kGroup;
      s.c = sums, s.c_row = sums_row;
      s.add = true;
      product(inputs, width, s);
    }
    if (whole < width)
      for (int k = 0; k < inputs; k++)
        memcpy(dw + size_t(k) * outputs + begin, edge + k * width, sizeof(float) * whole);
    begin = end;
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Tree attention. Rows of one pass belong to roots (a forest); a row sees its root's past and its own ancestors.

// The rows of one pass, in preorder, root after root. Arrays lie where the operation runs.
struct Forest {
  int rows = 0, roots = 0;
  const int* end = nullptr;         // (rows) one past the last row of the row's subtree
  const int* depth = nullptr;       // (rows) 0 for a root
  const int* root = nullptr;        // (rows) which root the row hangs from
  const int* first_row = nullptr;   // (roots + 1) where each root's rows begin
  const int* first_slot = nullptr;  // (roots) where its past begins in the cache: a multiple of 64
  const int* past = nullptr;        // (roots) keys that it sees there; its rows' own keys follow them

  // Ancestor or self, within one root: the whole tree mask.
  HD bool sees(int row, int ancestor) const { return ancestor <= row && row < end[ancestor]; }
  HD int position(int row) const { return past[root[row]] + depth[row]; }
  HD int slot(int row) const { return first_slot[root[row]] + past[root[row]] + row - first_row[root[row]]; }
};

// Dropout of one site (a place in the network where it is applied): keep(i) is 1 / (1 - rate) where element i stays,
// else 0, a pure function of seed, iteration, site and i.
struct Dropout {
  float rate = 0;
  uint64_t seed = 0;
  uint32_t iteration = 0, site = 0;
  template <class T>
  HD T keep(uint64_t i) const {
    if (rate == 0) return T(1);
    const uint32_t bits = uint32_t(random_bits(seed, iteration, kStreamDropout, i, site));
    return bits < uint32_t(double(rate) * 4294967296.0) ? T(0) : T(1) / (T(1) - T(rate));
  }
};

// Keys and values of all slots of one layer, head by head, as numbers of type S.
//   k: (n_kv_head, slots / 16, D, 16): sixteen keys side by side, so that one vector holds their scores
//   v: (n_kv_head, slots, pad16(D)): the value of a slot in one piece
// Of bf16, two steps of the sum that reads them lie side by side: k: (n_kv_head, slots / 16, D / 2, 16, 2), D rounded
// up, v: (n_kv_head, slots / 2, pad16(D), 2). It has the bytes of half as many floats, and is read by the same tile.
template <class S>
struct KeyValues {
  S *k = nullptr, *v = nullptr;
  int slots = 0, head_size = 0;
  static constexpr int together = kTogether<S>;
  HD static size_t key_numbers(int slots, int head_size) {  // of one head
    return size_t(slots) * ((head_size + together - 1) / together * together);
  }
  HD static size_t value_numbers(int slots, int head_size) { return size_t(slots) * pad16(head_size); }
  HD S* key(int head, int slot, int d) const {
    return k + head * key_numbers(slots, head_size) + key_numbers(slot / 16 * 16, head_size) +
           (d / together * 16 + slot % 16) * together + d % together;
  }
  HD S* value(int head, int slot, int d) const {
    return v + head * value_numbers(slots, head_size) + value_numbers(slot / together * together, head_size) +
           d * together + slot % together;
  }
};

template <class T, class S = T>
struct Attention {
  Forest forest;
  int n_head, n_kv_head, head_size;
  const T* qkv;  // (rows, qkv_row): C queries, then n_kv_head * D keys, then as many values
  int qkv_row;
  KeyValues<S> cache;  // the pass's own keys and values are written into it
  T* out;              // (rows, out_row)
  int out_row;
  T* log_sum;  // (rows, H) log of the sum of exp(scores), for the backward pass
  Dropout dropout;
  // So many first rows of each root were run by an earlier pass: their keys and values are in the cache, and nothing is
  // asked for them: no output, no gradient of their queries. What other rows give to their keys and values is added to
  // dk and dv, and left there, for that pass to read.
  int given = 0;

  HD int first_asked(int root) const { return forest.first_row[root] + given; }
  HD bool asked(int row) const { return row >= first_asked(forest.root[row]); }
  HD int queries() const { return n_head / n_kv_head; }  // query heads that share a key/value head
  HD T scale() const { return T(1) / square_root(T(head_size)); }
  HD T keep(int row, int head, int position) const {  // dropout of one attention weight
    return dropout.keep<T>((uint64_t(row) * n_head + head) << 20 | uint64_t(position));
  }
};

// The pass's keys and values of one root and one key/value head, into the cache.
template <class T, class S>
inline void write_cache(const Attention<T, S>& s, int root, int kv_head) {
  const int D = s.head_size;
  for (int row = s.first_asked(root); row < s.forest.first_row[root + 1]; row++) {
    const int slot = s.forest.slot(row);
    const T* k = s.qkv + size_t(row) * s.qkv_row + (s.n_head + kv_head) * D;
    const T* v = k + s.n_kv_head * D;
    for (int d = 0; d < D; d++) *s.cache.key(kv_head, slot, d) = rounded<S>(k[d]);
    for (int d = 0; d < D; d++) *s.cache.value(kv_head, slot, d) = rounded<S>(v[d]);
  }
}

// For each block of 16 keys of a root: one past the last row that sees one of them. Past keys are seen by every row.
inline void ends_of_blocks(const Forest& f, int root, int* ends) {
  const int first = f.first_row[root], last = f.first_row[root + 1], past = f.past[root];
  for (int key = 0; key < past + last - first; key += 16) {
    int end = key < past ? last : 0;
    for (int j = larger(key, past); j < smaller(key + 16, past + last - first); j++)
      end = larger(end, f.end[first + j - past]);
    ends[key / 16] = end;
  }
}
// f(begin, end) for each stretch of blocks that `row` or a later row sees, of those that hold a root's keys from..to-1.
template <class F>
inline void each_stretch(const int* ends, int from, int to, int row, const F& f) {
  for (int key = from / 16 * 16; key < to; key += 16) {
    if (ends[key / 16] <= row) continue;
    const int begin = key;
    while (key + 16 < to && ends[key / 16 + 1] > row) key += 16;
    f(begin, key + 16);
  }
}
// How many of a root's first keys every row from `row` to before `end` sees: the past, and ancestors of them all.
inline int shared_keys(const Forest& f, int root, int row, int end) {
  int j = f.first_row[root];
  while (j <= row && f.end[j] >= end) j++;
  return f.past[root] + j - f.first_row[root];
}

// One team member's share: whole (root, key/value head) pairs, keys written first. For a tile of rows, scores against
// all slots that one of them sees at once; then, row by row, the visible ones in order of position, their softmax; then
// the values, again in order of position: the keys that all of them see for the tile together, and the others row by
// row where they are not simply the rows before (a causal row: its depth equals its place).
template <class S>
inline void attention_twin(const Team& team, const Attention<float, S>& s) {
  const Forest& f = s.forest;
  const int D = s.head_size, wide = pad16(D);
  const Range mine = team.share(f.roots * s.n_kv_head);
  for (int task = mine.begin; task < mine.end; task++) {
    const int root = task / s.n_kv_head, kv_head = task % s.n_kv_head;
    const int first = f.first_row[root], last = f.first_row[root + 1], past = f.past[root], slot0 = f.first_slot[root];
    write_cache(s, root, kv_head);
    // Rows that share a past read it together; without one, small tiles waste least beyond the diagonal.
    constexpr int tallest = kMostTiles * kTileRows;
    const int tall = past + s.given > 0 ? tallest : kTileRows, most = pad64(past + last - first);
    float* scores = scratch(size_t(tall) * (most + wide) + most / 16);
    float* sums = scores + tall * most;  // (tall, wide)
    int* ends = reinterpret_cast<int*>(sums + tall * wide);
    ends_of_blocks(f, root, ends);
    const Solo solo;
    for (int head = kv_head * s.queries(); head < (kv_head + 1) * s.queries(); head++)
      for (int row = s.first_asked(root); row < last; row += tall) {
        const int rows = smaller(tall, last - row), keys = past + row + rows - first;
        each_stretch(ends, 0, keys, row, [&](int begin, int end) {
          TileArguments<S> qk;
          qk.k = D;
          qk.a = s.qkv + size_t(row) * s.qkv_row + head * D, qk.a_row = s.qkv_row, qk.a_k = 1;
          qk.b = s.cache.key(kv_head, slot0 + begin, 0), qk.b_k = 16 * kTogether<S>;
          qk.b_group = s.cache.key_numbers(16, D);
          qk.c = scores + begin, qk.c_row = most, qk.add = false;
          product(rows, end - begin, qk);
        });

        bool causal = true;
        for (int t = 0; t < rows; t++) causal = causal && f.depth[row + t] == row + t - first;
        const int shared = causal ? keys : shared_keys(f, root, row, row + rows);
        // act(key) for each key that the row sees beyond the shared ones, in order of position
        const auto each_other = [&](int its_row, const auto& act) {
          const int to = past + its_row - first + 1;
          each_stretch(ends, shared, to, row, [&](int begin, int end) {
            for (int key = larger(begin, shared); key < smaller(end, to); key++)
              if (its_row < f.end[first + key - past]) act(key);
          });
        };
        float total[tallest];
        for (int t = 0; t < rows; t++) {
          float* p = scores + t * most;
          int seen = causal ? past + row + t - first + 1 : shared;
          if (!causal) each_other(row + t, [&](int key) { p[seen++] = p[key]; });
          // Up to a whole number of vectors, what is not seen weighs nothing: a zero leaves a sum as it is.
          const int whole = smaller(most, ((causal ? keys : seen) + kLanes - 1) / kLanes * kLanes);
          for (int i = seen; i < whole; i++) p[i] = -Format<float>::kInfinity;
          const float scale = s.scale(), top = scale * solo.largest<float>(whole, [=](int i) { return p[i]; });
          solo.each(whole, [=](int i) { p[i] = exp(p[i] * scale - top); });
          total[t] = solo.sum<float>(whole, [=](int i) { return p[i]; });
          if (s.log_sum) s.log_sum[(row + t) * s.n_head + head] = top + log(total[t]);
          if (s.dropout.rate > 0)
            for (int i = 0; i < seen; i++) p[i] *= s.keep(row + t, head, i);
        }
        TileArguments<S> pv;
        pv.k = shared;
        pv.a = scores, pv.a_row = most, pv.a_k = 1;
        pv.b = s.cache.value(kv_head, slot0, 0), pv.b_k = wide * kTogether<S>, pv.b_group = kGroup * kTogether<S>;
        pv.c = sums, pv.c_row = wide, pv.add = false;
        product(rows, wide, pv);
        for (int t = 0; t < rows; t++) {
          float *sum = sums + t * wide, *o = s.out + size_t(row + t) * s.out_row + head * D;
          const float* p = scores + t * most + shared;
          if (!causal)
            each_other(row + t, [&](int key) {
              const float weight = *p++;
              const S* v = s.cache.value(kv_head, slot0 + key, 0);
              for (int d = 0; d < wide; d++) sum[d] = fused(weight, to_float(v[d * kTogether<S>]), sum[d]);
            });
          for (int d = 0; d < D; d++) o[d] = sum[d] / total[t] + 0.0f;  // + 0: a zero has one sign
        }
      }
  }
}

template <class T>
struct AttentionBackward {
  Attention<T> forward;
  const T* dout;  // (rows, out_row)
  T *dk, *dv;     // (n_kv_head, slots, pad16(D)) both, of every slot: rows and past; added into
  T* dqkv;        // (rows, qkv_row): the queries' part is written here, the rows' keys and values by the caller

  HD size_t at(int kv_head, int slot) const {
    return (size_t(kv_head) * forward.cache.slots + slot) * pad16(forward.head_size);
  }
};

// One team member's share of the gradients: whole (root, key/value head) pairs, so that no two threads add into the
// same sums. With P = softmax(S), S = scale Q K^T, dP = dO V^T and delta = rowsum(dO o O)
// (Dao et al. 2022, FlashAttention, appendix B):
//   dV = P^T dO,  dS = scale P o (dP - delta),  dQ = dS K,  dK = dS^T Q.
inline void attention_backward_twin(const Team& team, const AttentionBackward<float>& g) {
  constexpr int block = 48;  // rows at a time: bounds the scratch whatever the number of rows
  const Attention<float>& s = g.forward;
  const Forest& f = s.forest;
  const int D = s.head_size, wide = pad16(D);
  const float scale = s.scale();
  const Range mine = team.share(f.roots * s.n_kv_head);
  for (int task = mine.begin; task < mine.end; task++) {
    const int root = task / s.n_kv_head, kv_head = task % s.n_kv_head;
    const int first = f.first_row[root], last = f.first_row[root + 1], past = f.past[root], slot0 = f.first_slot[root];
    const int slots = past + last - first, most = pad64(slots);
    float* k = scratch(size_t(most) * (wide + D + 2 * block + 2) + size_t(block) * wide);  // (slots, wide)
    float* vt = k + size_t(most) * wide;                                                   // (slots / 16, D, 16)
    float* p = vt + size_t(most) * D;                                                      // (block, most)
    float* ds = p + size_t(block) * most;                                                  // (block, most)
    float* dq = ds + size_t(block) * most;                                                 // (block, wide)
    float* keeps = dq + size_t(block) * wide;                                              // (most) one row's dropout
    int* ends = reinterpret_cast<int*>(keeps + most);                                      // (slots / 16)
    ends_of_blocks(f, root, ends);
    for (int j = 0; j < most; j++)
      for (int d = 0; d < wide; d++) {
        k[j * wide + d] = d < D && j < slots ? *s.cache.key(kv_head, slot0 + j, d) : 0.0f;
        if (d < D) vt[(j / 16 * D + d) * 16 + j % 16] = j < slots ? *s.cache.value(kv_head, slot0 + j, d) : 0.0f;
      }
    for (int head = kv_head * s.queries(); head < (kv_head + 1) * s.queries(); head++)
      for (int row = s.first_asked(root); row < last; row += block) {
        const int rows = smaller(block, last - row), keys = past + row + rows - first;
        const int shared = shared_keys(f, root, row, row + rows);
        const float* q = s.qkv + size_t(row) * s.qkv_row + head * D;
        const float* dout = g.dout + size_t(row) * s.out_row + head * D;
        const auto each_seen = [&](const auto& act) { each_stretch(ends, 0, keys, row, act); };
        // P, from the scores and the saved log of their sum; dP beside it
        each_seen([&](int begin, int end) {
          const float* kt = s.cache.key(kv_head, slot0 + begin, 0);
          const float* v = vt + size_t(begin) * D;
          const int columns = end - begin;
          product(rows, columns, TileArguments<float>{D, q, s.qkv_row, 1, kt, 16, 16 * D, p + begin, most, false});
          product(rows, columns, TileArguments<float>{D, dout, s.out_row, 1, v, 16, 16 * D, ds + begin, most, false});
        });
        for (int t = 0; t < rows; t++) {
          const int i = row + t;
          const bool causal = f.depth[i] == i - first;
          const float* o = s.out + size_t(i) * s.out_row + head * D;
          const float *du = dout + t * s.out_row, log_sum = s.log_sum[i * s.n_head + head];
          const float delta = Solo{}.sum<float>(D, [=](int d) { return du[d] * o[d]; });
          const int seen = past + i - first + 1;
          float* kept = s.dropout.rate > 0 ? keeps : nullptr;
          each_seen([&](int begin, int end) {
            float *pt = p + size_t(t) * most, *dst = ds + size_t(t) * most;
            const auto each = [=](const auto& act) { Solo{}.each(end - begin, [=](int j) { act(begin + j); }); };
            each([=](int j) { pt[j] = exp(pt[j] * scale - log_sum); });
            for (int j = larger(begin, seen); j < end; j++) pt[j] = 0;
            if (!causal)
              for (int j = larger(begin, shared); j < smaller(end, seen); j++)
                if (!f.sees(i, first + j - past)) pt[j] = 0;
            for (int j = begin; kept && j < end; j++) {
              kept[j] = j < seen ? s.keep(i, head, j < past ? j : past + f.depth[first + j - past]) : 0.0f;
              dst[j] *= kept[j];
            }
            each([=](int j) { dst[j] = pt[j] * (dst[j] - delta) * scale; });
            for (int j = begin; kept && j < end; j++) pt[j] *= kept[j];
          });
        }
        // dQ, a sum over keys; and sums over rows, of which each key has its own
        each_seen([&](int begin, int end) {
          const float *dst = ds + begin, *pt = p + begin;
          const int columns = end - begin, real = smaller(end, slots) - begin;
          float *dk = g.dk + g.at(kv_head, slot0 + begin), *dv = g.dv + g.at(kv_head, slot0 + begin);
          const float* its_k = k + size_t(begin) * wide;
          product(rows, wide, TileArguments<float>{columns, dst, most, 1, its_k, wide, kGroup, dq, wide, begin > 0});
          product(real, wide, TileArguments<float>{rows, dst, 1, most, q, s.qkv_row, kGroup, dk, wide, true});
          product(real, wide, TileArguments<float>{rows, pt, 1, most, dout, s.out_row, kGroup, dv, wide, true});
        });
        for (int t = 0; t < rows; t++)
          memcpy(g.dqkv + size_t(row + t) * s.qkv_row + head * D, dq + t * wide, sizeof(float) * D);
      }
  }
}

}  // namespace nanospec
