// machine/numbers.h: the functions of which every operation is made, for CPU and GPU.
//
// In order: the macros that mark a function for host and device; number types and the fused multiply-add; exp, log and
// erf; cos, sin and whole powers; random bits that are a pure function of where they are used; the groups of lanes that
// work on a row. Everything here gives the same bits in a vector lane, in a loop's tail and on a GPU: all operations
// are correctly rounded and in a fixed order, and there is no libm. The file knows nothing of arrays, devices or
// models, and includes no CUDA header.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

// How a function and a loop are marked, for nvcc, clang++ and g++.
//   HD            callable on host and device
//   CALLS_EITHER  takes a function that may be callable on one of them only
//   INDEPENDENT   the steps of the loop do not depend on each other: the compiler may vectorize it without a proof
//   UNROLL        the loop has few steps, of a fixed number: unrolled, it has the array that it indexes in registers
//   ROLLED        the loop must not be unrolled, so that the array it indexes takes no registers, or so that the sums
//                 of its steps stay in registers: clang++ unrolls these too. g++ unrolls none unasked
//   UNROLL_STEPS  on a GPU the loop is unrolled by kSteps steps, so that their loads from shared memory overlap
#ifdef __CUDACC__
#define HD __host__ __device__
#define CALLS_EITHER _Pragma("nv_exec_check_disable")
#define INDEPENDENT
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
#define UNROLL_STEPS _Pragma("unroll kSteps")
#else
#define HD
#define CALLS_EITHER
#define UNROLL_STEPS
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("clang loop unroll(disable)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#define UNROLL _Pragma("GCC unroll 16")
#define ROLLED
#endif
#endif
// There is a GPU to compile for: a real one, by nvcc, or the one that tests/cuda/emulator.h emulates.
#if defined(__CUDACC__) || defined(EMULATED_CUDA)
#define WITH_CUDA
#endif
#define HD_INLINE HD __attribute__((always_inline)) inline  // compilers do not vectorize a loop that has a call in it

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Numbers

// The bits of one type read as another of the same size.
template <class To, class From>
HD inline To bits_as(From x) {
  static_assert(sizeof(To) == sizeof(From), "bits_as needs types of one size");
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}

// a * b + c, rounded once. All code is compiled with contraction off, so a multiply and an add are fused nowhere else.
HD_INLINE float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  // Without the instruction: the product is exact in double, and what its sum with c loses is known (Knuth's TwoSum).
  // If it loses anything, the sum's last bit is made odd: so it lies on the exact sum's side of every number halfway
  // between two floats, and rounds as that does (Boldo, Melquiond 2008). Beside infinities and NaN `lost` is NaN. All
  // is arithmetic of whole numbers, for compilers vectorize no comparison here.
  const double product = double(a) * double(b), sum = product + double(c), part = sum - product;
  const double lost =
      ((product - (sum - part)) + (double(c) - part)) * 0x1p-300;  // below 1: the exponent's top bit is 0
  const uint64_t bits = bits_as<uint64_t>(sum), size = bits_as<uint64_t>(lost) << 1;
  const uint64_t inexact = (~size & (0 - size)) >> 63, opposite = (bits ^ bits_as<uint64_t>(lost)) >> 63;
  return float(bits_as<double>((bits - (opposite & inexact)) | inexact));
#endif
}
HD inline double fused(double a, double b, double c) {  // libm's too is rounded once, on any machine
  return __builtin_fma(a, b, c);
}

// bfloat16: the upper half of a float. It is for storage; arithmetic is always in float.
struct bf16 {
  uint16_t bits;
};
HD inline float to_float(bf16 x) { return bits_as<float>(uint32_t(x.bits) << 16); }
HD inline bf16 to_bf16(float x) {  // rounds to nearest, ties to even; a NaN stays a NaN
  const uint32_t u = bits_as<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return bf16{uint16_t((u >> 16) | 0x40u)};
  return bf16{uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

// The float that half precision (IEEE's 16 bits: sign, 5 of exponent, 10 of fraction) stands for, exactly.
HD inline float half_to_float(uint16_t half) {
  constexpr uint32_t kOne = 1u << 23;  // of a float's exponent; its bias is larger by 112
  const uint32_t sign = uint32_t(half & 0x8000u) << 16, rest = uint32_t(half & 0x7fffu) << 13;
  if (rest >= 31 * kOne) return bits_as<float>(sign | rest | 0x7f800000u);  // infinity, or a NaN
  const uint32_t normal = rest + 112 * kOne;
  if (rest >= kOne) return bits_as<float>(sign | normal);
  return bits_as<float>(sign | bits_as<uint32_t>(bits_as<float>(normal + kOne) - bits_as<float>(113 * kOne)));
}

// Half precision as weights are stored in it.
struct f16 {
  uint16_t bits;
};
HD inline float to_float(f16 x) { return half_to_float(x.bits); }
HD inline f16 to_f16(float x) {  // rounds to nearest, ties to even; a NaN stays a NaN; from 65,520 on it is infinity
  const uint32_t u = bits_as<uint32_t>(x), size = u & 0x7fffffffu;
  const uint16_t sign = uint16_t(u >> 16 & 0x8000u);
  if (size > 0x7f800000u) return f16{uint16_t(sign | 0x7e00u)};
  if (size >= 0x477ff000u) return f16{uint16_t(sign | 0x7c00u)};
  if (size < 0x38800000u)  // below 2^-14: a multiple of 2^-24, which the sum with 1/2 rounds to
    return f16{uint16_t(sign | (bits_as<uint32_t>(bits_as<float>(size) + 0.5f) - 0x3f000000u))};
  return f16{uint16_t(sign | ((size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13))};
}

HD inline float to_float(float x) { return x; }
HD inline double to_float(double x) { return x; }

// x as a W, rounded to nearest.
template <class W>
HD inline W rounded(double x) {
  if constexpr (std::is_same<W, bf16>::value) return to_bf16(float(x));
  else if constexpr (std::is_same<W, f16>::value) return to_f16(float(x));
  else return W(x);
}

// The outputs of a panel of weights: four vectors of this build (simd.h), 64 floats with AVX-512.
constexpr int kVectors = 4;
#if defined(__AVX512F__) && !defined(PORTABLE)
constexpr int kPanel = kVectors * 16;
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(PORTABLE)
constexpr int kPanel = kVectors * 8;
#else
constexpr int kPanel = kVectors * 4;
#endif

// How many steps of a sum over k lie side by side in memory: two of bf16 fill the lane of one float.
template <class W>
constexpr int kTogether = std::is_same<W, bf16>::value ? 2 : 1;

// The square root, correctly rounded everywhere.
HD inline float square_root(float x) { return __builtin_sqrtf(x); }
HD inline double square_root(double x) { return __builtin_sqrt(x); }

template <class T>
HD constexpr T larger(T a, T b) {
  return a > b ? a : b;
}
template <class T>
HD constexpr T smaller(T a, T b) {
  return a < b ? a : b;
}

// ---------------------------------------------------------------------------------------------------------------
// exp, log, erf
// Each function is one formula for both types, and exp for vectors of floats (simd.h) too. The types differ in the
// coefficients, our own minimax fits, and in their number. There is no branch, no table and no libm, so compilers
// vectorize a loop around a call. Subnormal numbers count as zero. One ulp is the spacing of the type's numbers at the
// exact result. The errors were measured on every seventh float and 2 * 10^7 doubles; tests/machine/test_numbers.cpp
// checks bounds just above them.

template <class T>
struct Format {
  static constexpr bool kFloat = sizeof(T) == 4;
  using Limits = std::numeric_limits<T>;
  using Bits = std::conditional_t<kFloat, uint32_t, uint64_t>;
  static constexpr int kMantissa = Limits::digits - 1;  // bits below the exponent
  static constexpr T kBias = Limits::max_exponent - 1;  // of the exponent
  // 1.5 * 2^kMantissa: the low bits of x + kRounder are the integer nearest x.
  static constexpr T kRounder = T(Bits(3) << kMantissa >> 1);
  // ln 2 in two parts. The first has so few bits that an exponent times it is exact.
  static constexpr T kLn2High = T(kFloat ? 0x1.62e3p-1 : 0x1.62e42feep-1);
  static constexpr T kLn2Low = T(kFloat ? 0x1.2fefa4p-17 : 0x1.a39ef35793c76p-33);
  // Between these exp is a normal number.
  static constexpr T kLogLeast = T(kFloat ? -87.33654f : -708.396418532264);
  static constexpr T kLogMost = T(kFloat ? 88.72283f : 709.782712893384);
  static constexpr T kLeast = Limits::min(), kMost = Limits::max();  // the positive normal numbers
  static constexpr T kInfinity = Limits::infinity(), kNaN = Limits::quiet_NaN();
};

// condition ? first : second, as arithmetic on the bits: gcc compiles `?:` to a branch, which stops vectorization.
template <class T>
HD_INLINE T choose(bool condition, T first, T second) {
  using Bits = typename Format<T>::Bits;
  const Bits mask = Bits(0) - Bits(condition);
  return bits_as<T>(Bits((bits_as<Bits>(first) & mask) | (bits_as<Bits>(second) & ~mask)));
}

// c0 + c1 x + c2 x^2 + ..., two terms at a time, xx = x^2: its chain of dependent steps is half as long as Horner's.
template <class T>
HD_INLINE T terms(T, T, double c0) {
  return T(c0);
}
template <class T, class... Rest>
HD_INLINE T terms(T x, T xx, double c0, double c1, Rest... rest) {
  if constexpr (sizeof...(rest) == 0) return fused(T(c1), x, T(c0));
  else return fused(terms(x, xx, rest...), xx, fused(T(c1), x, T(c0)));
}
template <class T, class... Coefficients>
HD_INLINE T polynomial(T x, Coefficients... c) {
  return terms(x, x * x, c...);
}

// exp(x) for x from kLogLeast to kLogMost; any other x gives a meaningless number. exp(x) = 2^n exp(r), with
// n = round(x / ln 2), r = x - n ln 2, |r| <= ln(2) / 2 (Cody, Waite 1980). exp(r) = 1 + r + r^2 q(r), and n is added
// to the exponent's bits.
template <class T>
HD_INLINE T exp_normal(T x) {
  using F = Format<T>;
  using Bits = typename F::Bits;
  const T rounded = fused(x, T(1.4426950408889634), F::kRounder);
  const T minus_n = F::kRounder - rounded;
  const T r = fused(minus_n, F::kLn2Low, fused(minus_n, F::kLn2High, x));
  T q;
  if constexpr (F::kMantissa == 23) {
    q = polynomial(r, 0.49999993448879553, 0.16666520630511532, 0.041668387782477211, 0.0083687170007495583,
                   0.0013814613225496417);
  } else {
    q = polynomial(r, 0.50000000000000106079, 0.16666666666666411004, 0.041666666666530238603, 0.0083333333334950327205,
                   0.0013888888943620572058, 0.00019841269505999959094, 0.000024801493100722239308,
                   2.7557586440069696018e-6, 2.7630249872311162711e-7, 2.5000151842448451029e-8);
  }
  const T e = fused(r * r, q, r) + T(1);
  return bits_as<T>(Bits(bits_as<Bits>(e) + (bits_as<Bits>(rounded) << F::kMantissa)));
}

// exp(x) for any x: +inf where it exceeds the largest number, 0 below the smallest normal one; exp(0) is 1.
// Largest error: float 1.02 ulp, double 1.06 ulp.
template <class T>
HD_INLINE T exp(T x) {
  using F = Format<T>;
  const T within = choose(x >= F::kLogLeast, exp_normal(x), T(0));
  return choose(x <= F::kLogMost, within, x + F::kInfinity);  // +inf, or NaN for NaN
}

// A normal number x = 2^k (1 + f), sqrt(1/2) <= 1 + f < sqrt(2); f is exact.
template <class T>
struct Scaled {
  T k, f;
};
template <class T>
HD_INLINE Scaled<T> scaled(T x) {
  using F = Format<T>;
  using Bits = typename F::Bits;
  const Bits root = bits_as<Bits>(T(0.70710678118654752)), one = bits_as<Bits>(T(1));
  const Bits u = bits_as<Bits>(x) + (one - root);  // exponent field: k + bias; the bits below: 1 + f, from root up
  const T k = bits_as<T>(Bits((u >> F::kMantissa) + bits_as<Bits>(F::kRounder))) - (F::kRounder + F::kBias);
  const T f = bits_as<T>(Bits((u & ((Bits(1) << F::kMantissa) - 1)) + root)) - T(1);
  return {k, f};
}

// log(2^k (1 + f)) = k ln 2 + log(1 + f): with s = f / (2 + f) and h = f^2 / 2, log(1 + f) = 2 artanh(s)
// = f - (h - s (h + R)), R = s^2 W(s^2) (the grouping of Sun's fdlibm, so that log is relatively accurate near 1).
template <class T>
HD_INLINE T log_normal(Scaled<T> x) {
  using F = Format<T>;
  const T f = x.f, s = f / (T(2) + f), z = s * s, h = T(0.5) * f * f;
  T w;
  if constexpr (sizeof(T) == 4) {
    w = polynomial(z, 0.66666775573294460, 0.39977606878509798, 0.29870549630900081);
  } else {
    w = polynomial(z, 0.66666666666667306769, 0.39999999999433412272, 0.28571428739027190163, 0.22222198860983358862,
                   0.18183551591299933578, 0.15314331299331463179, 0.14793512511297661487);
  }
  const T correction = h - fused(s, fused(z, w, h), x.k * F::kLn2Low);
  return fused(x.k, F::kLn2High, f - correction);
}

// log(x) for any x: log(1) is 0; -inf for zero and the subnormals, NaN for x < 0.
// Largest error: float 0.83 ulp, double 0.86 ulp.
template <class T>
HD_INLINE T log(T x) {
  using F = Format<T>;
  const T below = choose(x < T(0), F::kNaN, -F::kInfinity);
  const T within = choose(x >= F::kLeast, log_normal(scaled(x)), below);
  return choose(x <= F::kMost, within, x);  // +inf and NaN are their own logarithm
}

// S of erf, below.
HD_INLINE float erf_terms(float a) {
  return polynomial(a, 1.128380251330520325, 0.63659773351297349, 0.10291962590257330, -0.019584009052029026,
                    0.00053700683044448215, 0.0010323485440818606, -0.00030878381831075882, 0.000031437733924868147);
}
HD_INLINE double erf_terms(double a) {
  return polynomial(a, 1.1283791670954973676, 0.63661977236883188143, 0.10277260326600931276, -0.01912844648547905391,
                    -0.00020919920912209955771, 0.0016962321952917654202, -0.00059022881531672974978,
                    0.000026180282819793273259, 0.000063828250450612401476, -0.000028599693670420451457,
                    1.9149215411788501336e-6, 4.4064741423567234535e-6, -3.0659731103016703711e-6,
                    1.2353799201599211609e-6, -3.5589956857593188442e-7, 7.6889242551764448111e-8,
                    -1.2484342245968925985e-8, 1.4871380058573628424e-9, -1.2326844111892866518e-10,
                    6.4031470345925259028e-12, -1.6234421209296795288e-13, 4.8570786879940688049e-16);
}
// erf(x) = sign(x) (1 - exp(-|x| S(|x|))). -log(1 - erf) is smooth, so one polynomial S serves all x up to the edge,
// from which on erf rounds to 1. The function is exactly odd. Its error is absolute: a tiny x loses digits, which do
// not matter in 1 + erf. Largest absolute error: float 1.05e-7, double 2.3e-16.
template <class T>
HD_INLINE T erf(T x) {
  using Bits = typename Format<T>::Bits;
  const Bits sign = bits_as<Bits>(x) & bits_as<Bits>(T(-0.0));
  const T edge = sizeof(T) == 4 ? T(4) : T(6), size = bits_as<T>(Bits(bits_as<Bits>(x) ^ sign));
  const T a = choose(size > edge, edge, size), one = fused(a, T(0), T(1));  // both are NaN if x is
  const T s = erf_terms(a);
  return bits_as<T>(Bits(bits_as<Bits>(one - exp_normal(-a * s)) | sign));
}

// ---------------------------------------------------------------------------------------------------------------
// Activations: `of` is the function, `slope` its derivative.

// GELU(x) = x Phi(x), Phi the normal distribution function (Hendrycks, Gimpel 2016);
// GELU'(x) = Phi(x) + x exp(-x^2 / 2) / sqrt(2 pi).
struct Gelu {
  template <class T>
  HD_INLINE static T of(T x) {
    return T(0.5) * x * (T(1) + erf(x * T(0.70710678118654752440)));
  }
  template <class T>
  HD_INLINE static T slope(T x) {
    const T phi = T(0.5) * (T(1) + erf(x * T(0.70710678118654752440)));
    return fused(x, exp(T(-0.5) * x * x) * T(0.39894228040143267794), phi);
  }
};
// Its approximation by tanh, as GPT-2 has it: x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
struct TanhGelu {
  static constexpr double k2Root = 1.59576912160573071176, kCube = 0.044715;  // 2 sqrt(2 / pi)
  template <class T>
  HD_INLINE static T share(T x) {
    return T(1) / (T(1) + exp(T(-k2Root) * x * fused(T(kCube) * x, x, T(1))));
  }
  template <class T>
  HD_INLINE static T of(T x) {
    return x * share(x);
  }
  template <class T>
  HD_INLINE static T slope(T x) {
    const T s = share(x);
    return s * fused(x * (T(1) - s), T(k2Root) * fused(T(3 * kCube) * x, x, T(1)), T(1));
  }
};
// SiLU(x) = x / (1 + exp(-x)) (Elfwing, Uchibe, Doya 2018); with s = 1 / (1 + exp(-x)), SiLU'(x) = s (1 + x (1 - s)).
struct Silu {
  template <class T>
  HD_INLINE static T of(T x) {
    return x / (T(1) + exp(-x));
  }
  template <class T>
  HD_INLINE static T slope(T x) {
    const T s = T(1) / (T(1) + exp(-x));
    return s * fused(x, T(1) - s, T(1));
  }
};

// ---------------------------------------------------------------------------------------------------------------
// cos, sin and whole powers, of doubles: for initial weights, tables of angles, and the course of a training. Errors
// were measured as above, at 2 * 10^7 angles; no branch, no table and no libm here either.

// sin(x + quarters pi / 2) for |x| <= 2^31; larger angles lose digits. n = round(x / (pi / 2)), r = x - n pi / 2,
// |r| <= pi / 4, and n + quarters says which of sin(r), cos(r), -sin(r) and -cos(r) it is. pi / 2 comes as the sum of
// three doubles (Cody, Waite 1980), and the first difference is exact. The polynomials are our own minimax fits;
// 1 - r^2 / 2 is rounded, and what that lost is added with the rest (Sun's fdlibm).
HD_INLINE double sine(double x, int quarters) {
  using F = Format<double>;
  const double rounded = fused(x, 0.63661977236758134308, F::kRounder), n = rounded - F::kRounder;
  const double near = fused(-n, 0x1.1a62633145c07p-54, fused(-n, 0x1.921fb54442d18p+0, x));
  const double r = fused(n, 0x1.f1976b7ed8fbcp-110, near), z = r * r, half = 0.5 * z, most = 1.0 - half;
  const double s = polynomial(z, -0.16666666666666630729, 0.0083333333333221185818, -0.00019841269829589534331,
                              2.7557313621384511988e-6, -2.5050747762695052053e-8, 1.5896230149294207072e-10);
  const double c = polynomial(z, 0.041666666666666592922, -0.0013888888888873056412, 0.000024801587288851704765,
                              -2.7557314179296797969e-7, 2.0875700841979100509e-9, -1.1358536521378219103e-11);
  const uint64_t turn = bits_as<uint64_t>(rounded) + uint64_t(quarters);
  const double y = choose((turn & 1) != 0, most + fused(z * z, c, (1.0 - most) - half), fused(r * z, s, r));
  return bits_as<double>(bits_as<uint64_t>(y) ^ (turn & 2) << 62);
}
// Largest error: 1.52 ulp.
HD_INLINE double sin(double x) { return sine(x, 0); }
HD_INLINE double cos(double x) { return sine(x, 1); }

// x^n, n >= 0, by squaring again and again: by definition this order of products.
HD inline double power(double x, int64_t n) {
  double result = 1;
  for (; n > 0; n /= 2) {
    if (n % 2 == 1) result *= x;
    x *= x;
  }
  return result;
}

// ---------------------------------------------------------------------------------------------------------------
// Random bits: a pure function of where they are used, so that no order of drawing can change them.

// Draws for different purposes never share their bits: each purpose has a stream.
enum Stream : uint32_t {
  kStreamSample,    // the noise of the next token: the target and its drafters share it, on purpose
  kStreamAccept,    // accept or reject, for the rules that draw this themselves
  kStreamResidual,  // the token drawn after a rejection
  kStreamDraft,     // a drafter's sampled candidates, for the rules whose proofs need them independent
  kStreamDropout,
  kStreamBatch,  // where the training sequences start
  kStreamEvaluate,
  kStreamInitialize,
};

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011): ten rounds over a 128-bit counter under a 64-bit key.
// Returns 128 random bits for one (seed, sequence, stream, index, item).
struct Bits128 {
  uint32_t word[4];
};
HD_INLINE Bits128 philox(uint64_t seed, uint32_t sequence, uint32_t stream, uint64_t index, uint32_t item) {
  constexpr uint64_t kLow = 0xffffffffu;  // 32-bit words in 64-bit lanes: gcc's code for packed words is slower
  uint64_t c0 = item, c1 = index & kLow, c2 = sequence, c3 = stream ^ ((index >> 32 << 8) & kLow);
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  UNROLL
  for (int round = 0; round < 10; round++) {
    const uint64_t p0 = 0xD2511F53u * c0, p1 = 0xCD9E8D57u * c2;
    c0 = (p1 >> 32) ^ c1 ^ k0;
    c2 = (p0 >> 32) ^ c3 ^ k1;
    c1 = p1 & kLow;
    c3 = p0 & kLow;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{uint32_t(c0), uint32_t(c1), uint32_t(c2), uint32_t(c3)}};
}

// 64 of the 128 bits.
HD inline uint64_t random_bits(uint64_t seed, uint32_t sequence, uint32_t stream, uint64_t index, uint32_t item) {
  const Bits128 bits = philox(seed, sequence, stream, index, item);
  return uint64_t(bits.word[1]) << 32 | bits.word[0];
}

// 32 random bits as a number strictly between 0 and 1: the middle of one of 2^32 equal intervals.
HD inline double uniform(uint64_t bits) { return (double(uint32_t(bits)) + 0.5) * (1.0 / 4294967296.0); }

// ---------------------------------------------------------------------------------------------------------------
// Groups of lanes: an operation says what one group does to one row.
//   each(n, f)        f(i) for every i < n, in any order
//   map(out, n, f)    out[i] = f(i) for every i < n, in any order; or out(i, f(i)), where out is a function. Several f
//                     may be called before the first number is stored: f(i) may read what i overwrites, and nothing
//                     that another i does
//   sum(n, f)         f(0) + ... + f(n-1). Lane l of kLanes adds its i = l, l + kLanes, ... in turn. Then the upper
//                     half of the lanes' sums is added to the lower half, until one is left. The order is fixed, so a
//                     GPU's warp and a CPU's core give the same bits.
//   count(n, f)       of how many i f(i) is true
//   largest(n, f)     max of f(i)
// A value computed outside these is the same in every lane. After a call, all lanes may read what it wrote to the row.

constexpr int kLanes = 32;

// What `map` does with a number.
template <class Number, class X>
HD_INLINE void put(Number* out, int i, X x) {
  out[i] = x;
}
CALLS_EITHER
template <class F, class X>
HD_INLINE void put(F out, int i, X x) {
  out(i, x);
}

// A group of one: a CPU core. Its inner loops are vectorized by the compiler.
struct Solo {
  CALLS_EITHER
  template <class F>
  HD void each(int n, F f) const {
    INDEPENDENT
    for (int i = 0; i < n; i++) f(i);
  }
  CALLS_EITHER
  template <class Out, class F>
  HD void map(Out out, int n, F f) const {
    INDEPENDENT
    for (int i = 0; i < n; i++) put(out, i, f(i));
  }
  CALLS_EITHER
  template <class F>
  HD int count(int n, F f) const {
    int sum = 0;
    for (int i = 0; i < n; i++) sum += f(i) ? 1 : 0;
    return sum;
  }
  CALLS_EITHER
  template <class T, class F>
  HD T sum(int n, F f) const {
    T part[kLanes] = {};
    int i = 0;
    for (; i + kLanes <= n; i += kLanes)
      for (int l = 0; l < kLanes; l++) part[l] += f(i + l);
    for (int l = 0; i + l < n; l++) part[l] += f(i + l);
    return joined<kLanes / 2>(part, [](T a, T b) { return a + b; });
  }
  CALLS_EITHER
  template <class T, class F>
  HD T largest(int n, F f) const {
    T best[kLanes];
    for (int l = 0; l < kLanes; l++) best[l] = f(0);
    int i = 0;
    for (; i + kLanes <= n; i += kLanes)
      for (int l = 0; l < kLanes; l++) best[l] = larger(best[l], f(i + l));
    for (int l = 0; i + l < n; l++) best[l] = larger(best[l], f(i + l));
    return joined<kLanes / 2>(best, [](T a, T b) { return larger(a, b); });
  }

 private:
  // The lanes' parts, joined by halves. `half` is known to the compiler, for it makes vectors of these loops.
  CALLS_EITHER
  template <int half, class T, class Join>
  HD static T joined(T* part, Join join) {
    UNROLL
    for (int l = 0; l < half; l++) part[l] = join(part[l], part[l + half]);
    if constexpr (half > 1) return joined<half / 2>(part, join);
    else return part[0];
  }
};

#ifdef WITH_CUDA
constexpr unsigned kEveryLane = 0xffffffffu;  // the mask of a whole warp

// Calls use(i, f(i)) for i = first, first + kStep, ... below n, in this order. It computes a batch of numbers before it
// uses the first: so a lane waits for memory once for eight loads, though use() may store where the compiler must fear
// that a later f() reads. Behind the end it computes the last number again, or, where another lane's use() may write
// that meanwhile (kInPlace), one of its own; a lane with one number, just that.
template <int kStep, int kBatch = 8, bool kInPlace = false, class F, class Use>
__device__ __forceinline__ void in_batches(int n, int first, F f, Use use) {
  if (n <= kStep) {
    if (first < n) use(first, f(first));
    return;
  }
  ROLLED
  for (; first < n; first += kBatch * kStep) {
    decltype(f(0)) value[kBatch];
    UNROLL
    for (int j = 0; j < kBatch; j++) {
      const int at = first + j * kStep;
      value[j] = f(kInPlace && at >= n ? first : smaller(at, n - 1));
    }
    UNROLL
    for (int j = 0; j < kBatch; j++)
      if (first + j * kStep < n) use(first + j * kStep, value[j]);
  }
}

// A GPU's warp. Its lanes synchronize after each of these, so that one lane may read, or overwrite, what another wrote
// or read.
struct Warp {
  template <class F>
  __device__ void each(int n, F f) const {
    for (int i = threadIdx.x % kLanes; i < n; i += kLanes) f(i);
    __syncwarp();
  }
  template <class Out, class F>
  __device__ void map(Out out, int n, F f) const {
    in_batches<kLanes, 8, true>(n, threadIdx.x % kLanes, f, [=](int i, auto x) { put(out, i, x); });
    __syncwarp();
  }
  template <class T, class F>
  __device__ T sum(int n, F f) const {
    return joined(n, T(0), f, [](T a, T b) { return a + b; });
  }
  template <class F>
  __device__ int count(int n, F f) const {
    return joined(n, 0, f, [](int a, int b) { return a + b; });
  }
  template <class T, class F>
  __device__ T largest(int n, F f) const {
    return joined(n, T(f(0)), f, [](T a, T b) { return larger(a, b); });
  }

 private:
  // A lane joins its numbers to `part`; then the lanes' parts are joined by halves.
  template <class T, class F, class Join>
  __device__ static T joined(int n, T part, F f, Join join) {
    in_batches<kLanes>(n, threadIdx.x % kLanes, f, [&](int, T x) { part = join(part, x); });
    for (int half = kLanes / 2; half > 0; half /= 2) part = join(part, __shfl_xor_sync(kEveryLane, part, half));
    __syncwarp();
    return part;
  }
};
#endif

}  // namespace nanospec
