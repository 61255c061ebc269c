// training/lessons.h: what a model said, as lessons for a drafter: the texts of nanospec distill.
//
// In order: the passages of texts; the lessons of a training, with the tokens that its drafter learns to say; what the
// target computes of passages, on its way into shards. The target computes in the number type that it decodes with, so
// a drafter learns from the states that it will see.
#pragma once

#include "files/gguf_model.h"
#include "files/said.h"
#include "files/tables.h"
#include "training/shards.h"

namespace nanospec {

// A passage is L places of a text, one after the other: at each the state of the target that picked a token of the
// model's own, that token, and the K tokens behind it, all in the same text. An example is a passage of one place.
// Passages are numbered through the texts.
struct SaidTexts {
  std::vector<SaidText> texts;
  std::vector<size_t> first = {0};  // (texts + 1) the number of each one's first passage, and how many there are

  void add(const SaidText& said, int places, int ahead) {
    const size_t own = said.tokens.size() - said.begin, needed = size_t(places + ahead);
    if (said.begin == 0 || own < needed) return;  // no state, or no passage
    texts.push_back(said);
    first.push_back(first.back() + (own - size_t(ahead)) / size_t(places));
  }
  size_t passages() const { return first.back(); }
};

struct Lessons {
  int vocabulary = kBigramMostTokens - 1;  // most tokens that a drafter learns to say
  float epochs = 3;
  SaidTexts train, validation;
  std::vector<int> token;          // (N) that it learns to say, the most frequent first
  std::vector<int> class_of;       // (V) which of them a token is; N: none of them
  std::shared_ptr<Target> target;  // computes states, and gives embeddings

  // Reads the texts of a file, for a model of V tokens and this tokenizer. of_text(said): called for each that is not
  // held out.
  template <class F>
  void read(const std::string& bytes, const std::string& path, int V, const std::string& tokenizer, int places,
            int ahead, F of_text) {
    std::vector<int> count(size_t(V), 0);
    each_said(bytes, path, V, tokenizer, [&](const SaidText& said) {
      if (!said.dropped.empty()) return;
      (said.held_out ? validation : train).add(said, places, ahead);
      if (said.held_out) return;
      of_text(said);
      for (size_t i = said.begin; i < said.tokens.size(); i++) count[size_t(said.tokens[i])]++;
    });
    for (int id = 0; id < V; id++)
      if (count[size_t(id)] > 0) token.push_back(id);
    const auto oftener = [&](int a, int b) { return count[size_t(a)] > count[size_t(b)]; };
    std::stable_sort(token.begin(), token.end(), oftener);
    token.resize(std::min(token.size(), size_t(vocabulary)));
    class_of.assign(size_t(V), int(token.size()));
    for (size_t i = 0; i < token.size(); i++) class_of[size_t(token[i])] = int(i);
  }

  // The target's embeddings of n tokens, (n, C).
  void embeddings(const int* tokens, int n, float* to) const {
    embed(*target, Team{}, n, tokens, {to, target->config().n_embd});
  }

  // A drafter's weights before training. Its guesses begin as the target's head says these tokens; "any other" begins
  // at zero. table: with a tensor guess.weight, (N + 1, C).
  std::vector<float> initial(const std::vector<TensorSpec>& table, uint64_t seed) const {
    std::vector<float> weights = initial_weights(table, seed);
    for (const TensorSpec& spec : table)
      if (spec.name == "guess.weight") {
        std::fill_n(weights.begin() + long(spec.offset), spec.size, 0.0f);
        const Panels<AnyNumber>& head = target->weights().head.forward;
        float* const guess = weights.data() + spec.offset;
        unpack(Team{}, int(token.size()), Unpack<float, AnyNumber>{token.data(), head, guess, target->config().n_embd});
      }
    return weights;
  }
};

// `states` become those that picked the model's own tokens in a text, (own tokens, 3 C).
inline void run_said(const SaidText& said, Target& target, std::vector<float>& states) {
  const int first = int(said.begin) - 1, end = int(said.tokens.size()) - 1;
  if (end > target.block_size())
    refuse("a text is longer than the model's window", filled("{} tokens", target.block_size()),
           "write the texts anew by nanospec distill with a smaller --max_new_tokens");
  states.clear();
  target.prefill(said.tokens.data(), first);
  for (int at = first, rows = 0; at < end; at += rows) {
    rows = std::min(target.most_rows(), end - at);
    Batch chain;
    chain.add_chain(said.tokens.data() + at, rows, 0, 0);
    target.clear_rows();
    target.add_tree(chain.token.data(), chain.depth.data(), chain.end.data(), rows);
    target.run_rows(1);
    for (int row = 0; row < rows; row++) record_state(target, row, Recorded::kPassages, states);
    target.keep(numbers_to(rows).data(), rows);
  }
}

// Records passages in their order. A text is run when its first passage is asked for.
inline RecordSequence record_passages(const std::shared_ptr<const Lessons>& lessons) {
  const SaidText* open = nullptr;
  std::vector<float> states;  // of the open text
  return [=](uint32_t i, Shard& shard) mutable {
    const SaidTexts& from = i < kValidation ? lessons->train : lessons->validation;
    const size_t number = i % kValidation;
    const size_t text = size_t(std::upper_bound(from.first.begin(), from.first.end(), number) - from.first.begin()) - 1;
    const SaidText& said = from.texts[text];
    if (open != &said) run_said(said, *lessons->target, states);
    open = &said;
    const ShardSizes& sizes = shard.sizes;
    const long its = long((number - from.first[text]) * size_t(sizes.rows)), width = sizes.channels;
    const auto state = states.begin() + its * width;
    const auto token = said.tokens.begin() + long(said.begin) + its - 1;
    shard.states.insert(shard.states.end(), state, state + sizes.rows * width);
    shard.token.insert(shard.token.end(), token, token + sizes.rows + sizes.after);
  };
}

}  // namespace nanospec
