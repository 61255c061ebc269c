// training/train_parallel.h: training the parallel drafter on a frozen target: train_drafter --parallel DIR.
//
// In order: a batch; the caterpillar, the layout of its rows; the trainer; batches out of shards; flags; what
// train_drafter.h asks of a drafter. A sequence of n positions, each with K - 1 slots hanging from it, is n K rows.
// They are a tree whose one long branch is the stream, so the tree attention serves, forward and backward, and no mask
// is stored. Nor are they there all at once: with S segments (P-EAGLE) the stream runs forward once, then the slots of
// n / S positions at a time run forward and backward against its cached keys and values, whose gradients add up, and
// the stream's backward comes last. The gradient is the same; memory falls from n K rows to n + n (K - 1) / S. It runs
// on the CPU. Nothing of the target's own files is written.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "files/heads.h"
#include "training/train_drafter.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// A batch

// B sequences of n positions. Depth k = 0 .. K - 1 of position t is to say token t + 2 + k.
struct SequenceBatch {
  int sequences = 0, positions = 0, ahead = 0;  // B, n, K
  std::vector<int> token;                       // (B, n + 1 + K) of each sequence the tokens 0 .. n + K
  std::vector<float> features;                  // (B, n, 3 C)
  const int* tokens(int sequence) const { return token.data() + size_t(sequence) * size_t(positions + 1 + ahead); }
};

// ---------------------------------------------------------------------------------------------------------------
// The caterpillar

// A tree in preorder: the stream of n rows, whose next position is always the first child, and behind it, the last
// position first, the chains of `slots` rows that hang from positions begin .. end - 1. tokens: (n + slots) a row of
// depth d has the token d.
inline void add_caterpillar(Batch& batch, const int* tokens, int n, int begin, int end, int slots) {
  Growth growth;
  growth.start(tokens[0]);
  for (int t = 1; t < n; t++) growth.add(t - 1, {tokens[t], 1});
  for (int t = begin; t < end; t++)
    for (int d = 1, above = t; d <= slots; d++) above = growth.add(above, {tokens[t + d], 1});
  Tree tree;
  flatten(growth, tree);
  batch.add_tree(tree.token.data(), tree.depth.data(), tree.end.data(), tree.size(), 0, 0);
}
// The most that it has where the slots of n positions come in so many segments.
inline int caterpillar_rows(int n, int slots, int segments) { return n + (n + segments - 1) / segments * slots; }
// Where slot d of position t stands.
inline int slot_row(int n, int end, int slots, int t, int d) { return n + (end - 1 - t) * slots + d - 1; }

// ---------------------------------------------------------------------------------------------------------------
// The trainer

// The target's last norm and head, frozen, and its embedding.
template <class T>
struct FrozenHead {
  const Config config;
  std::vector<T> flat;  // the target's parameters
  Tensors<const T> tensors;
  Weight<T, T> head;
  Array<T> memory;

  FrozenHead(const Config& target, const float* weights, const Team& team)
      : config(target),
        flat(weights, weights + parameter_count(config)),
        tensors(config, flat.data()),
        head(config.tied ? tensors.wte : tensors.lm_head, config.n_embd, config.vocab_size, true),
        memory(place_weights<T, T>({&head}, true)) {
    head.pack(team);
  }
  // Of the rows of `a` from `first` on: their last x.
  Norm<T> norm(const Activations<T>& a, int first) const {
    return norm_of<T>(config, {a.x.at(a.L, first), a.C}, tensors.ln_f, tensors.ln_f_bias, {a.norm_f.at(0, first), a.C},
                      a.mean_f.at(0, first), a.rstd_f.at(0, first));
  }
};

template <class T>
class ParallelTrainer : public DrafterTrainer<T, SequenceBatch> {
  using Base = DrafterTrainer<T, SequenceBatch>;

 public:
  const ParallelSizes sizes;

  // target: its parameters; positions: n of every sequence; segments: S.
  ParallelTrainer(const ParallelSizes& s, const Config& config, const float* target, int positions, int segments,
                  Pool& pool)
      : Base(parallel_table(s), pool),
        sizes(s),
        n_(positions),
        segments_(std::min(segments, positions)),
        most_rows_(caterpillar_rows(positions, s.slots(), segments)),
        frozen_(config, target, Team{0, 1, nullptr, false}),
        packed_(s, n_ + s.ahead, this->weights.data(), true),
        by_name_(s, this->gradient.data()),
        a_(s, n_, most_rows_, pad64(most_rows_), true, 1),
        g_{a_, true},
        dinput_(1, n_ + 1, a_.E),
        dslot_(size_t(a_.C)),
        stream_(n_, 1, false),
        segment_(most_rows_, 1, false),
        logits_(1, most_rows_, pad16(s.vocab_size)),
        losses_(size_t(most_rows_)),
        targets_(size_t(most_rows_)) {}

  // What depth k said of position t of a sequence, and what that cost.
  using Said = std::function<void(int sequence, int position, int depth, const T* logits, T cost)>;
  using Base::loss;
  T loss(const SequenceBatch& batch, const Said& said) {
    said_ = said;
    const T mean = loss(batch);
    said_ = nullptr;
    return mean;
  }

 private:
  static constexpr int kFeedbackRounds = 2;

  void pack(const Team& team, bool) override { packed_.pack(team); }

  T run(const SequenceBatch& batch, bool with_gradient) override {
    if (batch.positions != n_ || batch.ahead != sizes.ahead) throw std::logic_error("a batch of other sizes");
    scale_ = T(1) / (T(batch.sequences) * T(n_) * T(sizes.ahead));
    total_ = 0;
    for (int b = 0; b < batch.sequences; b++) {
      run_stream(batch, b, with_gradient);
      for (int s = 0; s < segments_; s++) run_segment(batch, b, s, with_gradient);
      if (with_gradient) stream_backward();
    }
    return total_ * scale_;
  }

  // Whether a row is there that all slots begin as.
  bool with_slot() const { return !sizes.sequential && sizes.slots() > 0; }

  // The stream forward, its loss and the gradient of its top.
  void run_stream(const SequenceBatch& batch, int b, bool with_gradient) {
    const int X = kFeatures * sizes.n_embd;
    const float* const features = batch.features.data() + size_t(b) * size_t(n_) * size_t(X);
    for (int t = 0; t < n_; t++) std::copy_n(features + size_t(t) * size_t(X), X, a_.features.at(0, t));
    const int* const tokens = batch.tokens(b);
    rows_.clear();
    rows_.add_chain(tokens + 1, n_, 0, 0);
    stream_.upload(rows_);
    for (int t = 0; t < n_; t++) targets_[size_t(t)] = tokens[t + 2];
    this->pool_.run([&](const Team& team) {
      if (with_gradient) {
        zero(team, g_.k.data(), g_.k.size());
        zero(team, g_.v.data(), g_.v.size());
        zero(team, dslot_.data(), dslot_.size());
      }
      parallel_features(team, sizes, packed_, n_, a_);
      parallel_enter(team, sizes, packed_, frozen_.tensors.wte, stream_.token(), 0, n_, with_slot(), a_);
      forward(team, a_.config, packed_.layers, stream_, a_, true);
      output_loss(team, 0, n_, with_gradient);
    });
    count(b, 0, n_, 0);
  }

  // Some positions' slots, forward and, up to where they begin, backward.
  void run_segment(const SequenceBatch& batch, int b, int s, bool with_gradient) {
    const int K = sizes.slots(), begin = n_ * s / segments_, end = n_ * (s + 1) / segments_;
    const int rows = (end - begin) * K;
    if (rows == 0) return;
    const int* const tokens = batch.tokens(b);
    rows_.clear();
    add_caterpillar(rows_, tokens + 1, n_, begin, end, K);
    segment_.upload(rows_);
    segment_.computed = n_;
    for (int t = begin; t < end; t++)
      for (int d = 1; d <= K; d++) targets_[size_t(slot_row(n_, end, K, t, d))] = tokens[t + 2 + d];
    if (sizes.sequential) {
      for (int round = 0; round < kFeedbackRounds; round++) {
        feed_back(begin, end, round == 0);
        this->pool_.run([&](const Team& team) { forward_slots(team, rows); });
      }
      feed_back(begin, end, false);
    }
    this->pool_.run([&](const Team& team) {
      forward_slots(team, rows);
      output_loss(team, n_, rows, with_gradient);
      if (with_gradient) slots_backward(team, rows);
    });
    count(b, n_, rows, end);
  }
  void forward_slots(const Team& team, int rows) {
    if (sizes.sequential)
      parallel_enter(team, sizes, packed_, frozen_.tensors.wte, segment_.token(), n_, rows, false, a_);
    else spread_slot(team, sizes, n_, rows, a_);
    forward(team, a_.config, packed_.layers, segment_, a_, true);
  }

  // A row of a path reads the state of the row above it, which is known only after that row has run. So all rows run
  // several times: the first round reads the stream's states, and each further round makes one depth more exact. No
  // gradient flows through a state (as in EAGLE-3's training-time test, which has another number of rounds).
  void feed_back(int begin, int end, bool at_first) {
    const int K = sizes.slots(), C = sizes.n_embd;
    for (int t = begin; t < end; t++)
      for (int d = 1; d <= K; d++) {
        const int of_stream = std::min(t + d - 1, n_ - 1);
        const int above = d == 1 || at_first ? of_stream : slot_row(n_, end, K, t, d - 1);
        std::copy_n(a_.x.at(sizes.n_layer, above), C, a_.hidden.at(0, slot_row(n_, end, K, t, d)));
      }
  }

  // Final norm, head and loss of rows first .. first + rows - 1, and the gradient of the top.
  void output_loss(const Team& team, int first, int rows, bool with_gradient) {
    T* const logits = logits_.at(0, first);
    const int V = int(logits_.stride);
    const Norm<T> norm = frozen_.norm(a_, first);
    launch(team, rows, norm);
    matmul(team, rows, Matmul<T, T>{norm.y, a_.C, frozen_.head.forward, logits, V});
    team.wait();
    loss_of_rows(team, rows,
                 CrossEntropy<T>{logits, V, sizes.vocab_size, targets_.data() + first, losses_.data() + first,
                                 with_gradient, scale_});
    if (!with_gradient) return;
    T *const dnorm = g_.norm.at(0, first), *const dtop = g_.stream.at(0, first);
    matmul(team, rows, Matmul<T, T>{logits, V, frozen_.head.transposed, dnorm, a_.C});
    team.wait();
    zero(team, dtop, size_t(rows) * size_t(a_.C));
    launch(team, rows, norm_backward<T>(norm, {dnorm, a_.C}, {dtop, a_.C}));
  }
  // Rows of the stream, or slots of positions before `end`.
  void count(int b, int first, int rows, int end) {
    for (int row = first; row < first + rows; row++) {
      const T cost = losses_.data()[row], *const logits = logits_.at(0, row);
      total_ += cost;
      if (!said_) continue;
      const int K = sizes.slots(), slot = row - n_;
      if (slot < 0) said_(b, row, 0, logits, cost);
      else said_(b, end - 1 - slot / K, slot % K + 1, logits, cost);
    }
  }

  void slots_backward(const Team& team, int rows) {
    const size_t head = size_t(a_.slots) * size_t(pad16(sizes.head_size())),
                 mine = head / size_t(a_.slots) * size_t(n_);
    for (size_t i = 0; i < size_t(sizes.n_layer) * size_t(sizes.n_kv_head); i++) {  // an earlier segment's slots
      zero(team, g_.k.data() + i * head + mine, head - mine);
      zero(team, g_.v.data() + i * head + mine, head - mine);
    }
    backward(team, a_.config, packed_.layers, segment_, a_, g_, by_name_.layers);
    const T* const dx = g_.stream.at(0, n_);
    const int C = sizes.n_embd;
    if (sizes.sequential)
      matmul_gradient(team, MatmulGradient<T>{rows, 2 * C, C, a_.input.at(0, n_), a_.E, dx, a_.C, by_name_.input});
    else column_sum(team, ColumnSum<T>{rows, C, dx, a_.C, dslot_.data()});
    team.wait();
  }

  // What the slots have left in g_.k and g_.v, and the gradient of the stream's own top; then where all begin.
  void stream_backward() {
    const int C = sizes.n_embd, rows = n_ + with_slot();
    this->pool_.run([&](const Team& team) {
      backward(team, a_.config, packed_.layers, stream_, a_, g_, by_name_.layers);
      T* const dx = g_.stream.data();
      if (with_slot()) add(team, dslot_.data(), g_.stream.at(0, n_), size_t(C), true);
      matmul_gradient(team, MatmulGradient<T>{rows, 2 * C, C, a_.input.data(), a_.E, dx, a_.C, by_name_.input});
      matmul(team, rows, Matmul<T, T>{dx, a_.C, packed_.input.transposed, dinput_.data(), a_.E});
      team.wait();
      matmul_gradient(team, MatmulGradient<T>{n_, kFeatures * C, C, a_.features.data(), a_.X, dinput_.data() + C, a_.E,
                                              by_name_.features});
      if (!with_slot()) return;
      const T* const slot = dinput_.at(0, n_);
      column_sum(team, ColumnSum<T>{1, C, slot, a_.E, by_name_.mask});
      column_sum(team, ColumnSum<T>{1, C, slot + C, a_.E, by_name_.shared});
    });
  }

  const int n_, segments_, most_rows_;  // most_rows_: of the longest caterpillar
  FrozenHead<T> frozen_;
  ParallelWeights<T> packed_;
  ParallelTensors<T> by_name_;
  ParallelActivations<T> a_;
  Gradients<T> g_;
  Rows<T> dinput_;                // (n + 1, 2 C) the gradient of what enters
  Array<T> dslot_;                // (C) the sum over all slots, where they begin
  Batch rows_;                    // scratch
  DeviceBatch stream_, segment_;  // the chain; the chain with some of its slots
  Rows<T> logits_;                // of the rows that speak
  Array<T> losses_;
  std::vector<int> targets_;
  T scale_ = 0, total_ = 0;
  Said said_;
};

// ---------------------------------------------------------------------------------------------------------------
// Batches out of shards

// numbers (B): of the shard's sequences.
inline void fill_batch(const Shard& shard, const int* numbers, int B, int ahead, SequenceBatch& batch) {
  batch.sequences = B;
  batch.positions = usable_rows(shard.sizes, ahead);
  batch.ahead = ahead;
  batch.token.clear();
  batch.features.clear();
  for (int b = 0; b < B; b++) {
    const int32_t* const tokens = shard.tokens(numbers[b]);
    batch.token.insert(batch.token.end(), tokens, tokens + batch.positions + 1 + ahead);
    const float* const features = shard.state(numbers[b], 0);
    batch.features.insert(batch.features.end(), features,
                          features + size_t(batch.positions) * size_t(shard.sizes.channels));
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Flags

struct ParallelOptions : DistillOptions {
  ParallelSizes sizes;
  int segments = 1;
  ParallelOptions() {
    tokens = 1 << 17;
    batch_size = 2;
    max_iters = 1200;
    learning_rate = 2e-3f;
    weight_decay = 0.01f;
  }
};

inline Command parallel_command(ParallelOptions& o) {
  const DistillWords words = {"parallel",
                              "the model, as train_gpt wrote it; its features are kept in DIR/features",
                              "sequences in one update",
                              {"self", "text"},
                              "self: the tokens of text that the model generated; text: those of the data"};
  const std::vector<Flag> own = {
      heading("Drafter"),
      {"--parallel_layers", "N", &o.sizes.n_layer, "layers", from(1, kMostParallelLayers)},
      {"--parallel_ahead", "N", &o.sizes.ahead, "tokens that it says in one forward", from(1, kMostAhead)},
      {"--parallel_kv_heads", "N", &o.sizes.n_kv_head,
       "key/value heads, a divisor of the model's heads; 0: two where those are even, else one", from(0, 1 << 16)},
      {"--parallel_segments", "N", &o.segments,
       "pieces in which the slots of a sequence are run: the same gradient in less memory", from(1, 1 << 16)},
      {"--parallel_sequential", "", &o.sizes.sequential,
       "one token after the other, each from the state of the one before"},
      {"--parallel_raw", "", &o.sizes.raw, "features without their RMS norm, for study"}};
  return {"train_drafter --parallel",
          "Trains a drafter on hidden states of the model in DIR, which stays as it is, for nanospec --drafter "
          "parallel.\nRuns on the CPU.",
          "train_drafter --parallel runs/small --data data/*shakespeare.txt  # takes minutes\n"
          "train_drafter --parallel runs/medium --data data/*shakespeare.txt --parallel_layers 1 --out runs/one-layer  "
          "# takes minutes\n",
          distill_flags(o, words, own)};
}

// ---------------------------------------------------------------------------------------------------------------
// What train_drafter.h asks of a drafter

inline std::vector<float> initial_parallel(const ParallelSizes& sizes, uint64_t seed) {
  return initial_weights(parallel_table(sizes), seed);
}

struct ParallelTraining {
  using Options = ParallelOptions;
  static constexpr const char *kName = "parallel", *kWhat = "drafter", *kGuesser = "depth";
  static constexpr Recorded kRecorded = Recorded::kFeatures;
  static Command command(Options& o) { return parallel_command(o); }
  static ParallelSizes sizes_of(const Options& o, const DistillRun& run) {
    const Config& config = run.model.config;
    ParallelSizes s = o.sizes;
    s.n_head = config.n_head;
    s.n_embd = config.n_embd;
    s.vocab_size = config.vocab_size;
    if (s.n_kv_head == 0) s.n_kv_head = default_kv_heads(config.n_head);
    if (config.n_head % s.n_kv_head != 0)
      throw std::invalid_argument("the model's " + std::to_string(config.n_head) + " heads do not share " +
                                  std::to_string(s.n_kv_head) + ": --parallel_kv_heads: give a divisor");
    if (config.n_embd % config.n_head != 0)
      throw std::invalid_argument("the model's " + std::to_string(config.n_embd) +
                                  " channels are not a multiple of its heads, " + std::to_string(config.n_head) +
                                  ": --parallel: choose another model");
    if (s.head_size() % 2 != 0)
      throw std::invalid_argument("the model's heads have an odd number of channels, " + std::to_string(s.head_size()) +
                                  ": --parallel: rotary positions turn pairs of them; choose another model");
    check_window(run, s.ahead, 2, std::to_string(s.ahead) + " tokens at once", "--parallel_ahead");
    return s;
  }

  const Options& o;
  ParallelTrainer<float> trainer;
  SequenceBatch batch;
  const int usable, pieces;  // n; sequences of a shard

  ParallelTraining(const Options& options, const ParallelSizes& sizes, const DistillRun& run, Pool& pool)
      : o(options),
        trainer(sizes, run.model.config, run.model.weights.data(), usable_rows(run.sizes, sizes.ahead), o.segments,
                pool),
        usable(usable_rows(run.sizes, sizes.ahead)),
        pieces(run.sizes.sequences) {
    trainer.set_weights(initial_parallel(sizes, o.seed).data());
  }
  int ahead() const { return o.sizes.ahead; }
  double positions(int sequences) const { return double(std::min(sequences, pieces)) * usable; }
  double step(const ShardOrder::Some& some, const Update& update) {
    fill_batch(some.shard, some.pieces, some.n, ahead(), batch);
    return double(trainer.step(batch, update));
  }
  void validate(const Shard& shard, std::vector<RankRates>& depths, Baselines& baselines) {
    for (int s = 0; s < shard.sizes.sequences; s++) {
      fill_batch(shard, &s, 1, ahead(), batch);
      const int* const tokens = batch.tokens(0);
      trainer.loss(batch, [&](int, int t, int depth, const float* logits, float cost) {
        depths[size_t(depth)].count(logits, trainer.sizes.vocab_size, tokens[t + 2 + depth], double(cost));
        if (depth == 0) baselines.count(tokens[t + 1], tokens[t + 2]);
      });
    }
  }
  void save(const std::string& dir, const Metadata& origin) const {
    save_parallel(dir, trainer.sizes, trainer.weights.data(), origin);
  }
  static std::map<std::string, std::string> settings(const ParallelSizes& sizes) {
    std::map<std::string, std::string> settings = parallel_metadata(sizes);
    settings["n_layer"] = std::to_string(sizes.n_layer);
    settings["kv_heads"] = std::to_string(sizes.n_kv_head);
    return settings;
  }
  std::string described() const {
    return o.sizes.sequential ? ", one token after the other" : ", " + std::to_string(ahead()) + " tokens at once";
  }
  void stats(Json& stats) const {
    for (const auto& [key, value] : settings(trainer.sizes)) stats["parallel_" + key] = value;
    stats["parallel_segments"] = o.segments;
  }
};

inline int train_parallel(int argc, char** argv) { return train_drafter<ParallelTraining>(argc, argv); }

}  // namespace nanospec
