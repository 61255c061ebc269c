// files/drafters.h: loads drafters by name from a model's folder.
//
// In order: the drafters that live on counts, and all of them by name; those that run a model. The names themselves:
// drafter_names.h. It drafts nothing itself.
#pragma once

#include <functional>
#include <memory>

#include "decode.h"
#include "drafters/adapt.h"
#include "drafters/draft_model.h"
#include "drafters/ngram.h"
#include "files/checkpoint.h"
#include "files/drafter_names.h"
#include "files/heads.h"
#include "files/tables.h"

namespace nanospec {

// Makes a drafter that runs a model, or heads on one: kGpt, kSelf, kMedusa, kParallel. It throws runtime_error for
// files that are missing or do not fit.
using MakeModelDrafter = std::function<std::unique_ptr<LogitsDrafter>(const DrafterName&)>;

// What makes its file anew. model: the target's folder or file.
inline std::string maker_of(const DrafterName& name, const std::string& model) {
  const std::string place = name.dir.empty() ? "" : " --out " + printable(name.dir, 300);
  if (name.kind == DrafterName::kGpt) return "train it again: train_gpt --data FILE" + place;
  if (name.kind == DrafterName::kMedusa) return "train them again: train_gpt --medusa MODEL --data FILE" + place;
  if (name.kind == DrafterName::kParallel) return "train it again: train_gpt --parallel MODEL --data FILE" + place;
  if (is_gguf(model)) return ngrams_maker(model);
  return "repeat the train_gpt command that made the model, with --resume: it writes the counts anew";
}

inline std::unique_ptr<LogitsDrafter> make_part(const DrafterName& name, const std::string& dir, int vocab,
                                                const MakeModelDrafter& make) {
  switch (name.kind) {
    case DrafterName::kNone:
      break;
    case DrafterName::kBigram:
      return std::make_unique<BigramLogits>(std::shared_ptr<Bigram>(load_bigram(dir, vocab)));
    case DrafterName::kNgram:
      return load_ngram(dir, name.order, vocab);
    case DrafterName::kLookup:
      return std::make_unique<Lookup>(vocab);
    case DrafterName::kSuffix:
      return std::make_unique<Suffix>(vocab);
    case DrafterName::kRecycle:
      return std::make_unique<Recycle>(vocab);
    case DrafterName::kGpt:
    case DrafterName::kSelf:
    case DrafterName::kMedusa:
    case DrafterName::kParallel:
      if (!make) throw std::logic_error("there is no model to draft with");
      return make(name);
    case DrafterName::kRandom:
      return std::make_unique<RandomLogits>(vocab);
  }
  return nullptr;
}

inline std::unique_ptr<LogitsDrafter> load_part(const DrafterName& name, const std::string& dir, int vocab,
                                                const MakeModelDrafter& make) {
  return made_by(maker_of(name, dir), [&] { return make_part(name, dir, vocab, make); });
}

// The drafter of these names for the model in `dir`, of `vocab` tokens; null for `none`, plain decoding. Throws
// runtime_error for a file that is missing or does not fit.
inline std::unique_ptr<Drafter> load_drafter(const std::vector<DrafterName>& names, const std::string& dir, int vocab,
                                             const MakeModelDrafter& make = nullptr) {
  check_drafter(names, dir);
  std::unique_ptr<Drafter> drafter;
  if (names.size() == 1 && names[0].kind == DrafterName::kBigram) {
    drafter = made_by(maker_of(names[0], dir), [&] { return load_bigram(dir, vocab); });
  } else if (names.size() == 1) {
    drafter = load_part(names[0], dir, vocab, make);
  } else {
    std::vector<std::unique_ptr<LogitsDrafter>> parts;
    for (const DrafterName& name : names) {
      parts.push_back(load_part(name, dir, vocab, make));
      parts.back()->name = name.text;
    }
    drafter = std::make_unique<Union>(std::move(parts));
  }
  if (drafter) drafter->name = text_of(names);
  return drafter;
}
inline std::unique_ptr<Drafter> load_drafter(const std::string& text, const std::string& dir, int vocab,
                                             const MakeModelDrafter& make = nullptr) {
  return load_drafter(parse_drafter(text), dir, vocab, make);
}

// ---------------------------------------------------------------------------------------------------------------
// Those that run a model, or heads on one

// It runs on the target's threads, since the two take turns: a second team on the same cores would only be in the way.
// Throws runtime_error for a model that cannot be read, or is of other tokens than the target's.
inline std::unique_ptr<LogitsDrafter> load_small_model(const std::string& dir, const Tokenizer& tokenizer, Dtype dtype,
                                                       Dtype cache_dtype, const Target& target) {
  Loaded loaded = load_model(dir);
  if (loaded.tokenizer.symbols != tokenizer.symbols)
    refuse("drafter gpt:" + printable(dir) + " has other tokens than the target", dir + "/tokenizer.json",
           "draft with a model that was trained on the same text");
  return std::make_unique<SmallModel>(std::make_unique<Target>(loaded.config, loaded.weights.data(), dtype,
                                                               target.pool(), target.most_rows(), cache_dtype));
}

// All layers would draft what the target says, at the price of asking it. dir: the target's, for the message. Throws
// runtime_error where it has not more than so many layers.
inline std::unique_ptr<LogitsDrafter> first_layers(Target& target, int layers, const std::string& dir) {
  if (layers >= target.layers())
    refuse("drafter self:" + std::to_string(layers) + " wants " + std::to_string(layers) +
               " of the first layers, the model has " + std::to_string(target.layers()) + " in all",
           dir + "/config.json",
           target.layers() == 1 ? "choose another drafter"
                                : "choose self:" + std::to_string(target.layers() - 1) + " or less");
  return std::make_unique<FirstLayers>(target, layers);
}

// Makes them for this target, of the model in `dir`. Throws runtime_error for files that are missing or do not fit, and
// for heads on a target whose states stay on a GPU.
inline MakeModelDrafter model_drafters(Target& target, const std::string& dir, const Config& config,
                                       const Tokenizer& tokenizer, Dtype dtype, Dtype cache_dtype) {
  return [&target, dir, config, &tokenizer, dtype,
          cache_dtype](const DrafterName& part) -> std::unique_ptr<LogitsDrafter> {
    if (part.kind == DrafterName::kSelf) return first_layers(target, part.layers, dir);
    if (part.kind == DrafterName::kGpt) {
      check_origin(model_metadata(part.dir), "drafter " + printable(part.text, 300) + " was trained", part.dir, dir,
                   "drafts are right less often; use a model of the same text");
      return load_small_model(part.dir, tokenizer, dtype, cache_dtype, target);
    }
    if (target.cuda())
      refuse("drafter " + part.text + " needs the model's hidden states, which stay on the GPU", "--device cuda",
             "use --device cpu, or another drafter");
    const std::string heads = part.dir.empty() ? dir : part.dir;
    if (part.kind == DrafterName::kMedusa) return load_medusa(heads, dir, config);
    return load_parallel(heads, dir, target, config);
  };
}

}  // namespace nanospec
