// drafters/parallel.h: a drafter that predicts the next K tokens in one forward, from hidden states of the target
// (P-EAGLE, Hui et al. 2026, after EAGLE-3, Li et al. 2025).
//
// In order: its sizes and tensors; weights; activations; how a row enters; the cached stream; the drafters. Its file is
// in files/heads.h, its training in training/train_parallel.h. It has two kinds of rows:
//   the stream  row t reads token t + 1 and the features of position t: the target's hidden states after an early, a
//               middle and a late layer. Each is scaled to mean square 1, since outliers of a late layer may be
//               hundreds of times the rest. The row predicts token t + 2. Its input is
//                 in_proj [e; feat_proj [f_early; f_middle; f_late]],  e the target's embedding of token t + 1
//   the slots   slot d = 1 .. K - 1 of row t stands at position t + d and predicts token t + 2 + d. Neither the token
//               nor the features of its position are known. Its input is in_proj [m; s], with a learned mask m and a
//               learned shared hidden state s, the same for all slots. Slots differ in their position, and in what they
//               see: the stream up to t, and the slots of t before them.
// All rows go through the n_layer layers of a Llama without a vocabulary (model.h); then through the target's own last
// norm and head. These and the target's embedding are frozen, and are not copied.
//
// `sequential` is EAGLE's method with the same tensors. In place of slots there is a path of drafted tokens. In place
// of features the row of a token reads the state of the row before it: the output of its last layer. So each token
// costs a forward.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

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

  int head_size() const { return n_embd / n_head; }
  int slots() const { return ahead - 1; }  // of one row of the stream
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
inline int default_kv_heads(int n_head) { return n_head % 2 == 0 ? 2 : 1; }

// The tensors of one flat array (weights, or gradients), by name.
template <class T>
struct ParallelTensors {
  T *features = nullptr, *input = nullptr, *mask = nullptr, *shared = nullptr;
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
    layers.each(layers_of(s, 0), f);
  }
};
inline std::vector<TensorSpec> parallel_table(const ParallelSizes& s) { return table_of<ParallelTensors>(s); }

// ---------------------------------------------------------------------------------------------------------------
// Weights

template <class T>
struct ParallelWeights {
  ParallelTensors<const T> tensors;
  Weight<T, T> features, input;
  Array<T> memory;       // the panels of these two
  Weights<T, T> layers;  // with the table of angles

  // flat: parallel_table(s); each pack() reads it again. positions: those of the table.
  ParallelWeights(const ParallelSizes& s, int positions, const T* flat, bool training)
      : tensors(s, flat),
        features(tensors.features, kFeatures * s.n_embd, s.n_embd),
        input(tensors.input, 2 * s.n_embd, s.n_embd),
        memory(place_weights<T, T>({&features, &input}, training)),
        layers(layers_of(s, positions), tensors.layers, false, training) {}
  void pack(const Team& team) const {
    features.pack(team);
    input.pack(team);
    layers.pack(team);
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Activations

// What a forward of up to R rows computes: in the layers, and before them.
template <class T>
struct ParallelActivations : Activations<T> {
  int stream;      // most rows of the stream
  bool all_enter;  // if sequential each row has an input of its own; else the stream's rows, and one slot

  ParallelActivations(const ParallelSizes& s, int stream_rows, int rows, int slot_count, bool training, int threads)
      : Activations<T>(layers_of(s, 0), rows, slot_count, training, threads, false),
        stream(stream_rows),
        all_enter(s.sequential) {}

  int E = pad16(2 * this->config.n_embd), X = pad16(kFeatures * this->config.n_embd);  // row strides
  int entering = all_enter ? this->R : stream + 1;

  Rows<T> features = this->rows_of(1, stream, X);  // (stream, 3 C) the target's
  Rows<T> hidden =
      this->rows_of(1, entering, this->C);        // (entering, C) feat_proj of them, or the state of the row above
  Rows<T> input = this->rows_of(1, entering, E);  // (entering, 2 C) the embedding, and hidden
};

// ---------------------------------------------------------------------------------------------------------------
// How a row enters: what forward() does not do

// Every thread of the team calls the functions below. This one computes the stream's hidden states: feat_proj of the
// target's features, a.features (n, 3 C).
template <class T>
void parallel_features(const Team& team, const ParallelSizes& s, const ParallelWeights<T>& w, int n,
                       const ParallelActivations<T>& a) {
  for (int f = 0; f < kFeatures && !s.raw; f++) {
    T* const feature = a.features.data() + f * s.n_embd;
    launch(team, n, rms_norm<T>(feature, a.X, s.n_embd, nullptr, feature, a.X, nullptr));
  }
  matmul(team, n, Matmul<T, T>{a.features.data(), a.X, w.features.forward, a.hidden.data(), a.C});
  team.wait();
}

// The first layer's x of rows first .. first + n - 1: in_proj of their tokens and of a.hidden. With `slot` one row
// more: a slot's.
template <class T>
void parallel_enter(const Team& team, const ParallelSizes& s, const ParallelWeights<T>& w, const T* wte,
                    const int* token, int first, int n, bool slot, const ParallelActivations<T>& a) {
  const int C = s.n_embd;
  T* const input = a.input.at(0, first);
  launch(team, n, JoinInput<T>{token + first, wte, a.hidden.at(0, first), a.C, input, a.E, C});
  if (slot) {
    T* const last = input + size_t(n) * size_t(a.E);
    add(team, w.tensors.mask, last, size_t(C), true);
    add(team, w.tensors.shared, last + C, size_t(C), true);
  }
  matmul(team, n + slot, Matmul<T, T>{input, a.E, w.input.forward, a.x.at(0, first), a.C});
  team.wait();
}

// All slots have the same x: copies row `first` to the n - 1 rows after it.
template <class T>
void spread_slot(const Team& team, const ParallelSizes& s, int first, int n, const ParallelActivations<T>& a) {
  const Range mine = team.share(n - 1);
  for (int i = mine.begin; i < mine.end; i++) std::copy_n(a.x.at(0, first), s.n_embd, a.x.at(0, first + 1 + i));
  team.wait();
}

struct ParallelFile {
  ParallelSizes sizes;
  std::vector<float> weights;  // flat: parallel_table(sizes)
};

// ---------------------------------------------------------------------------------------------------------------
// The cached stream

// Caches the rows of the committed text, and runs the rows that draft behind it. It uses the target's threads, so the
// two must not run at the same time. The cache has room for a window of rows; when it is full its first half is
// dropped. The others keep their positions, of which rotary attention uses only the differences. A drafter may forget:
// it cannot change the text.
class TextStream {
 public:
  const ParallelSizes sizes;

  // most_drafted: how many rows may draft in one forward; as many may be cached behind the text.
  TextStream(const ParallelFile& file, Target& target, int most_drafted)
      : sizes(file.sizes),
        target_(target),
        window_(target.block_size()),
        most_drafted_(most_drafted),
        flat_(file.weights),
        config_(layers_of(sizes, window_ + 2 * most_drafted_)),
        weights_(sizes, config_.block_size, flat_.data(), false),
        a_(sizes, window_, window_ + most_drafted_, pad64(window_ + 2 * most_drafted_), false, target.threads()),
        batch_(window_ + most_drafted_, 1, false),
        kept_(2 + size_t(window_ + most_drafted_)),
        norm_(1, most_drafted_, a_.C),
        logits_(1, most_drafted_, pad16(sizes.vocab_size)) {
    target_.on_threads(1, [&](const Team& team) { weights_.pack(team); });
    begin();
  }
  void begin() {
    tokens_.clear();
    features_.clear();
    forget_all();
  }

  // A forward committed tokens, each with the features of the position before it. If the features cannot be read the
  // stream forgets everything; then it returns false.
  bool commit(const Commit& commit, const TargetRows* rows) {
    if (!rows || !rows->features(commit.rows[0])) {
      begin();
      return false;
    }
    for (int i = 0; i < commit.n; i++) {
      const float* const features = rows->features(commit.rows[i]);
      tokens_.push_back(commit.tokens[i]);
      features_.insert(features_.end(), features, features + kFeatures * sizes.n_embd);
    }
    return true;
  }
  bool pending() const { return !tokens_.empty(); }  // whether committed rows have not been run yet

  // Runs the committed rows, which are then cached, and so many slots behind the last one. The last row and the slots
  // are the outputs.
  void run(int slots) {
    make_room();
    const int n = int(tokens_.size()), X = kFeatures * sizes.n_embd;
    for (int row = 0; row < n; row++) std::copy_n(features_.data() + size_t(row) * X, X, a_.features.at(0, row));
    std::vector<int> token = tokens_;
    token.resize(size_t(n + slots));
    rows_.clear();
    rows_.add_chain(token.data(), n + slots, 0, past_);
    run_rows(n - 1, [&](const Team& team) {
      parallel_features(team, sizes, weights_, n, a_);
      parallel_enter(team, sizes, weights_, embedding_, batch_.token(), 0, n, slots > 0, a_);
      spread_slot(team, sizes, n, slots, a_);
    });
    past_ += n;
    tokens_.clear();
    features_.clear();
  }
  // For the sequential form: runs the rows of a tree in preorder. input_state(row) (C) must first be set to the state
  // of the row above. All rows are outputs.
  float* input_state(int row) { return a_.hidden.at(0, row); }
  void forward(const int* token, const int* depth, const int* end, int n, int /*layers*/) {
    rows_.clear();
    rows_.add_tree(token, depth, end, n, 0, past_);
    run_rows(0, [&](const Team& team) {
      parallel_enter(team, sizes, weights_, embedding_, batch_.token(), 0, n, false, a_);
    });
  }
  // Of the last forward's outputs: the logits (V), and the state (C), which is the last layer's output.
  const float* logits(int row) const { return logits_.at(0, row); }
  const float* state(int row) const { return a_.x.at(a_.L, first_output_ + row); }

  int vocab_size() const { return sizes.vocab_size; }
  int block_size() const { return 1 << 30; }  // rotary positions have no end
  int most_rows() const { return most_drafted_; }
  void sit(int) {}  // of one text
  int past() const { return past_; }
  void rewind(int past) { past_ = past; }
  // These rows of the last forward, ascending, stay cached.
  void keep(const int* rows, int n) {
    move(past_, rows, n);
    past_ += n;
  }

 private:
  // Runs rows_. input(team) fills the first layer's x; the rows from `first_output` on are the outputs.
  template <class Input>
  void run_rows(int first_output, const Input& input) {
    if (!embedding_) embedding_ = embedding_of(target_, unpacked_);
    batch_.upload(rows_);
    first_output_ = first_output;
    const int R = rows_.rows();
    target_.on_threads(R, [&](const Team& team) {
      input(team);
      nanospec::forward(team, config_, weights_.layers, batch_, a_, batch_.forest.rows);
      head_of(target_, team, R - first_output, a_.x.at(a_.L, first_output), a_.C, norm_.data(), logits_.data());
    });
  }
  void make_room() {
    const int n = int(tokens_.size()), half = window_ / 2, X = kFeatures * sizes.n_embd;
    if (n > half) {  // it has not run for long: the cached rows are too far back to be of use
      tokens_.erase(tokens_.begin(), tokens_.end() - half);
      features_.erase(features_.begin(), features_.end() - long(half) * X);
      forget_all();
    } else if (past_ + n > window_) {
      std::vector<int> rows;
      for (int row = past_ - half; row < past_; row++) rows.push_back(row);
      const int dropped = past_ - half;
      move(0, rows.data(), half);
      past_ = half;
      set_first_position(first_ + dropped);
    }
  }
  void forget_all() {
    past_ = 0;
    set_first_position(0);
  }
  // Sets the position of the first cached row.
  void set_first_position(int first) {
    first_ = first;
    const std::vector<float> table =
        rope_table<float>(config_.block_size, config_.head_size(), config_.rope_theta, first);
    weights_.layers.rope.upload(table.data(), table.size());
  }
  void move(int to, const int* rows, int n) {
    const int place[] = {to, n};
    kept_.upload(place, 2);
    kept_.upload(rows, size_t(n), 2);
    const KeepRows<float> op{a_.k.data(),     a_.v.data(), a_.k_layer,        a_.v_layer,
                             sizes.n_kv_head, a_.slots,    sizes.head_size(), kept_.data()};
    target_.on_threads(n, [&](const Team& team) { launch(team, sizes.n_layer * sizes.n_kv_head, op); });
  }

  Target& target_;
  const int window_, most_drafted_;
  const std::vector<float> flat_;
  const Config config_;
  ParallelWeights<float> weights_;
  ParallelActivations<float> a_;
  Batch rows_;  // of the current forward
  DeviceBatch batch_;
  Array<int> kept_;
  Array<float> unpacked_;  // see embedding_of()
  const float* embedding_ = nullptr;
  Rows<float> norm_, logits_;    // of the outputs
  std::vector<int> tokens_;      // (n) committed, not yet run
  std::vector<float> features_;  // (n, 3 C)
  int past_ = 0, first_ = 0, first_output_ = 0;
};

// ---------------------------------------------------------------------------------------------------------------
// The drafter

// `parallel[:DIR]`. A node's distribution depends on its depth alone: output `depth` of the stream gives it. There is
// one forward in each iteration, at the first question. In the first iteration of a text no features are known, and
// there are no candidates.
class Parallel : public DepthDrafter {
 public:
  Parallel(const ParallelFile& file, Target& target) : stream_(file, target, kMostAhead) {
    vocab = target.vocab_size();
  }
  int depths() const override { return stream_.sizes.ahead; }

  void begin(const int*, int) override {
    stream_.begin();
    known_ = false;
    rollback();
  }
  void committed(const Commit& commit) override {
    known_ = false;
    rollback();
    stream_.commit(commit, rows);
  }
  void prepare(const Growth&, const int*, int) override {
    if (known_ || assuming || !stream_.pending()) return;
    stream_.run(stream_.sizes.slots());
    model_forwards++;
    known_ = true;
  }
  const float* at_depth(int depth) override { return known_ ? stream_.logits(depth) : nullptr; }

 private:
  TextStream stream_;
  bool known_ = false;  // whether it has run since the last commit
};

// The sequential form. The stream's last row predicts after the root; then there is a forward for each level of the
// tree. Drafted rows are forgotten when tokens are committed: these run again, with features.
class Sequential : public ModelDrafter<TextStream> {
 public:
  explicit Sequential(std::unique_ptr<TextStream> stream) : ModelDrafter(*stream, 0), stream_(std::move(stream)) {
    base_ = -1;
  }
  void attach(const TargetRows* rows) override { rows_ = rows; }

  void begin(const int*, int) override {
    stream_->begin();
    forget();
    base_ = -1;
  }
  void committed(const Commit& commit) override {
    forget();
    if (!stream_->commit(commit, rows_)) base_ = -1;
  }
  void prepare(const Growth& growth, const int* nodes, int n) override {
    if (stream_->pending() || base_ >= 0) ModelDrafter::prepare(growth, nodes, n);
  }

 private:
  void run_root(int root) override {
    if (stream_->pending()) {
      stream_->rewind(base_ + 1);  // up to the last root
      stream_->run(0);
      model_forwards++;
    }
    base_ = stream_->past() - 1;
    start(root, 0);
  }
  void before(const std::vector<int>& above) override {
    const size_t C = size_t(stream_->sizes.n_embd);
    for (size_t row = 0; row < above.size(); row++)
      std::copy_n(states_.begin() + long(size_t(above[row]) * C), C, stream_->input_state(int(row)));
  }
  void after(int id, int row) override {
    const size_t C = size_t(stream_->sizes.n_embd);
    states_.resize(std::max(states_.size(), size_t(id + 1) * C));
    std::copy_n(stream_->state(row), C, states_.begin() + long(size_t(id) * C));
  }

  std::unique_ptr<TextStream> stream_;
  const TargetRows* rows_ = nullptr;
  std::vector<float> states_;  // (ids, C) the last layer's output
};

}  // namespace nanospec
