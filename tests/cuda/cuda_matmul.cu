// tests/cuda/cuda_matmul.cu: the matmuls of cuda/matmul.cuh and cuda/matmul_mma.cuh: one order over k,
// whatever the number of rows.
#include "tests/cuda/cuda_test.h"  // first: it brings the emulator

#include <set>

#include "tests/random.h"
#include "tests/tenth.h"
#include "train.h"

namespace nanospec {

namespace {

// A matmul's numbers: x (R, x_row) with NaN beside its K columns, and weights (K, N) that Pack puts into device order.
template <class W>
struct Problem {
  int rows, k, n, x_row, out_row;
  std::vector<float> x, weight;
  Array<float> x_on, weight_on;
  Array<W> panels_on;
  Panels<W> panels;

  Problem(int rows_, int k_, int n_, int spare, uint64_t seed)
      : rows(rows_), k(k_), n(n_), x_row(pad16(k) + spare), out_row(pad16(n) + spare) {
    Chance chance(seed);
    x.resize(size_t(rows) * x_row), weight.resize(size_t(k) * n);
    chance.fill(x.data(), x.size()), chance.fill(weight.data(), weight.size());
    for (float& w : weight) w = to_float(rounded<W>(w));
    for (int row = 0; row < rows; row++)
      for (int i = k; i < x_row; i++) x[size_t(row) * x_row + i] = Format<float>::kNaN;
    pack();
  }
  void pack() {
    x_on = on_device(x), weight_on = on_device(weight);
    panels = Panels<W>{nullptr, k, n, true};
    panels_on = Array<W>(panels.size(), true);
    panels.data = panels_on.data();
    const Pack<float, W> packed{weight_on.data(), size_t(n), 1, panels};
    launch(kGpu, packed.rows(), packed);
  }
  Matmul<float, W> matmul_into(float* out) const { return {x_on.data(), x_row, panels, out, out_row}; }

  // out's first `count` rows, written over a value that must stay beside the columns and below the rows.
  std::vector<float> run(int count, const Team& team = kGpu) const {
    std::vector<float> out(size_t(count + 1) * out_row, 7.5f);
    Array<float> out_on = on_device(out);
    matmul(team, count, matmul_into(out_on.data()));
    out = to_host(out_on);
    int touched = 0;
    for (int row = 0; row <= count; row++)
      for (int i = row < count ? pad16(n) : 0; i < out_row; i++) touched += out[size_t(row) * out_row + i] != 7.5f;
    CHECK(touched == 0);
    return out;
  }
  std::vector<float> portable(int count) const {
    Array<float> out_on(size_t(count) * out_row, true);
    matmul_portable(kGpu, count, matmul_into(out_on.data()));
    return to_host(out_on);
  }
  // The formula for fp32: 64 slices, each a multiple of 4 long.
  float formula(int row, int column) const {
    const int length = (k + 255) / 256 * 4;
    float total = 0;
    for (int slice = 0; slice < 64; slice++) {
      float sum = 0;
      for (int i = slice * length; i < std::min(k, (slice + 1) * length); i++)
        sum = fused(x[size_t(row) * x_row + i], weight[size_t(i) * n + column], sum);
      total += sum;
    }
    return total;
  }
  // Sum of |x w|: what rounding errors are measured in.
  double size(int row, int column) const {
    double sum = 0;
    for (int i = 0; i < k; i++) sum += std::fabs(double(x[size_t(row) * x_row + i]) * weight[size_t(i) * n + column]);
    return sum;
  }
};

// In a tenth of the sweep one of each three, and none of the last, which take the longest.
std::vector<int> row_counts() {
  std::vector<int> all = {1, 2, 3, 8, 9, 16, 17, 33, 64, 65}, some;
  if (!a_tenth()) all.insert(all.end(), {130, 300});
  for (size_t i = 0; i < all.size(); i++)
    if (runs(i, 3) || i == 0) some.push_back(all[i]);
  return some;
}
struct Size {
  int k, n, spare;
};
std::vector<Size> shapes() {
  std::vector<Size> some;
  size_t tried = 0;
  for (const Size& size : {Size{131, 65, 0}, {1, 16, 16}, {5, 3, 0}, {48, 144, 32}, {259, 17, 0}, {603, 33, 16}})
    if (runs(tried++, 2)) some.push_back(size);
  return some;
}

}  // namespace

TEST_CASE(ON "fp32 matmul: the bits of the formula, for any number of rows") {
  for (const Size& shape : shapes()) {
    CAPTURE(shape.k);
    const Problem<float> p(300, shape.k, shape.n, shape.spare, 1);
    std::vector<float> expected(size_t(p.rows) * shape.n);
    for (int i = 0; i < int(expected.size()); i++) expected[i] = p.formula(i / shape.n, i % shape.n);
    for (int rows : row_counts()) {
      CAPTURE(rows);
      const std::vector<float> out = in_every_order([&] { return p.run(rows); });
      int wrong = 0;
      for (int row = 0; row < rows; row++)
        wrong += memcmp(&out[size_t(row) * p.out_row], &expected[size_t(row) * shape.n], sizeof(float) * shape.n) != 0;
      CHECK(wrong == 0);
    }
  }
}

namespace {
template <class W>
void check_plain(const Size& shape) {
  CAPTURE(shape.k);
  const Problem<W> p(33, shape.k, shape.n, shape.spare, 11);
  const std::vector<float> portable = p.portable(p.rows);
  for (int rows : {1, 16, 33}) {
    const std::vector<float> out = in_every_order([&] { return p.run(rows, kPlainGpu); });
    int wrong = 0;
    for (int row = 0; row < rows; row++) {
      const size_t first = size_t(row) * p.out_row;
      wrong += memcmp(&out[first], &portable[first], sizeof(float) * pad16(shape.n)) != 0;
    }
    CHECK(wrong == 0);
  }
}
}  // namespace

TEST_CASE(ON "plain matmul: the portable version's bits") {
  for (const Size& shape : shapes()) check_plain<float>(shape), check_plain<bf16>(shape);
}

// |x w| summed is the measure: the parts of x have its sign, so that theirs sum to the same. An addition of the
// emulator errs by 2^-24 of a partial sum, at most the measure: 3 K in all. A tensor core may cut each of the 17
// numbers that it adds below the largest one's 24th bit: 17 times 2^-23, for 3 K / 16 instructions. Either way, with
// the 8 slices and the portable sum's own K, it is less than 5 (K + 16) 2^-23.
TEST_CASE(ON "bf16 matmul: near the portable version, and the same bits for any number of rows") {
  for (const Size& shape : shapes()) {
    CAPTURE(shape.k);
    const Problem<bf16> p(a_tenth() ? 65 : 300, shape.k, shape.n, shape.spare, 2);
    const std::vector<float> portable = p.portable(p.rows);
    std::vector<float> all;
    const std::vector<int> counts = row_counts();
    for (int at = int(counts.size()) - 1; at >= 0; at--) {
      const int rows = counts[at];
      CAPTURE(rows);
      const bool few = rows < 20 || shape.n < 50;
      const std::vector<float> out = few ? in_every_order([&] { return p.run(rows); }) : p.run(rows);
      if (all.empty()) all = out;
      int differ = 0, far = 0;
      for (int row = 0; row < rows; row++) {
        const size_t first = size_t(row) * p.out_row;
        differ += memcmp(&out[first], &all[first], sizeof(float) * shape.n) != 0;
        for (int n = 0; n < shape.n && row % 7 == 0; n++) {
          const double bound = 5.0 * (shape.k + 16) / (1 << 23) * p.size(row, n);
          far += !(std::fabs(double(out[first + n]) - portable[first + n]) <= bound);
        }
      }
      CHECK(differ == 0);
      CHECK(far == 0);
    }
  }
}

TEST_CASE(ON "bf16 matmul: a weight of one brings all 24 bits of x through") {
  const int K = 70, N = 83;
  Problem<bf16> p(70, K, N, 0, 3);
  Chance chance(4);
  for (int row = 0; row < p.rows; row++)
    for (int k = 0; k < K; k++)
      p.x[size_t(row) * p.x_row + k] = float(chance.number() - 0.5) * float(1 << chance.below(30)) * 0x1p-15f;
  for (size_t i = 0; i < p.weight.size(); i++) p.weight[i] = int(i) / N == int(i) % N * 29 % K ? 1.0f : 0.0f;
  p.pack();
  for (int rows : {1, 9, 17, 70}) {
    CAPTURE(rows);
    const std::vector<float> out = in_every_order([&] { return p.run(rows); });
    int wrong = 0;
    for (int row = 0; row < rows; row++)
      for (int n = 0; n < N; n++) wrong += out[size_t(row) * p.out_row + n] != p.x[size_t(row) * p.x_row + n * 29 % K];
    CHECK(wrong == 0);
  }
}

namespace {

// `after` in the kernel, and as an operation of its own behind it: the same bits. make(out, other, third): the column
// operation on the matmul's output and two more arrays of its shape.
template <class W, class F>
void check_epilogue(const char* name, F make) {
  CAPTURE(name);
  const Problem<W> p(a_tenth() ? 9 : 70, 37, 67, 16, 5);
  const int counts[] = {1, 3, 9, p.rows};  // named: nvcc loses a list that stands in the loop of a template
  for (int rows : counts) {
    CAPTURE(rows);
    const auto run = [&](bool fused_in) {
      std::vector<float> start(size_t(p.rows) * p.out_row);
      Chance(6).fill(start.data(), start.size());
      Array<float> arrays[] = {on_device(start), on_device(start), on_device(start)};
      const auto after = make(arrays[0].data(), arrays[1].data(), arrays[2].data(), p.out_row);
      if (fused_in) {
        matmul(kGpu, rows, p.matmul_into(arrays[0].data()), after);
      } else {
        matmul(kGpu, rows, p.matmul_into(arrays[0].data()));
        launch(kGpu, rows, Strips<std::decay_t<decltype(after)>>{after, p.n});
      }
      std::vector<float> all = to_host(arrays[0]);
      for (int i : {1, 2})
        for (float v : to_host(arrays[i])) all.push_back(v);
      return all;
    };
    const std::vector<float> in = in_every_order([&] { return run(true); }), behind = run(false);
    CHECK(memcmp(in.data(), behind.data(), in.size() * sizeof(float)) == 0);
  }
}
template <class W>
void check_epilogues() {
  using F = float;
  check_epilogue<W>("AddBias", [](F* out, F* other, F*, int row) { return AddBias<F>{out, row, other}; });
  check_epilogue<W>("BiasGelu", [](F* out, F* act, F* bias, int row) { return BiasGelu<F>{out, act, row, bias}; });
  check_epilogue<W>("JoinResidual", [](F* out, F* residual, F* bias, int row) {
    return JoinResidual<F>{residual, out, row, bias};
  });
  check_epilogue<W>("GeluBackward", [](F* out, F* pre, F*, int row) { return GeluBackward<F>{pre, out, row}; });
}

}  // namespace

TEST_CASE(ON "matmul: an epilogue in the kernel gives the bits of one behind it") {
  check_epilogues<float>();
  check_epilogues<bf16>();
}

namespace {
// Rows 1, 8, 9, 16 and 17, of a matmul with so many outputs, have the bits of the 17.
template <class W>
void check_outputs(int n) {
  CAPTURE(n);
  const Problem<W> p(17, 33, n, 48, 7);
  const std::vector<float> all = p.run(p.rows);
  int wrong = 0;
  if (std::is_same<W, float>::value)
    for (int i = 0; i < p.rows * n; i++) wrong += all[size_t(i / n) * p.out_row + i % n] != p.formula(i / n, i % n);
  for (int rows : {1, 8, 9, 16}) {
    const std::vector<float> out = p.run(rows);
    for (int row = 0; row < rows; row++) {
      const size_t first = size_t(row) * p.out_row;
      wrong += memcmp(&out[first], &all[first], sizeof(float) * n) != 0;
    }
  }
  CHECK(wrong == 0);
}
}  // namespace

// On both sides of where tiles of 8 rows are more blocks than processors, with two tiles of rows and with one;
// a vocabulary's width; rows out of a wide stride.
TEST_CASE(ON "matmul: the tiles of few outputs and of many, and rows out of a wide stride") {
  size_t tried = 0;
  for (int n : {1003, 1059, 2115})
    if (!a_sixtieth() || drawn(tried++, 3)) check_outputs<float>(n), check_outputs<bf16>(n);
}

namespace {
// A matmul that computes the norm of its rows, and one behind the norm: the same bits.
template <class W>
void check_norm(int n, const std::vector<int>& counts) {
  CAPTURE(n);
  const int K = 132;
  const Problem<W> p(16, K, n, 16, 12);
  std::vector<float> weight(K), bias(K);
  Chance(13).fill(weight.data(), K), Chance(14).fill(bias.data(), K);
  const Array<float> weight_on = on_device(weight), bias_on = on_device(bias);
  for (int rows : counts)
    for (int kind = 0; kind < 3; kind++) {  // neither weight nor bias, weight, both
      CAPTURE(rows);
      CAPTURE(kind);
      const std::vector<float> nothing(size_t(rows) * p.out_row);
      Array<float> y(size_t(rows) * p.x_row, true), in_on = on_device(nothing), behind_on = on_device(nothing);
      Norm<float> norm{p.x_on.data(),
                       p.x_row,
                       K,
                       kind > 0 ? weight_on.data() : nullptr,
                       kind > 1 ? bias_on.data() : nullptr,
                       y.data(),
                       p.x_row,
                       nullptr,
                       nullptr};
      Matmul<float, W> product = p.matmul_into(in_on.data());
      product.x = nullptr, product.norm = norm;
      const std::vector<float> in = in_every_order([&] {
        matmul(kGpu, rows, product);
        return to_host(in_on);
      });
      launch(kGpu, rows, norm);
      product.x = y.data(), product.out = behind_on.data();
      matmul(kGpu, rows, product);
      const std::vector<float> behind = to_host(behind_on);
      CHECK(memcmp(in.data(), behind.data(), in.size() * sizeof(float)) == 0);
    }
}
}  // namespace

TEST_CASE(ON "matmul: a norm in the product has the bits of one before it") {
  check_norm<float>(40, {1});
  if (a_sixtieth()) {
    const size_t one = sweep_seed() % 2;  // of each two
    check_norm<bf16>(40, {one ? 1 : 7, one ? 16 : 9}), check_norm<bf16>(1059, {one ? 9 : 16});
    return;
  }
  check_norm<bf16>(40, {1, 7, 9, 16});
  check_norm<bf16>(1059, {9, 16});
}

TEST_CASE(ON "fp32 matmul: slices of several chunks, each copied while the one before is multiplied") {
  const Problem<float> p(9, 1299, 17, 0, 10);
  for (int rows : {1, 4, 8, 9}) {
    CAPTURE(rows);
    const std::vector<float> out = in_every_order([&] { return p.run(rows); });
    int wrong = 0;
    for (int row = 0; row < rows; row++)
      for (int n = 0; n < 17; n++) wrong += out[size_t(row) * p.out_row + n] != p.formula(row, n);
    CHECK(wrong == 0);
  }
}

TEST_CASE(ON "matmul: device order gives every weight a place of its own") {
  const auto check = [](auto panels) {
    panels.cuda = true;
    std::set<size_t> places;
    for (int k = 0; k < panels.k; k++)
      for (int n = 0; n < panels.n; n++) places.insert(panels.at_device(k, n));
    CHECK(places.size() == size_t(panels.k) * panels.n);
    CHECK(*places.rbegin() < panels.size());
  };
  check(Panels<float>{nullptr, 33, 19});
  check(Panels<bf16>{nullptr, 33, 19});
}

namespace {

__global__ void mma_once(const uint4* a, const uint2* b, float4* c) {
  const int lane = int(threadIdx.x);
  float sum[4] = {c[lane].x, c[lane].y, c[lane].z, c[lane].w};
  mma(sum, a[lane], b[lane]);
  c[lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
}

}  // namespace

// Places as the PTX ISA gives them for m16n8k16 and .bf16, number i of a lane's; small integers, so that sums are
// exact.
TEST_CASE(ON "mma: a plain product of 16 x 16 and 16 x 8, from the documented places") {
  Chance chance(9);
  std::vector<bf16> a(32 * 8), b(32 * 4);
  std::vector<float> c(32 * 4);
  float A[16][16], B[16][8], C[16][8];
  for (int lane = 0; lane < 32; lane++) {
    const int group = lane >> 2, in_group = lane % 4;
    for (int i = 0; i < 8; i++) {
      const int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
      const int column = in_group * 2 + (i & 1) + (i < 4 ? 0 : 8);
      A[row][column] = float(chance.below(200) - 100), a[lane * 8 + i] = to_bf16(A[row][column]);
    }
    for (int i = 0; i < 4; i++) {
      const int row = in_group * 2 + (i & 1) + (i < 2 ? 0 : 8);
      B[row][group] = float(chance.below(200) - 100), b[lane * 4 + i] = to_bf16(B[row][group]);
    }
    for (int i = 0; i < 4; i++) {
      const int row = i < 2 ? group : group + 8, column = in_group * 2 + (i & 1);
      C[row][column] = c[lane * 4 + i] = float(chance.below(200) - 100);
    }
  }
  const std::vector<float> product = in_every_order([&] {
    const Array<bf16> a_on = on_device(a), b_on = on_device(b);
    const Array<float> c_on = on_device(c);
    start(mma_once, 1, 32, reinterpret_cast<const uint4*>(a_on.data()), reinterpret_cast<const uint2*>(b_on.data()),
          reinterpret_cast<float4*>(c_on.data()));
    return to_host(c_on);
  });
  for (int lane = 0; lane < 32; lane++)
    for (int i = 0; i < 4; i++) {
      const int row = (lane >> 2) + (i < 2 ? 0 : 8), column = lane % 4 * 2 + (i & 1);
      float sum = C[row][column];
      for (int k = 0; k < 16; k++) sum += A[row][k] * B[k][column];
      CHECK(product[lane * 4 + i] == sum);
    }
}

}  // namespace nanospec
