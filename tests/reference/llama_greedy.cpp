// tests/reference/llama_greedy.cpp: llama.cpp's greedy continuations, token by token, for llama_check.py.
// `make peers` builds it into build/peers/bin.
//
//     llama_greedy FILE.gguf PROMPTS.jsonl TOKENS THREADS
//
// For each line {"prompt": ...} it prints a JSON object in one line: `prompt`, the prompt's tokens; `tokens`; `gaps`,
// by how much the best logit exceeded the next at each step; `pieces`, the tokens' bytes in hexadecimal; `ended`,
// whether the last is one that ends a text. Keys and values are fp32 and flash attention is off: the plainest of its
// ways.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "llama.h"

namespace {

using Json = nlohmann::ordered_json;
using Model = std::unique_ptr<llama_model, decltype(&llama_model_free)>;
using Context = std::unique_ptr<llama_context, decltype(&llama_free)>;

Context make_context(llama_model* model, int tokens, int threads) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = uint32_t(tokens);
  params.n_threads = params.n_threads_batch = threads;
  params.type_k = params.type_v = GGML_TYPE_F32;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  return {llama_init_from_model(model, params), llama_free};
}

// Special tokens are those that the model wants before a text; the prompt's own words are plain text.
std::vector<llama_token> tokens_of(const llama_vocab* vocab, const std::string& text) {
  std::vector<llama_token> tokens(text.size() + 8);
  const int n = llama_tokenize(vocab, text.data(), int(text.size()), tokens.data(), int(tokens.size()), true, false);
  if (n <= 0) throw std::runtime_error("llama.cpp cannot encode a prompt");
  tokens.resize(size_t(n));
  return tokens;
}

std::string hex_piece(const llama_vocab* vocab, llama_token token) {
  char bytes[256];
  const int n = llama_token_to_piece(vocab, token, bytes, sizeof bytes, 0, true);
  std::string hex;
  for (int i = 0; i < n; i++) {
    char two[3];
    snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(bytes[i]));
    hex += two;
  }
  return hex;
}

struct Pick {
  llama_token token = 0;
  float gap = 0;
};
Pick best_of(const float* logits, int n) {
  int best = 0, next = -1;
  for (int x = 1; x < n; x++) {
    if (logits[x] > logits[best]) {
      next = best;
      best = x;
    } else if (next < 0 || logits[x] > logits[next]) {
      next = x;
    }
  }
  return {best, logits[best] - logits[next]};
}

Json continued(llama_model* model, const std::string& prompt, int most, int threads) {
  const llama_vocab* vocab = llama_model_get_vocab(model);
  std::vector<llama_token> text = tokens_of(vocab, prompt);
  const Context context = make_context(model, int(text.size()) + most, threads);
  if (!context) throw std::runtime_error("llama.cpp makes no context");
  Json json = {{"prompt", text}, {"ended", false}};
  for (const char* list : {"tokens", "gaps", "pieces"}) json[list] = Json::array();
  for (int i = 0; i < most && !json["ended"]; i++) {
    if (llama_decode(context.get(), llama_batch_get_one(text.data(), int(text.size()))) != 0)
      throw std::runtime_error("llama.cpp cannot decode");
    const Pick pick = best_of(llama_get_logits_ith(context.get(), -1), llama_vocab_n_tokens(vocab));
    json["tokens"].push_back(pick.token);
    json["gaps"].push_back(pick.gap);
    json["pieces"].push_back(hex_piece(vocab, pick.token));
    json["ended"] = llama_vocab_is_eog(vocab, pick.token);
    text = {pick.token};
  }
  return json;
}

void run(char** argv) {
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  const Model model(llama_model_load_from_file(argv[1], llama_model_default_params()), llama_model_free);
  if (!model) throw std::runtime_error(std::string("llama.cpp does not load ") + argv[1]);
  std::ifstream prompts(argv[2]);
  if (!prompts) throw std::runtime_error(std::string("there is no such file: ") + argv[2]);
  for (std::string line; std::getline(prompts, line);)
    std::cout << continued(model.get(), Json::parse(line).at("prompt"), std::stoi(argv[3]), std::stoi(argv[4])) << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: llama_greedy FILE.gguf PROMPTS.jsonl TOKENS THREADS\n");
    return 2;
  }
  try {
    run(argv);
  } catch (const std::exception& error) {
    fprintf(stderr, "llama_greedy: %s\n", error.what());
    return 1;
  }
}
