// drafters/features.h: what drafters' networks borrow of the target: hidden states of its layers, and how these enter a
// network; embedding, last norm and head.
//
// A forward on a CPU leaves the states in memory (Target::state), so they cost nothing until they are read.
#pragma once

#include "drafters/logits.h"
#include "drafters/operations.h"
#include "target.h"

namespace nanospec {

// After which layers a drafter reads the residual stream, before any norm: an early, a middle and the last one
// (EAGLE-3, Li et al. 2025). A model of fewer than three layers is read twice after one of them.
constexpr int kFeatures = 3;
inline std::vector<int> feature_layers(int n_layer) { return {(n_layer + 3) / 4, (n_layer + 1) / 2, n_layer}; }

// Of each row of the target's last forward the residual stream after these layers (1 .. n_layer), side by side.
class Features {
 public:
  explicit Features(const Target& target) : Features(target, feature_layers(target.config().n_layer)) {}
  Features(const Target& target, std::vector<int> layers)
      : target_(target), layers_(std::move(layers)), C_(size_t(target.config().n_embd)) {
    if (!target.cuda()) rows_.resize(size_t(target.most_rows()) * layers_.size() * C_);
  }

  // (layers C) of a row; null if there was no forward, if it ran too few layers, or on a GPU.
  const float* row(int row) {
    float* const all = rows_.data() + size_t(row) * layers_.size() * C_;
    for (size_t i = 0; i < layers_.size(); i++) {
      const float* const state = target_.state(layers_[i], row);
      if (!state) return nullptr;
      std::copy_n(state, C_, all + i * C_);
    }
    return all;
  }

 private:
  const Target& target_;
  const std::vector<int> layers_;
  const size_t C_;
  std::vector<float> rows_;  // (R, layers, C)
};

// How features enter a network: `to` becomes a projection of the n rows x, (n, 3 C). Unless they are `raw`, each of a
// row's three states is first scaled to mean square 1, where it stands. Every thread of the team calls it.
template <class T, class W>
void project_features(const Team& team, int n, int C, bool raw, View<T> x, const Weight<T, W>& projection, View<T> to) {
  for (int f = 0; f < kFeatures && !raw; f++) {
    T* const feature = x.at + f * C;
    launch(team, n, rms_norm<T>(feature, x.stride, C, nullptr, feature, x.stride, nullptr));
  }
  matmul(team, n, product(x, projection.forward, to));
  team.wait();
}
template <class T>
View<T> view(const Rows<T>& rows, int first) {
  return {rows.at(0, first), int(rows.stride)};
}

// The target's embeddings of n tokens, on a CPU. Every thread of the team calls it.
inline void embed(const Target& target, const Team& team, int n, const int* token, View<float> to) {
  const auto& weights = target.weights();
  const int C = target.config().n_embd;
  if (weights.symbols.data) return unpack(team, n, Unpack<float, AnyNumber>{token, weights.symbols, to.at, to.stride});
  const Range mine = team.share(n);
  for (int row = mine.begin; row < mine.end; row++)
    std::copy_n(weights.tensors.wte + size_t(token[row]) * size_t(C), C, to.at + size_t(row) * size_t(to.stride));
  team.wait();
}

// The target's embedding, (V, C), on a CPU. `unpacked` is where it lies, if the target has it in panels alone.
inline const float* embedding_of(const Target& target, Array<float>& unpacked) {
  const auto& weights = target.weights();
  if (!weights.symbols.data) return weights.tensors.wte;
  const int V = target.vocab_size(), C = target.config().n_embd;
  const std::vector<int> tokens = numbers_to(V);
  unpacked = Array<float>(size_t(V) * size_t(C));
  target.on_threads(V, [&](const Team& team) { embed(target, team, V, tokens.data(), {unpacked.data(), C}); });
  return unpacked.data();
}

// The target's last norm and a head, its own or another, over `rows` rows x of a residual stream, on a CPU: norm is
// scratch, both are (rows, x_row); logits (rows, l_row). Every thread of the team calls it.
inline void head_of(const Target& target, const Panels<AnyNumber>& head, const Team& team, int rows, const float* x,
                    int x_row, float* norm, View<float> logits) {
  const auto& w = target.weights();
  const View<float> to{norm, x_row};
  Norm<float> last = norm_of<float>(target.config(), to, w.tensors.ln_f, w.tensors.ln_f_bias, to, nullptr, nullptr);
  last.x = x;
  launch(team, rows, last);
  matmul(team, rows, product(to, head, logits));
  team.wait();
}

// A drafter's weights as numbers of that type, if they can be of any.
template <class T, class W>
void hold_as(Dtype dtype, const std::vector<Weight<T, W>*>& all) {
  if constexpr (std::is_same<W, AnyNumber>::value)
    for (Weight<T, W>* weight : all) weight->forward.dtype = dtype;
}

}  // namespace nanospec
