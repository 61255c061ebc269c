// machine/tuned_gradients.h: the tuned versions of a backward's operations: see tuned.h.
#pragma once

#include "machine/attention_gradient.h"
#include "machine/launch_gradients.h"
#include "machine/matmul_gradient.h"
#ifdef WITH_CUDA
#include "cuda/attention_backward.cuh"
#include "cuda/train.cuh"
#endif

namespace nanospec {

// Templates, so that a file without training compiles no kernels of training: of an inline function it compiles all.
template <class T>
using IfFloat = std::enable_if_t<std::is_same<T, float>::value>;
std::true_type has_tuned(const MatmulGradient<float>&);
std::true_type has_tuned(const AttentionBackward<float>&);
#ifdef WITH_CUDA
std::true_type has_tuned(const NormWeights<float>&);
std::true_type has_tuned(const ColumnSum<float>&);
std::true_type has_tuned(const EmbedBackward<float>&);
std::true_type has_tuned(const CrossEntropy<float>&);
std::true_type has_tuned(const Mean<float>&);
std::true_type has_tuned(const ClipFactor<float>&);

template <class T, class = IfFloat<T>>
bool tuned(const Team& team, const NormWeights<T>& s) {
  if (!team.cuda || !s.mean) return false;
  sum_columns(NormTerm{s.dy, s.x, s.mean, s.rstd, s.y_row, s.x_row}, s.rows, s.channels, s.dweight, s.dbias);
  return true;
}
template <class T, class = IfFloat<T>>
bool tuned(const Team& team, const ColumnSum<T>& s) {
  if (team.cuda) sum_columns(GradientTerm{s.dy, s.y_row}, s.rows, s.columns, s.dbias);
  return team.cuda;
}
template <class T, class = IfFloat<T>>
bool tuned(const Team& team, const EmbedBackward<T>& s, int* order) {
  if (!team.cuda) return false;
  constexpr int rows_each = kSortThreads / kLanes;
  const int tables = s.dwpe ? 2 : 1;
  start(sort_rows<kSortThreads>, dim3((s.rows + rows_each - 1) / rows_each, tables), kSortThreads, s, order);
  start(add_runs<kRunThreads>, dim3(s.rows, (s.channels + kRunColumns - 1) / kRunColumns, tables), kRunThreads, s,
        order);
  return true;
}
template <class T, class = IfFloat<T>>
bool tuned(const Team& team, const CrossEntropy<T>& s, int rows) {
  if (!team.cuda || s.vocab_size < kLongRow) return false;
  start(s.gradient ? cross_entropy<true> : cross_entropy<false>, rows, kLossThreads, s.logits, s.row_stride,
        s.vocab_size, s.target, s.loss, s.scale);
  return true;
}
template <class Op>
bool tuned_sum(const Team& team, const Op& op) {
  if (team.cuda) start(long_sum<Op>, 1, kSumThreads, op);
  return team.cuda;
}
inline bool tuned(const Team& team, const Mean<float>& s) { return tuned_sum(team, s); }
inline bool tuned(const Team& team, const ClipFactor<float>& s) { return tuned_sum(team, s); }
#endif

inline bool tuned(const Team& team, const MatmulGradient<float>& s) {
  if (!team.cuda) matmul_gradient_twin(team, s);
#ifdef WITH_CUDA
  else gemm(s.inputs, s.outputs, s.rows, {s.x, 1, size_t(s.x_row)}, {s.dy, size_t(s.dy_row), 1}, s.dw, s.outputs, true);
#endif
  return true;
}
template <class T, class = IfFloat<T>>
bool tuned(const Team& team, const AttentionBackward<T>& b, [[maybe_unused]] T* delta) {
  if (!team.cuda) {
    attention_backward_twin(team, b);
    team.wait();
    return true;
  }
#ifdef WITH_CUDA
  attention_backward_cuda(b, delta);
#endif
  return true;
}
#ifdef INSTANTIATE  // machine/library.cpp
INSTANTIATE void attention_backward(const Team&, const AttentionBackward<float>&, float*, float*, int);
#endif

}  // namespace nanospec
