// tests/cuda/cuda_integers.cu: the matmul of cuda/matmul_integers.cuh: the CPU's bits, with weights of 8 to 4 bits,
// for any number of rows.
#include "tests/cuda/cuda_test.h"  // first: it brings the emulator

#include "cuda/instructions.cuh"
#include "machine/packing.h"
#include "tests/random.h"
#include "tests/tenth.h"
#include "train.h"

namespace nanospec {

namespace {

constexpr Dtype kTypes[] = {Dtype::q8_0, Dtype::q4_0, Dtype::q4_1, Dtype::q5_0, Dtype::q3_k,
                            Dtype::q4_k, Dtype::q5_k, Dtype::q6_k, Dtype::q_any};

// The least and the largest code, less their zero.
std::pair<int, int> codes_of(const Panels<AnyNumber>& panels) {
  return panels.visit([](const auto& its) -> std::pair<int, int> {
    using Q = std::remove_pointer_t<decltype(its.data)>;
    if constexpr (kIsQuantized<Q>) return {-Q::kZero, (1 << Q::kBits) - 1 - Q::kZero};
    else return {0, 0};
  });
}

// x (R, x_row) with NaN beside its K columns, and the same random blocks of weights in the memory of both machines.
struct IntegerProblem {
  int rows, x_row, out_row;
  std::vector<float> x;
  Array<float> x_on;
  Panels<AnyNumber> host, device;
  Array<AnyNumber> host_memory, device_memory;

  IntegerProblem(Dtype dtype, int its_rows, int k, int n, int spare = 0)
      : rows(its_rows), x_row(pad16(k) + spare), out_row(pad16(n) + spare), x(size_t(rows) * x_row) {
    Chance chance(3);
    chance.fill(x.data(), x.size(), 2);
    for (int row = 0; row < rows; row++) {
      if (row == 1) std::fill_n(&x[size_t(row) * x_row], k / 2, 0.0f);  // whole blocks of zeros
      for (int i = k; i < x_row; i++) x[size_t(row) * x_row + i] = Format<float>::kNaN;
    }
    x_on = on_device(x);
    host.k = k, host.n = n, host.dtype = dtype;
    device = host;
    host_memory = place_panels<AnyNumber>({&host});
    device_memory = place_panels<AnyNumber>({&device}, true);
    set_random(host, host_memory), set_random(device, device_memory);
  }
  static void set_random(const Panels<AnyNumber>& panels, Array<AnyNumber>& memory) {
    Chance chance(4);
    set_blocks(panels, memory, [&](const auto& set) {
      for (int output = 0; output < panels.n; output++)
        for (int k = 0, b = 0; k < panels.k; k += kBlockNumbers, b++) {
          IntegerBlock block{};
          for (float& scale : block.scale) scale = 0.001f + 1e-5f * float(chance.below(1000));
          block.min = -0.01f * float(chance.below(10));
          const auto [least, most] = codes_of(panels);
          for (int8_t& code : block.codes) code = int8_t(least + chance.below(most - least + 1));
          set(output, b, block);
        }
    });
  }

  // The first `count` rows of out and of two more arrays. make(out, other, third): the column operation that follows.
  template <class Make>
  std::vector<float> run(bool cuda, int count, const Make& make) const {
    std::vector<float> start(size_t(count + 1) * out_row);
    Chance(5).fill(start.data(), start.size());
    Array<float> arrays[3];
    for (Array<float>& array : arrays) {
      array = Array<float>(start.size(), cuda);
      array.upload(start.data(), start.size());
    }
    const Matmul<float, AnyNumber> product{cuda ? x_on.data() : x.data(), x_row, cuda ? device : host, arrays[0].data(),
                                           out_row};
    matmul(Team{0, 1, nullptr, cuda}, count, product, make(arrays[0].data(), arrays[1].data(), arrays[2].data()));
    std::vector<float> all;
    for (const Array<float>& array : arrays)
      for (float number : to_host(array)) all.push_back(number);
    return all;
  }
  std::vector<float> run(bool cuda, int count) const {
    return run(cuda, count, [](float*, float*, float*) { return Nothing{}; });
  }
};

__global__ void dp4a_once(const uint32_t* codes, const uint32_t* x, int32_t* sum) {
  const int lane = int(threadIdx.x);
  sum[lane] = dp4a(codes[lane], x[lane], sum[lane]);
}

}  // namespace

TEST_CASE(ON "dp4a: four products of a byte without a sign and one with") {
  Chance chance(1);
  std::vector<uint32_t> codes(kLanes), x(kLanes);
  std::vector<int32_t> start(kLanes), expected;
  for (int lane = 0; lane < kLanes; lane++) {
    int8_t signs[4];
    uint8_t bytes[4];
    start[lane] = chance.below(2000) - 1000;
    for (int i = 0; i < 4; i++) {
      bytes[i] = uint8_t(lane == 0 ? 255 : chance.below(256));
      signs[i] = int8_t(lane == 0 ? -128 : chance.below(256) - 128);
    }
    memcpy(&codes[lane], bytes, 4), memcpy(&x[lane], signs, 4);
    expected.push_back(start[lane]);
    for (int i = 0; i < 4; i++) expected.back() += bytes[i] * signs[i];
  }
  const Array<uint32_t> codes_on = on_device(codes), x_on = on_device(x);
  const Array<int32_t> sum_on = on_device(start);
  nanospec::start(dp4a_once, 1, kLanes, codes_on.data(), x_on.data(), sum_on.data());
  CHECK(to_host(sum_on) == expected);
}

TEST_CASE(ON "integer matmul: the CPU's bits, for 1 to 17 rows") {
  struct Size {
    int k, n, spare;
  };
  size_t tried = 0;
  for (const Size& size : {Size{32, 16, 0}, {100, 65, 16}, {24, 20, 0}, {600, 129, 0}})
    for (Dtype dtype : kTypes) {
      CAPTURE(size.k);
      CAPTURE(int(dtype));
      if (dtype > Dtype::q4_1 && size.k < 100) continue;
      const IntegerProblem p(dtype, 17, size.k, size.n, size.spare);
      int wrong = 0;
      for (int rows = 1; rows <= 17; rows++) {
        if (size.k > 100 && rows % 16 > 1 && !runs(tried++, 14)) continue;
        const bool in_all_orders = rows == 3 || rows == 17;
        const auto run = [&] { return p.run(true, rows); };
        wrong += !same_bits(in_all_orders ? in_every_order(run) : run(), p.run(false, rows));
      }
      CHECK(wrong == 0);
    }
}

// Longer than what a block of threads loads ahead: 1,024 k of 8 bits, 2,048 of 4.
TEST_CASE(ON "integer matmul: the CPU's bits where blocks of k are many") {
  size_t tried = 0;
  for (Dtype dtype : kTypes)
    for (int k : {1024, 1500, 2080, 4128 + 7}) {
      if (dtype > Dtype::q4_1 && !runs(tried++, 4)) continue;
      CAPTURE(k);
      CAPTURE(int(dtype));
      const IntegerProblem p(dtype, 2, k, 33);
      CHECK(same_bits(in_every_order([&] { return p.run(true, 2); }), p.run(false, 2)));
    }
}

TEST_CASE(ON "integer matmul: more rows than the scratch holds") {
  for (Dtype dtype : kTypes) {
    const IntegerProblem p(dtype, kScratchRows + 20, 40, 16);
    CHECK(same_bits(p.run(true, p.rows), p.run(false, p.rows)));
  }
}

TEST_CASE(ON "integer matmul: an epilogue in the kernel gives the CPU's bits") {
  using F = float;
  const auto check = [](const IntegerProblem& p, auto make) {
    CHECK(same_bits(in_every_order([&] { return p.run(true, p.rows, make); }), p.run(false, p.rows, make)));
  };
  for (Dtype dtype : kTypes) {
    CAPTURE(int(dtype));
    const IntegerProblem p(dtype, 9, 70, 67, 16);
    const int row = p.out_row;
    check(p, [=](F* out, F* other, F*) { return AddBias<F>{out, row, other}; });
    check(p, [=](F* out, F* act, F* bias) { return BiasGelu<F>{out, act, row, bias}; });
    check(p, [=](F* out, F* residual, F* bias) { return JoinResidual<F>{residual, out, row, bias}; });
  }
}

}  // namespace nanospec
