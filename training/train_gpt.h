// training/train_gpt.h: what train_gpt does beside training: its command line, handing over to train_drafter, its files
// and its figures. The training itself is in train_gpt.cu.
#pragma once

#include "training/run.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The command line

struct GptOptions : RunOptions {
  std::string preset = "small", arch = "gpt", device = "auto";
  Config config;
  int n_kv_head = 0;  // 0: as many as query heads
  int gradient_accumulation_steps = 1, eval_iters = 20;
  float dropout = 0.0f;
};

inline void apply_preset(GptOptions& o) {
  if (o.preset == "medium") {
    o.config.n_layer = o.config.n_head = 6;
    o.config.n_embd = 384;
    o.config.block_size = 256;
  } else if (o.preset == "article") {  // the size of the teaching article that this engine grew from
    o.config.n_embd = 32;
    o.max_iters = o.lr_decay_iters = 120;
    o.warmup_iters = 10;
    o.eval_interval = 60;
  }
}

inline Command command_line(GptOptions& o) {
  const std::vector<Flag> flags = {
      heading("Files"),
      {"--data", "FILE", &o.data, "the text to learn, UTF-8; its last tenth is for validation", required()},
      {"--out", "DIR", &o.out, "where the model is written, at every evaluation and at the end", written(true)},
      {"--resume", "", &o.resume, "continue from DIR/optimizer.safetensors"},
      {"--overwrite", "", &o.overwrite, "start again, if DIR holds a model already"},
      {"--medusa", "DIR", FlagValue(),
       "instead: heads on the model in DIR, for --drafter medusa; --medusa DIR --help says more"},
      {"--hydra", "MODEL", FlagValue(),
       "instead: heads that see the path, for --drafter hydra; --hydra MODEL --help says more"},
      {"--parallel", "DIR", FlagValue(),
       "instead: a drafter on the model in DIR, for --drafter parallel; --parallel DIR --help says more"},
      {"--stats", "FILE.json", &o.stats, "at the end of the run, write its figures", written()},
      heading("Model"),
      {"--preset", "NAME", &o.preset,
       "small (4 layers, 4 heads, 128 channels, block 64), medium (6, 6, 384, 256) or article (4, 4, 32, 64; 120 "
       "iterations); other flags win over it; --preset medium --help shows its values",
       one_of({"small", "medium", "article"})},
      {"--arch", "NAME", &o.arch,
       "gpt: LayerNorm, learned positions, GELU; gpt2: with biases, and GELU by tanh; llama: RMSNorm, rotary "
       "positions, SwiGLU of 8/3 the channels; qwen2: with biases of queries, keys and values; qwen3: with norms of "
       "queries and keys",
       one_of({"gpt", "gpt2", "llama", "qwen2", "qwen3"})},
      {"--n_layer", "N", &o.config.n_layer, "layers", from(1)},
      {"--n_head", "N", &o.config.n_head, "attention heads", from(1)},
      {"--n_kv_head", "N", &o.n_kv_head, "with llama and qwen: key/value heads, which divide the heads; 0: as many",
       from(0)},
      {"--sliding_window", "N", &o.config.span,
       "with llama and qwen: tokens that a token sees, itself among them; 0: all", from(0)},
      {"--n_embd", "N", &o.config.n_embd, "channels, a multiple of the heads", from(1)},
      {"--block_size", "N", &o.config.block_size, "the window in tokens, even", from(2)},
      {"--bias", "", &o.config.bias, "with --arch gpt: biases in the linear layers and the norms"},
      {"--dropout", "P", &o.dropout, "chance to drop a number while training", from(0, 0.99)}};
  std::vector<Flag> updates = run_flags(o, "sequences in a batch", "the highest rate",
                                        "the rate at the end of the decay", "of the weights, batches and dropout");
  add_before(updates, "--max_iters",
             {"--gradient_accumulation_steps", "N", &o.gradient_accumulation_steps,
              "batches whose gradients make one update", from(1, 1 << 20)});
  add_before(updates, "--beta2",
             {"--lr_decay_iters", "N", &o.lr_decay_iters, "updates until the lowest rate", from(1)});
  add_before(updates, "--seed", {"--eval_iters", "N", &o.eval_iters, "batches that estimate a loss", from(1)});
  add_before(updates, "--threads", {"--device", "NAME", &o.device, "where to train", one_of({"auto", "cpu", "cuda"})});
  return {"train_gpt",
          "Trains a GPT on the characters of a text and writes a folder that nanospec, and transformers, can load.",
          "train_gpt --data data/*shakespeare.txt --out runs/a  # takes a minute\n"
          "train_gpt --data data/*shakespeare.txt --out runs/b --preset medium --dropout 0.1  # takes half an hour\n"
          "train_gpt --data data/*shakespeare.txt --out runs/a --max_iters 2500 --resume  # takes half a minute\n"
          "train_gpt --data data/*shakespeare.txt --out runs/llama --arch llama --n_kv_head 2  # takes a minute\n",
          together({flags, updates})};
}

// The settings that --arch stands for. Throws invalid_argument for a flag of the other architecture.
inline void apply_arch(GptOptions& o) {
  Config& c = o.config;
  const Family* const llama = row_of(kFamilies, &Family::type, o.arch);  // null: GPT
  if (llama && c.bias) throw std::invalid_argument("--bias is for --arch gpt: train_gpt: leave one of them out");
  if (!llama && (o.n_kv_head || c.span))
    refuse_usage("{} is for --arch llama, qwen2 and qwen3: train_gpt: leave it out",
                 o.n_kv_head ? "--n_kv_head" : "--sliding_window");
  if (c.span >= c.block_size) c.span = 0;
  c.n_kv_head = o.n_kv_head ? o.n_kv_head : c.n_head;
  c.tanh = o.arch == "gpt2";
  c.bias = c.bias || c.tanh;
  if (!llama) return;
  c.qkv_bias = llama->qkv_bias;
  c.qk_norm = llama->qk_norm;
  c.rotary = c.swiglu = true;
  c.center = false;
  c.n_inner = int((int64_t(8) * c.n_embd / 3 + 15) / 16 * 16);  // three matrices of as many numbers as GPT's two
}

// Reads the flags; a preset's values stand where no flag names another. Becomes train_drafter if a drafter is to be
// trained. Returns false when only help was asked for. Throws runtime_error.
inline bool read_flags(int argc, char** argv, GptOptions& o) {
  for (const auto& [flag, value] : named_flags(argc, argv)) {
    if (flag == "--medusa" || flag == "--hydra" || flag == "--parallel") hand_over("train_drafter", argv, "make");
    if (flag == "--preset") o.preset = value;  // the last one counts
  }
  apply_preset(o);
  const Given given = parse_flags(command_line(o), argc, argv);
  if (given.help) return false;
  apply_arch(o);
  o.config.vocab_size = 1;  // known when the text is read
  validate(o.config);
  check_rates(o, "train_gpt");
  check_outputs(given);
  return true;
}

// ---------------------------------------------------------------------------------------------------------------
// Files

constexpr const char* kAccumulation = "gradient_accumulation_steps";  // a setting: not there, it is 1

// Throws runtime_error where a file of somebody else's has a name that the model's will have.
inline void check_names(const GptOptions& o, const TrainingText& text) {
  if (o.resume || o.overwrite) return;
  for (const auto& [name, its] : texts_of_model(o.config, text.tokenizer)) {
    const std::string path = o.out + "/" + name;
    if (std::filesystem::exists(path) && read_file(path) != its)
      refuse("another file has this name", path, "start anew with --overwrite, or give another --out");
  }
}

// Reads the data, which says the vocabulary's size. Throws runtime_error.
inline TrainingText read_text(GptOptions& o) {
  TrainingText text = read_text(o, o.config, nullptr);
  text.settings["batch_size"] = std::to_string(o.batch_size);
  text.settings[kAccumulation] = std::to_string(o.gradient_accumulation_steps);
  text.settings["dropout"] = std::to_string(o.dropout);
  return text;
}

// A line where the n-grams of so many training tokens are not all counted; else nothing.
inline std::string counted_text(size_t tokens, size_t most = kNgramText) {
  if (tokens <= most) return "";
  return "n-grams are counted in the first " + thousands(double(most)) + " of " + thousands(double(tokens)) +
         " training characters\n";
}

// What drafters count of the text; it comes into the folder with the first checkpoint.
inline void save_tables(const Staged& tables, const GptOptions& o, const TrainingText& text) {
  if (!o.quiet) tell(counted_text(text.parts.train.size()));
  Preparing preparing(file_bytes(o.data), o.quiet);
  preparing.step("counting n-grams");
  save_bigram(tables.path, text.parts.train, o.config.vocab_size, text.origin);
  save_ngrams(tables.path, text.parts.train, o.config.vocab_size, text.origin, preparing.told());
}

// A checkpoint: the state to go on from, the tables, the model. No kill leaves weights that lack one of the others.
inline void save(const GptOptions& o, const TrainingText& text, Staged& tables, const Trainer<float>& trainer,
                 int64_t iteration) {
  std::vector<float> copies[3];
  const size_t n = trainer.weights.size();
  const OptimizerArrays arrays = {trainer.weights.on_host(n, copies[0]), trainer.m.on_host(n, copies[1]),
                                  trainer.v.on_host(n, copies[2])};
  Metadata origin = text.origin;
  origin["model"] = hash_model(o.config, arrays.weights, text.origin);
  save_optimizer(o.out, o.config, iteration, text.settings, arrays, origin);
  tables.publish();
  save_model(o.out, o.config, text.tokenizer, arrays.weights, text.origin);
}

// Returns the iteration that the run to resume had reached. The tables are there at once. Throws runtime_error.
inline int64_t resume(const GptOptions& o, const TrainingText& text, Staged& tables, Trainer<float>& trainer) {
  TrainingState state = load_optimizer(o.out);
  state.settings.emplace(kAccumulation, "1");
  const std::string where = o.out + "/optimizer.safetensors";
  if (format_config(state.config) != format_config(o.config))
    refuse("the run to resume has a model of another size", where,
           "give its sizes (config.json has them), or another --out");
  check_resumable(state.settings, text.settings, where);
  check_origin(read_header(where).metadata, "the state was saved", where, o.out,
               "going on from the state, at iteration " + std::to_string(state.iteration));
  tables.publish();
  return go_on(trainer, state);
}

// ---------------------------------------------------------------------------------------------------------------
// Figures

inline double tokens_per_iteration(const GptOptions& o) {
  return double(o.batch_size) * o.gradient_accumulation_steps * o.config.block_size;
}

// Multiply-adds count two: 6 for each parameter and token (forward 2, backward 4; positions are only looked up), and
// the two products of causal attention.
inline double flops_per_iteration(const GptOptions& o) {
  const Config& c = o.config;
  const double matrices = double(parameter_count(c)) - (c.rotary ? 0 : double(c.block_size) * c.n_embd);
  return tokens_per_iteration(o) * (6 * matrices + 6.0 * c.n_layer * c.heads_size() * c.block_size);
}

// Of updates that take so many seconds each.
inline std::string speed_text(const GptOptions& o, double seconds) {
  return decimals(seconds * 1e3, 1) + " ms/iter  " + thousands(tokens_per_iteration(o) / seconds) + " tokens/s  " +
         decimals(flops_per_iteration(o) / seconds * 1e-9, 0) + " GFLOP/s";
}

inline void announce(const GptOptions& o, const TrainingText& text, bool cuda) {
  tell(filled("{} parameters, {} training tokens, vocabulary {}, {}, {}\n",
              thousands(double(parameter_count(o.config))), thousands(double(text.parts.train.size())),
              o.config.vocab_size, cuda ? "GPU" : count(o.threads, "thread"), cuda ? "CUDA" : kSimd));
}

inline void write_stats(const GptOptions& o, const UpdateLoop& run, double train_loss, double val_loss, double seconds,
                        bool cuda) {
  const double each = run.median_seconds(), in_a_second = each > 0 ? 1 / each : 0;
  const Json stats = {{"iterations", run.iteration},
                      {"train_loss", train_loss},
                      {"val_loss", val_loss},
                      {"ms_per_iter", each * 1e3},
                      {"tokens_per_second", tokens_per_iteration(o) * in_a_second},
                      {"gflops", flops_per_iteration(o) * in_a_second * 1e-9},
                      {"parameters", parameter_count(o.config)},
                      {"seconds", seconds},
                      {"peak_bytes", cuda ? double(device_bytes.most) : peak_bytes()},  // of the memory it trains in
                      {"threads", cuda ? 1 : o.threads},
                      {"device", cuda ? "cuda" : "cpu"}};
  write_file(o.stats, stats.dump(2) + "\n");
}

}  // namespace nanospec
