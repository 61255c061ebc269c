// tests/cuda/emulator.h: a GPU for tests: enough of CUDA to run our own __global__ kernels under g++.
//
// A thread is a fiber. A block's fibers take turns on one CPU: each runs until it meets others, at a warp's shuffle or
// vote or at the block's barrier, and then gives way to the next that can go on. `order` says which that is. A kernel
// whose result depends on it has a race. Blocks run one after the other.
//
// Faults, each a std::runtime_error from the launch, which can be followed by others as if nothing had been:
//   - threads of a warp or of a block that wait in different lines; some that wait for one that has ended;
//   - a shuffle or vote whose mask is not exactly the lanes of its warp;
//   - too many threads or blocks, or more shared memory than a block may have; an exception out of a kernel;
//   - a launch that may begin before the kernel before it has ended, with a thread that does not wait for that;
//   - a wait, a copy or an allocation within a capture.
// Shared and device memory begin as NaNs, and end to the byte where they should: under AddressSanitizer an access
// outside ends the program (there device memory is ordinary memory, in the host's reach). What it cannot see: two
// threads that both read a number before either writes it, and lanes that stand in one line of text but came to it by
// different calls.
//
// Include it before anything else: it stands in for <cuda_runtime.h>, and renames namespace nanospec, so that the
// linker cannot take this code, with a GPU, for that without.
#pragma once

#undef _FORTIFY_SOURCE  // whose longjmp refuses to change stacks

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#ifdef SANITIZED
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#define EMULATED_CUDA
#define nanospec nanospec_emulated

// ---------------------------------------------------------------------------------------------------------------
// Words of the language

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static thread_local  // of all blocks, one after the other; it does not begin as NaNs
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

inline dim3 threadIdx, blockIdx, blockDim, gridDim;

// ---------------------------------------------------------------------------------------------------------------
// Fibers

namespace emulator {

[[noreturn]] inline void fault(const std::string& what) { throw std::runtime_error("emulator: " + what); }

// A flow of control with a stack of its own. It switches by longjmp, which does not call the kernel as swapcontext does
// (25 ns, not 360); but AddressSanitizer takes a longjmp for a return, and must be told of each change of stacks.
class Fiber {
 public:
  // Makes it begin with entry() when it is switched to.
  void prepare(void (*entry)()) {
    if (!stack_) stack_.reset(new char[kStack]);
    entry_ = entry, begun_ = false;
#ifdef SANITIZED
    ASAN_UNPOISON_MEMORY_REGION(stack_.get(), kStack);  // a flow that was given up has left its marks
    bottom_ = stack_.get(), size_ = kStack, fake_ = nullptr;
#endif
  }
  bool prepared() const { return stack_ != nullptr; }

  // Goes on in `to`; returns when someone switches back to this, the fiber that is running.
#ifdef SANITIZED
  __attribute__((noinline)) void switch_to(Fiber& to) {
    came_from = this;
    if (!to.begun_ && to.entry_) to.make_context();
    __sanitizer_start_switch_fiber(&fake_, to.bottom_, to.size_);
    swapcontext(&context_, &to.context_);
    arrive();
  }
  void arrive() { __sanitizer_finish_switch_fiber(fake_, &came_from->bottom_, &came_from->size_); }
#else
  __attribute__((noinline)) void switch_to(Fiber& to) {
    if (_setjmp(place_)) return;
    if (to.begun_ || !to.entry_) _longjmp(to.place_, 1);
    to.make_context();
    setcontext(&to.context_);
  }
  void arrive() {}
#endif

 private:
  static constexpr size_t kStack = 64 << 10;

  void make_context() {
    begun_ = true;
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack_.get(), context_.uc_stack.ss_size = kStack, context_.uc_link = nullptr;
    makecontext(&context_, entry_, 0);
    context_.uc_stack.ss_size = 0;  // else AddressSanitizer's swapcontext would wipe its marks off the stack
  }

  ucontext_t context_;
  std::unique_ptr<char[]> stack_;
  void (*entry_)() = nullptr;
  bool begun_ = false;
#ifdef SANITIZED
  static inline Fiber* came_from = nullptr;
  const void* bottom_ = nullptr;
  size_t size_ = 0;
  void* fake_ = nullptr;
#else
  jmp_buf place_;
#endif
};

// ---------------------------------------------------------------------------------------------------------------
// Blocks of threads

// Which of a block's threads goes on where several could: the lowest (a warp runs as far as it can before the next),
// the highest, or any; and in which order the blocks run.
enum class Order { kAscending, kDescending, kShuffled };
inline Order order = Order::kAscending;
inline std::minstd_rand chance;  // begins anew with each launch

constexpr int kWarp = 32, kMostThreads = 1024;
constexpr size_t kMostShared = 48 << 10;  // bytes that a block may have without asking

// `bytes` bytes, not one more, all their bits set, which is a NaN in any type of floats; null if there are not so many.
inline void* poisoned(size_t bytes) {
  void* at = nullptr;
  return posix_memalign(&at, 256, bytes) == 0 ? memset(at, 0xff, bytes) : nullptr;
}

class Block {
 public:
  // Runs body() once for each of `threads` threads.
  void run(int threads, const std::function<void()>& body) {
    body_ = &body, threads_ = left_ = threads;
    at_barrier_ = Meeting{}, ready_warps_ = 0, failure_.clear(), shared_.clear(), shared_bytes_ = 0;
    for (int w = 0; w * kWarp < threads; w++) {
      warps_[w].all = lanes_below(std::min(kWarp, threads - w * kWarp));
      warps_[w].meeting = Meeting{};
      all_go_on(w);
    }
    for (int i = 0; i < threads; i++)
      if (!fibers_[i].prepared()) fibers_[i].prepare(&Block::live);
    current_ = choose();
    home_.switch_to(fibers_[current_]);
    shared_.clear();
    if (failure_.empty()) return;
    for (int i = 0; i < threads; i++) fibers_[i].prepare(&Block::live);  // some were given up where they stood
    throw std::runtime_error(failure_);
  }

  // The calling thread waits for its block; returns how many of its threads voted for it.
  int meet_block(bool vote, int line) {
    arrive(at_barrier_, line, "the threads of a block");
    at_barrier_.votes += vote;
    if (++at_barrier_.arrived == threads_) {
      barriers++;
      outcome_ = at_barrier_.votes, at_barrier_ = Meeting{};
      for (int w = 0; w * kWarp < threads_; w++) all_go_on(w);
    }
    give_way();
    return outcome_;
  }

  // The calling thread waits for its warp; returns what its lanes showed there, valid until their next meeting but one.
  // orders_memory: what one wrote before it, all read behind it.
  const uint64_t* meet_warp(uint64_t shown, unsigned mask, int line, bool orders_memory = false) {
    const int w = current_ / kWarp;
    Warp& warp = warps_[w];
    if (mask != warp.all) fault("a mask in line " + std::to_string(line) + " that is not the lanes of its warp");
    arrive(warp.meeting, line, "the lanes of a warp");
    uint64_t* const board = warp.boards[warp.turn];
    board[current_ % kWarp] = shown;
    if (++warp.meeting.arrived == lanes()) {
      warp.meeting = Meeting{}, warp.turn ^= 1, warp_meetings++, fences += orders_memory;
      all_go_on(w);
    }
    give_way();
    return board;
  }

  // The block's own memory of this name.
  void* shared(const void* name, size_t bytes) {
    for (const Piece& piece : shared_)
      if (piece.name == name) return piece.at.get();
    if ((shared_bytes_ += bytes) > kMostShared) fault("more shared memory than a block may have");
    shared_.push_back({name, std::shared_ptr<void>(poisoned(bytes), free), bytes});
    return shared_.back().at.get();
  }
  // Whether this address is in the block's shared memory.
  bool holds(const void* address) const {
    const auto at = reinterpret_cast<uintptr_t>(address);
    for (const Piece& piece : shared_)
      if (at >= reinterpret_cast<uintptr_t>(piece.at.get()) &&
          at < reinterpret_cast<uintptr_t>(piece.at.get()) + piece.bytes)
        return true;
    return false;
  }
  int lane() const { return current_ % kWarp; }
  int lanes() const { return std::min(kWarp, threads_ - current_ / kWarp * kWarp); }

  long barriers = 0, warp_meetings = 0;  // of all blocks since the program began: of a block, of a warp
  long fences = 0;                       // those of a warp that order memory: __syncwarp

 private:
  struct Piece {  // of shared memory
    const void* name;
    std::shared_ptr<void> at;
    size_t bytes;
  };
  struct Meeting {
    int arrived = 0, votes = 0;
    int line = 0;  // of those who arrived
  };
  struct Warp {
    uint32_t all, ready;  // bit l: lane l is there; can go on
    Meeting meeting;
    int turn = 0;  // which board is written
    uint64_t boards[2][kWarp];
  };

  static uint32_t lanes_below(int n) { return n == kWarp ? ~0u : (1u << n) - 1; }
  static int lowest(uint32_t bits) { return __builtin_ctz(bits); }
  static int highest(uint32_t bits) { return 31 - __builtin_clz(bits); }
  static int any(uint32_t bits) {
    for (unsigned n = chance() % unsigned(__builtin_popcount(bits)); n > 0; n--) bits &= bits - 1;
    return lowest(bits);
  }

  void all_go_on(int warp) {
    warps_[warp].ready = warps_[warp].all;
    ready_warps_ |= 1u << warp;
  }
  void stop() {  // the calling thread waits or has ended
    uint32_t& ready = warps_[current_ / kWarp].ready;
    ready &= ~(1u << current_ % kWarp);
    if (ready == 0) ready_warps_ &= ~(1u << current_ / kWarp);
  }
  void arrive(Meeting& meeting, int line, const char* who) {
    if (meeting.arrived > 0 && meeting.line != line)
      fault(std::string(who) + " wait in different lines, " + std::to_string(meeting.line) + " and " +
            std::to_string(line));
    meeting.line = line;
    stop();
  }

  // The thread that goes on next; -1 if none can.
  int choose() {
    if (ready_warps_ == 0) return -1;
    const auto one_of = [](uint32_t bits) {
      return order == Order::kAscending ? lowest(bits) : order == Order::kDescending ? highest(bits) : any(bits);
    };
    const int warp = one_of(ready_warps_);
    return warp * kWarp + one_of(warps_[warp].ready);
  }
  void give_way() {
    const int me = current_, next = choose();
    if (next < 0) fault_stuck();
    if (next == me) return;
    current_ = next;
    fibers_[me].switch_to(fibers_[next]);
    threadIdx.x = unsigned(current_);
  }
  [[noreturn]] void fault_stuck() const {
    std::string where;
    const auto add = [&](const Meeting& meeting, const char* what) {
      if (meeting.arrived > 0)
        where += ", " + std::to_string(meeting.arrived) + what + "line " + std::to_string(meeting.line);
    };
    add(at_barrier_, " at the barrier in ");
    for (int w = 0; w * kWarp < threads_; w++) add(warps_[w].meeting, " of a warp in ");
    fault("threads wait for some that will not come: " + std::to_string(threads_ - left_) + " have ended" + where);
  }

  // A fiber's life: the body of one block's thread after another's. After a fault it is given up, wherever it is.
  static void live();
  void live_as(Fiber& fiber) {
    fiber.arrive();
    for (;;) {
      threadIdx = dim3(unsigned(current_));
      Fiber* next = &home_;
      try {
        (*body_)();
        stop();
        if (--left_ > 0) {
          if ((current_ = choose()) < 0) fault_stuck();
          next = &fibers_[current_];
        }
      } catch (const std::exception& error) { failure_ = error.what(); } catch (...) {
        failure_ = "emulator: something was thrown out of a kernel";
      }
      fiber.switch_to(*next);
    }
  }

  const std::function<void()>* body_ = nullptr;
  int threads_ = 0, left_ = 0, current_ = 0;  // left_: threads that have not ended
  Warp warps_[kMostThreads / kWarp];
  uint32_t ready_warps_ = 0;  // bit w: a lane of warp w can go on
  Meeting at_barrier_;
  int outcome_ = 0;  // votes of the last barrier
  std::vector<Piece> shared_;
  size_t shared_bytes_ = 0;
  std::string failure_;
  Fiber home_, fibers_[kMostThreads];
};

inline Block block;

inline void Block::live() { block.live_as(block.fibers_[block.current_]); }

inline void* shared(const void* name, size_t bytes) { return block.shared(name, bytes); }

inline long early_launches = 0, pieces_asked = 0;  // so far: launches, and weights that were asked for in one piece

// For which compute capability the kernels are compiled: from 9.0 on they can wait for the kernel before.
inline int code = 90;
inline int waited = 0;  // threads of the block that did
inline void wait_for_earlier() { waited += code >= 90; }

inline void run(dim3 grid, int threads, const std::function<void()>& body, bool early) {
  const long blocks = long(grid.x) * grid.y * grid.z;
  early_launches += early;
  std::vector<long> turn(blocks);
  for (long i = 0; i < blocks; i++) turn[i] = order == Order::kDescending ? blocks - 1 - i : i;
  chance.seed(1);
  if (order == Order::kShuffled) std::shuffle(turn.begin(), turn.end(), chance);
  gridDim = grid, blockDim = dim3(unsigned(threads));
  for (long i : turn) {
    blockIdx = dim3(unsigned(i % grid.x), unsigned(i / grid.x % grid.y), unsigned(i / grid.x / grid.y));
    waited = 0;
    block.run(threads, body);
    if (early && waited != threads) fault("launched early, but not every thread waits for the kernel before");
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Memory and the queue

// The device's memory. The host cannot touch it while it is closed.
class DeviceMemory {
 public:
  void* allocate(size_t bytes) {
#ifdef SANITIZED
    return poisoned(bytes);
#else
    if (!base_) reserve();
    const size_t size = (bytes + kPage - 1) / kPage * kPage;
    char* at = nullptr;
    auto& spare = spare_[size];
    if (!spare.empty()) at = spare.back(), spare.pop_back();
    else if (size_t(top_ - base_) + size <= kAddresses) at = top_, top_ += size;
    if (!at) return nullptr;
    sizes_[at] = size;
    const bool was_open = open_;
    open(true);
    memset(at, 0xff, bytes);
    open(was_open);
    return at;
#endif
  }
  void release(void* at) {
#ifdef SANITIZED
    free(at);
#else
    const auto it = sizes_.find(static_cast<char*>(at));
    if (it == sizes_.end()) return;
    madvise(at, it->second, MADV_DONTNEED);
    spare_[it->second].push_back(it->first);
    sizes_.erase(it);
#endif
  }
  bool holds(const void* at) const { return at >= base_ && at < top_; }
  void open([[maybe_unused]] bool yes) {
#ifndef SANITIZED
    if (yes == open_ || top_ == base_) return;
    mprotect(base_, size_t(top_ - base_), yes ? PROT_READ | PROT_WRITE : PROT_NONE);
    open_ = yes;
    if (yes) return;
    struct sigaction action = {};  // each time: doctest has its own from test to test
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = touched;
    sigaction(SIGSEGV, &action, nullptr);
#endif
  }

 private:
  static constexpr size_t kPage = 4096, kAddresses = size_t(64) << 30;  // more than is ever used at a time

  void reserve() {
    void* const all = mmap(nullptr, kAddresses, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) fault("no address space for the device's memory");
    base_ = top_ = static_cast<char*>(all);
  }
  static void touched(int, siginfo_t* info, void*);  // what the host may not touch
  char *base_ = nullptr, *top_ = nullptr;
  [[maybe_unused]] bool open_ = false;
  std::map<char*, size_t> sizes_;
  std::map<size_t, std::vector<char*>> spare_;  // by size
};
inline DeviceMemory device_memory;

inline void DeviceMemory::touched(int, siginfo_t* info, void*) {
  static const char ours[] = "emulator: the host touched device memory outside of launches and copies\n";
  static const char other[] = "emulator: a segmentation fault, not in device memory\n";
  const bool device = device_memory.holds(info->si_addr);
  if (write(2, device ? ours : other, device ? sizeof ours - 1 : sizeof other - 1) < 0) _exit(2);
  signal(SIGSEGV, SIG_DFL);  // it happens again, and ends the program
}

using Work = std::deque<std::function<void()>>;
// What a captured stream recorded.
struct Recording {
  Work work;
  bool has_early = false, invalid = false;  // a launch that begins early; one that was refused
};
inline std::unique_ptr<Recording> recording;  // while a capture is running
inline Work queue;                            // what nobody has waited for yet
// Old drivers refuse to record launches that begin early: as they are recorded, or when the graph is made.
enum class Refusal { kNone, kLaunch, kGraph };
inline Refusal refusal = Refusal::kNone;
// A device runs what is behind an event while the host waits for the event, or later. false: later.
inline bool hurries = false;

inline void submit(std::function<void()> work) { (recording ? recording->work : queue).push_back(std::move(work)); }

// Runs what is queued, until come() says that it is enough. After a fault the rest is given up.
template <class F>
void wait_until(F come) {
  if (queue.empty()) return;
  device_memory.open(true);
  try {
    for (; !queue.empty() && !come(); queue.pop_front()) queue.front()();
  } catch (...) {
    queue.clear();
    device_memory.open(false);
    throw;
  }
  device_memory.open(false);
}
inline void wait() {
  wait_until([] { return false; });
}
// What a destructor calls, which may not throw: what the work that it waits for did wrong is lost.
inline void settle() {
  try {
    wait();
  } catch (const std::exception&) {}
}
inline void not_within_a_capture(const char* what) {
  if (recording) fault(std::string(what) + " within a capture");
}
// early: it may begin before what was launched before it has ended.
inline void launch(dim3 grid, int threads, std::function<void()> body, bool early = false) {
  if (threads < 1 || threads > kMostThreads || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff ||
      grid.y > 65535 || grid.z > 65535)
    fault("a launch of no threads, or of too many");
  submit([=] { run(grid, threads, body, early); });
}

}  // namespace emulator

// ---------------------------------------------------------------------------------------------------------------
// Meetings and votes. `line` is the caller's: all who meet must stand in one line of the text.

#define LINE int line = __builtin_LINE()

inline void __syncthreads(LINE) { emulator::block.meet_block(false, line); }
inline int __syncthreads_count(bool vote, LINE) { return emulator::block.meet_block(vote, line); }
inline int __syncthreads_or(bool vote, LINE) { return emulator::block.meet_block(vote, line) > 0; }
inline int __syncthreads_and(bool vote, LINE) { return emulator::block.meet_block(!vote, line) == 0; }
inline void __syncwarp(unsigned mask = ~0u, LINE) { emulator::block.meet_warp(0, mask, line, true); }

// A shuffle among groups of `width` lanes: who would read beyond them reads its own value (by xor: only beyond the
// end).
template <class T>
T shown_by(int from, unsigned mask, T value, int line) {
  static_assert(sizeof(T) <= 8, "a shuffle moves up to 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = emulator::block.meet_warp(bits, mask, line)[from];
  memcpy(&value, &bits, sizeof value);
  return value;
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32, LINE) {
  return shown_by((emulator::block.lane() & -width) + (from & (width - 1)), mask, value, line);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32, LINE) {
  const int lane = emulator::block.lane(), from = lane ^ with;
  return shown_by(from > (lane | (width - 1)) ? lane : from, mask, value, line);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, int by, int width = 32, LINE) {
  const int lane = emulator::block.lane(), from = lane - by;
  return shown_by(from < (lane & -width) ? lane : from, mask, value, line);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, int by, int width = 32, LINE) {
  const int lane = emulator::block.lane(), from = lane + by;
  return shown_by(from > (lane | (width - 1)) ? lane : from, mask, value, line);
}
inline unsigned __ballot_sync(unsigned mask, bool vote, LINE) {
  const uint64_t* board = emulator::block.meet_warp(vote, mask, line);
  unsigned votes = 0;
  for (int lane = 0; lane < emulator::block.lanes(); lane++) votes |= unsigned(board[lane]) << lane;
  return votes;
}
inline int __any_sync(unsigned mask, bool vote, LINE) { return __ballot_sync(mask, vote, line) != 0; }
inline int __all_sync(unsigned mask, bool vote, LINE) { return __ballot_sync(mask, !vote, line) == 0; }
#undef LINE

// Threads take turns, so any read and write is atomic.
template <class T>
T atomicAdd(T* at, T value) {
  const T old = *at;
  *at = old + value;
  return old;
}
template <class T>
T atomicMax(T* at, T value) {
  const T old = *at;
  *at = std::max(old, value);
  return old;
}
inline void __threadfence() {}
inline float __ldcg(const float* at) { return *at; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
template <class T>
T __ldg(const T* at) {
  return *at;
}
constexpr int warpSize = 32;
using std::max;
using std::min;

// ---------------------------------------------------------------------------------------------------------------
// The runtime: memory, one stream, graphs

using cudaError_t = int;
using cudaStream_t = int;
enum {
  cudaSuccess = 0,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorNotSupported = 801,
  cudaErrorStreamCaptureInvalidated = 901
};
#define CUDART_VERSION 12040
namespace emulator {
inline cudaError_t driver = cudaSuccess;     // what the driver says when it is asked for devices
constexpr size_t kMemory = size_t(1) << 30;  // of the device
inline int capability[] = {9, 0};            // the device's: major, minor
}  // namespace emulator
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum { cudaStreamCaptureModeThreadLocal };
constexpr cudaStream_t cudaStreamPerThread = 2;
struct EmulatedGraph {
  emulator::Recording recording;
};
using cudaGraph_t = EmulatedGraph*;
using cudaGraphExec_t = EmulatedGraph*;

inline const char* cudaGetErrorString(cudaError_t) { return "an error of the emulator"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* n) { return *n = 1, emulator::driver; }
inline cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return *free = *total = emulator::kMemory, cudaSuccess;
}
inline cudaError_t cudaMalloc(void** at, size_t bytes) {
  emulator::not_within_a_capture("an allocation");
  if (bytes > emulator::kMemory) return cudaErrorMemoryAllocation;
  *at = emulator::device_memory.allocate(bytes);
  return *at ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaFree(void* at) { return emulator::settle(), emulator::device_memory.release(at), cudaSuccess; }
namespace emulator {
inline std::map<const char*, size_t> pinned;  // the host's memory that queued copies may read
inline bool is_pinned(const void* at) {
  const auto next = pinned.upper_bound(static_cast<const char*>(at));
  return next != pinned.begin() && at < std::prev(next)->first + std::prev(next)->second;
}
}  // namespace emulator
inline cudaError_t cudaMallocHost(void** at, size_t bytes) {
  emulator::not_within_a_capture("an allocation");
  *at = emulator::poisoned(bytes);
  emulator::pinned[static_cast<char*>(*at)] = bytes;
  return *at ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaFreeHost(void* at) {
  const cudaError_t error = cudaFree(nullptr);  // it waits
  emulator::pinned.erase(static_cast<char*>(at));
  return free(at), error;
}
inline cudaError_t cudaMemsetAsync(void* at, int byte, size_t n, cudaStream_t) {
  return emulator::submit([=] { memset(at, byte, n); }), cudaSuccess;
}
inline cudaError_t cudaMemset(void* at, int byte, size_t n) {  // the host need not wait, but the stream does
  emulator::not_within_a_capture("a memset that waits");
  return cudaMemsetAsync(at, byte, n, 0);
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind) {
  emulator::not_within_a_capture("a copy that waits");
  if (n) emulator::submit([=] { memcpy(to, from, n); });
  return emulator::wait(), cudaSuccess;
}
// From the host's pageable memory it copies at once into memory of its own; from pinned memory when its turn comes.
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind kind, cudaStream_t) {
  if (n == 0) return cudaSuccess;
  if (kind == cudaMemcpyHostToDevice && !emulator::is_pinned(from)) {
    const char* const bytes = static_cast<const char*>(from);
    const std::vector<char> staged(bytes, bytes + n);
    return emulator::submit([=] { memcpy(to, staged.data(), n); }), cudaSuccess;
  }
  return emulator::submit([=] { memcpy(to, from, n); }), cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) {
  emulator::not_within_a_capture("a wait");
  return emulator::wait(), cudaSuccess;
}
inline cudaError_t cudaStreamBeginCapture(cudaStream_t, int) {
  emulator::not_within_a_capture("another capture");
  return emulator::recording.reset(new emulator::Recording), cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  const std::unique_ptr<emulator::Recording> recorded = std::move(emulator::recording);
  *graph = recorded->invalid ? nullptr : new EmulatedGraph{std::move(*recorded)};
  return *graph ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
  if (emulator::refusal == emulator::Refusal::kGraph && graph->recording.has_early) return cudaErrorNotSupported;
  return *ready = new EmulatedGraph(*graph), cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready) { return delete ready, cudaSuccess; }
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t) {
  for (const auto& work : ready->recording.work) emulator::submit(work);
  return cudaSuccess;
}

// A kernel: what it was compiled for, and its launch.
struct cudaFuncAttributes {
  int ptxVersion;
};
template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* its, Kernel*) {
  its->ptxVersion = emulator::code;
  return emulator::code <= 10 * emulator::capability[0] + emulator::capability[1] ? cudaSuccess
                                                                                  : cudaErrorNoKernelImageForDevice;
}
enum { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
struct cudaLaunchAttribute {
  int id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
template <class... Parameters>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* c, void (*kernel)(Parameters...), Parameters... arguments) {
  if (emulator::recording && c->numAttrs > 0) {
    emulator::recording->has_early = true;
    if (emulator::refusal == emulator::Refusal::kLaunch) {
      emulator::recording->invalid = true;
      return cudaErrorNotSupported;
    }
  }
  return emulator::launch(
             c->gridDim, int(c->blockDim.x), [=] { kernel(arguments...); }, c->numAttrs > 0),
         cudaSuccess;
}

// ---------------------------------------------------------------------------------------------------------------
// The runtime: what the device is, and its clock, which is the host's

struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem;
  int major, minor, multiProcessorCount, l2CacheSize;
};
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
enum { cudaDevAttrComputeCapabilityMajor = 75, cudaDevAttrComputeCapabilityMinor = 76 };
inline cudaError_t cudaDeviceGetAttribute(int* value, int attribute, int) {
  return *value = emulator::capability[attribute - cudaDevAttrComputeCapabilityMajor], cudaSuccess;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  return *p = {"an emulated GPU", size_t(1) << 30, emulator::capability[0], emulator::capability[1], 1, 1 << 16},
         cudaSuccess;
}
inline cudaError_t cudaDriverGetVersion(int* version) { return *version = 12040, cudaSuccess; }
inline cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 12040, cudaSuccess; }

// Waiting for an event runs what was queued before it, and nothing behind it unless the device hurries.
struct EmulatedEvent {
  std::chrono::steady_clock::time_point when;
  int64_t recorded = 0, passed = 0;  // how often
};
using cudaEvent_t = EmulatedEvent*;
enum { cudaEventDefault = 0, cudaEventDisableTiming = 2 };
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = new EmulatedEvent, cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) { return emulator::settle(), delete event, cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  const int64_t nth = ++event->recorded;
  return emulator::submit([=] { event->when = std::chrono::steady_clock::now(), event->passed = nth; }), cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  emulator::not_within_a_capture("a wait");
  emulator::wait_until([=] { return !emulator::hurries && event->passed == event->recorded; });
  return cudaSuccess;
}
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  return *ms = std::chrono::duration<float, std::milli>(to->when - from->when).count(), cudaSuccess;
}
