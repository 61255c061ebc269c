// training/train_drafter.h: what all trainings share of a drafter on a frozen target: train_drafter --medusa,
// --hydra, --parallel.
//
// The ring training/ adds what train_gpt does beside training (train_gpt.h), and the program that trains drafters
// (train_drafter.cpp). It includes the core, drafters/, files/, growth/, watch/ and, of commands/, cli.h. It hooks
// into the core's update (train.h) by a table of tensors of its own, and into the target as a drafter does: shards.h
// writes down what the target computes, of text or, in lessons.h, of what the model said. It costs decoding nothing;
// what a training costs is in its --stats.
//
// Here, in order: options and flags; a run: model, text, shards, and making those that are missing; the order of what
// is learned; the trainer; how often a guesser is right, by rank; a training: its loop, checkpoints and --resume; the
// program. All of it runs on the CPU, whatever the target will run on. Nothing of the target's own files is written.
// Everything random is a pure function of (seed, iteration): a run that was stopped and resumed gives the weights of
// one that was not, bit for bit.
//
// How to train another drafter: write a DrafterTrainer, and options like MedusaOptions (train_medusa.h),
// HydraOptions (train_hydra.h) or ParallelOptions (train_parallel.h), and name them in train_drafter.cpp. What the
// program asks of them is in DrafterOptions and DrafterTrainer.
#pragma once

#include "files/drafters.h"
#include "files/heads.h"
#include "training/lessons.h"
#include "training/run.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Options and flags

// What the program calls what it trains.
struct WhatIsTrained {
  std::string name, what, guesser;  // "medusa": --medusa, --medusa_target, medusa.safetensors; "heads"; "head"
  Recorded recorded;                // what it learns from
};

struct DrafterRun;
template <class T>
struct DrafterTrainer;

// What is asked of such a program's options.
struct DrafterOptions : RunOptions {
  const WhatIsTrained words;
  std::string dir, target = "self";
  int tokens = 1 << 18;
  float temperature = 1;
  std::shared_ptr<Lessons> lessons;  // where it learns from what the model said: then the updates follow from epochs
  int passage = 1;                   // places of a passage

  explicit DrafterOptions(WhatIsTrained its) : words(std::move(its)) {
    batch_size = 512;
    eval_interval = 500;
    weight_decay = 0;
    if (!is_said(words.recorded)) return;
    lessons = std::make_shared<Lessons>();
    max_iters = eval_interval = 0;
  }
  virtual ~DrafterOptions() = default;
  virtual Command command() = 0;                    // its flags
  virtual void set_sizes(const DrafterRun&) = 0;    // what its tensors' shapes follow from, or a refusal
  virtual int ahead() const = 0;                    // the tokens that it says
  virtual Metadata settings() const = 0;            // what a resumed run must share
  virtual Metadata metadata() const { return {}; }  // what its file says beside tensors
  virtual std::unique_ptr<DrafterTrainer<float>> trainer(const DrafterRun&, Pool&) const = 0;  // as it begins
  virtual std::string described() const = 0;                                                   // what is printed of it
  virtual void add_figures(Json& stats) const = 0;

  bool generated() const { return target != "text"; }
  std::string folder() const { return out.empty() ? folder_of_model(dir) : out; }  // of NAME.safetensors
  std::string path(const char* more = "") const { return heads_path(folder(), words.name + more); }
};

// Every flag of such a program. own: those of the trainer alone, with a heading.
inline std::vector<Flag> drafter_flags(DrafterOptions& o, const std::vector<Flag>& own) {
  const WhatIsTrained& words = o.words;
  const bool said = o.lessons != nullptr;
  const std::string flag = "--" + words.name, recorded = name_of(words.recorded);
  const std::vector<Flag> files = {
      heading("Files"),
      {flag, said ? "MODEL" : "DIR", &o.dir,
       said ? "the model: its folder, or FILE.gguf; its " + recorded + " are kept in a folder beside it"
            : "the model, as train_gpt wrote it; its " + recorded + " are kept in DIR/" + word_of(words.recorded),
       required()},
      {"--data", "FILE", &o.data,
       said ? "what the model said, by nanospec distill; the texts that are held out validate"
            : "text to learn from, or to begin the model's own from; its last tenth is for validation",
       required()},
      {"--out", "DIR", &o.out, "where " + words.name + ".safetensors is written; beside the model if not given",
       written()},
      {"--resume", "", &o.resume, "continue from " + words.name + "-optimizer.safetensors, which lies there too"},
      {"--overwrite", "", &o.overwrite, "start again, if a drafter is there already"},
      {"--stats", "FILE.json", &o.stats, "at the end of the run, write its figures", written()}};
  std::vector<std::string> targets = {"self", "text"};
  std::string target_help = "self: the tokens of text that the model generated; text: those of the data";
  if (words.recorded == Recorded::kHidden) {  // they tell all that the model said of a token
    targets.push_back("distribution");
    target_help += ";\ndistribution: what the model said of each token, in text that it generated";
  }
  std::vector<Flag> learned = {
      {flag + "_target", "WORD", &o.target, target_help, one_of(targets)},
      {flag + "_tokens", "N", &o.tokens,
       "tokens of text to train on, in whole shards; a tenth of these, and at least one, validate", from(1, 1 << 30)},
      {"--temperature", "T", &o.temperature, "of the text that the model generates", from(0, 1e6)}};
  if (said)
    learned = {{flag + "_vocabulary", "N", &o.lessons->vocabulary,
                "how many tokens it can say: those that the model says most often", from(1, kMaxVocabulary)},
               {"--epochs", "X", &o.lessons->epochs,
                "how often it sees each of the " + recorded + ", where --max_iters is 0", above(0, 1e6)}};
  const std::string batch = words.recorded == Recorded::kHidden ? "positions" : said ? recorded : "sequences";
  return together(
      {files, own, learned,
       run_flags(o, batch + " in one update", "the highest rate; it falls by a cosine", "the rate at the end",
                 said ? "of the batches" : "of the generated text and the batches")});
}

// ---------------------------------------------------------------------------------------------------------------
// A run

// What it reads, and the shards that it is of.
struct DrafterRun {
  const DrafterOptions& o;
  Loaded model;
  TrainingText text = {};  // its settings: what the shards follow from
  ShardSizes sizes = {};
  int train_shards = 0, validation_shards = 0;
  Metadata shared = {};          // what a resumed run must share with the one it goes on from
  int classes = 0, guesses = 0;  // that a guesser tells apart; how many of them, the first ones, are tokens
  std::string folder() const { return folder_of_model(o.dir) + "/" + word_of(sizes.what); }
};

// Reads the model and the data and says which shards the run is of. Throws runtime_error or invalid_argument.
inline DrafterRun open_run(const DrafterOptions& o) {
  DrafterRun run{o, load_model(o.dir)};
  const Config& config = run.model.config;
  run.text = read_text(o, run.model.config, &run.model.tokenizer);

  constexpr int kGenerated = 256;
  const bool hidden = o.words.recorded == Recorded::kHidden;
  const int64_t most = (hidden ? 16 : 64) << 20;  // bytes of a shard; of features whole sequences are shuffled
  ShardSizes& sizes = run.sizes;
  sizes.what = o.words.recorded;
  sizes.rows = o.generated() ? kGenerated : config.block_size;
  sizes.channels = hidden ? config.n_embd : kFeatures * config.n_embd;
  const int wanted = (o.tokens + sizes.rows - 1) / sizes.rows;  // sequences
  const int64_t fit = most / (int64_t(sizes.rows) * sizes.channels * int64_t(sizeof(float)));
  sizes.sequences = int(std::min<int64_t>(wanted, std::max<int64_t>(1, fit)));
  run.train_shards = (wanted + sizes.sequences - 1) / sizes.sequences;
  run.validation_shards = (run.train_shards + 9) / 10;
  Metadata& settings = run.text.settings;
  settings["text"] = o.generated() ? "generated" : "data";
  settings["temperature"] = o.generated() ? std::to_string(o.temperature) : "";
  settings["model_sha256"] = sha256(read_file(o.dir + "/model.safetensors"));
  if (!hidden) settings["layers"] = joined(feature_layers(config.n_layer), ",");
  run.text.origin["model"] = model_hash(o.dir);
  run.classes = run.guesses = config.vocab_size;
  return run;
}

// The same where it learns from what the model said: the model may be a GGUF file, and computes in the number type that
// it decodes with. ahead: tokens that the drafter says. Sets the lessons, and how many tokens these are of.
inline DrafterRun open_lessons(DrafterOptions& o, int ahead) {
  constexpr size_t kMostBytes = 64 << 20;  // of a shard
  constexpr int kRows = 256;               // of a forward
  DrafterRun run{o, is_gguf(o.dir) ? load_gguf(read_gguf(o.dir), 0, Dtype::as_stored) : load_model(o.dir)};
  const Config& config = run.model.config;
  Lessons& lessons = *o.lessons;
  const std::string bytes = read_file(o.data), tokenizer = tokenizer_hash(o.dir);
  std::vector<int> all;
  lessons.read(bytes, o.data, config.vocab_size, tokenizer, o.passage, ahead, [&](const SaidText& said) {
    if (run.text.begin.empty()) run.text.begin = said.question;
    all.insert(all.end(), said.tokens.begin() + long(said.begin), said.tokens.end());
  });
  for (int id : all) run.text.parts.train.push_back(lessons.class_of[size_t(id)]);
  const size_t train = lessons.train.passages(), held_out = lessons.validation.passages();
  if (train == 0 || held_out == 0)
    refuse(filled("{} {} to learn from and {} held out, of texts with {} tokens or more", thousands(double(train)),
                  name_of(o.words.recorded), thousands(double(held_out)), o.passage + ahead),
           printable(o.data, 300), "let nanospec distill write more");
  const int channels = kFeatures * config.n_embd;
  const size_t fit = std::max(size_t(1), kMostBytes / (sizeof(bf16) * size_t(o.passage) * size_t(channels)));
  const size_t most = std::min({train, held_out, fit});
  run.sizes = {int(most), o.passage, channels, o.words.recorded, ahead + 1};
  run.train_shards = int(train / most);
  run.validation_shards = int(held_out / most);
  o.tokens = run.train_shards * run.sizes.sequences * o.passage;
  run.guesses = int(lessons.token.size());
  run.classes = run.guesses + 1;
  run.text.settings = {{"seed", std::to_string(o.seed)},
                       {"data_sha256", sha256(bytes)},
                       {"weights", weights_hash(o.dir)},
                       {"layers", joined(feature_layers(config.n_layer), ",")}};
  const Metadata said = text_origin(o.data, run.text.settings.at("data_sha256"));
  run.text.origin = {{"said", said_by(said, "text")},
                     {"said_sha256", said_by(said, "text_sha256")},
                     {"model", model_hash(o.dir)},  // none of a GGUF file: other number types of it will do
                     {"tokenizer", tokenizer}};
  lessons.target = std::make_shared<Target>(config, run.model.source(), Dtype::as_stored, false, o.threads, kRows);
  return run;
}

// Records texts that the target reads or generates.
inline RecordSequence record_texts(const DrafterRun& run) {
  constexpr int kBudget = 16;
  const Config& config = run.model.config;
  const auto target =
      std::make_shared<Target>(config, run.model.weights.data(), Dtype::fp32, false, run.o.threads, kBudget + 1);
  std::shared_ptr<Drafter> drafter;
  Decoding decoding;
  decoding.sampling.temperature = run.o.temperature;
  decoding.sampling.seed = run.o.seed;
  if (run.o.generated()) {
    const bool counted = std::filesystem::exists(ngram_path(run.o.dir));
    drafter = load_drafter(counted ? "ngram:4" : "suffix", run.o.dir, config.vocab_size);
    decoding.shape = parse_shape("auto", kBudget);
    decoding.cost = std::make_shared<Cost>(measure_cost(*target, kBudget));
    decoding.experience = std::make_shared<Experience>();
  }
  const size_t length = size_t(run.o.generated() ? config.block_size / 2 : run.sizes.rows + 1);
  return [=, &run](uint32_t sequence, Shard& shard) mutable {
    const std::vector<int>& tokens = sequence < kValidation ? run.text.parts.train : run.text.parts.validation;
    const size_t places = tokens.size() - length + 1;
    const auto start = tokens.begin() + long(random_bits(run.o.seed, sequence, kStreamBatch, 0, 0) % places);
    decoding.sampling.sequence = sequence;
    if (run.o.generated()) record_generated(*target, drafter.get(), decoding, {start, start + long(length)}, shard);
    else record_text(*target, &*start, shard);
  };
}

// Makes the shards that are missing. Returns how many seconds the target took; below 0 where it was interrupted, which
// it has said then.
inline double make_shards(const DrafterRun& run, Recordings& states) {
  std::vector<std::pair<std::string, uint32_t>> missing;  // names, and the numbers of their first sequences
  for (const bool train : {true, false})
    for (int i = 0; i < (train ? run.train_shards : run.validation_shards); i++) {
      const std::string name = (train ? "train-" : "validation-") + std::to_string(i);
      const uint32_t first = uint32_t(i * run.sizes.sequences) + (train ? 0 : kValidation);
      if (!states.has(name)) missing.emplace_back(name, first);
    }
  if (missing.empty()) return 0;
  const double needed = double(missing.size()) * bytes_of(run.sizes);
  const double free = double(std::filesystem::space(run.folder()).available);
  if (needed > free)
    refuse(filled("the {} take {} of disk, and {} are free", name_of(run.sizes.what), bytes_text(needed),
                  bytes_text(free)),
           run.folder(), "learn from fewer tokens");

  Stopwatch watch;
  const RecordSequence record = run.o.lessons ? record_passages(run.o.lessons) : record_texts(run);
  Progress progress(run.o.quiet);
  double done = 0;
  const double all = double(missing.size()) * run.sizes.sequences;
  for (const auto& [name, first] : missing) {
    Shard shard = {run.sizes};
    for (int s = 0; s < run.sizes.sequences && !interrupted(); s++, done++) {
      if (progress.due())
        progress.show(filled("{}  {}%  {} tokens/s  {}", name_of(run.sizes.what), decimals(100 * done / all, 0),
                             thousands(done * run.sizes.rows / progress.seconds()), progress.left(done, all)));
      record(first + uint32_t(s), shard);
    }
    if (interrupted()) {
      progress.clear();
      tell("train_drafter: stopped: " + run.folder() + ": the same command goes on from there\n");
      return -1;
    }
    states.write(name, shard);
  }
  return watch.lap();
}

// ---------------------------------------------------------------------------------------------------------------
// The order of what is learned

// Batches without end: every epoch goes through the shards, and through each one's pieces (its places, its sequences),
// in an order of its own. Which pieces a batch has is a function of (seed, iteration) alone. One shard is in memory at
// a time, and no batch crosses from one into the next: fewer pieces than a batch are left over, others in each epoch.
class ShardOrder {
 public:
  // pieces: in each shard.
  ShardOrder(const Recordings& states, int shards, int pieces, int batch_size, uint64_t seed)
      : states_(states), shards_(shards), pieces_(pieces), batch_size_(std::min(batch_size, pieces)), seed_(seed) {}

  // As many as a batch has, or a shard. Valid until the next call.
  Examples batch(int64_t iteration) {
    const int each = pieces_ / batch_size_;  // batches in a shard
    if (iteration / each != open_) open(iteration / each);
    return {shard_, list_.data() + size_t(iteration % each) * size_t(batch_size_), batch_size_};
  }

 private:
  // The nth shard since the start. The shards' order in an epoch is a shuffle of that in the one before.
  void open(int64_t nth) {
    const uint32_t epoch = uint32_t(nth / shards_), which = uint32_t(nth % shards_);
    std::vector<int> order = numbers_to(shards_);
    for (uint32_t i = 0; i <= epoch; i++) shuffle(order, i, 0);
    shard_ = states_.read("train-" + std::to_string(order[which]));
    list_ = numbers_to(pieces_);
    shuffle(list_, epoch, which + 1);
    open_ = nth;
  }
  // Fisher and Yates 1938.
  void shuffle(std::vector<int>& list, uint32_t epoch, uint32_t which) const {
    for (size_t i = list.size(); i > 1; i--)
      std::swap(list[i - 1], list[random_bits(seed_, epoch, kStreamBatch, i, which) % i]);
  }

  const Recordings& states_;
  const int shards_, pieces_, batch_size_;
  const uint64_t seed_;
  int64_t open_ = -1;  // which shard is open
  Shard shard_;
  std::vector<int> list_;  // of its pieces, in order
};

// ---------------------------------------------------------------------------------------------------------------
// The trainer

// T is the number type: float; double for the gradient check.
template <class T>
struct DrafterTrainer : Trained<T> {
  using Trained<T>::Trained;

  // What guesser k, from 0 on, says of a token, and its cross-entropy. before: the token before that one.
  using Said = std::function<void(int k, int before, int token, const T* logits, T cost)>;
  // The mean cross-entropy of all guesses. said: told of each; of the tokens that came, whatever else is learned.
  T loss(const Examples& some, const Said& said = nullptr) { return run(some, false, said); }
  // The same, and `gradient` becomes its gradient.
  T loss_and_gradient(const Examples& some) {
    this->pool_.run([&](const Team& team) { zero(team, this->gradient.data(), this->size); });
    return run(some, true, nullptr);
  }
  // One AdamW update; returns the loss before it.
  T step(const Examples& some, const Update& update) {
    const T loss = loss_and_gradient(some);
    this->apply(update);
    return loss;
  }

 protected:
  // The loss; with_gradient, adds its gradient to `gradient`.
  virtual T run(const Examples& some, bool with_gradient, const Said& said) = 0;
};

// ---------------------------------------------------------------------------------------------------------------
// How often the token that came was a guesser's first, second, ... choice

constexpr int kRanks = 8;

struct RankRates {
  double rows = 0, cost = 0, right[kRanks] = {};  // sums

  // A token beyond the vocabulary is none of its choices.
  void count(const float* logits, int vocab, int token, double its_cost) {
    int rank = token < vocab ? 0 : kRanks;  // how many tokens come before it; of equal ones the lowest is first
    for (int x = 0; x < vocab; x++) rank += logits[x] > logits[token] || (logits[x] == logits[token] && x < token);
    if (rank < kRanks) right[rank]++;
    rows++;
    cost += its_cost;
  }
  double loss() const { return cost / std::max(1.0, rows); }
  std::vector<double> rates() const {
    std::vector<double> rates(right, right + kRanks);
    for (double& rate : rates) rate /= std::max(1.0, rows);
    return rates;
  }
};

// What counting alone knows of a token: how frequent it is, and how frequent after the one before it.
struct Baselines {
  RankRates unigram, bigram;  // of no rows where the vocabulary is too large for a table

  // guesses: how many of the vocabulary's tokens they may guess.
  Baselines(const std::vector<int>& tokens, int vocab, int guesses)
      : V_(size_t(vocab)), guesses_(guesses), after_any_(V_, 1) {
    for (int token : tokens) after_any_[size_t(token)]++;
    for (float& count : after_any_) count = log(count / float(tokens.size() + V_));
    if (vocab <= kBigramMostTokens) after_one_ = bigram_table(tokens, vocab);
  }
  void count(int before, int token) {
    unigram.count(after_any_.data(), guesses_, token, -double(after_any_[size_t(token)]));
    if (after_one_.empty()) return;
    const float* const row = after_one_.data() + size_t(before) * V_;
    bigram.count(row, guesses_, token, -double(row[token]));
  }

 private:
  size_t V_;
  int guesses_;
  std::vector<float> after_any_, after_one_;  // (V), (V, V) logits
};

// Of each token from the next but one on: "head 1", "depth 1".
inline std::string rank_table(const std::string& who, const std::vector<RankRates>& guessers,
                              const Baselines& baselines) {
  std::vector<std::vector<std::string>> rows = {
      {"", "token", "loss", "rank 1", "rank 2", "rank 3", "rank 4", "first 8"}};
  const auto add = [&](const std::string& name, size_t ahead, const RankRates& guesser) {
    const std::vector<double> rates = guesser.rates();
    rows.push_back({name, "t + " + std::to_string(ahead), decimals(guesser.loss(), 3)});
    for (size_t rank = 0; rank < 4; rank++) rows.back().push_back(decimals(100 * rates[rank], 1) + "%");
    rows.back().push_back(decimals(100 * std::accumulate(rates.begin(), rates.end(), 0.0), 1) + "%");
  };
  for (size_t k = 0; k < guessers.size(); k++) add(who + " " + std::to_string(k + 1), k + 2, guessers[k]);
  add("unigram", 2, baselines.unigram);
  if (baselines.bigram.rows > 0) add("bigram", 2, baselines.bigram);
  return format_table(rows, "llrrrrrr");
}
inline std::string right_at_once(const std::string& who, const std::vector<RankRates>& guessers) {
  const auto rate = [](const RankRates& one) { return decimals(100 * one.rates()[0], 1) + "%"; };
  return "right at once, by " + who + ": " + joined(guessers, ", ", rate);
}

// ---------------------------------------------------------------------------------------------------------------
// A training, from the first update or from where the last run was stopped

struct Course {
  const DrafterRun& run;
  const DrafterOptions& o;
  const Recordings& states;
  DrafterTrainer<float>& trainer;

  const int pieces = pieces_of(run.sizes, o.ahead());
  Baselines baselines{run.text.parts.train, run.classes, run.guesses};
  UpdateLoop updates{o, o.resume ? resume() : 0};
  std::vector<RankRates> guessers = {};  // at the last evaluation
  Json curve = Json::array();            // from this run's first update to its last

  // Trains to the last iteration. Returns the exit status: after an interrupt, which it has said, not 0. Throws
  // runtime_error.
  int train() {
    ShardOrder order(states, run.train_shards, pieces, o.batch_size, o.seed);
    if (!o.stats.empty()) evaluate();
    while (updates.next()) {
      updates.updated(double(trainer.step(order.batch(updates.iteration), updates.update())));
      updates.show(updates.mean_loss, [&](double each) {
        return decimals(1e3 * each, 2) + " ms/iter  " + thousands(in_update() / each) + " positions/s";
      });
      if (!updates.checkpoint_due()) continue;
      save();
      if (o.quiet && o.stats.empty()) continue;  // the evaluation would not be printed
      evaluate();
      updates.say("loss " + decimals(updates.mean_loss, 4) + ", " + right_at_once(o.words.guesser, guessers));
    }
    if (updates.worth_saving()) save();
    if (interrupted())
      return updates.stopped("train_drafter", o.path() + " holds the " + o.words.what + " as they are");
    evaluate();
    return 0;
  }

  // What came of it. shard_seconds: what the shards took, 0 where all were there.
  std::string report(double shard_seconds) const {
    return rank_table(o.words.guesser, guessers, baselines) + thousands(baselines.unigram.rows) +
           " positions to validate; " + name_of(run.sizes.what) + " " + duration(shard_seconds) + ", training " +
           duration(updates.seconds()) + "; " + o.path() + "\n";
  }
  Json stats(double shard_seconds) const {
    const double seconds = updates.seconds(), each = seconds / std::max(1.0, updates.updates());
    Json stats = {{"accuracy", each_guesser(&RankRates::rates)},  // [head or depth][rank]
                  {"val_loss", each_guesser(&RankRates::loss)},
                  {"iterations", o.max_iters},
                  {"train_loss", updates.mean_loss},
                  {"curve", curve},
                  {"accuracy_unigram", baselines.unigram.rates()},
                  {"accuracy_bigram", baselines.bigram.rates()},
                  {"parameters", trainer.size},
                  {o.words.name + "_target", o.target},
                  {o.words.name + "_tokens", o.tokens},
                  {"hidden_bytes", states.bytes()},
                  {"hidden_seconds", shard_seconds},
                  {"ms_per_iter", 1e3 * each},
                  {"positions_per_second", each > 0 ? in_update() / each : 0},
                  {"seconds", shard_seconds + seconds},
                  {"peak_bytes", peak_bytes()},
                  {"threads", o.threads},
                  {"device", "cpu"}};
    o.add_figures(stats);
    return stats;
  }

  Json each_guesser(const std::function<Json(const RankRates&)>& figure) const {
    Json list = Json::array();
    for (const RankRates& one : guessers) list.push_back(figure(one));
    return list;
  }
  double in_shard() const { return double(run.sizes.sequences) * usable_rows(run.sizes, o.ahead()); }  // positions
  double in_update() const { return in_shard() / pieces * std::min(o.batch_size, pieces); }

  int64_t resume() {
    const std::string path = o.path("-optimizer");
    return go_on(trainer, parse_training(read_safetensors(path), trainer.table, path));
  }
  void save() const {
    save_training(o.path("-optimizer"), trainer.table, updates.iteration, run.shared,
                  {trainer.weights.data(), trainer.m.data(), trainer.v.data()}, run.text.origin);
    Metadata metadata = o.metadata();
    metadata.insert(run.text.origin.begin(), run.text.origin.end());
    std::vector<TensorData> more;
    if (o.lessons) more = {{"token", {run.guesses}, o.lessons->token.data(), "I32"}};
    write_arrays(o.path(), trainer.table, {{"", trainer.weights.data()}}, metadata, more);
  }

  // How often each guesser is right, over all validation shards; the baselines count beside the first. And a point of
  // the training curve: the mean loss, and how often each guesser's first choice was right.
  void evaluate() {
    guessers.assign(size_t(o.ahead()), RankRates());
    baselines.unigram = baselines.bigram = RankRates();
    const auto count = [&](int k, int before, int token, const float* logits, float cost) {
      guessers[size_t(k)].count(logits, run.guesses, token, double(cost));
      if (k == 0) baselines.count(before, token);
    };
    const std::vector<int> all = numbers_to(pieces);
    for (int i = 0; i < run.validation_shards; i++) {
      const Shard shard = states.read("validation-" + std::to_string(i));
      for (int at = 0; at < pieces; at += o.batch_size)
        trainer.loss({shard, all.data() + at, std::min(o.batch_size, pieces - at)}, count);
    }
    double loss = 0;
    for (const RankRates& one : guessers) loss += one.loss() / double(guessers.size());
    curve.push_back({{"iteration", updates.iteration},
                     {"epoch", double(updates.iteration) * in_update() / (in_shard() * run.train_shards)},
                     {"seconds", updates.seconds()},
                     {"loss", loss},
                     {"accuracy", each_guesser([](const RankRates& one) { return one.rates()[0]; })}});
  }
};

// ---------------------------------------------------------------------------------------------------------------
// The program

// Throws invalid_argument unless so many rows of a sequence are usable. what: "4 heads"; flag: that says how many.
inline void check_window(const DrafterRun& run, int ahead, int least, const std::string& what, const char* flag) {
  if (usable_rows(run.sizes, ahead) < least)
    refuse_usage("{} look beyond the model's window of {} tokens: {}: use fewer", what, run.model.config.block_size,
                 flag);
}

// Sets what a resumed run must share. Throws std::runtime_error if this run resumes one that differs.
inline void share(DrafterRun& run, const Metadata& own) {
  run.shared = {{"target", run.o.target},
                {"tokens", std::to_string(run.o.tokens)},
                {"batch_size", std::to_string(run.o.batch_size)}};
  for (const Metadata& more : {own, run.text.settings}) run.shared.insert(more.begin(), more.end());
  if (run.o.lessons) run.shared["vocabulary"] = std::to_string(run.guesses);
  const std::string path = run.o.path("-optimizer");
  if (run.o.resume) check_resumable(parse_training_metadata(read_safetensors(path), path).settings, run.shared, path);
}

// How many updates there are, and after how many it is evaluated, where the user says neither.
inline void count_updates(DrafterOptions& o, const DrafterRun& run) {
  const double epoch = double(run.train_shards) * (run.sizes.sequences / std::min(o.batch_size, run.sizes.sequences));
  if (o.max_iters == 0) o.max_iters = int(std::max(1.0, std::min(double(INT_MAX), double(o.lessons->epochs) * epoch)));
  if (o.eval_interval == 0) o.eval_interval = int(std::max(1.0, epoch));
}

// Runs the program: shards, training, what came of it. Returns the exit status.
inline int train_drafter(DrafterOptions& o, int argc, char** argv) {
  const Given given = parse_flags(o.command(), argc, argv);
  if (given.help) return 0;
  check_outputs(given);
  const std::string name = o.words.name;
  TrainingFolder folder = {o, "train_drafter", o.folder(), name + ".safetensors", name + "-optimizer.safetensors"};
  folder.check();
  check_rates(o, "train_drafter --" + name);
  DrafterRun run = o.lessons ? open_lessons(o, o.ahead()) : open_run(o);
  if (o.lessons) count_updates(o, run);
  o.lr_decay_iters = o.max_iters;
  o.set_sizes(run);
  share(run, o.settings());
  LockedFolder shards(run.folder(), "wait for its end");  // another training's settings may replace them
  folder.begin();
  shards.make();
  Recordings states(run.folder(), run.text.settings, run.sizes, run.model.config.vocab_size);
  const double shard_seconds = make_shards(run, states);
  if (shard_seconds < 0) return kInterruptedStatus;

  Pool pool(o.threads);
  const std::unique_ptr<DrafterTrainer<float>> trainer = o.trainer(run, pool);
  if (!o.quiet)
    tell(filled("{} parameters{}, {} of {} tokens ({}) in {}, {}, {}\n", thousands(double(trainer->size)),
                o.described(), name_of(run.sizes.what),
                thousands(double(run.train_shards) * run.sizes.sequences * run.sizes.rows), bytes_text(states.bytes()),
                run.folder(), count(o.threads, "thread"), kSimd));
  Course course{run, o, states, *trainer};
  if (const int status = course.train()) return status;
  if (!o.quiet) tell(course.report(shard_seconds));
  if (!o.stats.empty()) write_file(o.stats, course.stats(shard_seconds).dump(2) + "\n");
  const std::string drafter = name + (o.folder() == folder_of_model(o.dir) ? "" : ":" + o.folder());
  if (!o.quiet) tell(next_step(argv[0], o.dir, run.text.begin, drafter));
  return 0;
}

}  // namespace nanospec
