// files/bpe.h: a tokenizer of byte-level BPE, as those of GPT-2, Llama 3, Qwen2 and many others are; or of
// SentencePiece's BPE, as those of Llama 2, Mistral and TinyLlama are.
//
// A text is cut into pieces by a pattern (the pre-split): about a word with the space before it. Each piece is then
// bytes, and the two neighbours whose merge has the lowest rank become one token, again and again, until no merge fits.
// So every text has tokens, and a token need not end where a character ends. Special tokens ("<|im_end|>") are no part
// of this: where they are allowed, they are found in the text first.
//
// SentencePiece's BPE cuts a text nowhere, and begins with characters: one that is no token becomes the tokens of its
// bytes. It writes a space as U+2581, so that it does not tell the two apart, and puts one before the first word.
//
// Here, in order: the special tokens and what is counted; the tokenizer; its two makers, from arrays as a GGUF file has
// them, and from Hugging Face's tokenizer.json; whole characters out of a stream of bytes. It gives the ids that
// Hugging Face's `tokenizers` gives: tests/reference/bpe_check.py compares a million lines.
//
// How to add a pre-split: its name and its regular expression in kPreSplits of bpe.cpp, and a row in bpe_check.py. A
// class of characters may differ between Hugging Face and PCRE2: see kSpaces.
//
// Where the model wants it, as Qwen2's do, each part of a text between special tokens is brought into Unicode's NFC:
// "e" and a combining accent become the one character that stands for both.
//
// What is not valid UTF-8 becomes U+FFFD, one for each run of bad bytes: of bytes that belong to no valid character.
// A vocabulary may lack bytes that hardly occur in texts (SmolLM2 lacks 0x04 and 0xFF, with 19 others): they are left
// out, and their neighbours may merge, as with `tokenizers`. All these changes are counted. Every other text comes back
// from its tokens byte for byte.
#pragma once

#include <array>

#include "files/text.h"

struct pcre2_real_code_8;  // a compiled pattern of PCRE2

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Special tokens, and what is counted

// What a token is. The numbers are GGUF's.
enum class TokenType {
  normal = 1,        // made of bytes and merges; also a single byte, whose number is 6
  control = 3,       // special: found in a text only where control tokens are allowed
  user_defined = 4,  // special: found in every text
  unused = 5,        // in no text, and without bytes
};

constexpr int kUnknown = 2, kByte = 6;  // GGUF's other types: they count as control tokens, and as normal ones
// The byte that SentencePiece calls so ("<0x0A>"); -1 for what is no such name.
int byte_of(const std::string& name);

// Whether control tokens are found in a text ("<|im_end|>" is one token), or are plain text.
enum class Control { plain, found };

struct BpeCounts {
  size_t repaired = 0;  // runs of bad bytes that became U+FFFD
  size_t left_out = 0;  // bytes that the vocabulary lacks
  size_t composed = 0;  // runs of characters that NFC changed
  size_t pieces = 0;    // of the pre-split
  size_t cached = 0;    // of these, pieces that were known from earlier in the same text
  size_t pairs = 0;     // neighbours that were looked up: at most three for each byte of a piece that was not known
};

// ---------------------------------------------------------------------------------------------------------------
// The tokenizer

// Where SentencePiece's BPE puts a space.
enum class SpaceFirst {
  nowhere,
  always,      // before each part of a text between special tokens
  if_missing,  // the same, unless a space is there
  at_start,    // the same, but only where the text begins
};

struct BpeSettings {
  bool sentencepiece = false;  // normal tokens have U+2581 for spaces; bytes are "<0x0A>"; `pre` does not count
  SpaceFirst space_first = SpaceFirst::nowhere;
  std::string pre;             // the name of a pre-split: a row of kPreSplits
  bool nfc = false;            // byte-level BPE brings a text into NFC before it is cut
  bool ignore_merges = false;  // a piece that is a token as a whole is that token, whatever its merges make

  bool puts_space() const { return space_first != SpaceFirst::nowhere; }
};
// All that a tokenizer is made of, as tokenizer.ggml.* has it.
struct BpeParts : BpeSettings {
  std::vector<std::string> tokens;  // (V) normal ones with GPT-2's characters for bytes; special ones as they are
  std::vector<int> types;           // (V) GGUF's numbers: TokenType; 2, unknown; 6, a byte; empty: all are normal
  std::vector<std::string> merges;  // "left right", by rank
  std::vector<double> scores;       // (V) of SentencePiece's tokens, the best first to be merged; empty: by `merges`
  int begin = -1;                   // that stands before every text, where the model wants one; -1: none
};

// It does not change once it is made, so that many threads may use it.
class Bpe {
 public:
  const BpeSettings settings;

  // Throws runtime_error unless the parts make a tokenizer; `where` names their file.
  Bpe(const BpeParts& parts, const std::string& where);

  int vocab_size() const { return int(bytes_.size()); }
  // A model may have more tokens than its tokenizer: those are in no text.
  TokenType type(int id) const { return id < vocab_size() ? types_[size_t(id)] : TokenType::unused; }
  // The id of the special token with that text; -1: there is none.
  int special(const std::string& text) const;

  // The ids of a text, without the token that the model wants before it.
  std::vector<int> encode(std::string_view text, Control control, BpeCounts* counts = nullptr) const;
  // The same, id by id: put(id).
  void encode_to(const PutId& put, std::string_view text, Control control, BpeCounts* counts = nullptr,
                 Begins begins = Begins::text) const;

  // The bytes of each id: of a special token its text, of an unused one nothing.
  const std::vector<std::string>& symbols() const { return bytes_; }

 private:
  friend class BpeRun;
  static uint64_t pair(int left, int right) { return uint64_t(left) << 32 | uint64_t(right); }
  using Ids = std::unordered_map<std::string_view, int>;  // by what the file calls a token
  Bpe(const Bpe&) = delete;                               // whole_ points into bytes_
  Ids read_tokens(const BpeParts& parts, const std::string& where);
  void read_merges(const BpeParts& parts, const Ids& ids, const std::string& where);
  void merge_by_scores(const BpeParts& parts, const std::string& where);
  int special_at(std::string_view text, size_t at) const;

  std::vector<std::string> bytes_;  // (V)
  std::vector<TokenType> types_;    // (V)
  std::array<int, 256> byte_id_;    // -1: the vocabulary lacks this byte
  Ids whole_;                       // the normal tokens that a text may hold, by their bytes
  struct Merge {
    uint32_t rank;
    int id;  // what it makes
  };
  std::unordered_map<uint64_t, Merge> merges_;      // by pair()
  std::array<std::vector<int>, 256> specials_;      // by the first byte of their text, the longest first
  std::shared_ptr<const pcre2_real_code_8> split_;  // the pre-split
};

// Whether a pre-split is that of Llama 3, which goes with ignore_merges and a begin token: a GGUF file need not say so.
bool is_llama3(const std::string& pre);

// ---------------------------------------------------------------------------------------------------------------
// Its makers

// From the parts that a GGUF file holds. Throws as Bpe() does.
Tokenizer bpe_tokenizer(const BpeParts& parts, const std::string& where);

// From Hugging Face's tokenizer.json: the model BPE, with a pre-tokenizer that cuts as a pre-split of ours does and the
// decoder ByteLevel; or with byte_fallback and all that Llama 2's or Mistral's has. It names no end. Throws
// runtime_error for any other, by name.
BpeParts parse_bpe(const std::string& text, const std::string& where);

// What that reader asks of the alphabet and of the pre-splits: a byte's name in GPT-2's characters; the pre-split of a
// regular expression, null where none has it; what SentencePiece writes for a space.
std::string gpt2_name(int byte);
const char* split_by(const Json& regex);
constexpr const char* kSpaceMark = "\xE2\x96\x81";  // U+2581

// Reads tokenizer.json of either kind: characters, or byte-level BPE. Throws runtime_error.
Tokenizer parse_any_tokenizer(const std::string& text, const std::string& where);

// ---------------------------------------------------------------------------------------------------------------
// Whole characters out of a stream of bytes

// Bytes come in pieces, and leave as whole UTF-8 characters. Bad bytes leave too, as soon as they can be no part of a
// character. All that leaves, end to end, is exactly what came.
class Utf8Stream {
 public:
  std::string put(std::string_view bytes);  // returns what may be shown now
  // Returns what is left: at most three bytes, the beginning of a character.
  std::string finish() { return std::exchange(held_, ""); }

 private:
  std::string held_;
};

}  // namespace nanospec
