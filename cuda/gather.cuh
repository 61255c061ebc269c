// cuda/gather.cuh: KeepRows on a GPU: the keys and values of the rows that stay, in all layers.
//
// Version 1 is plain_gather in kernels.cuh. In version 2, here, a thread reads four rows of its columns before it
// writes the first of them, so that their latencies overlap. That is safe because rows only move left. If nothing
// moves, a block returns at once. It moves 2 L C numbers a row.
#pragma once

#include "kernels.cuh"

namespace nanospec {

constexpr int kGatherThreads = 128;

// Grid: a block for each layer and head. A thread owns columns of keys or values.
// Budget: 64 registers, 0 bytes shared. Loads: 4.
template <class S, int kThreads>
__global__ __launch_bounds__(kThreads) void gather_kernel(KeepRows<S> g) {
  let_next_start();
  wait_for_earlier();
  constexpr int kTogetherRows = 4;
  const int first = g.kept[0], count = g.kept[1], D = g.head_size;
  const int* const rows = g.kept + 2;
  if (count == 0 || rows[count - 1] == count - 1) return;
  const int layer = blockIdx.x / g.n_kv_head, head = blockIdx.x % g.n_kv_head;
  const KeyValues<S> cache = g.cache(layer);
  for (int column = threadIdx.x; column < 2 * D; column += kThreads) {
    const auto at = [=](int row) {
      return column < D ? cache.key(head, first + row, column) : cache.value(head, first + row, column - D);
    };
    for (int i = 0; i < count; i += kTogetherRows) {
      S moved[kTogetherRows] = {};
      UNROLL
      for (int j = 0; j < kTogetherRows; j++)
        if (i + j < count) moved[j] = *at(rows[i + j]);
      UNROLL
      for (int j = 0; j < kTogetherRows; j++)
        if (i + j < count) *at(i + j) = moved[j];
    }
  }
}

}  // namespace nanospec
