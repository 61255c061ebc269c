// machine/matmul_gradient.h: what products of a backward need on a CPU: the twin of MatmulGradient (gradients.cuh), and
// what GELU's gradient reads.
#pragma once

#include "gradients.cuh"
#include "machine/products.h"

namespace nanospec {

[[gnu::always_inline]] inline void prefetch_for(const GeluBackward<float>& s, int row, int begin, int end) {
  prefetch_rows<true>(s.pre + size_t(row) * s.row_stride + begin, 0, 1, end - begin);
}

// How a weight's gradient is computed: a block of dw (inputs, columns) stays in L2, while x and dy pass by, kBlockLines
// rows at a time. So dw comes once from beyond L2, x once for each group of columns, and dy once for each group of
// inputs.
// Returns how many inputs and columns a block has.
inline std::pair<int, int> gradient_block(int inputs, int columns) {
  constexpr int rows = kBlockLines;
  const int room = int(l2_bytes() / sizeof(float)) / 2;
  const auto part = [](int n, int most, int unit) {  // of n, cut into parts of nearly one size
    const int parts = larger(1, (n + most - 1) / most), each = (n + parts - 1) / parts;
    return larger(1, (each + unit - 1) / unit) * unit;
  };
  // With the rows of x and dy, a block of h inputs and w columns takes w h + rows (w + h) numbers.
  const auto fits = [=](int w) { return larger(1, (room - rows * w) / (w + rows)); };
  const int side = int(std::sqrt(double(rows) * rows + room)) - rows;
  const int width = part(columns, fits(smaller(inputs, side)), kPanel);
  return {part(inputs, fits(width), kRoundRows), width};
}

// MatmulGradient: this thread's inputs, whose part of dw is contiguous: of a row that two threads share, the prefetcher
// would bring into one's cache what the other writes. x is read where it lies; columns of dy are copied first, for each
// of its rows may be a page of its own.
inline void matmul_gradient_twin(const Team& team, const MatmulGradient<float>& m) {
  const int rows = m.rows, outputs = m.outputs, whole = outputs / kGroup * kGroup, left = outputs - whole;
  const Range mine = team.share(m.inputs, 8);
  const auto [block_inputs, block_columns] = gradient_block(larger(1, mine.end - mine.begin), pad16(outputs));
  // Sums of the last group of columns, where it is wider than what is left of N: (K, kGroup).
  float* const edge = scratch(left > 0 ? size_t(m.inputs) * kGroup : 0);
  for (int k = mine.begin; k < mine.end && left > 0; k++)
    for (int n = 0; n < kGroup; n++) edge[k * kGroup + n] = n < left ? m.dw[size_t(k) * outputs + whole + n] : 0.0f;
  alignas(kLine) float panel[kBlockLines * kPanel];  // some columns of `count` rows of dy
  // Adds them to dbias: a product with a row of ones.
  const auto add_bias = [&](int count, int begin, int end) {
    const float one = 1;
    const int n = smaller(end, whole) - begin;
    if (n > 0) product(1, n, TileArguments<float>{count, &one, 0, 0, panel, kPanel, kGroup, m.dbias + begin, 0, true});
    for (int column = larger(begin, whole); column < smaller(end, outputs); column++)
      for (int row = 0; row < count; row++) m.dbias[column] += panel[row * kPanel + column - begin];
  };
  // Adds `count` rows' part of a block of dw. Columns of dy stay in L1 while the inputs pass by.
  const auto add = [&](int row, int count, const Range& inputs, const Range& columns) {
    const float *x = m.x + size_t(row) * m.x_row, *dy = m.dy + size_t(row) * m.dy_row;
    for (int column = columns.begin; column < columns.end; column += kPanel) {
      const int end = smaller(columns.end, column + kPanel);
      for (int r = 0; r < count; r++)
        memcpy(panel + r * kPanel, dy + size_t(r) * m.dy_row + column, sizeof(float) * (end - column));
      // The biases of these columns belong to the thread of one of the inputs.
      const int input = int(int64_t(column) * m.inputs / pad16(outputs));
      if (m.dbias && input >= inputs.begin && input < inputs.end) add_bias(count, column, end);
      const float* const next_dy = end < columns.end ? dy + end : dy + size_t(count) * m.dy_row + columns.begin;
      for (int k = inputs.begin; k < inputs.end; k += kRoundRows) {
        // Meanwhile the next inputs come into L1; after the last the next columns, or the next rows' first, of which
        // the first two products have brought a half each into L2.
        const bool last = k + kRoundRows >= inputs.end;
        const float* const next = last ? next_dy : x + k + kRoundRows;
        const auto sum = [&](int begin, int end, float* sums, int sums_row) {
          TileArguments<float> s{
              count,    x + k, 1, m.x_row, panel + begin - column, kPanel, kGroup, sums + size_t(k) * sums_row,
              sums_row, true};
          s.next = reinterpret_cast<const char*>(next);
          s.next_k = ptrdiff_t(sizeof(float)) * (last ? m.dy_row : m.x_row);
          if (const int half = (k - inputs.begin) / kRoundRows; half < 2) {
            s.later = reinterpret_cast<const char*>(next_dy + half * kPanel / 2);
            s.later_k = ptrdiff_t(sizeof(float)) * m.dy_row;
            s.later_lines = kPanel / 2 * int(sizeof(float)) / kLine;
          }
          product(smaller(kRoundRows, inputs.end - k), end - begin, s);
        };
        if (column < whole) sum(column, smaller(end, whole), m.dw + column, outputs);
        if (end > whole) sum(whole, end, edge, kGroup);
      }
    }
  };
  for (int column = 0; column < pad16(outputs); column += block_columns)
    for (int k = mine.begin; k < mine.end; k += block_inputs)
      for (int row = 0; row < rows; row += kBlockLines)
        add(row, smaller(kBlockLines, rows - row), {k, smaller(mine.end, k + block_inputs)},
            {column, smaller(pad16(outputs), column + block_columns)});
  for (int k = mine.begin; k < mine.end && left > 0; k++)
    memcpy(m.dw + size_t(k) * outputs + whole, edge + k * kGroup, sizeof(float) * left);
}

}  // namespace nanospec
