// tests/core/test_operations.cpp: the operations of kernels.cuh and their CPU twins in machine/.
//
// The portable version and the twins give the same bits, for any number of threads; so do a CPU core and a warp of
// 32 lanes (tests/cuda/cuda_rows.cu). What the operations compute is the gradient check's business (test_model.cpp).
#include <doctest/doctest.h>

#include <map>
#include <typeindex>

#include "tests/random.h"
#include "train.h"

using namespace nanospec;

namespace {

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

Forest forest_of(const Batch& batch) {
  return {batch.rows(),      batch.roots(),          batch.end.data(),        batch.depth.data(),
          batch.root.data(), batch.first_row.data(), batch.first_slot.data(), batch.past.data()};
}
// The batch where an earlier forward has run the first n rows of its only root: these lie before row 0.
Batch behind(Batch batch, int n) {
  for (int& end : batch.end) end -= n;
  if (n > 0) batch.first_row = {-n, batch.rows() - n};
  return batch;
}
Forest forest_behind(const Batch& batch, int n) {
  const Forest f = forest_of(batch);
  return {f.rows - n, f.roots, f.end + n, f.depth + n, f.root + n, f.first_row, f.first_slot, f.past};
}

template <class W>
void check_matmul(int rows, int inputs, int outputs, int threads) {
  CAPTURE(rows);
  CAPTURE(inputs);
  CAPTURE(outputs);
  CAPTURE(threads);
  Chance chance(3);
  const int x_row = pad16(inputs) + 16, y_row = pad16(outputs) + 16;
  Panels<W> w{nullptr, inputs, outputs};
  std::vector<W> weight(w.size());
  chance.fill(weight.data(), weight.size());
  w.data = weight.data();
  std::vector<float> x(size_t(rows) * x_row), portable(size_t(rows) * y_row), twin(size_t(rows) * y_row);
  chance.fill(x.data(), x.size());
  Matmul<float, W>{x.data(), x_row, w, portable.data(), y_row}(Solo{}, rows, 0, pad16(outputs));
  Pool pool(threads);
  pool.run([&](const Team& team) { matmul(team, rows, Matmul<float, W>{x.data(), x_row, w, twin.data(), y_row}); });
  CHECK(same_bits(portable, twin));
}

}  // namespace

TEST_CASE("kernels: matmul: the CPU twin has the portable version's bits, whatever the rows, threads and number type") {
  for (int rows : {1, 2, 3, 5, 6, 7, 8, 11, 12, 13, 14, 18, 19, 31, 64})
    for (int threads : {1, 2, 3}) {
      check_matmul<float>(rows, 40, 65, threads);
      check_matmul<bf16>(rows, 33, 100, threads);
      check_matmul<f16>(rows, 33, 100, threads);
    }
  check_matmul<float>(30, 1100, 130, 2);  // more than one block of k
  check_matmul<float>(3, 1100, 16, 2);
}

void check_packing(int in, int out, int threads, bool far, bool tied) {
  CAPTURE(in);
  CAPTURE(out);
  CAPTURE(threads);
  CAPTURE(far);
  CAPTURE(tied);
  std::vector<float> stored(size_t(in) * out);
  Chance(5).fill(stored.data(), stored.size());
  Weight<float, float> weight(stored.data(), in, out, tied);
  const Array<float> memory = place_weights<float, float>({&weight}, true);
  weight.forward.far = weight.transposed.far = far;
  Pool pool(threads);
  pool.run([&](const Team& team) { weight.pack(team); });
  int wrong = 0;
  for (int k = 0; k < in; k++)
    for (int n = 0; n < out; n++) {
      const float it = stored[tied ? n * in + k : k * out + n];
      wrong += *weight.forward.at(k, n) != it;
      wrong += *weight.transposed.at(n, k) != it;
    }
  CHECK(wrong == 0);
}

TEST_CASE("kernels: packing: every number lies where the panel has it, in caches or past them, whatever the threads") {
  for (int threads : {1, 2, 3})
    for (bool far : {false, true})
      for (bool tied : {false, true}) {
        check_packing(16, 16, threads, far, tied);
        check_packing(48, 80, threads, far, tied);
        check_packing(80, 144, threads, far, tied);
        check_packing(64, 65, threads, far, tied);
        check_packing(37, 64, threads, far, tied);
        check_packing(144, 16, threads, far, tied);
      }
}

void check_matmul_gradient(int rows, int inputs, int outputs, int threads) {
  CAPTURE(rows);
  CAPTURE(inputs);
  CAPTURE(outputs);
  CAPTURE(threads);
  const int x_row = pad16(inputs), y_row = pad16(outputs);
  Chance chance(4);
  std::vector<float> x(size_t(rows) * x_row + 16), dy(size_t(rows) * y_row + 16), portable(inputs * outputs);
  chance.fill(x.data(), x.size()), chance.fill(dy.data(), dy.size());
  chance.fill(portable.data(), portable.size());
  std::vector<float> bias(outputs);
  chance.fill(bias.data(), bias.size());
  std::vector<float> twin = portable, twin_bias = bias;
  const MatmulGradient<float> op{rows, inputs, outputs, x.data(), x_row, dy.data(), y_row, portable.data()};
  launch(Team{}, inputs, op);
  column_sum(Team{}, ColumnSum<float>{rows, outputs, dy.data(), y_row, bias.data()});
  Pool pool(threads);
  pool.run([&](const Team& team) {
    MatmulGradient<float> its = op;
    its.dw = twin.data(), its.dbias = twin_bias.data();
    matmul_gradient(team, its);
  });
  CHECK(same_bits(portable, twin));
  CHECK(same_bits(bias, twin_bias));
}

TEST_CASE("kernels: matmul gradient: the CPU twin has the portable version's bits") {
  for (int threads : {1, 2, 3}) {
    for (int rows : {1, 7, 255, 256, 300})
      for (int outputs : {16, 33, 65, 128}) check_matmul_gradient(rows, 37, outputs, threads);
    check_matmul_gradient(300, 60, 1500, threads);  // more than one block of columns where L2 has 2 MB, or of inputs
    check_matmul_gradient(300, 2100, 33, threads);
    check_matmul_gradient(300, 900, 900, threads);
  }
}

TEST_CASE("kernels: tree attention: the CPU twin has the portable version's bits, forward and backward") {
  for (int D : {4, 16, 20, 32, 64})
    for (int round = 0; round < 15; round++) {
      const bool long_tree = round >= 12;             // more than one group of the gradient
      const bool has_run = round >= 6 && !long_tree;  // an earlier forward has run some rows
      const bool adds = round % 4 < 2;  // to gradients of keys and values; else it also need not keep the cache
      const int span = round % 3 == 0 ? 0 : round % 3 == 1 ? 3 : 75;
      CAPTURE(D);
      CAPTURE(round);
      Chance chance(100 + round);
      const int KV = 1 + round % 2, H = KV * (1 + round % 3);
      const int most_rows = long_tree ? 900 : round % 6 < 3 ? 20 : 120;
      const int roots = long_tree ? 3 : has_run ? 1 : 1 + round % 6;
      const Batch whole = random_batch(chance, roots, most_rows, round % 2 ? 90 : 0, 7);
      const int computed = has_run ? std::min(5, whole.rows() - 1) : 0;
      const Batch batch = behind(whole, computed);
      const Forest forest = forest_behind(batch, computed);
      const int slots = whole.slots(), rows = forest.rows, most = pad64(most_keys(whole));
      const int qkv_row = pad16((H + 2 * KV) * D), out_row = pad16(H * D);
      struct Side {
        std::vector<float> k, v, out, log_sum, dk, dv, dqkv;
      } sides[2];
      std::vector<float> qkv(size_t(rows) * qkv_row + 16), dout(size_t(rows) * out_row + 16);
      chance.fill(qkv.data(), qkv.size()), chance.fill(dout.data(), dout.size());
      std::vector<float> k(size_t(KV) * slots * D), v(size_t(KV) * slots * pad16(D), 0),
          scratch_1(size_t(rows) * H * most), scratch_2(scratch_1);
      chance.fill(k.data(), k.size());
      for (int s = 0; s < KV * slots; s++) chance.fill(v.data() + size_t(s) * pad16(D), D);
      const Dropout drop{round % 6 == 5 ? 0.2f : 0.0f, 3, 4, 5};
      for (int twin = 0; twin < 2; twin++) {
        Side& side = sides[twin];
        side.k = k, side.v = v, side.out.resize(size_t(rows) * out_row + 16), side.log_sum.resize(rows * H);
        side.dk.resize(v.size()), side.dv.resize(v.size()), side.dqkv.resize(qkv.size());
        const Attention<float> s{forest,
                                 H,
                                 KV,
                                 D,
                                 qkv.data(),
                                 qkv_row,
                                 {side.k.data(), side.v.data(), slots, D},
                                 side.out.data(),
                                 out_row,
                                 side.log_sum.data(),
                                 drop,
                                 false,
                                 adds,
                                 span};
        const AttentionBackward<float> b{s, dout.data(), side.dk.data(), side.dv.data(), side.dqkv.data(), adds};
        if (twin) {
          Pool pool(1 + round % 3);
          pool.run([&](const Team& team) {
            attention(team, s, scratch_1.data(), most);
            attention_backward(team, b, scratch_1.data(), scratch_2.data(), most);
          });
        } else {
          launch(Team{}, rows, WriteCache<float, float>{s});
          launch(Team{}, rows * H, AttentionForward<float, float>{s, scratch_1.data(), most});
          launch(Team{}, rows * H, AttentionBackwardQueries<float>{b, scratch_1.data(), scratch_2.data(), most});
          launch(Team{}, batch.roots() * KV * most,
                 AttentionBackwardKeys<float>{b, scratch_1.data(), scratch_2.data(), most});
          launch(Team{}, rows, ReadCacheGradient<float>{b});
        }
        for (auto* sum : {&side.dk, &side.dv, &side.dqkv})
          for (float& x : *sum) x += 0.0f;             // a sum of nothing has no sign
        for (int slot = 0; slot < KV * slots; slot++)  // columns beyond D are nobody's
          for (int d = D; d < pad16(D); d++) side.dk[slot * pad16(D) + d] = side.dv[slot * pad16(D) + d] = 0;
      }
      CHECK(same_bits(sides[0].out, sides[1].out));
      CHECK(same_bits(sides[0].log_sum, sides[1].log_sum));
      CHECK(same_bits(sides[0].dqkv, sides[1].dqkv));
      if (!adds) continue;
      CHECK(same_bits(sides[0].k, sides[1].k));
      CHECK(same_bits(sides[0].v, sides[1].v));
      CHECK(same_bits(sides[0].dk, sides[1].dk));
      CHECK(same_bits(sides[0].dv, sides[1].dv));
    }
}

TEST_CASE(
    "kernels: a cache of bf16: the CPU twin has the portable version's bits, and attends to rounded keys and values") {
  for (int D : {3, 16, 20, 64})
    for (int round = 0; round < 6; round++) {
      CAPTURE(D);
      CAPTURE(round);
      Chance chance(300 + round);
      const int KV = 1 + round % 2, H = KV * (1 + round % 3), wide = pad16(D), span = round % 2 ? 0 : 70;
      const Batch batch = random_batch(chance, 1, round < 3 ? 9 : 60, round % 2 ? kLongPast + 7 : 0, 7);
      const Forest forest = forest_of(batch);
      const int slots = batch.slots(), rows = batch.rows(), most = pad64(most_keys(batch));
      const int qkv_row = pad16((H + 2 * KV) * D), out_row = pad16(H * D);
      std::vector<float> qkv(size_t(rows) * qkv_row + 16), scratch(size_t(rows) * H * (most + kLanes));
      chance.fill(qkv.data(), qkv.size());
      const size_t keys = KV * KeyValues<bf16>::key_numbers(slots, D), values = size_t(KV) * slots * wide;
      std::vector<bf16> k(keys), v(values), twin_k, twin_v;
      std::vector<float> plain_k(size_t(KV) * slots * D), plain_v(values), out[3];
      const KeyValues<bf16> cache{k.data(), v.data(), slots, D};
      const KeyValues<float> plain{plain_k.data(), plain_v.data(), slots, D};
      for (int head = 0; head < KV; head++)
        for (int slot = 0; slot < slots; slot++)
          for (int d = 0; d < D; d++) {
            *cache.key(head, slot, d) = rounded<bf16>(chance.number() - 0.5);
            *cache.value(head, slot, d) = rounded<bf16>(chance.number() - 0.5);
            *plain.key(head, slot, d) = to_float(*cache.key(head, slot, d));
            *plain.value(head, slot, d) = to_float(*cache.value(head, slot, d));
          }
      twin_k = k, twin_v = v;
      for (auto& o : out) o.resize(size_t(rows) * out_row + 16);
      const auto with = [&](auto cached, std::vector<float>& o) {
        return Attention<float, std::remove_reference_t<decltype(*cached.k)>>{
            forest, H, KV, D, qkv.data(), qkv_row, cached, o.data(), out_row, nullptr, {}, false, true, span};
      };
      const auto portable = with(cache, out[0]);
      launch(Team{}, rows, WriteCache<float, bf16>{portable});
      launch(Team{}, rows * H, AttentionForward<float, bf16>{portable, scratch.data(), most});
      Pool(1 + (round + 1) % 3).run([&](const Team& team) {  // three threads share the keys of two heads
        attention(team, with(KeyValues<bf16>{twin_k.data(), twin_v.data(), slots, D}, out[1]), scratch.data(), most);
      });
      CHECK(std::memcmp(k.data(), twin_k.data(), keys * sizeof(bf16)) == 0);
      CHECK(std::memcmp(v.data(), twin_v.data(), values * sizeof(bf16)) == 0);
      CHECK(same_bits(out[0], out[1]));
      // The same sums over floats that hold the rounded numbers.
      for (int row = 0; row < rows; row++)
        for (int c = H * D; c < (H + 2 * KV) * D; c++) {
          float& x = qkv[size_t(row) * qkv_row + c];
          x = to_float(to_bf16(x));
        }
      attention(Team{}, with(plain, out[2]), scratch.data(), most);
      CHECK(same_bits(out[0], out[2]));
    }
}

TEST_CASE("kernels: attention by hand: two keys, the first seen twice as much") {
  // one head of size 1, q = 1: scores log 2 and 0, values 3 and 6 -> (2/3) 3 + (1/3) 6 = 4
  Batch batch;
  const int token[] = {0, 0}, depth[] = {0, 1}, end[] = {2, 2};
  batch.add_tree(token, depth, end, 2, 0, 0);
  std::vector<float> qkv(32, 0), k(64), v(64 * 16), out(32), log_sum(2);
  qkv[0] = 1, qkv[1] = std::log(2.0f), qkv[2] = 3;
  qkv[16] = 1, qkv[17] = 0, qkv[18] = 6;
  attention<float>(
      Team{},
      Attention<float>{
          forest_of(batch), 1, 1, 1, qkv.data(), 16, {k.data(), v.data(), 64, 1}, out.data(), 16, log_sum.data(), {}},
      nullptr, 0);
  CHECK(out[0] == 3.0f);
  CHECK(out[16] == doctest::Approx(4.0f).epsilon(1e-6));
  CHECK(log_sum[1] == doctest::Approx(std::log(3.0f)).epsilon(1e-6));
}

// ---------------------------------------------------------------------------------------------------------------
// Attention whose first rows were computed before, and caterpillars

namespace {

// One forward through one layer's attention, and back.
template <class T>
struct Heads {
  Batch batch, others = {};  // others: behind rows that an earlier forward has run
  int H, KV, D, slots, qkv_row, out_row, span = 0;
  Dropout drop;
  std::vector<T> qkv, dout, k, v, out, log_sum, dk, dv, dqkv;

  Heads(const Batch& rows, int n_head, int n_kv_head, int head_size, uint64_t seed)
      : batch(rows),
        H(n_head),
        KV(n_kv_head),
        D(head_size),
        slots(rows.slots()),
        qkv_row(pad16((H + 2 * KV) * D)),
        out_row(pad16(H * D)),
        qkv(size_t(batch.rows()) * qkv_row + 16),
        dout(size_t(batch.rows()) * out_row + 16),
        k(size_t(KV) * slots * D),
        v(size_t(KV) * slots * pad16(D)),
        out(dout.size()),
        log_sum(size_t(batch.rows()) * H),
        dk(v.size()),
        dv(v.size()),
        dqkv(qkv.size()) {
    Chance chance(seed);
    for (auto* numbers : {&qkv, &dout, &k, &v}) chance.fill(numbers->data(), numbers->size());
  }
  // Of `rows`, which may be the first of the batch's own. An earlier forward has run the first `computed` of them.
  Attention<T> attention_of(const Batch& rows, int computed) {
    const KeyValues<T> cache{k.data(), v.data(), slots, D};
    Dropout its = drop;
    its.first_row += computed;
    others = behind(rows, computed);
    return {forest_behind(others, computed),
            H,
            KV,
            D,
            qkv.data() + computed * qkv_row,
            qkv_row,
            cache,
            out.data() + computed * out_row,
            out_row,
            log_sum.data() + computed * H,
            its,
            false,
            true,
            span};
  }
  AttentionBackward<T> backward_of(const Batch& rows, int computed) {
    return {attention_of(rows, computed), dout.data() + computed * out_row, dk.data(), dv.data(),
            dqkv.data() + computed * qkv_row};
  }
  std::vector<T> scratch() const {
    return std::vector<T>(size_t(batch.rows()) * H * (slots + kLanes), Format<T>::kNaN);
  }
  void forward(const Batch& rows, int computed, int threads = 1) {
    std::vector<T> weights = scratch();
    const Attention<T> s = attention_of(rows, computed);
    Pool(threads).run([&](const Team& t) { attention(t, s, weights.data(), slots); });
  }
  void backward(const Batch& rows, int computed, int threads = 1) {
    std::vector<T> p = scratch(), ds = scratch();
    const AttentionBackward<T> b = backward_of(rows, computed);
    Pool(threads).run([&](const Team& t) { attention_backward(t, b, p.data(), ds.data(), slots); });
  }
  void portable(int computed) {
    const AttentionBackward<T> b = backward_of(batch, computed);
    const Attention<T>& s = b.forward;
    const int rows = s.forest.rows;
    std::vector<T> p = scratch(), ds = scratch();
    launch(Team{}, rows, WriteCache<T, T>{s});
    launch(Team{}, rows * H, AttentionForward<T, T>{s, p.data(), slots});
    launch(Team{}, rows * H, AttentionBackwardQueries<T>{b, p.data(), ds.data(), slots});
    launch(Team{}, batch.roots() * KV * slots, AttentionBackwardKeys<T>{b, p.data(), ds.data(), slots});
    launch(Team{}, rows, ReadCacheGradient<T>{b});
  }
  // dk, dv, dqkv; columns beyond D are nobody's, and a sum of nothing has no sign.
  std::vector<T> gradient() const {
    std::vector<T> all;
    for (const auto* sums : {&dk, &dv})
      for (size_t i = 0; i < sums->size(); i++) all.push_back(int(i % pad16(D)) < D ? (*sums)[i] + T(0) : T(0));
    for (T x : dqkv) all.push_back(x + T(0));
    return all;
  }
};

// A stream of n rows, then K slots hanging from each of them, the last one's first.
Batch caterpillar(int n, int K, int past) {
  std::vector<int> token(n + n * K, 0), depth, end;
  for (int t = 0; t < n; t++) depth.push_back(t), end.push_back(n + (n - t) * K);
  for (int p = n - 1; p >= 0; p--)
    for (int d = 1; d <= K; d++) depth.push_back(p + d), end.push_back(n + (n - p) * K);
  Batch batch;
  batch.add_tree(token.data(), depth.data(), end.data(), int(token.size()), 0, past);
  return batch;
}

Batch branching(Chance& chance) {
  const RandomTree tree = random_tree(chance, 90, 7, 0.4);
  Batch batch;
  batch.add_tree(tree.token.data(), tree.depth.data(), tree.end.data(), 90, 0, 19);
  return batch;
}

// The first n rows of a batch of one root.
Batch first_rows(const Batch& whole, int n) {
  std::vector<int> end(whole.end.begin(), whole.end.begin() + n);
  for (int& e : end) e = std::min(e, n);
  const std::vector<int> token(n, 0);
  Batch batch;
  batch.add_tree(token.data(), whole.depth.data(), end.data(), n, 0, whole.past[0]);
  return batch;
}

template <class T>
double greatest_difference(const std::vector<T>& a, const std::vector<T>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); i++) most = std::max(most, std::abs(double(a[i]) - double(b[i])));
  return most;
}

// Rows computed before are left out: not their queries, keys or values, and nothing of theirs is written.
template <class T>
void check_computed_forward(const Batch& batch, int computed) {
  CAPTURE(batch.rows());
  CAPTURE(computed);
  Heads<T> whole(batch, 4, 2, 20, 61);
  whole.forward(batch, 0);
  Heads<T> part = whole;
  std::fill_n(part.qkv.begin(), computed * part.qkv_row, Format<T>::kNaN);
  std::fill(part.out.begin(), part.out.end(), T(7)), std::fill(part.log_sum.begin(), part.log_sum.end(), T(7));
  part.forward(batch, computed, 2);
  CHECK((same_bits(part.k, whole.k) && same_bits(part.v, whole.v)));
  bool same = true;
  for (int row = 0; row < batch.rows(); row++)
    for (int c = 0; c < part.H * part.D; c++) {
      const T expected = row < computed ? T(7) : whole.out[row * whole.out_row + c];
      const T log_expected = row < computed ? T(7) : whole.log_sum[row * whole.H + c / part.D];
      same = same && part.out[row * part.out_row + c] == expected;
      same = same && part.log_sum[row * part.H + c / part.D] == log_expected;
    }
  CHECK(same);
}

// The gradients of a whole batch, and those of its two parts: the rows that come last first.
template <class T>
double parted_gradient_error(const Batch& batch, int computed, float dropout) {
  Heads<T> whole(batch, 4, 2, 20, 62);
  whole.drop = {dropout, 5, 6, 7};
  whole.forward(batch, 0);
  Heads<T> parts = whole;
  whole.backward(batch, 0);
  parts.backward(batch, computed);
  for (int row = 0; row < computed; row++)
    for (int c = 0; c < parts.qkv_row; c++) CHECK(parts.dqkv[row * parts.qkv_row + c] == 0);
  parts.backward(first_rows(batch, computed), 0);
  return greatest_difference(whole.gradient(), parts.gradient());
}

}  // namespace

TEST_CASE("kernels: attention: rows computed before are left alone, and the others have the whole batch's bits") {
  Chance chance(60);
  for (int computed : {1, 7, 40}) {
    for (const Batch& batch : {caterpillar(40, 3, 0), caterpillar(40, 3, 21), branching(chance)}) {
      check_computed_forward<float>(batch, computed);
      check_computed_forward<double>(batch, computed);
    }
  }
}

TEST_CASE("kernels: attention: the gradient of a batch is that of its parts, later rows first") {
  Chance chance(63);
  const Batch tree = branching(chance);
  for (float dropout : {0.0f, 0.2f})
    for (int computed : {1, 30, 57})
      for (const Batch& batch : {caterpillar(30, 4, 0), caterpillar(30, 4, 21), tree}) {
        CAPTURE(computed);
        CHECK(parted_gradient_error<double>(batch, computed, dropout) < 1e-12);
        CHECK(parted_gradient_error<float>(batch, computed, dropout) < 1e-5);
      }
}

TEST_CASE(
    "kernels: attention with a sliding window: a row's bits depend on no key beyond its span, but on all others") {
  Chance chance(67);
  for (int past : {0, 21, 200})
    for (int span : {1, 2, 9, 64, 150}) {
      Heads<float> one(random_batch(chance, 1, 40, past, 7), 4, 2, 20, 68);
      one.span = span;
      Heads<float> all = one;
      all.span = 0;
      const Forest f = forest_of(one.batch);
      const int row = chance.below(f.rows), own = f.position(row), its_past = f.past[0];
      const int key = chance.below(its_past + 1);  // of the past, or the root
      one.forward(one.batch, 0), all.forward(all.batch, 0);
      Heads<float> other = one;
      if (key < its_past) *KeyValues<float>{other.k.data(), other.v.data(), one.slots, one.D}.value(1, key, 3) += 1;
      else other.qkv[size_t(7 * one.D + 3)] += 1;
      other.forward(other.batch, 0);
      const float *a = &one.out[size_t(row) * one.out_row], *b = &other.out[size_t(row) * one.out_row];
      CAPTURE(past);
      CAPTURE(span);
      CHECK(std::equal(a, a + 4 * one.D, b) == (key <= own - span));
      if (own < span) CHECK(std::equal(a, a + 4 * one.D, &all.out[size_t(row) * one.out_row]));
    }
}

TEST_CASE("kernels: attention: threads that share the keys of each head have the portable version's bits") {
  Chance chance(65);
  for (int past : {kLongPast - 1, kLongPast, 299})
    for (int rows : {1, 5, kRowsByKeys, kRowsByKeys + 1})
      for (int KV : {1, 3})
        for (int queries : {1, 3}) {
          CAPTURE(past);
          CAPTURE(rows);
          CAPTURE(KV);
          CAPTURE(queries);
          const int D = queries == 1 ? 20 : 64;
          const Batch tree = random_batch(chance, 1, rows, past, 7);
          for (const Batch& batch : {tree, caterpillar(rows, 0, past)}) {
            Heads<float> portable(batch, KV * queries, KV, D, 66);
            portable.span = chance.below(2) * (1 + chance.below(past));
            Heads<float> two = portable, four = portable;
            portable.portable(0), two.forward(batch, 0, 2), four.forward(batch, 0, 4);
            CHECK(same_bits(portable.out, two.out));
            CHECK(same_bits(portable.out, four.out));
            CHECK(same_bits(portable.k, four.k));
            CHECK(same_bits(portable.v, four.v));
          }
        }
}

TEST_CASE("kernels: attention in a caterpillar: the CPU twin has the portable version's bits") {
  for (int past : {0, 21})
    for (int computed : {0, 50, 60})
      for (float dropout : {0.0f, 0.3f}) {
        CAPTURE(past);
        CAPTURE(computed);
        const Batch batch = caterpillar(50, 5, past);
        Heads<float> portable(batch, 4, 2, 20, 64);
        portable.drop = {dropout, 5, 6, 7};
        Heads<float> twin = portable;
        portable.portable(computed), twin.forward(batch, computed, 2), twin.backward(batch, computed, 2);
        CHECK(same_bits(portable.out, twin.out));
        CHECK(same_bits(portable.log_sum, twin.log_sum));
        CHECK(same_bits(portable.gradient(), twin.gradient()));
      }
}

TEST_CASE("kernels: attention in a caterpillar: a slot has the bits that it would have in an ordinary sequence") {
  const int n = 70, K = 6;
  const Batch batch = caterpillar(n, K, 0);
  for (int computed : {0, n}) {
    Heads<float> all(batch, 6, 2, 32, 65);
    if (computed) all.forward(first_rows(batch, n), 0);
    all.forward(batch, computed);
    for (int p : {0, 1, 15, 16, 40, n - 1}) {
      CAPTURE(p);
      std::vector<int> rows, token(p + 1 + K, 0);
      for (int t = 0; t <= p; t++) rows.push_back(t);
      for (int d = 1; d <= K; d++) rows.push_back(n + (n - 1 - p) * K + d - 1);
      Batch sequence;
      sequence.add_chain(token.data(), int(rows.size()), 0, 0);
      Heads<float> alone(sequence, 6, 2, 32, 66);
      for (size_t i = 0; i < rows.size(); i++)
        std::copy_n(&all.qkv[rows[i] * all.qkv_row], all.qkv_row, &alone.qkv[i * all.qkv_row]);
      alone.forward(sequence, 0);
      for (size_t i = 0; i < rows.size(); i++) {
        CHECK(memcmp(&alone.out[i * all.out_row], &all.out[rows[i] * all.out_row], sizeof(float) * 6 * 32) == 0);
        CHECK(memcmp(&alone.log_sum[i * 6], &all.log_sum[rows[i] * 6], sizeof(float) * 6) == 0);
      }
    }
  }
}

TEST_CASE("kernels: attention skips the blocks of keys that no row of a tile sees, and no other") {
  Chance chance(67);
  const auto scored = [](const Batch& batch, int root, int tall, int computed) {  // keys times rows
    const Forest f = forest_of(batch);
    const int first = f.first_row[root], last = f.first_row[root + 1], past = f.past[root];
    std::vector<int> ends(batch.slots() / 16);
    ends_of_blocks(f, root, ends.data());
    int64_t total = 0;
    for (int row = first + computed; row < last; row += tall) {
      const int end = std::min(row + tall, last), keys = past + end - first;
      const auto seen_by = [&](int from, int to, int key) {  // how many of the rows see the key
        int rows = 0;
        for (int r = from; r < to; r++) rows += key < past || f.sees(r, first + key - past);
        return rows;
      };
      std::vector<char> in(keys + 16), expected(keys + 16);
      for (int key = 0; key < keys; key++)
        if (seen_by(row, end, key) > 0) std::fill_n(expected.begin() + key / 16 * 16, 16, 1);
      int after = -1;
      each_run(ends.data(), 0, keys, row, [&](int begin, int stop) {
        CHECK(begin > after);  // stretches are whole: what touches is one
        after = stop;
        for (int key = begin; key < stop; key++) in[key] = 1;
        total += int64_t(stop - begin) * (end - row);
      });
      CHECK(in == expected);
      int shared = 0;
      while (shared < keys && seen_by(row, end, shared) == end - row) shared++;
      CHECK(shared_keys(f, root, row, end) == shared);
    }
    return total;
  };
  for (int tall : {1, 6, 24, 48})
    for (int round = 0; round < 4; round++) {
      const Batch batch = random_batch(chance, 3, 150, round % 2 ? 90 : 0, 7);
      for (int root = 0; root < 3; root++) scored(batch, root, tall, 0);
      scored(caterpillar(40, 3, round * 9), 0, tall, round % 2 ? 40 : 0);
    }
  // A slot sees 125 stream keys on average, and up to 6 of its own; of blocks not passed over, there would be 1,000.
  const int64_t slots = 250 * 6, most = scored(caterpillar(250, 6, 0), 0, 24, 250);
  CHECK(most > slots * 128);
  CHECK(most < slots * 180);
}

TEST_CASE("kernels: dropout keeps what it should, and scales it") {
  const Dropout drop{0.25f, 11, 3, 2};
  int kept = 0;
  for (int i = 0; i < 100000; i++) {
    const float keep = drop.factor<float>(i);
    CHECK((keep == 0.0f || keep == 1 / 0.75f));
    kept += keep > 0;
  }
  CHECK(std::abs(kept - 75000) < 5 * std::sqrt(100000 * 0.25 * 0.75));
  Dropout next = drop;
  next.iteration++;
  int same = 0;
  for (int i = 0; i < 1000; i++) same += next.factor<float>(i) == drop.factor<float>(i);
  CHECK(same < 750);
}

TEST_CASE("kernels: dropout of a run of numbers is that of each number") {
  const Dropout drop{0.3f, 12, 5, 9, 4};
  for (uint64_t first : {uint64_t(0), uint64_t(1), uint64_t(63), uint64_t(1) << 40})
    for (int n = 0; n < 200; n++) {
      int next = 0;
      each_factor(drop, first, n,
                  [&](int i, float keep) { CHECK((i == next++ && keep == drop.factor<float>(first + i))); });
      CHECK(next == n);
    }
}

TEST_CASE("kernels: dropout of rows is the portable version's on any team, in place too, and leaves the padding") {
  Chance chance(77);
  const int rows = 13, channels = 70, stride = 80;
  std::vector<float> x(size_t(rows) * stride);
  chance.fill(x.data(), x.size());
  const Dropout drop_some{0.4f, 3, 2, 1, 20};
  std::vector<float> portable = x;
  launch_columns(Team{}, rows, channels, Drop<float>{x.data(), portable.data(), stride, channels, drop_some});
  for (int i = 0; i < rows * stride; i++) {
    const int row = i / stride, c = i % stride;
    const float keep = c < channels ? drop_some.factor<float>(uint64_t(20 + row) * channels + c) : 1.0f;
    CHECK(portable[i] == x[i] * keep);
  }
  for (int threads : {1, 3}) {
    std::vector<float> in_place = x;
    Pool(threads).run([&](const Team& team) {
      drop(team, rows, Drop<float>{in_place.data(), in_place.data(), stride, channels, drop_some});
    });
    CHECK(in_place == portable);
  }
}

namespace {

// Counts the operations that begin on this thread, by their types.
struct Began : Observer {
  std::map<std::type_index, int> counts;
  Began() { observer = this; }
  ~Began() override { observer = nullptr; }
  void begins(const std::type_info& type, const void*) override { counts[type]++; }
  template <class... Ops>
  int of() {
    return (counts[typeid(Ops)] + ...);
  }
};

// How often an update of one sequence began what stands in for twins: all portable versions, and how often the gradient
// of a weight, which counts once more where its portable version runs.
template <class T>
std::pair<int, int> portable_runs(const Config& config) {
  Chance chance(12);
  Pool pool(1);
  Trainer<T> trainer(config, pool);
  trainer.initialize(1);
  Began began;
  trainer.step(random_batch(chance, 1, 20, 0, config.vocab_size), {}, {0.1f, 1, 1, 0});
  return {began.of<ColumnBlocks<Matmul<T, T>>, AttentionForward<T, T>, AttentionBackwardQueries<T>,
                   AttentionBackwardKeys<T>, ReadCacheGradient<T>, Strips<Drop<T>>>(),
          began.of<MatmulGradient<T>>()};
}

}  // namespace

TEST_CASE("kernels: an update in float runs the twin of every operation that has one, in double the portable version") {
  for (bool llama : {false, true}) {
    Config config = small_config(3, 32);
    config.rotary = config.swiglu = llama;
    const int weights = 4 * 3 + 1, products = 2 * weights, attention = 3 * 4, drops = 2 + 2 * 2 * 3;
    CHECK(portable_runs<float>(config) == std::make_pair(0, weights));
    CHECK(portable_runs<double>(config) == std::make_pair(products + attention + drops, 2 * weights));
  }
}

TEST_CASE("threads: a team's shares cover the work once, and a pool runs every one of them") {
  for (int n : {0, 1, 7, 64, 65, 1000})
    for (int unit : {1, 16})
      for (int size : {1, 2, 3, 5}) {
        int at = 0;
        for (int rank = 0; rank < size; rank++) {
          const Range mine = Team{rank, size, nullptr, false}.share(n, unit);
          CHECK(mine.begin == at);
          CHECK((mine.begin % unit == 0 || mine.begin == n));
          at = mine.end;
        }
        CHECK(at == n);
      }
  Pool pool(3);
  std::vector<int> count(3, 0), seen(3, 0);
  for (int round = 0; round < 200; round++)
    pool.run([&](const Team& team) {
      count[team.rank]++;
      team.wait();
      seen[team.rank] += count[0] + count[1] + count[2] == 3 * (round + 1);
      team.wait();
    });
  for (int rank = 0; rank < 3; rank++) CHECK(seen[rank] == 200);
}
