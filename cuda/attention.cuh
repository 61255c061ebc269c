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
#include "cuda/instructions.cuh"

namespace nanospec {

constexpr int kChunkKeys = 64;
constexpr float kSlack = 8;  // exp(8) is 2,981: far from overflow
constexpr float kNoScore = -Format<float>::kMost;
constexpr int kWarpPairs = 4;    // at most
constexpr int kFewBlocks = 128;  // so few blocks do not fill a GPU: then each chunk becomes a block

// The state of one pair. All lanes of the warp have the same m and l.
template <int C>
struct Softmax : Sums<C> {
  float m, l;
  __device__ void clear() { *this = {{}, kNoScore, 0}; }
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
    add(a, b, next.l, next);
  }
  // The sums become a times themselves plus b times the next ones.
  __device__ void add(float a, float b, float next_l, const Sums<C>& next) {
    l = fused(next_l, b, l * a);
    UNROLL
    for (int i = 0; i < C; i++) this->sum[i] = fused(next.sum[i], b, this->sum[i] * a);
  }
};

// Keys and values of 32 slots, byte for byte as the cache has them (KeyValues): so they are copied asynchronously, and
// no register waits for them. A word is one float, or two bf16 of which the first is the lower half.
//   k: (2, D / N, 16) words: sixteen slots each, a word between N columns; + 16: the halves lie in different banks
//   v: (32 / N, pad16(D)) words
// Columns of k from D to the next multiple of 4 are zero, so that dot products may take four at a time; that beside an
// odd D in bf16 is zero in the cache (KeyValues). Sums over columns of v beyond D are thrown away.
template <class S, int W>
struct ForwardTile {
  static constexpr int N = kTogether<S>;
  alignas(16) float k[2][W / N * 16 + 16];
  alignas(16) float v[kTileKeys / N * W];

  static __device__ float number(float word, int n) {
    if (N == 1) return word;
    const uint32_t bits = bits_as<uint32_t>(word);
    return bits_as<float>(n == 0 ? bits << 16 : bits & 0xffff0000u);
  }
  __device__ float key(int slot, int d) const { return number(k[slot / 16][d / N * 16 + slot % 16], d % N); }
  __device__ float value(int slot, int column, int stride) const {  // stride: pad16(D)
    return number(v[slot / N * stride + column], slot % N);
  }
  // By all threads of the block: starts to copy the 32 slots from `slot` on.
  __device__ void start(const KeyValues<S>& cache, int head, int slot) {
    const int D = cache.head_size, keys = (D + N - 1) / N * 4, values = kTileKeys / N * pad16(D) / 4;
    for (int half = 0; half < 2; half++) {
      const float* const from = reinterpret_cast<const float*>(cache.key(head, slot + half * 16, 0));
      for (int i = threadIdx.x; i < keys; i += kAttentionThreads)
        start_copy(reinterpret_cast<float4*>(&k[half][i * 4]), from + i * 4, 16);
    }
    const float* const from = reinterpret_cast<const float*>(cache.value(head, slot, 0));
    for (int i = threadIdx.x; i < values; i += kAttentionThreads)
      start_copy(reinterpret_cast<float4*>(&v[i * 4]), from + i * 4, 16);
  }
  __device__ void clear_edge(int D) {
    const int slot = threadIdx.x;
    for (int word = (D + N - 1) / N; slot < kTileKeys && word * N < (D + 3) / 4 * 4; word++)
      k[slot / 16][word * 16 + slot % 16] = 0;
  }
};

// P: pairs of a warp. A block has four times as many.
template <int P>
constexpr int kBlockPairs = P* kAttentionWarps;

// Here blocks write the states of their chunks, which the last block joins. Null where a block computes all chunks.
struct AttentionScratch {
  unsigned* arrived;  // (kFewBlocks) how many blocks of a (tile of pairs, key/value head) are done; 0 between launches
  float* states;      // (tiles * heads, chunks, pairs of a block, D + 2): sums, m, l
};

// What a warp's lanes tell each other while they join chunks: of each pair and chunk, 32 chunks at a time.
template <int P>
struct JoinMemory {
  alignas(16) float a[kBlockPairs<P>][kLanes];
  alignas(16) float b[kBlockPairs<P>][kLanes];
  alignas(16) float l[kBlockPairs<P>][kLanes];
};

// While one tile is used the next is copied, where shared memory has room for two.
template <class S, int W, int P>
struct ForwardMemory {
  static constexpr int kTiles = 2 * sizeof(ForwardTile<S, W>) <= 36 << 10 ? 2 : 1;
  alignas(16) float q[kBlockPairs<P>][W];
  alignas(16) float weight[kBlockPairs<P>][kTileKeys];
  union {
    ForwardTile<S, W> tile[kTiles];
    JoinMemory<P> join;  // when all tiles are done
  };
  Pair pair[kBlockPairs<P>];
  bool last;
};

// Computes scores, weights and sums of one tile of keys for one warp's pairs. `part` is the state of the current chunk,
// chunk[p]; `total` is the state of the chunks before. A run is a set of a pair's keys in one chunk that have the same
// m: mostly the whole tile.
template <class S, int W, int P>
__device__ __forceinline__ void attend(const Attention<float, S>& s, ForwardMemory<S, W, P>& memory,
                                       const ForwardTile<S, W>& tile, const TileKey& key, const int (&row)[P],
                                       unsigned (&seen)[P], int (&chunk)[P], Softmax<W / kLanes> (&part)[P],
                                       Softmax<W / kLanes> (&total)[P]) {
  const int lane = threadIdx.x % kLanes, mine = threadIdx.x / kLanes * P, stride = pad16(s.head_size);
  float(*weight)[kTileKeys] = memory.weight + mine;
  constexpr int kSteps = 4;
  float score[P];
  dot<P, W, kSteps>(score, memory.q + mine, s.head_size, [&](int d) { return tile.key(lane, d); });
  const float scale = s.scale();
  for (bool more = true; more;) {
    unsigned run[P];
    more = false;
    UNROLL
    for (int p = 0; p < P; p++) {
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

    // l: lane i adds the weights of pair i % P, in order; then all lanes get the sums of all pairs.
    float l = part[0].l;
    UNROLL
    for (int p = 1; p < P; p++) l = choose(lane % P == p, part[p].l, l);
    UNROLL_STEPS
    for (int k = 0; k < kTileKeys; k += 4) {
      const float4 four = *reinterpret_cast<const float4*>(&weight[lane % P][k]);
      l = l + four.x + four.y + four.z + four.w;
    }
    UNROLL
    for (int p = 0; p < P; p++) part[p].l = __shfl_sync(kEveryLane, l, p);

    if (s.dropout.rate > 0) {
      __syncwarp();  // the other lanes have read the weights: a shuffle orders no memory
      ROLLED
      for (int p = 0; p < P; p++) {
        const Pair one = memory.pair[mine + p];
        weight[p][lane] *= s.factor(one.row, one.head, key.position);
      }
      __syncwarp();
    }
    add_keys<P, W / kLanes, kSteps>(part, weight, run, all_whole(run, row),
                                    [&](int k, int i) { return tile.value(k, i * kLanes + lane, stride); });
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

// Of 32 chunks of each of a warp's pairs, one a lane, with its m and l: the factors a and b of all of them at once,
// from the largest m up to each. total[p].m becomes the largest of all.
template <int C, int P>
__device__ __forceinline__ void weigh_chunks(Softmax<C> (&total)[P], const float (&m)[P], const float (&l)[P],
                                             JoinMemory<P>& board, int mine) {
  const int lane = threadIdx.x % kLanes;
  __syncwarp();  // all have read what is overwritten now
  UNROLL
  for (int p = 0; p < P; p++) {
    float top = larger(total[p].m, m[p]);
    for (int by = 1; by < kLanes; by *= 2) {
      const float lower = __shfl_up_sync(kEveryLane, top, by);
      if (lane >= by) top = larger(lower, top);
    }
    const float lower = __shfl_up_sync(kEveryLane, top, 1);
    board.a[mine + p][lane] = exp((lane == 0 ? total[p].m : lower) - top);
    board.b[mine + p][lane] = exp(m[p] - top);
    board.l[mine + p][lane] = l[p];
    total[p].m = __shfl_sync(kEveryLane, top, kLanes - 1);
  }
  __syncwarp();
}

// Joins the states of a warp's pairs: chunks[p] of pair p (none: there is no such pair), each from state(p, chunk) on
// (D + 2), in order. The pairs' chains of multiply-adds run side by side. Other blocks wrote the states in this launch:
// __ldcg bypasses L1, which may hold older ones.
template <int C, int P, class F>
__device__ __forceinline__ void join_chunks(Softmax<C> (&total)[P], const int (&chunks)[P], int D, JoinMemory<P>& board,
                                            int mine, F state) {
  constexpr int batch = C == 2 ? 8 : 4;  // chunks that are asked for at a time
  const int lane = threadIdx.x % kLanes;
  int most = 0;
  UNROLL
  for (int p = 0; p < P; p++) {
    total[p].clear();
    most = larger(most, chunks[p]);
  }
  for (int first = 0; first < most; first += kLanes) {
    float m[P], l[P];
    UNROLL
    for (int p = 0; p < P; p++) {
      const bool here = first + lane < chunks[p];
      m[p] = here ? __ldcg(state(p, first + lane) + D) : kNoScore;
      l[p] = here ? __ldcg(state(p, first + lane) + D + 1) : 0;
    }
    for (int c = first; c < most && c < first + kLanes; c += batch) {
      Sums<C> next[P][batch];
      UNROLL
      for (int p = 0; p < P; p++) UNROLL
      for (int j = 0; j < batch; j++) UNROLL
      for (int i = 0; i < C; i++)
        if (c + j < chunks[p]) next[p][j].sum[i] = __ldcg(state(p, c + j) + smaller(i * kLanes + lane, D - 1));
      if (c == first) weigh_chunks(total, m, l, board, mine);  // while those are in flight
      UNROLL
      for (int p = 0; p < P; p++) UNROLL
      for (int j = 0; j < batch; j += 4) {
        if (c + j >= chunks[p]) continue;
        const float4 a = load_four(&board.a[mine + p][c - first + j]), b = load_four(&board.b[mine + p][c - first + j]);
        const float4 its_l = load_four(&board.l[mine + p][c - first + j]);
        UNROLL
        for (int e = 0; e < 4; e++)
          if (c + j + e < chunks[p])
            total[p].add(number_of(a, e), number_of(b, e), number_of(its_l, e), next[p][j + e]);
      }
    }
  }
}

// Writes the warp's states of one chunk. The block that is done last joins all chunks of the tile, first .. last - 1,
// in order.
template <class S, int W, int P>
__device__ __forceinline__ void share_chunk(const Attention<float, S>& s, const AttentionScratch& scratch,
                                            ForwardMemory<S, W, P>& memory, const PairTile& its, const Root& root,
                                            int first, int last, const Softmax<W / kLanes> (&part)[P], int chunk) {
  constexpr int C = W / kLanes;
  const int lane = threadIdx.x % kLanes, mine = threadIdx.x / kLanes * P, D = s.head_size;
  const int place = blockIdx.x * gridDim.y + blockIdx.y;
  float* states = scratch.states + size_t(place) * gridDim.z * kBlockPairs<P> * (D + 2);
  const auto state_of = [&](int c, int p) { return states + (size_t(c) * kBlockPairs<P> + mine + p) * (D + 2); };
  UNROLL
  for (int p = 0; p < P; p++) {
    if (mine + p >= its.count) continue;
    float* to = state_of(chunk, p);
    UNROLL
    for (int i = 0; i < C; i++)
      if (i * kLanes + lane < D) to[i * kLanes + lane] = part[p].sum[i];
    if (lane == 0) {
      to[D] = part[p].m;
      to[D + 1] = part[p].l;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {  // it tells the other blocks what this one wrote, and learns what they did
    __threadfence();
    memory.last = atomicAdd(&scratch.arrived[place], 1u) + 1 == unsigned(last - first);
    if (memory.last) scratch.arrived[place] = 0;
    __threadfence();
  }
  __syncthreads();
  if (!memory.last) return;
  const auto chunks_of = [&](int row) { return (root.past + s.forest.depth[row]) / kChunkKeys + 1 - first; };
  int chunks[P];
  UNROLL
  for (int p = 0; p < P; p++) chunks[p] = mine + p < its.count ? chunks_of(memory.pair[mine + p].row) : 0;
  Softmax<C> total[P];
  join_chunks<C, P>(total, chunks, D, memory.join, mine, [&](int p, int c) { return state_of(first + c, p); });
  UNROLL
  for (int p = 0; p < P; p++)
    if (chunks[p]) write_out(s, memory.pair[mine + p], total[p]);
}

// While a block waits for the kernel before its own, its chunk of the one root's past comes into L2. No kernel of this
// step writes there.
template <class S>
__device__ __forceinline__ void ask_for_past(const Attention<float, S>& s) {
  if (threadIdx.x != 0 || blockIdx.x != 0 || s.forest.roots != 1) return;
  const int first = int(blockIdx.z) * kChunkKeys, slot = s.forest.first_slot[0] + first;
  if (first >= s.forest.past[0] || first + kChunkKeys <= s.unseen_at(s.forest.past[0])) return;
  if (slot % 16 != 0 || slot + kChunkKeys > s.cache.slots) return;
  const size_t keys = s.cache.key_numbers(kChunkKeys, s.head_size);
  const size_t values = s.cache.value_numbers(kChunkKeys, s.head_size);
  ask_for_piece(s.cache.key(int(blockIdx.y), slot, 0), uint32_t(keys * sizeof(S)));
  ask_for_piece(s.cache.value(int(blockIdx.y), slot, 0), uint32_t(values * sizeof(S)));
}

// Writes out and log_sum of all pairs, from the queries in qkv and the keys and values in the cache, the rows' own
// among them.
//
// Block (tile of 4 P pairs of one root, key/value head, chunk): four warps of P pairs. The block's threads copy 32
// slots, the next ones while these are used. Each warp computes their scores, lanes over slots, and adds their values,
// lanes over columns: 2 shared loads for 4 multiply-adds. Tiles of slots that none of its rows sees are not read. With
// few tiles of pairs (decoding) a block computes one chunk, and the last block joins them. Else (prefill, training) one
// block computes all chunks in turn. The bits are the same. The grid is that of a full cache, since a graph replays it:
// blocks without keys return at once.
//
// Bytes: each block reads q, and the K and V that its rows see, once. If no more than 16 pairs share them this is the
// least possible; else they are read once for every 16 pairs (the next block finds them in L2). The state of a chunk,
// written and read, is 2 (D + 2) floats a pair, for 64 positions of 2 D numbers: 2% of those (3% in bf16).
// Budget: 168 registers, 43792 bytes shared. Loads: 16.
template <class S, int W, int P>
__global__ void __launch_bounds__(kAttentionThreads, kBlocksAtLeast)
    attention_kernel(Attention<float, S> s, AttentionScratch scratch) {
  if (scratch.states) ask_for_past(s);
  wait_for_earlier();
  constexpr int C = W / kLanes;
  auto& memory = shared<ForwardMemory<S, W, P>>();
  const Forest& f = s.forest;
  const int lane = threadIdx.x % kLanes, mine = threadIdx.x / kLanes * P, D = s.head_size;
  const bool split = scratch.states != nullptr;

  // The first blocks take the last rows, which see most keys.
  const PairTile its = pair_tile(f, s.queries(), kBlockPairs<P>, gridDim.x - 1 - blockIdx.x);
  if (its.count == 0) return;
  const Root root = root_at(f, its.root);
  const int kv_head = blockIdx.y, first_row = root.first + its.begin / s.queries();
  const int last_row = root.first + (its.begin + its.count - 1) / s.queries();
  int depth = 0, least = f.depth[first_row];
  for (int row = first_row; row <= last_row; row++) {
    depth = larger(depth, f.depth[row]);
    least = smaller(least, f.depth[row]);
  }
  // The chunks that its rows may see, and of those its own.
  const int first = s.unseen_at(root.past + least) / kChunkKeys, last = (root.past + depth) / kChunkKeys + 1;
  const int first_chunk = split ? blockIdx.z : first, last_chunk = split ? first_chunk + 1 : last;
  if (first_chunk < first || first_chunk >= last) return;

  int row[P], unseen[P], chunk[P];
  Softmax<C> part[P], total[P];
  UNROLL
  for (int p = 0; p < P; p++) {
    const Pair pair = pair_of(its, root, kv_head, s.queries(), mine + p);
    row[p] = pair.row;
    unseen[p] = pair.row < 0 ? 0 : s.unseen(pair.row);
    chunk[p] = larger(first_chunk, unseen[p] / kChunkKeys);
    part[p].clear();
    total[p].clear();
    if (lane == 0) memory.pair[mine + p] = pair;
    if (pair.row >= 0) load_row<W>(memory.q[mine + p], s.qkv + size_t(pair.row) * s.qkv_row + pair.head * D, D);
  }
  for (auto& tile : memory.tile) tile.clear_edge(D);

  // A key's position is at most its slot, and equal to it in the past. So a chunk's keys begin at the slot of its first
  // position; if the whole chunk is past, they end with the slot of its last one.
  const int end =
      last_chunk * kChunkKeys <= root.past ? last_chunk * kChunkKeys : root.past + last_row - root.first + 1;
  struct Keys {  // of a tile: this lane's, from slot j + lane; and which the warp's pairs see
    int j;
    TileKey key;
    unsigned seen[P];
    bool any;
  };
  const auto find = [&](int j) {  // the next tile that a row of the block sees
    Keys keys{j, {}, {}, false};
    for (; keys.j < end; keys.j += kTileKeys) {
      keys.key = key_at(f, root, keys.j + lane);
      const int its_chunk = keys.key.position / kChunkKeys;
      if (its_chunk < first_chunk || its_chunk >= last_chunk) keys.key.to = 0;
      keys.any = seen_keys(keys.seen, row, unseen, keys.key);
      if (__syncthreads_or(keys.any)) break;  // it also waits until all are done with the tile before
    }
    return keys;
  };
  const auto copy = [&](int tile, int j) { memory.tile[tile].start(s.cache, kv_head, root.slot + j); };
  constexpr bool ahead = ForwardMemory<S, W, P>::kTiles == 2;
  int tile = 0;
  Keys keys = find(first_chunk * kChunkKeys);
  if (ahead && keys.j < end) copy(0, keys.j);
  end_batch();
  ROLLED
  while (keys.j < end) {
    const Keys next = find(keys.j + kTileKeys);
    if (!ahead) {
      __syncthreads();  // all are done with the tile before
      copy(0, keys.j);
      end_batch();
    } else if (next.j < end) copy(tile ^ 1, next.j);
    end_batch();
    wait_for_earlier_batches();
    __syncthreads();
    if (keys.any) attend<S, W, P>(s, memory, memory.tile[tile], keys.key, row, keys.seen, chunk, part, total);
    keys = next;
    if (ahead) tile ^= 1;
  }

  let_next_start();
  if (split && last - first > 1)
    return share_chunk<S, W, P>(s, scratch, memory, its, root, first, last, part, first_chunk);
  UNROLL
  for (int p = 0; p < P; p++) {
    if (row[p] < 0) continue;
    total[p].join(part[p]);
    write_out(s, memory.pair[mine + p], total[p]);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Who writes keys and values into the cache: what computes them, which saves a launch

// The bias of queries, keys and values; then a key or value goes into the cache too. A column operation, after the
// product that computes qkv.
template <class S>
struct BiasAndCache {
  AddBias<float> bias;
  Attention<float, S> s;
  template <class G>
  __device__ void operator()(const G& g, int row, int begin, int end) const {
    const Forest& f = s.forest;
    const int D = s.head_size, keys = s.n_head * D, values = keys + s.n_kv_head * D;
    const int root = f.roots == 1 ? 0 : f.root[row];  // one root: a load fewer to wait for
    const int slot = f.first_slot[root] + f.past[root] + row - f.first_row[root];
    bias(g, row, begin, end);
    const float* const x = s.qkv + size_t(row) * s.qkv_row;
    g.each(end - begin, [&](int i) {
      const int c = begin + i, key = c - keys, value = c - values;
      if (value >= 0) *s.cache.value(value / D, slot, value % D) = rounded<S>(x[c]);
      else if (key >= 0) *s.cache.key(key / D, slot, key % D) = rounded<S>(x[c]);
    });
  }
};

template <class S>
__device__ __forceinline__ void ask_for(const BiasAndCache<S>& op, int row, int column) {
  const Forest& f = op.s.forest;
  ask_for(op.bias, row, column);
  if (f.roots > 1) return;
  ask(f.first_slot);
  ask(f.past);
  ask(f.first_row);
}

// Rope; then a key that was rotated goes into the cache. Rows as Rope's.
template <class S>
struct RotateIntoCache {
  Rope<float> rope;
  Attention<float, S> s;
  template <class G>
  __device__ void operator()(const G& g, int item) const {
    rope(g, item);
    const int row = item / rope.heads, head = item % rope.heads - s.n_head, slot = s.forest.slot(row);
    if (head < 0) return;
    const float* const x = s.qkv + size_t(row) * s.qkv_row + (s.n_head + head) * s.head_size;
    g.map([&](int d, S key) { *s.cache.key(head, slot, d) = key; }, s.head_size,
          [=](int d) { return rounded<S>(x[d]); });
  }
};

// ---------------------------------------------------------------------------------------------------------------
// The launch

// How many floats of scratch a batch of up to `rows` rows needs to split its chunks over blocks.
inline size_t attention_scratch(int rows, int n_head, int head_size, int slots) {
  const size_t blocks = smaller(size_t(kFewBlocks), size_t(rows) * n_head), chunks = slots / kChunkKeys;
  return kFewBlocks + blocks * chunks * kBlockPairs<kWarpPairs> * (head_size + 2);
}

// scratch: attention_scratch() floats that were zero before the first launch. Null: chunks are not split over blocks.
template <int P, class S>
void attention_cuda(const Attention<float, S>& s, float* scratch) {
  const int tiles = most_pair_tiles(s.forest, s.queries(), kBlockPairs<P>), chunks = s.cache.slots / kChunkKeys;
  AttentionScratch split{nullptr, nullptr};
  if (scratch && chunks > 1 && tiles * s.n_kv_head <= kFewBlocks)
    split = {reinterpret_cast<unsigned*>(scratch), scratch + kFewBlocks};
  const dim3 grid(tiles, s.n_kv_head, split.states ? chunks : 1);
  with_columns(s.head_size, [&](auto columns) {
    start_early(attention_kernel<S, decltype(columns)::value, P>, grid, kAttentionThreads, s, split);
  });
}
// Where each root has one row its few pairs take a warp each: the kernel is then a third as long, and a GPU that runs a
// kernel's instructions once waits for most of them.
template <class S>
void attention_cuda(const Attention<float, S>& s, float* scratch) {
  if (s.forest.rows == 0) return;
  if (s.forest.rows == s.forest.roots && s.queries() <= kAttentionWarps) attention_cuda<1>(s, scratch);
  else attention_cuda<kWarpPairs>(s, scratch);
}

}  // namespace nanospec
