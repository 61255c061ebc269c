// machine/launch.h: which machine runs an operation, and how: memory and launches.
//
// kernels.cuh says what is computed. `launch` runs an operation over all rows: on a CPU each thread of the team takes a
// share of them; on a GPU a warp takes a row. Some operations have a twin for the CPU or a kernel for the GPU: tuned.h
// knows which. The operations of a backward are launched in launch_gradients.h. This file knows nothing of models,
// trees or files.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels.cuh"
#include "machine/integers.h"
#include "machine/threads.h"
#ifdef WITH_CUDA
#include "cuda/machine.cuh"
#endif

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The GPU's functions that the rest of this file needs. Behind #else are the empty ones of a program without CUDA:
// there cuda_available() is false, no team and no array belongs to a GPU, and they are never called.

// Bytes that this program holds on the GPU, and the most that it held.
struct DeviceBytes {
  std::atomic<size_t> now{0}, most{0};
  void add(size_t bytes) { most = larger(most.load(), now += bytes); }
};
inline DeviceBytes device_bytes;

#ifdef WITH_CUDA
constexpr const char* kCudaAdvice = "see what nvidia-smi says";
inline size_t free_device_bytes() {
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return free;
}
// --early: on, launches (weights are not asked for in one piece), off.
inline void set_early(const std::string& word) { early = {word != "off", word == "on"}; }

// Returns zeroed memory. Throws std::runtime_error.
inline void* allocate_on_gpu(size_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error
    throw std::runtime_error("out of memory on the GPU: " + std::to_string(bytes) + " bytes asked, " +
                             std::to_string(free_device_bytes()) +
                             " free: use a smaller model or batch, or --device cpu");
  }
  CUDA_CHECK(error);
  device_bytes.add(bytes);
  CUDA_CHECK(cudaMemset(data, 0, bytes));
  return data;
}
inline void free_on_gpu(void* data, size_t bytes) {
  if (data) device_bytes.now -= bytes;
  cudaFree(data);
}
inline void copy_by_gpu(void* to, const void* from, size_t bytes) {  // to the GPU or from it
  CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
}
inline void zero_on_gpu(void* data, size_t bytes) { CUDA_CHECK(cudaMemsetAsync(data, 0, bytes, stream())); }

// A warp runs a row. The largest operation, the gradient of the portable attention, sets the budget; SwiGLU and weights
// that are unpacked from integers have the fewest loads, norms and embeddings eight.
// Budget: 80 registers, 0 bytes shared. Loads: 2.
template <class Op>
__global__ void row_kernel(Op op, int rows) {
  let_next_start();
  wait_for_earlier();
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / kLanes;
  if (row < rows) op(Warp{}, row);
}
template <class Op>
void launch_on_gpu(int rows, const Op& op) {
  constexpr int warps = 4;
  start(row_kernel<Op>, (rows + warps - 1) / warps, warps * kLanes, op, rows);
}
// For an operation in the middle of a decoding step: see start_early().
template <class Op>
void launch_early(int rows, const Op& op) {
  start_early(row_kernel<Op>, rows, kLanes, op, rows);
}
#else
constexpr const char* kCudaAdvice = "run the -cuda program, which make builds where it finds nvcc";
inline std::string cuda_problem() { return "this program was built without CUDA"; }
inline bool cuda_available() { return false; }
inline std::string device_problem() { return ""; }
inline size_t free_device_bytes() { return 0; }
inline void set_early(const std::string&) {}
inline void* allocate_on_gpu(size_t) { return nullptr; }
inline void free_on_gpu(void*, size_t) {}
inline void copy_by_gpu(void*, const void*, size_t) {}
inline void zero_on_gpu(void*, size_t) {}
template <class Op>
void launch_on_gpu(int, const Op&) {}
template <class Op>
void launch_early(int, const Op&) {}
#endif

#ifdef PORTABLE
constexpr bool kTuned = false;
#else
constexpr bool kTuned = true;
#endif
#if defined(WITH_CUDA) && !defined(PORTABLE)
// The kernels of cuda/ are there.
#define TUNED_CUDA
size_t attention_scratch(int rows, int n_head, int head_size, int slots);  // cuda/attention.cuh
#else
inline size_t attention_scratch(int, int, int, int) { return 0; }
#endif

// Whether to run on the GPU: `device` is "auto", "cpu" or "cuda". Throws std::runtime_error if "cuda" is not possible.
// Says it if "auto" finds a GPU that it cannot use.
inline bool choose_cuda(const std::string& device) {
  if (device == "auto" && !device_problem().empty())
    fprintf(stderr, "%s: --device auto takes the CPU\n", device_problem().c_str());
  if (device == "cuda" && !cuda_available())
    throw std::runtime_error(cuda_problem() + ": --device cuda: use --device cpu, or " + kCudaAdvice);
  return device != "cpu" && cuda_available();
}

// ---------------------------------------------------------------------------------------------------------------
// Memory

// Owns n zeroed numbers in the memory of the CPU or the GPU. Throws std::bad_alloc (CPU), std::runtime_error (GPU).
template <class T>
class Array {
 public:
  Array() = default;
  explicit Array(size_t n, bool cuda = false) : n_(n), cuda_(cuda) {
    if (n > SIZE_MAX / sizeof(T)) throw std::bad_alloc();
    data_ = static_cast<T*>(cuda ? allocate_on_gpu(bytes()) : allocate_zeroed(bytes()));
  }
  Array(Array&& other) noexcept { *this = std::move(other); }
  Array& operator=(Array&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(n_, other.n_);
    std::swap(cuda_, other.cuda_);
    return *this;
  }
  ~Array() {
    if (cuda_) free_on_gpu(data_, bytes());
    else free_zeroed(data_, bytes());
  }
  T* data() const { return data_; }
  size_t size() const { return n_; }

  void upload(const T* from, size_t n, size_t at = 0) { copy(data_ + at, from, n); }
  void download(T* to, size_t n, size_t at = 0) const { copy(to, data_ + at, n); }
  // The first n numbers where the host reads them: on a CPU here, of a GPU in `copied`.
  const T* on_host(size_t n, std::vector<T>& copied) const {
    if (!cuda_) return data_;
    copied.resize(n);
    download(copied.data(), n);
    return copied.data();
  }

 private:
  void copy(T* to, const T* from, size_t n) const {
    if (n == 0) return;
    if (cuda_) copy_by_gpu(to, from, n * sizeof(T));
    else memcpy(to, from, n * sizeof(T));
  }
  size_t bytes() const { return larger(n_, size_t(1)) * sizeof(T); }
  T* data_ = nullptr;
  size_t n_ = 0;
  bool cuda_ = false;
};

// ---------------------------------------------------------------------------------------------------------------
// Launch
//
// A Team (machine/threads.h) is what each thread gets: its rank, of `size`; share(n), its part of 0 .. n - 1; wait(), a
// barrier. Team{} is one thread alone; with `cuda` the thread launches on a GPU. tell(op) tells the observer, where
// there is one, that an operation begins; it computes nothing.

// Runs op(group, row) for each row. When it returns to a CPU's thread, all rows are done; a GPU's launches run in the
// order of their calls. There a warp runs a row. That suits thousands of rows of up to some thousand numbers: norms,
// embedding, the optimizer's pieces. Neighbouring lanes read neighbouring numbers, and a row that is read again is in
// L1. Operations of other shapes have kernels in cuda/.
template <class Op>
void launch(const Team& team, int rows, const Op& op) {
  if (rows <= 0) return;
  if (team.cuda) return launch_on_gpu(rows, op);
  tell(op);
  const Range mine = team.share(rows);
  for (int row = mine.begin; row < mine.end; row++) op(Solo{}, row);
  team.wait();
}

// Runs a column operation over whole rows.
template <class Op>
void launch_columns(const Team& team, int rows, int columns, const Op& op) {
  if (idle(op)) return;
  if constexpr (!std::is_same<Op, Nothing>::value) {  // else nvcc would compile a kernel that does nothing
    // Of so few rows a strip has a column for each lane.
    constexpr int few = 64;
    const Strips<Op> strips{op, columns, !team.cuda ? columns : rows > few ? kStrip : kLanes};
    if (team.cuda && rows > 0 && rows <= few) return launch_early(rows * strips.per_row(), strips);
    launch(team, rows * strips.per_row(), strips);
  }
}

// Some rows of a forward, and the team that runs them. What only this block reads may be written to the rows from
// `scratch` on: those of the thread's first block, which stay in its L2.
struct RowBlock {
  Team team;
  int row, rows, scratch;
};

constexpr int kLeastRows = 48;  // of a thread

// Runs f(block) for all rows, block by block. f is some operations that follow each other, of which none looks at
// another row. Each thread takes rows of its own, and is the whole team of their blocks: what one operation writes the
// next finds in L2, and no thread waits for another before the end. On a GPU, and where rows are so few that reading
// the weights takes the time, the team runs all rows together, and no barrier follows: f waits itself, or
// leaves it to what follows, as matmul_qkv() does to attention(). row_bytes: of a row, in f. A block has twice as many
// rows as fit L2 with all of these, 48 at least and 192 at most: an operation and the next one look at half of them.
template <class F>
void by_blocks(const Team& team, int rows, size_t row_bytes, const F& f) {
  if (team.cuda || rows < kLeastRows * team.size) return f(RowBlock{team, 0, rows, 0});
  const Range mine = team.share(rows, 8);
  const int count = mine.end - mine.begin, fits = int(2 * l2_bytes() / row_bytes) / kLeastRows * kLeastRows;
  const int most = larger(kLeastRows, smaller(fits, 4 * kLeastRows)), blocks = (count + most - 1) / most;
  for (int i = 0; i < blocks; i++) {
    const int begin = int(long(count) * i / blocks), end = int(long(count) * (i + 1) / blocks);
    f(RowBlock{Team{}, mine.begin + begin, end - begin, mine.begin});
  }
  team.wait();
}

// Writes the rows' keys and values into the cache, unless the product has (in_cache).
template <class T, class S>
void fill_cache(const Team& team, const Attention<T, S>& s) {
  team.wait();  // matmul_qkv() may have returned early
  if (!s.in_cache) launch(team, s.forest.rows, WriteCache<T, S>{s});
}

// ---------------------------------------------------------------------------------------------------------------
// What may run in place of the portable version: plain() runs the first CUDA kernels (kernels.cuh) if the team asks for
// them, tuned() the tuned versions (tuned.h). Each returns whether it ran the operation. An operation that has such a
// version for its number types says so here: then a call that fits none of them does not compile, where it would run
// the portable version in silence. A program compiled with -DPORTABLE has no tuned versions.

std::false_type has_plain(...);
std::false_type has_tuned(...);
template <class Op, class... Any>
bool plain(const Team&, const Op&, const Any&...) {
  static_assert(!decltype(has_plain(std::declval<Op>()))::value, "plain() of this operation has other arguments");
  return false;
}
template <class Op, class... Any>
bool tuned(const Team&, const Op&, const Any&...) {
  static_assert(!decltype(has_tuned(std::declval<Op>()))::value, "tuned() of this operation has other arguments");
  return false;
}
// Whether the tuned matmul of so many rows computes Matmul::norm itself.
template <class T, class W>
bool normalizes(const Team&, const Matmul<T, W>&, int) {
  return false;
}
// Whether the tuned matmul of qkv writes the keys and values into the cache.
template <class T>
bool product_writes_cache(const Team& team) {
  return kTuned && std::is_same<T, float>::value && team.cuda && !team.plain;
}
#ifdef WITH_CUDA
template <class W>
std::true_type has_plain(const Matmul<float, W>&);
template <class S>
std::true_type has_plain(const Attention<float, S>&);
template <class S>
std::true_type has_plain(const KeepRows<S>&);
template <class W, class After>
bool plain(const Team& team, const Matmul<float, W>& s, int rows, const After& after) {
  if (!team.plain || !s.w.cuda) return false;
  if constexpr (kIsQuantized<W>) return false;
  else matmul_plain(rows, s);
  launch_columns(team, rows, s.w.n, after);
  return true;
}
template <class S>
bool plain(const Team& team, const Attention<float, S>& s) {
  if (!team.plain || !team.cuda || s.log_sum) return false;
  fill_cache(team, s);
  attention_plain(s);
  return true;
}
template <class S>
bool plain(const Team& team, const KeepRows<S>& s, int layers) {
  if (team.plain && team.cuda) gather_plain(s, layers);
  return team.plain && team.cuda;
}
#endif

// Whether operations run as twins.
template <class T>
bool has_twins(const Team& team) {
  return kTuned && std::is_same<T, float>::value && !team.cuda;
}

// ---------------------------------------------------------------------------------------------------------------
// Matmul

// How weights are stored. as_stored: as the file has each matrix.
enum class Dtype { as_stored, fp32, bf16, f16, q8_0, q4_0, q4_1, q5_0, q3_k, q4_k, q5_k, q6_k, q_any };
inline bool is_quantized(Dtype dtype) { return dtype >= Dtype::q8_0; }
// The number type of panels that know theirs at run time alone, since a file or a user says it. A product asks once,
// by visit(). Their memory counts bytes.
struct AnyNumber {
  uint8_t byte;
};
template <>
struct Panels<AnyNumber> {
  AnyNumber* data = nullptr;
  int k = 0, n = 0;
  bool cuda = false, far = false;
  Dtype dtype = Dtype::fp32;
  void* scratch = nullptr;  // on a GPU: for rows of activations in 8 bits

  // f(panels), with their own type.
  template <class F>
  auto visit(F&& f) const {
    if (dtype == Dtype::bf16) return f(as<bf16>());
    if (dtype == Dtype::f16) return f(as<f16>());
    if (dtype == Dtype::q8_0) return f(as<Q8_0>());
    if (dtype == Dtype::q4_0) return f(as<Q4_0>());
    if (dtype == Dtype::q4_1) return f(as<Q4_1>());
    if (dtype == Dtype::q5_0) return f(as<Q5_0>());
    if (dtype == Dtype::q3_k) return f(as<Q3_K>());
    if (dtype == Dtype::q4_k) return f(as<Q4_K>());
    if (dtype == Dtype::q5_k) return f(as<Q5_K>());
    if (dtype == Dtype::q6_k) return f(as<Q6_K>());
    if (dtype == Dtype::q_any) return f(as<QAny>());
    return f(as<float>());
  }
  size_t size() const {  // whole lines: what follows may be of another type
    return visit([](const auto& panels) { return (panels.size() * sizeof *panels.data + 63) / 64 * 64; });
  }
  size_t scratch_bytes() const {
    const int blocks = (k + kBlockNumbers - 1) / kBlockNumbers;
    return cuda && is_quantized(dtype) ? IntegerRows::bytes(kScratchRows, blocks) : 0;
  }

 private:
  template <class W>
  Panels<W> as() const {
    Panels<W> its{reinterpret_cast<W*>(data), k, n, cuda, far};
    if constexpr (kIsQuantized<W>) its.scratch = scratch;
    return its;
  }
};

// The same product, the type of its weight known.
template <class T, class W>
Matmul<T, W> with_panels(const Matmul<T, AnyNumber>& s, const Panels<W>& w) {
  return {s.x, s.x_row, w, s.out, s.out_row, s.norm};
}

// A matmul as an operation: its rows are blocks of columns, which the threads share.
template <class Product>
struct ColumnBlocks {
  Product product;
  int rows;
  static constexpr int width = kLanes;
  HD int count() const { return (pad16(product.w.n) + width - 1) / width; }
  template <class G>
  HD void operator()(const G& g, int block) const {
    product(g, rows, block * width, smaller(pad16(product.w.n), (block + 1) * width));
  }
};

template <class T, class W>
void matmul_portable(const Team& team, int rows, const Matmul<T, W>& s) {
  const ColumnBlocks<Matmul<T, W>> blocks{s, rows};
  launch(team, blocks.count(), blocks);
}

// Runs the matmul, then `after` on each row's columns. It may return before the other threads are done: call
// team.wait() before you read their columns.
template <class T, class W, class After = Nothing>
void matmul(const Team& team, int rows, Matmul<T, W> s, const After& after = {}) {
  if (!s.x && !normalizes(team, s, rows)) {
    if (!tuned(team, s.norm, rows)) launch(team, rows, s.norm);
    s.x = s.norm.y;
  }
  tell(s);
  if (plain(team, s, rows, after) || tuned(team, s, rows, after)) return;
  matmul_portable(team, rows, s);
  launch_columns(team, rows, s.w.n, after);
}
template <class T, class After = Nothing>
void matmul(const Team& team, int rows, const Matmul<T, AnyNumber>& s, const After& after = {}) {
  s.w.visit([&](const auto& w) { matmul(team, rows, with_panels(s, w), after); });
}
// ---------------------------------------------------------------------------------------------------------------
// Tree attention

// How many numbers of scratch attention() needs for batches of up to `rows` rows. The portable version stores its
// weights there; so does the twin when it decodes.
template <class T>
size_t attention_scratch_size(int rows, int n_head, int head_size, int slots, bool training, bool cuda) {
  if constexpr (kTuned && std::is_same<T, float>::value) {
    if (training) return 0;
    if (!cuda) return size_t(smaller(rows, kRowsByKeys)) * n_head * (slots + kLanes);
    return attention_scratch(rows, n_head, head_size, slots);
  }
  return size_t(rows) * n_head * slots;
}

// When it returns to a CPU's thread, all rows are done. scratch: attention_scratch_size() numbers, zero at first; for
// the portable version weights (R, H, most_keys). No row sees more than most_keys keys.
template <class T, class S>
void attention(const Team& team, const Attention<T, S>& s, T* scratch, int most_keys) {
  tell(s);
  if (plain(team, s) || tuned(team, s, scratch)) return;
  fill_cache(team, s);
  launch(team, s.forest.rows * s.n_head, AttentionForward<T, S>{s, scratch, most_keys});
}

// The matmul of the queries, keys and values that attention reads. Where heads.in_cache it writes keys and values into
// the cache too. It may return before the other threads are done: attention() may follow it at once; before anything
// else, wait.
template <class T, class W, class S>
void matmul_qkv(const Team& team, int rows, const Matmul<T, W>& s, const T* bias, const Attention<T, S>& heads) {
  const AddBias<T> add{s.out, s.out_row, bias};
  if (tuned(team, s, rows, add, heads)) return;
  matmul(team, rows, s, add);
  team.wait();
}
template <class T, class S>
void matmul_qkv(const Team& team, int rows, const Matmul<T, AnyNumber>& s, const T* bias,
                const Attention<T, S>& heads) {
  s.w.visit([&](const auto& w) { matmul_qkv(team, rows, with_panels(s, w), bias, heads); });
}

// ---------------------------------------------------------------------------------------------------------------
// Unpacking, dropout, keeping, sums

// x (R, C) = the columns of w, (C, V) in panels, that belong to the tokens.
template <class T, class W>
struct Unpack {
  const int* token;
  Panels<W> w;
  T* x;
  int x_row;
  template <class G>
  HD void operator()(const G& g, int row) const {
    g.map(x + size_t(row) * x_row, w.k, [&](int c) { return T(w.weight(c, token[row])); });
  }
};
template <class T, class W>
void unpack(const Team& team, int rows, const Unpack<T, W>& s) {
  if constexpr (std::is_same<W, AnyNumber>::value)
    s.w.visit([&](const auto& w) {
      using Its = std::remove_pointer_t<decltype(w.data)>;
      launch(team, rows, Unpack<T, Its>{s.token, w, s.x, s.x_row});
    });
  else launch(team, rows, s);
}

template <class T>
void drop(const Team& team, int rows, const Drop<T>& s) {
  if (!idle(s) && !tuned(team, s, rows)) launch_columns(team, rows, s.channels, s);
}

// Keeps rows of the last forward, in `layers` layers. On a GPU it returns before they are moved.
template <class S>
void keep_rows(const Team& team, const KeepRows<S>& s, int layers) {
  if (!plain(team, s, layers) && !tuned(team, s, layers)) launch(team, layers * s.n_kv_head, s);
}

// to += from, or to = from. A row of this operation is a block.
template <class T>
struct Add {
  const T* from;
  T* to;
  size_t n;
  bool copy;
  static constexpr int block = 4096;
  template <class G>
  HD void operator()(const G& g, int row) const {
    const size_t at = size_t(row) * block;
    const T* added = from + at;
    T* sum = to + at;
    const int count = int(smaller(n - at, size_t(block)));
    if (copy) g.map(sum, count, [=](int i) { return added[i]; });
    else g.map(sum, count, [=](int i) { return sum[i] + added[i]; });
  }
};
template <class T>
void add(const Team& team, const T* from, T* to, size_t n, bool copy = false) {
  launch(team, int((n + Add<T>::block - 1) / Add<T>::block), Add<T>{from, to, n, copy});
}

}  // namespace nanospec

#ifndef PORTABLE
#include "machine/tuned.h"
#endif
