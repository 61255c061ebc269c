// training/run.h: what every training shares, of a model or of a drafter: options and flags, its folder, its text, the
// course of its updates, the next step, and going on from a state.
//
// A loop reads, in train_gpt.cu as in train_drafter.h:
//   UpdateLoop run(options, done);                                // done: the iterations of the run that was stopped
//   while (run.next()) {                                          // until the last, or Ctrl-C
//     run.updated(trainer.step(batch of run.iteration, run.update()));
//     run.show(...);                                              // the progress line, now and then
//     if (run.checkpoint_due()) ...                               // save, evaluate, say
//   }
// What an update computes is the trainer's alone; this knows of losses, rates and clocks.
#pragma once

#include "commands/cli.h"
#include "files/checkpoint.h"
#include "files/families.h"
#include "files/folder.h"
#include "files/tables.h"
#include "growth/clock.h"
#include "train.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Options and flags

struct RunOptions {
  std::string data, out, stats;
  int batch_size = 12, max_iters = 2000, warmup_iters = 100, lr_decay_iters = 2000, eval_interval = 250;
  float learning_rate = 1e-3f, min_lr = 1e-4f, beta2 = 0.99f, weight_decay = 0.1f, grad_clip = 1.0f;
  uint64_t seed = 1337;
  int threads = usable_cores();
  bool resume = false, overwrite = false, quiet = false;
};

// batch, rate, min_rate, seed: what a program says of its own.
inline std::vector<Flag> run_flags(RunOptions& o, const std::string& batch, const std::string& rate,
                                   const std::string& min_rate, const std::string& seed) {
  return {
      heading("Training"),
      {"--batch_size", "N", &o.batch_size, batch, from(1, 1 << 20)},
      {"--max_iters", "N", &o.max_iters, "updates in all", from(1)},
      {"--learning_rate", "X", &o.learning_rate, rate, above(0, 1e3)},
      {"--min_lr", "X", &o.min_lr, min_rate, from(0, 1e3)},
      {"--warmup_iters", "N", &o.warmup_iters, "updates until the highest rate", from(0)},
      {"--beta2", "X", &o.beta2, "AdamW's second decay rate (the first is 0.9)", from(0, 0.999999)},
      {"--weight_decay", "X", &o.weight_decay, "of matrices", from(0, 1e3)},
      {"--grad_clip", "X", &o.grad_clip, "greatest length of the gradient; 0: no clipping", from(0)},
      {"--eval_interval", "N", &o.eval_interval, "updates between two evaluations, each with a checkpoint", from(1)},
      {"--seed", "N", &o.seed, seed},
      heading("Machine"),
      {"--threads", "N", &o.threads, "CPU threads; the weights do not depend on it", threads()},
      {"--quiet", "", &o.quiet, "no progress"}};
}
inline void add_before(std::vector<Flag>& flags, const std::string& name, const Flag& flag) {
  flags.insert(std::find_if(flags.begin(), flags.end(), [&](const Flag& f) { return f.name == name; }), flag);
}

// Says it on standard error.
inline void tell(const std::string& text) { fputs(text.c_str(), stderr); }

// Throws invalid_argument where the rate would rise.
inline void check_rates(const RunOptions& o, const std::string& program) {
  if (o.min_lr > o.learning_rate)
    refuse_usage("--min_lr {} is above --learning_rate {}: {}: lower it", decimals(o.min_lr, 6),
                 decimals(o.learning_rate, 6), program);
}

// ---------------------------------------------------------------------------------------------------------------
// The folder

// Where a training writes: its own from begin() on, and from the start where it is there. What another training has
// left is written over only if that was asked for. Both functions throw runtime_error.
struct TrainingFolder {
  const RunOptions& o;
  const std::string program, path;
  const std::string weights, state;  // the names of its files
  LockedFolder folder = {path, "wait for its end, or give another --out"};

  // Call it at once. Throws invalid_argument where the options contradict each other.
  void check() const {
    if (o.resume && o.overwrite)
      refuse_usage("--resume goes on, --overwrite starts anew: {}: give one of them", program);
    const std::string anew = "start anew with --overwrite, or give another --out";
    const bool ended = std::filesystem::exists(path + "/" + weights),
               begun = std::filesystem::exists(path + "/" + state);
    if (o.resume && !begun)
      refuse("there is no run to resume", path + "/" + state, ended ? anew : "leave out --resume");
    if (o.resume || o.overwrite || (!ended && !begun)) return;
    refuse("a training has written here",
           path + " (" + (ended ? weights : "") + (ended && begun ? ", " : "") + (begun ? state : "") + ")",
           (begun ? "--resume goes on with it; " : "") + anew);
  }
  // Call it when nothing else can be refused. From here on Ctrl-C leads to a checkpoint.
  void begin() {
    watch_interrupts(program + ": stopped at once: " + path + ": --resume goes on from the last checkpoint, if any");
    folder.make();
    check();  // another training may have come and gone
  }
};

// ---------------------------------------------------------------------------------------------------------------
// The text

// What is learned from.
struct TrainingText {
  Tokenizer tokenizer;
  Split parts;
  Metadata settings;  // what follows from it must share these
  Metadata origin;    // its name and its hash, for the files that are made of it
  std::string begin;  // of the text
};

// Notes what an editor may have put into a text: the model would learn it.
inline void note_marks(const std::string& text, const std::string& path) {
  size_t ends = 0;
  for (size_t at = text.find("\r\n"); at != std::string::npos; at = text.find("\r\n", at + 2)) ends++;
  if (text.compare(0, 3, "\xEF\xBB\xBF") == 0)
    note("the text begins with a byte order mark (U+FEFF), which the model learns as a character", printable(path, 300),
         "tail -c +4 FILE >NEW leaves it out");
  if (ends > 0)
    note(thousands(double(ends)) + " lines end with CR and LF, and the model learns both", printable(path, 300),
         "tr -d '\\r' <FILE >NEW leaves the CR out");
}

// Reads the data for a model of these sizes, and sets its vocabulary's. known: its tokenizer; null: it is made, of the
// text's own characters. Throws runtime_error; invalid_argument where no model can have these sizes.
inline TrainingText read_text(const RunOptions& o, Config& model, const Tokenizer* known) {
  const double size = file_bytes(o.data);
  check_memory(o.data, size, known ? takes_tokens(size) : takes_counts(size));
  Preparing preparing(size, o.quiet);
  preparing.step("reading");
  const std::string bytes = read_file(o.data);
  preparing.step("encoding");
  TrainingText text;
  text.tokenizer = known ? *known : character_tokenizer(bytes, o.data);
  if (!known) check_bigram_size(text.tokenizer.vocab_size(), o.data);
  text.parts = encode_split(text.tokenizer, bytes, o.data, preparing.told());
  const size_t shortest = size_t(model.block_size) + (known ? 1 : 2), validation = text.parts.validation.size();
  if (validation < shortest)  // the other part is longer
    refuse(filled("the text has only {} characters", text.parts.train.size() + validation), o.data,
           filled("give at least {}{}", 10 * shortest, known ? "" : ", or a smaller --block_size"));
  model.vocab_size = text.tokenizer.vocab_size();
  validate(model);
  preparing.clear();
  if (!known) note_marks(bytes, o.data);
  preparing.step("hashing");
  text.begin = bytes.substr(0, 1000);
  text.settings = {{"seed", std::to_string(o.seed)}, {"data_sha256", sha256(bytes)}};
  text.origin = text_origin(o.data, text.settings.at("data_sha256"));
  return text;
}

// ---------------------------------------------------------------------------------------------------------------
// The course of the updates

class UpdateLoop {
 public:
  int64_t iteration;     // updates made, those before a --resume among them
  double loss = 0;       // before the last update
  double mean_loss = 0;  // of the last about 50

  UpdateLoop(const RunOptions& o, int64_t done) : iteration(done), o_(o), progress_(o.quiet) {
    if (done >= o.max_iters)
      tell(filled("nothing to do: {} of {} updates are made: raise --max_iters to go on\n", done, o.max_iters));
  }

  // Whether there is another update to make. Its time begins.
  bool next() {
    begun_ = progress_.seconds();
    if (iteration < o_.max_iters && !interrupted()) return true;
    progress_.clear();
    return false;
  }
  Update update() const {
    return {
        .iteration = iteration,
        .learning_rate = cosine_rate(iteration, o_.warmup_iters, o_.lr_decay_iters, o_.learning_rate, o_.min_lr),
        .beta2 = o_.beta2,
        .weight_decay = o_.weight_decay,
        .grad_clip = o_.grad_clip,
    };
  }
  // It has been made. Throws runtime_error where the loss before it was not finite.
  void updated(double loss_before) {
    times_.push_back(progress_.seconds() - begun_);
    loss = loss_before;
    if (!std::isfinite(loss))
      refuse("the loss is not finite any more", "iteration " + std::to_string(iteration),
             "use a smaller --learning_rate; the last checkpoint is whole");
    mean_loss += (loss - mean_loss) / double(std::min<size_t>(times_.size(), 50));
    iteration++;
  }
  bool checkpoint_due() const { return iteration % o_.eval_interval == 0 && iteration < o_.max_iters; }

  // The progress line, where it is time for one. speed(seconds): of updates that take so many each.
  void show(double shown_loss, const std::function<std::string(double seconds)>& speed) {
    if (!progress_.due()) return;
    const double each = median({times_.end() - long(std::min<size_t>(times_.size(), 50)), times_.end()});
    progress_.show(filled("iteration {}/{}  loss {}  {}  {} left", iteration, o_.max_iters, decimals(shown_loss, 4),
                          speed(each), duration(each * double(o_.max_iters - iteration))));
  }
  // A line that stays.
  void say(const std::string& line) {
    progress_.clear();
    if (!o_.quiet) tell(filled("iteration {}: {}\n", iteration, line));
  }
  // Is there more than what the run began with? Otherwise Ctrl-C leaves all as it was.
  bool worth_saving() const { return updates() > 0 || !interrupted(); }
  // After Ctrl-C; returns the exit status.
  int stopped(const char* program, const std::string& where) const {
    if (!worth_saving())
      tell(filled("{}: stopped before the first update: no checkpoint: give the same command again\n", program));
    else tell(filled("{}: stopped after iteration {}: {}: go on with --resume\n", program, iteration, where));
    return kInterruptedStatus;
  }

  double median_seconds() const { return median(times_); }  // of an update; and of all together
  double seconds() const { return std::accumulate(times_.begin(), times_.end(), 0.0); }
  double updates() const { return double(times_.size()); }  // that this run made

 private:
  const RunOptions& o_;
  Progress progress_;
  std::vector<double> times_;  // seconds of each update
  double begun_ = 0;
};

// ---------------------------------------------------------------------------------------------------------------
// What comes next

// A word of a text, for a prompt: its first letters and digits, whatever is not ASCII counted as letters; a character
// where there are none.
inline std::string first_word(const std::string& text) {
  constexpr size_t kLongest = 20;
  const auto in_word = [](unsigned char c) { return c >= 0x80 || isalnum(c); };
  const auto begin = std::find_if(text.begin(), text.end(), in_word);
  std::string word(begin, std::find_if_not(begin, text.end(), in_word));
  size_t end = std::min(word.size(), kLongest);
  while (end < word.size() && (word[end] & 0xC0) == 0x80) end--;  // to the beginning of a character
  return end > 0 ? word.substr(0, end) : text.substr(0, size_t(std::max(1, code_point_bytes(text, 0))));
}

// As a shell takes it for one word.
inline std::string shell_word(const std::string& text) {
  const auto plain = [](unsigned char c) { return isalnum(c) || strchr("_./:+-", c); };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return text;
  return "'" + replaced(text, "'", "'\\''") + "'";
}

// The line that says how to let the model write. program: argv[0]; drafter: the one that was trained, if it was one.
inline std::string next_step(const std::string& program, const std::string& model, const std::string& text,
                             const std::string& drafter = "") {
  const std::string nanospec = std::filesystem::path(program).replace_filename("nanospec").string();
  return "next: " + shell_word(nanospec) + " generate --model " + shell_word(model) + " --prompt " +
         shell_word(first_word(text)) + (drafter.empty() ? "" : " --drafter " + shell_word(drafter)) + "\n";
}

// ---------------------------------------------------------------------------------------------------------------
// Going on

// The trainer becomes what it was at this state. Returns the iteration.
inline int64_t go_on(Trained<float>& trainer, const TrainingState& state) {
  trainer.m.upload(state.m.data(), state.m.size());
  trainer.v.upload(state.v.data(), state.v.size());
  trainer.set_weights(state.weights.data());
  return state.iteration;
}

}  // namespace nanospec
