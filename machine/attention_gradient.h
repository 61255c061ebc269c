// machine/attention_gradient.h: the backward of tree attention on a CPU: the twin of the operations in gradients.cuh.
#pragma once

#include "gradients.cuh"
#include "machine/attention.h"

namespace nanospec {

// The gradient of one root and key/value head, in one thread. The formulas stand in gradients.cuh.
// A group of rows, as many as have room for their P and dS in L2, computes them and dQ block by block, for few rows
// compute few scores that no row sees. Then it adds to dK and dV, whose sums are over rows.
struct AttentionGradient {
  static constexpr int kBlock = kRoundRows;
  const AttentionBackward<float>& g;
  const int root, kv_head;

  const Attention<float>& s = g.forward;
  const Forest& f = s.forest;
  const int first = f.first_row[root], last = f.first_row[root + 1], past = f.past[root], row0 = larger(0, first);
  const int D = s.head_size, wide = pad16(D), slots = past + last - first, most = pad64(slots);
  const int line = most + 16;  // of p and ds: an odd number of cache lines, as strides of activations
  const int room = int(l2_bytes() / sizeof(float)) / 4 / most;  // rows of p and of ds in half of L2
  const int group = larger(1, smaller(room, last - row0 + kBlock - 1) / kBlock) * kBlock;
  const bool in_cache = past > 0 || first < 0;  // other keys are in the cache alone
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
      each_factor(s.dropout, s.first_weight(row, head) + begin, stop - begin,
                  [=](int i, float keep) { drop(begin + i, keep); });
    else
      for (int j = begin; drops && j < stop; j++)
        drop(j, s.factor(row, head, j < past ? j : past + f.depth[first + j - past]));
    const auto some = [=](int j, const auto& kept) {  // a vector of keys
      const Vec weight = exp(load(p + j) * scale - log_sum);
      store(p + j, kept(weight));
      store(ds + j, kept(weight * (load(ds + j) - delta) * scale));
    };
    int j = begin;
    for (; j + Vec::width <= stop; j += Vec::width) some(j, [](Vec x) { return x; });
    for (; j < end; j += Vec::width) some(j, [=](Vec x) { return below(seen, j, x, 0.0f); });
    const bool far = s.unseen(row) > begin;  // it does not see all of its past
    for (int j = far ? begin : larger(begin, shared); (far || !sees_all) && j < stop; j++)
      if (!s.sees(row, j)) p[j] = ds[j] = 0;
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
