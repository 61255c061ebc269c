// files/model_path.h: a model by its path, which is a folder or a GGUF file: the files beside it, and its tokenizer
// without its weights.
#pragma once

#include <string>

#include "files/gguf_model.h"
#include "files/hash.h"

namespace nanospec {

// Where a file that belongs to a model stands: in its folder, or beside NAME.gguf as NAME.FILE.
inline std::string file_of_model(const std::string& model, const std::string& file) {
  if (!is_gguf(model)) return model + "/" + file;
  return model.substr(0, model.size() - std::string("gguf").size()) + file;
}

// Throws runtime_error.
inline Tokenizer load_tokenizer(const std::string& model) {
  if (is_gguf(model)) return gguf_tokenizer(read_gguf(model));
  const std::string path = model + "/tokenizer.json";
  return parse_any_tokenizer(read_file(path), path);
}

// A hash of all that a tokenizer is made of. Two models with one hash give every text the same tokens. Throws
// runtime_error.
inline std::string tokenizer_hash(const std::string& model) {
  if (!is_gguf(model)) return hash_of(read_file(model + "/tokenizer.json"));
  const GgufFile file = read_gguf(model);
  const std::string prefix = "tokenizer.ggml.";
  Xxh64 hash;
  const auto add = [&](const std::string& text) { hash.add(std::to_string(text.size()) + ":" + text); };
  for (const char* list : {"tokens", "merges"})
    for (const std::string& text : file.texts(prefix + list)) add(text);
  for (int64_t type : file.integers(prefix + "token_type", 0, 6)) add(std::to_string(type));
  add(file.text(prefix + "pre"));
  return hash_text(hash);
}

}  // namespace nanospec
