// tests/cuda/ptx/cublas.cpp: a library in place of cuBLAS, which cuda/blas.cuh loads: the one product that it asks for.
// NANOSPEC_PTX_CUBLAS says what is wrong with it: "version"; "tf32": it rounds factors; "one": it computes one product,
// and leaves the others out.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {
bool is(const char* what) {
  const char* wrong = getenv("NANOSPEC_PTX_CUBLAS");
  return wrong && strcmp(wrong, what) == 0;
}
float factor(float x, bool rounds) {  // TF32 has 10 bits behind the point, of fp32's 23
  if (!rounds) return x;
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits &= ~uint32_t(0x1fff);
  memcpy(&x, &bits, sizeof bits);
  return x;
}
long handles = 0, products = 0;
}  // namespace

extern "C" {

int cublasCreate_v2(void** handle) {
  *handle = &handles;
  handles++;
  return 0;
}
int cublasDestroy_v2(void*) { return handles-- > 0 ? 0 : 1; }
int cublasGetProperty(int which, int* value) {  // 0: the first number of its version
  *value = is("version") ? 12 : 13;
  return which == 0 ? 0 : 7;
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
  if (products++ > 0 && is("one")) return 0;
  const bool rounds = is("tf32");
  for (int j = 0; j < n; j++)
    for (int i = 0; i < m; i++) {
      double sum = 0;
      for (int l = 0; l < k; l++)
        sum += double(factor(a[at(op_a, i, l, lda)], rounds)) * factor(b[at(op_b, l, j, ldb)], rounds);
      float& out = c[i + size_t(j) * size_t(ldc)];
      out = *beta == 0 ? float(*alpha * sum) : float(*alpha * sum + double(*beta) * out);
    }
  return 0;
}

}  // extern "C"
