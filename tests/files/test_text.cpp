// tests/files/test_text.cpp: files/text.h: UTF-8, JSON and its guards, the character tokenizer and its file, the split,
// files of prompts.
#include <doctest/doctest.h>

#include <numeric>
#include <random>

#include "files/text.h"
#include "tests/error_of.h"

using namespace nanospec;

namespace {

std::string utf8(uint32_t c) {
  if (c < 0x80) return {char(c)};
  if (c < 0x800) return {char(0xC0 | c >> 6), char(0x80 | (c & 63))};
  if (c < 0x10000) return {char(0xE0 | c >> 12), char(0x80 | (c >> 6 & 63)), char(0x80 | (c & 63))};
  return {char(0xF0 | c >> 18), char(0x80 | (c >> 12 & 63)), char(0x80 | (c >> 6 & 63)), char(0x80 | (c & 63))};
}

}  // namespace

TEST_CASE("text: every code point is read back, surrogates and beyond are not UTF-8") {
  int wrong = 0;
  for (uint32_t c = 0; c < 0x120000; c++) {
    const std::string bytes = utf8(c);
    const bool valid = c <= 0x10FFFF && !(c >= 0xD800 && c <= 0xDFFF);
    const int n = code_point_bytes(bytes, 0);
    if (n != (valid ? int(bytes.size()) : 0) || (valid && code_point(bytes, 0, n) != c)) wrong++;
  }
  CHECK(wrong == 0);
}

TEST_CASE("text: of all pairs of bytes 1920 are one code point, and overlong or cut sequences are none") {
  int two = 0, one = 0;
  for (int first = 0; first < 256; first++)
    for (int second = 0; second < 256; second++) {
      const int n = code_point_bytes(std::string{char(first), char(second)}, 0);
      two += n == 2, one += n == 1;
    }
  CHECK(two == 1920);
  CHECK(one == 128 * 256);
  for (const char* bad : {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80",
                          "\xF5\x80\x80\x80", "\xE4\xB8", "\xE4", "\xF0\x9F\x98", "\xFF", "\xFE", "\xE4\xB8x"})
    CHECK(code_point_bytes(bad, 0) == 0);
  CHECK(code_point_bytes("", 0) == 0);
  CHECK(code_point_bytes(std::string(1, '\0'), 0) == 1);
}

TEST_CASE("text: a message shows what would hide or break its line as escapes") {
  CHECK(printable("a\nb\tc\r\x1b[31m") == "a\\nb\\tc\\x0D\\x1B[31m");
  CHECK(printable("na\xC3\xAFve \xFF") == "na\xC3\xAFve \\xFF");
  CHECK(printable("\xC2\x85\xE2\x80\xA8\xE2\x80\xAE") == "\\x85\\u2028\\u202E");
  CHECK(printable("abcdef", 3) == "abc...");
  CHECK(printable("abc", 3) == "abc");
  CHECK(printable("\xEF\xBB\xBF!") == "\\uFEFF!");  // a byte order mark
}

TEST_CASE("text: tokens are the sorted distinct characters, as nanoGPT's") {
  const Tokenizer tokenizer = character_tokenizer("hello, World\n");
  CHECK(tokenizer.symbols == std::vector<std::string>{"\n", " ", ",", "W", "d", "e", "h", "l", "o", "r"});
  CHECK(tokenizer.vocab_size() == 10);
  CHECK(tokenizer.encode("hold") == std::vector<int>{6, 8, 7, 4});
  CHECK(tokenizer.decode(3) == "W");
  CHECK(tokenizer.decode({6, 8, 7, 4}) == "hold");
  CHECK(tokenizer.encode("").empty());
}

TEST_CASE("text: characters of several bytes sort by code point and come back as they were") {
  const std::string text =
      "z\xC3\xA9\xE4\xB8\x96\xF0\x9F\x98\x80"
      "A\xEF\xBF\xBD" +
      std::string(1, '\0');
  const Tokenizer tokenizer = character_tokenizer(text);
  CHECK(tokenizer.symbols == std::vector<std::string>{std::string(1, '\0'), "A", "z", "\xC3\xA9", "\xE4\xB8\x96",
                                                      "\xEF\xBF\xBD", "\xF0\x9F\x98\x80"});
  CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
  std::mt19937 random(1);
  for (int i = 0; i < 200; i++) {
    std::string other;
    for (int n = int(random() % 40); n > 0; n--) other += tokenizer.decode(int(random() % 7));
    CHECK(tokenizer.decode(tokenizer.encode(other)) == other);
  }
}

TEST_CASE("text: a character outside the vocabulary is shown with its place") {
  const Tokenizer tokenizer = character_tokenizer("naive\n");
  CHECK(
      error_of([&] { tokenizer.encode("na\xC3\xAFve"); }) ==
      "character '\xC3\xAF' (U+00EF) is not in the vocabulary: character 3 of the prompt (line 1, column 3): use only "
      "characters of the training text");
  CHECK(
      error_of([&] { tokenizer.encode("na\nve\na\tn", "p.txt"); }) ==
      "character '\\t' (U+0009) is not in the vocabulary: character 8 of p.txt (line 3, column 2): use only characters "
      "of the training text");
  CHECK(error_of([&] { tokenizer.encode("\xF0\x9F\x98\x80"); }).find("(U+1F600)") != std::string::npos);
  CHECK(error_of([&] { tokenizer.encode("na\nv\xFF"); }) ==
        "byte '\\xFF' is not UTF-8: byte 5 of the prompt (line 2, column 2): give the text in UTF-8");
  CHECK(error_of([&] { tokenizer.encode("na\xC3"); }).find("byte '\\xC3' is not UTF-8: byte 3") == 0);
}

TEST_CASE("text: a training text that is empty or not UTF-8 is refused") {
  CHECK(error_of([] { character_tokenizer("", "data/x.txt"); }) ==
        "there is no text: data/x.txt: give a file with text in it");
  CHECK(error_of([] { character_tokenizer("abc\n\xE9t\xE9", "data/x.txt"); }) ==
        "byte '\\xE9' is not UTF-8: byte 5 of data/x.txt (line 2, column 1): give the text in UTF-8");
}

TEST_CASE("text: the tokenizer's file gives the tokenizer back") {
  for (const std::string text : {"a", "hello, World\n\t\"\\{}", "z\xC3\xA9\xE4\xB8\x96\xF0\x9F\x98\x80\x01"}) {
    const Tokenizer tokenizer = character_tokenizer(text);
    CHECK(parse_tokenizer(format_tokenizer(tokenizer), "t").symbols == tokenizer.symbols);
  }
  Tokenizer unsorted{{"b", "c", "a"}};
  CHECK(parse_tokenizer(format_tokenizer(unsorted), "t").symbols == unsorted.symbols);
}

TEST_CASE("text: a tokenizer of another kind, or with a broken vocabulary, is refused") {
  const Json good = parse_json(format_tokenizer(character_tokenizer("abc")), "t");
  const auto changed = [&](const std::string& pointer, const Json& value) {
    Json file = good;
    file[Json::json_pointer(pointer)] = value;
    return error_of([&] { parse_tokenizer(file.dump(), "dir/tokenizer.json"); });
  };
  CHECK(changed("/version", "1.0") == "");
  CHECK(changed("/model/type", "BPE")
            .find("the model's type is not that of a character tokenizer: dir/tokenizer.json: ") == 0);
  CHECK(changed("/normalizer", {{"type", "Lowercase"}}).find("normalizer is not") == 0);
  CHECK(changed("/pre_tokenizer", {{"type", "Whitespace"}}).find("pre_tokenizer is not") == 0);
  CHECK(changed("/decoder", nullptr).find("decoder is not") == 0);
  CHECK(changed("/post_processor", 1).find("post_processor is not") == 0);
  CHECK(changed("/added_tokens", {1}).find("added_tokens must be empty") == 0);
  CHECK(changed("/model/vocab", Json::object()).find("no vocabulary") == 0);
  CHECK(changed("/model/vocab", 5).find("no vocabulary") == 0);
  CHECK(changed("/model/vocab/a", 3).find("the id of \"a\" is 3, expected each of 0 to 2 once") == 0);
  CHECK(changed("/model/vocab/a", 1).find("the id of \"b\" is 1, expected each of 0 to 2 once") == 0);
  CHECK(changed("/model/vocab/a", -1).find("the id of \"a\" is -1") == 0);
  CHECK(changed("/model/vocab/a", 0.5).find("the id of \"a\" is 0.5") == 0);
  CHECK(changed("/model/vocab/ab", 3).find("the symbol \"ab\" is not one character") == 0);
  CHECK(changed("/model/vocab/", 3).find("the symbol \"\" is not one character") == 0);
  CHECK(error_of([] { parse_tokenizer("[]", "t"); }) != "");
  CHECK(error_of([] { parse_tokenizer("7", "t"); }) != "");
}

TEST_CASE("text: JSON that is none, repeats a key or nests too deeply is refused in one line") {
  CHECK(error_of([] { parse_json("{\n  \"a\": ?}", "f.json"); }) ==
        "not valid JSON (line 2, column 8): f.json: replace the file");
  CHECK(error_of([] { parse_json("", "f.json"); }).find("not valid JSON") == 0);
  CHECK(error_of([] { parse_json("{} x", "f.json"); }).find("not valid JSON") == 0);
  CHECK(error_of([] { parse_json("\"\xFF\"", "f.json"); }).find("not valid JSON") == 0);
  CHECK(error_of([] { parse_json("[1e999]", "f.json"); }) ==
        "JSON with a number out of range: f.json: replace the file");
  CHECK(error_of([] { parse_json("{\"a\": 1, \"b\": {\"a\": 2}, \"a\": 3}", "f.json"); }) ==
        "\"a\" named twice: f.json: replace the file");
  CHECK(error_of([] { parse_json("[{\"a\": 1}, {\"a\": [{\"a\": 2}]}]", "f.json"); }) == "");
  CHECK(error_of([] { parse_json(std::string(1000000, '['), "f.json"); }) ==
        "JSON nested too deeply: f.json: replace the file");
  std::string deep;
  for (int i = 0; i < 1000000; i++) deep += "{\"a\":";
  CHECK(error_of([&] { parse_json(deep, "f.json"); }) == "JSON nested too deeply: f.json: replace the file");
  CHECK(error_of([] { parse_json(std::string(30, '[') + std::string(30, ']'), "f.json"); }) == "");
}

TEST_CASE("text: nine tenths of the tokens train, the rest validates, cut as nanoGPT cuts") {
  std::vector<int> tokens(1115394);  // tinyshakespeare
  std::iota(tokens.begin(), tokens.end(), 0);
  const Split parts = split(tokens);
  CHECK(parts.train.size() == 1003854);
  CHECK(parts.validation.size() == 111540);
  CHECK(parts.train.back() == 1003853);
  CHECK(parts.validation.front() == 1003854);
  CHECK(parts.validation.back() == 1115393);
  CHECK(split({}).train.empty());
  CHECK(split({7}).validation == std::vector<int>{7});

  std::string text;
  for (int i = 0; i < 5000; i++) text += utf8(uint32_t(i % 7 ? 97 + i % 20 : 0x4E00 + i % 30));
  const Tokenizer tokenizer = character_tokenizer(text);
  CHECK(characters(text) == 5000);
  const Split whole = split(tokenizer.encode(text)), cut = encode_split(tokenizer, text, "a text");
  CHECK(cut.train == whole.train);
  CHECK(cut.validation == whole.validation);
  CHECK(cut.train.capacity() == cut.train.size());  // none is held twice
  CHECK(error_of([&] { encode_split(tokenizer, text + "?", "t.txt"); }).find("character 5001 of t.txt") !=
        std::string::npos);
}

TEST_CASE("text: prompts are read one a line, and a bad line is named") {
  CHECK(read_prompts_jsonl("{\"prompt\": \"ROMEO:\"}\r\n\n{\"id\": 3, \"prompt\": \"a\\nb\\u00e9\"}", "p.jsonl") ==
        std::vector<std::string>{"ROMEO:", "a\nb\xC3\xA9"});
  const auto message = [](const std::string& text) { return error_of([&] { read_prompts_jsonl(text, "p.jsonl"); }); };
  CHECK(message("{\"prompt\": \"a\"}\nROMEO:\n") == "not valid JSON (byte 1): p.jsonl, line 2: replace the file");
  CHECK(message("{\"prompt\": \"a\"}\n\n{\"prompts\": \"a\"}\n").find("no \"prompt\" with a text: p.jsonl, line 3: ") ==
        0);
  CHECK(message("{\"prompt\": 5}").find("no \"prompt\" with a text: p.jsonl, line 1: ") == 0);
  CHECK(message("[]").find("no \"prompt\" with a text: p.jsonl, line 1: ") == 0);
  CHECK(message("{\"prompt\": \"\"}").find("an empty prompt: p.jsonl, line 1: ") == 0);
  CHECK(message("").find("there are no prompts: p.jsonl: ") == 0);
  CHECK(message("\n \n").find("there are no prompts: p.jsonl: ") == 0);
}
