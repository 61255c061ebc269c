// tests/tiny_tokenizer.h: the tokenizer of tests/files/bpe_small.json, and a smaller one of 281 tokens.
#pragma once

#include "files/io.h"
#include "files/text.h"

namespace nanospec {

inline const Json& small_file() {
  static const Json file = parse_json(read_file("tests/files/bpe_small.json"), "small");
  return file;
}

// The first merges alone: a file that is soon read, and models with few rows. tests/reference/tiny_llama.py does the
// same.
inline Json tiny_file() {
  constexpr int kIds = 280;
  Json file = small_file(), vocabulary = Json::object(), merges = Json::array();
  for (const auto& [name, id] : file["model"]["vocab"].items())
    if (id < kIds) vocabulary[name] = id;
  for (const Json& merge : file["model"]["merges"])
    if (vocabulary.contains(merge[0].get<std::string>() + merge[1].get<std::string>())) merges.push_back(merge);
  file["added_tokens"].back()["id"] = kIds;
  file["model"]["vocab"] = vocabulary;
  file["model"]["merges"] = merges;
  return file;
}

}  // namespace nanospec
