// cuda/matmul_integers.cuh: the matmul of machine/integers.h on a GPU: weights of 8 and 4 bits, by dot products of four
// bytes.
//
// Sums inside a block of 32 k are whole numbers: exact, whoever adds them. So warps share the blocks of k. Then one
// lane adds the blocks of an output in ascending order, by the one formula that all machines have. The bits are the
// CPU's, for any number of rows.
//
// First ToIntegers brings the rows to 8 bits, once, into the weights' scratch; then multiply_integers reads them.
#pragma once

#include "cuda/matmul.cuh"
#include "machine/launch.h"

namespace nanospec {

constexpr int kIntegerWarps = 16;  // of a block: as many blocks of k at a time, and then as many rows

// What one lane holds of a block of k: its output's 32 codes, as Panels has them, its scale and its min.
template <class Q>
struct LaneBlock {
  uint32_t codes[Q::kBits];
  f16 scale, min;

  __device__ __forceinline__ void load(const Panels<Q>& w, int output, int b) {
    const int wide = w.width(output);
    const uint8_t* const from = w.block(output, b) + 2 * w.kNumbers * wide + output % w.kOutputs * 4;
    UNROLL
    for (int i = 0; i < Q::kBits; i++) codes[i] = load_streaming(reinterpret_cast<const uint32_t*>(from) + i * wide);
    scale = *w.number(output, b, 0);
    if (Q::kMin) min = *w.number(output, b, 1);
  }
  // Word g: the codes of k = 4 g .. 4 g + 3.
  __device__ __forceinline__ uint32_t word(int g) const {
    if (Q::kBits == 8) return codes[g];
    return codes[g / 2] >> (g % 2 * 4) & 0x0f0f0f0fu;
  }
};

// Of 16 blocks of k: sums of products, by row, and the numbers of the weights, for each of 32 outputs.
struct IntegerMemory {
  int32_t isum[kIntegerWarps][kIntegerWarps][kLanes];  // (blocks, rows, outputs)
  float scale[kIntegerWarps][kLanes], min[kIntegerWarps][kLanes];
};

// A block computes 32 outputs of up to 16 rows, first_row + blockIdx.x * 16 and on; x begins with first_row. Its 16
// warps take a block of k each, one lane an output. When the 16 are multiplied, warp r adds them to the sums of row r.
// Grid: row tiles by N / 32; the row tiles that read the same weights run at the same time, so that L2 serves all but
// the first.
//
// Bytes: from memory W once; from L2 W once for each row tile, and x, 1.25 K a row (with a min 1.4), once for each
// block. A warp's load of W is 128 bytes in one piece, two blocks of 8 bits or four of 4 ahead: 35 KB a block, where a
// multiprocessor of an H200 needs 29. A row costs a warp 23 instructions for 32 outputs by 32 k, and 8 more where the
// sums are added. They are few: but a row's codes come from L2, and the next row's only behind them, so 16 rows take
// much longer than one. To ask for all rows' codes at once would cost registers that are not there: with 64 it spills.
//
// The estimate is that of 8 bits.
// Estimate, us of 1 row and 16: qkv 1.4 7.2, projection 1.4 7.2, MLP in 1.5 7.2, MLP out 3.2 20.5, head 9.1 40.4.
// Budget: 64 registers, 36864 bytes shared. Loads: 6.
template <class Q, class After>
__global__ void __launch_bounds__(kIntegerWarps* kLanes, 2)
    multiply_integers(IntegerRows x, Panels<Q> w, int first_row, Finish<After> finish) {
  constexpr int depth = 16 / Q::kBits;
  IntegerMemory& memory = shared<IntegerMemory>();
  const int warp = int(threadIdx.x) / kLanes, lane = int(threadIdx.x) % kLanes,
            column = int(blockIdx.y) * kLanes + lane;
  const int row0 = int(blockIdx.x) * kIntegerWarps, rows = smaller(kIntegerWarps, finish.rows - first_row - row0);
  const int output = smaller(column, pad16(w.n) - 1), blocks = w.blocks();

  LaneBlock<Q> ahead[depth];
  UNROLL
  for (int d = 0; d < depth; d++)
    if (d * kIntegerWarps + warp < blocks) ahead[d].load(w, output, d * kIntegerWarps + warp);

  wait_for_earlier();

  const auto multiply = [&](const LaneBlock<Q>& its, int b) {
    memory.scale[warp][lane] = to_float(its.scale);
    if (Q::kMin) memory.min[warp][lane] = to_float(its.min);
    ROLLED
    for (int r = 0; r < rows; r++) {
      const int at = (row0 + r) * blocks + b;
      const uint4* const codes = reinterpret_cast<const uint4*>(x.codes) + size_t(at) * 2;
      const uint4 low = codes[0], high = codes[1];
      const uint32_t four[] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      int32_t isum = x.start[at];
      UNROLL
      for (int g = 0; g < kBlockNumbers / 4; g++) isum = dp4a(its.word(g), four[g], isum);
      memory.isum[warp][r][lane] = isum;
    }
  };
  const auto add_blocks = [&](float sum, int first) {  // to the row of this warp
    for (int i = 0; i < smaller(kIntegerWarps, blocks - first); i++) {
      const int at = (row0 + warp) * blocks + first + i;
      sum = fused(float(memory.isum[i][warp][lane]), memory.scale[i][lane] * x.scale[at], sum);
      if (Q::kMin) sum = fused(memory.min[i][lane], x.offset[at], sum);
    }
    return sum;
  };

  float sum = 0;
  for (int first = 0; first < blocks;) {
    UNROLL
    for (int d = 0; d < depth; d++, first += kIntegerWarps) {
      if (first >= blocks) break;
      const int b = first + warp, next = b + depth * kIntegerWarps;
      if (b < blocks) multiply(ahead[d], b);
      if (next < blocks) ahead[d].load(w, output, next);
      __syncthreads();
      if (warp < rows) sum = add_blocks(sum, first);
      __syncthreads();  // all have read the memory that is overwritten now
    }
  }
  if (warp < rows) finish(first_row + row0 + warp, column, sum);
}

template <int bits, int zero, bool has_min, class After>
void matmul_cuda(int rows, const Matmul<float, Quantized<bits, zero, has_min>>& s, const After& after) {
  using Q = Quantized<bits, zero, has_min>;
  const int blocks = s.w.blocks();
  const IntegerRows x(s.w.scratch, kScratchRows, blocks);
  for (int first = 0; first < rows; first += kScratchRows) {
    const int count = smaller(kScratchRows, rows - first);
    launch_on_gpu(count * blocks, ToIntegers<Q>{s.x + size_t(first) * s.x_row, s.x_row, s.w.k, x});
    const dim3 grid(unsigned((count + kIntegerWarps - 1) / kIntegerWarps), unsigned((s.w.n + kLanes - 1) / kLanes));
    start_early(multiply_integers<Q, After>, grid, kIntegerWarps * kLanes, x, s.w, first,
                Finish<After>{s.out, s.out_row, first + count, s.w.n, after});
  }
}

}  // namespace nanospec
