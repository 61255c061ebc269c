// tests/cuda/ptx/cublas.cpp: a library in place of cuBLAS, which cuda/blas.cuh loads: the one product that it asks for.
#include <cstddef>

extern "C" {

int cublasCreate_v2(void** handle) {
  static char one;
  *handle = &one;
  return 0;
}
int cublasSetMathMode(void*, int mode) { return mode == 2 ? 0 : 7; }  // pedantic, or an invalid value
int cublasSetStream_v2(void*, void*) { return 0; }
int cublasSetWorkspace_v2(void*, void*, size_t) { return 0; }
const char* cublasGetStatusString(int) { return "a status of the library in place of cuBLAS"; }

// C (m, n) = alpha op(A) (m, k) op(B) (k, n) + beta C, all by columns, summed in double.
int cublasSgemm_v2(void*, int op_a, int op_b, int m, int n, int k, const float* alpha, const float* a, int lda,
                   const float* b, int ldb, const float* beta, float* c, int ldc) {
  const auto at = [](int op, int i, int j, int ld) {
    return op ? j + size_t(i) * size_t(ld) : i + size_t(j) * size_t(ld);
  };
  for (int j = 0; j < n; j++)
    for (int i = 0; i < m; i++) {
      double sum = 0;
      for (int l = 0; l < k; l++) sum += double(a[at(op_a, i, l, lda)]) * b[at(op_b, l, j, ldb)];
      float& out = c[i + size_t(j) * size_t(ldc)];
      out = *beta == 0 ? float(*alpha * sum) : float(*alpha * sum + double(*beta) * out);
    }
  return 0;
}

}  // extern "C"
