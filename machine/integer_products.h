// machine/integer_products.h: the product with weights of 8 to 4 bits on a CPU, by vectors.
//
// In order: sums of products of bytes, by the words that a machine has for them; the register tile; the twin of Matmul
// (integers.h), which has the portable version's bits.
#pragma once

#include "machine/integers.h"
#include "machine/products.h"
#include "machine/simd.h"
#include "machine/threads.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Sums of products of bytes, one in each lane of a Vec. Weights' codes are bytes without sign, activations have one. At
// most three words of a machine do it:
//   - four_products: four bytes times four, added to an int32. Where it exists (kFourProducts) it does all formats;
//   - two_products of bytes: two times two, an int16. It may saturate, so its sums must fit;
//   - two_products of int16: two times two, an int32.

typedef uint8_t Codes __attribute__((vector_size(sizeof(Lanes))));
typedef int16_t ShortLanes __attribute__((vector_size(sizeof(Lanes))));
typedef uint16_t UnsignedShortLanes __attribute__((vector_size(sizeof(Lanes))));
typedef int32_t IntLanes __attribute__((vector_size(sizeof(Lanes))));
typedef Codes CodesAnywhere __attribute__((aligned(1), may_alias));

#if defined(__AVX512VNNI__) && defined(__AVX512F__)
constexpr bool kFourProducts = true, kSigned = false;
inline IntLanes four_products(IntLanes sum, Codes c, IntLanes x) {
  return IntLanes(_mm512_dpbusd_epi32(__m512i(sum), __m512i(c), __m512i(x)));
}
#elif defined(__AVXVNNI__) && defined(__AVX2__) && !defined(__AVX512F__)
constexpr bool kFourProducts = true, kSigned = false;
inline IntLanes four_products(IntLanes sum, Codes c, IntLanes x) {
  return IntLanes(_mm256_dpbusd_avx_epi32(__m256i(sum), __m256i(c), __m256i(x)));
}
#elif defined(__ARM_FEATURE_DOTPROD)
// Both sides have signs: codes of 8 bits are taken less their zero, 128, and their sum needs no start.
constexpr bool kFourProducts = true, kSigned = true;
inline IntLanes four_products(IntLanes sum, Codes c, IntLanes x) {
  return vdotq_s32(sum, vreinterpretq_s8_u8(c), vreinterpretq_s8_s32(x));
}
#else
constexpr bool kFourProducts = false, kSigned = false;
inline IntLanes four_products(IntLanes sum, Codes, IntLanes) { return sum; }  // never called
#endif
#if defined(__AVX512BW__)
inline ShortLanes two_products(Codes c, IntLanes x) { return ShortLanes(_mm512_maddubs_epi16(__m512i(c), __m512i(x))); }
inline IntLanes two_products(ShortLanes a, IntLanes x) { return IntLanes(_mm512_madd_epi16(__m512i(a), __m512i(x))); }
#elif defined(__AVX2__) && !defined(__AVX512F__)
inline ShortLanes two_products(Codes c, IntLanes x) { return ShortLanes(_mm256_maddubs_epi16(__m256i(c), __m256i(x))); }
inline IntLanes two_products(ShortLanes a, IntLanes x) { return IntLanes(_mm256_madd_epi16(__m256i(a), __m256i(x))); }
#else
inline ShortLanes two_products(Codes c, IntLanes x) {
  const auto pairs = UnsignedShortLanes(c);
  return ShortLanes(pairs & 255) * (ShortLanes(ShortLanes(x) << 8) >> 8) +
         ShortLanes(pairs >> 8) * (ShortLanes(x) >> 8);
}
inline IntLanes two_products(ShortLanes a, IntLanes x) {
  return (IntLanes(a) << 16 >> 16) * (x << 16 >> 16) + (IntLanes(a) >> 16) * (x >> 16);
}
#endif

// How weights of a format are multiplied. A vector of codes has kParts parts, one after the other multiplied by an
// int32 of activations, the same in all lanes.
template <class Q>
struct Products {
  static constexpr int kHigh = Panels<Q>::kHigh;  // bits of a code that lie apart
  // 8 bits: two products, each up to 255 * 127, may not fit an int16: codes and activations become numbers of 16 bits.
  static constexpr bool kShorts = Q::kBits == 8 && !kFourProducts;
  // 4 bits: the products of a whole block do, 8 * 2 * 15 * 127 = 30,480.
  static constexpr bool kShortSums = Q::kBits == 4 && !kFourProducts;
  // 5 and 6 bits: those of a pair do, 2 * 63 * 127; pairs are widened one by one.
  static constexpr bool kPairs = kHigh > 0 && !kFourProducts;
  static constexpr int kParts = Q::kBits < 8 || kShorts ? 2 : 1;
  static constexpr int kFours = kBlockNumbers / (kShorts ? 2 : 4);  // int32 of activations, with a block

  // Of a lane's two short sums the first has the start, -zero times the sum of the activations x. In it are then 16 of
  // (code - zero) x and 16 of -zero x: at most 2 * 16 * 8 * 127 = 32,512, which fits.
  static IntLanes start(int32_t its) {
    if (kSigned && Q::kBits == 8) its = 0;
    return IntLanes{} + (kShortSums ? its & 0xffff : its);
  }
  static Codes part(Codes c, int i) {
    if (kShorts) return i == 0 ? Codes(UnsignedShortLanes(c) & 255) : Codes(UnsignedShortLanes(c) >> 8);
    if (Q::kBits == 8) return kSigned ? c ^ 128 : c;
    return i == 0 ? c & 15 : c >> 4;
  }
  // The same with the high bits of codes 4 g .. 4 g + 3.
  static Codes part(Codes low, Codes high, int i, int g) {
    if (kHigh == 0) return part(low, i);
    const int up = 4 - Panels<Q>::high_bit(g);  // from there to bit 4; bits of other bytes are masked out
    const IntLanes at = up >= 0 ? IntLanes(high) << (up & 7) : IntLanes(high) >> (-up & 7);
    return part(low, i) | (Codes(at) & uint8_t(((1 << kHigh) - 1) << 4));
  }
  static void add(IntLanes& sum, Codes part, int32_t four) {
    const IntLanes x = IntLanes{} + four;
    if (kFourProducts) sum = four_products(sum, part, x);
    else if (kShorts) sum += two_products(ShortLanes(part), x);
    else if (kPairs) sum += two_products(two_products(part, x), IntLanes(ShortLanes{} + 1));
    else sum = IntLanes(ShortLanes(sum) + two_products(part, x));
#if defined(__x86_64__)
    // A compiler may change the order of such sums. g++ would first compute all products of a block, into memory; this
    // tells it that the sum is used here.
    if (!kFourProducts) asm("" : "+x"(sum));
#endif
  }
  static Vec to_floats(IntLanes sum) {
    if (kShortSums) sum = two_products(ShortLanes(sum), IntLanes(ShortLanes{} + 1));
    return __builtin_convertvector(sum, Lanes);
  }
};

// ---------------------------------------------------------------------------------------------------------------
// The product: out (rows, N) = x (rows, K) W for the outputs begin .. end - 1 of one panel, which are multiples of 16

constexpr int kIntegerRows = kTileRows, kOneTile = (kTileRows + 1) / 2;  // sums stay in registers
constexpr int kUnpackedTiles = 6;  // so many tiles share codes that are unpacked once

// Rows of activations, as a product reads them.
struct ProductRows {
  IntegerRows numbers;   // their scales, starts and offsets
  const int32_t* fours;  // (R, blocks, Products::kFours) their codes
  Codes* parts;          // scratch: the parts of two vectors of outputs, (blocks, kFours / kParts, 2, kParts)
};

struct Prefetch {
  const uint8_t* next;  // prefetched meanwhile,
  int lines;            // so many lines with each block of k
};

inline Codes load_codes(const uint8_t* p) { return *reinterpret_cast<const CodesAnywhere*>(p); }

// The high bits of codes 4 i .. 4 i + 7, of the r-th vector of outputs; words: all words of the block.
template <class Q>
Codes load_high(const Panels<Q>&, const uint8_t* words, int i, int wide, int r) {
  if (Panels<Q>::kHigh == 0) return Codes{};
  return load_codes(words + (Panels<Q>::high_word(i) * wide + r * Vec::width) * 4);
}

// The parts of the codes of two vectors of outputs, as the tiles read them.
template <class Q>
void unpack_parts(const Panels<Q>& w, int first, Codes* to) {
  using P = Products<Q>;
  const int wide = w.width(first), within = first % w.kOutputs;
  for (int b = 0; b < w.blocks(); b++) {
    const uint8_t *const words = w.block(first, b) + w.kNumberBytes * wide + within * 4, *codes = words;
    UNROLL
    for (int i = 0; i < P::kFours; i += P::kParts, codes += 4 * wide) UNROLL
    for (int r = 0; r < 2; r++) {
      const Codes bytes = load_codes(codes + r * Vec::width * 4), high = load_high(w, words, i, wide, r);
      UNROLL
      for (int part = 0; part < P::kParts; part++) *to++ = P::part(bytes, high, part, i + part);
    }
  }
}

// T rows by R vectors of outputs of one panel, from output `first` on. unpacked: by unpack_parts(), in `parts`.
template <class Q, int T, int R, bool unpacked>
void integer_tile(const ProductRows& rows, int row, const Panels<Q>& w, int first, float* out, int out_row,
                  Prefetch ahead) {
  using P = Products<Q>;
  constexpr int width = Vec::width, unit_fours = P::kFours / Q::kScales;
  static_assert(Q::kBits < 8 || Q::kZero == 128, "part() takes 128");
  const IntegerRows& x = rows.numbers;
  const int wide = w.width(first), within = first % Panels<Q>::kOutputs, blocks = w.blocks();
  const ptrdiff_t row_fours = ptrdiff_t(blocks) * P::kFours;
  const int32_t* fours = rows.fours + row * row_fours;
  const uint8_t* block = w.block(first, 0);
  const Codes* parts = rows.parts;
  Vec sum[T][R];
  UNROLL
  for (int t = 0; t < T; t++) UNROLL
  for (int r = 0; r < R; r++) sum[t][r] = 0.0f;
  ROLLED
  for (int b = 0; b < blocks; b++, block += wide * Panels<Q>::kOutputBytes) {
    // Into L1 (3) for the one wide tile of few rows, which reads them soon; into L2 (2) for the next panel.
    for (int i = 0; i < ahead.lines; i++, ahead.next += kLine) __builtin_prefetch(ahead.next, 0, R == 4 ? 3 : 2);
    const uint8_t *const words = block + Panels<Q>::kNumberBytes * wide + within * 4, *codes = words;
    UNROLL
    for (int unit = 0; unit < Q::kScales; unit++) {
      IntLanes isum[T][R];
      UNROLL
      for (int t = 0; t < T; t++) UNROLL
      for (int r = 0; r < R; r++) isum[t][r] = P::start(x.start[((row + t) * blocks + b) * Q::kScales + unit]);
      UNROLL
      for (int j = 0; j < unit_fours; j += P::kParts, codes += 4 * wide, fours += P::kParts) UNROLL
      for (int r = 0; r < R; r++) {
        const int i = unit * unit_fours + j;
        const Codes bytes = unpacked ? Codes{} : load_codes(codes + r * width * 4);
        const Codes high = unpacked ? Codes{} : load_high(w, words, i, wide, r);
        UNROLL
        for (int part = 0; part < P::kParts; part++) {
          const Codes its = unpacked ? *parts++ : P::part(bytes, high, part, i + part);
          UNROLL
          for (int t = 0; t < T; t++) P::add(isum[t][r], its, fours[t * row_fours + part]);
        }
      }
      UNROLL
      for (int r = 0; r < R; r++) {
        const auto* const scale = reinterpret_cast<const typename Q::Number*>(block) + unit * wide + within + r * width;
        UNROLL
        for (int t = 0; t < T; t++) {
          const int at = (row + t) * blocks + b;
          sum[t][r] = fused(P::to_floats(isum[t][r]), load(scale) * x.scale[at], sum[t][r]);
          if (Q::kMin && unit == Q::kScales - 1) sum[t][r] = fused(load(scale + wide), x.offset[at], sum[t][r]);
        }
      }
    }
  }
  UNROLL
  for (int t = 0; t < T; t++) UNROLL
  for (int r = 0; r < R; r++) store(out + size_t(row + t) * out_row + first + r * width, sum[t][r]);
}

template <class Q, int R, bool unpacked, int T>
void integer_rows(int rows, const ProductRows& x, int row, const Panels<Q>& w, int first, float* out, int out_row,
                  const Prefetch& ahead) {
  if constexpr (T > 0) {
    if (rows == T) integer_tile<Q, T, R, unpacked>(x, row, w, first, out, out_row, ahead);
    else integer_rows<Q, R, unpacked, T - 1>(rows, x, row, w, first, out, out_row, ahead);
  }
}

// Few rows: one tile as wide as it can be, which prefetches its own panel some lines ahead. More rows: tiles that take
// the panel in turn, and share prefetching the next one: so memory is read during the computation.
template <class Q>
void integer_product(const ProductRows& x, int rows, const Panels<Q>& w, int begin, int end, bool last, float* out,
                     int out_row) {
  constexpr int four = 4 * Vec::width, two = 2 * Vec::width, kAheadBytes = 4096;
  const bool few = rows <= kOneTile && (end - begin) % four == 0;
  const int step = few ? four : two, tiles = few ? 1 : (rows + kIntegerRows - 1) / kIntegerRows;
  const int passes = (end - begin + step - 1) / step * tiles;
  const int block_lines = (w.width(begin) * w.kOutputBytes + kLine - 1) / kLine;
  const int lines = (block_lines + passes - 1) / passes;  // with each block, of each pass
  const uint8_t* const panel = w.block(begin, 0);
  const uint8_t* next = passes == 1 ? panel + kAheadBytes : panel + size_t(block_lines) * w.blocks() * kLine;
  for (int first = begin; first < end; first += step) {
    const bool whole = end - first >= two;  // else one vector is left
    const bool unpacked = Products<Q>::kParts > 1 && whole && tiles >= kUnpackedTiles;
    if (unpacked) unpack_parts(w, first, x.parts);
    for (int i = 0; i < tiles; i++, next += size_t(lines) * w.blocks() * kLine) {
      const int row = rows * i / tiles, count = rows * (i + 1) / tiles - row;
      const Prefetch ahead{next, last && passes > 1 ? 0 : lines};
      if (few) integer_rows<Q, 4, false, kOneTile>(count, x, row, w, first, out, out_row, ahead);
      else if (unpacked) integer_rows<Q, 2, true, kIntegerRows>(count, x, row, w, first, out, out_row, ahead);
      else if (whole) integer_rows<Q, 2, false, kIntegerRows>(count, x, row, w, first, out, out_row, ahead);
      else integer_rows<Q, 1, false, kIntegerRows>(count, x, row, w, first, out, out_row, ahead);
    }
  }
}

#ifdef INSTANTIATE  // machine/library.cpp
#define PRODUCT(Q) \
  INSTANTIATE void integer_product(const ProductRows&, int, const Panels<Q>&, int, int, bool, float*, int);
PRODUCT(Q8_0)
PRODUCT(Q4_0)
PRODUCT(Q4_1)
PRODUCT(Q5_0)
PRODUCT(Q3_K)
PRODUCT(Q4_K)
PRODUCT(Q5_K)
PRODUCT(Q6_K)
PRODUCT(QAny)
#undef PRODUCT
#endif

// Codes of a row as numbers of 16 bits, in the order of Products::part: of four the first and the third, then the
// others.
inline void to_shorts(const int8_t* from, int n, int16_t* to) {
  for (int i = 0; i < n; i += 4)
    for (int j = 0; j < 4; j++) to[i + j] = from[i + j % 2 * 2 + j / 2];
}

// Matmul: the outputs `mine` (cut at multiples of 16) of all rows; `after` follows on each panel's outputs, as in
// products.h. Each thread brings the rows to 8 bits for itself: that is less work than to wait for the others.
template <int bits, int zero, bool has_min, int floats, class After>
void matmul_twin(const Range& mine, int rows, const Matmul<float, Quantized<bits, zero, has_min, floats>>& m,
                 const After& after) {
  using Q = Quantized<bits, zero, has_min, floats>;
  using P = Products<Q>;
  constexpr int kMostRows = 96;  // whose codes stay in L2
  const int blocks = m.w.blocks(), most = smaller(rows, kMostRows), numbers = blocks * kBlockNumbers;
  const size_t part_bytes = size_t(blocks) * P::kFours * 2 * sizeof(Codes),
               row_bytes = IntegerRows::bytes(most, blocks);
  const size_t short_bytes = P::kShorts ? size_t(most) * numbers * sizeof(int16_t) : 0;
  char* const memory = reinterpret_cast<char*>(scratch((part_bytes + row_bytes + short_bytes) / sizeof(float)));
  const IntegerRows x(memory + part_bytes, most, blocks);
  int16_t* const shorts = reinterpret_cast<int16_t*>(memory + part_bytes + row_bytes);
  const void* const codes = P::kShorts ? static_cast<void*>(shorts) : x.codes;
  const ProductRows product_rows{x, static_cast<const int32_t*>(codes), reinterpret_cast<Codes*>(memory)};
  for (int row = 0; row < rows; row += most) {
    const int count = smaller(most, rows - row);
    for (int r = 0; r < count; r++) {
      x.template set<Q>(r, m.x + size_t(row + r) * m.x_row, m.w.k);
      if (P::kShorts) to_shorts(x.codes + size_t(r) * numbers, numbers, shorts + size_t(r) * numbers);
    }
    for (int begin = mine.begin, end; begin < mine.end; begin = end) {
      end = smaller(mine.end, begin / m.w.kOutputs * m.w.kOutputs + m.w.kOutputs);
      integer_product(product_rows, count, m.w, begin, end, end == mine.end, m.out + size_t(row) * m.out_row,
                      m.out_row);
      for (int r = 0; r < count; r++) after(Solo{}, row + r, begin, smaller(end, m.w.n));
    }
  }
}

}  // namespace nanospec
