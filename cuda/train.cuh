// cuda/train.cuh: kernels of training for operations that one warp a row does not suit.
//
// The portable version (gradients.cuh) gives a row to one warp. That suits operations on many rows: norms, GELU,
// residual, AdamW's pieces. It does not suit sums over rows (few columns, many rows), a row as long as a vocabulary,
// and a single long sum. Those are here. All are deterministic: the order of a sum depends on the shapes alone, and
// there are no atomics.
//
// In order: one long sum; sums of columns (gradients of biases and of the norms' weights); the embedding's backward;
// cross-entropy. Matrices have rows padded to a multiple of 16 numbers, so four columns are one load of 16 bytes.
#pragma once

#include "gradients.cuh"

namespace nanospec {

__device__ inline void read_four(const float* from, float (&to)[4]) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  memcpy(to, &four, sizeof four);
}

// ---------------------------------------------------------------------------------------------------------------
// One long sum

constexpr int kSumThreads = 1024;

// Calls op.finish(the sum of op.values (op.n)). Reads 4 n bytes once. One block: n is the number of rows of a batch, or
// of the optimizer's pieces, 500 KB at most, and a second launch would cost more than it saves. Thread t adds the
// values t, t + 1024, ... in turn; then each warp halves its sums, and the first warp those of all warps.
// Budget: 32 registers, 128 bytes shared.
template <class Op>
__global__ void __launch_bounds__(kSumThreads) long_sum(Op op) {
  auto& of_warp = shared<float[kSumThreads / kLanes]>();
  const int t = threadIdx.x;
  float sum = 0;
  for (int i = t; i < op.n; i += kSumThreads) sum += op.values[i];
  for (int half = kLanes / 2; half > 0; half /= 2) sum += __shfl_xor_sync(kEveryLane, sum, half);
  if (t % kLanes == 0) of_warp[t / kLanes] = sum;
  __syncthreads();
  if (t >= kLanes) return;
  sum = of_warp[t];
  for (int half = kLanes / 2; half > 0; half /= 2) sum += __shfl_xor_sync(kEveryLane, sum, half);
  if (t == 0) op.finish(sum);
}

// ---------------------------------------------------------------------------------------------------------------
// Sums of columns

// What is summed over the rows: load() gives the terms of one row in four columns from `column` on.
struct GradientTerm {  // of a bias: dy
  static constexpr int kSums = 1;
  const float* dy;
  int y_row;
  __device__ void load(int row, int column, float (&term)[1][4]) const {
    read_four(dy + size_t(row) * y_row + column, term[0]);
  }
};
struct NormTerm {  // of a norm's weight: dy n, n = (x - mean) rstd; of its bias: dy
  static constexpr int kSums = 2;
  const float *dy, *x, *mean, *rstd;
  int y_row, x_row;
  __device__ void load(int row, int column, float (&term)[2][4]) const {
    float a[4];
    read_four(x + size_t(row) * x_row + column, a);
    read_four(dy + size_t(row) * y_row + column, term[1]);
    const float m = mean[row], r = rstd[row];
    UNROLL
    for (int c = 0; c < 4; c++) term[0][c] = term[1][c] * ((a[c] - m) * r);
  }
};

constexpr int kStripe = 8;           // columns of a block: one 32-byte sector of each row
constexpr int kStripeThreads = 512;  // two for each of 256 rows
constexpr int kStripeAhead = 4;      // rows that a thread loads at the same time

// to[s][column] += sum over rows of term s. It reads each term's matrices once: 4 R C bytes, for a norm twice that,
// which is the least possible. A block takes 8 columns, so that even C = 768 gives 96 blocks. It reads whole sectors,
// and its neighbours read the rest of the line at the same time. Thread t takes four columns of the rows t / 2, t / 2 +
// 256,
// ..., four rows at a time: a block has 32 KB in flight. The sums of a warp's threads are added by shuffles, those of
// the warps in shared memory, in order. The order depends on a row's number alone.
// Budget: 64 registers, 1024 bytes shared.
template <class Term>
__global__ void __launch_bounds__(kStripeThreads)
    column_sums(Term term, int rows, int columns, float* to_0, float* to_1) {
  constexpr int sums = Term::kSums, warps = kStripeThreads / kLanes, step = kStripeThreads / 2;
  auto& partial = shared<float[sums][warps][kStripe]>();
  const int t = threadIdx.x, first = blockIdx.x * kStripe, column = first + t % 2 * 4;
  float sum[sums][4] = {};
  if (column < columns) {
    int row = t / 2;
    for (; row + (kStripeAhead - 1) * step < rows; row += kStripeAhead * step) {
      float terms[kStripeAhead][sums][4];
      UNROLL
      for (int i = 0; i < kStripeAhead; i++) term.load(row + i * step, column, terms[i]);
      UNROLL
      for (int i = 0; i < kStripeAhead; i++) UNROLL
      for (int s = 0; s < sums; s++) UNROLL
      for (int c = 0; c < 4; c++) sum[s][c] += terms[i][s][c];
    }
    for (; row < rows; row += step) {
      float terms[sums][4];
      term.load(row, column, terms);
      UNROLL
      for (int s = 0; s < sums; s++) UNROLL
      for (int c = 0; c < 4; c++) sum[s][c] += terms[s][c];
    }
  }
  UNROLL
  for (int s = 0; s < sums; s++) UNROLL
  for (int c = 0; c < 4; c++) {
    UNROLL
    for (int half = kLanes / 2; half > 1; half /= 2) sum[s][c] += __shfl_xor_sync(kEveryLane, sum[s][c], half);
    if (t % kLanes < 2) partial[s][t / kLanes][t % 2 * 4 + c] = sum[s][c];
  }
  __syncthreads();
  if (t >= sums * kStripe) return;
  const int s = t / kStripe, c = t % kStripe;
  float* to = s == 0 ? to_0 : to_1;
  if (!to || first + c >= columns) return;
  float total = 0;
  for (int warp = 0; warp < warps; warp++) total += partial[s][warp][c];
  to[first + c] += total;
}

template <class Term>
void sum_columns(const Term& term, int rows, int columns, float* to_0, float* to_1 = nullptr) {
  start(column_sums<Term>, (columns + kStripe - 1) / kStripe, kStripeThreads, term, rows, columns, to_0, to_1);
}

// ---------------------------------------------------------------------------------------------------------------
// The embedding's backward. The rows are sorted by what they looked up; then a block adds the rows of one token.

// The row of wte (table 0) or wpe (table 1) that a row of the batch looked up.
__device__ inline int looked_up(const EmbedBackward<float>& s, int table, int row) {
  return table == 0 ? s.token[row] : s.forest.position(row);
}

constexpr int kSortThreads = 256;

// order (2, R): for each table all rows sorted by what they looked up, equal ones in order of rows. A warp finds the
// place of one row: it counts the rows that come before it, R comparisons, 32 at a time, and then adds the lanes'
// counts. It reads only the keys, 4 R bytes from L1 for each warp. At R = 12,288 that is 2 * 150 M comparisons, tens of
// microseconds by estimate. A radix sort would need several launches that wait for each other. Grid (R / 8, 2).
// Budget: 32 registers, 0 bytes shared.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) sort_rows(EmbedBackward<float> s, int* order) {
  const int row = (blockIdx.x * kThreads + threadIdx.x) / kLanes, lane = threadIdx.x % kLanes, table = blockIdx.y;
  if (row >= s.rows) return;
  const int mine = looked_up(s, table, row);
  int before = 0;
  for (int other = lane; other < s.rows; other += kLanes) {
    const int its = looked_up(s, table, other);
    before += its < mine || (its == mine && other < row);
  }
  for (int half = kLanes / 2; half > 0; half /= 2) before += __shfl_xor_sync(kEveryLane, before, half);
  if (lane == 0) order[size_t(table) * s.rows + before] = row;
}

constexpr int kRunThreads = 256;
constexpr int kRunColumns = 4 * kLanes;  // of a block: four a lane
constexpr int kRunAhead = 4;

// dwte[token] += the sum of the token's rows of dx, dwpe[position] likewise. Grid (R, C / 128, 2): a
// block for each place of the order. Only the block where a run of equal keys begins has work: its eight warps take the
// run's rows in turn, four rows at a time, and then add their sums in order. So a space, every sixth character of a
// text, does not delay the launch. It reads 4 R C bytes of dx for each table, the least possible, and reads and writes
// only the rows of dwte that occur. The order of a sum depends on the rows of that token alone.
// Budget: 64 registers, 4096 bytes shared.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) add_runs(EmbedBackward<float> s, const int* order) {
  constexpr int warps = kThreads / kLanes;
  auto& partial = shared<float[warps][kRunColumns]>();
  const int table = blockIdx.z, begin = blockIdx.x, t = threadIdx.x;
  order += size_t(table) * s.rows;
  const int mine = looked_up(s, table, order[begin]);
  if (begin > 0 && looked_up(s, table, order[begin - 1]) == mine) return;  // the whole block

  const int first = blockIdx.y * kRunColumns, column = first + t % kLanes * 4;
  float sum[4] = {};
  bool more = true;
  for (int i = begin + t / kLanes; more; i += kRunAhead * warps) {
    float d[kRunAhead][4] = {};
    int row[kRunAhead];
    UNROLL
    for (int j = 0; j < kRunAhead; j++) {
      row[j] = i + j * warps < s.rows ? order[i + j * warps] : -1;
      if (row[j] >= 0 && looked_up(s, table, row[j]) != mine) row[j] = -1;
    }
    UNROLL
    for (int j = 0; j < kRunAhead; j++)
      if (row[j] >= 0 && column < s.channels) read_four(s.dx + size_t(row[j]) * s.x_row + column, d[j]);
    UNROLL
    for (int j = 0; j < kRunAhead; j++) {
      more = more && row[j] >= 0;
      if (row[j] >= 0) UNROLL
      for (int c = 0; c < 4; c++) sum[c] += d[j][c];
    }
  }
  UNROLL
  for (int c = 0; c < 4; c++) partial[t / kLanes][t % kLanes * 4 + c] = sum[c];
  __syncthreads();
  if (t >= kRunColumns || first + t >= s.channels) return;
  float total = 0;
  for (int warp = 0; warp < warps; warp++) total += partial[warp][t];
  (table == 0 ? s.dwte : s.dwpe)[size_t(mine) * s.channels + first + t] += total;
}

// ---------------------------------------------------------------------------------------------------------------
// Cross-entropy over a large vocabulary

constexpr int kLossThreads = 1024;
constexpr int kLossAhead = 4;   // loads of four numbers that a thread has in flight
constexpr int kLongRow = 2048;  // from so many logits on a row takes a block, not a warp

// log(sum of exp) of part of a row: its largest number, and the sum of exp(x - largest).
struct LogSum {
  float top, sum;
};
__device__ inline LogSum joined(const LogSum& a, const LogSum& b) {
  const float top = larger(a.top, b.top);
  return {top, a.sum * exp(a.top - top) + b.sum * exp(b.top - top)};
}

// Replaces a row's logits by (softmax - onehot) * factor, and the row's padding by zeros.
__device__ inline void write_gradient(float* x, int vocab_size, int label, float log_sum, float factor) {
  for (int i = threadIdx.x * 4; i < vocab_size; i += kLossAhead * kLossThreads * 4) {
    float a[kLossAhead][4] = {};
    UNROLL
    for (int j = 0; j < kLossAhead; j++)
      if (i + j * kLossThreads * 4 < vocab_size) read_four(x + i + j * kLossThreads * 4, a[j]);
    UNROLL
    for (int j = 0; j < kLossAhead; j++) {
      const int at = i + j * kLossThreads * 4;
      if (at >= vocab_size) break;
      UNROLL
      for (int c = 0; c < 4; c++) {
        const float share = exp(a[j][c] - log_sum) * factor;
        a[j][c] = at + c == label ? share - factor : at + c < vocab_size ? share : 0.0f;
      }
      *reinterpret_cast<float4*>(x + at) = make_float4(a[j][0], a[j][1], a[j][2], a[j][3]);
    }
  }
}

// loss[row] = -log softmax(logits)[target]. With `gradient`, logits become (softmax - onehot) * factor. A block runs a
// row. A warp would need 1,571 turns for V = 50,257, and so many rows would be in work that L2 could not keep them for
// their second reading. The first reading gives the largest number and the sum together (Milakov, Gimelshein 2018), the
// second the gradient. It reads the row twice and writes it once: 12 R V bytes. The least possible is 8, and the
// traffic of memory is near it: a block takes all registers of an SM, so 132 rows of 200 KB are in work, 27 MB, and the
// second reading finds them in L2. A thread takes sixteen logits a turn, four loads of 16 bytes. A thread adds its
// turns in order; then each warp halves its sums, and then those of the warps are halved.
// Budget: 64 registers, 256 bytes shared.
template <bool gradient>
__global__ void __launch_bounds__(kLossThreads)
    cross_entropy(float* logits, int row_stride, int vocab_size, const int* target, float* loss, float factor) {
  constexpr float least = -Format<float>::kMost;  // not -inf: inf - inf is NaN
  auto& of_warp = shared<LogSum[kLossThreads / kLanes]>();
  const int t = threadIdx.x, label = target[blockIdx.x];
  float* x = logits + size_t(blockIdx.x) * row_stride;
  const float at_target = x[label];  // before it is overwritten

  LogSum mine = {least, 0.0f};
  for (int i = t * 4; i < vocab_size; i += kLossAhead * kLossThreads * 4) {
    float a[kLossAhead][4] = {};
    UNROLL
    for (int j = 0; j < kLossAhead; j++) {
      const int at = i + j * kLossThreads * 4;
      if (at < vocab_size) read_four(x + at, a[j]);
      UNROLL
      for (int c = 0; c < 4; c++) a[j][c] = at + c < vocab_size ? a[j][c] : least;
    }
    LogSum part = {least, 0.0f};
    UNROLL
    for (int j = 0; j < kLossAhead; j++) UNROLL
    for (int c = 0; c < 4; c++) part.top = larger(part.top, a[j][c]);
    UNROLL
    for (int j = 0; j < kLossAhead; j++) UNROLL
    for (int c = 0; c < 4; c++) part.sum += exp(a[j][c] - part.top);
    mine = joined(mine, part);
  }
  const auto halve = [&] {
    for (int half = kLanes / 2; half > 0; half /= 2) {
      const LogSum other = {__shfl_xor_sync(kEveryLane, mine.top, half), __shfl_xor_sync(kEveryLane, mine.sum, half)};
      mine = joined(mine, other);
    }
  };
  halve();
  if (t % kLanes == 0) of_warp[t / kLanes] = mine;
  __syncthreads();
  mine = of_warp[t % kLanes];  // every warp does the same
  halve();
  const float log_sum = mine.top + log(mine.sum);
  if (t == 0) loss[blockIdx.x] = log_sum - at_target;
  if constexpr (gradient) write_gradient(x, vocab_size, label, log_sum, factor);
}

}  // namespace nanospec
