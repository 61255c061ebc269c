// train_medusa.h: training Medusa heads on a frozen target: train_gpt --medusa DIR.
//
// In order: a batch; the trainer, loss and gradient of all heads; batches out of shards; how often a head is right, by
// rank; flags; the program. It runs on the CPU, whatever the target will run on. Nothing of the target's own files is
// written.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "distill.h"
#include "drafters.h"
#include "medusa.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// A batch

struct HeadBatch {
  int rows = 0;               // R
  std::vector<float> hidden;  // (R, C)
  std::vector<int> root;      // (R) the token that the target's own head is to say
  std::vector<int> target;    // (K, R) the token that head k + 1 is to say
  std::vector<float> ahead;   // (K, R, C) the target's hidden state where it was to say that token; or empty

  void clear() { rows = 0, hidden.clear(), root.clear(), target.clear(), ahead.clear(); }
};

// ---------------------------------------------------------------------------------------------------------------
// The trainer

// T is the number type: float; double for the gradient check.
template <class T>
class MedusaTrainer {
 public:
  const MedusaSizes sizes;
  Array<T> weights, gradient, m, v;  // flat: medusa_table(sizes)

  // wte: (V, C) the target's head; rows: most of a batch.
  MedusaTrainer(const MedusaSizes& s, const T* wte, int rows, Pool& pool)
      : sizes(s),
        weights(medusa_parameters(s)),
        gradient(medusa_parameters(s)),
        m(medusa_parameters(s)),
        v(medusa_parameters(s)),
        pool_(pool),
        wte_(wte, wte + size_t(s.vocab_size) * size_t(s.n_embd)),
        roots_(root_table(s, wte)),
        packed_(s, weights.data(), wte_.data(), true),
        table_(medusa_table(s)),
        optimizer_(table_, false),
        a_(s, rows, s.heads),
        hidden_(size_t(rows) * a_.C + 16),
        input_(s.root ? size_t(rows) * a_.X + 16 : 0),
        ahead_(size_t(rows) * a_.C + 16),
        teacher_(size_t(rows) * a_.V + 16),
        dg_(size_t(rows) * a_.C + 16),
        through_(size_t(rows) * a_.C + 16),
        ddown_(size_t(rows) * a_.r + 16),
        losses_(size_t(rows) * s.heads),
        loss_(1) {}

  void set_weights(const T* flat) {
    weights.upload(flat, weights.size());
    pool_.run([&](const Team& team) { packed_.pack(team, true); });
  }
  // Mean cross-entropy over the heads and rows.
  T loss(const HeadBatch& batch) {
    load(batch);
    pool_.run([&](const Team& team) { run(team, batch, false); });
    return loss_.data()[0];
  }
  // The same, and `gradient` becomes its gradient.
  T loss_and_gradient(const HeadBatch& batch) {
    load(batch);
    pool_.run([&](const Team& team) { run(team, batch, true); });
    return loss_.data()[0];
  }
  // One AdamW update; returns the loss before it.
  T step(const HeadBatch& batch, const Update& update) {
    load(batch);
    pool_.run([&](const Team& team) {
      run(team, batch, true);
      optimizer_.step(team, update, weights.data(), gradient.data(), m.data(), v.data());
      packed_.pack(team, false);
    });
    return loss_.data()[0];
  }
  // After loss(): what a head said of a row, and what that cost.
  const T* logits(int head, int row) const {
    return a_.logits.data() + (size_t(head) * size_t(rows_) + size_t(row)) * size_t(a_.V);
  }
  T cost(int head, int row) const { return losses_.data()[size_t(head) * size_t(rows_) + size_t(row)]; }

 private:
  void load(const HeadBatch& batch) {
    rows_ = batch.rows;
    spread(batch.hidden.data(), hidden_.data());
    target_.assign(batch.target.begin(), batch.target.end());
    const int C = sizes.n_embd;
    for (int row = 0; sizes.root && row < rows_; row++) {
      T* const x = std::copy_n(hidden_.data() + size_t(row) * a_.C, C, input_.data() + size_t(row) * a_.X);
      std::copy_n(roots_.data() + size_t(batch.root[size_t(row)]) * size_t(C), C, x);
    }
  }
  const T* input() const { return sizes.root ? input_.data() : hidden_.data(); }
  // (R, C) into rows of a_.C numbers.
  void spread(const float* from, T* to) const {
    for (int row = 0; row < rows_; row++)
      for (int c = 0; c < sizes.n_embd; c++) to[size_t(row) * a_.C + c] = T(from[size_t(row) * sizes.n_embd + c]);
  }

  // All heads' losses, one head after the other.
  void run(const Team& team, const HeadBatch& batch, bool with_gradient) {
    const int R = rows_, V = sizes.vocab_size, K = sizes.heads;
    const T scale = T(1) / (T(R) * T(K));
    if (with_gradient) zero(team, gradient.data(), gradient.size());
    for (int k = 0; k < K; k++) {
      const size_t at = size_t(k) * R;
      T* const logits = a_.logits.data() + at * a_.V;
      medusa_forward(team, sizes, packed_, k, R, hidden_.data(), input(), a_, at);
      if (batch.ahead.empty()) {
        loss_of_rows(team, R,
                     CrossEntropy<T>{logits, a_.V, V, target_.data() + at, losses_.data() + at, with_gradient, scale});
      } else {
        if (team.rank == 0) spread(batch.ahead.data() + at * sizes.n_embd, ahead_.data());
        team.wait();
        matmul(team, R, Matmul<T, T>{ahead_.data(), a_.C, packed_.target.forward, teacher_.data(), a_.V});
        team.wait();
        launch(team, R,
               SoftCrossEntropy<T>{logits, teacher_.data(), a_.V, V, losses_.data() + at, with_gradient, scale});
      }
      if (with_gradient) backward(team, k, at);
    }
    launch_sum(team, Mean<T>{losses_.data(), R * K, loss_.data()});
  }

  // With dlogits where the logits were: the gradients of one head. h itself is the target's, and frozen.
  void backward(const Team& team, int k, size_t at) {
    const int R = rows_, C = sizes.n_embd, V = sizes.vocab_size, C_row = a_.C, V_row = a_.V;
    const auto& head = packed_.heads[size_t(k)];
    const T *dlogits = a_.logits.data() + at * V_row, *g = a_.g.data() + at * C_row, *pre = a_.pre.data() + at * C_row;
    const size_t each = table_.size() / size_t(sizes.heads);
    const auto d = [&](size_t i) { return gradient.data() + table_[size_t(k) * each + i].offset; };
    T* const dg = dg_.data();
    const SiluBackward<T> silu{pre, dg, C_row};
    if (head.low_rank.empty()) {
      if (packed_.own) matmul_gradient(team, MatmulGradient<T>{R, V, C, dlogits, V_row, g, C_row, d(2)});
      matmul(team, R, Matmul<T, T>{dlogits, V_row, head.projection.transposed, dg, C_row}, silu);
    } else {
      const int r = sizes.rank, r_row = a_.r;
      T *const ddown = ddown_.data(), *const through = through_.data();
      matmul(team, R, Matmul<T, T>{dlogits, V_row, head.projection.transposed, through, C_row});
      matmul_gradient(team, MatmulGradient<T>{R, r, V, a_.down.data() + at * r_row, r_row, dlogits, V_row, d(3)});
      matmul(team, R, Matmul<T, T>{dlogits, V_row, head.low_rank[1].transposed, ddown, r_row});
      team.wait();
      matmul_gradient(team, MatmulGradient<T>{R, C, r, g, C_row, ddown, r_row, d(2)});
      matmul(team, R, Matmul<T, T>{ddown, r_row, head.low_rank[0].transposed, dg, C_row},
             JoinResidual<T>{through, dg, C_row, C, nullptr, {}});
      team.wait();
      launch_columns(team, R, C, silu);
    }
    team.wait();
    linear_backward(team, R, sizes.inputs(), C, input(), a_.X, dg, C_row, d(0), d(1));
    team.wait();
  }

  Pool& pool_;
  const std::vector<T> wte_, roots_;  // (V, C)
  MedusaWeights<T> packed_;
  const std::vector<TensorSpec> table_;
  Optimizer<T> optimizer_;
  MedusaActivations<T> a_;         // of all heads: head k's row i at row k R + i
  Array<T> hidden_, input_;        // (R, C), (R, X)
  Array<T> ahead_, teacher_;       // of one head: (R, C), (R, V)
  Array<T> dg_, through_, ddown_;  // of one head: (R, C), (R, C), (R, r)
  Array<T> losses_, loss_;         // (K, R), (1)
  std::vector<int> target_;        // (K, R)
  int rows_ = 0;                   // R
};

// ---------------------------------------------------------------------------------------------------------------
// Batches out of shards

// Of a sequence of L rows, those whose K heads all have a token to say.
inline int usable_rows(const ShardSizes& sizes, int heads) { return sizes.rows - heads; }

// places (n): each is sequence * usable_rows + row. Row l has seen token l: head k says token l + 1 + k.
inline void fill_batch(const Shard& shard, const int* places, int n, int heads, bool distribution, HeadBatch& batch) {
  const int usable = usable_rows(shard.sizes, heads), C = shard.sizes.channels;
  batch.clear(), batch.rows = n;
  const auto append = [&](std::vector<float>& to, int sequence, int row) {
    const float* const state = shard.state(sequence, row);
    to.insert(to.end(), state, state + C);
  };
  for (int i = 0; i < n; i++) {
    append(batch.hidden, places[i] / usable, places[i] % usable);
    batch.root.push_back(shard.tokens(places[i] / usable)[places[i] % usable + 1]);
  }
  for (int k = 1; k <= heads; k++)
    for (int i = 0; i < n; i++) {
      const int sequence = places[i] / usable, row = places[i] % usable;
      batch.target.push_back(shard.tokens(sequence)[row + 1 + k]);
      if (distribution) append(batch.ahead, sequence, row + k);
    }
}

// Batches without end: every epoch goes through the shards, and through each one's places, in an order of its own, a
// function of the seed. One shard is in memory at a time.
class HeadBatches {
 public:
  HeadBatches(const HiddenStates& states, int shards, int heads, int batch_size, bool distribution, uint64_t seed)
      : states_(states), heads_(heads), batch_size_(batch_size), distribution_(distribution), seed_(seed) {
    for (int i = 0; i < shards; i++) order_.push_back(i);
  }
  void next(HeadBatch& batch) {
    if (at_ + batch_size_ > int(places_.size())) open();
    const int n = std::min(batch_size_, int(places_.size()));
    fill_batch(shard_, places_.data() + at_, n, heads_, distribution_, batch);
    at_ += n;
  }

 private:
  void open() {
    const uint32_t epoch = uint32_t(opened_ / order_.size()), nth = uint32_t(opened_ % order_.size());
    if (nth == 0) shuffle(order_, epoch, 0);
    shard_ = states_.read("train-" + std::to_string(order_[nth]));
    places_.resize(size_t(shard_.sizes.sequences) * size_t(usable_rows(shard_.sizes, heads_)));
    for (size_t i = 0; i < places_.size(); i++) places_[i] = int(i);
    shuffle(places_, epoch, nth + 1);
    at_ = 0, opened_++;
  }
  // Fisher and Yates 1938.
  void shuffle(std::vector<int>& list, uint32_t epoch, uint32_t which) const {
    for (size_t i = list.size(); i > 1; i--)
      std::swap(list[i - 1], list[random_bits(seed_, epoch, kStreamBatch, i, which) % i]);
  }

  const HiddenStates& states_;
  const int heads_, batch_size_;
  const bool distribution_;
  const uint64_t seed_;
  std::vector<int> order_, places_;
  size_t opened_ = 0;
  Shard shard_;
  int at_ = 0;
};

// ---------------------------------------------------------------------------------------------------------------
// How often the token that came was a guesser's first, second, ... choice

constexpr int kRanks = 8;

struct RankRates {
  double loss = 0, rows = 0;  // sums, until divided by rows
  std::vector<double> rate = std::vector<double>(kRanks, 0);

  template <class T>
  void count(const T* logits, int vocab, int token, double cost) {
    int rank = 0;  // how many tokens come before it; of equal ones the lowest is first
    for (int x = 0; x < vocab; x++) rank += logits[x] > logits[token] || (logits[x] == logits[token] && x < token);
    if (rank < kRanks) rate[size_t(rank)]++;
    rows++, loss += cost;
  }
  void finish() {
    for (double& share : rate) share /= std::max(1.0, rows);
    loss /= std::max(1.0, rows);
  }
  double within(int ranks) const {
    double sum = 0;
    for (int r = 0; r < ranks; r++) sum += rate[size_t(r)];
    return sum;
  }
};

// Of each head, then of the unigram and the bigram for head 1's token; the bigram knows the root, the token before,
// which head 1 may not. bigram: (V, V) as bigram_table() makes it, or empty; unigram: (V) logits.
struct Validation {
  std::vector<RankRates> heads;
  RankRates unigram, bigram;
};
inline Validation validate_heads(MedusaTrainer<float>& trainer, const HiddenStates& states, int shards, int batch_size,
                                 const std::vector<float>& unigram, const std::vector<float>& bigram) {
  const int K = trainer.sizes.heads, V = trainer.sizes.vocab_size;
  Validation result;
  result.heads.resize(size_t(K));
  HeadBatch batch;
  for (int i = 0; i < shards; i++) {
    const Shard shard = states.read("validation-" + std::to_string(i));
    const int usable = usable_rows(shard.sizes, K), n = shard.sizes.sequences * usable;
    std::vector<int> places(static_cast<size_t>(n));
    for (int p = 0; p < n; p++) places[size_t(p)] = p;
    for (int at = 0; at < n; at += batch_size) {
      fill_batch(shard, places.data() + at, std::min(batch_size, n - at), K, false, batch);
      trainer.loss(batch);
      for (int k = 0; k < K; k++)
        for (int row = 0; row < batch.rows; row++)
          result.heads[size_t(k)].count(trainer.logits(k, row), V, batch.target[size_t(k * batch.rows + row)],
                                        double(trainer.cost(k, row)));
      for (int row = 0; row < batch.rows; row++) {
        const int32_t* const tokens = shard.tokens((at + row) / usable) + (at + row) % usable;
        result.unigram.count(unigram.data(), V, tokens[2], -double(unigram[size_t(tokens[2])]));
        if (bigram.empty()) continue;
        const float* const after = bigram.data() + size_t(tokens[1]) * size_t(V);
        result.bigram.count(after, V, tokens[2], -double(after[tokens[2]]));
      }
    }
  }
  for (RankRates& head : result.heads) head.finish();
  result.unigram.finish(), result.bigram.finish();
  return result;
}

// ---------------------------------------------------------------------------------------------------------------
// Flags

struct MedusaOptions {
  std::string dir, data, out, target = "self", stats;
  int heads = 4, rank = kOwnProjection, tokens = 1 << 18;
  float temperature = 1;
  int batch_size = 512, max_iters = 2000, warmup_iters = 100, eval_interval = 500;
  float learning_rate = 1e-3f, min_lr = 1e-4f, beta2 = 0.99f, weight_decay = 0, grad_clip = 1;
  uint64_t seed = 1337;
  int threads = usable_cpus();
  bool root = false, quiet = false;
};

inline Command medusa_command(MedusaOptions& o) {
  return {
      "train_gpt --medusa",
      "Trains Medusa heads on the model in DIR, which stays as it is, for nanospec --drafter medusa. Runs on the CPU.",
      "train_gpt --medusa runs/small --data data/tinyshakespeare.txt\n"
      "train_gpt --medusa runs/medium --data data/tinyshakespeare.txt --medusa_target distribution\n",
      {heading("Files"),
       {"--medusa", "DIR", &o.dir, "the model, as train_gpt wrote it; its hidden states are kept in DIR/hidden",
        required()},
       {"--data", "FILE", &o.data,
        "text to learn from, or to begin the model's own from; its last tenth is for validation", required()},
       {"--out", "DIR", &o.out, "where medusa.safetensors is written; beside the model if not given"},
       {"--stats", "FILE.json", &o.stats, "what the run was, in figures, when it has ended"},
       heading("Heads"),
       {"--medusa_heads", "N", &o.heads, "how many: head k says the k-th token after the next", from(1, kMostHeads)},
       {"--medusa_rank", "N", &o.rank,
        "-1: each has a projection onto the vocabulary of its own; 0: the model's; above: the model's plus a product\n"
        "of this rank",
        from(-1, 1 << 16)},
       {"--medusa_root", "", &o.root, "the heads see the root, too: the next token, known when they draft"},
       {"--medusa_target", "WORD", &o.target,
        "self: the tokens of text that the model generated; text: those of the data;\n"
        "distribution: what the model said of each token, in text that it generated",
        one_of({"self", "text", "distribution"})},
       {"--medusa_tokens", "N", &o.tokens, "tokens of text to train on; a tenth more validates", from(1, 1 << 30)},
       {"--temperature", "T", &o.temperature, "of the text that the model generates", from(0, 1e6)},
       heading("Training"),
       {"--batch_size", "N", &o.batch_size, "positions in one update", from(1, 1 << 20)},
       {"--max_iters", "N", &o.max_iters, "updates in all", from(1)},
       {"--learning_rate", "X", &o.learning_rate, "the highest rate; it falls by a cosine", above(0, 1e3)},
       {"--min_lr", "X", &o.min_lr, "the rate at the end", from(0, 1e3)},
       {"--warmup_iters", "N", &o.warmup_iters, "updates until the highest rate", from(0)},
       {"--beta2", "X", &o.beta2, "AdamW's second decay rate (the first is 0.9)", from(0, 0.999999)},
       {"--weight_decay", "X", &o.weight_decay, "of matrices", from(0, 1e3)},
       {"--grad_clip", "X", &o.grad_clip, "longest gradient; 0: no clipping", from(0)},
       {"--eval_interval", "N", &o.eval_interval, "updates between two evaluations, each with a checkpoint", from(1)},
       {"--seed", "N", &o.seed, "of the generated text and the batches"},
       heading("Machine"),
       {"--threads", "N", &o.threads, "CPU threads; the weights do not depend on it", from(1, 1024)},
       {"--quiet", "", &o.quiet, "no progress"}}};
}

// ---------------------------------------------------------------------------------------------------------------
// The program

// Where a run stands: what it reads, and the shards that it is of.
struct MedusaRun {
  MedusaOptions o;
  Loaded model;
  Split parts;  // of the data
  ShardSizes sizes;
  int train_shards = 0, validation_shards = 0;
  bool generated() const { return o.target != "text"; }
};

// A shard of the train or the validation part: its sequences are numbered through, validation from 2^30 on.
inline Shard make_shard(const MedusaRun& run, Target& target, Drafter* drafter, const Decoding& decoding,
                        bool validation, int number, const std::function<bool()>& working) {
  const std::vector<int>& tokens = validation ? run.parts.validation : run.parts.train;
  const size_t length = run.generated() ? size_t(run.model.config.block_size / 2) : size_t(run.sizes.rows + 1);
  Shard shard;
  shard.sizes = run.sizes;
  for (int s = 0; s < run.sizes.sequences && working(); s++) {
    const uint32_t sequence = uint32_t(number * run.sizes.sequences + s) + (validation ? 1u << 30 : 0);
    const size_t start = random_bits(run.o.seed, sequence, kStreamBatch, 0, 0) % (tokens.size() - length + 1);
    if (run.generated()) {
      Decoding own = decoding;
      own.sampling.sequence = sequence;
      record_generated(target, drafter, own, {tokens.begin() + long(start), tokens.begin() + long(start + length)},
                       shard);
    } else {
      record_text(target, tokens.data() + start, shard);
    }
  }
  return shard;
}

// Makes the shards that are missing. Returns how many seconds the target took; below 0 where it was interrupted.
inline double make_shards(const MedusaRun& run, HiddenStates& states) {
  const auto name = [&](int i) {
    return i < run.train_shards ? "train-" + std::to_string(i) : "validation-" + std::to_string(i - run.train_shards);
  };
  std::vector<int> missing;
  for (int i = 0; i < run.train_shards + run.validation_shards; i++)
    if (!states.has(name(i))) missing.push_back(i);
  if (missing.empty()) return 0;

  constexpr int kBudget = 16;
  const auto start = std::chrono::steady_clock::now();
  const Config& config = run.model.config;
  Target target(config, run.model.weights.data(), Dtype::fp32, false, run.o.threads, kBudget + 1);
  std::unique_ptr<Drafter> drafter;
  Decoding decoding;
  decoding.sampling.temperature = run.o.temperature, decoding.sampling.seed = run.o.seed;
  if (run.generated()) {
    const bool counted = std::filesystem::exists(ngram_path(run.o.dir));
    drafter = load_drafter(counted ? "ngram:4" : "suffix", run.o.dir, config.vocab_size);
    decoding.shape = parse_shape("auto", kBudget);
    decoding.cost = std::make_shared<Cost>(measure_cost(target, kBudget));
    decoding.experience = std::make_shared<Experience>();
  }
  Progress progress(run.o.quiet);
  double done = 0;
  const double all = double(missing.size()) * run.sizes.sequences;
  for (int i : missing) {
    const bool validation = i >= run.train_shards;
    const Shard shard =
        make_shard(run, target, drafter.get(), decoding, validation, validation ? i - run.train_shards : i, [&] {
          if (progress.due())
            progress.show("hidden states  " + decimals(100 * done / all, 0) + "%  " +
                          thousands(done * run.sizes.rows / progress.seconds()) + " tokens/s  " +
                          time_left(done, all, progress.seconds()));
          done++;
          return !interrupted();
        });
    if (interrupted()) return -1;
    states.write(name(i), shard);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline std::string validation_table(const Validation& v) {
  std::vector<std::vector<std::string>> rows = {
      {"", "token", "loss", "rank 1", "rank 2", "rank 3", "rank 4", "first 8"}};
  const auto add = [&](const std::string& who, const std::string& token, const RankRates& r) {
    rows.push_back({who, token, decimals(r.loss, 3)});
    for (int rank = 0; rank < 4; rank++) rows.back().push_back(decimals(100 * r.rate[size_t(rank)], 1) + "%");
    rows.back().push_back(decimals(100 * r.within(kRanks), 1) + "%");
  };
  for (size_t k = 0; k < v.heads.size(); k++)
    add("head " + std::to_string(k + 1), "t + " + std::to_string(k + 2), v.heads[k]);
  add("unigram", "t + 2", v.unigram);
  if (v.bigram.rows > 0) add("bigram", "t + 2", v.bigram);
  return format_table(rows, "llrrrrrr");
}

inline void write_medusa_stats(const MedusaOptions& o, const HiddenStates& states, const MedusaSizes& sizes,
                               double train_loss, const Validation& v, double hidden_seconds, double train_seconds) {
  Json accuracy = Json::array(), loss = Json::array();
  for (const RankRates& head : v.heads) accuracy.push_back(head.rate), loss.push_back(head.loss);
  const Json stats = {{"iterations", o.max_iters},
                      {"train_loss", train_loss},
                      {"val_loss", loss},
                      {"accuracy", accuracy},  // [head][rank]
                      {"accuracy_unigram", v.unigram.rate},
                      {"accuracy_bigram", v.bigram.rate},
                      {"parameters", medusa_parameters(sizes)},
                      {"medusa_heads", o.heads},
                      {"medusa_rank", o.rank},
                      {"medusa_root", o.root},
                      {"medusa_target", o.target},
                      {"medusa_tokens", o.tokens},
                      {"hidden_bytes", states.bytes()},
                      {"hidden_seconds", hidden_seconds},  // 0: they were all there
                      {"ms_per_iter", 1e3 * train_seconds / o.max_iters},
                      {"positions_per_second", double(o.max_iters) * o.batch_size / train_seconds},
                      {"seconds", hidden_seconds + train_seconds},
                      {"peak_bytes", peak_bytes()},
                      {"threads", o.threads},
                      {"device", "cpu"}};
  write_file(o.stats, stats.dump(2) + "\n");
}

// Reads the model and the data and says which shards the run is of.
inline MedusaRun open_medusa_run(const MedusaOptions& o) {
  MedusaRun run;
  run.o = o;
  run.model = load_model(o.dir);
  const Config& config = run.model.config;
  const std::string text = read_file(o.data);
  run.parts = split(run.model.tokenizer.encode(text, o.data));
  constexpr int kGenerated = 256, kShardBytes = 16 << 20;
  run.sizes.rows = run.generated() ? kGenerated : config.block_size;
  run.sizes.channels = config.n_embd;
  if (usable_rows(run.sizes, o.heads) < 1)
    throw std::invalid_argument(std::to_string(o.heads) + " heads look beyond the model's window of " +
                                std::to_string(config.block_size) + " tokens: --medusa_heads: use fewer");
  const size_t shortest = size_t(config.block_size) + 1;
  if (run.parts.validation.size() < shortest)
    refuse("the text has only " + std::to_string(run.parts.train.size() + run.parts.validation.size()) + " characters",
           o.data, "give at least " + std::to_string(10 * shortest));
  const int wanted = (o.tokens + run.sizes.rows - 1) / run.sizes.rows;  // sequences
  const int64_t fit = kShardBytes / (int64_t(run.sizes.rows) * config.n_embd * int64_t(sizeof(float)));
  run.sizes.sequences = int(std::min<int64_t>(wanted, std::max<int64_t>(1, fit)));
  run.train_shards = (wanted + run.sizes.sequences - 1) / run.sizes.sequences;
  run.validation_shards = (run.train_shards + 9) / 10;
  return run;
}

inline int train_medusa(int argc, char** argv) {
  MedusaOptions o;
  if (parse_flags(medusa_command(o), argc, argv).help) return 0;
  if (o.min_lr > o.learning_rate)
    throw std::invalid_argument("--min_lr " + decimals(o.min_lr, 6) + " is above --learning_rate " +
                                decimals(o.learning_rate, 6) + ": train_gpt --medusa: lower it");
  const std::string out = o.out.empty() ? o.dir : o.out;
  MedusaRun run = open_medusa_run(o);
  create_folder(out);
  const Config& config = run.model.config;
  const int V = config.vocab_size;
  HiddenStates states(o.dir + "/hidden",
                      {{"text", run.generated() ? "generated" : "data"},
                       {"temperature", run.generated() ? std::to_string(o.temperature) : ""},
                       {"seed", std::to_string(o.seed)},
                       {"model_sha256", sha256(read_file(o.dir + "/model.safetensors"))},
                       {"data_sha256", sha256(read_file(o.data))}},
                      run.sizes, V);
  watch_interrupts();
  const double hidden_seconds = make_shards(run, states);
  if (hidden_seconds < 0) {
    fprintf(stderr, "train_gpt: stopped: %s/hidden: the same command goes on from there\n", o.dir.c_str());
    return kInterruptedStatus;
  }

  const MedusaSizes sizes{o.heads, o.rank, config.n_embd, V, o.root};
  Pool pool(o.threads);
  MedusaTrainer<float> trainer(sizes, run.model.weights.data(), o.batch_size, pool);  // the embedding comes first
  trainer.set_weights(initial_medusa(sizes, run.model.weights.data(), o.seed).data());
  std::vector<float> unigram(static_cast<size_t>(V), 1);
  for (int token : run.parts.train) unigram[size_t(token)]++;
  for (float& count : unigram) count = log(count / float(run.parts.train.size() + size_t(V)));
  const std::vector<float> bigram = V <= kBigramMostTokens ? bigram_table(run.parts.train, V) : std::vector<float>();
  const auto validated = [&] {
    return validate_heads(trainer, states, run.validation_shards, o.batch_size, unigram, bigram);
  };
  if (!o.quiet)
    fprintf(stderr, "%s parameters in %d heads, hidden states of %s tokens (%s) in %s, %d threads, %s\n",
            thousands(double(medusa_parameters(sizes))).c_str(), o.heads,
            thousands(double(run.train_shards) * run.sizes.sequences * run.sizes.rows).c_str(),
            bytes_text(states.bytes()).c_str(), (o.dir + "/hidden").c_str(), o.threads, kSimd);

  HeadBatches batches(states, run.train_shards, o.heads, o.batch_size, o.target == "distribution", o.seed);
  HeadBatch batch;
  int64_t done = 0;
  double loss = 0, recent = 0, training = 0;
  Progress progress(o.quiet);
  while (done < o.max_iters && !interrupted()) {
    const double before = progress.seconds();
    batches.next(batch);
    Update update;
    update.iteration = done;
    update.learning_rate = cosine_rate(done, o.warmup_iters, o.max_iters, o.learning_rate, o.min_lr);
    update.beta2 = o.beta2, update.weight_decay = o.weight_decay, update.grad_clip = o.grad_clip;
    loss = double(trainer.step(batch, update));
    if (!std::isfinite(loss))
      throw std::runtime_error("the loss is not finite any more: iteration " + std::to_string(done) +
                               ": use a smaller --learning_rate; the last checkpoint is whole");
    done++, training += progress.seconds() - before;
    recent += (loss - recent) / double(std::min<int64_t>(done, 50));
    if (progress.due())
      progress.show("iteration " + std::to_string(done) + "/" + std::to_string(o.max_iters) + "  loss " +
                    decimals(recent, 4) + "  " + decimals(1e3 * training / double(done), 2) + " ms/iter  " +
                    thousands(double(done) * o.batch_size / training) + " positions/s  " +
                    time_left(double(done), o.max_iters, training));
    if (done % o.eval_interval == 0 && done < o.max_iters) {
      save_medusa(out, sizes, trainer.weights.data());
      if (o.quiet) continue;  // nobody would read it
      const Validation v = validated();
      progress.clear();
      std::string line;
      for (const RankRates& head : v.heads) line += (line.empty() ? "" : ", ") + decimals(100 * head.rate[0], 1) + "%";
      fprintf(stderr, "iteration %lld: loss %.4f, right at once, by head: %s\n", static_cast<long long>(done), recent,
              line.c_str());
    }
  }
  progress.clear();
  if (done > 0) save_medusa(out, sizes, trainer.weights.data());
  if (interrupted()) {
    fprintf(stderr, "train_gpt: stopped after iteration %lld: %s holds the heads as they are: repeat the command\n",
            static_cast<long long>(done), medusa_path(out).c_str());
    return kInterruptedStatus;
  }
  const Validation v = validated();
  if (!o.quiet)
    fprintf(stderr, "%s%s positions to validate; hidden states %s, training %s; %s\n", validation_table(v).c_str(),
            thousands(v.unigram.rows).c_str(), duration(hidden_seconds).c_str(), duration(training).c_str(),
            medusa_path(out).c_str());
  if (!o.stats.empty()) write_medusa_stats(o, states, sizes, recent, v, hidden_seconds, training);
  return 0;
}

}  // namespace nanospec
