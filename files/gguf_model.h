// files/gguf_model.h: a model of the Llama family in a GGUF file, as the engine's weights and tokenizer.
//
// In order: its sizes; its tensors, brought into the order of tensor_table(config); its tokenizer. GGUF stores a matrix
// as (outputs, inputs); ours are (inputs, outputs), with queries, keys and values side by side, gate and up likewise.
// GGUF interleaves the rows of rotary heads; ours are in Hugging Face's order (hugging_face_row in gguf.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "files/bpe.h"
#include "files/checkpoint.h"
#include "files/gguf.h"

namespace nanospec {

constexpr int kMostContext = 4096;  // tokens of a window, where the model could have more

inline bool is_gguf(const std::string& path) {
  return path.size() > 5 && path.compare(path.size() - 5, 5, ".gguf") == 0;
}

inline Config config_of(const LlamaHeader& h, int context) {
  Config c;
  c.n_layer = h.n_layer;
  c.n_head = h.n_head;
  c.n_kv_head = h.n_kv_head;
  c.n_embd = h.n_embd;
  c.block_size = std::min(h.block_size, context) / 2 * 2;
  c.vocab_size = h.vocab_size;
  c.head_dim = h.head_dim;
  c.n_inner = h.n_inner;
  c.rotary = c.swiglu = true;
  c.center = false;
  c.tied = h.tie_word_embeddings;
  c.norm_epsilon = h.rms_norm_eps;
  c.rope_theta = h.rope_theta;
  return c;
}

// Copies a matrix (outputs, inputs) into columns first_column, ... of one (inputs, columns). head_size: of rotary
// heads, whose rows it sorts; 0: none.
inline void copy_matrix(const GgufTensor& from, float* to, size_t columns, size_t first_column, int head_size = 0) {
  const size_t inputs = from.columns(), outputs = from.size() / inputs;
  constexpr size_t block = 16;  // outputs that are written together: a cache line
  std::vector<float> rows(block * inputs);
  for (size_t first = 0; first < outputs; first += block) {
    const size_t n = std::min(block, outputs - first);
    dequantize(from, first * inputs, n * inputs, rows.data());
    for (size_t i = 0; i < inputs; i++)
      for (size_t r = 0; r < n; r++) {
        const size_t row = head_size ? size_t(hugging_face_row(int64_t(first + r), head_size)) : first + r;
        to[i * columns + first_column + row] = rows[r * inputs + i];
      }
  }
}

// Reads one tensor of tensor_table(config). Throws runtime_error where a number is not finite.
inline void read_gguf_tensor(const GgufFile& file, const Config& c, const TensorSpec& spec, float* to) {
  int layer = 0, at = 0;
  sscanf(spec.name.c_str(), "h.%d.%n", &layer, &at);
  const std::string part = spec.name.substr(size_t(at)), block = "blk." + std::to_string(layer) + ".";
  const auto copy = [&](const std::string& name) {
    const GgufTensor& tensor = file.tensor(name);
    dequantize(tensor, 0, tensor.size(), to);
  };
  const size_t columns = size_t(spec.shape.back()), D = size_t(c.head_size());
  const auto matrix = [&](const char* name, size_t first = 0, size_t head_size = 0) {
    copy_matrix(file.tensor(block + name), to, columns, first, int(head_size));
  };
  if (part == "wte.weight") copy("token_embd.weight");
  if (part == "lm_head.weight") copy("output.weight");
  if (part == "ln_f.weight") copy("output_norm.weight");
  if (part == "ln_1.weight") copy(block + "attn_norm.weight");
  if (part == "attn.c_attn.weight") {
    matrix("attn_q.weight", 0, D);
    matrix("attn_k.weight", size_t(c.n_head) * D, D);
    matrix("attn_v.weight", size_t(c.n_head + c.n_kv_head) * D);
  }
  if (part == "attn.c_proj.weight") matrix("attn_output.weight");
  if (part == "ln_2.weight") copy(block + "ffn_norm.weight");
  if (part == "mlp.c_fc.weight") {
    matrix("ffn_gate.weight");
    matrix("ffn_up.weight", size_t(c.inner()));
  }
  if (part == "mlp.c_proj.weight") matrix("ffn_down.weight");
  for (size_t i = 0; i < spec.size; i++)
    if (!std::isfinite(to[i])) refuse("a weight is not a finite number", file.path, "replace the file");
}

inline Tokenizer gguf_tokenizer(const GgufFile& file) {
  const std::string prefix = "tokenizer.ggml.";
  const std::string kind = file.text(prefix + "model");
  if (kind != "gpt2")
    refuse("the tokenizer is \"" + printable(kind) + "\", not byte-level BPE (\"gpt2\")", file.path,
           "use a model with such a tokenizer");
  BpeParts parts;
  parts.tokens = file.texts(prefix + "tokens");
  for (int64_t type : file.integers(prefix + "token_type", 0, 6)) parts.types.push_back(int(type));
  parts.merges = file.texts(prefix + "merges");
  parts.pre = file.text(prefix + "pre");
  const int64_t most = int64_t(parts.tokens.size()) - 1;
  parts.bos = int(file.integer(prefix + "bos_token_id", 0, most, -1));
  parts.eos = int(file.integer(prefix + "eos_token_id", 0, most, -1));
  return bpe_tokenizer(parts, file.path);
}

// Throws runtime_error.
inline Loaded load_gguf(const std::string& path, int context = kMostContext) {
  const GgufFile file = read_gguf(path);
  Loaded loaded;
  loaded.config = config_of(read_llama_header(file), context);
  const std::string problem = config_problem(loaded.config);
  if (!problem.empty()) refuse(problem, path, "use another model");
  loaded.tokenizer = gguf_tokenizer(file);
  loaded.read = [file, config = loaded.config](const TensorSpec& spec, float* to) {
    read_gguf_tensor(file, config, spec, to);
  };
  return loaded;
}

}  // namespace nanospec
