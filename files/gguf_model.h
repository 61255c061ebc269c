// files/gguf_model.h: a model of the Llama family in a GGUF file, as the engine's weights and tokenizer.
//
// In order: its sizes; its tensors, as llama.h places them, in numbers or in the blocks of 8 and 4 bits that they are;
// its window; the memory that it takes; all of it. GGUF interleaves the rows of rotary heads; ours are in Hugging
// Face's order (hugging_face_row in gguf.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "files/checkpoint.h"
#include "files/gguf.h"
#include "files/llama.h"
#include "files/model_path.h"
#include "files/sizes.h"

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
    file.release();
  }
  for (size_t i = 0; i < spec.size; i++)
    if (!std::isfinite(to[i])) refuse("a weight is not a finite number", file.path, "replace the file");
}

// How weights of that type are stored here, where they are stored as in the file.
inline Dtype dtype_of(GgufType type) {
  switch (type) {
    case GgufType::F32:
      return Dtype::fp32;
    case GgufType::F16:
      return Dtype::f16;
    case GgufType::BF16:
      return Dtype::bf16;
    case GgufType::Q8_0:
      return Dtype::q8_0;
    case GgufType::Q4_0:
      return Dtype::q4_0;
    case GgufType::Q4_1:
      return Dtype::q4_1;
  }
  return Dtype::fp32;
}

// A block of the file with codes from 0 on.
inline IntegerBlock integer_block(const BlockQ8_0& from) {
  IntegerBlock block{{from.d}, {0}, {}};
  for (int i = 0; i < kBlockNumbers; i++) block.codes[i] = uint8_t(from.q[i] + Q8_0::kZero);
  return block;
}
inline IntegerBlock integer_block(f16 scale, f16 min, const uint8_t* q) {
  IntegerBlock block{scale, min, {}};
  for (int i = 0; i < kBlockNumbers; i++) block.codes[i] = uint8_t(q[i % 16] >> (i / 16 * 4) & 15);
  return block;
}
inline IntegerBlock integer_block(const BlockQ4_0& from) { return integer_block({from.d}, {0}, from.q); }
inline IntegerBlock integer_block(const BlockQ4_1& from) { return integer_block({from.d}, {from.m}, from.q); }

// Calls set(output, block of k, its numbers) for all blocks of a tensor of the table. Throws runtime_error where a
// scale is not finite.
inline void read_gguf_blocks(const GgufFile& file, const std::vector<LlamaTensor>& parts, int head_size,
                             const TensorSpec& spec, const TensorSource::SetBlock& set) {
  for (const LlamaTensor& part : parts) {
    if (part.ours.offset != spec.offset) continue;
    const GgufTensor& tensor = file.tensor(part.gguf);
    const int rows = int(part.shape[0]), blocks = int(part.shape[1]) / kBlockNumbers;
    const auto all = [&](const auto* block) {
      for (int row = 0; row < rows; row++) {
        const int64_t output = part.rotary ? hugging_face_row(row, head_size) : row;
        for (int b = 0; b < blocks; b++) {
          const IntegerBlock its = integer_block(*block++);
          if (!std::isfinite(to_float(its.scale)) || !std::isfinite(to_float(its.min)))
            refuse("a weight is not a finite number", file.path, "replace the file");
          set(int(part.first) + int(output), b, its);
        }
      }
    };
    if (tensor.type == GgufType::Q8_0) all(tensor.blocks<BlockQ8_0>());
    if (tensor.type == GgufType::Q4_0) all(tensor.blocks<BlockQ4_0>());
    if (tensor.type == GgufType::Q4_1) all(tensor.blocks<BlockQ4_1>());
    file.release();
  }
}

// The tensors of a file, which stays mapped. A matrix of ours whose parts have different types there is one of bf16.
inline TensorSource gguf_source(const GgufFile& file, const Config& config) {
  const std::vector<LlamaTensor> parts = llama_tensors(config);
  const int head_size = config.head_size();
  TensorSource source;
  source.read = [=](const TensorSpec& spec, float* to) { read_gguf_tensor(file, parts, head_size, spec, to); };
  source.blocks = [=](const TensorSpec& spec, const TensorSource::SetBlock& set) {
    read_gguf_blocks(file, parts, head_size, spec, set);
  };
  source.type = [=](const TensorSpec& spec) {
    std::set<Dtype> types;
    for (const LlamaTensor& part : parts)
      if (part.ours.offset == spec.offset) types.insert(dtype_of(file.tensor(part.gguf).type));
    return types.size() == 1 ? *types.begin() : Dtype::bf16;
  };
  return source;
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

// Bytes of a number of that type.
inline double bytes_of(Dtype dtype) {
  const int a_block = dtype == Dtype::q8_0   ? Panels<Q8_0>::kOutputBytes
                      : dtype == Dtype::q4_0 ? Panels<Q4_0>::kOutputBytes
                                             : Panels<Q4_1>::kOutputBytes;
  return dtype == Dtype::fp32 ? 4 : !is_quantized(dtype) ? 2 : double(a_block) / kBlockNumbers;
}

// About how many bytes decoding takes: packed matrices, cached numbers, what is read as it is stored, and the largest
// matrix while it is packed.
inline double takes_decoding(const Config& c, const TensorSource& source, Dtype dtype, double cache_bytes) {
  constexpr double kRows = 256;  // of slots beyond the window, and of activations
  double matrices = 0, largest = 0;
  for (const TensorSpec& spec : tensor_table(c)) {
    const Dtype stored = source.type(spec), its = dtype == Dtype::as_stored ? stored : dtype;
    if (spec.decay) matrices += double(spec.size) * bytes_of(its);
    if (its != stored || !is_quantized(its)) largest = std::max(largest, double(spec.size));
  }
  const double cached = 2.0 * c.n_layer * c.n_kv_head * c.head_size() * (c.block_size + kRows);
  return matrices + 2 * largest * sizeof(float) + cached * cache_bytes +
         kRows * (c.vocab_size + 3.0 * c.hidden()) * sizeof(float);
}

// context: tokens of the window; 0: see context_of. The types: of weights and of the cache. Throws runtime_error, also
// where the memory that is free is not enough.
inline Loaded load_gguf(const GgufFile& file, int context = 0, Dtype dtype = Dtype::fp32,
                        Dtype cache_dtype = Dtype::fp32) {
  const std::string& path = file.path;
  const LlamaHeader header = read_llama_header(file);
  Loaded loaded;
  loaded.config = config_of(header, context_of(header, context, path));
  loaded.chat_template = file.text("tokenizer.chat_template", "");
  const std::string problem = config_problem(loaded.config);
  if (!problem.empty()) refuse(problem, path, "use another model");
  loaded.tensors = gguf_source(file, loaded.config);
  check_memory(path, double(file.size), takes_decoding(loaded.config, loaded.tensors, dtype, bytes_of(cache_dtype)),
               "a smaller file, or a smaller --context");
  loaded.tokenizer = gguf_tokenizer(file);
  loaded.begin_token = gguf_begin_token(file);
  return loaded;
}
inline Loaded load_gguf(const std::string& path, int context = 0, Dtype dtype = Dtype::fp32,
                        Dtype cache_dtype = Dtype::fp32) {
  return load_gguf(read_gguf(path), context, dtype, cache_dtype);
}

}  // namespace nanospec
