// files/text.h: from text to tokens and back.
//
// The ring files/ reads and writes: text and tokenizers (here, bpe.h), whole files (io.h), arrays in files
// (safetensors.h), models and states of training (checkpoint.h), models of llama.cpp (gguf.h, gguf_model.h), counts of
// the training text (tables.h), heads and the parallel drafter (heads.h). It also has the words that people type: the
// error for an unknown one (words.h), drafters by name (drafters.h). It includes the core and
// drafters/; text.h includes words.h alone, and that nothing of the project. It hooks into no loop: it runs before a
// text and after a training. The core's one table of tensors (model.h) says in which order tensors are written.
//
// What headers of this ring include of the standard library, those who include them do not include again.
//
// How to add a file: write NAME_path, save_NAME and load_NAME as in tables.h. Read with parse_safetensors or
// parse_json, write with write_file (io.h). Trust nothing: every reader throws std::runtime_error with one line: what
// is wrong, where, what to do. Then let tests/files/test_mutation.cpp mutate the file.
//
// Here, in order: UTF-8; errors; JSON, with guards against hostile files; the tokenizer and its file, valid for Hugging
// Face's `tokenizers`; the split of the tokens; files of prompts. A token is one Unicode code point, as in nanoGPT's
// character-level data, or what a tokenizer of byte-level BPE makes it: bpe.h. For characters a text is never repaired:
// for bytes that are not UTF-8, and for a character outside the vocabulary, a function throws, with the place.
#pragma once

#include <unistr.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <unordered_map>

#include "files/words.h"

namespace nanospec {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // members stay in the order of their writing

// ---------------------------------------------------------------------------------------------------------------
// UTF-8

// How many bytes the code point at text[at] has: 1 to 4; 0 if it is not valid (RFC 3629: no overlong forms, no
// surrogates, nothing above U+10FFFF).
inline int code_point_bytes(std::string_view text, size_t at) {
  if (at >= text.size() || uint8_t(text[at]) < 0x80) return at < text.size();
  ucs4_t value;
  return std::max(0, u8_mbtoucr(&value, reinterpret_cast<const uint8_t*>(&text[at]), text.size() - at));
}

// The code point of `bytes` bytes at text[at]. The bytes must be valid.
inline uint32_t code_point(std::string_view text, size_t at, int bytes) {
  ucs4_t value;
  u8_mbtouc_unsafe(&value, reinterpret_cast<const uint8_t*>(&text[at]), size_t(bytes));
  return value;
}

// A text for a one-line message: control characters and bytes that are not UTF-8 become escapes, and the text is cut
// after `limit` characters.
std::string printable(const std::string& text, size_t limit = 60);

// A tensor's shape for a message: "(3, 4)".
inline std::string shown_shape(const std::vector<int64_t>& shape) { return "(" + joined(shape) + ")"; }
// How many numbers it has.
inline size_t numbers_in(const std::vector<int64_t>& shape) {
  size_t n = 1;
  for (int64_t size : shape) n *= size_t(size);
  return n;
}

// ---------------------------------------------------------------------------------------------------------------
// Errors

constexpr const char* kReplace = "replace the file";

// A runtime_error with the one line "what is wrong: where: what to do".
struct Refusal : std::runtime_error {
  std::string wrong, where, advice;
  Refusal(const std::string& w, const std::string& at, const std::string& todo)
      : std::runtime_error(w + ": " + at + ": " + todo), wrong(w), where(at), advice(todo) {}
};
[[noreturn]] inline void refuse(const std::string& wrong, const std::string& where,
                                const std::string& advice = kReplace) {
  throw Refusal(wrong, where, advice);
}

// Reads a file that this command makes: where it is damaged, and what reads it knows no better than "replace the file",
// the advice is the command.
template <class F>
auto made_by(const std::string& command, F read) {
  try {
    return read();
  } catch (const Refusal& refusal) {
    if (refusal.advice != kReplace && refusal.advice != "use files of one and the same model") throw;
    refuse(refusal.wrong, refusal.where, command);
  }
}

// Prints a line on standard error, "note: " and what is no error but should be known; each line once.
struct Notes {
  bool quiet = false;  // --quiet
  std::set<std::string> said;
};
inline Notes& notes() {
  static Notes all;
  return all;
}
void note(const std::string& what, const std::string& where, const std::string& advice);

// "(line 2, column 7)" of text[at], counted in characters from 1; a byte that is not UTF-8 counts as one.
std::string line_and_column(const std::string& text, size_t at);

// ---------------------------------------------------------------------------------------------------------------
// JSON

// Parses JSON from a file that is not trusted. Throws std::runtime_error if it is not JSON, if an object has a key
// twice, or if it nests deeper than any file of ours.
Json parse_json(const std::string& text, const std::string& where);

// JSON for a file: with so many spaces for each level, and bytes that are not UTF-8 replaced.
template <class AnyJson>
std::string json_text(const AnyJson& json, int spaces) {
  return json.dump(spaces, ' ', false, AnyJson::error_handler_t::replace) + "\n";
}

// Whether a value is a whole number from 0 to end - 1. (Json compares with an int as an int64: 2^63 is then below 0.)
inline bool is_below(const Json& value, uint64_t end) {
  return value.is_number_unsigned() && value.get<uint64_t>() < end;
}

// A JSON value for a message.
std::string shown(const Json& value);

// The member of that name, or null where there is none.
const Json& member(const Json& object, const std::string& name);
// The text that the member of that name is; "" where it is none.
std::string member_text(const Json& object, const std::string& name);

// ---------------------------------------------------------------------------------------------------------------
// Tokenizer

// Calls visit(code point, where it starts, its bytes) for each code point of a text. Throws runtime_error at a byte
// that is not UTF-8.
template <class F>
void for_each_code_point(const std::string& text, const std::string& what, F visit) {
  for (size_t at = 0; at < text.size();) {
    const int bytes = code_point_bytes(text, at);
    if (!bytes)
      refuse("byte '" + printable(text.substr(at, 1)) + "' is not UTF-8",
             filled("byte {} of {} {}", at + 1, what, line_and_column(text, at)), "give the text in UTF-8");
    visit(code_point(text, at, bytes), at, bytes);
    at += size_t(bytes);
  }
}

class Bpe;  // bpe.h

// Where a text that is encoded stands: at a beginning (text), right after a special token (part), or after plain text
// that it continues (nothing). SentencePiece's spaces depend on it.
enum class Begins { text, part, nothing };

using PutId = std::function<void(int id)>;

// Encodes a text as Bpe does, id by id: put(id). All of it is plain text, special tokens too. Prints a note where bytes
// had to be replaced or left out.
void encode_bpe(const Bpe& bpe, const PutId& put, const std::string& text, const std::string& what, Begins begins);

struct Tokenizer {
  std::vector<std::string> symbols;     // (V) id -> its bytes: for characters, one code point in UTF-8
  std::shared_ptr<const Bpe> bpe = {};  // encodes; null: each character is a token
  bool space_first = false;             // it puts a space before a text, which decode() takes away again
  int begin = -1;                       // the token that the model wants before every text; -1: none
  std::vector<int> ends = {};           // the tokens that end a text, as the model's files say
  std::string chat_template = {};       // how a chat's messages are written, for Jinja; "": not known

  int vocab_size() const { return int(symbols.size()); }

  // The ids of a text. For characters, throws runtime_error, with the place in `what`, at a character outside the
  // vocabulary and at a byte that is not UTF-8.
  std::vector<int> encode(const std::string& text, const std::string& what = "the prompt",
                          Begins begins = Begins::text) const {
    std::vector<int> ids;
    ids.reserve(bpe ? text.size() / 3 : text.size());
    encode_to([&](int id) { ids.push_back(id); }, text, what, begins);
    return ids;
  }
  // The same, id by id: put(id).
  template <class Put>
  void encode_to(Put put, const std::string& text, const std::string& what, Begins begins = Begins::text) const {
    if (bpe) return encode_bpe(*bpe, put, text, what, begins);
    std::unordered_map<uint32_t, int> id_of;
    for (size_t id = 0; id < symbols.size(); id++)
      id_of[code_point(symbols[id], 0, code_point_bytes(symbols[id], 0))] = int(id);
    size_t number_of = 0;
    for_each_code_point(text, what, [&](uint32_t c, size_t at, int bytes) {
      number_of++;
      const auto found = id_of.find(c);
      if (found == id_of.end()) {
        char number[16];
        snprintf(number, sizeof number, "U+%04X", c);
        refuse(
            filled("character '{}' ({}) is not in the vocabulary", printable(text.substr(at, size_t(bytes))), number),
            filled("character {} of {} {}", number_of, what, line_and_column(text, at)),
            "use only characters of the training text");
      }
      put(found->second);
    });
  }

  // The bytes of one id, which must lie in [0, V).
  const std::string& decode(int id) const { return symbols[size_t(id)]; }
  // A whole text.
  std::string decode(const std::vector<int>& ids) const {
    std::string text;
    for (int id : ids) text += decode(id);
    if (space_first && !text.empty() && text[0] == ' ') text.erase(0, 1);
    return text;
  }
};

// The distinct code points of a text in ascending order, as nanoGPT's. `what` names the text in errors: runtime_error
// where it is empty or not UTF-8.
Tokenizer character_tokenizer(const std::string& text, const std::string& what = "the training text");

// tokenizer.json. Its unknown token is not in the vocabulary, so `tokenizers` too reports an error for unknown
// characters.
std::string format_tokenizer(const Tokenizer& tokenizer);

// Reads tokenizer.json. Throws runtime_error unless it is a tokenizer of single characters with ids 0 .. V-1.
Tokenizer parse_tokenizer(const std::string& text, const std::string& where);

// ---------------------------------------------------------------------------------------------------------------
// Training text and prompts

// The first nine tenths of the tokens are for training, the rest for validation, cut where nanoGPT cuts.
struct Split {
  std::vector<int> train, validation;
};
inline size_t training_part(size_t tokens) { return size_t(double(tokens) * 0.9); }
Split split(const std::vector<int>& tokens);

// How many characters a text in UTF-8 has.
size_t characters(const std::string& text);

// Encodes a text and splits its tokens at once, so that no token is stored twice: 4 bytes for each character, and the
// text. told: called now and then with the share that is done. Throws what encode() throws.
Split encode_split(const Tokenizer& tokenizer, const std::string& text, const std::string& what,
                   const std::function<void(double share)>& told = {});

// Calls f(json, place) for the lines of a .jsonl file that are not blank; place: "FILE, line 3", for errors.
template <class F>
void each_json_line(const std::string& text, const std::string& where, F f) {
  size_t line = 0;
  for (const std::string& here : split_at(text, '\n')) {
    const std::string place = filled("{}, line {}", where, ++line);
    if (here.find_first_not_of(" \t\r") != std::string::npos) f(parse_json(here, place), place);
  }
}

// The prompt of such a line, {"prompt": "..."}; other members are ignored. Throws std::runtime_error.
std::string read_prompt(const Json& line, const std::string& place);
// The prompts of a .jsonl file: one {"prompt": "..."} a line; other members and empty lines are ignored. Throws
// std::runtime_error, with the line; also if a prompt is empty, or if there is none.
std::vector<std::string> read_prompts_jsonl(const std::string& text, const std::string& where);

}  // namespace nanospec
