// cuda/attention.cuh: tree attention on a GPU; its gradient is in attention_backward.cuh.
//
// Version 1 is plain_attention in kernels.cuh: a warp for each row and head, keys read again by each of them.
// Version 2, here, is flash style (Dao et al. 2022): tiles of keys and values go through shared memory, once for all
// rows of a block, and a score lives in a register. Words and tiles are those of attention_tile.cuh.
//
// What a row computes, key by key in order of position, score s, value v, in chunks of 64 positions, each from empty:
//   where s > m + 8:  c = exp(m - s), l = l c, acc = acc c, m = s        (m, l, acc: empty is -most, 0, 0)
//   p = exp(s - m),  l = l + p,  acc = acc + p v
// It is the online softmax of Milakov and Gimelshein 2018, but for the 8: m need not be the largest score, only near
// it, so most keys after a chunk's first leave it alone. Chunks are joined in ascending order:
//   t = max(M, m), a = exp(M - t), b = exp(m - t):  M = t, L = L a + l b, Acc = Acc a + acc b
// and out = Acc / L. Nothing here knows of tiles, slots or other rows: a node of a tree has the bits of its path
// decoded one token at a time, whatever shares the launch, and whichever block does a chunk.
#pragma once

#include "cuda/attention_tile.cuh"

namespace nanospec {

constexpr int kChunkKeys = 64;
constexpr float kSlack = 8;  // exp(8) is 2,981: far from a float's end
constexpr float kNoScore = -Format<float>::kMost;
constexpr int kWarpPairs = 4, kBlockPairs = kWarpPairs * kAttentionWarps;
constexpr int kFewBlocks = 128;  // so many, or fewer, leave a GPU idle: the chunks become blocks of their own

// The state of one pair; every lane of its warp has m and l.
template <int C>
struct Softmax : Sums<C> {
  float m, l;
  __device__ void clear() {
    m = kNoScore, l = 0;
    UNROLL
    for (int i = 0; i < C; i++) this->sum[i] = 0;
  }
  __device__ void raise(float score) {
    const float c = exp(m - score);
    m = score, l *= c;
    UNROLL
    for (int i = 0; i < C; i++) this->sum[i] *= c;
  }
  __device__ void join(const Softmax& next) {
    const float top = larger(m, next.m), a = exp(m - top), b = exp(next.m - top);
    m = top, l = fused(next.l, b, l * a);
    UNROLL
    for (int i = 0; i < C; i++) this->sum[i] = fused(next.sum[i], b, this->sum[i] * a);
  }
};

// Where blocks leave their chunks' states for the last of them to join; null where a block does all chunks itself.
struct AttentionScratch {
  unsigned* arrived;  // (kFewBlocks) blocks that came, of each (tile of pairs, key/value head); 0 between launches
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

// What a block was given, and its place among the others.
struct ForwardBlock {
  PairTile tile;
  Root root;
  int kv_head, chunks;  // that the deepest of its rows sees
};

// One tile of keys for one warp's pairs: scores, weights, sums. `part` is the chunk under way, chunk[p], and `total`
// what came before it. A run is a stretch of a pair's keys under one m of one chunk: mostly the whole tile.
template <class S, int W>
__device__ __forceinline__ void attend(const Attention<float, S>& s, ForwardMemory<W>& memory, const Sight& key,
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
        if (!run[p]) {  // the pair's keys go on in the next chunk
          total[p].join(part[p]);
          part[p].clear();
          chunk[p]++;
          run[p] = seen[p] & __ballot_sync(kEveryLane, key.position / kChunkKeys == chunk[p]);
        }
        const float first = __shfl_sync(kEveryLane, x, __ffs(run[p]) - 1);
        if (first > part[p].m + kSlack) part[p].raise(first);
        const unsigned higher = run[p] & __ballot_sync(kEveryLane, x > part[p].m + kSlack);
        if (higher) run[p] &= (higher & (0u - higher)) - 1;  // up to the next rise
        seen[p] &= ~run[p];
        more = more || seen[p];
      }
      weight[p][lane] = run[p] >> lane & 1 ? exp(x - part[p].m) : 0.0f;
    }
    __syncwarp();

    // l, in order: lane i adds those of pair i % 4, and shows the others.
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

// What another block wrote in this launch: past the cache of this SM, which may know an older state.
__device__ __forceinline__ float load_fresh(const float* at) {
#ifdef __CUDACC__
  return __ldcg(at);
#else
  return *at;
#endif
}

// Leaves the warp's states of one chunk; the block that comes last joins all chunks of the tile, in order.
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
    if (lane == 0) to[D] = part[p].m, to[D + 1] = part[p].l;
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
    for (int c = 0; c < chunks; c += batch) {  // several loads under way
      Softmax<C> next[batch];
      UNROLL
      for (int b = 0; b < batch; b++) {
        const float* from = state_of(smaller(c + b, chunks - 1), p);
        UNROLL
        for (int i = 0; i < C; i++) next[b].sum[i] = i * kLanes + lane < D ? load_fresh(from + i * kLanes + lane) : 0;
        next[b].m = load_fresh(from + D), next[b].l = load_fresh(from + D + 1);
      }
      UNROLL
      for (int b = 0; b < batch; b++)
        if (c + b < chunks) total.join(next[b]);
    }
    write_out(s, pair, total);
  }
}

// out, log_sum of all pairs, from the queries in qkv and the cache, the pass's own keys and values already in it.
//
// Block (tile of 16 pairs of one root, key/value head, chunk): four warps of four pairs. The block's threads bring in
// 32 slots; then each warp scores them, lanes over slots, and adds their values, lanes over columns: 2 shared loads for
// 4 multiply-adds. Tiles of slots that none of its rows sees are not read. With few tiles of pairs (decoding) a block
// does one chunk, and the last to come joins them, else (prefill, training) one block does all chunks in turn: the bits
// are the same. The grid is that of a full cache, since a graph replays it: blocks without keys leave at once.
//
// Bytes: each block reads q, and the K and V that its rows see, once: the least, where 16 pairs are all that share
// them, else once for every 16 pairs (the next block finds them in L2). A chunk's state, written and read, is
// 2 (D + 2) floats a pair, for 64 positions of 2 D numbers: 2% of those (3% where they are bf16).
// Budget: 128 registers, 43792 bytes shared.
template <class S, int W>
__global__ void __launch_bounds__(kAttentionThreads, kBlocksAtLeast)
    attention_kernel(Attention<float, S> s, AttentionScratch scratch) {
  constexpr int C = W / kLanes;
  auto& memory = shared<ForwardMemory<W>>();
  const Forest& f = s.forest;
  const int lane = threadIdx.x % kLanes, mine = threadIdx.x / kLanes * kWarpPairs, D = s.head_size;
  const bool split = scratch.states != nullptr;

  ForwardBlock block;  // the last rows see most, so they begin
  block.tile = pair_tile(f, s.queries(), kBlockPairs, gridDim.x - 1 - blockIdx.x);
  if (block.tile.count == 0) return;
  block.root = root_at(f, block.tile.root), block.kv_head = blockIdx.y;
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
    row[p] = pair.row, chunk[p] = first_chunk;
    part[p].clear(), total[p].clear();
    if (lane == 0) memory.pair[mine + p] = pair;
    if (pair.row >= 0) load_row<W>(memory.q[mine + p], s.qkv + size_t(pair.row) * s.qkv_row + pair.head * D, D);
  }
  clear_edge(memory.tile, D);

  // A key's position is at most its slot: a chunk's keys begin at its first position, and end there where all is past.
  const int end =
      last_chunk * kChunkKeys <= root.past ? last_chunk * kChunkKeys : root.past + last_row - root.first + 1;
  for (int j = first_chunk * kChunkKeys; j < end; j += kTileKeys) {
    Sight key = sight(f, root, j + lane);
    const int its_chunk = key.position / kChunkKeys;
    if (its_chunk < first_chunk || its_chunk >= last_chunk) key.to = 0;
    unsigned seen[kWarpPairs];
    const bool any = look(seen, row, key);
    if (!__syncthreads_or(any)) continue;  // and everyone is done with the tile before
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

// Floats of scratch that let a pass of up to `rows` rows split its chunks over blocks.
inline size_t attention_scratch(int rows, int n_head, int head_size, int slots) {
  const size_t blocks = smaller(size_t(kFewBlocks), size_t(rows) * n_head), chunks = slots / kChunkKeys;
  return kFewBlocks + blocks * chunks * kBlockPairs * (head_size + 2);
}

// scratch: attention_scratch() floats that were zero before the first launch, or null: then no chunks are split.
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
