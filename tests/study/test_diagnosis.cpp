// tests/study/test_diagnosis.cpp: study/diagnosis.h: what is counted iteration by iteration agrees with what the loop
// counts, and with what is known.
#include "study/diagnosis.h"

#include <doctest/doctest.h>

#include "tests/mock.h"

using namespace nanospec;

namespace {

struct Examined {
  Diagnosis diagnosis;
  Stats stats;
  int64_t of(Stop stop) const { return diagnosis.stops[size_t(stop)]; }
};

Examined examined(Mock& mock, Drafter& drafter, const std::string& shape, int budget, int tokens,
                  Rule rule = Rule::kMatch, float temperature = 1, double node_cost = 0) {
  Decoding decoding;
  decoding.shape = parse_shape(shape, budget), decoding.max_new_tokens = tokens, decoding.rule = rule;
  decoding.sampling.temperature = temperature;
  std::vector<double> seconds;
  for (int n = 0; n <= budget; n++) seconds.push_back(1e-4 * (1 + node_cost * n));
  decoding.cost = std::make_shared<Cost>(seconds);
  Examined e = {Diagnosis(decoding.shape), {}};
  decoding.on_iteration = [&](const IterationReport& report) { e.diagnosis.add(report); };
  std::vector<int> text = {1, 2};
  e.stats = generate(mock, &drafter, decoding, text, [](int) { return true; });
  return e;
}

int64_t sum(const std::vector<int64_t>& values) {
  int64_t all = 0;
  for (int64_t value : values) all += value;
  return all;
}

}  // namespace

TEST_CASE("diagnosis: its sums are those of the loop's own statistics") {
  Mock mock(40, 32, 2, 1), own(40, 32, 2, 1.3f);
  SelfDrafter<Mock> near_target(own);  // other logits, from the same habits
  RandomLogits blind(40);
  for (Drafter* drafter : {static_cast<Drafter*>(&near_target), static_cast<Drafter*>(&blind)})
    for (const char* shape : {"chain:4", "tree:2x3", "auto", "best-first", "beam:3", "entropy-width"})
      for (Rule rule : {Rule::kMatch, Rule::kTypical}) {
        const Examined e = examined(mock, *drafter, shape, 14, 300, rule);
        const Diagnosis& d = e.diagnosis;
        CAPTURE(shape);
        CHECK(d.forwards == e.stats.target_forwards);
        CHECK(sum({d.stops.begin(), d.stops.end()}) == d.forwards);
        CHECK(sum(d.drafted) == e.stats.drafted_nodes);
        CHECK(sum(d.accepted) + d.forwards == e.stats.tokens);
        for (const std::vector<Unsure>& nodes : {d.by_q, d.by_confidence}) {
          CHECK(int64_t(nodes.size()) == sum(d.asked));
          const auto right = [](const Unsure& one) { return one.right; };
          CHECK(std::count_if(nodes.begin(), nodes.end(), right) == sum(d.accepted));
          int64_t binned = 0;
          for (const Bin& bin : by_entropy(nodes)) binned += bin.nodes;
          CHECK(binned == sum(d.asked));
        }
        CHECK(e.of(Stop::kNoNode) + e.of(Stop::kNotGuessed) == sum(d.asked) - sum(d.accepted));
        CHECK(sum({d.missing_rank.begin(), d.missing_rank.end()}) == e.of(Stop::kNoNode));
        CHECK(d.raw.nodes() == d.corrected.nodes());
        double raw = 0;  // the loop sorts by corrected chances
        for (size_t i = 0; i < 10; i++) {
          CHECK(d.corrected.tenths[i].nodes == e.stats.reliability[i].nodes);
          CHECK(d.corrected.tenths[i].right == e.stats.reliability[i].accepted);
          CHECK(d.corrected.tenths[i].promised == doctest::Approx(e.stats.reliability[i].corrected));
          raw += d.raw.tenths[i].promised - e.stats.reliability[i].raw;
        }
        CHECK(raw == doctest::Approx(0));
      }
}

TEST_CASE("diagnosis: which guess was right, and why a path stopped, where it is known") {
  Mock mock(40, 32, 2, 1), own(40, 32, 2, 1);
  SelfDrafter<Mock> self(own);
  Examined e = examined(mock, self, "chain:3", 64, 200);  // always right
  const Diagnosis& d = e.diagnosis;
  for (size_t depth = 0; depth < 3; depth++) CHECK(d.right[depth][0] == d.asked[depth]);
  CHECK(sum(d.drafted) == sum(d.accepted));
  CHECK(e.of(Stop::kShape) + e.of(Stop::kEnd) == d.forwards);
  CHECK(e.of(Stop::kShape) > 20);
  CHECK(e.of(Stop::kEnd) > 0);
  CHECK(separation(d.by_q) == 0.5);  // nothing went wrong
  e = examined(mock, self, "best-first", 4, 200);
  CHECK(e.of(Stop::kBudget) + e.of(Stop::kEnd) == e.diagnosis.forwards);
  CHECK(e.of(Stop::kBudget) > 20);

  WrongDrafter<Mock> wrong(own);  // never
  e = examined(mock, wrong, "tree:1x2", 64, 100);
  CHECK(e.of(Stop::kNotGuessed) == e.stats.drafted_nodes / 2);
  CHECK(e.of(Stop::kNoNode) == 0);
  CHECK(sum(e.diagnosis.accepted) == 0);
  CHECK(e.diagnosis.corrected.brier() > 0);

  Mock small(8, 32, 0, 2);
  RandomLogits blind(8);  // all tokens are among its best guesses
  e = examined(small, blind, "tree:1x2", 64, 2000, Rule::kMatch, 0);
  CHECK(e.of(Stop::kNotGuessed) == 0);
  for (int rank : {0, 1}) CHECK(e.diagnosis.missing_rank[rank] == 0);
  for (int rank = 0; rank < 8; rank++)
    CHECK(std::fabs(double(e.diagnosis.right[0][rank]) / double(e.diagnosis.asked[0]) - 0.125) < 0.035);

  e = examined(small, blind, "auto", 8, 1500, Rule::kMatch, 0, 1);  // a node costs as much as a forward of the root
  CHECK(e.of(Stop::kNotTried) > 20);
  CHECK(e.of(Stop::kShape) > 20);  // tried, and no node was worth it
}

TEST_CASE("diagnosis: entropies that tell right from wrong, and forecasts by hand") {
  std::vector<Unsure> unsure = {{0.1f, true}, {0.2f, true}, {0.7f, false}, {9, false}};
  CHECK(separation(unsure) == 1);
  CHECK(separation({{1, true}, {1, true}, {1, false}, {1, false}}) == 0.5);
  unsure.push_back({0.05f, false});  // below both right ones: 4 pairs of 6 in order
  CHECK(separation(unsure) == doctest::Approx(4.0 / 6));
  CHECK(separation({{1, true}}) == 0.5);
  const Bins bins = by_entropy(unsure);
  CHECK(bins[0].right == 2);
  CHECK(bins[0].nodes == 3);
  CHECK(bins[1].right == 0);
  CHECK(bins[1].nodes == 1);
  CHECK(bins[kBins - 1].nodes == 1);

  Forecast forecast;
  forecast.tenths[2] = {10, 5, 2.5};  // promised a quarter, kept a half
  forecast.tenths[9] = {10, 9, 9};
  forecast.squares = 4;
  CHECK(forecast.brier() == 0.2);
  CHECK(forecast.calibration_error() == doctest::Approx(2.5 / 20));
  CHECK(forecast.tenths[2].foretold() == 0.25);
  CHECK(forecast.tenths[2].share() == 0.5);
  CHECK(Forecast().brier() == 0);
  CHECK(Bin().share() == 0);
}
