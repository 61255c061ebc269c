// course/chapter2.cpp: the student's attention, for the grader and for a table.
#include <cstdio>

#include "course/cache.h"
#include "course/lanes.h"
#include "course/student.h"

using namespace nanospec;

namespace course {
namespace {

// One layer's attention over a text, in one forward or in several over one cache. Rows of out have some room to spare.
struct Layer {
  int H, KV, D, slots, columns = (H + 2 * KV) * D;
  LayersCache<float> cache{1, KV, slots, D};
  std::vector<float> weights = {};

  int out_row() const { return H * D + 5; }

  // Trees, whose slots are the cache's: qkv (rows, columns) -> out (rows, out_row()), log_sum (rows, H) or null.
  void forward(const Planted<>& trees, const float* qkv, int lanes, float* out, float* log_sum) {
    const Forest forest = forest_of(trees);
    const int rows = forest.rows;
    const Attention<float> s{forest, H, KV, D, qkv, columns, cache.of(0), out, out_row(), log_sum, {}};
    weights.assign(size_t(rows) * H * slots, NAN);
    const WriteCache<float, float> write{s};
    const AttentionForward<float, float> attention{s, weights.data(), slots};
    with_lanes(lanes, [&](const auto& group) {
      for (int row = 0; row < rows; row++) write(group, row);
      for (int item = rows * H - 1; item >= 0; item--) attention(group, item);
    });
  }
};

// The rows of out without the room behind them, in which nothing may have been written.
std::vector<float> packed(const Layer& layer, const std::vector<float>& out) {
  std::vector<float> all;
  const int width = layer.H * layer.D;
  for (size_t i = 0; i < out.size(); i++)
    if (int(i) % layer.out_row() < width) all.push_back(out[i]);
    else if (!std::isnan(out[i])) throw std::runtime_error("a number was written behind the end of a row of out");
  return all;
}

// Trees, each behind a text of so many rows, in one forward: H, KV, D, past of each tree, their rows' parents, qkv of
// the texts and then of the trees -> out of the trees. There is no log_sum.
Message answer_of_trees(Message& question) {
  const auto [H, KV, D] = question.get<std::array<int, 3>>();
  const auto pasts = question.list<int>();
  Planted<> trees;
  for (int past : pasts) trees.add(question.list<int>(), past);
  const auto qkv = question.list<float>();
  Layer layer{H, KV, D, trees.slots};
  const float* next = qkv.data();
  for (size_t r = 0; r < pasts.size(); r++) {
    std::vector<float> out(size_t(pasts[r]) * layer.out_row(), NAN);
    layer.forward(Planted<>{trees.first_slot[r]}.add(chain(pasts[r]), 0), next, 0, out.data(), nullptr);
    next += size_t(pasts[r]) * layer.columns;
  }
  std::vector<float> out(trees.end.size() * size_t(layer.out_row()), NAN);
  layer.forward(trees, next, 0, out.data(), nullptr);
  return Message().put(packed(layer, out));
}

}  // namespace

// H (0: trees), KV, D, first_slot, lanes, how many rows each forward has, qkv of all rows -> out, log_sum
Message answer(Message& question) {
  const int H = question.get<int>();
  if (H == 0) return answer_of_trees(question);
  const auto [KV, D, first_slot, lanes] = question.get<std::array<int, 4>>();
  const auto forwards = question.list<int>();
  const auto qkv = question.list<float>();
  int length = 0;
  for (int rows : forwards) length += rows;
  Layer layer{H, KV, D, first_slot + pad64(length)};
  std::vector<float> out(size_t(length) * layer.out_row(), NAN), log_sum(size_t(length) * H, NAN);
  int past = 0;
  for (int rows : forwards) {
    layer.forward(Planted<>{first_slot}.add(chain(rows), past), &qkv[size_t(past) * layer.columns], lanes,
                  &out[size_t(past) * layer.out_row()], &log_sum[size_t(past) * H]);
    past += rows;
  }
  return Message().put(packed(layer, out)).put(log_sum);
}

void measure() {
  constexpr int H = 4, D = 32;
  printf("Attention of one layer (4 heads of 32) over a text that grows by one token at a time\n\n");
  printf("  tokens     the last token, all again     with the cache     ratio\n");
  for (int length = 32; length <= 1024; length *= 2) {
    Layer layer{H, H, D, pad64(length)};
    std::vector<float> qkv(size_t(length) * layer.columns), out(size_t(length) * layer.out_row()),
        log_sum(size_t(length) * H);
    for (size_t i = 0; i < qkv.size(); i++) qkv[i] = float(i * 7919 % 1000) / 500 - 1;
    const auto seconds = [&](int past) {
      const float* const rows = &qkv[size_t(past) * layer.columns];
      const Planted<> text = Planted<>{}.add(chain(length - past), past);
      return fastest(3, [&] { layer.forward(text, rows, 0, out.data(), log_sum.data()); });
    };
    const double again = seconds(0), cached = seconds(length - 1);
    printf("%8d %25.3f ms %15.3f ms %9.0f\n", length, again * 1e3, cached * 1e3, again / cached);
  }
}

}  // namespace course
