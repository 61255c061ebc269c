// tests/decoded.h: a text from its tokens. Commands get theirs piece by piece, while it is generated.
#pragma once

#include "files/bpe.h"

namespace nanospec {

inline std::string decoded(const std::vector<std::string>& symbols, const std::vector<int>& ids) {
  return joined(ids, "", [&](int id) { return symbols[size_t(id)]; });
}
// A whole text, without the space that SentencePiece puts before it.
inline std::string decoded(const Tokenizer& tokenizer, const std::vector<int>& ids) {
  const std::string text = decoded(tokenizer.symbols, ids);
  const bool spaced = tokenizer.bpe && tokenizer.bpe->settings.puts_space() && !text.empty() && text[0] == ' ';
  return text.substr(spaced);
}

}  // namespace nanospec
