// tests/core/test_sample.cpp: sample.h: floats in order, what top-k and top-p keep, the noise, the pick and its
// distribution.
#include "sample.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "tests/mock.h"

using namespace nanospec;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

Sampling sampling_of(float temperature, int top_k = 0, float top_p = 1, uint64_t seed = 1, float min_p = 0) {
  Sampling sampling;
  sampling.temperature = temperature, sampling.top_k = top_k, sampling.top_p = top_p, sampling.seed = seed;
  sampling.min_p = min_p;
  return sampling;
}

float random_normal(uint64_t seed, int i) {
  double sum = -6;
  for (int k = 0; k < 12; k++) sum += uniform(random_bits(seed, uint32_t(k), 1000, 0, uint32_t(i)));
  return float(sum);
}

// V logits of standard deviation `spread`; with `steps` they are rounded, so that many are equal.
std::vector<float> random_logits(uint64_t seed, int vocab, float spread, bool steps = false) {
  std::vector<float> logits(vocab);
  for (int x = 0; x < vocab; x++) {
    logits[x] = spread * random_normal(seed, x);
    if (steps) logits[x] = std::round(logits[x]) / 2;
  }
  return logits;
}

std::vector<char> kept_set(const std::vector<float>& logits, const Sampling& sampling) {
  const float least = kept_threshold(Solo{}, logits.data(), int(logits.size()), sampling);
  std::vector<char> kept;
  for (float logit : logits) kept.push_back(logit >= least);
  return kept;
}

// The same by sorting: the logit of the k-th place and all equal to it; then whole groups of equal logits, from the
// top, until their share reaches top_p; of these, what has enough of the first one's weight.
std::vector<char> kept_by_sorting(const std::vector<float>& logits, const Sampling& sampling) {
  std::vector<float> sorted = logits;
  std::sort(sorted.begin(), sorted.end(), std::greater<float>());
  float least = sorted.back();
  if (sampling.top_k > 0) least = sorted[std::min<size_t>(sampling.top_k, sorted.size()) - 1];
  const auto weight_of = [&](float x) { return double(nanospec::exp((x - sorted[0]) / sampling.temperature)); };
  double total = 0, sum = 0;
  for (float x : sorted) total += x >= least ? weight_of(x) : 0;
  if (sampling.top_p < 1)
    for (size_t i = 0; i < sorted.size() && sorted[i] >= least; i++) {
      sum += weight_of(sorted[i]);
      if (i + 1 < sorted.size() && sorted[i + 1] == sorted[i]) continue;
      if (sum >= double(sampling.top_p) * total) least = sorted[i];
    }
  std::vector<char> kept;
  for (float logit : logits) kept.push_back(logit >= least && !(weight_of(logit) < double(sampling.min_p)));
  return kept;
}

}  // namespace

TEST_CASE("sample: integers that order floats") {
  const std::vector<float> ascending = {-kInf, -3e38f, -1e30f, -2,      -1.0000001f, -1,    -1e-30f, -1e-44f,
                                        0,     1e-44f, 1e-30f, 0.9999f, 1,           1e30f, 3e38f,   kInf};
  for (size_t i = 0; i < ascending.size(); i++) {
    CHECK(from_ordered(ordered(ascending[i])) == ascending[i]);
    if (i > 0) CHECK(ordered(ascending[i - 1]) < ordered(ascending[i]));
    CHECK(ordered(kNan) < ordered(ascending[i]));
    CHECK(ordered(-kNan) < ordered(ascending[i]));
  }
  CHECK(ordered(-0.0f) == ordered(0.0f));
  CHECK(ranked(1, 7) > ranked(1, 8));
  CHECK(ranked(1, 7) < ranked(1.0000001f, 50000));
  CHECK(token_of(ranked(-2.5f, 50256)) == 50256);
  CHECK(from_ordered(key_of(ranked(-2.5f, 50256))) == -2.5f);
}

TEST_CASE("sample: pick by hand") {
  const std::vector<float> logits = {1, 3, 2, 3, -1};
  CHECK(pick(logits.data(), nullptr, 5, sampling_of(0)) == 1);  // of the tie 1, 3 the lowest
  const std::vector<float> none(5, 0);
  CHECK(pick(logits.data(), none.data(), 5, sampling_of(1)) == 1);
  const std::vector<float> noise = {0, 0, 3, 1.5f, 6};  // logit + T noise at T = 0.5: 1, 3, 3.5, 3.75, 2
  CHECK(pick(logits.data(), noise.data(), 5, sampling_of(0.5f)) == 3);
  CHECK(pick(logits.data(), noise.data(), 5, sampling_of(1)) == 2);     // 1, 3, 5, 4.5, 5: a tie, the lowest
  CHECK(pick(logits.data(), noise.data(), 5, sampling_of(2)) == 4);     // 1, 3, 8, 6, 11
  CHECK(pick(logits.data(), noise.data(), 5, sampling_of(2, 3)) == 2);  // 4 is not among the three likeliest
  CHECK(pick(logits.data(), noise.data(), 5, sampling_of(2, 1)) == 3);  // 1 and 3 are tied for one place: both kept
  CHECK(pick(logits.data(), noise.data(), 5, sampling_of(2, 0, 0.01f)) == 3);  // likewise
  CHECK(pick(logits.data(), noise.data(), 5, sampling_of(1e-30f)) == 1);
}

TEST_CASE("sample: a NaN logit is never picked while there is another") {
  std::vector<float> logits = {kNan, 1, kNan, 2, -kInf};
  const std::vector<float> noise = {9, 0, 9, 0, 9};
  for (const Sampling& s :
       {sampling_of(0), sampling_of(1), sampling_of(1, 1), sampling_of(1, 4), sampling_of(1, 0, 0.5f)})
    CHECK(pick(logits.data(), noise.data(), 5, s) == 3);
  std::vector<float> p(5);
  distribution(logits.data(), 5, sampling_of(1), p.data());
  CHECK(p[0] == 0);
  CHECK(p[1] + p[3] == doctest::Approx(1));
  logits.assign(5, kNan);
  for (const Sampling& s : {sampling_of(0), sampling_of(1), sampling_of(1, 2), sampling_of(1, 2, 0.5f)}) {
    CHECK(pick(logits.data(), noise.data(), 5, s) == 0);
    distribution(logits.data(), 5, s, p.data());
    CHECK(p == std::vector<float>{1, 0, 0, 0, 0});
  }
  for (float odd : {kInf, -kInf, 3e38f, -3e38f, 1e-44f}) {  // no crash, and a token of the vocabulary
    logits.assign(5, odd), logits[3] = 0;
    for (const Sampling& s : {sampling_of(0), sampling_of(1, 2), sampling_of(1e-38f, 2, 0.5f), sampling_of(3e38f)}) {
      const int token = pick(logits.data(), noise.data(), 5, s);
      CHECK((token >= 0 && token < 5));
      distribution(logits.data(), 5, s, p.data());
      CHECK(draw(p.data(), 5, 0.5) < 5);
    }
  }
}

TEST_CASE("sample: top-k and top-p by hand") {
  std::vector<float> logits;
  for (double p : {0.2, 0.5, 0.3}) logits.push_back(float(std::log(p)));
  using Kept = std::vector<char>;
  CHECK(kept_set(logits, sampling_of(1)) == Kept{1, 1, 1});
  CHECK(kept_set(logits, sampling_of(1, 2)) == Kept{0, 1, 1});
  CHECK(kept_set(logits, sampling_of(1, 5)) == Kept{1, 1, 1});
  CHECK(kept_set(logits, sampling_of(1, 0, 0.49f)) == Kept{0, 1, 0});
  CHECK(kept_set(logits, sampling_of(1, 0, 0.51f)) == Kept{0, 1, 1});
  CHECK(kept_set(logits, sampling_of(1, 0, 0.79f)) == Kept{0, 1, 1});
  CHECK(kept_set(logits, sampling_of(1, 0, 0.81f)) == Kept{1, 1, 1});
  CHECK(kept_set(logits, sampling_of(1, 2, 0.62f)) == Kept{0, 1, 0});  // of two: .625, .375
  CHECK(kept_set(logits, sampling_of(1, 2, 0.63f)) == Kept{0, 1, 1});
  CHECK(kept_set(logits, sampling_of(0.5f, 0, 0.64f)) == Kept{0, 1, 0});  // .105, .658, .237: temperature comes first
  CHECK(kept_set(std::vector<float>(6, 1.5f), sampling_of(1, 2, 0.3f)) == Kept(6, 1));
}

TEST_CASE("sample: min-p by hand") {
  using Kept = std::vector<char>;
  const std::vector<float> logits = {0, 2, 1};  // of the likeliest: .135, 1, .368
  CHECK(kept_set(logits, sampling_of(1, 0, 1, 1, 0.13f)) == Kept{1, 1, 1});
  CHECK(kept_set(logits, sampling_of(1, 0, 1, 1, 0.14f)) == Kept{0, 1, 1});
  CHECK(kept_set(logits, sampling_of(1, 0, 1, 1, 0.37f)) == Kept{0, 1, 0});
  CHECK(kept_set(logits, sampling_of(2, 0, 1, 1, 0.37f)) == Kept{0, 1, 1});  // .368, 1, .607: temperature comes first
  CHECK(kept_set(logits, sampling_of(1, 2, 1, 1, 0.13f)) == Kept{0, 1, 1});
  CHECK(kept_set(logits, sampling_of(1, 0, 0.6f, 1, 0.13f)) == Kept{0, 1, 0});
  CHECK(kept_set({3, 3, 1}, sampling_of(1, 0, 1, 1, 1)) == Kept{1, 1, 0});
  CHECK(kept_set(logits, sampling_of(0, 0, 1, 1, 1)) == Kept{1, 1, 1});
}

TEST_CASE("sample: top-k, top-p and min-p keep what a slow sort keeps") {
  int cases = 0;
  for (int vocab : {1, 2, 5, 31, 65, 1000})
    for (uint64_t seed = 0; seed < 6; seed++)
      for (bool steps : {false, true})
        for (float temperature : {0.4f, 1.0f, 1.5f}) {
          std::vector<float> logits = random_logits(seed, vocab, seed % 2 ? 3.0f : 0.7f, steps);
          if (seed == 4) logits[vocab / 2] = -kInf;
          if (seed == 5) logits[vocab / 2] = -1e30f, logits[0] = 1e-40f;
          for (int k : {0, 1, 2, 3, 5, 10, 64, vocab})
            for (float p : {1.0f, 0.999f, 0.9f, 0.5f, 0.1f, 1e-6f}) {
              const float min_p = cases % 3 == 1 ? 0.07f : cases % 3 == 2 ? 0.5f : 0;
              const Sampling sampling = sampling_of(temperature, k, p, 1, min_p);
              if (kept_set(logits, sampling) != kept_by_sorting(logits, sampling)) {
                FAIL_CHECK("vocab " << vocab << " seed " << seed << " steps " << steps << " temperature " << temperature
                                    << " top_k " << k << " top_p " << p << " min_p " << min_p);
              }
              cases++;
            }
        }
  CHECK(cases == 6 * 6 * 2 * 3 * 8 * 6);
}

TEST_CASE("sample: a vocabulary of 50,257") {
  const int vocab = 50257;
  const std::vector<float> logits = random_logits(3, vocab, 2.5f), stepped = random_logits(3, vocab, 2.5f, true);
  for (const Sampling& sampling : {sampling_of(1, 50), sampling_of(0.8f, 0, 0.95f), sampling_of(1, 200, 0.9f)}) {
    CHECK(kept_set(logits, sampling) == kept_by_sorting(logits, sampling));
    CHECK(kept_set(stepped, sampling) == kept_by_sorting(stepped, sampling));
  }
  const std::vector<char> kept = kept_set(logits, sampling_of(1, 50));
  CHECK(std::count(kept.begin(), kept.end(), 1) >= 50);
  const Sampling sampling = sampling_of(1, 50);
  Noise noise(sampling, vocab);
  int best = 0;
  const float* row = noise.row(12);
  for (int x = 0; x < vocab; x++)
    if (kept[x] && (!kept[best] || logits[x] + row[x] > logits[best] + row[best])) best = x;
  CHECK(pick(logits.data(), row, vocab, sampling) == best);
}

namespace {

// Compiled outside any loop.
[[gnu::noinline]] float gumbel_alone(uint32_t bits) { return gumbel(exponential(bits)); }

// The 32 random bits of a token's noise.
uint32_t noise_bits(const Sampling& sampling, Stream stream, int64_t index, int token) {
  const int block = token / kNoiseBlock, lane = token % kLanes, word = token % kNoiseBlock / kLanes;
  return philox(sampling.seed, sampling.sequence, stream, uint64_t(index), uint32_t(block * kLanes + lane)).word[word];
}

}  // namespace

TEST_CASE("sample: a draw of noise is within its stated error, from one end of its 32 bits to the other") {
  double worst = 0;
  const auto visit = [&](uint32_t bits) {
    const long double u = ((long double)bits + 0.5L) / 4294967296, v = ((long double)~bits + 0.5L) / 4294967296;
    const long double exact = -std::log(v < u ? -std::log1p(-v) : -std::log(u));
    worst = std::max(worst, double(std::fabs(gumbel_alone(bits) - exact) / std::max(1.0L, std::fabs(exact))));
  };
  for (uint32_t i = 0; i < 300000; i++) visit(i * 14316u);   // everywhere
  for (uint32_t i = 0; i < 20000; i++) visit(i), visit(~i);  // both tails
  for (uint32_t i = 0; i < 32; i++)                          // around the powers of two
    for (uint32_t near = 0; near < 9; near++) visit((1u << i) + near - 4), visit(~((1u << i) + near - 4));
  for (uint32_t i = 0; i < 20000; i++) visit(0x4afb0cccu + 64 * (i - 10000)), visit(0xb45980beu + 64 * (i - 10000));
  CHECK(worst < 3.2e-7);

  CHECK(gumbel_alone(0) == doctest::Approx(-std::log(33 * std::log(2.0))).epsilon(1e-6));
  CHECK(gumbel_alone(~0u) == doctest::Approx(33 * std::log(2.0)).epsilon(1e-6));
  int equal = 0, falling = 0;
  for (uint32_t i = 0; i < 65535; i++) equal += gumbel_alone(~i) == gumbel_alone(~i - 1);  // the tail uses every bit
  for (uint32_t i = 0; i < 65535; i++) falling += gumbel_alone(i << 16) > gumbel_alone((i + 1) << 16);
  CHECK(equal == 0);
  CHECK(falling == 0);
}

TEST_CASE("sample: noise is a function of its place alone, whatever was asked before") {
  const Sampling sampling = sampling_of(1, 0, 1, 77);
  const int vocab = 300;  // more than two blocks
  Noise noise(sampling, vocab), again(sampling, vocab), other(sampling, vocab, kStreamDraft);
  for (int64_t index : {0, 5, 64, 0, 128, 5, 1000000, 64}) {
    const float* row = noise.row(index);
    int unlike = 0;
    for (int x = 0; x < vocab; x++) unlike += row[x] != gumbel_alone(noise_bits(sampling, kStreamSample, index, x));
    CHECK(unlike == 0);
  }
  const std::vector<float> first(noise.row(9), noise.row(9) + vocab);
  for (int64_t index = 500; index >= 9; index--) again.row(index);
  CHECK(first == std::vector<float>(again.row(9), again.row(9) + vocab));
  CHECK(first != std::vector<float>(again.row(10), again.row(10) + vocab));
  CHECK(first != std::vector<float>(other.row(9), other.row(9) + vocab));
  Sampling next = sampling;
  next.sequence = 1;
  Noise sibling(next, vocab);
  CHECK(first != std::vector<float>(sibling.row(9), sibling.row(9) + vocab));
  for (int fewer : {1, 31, 64, 65, 128, 129}) {  // nor does it depend on the size of the vocabulary
    Noise small(sampling, fewer);
    CHECK(std::equal(first.begin(), first.begin() + fewer, small.row(9)));
  }
  std::vector<float> sorted = first;  // and no two tokens share their bits
  std::sort(sorted.begin(), sorted.end());
  CHECK(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end());
}

TEST_CASE("sample: noise has the Gumbel distribution, and tokens that share a call of Philox are independent") {
  const int vocab = 256, rows = 400, n = vocab * rows;
  Noise noise(sampling_of(1, 0, 1, 5), vocab);
  std::vector<double> draws;
  for (int i = 0; i < rows; i++) draws.insert(draws.end(), noise.row(i), noise.row(i) + vocab);
  const double mean = 0.57721566490153286, variance = 1.6449340668482264;
  double sum = 0, squares = 0, shared = 0;
  for (int i = 0; i < n; i++) {
    sum += draws[i] - mean, squares += (draws[i] - mean) * (draws[i] - mean);
    shared += (draws[i] - mean) * (draws[i ^ kLanes] - mean);  // each pair twice
  }
  CHECK(std::fabs(sum / n) < 4 * std::sqrt(variance / n));
  CHECK(std::fabs(squares / n - variance) < 4 * std::sqrt(4.4 * variance * variance / n));  // kurtosis 5.4
  CHECK(std::fabs(shared / n) < 4 * std::sqrt(2.0 / n) * variance);
  std::sort(draws.begin(), draws.end());
  double gap = 0;  // Kolmogorov and Smirnov's
  for (int i = 0; i < n; i++) gap = std::max(gap, std::fabs(std::exp(-std::exp(-draws[i])) - (i + 0.5) / n));
  CHECK(gap * std::sqrt(n) < 1.95);  // one seed in a thousand exceeds it; this one is fixed
}

TEST_CASE("sample: picks are distributed as softmax(logits / temperature) over the kept tokens") {
  const int vocab = 12, draws = 20000;
  const std::vector<float> logits = random_logits(21, vocab, 1);
  for (const Sampling& like :
       {sampling_of(1), sampling_of(0.6f), sampling_of(1.5f), sampling_of(1, 5), sampling_of(0.8f, 0, 0.8f)}) {
    std::vector<double> expected(vocab), wrong(vocab);
    double total = 0, wrong_total = 0;
    const std::vector<char> kept = kept_by_sorting(logits, like);
    for (int x = 0; x < vocab; x++) {
      total += expected[x] = kept[x] ? std::exp(double(logits[x]) / like.temperature) : 0;
      wrong_total += wrong[x] = kept[x] ? std::exp(double(logits[x]) / like.temperature / 1.1) : 0;
    }
    for (int x = 0; x < vocab; x++) expected[x] /= total, wrong[x] /= wrong_total;
    std::vector<float> p(vocab);
    distribution(logits.data(), vocab, like, p.data());
    for (int x = 0; x < vocab; x++) CHECK(double(p[x]) == doctest::Approx(expected[x]).epsilon(1e-5));
    for (uint64_t seed = 1; seed <= 8; seed++) {
      Sampling sampling = like;
      sampling.seed = seed;
      Noise noise(sampling, vocab);
      std::vector<int64_t> counts(vocab, 0);
      for (int i = 0; i < draws; i++) counts[pick(logits.data(), noise.row(i), vocab, sampling)]++;
      CHECK(chi_square_p(counts, expected) > 1e-4);  // 40 seeds: one of 250 sets would fail by chance
      CHECK(chi_square_p(counts, wrong) < 1e-4);
    }
  }
}

TEST_CASE("sample: draws follow their weights and never take a zero") {
  const std::vector<float> weights = {0, 2, 0, 1, 5, 0};
  CHECK(draw(weights.data(), 6, 1e-12) == 1);
  CHECK(draw(weights.data(), 6, 0.2499) == 1);
  CHECK(draw(weights.data(), 6, 0.2501) == 3);
  CHECK(draw(weights.data(), 6, 0.3751) == 4);
  CHECK(draw(weights.data(), 6, 1 - 1e-17) == 4);
  const std::vector<float> zeros(6, 0);
  CHECK(draw(zeros.data(), 6, 0.5) == 0);
  std::vector<int64_t> counts(6, 0);
  for (int i = 0; i < 8000; i++) counts[draw(weights.data(), 6, chance(sampling_of(1), kStreamResidual, i, 0))]++;
  CHECK(chi_square_p(counts, {0, 0.25, 0, 0.125, 0.625, 0}) > 1e-3);
}

TEST_CASE("sample: the chi-square tail is that of the tables") {
  CHECK(chi_square_tail(3.841459, 1) == doctest::Approx(0.05).epsilon(1e-5));
  CHECK(chi_square_tail(18.307038, 10) == doctest::Approx(0.05).epsilon(1e-5));
  CHECK(chi_square_tail(29.588298, 10) == doctest::Approx(0.001).epsilon(1e-5));
  CHECK(chi_square_tail(67.327549, 100) == doctest::Approx(0.995).epsilon(1e-4));
  CHECK(chi_square_tail(149.449253, 100) == doctest::Approx(0.001).epsilon(1e-5));
}
