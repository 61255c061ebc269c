// tests/core/test_golden.cpp: one text on every machine: SHA-256s that every CPU build must print, whatever its
// vectors, its compiler and its C library.
//
// Weights come from a seed, texts from a formula. Each test is a longer way from numbers to texts than the one before:
// so the first that fails says where the bits part. If bits are to change, for a better formula or order, the new sums
// must be those of all builds: make test T=golden, with ARCH=native, haswell and x86-64, with clang++, and make arm64.
#include <doctest/doctest.h>
#include <sha256.h>

#include "decode.h"
#include "drafters/ngram.h"
#include "target.h"
#include "tests/random.h"
#include "train.h"

using namespace nanospec;

namespace {

std::string digest(const std::string& bytes) {
  char digits[SHA256_DIGEST_STRING_LENGTH];
  return SHA256Data(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), digits);
}

template <class T>
std::string bytes_of(const std::vector<T>& all) {
  return std::string(reinterpret_cast<const char*>(all.data()), all.size() * sizeof(T));
}
template <class T>
std::string bytes_of(const T* data, size_t n) {
  return bytes_of(std::vector<T>(data, data + n));
}

// f at n numbers spread over [low, high].
template <class T, class F>
std::string values_of(F f, double low, double high, int n = 5000) {
  std::vector<T> values;
  for (int i = 0; i < n; i++) values.push_back(f(T(low + (high - low) * ((i + 0.618) / n))));
  return bytes_of(values);
}

constexpr int kGoldenVocab = 61;

// Heads of 18 channels, and sums over 72: no multiples of a vector or of a block of 32.
Config gpt() {
  Config config;
  config.n_layer = 2, config.n_head = config.n_kv_head = 4, config.n_embd = 72, config.block_size = 32;
  config.vocab_size = kGoldenVocab, config.bias = true;
  return config;
}
// All that Llama does otherwise.
Config llama() {
  Config config;
  config.n_layer = 2, config.n_head = 4, config.n_kv_head = 2, config.n_embd = 64, config.block_size = 32;
  config.vocab_size = kGoldenVocab, config.head_dim = 12, config.n_inner = 104, config.rope_theta = 1e5f;
  config.rotary = config.swiglu = true, config.center = config.tied = false;
  return config;
}

// Tokens with a grammar of a kind: the next one follows from the last one, but for every fourth.
std::vector<int> made_up_tokens(int n) {
  Chance chance(11);
  std::vector<int> tokens = {1};
  while (int(tokens.size()) < n)
    tokens.push_back(chance.below(4) ? (tokens.back() * 7 + 3) % kGoldenVocab : chance.below(kGoldenVocab));
  return tokens;
}

Ngram ngram() { return Ngram(interpolated(count_ngrams(made_up_tokens(3000), kGoldenVocab), 4, kGoldenVocab)); }

// The logits of a small tree after a prefill, and of the root's child after it joins the past.
std::string logits_of(Target& target) {
  const std::vector<int> tokens = made_up_tokens(24), depth = {0, 1, 2, 2, 1, 2, 2}, end = {7, 4, 3, 4, 7, 6, 7};
  std::string bytes;
  target.prefill(tokens.data(), 17);
  target.forward(tokens.data() + 17, depth.data(), end.data(), 7);
  for (int row = 0; row < 7; row++) bytes += bytes_of(target.logits(row), kGoldenVocab);
  const int kept[] = {0, 4};
  target.keep(kept, 2);
  target.forward(tokens.data(), depth.data(), end.data() + 2, 1);
  return bytes + bytes_of(target.logits(0), kGoldenVocab);
}

// 40 tokens, past the window's end. drafter: null for plain decoding.
std::vector<int> text_of(Target& target, Drafter* drafter, float temperature) {
  Sampling sampling;
  sampling.temperature = temperature;
  Noise noise(sampling, kGoldenVocab);
  Host<Target> host(target);
  FullTree tree(3, 2);
  Watcher watcher;
  std::vector<int> text = made_up_tokens(5);
  const Draws draws = {&sampling, temperature > 0 ? &noise : nullptr, 0, false};
  Sequence decoded = {text, int64_t(text.size()) + 40, drafter, watcher, noise, draws, [](int) { return true; }};
  generate(host, tree, decoded);
  return text;
}

struct Sums {
  Dtype dtype;
  std::string logits, texts;
};

// Each type of weights, with keys and values of 32 bits and of 16; texts by temperatures 0 and 1.
void check(const Config& config, const std::vector<Sums>& all) {
  const std::vector<float> weights = loud_weights(config, 5);
  for (const Sums& sums : all) {
    CAPTURE(int(sums.dtype));
    std::string logits, texts;
    for (const Dtype cache : {Dtype::fp32, Dtype::bf16}) {
      Target target(config, weights.data(), sums.dtype, false, 1, 16, cache);
      logits += logits_of(target);
      Ngram drafter = ngram();
      for (const float temperature : {0.0f, 1.0f}) {
        const std::vector<int> plain = text_of(target, nullptr, temperature);
        CHECK(text_of(target, &drafter, temperature) == plain);
        texts += bytes_of(plain);
      }
    }
    CHECK(digest(logits) == sums.logits);
    CHECK(digest(texts) == sums.texts);
  }
}

// Some updates with all that a training has: a rate that warms up and falls, dropout, clipping.
std::string trained(const Config& config, int threads) {
  constexpr int B = 3, T = 32;
  const std::vector<int> tokens = made_up_tokens(3000);
  Pool pool(threads);
  Trainer<float> trainer(config, pool);
  trainer.initialize(3);
  std::vector<float> losses;
  for (int i = 0; i < 6; i++) {
    Batch batch;
    for (int b = 0; b < B; b++) {
      const int* const start = tokens.data() + random_bits(1, uint32_t(b), kStreamBatch, uint64_t(i), 0) % 2900;
      batch.add_chain(start, T, b * pad64(T), 0);
      batch.target.insert(batch.target.end(), start + 1, start + 1 + T);
    }
    Update update;
    update.iteration = i, update.learning_rate = cosine_rate(i, 2, 6, 1e-2, 1e-3);
    losses.push_back(trainer.step(batch, update, Dropout{0.1f, 7, uint32_t(i), 0}));
  }
  return bytes_of(losses) + bytes_of(trainer.weights.data(), trainer.weights.size()) +
         bytes_of(trainer.m.data(), trainer.m.size()) + bytes_of(trainer.v.data(), trainer.v.size());
}

}  // namespace

TEST_CASE("golden: the functions of numbers.h") {
  const auto exp = [](auto x) { return nanospec::exp(x); };
  const auto log = [](auto x) { return nanospec::log(x); };
  const auto erf = [](auto x) { return nanospec::erf(x); };
  const auto cos = [](double x) { return nanospec::cos(x); };
  const auto sin = [](double x) { return nanospec::sin(x); };
  CHECK(digest(values_of<float>(exp, -90, 90) + values_of<float>(log, 0, 1e6) + values_of<float>(erf, -5, 5)) ==
        "cc804c2a36f0d6eab21395f77c5fb2f879fb3c95d92ca4927e4241d4766c5d3d");
  CHECK(digest(values_of<double>(exp, -710, 710) + values_of<double>(log, 0, 1e6) + values_of<double>(erf, -7, 7)) ==
        "dbea87cb935b9b4c03ef997052ffae2c7dfc87935d0d75828bd3842667365a2d");
  CHECK(digest(values_of<double>(cos, -10, 10) + values_of<double>(sin, -1e6, 1e6)) ==
        "5af9686bceb5a24ab3fef2fa71d1c8ded08255ef909b530430db19a8ad41cafc");
}

TEST_CASE("golden: tables: angles of positions, bigrams, n-grams") {
  CHECK(digest(bytes_of(rope_table<float>(4096, 64, 10000)) +
               bytes_of(rope_table<float>(4096, 8, 5e5, {1, 1, 4.5f, 32}))) ==
        "d036aa85de7cf73958a112de1563ef7ed11951062dbda12879645275afd07bfd");
  CHECK(digest(bytes_of(bigram_table(made_up_tokens(3000), kGoldenVocab))) ==
        "4e83c2487ae85de2d9df8ea648defdc4a0e45598357d9cf4d97311107572f8fe");
  const Ngram drafter = ngram();
  std::vector<float> rows(size_t(kGoldenVocab) * 200);
  for (int context = 0; context < 200; context++)
    drafter.table().log_probabilities(context * 5, rows.data() + size_t(context) * kGoldenVocab);
  CHECK(digest(bytes_of(rows)) == "b0c03547af5842a7912cdc3fdd4eac076af25f971dca52ae1dc11b082488dc37");
}

TEST_CASE("golden: initial weights") {
  CHECK(digest(bytes_of(initial_weights(gpt(), 1))) ==
        "46a1f4637ac732cbe0a767efe9918de1f04b0e998b4a09804d475c5ac4e9936c");
  CHECK(digest(bytes_of(initial_weights(llama(), 2))) ==
        "844df5d5f69532d339677ab41432482db1b6e96fd692366b7d00f823980a8db2");
}

TEST_CASE("golden: logits and texts of a GPT") {
  check(gpt(), {{Dtype::fp32, "09e3e591e37beb2b1b901c58ce68b3f15f9509263c713515924a8c2abda9b066",
                 "5a36f1132e3868b20f7bd8459b2b1721de5dd85accf6743c5e61f75032edded9"},
                {Dtype::bf16, "75f050c5a1a96a8299bd2b4b66b592e30a5d3e04e5cd0d84f074a584f65a4c7d",
                 "5a36f1132e3868b20f7bd8459b2b1721de5dd85accf6743c5e61f75032edded9"},
                {Dtype::f16, "73f786f8f85014193044a022ee91574d70cc5e11db46bfcae7ec4d7bd8c2def3",
                 "5a36f1132e3868b20f7bd8459b2b1721de5dd85accf6743c5e61f75032edded9"},
                {Dtype::q8_0, "ceb49751b212c7a84e30e21e1bc7988a598a31d4dc4182d0dd0eee4d2bca5c72",
                 "61142c2e7bbd8b3058a5fd03ade271f7a5d1d966bf6d7b4fe2eda865bd55533b"},
                {Dtype::q4_0, "199cab0048bc75f3175b92543b86499002fc137a3b08c94aa7b04a5d90c5ce8c",
                 "8e83c7ad8de29f7615d4f049fe92b1aabdb0fd9ac01fa8413ce5ccb177c601e3"},
                {Dtype::q4_1, "ea99315673c0dcf018bf6da9b269c125a94a14e71a56d8cf5a7368501817ce16",
                 "0aa9d78648841d5e6af8c9e7bb3fd4e47f49bac86b1e49aa7c1fe78e9bb1f06f"}});
}

TEST_CASE("golden: logits and texts of a Llama") {
  check(llama(), {{Dtype::fp32, "0ababa4b66babe06ecf4c3725570d38bf6e27198e1f6d8130aa9d90861dcd906",
                   "61c416d909af225bc5655042c0282ba677008869d5b6967da9a9b1abb1b3e996"},
                  {Dtype::bf16, "931e0f412aeb9193e814f03d5ef9a7db80b82bf8203b862dbf4306337cf8bdcb",
                   "b812948a30ad58f20240ab1d7a7b408100fb53bd8c5820fdf1512c595cab882d"},
                  {Dtype::f16, "0b224c1808f79a381aa87477ecbac471df6fff4e923dcaee6dde4c27778d70e2",
                   "b812948a30ad58f20240ab1d7a7b408100fb53bd8c5820fdf1512c595cab882d"},
                  {Dtype::q8_0, "9522e4c272acbb9d30de36b4a6586b84f1f7ae1da33a0b2d496bb18650ad906c",
                   "061381266c2dc2d32e69f02cd0ee61dad2ddb9dfb172a19e0d7396c13c5c3022"},
                  {Dtype::q4_0, "b649ee720916d787c17ba3531d82093720094ad0aee108d1c77010dd18dd46b9",
                   "15055796ae716b7cff6c9c29af18756c13abc3b8dca7aab90a5c1d1982babc65"},
                  {Dtype::q4_1, "b1cf806af8cb3a992559e157953bb32449086560bafd64718f71fbc2af5dc7bd",
                   "3750408b48335537c70aa1e2358a416c4070edd20e20104d537dd6ae6832316b"}});
}

TEST_CASE("golden: a training's losses, weights and moments") {
  CHECK(digest(trained(gpt(), 1)) == "b3c42779e31525c2053f82e3d141a43cd83a38386b94f56b6396b72bfe14403e");
  CHECK(digest(trained(llama(), 2)) == "e77cab5f6fa3725c2d24cd5975d29804d083ac971f33bebdbbedb9e24b5aa046");
}
