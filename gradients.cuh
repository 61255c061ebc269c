// gradients.cuh: the operations of a backward, the loss, and the update: what training adds to kernels.cuh.
//
// They are written as those: a struct with the arrays that it touches, and what one group of lanes does to one row. In
// order: embedding, norms, MLP; the matmul; tree attention; loss and sums; AdamW. Gradients are added into what is
// there, but where a comment says otherwise. A program that only decodes does not include this file.
#pragma once

#include "kernels.cuh"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Embedding, norms, MLP

// dwte[token] += dx, dwpe[position] += dx, row after row: a sum over rows (launch_sums()).
template <class T>
struct EmbedBackward {
  int rows;
  const int* token;
  Forest forest;
  const T* dx;
  int x_row, channels;
  T *dwte, *dwpe;  // dwpe may be null
  template <class G>
  HD void operator()(const G& g, int, int begin, int end) const {
    for (int row = 0; row < rows; row++) {
      T* symbol = dwte + size_t(token[row]) * channels + begin;
      T* position = dwpe ? dwpe + size_t(forest.position(row)) * channels + begin : nullptr;
      const T* d = dx + size_t(row) * x_row + begin;
      for (T* to : {symbol, position})
        if (to) g.each(end - begin, [=](int c) { to[c] += d[c]; });
    }
  }
};

// With n = (x - mean) rstd and dn = dy weight: dx += rstd (dn - average(dn) - n average(dn n)), where it centers; else
// without average(dn).
template <class T>
struct NormBackward {
  const T* x;
  int x_row, channels;
  const T *weight, *mean, *rstd;  // weight may be null; mean is null where it does not center
  const T* dy;
  int y_row;
  T* dx;  // (R, C), added into: it holds the gradient of the residual stream
  template <class G>
  HD void operator()(const G& g, int row) const {
    const T *a = x + size_t(row) * x_row, *d = dy + size_t(row) * y_row, *w = weight;
    T* out = dx + size_t(row) * x_row;
    const T m = mean ? mean[row] : T(0), r = rstd[row];
    const auto through = [&](auto dn) {
      const T s0 = mean ? g.template sum<T>(channels, dn) / T(channels) : T(0);
      const T s1 = g.template sum<T>(channels, [=](int c) { return dn(c) * ((a[c] - m) * r); }) / T(channels);
      g.map(out, channels, [=](int c) { return out[c] + r * (dn(c) - s0 - (a[c] - m) * r * s1); });
    };
    if (w) through([=](int c) { return d[c] * w[c]; });
    else through([=](int c) { return d[c]; });
  }
};

// The gradient through HeadNorm, in place: dy of queries and keys becomes dx. An item is a head of a row.
template <class T>
struct HeadNormBackward {
  HeadNorm<T> norm;
  T* dqkv;  // (R, x_row)
  template <class G>
  HD void operator()(const G& g, int item) const {
    const Norm<T> its = norm.at(item / norm.heads, item % norm.heads);
    const size_t place = its.y - norm.norm.y;
    const T *a = norm.raw + place, *w = its.weight, r = *its.rstd;
    T* const d = dqkv + place;
    const int n = its.channels;
    const T s = g.template sum<T>(n, [=](int c) { return d[c] * w[c] * (a[c] * r); }) / T(n);
    g.map(d, n, [=](int c) { return r * (d[c] * w[c] - a[c] * r * s); });
  }
};

// dweight += sum over rows of dy n, dbias += sum over rows of dy (launch_sums()).
template <class T>
struct NormWeights {
  int rows;
  const T* x;
  int x_row, channels;
  const T *mean, *rstd, *dy;  // mean may be null: zeros
  int y_row;
  T *dweight, *dbias;  // dbias may be null
  template <class G>
  HD void operator()(const G& g, int, int begin, int end) const {
    T *dw = dweight + begin, *db = dbias ? dbias + begin : nullptr;
    for (int row = 0; row < rows; row++) {
      const T *a = x + size_t(row) * x_row + begin, *d = dy + size_t(row) * y_row + begin;
      const T m = mean ? mean[row] : T(0), r = rstd[row];
      g.each(end - begin, [=](int c) { dw[c] += d[c] * ((a[c] - m) * r); });
      if (db) g.each(end - begin, [=](int c) { db[c] += d[c]; });
    }
  }
};

// dbias (N) += sum over rows of dy (R, N) (launch_sums()).
template <class T>
struct ColumnSum {
  int rows, columns;
  const T* dy;
  int y_row;
  T* dbias;
  template <class G>
  HD void operator()(const G& g, int, int begin, int end) const {
    T* sum = dbias + begin;
    for (int row = 0; row < rows; row++) {
      const T* d = dy + size_t(row) * y_row + begin;
      g.each(end - begin, [=](int c) { sum[c] += d[c]; });
    }
  }
};

// From pre and the gradient of act, in act: dpre = dact GELU'(pre), into pre, and act again, by the same erf.
template <class T>
struct GeluBackward {
  T *pre, *act;  // (R, F)
  int row_stride;
  bool by_tanh = false;
  template <class G>
  HD void operator()(const G& g, int row, int begin, int end) const {
    T *x = pre + size_t(row) * row_stride + begin, *y = act + size_t(row) * row_stride + begin;
    struct Both {
      T dpre, act;
    };
    const auto store = [=](int c, Both both) {
      x[c] = both.dpre;
      y[c] = both.act;
    };
    if (by_tanh)
      g.map(store, end - begin, [=](int c) { return Both{y[c] * TanhGelu::slope(x[c]), TanhGelu::of(x[c])}; });
    else g.map(store, end - begin, [=](int c) { return Both{y[c] * Gelu::slope(x[c]), Gelu::of(x[c])}; });
  }
};

// From gate_up and the gradient of act, in act: dgate = dact up SiLU'(gate) and dup = dact SiLU(gate), into gate_up,
// and act again.
template <class T>
struct SwiGluBackward {
  T* gate_up;  // (R, gate_row)
  int gate_row, inner;
  T* act;  // (R, act_row)
  int act_row;
  template <class G>
  HD void operator()(const G& g, int row) const {
    T *gate = gate_up + size_t(row) * gate_row, *up = gate + inner, *y = act + size_t(row) * act_row;
    g.each(inner, [=](int c) {
      const T x = gate[c], u = up[c], dy = y[c], silu = Silu::of(x);
      gate[c] = dy * u * Silu::slope(x);
      up[c] = dy * silu;
      y[c] = silu * u;
    });
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Matmul

// Adds to dw (K, N) the gradient of W, of out (R, N) = x W with x (R, K), from dy, that of out. A row is a row of dw.
template <class T>
struct MatmulGradient {
  int rows, inputs, outputs;
  const T* x;
  int x_row;
  const T* dy;
  int dy_row;
  T* dw;
  T* dbias = nullptr;  // (outputs) the sums of dy's columns are added; may be null. This operation leaves it alone
  template <class G>
  HD void operator()(const G& g, int k) const {
    // course 12.2
    g.each(outputs, [&](int n) {
      T sum = dw[size_t(k) * outputs + n];
      for (int row = 0; row < rows; row++) sum = fused(x[size_t(row) * x_row + k], dy[size_t(row) * dy_row + n], sum);
      dw[size_t(k) * outputs + n] = sum;
    });
    // end
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Tree attention

// With P = softmax(S), S = scale Q K^T, dP = dO V^T, and o the product by elements (Dao et al. 2022, FlashAttention,
// appendix B):  dV = P^T dO,  dK = scale dS^T Q;  AttentionBackwardQueries says how dS and dQ follow from dP.
template <class T>
struct AttentionBackward {
  Attention<T> forward;
  const T* dout;     // (rows, out_row)
  T *dk, *dv;        // (n_kv_head, slots, pad16(D)) each, of every slot, rows and past; scratch, if nothing is added
  T* dqkv;           // (rows, qkv_row): the queries' gradients; ReadCacheGradient adds the keys' and the values'
  bool adds = true;  // to what is in dk and dv; else the sums begin at zero

  HD size_t at(int kv_head, int slot) const {
    return (size_t(kv_head) * forward.cache.slots + slot) * pad16(forward.head_size);
  }
};

// Row r of this operation: row r / H of the forward, head r % H. Writes dQ, and stores P (after dropout) and scale dS
// for the sums over queries.
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
    const int keys = past + row - first + 1;
    // course 12.3
    // dS = scale P o (dP - delta) with delta = rowsum(dO o O),  dQ = dS K
    const T delta = g.template sum<T>(D, [=](int d) { return dout[d] * out[d]; }), scale = s.scale();
    g.each(keys, [&](int j) {
      pr[j] = dsr[j] = 0;
      if (j >= past && !f.sees(row, first + j - past)) return;
      const T* v = s.cache.value(kv_head, slot0 + j, 0);
      T score = 0, dp = 0;
      for (int d = 0; d < D; d++) score = fused(q[d], *s.cache.key(kv_head, slot0 + j, d), score);
      for (int d = 0; d < D; d++) dp = fused(dout[d], v[d], dp);
      const T weight = exp(score * scale - s.log_sum[item]);
      const T keep = s.factor(row, head, j < past ? j : past + f.depth[first + j - past]);
      dsr[j] = weight * (dp * keep - delta) * scale;
      pr[j] = weight * keep;
    });
    g.each(s.span ? keys : 0, [&](int j) {
      if (!s.sees(row, j)) pr[j] = dsr[j] = 0;
    });
    g.each(D, [&](int d) {
      T sum = 0;
      for (int j = 0; j < keys; j++) sum = fused(dsr[j], *s.cache.key(kv_head, slot0 + j, d), sum);
      b.dqkv[size_t(row) * s.qkv_row + head * D + d] = sum;
    });
    // end
  }
};

// Row r of this operation: one key of one root and key/value head. A key of the tree is seen by its subtree, the rows
// key .. end[key] - 1; a key of the past by all rows of the root.
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
    const int from = larger(own, 0);
    T *dk = b.dk + b.at(kv_head, f.first_slot[root] + j), *dv = b.dv + b.at(kv_head, f.first_slot[root] + j);
    g.each(D, [&](int d) {
      T k = dk[d], v = dv[d];
      for (int head = kv_head * s.queries(); head < (kv_head + 1) * s.queries(); head++)
        for (int row = from; row < to; row++) {
          const size_t at = (size_t(row) * s.n_head + head) * most + j;
          k = fused(ds[at], s.qkv[size_t(row) * s.qkv_row + head * D + d], k);
          v = fused(p[at], b.dout[size_t(row) * s.out_row + head * D + d], v);
        }
      dk[d] = k;
      dv[d] = v;
    });
  }
};

// Copies the gradients of row r's own keys and values from their slots into dqkv.
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
      g.each(D, [=](int d) { k_head[d] = dk[d]; });
      g.each(D, [=](int d) { v_head[d] = dv[d]; });
    }
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Loss, and sums of one row

// loss[row] = -log softmax(logits)[target]. With `gradient`, logits become the loss's gradient, times scale.
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
    // course 12.1
    const T top = g.template largest<T>(vocab_size, [=](int i) { return x[i]; });
    const T at_target = x[target[row]];
    const T total = g.template sum<T>(vocab_size, [=](int i) { return exp(x[i] - top); });
    const T log_sum = top + log(total);
    g.each(1, [&](int) { loss[row] = log_sum - at_target; });
    if (!gradient) return;  // else dlogits = (softmax - onehot) scale
    const T factor = scale;
    g.each(vocab_size, [=](int i) { x[i] = exp(x[i] - log_sum) * factor; });
    g.each(1, [&](int) { x[target[row]] -= factor; });
    // end
  }
};

// Mean and ClipFactor end a long sum, of `values` (n): finish(sum). launch_sum() adds.

// mean (1) = average of the values.
template <class T>
struct Mean {
  const T* values;
  int n;
  T* mean;
  HD void finish(T sum) const { *mean = sum / T(n); }
};

// norm (2) = the length of the whole gradient, and the factor that clips it to `limit` (0: no clipping).
template <class T>
struct ClipFactor {
  const T* values;  // the pieces' sums of squares
  int n;
  T limit;
  T* norm;
  HD void finish(T sum) const {
    const T length = square_root(sum);
    norm[0] = length;
    norm[1] = limit > 0 && length > limit ? limit / (length + T(1e-6)) : T(1);
  }
};

// ---------------------------------------------------------------------------------------------------------------
// AdamW

// Part of one tensor in the flat array of parameters: the optimizer's unit of work.
struct Piece {
  size_t offset;
  int size;
  float decay;  // factor of the weight decay: 1 for matrices, 0 for norms and biases
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
    struct Updated {
      T w, m, v;
    };
    const auto store = [=](int i, Updated u) {
      w[i] = u.w;
      pm[i] = u.m;
      pv[i] = u.v;
    };
    g.map(store, piece.size, [=](int i) {
      const T x = d[i] * clip, m1 = fused(b1, pm[i], (T(1) - b1) * x), m2 = fused(b2, pv[i], (T(1) - b2) * x * x);
      return Updated{w[i] * keep - step * m1 / (square_root(m2) * root + T(1e-8)), m1, m2};
    });
  }
};

}  // namespace nanospec
