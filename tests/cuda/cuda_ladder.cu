// tests/cuda/cuda_ladder.cu: the steps from a simple matmul to the tuned one (study/ladder.cuh) compute what it does.
#include "tests/cuda/cuda_test.h"  // first: it brings the emulator

#include "study/ladder.cuh"
#include "tests/random.h"

namespace nanospec {

TEST_CASE(ON "every rung of the ladder is a matmul, and the third has the bits of the tuned kernel") {
  Chance chance(11);
  for (int K : {16, 100, 768, 1030})
    for (int N : {16, 35, 96}) {
      CAPTURE(K);
      CAPTURE(N);
      std::vector<float> x(size_t(pad16(K))), stored(size_t(K) * N);
      chance.fill(x.data(), x.size());
      chance.fill(stored.data(), stored.size());
      Panels<float> w{nullptr, K, N, true};
      std::vector<float> packed(w.size(), 0.0f);
      w.data = packed.data();
      for (int k = 0; k < K; k++)
        for (int n = 0; n < N; n++) *w.at(k, n) = stored[size_t(k) * N + n];
      const auto on_gpu = on_device(packed), row = on_device(x);
      w.data = on_gpu.data();
      const auto result = [&](int rung) {
        return in_every_order([&] {
          Array<float> out(size_t(pad16(N)), true);
          if (rung > kRungs) matmul(kGpu, 1, Matmul<float, float>{row.data(), pad16(K), w, out.data(), pad16(N)});
          else run_rung(rung, {row.data(), w, out.data()});
          return to_host(out);
        });
      };
      const std::vector<float> tuned = result(kRungs + 1);
      for (int rung = 1; rung <= kRungs; rung++) {
        CAPTURE(rung);
        const std::vector<float> got = result(rung);
        for (int n = 0; n < N; n++) {
          double sum = 0, size = 0;
          for (int k = 0; k < K; k++) {
            const double term = double(x[size_t(k)]) * stored[size_t(k) * N + n];
            sum += term, size += std::abs(term);
          }
          CHECK(std::abs(got[size_t(n)] - sum) <= 1e-6 * size);
          if (rung == kRungs) CHECK(got[size_t(n)] == tuned[size_t(n)]);
        }
      }
    }
}

}  // namespace nanospec
