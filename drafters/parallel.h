// drafters/parallel.h: a drafter that predicts the next K tokens in one forward, from hidden states of the target
// (P-EAGLE, Hui et al. 2026, after EAGLE-3, Li et al. 2025).
//
// In order: its sizes and tensors; weights; activations; how a row enters; the cached streams; the drafters. Its file
// is in files/heads.h, its training in training/train_parallel.h. It has two kinds of rows:
//   the stream  row t reads token t + 1 and the features of position t: the target's hidden states after an early, a
//               middle and a late layer. Each is scaled to mean square 1, since outliers of a late layer may be
//               hundreds of times the rest. The row predicts token t + 2. Its input is
//                 in_proj [e; feat_proj [f_early; f_middle; f_late]],  e the target's embedding of token t + 1
//   the slots   slot d = 1 .. K - 1 of row t stands at position t + d and predicts token t + 2 + d. Neither the token
//               nor the features of its position are known. Its input is in_proj [m; s], with a learned mask m and a
//               learned shared hidden state s, the same for all slots. Slots differ in their position, and in what they
//               see: the stream up to t, and the slots of t before them.
// All rows go through the n_layer layers of a Llama without a vocabulary (model.h); then through the target's own last
// norm and head. These and the target's embedding are frozen, and are not copied. For a model with many tokens it has a
// head of its own, for N of them and "any other", as Hydra's heads have (hydra.h); then it is held in 4 bits.
//
// `sequential` is EAGLE's method with the same tensors. In place of slots there is a path of drafted tokens. In place
// of features the row of a token reads the state of the row before it: the output of its last layer. So each token
// costs a forward.
#pragma once

#include "drafters/draft_model.h"
#include "drafters/features.h"
#include "drafters/operations.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Sizes and tensors

constexpr int kMostAhead = 16, kMostParallelLayers = 4;

struct ParallelSizes {
  int n_layer = 2, n_head = 0, n_kv_head = 0, n_embd = 0, vocab_size = 0;
  int ahead = 6;            // K, tokens predicted at once; if sequential the length of the paths in training
  bool sequential = false;  // one token after the other
  bool raw = false;         // features are not scaled: for study, since it learns little more than a unigram
  int tokens = 0;           // N of a head of its own; 0: the target's head
  int window = 0;           // rows of a stream in training, and most when drafting; 0: the target's window

  int head_size() const { return n_embd / n_head; }
  int slots() const { return ahead - 1; }  // of one row of the stream
  int classes() const { return tokens > 0 ? tokens + 1 : vocab_size; }
};
// Its layers. positions: so many have a place in the table of angles.
inline Config layers_of(const ParallelSizes& s, int positions) {
  Config c;
  c.n_layer = s.n_layer;
  c.n_head = s.n_head;
  c.n_kv_head = s.n_kv_head;
  c.n_embd = s.n_embd;
  c.block_size = positions;
  c.vocab_size = 0;
  c.n_inner = pad16(8 * s.n_embd / 3);  // the three matrices of SwiGLU are as large as GPT's two
  c.rotary = c.swiglu = true;
  c.center = false;
  c.norm_epsilon = 1e-6f;
  return c;
}

// The tensors of one flat array (weights, or gradients), by name.
template <class T>
struct ParallelTensors {
  T *features = nullptr, *input = nullptr, *mask = nullptr, *shared = nullptr, *guess = nullptr;
  Tensors<T> layers;

  ParallelTensors() = default;
  ParallelTensors(const ParallelSizes& sizes, T* flat) { point_into(flat, *this, sizes); }

  // See Tensors::each(). Matrices are (in, out). Inputs of in_proj: the embedding, then the hidden state.
  template <class F>
  void each(const ParallelSizes& s, F f) {
    const int C = s.n_embd;
    const float init_std = 0.02f;
    f("feat_proj.weight", {kFeatures * C, C}, init_std, features);
    f("in_proj.weight", {2 * C, C}, init_std, input);
    f("mask", {C}, 1, mask);
    f("shared", {C}, 1, shared);
    if (s.tokens > 0) f("guess.weight", {s.classes(), C}, init_std, guess);
    layers.each(layers_of(s, 0), f);
  }
};
inline std::vector<TensorSpec> parallel_table(const ParallelSizes& s) { return table_of<ParallelTensors>(s); }
using ParallelFile = DrafterFile<ParallelSizes>;

// ---------------------------------------------------------------------------------------------------------------
// Weights

template <class T, class W>
struct ParallelWeights {
  ParallelTensors<const T> tensors;
  Weight<T, W> features, input, guess;
  Weights<T, W> layers;  // with the table of angles
  Array<W> memory;       // all panels

  // flat: parallel_table(s); each pack() reads it again. positions: those of the table.
  ParallelWeights(const ParallelSizes& s, int positions, const T* flat, bool training)
      : tensors(s, flat),
        features(tensors.features, kFeatures * s.n_embd, s.n_embd),
        input(tensors.input, 2 * s.n_embd, s.n_embd) {
    if (s.tokens > 0) guess = {tensors.guess, s.n_embd, s.classes(), true};
    layers.tensors = tensors.layers;
    std::vector<Weight<T, W>*> all = {&features, &input};
    for (Weight<T, W>* weight : layers.list(layers_of(s, positions), false)) all.push_back(weight);
    all.push_back(&guess);
    hold_as(s.tokens > 0 ? Dtype::q4_0 : Dtype::fp32, all);
    memory = place_weights(all, training);
  }
  void pack(const Team& team) const {
    features.pack(team);
    input.pack(team);
    layers.pack(team);
    guess.pack(team);
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Activations

// What a forward of up to R rows computes: in the layers, and before them.
template <class T>
struct ParallelActivations : Activations<T> {
  int stream, entering;  // most rows of the stream; rows with an input: if sequential all, else the stream and a slot

  ParallelActivations(const ParallelSizes& s, int stream_rows, int rows, int slot_count, bool training, int threads)
      : Activations<T>(layers_of(s, 0), rows, slot_count, training, threads, false),
        stream(stream_rows),
        entering(s.sequential ? rows : stream_rows + 1) {}

  int E = pad16(2 * this->config.n_embd), X = pad16(kFeatures * this->config.n_embd);  // row strides

  Rows<T> features = this->rows_of(1, stream, X);  // (stream, 3 C) the target's
  Rows<T> hidden =
      this->rows_of(1, entering, this->C);        // (entering, C) feat_proj of them, or the state of the row above
  Rows<T> input = this->rows_of(1, entering, E);  // (entering, 2 C) the embedding, and hidden
};

// ---------------------------------------------------------------------------------------------------------------
// How a row enters: what forward() does not do

// Every thread of the team calls the functions below.

// The first layer's x of rows first .. first + n - 1: in_proj of their tokens and of a.hidden. With `slot` one row
// more: a slot's.
template <class T, class W>
void parallel_enter(const Team& team, const ParallelSizes& s, const ParallelWeights<T, W>& w, const T* wte,
                    const int* token, int first, int n, bool slot, const ParallelActivations<T>& a) {
  const int C = s.n_embd;
  T* const input = a.input.at(0, first);
  launch(team, n, JoinInput<T>{token + first, wte, a.hidden.at(0, first), a.C, input, a.E, C});
  if (slot) {
    T* const last = input + size_t(n) * size_t(a.E);
    add(team, w.tensors.mask, last, size_t(C), true);
    add(team, w.tensors.shared, last + C, size_t(C), true);
  }
  matmul(team, n + slot, product(View<T>{input, a.E}, w.input.forward, View<T>{a.x.at(0, first), a.C}));
  team.wait();
}

// All slots have the same x: copies it to n rows, from `first` on.
template <class T>
void spread_slot(const Team& team, const T* x, int first, int n, const ParallelActivations<T>& a) {
  const Range mine = team.share(n);
  for (int i = mine.begin; i < mine.end; i++) std::copy_n(x, a.config.n_embd, a.x.at(0, first + i));
  team.wait();
}

// ---------------------------------------------------------------------------------------------------------------
// The cached streams

// Caches the rows of the committed texts, one on each seat of the target, and runs the rows that draft behind them. It
// uses the target's threads, so the two must not run at the same time. A seat has room for a window of rows; when it is
// full, its last half begins a new window, and runs again. A drafter may forget: it cannot change the text.
class Streams {
 public:
  const ParallelSizes sizes;
  const std::vector<int> token;  // (N) or none

  // most_drafted: how many rows of a text may draft in one forward; as many may be cached behind the text.
  Streams(const ParallelFile& file, Target& target, int most_drafted)
      : sizes(file.sizes), token(file.token), target_(target), most_drafted_(most_drafted), flat_(file.weights) {
    target_.on_threads(1, [&](const Team& team) { weights_.pack(team); });
  }

  // The seat of which the functions below speak.
  void sit(int seat) { seat_ = &seats_[size_t(seat)]; }

  void begin(int seat) { seats_[size_t(seat)] = {}; }
  // A forward committed tokens, each with the features of the position before it. If the features cannot be read the
  // stream forgets everything; then it returns false.
  bool commit(int seat, const Commit& commit, const TargetRows* rows) {
    sit(seat);
    if (!rows || !rows->features(commit.rows[0])) {
      begin(seat);
      return false;
    }
    for (int i = 0; i < commit.n; i++) {
      const float* const features = rows->features(commit.rows[i]);
      seat_->tokens.push_back(commit.tokens[i]);
      seat_->features.insert(seat_->features.end(), features, features + kFeatures * sizes.n_embd);
    }
    make_room();
    return true;
  }
  int pending() const { return int(seat_->tokens.size()) - seat_->ran; }  // committed rows that have not been run yet

  // Runs the committed rows of these seats, which are then cached, and so many slots behind the last one of each. A
  // seat's last row and its slots are its outputs.
  void run(const std::vector<int>& seats, int slots) {
    rows_.clear();
    std::vector<int> outputs;  // rows
    for (int seat : seats) {
      sit(seat);
      const int X = kFeatures * sizes.n_embd, n = pending();
      if (rows_.rows() + n + slots > all_rows_) throw std::logic_error("too many rows for the streams");
      seat_->past = seat_->ran;  // drafted rows are forgotten
      seat_->first_row = rows_.rows();
      seat_->first_output = int(outputs.size());
      for (int row = n - 1; row < n + slots; row++) outputs.push_back(seat_->first_row + row);
      for (int row = 0; row < n; row++)
        std::copy_n(seat_->features.data() + size_t(seat_->ran + row) * size_t(X), X,
                    a_.features.at(0, seat_->first_row + row));
      std::vector<int> token(seat_->tokens.begin() + seat_->ran, seat_->tokens.end());
      token.resize(size_t(n + slots));
      rows_.add_chain(token.data(), n + slots, first_slot(), seat_->past);
    }
    const auto input = [&](const Team& team) {
      for (int seat : seats) {
        const Seat& its = seats_[size_t(seat)];
        const int n = int(its.tokens.size()) - its.ran;
        project_features(team, n, sizes.n_embd, sizes.raw, view(a_.features, its.first_row), weights_.features,
                         view(a_.hidden, its.first_row));
        parallel_enter(team, sizes, weights_, embedding_, batch_.token(), its.first_row, n, slots > 0, a_);
        spread_slot(team, a_.x.at(0, its.first_row + n), its.first_row + n + 1, slots - 1, a_);
      }
    };
    run_rows(outputs, input);
    for (int seat : seats) {
      sit(seat);
      seat_->past += pending();
      seat_->ran = int(seat_->tokens.size());
    }
  }
  // Of the seat's outputs of the last forward: the logits (classes), and the state (C), which is the last layer's
  // output.
  const float* logits(int row) const { return logits_.at(0, seat_->first_output + row); }
  const float* state(int row) const { return outputs_.at(0, seat_->first_output + row); }

  // For the sequential form, as a Target's: the rows of trees. input_state(row) (C) of each row must be set to the
  // state of the row above before they run. All rows are outputs.
  int vocab_size() const { return sizes.vocab_size; }
  int block_size() const { return 1 << 30; }  // rotary positions have no end
  int most_rows() const { return most_drafted_; }
  int past() const { return seat_->past; }
  void rewind(int past) { seat_->past = past; }
  void clear_rows() { rows_.clear(); }
  void add_tree(const int* token, const int* depth, const int* end, int n) {
    seat_->first_row = seat_->first_output = rows_.rows();
    rows_.add_tree(token, depth, end, n, first_slot(), seat_->past);
  }
  float* input_state(int row) { return a_.hidden.at(0, seat_->first_row + row); }
  void run_rows(int n, int /*layers*/) {
    const auto input = [&](const Team& team) {
      parallel_enter(team, sizes, weights_, embedding_, batch_.token(), 0, n, false, a_);
    };
    run_rows(numbers_to(n), input);
  }
  // These rows of the last forward, ascending, stay cached.
  void keep(const int* rows, int n) {
    const int place[] = {first_slot() + seat_->past, n};
    kept_.upload(place, 2);
    kept_.upload(rows, size_t(n), 2);
    const KeepRows<float> op{a_.k.data(),     a_.v.data(), a_.k_layer,        a_.v_layer,
                             sizes.n_kv_head, a_.slots,    sizes.head_size(), kept_.data()};
    target_.on_threads(n, [&](const Team& team) { launch(team, sizes.n_layer * sizes.n_kv_head, op); });
    seat_->past += n;
  }

 private:
  // A text's window.
  struct Seat {
    std::vector<int> tokens;              // committed
    std::vector<float> features;          // (tokens, 3 C)
    int ran = 0, past = 0;                // how many of them have run; cached rows, drafted ones among them
    int first_row = 0, first_output = 0;  // in the last forward
  };
  int first_slot() const { return int(seat_ - seats_.data()) * slots_; }
  void make_room() {
    const size_t half = size_t(window_ / 2), X = size_t(kFeatures * sizes.n_embd);
    if (int(seat_->tokens.size()) <= window_) return;
    seat_->tokens.erase(seat_->tokens.begin(), seat_->tokens.end() - long(half));
    seat_->features.erase(seat_->features.begin(), seat_->features.end() - long(half * X));
    seat_->ran = seat_->past = 0;
  }
  // Runs rows_. input(team) fills the first layer's x; outputs: their rows.
  template <class Input>
  void run_rows(const std::vector<int>& outputs, const Input& input) {
    if (!embedding_) embedding_ = embedding_of(target_, unpacked_);
    batch_.upload(rows_);
    target_.on_threads(rows_.rows(), [&](const Team& team) {
      input(team);
      nanospec::forward(team, config_, weights_.layers, batch_, a_, batch_.forest.rows);
      const int n = int(outputs.size());
      const Range mine = team.share(n);
      for (int i = mine.begin; i < mine.end; i++)
        std::copy_n(a_.x.at(a_.L, outputs[size_t(i)]), a_.C, outputs_.at(0, i));
      team.wait();
      const Panels<AnyNumber>& head = sizes.tokens > 0 ? weights_.guess.forward : target_.weights().head.forward;
      head_of(target_, head, team, n, outputs_.data(), a_.C, outputs_.at(1, 0), view(logits_, 0));
    });
  }

  Target& target_;
  const int most_drafted_;
  const int window_ = sizes.window > 0 ? std::min(sizes.window, target_.block_size()) : target_.block_size();
  const int slots_ = pad64(window_ + 2 * most_drafted_);
  const std::vector<float> flat_;
  const Config config_ = layers_of(sizes, window_ + 2 * most_drafted_);
  ParallelWeights<float, AnyNumber> weights_{sizes, config_.block_size, flat_.data(), false};
  std::vector<Seat> seats_ = std::vector<Seat>(size_t(target_.seats()));
  Seat* seat_ = seats_.data();
  const int all_rows_ = window_ + most_drafted_ + 2 * most_drafted_ * (target_.seats() - 1);  // most of a forward
  ParallelActivations<float> a_{sizes, all_rows_, all_rows_, target_.seats() * slots_, false, target_.pool()->size()};
  Batch rows_;  // of the current forward
  DeviceBatch batch_{all_rows_, target_.seats(), false};
  Array<int> kept_{2 + size_t(most_drafted_)};
  Array<float> unpacked_;  // see embedding_of()
  const float* embedding_ = nullptr;
  // Of the outputs: the state, and its norm; the logits.
  Rows<float> outputs_ = a_.rows_of(2, target_.seats() * most_drafted_, a_.C);
  Rows<float> logits_ = a_.once(target_.seats() * most_drafted_, pad16(sizes.classes()));
};

// ---------------------------------------------------------------------------------------------------------------
// The drafter

// `parallel[:DIR]`. A node's distribution depends on its depth alone: output `depth` of the stream gives it. There is
// one forward in each iteration, at the first question. In the first iteration of a text no features are known, and
// there are no candidates.
class Parallel : public DepthDrafter {
 public:
  explicit Parallel(std::shared_ptr<Streams> streams, int seat = 0)
      : DepthDrafter(streams->vocab_size(), streams->sizes.ahead, streams->token),
        streams_(std::move(streams)),
        seat_(seat) {}
  std::unique_ptr<Drafter> another(int seat) const override { return named<Parallel>(name, streams_, seat); }

  void begin(const int*, int) override {
    streams_->begin(seat_);
    known_ = false;
    rollback();
  }
  void committed(const Commit& commit) override {
    known_ = false;
    rollback();
    streams_->commit(seat_, commit, rows);
  }
  void prepare(const Growth& growth, const int*, int) override { prepare_all({{this, &growth, {}}}); }
  bool prepare_all(const std::vector<Expansion>& all) override {
    std::vector<Parallel*> asked;
    for (const Expansion& e : all) {
      auto* const its = static_cast<Parallel*>(e.drafter);
      streams_->sit(its->seat_);
      if (its->known_ || its->assuming || streams_->pending() == 0) continue;
      if (streams_->pending() > kMostAhead) run({its});  // it has not run for long
      else asked.push_back(its);
    }
    if (!asked.empty()) run(asked);
    return true;
  }
  const float* at_depth(int depth) override { return known_ ? kept_at(depth) : nullptr; }

 private:
  void run(const std::vector<Parallel*>& all) {
    std::vector<int> seats;
    for (const Parallel* its : all) seats.push_back(its->seat_);
    streams_->run(seats, streams_->sizes.slots());
    for (Parallel* its : all) {
      its->known_ = true;
      streams_->sit(its->seat_);
      for (int d = 0; d < depths; d++) std::copy_n(streams_->logits(d), classes(), its->kept_at(d));
    }
  }

  const std::shared_ptr<Streams> streams_;  // of all texts
  const int seat_;
  bool known_ = false;  // whether it has run since the last commit
};

// The sequential form. The stream's last row predicts after the root; then there is a forward for each level of the
// tree. Drafted rows are forgotten when tokens are committed: these run again, with features.
class Sequential : public ModelDrafter<Streams> {
 public:
  explicit Sequential(std::shared_ptr<Streams> streams, int its_seat = 0)
      : ModelDrafter(*streams, 0, its_seat), streams_(std::move(streams)) {}
  std::unique_ptr<Drafter> another(int seat) const override { return named<Sequential>(name, streams_, seat); }
  void attach(const TargetRows* rows) override { rows_ = rows; }

  void begin(const int*, int) override {
    streams_->begin(seat_);
    forget();
    base_ = -1;
  }
  void committed(const Commit& commit) override {
    forget();
    if (!streams_->commit(seat_, commit, rows_)) base_ = -1;
  }
  bool prepare_all(const std::vector<Expansion>& all) override {
    std::vector<Expansion> can;  // those with a stream
    for (const Expansion& e : all) {
      const auto& its = *static_cast<Sequential*>(e.drafter);
      streams_->sit(its.seat_);
      if (its.base_ >= 0 || streams_->pending() > 0) can.push_back(e);
    }
    return ModelDrafter::prepare_all(can);
  }

 private:
  void run_root(int root) override {
    if (streams_->pending() > 0) streams_->run({seat_}, 0);
    base_ = streams_->past() - 1;
    start(root, 0);
  }
  void before(const std::vector<int>& above) override {
    const size_t C = size_t(streams_->sizes.n_embd);
    for (size_t row = 0; row < above.size(); row++)
      std::copy_n(states_.begin() + long(size_t(above[row]) * C), C, streams_->input_state(int(row)));
  }
  void after(int id, int row) override {
    const size_t C = size_t(streams_->sizes.n_embd);
    states_.resize(std::max(states_.size(), size_t(id + 1) * C));
    std::copy_n(streams_->state(row), C, states_.begin() + long(size_t(id) * C));
  }

  const std::shared_ptr<Streams> streams_;
  const TargetRows* rows_ = nullptr;
  std::vector<float> states_;  // (ids, C) the last layer's output
};

}  // namespace nanospec
