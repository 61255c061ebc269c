// files/drafter_names.cpp: what drafter_names.h declares, in the same order.
#include "files/drafter_names.h"

#include "files/gguf.h"

namespace nanospec {

DrafterName parse_part(const std::string& text) {
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
    throw std::invalid_argument("drafter self needs a number of layers, not '" + printable(rest) +
                                "': --drafter: write self:K with K from 1 on, for instance self:1");
  if (name.kind == DrafterName::kGpt && name.dir.empty())
    throw std::invalid_argument(
        "drafter gpt needs the folder of its model: --drafter: write gpt:DIR, for instance gpt:runs/small");
  if (name.kind == DrafterName::kMedusa || name.kind == DrafterName::kParallel) name.dir = rest;
  if (name.kind == DrafterName::kNgram && name.order < 1)
    throw std::invalid_argument("drafter ngram needs its order, not '" + printable(rest) +
                                "': --drafter: write ngram:N with N from 1 to " + std::to_string(kNgramOrders) +
                                ", for instance ngram:4");
  const bool bare = name.order + name.layers == 0 && name.dir.empty();
  if (bare && text != word) refuse_word("drafter", text, "--drafter", forms[kind], all);
  if (name.order > kNgramOrders)
    throw std::invalid_argument("drafter " + text + " needs order " + std::to_string(name.order) +
                                ", n-grams are counted up to order " + std::to_string(kNgramOrders) +
                                ": --drafter: choose ngram:" + std::to_string(kNgramOrders) + " or less");
  return name;
}

std::vector<DrafterName> parse_drafter(const std::string& text) {
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

std::string text_of(const std::vector<DrafterName>& names) {
  std::string text;
  for (const DrafterName& name : names) text += (text.empty() ? "" : "+") + name.text;
  return text;
}

void check_drafter(const std::vector<DrafterName>& names, const std::string& model) {
  if (!is_gguf(model)) return;
  for (const DrafterName& name : names) {
    const bool counts = name.kind == DrafterName::kBigram;
    if (counts || name.kind == DrafterName::kMedusa || name.kind == DrafterName::kParallel)
      refuse("drafter " + printable(name.text) + " needs " +
                 (counts ? "bigrams of the training text" : "trained heads") + ", which a GGUF file does not have",
             printable(model, 300),
             counts ? "use --drafter suffix, or ngram:2, which is the same, after nanospec index"
                    : "use --drafter suffix, lookup, recycle, self:K, or ngram:4 after nanospec index");
  }
}

}  // namespace nanospec
