// cuda/matmul_mma.cuh: the matmul of cuda/matmul.cuh with W in bf16, on tensor cores.
//
// Tensor cores would round x to bf16 too. Here x stays exact: a float's 24 bits are three bf16 of 8 bits each,
// x = high + middle + low, and each of them times a weight is exact in float. That takes three mma instead of one, but
// memory stays the bound. (An x below 2^-110 in size loses low bits; an infinite x gives NaN.)
//
// The order is again a function of K alone. K is cut into 8 slices with equal numbers of tiles of 16 k. A slice is
// summed tile after tile; of each tile first the low parts, then the middle ones, then the high ones. The slices' sums
// are added to 0 in ascending order. This holds for any number of rows, one row too.
//
// Version 2, decode_bf16: slices are warps. Version 3, tiled_bf16: slice follows slice.
#pragma once

#include "cuda/matmul.cuh"

namespace nanospec {

constexpr int kMmaSlices = kProductThreads / kLanes;
HD inline int slice_tiles(int k) { return (pad16(k) / 16 + kMmaSlices - 1) / kMmaSlices; }  // of 16 k

// Splits four floats of a row into three operands b of mma: x = high + middle + low, 8 bits of x each.
__device__ __forceinline__ void split(const float4& x, uint2& low, uint2& middle, uint2& high) {
  const auto upper = [](float v) { return bits_as<float>(bits_as<uint32_t>(v) & 0xffff0000u); };
  const auto pair = [](float first, float second) {
    return bits_as<uint32_t>(first) >> 16 | (bits_as<uint32_t>(second) & 0xffff0000u);
  };
  const auto operand = [&](const float4& v) { return uint2{pair(v.x, v.y), pair(v.z, v.w)}; };
  const auto rest = [&](const float4& v) {  // exact
    return make_float4(v.x - upper(v.x), v.y - upper(v.y), v.z - upper(v.z), v.w - upper(v.w));
  };
  const float4 y = rest(x), z = rest(y);
  high = operand(x);
  middle = operand(y);
  low = operand(z);
}

// Calls f(row, column, i) for the four numbers that a lane holds of a 16 x 8 tile (mma's c).
template <class F>
__device__ __forceinline__ void in_tile(int row0, int column0, F f) {
  const int lane = int(threadIdx.x) % kLanes, row = row0 + lane % 4 * 2, column = column0 + lane / 4;
  UNROLL
  for (int i = 0; i < 4; i++) f(row + i % 2, column + i / 2 * 8, i);
}
template <class After>
__device__ __forceinline__ void finish_tile(const Finish<After>& finish, int row0, int column0, const float4& total) {
  in_tile(row0, column0, [&](int row, int column, int i) { finish(row, column, number_of(total, i)); });
}

// ---------------------------------------------------------------------------------------------------------------
// Version 2

// A block computes 16 TILES outputs of 8 OCTETS rows; its 8 warps are the slices. Grid: row tiles by N / (16 TILES). A
// lane's part of a tile of W is one 16-byte load, a warp's is 512 bytes in one piece. While `depth` tiles of k are
// multiplied, the next `depth` are in flight. A lane's part of x is a float4 that no other lane of the block needs:
// the lane loads it from L1 or L2 into registers, and splits it there.
//
// Bytes: from memory W once, 2 K N, the least possible; from L2 W once for each row tile, and x, 32 K OCTETS, for each
// block, beside its 32 K TILES of W. A warp executes 55 instructions a step with TILES = OCTETS = 1, 97 with 2 and 2,
// 175 with 2 and 4, and 28 more for the norm of an octet.
//
// Where tiles of 16 outputs and 8 rows are no more blocks than multiprocessors, these are taken: each has one for
// itself, and may use more registers, for twice as many loads in flight. With more, 16 rows share a block of 32
// outputs: else L2 would bring too much (N = 2048, K = 5632: 92 MB, not 46). No bit depends on that.
//
// N = 768 makes 48 blocks for one row, and no more are to be had: an mma has 16 outputs. They would not help. 64 KB of
// W for each are in registers when the wait ends, with K = 3072 two thirds, and L2 brings the rest in 0.4 us. The 24
// steps take 1.5 us: in each, a scheduler's two warps have 110 instructions, and three mma take 105 clocks.
// Budget: 192 registers, 32768 bytes shared. Loads: 12.
template <int TILES, int OCTETS, int depth, class After>
__global__ void __launch_bounds__(kProductThreads, depth > 4 ? 1 : 2)
    decode_bf16(const float* x, int x_row, Norm<float> norm, Panels<bf16> w, Finish<After> finish) {
  auto& sums = shared<float4[kMmaSlices][TILES * OCTETS][kLanes]>();
  const int warp = int(threadIdx.x) / kLanes, lane = int(threadIdx.x) % kLanes, part = lane % 4 * 4;
  const int row0 = int(blockIdx.x) * OCTETS * 8, tile0 = int(blockIdx.y) * TILES, steps = pad16(w.k) / 16;
  const int begin = warp * slice_tiles(w.k), end = smaller(steps, begin + slice_tiles(w.k));

  const uint4* from[TILES];  // of the next step; for tiles that do not exist it is the last one's
  UNROLL
  for (int m = 0; m < TILES; m++)
    from[m] = reinterpret_cast<const uint4*>(w.data) +
              (size_t(smaller(tile0 + m, pad16(w.n) / 16 - 1)) * steps + begin) * kLanes + lane;
  const float* row[OCTETS];  // for rows that do not exist it is the last one's
  struct Stage {             // `depth` steps of k: weights, and numbers of the rows
    uint4 w[depth][TILES];
    float4 x[depth][OCTETS];
  };
  const auto load_w = [&](Stage& to, int step) {
    UNROLL
    for (int m = 0; m < TILES; m++) {
      UNROLL
      for (int d = 0; d < depth; d++)
        to.w[d][m] = step + d < end ? load_streaming(from[m] + d * kLanes) : make_uint4(0, 0, 0, 0);
      from[m] += depth * kLanes;
    }
  };
  const auto load_x = [&](Stage& to, int step) {
    UNROLL
    for (int d = 0; d < depth; d++) UNROLL
    for (int o = 0; o < OCTETS; o++) to.x[d][o] = load_four(row[o] + smaller(step + d, end - 1) * 16);
  };

  Moments<OCTETS> moments;  // of the rows, if this kernel normalizes them
  float c[TILES][OCTETS][4] = {};
  const auto multiply = [&](Stage& its, int step) {  // and loads the steps after the next ones
    UNROLL
    for (int d = 0; d < depth; d++) {
      if (step + d >= end) break;
      uint2 parts[3][OCTETS];
      UNROLL
      for (int o = 0; o < OCTETS; o++) {
        if (moments.there) its.x[d][o] = moments.normed(norm, its.x[d][o], o, (step + d) * 16 + part);
        if ((step + d) * 16 + 16 > w.k) cut(its.x[d][o], w.k - (step + d) * 16 - part);
        split(its.x[d][o], parts[0][o], parts[1][o], parts[2][o]);
      }
      UNROLL
      for (int p = 0; p < 3; p++)
        UNROLL  // the sums take turns: an mma waits for the one before on the same sum
            for (int o = 0; o < OCTETS; o++) UNROLL for (int m = 0; m < TILES; m++)
                mma(c[m][o], its.w[d][m], parts[p][o]);
    }
    load_w(its, step + 2 * depth);
    load_x(its, step + 2 * depth);
  };
  Stage even, odd;  // while one is multiplied, the other is in flight
  load_w(even, begin);
  load_w(odd, begin + depth);
  if (!x) Moments<OCTETS>::ask_for_weights(norm);
  ask_for_weights(w.at(0, tile0 * 16), size_t(steps) * 256 * smaller(TILES, pad16(w.n) / 16 - tile0), finish.asks);
  wait_for_earlier();
  const int its_row0 = row0 + warp % OCTETS * 8, its_column0 = (tile0 + warp / OCTETS) * 16;  // that the warp finishes
  if (warp < TILES * OCTETS) in_tile(its_row0, its_column0, [&](int r, int column, int) { finish.ask(r, column); });
  if constexpr (OCTETS <= 2) {
    if (!x) {
      moments.compute(norm, row0, finish.rows);
      x = norm.x;
      x_row = norm.x_row;
    }
  }
  UNROLL
  for (int o = 0; o < OCTETS; o++)
    row[o] = x + size_t(smaller(row0 + o * 8 + lane / 4, finish.rows - 1)) * x_row + part;
  load_x(even, begin);
  load_x(odd, begin + depth);
  ROLLED
  for (int step = begin; step < end; step += 2 * depth) {
    multiply(even, step);
    if (step + depth >= end) break;
    multiply(odd, step + depth);
  }

  let_next_start();
  UNROLL
  for (int m = 0; m < TILES; m++) UNROLL
  for (int o = 0; o < OCTETS; o++)
    sums[warp][m * OCTETS + o][lane] = make_float4(c[m][o][0], c[m][o][1], c[m][o][2], c[m][o][3]);
  __syncthreads();
  if (warp >= TILES * OCTETS) return;
  float4 total = make_float4(0, 0, 0, 0);
  UNROLL
  for (int s = 0; s < kMmaSlices; s++) add(total, sums[s][warp][lane]);
  finish_tile(finish, its_row0, its_column0, total);
}

// ---------------------------------------------------------------------------------------------------------------
// Version 3

// A block of four warps computes 64 outputs of 64 rows, each warp 32 by 32. For each 16 k the block splits its rows'
// numbers once, and writes them to shared memory in the order that mma needs. A warp reads 12 operands of 256 bytes
// there (24 clocks) for 24 mma (48 clocks of an A100). W's tiles come straight from L2, the next ones while these are
// used. Grid and bytes are those of fp32, with half the bytes of W.
// Budget: 136 registers, 12288 bytes shared. Loads: 4.
template <class After>
__global__ void __launch_bounds__(128, 3) tiled_bf16(const float* x, int x_row, Panels<bf16> w, Finish<After> finish) {
  auto& parts = shared<uint2[2][3][kTile / 8][kLanes]>();  // low, middle, high
  const int thread = int(threadIdx.x), lane = thread % kLanes, warp = thread / kLanes, steps = pad16(w.k) / 16;
  const int row0 = int(blockIdx.x) * kTile, octet0 = warp / 2 * 4,
            tile0 = int(blockIdx.y) * (kTile / 16) + warp % 2 * 2;

  // A thread loads two float4 of x, of one row each, and its part of the warp's two tiles of W.
  const uint4* weights[2];
  const float* row[2];
  UNROLL
  for (int j = 0; j < 2; j++) {
    weights[j] = reinterpret_cast<const uint4*>(w.data) +
                 size_t(smaller(tile0 + j, pad16(w.n) / 16 - 1)) * steps * kLanes + lane;
    row[j] = x + size_t(smaller(row0 + (thread + 128 * j) / 4, finish.rows - 1)) * x_row + thread % 4 * 4;
  }
  uint4 now[2], next[2];
  float4 next_x[2];
  const auto load = [&](int step) {
    UNROLL
    for (int j = 0; j < 2; j++) {
      next[j] = weights[j][step * kLanes];
      next_x[j] = load_four(row[j] + step * 16);
    }
  };
  const auto store = [&](int buffer, int step) {
    UNROLL
    for (int j = 0; j < 2; j++) {
      if (step * 16 + 16 > w.k) cut(next_x[j], w.k - step * 16 - thread % 4 * 4);
      auto& part = parts[buffer];
      const int octet = warp + 4 * j;
      split(next_x[j], part[0][octet][lane], part[1][octet][lane], part[2][octet][lane]);
      now[j] = next[j];
    }
  };

  float c[2][4][4] = {};
  float4 total[2][4] = {};
  const auto end_slice = [&] {
    UNROLL
    for (int m = 0; m < 2; m++) UNROLL
    for (int o = 0; o < 4; o++) {
      add(total[m][o], make_float4(c[m][o][0], c[m][o][1], c[m][o][2], c[m][o][3]));
      c[m][o][0] = c[m][o][1] = c[m][o][2] = c[m][o][3] = 0;
    }
  };
  int left = slice_tiles(w.k);
  load(0);
  store(0, 0);
  __syncthreads();
  for (int step = 0, buffer = 0; step < steps; step++, buffer ^= 1) {
    const bool more = step + 1 < steps;
    if (more) load(step + 1);
    UNROLL
    for (int p = 0; p < 3; p++) UNROLL
    for (int o = 0; o < 4; o++) {
      const uint2 b = parts[buffer][p][octet0 + o][lane];
      mma(c[0][o], now[0], b);
      mma(c[1][o], now[1], b);
    }
    if (--left == 0) {
      end_slice();
      left = slice_tiles(w.k);
    }
    if (more) store(buffer ^ 1, step + 1);
    __syncthreads();
  }
  end_slice();
  UNROLL
  for (int m = 0; m < 2; m++) UNROLL
  for (int o = 0; o < 4; o++) finish_tile(finish, row0 + (octet0 + o) * 8, (tile0 + m) * 16, total[m][o]);
}

// ---------------------------------------------------------------------------------------------------------------
// Which version runs how many rows

template <int TILES, int OCTETS, int depth = 4 / OCTETS, class After>
void start_decode(const Matmul<float, bf16>& s, const Finish<After>& finish) {
  const dim3 grid(unsigned(blocks_of(finish.rows, OCTETS * 8)), unsigned(blocks_of(pad16(s.w.n) / 16, TILES)));
  start_early(decode_bf16<TILES, OCTETS, depth, After>, grid, kProductThreads, s.x, s.x_row, s.norm, s.w, finish);
}

template <class After>
void matmul_cuda(int rows, const Matmul<float, bf16>& s, const After& after) {
  if (rows <= 0) return;
  const Finish<After> finish{s.out, s.out_row, rows, s.w.n, after};
  const dim3 tiles(unsigned(blocks_of(rows, kTile)), unsigned(blocks_of(s.w.n, kTile)));
  if (rows > kDecodeRows) start(tiled_bf16<After>, tiles, 128, s.x, s.x_row, s.w, finish);
  else if (rows > 16) start_decode<2, 4>(s, finish);
  else if (blocks_of(rows, 8) * (pad16(s.w.n) / 16) <= kProcessors) start_decode<1, 1, 8>(s, finish);
  else if (rows > 8) start_decode<2, 2>(s, finish);
  else start_decode<1, 1>(s, finish);
}

}  // namespace nanospec
