// training/accumulate.h: an update of many batches: their gradients are added, and applied once. This is the means of
// --gradient_accumulation_steps.
//
// Floats add up to other bits in another order. So the order is stated: a binary tree over the numbers of the parts.
// The gradient of parts [a, b) is that of [a, m) plus that of [m, b), m = (a + b) / 2 rounded down; every part is
// computed by itself, from zero. 2, 4, 8, ... processes that share N parts evenly would each have a whole subtree, and
// so add up to the bits of one process.
#pragma once

#include "train.h"

namespace nanospec {

// A part of an update: what a Trainer takes at a time.
struct MicroBatch {
  Batch batch;
  Dropout dropout;
};

// How many gradients an update holds at a time: the trainer's, and for each level of the tree a sum that waits.
inline int gradients_held(int parts) { return parts > 1 ? 1 + gradients_held(parts - parts / 2) : 1; }

// Part p of update i, of N parts, has the number i N + p. What it is depends on that alone.
using Parts = std::function<MicroBatch(uint64_t number)>;

class Accumulation {
 public:
  Accumulation(Trainer<float>& trainer, Pool& pool, int parts) : trainer_(trainer), pool_(pool), parts_(parts) {
    for (int i = 1; i < gradients_held(parts); i++) waiting_.emplace_back(trainer.gradient.size(), pool.cuda());
  }

  // One update; returns the mean of the parts' losses before it. The gradient is that of the mean.
  float step(const Parts& part, const Update& update) {
    const uint64_t first = uint64_t(update.iteration) * parts_;
    if (parts_ == 1) {  // at once: the threads, or the GPU, need not wait in between
      const MicroBatch whole = part(first);
      return trainer_.step(whole.batch, update, whole.dropout);
    }
    const double loss = add_parts(part, first, 0, parts_, 0) / parts_;
    trainer_.apply(update);
    return float(loss);
  }

 private:
  // The trainer's gradient becomes that of the parts begin .. end - 1. Returns the sum of their losses.
  double add_parts(const Parts& part, uint64_t first, int begin, int end, size_t level) {
    if (end - begin == 1) {
      const MicroBatch one = part(first + begin);
      return trainer_.loss_and_gradient(one.batch, one.dropout, parts_);
    }
    const int middle = (begin + end) / 2;
    float *const gradient = trainer_.gradient.data(), *const waits = waiting_[level].data();
    const size_t n = trainer_.gradient.size();
    const double left = add_parts(part, first, begin, middle, level + 1);
    pool_.run([&](const Team& team) { add(team, gradient, waits, n, true); });
    const double right = add_parts(part, first, middle, end, level + 1);
    pool_.run([&](const Team& team) { add(team, waits, gradient, n); });
    return left + right;
  }

  Trainer<float>& trainer_;
  Pool& pool_;
  const int parts_;
  std::vector<Array<float>> waiting_;  // by level: the left half's gradient
};

}  // namespace nanospec
