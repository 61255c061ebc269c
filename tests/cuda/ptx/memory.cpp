// tests/cuda/ptx/memory.cpp: memory: what there is, whether an access is allowed, and whether it is in a race.
//
// Two accesses are in a race if one writes, they are of different threads, and nothing orders them. An access is before
// another in time if its thread is the same; or a barrier of its block, or a __syncwarp of its warp, lies between; or
// its block told the other block by a fence and an atomic operation, and that one learned it by an atomic operation and
// a fence (PTX ISA, memory consistency model: release and acquire patterns). Two that write the same value are let be.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "tests/cuda/ptx/machine.h"

namespace ptx {

Settings settings;
Counts& counts = *new Counts;

void found(Launch& launch, const std::string& what, const std::string& details) { launch.found.emplace(what, details); }
std::string place_of(const Warp& warp, const Instruction& it) {
  return warp.block->launch->kernel->name + ":" + std::to_string(it.line) + " [" + it.text + "]";
}

// ---------------------------------------------------------------------------------------------------------------
// Allocations

namespace {

constexpr int kLine = 32;  // bytes of device memory whose last writer is known

// Memory of zeros that costs nothing until it is touched.
class Untouched {
 public:
  explicit Untouched(size_t bytes) : bytes_(bytes) {
    at_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at_ == MAP_FAILED) fault("no address space");
  }
  Untouched(const Untouched&) = delete;
  Untouched& operator=(const Untouched&) = delete;
  ~Untouched() { munmap(at_, bytes_); }
  template <class T>
  T* as() const {
    return static_cast<T*>(at_);
  }

 private:
  void* at_;
  size_t bytes_;
};

struct Allocation {
  uint64_t at;
  size_t bytes;
  Untouched cells, writers;  // a Cell for each piece; a launch's number for each line
  Allocation(uint64_t where, size_t n) : at(where), bytes(n), cells(n * sizeof(Cell)), writers(n / kLine * 4 + 8) {}
};

auto& all = *new std::map<uint64_t, std::unique_ptr<Allocation>>;  // never destroyed: asked at the very end
Allocation* last_used = nullptr;
uint32_t seen_by_all = 0;  // launches up to this one have ended, and their writes are seen

Allocation* holding(uint64_t at, size_t bytes) {
  if (last_used && at >= last_used->at && at + bytes <= last_used->at + last_used->bytes) return last_used;
  auto next = all.upper_bound(at);
  if (next == all.begin()) return nullptr;
  Allocation* it = (--next)->second.get();
  return at + bytes <= it->at + it->bytes ? last_used = it : nullptr;
}

}  // namespace

void* allocate(size_t bytes) {
  if (bytes > kMemory) return nullptr;
  void* at = aligned_alloc(256, (bytes + 511) / 256 * 256);
  memset(at, 0xff, bytes);
  all[uint64_t(at)] = std::make_unique<Allocation>(uint64_t(at), bytes);
  return at;
}
bool release(void* at) {
  last_used = nullptr;
  if (all.erase(uint64_t(at)) == 0) return false;
  free(at);
  return true;
}
bool is_allocated(uint64_t at, size_t bytes) { return holding(at, bytes) != nullptr; }
std::pair<size_t, size_t> not_released() {
  size_t bytes = 0;
  for (const auto& one : all) bytes += one.second->bytes;
  return {all.size(), bytes};
}
void all_is_seen() { seen_by_all = uint32_t(counts.launches); }

// ---------------------------------------------------------------------------------------------------------------
// Races

namespace {

Access now(const Warp& warp, int lane) {
  Access it;
  it.block = warp.block->number;
  it.warp = int16_t(warp.number);
  it.thread = int16_t(warp.number * kLanes + lane);
  it.barriers = warp.block->barriers;
  it.syncs = warp.syncs;
  it.fences = warp.fenced[lane].fences;
  return it;
}

// Whether `a` is before `b`, both of one block. An access of several threads has none that could be b's.
bool before_in_block(const Access& a, const Access& b) {
  return a.thread == b.thread || a.barriers < b.barriers || (a.warp == b.warp && a.syncs < b.syncs);
}
bool before(const Access& a, const Access& b, const Block& block) {
  if (a.pending) return false;
  if (a.block == b.block) return before_in_block(a, b);
  const auto known = block.learned.find(a.block);
  if (known == block.learned.end()) return false;
  const Access &released = known->second.released, &acquired = known->second.acquired;
  const bool told = a.thread == released.thread ? a.fences < released.fences : before_in_block(a, released);
  return told && (b.thread == acquired.thread ? b.fences >= acquired.fences : before_in_block(acquired, b));
}

// Notes a read. Of reads that nothing orders it keeps whether they are of one thread, one warp, one block.
void note_read(Cell& cell, const Access& it, const Block& block) {
  Access& read = cell.read;
  if (read.block == Access::kNobody || before(read, it, block)) {
    read = it;
  } else if (read.block != it.block) {
    read.block = read.warp = read.thread = Access::kSeveral;
  } else if (read.warp != it.warp) {
    read.warp = read.thread = Access::kSeveral;
  } else {
    read.thread = Access::kSeveral;
  }
}

// One piece of memory. `same`: what is written is there already.
void look_for_race(Warp& warp, const Instruction& it, const Access& access, Cell& cell, uint32_t of, Use use, bool same,
                   const char* where) {
  Block& block = *warp.block;
  Launch& launch = *block.launch;
  if (cell.of != of) {
    cell = Cell{};
    cell.of = of;
  }
  const auto race = [&](const char* what, const Access& other) {
    const auto who = [](const Access& a) {
      return (a.thread < 0 ? "several threads" : "thread " + std::to_string(a.thread)) +
             (a.block < 0 ? "" : " of block " + std::to_string(a.block));
    };
    found(launch, std::string(what) + where + ", " + place_of(warp, it),
          " (" + who(other) + ", then " + who(access) + ")");
  };
  const bool after_write = cell.write.block == Access::kNobody || before(cell.write, access, block);
  if (use == Use::kWrite) {
    if (!same) {
      if (!after_write) race("two writes race in ", cell.write);
      if (cell.read.block != Access::kNobody && !before(cell.read, access, block))
        race("a read and a write race in ", cell.read);
      if (cell.uncoherent) race("a write to what ld.global.nc has read, in ", cell.read);
    }
    if (!same || after_write) cell.write = access;
  } else {
    if (!after_write) race("a write and a read race in ", cell.write);
    if (use == Use::kReadOnce) {
      cell.uncoherent = true;
      if (cell.write.block != Access::kNobody) race("ld.global.nc of what this launch wrote, in ", cell.write);
    }
    if (use != Use::kAtomic) note_read(cell, access, block);
  }
}

// What a launch that begins early may not do before it waits.
void look_for_haste(Warp& warp, const Instruction& it, int lane, const Allocation& memory, uint64_t at, int bytes,
                    bool writes) {
  Launch& launch = *warp.block->launch;
  uint32_t* writers = memory.writers.as<uint32_t>();
  for (uint64_t line = (at - memory.at) / kLine; line <= (at - memory.at + uint64_t(bytes) - 1) / kLine; line++) {
    const bool unseen = writers[line] > seen_by_all && writers[line] < launch.number;
    if (launch.early && !(warp.waited >> lane & 1)) {
      if (writes) found(launch, "a write before griddepcontrol.wait, " + place_of(warp, it));
      else if (unseen)
        found(launch, "a read before griddepcontrol.wait of what an earlier launch wrote, " + place_of(warp, it));
    }
    if (writes) writers[line] = launch.number;
  }
}

// All pieces of an access. cells: of shared memory, or of an allocation, at whose `offset` the access begins.
void look_at_pieces(Warp& warp, const Instruction& it, int lane, Cell* cells, uint64_t offset, int bytes, Use use,
                    const void* value, const char* there, bool is_shared) {
  const int piece = warp.block->launch->kernel->smallest;
  const uint32_t of = is_shared ? warp.block->serial : warp.block->launch->number;
  const Access access = now(warp, lane);
  for (int i = 0; i < bytes; i += piece) {
    const size_t size = size_t(std::min(piece, bytes - i));
    const bool same = value && memcmp(there + i, static_cast<const char*>(value) + i, size) == 0;
    look_for_race(warp, it, access, cells[(offset + uint64_t(i)) / uint64_t(piece)], of, use, same,
                  is_shared ? "shared memory" : "device memory");
  }
}

}  // namespace

void copy_begins(Warp& warp, const Instruction& it, int lane, uint64_t to) {
  Block& block = *warp.block;
  look_at_pieces(warp, it, lane, block.cells.data(), to, 16, Use::kWrite, nullptr, nullptr, true);
  const int piece = block.launch->kernel->smallest;
  for (uint64_t i = to / piece; i < (to + 16 + piece - 1) / piece; i++) block.cells[i].write.pending = true;
}
void copy_ends(Warp& warp, const Instruction& it, int lane, uint64_t to) {
  Block& block = *warp.block;
  const Access access = now(warp, lane);
  const int piece = block.launch->kernel->smallest;
  for (uint64_t i = to / piece; i < (to + 16 + piece - 1) / piece; i++) {
    Access& write = block.cells[i].write;
    if (!write.pending || write.thread != access.thread)
      found(*block.launch, "another write where a copy was pending, " + place_of(warp, it));
    write = access;
  }
}

void fence(Warp& warp, int lane) {
  Access& fenced = warp.fenced[lane];
  fenced.fences++;
  fenced = now(warp, lane);
  for (const auto& [block, released] : warp.heard[lane]) warp.block->learned[block] = {released, fenced};
  warp.heard[lane].clear();
}
void meets_others(Warp& warp, int lane, uint64_t at) {
  std::map<int, Access>& released = warp.block->launch->released[at];
  for (const auto& [block, access] : released)
    if (block != warp.block->number) warp.heard[lane][block] = access;
  if (warp.fenced[lane].fences > 0) released[warp.block->number] = warp.fenced[lane];
}

// ---------------------------------------------------------------------------------------------------------------
// Reaching memory

namespace {

char* within(Warp& warp, const Instruction& it, std::vector<char>& memory, uint64_t begin, uint64_t size, uint64_t at,
             int bytes) {
  if (at + uint64_t(bytes) > size)
    fault("outside of its memory of " + std::to_string(size) + " bytes: byte " + std::to_string(at) + ", " +
          place_of(warp, it));
  return &memory[begin + at];
}

}  // namespace

char* reach(Warp& warp, const Instruction& it, int lane, Space space, uint64_t at, int bytes, Use use,
            const void* value) {
  Block& block = *warp.block;
  Launch& launch = *block.launch;
  if (space == Space::kGeneric && (at & kSharedBit)) {
    space = Space::kShared;
    at &= ~kSharedBit;
  }
  if (at % uint64_t(bytes) != 0) fault("not aligned to " + std::to_string(bytes) + " bytes, " + place_of(warp, it));
  if (space == Space::kParameter) return within(warp, it, launch.parameters, 0, launch.parameters.size(), at, bytes);
  if (space == Space::kLocal) {
    const uint64_t each = uint64_t(launch.kernel->local_bytes);
    return within(warp, it, warp.local, each * uint64_t(lane), each, at, bytes);
  }
  if (space == Space::kShared) {
    char* there = within(warp, it, block.shared, 0, block.shared.size(), at, bytes);
    look_at_pieces(warp, it, lane, block.cells.data(), at, bytes, use, value, there, true);
    return there;
  }
  Allocation* memory = holding(at, size_t(bytes));
  if (!memory)
    fault("not allocated: " + std::to_string(bytes) + " bytes, thread " + std::to_string(warp.number * kLanes + lane) +
          " of block " + std::to_string(block.number) + ", " + place_of(warp, it));
  char* there = reinterpret_cast<char*>(at);
  look_for_haste(warp, it, lane, *memory, at, bytes, use == Use::kWrite || use == Use::kAtomic);
  look_at_pieces(warp, it, lane, memory->cells.as<Cell>(), at - memory->at, bytes, use, value, there, false);
  return there;
}

}  // namespace ptx
