// model.h: one transformer: GPT as nanoGPT defines it, and the Llama family, as settings of one text.
//
// In order: the configuration; the one table of tensors; weights as the forward reads them; the activations with their
// shapes; forward; backward; the update, and `Trainer`, which owns what training needs. There is one forward. Its rows
// are a Batch (machine/launch.h): to train, a forest of chains without a past; to decode, one tree with a past. The
// file knows no drafters, files or command lines.
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
  int vocab_size = 65;  // V; 0: layers alone, without embedding, last norm and head, as a drafter's network may be
  bool bias = false;    // biases in the linear layers and the norms
  // What Llama (Touvron et al. 2023) does otherwise. 0 stands for GPT's size.
  int head_dim = 0;     // D; 0: C / H
  int n_inner = 0;      // F, channels between the two matrices of the MLP; 0: 4 C
  bool rotary = false;  // positions rotate queries and keys; else they are learned embeddings
  bool swiglu = false;  // SwiGLU with three matrices; else GELU with two
  bool center = true;   // LayerNorm; else RMSNorm
  bool tied = true;     // the head is the embedding
  float norm_epsilon = 1e-5f, rope_theta = 10000;

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
    T *ln_1, *ln_1_bias, *qkv, *qkv_bias, *proj, *proj_bias, *ln_2, *ln_2_bias, *fc, *fc_bias, *fc_proj, *fc_proj_bias;
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
    const auto linear = [&](const std::string& name, int in, int out, float init_std, T*& weight, T*& bias) {
      f(name + ".weight", {in, out}, init_std, weight);
      if (config.bias) f(name + ".bias", {out}, 0.0f, bias);
    };
    if (config.vocab_size) f("wte.weight", {config.vocab_size, C}, std, wte);
    if (!config.rotary) f("wpe.weight", {config.block_size, C}, std, wpe);
    layers.resize(size_t(config.n_layer));
    for (int l = 0; l < config.n_layer; l++) {
      Layer& layer = layers[l];
      const std::string block = "h." + std::to_string(l) + ".";
      norm(block + "ln_1", layer.ln_1, layer.ln_1_bias);
      linear(block + "attn.c_attn", C, config.qkv_size(), std, layer.qkv, layer.qkv_bias);
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

// The table of a model's tensors. A model's sizes are checked where they come from: files/sizes.h.
inline std::vector<TensorSpec> tensor_table(const Config& config) { return table_of<Tensors>(config); }

// How many numbers the flat array holds. It cannot overflow for sizes that were accepted there.
inline uint64_t parameter_count(const Config& config) {
  uint64_t count = 0;
  Tensors<float>().each(
      config, [&](const std::string&, const std::vector<int>& shape, float, float*&) { count += numbers_of(shape); });
  return count;
}

// ---------------------------------------------------------------------------------------------------------------
// Weights as the forward reads them

// (positions, D / 2, 2) the cosine and sine of the angle by which Rope rotates pair d of a head at position
// first_position + p. The angle is position / theta^(2 d / D).
template <class T>
std::vector<T> rope_table(int positions, int head_size, double theta = 10000, int first_position = 0) {
  std::vector<T> table;
  table.reserve(size_t(positions) * (head_size / 2) * 2);
  std::vector<double> step;  // radians for one position
  for (int d = 0; d < head_size / 2; d++) step.push_back(exp(-2.0 * d / head_size * log(theta)));
  for (int p = 0; p < positions; p++)
    for (int d = 0; d < head_size / 2; d++) {
      const double angle = (first_position + p) * step[size_t(d)];
      table.push_back(T(cos(angle)));
      table.push_back(T(sin(angle)));
    }
  return table;
}

// Where a model's weights come from: read() writes one tensor of the table to host memory. type() says how the source
// stores it; of 8 and 4 bits blocks() gives every output's blocks of k as they are. A pointer stands for the flat array
// of all.
struct TensorSource {
  using SetBlock = std::function<void(int output, int b, const IntegerBlock& block)>;
  std::function<void(const TensorSpec& spec, float* to)> read;
  std::function<Dtype(const TensorSpec& spec)> type = [](const TensorSpec&) { return Dtype::fp32; };
  std::function<void(const TensorSpec& spec, const SetBlock& set)> blocks;
  TensorSource(std::function<void(const TensorSpec&, float*)> reader = nullptr) : read(std::move(reader)) {}
  TensorSource(const float* flat)
      : read([flat](const TensorSpec& spec, float* to) { std::copy_n(flat + spec.offset, spec.size, to); }) {}
};

template <class T, class W>
struct Weights {
  struct Layer {
    Weight<T, W> qkv, proj, fc, fc_proj;
  };
  Tensors<const T> plain;  // embeddings, norms and biases are read as they are stored
  std::vector<Layer> layers;
  Weight<T, W> head;  // the embedding, where it is tied
  Panels<W> symbols;  // an embedding of 8 or 4 bits, in place of plain.wte: the head's panels, where it is tied
  Array<T> rope;      // (block, D / 2, 2) rope_table(); none for learned positions
  Array<W> memory;    // all panels; none where a GPU trains: cuBLAS needs no panels
  Array<T> stored;    // what `plain` points into; none where training has the flat array

  Weights() = default;
  // flat: the parameters, in the device's memory; each pack() reads them again. training: with the panels of the
  // transposes, which backward() reads.
  Weights(const Config& c, const Tensors<const T>& flat, bool cuda, bool training = true) : plain(flat) {
    const auto all = list(c, cuda);
    if (kTuned && cuda && std::is_same<T, float>::value && std::is_same<W, float>::value)
      for (Weight<T, W>* weight : all) weight->use_stored();
    else memory = place_weights(all, training, cuda);
  }
  // To decode, with weights of that type. Each matrix is packed before the next one is read: so memory holds but one as
  // it is stored.
  Weights(const Config& c, const TensorSource& source, Dtype dtype, Pool& pool) {
    const bool cuda = pool.cuda();
    const std::vector<TensorSpec> table = tensor_table(c);
    const auto type_of = [&](const TensorSpec& spec) { return dtype == Dtype::as_stored ? source.type(spec) : dtype; };
    const bool packs_wte = is_quantized(type_of(table[0]));
    const auto stays = [&](const TensorSpec& spec) {  // norms and biases, wpe, and wte or not
      return !spec.decay || spec.name == "wpe.weight" || (spec.name == "wte.weight" && !packs_wte);
    };
    const auto has_blocks = [&](const TensorSpec& spec) {
      return is_quantized(type_of(spec)) && source.type(spec) == type_of(spec);
    };
    size_t kept = 0, largest = 0;
    for (const TensorSpec& spec : table) {
      if (stays(spec)) kept += spec.size;
      if (stays(spec) ? cuda : !has_blocks(spec)) largest = std::max(largest, spec.size);
    }
    stored = Array<T>(kept, cuda);
    size_t number = 0, next = 0;
    plain.each(c, [&](const std::string&, const std::vector<int>&, float, const T*& tensor) {
      const TensorSpec& spec = table[number++];
      tensor = stays(spec) ? stored.data() + next : nullptr;
      if (tensor) next += spec.size;
    });
    auto all = list(c, cuda), in_table = all;
    Weight<T, W> wte{nullptr, c.n_embd, c.vocab_size, true};
    if (c.tied) in_table.pop_back();
    if (packs_wte) in_table.insert(in_table.begin(), c.tied ? &head : &wte);
    if (packs_wte && !c.tied) all.push_back(&wte);
    auto weight = in_table.begin();
    for (const TensorSpec& spec : table)
      if (!stays(spec)) (*weight++)->forward.dtype = type_of(spec);
    if (c.tied) head.forward.dtype = type_of(table[0]);
    memory = place_weights(all, false, cuda);
    if (packs_wte) symbols = (c.tied ? head : wte).forward;

    std::vector<T> one(largest);
    Array<T> one_on_gpu(cuda ? largest : 0, cuda);
    const auto pack_one = [&](Weight<T, W>& its, const T* from) {
      its.from = from;
      pool.run([&](const Team& team) { its.pack(team); });
    };
    weight = in_table.begin();
    next = 0;
    for (const TensorSpec& spec : table) {
      if (!stays(spec) && has_blocks(spec)) {
        set_blocks((*weight++)->forward, memory, [&](const TensorSource::SetBlock& set) { source.blocks(spec, set); });
        continue;
      }
      T* const place = cuda || !stays(spec) ? one.data() : stored.data() + next;
      source.read(spec, place);
      if (stays(spec)) {
        if (cuda) stored.upload(one.data(), spec.size, next);
        next += spec.size;
      } else {
        if (cuda) one_on_gpu.upload(one.data(), spec.size);
        pack_one(**weight++, cuda ? one_on_gpu.data() : one.data());
      }
    }
    if (c.tied && !packs_wte) pack_one(head, plain.wte);
  }
  void pack(const Team& team) const {
    each(*this, [&](const Weight<T, W>& weight) { weight.pack(team); });
  }
  size_t bytes() const {  // what a forward of one row reads of them
    size_t sum = 0;
    each(*this, [&](const Weight<T, W>& weight) { sum += weight.bytes(); });
    return sum;
  }

 private:
  // Lists all weights, in the order of their use. Also makes the table of positions.
  std::vector<Weight<T, W>*> list(const Config& c, bool cuda) {
    const int C = c.n_embd;
    for (const auto& layer : plain.layers)
      layers.push_back({{layer.qkv, C, c.qkv_size()},
                        {layer.proj, c.heads_size(), C},
                        {layer.fc, C, c.hidden()},
                        {layer.fc_proj, c.inner(), C}});
    if (c.vocab_size) head = {c.tied ? plain.wte : plain.lm_head, C, c.vocab_size, true};
    if (c.rotary) {
      const std::vector<T> table = rope_table<T>(c.block_size, c.head_size(), c.rope_theta);
      rope = Array<T>(table.size(), cuda);
      rope.upload(table.data(), table.size());
    }
    std::vector<Weight<T, W>*> all;
    each(*this, [&](Weight<T, W>& weight) { all.push_back(&weight); });
    return all;
  }
  template <class Self, class F>
  static void each(Self& self, F f) {
    for (auto& layer : self.layers)
      for (auto* weight : {&layer.qkv, &layer.proj, &layer.fc, &layer.fc_proj}) f(*weight);
    f(self.head);
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Activations

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
  T* operator[](int l) const { return at(l, 0); }
  T* at(int l, int row) const { return this->data() ? this->data() + l * layer + row * stride : nullptr; }
};

// Up to this many rows, each thread normalizes all rows for itself: that is cheaper than a barrier.
constexpr int kFewRows = 8;

// What a forward of up to R rows computes, each array named once. Decoding has one layer's arrays, which all layers use
// in turn, and the keys and values of all layers. Training has every layer's, for the backward. But it has the outputs
// of the norms and of the GELU only once: the backward computes them again, which is cheap and saves a quarter of the
// memory.
template <class T, class S = T>
struct Activations {
  Config config;
  int R = 0, N = 0, slots = 0;  // rows of a forward, of its norms (see normalize()), of the cache
  bool training = false, cuda = false;
  bool cache_is_read = true;  // whether a later forward reads what this one writes into the cache

  Activations() = default;
  Activations(const Config& c, int rows, int slot_count, bool keep_layers, int threads, bool on_gpu)
      : config(c),
        R(rows),
        N(keep_layers ? rows : std::max(rows, threads * kFewRows)),
        slots(slot_count),
        training(keep_layers),
        cuda(on_gpu) {}

  template <class Number = T>
  Rows<Number> room(size_t layers, size_t rows, size_t stride) const {
    return {layers, rows, stride, cuda};
  }
  Rows<T> each(size_t stride) const { return room(training ? L : 1, R, stride); }   // in training one for each layer
  Rows<T> once(size_t rows, size_t stride) const { return room(1, rows, stride); }  // one for all layers
  Rows<T> saved(size_t stride) const { return room(training ? L : 0, R, stride); }  // for the backward alone

  int L = config.n_layer, H = config.n_head, KV = config.n_kv_head, D = config.head_size();
  // Strides: an odd number of cache lines, so that the same columns of many rows do not meet in a few sets of a cache.
  int C = pad16(config.n_embd) | 16, Q = pad16(config.qkv_size()) | 16, A = pad16(config.heads_size()) | 16;
  int G = pad16(config.hidden()) | 16, F = pad16(config.inner()) | 16, V = pad16(config.vocab_size);
  size_t k_layer = KV * KeyValues<S>::key_numbers(slots, D), v_layer = KV * KeyValues<S>::value_numbers(slots, D);

  Rows<T> x = room(training ? L + 1 : 1, R, C);  // (L + 1, R, C) the residual stream before each layer and at the end
  Rows<T> norm_1 = once(N, C);                   // (R, C) the norm of x
  Rows<T> mean_1 = saved(1), rstd_1 = saved(1);  // (L, R) each: the mean of a row of x, and 1 / its standard deviation
  Rows<T> qkv = each(Q);                         // (L, R, H D + 2 KV D) queries of all heads, then keys, then values
  Rows<S> k = room<S>(L, 1, k_layer);            // (L, KV, slots, D) the cache: KeyValues says how it lies
  Rows<S> v = room<S>(L, 1, v_layer);            // (L, KV, slots, D)
  Rows<T> log_sum = saved(H);                    // (L, R, H) of the softmax
  Rows<T> att = each(A);                         // (L, R, H D) the outputs of all heads, side by side
  Rows<T> mid = each(C);                         // (L, R, C) the residual stream between attention and MLP
  Rows<T> norm_2 = once(N, C);                   // (R, C) the norm of mid
  Rows<T> mean_2 = saved(1), rstd_2 = saved(1);  // (L, R) each
  Rows<T> pre = each(G);                         // (L, R, F) before the GELU; (L, R, 2 F) gates and ups of SwiGLU
  Rows<T> act = once(R, F);                      // (R, F) after it
  Rows<T> norm_f = once(N, C);                   // (R, C) the norm of the last x
  Rows<T> mean_f = once(training ? R : 0, 1), rstd_f = once(training ? R : 0, 1);  // (R) each
  Rows<T> logits = once(R, V);                                                     // (R, V)
  Rows<T> attention_scratch = once(1, attention_scratch_size<T>(R, H, D, slots, training, cuda));

  KeyValues<S> cache(int l) const { return {k[l], v[l], slots, D}; }
  size_t row_bytes() const { return sizeof(T) * size_t(4 * C + G + F); }  // of one row in the widest part of a layer
};

// ---------------------------------------------------------------------------------------------------------------
// Forward

// The sites where dropout is applied. Each has a number, so that no two draw the same random bits.
enum { kDropEmbedding, kDropAttention, kDropProjection, kDropMlp };
inline Dropout dropout_at(Dropout dropout, int layer, int site, int row = 0) {  // from a row on
  dropout.site = uint32_t(layer * 4 + site);
  dropout.first_row += row;
  return dropout;
}

// The model's norm of rows of x_row numbers, from x to y.
template <class T>
Norm<T> norm_of(const Config& c, const T* x, int x_row, const T* weight, const T* bias, T* y, T* mean, T* rstd) {
  return {x, x_row, c.n_embd, weight, bias, y, x_row, mean, rstd, c.center, T(c.norm_epsilon)};
}
// The activations of layer l from a row on. What only the rows of one block need, the results of norms and act, lies
// from the row `room` on.
template <class T, class S = T>
struct LayerRows {
  const Activations<T, S>& a;
  const typename Tensors<const T>::Layer& w;
  int l, row, room;
  T *x = a.x.at(l, row), *qkv = a.qkv.at(l, row), *att = a.att.at(l, row), *mid = a.mid.at(l, row);
  T *pre = a.pre.at(l, row), *act = a.act.at(l, room), *next = a.x.at(l + 1, row);  // next: the x of layer l + 1
  Norm<T> norm_1 =
      norm_of(a.config, x, a.C, w.ln_1, w.ln_1_bias, a.norm_1.at(l, room), a.mean_1.at(l, row), a.rstd_1.at(l, row));
  Norm<T> norm_2 =
      norm_of(a.config, mid, a.C, w.ln_2, w.ln_2_bias, a.norm_2.at(l, room), a.mean_2.at(l, row), a.rstd_2.at(l, row));
};
// The attention of layer l; the norm after the last layer, from a row on.
template <class T, class S>
Attention<T, S> attention_of(const DeviceBatch& batch, const Activations<T, S>& a, int l, const Dropout& dropout) {
  return {batch.forest, a.H, a.KV,         a.D,     a.qkv[l],       a.Q,   a.cache(l),
          a.att[l],     a.A, a.log_sum[l], dropout, batch.computed, false, a.cache_is_read};
}
template <class T, class S>
Norm<T> norm_f(const Activations<T, S>& a, const Tensors<const T>& w, int layers, int first) {
  return norm_of(a.config, a.x.at(layers, first), a.C, w.ln_f, w.ln_f_bias, a.norm_f.at(0, first),
                 a.mean_f.at(0, first), a.rstd_f.at(0, first));
}

// The norm of all rows. Returns where this thread finds the result; null if the product is to normalize (Matmul::norm).
template <class T>
T* normalize(const Team& team, int rows, Norm<T> norm, bool training) {
  if (team.cuda && !training) return nullptr;
  if (training || team.size == 1 || rows > kFewRows) {
    launch(team, rows, norm);
    return norm.y;
  }
  norm.y += size_t(team.rank) * kFewRows * norm.y_row;
  for (int row = 0; row < rows; row++) norm(Solo{}, row);
  return norm.y;
}

// Rotates queries and keys of the rows from `first` on, or with `back` their gradients: qkv (R, a.Q).
template <class T, class S>
Rope<T> rope_of(const DeviceBatch& batch, const Activations<T, S>& a, int first, T* qkv, const T* table, bool back) {
  return {batch.forest, first, qkv, a.Q, a.H + a.KV, a.D, table, back};
}

// act (R, F) = GELU(pre) or SwiGLU(pre), with pre (R, hidden) = norm W + b.
template <class T, class W>
void activate(const Team& team, int rows, const Config& c, const Matmul<T, W>& fc, const T* bias, T* act, int F) {
  if (!c.swiglu) {
    matmul(team, rows, fc, BiasGelu<T>{fc.out, act, F, bias});
    return team.wait();
  }
  matmul(team, rows, fc, AddBias<T>{fc.out, fc.out_row, bias});
  team.wait();
  launch_columns(team, rows, c.inner(), SwiGlu<T>{fc.out, fc.out_row, c.inner(), act, F});
}

// out (R, C) = residual + dropout(product + bias): a branch joins the residual stream. The product writes out.
template <class T, class W>
void join(const Team& team, int rows, const Matmul<T, W>& s, const T* residual, const T* bias, const Dropout& dropout) {
  if (dropout.rate == 0) {
    matmul(team, rows, s, JoinResidual<T>{residual, s.out, s.out_row, bias});
    return team.wait();
  }
  matmul(team, rows, s, AddBias<T>{s.out, s.out_row, bias});
  team.wait();
  drop(team, rows, Drop<T>{s.out, s.out, s.out_row, s.w.n, dropout});
  launch_columns(team, rows, s.w.n, JoinResidual<T>{residual, s.out, s.out_row, nullptr});
}

// What forward() calls after each layer, on every thread of the team: so many layers are done, and x is the residual
// stream, `rows` rows of x_row numbers. The next layer may overwrite it.
template <class T>
using AfterLayer = std::function<void(const Team& team, int layers, int rows, const T* x, int x_row)>;

// Runs the network over the rows of a batch: embeddings, layers and, with_logits, the logits of all rows in a.logits.
// Every thread of the team calls it. The rows' keys and values stay in the cache, behind each root's past. c may have
// fewer layers than the model: then only the first ones run. Without a vocabulary the layers alone run, from what
// a.x[0] holds to the last a.x; only then may an earlier forward have run the first rows (batch.computed).
template <class T, class W, class S>
void forward(const Team& team, const Config& c, const Weights<T, W>& w, const DeviceBatch& batch,
             const Activations<T, S>& a, bool with_logits, const Dropout& dropout = {},
             const AfterLayer<T>& after_layer = {}) {
  const int first = batch.computed, R = batch.forest.rows - first, C = c.n_embd;
  const auto blocks = [&](const auto& f) { by_blocks(team, first, R, a.row_bytes(), f); };
  // x (R, C) = the token's embedding + the position's
  if (w.symbols.data) unpack(team, R, Unpack<T, W>{batch.token(), w.symbols, a.x[0], a.C});
  if (c.vocab_size) {
    launch(team, R, Embed<T>{batch.token(), batch.forest, w.plain.wte, w.plain.wpe, a.x[0], a.C, C});
    drop(team, R, Drop<T>{a.x[0], a.x[0], a.C, C, dropout_at(dropout, c.n_layer, kDropEmbedding)});
  }
  for (int l = 0; l < c.n_layer; l++) {
    const auto& plain = w.plain.layers[l];
    const auto& packed = w.layers[l];
    // qkv (R, Q) = norm_1(x) W + b
    Attention<T, S> heads = attention_of(batch, a, l, dropout_at(dropout, l, kDropAttention));
    blocks([&](const RowBlock& block) {
      const auto& [some, row, rows, room] = block;
      const LayerRows<T, S> at{a, plain, l, row, room};
      const T* normal = normalize(some, rows, at.norm_1, a.training);
      matmul_qkv(some, rows, Matmul<T, W>{normal, a.C, packed.qkv.forward, at.qkv, a.Q, at.norm_1},
                 AddBias<T>{at.qkv, a.Q, plain.qkv_bias}, heads);
      if (!c.rotary) return;
      some.wait();  // queries and keys turn by their positions
      rotate(some, rows, rope_of(batch, a, row, a.qkv[l], w.rope.data(), false), heads);
    });
    if (!with_logits && l == c.n_layer - 1) {  // of the last layer a prefill needs the keys and values alone
      team.wait();
      if (!heads.in_cache) launch(team, R, WriteCache<T, S>{heads});
      return;
    }
    // att (R, H D) = attention(qkv, cache)
    attention(team, heads, a.attention_scratch.data(), a.slots);
    blocks([&](const RowBlock& block) {
      const auto& [some, row, rows, room] = block;
      const LayerRows<T, S> at{a, plain, l, row, room};
      // mid (R, C) = x + att W + b
      join(some, rows, Matmul<T, W>{at.att, a.A, packed.proj.forward, at.mid, a.C}, at.x, plain.proj_bias,
           dropout_at(dropout, l, kDropProjection, row));
      // act (R, F) = GELU(norm_2(mid) W + b), or SwiGLU
      const T* normal = normalize(some, rows, at.norm_2, a.training);
      activate(some, rows, c, Matmul<T, W>{normal, a.C, packed.fc.forward, at.pre, a.G, at.norm_2}, plain.fc_bias,
               at.act, a.F);
      // x (R, C) = mid + act W + b
      join(some, rows, Matmul<T, W>{at.act, a.F, packed.fc_proj.forward, at.next, a.C}, at.mid, plain.fc_proj_bias,
           dropout_at(dropout, l, kDropMlp, row));
    });
    if (after_layer) after_layer(team, l + 1, R, a.x.at(l + 1, first), a.C);
  }
  if (!with_logits || !c.vocab_size) return;
  // logits (R, V) = norm_f(x) wte^T, or a head of its own
  blocks([&](const RowBlock& block) {
    const auto& [some, row, rows, room] = block;
    const Norm<T> norm = norm_f(a, w.plain, c.n_layer, row);
    const T* normal = normalize(some, rows, norm, a.training);
    matmul(some, rows, Matmul<T, W>{normal, a.C, w.head.forward, a.logits.at(0, row), a.V, norm});
    some.wait();
  });
}

// ---------------------------------------------------------------------------------------------------------------
// Backward

// The gradients of activations. One layer's arrays serve for all layers in turn.
template <class T>
struct Gradients {
  const Activations<T>& a;
  // Whether there are gradients of every layer's keys and values, the past's too. Then backward() adds to what is in
  // them; else it begins at zero.
  bool past_gradients = false;

  static constexpr bool portable = !kTuned || !std::is_same<T, float>::value;  // attention is the portable version
  Rows<T> stream = a.once(a.R, a.C);                                           // (R, C) the residual stream's
  Rows<T> norm = a.once(a.R, a.C);                                             // (R, C) a norm's
  Rows<T> branch = a.once(a.R, a.C);  // (R, C) the part of the stream's that flows into a branch with dropout
  Rows<T> qkv = a.once(a.R, a.Q);     // (R, H D + 2 KV D)
  Rows<T> att = a.once(a.R, a.A);     // (R, H D)
  Rows<T> k = a.room(past_gradients ? a.L : 1, 1, a.v_layer);  // (1, KV, slots, pad16(D)), or (L, ...)
  Rows<T> v = a.room(past_gradients ? a.L : 1, 1, a.v_layer);
  // Scratch of attention: attention_backward() says what it needs.
  Rows<T> p = a.once(portable || a.cuda ? a.R : 0, size_t(a.H) * (portable ? a.slots : 1));
  Rows<T> ds = a.once(portable ? a.R : 0, size_t(a.H) * a.slots);
  Rows<int> order = a.template room<int>(1, a.cuda ? 2 : 0, a.R);  // scratch of the embedding on a GPU: rows by token
};

// The gradient through one norm: dy (R, C) comes from above, and adds to dx (R, C).
template <class T>
NormBackward<T> norm_backward(const Norm<T>& s, const T* dy, T* dx) {
  return {s.x, s.x_row, s.channels, s.weight, s.center ? s.mean : nullptr, s.rstd, dy, s.x_row, dx};
}
// The gradients of its weights and biases.
template <class T>
NormWeights<T> weights_of(int rows, const Norm<T>& s, const T* dy, T* dweight, T* dbias) {
  return {rows, s.x, s.x_row, s.channels, s.center ? s.mean : nullptr, s.rstd, dy, s.x_row, dweight, dbias};
}

// The gradient of pre (R, a.G), into pre, from that of act, which the matmul writes into act. Then act is again what
// the forward had there, and did not store.
template <class T, class W>
void activate_backward(const Team& team, int rows, const Matmul<T, W>& matmul_back, const Activations<T>& a, T* pre) {
  if (!a.config.swiglu) return matmul(team, rows, matmul_back, GeluBackward<T>{pre, matmul_back.out, a.F});
  matmul(team, rows, matmul_back);
  team.wait();
  launch(team, rows, SwiGluBackward<T>{pre, a.G, a.config.inner(), matmul_back.out, a.F});
}

// The gradient through the last norm and the head: into g.stream.
template <class T, class W>
void head_backward(const Team& team, const Config& c, const Weights<T, W>& w, int rows, const Activations<T>& a,
                   const Gradients<T>& g, const Tensors<T>& d) {
  zero(team, g.stream.data(), size_t(rows) * a.C);
  matmul_gradient(team, MatmulGradient<T>{rows, c.vocab_size, c.n_embd, a.logits.data(), a.V, a.norm_f.data(), a.C,
                                          c.tied ? d.wte : d.lm_head});
  by_blocks(team, 0, rows, a.row_bytes(), [&](const RowBlock& block) {
    const auto& [some, row, n, room] = block;
    matmul(some, n, Matmul<T, W>{a.logits.at(0, row), a.V, w.head.transposed, g.norm.at(0, row), a.C});
    some.wait();
    launch(some, n, norm_backward(norm_f(a, w.plain, c.n_layer, row), g.norm.at(0, row), g.stream.at(0, row)));
  });
  norm_weights(team, weights_of(rows, norm_f(a, w.plain, c.n_layer, 0), g.norm.data(), d.ln_f, d.ln_f_bias));
}

// Adds every parameter's gradient to d. It follows a forward whose a.logits have become dlogits; without a vocabulary
// g.stream is the gradient of the last x, and becomes that of the first. Every thread of the team calls it.
template <class T, class W>
void backward(const Team& team, const Config& c, const Weights<T, W>& w, const DeviceBatch& batch,
              const Activations<T>& a, const Gradients<T>& g, const Tensors<T>& d, const Dropout& dropout = {}) {
  const int first = batch.computed, R = batch.forest.rows - first;
  const int C = c.n_embd, A = c.heads_size(), F = c.inner(), Q = c.qkv_size();
  const auto blocks = [&](const auto& f) { by_blocks(team, first, R, a.row_bytes(), f); };

  if (c.vocab_size) head_backward(team, c, w, R, a, g, d);  // logits = norm_f(x) wte^T
  // The gradient that flows from the stream into a branch, through the branch's dropout, lies in dout.
  const Rows<T>& dout = dropout.rate == 0 ? g.stream : g.branch;
  const auto into_branch = [&](const RowBlock& block, int l, int site) {
    T *const from = g.stream.at(0, block.row), *const to = g.branch.at(0, block.row);
    drop(block.team, block.rows, Drop<T>{from, to, a.C, C, dropout_at(dropout, l, site, block.row)});
  };
  for (int l = c.n_layer - 1; l >= 0; l--) {
    const auto& plain = w.plain.layers[l];
    const auto& packed = w.layers[l];
    const auto& dl = d.layers[l];
    const LayerRows<T> all{a, plain, l, first, first};
    T* const dnorm = g.norm.at(0, first);

    // x' = mid + act W + b
    blocks([&](const RowBlock& block) {
      const auto& [some, row, rows, room] = block;
      const LayerRows<T> at{a, plain, l, row, row};
      into_branch(block, l, kDropMlp);
      activate_backward(some, rows, Matmul<T, W>{dout.at(0, row), a.C, packed.fc_proj.transposed, at.act, a.F}, a,
                        at.pre);
      some.wait();
    });
    matmul_gradient(team,
                    MatmulGradient<T>{R, F, C, all.act, a.F, dout.at(0, first), a.C, dl.fc_proj, dl.fc_proj_bias});
    team.wait();  // the gradient of the stream goes on to mid
    blocks([&](const RowBlock& block) {
      const auto& [some, row, rows, room] = block;
      const LayerRows<T> at{a, plain, l, row, row};
      T* const its_dnorm = g.norm.at(0, row);
      launch(some, rows, at.norm_2);  // again: the forward did not store it
      // pre = norm_2(mid) W + b
      matmul(some, rows, Matmul<T, W>{at.pre, a.G, packed.fc.transposed, its_dnorm, a.C});
      some.wait();
      launch(some, rows, norm_backward(at.norm_2, its_dnorm, g.stream.at(0, row)));
      // mid = x + att W + b
      into_branch(block, l, kDropProjection);
      matmul(some, rows, Matmul<T, W>{dout.at(0, row), a.C, packed.proj.transposed, g.att.at(0, row), a.A});
      some.wait();
    });
    matmul_gradient(team, MatmulGradient<T>{R, C, c.hidden(), all.norm_2.y, a.C, all.pre, a.G, dl.fc, dl.fc_bias});
    norm_weights(team, weights_of(R, all.norm_2, dnorm, dl.ln_2, dl.ln_2_bias));
    matmul_gradient(team, MatmulGradient<T>{R, A, C, all.att, a.A, dout.at(0, first), a.C, dl.proj, dl.proj_bias});
    // att = attention(qkv, cache)
    const Attention<T> heads = attention_of(batch, a, l, dropout_at(dropout, l, kDropAttention));
    attention_backward(team, AttentionBackward<T>{heads, g.att.data(), g.k[l], g.v[l], g.qkv.data(), g.past_gradients},
                       g.p.data(), g.ds.data(), a.slots);
    // qkv = norm_1(x) W + b
    blocks([&](const RowBlock& block) {
      const auto& [some, row, rows, room] = block;
      const LayerRows<T> at{a, plain, l, row, row};
      launch(some, rows, at.norm_1);  // again
      if (c.rotary) rotate(some, rows, rope_of(batch, a, row, g.qkv.data(), w.rope.data(), true), heads);
      matmul(some, rows, Matmul<T, W>{g.qkv.at(0, row), a.Q, packed.qkv.transposed, g.norm.at(0, row), a.C});
      some.wait();
      launch(some, rows, norm_backward(at.norm_1, g.norm.at(0, row), g.stream.at(0, row)));
    });
    matmul_gradient(team, MatmulGradient<T>{R, C, Q, all.norm_1.y, a.C, g.qkv.at(0, first), a.Q, dl.qkv, dl.qkv_bias});
    norm_weights(team, weights_of(R, all.norm_1, dnorm, dl.ln_1, dl.ln_1_bias));
    team.wait();  // the next layer's norms overwrite these
  }
  if (!c.vocab_size) return;
  T* const dx = g.stream.data();
  drop(team, R, Drop<T>{dx, dx, a.C, C, dropout_at(dropout, c.n_layer, kDropEmbedding)});
  embed_backward(team, EmbedBackward<T>{R, batch.token(), batch.forest, dx, a.C, C, d.wte, d.wpe}, g.order.data());
}

// ---------------------------------------------------------------------------------------------------------------
// Training

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

// What one AdamW update needs to know; names and defaults are nanoGPT's.
struct Update {
  int64_t iteration = 0;  // updates made before this one
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.99, weight_decay = 0.1, grad_clip = 1.0;
};

// The learning rate: a warm-up, then a cosine down to the lowest rate (Loshchilov, Hutter 2017), as nanoGPT's get_lr.
inline double cosine_rate(int64_t iteration, int warmup, int decay, double most, double least) {
  if (iteration < warmup) return most * double(iteration + 1) / (warmup + 1);
  if (iteration > decay) return least;
  const double decayed = double(iteration - warmup) / std::max(1, decay - warmup);
  return least + 0.5 * (1 + cos(3.14159265358979323846 * decayed)) * (most - least);
}

// Part of one tensor in the flat array of parameters: the optimizer's unit of work.
struct Piece {
  size_t offset;
  int size;
  float decay;  // factor of the weight decay: 1 for matrices, 0 for norms and biases
};

// sums[piece] = the sum of the squares of its gradients. A row of this operation is a piece.
template <class T>
struct SumSquares {
  const Piece* pieces;
  const T* gradient;
  T* sums;  // (pieces)
  template <class G>
  HD void operator()(const G& g, int row) const {
    const T* d = gradient + pieces[row].offset;
    const T sum = g.template sum<T>(pieces[row].size, [=](int i) { return d[i] * d[i]; });
    g.each(1, [&](int) { sums[row] = sum; });
  }
};

// AdamW (Loshchilov, Hutter 2019). A row of this operation is a piece.
//   w -= rate decay w;  m = b1 m + (1 - b1) d;  v = b2 v + (1 - b2) d^2;  w -= rate (m / c1) / (sqrt(v / c2) + eps)
template <class T>
struct AdamW {
  const Piece* pieces;
  T *weight, *m, *v;
  const T *gradient, *norm;
  T rate, decay, beta1, beta2, correction1, correction2;  // c1 = 1 - b1^t, c2 = 1 - b2^t at update t = 1, 2, ...
  template <class G>
  HD void operator()(const G& g, int row) const {
    const Piece piece = pieces[row];
    T *w = weight + piece.offset, *pm = m + piece.offset, *pv = v + piece.offset;
    const T *d = gradient + piece.offset, clip = norm[1];
    const T keep = T(1) - rate * decay * T(piece.decay), step = rate / correction1,
            root = T(1) / square_root(correction2);
    const T b1 = beta1, b2 = beta2;
    struct Updated {
      T w, m, v;
    };
    const auto store = [=](int i, Updated u) {
      w[i] = u.w;
      pm[i] = u.m;
      pv[i] = u.v;
    };
    g.map(store, piece.size, [=](int i) {
      const T x = d[i] * clip, m1 = fused(b1, pm[i], (T(1) - b1) * x), m2 = fused(b2, pv[i], (T(1) - b2) * x * x);
      return Updated{w[i] * keep - step * m1 / (square_root(m2) * root + T(1e-8)), m1, m2};
    });
  }
};

// AdamW over a flat array of parameters, after the whole gradient has been clipped.
template <class T>
class Optimizer {
 public:
  Optimizer(const std::vector<TensorSpec>& table, bool cuda) : norm_(2, cuda) {
    std::vector<Piece> pieces;
    const size_t most = cuda ? 1024 : 8192;  // of one piece: on a GPU, so few that a small model's pieces fill it
    for (const TensorSpec& spec : table)
      for (size_t at = 0; at < spec.size; at += most)
        pieces.push_back({spec.offset + at, int(std::min(most, spec.size - at)), spec.decay ? 1.0f : 0.0f});
    pieces_ = Array<Piece>(pieces.size(), cuda);
    pieces_.upload(pieces.data(), pieces.size());
    squares_ = Array<T>(pieces.size(), cuda);
  }
  void step(const Team& team, const Update& u, T* weights, const T* gradient, T* m, T* v) const {
    const int pieces = int(pieces_.size());
    const int64_t t = u.iteration + 1;
    launch(team, pieces, SumSquares<T>{pieces_.data(), gradient, squares_.data()});
    launch_sum(team, ClipFactor<T>{squares_.data(), pieces, T(u.grad_clip), norm_.data()});
    launch(team, pieces,
           AdamW<T>{pieces_.data(), weights, m, v, gradient, norm_.data(), T(u.learning_rate), T(u.weight_decay),
                    T(u.beta1), T(u.beta2), T(1 - power(u.beta1, t)), T(1 - power(u.beta2, t))});
  }

 private:
  Array<T> norm_, squares_;
  Array<Piece> pieces_;
};

// Everything that training needs: parameters, their packed forms, gradients, moments, and what a forward computes.
//
// On a CPU the first half of a batch's sequences and the second have a gradient each, and the two are added, whatever
// the threads. So the halves of a team need neither wait for each other nor read what lies in the other's caches.
template <class T>
class Trainer {
 public:
  const Config config;
  Array<T> weights, gradient, m, v;  // flat: tensor_table(config) says what lies where

  // past_gradients: see Gradients; then a batch is not halved.
  Trainer(const Config& sizes, Pool& pool, bool past_gradients = false)
      : config(sizes),
        weights(parameter_count(sizes), pool.cuda()),
        gradient(parameter_count(sizes), pool.cuda()),
        m(parameter_count(sizes), pool.cuda()),
        v(parameter_count(sizes), pool.cuda()),
        past_gradients_(past_gradients),
        pool_(pool),
        packed_(sizes, {sizes, weights.data()}, pool.cuda()),
        optimizer_(tensor_table(sizes), pool.cuda()) {}

  // Sets the parameters to their initial values. The moments start at zero.
  void initialize(uint64_t seed) {
    const std::vector<float> values = initial_weights(config, seed);
    set_weights(std::vector<T>(values.begin(), values.end()).data());
  }
  // Sets the parameters; the moments stay as they are.
  void set_weights(const T* flat) {
    weights.upload(flat, weights.size());
    pool_.run([&](const Team& team) { packed_.pack(team); });
  }

  // The mean cross-entropy of batch.target (natural logarithm).
  T loss(const Batch& batch, const Dropout& dropout = {}) {
    upload(batch);
    pool_.run([&](const Team& team) { loss_of_batch(team, false, dropout); });
    return read(loss_);
  }
  // The same, and sets `gradient`: of the loss, over `parts` where it is one part of so many.
  T loss_and_gradient(const Batch& batch, const Dropout& dropout = {}, int parts = 1) {
    upload(batch);
    pool_.run([&](const Team& team) { loss_of_batch(team, true, dropout, parts); });
    return read(loss_);
  }
  // One AdamW update with `gradient` as it is.
  void apply(const Update& update) {
    pool_.run([&](const Team& team) { adamw_and_pack(team, update); });
  }
  // One update of training; returns the loss before it.
  T step(const Batch& batch, const Update& update, const Dropout& dropout = {}) {
    upload(batch);
    pool_.run([&](const Team& team) {
      loss_of_batch(team, true, dropout);
      adamw_and_pack(team, update);
    });
    return read(loss_);
  }

  // Of the last batch; of its first half, where it has two.
  const Activations<T>& activations() const { return halves_[0]->activations; }
  const Gradients<T>& gradients() const { return halves_[0]->gradients; }

 private:
  // Half of a batch, or all of it: what its forward and backward compute.
  struct Half {
    const Array<T>& sums;  // every parameter's gradient
    Tensors<T> by_name;
    Activations<T> activations;
    Gradients<T> gradients;
    DeviceBatch batch;
    int first_row = 0;
    Half(const Config& c, const Batch& b, Pool& pool, bool past_gradients, const Array<T>& gradient)
        : sums(gradient),
          by_name(c, sums.data()),
          activations(c, b.rows(), b.slots(), true, pool.size(), pool.cuda()),
          gradients{activations, past_gradients},
          batch(b.rows(), b.roots(), pool.cuda()) {
      activations.cache_is_read = past_gradients;
    }
  };

  void upload(const Batch& batch) {
    count_ = pool_.cuda() || past_gradients_ || batch.roots() < 2 ? 1 : 2;
    if (losses_.size() < size_t(batch.rows())) losses_ = Array<T>(size_t(batch.rows()), pool_.cuda());
    if (count_ == 2 && second_.size() == 0) second_ = Array<T>(gradient.size());
    for (int i = 0; i < count_; i++) {
      const int first = batch.roots() * i / count_;
      const Batch its = batch.part(first, batch.roots() * (i + 1) / count_);
      auto& half = halves_[i];
      if (!half || !half->batch.holds(its) || half->activations.slots < its.slots()) {
        half.reset();  // before the next one takes its memory
        half.reset(new Half(config, its, pool_, past_gradients_, i == 0 ? gradient : second_));
      }
      half->batch.upload(its);
      half->first_row = batch.first_row[first];
    }
    rows_ = batch.rows();
  }
  T read(const Array<T>& one) const {
    T value = 0;
    one.download(&value, 1);
    return value;
  }
  // Sets loss_ and, with_gradient, the gradient of the loss over `parts`.
  void loss_of_batch(const Team& team, bool with_gradient, const Dropout& dropout, int parts = 1) {
    const T scale = T(1) / (T(rows_) * T(parts));
    const auto run = [&](const Team& some, int i) { loss_of_half(some, *halves_[i], with_gradient, scale, dropout); };
    if (count_ == 2) team.halves(run);
    else run(team, 0);
    launch_sum(team, Mean<T>{losses_.data(), rows_, loss_.data()});
    if (with_gradient && count_ == 2) add(team, second_.data(), gradient.data(), gradient.size());
  }
  void loss_of_half(const Team& team, const Half& half, bool with_gradient, T scale, Dropout dropout) {
    const Activations<T>& a = half.activations;
    dropout.first_row = half.first_row;
    if (with_gradient) zero(team, half.sums.data(), half.sums.size());
    forward(team, config, packed_, half.batch, a, true, dropout);
    loss_of_rows(team, half.batch.forest.rows,
                 CrossEntropy<T>{a.logits.data(), a.V, config.vocab_size, half.batch.target(),
                                 losses_.data() + half.first_row, with_gradient, scale});
    if (!with_gradient) return;
    backward(team, config, packed_, half.batch, a, half.gradients, half.by_name, dropout);
    team.wait();
  }
  void adamw_and_pack(const Team& team, const Update& u) {
    optimizer_.step(team, u, weights.data(), gradient.data(), m.data(), v.data());
    packed_.pack(team);
  }

  const bool past_gradients_;
  Pool& pool_;
  Weights<T, T> packed_;
  std::unique_ptr<Half> halves_[2];
  int count_ = 1, rows_ = 0;                          // of halves (1: all in one), of the batch's rows
  Array<T> losses_, loss_{1, pool_.cuda()}, second_;  // second_: the gradient of the second half
  Optimizer<T> optimizer_;
};

// ---------------------------------------------------------------------------------------------------------------
// Compiled once: machine/library.cpp

#ifdef INSTANTIATE
#define FORWARD(W, S)                                                                                \
  INSTANTIATE void forward(const Team&, const Config&, const Weights<float, W>&, const DeviceBatch&, \
                           const Activations<float, S>&, bool, const Dropout&, const AfterLayer<float>&);
FORWARD(float, float)
FORWARD(AnyNumber, float)
FORWARD(AnyNumber, bf16)
#undef FORWARD
INSTANTIATE Weights<float, AnyNumber>::Weights(const Config&, const TensorSource&, Dtype, Pool&);
INSTANTIATE void backward(const Team&, const Config&, const Weights<float, float>&, const DeviceBatch&,
                          const Activations<float>&, const Gradients<float>&, const Tensors<float>&, const Dropout&);
INSTANTIATE class Trainer<float>;
#endif

}  // namespace nanospec
