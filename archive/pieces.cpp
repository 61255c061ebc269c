// archive/pieces.cpp: see pieces.h.
#include "archive/pieces.h"

#include "files/bpe.h"

namespace nanospec {
namespace {

// Appends the tokens of a text, if they say just that.
bool add_tokens(const Tokenizer& tokenizer, std::string_view text, std::vector<Piece>& pieces) {
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

void cut(const Tokenizer& tokenizer, std::string_view text, std::vector<Piece>& pieces) {
  if (add_tokens(tokenizer, text, pieces)) return;
  if (text.size() < 2 * kShortest) {
    for (char byte : text) pieces.push_back(raw_piece(byte));
    return;
  }
  size_t half = text.size() / 2;  // better between two lines
  const size_t line = text.find('\n', half);
  if (line < text.size() * 3 / 4) half = line + 1;
  cut(tokenizer, text.substr(0, half), pieces);
  cut(tokenizer, text.substr(half), pieces);
}

}  // namespace

std::vector<Piece> pieces_of(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<Piece> pieces;
  cut(tokenizer, text, pieces);
  return pieces;
}

}  // namespace nanospec
