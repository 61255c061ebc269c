// model.h: GPT, as nanoGPT draws it: learned positions, pre-LayerNorm, causal attention, GELU, a tied head.
//
// In order: a pass (which tokens, hanging from which roots); parameters by name; weights as the forward reads them; the
// activations of a pass; forward; backward; `Trainer`, which owns what training needs. What decoding needs is in
// target.h. There is one forward: a training batch is a forest of chains without a past, a decoding step is one tree
// with a past. It knows no drafters, files or command lines.
//
// T is the number type (float; double for the gradient check), W that of the packed weights, S that of the keys and
// values (both T, or bf16 to decode).
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "config.h"
#include "machine/launch.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// A pass: the rows that go through the model together

// Rows in preorder, root after root; see Forest. `target` is for training.
struct Pass {
  std::vector<int> token, target, end, depth, root, first_row{0}, first_slot, past;
  int rows() const { return int(token.size()); }
  int roots() const { return int(past.size()); }
  void clear() {  // keeps the memory
    for (auto* list : {&token, &target, &end, &depth, &root, &first_slot, &past}) list->clear();
    first_row.resize(1);
  }

  // Adds a root whose rows form a tree: depths and subtree ends count from the tree's own first row.
  void add_tree(const int* tokens, const int* depths, const int* ends, int n, int slot, int keys_before) {
    const int at = rows();
    for (int i = 0; i < n; i++) {
      token.push_back(tokens[i]);
      depth.push_back(depths[i]);
      end.push_back(at + ends[i]);
      root.push_back(roots());
    }
    first_row.push_back(at + n);
    first_slot.push_back(slot);
    past.push_back(keys_before);
  }
  // Adds a root whose rows form a sequence: the tree with one branch.
  void add_chain(const int* tokens, int n, int slot, int keys_before) {
    std::vector<int> depths(n), ends(n, n);
    for (int i = 0; i < n; i++) depths[i] = i;
    add_tree(tokens, depths.data(), ends.data(), n, slot, keys_before);
  }
  int most_keys() const {
    int most = 0;
    for (int r = 0; r < roots(); r++) most = std::max(most, past[r] + first_row[r + 1] - first_row[r]);
    return most;
  }
};

// A pass in the memory of the device, in arrays of fixed capacity.
class DevicePass {
 public:
  DevicePass() = default;
  DevicePass(int rows, int roots, bool cuda)
      : rows_(rows),
        roots_(roots),
        ints_(size_t(5) * rows + 3 * roots + 1, cuda),
        host_(cuda ? ints_.size() : 0),
        token_(ints_.data()) {}
  // Rows that lie elsewhere in the device's memory.
  DevicePass(const int* tokens, const Forest& where) : forest(where), token_(tokens) {}

  void upload(const Pass& pass) {
    int* at[] = {ints_.data(), target(), end(), depth(), root(), first_row(), first_slot(), past()};
    const std::vector<int>* from[] = {&pass.token, &pass.target,    &pass.end,        &pass.depth,
                                      &pass.root,  &pass.first_row, &pass.first_slot, &pass.past};
    int* const to = host_.empty() ? ints_.data() : host_.data();
    for (int i = 0; i < 8; i++) std::copy(from[i]->begin(), from[i]->end(), to + (at[i] - ints_.data()));
    ints_.upload(host_.data(), host_.size());  // one copy for all: each costs microseconds
    forest = Forest{pass.rows(), pass.roots(), end(), depth(), root(), first_row(), first_slot(), past()};
  }
  const int* token() const { return token_; }
  int* target() const { return ints_.data() + rows_; }

  Forest forest;

 private:
  int* end() const { return ints_.data() + 2 * size_t(rows_); }
  int* depth() const { return ints_.data() + 3 * size_t(rows_); }
  int* root() const { return ints_.data() + 4 * size_t(rows_); }
  int* first_row() const { return ints_.data() + 5 * size_t(rows_); }
  int* first_slot() const { return first_row() + roots_ + 1; }
  int* past() const { return first_slot() + roots_; }

  int rows_ = 0, roots_ = 0;
  Array<int> ints_;
  std::vector<int> host_;  // what a GPU's are copied from; none on a CPU
  const int* token_ = nullptr;
};

// ---------------------------------------------------------------------------------------------------------------
// Parameters, and weights as the forward reads them

// The tensors of one flat array (weights, or gradients), by name; null where the model has none.
template <class T>
struct Tensors {
  struct Layer {
    T *ln_1, *ln_1_bias, *qkv, *qkv_bias, *proj, *proj_bias, *ln_2, *ln_2_bias, *fc, *fc_bias, *fc_proj, *fc_proj_bias;
  };
  T *wte, *wpe, *ln_f, *ln_f_bias;
  std::vector<Layer> layers;

  Tensors() = default;
  Tensors(const Config& config, T* flat) {
    const std::vector<TensorSpec> table = tensor_table(config);
    const auto at = [&](const std::string& name) -> T* {
      for (const TensorSpec& spec : table)
        if (spec.name == name) return flat + spec.offset;
      return nullptr;
    };
    wte = at("wte.weight"), wpe = at("wpe.weight"), ln_f = at("ln_f.weight"), ln_f_bias = at("ln_f.bias");
    for (int l = 0; l < config.n_layer; l++) {
      const std::string h = "h." + std::to_string(l) + ".";
      layers.push_back({at(h + "ln_1.weight"), at(h + "ln_1.bias"), at(h + "attn.c_attn.weight"),
                        at(h + "attn.c_attn.bias"), at(h + "attn.c_proj.weight"), at(h + "attn.c_proj.bias"),
                        at(h + "ln_2.weight"), at(h + "ln_2.bias"), at(h + "mlp.c_fc.weight"), at(h + "mlp.c_fc.bias"),
                        at(h + "mlp.c_proj.weight"), at(h + "mlp.c_proj.bias")});
    }
  }
};

// A weight for the matmul: packed for the forward product, and, for training, its transpose for the backward one.
template <class T, class W>
struct Weight {
  Panels<W> forward, transposed;
  const T* from = nullptr;
  size_t k_stride = 0, n_stride = 0;

  // stored (in, out); `tied`: stored (out, in), as the embedding that is also the head.
  Weight(const T* stored, int in, int out, bool tied)
      : forward{nullptr, in, out},
        transposed{nullptr, out, in},
        from(stored),
        k_stride(tied ? 1 : size_t(out)),
        n_stride(tied ? size_t(in) : 1) {}
  // Instead of panels: both products read the parameters where they lie.
  void use_stored() {
    if constexpr (std::is_same<T, W>::value) {
      forward.stored = transposed.stored = from;
      forward.k_stride = transposed.n_stride = k_stride, forward.n_stride = transposed.k_stride = n_stride;
    }
  }
  void pack(const Team& team) const {
    if (!forward.data) return;
    const Pack<T, W> straight{from, k_stride, n_stride, forward};
    launch(team, straight.rows(), straight);
    if (!transposed.data) return;
    const Pack<T, W> turned{from, n_stride, k_stride, transposed};
    launch(team, turned.rows(), turned);
  }
  size_t bytes() const { return forward.size() * sizeof(W); }
};

template <class T, class W>
struct Weights {
  struct Layer {
    Weight<T, W> qkv, proj, fc, fc_proj;
  };
  Tensors<const T> plain;  // embeddings, norms and biases are read as they are stored
  std::vector<Layer> layers;
  std::vector<Weight<T, W>> head;  // one: the embedding, tied
  Array<W> memory;                 // all panels, in the order of their use, in one piece: huge pages pay; none where
                                   // a GPU trains: cuBLAS wants no panels

  Weights() = default;
  // flat: the parameters, in the device's memory; read again at each pack().
  Weights(const Config& config, const T* flat, bool training, bool cuda) : plain(config, flat) {
    const int C = config.n_embd, qkv = (config.n_head + 2 * config.n_kv_head) * (C / config.n_head);
    for (const auto& layer : plain.layers)
      layers.push_back({Weight<T, W>(layer.qkv, C, qkv, false), Weight<T, W>(layer.proj, C, C, false),
                        Weight<T, W>(layer.fc, C, 4 * C, false), Weight<T, W>(layer.fc_proj, 4 * C, C, false)});
    head.emplace_back(plain.wte, C, config.vocab_size, true);
    if (training && cuda && std::is_same<T, float>::value && std::is_same<W, float>::value) {
      for_each(*this, [](Weight<T, W>& weight) { weight.use_stored(); });
      return;
    }
    size_t size = 0;
    const auto place = [&](Panels<W>& panels) {  // called twice: to count, and to hand out
      panels.cuda = cuda;
      if (memory.size()) panels.data = memory.data() + size;
      size += panels.size();
    };
    const auto place_all = [&] {
      size = 0;
      for_each(*this, [&](Weight<T, W>& weight) { place(weight.forward); });
      if (training) for_each(*this, [&](Weight<T, W>& weight) { place(weight.transposed); });
    };
    place_all();
    memory = Array<W>(size, cuda);
    place_all();
  }
  void pack(const Team& team) const {
    for_each(*this, [&](const Weight<T, W>& weight) { weight.pack(team); });
  }
  size_t bytes() const {  // what a forward of one row reads of them
    size_t sum = 0;
    for_each(*this, [&](const Weight<T, W>& weight) { sum += weight.bytes(); });
    return sum;
  }

 private:
  template <class Self, class F>
  static void for_each(Self& self, F f) {
    for (auto& layer : self.layers)
      for (auto* weight : {&layer.qkv, &layer.proj, &layer.fc, &layer.fc_proj}) f(*weight);
    for (auto& weight : self.head) f(weight);
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Activations

// Up to this many rows, each thread normalizes them all for itself: cheaper than meeting at a barrier.
constexpr int kFewRows = 8;

// What a pass of up to R rows computes on its way. Decoding keeps one layer's, over and over, but all layers' keys and
// values; training keeps every layer's for the backward pass, but the norms' and the GELU's results, which are made
// again there: they are cheap, and a quarter of it all. S: the cache's numbers.
template <class T, class S = T>
struct Activations {
  struct Layer {
    T *x, *norm_1, *mean_1, *rstd_1, *qkv, *att, *log_sum, *mid, *norm_2, *mean_2, *rstd_2, *pre, *act, *next;
    KeyValues<S> cache;
  };
  int C, Q, F, V, slots;  // row strides: channels, qkv, 4C, vocabulary, each padded to 16
  bool training = false;
  size_t k_layer, v_layer;  // numbers in one layer's keys, values
  Array<T> x, norm_1, mean_1, rstd_1, qkv, att, log_sum, mid, norm_2, mean_2, rstd_2, pre, act;
  Array<S> k, v;
  Array<T> norm_f, mean_f, rstd_f, logits;
  Array<T> attention_scratch;
  std::vector<int> taps;  // after so many layers the stream of a pass with logits is kept; none unless tap() is called
  Array<T> features;      // (R, taps C), unpadded

  Activations() = default;
  Activations(const Config& c, int rows, int slot_count, bool keep_layers, int threads, bool cuda)
      : C(pad16(c.n_embd)), F(pad16(4 * c.n_embd)), V(pad16(c.vocab_size)), slots(slot_count), training(keep_layers) {
    const int D = c.n_embd / c.n_head;
    const size_t L = keep_layers ? c.n_layer : 1, R = rows, spare = 16;  // a tile may read up to 15 numbers past a row
    const size_t norm_rows = keep_layers ? R : std::max(R, size_t(threads) * kFewRows);
    Q = pad16((c.n_head + 2 * c.n_kv_head) * D);
    k_layer = c.n_kv_head * KeyValues<S>::key_numbers(slots, D);
    v_layer = c.n_kv_head * KeyValues<S>::value_numbers(slots, D);
    const auto make = [&](size_t n) { return Array<T>(n + spare, cuda); };
    x = make((keep_layers ? L + 1 : 1) * R * C), mid = make(L * R * C);
    norm_1 = make(norm_rows * C), norm_2 = make(norm_rows * C), norm_f = make(norm_rows * C);
    qkv = make(L * R * Q), att = make(L * R * C), pre = make(L * R * F), act = make(R * F);
    logits = make(R * V);
    k = Array<S>(c.n_layer * k_layer + spare, cuda), v = Array<S>(c.n_layer * v_layer + spare, cuda);
    if (keep_layers) {
      mean_1 = make(L * R), rstd_1 = make(L * R), mean_2 = make(L * R), rstd_2 = make(L * R);
      mean_f = make(R), rstd_f = make(R), log_sum = make(L * R * c.n_head);
    }
    if (const size_t n = attention_scratch_size<T>(rows, c.n_head, D, slots, keep_layers, cuda))
      attention_scratch = make(n);
    rows_ = R, head_size_ = D, n_head_ = c.n_head;
  }
  void tap(const std::vector<int>& layers, int channels) {
    taps = layers, features = Array<T>(rows_ * layers.size() * size_t(channels));
  }
  Layer layer(int l) const {
    const size_t i = training ? l : 0, r = i * rows_;
    const auto of = [](const Array<T>& array, size_t at) { return array.size() ? array.data() + at : nullptr; };
    return {x.data() + r * C,
            norm_1.data(),
            of(mean_1, r),
            of(rstd_1, r),
            qkv.data() + r * Q,
            att.data() + r * C,
            of(log_sum, r * n_head_),
            mid.data() + r * C,
            norm_2.data(),
            of(mean_2, r),
            of(rstd_2, r),
            pre.data() + r * F,
            act.data(),
            x.data() + (training ? r + rows_ : 0) * C,
            KeyValues<S>{k.data() + l * k_layer, v.data() + l * v_layer, slots, head_size_}};
  }

 private:
  size_t rows_ = 0;
  int head_size_ = 0, n_head_ = 0;
};

// ---------------------------------------------------------------------------------------------------------------
// Forward

// The places where dropout is applied, numbered so that no two share their bits.
inline Dropout dropout_at(Dropout dropout, int layer, int place) {
  dropout.site = uint32_t(layer * 4 + place);
  return dropout;
}
enum { kDropEmbedding, kDropAttention, kDropProjection, kDropMlp };

template <class T, class S>
Attention<T, S> attention_of(const Config& c, const Forest& forest, const typename Activations<T, S>::Layer& s,
                             int qkv_row, int out_row, const Dropout& dropout) {
  return {forest,  c.n_head, c.n_kv_head, c.n_embd / c.n_head, s.qkv,  qkv_row,
          s.cache, s.att,    out_row,     s.log_sum,           dropout};
}

// LayerNorm of all rows; returns where this thread finds them.
template <class T>
T* normalize(const Team& team, int rows, LayerNorm<T> norm, bool training) {
  if (training || team.size == 1 || rows > kFewRows) {
    launch(team, rows, norm);
    return norm.y;
  }
  norm.y += size_t(team.rank) * kFewRows * norm.y_row;
  for (int row = 0; row < rows; row++) norm(Solo{}, row);
  return norm.y;
}

// A layer's two norms.
template <class T, class A>
LayerNorm<T> norm_1(const Config& c, const A& a, const typename Tensors<const T>::Layer& w,
                    const typename A::Layer& s) {
  return {s.x, a.C, c.n_embd, w.ln_1, w.ln_1_bias, s.norm_1, a.C, s.mean_1, s.rstd_1};
}
template <class T, class A>
LayerNorm<T> norm_2(const Config& c, const A& a, const typename Tensors<const T>::Layer& w,
                    const typename A::Layer& s) {
  return {s.mid, a.C, c.n_embd, w.ln_2, w.ln_2_bias, s.norm_2, a.C, s.mean_2, s.rstd_2};
}

// Keeps this thread's share of the stream after so many layers, wherever it is tapped. In the memory of the CPU only.
template <class T, class S>
void keep_features(const Team& team, Activations<T, S>& a, int layers, int rows, int channels, const T* stream) {
  const size_t taps = a.taps.size();
  const Range mine = team.share(rows);
  for (size_t tap = 0; tap < taps; tap++)
    for (int row = mine.begin; a.taps[tap] == layers && row < mine.end; row++)
      std::copy_n(stream + size_t(row) * a.C, channels, a.features.data() + (size_t(row) * taps + tap) * channels);
}

// One pass: embeddings, layers, and, where asked for, the logits of all rows in a.logits. Every thread of the team
// calls it. The rows' keys and values are left in the cache behind each root's past.
template <class T, class W, class S>
void forward(const Team& team, const Config& c, const Weights<T, W>& w, const DevicePass& pass, Activations<T, S>& a,
             bool with_logits, const Dropout& dropout = {}) {
  const Forest& forest = pass.forest;
  const int R = forest.rows, C = c.n_embd;
  launch(team, R,
         Embed<T>{pass.token(), forest, w.plain.wte, w.plain.wpe, a.layer(0).x, a.C, C,
                  dropout_at(dropout, c.n_layer, kDropEmbedding)});
  for (int l = 0; l < c.n_layer; l++) {
    const auto s = a.layer(l);
    const auto& plain = w.plain.layers[l];
    const auto& packed = w.layers[l];

    const T* norm = normalize(team, R, norm_1<T>(c, a, plain, s), a.training);
    const Attention<T, S> heads = attention_of<T, S>(c, forest, s, a.Q, a.C, dropout_at(dropout, l, kDropAttention));
    matmul_qkv(team, Matmul<T, W>{norm, a.C, packed.qkv.forward, s.qkv, a.Q}, AddBias<T>{s.qkv, a.Q, plain.qkv_bias},
               heads);
    if (!with_logits && l == c.n_layer - 1) {  // a prefill wants nothing more than the last layer's keys and values
      team.wait();
      launch(team, R, WriteCache<T, S>{heads});
      return;
    }
    attention(team, heads, a.attention_scratch.data(), a.slots);
    matmul(team, R, Matmul<T, W>{s.att, a.C, packed.proj.forward, s.mid, a.C},
           JoinResidual<T>{s.x, s.mid, a.C, C, plain.proj_bias, dropout_at(dropout, l, kDropProjection)});
    team.wait();

    norm = normalize(team, R, norm_2<T>(c, a, plain, s), a.training);
    matmul(team, R, Matmul<T, W>{norm, a.C, packed.fc.forward, s.pre, a.F},
           BiasGelu<T>{s.pre, s.act, a.F, plain.fc_bias});
    team.wait();
    matmul(team, R, Matmul<T, W>{s.act, a.F, packed.fc_proj.forward, s.next, a.C},
           JoinResidual<T>{s.mid, s.next, a.C, C, plain.fc_proj_bias, dropout_at(dropout, l, kDropMlp)});
    team.wait();
    if (with_logits && !a.taps.empty()) keep_features(team, a, l + 1, R, C, s.next);
  }
  if (!with_logits) return;
  const T* norm = normalize(team, R,
                            LayerNorm<T>{a.layer(c.n_layer - 1).next, a.C, C, w.plain.ln_f, w.plain.ln_f_bias,
                                         a.norm_f.data(), a.C, a.mean_f.data(), a.rstd_f.data()},
                            a.training);
  matmul(team, R, Matmul<T, W>{norm, a.C, w.head[0].forward, a.logits.data(), a.V});
  team.wait();
}

// ---------------------------------------------------------------------------------------------------------------
// Backward

// The gradients that flow through one layer at a time.
template <class T>
struct Gradients {
  Array<T> stream, norm, branch, qkv, att;  // (R, C), (R, C), (R, C), (R, Q), (R, C)
  Array<T> k, v;                            // (n_kv_head, slots, pad16(D)): of one layer, or of all
  Array<T> p, ds;                           // attention's scratch: attention_backward() says what it needs
  Array<int> order;                         // the embedding's: rows by what they looked up, on a GPU
  size_t kv_layer = 0;
  bool past_gradients = false;

  Gradients() = default;
  Gradients(const Config& c, const Activations<T>& a, int rows, bool keep_past, bool cuda) : past_gradients(keep_past) {
    const size_t R = rows, spare = 16;
    const auto make = [&](size_t n) { return Array<T>(n + spare, cuda); };
    stream = make(R * a.C), norm = make(R * a.C), branch = make(R * a.C);
    qkv = make(R * a.Q), att = make(R * a.C);
    kv_layer = a.v_layer;
    k = make((keep_past ? c.n_layer : 1) * kv_layer), v = make((keep_past ? c.n_layer : 1) * kv_layer);
    if (cuda) order = Array<int>(2 * R, cuda);
    if (!std::is_same<T, float>::value) p = make(R * c.n_head * a.slots), ds = make(R * c.n_head * a.slots);
    else if (cuda) p = make(R * c.n_head);
  }
};

// The gradient through one LayerNorm: into its weights, and, past it, added to the stream's. (R, C) each.
template <class T>
void normalize_backward(const Team& team, int rows, const T* x, int x_row, int channels, const T* weight, const T* mean,
                        const T* rstd, const T* dy, T* dx, T* dweight, T* dbias) {
  norm_weights(team, LayerNormWeights<T>{rows, x, x_row, channels, mean, rstd, dy, x_row, dweight, dbias});
  launch(team, rows, LayerNormBackward<T>{x, x_row, channels, weight, mean, rstd, dy, x_row, dx});
}

// The gradient of one linear layer y = x W + b with respect to W and b, added to theirs.
template <class T>
void linear_backward(const Team& team, int rows, int in, int out, const T* x, int x_row, const T* dy, int dy_row, T* dw,
                     T* dbias) {
  matmul_gradient(team, MatmulGradient<T>{rows, in, out, x, x_row, dy, dy_row, dw});
  if (dbias) column_sum(team, ColumnSum<T>{rows, out, dy, dy_row, dbias});
}

// After a forward with a.logits turned into dlogits: adds every parameter's gradient to d. Every thread of the team
// calls it.
template <class T, class W>
void backward(const Team& team, const Config& c, const Weights<T, W>& w, const DevicePass& pass, Activations<T>& a,
              Gradients<T>& g, const Tensors<T>& d, const Dropout& dropout = {}) {
  const Forest& forest = pass.forest;
  const int R = forest.rows, C = c.n_embd, F = 4 * C, Q = w.layers[0].qkv.forward.n;
  T *stream = g.stream.data(), *dnorm = g.norm.data();
  zero(team, stream, size_t(R) * a.C);

  matmul_gradient(team, MatmulGradient<T>{R, c.vocab_size, C, a.logits.data(), a.V, a.norm_f.data(), a.C, d.wte});
  matmul(team, R, Matmul<T, W>{a.logits.data(), a.V, w.head[0].transposed, dnorm, a.C});
  team.wait();
  normalize_backward(team, R, a.layer(c.n_layer - 1).next, a.C, C, w.plain.ln_f, a.mean_f.data(), a.rstd_f.data(),
                     dnorm, stream, d.ln_f, d.ln_f_bias);

  // What flows into a branch that was dropped out on its way to the stream.
  const auto into_branch = [&](int l, int place) -> const T* {
    if (dropout.rate == 0) return stream;
    launch_columns(team, R, C, DropoutBackward<T>{stream, g.branch.data(), a.C, C, dropout_at(dropout, l, place)});
    return g.branch.data();
  };
  for (int l = c.n_layer - 1; l >= 0; l--) {
    const auto s = a.layer(l);
    const auto& plain = w.plain.layers[l];
    const auto& packed = w.layers[l];
    const auto& dl = d.layers[l];

    // What the forward pass did not keep.
    launch(team, R, norm_1<T>(c, a, plain, s));
    launch(team, R, norm_2<T>(c, a, plain, s));
    launch_columns(team, R, F, BiasGelu<T>{s.pre, s.act, a.F, nullptr});

    const T* dout = into_branch(l, kDropMlp);
    linear_backward(team, R, F, C, s.act, a.F, dout, a.C, dl.fc_proj, dl.fc_proj_bias);
    team.wait();  // the gradient takes the GELU's place
    T* const hidden = s.act;
    matmul(team, R, Matmul<T, W>{dout, a.C, packed.fc_proj.transposed, hidden, a.F},
           GeluBackward<T>{s.pre, hidden, a.F});
    team.wait();
    linear_backward(team, R, C, F, s.norm_2, a.C, hidden, a.F, dl.fc, dl.fc_bias);
    matmul(team, R, Matmul<T, W>{hidden, a.F, packed.fc.transposed, dnorm, a.C});
    team.wait();
    normalize_backward(team, R, s.mid, a.C, C, plain.ln_2, s.mean_2, s.rstd_2, dnorm, stream, dl.ln_2, dl.ln_2_bias);

    dout = into_branch(l, kDropProjection);
    linear_backward(team, R, C, C, s.att, a.C, dout, a.C, dl.proj, dl.proj_bias);
    matmul(team, R, Matmul<T, W>{dout, a.C, packed.proj.transposed, g.att.data(), a.C});
    T *dk = g.k.data() + (g.past_gradients ? l * g.kv_layer : 0),
      *dv = g.v.data() + (g.past_gradients ? l * g.kv_layer : 0);
    zero(team, dk, g.kv_layer);
    zero(team, dv, g.kv_layer);
    attention_backward(
        team,
        AttentionBackward<T>{attention_of<T, T>(c, forest, s, a.Q, a.C, dropout_at(dropout, l, kDropAttention)),
                             g.att.data(), dk, dv, g.qkv.data()},
        g.p.data(), g.ds.data(), a.slots);
    linear_backward(team, R, C, Q, s.norm_1, a.C, g.qkv.data(), a.Q, dl.qkv, dl.qkv_bias);
    matmul(team, R, Matmul<T, W>{g.qkv.data(), a.Q, packed.qkv.transposed, dnorm, a.C});
    team.wait();
    normalize_backward(team, R, s.x, a.C, C, plain.ln_1, s.mean_1, s.rstd_1, dnorm, stream, dl.ln_1, dl.ln_1_bias);
  }
  embed_backward(team,
                 EmbedBackward<T>{R, pass.token(), forest, stream, a.C, C, d.wte, d.wpe,
                                  dropout_at(dropout, c.n_layer, kDropEmbedding)},
                 g.order.data());
}

// ---------------------------------------------------------------------------------------------------------------
// Training

// The start of one tensor, the number-th of the table: a pure function of the seed and a number's place in it.
inline std::vector<float> initial_tensor(const TensorSpec& spec, uint32_t number, uint64_t seed) {
  std::vector<float> values(spec.size, spec.init_std < 0 ? 1.0f : 0.0f);
  for (size_t i = 0; spec.init_std > 0 && i < spec.size; i++) {
    // Box and Muller 1958: two uniforms give a normal
    const double u = uniform(random_bits(seed, number, kStreamInitialize, i, 0));
    const double angle = 6.283185307179586477 * uniform(random_bits(seed, number, kStreamInitialize, i, 1));
    values[i] = float(spec.init_std * std::sqrt(-2 * log(u)) * std::cos(angle));
  }
  return values;
}

// The start of all parameters.
inline std::vector<float> initial_weights(const Config& config, uint64_t seed) {
  std::vector<float> weights;
  weights.reserve(parameter_count(config));
  uint32_t number = 0;
  for (const TensorSpec& spec : tensor_table(config)) {
    const std::vector<float> values = initial_tensor(spec, number++, seed);
    weights.insert(weights.end(), values.begin(), values.end());
  }
  return weights;
}

// What one AdamW update needs to know; names and defaults are nanoGPT's.
struct Update {
  int64_t iteration = 0;  // updates made before this one
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.99, weight_decay = 0.1, grad_clip = 1.0;
};

// Warm-up, then a cosine down to the lowest rate (Loshchilov, Hutter 2017), as nanoGPT's get_lr.
inline double cosine_rate(int64_t iteration, int warmup, int decay, double most, double least) {
  if (iteration < warmup) return most * double(iteration + 1) / (warmup + 1);
  if (iteration > decay) return least;
  const double decayed = double(iteration - warmup) / std::max(1, decay - warmup);
  return least + 0.5 * (1 + std::cos(3.14159265358979323846 * decayed)) * (most - least);
}

// AdamW over a flat array of parameters, after the whole gradient has been clipped.
template <class T>
class Optimizer {
 public:
  Optimizer(const std::vector<TensorSpec>& table, bool cuda) : norm_(2, cuda) {
    std::vector<Piece> pieces;
    const size_t most = cuda ? 1024 : 8192;  // a warp's: few enough that a small model fills the GPU
    for (const TensorSpec& spec : table)
      for (size_t at = 0; at < spec.size; at += most)
        pieces.push_back({spec.offset + at, int(std::min(most, spec.size - at)), spec.decay ? 1.0f : 0.0f});
    pieces_ = Array<Piece>(pieces.size(), cuda);
    pieces_.upload(pieces.data(), pieces.size());
    squares_ = Array<T>(pieces.size(), cuda);
  }
  void step(const Team& team, const Update& u, T* weights, const T* gradient, T* m, T* v) const {
    const int pieces = int(pieces_.size());
    const double t = double(u.iteration + 1);
    launch(team, pieces, SumSquares<T>{pieces_.data(), gradient, squares_.data()});
    launch_sum(team, ClipFactor<T>{squares_.data(), pieces, T(u.grad_clip), norm_.data()});
    launch(team, pieces,
           AdamW<T>{pieces_.data(), weights, m, v, gradient, norm_.data(), T(u.learning_rate), T(u.weight_decay),
                    T(u.beta1), T(u.beta2), T(1 - std::pow(u.beta1, t)), T(1 - std::pow(u.beta2, t))});
  }

 private:
  Array<T> norm_, squares_;
  Array<Piece> pieces_;
};

// Everything that training needs: parameters, their packed forms, gradients and moments, and one pass's activations.
template <class T>
class Trainer {
 public:
  const Config config;
  Array<T> weights, gradient, m, v;  // flat: tensor_table(config) says what lies where

  // Room for passes of up to `rows` rows and `roots` roots whose caches take `slots` slots together.
  Trainer(const Config& sizes, int rows, int roots, int slots, Pool& pool, bool past_gradients = false)
      : config(sizes),
        weights(parameter_count(sizes), pool.cuda()),
        gradient(parameter_count(sizes), pool.cuda()),
        m(parameter_count(sizes), pool.cuda()),
        v(parameter_count(sizes), pool.cuda()),
        activations(sizes, rows, slots, true, pool.size(), pool.cuda()),
        gradients(sizes, activations, rows, past_gradients, pool.cuda()),
        pool_(pool),
        packed_(sizes, weights.data(), true, pool.cuda()),
        by_name_(sizes, gradient.data()),
        pass_(rows, roots, pool.cuda()),
        losses_(rows, pool.cuda()),
        loss_(1, pool.cuda()),
        optimizer_(tensor_table(sizes), pool.cuda()) {}

  // Sets the parameters to their start, a tensor at a time; the moments start at zero.
  void initialize(uint64_t seed) {
    uint32_t number = 0;
    for (const TensorSpec& spec : tensor_table(config)) {
      const std::vector<float> values = initial_tensor(spec, number++, seed);
      weights.upload(std::vector<T>(values.begin(), values.end()).data(), spec.size, spec.offset);
    }
    pool_.run([&](const Team& team) { packed_.pack(team); });
  }
  // Sets the parameters; the moments stay as they are.
  void set_weights(const T* flat) {
    weights.upload(flat, weights.size());
    pool_.run([&](const Team& team) { packed_.pack(team); });
  }

  // Mean cross-entropy of pass.target (natural logarithm).
  T loss(const Pass& pass, const Dropout& dropout = {}) {
    pass_.upload(pass);
    pool_.run([&](const Team& team) { forward_loss(team, false, dropout); });
    return read(loss_);
  }
  // The same, and `gradient` becomes its gradient.
  T loss_and_gradient(const Pass& pass, const Dropout& dropout = {}) {
    pass_.upload(pass);
    pool_.run([&](const Team& team) { loss_gradient(team, dropout); });
    return read(loss_);
  }
  // One AdamW update with `gradient` as it is.
  void apply(const Update& update) {
    pool_.run([&](const Team& team) {
      adamw(team, update);
      packed_.pack(team);
    });
  }
  // One update of training; returns the loss before it.
  T step(const Pass& pass, const Update& update, const Dropout& dropout = {}) {
    pass_.upload(pass);
    pool_.run([&](const Team& team) {
      loss_gradient(team, dropout);
      adamw(team, update);
      packed_.pack(team);
    });
    return read(loss_);
  }

  Activations<T> activations;
  Gradients<T> gradients;

 private:
  T read(const Array<T>& one) const {
    T value;
    one.download(&value, 1);
    return value;
  }
  void forward_loss(const Team& team, bool with_gradient, const Dropout& dropout) {
    const int rows = pass_.forest.rows;
    forward(team, config, packed_, pass_, activations, true, dropout);
    loss_of_rows(team, rows,
                 CrossEntropy<T>{activations.logits.data(), activations.V, config.vocab_size, pass_.target(),
                                 losses_.data(), with_gradient, T(1) / T(rows)});
    launch_sum(team, Mean<T>{losses_.data(), rows, loss_.data()});
  }
  void loss_gradient(const Team& team, const Dropout& dropout) {
    zero(team, gradient.data(), gradient.size());
    forward_loss(team, true, dropout);
    backward(team, config, packed_, pass_, activations, gradients, by_name_, dropout);
    team.wait();
  }
  void adamw(const Team& team, const Update& u) {
    optimizer_.step(team, u, weights.data(), gradient.data(), m.data(), v.data());
  }

  Pool& pool_;
  Weights<T, T> packed_;
  Tensors<T> by_name_;
  DevicePass pass_;
  Array<T> losses_, loss_;
  Optimizer<T> optimizer_;
};

}  // namespace nanospec
