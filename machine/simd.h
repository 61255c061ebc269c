// machine/simd.h: SIMD vectors of floats, as wide as the machine that this build is for.
//
// The same functions in four versions: AVX-512, AVX2, NEON of arm64, and a portable one of four floats. A sum in a lane
// has the same bits in all of them.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "machine/numbers.h"

namespace nanospec {

#if defined(__AVX512F__)
struct Vec {
  static constexpr int width = 16, registers = 32;
  __m512 v;
};
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Vec broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline void store(float* p, Vec x) { _mm512_storeu_ps(p, x.v); }
inline Vec fused(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec multiply(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
constexpr __mmask16 kAllLanes = 0xffff;  // the unmasked functions make g++ 12 warn about its own header
inline Vec low_halves(Vec x) {
  return {_mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAllLanes, _mm512_castps_si512(x.v), 16))};
}
inline Vec high_halves(Vec x) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x.v), _mm512_set1_epi32(int(0xffff0000))))};
}
inline Vec load(const f16* p) { return {_mm512_maskz_cvtph_ps(kAllLanes, _mm256_loadu_si256((const __m256i*)p))}; }
constexpr const char* kSimd = "AVX-512";
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
struct Vec {
  static constexpr int width = 8, registers = 16;
  __m256 v;
};
inline Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline Vec broadcast(float x) { return {_mm256_set1_ps(x)}; }
inline void store(float* p, Vec x) { _mm256_storeu_ps(p, x.v); }
inline Vec fused(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec multiply(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec low_halves(Vec x) { return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x.v), 16))}; }
inline Vec high_halves(Vec x) { return {_mm256_and_ps(x.v, _mm256_castsi256_ps(_mm256_set1_epi32(int(0xffff0000))))}; }
inline Vec load(const f16* p) { return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p))}; }
constexpr const char* kSimd = "AVX2";
#elif defined(__aarch64__)
struct Vec {
  static constexpr int width = 4, registers = 32;
  float32x4_t v;
};
inline Vec load(const float* p) { return {vld1q_f32(p)}; }
inline Vec broadcast(float x) { return {vdupq_n_f32(x)}; }
inline void store(float* p, Vec x) { vst1q_f32(p, x.v); }
inline Vec fused(Vec a, Vec b, Vec c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
inline Vec multiply(Vec a, Vec b) { return {vmulq_f32(a.v, b.v)}; }
inline Vec low_halves(Vec x) { return {vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(x.v), 16))}; }
inline Vec high_halves(Vec x) {
  return {vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x.v), vdupq_n_u32(0xffff0000u)))};
}
inline Vec load(const f16* p) { return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits)))}; }
constexpr const char* kSimd = "NEON";
#else
struct Vec {  // portable: four floats, which a compiler may keep in one register
  static constexpr int width = 4, registers = 16;
  float v[4];
};
inline Vec load(const float* p) { return {{p[0], p[1], p[2], p[3]}}; }
inline Vec broadcast(float x) { return {{x, x, x, x}}; }
inline void store(float* p, Vec x) { memcpy(p, x.v, sizeof x.v); }
inline Vec fused(Vec a, Vec b, Vec c) {
  Vec r;
  for (int l = 0; l < 4; l++) r.v[l] = fused(a.v[l], b.v[l], c.v[l]);
  return r;
}
inline Vec multiply(Vec a, Vec b) {
  for (int l = 0; l < 4; l++) a.v[l] *= b.v[l];
  return a;
}
inline Vec low_halves(Vec x) {
  for (float& lane : x.v) lane = bits_as<float>(bits_as<uint32_t>(lane) << 16);
  return x;
}
inline Vec high_halves(Vec x) {
  for (float& lane : x.v) lane = bits_as<float>(bits_as<uint32_t>(lane) & 0xffff0000u);
  return x;
}
inline Vec load(const f16* p) { return {{to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])}}; }
constexpr const char* kSimd = "portable";
#endif

// load_lanes() loads one vector; numbers_of() gives its numbers for one step of k. A float fills a lane, and a half
// becomes one. Of two bf16 side by side the first is the lower half of the lane; a shift or a mask makes either a
// float.
inline Vec load_lanes(const float* p) { return load(p); }
inline Vec load_lanes(const f16* p) { return load(p); }
inline Vec load_lanes(const bf16* p) { return load(reinterpret_cast<const float*>(p)); }
template <class B, int step>
inline Vec numbers_of(Vec lanes) {
  if constexpr (kTogether<B> == 1) return lanes;
  else return step == 0 ? low_halves(lanes) : high_halves(lanes);
}

static_assert(kPanel == kVectors * Vec::width, "a panel of weights is as wide as the widest tile");

}  // namespace nanospec
