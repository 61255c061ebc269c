// tests/training/test_command_line.cpp: the command lines of train_gpt and train_drafter: help, presets, outputs.
#include "tests/command_line.h"
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

TEST_CASE("train_gpt, train_drafter: help fits 80 columns and ends with examples") {
  MedusaOptions medusa;
  ParallelOptions parallel;
  for (const std::string& text :
       {help({"--help"}), help_text(medusa_command(medusa)), help_text(parallel_command(parallel))}) {
    CHECK(contains(text, "\nExamples:\n  "));
    for (const std::string& line : split_at(text, '\n')) CHECK_MESSAGE(line.size() <= 80, line);
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
