// files/text.cpp: what text.h declares, in the same order.
#include "files/text.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// UTF-8

std::string printable(const std::string& text, size_t limit) {
  std::string out;
  char escape[16];
  for (size_t at = 0, n = 0; at < text.size(); n++) {
    if (n == limit) return out + "...";
    const int bytes = code_point_bytes(text, at);
    const uint32_t c = bytes ? code_point(text, at, bytes) : uint8_t(text[at]);
    const bool hidden = c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0x2028 && c <= 0x202E) ||
                        (c >= 0x2066 && c <= 0x2069) || c == 0xFEFF;
    if (c == '\n') out += "\\n";
    else if (c == '\t') out += "\\t";
    else if (!bytes || hidden) out += (snprintf(escape, sizeof escape, c < 0x100 ? "\\x%02X" : "\\u%04X", c), escape);
    else out.append(text, at, size_t(bytes));
    at += bytes ? size_t(bytes) : 1;
  }
  return out;
}

// ---------------------------------------------------------------------------------------------------------------
// Errors

void note(const std::string& what, const std::string& where, const std::string& advice) {
  const std::string line = "note: " + what + ": " + where + ": " + advice + "\n";
  if (!notes().quiet && notes().said.insert(line).second) fputs(line.c_str(), stderr);
}

std::string line_and_column(const std::string& text, size_t at) {
  const std::string before = text.substr(0, at);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  size_t column = 1;
  for (size_t i = before.rfind('\n') + 1; i < before.size(); column++)
    i += size_t(std::max(1, code_point_bytes(text, i)));
  return filled("(line {}, column {})", line, column);
}

// ---------------------------------------------------------------------------------------------------------------
// JSON

namespace {

// Checks JSON before it is parsed. Throws std::runtime_error if an object has a key twice, or if it nests deeper than
// any file of ours. (The parser's own callback searches an object again for each member.)
struct JsonGuard {
  const std::string& where;
  std::vector<std::set<std::string>> keys = {};  // of the objects and lists that are open

  bool start_object(size_t) {
    constexpr size_t kDeepest = 32;
    if (keys.size() == kDeepest) refuse("JSON nested too deeply", where);
    keys.emplace_back();
    return true;
  }
  bool key(std::string& name) {
    if (!keys.back().insert(name).second) refuse("\"" + printable(name) + "\" named twice", where);
    return true;
  }
  bool end_object() {
    keys.pop_back();
    return true;
  }
  bool start_array(size_t n) { return start_object(n); }
  bool end_array() { return end_object(); }
  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(int64_t) { return true; }
  bool number_unsigned(uint64_t) { return true; }
  bool number_float(double, const std::string&) { return true; }
  bool string(std::string&) { return true; }
  bool binary(Json::binary_t&) { return true; }
  bool parse_error(size_t, const std::string&, const Json::exception&) { return false; }  // the parser will say it
};

}  // namespace

Json parse_json(const std::string& text, const std::string& where) {
  JsonGuard guard{where};
  Json::sax_parse(text, &guard);
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    const size_t at = error.byte ? error.byte - 1 : 0;
    const bool lines = text.find('\n') != std::string::npos;
    refuse("not valid JSON " + (lines ? line_and_column(text, at) : filled("(byte {})", at + 1)), where);
  } catch (const Json::exception&) {  // a number that no double holds
    refuse("JSON with a number out of range", where);
  }
}

std::string shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  return printable(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

const Json& member(const Json& object, const std::string& name) {
  static const Json none;
  if (!object.is_object()) return none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

std::string member_text(const Json& object, const std::string& name) {
  const Json& value = member(object, name);
  return value.is_string() ? value.get<std::string>() : "";
}

// ---------------------------------------------------------------------------------------------------------------
// Tokenizer

Tokenizer character_tokenizer(const std::string& text, const std::string& what) {
  if (text.empty()) refuse("there is no text", what, "give a file with text in it");
  Tokenizer tokenizer;
  std::unordered_map<uint32_t, bool> seen;
  for_each_code_point(text, what, [&](uint32_t c, size_t at, int bytes) {
    if (seen.try_emplace(c).second) tokenizer.symbols.push_back(text.substr(at, size_t(bytes)));
  });
  std::sort(tokenizer.symbols.begin(), tokenizer.symbols.end());  // UTF-8 sorts as its code points do
  return tokenizer;
}

// tokenizer.json without its vocabulary. It tells Hugging Face's `tokenizers` to split a text into characters, and to
// join them again.
static Json character_file() {
  return Json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": false},
    "post_processor": null, "decoder": {"type": "Fuse"},
    "model": {"type": "WordLevel", "vocab": {}, "unk_token": "[UNK]"}
  })");
}

std::string format_tokenizer(const Tokenizer& tokenizer) {
  Json file = character_file();
  for (size_t id = 0; id < tokenizer.symbols.size(); id++) file["model"]["vocab"][tokenizer.symbols[id]] = id;
  return file.dump(2) + "\n";
}

Tokenizer parse_tokenizer(const std::string& text, const std::string& where) {
  const auto wrong = [&](const std::string& what) {
    refuse(what, where, "take the tokenizer.json that train_gpt wrote");
  };
  const Json file = parse_json(text, where);
  const Json ours = character_file();
  for (const char* name : {"normalizer", "pre_tokenizer", "post_processor", "decoder"})
    if (member(file, name) != ours[name]) wrong(std::string(name) + " is not that of a character tokenizer");
  if (!member(file, "added_tokens").empty()) wrong("added_tokens must be empty");
  const Json& model = member(file, "model");
  if (member(model, "type") != "WordLevel") wrong("the model's type is not that of a character tokenizer");
  const Json& vocabulary = member(model, "vocab");
  if (!vocabulary.is_object() || vocabulary.empty()) wrong("no vocabulary (model.vocab)");

  Tokenizer tokenizer;
  tokenizer.symbols.resize(vocabulary.size());
  for (const auto& [symbol, id] : vocabulary.items()) {
    if (symbol.empty() || code_point_bytes(symbol, 0) != int(symbol.size()))
      wrong("the symbol \"" + printable(symbol) + "\" is not one character");
    if (!is_below(id, vocabulary.size()) || !tokenizer.symbols[id.get<size_t>()].empty())
      wrong(filled("the id of \"{}\" is {}, expected each of 0 to {} once", printable(symbol), shown(id),
                   vocabulary.size() - 1));
    tokenizer.symbols[id.get<size_t>()] = symbol;
  }
  return tokenizer;
}

// ---------------------------------------------------------------------------------------------------------------
// Training text and prompts

Split split(const std::vector<int>& tokens) {
  const auto cut = tokens.begin() + int64_t(training_part(tokens.size()));
  return {{tokens.begin(), cut}, {cut, tokens.end()}};
}

size_t characters(const std::string& text) {
  return size_t(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

Split encode_split(const Tokenizer& tokenizer, const std::string& text, const std::string& what,
                   const std::function<void(double share)>& told) {
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

static constexpr const char* kPromptAdvice = "write one {\"prompt\": \"...\"} a line";

std::string read_prompt(const Json& line, const std::string& place) {
  const Json& prompt = member(line, "prompt");
  if (!prompt.is_string()) refuse("no \"prompt\" with a text", place, kPromptAdvice);
  if (prompt == "") refuse("an empty prompt", place, kPromptAdvice);
  return prompt.get<std::string>();
}

std::vector<std::string> read_prompts_jsonl(const std::string& text, const std::string& where) {
  std::vector<std::string> prompts;
  each_json_line(text, where,
                 [&](const Json& line, const std::string& place) { prompts.push_back(read_prompt(line, place)); });
  if (prompts.empty()) refuse("there are no prompts", where, kPromptAdvice);
  return prompts;
}

}  // namespace nanospec
