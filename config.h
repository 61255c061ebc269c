// config.h: the sizes of a model, and the one table of its tensors.
//
// A tensor is named once, here: memory, initialization, weight decay, checkpoints and the gradient check all walk this
// table. It knows nothing of files, devices or arithmetic.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace nanospec {

// The sizes of a GPT, under nanoGPT's names.
struct Config {
  int n_layer = 4;      // L
  int n_head = 4;       // H, query heads
  int n_kv_head = 4;    // key/value heads; GPT has as many as query heads
  int n_embd = 128;     // C
  int block_size = 64;  // the window in tokens: even, because it slides by half of itself
  int vocab_size = 65;  // V
  bool bias = false;    // biases in the linear layers and the norms
};

// The largest model that is taken for one: 2^32 parameters are 16 GiB of floats.
constexpr int kMaxLayers = 1024;
constexpr int kMaxChannels = 1 << 16;
constexpr int kMaxBlock = 1 << 20;
constexpr int kMaxVocabulary = 1 << 20;
constexpr uint64_t kMaxParameters = uint64_t(1) << 32;

// One tensor of the model and its place in the flat array that holds them all.
struct TensorSpec {
  std::string name;        // Hugging Face's GPT-2 name without "transformer."
  std::vector<int> shape;  // a matrix is (in, out), as Hugging Face's Conv1D; embeddings are (rows, C)
  size_t offset, size;     // in floats
  bool decay;              // weight decay: matrices only
  float init_std;          // standard deviation at the start; 0: all zeros; below 0: all ones
};

// Adds a tensor at the end of the flat array.
inline void add_tensor(std::vector<TensorSpec>& table, const std::string& name, const std::vector<int>& shape,
                       float init_std) {
  size_t size = 1;
  for (int dimension : shape) size *= size_t(dimension);
  const size_t offset = table.empty() ? 0 : table.back().offset + table.back().size;
  table.push_back({name, shape, offset, size, shape.size() >= 2, init_std});
}

// Calls add(name, shape, init_std) for every tensor, in the order of the flat array.
// nanoGPT's initialization: 0.02, and 0.02 / sqrt(2 L) for the two projections that end in the residual stream.
template <class F>
void for_each_tensor(const Config& config, F add) {
  const int channels = config.n_embd;
  const float std = 0.02f, residual_std = float(0.02 / std::sqrt(2.0 * config.n_layer));
  const auto norm = [&](const std::string& name) {
    add(name + ".weight", std::vector<int>{channels}, -1.0f);
    if (config.bias) add(name + ".bias", std::vector<int>{channels}, 0.0f);
  };
  const auto linear = [&](const std::string& name, int in, int out, float init_std) {
    add(name + ".weight", std::vector<int>{in, out}, init_std);
    if (config.bias) add(name + ".bias", std::vector<int>{out}, 0.0f);
  };
  add("wte.weight", std::vector<int>{config.vocab_size, channels}, std);
  add("wpe.weight", std::vector<int>{config.block_size, channels}, std);
  for (int layer = 0; layer < config.n_layer; layer++) {
    const std::string block = "h." + std::to_string(layer) + ".";
    norm(block + "ln_1");
    linear(block + "attn.c_attn", channels, 3 * channels, std);
    linear(block + "attn.c_proj", channels, channels, residual_std);
    norm(block + "ln_2");
    linear(block + "mlp.c_fc", channels, 4 * channels, std);
    linear(block + "mlp.c_proj", 4 * channels, channels, residual_std);
  }
  norm("ln_f");
}

// The table of a model's tensors. The config must have passed validate().
inline std::vector<TensorSpec> tensor_table(const Config& config) {
  std::vector<TensorSpec> table;
  for_each_tensor(config, [&](const std::string& name, const std::vector<int>& shape, float init_std) {
    add_tensor(table, name, shape, init_std);
  });
  return table;
}

// How many numbers the flat array holds. Right for every config within the limits above, and it cannot overflow there.
inline uint64_t parameter_count(const Config& config) {
  const uint64_t channels = uint64_t(config.n_embd);
  const uint64_t block = 12 * channels * channels + 2 * channels + (config.bias ? 11 * channels : 0);
  return (uint64_t(config.vocab_size) + uint64_t(config.block_size)) * channels + uint64_t(config.n_layer) * block +
         channels + (config.bias ? channels : 0);
}

// What is wrong with these sizes, in words: "" when nothing is.
inline std::string config_problem(const Config& config) {
  const auto range = [](const char* name, int value, int low, int high) {
    if (value >= low && value <= high) return std::string();
    return std::string(name) + " is " + std::to_string(value) + ", expected " + std::to_string(low) + " to " +
           std::to_string(high);
  };
  std::string problem = range("n_layer", config.n_layer, 1, kMaxLayers);
  if (problem.empty()) problem = range("n_embd", config.n_embd, 1, kMaxChannels);
  if (problem.empty()) problem = range("n_head", config.n_head, 1, kMaxChannels);
  if (problem.empty()) problem = range("block_size", config.block_size, 2, kMaxBlock);
  if (problem.empty()) problem = range("vocab_size", config.vocab_size, 1, kMaxVocabulary);
  if (!problem.empty()) return problem;
  if (config.n_embd % config.n_head != 0)
    return "n_embd is " + std::to_string(config.n_embd) + ", not a multiple of n_head, " +
           std::to_string(config.n_head);
  if (config.n_kv_head != config.n_head)
    return "n_kv_head is " + std::to_string(config.n_kv_head) + ", expected as many as n_head, " +
           std::to_string(config.n_head);
  if (config.block_size % 2 != 0)
    return "block_size is " + std::to_string(config.block_size) + ", expected an even number";
  if (parameter_count(config) > kMaxParameters)
    return "the model would have " + std::to_string(parameter_count(config)) + " parameters, at most " +
           std::to_string(kMaxParameters) + " are possible";
  return "";
}

// Raises invalid_argument (the command line is wrong) when no model can have these sizes.
inline void validate(const Config& config) {
  const std::string problem = config_problem(config);
  if (!problem.empty()) throw std::invalid_argument(problem + ": the model's size: choose other sizes");
}

}  // namespace nanospec
