// study/limits.cuh: what a GPU can do at most, measured by three kernels that do nothing else: read memory, multiply
// and add in fp32, multiply matrices of bf16 on the tensor cores.
//
// In order: the GPU's own clock; the kernels; their launches. All three run on as many blocks as fit on the device at
// once, so that none waits for a second turn, and each thread has several independent pieces of work in flight.
#pragma once

#include "cuda/instructions.cuh"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The clock

// Seconds that the GPU takes for what `launches` launches.
template <class F>
double gpu_seconds(F launches) {
  Event begin(true), end(true);
  begin.record();
  launches();
  end.record();
  return end.seconds_since(begin);
}

// ---------------------------------------------------------------------------------------------------------------
// The kernels

constexpr int kLimitThreads = 256, kLimitBlocks = 4;  // of a block; blocks on each multiprocessor

constexpr int kReadAhead = 8;                           // loads of 16 bytes that a thread has in flight
constexpr int kReadChunk = kLimitThreads * kReadAhead;  // float4s that a block reads in one turn: 32 KB

// sums[warp] = the sum of what the warp read; together the warps read each of `chunks` chunks of `data` once. Bytes
// moved: 16 a float4, and 4 a warp. A block takes every gridDim.x-th chunk; a thread's eight loads of it do not wait
// for each other, so that the 1,024 threads of a multiprocessor have some 100 KB in flight.
// Budget: 40 registers, 0 bytes shared.
template <int kThreads>
__global__ __launch_bounds__(kThreads) void read_kernel(const uint4* data, int chunks, float* sums) {
  float sum = 0;
  for (int chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const uint4* const from = data + size_t(chunk) * kReadChunk + threadIdx.x;
    uint4 v[kReadAhead];
    UNROLL
    for (int i = 0; i < kReadAhead; i++) v[i] = load_streaming(from + i * kThreads);
    UNROLL
    for (int i = 0; i < kReadAhead; i++)
      sum += (bits_as<float>(v[i].x) + bits_as<float>(v[i].y)) + (bits_as<float>(v[i].z) + bits_as<float>(v[i].w));
  }
  for (int half = kLanes / 2; half > 0; half /= 2) sum += __shfl_xor_sync(kEveryLane, sum, half);
  if (threadIdx.x % kLanes == 0) sums[(blockIdx.x * kThreads + threadIdx.x) / kLanes] = sum;
}

constexpr int kChains = 8;  // of a thread; none waits for another
constexpr int kTurns = 16;  // steps of all chains in one turn of the loop

// Calls step(chain), kTurns times `turns` for each chain, the chains in turn.
template <class F>
__device__ __forceinline__ void run_chains(int turns, F step) {
  for (int turn = 0; turn < turns; turn++) {
    UNROLL
    for (int i = 0; i < kTurns; i++) UNROLL
    for (int chain = 0; chain < kChains; chain++) step(chain);
  }
}

// Each thread steps x = a x + b, 16 `turns` times, in eight chains that begin at 0 to 7, and writes their sum. It moves
// 4 bytes a thread and nothing else: all is in registers.
// Budget: 32 registers, 0 bytes shared.
template <int kThreads>
__global__ __launch_bounds__(kThreads) void multiply_add_kernel(int turns, float a, float b, float* out) {
  float x[kChains], sum = 0;
  UNROLL
  for (int i = 0; i < kChains; i++) x[i] = float(i);
  run_chains(turns, [&](int i) { x[i] = fused(x[i], a, b); });
  UNROLL
  for (int i = 0; i < kChains; i++) sum += x[i];
  out[blockIdx.x * kThreads + threadIdx.x] = sum;
}

// The same on the tensor cores: each warp adds the product of one a (16, 16) and one b (16, 8) to eight matrices (16,
// 8) in turn, 16 `turns` times; a thread writes the sum of its four numbers of each. Every register of a, and of b,
// holds the same two bf16 numbers. This is the rate of `mma`, which every kernel here multiplies with; a GPU that
// has wgmma (sm_90) multiplies faster with that.
// Budget: 48 registers, 0 bytes shared.
template <int kThreads>
__global__ __launch_bounds__(kThreads) void tensor_kernel(int turns, uint32_t two_a, uint32_t two_b, float* out) {
  const uint4 a = make_uint4(two_a, two_a, two_a, two_a);
  uint2 b;
  b.x = b.y = two_b;
  float c[kChains][4] = {}, sum = 0;
  run_chains(turns, [&](int i) { mma(c[i], a, b); });
  UNROLL
  for (int i = 0; i < kChains; i++) sum += (c[i][0] + c[i][1]) + (c[i][2] + c[i][3]);
  out[blockIdx.x * kThreads + threadIdx.x] = sum;
}

// ---------------------------------------------------------------------------------------------------------------
// Their launches

// data: chunks * kReadChunk float4s. sums: one for each warp of `blocks` blocks.
inline void read_memory(const float* data, int chunks, int blocks, float* sums) {
  start(read_kernel<kLimitThreads>, blocks, kLimitThreads, reinterpret_cast<const uint4*>(data), chunks, sums);
}
// out: one for each thread.
inline void multiply_add(int turns, int blocks, float a, float b, float* out) {
  start(multiply_add_kernel<kLimitThreads>, blocks, kLimitThreads, turns, a, b, out);
}
inline double multiply_add_flops(int turns, int blocks) {
  return 2.0 * kChains * kTurns * kLimitThreads * double(turns) * blocks;
}
inline void multiply_tensors(int turns, int blocks, uint32_t two_a, uint32_t two_b, float* out) {
  start(tensor_kernel<kLimitThreads>, blocks, kLimitThreads, turns, two_a, two_b, out);
}
inline double multiply_tensors_flops(int turns, int blocks) {
  return 2.0 * 16 * 16 * 8 * kChains * kTurns * (kLimitThreads / kLanes) * double(turns) * blocks;
}

}  // namespace nanospec
