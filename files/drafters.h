// files/drafters.h: drafters by name.
//
// In order: the words that the command line knows; reading them; making the drafters that live on counts; those that
// run a model. It drafts nothing itself.
#pragma once

#include <functional>
#include <memory>

#include "decode.h"
#include "drafters/adapt.h"
#include "drafters/draft_model.h"
#include "drafters/ngram.h"
#include "files/checkpoint.h"
#include "files/heads.h"
#include "files/tables.h"
#include "files/words.h"

namespace nanospec {

struct DrafterName {
  enum Kind {
    kNone,
    kBigram,
    kNgram,
    kLookup,
    kSuffix,
    kRecycle,
    kGpt,
    kSelf,
    kMedusa,
    kParallel,
    kRandom
  } kind = kNone;
  int order = 0;    // of ngram:N; kinds are in the order of kDrafters
  int layers = 0;   // of self:K
  std::string dir;  // of gpt:DIR, medusa:DIR, parallel:DIR
  std::string text = "none";
};

struct DrafterWord {
  const char *word, *form, *what;
};
constexpr DrafterWord kDrafters[] = {
    {"none", "none", "nobody: plain decoding"},
    {"bigram", "bigram", "counts of the training text: what follows the last token"},
    {"ngram", "ngram:N", "the same of the last N - 1 tokens, N from 1 to 6, interpolated"},
    {"lookup", "lookup", "what followed the same words lately in the prompt and text"},
    {"suffix", "suffix", "the same in all of the prompt and text, by a suffix automaton"},
    {"recycle", "recycle", "what the model last thought after the same token"},
    {"gpt", "gpt:DIR", "a smaller GPT, trained by train_gpt on the same text"},
    {"self", "self:K", "the model's own first K layers, and its head"},
    {"medusa", "medusa[:DIR]", "heads on the model's last hidden state, trained by train_gpt --medusa"},
    {"parallel", "parallel[:DIR]",
     "the next tokens in one pass, from the model's layers, trained by train_gpt --parallel"},
    {"random", "random", "chance alone, for study"},
};
constexpr const char* kUnionForm = "a+b";
constexpr const char* kUnionWhat = "up to four of them in one tree, for instance suffix+ngram:4";

// Reads one drafter's name.
inline DrafterName parse_part(const std::string& text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string word = text.substr(0, colon), rest = text.substr(std::min(colon + 1, text.size()));
  std::vector<std::string> words, forms;
  for (const DrafterWord& known : kDrafters) words.push_back(known.word), forms.push_back(known.form);
  const auto place = [&](const std::string& one) { return std::find(words.begin(), words.end(), one) - words.begin(); };
  const size_t kind = place(word), nearest = place(closest_word(word, words));
  std::vector<std::string> all = forms;
  all.push_back(kUnionForm);
  if (kind == words.size()) refuse_word("drafter", text, "--drafter", forms[nearest], all);
  DrafterName name;
  name.kind = DrafterName::Kind(kind), name.text = text;
  if (name.kind == DrafterName::kNgram) name.order = parse_count(rest);
  if (name.kind == DrafterName::kSelf) name.layers = parse_count(rest);
  if (name.kind == DrafterName::kGpt) name.dir = rest;
  if (name.kind == DrafterName::kSelf && name.layers < 1)
    throw std::invalid_argument("drafter self wants a number of layers, not '" + printable(rest) +
                                "': --drafter: write self:K with K from 1 on, for instance self:1");
  if (name.kind == DrafterName::kGpt && name.dir.empty())
    throw std::invalid_argument(
        "drafter gpt wants the folder of its model: --drafter: write gpt:DIR, for instance gpt:runs/small");
  if (name.kind == DrafterName::kMedusa || name.kind == DrafterName::kParallel) name.dir = rest;
  if (name.kind == DrafterName::kNgram && name.order < 1)
    throw std::invalid_argument("drafter ngram wants its order, not '" + printable(rest) +
                                "': --drafter: write ngram:N with N from 1 to " + std::to_string(kNgramOrders) +
                                ", for instance ngram:4");
  const bool bare = name.order + name.layers == 0 && name.dir.empty();
  if (bare && text != word) refuse_word("drafter", text, "--drafter", forms[kind], all);
  if (name.order > kNgramOrders)
    throw std::invalid_argument("drafter " + text + " wants order " + std::to_string(name.order) +
                                ", n-grams are counted up to order " + std::to_string(kNgramOrders) +
                                ": --drafter: choose ngram:" + std::to_string(kNgramOrders) + " or less");
  return name;
}

// Reads a drafter's name: one, or the parts of a union. Throws invalid_argument for an unknown word (naming the
// nearest), for an order that is no number from 1 to kNgramOrders, and for a union of too many, with nobody, or with
// self twice: they would write over each other's rows.
inline std::vector<DrafterName> parse_drafter(const std::string& text) {
  std::vector<DrafterName> names;
  for (size_t at = 0; at <= text.size();) {
    const size_t plus = std::min(text.find('+', at), text.size());
    names.push_back(parse_part(text.substr(at, plus - at)));
    at = plus + 1;
  }
  if (names.size() > size_t(Union::kMostParts))
    throw std::invalid_argument("drafter " + printable(text) + " is a union of " + std::to_string(names.size()) +
                                ": --drafter: choose at most " + std::to_string(Union::kMostParts));
  const auto is_self = [](const DrafterName& name) { return name.kind == DrafterName::kSelf; };
  if (std::count_if(names.begin(), names.end(), is_self) > 1)
    throw std::invalid_argument("drafter " + printable(text) +
                                " has self among its parts twice: --drafter: keep one of them");
  for (const DrafterName& name : names)
    if (names.size() > 1 && name.kind == DrafterName::kNone)
      throw std::invalid_argument("drafter " + printable(text) + " has none among its parts: --drafter: leave it out");
  return names;
}

// The names as they are written on the command line.
inline std::string text_of(const std::vector<DrafterName>& names) {
  std::string text;
  for (const DrafterName& name : names) text += (text.empty() ? "" : "+") + name.text;
  return text;
}

// Makes a drafter that runs a model, or heads on one: kGpt, kSelf, kMedusa, kParallel. It throws runtime_error for
// files that are missing or do not fit.
using MakeModelDrafter = std::function<std::unique_ptr<LogitsDrafter>(const DrafterName&)>;

inline std::unique_ptr<LogitsDrafter> load_part(const DrafterName& name, const std::string& dir, int vocab,
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

// The drafter of these names for the model in `dir`, of `vocab` tokens; null for `none`, plain decoding. Throws
// runtime_error for a file that is missing or does not fit.
inline std::unique_ptr<Drafter> load_drafter(const std::vector<DrafterName>& names, const std::string& dir, int vocab,
                                             const MakeModelDrafter& make = nullptr) {
  std::unique_ptr<Drafter> drafter;
  if (names.size() == 1 && names[0].kind == DrafterName::kBigram) {
    drafter = load_bigram(dir, vocab);
  } else if (names.size() == 1) {
    drafter = load_part(names[0], dir, vocab, make);
  } else {
    std::vector<std::unique_ptr<LogitsDrafter>> parts;
    for (const DrafterName& name : names)
      parts.push_back(load_part(name, dir, vocab, make)), parts.back()->name = name.text;
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
    if (part.kind == DrafterName::kGpt) return load_small_model(part.dir, tokenizer, dtype, cache_dtype, target);
    if (target.cuda())
      refuse("drafter " + part.text + " needs the model's hidden states, which stay on the GPU", "--device cuda",
             "use --device cpu, or another drafter");
    const std::string heads = part.dir.empty() ? dir : part.dir;
    if (part.kind == DrafterName::kMedusa) return load_medusa(heads, dir, config);
    return load_parallel(heads, target, config);
  };
}

}  // namespace nanospec
