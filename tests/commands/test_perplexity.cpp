// tests/commands/test_perplexity.cpp: commands/losses.h: losses by chains of any length, and their mean. What the
// command makes of them is tested in test_perplexity_command.cpp.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "commands/losses.h"
#include "tests/mock.h"

using namespace nanospec;

namespace {

// The loss of each token from `first` on, by a prefill and a forward of one row for each.
std::vector<double> plain_losses(Mock& mock, const std::vector<int>& tokens, int first) {
  std::vector<double> losses;
  for (int i = first; i < int(tokens.size()); i++) {
    mock.prefill(tokens.data(), i - 1);
    const int depth = 0, end = 1;
    mock.forward(&tokens[size_t(i) - 1], &depth, &end, 1);
    long double sum = 0;
    for (int x = 0; x < mock.vocab_size(); x++) sum += std::exp((long double)mock.logits(0)[x]);
    losses.push_back(double(std::log(sum) - (long double)mock.logits(0)[tokens[size_t(i)]]));
  }
  return losses;
}

}  // namespace

TEST_CASE("perplexity: a token's loss, by hand") {
  const float two[] = {0, std::log(3.0f)};
  CHECK(token_loss(two, 2, 0) == doctest::Approx(std::log(4.0)));
  CHECK(token_loss(two, 2, 1) == doctest::Approx(std::log(4.0 / 3)));
  const float far[] = {-1000, 1000, 0};  // whose exponentials no double holds
  CHECK(token_loss(far, 3, 0) == 2000);
  CHECK(token_loss(far, 3, 1) == 0);
}

TEST_CASE("perplexity: losses are those of one row at a time, whatever the length of the chains") {
  constexpr int kVocab = 13, kBlock = 32;
  Mock mock(kVocab, kBlock, 2, 1);
  std::vector<int> tokens;
  for (int i = 0; i < kBlock; i++) tokens.push_back(i * i % kVocab);
  for (int first : {1, 2, 17, 31}) {
    const std::vector<double> expected = plain_losses(mock, tokens, first);
    CHECK(expected.size() == size_t(kBlock - first));
    for (int rows : {1, 2, 5, 15, 16, 64}) {
      CAPTURE(first);
      CAPTURE(rows);
      const std::vector<double> losses = token_losses(mock, tokens, first, rows);
      REQUIRE(losses.size() == expected.size());
      for (size_t i = 0; i < losses.size(); i++) CHECK(losses[i] == doctest::Approx(expected[i]).epsilon(1e-12));
    }
  }
}

TEST_CASE("perplexity: the mean of losses and its standard error") {
  MeanLoss mean;
  CHECK(mean.mean() == 0);
  CHECK(mean.error() == 0);
  mean.add(1);
  CHECK(mean.mean() == 1);
  CHECK(mean.error() == 0);
  for (double loss : {2, 3, 4}) mean.add(loss);
  CHECK(mean.mean() == 2.5);
  CHECK(mean.error() == doctest::Approx(std::sqrt(1.25 / 3)));  // the deviation is sqrt(5 / 3), of four
  CHECK(mean.perplexity() == doctest::Approx(std::exp(2.5)));
  CHECK(mean.perplexity_error() == doctest::Approx(std::exp(2.5) * std::sqrt(1.25 / 3)));
}
