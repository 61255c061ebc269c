// machine/single.cpp: the main() of the core as one file, which `make single` writes. It trains the article's model on
// a text, decodes plain and by trees of the bigram drafter, and compares the two generated texts.
//
// usage: build/single TEXT [UPDATES]        TEXT: any file; a token is a byte of it
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "decode.h"
#include "target.h"
#include "train.h"

namespace nanospec {
namespace {

constexpr int kUpdates = 1500, kBatch = 8, kBudget = 14, kNewTokens = 300;

// Trains for so many updates; returns the weights.
std::vector<float> train(const Config& config, const std::vector<int>& tokens, int updates, Pool& pool) {
  const int T = config.block_size, slots = pad64(T);
  Trainer<float> trainer(config, pool);
  trainer.initialize(1337);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < updates; i++) {
    Batch batch;  // where its sequences start is a function of i
    for (int b = 0; b < kBatch; b++) {
      const size_t at = random_bits(1337, uint32_t(b), kStreamBatch, uint64_t(i), 0) % (tokens.size() - T - 1);
      batch.add_chain(&tokens[at], T, b * slots, 0);
      batch.target.insert(batch.target.end(), &tokens[at + 1], &tokens[at + 1 + T]);
    }
    Update update;
    update.iteration = i;
    update.learning_rate = cosine_rate(i, 50, updates, 8e-3, 1e-4);
    const float loss = trainer.step(batch, update);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    const int done = i + 1;
    if (done % 10 == 0 || done == updates)  // on one line, which is written again and again
      fprintf(stderr, "\rupdate %d of %d: loss %.4f, %.0f s to go  %s", done, updates, double(loss),
              taken.count() / done * (updates - done), done == updates ? "\n" : "");
  }
  std::vector<float> weights(trainer.weights.size());
  trainer.weights.download(weights.data(), weights.size());
  return weights;
}

// Counts forwards.
struct Counter : Watcher {
  int forwards = 0;
  void forwarded(const Tree&) override { forwards++; }
};

// Decodes kNewTokens tokens behind the prompt; without a drafter plain.
std::vector<int> decode(Target& target, Drafter* drafter, std::vector<int> text, int* forwards) {
  Sampling sampling;  // temperature 1
  Noise noise(sampling, target.vocab_size());
  Host<Target> host(target);
  FullTree tree(3, 2);
  Counter counter;
  Sequence decoded = {
      text, int64_t(text.size()) + kNewTokens, drafter, counter, noise, {&sampling, &noise, 0, false}, [](int) {
        return true;
      }};
  generate(host, tree, decoded);
  *forwards = counter.forwards;
  return text;
}

// The article's model: 4 layers, 4 heads, 32 channels, window 64.
Config article(int vocab_size) {
  Config config;
  config.n_embd = 32;
  config.vocab_size = vocab_size;
  return config;
}

// Returns whether the two texts are the same.
bool learn_and_decode(const std::string& bytes, int updates) {
  std::string symbols;  // the vocabulary: the bytes that occur
  for (int c = 0; c < 256; c++)
    if (bytes.find(char(c)) != std::string::npos) symbols += char(c);
  std::vector<int> tokens;
  for (char c : bytes) tokens.push_back(int(symbols.find(c)));

  const Config config = article(int(symbols.size()));
  const auto pool = std::make_shared<Pool>(1, cuda_available(), true);
  const std::vector<float> weights = train(config, tokens, updates, *pool);
  Target target(config, weights.data(), Dtype::fp32, pool, kBudget + 1);
  Bigram bigram(bigram_table(tokens, config.vocab_size), config.vocab_size);

  const std::vector<int> prompt(tokens.begin(), tokens.begin() + 20);
  int plain_forwards = 0, tree_forwards = 0;
  const std::vector<int> plain = decode(target, nullptr, prompt, &plain_forwards);
  const std::vector<int> tree = decode(target, &bigram, prompt, &tree_forwards);
  for (int token : tree) putchar(symbols[size_t(token)]);
  fprintf(stderr, "\n%d tokens on the %s: plain %d forwards, tree:3x2 %d forwards, %s\n", kNewTokens,
          pool->cuda() ? "GPU" : "CPU", plain_forwards, tree_forwards,
          plain == tree ? "the same bytes" : "DIFFERENT TEXTS");
  return plain == tree;
}

}  // namespace
}  // namespace nanospec

int main(int argc, char** argv) {
  std::ifstream file(argc > 1 ? argv[1] : "", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (bytes.size() < 1000) {
    fprintf(stderr, "usage: %s TEXT [UPDATES]: a text of 1,000 bytes at least\n", argv[0]);
    return 2;
  }
  return nanospec::learn_and_decode(bytes, argc > 2 ? atoi(argv[2]) : nanospec::kUpdates) ? 0 : 1;
}
