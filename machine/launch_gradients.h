// machine/launch_gradients.h: how the operations of a backward and of an update run: as launch.h says of a forward's.
#pragma once

#include "gradients.cuh"
#include "machine/launch.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Tree attention, the matmul, sums over rows, the loss; arrays zeroed

// p, ds: scratch. Where the portable version runs, in double, (R, H, most keys) each. Else on a GPU p is (R, H), and ds
// is not used. A twin does all that stands here.
template <class T>
void attention_backward(const Team& team, const AttentionBackward<T>& b, T* p, T* ds, int most) {
  const Forest& f = b.forward.forest;
  tell(b);
  if (!b.adds && !has_twins<T>(team)) {
    zero(team, b.dk, b.at(b.forward.n_kv_head, 0));
    zero(team, b.dv, b.at(b.forward.n_kv_head, 0));
  }
  if (!tuned(team, b, p)) {
    launch(team, f.rows * b.forward.n_head, AttentionBackwardQueries<T>{b, p, ds, most});
    launch(team, f.roots * b.forward.n_kv_head * most, AttentionBackwardKeys<T>{b, p, ds, most});
  }
  if (!has_twins<T>(team)) launch(team, f.rows, ReadCacheGradient<T>{b});
}

// Runs a sum over rows, op(group, 0, begin, end): a column operation of all rows at once. Each sum belongs to one lane,
// which adds in order of rows. On a CPU a thread has one strip of columns, so that it reads each row in one piece.
constexpr int kChunk = 64;  // columns of a warp
template <class Op>
void launch_sums(const Team& team, int columns, const Op& op) {
  const Strips<Op> strips{op, columns, team.cuda ? kChunk : pad16((columns + team.size - 1) / team.size)};
  launch(team, strips.per_row(), strips);
}
template <class T>
void norm_weights(const Team& team, const NormWeights<T>& s) {
  if (!tuned(team, s)) launch_sums(team, s.channels, s);
}
template <class T>
void column_sum(const Team& team, const ColumnSum<T>& s) {
  if (!tuned(team, s)) launch_sums(team, s.columns, s);
}
template <class T>
void matmul_gradient(const Team& team, const MatmulGradient<T>& s) {
  tell(s);
  if (!tuned(team, s)) launch(team, s.inputs, s);
  if (s.dbias && !has_twins<T>(team)) column_sum(team, ColumnSum<T>{s.rows, s.outputs, s.dy, s.dy_row, s.dbias});
}
// order: scratch (2, rows), used on a GPU alone.
template <class T>
void embed_backward(const Team& team, const EmbedBackward<T>& s, [[maybe_unused]] int* order) {
  if (!tuned(team, s, order)) launch_sums(team, s.channels, s);
}
template <class T>
void loss_of_rows(const Team& team, int rows, const CrossEntropy<T>& s) {
  if (!tuned(team, s, rows)) launch(team, rows, s);
}
// Mean or ClipFactor as an operation of one row.
template <class Op>
struct SumRow {
  Op op;
  template <class G>
  HD void operator()(const G& g, int) const {
    const auto* const values = op.values;
    using T = std::decay_t<decltype(*values)>;
    const T sum = g.template sum<T>(op.n, [=](int i) { return values[i]; });
    g.each(1, [&](int) { op.finish(sum); });
  }
};
template <class Op>
void launch_sum(const Team& team, const Op& op) {
  if (!tuned(team, op)) launch(team, 1, SumRow<Op>{op});
}
template <class T>
void zero(const Team& team, T* data, size_t n) {
  if (team.cuda) return zero_on_gpu(data, n * sizeof(T));
  tell(Zeros{});
  std::fill(data + n * team.rank / team.size, data + n * (team.rank + 1) / team.size, T(0));
  team.wait();
}

}  // namespace nanospec

#ifndef PORTABLE
#include "machine/tuned_gradients.h"
#endif
