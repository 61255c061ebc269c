// machine/single_floor.cuh: the floor under the core as one file, which `make single` writes: how a machine runs an
// operation, in the plainest way. It stands in the place of machine/, cuda/ and weights.h, gives the core's headers the
// functions that they call, and computes the same bits. machine/single.sh puts each part of it where its title says.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// ======== before kernels.cuh
// The floor: what runs an operation, in the plainest way: one thread of a CPU, or a GPU whose warps take a row each.
//
// In order: how a kernel starts; arrays in the machine's memory; the team that runs an operation; launch.

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
#else
inline bool cuda_available() { return false; }
#endif

// Owns n zeroed numbers in the memory of the CPU or the GPU.
template <class T>
class Array {
 public:
  Array() = default;
  explicit Array(size_t n, bool cuda = false) : n_(n), cuda_(cuda) {
#ifdef WITH_CUDA
    if (cuda) check_cuda(cudaMalloc(&data_, n * sizeof(T)));
    if (cuda) check_cuda(cudaMemset(data_, 0, n * sizeof(T)));
#endif
    if (!cuda) data_ = new T[n]();
  }
  Array(Array&& other) noexcept { *this = std::move(other); }
  Array& operator=(Array&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(n_, other.n_);
    std::swap(cuda_, other.cuda_);
    return *this;
  }
  ~Array() {
#ifdef WITH_CUDA
    if (cuda_) cudaFree(data_);
#endif
    if (!cuda_) delete[] data_;
  }
  T* data() const { return data_; }
  size_t size() const { return n_; }

  void upload(const T* from, size_t n) { copy(data_, from, n); }
  void download(T* to, size_t n) const { copy(to, data_, n); }
  // The first n numbers where the host reads them: on a CPU here, of a GPU in `copied`.
  const T* on_host(size_t n, std::vector<T>& copied) const {
    if (!cuda_) return data_;
    copied.resize(n);
    download(copied.data(), n);
    return copied.data();
  }

 private:
  void copy(T* to, const T* from, size_t n) const {
#ifdef WITH_CUDA
    if (cuda_) return check_cuda(cudaMemcpy(to, from, n * sizeof(T), cudaMemcpyDefault));
#endif
    std::copy_n(from, n, to);
  }
  T* data_ = nullptr;
  size_t n_ = 0;
  bool cuda_ = false;
};

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
void by_blocks(const Team& team, int first, int rows, size_t, const F& f) {
  f(RowBlock{team, first, rows, first});
}

// Runs op(group, row) for each row.
#ifdef WITH_CUDA
template <class Op>
__global__ void row_kernel(Op op, int rows) {
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / kLanes;
  if (row < rows) op(Warp{}, row);
}
#endif
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

// A weight for the matmul: packed for the forward; and, for training, its transpose packed for the backward.
template <class T, class W>
struct Weight {
  Panels<W> forward, transposed;
  const T *from = nullptr, *bias = nullptr;  // as they are stored; the bias (out) may be null
  size_t k_stride = 0, n_stride = 0;

  Weight() = default;
  // stored: (in, out); if `tied` (out, in), as the embedding that is also the head.
  Weight(const T* stored, int in, int out, bool tied = false, const T* its_bias = nullptr)
      : from(stored), bias(its_bias), k_stride(tied ? 1 : size_t(out)), n_stride(tied ? size_t(in) : 1) {
    forward.k = transposed.n = in;
    forward.n = transposed.k = out;
  }
  void pack(const Team& team) const {
    const Pack<T, W> there{from, k_stride, n_stride, forward}, back{from, n_stride, k_stride, transposed};
    launch(team, there.rows(), there);
    if (transposed.data) launch(team, back.rows(), back);
  }
};
// Memory for the panels of all these weights.
template <class T, class W>
Array<W> place_weights(const std::vector<Weight<T, W>*>& all, bool training, bool cuda) {
  std::vector<Panels<W>*> panels;
  for (Weight<T, W>* weight : all) panels.push_back(&weight->forward);
  for (Weight<T, W>* weight : all)
    if (training) panels.push_back(&weight->transposed);
  size_t size = 0;
  for (const Panels<W>* one : panels) size += one->size();
  Array<W> memory(size, cuda);
  W* next = memory.data();
  for (Panels<W>* one : panels) {
    one->cuda = cuda;
    one->data = std::exchange(next, next + one->size());
  }
  return memory;
}

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

template <class T>
void zero(const Team& team, T* data, size_t n) {
#ifdef WITH_CUDA
  if (team.cuda) return check_cuda(cudaMemset(data, 0, n * sizeof(T)));
#endif
  if (!team.cuda) std::fill_n(data, n, T(0));
}
// to += from: on a CPU alone, for a GPU does not cut a batch into halves.
template <class T>
void add(const Team&, const T* from, T* to, size_t n) {
  for (size_t i = 0; i < n; i++) to[i] += from[i];
}

// p, ds: (R, H, most keys) scratch.
template <class T>
void attention_backward(const Team& team, const AttentionBackward<T>& b, T* p, T* ds, int most) {
  const Attention<T>& s = b.forward;
  if (!b.adds) {
    zero(team, b.dk, b.at(s.n_kv_head, 0));
    zero(team, b.dv, b.at(s.n_kv_head, 0));
  }
  launch(team, s.forest.rows * s.n_head, AttentionBackwardQueries<T>{b, p, ds, most});
  launch(team, s.forest.roots * s.n_kv_head * most, AttentionBackwardKeys<T>{b, p, ds, most});
  launch(team, s.forest.rows, ReadCacheGradient<T>{b});
}

// Runs a sum over rows: a column operation of all rows at once. Each sum belongs to one lane, which adds in order of
// rows.
template <class Op>
void launch_sums(const Team& team, int columns, const Op& op) {
  launch_columns(team, 1, columns, op);
}
template <class T>
void norm_weights(const Team& team, const NormWeights<T>& s) {
  launch_sums(team, s.channels, s);
}
template <class T>
void embed_backward(const Team& team, const EmbedBackward<T>& s, int*) {
  launch_sums(team, s.channels, s);
}
template <class T>
void matmul_gradient(const Team& team, const MatmulGradient<T>& s) {
  launch(team, s.inputs, s);
  if (s.dbias) launch_sums(team, s.outputs, ColumnSum<T>{s.rows, s.outputs, s.dy, s.dy_row, s.dbias});
}
template <class T>
void loss_of_rows(const Team& team, int rows, const CrossEntropy<T>& s) {
  launch(team, rows, s);
}

// Mean or ClipFactor: a sum as an operation of one row.
template <class Op>
struct SumRow {
  Op op;
  template <class G>
  HD void operator()(const G& g, int) const {
    const float* const values = op.values;
    const float sum = g.template sum<float>(op.n, [=](int i) { return values[i]; });
    g.each(1, [&](int) { op.finish(sum); });
  }
};
template <class Op>
void launch_sum(const Team& team, const Op& op) {
  launch(team, 1, SumRow<Op>{op});
}
