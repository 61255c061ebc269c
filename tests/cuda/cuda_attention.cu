// tests/cuda/cuda_attention.cu: the tree attention kernels: bit for bit what their formula says, key by key.
#include "tests/cuda/cuda_test.h"  // first: it brings the emulator

#include <algorithm>
#include <cmath>

#include "course/warps.cuh"
#include "tests/random.h"
#include "tests/tenth.h"
#include "train.h"

namespace nanospec {

namespace {

// One forward through one layer's attention, in host memory. What nobody may read is NaN: slots without a key, and the
// values' columns beyond the head's.
template <class T, class S = T>
struct AttentionProblem {
  Batch batch;
  int H, KV, D, slots, qkv_row, out_row, span = 0;
  Dropout drop;
  std::vector<T> qkv, dout;
  std::vector<S> k, v;

  AttentionProblem(const Batch& rows, int n_head, int n_kv_head, int head_size, uint64_t seed, double spread = 1)
      : batch(rows),
        H(n_head),
        KV(n_kv_head),
        D(head_size),
        slots(rows.slots()),
        qkv_row(pad16((n_head + 2 * n_kv_head) * head_size)),
        out_row(pad16(n_head * head_size)),
        qkv(size_t(batch.rows()) * qkv_row),
        dout(size_t(batch.rows()) * out_row),
        k(n_kv_head * KeyValues<S>::key_numbers(slots, D), rounded<S>(NAN)),
        v(n_kv_head * KeyValues<S>::value_numbers(slots, D), rounded<S>(NAN)) {
    if (D % kTogether<S> != 0)  // the cache begins with zeros, and nobody writes behind the last channel
      for (int head = 0; head < KV; head++)
        for (int slot = 0; slot < slots; slot++) *KeyValues<S>{k.data(), v.data(), slots, D}.key(head, slot, D) = {};
    Chance chance(seed);
    chance.fill(qkv.data(), qkv.size(), spread), chance.fill(dout.data(), dout.size());
    for (int root = 0; root < batch.roots(); root++)
      for (int head = 0; head < KV; head++)
        for (int j = 0; j < batch.past[root]; j++) fill_slot(chance, head, batch.first_slot[root] + j, spread);
  }
  void fill_slot(Chance& chance, int head, int slot, double spread) {
    const KeyValues<S> cache{k.data(), v.data(), slots, D};
    for (int d = 0; d < D; d++) {
      *cache.key(head, slot, d) = rounded<S>((chance.number() - 0.5) * 2 * spread);
      *cache.value(head, slot, d) = rounded<S>((chance.number() - 0.5) * 2);
    }
  }
  Forest forest() const {
    return {batch.rows(),      batch.roots(),          batch.end.data(),        batch.depth.data(),
            batch.root.data(), batch.first_row.data(), batch.first_slot.data(), batch.past.data()};
  }
  Attention<T, S> attention(const Forest& forest, const T* from, S* keys, S* values, T* out, T* log_sum) const {
    return {forest, H, KV, D, from, qkv_row, {keys, values, slots, D}, out, out_row, log_sum, drop, false, true, span};
  }
};

// out (rows, out_row), then log_sum (rows, H).
template <class S>
std::vector<float> on_gpu(const AttentionProblem<float, S>& p, bool split) {
  DeviceBatch batch(p.batch.rows(), p.batch.roots(), true);
  batch.upload(p.batch);
  const Array<float> qkv = on_device(p.qkv);
  const Array<S> k = on_device(p.k), v = on_device(p.v);
  const size_t rows = size_t(p.batch.rows()), n = rows * p.out_row;
  Array<float> out(n + rows * p.H, true);
  const bool training = false;
  const Array<float> scratch(attention_scratch_size<float>(int(rows), p.H, p.D, p.slots, training, true), true);
  for (int again = 0; again <= split; again++) {  // the second launch finds what the first left in the scratch
    out.upload(std::vector<float>(out.size()).data(), out.size());
    attention(kGpu, p.attention(batch.forest, qkv.data(), k.data(), v.data(), out.data(), out.data() + n),
              split ? scratch.data() : nullptr, p.slots);
  }
  return to_host(out);
}

// out (rows, out_row) of the plain kernel.
template <class S>
std::vector<float> plain_on_gpu(const AttentionProblem<float, S>& p) {
  DeviceBatch batch(p.batch.rows(), p.batch.roots(), true);
  batch.upload(p.batch);
  const Array<float> qkv = on_device(p.qkv), out(size_t(p.batch.rows()) * p.out_row, true);
  const Array<S> k = on_device(p.k), v = on_device(p.v);
  float* const no_scratch = nullptr;
  attention(kPlainGpu, p.attention(batch.forest, qkv.data(), k.data(), v.data(), out.data(), nullptr), no_scratch, 0);
  return to_host(out);
}

// out (rows, out_row) of the course's kernel that reads a key once for 16 rows.
template <class S>
std::vector<float> of_course(const AttentionProblem<float, S>& p) {
  DeviceBatch batch(p.batch.rows(), p.batch.roots(), true);
  batch.upload(p.batch);
  const Array<float> qkv = on_device(p.qkv), out(size_t(p.batch.rows()) * p.out_row, true);
  const Array<S> k = on_device(p.k), v = on_device(p.v);
  const auto s = p.attention(batch.forest, qkv.data(), k.data(), v.data(), out.data(), nullptr);
  launch(kPlainGpu, p.batch.rows(), WriteCache<float, S>{s});
  attention_by_rows(s, p.batch.rows());
  return to_host(out);
}

// The formula of cuda/attention.cuh in the plainest loops there are.
struct PartialSum {
  float m = kNoScore, l = 0;
  std::vector<float> sum;
  explicit PartialSum(int D) : sum(D, 0.0f) {}
  void add(float score, float keep, const std::vector<float>& value) {
    if (score > m + 8) {
      const float c = exp(m - score);
      m = score, l *= c;
      for (float& x : sum) x *= c;
    }
    const float p = exp(score - m);
    l += p;
    for (size_t d = 0; d < sum.size(); d++) sum[d] = fused(p * keep, value[d], sum[d]);
  }
  void join(const PartialSum& next) {
    const float top = larger(m, next.m), a = exp(m - top), b = exp(next.m - top);
    m = top, l = fused(next.l, b, l * a);
    for (size_t d = 0; d < sum.size(); d++) sum[d] = fused(next.sum[d], b, sum[d] * a);
  }
};
template <class S>
std::vector<float> plainly(const AttentionProblem<float, S>& p) {
  const Forest f = p.forest();
  std::vector<S> k = p.k, v = p.v;
  const size_t n = size_t(f.rows) * p.out_row;
  std::vector<float> out(n + f.rows * p.H), value(p.D);
  const auto s = p.attention(f, p.qkv.data(), k.data(), v.data(), out.data(), out.data() + n);
  launch(Team{}, f.rows, WriteCache<float, S>{s});
  for (int row = 0; row < f.rows; row++)
    for (int head = 0; head < p.H; head++) {
      const int root = f.root[row], kv_head = head / s.queries(), past = f.past[root];
      PartialSum total(p.D), part(p.D);
      int position = 0;
      for (int j = 0; j <= past + row - f.first_row[root]; j++) {
        if (j >= past && !f.sees(row, f.first_row[root] + j - past)) continue;
        if (position > 0 && position % 64 == 0) total.join(part), part = PartialSum(p.D);
        if (position++ < s.unseen(row)) continue;
        float score = 0;
        for (int d = 0; d < p.D; d++) {
          const float q = p.qkv[size_t(row) * p.qkv_row + head * p.D + d];
          score = fused(q, to_float(*s.cache.key(kv_head, f.first_slot[root] + j, d)), score);
          value[d] = to_float(*s.cache.value(kv_head, f.first_slot[root] + j, d));
        }
        part.add(score * s.scale(), s.factor(row, head, position - 1), value);
      }
      CHECK(position == f.position(row) + 1);
      total.join(part);
      for (int d = 0; d < p.D; d++) s.out[size_t(row) * p.out_row + head * p.D + d] = total.sum[d] / total.l + 0.0f;
      s.log_sum[row * p.H + head] = total.m + log(total.l);
    }
  return out;
}

double greatest_difference(const std::vector<float>& a, const std::vector<float>& b, size_t n) {
  double most = 0;
  for (size_t i = 0; i < n; i++) most = std::max(most, std::abs(double(a[i]) - b[i]));
  return most;
}
// Holds the tuned kernel against the formula, whole and split, and against the portable version, whose bits the plain
// kernel has.
template <class S>
void check_forward(const AttentionProblem<float, S>& p) {
  CAPTURE(p.batch.rows());
  CAPTURE(p.batch.roots());
  CAPTURE(p.batch.past[0]);
  CAPTURE(p.D);
  CAPTURE(p.H);
  CAPTURE(p.KV);
  CAPTURE(p.span);
  const std::vector<float> formula = plainly(p);
  CHECK(same_bits(in_every_order([&] { return on_gpu(p, false); }), formula));
  CHECK(same_bits(in_every_order([&] { return on_gpu(p, true); }), formula));

  std::vector<S> k = p.k, v = p.v;
  const int rows = p.batch.rows();
  const size_t n = size_t(rows) * p.out_row;
  std::vector<float> portable(formula.size()), weights(size_t(rows) * p.H * p.slots);
  const auto s = p.attention(p.forest(), p.qkv.data(), k.data(), v.data(), portable.data(), portable.data() + n);
  launch(Team{}, rows, WriteCache<float, S>{s});
  launch(Team{}, rows * p.H, AttentionForward<float, S>{s, weights.data(), p.slots});
  CHECK(greatest_difference(formula, portable, formula.size()) < 4e-6);  // of numbers up to 1, and logarithms up to 30
  if (p.drop.rate > 0) return;
  portable.resize(n);
  CHECK(same_bits(in_every_order([&] { return plain_on_gpu(p); }), portable));
  if (p.span > 0) return;
  const std::vector<float> first(formula.begin(), formula.begin() + long(n));
  CHECK(same_bits(in_every_order([&] { return of_course(p); }), first));
}

Batch tree_batch(Chance& chance, int roots, int rows, int past, double bushy) {
  Batch batch;
  int slot = 0;
  for (int r = 0; r < roots; r++) {
    const RandomTree tree = random_tree(chance, rows, 7, bushy);
    const int keys = r == 0 ? past : chance.below(past + 1);
    batch.add_tree(tree.token.data(), tree.depth.data(), tree.end.data(), rows, slot, keys);
    slot += pad64(keys + rows);
  }
  return batch;
}

struct AttentionSize {
  int roots, rows, past, H, KV, D;
  double bushy;
};

}  // namespace

TEST_CASE(ON "attention by hand: two keys, the first seen twice as much") {
  // one head of size 1, q = 1: scores log 2 and 0, values 3 and 6 -> (2/3) 3 + (1/3) 6 = 4
  Batch batch;
  const int token[] = {0, 0};
  batch.add_chain(token, 2, 0, 0);
  AttentionProblem<float> p(batch, 1, 1, 1, 1);
  for (int row = 0; row < 2; row++) p.qkv[16 * row] = 1;
  p.qkv[1] = std::log(2.0f), p.qkv[2] = 3, p.qkv[17] = 0, p.qkv[18] = 6;
  const std::vector<float> out = on_gpu(p, false);
  CHECK(out[0] == 3.0f);
  CHECK(out[16] == doctest::Approx(4.0f).epsilon(1e-6));
  CHECK(out[33] == doctest::Approx(std::log(3.0f)).epsilon(1e-6));
}

TEST_CASE(ON "attention has the bits of its formula, key by key, whole and split into chunks") {
  Chance chance(11);
  // roots, rows, past, heads, key/value heads, head size, bushiness; float and bf16 by turns
  const AttentionSize shapes[] = {{1, 1, 0, 1, 1, 16, 0},     {1, 1, 1000, 2, 1, 64, 0},   {1, 16, 250, 2, 2, 24, 0.9},
                                  {1, 33, 63, 4, 1, 80, 0.5}, {3, 20, 130, 3, 1, 33, 1},   {1, 300, 0, 1, 1, 16, 0},
                                  {2, 70, 60, 1, 1, 128, 0},  {5, 1, 200, 2, 2, 100, 0},   {1, 150, 300, 1, 1, 20, 0.8},
                                  {1, 7, 64, 18, 1, 17, 0.9}, {2, 129, 1, 2, 2, 31, 0.2},  {1, 65, 31, 1, 1, 96, 0.6},
                                  {1, 2, 999, 2, 2, 48, 0},   {1, 9, 100, 1, 1, 128, 0.5}, {1, 5, 70, 1, 1, 64, 1},
                                  {18, 1, 70, 1, 1, 16, 0},   {1, 3, 2200, 1, 1, 16, 0.5}, {1, 40, 20, 1, 1, 32, 2},
                                  {4, 1, 70, 1, 1, 96, 0},    {3, 1, 140, 2, 1, 96, 0}};
  int round = 0;
  for (const AttentionSize& shape : shapes) {
    const Batch batch = tree_batch(chance, shape.roots, shape.rows, shape.past, shape.bushy);
    const int turn = round++;
    if (!runs(size_t(turn), 5)) continue;
    const auto check = [&](auto p) {
      for (int span : {0, 1 + chance.below(shape.past + 10)}) p.span = span, check_forward(p);
    };
    if (turn % 2) check(AttentionProblem<float, bf16>(batch, shape.H, shape.KV, shape.D, 13));
    else check(AttentionProblem<float>(batch, shape.H, shape.KV, shape.D, 12));
  }
}

TEST_CASE(ON "attention where scores rise and rise, and with dropout") {
  Chance chance(21);
  size_t tried = 0;
  for (double spread : {3.0, 10.0, 30.0}) {
    AttentionProblem<float> p(tree_batch(chance, 2, 15, 150, 0.5), 2, 1, 24, 22, spread);
    if (!runs(tried++, 3)) continue;
    const std::vector<float> formula = plainly(p);
    CHECK(same_bits(in_every_order([&] { return on_gpu(p, false); }), formula));
    CHECK(same_bits(in_every_order([&] { return on_gpu(p, true); }), formula));
  }
  AttentionProblem<float> p(tree_batch(chance, 2, 15, 120, 0.5), 4, 2, 24, 23);
  p.drop = Dropout{0.3f, 5, 6, 7};
  check_forward(p);
}

TEST_CASE(ON "attention: a node of a tree has the bits of its path, one row at a time") {
  Chance chance(31);
  size_t tried = 0;
  for (int past : {0, 50, 120})
    for (int D : {16, 40}) {
      if (!runs(tried++, 3)) continue;
      const RandomTree tree = random_tree(chance, 60, 7, 0.15);
      Batch batch;
      batch.add_tree(tree.token.data(), tree.depth.data(), tree.end.data(), tree.size(), 0, past);
      AttentionProblem<float, bf16> p(batch, 2, 1, D, 32);
      p.span = past / 2;
      const std::vector<float> all = on_gpu(p, false);
      for (int node = tree.size() - 1; node >= 0; node -= 13) {
        std::vector<int> path;
        for (int j = node; j >= 0; j = tree.parent[j]) path.insert(path.begin(), j);
        const Array<bf16> k = on_device(p.k), v = on_device(p.v);
        const Array<float> qkv = on_device(p.qkv), out(p.out_row, true),
                           scratch(attention_scratch(1, 2, D, p.slots), true);
        DeviceBatch one(1, 1, true);
        for (int row : path) {
          Batch step;
          step.add_chain(&tree.token[row], 1, 0, past + tree.depth[row]);
          one.upload(step);
          attention(
              kGpu,
              p.attention(one.forest, qkv.data() + size_t(row) * p.qkv_row, k.data(), v.data(), out.data(), nullptr),
              scratch.data(), 0);
        }
        CHECK(memcmp(to_host(out).data(), &all[size_t(node) * p.out_row], sizeof(float) * 2 * D) == 0);
      }
    }
}

namespace {

// dqkv, dk, dv, one after the other; dk and dv start from numbers of their own, and what nobody owns becomes 0.
template <class T>
struct Gradient {
  std::vector<T> dqkv, dk, dv;
  explicit Gradient(const AttentionProblem<T>& p)
      : dqkv(p.qkv.size()), dk(size_t(p.KV) * p.slots * pad16(p.D)), dv(dk.size()) {
    Chance chance(41);
    chance.fill(dk.data(), dk.size()), chance.fill(dv.data(), dv.size());
  }
  std::vector<T> all(int D) {
    for (auto* sums : {&dk, &dv})
      for (size_t i = 0; i < sums->size(); i++) (*sums)[i] = int(i % pad16(D)) < D ? (*sums)[i] : 0;
    std::vector<T> joined = dqkv;
    joined.insert(joined.end(), dk.begin(), dk.end()), joined.insert(joined.end(), dv.begin(), dv.end());
    for (T& x : joined) x += T(0);  // a zero has one sign
    return joined;
  }
};

// The portable version, forward and backward; `out` becomes its out, log_sum.
template <class T>
std::vector<T> portable_gradient(const AttentionProblem<T>& p, std::vector<T>* forward_result) {
  const int rows = p.batch.rows();
  std::vector<T> k = p.k, v = p.v, weights(size_t(rows) * p.H * p.slots), ds(weights);
  const size_t n = size_t(rows) * p.out_row;
  forward_result->resize(n + rows * p.H);
  Gradient<T> g(p);
  for (int root = 0; root < p.batch.roots(); root++)  // it reads what is not seen, and forgets it: there, no NaN
    for (T* numbers : {k.data(), v.data()})
      for (size_t i = 0; i < k.size() && i < v.size(); i++) numbers[i] = std::isnan(numbers[i]) ? T(0) : numbers[i];
  const auto s =
      p.attention(p.forest(), p.qkv.data(), k.data(), v.data(), forward_result->data(), forward_result->data() + n);
  launch(Team{}, rows, WriteCache<T, T>{s});
  launch(Team{}, rows * p.H, AttentionForward<T, T>{s, weights.data(), p.slots});
  const AttentionBackward<T> b{s, p.dout.data(), g.dk.data(), g.dv.data(), g.dqkv.data()};
  launch(Team{}, rows * p.H, AttentionBackwardQueries<T>{b, weights.data(), ds.data(), p.slots});
  launch(Team{}, p.batch.roots() * p.KV * p.slots, AttentionBackwardKeys<T>{b, weights.data(), ds.data(), p.slots});
  launch(Team{}, rows, ReadCacheGradient<T>{b});
  return g.all(p.D);
}

// The kernels, from a given forward; its keys and values are made by attention() itself.
std::vector<float> gradient_on_gpu(const AttentionProblem<float>& p, const std::vector<float>& forward_result) {
  DeviceBatch batch(p.batch.rows(), p.batch.roots(), true);
  batch.upload(p.batch);
  const Array<float> qkv = on_device(p.qkv), k = on_device(p.k), v = on_device(p.v), dout = on_device(p.dout);
  const size_t rows = size_t(p.batch.rows()), n = rows * p.out_row;
  Array<float> out(n + rows * p.H, true);
  Gradient<float> g(p);
  const Array<float> dk = on_device(g.dk), dv = on_device(g.dv), dqkv = on_device(g.dqkv);
  const Array<float> delta(rows * p.H, true);
  float* const no_scratch = nullptr;
  const auto s = p.attention(batch.forest, qkv.data(), k.data(), v.data(), out.data(), out.data() + n);
  attention(kGpu, s, no_scratch, p.slots);
  if (!forward_result.empty()) out.upload(forward_result.data(), forward_result.size());
  attention_backward(kGpu, AttentionBackward<float>{s, dout.data(), dk.data(), dv.data(), dqkv.data()}, delta.data(),
                     no_scratch, p.slots);
  g.dqkv = to_host(dqkv), g.dk = to_host(dk), g.dv = to_host(dv);
  return g.all(p.D);
}

}  // namespace

TEST_CASE(ON "attention backward has the portable version's bits, and is near its doubles") {
  Chance chance(51);
  const AttentionSize shapes[] = {
      {1, 1, 0, 1, 1, 16, 0},      {4, 64, 0, 2, 2, 24, 0},   {1, 300, 0, 1, 1, 16, 0},
      {2, 45, 70, 4, 2, 33, 0.7},  {1, 20, 200, 3, 1, 64, 1}, {1, 40, 33, 2, 1, 100, 0.4},
      {3, 35, 10, 2, 1, 128, 0.3}, {1, 3, 500, 1, 1, 80, 0},  {1, 40, 20, 1, 1, 32, 2}};  // the last is a star
  int round = 0;
  for (const AttentionSize& shape : shapes) {
    const Batch batch = tree_batch(chance, shape.roots, shape.rows, shape.past, shape.bushy);
    const int turn = round++;
    if (!runs(size_t(turn), 4)) continue;
    AttentionProblem<float> p(batch, shape.H, shape.KV, shape.D, 52);
    AttentionProblem<double> exact(batch, shape.H, shape.KV, shape.D, 52);
    if (turn % 2) p.drop = exact.drop = Dropout{0.2f, 8, 9, 10};
    if (turn % 3) p.span = exact.span = 1 + chance.below(shape.past + 20);
    CAPTURE(batch.rows());
    CAPTURE(p.D);
    std::vector<float> forward_result;
    std::vector<double> forward_exact;
    const std::vector<float> portable = portable_gradient(p, &forward_result);
    CHECK(same_bits(in_every_order([&] { return gradient_on_gpu(p, forward_result); }), portable));

    const std::vector<float> own = gradient_on_gpu(p, {});
    const std::vector<double> doubles = portable_gradient(exact, &forward_exact);
    double most = 0;
    for (size_t i = 0; i < own.size(); i++) most = std::max(most, std::abs(own[i] - doubles[i]));
    CHECK(most < 2e-5);
  }
}

TEST_CASE(ON "a head too large for the tuned kernels is refused in words") {
  Batch batch;
  const int token[] = {0};
  batch.add_chain(token, 1, 0, 0);
  const AttentionProblem<float> p(batch, 1, 1, 129, 1);
  CHECK_NOTHROW(plain_on_gpu(p));
  CHECK_THROWS_WITH_AS(on_gpu(p, false),
                       "heads of 129 channels: the CUDA attention takes up to 128: use --device cpu, or more heads",
                       std::runtime_error);
}

}  // namespace nanospec
