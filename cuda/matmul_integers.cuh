// cuda/matmul_integers.cuh: the matmul of machine/integers.h on a GPU: weights of 8 to 4 bits, by dot products of four
// bytes.
//
// Sums inside a unit of 32 or 16 k are whole numbers: exact, whoever adds them. So warps share the units. Then one lane
// adds the units of an output in ascending order, by the one formula that all machines have. The bits are the CPU's,
// for any number of rows.
//
// First ToIntegers brings the rows to 8 bits, once, into the weights' scratch; then multiply_integers reads them.
#pragma once

#include "cuda/matmul.cuh"
#include "machine/launch.h"

namespace nanospec {

constexpr int kIntegerWarps = 16;  // of a block: as many units of k at a time, and then as many rows

// What one lane holds of a unit of k: its output's codes, as Panels has them, its scale and the block's min.
template <class Q>
struct LaneUnit {
  using P = Panels<Q>;
  static constexpr int kWords = Q::kBits / Q::kScales, kLow = P::kLowWords / Q::kScales;
  uint32_t codes[kWords];
  typename Q::Number scale, min;

  __device__ __forceinline__ void load(const P& w, int output, int unit) {
    const int wide = w.width(output), b = unit / Q::kScales, half = unit % Q::kScales;
    const uint32_t* const from = reinterpret_cast<const uint32_t*>(w.word(output, b, 0));
    UNROLL
    for (int i = 0; i < kWords; i++)
      codes[i] =
          load_streaming(from + (i < kLow ? half * kLow + i : P::kLowWords + half * (kWords - kLow) + i - kLow) * wide);
    scale = *w.number(output, b, half);
    if (Q::kMin) min = *w.number(output, b, Q::kScales);
  }
  // Word g: the codes of k = 4 g .. 4 g + 3.
  __device__ __forceinline__ uint32_t word(int g) const {
    if (Q::kBits == 8) return codes[g];
    const uint32_t low = codes[g / 2] >> (g % 2 * 4) & 0x0f0f0f0fu;
    if (P::kHigh == 0) return low;
    constexpr uint32_t high = 0x01010101u * ((1 << P::kHigh) - 1);
    return low | (codes[P::high_word(g) - P::kLowWords + kLow] >> P::high_bit(g) & high) << 4;
  }
};

// Of 16 units of k: sums of products, by row, and the numbers of the weights, for each of 32 outputs.
struct IntegerMemory {
  int32_t isum[kIntegerWarps][kIntegerWarps][kLanes];  // (units, rows, outputs)
  float scale[kIntegerWarps][kLanes], min[kIntegerWarps][kLanes];
};

// A block computes 32 outputs of up to 16 rows, first_row + blockIdx.x * 16 and on; x begins with first_row. Its 16
// warps take a unit of k each, one lane an output. When the 16 are multiplied, warp r adds them to the sums of row r.
// Grid: row tiles by N / 32; the row tiles that read the same weights run at the same time, so that L2 serves all but
// the first.
//
// Bytes: from memory W once; from L2 W once for each row tile, and x, 1.25 K a row (with a min 1.4), once for each
// block. A warp's load of W is 128 bytes in one piece, two blocks of 8 bits or four of 4 ahead: 35 KB a block, where a
// multiprocessor of an H200 needs 29. A row costs a warp 23 instructions for 32 outputs by 32 k, and 8 more where the
// sums are added. They are few: but a row's codes come from L2, and the next row's only behind them, so 16 rows take
// much longer than one. To ask for all rows' codes at once would cost registers that are not there: with 64 it spills.
//
// With a scale for 16 k a lane asks for 4 words at a time, twice as many units ahead.
// Budget: 64 registers, 36864 bytes shared. Loads: 6.
template <class Q, class After>
__global__ void __launch_bounds__(kIntegerWarps* kLanes, 2)
    multiply_integers(IntegerRows x, Panels<Q> w, int first_row, Finish<After> finish) {
  constexpr int depth = 16 * Q::kScales / Q::kBits, fours = Q::kUnit / 4;
  IntegerMemory& memory = shared<IntegerMemory>();
  const int warp = int(threadIdx.x) / kLanes, lane = int(threadIdx.x) % kLanes,
            column = int(blockIdx.y) * kLanes + lane;
  const int row0 = int(blockIdx.x) * kIntegerWarps, rows = smaller(kIntegerWarps, finish.rows - first_row - row0);
  const int output = smaller(column, pad16(w.n) - 1), blocks = w.blocks(), units = blocks * Q::kScales;

  LaneUnit<Q> ahead[depth];
  UNROLL
  for (int d = 0; d < depth; d++)
    if (d * kIntegerWarps + warp < units) ahead[d].load(w, output, d * kIntegerWarps + warp);

  wait_for_earlier();

  const auto multiply = [&](const LaneUnit<Q>& its, int unit) {
    memory.scale[warp][lane] = to_float(its.scale);
    if (Q::kMin) memory.min[warp][lane] = to_float(its.min);
    ROLLED
    for (int r = 0; r < rows; r++) {
      const int at = (row0 + r) * units + unit;
      const uint4* const codes = reinterpret_cast<const uint4*>(x.codes) + size_t(at) * (fours / 4);
      const uint4 low = codes[0], high = fours > 4 ? codes[1] : low;
      const uint32_t four[] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      int32_t isum = x.start[at];
      UNROLL
      for (int g = 0; g < fours; g++) isum = dp4a(its.word(g), four[g], isum);
      memory.isum[warp][r][lane] = isum;
    }
  };

  float sum = 0;  // of the row of this warp
  for (int first = 0; first < units;) {
    UNROLL
    for (int d = 0; d < depth; d++, first += kIntegerWarps) {
      if (first >= units) break;
      const int unit = first + warp, next = unit + depth * kIntegerWarps;
      if (unit < units) multiply(ahead[d], unit);
      if (next < units) ahead[d].load(w, output, next);
      __syncthreads();
      if (warp < rows) {
        for (int i = 0; i < smaller(kIntegerWarps, units - first); i++) {
          const int at = (row0 + warp) * blocks + (first + i) / Q::kScales;
          sum = fused(float(memory.isum[i][warp][lane]), memory.scale[i][lane] * x.scale[at], sum);
          if (Q::kMin && i % Q::kScales == Q::kScales - 1) sum = fused(memory.min[i][lane], x.offset[at], sum);
        }
      }
      __syncthreads();  // all have read the memory that is overwritten now
    }
  }
  let_next_start();
  if (warp < rows) finish(first_row + row0 + warp, column, sum);
}

template <int bits, int zero, bool has_min, int floats, class After>
void matmul_cuda(int rows, const Matmul<float, Quantized<bits, zero, has_min, floats>>& s, const After& after) {
  using Q = Quantized<bits, zero, has_min, floats>;
  const int blocks = s.w.blocks();
  const IntegerRows x(s.w.scratch, kScratchRows, blocks);
  for (int first = 0; first < rows; first += kScratchRows) {
    const int count = smaller(kScratchRows, rows - first);
    launch_on_gpu(count * blocks, ToIntegers<Q>{s.x + size_t(first) * s.x_row, s.x_row, s.w.k, x});
    const dim3 grid(unsigned(blocks_of(count, kIntegerWarps)), unsigned(blocks_of(s.w.n, kLanes)));
    start_early(multiply_integers<Q, After>, grid, kIntegerWarps * kLanes, x, s.w, first,
                Finish<After>{s.out, s.out_row, first + count, s.w.n, after});
  }
}

}  // namespace nanospec
