// commands/engine.h: what the commands ask of the machine room: load a model, generate by a method, say what it took.
//
// The answer is in nanospec.cu, the one place where target, drafter, shape and rule meet: it alone is compiled for
// each machine. The commands are plain C++ and see neither arrays nor the model.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../decode.h"

namespace nanospec {

// How text is speculated on, in the command line's words; check_method() has passed them.
struct Method {
  std::string drafter = "bigram", shape = "auto", verify = "match";
};

// What is loaded once and then serves every method.
struct Settings {
  std::string model;                 // the folder that train_gpt wrote
  std::string device = "auto";       // auto, cpu, cuda
  std::string dtype = "fp32";        // fp32, bf16: how weights are stored
  std::string cache_dtype = "fp32";  // and how keys and values are
  int threads = 1;
  int budget = 64;  // most nodes in a tree, the root not counted
  int rows = 65;    // most rows of one target forward: the nodes of the largest tree, and its root
};

struct Generated {
  std::vector<int> tokens;  // without the prompt
  Stats stats;
};

class Engine {
 public:
  // Loads the model. Throws std::runtime_error for files, devices and memory.
  explicit Engine(const Settings& settings);
  ~Engine();

  std::vector<int> encode(const std::string& text, const std::string& what) const;  // throws as Tokenizer::encode
  const std::string& decode(int token) const;

  // Continues the prompt (not empty). on_token is called with each token in turn; when it returns false, the run ends
  // after that token.
  Generated generate(const Method& method, const Sampling& sampling, const std::vector<int>& prompt, int max_new_tokens,
                     const std::function<bool(int)>& on_token);

  const Config& config() const;
  int threads() const;
  std::string device() const;   // cpu or cuda: what "auto" came to
  double weight_bytes() const;  // bytes of weights that one target forward reads

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace nanospec
