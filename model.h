// model.h: one transformer: GPT as nanoGPT defines it, and the Llama family, as settings of one text.
//
// In order: the configuration; the one table of tensors; weights as the forward reads them; the activations with their
// shapes; the forward, and below it its steps. One forward serves decoding and training: its rows are a Batch (rows.h).
// The file knows no drafters, files or command lines.
//
// T is the number type (float; double for the gradient check), W that of the packed weights, S that of the keys and
// values (both T, or bf16 to decode). Shapes: L layers, R rows, C channels, H heads, D head size, V vocabulary.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "machine/packing.h"
#include "rows.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Configuration

// The sizes of a GPT, under nanoGPT's names.
struct Config {
  int n_layer = 4;      // L
  int n_head = 4;       // H, query heads
  int n_kv_head = 4;    // key/value heads; GPT has as many as query heads
  int n_embd = 128;     // C
  int block_size = 64;  // the window in tokens: even, because it slides by half of itself
  int vocab_size = 65;  // V; 0: layers alone, without wte, last norm and head, as a drafter's network may be
  bool bias = false;    // biases in the linear layers and the norms
  bool tanh = false;    // GELU is approximated by tanh: GPT-2 (Radford et al. 2019)
  // What Llama (Touvron et al. 2023) does differently. 0 stands for GPT's size.
  int head_dim = 0;       // D; 0: C / H
  int n_inner = 0;        // F, channels between the two matrices of the MLP; 0: 4 C
  bool rotary = false;    // positions rotate queries and keys; else they are learned embeddings
  bool swiglu = false;    // SwiGLU with three matrices; else GELU with two
  bool center = true;     // LayerNorm; else RMSNorm
  bool tied = true;       // the head is the embedding
  bool qkv_bias = false;  // biases of queries, keys and values alone: Qwen2 (Yang et al. 2024)
  bool qk_norm = false;   // an RMSNorm of each head's queries and keys: Qwen3
  int span = 0;           // a sliding window: how many positions a row sees; 0: all (Jiang et al. 2023, Mistral)
  float norm_epsilon = 1e-5f, rope_theta = 10000;
  std::vector<float> rope_factors = {};  // (D / 2) how many times slower each pair turns; none: 1

  int head_size() const { return head_dim ? head_dim : n_embd / n_head; }  // D
  int inner() const { return n_inner ? n_inner : 4 * n_embd; }             // F
  int hidden() const { return swiglu ? 2 * inner() : inner(); }            // what the MLP's first matrix gives
  int heads_size() const { return n_head * head_size(); }                  // H D, of all queries of a row
  int qkv_size() const { return (n_head + 2 * n_kv_head) * head_size(); }
};

// ---------------------------------------------------------------------------------------------------------------
// The table of tensors. A tensor is named once: memory, initialization, weight decay, checkpoints and the gradient
// check all walk this table.

// The tensors of one flat array (weights, or gradients), by name; null where the model has none.
template <class T>
struct Tensors {
  struct Layer {
    T *ln_1, *ln_1_bias, *qkv, *qkv_bias, *q_norm, *k_norm, *proj, *proj_bias, *ln_2, *ln_2_bias, *fc, *fc_bias,
        *fc_proj, *fc_proj_bias;
  };
  T *wte = nullptr, *wpe = nullptr, *ln_f = nullptr, *ln_f_bias = nullptr, *lm_head = nullptr;
  std::vector<Layer> layers;

  Tensors() = default;
  Tensors(const Config& config, T* flat) { point_into(flat, *this, config); }

  // Calls f(name, shape, init_std, pointer) for every tensor, in the order of the flat array.
  // name: Hugging Face's GPT-2 name without "transformer.". shape: a matrix is (in, out), as in Hugging Face's Conv1D;
  // embeddings are (rows, C). init_std: the standard deviation of the initial values; 0: all zeros; below 0: all ones.
  // They are nanoGPT's: 0.02, and 0.02 / sqrt(2 L) for the two projections that are added to the residual stream.
  template <class F>
  void each(const Config& config, F f) {
    const int C = config.n_embd;
    const float std = 0.02f, residual_std = float(0.02 / std::sqrt(2.0 * config.n_layer));
    const auto norm = [&](const std::string& name, T*& weight, T*& bias) {
      f(name + ".weight", {C}, -1.0f, weight);
      if (config.bias) f(name + ".bias", {C}, 0.0f, bias);
    };
    const auto linear = [&](const std::string& name, int in, int out, float init_std, T*& weight, T*& bias,
                            bool biased = false) {
      f(name + ".weight", {in, out}, init_std, weight);
      if (biased || config.bias) f(name + ".bias", {out}, 0.0f, bias);
    };
    if (config.vocab_size) f("wte.weight", {config.vocab_size, C}, std, wte);
    if (!config.rotary) f("wpe.weight", {config.block_size, C}, std, wpe);
    layers.resize(size_t(config.n_layer));
    for (int l = 0; l < config.n_layer; l++) {
      Layer& layer = layers[l];
      const std::string block = "h." + std::to_string(l) + ".";
      norm(block + "ln_1", layer.ln_1, layer.ln_1_bias);
      linear(block + "attn.c_attn", C, config.qkv_size(), std, layer.qkv, layer.qkv_bias, config.qkv_bias);
      if (config.qk_norm) f(block + "attn.q_norm.weight", {config.head_size()}, -1.0f, layer.q_norm);
      if (config.qk_norm) f(block + "attn.k_norm.weight", {config.head_size()}, -1.0f, layer.k_norm);
      linear(block + "attn.c_proj", config.heads_size(), C, residual_std, layer.proj, layer.proj_bias);
      norm(block + "ln_2", layer.ln_2, layer.ln_2_bias);
      linear(block + "mlp.c_fc", C, config.hidden(), std, layer.fc, layer.fc_bias);
      linear(block + "mlp.c_proj", config.inner(), C, residual_std, layer.fc_proj, layer.fc_proj_bias);
    }
    if (!config.vocab_size) return;
    norm("ln_f", ln_f, ln_f_bias);
    if (!config.tied) f("lm_head.weight", {config.vocab_size, C}, std, lm_head);
  }
};

// One tensor and its place in the flat array that holds them all.
struct TensorSpec {
  std::string name;
  std::vector<int> shape;
  size_t offset, size;  // in numbers
  bool decay;           // weight decay: matrices only
  float init_std;
};

inline size_t numbers_of(const std::vector<int>& shape) {
  size_t size = 1;
  for (int dimension : shape) size *= size_t(dimension);
  return size;
}

// Any table of tensors is a struct of pointers with an each(sizes, f), as Tensors is. This function points them into a
// flat array.
template <class T, class Table, class Sizes>
void point_into(T* flat, Table& table, const Sizes& sizes) {
  table.each(sizes, [&](const std::string&, const std::vector<int>& shape, float, T*& tensor) {
    tensor = flat;
    flat += numbers_of(shape);
  });
}
// This function lists them.
template <template <class> class Table, class Sizes>
std::vector<TensorSpec> table_of(const Sizes& sizes) {
  std::vector<TensorSpec> list;
  size_t offset = 0;
  Table<float>().each(sizes, [&](const std::string& name, const std::vector<int>& shape, float init_std, float*&) {
    list.push_back({name, shape, offset, numbers_of(shape), shape.size() >= 2, init_std});
    offset += list.back().size;
  });
  return list;
}

// The table of a model's tensors. A model's sizes are checked where they come from: files/checkpoint.h.
inline std::vector<TensorSpec> tensor_table(const Config& config) { return table_of<Tensors>(config); }

// How many numbers the flat array holds. It cannot overflow for sizes that were accepted there.
inline uint64_t parameter_count(const Config& config) {
  const std::vector<TensorSpec> table = tensor_table(config);
  return table.back().offset + table.back().size;
}

// The initial values of all tensors of a table: a pure function of the seed, the tensor's number and the value's index.
inline std::vector<float> initial_weights(const std::vector<TensorSpec>& table, uint64_t seed) {
  std::vector<float> weights;
  for (uint32_t number = 0; number < table.size(); number++) {
    const TensorSpec& spec = table[number];
    weights.resize(weights.size() + spec.size, spec.init_std < 0 ? 1.0f : 0.0f);
    float* const values = weights.data() + weights.size() - spec.size;
    for (size_t i = 0; spec.init_std > 0 && i < spec.size; i++) {
      // Two uniform numbers give a normal one (Box, Muller 1958).
      const double u = uniform(random_bits(seed, number, kStreamInitialize, i, 0));
      const double angle = 6.283185307179586477 * uniform(random_bits(seed, number, kStreamInitialize, i, 1));
      values[i] = float(spec.init_std * std::sqrt(-2 * log(u)) * cos(angle));
    }
  }
  return weights;
}
inline std::vector<float> initial_weights(const Config& config, uint64_t seed) {
  return initial_weights(tensor_table(config), seed);
}

// ---------------------------------------------------------------------------------------------------------------
// Weights as the forward reads them: machine/packing.h packs a matrix into panels

// (positions, D / 2, 2) the cosine and sine of the angle by which Rope rotates pair d of a head at each position. The
// angle is position / (theta^(2 d / D) factors[d]).
template <class T>
std::vector<T> rope_table(int positions, int head_size, double theta = 10000, const std::vector<float>& factors = {}) {
  std::vector<T> table;
  table.reserve(size_t(positions) * (head_size / 2) * 2);
  std::vector<double> step;  // radians for one position
  for (int d = 0; d < head_size / 2; d++)
    step.push_back(exp(-2.0 * d / head_size * log(theta)) / (factors.empty() ? 1.0 : double(factors[size_t(d)])));
  for (int p = 0; p < positions; p++)
    for (int d = 0; d < head_size / 2; d++) {
      const double angle = p * step[size_t(d)];
      table.push_back(T(cos(angle)));
      table.push_back(T(sin(angle)));
    }
  return table;
}

template <class T, class W>
struct Weights {
  struct Layer {
    Weight<T, W> qkv, proj, fc, fc_proj;  // each has `forward`, its panels (in, out), and `bias`
  };
  Tensors<const T> tensors;  // embeddings, norms and biases are read as they are stored
  std::vector<Layer> layers;
  Weight<T, W> head;  // the embedding, where it is tied
  Panels<W> symbols;  // an embedding of 8 to 4 bits, in place of tensors.wte: the head's panels, where it is tied
  Array<T> rope;      // (block, D / 2, 2) rope_table(); none for learned positions
  Array<W> memory;    // all panels; none where a GPU trains: cuBLAS needs no panels
  Array<T> stored;    // what `tensors` points into; none where training has the flat array

  Weights() = default;
  // flat: the parameters, in the device's memory; each pack() reads them again. training: with the panels of the
  // transposes, which backward() reads. load_weights() (weights.h) reads a model that only decodes.
  Weights(const Config& c, const Tensors<const T>& flat, bool cuda, bool training = true) : tensors(flat) {
    const auto all = list(c, cuda);
    if (kTuned && cuda && std::is_same<T, float>::value && std::is_same<W, float>::value)
      for (Weight<T, W>* weight : all) weight->use_stored();
    else memory = place_weights(all, training, cuda);
  }
  void pack(const Team& team) const {
    each(*this, [&](const Weight<T, W>& weight) { weight.pack(team); });
  }
  size_t bytes() const {  // what a forward of one row reads of them
    size_t sum = 0;
    each(*this, [&](const Weight<T, W>& weight) { sum += weight.bytes(); });
    return sum;
  }
  // Points all weights at the tensors, and makes the table of positions. Returns the weights in the order of
  // their use, which is the table's order but for the head.
  std::vector<Weight<T, W>*> list(const Config& c, bool cuda) {
    const int C = c.n_embd;
    for (const auto& layer : tensors.layers)
      layers.push_back({{layer.qkv, C, c.qkv_size(), false, layer.qkv_bias},
                        {layer.proj, c.heads_size(), C, false, layer.proj_bias},
                        {layer.fc, C, c.hidden(), false, layer.fc_bias},
                        {layer.fc_proj, c.inner(), C, false, layer.fc_proj_bias}});
    if (c.vocab_size) head = {c.tied ? tensors.wte : tensors.lm_head, C, c.vocab_size, true};
    if (c.rotary) {
      const std::vector<T> table = rope_table<T>(c.block_size, c.head_size(), c.rope_theta, c.rope_factors);
      rope = Array<T>(table.size(), cuda);
      rope.upload(table.data(), table.size());
    }
    std::vector<Weight<T, W>*> all;
    each(*this, [&](Weight<T, W>& weight) { all.push_back(&weight); });
    return all;
  }

 private:
  template <class Self, class F>
  static void each(Self& self, F f) {
    for (auto& layer : self.layers)
      for (auto* weight : {&layer.qkv, &layer.proj, &layer.fc, &layer.fc_proj}) f(*weight);
    f(self.head);
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Activations

// Rows of numbers: the first row, and how far it is from one row to the next.
template <class T>
struct View {
  T* at;
  int stride;
};

// The numbers of one activation: (layers, rows, stride). One layer may serve for all. There are none where one of the
// three is zero.
template <class T>
struct Rows : Array<T> {
  size_t layer = 0, stride = 0;  // numbers from one layer to the next, and from one row to the next

  Rows() = default;
  Rows(size_t layers, size_t rows, size_t row_stride, bool cuda = false)
      : layer(layers > 1 ? rows * row_stride : 0), stride(row_stride) {
    constexpr size_t spare = 16;  // a tile may read up to 15 numbers past a row
    if (layers * rows * row_stride > 0) Array<T>::operator=(Array<T>(layers * rows * row_stride + spare, cuda));
  }
  T* at(int l, int row) const { return this->data() ? this->data() + l * layer + row * stride : nullptr; }
  // A block's rows of layer l; and rows that only this block writes and reads.
  View<T> operator()(int l, const RowBlock& b) const { return {at(l, b.row), int(stride)}; }
  View<T> in_scratch(const RowBlock& b) const { return {at(0, b.scratch), int(stride)}; }
};

// Up to this many rows, each thread normalizes all rows for itself: that is cheaper than a barrier.
constexpr int kFewRows = 8;

// What a forward of up to R rows computes, each array named once. Decoding has one layer's arrays, which all layers use
// in turn, and the keys and values of all layers; on a CPU also every layer's x. Training has every layer's, for the
// backward. But it has the outputs of the norms and of the GELU only once: the backward computes them again, which is
// cheap and saves a quarter of the memory.
template <class T, class S = T>
struct Activations {
  Config config;
  int R = 0, N = 0, slots = 0;  // rows of a forward, of its norms (see normalize()), of the cache
  bool training = false, cuda = false;
  bool cache_is_read = !training;  // whether a later forward reads what this one writes into the cache

  Activations() = default;
  Activations(const Config& c, int rows, int slot_count, bool keep_layers, int threads, bool on_gpu)
      : config(c),
        R(rows),
        N(keep_layers ? rows : std::max(rows, threads * kFewRows)),
        slots(slot_count),
        training(keep_layers),
        cuda(on_gpu) {}

  template <class Number = T>
  Rows<Number> rows_of(size_t layers, size_t rows, size_t stride) const {
    return {layers, rows, stride, cuda};
  }
  // One for all layers; in training one for each; for the backward alone.
  Rows<T> once(size_t rows, size_t stride) const { return rows_of(1, rows, stride); }
  Rows<T> per_layer(size_t stride) const { return rows_of(training ? L : 1, R, stride); }
  Rows<T> saved(size_t stride) const { return rows_of(training ? L : 0, R, stride); }

  int L = config.n_layer, H = config.n_head, KV = config.n_kv_head, D = config.head_size();
  // Strides, not sizes: in shapes C, F, V are sizes, Q is (H + 2 KV) D, A is H D. Of floats they are an odd number of
  // cache lines, but for V, so that the same columns of many rows do not meet in a few sets of a cache.
  int C = pad16(config.n_embd) | 16, Q = pad16(config.qkv_size()) | 16, A = pad16(config.heads_size()) | 16;
  int G = pad16(config.hidden()) | 16, F = pad16(config.inner()) | 16, V = pad16(config.vocab_size);
  size_t k_layer = KV * KeyValues<S>::key_numbers(slots, D), v_layer = KV * KeyValues<S>::value_numbers(slots, D);

  int X = cuda && !training ? 1 : L + 1;         // 1: layers share one; on a CPU a drafter may read all of them
  Rows<T> x = rows_of(X, R, C);                  // (X, R, C) the residual stream before each layer and at the end
  Rows<T> norm_1 = once(N, C);                   // (N, C) the norm of x
  Rows<T> mean_1 = saved(1), rstd_1 = saved(1);  // (L, R) each: the mean of a row of x, and 1 / its standard deviation
  Rows<T> qkv = per_layer(Q);                    // (L, R, H D + 2 KV D) queries of all heads, then keys, then values
  // (L, R, Q) queries and keys before their norms; (L, heads, R) 1 / their root mean square
  Rows<T> raw = saved(config.qk_norm ? Q : 0), rstd_heads = saved(config.qk_norm ? H + KV : 0);
  Rows<S> k = rows_of<S>(L, 1, k_layer);         // (L, KV, slots, D) the cache: KeyValues says how it lies
  Rows<S> v = rows_of<S>(L, 1, v_layer);         // (L, KV, slots, D)
  Rows<T> log_sum = saved(H);                    // (L, R, H) of the softmax
  Rows<T> att = per_layer(A);                    // (L, R, H D) the outputs of all heads, side by side
  Rows<T> mid = per_layer(C);                    // (L, R, C) the residual stream between attention and MLP
  Rows<T> norm_2 = once(N, C);                   // (N, C) the norm of mid
  Rows<T> mean_2 = saved(1), rstd_2 = saved(1);  // (L, R) each
  Rows<T> pre = per_layer(G);                    // (L, R, F) before the GELU; (L, R, 2 F) gates and ups of SwiGLU
  Rows<T> act = once(R, F);                      // (R, F) after it
  Rows<T> norm_f = once(N, C);                   // (N, C) the norm of the last x
  Rows<T> mean_f = once(training ? R : 0, 1), rstd_f = once(training ? R : 0, 1);  // (R) each
  Rows<T> logits = once(R, V);                                                     // (R, V)
  Rows<T> attention_scratch = once(1, attention_scratch_size<T>(R, H, D, slots, training, cuda));

  KeyValues<S> cache(int l) const { return {k.at(l, 0), v.at(l, 0), slots, D}; }
  size_t row_bytes() const { return sizeof(T) * size_t(4 * C + G + F); }  // of one row in the widest part of a layer
};

// The sites where dropout is applied, of each layer; the embedding's is one behind the last layer. Each has a number,
// so that no two draw the same random bits.
enum { kDropEmbedding, kDropAttention, kDropProjection, kDropMlp };
inline Dropout dropout_at(Dropout dropout, int layer, int site, int row = 0) {  // from a row on
  dropout.site = uint32_t(layer * 4 + site);
  dropout.first_row += row;
  return dropout;
}

// ---------------------------------------------------------------------------------------------------------------
// Forward

// Rows that a norm has normalized; or, where x is null, that the product which reads them is to normalize (on a GPU).
template <class T>
struct Normalized {
  View<T> x;
  Norm<T> norm;
};

// Runs the network over the rows of a batch: embeddings, layers, and the logits of the first with_logits rows. Every
// thread of the team calls it. The rows' keys and values stay in the cache, behind each root's past, where
// a.cache_is_read. c may have fewer layers than the model: then only the first ones run. Without logits the last layer
// only fills the cache. Without a vocabulary the layers alone run, from what a.x[0] holds to the last a.x; with_logits
// must not be 0 then.
template <class T, class W, class S>
void forward(const Team& team, const Config& c, const Weights<T, W>& w, const DeviceBatch& batch,
             const Activations<T, S>& a, int with_logits, const Dropout& dropout = {}) {
  const auto blocks = [&](const auto& f) { by_blocks(team, batch.forest.rows, a.row_bytes(), f); };
  if (c.vocab_size) embed(team, c, w, batch, a, dropout);

  for (int l = 0; l < c.n_layer; l++) {
    const auto& layer = w.layers[l];
    const Attention<T, S> heads = attention_of(team, batch, a, l, dropout);
    // qkv (R, Q) = norm_1(x) W + bias, each head's queries and keys normalized, and turned by their positions
    blocks([&](const RowBlock& b) {
      const Normalized<T> normed = normalize(b, norm_1(a, w, l, b), a.training);
      matmul_qkv(b.team, b.rows, product(normed, layer.qkv.forward, a.qkv(l, b)), layer.qkv.bias, heads);
      if (c.qk_norm) {
        b.team.wait();  // matmul_qkv() may return early
        launch(b.team, b.rows * (a.H + a.KV), head_norm(a, w, l, b));
      }
      if (c.rotary) turn(b, heads, a.qkv.at(l, 0), w.rope);
    });
    // In the last layer a prefill needs only keys and values.
    if (with_logits == 0 && l == c.n_layer - 1) return fill_cache(team, heads);
    // att (R, H D) = attention(qkv, cache), which first writes the rows' keys and values there, unless the product has
    attention(team, heads, a.attention_scratch.data(), a.slots);
    blocks([&](const RowBlock& b) {
      // mid (R, C) = x + att W + bias
      join(b, a.att(l, b), layer.proj, a.x(l, b), a.mid(l, b), dropout_at(dropout, l, kDropProjection, b.row));
      // act (R, F) = GELU(norm_2(mid) W + bias), or SwiGLU
      const Normalized<T> normed = normalize(b, norm_2(a, w, l, b), a.training);
      activate(b, c, normed, layer.fc, a.pre(l, b), a.act.in_scratch(b));
      // x (R, C) of the next layer = mid + act W + bias
      join(b, a.act.in_scratch(b), layer.fc_proj, a.mid(l, b), a.x(l + 1, b), dropout_at(dropout, l, kDropMlp, b.row));
    });
  }
  if (with_logits == 0 || !c.vocab_size) return;
  // logits (R, V) = norm_f(x) wte^T, or a head of its own
  by_blocks(team, with_logits, a.row_bytes(), [&](const RowBlock& b) {
    const Normalized<T> normed = normalize(b, last_norm(a, w, c.n_layer, b), a.training);
    matmul(b.team, b.rows, product(normed, w.head.forward, a.logits(0, b)));
    b.team.wait();
  });
}

// ---------------------------------------------------------------------------------------------------------------
// The steps of forward(), from the embedding on. Those that take a RowBlock run over its rows: every thread of its
// team calls them. C++ lets them stand below: in a template a call is looked up where its types are known.

// x (R, C) = wte[token] + wpe[position], of all rows.
template <class T, class W, class S>
void embed(const Team& team, const Config& c, const Weights<T, W>& w, const DeviceBatch& batch,
           const Activations<T, S>& a, const Dropout& dropout) {
  const int R = batch.forest.rows, C = c.n_embd;  // C is a row's size, a.C its stride
  T* const x = a.x.at(0, 0);
  // A table of 8 to 4 bits is unpacked into x first; tensors.wte is null then, and Embed begins with x.
  if (w.symbols.data) unpack(team, R, Unpack<T, W>{batch.token(), w.symbols, x, a.C});
  launch(team, R,
         Embed<T>{.token = batch.token(),
                  .forest = batch.forest,
                  .wte = w.tensors.wte,
                  .wpe = w.tensors.wpe,
                  .x = x,
                  .x_row = a.C,
                  .channels = C});
  drop(team, R, Drop<T>{x, x, a.C, C, dropout_at(dropout, c.n_layer, kDropEmbedding)});
}

// The attention of layer l, over all rows.
template <class T, class S>
Attention<T, S> attention_of(const Team& team, const DeviceBatch& batch, const Activations<T, S>& a, int l,
                             const Dropout& dropout) {
  return {.forest = batch.forest,
          .n_head = a.H,
          .n_kv_head = a.KV,
          .head_size = a.D,
          .qkv = a.qkv.at(l, 0),
          .qkv_row = a.Q,
          .cache = a.cache(l),
          .out = a.att.at(l, 0),
          .out_row = a.A,
          .log_sum = a.log_sum.at(l, 0),
          .dropout = dropout_at(dropout, l, kDropAttention),
          .in_cache = !a.config.qk_norm && product_writes_cache<T>(team),
          .cache_is_read = a.cache_is_read,
          .span = a.config.span};
}

// The model's three norms, over the rows of a block: of x before a layer's attention, of mid before its MLP, of the
// last x. The first two write what only the block needs. The last one's output is kept for the head's gradient and for
// drafters, except where a GPU's product normalizes.
template <class T>
Norm<T> norm_of(const Config& c, View<T> x, const T* weight, const T* bias, View<T> y, T* mean, T* rstd) {
  return {.x = x.at,
          .x_row = x.stride,
          .channels = c.n_embd,
          .weight = weight,
          .bias = bias,
          .y = y.at,
          .y_row = y.stride,
          .mean = mean,
          .rstd = rstd,
          .center = c.center,
          .epsilon = T(c.norm_epsilon)};
}
template <class T, class S, class W>
Norm<T> norm_1(const Activations<T, S>& a, const Weights<T, W>& w, int l, const RowBlock& b) {
  const auto& its = w.tensors.layers[l];
  return norm_of(a.config, a.x(l, b), its.ln_1, its.ln_1_bias, a.norm_1.in_scratch(b), a.mean_1.at(l, b.row),
                 a.rstd_1.at(l, b.row));
}
template <class T, class S, class W>
Norm<T> norm_2(const Activations<T, S>& a, const Weights<T, W>& w, int l, const RowBlock& b) {
  const auto& its = w.tensors.layers[l];
  return norm_of(a.config, a.mid(l, b), its.ln_2, its.ln_2_bias, a.norm_2.in_scratch(b), a.mean_2.at(l, b.row),
                 a.rstd_2.at(l, b.row));
}
template <class T, class S, class W>
Norm<T> last_norm(const Activations<T, S>& a, const Weights<T, W>& w, int layers, const RowBlock& b) {
  return norm_of(a.config, a.x(layers, b), w.tensors.ln_f, w.tensors.ln_f_bias, a.norm_f(0, b), a.mean_f.at(0, b.row),
                 a.rstd_f.at(0, b.row));
}

// Runs the norm. To decode few rows, each thread writes a copy of its own, which is cheaper than a barrier: a.N rows
// have room for all copies; in training there is room for one. On a GPU that decodes, the product runs it.
template <class T>
Normalized<T> normalize(const RowBlock& b, Norm<T> norm, bool training) {
  if (b.team.cuda && !training) return {{nullptr, norm.y_row}, norm};
  if (training || b.team.size == 1 || b.rows > kFewRows) {
    launch(b.team, b.rows, norm);
  } else {  // each thread all rows, for itself
    norm.y += size_t(b.team.rank) * kFewRows * norm.y_row;
    for (int row = 0; row < b.rows; row++) norm(Solo{}, row);
  }
  return {{norm.y, norm.y_row}, norm};
}

// out = x W, as an operation.
template <class T, class W>
Matmul<T, W> product(View<T> x, const Panels<W>& w, View<T> out) {
  return {.x = x.at, .x_row = x.stride, .w = w, .out = out.at, .out_row = out.stride};
}
template <class T, class W>
Matmul<T, W> product(const Normalized<T>& n, const Panels<W>& w, View<T> out) {
  return {.x = n.x.at, .x_row = n.x.stride, .w = w, .out = out.at, .out_row = out.stride, .norm = n.norm};
}

// The norms of each head's queries and keys, over the rows of a block. rstd_heads is (L, heads, R): of the next row it
// is the next number.
template <class T, class S, class W>
HeadNorm<T> head_norm(const Activations<T, S>& a, const Weights<T, W>& w, int l, const RowBlock& b) {
  const auto& its = w.tensors.layers[l];
  const View<T> qkv = a.qkv(l, b);
  T* const rstd = a.rstd_heads.at(l, 0);
  T *const no_bias = nullptr, *const no_mean = nullptr;
  Norm<T> norm = norm_of<T>(a.config, qkv, its.q_norm, no_bias, qkv, no_mean, rstd ? rstd + b.row : nullptr);
  norm.channels = a.D;
  return {
      .norm = norm, .of_key = its.k_norm, .raw = a.raw.at(l, b.row), .n_head = a.H, .heads = a.H + a.KV, .rows = a.R};
}

// Queries and keys of the block's rows, in the qkv of all rows, turn by their positions; with `back` their gradients
// turn back. It waits first, because the product that wrote them may have returned early. With in_cache the turned keys
// replace those that the product wrote into the cache.
template <class T, class S>
void turn(const RowBlock& b, const Attention<T, S>& heads, T* qkv, const Array<T>& table, bool back = false) {
  b.team.wait();
  const Rope<T> rope{.forest = heads.forest,
                     .first = b.row,
                     .qkv = qkv,
                     .qkv_row = heads.qkv_row,
                     .heads = heads.n_head + heads.n_kv_head,
                     .head_size = heads.head_size,
                     .table = table.data(),
                     .back = back};
  if (!tuned(b.team, rope, b.rows, heads)) launch(b.team, b.rows * rope.heads, rope);
}

// out (R, C) = residual + dropout(x W + bias): a branch joins the residual stream.
template <class T, class W>
void join(const RowBlock& b, View<T> x, const Weight<T, W>& w, View<T> residual, View<T> out, const Dropout& dropout) {
  const auto joined = product(x, w.forward, out);
  if (dropout.rate == 0) {
    matmul(b.team, b.rows, joined, JoinResidual<T>{residual.at, out.at, out.stride, w.bias});
    return b.team.wait();
  }
  matmul(b.team, b.rows, joined, AddBias<T>{out.at, out.stride, w.bias});
  b.team.wait();
  drop(b.team, b.rows, Drop<T>{out.at, out.at, out.stride, w.forward.n, dropout});
  launch_columns(b.team, b.rows, w.forward.n, JoinResidual<T>{residual.at, out.at, out.stride, nullptr});
}

// act (R, F) = GELU(pre) or SwiGLU(pre), with pre (R, hidden) = x W + bias.
template <class T, class W>
void activate(const RowBlock& b, const Config& c, const Normalized<T>& x, const Weight<T, W>& fc, View<T> pre,
              View<T> act) {
  if (!c.swiglu) {
    matmul(b.team, b.rows, product(x, fc.forward, pre),
           BiasGelu<T>{.pre = pre.at, .act = act.at, .row_stride = pre.stride, .bias = fc.bias, .by_tanh = c.tanh});
    return b.team.wait();
  }
  matmul(b.team, b.rows, product(x, fc.forward, pre), AddBias<T>{pre.at, pre.stride, fc.bias});
  b.team.wait();
  launch_columns(b.team, b.rows, c.inner(), SwiGlu<T>{pre.at, pre.stride, c.inner(), act.at, act.stride});
}

// ---------------------------------------------------------------------------------------------------------------
// Compiled once: machine/library.cpp

#ifdef INSTANTIATE
#define FORWARD(W, S)                                                                                \
  INSTANTIATE void forward(const Team&, const Config&, const Weights<float, W>&, const DeviceBatch&, \
                           const Activations<float, S>&, int, const Dropout&);
FORWARD(float, float)
FORWARD(AnyNumber, float)
FORWARD(AnyNumber, bf16)
#undef FORWARD
#endif

}  // namespace nanospec
