// tests/random.h: random numbers, trees, batches and small models for tests: the same on every machine.
#pragma once

#include <vector>

#include "decode.h"
#include "target.h"

namespace nanospec {

struct Chance {
  uint64_t seed, drawn = 0;
  explicit Chance(uint64_t s) : seed(s) {}
  double number() { return uniform(random_bits(seed, 99, 99, drawn++, 0)); }  // in (0, 1)
  int below(int n) { return std::min(n - 1, int(number() * n)); }
  template <class T>
  void fill(T* data, size_t n, double scale = 1) {
    for (size_t i = 0; i < n; i++) data[i] = rounded<T>((number() - 0.5) * 2 * scale);
  }
};

struct RandomTree {
  std::vector<int> token, parent, depth, end;
  int size() const { return int(token.size()); }
};

// n nodes in preorder, root first. `bushy`: 0 gives a chain, 1 a tree that goes back to any open ancestor.
inline RandomTree random_tree(Chance& chance, int n, int vocab, double bushy) {
  RandomTree tree;
  for (int i = 0; i < n; i++) {
    int parent = i - 1;
    while (parent > 0 && chance.number() < bushy * 0.5) parent = tree.parent[parent];
    tree.token.push_back(chance.below(vocab));
    tree.parent.push_back(parent);
    tree.depth.push_back(i == 0 ? 0 : tree.depth[parent] + 1);
    tree.end.push_back(i + 1);
    for (int j = parent; j >= 0; j = tree.parent[j]) tree.end[j] = i + 1;
  }
  return tree;
}

// Of any of its roots: the keys that its last row may see.
inline int most_keys(const Batch& batch) {
  int most = 0;
  for (int r = 0; r < batch.roots(); r++)
    most = std::max(most, batch.past[size_t(r)] + batch.first_row[size_t(r) + 1] - batch.first_row[size_t(r)]);
  return most;
}

// A forest of `roots` trees of up to `rows` rows each, with pasts of up to `past` keys.
inline Batch random_batch(Chance& chance, int roots, int rows, int past, int vocab) {
  Batch batch;
  int slot = 0;
  for (int r = 0; r < roots; r++) {
    const int n = 1 + chance.below(rows), keys = past ? chance.below(past + 1) : 0;
    const RandomTree tree = random_tree(chance, n, vocab, r % 3 == 0 ? 0 : chance.number());
    batch.add_tree(tree.token.data(), tree.depth.data(), tree.end.data(), n, slot, keys);
    slot += pad64(keys + n);
  }
  for (int i = 0; i < batch.rows(); i++) batch.target.push_back(chance.below(vocab));
  return batch;
}

// A small model's sizes.
constexpr int kSmallVocab = 29;
inline Config small_config(int layers, int block, int channels = 32) {
  Config config;
  config.n_layer = layers, config.block_size = block, config.n_embd = channels, config.vocab_size = kSmallVocab;
  return config;
}

// How many numbers the tensors of a table have.
inline size_t numbers_of(const std::vector<TensorSpec>& table) { return table.back().offset + table.back().size; }

// Weights that say something: ten times the usual ones.
inline std::vector<float> loud_weights(const Config& config, uint64_t seed) {
  std::vector<float> weights = initial_weights(config, seed);
  for (const TensorSpec& spec : tensor_table(config))
    for (size_t i = 0; i < spec.size && spec.decay; i++) weights[spec.offset + i] *= 10;
  return weights;
}

// The keys, or the values, of one cached position of a target: all layers and heads in turn.
template <class S>
std::vector<float> cached(const Activations<float, S>& a, int position, bool values) {
  std::vector<S> all(values ? a.v.size() : a.k.size());
  std::vector<float> out;
  (values ? a.v : a.k).download(all.data(), all.size());
  for (int l = 0; l < a.L; l++) {
    const KeyValues<S> cache{all.data() + size_t(l) * a.k_layer, all.data() + size_t(l) * a.v_layer, a.slots, a.D};
    for (int head = 0; head < a.KV; head++)
      for (int d = 0; d < a.D; d++)
        out.push_back(to_float(values ? *cache.value(head, position, d) : *cache.key(head, position, d)));
  }
  return out;
}
inline std::vector<float> cached(const Target& target, int position, bool values) {
  return std::visit([&](const auto& a) { return cached(a, position, values); }, target.activations());
}

}  // namespace nanospec
