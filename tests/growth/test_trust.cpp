// tests/growth/test_trust.cpp: growth/trust.h: chances that are corrected by what came true, and the pace of trying.
#include "growth/trust.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

using namespace nanospec;

namespace {

double logit(double p) { return std::log(p / (1 - p)); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Candidates of falling chances that sum to less than 1.
std::vector<Candidate> candidates(std::mt19937& random, int n) {
  std::vector<Candidate> out;
  float left = 1, chance = 1;
  for (int i = 0; i < n; i++) {
    chance = std::min(chance, left) * (0.3f + 0.7f * float(random() % 1000) / 1000);
    left -= chance;
    out.push_back({i, chance});
  }
  return out;
}

// Shows `trust` the first guess, the second and so on of `forwards` trees, each right with the chance truth(raw, rank).
template <class Truth>
void teach(Trust& trust, int forwards, uint32_t seed, Truth truth) {
  std::mt19937 random(seed);
  for (int turn = 0; turn < forwards; turn++) {
    std::vector<Candidate> guesses = candidates(random, 3);
    trust.correct(guesses.data(), 3);
    for (int rank = 0; rank < 3; rank++)
      trust.observe(guesses[rank], rank, double(random() % 100000) / 100000 < truth(guesses[rank].raw, rank));
    trust.learn();
  }
}

// The mean distance of corrected chances from the true ones.
template <class Truth>
double distance(const Trust& trust, Truth truth) {
  std::mt19937 random(77);
  double sum = 0;
  for (int i = 0; i < 500; i++) {
    std::vector<Candidate> guesses = candidates(random, 3);
    trust.correct(guesses.data(), 3);
    for (int rank = 0; rank < 3; rank++)
      sum += std::fabs(double(guesses[rank].chance) - truth(guesses[rank].raw, rank)) / 1500;
  }
  return sum;
}

}  // namespace

TEST_CASE("trust: corrected chances keep their order and sum to no more than 1; what has no chance gets none") {
  std::mt19937 random(2);
  Trust bold, shy, odd;
  teach(bold, 300, 1, [](float, int) { return 0.95; });
  teach(shy, 300, 1, [](float, int) { return 0.0; });
  teach(odd, 300, 1, [](float raw, int rank) { return rank == 2 ? 0.9 : 0.1 * (1 - raw); });  // the last is the best
  for (const Trust& trust : {Trust(), bold, shy, odd})
    for (int round = 0; round < 200; round++) {
      std::vector<Candidate> guesses = candidates(random, 8);
      const std::vector<Candidate> before = guesses;
      guesses[7].chance = 0;
      trust.correct(guesses.data(), 8);
      double sum = 0;
      for (int rank = 0; rank < 8; rank++) {
        sum += double(guesses[rank].chance);
        CHECK(guesses[rank].chance >= 0);
        CHECK(guesses[rank].token == before[rank].token);
        if (rank < 7) CHECK(guesses[rank].raw == before[rank].chance);
        if (rank > 0) CHECK(guesses[rank].chance <= guesses[rank - 1].chance);
      }
      CHECK(sum <= 1.00001);
      CHECK(guesses[7].chance == 0);
    }
  bold.correct(nullptr, 0);  // a drafter may know no candidate
}

TEST_CASE("trust: it learns what a drafter's chances are worth, and that they are worth something else now") {
  const auto timid = [](float raw, int rank) {
    return sigmoid(1.6 * logit(double(raw)) + 0.4 - 0.3 * std::log(1.0 + rank));
  };
  const auto wild = [](float raw, int rank) {
    return sigmoid(0.3 * logit(double(raw)) - 0.5 - 1.2 * std::log(1.0 + rank));
  };
  const auto blind = [](float, int) { return 0.02; };
  Trust trust;
  CHECK(distance(trust, timid) > 0.06);
  teach(trust, 1000, 5, timid);
  CHECK(distance(trust, timid) < 0.02);
  CHECK(distance(trust, wild) > 0.1);
  teach(trust, 2000, 6, wild);
  CHECK(distance(trust, wild) < 0.03);
  teach(trust, 2000, 7, blind);
  CHECK(distance(trust, blind) < 0.03);
  Trust fresh;  // one that guesses at random is seen through in some dozens of forwards
  CHECK(distance(fresh, blind) > 0.2);
  teach(fresh, 60, 8, blind);
  CHECK(distance(fresh, blind) < 0.08);
}

TEST_CASE("trust: seeing one kind of guess for long does not make it forget how to judge the others") {
  Trust trust;
  for (int i = 0; i < 20000; i++) {
    Candidate guess = {0, 0.5f};
    trust.correct(&guess, 1);
    trust.observe(guess, 0, i % 2 == 0);
    trust.learn();
  }
  Candidate guesses[2] = {{0, 0.5f}, {1, 0.05f}};
  trust.correct(guesses, 2);
  CHECK(guesses[0].chance == doctest::Approx(0.5).epsilon(0.1));
  CHECK(guesses[1].chance > 0.01f);
  CHECK(guesses[1].chance < 0.2f);
}

TEST_CASE("trust: the reliability curve counts what it says") {
  ReliabilityCurve curve;
  count(curve, 0.9f, 0.55f, true), count(curve, 0.7f, 0.58f, false), count(curve, 1, 1, true),
      count(curve, 0, 0, false);
  CHECK(curve[5].nodes == 2);
  CHECK(curve[5].accepted == 1);
  CHECK(curve[5].raw == doctest::Approx(1.6));
  CHECK(curve[5].corrected == doctest::Approx(1.13));
  CHECK(curve[9].accepted == 1);
  CHECK(curve[0].nodes == 1);
}

TEST_CASE("trust: pace: tries get rare while they gain nothing, and frequent as soon as one gains") {
  Pace pace;
  const auto tries = [&](int forwards, double gain) {
    int tries = 0;
    for (int i = 0; i < forwards; i++)
      if (pace.due()) pace.observe(gain), tries++;
    return tries;
  };
  CHECK(tries(100, 0.1) < 95);  // where little is gained, plain decoding is measured beside it
  CHECK(tries(100, 0.1) > 80);
  tries(50, 2);
  CHECK(tries(100, 0.5) == 100);
  tries(2000, -0.05);
  CHECK(tries(6500, -0.05) == 100);  // one in 65
  CHECK(tries(65 + 100, 0.5) >= 100);
  CHECK(tries(100, 0.5) == 100);
  Pace fresh;
  int first = 0;
  for (int i = 0; i < 1000; i++)
    if (fresh.due()) fresh.observe(-0.05), first++;
  CHECK(first < 60);
  for (int i = 0; i < 2; i++) fresh.was_correct();  // it is tried again soon
  int soon = 0;
  for (int i = 0; i < 20; i++)
    if (fresh.due()) fresh.observe(-0.05), soon++;
  CHECK(soon >= 3);
  Pace mixed;  // now and then a tree that gains more than the others cost
  int forwards = 0;
  std::mt19937 random(9);
  for (int i = 0; i < 2000; i++)
    if (mixed.due()) mixed.observe(random() % 4 == 0 ? 0.6 : -0.05), forwards++;
  CHECK(forwards > 1600);
}
