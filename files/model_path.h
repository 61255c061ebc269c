// files/model_path.h: a model by its path, which is a folder or a GGUF file: the files beside it, and its tokenizer,
// and the token that begins a text, without its weights.
#pragma once

#include "files/bpe.h"
#include "files/gguf.h"

namespace nanospec {

// Where a file that belongs to a model stands: in its folder, or beside NAME.gguf as NAME.FILE.
inline std::string file_of_model(const std::string& model, const std::string& file) {
  if (!is_gguf(model)) return model + "/" + file;
  return model.substr(0, model.size() - std::string("gguf").size()) + file;
}

// The folder of what belongs to a model and has files of its own: the model's, or beside NAME.gguf the folder NAME.
inline std::string folder_of_model(const std::string& model) {
  return is_gguf(model) ? model.substr(0, model.size() - std::string(".gguf").size()) : model;
}

const std::string kTokenizerKey = "tokenizer.ggml.";  // what the keys of a GGUF file's tokenizer begin with

// Whether a file's tokenizer is SentencePiece's BPE.
inline bool has_pieces(const GgufFile& file) { return file.text(kTokenizerKey + "model", "") == "llama"; }

// The token that the model wants before every text; -1: none. Where a file does not say whether it wants one, the kind
// of its tokenizer does, as with llama.cpp.
inline int gguf_begin_token(const GgufFile& file) {
  const std::string bos = kTokenizerKey + "bos_token_id";
  const bool usual = file.has(bos) && (has_pieces(file) || is_llama3(file.text(kTokenizerKey + "pre", "")));
  if (!file.flag(kTokenizerKey + "add_bos_token", usual)) return -1;
  return int(file.integer(bos, 0, int64_t(file.length(kTokenizerKey + "tokens")) - 1));
}

// Throws runtime_error.
inline Tokenizer gguf_tokenizer(const GgufFile& file) {
  const std::string kind = file.text(kTokenizerKey + "model");
  BpeParts parts;
  parts.sentencepiece = has_pieces(file);
  if (kind != "gpt2" && !parts.sentencepiece)
    refuse("the tokenizer is \"" + printable(kind) + "\", not byte-level BPE (\"gpt2\") or SentencePiece's (\"llama\")",
           file.path, "use a model with such a tokenizer");
  parts.tokens = file.texts(kTokenizerKey + "tokens");
  for (int64_t type : file.integers(kTokenizerKey + "token_type", 0, 6)) parts.types.push_back(int(type));
  if (parts.sentencepiece) {
    parts.scores = file.numbers(kTokenizerKey + "scores");
    if (file.flag(kTokenizerKey + "add_space_prefix", true)) parts.space_first = SpaceFirst::always;
  } else {
    parts.merges = file.texts(kTokenizerKey + "merges");
    parts.pre = file.text(kTokenizerKey + "pre");
    parts.ignore_merges = is_llama3(parts.pre);
    parts.nfc = parts.pre == "qwen2";  // as their tokenizer.json says
  }
  parts.begin = gguf_begin_token(file);
  Tokenizer tokenizer = bpe_tokenizer(parts, file.path);
  for (const char* end : {"eos_token_id", "eot_token_id", "eom_token_id"})  // of a text, of a turn, of a message
    tokenizer.ends.push_back(int(file.integer(kTokenizerKey + end, 0, UINT32_MAX, -1)));
  tokenizer.chat_template = file.text("tokenizer.chat_template", "");
  return tokenizer;
}

// Throws runtime_error.
inline Tokenizer load_tokenizer(const std::string& model) {
  if (is_gguf(model)) return gguf_tokenizer(read_gguf(model));
  const std::string path = model + "/tokenizer.json";
  return parse_any_tokenizer(read_regular(path), path);
}

// A hash of all that a tokenizer is made of. Two models with one hash give every text the same tokens. Throws
// runtime_error.
inline std::string tokenizer_hash(const std::string& model) {
  if (!is_gguf(model)) return hash_of(read_regular(model + "/tokenizer.json"));
  const GgufFile file = read_gguf(model);
  std::string all;
  const auto add = [&](const std::string& text) { all += std::to_string(text.size()) + ":" + text; };
  for (const char* list : {"tokens", "merges"})
    if (list != std::string("merges") || !has_pieces(file))
      for (const std::string& text : file.texts(kTokenizerKey + list)) add(text);
  for (int64_t type : file.integers(kTokenizerKey + "token_type", 0, 6)) add(std::to_string(type));
  if (!has_pieces(file)) add(file.text(kTokenizerKey + "pre"));
  else {
    for (double score : file.numbers(kTokenizerKey + "scores")) add(shown(score));
    add(file.flag(kTokenizerKey + "add_space_prefix", true) ? "space" : "");
  }
  return hash_of(all);
}

}  // namespace nanospec
