// tests/cuda/ptx/machine.h: what runs a kernel: lanes, warps, blocks, memory, and who did what to memory when.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/ptx/program.h"

namespace ptx {

// ---------------------------------------------------------------------------------------------------------------
// Registers

// A register of all lanes. A signed number fills the 64 bits with its sign, an unsigned one with zeros, so that a
// narrower type reads the right bits.
struct Register {
  uint64_t lane[kLanes];
};
template <class T>
T from_bits(uint64_t bits) {
  T value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
template <class T>
uint64_t to_bits(T value) {
  if constexpr (std::is_integral<T>::value) return uint64_t(value);
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  return bits;
}

// Calls f(lane) for the lanes of a mask, the lowest first.
template <class F>
void for_lanes(Mask mask, F f) {
  if (mask == kAll) {
    for (int lane = 0; lane < kLanes; lane++) f(lane);
  } else {
    for (; mask; mask &= mask - 1) f(__builtin_ctz(mask));
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Who did what when

// An access to memory. A thread's time is counted by the barriers that its block has passed, by the __syncwarps of its
// warp, and by its own fences: these order accesses of different threads, and nothing else does (a shuffle does not).
struct Access {
  static constexpr int kNobody = -1, kSeveral = -2;
  int block = kNobody;
  int16_t warp = kNobody, thread = kNobody;
  uint32_t barriers = 0, syncs = 0, fences = 0;
  bool pending = false;  // an asynchronous copy that nobody has waited for
};
// The last write of a piece of memory, and those that read it since.
struct Cell {
  uint32_t of = 0;  // which launch's accesses these are; of shared memory, which block's
  Access write, read;
  bool uncoherent = false;  // read by ld.global.nc: this launch may not write it
};

// A thread tells others by a fence and an atomic operation what had been done in its block before that fence
// (`released`). A thread that meets it in an atomic operation, and then has a fence, has learned it (`acquired`).
struct Learned {
  Access released, acquired;
};

// ---------------------------------------------------------------------------------------------------------------
// Lanes, warps, blocks

struct Copy {  // into shared memory, not waited for
  uint64_t to, from;
  int bytes, batch;
};

struct Block;
struct Launch;

struct Warp {
  Block* block = nullptr;
  int number = 0;
  std::unique_ptr<Register[]> registers;  // they begin as whatever was there
  Mask all = 0;                           // the lanes that there are,
  Mask live = 0;                          // that have not ended,
  Mask meeting = 0;                       // that wait for others of their warp,
  Mask at_barrier = 0;                    // or of their block
  Mask waited = 0;                        // that have waited for earlier launches
  int at[kLanes] = {};                    // the next instruction of each
  uint32_t syncs = 0;                     // how often all lanes met at __syncwarp
  Access fenced[kLanes];                  // the last fence of each
  std::vector<Copy> copies[kLanes];
  int batches[kLanes] = {};             // of copies that were closed
  std::map<int, Access> heard[kLanes];  // by atomic operations, to be learned at the next fence
  std::vector<char> local;              // (lane, bytes)

  Register& reg(int which) { return registers[size_t(which)]; }
};

struct Block {
  Launch* launch = nullptr;
  int number = 0;
  uint32_t place[3] = {};  // in the grid
  std::vector<Warp> warps;
  std::vector<char> shared;
  std::vector<Cell> cells;  // of shared memory
  uint32_t serial = 0;      // no other block has it
  uint32_t barriers = 0;
  std::map<int, Learned> learned;  // of other blocks
};

struct Launch {
  const Kernel* kernel = nullptr;
  uint32_t grid[3] = {};
  int threads = 0;  // of a block
  std::vector<char> parameters;
  bool early = false;     // it may begin before the launch before it has ended
  bool together = false;  // all blocks run side by side: they may wait for one another
  uint32_t number = 0;
  std::map<uint64_t, std::map<int, Access>> released;  // by atomic operations on an address, for each block
  std::map<std::string, std::string> found;            // what is wrong, and the details of the first time
};

// ---------------------------------------------------------------------------------------------------------------
// Settings: words of NANOSPEC_PTX (runtime.cpp), such as "descending early ampere together"

// Whose turn it is among lanes, warps and blocks that may go on. kLockstep: a warp's lanes together where they can.
enum class Order { kLockstep, kAscending, kDescending, kShuffled };
// How the tensor cores of a device round (mma.cpp).
enum class Rounding { kHopper, kAmpere, kFused };

struct Settings {
  Order order = Order::kLockstep;
  Rounding rounding = Rounding::kHopper;
  bool late = true;       // asynchronous copies are done as late as they may, or at once
  bool together = false;  // all blocks of a launch side by side
};
extern Settings settings;

// What ran, for the report.
struct Counts {
  long launches = 0, instructions = 0;  // those of each thread
  long early = 0, pieces = 0;           // launches that may begin early, pieces of memory asked for
  std::set<std::string> kernels;
};
extern Counts& counts;  // never destroyed: the runtime reports them last

// ---------------------------------------------------------------------------------------------------------------
// memory.cpp

enum class Use { kRead, kReadOnce, kWrite, kAtomic };

constexpr size_t kMemory = size_t(1) << 30;         // bytes of the device
constexpr uint64_t kSharedBit = uint64_t(1) << 62;  // of a generic address: it is one of shared memory

// Device memory, or the host's that a device may reach. It begins as NaNs. nullptr where there is no room.
void* allocate(size_t bytes);
// Returns false where `at` was not allocated.
bool release(void* at);
// Whether all of these bytes are of one allocation.
bool is_allocated(uint64_t at, size_t bytes);
// How many allocations there are, and their bytes.
std::pair<size_t, size_t> not_released();
// The host wrote all of these, or waited for all launches: what a launch wrote before is seen by all.
void all_is_seen();

// Where `bytes` at an address lie, for one lane of an instruction. `value`: what is to be written there, if that is
// known. Checks bounds, alignment and races; what is wrong is noted with the launch, or is a fault.
char* reach(Warp& warp, const Instruction& it, int lane, Space space, uint64_t at, int bytes, Use use,
            const void* value = nullptr);
// An asynchronous copy's write of 16 bytes into shared memory: its beginning, and its end.
void copy_begins(Warp& warp, const Instruction& it, int lane, uint64_t to);
void copy_ends(Warp& warp, const Instruction& it, int lane, uint64_t to);
// A lane's fence, and an atomic operation on this address.
void fence(Warp& warp, int lane);
void meets_others(Warp& warp, int lane, uint64_t at);

// Notes what is wrong, once, and the details of the first time.
void found(Launch& launch, const std::string& what, const std::string& details = "");
// "kernel:line [instruction]"
std::string place_of(const Warp& warp, const Instruction& it);

// mma.cpp: one warp's product, by the fragments of its lanes.
void multiply_fragments(Warp& warp, const Instruction& it, Mask mask);

// run.cpp: runs a launch to its end. Throws std::runtime_error with all that was found.
void run(Launch& launch);

}  // namespace ptx
