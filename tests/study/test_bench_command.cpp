// tests/study/test_bench_command.cpp: nanospec bench and exact, over the engine that stands in.
#include <doctest/doctest.h>

#include <filesystem>

#include "commands/commands.h"
#include "study/bench.h"
#include "study/study.h"
#include "tests/command_line.h"
#include "tests/commands/stand_in.h"
#include "tests/error_of.h"
#include "tests/gguf_file.h"
#include "tests/picture.h"

using namespace nanospec;

TEST_CASE("bench: a quick run prints its tables and leaves whole files") {
  script = steady;
  const Folder folder;
  write_file(folder.file("model.safetensors"), "");
  std::string text;
  for (int i = 0; i < 500; i++) text += "line " + std::to_string(i) + "\n";
  write_file(folder.file("text.txt"), text);
  const std::string out = run(bench_command, {"--quick", "--model", folder.path, "--data", folder.file("text.txt"),
                                              "--out", folder.file("out"), "--threads", "2"});
  for (const char* part :
       {"Roofline: ", "reading L2", "multiply-add fp32", "cost of N rows", "small bf16", "prefill", "temperature 0.7",
        "bigram auto budget=64", "training, batch 12", "attention backward", "whole updates, unwatched: "})
    CHECK_MESSAGE(contains(out, part), part);
  check_quick_tables(out, {"Roofline: ", "Forwards of one row", "Speculation, by shape and budget",
                           "One update of small by operation, 12 x 64 tokens, 2 threads", "Training"});
  for (const Call& call : calls) CHECK(call.prompt.size() == 64);

  const auto json = [&](const std::string& name) {
    return Json::parse(read_file(folder.file("out/" + name + ".json")));
  };
  for (const char* name : {"roofline", "forward", "decode", "train", "evenness"}) {
    const Json file = json(name);
    for (const char* field : {"cpu", "cores", "l2_bytes", "l3_bytes", "simd", "compiler", "date"})
      CHECK_MESSAGE(file["machine"].contains(field), field);
    CHECK(file["roofline"]["read_bytes_per_second"]["memory"]["all_threads"] > 0);
    const size_t runs = file["roofline"]["flops_per_second"]["fp32"]["one_thread_runs"].size();
    CHECK(runs >= 1);  // two, where time allows them
    CHECK(runs <= 2);
  }
  const Json forward = json("forward");
  REQUIRE(forward["configurations"].size() == 4);
  CHECK(forward["configurations"][2]["dtype"] == "q8");
  CHECK(forward["configurations"][3]["dtype"] == "q4");
  const Json& past = forward["configurations"][1]["pasts"][1];
  CHECK(forward["configurations"][1]["dtype"] == "bf16");
  CHECK(past["past"] == 48);
  CHECK(past["bytes"] == 3e6 + 48e3);
  CHECK(past["seconds"].get<double>() == doctest::Approx(0.01 + 48e-5));
  CHECK(past["bytes_per_second"].get<double>() == doctest::Approx(past["bytes"].get<double>() / (0.01 + 48e-5)));
  REQUIRE(past["rows"].size() == 8);
  CHECK(past["rows"][7]["rows"] == 16);
  CHECK(past["rows"][7]["cost"].get<double>() == doctest::Approx((0.025 + 48e-5) / (0.01 + 48e-5)));
  CHECK(past["rows"][7]["seconds"].size() == 2);
  CHECK(forward["configurations"][0]["prefill"]["tokens"] == 63);

  const Json updates = json("train")["updates"];
  REQUIRE(updates.size() == 1);
  CHECK(updates[0]["preset"] == "small");
  CHECK(updates[0]["whole_seconds"].size() == 2);
  CHECK(updates[0]["share"] > 0);
  CHECK(updates[0]["operations"][5]["operation"] == "fc");
  CHECK(updates[0]["operations"][5]["flops"] == 2.0 * 4 * 768 * 128 * 512);
  CHECK(updates[0]["operations"][5]["seconds"].size() == 2);

  const Json decode = json("decode");
  REQUIRE(decode["studies"].size() == 3);
  CHECK(decode["studies"][1]["temperature"] == 0.7);
  CHECK(decode["studies"][0]["methods"][1]["speedup"] == 2.0);
  CHECK(decode["studies"][0]["methods"][1]["samples"].size() == 1);
  CHECK(decode["studies"][0]["methods"][36]["budget"] == 64);
  CHECK(!json("evenness")["unevenness"].empty());
  for (const char* name : {"cost", "decode"}) {
    CAPTURE(name);
    const std::string svg = read_file(folder.file("out/" + std::string(name) + ".svg"));
    CHECK(picture_problem(svg) == "");
    CHECK(read_picture(svg).word(kQuickRun).left > 0);
  }
}

TEST_CASE("bench: section forward measures the file that --model names, after pasts and a prefill that it can have") {
  const Folder folder;
  Draft model = llama_gguf();
  const auto measured = [&] {
    const std::string path = folder.file("m.gguf", model.bytes());
    const std::string out =
        run(bench_command, {"--quick", "--only", "forward", "--model", path, "--out", folder.file("out")});
    CHECK_MESSAGE(contains(out, "m.gguf F32"), out);
    const Json all = Json::parse(read_file(folder.file("out/forward.json")))["configurations"];
    REQUIRE(all.size() == 1);
    return all[0];
  };
  const Json narrow = measured();
  const int window = narrow["block_size"];
  CHECK(narrow["pasts"][1]["past"] == window - 17);
  CHECK(narrow["prefill"]["tokens"] == window - 1);
  model.set(whole("llama.context_length", 4096));
  const Json json = measured();
  CHECK(json["name"] == "m.gguf");
  CHECK(json["dtype"] == "F32");
  CHECK(json["pasts"][0]["past"] == 32);
  CHECK(json["pasts"][1]["past"] == 1900);
  CHECK(json["pasts"][0]["rows"][0]["seconds"][0].get<double>() == doctest::Approx(0.01 + 32e-5));
  CHECK(json["prefill"]["seconds"][0].get<double>() == doctest::Approx(0.512));
  CHECK(picture_problem(read_file(folder.file("out/cost.svg"))) == "");
}

TEST_CASE("bench: section gpu holds kernels and decoding against the limits, and is left out where there is none") {
  const Folder folder;
  const Words words = {"--quick", "--only", "gpu", "--data", folder.path, "--out", folder.file("out")};
  stand_in().gpu = false;
  CHECK(contains(run(bench_command, words), "left out: there is no CUDA device"));
  CHECK(!std::filesystem::exists(folder.file("out/gpu.json")));

  stand_in().gpu = true;
  const std::string out = run(bench_command, words);
  stand_in().gpu = false;
  for (const char* part : {"GPU: Abacus <9>, 4 multiprocessors, compute capability 9.0", "reading memory", "8,000",
                           "Kernels on Abacus <9>", "Decoding on Abacus <9>", "cost of N rows", "small bf16",
                           "Early on Abacus <9>", "Training on Abacus <9>"})
    CHECK_MESSAGE(contains(out, part), part);
  const Json json = Json::parse(read_file(folder.file("out/gpu.json")));
  CHECK(json["gpu"]["name"] == "Abacus <9>");
  CHECK(json["limits"]["bf16_flops_per_second"]["runs"].size() == 2);
  REQUIRE(json["kernels"].size() == 3);
  CHECK(json["kernels"][0]["share_of_memory"] == doctest::Approx(0.5));
  CHECK(json["kernels"][0]["share_of_compute"] == doctest::Approx(0.125));
  CHECK(json["kernels"][1]["limit"] == "compute");
  CHECK(json["kernels"][0]["seconds"].size() == 3);
  CHECK(stand_in().early == "on launches off on ");
  REQUIRE(json["early"].size() == 6);
  CHECK(json["early"][5]["early"] == "off");
  CHECK(json["early"][5]["past"] == 48);
  REQUIRE(json["configurations"].size() == 2);
  const Json& past = json["configurations"][0]["pasts"][1];
  CHECK(past["share"].get<double>() == doctest::Approx((3e6 + 48e3) / (0.01 + 48e-5) / 1e9));
  REQUIRE(past["rows"].size() == 7);
  CHECK(past["rows"][6]["rows"] == 64);
  CHECK(!past.contains("plain_read_share"));
  const std::string svg = read_file(folder.file("out/kernels.svg"));
  CHECK(contains(svg, "Abacus &lt;9&gt;"));
  CHECK(contains(svg, "matmul fp32, 64 x 2 x 3"));
  CHECK(contains(svg, "1,500 GFLOP/s in fp32"));
  CHECK(picture_problem(svg) == "");
}

TEST_CASE("bench: --roofline and --only choose; what is missing is said, not fatal") {
  const Folder folder;
  const std::string roofline = run(bench_command, {"--roofline", "--quick", "--out", folder.file("out")});
  CHECK(contains(roofline, "reading memory"));
  CHECK(!contains(roofline, "Forwards"));
  CHECK(!std::filesystem::exists(folder.file("out/forward.json")));
  const std::string decode =
      run(bench_command, {"--quick", "--only", "decode", "--model", folder.path, "--out", folder.file("out")});
  CHECK(contains(decode, "left out: there is no trained model: " + folder.path));
  CHECK(!contains(decode, "Forwards"));

  const auto attempt = [](Words words) {
    words.insert(words.begin(), "bench");
    std::vector<char*> argv = arguments(words);
    bench_command(int(argv.size()), argv.data());
  };
  CHECK(error_of([&] {
          attempt({"--model", folder.file("none")});
        }) == "there is no such file or folder: " + folder.file("none") + ": --model: check the path");
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--only", "forwards"})), "did you mean forward?"));
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--only", ""})), "no section: --only: name some, or leave it out"));
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--only", "decode", "--roofline"})), "give one of the two"));
  CHECK_THROWS_AS(attempt({"--repeat", "0"}), std::invalid_argument);
  CHECK_THROWS_AS(attempt({"--roofline", "--out", "/proc/nanospec"}), std::runtime_error);
}

// ---------------------------------------------------------------------------------------------------------------
// exact

TEST_CASE("exact: its tables, its JSON, and the last line") {
  const Folder folder;
  const std::string out =
      run(exact_command, {"--distributions", "1", "--samples", "500", "--vocab", "8", "--json", folder.file("e.json")});
  for (const RuleWord& rule : kRules) CHECK(contains(out, std::string("\n") + rule.word + " "));
  CHECK(contains(out, "the control, judged as with"));
  const std::string last = "Every rule that promises exactness held, in 30 rows of these tables; the control failed";
  CHECK(contains(out.substr(out.size() - 120), last));
  const Json json = Json::parse(read_file(folder.file("e.json")));
  CHECK(json["held"] == true);
  CHECK(json["sampled"].size() == 2 * std::size(kRules));
  for (const Json& row : json["enumerated"]) {
    CHECK(row["distributions"].size() == 8);
    if (row["promises_exactness"] == true) CHECK(row["largest_distance"].get<double>() < 1e-12);
  }
  CHECK(!contains(run(exact_command, {"--distributions", "1", "--samples", "0"}), "texts"));
}
