// tests/cuda/ptx/mma.cpp: the tensor cores' product of one warp, c (16, 8) += a (16, 16) b (16, 8), bf16 and float.
//
// Which lane holds what is PTX ISA's "Matrix fragments for mma.m16n8k16". How a device rounds is in no manual; it was
// measured (Fasi, Higham, Mikaitis, Pranesh 2021, Numerical behavior of NVIDIA tensor cores; Khattak, Mikaitis 2025,
// Accurate models of NVIDIA tensor cores): all addends of a sum are shifted to the exponent of the largest, cut there,
// added exactly, and the sum is cut to a float. An A100 takes eight products at a time and keeps one more bit than a
// float has, an H100 sixteen and two. So an element depends on its row and its column alone, in whatever order.
#include <algorithm>
#include <cmath>

#include "tests/cuda/ptx/machine.h"

namespace ptx {
namespace {

// Sixteen numbers as integers times powers of two: value * 2^(exponent - places). The exponent is that of the leading
// place; of a zero it is so small that it is no sum's largest.
struct Parts {
  int32_t value[16], exponent[16];
  bool finite = true;

  // bits: a float's, of which only the first `places` behind the point can be set.
  void set(int i, uint32_t bits, int places) {
    const int field = int(bits >> 23 & 255);
    const int32_t size = int32_t((bits & 0x7fffff) | (field ? 0x800000 : 0)) >> (23 - places);
    value[i] = bits >> 31 ? -size : size;
    exponent[i] = size == 0 ? -1000 : std::max(field, 1) - 127;
    finite &= field != 255;
  }
};

// `size` with its sign, moved right by some places and cut.
int64_t cut(int32_t value, int size, int right) {
  const int32_t moved = size >> std::min(right, 31);
  return value < 0 ? -moved : moved;
}

// c plus the products of a and b from begin to end - 1. kMore: bits beyond a float's 23 that are kept of each addend.
template <int kMore>
float sum_of_products(const Parts& a, const Parts& b, int begin, int end, float c) {
  Parts of_c;
  of_c.set(0, uint32_t(to_bits(c)), 23);
  if (!of_c.finite) return c;
  int largest = of_c.exponent[0];
  for (int i = begin; i < end; i++) largest = std::max(largest, a.exponent[i] + b.exponent[i]);
  int64_t sum = cut(of_c.value[0], std::abs(of_c.value[0]) << kMore, largest - of_c.exponent[0]);
  for (int i = begin; i < end; i++) {  // a and b have 7 places each, c has 23
    const int32_t product = a.value[i] * b.value[i];
    sum += cut(product, std::abs(product) << (23 - 14 + kMore), largest - a.exponent[i] - b.exponent[i]);
  }
  const int64_t size = std::abs(sum);
  const int excess = size == 0 ? 0 : std::max(0, 64 - 24 - __builtin_clzll(uint64_t(size)));  // beyond a float's 24
  const int64_t kept = size >> excess << excess;
  const double unit = from_bits<double>(uint64_t(1023 + std::max(largest, -500) - 23 - kMore) << 52);
  return float(double(sum < 0 ? -kept : kept) * unit);
}

float element(const Parts& a, const Parts& b, const float (&x)[16], const float (&y)[16], float c) {
  if (settings.rounding == Rounding::kFused || !a.finite || !b.finite || !std::isfinite(c)) {
    for (int k = 0; k < 16; k++) c = std::fma(x[k], y[k], c);
    return std::isnan(c) ? from_bits<float>(0x7fffffff) : c;
  }
  if (settings.rounding == Rounding::kHopper) return sum_of_products<2>(a, b, 0, 16, c);
  return sum_of_products<1>(a, b, 8, 16, sum_of_products<1>(a, b, 0, 8, c));
}

// One of the two numbers of bf16 in a register, as a float's bits.
uint32_t half_of(uint64_t word, int which) { return uint32_t(word) >> (16 * which) << 16; }

}  // namespace

// Lane 4 g + q holds of a rows g and g + 8, of b column g, of c rows g and g + 8, at the places that q says.
void multiply_fragments(Warp& warp, const Instruction& it, Mask mask) {
  if (mask != kAll) fault("a product of less than a whole warp, " + place_of(warp, it));
  float x[16][16], y[8][16], c[16][8];  // a by its rows, b by its columns,
  Parts a[16], b[8];                    // and the same in parts
  for (int lane = 0; lane < kLanes; lane++) {
    const int g = lane / 4, q = lane % 4;
    for (int i = 0; i < 8; i++) {  // registers 0, 1: k from 0 on; 2, 3: from 8 on; odd ones: row g + 8
      const int row = g + (i / 2 % 2) * 8, k = 2 * q + i % 2 + (i / 4) * 8;
      const uint32_t bits = half_of(warp.reg(it.from[i / 2]).lane[lane], i % 2);
      x[row][k] = from_bits<float>(bits);
      a[row].set(k, bits, 7);
    }
    for (int i = 0; i < 4; i++) {
      const int k = 2 * q + i % 2 + (i / 2) * 8;
      const uint32_t bits = half_of(warp.reg(it.from[4 + i / 2]).lane[lane], i % 2);
      y[g][k] = from_bits<float>(bits);
      b[g].set(k, bits, 7);
    }
    for (int i = 0; i < 4; i++)
      c[g + (i / 2) * 8][2 * q + i % 2] = from_bits<float>(warp.reg(it.from[6 + i]).lane[lane]);
  }
  for (int row = 0; row < 16; row++)
    for (int column = 0; column < 8; column++)
      c[row][column] = element(a[row], b[column], x[row], y[column], c[row][column]);
  for (int lane = 0; lane < kLanes; lane++)
    for (int i = 0; i < 4; i++)
      warp.reg(it.to[i]).lane[lane] = to_bits(c[lane / 4 + (i / 2) * 8][2 * (lane % 4) + i % 2]);
}

}  // namespace ptx
