// files/drafters.h: drafters by name: the words by which they are known, reading these, and loading a drafter from a
// model's folder. Those that run a model: model_drafters.h. It drafts nothing itself.
#pragma once

#include "drafters/adapt.h"
#include "drafters/ngram.h"
#include "files/text.h"

namespace nanospec {

struct DrafterName {
  enum Kind { kNone, kBigram, kNgram, kLookup, kSuffix, kRecycle, kGpt, kSelf, kMedusa, kHydra, kParallel, kRandom };
  Kind kind = kNone;  // in the order of kDrafters
  int order = 0;      // of ngram:N
  int layers = 0;     // of self:K
  std::string dir;    // of gpt:DIR, medusa:DIR, hydra:DIR, parallel:DIR
  std::string text = "none";
};

inline bool has_heads(const DrafterName& name) {
  return name.kind == DrafterName::kMedusa || name.kind == DrafterName::kHydra || name.kind == DrafterName::kParallel;
}

struct DrafterWord {
  const char *word, *form, *what;
};
constexpr DrafterWord kDrafters[] = {
    {"none", "none", "nobody: plain decoding"},
    {"bigram", "bigram", "counts of the training text: what follows the last token"},
    {"ngram", "ngram:N", "the same for the last N - 1 tokens, N from 1 to 6, interpolated"},
    {"lookup", "lookup", "what followed the same tokens, in the latest places of the prompt and text"},
    {"suffix", "suffix", "the same in all of the prompt and text, by a suffix automaton"},
    {"recycle", "recycle", "which tokens the model last found likeliest after the same token"},
    {"gpt", "gpt:DIR", "a smaller GPT, trained by train_gpt on the same text"},
    {"self", "self:K", "the model's own first K layers, and its head"},
    {"medusa", "medusa[:DIR]", "heads on the model's last hidden state, trained by train_drafter --medusa"},
    {"hydra", "hydra[:DIR]", "heads that see the path, trained by train_drafter --hydra on what the model says"},
    {"parallel", "parallel[:DIR]",
     "the next tokens in one forward, from the model's layers, trained by train_drafter --parallel"},
    {"random", "random", "random guesses, for study"},
};
constexpr const char* kUnionForm = "a+b";
constexpr const char* kUnionWhat = "up to four of them in one tree, for instance suffix+ngram:4";

// Reads a drafter's name, or the parts of a union. Throws std::invalid_argument for an unknown name (the message has
// the nearest), for an order that is no number from 1 to kNgramOrders, and for a union of too many parts, of none, or
// with self twice: they would overwrite each other's rows.
std::vector<DrafterName> parse_drafter(const std::string& text);

// Throws runtime_error where the model is a GGUF file and the drafter needs what train_gpt alone writes: bigrams of the
// training text. (All others are made for any model.)
void check_drafter(const std::vector<DrafterName>& names, const std::string& model);

// Makes a drafter that runs a model, or heads on one: kGpt, kSelf, kMedusa, kHydra, kParallel. It throws runtime_error
// for files that are missing or do not fit.
using MakeModelDrafter = std::function<std::unique_ptr<Drafter>(const DrafterName&)>;

// The drafter of that name, or union of names, for the model in `dir`, of `vocab` tokens; null for `none`, plain
// decoding. Throws what parse_drafter throws, and runtime_error for a file that is missing or does not fit.
std::unique_ptr<Drafter> load_drafter(const std::string& text, const std::string& dir, int vocab,
                                      const MakeModelDrafter& make = nullptr);

}  // namespace nanospec
