// study/timed_update.h: measure_update() of study/update.h. It trains a model, so it is compiled where that
// is: study/measured.cu includes it, and in the tests tests/commands/stand_in.cpp.
#pragma once

#include "study/update.h"

namespace nanospec {

#ifdef WITH_CUDA
constexpr bool kSeesOperations = false;
#else
constexpr bool kSeesOperations = true;
#endif

UpdateTimes measure_update(const Config& c, int sequences, int pairs, int threads,
                           const std::function<bool(double)>& working) {
  Pool pool(threads, !kSeesOperations && threads == 0);  // that program alone has a GPU
  const int T = c.block_size;
  Trainer<float> trainer(c, pool);
  trainer.initialize(1);
  Batch batch;
  for (int b = 0; b < sequences; b++) {
    std::vector<int> tokens;
    for (int i = 0; i <= T; i++)
      tokens.push_back(int(random_bits(1, uint32_t(b), kStreamBatch, uint64_t(i), 0) % uint64_t(c.vocab_size)));
    batch.add_chain(tokens.data(), T, b * pad64(T), 0);
    batch.target.insert(batch.target.end(), tokens.begin() + 1, tokens.end());
  }
  Update update;
  const auto next = [&] {
    trainer.step(batch, update);
    update.iteration++;
  };
  UpdateClock clock(c);
  UpdateTimes times;
  next();  // touches all memory
  for (int i = 0; i < pairs && working(double(i) / pairs); i++) {
    if (kSeesOperations) {
      clock.watch(next);
      times.seconds.resize(clock.seconds.size());
      for (size_t k = 0; k < clock.seconds.size(); k++) times.seconds[k].push_back(clock.seconds[k]);
    }
    Stopwatch watch;
    next();
    times.whole.push_back(watch.lap());
  }
  return times;
}

}  // namespace nanospec
