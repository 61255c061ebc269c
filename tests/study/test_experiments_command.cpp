// tests/study/test_experiments_command.cpp: nanospec experiments, over the engine that stands in.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>

#include "commands/commands.h"
#include "study/bench.h"
#include "study/study.h"
#include "tests/command_line.h"
#include "tests/commands/stand_in.h"
#include "tests/error_of.h"
#include "tests/picture.h"

using namespace nanospec;

namespace {
// Two models, of which the engine of these tests asks for no more; returns where the small one lies.
std::string small_model(const Folder& folder) {
  folder.file("model.safetensors", "large");
  std::filesystem::create_directory(folder.file("small"));
  folder.file("small/model.safetensors", "small, and other weights");
  return folder.file("small");
}
}  // namespace

TEST_CASE("experiments: a quick run prints every section and leaves whole files") {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 200; i++) text += "line " + std::to_string(i) + " of a text\n";
  write_file(folder.file("text.txt"), text);
  const std::string small = small_model(folder);
  script = [](const Method& method, int n) {
    if (method.shape == "sequoia") throw std::logic_error("there is no calibration");
    if (method.drafter.substr(0, 4) == "gpt:") throw std::runtime_error("it has other tokens");
    if (method.drafter.substr(0, 8) == "parallel") throw std::runtime_error("it is not trained");
    Generated g = steady(method, n);
    if (method.shape == "chain:2" || method.shape == "chain:4") g.stats.seconds = 0.4;
    if (method.drafter == "suffix+ngram:4") g.stats.seconds = 0.25;
    return g;
  };
  const Words words = {
      "--quick", "--model",         folder.path, "--drafter_model", small, "--data", folder.file("text.txt"),
      "--out",   folder.file("out")};
  const std::string out = run(experiments_command, words);
  for (const char* part :
       {"Experiments: ", "The trained drafter is ngram:4 instead", "budgets: what", "small models fall into loops",
        "rules: of", "biased rule", "lossy rule", "coupling: what", "noise-aware: how", "auto: how", "held-out: what",
        "drafters: what", "left out: parallel", "left out: structured prompts", "sequoia: there is no calibration",
        "build/nanospec experiments --only budgets --model "})
    CHECK_MESSAGE(contains(out, part), part);
  check_quick_tables(out, {"budgets: what", "rules: of", "coupling: what", "noise-aware: how", "auto: how",
                           "held-out: what", "drafters: what"});
  const auto json = [&](const std::string& name) {
    return Json::parse(read_file(folder.file("out/" + name + ".json")));
  };
  for (const char* name : {"budgets", "rules", "coupling", "noise-aware", "auto", "held-out", "drafters"}) {
    CAPTURE(name);
    CHECK(json(name)["machine"].contains("cpu"));
    CHECK(!json(name).contains("roofline"));  // which nobody measured
    const std::string svg = read_file(folder.file("out/" + std::string(name) + ".svg"));
    CHECK(svg.substr(svg.size() - 7) == "</svg>\n");
    CHECK(picture_problem(svg) == "");
    CHECK(read_picture(svg).word(kQuickRun).left > 0);
    const Json file = json(name);
    for (const Json& study : file["studies"]) {
      CHECK(study["prompts"].size() >= 2);
      for (const Json& method : study["methods"]) {
        for (const char* field : {"method", "times_plain", "tokens_per_forward", "nodes_per_forward", "identical"})
          CHECK_MESSAGE(method.contains(field), field);
        REQUIRE(method["samples"].size() == study["repeats"]);
        CHECK(method["samples"][0].size() == study["prompts"].size());
        CHECK(method["samples"][0][0].size() == 4);
      }
    }
  }
  const Json autos = json("auto");
  CHECK(autos["studies"][1]["temperature"] == 0.7);
  for (const Json& row : autos["over_base"]) {
    if (row["shape"] == "auto") CHECK(row["times"][0].get<double>() == doctest::Approx(1));
    if (row["shape"] == "tree:3x2" || row["shape"] == "chain:4")
      CHECK(row["times"][0].get<double>() == doctest::Approx(row["drafter"] == "suffix+ngram:4" ? 1
                                                             : row["shape"] == "chain:4"        ? 1.25
                                                                                                : 1));
    CHECK(row["shape"] != "sequoia");
  }
}

TEST_CASE("experiments: drafters by kind of prompt and temperature") {
  const Decodes on;
  const Folder folder;
  std::string text;
  for (int i = 0; i < 120; i++) text += "a speech of one who says much " + std::to_string(i) + "\n";
  for (int i = 0; i < 20; i++) text += "\nA:\nyes.\n";
  write_file(folder.file("text.txt"), text);
  const std::string small = small_model(folder);
  const std::string out =
      run(experiments_command, {"--quick", "--only", "drafters", "--model", folder.path, "--drafter_model", small,
                                "--data", folder.file("text.txt"), "--out", folder.file("out")});
  for (const char* part :
       {"drafters: what", "prose: ", "structured: ", "small models fall into loops", "gpt:", "drafting"})
    CHECK_MESSAGE(contains(out, part), part);
  CHECK(!contains(out, "NO, from"));
  const Json file = Json::parse(read_file(folder.file("out/drafters.json")));
  CHECK(file["studies"].size() == 6);  // three temperatures, two kinds of prompts
  CHECK(file["studies"][1]["text"] == "structured");
  const std::string svg = read_file(folder.file("out/drafters.svg"));
  CHECK(picture_problem(svg) == "");
}

TEST_CASE("experiments: --only chooses; what is missing is said with what to type") {
  const Folder folder;
  write_file(folder.file("text.txt"), std::string(5000, 'a'));
  write_file(folder.file("short.txt"), "a");
  const std::string small = small_model(folder);
  script = steady;
  const std::string out =
      run(experiments_command, {"--quick", "--only", "rules,coupling", "--model", folder.path, "--drafter_model", small,
                                "--data", folder.file("text.txt"), "--out", folder.file("out")});
  CHECK(contains(out, "rules: of"));
  CHECK(contains(out, "coupling: what"));
  CHECK(!contains(out, "budgets: what"));
  CHECK(!std::filesystem::exists(folder.file("out/budgets.json")));
  bool untold = false;
  for (const Call& call : calls) untold |= contains(call.method, "noise=unknown");
  CHECK(untold);

  const auto attempt = [&](Words words) {
    words.insert(words.begin(), {"experiments", "--out", folder.file("out")});
    std::vector<char*> argv = arguments(words);
    experiments_command(int(argv.size()), argv.data());
  };
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--only", "budget"})), "did you mean budgets?"));
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--drafter", "ngramm:4"})), "did you mean ngram:N?"));
  CHECK(contains(error_of([&] { attempt({"--model", folder.file("none")}); }), "train_gpt --preset medium"));
  CHECK(contains(error_of([&] {
                   attempt({"--model", folder.path, "--drafter_model", folder.file("none")});
                 }),
                 "there is no drafter model"));
  CHECK(contains(error_of([&] {
                   attempt({"--model", folder.path, "--drafter_model", small, "--data", folder.file("short.txt")});
                 }),
                 "the text is too short"));

  // Where there is one model, under the default name of the small one or not, it is enough, and the command that is
  // printed runs again.
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::create_directories(folder.file("one/runs"));
  std::filesystem::current_path(folder.file("one"));
  for (const char* name : {"runs/other", "runs/small"}) {
    CAPTURE(name);
    const Words named = {"--quick", "--model", name, "--data", folder.file("text.txt"), "--out", folder.file("out")};
    std::filesystem::rename(name == std::string("runs/other") ? small : "runs/other", name);
    const std::string said = run(experiments_command, named);
    CHECK(contains(said, "left out: a smaller model as drafter: there is one model here: make experiments"));
    CHECK(contains(said, "The trained drafter is ngram:4 instead"));
    CHECK(contains(said, "drafters: what"));
    CHECK(contains(said, std::string("--only rules --model ") + name + " --data "));
    CHECK(!contains(said, "--drafter_model"));
  }
  Words unnamed = {"--quick", "--only", "rules", "--data", folder.file("text.txt"), "--out", folder.file("out")};
  CHECK(contains(run(experiments_command, unnamed), "--only rules --model runs/small --data "));
  std::filesystem::create_directory("runs/copy");
  std::filesystem::copy_file("runs/small/model.safetensors", "runs/copy/model.safetensors");
  unnamed.insert(unnamed.end(), {"--model", "runs/copy"});
  CHECK(contains(run(experiments_command, unnamed), "--only rules --model runs/copy --data "));
  CHECK(contains(error_of([&] {
                   attempt({"--model", "runs/copy"});
                 }),
                 "there is no text: the text that the model learned is not in " +
                     std::filesystem::current_path().string() + "/data: make data gets one"));
  std::filesystem::rename("runs/small", small);
  std::filesystem::current_path(before);

  // A target that drafts for itself, under whatever name.
  std::filesystem::create_directory(folder.file("copy"));
  std::filesystem::copy_file(folder.file("model.safetensors"), folder.file("copy/model.safetensors"));
  std::filesystem::create_directory_symlink(folder.path, folder.file("link"));
  for (const std::string& same : {folder.path, folder.path + "/.", folder.file("copy"), folder.file("link")}) {
    const Words models = {"--model", folder.path, "--drafter_model", same};
    CHECK(contains(BAD_COMMAND_LINE(attempt(models)), "the target would draft for itself: --drafter_model: "));
    CHECK(contains(BAD_COMMAND_LINE(
                       attempt({"--model", folder.path, "--drafter_model", small, "--drafter", "suffix+gpt:" + same})),
                   "the target would draft for itself: --drafter: "));
  }
}
