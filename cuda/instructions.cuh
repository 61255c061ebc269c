// cuda/instructions.cuh: the instructions of a GPU that C++ has no words for, each with a twin for the emulator.
//
// A twin does what the instruction is documented to do (PTX ISA), so that a kernel's text around it is the same on
// both.
#pragma once

#ifndef __CUDACC__
#include <vector>
#endif

#include "cuda/machine.cuh"

namespace nanospec {

// 16 bytes that this launch reads once and does not write: they pass through L1 without pushing others out of it.
// (volatile: the load stays where it is written, early, though the compiler would save registers by delaying it.)
__device__ __forceinline__ uint4 load_passing(const uint4* from) {
#ifdef __CUDACC__
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
#else
  return *from;
#endif
}

#ifndef __CUDACC__
struct CopyUnderWay {
  float4* to;
  const float* from;
  int bytes, batches_since;
};
inline std::vector<CopyUnderWay> copies_under_way[1024];  // of each thread of the emulator's block
inline void land(const CopyUnderWay& copy) {
  *copy.to = float4{};
  memcpy(copy.to, copy.from, size_t(copy.bytes));
}
#endif

// Starts to copy 16 bytes into shared memory: the first `bytes` from device memory, zeros behind them. Both addresses
// are multiples of 16. Who started it sees it after a wait, the warp's other lanes after a __syncwarp() behind that.
__device__ __forceinline__ void start_copy(float4* to, const float* from, int bytes) {
#ifdef __CUDACC__
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(unsigned(__cvta_generic_to_shared(to))), "l"(from),
               "r"(bytes)
               : "memory");
#else
  // It may land at any time up to the wait: in one of the emulator's orders at once, in the others not before.
  if (emulator::order == emulator::Order::kDescending) land({to, from, bytes, 0});
  else copies_under_way[threadIdx.x].push_back({to, from, bytes, 0});
#endif
}
// What was started since the last call is one batch.
__device__ __forceinline__ void end_batch() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  for (auto& copy : copies_under_way[threadIdx.x]) copy.batches_since++;
#endif
}
// Waits for all batches but the last. A kernel's last batch is empty: nothing is under way at its end.
__device__ __forceinline__ void wait_for_earlier_batches() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group 1;" ::: "memory");
#else
  auto& copies = copies_under_way[threadIdx.x];
  size_t done = 0;
  while (done < copies.size() && copies[done].batches_since > 1) land(copies[done++]);
  copies.erase(copies.begin(), copies.begin() + ptrdiff_t(done));
#endif
}

// The tensor cores' product of one warp: c (16, 8) += a (16, 16) b (16, 8), a and b of bf16, c of float.
// Lane l = 4 g + q holds, of each pair the first in a register's lower half:
//
//        a      k = 2q, 2q+1   2q+8, 2q+9        b    column g         c      columns 2q, 2q+1
//   row g          a.x            a.z       k = 2q, 2q+1    b.x       row g       c[0], c[1]
//   row g + 8      a.y            a.w       2q+8, 2q+9      b.y       row g + 8   c[2], c[3]
//
// Products of bf16 are exact in float; in what order the sixteen are added is the machine's own, but the same for each
// element of c, which depends on its row of a and its column of b alone.
__device__ __forceinline__ void mma(float (&c)[4], const uint4& a, const uint2& b) {
#ifdef __CUDACC__
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
#else
  static uint32_t board[32][kLanes][6];  // a and b of each warp's lanes: the emulator has one block at a time
  const int lane = int(threadIdx.x) % kLanes, g = lane / 4, q = lane % 4;
  auto& shown = board[threadIdx.x / kLanes];
  memcpy(&shown[lane][0], &a, sizeof a), memcpy(&shown[lane][4], &b, sizeof b);
  __syncwarp();
  for (int k = 0; k < 16; k++) {
    const int holder = k % 8 / 2, high = k / 8;  // the lane of four that has this k, and in which of its registers
    const auto number = [&](int of, int word) {
      const uint32_t two = shown[of * 4 + holder][word];
      return bits_as<float>(k % 2 ? two & 0xffff0000u : two << 16);
    };
    for (int row : {0, 1})
      for (int column : {0, 1})
        c[row * 2 + column] = fused(number(g, row + high * 2), number(q * 2 + column, 4 + high), c[row * 2 + column]);
  }
  __syncwarp();  // all have read
#endif
}

}  // namespace nanospec
