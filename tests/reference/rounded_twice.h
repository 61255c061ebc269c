// tests/reference/rounded_twice.h: a fused multiply-add becomes a product and a sum, for
// tests/reference/cache_lines.py. valgrind computes a fused one lane by lane, in software: twenty times slower. Numbers
// differ in the last bits; what is read and written does not.
#pragma once

#include <immintrin.h>

#define _mm256_fmadd_ps(a, b, c) _mm256_add_ps(_mm256_mul_ps(a, b), c)
#define __builtin_fmaf(a, b, c) ((a) * (b) + (c))
#define __builtin_fma(a, b, c) ((a) * (b) + (c))
