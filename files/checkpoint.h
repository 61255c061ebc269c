// files/checkpoint.h: reads and writes models, in files that Hugging Face's own loaders read too.
//
// In order: config.json; the model's tensors; the folder of a model; a training's state. Files are written and checked
// as safetensors.h says. Every reader throws std::runtime_error with one line, also for any model but GPT-2 and Llama
// as in model.h.
#pragma once

#include "files/safetensors.h"
#include "weights.h"

namespace nanospec {

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

// The tensors of a table in a file, each under prefix + name. These functions list them to write, list them to expect,
// and read them into a flat array after that check.
void add_tensors(std::vector<TensorData>& tensors, const std::vector<TensorSpec>& table, const float* flat,
                 const std::string& prefix = "");
void expect_tensors(Expected& expected, const std::vector<TensorSpec>& table, const std::string& prefix = "");
std::vector<float> read_flat(const SafeTensors& file, const std::vector<TensorSpec>& table, const std::string& where,
                             const std::string& prefix = "");

// Hugging Face's GPT-2 always has biases: the tensors of a model as its file holds them.
std::vector<TensorSpec> file_table(Config config);

// The tensors of model.safetensors: the weights, in the order of tensor_table(config), under Hugging Face's names. For
// a GPT without biases they are `extra`, which becomes zeros; there is no separate head. Llama's tensors are all copied
// into `extra`, since files store them otherwise (llama.h).
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
  TensorSource tensors = {};       // of a file that stays mapped
  std::string chat_template = {};  // how a chat's messages are written, for Jinja; "": not known
  int begin_token = -1;            // that the model wants before every text; -1: none

  // While this lives and its weights stay where they are.
  TensorSource source() const { return tensors.read ? tensors : TensorSource(weights.data()); }
};

// Notes that a file has no hash, as those of other programs, and of early versions of nanospec.
void check_hashed(const SafeTensors& file, const std::string& dir);

// Where the weights lie. Throws runtime_error where `dir` is a file, or an index names several files instead.
std::string weights_path(const std::string& dir);

// Reads config.json, tokenizer.json and model.safetensors; and the template of a chat, where there is one. Throws
// runtime_error.
Loaded load_model(const std::string& dir);

// tokenizer_config.json: it tells `transformers` to use tokenizer.json and nothing else.
std::string format_tokenizer_config(const Config& config);

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
  int64_t iteration = 0;                        // updates done
  std::vector<float> weights, m, v;             // each laid out by one table of tensors; m, v: AdamW's moments
  std::map<std::string, std::string> settings;  // what else a resumed run must share: seed, data, ...
};

// Pointers to the three arrays.
struct OptimizerArrays {
  const float *weights, *m, *v;
};
std::vector<TensorData> optimizer_tensors(const std::vector<TensorSpec>& table, const OptimizerArrays& arrays);
Metadata training_metadata(int64_t iteration, const std::map<std::string, std::string>& settings);

// The state without its arrays. Throws std::runtime_error.
TrainingState parse_training_metadata(const SafeTensors& file, const std::string& where);
// The whole state. Throws std::runtime_error unless the tensors are those of the table.
TrainingState parse_training(const SafeTensors& file, const std::vector<TensorSpec>& table, const std::string& where);

// Throws std::runtime_error if a resumed run has other settings than the stopped one.
void check_resumable(const std::map<std::string, std::string>& before, const std::map<std::string, std::string>& now,
                     const std::string& where);

// Of a model: DIR/optimizer.safetensors, which holds the config too.
struct OptimizerState : TrainingState {
  Config config;
};
Metadata optimizer_metadata(const Config& config, int64_t iteration,
                            const std::map<std::string, std::string>& settings);
OptimizerState parse_optimizer(const SafeTensors& file, const std::string& where);

// The folder must be there. Both throw runtime_error.
void save_optimizer(const std::string& dir, const Config& config, int64_t iteration,
                    const std::map<std::string, std::string>& settings, const OptimizerArrays& arrays,
                    Metadata metadata = {});
OptimizerState load_optimizer(const std::string& dir);

}  // namespace nanospec
