// tests/emulator.h: a GPU for tests: enough of CUDA to run our own __global__ kernels under g++.
//
// A thread is a fiber. A block's fibers take turns on one CPU until they meet: at a warp's shuffle or vote, or at the
// block's barrier. `order` decides who goes first, so that a kernel whose result depends on it shows a race. Shared
// memory begins as NaNs, and lies, like all memory of the "device", where AddressSanitizer watches its ends.
//
// Faults that it reports, as std::runtime_error from the launch: threads of a warp or a block that wait in different
// lines, or for one that has ended; a barrier that some never reach.
//
// Include it before anything of nanospec: it stands in for <cuda_runtime.h>, and renames the namespace, so that the
// linker cannot take this code with a GPU for that without.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#define EMULATED_CUDA
#define nanospec nanospec_emulated

// ---------------------------------------------------------------------------------------------------------------
// Words of the language

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct float2 {
  float x, y;
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
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

inline dim3 threadIdx, blockIdx, blockDim, gridDim;

// ---------------------------------------------------------------------------------------------------------------
// Blocks of fibers

namespace emulator {

enum class Order { kAscending, kDescending, kShuffled };
inline Order order = Order::kAscending;  // of a block's threads, whenever several could go on; and of the blocks

constexpr int kWarp = 32;
constexpr size_t kStack = 64 << 10;

enum State { kReady, kAtWarp, kAtBlock, kDone };

struct Fiber {
  ucontext_t context;
  jmp_buf place;
  bool begun = false;
  State state = kReady;
  int line = 0;           // where it waits
  unsigned meetings = 0;  // of its warp that it came to: which of two buffers it writes
};

class Block {
 public:
  // Runs body() once for each of `threads` threads.
  void run(int threads, const std::function<void()>& body) {
    body_ = &body;
    threads_ = threads;
    if (int(fibers_.size()) < threads) fibers_.resize(threads), stacks_.resize(size_t(threads) * kStack);
    shared_.clear();
    failure_.clear();
    for (int i = 0; i < threads; i++) fibers_[i].begun = false, fibers_[i].state = kReady, fibers_[i].meetings = 0;
    votes_ = 0;
    for (int left = threads; left > 0 && failure_.empty();) {
      const int next = choose();
      if (next < 0) {
        fail_stuck();
        break;
      }
      current_ = next;
      threadIdx = dim3(unsigned(next));
      resume(fibers_[next]);
      left -= fibers_[next].state == kDone;
      if (fibers_[next].state != kReady) settle(next);
    }
    if (!failure_.empty()) throw std::runtime_error(failure_);
  }

  // The calling thread waits for its warp, or for its block.
  void wait(State where, int line) {
    Fiber& me = fibers_[current_];
    me.state = where, me.line = line;
    leave(me);
  }

  // What the lanes of the calling thread's warp show each other in this meeting; valid until the next but one.
  template <class T>
  const uint64_t* show(const T& value, int line) {
    static_assert(sizeof(T) <= 8, "a shuffle moves up to 8 bytes");
    uint64_t* const board = boards_[current_ / kWarp][fibers_[current_].meetings++ % 2];
    memcpy(&board[current_ % kWarp], &value, sizeof value);
    wait(kAtWarp, line);
    return board;
  }
  // The block's barrier that also counts.
  int count(bool vote, int line) {
    counts_[votes_ % 2] += vote;
    wait(kAtBlock, line);
    return counts_[(votes_ - 1) % 2];
  }
  void* shared(const void* tag, size_t bytes) {
    auto& memory = shared_[tag];
    if (!memory) {
      memory.reset(static_cast<char*>(aligned_alloc(16, (bytes + 15) / 16 * 16)));
      memset(memory.get(), 0xff, bytes);
    }
    return memory.get();
  }
  int lane() const { return current_ % kWarp; }
  int lanes() const { return std::min(kWarp, threads_ - current_ / kWarp * kWarp); }

 private:
  struct Free {
    void operator()(char* p) const { free(p); }
  };

  int choose() {
    int ready[1024], n = 0;
    for (int i = 0; i < threads_; i++) {
      const int at = order == Order::kDescending ? threads_ - 1 - i : i;
      if (fibers_[at].state != kReady) continue;
      if (order != Order::kShuffled) return at;
      ready[n++] = at;
    }
    return n == 0 ? -1 : ready[random_() % unsigned(n)];
  }
  // After thread `i` has come to wait or ended: lets its warp or the block go on if it was the last.
  void settle(int i) {
    const int first = i / kWarp * kWarp, last = std::min(threads_, first + kWarp);
    const State state = fibers_[i].state;
    if (state == kAtWarp) release(first, last, kAtWarp, "the lanes of a warp");
    else if (state == kAtBlock && release(0, threads_, kAtBlock, "the threads of a block")) counts_[++votes_ % 2] = 0;
  }
  bool release(int first, int last, State where, const char* who) {
    int line = 0;
    for (int i = first; i < last; i++) {
      if (fibers_[i].state != where) return false;
      if (line != 0 && fibers_[i].line != line) {
        failure_ = std::string("divergent: ") + who + " wait in different lines, " + std::to_string(line) + " and " +
                   std::to_string(fibers_[i].line);
        return false;
      }
      line = fibers_[i].line;
    }
    for (int i = first; i < last; i++) fibers_[i].state = kReady;
    return true;
  }
  void fail_stuck() {
    int waiting = 0, line = 0, ended = 0;
    for (int i = 0; i < threads_; i++) {
      ended += fibers_[i].state == kDone;
      if (fibers_[i].state != kDone) waiting++, line = fibers_[i].line;
    }
    failure_ = "divergent: " + std::to_string(waiting) + " threads wait, one in line " + std::to_string(line) +
               ", for others that wait elsewhere or have ended (" + std::to_string(ended) + ")";
  }

  void resume(Fiber& fiber) {
    if (_setjmp(home_)) return;
    if (fiber.begun) _longjmp(fiber.place, 1);
    fiber.begun = true;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stacks_.data() + size_t(current_) * kStack;
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, reinterpret_cast<void (*)()>(&Block::enter), 0);
    setcontext(&fiber.context);
  }
  void leave(Fiber& fiber) {
    if (!_setjmp(fiber.place)) _longjmp(home_, 1);
  }
  static void enter();

  const std::function<void()>* body_ = nullptr;
  int threads_ = 0, current_ = 0;
  std::vector<Fiber> fibers_;
  std::vector<char> stacks_;
  jmp_buf home_;
  uint64_t boards_[32][2][kWarp];
  int counts_[2] = {0, 0};
  unsigned votes_ = 0;
  std::map<const void*, std::unique_ptr<char, Free>> shared_;
  std::string failure_;
  std::mt19937 random_{1};
};

inline Block block;

inline void Block::enter() {
  try {
    (*block.body_)();
  } catch (const std::exception& error) { block.failure_ = error.what(); }
  block.fibers_[block.current_].state = kDone;
  _longjmp(block.home_, 1);
}

inline void* shared(const void* tag, size_t bytes) { return block.shared(tag, bytes); }

inline void run(dim3 grid, int threads, const std::function<void()>& body) {
  const long blocks = long(grid.x) * grid.y * grid.z;
  std::vector<long> turn(blocks);
  for (long i = 0; i < blocks; i++) turn[i] = order == Order::kDescending ? blocks - 1 - i : i;
  if (order == Order::kShuffled) std::shuffle(turn.begin(), turn.end(), std::mt19937(7));
  gridDim = grid, blockDim = dim3(unsigned(threads));
  for (long i : turn) {
    blockIdx = dim3(unsigned(i % grid.x), unsigned(i / grid.x % grid.y), unsigned(i / grid.x / grid.y));
    block.run(threads, body);
  }
}

// What a captured stream recorded.
using Recording = std::vector<std::function<void()>>;
inline Recording* recording = nullptr;  // while a capture is under way

inline void submit(std::function<void()> work) {
  if (recording) recording->push_back(std::move(work));
  else work();
}
inline void launch(dim3 grid, int threads, std::function<void()> body) {
  if (threads < 1 || threads > 1024 || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535)
    throw std::runtime_error("a launch of no threads, or of too many");
  submit([=] { run(grid, threads, body); });
}

}  // namespace emulator

// ---------------------------------------------------------------------------------------------------------------
// Meetings and votes. `line` is the caller's: all who meet must stand in one line of the text.

inline void __syncthreads(int line = __builtin_LINE()) { emulator::block.wait(emulator::kAtBlock, line); }
inline int __syncthreads_count(bool vote, int line = __builtin_LINE()) { return emulator::block.count(vote, line); }
inline int __syncthreads_or(bool vote, int line = __builtin_LINE()) { return emulator::block.count(vote, line) > 0; }
inline int __syncthreads_and(bool vote, int line = __builtin_LINE()) {
  return emulator::block.count(vote, line) == int(blockDim.x);
}
inline void __syncwarp(unsigned = 0xffffffffu, int line = __builtin_LINE()) {
  emulator::block.wait(emulator::kAtWarp, line);
}
template <class T>
T __shfl_sync(unsigned, T value, int from, int line = __builtin_LINE()) {
  const uint64_t* board = emulator::block.show(value, line);
  memcpy(&value, &board[from % 32], sizeof value);
  return value;
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with, int line = __builtin_LINE()) {
  return __shfl_sync(mask, value, emulator::block.lane() ^ with, line);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, int by, int line = __builtin_LINE()) {
  const int lane = emulator::block.lane();
  return __shfl_sync(mask, value, lane < by ? lane : lane - by, line);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, int by, int line = __builtin_LINE()) {
  const int lane = emulator::block.lane();
  return __shfl_sync(mask, value, lane + by > 31 ? lane : lane + by, line);
}
inline unsigned __ballot_sync(unsigned, bool vote, int line = __builtin_LINE()) {
  const uint64_t* board = emulator::block.show(vote, line);
  unsigned votes = 0;
  for (int lane = 0; lane < emulator::block.lanes(); lane++) {
    bool one;
    memcpy(&one, &board[lane], sizeof one);
    votes |= unsigned(one) << lane;
  }
  return votes;
}
inline int __any_sync(unsigned mask, bool vote, int line = __builtin_LINE()) {
  return __ballot_sync(mask, vote, line) != 0;
}
inline int __all_sync(unsigned mask, bool vote, int line = __builtin_LINE()) {
  return __ballot_sync(mask, !vote, line) == 0;
}

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
template <class T>
T __ldg(const T* at) {
  return *at;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }

// ---------------------------------------------------------------------------------------------------------------
// The runtime: memory, one stream, graphs

using cudaError_t = int;
using cudaStream_t = int;
enum { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 };
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
inline cudaError_t cudaGetDeviceCount(int* n) { return *n = 1, cudaSuccess; }
inline cudaError_t cudaMemGetInfo(size_t* free, size_t* total) { return *free = *total = 1u << 30, cudaSuccess; }
inline cudaError_t cudaMalloc(void** at, size_t bytes) {
  *at = aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (*at) memset(*at, 0xff, bytes);
  return *at ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaFree(void* at) { return free(at), cudaSuccess; }
inline cudaError_t cudaMallocHost(void** at, size_t bytes) { return cudaMalloc(at, bytes); }
inline cudaError_t cudaFreeHost(void* at) { return cudaFree(at); }
inline cudaError_t cudaMemset(void* at, int byte, size_t n) { return memset(at, byte, n), cudaSuccess; }
inline cudaError_t cudaMemsetAsync(void* at, int byte, size_t n, cudaStream_t) {
  return emulator::submit([=] { memset(at, byte, n); }), cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind) {
  if (emulator::recording) throw std::runtime_error("a copy that waits cannot be captured");
  return memcpy(to, from, n), cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind, cudaStream_t) {
  return emulator::submit([=] { memcpy(to, from, n); }), cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) {
  if (emulator::recording) throw std::runtime_error("a wait cannot be captured");
  return cudaSuccess;
}
inline cudaError_t cudaStreamBeginCapture(cudaStream_t, int) {
  return emulator::recording = new emulator::Recording, cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = new EmulatedGraph{std::move(*emulator::recording)};
  delete emulator::recording;
  return emulator::recording = nullptr, cudaSuccess;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
  return *ready = new EmulatedGraph(*graph), cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready) { return delete ready, cudaSuccess; }
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t) {
  for (const auto& work : ready->recording) work();
  return cudaSuccess;
}
