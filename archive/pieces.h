// archive/pieces.h: any bytes as tokens, and as bytes where no tokens say them.
//
// A tokenizer does not give every text back: bytes that are not UTF-8, characters that are not in the vocabulary, a
// character that NFC composes, U+2581 that SentencePiece takes for a space. Whether it does is tried: a stretch of the
// file is encoded, and its tokens are decoded again. Where that is another text, each half of the stretch is tried,
// down to a few bytes, which then stand for themselves. So what comes back is right by construction, whatever a
// tokenizer does.
#pragma once

#include "files/text.h"

namespace nanospec {

// A piece is a token, or the byte b as -1 - b.
using Piece = int;
constexpr Piece raw_piece(char byte) { return -1 - int(uint8_t(byte)); }
constexpr char byte_of(Piece raw) { return char(-1 - raw); }

// A run of raw bytes costs a symbol and its length, some 5 bytes: so few bytes alone are not worth tokens.
constexpr size_t kShortest = 6;

// The pieces of a text. Those that it has, put together, are the text.
std::vector<Piece> pieces_of(const Tokenizer& tokenizer, std::string_view text);

}  // namespace nanospec
