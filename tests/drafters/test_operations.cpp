// tests/drafters/test_operations.cpp: the operations of drafters/operations.h, by hand and by their gradients.
//
// That a warp gives a core's bits is checked in tests/cuda/cuda_rows.cu.
#include <doctest/doctest.h>

#include <algorithm>

#include "drafters/operations.h"
#include "tests/random.h"
#include "train.h"

using namespace nanospec;

namespace {

Forest forest_of(const Batch& batch) {
  return {batch.rows(),      batch.roots(),          batch.end.data(),        batch.depth.data(),
          batch.root.data(), batch.first_row.data(), batch.first_slot.data(), batch.past.data()};
}
double greatest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); i++) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

// Central differences of loss() by each of x's numbers, against the gradient.
template <class F>
void check_slopes(std::vector<double>& x, const std::vector<double>& gradient, const F& loss) {
  REQUIRE(x.size() == gradient.size());
  for (size_t i = 0; i < x.size(); i++) {
    CAPTURE(i);
    const double kept = x[i], step = 1e-5;
    x[i] = kept + step;
    const double above = loss();
    x[i] = kept - step;
    const double below = loss();
    x[i] = kept;
    CHECK(std::abs((above - below) / (2 * step) - gradient[i]) < 1e-8);
  }
}
double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); i++) sum += a[i] * b[i];
  return sum;
}
std::vector<double> random_numbers(Chance& chance, size_t n) {
  std::vector<double> numbers(n);
  chance.fill(numbers.data(), n);
  return numbers;
}

}  // namespace

TEST_CASE("operations: RMS norm by hand, and its gradients") {
  const double x[] = {3, -4}, weight[] = {2, 10};
  double y[2], rstd;
  rms_norm<double>(x, 2, 2, nullptr, y, 2, &rstd)(Solo{}, 0);
  CHECK(rstd == doctest::Approx(1 / std::sqrt(12.5)).epsilon(1e-6));
  CHECK(y[0] == 3 * rstd);
  CHECK(y[1] == -4 * rstd);
  rms_norm<double>(x, 2, 2, weight, y, 2, nullptr)(Solo{}, 0);
  CHECK(y[0] == 6 * rstd);
  CHECK(y[1] == -40 * rstd);
  const double nothing[] = {0, 0};
  rms_norm<double>(nothing, 2, 2, nullptr, y, 2, &rstd)(Solo{}, 0);
  CHECK((y[0] == 0 && y[1] == 0));
  CHECK(rstd == doctest::Approx(1000));

  constexpr int rows = 3, C = 37;
  for (bool weighted : {false, true}) {
    Chance chance(70);
    std::vector<double> in = random_numbers(chance, rows * C), w = random_numbers(chance, C),
                        dy = random_numbers(chance, rows * C), out(rows * C), r(rows), dx(rows * C), dw(C, 0.5);
    const double* used = weighted ? w.data() : nullptr;
    const auto loss = [&] {
      launch(Team{}, rows, rms_norm<double>(in.data(), C, C, used, out.data(), C, r.data()));
      return dot(out, dy);
    };
    loss();
    std::fill(dx.begin(), dx.end(), 0.25);  // what it is added to
    launch(Team{}, rows, NormBackward<double>{in.data(), C, C, used, nullptr, r.data(), dy.data(), C, dx.data()});
    for (double& d : dx) d -= 0.25;
    norm_weights(Team{},
                 NormWeights<double>{rows, in.data(), C, C, nullptr, r.data(), dy.data(), C, dw.data(), nullptr});
    for (double& d : dw) d -= 0.5;
    check_slopes(in, dx, loss);
    if (weighted) check_slopes(w, dw, loss);
  }
}

TEST_CASE("operations: Rope by hand: each pair turns by its own angle, and values stay") {
  Batch batch;
  const int token[] = {0, 0};
  batch.add_chain(token, 2, 0, 3);  // positions 3 and 4
  const auto table = rope_table<double>(5, 4);
  REQUIRE(table.size() == 5 * 2 * 2);
  CHECK((table[0] == 1 && table[1] == 0 && table[2] == 1 && table[3] == 0));
  CHECK(table[4 * 4 + 2] == doctest::Approx(std::cos(0.04)).epsilon(1e-14));  // position 4, pair 1: 4 / 10000^(2/4)
  const auto slower = rope_table<double>(5, 4, 10000, {1, 8});                // pair 1 turns an eighth as fast
  CHECK(slower[4 * 4] == table[4 * 4]);
  CHECK(slower[4 * 4 + 2] == doctest::Approx(std::cos(0.005)).epsilon(1e-14));

  std::vector<double> qkv(2 * 16);
  for (int i = 0; i < 32; i++) qkv[i] = i + 1;
  std::vector<double> turned = qkv;
  launch(Team{}, 2, Rope<double>{forest_of(batch), 1, turned.data(), 16, 2, 4, table.data(), false});
  std::vector<double> expected = qkv;
  for (int head = 0; head < 2; head++)
    for (int d = 0; d < 2; d++) {
      const double angle = d == 0 ? 4 : 0.04, a = qkv[16 + head * 4 + d], b = qkv[16 + head * 4 + d + 2];
      expected[16 + head * 4 + d] = a * std::cos(angle) - b * std::sin(angle);
      expected[16 + head * 4 + d + 2] = a * std::sin(angle) + b * std::cos(angle);
    }
  CHECK(greatest_difference(turned, expected) < 1e-13);
  for (int i = 0; i < 32; i++)
    if (i < 16 || i >= 24) CHECK(turned[i] == qkv[i]);  // the row that was not asked, and what follows the keys
}

TEST_CASE("operations: Rope: there and back, its gradient, and scores that know only the distance") {
  Chance chance(71);
  constexpr int heads = 3, D = 10, stride = 48;
  const Batch batch = random_batch(chance, 2, 30, 40, 7);
  const auto table = rope_table<double>(80, D);
  const int rows = batch.rows();
  const std::vector<double> x = random_numbers(chance, size_t(rows) * stride), dy = random_numbers(chance, x.size());
  const auto turn = [&](std::vector<double> numbers, bool back) {
    launch(Team{}, rows * heads,
           Rope<double>{forest_of(batch), 0, numbers.data(), stride, heads, D, table.data(), back});
    return numbers;
  };
  const std::vector<double> y = turn(x, false);
  CHECK(greatest_difference(x, y) > 0.1);
  CHECK(greatest_difference(turn(y, true), x) < 1e-14);
  CHECK(dot(y, dy) == doctest::Approx(dot(x, turn(dy, true))).epsilon(1e-13));  // it is linear

  const auto score = [&](int q_position, int k_position) {
    Batch two;
    const int token[] = {0};
    two.add_chain(token, 1, 0, q_position), two.add_chain(token, 1, 64, k_position);
    std::vector<double> qk(x.begin(), x.begin() + 2 * stride);
    launch(Team{}, 2, Rope<double>{forest_of(two), 0, qk.data(), stride, 1, D, table.data(), false});
    double sum = 0;
    for (int d = 0; d < D; d++) sum += qk[d] * qk[stride + d];
    return sum;
  };
  CHECK(score(9, 4) == doctest::Approx(score(65, 60)).epsilon(1e-12));
  CHECK(std::abs(score(9, 4) - score(9, 5)) > 1e-3);
}

TEST_CASE("operations: SwiGLU by hand, its gradient, and act again") {
  const double gate_up[] = {0, 2, 5, 3};
  double act[2];
  SwiGlu<double>{gate_up, 4, 2, act, 2}(Solo{}, 0, 0, 2);
  CHECK(act[0] == 0);
  CHECK(act[1] == doctest::Approx(2 / (1 + std::exp(-2.0)) * 3).epsilon(1e-14));

  constexpr int rows = 3, F = 19, row = 48, act_row = 32;
  Chance chance(72);
  std::vector<double> x(rows * row, 0.0), dy(rows * act_row, 0.0), out(rows * act_row);
  for (int r = 0; r < rows; r++) chance.fill(&x[r * row], 2 * F), chance.fill(&dy[r * act_row], F);
  std::vector<double> dx = x;
  std::vector<double> again = dy;
  launch(Team{}, rows, SwiGluBackward<double>{dx.data(), row, F, again.data(), act_row});
  for (int r = 0; r < rows; r++) std::fill(&dx[r * row] + 2 * F, &dx[r * row] + row, 0.0);  // no number of a gate
  check_slopes(x, dx, [&] {
    launch_columns(Team{}, rows, F, SwiGlu<double>{x.data(), row, F, out.data(), act_row});
    return dot(out, dy);
  });
  launch_columns(Team{}, rows, F, SwiGlu<double>{x.data(), row, F, out.data(), act_row});
  for (int r = 0; r < rows; r++) CHECK(memcmp(&again[r * act_row], &out[r * act_row], sizeof(double) * F) == 0);
}
