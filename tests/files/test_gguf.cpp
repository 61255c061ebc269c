// tests/files/test_gguf.cpp: GGUF files, made in memory (gguf_file.h): what is read, and everything that is refused.
//
// In order: a file of the Python package `gguf`; metadata; the format's refusals; dequantization by
// hand; Llama models and their refusals; the order of rotary rows; files on the disk; mutations.
#include <doctest/doctest.h>

#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <set>

#include "files/gguf_model.h"
#include "files/text.h"
#include "machine/numbers.h"
#include "tests/damaged.h"
#include "tests/error_of.h"
#include "tests/folder.h"
#include "tests/gguf_file.h"
#include "tests/tenth.h"

using namespace nanospec;

namespace {

std::vector<float> dequantized(const GgufTensor& tensor) {
  std::vector<float> all(tensor.size());
  dequantize(tensor, 0, all.size(), all.data());
  return all;
}

// What the reader complains of, after the file was changed.
using Change = std::function<void(Draft&)>;
std::string complaint(Draft draft, const Change& change) {
  change(draft);
  return error_of([&] { parse_gguf(draft.bytes(), "f.gguf"); });
}
std::string llama_complaint(const Change& change) {
  Draft draft = llama_gguf();
  change(draft);
  return error_of([&] { read_gguf_header(parse_gguf(draft.bytes(), "f.gguf")); });
}

// ---------------------------------------------------------------------------------------------------------------
// What `tests/reference/gguf_check.py --stored` printed: a file of the Python package, and its numbers' bits

const char* const kStored =
    "474755460300000006000000000000000300000000000000140000000000000067656e6572616c2e61726368697465637475726508000000"
    "0400000000000000746573740a00000000000000746573742e776f7264730900000008000000020000000000000001000000000000006102"
    "0000000000000062630a00000000000000746573742e746869726406000000abaaaa3e040000000000000051385f30020000002000000000"
    "0000000100000000000000080000000000000000000000040000000000000051345f30020000002000000000000000010000000000000002"
    "0000004000000000000000040000000000000051345f31020000002000000000000000010000000000000003000000600000000000000003"
    "0000000000000046313602000000030000000000000002000000000000000100000080000000000000000400000000000000424631360200"
    "0000040000000000000001000000000000001e000000a0000000000000000300000000000000463332010000000200000000000000000000"
    "00c000000000000000000000000000000000000000000000c22debf0f4f8fbfdfeff0000000000000001020305080c10151b232c36414e5d"
    "6d7f000000000000000000000000000000000000000000000000000000000000b7bd89898979787878686858584838281808000000000000"
    "00000000000000001c3b9bbf202131313242425262728292a2c2d2f20000000000000000000000009bbfb7bd2abcdab9d7b7f0b400000000"
    "00000000000000000000000000000000f3bfb7bf85bf3bbf0000000000000000000000000000000000000000000000000362f3bf6edbb6bf"
    "000000000000000000000000000000000000000000000000";

struct StoredTensor {
  const char* name;
  GgufType type;
  std::vector<int64_t> shape;
  std::vector<uint32_t> bits;
};
const std::vector<StoredTensor> kStoredTensors = {
    {"Q8_0", GgufType::Q8_0, {1, 32}, {0xbff1d400, 0xbfb84000, 0xbf8a3000, 0xbf384000, 0xbee65000, 0xbe8a3000,
                                       0xbe384000, 0xbdb84000, 0x00000000, 0x00000000, 0x00000000, 0x00000000,
                                       0x00000000, 0x00000000, 0x00000000, 0x3db84000, 0x3e384000, 0x3e8a3000,
                                       0x3ee65000, 0x3f384000, 0x3f8a3000, 0x3fb84000, 0x3ff1d400, 0x401b7600,
                                       0x40498600, 0x407d5800, 0x409b7600, 0x40bb2100, 0x40e08e00, 0x4105de80,
                                       0x411ce680, 0x4136cf80}},
    {"Q4_0", GgufType::Q4_0, {1, 32}, {0xbfb6e000, 0xbfb6e000, 0xbfb6e000, 0xbfb6e000, 0x80000000, 0x80000000,
                                       0x80000000, 0x80000000, 0x80000000, 0x80000000, 0x80000000, 0x80000000,
                                       0x80000000, 0x80000000, 0x80000000, 0x80000000, 0x80000000, 0x80000000,
                                       0x80000000, 0x3fb6e000, 0x3fb6e000, 0x3fb6e000, 0x3fb6e000, 0x4036e000,
                                       0x4036e000, 0x40892800, 0x40892800, 0x40b6e000, 0x40e49800, 0x41092800,
                                       0x41200400, 0x4136e000}},
    {"Q4_1", GgufType::Q4_1, {1, 32}, {0xbff36000, 0xbf81a000, 0xbf81a000, 0xbf81a000, 0xbdfe0000, 0xbdfe0000,
                                       0xbdfe0000, 0xbdfe0000, 0xbdfe0000, 0xbdfe0000, 0xbdfe0000, 0xbdfe0000,
                                       0xbdfe0000, 0xbdfe0000, 0xbdfe0000, 0xbdfe0000, 0xbdfe0000, 0xbdfe0000,
                                       0x3f43c000, 0x3f43c000, 0x3f43c000, 0x3fd3a000, 0x3fd3a000, 0x4022b000,
                                       0x405b9000, 0x408a3800, 0x40a6a800, 0x40c31800, 0x40df8800, 0x410c3400,
                                       0x411a6c00, 0x4136dc00}},
    {"F16", GgufType::F16, {2, 3}, {0xbff36000, 0xbfb6e000, 0xbf854000, 0xbf3b4000, 0xbefae000, 0xbe9e0000}},
    {"BF16", GgufType::BF16, {1, 4}, {0xbff30000, 0xbfb70000, 0xbf850000, 0xbf3b0000}},
    {"F32", GgufType::F32, {2}, {0xbff36203, 0xbfb6db6e}},
};

std::string from_hexadecimal(const std::string& digits) {
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2) bytes += char(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

}  // namespace

TEST_CASE("gguf: a file of the Python package, bit for bit") {
  const GgufFile file = parse_gguf(from_hexadecimal(kStored), "stored.gguf");
  CHECK(file.version == 3);
  CHECK(file.alignment == 32);
  CHECK(file.metadata.size() == 3);
  CHECK(file.text("general.architecture") == "test");
  CHECK(file.texts("test.words") == std::vector<std::string>{"a", "bc"});
  CHECK(file.number("test.third") == double(1.0f / 3));
  REQUIRE(file.tensors.size() == kStoredTensors.size());
  for (size_t i = 0; i < kStoredTensors.size(); i++) {
    const StoredTensor& stored = kStoredTensors[i];
    const GgufTensor& tensor = file.tensors[i];
    CAPTURE(stored.name);
    CHECK(tensor.name == stored.name);
    CHECK(tensor.type == stored.type);
    CHECK(std::string(type_name(tensor.type)) == stored.name);
    CHECK(tensor.shape == stored.shape);
    REQUIRE(tensor.size() == stored.bits.size());
    const std::vector<float> numbers = dequantized(tensor);
    CHECK(memcmp(numbers.data(), stored.bits.data(), 4 * numbers.size()) == 0);
  }
}

TEST_CASE("gguf: a file of versions 2 and 3 is read as it was written") {
  for (uint32_t version : {2u, 3u}) {
    Draft draft = small_gguf();
    draft.version = version;
    const GgufFile file = parse_gguf(draft.bytes(), "f.gguf");
    CHECK(file.version == version);
    REQUIRE(file.tensors.size() == 2);
    CHECK(file.find("a") == &file.tensors[0]);
    CHECK(file.find("c") == nullptr);
    CHECK(file.tensor("b").shape == std::vector<int64_t>{5});
    CHECK(file.tensor("a").shape == std::vector<int64_t>{2, 3});  // rows first
    CHECK(file.tensor("a").columns() == 3);
    CHECK(dequantized(file.tensor("b")) == std::vector<float>{0, 0.125f, 0.25f, 0.375f, 0.5f});
    CHECK(error_of([&] { file.tensor("c"); }).find("tensor c is missing: f.gguf: ") == 0);
  }
  Draft empty;
  CHECK(parse_gguf(empty.bytes(), "f.gguf").tensors.empty());
  Draft wide = small_gguf();
  wide.alignment = 128;
  wide.keys.push_back(whole("general.alignment", 128));
  CHECK(dequantized(parse_gguf(wide.bytes(), "f.gguf").tensor("b"))[4] == 0.5f);
  GgufFile copy;
  {
    const GgufFile file = parse_gguf(small_gguf().bytes(), "f.gguf");
    copy = file;
  }
  CHECK(dequantized(copy.tensor("b"))[4] == 0.5f);  // a copy keeps the bytes
}

TEST_CASE("gguf: metadata of every kind") {
  Draft draft;
  draft.keys = {key_of("u8", GgufKind::u8, raw(uint8_t(255))),
                key_of("i8", GgufKind::i8, raw(int8_t(-128))),
                key_of("u16", GgufKind::u16, raw(uint16_t(65535))),
                key_of("i16", GgufKind::i16, raw(int16_t(-32768))),
                key_of("u32", GgufKind::u32, raw(uint32_t(4294967295))),
                key_of("i32", GgufKind::i32, raw(int32_t(-2147483647 - 1))),
                key_of("u64", GgufKind::u64, raw(uint64_t(1) << 63)),
                key_of("i64", GgufKind::i64, raw(std::numeric_limits<int64_t>::min())),
                key_of("f32", GgufKind::f32, raw(0.1f)),
                key_of("f64", GgufKind::f64, raw(0.1)),
                key_of("yes", GgufKind::flag, raw(uint8_t(1))),
                words("text", "caf\xC3\xA9\n"),
                list("bytes", uint32_t(GgufKind::u8), 3, "\x01\x02\xFF"),
                list("halves", uint32_t(GgufKind::f64), 1, raw(0.5)),
                list("words", uint32_t(GgufKind::text), 3, raw_text("") + raw_text("a") + raw_text("bc")),
                list("flags", uint32_t(GgufKind::flag), 2, std::string("\0\1", 2)),
                list("none", uint32_t(GgufKind::i32), 0, "")};
  const GgufFile file = parse_gguf(draft.bytes(), "f.gguf");
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
  const std::pair<const char*, int64_t> integers[] = {{"u8", 255},     {"i8", -128},        {"u16", 65535},
                                                      {"i16", -32768}, {"u32", 4294967295}, {"i32", -2147483648},
                                                      {"i64", kLeast}};
  for (const auto& integer : integers) {
    CAPTURE(integer.first);
    CHECK(file.integer(integer.first, kLeast, kMost) == integer.second);
    CHECK(shown_value(file.metadata.at(integer.first)) == std::to_string(integer.second));
  }
  CHECK(file.number("f32") == double(0.1f));
  CHECK(file.number("f64") == 0.1);
  CHECK(file.flag("yes"));
  CHECK(file.text("text") == "caf\xC3\xA9\n");
  CHECK(file.integers("bytes", 0, 255) == GgufFile::Integers{1, 2, 255});
  CHECK(file.texts("words") == std::vector<std::string>{"", "a", "bc"});
  CHECK(file.integers("none", 0, 0).empty());
  CHECK(file.length("words") == 3);
  CHECK(file.length("missing") == 0);

  CHECK(file.integer("missing", 0, 9, 5) == 5);
  CHECK(file.number("missing", 0.25) == 0.25);
  CHECK(file.flag("missing", true));
  CHECK(file.text("missing", "so") == "so");
  CHECK(file.integers("missing", 0, 1, GgufFile::Integers{1}) == GgufFile::Integers{1});

  const auto shown = [&](const char* key) { return shown_value(file.metadata.at(key)); };
  CHECK(shown("f32") == "0.100000001");
  CHECK(shown("f64") == "0.10000000000000001");
  CHECK(shown("u64") == "9223372036854775808");
  CHECK(shown("yes") == "true");
  CHECK(shown("text") == "\"caf\xC3\xA9\\n\"");
  CHECK(shown("words") == "a list of 3 texts");
  CHECK(shown("halves") == "a list of 1 float");
}

TEST_CASE("gguf: a value of another kind is refused with its key") {
  Draft draft;
  draft.keys = {whole("n", 7),    words("t", "a"),
                real("f", 1),     list("l", uint32_t(GgufKind::u8), 2, "\x01\x05"),
                real("nan", NAN), key_of("u64", GgufKind::u64, raw(~uint64_t(0)))};
  const GgufFile file = parse_gguf(draft.bytes(), "f.gguf");
  const auto check = [](const std::string& begin, const std::function<void()>& use) {
    const std::string message = error_of(use);
    CAPTURE(message);
    CHECK(message.find(begin + ": f.gguf: ") == 0);
  };
  check("the metadata lack x.y", [&] { file.text("x.y"); });
  check("the metadata lack x", [&] { file.integers("x", 0, 1); });
  check("n is 7, expected a text", [&] { file.text("n"); });
  check("n is 7, expected a text", [&] { file.text("n", "otherwise"); });
  check("t is \"a\", expected a float", [&] { file.number("t"); });
  CHECK(file.number("n") == 7);
  check("n is 7, expected true or false", [&] { file.flag("n"); });
  check("n is 7, expected 8 to 9", [&] { file.integer("n", 8, 9); });
  check("n is 7, expected -2 to 6", [&] { file.integer("n", -2, 6); });
  check("n is 7, expected a list", [&] { file.length("n"); });
  check("n is 7, expected a list of texts", [&] { file.texts("n"); });
  check("n is 7, expected a list of whole numbers", [&] { file.integers("n", 0, 9); });
  check("n is 7, expected a list of floats", [&] { file.numbers("n"); });
  check("f is 1, expected a whole number", [&] { file.integer("f", 0, 9); });
  check("t is \"a\", expected a whole number", [&] { file.integer("t", 0, 9); });
  check("l is a list of 2 whole numbers, expected a whole number", [&] { file.integer("l", 0, 9); });
  check("l is a list of 2 whole numbers, expected a list of texts", [&] { file.texts("l"); });
  check("l, element 2, is 5, expected 0 to 4", [&] { file.integers("l", 0, 4); });
  check("u64 is 18446744073709551615, expected 0 to 9223372036854775807",
        [&] { file.integer("u64", 0, std::numeric_limits<int64_t>::max()); });
  check("nan is nan, expected a finite number", [&] { file.number("nan"); });
}

TEST_CASE("gguf: what is no whole GGUF file is refused") {
  const auto check = [](const std::string& part, const Change& change) {
    const std::string message = complaint(small_gguf(), change);
    CAPTURE(message);
    CHECK(holds(message, part));
    CHECK(holds(message, ": f.gguf: "));
  };
  const auto bytes = [](const std::string& text) { return error_of([&] { parse_gguf(text, "f.gguf"); }); };
  CHECK(bytes("") == "not a GGUF file: it begins with \"\": f.gguf: give a GGUF file");
  CHECK(holds(bytes("PK\x03\x04 and so on, for more than a header"), "it begins with \"PK\\x03\\x04\""));
  CHECK(holds(bytes("GGUF\3"), "the file ends within its header"));
  const std::string good = small_gguf().bytes();
  for (size_t end = 0; end < good.size() - 12; end++) {  // the last 12 bytes are padding
    CAPTURE(end);
    CHECK(bytes(good.substr(0, end)).size() > 0);
  }
  CHECK(bytes(good.substr(0, good.size() - 12)).empty());

  check("not a GGUF file: it begins with \"GGML\"", [](Draft& d) { d.magic = "GGML"; });
  check("GGUF version 0, expected 2 or 3", [](Draft& d) { d.version = 0; });
  check("GGUF version 1, expected 2 or 3", [](Draft& d) { d.version = 1; });
  check("GGUF version 4, expected 2 or 3", [](Draft& d) { d.version = 4; });
  check("a big-endian GGUF file", [](Draft& d) { d.version = 3u << 24; });
  check("the file says that it has 1000002 keys", [](Draft& d) { d.more_keys = 1000000; });
  check("the file says that it has 1 keys", [](Draft& d) {
    d = Draft();
    d.more_keys = 1;
  });
  check("the file says that it has 9223372036854775809 tensors",
        [](Draft& d) { d.more_tensors = std::numeric_limits<int64_t>::max(); });
  check("the metadata name a.number twice", [](Draft& d) { d.keys.push_back(whole("a.number", 7)); });
  check("a.number has type number 13, unknown", [](Draft& d) { d.key("a.number").kind = 13; });
  check("a.number is a list of lists",
        [](Draft& d) { d.set(list("a.number", uint32_t(GgufKind::list), 1, raw(uint32_t(0)) + raw(uint64_t(0)))); });
  check("a.number has type number 77, unknown", [](Draft& d) { d.set(list("a.number", 77, 0, "")); });
  check("a.number has a flag 2, expected 0 or 1", [](Draft& d) { d.set(key_of("a.number", GgufKind::flag, "\x02")); });
  check("a.number has a flag 255", [](Draft& d) { d.set(list("a.number", uint32_t(GgufKind::flag), 2, "\x01\xFF")); });
  for (GgufKind kind : {GgufKind::u8, GgufKind::f64, GgufKind::text})
    for (uint64_t count : {~uint64_t(0), uint64_t(1) << 61, uint64_t(1) << 40, uint64_t(500)})
      check("a.number has a length of " + std::to_string(count) + ", more than the",
            [&](Draft& d) { d.set(list("a.number", uint32_t(kind), count, "")); });
  check("a.number has a length of 18446744073709551608, more than the",
        [](Draft& d) { d.set(key_of("a.number", GgufKind::text, raw(~uint64_t(7)))); });
  check("key 2 of the metadata has 65536 bytes, at most 65535", [](Draft& d) { d.keys[1].name.assign(65536, 'k'); });
  check("an escape \\n in it", [](Draft& d) {
    d.set(whole("an escape \n in it", 1));
    d.keys.push_back(whole("an escape \n in it", 1));
  });
}

TEST_CASE("gguf: a tensor that is not in the file, or of a type that is not read, is refused") {
  const auto check = [](const std::string& part, const Change& change) {
    const std::string message = complaint(small_gguf(), change);
    CAPTURE(message);
    CHECK(holds(message, part));
    CHECK(holds(message, ": f.gguf: "));
  };
  check("two tensors are called a", [](Draft& d) { d.tensors[1].name = "a"; });
  check("the name of tensor 2 has 65 bytes, at most 64", [](Draft& d) { d.tensors[1].name.assign(65, 'n'); });
  check("tensor a has 0 dimensions, expected 1 to 4", [](Draft& d) { d.tensors[0].shape = {}; });
  check("tensor a has 5 dimensions, expected 1 to 4", [](Draft& d) { d.tensors[0].shape = {1, 1, 1, 1, 6}; });
  check("tensor a has a dimension of 0", [](Draft& d) { d.tensors[0].shape = {6, 0}; });
  check("tensor a has a shape larger than the file", [](Draft& d) { d.tensors[0].shape = {1000}; });
  for (uint64_t huge : {uint64_t(1) << 32, uint64_t(1) << 62, ~uint64_t(0)})
    check("tensor a has a shape larger than the file", [&](Draft& d) { d.tensors[0].shape = {huge, huge, huge}; });
  check("tensor a has a shape larger than the file", [](Draft& d) {  // of 2^64 numbers, and so of 0
    d.tensors[0] = floats("a", {65536, 2});
    d.tensors[0].shape = {65536, 65536, 65536, 65536};
  });
  const std::pair<uint32_t, const char*> types[] = {{10, "type Q2_K:"},   {15, "type Q8_K:"},
                                                    {23, "type IQ4_XS:"}, {39, "type MXFP4:"},
                                                    {5, "type Q4_3:"},    {26, "type I32:"},
                                                    {41, "type Q1_0:"},   {42, "type number 42:"},
                                                    {28, "type F64:"},    {~0u, "type number 4294967295:"}};
  for (const auto& [number, name] : types) {
    const uint32_t type = number;
    check(std::string("tensor b has ") + name, [&](Draft& d) { d.tensors[1].type = type; });
  }
  check("tensor b of type Q8_0 has 5 columns, expected a multiple of 32",
        [](Draft& d) { d.tensors[1].type = uint32_t(GgufType::Q8_0); });
  check("tensor b of type Q6_K has 32 columns, expected a multiple of 256", [](Draft& d) {
    d.tensors[1] = {"b", uint32_t(GgufType::Q6_K), {32, 8}, std::string(210, '\0')};
  });
  check("tensor a lies at offset 4, not a multiple of 32", [](Draft& d) { d.tensors[0].shift = 4; });
  check("tensor b has 20 bytes at offset 64, but the file has only 64 bytes of tensors",
        [](Draft& d) { d.tensors[1].shift = 32; });
  check("tensor b has 20 bytes at offset 18446744073709551584, but the file has only 64 bytes",
        [](Draft& d) { d.tensors[1].shift = -64; });
  check("tensor b has 20 bytes at offset 9223372036854775808, but the file has only 64 bytes",
        [](Draft& d) { d.tensors[1].shift = std::numeric_limits<int64_t>::max() - 31; });
  check("overlaps tensor", [](Draft& d) { d.tensors[1].shift = -32; });
  check("tensor c overlaps tensor b", [](Draft& d) {
    d.tensors[1] = floats("b", {9});
    d.tensors.push_back(floats("c", {1}));
    d.tensors.back().shift = -32;
  });
  for (uint32_t alignment : {0u, 4u, 24u, 1u << 31})
    check("general.alignment is " + std::to_string(alignment) + ", expected ",
          [&](Draft& d) { d.set(whole("general.alignment", alignment)); });
  check("general.alignment is \"32\", expected a whole number",
        [](Draft& d) { d.set(words("general.alignment", "32")); });
  check("general.quantization_version is 1, expected 2 to 2", [](Draft& d) {
    d.tensors = {{"q", uint32_t(GgufType::Q8_0), {32}, std::string(34, '\0')}};
    d.set(whole("general.quantization_version", 1));
  });
  CHECK(
      complaint(small_gguf(), [](Draft& d) { d.set(whole("general.quantization_version", 1)); }).empty());  // no blocks
  CHECK(complaint(small_gguf(), [](Draft& d) {
          d.tensors[1].shift = 32;
          d.tensors.push_back(floats("c", {1}));
          d.tensors[2].shift = -32;
        }).empty());  // the order in the list is not that in the file
}

TEST_CASE("gguf: blocks become floats as the format says") {
  const uint16_t half = 0x3800, quarter = 0xB400;  // 0.5, -0.25
  std::string q8 = raw(half), q4 = raw(half), q41 = raw(half) + raw(quarter);
  for (int i = 0; i < 32; i++) q8 += char(int8_t(i == 31 ? -128 : 4 * i));
  for (int i = 0; i < 16; i++) {
    q4 += char(i | (15 - i) << 4);
    q41 += char(i | (15 - i) << 4);
  }
  Draft draft;
  draft.tensors = {{"q8", uint32_t(GgufType::Q8_0), {64}, q8 + std::string(34, '\0')},
                   {"q4", uint32_t(GgufType::Q4_0), {32, 2}, std::string(18, '\0') + q4},
                   {"q41", uint32_t(GgufType::Q4_1), {32}, q41},
                   {"f16", uint32_t(GgufType::F16), {3}, raw(half) + raw(quarter) + raw(uint16_t(1))},
                   {"bf16", uint32_t(GgufType::BF16), {2}, raw(uint16_t(0x3F80)) + raw(uint16_t(0xC040))},
                   {"f32", uint32_t(GgufType::F32), {2}, raw(1.5f) + raw(-0.0f)}};
  const GgufFile file = parse_gguf(draft.bytes(), "f.gguf");
  const std::vector<float> x8 = dequantized(file.tensor("q8")), x41 = dequantized(file.tensor("q41"));
  for (int i = 0; i < 31; i++) CHECK(x8[size_t(i)] == 2.0f * float(i));
  CHECK(x8[31] == -64);
  CHECK(x8[32] == 0);
  const GgufTensor& q = file.tensor("q4");
  const std::vector<float> x4 = dequantized(q);
  for (int i = 0; i < 16; i++) {
    CHECK(x4[size_t(i)] == 0);
    CHECK(x4[size_t(32 + i)] == 0.5f * float(i - 8));
    CHECK(x4[size_t(48 + i)] == 0.5f * float(7 - i));
    CHECK(x41[size_t(i)] == 0.5f * float(i) - 0.25f);
    CHECK(x41[size_t(16 + i)] == 0.5f * float(15 - i) - 0.25f);
  }
  CHECK(dequantized(file.tensor("f16")) == std::vector<float>{0.5f, -0.25f, 0x1p-24f});
  CHECK(dequantized(file.tensor("bf16")) == std::vector<float>{1, -3});
  CHECK(std::signbit(dequantized(file.tensor("f32"))[1]));

  CHECK(q.bytes == 36);
  CHECK(q.size() == 64);
  const auto block_of = [](const GgufTensor& tensor, size_t place) {
    IntegerBlock block{};
    visit_blocks(tensor.type, [&](auto its) { block = integer_block<decltype(its)>(tensor, place); });
    return block;
  };
  const IntegerBlock second = block_of(q, 1);
  CHECK(second.scale[0] == 0.5f);
  CHECK(second.codes[1] == 1 - 8);
  CHECK(second.codes[17] == 14 - 8);
  CHECK(block_of(file.tensor("q41"), 0).min == -0.25f);
  CHECK(block_of(file.tensor("q8"), 0).codes[31] == -128);

  float part[32];
  dequantize(q, 32, 32, part);  // a row
  CHECK(memcmp(part, x4.data() + 32, sizeof part) == 0);
  dequantize(q, 64, 0, part);
  dequantize(file.tensor("f16"), 1, 2, part);
  CHECK(part[0] == -0.25f);
  const std::pair<size_t, size_t> wrong[] = {{16, 32}, {0, 16}, {64, 32}, {96, 0}, {32, ~size_t(31)}};
  for (const auto& [first, n] : wrong) {
    const size_t begin = first, count = n;
    CHECK(holds(message_of([&] { dequantize(q, begin, count, part); }), "no whole blocks"));
  }
}

TEST_CASE("gguf: all 65,536 halves") {
  for (uint32_t bits = 0; bits < 65536; bits++) {
    const uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float x = half_to_float(uint16_t(bits));
    const double size = exponent ? std::ldexp(1024 + fraction, int(exponent) - 25) : std::ldexp(fraction, -24);
    bool right = std::signbit(x) == (bits >> 15);
    if (exponent == 31) right = right && (fraction ? std::isnan(x) : std::isinf(x));
    else right = right && std::fabs(double(x)) == size;
    if (!right) FAIL_CHECK("half " << bits << " became " << x);
  }
}

TEST_CASE("gguf: the sizes of a Llama model") {
  const Config h = read_gguf_header(parse_gguf(llama_gguf().bytes(), "f.gguf"));
  CHECK(h.vocab_size == 5);
  CHECK(h.block_size == 16);
  CHECK(h.n_layer == 2);
  CHECK(h.n_embd == 4);
  CHECK(h.n_inner == 6);
  CHECK(h.n_head == 2);
  CHECK(h.n_kv_head == 1);
  CHECK(h.head_dim == 2);
  CHECK(h.norm_epsilon == 1e-5f);
  CHECK(h.rope_theta == 10000);
  CHECK(h.tied);

  Draft other = llama_gguf();  // heads of a size that is not C / H, a head of its own, and keys that ask for nothing
  for (const Key& key :
       {whole("llama.attention.key_length", 4), whole("llama.attention.value_length", 4), whole("llama.vocab_size", 5),
        whole("llama.rope.dimension_count", 4), real("llama.rope.freq_base", 5e5f), whole("llama.expert_count", 0),
        words("llama.rope.scaling.type", "none"), real("llama.rope.scaling.factor", 1),
        whole("llama.rope.scaling.original_context_length", 99), words("general.type", "model"),
        key_of("llama.attention.causal", GgufKind::flag, "\x01"), whole("some.other", 1)})
    other.set(key);
  for (const std::string layer : {"blk.0.", "blk.1."}) {
    other.tensor(layer + "attn_q.weight") = floats(layer + "attn_q.weight", {4, 8});
    other.tensor(layer + "attn_k.weight") = floats(layer + "attn_k.weight", {4, 4});
    other.tensor(layer + "attn_v.weight") = floats(layer + "attn_v.weight", {4, 4});
    other.tensor(layer + "attn_output.weight") = floats(layer + "attn_output.weight", {8, 4});
  }
  other.tensors.push_back(floats("output.weight", {4, 5}));
  const Config own = read_gguf_header(parse_gguf(other.bytes(), "f.gguf"));
  other.set(real("llama.rope.scaling.factor", 8)), other.set(words("llama.rope.scaling.type", "linear"));
  other.set(whole("llama.attention.sliding_window", 10));
  const Config scaled = read_gguf_header(parse_gguf(other.bytes(), "f.gguf"));
  CHECK(scaled.rope_factors == std::vector<float>(2, 8.0f));
  CHECK(scaled.span == 10);
  CHECK(scaled.block_size == own.block_size);
  CHECK(own.head_dim == 4);
  CHECK(own.rope_theta == 5e5f);
  CHECK(!own.tied);

  Draft odd = llama_gguf();  // other ways to say the same
  odd.set(list("llama.attention.head_count_kv", uint32_t(GgufKind::u8), 2, "\x01\x01"));
  odd.set(whole("llama.rope.freq_base", 10000));
  odd.tensors.push_back(floats("blk.0.attn_q.bias", {4}));
  std::fill(odd.tensors.back().data.begin(), odd.tensors.back().data.end(), '\0');
  odd.set(whole("llama.attention.sliding_window", 1000));
  const Config same = read_gguf_header(parse_gguf(odd.bytes(), "f.gguf"));
  CHECK(same.n_kv_head == h.n_kv_head);
  CHECK(same.rope_theta == h.rope_theta);
  CHECK(same.span == 0);  // every key is seen
  CHECK(parameter_count(same) == parameter_count(h));

  CHECK(llama_complaint([](Draft& d) { d.remove("tokenizer.ggml.tokens"); }).empty());
  CHECK(holds(llama_complaint([](Draft& d) { d.remove("llama.attention.head_count_kv"); }),
              "tensor blk.0.attn_k.weight has shape (2, 4), expected (4, 4)"));  // as many as heads
}

TEST_CASE("gguf: another architecture, feature or tensor is refused by name") {
  const auto check = [](const std::string& part, const Change& change) {
    const std::string message = llama_complaint(change);
    CAPTURE(message);
    CHECK(message.find(part) == 0);
    CHECK(holds(message, ": f.gguf: "));
  };
  check("a model of the architecture \"mamba\", expected llama, qwen2, qwen3 or gpt2",
        [](Draft& d) { d.set(words("general.architecture", "mamba")); });
  check("the metadata lack general.architecture", [](Draft& d) { d.remove("general.architecture"); });
  check("a file of type \"adapter\"", [](Draft& d) { d.set(words("general.type", "adapter")); });
  check("one part of a model in several files", [](Draft& d) { d.set(whole("split.count", 2)); });
  check("llama.new.thing is 3, and its meaning is not known", [](Draft& d) { d.set(whole("llama.new.thing", 3)); });
  const std::pair<Key, const char*> features[] = {
      {real("llama.rope.scaling.factor", -8), "a rotary position's factor is not above 0"},
      {real("llama.rope.scale_linear", -2), "a rotary position's factor is not above 0"},
      {whole("llama.expert_count", 8), "llama.expert_count is 8: a mixture of experts cannot be computed"},
      {whole("llama.expert_used_count", 2), "llama.expert_used_count is 2: a mixture of experts"},
      {key_of("llama.attention.causal", GgufKind::flag, std::string(1, '\0')), "llama.attention.causal is false"},
      {real("llama.attention.clamp_kqv", 8), "llama.attention.clamp_kqv is 8"},
      {real("llama.attention.max_alibi_bias", 8), "llama.attention.max_alibi_bias is 8: ALiBi"},
      {real("llama.attn_logit_softcapping", 50), "llama.attn_logit_softcapping is 50"},
      {real("llama.final_logit_softcapping", 30), "llama.final_logit_softcapping is 30"},
      {real("llama.logit_scale", 2), "llama.logit_scale is 2"},
      {real("llama.embedding_scale", 2), "llama.embedding_scale is 2"},
      {real("llama.residual_scale", 2), "llama.residual_scale is 2"},
      {key_of("llama.use_parallel_residual", GgufKind::flag, "\x01"), "llama.use_parallel_residual is true"},
      {words("llama.tensor_data_layout", "reference"), "llama.tensor_data_layout is \"reference\": rotary rows"}};
  for (const auto& [key, message] : features) {
    const Key& feature = key;
    check(message, [&](Draft& d) { d.set(feature); });
  }
  check("llama.rope.scaling.type is \"yarn\": such positions cannot be computed", [](Draft& d) {
    d.set(words("llama.rope.scaling.type", "yarn"));
    d.set(real("llama.rope.scaling.factor", 8));
  });
  check("tensor rope_freqs.weight has shape (4), expected 1 numbers of type F32",
        [](Draft& d) { d.tensors.push_back(floats("rope_freqs.weight", {4})); });
  const std::pair<const char*, const char*> tensors[] = {{"blk.0.attn_q.bias", "biases"},
                                                         {"rope_factors_long.weight", "positions scaled in another"},
                                                         {"blk.1.ffn_gate_inp.weight", "a mixture of experts"},
                                                         {"blk.1.ffn_up_exps.weight", "a mixture of experts"},
                                                         {"blk.0.attn_q_norm.weight", "norms of queries and keys"},
                                                         {"blk.0.attn_qkv.weight", "queries, keys and values in one"},
                                                         {"blk.2.attn_norm.weight", "no part of such a model"}};
  for (const auto& [name, feature] : tensors) {
    const char* const tensor = name;
    check(std::string("tensor ") + name + " is not expected (" + feature,
          [&](Draft& d) { d.tensors.push_back(floats(tensor, {4})); });
  }
}

TEST_CASE("gguf: sizes that disagree, and tensors that are missing, are refused") {
  const auto check = [](const std::string& part, const Change& change) {
    const std::string message = llama_complaint(change);
    CAPTURE(message);
    CHECK(message.find(part) == 0);
    CHECK(holds(message, ": f.gguf: "));
  };
  for (const char* key : {"context_length", "embedding_length", "block_count", "feed_forward_length",
                          "attention.head_count", "attention.layer_norm_rms_epsilon"})
    check(std::string("the metadata lack llama.") + key, [&](Draft& d) { d.remove(std::string("llama.") + key); });
  for (const char* key : {"context_length", "embedding_length", "block_count", "feed_forward_length",
                          "attention.head_count", "attention.head_count_kv", "attention.key_length"})
    check(std::string("llama.") + key + " is 0, expected 1 to 2147483647",
          [&](Draft& d) { d.set(whole(std::string("llama.") + key, 0)); });
  check("llama.attention.head_count_kv is a list of 2 whole numbers",
        [](Draft& d) { d.set(list("llama.attention.head_count_kv", uint32_t(GgufKind::u8), 2, "\x01\x02")); });
  check("llama.attention.head_count_kv is 3, no divisor of the 2 heads",
        [](Draft& d) { d.set(whole("llama.attention.head_count_kv", 3)); });
  check("llama.embedding_length is 5, no multiple of the 2 heads",
        [](Draft& d) { d.set(whole("llama.embedding_length", 5)); });
  check("heads have 1 channels, expected an even number",
        [](Draft& d) { d.set(whole("llama.attention.key_length", 1)); });
  check("n_head * head_dim is 2147483644, expected at most 262144",  // with keys and values more than an int holds
        [](Draft& d) { d.set(whole("llama.attention.key_length", 1073741822)); });
  check("n_head * head_dim is 4611686011984936962, expected at most 262144", [](Draft& d) {
    for (const char* key : {"head_count", "head_count_kv"})
      d.set(whole(std::string("llama.attention.") + key, INT_MAX));
    d.set(whole("llama.attention.key_length", INT_MAX - 1));
  });
  check("llama.rope.dimension_count is 4, expected the 2 channels of a head",
        [](Draft& d) { d.set(whole("llama.rope.dimension_count", 4)); });
  check("llama.attention.value_length is 4, expected the 2 channels of a head",
        [](Draft& d) { d.set(whole("llama.attention.value_length", 4)); });
  check("llama.attention.layer_norm_rms_epsilon is not above 0",
        [](Draft& d) { d.set(real("llama.attention.layer_norm_rms_epsilon", 0)); });
  for (double base : {-1.0, 1e-50, 1e50})  // as floats -1, 0, infinite
    check("llama.rope.freq_base is not above 0",
          [&](Draft& d) { d.set(key_of("llama.rope.freq_base", GgufKind::f64, raw(base))); });
  check("llama.block_count is 1000000, but the file has 20 tensors",
        [](Draft& d) { d.set(whole("llama.block_count", 1000000)); });
  check("tensor blk.2.attn_k.weight is missing", [](Draft& d) { d.set(whole("llama.block_count", 3)); });
  check("llama.vocab_size is 6, but token_embd.weight has 5 rows",
        [](Draft& d) { d.set(whole("llama.vocab_size", 6)); });
  check("the tokenizer has 4 tokens, but token_embd.weight has 5 rows",
        [](Draft& d) { d.set(list("tokenizer.ggml.tokens", uint32_t(GgufKind::text), 4, tokens(4))); });
  check("tensor token_embd.weight is missing", [](Draft& d) { d.remove("token_embd.weight"); });
  check("tensor token_embd.weight has shape (20), expected (tokens, channels)",
        [](Draft& d) { d.tensor("token_embd.weight").shape = {20}; });
  check("tensor output_norm.weight is missing", [](Draft& d) { d.remove("output_norm.weight"); });
  check("tensor blk.1.ffn_down.weight is missing", [](Draft& d) { d.remove("blk.1.ffn_down.weight"); });
  for (const char* name :
       {"attn_norm", "ffn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"})
    check(std::string("tensor blk.1.") + name + ".weight has shape (2, 2), expected (", [&](Draft& d) {
      const std::string tensor = std::string("blk.1.") + name + ".weight";
      d.tensor(tensor) = floats(tensor, {2, 2});
    });
  check("tensor output.weight has shape (4, 5), expected (5, 4)", [](Draft& d) {
    d.tensors.push_back(floats("output.weight", {5, 4}));
  });
}

TEST_CASE("gguf: the order of rotary rows") {
  // Two heads of six channels in Hugging Face's order, reordered as the converters do it: reshape(H, 2, D / 2),
  // swapaxes(1, 2).
  constexpr int H = 2, D = 6;
  std::vector<int64_t> reordered;
  for (int h = 0; h < H; h++)
    for (int i = 0; i < D / 2; i++)
      for (int s = 0; s < 2; s++) reordered.push_back((h * 2 + s) * (D / 2) + i);
  CHECK(reordered == std::vector<int64_t>{0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11});
  for (int64_t row = 0; row < H * D; row++) CHECK(hugging_face_row(row, D) == reordered[size_t(row)]);
  CHECK(hugging_face_row(64 + 63, 64) == 64 + 63);
  CHECK(hugging_face_row(64 + 1, 64) == 64 + 32);
}

TEST_CASE("gguf: files on the disk") {
  const Folder folder;
  const std::string good = folder.file("good.gguf", llama_gguf().bytes()), bytes = llama_gguf().bytes();
  const GgufFile file = read_gguf(good);
  CHECK(file.path == good);
  CHECK(file.size == bytes.size());
  CHECK(read_gguf_header(file).n_layer == 2);
  CHECK(dequantized(file.tensor("token_embd.weight"))[19] == 19.0f / 8);
  const auto wrong = [](const std::string& path) { return error_of([&] { read_gguf(path); }); };
  CHECK(holds(wrong(folder.file("empty", "")), "not a GGUF file: it begins with \"\": " + folder.path));
  CHECK(holds(wrong(folder.file("short", "GGUF\3")), "the file ends within its header: "));
  CHECK(holds(wrong(folder.file("cut", bytes.substr(0, bytes.size() - 100))), "bytes of tensors: "));
  CHECK(holds(wrong(folder.path), "cannot read the file: "));
  CHECK(holds(wrong(folder.file("none")), "No such file"));
  CHECK(holds(wrong("/dev/null"), "a pipe or a device, where a file of a model is due: /dev/null: "));
}

// Kilobytes of memory under this process's map of a file.
static int resident(const std::string& path) {
  std::ifstream maps("/proc/self/smaps");
  bool its = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(" /") != std::string::npos) its = line.find(path) != std::string::npos;
    if (its && line.compare(0, 4, "Rss:") == 0) return std::stoi(line.substr(4));
  }
  return -1;
}

TEST_CASE("gguf: memory under a file is given back, and its numbers stay") {
  const Folder folder;
  Draft draft = llama_gguf();
  draft.tensors[0].shape = {1024, 1024};
  draft.tensors[0].data.assign(size_t(4) << 20, '0');
  const std::string path = folder.file("large.gguf", draft.bytes());
  const GgufFile file = read_gguf(path);
  const GgufTensor& large = file.tensors[0];
  const std::vector<float> numbers = dequantized(large);
  CHECK(resident(path) >= 4096);
  file.release();
  CHECK(resident(path) == 0);
  CHECK(dequantized(large) == numbers);
  const GgufFile copy = parse_gguf(draft.bytes(), "f.gguf");  // no disk has it
  copy.release();
  CHECK(dequantized(copy.tensors[0]) == numbers);
}

// ---------------------------------------------------------------------------------------------------------------
// Mutations

namespace {

// A Llama model with rows of 32 channels, or 256, and blocks of most types.
Draft mixed() {
  Draft draft = llama_gguf();
  draft.keys[2] = whole("llama.embedding_length", 32);
  draft.keys[4] = whole("llama.feed_forward_length", 256);
  draft.keys.push_back(list("tokenizer.ggml.scores", uint32_t(GgufKind::f32), 2, raw(0.5f) + raw(-1.0f)));
  draft.keys.push_back(list("tokenizer.ggml.token_type", uint32_t(GgufKind::i32), 2, raw(1) + raw(3)));
  draft.keys.push_back(key_of("tokenizer.ggml.add_bos_token", GgufKind::flag, "\x01"));
  draft.set(whole("llama.block_count", 1));
  const GgufType types[] = {GgufType::Q8_0, GgufType::F32,  GgufType::F16,  GgufType::BF16,
                            GgufType::Q4_0, GgufType::Q4_1, GgufType::Q4_0, GgufType::F16,
                            GgufType::Q5_0, GgufType::Q5_1, GgufType::Q4_K};
  const std::vector<uint64_t> shapes[] = {{32, 5},  {32},     {32},      {32},      {32, 32}, {32, 32},
                                          {32, 16}, {32, 16}, {32, 256}, {32, 256}, {256, 32}};
  const size_t bytes[] = {34, 128, 64, 64, 18, 20, 18, 64, 22, 24, 18};  // of 32 numbers
  draft.tensors.resize(std::size(types));
  for (size_t i = 0; i < draft.tensors.size(); i++) {
    Part& tensor = draft.tensors[i];
    tensor.type = uint32_t(types[i]);
    tensor.shape = shapes[i];
    size_t numbers = 1;
    for (uint64_t size : tensor.shape) numbers *= size;
    tensor.data.assign(numbers / 32 * bytes[i], char(0x30 + i));
  }
  return draft;
}

void write_number(std::string& bytes, size_t at, uint64_t number, size_t width) {
  if (at < bytes.size()) memcpy(&bytes[at], &number, std::min(width, bytes.size() - at));
}

// One change: of bits, mostly in the header; of the length; of a piece that is lost or doubled; of one of the header's
// numbers, to an extreme one.
void mutate(std::string& bytes, Random& random, const Draft& draft) {
  if (bytes.empty()) return;
  const size_t at = below(random, random() % 8 ? std::min(draft.header, bytes.size()) : bytes.size());
  const size_t span = 1 + below(random, std::min<size_t>(bytes.size() - at, 64));
  switch (below(random, 10)) {
    case 0:
    case 1:
      bytes[at] = char(bytes[at] ^ 1 << below(random, 8));
      break;
    case 2:
      bytes[at] = char(random());
      break;
    case 3:
      bytes.resize(random() % 2 ? at : below(random, bytes.size()));
      break;
    case 4:
      bytes.erase(at, span);
      break;
    case 5:
      bytes.insert(at, bytes.substr(below(random, bytes.size()), span));
      break;
    default: {
      const uint64_t size = bytes.size(), near = below(random, 5) - 2;
      const uint64_t extremes[] = {0,
                                   1,
                                   2,
                                   ~uint64_t(0),
                                   uint64_t(1) << 63,
                                   uint64_t(1) << 62,
                                   ~0u,
                                   1ull << 32,
                                   1ull << 31,
                                   1ull << 61,
                                   1ull << 60,
                                   (1ull << 63) - 1,
                                   size + near,
                                   size / 4 + near,
                                   size / 8 + near,
                                   size - draft.header,
                                   32,
                                   random()};
      const size_t place = draft.numbers[below(random, draft.numbers.size())];
      write_number(bytes, place, extremes[below(random, std::size(extremes))], random() % 2 ? 8 : 4);
    }
  }
}

// Reads all that there is in a file: decodes every value, the sizes, and every tensor.
void use(const GgufFile& file) {
  for (const auto& [key, value] : file.metadata) {
    shown_value(value);
    if (value.list && value.kind == GgufKind::text) file.texts(key);
    if (value.list && value.kind == GgufKind::i32) file.integers(key, INT32_MIN, INT32_MAX);
  }
  for (const GgufTensor& tensor : file.tensors) {
    if (tensor.bytes > file.size) throw std::logic_error("a tensor larger than its file: " + tensor.name);
    dequantized(tensor);
  }
  read_gguf_header(file);
}

// The same of a file whose tensors may have any type: what there is to say of it.
void look_at(const GgufFile& file) {
  for (const GgufTensor& tensor : file.tensors) {
    if (tensor.bytes > file.size) throw std::logic_error("a tensor larger than its file: " + tensor.name);
    if (tensor.size() == 0 || type_name(tensor.type).empty()) throw std::logic_error("nothing to say of a tensor");
  }
}

// What a message is about: without its numbers, and what follows the file's name.
std::string kind_of(const std::string& message) {
  std::string kind;
  for (char c : message.substr(0, message.find(": m.gguf")))
    if (c < '0' || c > '9') kind += c;
  return kind;
}

}  // namespace

TEST_CASE("gguf: types that are not read may be looked at: a tensor then reaches to the next") {
  Draft draft = small_gguf();
  draft.tensors = {{"a", 10, {256, 2}, std::string(288, 'x')}, floats("b", {5}), {"c", 99, {8}, std::string(64, 'x')}};
  CHECK(holds(error_of([&] { parse_gguf(draft.bytes(), "f.gguf"); }), "tensor a has type Q2_K: f.gguf: give a file"));
  const GgufFile file = parse_gguf(draft.bytes(), "f.gguf", GgufTypes::any);
  REQUIRE(file.tensors.size() == 3);
  CHECK(type_name(file.tensors[0].type) == "Q2_K");
  CHECK(!is_readable(file.tensors[0].type));
  CHECK(file.tensors[0].bytes == 288);
  CHECK(file.tensors[0].size() == 512);
  CHECK(file.tensors[0].shape == std::vector<int64_t>{2, 256});
  CHECK(is_readable(file.tensors[1].type));
  CHECK(file.tensors[1].bytes == 20);
  CHECK(type_name(file.tensors[2].type) == "type number 99");
  CHECK(file.tensors[2].bytes == 64);
  draft.tensors[2].shift = 32;  // it begins behind its data
  CHECK(parse_gguf(draft.bytes(), "f.gguf", GgufTypes::any).tensors[2].bytes == 32);
  draft.tensors[2].shift = 1 << 20;
  CHECK(holds(error_of([&] { parse_gguf(draft.bytes(), "f.gguf", GgufTypes::any); }), "at offset"));
}

TEST_CASE("gguf: mutations of a file are refused with one line, or read") {
  Draft draft = mixed();
  const std::string good = draft.bytes();
  use(parse_gguf(good, "m.gguf"));  // throws nothing
  const int files = a_tenth() ? 10000 : 100000;
  Random random(20251122 + sweep_seed());
  int loaded = 0;
  std::set<std::string> messages;
  for (int i = 0; i < files; i++) {
    std::string bytes = good;
    for (size_t changes = 1 + below(random, 3); changes > 0; changes--) mutate(bytes, random, draft);
    const DamagedRead result = read_damaged(65536 + 16 * bytes.size(), [&] {
      look_at(parse_gguf(bytes, "m.gguf", GgufTypes::any));
      use(parse_gguf(bytes, "m.gguf"));
    });
    loaded += result.loaded;
    if (!result.loaded) messages.insert(kind_of(result.refused));
    if (!result.wrong.empty()) FAIL("mutation " << i << ": " << result.wrong << "\n" << printable(bytes, 2000));
  }
  INFO(files << " files: " << loaded << " loaded, " << messages.size() << " different errors");
  CHECK(loaded > files / 100);
  CHECK(loaded < files / 2);
  CHECK(messages.size() >= 50);
}
