// course/chapter12.cpp: the student's gradients, for the grader. What `make measure` shows is in heads12.cpp.
//
// All numbers are doubles. The engine's own program also answers what the grader needs to judge them: the loss, or the
// output, at numbers that differ a little from the given ones. A student's program is never asked for that.
#include <functional>
#include <numeric>
#include <vector>

#include "course/cache.h"
#include "course/lanes.h"
#include "course/student.h"

#include "gradients.cuh"

using namespace nanospec;

namespace course {
namespace {

using Numbers = std::vector<double>;

// The slope of f at each of these numbers, by central differences: its error is near 1e-9.
Numbers slopes(Numbers numbers, const std::function<double(const Numbers&)>& f) {
  constexpr double step = 1e-5;
  Numbers slope;
  for (double& x : numbers) {
    const double at = x;
    x = at + step;
    const double above = f(numbers);
    x = at - step;
    slope.push_back((above - f(numbers)) / (2 * step));
    x = at;
  }
  return slope;
}

// ---------------------------------------------------------------------------------------------------------------
// The loss

struct Losses {
  int rows, V, row_stride, lanes, gradient, by_differences;
  double scale;

  Numbers run(Numbers& logits, const std::vector<int>& target, bool with_gradient) const {
    Numbers loss(size_t(rows), NAN);
    const CrossEntropy<double> op{logits.data(), row_stride, V, target.data(), loss.data(), with_gradient, scale};
    run_items(lanes, rows, op);
    return loss;
  }
};

// Losses, targets, logits -> loss, logits; by differences: loss, slopes
Message losses(Message& question) {
  const auto all = question.get<Losses>();
  const auto target = question.list<int>();
  Numbers logits = question.list<double>();
  const Numbers loss = all.run(logits, target, all.gradient != 0 && all.by_differences == 0);
  if (!all.by_differences) return Message().put(loss).put(logits);
  return Message().put(loss).put(slopes(logits, [&](Numbers at) {
    double sum = 0;
    for (double one : all.run(at, target, false)) sum += one * all.scale;
    return sum;
  }));
}

// ---------------------------------------------------------------------------------------------------------------
// The gradient of a weight

// rows, K, N, x_row, dy_row, lanes, x, dy, what dw holds before -> dw
Message weights(Message& question) {
  const auto [rows, K, N, x_row, dy_row, lanes] = question.get<std::array<int, 6>>();
  const Numbers x = question.list<double>(), dy = question.list<double>();
  Numbers dw = question.list<double>();
  const MatmulGradient<double> op{rows, K, N, x.data(), x_row, dy.data(), dy_row, dw.data()};
  with_lanes(lanes, [&, inputs = K](const auto& group) {
    for (int k = inputs - 1; k >= 0; k--) op(group, k);
  });
  return Message().put(dw);
}

// ---------------------------------------------------------------------------------------------------------------
// Attention

// One root: a past, then a tree of rows by their parents.
struct Layer {
  int H, KV, D, past, lanes;
  std::vector<int> parent;
  int rows = int(parent.size()), slots = pad64(past + rows), columns = (H + 2 * KV) * D;
  Planted<> all = Planted<>{}.add(chain(past + rows), 0), tree = Planted<>{}.add(parent, past);
  LayersCache<double> cache{1, KV, slots, D};

  // qkv: of the past's rows, then of the tree's.
  Attention<double> attention(const Numbers& qkv, double* out, double* log_sum) {
    cache = {1, KV, slots, D};
    Attention<double> s{forest_of(all), H, KV, D, qkv.data(), columns, cache.of(0), out, H * D, log_sum, {}};
    run_items(0, past + rows, WriteCache<double, double>{s});  // the past's rows and the tree's, behind nothing
    s.forest = forest_of(tree);
    s.qkv += size_t(past) * columns;
    return s;
  }
  // The engine's own program alone is asked for this.
  Numbers forward(const Numbers& qkv, Numbers& log_sum) {
    Numbers out(size_t(rows) * H * D, NAN), scratch(size_t(rows) * H * slots, NAN);
    log_sum.assign(size_t(rows) * H, NAN);
    const Attention<double> s = attention(qkv, out.data(), log_sum.data());
    run_items(0, rows * H, AttentionForward<double, double>{s, scratch.data(), slots});
    return out;
  }
  // The gradients of all of qkv, those of the past's queries 0.
  Numbers backward(const Numbers& qkv, Numbers out, Numbers log_sum, const Numbers& dout) {
    const size_t numbers = size_t(KV) * slots * size_t(pad16(D));
    Numbers dk(numbers, 0), dv(numbers, 0), dqkv(size_t(past + rows) * columns, 0), p(size_t(rows) * H * slots, NAN),
        ds(p.size(), NAN);
    for (size_t i = size_t(past) * columns; i < dqkv.size(); i++) dqkv[i] = NAN;
    const AttentionBackward<double> b{attention(qkv, out.data(), log_sum.data()), dout.data(), dk.data(), dv.data(),
                                      &dqkv[size_t(past) * columns]};
    run_items(lanes, rows * H, AttentionBackwardQueries<double>{b, p.data(), ds.data(), slots});
    run_items(0, KV * slots, AttentionBackwardKeys<double>{b, p.data(), ds.data(), slots});
    run_items(0, rows, ReadCacheGradient<double>{b});
    for (int slot = 0; slot < past; slot++)
      for (int head = 0; head < KV; head++)
        for (int d = 0; d < D; d++) {
          double* const keys = &dqkv[size_t(slot) * columns + size_t(H + head) * D];
          keys[d] = dk[b.at(head, slot) + size_t(d)];
          keys[KV * D + d] = dv[b.at(head, slot) + size_t(d)];
        }
    return dqkv;
  }
};

// H, KV, D, past, lanes, by_differences, parents, qkv, dout, out, log_sum -> gradients; by differences: these, out,
// log_sum
Message attentions(Message& question) {
  const auto [H, KV, D, past, lanes, by_differences] = question.get<std::array<int, 6>>();
  Layer layer{H, KV, D, past, lanes, question.list<int>()};
  const Numbers qkv = question.list<double>(), dout = question.list<double>();
  if (!by_differences) {
    const Numbers out = question.list<double>(), log_sum = question.list<double>();
    return Message().put(layer.backward(qkv, out, log_sum, dout));
  }
  Numbers log_sum, unused;
  const Numbers out = layer.forward(qkv, log_sum);
  const Numbers slope = slopes(qkv, [&](const Numbers& at) {
    return std::inner_product(dout.begin(), dout.end(), layer.forward(at, unused).begin(), 0.0);
  });
  return Message().put(slope).put(out).put(log_sum);
}

}  // namespace

Message answer(Message& question) {
  const char what = question.get<char>();
  return what == 'c' ? losses(question) : what == 'm' ? weights(question) : attentions(question);
}

void measure() { throw std::runtime_error("the table of this chapter is heads12.cpp's"); }

}  // namespace course
