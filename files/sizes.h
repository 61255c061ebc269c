// files/sizes.h: which sizes a model may have, whether a file or the command line names them.
//
// The core takes every Config as it is: so what reads one asks config_problem() first.
#pragma once

#include "files/text.h"
#include "model.h"

namespace nanospec {

// The largest model that is accepted: 2^32 parameters are 16 GiB of floats.
constexpr int kMaxLayers = 1024;
constexpr int kMaxChannels = 1 << 16;
constexpr int kMaxBlock = 1 << 20;
constexpr int kMaxVocabulary = 1 << 20;
constexpr uint64_t kMaxParameters = uint64_t(1) << 32;

// What is wrong with these sizes, in words; "" when nothing is.
inline std::string config_problem(const Config& config) {
  const auto range = [](const char* name, int value, int low, int high) {
    if (value >= low && value <= high) return std::string();
    return filled("{} is {}, expected {} to {}", name, value, low, high);
  };
  std::string problem = range("n_layer", config.n_layer, 1, kMaxLayers);
  if (problem.empty()) problem = range("n_embd", config.n_embd, 1, kMaxChannels);
  if (problem.empty()) problem = range("n_head", config.n_head, 1, kMaxChannels);
  if (problem.empty()) problem = range("block_size", config.block_size, 2, kMaxBlock);
  if (problem.empty()) problem = range("vocab_size", config.vocab_size, 1, kMaxVocabulary);
  if (!problem.empty()) return problem;
  if (!config.head_dim && config.n_embd % config.n_head != 0)
    return filled("n_embd is {}, not a multiple of n_head, {}", config.n_embd, config.n_head);
  problem = range("head_dim", config.head_size(), 1, kMaxChannels);
  if (problem.empty()) problem = range("n_inner", config.inner(), 1, 4 * kMaxChannels);
  if (problem.empty()) problem = range("n_kv_head", config.n_kv_head, 1, config.n_head);
  if (!problem.empty()) return problem;
  if (config.n_head % config.n_kv_head != 0)
    return filled("n_head is {}, not a multiple of n_kv_head, {}", config.n_head, config.n_kv_head);
  if (config.rotary && config.head_size() % 2 != 0)
    return filled("head_dim is {}, expected an even number for rotary positions", config.head_size());
  if (config.block_size % 2 != 0) return filled("block_size is {}, expected an even number", config.block_size);
  const uint64_t parameters = parameter_count(config);
  if (parameters > kMaxParameters)
    return filled("the model would have {} parameters, at most {} are possible", parameters, kMaxParameters);
  return "";
}

// Throws std::invalid_argument (the command line is wrong) when no model can have these sizes.
inline void validate(const Config& config) {
  const std::string problem = config_problem(config);
  if (!problem.empty()) throw std::invalid_argument(problem + ": the model's size: choose other sizes");
}

}  // namespace nanospec
