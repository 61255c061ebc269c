// commands/inspection.h: what a model's files hold, as far as can be said without loading the weights.
//
// A GGUF file is mapped and only its header is read; so are its tokens. Of a folder every file is read, to see whether
// its hash fits. A model that nanospec does not load is described too: `obstacles` says why it does not.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "files/text.h"

namespace nanospec {

// One thing that is said of a model: its name in JSON and for people, its value, and that value for people.
struct Fact {
  std::string key, label;
  OrderedJson value;
  std::string text;
};

struct TensorFact {
  std::string name, type;
  std::vector<int64_t> shape;  // rows first
  double numbers, bytes;
};

struct FileFact {
  std::string name, what;
  double bytes;
  std::string state;  // "hash fits; of this text", or what is wrong; empty: nothing is known of it
};

struct Inspection {
  std::string path, format;  // "GGUF 3", "folder"
  double bytes = 0;          // of the file, or of all in the folder
  std::vector<std::string> obstacles;
  std::vector<Fact> model, sizes, tokenizer;
  std::vector<TensorFact> tensors;
  std::vector<FileFact> files;                                // of the folder, or beside the GGUF file
  std::vector<std::pair<std::string, std::string>> metadata;  // of the GGUF file, or of model.safetensors
};

// Both throw runtime_error where there is no model at all: a file that is no GGUF, a folder without config.json.
Inspection inspect_gguf(const std::string& path);
Inspection inspect_folder(const std::string& dir);

// Tensors that are alike in every layer count as one kind: "blk.N.attn_q.weight", 30 of them.
struct TensorKind {
  TensorFact one;  // its name has N for the layer; numbers and bytes are those of all
  int n;
};
std::vector<TensorKind> kinds_of(const std::vector<TensorFact>& tensors);
// The same by type alone, which is the name.
std::vector<TensorKind> types_of(const std::vector<TensorFact>& tensors);

// The kind of a chat template: "ChatML", "Llama 2", "Llama 3", "not recognized"; "none" where there is none.
std::string template_kind(const std::string& text);

}  // namespace nanospec
