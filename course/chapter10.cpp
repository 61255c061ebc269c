// course/chapter10.cpp: the student's CUDA kernels on the emulated GPU, for the grader and for a table.
//
// The Makefile puts tests/cuda/emulator.h in front, and has the compiler report each access (course/accesses.h).
#include <cstdio>

#include "course/launch.h"

using namespace nanospec;

namespace course {
namespace {

// The gather: order, layers, heads, D, slots, what is kept, all numbers slot after slot -> these behind it, and counts.
Message gathered(Message& question) {
  const auto [order, layers, heads, D, slots] = question.get<std::array<int, 5>>();
  const auto kept = question.list<int>();
  LayersCache<float> cache{layers, heads, slots, D};
  Counted counted;
  const auto gather = [&, by = order] {
    counted = watched(by, {whole(kept), whole(cache.k), whole(cache.v)},
                      [&] { gather_plain(cache.gather(kept), cache.layers); });
  };
  const auto numbers = cache.changed(slots, question.list<float>(), gather);
  return Message().put(numbers).put(counted);
}

// The norm: order, rows, C, epsilon, x (rows, C), weight -> y (rows, C), counts. Behind each row stand some NaNs.
Message normed(Message& question) {
  const auto [order, rows, C] = question.get<std::array<int, 3>>();
  const float epsilon = question.get<float>();
  const auto given = question.list<float>(), weight = question.list<float>();
  const int x_row = C + 5, y_row = C + 3;
  std::vector<float> x(size_t(rows) * x_row, NAN), y(size_t(rows) * y_row, NAN), out;
  for (int row = 0; row < rows; row++) std::copy_n(&given[size_t(row) * C], C, &x[size_t(row) * x_row]);
  const Norm<float> s{x.data(), x_row, C, weight.data(), nullptr, y.data(), y_row, nullptr, nullptr, false, epsilon};
  const Counted counted =
      watched(order, {whole(x), whole(y), whole(weight)}, [&, all = rows] { norm_by_warps(s, all); });
  for (int row = 0; row < rows; row++) out.insert(out.end(), &y[size_t(row) * y_row], &y[size_t(row) * y_row] + C);
  return Message().put(out).put(counted);
}

}  // namespace

// The kernel's region (1 gather, 2 norm, 3 attention), then what it works on; of attention: order, the launch -> out,
// counts.
Message answer(Message& question) {
  const int region = question.get<int>();
  if (region == 1) return gathered(question);
  if (region == 2) return normed(question);
  const int order = question.get<int>();
  Launch launch(question);
  const Counted counted = launch.run(order, attention_plain<float>);
  return Message().put(launch.result()).put(counted);
}

// A tree of a root and two chains of 6, behind a past.
void measure() {
  printf("One query head of 64, a root and two chains of 6 behind it; for each row\n\n");
  printf("   past    shuffles, votes,    sectors    sectors      turns for     sectors if each number\n");
  printf("           __syncwarp             read    written    the banks       were read once\n");
  for (int past : {0, 16, 64, 256}) {
    constexpr int n = 13, D = 64;
    Launch launch = two_chains(n, D, past);
    const Counted c = launch.run(0, attention_plain<float>);
    printf("%7d %18.1f %11.1f %10.1f %14.1f %25.1f\n", past, double(c.meetings + c.barriers) / n, double(c.reads) / n,
           double(c.writes) / n, double(c.conflicts) / n, (2.0 * (past + n / 2.0) * D + D) * 4 / 32);
  }
}

}  // namespace course
