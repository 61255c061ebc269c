// drafters/parallel.h: a drafter that says the next K tokens in one pass, from what the target's layers thought of the
// text (P-EAGLE, Hui et al. 2026, after EAGLE-3, Li et al. 2025).
//
// In order: its sizes and tensors; weights; activations; forward; the stream, cached; the drafters. Its file is in
// files/heads.h, its training in train_parallel.h. Its rows are of two kinds:
//   the stream  row t knows token t + 1, and the features of position t: the target's hidden states after an early, a
//               middle and a late layer, each scaled to mean square 1 on its own, since a late layer's outliers may
//               be hundreds of times the rest. It says token t + 2. Its input is
//                 in_proj [e; feat_proj [f_early; f_middle; f_late]],  e the target's embedding of token t + 1
//   the slots   slot d = 1 .. K - 1 hangs from a row t of the stream at position t + d, and says token t + 2 + d.
//               Neither token nor features of its place are known: its input is in_proj [m; s] with a learned mask m
//               and a learned shared hidden state s, the same for all slots. What tells them apart is their position,
//               and what they see: the stream up to t, and the shallower slots of t.
// Through both go n_layer layers of RMSNorm, attention with rotary positions and shared key/value heads, and SwiGLU, as
// Llama's; then the target's own final norm and head, which are frozen, like its embedding, and not copied.
//
// `sequential` is EAGLE's way with the same tensors: what hangs from the stream is a path of drafted tokens, and the
// row of a token has in the features' place the state of the row before it, its last layer's output. Each token then
// costs a pass of its own.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "drafters/draft_model.h"
#include "target.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Sizes and tensors

constexpr int kMostAhead = 16, kMostParallelLayers = 4;

struct ParallelSizes {
  int n_layer = 2, n_head = 0, n_kv_head = 0, n_embd = 0, vocab_size = 0;
  int ahead = 6;            // K, that it says at once; of the sequential one those of a path that it is trained for
  bool sequential = false;  // tokens one after the other
  bool raw = false;         // features as they are: for study, it learns little more than a unigram

  int head_size() const { return n_embd / n_head; }
  int qkv() const { return (n_head + 2 * n_kv_head) * head_size(); }
  int inner() const { return pad16(8 * n_embd / 3); }  // of SwiGLU: three such matrices weigh as much as GPT's two
  int slots() const { return ahead - 1; }              // rows that hang from one of the stream
};
inline int default_kv_heads(int n_head) { return n_head % 2 == 0 ? 2 : 1; }

// Matrices are (in, out). gate_up: SwiGLU's two in one product, the gate first. in_proj's rows: the embedding's, then
// the hidden state's.
inline std::vector<TensorSpec> parallel_table(const ParallelSizes& s) {
  std::vector<TensorSpec> table;
  const int C = s.n_embd;
  const float init_std = 0.02f, residual_std = float(0.02 / std::sqrt(2.0 * s.n_layer));
  add_tensor(table, "feat_proj.weight", {kFeatures * C, C}, init_std);
  add_tensor(table, "in_proj.weight", {2 * C, C}, init_std);
  add_tensor(table, "mask", {C}, 1);
  add_tensor(table, "shared", {C}, 1);
  for (int l = 0; l < s.n_layer; l++) {
    const std::string h = "h." + std::to_string(l) + ".";
    add_tensor(table, h + "norm_1.weight", {C}, -1);
    add_tensor(table, h + "attn.qkv.weight", {C, s.qkv()}, init_std);
    add_tensor(table, h + "attn.proj.weight", {C, C}, residual_std);
    add_tensor(table, h + "norm_2.weight", {C}, -1);
    add_tensor(table, h + "mlp.gate_up.weight", {C, 2 * s.inner()}, init_std);
    add_tensor(table, h + "mlp.down.weight", {s.inner(), C}, residual_std);
  }
  return table;
}

// The tensors of one flat array (weights, or gradients), by name.
template <class T>
struct ParallelTensors {
  struct Layer {
    T *norm_1, *qkv, *proj, *norm_2, *gate_up, *down;
  };
  T *features, *input, *mask, *shared;
  std::vector<Layer> layers;

  ParallelTensors(const std::vector<TensorSpec>& table, T* flat) {
    size_t next = 0;
    const auto take = [&] { return flat + table[next++].offset; };
    features = take(), input = take(), mask = take(), shared = take();
    while (next < table.size()) {
      T* tensor[6];
      for (T*& one : tensor) one = take();
      layers.push_back({tensor[0], tensor[1], tensor[2], tensor[3], tensor[4], tensor[5]});
    }
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Weights

template <class T>
struct ParallelWeights {
  struct Layer {
    Weight<T, T> qkv, proj, gate_up, down;
  };
  ParallelTensors<const T> plain;
  Weight<T, T> features, input;
  std::vector<Layer> layers;
  Array<T> memory;  // all panels

  // flat: parallel_table(s); read again at each pack().
  ParallelWeights(const ParallelSizes& s, const T* flat, bool training)
      : plain(parallel_table(s), flat),
        features(plain.features, kFeatures * s.n_embd, s.n_embd, false),
        input(plain.input, 2 * s.n_embd, s.n_embd, false) {
    const int C = s.n_embd, F = s.inner();
    for (const auto& layer : plain.layers)
      layers.push_back({Weight<T, T>(layer.qkv, C, s.qkv(), false), Weight<T, T>(layer.proj, C, C, false),
                        Weight<T, T>(layer.gate_up, C, 2 * F, false), Weight<T, T>(layer.down, F, C, false)});
    for (int round = 0; round < 2; round++) {  // to count, then to hand out
      size_t size = 0;
      const auto place = [&](Panels<T>& panels) {
        if (memory.size()) panels.data = memory.data() + size;
        size += panels.size();
      };
      for_each(*this, [&](Weight<T, T>& weight) {
        place(weight.forward);
        if (training) place(weight.transposed);
      });
      if (round == 0) memory = Array<T>(size);
    }
  }
  void pack(const Team& team) const {
    for_each(*this, [&](const Weight<T, T>& weight) { weight.pack(team); });
  }

 private:
  template <class Self, class F>
  static void for_each(Self& self, F f) {
    for (auto* weight : {&self.features, &self.input}) f(*weight);
    for (auto& layer : self.layers)
      for (auto* weight : {&layer.qkv, &layer.proj, &layer.gate_up, &layer.down}) f(*weight);
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Activations

// What up to R rows compute on their way. Drafting keeps one layer's, over and over, but all layers' keys and values;
// training keeps every layer's for the backward pass, but what it makes again there.
template <class T>
struct ParallelActivations {
  struct Layer {
    T *x, *norm_1, *rstd_1, *qkv, *att, *log_sum, *mid, *norm_2, *rstd_2, *gate_up, *act, *next;
    KeyValues<T> cache;
  };
  int C, E, X, Q, G, F, slots;  // row strides, padded to 16: C, 2 C, 3 C, qkv, 2 inner, inner; slots of the cache
  bool training;
  size_t kv_layer;                   // numbers in one layer's keys, or values
  Array<T> features, hidden, input;  // (rows, 3 C), (rows, C), (rows, 2 C)
  Array<T> x, norm_1, rstd_1, qkv, att, log_sum, mid, norm_2, rstd_2, gate_up, act, k, v, scratch;

  // `stream`: most rows that come from features; they and a slot, and of a sequential one all, have an input.
  ParallelActivations(const ParallelSizes& s, int stream, int rows, int slot_count, bool keep_layers)
      : C(pad16(s.n_embd)),
        E(pad16(2 * s.n_embd)),
        X(pad16(kFeatures * s.n_embd)),
        Q(pad16(s.qkv())),
        G(pad16(2 * s.inner())),
        F(pad16(s.inner())),
        slots(slot_count),
        training(keep_layers),
        rows_(size_t(rows)),
        n_head_(size_t(s.n_head)),
        head_size_(s.head_size()) {
    const size_t R = rows_, L = keep_layers ? s.n_layer : 1, n = s.n_layer;
    const auto make = [](size_t size) { return Array<T>(size + 16); };  // a tile may read up to 15 numbers past a row
    kv_layer = size_t(s.n_kv_head) *
               std::max(KeyValues<T>::key_numbers(slots, head_size_), KeyValues<T>::value_numbers(slots, head_size_));
    const size_t entering = s.sequential ? R : size_t(stream) + 1;
    features = make(size_t(stream) * X), hidden = make(entering * C), input = make(entering * E);
    x = make((keep_layers ? L + 1 : 1) * R * C), mid = make(L * R * C);
    norm_1 = make(R * C), norm_2 = make(R * C), rstd_1 = make(L * R), rstd_2 = make(L * R);
    qkv = make(L * R * Q), att = make(L * R * C), log_sum = make(L * R * n_head_);
    gate_up = make(L * R * G), act = make(R * F);
    k = make(n * kv_layer), v = make(n * kv_layer);
    if (const size_t size = attention_scratch_size<T>(rows, s.n_head, head_size_, slots, keep_layers, false))
      scratch = make(size);
  }
  // Of the rows from `first` on.
  Layer layer(int l, int first) const {
    const size_t i = training ? l : 0, f = first, r = i * rows_ + f;
    return {x.data() + r * C,
            norm_1.data() + f * C,
            rstd_1.data() + r,
            qkv.data() + r * Q,
            att.data() + r * C,
            log_sum.data() + r * n_head_,
            mid.data() + r * C,
            norm_2.data() + f * C,
            rstd_2.data() + r,
            gate_up.data() + r * G,
            act.data() + f * F,
            x.data() + (training ? r + rows_ : f) * C,
            KeyValues<T>{k.data() + size_t(l) * kv_layer, v.data() + size_t(l) * kv_layer, slots, head_size_}};
  }

 private:
  size_t rows_, n_head_;
  int head_size_;
};

// ---------------------------------------------------------------------------------------------------------------
// Forward

// input (R, 2 C) = [e; h], e the embedding of the row's token scaled to mean square 1, h the hidden state beside it.
template <class T>
struct JoinInput {
  const int* token;
  const T* wte;     // (V, C) the target's
  const T* hidden;  // (R, hidden_row)
  int hidden_row;
  T* input;
  int input_row, channels;
  template <class G>
  HD void operator()(const G& g, int row) const {
    T* out = input + size_t(row) * input_row;
    RmsNorm<T>{wte + size_t(token[row]) * channels, 0, channels, nullptr, out, 0, nullptr}(g, 0);
    const T* h = hidden + size_t(row) * hidden_row;
    T* beside = out + channels;
    const int n = channels;
    g.each(n, [=](int c) { beside[c] = h[c]; });
  }
};

// y = x, R rows of C numbers, from one row if from_row is 0.
template <class T>
struct CopyRow {
  const T* from;
  int from_row;
  T* to;
  int to_row, channels;
  template <class G>
  HD void operator()(const G& g, int row) const {
    const T* a = from + size_t(row) * from_row;
    T* out = to + size_t(row) * to_row;
    g.each(channels, [=](int c) { out[c] = a[c]; });
  }
};

// Every thread of the team calls these functions. First the stream's hidden states: a.features (n, 3 C), as the target
// left them, through feat_proj.
template <class T>
void parallel_features(const Team& team, const ParallelSizes& s, const ParallelWeights<T>& w, int n,
                       const ParallelActivations<T>& a) {
  for (int f = 0; f < kFeatures && !s.raw; f++) {
    T* const feature = a.features.data() + f * s.n_embd;
    launch(team, n, RmsNorm<T>{feature, a.X, s.n_embd, nullptr, feature, a.X, nullptr});
  }
  matmul(team, n, Matmul<T, T>{a.features.data(), a.X, w.features.forward, a.hidden.data(), a.C});
  team.wait();
}

// Rows first .. first + n - 1: their tokens and a.hidden, through in_proj, to the first layer's x. slot: one row more,
// the input of a slot.
template <class T>
void parallel_enter(const Team& team, const ParallelSizes& s, const ParallelWeights<T>& w, const T* wte,
                    const int* token, int first, int n, bool slot, const ParallelActivations<T>& a) {
  const int C = s.n_embd;
  T* const input = a.input.data() + size_t(first) * size_t(a.E);
  launch(team, n, JoinInput<T>{token + first, wte, a.hidden.data() + size_t(first) * a.C, a.C, input, a.E, C});
  if (slot) {
    T* const last = input + size_t(n) * size_t(a.E);
    launch(team, 1, CopyRow<T>{w.plain.mask, 0, last, 0, C});
    launch(team, 1, CopyRow<T>{w.plain.shared, 0, last + C, 0, C});
  }
  matmul(team, n + slot, Matmul<T, T>{input, a.E, w.input.forward, a.layer(0, first).x, a.C});
  team.wait();
}

// All slots begin alike: row `first` of x to the n - 1 rows after it.
template <class T>
void spread_slot(const Team& team, const ParallelSizes& s, int first, int n, const ParallelActivations<T>& a) {
  T* const slot = a.layer(0, first).x;
  launch(team, n - 1, CopyRow<T>{slot, 0, slot + a.C, a.C, s.n_embd});
}

template <class T>
Attention<T> parallel_attention(const ParallelSizes& s, const Forest& forest, int first,
                                const ParallelActivations<T>& a, int l) {
  const auto whole = a.layer(l, 0);
  return {forest,      s.n_head,  s.n_kv_head, s.head_size(), whole.qkv, a.Q,
          whole.cache, whole.att, a.C,         whole.log_sum, {},        first};
}
template <class T>
Rope<T> parallel_rope(const ParallelSizes& s, const Forest& forest, int first, T* qkv, int qkv_row, const T* table,
                      bool back) {
  return {forest, first, qkv, qkv_row, s.n_head + s.n_kv_head, s.head_size(), table, back};
}

// The layers, for the rows of one root from `first` on: those before them were run earlier, with the same past, and
// their keys and values are cached. rope: rope_table().
template <class T>
void parallel_layers(const Team& team, const ParallelSizes& s, const ParallelWeights<T>& w, const Forest& forest,
                     int first, const T* rope, const ParallelActivations<T>& a) {
  const int R = forest.rows - first, C = s.n_embd;
  for (int l = 0; l < s.n_layer; l++) {
    const auto y = a.layer(l, first);
    const auto& plain = w.plain.layers[size_t(l)];
    const auto& packed = w.layers[size_t(l)];
    launch(team, R, RmsNorm<T>{y.x, a.C, C, plain.norm_1, y.norm_1, a.C, y.rstd_1});
    matmul(team, R, Matmul<T, T>{y.norm_1, a.C, packed.qkv.forward, y.qkv, a.Q});
    team.wait();
    launch(team, R, parallel_rope(s, forest, first, a.layer(l, 0).qkv, a.Q, rope, false));
    const Attention<T> heads = parallel_attention(s, forest, first, a, l);
    attention(team, heads, a.scratch.data(), a.slots);
    matmul(team, R, Matmul<T, T>{y.att, a.C, packed.proj.forward, y.mid, a.C},
           JoinResidual<T>{y.x, y.mid, a.C, C, nullptr, {}});
    team.wait();
    launch(team, R, RmsNorm<T>{y.mid, a.C, C, plain.norm_2, y.norm_2, a.C, y.rstd_2});
    matmul(team, R, Matmul<T, T>{y.norm_2, a.C, packed.gate_up.forward, y.gate_up, a.G});
    team.wait();
    launch(team, R, SwiGlu<T>{y.gate_up, a.G, s.inner(), y.act, a.F});
    matmul(team, R, Matmul<T, T>{y.act, a.F, packed.down.forward, y.next, a.C},
           JoinResidual<T>{y.mid, y.next, a.C, C, nullptr, {}});
    team.wait();
  }
}

struct ParallelFile {
  ParallelSizes sizes;
  std::vector<float> weights;  // flat: parallel_table(sizes)
};

// ---------------------------------------------------------------------------------------------------------------
// The stream, cached

// What the text has committed so far, and passes of rows that draft behind it, on the target's threads: the two take
// turns. The cache is full at a window of rows; then its first half goes, and what stays keeps its positions: rotary
// attention knows their differences alone. A drafter's cache may forget, since it decides no text.
class TextStream {
 public:
  const ParallelSizes sizes;

  // rows_behind: the most that draft in one pass; as many may be cached behind the text.
  TextStream(const ParallelFile& file, Target& target, int rows_behind)
      : sizes(file.sizes),
        target_(target),
        window_(target.block_size()),
        behind_(rows_behind),
        flat_(file.weights),
        weights_(sizes, flat_.data(), false),
        a_(sizes, window_, window_ + behind_, pad64(window_ + 2 * behind_), false),
        pass_(window_ + behind_, 1, false),
        kept_(size_t(window_ + behind_)),
        norm_(size_t(behind_) * size_t(a_.C) + 16),
        logits_(size_t(behind_) * size_t(pad16(sizes.vocab_size)) + 16) {
    target_.beside(1, [&](const Team& team) { weights_.pack(team); });
    begin();
  }
  void begin() {
    tokens_.clear(), features_.clear();
    forget_all();
  }

  // A pass committed n tokens; features: (n) pointers to (3 C), of the positions before them.
  void commit(const int* tokens, const float* const* features, int n) {
    for (int i = 0; i < n; i++) {
      tokens_.push_back(tokens[i]);
      features_.insert(features_.end(), features[i], features[i] + kFeatures * sizes.n_embd);
    }
  }
  bool waiting() const { return !tokens_.empty(); }  // whether rows of the stream are to be run

  // Runs the rows that were committed, and so many slots behind the last; the stream's are cached then. Its last row
  // and the slots speak.
  void run(int slots) {
    make_room();
    const int n = int(tokens_.size()), X = kFeatures * sizes.n_embd;
    for (int row = 0; row < n; row++)
      std::copy_n(features_.data() + size_t(row) * X, X, a_.features.data() + size_t(row) * a_.X);
    std::vector<int> token = tokens_;
    token.resize(size_t(n + slots));
    rows_.clear();
    rows_.add_chain(token.data(), n + slots, 0, past_);
    pass(n - 1, [&](const Team& team) {
      parallel_features(team, sizes, weights_, n, a_);
      parallel_enter(team, sizes, weights_, target_.embedding(), pass_.token(), 0, n, slots > 0, a_);
      spread_slot(team, sizes, n, slots, a_);
    });
    past_ += n;
    tokens_.clear(), features_.clear();
  }
  // Of the sequential one: the rows of a tree, in preorder, each with the state of the row above it, which has been set
  // for it before, (C).
  float* state_above(int row) { return a_.hidden.data() + size_t(row) * size_t(a_.C); }
  void forward(const int* token, const int* depth, const int* end, int n, int /*layers*/) {
    rows_.clear();
    rows_.add_tree(token, depth, end, n, 0, past_);
    pass(0, [&](const Team& team) {
      parallel_enter(team, sizes, weights_, target_.embedding(), pass_.token(), 0, n, false, a_);
    });
  }
  // What the rows that speak have said in the last pass: (V), and the state that they said it from, (C).
  const float* logits(int row) const { return logits_.data() + size_t(row) * size_t(pad16(sizes.vocab_size)); }
  const float* state(int row) const { return a_.x.data() + (size_t(said_) + size_t(row)) * size_t(a_.C); }

  int vocab_size() const { return sizes.vocab_size; }
  int block_size() const { return 1 << 30; }  // rotary positions have no end
  int most_rows() const { return behind_; }
  int past() const { return past_; }
  void rewind(int past) { past_ = past; }
  // These rows of the last pass, ascending, stay cached.
  void keep(const int* rows, int n) { move(past_, rows, n), past_ += n; }

 private:
  // input(team) fills the first layer's x; rows from `said` on speak.
  template <class Input>
  void pass(int said, const Input& input) {
    pass_.upload(rows_);
    said_ = said;
    const int R = rows_.rows();
    target_.beside(R, [&](const Team& team) {
      input(team);
      parallel_layers(team, sizes, weights_, pass_.forest, 0, rope_.data(), a_);
      target_.head(team, R - said, a_.x.data() + size_t(said) * size_t(a_.C), a_.C, norm_.data(), logits_.data());
    });
  }
  void make_room() {
    const int n = int(tokens_.size()), half = window_ / 2, X = kFeatures * sizes.n_embd;
    if (n > half) {  // nobody has asked for long: what is cached ends too far back
      tokens_.erase(tokens_.begin(), tokens_.end() - half);
      features_.erase(features_.begin(), features_.end() - long(half) * X);
      forget_all();
    } else if (past_ + n > window_) {
      std::vector<int> rows;
      for (int row = past_ - half; row < past_; row++) rows.push_back(row);
      const int gone = past_ - half;
      move(0, rows.data(), half);
      past_ = half;
      turn_to(first_ + gone);
    }
  }
  void forget_all() { past_ = 0, turn_to(0); }
  // The first cached row stands at this position.
  void turn_to(int first) {
    first_ = first;
    rope_ = rope_table<float>(window_ + 2 * behind_, sizes.head_size(), first);
  }
  void move(int to, const int* rows, int n) {
    kept_.upload(rows, size_t(n));
    const KeepRows<float> op{a_.k.data(), a_.v.data(),       a_.kv_layer, a_.kv_layer, sizes.n_kv_head,
                             a_.slots,    sizes.head_size(), to,          n,           kept_.data()};
    target_.beside(n, [&](const Team& team) { launch(team, sizes.n_layer * sizes.n_kv_head, op); });
  }

  Target& target_;
  const int window_, behind_;
  const std::vector<float> flat_;
  ParallelWeights<float> weights_;
  ParallelActivations<float> a_;
  Pass rows_;  // of the pass under way
  DevicePass pass_;
  Array<int> kept_;
  Array<float> norm_, logits_;  // of the rows that speak
  std::vector<float> rope_;
  std::vector<int> tokens_;      // (n) committed, not yet run
  std::vector<float> features_;  // (n, 3 C)
  int past_ = 0, first_ = 0, said_ = 0;
};

// ---------------------------------------------------------------------------------------------------------------
// The drafter

// Whether a commit tells what the target's layers thought.
inline bool knows(const Commit& commit) { return commit.features && commit.features[0]; }

// `parallel[:DIR]`: a node's distribution follows from its depth alone: what row or slot `depth` says. One pass an
// iteration, when it is first asked; in the first pass of a text nothing of the target is known, and it says nothing.
class Parallel : public DepthDrafter {
 public:
  Parallel(const ParallelFile& file, Target& target) : stream_(file, target, kMostAhead) {
    vocab = target.vocab_size();
  }
  bool wants_features() const override { return true; }

  int depths() const override { return stream_.sizes.ahead; }

  void begin(const int*, int) override { stream_.begin(), known_ = false, unsuppose(); }
  void committed(const Commit& commit) override {
    known_ = false, unsuppose();
    if (knows(commit)) stream_.commit(commit.tokens, commit.features, commit.n);
    else stream_.begin();  // it has lost the thread
  }
  void prepare(const Growth&, const int*, int) override {
    if (known_ || supposing || !stream_.waiting()) return;
    stream_.run(stream_.sizes.slots()), model_passes++;
    known_ = true;
  }
  const float* logits(const Growth& growth, int node) override {
    const int depth = growth.depth[node] + shift;
    return known_ && depth < stream_.sizes.ahead ? stream_.logits(depth) : nullptr;
  }

 private:
  TextStream stream_;
  bool known_ = false;  // whether it has spoken since the last commit
};

// `sequential`: the stream's last row speaks for the root, then a pass a level of the tree. What hangs from the stream
// goes when tokens are committed: they come back with features.
class Sequential : public ModelDrafter<TextStream> {
 public:
  explicit Sequential(std::unique_ptr<TextStream> stream) : ModelDrafter(*stream, 0), stream_(std::move(stream)) {
    base_ = -1;
  }
  bool wants_features() const override { return true; }

  void begin(const int*, int) override {
    stream_->begin(), forget();
    base_ = -1;
  }
  void committed(const Commit& commit) override {
    forget();
    if (knows(commit)) return stream_->commit(commit.tokens, commit.features, commit.n);
    stream_->begin(), base_ = -1;  // it has lost the thread
  }
  void prepare(const Growth& growth, const int* nodes, int n) override {
    if (stream_->waiting() || base_ >= 0) ModelDrafter::prepare(growth, nodes, n);
  }

 private:
  void run_root(int root) override {
    if (stream_->waiting()) {
      stream_->rewind(base_ + 1);  // up to the last root
      stream_->run(0), model_passes++;
    }
    base_ = stream_->past() - 1;
    start(root, 0);
  }
  void before(const std::vector<int>& above) override {
    const size_t C = size_t(stream_->sizes.n_embd);
    for (size_t row = 0; row < above.size(); row++)
      std::copy_n(states_.begin() + long(size_t(above[row]) * C), C, stream_->state_above(int(row)));
  }
  void after(int id, int row) override {
    const size_t C = size_t(stream_->sizes.n_embd);
    states_.resize(std::max(states_.size(), size_t(id + 1) * C));
    std::copy_n(stream_->state(row), C, states_.begin() + long(size_t(id) * C));
  }

  std::unique_ptr<TextStream> stream_;
  std::vector<float> states_;  // (ids, C) last layer's output
};

}  // namespace nanospec
