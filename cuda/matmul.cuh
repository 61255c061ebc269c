// cuda/matmul.cuh: out (R, N) = x (R, K) W on a GPU, for decoding, verification and prefill; W in fp32.
//
// A row's bits must not depend on how many rows share the pass. So there is ONE ORDER over k, a function of K alone:
// K is cut into 64 slices of one length, a multiple of 4 (the last ones may be shorter, or empty); each is summed
// serially in k, by fused multiply-adds; the slices' sums are added to 0 in ascending order.
//
// Version 1 is plain_matmul in kernels.cuh (it has no slices). Here are
//   version 2, decode_fp32, few rows (up to 64). Slices are threads that work at the same time: decoding is bound by
//              the bytes of W, and what fetches them is many threads that each have several loads on their way.
//   version 3, tiled_fp32, many rows (prefill). A block makes 64 outputs of 64 rows, and slices follow each other in
//              time: the sum of one in registers, then added to the total. The same bits as version 2.
// cuda/matmul_mma.cuh has both for bf16.
//
// The epilogue: `after` (a column operation of kernels.cuh) is called for each finished number by the thread that has
// just written it: a launch, and a trip of all rows through memory, less. Columns from N to pad16(N) are finished too
// (zeros, times x), but not shown to it.
// W's panels are in device order (Panels::at_device). Rows of x and out begin on 16 bytes, and hold K or N padded to
// 16; what lies beside K in a row of x is never used: it may be NaN.
#pragma once

#include "cuda/instructions.cuh"
#include "kernels.cuh"

namespace nanospec {

constexpr int kSlices = 64;
constexpr int kDecodeRows = 64;  // more rows are version 3's
HD inline int slice_length(int k) { return (k + kSlices * 4 - 1) / (kSlices * 4) * 4; }

__device__ __forceinline__ float4 load_four(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ __forceinline__ float4 load_weights(const float* from) {
  const uint4 v = load_passing(reinterpret_cast<const uint4*>(from));
  return make_float4(bits_as<float>(v.x), bits_as<float>(v.y), bits_as<float>(v.z), bits_as<float>(v.w));
}
// Zeros from the n-th of four on.
__device__ __forceinline__ void cut(float4& v, int n) {
  if (n < 1) v.x = 0;
  if (n < 2) v.y = 0;
  if (n < 3) v.z = 0;
  if (n < 4) v.w = 0;
}

// sum (4 outputs) += x times one k of four outputs' weights.
__device__ __forceinline__ void multiply_add(float4& sum, float x, const float4& w) {
  sum.x = fused(x, w.x, sum.x), sum.y = fused(x, w.y, sum.y), sum.z = fused(x, w.z, sum.z),
  sum.w = fused(x, w.w, sum.w);
}
__device__ __forceinline__ void add(float4& sum, const float4& more) {
  sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
}

// Where a kernel writes: out (R, out_row), N columns of it real.
template <class After>
struct Finish {
  float* out;
  int out_row, rows, n;
  After after;
  __device__ __forceinline__ void operator()(int row, int column, float value) const {
    if (row >= rows || column >= pad16(n)) return;
    out[size_t(row) * out_row + column] = value;
    if (column < n) after(Solo{}, row, column, column + 1);
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Version 2

// A block makes 16 outputs of ROWS rows; its 256 threads are 64 slices by 4 lanes that have four outputs each. Grid:
// row tiles by N / 16; the row tiles that read the same weights run side by side, so that L2 serves all but the first.
//
// Bytes: W once a row tile: 4 K N, the least there is. x comes from L1 or L2: 4 K ROWS a block. A thread has 8 (from 8
// rows on: 4) 16-byte loads of W on their way, fetched a chunk ahead: two blocks on a multiprocessor are 32 to 64 KB,
// where an H200 needs 30 KB (4.8 TB/s for 0.8 us over 132 of them). Small N is short of blocks: N = 768 gives 48, a
// third of an H200; with 0.8 to 1.6 MB of 3.8 on their way it runs at less than half the memory's speed. More slices
// would help there, and cost all others longer sums of slices. (Estimates, like all clocks and rates in cuda/: none was
// measured yet.)
//
// A slice's four lanes share its numbers of x, and nobody else needs them: each warp copies its own into shared memory
// behind its back, a chunk ahead, and waits for no other warp.
//
// What 16 rows cost, for a warp's 4 k: 2 KB of weights are 99 clocks of an H200's memory (a multiprocessor's share).
// Meanwhile 256 multiply-adds and some 100 other instructions take 89 clocks of four schedulers; 16 loads of x, 128
// bytes each, 16 clocks of shared memory (64 if it serves eight lanes at a time): they fit under it, barely. x is then
// as many bytes out of L2 as W: loads of W leave L1 to it, which serves the second block and all later ones.
template <int ROWS>
union DecodeMemory {
  static constexpr int kChunk = ROWS > 4 ? 4 : 8;      // steps of k
  static constexpr int kAtOnce = ROWS < 8 ? ROWS : 8;  // rows whose slices are added at a time
  static constexpr int kRow = kSlices * 16 + 16;       // + 16: two rows' columns lie in different banks
  float4 x[2][kSlices / 8][ROWS][kChunk / 4][8];       // two chunks of each warp: 4 k of its 8 slices
  float sums[kAtOnce][kRow];
};

// What one lane copies of its warp's chunks of x: four k of one slice, of every kStride-th row.
template <int ROWS>
struct RowCopy {
  static constexpr int kFours = DecodeMemory<ROWS>::kChunk / 4, kStride = 4 / kFours;
  DecodeMemory<ROWS>& memory;
  const float* x;
  int x_row, rows, k;
  // Steps i .. i + kChunk - 1 of the warp's slices. Zeros where K ends; rows that are not there are the last one again.
  __device__ __forceinline__ void start(int buffer, int i) const {
    const int warp = int(threadIdx.x) / kLanes, lane = int(threadIdx.x) % kLanes, slice = lane % 8;
    const int four = lane / 8 % kFours, first = lane / 8 / kFours, row0 = int(blockIdx.x) * ROWS + first;
    const int length = slice_length(k), step = i + four * 4, at = (warp * 8 + slice) * length + step;
    const int numbers = step < length ? larger(0, smaller(4, k - at)) : 0;
    UNROLL
    for (int r = 0; r < ROWS; r += kStride)
      if (ROWS >= kStride || first < ROWS)
        start_copy(&memory.x[buffer][warp][first + r][four][slice],
                   x + (smaller(row0 + r, rows - 1) * x_row + (numbers ? at : 0)), numbers * 4);
  }
};

// Budget: 128 registers, 33280 bytes shared.
template <int ROWS, class After>
__global__ void __launch_bounds__(kSlices * 4, 2)
    decode_fp32(const float* x, int x_row, Panels<float> w, Finish<After> finish) {
  using Memory = DecodeMemory<ROWS>;
  constexpr int chunk = Memory::kChunk;
  Memory& memory = shared<Memory>();
  const int slice = int(threadIdx.x) / 4, part = int(threadIdx.x) % 4, warp = slice / 8, row0 = int(blockIdx.x) * ROWS;
  const int length = slice_length(w.k), begin = slice * length, steps = smaller(length, w.k - begin);
  const RowCopy<ROWS> copy{memory, x, x_row, finish.rows, w.k};

  float4 now[chunk], next[chunk], sum[ROWS];
  const float* from = w.data + (size_t(blockIdx.y) * pad16(w.k) + begin) * 16 + part * 4;  // the next chunk
  const auto load = [&](float4(&to)[chunk], int i) {
    UNROLL
    for (int j = 0; j < chunk; j++)  // four at a time: K is padded
      to[j] = i + j / 4 * 4 < steps ? load_weights(from + j * 16) : make_float4(0, 0, 0, 0);
    from += chunk * 16;
  };
  UNROLL
  for (int r = 0; r < ROWS; r++) sum[r] = make_float4(0, 0, 0, 0);
  load(now, 0);
  copy.start(0, 0);
  end_batch();
  for (int i = 0, buffer = 0; i < length; i += chunk, buffer ^= 1) {
    load(next, i + chunk);
    __syncwarp();  // the lanes have read what is overwritten now
    if (i + chunk < length) copy.start(buffer ^ 1, i + chunk);
    end_batch();
    wait_for_earlier_batches();
    __syncwarp();
    UNROLL
    for (int four = 0; four < chunk; four += 4) UNROLL
    for (int r = 0; r < ROWS; r++) {
      const float4 v = memory.x[buffer][warp][r][four / 4][slice % 8];
      multiply_add(sum[r], v.x, now[four]);
      multiply_add(sum[r], v.y, now[four + 1]);
      multiply_add(sum[r], v.z, now[four + 2]);
      multiply_add(sum[r], v.w, now[four + 3]);
    }
    UNROLL
    for (int j = 0; j < chunk; j++) now[j] = next[j];
  }

  // The slices meet, up to 8 rows at a time; a thread adds one output's, in order.
  UNROLL
  for (int first = 0; first < ROWS; first += Memory::kAtOnce) {
    __syncthreads();  // the memory's readers are done
    UNROLL
    for (int r = 0; r < Memory::kAtOnce; r++)
      *reinterpret_cast<float4*>(&memory.sums[r][slice * 16 + part * 4]) = sum[first + r];
    __syncthreads();
    if (int(threadIdx.x) >= Memory::kAtOnce * 16) continue;
    const int r = int(threadIdx.x) / 16, column = int(threadIdx.x) % 16;
    float total = 0;
    for (int s = 0; s < kSlices; s++) total += memory.sums[r][s * 16 + column];
    finish(row0 + first + r, int(blockIdx.y) * 16 + column, total);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Version 3

// A block of 128 threads makes 64 outputs of 64 rows, each thread 8 rows by 4 outputs: for every 32 multiply-adds three
// 16-byte loads from shared memory, through which x and W pass in chunks of 16 k; while one is multiplied the next is
// on its way in registers. Grid: row tiles by N / 64. Bytes: W once for each 64 rows, x once for each 64 outputs,
// nearly all out of L2; the least is each once. 2 R K N flops: bound by arithmetic from some tens of rows on.
constexpr int kTile = 64;
struct TileMemory {
  float x[2][16][kTile + 4];  // k by rows: turned on the way; + 4: not all in the same banks
  float w[2][16][kTile];      // k by outputs
};

// Budget: 160 registers, 16896 bytes shared.
template <class After>
__global__ void __launch_bounds__(128, 3) tiled_fp32(const float* x, int x_row, Panels<float> w, Finish<After> finish) {
  TileMemory& memory = shared<TileMemory>();
  const int thread = int(threadIdx.x), row0 = int(blockIdx.x) * kTile, column0 = int(blockIdx.y) * kTile;
  const int tr = (thread % 32 / 8 + thread / 64 * 4) * 8, tn = (thread % 8 + thread / 32 % 2 * 8) * 4;

  // Of each chunk a thread brings two float4 of x, and two of W. Rows and outputs that are not there are the last
  // again.
  float4 next_x[2], next_w[2];
  const auto load = [&](int k) {
    UNROLL
    for (int j = 0; j < 2; j++) {
      const int item = thread + 128 * j, row = smaller(row0 + item / 4, finish.rows - 1);
      const int tile = smaller(column0 + item / 64 * 16, w.n - 1) / 16;
      next_x[j] = load_four(x + size_t(row) * x_row + k + item % 4 * 4);
      next_w[j] = load_weights(w.data + (size_t(tile) * pad16(w.k) + k + item / 4 % 16) * 16 + item % 4 * 4);
    }
  };
  const auto store = [&](int buffer, int k) {
    UNROLL
    for (int j = 0; j < 2; j++) {
      const int item = thread + 128 * j, four = item % 4 * 4, row = item / 4;
      if (k + 16 > w.k) cut(next_x[j], w.k - (k + four));
      memory.x[buffer][four][row] = next_x[j].x, memory.x[buffer][four + 1][row] = next_x[j].y;
      memory.x[buffer][four + 2][row] = next_x[j].z, memory.x[buffer][four + 3][row] = next_x[j].w;
      *reinterpret_cast<float4*>(&memory.w[buffer][item / 4 % 16][item / 64 * 16 + four]) = next_w[j];
    }
  };

  float4 sum[8], total[8];  // of the slice under way, of those before it
  const auto end_slice = [&] {
    UNROLL
    for (int r = 0; r < 8; r++) add(total[r], sum[r]), sum[r] = make_float4(0, 0, 0, 0);
  };
  UNROLL
  for (int r = 0; r < 8; r++) total[r] = sum[r] = make_float4(0, 0, 0, 0);
  const int fours = slice_length(w.k) / 4;
  int left = fours;  // of the slice
  load(0);
  store(0, 0);
  __syncthreads();
  for (int k = 0, buffer = 0; k < w.k; k += 16, buffer ^= 1) {
    const bool more = k + 16 < w.k;
    if (more) load(k + 16);
    UNROLL
    for (int four = 0; four < 4; four++) {
      UNROLL
      for (int j = four * 4; j < four * 4 + 4; j++) {
        const float4 wv = load_four(&memory.w[buffer][j][tn]);
        const float4 a = load_four(&memory.x[buffer][j][tr]), b = load_four(&memory.x[buffer][j][tr + 4]);
        multiply_add(sum[0], a.x, wv), multiply_add(sum[1], a.y, wv);
        multiply_add(sum[2], a.z, wv), multiply_add(sum[3], a.w, wv);
        multiply_add(sum[4], b.x, wv), multiply_add(sum[5], b.y, wv);
        multiply_add(sum[6], b.z, wv), multiply_add(sum[7], b.w, wv);
      }
      if (--left == 0) end_slice(), left = fours;
    }
    if (more) store(buffer ^ 1, k + 16);  // who read it has met the others since
    __syncthreads();
  }
  end_slice();
  UNROLL
  for (int r = 0; r < 8; r++) {
    const int row = row0 + tr + r, column = column0 + tn;
    finish(row, column, total[r].x), finish(row, column + 1, total[r].y);
    finish(row, column + 2, total[r].z), finish(row, column + 3, total[r].w);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Which version runs how many rows

template <int ROWS, class After>
void start_decode(const float* x, int x_row, const Panels<float>& w, const Finish<After>& finish) {
  const dim3 grid(unsigned((finish.rows + ROWS - 1) / ROWS), unsigned(pad16(w.n) / 16));
  start(decode_fp32<ROWS, After>, grid, kSlices * 4, x, x_row, w, finish);
}

template <class After>
void matmul_cuda(int rows, const Matmul<float, float>& s, const After& after) {
  if (rows <= 0) return;
  const Finish<After> finish{s.out, s.out_row, rows, s.w.n, after};
  const dim3 tiles(unsigned((rows + kTile - 1) / kTile), unsigned((s.w.n + kTile - 1) / kTile));
  if (rows > kDecodeRows) start(tiled_fp32<After>, tiles, 128, s.x, s.x_row, s.w, finish);
  else if (rows > 8) start_decode<16>(s.x, s.x_row, s.w, finish);
  else if (rows > 4) start_decode<8>(s.x, s.x_row, s.w, finish);
  else if (rows > 1) start_decode<4>(s.x, s.x_row, s.w, finish);
  else start_decode<1>(s.x, s.x_row, s.w, finish);
}

}  // namespace nanospec
