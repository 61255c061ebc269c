// tests/core/test_sweep.cpp: the promise, on a real model: whatever drafter and shape, the bytes of plain decoding.
//
// A model of the `article` size learns a made-up text here; then every drafter and shape generates under every setting,
// and is held against plain decoding by memcmp. A Llama does the same under fewer settings. `make test` draws a
// tenth, `make prove` takes all.
#include <doctest/doctest.h>

#include "decode.h"
#include "drafters/adapt.h"
#include "files/checkpoint.h"
#include "target.h"
#include "tests/mock.h"
#include "tests/random.h"
#include "train.h"

using namespace nanospec;

namespace {

// Sentences of made-up words: a text with a grammar that a small model learns in a second.
std::string sweep_text(int sentences) {
  const char* words[] = {"the", "king",  "queen", "fool",  "sings",  "laughs", "of",   "a",    "crown", "and",
                         "his", "sword", "fair",  "night", "speaks", "to",     "your", "lord", "never", "weeps"};
  Chance chance(71);
  std::string text;
  for (int i = 0; i < sentences; i++) {
    for (int k = 3 + chance.below(6); k >= 0; k--) text += std::string(words[chance.below(20)]) + (k ? " " : ".\n");
    if (chance.below(5) == 0) text += "\nFOOL:\n";
  }
  return text;
}

struct Article {
  Config config;
  std::vector<float> weights;
  std::vector<int> tokens;
  Tokenizer tokenizer;

  Article(const Config& sizes, int iterations) : config(sizes) {
    const std::string text = sweep_text(4000);
    tokenizer = character_tokenizer(text);
    tokens = tokenizer.encode(text);
    config.n_embd = 32, config.vocab_size = tokenizer.vocab_size();
    Pool pool(2);
    const int T = config.block_size, B = 12;
    Trainer<float> trainer(config, pool);
    trainer.set_weights(initial_weights(config, 1).data());
    for (int i = 0; i < iterations; i++) {
      Batch batch;
      for (int b = 0; b < B; b++) {
        const size_t start = random_bits(1, uint32_t(b), kStreamBatch, uint64_t(i), 0) % (tokens.size() - T);
        batch.add_chain(tokens.data() + start, T, b * T, 0);
        batch.target.insert(batch.target.end(), tokens.begin() + start + 1, tokens.begin() + start + 1 + T);
      }
      Update update;
      update.iteration = i, update.learning_rate = 5e-3;
      trainer.step(batch, update);
    }
    weights.assign(trainer.weights.data(), trainer.weights.data() + trainer.weights.size());
  }
};
const Article& article() {
  static const Article one({}, 150);
  return one;
}
// Query heads share one key, heads are not C / H wide, and the head is a tensor of its own.
Config llama_config() {
  Config config;
  config.n_layer = 2, config.n_kv_head = 1, config.head_dim = 12, config.n_inner = 48;
  config.rotary = config.swiglu = true, config.center = config.tied = false;
  return config;
}
const Article& llama_article() {
  static const Article one(llama_config(), 50);
  return one;
}
// What Qwen 2 and 3 do otherwise, together, with positions that are scaled, and Mistral's sliding window.
const Article& qwen_article() {
  Config config = llama_config();
  config.qkv_bias = config.qk_norm = true, config.rope_factors = {1, 1, 1, 2, 4, 8};
  config.span = 21;
  static const Article one(config, 50);
  return one;
}

Ngram ngram_of(const Article& a) {
  return Ngram(interpolated(count_ngrams(a.tokens, a.config.vocab_size), 4, a.config.vocab_size));
}
Bigram bigram_of(const Article& a) { return Bigram(bigram_table(a.tokens, a.config.vocab_size), a.config.vocab_size); }

std::vector<int> continued(Target& target, Drafter* drafter, const Decoding& decoding, const std::string& prompt,
                           Stats* stats) {
  std::vector<int> text = article().tokenizer.encode(prompt);
  *stats = generate(target, drafter, decoding, text, [](int) { return true; });
  return text;
}

}  // namespace

TEST_CASE("sweep: every drafter and shape prints the bytes of plain decoding") {
  const Article& a = article();
  const std::vector<std::string> prompts = {"the king", "FOOL:\n", sweep_text(6).substr(0, 130)};
  struct Filter {
    int top_k;
    float top_p, min_p, repetition, presence, frequency;
  };
  const std::vector<Filter> filters = {{0, 1.0f, 0, 1, 0, 0},
                                       {5, 1.0f, 0, 1.2f, 0, 0},
                                       {0, 0.8f, 0.05f, 1, 0.5f, 0.1f},
                                       {12, 0.9f, 0, 0.9f, -0.2f, 0.3f}};
  Bigram bigram = bigram_of(a);
  Ngram ngram = ngram_of(a);
  RandomDrafter random(a.config.vocab_size);
  Lookup lookup(a.config.vocab_size);
  Suffix suffix(a.config.vocab_size);
  Recycle recycle(a.config.vocab_size);
  std::vector<std::unique_ptr<Drafter>> parts;
  parts.push_back(std::make_unique<Suffix>(a.config.vocab_size)), parts.push_back(std::make_unique<Ngram>(ngram));
  Union both(std::move(parts));

  int generations = 0, different = 0;
  struct Length {
    double tokens = 0, forwards = 0;
    void add(const Stats& s) { tokens += double(s.tokens), forwards += double(s.target_forwards); }
    double mean() const { return tokens / forwards; }
  };
  std::map<Drafter*, Length> lengths;
  const std::vector<Drafter*> drafters = {&bigram, &ngram, &random, &lookup, &suffix, &recycle, &both};
  std::vector<std::vector<int>> by_one_thread;  // plain texts, which two threads must repeat
  for (Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::f16, Dtype::q8_0, Dtype::q4_0, Dtype::q4_1, Dtype::q5_0,
                      Dtype::q3_k, Dtype::q4_k, Dtype::q5_k, Dtype::q6_k, Dtype::q_any})
    for (int threads : {1, 2}) {
      Target target(a.config, a.weights.data(), dtype, false, threads, 65);
      const std::vector<double> cost = measure_cost(target, 64);
      size_t nth = 0, setting = 6000 * size_t(dtype);  // the same ones for either number of threads
      if (threads == 1) by_one_thread.clear();
      for (float temperature : {0.0f, 0.5f, 1.0f, 1.5f})
        for (const Filter& filter : filters)
          for (uint64_t seed : {1, 2})
            for (const std::string& prompt : prompts) {
              if (!runs(setting++, a_sixtieth() ? 60 : dtype > Dtype::q4_1 ? 30 : 10)) continue;
              Decoding decoding;
              decoding.sampling.temperature = temperature;
              decoding.sampling.top_k = filter.top_k, decoding.sampling.top_p = filter.top_p;
              decoding.sampling.min_p = filter.min_p;
              decoding.sampling.repetition_penalty = filter.repetition;
              decoding.sampling.presence_penalty = filter.presence;
              decoding.sampling.frequency_penalty = filter.frequency;
              decoding.sampling.seed = seed;
              decoding.max_new_tokens = 110;  // past the window, by one slide at least
              Stats stats;
              const std::vector<int> plain = continued(target, nullptr, decoding, prompt, &stats);
              CHECK(stats.target_forwards == 110);
              if (threads == 1) by_one_thread.push_back(plain);
              else CHECK(by_one_thread[nth++] == plain);
              for (const char* shape :
                   kAllShapes) {  // every drafter meets every shape: 7 and 17 have no common divisor
                Drafter* const drafter = drafters[size_t(generations) % drafters.size()];
                decoding.shape = ready_shape(shape, 64);
                if (decoding.shape.kind == Shape::kAuto) decoding.cost = std::make_shared<Cost>(cost);
                const std::vector<int> text = continued(target, drafter, decoding, prompt, &stats);
                generations++;
                if (text != plain) {
                  different++;
                  CAPTURE(shape);
                  CAPTURE(temperature);
                  CAPTURE(prompt);
                  CHECK(text == plain);
                }
                lengths[drafter].add(stats);
              }
            }
    }
  CHECK(different == 0);
  CHECK(generations >= (a_sixtieth() ? 200 : a_tenth() ? 500 : 5000));
  INFO(generations << " generations, acceptance length: bigram " << lengths[&bigram].mean() << ", ngram:4 "
                   << lengths[&ngram].mean() << ", suffix+ngram:4 " << lengths[&both].mean());
  for (Drafter* drafter : drafters)  // a sweep that accepts nothing proves nothing
    if (drafter != &random) CHECK(lengths[drafter].mean() > 1.1);
}

TEST_CASE("sweep: Llama and Qwen print the bytes of plain decoding, by every drafter and shape, while windows slide") {
  const Article& a = llama_article();
  const int vocab = a.config.vocab_size;
  std::vector<std::unique_ptr<Drafter>> parts;
  parts.push_back(std::make_unique<Suffix>(vocab)), parts.push_back(std::make_unique<Ngram>(ngram_of(a)));
  Union both(std::move(parts));
  Bigram bigram = bigram_of(a);
  Ngram ngram = ngram_of(a);
  Suffix suffix(vocab);
  Lookup lookup(vocab);
  Recycle recycle(vocab);
  Drafter* const drafters[] = {&bigram, &ngram, &suffix, &lookup, &recycle, &both};
  size_t generations = 0, setting = 0;
  int64_t slides = 0, tokens = 0, forwards = 0;
  std::vector<int> by_one_thread;
  for (Dtype dtype : {Dtype::fp32, Dtype::bf16})
    for (float temperature : {0.0f, 0.7f, 1.0f}) {
      if (!runs(setting++, 3)) continue;
      for (int threads : {1, 2}) {
        CAPTURE(int(dtype));
        CAPTURE(temperature);
        CAPTURE(threads);
        const Article& its = (dtype == Dtype::fp32) == (temperature > 0.8f) ? qwen_article() : a;
        Target target(its.config, its.weights.data(), dtype, false, threads, 65);
        Decoding decoding;
        decoding.sampling.temperature = temperature;
        decoding.max_new_tokens = 130;  // three slides
        std::vector<int> plain = a.tokenizer.encode("the king");
        const std::vector<int> prompt = plain;
        CHECK(generate(target, nullptr, decoding, plain, [](int) { return true; }).slide_prefills == 3);
        if (threads == 1) by_one_thread = plain;
        CHECK(plain == by_one_thread);
        for (const std::string shape : kAllShapes) {
          CAPTURE(shape);
          decoding.shape = ready_shape(shape, 64);
          if (decoding.shape.kind == Shape::kAuto) decoding.cost = std::make_shared<Cost>(measure_cost(target, 64));
          std::vector<int> text = prompt;
          Drafter* const drafter = drafters[generations++ % std::size(drafters)];
          const Stats stats = generate(target, drafter, decoding, text, [](int) { return true; });
          CHECK(text == plain);
          slides += stats.slide_prefills, tokens += stats.tokens, forwards += stats.target_forwards;
        }
      }
    }
  CHECK(generations == (a_tenth() ? 4 : 12) * std::size(kAllShapes));
  CHECK(slides == 3 * int64_t(generations));
  CHECK(double(tokens) > 1.3 * double(forwards));
}

TEST_CASE("sweep: a target that drafts for itself is accepted in full, always") {
  for (Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::f16})
    for (float temperature : {0.0f, 0.7f, 1.0f, 1.5f})
      for (const char* shape : {"chain:5", "tree:3x2"}) {
        CAPTURE(temperature);
        CAPTURE(shape);
        Target target(article().config, article().weights.data(), dtype, false, 2, 65);
        Target own(article().config, article().weights.data(), dtype, false, 1, 65);
        SelfDrafter<Target> self(own);
        Decoding decoding;
        decoding.shape = parse_shape(shape, 64);
        decoding.sampling.temperature = temperature;
        decoding.max_new_tokens = 48;  // within the window: 8 forwards of 6, or 12 of 4
        Stats stats;
        continued(target, &self, decoding, "the king", &stats);
        const int whole = decoding.shape.kind == Shape::kChain ? 6 : 4;
        CHECK(stats.target_forwards == 48 / whole);
        CHECK(stats.accept_histogram[whole] == 48 / whole);
      }
}

TEST_CASE("sweep: a drafter that is always wrong changes nothing but speed") {
  const Article& a = article();
  Target target(a.config, a.weights.data(), Dtype::fp32, false, 2, 65),
      own(a.config, a.weights.data(), Dtype::fp32, false, 1, 65);
  WrongDrafter<Target> wrong(own);
  for (float temperature : {0.0f, 1.0f})
    for (const char* shape : {"chain:4", "tree:2x2"}) {
      Decoding decoding;
      decoding.shape = parse_shape(shape, 64);
      decoding.sampling.temperature = temperature;
      decoding.max_new_tokens = 90;
      Stats stats;
      const std::vector<int> plain = continued(target, nullptr, decoding, "the king", &stats);
      CHECK(continued(target, &wrong, decoding, "the king", &stats) == plain);
      CHECK(stats.target_forwards == 90);
      CHECK(stats.drafted_nodes > 90);
    }
}

TEST_CASE("sweep: a 300-character prompt continues as when it was itself generated") {
  const Article& a = article();
  Target target(a.config, a.weights.data(), Dtype::fp32, false, 2, 65);
  Bigram bigram = bigram_of(a);
  Decoding decoding;
  decoding.shape = parse_shape("tree:3x2", 64);
  decoding.max_new_tokens = 420;
  Stats stats;
  const std::vector<int> whole = continued(target, &bigram, decoding, "the fool", &stats);
  for (int cut : {300, 301, 331, 64, 65, 97}) {
    CAPTURE(cut);
    std::vector<int> text(whole.begin(), whole.begin() + cut);
    decoding.max_new_tokens = int(whole.size()) - cut;
    generate(target, cut % 2 ? &bigram : nullptr, decoding, text, [](int) { return true; });
    CHECK(text == whole);
  }
}
