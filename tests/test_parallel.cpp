// tests/test_parallel.cpp: the parallel drafter: the caterpillar, gradients, segments, training as the program does it,
// and drafting: whatever it says, the text is plain decoding's.
#include <doctest/doctest.h>

#include <cstring>

#include "../train_parallel.h"
#include "error_of.h"
#include "mock.h"
#include "random.h"

using namespace nanospec;

namespace {

Config tiny_config(int n_layer = 2, int n_head = 4, int n_embd = 20) {
  Config config;
  config.n_layer = n_layer, config.n_head = config.n_kv_head = n_head, config.n_embd = n_embd;
  config.block_size = 32, config.vocab_size = 23;
  return config;
}
std::vector<float> some_weights(const Config& config, uint64_t seed) {
  std::vector<float> weights = initial_weights(config, seed);
  Chance chance(seed);
  for (float& w : weights) w += float(0.3 * (chance.number() - 0.5));
  return weights;
}
ParallelSizes tiny_sizes(const Config& config, bool sequential, int slots = 4) {
  ParallelSizes s;
  s.n_layer = 2, s.n_head = config.n_head, s.n_kv_head = 2, s.n_embd = config.n_embd;
  s.vocab_size = config.vocab_size, s.ahead = slots, s.sequential = sequential;
  return s;
}
SequenceBatch some_batch(const Config& config, int sequences, int positions, int slots) {
  SequenceBatch batch;
  batch.sequences = sequences, batch.positions = positions, batch.ahead = slots;
  Chance chance(5);
  for (int i = 0; i < sequences * (positions + 1 + slots); i++) batch.token.push_back(chance.below(config.vocab_size));
  batch.features.resize(size_t(sequences * positions * kFeatures * config.n_embd));
  chance.fill(batch.features.data(), batch.features.size(), 3);
  return batch;
}
template <class T>
std::vector<T> start_of(const ParallelSizes& s) {
  const std::vector<float> floats = initial_parallel(s, 3);
  std::vector<T> weights(floats.begin(), floats.end());
  Chance chance(8);
  for (T& w : weights) w += T(0.2 * (chance.number() - 0.5));
  return weights;
}

}  // namespace

TEST_CASE("parallel: the gradient is that of finite differences, in double, whatever the segments") {
  const Config config = tiny_config();
  const std::vector<float> target = some_weights(config, 2);
  Pool pool(1);
  for (bool sequential : {false, true}) {
    const ParallelSizes s = tiny_sizes(config, sequential);
    const SequenceBatch batch = some_batch(config, 2, 11, s.ahead);
    std::vector<double> start = start_of<double>(s);
    // The states of a sequential drafter are fed back without a gradient. Where they weigh nothing yet, what they are
    // does not matter, and what their weights' gradient is does.
    const size_t C = size_t(s.n_embd), states = parallel_table(s)[1].offset + C * C;
    if (sequential) std::fill_n(start.begin() + long(states), C * C, 0.0);
    std::vector<double> whole;
    for (int segments : {1, 2, 3, 6, 11, 40}) {
      ParallelTrainer<double> trainer(s, config, target.data(), batch.positions, segments, pool);
      trainer.set_weights(start.data());
      trainer.loss_and_gradient(batch);
      const std::vector<double> gradient(trainer.gradient.data(), trainer.gradient.data() + trainer.gradient.size());
      if (segments == 1) whole = gradient;
      double worst = 0, largest = 0;
      for (size_t i = 0; i < whole.size(); i++) {
        worst = std::max(worst, std::abs(gradient[i] - whole[i]));
        largest = std::max(largest, std::abs(whole[i]));
      }
      CAPTURE(sequential);
      CAPTURE(segments);
      CHECK(largest > 1e-3);
      CHECK(worst < 1e-12 * largest);
    }
    ParallelTrainer<double> trainer(s, config, target.data(), batch.positions, 1, pool);
    for (const TensorSpec& spec : parallel_table(s))
      for (int probe = 0; probe < 3; probe++) {
        const size_t i = spec.offset + random_bits(7, uint32_t(probe), 1, spec.offset, 0) % spec.size;
        const double h = 1e-5;
        std::vector<double> moved = start;
        double loss[2];
        for (int side : {0, 1}) {
          moved[i] = start[i] + (side ? h : -h);
          trainer.set_weights(moved.data());
          loss[side] = trainer.loss(batch);
        }
        CAPTURE(spec.name);
        CHECK((loss[1] - loss[0]) / (2 * h) == doctest::Approx(whole[i]).epsilon(1e-5).scale(1e-3));
      }
  }
}

TEST_CASE("parallel: a caterpillar is the tree that it is said to be") {
  const int n = 7, K = 3;
  for (const auto& [begin, end] : {std::pair<int, int>{0, 7}, {2, 5}, {6, 7}, {0, 1}}) {
    Pass pass;
    const std::vector<int> tokens(static_cast<size_t>(n), 1);
    add_caterpillar(pass, tokens.data(), n, begin, end, K, [](int t, int d) { return 10 * t + d; });
    REQUIRE(pass.rows() == n + (end - begin) * K);
    const auto sees = [&](int row, int other) { return other <= row && row < pass.end[size_t(other)]; };
    for (int t = begin; t < end; t++)
      for (int d = 1; d <= K; d++) {
        const int row = slot_row(n, end, K, t, d);
        CHECK(pass.token[size_t(row)] == 10 * t + d);
        CHECK(pass.depth[size_t(row)] == t + d);
        for (int other = 0; other < n; other++) CHECK(sees(row, other) == (other <= t));
        for (int u = begin; u < end; u++)
          for (int e = 1; e <= K; e++) CHECK(sees(row, slot_row(n, end, K, u, e)) == (u == t && e <= d));
      }
    for (int t = 0; t < n; t++)
      for (int other = 0; other < pass.rows(); other++) CHECK(sees(t, other) == (other <= t));
  }
}

TEST_CASE("parallel: a drafter says what it said in training, to the bit, however the text came") {
  const Config config = tiny_config();
  const std::vector<float> model = some_weights(config, 2);
  const ParallelSizes s = tiny_sizes(config, false);
  const std::vector<float> weights = start_of<float>(s);
  const int n = 20;
  const SequenceBatch batch = some_batch(config, 1, n, s.ahead);
  Pool pool(1);
  ParallelTrainer<float> trainer(s, config, model.data(), n, 3, pool);
  trainer.set_weights(weights.data());
  std::vector<float> said(size_t(n * s.ahead * config.vocab_size));
  trainer.loss(batch, [&](int, int t, int depth, const float* logits, float) {
    std::copy_n(logits, config.vocab_size, said.begin() + (t * s.ahead + depth) * config.vocab_size);
  });

  Target target(config, model.data(), Dtype::fp32, false, 1, 64);
  Chance chance(4);
  for (int round = 0; round < 5; round++) {
    TextStream stream({s, weights}, target, kMostAhead);
    for (int t = 0; t < n;) {
      const int m = round == 0 ? 1 : std::min(n - t, 1 + chance.below(5));
      std::vector<const float*> features;
      for (int i = t; i < t + m; i++) features.push_back(batch.features.data() + i * kFeatures * config.n_embd);
      stream.commit(batch.tokens(0) + t + 1, features.data(), m);
      stream.run(s.slots());
      t += m;
      for (int d = 0; d < s.ahead; d++) {
        CAPTURE(t);
        CAPTURE(d);
        CHECK(memcmp(stream.logits(d), said.data() + ((t - 1) * s.ahead + d) * config.vocab_size,
                     sizeof(float) * size_t(config.vocab_size)) == 0);
      }
    }
  }
}

TEST_CASE("parallel: whatever it says, the text is plain decoding's") {
  const Config config = tiny_config();
  const std::vector<float> model = some_weights(config, 2);
  Target target(config, model.data(), Dtype::fp32, false, 1, 33);
  const std::vector<int> prompt = {3, 1, 4, 1, 5, 9, 2, 6};
  int generations = 0;
  for (bool sequential : {false, true}) {
    const ParallelSizes s = tiny_sizes(config, sequential);
    const ParallelFile file{s, start_of<float>(s)};
    std::unique_ptr<Drafter> drafter;
    if (sequential) drafter = std::make_unique<Sequential>(std::make_unique<TextStream>(file, target, 33));
    else drafter = std::make_unique<Parallel>(file, target);
    for (const char* shape : {"chain:3", "tree:3x2", "best-first", "beam:2", "auto", "cartesian:3,2,1"})
      for (float temperature : {0.0f, 0.7f, 1.0f}) {
        Decoding decoding;
        decoding.shape = parse_shape(shape, 24);
        decoding.sampling.temperature = temperature;
        decoding.max_new_tokens = 90;  // the window moves
        decoding.cost = std::make_shared<Cost>(measure_cost(target, 24, 0.002));
        std::vector<int> plain = prompt, text = prompt;
        generate(target, nullptr, decoding, plain, [](int) { return true; });
        const Stats stats = generate(target, drafter.get(), decoding, text, [](int) { return true; });
        CAPTURE(shape);
        CAPTURE(temperature);
        CAPTURE(sequential);
        CHECK(text == plain);
        if (decoding.shape.kind != Shape::kAuto) CHECK(stats.drafted_nodes > 0);
        generations++;
      }
  }
  CHECK(generations == 36);
}
