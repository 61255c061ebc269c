// tests/reference/llama_speculate.cpp: llama.cpp's own speculation without a draft model, measured on a list of
// prompts. `make peers` builds it into build/peers/bin.
//
//     llama_speculate FILE.gguf PROMPTS.jsonl TOKENS THREADS TEMPERATURE
//
// A line {"prompt": ...} holds a text that wears its chat template already: special tokens are read in it, and none is
// put before it. Every method continues it, until a token that ends a text or TOKENS tokens; the methods take turns in
// being first. Each prints a JSON object in one line: `prompt`, the prompt's index; `method`; `tokens`, how many it
// made, the one that ends the text among them; `seconds`, without those of the prompt's prefill; `drafted` and
// `accepted`; `text`, the bytes in hexadecimal, without the ending token's.
//
// The methods: "plain"; "lookup", the n-gram cache of llama-lookup, with its drafts of at most 3 tokens, and "lookup:8"
// of at most 8; and those of llama.cpp's --spec-type that need no draft model ("ngram-simple", ...), as they are by
// default. One loop measures them all, that of llama-speculative-simple: the prefill leaves the prompt's last token
// out, so that n tokens of "plain" are n steps. No method knows of other prompts; a draft never exceeds the tokens
// still to make. Temperature 0 takes the best token; others sample from all tokens with the same seed, one random
// number a token, so that there too all methods should make one text. Keys and values are fp16 and flash attention is
// off.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "common.h"
#include "llama.h"
#include "log.h"
#include "ngram-cache.h"
#include "sampling.h"
#include "speculative.h"

namespace {

using Json = nlohmann::ordered_json;
using Tokens = std::vector<llama_token>;
using Model = std::unique_ptr<llama_model, decltype(&llama_model_free)>;
using Context = std::unique_ptr<llama_context, decltype(&llama_free)>;
using Seconds = std::chrono::duration<double>;

struct Options {
  std::string model, prompts;
  int tokens = 0, threads = 0;
  float temperature = 0;
};

// What proposes the tokens after `past` and `last`. This one proposes none: plain decoding.
class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual void processed(const common_batch&) {}
  virtual void begin(const Tokens& /*past*/) {}
  virtual Tokens draft(const Tokens& /*past*/, llama_token /*last*/, int /*most*/) { return {}; }
  virtual void accepted(size_t) {}
};

// llama-lookup: what followed the same 1 to 4 tokens before, from the text alone (its other caches stay empty).
class Lookup : public Drafter {
 public:
  explicit Lookup(int most) : most_(most) {}
  void begin(const Tokens& past) override { add(past); }
  Tokens draft(const Tokens& past, llama_token last, int most) override {
    add(past);
    text_.push_back(last);
    update(1);
    Tokens draft = {last};
    common_ngram_cache_draft(text_, draft, std::min(most, most_), LLAMA_NGRAM_MIN, LLAMA_NGRAM_MAX, seen_, none_,
                             none_);
    draft.erase(draft.begin());
    return draft;
  }

 private:
  void add(const Tokens& past) {
    const size_t known = text_.size();
    text_.insert(text_.end(), past.begin() + ptrdiff_t(known), past.end());
    update(int(past.size() - known));
  }
  void update(int added) { common_ngram_cache_update(seen_, LLAMA_NGRAM_MIN, LLAMA_NGRAM_MAX, text_, added, false); }

  int most_;
  Tokens text_;
  common_ngram_cache seen_, none_;
};

// One of the types in common/speculative.h.
class Typed : public Drafter {
 public:
  explicit Typed(common_speculative_type type) {
    common_params_speculative params;
    params.types = {type};
    state_.reset(common_speculative_init(params, 1));
    if (!state_) throw std::runtime_error("llama.cpp does not make " + common_speculative_type_to_str(type));
  }
  void processed(const common_batch& batch) override {
    if (!common_speculative_process(state_.get(), batch)) throw std::runtime_error("llama.cpp cannot draft");
  }
  void begin(const Tokens& past) override { common_speculative_begin(state_.get(), 0, past); }
  Tokens draft(const Tokens& past, llama_token last, int most) override {
    Tokens draft;
    if (most == 0) return draft;  // it would take this for no limit
    common_speculative_get_draft_params(state_.get(), 0) = {true, most, llama_pos(past.size()), last, &past, &draft};
    common_speculative_draft(state_.get());
    return draft;
  }
  void accepted(size_t n) override { common_speculative_accept(state_.get(), 0, uint16_t(n)); }

 private:
  common_speculative_ptr state_;
};

struct Method {
  std::string name;
  int lookup = 0;  // at most so many tokens; 0: not a lookup
  common_speculative_type type = COMMON_SPECULATIVE_TYPE_NONE;
};

std::vector<Method> all_methods() {
  const int usual = common_params_speculative_draft().n_max;
  std::vector<Method> methods = {{"plain"}, {"lookup", usual}, {"lookup:8", 8}};
  for (int i = 0; i < COMMON_SPECULATIVE_TYPE_COUNT; i++) {
    const auto type = common_speculative_type(i);
    const std::string name = common_speculative_type_to_str(type);
    if (name.rfind("ngram-", 0) == 0) methods.push_back({name, 0, type});  // "draft-..." need a draft model
  }
  return methods;
}

std::unique_ptr<Drafter> drafter_of(const Method& method) {
  if (method.lookup > 0) return std::make_unique<Lookup>(method.lookup);
  if (method.type != COMMON_SPECULATIVE_TYPE_NONE) return std::make_unique<Typed>(method.type);
  return std::make_unique<Drafter>();
}

Context make_context(llama_model* model, size_t tokens, int threads) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = uint32_t(tokens);
  params.n_threads = params.n_threads_batch = threads;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  Context context(llama_init_from_model(model, params), llama_free);
  if (!context) throw std::runtime_error("llama.cpp makes no context");
  return context;
}

common_sampler_ptr make_sampler(const llama_model* model, float temperature) {
  common_params_sampling params;
  params.seed = 1;
  params.temp = temperature;
  params.top_k = temperature > 0 ? 0 : 1;  // 0: all of them
  params.top_p = 1;
  params.min_p = 0;
  return common_sampler_ptr(common_sampler_init(model, params));
}

void process(llama_context* context, common_batch& batch, Drafter& drafter) {
  if (llama_process(context, LLAMA_PROCESS_TYPE_DECODE, batch.get()) != 0)
    throw std::runtime_error("llama.cpp cannot decode");
  drafter.processed(batch);
}

void prefill(llama_context* context, const Tokens& past, Drafter& drafter) {
  common_batch batch(context);
  for (const llama_token token : past) batch.add(token, batch.size(), 0, false);
  if (batch.size() > 0) process(context, batch, drafter);
  llama_synchronize(context);
  drafter.begin(past);
}

// One text in the making: `past` is in the context's memory, `last` is not yet.
class Text {
 public:
  Text(llama_model* model, const Options& options, const Tokens& prompt, Drafter& drafter)
      : vocab_(llama_model_get_vocab(model)),
        drafter_(drafter),
        context_(make_context(model, prompt.size() + size_t(options.tokens) + 8, options.threads)),
        sampler_(make_sampler(model, options.temperature)),
        batch_(context_.get()),
        past_(prompt.begin(), prompt.end() - 1),
        last_(prompt.back()) {
    prefill(context_.get(), past_, drafter);
  }

  void step(int most) {
    const Tokens draft = drafter_.draft(past_, last_, most - 1);
    batch_.clear();
    batch_.add(last_, llama_pos(past_.size()), 0, true);
    for (const llama_token token : draft) batch_.add(token, llama_pos(past_.size()) + batch_.size(), 0, true);
    process(context_.get(), batch_, drafter_);
    const Tokens got = common_sampler_sample_and_accept_n(sampler_.get(), context_.get(), draft);
    drafter_.accepted(got.size() - 1);
    drafted += draft.size();
    accepted += got.size() - 1;
    for (size_t i = 0; i < got.size() && !ended; i++) add(got[i]);
    forget(draft.size() + 1 - got.size());
  }

  Tokens tokens;
  bool ended = false;
  size_t drafted = 0, accepted = 0;

 private:
  void add(llama_token token) {
    tokens.push_back(token);
    past_.push_back(last_);
    last_ = token;
    ended = llama_vocab_is_eog(vocab_, token);
  }
  void forget(size_t refused) {
    if (refused == 0) return;
    if (!llama_memory_seq_rm(llama_get_memory(context_.get()), 0, llama_pos(past_.size()), -1))
      throw std::runtime_error("llama.cpp cannot take tokens back from this model's memory");
  }

  const llama_vocab* vocab_;
  Drafter& drafter_;
  Context context_;
  common_sampler_ptr sampler_;
  common_batch batch_;
  Tokens past_;
  llama_token last_;
};

std::string hex_of(const std::string& bytes) {
  std::string hex;
  for (const char byte : bytes) {
    char two[3];
    snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(byte));
    hex += two;
  }
  return hex;
}

std::string bytes_of(const llama_vocab* vocab, const Text& text) {
  std::string bytes;
  for (size_t i = 0; i + text.ended < text.tokens.size(); i++)
    bytes += common_token_to_piece(vocab, text.tokens[i], true);
  return bytes;
}

Json measured(llama_model* model, const Options& options, const Tokens& prompt, const Method& method) {
  const std::unique_ptr<Drafter> drafter = drafter_of(method);
  Text text(model, options, prompt, *drafter);
  const auto start = std::chrono::steady_clock::now();
  while (!text.ended && int(text.tokens.size()) < options.tokens) text.step(options.tokens - int(text.tokens.size()));
  const Seconds seconds = std::chrono::steady_clock::now() - start;
  return {{"method", method.name},      {"tokens", text.tokens.size()},
          {"seconds", seconds.count()}, {"drafted", text.drafted},
          {"accepted", text.accepted},  {"text", hex_of(bytes_of(llama_model_get_vocab(model), text))}};
}

std::vector<Tokens> read_prompts(const llama_vocab* vocab, const std::string& name) {
  std::ifstream file(name);
  if (!file) throw std::runtime_error("there is no such file: " + name);
  std::vector<Tokens> prompts;
  for (std::string line; std::getline(file, line);) {
    const std::string where = name + ", line " + std::to_string(prompts.size() + 1);
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("prompt") || !json["prompt"].is_string())
      throw std::runtime_error(where + ": not {\"prompt\": \"...\"}");
    prompts.push_back(common_tokenize(vocab, json["prompt"].get<std::string>(), false, true));
    if (prompts.back().empty()) throw std::runtime_error(where + ": the prompt has no tokens");
  }
  return prompts;
}

void run(const Options& options) {
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  common_log_set_verbosity_thold(-1);
  const Model model(llama_model_load_from_file(options.model.c_str(), llama_model_default_params()), llama_model_free);
  if (!model) throw std::runtime_error("llama.cpp does not load " + options.model);
  const std::vector<Tokens> prompts = read_prompts(llama_model_get_vocab(model.get()), options.prompts);
  const std::vector<Method> methods = all_methods();
  for (size_t i = 0; i < prompts.size(); i++)
    for (size_t turn = 0; turn < methods.size(); turn++) {
      Json json = {{"prompt", i}};
      json.update(measured(model.get(), options, prompts[i], methods[(i + turn) % methods.size()]));
      std::cout << json << std::endl;
    }
}

bool read_options(int argc, char** argv, Options& options) {
  if (argc != 6) return false;
  options.model = argv[1];
  options.prompts = argv[2];
  try {
    options.tokens = std::stoi(argv[3]);
    options.threads = std::stoi(argv[4]);
    options.temperature = std::stof(argv[5]);
  } catch (const std::logic_error&) {  // not a number, or out of range
    return false;
  }
  return options.tokens > 0 && options.threads > 0 && options.temperature >= 0 && std::isfinite(options.temperature);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!read_options(argc, argv, options)) {
    fprintf(stderr, "usage: llama_speculate FILE.gguf PROMPTS.jsonl TOKENS THREADS TEMPERATURE\n");
    return 2;
  }
  try {
    run(options);
  } catch (const std::exception& error) {
    fprintf(stderr, "llama_speculate: %s\n", error.what());
    return 1;
  }
}
