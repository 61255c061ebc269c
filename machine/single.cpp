// machine/single.cpp: the main() of the core as one file, which `make single` writes. It trains the article's model on
// a text, decodes plain and by trees of the bigram drafter, and compares the two generated texts.
//
// usage: build/single TEXT [UPDATES]        TEXT: any file; a token is a byte of it
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "decode.h"
#include "target.h"
#include "train.h"

namespace nanospec {
namespace {

constexpr int kBatch = 12, kBudget = 14, kNewTokens = 300;

// Trains for so many updates; returns the weights.
std::vector<float> train(const Config& config, const std::vector<int>& tokens, int updates, Pool& pool) {
  const int T = config.block_size, slots = pad64(T);
  Trainer<float> trainer(config, pool);
  trainer.initialize(1337);
  for (int i = 0; i < updates; i++) {
    Batch batch;  // where its sequences start is a function of i
    for (int b = 0; b < kBatch; b++) {
      const size_t start = random_bits(1337, uint32_t(b), kStreamBatch, uint64_t(i), 0) % (tokens.size() - T - 1);
      batch.add_chain(&tokens[start], T, b * slots, 0);
      batch.target.insert(batch.target.end(), &tokens[start + 1], &tokens[start + 1 + T]);
    }
    Update update;
    update.iteration = i;
    update.learning_rate = cosine_rate(i, 10, updates, 1e-3, 1e-4);
    const float loss = trainer.step(batch, update);
    if (i % 10 == 0) fprintf(stderr, "update %d: loss %.4f\n", i, double(loss));
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

std::vector<int> decode(Target& target, Drafter* drafter, std::vector<int> text, int* forwards) {
  Sampling sampling;  // temperature 1
  Noise noise(sampling, target.vocab_size());
  Host<Target> host(target, sampling, noise);
  FullTree tree(3, 2);
  Counter counter;
  generate(host, tree, drafter, counter, {&sampling, &noise, 0, false}, text, kNewTokens, [](int) { return true; });
  *forwards = counter.forwards;
  return text;
}

// Returns whether the two texts are the same.
bool learn_and_decode(const std::string& bytes, int updates) {
  std::string symbols;  // the vocabulary: the bytes that occur
  for (int c = 0; c < 256; c++)
    if (bytes.find(char(c)) != std::string::npos) symbols += char(c);
  std::vector<int> tokens;
  for (char c : bytes) tokens.push_back(int(symbols.find(c)));

  Config config;  // the article's model: 4 layers, 4 heads, 32 channels, window 64
  config.n_embd = 32;
  config.vocab_size = int(symbols.size());
  const bool cuda = choose_cuda("auto");
  const auto pool = std::make_shared<Pool>(2, cuda, true);  // on a GPU with the first kernels
  const std::vector<float> weights = train(config, tokens, updates, *pool);
  Target target(config, weights.data(), Dtype::fp32, pool, kBudget + 1);
  Bigram bigram(bigram_table(tokens, config.vocab_size), config.vocab_size);

  const std::vector<int> prompt(tokens.begin(), tokens.begin() + 20);
  int plain_forwards = 0, tree_forwards = 0;
  const std::vector<int> plain = decode(target, nullptr, prompt, &plain_forwards);
  const std::vector<int> tree = decode(target, &bigram, prompt, &tree_forwards);
  for (int token : tree) putchar(symbols[size_t(token)]);
  fprintf(stderr, "\n%d tokens on the %s: plain %d forwards, tree:3x2 %d forwards, %s\n", kNewTokens,
          cuda ? "GPU" : "CPU", plain_forwards, tree_forwards, plain == tree ? "the same bytes" : "DIFFERENT TEXTS");
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
  return nanospec::learn_and_decode(bytes, argc > 2 ? atoi(argv[2]) : 120) ? 0 : 1;
}
