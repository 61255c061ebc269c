// tests/files/test_advice.cpp: files/advice.h: how a model is sampled where no flag says how; and what the commands
// make of it.
#include "files/advice.h"

#include <doctest/doctest.h>

#include "commands/commands.h"
#include "files/checkpoint.h"
#include "tests/command_line.h"
#include "tests/commands/stand_in.h"
#include "tests/error_of.h"
#include "tests/gguf_file.h"

using namespace nanospec;

namespace {

// "0.7 0 0.95": what is advised, and a repetition penalty that is not 1; then the file that says so.
std::string advised(const std::string& model) {
  const Advice advice = advice_of(model);
  const Sampling& s = advice.sampling;
  std::string text = filled("{} {} {}", s.temperature, s.top_k, s.top_p);
  if (s.repetition_penalty != 1) text += filled(" {}", s.repetition_penalty);
  return text + (advice.from.empty() ? "" : " " + std::filesystem::path(advice.from).filename().string());
}

// A folder of transformers, with this generation_config.json, if any.
std::string folder_says(const Folder& folder, const std::string& generation) {
  for (const char* file : {"config.json", "model.safetensors"})
    folder.file(file, read_file(std::string("tests/files/llama_folder/") + file));
  folder.file("tokenizer.json", read_file("tests/files/bpe_small.json"));
  if (!generation.empty()) folder.file("generation_config.json", generation);
  return folder.path;
}
std::string folder_advised(const std::string& generation) {
  const Folder folder;
  return advised(folder_says(folder, generation));
}

std::string file_advised(const std::vector<Key>& keys) {
  const Folder folder;
  Draft draft = llama_with_tokenizer();
  draft.keys.insert(draft.keys.end(), keys.begin(), keys.end());
  return advised(folder.file("m.gguf", draft.bytes()));
}
Key top_k(int32_t value) { return key_of("general.sampling.top_k", GgufKind::i32, raw(value)); }

}  // namespace

TEST_CASE("advice: a folder of transformers is sampled as its generation_config.json says") {
  const std::string usual = "0.7 0 0.95", file = " generation_config.json";
  CHECK(folder_advised("") == usual);
  CHECK(folder_advised(R"({"bos_token_id": 1, "temperature": null})") == usual);
  CHECK(folder_advised(R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.9})") == "0.6 20 0.9" + file);
  CHECK(folder_advised(R"({"temperature": 1})") == "1 0 1" + file);
  CHECK(folder_advised(R"({"top_p": 0.8})") == "1 0 0.8" + file);
  CHECK(folder_advised(R"({"do_sample": false, "temperature": 0.6})") == "0 0 1" + file);
  CHECK(folder_advised(R"({"temperature": 0.6, "repetition_penalty": 1.25})") == "0.6 0 1 1.25" + file);
  CHECK(folder_advised(R"({"repetition_penalty": 1.25})") == "1 0 1 1.25" + file);
  CHECK(folder_advised(R"({"do_sample": false, "repetition_penalty": 1.25})") == "0 0 1 1.25" + file);
}

TEST_CASE("advice: a GGUF file is sampled as its keys general.sampling say") {
  CHECK(file_advised({}) == "0.7 0 0.95");
  CHECK(file_advised({real("general.sampling.temp", 0.6f), top_k(20), real("general.sampling.top_p", 0.9f)}) ==
        "0.6 20 0.9 m.gguf");
  CHECK(file_advised({real("general.sampling.temp", 0)}) == "0 0 1 m.gguf");
  CHECK(file_advised({top_k(-1)}) == "1 0 1 m.gguf");  // off
  CHECK(file_advised({real("general.sampling.penalty_repeat", 1.5f)}) == "1 0 1 1.5 m.gguf");
}

TEST_CASE("advice: a model of train_gpt, with a hash or without, and one that is not there have temperature 1") {
  const Folder folder;
  Config config;
  config.n_layer = 1, config.n_head = config.n_kv_head = 1, config.n_embd = 4, config.block_size = 6;
  config.vocab_size = 2;
  const std::vector<float> weights(parameter_count(config), 0.5f);
  save_model(folder.path, config, {{"a", "b"}}, weights.data());
  folder.file("generation_config.json", R"({"temperature": 0.5})");
  CHECK(advised(folder.path) == "1 0 1");
  std::string bytes = read_file(folder.file("model.safetensors"));
  const size_t at = bytes.find("\"hash\"");
  REQUIRE(at != std::string::npos);
  folder.file("model.safetensors", bytes.replace(at, 6, "\"mash\""));
  REQUIRE(model_metadata(folder.path).count("hash") == 0);
  CHECK(advised(folder.path) == "1 0 1");
  CHECK(advised("nowhere") == "1 0 1");
  CHECK(advised("nowhere.gguf") == "1 0 1");
}

TEST_CASE("advice: what cannot be sampled with is refused, with its file") {
  const auto refused = [](const std::string& generation) { return error_of([&] { folder_advised(generation); }); };
  CHECK(holds(refused(R"({"temperature": "warm"})"), "\"temperature\" is \"warm\", expected a number"));
  CHECK(holds(refused(R"({"temperature": -1})"), "it advises a sampling that is none: temperature -1.0"));
  CHECK(holds(refused(R"({"temperature": 1e-9})"), "it advises a sampling that is none"));
  CHECK(holds(refused(R"({"top_k": 1e12})"), "generation_config.json: mend it there"));
  CHECK(holds(refused(R"({"top_p": 0})"), "top_p 0.0"));
  CHECK(holds(refused(R"({"repetition_penalty": 0})"), "repetition_penalty 0.0"));
  CHECK(holds(refused("{"), "generation_config.json"));
  CHECK(holds(error_of([] { file_advised({words("general.sampling.temp", "1")}); }), "general.sampling.temp"));
}

TEST_CASE("advice: commands sample as the files advise, with a note, where no temperature is given") {
  const Folder folder;
  const std::string model = folder_says(folder, R"({"temperature": 0.6, "top_p": 0.9})");
  const StandInEngine before = stand_in();
  script = steady;
  const auto said = [&](int (*command)(int, char**), Words words) {
    words.insert(words.begin(), {"command", "--model", model, "--prompt", "a"});
    stand_in().calls.clear();
    notes() = Notes();
    std::string error;
    captured(1, [&] {
      error = captured(2, [&] {
        std::vector<char*> argv = arguments(words);
        command(int(argv.size()), argv.data());
      });
    });
    return error;
  };
  const auto sampled = [] { return sampling_text(stand_in().calls.at(0).sampling); };
  const std::string where = model + "/generation_config.json: it advises this; --temperature gives another\n";
  CHECK(holds(said(generate_command, {}), "note: temperature 0.6, top_p 0.9: " + where));
  CHECK(sampled() == "temperature 0.6, top_p 0.9");
  CHECK(holds(said(generate_command, {"--top_p", "0.5"}), "note: temperature 0.6, top_p 0.5: " + where));
  CHECK(sampled() == "temperature 0.6, top_p 0.5");
  CHECK(!holds(said(generate_command, {"--temperature", "0.4"}), "note: temperature"));
  CHECK(sampled() == "temperature 0.4");
  CHECK(holds(said(show_command, {"--html", folder.file("p.html")}), where));
  CHECK(sampled() == "temperature 0.6, top_p 0.9");
  const auto drafts_by = [](const std::string& drafter) {
    return std::any_of(stand_in().calls.begin(), stand_in().calls.end(),
                       [&](const Call& call) { return call.method.find(drafter + " ") == 0; });
  };
  for (const bool bigrams : {false, true}) {
    if (bigrams) folder.file("bigram.safetensors", "");
    for (const auto& command : {generate_command, compare_command}) {
      said(command, {});
      CHECK(drafts_by("suffix") == !bigrams);
      CHECK(drafts_by("bigram") == bigrams);
    }
  }
  said(compare_command, {"--methods", "none", "--repeat", "1"});
  CHECK(sampled() == "temperature 0.6, top_p 0.9");
  decodes = true;
  said(calibrate_command, {"--drafter", "suffix", "--out", folder.file("c.json"), "--places", "10"});
  CHECK(sampled() == "temperature 0.6, top_p 0.9");
  stand_in() = before;
}
