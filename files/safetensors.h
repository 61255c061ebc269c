// files/safetensors.h: reads and writes safetensors: named arrays of numbers in one file, as Hugging Face's loaders
// read.
//
// A file is 8 bytes, the length of a JSON header, little-endian; the header; the tensors, end to end. In order: a file
// as it is read; what is written; what is checked. A file is written under another name and renamed (io.h). Nothing in
// it is trusted: its sizes are checked against the file's length before bytes are read or memory is allocated, and its
// hash against its content. Every reader throws std::runtime_error with one line, also for tensors of another shape or
// name.
#pragma once

#include "files/io.h"

namespace nanospec {

struct Tensor {
  std::string name, dtype;     // "F32", "F16", "BF16" or "I32"
  std::vector<int64_t> shape;  // rows first
  size_t begin, end;           // its bytes in SafeTensors::bytes
};

// The metadata of a file: "hash", of its bytes; "format", always "pt", for transformers; where it comes from
// (origin.h).
using Metadata = std::map<std::string, std::string>;

struct SafeTensors : NamedTensors<Tensor> {
  Metadata metadata;
  size_t header = 0;  // bytes before those of the tensors
  std::string bytes;  // the whole file
};

size_t dtype_size(const std::string& dtype);  // bytes of a number; 0: of an unknown type

// Writes n numbers of the type F32, F16 or BF16 as floats to out.
void to_floats(const void* numbers, const std::string& dtype, size_t n, float* out);

SafeTensors parse_safetensors(std::string bytes, const std::string& where);

SafeTensors read_safetensors(const std::string& path);
SafeTensors read_header(const std::string& path);  // without its tensors

// A tensor to be written: of floats, bf16, or whole numbers.
struct TensorData {
  std::string name;
  std::vector<int64_t> shape;
  const void* data;
  std::string dtype = "F32";  // or "BF16", "I32"
};

// The whole file in memory, without a hash.
std::string format_safetensors(const std::vector<TensorData>& tensors, const Metadata& metadata);
// The metadata with what every file of ours says: its hash, and its format.
Metadata with_hash(const std::vector<TensorData>& tensors, Metadata metadata);
// Writes the file with its hash, without a copy of the tensors. Throws std::runtime_error.
void write_safetensors(const std::string& path, const std::vector<TensorData>& tensors, const Metadata& metadata);

// Writes a tensor's numbers as floats to out. Throws std::runtime_error if they are no floats, or not finite.
void copy_floats(const SafeTensors& file, const Tensor& tensor, float* out, const std::string& where);

// What a file of tensors must hold: exactly these names and shapes.
using Expected = std::map<std::string, std::vector<int64_t>>;

// Throws std::runtime_error if a tensor is missing, not expected, or of another shape; the message has both shapes.
void check_tensors(const SafeTensors& file, const Expected& expected, const std::string& where);

// The floats of the tensor of that name, which must have that shape. Throws runtime_error.
std::vector<float> read_tensor(const SafeTensors& file, const std::string& name, const std::vector<int64_t>& shape,
                               const std::string& where);

// The numbers of the tensor of that name, which must be a list of I32. Throws runtime_error.
std::vector<int32_t> read_integers(const SafeTensors& file, const std::string& name, const std::string& where);

}  // namespace nanospec
