// files/drafters.cpp: what drafters.h declares, in the same order.
#include "files/drafters.h"

#include "files/tables.h"

namespace nanospec {

// Reads one drafter's name.
static DrafterName parse_part(const std::string& text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string word = text.substr(0, colon), rest = text.substr(std::min(colon + 1, text.size()));
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
    refuse_usage(
        "drafter self needs a number of layers, not '{}': --drafter: write self:K with K from 1 on, for instance "
        "self:1",
        printable(rest));
  if (name.kind == DrafterName::kGpt && name.dir.empty())
    refuse_usage("drafter gpt needs the folder of its model: --drafter: write gpt:DIR, for instance gpt:runs/small");
  if (name.kind == DrafterName::kNgram && name.order < 1)
    refuse_usage(
        "drafter ngram needs its order, not '{}': --drafter: write ngram:N with N from 1 to {}, for instance ngram:4",
        printable(rest), kNgramOrders);
  const bool bare = name.order + name.layers == 0 && name.dir.empty();
  if (bare && text != word) refuse_word("drafter", text, "--drafter", forms[name.kind], "known are " + joined(forms));
  if (name.order > kNgramOrders)
    refuse_usage("drafter {} needs order {}, n-grams are counted up to order {}: --drafter: choose ngram:{} or less",
                 text, name.order, kNgramOrders, kNgramOrders);
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
    refuse_usage("drafter {} is a union of {}: --drafter: choose at most {}", shown, names.size(), Union::kMostParts);
  if (count(DrafterName::kSelf) > 1)
    refuse_usage("drafter {} has self among its parts twice: --drafter: keep one of them", shown);
  if (names.size() > 1 && count(DrafterName::kNone))
    refuse_usage("drafter {} has none among its parts: --drafter: leave it out", shown);
  return names;
}

void check_drafter(const std::vector<DrafterName>& names, const std::string& model) {
  for (const DrafterName& name : names)
    if (name.kind == DrafterName::kBigram && is_gguf(model))
      refuse("drafter " + printable(name.text) + " needs bigrams of the training text, which a GGUF file does not have",
             printable(model, 300), "use --drafter suffix, or ngram:2, which is the same, after nanospec index");
}

// What makes its file anew. model: the target's folder or file.
static std::string maker_of(const DrafterName& name, const std::string& model) {
  if (name.kind == DrafterName::kGpt) return "train it again: train_gpt --data FILE --out " + printable(name.dir, 300);
  const std::string what = name.kind == DrafterName::kParallel ? "it" : "them";
  if (has_heads(name))
    return "train " + what + " again: " + drafter_trainer(kDrafters[name.kind].word, model, name.dir);
  if (is_gguf(model)) return ngrams_maker(model);
  return "repeat the train_gpt command that made the model, with --resume: it writes the counts anew";
}

static std::unique_ptr<Drafter> make_part(const DrafterName& name, const std::string& dir, int vocab,
                                          const MakeModelDrafter& make) {
  const DrafterName::Kind kind = name.kind;
  if (kind == DrafterName::kBigram) return load_bigram(dir, vocab);
  if (kind == DrafterName::kNgram) return load_ngram(dir, name.order, vocab);
  if (kind == DrafterName::kLookup) return std::make_unique<Lookup>(vocab);
  if (kind == DrafterName::kSuffix) return std::make_unique<Suffix>(vocab);
  if (kind == DrafterName::kRecycle) return std::make_unique<Recycle>(vocab);
  if (kind == DrafterName::kRandom) return std::make_unique<RandomLogits>(vocab);
  if (kind == DrafterName::kNone) return nullptr;
  if (!make) throw std::logic_error("there is no model to draft with");
  return make(name);
}

std::unique_ptr<Drafter> load_drafter(const std::string& text, const std::string& dir, int vocab,
                                      const MakeModelDrafter& make) {
  const std::vector<DrafterName> names = parse_drafter(text);
  check_drafter(names, dir);
  std::vector<std::unique_ptr<Drafter>> parts;
  for (const DrafterName& name : names) {
    parts.push_back(made_by(maker_of(name, dir), [&] { return make_part(name, dir, vocab, make); }));
    if (parts.back()) parts.back()->name = name.text;
  }
  if (parts.size() == 1) return std::move(parts[0]);
  return named<Union>(text, std::move(parts));
}

}  // namespace nanospec
