// tests/gradient.h: a trainer's gradient against differences of its loss, in double.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

namespace nanospec {
namespace {

// Tensor by tensor, every number of it: the slope by four losses is off by h^4. The trainer is a
// DrafterTrainer<double>.
template <class Trainer, class Batch>
void check_gradient(Trainer& trainer, const std::vector<double>& weights, const Batch& batch) {
  trainer.set_weights(weights.data());
  trainer.loss_and_gradient(batch);
  const std::vector<double> gradient(trainer.gradient.data(), trainer.gradient.data() + trainer.size);
  const auto loss_at = [&](size_t i, double h) {
    std::vector<double> moved = weights;
    moved[i] += h;
    trainer.set_weights(moved.data());
    return trainer.loss(batch);
  };
  for (const auto& spec : trainer.table) {
    CAPTURE(spec.name);
    double wrong = 0, norm = 0;
    for (size_t i = spec.offset; i < spec.offset + spec.size; i++) {
      const double h = 1e-3;
      const double slope = (8 * (loss_at(i, h) - loss_at(i, -h)) - (loss_at(i, 2 * h) - loss_at(i, -2 * h))) / (12 * h);
      wrong += std::pow(slope - gradient[i], 2), norm += slope * slope;
    }
    CHECK(norm > 0);
    CHECK(std::sqrt(wrong) < 1e-8 * std::sqrt(norm));
  }
}

}  // namespace
}  // namespace nanospec
