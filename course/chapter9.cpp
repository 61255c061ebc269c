// course/chapter9.cpp: the student's best_prefix and never_falling, for the grader and for tables.
#include <cstdio>
#include <functional>
#include <stdexcept>

#include "course/student.h"
#include "growth/cost.h"
#include "kernels.cuh"

using namespace nanospec;

namespace course {

// 'p': of each list of reach: the roots, the seconds of 1, 2, ... rows -> how many nodes. 'f': of each list of numbers:
// their weights -> the numbers that never fall.
Message answer(Message& question) {
  const bool prefix = question.get<char>() == 'p';
  return answer_each(question, [&](Message& answer) {
    if (!prefix) {
      const auto measured = question.list<double>(), weight = question.list<double>();
      answer.put(never_falling(measured, weight));
      return;
    }
    const auto reach = question.list<float>();
    const int roots = question.get<int>();
    const auto seconds = question.list<double>();
    answer.put(best_prefix(reach, roots, [&](int rows) {
      if (rows < roots || rows > roots + int(reach.size()))
        throw std::runtime_error("best_prefix asked for the seconds of " + std::to_string(rows) + " rows, with " +
                                 std::to_string(roots) + " roots and " + std::to_string(reach.size()) + " nodes");
      return seconds[rows - 1];
    }));
  });
}

constexpr int kRows = 32;

// Milliseconds of x W for 1 to 32 rows, W of 32 MB, by the matmul of chapter 1. Of those that are not measured: on a
// straight line between their neighbors.
const std::vector<int> kMeasured = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24, 28, 32};
std::vector<double> times_of_rows() {
  constexpr int K = 2048, N = 4096, row = N + 16;
  Panels<float> panels{nullptr, K, N};
  std::vector<float> memory(panels.size(), 0.5f), x(size_t(kRows) * row, 0.25f), out(size_t(kRows) * row);
  panels.data = memory.data();
  std::vector<double> times;
  for (int rows : kMeasured) {
    const Matmul<float, float> matmul{x.data(), row, panels, out.data(), row};
    const double ms = 1e3 * fastest(2, [&] {
                        for (int n = 0; n < N; n += kLanes) matmul(Solo{}, rows, n, n + kLanes);
                      });
    const double last = times.empty() ? ms : times.back();
    for (int between = rows - int(times.size()), i = 1; i <= between; i++)
      times.push_back(last + (ms - last) * i / between);
  }
  return times;
}

// The reach of all nodes that may be worth a row, of as many texts. After every node the first guess is right with this
// chance, each further one in at most half of the cases that are left.
void list_reach(double first, double reach, int texts, std::vector<float>& all) {
  double left = 1, chance = first;
  for (int rank = 0; rank < 4; rank++) {
    if (reach * chance < 0.005) return;
    all.insert(all.end(), size_t(texts), float(reach * chance));
    list_reach(first, reach * chance, texts, all);
    left -= chance;
    chance = std::min(chance, left / 2);
  }
}

void print_machine(const char* name, const std::vector<double>& ms) {
  printf("\n%s: nodes for each text, and tokens a second, in times plain decoding\n\n", name);
  printf("  texts at once    right: 30 %%         50 %%         70 %%         90 %%\n");
  for (int texts : {1, 8}) {
    printf("%15d", texts);
    for (int percent = 30; percent <= 90; percent += 20) {
      std::vector<float> reach;
      list_reach(percent / 100.0, 1, texts, reach);
      std::sort(reach.begin(), reach.end(), std::greater<float>());
      reach.resize(std::min(reach.size(), ms.size() - size_t(texts)));
      const int nodes = best_prefix(reach, texts, [&](int rows) { return ms[rows - 1]; });
      double tokens = texts;
      for (int i = 0; i < nodes; i++) tokens += double(reach[i]);
      printf("   %4.1f %5.2f", double(nodes) / texts, tokens / ms[texts + nodes - 1] / texts * ms[texts - 1]);
    }
    printf("\n");
  }
}

void measure() {
  std::vector<double> little, much;
  for (int further = 0; further < 256; further++) {
    little.push_back(1 + 0.02 * further);
    much.push_back(1 + 0.33 * further);
  }
  std::vector<double> fitted;
  try {
    const std::vector<double> ms = times_of_rows();
    fitted = never_falling(ms, std::vector<double>(ms.size(), 1));
    printf("x W, W of 32 MB, by your matmul of chapter 1 on one core\n\n");
    printf("   rows   milliseconds      fitted   times one row\n");
    for (int rows : kMeasured)
      printf("%7d %14.2f %11.2f %15.2f\n", rows, ms[rows - 1], fitted[rows - 1], fitted[rows - 1] / fitted[0]);
  } catch (const std::exception& error) {
    if (std::string(error.what()).find("chapter 1") == std::string::npos) throw;
    printf("(your own machine is left out: %s)\n", error.what());
  }
  print_machine("A machine where each further row takes 2 percent of a forward", little);
  if (!fitted.empty()) print_machine("This machine", fitted);
  print_machine("A machine where each further row takes 33 percent of a forward", much);
}

}  // namespace course
