// cuda/blas.cuh: the matrix products of training on a GPU: cuBLAS, the one library that does arithmetic for nanospec.
//
// Decoding does not use it: a row must have the same bits whatever the number of rows, which cuBLAS does not promise.
// The library is loaded when training first needs it, so programs start, decode, and train on the CPU without it. Its
// functions are declared here, so that nvcc alone builds everything. Sums are in fp32, without TF32, whatever the
// environment asks for: one small product, when the library is loaded, shows it. A product of one shape always has the
// same bits: for that, cuBLAS needs one stream, and a workspace of its own.
//
// cuBLAS stores matrices by columns; here all are stored by rows. The mapping is tested without a GPU: the emulator's
// version of cublasSgemm is written from its manual, and checks its rules.
#pragma once

#ifdef __CUDACC__
#include <dlfcn.h>

#include <cstdlib>
#endif

#include "machine/launch.h"

namespace nanospec {

enum BlasOperation { kNotTransposed = 0, kTransposed = 1 };  // cublasOperation_t

#ifdef __CUDACC__

// The library, and its handle on our stream. get() loads it once, and it stays until the program ends.
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
  Handle handle() const { return handle_.get(); }
  int (*sgemm)(Handle, int, int, int, int, int, const float*, const float*, int, const float*, int, const float*,
               float*, int) = nullptr;

  // Loads it. Throws std::runtime_error where it is missing, or is not what it should be. Public for the tests.
  Blas() {
    constexpr int ours = CUDART_VERSION / 1000;
    const std::string name = "libcublas.so." + std::to_string(ours);
    setenv("NVIDIA_TF32_OVERRIDE", "0", 1);  // before the library is there, which may read it as it is loaded
    for (const std::string& place : {name, "/usr/local/cuda/lib64/" + name, std::string("libcublas.so"),
                                     std::string("libcublas.so.13"), std::string("libcublas.so.12")})
      if (!library_) library_ = dlopen(place.c_str(), RTLD_NOW);
    if (!library_)
      throw std::runtime_error("cuBLAS is not installed: " + name +
                               ": install it beside the CUDA toolkit, or set LD_LIBRARY_PATH to where it lies, or use "
                               "--device cpu");
    int major = 0;
    find<int (*)(int, int*)>("cublasGetProperty")(0, &major);
    if (major != ours)
      fprintf(stderr, "cuBLAS is of CUDA %d, this program of CUDA %d: %s in LD_LIBRARY_PATH would be its own\n", major,
              ours, name.c_str());
    const auto destroy = find<int (*)(Handle)>("cublasDestroy_v2");
    name_ = find<const char* (*)(int)>("cublasGetStatusString");
    sgemm = find<decltype(sgemm)>("cublasSgemm_v2");

    constexpr size_t bytes = size_t(32) << 20;  // what the manual advises for the largest devices
    workspace_ = Array<char>(bytes + 256, true);
    Handle made = nullptr;
    check(find<int (*)(Handle*)>("cublasCreate_v2")(&made), __FILE__, __LINE__);
    handle_ = {made, destroy};
    constexpr int pedantic = 2;  // CUBLAS_PEDANTIC_MATH: the numbers' own precision in every step
    check(find<int (*)(Handle, int)>("cublasSetMathMode")(made, pedantic), __FILE__, __LINE__);
    check(find<int (*)(Handle, cudaStream_t)>("cublasSetStream_v2")(made, stream()), __FILE__, __LINE__);
    const auto set_workspace = find<int (*)(Handle, void*, size_t)>("cublasSetWorkspace_v2");
    check(set_workspace(made, workspace_.data(), bytes), __FILE__, __LINE__);  // after the stream, which resets it
    try_product(reinterpret_cast<float*>(workspace_.data() + bytes), major);
  }

 private:
  // (1 + 2^-12) * 3 - 2. TF32 and bf16 would round the first number to 1, and in fp32 nothing is rounded.
  void try_product(float* memory, int major) const {
    const float numbers[] = {1.000244140625f, 2, 3, -1}, one = 1, zero = 0, expected = 1.000732421875f;
    float result = 0;
    CUDA_CHECK(cudaMemcpy(memory, numbers, sizeof numbers, cudaMemcpyHostToDevice));
    check(sgemm(handle(), 0, 0, 1, 1, 2, &one, memory, 1, memory + 2, 2, &zero, memory + 4, 1), __FILE__, __LINE__);
    CUDA_CHECK(cudaStreamSynchronize(stream()));
    CUDA_CHECK(cudaMemcpy(&result, memory + 4, sizeof result, cudaMemcpyDeviceToHost));
    if (result != expected)
      throw std::runtime_error("cuBLAS of CUDA " + std::to_string(major) + " computes " + std::to_string(result) +
                               " where fp32 has " + std::to_string(expected) +
                               ": it rounds factors (TF32), or is of a version that this program does not know: "
                               "install the one of CUDA " +
                               std::to_string(CUDART_VERSION / 1000) + ", or use --device cpu");
  }
  template <class F>
  F find(const char* function) const {
    if (void* found = dlsym(library_, function)) return reinterpret_cast<F>(found);
    throw std::runtime_error(std::string("cuBLAS has no ") + function + ": " + dlerror() +
                             ": install the one of this CUDA toolkit, or use --device cpu");
  }
  void* library_ = nullptr;
  const char* (*name_)(int) = nullptr;
  Array<char> workspace_;
  std::unique_ptr<cublasContext, int (*)(Handle)> handle_{nullptr, nullptr};  // which goes first
};

inline void sgemm(int op_a, int op_b, int m, int n, int k, float alpha, const float* a, int lda, const float* b,
                  int ldb, float beta, float* c, int ldc) {
  const Blas& blas = Blas::get();
  blas.check(blas.sgemm(blas.handle(), op_a, op_b, m, n, k, &alpha, a, lda, b, ldb, &beta, c, ldc), __FILE__, __LINE__);
}

#else

// C (m, n) = alpha op(A) (m, k) op(B) (k, n) + beta C. Element (i, j) of a matrix is at i + j ld. Where beta is 0, C is
// not read. Throws where cublasSgemm returns an error.
inline void sgemm(int op_a, int op_b, int m, int n, int k, float alpha, const float* a, int lda, const float* b,
                  int ldb, float beta, float* c, int ldc) {
  const auto least = [](int op, int rows, int columns) { return larger(1, op == kNotTransposed ? rows : columns); };
  if (m < 0 || n < 0 || k < 0 || lda < least(op_a, m, k) || ldb < least(op_b, k, n) || ldc < larger(1, m))
    throw std::runtime_error("cuBLAS: an invalid argument");
  emulator::submit([=] {
    const auto at = [](int op, int i, int j, int ld) {
      return op == kNotTransposed ? i + size_t(j) * ld : j + size_t(i) * ld;
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

// A matrix, stored by rows or by columns: element (i, j) = data[i * row + j * column]. One of the two strides is 1.
struct Factor {
  const float* data;
  size_t row, column;
  BlasOperation operation() const { return column == 1 ? kNotTransposed : kTransposed; }
  int stride() const { return int(column == 1 ? row : column); }
};

// out (rows, columns) = or += a (rows, inner) b (inner, columns); out_row: numbers from one row of out to the next. A
// row of out is a column for cuBLAS. So it computes out^T = b^T a^T, and a matrix stored by rows is the transpose that
// it needs.
inline void gemm(int rows, int columns, int inner, const Factor& a, const Factor& b, float* out, int out_row,
                 bool add) {
  sgemm(b.operation(), a.operation(), columns, rows, inner, 1.0f, b.data, b.stride(), a.data, a.stride(),
        add ? 1.0f : 0.0f, out, out_row);
}

}  // namespace nanospec
