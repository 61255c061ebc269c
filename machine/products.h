// machine/products.h: matrix products on a CPU.
//
// In order: the register tile, of which every product is made; products of any size; the twins of Matmul and Pack
// (kernels.cuh), which have the portable version's bits.
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
constexpr int kIntoL1 = 3, kIntoL2 = 2;                  // as __builtin_prefetch() names them

template <class B>
struct TileArguments {
  int k;
  const float* a;
  ptrdiff_t a_row, a_k;  // a[t][k] = a[t * a_row + k * a_k]
  const B* b;
  ptrdiff_t b_k, b_group;  // b[k][n] = b[k * b_k + (n / 16) * b_group + n % 16]; in bf16 two k lie side by side:
                           // b[k][n] = b[k / 2 * b_k + (n / 16) * b_group + n % 16 * 2 + k % 2]
  float* c = nullptr;
  ptrdiff_t c_row = 0;  // c[t][n] = c[t * c_row + n]
  bool add = false;
  bool far = false;            // b comes from L3 or memory
  const char* next = nullptr;  // prefetched meanwhile, some lines for each step of k; null: product() chooses
  ptrdiff_t next_k = 0;        // bytes from the lines of one step to those of the next; 0: line after line
  // Read after this product: product() brings it into L2 meanwhile, `later_lines` lines for each step of k.
  const char* later = nullptr;
  ptrdiff_t later_k = 0;  // bytes from the lines of one step to those of the next
  int later_lines = 0;
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
    const Vec av = a[t * a_row];
    UNROLL
    for (int r = 0; r < R; r++) acc[t][r] = fused(av, bv[r], acc[t][r]);
  }
}

// S: how many tiles share the prefetching. Each prefetches its part of as many bytes as it reads, into L1; where b is
// far, into L2: L1 could not take as many lines as are on their way.
template <int T, int R, int S, bool far, class B>
inline void tile(const TileArguments<B>& s) {
  constexpr int width = Vec::width, bytes = R * width * int(sizeof(B)) * kTogether<B>;
  constexpr int lines = larger(1, bytes / kLine / S), level = far ? kIntoL2 : kIntoL1;
  Vec acc[T][R];
  UNROLL
  for (int t = 0; t < T; t++) UNROLL
  for (int r = 0; r < R; r++) acc[t][r] = s.add ? load(s.c + t * s.c_row + r * width) : Vec(0.0f);
  const B* b = s.b;
  const float* a = s.a;
  const char* next = s.next;
  const ptrdiff_t next_k = s.next_k ? s.next_k : lines * kLine;
  ROLLED
  for (int k = 0; k < s.k; k += kTogether<B>, b += s.b_k) {
    UNROLL
    for (int line = 0; line < lines; line++) __builtin_prefetch(next + line * kLine, 0, level);
    next += next_k;
    Vec lanes[R];
    UNROLL
    for (int r = 0; r < R; r++)
      lanes[r] = load(b + (r * width / kGroup) * s.b_group + (r * width) % kGroup * kTogether<B>);
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

// Runs a tile of `rows` rows (at most kTileRows) and 1 to kVectors vectors, one of `share` that share the prefetching.
template <class B>
inline void run_tile(int rows, int vectors, int share, const TileArguments<B>& s) {
  if (share == 1 && s.far) tile_of_vectors<1, true, kVectors>(rows, vectors, s);
  else if (share == 1) tile_of_vectors<1, false, kVectors>(rows, vectors, s);
  else if (share == 2 && s.far) tile_of_vectors<2, true, kVectors>(rows, vectors, s);
  else if (share == 2) tile_of_vectors<2, false, kVectors>(rows, vectors, s);
  else tile_of_vectors<4, true, kVectors>(rows, vectors, s);
}

constexpr int kRoundRows = 4 * kTileRows;  // of a round: at most four tiles, which use one block of b in turn
constexpr int kBlockLines = 64;            // lines of kPanel lanes in a block of b: 16 KB with AVX-512, 8 KB with AVX2
constexpr int kAhead = 48, kFarAhead = 128;  // how many such lines ahead a single tile prefetches

inline int tiles_of(int rows) { return (rows + kTileRows - 1) / kTileRows; }

// c (rows, columns) = or += a times b, for any number of rows and a multiple of 16 columns. Up to kTileRows rows are
// one tile, which runs over all k. More rows are several tiles of nearly equal height. They use each block of b in
// turn, while it is in L1, and share prefetching the next one. So b is read from memory once, during the computation.
// Meanwhile the third and the fourth tile of a block, which need not ask for b, bring what is read later from L3 or
// memory into L2, in the first two rounds of tiles: that takes no time, and spares its first readers a wait.
template <class B>
void product(int rows, int columns, const TileArguments<B>& s) {
  constexpr int together = kTogether<B>;
  const ptrdiff_t step = ptrdiff_t(sizeof(B)) * s.b_k;   // bytes
  const bool separate = s.b_group != kGroup * together;  // the groups of columns do not lie side by side
  for (int row = 0, chunk; row < rows; row += chunk) {
    chunk = smaller(rows - row, kRoundRows);
    const int tiles = tiles_of(chunk);
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
        const ptrdiff_t bytes = separate ? ptrdiff_t(sizeof(B)) * kPanel / kGroup * s.b_group : ahead * step;
        for (int i = 0; i < tiles; i++) {
          const int first = row + chunk * i / tiles, last = row + chunk * (i + 1) / tiles;
          part.a = s.a + first * s.a_row + k * s.a_k;
          part.c = s.c + first * s.c_row + column;
          part.next = s.next ? s.next : reinterpret_cast<const char*>(part.b) + bytes;
          // Where columns lie side by side, tiles in turn ask for the halves of each line of k; a single one for all.
          if (separate) part.next += bytes * i / tiles;
          else if (tiles > 1) part.next += i % 2 * vectors * Vec::width * ptrdiff_t(sizeof(B)) * together / 2;
          part.next_k = s.next ? s.next_k : separate ? 0 : step;
          // The first two have asked for both halves. The others are free: each asks for a line of what is read later.
          const int line = row / kRoundRows * 2 + i - 2;
          const bool free = i >= 2 && line < s.later_lines;
          if (free) {
            part.next = s.later + k / together * s.later_k + line * kLine;
            part.next_k = s.later_k;
          }
          run_tile(last - first, vectors, free ? 4 : smaller(tiles, 2), part);
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

// Prefetches `numbers` of each of some rows, to read or to write them, into L1 or L2. Part of a row lies far from that
// of the next: no prefetcher of the processor finds it. g++ leaves out the call of a function that does no more than
// this.
template <bool write = false, int level = kIntoL1>
[[gnu::always_inline]] inline void prefetch_rows(const float* from, ptrdiff_t stride, int rows, int numbers) {
  for (int row = 0; row < rows; row++)
    for (int i = 0; i < numbers; i += kLine / int(sizeof(float)))
      __builtin_prefetch(from + row * stride + i, write, level);
}

// Prefetches what a column operation reads of a row, where no product has just written it.
template <class Op>
void prefetch_for(const Op&, int, int, int) {}

// Columns begin .. end - 1 of one panel as floats, (K, end - begin).
template <class W>
void widen(const Panels<W>& w, int begin, int end, float* to) {
  constexpr int together = kTogether<W>;
  const int columns = end - begin;
  const W* line = w.at(0, begin);
  for (int k = 0; k < w.k; k += together, line += w.width(begin) * together, to += columns * together)
    for (int n = 0; n < columns; n += Vec::width) {
      const Vec lanes = load(line + n * together);
      store(to + n, numbers_of<W, 0>(lanes));
      if (together == 2 && k + 1 < w.k) store(to + columns + n, numbers_of<W, 1>(lanes));
    }
}

// Matmul: the columns `mine` (cut at multiples of kGroup) of all rows. `after`, a column operation, follows on some
// rows' finished columns while they are in cache. With few registers, many rows share each panel of a narrow type
// widened: the tiles have none to spare for it.
template <class W, class After>
void matmul_twin(const Range& mine, int rows, const Matmul<float, W>& m, const After& after) {
  const Panels<W>& w = m.w;
  const bool far = w.far && rows <= kRoundRows;  // with more rows it is in L2 for the second tiles
  const bool many = rows >= 2 * kRoundRows, widened = many && sizeof(W) < sizeof(float) && Vec::registers < 32;
  const bool two_fit = size_t(w.k) * kPanel * sizeof(W) <= l2_bytes() / 4;  // panels, in half of L2
  float* const wide = scratch(widened ? size_t(w.k) * kPanel : 0);
  for (int begin = mine.begin, end; begin < mine.end; begin = end) {
    end = smaller(mine.end, begin / kPanel * kPanel + kPanel);
    const int step = w.width(begin) * kTogether<W>;
    const W* const b = w.at(0, begin);
    const auto multiply = [&](auto s, int later_k) {  // later_k: bytes of this panel's next one for a step of k
      s.c = m.out + begin;
      s.c_row = m.out_row;
      s.far = far;
      if (many && two_fit && (end < mine.end || end >= w.n)) {
        s.later = reinterpret_cast<const char*>(b + size_t(w.lines()) * step);  // the next panel, or the next weight
        s.later_k = later_k;
        s.later_lines = later_k / kLine;
      }
      product(rows, end - begin, s);
    };
    const int bytes = step * int(sizeof(W));
    if (widened) {
      widen(w, begin, end, wide);
      multiply(TileArguments<float>{w.k, m.x, m.x_row, 1, wide, end - begin, kGroup}, bytes / kTogether<W>);
    } else {
      multiply(TileArguments<W>{w.k, m.x, m.x_row, 1, b, step, kGroup * kTogether<W>}, bytes);
    }
  }
  if (idle(after) || mine.begin == mine.end) return;
  tell(after);
  constexpr int ahead = 6;  // rows: a miss takes as long as some of them
  const int end = smaller(mine.end, w.n);
  for (int row = 0; row < rows; row++) {
    if (row + ahead < rows) prefetch_for(after, row + ahead, mine.begin, end);
    after(Solo{}, row, mine.begin, end);
  }
}

// Pack: this thread's k, where they and the columns come by 16. The stored rows are those of the panels, or their
// columns. Panels that caches cannot hold are written past them.
inline void pack_twin(const Team& team, const Pack<float, float>& s) {
  constexpr int block = Pack<float, float>::block;
  const Range mine = team.share(s.to.k, block);
  const auto put = [&](float* to, Vec x) { s.to.far ? store_past(to, x) : store(to, x); };
  if (s.n_stride == 1) {
    for (int column = 0; column < s.to.n; column += kPanel) {
      const int width = s.to.width(column);
      const float* from = s.from + mine.begin * s.k_stride + column;
      float* to = s.to.at(mine.begin, column);
      constexpr int ahead = 8;
      for (int k = mine.begin; k < mine.end; k++, from += s.k_stride, to += width) {
        prefetch_rows(from + ahead * s.k_stride, 0, k + ahead < mine.end, width);
        for (int n = 0; n < width; n += Vec::width) put(to + n, load(from + n));
      }
    }
  } else {
    alignas(kLine) float rows[4 * kGroup];  // (4, kGroup) of a panel
    for (int k = mine.begin; k < mine.end; k += block)
      for (int column = 0; column < s.to.n; column += kGroup) {
        const float* const from = s.from + k + column * s.n_stride;
        prefetch_rows(from + kGroup * s.n_stride, s.n_stride, column + kGroup < s.to.n ? kGroup : 0, block);
        for (int i = 0; i < block; i += 4) {
          transpose_four(from + i, s.n_stride, rows);
          for (int n = 0; n < 4 * kGroup; n += Vec::width)
            put(s.to.at(k + i + n / kGroup, column) + n % kGroup, load(rows + n));
        }
      }
  }
  stored_past();
}

}  // namespace nanospec
