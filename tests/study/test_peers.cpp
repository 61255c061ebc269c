// tests/study/test_peers.cpp: tests/reference/peers.py, with other programs that are scripts: nanospec beside
// llama.cpp, and what is said where something is missing.
#include <doctest/doctest.h>

#include <cmath>

#include "commands/commands.h"
#include "study/study.h"
#include "tests/peer_folder.h"

using namespace nanospec;

namespace {

// Two models, what `bench --only forward` writes for each, and a program that copies that.
struct TwoModels : PeerFolder {
  TwoModels() {
    std::filesystem::create_directory("models");
    Draft model = llama_gguf();
    write_file("models/short.gguf", model.bytes());
    model.set(whole("llama.context_length", 2048));
    write_file("models/long.gguf", model.bytes());
    for (const std::string name : {"short", "long"}) {
      run(bench_command,
          {"--quick", "--only", "forward", "--quiet", "--model", "models/" + name + ".gguf", "--out", name});
      std::filesystem::rename(name + "/forward.json", name + ".json");
    }
    write_program("ours/study", "from=$(basename $5 .gguf).json\nshift 11\ncp $from $1/forward.json\n");
  }
};

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

// As llama_speculate prints it.
std::string answered(int prompt, const char* method, int tokens, double seconds) {
  return "{\"prompt\":" + std::to_string(prompt) + ",\"method\":\"" + method +
         "\",\"tokens\":" + std::to_string(tokens) + ",\"seconds\":" + std::to_string(seconds) + ",\"text\":\"\"}\n";
}

constexpr const char *kLlamaBench = "ours/peers/bin/llama-bench", *kSpeculate = "ours/peers/bin/llama_speculate",
                     *kBatchedBench = "ours/peers/bin/llama-batched-bench";

}  // namespace

TEST_CASE("peers: nanospec beside llama.cpp, in a table and a file") {
  if (!has_python()) return;
  const TwoModels folder;
  folder.write_program(kLlamaBench, all_printed());
  const std::string out = folder.peers("llama --rounds 1");
  for (const char* part : {"llama.cpp of b1, on Abacus <9>", "one row, deep", "prefill", "F32"})
    CHECK_MESSAGE(contains(out, part), out);
  CHECK(contains(out, "left out: it sees fewer than 2,048 tokens: models/short.gguf"));
  const Json json = Json::parse(read_file("peers.json"))["llama_cpp"];
  CHECK(json["cpu"] == "Abacus <9>");
  REQUIRE(json["files"].size() == 1);
  const Json& file = json["files"][0];
  CHECK(file["file"] == "long.gguf");
  CHECK(file["type"] == "F32");
  REQUIRE(file["work"].size() == 5);
  const double one = 0.01 + 32e-5, eight = 0.017 + 32e-5;
  CHECK(file["work"][0]["times_as_fast"].get<double>() == doctest::Approx(0.02 / one));
  CHECK(file["work"][1]["times_as_fast"].get<double>() == doctest::Approx(0.034 / eight));
  CHECK(file["work"][1]["cost"].get<double>() == doctest::Approx(eight / one));
  CHECK(file["work"][2]["peer_cost"].get<double>() == doctest::Approx(2.5));
  CHECK(file["work"][3]["seconds"][0].get<double>() == doctest::Approx(0.512 + one));
  CHECK(file["work"][4]["peer_seconds"][0].get<double>() == doctest::Approx(0.06));
  CHECK(file["work"][4]["seconds"][0].get<double>() == doctest::Approx(0.01 + 1900e-5));
}

TEST_CASE("peers: a llama-bench that fails, or is not there, is said and not fatal") {
  if (!has_python()) return;
  const TwoModels folder;
  folder.write_program(kLlamaBench, "echo no such model >&2; exit 1\n");
  std::string out = folder.peers("llama --rounds 1");
  CHECK_MESSAGE(contains(out, "left out: llama-bench failed: no such model"), out);
  CHECK(read_file("peers.json") == "{}");
  folder.write_program(kLlamaBench, "echo '[{}'\n");
  CHECK(contains(folder.peers("llama --rounds 1"), "left out: llama-bench printed what is not"));
  std::filesystem::copy("long.json", "short.json", std::filesystem::copy_options::overwrite_existing);
  folder.write_program(kLlamaBench, "[ $2 = models/long.gguf ] || exit 3\n" + all_printed());
  CHECK(contains(out = folder.peers("llama --rounds 1"),
                 "left out: llama-bench failed: exit status 3: models/short.gguf"));
  CHECK_MESSAGE(contains(out, "one row, deep"), out);  // of the other file
  std::filesystem::remove("ours/study");
  CHECK(contains(folder.peers("llama"), "left out: study does not start: No such file or directory"));
  std::filesystem::remove_all("models");
  CHECK(contains(folder.peers("llama"), "left out: there is no GGUF file in models/ that loads"));
  std::filesystem::remove(kLlamaBench);
  CHECK(contains(folder.peers("llama"), "build it with make peers"));
}

TEST_CASE("peers: batch: texts side by side, plain and speculating, over llama.cpp's") {
  if (!has_python()) return;
  const PeerFolder folder;
  folder.write_questions();
  CHECK(contains(folder.peers("batch"), "build it with make peers"));
  run(bench_command, {"--quick", "--only", "batch", "--out", "out", "--model", "models/tiny.Q8_0.gguf"});
  folder.write_program("ours/study", "shift 11\ncp out/batch.json $1\n");
  folder.write_program(kBatchedBench, "echo '{\"t_pp\": 0.5}'\n");
  CHECK(contains(folder.peers("batch --rounds 1"), "left out: llama-batched-bench printed what is not its jsonl"));
  folder.write_program(kBatchedBench,
                       "echo $8 ${10} ${14} >>asked\necho 'kv: size =    1.50 MiB (   256 cells, 2 layers)' >&2\n"
                       "echo '{\"pl\": 4, \"t_pp\": 0.5, \"t_tg\": 1.5}'\n");
  const std::string out = folder.peers("batch --rounds 2");
  for (const char* part : {"tiny.Q8_0.gguf", "suffix over it", "1.6", "prefill of all prompts"})
    CHECK_MESSAGE(contains(out, part), out);
  const Json ours = Json::parse(read_file("out/batch.json"))["batches"];
  const Json said = Json::parse(read_file("peers.json"))["batch"];
  REQUIRE(said.size() == 1);
  CHECK(said[0]["file"] == "tiny.Q8_0.gguf");
  REQUIRE(said[0]["batches"].size() == 3);
  std::string asked;  // in each round: room, the mean length of our prompts, texts
  for (size_t i = 0; i < 3; i++) {
    const Json& batch = said[0]["batches"][i];
    const int texts = 1 << i;
    for (const char* field : {"texts", "prompt_tokens", "kept_bytes"}) CHECK(batch[field] == ours[i][field]);
    for (const char* field : {"plain_tokens_per_second", "drafted_tokens_per_second"}) {
      CHECK(batch[field].size() == 2);
      CHECK(batch[field][1] == ours[i][field][0]);
    }
    CHECK(batch["peer_tokens_per_second"] == Json({32.0 * texts, 32.0 * texts}));
    CHECK(batch["peer_prefill_seconds"] == Json({0.5, 0.5}));
    CHECK(batch["peer_decoding_seconds"] == Json({1.5, 1.5}));
    CHECK(batch["peer_kept_bytes"] == 1.5 * (1 << 20));
    const int prompt = int(std::nearbyint(batch["prompt_tokens"].get<double>() / texts));
    asked += std::to_string(texts * (prompt + 64)) + " " + std::to_string(prompt) + " " + std::to_string(texts) + "\n";
  }
  CHECK(read_file("asked") == asked + asked);
}

TEST_CASE("peers: kinds: speculation over llama.cpp's best way, kind by kind") {
  if (!has_python()) return;
  const PeerFolder folder;
  folder.write_questions();
  CHECK(contains(folder.peers("kinds"), "build it with make peers"));
  folder.write_program(
      kSpeculate, "echo $3 >tokens\n[ $(wc -l <$2) = 1 ] || exit 1\ngrep -q Copy $2 && cat copying || cat story\n");
  CHECK(contains(folder.peers("kinds"), "there is no build/bench/kinds.json: bench --only kinds writes it"));
  write_file("copying",
             answered(0, "plain", 16, 2) + answered(0, "lookup", 16, 0.25) + answered(0, "ngram-mod", 16, 1));
  write_file("story", answered(0, "plain", 16, 0.5) + answered(0, "lookup", 16, 1));
  run(bench_command, kKindsWords);
  const std::string out = folder.peers("kinds --kinds out/kinds.json");
  for (const char* part : {"tiny.Q8_0.gguf", "copying", "story", "lookup"}) CHECK_MESSAGE(contains(out, part), out);
  CHECK(read_file("tokens") == "16\n");  // as many as a quick run of ours may have
  const Json studies = Json::parse(read_file("peers.json"))["studies"];
  REQUIRE(studies.size() == 6);
  const Json& copying = studies[0]["llama_cpp"];
  CHECK(copying["best"] == "lookup");
  CHECK(copying["speed"].get<double>() == doctest::Approx(64));
  CHECK(copying["plain"].get<double>() == doctest::Approx(8));
  CHECK(copying["over"]["suffix"].get<double>() == doctest::Approx(0.5));  // 32 tokens a second
  CHECK(studies[1]["llama_cpp"]["best"] == "plain");
}
