// tests/cuda/cuda_model.cu: the whole model on a GPU: a tree's bits are its paths' bits, and training follows the
// CPU's.
#include "tests/cuda/cuda_test.h"  // first: it brings the emulator

#include "decode.h"
#include "target.h"
#include "tests/random.h"
#include "tests/tenth.h"
#include "train.h"

#ifdef __CUDACC__
bool device_for_tests() { return nanospec::cuda_available(); }
constexpr bool kDevice = true;
#else
constexpr bool kDevice = false;
#endif

namespace nanospec {

namespace {

Config small_config() {
  Config c;
  c.n_layer = 2, c.n_head = c.n_kv_head = 3, c.n_embd = 48, c.block_size = 64, c.vocab_size = 37;
  return c;
}

// Like Llama. C and F are no multiples of 32.
Config small_llama() {
  Config c;
  c.n_layer = 2, c.n_head = 4, c.n_kv_head = 2, c.n_embd = 48, c.n_inner = 80, c.block_size = 64, c.vocab_size = 37;
  c.rotary = c.swiglu = true, c.center = false;
  return c;
}

// What GPT-2 does otherwise; and Qwen 2 and 3 together, with Mistral's sliding window.
Config small_gpt2() {
  Config c = small_config();
  c.bias = c.tanh = true;
  return c;
}
Config small_qwen() {
  Config c = small_llama();
  c.qkv_bias = c.qk_norm = true, c.rope_factors = {1, 1, 2, 4, 8, 8}, c.span = 9;
  return c;
}

// The logits of the first rows of a chain of so many, three tokens behind a text's beginning.
std::vector<float> chain_logits(const Config& config, const std::vector<float>& weights, Dtype dtype, Dtype cache,
                                int rows) {
  Target target(config, weights.data(), dtype, std::make_shared<Pool>(1, true), 80, cache);
  std::vector<int> token(rows), depth(rows), end(rows, rows);
  for (int i = 0; i < rows; i++) token[i] = i * 5 % 37, depth[i] = i;
  const int text[] = {1, 2, 3};
  target.prefill(text, 3);
  target.forward(token.data(), depth.data(), end.data(), rows);
  std::vector<float> all;
  for (int row = 0; row < rows; row++) all.insert(all.end(), target.logits(row), target.logits(row) + 37);
  return all;
}

}  // namespace

TEST_CASE(ON "every node of a tree gets the bits of its path decoded one token at a time") {
  for (Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::q8_0, Dtype::q4_1}) {
    const Config config = is_quantized(dtype) ? small_llama() : small_config();
    const std::vector<float> weights = initial_weights(config, 3);
    Target tree_side(config, weights.data(), dtype, true, 1, 100),
        path_side(config, weights.data(), dtype, true, 1, 100);
    Chance chance(81);
    const RandomTree tree = random_tree(chance, kDevice ? 40 : a_tenth() ? 6 : 20, 37, 0.9);
    const int text[] = {1, 2, 3, 4, 5, 6, 7};
    tree_side.prefill(text, 7);
    tree_side.forward(tree.token.data(), tree.depth.data(), tree.end.data(), tree.size());
    for (int i = 0; i < tree.size(); i += 3) {
      std::vector<int> path;
      for (int j = i; j >= 0; j = tree.parent[j]) path.insert(path.begin(), tree.token[j]);
      path_side.prefill(text, 7);
      const int zero = 0, one = 1;
      for (int token : path) {
        path_side.forward(&token, &zero, &one, 1);
        path_side.keep(&zero, 1);
      }
      CHECK(memcmp(tree_side.logits(i), path_side.logits(0), sizeof(float) * 37) == 0);
    }
  }
}

// Which kernel computes a product, and which attention, depends on the number of rows, the types and the sizes.
TEST_CASE(ON "a row has the same bits in a forward of any number of rows, of every type of weights and cache") {
  size_t turn = 0;
  const auto check = [&](Config config, Dtype dtype, Dtype cache, int channels, int heads, std::vector<int> counts) {
    config.n_layer = 1, config.block_size = 128;
    config.n_embd = channels, config.n_head = config.n_kv_head = heads;
    const std::vector<float> weights = initial_weights(config, 6);
    CAPTURE(int(dtype));
    CAPTURE(channels);
    const std::vector<float> longest = chain_logits(config, weights, dtype, cache, counts[0]);
    for (size_t i = 1; i < counts.size(); i++) {
      const std::vector<float> some = chain_logits(config, weights, dtype, cache, counts[i]);
      CHECK(memcmp(some.data(), longest.data(), sizeof(float) * some.size()) == 0);
    }
  };
  for (Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::f16, Dtype::q8_0, Dtype::q4_0, Dtype::q4_1, Dtype::q5_0,
                      Dtype::q3_k, Dtype::q4_k, Dtype::q5_k, Dtype::q6_k, Dtype::q_any})
    for (Dtype cache : {Dtype::fp32, Dtype::bf16})
      for (int channels : {16, 64, 128})
        if (runs(turn++, a_sixtieth() ? 18 : 9))
          check(turn % 2 ? small_config() : small_llama(), dtype, cache, channels, 1, {70, 33, 17, 9, 5, 2, 1});
  // More outputs than a GPU has processors: too much for the emulator.
  for (Dtype cache : {Dtype::fp32, Dtype::bf16}) {
    if (!kDevice || !runs(turn++, 9)) continue;
    check(small_config(), Dtype::fp32, cache, 1072, 67, {12, 9});
    check(small_config(), Dtype::bf16, cache, 2128, 19, {12, 3});
  }
}

// Everything else that a forward runs is the portable version on both machines. Weights of 8 and 4 bits have one
// kernel, with the CPU's bits, so that there plain and tuned differ in attention alone.
TEST_CASE(ON "with the plain kernels a model has the CPU's bits, and the tuned ones are near") {
  for (Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::f16, Dtype::q8_0, Dtype::q4_0, Dtype::q4_1, Dtype::q5_0,
                      Dtype::q3_k, Dtype::q4_k, Dtype::q5_k, Dtype::q6_k, Dtype::q_any}) {
    CAPTURE(int(dtype));
    const Config config = dtype == Dtype::q4_1   ? small_qwen()
                          : is_quantized(dtype)  ? small_llama()
                          : dtype == Dtype::fp32 ? small_gpt2()
                                                 : small_config();
    const std::vector<float> weights = initial_weights(config, 5);
    Chance chance(83);
    const RandomTree tree = random_tree(chance, a_tenth() ? 6 : 20, 37, 0.9);
    // The logits of a tree, and of a second one behind the rows that the first one keeps.
    const auto logits = [&](const std::shared_ptr<Pool>& pool) {
      Target target(config, weights.data(), dtype, pool, 30, dtype == Dtype::bf16 ? Dtype::bf16 : Dtype::fp32);
      std::vector<float> all;
      const int text[] = {1, 2, 3, 4, 5}, path[] = {0, tree.size() - 1};
      target.prefill(text, 5);
      for (int round = 0; round < 2; round++) {
        target.forward(tree.token.data(), tree.depth.data(), tree.end.data(), tree.size());
        for (int row = 0; row < tree.size(); row++) all.insert(all.end(), target.logits(row), target.logits(row) + 37);
        target.keep(path, 2);
      }
      return all;
    };
    const auto on_cpu = logits(std::make_shared<Pool>(1));
    const auto plain = logits(std::make_shared<Pool>(1, true, true)), tuned = logits(std::make_shared<Pool>(1, true));
    CHECK(memcmp(plain.data(), on_cpu.data(), sizeof(float) * on_cpu.size()) == 0);
    for (size_t i = 0; i < plain.size(); i++) REQUIRE(std::abs(tuned[i] - plain[i]) < 1e-4);
  }
}

TEST_CASE(ON "training steps give the CPU's losses to rounding") {
  const Config config = small_config();
  const std::vector<float> weights = initial_weights(config, 4);
  const int rows = kDevice ? 64 : a_tenth() ? 9 : 40, steps = kDevice ? 5 : a_tenth() ? 2 : 3;
  Chance chance(82);
  std::vector<int> tokens(rows + 1);
  for (int& token : tokens) token = chance.below(37);
  Batch batch;
  batch.add_chain(tokens.data(), rows, 0, 0);
  batch.target.assign(tokens.begin() + 1, tokens.end());
  const auto losses = [&](bool cuda) {
    Pool pool(cuda ? 1 : 2, cuda);
    Trainer<float> trainer(config, pool);
    trainer.set_weights(weights.data());
    std::vector<double> all;
    for (int i = 0; i < steps; i++) {
      Update update;
      update.iteration = i;
      all.push_back(trainer.step(batch, update));
    }
    return all;
  };
  const auto on_cpu = losses(false), on_gpu = in_every_order([&] { return losses(true); });
  for (int i = 0; i < steps; i++) CHECK(on_gpu[i] == doctest::Approx(on_cpu[i]).epsilon(1e-5));
}

}  // namespace nanospec
