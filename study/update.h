// study/update.h: one update of training on the CPU, operation by operation: the least that each has to compute and to
// touch, and the time that it takes.
//
// In order: the operations; their work; the clock. The work is arithmetic from the model's sizes. The clock is an
// Observer (machine/threads.h): a tuned operation tells it that it begins, as everything that `launch` runs does, and
// what lies between two of them is the first one's. So the times add up to the whole, and what runs over blocks of rows
// is one operation still.
//
// How to add an operation: a name in the list, its work in update_work(), its struct in UpdateClock::place().
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "train.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Operations, forward and then backward; a linear layer's backward has two products: the weight's gradient, x^T dy, and
// the input's, dy W^T

enum UpdateOperation {
  kUpEmbedding,
  kUpNorms,
  kUpQkv,
  kUpAttention,
  kUpProj,
  kUpFc,
  kUpGelu,
  kUpFcProj,
  kUpJoins,
  kUpHead,
  kUpLoss,
  kUpHeadWeight,
  kUpHeadInput,
  kUpNormsAgain,
  kUpFcProjWeight,
  kUpFcProjInput,
  kUpGeluBackward,
  kUpFcWeight,
  kUpFcInput,
  kUpProjWeight,
  kUpProjInput,
  kUpAttentionBackward,
  kUpQkvWeight,
  kUpQkvInput,
  kUpNormsBackward,
  kUpSums,
  kUpEmbeddingBackward,
  kUpWaiting,
  kUpZeros,
  kUpAdamW,
  kUpPack,
  kUpOther,
  kUpdateOperations
};

// ---------------------------------------------------------------------------------------------------------------
// Work

// What an operation does in one update, in all layers. flops: of products alone; a multiply-add counts two. bytes: its
// inputs, weights and outputs, each once: the least that passes if nothing stays in a cache between operations.
struct UpdateWork {
  std::string name;
  double flops = 0, bytes = 0;
};

// By UpdateOperation, of a GPT without biases; `sequences` of block_size tokens.
std::vector<UpdateWork> update_work(const Config& c, int sequences);

// What an update holds in memory: parameters and what belongs to them, and the activations of all layers.
double update_bytes(const Config& c, int sequences);

// The least time of an operation, and which limit it is of.
struct UpdateBound {
  double seconds = 0;
  bool computes = false;  // else it reads
};
UpdateBound update_bound(const UpdateWork& work, double flops_per_second, double bytes_per_second);

// ---------------------------------------------------------------------------------------------------------------
// Time

class UpdateClock : public Observer {
 public:
  explicit UpdateClock(const Config& c) : config_(c) {}

  std::vector<double> seconds;  // by UpdateOperation, of the last update
  std::vector<int> begun;       // how often each began

  // Runs an update on this thread, and the team's others.
  template <class F>
  void watch(F update) {
    seconds.assign(kUpdateOperations, 0);
    begun.assign(kUpdateOperations, 0);
    now_ = kUpOther;
    since_ = Clock::now();
    observer = this;
    update();
    observer = nullptr;
    turn_to(kUpOther);
  }
  void begins(const std::type_info& type, const void* operation) override {
    const UpdateOperation next = place(type, operation);
    begun[next]++;
    turn_to(next);
  }

 private:
  using Clock = std::chrono::steady_clock;
  void turn_to(UpdateOperation next) {
    const Clock::time_point at = Clock::now();
    seconds[now_] += std::chrono::duration<double>(at - since_).count();
    since_ = at;
    now_ = next;
  }
  UpdateOperation place(const std::type_info& type, const void* operation);
  UpdateOperation product(int inputs, int outputs) const;
  UpdateOperation weight_gradient(int inputs, int outputs) const;

  const Config config_;
  bool after_loss_ = false;
  UpdateOperation now_ = kUpOther;
  Clock::time_point since_;
};

// Some updates of random tokens: the time of each operation, one entry an update; and in between as many that nobody
// watched, of which there is the whole alone. What is shown is the fastest update: what disturbs one does not disturb
// all of its operations, so medians of them would not add up to one of the whole.
struct UpdateTimes {
  std::vector<std::vector<double>> seconds = std::vector<std::vector<double>>(kUpdateOperations);
  std::vector<double> whole;

  size_t fastest() const;  // of those that were watched
  double sum(size_t update) const;
};
// `working` is called before each pair with the share that is done; where it returns false, they end. The program for a
// GPU measures none. It is defined in study/timed_update.h.
UpdateTimes measure_update(const Config& c, int sequences, int pairs, Pool& pool,
                           const std::function<bool(double)>& working);

}  // namespace nanospec
