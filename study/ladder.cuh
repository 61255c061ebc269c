// study/ladder.cuh: how a matmul for decoding becomes fast: one row, weights in fp32, in four steps.
//
// Version 0 is plain_matmul (kernels.cuh): a thread for each output of 16 rows, of which decoding uses one. Here are
//   rung 1  a warp for each output. Its lanes share k. But a weight lies 64 bytes from that of the next k: a warp's
//   load
//           takes 4 of the 64 bytes of each piece, and counts on L1 for the other outputs.
//   rung 2  a warp for sixteen outputs, with loads of 16 bytes: a warp's load is 512 bytes in one piece. One load is in
//           flight, and N / 16 warps are few.
//   rung 3  64 slices of k: as many threads for each four outputs. So 64 times as many loads are in flight, and the
//           slices are added in one order.
//   rung 4  is decode_fp32 (cuda/matmul.cuh): eight to sixteen loads in flight for each thread.
// `bench` times all of them on a GPU; the tests hold each against a plain loop, and rung 3 against rung 4 bit for bit.
#pragma once

#include "cuda/matmul.cuh"

namespace nanospec {

struct LadderMatmul {
  const float* x;   // (K)
  Panels<float> w;  // in device order
  float* out;       // (N)
};
constexpr int kLadderThreads = 128;

// A block has the warps of four outputs. Grid: N / 4.
// Budget: 40 registers, 0 bytes shared.
template <int kThreads>
__global__ void ladder_warp_an_output(LadderMatmul s) {
  const int lane = threadIdx.x % kLanes, n = int(blockIdx.x) * (kThreads / kLanes) + int(threadIdx.x) / kLanes;
  if (n >= s.w.n) return;
  float sum = 0;
  for (int k = lane; k < s.w.k; k += kLanes) sum = fused(s.x[k], *s.w.at(k, n), sum);
  for (int half = kLanes / 2; half > 0; half /= 2) sum += __shfl_xor_sync(kEveryLane, sum, half);
  if (lane == 0) s.out[n] = sum;
}

// A block is one warp: lane l has k = l / 4, l / 4 + 8, ... and outputs 4 (l % 4) .. + 3 of sixteen. Grid: N / 16.
// Budget: 40 registers, 0 bytes shared.
template <int kThreads>
__global__ void ladder_sixteen_bytes(LadderMatmul s) {
  const int lane = threadIdx.x, first = int(blockIdx.x) * 16 + lane % 4 * 4;
  float4 sum = make_float4(0, 0, 0, 0);
  ROLLED
  for (int k = lane / 4; k < s.w.k; k += kThreads / 4) multiply_add(sum, s.x[k], load_weights(s.w.at(k, first)));
  for (int apart = 4; apart < kThreads; apart *= 2)
    add(sum, make_float4(__shfl_xor_sync(kEveryLane, sum.x, apart), __shfl_xor_sync(kEveryLane, sum.y, apart),
                         __shfl_xor_sync(kEveryLane, sum.z, apart), __shfl_xor_sync(kEveryLane, sum.w, apart)));
  if (lane < 4) *reinterpret_cast<float4*>(s.out + first) = sum;
}

// Grid: N / 16. The order of the sums is decode_fp32's.
// Budget: 40 registers, 4096 bytes shared.
template <int kThreads>
__global__ void ladder_slices(LadderMatmul s) {
  struct Sums {
    float of[kSlices][16];
  };
  Sums& sums = shared<Sums>();
  const int slice = int(threadIdx.x) / 4, quad = int(threadIdx.x) % 4 * 4, first = int(blockIdx.x) * 16;
  const int length = slice_length(s.w.k), begin = slice * length, end = smaller(s.w.k, begin + length);
  float4 sum = make_float4(0, 0, 0, 0);
  ROLLED
  for (int k = begin; k < end; k++) multiply_add(sum, s.x[k], load_weights(s.w.at(k, first + quad)));
  *reinterpret_cast<float4*>(&sums.of[slice][quad]) = sum;
  __syncthreads();
  if (threadIdx.x >= 16) return;
  float total = 0;
  for (int i = 0; i < kSlices; i++) total += sums.of[i][threadIdx.x];
  s.out[first + int(threadIdx.x)] = total;
}

// The rungs below the tuned kernel, from 1 on. out has pad16(N) numbers.
constexpr int kRungs = 3;
inline const char* rung_name(int rung) {
  return rung == 1 ? "a warp an output" : rung == 2 ? "16-byte loads" : "64 slices";
}
inline void run_rung(int rung, const LadderMatmul& s) {
  const int warps = kLadderThreads / kLanes, tiles = pad16(s.w.n) / 16;
  if (rung == 1) start(ladder_warp_an_output<kLadderThreads>, (s.w.n + warps - 1) / warps, kLadderThreads, s);
  else if (rung == 2) start(ladder_sixteen_bytes<kLanes>, tiles, kLanes, s);
  else start(ladder_slices<kProductThreads>, tiles, kProductThreads, s);
}

}  // namespace nanospec
