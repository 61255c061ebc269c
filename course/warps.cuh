// course/warps.cuh: CUDA kernels that only the course has: a row's norm (chapter 10), and attention that reads a key
// once for 16 rows (chapter 11).
//
// They stand between the first kernels, at the end of kernels.cuh, and the engine's own in cuda/. The norm has the bits
// of Norm in kernels.cuh, and attention those of the engine's tuned kernel.
#pragma once

#include "kernels.cuh"

namespace nanospec {

// y = x / sqrt(mean of x x + epsilon) weight, over the C channels of a row: RMSNorm (Zhang, Sennrich 2019). A warp for
// each row: grid (rows).
template <class T>
__global__ void warp_norm(Norm<T> s) {
  const int row = blockIdx.x, lane = threadIdx.x, C = s.channels;
  const T* x = s.x + size_t(row) * s.x_row;
  T* y = s.y + size_t(row) * s.y_row;
  // course 10.2
  T squares = 0;
  for (int c = lane; c < C; c += kLanes) squares += x[c] * x[c];
  for (int half = kLanes / 2; half > 0; half /= 2) squares += __shfl_xor_sync(kEveryLane, squares, half);
  const T factor = T(1) / square_root(squares / T(C) + s.epsilon);
  for (int c = lane; c < C; c += kLanes) y[c] = x[c] * factor * s.weight[c];
  // end
}
template <class T>
void norm_by_warps(const Norm<T>& s, int rows) {
  start(warp_norm<T>, dim3(unsigned(rows)), kLanes, s);
}

// ---------------------------------------------------------------------------------------------------------------
// Attention of 16 rows

constexpr int kRowsTogether = 16;  // rows of a block, a warp for each
constexpr int kPart = 64;          // positions of a part
constexpr float kRoom = 8;         // a score may lie so far above its part's m
constexpr float kNone = -Format<float>::kMost;
constexpr int kMostChannels = 128;  // of a head

// AttentionForward for 16 rows of one root and one query head to a block: grid (groups of 16 rows, heads, roots). The
// order of its sums is that of cuda/attention.cuh, and not that of plain_attention.
template <class S>
__global__ void __launch_bounds__(kRowsTogether* kLanes) rows_attention(Attention<float, S> s) {
  const Forest& f = s.forest;
  const int root = blockIdx.z, head = blockIdx.y, warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int kv_head = head / s.queries(), D = s.head_size;
  const int first = f.first_row[root], past = f.past[root], slot = f.first_slot[root];
  const int begin = first + blockIdx.x * kRowsTogether, end = smaller(begin + kRowsTogether, f.first_row[root + 1]);
  if (begin >= end) return;             // the whole block
  const int row = begin + warp;         // of this warp; there is none if row >= end
  const int keys = past + end - first;  // that a row of the block may see: those of the past, then of the root's rows
  // course 11.1
  // 32 keys and values at a time come into shared memory, by all threads, and serve the rows of all warps. In a warp a
  // lane takes a key for its score, and then every 32nd channel for the sums.
  constexpr int kChannels = kMostChannels / kLanes;  // of a lane
  struct Memory {                                    // __shared__
    float key[kMostChannels][kLanes], value[kLanes][kMostChannels];
    float q[kRowsTogether][kMostChannels];
  };
  Memory& memory = shared<Memory>();
  struct Part {
    float m = kNone, l = 0, sum[kChannels] = {};  // channel 32 n + lane
  };
  Part part, total;
  const auto join = [&] {
    const float top = larger(total.m, part.m), a = exp(total.m - top), b = exp(part.m - top);
    total.m = top;
    total.l = fused(part.l, b, total.l * a);
    UNROLL
    for (int n = 0; n < kChannels; n++) total.sum[n] = fused(part.sum[n], b, total.sum[n] * a);
    part = Part();
  };
  for (int d = lane; row < end && d < D; d += kLanes) memory.q[warp][d] = s.qkv[size_t(row) * s.qkv_row + head * D + d];
  for (int tile = 0, seen_before = 0; tile < keys; tile += kLanes) {
    __syncthreads();  // all are done with the tile before
    for (int i = threadIdx.x; i < D * kLanes; i += blockDim.x)
      if (tile + i % kLanes < keys)
        memory.key[i / kLanes][i % kLanes] = to_float(*s.cache.key(kv_head, slot + tile + i % kLanes, i / kLanes));
    for (int i = threadIdx.x; i < D * kLanes; i += blockDim.x)
      if (tile + i / D < keys)
        memory.value[i / D][i % D] = to_float(*s.cache.value(kv_head, slot + tile + i / D, i % D));
    __syncthreads();

    const int j = tile + lane;
    const bool seen = row < end && (j < past || (j < keys && f.sees(row, first + j - past)));
    float score = 0;
    for (int d = 0; seen && d < D; d++) score = fused(memory.q[warp][d], memory.key[d][lane], score);
    score *= s.scale();
    unsigned left = __ballot_sync(kEveryLane, seen);
    const int position = seen_before + __popc(left & ((1u << lane) - 1));
    seen_before += __popc(left);
    while (left) {  // a run of keys of one part, of which the first alone may lie far above m
      const int i = __ffs(int(left)) - 1;
      const int begins = __shfl_sync(kEveryLane, position % kPart == 0 && position > 0, i);
      const float its_score = __shfl_sync(kEveryLane, score, i);
      if (begins) join();
      if (its_score > part.m + kRoom) {
        const float c = exp(part.m - its_score);
        part.m = its_score;
        part.l *= c;
        UNROLL
        for (int n = 0; n < kChannels; n++) part.sum[n] *= c;
      }
      const unsigned stops =
          __ballot_sync(kEveryLane, lane > i && (position % kPart == 0 || score > part.m + kRoom)) & left;
      unsigned run = stops ? left & ((stops & (0u - stops)) - 1) : left;
      left &= ~run;
      const float weight = exp(score - part.m);
      for (; run; run &= run - 1) {
        const int k = __ffs(int(run)) - 1;
        const float its_weight = __shfl_sync(kEveryLane, weight, k);
        part.l += its_weight;
        UNROLL
        for (int n = 0; n < kChannels; n++)
          if (n * kLanes + lane < D) part.sum[n] = fused(its_weight, memory.value[k][n * kLanes + lane], part.sum[n]);
      }
    }
  }
  join();
  float* const out = s.out + size_t(row) * s.out_row + head * D;
  UNROLL
  for (int n = 0; n < kChannels; n++)
    if (row < end && n * kLanes + lane < D) out[n * kLanes + lane] = total.sum[n] / total.l + 0.0f;
  // end
}
// most: the rows of the root that has most.
template <class S>
void attention_by_rows(const Attention<float, S>& s, int most) {
  const dim3 grid(unsigned((most + kRowsTogether - 1) / kRowsTogether), unsigned(s.n_head), unsigned(s.forest.roots));
  start(rows_attention<S>, grid, kRowsTogether * kLanes, s);
}

}  // namespace nanospec
