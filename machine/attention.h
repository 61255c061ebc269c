// machine/attention.h: tree attention on a CPU: the twin of AttentionForward (kernels.cuh), with the same bits.
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
  const int D = s.head_size, first = s.forest.first_row[root], row = larger(0, first);
  const int n = s.forest.first_row[root + 1] - row, slot = s.forest.past[root] + row - first;
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
  const int first_key = find_first_key();  // a multiple of 64; keys before it are beyond the span of all rows

  int row_of(int pair) const { return row + pair / queries; }
  int head_of(int pair) const { return kv_head * queries + pair % queries; }
  float* weights(int pair) const { return scores + size_t(pair) * stride; }
  bool is_causal() const {
    for (int t = 0; t < rows; t++)
      if (f.depth[row + t] != row + t - first) return false;
    return true;
  }
  int find_first_key() const {
    int least = shared - 1;
    for (int t = 0; t < rows; t++) least = smaller(least, s.unseen(row + t));
    return least / 64 * 64;
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
      for (int k = first_key; k < s.unseen(its_row); k++) p[k] = -Format<float>::kInfinity;
      top[i] = scale * largest_of(whole[i] - first_key, [q = p + first_key](int k) { return load(q + k); });
    }
    for (int i = 0; i < n; i++) {
      float *const p = weights(pair + i), its_top = top[i];
      prefetch_next_head(pair + i);
      p[most] = total[i] = sum_of(whole[i] - first_key, [=, q = p + first_key](int k) {
        const Vec weight = exp(load(q + k) * scale - its_top);
        store(q + k, weight);
        return weight;
      });
    }
    if (s.log_sum) {
      solo.each(n, [&](int i) { top[i] += log(total[i]); });
      for (int i = 0; i < n; i++) s.log_sum[row_of(pair + i) * s.n_head + head_of(pair + i)] = top[i];
    }
    for (int i = 0; i < n && s.dropout.rate > 0; i++) {
      float* const p = weights(pair + i);
      each_factor(s.dropout, s.first_weight(row_of(pair + i), head_of(pair + i)), seen[i],
                  [=](int k, float keep) { p[k] *= keep; });
    }
  }
  // Channels begin .. end - 1 of the outputs, which are multiples of 16. sums: scratch, (pairs, end - begin).
  void attend(int begin, int end, float* sums) const {
    const int n = end - begin;
    const S* v = cache.value(0, first_key, 0) + begin * kTogether<S>;
    product(pairs, n,
            TileArguments<S>{shared - first_key, scores + first_key, stride, 1, v, wide * kTogether<S>,
                             kGroup * kTogether<S>, sums, n, false, past >= kFarPast});
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
  const int KV = s.n_kv_head, wide = pad16(s.head_size), rows = f.rows;
  const int pairs = rows * s.queries(), keys = f.past[0] + rows - f.first_row[0], most = pad64(keys);
  float* const spare = scratch(size_t(pairs) * wide + most / 16);
  int* const ends = reinterpret_cast<int*>(spare + size_t(pairs) * wide);
  ends_of_blocks(f, 0, ends);
  const auto tile = [&](int kv_head) {
    float* const its = scores + size_t(kv_head) * pairs * (most + AttentionTile<S>::kSpare);
    return AttentionTile<S>{s, cache_of(s, 0, kv_head), 0, kv_head, 0, rows, ends, its, most};
  };
  // Calls act(tile, begin, end) with this thread's part of KV times n things.
  const auto share = [&](int n, const auto& act) {
    const Range mine = team.share(KV * n);
    for (int kv_head = mine.begin / n; kv_head * n < mine.end; kv_head++)
      act(tile(kv_head), larger(0, mine.begin - kv_head * n), smaller(n, mine.end - kv_head * n));
  };
  share(1, [&](const auto& t, int, int) { write_cache(s, 0, t.kv_head, t.cache); });
  team.wait();
  share(most / 16, [&](const auto& t, int begin, int end) {
    t.score(larger(t.first_key, begin * 16), smaller(keys, end * 16), spare);
  });
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
  if (shared && f.roots == 1 && s.n_kv_head % team.size != 0 && f.past[0] >= kLongPast && f.rows <= kRowsByKeys)
    return attention_by_keys(team, s, shared);
  const int wide = pad16(s.head_size);
  const Range mine = team.share(f.roots * s.n_kv_head);
  for (int task = mine.begin; task < mine.end; task++) {
    const int root = task / s.n_kv_head, kv_head = task % s.n_kv_head;
    const int first = f.first_row[root], last = f.first_row[root + 1], past = f.past[root];
    const int most = pad64(past + last - first);
    // Rows with a past share reading it. Without a past a small tile computes fewer scores that no row sees.
    const bool alone = past == 0 && first >= 0;
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
    for (int row = larger(0, first); row < last; row += tall) {
      const AttentionTile<S> tile{s, cache, root, kv_head, row, smaller(tall, last - row), ends, scores, most};
      const int next = row + tile.rows;  // the next tile's queries
      const int numbers = s.queries() * s.head_size, column = tile.head_of(0) * s.head_size;
      prefetch_rows(s.qkv + size_t(next) * s.qkv_row + column, s.qkv_row, smaller(tall, last - next), numbers);
      prefetch_rows<true>(s.out + size_t(row) * s.out_row + column, s.out_row, tile.rows, numbers);
      tile.score(tile.first_key, tile.keys, spare);
      tile.weigh(0, tile.pairs);
      tile.attend(0, wide, spare);
    }
  }
}
#ifdef INSTANTIATE  // machine/library.cpp
INSTANTIATE void attention_twin(const Team&, const Attention<float, float>&, float*);
INSTANTIATE void attention_twin(const Team&, const Attention<float, bf16>&, float*);
#endif

}  // namespace nanospec
