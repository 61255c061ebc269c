// archive/pieces.h: any bytes as tokens, and as bytes where no tokens say them.
//
// A tokenizer does not give every text back: bytes that are not UTF-8, characters that are not in the vocabulary, a
// character that NFC composes, U+2581 that SentencePiece takes for a space. Whether it does is tried: a stretch of the
// file is encoded, and its tokens are decoded again. Where that is another text, each half of the stretch is tried,
// down to a few bytes, which then stand for themselves. So what comes back is right by construction, whatever a
// tokenizer does.
#pragma once

#include "files/bpe.h"

namespace nanospec {

// A piece is a token, or the byte b as -1 - b.
using TextPiece = int;
constexpr TextPiece raw_piece(char byte) { return -1 - int(uint8_t(byte)); }
constexpr char byte_of(TextPiece raw) { return char(-1 - raw); }

// A run of raw bytes costs a symbol and its length, some 5 bytes: so few bytes alone are not worth tokens.
constexpr size_t kShortest = 6;

// Appends the tokens of a text, if they say just that.
inline bool add_tokens(const Tokenizer& tokenizer, std::string_view text, std::vector<TextPiece>& pieces) {
  const size_t before = pieces.size();
  std::string said;
  const auto put = [&](int id) {
    said += tokenizer.decode(id);
    pieces.push_back(id);
  };
  try {
    if (tokenizer.bpe) tokenizer.bpe->encode_to(put, text, Control::plain, nullptr, Begins::nothing);
    else tokenizer.encode_to(put, std::string(text), "");
  } catch (const Refusal&) { said.clear(); }
  if (said != text) pieces.resize(before);
  return said == text;
}

// Appends the pieces of a text. Those that it has, put together, are the text.
inline void add_pieces(const Tokenizer& tokenizer, std::string_view text, std::vector<TextPiece>& pieces) {
  if (add_tokens(tokenizer, text, pieces)) return;
  if (text.size() < 2 * kShortest) {
    for (char byte : text) pieces.push_back(raw_piece(byte));
    return;
  }
  size_t half = text.size() / 2;  // better between two lines
  const size_t line = text.find('\n', half);
  if (line < text.size() * 3 / 4) half = line + 1;
  add_pieces(tokenizer, text.substr(0, half), pieces);
  add_pieces(tokenizer, text.substr(half), pieces);
}
inline std::vector<TextPiece> pieces_of(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<TextPiece> pieces;
  add_pieces(tokenizer, text, pieces);
  return pieces;
}

}  // namespace nanospec
