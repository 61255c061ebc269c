// drafters/operations.h: operations that only the networks of drafters use, written as in kernels.cuh.
//
// The heads (medusa.h, hydra.h) use SiLU beside a residual, Medusa's the loss against a whole distribution; hydra.h and
// the parallel drafter (parallel.h) RMSNorm without a table of norms, and the latter rows that are joined of two. Each
// has the same bits on a core and on a warp (tests/cuda/cuda_rows.cu); none has a twin.
#pragma once

#include "kernels.cuh"

namespace nanospec {

// pre += bias; out = residual + SiLU(pre).
template <class T>
struct JoinSilu {
  T *pre, *out;  // (R, N)
  int row_stride;
  const T *bias, *residual;  // (N), (R, N)
  template <class G>
  HD void operator()(const G& g, int row, int begin, int end) const {
    AddBias<T>{pre, row_stride, bias}(g, row, begin, end);
    const size_t at = size_t(row) * row_stride + begin;
    const T* r = residual + at;
    const T* a = pre + at;
    g.map(out + at, end - begin, [=](int c) { return r[c] + Silu::of(a[c]); });
  }
};

// d = d SiLU'(pre): its gradient.
template <class T>
struct SiluBackward {
  const T* pre;
  T* d;
  int row_stride;
  template <class G>
  HD void operator()(const G& g, int row, int begin, int end) const {
    const T* a = pre + size_t(row) * row_stride + begin;
    T* out = d + size_t(row) * row_stride + begin;
    g.map(out, end - begin, [=](int c) { return out[c] * Silu::slope(a[c]); });
  }
};

template <class T>
HD Norm<T> rms_norm(const T* x, int x_row, int channels, const T* weight, T* y, int y_row, T* rstd) {
  return {x, x_row, channels, weight, nullptr, y, y_row, nullptr, rstd, false, T(1e-6)};
}

// input (R, 2 C) = [e; h]: e is the embedding of the row's token, scaled to mean square 1, h its hidden state.
template <class T>
struct JoinInput {
  const int* token;
  const T* wte;     // (V, C) the target's
  const T* hidden;  // (R, hidden_row)
  int hidden_row;
  T* input;
  int input_row, channels;
  template <class G>
  HD void operator()(const G& g, int row) const {
    T* out = input + size_t(row) * input_row;
    rms_norm<T>(wte + size_t(token[row]) * channels, 0, channels, nullptr, out, 0, nullptr)(g, 0);
    const T* h = hidden + size_t(row) * hidden_row;
    T* second_half = out + channels;
    g.each(channels, [=](int c) { second_half[c] = h[c]; });
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
