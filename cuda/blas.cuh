// cuda/blas.cuh: the matrix products of training on a GPU: cuBLAS, the one library that does arithmetic for nanospec.
//
// Decoding never comes here: its rows keep their bits whatever their number, which cuBLAS does not promise. The library
// is looked for when training first needs it, so that programs start, and decode, and train on the CPU, without it; and
// its five functions are declared here, so that nvcc alone builds everything. Sums are in fp32, no TF32. A product of
// one shape has the same bits each time: one stream, and a workspace of its own, as cuBLAS asks for that.
//
// cuBLAS thinks of matrices as columns; here all are rows. The mapping between the two is proven without a GPU: the
// emulator's twin of cublasSgemm is written from its manual, and keeps its rules.
#pragma once

#ifdef __CUDACC__
#include <dlfcn.h>
#endif

#include "cuda/machine.cuh"

namespace nanospec {

enum BlasOperation { kAsItLies = 0, kTransposed = 1 };  // cublasOperation_t

#ifdef __CUDACC__

// The library, and its handle on our stream; made once, kept as long as the program runs.
class Blas {
 public:
  using Handle = struct cublasContext*;

  static const Blas& get() {
    static const Blas one;
    return one;
  }
  void check(int status, const char* file, int line) const {
    if (status == 0) return;
    throw std::runtime_error(std::string("cuBLAS: ") + name_(status) + " (" + std::to_string(status) + "): " + file +
                             ":" + std::to_string(line) + ": check nvidia-smi, or use --device cpu");
  }
  Handle handle = nullptr;
  int (*sgemm)(Handle, int, int, int, int, int, const float*, const float*, int, const float*, int, const float*,
               float*, int) = nullptr;

 private:
  Blas() {
    const std::string name = "libcublas.so." + std::to_string(CUDART_VERSION / 1000);
    for (const std::string& place : {name, "/usr/local/cuda/lib64/" + name, std::string("libcublas.so")})
      if (!library_) library_ = dlopen(place.c_str(), RTLD_NOW);
    if (!library_)
      throw std::runtime_error("cuBLAS is not installed: " + name +
                               ": install it beside the CUDA toolkit, or set LD_LIBRARY_PATH to where it lies, or use "
                               "--device cpu");
    const auto create = find<int (*)(Handle*)>("cublasCreate_v2");
    const auto set_stream = find<int (*)(Handle, cudaStream_t)>("cublasSetStream_v2");
    const auto set_workspace = find<int (*)(Handle, void*, size_t)>("cublasSetWorkspace_v2");
    name_ = find<const char* (*)(int)>("cublasGetStatusString");
    sgemm = find<decltype(sgemm)>("cublasSgemm_v2");

    constexpr size_t bytes = size_t(32) << 20;  // what the manual advises for the largest devices
    void* workspace = nullptr;
    CUDA_CHECK(cudaMalloc(&workspace, bytes));
    device_bytes.add(bytes);
    check(create(&handle), __FILE__, __LINE__);
    check(set_stream(handle, stream()), __FILE__, __LINE__);
    check(set_workspace(handle, workspace, bytes), __FILE__, __LINE__);  // after the stream, which resets it
  }
  template <class F>
  F find(const char* function) const {
    if (void* found = dlsym(library_, function)) return reinterpret_cast<F>(found);
    throw std::runtime_error(std::string("cuBLAS has no ") + function + ": " + dlerror() +
                             ": install the one of this CUDA toolkit, or use --device cpu");
  }
  void* library_ = nullptr;
  const char* (*name_)(int) = nullptr;
};

inline void sgemm(int op_a, int op_b, int m, int n, int k, float alpha, const float* a, int lda, const float* b,
                  int ldb, float beta, float* c, int ldc) {
  const Blas& blas = Blas::get();
  blas.check(blas.sgemm(blas.handle, op_a, op_b, m, n, k, &alpha, a, lda, b, ldb, &beta, c, ldc), __FILE__, __LINE__);
}

#else

// C (m, n) = alpha op(A) (m, k) op(B) (k, n) + beta C; element (i, j) of a matrix lies at i + j ld; a C that is
// multiplied by 0 is not read. Refuses what cublasSgemm refuses.
inline void sgemm(int op_a, int op_b, int m, int n, int k, float alpha, const float* a, int lda, const float* b,
                  int ldb, float beta, float* c, int ldc) {
  const auto least = [](int op, int rows, int columns) { return larger(1, op == kAsItLies ? rows : columns); };
  if (m < 0 || n < 0 || k < 0 || lda < least(op_a, m, k) || ldb < least(op_b, k, n) || ldc < larger(1, m))
    throw std::runtime_error("cuBLAS: an argument that it refuses");
  emulator::submit([=] {
    const auto at = [](int op, int i, int j, int ld) {
      return op == kAsItLies ? i + size_t(j) * ld : j + size_t(i) * ld;
    };
    for (int j = 0; j < n; j++)
      for (int i = 0; i < m; i++) {
        float sum = 0;
        for (int l = 0; l < k; l++) sum = fused(a[at(op_a, i, l, lda)], b[at(op_b, l, j, ldb)], sum);
        float& out = c[i + size_t(j) * ldc];
        out = beta == 0 ? alpha * sum : alpha * sum + beta * out;
      }
  });
}

#endif

// A matrix, or the transpose of one, as it lies: element (i, j) = data[i * row + j * column], one of the two being 1.
struct Factor {
  const float* data;
  size_t row, column;
  BlasOperation operation() const { return column == 1 ? kAsItLies : kTransposed; }
  int stride() const { return int(column == 1 ? row : column); }
};

// out (rows, columns) = or += a (rows, inner) b (inner, columns); out_row numbers from one row of out to the next. What
// we call a row of out, cuBLAS calls a column: it is asked for out^T = b^T a^T, and our a, as it lies, is its a^T.
inline void gemm(int rows, int columns, int inner, const Factor& a, const Factor& b, float* out, int out_row,
                 bool add) {
  sgemm(b.operation(), a.operation(), columns, rows, inner, 1.0f, b.data, b.stride(), a.data, a.stride(),
        add ? 1.0f : 0.0f, out, out_row);
}

}  // namespace nanospec
