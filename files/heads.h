// files/heads.h: what was trained to draft, in and out of files: Medusa heads, Hydra's heads and the parallel drafter.
//
// They lie beside the model, as train_drafter writes them: the tensors of one table, and the names of the model and the
// text that they were trained with. Heads that were trained with others are used, and that is said. A reader tells
// the sizes from the tensors' names and shapes and from the metadata, then checks all of it. It throws runtime_error
// with one line where the file is missing, broken, or not for this target.
#pragma once

#include "drafters/hydra.h"
#include "drafters/medusa.h"
#include "drafters/parallel.h"
#include "files/checkpoint.h"
#include "files/model_path.h"
#include "files/origin.h"

namespace nanospec {

// Where the drafter of that name lies.
inline std::string heads_path(const std::string& dir, const std::string& name) {
  return dir + "/" + name + ".safetensors";
}

// The file of the drafter of that name in DIR, for a target in target_dir ("": not asked). Throws runtime_error where
// there is none.
struct HeadsFile {
  const std::string name, dir, target_dir;
  const bool heads = name != "parallel";  // this, and it, how and again are words for messages
  const std::string path = heads_path(dir, name), it = heads ? "them" : "it",
                    how = ": " + drafter_trainer(name, target_dir, dir), again = "train " + it + " again" + how;
  const SafeTensors tensors =
      read_made(path, "drafter " + name + (heads ? " has no heads" : " is not trained"), "train " + it + how);

  // How many there are of PREFIX + number + SUFFIX, numbered through from `first`.
  int count(const std::string& prefix, int first, const std::string& suffix) const {
    int n = 0;
    while (tensors.find(prefix + std::to_string(first + n) + suffix)) n++;
    return n;
  }
  // The shape of the tensor of that name; empty where there is none.
  std::vector<int64_t> shape(const std::string& tensor) const {
    const Tensor* const found = tensors.find(tensor);
    return found ? found->shape : std::vector<int64_t>();
  }
  // How many tokens of their own they have, which of the target's they can say; 0: none that are such, so that they say
  // any. They lie beside the tensors, as `token`.
  int own_tokens(const Config& config) const {
    const std::vector<int64_t> its = shape("token");
    return its.size() == 1 && its[0] >= 1 && its[0] <= config.vocab_size ? int(its[0]) : 0;
  }

  // All of it, for a target of this config. tokens: how many are its own. Notes one that was trained with another
  // model, or on another text. Throws runtime_error for tokens of another tokenizer than that in target_dir.
  template <class Sizes>
  DrafterFile<Sizes> read(const Sizes& sizes, const std::vector<TensorSpec>& table, const Config& config,
                          int tokens = 0) const {
    const Expected own = tokens > 0 ? Expected{{"token", {tokens}}} : Expected();
    DrafterFile<Sizes> all = {sizes, read_arrays(tensors, table, {""}, path, own)[0]};
    if (tokens > 0) {
      all.token = read_integers(tensors, "token", path);
      const std::set<int> ids(all.token.begin(), all.token.end());
      if (ids.size() < all.token.size() || *ids.begin() < 0 || *ids.rbegin() >= config.vocab_size)
        refuse(filled("its {} tokens are not different ones of this model", tokens), path, again);
      const std::string tokenizer = said_by(tensors.metadata, "tokenizer");
      if (!target_dir.empty() && !tokenizer.empty() && tokenizer != tokenizer_hash(target_dir))
        refuse("trained with a different tokenizer than the model's", path, again);
    }
    check_origin(tensors.metadata, heads ? "the heads were trained" : "the drafter was trained", path, target_dir,
                 "drafts are right less often; train again" + how);
    return all;
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Medusa heads

// The heads in DIR for a target of this config, in target_dir.
inline MedusaHeads read_medusa(const std::string& dir, const Config& config, const std::string& target_dir = "") {
  const HeadsFile file = {"medusa", dir, target_dir};
  constexpr int kTied = 0;  // of rank, unless tensors say otherwise
  MedusaSizes sizes = {file.count("head.", 1, ".linear.weight"), kTied, config.n_embd, config.vocab_size};
  if (sizes.heads < 1 || sizes.heads > kMostHeads)
    refuse(filled("the file holds {} heads, expected 1 to {}", sizes.heads, kMostHeads), file.path);
  const std::vector<int64_t> linear = file.shape("head.1.linear.weight"), down = file.shape("head.1.down.weight");
  sizes.root = !linear.empty() && linear[0] == 2 * int64_t(config.n_embd);
  if (file.tensors.find("head.1.projection.weight")) sizes.rank = kOwnProjection;
  else if (down.size() == 2) sizes.rank = int(std::min<int64_t>(down[1], kMaxVocabulary));
  return file.read(sizes, medusa_table(sizes), config);
}

// The drafter in DIR for the target in `target_dir`, which has this config.
inline std::unique_ptr<Drafter> load_medusa(const std::string& dir, const std::string& target_dir,
                                            const Config& config) {
  const MedusaHeads heads = read_medusa(dir, config, target_dir);
  if (heads.sizes.rank == kOwnProjection && !heads.sizes.root) return std::make_unique<Medusa>(heads, nullptr);
  const std::vector<float> weights = load_model(target_dir).weights;
  return std::make_unique<Medusa>(heads, TargetEnds<float>(config, weights.data()));
}

// ---------------------------------------------------------------------------------------------------------------
// Heads that learned from what a model said: Hydra's, and Medusa's of such texts

// Whether Medusa's heads in DIR are such. Throws runtime_error where the file is no safetensors.
inline bool medusa_of_texts(const std::string& dir) {
  const std::string path = heads_path(dir, "medusa");
  return std::filesystem::exists(path) && read_header(path).find("token");
}

// The heads in DIR for a target of this config, in target_dir. name: "hydra", or "medusa".
inline HydraFile read_hydra(const std::string& dir, const Config& config, const std::string& target_dir = "",
                            const std::string& name = "hydra") {
  const HeadsFile file = {name, dir, target_dir};
  const int heads = name == "hydra" ? 0 : file.count("head.", 1, ".weight");
  const int tokens = file.own_tokens(config);
  const std::string first = heads > 0 ? "head.1.weight" : "step.weight";
  const std::vector<int64_t> step = file.shape(first);
  if (heads > kMostAhead || step.size() != 2 || step[1] < 1 || step[1] > kMaxChannels || tokens == 0)
    refuse(filled("not heads for this model: {} is {}, token is {}", first, shown_shape(step),
                  shown_shape(file.shape("token"))),
           file.path, file.again);
  const HydraSizes sizes = {config.n_embd, int(step[1]), tokens, heads};
  return file.read(sizes, hydra_table(sizes), config, tokens);
}

// The drafter in DIR for this target, in target_dir.
inline std::unique_ptr<Drafter> load_hydra(const std::string& dir, const std::string& target_dir, const Target& target,
                                           const std::string& name = "hydra") {
  const HydraFile file = read_hydra(dir, target.config(), target_dir, name);
  return std::make_unique<Hydra>(std::make_shared<HydraHeads>(file, target), target.vocab_size());
}

// ---------------------------------------------------------------------------------------------------------------
// The parallel drafter

// What the tensors' shapes do not say.
inline Metadata parallel_metadata(const ParallelSizes& s) {
  return {{"n_head", std::to_string(s.n_head)},
          {"ahead", std::to_string(s.ahead)},
          {"sequential", s.sequential ? "yes" : "no"},
          {"raw", s.raw ? "yes" : "no"},
          {"window", std::to_string(s.window)}};
}

// The drafter in DIR for a target of this config, in target_dir, as it was trained.
inline ParallelFile read_parallel(const std::string& dir, const Config& config, const std::string& target_dir = "") {
  const HeadsFile file = {"parallel", dir, target_dir};
  const auto word = [&](const char* key) { return said_by(file.tensors.metadata, key); };
  const auto yes = [&](const char* key) {
    if (word(key) != "yes" && word(key) != "no")
      refuse("its metadata's " + std::string(key) + " is neither yes nor no", file.path, file.again);
    return word(key) == "yes";
  };
  ParallelSizes s = {.n_layer = file.count("h.", 0, ".attn.c_attn.weight"),
                     .n_head = parse_count(word("n_head")),
                     .n_embd = config.n_embd,
                     .vocab_size = config.vocab_size};
  s.ahead = parse_count(word("ahead"));
  s.window = parse_count(word("window"));
  s.tokens = file.own_tokens(config);
  if (s.n_layer < 1 || s.n_layer > kMostParallelLayers || s.ahead < 1 || s.ahead > kMostAhead || s.n_head < 1 ||
      s.n_embd % s.n_head != 0 || s.head_size() % 2 != 0 || s.window == 1)
    refuse(filled("not a drafter for this model: {} layers, {} tokens at once, {} heads", s.n_layer, s.ahead, s.n_head),
           file.path, file.again);
  s.sequential = yes("sequential");
  s.raw = yes("raw");
  if (s.sequential && s.tokens > 0) refuse("a sequential drafter with tokens of its own", file.path, file.again);
  const std::vector<int64_t> qkv = file.shape("h.0.attn.c_attn.weight");
  const int64_t columns = qkv.size() == 2 ? qkv[1] : 0;
  s.n_kv_head = int(std::min<int64_t>((columns / s.head_size() - s.n_head) / 2, s.n_head));
  if (s.n_kv_head < 1 || s.n_head % s.n_kv_head != 0)
    refuse("heads do not fit: h.0.attn.c_attn.weight is " + shown_shape(qkv), file.path, file.again);
  return file.read(s, parallel_table(s), config, s.tokens);
}

// The drafter in DIR for this target of this config, in target_dir.
inline std::unique_ptr<Drafter> load_parallel(const std::string& dir, const std::string& target_dir, Target& target,
                                              const Config& config) {
  const ParallelFile file = read_parallel(dir, config, target_dir);
  if (!file.sizes.sequential) return std::make_unique<Parallel>(std::make_shared<Streams>(file, target, kMostAhead));
  return std::make_unique<Sequential>(std::make_shared<Streams>(file, target, target.most_rows()));
}

}  // namespace nanospec
