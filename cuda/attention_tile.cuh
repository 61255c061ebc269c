// cuda/attention_tile.cuh: what the kernels of tree attention share, forward and backward.
//
// The unit of work is a pair: a row and one of the query heads that share a key/value head. A row's keys lie in its
// root's slots: first the past, then the root's own rows; slot past + i holds row first + i. Slots are read in tiles of
// 32, one to a lane. A row sees the slots of its past and of its ancestors. They come in order of position, one key for
// each position from 0 to the row's own. The cache has a multiple of 64 slots.
//
// In order: roots, who sees a key, pairs; products over the lanes of a tile of keys and values in shared memory.
#pragma once

#include <climits>

#include "cuda/instructions.cuh"
#include "kernels.cuh"

namespace nanospec {

constexpr int kTileKeys = 32;
constexpr int kAttentionWarps = 4, kAttentionThreads = kAttentionWarps * kLanes;
constexpr int kBlocksAtLeast = 3;  // on one SM: so many must fit into its registers

// Rows and slots of one root.
struct Root {
  int first, last, past, slot;  // its rows are first .. last - 1; its slots begin at `slot`
};
__device__ inline Root root_at(const Forest& f, int root) {
  if (f.roots == 1) return {0, f.rows, f.past[0], f.first_slot[0]};  // a decoding step: two loads to wait for, not four
  return {f.first_row[root], f.first_row[root + 1], f.past[root], f.first_slot[root]};
}

// The key in a slot: its position, and the rows that see it, from .. to - 1.
struct TileKey {
  int from, to, position;
  __device__ bool seen_by(int row, int unseen) const { return row >= from && row < to && position >= unseen; }
};
__device__ inline TileKey key_at(const Forest& f, const Root& root, int j) {
  const int row = root.first + j - root.past;
  if (j < root.past) return {0, INT_MAX, j};
  if (row >= root.last) return {0, 0, 0};
  return {row, f.end[row], root.past + f.depth[row]};
}

// The tile-th tile of up to `most` pairs of one root: its pairs begin .. begin + count - 1, row after row, with a row's
// heads side by side. Behind the last tile the count is 0.
struct PairTile {
  int root, begin, count;
};
__device__ inline PairTile pair_tile(const Forest& f, int queries, int most, int tile) {
  if (f.roots == 1) return {0, tile * most, larger(0, smaller(most, f.rows * queries - tile * most))};
  for (int root = 0; root < f.roots; root++) {
    const int pairs = (f.first_row[root + 1] - f.first_row[root]) * queries, tiles = (pairs + most - 1) / most;
    if (tile < tiles) return {root, tile * most, smaller(most, pairs - tile * most)};
    tile -= tiles;
  }
  return {0, 0, 0};
}
inline int most_pair_tiles(const Forest& f, int queries, int most) {
  return smaller(f.rows * queries, (f.rows * queries + most - 1) / most + f.roots - 1);
}

// The i-th pair of a tile. If the tile has no such pair its row is -1, which sees nothing.
struct Pair {
  int row, head;
};
__device__ inline Pair pair_of(const PairTile& tile, const Root& root, int kv_head, int queries, int i) {
  const int at = tile.begin + i;
  return {i < tile.count ? root.first + at / queries : -1, kv_head * queries + at % queries};
}

// Copies one head of a row (D) into shared memory (W), by a warp.
template <int W>
__device__ inline void load_row(float* to, const float* from, int D) {
  UNROLL
  for (int i = 0; i < W / kLanes; i++) {
    const int d = i * kLanes + threadIdx.x % kLanes;
    to[d] = d < D ? from[d] : 0.0f;
  }
}

// sum[p] = x[p] (D) times the column of this lane, number(d): one serial sum over d, as in the portable version.
template <int P, int W, int kSteps = 1, class F>
__device__ __forceinline__ void dot(float (&sum)[P], const float (*x)[W], int D, F number) {
  UNROLL
  for (int p = 0; p < P; p++) sum[p] = 0;
  UNROLL_STEPS
  for (int d = 0; d < D; d += 4) {
    float4 four[P];
    UNROLL
    for (int p = 0; p < P; p++) four[p] = *reinterpret_cast<const float4*>(&x[p][d]);
    UNROLL
    for (int e = 0; e < 4; e++) {
      const float y = number(d + e);
      UNROLL
      for (int p = 0; p < P; p++) sum[p] = fused(number_of(four[p], e), y, sum[p]);
    }
  }
}

// sum[i] belongs to column 32 i + lane.
template <int C>
struct Sums {
  float sum[C];
};
// to[p].sum[i] += weight[p][key] number(key, i) over the keys in run[p], a bit each, in ascending order. Keys outside a
// run are not added: they may be NaN. `whole`: the runs of all pairs that exist have all keys.
template <int P, int C, int kSteps = 1, class To, class F>
__device__ __forceinline__ void add_keys(To (&to)[P], const float (*weight)[kTileKeys], const unsigned (&run)[P],
                                         bool whole, F number) {
  if (whole) {
    UNROLL_STEPS
    for (int key = 0; key < kTileKeys; key += 4) {
      float4 four[P];
      UNROLL
      for (int p = 0; p < P; p++) four[p] = *reinterpret_cast<const float4*>(&weight[p][key]);
      UNROLL
      for (int e = 0; e < 4; e++) UNROLL
      for (int i = 0; i < C; i++) {
        const float y = number(key + e, i);
        UNROLL
        for (int p = 0; p < P; p++) to[p].sum[i] = fused(number_of(four[p], e), y, to[p].sum[i]);
      }
    }
    return;
  }
  unsigned keys = 0;
  UNROLL
  for (int p = 0; p < P; p++) keys |= run[p];
  for (; keys; keys &= keys - 1) {
    const int key = __ffs(keys) - 1;
    float y[C];
    UNROLL
    for (int i = 0; i < C; i++) y[i] = number(key, i);
    UNROLL
    for (int p = 0; p < P; p++) {
      if (!(run[p] >> key & 1)) continue;
      UNROLL
      for (int i = 0; i < C; i++) to[p].sum[i] = fused(weight[p][key], y[i], to[p].sum[i]);
    }
  }
}

// seen[p]: which of the tile's keys pair p of the warp sees, a bit each; unseen[p]: Attention::unseen of its row.
// Returns whether any is seen.
template <int P>
__device__ __forceinline__ bool seen_keys(unsigned (&seen)[P], const int (&row)[P], const int (&unseen)[P],
                                          const TileKey& key) {
  unsigned any = 0;
  UNROLL
  for (int p = 0; p < P; p++) any |= seen[p] = __ballot_sync(kEveryLane, key.seen_by(row[p], unseen[p]));
  return any != 0;
}
template <int P>
__device__ __forceinline__ bool all_whole(const unsigned (&run)[P], const int (&row)[P]) {
  bool whole = true;
  UNROLL
  for (int p = 0; p < P; p++) whole = whole && (run[p] == kEveryLane || row[p] < 0);
  return whole;
}

// Calls f with a constant: the head size rounded up to 32, 64, 96 or 128 columns. Throws std::runtime_error above 128.
template <int W = kLanes, class F>
void with_columns(int head_size, F&& f) {
  if constexpr (W > 4 * kLanes)
    throw std::runtime_error("heads of " + std::to_string(head_size) +
                             " channels: the CUDA attention takes up to 128: use --device cpu, or more heads");
  else if (head_size <= W) f(std::integral_constant<int, W>());
  else with_columns<W + kLanes>(head_size, f);
}

}  // namespace nanospec
