// cuda/train.cuh: training's kernels where a warp a row is wrong.
//
// The portable text of kernels.cuh gives a row to one warp. That suits what is wide in rows: norms, GELU, residual,
// AdamW's pieces. It does not suit sums over rows (few columns, many rows), a row as long as a vocabulary, and a single
// long sum. Those are here, all deterministic: every sum has an order that depends on the shapes alone, so no atomics.
//
// In order: one long sum; sums of columns (gradients of biases and of the norms' weights); the embedding's backward;
// cross-entropy. Matrices have rows padded to a multiple of 16 numbers, so four columns are one load of 16 bytes.
#pragma once

#include "kernels.cuh"

namespace nanospec {

__device__ inline void read_four(const float* from, float (&to)[4]) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

// ---------------------------------------------------------------------------------------------------------------
// One long sum

constexpr int kSumThreads = 1024;

// op.finish(the sum of op.values (op.n)). Reads 4 n bytes once. One block: n is the number of rows of a pass, or of the
// optimizer's pieces, 500 KB at most, and a second launch would cost more than it saves. Thread t adds the values t,
// t + 1024, ... in turn; then warps are halved, and their sums.
// Budget: 32 registers, 128 bytes shared.
template <class Op>
__global__ void __launch_bounds__(kSumThreads) long_sum(Op op) {
  constexpr int warps = kSumThreads / kLanes;
  struct Sums {
    float of_warp[warps];
  };
  Sums& sums = shared<Sums>();
  const int t = threadIdx.x;
  float sum = 0;
  for (int i = t; i < op.n; i += kSumThreads) sum += op.values[i];
  for (int half = kLanes / 2; half > 0; half /= 2) sum += __shfl_xor_sync(kEveryLane, sum, half);
  if (t % kLanes == 0) sums.of_warp[t / kLanes] = sum;
  __syncthreads();
  if (t >= kLanes) return;
  sum = sums.of_warp[t];
  for (int half = kLanes / 2; half > 0; half /= 2) sum += __shfl_xor_sync(kEveryLane, sum, half);
  if (t == 0) op.finish(sum);
}

// ---------------------------------------------------------------------------------------------------------------
// Sums of columns

// What is summed over the rows: `load` gives the terms of one row in four columns from `column` on.
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
constexpr int kStripeAhead = 4;      // rows whose loads a thread has under way

// to[s][column] += sum over rows of term s. Reads each term's matrices once: 4 R C bytes, twice that for a norm, which
// is the least. A block takes 8 columns, so that even C = 768 gives 96 blocks; it reads whole sectors, and its
// neighbours read the rest of the line at the same time. A thread takes four columns of the rows place, place + 256,
// ..., four rows at a time: 32 KB under way in a block. Its sums meet those of its warp by shuffles, the warps' in
// shared memory, added in order. The order depends on a row's number alone.
// Budget: 64 registers, 1024 bytes shared.
template <class Term>
__global__ void __launch_bounds__(kStripeThreads)
    column_sums(Term term, int rows, int columns, float* to_0, float* to_1) {
  constexpr int sums = Term::kSums, warps = kStripeThreads / kLanes, step = kStripeThreads / 2;
  struct Partial {
    float of[sums][warps][kStripe];
  };
  Partial& partial = shared<Partial>();
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
    if (t % kLanes < 2) partial.of[s][t / kLanes][t % 2 * 4 + c] = sum[s][c];
  }
  __syncthreads();
  if (t >= sums * kStripe) return;
  const int s = t / kStripe, c = t % kStripe;
  float* to = s == 0 ? to_0 : to_1;
  if (!to || first + c >= columns) return;
  float total = 0;
  for (int warp = 0; warp < warps; warp++) total += partial.of[s][warp][c];
  to[first + c] += total;
}

template <class Term>
void sum_columns(const Term& term, int rows, int columns, float* to_0, float* to_1 = nullptr) {
  start(column_sums<Term>, (columns + kStripe - 1) / kStripe, kStripeThreads, term, rows, columns, to_0, to_1);
}

// ---------------------------------------------------------------------------------------------------------------
// The embedding's backward: rows are sorted by what they looked up; a block then adds the rows of one token.

// The row of wte (table 0) or wpe (table 1) that a row of the pass is made of.
__device__ inline int looked_up(const EmbedBackward<float>& s, int table, int row) {
  return table == 0 ? s.token[row] : s.forest.position(row);
}

constexpr int kSortThreads = 256;

// order (2, R): for each table all rows by what they looked up, equal ones in order of rows. A warp finds the place of
// one row by counting those that come before it: R^2 comparisons, 32 at a time, then the lanes' counts add up; no
// memory but the keys, R 4 bytes out of L1 for each warp. At R = 12,288 that is 2 * 150 M comparisons, tens of
// microseconds by estimate, and needs no passes that wait for each other, as a radix sort does. grid (R / 8, 2).
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

// dwte[token] += the sum of its rows of dx, dwpe[position] likewise, dropout applied. grid (R, C / 128, 2): a block for
// each place of the order, but only where a run of equal keys begins has it something to do. Its warps take the run's
// rows by turns, each with four rows under way, and add their eight sums in order: a space, every sixth character of a
// text, does not hold up the launch. Reads R C 4 bytes of dx for each table, the least; reads and writes only the rows
// of dwte that occur. The order of a sum depends on the rows of that token alone.
// Budget: 64 registers, 4096 bytes shared.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) add_runs(EmbedBackward<float> s, const int* order) {
  constexpr int warps = kThreads / kLanes;
  struct Partial {
    float of[warps][kRunColumns];
  };
  Partial& partial = shared<Partial>();
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
      for (int c = 0; c < 4; c++) sum[c] += d[j][c] * s.dropout.keep<float>(uint64_t(row[j]) * s.channels + column + c);
    }
  }
  UNROLL
  for (int c = 0; c < 4; c++) partial.of[t / kLanes][t % kLanes * 4 + c] = sum[c];
  __syncthreads();
  if (t >= kRunColumns || first + t >= s.channels) return;
  float total = 0;
  for (int warp = 0; warp < warps; warp++) total += partial.of[warp][t];
  (table == 0 ? s.dwte : s.dwpe)[size_t(mine) * s.channels + first + t] += total;
}

// order: scratch (2, rows).
inline void embed_gradient(const EmbedBackward<float>& s, int* order) {
  constexpr int rows_each = kSortThreads / kLanes;
  start(sort_rows<kSortThreads>, dim3((s.rows + rows_each - 1) / rows_each, 2), kSortThreads, s, order);
  start(add_runs<kRunThreads>, dim3(s.rows, (s.channels + kRunColumns - 1) / kRunColumns, 2), kRunThreads, s, order);
}

// ---------------------------------------------------------------------------------------------------------------
// Cross-entropy over a large vocabulary

constexpr int kLossThreads = 1024;
constexpr int kLossAhead = 4;   // loads of four that a thread has under way
constexpr int kLongRow = 2048;  // logits from which a row is a block's, not a warp's

// log(sum of exp) of a part of a row, as its greatest and the sum of exp(x - greatest).
struct LogSum {
  float top, sum;
};
__device__ inline LogSum joined(const LogSum& a, const LogSum& b) {
  const float top = larger(a.top, b.top);
  return {top, a.sum * exp(a.top - top) + b.sum * exp(b.top - top)};
}

// A row's logits become (softmax - onehot) * factor, and what pads the row zero.
__device__ inline void write_gradient(float* x, int vocab_size, int right, float log_sum, float factor) {
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
        a[j][c] = at + c == right ? share - factor : at + c < vocab_size ? share : 0.0f;
      }
      *reinterpret_cast<float4*>(x + at) = make_float4(a[j][0], a[j][1], a[j][2], a[j][3]);
    }
  }
}

// loss[row] = -log softmax(logits)[target]; with gradient, logits become (softmax - onehot) * factor. A block a row:
// a warp would leave V = 50,257 to 1,571 turns, and so many rows would be under way that none stayed in L2 between its
// passes. Two passes: the greatest and the sum together (Milakov, Gimelshein 2018), then the gradient. Reads the row
// twice, writes it once: 12 R V bytes. The least is 8, and what comes out of memory is near it: a block takes all the
// registers of an SM, so 132 rows of 200 KB are under way, 27 MB, and the second reading finds them in L2. A thread
// takes sixteen logits a turn, four loads of 16 bytes. Sums: a thread's turns in order, then warps halved, then the
// warps' sums halved.
// Budget: 64 registers, 256 bytes shared.
template <bool gradient>
__global__ void __launch_bounds__(kLossThreads)
    cross_entropy(float* logits, int row_stride, int vocab_size, const int* target, float* loss, float factor) {
  constexpr int warps = kLossThreads / kLanes;
  constexpr float least = -Format<float>::kMost;  // not -inf: inf - inf is no number
  struct Sums {
    LogSum of_warp[warps];
  };
  Sums& sums = shared<Sums>();
  const int t = threadIdx.x, right = target[blockIdx.x];
  float* x = logits + size_t(blockIdx.x) * row_stride;
  const float at_target = x[right];  // before it is overwritten

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
  if (t % kLanes == 0) sums.of_warp[t / kLanes] = mine;
  __syncthreads();
  mine = sums.of_warp[t % kLanes];  // every warp does the same
  halve();
  const float log_sum = mine.top + log(mine.sum);
  if (t == 0) loss[blockIdx.x] = log_sum - at_target;
  if constexpr (gradient) write_gradient(x, vocab_size, right, log_sum, factor);
}

}  // namespace nanospec
