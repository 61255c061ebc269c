// course/chapter1.cpp: the student's matmul, norm and rotary positions, for the grader and for a table.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "course/lanes.h"
#include "course/student.h"
#include "kernels.cuh"

using namespace nanospec;

namespace course {
namespace {

// Puts a row's numbers so far apart that the next row begins `row` further; what lies in between is NaN.
std::vector<float> spread(const std::vector<float>& x, int rows, int columns, int row) {
  std::vector<float> padded(size_t(rows) * row, NAN);
  for (int r = 0; r < rows; r++) std::copy_n(&x[size_t(r) * columns], columns, &padded[size_t(r) * row]);
  return padded;
}

// x (rows, K) times w (K, N), columns begin .. end - 1, of weights of type W. Returns all of out (rows, pad16(N) + 16),
// which is full of `unwritten` before. Behind each row of x stand some numbers that are NaN. Behind out is room for a
// mistaken length of its rows, so that a check can say what was written.
template <class W>
std::vector<float> product(const std::vector<float>& x, const std::vector<float>& w, int rows, int K, int N, int begin,
                           int end, int lanes, float unwritten) {
  Panels<W> panels{nullptr, K, N};
  std::vector<W> memory(panels.size(), rounded<W>(0));
  panels.data = memory.data();
  const Pack<float, W> pack{w.data(), size_t(N), 1, panels};
  for (int row = 0; row < pack.rows(); row++) pack(Solo{}, row);
  const int x_row = K + 3, out_row = pad16(N) + 16;
  std::vector<float> out(size_t(rows) * (x_row + out_row), unwritten);
  const std::vector<float> padded = spread(x, rows, K, x_row);
  const Matmul<float, W> matmul{padded.data(), x_row, panels, out.data(), out_row};
  with_lanes(lanes, [&](const auto& group) { matmul(group, rows, begin, end); });
  out.resize(size_t(rows) * out_row);
  return out;
}

// rows, K, N, begin, end, lanes, whether the weights are bf16, the number in unwritten places, x, w -> out
Message multiplied(Message& question) {
  const auto [rows, K, N, begin, end, lanes, small] = question.get<std::array<int, 7>>();
  const float unwritten = question.get<float>();
  const auto x = question.list<float>(), w = question.list<float>();
  return Message().put(small ? product<bf16>(x, w, rows, K, N, begin, end, lanes, unwritten)
                             : product<float>(x, w, rows, K, N, begin, end, lanes, unwritten));
}

// rows, C, whether to center, lanes, epsilon, the number in unwritten places, x, weight, bias (each may be empty)
// -> y (rows, C + 3), mean and rstd (2, rows)
Message normed(Message& question) {
  const auto [rows, C, center, lanes] = question.get<std::array<int, 4>>();
  const float epsilon = question.get<float>(), unwritten = question.get<float>();
  const std::vector<float> x = spread(question.list<float>(), rows, C, C + 2);
  const auto weight = question.list<float>(), bias = question.list<float>();
  std::vector<float> y(size_t(rows) * (C + 3), unwritten), kept(size_t(2 * rows), unwritten);
  const float* const w = weight.empty() ? nullptr : weight.data();
  const float* const b = bias.empty() ? nullptr : bias.data();
  const Norm<float> norm{x.data(), C + 2, C, w, b, y.data(), C + 3, &kept[0], &kept[rows], center != 0, epsilon};
  Norm<float> without = norm;  // mean and rstd may be null
  without.mean = without.rstd = nullptr;
  with_lanes(lanes, [&, n = rows](const auto& group) {
    for (int row = 0; row < n; row++) row + 1 == n&& n > 1 ? without(group, row) : norm(group, row);
  });
  return Message().put(y).put(kept);
}

// rows, heads, D, back, lanes, past, x (rows, heads D + 8), angles (past + rows, D / 2, 2) -> x, rotated
Message rotated(Message& question) {
  const auto [rows, heads, D, back, lanes, past] = question.get<std::array<int, 6>>();
  auto x = question.list<float>();
  const auto angles = question.list<float>();
  std::vector<int> depth, root(size_t(rows), 0);
  for (int row = 0; row < rows; row++) depth.push_back((row + 1) / 2);  // two chains
  const Forest forest{rows, 1, nullptr, depth.data(), root.data(), nullptr, nullptr, &past};
  const Rope<float> rope{forest, 0, x.data(), heads * D + 8, heads, D, angles.data(), back != 0};
  run_items(lanes, rows * heads, rope);
  return Message().put(x);
}

}  // namespace

// The region's number (1, 2, 3), then what it works on.
Message answer(Message& question) {
  const int region = question.get<int>();
  return region == 1 ? multiplied(question) : region == 2 ? normed(question) : rotated(question);
}

// A weight of 64 MB: more than most caches hold.
void measure() {
  constexpr int K = 4096, N = 4096, most = 64, row = N + 16;  // rows 16 KB apart would share one place in a cache
  Panels<float> panels{nullptr, K, N};
  std::vector<float> memory(panels.size()), x(size_t(most) * row), out(size_t(most) * row);
  for (size_t i = 0; i < memory.size(); i++) memory[i] = float(i % 7) - 3;
  for (size_t i = 0; i < x.size(); i++) x[i] = float(i % 5) - 2;
  panels.data = memory.data();
  printf("out (R, 4096) = x (R, 4096) W, W of 64 MB, by one core\n\n");
  printf("    R     milliseconds     ms for each row     W is read at\n");
  double one = 0;
  for (int rows = 1; rows <= most; rows *= 2) {
    const Matmul<float, float> matmul{x.data(), row, panels, out.data(), row};
    const double best = fastest(3, [&] {
      for (int n = 0; n < N; n += kLanes) matmul(Solo{}, rows, n, n + kLanes);
    });
    if (rows == 1) one = best;
    printf("%5d %16.1f %19.2f %14.1f GB/s    %4.1f times one row\n", rows, best * 1e3, best * 1e3 / rows,
           4.0 * K * N / best / 1e9, best / one);
  }
}

}  // namespace course
