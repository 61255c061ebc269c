// machine/dropout.h: dropout on a CPU, in vectors.
//
// Dropout::factor() draws the bits of one number and looks at them. Here all bits of a run of numbers are drawn first,
// in a loop of arithmetic alone, which compilers make vectors of. They are the same bits.
#pragma once

#include "kernels.cuh"
#include "machine/threads.h"

namespace nanospec {

// Calls f(i, factor(first + i)) for every i < n. The rate is not 0. Bits are drawn by whole vectors: those behind n are
// not used.
template <class F>
void each_factor(const Dropout& dropout, uint64_t first, int n, F f) {
  constexpr int kRun = 64, kVector = 8;
  const uint32_t least = dropout.least();
  const float scale = dropout.scale<float>();
  uint32_t bits[kRun];
  for (int begin = 0; begin < n; begin += kRun) {
    const int run = smaller(kRun, n - begin), whole = (run + kVector - 1) / kVector * kVector;
    for (int i = 0; i < whole; i++) bits[i] = dropout.bits(first + begin + i);
    INDEPENDENT
    for (int i = 0; i < run; i++) f(begin + i, bits[i] < least ? 0.0f : scale);
  }
}

// Drop: this thread's rows.
inline void drop_twin(const Team& team, int rows, const Drop<float>& s) {
  const Range mine = team.share(rows);
  for (int row = mine.begin; row < mine.end; row++) {
    const float* const x = s.x + size_t(row) * s.row_stride;
    float* const y = s.y + size_t(row) * s.row_stride;
    each_factor(s.dropout, s.dropout.first_of(row, s.channels), s.channels,
                [=](int c, float keep) { y[c] = x[c] * keep; });
  }
}

}  // namespace nanospec
