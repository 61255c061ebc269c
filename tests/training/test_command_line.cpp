// tests/training/test_command_line.cpp: the command lines of train_gpt and train_drafter: help, presets, outputs.
#include "tests/command_line.h"
#include "tests/error_of.h"
#include "training/train_gpt.h"
#include "training/train_medusa.h"
#include "training/train_parallel.h"

using namespace nanospec;

namespace {

bool read(Words words, GptOptions& o) {
  words.insert(words.begin(), "train_gpt");
  std::vector<char*> argv = arguments(words);
  argv.push_back(nullptr);
  return read_flags(int(argv.size()) - 1, argv.data(), o);
}
std::string help(const Words& words) {
  GptOptions o;
  bool goes_on = true;
  const std::string text = captured(1, [&] { goes_on = read(words, o); });
  CHECK(!goes_on);
  return text;
}

}  // namespace

TEST_CASE("train_gpt: a preset's help shows that preset's defaults") {
  const std::string small = help({"--help"}), article = help({"--preset", "article", "--help"}),
                    medium = help({"--help", "--preset=medium"});
  CHECK(contains(small, "--n_embd N              channels, a multiple of the heads (128)"));
  CHECK(contains(small, "updates in all (2000)"));
  CHECK(contains(article, "channels, a multiple of the heads (32)"));
  CHECK(contains(article, "updates in all (120)"));
  CHECK(contains(article, "(article)"));
  CHECK(contains(medium, "the window in tokens, even (256)"));
}

TEST_CASE("train_gpt: a preset's values stand where no flag names another, and the last preset counts") {
  const Folder f;
  GptOptions o;
  CHECK(read({"--n_layer", "3", "--preset", "medium", "--preset", "article", "--data", "x", "--out", f.path}, o));
  CHECK(o.preset == "article");
  CHECK(o.config.n_layer == 3);
  CHECK(o.config.n_embd == 32);
  CHECK(o.config.block_size == 64);
  CHECK(o.max_iters == 120);
  CHECK(contains(BAD_COMMAND_LINE(read({"--preset", "artikel", "--data", "x", "--out", f.path}, o)),
                 "did you mean article"));
  CHECK(contains(BAD_COMMAND_LINE(read({"--preset"}, o)), "a value is missing: --preset"));
}

TEST_CASE("train_gpt: sizes beyond an int's arithmetic are refused, and the longest warm-up begins with a small rate") {
  const Folder f;
  GptOptions o;
  for (const char* n : {"300000000", "2000000000", "2147483647"})
    CHECK(contains(BAD_COMMAND_LINE(read({"--arch", "llama", "--n_embd", n, "--data", "x", "--out", f.path}, o)),
                   std::string("n_embd is ") + n + ", expected 1 to 65536"));
  CHECK(cosine_rate(0, INT_MAX, INT_MAX, 1, 0) == 1 / 2147483648.0);
}

TEST_CASE("train_gpt, train_drafter: help fits 80 columns and ends with examples") {
  MedusaOptions medusa;
  ParallelOptions parallel;
  for (const std::string& text : {help({"--help"}), help_text(medusa.command()), help_text(parallel.command())}) {
    CHECK(contains(text, "\nExamples:\n  "));
    for (const std::string& line : split_at(text, '\n')) CHECK_MESSAGE(line.size() <= 80, line);
  }
}

TEST_CASE("train_gpt: a file of somebody else's that has the name of one of ours stays") {
  const Folder f;
  GptOptions o;
  const std::string data = f.file("text", std::string(3000, 'a') + std::string(3000, 'b'));
  REQUIRE(read({"--data", data, "--out", f.path, "--quiet"}, o));
  const TrainingText text = read_text(o);
  for (const auto& [name, its] : texts_of_model(o.config, text.tokenizer)) {
    const std::string path = f.file(name, its);
    check_names(o, text);  // what a training that was stopped has left
    write_file(path, "{}");
    CHECK(contains(error_of([&] { check_names(o, text); }), "another file has this name: " + path + ": start anew"));
    o.overwrite = true;
    check_names(o, text);
    o.overwrite = false;
    std::filesystem::remove(path);
  }
}

TEST_CASE("train_gpt: an output that would lose something is refused before the training") {
  const Folder f;
  const std::string data = f.file("text", "a text"), model = f.file("m");
  const auto refused = [&](const Words& words) {
    GptOptions o;
    return BAD_COMMAND_LINE(read(words, o));
  };
  CHECK(contains(refused({"--data", data, "--out", model, "--stats", data}), "--stats would write over what --data"));
  CHECK(
      contains(refused({"--data", data, "--out", model, "--stats", model + "/model.safetensors"}), "file of a model"));
  CHECK(contains(refused({"--data", data, "--out", model, "--stats", model}), "are one file"));
  CHECK(contains(refused({"--data", f.file("bigram.safetensors", "text"), "--out", f.path}), "--out would write over"));
  GptOptions o;
  CHECK(read({"--data", data, "--out", model, "--stats", model + "/train.json"}, o));
  CHECK(!std::filesystem::exists(model));
}

TEST_CASE("train_gpt, train_drafter: a run that has nothing to do says so") {
  RunOptions o;
  o.max_iters = 10;
  CHECK(captured(2, [&] { UpdateLoop(o, 9); }) == "");
  CHECK(
      contains(captured(2, [&] { UpdateLoop(o, 10); }), "nothing to do: 10 of 10 updates are made: raise --max_iters"));
}

TEST_CASE("train_gpt: it ends with a command that runs as it stands, whatever the folder is called") {
  const Folder f;
  std::string text;
  for (int i = 0; i < 200; i++) text += "'O Tiger', who sings\n";
  f.file("text", text);
  for (const char* name : {"plain", "it's a \"model\""}) {
    const std::string train = "build/train_gpt --preset article --max_iters 1 --eval_iters 1 --threads 1 --data " +
                              f.file("text") + " --out " + shell_word(f.file(name));
    CHECK(system((train + " 2>" + f.file("said")).c_str()) == 0);
    const std::string said = read_file(f.file("said")), begin = "\nnext: build/nanospec generate --model ";
    const size_t next = said.find(begin);
    REQUIRE(next != std::string::npos);
    CHECK(said.substr(next) == begin + shell_word(f.file(name)) + " --prompt O\n");
    CHECK(system((said.substr(next + 7, said.size() - next - 8) + " --max_new_tokens 1 >/dev/null 2>&1").c_str()) == 0);
    CHECK(system((train + " --overwrite --quiet 2>" + f.file("said")).c_str()) == 0);
    CHECK(read_file(f.file("said")) == "");
  }
  CHECK(next_step("train_drafter", "m", " \xC3\xA9t\xC3\xA9!", "medusa:x y") ==
        "next: nanospec generate --model m --prompt '\xC3\xA9t\xC3\xA9' --drafter 'medusa:x y'\n");
  CHECK(first_word("?!") == "?");
  CHECK(first_word(std::string(18, 'a') + "\xE4\xB8\xAD\xE4\xB8\xAD") == std::string(18, 'a'));
}

TEST_CASE("train_gpt: what an editor put into the text is told, and so is a text of too many characters") {
  const Folder f;
  const auto said = [&](const std::string& text) {
    notes() = Notes();
    const std::string lines = captured(2, [&] { note_marks(text, "t"); });
    notes() = Notes();
    return lines;
  };
  CHECK(said("one\ntwo\rthree\n") == "");
  CHECK(contains(said("\xEF\xBB\xBFone\n"), "note: the text begins with a byte order mark (U+FEFF), which the model"));
  CHECK(contains(said("one\r\ntwo\r\n\r\n"), "note: 3 lines end with CR and LF, and the model learns both: t: tr -d"));
  GptOptions o;
  o.config.block_size = 2;
  o.data = f.file("crlf");
  std::string text = "one\r\ntwo\r\n";
  for (int i = 0; i < 8; i++) text += text;
  write_file(o.data, text);
  CHECK(
      contains(captured(2, [&] { read_text(o); }), " lines end with CR and LF, and the model learns both: " + o.data));
  notes() = Notes();
  text.clear();
  for (int i = 0; i < kBigramMostTokens + 1; i++)
    text += {char(0xE4 + i / 4096), char(0x80 + i / 64 % 64), char(0x80 + i % 64)};
  write_file(o.data, text + text);
  CHECK(error_of([&] { read_text(o); }) ==
        "a text of 8193 different characters, and a bigram table holds at most 8192: " + o.data +
            ": leave out or replace the rarest");
}
