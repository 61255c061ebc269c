// files/drafter_names.h: the words by which drafters are known, and reading them. It makes none.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "drafters/adapt.h"
#include "drafters/ngram.h"
#include "files/gguf.h"
#include "files/text.h"
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
     "the next tokens in one forward, from the model's layers, trained by train_gpt --parallel"},
    {"random", "random", "chance alone, for study"},
};
constexpr const char* kUnionForm = "a+b";
constexpr const char* kUnionWhat = "up to four of them in one tree, for instance suffix+ngram:4";

// Reads one drafter's name.
inline DrafterName parse_part(const std::string& text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string word = text.substr(0, colon), rest = text.substr(std::min(colon + 1, text.size()));
  std::vector<std::string> words, forms;
  for (const DrafterWord& known : kDrafters) {
    words.push_back(known.word);
    forms.push_back(known.form);
  }
  const size_t kind = std::find(words.begin(), words.end(), word) - words.begin();
  std::vector<std::string> all = forms;
  all.push_back(kUnionForm);
  if (kind == words.size()) refuse_word("drafter", text, "--drafter", closest_word(word, words, forms), all);
  DrafterName name;
  name.kind = DrafterName::Kind(kind);
  name.text = text;
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

// Reads a drafter's name, or the parts of a union. Throws std::invalid_argument for an unknown name (the message has
// the nearest), for an order that is no number from 1 to kNgramOrders, and for a union of too many parts, of none, or
// with self twice: they would overwrite each other's rows.
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

// Throws runtime_error where the model is a GGUF file and the drafter needs what train_gpt writes beside a model:
// counts of the training text, or heads.
inline void check_drafter(const std::vector<DrafterName>& names, const std::string& model) {
  if (!is_gguf(model)) return;
  for (const DrafterName& name : names) {
    const bool counts = name.kind == DrafterName::kBigram || name.kind == DrafterName::kNgram;
    if (counts || name.kind == DrafterName::kMedusa || name.kind == DrafterName::kParallel)
      refuse("drafter " + printable(name.text) + " needs " +
                 (counts ? "counts of the training text" : "trained heads") + ", which a GGUF file does not have",
             printable(model, 300), "use --drafter suffix, lookup, recycle, self:K or none");
  }
}

}  // namespace nanospec
