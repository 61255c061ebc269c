// kernels.cuh: every operation on arrays: the portable text, which runs on both machines.
//
// An operation is a small struct: its fields say which arrays it touches, and its call operator says what one group of
// lanes does to one row (numbers.h): a core, or a GPU's warp. One text serves both, in float and, for the gradient
// check, in double. kernels.cuh runs them, or in their place what is tuned for one machine: the twins of cpu.h, the
// kernels of cuda/. What both machines' texts are made of, Forest, Dropout, Panels, Attention, is in cpu.h. Here
// nothing is known of threads, models or files.
//
// How to add an operation:
//   1. write a struct here: its fields are the arrays, with their shapes, its call operator one group's work on a row;
//   2. give it a row in tests/cuda_rows.cu, where a warp and a core must give the same bits;
//   3. call launch(team, rows, operation) where it is needed;
//   4. if a machine can do better, write it there, and give it a line in kernels.cuh.
//
// Shapes: rows R (all tokens of a pass), channels C, heads H, head size D, vocabulary V. Matrices that a matmul writes
// have rows padded to a multiple of 16 numbers.
#pragma once

#include <cmath>
#include <type_traits>
#include <vector>

#include "machine/cpu.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Column operations: what follows a matmul, on finished columns of a row: op(group, row, begin, end). They themselves
// stand with the row operations, from AddBias on.

// A column operation as a row operation over all columns.
template <class Op>
struct WholeRow {
  Op op;
  int columns;
  template <class G>
  HD void operator()(const G& g, int row) const {
    op(g, row, 0, columns);
  }
};

// The same on a GPU: a row of this operation is 128 columns of one. A pass may have fewer rows than the GPU has room
// for warps, and a warp goes through a long row serially.
template <class Op>
struct Strips {
  Op op;
  int columns;
  static constexpr int width = 4 * kLanes;
  HD int each() const { return (columns + width - 1) / width; }
  template <class G>
  HD void operator()(const G& g, int item) const {
    const int begin = item % each() * width;
    op(g, item / each(), begin, smaller(columns, begin + width));
  }
};

// The column operation that does nothing; and whether one would.
struct Nothing {
  template <class G>
  HD void operator()(const G&, int, int, int) const {}
};
template <class Op>
bool idle(const Op&) {
  return std::is_same<Op, Nothing>::value;
}

// ---------------------------------------------------------------------------------------------------------------
// Matmul

// A matrix of the model, as it is stored, into panels: panel(k, n) = from[k * k_stride + n * n_stride]. A row of this
// operation is a block of 16 k, so that the strided side is read by whole cache lines.
template <class T, class W>
struct Pack {
  const T* from;
  size_t k_stride, n_stride;
  Panels<W> to;
  static constexpr int block = 16;
  HD int rows() const { return (to.k + block - 1) / block; }
  template <class G>
  HD void operator()(const G& g, int row) const {
    const int first = row * block, last = smaller(to.k, first + block);
    if (n_stride == 1) {
      for (int k = first; k < last; k++)
        g.each(to.n, [&](int n) { *to.at(k, n) = rounded<W>(from[k * k_stride + n]); });
    } else {
      g.each(to.n, [&](int n) {
        for (int k = first; k < last; k++) *to.at(k, n) = rounded<W>(from[k * k_stride + n * n_stride]);
      });
    }
  }
};

// out (R, N) = x (R, K) W: one serial sum over k for each output. This is what every matmul here computes; those of the
// GPU cut the sum in slices. On a GPU it is also version 1, the naive one: a warp to a row, and every warp reads all of
// W; versions 2 and 3 are in cuda/matmul.cuh and cuda/matmul_mma.cuh.
template <class T, class W>
struct Matmul {
  const T* x;
  int x_row;
  Panels<W> w;
  T* out;
  int out_row;
  template <class G>
  HD void operator()(const G& g, int row) const {
    const T* a = x + size_t(row) * x_row;
    g.each(pad16(w.n), [&](int n) {
      T sum = 0;
      for (int k = 0; k < w.k; k++) sum = fused(a[k], T(to_float(*w.at(k, n))), sum);
      out[size_t(row) * out_row + n] = sum;
    });
  }
};

// dw (K, N) += x (R, K)^T dy (R, N). A row of this operation is a row of dw.
template <class T>
struct MatmulGradient {
  int rows, inputs, outputs;
  const T* x;
  int x_row;
  const T* dy;
  int dy_row;
  T* dw;
  template <class G>
  HD void operator()(const G& g, int k) const {
    g.each(outputs, [&](int n) {
      T sum = dw[size_t(k) * outputs + n];
      for (int row = 0; row < rows; row++) sum = fused(x[size_t(row) * x_row + k], dy[size_t(row) * dy_row + n], sum);
      dw[size_t(k) * outputs + n] = sum;
    });
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Embedding, normalization, activations, residual: forward and backward

// Channels of one group, where an operation sums over rows: each sum is one lane's, in order.
constexpr int kChunk = 32;

// x (R, C) = wte[token] + wpe[position], dropped out.
template <class T>
struct Embed {
  const int* token;
  Forest forest;
  const T *wte, *wpe;  // (V, C), (block, C)
  T* x;
  int x_row, channels;
  Dropout dropout;
  template <class G>
  HD void operator()(const G& g, int row) const {
    const T* symbol = wte + size_t(token[row]) * channels;
    const T* position = wpe + size_t(forest.position(row)) * channels;
    T* out = x + size_t(row) * x_row;
    g.each(channels, [=](int c) { out[c] = symbol[c] + position[c]; });
    if (dropout.rate > 0) g.each(channels, [&](int c) { out[c] *= dropout.keep<T>(uint64_t(row) * channels + c); });
  }
};

// dwte[token] += dx, dwpe[position] += dx, row after row: a group owns 32 channels, so that no two add to one number.
template <class T>
struct EmbedBackward {
  int rows;
  const int* token;
  Forest forest;
  const T* dx;
  int x_row, channels;
  T *dwte, *dwpe;
  Dropout dropout;
  template <class G>
  HD void operator()(const G& g, int chunk) const {
    const int first = chunk * kChunk, count = smaller(kChunk, channels - first);
    for (int row = 0; row < rows; row++) {
      T* symbol = dwte + size_t(token[row]) * channels + first;
      T* position = dwpe + size_t(forest.position(row)) * channels + first;
      const T* d = dx + size_t(row) * x_row + first;
      g.each(count, [&](int c) {
        const T kept = d[c] * dropout.keep<T>(uint64_t(row) * channels + first + c);
        symbol[c] += kept;
        position[c] += kept;
      });
    }
  }
};

// y = (x - mean) / sqrt(variance + 1e-5) * weight + bias, over the C channels of a row (Ba, Kiros, Hinton 2016).
template <class T>
struct LayerNorm {
  const T* x;
  int x_row, channels;
  const T *weight, *bias;  // (C); bias may be null
  T* y;
  int y_row;
  T *mean, *rstd;  // (R) kept for the backward pass; may be null
  template <class G>
  HD void operator()(const G& g, int row) const {
    const T* a = x + size_t(row) * x_row;
    T* out = y + size_t(row) * y_row;
    const T m = g.template sum<T>(channels, [=](int c) { return a[c]; }) / T(channels);
    const T v = g.template sum<T>(channels, [=](int c) { return (a[c] - m) * (a[c] - m); }) / T(channels);
    const T r = T(1) / square_root(v + T(1e-5));
    const T *w = weight, *b = bias;
    if (b) g.each(channels, [=](int c) { out[c] = fused((a[c] - m) * r, w[c], b[c]); });
    else g.each(channels, [=](int c) { out[c] = (a[c] - m) * r * w[c]; });
    if (mean) g.each(1, [=](int) { mean[row] = m, rstd[row] = r; });
  }
};

// With n = (x - mean) rstd and dn = dy weight: dx += rstd (dn - average(dn) - n average(dn n)).
template <class T>
struct LayerNormBackward {
  const T* x;
  int x_row, channels;
  const T *weight, *mean, *rstd;
  const T* dy;
  int y_row;
  T* dx;  // (R, C), added into: the gradient that came past the norm
  template <class G>
  HD void operator()(const G& g, int row) const {
    const T *a = x + size_t(row) * x_row, *d = dy + size_t(row) * y_row, *w = weight;
    T* out = dx + size_t(row) * x_row;
    const T m = mean[row], r = rstd[row];
    const T s0 = g.template sum<T>(channels, [=](int c) { return d[c] * w[c]; }) / T(channels);
    const T s1 = g.template sum<T>(channels, [=](int c) { return d[c] * w[c] * ((a[c] - m) * r); }) / T(channels);
    g.each(channels, [=](int c) { out[c] += r * (d[c] * w[c] - s0 - (a[c] - m) * r * s1); });
  }
};

// dweight += sum over rows of dy n, dbias += sum of dy, in order of rows. A row of this operation is 32 channels.
template <class T>
struct LayerNormWeights {
  int rows;
  const T* x;
  int x_row, channels;
  const T *mean, *rstd, *dy;
  int y_row;
  T *dweight, *dbias;  // dbias may be null
  template <class G>
  HD void operator()(const G& g, int chunk) const {
    const int first = chunk * kChunk, count = smaller(kChunk, channels - first);
    T *dw = dweight + first, *db = dbias ? dbias + first : nullptr;
    for (int row = 0; row < rows; row++) {
      const T *a = x + size_t(row) * x_row + first, *d = dy + size_t(row) * y_row + first;
      const T m = mean[row], r = rstd[row];
      g.each(count, [=](int c) { dw[c] += d[c] * ((a[c] - m) * r); });
      if (db) g.each(count, [=](int c) { db[c] += d[c]; });
    }
  }
};

// y = x / sqrt(mean(x^2) + 1e-6) * weight, over the C channels of a row (Zhang, Sennrich 2019).
template <class T>
struct RmsNorm {
  const T* x;
  int x_row, channels;
  const T* weight;  // (C), or null: none
  T* y;
  int y_row;
  T* rstd;  // (R) kept for the backward pass; may be null
  template <class G>
  HD void operator()(const G& g, int row) const {
    const T *a = x + size_t(row) * x_row, *w = weight;
    T* out = y + size_t(row) * y_row;
    const T r =
        T(1) / square_root(g.template sum<T>(channels, [=](int c) { return a[c] * a[c]; }) / T(channels) + T(1e-6));
    if (w) g.each(channels, [=](int c) { out[c] = a[c] * r * w[c]; });
    else g.each(channels, [=](int c) { out[c] = a[c] * r; });
    if (T* kept = rstd) g.each(1, [=](int) { kept[row] = r; });
  }
};

// With n = x rstd and dn = dy weight: dx += rstd (dn - n average(dn n)).
template <class T>
struct RmsNormBackward {
  const T* x;
  int x_row, channels;
  const T *weight, *rstd;  // weight may be null
  const T* dy;
  int y_row;
  T* dx;  // (R, C), rows as x's; added into
  template <class G>
  HD void operator()(const G& g, int row) const {
    const T *a = x + size_t(row) * x_row, *d = dy + size_t(row) * y_row, *w = weight;
    T* out = dx + size_t(row) * x_row;
    const T r = rstd[row];
    const auto add = [&](auto dn) {
      const T s = g.template sum<T>(channels, [=](int c) { return dn(c) * (a[c] * r); }) / T(channels);
      g.each(channels, [=](int c) { out[c] += r * (dn(c) - a[c] * r * s); });
    };
    if (w) add([=](int c) { return d[c] * w[c]; });
    else add([=](int c) { return d[c]; });
  }
};

// dweight += sum over rows of dy n, in order of rows. A row of this operation is 32 channels.
template <class T>
struct RmsNormWeights {
  int rows;
  const T* x;
  int x_row, channels;
  const T *rstd, *dy;
  int y_row;
  T* dweight;
  template <class G>
  HD void operator()(const G& g, int chunk) const {
    const int first = chunk * kChunk, count = smaller(kChunk, channels - first);
    T* dw = dweight + first;
    for (int row = 0; row < rows; row++) {
      const T *a = x + size_t(row) * x_row + first, *d = dy + size_t(row) * y_row + first;
      const T r = rstd[row];
      g.each(count, [=](int c) { dw[c] += d[c] * (a[c] * r); });
    }
  }
};

// dbias (N) += sum over rows of dy (R, N), in order of rows. A row of this operation is 32 columns.
template <class T>
struct ColumnSum {
  int rows, columns;
  const T* dy;
  int y_row;
  T* dbias;
  template <class G>
  HD void operator()(const G& g, int chunk) const {
    const int first = chunk * kChunk, count = smaller(kChunk, columns - first);
    T* sum = dbias + first;
    for (int row = 0; row < rows; row++) {
      const T* d = dy + size_t(row) * y_row + first;
      g.each(count, [=](int c) { sum[c] += d[c]; });
    }
  }
};

// Column operations: what follows a matmul on its fresh columns.

template <class T>
struct AddBias {
  T* y;
  int y_row;
  const T* bias;  // may be null
  template <class G>
  HD void operator()(const G& g, int row, int begin, int end) const {
    if (!bias) return;
    T* a = y + size_t(row) * y_row + begin;
    const T* b = bias + begin;
    g.each(end - begin, [=](int c) { a[c] += b[c]; });
  }
};
template <class T>
bool idle(const AddBias<T>& op) {
  return !op.bias;
}

// Activations: what becomes of a number, and the slope there.

// GELU(x) = x Phi(x), Phi the normal distribution function (Hendrycks, Gimpel 2016);
// GELU'(x) = Phi(x) + x exp(-x^2 / 2) / sqrt(2 pi).
struct Gelu {
  template <class T>
  HD_INLINE static T of(T x) {
    return T(0.5) * x * (T(1) + erf(x * T(0.70710678118654752440)));
  }
  template <class T>
  HD_INLINE static T slope(T x) {
    const T phi = T(0.5) * (T(1) + erf(x * T(0.70710678118654752440)));
    return fused(x, exp(T(-0.5) * x * x) * T(0.39894228040143267794), phi);
  }
};
// SiLU(x) = x / (1 + exp(-x)) (Elfwing, Uchibe, Doya 2018); with s = 1 / (1 + exp(-x)), SiLU'(x) = s (1 + x (1 - s)).
struct Silu {
  template <class T>
  HD_INLINE static T of(T x) {
    return x / (T(1) + exp(-x));
  }
  template <class T>
  HD_INLINE static T slope(T x) {
    const T s = T(1) / (T(1) + exp(-x));
    return s * fused(x, T(1) - s, T(1));
  }
};

// pre += bias; out = Activation(pre), or residual + Activation(pre).
template <class T, class Activation>
struct BiasActivation {
  T *pre, *out;  // (R, N)
  int row_stride;
  const T* bias;                // may be null
  const T* residual = nullptr;  // (R, N), or null: none
  template <class G>
  HD void operator()(const G& g, int row, int begin, int end) const {
    AddBias<T>{pre, row_stride, bias}(g, row, begin, end);
    const size_t at = size_t(row) * row_stride + begin;
    const T *a = pre + at, *r = residual + at;
    T* o = out + at;
    if (residual) g.each(end - begin, [=](int c) { o[c] = r[c] + Activation::of(a[c]); });
    else g.each(end - begin, [=](int c) { o[c] = Activation::of(a[c]); });
  }
};
template <class T>
using BiasGelu = BiasActivation<T, Gelu>;
template <class T>
using BiasSilu = BiasActivation<T, Silu>;

// d = d Activation'(pre).
template <class T, class Activation>
struct ActivationBackward {
  const T* pre;
  T* d;
  int row_stride;
  template <class G>
  HD void operator()(const G& g, int row, int begin, int end) const {
    const T* a = pre + size_t(row) * row_stride + begin;
    T* out = d + size_t(row) * row_stride + begin;
    g.each(end - begin, [=](int c) { out[c] *= Activation::slope(a[c]); });
  }
};
template <class T>
using GeluBackward = ActivationBackward<T, Gelu>;
template <class T>
using SiluBackward = ActivationBackward<T, Silu>;

// act = SiLU(gate) up (Shazeer 2020, GLU Variants Improve Transformer), of gate and up side by side in a row.
template <class T>
struct SwiGlu {
  const T* gate_up;  // (R, gate_row): F gates, then F ups
  int gate_row, inner;
  T* act;  // (R, act_row): F
  int act_row;
  template <class G>
  HD void operator()(const G& g, int row) const {
    const T *gate = gate_up + size_t(row) * gate_row, *up = gate + inner;
    T* out = act + size_t(row) * act_row;
    g.each(inner, [=](int c) { out[c] = Silu::of(gate[c]) * up[c]; });
  }
};

// dgate = dact up SiLU'(gate), dup = dact SiLU(gate).
template <class T>
struct SwiGluBackward {
  const T* gate_up;
  int gate_row, inner;
  const T* dact;
  int act_row;
  T* dgate_up;  // rows as gate_up's; may be gate_up itself
  template <class G>
  HD void operator()(const G& g, int row) const {
    const T *gate = gate_up + size_t(row) * gate_row, *up = gate + inner, *d = dact + size_t(row) * act_row;
    T *dgate = dgate_up + size_t(row) * gate_row, *dup = dgate + inner;
    g.each(inner, [=](int c) {
      const T x = gate[c], u = up[c], dy = d[c];
      dgate[c] = dy * u * Silu::slope(x);
      dup[c] = dy * Silu::of(x);
    });
  }
};

// out = residual + dropout(out + bias): the branch that a matmul has just written joins the stream beside it.
template <class T>
struct JoinResidual {
  const T* residual;
  T* out;
  int row_stride, channels;
  const T* bias;  // may be null
  Dropout dropout;
  template <class G>
  HD void operator()(const G& g, int row, int begin, int end) const {
    AddBias<T>{out, row_stride, bias}(g, row, begin, end);
    const T* a = residual + size_t(row) * row_stride + begin;
    T* o = out + size_t(row) * row_stride + begin;
    if (dropout.rate > 0)
      g.each(end - begin, [=](int c) { o[c] *= dropout.keep<T>(uint64_t(row) * channels + begin + c); });
    g.each(end - begin, [=](int c) { o[c] += a[c]; });
  }
};

// out = d where dropout kept it, scaled; the gradient that flows into a dropped-out branch. A plain copy at rate 0.
template <class T>
struct DropoutBackward {
  const T* d;
  T* out;
  int row_stride, channels;
  Dropout dropout;
  template <class G>
  HD void operator()(const G& g, int row, int begin, int end) const {
    const T* a = d + size_t(row) * row_stride + begin;
    T* o = out + size_t(row) * row_stride + begin;
    const uint64_t first = uint64_t(row) * channels + begin;
    g.each(end - begin, [=](int c) { o[c] = a[c] * dropout.keep<T>(first + c); });
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Tree attention: the portable text. Shapes and structs are in cpu.h, beside the twin; the GPU's kernels, of which this
// text is version 1, are in cuda/attention.cuh and cuda/attention_backward.cuh.

// The cosine and sine by which Rope turns pair d of a head at position first_position + p: (positions, D / 2, 2). The
// angle is position / 10000^(2 d / D).
template <class T>
std::vector<T> rope_table(int positions, int head_size, int first_position = 0) {
  std::vector<T> table;
  table.reserve(size_t(positions) * (head_size / 2) * 2);
  std::vector<double> turn;  // radians a position
  for (int d = 0; d < head_size / 2; d++) turn.push_back(std::pow(10000.0, -2.0 * d / head_size));
  for (int p = 0; p < positions; p++)
    for (int d = 0; d < head_size / 2; d++) {
      const double angle = (first_position + p) * turn[size_t(d)];
      table.push_back(T(std::cos(angle))), table.push_back(T(std::sin(angle)));
    }
  return table;
}

// Rotary positions (Su et al. 2021, RoFormer), in place: in each query and key of a row, channels d and d + D / 2 are
// turned as a point of the plane by their angle at the row's position; so a score depends on how far apart two rows
// are, not on where. `back` turns the other way, which is how the gradient comes back. D is even. Row r of this
// operation: pass row first + r.
template <class T>
struct Rope {
  Forest forest;
  int first;
  T* qkv;  // (rows, qkv_row): `heads` heads of D, queries then keys, then what is left alone
  int qkv_row, heads, head_size;
  const T* table;  // (positions, D / 2, 2), a row for every position of the forest
  bool back;
  template <class G>
  HD void operator()(const G& g, int item) const {
    const int row = first + item, half = head_size / 2;
    const T* turn = table + size_t(forest.position(row)) * half * 2;
    T* x = qkv + size_t(row) * qkv_row;
    const T sign = back ? T(-1) : T(1);
    for (int head = 0; head < heads; head++, x += head_size)
      g.each(half, [=](int d) {
        const T a = x[d], b = x[d + half], c = turn[2 * d], s = sign * turn[2 * d + 1];
        x[d] = a * c - b * s;
        x[d + half] = a * s + b * c;
      });
  }
};

// Row r of this operation: the keys and values of pass row r into the cache.
template <class T, class S>
struct WriteCache {
  Attention<T, S> s;
  template <class G>
  HD void operator()(const G& g, int row) const {
    if (!s.asked(row)) return;
    const int D = s.head_size, slot = s.forest.slot(row);
    const T* k = s.qkv + size_t(row) * s.qkv_row + s.n_head * D;
    const T* v = k + s.n_kv_head * D;
    g.each(s.n_kv_head * D, [&](int c) {
      *s.cache.key(c / D, slot, c % D) = rounded<S>(k[c]);
      *s.cache.value(c / D, slot, c % D) = rounded<S>(v[c]);
    });
  }
};

// Row r of this operation: pass row r / H, head r % H. weights (R, H, most keys) is scratch.
//   weights = softmax over the visible keys, in order of position, of q k / sqrt(D);  out = their sum of values
template <class T, class S>
struct AttentionForward {
  Attention<T, S> s;
  T* weights;
  int most;
  template <class G>
  HD void operator()(const G& g, int item) const {
    const Forest& f = s.forest;
    const int row = item / s.n_head, head = item % s.n_head, kv_head = head / s.queries(), D = s.head_size;
    if (!s.asked(row)) return;
    const int root = f.root[row], first = f.first_row[root], past = f.past[root], slot0 = f.first_slot[root];
    const T* q = s.qkv + size_t(row) * s.qkv_row + head * D;
    T* w = weights + size_t(item) * most;
    g.each(past + row - first + 1, [&](int j) {
      T score = 0;
      for (int d = 0; d < D; d++) score = fused(q[d], T(to_float(*s.cache.key(kv_head, slot0 + j, d))), score);
      w[j] = score;
    });
    g.each(1, [&](int) {  // the row's ancestors move together: slot by slot is position by position
      for (int j = first, seen = past; j <= row; j++)
        if (f.sees(row, j)) w[seen++] = w[past + j - first];
    });
    const int seen = past + f.depth[row] + 1;
    const T scale = s.scale(), top = scale * g.template largest<T>(seen, [=](int i) { return w[i]; });
    g.each(seen, [=](int i) { w[i] = exp(w[i] * scale - top); });
    const T total = g.template sum<T>(seen, [=](int i) { return w[i]; });
    if (s.log_sum) g.each(1, [&](int) { s.log_sum[item] = top + log(total); });
    if (s.dropout.rate > 0) g.each(seen, [&](int i) { w[i] *= s.keep(row, head, i); });
    g.each(D, [&](int d) {
      const auto value = [&](int j) { return T(to_float(*s.cache.value(kv_head, slot0 + j, d))); };
      T sum = 0;
      for (int j = 0; j < past; j++) sum = fused(w[j], value(j), sum);
      for (int j = first, i = past; j <= row; j++)
        if (f.sees(row, j)) sum = fused(w[i++], value(past + j - first), sum);
      s.out[size_t(row) * s.out_row + head * D + d] = sum / total + T(0);
    });
  }
};

// Row r of this operation: pass row r / H, head r % H. Writes dQ, and leaves P (dropped out) and dS for the keys' sums.
// The formulas stand with the twin, attention_backward_twin.
template <class T>
struct AttentionBackwardQueries {
  AttentionBackward<T> b;
  T *p, *ds;  // (R, H, most keys)
  int most;
  template <class G>
  HD void operator()(const G& g, int item) const {
    const Attention<T>& s = b.forward;
    const Forest& f = s.forest;
    const int row = item / s.n_head, head = item % s.n_head, kv_head = head / s.queries(), D = s.head_size;
    if (!s.asked(row)) return;
    const int root = f.root[row], first = f.first_row[root], past = f.past[root], slot0 = f.first_slot[root];
    const T* q = s.qkv + size_t(row) * s.qkv_row + head * D;
    const T* dout = b.dout + size_t(row) * s.out_row + head * D;
    const T* out = s.out + size_t(row) * s.out_row + head * D;
    T *pr = p + size_t(item) * most, *dsr = ds + size_t(item) * most;
    const T delta = g.template sum<T>(D, [=](int d) { return dout[d] * out[d]; }), scale = s.scale();
    const int keys = past + row - first + 1;
    g.each(keys, [&](int j) {
      pr[j] = dsr[j] = 0;
      if (j >= past && !f.sees(row, first + j - past)) return;
      const T* v = s.cache.value(kv_head, slot0 + j, 0);
      T score = 0, dp = 0;
      for (int d = 0; d < D; d++) score = fused(q[d], *s.cache.key(kv_head, slot0 + j, d), score);
      for (int d = 0; d < D; d++) dp = fused(dout[d], v[d], dp);
      const T weight = exp(score * scale - s.log_sum[item]);
      const T keep = s.keep(row, head, j < past ? j : past + f.depth[first + j - past]);
      dsr[j] = weight * (dp * keep - delta) * scale;
      pr[j] = weight * keep;
    });
    g.each(D, [&](int d) {
      T sum = 0;
      for (int j = 0; j < keys; j++) sum = fused(dsr[j], *s.cache.key(kv_head, slot0 + j, d), sum);
      b.dqkv[size_t(row) * s.qkv_row + head * D + d] = sum;
    });
  }
};

// Row r of this operation: one key of one root and key/value head. The rows that see a tree key are its subtree,
// key .. end[key] - 1; the rows that see a past key are all of the root's. Of either, those that are asked.
template <class T>
struct AttentionBackwardKeys {
  AttentionBackward<T> b;
  const T *p, *ds;
  int most;
  template <class G>
  HD void operator()(const G& g, int item) const {
    const Attention<T>& s = b.forward;
    const Forest& f = s.forest;
    const int root = item / (s.n_kv_head * most), kv_head = item / most % s.n_kv_head, j = item % most;
    const int D = s.head_size, first = f.first_row[root], last = f.first_row[root + 1], past = f.past[root];
    if (j >= past + last - first) return;
    const int own = j < past ? first : first + j - past, to = j < past ? last : f.end[own];
    const int from = larger(own, s.first_asked(root));
    T *dk = b.dk + b.at(kv_head, f.first_slot[root] + j), *dv = b.dv + b.at(kv_head, f.first_slot[root] + j);
    g.each(D, [&](int d) {
      T k = dk[d], v = dv[d];
      for (int head = kv_head * s.queries(); head < (kv_head + 1) * s.queries(); head++)
        for (int row = from; row < to; row++) {
          const size_t at = (size_t(row) * s.n_head + head) * most + j;
          k = fused(ds[at], s.qkv[size_t(row) * s.qkv_row + head * D + d], k);
          v = fused(p[at], b.dout[size_t(row) * s.out_row + head * D + d], v);
        }
      dk[d] = k, dv[d] = v;
    });
  }
};

// Row r: the gradients of pass row r's own keys and values, from their slots into dqkv.
template <class T>
struct ReadCacheGradient {
  AttentionBackward<T> b;
  template <class G>
  HD void operator()(const G& g, int row) const {
    const Attention<T>& s = b.forward;
    if (!s.asked(row)) return;
    const int D = s.head_size, slot = s.forest.slot(row);
    T* k = b.dqkv + size_t(row) * s.qkv_row + s.n_head * D;
    T* v = k + s.n_kv_head * D;
    for (int head = 0; head < s.n_kv_head; head++) {
      const T *dk = b.dk + b.at(head, slot), *dv = b.dv + b.at(head, slot);
      T *k_head = k + head * D, *v_head = v + head * D;
      g.each(D, [=](int d) { k_head[d] = dk[d], v_head[d] = dv[d]; });
    }
  }
};

// The rows of the last pass that stay: slot first + i takes what slot first + kept[i] holds, in place. kept ascends and
// kept[i] >= i, so a row only moves left, and a lane that copies its own columns row after row never reads a slot that
// it has already overwritten. In parallel over rows this would be a race. Row r: layer and head r. Its CUDA twin is
// gather_kernel in cuda/decode.cuh.
template <class S>
struct KeepRows {
  S *k, *v;                 // of all layers
  size_t k_layer, v_layer;  // numbers of one layer
  int n_kv_head, slots, head_size;
  int first, count;
  const int* kept;  // (count)
  template <class G>
  HD void operator()(const G& g, int item) const {
    const int layer = item / n_kv_head, head = item % n_kv_head;
    const KeyValues<S> cache{k + layer * k_layer, v + layer * v_layer, slots, head_size};
    g.each(head_size, [&](int d) {
      for (int i = 0; i < count; i++) {
        *cache.key(head, first + i, d) = *cache.key(head, first + kept[i], d);
        *cache.value(head, first + i, d) = *cache.value(head, first + kept[i], d);
      }
    });
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Loss and optimizer

// loss[row] = -log softmax(logits)[target]; with gradient, logits become dlogits = (softmax - onehot) * scale.
template <class T>
struct CrossEntropy {
  T* logits;  // (R, row_stride)
  int row_stride, vocab_size;
  const int* target;
  T* loss;  // (R)
  bool gradient;
  T scale;
  template <class G>
  HD void operator()(const G& g, int row) const {
    T* x = logits + size_t(row) * row_stride;
    const T top = g.template largest<T>(vocab_size, [=](int i) { return x[i]; });
    const T at_target = x[target[row]];
    const T total = g.template sum<T>(vocab_size, [=](int i) { return exp(x[i] - top); });
    const T log_sum = top + log(total);
    g.each(1, [&](int) { loss[row] = log_sum - at_target; });
    if (!gradient) return;
    const T factor = scale;
    g.each(vocab_size, [=](int i) { x[i] = exp(x[i] - log_sum) * factor; });
    g.each(1, [&](int) { x[target[row]] -= factor; });
  }
};

// The same against a whole distribution: with p = softmax(teacher), which `teacher` becomes,
//   loss[row] = -sum of p log softmax(logits);  with gradient, logits become (softmax(logits) - p) * scale.
template <class T>
struct SoftCrossEntropy {
  T *logits, *teacher;  // (R, row_stride)
  int row_stride, vocab_size;
  T* loss;  // (R)
  bool gradient;
  T scale;
  template <class G>
  HD void operator()(const G& g, int row) const {
    T *x = logits + size_t(row) * row_stride, *p = teacher + size_t(row) * row_stride;
    const auto log_sum = [&](const T* a) {
      const T top = g.template largest<T>(vocab_size, [=](int i) { return a[i]; });
      return top + log(g.template sum<T>(vocab_size, [=](int i) { return exp(a[i] - top); }));
    };
    const T x_sum = log_sum(x), p_sum = log_sum(p), factor = scale;
    g.each(vocab_size, [=](int i) { p[i] = exp(p[i] - p_sum); });
    const T cost = g.template sum<T>(vocab_size, [=](int i) { return p[i] * (x_sum - x[i]); });
    g.each(1, [&](int) { loss[row] = cost; });
    if (gradient) g.each(vocab_size, [=](int i) { x[i] = (exp(x[i] - x_sum) - p[i]) * factor; });
  }
};

// One row: mean (1) = average of values (n).
template <class T>
struct Mean {
  const T* values;
  int n;
  T* mean;
  HD void finish(T sum) const { *mean = sum / T(n); }
  template <class G>
  HD void operator()(const G& g, int) const {
    const T sum = g.template sum<T>(n, [=](int i) { return values[i]; });
    g.each(1, [&](int) { finish(sum); });
  }
};

// A row of this operation is a block of 4,096 numbers.
template <class T>
struct Zero {
  T* data;
  size_t n;
  static constexpr int block = 4096;
  HD int rows() const { return int((n + block - 1) / block); }
  template <class G>
  HD void operator()(const G& g, int row) const {
    T* a = data + size_t(row) * block;
    g.each(int(smaller(size_t(block), n - size_t(row) * block)), [=](int i) { a[i] = T(0); });
  }
};

// A stretch of one tensor in the flat array of parameters: the optimizer's unit of work.
struct Piece {
  size_t offset;
  int size;
  float decay;  // how much of the weight decay it takes: 1 for matrices, 0 for norms and biases
};

// sums[piece] = the sum of the squares of its gradients. A row of this operation is a piece.
template <class T>
struct SumSquares {
  const Piece* pieces;
  const T* gradient;
  T* sums;  // (pieces)
  template <class G>
  HD void operator()(const G& g, int row) const {
    const T* d = gradient + pieces[row].offset;
    const T sum = g.template sum<T>(pieces[row].size, [=](int i) { return d[i] * d[i]; });
    g.each(1, [&](int) { sums[row] = sum; });
  }
};

// One row: norm (2) = the gradient's length, and the factor that clips it to `limit` (0: no clipping).
template <class T>
struct ClipFactor {
  const T* values;  // of the pieces: their sums of squares
  int n;
  T limit;
  T* norm;
  HD void finish(T sum) const {
    const T length = square_root(sum);
    norm[0] = length;
    norm[1] = limit > 0 && length > limit ? limit / (length + T(1e-6)) : T(1);
  }
  template <class G>
  HD void operator()(const G& g, int) const {
    const T sum = g.template sum<T>(n, [=](int i) { return values[i]; });
    g.each(1, [&](int) { finish(sum); });
  }
};

// AdamW (Loshchilov, Hutter 2019). A row of this operation is a piece.
//   w -= rate decay w;  m = b1 m + (1 - b1) d;  v = b2 v + (1 - b2) d^2;  w -= rate (m / c1) / (sqrt(v / c2) + eps)
template <class T>
struct AdamW {
  const Piece* pieces;
  T *weight, *m, *v;
  const T *gradient, *norm;
  T rate, decay, beta1, beta2, correction1, correction2;  // c1 = 1 - b1^t, c2 = 1 - b2^t at update t = 1, 2, ...
  template <class G>
  HD void operator()(const G& g, int row) const {
    const Piece piece = pieces[row];
    T *w = weight + piece.offset, *pm = m + piece.offset, *pv = v + piece.offset;
    const T *d = gradient + piece.offset, clip = norm[1];
    const T keep = T(1) - rate * decay * T(piece.decay), step = rate / correction1,
            root = T(1) / square_root(correction2);
    const T b1 = beta1, b2 = beta2;
    g.each(piece.size, [=](int i) {
      const T x = d[i] * clip;
      pm[i] = fused(b1, pm[i], (T(1) - b1) * x);
      pv[i] = fused(b2, pv[i], (T(1) - b2) * x * x);
      w[i] = w[i] * keep - step * pm[i] / (square_root(pv[i]) * root + T(1e-8));
    });
  }
};

}  // namespace nanospec
