// tests/test_gpu.cu: what only a device can show: the portable text, compiled by nvcc, against the CPU.
//
// Without a device these tests are counted as skipped; compiled without nvcc they are empty.
#include <doctest/doctest.h>

#include "random.h"

using namespace nanospec;

bool device_for_tests() { return cuda_available(); }

namespace {

Config gpu_config() {
  Config c;
  c.n_layer = 2, c.n_head = c.n_kv_head = 3, c.n_embd = 48, c.block_size = 64, c.vocab_size = 37;
  return c;
}

}  // namespace

TEST_CASE("GPU: every node of a tree gets the bits of its path decoded one token at a time") {
  const Config config = gpu_config();
  const std::vector<float> weights = initial_weights(config, 3);
  for (Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
    Target tree_side(config, weights.data(), dtype, true, 1, 100),
        path_side(config, weights.data(), dtype, true, 1, 100);
    Chance chance(81);
    const RandomTree tree = random_tree(chance, 40, 37, 0.9);
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

TEST_CASE("GPU: one training step gives the CPU's loss and weights to rounding") {
  const Config config = gpu_config();
  const std::vector<float> weights = initial_weights(config, 4);
  Chance chance(82);
  std::vector<int> tokens(65);
  for (int& token : tokens) token = chance.below(37);
  Pass pass;
  pass.add_chain(tokens.data(), 64, 0, 0);
  pass.target.assign(tokens.begin() + 1, tokens.end());
  Pool cpu(2), gpu(1, true);
  Trainer<float> a(config, 64, 1, 64, cpu), b(config, 64, 1, 64, gpu);
  a.set_weights(weights.data());
  b.set_weights(weights.data());
  for (int i = 0; i < 5; i++) {
    Update update;
    update.iteration = i;
    CHECK(a.step(pass, update) == doctest::Approx(b.step(pass, update)).epsilon(1e-5));
  }
}
