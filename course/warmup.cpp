// course/warmup.cpp: the program of the warm-up (warmup.md): lambdas, templates, groups of lanes.
#include <cstdio>
#include <vector>

#include "course/lanes.h"

using nanospec::Solo;

// A function for any group.
template <class G>
float total(const G& g, const std::vector<float>& x) {
  return g.template sum<float>(int(x.size()), [&](int i) { return x[size_t(i)]; });
}

// The numbers doubled, by any group.
template <class G>
std::vector<float> doubled(const G& g, const std::vector<float>& x) {
  std::vector<float> out(x.size());
  g.each(int(x.size()), [&](int i) { out[size_t(i)] = 2 * x[size_t(i)]; });
  return out;
}

// The sums of the first 1, 2, 3, ... numbers, by any group?
template <class G>
std::vector<float> sums_so_far(const G& g, const std::vector<float>& x) {
  std::vector<float> out(x.size());
  g.each(int(x.size()), [&](int i) { out[size_t(i)] = x[size_t(i)] + (i > 0 ? out[size_t(i) - 1] : 0); });
  return out;
}

void print(const char* name, const std::vector<float>& x) {
  printf("%-24s", name);
  for (float number : x) printf(" %g", double(number));
  printf("\n");
}

int main() {
  const auto square = [](int i) { return i * i; };
  const std::vector<float> x = {1, 2, 3, 4};
  printf("%-24s %d\n", "square of 7", square(7));
  printf("%-24s %g\n", "total", double(total(Solo{}, x)));
  print("doubled, first first", doubled(Solo{}, x));
  print("doubled, last first", doubled(course::LastFirst{}, x));
  print("sums, first first", sums_so_far(Solo{}, x));
  print("sums, last first", sums_so_far(course::LastFirst{}, x));
}
