// tests/files/test_bpe.cpp: byte-level and SentencePiece's BPE against the ids that Hugging Face's `tokenizers` gave
// once, against the plain rule, and with files that are wrong. tests/reference/bpe_check.py made bpe_small.json,
// bpe_lines.json, bpe_cuts.json and bpe_nfc.json; it also compares a million lines; pieces_check.py is the same for
// SentencePiece's BPE.
#include <doctest/doctest.h>

#include <iterator>
#include <random>

#include "files/bpe.h"
#include "files/io.h"
#include "files/model_path.h"
#include "tests/damaged.h"
#include "tests/error_of.h"
#include "tests/gguf_file.h"
#include "tests/tenth.h"
#include "tests/tiny_tokenizer.h"

using namespace nanospec;

namespace {

const BpeParts& small_parts() {
  static const BpeParts parts = parse_bpe(small_file().dump(), "small");
  return parts;
}
BpeParts with_split(BpeParts parts, const std::string& pre) {
  parts.pre = pre;
  return parts;
}
const Bpe& small(const std::string& pre = "smollm") {
  static std::map<std::string, Bpe> all;
  return all.try_emplace(pre, with_split(small_parts(), pre), "small").first->second;
}
// Qwen2's pre-split, as its tokenizer.json has it.
constexpr const char* kQwen2 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
                               R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::string decoded(const Bpe& bpe, const std::vector<int>& ids) { return Tokenizer{bpe.symbols()}.decode(ids); }

std::string utf8_of(uint32_t c) {
  if (c < 0x80) return std::string(1, char(c));
  if (c < 0x800) return {char(0xC0 | c >> 6), char(0x80 | (c & 63))};
  if (c < 0x10000) return {char(0xE0 | c >> 12), char(0x80 | (c >> 6 & 63)), char(0x80 | (c & 63))};
  return {char(0xF0 | c >> 18), char(0x80 | (c >> 12 & 63)), char(0x80 | (c >> 6 & 63)), char(0x80 | (c & 63))};
}

std::string from_hex(const std::string& digits) {
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) bytes += char(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

bool valid_utf8(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const int bytes = code_point_bytes(text, at);
    if (!bytes) return false;
    at += size_t(bytes);
  }
  return true;
}

}  // namespace

TEST_CASE("bpe: stored lines have Hugging Face's ids, in both pre-splits, and come back") {
  const Json lines = parse_json(read_file("tests/files/bpe_lines.json"), "lines");
  CHECK(lines.size() == 300);
  int bad = 0, other_split = 0, other_plain = 0;
  for (const Json& line : lines) {
    const bool hex = line.contains("hex");
    const std::string text = hex ? from_hex(line["hex"]) : line["text"].get<std::string>();
    CAPTURE(printable(text, 200));
    const std::vector<int> smollm = line["smollm"];
    const std::vector<int> gpt2 = line.value("gpt-2", smollm), plain = line.value("plain", smollm);
    BpeCounts counts;
    CHECK(small().encode(text, Control::found, &counts) == smollm);
    CHECK(small("gpt-2").encode(text, Control::found) == gpt2);
    CHECK(small().encode(text, Control::plain) == plain);
    CHECK((counts.repaired > 0) == hex);
    if (!hex) {
      CHECK(decoded(small(), smollm) == text);
      CHECK(decoded(small("gpt-2"), gpt2) == text);
      CHECK(decoded(small(), plain) == text);
    }
    bad += hex;
    other_split += gpt2 != smollm;
    other_plain += plain != smollm;
  }
  CHECK(bad >= 20);  // else the lines say little
  CHECK(other_split >= 50);
  CHECK(other_plain >= 20);
}

TEST_CASE("bpe: every pre-split cuts as Hugging Face's, and as llama.cpp's default does") {
  const Json cuts = parse_json(read_file("tests/files/bpe_cuts.json"), "cuts");
  CHECK(cuts["lines"].size() == 100);
  for (const std::string pre : {"smollm", "gpt-2", "qwen2", "llama-bpe", "default"}) {
    Json file = cuts["tokenizer"];
    file["pre_tokenizer"] = small_file()["pre_tokenizer"];
    BpeParts parts = with_split(parse_bpe(file.dump(), "cuts"), pre);
    parts.ignore_merges = is_llama3(pre);
    const Bpe bpe(parts, "cuts");
    CAPTURE(pre);
    for (const Json& line : cuts["lines"]) {
      const std::string text = line["text"];
      CAPTURE(text);
      CHECK(bpe.encode(text, Control::plain) == line[pre].get<std::vector<int>>());
      CHECK(decoded(bpe, line[pre]) == text);
    }
  }
}

TEST_CASE("bpe: where the normalizer is NFC, the parts between special tokens are brought into it") {
  Json file = small_file();
  file["normalizer"] = {{"type", "NFC"}};
  const Bpe bpe(with_split(parse_bpe(file.dump(), "small"), "qwen2"), "small");
  const Json rows = parse_json(read_file("tests/files/bpe_nfc.json"), "nfc");
  CHECK(rows.size() == 60);
  int other = 0, other_plain = 0;
  for (const Json& row : rows) {
    const std::string text = row["text"];
    CAPTURE(text);
    const std::vector<int> found = row["found"], plain = row.value("plain", found);
    BpeCounts counts;
    CHECK(bpe.encode(text, Control::found, &counts) == found);
    CHECK(bpe.encode(text, Control::plain) == plain);
    CHECK((decoded(bpe, found) != text) == (counts.composed > 0));
    CHECK(bpe.encode(decoded(bpe, found), Control::found) == found);
    other += small("qwen2").encode(text, Control::found) != found;
    other_plain += plain != found;
  }
  CHECK(other >= 40);  // else the texts say little
  CHECK(other_plain >= 2);
  BpeCounts counts;
  CHECK(bpe.encode("e\xCC\x81\xFF\xCC\x81", Control::plain, &counts) ==
        bpe.encode("\xC3\xA9\xEF\xBF\xBD\xCC\x81", Control::plain));  // U+FFFD first
  CHECK(counts.composed == 1);

  Draft draft = llama_with_tokenizer();  // GGUF files do not say it: the pre-split does
  CHECK(gguf_tokenizer(parse_gguf(draft.bytes(), "m")).encode("e\xCC\x81").size() == 3);
  draft.set(words("tokenizer.ggml.pre", "qwen2"));
  CHECK(gguf_tokenizer(parse_gguf(draft.bytes(), "m")).encode("e\xCC\x81") == bpe.encode("\xC3\xA9", Control::plain));
}

TEST_CASE("bpe: every valid text comes back, and bad bytes count as U+FFFD, one a run") {
  Random random(7);
  for (int i = 0; i < 2000; i++) {
    std::string text, broken, mended;
    for (size_t n = below(random, 30); n > 0; n--) {
      uint32_t c = uint32_t(below(random, below(random, 2) ? 0x110000 : 0x250));
      if (c >= 0xD800 && c < 0xE000) c = ' ';
      text += utf8_of(c);
      broken += utf8_of(c);
      mended += utf8_of(c);
      if (below(random, 3)) continue;
      for (size_t k = 1 + below(random, 3); k > 0; k--) broken += char(0xF8 + below(random, 8));  // no part of UTF-8
      mended += "\xEF\xBF\xBD";
    }
    for (const char* pre : {"smollm", "gpt-2", "qwen2", "llama-bpe", "default"}) {
      const Bpe& bpe = small(pre);
      CHECK(decoded(bpe, bpe.encode(text, Control::found)) == text);
      CHECK(bpe.encode(broken, Control::found) == bpe.encode(mended, Control::found));
    }
  }
  const auto mended = [](const char* text) { return decoded(small(), small().encode(text, Control::plain)); };
  CHECK(mended("a\xFF\xFE\x80z") == "a\xEF\xBF\xBDz");
  CHECK(mended("\xE2\x82") == "\xEF\xBF\xBD");                            // the beginning of a character
  CHECK(mended("\xC0\x80 \xED\xA0\x80") == "\xEF\xBF\xBD \xEF\xBF\xBD");  // overlong; a surrogate
  CHECK(mended("\xE2\x82\xE2\x82\xAC\xF4\x90") == "\xEF\xBF\xBD\xE2\x82\xAC\xEF\xBF\xBD");
}

// The plain rule: of all neighbours, the pair of the lowest rank merges, the first of them where there are several.
static std::vector<int> plain_merges(const BpeParts& parts, const Bpe& bpe, const std::string& bytes) {
  std::vector<std::string> pieces;
  for (char c : bytes) pieces.emplace_back(1, c);
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  std::map<std::string, std::string> bytes_of;
  std::map<std::string, int> id_of;
  for (int id = 0; id < bpe.vocab_size(); id++) {
    if (bpe.type(id) != TokenType::normal) continue;
    bytes_of[parts.tokens[size_t(id)]] = bpe.symbols()[size_t(id)];
    id_of[bpe.symbols()[size_t(id)]] = id;
  }
  for (size_t rank = 0; rank < parts.merges.size(); rank++) {
    const std::string& merge = parts.merges[rank];
    const size_t space = merge.find(' ');
    ranks[{bytes_of.at(merge.substr(0, space)), bytes_of.at(merge.substr(space + 1))}] = rank;
  }
  for (;;) {
    size_t best = parts.merges.size(), at = 0;
    for (size_t i = 0; i + 1 < pieces.size(); i++) {
      const auto found = ranks.find({pieces[i], pieces[i + 1]});
      if (found == ranks.end() || found->second >= best) continue;
      best = found->second;
      at = i;
    }
    if (best == parts.merges.size()) break;
    pieces[at] += pieces[at + 1];
    pieces.erase(pieces.begin() + long(at) + 1);
  }
  std::vector<int> ids;
  for (const std::string& piece : pieces) ids.push_back(id_of.at(piece));
  return ids;
}

TEST_CASE("bpe: the queue merges as the plain rule does") {
  Random random(11);
  for (int i = 0; i < 12; i++) {
    std::string word;
    for (size_t n = 1 + below(random, 120); n > 0; n--) word += "eeetttaaooinnshrdl"[below(random, 18)];
    CAPTURE(word);
    CHECK(small().encode(word, Control::plain) == plain_merges(small_parts(), small(), word));
  }
}

TEST_CASE("bpe: a piece of a million letters takes three looks a byte") {
  // With time by the square of a million, no one would see the end. The sanitizers ask about memory.
  const size_t kLong = a_sixtieth() ? 50000 : 1000000;
  Random random(3);
  std::string letters;
  for (size_t i = 0; i < kLong; i++) letters += char('a' + below(random, 26));
  for (const std::string& text :
       {letters, std::string(kLong, 'a'), std::string(kLong, ' '), std::string(kLong, '-'), std::string(kLong, '7'),
        std::string(kLong, '\n') + "x", std::string(kLong, ' ') + "x"})
    for (const char* pre : {"smollm", "llama-bpe", "default"}) {
      CAPTURE(text.substr(0, 5));
      BpeCounts counts;
      const std::vector<int> ids = small(pre).encode(text, Control::plain, &counts);
      CHECK(counts.pairs <= 3 * text.size());
      CHECK(decoded(small(pre), ids) == text);
    }
  BpeCounts counts;
  std::string words;
  for (int i = 0; i < 1000; i++) words += " whatever";
  small().encode(words, Control::plain, &counts);
  CHECK(counts.pieces == 1000);
  CHECK(counts.cached == 999);
}

TEST_CASE("bpe: where merges are ignored, a piece that is a token is that token") {
  BpeParts parts = small_parts();
  parts.ignore_merges = true;
  parts.tokens[900] = "zqzqz";  // no merge makes it
  std::vector<std::string> merges;
  for (const std::string& merge : small_parts().merges) {
    std::string token = merge;
    token.erase(token.find(' '), 1);
    if (merge.find(small_parts().tokens[900]) == std::string::npos && token != small_parts().tokens[900])
      merges.push_back(merge);
  }
  parts.merges = merges;
  const Bpe ignoring(parts, "i");
  parts.ignore_merges = false;
  const Bpe merging(parts, "m");
  CHECK(ignoring.encode("zqzqz", Control::plain) == std::vector<int>{900});
  CHECK(merging.encode("zqzqz", Control::plain).size() > 1);
  CHECK(ignoring.encode("zqzqzz", Control::plain) == merging.encode("zqzqzz", Control::plain));  // another piece
}

TEST_CASE("bpe: a post-processor may put one token before a text") {
  const Json bytes = {{"type", "ByteLevel"}}, text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
             begin = {{"SpecialToken", {{"id", "<|im_start|>"}, {"type_id", 0}}}},
             specials = {{"<|im_start|>", {{"id", "<|im_start|>"}, {"ids", {1}}, {"tokens", {"<|im_start|>"}}}}};
  const auto begin_of = [&](const Json& step) {
    Json file = tiny_file();
    file["post_processor"] = step;
    return parse_any_tokenizer(file.dump(), "t").begin;
  };
  const auto adds = [&](const Json& single) {
    return Json{{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", specials}};
  };
  CHECK(begin_of(nullptr) == -1);
  CHECK(begin_of(adds(Json::array({text}))) == -1);
  CHECK(begin_of(adds({begin, text})) == 1);
  CHECK(begin_of({{"type", "Sequence"}, {"processors", {bytes, adds({begin, text})}}}) == 1);
  const std::string more = "its post_processor adds more than one token before a text",
                    advice = ": t: give another tokenizer: docs/formats.md says which load";
  for (const Json& single : {Json{begin, text, begin}, Json{text, begin}, Json{begin, begin, text}, Json{}})
    CHECK(error_of([&] { begin_of(adds(single)); }) == more + advice);
  Json unknown = begin;
  unknown["SpecialToken"]["id"] = "<s>";
  CHECK(error_of([&] {
          begin_of(adds({unknown, text}));
        }) == "its post_processor adds \"<s>\" before a text, which has not one id" + advice);
  CHECK(error_of([&] {
          begin_of({{"type", "BertProcessing"}});
        }) == "its post_processor is \"BertProcessing\"" + advice);
}

TEST_CASE("bpe: how many pieces a text is cut into") {
  const auto pieces = [](const char* text, size_t smollm, size_t gpt2) {
    CAPTURE(printable(text));
    BpeCounts counts[2];
    small().encode(text, Control::plain, &counts[0]);
    small("gpt-2").encode(text, Control::plain, &counts[1]);
    CHECK(counts[0].pieces == smollm);
    CHECK(counts[1].pieces == gpt2);
  };
  pieces("a b", 2, 2);
  pieces("a   b", 3, 3);
  pieces("don't we'll I'S", 7, 7);  // 'S is two
  pieces("1234", 4, 1);
  pieces(" 12", 3, 1);
  pieces("a   1", 3, 3);                                 // the spaces, and 1; in gpt-2 the last space goes with it
  pieces("\xC2\xB2\xE2\x85\xA7\xD9\xA3", 3, 1);          // a superscript, a Roman and an Arabic number
  pieces("!\xE1\xA0\x8E!", 1, 1);                        // U+180E is no space
  pieces("!\xC2\x85!\xE3\x80\x80!\xE2\x80\xA8!", 7, 7);  // U+0085, U+3000, U+2028 are
  pieces("a\xCC\x81", 2, 2);                             // a mark is no letter
  pieces("\xF0\x9F\x98\x80\xE2\x80\x8D\xF0\x9F\x98\x80", 1, 1);  // emoji with a joiner
}

TEST_CASE("bpe: special tokens, the longest first; control tokens where they are allowed") {
  const Bpe& bpe = small();
  const int start = bpe.special("<|im_start|>"), end = bpe.special("<|im_end|>"), longer = bpe.special("<|im_end|>>"),
            tool = bpe.special("<tool>");
  CHECK(start == 1);
  CHECK(bpe.special("a") == -1);
  CHECK(bpe.special("<|im_") == -1);
  CHECK(bpe.type(end) == TokenType::control);
  CHECK(bpe.type(tool) == TokenType::user_defined);
  CHECK(bpe.encode("<|im_start|><|im_end|>>", Control::found) == std::vector<int>{start, longer});
  CHECK(bpe.encode("<tool><|im_end|>", Control::found) == std::vector<int>{tool, end});
  const std::vector<int> plain = bpe.encode("<tool><|im_end|>", Control::plain);
  CHECK(plain.size() > 3);
  CHECK(plain[0] == tool);
  CHECK(decoded(bpe, {start, tool, end}) == "<|im_start|><tool><|im_end|>");

  BpeParts nested = small_parts();
  nested.tokens[3] = "[<tool>]";  // a control token with a user-defined one within hides it, found or plain
  const Bpe outer(nested, "n");
  CHECK(outer.encode("[<tool>]", Control::found) == std::vector<int>{3});
  const std::vector<int> hidden = outer.encode("[<tool>]", Control::plain);
  CHECK(decoded(outer, hidden) == "[<tool>]");
  CHECK(std::find(hidden.begin(), hidden.end(), tool) == hidden.end());
}

TEST_CASE("bpe: a vocabulary may lack bytes that texts hardly have, which are left out") {
  BpeParts parts = small_parts();
  const auto rename = [&](const std::string& from, const std::string& to) {
    *std::find(parts.tokens.begin(), parts.tokens.end(), from) = to;
  };
  rename("\xC4\x84", "!!!!!!!!!!!!");  // U+0104 stands for the byte 4
  const Bpe bpe(parts, "g");
  BpeCounts counts;
  CHECK(decoded(bpe, bpe.encode("a\x04z", Control::plain, &counts)) == "az");
  CHECK(counts.left_out == 1);
  CHECK(bpe.encode("--\x04--", Control::plain) == bpe.encode("----", Control::plain));
  rename("q", "????????????");
  CHECK(error_of([&] { Bpe(parts, "g"); }) == "the vocabulary lacks the byte 'q': g: replace the file");
}

TEST_CASE("bpe: parts that make no tokenizer are refused by name") {
  const auto wrong = [](const std::function<void(BpeParts&)>& change) {
    BpeParts parts = small_parts();
    change(parts);
    return error_of([&] { Bpe(parts, "model.gguf"); });
  };
  CHECK(wrong([](BpeParts& p) { p.begin = 1000; }).empty());
  CHECK(wrong([](BpeParts& p) { p.types.clear(), p.tokens[1000] = "tool"; }) == "");
  CHECK(wrong([](BpeParts& p) { p.types[50] = 6; }).empty());
  CHECK(wrong([](BpeParts& p) { p.types[500] = 6; }).find("token 500, ") == 0);
  CHECK(wrong([](BpeParts& p) { p.tokens.clear(); }) == "no vocabulary: model.gguf: replace the file");
  CHECK(holds(wrong([](BpeParts& p) { p.types.pop_back(); }), "1000 token types for 1001 tokens"));
  CHECK(holds(wrong([](BpeParts& p) { p.types[7] = 2; }), "has the type 2"));
  CHECK(holds(wrong([](BpeParts& p) { p.types[7] = -1; }), "has the type -1"));
  CHECK(holds(wrong([](BpeParts& p) { p.tokens[7] = p.tokens[8]; }), "token 8, \"%\", is there twice"));
  CHECK(holds(wrong([](BpeParts& p) { p.tokens[900] = "a b"; }), "is not written in GPT-2's characters for bytes"));
  CHECK(holds(wrong([](BpeParts& p) { p.tokens[900] = ""; }), "is not written in GPT-2's characters for bytes"));
  CHECK(holds(wrong([](BpeParts& p) { p.tokens[1000] = ""; }), "is special, but has no text"));
  CHECK(holds(wrong([](BpeParts& p) { p.tokens[1000] = "\xE2"; }), "is special, but its text is not UTF-8"));
  CHECK(holds(wrong([](BpeParts& p) { p.merges[3] = "ab"; }), "merge 3, \"ab\", is not two tokens"));
  CHECK(holds(wrong([](BpeParts& p) { p.merges[3] = "a b c"; }), "is not two tokens"));
  CHECK(holds(wrong([](BpeParts& p) { p.merges[3] = "Q Z"; }), "names \"QZ\", which is no token"));
  CHECK(holds(wrong([](BpeParts& p) { p.merges[3] = p.merges[2]; }), "is there twice"));
  CHECK(holds(wrong([](BpeParts& p) { p.begin = 1001; }), "the id 1001 of a special token is not below 1001"));
  CHECK(holds(wrong([](BpeParts& p) { p.begin = -2; }), "the id -2"));
  CHECK(wrong([](BpeParts& p) { p.pre = "falcon"; }) ==
        "the pre-split \"falcon\" is not known: model.gguf: give a model whose pre-split is one of smollm, gpt-2, "
        "qwen2, llama-bpe, llama3, llama-v3, default");

  BpeParts parts = small_parts();
  parts.tokens.push_back("[PAD1001]");
  parts.types.push_back(5);
  const Bpe bpe(parts, "g");
  CHECK(bpe.symbols()[1001].empty());
  CHECK(bpe.special("[PAD1001]") == -1);
}

TEST_CASE("bpe: a tokenizer.json of another kind is refused by name") {
  const auto wrong = [](const char* pointer, const Json& value) {
    Json file = tiny_file();
    file[Json::json_pointer(pointer)] = value;
    return error_of([&] { parse_any_tokenizer(file.dump(), "t"); });
  };
  const std::string advice = ": t: give another tokenizer: docs/formats.md says which load";
  CHECK(wrong("/version", "1.0").empty());
  CHECK(wrong("/post_processor", {{"type", "ByteLevel"}}).empty());
  CHECK(wrong("/model/merges/0", "\xC4\xA0 \xC4\xA0") == "");  // as files before 2024 have them
  CHECK(wrong("/model/type", "Unigram") == "the model's type is \"Unigram\"" + advice);
  CHECK(wrong("/model/dropout", 0.1) == "the model's dropout is 0.1" + advice);
  CHECK(wrong("/model/byte_fallback", 1) == "the model's byte_fallback is 1" + advice);
  CHECK(wrong("/model/byte_fallback", true) == "the pre-tokenizer is \"Sequence\"" + advice);  // SentencePiece's
  CHECK(wrong("/model/ignore_merges", 1) == "the model's ignore_merges is 1" + advice);
  CHECK(wrong("/model/end_of_word_suffix", "</w>") == "the model's end_of_word_suffix is \"</w>\"" + advice);
  CHECK(wrong("/normalizer", {{"type", "NFC"}}) == "");
  CHECK(wrong("/normalizer", {{"type", "NFKC"}}) == "its normalizer is \"NFKC\"" + advice);
  CHECK(wrong("/truncation", {{"max_length", 5}}) == "its truncation is an object" + advice);
  CHECK(wrong("/decoder", {{"type", "Metaspace"}}) == "its decoder is \"Metaspace\"" + advice);
  CHECK(wrong("/decoder", nullptr) == "its decoder is null" + advice);
  CHECK(wrong("/pre_tokenizer", {{"type", "Whitespace"}}) == "the pre-tokenizer is \"Whitespace\"" + advice);
  CHECK(wrong("/pre_tokenizer/pretokenizers/0/type", "Split") == "the pre-tokenizer's use_regex is true" + advice);
  CHECK(wrong("/pre_tokenizer/pretokenizers/0/type", "Punctuation") ==
        "the pre-tokenizer is a sequence of \"Punctuation\", \"ByteLevel\"" + advice);
  CHECK(wrong("/pre_tokenizer/pretokenizers/0/individual_digits", false) ==
        "the pre-tokenizer's individual_digits is false" + advice);
  CHECK(wrong("/pre_tokenizer/pretokenizers/1/add_prefix_space", true) ==
        "the pre-tokenizer's add_prefix_space is true" + advice);
  CHECK(wrong("/added_tokens/1/lstrip", true) == "the added token \"<|im_start|>\": its lstrip is true" + advice);
  CHECK(wrong("/added_tokens/1/normalized", true) ==
        "the added token \"<|im_start|>\": its normalized is true" + advice);
  CHECK(holds(wrong("/added_tokens/1/id", 5), "the id 5 is there twice"));
  CHECK(holds(wrong("/added_tokens/1/id", 281), "the id of \"<|im_start|>\" is 281, expected each of 0 to 280 once"));
  CHECK(holds(wrong("/added_tokens/1/content", 5), "an added token has no content"));
  CHECK(holds(wrong("/model/vocab/a", 5), "is there twice"));
  CHECK(holds(wrong("/model/vocab/a", 2.5), "the id of \"a\" is 2.5"));
  CHECK(holds(wrong("/model/merges/2", {"a"}), "merge 2 is a list"));
  CHECK(holds(wrong("/model/vocab", Json::object()), "no vocabulary"));

  Json cut = {{"type", "Split"}, {"pattern", {{"Regex", kQwen2}}}, {"behavior", "Isolated"}, {"invert", false}};
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const auto with_cut = [&](const Json& after) {
    return wrong("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {cut, after}}});
  };
  CHECK(with_cut(bytes) == "");
  CHECK(with_cut(small_file()["pre_tokenizer"]["pretokenizers"][1]) ==
        "the pre-tokenizer's use_regex is true" + advice);
  cut["invert"] = true;
  CHECK(with_cut(bytes) == "the pre-tokenizer's invert is true" + advice);
  cut["invert"] = false;
  cut["behavior"] = "Removed";
  CHECK(with_cut(bytes) == "the pre-tokenizer's behavior is \"Removed\"" + advice);
  cut["behavior"] = "Isolated";
  cut["pattern"]["Regex"] = "\\s+";
  CHECK(with_cut(bytes) == "the pre-tokenizer cuts by \"\\\\s+\", which is not known" + advice);

  const Tokenizer letters = character_tokenizer("abc");
  CHECK(parse_any_tokenizer(format_tokenizer(letters), "t").symbols == letters.symbols);
}

TEST_CASE("bpe: a tokenizer of the project encodes with it, and says what it changed") {
  const Tokenizer tokenizer = parse_any_tokenizer(tiny_file().dump(), "t");
  REQUIRE(tokenizer.bpe);
  CHECK(tokenizer.vocab_size() == 281);
  const std::string text = "It was the best of times <|im_end|>, 1859.\n\xE4\xB8\x96\xF0\x9F\x98\x80";
  CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
  CHECK(tokenizer.encode(text) == tokenizer.bpe->encode(text, Control::plain));
  const Split parts = encode_split(tokenizer, text, "a text");
  CHECK(parts.train.size() == training_part(tokenizer.encode(text).size()));
  CHECK(tokenizer.decode(parts.train) + tokenizer.decode(parts.validation) == text);

  const bool quiet = notes().quiet;
  notes().quiet = true;
  CHECK(tokenizer.decode(tokenizer.encode("a\xFFz")) == "a\xEF\xBF\xBDz");
  notes().quiet = quiet;
}

// ---------------------------------------------------------------------------------------------------------------
// SentencePiece's

namespace {

const Json& pieces_stored() {
  static const Json stored = parse_json(read_file("tests/files/bpe_pieces.json"), "pieces");
  return stored;
}
// The stored tokenizer, with Llama 2's normalizer, or with Mistral's pre-tokenizer of that scheme.
Json pieces_file(const std::string& form) {
  static const Json mark = "\xE2\x96\x81", prepend = {{"type", "Prepend"}, {"prepend", mark}},
                    write = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", mark}},
                    read = {{"type", "Replace"}, {"pattern", {{"String", mark}}}, {"content", " "}},
                    strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  Json file = pieces_stored()["tokenizer"];
  file["decoder"] = {{"type", "Sequence"}, {"decoders", {read, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}};
  if (form != "never") file["decoder"]["decoders"].push_back(strip);
  if (form == "llama2") file["normalizer"] = {{"type", "Sequence"}, {"normalizers", {prepend, write}}};
  else
    file["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", mark}, {"prepend_scheme", form}, {"split", false}};
  return file;
}
const BpeParts& pieces_parts() {
  static const BpeParts parts = parse_bpe(pieces_file("llama2").dump(), "pieces");
  return parts;
}
// The same with scores: a token that an early merge makes has a high one; two of them are equal.
BpeParts scored_parts() {
  BpeParts parts = pieces_parts();
  for (size_t id = 0; id < parts.tokens.size(); id++) parts.scores.push_back(-double(id / 2));
  parts.merges.clear();
  return parts;
}

}  // namespace

TEST_CASE("bpe: SentencePiece's has Hugging Face's ids, wherever it puts a space") {
  for (const std::string form : {"llama2", "first", "always", "never"}) {
    const Tokenizer tokenizer = parse_any_tokenizer(pieces_file(form).dump(), "pieces");
    REQUIRE(tokenizer.bpe->settings.sentencepiece);
    CHECK(tokenizer.space_first == (form != "never"));
    CAPTURE(form);
    for (const Json& line : pieces_stored()["lines"]) {
      const std::string text = line["text"];
      CAPTURE(printable(text, 200));
      const std::vector<int> ids = tokenizer.bpe->encode(text, Control::found);
      CHECK(ids == line[form].get<std::vector<int>>());
      if (form == "llama2") CHECK(tokenizer.decode(ids) == line["decoded"]);
    }
    CHECK(tokenizer.decode(tokenizer.encode("one two\n\xE4\xB8\x96 three")) == "one two\n\xE4\xB8\x96 three");
    const std::string lines(1000000, '\n');  // with time by the square of this, no one would see the end
    CHECK(tokenizer.decode(tokenizer.encode(lines)) == lines);
  }
}

TEST_CASE("bpe: SentencePiece's merges the two of the best score, and the first of equals") {
  const BpeParts parts = scored_parts();
  const Tokenizer tokenizer = bpe_tokenizer(parts, "scored");
  std::map<std::string, int> id_of;
  for (size_t id = 0; id < parts.tokens.size(); id++)
    if (parts.types[id] == 1) id_of[tokenizer.symbols[id]] = int(id);
  Random random(5);
  for (int i = 0; i < 200; i++) {
    std::vector<std::string> pieces = {" "};  // of the plain rule
    for (size_t n = 1 + below(random, 40); n > 0; n--) pieces.emplace_back(1, "eetaoinshrdl   "[below(random, 15)]);
    const std::string text = joined(pieces, "").substr(1);
    for (;;) {
      double best = -1e9;
      size_t at = pieces.size();
      for (size_t k = 0; k + 1 < pieces.size(); k++) {
        const auto found = id_of.find(pieces[k] + pieces[k + 1]);
        if (found == id_of.end() || parts.scores[size_t(found->second)] <= best) continue;
        best = parts.scores[size_t(found->second)];
        at = k;
      }
      if (at == pieces.size()) break;
      pieces[at] += pieces[at + 1];
      pieces.erase(pieces.begin() + long(at) + 1);
    }
    std::vector<int> expected;
    for (const std::string& piece : pieces) expected.push_back(id_of.at(piece));
    CAPTURE(text);
    CHECK(tokenizer.encode(text) == expected);
    CHECK(tokenizer.decode(expected) == text);
  }
}

TEST_CASE("bpe: SentencePiece's of another kind is refused by name") {
  const std::string advice = ": t: give another tokenizer: docs/formats.md says which load";
  const auto wrong = [&](const std::string& form, const char* pointer, const Json& value) {
    Json file = pieces_file(form);
    file[Json::json_pointer(pointer)] = value;
    return error_of([&] { parse_any_tokenizer(file.dump(), "t"); });
  };
  CHECK(wrong("llama2", "/model/fuse_unk", false) == "");
  CHECK(wrong("llama2", "/normalizer", {{"type", "NFC"}}) == "its normalizer is \"NFC\"" + advice);
  CHECK(wrong("llama2", "/normalizer/normalizers/0/prepend", "_") == "its normalizer is \"Sequence\"" + advice);
  CHECK(wrong("llama2", "/pre_tokenizer", {{"type", "Whitespace"}}) == "its normalizer is \"Sequence\"" + advice);
  CHECK(wrong("first", "/pre_tokenizer", nullptr) == "the pre-tokenizer is null" + advice);
  CHECK(wrong("first", "/pre_tokenizer/split", true) == "the pre-tokenizer's split is true" + advice);
  CHECK(wrong("first", "/pre_tokenizer/replacement", "_") == "the pre-tokenizer's replacement is \"_\"" + advice);
  CHECK(wrong("first", "/pre_tokenizer/prepend_scheme", 1) == "the pre-tokenizer's prepend_scheme is 1" + advice);
  CHECK(wrong("never", "/pre_tokenizer/prepend_scheme", "first") ==
        "its decoder is not that of Llama 2 or Mistral" + advice);
  CHECK(wrong("llama2", "/added_tokens/1/normalized", true) ==
        "the added token \"<s>\": its normalized is true" + advice);
  CHECK(wrong("llama2", "/model/byte_fallback", false) == "its normalizer is \"Sequence\"" + advice);

  const auto wrong_parts = [](const std::function<void(BpeParts&)>& change) {
    BpeParts parts = scored_parts();
    change(parts);
    return error_of([&] { Bpe(parts, "m"); });
  };
  CHECK(wrong_parts([](BpeParts& p) { p.types[0] = 2; }) == "");
  CHECK(wrong_parts([](BpeParts& p) { p.scores.pop_back(); }) == "759 scores for 760 tokens: m: replace the file");
  CHECK(wrong_parts([](BpeParts& p) { p.scores.clear(); }) == "no merges and no scores: m: replace the file");
  CHECK(holds(wrong_parts([](BpeParts& p) { p.types.clear(); }), "0 token types for"));
  CHECK(holds(wrong_parts([](BpeParts& p) { p.types[300] = 6; }), "is no byte and no piece of a text"));
  CHECK(holds(wrong_parts([](BpeParts& p) { p.tokens[300] = ""; }), "is no byte and no piece of a text"));
  CHECK(holds(wrong_parts([](BpeParts& p) { p.tokens[300].assign(2000, 'a'); }), "has more than 1024 bytes"));
  CHECK(holds(wrong_parts([](BpeParts& p) { p.tokens[13] = "x0A"; }), "is no byte and no piece of a text"));
  CHECK(holds(wrong_parts([](BpeParts& p) { p.types[13] = 5; }), "the vocabulary lacks the byte '\\n'"));
}

TEST_CASE("bpe: a stream lets whole characters out, at every cut") {
  const std::string valid =
      "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xED\x9F\xBF\xF4\x8F\xBF\xBF\xE0\xA0\x80\xF0\x90\x80\x80z";
  const std::string bad =
      "\xE2\x82"
      "a\xFF\xC3\xC3\xA9\xF0\x9F\x98\x80\x80\xED\xA0\x80\xC0\xF0\x80\xF4\x90\xF0\x9F";
  for (const std::string& text : {valid, bad, valid + bad})
    for (size_t first = 0; first <= text.size(); first++)
      for (size_t second = first; second <= text.size(); second++) {
        Utf8Stream stream;
        const std::string a = stream.put(text.substr(0, first)), b = stream.put(text.substr(first, second - first)),
                          c = stream.put(text.substr(second)), rest = stream.finish();
        CHECK(a + b + c + rest == text);
        CHECK(rest.size() <= 3);
        CHECK(stream.finish().empty());
        if (text != valid) continue;
        CHECK((valid_utf8(a) && valid_utf8(b) && valid_utf8(c) && rest.empty()));
        CHECK(first - a.size() <= 3);
      }
  Utf8Stream stream;
  CHECK(stream.put("\xF0\x9F") == "");
  CHECK(stream.put("\x98") == "");
  CHECK(stream.put("\x80!") == "\xF0\x9F\x98\x80!");
  CHECK(stream.put("\xE2\x82") == "");
  CHECK(stream.put("x\xFF") == "\xE2\x82x\xFF");  // no character begins so
  CHECK(stream.put("\xED\xA0") == "\xED\xA0");
  CHECK(stream.put("\xC3") == "");
  CHECK(stream.finish() == "\xC3");
}

// ---------------------------------------------------------------------------------------------------------------
// Files that are damaged

namespace {

const Json kValues[] = {nullptr, true,  0,    -1,       1,          279,          281,
                        65536,   1e300, 0.5,  "",       "a",        "\xC4\xA0",   "a b",
                        "BPE",   {},    "\0", {1, "a"}, {{"a", 1}}, 4294967296.0, 18446744073709551615u};

// Changes, removes or doubles a random member.
void mutate_json(Json& json, Random& random) {
  Json* at = &json;
  while (at->is_structured() && !at->empty() && below(random, 5)) {
    auto inner = at->begin();
    std::advance(inner, below(random, at->size()));
    at = &*inner;
  }
  if (at->is_array() && !at->empty() && below(random, 2)) {
    const size_t i = below(random, at->size());
    if (below(random, 2)) at->erase(i);
    else at->push_back((*at)[i]);
  } else if (at->is_object() && !at->empty() && below(random, 2)) {
    auto inner = at->begin();
    std::advance(inner, below(random, at->size()));
    at->erase(inner);
  } else {
    *at = kValues[below(random, std::size(kValues))];
  }
}

void mutate_text(std::string& text, Random& random) {
  const size_t at = below(random, text.size() + 1), span = below(random, 20);
  switch (below(random, 4)) {
    case 0:
      if (at < text.size()) text[at] = char(random());
      break;
    case 1:
      text.erase(at, span);
      break;
    case 2:
      text.insert(at, text.substr(below(random, text.size() + 1), span));
      break;
    default:
      text.insert(at, 1, "0123456789\"[]{},:\\\xFF -"[below(random, 21)]);
  }
}

void mutate_parts(BpeParts& parts, Random& random) {
  if (parts.merges.empty()) parts.merges = {"a b", "c d"};
  const size_t token = below(random, parts.tokens.size()), merge = below(random, parts.merges.size());
  switch (below(random, 12)) {
    case 10:
      if (!parts.scores.empty()) parts.scores.resize(parts.scores.size() - below(random, 2), double(random()));
      break;
    case 11:
      parts.space_first = SpaceFirst(below(random, 4));
      break;
    case 8:
      (below(random, 2) ? parts.ignore_merges : parts.sentencepiece) ^= 1;
      break;
    case 9:
      parts.begin = int(below(random, 300)) - 2;
      break;
    case 0:
      mutate_text(parts.tokens[token], random);
      break;
    case 1:
      parts.tokens[token] = parts.tokens[below(random, parts.tokens.size())];
      break;
    case 2:
      parts.types[below(random, parts.types.size())] = int(below(random, 9)) - 1;
      break;
    case 3:
      mutate_text(parts.merges[merge], random);
      break;
    case 4:
      std::swap(parts.merges[merge], parts.merges[below(random, parts.merges.size())]);
      break;
    case 5:
      parts.begin = int(random());
      break;
    case 6:
      parts.types.resize(parts.types.size() - below(random, 2));
      break;
    default:
      parts.types[0] = 4;
      mutate_text(parts.tokens[0], random);
  }
}

// Mutated files load, and then encode and decode, or are refused in one clear line.
void survive(const std::function<Tokenizer(Random&)>& load) {
  const int files = a_sixtieth() ? 500 : a_tenth() ? 2000 : 100000;
  const std::string text = "the <tool>  1859<|im_end|> \xE4\xB8\x96 \xFF\nE\xCC\x81";
  Random random(20240229 + sweep_seed());
  std::set<std::string> messages;
  int loaded = 0;
  for (int i = 0; i < files; i++) {
    const DamagedRead result = read_damaged(size_t(16) << 20, [&] {
      const Tokenizer tokenizer = load(random);
      for (Control control : {Control::plain, Control::found})
        for (int id : tokenizer.bpe->encode(text, control))
          if (id < 0 || id >= tokenizer.vocab_size()) throw std::logic_error("no id: " + std::to_string(id));
      tokenizer.decode(tokenizer.bpe->encode(text, Control::found));
    });
    loaded += result.loaded;
    if (!result.loaded) messages.insert(result.refused.substr(0, 12));
    if (!result.wrong.empty()) FAIL("mutation " << i << ": " << result.wrong);
  }
  CHECK(loaded > files / 50);
  CHECK(loaded < files);
  CHECK(messages.size() >= 5);
}

}  // namespace

namespace {

void survive_changes(const Json& good) {
  survive([&](Random& random) {
    Json file = good;
    for (size_t n = below(random, 3); n > 0; n--) mutate_json(file, random);
    std::string text = file.dump(-1, ' ', false, Json::error_handler_t::replace);
    for (size_t n = below(random, 3); n > 0; n--) mutate_text(text, random);
    return bpe_tokenizer(parse_bpe(text, "t"), "t");
  });
}

}  // namespace

TEST_CASE("bpe: mutated files of a tokenizer") {
  Json good = tiny_file();
  good["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", kQwen2}}}, {"behavior", "Isolated"}, {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  good["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<|im_start|>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"special_tokens", {{"<|im_start|>", {{"ids", {1}}}}}}};
  good["normalizer"] = {{"type", "NFC"}};
  survive_changes(good);
  survive_changes(pieces_file("llama2"));
  survive_changes(pieces_file("first"));
}

TEST_CASE("bpe: mutated parts of a tokenizer") {
  for (const BpeParts& good : {parse_bpe(tiny_file().dump(), "t"), scored_parts()})
    survive([&](Random& random) {
      BpeParts parts = good;
      for (size_t n = 1 + below(random, 2); n > 0; n--) mutate_parts(parts, random);
      return bpe_tokenizer(parts, "t");
    });
}
