// study/update.h: one update of training on the CPU, operation by operation: the least that each has to compute and to
// touch, and the time that it takes.
//
// The work is arithmetic from the model's sizes: a table, a row an operation. The clock is an Observer
// (machine/threads.h): a tuned operation tells it that it begins, as everything that `launch` runs does, and what lies
// between two of them is the first one's. So the times add up to the whole, and what runs over blocks of rows is one
// operation still.
//
// How to add an operation: a row in update_work().
#pragma once

#include <typeindex>

#include "growth/clock.h"
#include "train.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Work

// What an operation does in one update, in all layers. flops: of products alone; a multiply-add counts two. bytes: its
// inputs, weights and outputs, each once: the least that passes if nothing stays in a cache between operations.
struct UpdateWork {
  enum When { kForward, kBackward, kAnyTime };
  std::string name;
  double flops = 0, bytes = 0;
  When when = kAnyTime;                     // told where another operation has the same types and sizes
  std::vector<std::type_index> types = {};  // of what tells the clock that this operation begins
  int inputs = 0, outputs = 0;              // of a product of matrices: those of its call
};

// Forward and then backward, of a GPT without biases; `sequences` of block_size tokens. A linear layer's backward has
// two products: the weight's gradient, x^T dy, and the input's, dy W^T. The last one is whatever else there is.
std::vector<UpdateWork> update_work(const Config& c, int sequences);

// What an update holds in memory: parameters and what belongs to them, and the activations of all layers.
double update_bytes(const Config& c, int sequences);

// ---------------------------------------------------------------------------------------------------------------
// Time

class UpdateClock : public Observer {
 public:
  explicit UpdateClock(const Config& c) : work_(update_work(c, 1)) {}

  std::vector<double> seconds;  // as update_work, of the last update
  std::vector<int> begun;       // how often each began

  // Runs an update on this thread, and the team's others.
  template <class F>
  void watch(F update) {
    seconds.assign(work_.size(), 0);
    begun.assign(work_.size(), 0);
    now_ = work_.size() - 1;
    watch_.lap();
    observer = this;
    update();
    observer = nullptr;
    turn_to(work_.size() - 1);
  }
  void begins(const std::type_info& type, const void* operation) override;

 private:
  void turn_to(size_t next) {
    seconds[now_] += watch_.lap();
    now_ = next;
  }

  const std::vector<UpdateWork> work_;
  bool after_loss_ = false;
  size_t now_ = 0;
  Stopwatch watch_;
};

// Some updates of random tokens: the time of each operation, one entry an update; and in between as many that nobody
// watched, of which there is the whole alone. What is shown is the fastest update: what disturbs one does not disturb
// all of its operations, so medians of them would not add up to one of the whole.
struct UpdateTimes {
  std::vector<std::vector<double>> seconds;  // as update_work; empty in the program for a GPU, which watches none
  std::vector<double> whole;

  size_t fastest() const;  // of those that were watched
  double sum(size_t update) const;
};
// threads: of the CPU; 0: on the GPU. `working` is called before each pair with the share that is done; where it
// returns false, they end. It is defined in study/timed_update.h.
UpdateTimes measure_update(const Config& c, int sequences, int pairs, int threads,
                           const std::function<bool(double)>& working);

}  // namespace nanospec
