// files/gguf.h: reads GGUF, the format of llama.cpp's models: one file with metadata and tensors.
//
// In order: types and tensors; the metadata; the file. What numbers and which model it holds: gguf_model.h. The file is
// mapped, not copied: tensors point into it, and its pages come from the disk when they are used. Whoever makes
// the file shorter while it is mapped kills the process (SIGBUS).
// Nothing in a file is trusted: every length, count and offset is checked against the file's size before it is used,
// and no memory is taken by an unchecked number. What is not known is refused by name. Every reader throws
// std::runtime_error with one line: what is wrong, where, what to do.
//
// How to add a type of tensors: a number in GgufType, a line in kReadable, its blocks and its case in visit_blocks
// (gguf_model.h), a line in tests/reference/gguf_check.py.
#pragma once

#include <optional>

#include "files/io.h"

namespace nanospec {

constexpr const char* kConvertAgain = "make the file again with a converter of llama.cpp";  // what to do

// ---------------------------------------------------------------------------------------------------------------
// Tensors

// The types that are read, with ggml's numbers for them.
enum class GgufType : uint32_t { F32, F16, Q4_0, Q4_1, Q5_0 = 6, Q5_1, Q8_0, Q3_K = 11, Q4_K, Q5_K, Q6_K, BF16 = 30 };
struct Readable {
  GgufType type;
  size_t numbers, bytes;  // of a block; 1 number where the type has no blocks
};
constexpr Readable kReadable[] = {
    {GgufType::F32, 1, 4},      {GgufType::F16, 1, 2},      {GgufType::BF16, 1, 2},   {GgufType::Q8_0, 32, 34},
    {GgufType::Q6_K, 256, 210}, {GgufType::Q5_K, 256, 176}, {GgufType::Q5_1, 32, 24}, {GgufType::Q5_0, 32, 22},
    {GgufType::Q4_K, 256, 144}, {GgufType::Q4_1, 32, 20},   {GgufType::Q4_0, 32, 18}, {GgufType::Q3_K, 256, 110},
};
constexpr const Readable* readable(GgufType type) {  // null if it is not read
  for (const Readable& one : kReadable)
    if (one.type == type) return &one;
  return nullptr;
}

std::string type_name(GgufType type);  // also of types that are not read: "Q2_K", "type number 99"
inline bool is_readable(GgufType type) { return readable(type) != nullptr; }

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;  // rows first: (outputs, inputs); the file has the columns first
  GgufType type;
  const uint8_t* data;  // in the file, at a multiple of its alignment; valid as long as the GgufFile, or a copy of it
  size_t bytes;
  uint64_t offset;  // from where the tensors begin

  size_t size() const { return numbers_in(shape); }
  size_t columns() const { return size_t(shape.back()); }  // numbers in a row, whole blocks: rows do not share one
};

// ---------------------------------------------------------------------------------------------------------------
// Metadata

// The types of values, with GGUF's numbers for them.
enum class GgufKind : uint32_t { u8, i8, u16, i16, u32, i32, f32, flag, text, list, u64, i64, f64 };

// A value is decoded when it is asked for: it is a place in the file, whose length was checked.
struct GgufValue {
  GgufKind kind;        // of the value, or of every element of a list
  bool list;            // lists of lists are refused
  uint64_t count;       // elements; 1 where it is no list
  const uint8_t* data;  // the first byte
};

// A value for a person: a number, a text in quotes and cut if it is long, or "a list of 49152 texts".
std::string shown_value(const GgufValue& value);

// ---------------------------------------------------------------------------------------------------------------
// The file

// Whether a path names such a file, by how it ends.
inline bool is_gguf(const std::string& path) {
  return path.size() > 5 && path.compare(path.size() - 5, 5, ".gguf") == 0;
}

struct GgufFile : NamedTensors<GgufTensor> {
  std::string path;
  uint32_t version = 0;   // 2 or 3
  size_t alignment = 32;  // of the tensors
  std::map<std::string, GgufValue> metadata;
  std::shared_ptr<const uint8_t> bytes;  // the whole file
  size_t size = 0;
  bool mapped = false;  // not a copy in memory

  // Throws runtime_error for this file.
  [[noreturn]] void wrong(const std::string& what, const std::string& advice = kConvertAgain) const {
    refuse(what, printable(path, 300), advice);
  }
  bool has(const std::string& key) const { return metadata.count(key) > 0; }

  // The metadata under a key; if there is none, `otherwise`. They throw runtime_error, with the key, if there is
  // neither, if the value is of another kind, or if a whole number does not lie in [least, most].
  template <class T>
  using Otherwise = std::optional<T>;
  using Integers = std::vector<int64_t>;
  std::string text(const std::string& key, const Otherwise<std::string>& otherwise = {}) const;
  int64_t integer(const std::string& key, int64_t least, int64_t most, const Otherwise<int64_t>& otherwise = {}) const;
  double number(const std::string& key, const Otherwise<double>& otherwise = {}) const;  // finite; it may be whole
  bool flag(const std::string& key, const Otherwise<bool>& otherwise = {}) const;
  std::vector<std::string> texts(const std::string& key) const;
  Integers integers(const std::string& key, int64_t least, int64_t most,
                    const Otherwise<Integers>& otherwise = {}) const;
  std::vector<double> numbers(const std::string& key) const;  // of a list, all finite
  uint64_t length(const std::string& key) const;              // of a list; 0 if there is none

  const GgufTensor& tensor(const std::string& name) const;  // throws runtime_error if there is none

  // Gives the memory under a mapped file back: the disk has it, should it be read again. After each tensor, so that a
  // model is not held twice while it is loaded.
  void release() const;
};

// Which types of tensors a file may have: those that are read; or any, to say what it holds. What a tensor of another
// type has for `bytes` is the way to the next tensor.
enum class GgufTypes { readable, any };

// Maps a file and reads its header. Throws runtime_error.
GgufFile read_gguf(const std::string& path, GgufTypes types = GgufTypes::readable);
// The same of a file in memory; `where` names it in errors.
GgufFile parse_gguf(const std::string& bytes, const std::string& where, GgufTypes types = GgufTypes::readable);

}  // namespace nanospec
