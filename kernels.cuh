// kernels.cuh: what arrays are called, the operations on them, and the first CUDA kernels.
//
// An operation is a small struct. Its fields are the arrays that it touches. Its call operator says what one group of
// lanes does to one row. A group is a core of a CPU, or a warp of a GPU, with 32 lanes; machine/numbers.h says what it
// can do: each, map, sum, largest. The same code serves both machines, in float and, for the gradient check, in double:
// this is the portable version. machine/launch.h runs it over all rows, or runs a tuned version in its place: the CPU's
// twins are in machine/, the GPU's kernels in cuda/. At the end of this file three operations are also written as first
// CUDA kernels, as a course writes them. The file knows nothing of threads, models or files.
//
// How to add an operation:
//   1. write a struct here: its fields are the arrays, with their shapes; its call operator is a group's work on a row;
//   2. give it a row in tests/cuda/cuda_rows.cu, where a warp and a core must give the same bits;
//   3. call launch(team, rows, operation) where it is needed;
//   4. if a machine can do better, write a tuned version in machine/ or cuda/, and in machine/tuned.h a `tuned` that
//      calls it, with a line that says so (has_tuned).
//
// Shapes: rows R (all tokens of a forward), channels C, heads H, head size D, vocabulary V. Matrices that a matmul
// writes have rows padded to a multiple of 16 numbers.
#pragma once

#include <type_traits>

#include "machine/numbers.h"
#ifdef WITH_CUDA
#include "cuda/machine.cuh"
#endif

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// What arrays are called

HD inline int pad16(int n) { return (n + 15) / 16 * 16; }
HD inline int pad64(int n) { return (n + 63) / 64 * 64; }

// The rows of one forward, in preorder, root after root. The arrays lie in the memory of the machine that runs it. On a
// CPU first_row[0] may be negative: then an earlier forward has run the rows before row 0, whose keys and values are in
// the cache, and end, depth and root have entries for these rows too.
struct Forest {
  int rows = 0, roots = 0;
  const int* end = nullptr;         // (rows) one past the last row of the row's subtree
  const int* depth = nullptr;       // (rows) 0 for a root
  const int* root = nullptr;        // (rows) the number of the root above the row
  const int* first_row = nullptr;   // (roots + 1) where each root's rows begin
  const int* first_slot = nullptr;  // (roots) where its past begins in the cache: a multiple of 64
  const int* past = nullptr;        // (roots) how many keys it has there; its rows' own keys follow them

  // Whether row j is row i or above it in its tree: the whole tree mask.
  HD bool sees(int i, int j) const { return j <= i && i < end[j]; }  // course 5.2 (until then: return j <= i;)
  HD int position(int row) const { return past[root[row]] + depth[row]; }
  HD int slot(int row) const { return first_slot[root[row]] + past[root[row]] + row - first_row[root[row]]; }
};

// Dropout at one site, which is a place in the network. factor(i) is 1 / (1 - rate) where element i stays, else 0. It
// is a pure function of seed, iteration, site and i, which counts from the first element of the batch's first row.
struct Dropout {
  float rate = 0;
  uint64_t seed = 0;
  uint32_t iteration = 0, site = 0;
  int first_row = 0;  // the row of the batch that is row 0 here
  HD uint64_t first_of(int row, uint64_t elements) const { return uint64_t(first_row + row) * elements; }  // of a row
  template <class T>
  HD T factor(uint64_t i) const {
    return rate == 0 ? T(1) : bits(i) < least() ? T(0) : scale<T>();
  }
  HD uint32_t bits(uint64_t i) const { return uint32_t(random_bits(seed, iteration, kStreamDropout, i, site)); }
  HD uint32_t least() const { return uint32_t(double(rate) * 4294967296.0); }  // an element of fewer is dropped
  template <class T>
  HD T scale() const {
    return T(1) / (T(1) - T(rate));
  }
};

// Keys and values of all slots of one layer, head by head, as numbers of type S.
//   k: (n_kv_head, slots / 16, D, 16): sixteen keys side by side, so that one vector holds their scores
//   v: (n_kv_head, slots, pad16(D)): the value of a slot in one piece
// In bf16 two steps of the sum that reads them lie side by side:
//   k: (n_kv_head, slots / 16, D / 2, 16, 2), D / 2 rounded up, with a zero behind an odd D
//   v: (n_kv_head, slots / 2, pad16(D), 2)
// These are the bytes of half as many floats, and the same tile reads them.
template <class S>
struct KeyValues {
  S *k = nullptr, *v = nullptr;
  int slots = 0, head_size = 0;
  static constexpr int together = kTogether<S>;
  HD static size_t key_numbers(int slots, int head_size) {  // of one head
    return size_t(slots) * ((head_size + together - 1) / together * together);
  }
  HD static size_t value_numbers(int slots, int head_size) { return size_t(slots) * pad16(head_size); }
  HD S* key(int head, int slot, int d) const {
    return k + head * key_numbers(slots, head_size) + key_numbers(slot / 16 * 16, head_size) +
           (d / together * 16 + slot % 16) * together + d % together;
  }
  HD S* value(int head, int slot, int d) const {
    return v + head * value_numbers(slots, head_size) + value_numbers(slot / together * together, head_size) +
           d * together + slot % together;
  }
};

// A weight (K inputs, N outputs), as panels. A panel holds kPanel outputs for all k in turn, so that a loop over k
// reads one stream; bf16 by pairs of k, as the tile reads them. N is padded to a multiple of 16 with zeros, and the
// last panel may be narrower. For a GPU (`cuda`) the panels are narrower, so that the 16 bytes of neighbouring lanes
// lie side by side (cuda/matmul.cuh):
//   fp32: (N / 16, K, 16)
//   bf16: (N / 16, K / 16, 32 lanes, 8): what each lane of a warp holds of a 16 x 16 tile when tensor cores multiply it
// There K too is padded to a multiple of 16 with zeros. Pack does not write them: the memory is zero from the start.
template <class W>
struct Panels {
  W* data = nullptr;
  int k = 0, n = 0;
  bool cuda = false;
  bool far = false;  // on a CPU: it lies beyond the caches of a core, with the others of its model
  // Where a library multiplies there are no panels. It reads the weight as it is stored: (k, n) is at
  // k * k_stride + n * n_stride.
  const W* stored = nullptr;
  size_t k_stride = 0, n_stride = 0;
  HD int lines() const { return (k + kTogether<W> - 1) / kTogether<W>; }  // of k: bf16 has two to a line
  HD size_t size() const {
    if (cuda) return size_t(pad16(k)) * pad16(n);
    return size_t(lines()) * kTogether<W> * pad16(n);
  }
  HD int width(int column) const { return smaller(kPanel, pad16(n) - column / kPanel * kPanel); }
  HD W* at(int row, int column) const {
    if (cuda) return data + at_device(row, column);
    constexpr int together = kTogether<W>;
    const size_t panel = size_t(column / kPanel) * kPanel * lines();
    return data + (panel + size_t(row / together) * width(column) + column % kPanel) * together + row % together;
  }
  HD auto weight(int row, int column) const { return to_float(*at(row, column)); }
  // A tile of 16 outputs by 16 k is an operand of mma (cuda/instructions.cuh). The sum may take the 16 k in any order:
  // the tile's k = 4q .. 4q + 3 stand where the instruction has 2q, 2q + 1, 2q + 8, 2q + 9. So they all belong to lane
  // (., q), which needs one float4 of a row of x.
  HD size_t at_device(int row, int column) const {
    if (sizeof(W) != 2) return (size_t(column / 16) * pad16(k) + row) * 16 + column % 16;
    const int lane = column % 8 * 4 + row % 16 / 4, number = row % 4 / 2 * 4 + column % 16 / 8 * 2 + row % 2;
    return (size_t(column / 16) * (pad16(k) / 16) + row / 16) * 256 + lane * 8 + number;
  }
};

template <class T, class S = T>
struct Attention {
  Forest forest;
  int n_head, n_kv_head, head_size;
  const T* qkv;  // (rows, qkv_row): H D queries, then n_kv_head * D keys, then as many values
  int qkv_row;
  KeyValues<S> cache;  // the rows' own keys and values are written into it
  T* out;              // (rows, out_row)
  int out_row;
  T* log_sum = nullptr;  // (rows, H) log of the sum of exp(scores), for the backward
  Dropout dropout = {};
  bool in_cache = false;      // whether what computed qkv has written the rows' keys and values into the cache
  bool cache_is_read = true;  // whether a later forward reads them there
  int span = 0;               // how many positions a row sees, its own and those before it; 0: all

  HD int queries() const { return n_head / n_kv_head; }  // query heads that share a key/value head
  HD T scale() const { return T(1) / square_root(T(head_size)); }
  // So many positions, from the first on, lie beyond the span of a row; of one at that position.
  HD int unseen(int row) const { return span ? unseen_at(forest.position(row)) : 0; }
  HD int unseen_at(int position) const { return span ? larger(0, position + 1 - span) : 0; }
  HD bool sees(int row, int j) const {  // key j of its root: of the past, or of a row of the tree
    const int root = forest.root[row], own = forest.first_row[root] + j - forest.past[root];
    if (j < forest.past[root]) return j >= unseen(row);
    return forest.sees(row, own) && forest.position(own) >= unseen(row);
  }
  HD uint64_t first_weight(int row, int head) const {  // for dropout, which counts 2^20 weights a row and head
    return (dropout.first_of(row, n_head) + head) << 20;
  }
  HD T factor(int row, int head, int position) const { return dropout.factor<T>(first_weight(row, head) | position); }
};

// ---------------------------------------------------------------------------------------------------------------
// Column operations: what follows a matmul, on finished columns of a row: op(group, row, begin, end). They stand below,
// from AddBias to Drop.

// A column operation as a row operation. On a CPU its row is a whole row; on a GPU it is a strip of a row, because a
// forward may have fewer rows than the GPU has room for warps, and a warp reads a long row serially.
constexpr int kStrip = 4 * kLanes;
template <class Op>
struct Strips {
  Op op;
  int columns, width = columns;
  HD int per_row() const { return (columns + width - 1) / width; }  // strips of a row
  template <class G>
  HD void operator()(const G& g, int item) const {
    const int begin = item % per_row() * width;
    op(g, item / per_row(), begin, smaller(columns, begin + width));
  }
};

// The column operation that does nothing; and idle(), whether an operation does nothing.
struct Nothing {
  template <class G>
  HD void operator()(const G&, int, int, int) const {}
};
template <class Op>
bool idle(const Op&) {
  return std::is_same<Op, Nothing>::value;
}

// ---------------------------------------------------------------------------------------------------------------
// Embedding, normalization, activations, residual

// x (R, C) = wte[token] + wpe[position].
template <class T>
struct Embed {
  const int* token;
  Forest forest;
  const T *wte, *wpe;  // (V, C); null: x has wte[token] already. (block, C); null: rotary
  T* x;
  int x_row, channels;
  template <class G>
  HD void operator()(const G& g, int row) const {
    T* out = x + size_t(row) * x_row;
    const T* symbol = wte ? wte + size_t(token[row]) * channels : out;
    const T* position = wpe ? wpe + size_t(forest.position(row)) * channels : nullptr;
    if (position) g.map(out, channels, [=](int c) { return symbol[c] + position[c]; });
    else g.map(out, channels, [=](int c) { return symbol[c]; });
  }
};

// y = (x - mean) / sqrt(variance + epsilon) * weight + bias, over the C channels of a row (LayerNorm: Ba, Kiros, Hinton
// 2016). RMSNorm (Zhang, Sennrich 2019) is the same with a mean of zero: it does not center.
template <class T>
struct Norm {
  const T* x;
  int x_row, channels;
  const T *weight, *bias;  // (C); each may be null
  T* y;
  int y_row;
  T *mean, *rstd;  // (R) kept for the backward; may be null
  bool center = true;
  T epsilon = T(1e-5);
  template <class G>
  HD void operator()(const G& g, int row) const {
    const T* a = x + size_t(row) * x_row;
    T* out = y + size_t(row) * y_row;
    // course 1.2
    const T m = center ? g.template sum<T>(channels, [=](int c) { return a[c]; }) / T(channels) : T(0);
    const T v = g.template sum<T>(channels, [=](int c) { return (a[c] - m) * (a[c] - m); }) / T(channels);
    const T r = T(1) / square_root(v + epsilon);
    const T *w = weight, *b = bias;
    if (b) g.map(out, channels, [=](int c) { return fused((a[c] - m) * r, w[c], b[c]); });
    else if (w) g.map(out, channels, [=](int c) { return (a[c] - m) * r * w[c]; });
    else g.map(out, channels, [=](int c) { return (a[c] - m) * r; });
    g.each(1, [=](int) {
      if (mean) mean[row] = m;
      if (rstd) rstd[row] = r;
    });
    // end
  }
};

// The norm of each head's queries and keys, in place: Qwen3 (Yang et al. 2025). An item is a head of a row.
template <class T>
struct HeadNorm {
  Norm<T> norm;     // of the first row's first query head; rstd (heads, R) is kept for the backward
  const T* of_key;  // (D) the weight of a key head
  T* raw;           // (R, x_row) keeps what was there, for the backward; may be null
  int n_head, heads, rows;
  HD Norm<T> at(int row, int head) const {
    Norm<T> its = norm;
    if (head >= n_head) its.weight = of_key;
    its.x += size_t(row) * its.x_row + head * its.channels;
    its.y += size_t(row) * its.y_row + head * its.channels;
    if (its.rstd) its.rstd += head * rows + row;
    return its;
  }
  template <class G>
  HD void operator()(const G& g, int item) const {
    const Norm<T> its = at(item / heads, item % heads);
    if (raw) {
      T* const kept = raw + (its.y - norm.y);
      const T* const x = its.x;
      g.map(kept, its.channels, [=](int c) { return x[c]; });
    }
    its(g, 0);
  }
};

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
    g.map(a, end - begin, [=](int c) { return a[c] + b[c]; });
  }
};
template <class T>
bool idle(const AddBias<T>& op) {
  return !op.bias;
}

// pre += bias; act = GELU(pre).
template <class T>
struct BiasGelu {
  T *pre, *act;             // (R, F)
  int row_stride;           // of both
  const T* bias = nullptr;  // may be null
  bool by_tanh = false;
  template <class G>
  HD void operator()(const G& g, int row, int begin, int end) const {
    AddBias<T>{pre, row_stride, bias}(g, row, begin, end);
    T *x = pre + size_t(row) * row_stride + begin, *y = act + size_t(row) * row_stride + begin;
    if (by_tanh) g.map(y, end - begin, [=](int c) { return TanhGelu::of(x[c]); });
    else g.map(y, end - begin, [=](int c) { return Gelu::of(x[c]); });
  }
};
// act = SiLU(gate) up (Shazeer 2020, GLU Variants Improve Transformer), of gate and up side by side in a row.
template <class T>
struct SwiGlu {
  const T* gate_up;  // (R, gate_row): F gates, then F ups
  int gate_row, inner;
  T* act;  // (R, act_row): F
  int act_row;
  template <class G>
  HD void operator()(const G& g, int row, int begin, int end) const {
    const T *gate = gate_up + size_t(row) * gate_row + begin, *up = gate + inner;
    T* out = act + size_t(row) * act_row + begin;
    g.map(out, end - begin, [=](int c) { return Silu::of(gate[c]) * up[c]; });
  }
};

// out = residual + out + bias: the branch that a matmul has just written is added to the residual stream.
template <class T>
struct JoinResidual {
  const T* residual;
  T* out;
  int row_stride;
  const T* bias;  // may be null
  template <class G>
  HD void operator()(const G& g, int row, int begin, int end) const {
    AddBias<T>{out, row_stride, bias}(g, row, begin, end);
    const T* a = residual + size_t(row) * row_stride + begin;
    T* o = out + size_t(row) * row_stride + begin;
    g.map(o, end - begin, [=](int c) { return o[c] + a[c]; });
  }
};

// y = x * keep: dropout of activations, and of their gradients on the way back. At a rate of 0 it does nothing.
template <class T>
struct Drop {
  const T* x;
  T* y;
  int row_stride, channels;
  Dropout dropout;
  template <class G>
  HD void operator()(const G& g, int row, int begin, int end) const {
    const T* a = x + size_t(row) * row_stride + begin;
    T* o = y + size_t(row) * row_stride + begin;
    const uint64_t first = dropout.first_of(row, channels) + begin;
    g.map(o, end - begin, [=](int c) { return a[c] * dropout.factor<T>(first + c); });
  }
};
template <class T>
bool idle(const Drop<T>& op) {
  return op.dropout.rate == 0;
}

// Rotary positions (Su et al. 2021, RoFormer), in place. In each query and key of a row, channels d and d + D / 2 are a
// point of the plane, rotated by the angle at the row's position. So a score depends on the distance of two rows, not
// on their positions. `back` rotates the other way, which is the backward. D is even. Row r of this operation: head
// r % heads of row first + r / heads of the batch.
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
    const int row = first + item / heads, half = head_size / 2;
    const T* angle = table + size_t(forest.position(row)) * half * 2;  // as (cosine, sine)
    T* x = qkv + size_t(row) * qkv_row + item % heads * head_size;
    const T sign = back ? T(-1) : T(1);
    // course 1.3
    g.each(half, [=](int d) {
      const T a = x[d], b = x[d + half], c = angle[2 * d], s = sign * angle[2 * d + 1];
      x[d] = a * c - b * s;
      x[d + half] = a * s + b * c;
    });
    // end
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Matmul

// Packs a stored matrix into panels: panel(k, n) = from[k * k_stride + n * n_stride]. A row of this operation is a
// block of 16 k, so that the strided side is read by whole cache lines.
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
    if (to.cuda)
      return g.each(to.n, [&](int n) {
        for (int k = first; k < last; k++) *to.at(k, n) = rounded<W>(from[k * k_stride + n * n_stride]);
      });
    for (int column = 0; column < to.n; column += block)  // the numbers of a line of 16 columns have one stride
      for (int k = first; k < last; k++) {
        W* const line = to.at(k, column);
        const T* const numbers = from + k * k_stride + column * n_stride;
        g.each(smaller(block, to.n - column),
               [=](int n) { line[n * kTogether<W>] = rounded<W>(numbers[n * n_stride]); });
      }
  }
};

// out (R, N) = x (R, K) W: one serial sum over k for each output. Every matmul of floats on a CPU computes this; the
// GPU's tuned versions (cuda/matmul.cuh, cuda/matmul_mma.cuh) cut the sum into slices. A call computes columns begin ..
// end - 1 of all rows: so a weight comes from memory once for all of them.
template <class T, class W>
struct Matmul {
  const T* x;
  int x_row;
  Panels<W> w;
  T* out;
  int out_row;
  Norm<T> norm = {};  // where x is null, it is this norm's output: matmul() runs it, before the product or in it
  template <class G>
  HD void operator()(const G& g, int rows, int begin, int end) const {
    // course 1.1
    g.each(end - begin, [&](int i) {
      for (int row = 0, n = begin + i; row < rows; row++) {
        T sum = 0;
        for (int k = 0; k < w.k; k++) sum = fused(x[size_t(row) * x_row + k], T(to_float(*w.at(k, n))), sum);
        out[size_t(row) * out_row + n] = sum;
      }
    });
    // end
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Tree attention. On a GPU its tuned kernels are in cuda/attention.cuh and cuda/attention_backward.cuh.

// Writes the keys and values of row r into the cache.
template <class T, class S>
struct WriteCache {
  Attention<T, S> s;
  template <class G>
  HD void operator()(const G& g, int row) const {
    const int D = s.head_size, slot = s.forest.slot(row);
    const T* k = s.qkv + size_t(row) * s.qkv_row + s.n_head * D;
    const T* v = k + s.n_kv_head * D;
    const auto key = [&](int c, S x) { *s.cache.key(c / D, slot, c % D) = x; };
    const auto value = [&](int c, S x) { *s.cache.value(c / D, slot, c % D) = x; };
    g.map(key, s.n_kv_head * D, [=](int c) { return rounded<S>(k[c]); });
    g.map(value, s.n_kv_head * D, [=](int c) { return rounded<S>(v[c]); });
  }
};

// Row r of this operation: row r / H of the forward, head r % H. weights (R, H, most keys) is scratch.
//   weights = softmax of q k / sqrt(D) over the keys that the row sees, in order of position;  out = weights V
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
    // course 2.1
    g.each(past + row - first + 1, [&](int j) {
      T score = 0;
      for (int d = 0; d < D; d++) score = fused(q[d], T(to_float(*s.cache.key(kv_head, slot0 + j, d))), score);
      w[j] = score;
    });
    g.each(1, [&](int) {  // the row's ancestors move together: slot by slot is position by position
      for (int j = first, seen = past; j <= row; j++)
        if (f.sees(row, j)) w[seen++] = w[past + j - first];
    });
    g.each(s.unseen(row), [=](int i) { w[i] = -Format<T>::kInfinity; });  // its weight will be 0
    const int seen = past + f.depth[row] + 1;
    const T scale = s.scale(), top = scale * g.template largest<T>(seen, [=](int i) { return w[i]; });
    g.each(seen, [=](int i) { w[i] = exp(w[i] * scale - top); });
    const T total = g.template sum<T>(seen, [=](int i) { return w[i]; });
    if (s.log_sum) g.each(1, [&](int) { s.log_sum[item] = top + log(total); });
    if (s.dropout.rate > 0) g.each(seen, [&](int i) { w[i] *= s.factor(row, head, i); });
    g.each(D, [&](int d) {
      const auto value = [&](int j) { return T(to_float(*s.cache.value(kv_head, slot0 + j, d))); };
      T sum = 0;
      for (int j = 0; j < past; j++) sum = fused(w[j], value(j), sum);
      for (int j = first, i = past; j <= row; j++)
        if (f.sees(row, j)) sum = fused(w[i++], value(past + j - first), sum);
      s.out[size_t(row) * s.out_row + head * D + d] = sum / total + T(0);
    });
    // end
  }
};

// Keeps some rows of the last forward, in place: slot first + i takes what slot first + rows[i] holds. rows ascends and
// rows[i] >= i, so a row only moves left. Row r of this operation: layer and head r.
template <class S>
struct KeepRows {
  S *k, *v;                 // of all layers
  size_t k_layer, v_layer;  // numbers of one layer
  int n_kv_head, slots, head_size;
  const int* kept;  // (2 + count): first, count, then which rows
  HD KeyValues<S> cache(int layer) const { return {k + layer * k_layer, v + layer * v_layer, slots, head_size}; }
  template <class G>
  HD void operator()(const G& g, int item) const {
    const int head = item % n_kv_head, first = kept[0], count = kept[1];
    const int* const rows = kept + 2;
    const KeyValues<S> to = cache(item / n_kv_head);
    // course 6.2
    // A lane copies its own columns row after row: so it never reads a slot that it has overwritten.
    g.each(head_size, [&](int d) {
      for (int i = 0; i < count; i++) {
        *to.key(head, first + i, d) = *to.key(head, first + rows[i], d);
        *to.value(head, first + i, d) = *to.value(head, first + rows[i], d);
      }
    });
    // end
  }
};

#ifdef WITH_CUDA
// ---------------------------------------------------------------------------------------------------------------
// The first CUDA kernels: tree attention, the gather, the matmul, as a course writes them before it makes them fast.
// Each has the bits of the portable version above. `--kernels plain` decodes with them; the tuned ones are in cuda/.

// AttentionForward, without what training adds. A warp for each (row, query head): grid (rows, heads).
// Budget: 64 registers, 128 bytes shared. Loads: 6.
template <class S>
__global__ void plain_attention(Attention<float, S> s) {
  const Forest& f = s.forest;
  const int row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x, kv_head = head / s.queries(), D = s.head_size;
  const int root = f.root[row], first = f.first_row[root], past = f.past[root], slot = f.first_slot[root];
  const int keys = past + row - first + 1;  // those of the past, then those of the root's rows up to this one
  const float* q = s.qkv + size_t(row) * s.qkv_row + head * D;
  float* out = s.out + size_t(row) * s.out_row + head * D;
  // course 10.3
  // Two loops over the keys, 32 keys at a time, one to a lane: first the largest score; then weights and values, in
  // order of position. Each score is computed twice. Nothing is stored in between, so there may be any number of keys.
  struct Memory {          // __shared__
    float weight[kLanes];  // of the current 32 keys
  };
  Memory& memory = shared<Memory>();
  const int unseen = s.unseen(row);
  const auto seen = [&](int j) {  // the tree mask; asked first, more loads are in flight
    return j < past ? j >= unseen : j < keys && f.sees(row, first + j - past) && s.sees(row, j);
  };
  const auto score = [&](int j) {
    float sum = 0;
    for (int d = 0; d < D; d++) sum = fused(q[d], to_float(*s.cache.key(kv_head, slot + j, d)), sum);
    return sum * s.scale();
  };

  float top = -Format<float>::kInfinity, total = 0;
  for (int j = lane; j < keys; j += kLanes)
    if (seen(j)) top = larger(top, score(j));
  for (int half = kLanes / 2; half > 0; half /= 2) top = larger(top, __shfl_xor_sync(kEveryLane, top, half));

  for (int d = lane; d < D; d += kLanes) out[d] = 0;
  for (int begin = 0, position = s.unseen(row); begin < keys; begin += kLanes) {
    const int j = begin + lane;
    if (seen(j)) memory.weight[lane] = exp(score(j) - top);
    __syncwarp();
    for (unsigned mask = __ballot_sync(kEveryLane, seen(j)); mask; mask &= mask - 1, position++) {
      const int i = __ffs(int(mask)) - 1;  // the next of the 32 keys that the row sees
      const float weight = memory.weight[i];
      if (lane == position % kLanes) total += weight;
      for (int d = lane; d < D; d += kLanes)
        out[d] = fused(weight, to_float(*s.cache.value(kv_head, slot + begin + i, d)), out[d]);
    }
    __syncwarp();  // all have read the weights
  }
  for (int half = kLanes / 2; half > 0; half /= 2) total += __shfl_xor_sync(kEveryLane, total, half);
  for (int d = lane; d < D; d += kLanes) out[d] = out[d] / total + 0.0f;  // + 0: a zero has one sign
  // end
}
template <class S>
void attention_plain(const Attention<float, S>& s) {
  start(plain_attention<S>, dim3(unsigned(s.forest.rows), unsigned(s.n_head)), kLanes, s);
}

// KeepRows: a block for each (layer, head): grid (layers, heads).
// Budget: 40 registers, 0 bytes shared. Loads: 1.
template <class S>
__global__ void plain_gather(KeepRows<S> s) {
  const int head = blockIdx.y, first = s.kept[0], count = s.kept[1], D = s.head_size;
  const int* const rows = s.kept + 2;
  const KeyValues<S> cache = s.cache(blockIdx.x);
  // course 10.1
  // A thread for each column of keys or values.
  for (int column = threadIdx.x; column < 2 * D; column += blockDim.x)
    for (int i = 0; i < count; i++) {
      if (column < D) *cache.key(head, first + i, column) = *cache.key(head, first + rows[i], column);
      else *cache.value(head, first + i, column - D) = *cache.value(head, first + rows[i], column - D);
    }
  // end
}
template <class S>
void gather_plain(const KeepRows<S>& s, int layers) {
  start(plain_gather<S>, dim3(unsigned(layers), unsigned(s.n_kv_head)), 4 * kLanes, s);
}

// Matmul: a thread for each output, a block for 16 x 16 outputs: grid (N / 16, rows / 16). The block copies tiles of x
// and W into shared memory, 16 k at a time. So it reads each number once; without shared memory it would be 16 times.
// Budget: 48 registers, 2048 bytes shared. Loads: 1.
template <class W>
__global__ void plain_matmul(Matmul<float, W> s, int rows) {
  // course 1
  constexpr int size = 16;
  struct Tiles {
    float x[size][size], w[size][size];  // (row, k), (k, column)
  };
  Tiles& tile = shared<Tiles>();  // __shared__
  const int i = threadIdx.x / size, j = threadIdx.x % size, row = blockIdx.y * size + i, n = blockIdx.x * size + j;
  float sum = 0;
  for (int first = 0; first < s.w.k; first += size) {
    tile.x[i][j] = row < rows && first + j < s.w.k ? s.x[size_t(row) * s.x_row + first + j] : 0.0f;
    tile.w[i][j] = first + i < s.w.k ? to_float(*s.w.at(first + i, n)) : 0.0f;
    __syncthreads();
    for (int k = 0; k < smaller(size, s.w.k - first); k++) sum = fused(tile.x[i][k], tile.w[k][j], sum);
    __syncthreads();
  }
  if (row < rows) s.out[size_t(row) * s.out_row + n] = sum;
  // end
}
template <class W>
void matmul_plain(int rows, const Matmul<float, W>& s) {
  start(plain_matmul<W>, dim3(unsigned(pad16(s.w.n) / 16), unsigned((rows + 15) / 16)), 16 * 16, s, rows);
}
#endif

}  // namespace nanospec
