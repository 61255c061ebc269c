// course/accesses.cpp: the functions that -fsanitize=thread calls. This file itself is compiled without it.
#include "course/accesses.h"

#include <link.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <unordered_map>

namespace course {
namespace {

using Lanes = std::array<uintptr_t, 32>;  // an address for each lane; 0: none

// One place in the program, for one warp of the current block.
struct Place {
  std::array<size_t, 32> times{};  // that each lane has come here
  std::vector<Lanes> instructions;
  size_t size = 0;
  bool write = false, in_shared = false;
};

bool watching = false, inside = false;
std::vector<Watched> pieces;
Accesses counted;
std::map<std::pair<const void*, int>, Place> places;  // of the current block; by the place's address and the warp
dim3 current;

// Where the system put this program, and what `__shared__` declares: the emulator makes it thread-local variables.
uintptr_t program = 0;  // what the program's addresses count from
Watched declared{nullptr, 0};
int find_program(dl_phdr_info* info, size_t, void*) {
  program = info->dlpi_addr;
  for (int i = 0; i < info->dlpi_phnum; i++)
    if (info->dlpi_phdr[i].p_type == PT_TLS) declared = {info->dlpi_tls_data, info->dlpi_phdr[i].p_memsz};
  return 1;  // the first is the program itself
}
bool holds(const Watched& piece, uintptr_t at) {
  return at >= uintptr_t(piece.begin) && at < uintptr_t(piece.begin) + piece.bytes;
}

// Who touched a word of shared memory since the last meeting that orders memory.
constexpr int kSeveral = 1 << 16;
struct Touched {
  long fences = -1;
  int by[2] = {-1, -1};    // who read it, and who wrote it: a thread of the block, -1 for none, kSeveral
  uintptr_t from[2] = {};  // where in the program
};
std::unordered_map<uintptr_t, Touched> touched;

void look_for_race(uintptr_t word, int thread, bool write, uintptr_t from) {
  Touched& one = touched[word];
  const long now = emulator::block.fences + emulator::block.barriers;
  if (one.fences != now) one = {now};
  const int other = one.by[!write];
  if (other >= 0 && other != thread && counted.races++ == 0) {
    counted.racing[0] = one.from[!write];
    counted.racing[1] = from;
  }
  one.from[write] = from;
  int& mine = one.by[write];
  mine = mine < 0 || mine == thread ? thread : kSeveral;
}

long sectors(const Lanes& lanes, size_t size) {
  std::set<uintptr_t> touched;
  for (uintptr_t at : lanes)
    for (uintptr_t sector = at / 32; at && sector <= (at + size - 1) / 32; sector++) touched.insert(sector);
  return long(touched.size());
}

// Numbers of more than 4 bytes are read by half or a quarter of a warp at a time.
long conflicts(const Lanes& lanes, size_t size) {
  const size_t together = 32 / std::max<size_t>(1, size / 4);
  long turns = 0;
  for (size_t first = 0; first < 32; first += together) {
    std::map<uintptr_t, std::set<uintptr_t>> banks;  // the words that are wanted of each
    for (size_t lane = first; lane < first + together; lane++)
      for (uintptr_t word = lanes[lane] / 4; lanes[lane] && word <= (lanes[lane] + size - 1) / 4; word++)
        banks[word % 32].insert(word);
    size_t most = 1;
    for (const auto& [bank, words] : banks) most = std::max(most, words.size());
    turns += long(most) - 1;
  }
  return turns;
}

void end_block() {
  for (const auto& [key, place] : places)
    for (const Lanes& lanes : place.instructions) {
      if (place.in_shared) counted.conflicts += conflicts(lanes, place.size);
      else (place.write ? counted.writes : counted.reads) += sectors(lanes, place.size);
    }
  places.clear();
}

void access(const void* address, size_t size, bool write, const void* from) {
  const uintptr_t at = uintptr_t(address);
  // The emulator's own writes to its block come when that is half written: then it cannot be asked what it holds.
  if (!watching || inside || holds({&emulator::block, sizeof emulator::block}, at)) return;
  inside = true;
  const bool in_shared = emulator::block.holds(address) || holds(declared, at);
  const bool in_global =
      !in_shared && std::any_of(pieces.begin(), pieces.end(), [&](const Watched& piece) { return holds(piece, at); });
  if (in_shared || in_global) {
    if (current.x != blockIdx.x || current.y != blockIdx.y || current.z != blockIdx.z) {
      end_block();
      memset(const_cast<void*>(declared.begin), 0xff, declared.bytes);  // a NaN in any type of floats
      touched.clear();
      current = blockIdx;
    }
    for (uintptr_t word = at / 4; in_shared && word <= (at + size - 1) / 4; word++)
      look_for_race(word, int(threadIdx.x), write, uintptr_t(from) - program);
    Place& place = places[{from, int(threadIdx.x / 32)}];
    const size_t lane = threadIdx.x % 32, time = place.times[lane]++;
    if (time == place.instructions.size()) place.instructions.push_back(Lanes{});
    place.instructions[time][lane] = at;
    place.size = size;
    place.write = write;
    place.in_shared = in_shared;
  }
  inside = false;
}

}  // namespace

void watch_accesses(const std::vector<Watched>& global) {
  dl_iterate_phdr(find_program, nullptr);
  pieces = global;
  counted = {};
  places.clear();
  current = dim3(~0u);
  watching = true;
}
Accesses watched_accesses() {
  watching = false;
  end_block();
  return counted;
}

}  // namespace course

// ---------------------------------------------------------------------------------------------------------------
// The names are the compiler's

#define FROM __builtin_return_address(0)
#define ACCESS(name, size, write) \
  void name(void* at) { course::access(at, size, write, FROM); }
#define ACCESSES(size)                             \
  ACCESS(__tsan_read##size, size, false)           \
  ACCESS(__tsan_write##size, size, true)           \
  ACCESS(__tsan_unaligned_read##size, size, false) \
  ACCESS(__tsan_unaligned_write##size, size, true)
extern "C" {
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_read_range(void* at, size_t size) { course::access(at, size, false, FROM); }
void __tsan_write_range(void* at, size_t size) { course::access(at, size, true, FROM); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
// clang's names for these, which are not counted.
void* __tsan_memcpy(void* to, const void* from, size_t n) { return memcpy(to, from, n); }
void* __tsan_memmove(void* to, const void* from, size_t n) { return memmove(to, from, n); }
void* __tsan_memset(void* to, int byte, size_t n) { return memset(to, byte, n); }
// clang's guards of variables that are made once.
unsigned char __tsan_atomic8_load(const volatile unsigned char* at, int) { return *at; }
// The library's counters of owners.
int __tsan_atomic32_fetch_add(volatile int* at, int add, int) { return __atomic_fetch_add(at, add, __ATOMIC_RELAXED); }
}
