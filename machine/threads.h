// machine/threads.h: the CPU's threads and its memory.
//
// In order: what threads wait by; the team that a piece of work sees; cores, and where threads go on a machine of many;
// how many threads are to work where other programs do; the pool that runs a team; memory. Nothing here knows of
// arrays, operations or models.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
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
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#endif

#include "machine/numbers.h"

namespace nanospec {

// How often, and for how many nanoseconds, the calling thread has slept in a Signal.
struct Slept {
  std::atomic<int64_t> times{0}, nanoseconds{0};
};
inline Slept& slept() {
  static thread_local Slept mine;
  return mine;
}

// A number that threads wait for: they spin for a moment, since what they wait for is most often near, and then sleep,
// so that a machine with other work to do gets on with that, and wakes them at once when the number changes.
class Signal {
 public:
  static constexpr int kTurns = 3000;  // of the spin

  unsigned value() const { return value_.load(std::memory_order_acquire); }
  void raise() { value_.fetch_add(1), wake(); }
  void set(unsigned value) { value_.store(value), wake(); }
  // Returns the new value.
  unsigned wait_beyond(unsigned old, int turns = kTurns) {
    for (; turns > 0; turns--) {
      if (const unsigned now = value(); now != old) return now;
#if defined(__x86_64__)
      _mm_pause();
#endif
    }
    if (const unsigned now = value(); now != old) return now;
    const auto begun = std::chrono::steady_clock::now();
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_++;
    changed_.wait(lock, [&] { return value_.load() != old; });
    sleepers_--;
    slept().times++, slept().nanoseconds += (std::chrono::steady_clock::now() - begun) / std::chrono::nanoseconds(1);
    return value();
  }

 private:
  void wake() {
    if (sleepers_.load() == 0) return;
    { std::lock_guard<std::mutex> lock(mutex_); }
    changed_.notify_all();
  }
  alignas(64) std::atomic<unsigned> value_{0};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

// All threads of a team leave it when the last one has come.
class Barrier {
 public:
  Barrier(int threads, int turns) : threads_(threads), turns_(turns) {}
  void wait() {
    const unsigned round = round_.value();
    const int last = threads_ - 1;  // read before the others can go on
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == last) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.raise();
    } else {
      round_.wait_beyond(round, turns_);
    }
  }
  void expect(int threads) { threads_ = threads; }  // while none has arrived

 private:
  int threads_;
  const int turns_;
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

// The CPUs that this process may run on: affinity, and a container's quota.
inline int usable_cores() {
  int cores = int(std::thread::hardware_concurrency());
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
#endif
  if (FILE* const file = fopen("/sys/fs/cgroup/cpu.max", "r")) {  // "QUOTA PERIOD" in microseconds, or "max PERIOD"
    double quota = 0, period = 0;
    if (fscanf(file, "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0)
      cores = smaller(cores, int(std::ceil(quota / period)));
    fclose(file);
  }
  return larger(cores, 1);
}

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

// Threads of this program that work beside a team: what they take from it, it does not yield to.
inline std::atomic<int> threads_beside{0};

// How many threads of a team are to work. Where another program keeps a core busy, the thread that shares it makes all
// others wait: with two threads, each on half a core's time, and each barrier late. A thread fewer costs its share
// alone. So the team yields a thread for each core that it is kept from, and takes it back after a rest, to see.
class Attendance {
 public:
  static constexpr double kStretch = 0.02;  // seconds of work that are judged together, or one run that takes longer

  explicit Attendance(int threads) : all_(threads), size_(threads) {}

  int at(double now) {
    if (size_ < all_ && now >= rest_ends_) size_ = all_, strikes_ = 1;  // one more, and they rest again
    return size_;
  }
  // A stretch of work has ended. cores_lost: for how much of it threads were kept from running, added up.
  void judge(double now, double seconds, double cores_lost) {
    if (cores_lost < kTooMuch) {
      strikes_ = 0;
      if (size_ == all_) rest_ = kFirstRest;
    } else if (++strikes_ >= 2) {                                       // once may be chance
      size_ = larger(1, size_ - larger(1, int(cores_lost * 2 + 0.5)));  // a core shared by two is half lost
      rest_ends_ = now + rest_ * seconds;
      rest_ = smaller(2 * rest_, kLongestRest);
      strikes_ = 0;
    }
  }

 private:
  static constexpr double kTooMuch = 0.25;                      // cores
  static constexpr double kFirstRest = 8, kLongestRest = 32.0;  // stretches
  const int all_;
  int size_, strikes_ = 0;
  double rest_ = kFirstRest, rest_ends_ = 0;
};

// A fixed set of threads that wait for work.
class Pool {
 public:
  // On a GPU the team is one host thread; plain: see Team. Threads that outnumber the cores sleep wherever they wait.
  explicit Pool(int threads, bool cuda = false, bool plain = false)
      : size_(cuda ? 1 : larger(1, threads)),
        cuda_(cuda),
        plain_(plain),
        crowded_(size_ > 1 && size_ > usable_cores()),
        turns_(crowded_ ? 0 : Signal::kTurns),
        end_(size_, turns_),
        clocks_(size_),
        attendance_(size_) {
    const int home = current_cpu();
    try {
      for (int rank = 1; rank < size_; rank++)
        workers_.emplace_back([this, rank, home] {
          leave_home(rank, home);
          clocks_[rank].start();
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
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() { end(); }
  int size() const { return size_; }
  bool cuda() const { return cuda_; }

  // Calls f(team) on every thread, the caller's among them, or on the caller's `alone`; returns when all have returned.
  // On fewer threads where other programs leave no core for all. f must not throw where the team has more than one
  // thread.
  template <class F>
  void run(F&& f, bool alone = false) {
    const int threads = size_ == 1 || alone ? 1 : crowded_ ? size_ : attendance_.at(now());
    run_on(threads, f);
    if (threads > 1 && !crowded_) judge(threads);
    else if (!alone) judged_ = 0;
  }
  // On so many threads, at most size().
  template <class F>
  void run_on(int threads, F&& f) {
    if (threads == 1) {
      f(Team{0, 1, nullptr, cuda_, plain_});
      return;
    }
    context_ = &f;
    call_ = [](void* context, const Team& team) { (*static_cast<std::remove_reference_t<F>*>(context))(team); };
    call(threads);
    f(Team{0, threads, &end_});
    end_.wait();
  }

 private:
  void end() {
    call_ = nullptr;
    if (size_ > 1) call(size_);
    for (auto& worker : workers_) worker.join();
  }
  // What a thread has had of its time: it ran, or slept because it had nothing to do.
  struct ThreadClock {
    const Slept* slept = nullptr;
    std::thread::id thread;
#if defined(__linux__)
    clockid_t clock;
#endif
    void start() {
      slept = &nanospec::slept(), thread = std::this_thread::get_id();
#if defined(__linux__)
      pthread_getcpuclockid(pthread_self(), &clock);
#endif
    }
    double seconds() const {
      timespec ran = {};
#if defined(__linux__)
      clock_gettime(clock, &ran);
#endif
      return double(ran.tv_sec) + 1e-9 * double(ran.tv_nsec + slept->nanoseconds.load());
    }
  };

  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  // A round of so many threads begins. The signal's value is its number, and `threads` in its low bits: a thread that
  // is not of the round may be slow to look.
  void call(int threads) {
    const bool more = threads > called_;
    end_.expect(threads), called_ = threads;
    start_.set((start_.value() / kMostThreads + 1) * kMostThreads + unsigned(threads - 1));
    if (more) returned_.raise();
  }
  void work(int rank) {
    for (unsigned round = 0;;) {
      const unsigned returned = returned_.value();
      round = start_.wait_beyond(round, turns_);
      const int threads = int(round % kMostThreads) + 1;
      if (rank >= threads) {
        returned_.wait_beyond(returned, 0);
        continue;
      }
      if (!call_) return;
      call_(context_, Team{rank, threads, &end_});
      end_.wait();
    }
  }

  // After a run of the team: at the end of a stretch, for how long its threads neither ran nor slept.
  void judge(int threads) {
#if defined(__linux__)
    const double time = now(), seconds = time - begun_;
    const bool same = threads == judged_ && clocks_[0].thread == std::this_thread::get_id();
    if (same && seconds < Attendance::kStretch) return;
    clocks_[0].start();
    double had = 0;
    for (int rank = 0; rank < threads; rank++) had += clocks_[rank].seconds();
    if (same && threads_beside == 0) attendance_.judge(time, seconds, threads - (had - had_) / seconds);
    begun_ = time, had_ = had, judged_ = threads;
#else
    (void)threads;
#endif
  }

  static constexpr unsigned kMostThreads = 1 << 12;
  const int size_;
  const bool cuda_, plain_, crowded_;
  const int turns_;
  Signal start_, returned_;  // raised for each round; where threads are back that had been left out
  Barrier end_;              // a team's own barriers are rounds of it before its last
  int called_ = 0;           // threads of the last round
  void (*call_)(void*, const Team&) = nullptr;
  void* context_ = nullptr;
  std::vector<ThreadClock> clocks_;  // of each thread
  Attendance attendance_;
  double begun_ = 0, had_ = 0;  // of the stretch that is under way: when, and what its threads had had by then
  int judged_ = 0;              // and how many they are
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

// The number that follows `name` in a file of the system's; `otherwise` where there is none.
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

// Bytes that can be had without ending another process or this one: Linux promises memory that it does not have, and
// kills who then touches it. What a container (of cgroups 2) and `ulimit -v` leave counts too. SIZE_MAX where nothing
// is known.
inline size_t available_bytes() {
  size_t bytes = system_number("/proc/meminfo", "MemAvailable:", SIZE_MAX >> 10) << 10;
  const auto leave = [&](size_t limit, size_t taken) { bytes = std::min(bytes, limit - std::min(limit, taken)); };
  const size_t cached = system_number("/sys/fs/cgroup/memory.stat", "inactive_file ", 0);
  leave(system_number("/sys/fs/cgroup/memory.max", "", SIZE_MAX),  // "max" is no number: no limit
        system_number("/sys/fs/cgroup/memory.current", "", cached) - cached);
#if defined(__linux__)
  rlimit addresses = {};
  if (getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur != RLIM_INFINITY)
    leave(size_t(addresses.rlim_cur), system_number("/proc/self/status", "VmSize:", 0) << 10);
#endif
  return bytes;
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
