// tests/study/test_update.cpp: one update of training by operation: its work by hand, and the clock that sees each of
// them and changes nothing.
#include "study/update.h"

#include <doctest/doctest.h>

#include <set>

#include "commands/samples.h"

using namespace nanospec;

namespace {

Config tiny() {
  Config c;
  c.n_layer = 2, c.n_head = c.n_kv_head = 2, c.n_embd = 32, c.block_size = 16, c.vocab_size = 11;
  return c;
}

}  // namespace

TEST_CASE("update: the work of each operation, by hand") {
  const Config c = tiny();
  const std::vector<UpdateWork> work = update_work(c, 3);
  const double R = 48, L = 2, C = 32;
  CHECK(work.size() == kUpdateOperations);
  CHECK(work[kUpFc].name == "fc");
  CHECK(work[kUpFc].flops == 2 * L * R * 32 * 128);
  CHECK(work[kUpFc].bytes == 4 * L * (R * 32 + 32 * 128 + R * 128));
  for (int same : {kUpFcInput, kUpFcWeight, kUpFcProj, kUpFcProjInput, kUpFcProjWeight}) {
    CHECK(work[size_t(same)].flops == work[kUpFc].flops);
    CHECK(work[size_t(same)].bytes == work[kUpFc].bytes);
  }
  CHECK(work[kUpQkv].bytes == 4 * L * (R * 32 + 32 * 96 + R * 96));
  CHECK(work[kUpHeadWeight].bytes == 4 * (R * 11 + 11 * 32 + R * 32));
  CHECK(work[kUpNormsBackward].bytes == 4 * 5 * 3 * R * C);  // x, dy, dx; of 5 norms
  CHECK(work[kUpAttention].flops == L * 2 * 2 * R * C * 17 / 2);
  CHECK(work[kUpAttention].bytes == 4 * L * R * (96 + 32 + 2));
  CHECK(work[kUpOther].bytes == 0);

  // All products: three of each matrix, and seven of causal attention, two forward and five backward.
  double flops = 0;
  for (const UpdateWork& one : work) flops += one.flops;
  const double matrices = L * 12 * C * C + 11 * C;
  CHECK(flops == 6 * R * matrices + 7 * L * 2 * R * C * 17 / 2);
  std::set<std::string> names;
  for (const UpdateWork& one : work) names.insert(one.name);
  CHECK(names.size() == kUpdateOperations);

  const UpdateBound slow = update_bound({"", 100, 10}, 10, 100), wide = update_bound({"", 10, 100}, 10, 10);
  CHECK(slow.seconds == 10);
  CHECK(slow.computes);
  CHECK(wide.seconds == 10);
  CHECK(!wide.computes);
}

TEST_CASE("update: the clock sees every operation, on one thread alone, and changes no bit") {
  const Config c = tiny();
  for (int threads : {1, 2}) {
    CAPTURE(threads);
    Pool pool(threads);
    Trainer<float> watched(c, pool), alone(c, pool);
    watched.initialize(3);
    alone.initialize(3);
    Batch batch;
    std::vector<int> tokens;
    for (int i = 0; i < 17; i++) tokens.push_back(i * i % 11);
    for (int b = 0; b < 2; b++) {
      batch.add_chain(tokens.data(), 16, 64 * b, 0);
      batch.target.insert(batch.target.end(), tokens.begin() + 1, tokens.end());
    }
    UpdateClock clock(c);
    for (int i = 0; i < 3; i++) {
      Update update;
      update.iteration = i;
      const auto begin = std::chrono::steady_clock::now();
      clock.watch([&] { watched.step(batch, update); });
      const double whole = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      alone.step(batch, update);
      CHECK(observer == nullptr);
      double sum = 0;
      for (double seconds : clock.seconds) sum += seconds;
      CHECK(sum <= whole);
      for (int k = 0; k < kUpOther; k++) {
        CAPTURE(update_work(c, 2)[size_t(k)].name);
        const bool runs = k != kUpWaiting || threads > 1;  // one thread has no other half to wait for
        CHECK((clock.begun[size_t(k)] > 0) == runs);
        CHECK((clock.seconds[size_t(k)] > 0) == runs);
      }
      CHECK(clock.begun[kUpOther] == 0);
      const int halves = threads == 1 ? 2 : 1;  // of the batch, that one thread runs
      CHECK(clock.begun[kUpEmbedding] == halves);
      CHECK(clock.begun[kUpLoss] == halves + 1);  // of rows, their mean
      CHECK(clock.begun[kUpAdamW] == 3);
    }
    CHECK(memcmp(watched.weights.data(), alone.weights.data(), alone.weights.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("update: a measurement has as many updates watched as not, and ends when it is told to") {
  Pool pool(1);
  int asked = 0;
  const UpdateTimes times = measure_update(tiny(), 2, 5, pool, [&](double done) {
    CHECK(done == asked / 5.0);
    return asked++ < 3;
  });
  CHECK(times.whole.size() == 3);
  for (const auto& one : times.seconds) CHECK(one.size() == 3);
  for (size_t i = 0; i < 3; i++) {
    CHECK(times.sum(i) >= times.sum(times.fastest()));
    CHECK(times.sum(i) < 100 * highest(times.whole));  // the same work, on a busy machine
  }
}
