// tests/commands/test_calibration.cpp: commands/calibration.h: rates counted where they are known.
#include "commands/calibration.h"

#include <doctest/doctest.h>

#include "tests/command_line.h"
#include "tests/error_of.h"
#include "tests/mock.h"

using namespace nanospec;

namespace {

// What a drafter's guesses are worth against the mock: as calibrate_command measures it.
RankCounts measured(Mock& mock, Drafter& drafter, const Sampling& sampling, int depths, int ranks, int tokens) {
  std::vector<int> text = {1, 2, 3}, again = text;
  decode_mock(mock, nullptr, Shape(), sampling, tokens, text);
  RankCounts counts{depths, ranks};
  Forced forced(drafter, text, counts);
  const Stats stats =
      decode_mock(mock, &forced, parse_shape("chain:" + std::to_string(depths), 64), sampling, tokens, again);
  CHECK(again == text);
  int64_t accepted = 0;
  for (const auto& [name, n] : stats.accepted_by) accepted += n;
  CHECK(accepted == stats.drafted_nodes);  // every guess of the stand-in is right
  return counts;
}

// Its best guesses are the target's, in another order: the best one comes as the `place`-th.
struct Demoted : SelfDrafter<Mock> {
  int place;
  Demoted(Mock& own, int its_place) : SelfDrafter(own), place(its_place) {}
  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    SelfDrafter::expand(growth, nodes, n, width, draws, candidates, count);
    for (int k = 0; k < n; k++)
      std::rotate(candidates + k * width, candidates + k * width + 1, candidates + k * width + place + 1);
  }
};

}  // namespace

TEST_CASE("calibration: a drafter that is the target is always right, with its first guess") {
  for (float temperature : {0.0f, 1.0f}) {
    Sampling sampling;
    sampling.temperature = temperature;
    Mock mock(20, 32, 1, 2), own(20, 32, 1, 2);
    SelfDrafter<Mock> self(own);
    const RankCounts counts = measured(mock, self, sampling, 4, 3, 100);
    const Accuracy a = counts.accuracy();
    CHECK(a.depths == 4);
    CHECK(a.ranks == 3);
    for (int d = 0; d < 4; d++) {
      CHECK(a.seen[d] >= 10);
      for (int r = 0; r < 3; r++) CHECK(a.at(d, r) == (r == 0));
    }
    CHECK(a.expand_seconds > 0);
    Demoted second(own, 1), third(own, 2);
    const Accuracy b = measured(mock, second, sampling, 4, 3, 100).accuracy();
    for (int d = 0; d < 4; d++)
      for (int r = 0; r < 3; r++) CHECK(b.at(d, r) == (r == 1));
    const Accuracy c = measured(mock, third, sampling, 4, 3, 100).accuracy();  // whom nobody follows
    CHECK(c.at(0, 2) == 1);
    CHECK(c.seen[0] > 90);
    CHECK(c.seen[1] == 0);
    CHECK(c.at(3, 2) == 1);  // for want of any
  }
}

TEST_CASE("calibration: a drafter that knows nothing is right as often as chance, and its path ends where it misses") {
  Sampling sampling;
  sampling.temperature = 0;
  Mock mock(8, 64, 0, 2);
  RandomLogits blind(8);
  const RankCounts counts = measured(mock, blind, sampling, 3, 4, 12000);
  for (int d = 0; d < 3; d++) {
    const double n = double(counts.seen[d]);
    for (int r = 0; r < 4; r++)  // each with a chance of 1 in 8, give or take four standard deviations
      CHECK(std::fabs(double(counts.right[d * 4 + r]) - n / 8) < 4 * std::sqrt(n * 7 / 64));
    const double above = d > 0 ? double(counts.seen[d - 1]) : 0;
    if (d > 0) CHECK(std::fabs(n - above / 4) < 4 * std::sqrt(above * 3 / 16) + above / 40);  // 2 of 8 are followed
  }
  const RankCounts first =
      measured(mock, blind, sampling, 2, 1, 4000);  // alone is followed where it alone is asked for
  CHECK(first.seen[1] > 0);
  CHECK(first.seen[1] < first.seen[0] / 4);
  RankCounts few{2, 1};
  few.seen = {100, 20}, few.right = {80, 0};
  CHECK(few.accuracy().at(0, 0) == 0.8);
  CHECK(few.accuracy().at(1, 0) == doctest::Approx(0.4));  // as much believed as the depth above
  RankCounts mute{4, 1};                                   // as heads below the last of them
  mute.seen = {100, 50, 3, 0}, mute.silent = {10, 0, 3, 0}, mute.right = {80, 40, 0, 0};
  const Accuracy heads = mute.accuracy();
  CHECK(heads.at(0, 0) == 0.8);
  CHECK(heads.at(1, 0) == doctest::Approx(0.8));
  CHECK(heads.at(2, 0) == 0);
  CHECK(heads.at(3, 0) == 0);  // nor anything below it
  const RankCounts unseen{2, 2};
  CHECK(unseen.accuracy().at(1, 0) == 0);
  CHECK(unseen.places() == 0);
}

TEST_CASE("calibration: a drafter that is silent below some depth is right there never") {
  struct Shallow : SelfDrafter<Mock> {
    using SelfDrafter::SelfDrafter;
    const float* logits(const Growth& growth, int node) override {
      return growth.depth[node] < 2 ? SelfDrafter::logits(growth, node) : nullptr;
    }
  };
  Mock mock(20, 64, 1, 2), own(20, 64, 1, 2);
  Shallow shallow(own);
  const Accuracy a = measured(mock, shallow, Sampling(), 4, 3, 50).accuracy();
  CHECK(a.at(1, 0) == 1);
  CHECK(a.seen[2] > 0);
  for (int d : {2, 3})
    for (int r = 0; r < 3; r++) CHECK(a.at(d, r) == 0);
}
