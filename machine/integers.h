// machine/integers.h: weights of 8 to 4 bits, and the product with them.
//
// A weight is a block of 32 small whole numbers along k and a scale, for each output, as in GGUF's Q8_0, Q4_0 and Q4_1.
// Some formats have two scales, one for each half of a block; what shares a scale is called a unit here.
// A row of activations is brought to 8 bits by blocks of 32, a function of that row alone. The products inside a unit
// add up in int32: exact, in any order. Only the end of a unit rounds, by one stated formula, units ascending:
//   sum = fused(float(isum), scale_w * scale_x, sum), and at the end of a block with a min
//   sum = fused(min_w, scale_x * sum_x, sum).
// So an output has the same bits for any number of rows, on any machine.
//
// In order: the formats; weights in panels; packing them; rows of activations; the product. The tuned products are in
// integer_products.h and, for a GPU, in cuda/matmul_integers.cuh.
#pragma once

#include <cmath>

#include "kernels.cuh"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Formats. A code is a whole number from 0 on; the weight is scale * (code - zero), plus the min where there is one.
// Memory counts bytes: an array of them is an array of bytes.

constexpr int kBlockNumbers = 32;  // numbers of k that lie together

// floats: how many scales of fp32 a block has; 0: one scale, and the min, in half precision.
template <int bits, int zero, bool has_min, int floats = 0>
struct Quantized {
  using Number = std::conditional_t<floats == 0, f16, float>;  // a scale, a min
  static constexpr int kBits = bits, kZero = zero, kScales = floats == 2 ? 2 : 1, kUnit = kBlockNumbers / kScales;
  static constexpr bool kMin = has_min;
  uint8_t byte;
};
using Q8_0 = Quantized<8, 128, false>;
using Q4_0 = Quantized<4, 8, false>;
using Q4_1 = Quantized<4, 0, true>;
// Where a file has a scale of a scale, the two are multiplied here, exactly. The names are those of GGUF's types, whose
// numbers they hold; Q5_K also those of Q5_1. QAny holds those of all types, for matrices whose parts differ.
using Q3_K = Quantized<4, 8, false, 2>;
using Q4_K = Quantized<4, 0, true, 1>;
using Q5_0 = Quantized<5, 16, false>;
using Q5_K = Quantized<5, 0, true, 1>;
using Q6_K = Quantized<6, 32, false, 2>;
using QAny = Quantized<8, 128, true, 2>;

template <class W>
constexpr bool kIsQuantized = false;
template <int bits, int zero, bool has_min, int floats>
constexpr bool kIsQuantized<Quantized<bits, zero, has_min, floats>> = true;

// 32 weights of one output, on their way into any format: scale * code + min, with the scale of the code's half. The
// codes are less their zero; a min of -0 changes no number.
struct IntegerBlock {
  float scale[2], min;
  int8_t codes[kBlockNumbers];
};

// Numbers as a block, by the formulas that make GGUF files (ggml, quantize_row_q8_0_ref and so on): they give the
// blocks of such a file again. For formats with scales of fp32 they are as good as any.
template <class Q>
HD IntegerBlock quantized(const float* from) {
  constexpr bool above_min = Q::kZero == 0;
  constexpr int most_code = (1 << Q::kBits) - 1;
  IntegerBlock block{};
  block.min = -0.0f;
  for (int unit = 0; unit < Q::kScales; unit++) {
    const float* const x = from + unit * Q::kUnit;
    float least = x[0], most = x[0], farthest = x[0];
    ROLLED
    for (int i = 1; i < Q::kUnit; i++) {
      least = smaller(least, x[i]);
      most = larger(most, x[i]);
      if ((x[i] < 0 ? -x[i] : x[i]) > (farthest < 0 ? -farthest : farthest)) farthest = x[i];
    }
    const float scale = Q::kBits == 8 ? (farthest < 0 ? -farthest : farthest) / 127
                        : above_min   ? (most - least) / most_code
                                      : farthest / -Q::kZero;
    const float by = scale != 0 ? 1 / scale : 0.0f;
    block.scale[unit] = to_float(rounded<typename Q::Number>(scale));
    if (above_min) block.min = to_float(rounded<typename Q::Number>(least));
    ROLLED
    for (int i = 0; i < Q::kUnit; i++) {
      const float code = (above_min ? x[i] - least : x[i]) * by;
      block.codes[unit * Q::kUnit + i] =
          int8_t(Q::kBits == 8 ? int(roundf(code)) : smaller(most_code, int(code + (Q::kZero + 0.5f))) - Q::kZero);
    }
  }
  return block;
}

// ---------------------------------------------------------------------------------------------------------------
// Weights (K inputs, N outputs), as panels of up to 64 outputs; N is padded to a multiple of 16, and K to whole blocks
// of zeros. A panel holds its blocks of k one after another, so that a loop over k reads one stream: of a block first
// the scales of all outputs, the mins, then the codes as (K / 4, outputs, 4 of k) bytes, the layout of dot products of
// four bytes. With 4 bits a byte holds the codes of k (low) and k + 4 (high), and there are half as many bytes. Of 5
// and 6 bits these are the low four. The high ones follow, a byte for those of k, k + 4, k + 8 and so on.

constexpr int kScratchRows = 256;  // of activations, which a GPU brings to 8 bits at a time

template <int bits, int zero, bool has_min, int floats>
struct Panels<Quantized<bits, zero, has_min, floats>> {
  using Q = Quantized<bits, zero, has_min, floats>;
  using Number = typename Q::Number;
  Q* data = nullptr;
  int k = 0, n = 0;
  bool cuda = false, far = false;
  void* scratch = nullptr;  // on a GPU: for kScratchRows rows of activations in 8 bits

  // Of one block of one output: its numbers, scales and min; words of four codes' low bits, and of high bits.
  static constexpr int kNumberBytes = int(sizeof(Number)) * (Q::kScales + Q::kMin),
                       kOutputBytes = kNumberBytes + 4 * bits;
  static constexpr int kOutputs = 64, kLowWords = bits == 8 ? 8 : 4, kHigh = bits == 8 ? 0 : bits - 4;
  HD int blocks() const { return (k + kBlockNumbers - 1) / kBlockNumbers; }
  HD size_t size() const { return size_t(pad16(n)) * blocks() * kOutputBytes; }
  HD int width(int output) const {  // of the output's panel
    return smaller(kOutputs, pad16(n) - output / kOutputs * kOutputs);
  }
  HD uint8_t* block(int output, int b) const {  // of the output's panel
    const size_t panel = size_t(output / kOutputs) * kOutputs * blocks();
    return reinterpret_cast<uint8_t*>(data) + (panel + size_t(width(output)) * b) * kOutputBytes;
  }
  HD Number* number(int output, int b, int which) const {  // the scales, then the min
    return reinterpret_cast<Number*>(block(output, b)) + which * width(output) + output % kOutputs;
  }
  HD uint8_t* word(int output, int b, int which) const {  // of its codes
    return block(output, b) + kNumberBytes * width(output) + (which * width(output) + output % kOutputs) * 4;
  }
  // Of the high bits of codes 4 g .. 4 g + 3: which word has them, and from which bit on.
  HD static constexpr int high_word(int g) { return kLowWords + g * kHigh / 8; }
  HD static constexpr int high_bit(int g) { return g * kHigh % 8; }
  HD int code(int output, int at) const {
    const int b = at / kBlockNumbers, i = at % kBlockNumbers, g = i / 4;
    if (bits == 8) return word(output, b, g)[i % 4];
    const int low = word(output, b, g / 2)[i % 4] >> (g % 2 * 4) & 15;
    return kHigh ? low | (word(output, b, high_word(g))[i % 4] >> high_bit(g) & ((1 << kHigh) - 1)) << 4 : low;
  }
  HD float weight(int at, int output) const {
    const int b = at / kBlockNumbers;
    const float scale = to_float(*number(output, b, at % kBlockNumbers / Q::kUnit));
    const float its = scale * float(code(output, at) - zero);
    return Q::kMin ? its + to_float(*number(output, b, Q::kScales)) : its;
  }
  HD void set(int output, int b, const IntegerBlock& from) const {
    for (int i = 0; i < Q::kScales; i++) *number(output, b, i) = rounded<Number>(from.scale[i]);
    if (Q::kMin) *number(output, b, Q::kScales) = rounded<Number>(from.min);
    const auto its_code = [&](int g, int i) { return from.codes[4 * g + i] + zero; };
    for (int which = 0; which < bits; which++) {
      uint8_t* const to = word(output, b, which);
      for (int i = 0; i < 4; i++) {
        int byte = 0;
        if (which < kLowWords)
          byte =
              bits == 8 ? its_code(which, i) : (its_code(2 * which, i) & 15) | (its_code(2 * which + 1, i) & 15) << 4;
        else
          for (int g = 0; g < 8; g++) byte |= high_word(g) == which ? its_code(g, i) >> 4 << high_bit(g) : 0;
        to[i] = uint8_t(byte);
      }
    }
  }
};

// As Pack of other numbers. A row of this operation is a block of all outputs.
template <class T, int bits, int zero, bool has_min, int floats>
struct Pack<T, Quantized<bits, zero, has_min, floats>> {
  using Q = Quantized<bits, zero, has_min, floats>;
  const T* from;
  size_t k_stride, n_stride;
  Panels<Q> to;
  HD int rows() const { return to.blocks(); }
  template <class G>
  HD void operator()(const G& g, int b) const {
    const int first = b * kBlockNumbers, whole = smaller(kBlockNumbers, to.k - first);
    g.each(to.n, [&](int n) {
      float x[kBlockNumbers];
      ROLLED
      for (int i = 0; i < kBlockNumbers; i++)
        x[i] = i < whole ? float(from[(first + i) * k_stride + n * n_stride]) : 0.0f;
      to.set(n, b, quantized<Q>(x));
    });
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Activations in 8 bits

// x to the nearest whole number, ties to even; |x| is below 2^22. Adding 1.5 * 2^23 leaves no bits behind the point.
HD inline float nearest(float x) { return (x + Format<float>::kRounder) - Format<float>::kRounder; }

// What brings up to 32 activations to 8 bits, and back: the largest becomes 127.
struct ActivationScale {
  float by, scale;
  // |x| as its bits: they grow with it, and compilers have vectors for the largest.
  HD static uint32_t size(float x) { return bits_as<uint32_t>(x) & 0x7fffffffu; }
  HD explicit ActivationScale(uint32_t largest_size) {
    const float largest = bits_as<float>(largest_size);
    by = largest > 0 ? 127 / largest : 0.0f;
    scale = largest / 127;
  }
  HD ActivationScale(const float* x, int n) : ActivationScale(largest_of(x, n)) {}
  HD int32_t code(float x) const {
    const float nearby = nearest(x * by);
    return nearby >= -127 && nearby <= 127 ? int32_t(nearby) : 0;  // of what is no number: 0
  }

 private:
  HD static uint32_t largest_of(const float* x, int n) {
    uint32_t most = 0;
    for (int i = 0; i < n; i++) most = larger(most, size(x[i]));
    return most;
  }
};

// Rows of activations in 8 bits, K padded to whole blocks with zeros.
struct IntegerRows {
  int8_t* codes;   // (R, blocks * kBlockNumbers)
  float* scale;    // (R, blocks)
  int32_t* start;  // (R, units): -zero times the sum of the codes, with which a unit's sum begins
  float* offset;   // (R, blocks): scale times the sum of the codes, by which a min is multiplied
  int blocks;

  int row() const { return blocks * kBlockNumbers; }
  static size_t bytes(int rows, int blocks) {
    return size_t(rows) * blocks * (kBlockNumbers + sizeof *scale + 2 * sizeof *start + sizeof *offset);
  }
  IntegerRows(void* memory, int rows, int its_blocks)
      : codes(static_cast<int8_t*>(memory)),
        scale(reinterpret_cast<float*>(codes + size_t(rows) * its_blocks * kBlockNumbers)),
        start(reinterpret_cast<int32_t*>(scale + size_t(rows) * its_blocks)),
        offset(reinterpret_cast<float*>(start + size_t(rows) * its_blocks * 2)),
        blocks(its_blocks) {}

  // Of a block whose codes have these sums, by units.
  template <class Q>
  HD void set_numbers(int at, float its_scale, const int32_t* sums) const {
    int32_t all = 0;
    for (int unit = 0; unit < Q::kScales; unit++) {
      start[at * Q::kScales + unit] = -Q::kZero * sums[unit];
      all += sums[unit];
    }
    scale[at] = its_scale;
    offset[at] = its_scale * float(all);
  }

  // x: k numbers, for weights of format Q.
  template <class Q>
  void set(int row, const float* x, int k) const {
    for (int b = 0; b < blocks; b++) {
      const int whole = smaller(kBlockNumbers, k - b * kBlockNumbers);
      if (whole == kBlockNumbers) set_block<Q>(row, b, x + b * kBlockNumbers);
      else {
        float padded[kBlockNumbers] = {};
        memcpy(padded, x + b * kBlockNumbers, sizeof *x * whole);
        set_block<Q>(row, b, padded);
      }
    }
  }

 private:
  template <class Q>
  void set_block(int its_row, int b, const float* x) const {
    const ActivationScale by(x, kBlockNumbers);
    int8_t* const to = codes + size_t(its_row) * row() + b * kBlockNumbers;
    int32_t code[kBlockNumbers], sums[Q::kScales] = {};
    // Three loops, each of which compilers have vectors for, clang++ if it does not unroll them first.
    ROLLED
    for (int i = 0; i < kBlockNumbers; i++) code[i] = by.code(x[i]);
    for (int unit = 0; unit < Q::kScales; unit++) {
      ROLLED
      for (int i = 0; i < Q::kUnit; i++) sums[unit] += code[unit * Q::kUnit + i];
    }
    ROLLED
    for (int i = 0; i < kBlockNumbers; i++) to[i] = int8_t(code[i]);
    set_numbers<Q>(its_row * blocks + b, by.scale, sums);
  }
};

// What IntegerRows::set does, for any group of lanes. A row of this operation is one block of a row: a number for each
// lane of a warp.
template <class Q>
struct ToIntegers {
  const float* x;  // (R, x_row)
  int x_row, k;
  IntegerRows to;
  template <class G>
  HD void operator()(const G& g, int item) const {
    const int b = item % to.blocks, row = item / to.blocks;
    const int whole = smaller(kBlockNumbers, k - b * kBlockNumbers);
    const float* const a = x + size_t(row) * x_row + b * kBlockNumbers;
    const ActivationScale by(g.template largest<uint32_t>(whole, [=](int i) { return ActivationScale::size(a[i]); }));
    int32_t sums[Q::kScales];
    for (int unit = 0; unit < Q::kScales; unit++) {
      const int first = unit * Q::kUnit, n = larger(0, smaller(Q::kUnit, whole - first));
      sums[unit] = g.template sum<int32_t>(n, [=](int i) { return by.code(a[first + i]); });
    }
    const IntegerRows out = to;
    g.each(kBlockNumbers,
           [=](int i) { out.codes[size_t(item) * kBlockNumbers + i] = int8_t(i < whole ? by.code(a[i]) : 0); });
    g.each(1, [=](int) { out.set_numbers<Q>(item, by.scale, sums); });
  }
};

// ---------------------------------------------------------------------------------------------------------------
// The product

template <class T, int bits, int zero, bool has_min, int floats>
struct Matmul<T, Quantized<bits, zero, has_min, floats>> {
  using Q = Quantized<bits, zero, has_min, floats>;
  const T* x;
  int x_row;
  Panels<Q> w;
  T* out;
  int out_row;
  Norm<T> norm = {};

  // One block of one output, added to its sum.
  HD float add_block(const float* a, int n, int b, float sum) const {
    const int whole = smaller(kBlockNumbers, w.k - b * kBlockNumbers);
    const ActivationScale scale(a, whole);
    int sum_x = 0;
    for (int unit = 0; unit < Q::kScales; unit++) {
      int isum = 0;
      for (int i = unit * Q::kUnit; i < smaller(whole, (unit + 1) * Q::kUnit); i++) {
        const int code = scale.code(a[i]);
        sum_x += code;
        isum += (w.code(n, b * kBlockNumbers + i) - zero) * code;
      }
      sum = fused(float(isum), to_float(*w.number(n, b, unit)) * scale.scale, sum);
    }
    return Q::kMin ? fused(to_float(*w.number(n, b, Q::kScales)), scale.scale * float(sum_x), sum) : sum;
  }
  template <class G>
  HD void operator()(const G& g, int rows, int begin, int end) const {
    // course 1
    g.each(end - begin, [&](int i) {
      for (int row = 0, n = begin + i; row < rows; row++) {
        const float* const a = x + size_t(row) * x_row;
        float sum = 0;
        for (int b = 0; b < w.blocks(); b++) sum = add_block(a + b * kBlockNumbers, n, b, sum);
        out[size_t(row) * out_row + n] = sum;
      }
    });
    // end
  }
};

}  // namespace nanospec
