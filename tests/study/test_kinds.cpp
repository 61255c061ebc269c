// tests/study/test_kinds.cpp: section kinds of `bench`, with the Engine of stand_in.cpp, whose plain decoding takes a
// second and anything else half of it, and a llama_speculate that is a script.
#include <doctest/doctest.h>

#include "commands/commands.h"
#include "study/study.h"
#include "tests/command_line.h"
#include "tests/commands/stand_in.h"
#include "tests/error_of.h"
#include "tests/gguf_file.h"
#include "tests/peer_folder.h"
#include "tests/picture.h"

using namespace nanospec;

namespace {

std::string answered(int prompt, const char* method, int tokens, double seconds) {
  return "{\"prompt\":" + std::to_string(prompt) + ",\"method\":\"" + method +
         "\",\"tokens\":" + std::to_string(tokens) + ",\"seconds\":" + std::to_string(seconds) + ",\"text\":\"\"}\n";
}

// A folder with a model, and two questions of two kinds; a llama_speculate beside this program.
struct AnsweredQuestions : PeerFolder {
  explicit AnsweredQuestions(const std::string& output)
      : PeerFolder("llama_speculate", "echo $3 >tokens; cat <<'END'\n" + output + "END\n") {
    std::filesystem::create_directory("models");
    std::filesystem::create_directory("data");
    write_file("models/tiny.Q8_0.gguf", llama_gguf().bytes());
    write_file("data/kinds.jsonl",
               "{\"kind\": \"copying\", \"prompt\": \"Copy me.\"}\n{\"kind\": \"story\", \"prompt\": \"A fox\"}\n");
    script = [](const Method& method, int n) { return steady(method, n); };
  }
  std::string run_kinds() const {
    return run(bench_command, {"--quick", "--only", "kinds", "--out", "out", "--threads", "2"});
  }
};

}  // namespace

TEST_CASE("kinds: speculation over plain decoding and over llama.cpp's best way, kind by kind") {
  const AnsweredQuestions questions(answered(0, "plain", 16, 2) + answered(0, "lookup", 16, 0.25) +
                                    answered(0, "ngram-mod", 16, 1) + answered(1, "plain", 16, 0.5) +
                                    answered(1, "lookup", 16, 1));
  const std::string out = questions.run_kinds();
  for (const char* part : {"temperature 0.7", "copying", "story", "lookup", "A quick run proves nothing"})
    CHECK_MESSAGE(contains(out, part), out);
  CHECK(read_file("tokens") == "16\n");  // as many as a quick run of ours may have
  const Json json = Json::parse(read_file("out/kinds.json"))["answers"];
  REQUIRE(json.size() == 3);  // temperatures
  const Json &copying = json[0]["by_kind"][0], &story = json[0]["by_kind"][1];
  CHECK(copying["kind"] == "copying");
  CHECK(copying["times_plain"]["suffix"][0].get<double>() == doctest::Approx(2));
  CHECK(copying["llama_cpp"]["best"] == "lookup");
  CHECK(copying["llama_cpp"]["speed"].get<double>() == doctest::Approx(64));
  CHECK(copying["llama_cpp"]["plain"].get<double>() == doctest::Approx(8));
  CHECK(copying["llama_cpp"]["over"]["suffix"].get<double>() == doctest::Approx(0.5));  // 32 tokens a second
  CHECK(story["llama_cpp"]["best"] == "plain");
  const std::string svg = read_file("out/kinds.svg");
  CHECK(picture_problem(svg) == "");
  CHECK(contains(svg, "Q8_0, copying"));
}

TEST_CASE("kinds: what is missing is said, and llama.cpp's part may be left out") {
  const AnsweredQuestions questions("no such model\n");
  std::filesystem::remove(questions.path + "/llama_speculate");
  const std::string out = questions.run_kinds();
  CHECK_MESSAGE(contains(out, "build it with make peers"), out);
  CHECK(!Json::parse(read_file("out/kinds.json"))["answers"][0].contains("llama_cpp"));
  std::filesystem::remove_all("data");
  CHECK(contains(questions.run_kinds(), "there is no data/kinds.jsonl"));
  std::filesystem::remove_all("models");
  CHECK(contains(questions.run_kinds(), "there is no GGUF file of 8 or 4 bits"));
}
