// drafters/operations.h: operations that only the networks of drafters use, written as in kernels.cuh.
//
// The parallel drafter (parallel.h) uses RMSNorm, SwiGLU and rotary positions. The Medusa heads (medusa.h) use SiLU and
// the loss against a whole distribution. Their trainers use the backward operations. When the model supports the Llama
// family the first three will move to kernels.cuh. Each has the same bits on a core and on a warp
// (tests/cuda/cuda_rows.cu); none has a twin.
#pragma once

#include <cmath>
#include <vector>

#include "kernels.cuh"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// RMSNorm

// y = x / sqrt(mean(x^2) + 1e-6) * weight, over the C channels of a row (Zhang, Sennrich 2019).
template <class T>
struct RmsNorm {
  const T* x;
  int x_row, channels;
  const T* weight;  // (C), or null: none
  T* y;
  int y_row;
  T* rstd;  // (R) kept for the backward; may be null
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

// With n = x rstd and dn = dy weight: dx += rstd (dn - n average(dn n)). dweight: LayerNormWeights, without a mean.
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

// ---------------------------------------------------------------------------------------------------------------
// Activations

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
template <class T>
using BiasSilu = BiasActivation<T, Silu>;
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

// ---------------------------------------------------------------------------------------------------------------
// Rotary positions

// (positions, D / 2, 2) the cosine and sine of the angle by which Rope rotates pair d of a head at position
// first_position + p. The angle is position / 10000^(2 d / D).
template <class T>
std::vector<T> rope_table(int positions, int head_size, int first_position = 0) {
  std::vector<T> table;
  table.reserve(size_t(positions) * (head_size / 2) * 2);
  std::vector<double> step;  // radians for one position
  for (int d = 0; d < head_size / 2; d++) step.push_back(std::pow(10000.0, -2.0 * d / head_size));
  for (int p = 0; p < positions; p++)
    for (int d = 0; d < head_size / 2; d++) {
      const double angle = (first_position + p) * step[size_t(d)];
      table.push_back(T(std::cos(angle)));
      table.push_back(T(std::sin(angle)));
    }
  return table;
}

// Rotary positions (Su et al. 2021, RoFormer), in place. In each query and key of a row, channels d and d + D / 2 are a
// point of the plane, rotated by the angle at the row's position. So a score depends on the distance of two rows, not
// on their positions. `back` rotates the other way, which is the backward. D is even. Row r of this operation: row
// first + r of the batch.
template <class T>
struct Rope {
  Forest forest;
  int first;
  T* qkv;  // (rows, qkv_row): `heads` heads of D, queries then keys; what follows them is not changed
  int qkv_row, heads, head_size;
  const T* table;  // (positions, D / 2, 2), a row for every position of the forest
  bool back;
  template <class G>
  HD void operator()(const G& g, int item) const {
    const int row = first + item, half = head_size / 2;
    const T* angle = table + size_t(forest.position(row)) * half * 2;  // as (cosine, sine)
    T* x = qkv + size_t(row) * qkv_row;
    const T sign = back ? T(-1) : T(1);
    for (int head = 0; head < heads; head++, x += head_size)
      g.each(half, [=](int d) {
        const T a = x[d], b = x[d + half], c = angle[2 * d], s = sign * angle[2 * d + 1];
        x[d] = a * c - b * s;
        x[d + half] = a * s + b * c;
      });
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Loss

// Cross-entropy against a whole distribution p = softmax(teacher), which overwrites `teacher`:
//   loss[row] = -sum of p log softmax(logits);  with `gradient`, logits become (softmax(logits) - p) * scale.
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

}  // namespace nanospec
