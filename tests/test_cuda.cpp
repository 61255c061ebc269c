// tests/test_cuda.cpp: the CUDA kernels, run by the emulator.
#include "emulator.h"

#include <doctest/doctest.h>

#include "../model.h"
#include "random.h"

using namespace nanospec;

namespace {
Config tiny() {
  Config c;
  c.n_layer = 2, c.n_head = c.n_kv_head = 3, c.n_embd = 48, c.block_size = 64, c.vocab_size = 37;
  return c;
}
}  // namespace

TEST_CASE("emulated: every node of a tree gets the bits of its path decoded one token at a time") {
  const Config config = tiny();
  const std::vector<float> weights = initial_weights(config, 3);
  for (Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
    Target tree_side(config, weights.data(), dtype, true, 1, 100),
        path_side(config, weights.data(), dtype, true, 1, 100);
    Chance chance(81);
    const RandomTree tree = random_tree(chance, 10, 37, 0.9);
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
