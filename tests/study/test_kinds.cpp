// tests/study/test_kinds.cpp: sections kinds and batch of `bench`, with the Engine of stand_in.cpp, whose plain
// decoding takes a second and anything else half of it.
#include <doctest/doctest.h>

#include "commands/commands.h"
#include "study/study.h"
#include "tests/command_line.h"
#include "tests/commands/stand_in.h"
#include "tests/peer_folder.h"
#include "tests/picture.h"

using namespace nanospec;

TEST_CASE("kinds: speculation over plain decoding, kind by kind and at each temperature") {
  const PeerFolder folder;
  folder.write_questions();
  const std::string out = run(bench_command, kKindsWords);
  for (const char* part : {"temperature 0.7", "copying", "story", "A quick run proves nothing"})
    CHECK_MESSAGE(contains(out, part), out);
  const Json studies = Json::parse(read_file("out/kinds.json"))["studies"];
  REQUIRE(studies.size() == 6);  // three temperatures, two kinds
  CHECK(studies[0]["text"] == "copying");
  CHECK(studies[1]["text"] == "story");
  CHECK(studies[3]["temperature"] == 0.7);
  CHECK(studies[0]["asked"].size() == 1);
  CHECK(studies[0]["methods"][1]["times_plain"][0].get<double>() == doctest::Approx(2));
  const std::string svg = read_file("out/kinds.svg");
  CHECK(picture_problem(svg) == "");
  for (const char* part : {"copying", "story", "temperature 0.7", "suffix+ngram:4 auto"}) CHECK(contains(svg, part));
}

TEST_CASE("kinds: experiments --only seeds asks them: a table, figures and a picture of each method's questions") {
  const PeerFolder folder;
  folder.write_questions();
  Words words = kKindsWords;
  *std::find(words.begin(), words.end(), "kinds") = "seeds";
  const std::string out = run(experiments_command, words);
  for (const char* part : {"dynamic-trees: where should a tree stop", "ahead: what does it gain", "A quick run",
                           "build/nanospec experiments --only seeds --model "})
    CHECK_MESSAGE(contains(out, part), out);
  CHECK_MESSAGE(!contains(out, "left out"), out);  // for want of room, of 340 nodes
  for (const char* name : {"dynamic-trees", "heads", "parallel", "ahead"}) {
    CAPTURE(name);
    const std::string file = "out/" + std::string(name);
    CHECK(picture_problem(read_file(file + ".svg")) == "");
    const Json studies = Json::parse(read_file(file + ".json"))["studies"];
    const bool by_kind = name == std::string("parallel");
    REQUIRE(studies.size() == (by_kind || name == std::string("heads") ? 2 : 1));  // kinds, or temperatures
    CHECK(studies[0]["text"] == (by_kind ? "copying" : "all kinds"));
    CHECK(studies[0]["asked"].size() == (by_kind ? 1 : 2));
    for (const Json& method : studies[0]["methods"])
      if (method["drafter"] != "none") CHECK(method["times_plain"][0].get<double>() == doctest::Approx(2));
  }
  words.insert(words.end(), {"--model", "runs/small"});
  CHECK(contains(run(experiments_command, words), "left out: there is no GGUF file"));
}

TEST_CASE("kinds: what is missing is said") {
  const PeerFolder folder;
  folder.write_questions();
  std::filesystem::remove_all("data");
  CHECK(contains(run(bench_command, kKindsWords), "there is no data/kinds.jsonl"));
  CHECK(contains(run(bench_command, {"--quick", "--only", "kinds", "--out", "out"}), "there is no GGUF file"));
}

TEST_CASE("bench: batch: 1, 2 and 4 texts side by side, plain and speculating, as a table, figures and a picture") {
  const PeerFolder folder;
  folder.write_questions();
  Words words = kKindsWords;
  *std::find(words.begin(), words.end(), "kinds") = "batch";
  const std::string out = run(bench_command, words);
  for (const char* part : {"Many texts in one forward: 64 tokens a text", "over plain", "A quick run proves nothing"})
    CHECK_MESSAGE(contains(out, part), out);
  const Json batches = Json::parse(read_file("out/batch.json"))["batches"];
  REQUIRE(batches.size() == 3);
  for (size_t i = 0; i < 3; i++) {
    CHECK(batches[i]["texts"] == 1 << i);
    CHECK(batches[i]["plain_tokens_per_second"].size() == batches[i]["drafted_tokens_per_second"].size());
    CHECK(batches[i]["plain_tokens_per_second"][0].get<double>() > 0);
  }
  CHECK(batches[2]["prompt_tokens"] == 2 * batches[1]["prompt_tokens"].get<int>());  // the two questions, twice
  CHECK(batches[1]["kept_bytes"].get<double>() > batches[0]["kept_bytes"].get<double>());
  const std::string svg = read_file("out/batch.svg");
  CHECK(picture_problem(svg) == "");
  for (const char* part : {"suffix auto", "plain", "texts side by side"}) CHECK(contains(svg, part));
}
