// files/drafters.cpp: which drafter a name stands for.
#include "files/drafters.h"

#include "files/tables.h"

namespace nanospec {
// What makes its file anew. model: the target's folder or file.
static std::string maker_of(const DrafterName& name, const std::string& model) {
  const std::string place = name.dir.empty() ? "" : " --out " + printable(name.dir, 300);
  if (name.kind == DrafterName::kGpt) return "train it again: train_gpt --data FILE" + place;
  if (name.kind == DrafterName::kMedusa) return "train them again: " + drafter_trainer("medusa", model, name.dir);
  if (name.kind == DrafterName::kHydra) return "train them again: " + drafter_trainer("hydra", model, name.dir);
  if (name.kind == DrafterName::kParallel) return "train it again: " + drafter_trainer("parallel", model, name.dir);
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

std::unique_ptr<Drafter> load_drafter(const std::vector<DrafterName>& names, const std::string& dir, int vocab,
                                      const MakeModelDrafter& make) {
  check_drafter(names, dir);
  std::vector<std::unique_ptr<Drafter>> parts;
  for (const DrafterName& name : names) {
    parts.push_back(made_by(maker_of(name, dir), [&] { return make_part(name, dir, vocab, make); }));
    if (parts.back()) parts.back()->name = name.text;
  }
  if (parts.size() == 1) return std::move(parts[0]);
  auto all = std::make_unique<Union>(std::move(parts));
  all->name = text_of(names);
  return all;
}

std::unique_ptr<Drafter> load_drafter(const std::string& text, const std::string& dir, int vocab,
                                      const MakeModelDrafter& make) {
  return load_drafter(parse_drafter(text), dir, vocab, make);
}

}  // namespace nanospec
