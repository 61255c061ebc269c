// tests/cuda/cuda_train.cu: training on a GPU: its kernels against the portable version, and whole runs against the
// CPU's.
//
// Sums whose order differs from the CPU's are held to a bound on their rounding; the rest to the bit.
#include "tests/cuda/cuda_test.h"  // first: it brings the emulator

#include "tests/random.h"
#include "tests/tenth.h"
#include "training/accumulate.h"

namespace nanospec {

namespace {

std::vector<float> random_floats(Chance& chance, size_t n, double scale = 1) {
  std::vector<float> values(n);
  chance.fill(values.data(), n, scale);
  return values;
}

// The largest difference, over (1 + the size of what is expected).
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); i++) {
    if (!(a[i] == a[i]) || !(b[i] == b[i])) return 1e30;
    most = std::max(most, std::fabs(double(a[i]) - b[i]) / (1 + std::fabs(double(b[i]))));
  }
  return most;
}
// Sums of n numbers of size 1 or so, each within n roundings of the exact one: twice that apart.
double rounding(int n) { return 2.0 * n * 6e-8; }

}  // namespace

// ---------------------------------------------------------------------------------------------------------------
// Products

TEST_CASE(ON "cuBLAS is given rows for columns: the three products of training") {
  Chance chance(901);
  struct Product {
    int R, K, N;
  };
  for (const Product& product : {Product{1, 1, 1}, {3, 48, 16}, {5, 17, 33}, {19, 32, 65}, {40, 7, 144}})
    for (bool tied : {false, true}) {
      const int R = product.R, K = product.K, N = product.N;
      CAPTURE(R);
      CAPTURE(K);
      CAPTURE(N);
      CAPTURE(tied);
      const int x_row = pad16(K), y_row = pad16(N);
      const auto x = random_floats(chance, size_t(R) * x_row), dy = random_floats(chance, size_t(R) * y_row);
      const auto stored = random_floats(chance, size_t(K) * N), before = random_floats(chance, size_t(K) * N);
      const auto weight = [&](int k, int n) { return stored[tied ? size_t(n) * K + k : size_t(k) * N + n]; };
      const auto on_x = on_device(x), on_dy = on_device(dy), on_w = on_device(stored);
      Weight<float, float> w(on_w.data(), K, N, tied);
      w.use_stored();

      Array<float> y(size_t(R) * y_row, true), dx(size_t(R) * x_row, true), dw = on_device(before);
      matmul(kGpu, R, Matmul<float, float>{on_x.data(), x_row, w.forward, y.data(), y_row});
      matmul(kGpu, R, Matmul<float, float>{on_dy.data(), y_row, w.transposed, dx.data(), x_row});
      matmul_gradient(kGpu, MatmulGradient<float>{R, K, N, on_x.data(), x_row, on_dy.data(), y_row, dw.data()});

      std::vector<float> want_y(y.size()), want_dx(dx.size()), want_dw = before;  // what lies past N, K stays zero
      for (int r = 0; r < R; r++)
        for (int k = 0; k < K; k++)
          for (int n = 0; n < N; n++) {
            want_y[r * y_row + n] += x[r * x_row + k] * weight(k, n);
            want_dx[r * x_row + k] += dy[r * y_row + n] * weight(k, n);
            want_dw[k * N + n] += x[r * x_row + k] * dy[r * y_row + n];
          }
      CHECK(difference(to_host(y), want_y) < rounding(K + 1));
      CHECK(difference(to_host(dx), want_dx) < rounding(N + 1));
      CHECK(difference(to_host(dw), want_dw) < rounding(R + 1));
    }
}

TEST_CASE(ON "what follows a product runs on its columns alone, in the bits of the portable version") {
  Chance chance(902);
  const int R = 3, K = 5, N = 300, y_row = pad16(N);  // 300: two strips and a part
  const auto x = on_device(random_floats(chance, R * 16)), stored = on_device(random_floats(chance, K * N));
  const auto bias = on_device(random_floats(chance, N)), residual = on_device(random_floats(chance, R * y_row));
  Weight<float, float> w(stored.data(), K, N, false);
  w.use_stored();
  for (int which = 0; which < 4; which++) {
    Array<float> y(R * y_row, true), z(R * y_row, true), act(R * y_row, true), act_2(R * y_row, true);
    const auto both = [&](auto after) {
      matmul(kGpu, R, Matmul<float, float>{x.data(), 16, w.forward, y.data(), y_row}, after(y, act));
      matmul(kGpu, R, Matmul<float, float>{x.data(), 16, w.forward, z.data(), y_row});
      launch(kGpu, R, Strips<decltype(after(z, act_2))>{after(z, act_2), N});
    };
    const float* b = which == 3 ? nullptr : bias.data();
    if (which == 0 || which == 3) both([&](auto& out, auto&) { return AddBias<float>{out.data(), y_row, b}; });
    if (which == 1) both([&](auto& out, auto& g) { return BiasGelu<float>{out.data(), g.data(), y_row, b}; });
    if (which == 2) both([&](auto& out, auto&) { return JoinResidual<float>{residual.data(), out.data(), y_row, b}; });
    CHECK(same_bits(to_host(y), to_host(z)));
    CHECK(same_bits(to_host(act), to_host(act_2)));
  }
}

#ifdef WITNESS
TEST_CASE(ON "cuBLAS that rounds factors, or is of another version, is said in words") {
  const auto problem = [](const char* wrong) {
    setenv("NANOSPEC_PTX_CUBLAS", wrong, 1);
    std::string said;
    const size_t before = device_bytes.now;
    try {
      const Blas one;
    } catch (const std::runtime_error& error) { said = error.what(); }
    CHECK(device_bytes.now == before);
    unsetenv("NANOSPEC_PTX_CUBLAS");
    return said;
  };
  CHECK(problem("") == "");
  CHECK(problem("tf32").find("cuBLAS of CUDA 13 computes 1.000000 where fp32 has 1.000732: it rounds") == 0);
  CHECK(problem("version") == "");  // which may do, and is a line on standard error
}
#endif

#ifndef __CUDACC__
TEST_CASE("emulated: cuBLAS's emulation throws for a row shorter than its matrix, and can be captured") {
  float x[12] = {1, 2, 3, 4, 5, 6}, w[12] = {1, 1, 1, 1, 1, 1}, y[4] = {};
  CHECK_THROWS(gemm(2, 2, 3, {x, 2, 1}, {w, 2, 1}, y, 2, false));
  CHECK_THROWS(gemm(2, 2, 3, {x, 3, 1}, {w, 1, 2}, y, 2, false));
  CHECK_THROWS(gemm(2, 2, 3, {x, 3, 1}, {w, 2, 1}, y, 1, false));
  Graph graph;
  graph.capture([&] { gemm(2, 2, 3, {x, 3, 1}, {w, 2, 1}, y, 2, true); });
  CHECK(y[0] == 0);
  graph.replay();
  graph.replay();
  cudaStreamSynchronize(stream());
  CHECK(y[0] == 12);
  CHECK(y[3] == 30);
}
#endif

// ---------------------------------------------------------------------------------------------------------------
// Sums over rows

TEST_CASE(ON "sums of columns: a bias's gradient and a norm's, in every order") {
  Chance chance(903);
  size_t tried = 0;
  for (const auto& size : {std::pair{1, 1}, {3, 65}, {255, 8}, {257, 48}, {a_tenth() ? 300 : 1100, 33}}) {
    const int rows = size.first, columns = size.second;
    if (rows < 257 && !runs(tried++, 3)) continue;
    CAPTURE(rows);
    CAPTURE(columns);
    const int stride = pad16(columns);
    const auto x = on_device(random_floats(chance, size_t(rows) * stride));
    const auto dy = on_device(random_floats(chance, size_t(rows) * stride));
    const auto mean = on_device(random_floats(chance, rows, 0.1)), rstd = on_device(random_floats(chance, rows));
    const auto start = random_floats(chance, columns);
    const auto run = [&](bool portable, bool with_bias) {
      auto dw = on_device(start), db = on_device(start), sum = on_device(start);
      const NormWeights<float> norm{rows,        x.data(),  stride, columns,   mean.data(),
                                    rstd.data(), dy.data(), stride, dw.data(), with_bias ? db.data() : nullptr};
      const ColumnSum<float> bias{rows, columns, dy.data(), stride, sum.data()};
      if (portable) launch_sums(kGpu, columns, norm), launch_sums(kGpu, columns, bias);
      else norm_weights(kGpu, norm), column_sum(kGpu, bias);
      std::vector<float> all = to_host(dw);
      for (const auto* part : {&db, &sum})
        for (float value : to_host(*part)) all.push_back(value);
      return all;
    };
    for (bool with_bias : {true, false}) {
      const auto raw = in_every_order([&] { return run(false, with_bias); }), portable = run(true, with_bias);
      CHECK(difference(raw, portable) < rounding(rows + 1));
      for (int c = 0; !with_bias && c < columns; c++) CHECK(raw[columns + c] == start[c]);
    }
  }
}

TEST_CASE(ON "the embedding's gradient: rows of each token and position, in every order") {
  Chance chance(904);
  struct Case {
    int rows, vocab, channels, roots;
  };
  for (const Case& c : {Case{1, 1, 1, 1},
                        {60, 7, 33, 3},
                        {a_tenth() ? 30 : 150, 1, 8, 2},
                        {a_tenth() ? 40 : 120, 1003, 200, 2},
                        {33, 2, 130, 33}}) {
    CAPTURE(c.rows);
    CAPTURE(c.channels);
    const int stride = pad16(c.channels), block = 1100;
    const Batch batch = random_batch(chance, c.roots, std::max(1, c.rows / c.roots), 900, c.vocab);
    const int R = batch.rows();
    DeviceBatch on_gpu(R, batch.roots(), true);
    on_gpu.upload(batch);
    const auto dx = on_device(random_floats(chance, size_t(R) * stride));
    const auto wte = random_floats(chance, size_t(c.vocab) * c.channels);
    const auto wpe = random_floats(chance, size_t(block) * c.channels);
    const auto run = [&](bool portable) {
      auto dwte = on_device(wte), dwpe = on_device(wpe);
      Array<int> order(2 * R, true);
      const EmbedBackward<float> s{R,      on_gpu.token(), on_gpu.forest, dx.data(),
                                   stride, c.channels,     dwte.data(),   dwpe.data()};
      if (portable) launch_sums(kGpu, c.channels, s);
      else embed_backward(kGpu, s, order.data());
      std::vector<float> all = to_host(dwte);
      for (float value : to_host(dwpe)) all.push_back(value);
      return all;
    };
    const auto raw = in_every_order([&] { return run(false); }), portable = run(true);
    CHECK(difference(raw, portable) < rounding(R + 1));
    size_t untouched = 0;  // what no row looked up keeps its bits
    for (size_t i = 0; i < wte.size(); i++) untouched += raw[i] == wte[i];
    for (size_t i = 0; i < wte.size(); i++) untouched -= portable[i] == wte[i];
    CHECK(untouched == 0);
  }
}

TEST_CASE(ON "one long sum: the mean and the clipping factor") {
  Chance chance(905);
  for (int n : {1, 31, 1024, 5000}) {
    const auto values = on_device(random_floats(chance, n));
    auto squares = to_host(values);
    for (float& value : squares) value *= value;
    const auto on_squares = on_device(squares);
    const auto run = [&](bool portable) {
      Array<float> out(3, true);
      const Mean<float> mean{values.data(), n, out.data()};
      const ClipFactor<float> clip{on_squares.data(), n, 0.5f, out.data() + 1};
      if (portable) launch(kGpu, 1, SumRow<Mean<float>>{mean}), launch(kGpu, 1, SumRow<ClipFactor<float>>{clip});
      else launch_sum(kGpu, mean), launch_sum(kGpu, clip);
      return to_host(out);
    };
    CHECK(difference(in_every_order([&] { return run(false); }), run(true)) < 1e-5);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Cross-entropy

TEST_CASE(ON "cross-entropy with a block a row: loss and gradient, in every order") {
  Chance chance(906);
  size_t tried = 0;
  for (int V : {1, 65, 1003, 4096, 20483}) {
    CAPTURE(V);
    const int rows = 3, stride = pad16(V);
    auto logits = random_floats(chance, size_t(rows) * stride, 9);  // the same, whichever cases run
    if (!runs(tried++, 3)) continue;
    for (int c = 0; c < V; c++) logits[c] = -200 - logits[c];  // the first row: all far below zero
    if (V > 1) logits[stride + V / 2] = 95;                    // the second: one that alone counts
    for (int r = 0; r < rows; r++)
      for (int c = V; c < stride; c++) logits[r * stride + c] = 1e30f;  // past the row's end: not to be looked at
    const std::vector<int> targets = {V - 1, 0, V / 2};
    const auto target = on_device(targets);
    const float scale = 0.25f;
    const auto run = [&](int how, bool gradient) {
      auto x = on_device(logits);
      Array<float> loss(rows, true);
      const CrossEntropy<float> s{x.data(), stride, V, target.data(), loss.data(), gradient, scale};
      if (how == 0) launch(kGpu, rows, s);
      else if (how == 1) loss_of_rows(kGpu, rows, s);
      else
        start(gradient ? cross_entropy<true> : cross_entropy<false>, rows, kLossThreads, s.logits, s.row_stride,
              s.vocab_size, s.target, s.loss, s.scale);
      auto all = to_host(x);
      std::vector<float> kept = to_host(loss);
      for (int r = 0; r < rows; r++) kept.insert(kept.end(), &all[r * stride], &all[r * stride] + V);
      return kept;
    };
    for (bool gradient : {true, false}) {
      const auto block = in_every_order([&] { return run(2, gradient); }), warp = run(0, gradient);
      CHECK(difference(block, warp) < 1e-6);
      CHECK(same_bits(run(1, gradient), V >= kLongRow ? block : warp));
      if (!gradient) continue;
      for (int r = 0; r < rows; r++) {  // against double, and by what a gradient must be: it sums to nothing
        double top = -1e300, total = 0, sum = 0, worst = 0;
        const float* x = &logits[r * stride];
        for (int c = 0; c < V; c++) top = std::max(top, double(x[c]));
        for (int c = 0; c < V; c++) total += std::exp(x[c] - top);
        CHECK(block[r] == doctest::Approx(top + std::log(total) - x[targets[r]]).epsilon(1e-5));
        for (int c = 0; c < V; c++) {
          const double d = block[rows + r * V + c], share = std::exp(x[c] - top) / total;
          worst = std::max(worst, std::fabs(d - scale * (share - (c == targets[r]))));
          sum += d;
        }
        CHECK(worst < 1e-5);
        CHECK(std::fabs(sum) < 1e-5);
      }
    }
  }
}

TEST_CASE(ON "a loss that is no number stays none") {
  for (float bad : {Format<float>::kNaN, Format<float>::kInfinity}) {
    std::vector<float> logits(4096, 1.0f);
    logits[4000] = bad;
    const auto x = on_device(logits);
    const auto target = on_device(std::vector<int>{3});
    Array<float> loss(1, true);
    loss_of_rows(kGpu, 1, CrossEntropy<float>{x.data(), 4096, 4096, target.data(), loss.data(), false, 1.0f});
    CHECK(!std::isfinite(to_host(loss)[0]));
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Whole runs

namespace {

struct Run {
  std::vector<float> losses, weights, m, v;
  float evaluated;
};

// parts: of an update.
Run run_of(const Config& config, Pool& pool, float dropout, int steps, int parts = 1) {
  const int T = 14, B = 2;
  Chance chance(907);
  std::vector<int> text(200);
  for (int& token : text) token = chance.below(chance.below(config.vocab_size) + 1);
  Trainer<float> trainer(config, pool);
  trainer.initialize(11);
  Accumulation accumulation(trainer, pool, parts);
  Run run;
  Batch batch;
  for (int i = 0; i < steps; i++) {
    const auto part = [&](uint64_t number) {
      batch = Batch();
      for (int b = 0; b < B; b++) {
        const int at = chance.below(int(text.size()) - T - 1);
        batch.add_chain(&text[at], T, b * pad64(T), 0);
        batch.target.insert(batch.target.end(), &text[at + 1], &text[at + 1] + T);
      }
      return MicroBatch{batch, Dropout{dropout, 21, uint32_t(number), 0}};
    };
    Update update;
    update.iteration = i, update.learning_rate = 3e-3;
    run.losses.push_back(accumulation.step(part, update));
  }
  run.evaluated = trainer.loss(batch);
  const auto copy = [](const Array<float>& from) {
    std::vector<float> to(from.size());
    from.download(to.data(), to.size());
    return to;
  };
  run.weights = copy(trainer.weights), run.m = copy(trainer.m), run.v = copy(trainer.v);
  return run;
}

}  // namespace

TEST_CASE(ON "a training run has the CPU's losses and weights, and the same bits twice") {
  struct Case {
    bool bias;
    float dropout;
    int vocab, parts;
  };
  size_t tried = 0;
  for (const Case& c : {Case{false, 0, 37, 1}, {true, 0.2f, 37, 1}, {true, 0, 2050, 1}, {false, 0.2f, 37, 3}}) {
    if (!runs(tried++, 2)) continue;
    CAPTURE(c.parts);
    CAPTURE(c.bias);
    CAPTURE(c.dropout);
    CAPTURE(c.vocab);
    Config config;
    config.n_layer = 2, config.n_head = config.n_kv_head = 3, config.n_embd = 24, config.block_size = 16;
    config.vocab_size = c.vocab, config.bias = c.bias;
    const int steps = c.vocab > 1000 || a_tenth() ? 2 : 5;
    Pool cpu(2), gpu(1, true);
    const Run want = run_of(config, cpu, c.dropout, steps, c.parts),
              got = run_of(config, gpu, c.dropout, steps, c.parts);
    for (int i = 0; i < steps; i++) CHECK(got.losses[i] == doctest::Approx(want.losses[i]).epsilon(1e-5));
    CHECK(got.evaluated == doctest::Approx(want.evaluated).epsilon(1e-5));
    CHECK(want.losses[0] > want.evaluated);
    // AdamW divides by the gradient's own size: of a gradient that is rounding alone, the first updates are not small.
    size_t apart = 0;
    for (size_t i = 0; i < want.weights.size(); i++) apart += std::fabs(got.weights[i] - want.weights[i]) > 2e-5;
    CHECK(apart <= want.weights.size() / 1000);
    CHECK(difference(got.m, want.m) < 1e-6);
    CHECK(difference(got.v, want.v) < 1e-6);

    if (c.dropout == 0) continue;
    const Run again = run_of(config, gpu, c.dropout, steps, c.parts);
    CHECK(same_bits(again.losses, got.losses));
    CHECK(same_bits(again.weights, got.weights));
  }
}

}  // namespace nanospec
