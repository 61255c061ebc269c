// tests/study/test_peers.cpp: section peers of `bench`: what llama-bench prints, read; the operations of a row; the
// section with a llama-bench that is a script, and a Probe that is stand_in.cpp's.
#include <doctest/doctest.h>

#include "commands/commands.h"
#include "model.h"
#include "study/forwards.h"
#include "study/llama_bench.h"
#include "study/study.h"
#include "tests/command_line.h"
#include "tests/error_of.h"
#include "tests/gguf_file.h"
#include "tests/peer_folder.h"
#include "tests/picture.h"

using namespace nanospec;

namespace {

// As the program of llama-cpp-python 0.3.36 printed it, without the fields that nobody reads, under a line of its log.
const std::string kPrinted = R"(warning: a line of the log [1]
[
  {
    "build_commit": "llama-cpp-python 0.3.36",
    "cpu_info": "Intel(R) Xeon(R) Processor",
    "n_prompt": 8,
    "n_gen": 0,
    "n_depth": 0,
    "avg_ns": 1593934833,
    "samples_ns": [ 1635321131, 1552548536 ],
    "samples_ts": [ 4.89201, 5.15282 ]
  },
  {
    "build_commit": "llama-cpp-python 0.3.36",
    "cpu_info": "Intel(R) Xeon(R) Processor",
    "n_prompt": 0,
    "n_gen": 8,
    "n_depth": 1900,
    "avg_ns": 4991788313,
    "samples_ns": [ 8385462296 ],
    "samples_ts": [ 0.954032 ]
  }
]
)";

}  // namespace

TEST_CASE("peers: what llama-bench prints gives the seconds of one forward") {
  const std::vector<LlamaTest> tests = parse_llama_bench(kPrinted, "a log");
  REQUIRE(tests.size() == 2);
  CHECK(tests[0].build == "llama-cpp-python 0.3.36");
  CHECK(tests[0].cpu == "Intel(R) Xeon(R) Processor");
  const LlamaTest& rows = find_test(tests, 8, 0, 0);
  CHECK(rows.seconds == std::vector<double>{1.635321131, 1.552548536});  // all rows in one forward
  const LlamaTest& tokens = find_test(tests, 0, 8, 1900);
  REQUIRE(tokens.seconds.size() == 1);
  CHECK(tokens.seconds[0] == doctest::Approx(8.385462296 / 8));  // one forward for each token
  CHECK(parse_llama_bench(kPrinted.substr(kPrinted.find("\n[") + 1), "a list alone").size() == 2);
}

TEST_CASE("peers: what llama-bench did not print is refused") {
  for (const std::string& wrong : {std::string(), std::string("error: failed to load model\n"), std::string("]\n["),
                                   kPrinted.substr(0, kPrinted.size() - 2)})
    CHECK(error_of([&] { parse_llama_bench(wrong, "a log"); }).find("no list of tests: a log") == 0);
  for (const char* wrong : {"[\n  {}\n]\n", "[\n  3\n]\n", "[\n  {\"n_prompt\": \"8\"}\n]\n", "[\n  ,\n]\n"})
    CHECK(error_of([&] { parse_llama_bench(wrong, "a log"); }).find("not what llama-bench prints: a log") == 0);
  const std::vector<LlamaTest> tests = parse_llama_bench(kPrinted, "a log");
  CHECK(error_of([&] { find_test(tests, 16, 0, 0); }).find("llama-bench did not run the test of 16") == 0);
}

// Every matrix that a row is multiplied with, once; an embedding only where it is the head.
TEST_CASE("peers: operations of one row") {
  const double C = 8, V = 11, gpt = 3 * (C * 3 * C + C * C + C * 4 * C + 4 * C * C);
  Config config{3, 2, 2, 8, 32, 11, false};
  CHECK(row_flops(config) == 2 * (gpt + V * C));
  CHECK(row_flops(config) ==
        forward_flops(size_of("tiny", 3, 2, 8, 32, 11, 16), 1, 0) - 4 * 3 * C);  // but for the one key
  config.n_kv_head = 1;
  config.n_inner = 20;
  config.rotary = config.swiglu = true;
  config.tied = false;
  CHECK(row_flops(config) == 2 * (3 * (C * (C + 2 * C / 2) + C * C + 3 * 20 * C) + V * C));
  config.tied = true;
  CHECK(row_flops(config) == 2 * (3 * (C * (C + 2 * C / 2) + C * C + 3 * 20 * C) + V * C));
}

namespace {

// A llama-bench beside this program, for a test, and a folder with a model to work in.
struct Peers : PeerFolder {
  explicit Peers(const std::string& script) : PeerFolder("llama-bench", script) {
    std::filesystem::create_directory("models");
    Draft model = llama_gguf();
    write_file("models/short.gguf", model.bytes());
    model.set(whole("llama.context_length", 2048));
    write_file("models/long.gguf", model.bytes());
  }
};

std::string run_peers() {
  Words words = {"bench", "--quick", "--only", "peers", "--quiet", "--out", "out", "--threads", "2"};
  std::vector<char*> argv = arguments(words);
  return captured(1, [&] { CHECK(bench_command(int(argv.size()), argv.data()) == 0); });
}

// One test, as llama-bench prints it.
std::string printed(int prompt, int generated, int depth, double seconds) {
  return "{\"build_commit\": \"b1\", \"cpu_info\": \"Abacus <9>\", \"n_prompt\": " + std::to_string(prompt) +
         ", \"n_gen\": " + std::to_string(generated) + ", \"n_depth\": " + std::to_string(depth) +
         ", \"samples_ns\": [" + std::to_string(int64_t(seconds * 1e9)) + "]}";
}

}  // namespace

TEST_CASE("peers: nanospec beside llama.cpp, in a table, a file and a picture") {
  const Peers peers("cat <<'END'\n[\n" + printed(8, 0, 0, 0.034) + ",\n" + printed(16, 0, 0, 0.05) + ",\n" +
                    printed(512, 0, 0, 1) + ",\n" + printed(0, 64, 0, 64 * 0.02) + ",\n" +
                    printed(0, 32, 1900, 32 * 0.06) + "\n]\nEND\n");
  const std::string out = run_peers();
  for (const char* part : {"llama.cpp of b1, on Abacus <9>", "one row, deep", "prefill", "F32"})
    CHECK_MESSAGE(contains(out, part), out);
  const Json json = Json::parse(read_file("out/peers.json"))["llama_cpp"];
  CHECK(json["cpu"] == "Abacus <9>");
  REQUIRE(json["files"].size() == 1);  // the other model sees too few tokens
  const Json& file = json["files"][0];
  CHECK(file["file"] == "long.gguf");
  CHECK(file["type"] == "F32");
  REQUIRE(file["work"].size() == 5);
  CHECK(file["work"][0]["times_as_fast"].get<double>() == doctest::Approx(0.02 / (0.01 + 32e-5)));
  CHECK(file["work"][1]["times_as_fast"].get<double>() == doctest::Approx(0.034 / 0.017));
  CHECK(file["work"][1]["cost"].get<double>() == doctest::Approx(0.017 / (0.01 + 32e-5)));
  CHECK(file["work"][2]["peer_cost"].get<double>() == doctest::Approx(2.5));
  CHECK(file["work"][3]["seconds"][0].get<double>() == doctest::Approx(0.511 + 0.01 + 511e-5));
  CHECK(file["work"][4]["peer_seconds"][0].get<double>() == doctest::Approx(0.06));
  const std::string svg = read_file("out/peers.svg");
  CHECK(picture_problem(svg) == "");
  CHECK(contains(svg, "F32, 16 rows"));
}

TEST_CASE("peers: a llama-bench that fails, or is not there, is said and not fatal") {
  const Peers peers("echo no such model >&2; exit 1\n");
  const std::string out = run_peers();
  CHECK_MESSAGE(contains(out, "left out: llama-bench failed: no such model"), out);
  CHECK(!std::filesystem::exists("out/peers.json"));
  std::filesystem::remove_all("models");
  CHECK(contains(run_peers(), "left out: there is no GGUF file in models/ that loads"));
  std::filesystem::remove(peers.path + "/llama-bench");
  CHECK(contains(run_peers(), "build it with make peers"));
}
