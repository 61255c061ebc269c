// tests/cuda/cuda_portable.cu: the core without its tuned versions, on a GPU. A model trains, and decodes with the
// first CUDA kernels; what it computes is held against the CPU.
#define PORTABLE
#include "tests/cuda/cuda_test.h"  // first: it brings the emulator

#include "decode.h"
#include "target.h"
#include "train.h"

namespace nanospec {
namespace {

Config tiny() {
  Config config;
  config.n_layer = 1, config.n_head = config.n_kv_head = 2, config.n_embd = 16;
  config.block_size = 16, config.vocab_size = 11;
  return config;
}
std::shared_ptr<Pool> pool_of(bool cuda) { return std::make_shared<Pool>(1, cuda, true); }

// The losses of some updates, of two sequences.
std::vector<float> losses(bool cuda) {
  const auto pool = pool_of(cuda);
  Trainer<float> trainer(tiny(), *pool);
  trainer.initialize(1);
  Batch batch;
  const int tokens[] = {1, 5, 2, 9, 1, 5, 2, 9, 1};
  for (int b = 0; b < 2; b++) {
    batch.add_chain(tokens + b, 7, b * 64, 0);
    batch.target.insert(batch.target.end(), tokens + b + 1, tokens + b + 8);
  }
  std::vector<float> list;
  for (int i = 0; i < 4; i++) {
    Update update;
    update.iteration = i;
    update.learning_rate = 0.01;
    list.push_back(trainer.step(batch, update));
  }
  return list;
}

// The logits of a root with two children, after a past of three tokens.
std::vector<float> logits(bool cuda) {
  const Config config = tiny();
  const std::vector<float> weights = initial_weights(config, 1);
  Target target(config, weights.data(), Dtype::fp32, pool_of(cuda), 4);
  const int past[] = {3, 1, 4}, token[] = {1, 5, 9}, depth[] = {0, 1, 1}, end[] = {3, 2, 3};
  target.prefill(past, 3);
  target.forward(token, depth, end, 3);
  return {target.logits(0), target.logits(2) + config.vocab_size};
}

}  // namespace

TEST_CASE(ON "without tuned kernels a model trains as on a CPU") {
  const std::vector<float> cpu = losses(false), gpu = losses(true);
  CHECK(cpu[3] < cpu[0] - 0.1f);
  for (size_t i = 0; i < cpu.size(); i++) CHECK(gpu[i] == doctest::Approx(cpu[i]).epsilon(1e-5));
}

TEST_CASE(ON "without tuned kernels a forward's logits come to the host, with the CPU's bits") {
  const std::vector<float> cpu = logits(false), gpu = logits(true);
  REQUIRE(cpu.size() == gpu.size());
  CHECK(memcmp(cpu.data(), gpu.data(), cpu.size() * sizeof(float)) == 0);
}

}  // namespace nanospec
