// tests/commands/test_perplexity_command.cpp: nanospec perplexity, over the engine that stands in.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "commands/commands.h"
#include "tests/command_line.h"
#include "tests/commands/stand_in.h"

using namespace nanospec;

namespace {

std::string letters(size_t n) {
  std::string text;
  for (size_t i = 0; i < n; i++) text += char('a' + i * 7 % 26);
  return text;
}

// What the command measured of a text, in its JSON.
Json measured(const Folder& folder, const std::string& text, Words words) {
  words.insert(words.begin(), {"--model", "m", "--text", folder.file("t", text), "--stats", folder.file("s.json")});
  windows.clear();
  run(perplexity_command, words);
  return Json::parse(read_file(folder.file("s.json")));
}

}  // namespace

TEST_CASE("perplexity: windows one behind another, of each the tokens behind its middle; the figures by a recount") {
  const Folder folder;
  const std::string text = letters(213);
  const Json said = measured(folder, text, {"--window", "20"});
  REQUIRE(windows.size() == 10);
  double sum = 0, squares = 0;
  for (size_t w = 0; w < 10; w++) {
    CHECK(windows[w].first == std::vector<int>(text.begin() + long(20 * w), text.begin() + long(20 * w + 20)));
    CHECK(windows[w].second == 11);
    for (size_t i = 11; i < 20; i++) {
      const double loss = 0.01 * text[20 * w + i];
      sum += loss, squares += loss * loss;
    }
  }
  const double mean = sum / 90, error = std::sqrt((squares / 90 - mean * mean) / 89);
  CHECK(said["tokens"] == 90);
  CHECK(said["bytes"] == 90);
  CHECK(said["windows"] == 10);
  CHECK(said["whole"] == true);
  CHECK(said["loss"].get<double>() == doctest::Approx(mean));
  CHECK(said["loss_error"].get<double>() == doctest::Approx(error));
  CHECK(said["perplexity"].get<double>() == doctest::Approx(std::exp(mean)));
  CHECK(said["perplexity_error"].get<double>() == doctest::Approx(std::exp(mean) * error));
  CHECK(said["bits_per_byte"].get<double>() == doctest::Approx(mean / std::log(2)));
  CHECK(said["text_sha256"] == sha256(text));
  CHECK(said["begin_token"] == -1);
}

TEST_CASE("perplexity: an odd window, fewer windows, the model's own window, and a token before every text") {
  const Folder folder;
  const std::string text = letters(213);
  CHECK(measured(folder, text, {"--window", "15"})["tokens"] == 14 * 7);
  CHECK(windows[0].second == 8);
  CHECK(measured(folder, text, {"--window", "20", "--max_windows", "3"})["windows"] == 3);
  CHECK(measured(folder, text, {})["window"] == 64);  // the stand-in sees no more
  CHECK(windows.size() == 3);
  stand_in().tokenizer.begin = 'A';
  const Json said = measured(folder, text, {"--window", "20"});
  stand_in().tokenizer.begin = -1;
  REQUIRE(windows.size() == 10);
  CHECK(said["begin_token"] == 'A');
  CHECK(windows[0].first[1] == text[0]);
  for (size_t w = 0; w < 10; w++) {
    CHECK(windows[w].first[0] == 'A');
    CHECK(windows[w].first[19] == text[20 * w + 18]);
  }
}

TEST_CASE("perplexity: what it refuses, and with which status") {
  const Folder folder;
  const std::string text = folder.file("t", letters(30));
  const auto attempt = [](Words words) {
    words.insert(words.begin(), {"perplexity", "--model", "m"});
    std::vector<char*> argv = arguments(words);
    perplexity_command(int(argv.size()), argv.data());
  };
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--text", text, "--data", text})), "give only one of --text or --data"));
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--text", text, "--window", "65"})), "the model sees at most 64 tokens"));
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--text", text, "--window", "3"})), "out of range"));
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--text", text, "--stats", text})), "would write over"));
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--text", text, "--stats", "m.gguf"})), "a file of a model"));
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--model", "m.gguf"})), "there is no text: nanospec perplexity"));
  CHECK(contains(line_of<std::runtime_error>([&] {
                   attempt({"--text", text});
                 }),
                 "the text has 30 tokens, less than a window of 64: " + text));
  CHECK_THROWS_AS(attempt({"--text", folder.file("none")}), std::runtime_error);
}

TEST_CASE("perplexity: Ctrl-C gives the result so far") {
  const Folder folder;
  const std::string text = folder.file("t", letters(200)), stats = folder.file("s.json"), out = folder.file("out");
  windows.clear();
  const pid_t child = fork();  // the mark of a Ctrl-C stays for the rest of a process
  if (child == 0) {
    stand_in().interrupted_at = 2;
    if (!freopen(out.c_str(), "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(1);
    Words words = {"perplexity", "--model", "m", "--text", text, "--window", "20", "--stats", stats};
    std::vector<char*> argv = arguments(words);
    const int status = perplexity_command(int(argv.size()), argv.data());
    fflush(stdout);
    _exit(status);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == kInterruptedStatus);
  const Json said = Json::parse(read_file(stats));
  CHECK(said["windows"] == 3);
  CHECK(said["whole"] == false);
  CHECK(contains(read_file(out), "27 tokens of 3 windows of 20 tokens"));
}
