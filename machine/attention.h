// machine/attention.h: tree attention on a CPU, forward and backward: the twins of AttentionForward and of the three
// operations of its gradient (kernels.cuh). They have the portable version's bits.
#pragma once

#include "machine/products.h"

namespace nanospec {

// Writes the new rows' keys and values of one root and one key/value head into the cache.
template <class T, class S>
inline void write_cache(const Attention<T, S>& s, int root, int kv_head) {
  const int D = s.head_size;
  for (int row = s.first_new(root); row < s.forest.first_row[root + 1]; row++) {
    const int slot = s.forest.slot(row);
    const T* k = s.qkv + size_t(row) * s.qkv_row + (s.n_head + kv_head) * D;
    const T* v = k + s.n_kv_head * D;
    for (int d = 0; d < D; d++) *s.cache.key(kv_head, slot, d) = rounded<S>(k[d]);
    for (int d = 0; d < D; d++) *s.cache.value(kv_head, slot, d) = rounded<S>(v[d]);
  }
}

// ends: for each block of 16 keys of a root, one past the last row that sees one of them. All rows see the past keys.
inline void ends_of_blocks(const Forest& f, int root, int* ends) {
  const int first = f.first_row[root], last = f.first_row[root + 1], past = f.past[root];
  for (int key = 0; key < past + last - first; key += 16) {
    int end = key < past ? last : 0;
    for (int j = larger(key, past); j < smaller(key + 16, past + last - first); j++)
      end = larger(end, f.end[first + j - past]);
    ends[key / 16] = end;
  }
}
// Calls f(begin, end) for each run of adjacent blocks that `row` or a later row sees, among the root's keys from..to-1.
template <class F>
inline void each_run(const int* ends, int from, int to, int row, const F& f) {
  for (int key = from / 16 * 16; key < to; key += 16) {
    if (ends[key / 16] <= row) continue;
    const int begin = key;
    while (key + 16 < to && ends[key / 16 + 1] > row) key += 16;
    f(begin, key + 16);
  }
}
// How many of a root's first keys are seen by all rows from `row` to end - 1: the past, and common ancestors.
inline int shared_keys(const Forest& f, int root, int row, int end) {
  int j = f.first_row[root];
  while (j <= row && f.end[j] >= end) j++;
  return f.past[root] + j - f.first_row[root];
}

// The share of one thread: whole (root, key/value head) pairs. It first writes the keys and values. Then, for each tile
// of rows:
//   - scores: the tile against all slots that one of its rows sees, at once;
//   - row by row: the scores of the keys that the row sees, in order of position, and their softmax;
//   - values, again in order of position: for the whole tile the keys that all its rows see, then row by row the
//   others.
// A tile is causal if each of its rows sees all rows before it (its depth equals its index in the tree): then the whole
// tile handles all keys together, and the weights of what a row does not see are 0.
template <class S>
void attention_twin(const Team& team, const Attention<float, S>& s) {
  const Forest& f = s.forest;
  const int D = s.head_size, wide = pad16(D);
  const Range mine = team.share(f.roots * s.n_kv_head);
  for (int task = mine.begin; task < mine.end; task++) {
    const int root = task / s.n_kv_head, kv_head = task % s.n_kv_head;
    const int first = f.first_row[root], last = f.first_row[root + 1], past = f.past[root], slot0 = f.first_slot[root];
    write_cache(s, root, kv_head);
    // Rows with a past share reading it. Without a past a small tile computes fewer scores that no row sees.
    constexpr int tallest = kMostTiles * kTileRows;
    const int tall = past + s.computed > 0 ? tallest : kTileRows, most = pad64(past + last - first);
    float* scores = scratch(size_t(tall) * (most + wide) + most / 16);
    float* sums = scores + tall * most;  // (tall, wide)
    int* ends = reinterpret_cast<int*>(sums + tall * wide);
    ends_of_blocks(f, root, ends);
    const Solo solo;
    for (int head = kv_head * s.queries(); head < (kv_head + 1) * s.queries(); head++)
      for (int row = s.first_new(root); row < last; row += tall) {
        const int rows = smaller(tall, last - row), keys = past + row + rows - first;
        each_run(ends, 0, keys, row, [&](int begin, int end) {
          const float* q = s.qkv + size_t(row) * s.qkv_row + head * D;
          const S* k = s.cache.key(kv_head, slot0 + begin, 0);
          const ptrdiff_t group = s.cache.key_numbers(16, D);
          product(rows, end - begin,
                  TileArguments<S>{D, q, s.qkv_row, 1, k, 16 * kTogether<S>, group, scores + begin, most, false});
        });

        bool causal = true;
        for (int t = 0; t < rows; t++) causal = causal && f.depth[row + t] == row + t - first;
        const int shared = causal ? keys : shared_keys(f, root, row, row + rows);
        // Calls act(key) for each key that the row sees, the shared ones left out, in order of position.
        const auto each_other = [&](int its_row, const auto& act) {
          const int to = past + its_row - first + 1;
          each_run(ends, shared, to, row, [&](int begin, int end) {
            for (int key = larger(begin, shared); key < smaller(end, to); key++)
              if (its_row < f.end[first + key - past]) act(key);
          });
        };
        float total[tallest];
        for (int t = 0; t < rows; t++) {
          float* p = scores + t * most;
          int seen = causal ? past + row + t - first + 1 : shared;
          if (!causal) each_other(row + t, [&](int key) { p[seen++] = p[key]; });
          // The rest of the last vector gets the weight 0, which changes no sum.
          const int whole = smaller(most, ((causal ? keys : seen) + kLanes - 1) / kLanes * kLanes);
          for (int i = seen; i < whole; i++) p[i] = -Format<float>::kInfinity;
          const float scale = s.scale(), top = scale * solo.largest<float>(whole, [=](int i) { return p[i]; });
          solo.each(whole, [=](int i) { p[i] = exp(p[i] * scale - top); });
          total[t] = solo.sum<float>(whole, [=](int i) { return p[i]; });
          if (s.log_sum) s.log_sum[(row + t) * s.n_head + head] = top + log(total[t]);
          if (s.dropout.rate > 0)
            for (int i = 0; i < seen; i++) p[i] *= s.keep(row + t, head, i);
        }
        const S* v = s.cache.value(kv_head, slot0, 0);
        product(rows, wide,
                TileArguments<S>{shared, scores, most, 1, v, wide * kTogether<S>, kGroup * kTogether<S>, sums, wide,
                                 false});
        for (int t = 0; t < rows; t++) {
          float *sum = sums + t * wide, *o = s.out + size_t(row + t) * s.out_row + head * D;
          const float* p = scores + t * most + shared;
          if (!causal)
            each_other(row + t, [&](int key) {
              const float weight = *p++;
              const S* v = s.cache.value(kv_head, slot0 + key, 0);
              for (int d = 0; d < wide; d++) sum[d] = fused(weight, to_float(v[d * kTogether<S>]), sum[d]);
            });
          for (int d = 0; d < D; d++) o[d] = sum[d] / total[t] + 0.0f;  // + 0: a zero has one sign
        }
      }
  }
}
#ifdef INSTANTIATE  // machine/library.cpp
INSTANTIATE void attention_twin(const Team&, const Attention<float, float>&);
INSTANTIATE void attention_twin(const Team&, const Attention<float, bf16>&);
#endif

// One thread's share of the gradients: whole (root, key/value head) pairs, so that no two threads add into one sum.
// With P = softmax(S), S = scale Q K^T, dP = dO V^T, delta = rowsum(dO o O), and o the product by elements (Dao et al.
// 2022, FlashAttention, appendix B):
//   dV = P^T dO,  dS = scale P o (dP - delta),  dQ = dS K,  dK = dS^T Q.
inline void attention_backward_twin(const Team& team, const AttentionBackward<float>& g) {
  constexpr int block = 48;  // rows at a time: it bounds the scratch
  const Attention<float>& s = g.forward;
  const Forest& f = s.forest;
  const int D = s.head_size, wide = pad16(D);
  const float scale = s.scale();
  const Range mine = team.share(f.roots * s.n_kv_head);
  for (int task = mine.begin; task < mine.end; task++) {
    const int root = task / s.n_kv_head, kv_head = task % s.n_kv_head;
    const int first = f.first_row[root], last = f.first_row[root + 1], past = f.past[root], slot0 = f.first_slot[root];
    const int slots = past + last - first, most = pad64(slots);
    float* k = scratch(size_t(most) * (wide + D + 2 * block + 2) + size_t(block) * wide);  // (slots, wide)
    float* vt = k + size_t(most) * wide;                                                   // (slots / 16, D, 16)
    float* p = vt + size_t(most) * D;                                                      // (block, most)
    float* ds = p + size_t(block) * most;                                                  // (block, most)
    float* dq = ds + size_t(block) * most;                                                 // (block, wide)
    float* keeps = dq + size_t(block) * wide;                                              // (most) one row's dropout
    int* ends = reinterpret_cast<int*>(keeps + most);                                      // (slots / 16)
    ends_of_blocks(f, root, ends);
    for (int j = 0; j < most; j++)
      for (int d = 0; d < wide; d++) {
        k[j * wide + d] = d < D && j < slots ? *s.cache.key(kv_head, slot0 + j, d) : 0.0f;
        if (d < D) vt[(j / 16 * D + d) * 16 + j % 16] = j < slots ? *s.cache.value(kv_head, slot0 + j, d) : 0.0f;
      }
    for (int head = kv_head * s.queries(); head < (kv_head + 1) * s.queries(); head++)
      for (int row = s.first_new(root); row < last; row += block) {
        const int rows = smaller(block, last - row), keys = past + row + rows - first;
        const int shared = shared_keys(f, root, row, row + rows);
        const float* q = s.qkv + size_t(row) * s.qkv_row + head * D;
        const float* dout = g.dout + size_t(row) * s.out_row + head * D;
        const auto each_seen = [&](const auto& act) { each_run(ends, 0, keys, row, act); };
        // The scores, into p, and dP, into ds.
        each_seen([&](int begin, int end) {
          const float* kt = s.cache.key(kv_head, slot0 + begin, 0);
          const float* v = vt + size_t(begin) * D;
          const int columns = end - begin;
          product(rows, columns, TileArguments<float>{D, q, s.qkv_row, 1, kt, 16, 16 * D, p + begin, most, false});
          product(rows, columns, TileArguments<float>{D, dout, s.out_row, 1, v, 16, 16 * D, ds + begin, most, false});
        });
        // P, from the scores and the stored log of their sum, and dS.
        for (int t = 0; t < rows; t++) {
          const int i = row + t;
          const bool causal = f.depth[i] == i - first;
          const float* o = s.out + size_t(i) * s.out_row + head * D;
          const float *du = dout + t * s.out_row, log_sum = s.log_sum[i * s.n_head + head];
          const float delta = Solo{}.sum<float>(D, [=](int d) { return du[d] * o[d]; });
          const int seen = past + i - first + 1;
          float* kept = s.dropout.rate > 0 ? keeps : nullptr;
          each_seen([&](int begin, int end) {
            float *pt = p + size_t(t) * most, *dst = ds + size_t(t) * most;
            const auto each = [=](const auto& act) { Solo{}.each(end - begin, [=](int j) { act(begin + j); }); };
            each([=](int j) { pt[j] = exp(pt[j] * scale - log_sum); });
            for (int j = larger(begin, seen); j < end; j++) pt[j] = 0;
            if (!causal)
              for (int j = larger(begin, shared); j < smaller(end, seen); j++)
                if (!f.sees(i, first + j - past)) pt[j] = 0;
            for (int j = begin; kept && j < end; j++) {
              kept[j] = j < seen ? s.keep(i, head, j < past ? j : past + f.depth[first + j - past]) : 0.0f;
              dst[j] *= kept[j];
            }
            each([=](int j) { dst[j] = pt[j] * (dst[j] - delta) * scale; });
            for (int j = begin; kept && j < end; j++) pt[j] *= kept[j];
          });
        }
        // dQ, which is a sum over keys; dK and dV, which are sums over rows.
        each_seen([&](int begin, int end) {
          const float *dst = ds + begin, *pt = p + begin;
          const int columns = end - begin, real = smaller(end, slots) - begin;
          float *dk = g.dk + g.at(kv_head, slot0 + begin), *dv = g.dv + g.at(kv_head, slot0 + begin);
          const float* its_k = k + size_t(begin) * wide;
          product(rows, wide, TileArguments<float>{columns, dst, most, 1, its_k, wide, kGroup, dq, wide, begin > 0});
          product(real, wide, TileArguments<float>{rows, dst, 1, most, q, s.qkv_row, kGroup, dk, wide, true});
          product(real, wide, TileArguments<float>{rows, pt, 1, most, dout, s.out_row, kGroup, dv, wide, true});
        });
        for (int t = 0; t < rows; t++)
          memcpy(g.dqkv + size_t(row + t) * s.qkv_row + head * D, dq + t * wide, sizeof(float) * D);
      }
  }
}

}  // namespace nanospec
