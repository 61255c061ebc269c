// files/said.h: what a model wrote for its drafters: the file of nanospec distill, a line of JSON for each text.
#pragma once

#include "files/text.h"

namespace nanospec {

struct SaidText {
  std::vector<int> tokens;  // all; the model's own begin at `begin`
  size_t begin = 0;
  std::string question, text;
  std::string dropped;  // why it was; then there is nothing else
  bool held_out = false;
};

// Calls f(said) for each text, in their order. bytes: of the file at `path`. tokenizer: the model's (tokenizer_hash).
// Throws runtime_error where a text is not of a model with this tokenizer and so many tokens.
template <class F>
void each_said(const std::string& bytes, const std::string& path, int vocab, const std::string& tokenizer, F f) {
  each_json_line(bytes, printable(path, 300), [&](const Json& json, const std::string& place) {
    if (const Json& dropped = member(json, "dropped"); dropped.is_string())
      return f(SaidText{{}, 0, "", "", dropped.get<std::string>()});
    const Json &tokens = member(json, "tokens"), &begin = member(json, "begin"), &text = member(json, "text");
    const auto is_token = [=](const Json& id) { return is_below(id, uint64_t(vocab)); };
    if (!tokens.is_array() || !is_below(begin, tokens.size() + 1) ||
        !std::all_of(tokens.begin(), tokens.end(), is_token) || !text.is_string())
      refuse("no text of this model", place, "nanospec distill writes such a file: write it again");
    if (const Json& its = member(json, "tokenizer"); !its.is_null() && its != tokenizer)
      refuse("a text of a model with another tokenizer", place, "let nanospec distill write texts of this model");
    f(SaidText{tokens.get<std::vector<int>>(), begin.get<size_t>(), member_text(json, "question"),
               text.get<std::string>(), "", member(json, "held_out") == true});
  });
}

}  // namespace nanospec
