// cuda/instructions.cuh: instructions of a GPU that C++ cannot express, each with a version for the emulator.
//
// The emulator's version does what the instruction's manual says (PTX ISA). So the kernels' code is the same for both.
#pragma once

#ifndef __CUDACC__
#include <vector>
#endif

#include "cuda/machine.cuh"

namespace nanospec {

// Loads 16 bytes that this launch reads once and does not write. They are not kept in L1, so they evict nothing there.
// (volatile: else the compiler would move the load to a later place, to save registers.)
__device__ __forceinline__ uint4 load_streaming(const uint4* from) {
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

__device__ __forceinline__ float4 load_four(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ __forceinline__ float number_of(const float4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

__device__ __forceinline__ uint32_t load_streaming(const uint32_t* from) {
#ifdef __CUDACC__
  uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
#else
  return *from;
#endif
}

// sum plus the products of four bytes, codes (0 .. 255) by x (-128 .. 127). It is exact. (CUDA's __dp4a has not this
// pair of signs; the instruction has.)
__device__ __forceinline__ int32_t dp4a(uint32_t codes, uint32_t x, int32_t sum) {
#ifdef __CUDACC__
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(codes), "r"(x));
#else
  for (int shift = 0; shift < 32; shift += 8) sum += int32_t(codes >> shift & 255) * int8_t(x >> shift & 255);
#endif
  return sum;
}

// Asks for the bytes around an address of device memory, so that they are in L1 when they are needed.
__device__ __forceinline__ void ask(const void* at) {
#ifdef __CUDACC__
  asm volatile("prefetch.global.L1 [%0];" ::"l"(at));
#else
  static_cast<void>(*static_cast<const volatile char*>(at));
#endif
}
// Asks for `bytes` in one piece, a multiple of 16, so that they come into L2: from sm_90 on, by one thread.
__device__ __forceinline__ void ask_for_piece(const void* from, uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
#elif !defined(__CUDACC__)
  emulator::pieces_asked++;
  for (uint32_t i = 0; i < bytes; i += 16) ask(static_cast<const char*>(from) + i);
#endif
}

#ifndef __CUDACC__
struct PendingCopy {
  float4* to;
  const float* from;
  int bytes, batches_since;
};
inline std::vector<PendingCopy> pending_copies[1024];  // of each thread of the emulator's block
inline void finish_copy(const PendingCopy& copy) {
  *copy.to = float4{};
  memcpy(copy.to, copy.from, size_t(copy.bytes));
}
#endif

// Starts to copy 16 bytes into shared memory: the first `bytes` from device memory, the others zeros. Both addresses
// are multiples of 16. The thread that started it sees the bytes after a wait, the warp's other lanes after the
// __syncwarp() that follows the wait.
__device__ __forceinline__ void start_copy(float4* to, const float* from, int bytes) {
#ifdef __CUDACC__
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(unsigned(__cvta_generic_to_shared(to))), "l"(from),
               "r"(bytes)
               : "memory");
#else
  // The copy may be done at any time up to the wait: in one of the emulator's orders at once, in the others at the
  // wait.
  if (emulator::order == emulator::Order::kDescending) finish_copy({to, from, bytes, 0});
  else pending_copies[threadIdx.x].push_back({to, from, bytes, 0});
#endif
}
// The copies started since the last call become one batch.
__device__ __forceinline__ void end_batch() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  for (auto& copy : pending_copies[threadIdx.x]) copy.batches_since++;
#endif
}
// Waits for all batches but the last. A kernel's last batch is empty, so no copy is pending when it ends.
__device__ __forceinline__ void wait_for_earlier_batches() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group 1;" ::: "memory");
#else
  auto& copies = pending_copies[threadIdx.x];
  size_t done = 0;
  while (done < copies.size() && copies[done].batches_since > 1) finish_copy(copies[done++]);
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
// Products of bf16 are exact in float. The machine decides in which order it adds the sixteen, but it is the same order
// for each element of c. So an element depends on its row of a and its column of b alone.
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
  auto& words = board[threadIdx.x / kLanes];
  memcpy(&words[lane][0], &a, sizeof a);
  memcpy(&words[lane][4], &b, sizeof b);
  __syncwarp();
  for (int k = 0; k < 16; k++) {
    const int holder = k % 8 / 2, high = k / 8;  // which lane of four has this k, and in which of its registers
    const auto number = [&](int four, int word) {
      const uint32_t two = words[four * 4 + holder][word];
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
