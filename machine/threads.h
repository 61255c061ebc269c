// machine/threads.h: the CPU's threads and its memory.
//
// In order: what threads wait by; the team that a piece of work sees, and the pool that runs it; where threads go on a
// machine of many CPUs; memory. Nothing here knows of arrays, operations or models.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
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
  void miss(int threads) { arrived_.fetch_add(threads); }  // so many will not come; called by one that will
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
// On a GPU the team is the one host thread that launches kernels, and `cuda` is set; `plain`: it launches those of
// kernels.cuh for attention, gather and matmul, not the tuned ones.
struct Team {
  int rank = 0, size = 1;
  Barrier* barrier = nullptr;
  bool cuda = false, plain = false;

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
  // On a GPU the team is one host thread; plain: see Team.
  explicit Pool(int threads, bool cuda = false, bool plain = false)
      : size_(cuda ? 1 : larger(1, threads)), cuda_(cuda), plain_(plain), start_(size_), end_(size_) {
    const int home = current_cpu();
    try {
      for (int rank = 1; rank < size_; rank++)
        workers_.emplace_back([this, rank, home] {
          leave_home(rank, home);
          work(rank);
        });
    } catch (const std::exception&) {  // no thread, or no memory for one
      const int running = int(workers_.size()) + 1;
      start_.miss(size_ - running);
      end();
      throw std::runtime_error("cannot start thread " + std::to_string(running + 1) + " of " + std::to_string(size_) +
                               ": --threads: the system allows no more, or has no memory for them (ulimit -u, "
                               "ulimit -v): use fewer, for instance --threads 1");
    }
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() { end(); }
  int size() const { return size_; }
  bool cuda() const { return cuda_; }

  // Calls f(team) on every thread, the caller's among them, or on the caller's `alone`; returns when all have returned.
  // f must not throw where the team has more than one thread.
  template <class F>
  void run(F&& f, bool alone = false) {
    if (size_ == 1 || alone) {
      f(Team{0, 1, nullptr, cuda_, plain_});
      return;
    }
    context_ = &f;
    call_ = [](void* context, const Team& team) { (*static_cast<std::remove_reference_t<F>*>(context))(team); };
    start_.wait();
    f(Team{0, size_, &end_});
    end_.wait();
  }

 private:
  void end() {
    call_ = nullptr;
    if (size_ > 1) start_.wait();
    for (auto& worker : workers_) worker.join();
  }
  void work(int rank) {
    for (;;) {
      start_.wait();
      if (!call_) return;
      call_(context_, Team{rank, size_, &end_});
      end_.wait();
    }
  }

  const int size_;
  const bool cuda_, plain_;
  Barrier start_, end_;  // a team's own barriers are rounds of end_ before its last
  void (*call_)(void*, const Team&) = nullptr;
  void* context_ = nullptr;
  std::vector<std::thread> workers_;
};

// A small model may run faster on one thread, which waits for nobody: up to how many rows, at most `most`.
// forward(rows, on_one): runs one. These also bring the weights into the caches and wake the threads.
template <class Forward>
int rows_for_one_thread(int threads, int most, Forward forward) {
  constexpr int kRounds = 9;
  constexpr double kLeastSeconds = 0.004;  // longer than most pauses of one core
  int best = 0;
  for (int rows : {1, 2, 4, 8, 16, 32}) {
    if (rows > most) return best;
    double fastest[2] = {1e9, 1e9};  // by the team, by one thread
    for (int on_one : {0, 1, 0}) {   // not by turns: threads that wait too long sleep
      double spent = 0;
      for (int round = 0; round < kRounds || spent < kLeastSeconds; round++) {
        const auto start = std::chrono::steady_clock::now();
        forward(rows, on_one == 1);
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        fastest[on_one] = std::min(fastest[on_one], taken.count()), spent += taken.count();
        if (threads == 1) return 0;
        if (on_one && round > 0 && fastest[1] > 2 * fastest[0]) break;  // it is settled
      }
    }
    best = fastest[1] < fastest[0] ? rows : rows / 2;
    if (best < rows) return best;
  }
  return best;
}

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

}  // namespace nanospec
