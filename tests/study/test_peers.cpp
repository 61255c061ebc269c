// tests/study/test_peers.cpp: sections peers and rows of `bench`: rows over the Probe of stand_in.cpp, and the script
// tests/reference/peers.py with other programs that are scripts.
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

// A llama-bench beside this program, for a test, and a folder with a model to work in. What `bench --only rows` would
// write lies there too, and a program that copies it.
struct Peers : PeerFolder {
  std::string study = program_folder() + "/study";
  explicit Peers(const std::string& script) : PeerFolder("llama-bench", script) {
    std::filesystem::create_directory("models");
    Draft model = llama_gguf();
    write_file("models/short.gguf", model.bytes());
    model.set(whole("llama.context_length", 2048));
    write_file("models/long.gguf", model.bytes());
    write_file(study,
               "#!/bin/sh\n[ $5 = models/long.gguf ] || { echo too short >&2; exit 1; }\nshift 9\ncp rows.json $1/\n");
    chmod(study.c_str(), 0755);
  }
  ~Peers() { std::filesystem::remove(study); }
};

bool has_python() { return system("python3 -c pass >/dev/null 2>&1") == 0; }

std::string run_section(const char* section, const Words& more = {}) {
  Words words = {"--quick", "--only", section, "--quiet", "--out", "out", "--threads", "2"};
  words.insert(words.end(), more.begin(), more.end());
  return run(bench_command, words);
}

// One test, as llama-bench prints it.
std::string printed(int prompt, int generated, int depth, double seconds) {
  return "{\"build_commit\": \"b1\", \"cpu_info\": \"Abacus <9>\", \"n_prompt\": " + std::to_string(prompt) +
         ", \"n_gen\": " + std::to_string(generated) + ", \"n_depth\": " + std::to_string(depth) +
         ", \"samples_ns\": [" + std::to_string(int64_t(seconds * 1e9)) + "]}";
}

// All of its tests, under a line of a log.
std::string all_printed() {
  return "cat <<'END'\na line of the log [1]\n[\n" + printed(8, 0, 0, 0.034) + ",\n" + printed(16, 0, 0, 0.05) + ",\n" +
         printed(512, 0, 0, 1) + ",\n" + printed(0, 64, 0, 64 * 0.02) + ",\n" + printed(0, 32, 1900, 32 * 0.06) +
         "\n]\nEND\n";
}

}  // namespace

TEST_CASE("peers: rows: forwards of a GGUF file as llama-bench makes them, and no roofline") {
  const Peers peers("");
  const std::string out = run_section("rows", {"--model", "models/long.gguf"});
  CHECK_MESSAGE(contains(out, "one row, deep"), out);
  CHECK(!contains(out, "Roofline"));
  const Json json = Json::parse(read_file("out/rows.json"));
  CHECK(json["file"] == "long.gguf");
  CHECK(json["type"] == "F32");
  REQUIRE(json["work"].size() == 5);
  CHECK(json["work"][0]["seconds"].get<double>() == doctest::Approx(0.01 + 32e-5));
  CHECK(json["work"][1]["seconds"].get<double>() == doctest::Approx(0.017));
  CHECK(json["work"][3]["rows"] == 512);
  CHECK(json["work"][3]["seconds"].get<double>() == doctest::Approx(0.511 + 0.01 + 511e-5));
  Words words = {"bench", "--only", "rows", "--model", "models/short.gguf", "--quiet", "--out", "out"};
  std::vector<char*> argv = arguments(words);
  CHECK(contains(error_of([&] { bench_command(int(argv.size()), argv.data()); }), "it sees fewer than 2,048 tokens"));
}

TEST_CASE("peers: nanospec beside llama.cpp, in a table, a file and a picture") {
  if (!has_python()) return;
  const Peers peers(all_printed());
  run_section("rows", {"--model", "models/long.gguf"});
  std::filesystem::rename("out/rows.json", "rows.json");
  const std::string out = run_section("peers");
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
  if (!has_python()) return;
  const Peers peers("echo no such model >&2; exit 1\n");
  write_file("rows.json", "{}");
  std::string out = run_section("peers");
  CHECK_MESSAGE(contains(out, "left out: llama-bench failed: no such model"), out);
  CHECK(!std::filesystem::exists("out/peers.json"));
  write_file(peers.path + "/llama-bench", "#!/bin/sh\necho '[{}'\n");
  CHECK(contains(out = run_section("peers"), "left out: llama-bench printed what is not"));
  write_file(peers.study, "#!/bin/sh\nshift 9\ncp rows.json $1/\n");
  write_file(peers.path + "/llama-bench", "#!/bin/sh\n[ $2 = models/long.gguf ] || exit 3\n" + all_printed());
  run_section("rows", {"--model", "models/long.gguf"});
  std::filesystem::rename("out/rows.json", "rows.json");
  CHECK(contains(out = run_section("peers"), "left out: llama-bench failed: exit status 3: models/short.gguf"));
  CHECK_MESSAGE(contains(out, "one row, deep"), out);  // of the other file
  std::filesystem::remove(peers.study);
  CHECK(contains(run_section("peers"), "left out: study does not start: No such file or directory"));
  std::filesystem::remove_all("models");
  CHECK(contains(run_section("peers"), "left out: there is no GGUF file in models/ that loads"));
  std::filesystem::remove(peers.path + "/llama-bench");
  CHECK(contains(run_section("peers"), "build it with make peers"));
}
