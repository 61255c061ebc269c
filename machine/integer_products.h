// machine/integer_products.h: the product with weights of 8 and 4 bits on a CPU, by vectors.
//
// In order: dot products of four bytes, on machines that have them and on others; the register tile; the twin of Matmul
// (integers.h), which has the portable version's bits.
#pragma once

#include "machine/integers.h"
#include "machine/products.h"
#include "machine/simd.h"
#include "machine/threads.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// SIMD. Codes: four bytes for each lane of a Vec. Dots: a lane's sum of products, in int32. The products of bytes go
// through 16 bits where the machine has no instruction for four at once: never through one that saturates. Codes are
// bytes without sign, activations have one. Where an instruction wants signs on both sides (kSigned), codes of 8 bits
// are taken less their zero, 128, and a sum needs no start.

#if defined(__AVX512VNNI__) && defined(__AVX512F__)
struct Codes {
  __m512i v;
};
struct Dots {
  __m512i v;
};
inline Codes load_codes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline Codes low_codes(Codes c) { return {_mm512_and_si512(c.v, _mm512_set1_epi8(15))}; }
inline Codes high_codes(Codes c) { return low_codes({_mm512_maskz_srli_epi32(kAllLanes, c.v, 4)}); }
inline Dots dots_from(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline void add_products(Dots& d, Codes c, int32_t four) {
  d.v = _mm512_dpbusd_epi32(d.v, c.v, _mm512_set1_epi32(four));
}
inline Vec to_floats(Dots d) { return {_mm512_maskz_cvtepi32_ps(kAllLanes, d.v)}; }
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(__AVX512F__)
struct Codes {
  __m256i v;
};
struct Dots {
  __m256i low, high;  // of four lanes each: two sums for a lane, side by side
};
inline Codes load_codes(const uint8_t* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
inline Codes low_codes(Codes c) { return {_mm256_and_si256(c.v, _mm256_set1_epi8(15))}; }
inline Codes high_codes(Codes c) { return low_codes({_mm256_srli_epi32(c.v, 4)}); }
inline Dots dots_from(int32_t x) {
  const __m256i one = _mm256_set1_epi64x(uint32_t(x));  // into the first sum of each lane
  return {one, one};
}
inline void add_products(Dots& d, Codes c, int32_t four) {
  const __m256i x = _mm256_broadcastq_epi64(_mm_cvtepi8_epi16(_mm_cvtsi32_si128(four)));
  const __m256i low = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(c.v));
  const __m256i high = _mm256_cvtepu8_epi16(_mm256_extracti128_si256(c.v, 1));
  d.low = _mm256_add_epi32(d.low, _mm256_madd_epi16(low, x));
  d.high = _mm256_add_epi32(d.high, _mm256_madd_epi16(high, x));
}
inline Vec to_floats(Dots d) {
  const __m256i sums = _mm256_hadd_epi32(d.low, d.high);  // lanes 0, 1, 4, 5, 2, 3, 6, 7
  return {_mm256_cvtepi32_ps(_mm256_permute4x64_epi64(sums, 0xd8))};
}
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr bool kSigned = true;
struct Codes {
  uint8x16_t v;
};
struct Dots {
  int32x4_t v;
};
inline Codes load_codes(const uint8_t* p) { return {vld1q_u8(p)}; }
inline Codes less_zero(Codes c) { return {veorq_u8(c.v, vdupq_n_u8(128))}; }
inline Codes low_codes(Codes c) { return {vandq_u8(c.v, vdupq_n_u8(15))}; }
inline Codes high_codes(Codes c) { return {vshrq_n_u8(c.v, 4)}; }
inline Dots dots_from(int32_t x) { return {vdupq_n_s32(x)}; }
inline void add_products(Dots& d, Codes c, int32_t four) {
  d.v = vdotq_s32(d.v, vreinterpretq_s8_u8(c.v), vreinterpretq_s8_s32(vdupq_n_s32(four)));
}
inline Vec to_floats(Dots d) { return {vcvtq_f32_s32(d.v)}; }
#else
struct Codes {
  uint8_t v[4 * Vec::width];
};
struct Dots {
  int32_t v[Vec::width];
};
inline Codes load_codes(const uint8_t* p) {
  Codes c;
  memcpy(c.v, p, sizeof c.v);
  return c;
}
inline Codes low_codes(Codes c) {
  for (uint8_t& code : c.v) code &= 15;
  return c;
}
inline Codes high_codes(Codes c) {
  for (uint8_t& code : c.v) code >>= 4;
  return c;
}
inline Dots dots_from(int32_t x) {
  Dots d;
  for (int32_t& lane : d.v) lane = x;
  return d;
}
inline void add_products(Dots& d, Codes c, int32_t four) {
  int8_t x[4];
  memcpy(x, &four, 4);
  for (int l = 0; l < Vec::width; l++)
    for (int i = 0; i < 4; i++) d.v[l] += c.v[4 * l + i] * x[i];
}
inline Vec to_floats(Dots d) {
  float lanes[Vec::width];
  for (int l = 0; l < Vec::width; l++) lanes[l] = float(d.v[l]);
  return load(lanes);
}
#endif
#if !defined(__ARM_FEATURE_DOTPROD)
constexpr bool kSigned = false;
inline Codes less_zero(Codes c) { return c; }
#endif

// ---------------------------------------------------------------------------------------------------------------
// The product: out (rows, N) = x (rows, K) W for the outputs begin .. end - 1 of one panel, which are multiples of 16

struct Prefetch {
  const uint8_t* next;  // prefetched meanwhile,
  int lines;            // so many lines with each block of k
};

// T rows by R vectors of outputs of one panel, from output `first` on.
template <class Q, int T, int R>
void integer_tile(const IntegerRows& x, int row, const Panels<Q>& w, int first, float* out, int out_row,
                  Prefetch ahead) {
  constexpr int width = Vec::width, halves = 8 / Q::kBits;  // of a byte, each a code
  static_assert(halves == 2 || Q::kZero == 128, "less_zero() takes 128");
  const int wide = w.width(first), within = first % Panels<Q>::kOutputs, blocks = w.blocks();
  const uint8_t* block = w.block(first, 0);
  Vec sum[T][R];
  UNROLL
  for (int t = 0; t < T; t++) UNROLL
  for (int r = 0; r < R; r++) sum[t][r] = 0.0f;
  ROLLED
  for (int b = 0; b < blocks; b++, block += wide * Panels<Q>::kOutputBytes) {
    // Into L1 (3) for the one wide tile of few rows, which reads them soon; into L2 (2) for the next panel.
    for (int i = 0; i < ahead.lines; i++, ahead.next += kLine) __builtin_prefetch(ahead.next, 0, R == 4 ? 3 : 2);
    Dots isum[T][R];
    UNROLL
    for (int t = 0; t < T; t++) UNROLL
    for (int r = 0; r < R; r++) isum[t][r] = dots_from(kSigned && halves == 1 ? 0 : x.start[(row + t) * blocks + b]);
    const uint8_t* codes = block + 2 * Panels<Q>::kNumbers * wide + within * 4;
    const int8_t* its = x.codes + size_t(row) * x.row() + b * kBlockNumbers;
    UNROLL
    for (int g = 0; g < kBlockNumbers / 4; g += halves, codes += 4 * wide) {
      UNROLL
      for (int r = 0; r < R; r++) {
        const Codes bytes = load_codes(codes + r * width * 4);
        UNROLL
        for (int h = 0; h < halves; h++) {
          const Codes half = halves == 1 ? less_zero(bytes) : h == 0 ? low_codes(bytes) : high_codes(bytes);
          UNROLL
          for (int t = 0; t < T; t++) {
            int32_t four;
            memcpy(&four, its + size_t(t) * x.row() + (g + h) * 4, 4);
            add_products(isum[t][r], half, four);
          }
        }
      }
    }
    UNROLL
    for (int r = 0; r < R; r++) {
      const f16* const scale = reinterpret_cast<const f16*>(block) + within + r * width;
      UNROLL
      for (int t = 0; t < T; t++) {
        const int at = (row + t) * blocks + b;
        sum[t][r] = fused(to_floats(isum[t][r]), load(scale) * x.scale[at], sum[t][r]);
        if (Q::kMin) sum[t][r] = fused(load(scale + wide), x.offset[at], sum[t][r]);
      }
    }
  }
  UNROLL
  for (int t = 0; t < T; t++) UNROLL
  for (int r = 0; r < R; r++) store(out + size_t(row + t) * out_row + first + r * width, sum[t][r]);
}

template <class Q, int R, int T>
void integer_rows(int rows, const IntegerRows& x, int row, const Panels<Q>& w, int first, float* out, int out_row,
                  const Prefetch& ahead) {
  if constexpr (T > 0) {
    if (rows == T) integer_tile<Q, T, R>(x, row, w, first, out, out_row, ahead);
    else integer_rows<Q, R, T - 1>(rows, x, row, w, first, out, out_row, ahead);
  }
}

// Few rows: one tile as wide as it can be, which prefetches its own panel some lines ahead. More rows: tiles that take
// the panel in turn, and share prefetching the next one: so memory is read during the computation.
constexpr bool kManyRegisters = Vec::registers == 32;
constexpr int kIntegerRows = kManyRegisters ? 6 : 2, kOneTile = kManyRegisters ? 3 : 2;  // sums stay in registers
template <class Q>
void integer_product(const IntegerRows& x, int rows, const Panels<Q>& w, int begin, int end, bool last, float* out,
                     int out_row) {
  constexpr int four = 4 * Vec::width, two = 2 * Vec::width, kAheadBytes = 4096;
  const bool few = rows <= kOneTile && (end - begin) % four == 0;
  const int step = few ? four : two, tiles = few ? 1 : (rows + kIntegerRows - 1) / kIntegerRows;
  const int passes = (end - begin + step - 1) / step * tiles;
  const int block_lines = (w.width(begin) * w.kOutputBytes + kLine - 1) / kLine;
  const int lines = (block_lines + passes - 1) / passes;  // with each block, of each pass
  const uint8_t* const panel = w.block(begin, 0);
  const uint8_t* next = passes == 1 ? panel + kAheadBytes : panel + size_t(block_lines) * w.blocks() * kLine;
  for (int first = begin; first < end; first += step)
    for (int i = 0; i < tiles; i++, next += size_t(lines) * w.blocks() * kLine) {
      const int row = rows * i / tiles, count = rows * (i + 1) / tiles - row;
      const Prefetch ahead{next, last && passes > 1 ? 0 : lines};
      if (few) integer_rows<Q, 4, kOneTile>(count, x, row, w, first, out, out_row, ahead);
      else if (end - first >= two) integer_rows<Q, 2, kIntegerRows>(count, x, row, w, first, out, out_row, ahead);
      else integer_rows<Q, 1, kIntegerRows>(count, x, row, w, first, out, out_row, ahead);
    }
}

#ifdef INSTANTIATE  // machine/library.cpp
INSTANTIATE void integer_product(const IntegerRows&, int, const Panels<Q8_0>&, int, int, bool, float*, int);
INSTANTIATE void integer_product(const IntegerRows&, int, const Panels<Q4_0>&, int, int, bool, float*, int);
INSTANTIATE void integer_product(const IntegerRows&, int, const Panels<Q4_1>&, int, int, bool, float*, int);
#endif

// Matmul: the outputs `mine` (cut at multiples of 16) of all rows; `after` follows on each panel's outputs, as in
// products.h. Each thread brings the rows to 8 bits for itself: that is less work than to wait for the others.
template <int bits, int zero, bool has_min, class After>
void matmul_twin(const Range& mine, int rows, const Matmul<float, Quantized<bits, zero, has_min>>& m,
                 const After& after) {
  constexpr int kMostRows = 96;  // whose codes stay in L2
  const int blocks = m.w.blocks(), most = smaller(rows, kMostRows);
  const IntegerRows x(scratch(IntegerRows::bytes(most, blocks) / sizeof(float)), most, blocks);
  for (int row = 0; row < rows; row += most) {
    const int count = smaller(most, rows - row);
    for (int r = 0; r < count; r++)
      x.template set<Quantized<bits, zero, has_min>>(r, m.x + size_t(row + r) * m.x_row, m.w.k);
    for (int begin = mine.begin, end; begin < mine.end; begin = end) {
      end = smaller(mine.end, begin / m.w.kOutputs * m.w.kOutputs + m.w.kOutputs);
      integer_product(x, count, m.w, begin, end, end == mine.end, m.out + size_t(row) * m.out_row, m.out_row);
      for (int r = 0; r < count; r++) after(Solo{}, row + r, begin, smaller(end, m.w.n));
    }
  }
}

}  // namespace nanospec
