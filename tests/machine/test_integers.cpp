// tests/machine/test_integers.cpp: weights of 8 to 4 bits: what panels were given comes back; blocks of numbers; rows
// of activations in 8 bits; the tuned product has the portable one's bits, whatever the rows.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "machine/integer_products.h"
#include "machine/launch.h"
#include "tests/random.h"

using namespace nanospec;

namespace {

// Calls f with each format.
template <class F>
void each_format(F f) {
  f(Q8_0()), f(Q4_0()), f(Q4_1()), f(Q5_0()), f(Q3_K()), f(Q4_K()), f(Q5_K()), f(Q6_K()), f(QAny());
}

template <class Q>
struct Product {
  static float number(float x) { return to_float(rounded<typename Q::Number>(x)); }
  Chance chance{7};
  std::vector<Q> memory;
  Panels<Q> w;
  std::vector<float> x;  // (R, K)

  Product(int K, int N, int R) {
    w.k = K;
    w.n = N;
    memory.resize(w.size());
    w.data = memory.data();
    for (int n = 0; n < N; n++)
      for (int b = 0; b < w.blocks(); b++) {
        IntegerBlock block{};
        for (float& scale : block.scale) scale = number(0.001f + 1e-5f * float(chance.below(1000)));
        block.min = number(Q::kMin ? -0.01f * float(chance.below(10)) : 0.0f);
        for (int8_t& code : block.codes) code = int8_t(chance.below(1 << Q::kBits) - Q::kZero);
        w.set(n, b, block);
        for (int i = 0; i < kBlockNumbers; i++) {
          const int k = b * kBlockNumbers + i;
          if (w.code(n, k) != block.codes[i] + Q::kZero) FAIL("a code is not what was set");
          if (k >= K) continue;
          const float weight = block.scale[i / Q::kUnit] * float(block.codes[i]) + block.min;
          if (w.weight(k, n) != weight) FAIL("a weight is not that of its code");
        }
      }
    x.resize(size_t(R) * K);
    chance.fill(x.data(), x.size(), 2);
  }
  // The largest sums of products: codes all alike, activations 1 or -1. In a third of the outputs, and of the rows,
  // each half of the sums of pairs goes its own way.
  void fill(int code) {
    for (int n = 0; n < w.n; n++)
      for (int b = 0; b < w.blocks(); b++) {
        IntegerBlock block{{0.001f, 0.002f}, -0.01f, {}};
        for (int i = 0; i < kBlockNumbers; i++)
          block.codes[i] = int8_t((n % 3 == 2 && i % 4 < 2 ? 0 : code) - Q::kZero);
        w.set(n, b, block);
      }
    for (size_t i = 0; i < x.size(); i++)
      x[i] = i / size_t(w.k) % 3 == 0 || (i / size_t(w.k) % 3 == 1 && i % 4 < 2) ? 1 : -1;
  }
  Matmul<float, Q> matmul(std::vector<float>& out) const { return {x.data(), w.k, w, out.data(), pad16(w.n)}; }
};

template <class Q>
void check(int K, int N) {
  constexpr int R = 40;
  const Product<Q> product(K, N, R);
  const int wide = pad16(N);
  std::vector<float> expected(size_t(R) * wide);
  product.matmul(expected)(Solo{}, R, 0, pad16(product.w.n));
  double error = 0, size = 0;
  for (int n = 0; n < N; n++) {
    double exact = 0;
    for (int k = 0; k < K; k++) exact += double(product.x[size_t(k)]) * product.w.weight(k, n);
    error += std::pow(exact - expected[size_t(n)], 2);
    size += exact * exact;
  }
  CHECK(error < 0.01 * 0.01 * size);
  const int middle = wide / 2 / 16 * 16;
  for (int rows : {1, 2, 3, 5, 6, 8, 11, 17, 40}) {
    CAPTURE(rows);
    std::vector<float> out(size_t(rows) * wide, -1.0f);
    for (const Range& mine : {Range{0, middle}, Range{middle, wide}})
      matmul_twin(mine, rows, product.matmul(out), Nothing{});
    CHECK(memcmp(out.data(), expected.data(), out.size() * sizeof(float)) == 0);
  }
}

}  // namespace

TEST_CASE("integers: the tuned product has the portable one's bits, whatever the rows, and is near that of floats") {
  for (const auto& size : {std::pair{32, 16}, {64, 80}, {96, 40}, {160, 200}, {24, 20}, {100, 65}}) {
    const int K = size.first, N = size.second;
    CAPTURE(K);
    CAPTURE(N);
    each_format([&](auto format) {
      CAPTURE(format.kBits);
      check<decltype(format)>(K, N);
    });
  }
}

namespace {
template <class Q>
void check_largest() {
  constexpr int R = 40;
  for (int code : {0, Q::kZero, (1 << Q::kBits) - 1}) {
    CAPTURE(code);
    Product<Q> product(64, 48, R);
    product.fill(code);
    for (int rows : {1, 2, 5, R}) {
      CAPTURE(rows);
      std::vector<float> expected(size_t(rows) * 48), out = expected;
      product.matmul(expected)(Solo{}, rows, 0, 48);
      matmul_twin(Range{0, 48}, rows, product.matmul(out), Nothing{});
      CHECK(out == expected);
    }
  }
}
}  // namespace

TEST_CASE("integers: the largest sums of a block fit: codes of -128 in 8 bits, 15 in 4, activations of 127") {
  each_format([](auto format) {
    CAPTURE(format.kBits);
    check_largest<decltype(format)>();
  });
}

TEST_CASE("integers: more rows than share their codes") {
  const Product<Q4_1> product(64, 48, 200);
  std::vector<float> expected(size_t(200) * 48), out = expected;
  product.matmul(expected)(Solo{}, 200, 0, pad16(product.w.n));
  matmul_twin(Range{0, 48}, 200, product.matmul(out), Nothing{});
  CHECK(out == expected);
}

TEST_CASE("integers: a row in 8 bits: its largest number is 127, zeros stay zero, halves go to the even side") {
  float x[2 * kBlockNumbers] = {};
  for (int i = 0; i < kBlockNumbers; i++) x[i] = float(i) - 20.5f;
  x[0] = -127;
  x[1] = 0.5f;
  x[2] = 1.5f;
  x[3] = -2.5f;
  std::vector<float> memory(IntegerRows::bytes(1, 2) / sizeof(float));
  const IntegerRows rows(memory.data(), 1, 2);
  rows.set<Q8_0>(0, x, kBlockNumbers + 1);  // the second block has one number
  CHECK(rows.scale[0] == 1);
  for (const auto& [at, code] : {std::pair{0, -127}, {1, 0}, {2, 2}, {3, -2}}) CHECK(rows.codes[at] == code);
  int all = 0;
  for (int i = 0; i < kBlockNumbers; i++) all += rows.codes[i];
  CHECK(rows.start[0] == -128 * all);
  CHECK(rows.offset[0] == float(all));
  CHECK(rows.scale[1] == 0);
  CHECK(rows.start[1] == 0);
  for (int i = kBlockNumbers; i < 2 * kBlockNumbers; i++) CHECK(rows.codes[i] == 0);
  x[5] = std::numeric_limits<float>::quiet_NaN();
  rows.set<Q8_0>(0, x, kBlockNumbers + 1);
  CHECK(std::isnan(rows.scale[0]));
  CHECK(rows.codes[0] == 0);
}

TEST_CASE("integers: the operation that brings rows to 8 bits does what the vectors do") {
  constexpr int R = 5, K = 100, blocks = 4;
  std::vector<float> x(R * K), by_rows(IntegerRows::bytes(R, blocks) / sizeof(float)), by_blocks = by_rows;
  Chance(5).fill(x.data(), x.size(), 3);
  std::fill_n(&x[K], 40, 0.0f);
  x[2 * K] = std::numeric_limits<float>::infinity();
  const IntegerRows rows(by_rows.data(), R, blocks), same(by_blocks.data(), R, blocks);
  each_format([&](auto format) {
    using Q = decltype(format);
    for (int row = 0; row < R; row++) rows.set<Q>(row, &x[size_t(row) * K], K);
    for (int item = 0; item < R * blocks; item++) ToIntegers<Q>{x.data(), K, K, same}(Solo{}, item);
    CHECK(memcmp(by_rows.data(), by_blocks.data(), by_rows.size() * sizeof(float)) == 0);
  });
}

TEST_CASE("integers: numbers as a block") {
  float x[kBlockNumbers] = {};
  x[3] = -4;
  x[7] = 2;
  x[9] = 0.25f;
  const IntegerBlock eight = quantized<Q8_0>(x), four = quantized<Q4_0>(x), least = quantized<Q4_1>(x);
  CHECK(eight.scale[0] == doctest::Approx(4 / 127.0).epsilon(1e-3));
  CHECK(eight.codes[3] == -127);
  CHECK(eight.codes[7] == 64);  // 63.5: away from zero
  CHECK(eight.codes[9] == 8);   // 7.94
  CHECK(four.scale[0] == 0.5f);
  CHECK(four.codes[3] == -8);
  CHECK(four.codes[7] == 4);
  CHECK(four.codes[9] == 1);  // 0.5: up
  CHECK(least.scale[0] == doctest::Approx(0.4).epsilon(1e-3));
  CHECK(least.min == -4);
  CHECK(least.codes[3] == 0);
  CHECK(least.codes[7] == 15);
  CHECK(least.codes[0] == 10);
}
