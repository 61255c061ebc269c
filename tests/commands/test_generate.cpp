// tests/commands/test_generate.cpp: nanospec generate, over the engine that stands in.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <termios.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "commands/commands.h"
#include "tests/command_line.h"
#include "tests/commands/stand_in.h"

using namespace nanospec;

TEST_CASE("generate: standard output gets prompt and text, the statistics go to their file") {
  script = steady;
  const Folder folder;
  const Words words = {
      "--model", "m",       "--prompt", "Hi\n",    "--max_new_tokens",   "30", "--threads", "3", "--temperature",
      "0.7",     "--shape", "chain:2",  "--stats", folder.file("s.json")};
  const std::string expected = "Hi\nabcdefghijklmnopqrstuvwxyzabcd";
  CHECK(run(generate_command, words) == expected);
  REQUIRE(calls.size() == 1);
  CHECK(calls[0].prompt == std::vector<int>{'H', 'i', '\n'});
  const Json stats = Json::parse(read_file(folder.file("s.json")));
  for (const char* field : {"tokens",
                            "seconds",
                            "prefill_seconds",
                            "tokens_per_second",
                            "target_forwards",
                            "slide_prefills",
                            "acceptance_length",
                            "accept_histogram",
                            "drafted_nodes",
                            "seconds_draft",
                            "seconds_forward",
                            "seconds_verify",
                            "seconds_keep",
                            "device",
                            "dtype",
                            "threads",
                            "drafter",
                            "shape",
                            "verify",
                            "weight_bytes",
                            "gigabytes_per_second",
                            "text_sha256",
                            "peak_bytes"})
    CHECK_MESSAGE(stats.contains(field), field);
  CHECK(stats["tokens"] == 30);
  CHECK(stats["tokens_per_second"] == 60.0);
  CHECK(stats["acceptance_length"] == 2.0);
  CHECK(stats["threads"] == std::min(3, usable_cores()));
  CHECK(stats["temperature"] == 0.7);
  CHECK(stats["drafter"] == "bigram");
  CHECK(stats["shape"] == "chain:2");
  CHECK(stats["verify"] == "match");
  CHECK(stats["gigabytes_per_second"].get<double>() == doctest::Approx(15 * 1e6 / 0.4 / 1e9));
  CHECK(stats["text_sha256"] == sha256(expected));

  Words streamed = words;
  streamed.push_back("--stream");
  CHECK(run(generate_command, streamed) == expected);
}

TEST_CASE("generate: a prompt from a file, byte for byte") {
  script = steady;
  const Folder folder;
  write_file(folder.file("p.txt"), " two\n\n");
  CHECK(run(generate_command, {"--model", "m", "--prompt_file", folder.file("p.txt"), "--max_new_tokens", "3"}) ==
        " two\n\nabc");
}

TEST_CASE("generate: an empty prompt is a beginning where the model wants a token before every text") {
  script = steady;
  calls.clear();
  stand_in().tokenizer.begin = 7;
  CHECK(run(generate_command, {"--model", "m", "--prompt", "", "--max_new_tokens", "3"}) == "abc");
  CHECK(calls.at(0).prompt == std::vector<int>{7});
  stand_in().tokenizer.begin = -1;
}

TEST_CASE("generate: a prompt from standard input") {
  script = steady;
  const Folder folder;
  const int kept = dup(STDIN_FILENO), file = open(folder.file("p", "two\nlines").c_str(), O_RDONLY);
  dup2(file, STDIN_FILENO), close(file);
  const std::string text = run(generate_command, {"--model", "m", "--prompt_file", "-", "--max_new_tokens", "3"});
  Words words = {"generate", "--model", "m", "--prompt_file", "-", "--stats", folder.file("p")};
  std::vector<char*> argv = arguments(words);
  const std::string line = BAD_COMMAND_LINE(generate_command(int(argv.size()), argv.data()));
  dup2(kept, STDIN_FILENO), close(kept);
  CHECK(text == "two\nlinesabc");
  CHECK(contains(line, "--stats would write over what --prompt_file reads"));
}

TEST_CASE("generate: on a terminal an empty line parts text and summary; a pipe gets the text alone") {
  script = steady;
  const auto shown = [](const std::string& prompt) {  // on a terminal that is standard output and error
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0) return std::string();  // there is none
    const int side = open(ptsname(terminal), O_RDWR | O_NOCTTY), out = dup(1), error = dup(2);
    termios raw;
    tcgetattr(side, &raw), cfmakeraw(&raw), tcsetattr(side, TCSANOW, &raw);
    fflush(stdout), fflush(stderr);
    dup2(side, 1), dup2(side, 2);
    Words words = {"generate", "--model", "m", "--prompt", prompt, "--max_new_tokens", "3"};
    std::vector<char*> argv = arguments(words);
    generate_command(int(argv.size()), argv.data());
    fflush(stdout), fflush(stderr);
    dup2(out, 1), dup2(error, 2);
    for (int handle : {side, out, error}) close(handle);
    std::string text;  // in as many parts as the system likes, until the other side is closed
    char bytes[4096];
    for (ssize_t n; (n = read(terminal, bytes, sizeof bytes)) > 0;) text.append(bytes, size_t(n));
    close(terminal);
    return text;
  };
  const std::string text = shown("Hi ");
  if (text.empty()) return;
  CHECK(text.substr(0, 8) == "Hi abc\n\n");
  CHECK(contains(text, "\n\n3 tokens in "));
  script = [](const Method& method, int n) {
    Generated g = steady(method, n);
    g.tokens.back() = '\n';
    return g;
  };
  CHECK(contains(shown("Hi "), "Hi ab\n\n3 tokens in "));  // its line has ended
  CHECK(run(generate_command, {"--model", "m", "--prompt", "Hi ", "--max_new_tokens", "3"}) == "Hi ab\n");
}

TEST_CASE("generate: what a rule makes of the text is said, in the summary and in the statistics") {
  script = steady;
  const Folder folder;
  const auto said = [&](Words words) {
    words.insert(words.begin(), {"generate", "--model", "m", "--prompt", "A", "--max_new_tokens", "3", "--stats",
                                 folder.file("s.json")});
    std::vector<char*> argv = arguments(words);
    return captured(2, [&] { captured(1, [&] { generate_command(int(argv.size()), argv.data()); }); });
  };
  CHECK(!contains(said({}), "--verify"));
  CHECK(Json::parse(read_file(folder.file("s.json")))["exact"] == true);
  CHECK(contains(said({"--verify", "independent"}), "--verify independent is biased: "));
  CHECK(Json::parse(read_file(folder.file("s.json")))["biased"] == true);
  CHECK(contains(said({"--verify", "typical"}), "--verify typical is lossy: "));
  CHECK(Json::parse(read_file(folder.file("s.json")))["lossy"] == true);
  CHECK(contains(said({"--verify", "rejection", "--shape", "chain:2"}), "of the same distribution"));
}

TEST_CASE("generate: what it refuses, and with which status") {
  script = steady;
  const auto attempt = [](Words words) {
    words.insert(words.begin(), {"generate", "--model", "m"});
    std::vector<char*> argv = arguments(words);
    generate_command(int(argv.size()), argv.data());
  };
  CHECK_THROWS_AS(attempt({}), std::invalid_argument);
  CHECK_THROWS_AS(attempt({"--prompt", "A", "--prompt_file", "x"}), std::invalid_argument);
  CHECK_THROWS_AS(attempt({"--prompt", "A", "--shape", "tree:9x9"}), std::invalid_argument);
  CHECK_THROWS_AS(attempt({"--prompt", "A", "--shape", "chain:65"}), std::invalid_argument);
  CHECK_THROWS_AS(attempt({"--prompt", "A", "--temperature", "1e-9"}), std::invalid_argument);
  CHECK_THROWS_AS(attempt({"--prompt", ""}), std::runtime_error);
  CHECK_THROWS_AS(attempt({"--prompt", "", "--chat"}), std::runtime_error);
  CHECK_THROWS_AS(attempt({"--prompt_file", "/nonexistent"}), std::runtime_error);
  CHECK_THROWS_AS(attempt({"--prompt", "A", "--stats", "/nonexistent/s.json"}), std::runtime_error);
}
