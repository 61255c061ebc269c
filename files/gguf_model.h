// files/gguf_model.h: a model in a GGUF file, as the engine's weights and tokenizer.
//
// In order: the numbers of a tensor; the model's sizes; its window; all of it. Nothing is trusted: see gguf.h.
// How to add an architecture: llama.h.
#pragma once

#include "files/checkpoint.h"
#include "files/gguf.h"
#include "files/llama.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The numbers of a tensor

// A block of the file with codes from 0 on. It lies there as its scale, its min where there is one, both half-precision
// floats, and its codes. Of 8 bits they are signed; of 4 bits byte i has number i in its low half, and number i + 16 in
// its high half.
template <class Q>
IntegerBlock integer_block(const GgufTensor& tensor, size_t number) {
  constexpr size_t kFloats = Q::kMin ? 4 : 2, kBytes = kFloats + 4 * Q::kBits;
  const uint8_t* const at = tensor.data + number * kBytes;
  IntegerBlock block{};
  memcpy(&block, at, kFloats);
  for (int i = 0; i < int(kBytes - kFloats); i++) {
    const uint8_t byte = at[kFloats + i];
    block.codes[i] = Q::kBits == 8 ? uint8_t(byte + Q::kZero) : byte & 15;
    if (Q::kBits == 4) block.codes[i + 16] = byte >> 4;
  }
  return block;
}

// Calls f with a Q8_0, Q4_0 or Q4_1, whichever the tensor's blocks are. Returns false where it has none.
template <class F>
bool visit_blocks(const GgufTensor& tensor, F f) {
  if (tensor.type == GgufType::Q8_0) f(Q8_0());
  else if (tensor.type == GgufType::Q4_0) f(Q4_0());
  else if (tensor.type == GgufType::Q4_1) f(Q4_1());
  else return false;
  return true;
}

// Writes the numbers first .. first + n - 1 of a tensor, row after row, as floats: the bits that the Python package
// `gguf` gives. `first` and n must be multiples of block_numbers: std::invalid_argument if they are not, or if they go
// past the end. Numbers that are not finite stay so.
void dequantize(const GgufTensor& tensor, size_t first, size_t n, float* out);

// The order of rows in attn_q.weight and attn_k.weight. Rotary positions turn pairs of channels. Hugging Face has the
// first channels of a head's D / 2 pairs, then the second ones; GGUF has the two channels of a pair side by side (its
// writers do w.reshape(H, 2, D / 2, C).swapaxes(1, 2)). So
//   row h D + 2 i + s in GGUF is row h D + s D / 2 + i in Hugging Face's order, for i < D / 2 and s = 0, 1.
// This returns that row of Hugging Face's order. attn_v.weight and attn_output.weight are not reordered.
constexpr int64_t hugging_face_row(int64_t row, int64_t head_dim) {
  const int64_t channel = row % head_dim;
  return row - channel + channel % 2 * (head_dim / 2) + channel / 2;
}

// Reads one tensor of tensor_table(config). Throws runtime_error where a number is not finite.
void read_gguf_tensor(const GgufFile& file, const std::vector<LlamaTensor>& parts, int head_size,
                      const TensorSpec& spec, float* to);

// ---------------------------------------------------------------------------------------------------------------
// The model

// Checks that the file has exactly the tensors of such a model, in the shapes of llama.h, and asks for nothing that
// Config does not say. The block_size is the tokens that the model was trained to see, the head tied where there is no
// output.weight. A tokenizer need not be there; if it is, it must have V tokens. Throws runtime_error, which names the
// key or the tensor.
Config read_gguf_header(const GgufFile& file);

constexpr int kMostContext = 4096;  // tokens of a window, where the model could have more and none are asked for

// A model with a window of so many tokens, or as many as it has seen.
inline Config config_of(Config model, int context) {
  model.block_size = std::min(model.block_size, context) / 2 * 2;
  return model;
}

// How many tokens the window has: `wanted`, or where that is 0 the model's own number, up to kMostContext. Throws
// runtime_error where they are more than the model was trained to see.
int context_of(const Config& model, int wanted, const std::string& path);

// context: tokens of the window; 0: see context_of. The types: of weights and of the cache. Throws runtime_error, also
// where the memory that is free is not enough.
Loaded load_gguf(const GgufFile& file, int context = 0, Dtype dtype = Dtype::fp32, Dtype cache_dtype = Dtype::fp32);

}  // namespace nanospec
