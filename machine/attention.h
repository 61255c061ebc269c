// machine/attention.h: tree attention on a CPU, forward and backward: the twins of AttentionForward and of the two
// operations that sum its gradient (kernels.cuh). They have the portable version's bits.
#pragma once

#include "machine/products.h"

namespace nanospec {

// Prefetches `numbers` of each of some rows: a head's part of a row lies far from that of the next.
inline void prefetch_rows(const float* from, ptrdiff_t stride, int rows, int numbers) {
  for (int row = 0; row < rows; row++)
    for (int i = 0; i < numbers; i += kLine / int(sizeof(float))) __builtin_prefetch(from + row * stride + i);
}
constexpr int kRowsAhead = 8;  // whose keys and values are prefetched

// Writes the new rows' keys and values of one root and one key/value head into the cache.
template <class T, class S>
inline void write_cache(const Attention<T, S>& s, int root, int kv_head) {
  const int D = s.head_size;
  for (int row = s.first_new(root); row < s.forest.first_row[root + 1]; row++) {
    const int slot = s.forest.slot(row);
    const T* k = s.qkv + size_t(row) * s.qkv_row + (s.n_head + kv_head) * D;
    const T* v = k + s.n_kv_head * D;
    prefetch_rows(k + kRowsAhead * s.qkv_row, s.qkv_row, 1, D);
    prefetch_rows(v + kRowsAhead * s.qkv_row, s.qkv_row, 1, D);
    constexpr int together = kTogether<S>;  // neighbouring channels are 16, or 1, times so many numbers apart
    S *const to_k = s.cache.key(kv_head, slot, 0), *const to_v = s.cache.value(kv_head, slot, 0);
    for (int d = 0; d < D; d++) to_k[d / together * 16 * together + d % together] = rounded<S>(k[d]);
    for (int d = 0; d < D; d++) to_v[d * together] = rounded<S>(v[d]);
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

constexpr int kFarPast = 1024;  // keys and values of so long a past lie beyond the caches of a core

// A tile: some rows of one root, with all query heads of one key/value head, so that they share reading it. A pair is a
// row and a query head. Three steps follow each other:
//   - score: the tile against all slots that one of its rows sees, at once;
//   - weigh, pair by pair: the scores of the keys that the row sees, in order of position, and their softmax;
//   - attend, again in order of position: for the whole tile the keys that all its rows see, then pair by pair the
//   others.
// A tile is causal if each of its rows sees all rows before it (its depth equals its index in the tree): then the whole
// tile handles all keys together, and the weights of what a row does not see are 0.
template <class S>
struct AttentionTile {
  const Attention<float, S>& s;
  const int root, kv_head, row, rows;
  const int* ends;      // ends_of_blocks()
  float* const scores;  // (pairs, most + kSpare) each pair's scores, then weights; behind them the sum of the weights
  const int most;       // keys of the root, padded to 64

  static constexpr int kSpare = 16;
  const Forest& f = s.forest;
  const int first = f.first_row[root], past = f.past[root], slot0 = f.first_slot[root];
  const int D = s.head_size, wide = pad16(D), queries = s.queries(), pairs = rows * queries, stride = most + kSpare;
  const int keys = past + row + rows - first;  // that one of its rows may see
  const bool causal = is_causal();
  const int shared = causal ? keys : shared_keys(f, root, row, row + rows);

  int row_of(int pair) const { return row + pair / queries; }
  int head_of(int pair) const { return kv_head * queries + pair % queries; }
  float* weights(int pair) const { return scores + size_t(pair) * stride; }
  bool is_causal() const {
    for (int t = 0; t < rows; t++)
      if (f.depth[row + t] != row + t - first) return false;
    return true;
  }
  // Calls act(key) for each key that the row sees, the shared ones left out, in order of position.
  template <class F>
  void each_other(int its_row, const F& act) const {
    const int to = past + its_row - first + 1;
    each_run(ends, shared, to, row, [&](int begin, int end) {
      for (int key = larger(begin, shared); key < smaller(end, to); key++)
        if (its_row < f.end[first + key - past]) act(key);
    });
  }

  // The scores of keys from .. to - 1; `from` is a multiple of 16. q: scratch, (pairs, D).
  void score(int from, int to, float* q) const {
    for (int i = 0; i < pairs; i++)
      std::copy_n(s.qkv + size_t(row_of(i)) * s.qkv_row + head_of(i) * D, D, q + size_t(i) * D);
    each_run(ends, from, to, row, [&](int begin, int end) {
      const S* k = s.cache.key(kv_head, slot0 + begin, 0);
      const ptrdiff_t group = s.cache.key_numbers(16, D);
      product(
          pairs, end - begin,
          TileArguments<S>{D, q, D, 1, k, 16 * kTogether<S>, group, scores + begin, stride, false, past >= kFarPast});
    });
  }
  void weigh(int pair) const {
    const Solo solo;
    const int its_row = row_of(pair), head = head_of(pair);
    float* const p = weights(pair);
    int seen = causal ? past + its_row - first + 1 : shared;
    if (!causal) each_other(its_row, [&](int key) { p[seen++] = p[key]; });
    // The rest of the last vector gets the weight 0, which changes no sum.
    const int whole = smaller(most, ((causal ? keys : seen) + kLanes - 1) / kLanes * kLanes);
    for (int i = seen; i < whole; i++) p[i] = -Format<float>::kInfinity;
    const float scale = s.scale(), top = scale * solo.largest<float>(whole, [=](int i) { return p[i]; });
    solo.each(whole, [=](int i) { p[i] = exp(p[i] * scale - top); });
    p[most] = solo.sum<float>(whole, [=](int i) { return p[i]; });
    if (s.log_sum) s.log_sum[its_row * s.n_head + head] = top + log(p[most]);
    if (s.dropout.rate > 0)
      for (int i = 0; i < seen; i++) p[i] *= s.keep(its_row, head, i);
  }
  // Channels begin .. end - 1 of the outputs, which are multiples of 16. sums: scratch, (pairs, end - begin).
  void attend(int begin, int end, float* sums) const {
    const int n = end - begin;
    const S* v = s.cache.value(kv_head, slot0, 0) + begin * kTogether<S>;
    product(pairs, n,
            TileArguments<S>{shared, scores, stride, 1, v, wide * kTogether<S>, kGroup * kTogether<S>, sums, n, false,
                             past >= kFarPast});
    for (int i = 0; i < pairs; i++) {
      float *sum = sums + i * n, *o = s.out + size_t(row_of(i)) * s.out_row + head_of(i) * D + begin;
      const float *p = weights(i) + shared, total = weights(i)[most];
      if (!causal)
        each_other(row_of(i), [&](int key) {
          const float weight = *p++;
          const S* v = s.cache.value(kv_head, slot0 + key, 0) + begin * kTogether<S>;
          for (int d = 0; d < n; d++) sum[d] = fused(weight, to_float(v[d * kTogether<S>]), sum[d]);
        });
      for (int d = 0; d < smaller(n, D - begin); d++) o[d] = sum[d] / total + 0.0f;  // + 0: a zero has one sign
    }
  }
};

// All threads work at each key/value head of the only root: they share its keys, then the pairs, then the channels.
// scores: kRowsByKeys rows.
template <class S>
void attention_by_keys(const Team& team, const Attention<float, S>& s, float* scores) {
  const Forest& f = s.forest;
  const int KV = s.n_kv_head, wide = pad16(s.head_size), row = s.first_new(0), rows = f.rows - row;
  const int pairs = rows * s.queries(), keys = f.past[0] + f.rows, most = pad64(keys);
  float* const spare = scratch(size_t(pairs) * wide + most / 16);
  int* const ends = reinterpret_cast<int*>(spare + size_t(pairs) * wide);
  ends_of_blocks(f, 0, ends);
  const auto tile = [&](int kv_head) {
    float* const its = scores + size_t(kv_head) * pairs * (most + AttentionTile<S>::kSpare);
    return AttentionTile<S>{s, 0, kv_head, row, rows, ends, its, most};
  };
  // Calls act(tile, begin, end) with this thread's part of KV times n things.
  const auto share = [&](int n, const auto& act) {
    const Range mine = team.share(KV * n);
    for (int kv_head = mine.begin / n; kv_head * n < mine.end; kv_head++)
      act(tile(kv_head), larger(0, mine.begin - kv_head * n), smaller(n, mine.end - kv_head * n));
  };
  share(1, [&](const auto& t, int, int) { write_cache(s, 0, t.kv_head); });
  team.wait();
  share(most / 16, [&](const auto& t, int begin, int end) { t.score(begin * 16, smaller(keys, end * 16), spare); });
  team.wait();
  share(pairs, [&](const auto& t, int begin, int end) {
    for (int i = begin; i < end; i++) t.weigh(i);
  });
  team.wait();
  share(wide / 16, [&](const auto& t, int begin, int end) { t.attend(begin * 16, end * 16, spare); });
}

// The share of one thread: whole (root, key/value head) pairs, of which it first writes the keys and values. Where that
// would give one thread more than another of a long past, all threads work at each head; the bits are the same.
// shared: attention_scratch_size(); may be null.
template <class S>
void attention_twin(const Team& team, const Attention<float, S>& s, float* shared) {
  const Forest& f = s.forest;
  if (shared && f.roots == 1 && s.n_kv_head % team.size != 0 && f.past[0] >= kLongPast &&
      f.rows - s.computed <= kRowsByKeys)
    return attention_by_keys(team, s, shared);
  const int wide = pad16(s.head_size);
  const Range mine = team.share(f.roots * s.n_kv_head);
  for (int task = mine.begin; task < mine.end; task++) {
    const int root = task / s.n_kv_head, kv_head = task % s.n_kv_head;
    const int last = f.first_row[root + 1], past = f.past[root], most = pad64(past + last - f.first_row[root]);
    write_cache(s, root, kv_head);
    // Rows with a past share reading it. Without a past a small tile computes fewer scores that no row sees.
    const int pairs = past + s.computed > 0 ? kMostTiles * kTileRows : kTileRows, tall = larger(1, pairs / s.queries());
    const size_t numbers = size_t(tall) * s.queries() * (most + AttentionTile<S>::kSpare + wide);
    float* const scores = scratch(numbers + most / 16);
    float* const spare = scores + numbers - size_t(tall) * s.queries() * wide;
    int* const ends = reinterpret_cast<int*>(scores + numbers);
    ends_of_blocks(f, root, ends);
    for (int row = s.first_new(root); row < last; row += tall) {
      const AttentionTile<S> tile{s, root, kv_head, row, smaller(tall, last - row), ends, scores, most};
      const int next = row + tile.rows;  // the next tile's queries
      prefetch_rows(s.qkv + size_t(next) * s.qkv_row + tile.head_of(0) * s.head_size, s.qkv_row,
                    smaller(tall, last - next), s.queries() * s.head_size);
      tile.score(0, tile.keys, spare);
      for (int i = 0; i < tile.pairs; i++) tile.weigh(i);
      tile.attend(0, wide, spare);
    }
  }
}
#ifdef INSTANTIATE  // machine/library.cpp
INSTANTIATE void attention_twin(const Team&, const Attention<float, float>&, float*);
INSTANTIATE void attention_twin(const Team&, const Attention<float, bf16>&, float*);
#endif

// One thread's share of the gradients: whole (root, key/value head) pairs, so that no two threads add into one sum.
// With P = softmax(S), S = scale Q K^T, dP = dO V^T, delta = rowsum(dO o O), and o the product by elements (Dao et al.
// 2022, FlashAttention, appendix B):
//   dV = P^T dO,  dS = scale P o (dP - delta),  dQ = dS K,  dK = dS^T Q.
inline void attention_backward_twin(const Team& team, const AttentionBackward<float>& g) {
  constexpr int block = kMostTiles * kTileRows;  // rows at a time: of few, few scores are computed that no row sees
  const Attention<float>& s = g.forward;
  const Forest& f = s.forest;
  const int D = s.head_size, wide = pad16(D);
  const float scale = s.scale();
  const Range mine = team.share(f.roots * s.n_kv_head);
  for (int task = mine.begin; task < mine.end; task++) {
    const int root = task / s.n_kv_head, kv_head = task % s.n_kv_head;
    const int first = f.first_row[root], last = f.first_row[root + 1], past = f.past[root], slot0 = f.first_slot[root];
    const int slots = past + last - first, most = pad64(slots);
    float* const copy = scratch(size_t(most) * (wide + D + 2 * block + 2) + size_t(block) * wide);  // (slots, wide)
    float* vt = copy + size_t(most) * wide;            // (slots / 16, D, 16)
    float* p = vt + size_t(most) * D;                  // (block, most)
    float* ds = p + size_t(block) * most;              // (block, most)
    float* dq = ds + size_t(block) * most;             // (block, wide)
    float* keeps = dq + size_t(block) * wide;          // (most) one row's dropout
    int* ends = reinterpret_cast<int*>(keeps + most);  // (slots / 16)
    ends_of_blocks(f, root, ends);
    // The keys, a row each: where they were computed; where others are in the cache, a copy.
    const float* k = s.qkv + size_t(first) * s.qkv_row + (s.n_head + kv_head) * D;
    const bool in_cache = past + s.computed > 0;
    const int k_row = in_cache ? wide : s.qkv_row;
    for (int j = 0; j < slots && in_cache; j++)
      for (int d = 0; d < D; d++) copy[size_t(j) * wide + d] = *s.cache.key(kv_head, slot0 + j, d);
    if (in_cache) k = copy;
    for (int j = 0; j < most; j++) {
      const float* const its_v = s.cache.value(kv_head, slot0 + j, 0);
      float* const to_v = vt + size_t(j / 16) * 16 * D + j % 16;
      for (int d = 0; d < D; d++) to_v[d * 16] = j < slots ? its_v[d] : 0.0f;
    }
    float *const dk = g.dk + g.at(kv_head, slot0), *const dv = g.dv + g.at(kv_head, slot0);
    if (!g.adds) {
      std::fill_n(dk, size_t(slots) * wide, 0.0f);
      std::fill_n(dv, size_t(slots) * wide, 0.0f);
    }
    for (int head = kv_head * s.queries(); head < (kv_head + 1) * s.queries(); head++)
      for (int row = s.first_new(root); row < last; row += block) {
        const int rows = smaller(block, last - row), keys = past + row + rows - first;
        const int shared = shared_keys(f, root, row, row + rows);
        const float* q = s.qkv + size_t(row) * s.qkv_row + head * D;
        const float* dout = g.dout + size_t(row) * s.out_row + head * D;
        const auto each_seen = [&](const auto& act) { each_run(ends, 0, keys, row, act); };
        const int next = smaller(block, last - row - rows);  // rows of the next block
        prefetch_rows(q + rows * s.qkv_row, s.qkv_row, next, D);
        prefetch_rows(dout + rows * s.out_row, s.out_row, next, D);
        prefetch_rows(s.out + size_t(row + rows) * s.out_row + head * D, s.out_row, next, D);
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
          const int real = smaller(end, slots) - begin;
          const size_t at = size_t(begin) * wide;
          product(
              rows, wide,
              TileArguments<float>{real, dst, most, 1, k + size_t(begin) * k_row, k_row, kGroup, dq, wide, begin > 0});
          product(real, wide, TileArguments<float>{rows, dst, 1, most, q, s.qkv_row, kGroup, dk + at, wide, true});
          product(real, wide, TileArguments<float>{rows, pt, 1, most, dout, s.out_row, kGroup, dv + at, wide, true});
        });
        for (int t = 0; t < rows; t++)
          memcpy(g.dqkv + size_t(row + t) * s.qkv_row + head * D, dq + t * wide, sizeof(float) * D);
      }
  }
}

}  // namespace nanospec
