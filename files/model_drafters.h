// files/model_drafters.h: makes the drafters that run a model, or heads on one, for a target. drafters.h asks for them.
#pragma once

#include "files/drafters.h"
#include "files/heads.h"

namespace nanospec {

// It runs on the target's threads, since the two take turns: a second team on the same cores would only be in the way.
// Throws runtime_error for a model that cannot be read, or is of other tokens than the target's.
inline std::unique_ptr<Drafter> load_small_model(const std::string& dir, const Tokenizer& tokenizer, Dtype dtype,
                                                 Dtype cache_dtype, const Target& target) {
  Loaded loaded = load_model(dir);
  if (loaded.tokenizer.symbols != tokenizer.symbols)
    refuse("drafter gpt:" + printable(dir) + " has other tokens than the target", dir + "/tokenizer.json",
           "draft with a model that was trained on the same text");
  return std::make_unique<SmallModel>(std::make_unique<Target>(
      loaded.config, loaded.weights.data(), dtype, target.pool(), target.most_rows(), cache_dtype, target.seats()));
}

// All layers would draft what the target says, at the price of asking it. dir: the target's, for the message. Throws
// runtime_error where it has not more than so many layers.
inline std::unique_ptr<Drafter> first_layers(Target& target, int layers, const std::string& dir) {
  const int all = target.config().n_layer;
  if (layers >= all)
    refuse(filled("drafter self:{} needs {} of the first layers, the model has {} in all", layers, layers, all),
           printable(dir, 300), all == 1 ? "choose another drafter" : filled("choose self:{} or less", all - 1));
  return std::make_unique<FirstLayers>(target, layers);
}

// Makes them for this target, of the model in `dir`. Throws runtime_error for files that are missing or do not fit, and
// for heads on a target whose states stay on a GPU.
inline MakeModelDrafter model_drafters(Target& target, const std::string& dir, const Config& config,
                                       const Tokenizer& tokenizer, Dtype dtype, Dtype cache_dtype) {
  return [&target, dir, config, &tokenizer, dtype, cache_dtype](const DrafterName& part) -> std::unique_ptr<Drafter> {
    if (part.kind == DrafterName::kSelf) return first_layers(target, part.layers, dir);
    if (part.kind == DrafterName::kGpt) {
      check_origin(model_metadata(part.dir), "drafter " + printable(part.text, 300) + " was trained", part.dir, dir,
                   "drafts are right less often; use a model of the same text");
      return load_small_model(part.dir, tokenizer, dtype, cache_dtype, target);
    }
    if (target.cuda())
      refuse("drafter " + part.text + " needs the model's hidden states, which stay on the GPU", "--device cuda",
             "use --device cpu, or another drafter");
    const std::string heads = part.dir.empty() ? folder_of_model(dir) : part.dir;
    if (part.kind == DrafterName::kHydra) return load_hydra(heads, dir, target);
    if (part.kind == DrafterName::kMedusa)
      return medusa_of_texts(heads) ? load_hydra(heads, dir, target, "medusa") : load_medusa(heads, dir, config);
    return load_parallel(heads, dir, target, config);
  };
}

}  // namespace nanospec
