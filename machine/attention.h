// machine/attention.h: tree attention on a CPU, forward and backward: the twins of the operations in kernels.cuh. They
// have the portable version's bits.
#pragma once

#include "machine/dropout.h"
#include "machine/products.h"

namespace nanospec {

// Writes n rows' keys, of D numbers each, from `slot` on into one head's part of a cache (KeyValues), 16 slots at a
// time: in their block the numbers of one channel lie side by side.
template <class S>
inline void write_keys(const float* k, ptrdiff_t stride, int n, int slot, int D, S* to) {
  constexpr int together = kTogether<S>;
  for (int rows; n > 0; n -= rows, slot += rows, k += rows * stride) {
    rows = smaller(16 - slot % 16, n);
    prefetch_rows(k + rows * stride, stride, smaller(16, n - rows), D);
    S* const block = to + KeyValues<S>::key_numbers(slot / 16 * 16, D) + slot % 16 * together;
    const auto write = [&](int count) {
      for (int d = 0; d < D; d++)
        for (int j = 0; j < count; j++)
          block[(d / together * 16 + j) * together + d % together] = rounded<S>(k[j * stride + d]);
    };
    if constexpr (std::is_same<S, float>::value) {
      if (rows == 16 && D % 4 == 0) {
        for (int d = 0; d < D; d += 4) transpose_four(k + d, stride, block + d * 16);
        continue;
      }
    }
    if (rows == 16) write(16);  // a count that the compiler knows
    else write(rows);
  }
}
// The cache of one root and one key/value head, from the root's first slot on.
template <class T, class S>
KeyValues<S> cache_of(const Attention<T, S>& s, int root, int kv_head) {
  const int slot = s.forest.first_slot[root];
  return {s.cache.key(kv_head, slot, 0), s.cache.value(kv_head, slot, 0), s.cache.slots - slot, s.head_size};
}
// Writes the new rows' keys and values of one root and one key/value head into `cache`, which is theirs alone.
template <class S>
inline void write_cache(const Attention<float, S>& s, int root, int kv_head, const KeyValues<S>& cache) {
  const int D = s.head_size, row = s.first_new(root), n = s.forest.first_row[root + 1] - row;
  const int slot = s.forest.past[root] + s.computed;
  const float* const k = s.qkv + size_t(row) * s.qkv_row + (s.n_head + kv_head) * D;
  const float* const v = k + s.n_kv_head * D;
  write_keys(k, s.qkv_row, n, slot, D, cache.key(0, 0, 0));
  constexpr int ahead = 8;
  for (int i = 0; i < n; i++) {
    prefetch_rows(v + (i + ahead) * s.qkv_row, s.qkv_row, i + ahead < n, D);
    S* const to = cache.value(0, slot + i, 0);
    for (int d = 0; d < D; d++) to[d * kTogether<S>] = rounded<S>(v[i * s.qkv_row + d]);
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
//   - weigh: of each pair the scores of the keys that its row sees, in order of position, and their softmax;
//   - attend, again in order of position: for the whole tile the keys that all its rows see, then pair by pair the
//   others.
// A tile is causal if each of its rows sees all rows before it (its depth equals its index in the tree): then the whole
// tile handles all keys together, and the weights of what a row does not see are 0.
template <class S>
struct AttentionTile {
  const Attention<float, S>& s;
  const KeyValues<S> cache;  // of this root and key/value head: cache_of()
  const int root, kv_head, row, rows;
  const int* ends;      // ends_of_blocks()
  float* const scores;  // (pairs, most + kSpare) each pair's scores, then weights; behind them the sum of the weights
  const int most;       // keys of the root, padded to 64

  static constexpr int kSpare = 16, kSome = 24;
  const Forest& f = s.forest;
  const int first = f.first_row[root], past = f.past[root];
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

  const float* query(int pair) const { return s.qkv + size_t(row_of(pair)) * s.qkv_row + head_of(pair) * D; }

  // The scores of keys from .. to - 1; `from` is a multiple of 16. copies: scratch, (pairs, D). Only the queries of
  // several heads, which do not lie at one distance from each other, are copied.
  void score(int from, int to, float* copies) const {
    for (int i = 0; i < pairs && queries > 1; i++) std::copy_n(query(i), D, copies + size_t(i) * D);
    const float* const q = queries > 1 ? copies : query(0);
    const int q_row = queries > 1 ? D : s.qkv_row;
    each_run(ends, from, to, row, [&](int begin, int end) {
      const S* k = cache.key(0, begin, 0);
      const ptrdiff_t group = cache.key_numbers(16, D);
      product(pairs, end - begin,
              TileArguments<S>{D, q, q_row, 1, k, 16 * kTogether<S>, group, scores + begin, stride, false,
                               past >= kFarPast});
    });
  }
  // The pairs begin .. end - 1, some at a time: each step runs over all of them, so that they overlap.
  void weigh(int begin, int end) const {
    for (int pair = begin; pair < end; pair += kSome) weigh_some(pair, smaller(kSome, end - pair));
  }
  // What the next key/value head needs of a pair's row. Asked for now, in a step that needs no memory, it is in L2 by
  // then.
  [[gnu::always_inline]] void prefetch_next_head(int pair) const {
    const float* const its = s.qkv + size_t(row_of(pair)) * s.qkv_row;
    const int key = s.n_head + kv_head + 1, heads[] = {head_of(pair) + queries, key, key + s.n_kv_head};
    for (int head : heads) prefetch_rows<false, kIntoL2>(its + head * D, 0, 1, D);
  }
  void weigh_some(int pair, int n) const {
    const Solo solo;
    int seen[kSome], whole[kSome];  // keys of each pair, and rounded up
    float top[kSome], total[kSome];
    const float scale = s.scale();
    for (int i = 0; i < n; i++) {
      const int its_row = row_of(pair + i);
      float* const p = weights(pair + i);
      seen[i] = causal ? past + its_row - first + 1 : shared;
      if (!causal) each_other(its_row, [&](int key) { p[seen[i]++] = p[key]; });
      // Behind the keys that it sees, up to a multiple of lanes, weights are 0, which changes no sum.
      whole[i] = smaller(most, ((causal ? keys : seen[i]) + kLanes - 1) / kLanes * kLanes);
      for (int k = seen[i] / Vec::width * Vec::width; k < whole[i]; k += Vec::width)
        store(p + k, below(seen[i], k, load(p + k), -Format<float>::kInfinity));
      top[i] = scale * largest_of(whole[i], [=](int k) { return load(p + k); });
    }
    for (int i = 0; i < n; i++) {
      float *const p = weights(pair + i), its_top = top[i];
      prefetch_next_head(pair + i);
      p[most] = total[i] = sum_of(whole[i], [=](int k) {
        const Vec weight = exp(load(p + k) * scale - its_top);
        store(p + k, weight);
        return weight;
      });
    }
    if (s.log_sum) {
      solo.each(n, [&](int i) { top[i] += log(total[i]); });
      for (int i = 0; i < n; i++) s.log_sum[row_of(pair + i) * s.n_head + head_of(pair + i)] = top[i];
    }
    for (int i = 0; i < n && s.dropout.rate > 0; i++) {
      float* const p = weights(pair + i);
      each_keep(s.dropout, s.first_weight(row_of(pair + i), head_of(pair + i)), seen[i],
                [=](int k, float keep) { p[k] *= keep; });
    }
  }
  // Channels begin .. end - 1 of the outputs, which are multiples of 16. sums: scratch, (pairs, end - begin).
  void attend(int begin, int end, float* sums) const {
    const int n = end - begin;
    const S* v = cache.value(0, 0, 0) + begin * kTogether<S>;
    product(pairs, n,
            TileArguments<S>{shared, scores, stride, 1, v, wide * kTogether<S>, kGroup * kTogether<S>, sums, n, false,
                             past >= kFarPast});
    for (int i = 0; i < pairs; i++) {
      float *sum = sums + i * n, *o = s.out + size_t(row_of(i)) * s.out_row + head_of(i) * D + begin;
      const float *p = weights(i) + shared, total = weights(i)[most];
      if (!causal)
        each_other(row_of(i), [&](int key) {
          const float weight = *p++;
          const S* v = cache.value(0, key, 0) + begin * kTogether<S>;
          for (int d = 0; d < n; d++) sum[d] = fused(weight, to_float(v[d * kTogether<S>]), sum[d]);
        });
      for (int d = 0; d < smaller(n, D - begin); d++) o[d] = sum[d] / total + 0.0f;  // + 0: a zero has one sign
    }
  }
};

constexpr int kLongPast = 128;  // keys of a past of which threads may share a head

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
    return AttentionTile<S>{s, cache_of(s, 0, kv_head), 0, kv_head, row, rows, ends, its, most};
  };
  // Calls act(tile, begin, end) with this thread's part of KV times n things.
  const auto share = [&](int n, const auto& act) {
    const Range mine = team.share(KV * n);
    for (int kv_head = mine.begin / n; kv_head * n < mine.end; kv_head++)
      act(tile(kv_head), larger(0, mine.begin - kv_head * n), smaller(n, mine.end - kv_head * n));
  };
  share(1, [&](const auto& t, int, int) { write_cache(s, 0, t.kv_head, t.cache); });
  team.wait();
  share(most / 16, [&](const auto& t, int begin, int end) { t.score(begin * 16, smaller(keys, end * 16), spare); });
  team.wait();
  share(pairs, [&](const auto& t, int begin, int end) { t.weigh(begin, end); });
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
    // Rows with a past share reading it. Without a past a small tile computes fewer scores that no row sees.
    const bool alone = past + s.computed == 0;
    const int pairs = alone ? kTileRows : kRoundRows, tall = larger(1, pairs / s.queries());
    const size_t tile_numbers = size_t(tall) * s.queries() * (most + AttentionTile<S>::kSpare),
                 cached = size_t(most) * wide;
    float* const scores = scratch(tile_numbers + size_t(tall) * s.queries() * wide + most / 16 + 2 * cached);
    float* const spare = scores + tile_numbers;
    int* const ends = reinterpret_cast<int*>(spare + size_t(tall) * s.queries() * wide);
    ends_of_blocks(f, root, ends);
    KeyValues<S> cache = cache_of(s, root, kv_head);
    if (alone && !s.cache_is_read) {  // nobody else reads them: they stay in this thread's L2
      S* const own = reinterpret_cast<S*>(ends + most / 16);
      cache = {own, own + cached, most, s.head_size};
    }
    write_cache(s, root, kv_head, cache);
    for (int row = s.first_new(root); row < last; row += tall) {
      const AttentionTile<S> tile{s, cache, root, kv_head, row, smaller(tall, last - row), ends, scores, most};
      const int next = row + tile.rows;  // the next tile's queries
      const int numbers = s.queries() * s.head_size, column = tile.head_of(0) * s.head_size;
      prefetch_rows(s.qkv + size_t(next) * s.qkv_row + column, s.qkv_row, smaller(tall, last - next), numbers);
      prefetch_rows<true>(s.out + size_t(row) * s.out_row + column, s.out_row, tile.rows, numbers);
      tile.score(0, tile.keys, spare);
      tile.weigh(0, tile.pairs);
      tile.attend(0, wide, spare);
    }
  }
}
#ifdef INSTANTIATE  // machine/library.cpp
INSTANTIATE void attention_twin(const Team&, const Attention<float, float>&, float*);
INSTANTIATE void attention_twin(const Team&, const Attention<float, bf16>&, float*);
#endif

// The gradient of one root and key/value head, in one thread. With P = softmax(S), S = scale Q K^T, dP = dO V^T,
// delta = rowsum(dO o O), and o the product by elements (Dao et al. 2022, FlashAttention, appendix B):
//   dV = P^T dO,  dS = scale P o (dP - delta),  dQ = dS K,  dK = dS^T Q.
// A group of rows, as many as have room for their P and dS in L2, computes them and dQ block by block, for few rows
// compute few scores that no row sees. Then it adds to dK and dV, whose sums are over rows.
struct AttentionGradient {
  static constexpr int kBlock = kRoundRows;
  const AttentionBackward<float>& g;
  const int root, kv_head;

  const Attention<float>& s = g.forward;
  const Forest& f = s.forest;
  const int first = f.first_row[root], last = f.first_row[root + 1], past = f.past[root], row0 = s.first_new(root);
  const int D = s.head_size, wide = pad16(D), slots = past + last - first, most = pad64(slots);
  const int line = most + 16;  // of p and ds: an odd number of cache lines, as strides of activations
  const int room = int(l2_bytes() / sizeof(float)) / 4 / most;  // rows of p and of ds in half of L2
  const int group = larger(1, smaller(room, last - row0 + kBlock - 1) / kBlock) * kBlock;
  const bool in_cache = past + s.computed > 0;  // other keys are in the cache alone
  // dK and dV are computed where they belong, unless they are added to others, or their rows are padded.
  const bool direct = !g.adds && !in_cache && D == wide;

  float* const k_rows = scratch(size_t(most) * (wide + 2 * D + 2) + 2 * size_t(line) * group + size_t(wide) * kBlock);
  float* const kt = k_rows + size_t(most) * wide;                           // (slots / 16, D, 16) keys, as in the cache
  float* const vt = kt + size_t(most) * D;                                  // (slots / 16, D, 16) values, likewise
  float* const p = vt + size_t(most) * D;                                   // (group, line)
  float* const ds = p + size_t(group) * line;                               // (group, line)
  float* const dq = ds + size_t(group) * line;                              // (kBlock, wide)
  float* const keeps = dq + size_t(kBlock) * wide;                          // (most) one row's dropout
  int* const ends = reinterpret_cast<int*>(keeps + most);                   // (slots / 16) ends_of_blocks()
  const size_t own = size_t(first) * s.qkv_row + (s.n_head + kv_head) * D;  // where the keys of qkv begin
  const size_t to_values = size_t(s.n_kv_head) * D;                         // and from there, the values
  const KeyValues<float> cache = cache_of(s, root, kv_head);
  // The keys and values, a row each: where they were computed, or in the cache, whose keys are copied.
  const float *const k = in_cache ? k_rows : s.qkv + own, *const v = in_cache ? cache.v : s.qkv + own + to_values;
  const int k_row = in_cache ? wide : s.qkv_row;
  float* const dk = direct ? g.dqkv + own : g.dk + g.at(kv_head, f.first_slot[root]);
  float* const dv = direct ? g.dqkv + own + to_values : g.dv + g.at(kv_head, f.first_slot[root]);
  const int dk_row = direct ? s.qkv_row : wide;

  const float* row_of(const float* x, int x_row, int row, int head) const { return x + size_t(row) * x_row + head * D; }

  void run() const {
    ends_of_blocks(f, root, ends);
    for (int j = 0; j < slots && in_cache; j++)
      for (int d = 0; d < D; d++) k_rows[size_t(j) * wide + d] = *cache.key(0, j, d);
    for (float* to : {kt, vt}) std::fill_n(to + slots / 16 * 16 * D, slots % 16 ? 16 * D : 0, 0.0f);
    write_keys(k, k_row, slots, 0, D, kt);
    write_keys(v, k_row, slots, 0, D, vt);
    if (!g.adds && !direct)
      for (float* to : {dk, dv}) std::fill_n(to, size_t(slots) * wide, 0.0f);
    for (int head = kv_head * s.queries(); head < (kv_head + 1) * s.queries(); head++)
      for (int begin = row0; begin < last; begin += group) {
        const int end = smaller(last, begin + group);
        for (int row = begin; row < end; row += kBlock) queries(head, row, smaller(kBlock, end - row), begin);
        keys(head, begin, end);
      }
    for (int row = row0; row < last && !direct; row++) {
      const size_t from = size_t(past + row - first) * wide, to = own + size_t(row - first) * s.qkv_row;
      memcpy(g.dqkv + to, dk + from, sizeof(float) * D);
      memcpy(g.dqkv + to + to_values, dv + from, sizeof(float) * D);
    }
  }

  // P, dS and dQ of some rows.
  void queries(int head, int row, int rows, int group_begin) const {
    const float *q = row_of(s.qkv, s.qkv_row, row, head), *dout = row_of(g.dout, s.out_row, row, head);
    const float* o = row_of(s.out, s.out_row, row, head);
    float* const to = g.dqkv + size_t(row) * s.qkv_row + head * D;
    float *const pb = p + size_t(row - group_begin) * line, *const dsb = ds + size_t(row - group_begin) * line;
    const int next = smaller(kBlock, last - row - rows);  // rows of the next block
    prefetch_rows(q + rows * s.qkv_row, s.qkv_row, next, D);
    prefetch_rows(dout + rows * s.out_row, s.out_row, next, D);
    prefetch_rows(o + rows * s.out_row, s.out_row, next, D);
    prefetch_rows<true>(to, s.qkv_row, rows, D);
    float delta[kBlock];
    for (int t = 0; t < rows; t++) {
      const float *its_o = o + t * s.out_row, *its_dout = dout + t * s.out_row;
      if (D % kLanes == 0) delta[t] = sum_of(D, [=](int d) { return load(its_dout + d) * load(its_o + d); });
      else delta[t] = Solo{}.sum<float>(D, [=](int d) { return its_dout[d] * its_o[d]; });
    }
    const int shared = shared_keys(f, root, row, row + rows);
    each_run(ends, 0, past + row + rows - first, row, [&](int begin, int end) {
      // The scores, into p, and dP, into ds.
      const int n = end - begin, real = smaller(end, slots) - begin;
      const size_t at = size_t(begin) * D;
      product(rows, n, TileArguments<float>{D, q, s.qkv_row, 1, kt + at, 16, 16 * D, pb + begin, line, false});
      product(rows, n, TileArguments<float>{D, dout, s.out_row, 1, vt + at, 16, 16 * D, dsb + begin, line, false});
      for (int t = 0; t < rows; t++)
        weigh(head, row + t, shared, begin, end, delta[t], pb + size_t(t) * line, dsb + size_t(t) * line);
      product(rows, wide,
              TileArguments<float>{real, dsb + begin, line, 1, k + size_t(begin) * k_row, k_row, kGroup, dq, wide,
                                   begin > 0});
    });
    for (int t = 0; t < rows; t++) memcpy(to + size_t(t) * s.qkv_row, dq + t * wide, sizeof(float) * D);
  }

  // P, from the scores and the stored log of their sum, and dS, from dP: keys begin .. end - 1 of one row.
  void weigh(int head, int row, int shared, int begin, int end, float delta, float* p, float* ds) const {
    const float scale = s.scale(), log_sum = s.log_sum[row * s.n_head + head];
    const int seen = past + row - first + 1, stop = smaller(seen, end);
    const bool drops = s.dropout.rate > 0, sees_all = f.depth[row] == row - first;  // all rows before it
    float* const keeps = this->keeps;
    const auto drop = [=](int j, float keep) {
      keeps[j] = keep;
      ds[j] *= keep;
    };
    if (drops && sees_all)
      each_keep(s.dropout, s.first_weight(row, head) + begin, stop - begin,
                [=](int i, float keep) { drop(begin + i, keep); });
    else
      for (int j = begin; drops && j < stop; j++)
        drop(j, s.keep(row, head, j < past ? j : past + f.depth[first + j - past]));
    const auto some = [=](int j, const auto& kept) {  // a vector of keys
      const Vec weight = exp(load(p + j) * scale - log_sum);
      store(p + j, kept(weight));
      store(ds + j, kept(weight * (load(ds + j) - delta) * scale));
    };
    int j = begin;
    for (; j + Vec::width <= stop; j += Vec::width) some(j, [](Vec x) { return x; });
    for (; j < end; j += Vec::width) some(j, [=](Vec x) { return below(seen, j, x, 0.0f); });
    for (int j = larger(begin, shared); !sees_all && j < stop; j++)
      if (!f.sees(row, first + j - past)) p[j] = ds[j] = 0;
    for (int j = begin; drops && j < stop; j++) p[j] *= keeps[j];
  }

  // dK and dV of the keys that the group's rows see, 16 at a time: from the first row that may see one of them.
  void keys(int head, int begin, int end) const {
    for (int key = 0; key < past + end - first; key += 16) {
      const int its_row = key < past ? begin : first + key - past;
      const int from = larger(begin, its_row), to = smaller(end, ends[key / 16]), n = smaller(16, slots - key);
      if (from >= to) continue;
      const size_t at = size_t(from - begin) * line + key, c = size_t(key) * dk_row;
      const float *q = row_of(s.qkv, s.qkv_row, from, head), *dout = row_of(g.dout, s.out_row, from, head);
      const bool add = !direct || head > kv_head * s.queries() || its_row < begin;
      if (!add) {
        prefetch_rows<true>(dk + c, dk_row, n, D);
        prefetch_rows<true>(dv + c, dk_row, n, D);
      }
      product(n, wide, TileArguments<float>{to - from, ds + at, 1, line, q, s.qkv_row, kGroup, dk + c, dk_row, add});
      product(n, wide, TileArguments<float>{to - from, p + at, 1, line, dout, s.out_row, kGroup, dv + c, dk_row, add});
    }
  }
};

// One thread's share of the gradients: whole (root, key/value head) pairs, so that no two threads add into one sum.
inline void attention_backward_twin(const Team& team, const AttentionBackward<float>& g) {
  const Range mine = team.share(g.forward.forest.roots * g.forward.n_kv_head);
  for (int task = mine.begin; task < mine.end; task++)
    AttentionGradient{g, task / g.forward.n_kv_head, task % g.forward.n_kv_head}.run();
}

}  // namespace nanospec
