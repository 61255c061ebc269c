// cuda/attention.cuh: tree attention on a GPU; its gradient is in attention_backward.cuh.
//
// Version 1 is plain_attention in kernels.cuh: a warp for each row and head, each of which reads all keys.
// Version 2, here, is as FlashAttention (Dao et al. 2022): tiles of keys and values are copied into shared memory once
// for all rows of a block, and scores stay in registers. attention_tile.cuh explains the words and the tiles.
//
// A row takes its keys in order of position, in chunks of 64 positions. Each chunk starts with m = -most, l = 0,
// acc = 0. For each key, with score s and value v:
//   if s > m + 8:  c = exp(m - s), l = l c, acc = acc c, m = s
//   p = exp(s - m),  l = l + p,  acc = acc + p v
// This is the online softmax (Milakov, Gimelshein 2018), except for the 8: m need not be the largest score, only near
// it, so most keys do not change m. Chunks are joined in ascending order:
//   t = max(M, m), a = exp(M - t), b = exp(m - t):  M = t, L = L a + l b, Acc = Acc a + acc b
// Then out = Acc / L. The result depends on no tile, slot or other row: a node of a tree has the bits of its path
// decoded one token at a time, whatever else the launch computes, and whichever block computes a chunk.
#pragma once

#include "cuda/attention_tile.cuh"

namespace nanospec {

constexpr int kChunkKeys = 64;
constexpr float kSlack = 8;  // exp(8) is 2,981: far from overflow
constexpr float kNoScore = -Format<float>::kMost;
constexpr int kWarpPairs = 4, kBlockPairs = kWarpPairs * kAttentionWarps;
constexpr int kFewBlocks = 128;  // so few blocks do not fill a GPU: then each chunk becomes a block

// The state of one pair. All lanes of the warp have the same m and l.
template <int C>
struct Softmax : Sums<C> {
  float m, l;
  __device__ void clear() {
    m = kNoScore;
    l = 0;
    UNROLL
    for (int i = 0; i < C; i++) this->sum[i] = 0;
  }
  __device__ void raise(float score) {
    const float c = exp(m - score);
    m = score;
    l *= c;
    UNROLL
    for (int i = 0; i < C; i++) this->sum[i] *= c;
  }
  __device__ void join(const Softmax& next) {
    const float top = larger(m, next.m), a = exp(m - top), b = exp(next.m - top);
    m = top;
    l = fused(next.l, b, l * a);
    UNROLL
    for (int i = 0; i < C; i++) this->sum[i] = fused(next.sum[i], b, this->sum[i] * a);
  }
};

// Here blocks write the states of their chunks, which the last block joins. Null where a block computes all chunks.
struct AttentionScratch {
  unsigned* arrived;  // (kFewBlocks) how many blocks of a (tile of pairs, key/value head) are done; 0 between launches
  float* states;      // (tiles * heads, chunks, kBlockPairs, D + 2): sums, m, l
};

template <int W>
struct ForwardMemory {
  alignas(16) float q[kBlockPairs][W];
  alignas(16) float weight[kBlockPairs][kTileKeys];
  KeyTile<W> tile;
  Pair pair[kBlockPairs];
  bool last;
};

// The work of a block.
struct ForwardBlock {
  PairTile tile;
  Root root;
  int kv_head, chunks;  // chunks: as many as the deepest of its rows sees
};

// Computes scores, weights and sums of one tile of keys for one warp's pairs. `part` is the state of the current chunk,
// chunk[p]; `total` is the state of the chunks before. A run is a set of a pair's keys in one chunk that have the same
// m: mostly the whole tile.
template <class S, int W>
__device__ __forceinline__ void attend(const Attention<float, S>& s, ForwardMemory<W>& memory, const TileKey& key,
                                       const int (&row)[kWarpPairs], unsigned (&seen)[kWarpPairs],
                                       int (&chunk)[kWarpPairs], Softmax<W / kLanes> (&part)[kWarpPairs],
                                       Softmax<W / kLanes> (&total)[kWarpPairs]) {
  const int lane = threadIdx.x % kLanes, mine = threadIdx.x / kLanes * kWarpPairs;
  const KeyTile<W>& tile = memory.tile;
  float(*weight)[kTileKeys] = memory.weight + mine;
  float score[kWarpPairs];
  dot<kWarpPairs, W>(score, memory.q + mine, s.head_size, [&](int d) { return tile.k[d][lane]; });
  const float scale = s.scale();
  for (bool more = true; more;) {
    unsigned run[kWarpPairs];
    more = false;
    UNROLL
    for (int p = 0; p < kWarpPairs; p++) {
      const float x = score[p] * scale;
      run[p] = 0;
      if (seen[p]) {
        run[p] = seen[p] & __ballot_sync(kEveryLane, key.position / kChunkKeys == chunk[p]);
        if (!run[p]) {  // the pair's next key is in the next chunk
          total[p].join(part[p]);
          part[p].clear();
          chunk[p]++;
          run[p] = seen[p] & __ballot_sync(kEveryLane, key.position / kChunkKeys == chunk[p]);
        }
        const float first = __shfl_sync(kEveryLane, x, __ffs(run[p]) - 1);
        if (first > part[p].m + kSlack) part[p].raise(first);
        const unsigned higher = run[p] & __ballot_sync(kEveryLane, x > part[p].m + kSlack);
        if (higher) run[p] &= (higher & (0u - higher)) - 1;  // the keys before the one that changes m
        seen[p] &= ~run[p];
        more = more || seen[p];
      }
      weight[p][lane] = run[p] >> lane & 1 ? exp(x - part[p].m) : 0.0f;
    }
    __syncwarp();

    // l: lane i adds the weights of pair i % 4, in order; then all lanes get the sums of all pairs.
    float l = part[0].l;
    UNROLL
    for (int p = 1; p < kWarpPairs; p++) l = choose(lane % kWarpPairs == p, part[p].l, l);
    ROLLED
    for (int k = 0; k < kTileKeys; k += 4) {
      const float4 four = *reinterpret_cast<const float4*>(&weight[lane % kWarpPairs][k]);
      l = l + four.x + four.y + four.z + four.w;
    }
    UNROLL
    for (int p = 0; p < kWarpPairs; p++) part[p].l = __shfl_sync(kEveryLane, l, p);

    if (s.dropout.rate > 0) {
      __syncwarp();  // the other lanes have read the weights: a shuffle orders no memory
      ROLLED
      for (int p = 0; p < kWarpPairs; p++) {
        const Pair one = memory.pair[mine + p];
        weight[p][lane] *= s.keep(one.row, one.head, key.position);
      }
      __syncwarp();
    }
    add_keys<kWarpPairs, W / kLanes>(part, weight, run, all_whole(run, row),
                                     [&](int k, int i) { return tile.v[k][i * kLanes + lane]; });
    __syncwarp();
  }
}

template <class S, int C>
__device__ void write_out(const Attention<float, S>& s, const Pair& pair, const Softmax<C>& total) {
  const int lane = threadIdx.x % kLanes;
  float* out = s.out + size_t(pair.row) * s.out_row + pair.head * s.head_size;
  UNROLL
  for (int i = 0; i < C; i++)
    if (i * kLanes + lane < s.head_size) out[i * kLanes + lane] = total.sum[i] / total.l + 0.0f;  // a zero has one sign
  if (s.log_sum && lane == 0) s.log_sum[size_t(pair.row) * s.n_head + pair.head] = total.m + log(total.l);
}

// Loads what another block wrote in this launch. It bypasses L1, which may hold an older state.
__device__ __forceinline__ float load_fresh(const float* at) {
#ifdef __CUDACC__
  return __ldcg(at);
#else
  return *at;
#endif
}

// Writes the warp's states of one chunk. The block that is done last joins all chunks of the tile, in order.
template <class S, int W>
__device__ __forceinline__ void share_chunk(const Attention<float, S>& s, const AttentionScratch& scratch,
                                            ForwardMemory<W>& memory, const ForwardBlock& block,
                                            const Softmax<W / kLanes> (&part)[kWarpPairs], int chunk) {
  constexpr int C = W / kLanes, batch = 4;
  const int lane = threadIdx.x % kLanes, mine = threadIdx.x / kLanes * kWarpPairs, D = s.head_size;
  const int place = blockIdx.x * gridDim.y + blockIdx.y;
  float* states = scratch.states + size_t(place) * gridDim.z * kBlockPairs * (D + 2);
  const auto state_of = [&](int c, int p) { return states + (size_t(c) * kBlockPairs + mine + p) * (D + 2); };
  UNROLL
  for (int p = 0; p < kWarpPairs; p++) {
    if (mine + p >= block.tile.count) continue;
    float* to = state_of(chunk, p);
    UNROLL
    for (int i = 0; i < C; i++)
      if (i * kLanes + lane < D) to[i * kLanes + lane] = part[p].sum[i];
    if (lane == 0) {
      to[D] = part[p].m;
      to[D + 1] = part[p].l;
    }
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    memory.last = atomicAdd(&scratch.arrived[place], 1u) + 1 == unsigned(block.chunks);
    if (memory.last) scratch.arrived[place] = 0;
  }
  __syncthreads();
  if (!memory.last) return;
  __threadfence();
  for (int p = 0; p < kWarpPairs && mine + p < block.tile.count; p++) {
    const Pair pair = memory.pair[mine + p];
    const int chunks = s.forest.position(pair.row) / kChunkKeys + 1;
    Softmax<C> total;
    total.clear();
    for (int c = 0; c < chunks; c += batch) {  // several loads at the same time
      Softmax<C> next[batch];
      UNROLL
      for (int b = 0; b < batch; b++) {
        const float* from = state_of(smaller(c + b, chunks - 1), p);
        UNROLL
        for (int i = 0; i < C; i++) next[b].sum[i] = i * kLanes + lane < D ? load_fresh(from + i * kLanes + lane) : 0;
        next[b].m = load_fresh(from + D);
        next[b].l = load_fresh(from + D + 1);
      }
      UNROLL
      for (int b = 0; b < batch; b++)
        if (c + b < chunks) total.join(next[b]);
    }
    write_out(s, pair, total);
  }
}

// Writes out and log_sum of all pairs, from the queries in qkv and the keys and values in the cache, the rows' own
// among them.
//
// Block (tile of 16 pairs of one root, key/value head, chunk): four warps of four pairs. The block's threads load 32
// slots. Then each warp computes their scores, lanes over slots, and adds their values, lanes over columns: 2 shared
// loads for 4 multiply-adds. Tiles of slots that none of its rows sees are not read. With few tiles of pairs (decoding)
// a block computes one chunk, and the last block joins them. Else (prefill, training) one block computes all chunks in
// turn. The bits are the same. The grid is that of a full cache, since a graph replays it: blocks without keys return
// at once.
//
// Bytes: each block reads q, and the K and V that its rows see, once. If no more than 16 pairs share them this is the
// least possible; else they are read once for every 16 pairs (the next block finds them in L2). The state of a chunk,
// written and read, is 2 (D + 2) floats a pair, for 64 positions of 2 D numbers: 2% of those (3% in bf16).
// Budget: 128 registers, 43792 bytes shared.
template <class S, int W>
__global__ void __launch_bounds__(kAttentionThreads, kBlocksAtLeast)
    attention_kernel(Attention<float, S> s, AttentionScratch scratch) {
  constexpr int C = W / kLanes;
  auto& memory = shared<ForwardMemory<W>>();
  const Forest& f = s.forest;
  const int lane = threadIdx.x % kLanes, mine = threadIdx.x / kLanes * kWarpPairs, D = s.head_size;
  const bool split = scratch.states != nullptr;

  ForwardBlock block;  // the first blocks take the last rows, which see most keys
  block.tile = pair_tile(f, s.queries(), kBlockPairs, gridDim.x - 1 - blockIdx.x);
  if (block.tile.count == 0) return;
  block.root = root_at(f, block.tile.root);
  block.kv_head = blockIdx.y;
  const Root& root = block.root;
  const int first_row = root.first + block.tile.begin / s.queries();
  const int last_row = root.first + (block.tile.begin + block.tile.count - 1) / s.queries();
  int depth = 0;
  for (int row = first_row; row <= last_row; row++) depth = larger(depth, f.depth[row]);
  block.chunks = (root.past + depth) / kChunkKeys + 1;
  const int first_chunk = split ? blockIdx.z : 0, last_chunk = split ? first_chunk + 1 : block.chunks;
  if (first_chunk >= block.chunks) return;

  int row[kWarpPairs], chunk[kWarpPairs];
  Softmax<C> part[kWarpPairs], total[kWarpPairs];
  UNROLL
  for (int p = 0; p < kWarpPairs; p++) {
    const Pair pair = pair_of(block.tile, root, block.kv_head, s.queries(), mine + p);
    row[p] = pair.row;
    chunk[p] = first_chunk;
    part[p].clear();
    total[p].clear();
    if (lane == 0) memory.pair[mine + p] = pair;
    if (pair.row >= 0) load_row<W>(memory.q[mine + p], s.qkv + size_t(pair.row) * s.qkv_row + pair.head * D, D);
  }
  clear_edge(memory.tile, D);

  // A key's position is at most its slot, and equal to it in the past. So a chunk's keys begin at the slot of its first
  // position; if the whole chunk is past, they end with the slot of its last one.
  const int end =
      last_chunk * kChunkKeys <= root.past ? last_chunk * kChunkKeys : root.past + last_row - root.first + 1;
  for (int j = first_chunk * kChunkKeys; j < end; j += kTileKeys) {
    TileKey key = key_at(f, root, j + lane);
    const int its_chunk = key.position / kChunkKeys;
    if (its_chunk < first_chunk || its_chunk >= last_chunk) key.to = 0;
    unsigned seen[kWarpPairs];
    const bool any = seen_keys(seen, row, key);
    if (!__syncthreads_or(any)) continue;  // it also waits until all are done with the tile before
    load_tile(memory.tile, s.cache, block.kv_head, root.slot + j);
    __syncthreads();
    if (any) attend<S, W>(s, memory, key, row, seen, chunk, part, total);
  }

  if (split && block.chunks > 1) {
    share_chunk<S, W>(s, scratch, memory, block, part, first_chunk);
    return;
  }
  UNROLL
  for (int p = 0; p < kWarpPairs; p++) {
    if (row[p] < 0) continue;
    total[p].join(part[p]);
    write_out(s, memory.pair[mine + p], total[p]);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// The launch

// How many floats of scratch a batch of up to `rows` rows needs to split its chunks over blocks.
inline size_t attention_scratch(int rows, int n_head, int head_size, int slots) {
  const size_t blocks = smaller(size_t(kFewBlocks), size_t(rows) * n_head), chunks = slots / kChunkKeys;
  return kFewBlocks + blocks * chunks * kBlockPairs * (head_size + 2);
}

// scratch: attention_scratch() floats that were zero before the first launch. Null: chunks are not split over blocks.
template <class S>
void attention_cuda(const Attention<float, S>& s, float* scratch) {
  if (s.forest.rows == 0) return;
  const int tiles = most_pair_tiles(s.forest, s.queries(), kBlockPairs), chunks = s.cache.slots / kChunkKeys;
  AttentionScratch split{nullptr, nullptr};
  if (scratch && chunks > 1 && tiles * s.n_kv_head <= kFewBlocks)
    split = {reinterpret_cast<unsigned*>(scratch), scratch + kFewBlocks};
  const dim3 grid(tiles, s.n_kv_head, split.states ? chunks : 1);
  with_columns(s.head_size, [&](auto columns) {
    start(attention_kernel<S, decltype(columns)::value>, grid, kAttentionThreads, s, split);
  });
}

}  // namespace nanospec
