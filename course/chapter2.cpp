// course/chapter2.cpp: the student's attention, for the grader and for a table.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>

#include "course/lanes.h"
#include "course/student.h"
#include "kernels.cuh"

using namespace nanospec;

namespace course {
namespace {

// One layer's attention over a text, in one forward or in several over one cache.
struct Layer {
  int H, KV, D, slots, first_slot, columns = (H + 2 * KV) * D;
  std::vector<float> k, v, weights;

  Layer(int heads, int kv_heads, int head_size, int length, int slot)
      : H(heads),
        KV(kv_heads),
        D(head_size),
        slots(slot + pad64(length)),
        first_slot(slot),
        k(KV * KeyValues<float>::key_numbers(slots, D), NAN),  // a slot that nobody wrote is NaN
        v(KV * KeyValues<float>::value_numbers(slots, D), NAN) {}

  // Rows past .. past + rows - 1 of the text: qkv (rows, columns) -> out (rows, H D), log_sum (rows, H).
  void forward(int past, int rows, const float* qkv, int lanes, float* out, float* log_sum) {
    std::vector<int> end(rows, rows), depth(rows), root(rows, 0);
    for (int i = 0; i < rows; i++) depth[i] = i;
    const int first_row[] = {0, rows};
    const Forest forest{rows, 1, end.data(), depth.data(), root.data(), first_row, &first_slot, &past};
    const Attention<float> s{forest, H, KV, D, qkv, columns, {k.data(), v.data(), slots, D}, out, H * D, log_sum, {}};
    const int most = past + rows;
    weights.assign(size_t(rows) * H * most, NAN);
    const WriteCache<float, float> write{s};
    const AttentionForward<float, float> attention{s, weights.data(), most};
    with_lanes(lanes, [&](const auto& group) {
      for (int row = 0; row < rows; row++) write(group, row);
      for (int item = rows * H - 1; item >= 0; item--) attention(group, item);
    });
  }
};

}  // namespace

// H, KV, D, first_slot, lanes, how many rows each forward has, qkv of all rows -> out, log_sum
Message answer(Message& question) {
  int numbers[5];
  for (int& n : numbers) n = question.get<int>();
  const auto [H, KV, D, first_slot, lanes] = numbers;
  const auto forwards = question.list<int>();
  const auto qkv = question.list<float>();
  int length = 0;
  for (int rows : forwards) length += rows;
  Layer layer(H, KV, D, length, first_slot);
  std::vector<float> out(size_t(length) * H * D, NAN), log_sum(size_t(length) * H, NAN);
  int past = 0;
  for (int rows : forwards) {
    layer.forward(past, rows, &qkv[size_t(past) * layer.columns], lanes, &out[size_t(past) * H * D],
                  &log_sum[size_t(past) * H]);
    past += rows;
  }
  return Message().put(out).put(log_sum);
}

void measure() {
  constexpr int H = 4, D = 32;
  printf("Attention of one layer (4 heads of 32) over a text that grows by one token at a time\n\n");
  printf("  tokens     the last token, all again     with the cache     ratio\n");
  for (int length = 32; length <= 1024; length *= 2) {
    Layer layer(H, H, D, length, 0);
    std::vector<float> qkv(size_t(length) * layer.columns), out(size_t(length) * H * D), log_sum(size_t(length) * H);
    for (size_t i = 0; i < qkv.size(); i++) qkv[i] = float(i * 7919 % 1000) / 500 - 1;
    double best[2] = {1e9, 1e9};
    for (int again = 0; again < 3; again++)
      for (int cached : {0, 1}) {
        const int past = cached ? length - 1 : 0, rows = length - past;
        const auto start = std::chrono::steady_clock::now();
        layer.forward(past, rows, &qkv[size_t(past) * layer.columns], 0, out.data(), log_sum.data());
        best[cached] =
            std::min(best[cached], std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      }
    printf("%8d %25.3f ms %15.3f ms %9.0f\n", length, best[0] * 1e3, best[1] * 1e3, best[0] / best[1]);
  }
}

}  // namespace course
