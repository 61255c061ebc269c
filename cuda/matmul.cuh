// cuda/matmul.cuh: out (R, N) = x (R, K) W on a GPU, for decoding, verification and prefill; W in fp32.
//
// A row's bits must not depend on how many rows the forward has. So there is ONE ORDER over k, a function of K alone:
// K is cut into 64 slices of one length, a multiple of 4 (the last ones may be shorter, or empty); each is summed
// serially in k, by fused multiply-adds; the slices' sums are added to 0 in ascending order.
//
// Version 1 is plain_matmul in kernels.cuh (it has no slices). Here are
//   version 2, decode_fp32, for few rows (up to 64). Slices are threads that work at the same time: decoding is bound
//   by
//              the bytes of W, and to load them fast takes many threads with several loads each.
//   version 3, tiled_fp32, for many rows (prefill). A block computes 64 outputs of 64 rows, slice after slice: the sum
//              of a slice is in registers, and is then added to the total. It has the bits of version 2.
// cuda/matmul_mma.cuh has both for bf16.
//
// The epilogue: the thread that has just written a number calls `after` (a column operation of kernels.cuh) for it.
// That saves a launch, and reading and writing all rows once more. Columns from N to pad16(N) are written too (zeros
// times x), but without `after`. W's panels are in device order (Panels::at_device). Rows of x and out begin at
// multiples of 16 bytes, and have K or N numbers padded to 16. The padding of a row of x is never used: it may be NaN.
#pragma once

#include "cuda/block.cuh"
#include "cuda/instructions.cuh"
#include "kernels.cuh"

namespace nanospec {

constexpr int kProductThreads = 256;  // of a block, for few rows
constexpr int kSlices = 64;
static_assert(kSlices * 4 == kProductThreads, "a slice has four threads");
constexpr int kDecodeRows = 64;   // version 3 runs more rows
constexpr int kProcessors = 132;  // of an H200. Tiles are chosen by it on every device: no bit depends on them.
inline int blocks_of(int n, int each) { return (n + each - 1) / each; }
HD inline int slice_length(int k) { return (k + kSlices * 4 - 1) / (kSlices * 4) * 4; }

__device__ __forceinline__ float4 load_weights(const float* from) {
  return bits_as<float4>(load_streaming(reinterpret_cast<const uint4*>(from)));
}
// Sets the n-th of four numbers, and those after it, to zero.
__device__ __forceinline__ void cut(float4& v, int n) {
  v = make_float4(n < 1 ? 0 : v.x, n < 2 ? 0 : v.y, n < 3 ? 0 : v.z, n < 4 ? 0 : v.w);
}

// sum (4 outputs) += x times the weights of four outputs, for one k.
__device__ __forceinline__ void multiply_add(float4& sum, float x, const float4& w) {
  sum = make_float4(fused(x, w.x, sum.x), fused(x, w.y, sum.y), fused(x, w.z, sum.z), fused(x, w.w, sum.w));
}
__device__ __forceinline__ void add(float4& sum, const float4& more) {
  sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
}

// While a block waits for the kernel before its own, its weights come into L2: all of them, if all blocks that are
// there at a time ask for no more than half of an H200's L2. They lie in one piece.
constexpr int kBlocksAtOnce = 2 * kProcessors;
constexpr size_t kMostAsked = 24 << 20;
template <class W>
__device__ __forceinline__ void ask_for_weights(const W* from, size_t numbers, bool asks) {
  const size_t bytes = numbers * sizeof(W);
  if (asks && threadIdx.x == 0 && blockIdx.x == 0 && bytes * smaller(int(gridDim.y), kBlocksAtOnce) <= kMostAsked)
    ask_for_piece(from, uint32_t(bytes));
}

// Where x is a norm, of up to 16 rows (in fp32 of one), each block of the product computes its rows' means and
// deviations for itself, and normalizes numbers when it has loaded them: a kernel of its own would take longer.
inline bool by_fours(const Norm<float>& norm) {  // whether its weights can be loaded by fours
  const auto aligned = [](const float* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return norm.channels % 4 == 0 && aligned(norm.weight) && aligned(norm.bias);
}
// A warp, or half of one, as the group of threads that sums a row: two rows side by side take the time of one. A lane
// then has the sums of two lanes of a Warp, which it adds first: the bits are a Warp's. It asks for 768 numbers at a
// time, so that it waits for memory once. What Norm writes is not kept.
template <int kRows>  // of a warp
struct RowSums {
  static constexpr int kOwn = kLanes / kRows;  // lanes of a row
  template <class F>
  __device__ void each(int n, F f) const {
    for (int i = threadIdx.x % kOwn; i < n; i += kOwn) f(i);
    __syncwarp();
  }
  template <class Out, class F>
  __device__ void map(Out, int, F) const {}
  template <class T, class F>
  __device__ T sum(int n, F f) const {
    struct Numbers {
      T first, second;
    };
    T first = T(0), second = T(0);
    in_batches<kLanes, 24 / kRows>(
        n, threadIdx.x % kOwn,
        [=](int i) {
          return Numbers{f(i), kRows == 2 ? f(smaller(i + kOwn, n - 1)) : T(0)};
        },
        [&](int i, const Numbers& x) {
          first += x.first;
          if (kRows == 2 && i + kOwn < n) second += x.second;
        });
    if (kRows == 2) first += second;
    for (int half = kOwn / 2; half > 0; half /= 2) first += __shfl_xor_sync(kEveryLane, first, half);
    return first;
  }
};

template <int OCTETS>
struct Moments {
  bool there = false;
  float mean[OCTETS], rstd[OCTETS];  // of the rows o * 8 + lane / 4

  // By all threads of the block, before they wait: the norm's weights are no other kernel's.
  static __device__ __forceinline__ void ask_for_weights(const Norm<float>& norm) {
    for (int c = int(threadIdx.x) * kLanes; c < norm.channels; c += kProductThreads * kLanes) {
      if (norm.weight) ask(norm.weight + c);
      if (norm.bias) ask(norm.bias + c);
    }
  }
  __device__ __forceinline__ void compute(Norm<float> norm, int row0, int rows) {
    auto& board = shared<float[2][8 * OCTETS]>();  // means and deviations
    constexpr int lanes = kLanes / OCTETS;         // of a row
    const int lane = int(threadIdx.x) % kLanes, count = smaller(8 * OCTETS, rows - row0);
    const int row = smaller(int(threadIdx.x) / lanes, count - 1);  // half a warp without a row takes the last one too
    norm.x += size_t(row0) * norm.x_row;
    norm.mean = board[0];
    norm.rstd = board[1];
    if (int(threadIdx.x) / kLanes * OCTETS < count) norm(RowSums<OCTETS>{}, row);
    __syncthreads();
    UNROLL
    for (int o = 0; o < OCTETS; o++) {
      mean[o] = board[0][smaller(o * 8 + lane / 4, count - 1)];
      rstd[o] = board[1][smaller(o * 8 + lane / 4, count - 1)];
    }
    there = true;
  }
  // Four numbers of a row, from channel k on, as Norm writes them.
  __device__ __forceinline__ float4 normed(const Norm<float>& norm, const float4& x, int o, int k) const {
    const float m = mean[o], r = rstd[o];
    float4 y = make_float4((x.x - m) * r, (x.y - m) * r, (x.z - m) * r, (x.w - m) * r);
    if (!norm.weight || k >= norm.channels) return y;
    const float4 w = load_four(norm.weight + k);
    if (!norm.bias) return make_float4(y.x * w.x, y.y * w.y, y.z * w.z, y.w * w.w);
    const float4 b = load_four(norm.bias + k);
    return make_float4(fused(y.x, w.x, b.x), fused(y.y, w.y, b.y), fused(y.z, w.z, b.z), fused(y.w, w.w, b.w));
  }
};

// The norm of each row, by a block each: a row is read three times, once from L2, and written once. Grid: rows.
// Budget: 40 registers, 8256 bytes shared. Loads: 8.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) norm_kernel(Norm<float> norm) {
  let_next_start();
  wait_for_earlier();
  norm(Block<kThreads>{}, int(blockIdx.x));
}

// What a column operation reads for one number of a row is asked for while the product is summed: so it is in L1 when
// the sum is done. Of most that is a bias.
template <class Op>
__device__ __forceinline__ void ask_for(const Op& op, int, int column) {
  if (op.bias) ask(op.bias + column);
}
__device__ __forceinline__ void ask_for(const JoinResidual<float>& op, int row, int column) {
  if (op.bias) ask(op.bias + column);
  ask(op.residual + size_t(row) * op.row_stride + column);
}

// Writes a kernel's results: out (R, out_row); the columns from N on are padding.
template <class After>
struct Finish {
  float* out;
  int out_row, rows, n;
  After after;
  bool asks = early.pieces;  // whether a block asks for its weights in one piece
  __device__ __forceinline__ void ask(int row, int column) const {
    if (row < rows && column < n) ask_for(after, row, column);
  }
  __device__ __forceinline__ void operator()(int row, int column, float value) const {
    if (row >= rows || column >= pad16(n)) return;
    out[size_t(row) * out_row + column] = value;
    if (column < n) after(Solo{}, row, column, column + 1);
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Version 2

// A block computes 16 outputs of ROWS rows. Its 256 threads are 64 slices by 4 lanes with four outputs each. Grid: row
// tiles by N / 16; the row tiles that read the same weights run at the same time, so that L2 serves all but the first.
//
// Bytes: from memory W once, 4 K N, the least possible. From L2 W once for each row tile, and x, 4 K ROWS, for each
// block. Loads of W do not use L1, so L1 keeps x for a multiprocessor's next blocks. A thread has 16 to 20 loads of 16
// bytes in flight, of 5 to 16 rows 12 to 16. So a block has 32 to 64 KB, where a multiprocessor of an H200 needs 29 KB
// (4.8 TB/s for 0.8 us over 132 of them).
//
// N = 768 makes 48 blocks for one row: 3 MB of W in registers when the wait ends, with K = 768 all 2.4 MB. More come
// into L2 at memory's speed meanwhile, by ask_for_weights. From L2 a multiprocessor takes 64 bytes a clock at most, 48
// of them 5.4 TB/s, and L2 gives 5.5 (both assumed). So half panels, in 96 blocks, would not come sooner.
//
// Tiles of 8 rows instead of 16 halve the multiply-adds of a block, and read W from L2 twice. They are taken where
// their blocks are no more than the multiprocessors, so that 16 rows would leave half of those idle. With N = 768 and
// K = 768 that saves 0.6 us of 2.2. With K = 3072 it saves only 0.1 of 5.6: L2 brings 28 MB, not 19.
//
// The four lanes of a slice share its numbers of x, and no other lane needs them. Of one row each lane loads them into
// registers. Of more, each warp copies its own into shared memory asynchronously, a chunk ahead, and waits for no
// other.
//
// What 16 rows cost: a warp executes 82 instructions for each k of 8 slices, 64 of them multiply-adds (8 rows: 46, 4:
// 25, one: 12).
template <int ROWS>
union DecodeMemory {
  static constexpr int kChunk = ROWS > 4 ? 4 : 8;      // steps of k
  static constexpr int kAtOnce = ROWS < 8 ? ROWS : 8;  // rows whose slices are added at a time
  float4 x[2][kSlices / 8][ROWS][kChunk / 4][8];       // two chunks for each warp: 4 k of its 8 slices
  float sums[kAtOnce][kSlices * 16 + 16];              // + 16: two rows' columns lie in different banks
};

// What one lane copies of its warp's chunks of x: four k of one slice, in every kStride-th row.
template <int ROWS>
struct RowCopy {
  static constexpr int kFours = DecodeMemory<ROWS>::kChunk / 4, kStride = 4 / kFours;
  DecodeMemory<ROWS>& memory;
  const float* x;
  int x_row, rows, k;
  // Copies steps i .. i + kChunk - 1 of the warp's slices. Behind K it writes zeros; for rows that do not exist it
  // copies the last one.
  __device__ __forceinline__ void start(int buffer, int i) const {
    const int warp = int(threadIdx.x) / kLanes, lane = int(threadIdx.x) % kLanes, slice = lane % 8;
    const int four = lane / 8 % kFours, first = lane / 8 / kFours, row0 = int(blockIdx.x) * ROWS + first;
    const int length = slice_length(k), step = i + four * 4, at = (warp * 8 + slice) * length + step;
    const int numbers = step < length ? larger(0, smaller(4, k - at)) : 0;
    UNROLL
    for (int r = 0; r < ROWS; r += kStride) {
      if (ROWS < kStride && first >= ROWS) continue;
      start_copy(&memory.x[buffer][warp][first + r][four][slice],
                 x + (smaller(row0 + r, rows - 1) * x_row + (numbers ? at : 0)), numbers * 4);
    }
  }
};

// Budget: 128 registers, 33280 bytes shared. Loads: 12.
template <int ROWS, class After>
__global__ void __launch_bounds__(kProductThreads, 2)
    decode_fp32(const float* x, int x_row, Norm<float> norm, Panels<float> w, Finish<After> finish) {
  using Memory = DecodeMemory<ROWS>;
  constexpr int chunk = Memory::kChunk;
  constexpr bool ONE = ROWS == 1;  // then a lane loads its part of x into registers, as early as weights
  Memory& memory = shared<Memory>();
  const int slice = int(threadIdx.x) / 4, part = int(threadIdx.x) % 4, warp = slice / 8, row0 = int(blockIdx.x) * ROWS;
  const int length = slice_length(w.k), begin = slice * length, steps = smaller(length, w.k - begin);
  float4 sum[ROWS] = {};
  const float* const panel = w.data + size_t(blockIdx.y) * pad16(w.k) * 16;
  const float* from = panel + size_t(begin) * 16 + part * 4;  // the next chunk
  struct Stage {
    float4 w[chunk], x[ONE ? chunk / 4 : 1];
  };
  const auto load_w = [&](Stage& to, int i) {
    UNROLL
    for (int j = 0; j < chunk; j++)  // four at a time: K is padded
      to.w[j] = i + j / 4 * 4 < steps ? load_weights(from + j * 16) : make_float4(0, 0, 0, 0);
    from += chunk * 16;
  };
  const auto load_x = [&](Stage& to, int i) {  // of the one row
    if constexpr (ONE) {
      UNROLL
      for (int four = 0; four < chunk; four += 4)
        to.x[four / 4] = load_four(x + (i + four < steps ? begin + i + four : 0));
    }
  };
  const RowCopy<ROWS> copy{memory, x, x_row, finish.rows, w.k};
  Moments<1> moments;                         // of the one row, if this kernel normalizes it
  const auto number = [&](float4 v, int i) {  // four of the one row
    if (moments.there) v = moments.normed(norm, v, 0, smaller(begin + i, norm.channels - 4));
    cut(v, w.k - begin - i);
    return v;
  };
  const auto multiply = [&](Stage& its, int buffer, int i) {  // and loads the chunk after the next one
    if (!ONE) {
      __syncwarp();  // the lanes have read what is overwritten now
      if (i + chunk < length) copy.start(buffer ^ 1, i + chunk);
      end_batch();
      wait_for_earlier_batches();
      __syncwarp();
    }
    UNROLL
    for (int four = 0; four < chunk; four += 4) UNROLL
    for (int r = 0; r < ROWS; r++) {
      const float4 v = ONE ? number(its.x[four / 4], i + four) : memory.x[buffer][warp][r][four / 4][slice % 8];
      UNROLL
      for (int e = 0; e < 4; e++) multiply_add(sum[r], number_of(v, e), its.w[four + e]);
    }
    load_w(its, i + 2 * chunk);
    load_x(its, i + 2 * chunk);
  };
  Stage even, odd;  // while one is multiplied, the other is in flight
  load_w(even, 0);
  load_w(odd, chunk);
  if (ONE && !x) Moments<1>::ask_for_weights(norm);
  ask_for_weights(panel, size_t(pad16(w.k)) * 16, finish.asks);
  wait_for_earlier();
  for (int r = int(threadIdx.x) / 16; r < ROWS; r += kProductThreads / 16)
    finish.ask(row0 + r, int(blockIdx.y) * 16 + int(threadIdx.x) % 16);
  if (ONE && !x) {
    moments.compute(norm, 0, 1);
    x = norm.x;
  }
  if (!ONE) {
    copy.start(0, 0);
    end_batch();
  }
  load_x(even, 0);
  load_x(odd, chunk);
  ROLLED
  for (int i = 0; i < length; i += 2 * chunk) {
    multiply(even, 0, i);
    if (i + chunk >= length) break;
    multiply(odd, 1, i + chunk);
  }

  let_next_start();
  // Adds the slices, up to 8 rows at a time. A thread adds those of one output, in order.
  UNROLL
  for (int first = 0; first < ROWS; first += Memory::kAtOnce) {
    __syncthreads();  // all have read the memory that is overwritten now
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

// A block of 128 threads computes 64 outputs of 64 rows, each thread 8 rows by 4 outputs. That is three 16-byte loads
// from shared memory for every 32 multiply-adds. x and W go through shared memory in chunks of 16 k; while one chunk is
// multiplied the next is loaded into registers. Grid: row tiles by N / 64. Bytes: W once for each 64 rows, x once for
// each 64 outputs, nearly all from L2; the least possible is each once. 2 R K N flops: arithmetic is the bound from
// some tens of rows on.
constexpr int kTile = 64;
struct TileMemory {
  float x[2][16][kTile + 4];  // k by rows, transposed; + 4: else all would lie in the same banks
  float w[2][16][kTile];      // k by outputs
};

// Budget: 160 registers, 16896 bytes shared. Loads: 4.
template <class After>
__global__ void __launch_bounds__(128, 3) tiled_fp32(const float* x, int x_row, Panels<float> w, Finish<After> finish) {
  TileMemory& memory = shared<TileMemory>();
  const int thread = int(threadIdx.x), row0 = int(blockIdx.x) * kTile, column0 = int(blockIdx.y) * kTile;
  const int tr = (thread % 32 / 8 + thread / 64 * 4) * 8, tn = (thread % 8 + thread / 32 % 2 * 8) * 4;

  // Of each chunk a thread loads two float4 of x and two of W. For rows and outputs that do not exist it loads the
  // last.
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
      memory.x[buffer][four][row] = next_x[j].x;
      memory.x[buffer][four + 1][row] = next_x[j].y;
      memory.x[buffer][four + 2][row] = next_x[j].z;
      memory.x[buffer][four + 3][row] = next_x[j].w;
      *reinterpret_cast<float4*>(&memory.w[buffer][item / 4 % 16][item / 64 * 16 + four]) = next_w[j];
    }
  };

  float4 sum[8] = {}, total[8] = {};  // of the current slice, and of those before it
  const auto end_slice = [&] {
    UNROLL
    for (int r = 0; r < 8; r++) {
      add(total[r], sum[r]);
      sum[r] = make_float4(0, 0, 0, 0);
    }
  };
  const int fours = slice_length(w.k) / 4;
  int left = fours;  // of the current slice
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
        UNROLL
        for (int r = 0; r < 8; r++) multiply_add(sum[r], number_of(r < 4 ? a : b, r % 4), wv);
      }
      if (--left > 0) continue;
      end_slice();
      left = fours;
    }
    if (more) store(buffer ^ 1, k + 16);  // all have read this buffer: they have met at a barrier since
    __syncthreads();
  }
  end_slice();
  UNROLL
  for (int r = 0; r < 8; r++) {
    const int row = row0 + tr + r, column = column0 + tn;
    finish(row, column, total[r].x);
    finish(row, column + 1, total[r].y);
    finish(row, column + 2, total[r].z);
    finish(row, column + 3, total[r].w);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Which version runs how many rows

template <int ROWS, class After>
void start_decode(const Matmul<float, float>& s, const Finish<After>& finish) {
  const dim3 grid(unsigned(blocks_of(finish.rows, ROWS)), unsigned(pad16(s.w.n) / 16));
  start_early(decode_fp32<ROWS, After>, grid, kProductThreads, s.x, s.x_row, s.norm, s.w, finish);
}

template <class After>
void matmul_cuda(int rows, const Matmul<float, float>& s, const After& after) {
  if (rows <= 0) return;
  const Finish<After> finish{s.out, s.out_row, rows, s.w.n, after};
  const dim3 tiles(unsigned(blocks_of(rows, kTile)), unsigned(blocks_of(s.w.n, kTile)));
  const bool few = blocks_of(rows, 8) * (pad16(s.w.n) / 16) <= kProcessors;  // tiles of 8 rows
  if (rows > kDecodeRows) start(tiled_fp32<After>, tiles, 128, s.x, s.x_row, s.w, finish);
  else if (rows > 8 && !few) start_decode<16>(s, finish);
  else if (rows > 4) start_decode<8>(s, finish);
  else if (rows > 1) start_decode<4>(s, finish);
  else start_decode<1>(s, finish);
}

}  // namespace nanospec
