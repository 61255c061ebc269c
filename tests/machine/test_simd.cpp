// tests/machine/test_simd.cpp: machine/simd.h: a vector's lanes have a float's bits; sums and largest numbers are
// Solo's.
#include "machine/simd.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "tests/random.h"

using namespace nanospec;

namespace {
std::vector<float> random_numbers(int n) {
  std::vector<float> x(size_t(n), 0.0f);
  Chance(7).fill(x.data(), x.size());
  return x;
}
}  // namespace

TEST_CASE("simd: exp of a lane is exp of a float, bit by bit, at the ends of its range and beyond") {
  std::vector<float> x = {
      0.0f,  -0.0f,  1e-30f,   -87.3f,    -87.4f, Format<float>::kLogLeast, Format<float>::kLogMost, 88.8f,
      1e30f, -1e30f, INFINITY, -INFINITY, NAN};
  for (int i = 0; i < 4096; i++) x.push_back(float(i - 2048) * 0.0517f);
  while (x.size() % Vec::width != 0) x.push_back(0.5f);
  for (size_t i = 0; i < x.size(); i += Vec::width) {
    float lanes[Vec::width];
    store(lanes, exp(load(&x[i])));
    for (int l = 0; l < Vec::width; l++) {
      const float alone = exp(x[i + size_t(l)]);
      CAPTURE(x[i + size_t(l)]);
      if (std::isnan(alone)) CHECK(std::isnan(lanes[l]));
      else CHECK(bits_as<uint32_t>(lanes[l]) == bits_as<uint32_t>(alone));
    }
  }
}

TEST_CASE("simd: sum_of and largest_of give Solo's bits; below() cuts at its number") {
  for (int n : {32, 64, 96, 256}) {
    const std::vector<float> x = random_numbers(n);
    const float* const p = x.data();
    CHECK(sum_of(n, [=](int i) { return load(p + i); }) == Solo{}.sum<float>(n, [=](int i) { return p[i]; }));
    for (int seen = 1; seen <= n; seen += 5) {
      const float top = Solo{}.largest<float>(seen, [=](int i) { return p[i]; });
      CHECK(largest_of(n, [=](int i) { return below(seen, i, load(p + i), -INFINITY); }) == top);
    }
  }
}

TEST_CASE("simd: four numbers of 16 rows, transposed") {
  const int stride = 37;
  const std::vector<float> x = random_numbers(16 * stride);
  float to[64];
  transpose_four(x.data() + 5, stride, to);
  for (int d = 0; d < 4; d++)
    for (int j = 0; j < 16; j++) CHECK(to[d * 16 + j] == x[size_t(j * stride + d + 5)]);
}
