// files/gguf_model.h: a model of the Llama family in a GGUF file, as the engine's weights and tokenizer.
//
// In order: its sizes; its tensors, as llama.h places them; its window; the memory that it takes; all of it. GGUF
// interleaves the rows of rotary heads; ours are in Hugging Face's order (hugging_face_row in gguf.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "files/checkpoint.h"
#include "files/gguf.h"
#include "files/llama.h"
#include "files/model_path.h"

namespace nanospec {

constexpr int kMostContext = 4096;  // tokens of a window, where the model could have more and none are asked for

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

// Reads one tensor of tensor_table(config). Throws runtime_error where a number is not finite.
inline void read_gguf_tensor(const GgufFile& file, const std::vector<LlamaTensor>& parts, int head_size,
                             const TensorSpec& spec, float* to) {
  for (const LlamaTensor& part : parts) {
    if (part.ours.offset != spec.offset) continue;
    const GgufTensor& tensor = file.tensor(part.gguf);
    const size_t columns = tensor.columns();
    const size_t row_numbers = part.shape.size() > 1 ? columns : 1;
    const auto rows = [&](size_t first, size_t n, float* out) {
      dequantize(tensor, first * row_numbers, n * row_numbers, out);
    };
    copy_from_file(part, to, rows,
                   [&](size_t row) { return part.rotary ? size_t(hugging_face_row(int64_t(row), head_size)) : row; });
  }
  for (size_t i = 0; i < spec.size; i++)
    if (!std::isfinite(to[i])) refuse("a weight is not a finite number", file.path, "replace the file");
}

// How many tokens the window has: `wanted`, or where that is 0 the model's own number, up to kMostContext. Throws
// runtime_error where they are more than the model was trained to see.
inline int context_of(const LlamaHeader& header, int wanted, const std::string& path) {
  if (wanted == 0) return std::min(header.block_size, kMostContext);
  if (wanted > header.block_size)
    refuse("a context of " + std::to_string(wanted) + " tokens is more than the model's own " +
               std::to_string(header.block_size),
           path, "give at most that to --context");
  return wanted;
}

// About how many bytes decoding takes: packed matrices and cached numbers of so many bytes each, what is read as it is
// stored, and the largest matrix while it is packed.
inline double takes_decoding(const Config& c, double matrix_bytes, double cache_bytes) {
  constexpr double kRows = 256;  // of slots beyond the window, and of activations
  double matrices = 0, largest = 0;
  for (const TensorSpec& spec : tensor_table(c)) {
    if (spec.decay) matrices += double(spec.size);
    largest = std::max(largest, double(spec.size));
  }
  const double cached = 2.0 * c.n_layer * c.n_kv_head * c.head_size() * (c.block_size + kRows);
  return matrices * matrix_bytes + 2 * largest * sizeof(float) + cached * cache_bytes +
         kRows * (c.vocab_size + 3.0 * c.hidden()) * sizeof(float);
}

// context: tokens of the window; 0: see context_of. The other two: see takes_decoding. Throws runtime_error, also where
// the memory that is free is not enough.
inline Loaded load_gguf(const std::string& path, int context = 0, double matrix_bytes = 4, double cache_bytes = 4) {
  const GgufFile file = read_gguf(path);
  const LlamaHeader header = read_llama_header(file);
  Loaded loaded;
  loaded.config = config_of(header, context_of(header, context, path));
  loaded.chat_template = file.text("tokenizer.chat_template", "");
  const std::string problem = config_problem(loaded.config);
  if (!problem.empty()) refuse(problem, path, "use another model");
  check_memory(path, double(file.size), takes_decoding(loaded.config, matrix_bytes, cache_bytes));
  loaded.tokenizer = gguf_tokenizer(file);
  loaded.begin_token = gguf_begin_token(file);
  loaded.read = [file, parts = llama_tensors(loaded.config), head_size = loaded.config.head_size()](
                    const TensorSpec& spec, float* to) { read_gguf_tensor(file, parts, head_size, spec, to); };
  return loaded;
}

}  // namespace nanospec
