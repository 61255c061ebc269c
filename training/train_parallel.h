// training/train_parallel.h: training the parallel drafter on a frozen target: train_drafter --parallel DIR; or on what
// a model said, train_drafter --parallel MODEL where the data are such texts.
//
// In order: the caterpillar, the layout of its rows; the trainer; its options: what train_drafter.h asks of a drafter.
// A sequence of n positions, each with K - 1 slots hanging from it, is n K rows. They are a tree whose one long branch
// is the stream, so the tree attention serves, forward and backward, and no mask is stored. Nor are they there all at
// once: with S segments (P-EAGLE) the stream runs forward once, then the slots of n / S positions at a time run forward
// and backward against its cached keys and values, whose gradients add up, and the stream's backward comes last. The
// gradient is the same; memory falls from n K rows to n + n (K - 1) / S. It runs on the CPU. Nothing of the target's
// own files is written.
#pragma once

#include "training/train_drafter.h"

namespace nanospec {

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
// The most rows of such a tree where the slots of n positions come in so many segments.
inline int caterpillar_rows(int n, int slots, int segments) { return n + (n + segments - 1) / segments * slots; }
// Where slot d of position t stands.
inline int slot_row(int n, int end, int slots, int t, int d) { return n + (end - 1 - t) * slots + d - 1; }

// ---------------------------------------------------------------------------------------------------------------
// The trainer

// The target's last norm and head, frozen, and its embedding. Without the head, where the drafter has its own.
template <class T>
struct FrozenHead {
  const Config config;
  std::vector<T> embedding, norm_weight, norm_bias;  // (V, C); (C) each, or no bias
  Weight<T, T> head;
  Array<T> memory;

  FrozenHead(const Config& target, const Tensors<const float>& its, bool with_head, const Team& team)
      : config(target),
        embedding(its.wte, its.wte + size_t(config.vocab_size) * size_t(config.n_embd)),
        norm_weight(its.ln_f, its.ln_f + config.n_embd),
        norm_bias(its.ln_f_bias, its.ln_f_bias + (its.ln_f_bias ? config.n_embd : 0)) {
    if (!with_head) return;
    const float* const rows = config.tied ? its.wte : its.lm_head;
    const std::vector<T> flat(rows, rows + embedding.size());
    head = {flat.data(), config.n_embd, config.vocab_size, true};
    memory = place_weights<T, T>({&head}, true);
    head.pack(team);  // once: the numbers need not stay
  }
  // Of the rows of `a` from `first` on: their last x.
  Norm<T> norm(const Activations<T>& a, int first) const {
    return norm_of<T>(config, {a.x.at(a.L, first), a.C}, norm_weight.data(),
                      norm_bias.empty() ? nullptr : norm_bias.data(), {a.norm_f.at(0, first), a.C},
                      a.mean_f.at(0, first), a.rstd_f.at(0, first));
  }
};

// Its examples are sequences of a shard of features, or of passages. Depth k = 0 .. K - 1 of position t is to say token
// t + 2 + k.
template <class T>
class ParallelTrainer : public DrafterTrainer<T> {
  using typename DrafterTrainer<T>::Said;

 public:
  const ParallelSizes sizes;

  // target: its tensors outside of the layers; positions: n of every sequence; segments: S; class_of: (V) which guess
  // of a head of its own a token is, or none.
  ParallelTrainer(const ParallelSizes& s, const Config& config, const Tensors<const float>& target, int positions,
                  int segments, Pool& pool, std::vector<int> class_of = {})
      : DrafterTrainer<T>(parallel_table(s), pool),
        sizes(s),
        n_(positions),
        segments_(std::min(segments, positions)),
        class_of_(std::move(class_of)),
        frozen_(config, target, s.tokens == 0, Team{}) {
    a_.cache_is_read = true;
    for (Rows<T>* own : {&b_.k, &b_.v, &h_.k, &h_.v}) *own = {};  // it is lent the stream's
  }

 private:
  static constexpr int kFeedbackRounds = 2;

  void pack(const Team& team) const override { packed_.pack(team); }

  T run(const Examples& some, bool with_gradient, const Said& said) override {
    if (usable_rows(some.shard.sizes, sizes.ahead) != n_) throw std::logic_error("a shard of other sizes");
    scale_ = T(1) / (T(some.n) * T(n_) * T(sizes.ahead));
    total_ = 0;
    for (int i = 0; i < some.n; i++) {
      tokens_ = some.shard.tokens(some.pieces[i]) + 1;
      run_stream(some.shard.state(some.pieces[i], 0), with_gradient, said);
      lend_cache();
      for (int s = 0; s < segments_; s++)
        run_segment(n_ * s / segments_, n_ * (s + 1) / segments_, with_gradient, said);
      lend_cache();
      if (with_gradient) stream_backward();
    }
    return total_ * scale_;
  }

  int class_of(int token) const { return class_of_.empty() ? token : class_of_[size_t(token)]; }
  const Weight<T, T>& head() const { return sizes.tokens > 0 ? packed_.guess : frozen_.head; }

  // Whether all slots begin as one row, which is a parameter.
  bool with_slot() const { return !sizes.sequential && sizes.slots() > 0; }

  // The stream's keys and values, and their gradients, go to the slots, or back.
  void lend_cache() {
    std::swap(a_.k, b_.k);
    std::swap(a_.v, b_.v);
    std::swap(g_.k, h_.k);
    std::swap(g_.v, h_.v);
  }
  // The rows that have been laid out. Each is to say the token after its own.
  void upload(DeviceBatch& batch) {
    for (int depth : rows_.depth) rows_.target.push_back(class_of(tokens_[depth + 1]));
    batch.upload(rows_);
  }
  // The stream forward, its loss and the gradient of its top.
  void run_stream(const float* features, bool with_gradient, const Said& said) {
    const int X = kFeatures * sizes.n_embd;
    for (int t = 0; t < n_; t++) std::copy_n(features + size_t(t) * size_t(X), X, a_.features.at(0, t));
    rows_.clear();
    rows_.add_chain(tokens_, n_, 0, 0);
    upload(stream_);
    this->pool_.run([&](const Team& team) {
      if (with_gradient)
        for (const Rows<T>* sums : {&g_.k, &g_.v, &dslot_}) zero(team, sums->data(), sums->size());
      project_features(team, n_, sizes.n_embd, sizes.raw, view(a_.features, 0), packed_.features, view(a_.hidden, 0));
      parallel_enter(team, sizes, packed_, frozen_.embedding.data(), stream_.token(), 0, n_, with_slot(), a_);
      forward(team, a_.config, packed_.layers, stream_, a_, stream_.forest.rows);
      output_loss(team, stream_, 0, a_, g_, with_gradient);
    });
    count(0, said);
  }

  // The slots of some positions, forward and, up to where they begin, backward.
  void run_segment(int begin, int end, bool with_gradient, const Said& said) {
    const int rows = (end - begin) * sizes.slots();
    if (rows == 0) return;
    rows_.clear();
    add_caterpillar(rows_, tokens_, n_, begin, end, sizes.slots());
    for (int& its : rows_.end) its -= n_;  // the stream lies before row 0: it has run
    rows_.first_row = {-n_, rows};
    upload(segment_);
    Forest& slots = segment_.forest;
    slots = {rows, 1, slots.end + n_, slots.depth + n_, slots.root + n_, slots.first_row, slots.first_slot, slots.past};
    for (int round = 0; sizes.sequential && round < kFeedbackRounds; round++) {
      feed_back(begin, end, round == 0);
      this->pool_.run([&](const Team& team) { forward_slots(team, rows); });
    }
    if (sizes.sequential) feed_back(begin, end, false);
    this->pool_.run([&](const Team& team) {
      forward_slots(team, rows);
      output_loss(team, segment_, n_, b_, h_, with_gradient);
      if (with_gradient) slots_backward(team, rows);
    });
    count(n_, said);
  }
  void forward_slots(const Team& team, int rows) {
    if (sizes.sequential)
      parallel_enter(team, sizes, packed_, frozen_.embedding.data(), segment_.token() + n_, 0, rows, false, b_);
    else spread_slot(team, a_.x.at(0, n_), 0, rows, b_);
    forward(team, b_.config, packed_.layers, segment_, b_, rows);
  }

  // A row of a path reads the state of the row above it, which is known only after that row has run. So all rows run
  // several times: the first round reads the stream's states, and each further round makes one depth more exact. No
  // gradient flows through a state (as in EAGLE-3's training-time test, which has another number of rounds).
  void feed_back(int begin, int end, bool at_first) {
    const int K = sizes.slots(), C = sizes.n_embd;
    for (int t = begin; t < end; t++)
      for (int d = 1; d <= K; d++) {
        const int row = slot_row(0, end, K, t, d), L = sizes.n_layer;
        const T* const above = d == 1 || at_first ? a_.x.at(L, std::min(t + d - 1, n_ - 1)) : b_.x.at(L, row - 1);
        std::copy_n(above, C, b_.hidden.at(0, row));
      }
  }

  // Final norm, head and loss of the rows that a forward has run, which are rows_ from `first` on, and the gradient of
  // the top.
  void output_loss(const Team& team, const DeviceBatch& batch, int first, const Activations<T>& a,
                   const Gradients<T>& g, bool with_gradient) {
    const int rows = batch.forest.rows, V = int(logits_.stride);
    T* const logits = logits_.at(0, first);
    const Norm<T> norm = frozen_.norm(a, 0);
    launch(team, rows, norm);
    matmul(team, rows, Matmul<T, T>{norm.y, a.C, head().forward, logits, V});
    team.wait();
    loss_of_rows(team, rows,
                 CrossEntropy<T>{logits, V, sizes.classes(), batch.target() + first, losses_.data() + first,
                                 with_gradient, scale_});
    if (!with_gradient) return;
    T *const dnorm = g.norm.data(), *const dtop = g.stream.data();
    matmul(team, rows, Matmul<T, T>{logits, V, head().transposed, dnorm, a.C});
    if (sizes.tokens > 0)
      matmul_gradient(team,
                      MatmulGradient<T>{rows, sizes.classes(), sizes.n_embd, logits, V, norm.y, a.C, by_name_.guess});
    team.wait();
    zero(team, dtop, size_t(rows) * size_t(a.C));
    launch(team, rows, norm_backward<T>(norm, {dnorm, a.C}, {dtop, a.C}));
  }
  // Of the rows from `first` on: of the stream, or of slots behind it.
  void count(int first, const Said& said) {
    for (int row = first; row < rows_.rows(); row++) {
      const T cost = losses_.data()[row];
      total_ += cost;
      const int k = row < n_ ? 0 : (row - n_) % sizes.slots() + 1;
      if (said) said(k, class_of(rows_.token[size_t(row)]), rows_.target[size_t(row)], logits_.at(0, row), cost);
    }
  }

  void slots_backward(const Team& team, int rows) {
    const size_t head = size_t(a_.slots) * size_t(pad16(sizes.head_size())),
                 mine = head / size_t(a_.slots) * size_t(n_);
    for (size_t i = 0; i < size_t(sizes.n_layer) * size_t(sizes.n_kv_head); i++) {  // an earlier segment's slots
      zero(team, h_.k.data() + i * head + mine, head - mine);
      zero(team, h_.v.data() + i * head + mine, head - mine);
    }
    backward(team, b_.config, packed_.layers, segment_, b_, h_, by_name_.layers);
    const T* const dx = h_.stream.data();
    const int C = sizes.n_embd;
    if (sizes.sequential)
      matmul_gradient(team, MatmulGradient<T>{rows, 2 * C, C, b_.input.data(), b_.E, dx, b_.C, by_name_.input});
    else column_sum(team, ColumnSum<T>{rows, C, dx, b_.C, dslot_.data()});
    team.wait();
  }

  // The backward of the stream. Its gradients of keys and values hold already what the slots have added to them. Then
  // the gradient of the row that all slots begin as.
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

  const int n_, segments_;
  const int most_rows_ = caterpillar_rows(n_, sizes.slots(), segments_);  // of a segment, the stream among them
  const std::vector<int> class_of_;                                       // (V) or none
  FrozenHead<T> frozen_;
  ParallelWeights<T, T> packed_{sizes, n_ + sizes.ahead, this->weights.data(), true};
  ParallelTensors<T> by_name_{sizes, this->gradient.data()};
  // Of the stream, behind which there is a row for where all slots begin; and of a segment's slots.
  ParallelActivations<T> a_{sizes, n_, n_ + 1, pad64(most_rows_), true, 1};
  ParallelActivations<T> b_{sizes, 0, most_rows_ - n_, pad64(most_rows_), true, 1};
  Gradients<T> g_{a_, true}, h_{b_, true};
  Rows<T> dinput_ = a_.once(n_ + 1, a_.E);                            // (n + 1, 2 C) the gradient of what enters
  Rows<T> dslot_ = a_.once(1, a_.C);                                  // (C) the sum over all slots, where they begin
  const int* tokens_ = nullptr;                                       // a sequence's, from the first one that enters on
  Batch rows_;                                                        // of the forward to come, or the last one
  DeviceBatch stream_{n_, 1, false}, segment_{most_rows_, 1, false};  // the chain; some of its slots
  Rows<T> logits_ = a_.once(most_rows_, pad16(sizes.classes()));      // of the rows that speak
  Array<T> losses_{size_t(most_rows_)};
  T scale_ = 0, total_ = 0;
};

// ---------------------------------------------------------------------------------------------------------------
// Its options

struct ParallelOptions : DrafterOptions {
  ParallelSizes sizes;
  int segments = 1;
  explicit ParallelOptions(Recorded recorded = Recorded::kFeatures)
      : DrafterOptions({"parallel", "drafter", "depth", recorded}) {
    tokens = 1 << 17;
    batch_size = lessons ? 4 : 2;
    if (!lessons) max_iters = 1200;
    if (lessons) passage = 64;
    learning_rate = lessons ? 1e-3f : 2e-3f;
    weight_decay = 0.01f;
  }

  Command command() override {
    std::vector<Flag> own = {
        heading("Drafter"),
        {"--parallel_layers", "N", &sizes.n_layer, "layers", from(1, kMostParallelLayers)},
        {"--parallel_ahead", "N", &sizes.ahead, "tokens that it says in one forward", from(1, kMostAhead)},
        {"--parallel_kv_heads", "N", &sizes.n_kv_head,
         "key/value heads, a divisor of the model's heads; 0: two where those are even, else one", from(0, 1 << 16)},
        {"--parallel_segments", "N", &segments,
         "pieces in which the slots of a sequence are run: the same gradient in less memory", from(1, 1 << 16)},
        {"--parallel_raw", "", &sizes.raw, "features without their RMS norm, for study"}};
    if (lessons)
      own.push_back({"--parallel_window", "N", &passage, "places of a passage, and most that it sees when it drafts",
                     from(2, 1 << 12)});
    else
      own.push_back({"--parallel_sequential", "", &sizes.sequential,
                     "one token after the other, each from the state of the one before"});
    if (lessons)
      return {"train_drafter --parallel",
              "Trains a drafter on hidden states of MODEL, which stays as it is, for nanospec --drafter parallel. It "
              "learns from what the model itself said: nanospec distill writes that. Runs on the CPU.",
              "nanospec distill --model models/SmolLM2-135M-Instruct.Q4_1.gguf --tokens 400k --out said.jsonl\n"
              "train_drafter --parallel models/SmolLM2-135M-Instruct.Q4_1.gguf --data said.jsonl\n",
              drafter_flags(*this, own)};
    return {"train_drafter --parallel",
            "Trains a drafter on hidden states of the model in DIR, which stays as it is, for nanospec --drafter "
            "parallel.\nRuns on the CPU. On what nanospec distill wrote of any model: train_drafter --parallel MODEL "
            "--data FILE.jsonl; with --help it says more.",
            "train_drafter --parallel runs/small --data data/*shakespeare.txt  # takes minutes\n"
            "train_drafter --parallel runs/medium --data data/*shakespeare.txt --parallel_layers 1 --out "
            "runs/one-layer  # takes minutes\n",
            drafter_flags(*this, own)};
  }
  void set_sizes(const DrafterRun& run) override {
    sizes.n_head = run.model.config.n_head;
    sizes.n_embd = run.model.config.n_embd;
    sizes.vocab_size = run.model.config.vocab_size;
    if (lessons) sizes.tokens = run.guesses;
    if (lessons) sizes.window = passage;
    if (sizes.n_kv_head == 0) sizes.n_kv_head = sizes.n_head % 2 == 0 ? 2 : 1;
    if (sizes.n_head % sizes.n_kv_head != 0)
      refuse_usage("the model's {} heads do not share {}: --parallel_kv_heads: give a divisor", sizes.n_head,
                   sizes.n_kv_head);
    if (sizes.n_embd % sizes.n_head != 0)
      refuse_usage("the model's {} channels are not a multiple of its heads, {}: --parallel: choose another model",
                   sizes.n_embd, sizes.n_head);
    if (sizes.head_size() % 2 != 0)
      refuse_usage(
          "the model's heads have an odd number of channels, {}: --parallel: rotary positions turn pairs of them; "
          "choose another model",
          sizes.head_size());
    check_window(run, sizes.ahead, 2, std::to_string(sizes.ahead) + " tokens at once", "--parallel_ahead");
  }
  Metadata settings() const override {
    Metadata settings = metadata();
    settings["n_layer"] = std::to_string(sizes.n_layer);
    settings["kv_heads"] = std::to_string(sizes.n_kv_head);
    return settings;
  }
  int ahead() const override { return sizes.ahead; }
  std::unique_ptr<DrafterTrainer<float>> trainer(const DrafterRun& run, Pool& pool) const override {
    using Ends = Tensors<const float>;
    Ends ends = lessons ? lessons->target->weights().tensors : Ends(run.model.config, run.model.weights.data());
    Array<float> unpacked;
    if (lessons) ends.wte = embedding_of(*lessons->target, unpacked);  // it may be of any number type
    auto drafter =
        std::make_unique<ParallelTrainer<float>>(sizes, run.model.config, ends, usable_rows(run.sizes, sizes.ahead),
                                                 segments, pool, lessons ? lessons->class_of : std::vector<int>());
    const std::vector<TensorSpec> table = parallel_table(sizes);
    drafter->set_weights((lessons ? lessons->initial(table, seed) : initial_weights(table, seed)).data());
    return drafter;
  }
  Metadata metadata() const override { return parallel_metadata(sizes); }
  std::string described() const override {
    return sizes.sequential ? ", one token after the other" : ", " + std::to_string(sizes.ahead) + " tokens at once";
  }
  void add_figures(Json& stats) const override {
    for (const auto& [key, value] : settings()) stats["parallel_" + key] = value;
    stats["parallel_segments"] = segments;
  }
};

}  // namespace nanospec
