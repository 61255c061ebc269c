// cuda/decode.cuh: the parts of a decoding iteration around the forward: draft, pick, walk.
//
// In order: the state of an iteration; noise; the drafting of a full tree from a table; the
// threshold of top-k and top-p; the picks; the walk. cuda/iteration.cuh puts them together with a forward and the
// gather (gather.cuh). The formulas are those of sample.h, draft.h and tree.h, in the same order of operations: equal
// logits give the same tokens and chances as on the CPU. No launch depends on the place in the text. That is in State,
// in the device's memory, so one recording serves every iteration of its kind.
//
// Shapes: rows of the tree R, vocabulary V, nodes of a drafted tree N (all its rows, the root too).
#pragma once

#include "cuda/block.cuh"
#include "sample.h"

namespace nanospec {

// The state of an iteration. At its end it is the state of the next one, if the path's rows are kept. That one may run
// while the host still reads what this one found: so each writes to a half of its own.
struct State {
  Sampling sampling;
  int64_t index = 0;  // index in the text of the root's children
  float scale = 1;    // of scores, before the softmax that gives a drafted node's chance
  int root = 0;       // the root's token, where the host uploads no tree
  int past = 0, first_slot = 0, first_row[2] = {0, 0};  // the Forest's, of one root
  int turn = 0;  // 0 or 1, in turns: which half of the host's memory gets what this iteration finds
};

// A drafted node, as tree.h's Candidate.
struct DraftedNode {
  int token;
  float chance;
};

// ---------------------------------------------------------------------------------------------------------------
// Ranks and noise

// Below and above the rank of every token.
constexpr int64_t kNoRank = std::numeric_limits<int64_t>::min(), kAboveRanks = std::numeric_limits<int64_t>::max();

// Calls f(x, logits[x], noise of x), by one warp, for the tokens below V of one block of kNoiseBlock. The noise uses no
// memory: one call of Philox gives a lane that of four tokens. At temperature 0 it is 0, and fused(0, 0, logit) is the
// logit. The logits are asked for before the noise is computed.
template <class F>
__device__ __forceinline__ void with_noise(const float* logits, const Sampling& sampling, int64_t index, int block,
                                           int vocab, F f) {
  const int lane = threadIdx.x % kLanes, first = block * kNoiseBlock + lane;
  float logit[4];
  UNROLL
  for (int i = 0; i < 4; i++) logit[i] = logits[smaller(first + i * kLanes, vocab - 1)];
  Bits128 bits{};
  if (sampling.temperature > 0)
    bits = philox(sampling.seed, sampling.sequence, kStreamSample, uint64_t(index),
                  uint32_t(block * kNoiseBlock / 4 + lane));
  UNROLL
  for (int i = 0; i < 4; i++)
    if (first + i * kLanes < vocab)
      f(first + i * kLanes, logit[i], sampling.temperature > 0 ? gumbel(exponential(bits.word[i])) : 0.0f);
}

// ---------------------------------------------------------------------------------------------------------------
// Draft: the nodes of a full tree (every node has W children), level by level, from a table of logits after each token.
//
// A block expands one node. It scores V tokens by table row + T * noise, takes the best W one after the other, and
// writes them to the places of the node's children in preorder. The nodes of a level are the grid. A chain has one node
// a level, so one block runs all levels, and saves their launches. Nodes of one depth have the same noise. Each
// computes it again: that costs no memory, and no block waits for another. It reads 4 V bytes of the table for each
// node. `found` lies in the host's memory: eight bytes for each node are copied while the forward runs.

constexpr int kDraftThreads = 128, kDraftVocabulary = 8192;  // most tokens whose scores fit into shared memory

struct Draft {
  const float* table;  // (V, V) logits of the token after a token
  int vocab, width;
  const State* state;
  int* token;          // (N) of the tree, in preorder
  DraftedNode* found;  // (N - 1) the drafted nodes in the order of growth: level by level, node by node, best first;
  int half;            // ... those of turn 1 stand so many numbers behind
};

// Expands the nodes of the level at `depth`, the k-th by block k; where W = 1 also those of the `levels` - 1 levels
// below it. size: the nodes of a subtree whose root has this depth. first: where `found` has the children of the
// level's first node.
// Budget: 64 registers, 36928 bytes shared. Loads: 4.
template <int kThreads>
__global__ __launch_bounds__(kThreads) void draft_kernel(Draft d, int depth, int levels, int size, int first) {
  let_next_start();
  wait_for_earlier();
  float* const scores = shared<float[kDraftVocabulary]>();
  const Block<kThreads> block;
  const int W = d.width, V = d.vocab;
  const Sampling sampling = d.state->sampling;
  const float t = sampling.temperature, scale = d.state->scale, lowest = -Format<float>::kInfinity;
  int row = depth;  // of the node: the digits of k to the base W say which child its path takes on each level
  for (int rest = blockIdx.x, below = size; rest > 0; rest /= W, below = below * W + 1) row += rest % W * below;
  DraftedNode* found = d.found + d.state->turn * d.half + first + blockIdx.x * W;
  int token = depth == 0 ? d.state->root : d.token[row];
  if (depth == 0 && threadIdx.x == 0) d.token[0] = token;

  for (int level = 0; level < levels; level++, row++, size--, found++) {
    const float* const logits = d.table + size_t(token) * V;
    for (int b = threadIdx.x / kLanes; b * kNoiseBlock < V; b += kThreads / kLanes)
      with_noise(logits, sampling, d.state->index + depth + level, b, V, [=](int x, float logit, float noise) {
        const float score = fused(t, noise, logit);
        scores[x] = score > lowest ? score : lowest;
      });
    __syncthreads();
    int64_t last = kAboveRanks;
    float top = 0;
    const int subtree = (size - 1) / W;  // rows from one child to the next
    for (int rank = 0; rank < W; rank++) {
      last = block.template largest<int64_t>(V, [=](int x) {
        const int64_t one = ranked(scores[x], x);
        return one < last ? one : kNoRank;
      });
      if (rank == 0) {
        top = from_ordered(key_of(last));
        token = token_of(last);
      }
      if (threadIdx.x == 0) d.token[row + 1 + rank * subtree] = token_of(last);
    }
    const auto weight = [=](int x) { return exp_normal(larger((scores[x] - top) * scale, Format<float>::kLogLeast)); };
    const float total = block.template sum<float>(V, weight);
    ROLLED
    for (int rank = threadIdx.x; rank < W; rank += kThreads) {
      const int x = d.token[row + 1 + rank * subtree];
      found[rank] = {x, weight(x) / total};
    }
    __syncthreads();  // all have read the scores, which the next level overwrites
  }
}

// Launches all levels of the tree of `depth` levels.
inline void draft(const Draft& d, int depth) {
  int size = 1;  // of the whole tree, then of its subtrees
  for (int i = 0; i < depth; i++) size = size * d.width + 1;
  if (d.width == 1) return start(draft_kernel<kDraftThreads>, 1, kDraftThreads, d, 0, depth, size, 0);
  for (int i = 0, nodes = 1, first = 0; i < depth; i++) {
    start(draft_kernel<kDraftThreads>, nodes, kDraftThreads, d, i, 1, size, first);
    nodes *= d.width;
    first += nodes;
    size = (size - 1) / d.width;
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Threshold: what top-k, top-p and min-p keep of each row (sample.h). A block runs a row, and reads it some twenty
// times, from L2. It is launched only where they may drop a token.

// Budget: 64 registers, 32896 bytes shared. Loads: 6.
template <int kThreads>
__global__ __launch_bounds__(kThreads, 1) void threshold_kernel(const float* logits, int row_stride, int vocab,
                                                                const State* state, float* least) {
  let_next_start();
  wait_for_earlier();
  const Sampling sampling = state->sampling;
  const float kept = kept_threshold(Block<kThreads>{}, logits + size_t(blockIdx.x) * row_stride, vocab, sampling);
  if (threadIdx.x == 0) least[blockIdx.x] = kept;
}

// least: (R) the thresholds. For a small vocabulary the barriers of a large block would cost too much.
inline void threshold(int rows, const float* logits, int row_stride, int vocab, const State* state, float* least) {
  constexpr int kFew = 128, kMany = 512;
  if (vocab <= 2048) start_early(threshold_kernel<kFew>, rows, kFew, logits, row_stride, vocab, state, least);
  else start_early(threshold_kernel<kMany>, rows, kMany, logits, row_stride, vocab, state, least);
}

// ---------------------------------------------------------------------------------------------------------------
// Sample: the target's pick after each row, argmax over V of logit + T * noise.
//
// Grid (parts, R): the blocks of one row share its vocabulary, so 50,257 tokens should take about as long as 2,000.
// Each block writes the best rank of its part, and the walk takes the largest. A rank is a score and a token in one
// integer. No two ranks are equal, so the order of comparisons does not matter. It reads each logit once, and writes 8
// bytes a part.

constexpr int kSampleThreads = 128, kMostParts = kLanes;

inline int sample_parts(int vocab) {
  const int blocks = whole(vocab, kNoiseBlock) / kNoiseBlock, warps = kSampleThreads / kLanes;
  return smaller(kMostParts, (blocks + warps - 1) / warps);
}

struct Sample {
  const float* logits;
  int row_stride, vocab;
  const State* state;
  const int* depth;    // (R) row r picks the token at index + depth[r] of the text
  const float* least;  // (R) the threshold; null: all tokens are kept
  int64_t* best;       // (R, parts)
};

// Budget: 56 registers, 64 bytes shared. Loads: 4.
template <int kThreads>
__global__ __launch_bounds__(kThreads) void sample_kernel(Sample s) {
  let_next_start();
  wait_for_earlier();
  const int row = blockIdx.y, part = blockIdx.x, parts = gridDim.x, V = s.vocab;
  const Sampling sampling = s.state->sampling;
  const float* const logits = s.logits + size_t(row) * s.row_stride;
  const float least = s.least ? s.least[row] : -Format<float>::kInfinity, t = sampling.temperature;
  const int blocks = (V + kNoiseBlock - 1) / kNoiseBlock, end = blocks * (part + 1) / parts;
  int64_t best = kNoRank;
  for (int b = blocks * part / parts + threadIdx.x / kLanes; b < end; b += kThreads / kLanes)
    with_noise(logits, sampling, s.state->index + s.depth[row], b, V, [&](int x, float logit, float noise) {
      const float score = logit >= least ? fused(t, noise, logit) : Format<float>::kNaN;
      best = larger(best, ranked(score, x));
    });
  best = Block<kThreads>{}.template largest<int64_t>(1, [=](int) { return best; });
  if (threadIdx.x == 0) s.best[size_t(row) * parts + part] = best;
}

// ---------------------------------------------------------------------------------------------------------------
// Walk: the rule `match` (tree.h): from the root to the child that carries the target's pick, until no child does.
//
// One warp. A child is a row of the node's subtree that is one level deeper. The warp looks at 32 rows at a time, from
// the lowest on. It writes the rows that stay for the gather, the verdict for the host, and the state for the next
// iteration.

struct Walk {
  const int64_t* best;  // (R, parts) from Sample
  int parts;
  const int *token, *depth, *end;  // (R) the tree
  State* state;
  int* kept;           // (2 + R) for KeepRows: the slot of the root, how many rows stay, and which
  int *rows, *tokens;  // (1 + R), (R) in the host's memory: how many rows stay, and which; the emitted tokens;
  int half;            // ... those of turn 1 stand so many numbers behind
};

// Budget: 48 registers, 0 bytes shared. Loads: 8.
template <int kThreads>
__global__ __launch_bounds__(kThreads) void walk_kernel(Walk w) {
  let_next_start();
  wait_for_earlier();
  const Warp warp;
  const int lane = threadIdx.x, past = w.state->past, turn = w.state->turn, at = turn * w.half;
  int node = 0, count = 0, token = 0;
  while (node >= 0) {
    const int64_t* const best = w.best + size_t(node) * w.parts;
    token = token_of(warp.largest<int64_t>(w.parts, [=](int part) { return best[part]; }));
    if (lane == 0) {
      w.kept[2 + count] = w.rows[at + 1 + count] = node;
      w.tokens[at + count] = token;
    }
    count++;
    const int depth = w.depth[node] + 1, end = w.end[node];
    int child = -1;
    for (int first = node + 1; first < end && child < 0; first += kLanes) {
      const int row = first + lane;
      const unsigned matching = __ballot_sync(kEveryLane, row < end && w.depth[row] == depth && w.token[row] == token);
      if (matching) child = first + __ffs(int(matching)) - 1;
    }
    node = child;
  }
  if (lane != 0) return;
  w.kept[0] = past;
  w.kept[1] = w.rows[at] = count;
  w.state->past = past + count;
  w.state->index += count;
  w.state->root = token;
  w.state->turn = 1 - turn;
}

}  // namespace nanospec
