// tests/archive/test_commands.cpp: nanospec compress, decompress and verify, as typed. It needs build/nanospec.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstdlib>

#include "archive/archive.h"
#include "commands/commands.h"
#include "tests/command_line.h"
#include "tests/random.h"
#include "tests/tenth.h"

using namespace nanospec;

namespace {

const std::string kLetters = "abcdefghijklmnopqrstuvwxy \n.,";

// A model of characters with random weights, in a folder; other: of another seed, or another alphabet.
void write_model(const std::string& dir, uint64_t seed, const std::string& letters = kLetters) {
  Config config = small_config(2, 32);
  config.vocab_size = int(letters.size());
  save_model(dir, config, character_tokenizer(letters), loud_weights(config, seed).data());
}

struct Place : Folder {
  std::string model = file("model"), text = file("text", words(700)), archive = file("a.nsz");
  Place() { write_model(model, 1); }
  static std::string words(int n) {
    Chance chance(3);
    std::string all;
    for (int i = 0; i < n; i++) all += kLetters[size_t(chance.below(int(kLetters.size())))];
    return all;
  }
};

// The exit status of build/nanospec; line: what it said on standard error.
int ran(const Folder& place, const std::string& words, std::string* line = nullptr) {
  const std::string said = place.file("said");
  const int status = std::system(("build/nanospec " + words + " >" + place.file("out") + " 2>" + said).c_str());
  REQUIRE_MESSAGE(WIFEXITED(status), "this test needs build/nanospec");
  if (line) *line = read_file(said);
  return WEXITSTATUS(status);
}

// Fails unless it is refused with this status, in one line that has these words, and leaves no file "new".
void refused(const Place& place, const std::string& words, int status, const std::string& why) {
  std::string line;
  CAPTURE(words);
  CHECK(ran(place, words, &line) == status);
  CHECK_MESSAGE(contains(line, why), line);
  CHECK(std::count(line.begin(), line.end(), '\n') == 1);
  for (const std::string& name : place.files()) CHECK(name.compare(0, 3, "new") != 0);
}

}  // namespace

TEST_CASE("archive: compress and decompress as typed: threads, drafters, shapes and blocks change no byte") {
  const Place place;
  const std::string with = " --quiet --model " + place.model, compress = "compress " + place.text + with,
                    decompress = "decompress " + place.archive + with + " -o " + place.file("back");
  REQUIRE(ran(place, compress + " -o " + place.archive + " --threads 1 --stats " + place.file("s.json")) == 0);
  const Json stats = Json::parse(read_file(place.file("s.json")));
  CHECK(stats["bytes"] == 700);
  CHECK(stats["archive_bytes"] == file_bytes(place.archive));
  CHECK(stats["ideal_bits"].get<double>() > 8 * (file_bytes(place.archive) - 100));
  REQUIRE(ran(place, compress + " -o " + place.file("b.nsz") + " --threads 2 --stats " + place.file("s.json")) == 0);
  CHECK(read_file(place.file("b.nsz")) == read_file(place.archive));
  for (const char* how : {"--drafter none", "", "--drafter suffix --shape tree:3x2 --threads 1", "--shape chain:5"}) {
    CAPTURE(how);
    CHECK(ran(place, decompress + " " + how) == 0);
    CHECK(read_file(place.file("back")) == read_file(place.text));
  }
  REQUIRE(ran(place, compress + " -o " + place.archive + " --blocks 5 --dtype bf16 --cache_dtype bf16") == 0);
  CHECK(ran(place, decompress) == 0);
  CHECK(read_file(place.file("back")) == read_file(place.text));
  for (const std::string& bytes : {std::string(), std::string(1, '\0'), std::string("\xFF\x00 a Z", 6)}) {
    write_file(place.text, bytes);
    REQUIRE(ran(place, compress + " -o " + place.archive + " --blocks 3") == 0);
    REQUIRE(ran(place, decompress) == 0);
    CHECK(read_file(place.file("back")) == bytes);
  }
}

TEST_CASE("archive: what does not fit is refused in one line, before a byte is written") {
  const Place place;
  const std::string other = place.file("other"), letters = place.file("letters"), out = " -o " + place.file("new");
  write_model(other, 2);
  write_model(letters, 1, "ABCDEFGHIJKLMNOPQRSTUVWXY \n.,");
  REQUIRE(ran(place, "compress " + place.text + " --quiet --model " + place.model + " -o " + place.archive) == 0);
  const std::string opens = "decompress " + place.archive + " --model ";
  refused(place, opens + other + out, 1, "the archive was made with another model than ");
  refused(place, opens + letters + out, 1, "another model than ");
  refused(place, opens + place.model + out + " --dtype bf16", 1, "was made with --dtype auto, not bf16: ");
  refused(place, opens + place.model + out + " --cache_dtype bf16", 1, "was made with --cache_dtype fp32, not bf16: ");
  refused(place, opens + place.model + out + " --device cuda", 2, "unknown word 'cuda'");
  refused(place, opens + place.model, 2, "a flag is missing");
  refused(place, opens + place.model + " -o " + place.archive, 2, "-o ");
  refused(place, "compress " + place.text + " --model " + place.model + " -o " + place.text, 2, "-o ");
  refused(place, "compress " + place.file("none") + " --model " + place.model + out, 1, "cannot read the file");
  refused(place, "compress " + place.text + " again --model " + place.model + out, 2, "surplus word 'again'");
  refused(place, "compress " + place.text + " --model " + place.model + out + " --blocks 0", 2, "out of range");
  const std::string bytes = read_file(place.archive);
  write_file(place.archive, bytes.substr(0, bytes.size() / 2));
  refused(place, opens + place.model + out, 1, "damaged, or cut");
  // A hash that is made right: what comes out is not the text, and is not written.
  const auto forge = [&](size_t at, const std::string& with) {
    std::string forged = bytes.substr(0, bytes.size() - 8).replace(at, with.size(), with);
    const uint64_t sum = number_of(hash_of(forged));
    write_file(place.archive, forged.append(reinterpret_cast<const char*>(&sum), 8));
  };
  forge(bytes.find("auto"), "\xFF\xFE%{");
  refused(place, opens + place.model + out, 1, "the archive asks for --dtype \\xFF\\xFE%{, which is none");
  const size_t middle = bytes.size() / 2 - 4;
  forge(middle, std::string(1, char(bytes[middle] ^ 16)));
  refused(place, opens + place.model + out + " --quiet", 1, "what comes out is not the text that went in");
}

TEST_CASE("archive: verify finds its model's text, and each token, setting and weight that is another") {
  const Place place;
  const std::string transcript = place.file("t.json"), checks = "verify " + transcript + " --model " + place.model;
  const std::string says =
      "generate --quiet --model " + place.model + " --prompt \"the fox\" --transcript " + transcript;
  for (const char* how :
       {"", "--temperature 0", "--top_k 5 --top_p 0.9 --min_p 0.01", "--temperature 0.123456789",
        "--repetition_penalty 1.3 --presence_penalty 0.5 --frequency_penalty 0.25",
        "--stop e --dtype bf16 --cache_dtype bf16", "--max_new_tokens 0", "--drafter none --seed 9"}) {
    CAPTURE(how);
    REQUIRE(ran(place, says + " --max_new_tokens 90 " + how) == 0);
    std::string line;
    CHECK_MESSAGE(ran(place, checks, &line) == 0, line);
    CHECK(contains(read_file(place.file("out")), "It is this model's text: "));
  }
  REQUIRE(ran(place, says + " --max_new_tokens 80") == 0);
  const Json right = Json::parse(read_file(transcript));
  const auto found = [&](const Json& json, const std::string& why) {
    write_file(transcript, json.dump());
    refused(place, checks, 1, why);
  };
  REQUIRE(right["tokens"].size() == 80);
  for (size_t i = 0; i < 80; i += a_tenth() ? 13 : 1) {
    Json wrong = right;
    wrong["tokens"][i] = (right["tokens"][i].get<int>() + 1 + int(i) % 28) % int(kLetters.size());
    found(wrong, filled("t.json, token {} of 80: it is not this model's text", i + 1));
  }
  for (const auto& [key, value] : std::map<std::string, Json>{{"seed", 2},
                                                              {"temperature", 0.5},
                                                              {"top_k", 3},
                                                              {"top_p", 0.5},
                                                              {"min_p", 0.3},
                                                              {"repetition_penalty", 1.5},
                                                              {"prompt", "the foy"},
                                                              {"frequency_penalty", 1},
                                                              {"dtype", "q4"}}) {
    const std::string its_key = key;
    CAPTURE(its_key);
    Json wrong = right;
    wrong[key] = value;
    found(wrong, "it is not this model's text, or not by these settings");
  }
  Json wrong = right;
  wrong["temperature"] = 0.99999;  // it gives the same text
  found(wrong, "not as it was written, though its text is the model's");
  wrong = right;
  wrong["tokens"][7] = 1000;
  found(wrong, "the text says 1000, which is no token");
  for (const Json& none : {Json(uint64_t(1) << 32), Json(0.5), Json(1e300), Json(INT64_MIN), Json("a")}) {
    wrong = right;
    wrong["tokens"][0] = none;
    found(wrong, none.dump() + " is no token: ");
  }
  wrong = right;
  wrong["temperature"] = 1e-44;
  found(wrong, "too cold");
  wrong = right;
  wrong["tokens"].erase(79);
  found(wrong, "the text is cut");
  wrong = right;
  wrong["text_sha256"] = sha256("");
  found(wrong, "the text has another SHA-256 than its tokens");
  wrong = right;
  wrong["seed"] = "x";
  found(wrong, "'x' is not a whole number");
  for (const auto& item : right.items()) {
    Json lacks = right;
    lacks.erase(item.key());
    found(lacks, "t.json: ");
  }
  found("{}", "t.json: ");

  // A weight: the transcript names the model, and where it does not, the text tells them apart.
  const std::string other = place.file("other");
  Config config = small_config(2, 32);
  config.vocab_size = int(kLetters.size());
  std::vector<float> weights = loud_weights(config, 1);
  weights[weights.size() / 2] += 0.5f;
  save_model(other, config, character_tokenizer(kLetters), weights.data());
  write_file(transcript, right.dump());
  refused(place, "verify " + transcript + " --model " + other, 1, "the text is of another model than ");
  refused(place, "verify " + transcript, 2, "a flag is missing");
  refused(place, says + " --verify rejection --shape chain:3", 2, "a transcript is of one text by --verify match");
}
