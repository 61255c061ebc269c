// files/checkpoint.h: reads and writes models, in files that Hugging Face's own loaders read too.
//
// In order: which sizes a model may have; config.json; the model's tensors; the folder of a model; a training's state.
// Files are written and checked as safetensors.h says. Every reader throws std::runtime_error with one line, also for
// any model but GPT-2 and Llama as in model.h.
#pragma once

#include "files/safetensors.h"
#include "weights.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Which sizes a model may have, whether a file or the command line names them. The core takes every Config as it is: so
// what reads one asks config_problem() first.

// The largest model that is accepted: 2^36 parameters are 32 GiB in 4 bits.
constexpr int kMaxLayers = 1024;
constexpr int kMaxChannels = 1 << 16;
constexpr int kMaxBlock = 1 << 20;
constexpr int kMaxVocabulary = 1 << 20;
constexpr uint64_t kMaxParameters = uint64_t(1) << 36;

// What is wrong with the heads' sizes; "" when nothing is. What a Config computes of sizes that pass is an int.
inline std::string heads_problem(const Config& config) {
  const int64_t channels = int64_t(config.n_head) * config.head_size();  // of all queries
  if (channels <= 4 * kMaxChannels) return "";
  return filled("n_head * head_dim is {}, expected at most {}", channels, 4 * kMaxChannels);
}

// What is wrong with these sizes, in words; "" when nothing is.
inline std::string config_problem(const Config& config) {
  std::string problem;
  const auto range = [&](const char* name, int value, int low, int high) {
    if (value < low || value > high) problem = filled("{} is {}, expected {} to {}", name, value, low, high);
    return problem.empty();
  };
  if (!range("n_layer", config.n_layer, 1, kMaxLayers) || !range("n_embd", config.n_embd, 1, kMaxChannels) ||
      !range("n_head", config.n_head, 1, kMaxChannels) || !range("block_size", config.block_size, 2, kMaxBlock) ||
      !range("vocab_size", config.vocab_size, 1, kMaxVocabulary))
    return problem;
  if (!config.head_dim && config.n_embd % config.n_head != 0)
    return filled("n_embd is {}, not a multiple of n_head, {}", config.n_embd, config.n_head);
  if (!range("head_dim", config.head_size(), 1, kMaxChannels) ||
      !range("n_inner", config.inner(), 1, 4 * kMaxChannels) || !range("n_kv_head", config.n_kv_head, 1, config.n_head))
    return problem;
  if (problem = heads_problem(config); !problem.empty()) return problem;
  if (config.n_head % config.n_kv_head != 0)
    return filled("n_head is {}, not a multiple of n_kv_head, {}", config.n_head, config.n_kv_head);
  if (config.rotary && config.head_size() % 2 != 0)
    return filled("head_dim is {}, expected an even number for rotary positions", config.head_size());
  if (config.block_size % 2 != 0) return filled("block_size is {}, expected an even number", config.block_size);
  const uint64_t parameters = parameter_count(config);
  if (parameters > kMaxParameters)
    return filled("the model would have {} parameters, at most {} are possible", parameters, kMaxParameters);
  return "";
}

// Throws std::invalid_argument (the command line is wrong) when no model can have these sizes.
inline void validate(const Config& config) {
  const std::string problem = config_problem(config);
  if (!problem.empty()) throw std::invalid_argument(problem + ": the model's size: choose other sizes");
}

// ---------------------------------------------------------------------------------------------------------------
// config.json

// Valid for transformers' GPT2LMHeadModel, where "bias" is ours, as in nanoGPT; or for its LlamaForCausalLM.
std::string format_config(const Config& config);

// Throws std::runtime_error, with the key, if a size is missing or impossible, or if the file describes another kind of
// model than model.h. Keys that change nothing here are ignored.
Config parse_config(const std::string& text, const std::string& where);

// ---------------------------------------------------------------------------------------------------------------
// The model's tensors

inline std::vector<int64_t> shape_of(const TensorSpec& spec) { return {spec.shape.begin(), spec.shape.end()}; }

// A flat array over a table of tensors, as a file has it: each tensor under prefix + name.
using FlatArray = std::pair<std::string, const float*>;  // prefix, numbers
// more: tensors beside the table's.
void write_arrays(const std::string& path, const std::vector<TensorSpec>& table, const std::vector<FlatArray>& arrays,
                  const Metadata& metadata, const std::vector<TensorData>& more = {});
// The arrays under these prefixes. Throws runtime_error unless they, and `more`, are all that the file holds.
std::vector<std::vector<float>> read_arrays(const SafeTensors& file, const std::vector<TensorSpec>& table,
                                            const std::vector<std::string>& prefixes, const std::string& where,
                                            const Expected& more = {});

// The tensors of model.safetensors: the weights, in the order of tensor_table(config), under Hugging Face's names. In
// `extra` lies what the weights do not have: zeros, the biases of a GPT without them, and copies of Llama's matrices,
// since files store them otherwise (families.h). A tied model has no separate head.
std::vector<TensorData> model_tensors(const Config& config, const float* weights, std::vector<float>& extra);

// Throws std::runtime_error unless the file has exactly the tensors of this config; it may also have a separate head.
// Needs no more memory than the file.
void check_model(const SafeTensors& file, const Config& config, const std::string& where);

// The flat array of tensor_table(config). Throws what check_model throws; also std::runtime_error if a tensor that this
// config cannot use has other values: a bias other than zero, a head other than the token embedding (the first tensor).
std::vector<float> parse_model(const SafeTensors& file, const Config& config, const std::string& where);

// ---------------------------------------------------------------------------------------------------------------
// The folder of a model

struct Loaded {
  Config config;
  std::vector<float> weights;  // laid out by tensor_table(config); none where `tensors` reads
  Tokenizer tokenizer;
  TensorSource tensors = {};  // of a file that stays mapped

  // While this lives and its weights stay where they are.
  TensorSource source() const { return tensors.read ? tensors : TensorSource(weights.data()); }
};

// Where the weights lie: in model.safetensors, or in the files that model.safetensors.index.json names, which is the
// path then. Throws runtime_error where `dir` is a file.
std::string weights_path(const std::string& dir);

// Reads config.json, tokenizer.json and model.safetensors; and the template of a chat, where there is one. Throws
// runtime_error.
Loaded load_model(const std::string& dir);

// The texts of a model's folder, by the names of their files.
std::vector<std::pair<std::string, std::string>> texts_of_model(const Config& config, const Tokenizer& tokenizer);
// Writes the folder of a model, and creates it if needed. The weights are written last: between two checkpoints of a
// run only they differ, and a rename replaces them in one step. If the folder has a model of another config or
// vocabulary, its weights are removed first, so that no kill leaves a mix of two models. metadata: of the text
// (origin.h). Throws std::runtime_error.
void save_model(const std::string& dir, const Config& config, const Tokenizer& tokenizer, const float* weights,
                const Metadata& metadata = {});
// The hash that save_model gives them.
std::string hash_model(const Config& config, const float* weights, const Metadata& metadata);

// ---------------------------------------------------------------------------------------------------------------
// A training's state: one file with all that --resume needs, so that a kill between two renames cannot mix two states.

struct TrainingState {
  int64_t iteration = 0;             // updates done
  std::vector<float> weights, m, v;  // each laid out by one table of tensors; m, v: AdamW's moments
  Metadata settings;                 // what else a resumed run must share: seed, data, ...
  Config config = {};                // of a model's training: its sizes, from its file
};

// Pointers to the three arrays.
struct OptimizerArrays {
  const float *weights, *m, *v;
};
// Writes the state of a training of this table's tensors, with more metadata of it. Throws runtime_error.
void save_training(const std::string& path, const std::vector<TensorSpec>& table, int64_t iteration,
                   const Metadata& settings, const OptimizerArrays& arrays, Metadata metadata);

// The state without its arrays. Throws std::runtime_error.
TrainingState parse_training_metadata(const SafeTensors& file, const std::string& where);
// The whole state. Throws std::runtime_error unless the tensors are those of the table.
TrainingState parse_training(const SafeTensors& file, const std::vector<TensorSpec>& table, const std::string& where);

// Throws std::runtime_error if a resumed run has other settings than the stopped one.
void check_resumable(const Metadata& before, const Metadata& now, const std::string& where);

// Of a model: DIR/optimizer.safetensors, which holds the config too.
TrainingState parse_optimizer(const SafeTensors& file, const std::string& where);

// The folder must be there. Both throw runtime_error.
void save_optimizer(const std::string& dir, const Config& config, int64_t iteration, const Metadata& settings,
                    const OptimizerArrays& arrays, Metadata metadata = {});
TrainingState load_optimizer(const std::string& dir);

}  // namespace nanospec
