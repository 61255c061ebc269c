// files/known_files.h: the names under which programs of ours write into a model's folder, and what each file is.
#pragma once

#include <algorithm>
#include <string>

namespace nanospec {

struct KnownFile {
  const char *name, *what;  // a folder's name ends with a slash
};
constexpr KnownFile kKnownFiles[] = {
    {"model.safetensors", "the weights"},
    {"config.json", "the sizes"},
    {"tokenizer.json", "the tokenizer"},
    {"tokenizer_config.json", "the tokenizer, for transformers"},
    {"optimizer.safetensors", "all that --resume needs"},
    {"bigram.safetensors", "counts, for the drafter bigram"},
    {"ngram.safetensors", "counts, for the drafter ngram"},
    {"medusa.safetensors", "heads, for the drafter medusa"},
    {"medusa-optimizer.safetensors", "their training, for --resume"},
    {"parallel.safetensors", "the drafter parallel"},
    {"parallel-optimizer.safetensors", "its training, for --resume"},
    {"calibration.json", "hit rates of drafters, for shapes"},
    {"train.json", "figures of the training"},
    {"medusa.json", "figures of the heads' training"},
    {"parallel.json", "figures of the drafter's training"},
    {"compare.json", "figures of a comparison"},
    {"compare.svg", "a picture of a comparison"},
    {"hidden/", "states of texts, for training heads"},
    {"features/", "states of texts, for training the drafter parallel"},
    {"sequential/", "the drafter parallel in its sequential form"},
    {"index.json", "what the states are of"},  // in hidden/ and features/, with train-N and validation-N.safetensors
};

// What the file of this name is; "" where no program of ours writes one.
inline std::string known_file(const std::string& name) {
  for (const KnownFile& known : kKnownFiles)
    if (name == known.name) return known.what;
  const size_t dash = name.find('-'), dot = name.find('.');
  const std::string part = name.substr(0, dash), more = name.substr(std::min(dot, name.size()));
  if ((part != "train" && part != "validation") || more != ".safetensors" || dot <= dash + 1) return "";
  return name.find_first_not_of("0123456789", dash + 1) == dot ? "states of texts" : "";
}

}  // namespace nanospec
