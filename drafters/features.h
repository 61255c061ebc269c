// drafters/features.h: hidden states of the target's layers, for drafters that read them.
//
// It hooks into the target's after_layer. Without it a forward costs nothing more.
#pragma once

#include <algorithm>
#include <vector>

#include "decode.h"

namespace nanospec {

// After which layers a drafter reads the residual stream, before any norm: an early, a middle and the last one
// (EAGLE-3, Li et al. 2025). A model of fewer than three layers is read twice after one of them.
constexpr int kFeatures = 3;
inline std::vector<int> feature_layers(int n_layer) { return {(n_layer + 3) / 4, (n_layer + 1) / 2, n_layer}; }

// As long as it lives, each forward of the target stores the residual stream after these layers (1 .. n_layer), side by
// side. A prefill stores none, and neither does a GPU. Several on one target are destroyed in the reverse order.
class Features {
 public:
  explicit Features(Target& target) : Features(target, feature_layers(target.layers())) {}
  Features(Target& target, std::vector<int> layers)
      : target_(target),
        layers_(std::move(layers)),
        deepest_(*std::max_element(layers_.begin(), layers_.end())),
        others_(target.after_layer),
        C_(size_t(target.channels())) {
    if (target.cuda()) return;
    rows_.resize(size_t(target.most_rows()) * layers_.size() * C_);
    target.after_layer = [this](const Team& team, int done, int rows, const float* x, int x_row) {
      if (others_) others_(team, done, rows, x, x_row);
      keep(team, done, rows, x, x_row);
    };
  }
  Features(const Features&) = delete;
  Features& operator=(const Features&) = delete;
  ~Features() { target_.after_layer = others_; }

  // (layers C) of a row of the last forward; null if there was none, or if it ran too few layers.
  const float* row(int row) const {
    return done_ < deepest_ ? nullptr : rows_.data() + size_t(row) * layers_.size() * C_;
  }

 private:
  // Stores this thread's share of the rows.
  void keep(const Team& team, int done, int rows, const float* x, int x_row) {
    if (team.rank == 0) done_ = done;
    const Range mine = team.share(rows);
    for (size_t i = 0; i < layers_.size(); i++)
      for (int row = mine.begin; layers_[i] == done && row < mine.end; row++)
        std::copy_n(x + size_t(row) * size_t(x_row), C_, rows_.data() + (size_t(row) * layers_.size() + i) * C_);
  }

  Target& target_;
  const std::vector<int> layers_;
  const int deepest_;
  const AfterLayer<float> others_;
  const size_t C_;
  std::vector<float> rows_;  // (R, layers, C)
  int done_ = 0;             // how many layers the last forward ran
};

}  // namespace nanospec
