// tests/test_operations.cpp: the operations of operations.h and their CPU twins in cpu.h.
//
// The portable text and the tuned twins give the same bits, for any number of threads; so do a CPU core and a warp of
// 32 lanes (cuda_rows.cu). What the operations compute is the gradient check's business (test_model.cpp).
#include <doctest/doctest.h>

#include "random.h"

using namespace nanospec;

namespace {

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

Forest forest_of(const Pass& pass) {
  return {pass.rows(),      pass.roots(),          pass.end.data(),        pass.depth.data(),
          pass.root.data(), pass.first_row.data(), pass.first_slot.data(), pass.past.data()};
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
  launch(Team{}, rows, Matmul<float, W>{x.data(), x_row, w, portable.data(), y_row});
  Pool pool(threads);
  pool.run([&](const Team& team) { matmul(team, rows, Matmul<float, W>{x.data(), x_row, w, twin.data(), y_row}); });
  CHECK(same_bits(portable, twin));
}

}  // namespace

TEST_CASE("matmul: the CPU twin has the portable text's bits, whatever the rows, threads and number type") {
  for (int rows : {1, 2, 3, 5, 6, 7, 8, 11, 12, 13, 14, 18, 19, 31, 64})
    for (int threads : {1, 2, 3}) {
      check_matmul<float>(rows, 40, 65, threads);
      check_matmul<bf16>(rows, 33, 100, threads);
    }
  check_matmul<float>(30, 1100, 130, 2);  // more than one block of k
  check_matmul<float>(3, 1100, 16, 2);
}

TEST_CASE("matmul gradient: the CPU twin has the portable text's bits") {
  for (int rows : {1, 7, 255, 256, 300})
    for (int threads : {1, 2, 3})
      for (int outputs : {16, 33, 65, 128}) {
        CAPTURE(rows);
        CAPTURE(threads);
        CAPTURE(outputs);
        const int inputs = 37, x_row = 48, y_row = pad16(outputs);
        Chance chance(4);
        std::vector<float> x(size_t(rows) * x_row + 16), dy(size_t(rows) * y_row + 16), portable(inputs * outputs);
        chance.fill(x.data(), x.size()), chance.fill(dy.data(), dy.size());
        chance.fill(portable.data(), portable.size());
        std::vector<float> twin = portable;
        launch(Team{}, inputs,
               MatmulGradient<float>{rows, inputs, outputs, x.data(), x_row, dy.data(), y_row, portable.data()});
        Pool pool(threads);
        pool.run([&](const Team& team) {
          matmul_gradient(team,
                          MatmulGradient<float>{rows, inputs, outputs, x.data(), x_row, dy.data(), y_row, twin.data()});
        });
        CHECK(same_bits(portable, twin));
      }
}

TEST_CASE("tree attention: the CPU twin has the portable text's bits, forward and backward") {
  for (int D : {4, 16, 20, 32, 64})
    for (int round = 0; round < 6; round++) {
      CAPTURE(D);
      CAPTURE(round);
      Chance chance(100 + round);
      const int KV = 1 + round % 2, H = KV * (1 + round % 3);
      const Pass pass = random_pass(chance, 1 + round, round < 3 ? 20 : 120, round % 2 ? 90 : 0, 7);
      const Forest forest = forest_of(pass);
      const int slots = slots_of(pass), rows = pass.rows(), most = pad64(pass.most_keys());
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
      const Dropout drop{round == 5 ? 0.2f : 0.0f, 3, 4, 5};
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
                                 drop};
        const AttentionBackward<float> b{s, dout.data(), side.dk.data(), side.dv.data(), side.dqkv.data()};
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
          launch(Team{}, pass.roots() * KV * most,
                 AttentionBackwardKeys<float>{b, scratch_1.data(), scratch_2.data(), most});
          launch(Team{}, rows, ReadCacheGradient<float>{b});
        }
        for (auto* sum : {&side.dk, &side.dv, &side.dqkv})
          for (float& x : *sum) x += 0.0f;             // a sum of nothing has no sign
        for (int slot = 0; slot < KV * slots; slot++)  // columns beyond D are nobody's
          for (int d = D; d < pad16(D); d++) side.dk[slot * pad16(D) + d] = side.dv[slot * pad16(D) + d] = 0;
      }
      CHECK(same_bits(sides[0].k, sides[1].k));
      CHECK(same_bits(sides[0].v, sides[1].v));
      CHECK(same_bits(sides[0].out, sides[1].out));
      CHECK(same_bits(sides[0].log_sum, sides[1].log_sum));
      CHECK(same_bits(sides[0].dqkv, sides[1].dqkv));
      CHECK(same_bits(sides[0].dk, sides[1].dk));
      CHECK(same_bits(sides[0].dv, sides[1].dv));
    }
}

TEST_CASE("a cache of bf16: the CPU twin has the portable text's bits, and attends to rounded keys and values") {
  for (int D : {3, 16, 20, 64})
    for (int round = 0; round < 6; round++) {
      CAPTURE(D);
      CAPTURE(round);
      Chance chance(300 + round);
      const int KV = 1 + round % 2, H = KV * (1 + round % 3), wide = pad16(D);
      const Pass pass = random_pass(chance, 1, round < 3 ? 9 : 60, round % 2 ? 91 : 0, 7);
      const Forest forest = forest_of(pass);
      const int slots = slots_of(pass), rows = pass.rows(), most = pad64(pass.most_keys());
      const int qkv_row = pad16((H + 2 * KV) * D), out_row = pad16(H * D);
      std::vector<float> qkv(size_t(rows) * qkv_row + 16), scratch(size_t(rows) * H * most);
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
            forest, H, KV, D, qkv.data(), qkv_row, cached, o.data(), out_row, nullptr, {}};
      };
      const auto portable = with(cache, out[0]);
      launch(Team{}, rows, WriteCache<float, bf16>{portable});
      launch(Team{}, rows * H, AttentionForward<float, bf16>{portable, scratch.data(), most});
      Pool(1 + round % 3).run([&](const Team& team) {
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

TEST_CASE("attention by hand: two keys, the first seen twice as much") {
  // one head of size 1, q = 1: scores log 2 and 0, values 3 and 6 -> (2/3) 3 + (1/3) 6 = 4
  Pass pass;
  const int token[] = {0, 0}, depth[] = {0, 1}, end[] = {2, 2};
  pass.add_tree(token, depth, end, 2, 0, 0);
  std::vector<float> qkv(32, 0), k(64), v(64 * 16), out(32), log_sum(2);
  qkv[0] = 1, qkv[1] = std::log(2.0f), qkv[2] = 3;
  qkv[16] = 1, qkv[17] = 0, qkv[18] = 6;
  attention<float>(
      Team{},
      Attention<float>{
          forest_of(pass), 1, 1, 1, qkv.data(), 16, {k.data(), v.data(), 64, 1}, out.data(), 16, log_sum.data(), {}},
      nullptr, 0);
  CHECK(out[0] == 3.0f);
  CHECK(out[16] == doctest::Approx(4.0f).epsilon(1e-6));
  CHECK(log_sum[1] == doctest::Approx(std::log(3.0f)).epsilon(1e-6));
}

TEST_CASE("dropout keeps what it should, and scales it") {
  const Dropout drop{0.25f, 11, 3, 2};
  int kept = 0;
  for (int i = 0; i < 100000; i++) {
    const float keep = drop.keep<float>(i);
    CHECK((keep == 0.0f || keep == 1 / 0.75f));
    kept += keep > 0;
  }
  CHECK(std::abs(kept - 75000) < 5 * std::sqrt(100000 * 0.25 * 0.75));
  Dropout next = drop;
  next.iteration++;
  int same = 0;
  for (int i = 0; i < 1000; i++) same += next.keep<float>(i) == drop.keep<float>(i);
  CHECK(same < 750);
}

TEST_CASE("a team's shares cover the work once, and a pool runs every one of them") {
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
