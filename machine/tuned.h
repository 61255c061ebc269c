// machine/tuned.h: the tuned versions of operations: twins on a CPU, the kernels of cuda/ on a GPU.
//
// tuned(team, operation, ...) runs the tuned version and returns true, or returns false if there is none, and the
// portable version must run. Tuned versions compute in float only, whatever type weights and cache are stored in. Twins
// have the portable version's bits.
#pragma once

#include "machine/attention.h"
#include "machine/dropout.h"
#include "machine/integer_products.h"
#include "machine/launch.h"
#ifdef WITH_CUDA
#include "cuda/attention.cuh"
#include "cuda/blas.cuh"
#include "cuda/gather.cuh"
#include "cuda/matmul_integers.cuh"
#include "cuda/matmul_mma.cuh"
#endif

namespace nanospec {

std::true_type has_tuned(const Pack<float, float>&);
template <class W>
std::true_type has_tuned(const Matmul<float, W>&);
std::true_type has_tuned(const Drop<float>&);
template <class S>
std::true_type has_tuned(const Attention<float, S>&);
#ifdef WITH_CUDA
std::true_type has_tuned(const Norm<float>&);
std::true_type has_tuned(const Rope<float>&);
template <class S>
std::true_type has_tuned(const KeepRows<S>&);

// Whether the GPU's products run this column operation themselves. Others are launches of their own: the products take
// long to compile, once for each.
template <class After>
inline constexpr bool kInProduct =
    std::is_same<After, AddBias<float>>::value || std::is_same<After, BiasGelu<float>>::value ||
    std::is_same<After, JoinResidual<float>>::value;
template <class S>
inline constexpr bool kInProduct<BiasAndCache<S>> = true;

template <class W>
bool normalizes(const Team& team, const Matmul<float, W>& s, int rows) {
  if (!team.cuda || team.plain || !s.w.cuda) return false;
  if constexpr (std::is_same<W, float>::value) return rows == 1 && by_fours(s.norm) && !s.w.stored;
  if constexpr (std::is_same<W, bf16>::value) return rows <= 16 && by_fours(s.norm);
  return false;
}
inline bool tuned(const Team& team, const Norm<float>& s, int rows) {
  if (!team.cuda || rows > kDecodeRows) return false;
  start_early(norm_kernel<kProductThreads>, rows, kProductThreads, s);
  return true;
}
template <class S>
bool tuned(const Team&, const Rope<float>& rope, int rows, const Attention<float, S>& heads) {
  if (!heads.in_cache || rope.back) return false;
  launch_early(rows * rope.heads, RotateIntoCache<S>{rope, heads});
  return true;
}
template <class S>
bool tuned(const Team& team, const KeepRows<S>& s, int layers) {
  if (team.cuda) start_early(gather_kernel<S, kGatherThreads>, layers * s.n_kv_head, kGatherThreads, s);
  return team.cuda;
}
#endif

inline bool tuned(const Team& team, const Pack<float, float>& s) {
  const bool whole = s.to.n % kGroup == 0 && s.to.k % s.block == 0;
  if (team.cuda || !whole || (s.n_stride != 1 && s.k_stride != 1)) return false;
  tell(s);
  pack_twin(team, s);
  team.wait();
  return true;
}
template <class W, class After>
bool tuned(const Team& team, const Matmul<float, W>& s, int rows, const After& after) {
  if (!team.cuda) {
    matmul_twin(team.share(pad16(s.w.n), kGroup), rows, s, after);
    return true;
  }
#ifdef WITH_CUDA
  if constexpr (std::is_same<W, float>::value) {
    if (s.w.stored) {  // training uses cuBLAS
      gemm(rows, s.w.n, s.w.k, {s.x, size_t(s.x_row), 1}, {s.w.stored, s.w.k_stride, s.w.n_stride}, s.out, s.out_row,
           false);
      launch_columns(team, rows, s.w.n, after);
      return true;
    }
  }
  if constexpr (std::is_same<W, f16>::value) return false;  // on a GPU it has no kernel of its own
  else if (!s.w.cuda) return false;
  else if constexpr (kInProduct<After>) matmul_cuda(rows, s, after);
  else {
    matmul_cuda(rows, s, AddBias<float>{s.out, s.out_row, nullptr});
    launch_columns(team, rows, s.w.n, after);
  }
#endif
  return s.w.cuda;
}
// The matmul of queries, keys and values. On a GPU it writes keys and values into the cache. On a CPU, with one tree
// and the same number of heads for each thread, a thread computes those of the heads that it will use in attention: it
// need not wait for the others, nor read what they wrote.
template <class W, class S>
bool tuned(const Team& team, const Matmul<float, W>& s, int rows, const AddBias<float>& bias,
           const Attention<float, S>& heads) {
  const int D = heads.head_size, H = heads.n_head, KV = heads.n_kv_head;
#ifdef WITH_CUDA
  if (heads.in_cache) matmul(team, rows, s, BiasAndCache<S>{bias, heads});
  if (heads.in_cache) return true;
#endif
  if (team.cuda || heads.forest.roots != 1 || D % kGroup != 0 || KV % team.size != 0) return false;
  tell(s);
  const Range mine = team.share(KV);
  const auto columns = [&](int first_head, int each) {
    matmul_twin({(first_head + mine.begin * each) * D, (first_head + mine.end * each) * D}, rows, s, bias);
  };
  columns(0, heads.queries());
  columns(H, 1);
  columns(H + KV, 1);
  return true;
}
inline bool tuned(const Team& team, const Drop<float>& s, int rows) {
  if (team.cuda) return false;
  tell(s);
  drop_twin(team, rows, s);
  team.wait();
  return true;
}
template <class S>
bool tuned(const Team& team, const Attention<float, S>& s, float* scratch) {
  if (!team.cuda) {
    attention_twin(team, s, scratch);
    team.wait();
    return true;
  }
  fill_cache(team, s);
#ifdef WITH_CUDA
  attention_cuda(s, scratch);
#endif
  return true;
}
#ifdef INSTANTIATE  // machine/library.cpp
#ifdef WITH_CUDA
INSTANTIATE void matmul_cuda(int, const Matmul<float, float>&, const AddBias<float>&);
#endif
INSTANTIATE void matmul(const Team&, int, Matmul<float, float>, const Nothing&);
INSTANTIATE void matmul(const Team&, int, Matmul<float, float>, const JoinResidual<float>&);
INSTANTIATE void matmul(const Team&, int, Matmul<float, bf16>, const Nothing&);
INSTANTIATE void matmul(const Team&, int, const Matmul<float, AnyNumber>&, const Nothing&);
INSTANTIATE void attention(const Team&, const Attention<float, float>&, float*, int);
INSTANTIATE void attention(const Team&, const Attention<float, bf16>&, float*, int);
#endif

}  // namespace nanospec
