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
  int H, KV, D, slots, first_slot, columns = (H + 2 * KV) * D;
  LayersCache<float> cache{1, KV, slots, D};
  std::vector<float> weights = {};

  int out_row() const { return H * D + 5; }

  // Rows past .. past + rows - 1 of the text: qkv (rows, columns) -> out (rows, out_row()), log_sum (rows, H) or null.
  void forward(int past, int rows, const float* qkv, int lanes, float* out, float* log_sum) {
    forward({depths_of(chain(rows)), {0, rows}, {first_slot}, {past}}, qkv, lanes, out, log_sum);
  }
  // Trees in preorder, by the depths of their rows, each behind a past of its own.
  struct Trees {
    std::vector<int> depth, first_row, first_slot, past;
  };
  void forward(const Trees& trees, const float* qkv, int lanes, float* out, float* log_sum) {
    const auto& [depth, first_row, slot, past] = trees;
    const int rows = int(depth.size()), roots = int(past.size());
    std::vector<int> root(rows, -1);
    for (int r = 0; r < roots; r++)
      for (int i = first_row[r]; i < rows; i++) root[i] = r;
    set_parents(depth);
    const std::vector<int> end = ends_of(parents);
    const Forest forest{rows, roots, end.data(), depth.data(), root.data(), first_row.data(), slot.data(), past.data()};
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

// Trees, each behind a text of so many rows, in one forward: H, KV, D, past of each tree, their rows' depths, qkv of
// the texts and then of the trees -> out of the trees. There is no log_sum.
Message answer_of_trees(Message& question) {
  const auto [H, KV, D] = question.get<std::array<int, 3>>();
  Layer::Trees trees{{}, {0}, {}, question.list<int>()};
  int slots = 0;
  for (int past : trees.past) {
    const auto depth = question.list<int>();
    trees.depth.insert(trees.depth.end(), depth.begin(), depth.end());
    trees.first_row.push_back(int(trees.depth.size()));
    trees.first_slot.push_back(slots);
    slots += pad64(past + int(depth.size()));
  }
  const auto qkv = question.list<float>();
  Layer layer{H, KV, D, slots, 0};
  const float* next = qkv.data();
  for (size_t r = 0; r < trees.past.size(); r++) {
    const int past = trees.past[r];
    std::vector<float> out(size_t(past) * layer.out_row(), NAN);
    layer.first_slot = trees.first_slot[r];
    layer.forward(0, past, next, 0, out.data(), nullptr);
    next += size_t(past) * layer.columns;
  }
  std::vector<float> out(trees.depth.size() * size_t(layer.out_row()), NAN);
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
  Layer layer{H, KV, D, first_slot + pad64(length), first_slot};
  std::vector<float> out(size_t(length) * layer.out_row(), NAN), log_sum(size_t(length) * H, NAN);
  int past = 0;
  for (int rows : forwards) {
    layer.forward(past, rows, &qkv[size_t(past) * layer.columns], lanes, &out[size_t(past) * layer.out_row()],
                  &log_sum[size_t(past) * H]);
    past += rows;
  }
  return Message().put(packed(layer, out)).put(log_sum);
}

void measure() {
  constexpr int H = 4, D = 32;
  printf("Attention of one layer (4 heads of 32) over a text that grows by one token at a time\n\n");
  printf("  tokens     the last token, all again     with the cache     ratio\n");
  for (int length = 32; length <= 1024; length *= 2) {
    Layer layer{H, H, D, pad64(length), 0};
    std::vector<float> qkv(size_t(length) * layer.columns), out(size_t(length) * layer.out_row()),
        log_sum(size_t(length) * H);
    for (size_t i = 0; i < qkv.size(); i++) qkv[i] = float(i * 7919 % 1000) / 500 - 1;
    const auto seconds = [&](int past) {
      const float* const rows = &qkv[size_t(past) * layer.columns];
      return fastest(3, [&] { layer.forward(past, length - past, rows, 0, out.data(), log_sum.data()); });
    };
    const double again = seconds(0), cached = seconds(length - 1);
    printf("%8d %25.3f ms %15.3f ms %9.0f\n", length, again * 1e3, cached * 1e3, again / cached);
  }
}

}  // namespace course
