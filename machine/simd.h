// machine/simd.h: SIMD vectors of floats, as wide as the machine that this build is for.
//
// `Lanes` is a compiler's vector, for AVX-512, AVX2, NEON of arm64, or of four floats anywhere; `Vec` makes it a number
// of machine/numbers.h, and a lane has a float's bits in all four. Then sums and largest numbers, in the order of a
// group of lanes; rows transposed; and what products read. One store goes past the caches.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <cstddef>

#include "machine/numbers.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// A vector as a number

#if defined(__AVX512F__)
using Lanes = __m512;
constexpr __mmask16 kAllLanes = 0xffff;  // the unmasked functions make g++ 12 warn about its own header
inline Lanes fused(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_ps(a, b, c); }
inline Lanes widened(const f16* p) { return _mm512_maskz_cvtph_ps(kAllLanes, _mm256_loadu_si256((const __m256i*)p)); }
constexpr int kRegisters = 32;
constexpr const char* kSimd = "AVX-512";
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
using Lanes = __m256;
inline Lanes fused(Lanes a, Lanes b, Lanes c) { return _mm256_fmadd_ps(a, b, c); }
inline Lanes widened(const f16* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
constexpr int kRegisters = 16;
constexpr const char* kSimd = "AVX2";
#elif defined(__aarch64__)
using Lanes = float32x4_t;
inline Lanes fused(Lanes a, Lanes b, Lanes c) { return vfmaq_f32(c, a, b); }
inline Lanes widened(const f16* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits))); }
constexpr int kRegisters = 32;
constexpr const char* kSimd = "NEON";
#else
typedef float Lanes __attribute__((vector_size(16)));
inline Lanes fused(Lanes a, Lanes b, Lanes c) {
  return Lanes{fused(a[0], b[0], c[0]), fused(a[1], b[1], c[1]), fused(a[2], b[2], c[2]), fused(a[3], b[3], c[3])};
}
inline Lanes widened(const f16* p) { return Lanes{to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])}; }
constexpr int kRegisters = 16;
constexpr const char* kSimd = "portable";
#endif

struct Vec {
  static constexpr int width = sizeof(Lanes) / sizeof(float), registers = kRegisters;
  typedef uint32_t Bits __attribute__((vector_size(sizeof(Lanes))));
  Lanes v;
  Vec() = default;
  Vec(Lanes lanes) : v(lanes) {}
  Vec(float x) : v(x - Lanes{}) {}  // in every lane; minus zero, for plus zero would change -0
};
static_assert(kPanel == kVectors * Vec::width, "a panel of weights is as wide as the widest tile");

typedef Lanes LanesAnywhere __attribute__((aligned(4), may_alias));
inline Vec load(const float* p) { return *reinterpret_cast<const LanesAnywhere*>(p); }
inline Vec load(const f16* p) { return widened(p); }
inline void store(float* p, Vec x) { *reinterpret_cast<LanesAnywhere*>(p) = x.v; }
// Stores past the caches, where the machine can, at a multiple of the vector's size: whole lines then cost no reading
// of what they replace. Other threads may read them after stored_past().
inline void store_past(float* p, Vec x) {
#if defined(__AVX512F__)
  _mm512_stream_ps(p, x.v);
#elif defined(__AVX2__)
  _mm256_stream_ps(p, x.v);
#else
  store(p, x);
#endif
}
inline void stored_past() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}
inline Vec fused(Vec a, Vec b, Vec c) { return fused(a.v, b.v, c.v); }
inline Vec operator+(Vec a, Vec b) { return a.v + b.v; }
inline Vec operator-(Vec a, Vec b) { return a.v - b.v; }
inline Vec operator*(Vec a, Vec b) { return a.v * b.v; }
inline Vec operator-(Vec a) { return -a.v; }
inline auto operator>=(Vec a, Vec b) { return a.v >= b.v; }
inline auto operator<=(Vec a, Vec b) { return a.v <= b.v; }
inline Vec choose(decltype(Lanes{} < Lanes{}) condition, Vec first, Vec second) {  // lane by lane
  return condition ? first.v : second.v;
}
inline Vec below(int n, int first, Vec x, Vec other) {  // x in the lanes whose number, from `first` on, is below n
  Vec number;
  for (int l = 0; l < Vec::width; l++) number.v[l] = float(l);
  return choose(number <= float(n - 1 - first), x, other);
}
#ifndef __CUDACC__
template <>
struct Format<Vec> : Format<float> {
  using Bits = Vec::Bits;
};
#else  // a function that a GPU has too takes no vectors
inline Vec exp(Vec x) {
  for (int l = 0; l < Vec::width; l++) x.v[l] = exp(x.v[l]);
  return x;
}
#endif

// ---------------------------------------------------------------------------------------------------------------
// Solo's sum() and largest() of n > 0 numbers, a multiple of kLanes: f(i) gives those from i on, a vector.

// The n lanes of x, joined by halves.
template <int n, class X, class Join>
inline float joined(X x, const Join& join) {
  if constexpr (n == 2) return join(x[0], x[1]);
  else {
    const auto half = [&] {  // the lanes are constants: nvcc expands no pack of them
      if constexpr (n == 16)
        return join(__builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7),
                    __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15));
      else if constexpr (n == 8)
        return join(__builtin_shufflevector(x, x, 0, 1, 2, 3), __builtin_shufflevector(x, x, 4, 5, 6, 7));
      else return join(__builtin_shufflevector(x, x, 0, 1), __builtin_shufflevector(x, x, 2, 3));
    };
    return joined<n / 2>(half(), join);
  }
}
// n numbers, joined to `from` in kLanes parts, as lanes do in turn; then the parts, by halves.
template <class F, class Join>
inline float joined_numbers(int n, Vec from, const F& f, const Join& join) {
  constexpr int vectors = kLanes / Vec::width;
  Lanes part[vectors];
  for (Lanes& its : part) its = from.v;
  for (int i = 0; i < n; i += kLanes) UNROLL
  for (int j = 0; j < vectors; j++) part[j] = join(part[j], f(i + j * Vec::width).v);
  UNROLL
  for (int half = vectors / 2; half > 0; half /= 2) UNROLL
  for (int j = 0; j < half; j++) part[j] = join(part[j], part[j + half]);
  return joined<Vec::width>(part[0], join);
}
template <class F>
inline float sum_of(int n, const F& f) {
  return joined_numbers(n, 0.0f, f, [](auto a, auto b) { return a + b; });
}
template <class F>
inline float largest_of(int n, const F& f) {
  return joined_numbers(n, f(0).v[0], f, [](auto a, auto b) { return a > b ? a : b; });
}

// ---------------------------------------------------------------------------------------------------------------
// Rows transposed: to[d * 16 + j] = from[j * stride + d], for four numbers d of each of 16 rows j.
inline void transpose_four(const float* from, ptrdiff_t stride, float* to) {
#if defined(__AVX512F__)
  const auto rows = [=](int j) {  // j, j + 4, j + 8, j + 12: four numbers of each
    const float* const p = from + j * stride;
    __m512 x = _mm512_castps128_ps512(_mm_loadu_ps(p));
    x = _mm512_insertf32x4(x, _mm_loadu_ps(p + 4 * stride), 1);
    x = _mm512_insertf32x4(x, _mm_loadu_ps(p + 8 * stride), 2);
    return _mm512_insertf32x4(x, _mm_loadu_ps(p + 12 * stride), 3);
  };
  const __m512 a = rows(0), b = rows(1), c = rows(2), d = rows(3);
  const auto pairs = [](__m512 x, __m512 y, bool high) {
    return _mm512_castps_pd(high ? _mm512_maskz_unpackhi_ps(kAllLanes, x, y)
                                 : _mm512_maskz_unpacklo_ps(kAllLanes, x, y));
  };
  for (int half = 0; half < 2; half++) {
    const __m512d ab = pairs(a, b, half), cd = pairs(c, d, half);
    _mm512_storeu_pd(to + half * 32, _mm512_maskz_unpacklo_pd(0xff, ab, cd));
    _mm512_storeu_pd(to + half * 32 + 16, _mm512_maskz_unpackhi_pd(0xff, ab, cd));
  }
#else
  for (int d = 0; d < 4; d++)
    for (int j = 0; j < 16; j++) to[d * 16 + j] = from[j * stride + d];
#endif
}

// ---------------------------------------------------------------------------------------------------------------
// numbers_of() gives the numbers of a loaded vector for one step of k. A float fills a lane, and a half becomes one. Of
// two bf16 side by side the first is the lower half of the lane; a shift or a mask makes either a float.
inline Vec load(const bf16* p) { return load(reinterpret_cast<const float*>(p)); }
template <class B, int step>
inline Vec numbers_of(Vec lanes) {
  if constexpr (kTogether<B> == 1) return lanes;
  else return Lanes(step == 0 ? Vec::Bits(lanes.v) << 16 : Vec::Bits(lanes.v) & 0xffff0000u);
}

}  // namespace nanospec
