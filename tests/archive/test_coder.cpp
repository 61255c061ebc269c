// tests/archive/test_coder.cpp: what goes into the coder comes out, at its ideal length, in the same bytes on every
// machine. It includes no file format, so that an emulated processor runs it too (make arm64).
#include "archive/coder.h"

#include <doctest/doctest.h>

#include <cmath>

#include "archive/known.h"
#include "decode.h"
#include "target.h"
#include "tests/random.h"
#include "tests/tenth.h"

using namespace nanospec;

namespace {

// Symbols of any chances: certain, rare, even; totals up to the largest.
Share drawn_share(Chance& chance) {
  const int bits = 1 + chance.below(52);
  const uint64_t total = (uint64_t(1) << bits) - (bits > 1 ? uint64_t(chance.below(2)) : 0);
  const int kind = chance.below(4);
  if (kind == 0) return {total - 1, 1, total};
  if (kind == 1) return {1, total - 1, total};
  if (kind == 2) return {0, 1, total};
  const uint64_t below = uint64_t(chance.number() * double(total - 1));
  return {below, 1 + uint64_t(chance.number() * double(total - below - 1)), total};
}

double bits_of(const Share& s) { return std::log2(double(s.total)) - std::log2(double(s.size)); }

std::vector<float> drawn_logits(Chance& chance, int vocab, double scale) {
  std::vector<float> logits(static_cast<size_t>(vocab));
  chance.fill(logits.data(), logits.size(), scale);
  return logits;
}

// The loop of the core, with a pick that codes: no ring is needed.
struct Coded : Host<Target> {
  Counts counts;
  Encoder encoder;
  const std::vector<int>& text;
  size_t at = 1;
  Coded(Target& target, const std::vector<int>& its) : Host(target), counts(target.vocab_size()), text(its) {}
  Verdict verify(Sequence& sequence) override {
    return match(sequence.tree, [&](int node) {
      counts.of(target.logits(node));
      encoder.put(counts.share(text[at]));
      return text[at++];
    });
  }
};

std::string coded(const std::vector<int>& text, int threads, int chain) {
  Config config = small_config(2, 32);
  const std::vector<float> weights = loud_weights(config, 3);
  Target target(config, weights.data(), Dtype::fp32, false, threads, chain + 1);
  Coded runner(target, text);
  FullTree planner(chain, 1);
  Known known(kSmallVocab, text);
  Sampling sampling;
  Noise noise(sampling, kSmallVocab);
  Watcher watcher;
  std::vector<int> tokens = {text[0]};
  Sequence sequence{tokens, int64_t(text.size()),           chain > 0 ? &known : nullptr, watcher,
                    noise,  {&sampling, nullptr, 0, false}, [](int) { return true; }};
  generate(runner, planner, sequence);
  CHECK(tokens == text);
  return runner.encoder.finish();
}

}  // namespace

TEST_CASE("coder: any symbols come back, in at most 16 bits more than they are worth") {
  for (size_t run = 0; run < 2000; run++) {
    if (!runs(run)) continue;
    Chance chance(run);
    std::vector<Share> shares;
    double bits = 0;
    Encoder encoder;
    for (int n = chance.below(300); n > 0; n--) {
      shares.push_back(drawn_share(chance));
      bits += bits_of(shares.back());
      encoder.put(shares.back());
    }
    const std::string bytes = encoder.finish();
    CHECK(8 * double(bytes.size()) <= bits * (1 + 1e-9) + 16);
    Decoder decoder(bytes);
    bool same = true;
    for (const Share& s : shares) {
      const uint64_t place = decoder.place(s.total);
      same = same && place >= s.below && place < s.below + s.size;
      decoder.take(s);
    }
    CAPTURE(run);
    CHECK(same);
    CHECK(!decoder.spent());
    for (int i = 0; i < 10; i++) decoder.even(256);  // more than there are
    CHECK(decoder.spent());
  }
}

TEST_CASE("coder: a carry runs through all bytes that are written already") {
  const uint64_t parts = uint64_t(1) << 39;
  const Share middle = {parts - 1, 3, 2 * parts + 1};  // around one half: 0x7F FF... or 0x80 00..., which stays open
  for (int thirds : {0, 3, 6, 10})
    for (uint64_t last : {0, 2}) {
      Encoder encoder;
      encoder.put(middle);
      for (int i = 0; i < thirds; i++) encoder.put({1, 1, 3});
      encoder.put({last, 1, 3});
      const std::string bytes = encoder.finish();
      CHECK(uint8_t(bytes[0]) == (last ? 0x80 : 0x7F));
      Decoder decoder(bytes);
      CHECK(decoder.place(middle.total) - middle.below < middle.size);
      decoder.take(middle);
      for (int i = 0; i < thirds; i++) CHECK(decoder.even(3) == 1);
      CHECK(decoder.even(3) == last);
    }
}

TEST_CASE("coder: each token has a count, whatever the logits are; a place finds its symbol") {
  Chance chance(1);
  const float infinity = Format<float>::kInfinity, nan = Format<float>::kNaN;
  for (int vocab : {1, 2, 29, 255, 256, 257, 1000}) {
    Counts counts(vocab);
    for (int kind = 0; kind < 6; kind++) {
      std::vector<float> logits = drawn_logits(chance, vocab, kind == 1 ? 200 : 5);
      if (kind == 2) logits[size_t(chance.below(vocab))] = nan;
      if (kind == 3) logits[size_t(chance.below(vocab))] = -infinity;
      if (kind == 4) logits[size_t(chance.below(vocab))] = infinity;
      if (kind == 5) logits.assign(logits.size(), nan);
      counts.of(logits.data());
      if (kind == 0 && vocab == 29) counts = Counts(vocab);
      uint64_t below = 0;
      for (int x = 0; x <= vocab; x++) {
        const Share s = counts.share(x);
        REQUIRE(s.below == below);
        REQUIRE(s.size >= 1);
        REQUIRE(s.total == counts.total());
        REQUIRE(counts.symbol_at(s.below) == x);
        REQUIRE(counts.symbol_at(s.below + s.size - 1) == x);
        below += s.size;
      }
      CHECK(below == counts.total());
      CHECK(below <= kMostParts);
      CHECK(counts.share(counts.escape()).size == 1);
    }
  }
}

TEST_CASE("coder: the counts cost at most a hundredth of a percent more than the softmax") {
  for (int vocab : {65, 5000, 49152})
    for (double scale : {0.1, 4.0, 12.0}) {
      Chance chance{uint64_t(vocab)};
      Counts counts(vocab);
      double ideal = 0, paid = 0;
      for (int row = 0; row < 20; row++) {
        const std::vector<float> logits = drawn_logits(chance, vocab, scale);
        counts.of(logits.data());
        std::vector<double> share(logits.size());
        double most = -1e9, sum = 0;
        for (float logit : logits) most = std::max(most, double(logit));
        for (float logit : logits) sum += std::exp(double(logit) - most);
        for (int x = 0; x < vocab; x += 1 + vocab / 500) {  // in proportion to their chances
          const double p = std::exp(double(logits[size_t(x)]) - most) / sum;
          ideal -= p * std::log2(p);
          paid += p * bits_of(counts.share(x));
        }
      }
      CAPTURE(vocab);
      CAPTURE(scale);
      CHECK(paid <= ideal * 1.0001);
    }
}

TEST_CASE("coder: a text's bytes are one, for any threads, any chain, any machine") {
  Chance chance(5);
  std::vector<int> text;
  for (int i = 0; i < 200; i++) text.push_back(chance.below(kSmallVocab));
  const std::string bytes = coded(text, 1, 0);
  for (int threads : {1, 2, 3})
    for (int chain : {0, 1, 7, 40}) CHECK(coded(text, threads, chain) == bytes);
  uint64_t sum = 14695981039346656037u;  // FNV-1a
  for (char byte : bytes) sum = (sum ^ uint8_t(byte)) * 1099511628211u;
  CHECK(bytes.size() == 146);
  CHECK(sum == 13682937699252234796u);
}
