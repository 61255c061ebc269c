// machine/threads.h: the CPU's threads and its memory.
//
// In order: how threads wait; who looks on; the team that a piece of work sees; cores, and on which of them threads
// run; the pool that runs a team, and when one thread is better; memory. It asks Linux, and nothing else. The file
// knows nothing of arrays, operations or models.
#pragma once

#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <typeinfo>
#include <utility>
#include <vector>

#include "machine/numbers.h"

namespace nanospec {

// A number that threads wait for. First they spin for a moment, since the number mostly changes soon. Then they sleep,
// so that other programs can use the core; they are woken when the number changes.
class Signal {
 public:
  static constexpr int kSpins = 3000;  // how often they look before they sleep

  unsigned value() const { return value_.load(std::memory_order_acquire); }
  void raise() {
    value_.fetch_add(1);
    if (sleepers_.load() == 0) return;
    { std::lock_guard<std::mutex> lock(mutex_); }  // not between a sleeper's last look and its sleep
    changed_.notify_all();
  }
  // Waits until the value is not `old`. Returns the new value.
  unsigned wait_beyond(unsigned old, int spins = kSpins) {
    for (; spins > 0; spins--) {
      if (const unsigned now = value(); now != old) return now;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    if (const unsigned now = value(); now != old) return now;
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_++;
    changed_.wait(lock, [&] { return value_.load() != old; });
    sleepers_--;
    return value();
  }

 private:
  alignas(64) std::atomic<unsigned> value_{0};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

// All threads of a team wait here until the last one has arrived.
class Barrier {
 public:
  Barrier(int threads, int spins) : threads_(threads), spins_(spins) {}
  void wait() {
    const unsigned round = round_.value();
    const int last = threads_ - 1;  // read before the others can go on
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == last) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.raise();
    } else {
      round_.wait_beyond(round, spins_);
    }
  }

 private:
  const int threads_, spins_;
  alignas(64) std::atomic<int> arrived_{0};
  Signal round_;
};

struct Range {
  int begin, end;
};

// Is told of each operation that begins on one thread: of its struct (kernels.cuh). So it may measure what takes how
// long, between two of them, and a test which versions run. Else nobody looks on.
struct Observer {
  virtual ~Observer() = default;
  virtual void begins(const std::type_info& type, const void* operation) = 0;
};
inline thread_local Observer* observer = nullptr;  // of the calling thread
template <class Op>
void tell(const Op& op) {
  if (observer) observer->begins(typeid(Op), &op);
}
struct Waiting {};  // of half a team, for the other half: an operation too, for who looks on
struct Zeros {};    // and so is zero()

// A team runs a piece of work: each of its threads runs the same code on its share (SPMD). On a GPU the team is the one
// host thread that launches kernels, and `cuda` is set. `plain`: for attention, gather and matmul it launches the
// kernels of kernels.cuh, not the tuned ones.
struct Team {
  int rank = 0, size = 1;
  Barrier* barrier = nullptr;
  bool cuda = false, plain = false;
  Barrier* half_barriers = nullptr;  // (2) of the team's halves, where it has any

  void wait() const {
    if (size > 1) barrier->wait();
  }
  // This thread's part of 0 .. n - 1, cut at multiples of `unit`. No result depends on the cuts.
  Range share(int n, int unit = 1) const {
    const long units = (n + unit - 1) / unit;
    const int begin = int(units * rank / size) * unit, end = int(units * (rank + 1) / size) * unit;
    return {smaller(begin, n), smaller(end, n)};
  }
  // Runs f(team, half) for half 0 and 1, which share nothing: each half of the team runs one of them, at the same time.
  // A team without halves runs one after the other.
  template <class F>
  void halves(const F& f) const {
    if (!half_barriers) {
      f(*this, 0);
      wait();
      f(*this, 1);
      return wait();
    }
    const int each = size / 2, half = rank / each;
    f(Team{rank % each, each, half_barriers + half}, half);
    tell(Waiting{});
    wait();
  }
};
constexpr int kRowsByKeys = 16;  // behind a long past threads may share the keys of a head for up to so many rows

// The CPUs that this process may run on: affinity, and a container's quota.
inline int usable_cores() {
  int cores = int(std::thread::hardware_concurrency());
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
  if (FILE* const file = fopen("/sys/fs/cgroup/cpu.max", "r")) {  // "QUOTA PERIOD" in microseconds, or "max PERIOD"
    double quota = 0, period = 0;
    if (fscanf(file, "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0)
      cores = smaller(cores, int(std::ceil(quota / period)));
    fclose(file);
  }
  return larger(cores, 1);
}

// Moves the calling thread to the rank-th CPU after `first`, of those that it may use; Linux may move it again later. A
// thread starts on the CPU of the thread that made it. Where CPUs share no cache, Linux may leave it there: then the
// team takes turns on one CPU, and is a hundred times slower. Does nothing where it is not possible.
inline void move_to_cpu(int rank, int first) {
  cpu_set_t all, one;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &all)) cpus.push_back(cpu);
  if (cpus.empty()) return;
  const size_t at = size_t(std::find(cpus.begin(), cpus.end(), first) - cpus.begin());
  CPU_ZERO(&one);
  CPU_SET(cpus[(at + size_t(rank)) % cpus.size()], &one);
  sched_setaffinity(0, sizeof one, &one);
  sched_setaffinity(0, sizeof all, &all);
}
// From now on the calling thread does not preempt another one when it wakes: it waits for a free core.
inline void never_preempt() {
  const sched_param none{};
  sched_setscheduler(0, SCHED_BATCH, &none);  // a failure does no harm
}

// A fixed set of threads that wait for work.
class Pool {
 public:
  // On a GPU the team is one host thread; plain: see Team. If there are more threads than cores, they sleep whenever
  // they wait.
  explicit Pool(int threads, bool cuda = false, bool plain = false)
      : size_(cuda ? 1 : larger(1, threads)),
        cuda_(cuda),
        plain_(plain),
        spins_(size_ > 1 && size_ > usable_cores() ? 0 : Signal::kSpins),
        end_(size_, spins_),
        halves_{{larger(size_ / 2, 1), spins_}, {larger(size_ / 2, 1), spins_}} {
    const int first_cpu = sched_getcpu();
    try {
      for (int rank = 1; rank < size_; rank++)
        workers_.emplace_back([this, rank, first_cpu] {
          move_to_cpu(rank, first_cpu);
          work(rank);
        });
    } catch (const std::exception&) {  // no thread, or no memory for one
      const int running = int(workers_.size()) + 1;
      end();
      throw std::runtime_error("cannot start thread " + std::to_string(running + 1) + " of " + std::to_string(size_) +
                               ": --threads: the system allows no more, or has no memory for them (ulimit -u, "
                               "ulimit -v): use fewer, for instance --threads 1");
    }
  }
  ~Pool() { end(); }
  int size() const { return size_; }
  bool cuda() const { return cuda_; }

  // Calls f(team) on every thread, the caller's among them; on_caller: on the caller's only. So it is for every caller
  // but the thread that made the pool: the two may run something at the same time. Returns when all have returned. f
  // must not throw if the team has more than one thread.
  template <class F>
  void run(F&& f, bool on_caller = false) {
    if (size_ == 1 || on_caller || std::this_thread::get_id() != owner_) {
      f(Team{0, 1, nullptr, cuda_, plain_});
      return;
    }
    context_ = &f;
    call_ = [](void* context, const Team& team) { (*static_cast<std::remove_reference_t<F>*>(context))(team); };
    start_.raise();
    f(team(0));
    end_.wait();
  }

 private:
  Team team(int rank) { return {rank, size_, &end_, false, false, size_ % 2 == 0 ? halves_ : nullptr}; }
  void end() {
    call_ = nullptr;
    start_.raise();
    for (auto& worker : workers_) worker.join();
  }
  void work(int rank) {
    for (unsigned round = 0;;) {
      round = start_.wait_beyond(round, spins_);
      if (!call_) return;
      call_(context_, team(rank));
      end_.wait();
    }
  }

  const std::thread::id owner_ = std::this_thread::get_id();
  const int size_;
  const bool cuda_, plain_;
  const int spins_;
  Signal start_;  // its value is the number of rounds begun
  Barrier end_;   // also serves as the team's barrier within a round
  Barrier halves_[2];
  void (*call_)(void*, const Team&) = nullptr;
  void* context_ = nullptr;
  std::vector<std::thread> workers_;
};

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Which forwards of a model one thread runs, though it has a team. A small model is faster so, as one thread waits for
// nobody. And where another program takes a core, the team waits at every barrier for the thread that had it: then one
// thread goes on alone for a while. The bits do not depend on it.
class TeamChoice {
 public:
  // Finds up to how many rows one thread is faster, at most `most`. forward(rows) runs a forward as alone(rows) says.
  // These forwards also warm up the caches and the threads.
  template <class Forward>
  void measure(int threads, int most, Forward forward) {
    constexpr int kRounds = 9;
    constexpr double kLeastSeconds = 0.004;  // longer than most pauses of one core
    for (int rows = 1; rows <= std::min(most, 32); rows *= 2) {
      double fastest[2] = {1e9, 1e9};  // by the team, by one thread
      for (int on_one : {0, 1, 0}) {   // not alternating: threads that wait too long sleep
        rows_on_one_ = on_one ? rows : rows / 2;
        double spent = 0;
        for (int round = 0; round < kRounds || spent < kLeastSeconds; round++) {
          const auto start = std::chrono::steady_clock::now();
          forward(rows);
          const double taken = seconds_since(start);
          fastest[on_one] = std::min(fastest[on_one], taken);
          spent += taken;
          if (threads == 1) return;
          if (on_one && round > 0 && fastest[1] > 2 * fastest[0]) break;  // the result is clear
        }
      }
      if (rows == 1) quiet_row_ = fastest[1];
      if (fastest[1] >= fastest[0]) break;
      rows_on_one_ = rows;
    }
    one_row_ = quiet_row_;  // from now on took() counts
  }

  bool alone(int rows) const { return rows <= rows_on_one_ || alone_for_ > 0; }

  // A forward of so many rows took so many seconds. One thread goes on alone where that is more than twice its own
  // time; for longer where it was so again soon after.
  void took(int rows, double seconds) {
    if (one_row_ == 0 || rows <= rows_on_one_) return;
    if (alone_for_ > 0) {
      fastest_row_ = std::min(fastest_row_, seconds / rows);
      alone_for_ -= seconds;
      if (alone_for_ <= 0) one_row_ = std::max(quiet_row_, fastest_row_);  // behind a long past a row takes longer
    } else if (seconds <= 2 * rows * one_row_) {
      together_ += seconds;
    } else {
      pause_ = together_ < pause_ ? std::min(2 * pause_, kLongestPause) : kFirstPause;
      alone_for_ = pause_;
      together_ = 0;
      fastest_row_ = 1e9;
    }
  }

 private:
  static constexpr double kFirstPause = 0.02, kLongestPause = 1;  // seconds
  int rows_on_one_ = 0;                                           // forwards of up to so many rows are one thread's
  double quiet_row_ = 0, one_row_ = 0;  // seconds that one thread takes for a row: at first, and now; 0: not measured
  double fastest_row_ = 0;              // since it is alone
  double alone_for_ = 0;                // seconds that it still goes on alone
  double together_ = 0, pause_ = 0;     // seconds that the team has run since the last pause, which took so long
};

// The number that follows `name` in a file of the system; `otherwise` if there is none.
inline size_t system_number(const char* path, const char* name, size_t otherwise) {
  FILE* const file = fopen(path, "r");
  if (!file) return otherwise;
  char line[256];
  const size_t length = strlen(name);
  size_t number = otherwise;
  while (fgets(line, sizeof line, file))
    if (strncmp(line, name, length) == 0 && sscanf(line + length, "%zu", &number) == 1) break;
  fclose(file);
  return number;
}

// How many bytes can be allocated so that Linux kills no process for want of memory: it grants more than it has. The
// limits of a container (cgroups 2) and of `ulimit -v` count too. SIZE_MAX if nothing is known.
inline size_t available_bytes() {
  size_t bytes = system_number("/proc/meminfo", "MemAvailable:", SIZE_MAX >> 10) << 10;
  const auto leave = [&](size_t limit, size_t taken) { bytes = std::min(bytes, limit - std::min(limit, taken)); };
  const size_t cached = system_number("/sys/fs/cgroup/memory.stat", "inactive_file ", 0);
  leave(system_number("/sys/fs/cgroup/memory.max", "", SIZE_MAX),  // "max" is no number: no limit
        system_number("/sys/fs/cgroup/memory.current", "", cached) - cached);
  rlimit addresses = {};
  if (getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur != RLIM_INFINITY)
    leave(size_t(addresses.rlim_cur), system_number("/proc/self/status", "VmSize:", 0) << 10);
  return bytes;
}

// Bytes of the L2 cache of a core; a megabyte where the system does not tell. (The C library asks the CPU, and knows
// few of them; under valgrind it hears of another CPU.)
inline size_t l2_bytes() {
  static const size_t kilobytes = system_number("/sys/devices/system/cpu/cpu0/cache/index2/size", "", 0);
  if (kilobytes > 0) return kilobytes << 10;
#if defined(_SC_LEVEL2_CACHE_SIZE)
  static const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) return size_t(bytes);
#endif
  return size_t(1) << 20;
}

constexpr size_t kHugePage = size_t(2) << 20;
// AddressSanitizer watches over what comes from the heap alone.
#ifdef SANITIZED
constexpr bool kMapsMemory = false;
#else
constexpr bool kMapsMemory = true;
#endif

// Zeroed memory, aligned to a cache line; if it is large, in huge pages where the system has them, of which each is
// taken only when it is first written: a cache or logits cost what is used of them. Throws std::bad_alloc.
inline void* allocate_zeroed(size_t bytes) {
  const size_t align = bytes >= kHugePage ? kHugePage : 64;
  if (bytes > SIZE_MAX - 2 * align) throw std::bad_alloc();
  bytes = (bytes + align - 1) / align * align;
  constexpr size_t large = size_t(256) << 20;  // smaller ones are not worth the question
  if (bytes > large && bytes > available_bytes()) throw std::bad_alloc();
  if (kMapsMemory && align == kHugePage) {  // one more than needed, of which the ends are given back
    void* const mapped = mmap(nullptr, bytes + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    char* const begin = static_cast<char*>(mapped);
    const size_t before = (align - reinterpret_cast<uintptr_t>(begin) % align) % align;
    if (before > 0) munmap(begin, before);
    munmap(begin + before + bytes, align - before);
    madvise(begin + before, bytes, MADV_HUGEPAGE);
    return begin + before;
  }
  void* const p = std::aligned_alloc(align, larger(bytes, align));
  if (!p) throw std::bad_alloc();
  memset(p, 0, bytes);
  return p;
}
// The same memory in small pages, where only parts of it will be used: call it before anything is written.
inline void take_small_pages(void* p, size_t bytes) {
  if (kMapsMemory && bytes >= kHugePage) madvise(p, bytes, MADV_NOHUGEPAGE);
}
// Frees what allocate_zeroed(bytes) gave, or null.
inline void free_zeroed(void* p, size_t bytes) {
  if (kMapsMemory && p && bytes >= kHugePage) munmap(p, (bytes + kHugePage - 1) / kHugePage * kHugePage);
  else std::free(p);
}

// Scratch memory of the calling thread. It grows when more is needed, and does not keep its content.
inline float* scratch(size_t floats) {
  struct Block {
    float* data = nullptr;
    size_t floats = 0;
    ~Block() { free_zeroed(data, floats * sizeof(float)); }
  };
  static thread_local Block block;
  if (floats > block.floats) {
    free_zeroed(std::exchange(block.data, nullptr), std::exchange(block.floats, 0) * sizeof(float));
    block.data = static_cast<float*>(allocate_zeroed(floats * sizeof(float)));
    block.floats = floats;
  }
  return block.data;
}

}  // namespace nanospec
