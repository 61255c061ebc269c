// tests/gguf_file.h: a writer of GGUF files for tests: a file's parts, which a test may change before it asks for the
// bytes; two small files; a Llama model with a tokenizer that encodes any text.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "files/bpe.h"
#include "files/gguf.h"
#include "files/io.h"

namespace nanospec {
namespace {

template <class T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
inline std::string raw_text(const std::string& text) { return raw(uint64_t(text.size())) + text; }

struct Key {
  std::string name;
  uint32_t kind;
  std::string value;  // its bytes
};
inline Key key_of(const std::string& name, GgufKind kind, const std::string& value) {
  return {name, uint32_t(kind), value};
}
inline Key whole(const std::string& name, uint32_t value) { return key_of(name, GgufKind::u32, raw(value)); }
inline Key real(const std::string& name, float value) { return key_of(name, GgufKind::f32, raw(value)); }
inline Key words(const std::string& name, const std::string& value) {
  return key_of(name, GgufKind::text, raw_text(value));
}
inline Key list(const std::string& name, uint32_t kind, uint64_t count, const std::string& values) {
  return key_of(name, GgufKind::list, raw(kind) + raw(count) + values);
}

struct Part {
  std::string name;
  uint32_t type;
  std::vector<uint64_t> shape;  // columns first
  std::string data;
  int64_t shift = 0;  // added to the right offset
};
inline Part floats(const std::string& name, const std::vector<uint64_t>& shape) {
  size_t n = 1;
  for (uint64_t size : shape) n *= size;
  std::string data;
  for (size_t i = 0; i < n; i++) data += raw(float(i) / 8);
  return {name, uint32_t(GgufType::F32), shape, data};
}

struct Draft {
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::vector<Key> keys;
  std::vector<Part> tensors;
  size_t alignment = 32;
  int64_t more_keys = 0, more_tensors = 0;  // than there are, in the header

  std::vector<size_t> numbers = {};  // where the numbers of the header stand, all but those within values
  size_t header = 0;                 // its length

  void number(std::string& out, const std::string& value) {
    numbers.push_back(out.size());
    out += value;
  }
  void text(std::string& out, const std::string& value) {
    number(out, raw(uint64_t(value.size())));
    out += value;
  }
  std::string bytes() {
    numbers.clear();
    std::string out = magic, data;
    number(out, raw(version));
    number(out, raw(uint64_t(tensors.size()) + uint64_t(more_tensors)));
    number(out, raw(uint64_t(keys.size()) + uint64_t(more_keys)));
    for (const Key& key : keys) {
      text(out, key.name);
      number(out, raw(key.kind));
      number(out, key.value);
    }
    for (const Part& tensor : tensors) {
      text(out, tensor.name);
      number(out, raw(uint32_t(tensor.shape.size())));
      for (uint64_t size : tensor.shape) number(out, raw(size));
      number(out, raw(tensor.type));
      number(out, raw(uint64_t(data.size()) + uint64_t(tensor.shift)));
      data += tensor.data;
      data.resize((data.size() + alignment - 1) / alignment * alignment);
    }
    header = out.size();
    if (!tensors.empty()) out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data;
  }

  Key& key(const std::string& name) {
    for (Key& key : keys)
      if (key.name == name) return key;
    keys.push_back({name, 0, ""});
    return keys.back();
  }
  void set(const Key& other) { key(other.name) = other; }
  void remove(const std::string& name) {
    for (size_t i = 0; i < keys.size(); i++)
      if (keys[i].name == name) keys.erase(keys.begin() + long(i));
    for (size_t i = 0; i < tensors.size(); i++)
      if (tensors[i].name == name) tensors.erase(tensors.begin() + long(i));
  }
  Part& tensor(const std::string& name) {
    for (Part& tensor : tensors)
      if (tensor.name == name) return tensor;
    FAIL("no tensor " << name);
    return tensors[0];
  }
};

// Two keys and two tensors.
inline Draft small_gguf() {
  Draft draft;
  draft.keys = {words("general.architecture", "test"), whole("a.number", 7)};
  draft.tensors = {floats("a", {3, 2}), floats("b", {5})};
  return draft;
}

inline std::string tokens(int n) {
  std::string all;
  for (int i = 0; i < n; i++) all += raw_text("t" + std::to_string(i));
  return all;
}

// A Llama model with C = 4, H = 2, KV = 1, D = 2, F = 6, V = 5 and two layers.
inline Draft llama_gguf() {
  Draft draft;
  draft.keys = {words("general.architecture", "llama"),
                whole("llama.context_length", 16),
                whole("llama.embedding_length", 4),
                whole("llama.block_count", 2),
                whole("llama.feed_forward_length", 6),
                whole("llama.attention.head_count", 2),
                whole("llama.attention.head_count_kv", 1),
                real("llama.attention.layer_norm_rms_epsilon", 1e-5f),
                list("tokenizer.ggml.tokens", uint32_t(GgufKind::text), 5, tokens(5))};
  draft.tensors = {floats("token_embd.weight", {4, 5}), floats("output_norm.weight", {4})};
  for (const std::string layer : {"blk.0.", "blk.1."}) {
    for (const char* norm : {"attn_norm.weight", "ffn_norm.weight"}) draft.tensors.push_back(floats(layer + norm, {4}));
    for (const char* square : {"attn_q.weight", "attn_output.weight"})
      draft.tensors.push_back(floats(layer + square, {4, 4}));
    for (const char* narrow : {"attn_k.weight", "attn_v.weight"})
      draft.tensors.push_back(floats(layer + narrow, {4, 2}));
    for (const char* up : {"ffn_gate.weight", "ffn_up.weight"}) draft.tensors.push_back(floats(layer + up, {4, 6}));
    draft.tensors.push_back(floats(layer + "ffn_down.weight", {6, 4}));
  }
  return draft;
}

// The same with the tokenizer of tests/files/bpe_small.json, of V = 1001 tokens, where 1 is "<|im_start|>".
inline Draft llama_with_tokenizer() {
  const BpeParts parts = parse_bpe(read_file("tests/files/bpe_small.json"), "small");
  const auto texts = [](const std::string& name, const std::vector<std::string>& all) {
    std::string values;
    for (const std::string& text : all) values += raw_text(text);
    return list(name, uint32_t(GgufKind::text), all.size(), values);
  };
  std::string types;
  for (int type : parts.types) types += raw(int32_t(type));
  Draft draft = llama_gguf();
  draft.set(texts("tokenizer.ggml.tokens", parts.tokens));
  draft.set(texts("tokenizer.ggml.merges", parts.merges));
  draft.set(list("tokenizer.ggml.token_type", uint32_t(GgufKind::i32), parts.types.size(), types));
  draft.set(words("tokenizer.ggml.model", "gpt2"));
  draft.set(words("tokenizer.ggml.pre", "smollm"));
  draft.set(whole("tokenizer.ggml.bos_token_id", 1));
  draft.tensor("token_embd.weight") = floats("token_embd.weight", {4, parts.tokens.size()});
  return draft;
}

// The same with the tokenizer of tests/files/bpe_pieces.json, SentencePiece's, where 1 is "<s>".
inline Draft llama_with_pieces() {
  const Json stored = parse_json(read_file("tests/files/bpe_pieces.json"), "pieces")["tokenizer"]["model"]["vocab"];
  std::vector<std::string> names(stored.size());
  for (const auto& [name, id] : stored.items()) names[id.get<size_t>()] = name;
  std::string tokens, scores, types;
  for (size_t id = 0; id < names.size(); id++) {
    tokens += raw_text(names[id]);
    scores += raw(-float(id));
    types += raw(int32_t(id == 0 ? 2 : id < 3 ? 3 : id < 259 ? 6 : 1));  // "<unk>", "<s>", "</s>", bytes, pieces
  }
  Draft draft = llama_with_tokenizer();
  for (const char* key : {"tokenizer.ggml.merges", "tokenizer.ggml.pre"}) draft.remove(key);
  draft.set(list("tokenizer.ggml.tokens", uint32_t(GgufKind::text), names.size(), tokens));
  draft.set(list("tokenizer.ggml.scores", uint32_t(GgufKind::f32), names.size(), scores));
  draft.set(list("tokenizer.ggml.token_type", uint32_t(GgufKind::i32), names.size(), types));
  draft.set(words("tokenizer.ggml.model", "llama"));
  draft.tensor("token_embd.weight") = floats("token_embd.weight", {4, names.size()});
  return draft;
}

}  // namespace
}  // namespace nanospec
