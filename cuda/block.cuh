// cuda/block.cuh: a block as a group of threads (machine/numbers.h).
//
// Its sums are those of a warp and of a core, bit for bit: all threads compute some turns of numbers; then the first
// warp's lanes add these in their order, while the others compute more.
#pragma once

#include "cuda/machine.cuh"

namespace nanospec {

template <int kThreads>
struct Block {
  static_assert(kThreads % kLanes == 0, "whole warps");

  template <class F>
  __device__ void each(int n, F f) const {
    for (int i = threadIdx.x; i < n; i += kThreads) f(i);
    __syncthreads();
  }
  template <class Out, class F>
  __device__ void map(Out out, int n, F f) const {
    in_batches<kThreads, 8, true>(n, threadIdx.x, f, [=](int i, auto x) { put(out, i, x); });
    __syncthreads();
  }
  template <class T, class F>
  __device__ T sum(int n, F f) const {
    constexpr int turns = SumBoard<T>::kTurns;
    SumBoard<T>& board = shared<SumBoard<T>>();
    T part = T(0);
    for (int first = 0, turn = 0; first < n; first += turns * kThreads, turn ^= 1) {
      T* const value = board.value[turn];
      const int numbers = smaller(turns * kThreads, n - first);
      in_batches<kThreads, turns>(
          numbers, threadIdx.x, [=](int i) { return f(first + i); }, [=](int i, T x) { value[i] = x; });
      __syncthreads();  // these are overwritten two rounds later, after the first warp has been here again
      if (threadIdx.x < kLanes)
        for (int i = threadIdx.x; i < numbers; i += kLanes) part += value[i];
    }
    if (threadIdx.x < kLanes) {
      for (int half = kLanes / 2; half > 0; half /= 2) part += __shfl_xor_sync(kEveryLane, part, half);
      if (threadIdx.x == 0) board.total = part;
    }
    __syncthreads();
    const T total = board.total;
    __syncthreads();
    return total;
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
  template <class T>
  struct SumBoard {
    static constexpr int kTurns = 16 / sizeof(T);
    T value[2][kTurns * kThreads], total;
  };
  // A thread joins its numbers to `mine`; then the threads' are joined, in no order that could be seen.
  template <class T, class F, class Join>
  __device__ static T joined(int n, T mine, F f, Join join) {
    auto& of_warp = shared<T[kThreads / kLanes]>();
    in_batches<kThreads>(n, threadIdx.x, f, [&](int, T x) { mine = join(mine, x); });
    for (int half = kLanes / 2; half > 0; half /= 2) mine = join(mine, __shfl_xor_sync(kEveryLane, mine, half));
    if (threadIdx.x % kLanes == 0) of_warp[threadIdx.x / kLanes] = mine;
    __syncthreads();
    mine = of_warp[0];
    for (int warp = 1; warp < kThreads / kLanes; warp++) mine = join(mine, of_warp[warp]);
    __syncthreads();
    return mine;
  }
};

}  // namespace nanospec
