// tests/commands/small.h: a small tokenizer of bytes, with the control tokens of a chat.
#pragma once

#include "files/bpe.h"

inline const nanospec::Tokenizer& small() {
  static const nanospec::Tokenizer tokenizer =
      nanospec::bpe_tokenizer(nanospec::parse_bpe(nanospec::read_file("tests/files/bpe_small.json"), "small"), "small");
  return tokenizer;
}

// The tokens of a text whose control tokens are meant.
inline nanospec::Tokens tokens_of(const std::string& text) {
  return small().bpe->encode(text, nanospec::Control::found);
}
