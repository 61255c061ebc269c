// tests/study/test_update.cpp: one update of training by operation: its work by hand, and the clock that sees each of
// them and changes nothing.
#include "study/update.h"

#include <doctest/doctest.h>

#include <set>

#include "growth/clock.h"

using namespace nanospec;

namespace {

Config update_config() {
  Config c;
  c.n_layer = 2, c.n_head = c.n_kv_head = 2, c.n_embd = 32, c.block_size = 16, c.vocab_size = 11;
  return c;
}

size_t at(const char* name) {
  const std::vector<UpdateWork> work = update_work(update_config(), 3);
  for (size_t i = 0; i < work.size(); i++)
    if (work[i].name == name) return i;
  FAIL(name);
  return 0;
}

}  // namespace

TEST_CASE("update: the work of each operation, by hand") {
  const Config c = update_config();
  const std::vector<UpdateWork> work = update_work(c, 3);
  const double R = 48, L = 2, C = 32;
  CHECK(work[at("fc")].name == "fc");
  CHECK(work[at("fc")].flops == 2 * L * R * 32 * 128);
  CHECK(work[at("fc")].bytes == 4 * L * (R * 32 + 32 * 128 + R * 128));
  for (const char* same : {"fc: input", "fc: weight", "fc_proj", "fc_proj: input", "fc_proj: weight"}) {
    CHECK(work[at(same)].flops == work[at("fc")].flops);
    CHECK(work[at(same)].bytes == work[at("fc")].bytes);
  }
  CHECK(work[at("qkv")].bytes == 4 * L * (R * 32 + 32 * 96 + R * 96));
  CHECK(work[at("head: weight")].bytes == 4 * (R * 11 + 11 * 32 + R * 32));
  CHECK(work[at("norms backward")].bytes == 4 * 5 * 3 * R * C);  // x, dy, dx; of 5 norms
  CHECK(work[at("attention")].flops == L * 2 * 2 * R * C * 17 / 2);
  CHECK(work[at("attention")].bytes == 4 * L * R * (96 + 32 + 2));
  CHECK(work[at("other")].bytes == 0);

  // All products: three of each matrix, and seven of causal attention, two forward and five backward.
  double flops = 0;
  for (const UpdateWork& one : work) flops += one.flops;
  const double matrices = L * 12 * C * C + 11 * C;
  CHECK(flops == 6 * R * matrices + 7 * L * 2 * R * C * 17 / 2);
  std::set<std::string> names;
  for (const UpdateWork& one : work) names.insert(one.name);
  CHECK(names.size() == work.size());
}

TEST_CASE("update: the clock sees every operation, on one thread alone, and changes no bit") {
  const Config c = update_config();
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
      for (size_t k = 0; k < at("other"); k++) {
        CAPTURE(update_work(c, 2)[k].name);
        const bool runs = k != at("waiting for a half") || threads > 1;  // one thread has no other half to wait for
        CHECK((clock.begun[k] > 0) == runs);
        CHECK((clock.seconds[k] > 0) == runs);
      }
      CHECK(clock.begun[at("other")] == 0);
      const int halves = threads == 1 ? 2 : 1;  // of the batch, that one thread runs
      CHECK(clock.begun[at("embedding")] == halves);
      CHECK(clock.begun[at("loss")] == halves + 1);  // of rows, their mean
      CHECK(clock.begun[at("clipping, AdamW")] == 3);
    }
    CHECK(memcmp(watched.weights.data(), alone.weights.data(), alone.weights.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("update: a measurement has as many updates watched as not, and ends when it is told to") {
  int asked = 0;
  const UpdateTimes times = measure_update(update_config(), 2, 5, 1, [&](double done) {
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
