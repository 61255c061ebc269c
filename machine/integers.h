// machine/integers.h: weights of 8 and 4 bits, and the product with them.
//
// A weight is a block of 32 small whole numbers along k and a scale, for each output, as in GGUF's Q8_0, Q4_0 and Q4_1.
// A row of activations is brought to 8 bits by blocks of 32, a function of that row alone. The products inside a block
// add up in int32: exact, in any order. Only the end of a block rounds, by one stated formula, blocks ascending:
//   sum = fused(float(isum), scale_w * scale_x, sum), and for Q4_1 then sum = fused(min_w, scale_x * sum_x, sum).
// So an output has the same bits for any number of rows, on any machine.
//
// In order: the formats; weights in panels; packing them; rows of activations; the product. The tuned products are in
// integer_products.h and, for a GPU, in cuda/matmul_integers.cuh.
#pragma once

#include <cmath>

#include "kernels.cuh"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Formats. A code is a whole number from 0 on; the weight is scale * (code - zero), and scale * code + min where there
// is a min. Memory counts bytes: an array of them is an array of bytes.

constexpr int kBlockNumbers = 32;  // numbers of k that share a scale

template <int bits, int zero, bool has_min>
struct Quantized {
  static constexpr int kBits = bits, kZero = zero;
  static constexpr bool kMin = has_min;
  uint8_t byte;
};
using Q8_0 = Quantized<8, 128, false>;
using Q4_0 = Quantized<4, 8, false>;
using Q4_1 = Quantized<4, 0, true>;

template <class W>
constexpr bool kIsQuantized = false;
template <int bits, int zero, bool has_min>
constexpr bool kIsQuantized<Quantized<bits, zero, has_min>> = true;

// 32 weights of one output.
struct IntegerBlock {
  f16 scale, min;
  uint8_t codes[kBlockNumbers];
};

// Numbers as a block, by the formulas that make GGUF files (ggml, quantize_row_q8_0_ref and so on): they give the
// blocks of such a file again.
template <class Q>
HD IntegerBlock quantized(const float* x) {
  IntegerBlock block{};
  float least = x[0], most = x[0], farthest = x[0];
  ROLLED
  for (int i = 1; i < kBlockNumbers; i++) {
    least = smaller(least, x[i]);
    most = larger(most, x[i]);
    if ((x[i] < 0 ? -x[i] : x[i]) > (farthest < 0 ? -farthest : farthest)) farthest = x[i];
  }
  const float scale = Q::kBits == 8 ? (farthest < 0 ? -farthest : farthest) / 127
                      : Q::kMin     ? (most - least) / 15
                                    : farthest / -8;
  const float by = scale != 0 ? 1 / scale : 0.0f;
  block.scale = to_f16(scale);
  block.min = to_f16(Q::kMin ? least : 0.0f);
  ROLLED
  for (int i = 0; i < kBlockNumbers; i++)
    if (Q::kBits == 8) block.codes[i] = uint8_t(int(roundf(x[i] * by)) + Q::kZero);
    else block.codes[i] = uint8_t(smaller(15, int((Q::kMin ? x[i] - least : x[i]) * by + (Q::kZero + 0.5f))));
  return block;
}

// ---------------------------------------------------------------------------------------------------------------
// Weights (K inputs, N outputs), as panels of up to 64 outputs; N is padded to a multiple of 16, and K to whole blocks
// of zeros. A panel holds its blocks of k one after another, so that a loop over k reads one stream: of a block first
// the scales of all outputs, the mins, then the codes as (K / 4, outputs, 4 of k) bytes, the layout of dot products of
// four bytes. With 4 bits a byte holds the codes of k (low) and k + 4 (high), and there are half as many bytes.

constexpr int kScratchRows = 256;  // of activations, which a GPU brings to 8 bits at a time

template <int bits, int zero, bool has_min>
struct Panels<Quantized<bits, zero, has_min>> {
  using Q = Quantized<bits, zero, has_min>;
  Q* data = nullptr;
  int k = 0, n = 0;
  bool cuda = false, far = false;
  void* scratch = nullptr;  // on a GPU: for kScratchRows rows of activations in 8 bits

  static constexpr int kOutputs = 64, kNumbers = Q::kMin ? 2 : 1;               // numbers: scale, min
  static constexpr int kOutputBytes = 2 * kNumbers + kBlockNumbers * bits / 8;  // of one block of one output
  HD int blocks() const { return (k + kBlockNumbers - 1) / kBlockNumbers; }
  HD size_t size() const { return size_t(pad16(n)) * blocks() * kOutputBytes; }
  HD int width(int output) const {  // of the output's panel
    return smaller(kOutputs, pad16(n) - output / kOutputs * kOutputs);
  }
  HD uint8_t* block(int output, int b) const {  // of the output's panel
    const size_t panel = size_t(output / kOutputs) * kOutputs * blocks();
    return reinterpret_cast<uint8_t*>(data) + (panel + size_t(width(output)) * b) * kOutputBytes;
  }
  HD f16* number(int output, int b, int which) const {  // 0: scale, 1: min
    return reinterpret_cast<f16*>(block(output, b)) + which * width(output) + output % kOutputs;
  }
  HD int code(int output, int at) const {
    const int w = width(output), i = at % kBlockNumbers;
    const uint8_t* const codes = block(output, at / kBlockNumbers) + 2 * kNumbers * w + output % kOutputs * 4;
    if (bits == 8) return codes[i / 4 * 4 * w + i % 4];
    return codes[i / 8 * 4 * w + i % 4] >> (i % 8 / 4 * 4) & 15;
  }
  HD float weight(int at, int output) const {
    const float scale = to_float(*number(output, at / kBlockNumbers, 0)), code = float(this->code(output, at) - zero);
    return Q::kMin ? scale * code + to_float(*number(output, at / kBlockNumbers, 1)) : scale * code;
  }
  HD void set(int output, int b, const IntegerBlock& from) const {
    const int w = width(output);
    *number(output, b, 0) = from.scale;
    if (Q::kMin) *number(output, b, 1) = from.min;
    uint8_t* const to = block(output, b) + 2 * kNumbers * w + output % kOutputs * 4;
    ROLLED
    for (int i = 0; i < kBlockNumbers; i++)
      if (bits == 8) to[i / 4 * 4 * w + i % 4] = from.codes[i];
      else if (i % 8 < 4) to[i / 8 * 4 * w + i % 4] = uint8_t(from.codes[i] | from.codes[i + 4] << 4);
  }
};

// As Pack of other numbers. A row of this operation is a block of all outputs.
template <class T, int bits, int zero, bool has_min>
struct Pack<T, Quantized<bits, zero, has_min>> {
  using Q = Quantized<bits, zero, has_min>;
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
HD inline float nearest(float x) {
  constexpr float rounder = 12582912.0f;
  return (x + rounder) - rounder;
}

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
  int32_t* start;  // (R, blocks): -zero times the sum of the codes, with which a block's sum begins
  float* offset;   // (R, blocks): scale times the sum of the codes, by which a min is multiplied
  int blocks;

  int row() const { return blocks * kBlockNumbers; }
  static size_t bytes(int rows, int blocks) {
    return size_t(rows) * blocks * (kBlockNumbers + sizeof *scale + sizeof *start + sizeof *offset);
  }
  IntegerRows(void* memory, int rows, int its_blocks)
      : codes(static_cast<int8_t*>(memory)),
        scale(reinterpret_cast<float*>(codes + size_t(rows) * its_blocks * kBlockNumbers)),
        start(reinterpret_cast<int32_t*>(scale + size_t(rows) * its_blocks)),
        offset(reinterpret_cast<float*>(start + size_t(rows) * its_blocks)),
        blocks(its_blocks) {}

  // Of a block whose codes sum to `all`.
  template <class Q>
  HD void set_numbers(int at, float its_scale, int32_t all) const {
    scale[at] = its_scale;
    start[at] = -Q::kZero * all;
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
    int32_t code[kBlockNumbers], all = 0;
    // Three loops, each of which compilers have vectors for, clang++ if it does not unroll them first.
    ROLLED
    for (int i = 0; i < kBlockNumbers; i++) code[i] = by.code(x[i]);
    ROLLED
    for (int i = 0; i < kBlockNumbers; i++) all += code[i];
    ROLLED
    for (int i = 0; i < kBlockNumbers; i++) to[i] = int8_t(code[i]);
    set_numbers<Q>(its_row * blocks + b, by.scale, all);
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
    const int32_t all = g.template sum<int32_t>(whole, [=](int i) { return by.code(a[i]); });
    const IntegerRows out = to;
    g.each(kBlockNumbers,
           [=](int i) { out.codes[size_t(item) * kBlockNumbers + i] = int8_t(i < whole ? by.code(a[i]) : 0); });
    g.each(1, [=](int) { out.set_numbers<Q>(item, by.scale, all); });
  }
};

// ---------------------------------------------------------------------------------------------------------------
// The product

template <class T, int bits, int zero, bool has_min>
struct Matmul<T, Quantized<bits, zero, has_min>> {
  using Q = Quantized<bits, zero, has_min>;
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
    int sum_x = 0, isum = 0;
    for (int i = 0; i < whole; i++) {
      const int code = scale.code(a[i]);
      sum_x += code;
      isum += (w.code(n, b * kBlockNumbers + i) - zero) * code;
    }
    sum = fused(float(isum), to_float(*w.number(n, b, 0)) * scale.scale, sum);
    return Q::kMin ? fused(to_float(*w.number(n, b, 1)), scale.scale * float(sum_x), sum) : sum;
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
