// commands/engine.h: the engine as the commands see it: load a model, generate by a method, report the time.
//
// In order: an engine with a trained model; a probe, to measure forwards. Both are implemented in nanospec.cu, which
// g++ compiles for the CPU and nvcc for a GPU; commands.cpp has what follows from the rest of the engine, whichever
// it is. So the commands are plain C++, and touch neither arrays nor the model.
#pragma once

#include <deque>

#include "watch/settings.h"

namespace nanospec {

struct Config;     // model.h
struct Tokenizer;  // files/text.h

constexpr size_t kMostSeats = 16;  // texts side by side that mostly pay

// How text is speculated on, in the command line's words.
struct Method {
  std::string drafter = "bigram", shape = "auto", verify = "match";
  int budget = 0;             // most nodes in a tree, the root not counted; 0: what Settings say
  bool knows_noise = true;    // whether the drafter may know the noise that rule match picks with
  std::string ahead = "off";  // off, on, auto: whether to draft while the target verifies
};

// What is loaded once and then serves every method.
struct Settings {
  std::string model;                 // a folder with a model, or a GGUF file
  int context = 0;                   // tokens of the window; 0: the model's own, of a GGUF file at most kMostContext
  std::string device = "auto";       // auto, cpu, cuda
  std::string dtype = "auto";        // fp32, bf16, f16, q8, q4: how weights are stored; auto: as in the file
  std::string cache_dtype = "fp32";  // and how keys and values are
  std::string kernels = "tuned";     // plain, tuned: which CUDA kernels decode
  std::string early = "on";          // on, launches, off: what they do before the kernels before them have ended
  bool keeps_cache = false;          // from one text to the next: what two begin with is run once
  int threads = 1;
  bool quiet = false;  // no progress, no notes
  int budget = 64;     // most nodes in a tree, the root not counted
  int seats = 1;       // texts that decode side by side, each with a cache of its own
  bool fewer = false;  // whether there may be fewer seats, where memory is short
  int rows = 65;       // most rows of a text in one target forward: the nodes of the largest tree, and its root
};

struct Generated {
  std::vector<int> tokens;  // without the prompt
  Stats stats;
};

// How a command may observe a run.
struct Observation {
  std::function<void(const IterationReport&)> on_iteration = nullptr;  // called after every iteration
  // Makes the drafter that replaces the method's.
  std::function<std::unique_ptr<Drafter>(Drafter& its_own)> stand_in = nullptr;
};

// One of many texts that are decoded side by side.
struct Request {
  std::vector<int> prompt;  // not empty
  Sampling sampling;
  int max_new_tokens = 0;
  std::function<bool(int)> on_token = nullptr;  // as in generate(): called with each token; false ends the text
  Pick pick = nullptr;                          // in place of the sampling's; null: that
  Drafter* drafter = nullptr;                   // in place of the method's; null: that
  std::function<void(const Stats&)> on_end = [](const Stats&) {};  // called once, when the text is over
};

class Engine {
 public:
  // Loads the model. Throws std::runtime_error for files, devices and memory.
  explicit Engine(const Settings& settings);
  ~Engine();

  // The tokens of a prompt, and before them the one that the model wants before every text. Throws what
  // Tokenizer::encode throws, and runtime_error where there are no tokens; what: the prompt's name in the message.
  std::vector<int> encode_prompt(const std::string& prompt, const std::string& what) const;
  const std::string& decode(int token) const;
  const Tokenizer& tokenizer() const;

  // Continues the prompt (not empty). on_token is called with each token in turn; when it returns false, the run ends
  // after that token. Throws std::runtime_error where a file of the drafter or of the shape is missing or wrong.
  Generated generate(const Method& method, const Sampling& sampling, const std::vector<int>& prompt, int max_new_tokens,
                     const std::function<bool(int)>& on_token, const Observation& observation = {});

  // Continues many prompts side by side, up to Settings::seats at a time: they start in this order, and a text that
  // ends gives its seat to the next; its on_end() may add requests behind the others. Each text has the bytes that it
  // has alone. Throws as generate().
  void generate(const Method& method, std::deque<Request>& requests);

  // The cross-entropy, in nats, of the tokens first, first + 1, ... (first is at least 1), each after all those before
  // it. At most as many tokens as the model sees.
  std::vector<double> losses(const std::vector<int>& tokens, int first);

  const Config& config() const;
  int seats() const;
  int context() const;  // tokens of the window
  int threads() const;
  std::string device() const;   // cpu or cuda: what "auto" came to
  std::string dtype() const;    // of most weights: a word of Settings::dtype, or another type of a file
  double weight_bytes() const;  // bytes of weights that one target forward reads

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// A target of any size with random weights, or one from a file: what its forwards take, and what they read.
class Probe {
 public:
  // Throws std::runtime_error or std::bad_alloc. most_rows: of one forward.
  Probe(const Config& config, const std::string& dtype, const std::string& device, int threads, int most_rows);
  explicit Probe(const Settings& settings);  // throws as Engine's
  ~Probe();

  // Seconds of one forward of a root and rows - 1 children, over a past of so many tokens; on a GPU with the picks that
  // decoding makes there. The past is made before the clock starts, and stays for the next call.
  double forward_seconds(int rows, int past);
  double prefill_seconds(int tokens);  // of one prefill

  double weight_bytes() const;         // that one forward reads
  double cache_bytes(int past) const;  // keys and values that one forward reads

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace nanospec
