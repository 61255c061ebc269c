// tests/world.h: a small model that has learned a made-up text, for tests of what is trained on a model.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "files/tables.h"
#include "tests/command_line.h"
#include "tests/random.h"
#include "train.h"

namespace nanospec {
namespace {

inline std::string made_up_text(int sentences) {
  const char* words[] = {"the", "king", "queen", "fool", "sings", "laughs", "of", "a", "crown", "and", "sword", "fair"};
  Chance chance(71);
  std::string text;
  for (int i = 0; i < sentences; i++)
    for (int k = 3 + chance.below(4); k >= 0; k--) text += std::string(words[chance.below(12)]) + (k ? " " : ".\n");
  return text;
}

// A model of two layers that has learned a made-up text, in a folder as train_gpt leaves it, and the text beside it.
struct LearnedWorld {
  Folder folder;
  Config config;
  std::vector<float> weights;
  Tokenizer tokenizer;
  std::string dir, data;

  LearnedWorld() {
    const std::string text = made_up_text(900);
    tokenizer = character_tokenizer(text);
    const std::vector<int> tokens = tokenizer.encode(text);
    config.n_layer = 2, config.n_head = config.n_kv_head = 2, config.n_embd = 24, config.block_size = 32;
    config.vocab_size = tokenizer.vocab_size();
    Pool pool(1);
    const int T = config.block_size, B = 8;
    Trainer<float> trainer(config, pool);
    trainer.set_weights(initial_weights(config, 1).data());
    for (int i = 0; i < 250; i++) {
      Batch batch;
      for (int b = 0; b < B; b++) {
        const size_t start = random_bits(1, uint32_t(b), kStreamBatch, uint64_t(i), 0) % (tokens.size() - T - 1);
        batch.add_chain(tokens.data() + start, T, b * pad64(T), 0);
        batch.target.insert(batch.target.end(), tokens.begin() + long(start) + 1, tokens.begin() + long(start) + 1 + T);
      }
      Update update;
      update.iteration = i, update.learning_rate = 5e-3;
      trainer.step(batch, update);
    }
    weights.assign(trainer.weights.data(), trainer.weights.data() + trainer.weights.size());
    dir = folder.file("model"), data = folder.file("text");
    save_model(dir, config, tokenizer, weights.data());
    save_ngrams(dir, tokens, config.vocab_size);
    write_file(data, text);
  }
};
inline const LearnedWorld& world() {
  static const LearnedWorld one;
  return one;
}

inline std::map<std::string, std::string> files_of(const std::string& dir) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(dir))
    if (entry.is_regular_file()) files[entry.path().filename()] = read_file(entry.path());
  return files;
}

}  // namespace
}  // namespace nanospec
