// tests/study/test_diagnose.cpp: nanospec diagnose, over the engine that stands in.
#include <doctest/doctest.h>

#include "commands/commands.h"
#include "study/study.h"
#include "tests/command_line.h"
#include "tests/commands/stand_in.h"
#include "tests/error_of.h"
#include "tests/picture.h"

using namespace nanospec;

TEST_CASE("diagnose: --chat asks, and without it there is no system text") {
  const Decodes on;
  CHECK(contains(BAD_COMMAND_LINE(run(diagnose_command, {"--model", "m", "--prompt", "a", "--system", "b"})),
                 "--system is part of a chat: nanospec diagnose"));
  const Words usual = {"--model", "m", "--prompt", "ab", "--shape", "tree:3x2", "--max_new_tokens", "20"};
  run(diagnose_command, usual);
  CHECK(calls[0].prompt == std::vector<int>{'a', 'b'});
  Words asks = usual;
  asks.push_back("--chat");
  run(diagnose_command, asks);
  CHECK(calls[0].prompt.size() > 2);  // in lines of a talk, where no template is known
}

TEST_CASE("diagnose: every table, the JSON, and a whole picture") {
  const Decodes on;
  const Folder folder;
  write_file(folder.file("p.jsonl"), "{\"prompt\": \"ab\"}\n{\"prompt\": \"cd\"}\n");
  const std::string out = run(
      diagnose_command, {"--model", "a<b", "--prompts", folder.file("p.jsonl"), "--shape", "tree:3x2",
                         "--max_new_tokens", "200", "--json", folder.file("d.json"), "--svg", folder.file("d.svg")});
  for (const char* part : {"bigram tree:3x2: 400 tokens in ", "Why each forward", "the token was guessed, but got no",
                           "leaf: the shape ended there", "H, nats", "% of pairs by H of q", "rank 7  none of them",
                           "Brier score", "wasted share", "microseconds a token", "slides"})
    CHECK_MESSAGE(contains(out, part), part);
  CHECK(!contains(out, "perplexity"));
  const Json json = Json::parse(read_file(folder.file("d.json")));
  int64_t stops = 0, drafted = 0, accepted = 0, promised = 0;
  for (const Json& n : json["stops"]) stops += n.get<int64_t>();
  for (const Json& depth : json["nodes"])
    drafted += depth["drafted"].get<int64_t>(), accepted += depth["accepted"].get<int64_t>();
  for (const Json& tenth : json["forecasts"]["raw"]["tenths"]) promised += tenth["nodes"].get<int64_t>();
  CHECK(stops == json["target_forwards"]);
  CHECK(drafted == json["drafted_nodes"]);
  CHECK(accepted + stops == 400);
  CHECK(promised > accepted);
  CHECK(json["accuracy"][0]["right_by_rank"].size() == 8);
  CHECK(json["entropy"]["of_q"]["bins"].size() == 10);
  CHECK(json["entropy"]["of_confidence"]["separation"].get<double>() > 0.5);
  CHECK(json["drafter"] == "bigram");
  const std::string svg = read_file(folder.file("d.svg"));
  CHECK(svg.substr(0, 5) == "<svg ");
  CHECK(svg.substr(svg.size() - 7) == "</svg>\n");
  CHECK(picture_problem(svg) == "");
  for (const char* part : {"a&lt;b", "Entropy of the confidence", "Accuracy by rank", "Where the time went",
                           "the token was guessed, but got no node"})
    CHECK_MESSAGE(contains(svg, part), part);

  const auto attempt = [](Words words) {
    words.insert(words.begin(), {"diagnose", "--model", "m"});
    std::vector<char*> argv = arguments(words);
    diagnose_command(int(argv.size()), argv.data());
  };
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--prompt", "A", "--drafter", "none"})), "guesses nothing"));
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--prompt", "A", "--data", "text"})), "more than one prompt"));
  CHECK(contains(error_of([&] { attempt({"--prompt", "A", "--shape", "static:/nowhere.json"}); }), "/nowhere.json"));
}
