// files/drafter_names.cpp: what drafter_names.h declares, in the same order.
#include "files/drafter_names.h"

#include "files/gguf.h"

namespace nanospec {
[[noreturn]] static void refuse_name(const std::string& wrong, const std::string& advice) {
  throw std::invalid_argument("drafter " + wrong + ": --drafter: " + advice);
}

// Reads one drafter's name.
static DrafterName parse_part(const std::string& text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string word = text.substr(0, colon), rest = text.substr(std::min(colon + 1, text.size()));
  const std::string most = std::to_string(kNgramOrders);
  std::vector<std::string> forms = column(kDrafters, &DrafterWord::form);
  forms.push_back(kUnionForm);
  DrafterName name;
  name.kind =
      DrafterName::Kind(place_of("drafter", word, text, "--drafter", column(kDrafters, &DrafterWord::word), forms));
  name.text = text;
  if (name.kind == DrafterName::kNgram) name.order = parse_count(rest);
  else if (name.kind == DrafterName::kSelf) name.layers = parse_count(rest);
  else if (name.kind == DrafterName::kGpt || has_heads(name)) name.dir = rest;
  if (name.kind == DrafterName::kSelf && name.layers < 1)
    refuse_name("self needs a number of layers, not '" + printable(rest) + "'",
                "write self:K with K from 1 on, for instance self:1");
  if (name.kind == DrafterName::kGpt && name.dir.empty())
    refuse_name("gpt needs the folder of its model", "write gpt:DIR, for instance gpt:runs/small");
  if (name.kind == DrafterName::kNgram && name.order < 1)
    refuse_name("ngram needs its order, not '" + printable(rest) + "'",
                "write ngram:N with N from 1 to " + most + ", for instance ngram:4");
  const bool bare = name.order + name.layers == 0 && name.dir.empty();
  if (bare && text != word) refuse_word("drafter", text, "--drafter", forms[name.kind], forms);
  if (name.order > kNgramOrders)
    refuse_name(filled("{} needs order {}, n-grams are counted up to order {}", text, name.order, most),
                "choose ngram:" + most + " or less");
  return name;
}

std::vector<DrafterName> parse_drafter(const std::string& text) {
  std::vector<DrafterName> names;
  for (const std::string& part : split_at(text + "+", '+')) names.push_back(parse_part(part));
  const auto count = [&](DrafterName::Kind kind) {
    return std::count_if(names.begin(), names.end(), [&](const DrafterName& name) { return name.kind == kind; });
  };
  const std::string shown = printable(text);
  if (names.size() > size_t(Union::kMostParts))
    refuse_name(filled("{} is a union of {}", shown, names.size()),
                "choose at most " + std::to_string(Union::kMostParts));
  if (count(DrafterName::kSelf) > 1) refuse_name(shown + " has self among its parts twice", "keep one of them");
  if (names.size() > 1 && count(DrafterName::kNone)) refuse_name(shown + " has none among its parts", "leave it out");
  return names;
}

std::string text_of(const std::vector<DrafterName>& names) {
  return joined(names, "+", [](const DrafterName& name) { return name.text; });
}

void check_drafter(const std::vector<DrafterName>& names, const std::string& model) {
  if (!is_gguf(model)) return;
  for (const DrafterName& name : names)
    if (name.kind == DrafterName::kBigram)
      refuse("drafter " + printable(name.text) + " needs bigrams of the training text, which a GGUF file does not have",
             printable(model, 300), "use --drafter suffix, or ngram:2, which is the same, after nanospec index");
}

}  // namespace nanospec
