// cuda/attention_backward.cuh: the gradient of tree attention on a GPU.
//
// The formulas stand in gradients.cuh. P is computed again from the scores and log_sum, so no array of the size
// rows x keys is written (the portable version there stores P and dS). There are two kernels. For dQ a block holds
// queries and reads the keys; for dK and dV a block holds keys and reads the queries. Every sum has the order of the
// portable version, and so its bits. attention_tile.cuh explains the words and the tiles.
#pragma once

#include "cuda/attention.cuh"
#include "gradients.cuh"

namespace nanospec {

// Keys and values of 32 slots. W columns: the head size rounded up to a multiple of 32. Lanes may run over slots or
// over columns of either array: in both directions neighbours lie in different banks. Columns from D to the next
// multiple of 4 are zero, so that dot products may take four at a time; those beyond are never set.
template <int W>
struct KeyTile {
  float k[W][kTileKeys + 1];
  float v[kTileKeys][W + 1];
};

// Loads 32 slots from `slot` on, with all threads of the block; a thread has up to eight loads at the same time. In one
// turn the 128 threads load 16 columns of all keys, or 16 slots of 32 columns of the values. What lies beyond D is not
// stored; a load there takes the last four of a row.
template <int W>
__device__ __forceinline__ void load_tile(KeyTile<W>& to, const KeyValues<float>& cache, int head, int slot) {
  constexpr int turns = W / 16, few = turns > 4 ? turns / 2 : turns;
  static_assert(kAttentionThreads == 128 && turns % few == 0, "the loads come out even");
  const int D = cache.head_size, quad = threadIdx.x % 8 * 4, step = threadIdx.x / 8;
  ROLLED
  for (int first = 0; first < turns; first += few) {
    float4 k[few], v[few];
    UNROLL
    for (int i = 0; i < few; i++) {
      const int d = step + (first + i) * 16, column = quad + (first + i) / 2 * 32, row = step + (first + i) % 2 * 16;
      k[i] = load_four(cache.key(head, slot + quad, smaller(d, D - 1)));
      v[i] = load_four(cache.value(head, slot + row, smaller(column, pad16(D) - 4)));
    }
    UNROLL
    for (int i = 0; i < few; i++) {
      const int d = step + (first + i) * 16, column = quad + (first + i) / 2 * 32, row = step + (first + i) % 2 * 16;
      UNROLL
      for (int e = 0; e < 4; e++) {
        if (d < D) to.k[d][quad + e] = number_of(k[i], e);
        if (column + e < D) to.v[row][column + e] = number_of(v[i], e);
      }
    }
  }
}
template <int W>
__device__ inline void clear_edge(KeyTile<W>& tile, int D) {
  if (threadIdx.x < kTileKeys)
    for (int d = D; d % 4 != 0; d++) tile.k[d][threadIdx.x] = tile.v[threadIdx.x][d] = 0;
}

template <int W>
constexpr int kBackwardPairs = W > 96 ? 2 : 4;  // pairs of a warp: as many as shared memory has room for

// P (after dropout) and dS of a pair and a key.
struct WeightGradient {
  float p, ds;
};
__device__ __forceinline__ WeightGradient weight_gradient(float score, float dp, float scale, float keep, float log_sum,
                                                          float delta) {
  const float weight = exp(score * scale - log_sum);
  return {weight * keep, weight * (dp * keep - delta) * scale};
}

template <int W>
struct QueriesMemory {
  static constexpr int pairs = kBackwardPairs<W> * kAttentionWarps;
  alignas(16) float q[pairs][W], dout[pairs][W];
  alignas(16) float ds[pairs][kTileKeys];
  KeyTile<W> tile;
  Pair pair[pairs];
};

// Writes the queries' part of dqkv, and delta (R, H) = dO O for the other kernel. Blocks, tiles and bytes are those of
// the forward kernel, with one block for all keys of a row; dO and O are also read, and dQ is written, each once.
// Budget: 112 registers, 42688 bytes shared.
template <int W>
__global__ void __launch_bounds__(kAttentionThreads, kBlocksAtLeast)
    attention_queries_kernel(AttentionBackward<float> b, float* delta) {
  constexpr int P = kBackwardPairs<W>, C = W / kLanes;
  auto& memory = shared<QueriesMemory<W>>();
  const Attention<float>& s = b.forward;
  const Forest& f = s.forest;
  const int lane = threadIdx.x % kLanes, mine = threadIdx.x / kLanes * P, D = s.head_size, kv_head = blockIdx.y;
  const PairTile its = pair_tile(f, s.queries(), P * kAttentionWarps, gridDim.x - 1 - blockIdx.x);
  if (its.count == 0) return;
  const Root root = root_at(f, its.root);

  int row[P], unseen[P];
  float own_delta[P] = {}, log_sum[P] = {};
  Sums<C> dq[P] = {};
  UNROLL
  for (int p = 0; p < P; p++) {
    const Pair pair = pair_of(its, root, kv_head, s.queries(), mine + p);
    row[p] = pair.row;
    unseen[p] = pair.row < 0 ? 0 : s.unseen(pair.row);
    if (lane == 0) memory.pair[mine + p] = pair;
    if (pair.row < 0) continue;
    const size_t at = size_t(pair.row) * s.out_row + pair.head * D;
    const size_t item = size_t(pair.row) * s.n_head + pair.head;
    const float *out = s.out + at, *dout = b.dout + at;
    load_row<W>(memory.q[mine + p], s.qkv + size_t(pair.row) * s.qkv_row + pair.head * D, D);
    load_row<W>(memory.dout[mine + p], dout, D);
    own_delta[p] = Warp{}.sum<float>(D, [=](int d) { return dout[d] * out[d]; });
    log_sum[p] = s.log_sum[item];
    if (lane == 0) delta[item] = own_delta[p];
  }
  clear_edge(memory.tile, D);

  const int last_row = root.first + (its.begin + its.count - 1) / s.queries();
  for (int j = 0; j <= root.past + last_row - root.first; j += kTileKeys) {
    const TileKey key = key_at(f, root, j + lane);
    unsigned seen[P];
    const bool any = seen_keys(seen, row, unseen, key);
    if (!__syncthreads_or(any)) continue;  // it also waits until all are done with the tile before
    load_tile(memory.tile, s.cache, kv_head, root.slot + j);
    __syncthreads();
    if (!any) continue;
    const KeyTile<W>& tile = memory.tile;
    float score[P], dp[P];
    dot<P, W>(score, memory.q + mine, D, [&](int d) { return tile.k[d][lane]; });
    dot<P, W>(dp, memory.dout + mine, D, [&](int d) { return tile.v[lane][d]; });
    ROLLED
    for (int p = 0; p < P; p++) {
      const Pair one = memory.pair[mine + p];
      memory.ds[mine + p][lane] = s.factor(one.row, one.head, key.position);
    }
    UNROLL
    for (int p = 0; p < P; p++) {
      float& ds = memory.ds[mine + p][lane];
      const bool is = seen[p] >> lane & 1;
      ds = is ? weight_gradient(score[p], dp[p], s.scale(), ds, log_sum[p], own_delta[p]).ds : 0.0f;
    }
    __syncwarp();
    add_keys<P, C>(dq, memory.ds + mine, seen, all_whole(seen, row),
                   [&](int k, int i) { return tile.k[i * kLanes + lane][k]; });
    __syncwarp();
  }
  UNROLL
  for (int p = 0; p < P; p++) {
    if (row[p] < 0) continue;
    float* to = b.dqkv + size_t(row[p]) * s.qkv_row + memory.pair[mine + p].head * D;
    UNROLL
    for (int i = 0; i < C; i++)
      if (i * kLanes + lane < D) to[i * kLanes + lane] = dq[p].sum[i];
  }
}

template <int W>
struct KeysMemory {
  static constexpr int pairs = kBackwardPairs<W> * kAttentionWarps;
  alignas(16) float q[pairs][W], dout[pairs][W];
  alignas(16) float p[pairs][kTileKeys], ds[pairs][kTileKeys];
  unsigned seen[pairs];
  KeyTile<W> tile;
};

// Adds into dk and dv of every slot, from q, dO, log_sum and delta of the rows that see it.
//
// Block (tile of 32 slots, key/value head): the keys and values stay in shared memory. The rows that may see one of
// them are read in tiles, head after head. Each warp computes P and dS of its own rows, lanes over slots. Then it adds,
// for its own eight slots, over all rows of the tile, lanes over columns, in registers: 2 shared loads for 8
// multiply-adds. A slot belongs to one block, so no two blocks add to one number. Tiles of rows that see none of the
// slots are not read. Bytes: K, V once, dK, dV read and written once; q and dO once for every 32 slots that their rows
// see (through L2).
// Budget: 160 registers, 43680 bytes shared.
template <int W>
__global__ void __launch_bounds__(kAttentionThreads, kBlocksAtLeast)
    attention_keys_kernel(AttentionBackward<float> b, const float* delta) {
  constexpr int P = kBackwardPairs<W>, C = W / kLanes, rows = P * kAttentionWarps, own = kTileKeys / kAttentionWarps;
  auto& memory = shared<KeysMemory<W>>();
  const Attention<float>& s = b.forward;
  const Forest& f = s.forest;
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes, mine = warp * P, D = s.head_size;
  const int slot = blockIdx.x * kTileKeys, kv_head = blockIdx.y;
  Root root{0, 0, 0, 0};
  for (int r = 0; r < f.roots; r++) {
    const Root one = root_at(f, r);
    if (slot >= one.slot && slot < one.slot + one.past + one.last - one.first) root = one;
  }
  if (root.last == root.first) return;
  const int j = slot - root.slot, real = smaller(kTileKeys, root.past + root.last - root.first - j);
  const TileKey key = key_at(f, root, j + lane);
  const int from = j < root.past ? root.first : root.first + j - root.past;
  int to = smaller(key.to, root.last);
  for (int half = kLanes / 2; half > 0; half /= 2) to = larger(to, __shfl_xor_sync(kEveryLane, to, half));

  load_tile(memory.tile, s.cache, kv_head, slot);
  clear_edge(memory.tile, D);
  float dk[own][C], dv[own][C];
  float *dk_at = b.dk + b.at(kv_head, slot + warp * own), *dv_at = b.dv + b.at(kv_head, slot + warp * own);
  const auto each_own = [&](auto&& act) {
    UNROLL
    for (int k = 0; k < own; k++) UNROLL
    for (int i = 0; i < C; i++)
      act(dk[k][i], dv[k][i], size_t(k) * pad16(D) + i * kLanes + lane, warp * own + k < real && i * kLanes + lane < D);
  };
  each_own([&](float& k, float& v, size_t at, bool exists) {
    k = exists ? dk_at[at] : 0.0f;
    v = exists ? dv_at[at] : 0.0f;
  });

  for (int head = kv_head * s.queries(); head < (kv_head + 1) * s.queries(); head++)
    for (int first = from + mine; first < to + mine; first += rows) {
      int row[P], unseen[P];
      unsigned seen[P];
      UNROLL
      for (int p = 0; p < P; p++) {
        row[p] = first + p < to ? first + p : -1;
        unseen[p] = row[p] < 0 ? 0 : s.unseen(row[p]);
      }
      const bool any = seen_keys(seen, row, unseen, key);
      if (!__syncthreads_or(any)) continue;  // it also waits: for the rows before to be done, for the tile to be there
      UNROLL
      for (int p = 0; p < P; p++) {
        if (lane == 0) memory.seen[mine + p] = seen[p];
        if (!seen[p]) continue;
        load_row<W>(memory.q[mine + p], s.qkv + size_t(row[p]) * s.qkv_row + head * D, D);
        load_row<W>(memory.dout[mine + p], b.dout + size_t(row[p]) * s.out_row + head * D, D);
      }
      __syncwarp();
      if (any) {
        const KeyTile<W>& tile = memory.tile;
        float score[P], dp[P];
        dot<P, W>(score, memory.q + mine, D, [&](int d) { return tile.k[d][lane]; });
        dot<P, W>(dp, memory.dout + mine, D, [&](int d) { return tile.v[lane][d]; });
        ROLLED
        for (int p = 0; p < P; p++) memory.p[mine + p][lane] = s.factor(first + p, head, key.position);
        UNROLL
        for (int p = 0; p < P; p++) {
          WeightGradient g{0, 0};
          if (seen[p] >> lane & 1) {
            const size_t item = size_t(row[p]) * s.n_head + head;
            g = weight_gradient(score[p], dp[p], s.scale(), memory.p[mine + p][lane], s.log_sum[item], delta[item]);
          }
          memory.p[mine + p][lane] = g.p;
          memory.ds[mine + p][lane] = g.ds;
        }
      }
      __syncthreads();
      ROLLED
      for (int r = 0; r < rows; r++) {
        if (!(memory.seen[r] >> (warp * own) & 0xffu)) continue;
        float4 p[own / 4], ds[own / 4];
        UNROLL
        for (int k = 0; k < own / 4; k++) {
          p[k] = *reinterpret_cast<const float4*>(&memory.p[r][warp * own + 4 * k]);
          ds[k] = *reinterpret_cast<const float4*>(&memory.ds[r][warp * own + 4 * k]);
        }
        UNROLL
        for (int i = 0; i < C; i++) {
          const float q = memory.q[r][i * kLanes + lane], dout = memory.dout[r][i * kLanes + lane];
          UNROLL
          for (int k = 0; k < own; k++) {
            dk[k][i] = fused(number_of(ds[k / 4], k % 4), q, dk[k][i]);
            dv[k][i] = fused(number_of(p[k / 4], k % 4), dout, dv[k][i]);
          }
        }
      }
    }
  each_own([&](float& k, float& v, size_t at, bool exists) {
    if (!exists) return;
    dk_at[at] = k;
    dv_at[at] = v;
  });
}

// delta: scratch (R, H).
template <class T>
void attention_backward_cuda(const AttentionBackward<T>& b, T* delta) {
  const Attention<T>& s = b.forward;
  if (s.forest.rows == 0) return;
  with_columns(s.head_size, [&](auto columns) {
    constexpr int W = decltype(columns)::value;
    const int tiles = most_pair_tiles(s.forest, s.queries(), kBackwardPairs<W> * kAttentionWarps);
    start(attention_queries_kernel<W>, dim3(tiles, s.n_kv_head), kAttentionThreads, b, delta);
    start(attention_keys_kernel<W>, dim3(s.cache.slots / kTileKeys, s.n_kv_head), kAttentionThreads, b, delta);
  });
}

}  // namespace nanospec
