// files/gguf_model.h: a model in a GGUF file, as the engine's weights and tokenizer.
//
// In order: the numbers of a tensor; the model's sizes; its window; all of it. Nothing is trusted: see gguf.h.
// How to add an architecture: families.h.
#pragma once

#include "files/checkpoint.h"
#include "files/families.h"
#include "files/gguf.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The numbers of a tensor

// Some bits of each number of a block. From byte `first` on lie planes of so many bytes. A plane has the lowest bits of
// a byte for each of its first numbers, one a byte; then the next bits, for as many numbers more.
template <int first, int bits, int plane>
struct BlockBits {
  static constexpr int kBits = bits;
  static int of(const uint8_t* block, unsigned number) {
    constexpr unsigned numbers = plane * 8 / std::max(bits, 1);  // in a plane
    return block[first + number / numbers * plane + number % plane] >> number % numbers / plane * bits &
           ((1 << bits) - 1);
  }
};
using NoBits = BlockBits<0, 0, 1>;  // of each number 0

// Where a block has its scales. All are products of a half-precision float and a whole number, which fp32 holds.
enum class GgufScales {
  one,      // the float, at the beginning (ggml: block_q8_0, block_q4_0, block_q5_0)
  min,      // the float, and that of the min (block_q4_1, block_q5_1)
  pairs,    // the same two floats; then 8 numbers for each, of 6 bits (block_q4_K, block_q5_K)
  halves6,  // 16 numbers of 6 bits, less 32, at byte 96, then the float (block_q3_K)
  halves8,  // 16 numbers of 8 bits with a sign, at byte 192, then the float (block_q6_K)
};

// How ggml lays a type's blocks out: scales, and the low and high bits of the codes, which are less their zero. Codes
// of 8 bits have signs.
template <GgufType type, GgufScales scales, int zero, class Low, class High = NoBits>
struct GgufBlocks {
  static constexpr GgufType kType = type;
  static constexpr GgufScales kScales = scales;
  static constexpr bool kMin = scales == GgufScales::min || scales == GgufScales::pairs,
                        kHalves = scales == GgufScales::halves6 || scales == GgufScales::halves8,
                        kInHalf = scales == GgufScales::one || scales == GgufScales::min;  // half precision holds them
  static constexpr int kBits = Low::kBits + High::kBits, kLeast = kBits == 8 ? -128 : -zero,
                       kMost = kLeast + (1 << kBits) - 1;
  static int code(const uint8_t* block, unsigned number) {
    return int8_t(Low::of(block, number) + (High::of(block, number) << Low::kBits) - zero);
  }
};

// Calls f with those of these GgufBlocks that have the type. Returns false where none has.
template <class... Blocks, class F>
bool visit_one_of(GgufType type, F f) {
  return ((type == Blocks::kType && (f(Blocks()), true)) || ...);
}
// The same, of all types that have blocks.
template <class F>
bool visit_blocks(GgufType type, F f) {
  using Scales = GgufScales;
  return visit_one_of<GgufBlocks<GgufType::Q8_0, Scales::one, 0, BlockBits<2, 8, 32>>,
                      GgufBlocks<GgufType::Q4_0, Scales::one, 8, BlockBits<2, 4, 16>>,
                      GgufBlocks<GgufType::Q4_1, Scales::min, 0, BlockBits<4, 4, 16>>,
                      GgufBlocks<GgufType::Q5_0, Scales::one, 16, BlockBits<6, 4, 16>, BlockBits<2, 1, 1>>,
                      GgufBlocks<GgufType::Q5_1, Scales::min, 0, BlockBits<8, 4, 16>, BlockBits<4, 1, 1>>,
                      GgufBlocks<GgufType::Q3_K, Scales::halves6, 4, BlockBits<32, 2, 32>, BlockBits<0, 1, 32>>,
                      GgufBlocks<GgufType::Q4_K, Scales::pairs, 0, BlockBits<16, 4, 32>>,
                      GgufBlocks<GgufType::Q5_K, Scales::pairs, 0, BlockBits<48, 4, 32>, BlockBits<16, 1, 32>>,
                      GgufBlocks<GgufType::Q6_K, Scales::halves8, 32, BlockBits<0, 4, 64>, BlockBits<128, 2, 32>>>(type,
                                                                                                                   f);
}

// Sets the scales and the min of the b-th 32 numbers of a block.
void read_scales(GgufScales scales, const uint8_t* block, int b, IntegerBlock& to);

// 32 numbers of a tensor, by their place among all that it has.
template <class Blocks>
IntegerBlock integer_block(const GgufTensor& tensor, size_t place) {
  constexpr Readable its = *readable(Blocks::kType);
  constexpr size_t together = its.numbers / kBlockNumbers;
  const uint8_t* const block = tensor.data + place / together * its.bytes;
  const int b = int(place % together);
  IntegerBlock to;
  read_scales(Blocks::kScales, block, b, to);
  for (int i = 0; i < kBlockNumbers; i++) to.codes[i] = int8_t(Blocks::code(block, unsigned(b * kBlockNumbers + i)));
  return to;
}

// How a matrix whose parts have these types is stored here: in the smallest format that holds their numbers as they
// are; bf16 where only some of the types have blocks.
Dtype stored_type(const std::set<GgufType>& types);

// Writes the numbers first .. first + n - 1 of a tensor, row after row, as floats: the bits that the Python package
// `gguf` gives. `first` and n must be multiples of a block's numbers: std::invalid_argument if they are not, or if they
// go past the end. Numbers that are not finite stay so.
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
void read_gguf_tensor(const GgufFile& file, const std::vector<FileTensor>& parts, int head_size, const TensorSpec& spec,
                      float* to);

// ---------------------------------------------------------------------------------------------------------------
// The model

// Checks that the file has exactly the tensors of such a model, in the shapes of families.h, and asks for nothing that
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
