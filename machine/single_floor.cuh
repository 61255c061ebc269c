// machine/single_floor.cuh: the floor under the core as one file, which `make single` writes: how a machine runs an
// operation, in the plainest way. It replaces most of machine/, and cuda/ and weights.h; it gives the core's headers
// the functions that they call, and computes the same bits. A line of ==== begins a part: machine/single.sh puts the
// part where the line says. A line of ++++ names a file and a title: single.sh puts there what this file has under this
// title.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// ======== before kernels.cuh
// The floor: what runs an operation, in the plainest way: one thread of a CPU, or a GPU whose warps take a row each.
//
// In order: how a kernel starts; memory; the team that runs an operation; launch; panels; arrays.

#ifdef WITH_CUDA
inline void check_cuda(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error));
}
inline bool cuda_available() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

// Launches kernel<<<grid, threads>>>(arguments...).
template <class... Parameters, class... Arguments>
void start(void (*kernel)(Parameters...), dim3 grid, int threads, const Arguments&... arguments) {
  kernel<<<grid, threads>>>(arguments...);
  check_cuda(cudaGetLastError());
}

// An S in the block's shared memory, one for each type S that a kernel uses.
template <class S>
__device__ S& shared() {
  __shared__ S memory;
  return memory;
}
// A warp runs a row.
template <class Op>
__global__ void row_kernel(Op op, int rows) {
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / kLanes;
  if (row < rows) op(Warp{}, row);
}

inline void* allocate_on_gpu(size_t bytes) {
  void* data = nullptr;
  check_cuda(cudaMalloc(&data, bytes));
  check_cuda(cudaMemset(data, 0, bytes));
  return data;
}
inline void free_on_gpu(void* data, size_t) { cudaFree(data); }
inline void copy_by_gpu(void* to, const void* from, size_t bytes) {
  check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
}
inline void zero_on_gpu(void* data, size_t bytes) { check_cuda(cudaMemset(data, 0, bytes)); }
#else
inline bool cuda_available() { return false; }
inline void* allocate_on_gpu(size_t) { return nullptr; }
inline void free_on_gpu(void*, size_t) {}
inline void copy_by_gpu(void*, const void*, size_t) {}
inline void zero_on_gpu(void*, size_t) {}
#endif

inline void* allocate_zeroed(size_t bytes) { return memset(::operator new(bytes), 0, bytes); }
inline void free_zeroed(void* data, size_t) { ::operator delete(data); }

// Who runs an operation: one thread, which computes it, or launches it on the GPU. So it waits for nobody.
struct Team {
  bool cuda = false;
  static constexpr int rank = 0, size = 1;
  void wait() const {}
  template <class F>
  void halves(const F& f) const {  // of a batch
    f(*this, 0);
    f(*this, 1);
  }
};
struct Pool {
  const Team team;
  Pool(int /*threads*/, bool cuda, bool /*plain*/) : team{cuda} {}
  int size() const { return 1; }
  bool cuda() const { return team.cuda; }
  template <class F>
  void run(const F& f) const {
    f(team);
  }
};
// Some rows of a forward and who runs them: here always all rows.
struct RowBlock {
  Team team;
  int row, rows, scratch;
};
template <class F>
void by_blocks(const Team& team, int rows, size_t, const F& f) {
  f(RowBlock{team, 0, rows, 0});
}

// Runs op(group, row) for each row.
template <class Op>
void launch(const Team& team, int rows, const Op& op) {
#ifdef WITH_CUDA
  if (team.cuda) return start(row_kernel<Op>, dim3((rows + 3) / 4), 4 * kLanes, op, rows);
#endif
  for (int row = 0; row < rows && !team.cuda; row++) op(Solo{}, row);
}

// A weight (K inputs, N outputs) as a matmul reads it: (N / 16, K, 16), a panel of 16 outputs for all k in turn, so
// that a loop over k reads one stream. N is padded to a multiple of 16 with zeros.
template <class W>
struct Panels {
  W* data = nullptr;
  int k = 0, n = 0;
  bool cuda = false;
  HD size_t size() const { return size_t(k) * ((n + 15) / 16 * 16); }
  HD W* at(int row, int column) const { return data + (size_t(column / 16) * k + row) * 16 + column % 16; }
};

// ++++++++ machine/launch.h: Memory

// ======== after kernels.cuh
// How the operations of a forward run

// Runs a column operation over whole rows; on a GPU over strips of them.
template <class Op>
void launch_columns(const Team& team, int rows, int columns, const Op& op) {
  if (idle(op)) return;
  const Strips<Op> strips{op, columns, team.cuda ? kStrip : columns};
  launch(team, rows * strips.per_row(), strips);
}

// Runs the matmul, then `after` on each row's columns. On a CPU a call computes 16 outputs of one row: so compilers
// make a vector of their sums.
template <class T, class W, class After = Nothing>
void matmul(const Team& team, int rows, Matmul<T, W> s, const After& after = {}) {
  if (!s.x) {
    launch(team, rows, s.norm);
    s.x = s.norm.y;
  }
#ifdef WITH_CUDA
  if (team.cuda) matmul_plain(rows, s);
#endif
  if (s.w.k <= 0) return;
  for (int row = 0; row < rows && !team.cuda; row++)
    for (int n = 0; n < s.w.n; n += 16) {
      const Panels<W> panel{s.w.at(0, n), s.w.k, 16};
      const Matmul<T, W> part{s.x + size_t(row) * s.x_row, 0, panel, s.out + size_t(row) * s.out_row + n, 0};
      part(Solo{}, 1, 0, 16);
    }
  launch_columns(team, rows, s.w.n, after);
}
template <class T, class W, class S>
void matmul_qkv(const Team& team, int rows, const Matmul<T, W>& s, const T* bias, const Attention<T, S>&) {
  matmul(team, rows, s, AddBias<T>{s.out, s.out_row, bias});
}

// Attention reads the rows' keys and values in the cache.
template <class T, class S>
void fill_cache(const Team& team, const Attention<T, S>& s) {
  launch(team, s.forest.rows, WriteCache<T, S>{s});
}
template <class T, class S>
void attention(const Team& team, const Attention<T, S>& s, T* weights, int most) {
  fill_cache(team, s);
#ifdef WITH_CUDA
  if (team.cuda && !s.log_sum) return attention_plain(s);
#endif
  launch(team, s.forest.rows * s.n_head, AttentionForward<T, S>{s, weights, most});
}
template <class T>
void drop(const Team& team, int rows, const Drop<T>& s) {
  launch_columns(team, rows, s.channels, s);
}
template <class S>
void keep_rows(const Team& team, const KeepRows<S>& s, int layers) {
#ifdef WITH_CUDA
  if (team.cuda) return gather_plain(s, layers);
#endif
  launch(team, layers * s.n_kv_head, s);
}

template <class T, class W>
void pack_panels(const Team& team, const Pack<T, W>& op) {
  launch(team, op.rows(), op);
}

// ++++++++ machine/packing.h: The weights of a model

// ======== after model.h
// The weights of a model that decodes, out of the flat array of them all

using TensorSource = const float*;
using AnyNumber = float;
enum class Dtype { as_stored, fp32 };
template <class W>
Weights<float, W> load_weights(const Config& c, const float* flat, Dtype, const Pool& pool) {
  Array<float> stored(parameter_count(c), pool.cuda());
  stored.upload(flat, stored.size());
  Weights<float, W> weights(c, {c, stored.data()}, pool.cuda(), false);
  weights.stored = std::move(stored);
  pool.run([&](const Team& team) { weights.pack(team); });
  return weights;
}

// ======== after gradients.cuh
// How the operations of a backward and of an update run

// to += from: on a CPU alone, for a GPU does not cut a batch into halves.
template <class T>
void add(const Team&, const T* from, T* to, size_t n) {
  for (size_t i = 0; i < n; i++) to[i] += from[i];
}

// ++++++++ machine/launch_gradients.h: Tree attention, the matmul, sums over rows, the loss; arrays zeroed
