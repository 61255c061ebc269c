// course/accesses.h: what a kernel under the emulator reads and writes, as a GPU's memory sees it.
//
// The compiler's -fsanitize=thread puts a call before every read and write, and we link functions of our own in place
// of its library. The n-th time that each lane of a warp comes to one place in the program counts as one instruction of
// the warp. Its transactions are the different sectors of 32 bytes that its lanes touch. In shared memory a word of 4
// bytes lies in bank (address / 4) % 32; lanes that want different words of one bank conflict. If one thread writes a
// word of it and another reads it, in either order, and no __syncwarp or __syncthreads stands in between, that is a
// race: shuffles and votes promise nothing about memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace course {

struct Accesses {
  long reads = 0, writes = 0;  // sectors of global memory
  long conflicts = 0;          // further cycles for bank conflicts in shared memory
  long races = 0;              // reads and writes that have one with another lane's
  uintptr_t racing[2] = {};    // where the two accesses of the first one stand in the program, earlier one first
};

// What a launch of a kernel took: besides, how often warps and blocks were synchronized.
struct Counted : Accesses {
  long meetings, barriers;
};

struct Watched {  // of global memory
  const void* begin;
  size_t bytes;
};

// Begins to count accesses to these pieces and to shared memory; ends it and returns the numbers.
void watch_accesses(const std::vector<Watched>& global);
Accesses watched_accesses();

}  // namespace course
