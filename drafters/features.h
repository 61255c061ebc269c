// drafters/features.h: hidden states of the target's layers, for drafters that read them.
//
// A forward on a CPU leaves them in memory (Target::state), so they cost nothing until they are read.
#pragma once

#include <algorithm>
#include <vector>

#include "target.h"

namespace nanospec {

// After which layers a drafter reads the residual stream, before any norm: an early, a middle and the last one
// (EAGLE-3, Li et al. 2025). A model of fewer than three layers is read twice after one of them.
constexpr int kFeatures = 3;
inline std::vector<int> feature_layers(int n_layer) { return {(n_layer + 3) / 4, (n_layer + 1) / 2, n_layer}; }

// Of each row of the target's last forward the residual stream after these layers (1 .. n_layer), side by side.
class Features {
 public:
  explicit Features(const Target& target) : Features(target, feature_layers(target.layers())) {}
  Features(const Target& target, std::vector<int> layers)
      : target_(target), layers_(std::move(layers)), C_(size_t(target.channels())) {
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

}  // namespace nanospec
