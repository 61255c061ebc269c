// tests/archive/test_archive.cpp: any file comes back from its archive, by any tokenizer, drafter, shape, number of
// threads and of blocks; a damaged archive is refused in one line.
//
// Files are drawn anew in each run (tests/tenth.h); `make prove` draws all 2,000, and 20,000 mutated archives.
#include "archive/archive.h"

#include <doctest/doctest.h>

#include <cmath>
#include <deque>

#include "archive/known.h"
#include "commands/losses.h"
#include "drafters/suffix.h"
#include "files/bpe.h"
#include "forest/forest.h"
#include "target.h"
#include "tests/damaged.h"
#include "tests/error_of.h"
#include "tests/mock.h"
#include "tests/random.h"
#include "tests/tenth.h"
#include "tests/tiny_tokenizer.h"

using namespace nanospec;

namespace {

// ---------------------------------------------------------------------------------------------------------------
// Models

struct Kind {
  Tokenizer tokenizer;
  int begin;
  Config config = {};
  std::vector<float> weights = {};
  std::unique_ptr<Target> target(int threads, int seats) const {
    return std::make_unique<Target>(config, weights.data(), Dtype::fp32, false, threads, 65, Dtype::fp32, seats);
  }
};

Tokenizer letters() {
  Tokenizer tokenizer;
  for (char c = 'a'; c <= 'y'; c++) tokenizer.symbols.push_back(std::string(1, c));
  for (const char* more : {" ", "\n", "\xC3\xA9", "\xE2\x80\xA6"}) tokenizer.symbols.push_back(more);
  return tokenizer;
}
Tokenizer composing() {  // into NFC
  Json file = small_file();
  file["normalizer"] = {{"type", "NFC"}};
  BpeParts parts = parse_bpe(file.dump(), "small");
  parts.nfc = true;
  return bpe_tokenizer(parts, "small");
}
Tokenizer sentencepiece() {  // as Llama 2's
  const Json mark = kSpaceMark, stored = parse_json(read_file("tests/files/bpe_pieces.json"), "pieces");
  Json file = stored["tokenizer"];
  const Json prepend = {{"type", "Prepend"}, {"prepend", mark}},
             write = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", mark}},
             read = {{"type", "Replace"}, {"pattern", {{"String", mark}}}, {"content", " "}},
             strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  file["decoder"] = {{"type", "Sequence"}, {"decoders", {read, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}, strip}}};
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", {prepend, write}}};
  return parse_any_tokenizer(file.dump(), "pieces");
}

const std::deque<Kind>& kinds() {
  static const std::deque<Kind> all = [] {
    std::deque<Kind> made;
    made.push_back({letters(), -1});
    made.push_back({bpe_tokenizer(parse_bpe(tiny_file().dump(), "tiny"), "tiny"), -1});
    made.push_back({composing(), 3});
    made.push_back({sentencepiece(), 1});
    for (size_t i = 0; i < made.size(); i++) {
      made[i].config = small_config(1 + int(i % 2), 32);
      made[i].config.vocab_size = made[i].tokenizer.vocab_size();
      made[i].weights = loud_weights(made[i].config, i);
    }
    return made;
  }();
  return all;
}

// ---------------------------------------------------------------------------------------------------------------
// Files

std::string drawn_part(Chance& chance) {
  static const std::string page = read_file("README.md");
  static const char* const words[] = {
      "the",  " a", "\xC3\xA9",     "e\xCC\x81",    "\xE2\x96\x81", "<|im_end|>", "<|endoftext|>",
      "\r\n", "\n", "\xE2\x80\xA6", "\xED\xA0\x80", "</s>",         "<0x0A>",     "\xF0\x9F\x98\x80",
      "  "};
  std::string part;
  const int n = chance.below(40);
  switch (chance.below(6)) {
    case 0:
      for (int i = 0; i < n; i++) part += char(chance.below(256));
      return part;
    case 1:
      return std::string(size_t(8 * n), char(chance.below(3) * 97));
    case 2:
      for (int i = 0; i < n; i++) part += words[chance.below(int(std::size(words)))];
      return part;
    case 3:
      for (int i = 0; i < 4 * n; i++) part += char('a' + chance.below(25));
      return part;
    default:
      return page.substr(size_t(chance.below(int(page.size()))), size_t(3 * n));
  }
}
std::string drawn_file(Chance& chance) {
  std::string text;
  if (chance.below(20) == 0) return text;
  for (int parts = 1 + chance.below(4); parts > 0; parts--) text += drawn_part(chance);
  return chance.below(10) == 0 ? text.substr(0, 1) : text;
}

// ---------------------------------------------------------------------------------------------------------------
// There and back: as commands/compress.cpp does it

struct ArchivedText {
  std::unique_ptr<Drafter> drafter;
  std::vector<int> prompt;
  int n;
  Pick pick;
  std::function<bool()> on;
};
void decode(Target& target, const Shape& shape, std::deque<ArchivedText>& runs) {
  Decoding decoding;
  decoding.shape = shape;
  decoding.knows_noise = false;
  size_t next = 0;
  generate_forest(target, shape, Rule::kMatch, nullptr, [&](int) -> std::unique_ptr<Job> {
    if (next == runs.size()) return nullptr;
    ArchivedText& run = runs[next++];
    auto job = std::make_unique<Job>();
    job->drafter = run.drafter.get();
    job->settings = decoding;
    job->settings.max_new_tokens = run.n;
    job->tokens = run.prompt;
    job->on_token = [&](int) { return run.on(); };
    job->on_end = [](const Stats&) {};
    job->pick = run.pick;
    return job;
  });
}

std::string archived(const Kind& kind, Target& target, const std::string& text, int blocks, double* ideal = nullptr) {
  Archive archive;
  archive.head.blocks = uint32_t(blocks);
  archive.head.sha256 = digest_of(text);
  const int vocab = kind.tokenizer.vocab_size();
  std::deque<BlockWriter> writers;
  std::deque<ArchivedText> runs;
  std::vector<size_t> cuts;
  for (int i = 0; i <= blocks; i++) cuts.push_back(text.size() * size_t(i) / size_t(blocks));
  for (int i = 0; i < blocks; i++) {
    BlockWriter& writer =
        writers.emplace_back(kind.tokenizer, vocab, kind.begin,
                             std::string_view(text).substr(cuts[size_t(i)], cuts[size_t(i) + 1] - cuts[size_t(i)]));
    const int picks = int(writer.tokens().size()) - 1;
    if (picks < 1) continue;
    const auto pick = [&, ideal](const float* logits) {
      const int token = writer.pick(logits);
      if (ideal) *ideal += token_loss(logits, vocab, token) / std::log(2.0);
      return token;
    };
    runs.push_back(
        {std::make_unique<Known>(vocab, writer.tokens()), {writer.tokens()[0]}, picks, pick, [] { return true; }});
  }
  decode(target, parse_shape("chain:15", 15), runs);
  for (int i = 0; i < blocks; i++) {
    BlockWriter& writer = writers[size_t(i)];
    const size_t tokens = writer.tokens().size() - (kind.begin >= 0 && !writer.tokens().empty());
    archive.coded.push_back(writer.finish());
    archive.blocks.push_back(
        {uint32_t(tokens), uint32_t(cuts[size_t(i) + 1] - cuts[size_t(i)]), uint32_t(archive.coded.back().size())});
  }
  return format_archive(archive);
}

std::unique_ptr<Drafter> drafter_of(int kind, int vocab) {
  if (kind == 0) return nullptr;
  if (kind == 1) return std::make_unique<Suffix>(vocab);
  return std::make_unique<RandomDrafter>(vocab);
}
std::string restored(const Kind& kind, Target& target, const std::string& bytes, int drafter,
                     const std::string& shape) {
  const Archive archive = parse_archive(bytes, "file");
  const int vocab = kind.tokenizer.vocab_size();
  std::deque<BlockReader> readers;
  std::deque<ArchivedText> runs;
  for (size_t i = 0; i < archive.blocks.size(); i++) {
    BlockReader& reader = readers.emplace_back(kind.tokenizer, vocab, kind.begin, archive.blocks[i], archive.coded[i]);
    if (reader.left() <= 0) continue;
    runs.push_back({drafter_of(drafter, vocab), reader.prompt(), reader.left(),
                    [&](const float* logits) { return reader.pick(logits); }, [&] { return !reader.damaged(); }});
  }
  decode(target, drafter ? ready_shape(shape, 64) : Shape(), runs);
  std::string text;
  for (BlockReader& reader : readers) text += reader.finish();
  return text;
}

}  // namespace

TEST_CASE("archive: pieces of any file make the file, by every tokenizer") {
  for (const Kind& kind : kinds())
    for (size_t i = 0; i < 400; i++) {
      if (!runs(i, 4)) continue;
      Chance chance(i);
      const std::string text = drawn_file(chance);
      std::string again;
      for (TextPiece piece : pieces_of(kind.tokenizer, text))
        if (piece < 0) again += byte_of(piece);
        else again += kind.tokenizer.decode(piece);
      CHECK(again == text);
    }
  const auto pieces = [](const std::string& text) { return pieces_of(kinds()[0].tokenizer, text); };
  CHECK(pieces("ab") == std::vector<TextPiece>{0, 1});
  std::vector<TextPiece> raw;  // of a stretch of eight bytes, one of which is no token
  for (char byte : std::string("ijklmnoZ")) raw.push_back(raw_piece(byte));
  CHECK(pieces("ijklmnoZ") == raw);
  raw.insert(raw.begin(), {0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(pieces("abcdefghijklmnoZ") == raw);
  CHECK(pieces("") == std::vector<TextPiece>{});
}

TEST_CASE("archive: 2,000 files come back, whatever the drafter, the shape, the threads and the blocks") {
  for (size_t i = 0; i < 2000; i++) {
    if (!runs(i, 40)) continue;
    Chance chance(i + 7000);
    const Kind& kind = kinds()[i % kinds().size()];
    const std::string text = drawn_file(chance);
    const int blocks = chance.below(3) ? 1 : 1 + chance.below(5), threads = 1 + chance.below(3);
    const std::string shape = kAllShapes[chance.below(7)];
    CAPTURE(i);
    CAPTURE(printable(text, 2000));
    const std::string bytes = archived(kind, *kind.target(threads, 1 + chance.below(3)), text, blocks);
    CHECK(archived(kind, *kind.target(1 + threads % 3, blocks), text, blocks) == bytes);
    for (int drafter : {0, 1, 2})
      CHECK(restored(kind, *kind.target(threads, 1 + drafter), bytes, drafter, shape) == text);
  }
}

TEST_CASE("archive: its size is the text's surprise, and a hundredth of a percent, and the head") {
  const std::string page = read_file("README.md");
  for (const Kind& kind : kinds()) {
    double ideal = 0;
    const std::string text = page.substr(0, 4000);
    const BlockWriter counts(kind.tokenizer, kind.tokenizer.vocab_size(), kind.begin, text);
    const std::string bytes = archived(kind, *kind.target(1, 1), text, 1, &ideal);
    const double head = sizeof(ArchiveHead) + sizeof(ArchiveBlock) + 8;
    const double first = kind.begin < 0 ? std::log2(kind.tokenizer.vocab_size() + 1.0) : 0;
    CHECK(counts.raw() == (&kind == &kinds()[0] ? counts.raw() : 0));
    if (counts.raw() > 0) continue;  // escapes cost more
    CHECK(8 * (double(bytes.size()) - head) <= (ideal + first) * 1.0001 + 16);
  }
}

TEST_CASE("archive: bytes that are no text cost at most five percent more than they are") {
  Random random(1);
  std::string noise(20000, ' ');
  for (char& c : noise) c = char(random());
  for (const Kind& kind : kinds()) {
    const std::string bytes = archived(kind, *kind.target(1, 1), noise, 1);
    CHECK(double(bytes.size()) < 1.05 * double(noise.size()));
    CHECK(restored(kind, *kind.target(1, 1), bytes, 0, "") == noise);
  }
}

TEST_CASE("archive: one that is damaged, cut, of another version or none is refused in one line") {
  const Kind& kind = kinds()[0];
  const std::string text = "the quick brown fox jumps over the lazy dog\n",
                    bytes = archived(kind, *kind.target(1, 1), text, 2);
  const auto refused = [](const std::string& file) { return error_of([&] { parse_archive(file, "a.nsz"); }); };
  CHECK(refused(bytes) == "");
  for (size_t i = 0; i < bytes.size(); i++) {
    std::string wrong = bytes;
    wrong[i] = char(wrong[i] ^ 1 << i % 8);
    CHECK(!refused(wrong).empty());
    CHECK(!refused(bytes.substr(0, i)).empty());
  }
  CHECK(!refused(bytes + "x").empty());
  CHECK(holds(refused("PK"), "this is no archive of nanospec"));
  CHECK(holds(refused(bytes.substr(0, bytes.size() - 1)), "damaged, or cut"));
  std::string later = bytes;
  later[4] = 2;
  CHECK(holds(refused(later), "has version 2, and this program reads version 1"));
}

TEST_CASE("archive: 20,000 mutated ones are refused, or end as another text, also with their hash made right") {
  const Kind& kind = kinds()[0];
  const std::unique_ptr<Target> target = kind.target(1, 1);
  std::vector<std::string> good;
  for (const char* text :
       {"the quick brown fox", "a", "", "A 123", "jumps over the lazy dog and the quick brown fox again\n"})
    for (int blocks : {1, 2}) good.push_back(archived(kind, *target, text, blocks));
  int loaded = 0, whole = 0;
  for (size_t i = 0; i < 20000; i++) {
    if (!runs(i)) continue;
    Random random(i);
    std::string bytes = good[below(random, good.size())];
    const bool forged = below(random, 2);
    if (forged) bytes.resize(bytes.size() - 8);
    for (size_t changes = 1 + below(random, 4); changes > 0; changes--) {
      const size_t at = below(random, bytes.size() + 1);
      const size_t kind_of = below(random, 5);
      if (kind_of == 0 && at < bytes.size()) bytes[at] = char(bytes[at] ^ 1 << below(random, 8));
      if (kind_of == 1 && at < bytes.size()) bytes[at] = char(random());
      if (kind_of == 2) bytes.resize(at);
      if (kind_of == 3) bytes.insert(at, bytes.substr(at / 2, below(random, 30)));
      if (kind_of == 4)
        for (size_t k = at; k < std::min(at + 4, bytes.size()); k++) bytes[k] = char(below(random, 2) ? 0xFF : 0);
    }
    if (forged) {
      const uint64_t sum = number_of(hash_of(bytes));
      bytes.append(reinterpret_cast<const char*>(&sum), 8);
    }
    const DamagedRead read = read_damaged(4096 + 16 * bytes.size() + 4 * kSmallVocab * 1024, [&] {
      const Archive archive = parse_archive(bytes, "a.nsz");
      loaded++;
      const std::string text = restored(kind, *target, bytes, 0, "");
      whole += digest_of(text) == archive.head.sha256;
    });
    CAPTURE(i);
    CHECK(read.wrong == "");
  }
  CHECK(loaded > 0);
  CHECK(whole < loaded);
}
