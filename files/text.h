// files/text.h: from text to tokens and back.
//
// The ring files/ reads and writes: text and tokenizers (here, bpe.h), whole files (io.h), models and states of
// training (checkpoint.h), models of llama.cpp (gguf.h), counts of the training text (tables.h), heads and the parallel
// drafter (heads.h). It also has the words that people type: the error for an unknown one (words.h), drafters by name
// (drafter_names.h, drafters.h). It includes the core and drafters/; text.h and words.h include nothing of the project.
// It hooks into no loop: it runs before a text and after a training. The core's one table of tensors (model.h) says in
// which order tensors are written.
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

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nanospec {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // members stay in the order of their writing

// ---------------------------------------------------------------------------------------------------------------
// UTF-8

// How many bytes the code point at text[at] has: 1 to 4; 0 if it is not valid (RFC 3629: no overlong forms, no
// surrogates, nothing above U+10FFFF).
inline int code_point_bytes(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return i < text.size() ? uint8_t(text[i]) : uint8_t(0); };
  const uint8_t first = byte(at), second = byte(at + 1);
  if (first < 0x80) return at < text.size() ? 1 : 0;
  const int bytes = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
  for (int i = 1; i < bytes; i++)
    if ((byte(at + size_t(i)) & 0xC0) != 0x80) return 0;
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F)) return 0;
  if ((first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) return 0;
  return bytes;
}

// The code point of `bytes` bytes at text[at]. The bytes must be valid.
inline uint32_t code_point(std::string_view text, size_t at, int bytes) {
  if (bytes == 1) return uint8_t(text[at]);
  uint32_t value = uint8_t(text[at]) & (0xFFu >> (bytes + 1));
  for (int i = 1; i < bytes; i++) value = value << 6 | (uint8_t(text[at + size_t(i)]) & 0x3Fu);
  return value;
}

// A text for a one-line message: control characters and bytes that are not UTF-8 become escapes, and the text is cut
// after `limit` characters.
inline std::string printable(const std::string& text, size_t limit = 60) {
  std::string out;
  char escape[16];
  for (size_t at = 0, n = 0; at < text.size(); n++) {
    if (n == limit) return out + "...";
    const int bytes = code_point_bytes(text, at);
    const uint32_t c = bytes ? code_point(text, at, bytes) : uint8_t(text[at]);
    const bool hidden =
        c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
    if (c == '\n') out += "\\n";
    else if (c == '\t') out += "\\t";
    else if (!bytes || hidden) out += (snprintf(escape, sizeof escape, c < 0x100 ? "\\x%02X" : "\\u%04X", c), escape);
    else out.append(text, at, size_t(bytes));
    at += bytes ? size_t(bytes) : 1;
  }
  return out;
}

// A tensor's shape for a message: "(3, 4)".
inline std::string shown_shape(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); i++) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + ")";
}

// ---------------------------------------------------------------------------------------------------------------
// Errors

// A runtime_error with the one line "what is wrong: where: what to do".
struct Refusal : std::runtime_error {
  std::string wrong, where, advice;
  Refusal(const std::string& w, const std::string& at, const std::string& todo)
      : std::runtime_error(w + ": " + at + ": " + todo), wrong(w), where(at), advice(todo) {}
};
[[noreturn]] inline void refuse(const std::string& wrong, const std::string& where, const std::string& advice) {
  throw Refusal(wrong, where, advice);
}

// Reads a file that this command makes: where it is damaged, and what reads it knows no better than "replace the file",
// the advice is the command.
template <class F>
auto made_by(const std::string& command, F read) {
  try {
    return read();
  } catch (const Refusal& refusal) {
    if (refusal.advice != "replace the file" && refusal.advice != "use files of one and the same model") throw;
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
inline void note(const std::string& what, const std::string& where, const std::string& advice) {
  const std::string line = "note: " + what + ": " + where + ": " + advice + "\n";
  if (!notes().quiet && notes().said.insert(line).second) fputs(line.c_str(), stderr);
}

// "(line 2, column 7)" of text[at], counted in characters from 1; a byte that is not UTF-8 counts as one.
inline std::string line_and_column(const std::string& text, size_t at) {
  size_t line = 1, column = 1;
  for (size_t i = 0; i < at && i < text.size();) {
    column++;
    if (text[i] == '\n') {
      line++;
      column = 1;
    }
    i += size_t(std::max(1, code_point_bytes(text, i)));
  }
  return "(line " + std::to_string(line) + ", column " + std::to_string(column) + ")";
}

// ---------------------------------------------------------------------------------------------------------------
// JSON

// Checks JSON before it is parsed. Throws std::runtime_error if an object has a key twice, or if it nests deeper than
// any file of ours. (The parser's own callback searches an object again for each member.)
struct JsonGuard {
  const std::string& where;
  std::vector<std::set<std::string>> keys = {};  // of the objects and lists that are open

  bool open() {
    constexpr size_t kDeepest = 32;
    if (keys.size() == kDeepest) refuse("JSON nested too deeply", where, "replace the file");
    keys.emplace_back();
    return true;
  }
  bool key(std::string& name) {
    if (!keys.back().insert(name).second) refuse("\"" + printable(name) + "\" named twice", where, "replace the file");
    return true;
  }
  bool close() {
    keys.pop_back();
    return true;
  }
  bool start_object(size_t) { return open(); }
  bool start_array(size_t) { return open(); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(int64_t) { return true; }
  bool number_unsigned(uint64_t) { return true; }
  bool number_float(double, const std::string&) { return true; }
  bool string(std::string&) { return true; }
  bool binary(Json::binary_t&) { return true; }
  bool parse_error(size_t, const std::string&, const Json::exception&) { return false; }  // the parser will say it
};

// Parses JSON from a file that is not trusted. Throws std::runtime_error if it is not JSON, and as JsonGuard does.
inline Json parse_json(const std::string& text, const std::string& where) {
  JsonGuard guard{where};
  Json::sax_parse(text, &guard);
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    const size_t at = error.byte ? error.byte - 1 : 0;
    const bool lines = text.find('\n') != std::string::npos;
    refuse("not valid JSON " + (lines ? line_and_column(text, at) : "(byte " + std::to_string(at + 1) + ")"), where,
           "replace the file");
  } catch (const Json::exception&) {  // a number that no double holds
    refuse("JSON with a number out of range", where, "replace the file");
  }
}

// JSON for a file: with so many spaces for each level, and bytes that are not UTF-8 replaced.
template <class AnyJson>
std::string json_text(const AnyJson& json, int spaces) {
  return json.dump(spaces, ' ', false, AnyJson::error_handler_t::replace) + "\n";
}

// A JSON value for a message.
inline std::string shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  return printable(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// The member of that name, or null where there is none.
inline const Json& member(const Json& object, const std::string& name) {
  static const Json none;
  if (!object.is_object()) return none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

// ---------------------------------------------------------------------------------------------------------------
// Tokenizer

class Bpe;  // bpe.h

// Encodes a text as Bpe does, id by id: put(id). All of it is plain text, special tokens too. Prints a note where bytes
// had to be replaced or left out.
void encode_bpe(const Bpe& bpe, const std::function<void(int id)>& put, const std::string& text,
                const std::string& what);

struct Tokenizer {
  std::vector<std::string> symbols;     // (V) id -> its bytes: for characters, one code point in UTF-8
  std::shared_ptr<const Bpe> bpe = {};  // encodes; null: each character is a token

  int vocab_size() const { return int(symbols.size()); }

  // The ids of a text. For characters, throws runtime_error, with the place in `what`, at a character outside the
  // vocabulary and at a byte that is not UTF-8.
  std::vector<int> encode(const std::string& text, const std::string& what = "the prompt") const;
  // The same, id by id: put(id).
  template <class Put>
  void encode_to(Put put, const std::string& text, const std::string& what) const;

  // The bytes of one id, which must lie in [0, V).
  const std::string& decode(int id) const { return symbols[size_t(id)]; }
  std::string decode(const std::vector<int>& ids) const {
    std::string text;
    for (int id : ids) text += decode(id);
    return text;
  }
};

// Calls visit(code point, where it starts, its bytes) for each code point of a text. Throws runtime_error at a byte
// that is not UTF-8.
template <class F>
void for_each_code_point(const std::string& text, const std::string& what, F visit) {
  for (size_t at = 0; at < text.size();) {
    const int bytes = code_point_bytes(text, at);
    if (!bytes)
      refuse("byte '" + printable(text.substr(at, 1)) + "' is not UTF-8",
             "byte " + std::to_string(at + 1) + " of " + what + " " + line_and_column(text, at),
             "give the text in UTF-8");
    visit(code_point(text, at, bytes), at, bytes);
    at += size_t(bytes);
  }
}

template <class Put>
void Tokenizer::encode_to(Put put, const std::string& text, const std::string& what) const {
  if (bpe) return encode_bpe(*bpe, put, text, what);
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
      refuse("character '" + printable(text.substr(at, size_t(bytes))) + "' (" + number + ") is not in the vocabulary",
             "character " + std::to_string(number_of) + " of " + what + " " + line_and_column(text, at),
             "use only characters of the training text");
    }
    put(found->second);
  });
}
inline std::vector<int> Tokenizer::encode(const std::string& text, const std::string& what) const {
  std::vector<int> ids;
  ids.reserve(bpe ? text.size() / 3 : text.size());
  encode_to([&](int id) { ids.push_back(id); }, text, what);
  return ids;
}

// The distinct code points of a text in ascending order, as nanoGPT's. `what` names the text in errors: runtime_error
// where it is empty or not UTF-8.
inline Tokenizer character_tokenizer(const std::string& text, const std::string& what = "the training text") {
  if (text.empty()) refuse("there is no text", what, "give a file with text in it");
  std::unordered_map<uint32_t, std::string> seen;
  for_each_code_point(text, what, [&](uint32_t c, size_t at, int bytes) {
    if (!seen.count(c)) seen[c] = text.substr(at, size_t(bytes));
  });
  Tokenizer tokenizer;
  for (const auto& [c, symbol] : seen) tokenizer.symbols.push_back(symbol);
  std::sort(tokenizer.symbols.begin(), tokenizer.symbols.end());  // UTF-8 sorts as its code points do
  return tokenizer;
}

// Tells Hugging Face's `tokenizers` to split a text into characters, and to join them again.
inline Json character_split() {
  return {{"type", "Split"}, {"pattern", {{"Regex", "[\\s\\S]"}}}, {"behavior", "Isolated"}, {"invert", false}};
}
inline Json fused_decoder() { return {{"type", "Fuse"}}; }

// tokenizer.json. Its unknown token is not in the vocabulary, so `tokenizers` too reports an error for unknown
// characters.
inline std::string format_tokenizer(const Tokenizer& tokenizer) {
  Json vocabulary = Json::object();
  for (size_t id = 0; id < tokenizer.symbols.size(); id++) vocabulary[tokenizer.symbols[id]] = id;
  const Json file = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", Json::array()},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", character_split()},
                     {"post_processor", nullptr},
                     {"decoder", fused_decoder()},
                     {"model", {{"type", "WordLevel"}, {"vocab", vocabulary}, {"unk_token", "[UNK]"}}}};
  return file.dump(2) + "\n";
}

// Reads tokenizer.json. Throws runtime_error unless it is a tokenizer of single characters with ids 0 .. V-1.
inline Tokenizer parse_tokenizer(const std::string& text, const std::string& where) {
  const std::string advice = "take the tokenizer.json that train_gpt wrote";
  const Json file = parse_json(text, where);
  const auto expect = [&](const char* name, const Json& found, const Json& expected) {
    if (found != expected) refuse(std::string(name) + " is not that of a character tokenizer", where, advice);
  };
  expect("normalizer", member(file, "normalizer"), nullptr);
  expect("pre_tokenizer", member(file, "pre_tokenizer"), character_split());
  expect("post_processor", member(file, "post_processor"), nullptr);
  expect("decoder", member(file, "decoder"), fused_decoder());
  if (!member(file, "added_tokens").empty()) refuse("added_tokens must be empty", where, advice);
  const Json& model = member(file, "model");
  expect("the model's type", member(model, "type"), "WordLevel");
  const Json& vocabulary = member(model, "vocab");
  if (!vocabulary.is_object() || vocabulary.empty()) refuse("no vocabulary (model.vocab)", where, advice);

  Tokenizer tokenizer;
  tokenizer.symbols.resize(vocabulary.size());
  for (const auto& [symbol, id] : vocabulary.items()) {
    if (symbol.empty() || code_point_bytes(symbol, 0) != int(symbol.size()))
      refuse("the symbol \"" + printable(symbol) + "\" is not one character", where, advice);
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= vocabulary.size() ||
        !tokenizer.symbols[id.get<size_t>()].empty())
      refuse("the id of \"" + printable(symbol) + "\" is " + shown(id) + ", expected each of 0 to " +
                 std::to_string(vocabulary.size() - 1) + " once",
             where, advice);
    tokenizer.symbols[id.get<size_t>()] = symbol;
  }
  return tokenizer;
}

// ---------------------------------------------------------------------------------------------------------------
// Training text and prompts

// The first nine tenths of the tokens are for training, the rest for validation, cut where nanoGPT cuts.
struct Split {
  std::vector<int> train, validation;
};
inline size_t training_part(size_t tokens) { return size_t(double(tokens) * 0.9); }
inline Split split(const std::vector<int>& tokens) {
  const auto cut = tokens.begin() + int64_t(training_part(tokens.size()));
  return {{tokens.begin(), cut}, {cut, tokens.end()}};
}

// How many characters a text in UTF-8 has.
inline size_t characters(const std::string& text) {
  return size_t(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// Encodes a text and splits its tokens at once, so that no token is stored twice: 4 bytes for each character, and the
// text. told: called now and then with the share that is done. Throws what encode() throws.
inline Split encode_split(const Tokenizer& tokenizer, const std::string& text, const std::string& what,
                          const std::function<void(double share)>& told = {}) {
  constexpr size_t kTurn = 1 << 22;                               // characters
  if (tokenizer.bpe) return split(tokenizer.encode(text, what));  // how many tokens there are, is known at the end
  const size_t all = characters(text), train = training_part(all);
  Split parts;
  parts.train.reserve(train);
  parts.validation.reserve(all - train);
  size_t done = 0;
  const auto put = [&](int id) {
    (done < train ? parts.train : parts.validation).push_back(id);
    if (++done % kTurn == 0 && told) told(double(done) / double(all));
  };
  tokenizer.encode_to(put, text, what);
  return parts;
}

// The prompts of a .jsonl file: one {"prompt": "..."} a line; other members and empty lines are ignored. Throws
// std::runtime_error, with the line; also if a prompt is empty, or if there is none.
inline std::vector<std::string> read_prompts_jsonl(const std::string& text, const std::string& where) {
  const std::string advice = "write one {\"prompt\": \"...\"} a line";
  std::vector<std::string> prompts;
  for (size_t start = 0, line = 1; start < text.size(); line++) {
    const size_t end = std::min(text.find('\n', start), text.size());
    const std::string here = text.substr(start, end - start);
    const std::string place = where + ", line " + std::to_string(line);
    start = end + 1;
    if (here.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Json parsed = parse_json(here, place);
    const Json& prompt = member(parsed, "prompt");
    if (!prompt.is_string()) refuse("no \"prompt\" with a text", place, advice);
    if (prompt.get_ref<const std::string&>().empty()) refuse("an empty prompt", place, advice);
    prompts.push_back(prompt.get<std::string>());
  }
  if (prompts.empty()) refuse("there are no prompts", where, advice);
  return prompts;
}

}  // namespace nanospec
