// train_gpt.cu: the program that trains.
//
// In order: flags and presets; batches and losses; the learning rate; what lies on disk; the loop. Everything random is
// a pure function of (seed, iteration), so that a run that was stopped and resumed gives the weights of one that was
// not, bit for bit, on any number of threads. It knows nothing of decoding.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "commands/cli.h"
#include "files/tables.h"
#include "files/checkpoint.h"
#include "model.h"
#include "training/train_medusa.h"
#include "training/train_parallel.h"

namespace nanospec {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// ---------------------------------------------------------------------------------------------------------------
// Flags

struct Options {
  std::string data, out, preset = "small", device = "auto", stats;
  Config config;
  int batch_size = 12, max_iters = 2000, warmup_iters = 100, lr_decay_iters = 2000, eval_interval = 250,
      eval_iters = 20;
  float learning_rate = 1e-3f, min_lr = 1e-4f, beta2 = 0.99f, weight_decay = 0.1f, grad_clip = 1.0f, dropout = 0.0f;
  uint64_t seed = 1337;
  int threads = usable_cpus();
  bool resume = false, quiet = false;
};

void apply_preset(Options& o) {
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

Command command_line(Options& o) {
  return {
      "train_gpt",
      "Trains a GPT on the characters of a text and writes a folder that nanospec, and transformers, can load.",
      "train_gpt --data data/tinyshakespeare.txt --out runs/small\n"
      "train_gpt --data data/tinyshakespeare.txt --out runs/medium --preset medium --dropout 0.1\n"
      "train_gpt --data data/tinyshakespeare.txt --out runs/small --max_iters 4000 --resume\n",
      {heading("Files"),
       {"--data", "FILE", &o.data, "the text to learn, UTF-8; its last tenth is for validation", required()},
       {"--out", "DIR", &o.out, "where the model is written, at every evaluation and at the end", required()},
       {"--resume", "", &o.resume, "go on from DIR/optimizer.safetensors"},
       {"--medusa",
        "DIR",
        {},
        "instead: heads on the model in DIR, for --drafter medusa; --medusa DIR --help says more"},
       {"--parallel",
        "DIR",
        {},
        "instead: a drafter on the model in DIR, for --drafter parallel; --parallel DIR --help says more"},
       {"--stats", "FILE.json", &o.stats, "what the run was, in figures, when it has ended"},
       heading("Model"),
       {"--preset", "NAME", &o.preset,
        "small (4 layers, 4 heads, 128 channels, block 64), medium (6, 6, 384, 256)\n"
        "or article (4, 4, 32, 64; 120 iterations); other flags win over it",
        one_of({"small", "medium", "article"})},
       {"--n_layer", "N", &o.config.n_layer, "layers", from(1)},
       {"--n_head", "N", &o.config.n_head, "attention heads", from(1)},
       {"--n_embd", "N", &o.config.n_embd, "channels, a multiple of the heads", from(1)},
       {"--block_size", "N", &o.config.block_size, "the window in tokens, even", from(2)},
       {"--bias", "", &o.config.bias, "biases in the linear layers and the norms"},
       {"--dropout", "P", &o.dropout, "chance to drop a number while training", from(0, 0.99)},
       heading("Training"),
       {"--batch_size", "N", &o.batch_size, "sequences in one update", from(1, 1 << 20)},
       {"--max_iters", "N", &o.max_iters, "updates in all", from(1)},
       {"--learning_rate", "X", &o.learning_rate, "the highest rate", above(0, 1e3)},
       {"--min_lr", "X", &o.min_lr, "the rate at the end of the decay", from(0, 1e3)},
       {"--warmup_iters", "N", &o.warmup_iters, "updates until the highest rate", from(0)},
       {"--lr_decay_iters", "N", &o.lr_decay_iters, "updates until the lowest rate", from(1)},
       {"--beta2", "X", &o.beta2, "AdamW's second decay rate (the first is 0.9)", from(0, 0.999999)},
       {"--weight_decay", "X", &o.weight_decay, "of matrices", from(0, 1e3)},
       {"--grad_clip", "X", &o.grad_clip, "longest gradient; 0: no clipping", from(0)},
       {"--eval_interval", "N", &o.eval_interval, "updates between two evaluations, each with a checkpoint", from(1)},
       {"--eval_iters", "N", &o.eval_iters, "batches that estimate a loss", from(1)},
       {"--seed", "N", &o.seed, "of the weights, batches and dropout"},
       heading("Machine"),
       {"--device", "NAME", &o.device, "where to train", one_of({"auto", "cpu", "cuda"})},
       {"--threads", "N", &o.threads, "CPU threads; the weights do not depend on it", from(1, 1024)},
       {"--quiet", "", &o.quiet, "no progress"}}};
}

// Reads the flags; a preset's values stand where no flag names another. Returns false when only help was asked for.
bool read_flags(int argc, char** argv, Options& o) {
  if (parse_flags(command_line(o), argc, argv).help) return false;
  Options preset;
  preset.preset = o.preset;
  apply_preset(preset);
  o = preset;
  parse_flags(command_line(o), argc, argv);
  o.config.n_kv_head = o.config.n_head;
  o.config.vocab_size = 1;  // known when the text is read
  validate(o.config);
  if (o.min_lr > o.learning_rate)
    throw std::invalid_argument("--min_lr " + decimals(o.min_lr, 6) + " is above --learning_rate " +
                                decimals(o.learning_rate, 6) + ": train_gpt: lower it");
  return true;
}

// ---------------------------------------------------------------------------------------------------------------
// Batches and losses

// Sequences of T tokens, each with the token that follows every place: roots whose rows are chains.
class Batches {
 public:
  Batches(const std::vector<int>& tokens, const Options& o) : tokens_(tokens), o_(o) {}

  // The batch of one update, or of one estimate: where its sequences start is a function of (seed, stream, index).
  Pass random(Stream stream, uint64_t index) const {
    Pass pass;
    const uint64_t places = tokens_.size() - size_t(o_.config.block_size);
    for (int b = 0; b < o_.batch_size; b++)
      add(pass, size_t(random_bits(o_.seed, uint32_t(b), stream, index, 0) % places));
    return pass;
  }
  // Windows number first, first + 1, ... of the whole text, as many as one batch holds.
  Pass windows(int first) const {
    Pass pass;
    for (int i = first; i < std::min(first + o_.batch_size, window_count()); i++)
      add(pass, size_t(i) * o_.config.block_size);
    return pass;
  }
  int window_count() const { return int((tokens_.size() - 1) / size_t(o_.config.block_size)); }

 private:
  void add(Pass& pass, size_t start) const {
    const int T = o_.config.block_size;
    pass.add_chain(tokens_.data() + start, T, pass.roots() * pad64(T), 0);
    pass.target.insert(pass.target.end(), tokens_.begin() + start + 1, tokens_.begin() + start + 1 + T);
  }
  const std::vector<int>& tokens_;
  const Options& o_;
};

// The mean loss of eval_iters batches: an estimate, the same for the same weights.
double estimate(Trainer<float>& trainer, const Batches& batches, const Options& o) {
  double sum = 0;
  for (int i = 0; i < o.eval_iters; i++) sum += trainer.loss(batches.random(kStreamEvaluate, uint64_t(i)));
  return sum / o.eval_iters;
}

// The loss over the whole split, each window once.
double whole_loss(Trainer<float>& trainer, const Batches& batches, const Options& o) {
  double sum = 0;
  Progress progress(o.quiet);
  for (int i = 0; i < batches.window_count(); i += o.batch_size) {
    const Pass pass = batches.windows(i);
    sum += double(trainer.loss(pass)) * pass.roots();
    if (progress.due())
      progress.show("validating  " + time_left(i + o.batch_size, batches.window_count(), progress.seconds()));
  }
  return sum / batches.window_count();
}

double learning_rate(const Options& o, int64_t iteration) {
  return cosine_rate(iteration, o.warmup_iters, o.lr_decay_iters, o.learning_rate, o.min_lr);
}

// Multiply-adds count two: 6 for each parameter and token (forward 2, backward 4; positions are only looked up), and
// the two products of causal attention.
double flops_per_iteration(const Config& c, int batch_size) {
  const double tokens = double(batch_size) * c.block_size;
  const double matrices = double(parameter_count(c)) - double(c.block_size) * c.n_embd;
  return tokens * (6 * matrices + 6.0 * c.n_layer * c.n_embd * c.block_size);
}

// ---------------------------------------------------------------------------------------------------------------
// Files

// What a resumed run must share with the one it goes on from.
std::map<std::string, std::string> run_settings(const Options& o, const std::string& text) {
  return {{"seed", std::to_string(o.seed)},
          {"batch_size", std::to_string(o.batch_size)},
          {"dropout", std::to_string(o.dropout)},
          {"data_sha256", sha256(text)}};
}

// Numbers in host memory: where they lie, or a copy.
struct OnHost {
  std::vector<float> copy;
  const float* data;
  OnHost(const Array<float>& array, bool cuda) : copy(cuda ? array.size() : 0), data(array.data()) {
    if (!cuda) return;
    array.download(copy.data(), copy.size());
    data = copy.data();
  }
};

void save(const Options& o, const Tokenizer& tokenizer, const Trainer<float>& trainer, bool cuda, int64_t iteration,
          const std::map<std::string, std::string>& settings) {
  const OnHost weights(trainer.weights, cuda), m(trainer.m, cuda), v(trainer.v, cuda);
  save_model(o.out, o.config, tokenizer, weights.data);
  save_optimizer(o.out, o.config, iteration, settings, {weights.data, m.data, v.data});
}

int64_t resume(const Options& o, Trainer<float>& trainer, const std::map<std::string, std::string>& settings) {
  const OptimizerState state = load_optimizer(o.out);
  const std::string where = o.out + "/optimizer.safetensors";
  if (format_config(state.config) != format_config(o.config))
    throw std::runtime_error("the run to resume has a model of another size: " + where +
                             ": give its sizes (config.json has them), or another --out");
  check_resumable(state.settings, settings, where);
  trainer.m.upload(state.m.data(), state.m.size());
  trainer.v.upload(state.v.data(), state.v.size());
  trainer.set_weights(state.weights.data());
  return state.iteration;
}

// ---------------------------------------------------------------------------------------------------------------
// The loop

std::string progress_text(const Options& o, int64_t done, double loss, double seconds_per_iteration) {
  const double tokens = double(o.batch_size) * o.config.block_size;
  return "iteration " + std::to_string(done) + "/" + std::to_string(o.max_iters) + "  loss " + decimals(loss, 4) +
         "  " + decimals(seconds_per_iteration * 1e3, 1) + " ms/iter  " + thousands(tokens / seconds_per_iteration) +
         " tokens/s  " + decimals(flops_per_iteration(o.config, o.batch_size) / seconds_per_iteration * 1e-9, 0) +
         " GFLOP/s  " + duration(seconds_per_iteration * double(o.max_iters - done)) + " left";
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void write_stats(const Options& o, int64_t iterations, double train_loss, double val_loss, double seconds_per_iteration,
                 double seconds, bool cuda) {
  const double tokens = double(o.batch_size) * o.config.block_size;
  const Json stats = {
      {"iterations", iterations},
      {"train_loss", train_loss},
      {"val_loss", val_loss},
      {"ms_per_iter", seconds_per_iteration * 1e3},
      {"tokens_per_second", seconds_per_iteration > 0 ? tokens / seconds_per_iteration : 0},
      {"gflops",
       seconds_per_iteration > 0 ? flops_per_iteration(o.config, o.batch_size) / seconds_per_iteration * 1e-9 : 0},
      {"parameters", parameter_count(o.config)},
      {"seconds", seconds},
      {"peak_bytes", cuda ? double(most_device_bytes()) : peak_bytes()},  // of the memory that it trains in
      {"threads", cuda ? 1 : o.threads},
      {"device", cuda ? "cuda" : "cpu"}};
  write_file(o.stats, stats.dump(2) + "\n");
}

int train(int argc, char** argv) {
  for (int i = 1; i < argc; i++) {
    const std::string word = argv[i], flag = word.substr(0, word.find('='));
    if (flag == "--medusa") return train_medusa(argc, argv);
    if (flag == "--parallel") return train_parallel(argc, argv);
  }
  Options o;
  if (!read_flags(argc, argv, o)) return 0;
  const bool cuda = choose_cuda(o.device);
  const auto start = Clock::now();

  const std::string text = read_file(o.data);
  const Tokenizer tokenizer = character_tokenizer(text, o.data);
  const std::vector<int> tokens = tokenizer.encode(text, o.data);
  const Split parts = split(tokens);
  const size_t shortest = size_t(o.config.block_size) + 2;
  if (parts.validation.size() < shortest || parts.train.size() < shortest)
    throw std::runtime_error("the text has only " + std::to_string(tokens.size()) + " characters: " + o.data +
                             ": give at least " + std::to_string(10 * shortest) + ", or a smaller --block_size");
  o.config.vocab_size = tokenizer.vocab_size();
  validate(o.config);
  create_folder(o.out);
  const auto settings = run_settings(o, text);
  const Batches training(parts.train, o), validation(parts.validation, o);

  const auto save_tables = [&] {
    save_bigram(o.out, parts.train, o.config.vocab_size);
    save_ngrams(o.out, parts.train, o.config.vocab_size);
  };
  if (!o.resume) save_tables();  // before the trainer takes its memory

  Pool pool(o.threads, cuda);
  const int T = o.config.block_size;
  if (double(o.batch_size) * pad64(T) > 1 << 24)
    throw std::runtime_error("a batch of " + std::to_string(o.batch_size) + " times " + std::to_string(T) +
                             " tokens is too large: --batch_size: use a smaller one");
  // parameters, gradient, two moments, two packed forms: known too large before the first of them is filled
  if (!cuda && 6.0 * sizeof(float) * double(parameter_count(o.config)) > double(available_bytes()))
    throw std::bad_alloc();
  Trainer<float> trainer(o.config, o.batch_size * T, o.batch_size, o.batch_size * pad64(T), pool);
  int64_t done = 0;
  if (o.resume) done = resume(o, trainer, settings), save_tables();  // this text is the run's own: it has been checked
  else trainer.initialize(o.seed);
  if (!o.quiet)
    fprintf(stderr, "%s parameters, %s training tokens, vocabulary %d, %s, %s\n",
            thousands(double(parameter_count(o.config))).c_str(), thousands(double(parts.train.size())).c_str(),
            o.config.vocab_size, cuda ? "GPU" : (std::to_string(o.threads) + " threads").c_str(),
            cuda ? "CUDA" : kSimd);

  watch_interrupts();
  std::vector<double> times;
  double loss = 0;
  {
    Progress progress(o.quiet);
    while (done < o.max_iters && !interrupted()) {
      const auto before = Clock::now();
      Update update;
      update.iteration = done;
      update.learning_rate = learning_rate(o, done);
      update.beta2 = o.beta2, update.weight_decay = o.weight_decay, update.grad_clip = o.grad_clip;
      loss = trainer.step(training.random(kStreamBatch, uint64_t(done)), update,
                          Dropout{o.dropout, o.seed, uint32_t(done), 0});
      times.push_back(seconds_since(before));
      if (!std::isfinite(loss))
        throw std::runtime_error("the loss is not finite any more: iteration " + std::to_string(done) +
                                 ": use a smaller --learning_rate; the last checkpoint is whole");
      done++;
      if (progress.due()) {
        const size_t recent = std::min<size_t>(times.size(), 50);
        progress.show(progress_text(o, done, loss, median({times.end() - recent, times.end()})));
      }
      if (done % o.eval_interval == 0 && done < o.max_iters) {
        save(o, tokenizer, trainer, cuda, done, settings);
        if (o.quiet) continue;  // nobody would read the estimates
        const double train_loss = estimate(trainer, training, o), val_loss = estimate(trainer, validation, o);
        progress.clear();
        fprintf(stderr, "iteration %lld: train loss %.4f, validation loss %.4f (estimates)\n",
                static_cast<long long>(done), train_loss, val_loss);
      }
    }
  }
  save(o, tokenizer, trainer, cuda, done, settings);
  if (interrupted()) {
    fprintf(stderr, "train_gpt: stopped after iteration %lld: %s: go on with --resume\n", static_cast<long long>(done),
            o.out.c_str());
    return kInterruptedStatus;
  }
  const double train_loss = estimate(trainer, training, o), val_loss = whole_loss(trainer, validation, o);
  const double seconds = seconds_since(start);
  if (!o.quiet)
    fprintf(stderr, "train loss %.4f, loss over the whole validation split %.4f, %s; %s\n", train_loss, val_loss,
            duration(seconds).c_str(), o.out.c_str());
  if (!o.stats.empty()) write_stats(o, done, train_loss, val_loss, median(times), seconds, cuda);
  return 0;
}

}  // namespace
}  // namespace nanospec

int main(int argc, char** argv) { return nanospec::run_program("train_gpt", nanospec::train, argc, argv); }
