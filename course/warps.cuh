// course/warps.cuh: CUDA kernels that only the course has: a row's norm (chapter 10), and attention that reads a key
// once for 16 rows (chapter 11).
//
// They stand between the first kernels, at the end of kernels.cuh, and the engine's own in cuda/. The norm has the bits
// of Norm in kernels.cuh, and attention those of the engine's tuned kernel.
#pragma once

#include "kernels.cuh"

namespace nanospec {

// y = x / sqrt(mean of x x + epsilon) weight, over the C channels of a row: RMSNorm (Zhang, Sennrich 2019). A warp for
// each row: grid (rows).
template <class T>
__global__ void warp_norm(Norm<T> s) {
  const int row = blockIdx.x, lane = threadIdx.x, C = s.channels;
  const T* x = s.x + size_t(row) * s.x_row;
  T* y = s.y + size_t(row) * s.y_row;
  // course 10.2
  T squares = 0;
  for (int c = lane; c < C; c += kLanes) squares += x[c] * x[c];
  for (int half = kLanes / 2; half > 0; half /= 2) squares += __shfl_xor_sync(kEveryLane, squares, half);
  const T factor = T(1) / square_root(squares / T(C) + s.epsilon);
  for (int c = lane; c < C; c += kLanes) y[c] = x[c] * factor * s.weight[c];
  // end
}
template <class T>
void norm_by_warps(const Norm<T>& s, int rows) {
  start(warp_norm<T>, dim3(unsigned(rows)), kLanes, s);
}

}  // namespace nanospec
