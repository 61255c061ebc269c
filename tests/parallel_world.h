// tests/parallel_world.h: what tests of the parallel drafter share: small drafters, by chance or trained by the
// program.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "files/drafters.h"
#include "tests/world.h"
#include "training/train_parallel.h"

namespace nanospec {
namespace {

inline Config tiny_config(int block_size = 32) {
  Config config;
  config.n_layer = 2, config.n_head = config.n_kv_head = 4, config.n_embd = 24;
  config.block_size = block_size, config.vocab_size = 23;
  return config;
}
inline std::vector<float> some_weights(const Config& config, uint64_t seed) {
  std::vector<float> weights = initial_weights(config, seed);
  Chance chance(seed);
  for (float& w : weights) w += float(0.3 * (chance.number() - 0.5));
  return weights;
}
inline ParallelSizes tiny_sizes(const Config& config, bool sequential, int layers = 2) {
  ParallelSizes s;
  s.n_layer = layers, s.n_head = config.n_head, s.n_kv_head = 2, s.n_embd = config.n_embd;
  s.vocab_size = config.vocab_size, s.ahead = 4, s.sequential = sequential;
  return s;
}
// Sequences of so many usable rows.
inline Shard some_shard(const Config& config, int sequences, int positions, int ahead) {
  Shard shard;
  shard.sizes = {sequences, positions + ahead, kFeatures * config.n_embd, Recorded::kFeatures};
  Chance chance(5);
  for (int i = 0; i < sequences * (positions + 1 + ahead); i++) shard.token.push_back(chance.below(config.vocab_size));
  shard.states.resize(size_t(sequences * shard.sizes.rows * shard.sizes.channels));
  chance.fill(shard.states.data(), shard.states.size(), 3);
  return shard;
}
// Of a head of its own: the tokens 0, 3, 6, ... are known.
inline std::vector<int> every_third_class(int vocab, int known) {
  std::vector<int> class_of(size_t(vocab), known);
  for (int i = 0; i < known; i++) class_of[size_t(3 * i)] = i;
  return class_of;
}
// The positions in the order in which a trainer comes to their slots: segment after segment, each from its end.
inline std::vector<int> segment_order(int positions, int segments) {
  std::vector<int> order;
  for (int s = 0; s < segments; s++)
    for (int t = positions * (s + 1) / segments - 1; t >= positions * s / segments; t--) order.push_back(t);
  return order;
}
template <class T>
std::vector<T> start_of(const ParallelSizes& s) {
  const std::vector<float> floats = initial_weights(parallel_table(s), 3);
  std::vector<T> weights(floats.begin(), floats.end());
  Chance chance(8);
  for (T& w : weights) w += T(0.2 * (chance.number() - 0.5));
  return weights;
}

inline void write_parallel(const std::string& dir, const ParallelFile& file) {
  const int N = file.sizes.tokens;
  write_arrays(heads_path(dir, "parallel"), parallel_table(file.sizes), {{"", file.weights.data()}},
               parallel_metadata(file.sizes),
               N > 0 ? std::vector<TensorData>{{"token", {N}, file.token.data(), "I32"}} : std::vector<TensorData>());
}
// By way of its file.
inline std::unique_ptr<Drafter> drafter_of(const ParallelFile& file, Target& target, const Config& config) {
  const Folder folder;
  write_parallel(folder.path, file);
  return load_parallel(folder.path, folder.path, target, config);
}

// Runs the program; returns its status.
inline int train(Words words) {
  words.insert(words.begin(), {"train_drafter", "--quiet", "--threads", "1"});
  ParallelOptions options;
  return train_drafter(options, int(words.size()), arguments(words).data());
}
inline Words usual(const std::string& dir, const Words& more) {
  Words words = {"--parallel",       dir,    "--data",         world().data, "--parallel_tokens", "6000",
                 "--parallel_ahead", "4",    "--batch_size",   "2",          "--max_iters",       "100",
                 "--learning_rate",  "1e-2", "--warmup_iters", "5"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace
}  // namespace nanospec
