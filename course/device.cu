// course/device.cu: the attention of chapters 10 and 11 on a real GPU, in microseconds. `make measure CHAPTER=11`
// compiles and runs it where nvcc and a GPU are. Both kernels must be written: nvcc compiles no `throw` for a device.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "course/warps.cuh"

namespace nanospec {
namespace {

template <class T>
T* on_device(const std::vector<T>& list) {  // until the program ends
  T* at = nullptr;
  CUDA_CHECK(cudaMalloc(&at, list.size() * sizeof(T)));
  CUDA_CHECK(cudaMemcpy(at, list.data(), list.size() * sizeof(T), cudaMemcpyHostToDevice));
  return at;
}

// Of one launch, the fastest of many.
template <class F>
double microseconds(F launch) {
  Event begin(true), end(true);
  double best = 1e9;
  for (int run = 0; run < 50; run++) {
    begin.record();
    launch();
    end.record();
    best = std::min(best, end.seconds_since(begin));
  }
  return best * 1e6;
}

// A root and its children, behind a past: heads as SmolLM2-135M has them.
void measure(int rows, int past) {
  constexpr int H = 9, KV = 3, D = 64, row = (H + 2 * KV) * D;
  const int slots = pad64(past + rows);
  std::vector<int> end, depth(size_t(rows), 1), root(size_t(rows), 0);
  for (int i = 0; i < rows; i++) end.push_back(i + 1);
  end[0] = rows;
  depth[0] = 0;
  Forest f{rows, 1, on_device(end), on_device(depth), on_device(root)};
  f.first_row = on_device<int>({0, rows});
  f.first_slot = on_device<int>({0});
  f.past = on_device<int>({past});
  const size_t numbers =
      KV * std::max(KeyValues<float>::key_numbers(slots, D), KeyValues<float>::value_numbers(slots, D));
  float* const keys = on_device(std::vector<float>(numbers, 0.5f));
  float* const out = on_device(std::vector<float>(size_t(rows) * H * D));
  const Attention<float> s{
      f,   H,     KV,      D, on_device(std::vector<float>(size_t(rows) * row, 0.25f)), row, {keys, keys, slots, D},
      out, H * D, nullptr, {}};
  const double row_by_row = microseconds([&] { attention_plain(s); });
  const double by_rows = microseconds([&] { attention_by_rows(s, rows); });
  printf("%6d %6d %15.1f %17.1f\n", past, rows, row_by_row, by_rows);
}

}  // namespace
}  // namespace nanospec

int main() {
  try {
    printf("\nOn this GPU, 9 heads of 64, in microseconds:\n\n  past   rows    chapter 10's    this chapter's\n");
    for (int past : {256, 2048})
      for (int rows : {1, 5, 16, 64}) nanospec::measure(rows, past);
  } catch (const std::exception& error) {
    fprintf(stderr, "device: %s\n", error.what());
    return 1;
  }
  return 0;
}
