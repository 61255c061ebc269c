// files/llama.h: models of the Llama family in files: which part of which of our tensors each of theirs is.
//
// Files store a matrix as (outputs, inputs); ours are (inputs, outputs). Ours have queries, keys and values side by
// side, and gate and up likewise. The names are those of transformers' LlamaForCausalLM, and llama.cpp's.
#pragma once

#include <string>
#include <vector>

#include "model.h"

namespace nanospec {

struct LlamaTensor {
  std::string name, gguf;
  TensorSpec ours;             // that it is a part of
  std::vector<int64_t> shape;  // in a file
  size_t first = 0;            // its first column in ours
  bool transposed = false;     // a matrix; embeddings and norms are stored as they are here
  bool rotary = false;         // queries or keys: GGUF has the rows of each head in another order
};

// Whether all settings are those of the family.
inline bool is_llama(const Config& c) { return c.rotary && c.swiglu && !c.center && !c.bias; }

// All tensors of such a model, in the order of tensor_table(config).
inline std::vector<LlamaTensor> llama_tensors(const Config& c) {
  const int64_t C = c.n_embd, D = c.head_size(), V = c.vocab_size, F = c.inner(), H = c.n_head, KV = c.n_kv_head;
  std::vector<LlamaTensor> all;
  for (const TensorSpec& spec : tensor_table(c)) {
    const size_t dot = spec.name.find('.', 2);
    const bool in_layer = spec.name.compare(0, 2, "h.") == 0;
    const std::string number = in_layer ? spec.name.substr(2, dot - 2) : "";
    const std::string part = in_layer ? spec.name.substr(dot + 1) : spec.name;
    const std::string layer = "model.layers." + number + ".", block = "blk." + number + ".";
    const auto plain = [&](const std::string& name, const std::string& gguf, std::vector<int64_t> shape) {
      all.push_back({name + ".weight", gguf + ".weight", spec, std::move(shape)});
    };
    const auto matrix = [&](const char* name, const char* gguf, int64_t out, int64_t in, int64_t first = 0,
                            bool rotary = false) {
      all.push_back({layer + name + ".weight", block + gguf + ".weight", spec, {out, in}, size_t(first), true, rotary});
    };
    if (part == "wte.weight") plain("model.embed_tokens", "token_embd", {V, C});
    if (part == "ln_1.weight") plain(layer + "input_layernorm", block + "attn_norm", {C});
    if (part == "attn.c_attn.weight") {
      matrix("self_attn.q_proj", "attn_q", H * D, C, 0, true);
      matrix("self_attn.k_proj", "attn_k", KV * D, C, H * D, true);
      matrix("self_attn.v_proj", "attn_v", KV * D, C, (H + KV) * D);
    }
    if (part == "attn.c_proj.weight") matrix("self_attn.o_proj", "attn_output", C, H * D);
    if (part == "ln_2.weight") plain(layer + "post_attention_layernorm", block + "ffn_norm", {C});
    if (part == "mlp.c_fc.weight") {
      matrix("mlp.gate_proj", "ffn_gate", F, C);
      matrix("mlp.up_proj", "ffn_up", F, C, F);
    }
    if (part == "mlp.c_proj.weight") matrix("mlp.down_proj", "ffn_down", C, F);
    if (part == "ln_f.weight") plain("model.norm", "output_norm", {C});
    if (part == "lm_head.weight") plain("lm_head", "output", {V, C});
  }
  return all;
}

// Copies a tensor of a file into ours, whose memory is `to`. rows(first, n, out) writes so many of the file's rows as
// floats. row_of(r): the row of ours, counted from tensor.first, that row r of the file is.
template <class ReadRows, class RowOf>
void copy_from_file(const LlamaTensor& tensor, float* to, ReadRows rows, RowOf row_of) {
  const size_t outputs = size_t(tensor.shape[0]), inputs = tensor.shape.size() > 1 ? size_t(tensor.shape[1]) : 1;
  if (!tensor.transposed) return rows(0, outputs, to);
  constexpr size_t kBlock = 16;  // rows that are written together: a cache line
  const size_t columns = size_t(tensor.ours.shape[1]);
  std::vector<float> block(kBlock * inputs);
  for (size_t first = 0; first < outputs; first += kBlock) {
    const size_t n = std::min(kBlock, outputs - first);
    rows(first, n, block.data());
    for (size_t i = 0; i < inputs; i++)
      for (size_t r = 0; r < n; r++) to[i * columns + tensor.first + row_of(first + r)] = block[r * inputs + i];
  }
}

// The tensor as a file has it, out of ours.
inline std::vector<float> copied_for_file(const LlamaTensor& tensor, const float* ours) {
  if (!tensor.transposed) return {ours, ours + tensor.ours.size};
  const size_t outputs = size_t(tensor.shape[0]), inputs = size_t(tensor.shape[1]);
  const size_t columns = size_t(tensor.ours.shape[1]);
  std::vector<float> copy(outputs * inputs);
  for (size_t i = 0; i < inputs; i++)
    for (size_t r = 0; r < outputs; r++) copy[r * inputs + i] = ours[i * columns + tensor.first + r];
  return copy;
}

}  // namespace nanospec
