// kernels.cuh: every operation on arrays.
//
// An operation is a small struct: its fields say which arrays it touches, and its call operator says what one group of
// lanes does to one row (numbers.h). `launch` runs it over all rows: on a CPU each thread of the team takes a share,
// with a group of one; on a GPU a row is a warp's. One text serves both, in float and, for the gradient check, in
// double. The two hot operations, matmul and attention, have tuned CPU twins in cpu.h with the same bits.
// It knows nothing of models, trees or files.
//
// How to add an operation:
//   1. write a struct here: its fields are the arrays, with their shapes, its call operator one group's work on a row;
//   2. give it a row in tests/cuda_rows.cu, where a warp and a core must give the same bits;
//   3. call launch(team, rows, operation) where it is needed.
//
// Shapes: rows R (all tokens of a pass), channels C, heads H, head size D, vocabulary V. Matrices that a matmul writes
// have rows padded to a multiple of 16 numbers.
#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "cpu.h"
#ifdef WITH_CUDA
#include "cuda/attention_backward.cuh"
#include "cuda/blas.cuh"
#include "cuda/machine.cuh"
#include "cuda/train.cuh"
#include "cuda/matmul.cuh"
#include "cuda/matmul_mma.cuh"
#endif

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Devices and memory

#ifndef WITH_CUDA
inline bool cuda_available() { return false; }
#endif

// Whether "auto", "cpu" or "cuda" comes to the GPU. Throws std::runtime_error where it is asked for and cannot be had.
inline bool choose_cuda(const std::string& device) {
  if (device == "cuda" && !cuda_available())
#ifdef WITH_CUDA
    throw std::runtime_error(cuda_problem() + ": --device cuda: use --device cpu, or see what nvidia-smi says");
#else
    throw std::runtime_error(
        "this program was built without CUDA: --device cuda: run its -cuda twin, which make builds where it finds "
        "nvcc");
#endif
  return device != "cpu" && cuda_available();
}

// The most bytes of the GPU's memory that this program has held.
inline size_t most_device_bytes() {
#ifdef WITH_CUDA
  return device_bytes.most;
#else
  return 0;
#endif
}

// Owns n zeroed numbers in the memory of the CPU or the GPU. Throws std::bad_alloc (CPU), std::runtime_error (GPU).
template <class T>
class Array {
 public:
  Array() = default;
  explicit Array(size_t n, bool cuda = false) : n_(n), cuda_(cuda) {
    if (n > SIZE_MAX / sizeof(T)) throw std::bad_alloc();
    const size_t bytes = larger(n, size_t(1)) * sizeof(T);
#ifdef WITH_CUDA
    if (cuda) {
      const cudaError_t error = cudaMalloc(reinterpret_cast<void**>(&data_), bytes);
      if (error == cudaErrorMemoryAllocation) throw out_of_gpu_memory(bytes);
      CUDA_CHECK(error);
      device_bytes.add(bytes);
      CUDA_CHECK(cudaMemset(data_, 0, bytes));
      return;
    }
#endif
    data_ = static_cast<T*>(allocate_zeroed(bytes));
  }
  Array(Array&& other) noexcept { *this = std::move(other); }
  Array& operator=(Array&& other) noexcept {
    std::swap(data_, other.data_), std::swap(n_, other.n_), std::swap(cuda_, other.cuda_);
    return *this;
  }
  ~Array() {
#ifdef WITH_CUDA
    if (cuda_) {
      if (data_) device_bytes.now -= larger(n_, size_t(1)) * sizeof(T);
      cudaFree(data_);
      return;
    }
#endif
    std::free(data_);
  }
  T* data() const { return data_; }
  size_t size() const { return n_; }

  void upload(const T* from, size_t n, size_t at = 0) {
    if (n == 0) return;
#ifdef WITH_CUDA
    if (cuda_) {
      CUDA_CHECK(cudaMemcpy(data_ + at, from, n * sizeof(T), cudaMemcpyHostToDevice));
      return;
    }
#endif
    memcpy(data_ + at, from, n * sizeof(T));
  }
  void download(T* to, size_t n, size_t at = 0) const {
#ifdef WITH_CUDA
    if (cuda_) {
      CUDA_CHECK(cudaMemcpy(to, data_ + at, n * sizeof(T), cudaMemcpyDeviceToHost));
      return;
    }
#endif
    if (n) memcpy(to, data_ + at, n * sizeof(T));
  }

 private:
  T* data_ = nullptr;
  size_t n_ = 0;
  bool cuda_ = false;
};

// ---------------------------------------------------------------------------------------------------------------
// Launch

#ifdef WITH_CUDA
// A warp a row. The largest of the operations, the gradients of the portable attention, sets the budget.
// Budget: 80 registers, 0 bytes shared.
template <class Op>
__global__ void row_kernel(Op op, int rows) {
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / kLanes;
  if (row < rows) op(Warp{}, row);
}
#endif

// op(group, row) for each row; when it returns to a thread, every row is done.
// On a GPU a warp a row is good for rows of up to some thousand numbers, where there are thousands of them: norms,
// embedding, the optimizer's pieces. Neighbouring lanes read neighbouring numbers, and what a row is read for again is
// in L1. What is shaped otherwise has a kernel in cuda/.
template <class Op>
void launch(const Team& team, int rows, const Op& op) {
  if (rows <= 0) return;
#ifdef WITH_CUDA
  if (team.cuda) {
    constexpr int warps = 4;
    start(row_kernel<Op>, (rows + warps - 1) / warps, warps * kLanes, op, rows);
    return;
  }
#endif
  const Range mine = team.share(rows);
  for (int row = mine.begin; row < mine.end; row++) op(Solo{}, row);
  team.wait();
}

// An operation on finished columns of a row, op(group, row, begin, end), as a row operation over all of them.
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

// A column operation over whole rows.
template <class Op>
void launch_columns(const Team& team, int rows, int columns, const Op& op) {
  if (!team.cuda) {
    launch(team, rows, WholeRow<Op>{op, columns});
    return;
  }
  if (idle(op)) return;
  const Strips<Op> strips{op, columns};
  launch(team, rows * strips.each(), strips);
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

// Runs the matmul, then `after` on each row's columns; ends without waiting for the team where `after` needs only its
// own columns: call team.wait() before another thread's are read.
template <class T, class W, class After = Nothing>
void matmul(const Team& team, int rows, const Matmul<T, W>& s, const After& after = {}) {
  if constexpr (std::is_same<T, float>::value && !std::is_same<W, double>::value) {
    if (!team.cuda) {
      matmul_twin(team.share(pad16(s.w.n), kGroup), rows, s.x, s.x_row, s.w, s.out, s.out_row,
                  [&](int row, int begin, int end) { after(Solo{}, row, begin, end); });
      return;
    }
#ifdef WITH_CUDA
    if (s.w.cuda) return matmul_cuda(rows, s.x, s.x_row, s.w, s.out, s.out_row, after);
#endif
  }
#ifdef WITH_CUDA
  if constexpr (std::is_same<T, float>::value && std::is_same<W, float>::value) {
    if (s.w.stored) {  // training: by cuBLAS
      gemm(rows, s.w.n, s.w.k, {s.x, size_t(s.x_row), 1}, {s.w.stored, s.w.k_stride, s.w.n_stride}, s.out, s.out_row,
           false);
      launch_columns(team, rows, s.w.n, after);
      return;
    }
  }
#endif
  launch(team, rows, s);
  if constexpr (!std::is_same<After, Nothing>::value) launch(team, rows, WholeRow<After>{after, s.w.n});
}

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

template <class T>
void matmul_gradient(const Team& team, const MatmulGradient<T>& s) {
  if constexpr (std::is_same<T, float>::value) {
    if (!team.cuda) {
      matmul_gradient_twin(team, s.rows, s.inputs, s.outputs, s.x, s.x_row, s.dy, s.dy_row, s.dw);
      return;
    }
#ifdef WITH_CUDA
    gemm(s.inputs, s.outputs, s.rows, {s.x, 1, size_t(s.x_row)}, {s.dy, size_t(s.dy_row), 1}, s.dw, s.outputs, true);
    return;
#endif
  }
  launch(team, s.inputs, s);
}

// ---------------------------------------------------------------------------------------------------------------
// Embedding, normalization, GELU, residual: forward and backward

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

// The three sums over rows above. On a GPU they have kernels of their own: 32 columns a warp are few warps.

template <class Op>
void launch_chunks(const Team& team, int columns, const Op& op) {
  launch(team, (columns + kChunk - 1) / kChunk, op);
}
template <class T>
void norm_weights(const Team& team, const LayerNormWeights<T>& s) {
#ifdef WITH_CUDA
  if constexpr (std::is_same<T, float>::value) {
    if (team.cuda) {
      sum_columns(NormTerm{s.dy, s.x, s.mean, s.rstd, s.y_row, s.x_row}, s.rows, s.channels, s.dweight, s.dbias);
      return;
    }
  }
#endif
  launch_chunks(team, s.channels, s);
}
template <class T>
void column_sum(const Team& team, const ColumnSum<T>& s) {
#ifdef WITH_CUDA
  if constexpr (std::is_same<T, float>::value) {
    if (team.cuda) {
      sum_columns(GradientTerm{s.dy, s.y_row}, s.rows, s.columns, s.dbias);
      return;
    }
  }
#endif
  launch_chunks(team, s.columns, s);
}
// order: scratch (2, rows), used on a GPU alone.
template <class T>
void embed_backward(const Team& team, const EmbedBackward<T>& s, int* order) {
#ifdef WITH_CUDA
  if constexpr (std::is_same<T, float>::value) {
    if (team.cuda) {
      embed_gradient(LookedUp{s.token, s.forest}, s.rows, s.dx, s.x_row, s.channels, s.dwte, s.dwpe, s.dropout, order);
      return;
    }
  }
#endif
  (void)order;
  launch_chunks(team, s.channels, s);
}

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

// pre += bias; act = GELU(pre) = pre Phi(pre), Phi the normal distribution function (Hendrycks, Gimpel 2016).
template <class T>
struct BiasGelu {
  T *pre, *act;  // (R, 4C)
  int row_stride;
  const T* bias;  // may be null
  template <class G>
  HD void operator()(const G& g, int row, int begin, int end) const {
    AddBias<T>{pre, row_stride, bias}(g, row, begin, end);
    const T* a = pre + size_t(row) * row_stride + begin;
    T* out = act + size_t(row) * row_stride + begin;
    g.each(end - begin, [=](int c) { out[c] = T(0.5) * a[c] * (T(1) + erf(a[c] * T(0.70710678118654752440))); });
  }
};

// d = d GELU'(pre), GELU'(x) = Phi(x) + x exp(-x^2 / 2) / sqrt(2 pi).
template <class T>
struct GeluBackward {
  const T* pre;
  T* d;
  int row_stride;
  template <class G>
  HD void operator()(const G& g, int row, int begin, int end) const {
    const T* a = pre + size_t(row) * row_stride + begin;
    T* out = d + size_t(row) * row_stride + begin;
    g.each(end - begin, [=](int c) {
      const T phi = T(0.5) * (T(1) + erf(a[c] * T(0.70710678118654752440)));
      out[c] *= fused(a[c], exp(T(-0.5) * a[c] * a[c]) * T(0.39894228040143267794), phi);
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

// Row r of this operation: the keys and values of pass row r into the cache.
template <class T, class S>
struct WriteCache {
  Attention<T, S> s;
  template <class G>
  HD void operator()(const G& g, int row) const {
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
// key .. end[key] - 1; the rows that see a past key are all of the root's.
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
    const int from = j < past ? first : first + j - past, to = j < past ? last : f.end[from];
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

// Numbers of scratch that attention() asks for, for passes of up to `rows` rows: the portable text keeps its weights
// there, a GPU that decodes the states of its chunks (cuda/attention.cuh); others need none.
template <class T>
size_t attention_scratch_size(int rows, int n_head, int head_size, int slots, bool training, bool cuda) {
  if (!std::is_same<T, float>::value) return size_t(rows) * n_head * slots;
#ifdef WITH_CUDA
  if (cuda && !training) return attention_scratch(rows, n_head, head_size, slots);
#endif
  return (void)head_size, (void)training, (void)cuda, 0;
}

// Whether what is left to a GPU has raw kernels: in float.
template <class T>
#ifdef WITH_CUDA
constexpr bool kRawKernels = std::is_same<T, float>::value;
#else
constexpr bool kRawKernels = false;
#endif

// scratch: attention_scratch_size() numbers, zero at first; for the portable text, weights (R, H, most keys).
template <class T, class S>
void attention(const Team& team, const Attention<T, S>& s, T* scratch, int most) {
  if constexpr (std::is_same<T, float>::value) {
    if (!team.cuda) {
      attention_twin(team, s);
      team.wait();
      return;
    }
  }
  launch(team, s.forest.rows, WriteCache<T, S>{s});
  if constexpr (kRawKernels<T>) attention_cuda(s, scratch);
  else launch(team, s.forest.rows * s.n_head, AttentionForward<T, S>{s, scratch, most});
}

// The matmul that makes what attention reads. Where one tree decodes, and every thread has as many heads, each makes
// the queries, keys and values that it will attend with: it need not wait for the others, nor fetch what they wrote.
template <class T, class W, class S>
void matmul_qkv(const Team& team, const Matmul<T, W>& s, const AddBias<T>& bias, const Attention<T, S>& heads) {
  if constexpr (std::is_same<T, float>::value) {
    const int D = heads.head_size, H = heads.n_head, KV = heads.n_kv_head, rows = heads.forest.rows;
    if (!team.cuda && heads.forest.roots == 1 && D % kGroup == 0 && KV % team.size == 0) {
      const Range mine = team.share(KV);
      const auto columns = [&](int first_head, int heads_each) {
        matmul_twin({(first_head + mine.begin * heads_each) * D, (first_head + mine.end * heads_each) * D}, rows, s.x,
                    s.x_row, s.w, s.out, s.out_row,
                    [&](int row, int begin, int end) { bias(Solo{}, row, begin, end); });
      };
      columns(0, heads.queries()), columns(H, 1), columns(H + KV, 1);
      return;
    }
  }
  matmul(team, heads.forest.rows, s, bias);
  team.wait();
}

// p, ds: scratch (R, H, most keys) each, where the portable text runs; on a GPU p is (R, H), and ds is not used.
template <class T>
void attention_backward(const Team& team, const AttentionBackward<T>& b, T* p, T* ds, int most) {
  const Forest& f = b.forward.forest;
  bool done = false;
  if constexpr (std::is_same<T, float>::value) {
    if (!team.cuda) {
      attention_backward_twin(team, b);
      team.wait();
      done = true;
    }
  }
  if constexpr (kRawKernels<T>) {
    if (!done) attention_backward_cuda(b, p);
  } else if (!done) {
    launch(team, f.rows * b.forward.n_head, AttentionBackwardQueries<T>{b, p, ds, most});
    launch(team, f.roots * b.forward.n_kv_head * most, AttentionBackwardKeys<T>{b, p, ds, most});
  }
  launch(team, f.rows, ReadCacheGradient<T>{b});
}

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

template <class T>
void loss_of_rows(const Team& team, int rows, const CrossEntropy<T>& s) {
#ifdef WITH_CUDA
  if constexpr (std::is_same<T, float>::value) {
    if (team.cuda && s.vocab_size >= kLongRow) {
      start(s.gradient ? cross_entropy<true> : cross_entropy<false>, rows, kLossThreads, s.logits, s.row_stride,
            s.vocab_size, s.target, s.loss, s.scale);
      return;
    }
  }
#endif
  launch(team, rows, s);
}

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

// Mean or ClipFactor: an operation of one row, which sums `values` and ends with finish(sum).
template <class T, template <class> class Op>
void launch_sum(const Team& team, const Op<T>& op) {
#ifdef WITH_CUDA
  if constexpr (std::is_same<T, float>::value) {
    if (team.cuda) {
      start(long_sum<Op<T>>, 1, kSumThreads, op);
      return;
    }
  }
#endif
  launch(team, 1, op);
}

template <class T>
struct Zero {  // a row is a block of 4,096 numbers
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
template <class T>
void zero(const Team& team, T* data, size_t n) {
#ifdef WITH_CUDA
  if (team.cuda) {
    CUDA_CHECK(cudaMemsetAsync(data, 0, n * sizeof(T), stream()));
    return;
  }
#endif
  const Zero<T> clear{data, n};
  launch(team, clear.rows(), clear);
}

// A stretch of one tensor in the flat array of parameters: the optimizer's unit of work.
struct Piece {
  size_t offset;
  int size;
  float decay;  // how much of the weight decay it takes: 1 for matrices, 0 for norms and biases
};

template <class T>
struct SumSquares {  // row: a piece
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

// AdamW (Loshchilov, Hutter 2019). row: a piece.
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
