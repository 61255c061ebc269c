// files/families.h: models of other programs in files: the families, and which part of which of our tensors each of
// theirs is.
//
// Files store a matrix as (outputs, inputs); ours are (inputs, outputs). Ours have queries, keys and values side by
// side, and gate and up likewise. The names are those of transformers' LlamaForCausalLM, and llama.cpp's. How to add a
// family: give it a row in kFamilies, and its tensors rows below.
#pragma once

#include <map>

#include "model.h"

namespace nanospec {

// What the files of a family call it, and which settings it has.
struct Family {
  const char *type, *architecture, *gguf;  // in config.json model_type and architectures; in GGUF general.architecture
  bool qkv_bias = false, qk_norm = false;
  bool pairs = false;  // GGUF has the rows of queries and keys in another order
  bool span = true;    // it may have a sliding window
};
constexpr Family kFamilies[] = {{"llama", "LlamaForCausalLM", "llama", false, false, true, false},
                                {"mistral", "MistralForCausalLM", "llama", false, false, true},
                                {"qwen2", "Qwen2ForCausalLM", "qwen2", true},
                                {"qwen3", "Qwen3ForCausalLM", "qwen3", false, true}};

struct FileTensor {
  std::string ours, name, gguf;  // of ours it is a part
  std::vector<int64_t> shape;    // in a file
  size_t first, columns;         // its first column in ours, and how many ours has
  bool rotary;                   // queries or keys, and GGUF has the rows of each head in another order

  // A part of a matrix, or of its bias; embeddings and norms are stored as they are here.
  bool transposed() const { return columns > 0; }
};

// Whether all settings are those of one of the families; else they are GPT-2's.
inline bool is_llama(const Config& c) { return c.rotary && c.swiglu && !c.center && !c.bias; }
inline const Family& family_of(const Config& c) {
  for (const Family& family : kFamilies)
    if (family.qkv_bias == c.qkv_bias && family.qk_norm == c.qk_norm && (family.span || !c.span)) return family;
  throw std::logic_error("no family has both biases of queries and norms of them");
}

// The sizes, by letters: C channels, V tokens, P positions, F channels of the MLP, D those of a head, Q of all queries,
// K of all keys or values. N stands for a layer's number. A matrix of ours has the outputs of all its parts side by
// side.
struct FilePart {
  const char *ours, *name, *gguf, *shape;
  const char *left = "", *all = "";  // outputs of the parts before it, and of all, where ours is a matrix
  // kGpt: GPT-2 alone has it; kFamily: those of kFamilies; so have they kQkv, which may have biases alone, and kQkNorm:
  // see Config::qk_norm.
  enum Kind { kAlways, kGpt, kFamily, kQkv, kQkNorm } kind = kAlways;
  bool rotary = false;  // queries or keys
};
// GPT-2 has these names in GGUF alone; in a folder its matrices lie as ours (checkpoint.cpp).
constexpr FilePart kEmbeddingPart = {"wte", "model.embed_tokens", "token_embd", "VC"},
                   kPositionsPart = {"wpe", "", "position_embd", "PC"},
                   kLastNormPart = {"ln_f", "model.norm", "output_norm", "C"},
                   kHeadPart = {"lm_head", "lm_head", "output", "VC"};
constexpr FilePart kLayerParts[] = {
    {"h.N.ln_1", "model.layers.N.input_layernorm", "blk.N.attn_norm", "C"},
    {"h.N.attn.c_attn", "", "blk.N.attn_qkv", "TC", "", "T", FilePart::kGpt},
    {"h.N.attn.c_attn", "model.layers.N.self_attn.q_proj", "blk.N.attn_q", "QC", "", "QKK", FilePart::kQkv, true},
    {"h.N.attn.c_attn", "model.layers.N.self_attn.k_proj", "blk.N.attn_k", "KC", "Q", "QKK", FilePart::kQkv, true},
    {"h.N.attn.c_attn", "model.layers.N.self_attn.v_proj", "blk.N.attn_v", "KC", "QK", "QKK", FilePart::kQkv},
    {"h.N.attn.q_norm", "model.layers.N.self_attn.q_norm", "blk.N.attn_q_norm", "D", "", "", FilePart::kQkNorm},
    {"h.N.attn.k_norm", "model.layers.N.self_attn.k_norm", "blk.N.attn_k_norm", "D", "", "", FilePart::kQkNorm},
    {"h.N.attn.c_proj", "model.layers.N.self_attn.o_proj", "blk.N.attn_output", "CQ", "", "C"},
    {"h.N.ln_2", "model.layers.N.post_attention_layernorm", "blk.N.ffn_norm", "C"},
    {"h.N.mlp.c_fc", "", "blk.N.ffn_up", "FC", "", "F", FilePart::kGpt},
    {"h.N.mlp.c_fc", "model.layers.N.mlp.gate_proj", "blk.N.ffn_gate", "FC", "", "FF", FilePart::kFamily},
    {"h.N.mlp.c_fc", "model.layers.N.mlp.up_proj", "blk.N.ffn_up", "FC", "F", "FF", FilePart::kFamily},
    {"h.N.mlp.c_proj", "model.layers.N.mlp.down_proj", "blk.N.ffn_down", "CF", "", "C"},
};

// All tensors of such a model, in the order of tensor_table(config). Its heads have passed heads_problem().
inline std::vector<FileTensor> model_parts(const Config& c) {
  const int64_t D = c.head_size();
  const std::map<char, int64_t> sizes = {
      {'C', c.n_embd}, {'V', c.vocab_size}, {'P', c.block_size},    {'F', c.inner()},
      {'D', D},        {'Q', c.n_head * D}, {'K', c.n_kv_head * D}, {'T', c.qkv_size()}};
  std::vector<FileTensor> tensors;
  // Of a bias a part has as many numbers as the matrix's part has outputs.
  const auto add_one = [&](const FilePart& part, int layer, bool bias) {
    const auto named = [&](std::string name) {
      const size_t at = name.find(".N.");
      return (at == std::string::npos ? name : name.replace(at + 1, 1, std::to_string(layer))) +
             (bias ? ".bias" : ".weight");
    };
    FileTensor tensor = {
        named(part.ours), named(part.name), named(part.gguf), {}, 0, 0, part.rotary && family_of(c).pairs};
    for (const char* letter = part.shape; *letter; letter++) tensor.shape.push_back(sizes.at(*letter));
    for (const char* letter = part.left; *letter; letter++) tensor.first += size_t(sizes.at(*letter));
    for (const char* letter = part.all; *letter; letter++) tensor.columns += size_t(sizes.at(*letter));
    if (bias) tensor.shape.resize(1);
    tensors.push_back(std::move(tensor));
  };
  const auto add = [&](const FilePart& part, int layer = 0) {
    if (part.kind == FilePart::kQkNorm && !c.qk_norm) return;
    if (part.kind != FilePart::kAlways && (part.kind == FilePart::kGpt) == is_llama(c)) return;
    add_one(part, layer, false);
    if (c.bias || (c.qkv_bias && part.kind == FilePart::kQkv)) add_one(part, layer, true);
  };
  add_one(kEmbeddingPart, 0, false);
  if (!c.rotary) add_one(kPositionsPart, 0, false);
  for (int layer = 0; layer < c.n_layer; layer++)
    for (const FilePart& part : kLayerParts) add(part, layer);
  add(kLastNormPart);
  if (!c.tied) add_one(kHeadPart, 0, false);
  return tensors;
}

// Copies a tensor of a file into ours, whose memory is `to`. rows(first, n, out) writes so many of the file's rows as
// floats. row_of(r): the row of ours, counted from tensor.first, that row r of the file is.
template <class ReadRows, class RowOf>
void copy_from_file(const FileTensor& tensor, float* to, ReadRows rows, RowOf row_of) {
  const size_t outputs = size_t(tensor.shape[0]), inputs = tensor.shape.size() > 1 ? size_t(tensor.shape[1]) : 1;
  if (!tensor.transposed()) return rows(0, outputs, to);
  constexpr size_t kBlock = 16;  // rows that are written together: a cache line
  std::vector<float> block(kBlock * inputs);
  for (size_t first = 0; first < outputs; first += kBlock) {
    const size_t n = std::min(kBlock, outputs - first);
    rows(first, n, block.data());
    for (size_t i = 0; i < inputs; i++)
      for (size_t r = 0; r < n; r++) to[i * tensor.columns + tensor.first + row_of(first + r)] = block[r * inputs + i];
  }
}

// Appends a matrix, or a part of a bias, as a file has it, out of ours.
inline void copy_for_file(const FileTensor& tensor, const float* ours, std::vector<float>& to) {
  const size_t inputs = tensor.shape.size() > 1 ? size_t(tensor.shape[1]) : 1;
  for (size_t r = 0; r < size_t(tensor.shape[0]); r++)
    for (size_t i = 0; i < inputs; i++) to.push_back(ours[i * tensor.columns + tensor.first + r]);
}

}  // namespace nanospec
