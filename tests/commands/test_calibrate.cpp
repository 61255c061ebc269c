// tests/commands/test_calibrate.cpp: nanospec calibrate and show, over the engine that stands in.
#include <doctest/doctest.h>

#include <filesystem>

#include "commands/calibration.h"
#include "commands/commands.h"
#include "tests/command_line.h"
#include "tests/commands/stand_in.h"
#include "tests/error_of.h"

using namespace nanospec;

TEST_CASE("calibrate: measures, prints, and keeps what the file already holds") {
  const Decodes on;
  const Folder folder;
  const Words words = {"--model",  folder.path, "--prompt", "abcd", "--drafter", "bigram",
                       "--depths", "3",         "--places", "600",  "--ranks",   "4"};
  Words cold = words;
  cold.insert(cold.end(), {"--temperature", "0"});
  const std::string out = run(calibrate_command, words);
  run(calibrate_command, cold);
  CHECK(contains(out, "depth  rank 0  rank 1  rank 2  rank 3  none of them  places"));
  CHECK(contains(out, "Written to " + folder.path + "/calibration.json: bigram at temperature 1.00"));
  const std::vector<Calibration> all = read_calibrations(calibration_path(folder.path));
  REQUIRE(all.size() == 2);
  CHECK(all[0].temperature == 1);
  CHECK(all[1].temperature == 0);
  CHECK(all[0].accuracy.depths == 3);
  CHECK(all[0].accuracy.ranks == 4);
  CHECK(all[0].accuracy.at(0, 0) > 0.5);
  CHECK(all[0].places > 440);  // of 600 tokens, a quarter of which may end a chain
  CHECK(all[0].places <= 600);

  const auto attempt = [&](Words more) {
    Words line = {"calibrate", "--model", folder.path, "--prompt", "A"};
    line.insert(line.end(), more.begin(), more.end());
    std::vector<char*> argv = arguments(line);
    calibrate_command(int(argv.size()), argv.data());
  };
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--drafter", "none"})), "guesses nothing"));
  const std::string prompts = folder.file("twenty.jsonl");
  std::string lines;
  for (int i = 0; i < 20; i++) lines += "{\"prompt\": \"A\"}\n";
  write_file(prompts, lines);
  CHECK(contains(
      BAD_COMMAND_LINE(run(calibrate_command, {"--model", folder.path, "--prompts", prompts, "--places", "20"})),
      "20 places in 20 texts are less than one in each: --places: give more, or fewer texts"));
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--depths", "65"})), "--depths: give a whole number from 1 to 64"));
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--drafter", "bigrm"})), "did you mean bigram?"));
  write_file(folder.file("broken.json"), "{");
  CHECK(contains(error_of([&] { attempt({"--out", folder.file("broken.json")}); }), "not valid JSON"));
  CHECK(read_file(folder.file("broken.json")) == "{");
}

TEST_CASE("show: the page of a long text holds a part of it, and says so") {
  const Decodes on;
  const Folder folder;
  const auto page = [&](const std::string& tokens, const Words& more) {
    Words words = {"--model", "m", "--prompt", "abcd", "--max_new_tokens", tokens, "--html", folder.file("p.html")};
    words.insert(words.end(), more.begin(), more.end());
    return run(show_command, words);
  };
  const std::string whole = page("300", {"--shape", "chain:2"});
  CHECK(contains(whole, ", 300 tokens; open it in a browser"));
  const std::string part = page("100000", {"--drafter", "none"});
  CHECK(contains(part, "4,001 target forwards of none, 4,001 tokens of 100,000, as many as a page holds"));
  CHECK(std::filesystem::file_size(folder.file("p.html")) < 4 << 20);
  const std::string wide = page("100000", {"--shape", "tree:4x4", "--budget", "340"});
  CHECK(contains(wide, "as many as a page holds"));
  CHECK(std::filesystem::file_size(folder.file("p.html")) < 10 << 20);
}
