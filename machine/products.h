// machine/products.h: matrix products on a CPU.
//
// In order: the register tile, of which every product is made; products of any size; the twins of Matmul and
// MatmulGradient (kernels.cuh), which have the portable version's bits.
#pragma once

#include "kernels.cuh"
#include "machine/simd.h"
#include "machine/threads.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The register tile: c (T, R vectors) = or += a (T, K) times b (K, R vectors), one serial sum over k for each output.
// T and R say how many outputs are computed at once. The order of a sum is always the same: an output has the same bits
// in any tile, whether its sum is one piece or goes on (`add`) over blocks of k.

constexpr int kGroup = 16;  // columns of b that lie side by side; the groups of columns may lie far from each other
constexpr int kTileRows = Vec::registers == 32 ? 6 : 3;  // kTileRows * kVectors sums stay in registers
constexpr int kLine = 64;                                // bytes of a cache line

template <class B>
struct TileArguments {
  int k;
  const float* a;
  ptrdiff_t a_row, a_k;  // a[t][k] = a[t * a_row + k * a_k]
  const B* b;
  ptrdiff_t b_k, b_group;  // b[k][n] = b[k * b_k + (n / 16) * b_group + n % 16]; in bf16 two k lie side by side:
                           // b[k][n] = b[k / 2 * b_k + (n / 16) * b_group + n % 16 * 2 + k % 2]
  float* c;
  ptrdiff_t c_row;  // c[t][n] = c[t * c_row + n]
  bool add;
  bool far = false;            // b comes from L3 or memory
  const char* next = nullptr;  // prefetched meanwhile, some lines for each step of k
  ptrdiff_t next_k = 0;        // bytes from the lines of one step to those of the next; 0: line after line
};

// acc (T, R vectors) += a[.][k] times the numbers in `lanes` that belong to this step of k.
template <class B, int step, int T, int R>
[[gnu::always_inline]] inline void multiply_add(Vec (&acc)[T][R], const Vec (&lanes)[R], const float* a,
                                                ptrdiff_t a_row) {
  Vec bv[R];
  UNROLL
  for (int r = 0; r < R; r++) bv[r] = numbers_of<B, step>(lanes[r]);
  UNROLL
  for (int t = 0; t < T; t++) {
    const Vec av = broadcast(a[t * a_row]);
    UNROLL
    for (int r = 0; r < R; r++) acc[t][r] = fused(av, bv[r], acc[t][r]);
  }
}

// S: how many tiles share the prefetching. Each prefetches its part of as many bytes as it reads, into L1; where b is
// far, into L2: L1 could not take as many lines as are on their way.
template <int T, int R, int S, bool far, class B>
inline void tile(const TileArguments<B>& s) {
  constexpr int width = Vec::width, bytes = R * width * int(sizeof(B)) * kTogether<B>;
  constexpr int lines = larger(1, bytes / kLine / S), level = far ? 2 : 3;  // 3: L1, 2: L2
  Vec acc[T][R];
  UNROLL
  for (int t = 0; t < T; t++) UNROLL
  for (int r = 0; r < R; r++) acc[t][r] = s.add ? load(s.c + t * s.c_row + r * width) : broadcast(0.0f);
  const B* b = s.b;
  const float* a = s.a;
  const char* next = s.next;
  const ptrdiff_t next_k = s.next_k ? s.next_k : lines * kLine;
  for (int k = 0; k < s.k; k += kTogether<B>, b += s.b_k) {
    UNROLL
    for (int line = 0; line < lines; line++) __builtin_prefetch(next + line * kLine, 0, level);
    next += next_k;
    Vec lanes[R];
    UNROLL
    for (int r = 0; r < R; r++)
      lanes[r] = load_lanes(b + (r * width / kGroup) * s.b_group + (r * width) % kGroup * kTogether<B>);
    multiply_add<B, 0>(acc, lanes, a, s.a_row);
    a += s.a_k;
    if constexpr (kTogether<B> == 2) {
      if (k + 1 == s.k) break;
      multiply_add<B, 1>(acc, lanes, a, s.a_row);
      a += s.a_k;
    }
  }
  UNROLL
  for (int t = 0; t < T; t++) UNROLL
  for (int r = 0; r < R; r++) store(s.c + t * s.c_row + r * width, acc[t][r]);
}

template <int R, int S, bool far, int T, class B>
inline void tile_of_rows(int rows, const TileArguments<B>& s) {
  if constexpr (T > 0) {
    if (rows == T) tile<T, R, S, far>(s);
    else tile_of_rows<R, S, far, T - 1>(rows, s);
  }
}
template <int S, bool far, int R, class B>
inline void tile_of_vectors(int rows, int vectors, const TileArguments<B>& s) {
  if constexpr (R > 0) {
    if (vectors == R) tile_of_rows<R, S, far, kTileRows>(rows, s);
    else tile_of_vectors<S, far, R - 1>(rows, vectors, s);
  }
}

// Runs a tile of `rows` rows (at most kTileRows) and 1 to kVectors vectors, one of `tiles` that share the prefetching:
// by halves, for three or four of them too, which then ask for some lines twice.
template <class B>
inline void run_tile(int rows, int vectors, int tiles, const TileArguments<B>& s) {
  if (tiles == 1 && s.far) tile_of_vectors<1, true, kVectors>(rows, vectors, s);
  else if (tiles == 1) tile_of_vectors<1, false, kVectors>(rows, vectors, s);
  else if (s.far) tile_of_vectors<2, true, kVectors>(rows, vectors, s);
  else tile_of_vectors<2, false, kVectors>(rows, vectors, s);
}

constexpr int kMostTiles = 4;    // tiles that use one block of b in turn
constexpr int kBlockLines = 64;  // lines of kPanel lanes in a block of b: 16 KB with AVX-512, 8 KB with AVX2
constexpr int kAhead = 48, kFarAhead = 128;  // how many such lines ahead a single tile prefetches

// c (rows, columns) = or += a times b, for any number of rows and a multiple of 16 columns. Up to kTileRows rows are
// one tile, which runs over all k. More rows are several tiles of nearly equal height. They use each block of b in
// turn, while it is in L1, and share prefetching the next one. So b is read from memory once, during the computation.
template <class B>
void product(int rows, int columns, const TileArguments<B>& s) {
  constexpr int together = kTogether<B>;
  const bool separate = s.b_group != kGroup * together;  // the groups of columns do not lie side by side
  for (int row = 0, chunk; row < rows; row += chunk) {
    chunk = smaller(rows - row, kMostTiles * kTileRows);
    const int tiles = (chunk + kTileRows - 1) / kTileRows;
    const int block = tiles == 1 || s.k <= 2 * kBlockLines * together ? s.k : kBlockLines * together;
    for (int column = 0; column < columns; column += kPanel) {
      const int vectors = smaller(kPanel, columns - column) / Vec::width;
      int k = 0;
      do {  // a sum of nothing is written too
        TileArguments<B> part = s;
        part.k = smaller(block, s.k - k);
        part.b = s.b + (column / kGroup) * s.b_group + k / together * s.b_k;
        part.add = s.add || k > 0;
        // Behind this block lie more k or, where groups lie separately, the next columns.
        const int ahead = tiles > 1 ? part.k / together : s.far ? kFarAhead : kAhead;
        const ptrdiff_t bytes = ptrdiff_t(sizeof(B)) * (separate ? kPanel / kGroup * s.b_group : ahead * s.b_k);
        for (int i = 0; i < tiles; i++) {
          const int first = row + chunk * i / tiles, last = row + chunk * (i + 1) / tiles;
          part.a = s.a + first * s.a_row + k * s.a_k;
          part.c = s.c + first * s.c_row + column;
          part.next = reinterpret_cast<const char*>(part.b) + bytes + bytes * i / tiles;
          // A single tile may want some of the columns that lie side by side, such as half of a head's channels.
          part.next_k = tiles == 1 && !separate ? ptrdiff_t(sizeof(B)) * s.b_k : 0;
          run_tile(last - first, vectors, tiles, part);
        }
        k += block;
      } while (k < s.k);
    }
  }
}

#ifdef INSTANTIATE  // machine/library.cpp
INSTANTIATE void product(int, int, const TileArguments<float>&);
INSTANTIATE void product(int, int, const TileArguments<bf16>&);
INSTANTIATE void product(int, int, const TileArguments<f16>&);
#endif

// ---------------------------------------------------------------------------------------------------------------
// The twins

constexpr int kBlockK = 512;  // with many rows: a block of k whose panel and rows stay in L2

// Matmul: the columns `mine` (cut at multiples of kGroup) of all rows. `after`, a column operation, follows on each
// row's finished columns while they are in cache.
template <class W, class After>
void matmul_twin(const Range& mine, int rows, const Matmul<float, W>& m, const After& after) {
  const Panels<W>& w = m.w;
  const int block = rows > kMostTiles * kTileRows ? kBlockK : w.k;
  for (int begin = mine.begin; begin < mine.end;) {
    const int end = smaller(mine.end, begin / kPanel * kPanel + kPanel);
    for (int k = 0; k < w.k; k += block) {
      const int its_k = smaller(block, w.k - k), step = w.width(begin) * kTogether<W>;
      product(rows, end - begin,
              TileArguments<W>{its_k, m.x + k, m.x_row, 1, w.at(k, begin), step, kGroup * kTogether<W>, m.out + begin,
                               m.out_row, k > 0, w.far});
    }
    if (!idle(after)) {
      tell(after);
      for (int row = 0; row < rows; row++) after(Solo{}, row, begin, smaller(end, w.n));
      tell(m);
    }
    begin = end;
  }
}

// MatmulGradient: this thread's columns of dw. For each block of rows a panel of dy is copied into one piece of memory,
// which serves all K outputs. x is read down its columns where it lies.
inline void matmul_gradient_twin(const Team& team, const MatmulGradient<float>& m) {
  const int rows = m.rows, inputs = m.inputs, outputs = m.outputs;
  const Range mine = team.share(pad16(outputs), kGroup);
  constexpr int block = 256;
  float* panel = scratch(size_t(block + inputs) * kPanel);
  float* edge = panel + block * kPanel;  // (K, kPanel): the last panel's sums, where it is wider than what is left of N
  for (int begin = mine.begin; begin < mine.end;) {
    const int end = smaller(mine.end, begin / kPanel * kPanel + kPanel), width = end - begin;
    const int whole = smaller(end, outputs) - begin;  // columns that exist
    float* sums = m.dw + begin;
    int sums_row = outputs;
    if (whole < width) {
      sums = edge;
      sums_row = width;
      for (int k = 0; k < inputs; k++)
        for (int n = 0; n < width; n++) edge[k * width + n] = n < whole ? m.dw[size_t(k) * outputs + begin + n] : 0.0f;
    }
    for (int row = 0; row < rows; row += block) {
      const int count = smaller(block, rows - row);
      for (int i = 0; i < count; i++)
        memcpy(panel + i * width, m.dy + size_t(row + i) * m.dy_row + begin, sizeof(float) * width);
      const float* x = m.x + size_t(row) * m.x_row;
      product(inputs, width, TileArguments<float>{count, x, 1, m.x_row, panel, width, kGroup, sums, sums_row, true});
    }
    if (whole < width)
      for (int k = 0; k < inputs; k++)
        memcpy(m.dw + size_t(k) * outputs + begin, edge + k * width, sizeof(float) * whole);
    begin = end;
  }
}

}  // namespace nanospec
