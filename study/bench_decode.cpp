// study/bench_decode.cpp: what speculation gains. Section decode: a trained model, on prompts that it was not trained
// on: every drafter with a sweep of fixed shapes and with `auto` at several budgets. Section kinds: a real model, by
// what it is asked for; what llama.cpp's own ways to speculate make of the same questions, tests/reference/peers.py
// measures. Experiments ask it the same.

#include "files/gguf.h"
#include "study/experiments.h"

namespace nanospec {
namespace {

// The sections, as experiments are. Their seconds stand in the table of bench.cpp.
const Topic kDecode = {
    "decode",
    "Speculation, by shape and budget",
    "{bigram|ngram:4} "
    "{chain:1|chain:2|chain:3|chain:4|chain:5|chain:6|chain:7|chain:8|tree:2x2|tree:2x3|tree:3x2|tree:2x4|tree:4x2|"
    "tree:3x3|tree:5x2};{bigram|ngram:4} auto budget={2|4|8|16|32|64};random auto budget=64",
    {0, {1, 0.7f, 0}, 0, 60, 300, 1},
    {},
    {kSpeed, "", nullptr, true}};
const Topic kKinds = {"kinds",
                      "Speculation on a real model, by what is asked for",
                      "{suffix|suffix+ngram:4} auto",
                      {0, {0, 0.7f, 1}, 0, 128, 128}};

constexpr const char* kQuestions = "data/kinds.jsonl";
constexpr size_t kEachKind = 2;  // questions of an experiment

}  // namespace

// ---------------------------------------------------------------------------------------------------------------
// Decode

std::string decode_missing(const Bench& bench) {
  const std::string &data = bench.data, &model = bench.options.settings.model;
  if (model.empty() || !std::filesystem::exists(model + "/model.safetensors"))
    return "there is no trained model: " + (model.empty() ? "runs/medium, runs/small" : printable(model, 300)) +
           ": train one with train_gpt, or name another with --model";
  if (data.empty() || !std::filesystem::exists(data))
    return "there is no text: " + (data.empty() ? "data" : printable(data, 300)) +
           ": get it with make data, or name one with --data";
  return "";
}

void bench_decode(Bench& bench) {
  const std::string missing = decode_missing(bench);
  if (!missing.empty()) return bench.print(kDecode.question, left_out(missing));
  Subject subject(bench.options);
  run_topic(
      bench, subject, kDecode,
      {{"held-out", held_out_prompts(bench.data, bench.quick ? 1 : 4, kHeldOutBytes, bench.options.settings.model)}},
      kDecode.question);
}

// ---------------------------------------------------------------------------------------------------------------
// Kinds

namespace {

// Questions of each kind, at most so many.
std::vector<Text> read_kinds(size_t most) {
  std::vector<Text> kinds;
  for (const std::string& line : split_at(read_file(kQuestions), '\n')) {
    const Json question = parse_json(line, kQuestions);
    if (kinds.empty() || kinds.back().name != question.at("kind")) kinds.push_back({question.at("kind"), {}});
    if (kinds.back().prompts.size() < most) kinds.back().prompts.push_back(question.at("prompt"));
  }
  return kinds;
}

// Why a model cannot be asked; "" where it can.
std::string kinds_missing(const std::string& model) {
  if (!is_gguf(model)) return "there is no GGUF file: --model: name one; sh data/get_model.sh gets one";
  if (!std::filesystem::exists(kQuestions))
    return "there is no " + std::string(kQuestions) + ": run it in the project's folder";
  return "";
}
Options asking(Options options) {
  constexpr int kContext = 2048;
  options.settings.context = kContext;
  options.settings.keeps_cache = true;
  options.chat = true;
  return options;
}

}  // namespace

void bench_kinds(Bench& bench) {
  const std::string missing = kinds_missing(bench.options.settings.model);
  if (!missing.empty()) return bench.print(kKinds.question, left_out(missing));
  Subject subject(asking(bench.options));
  run_topic(bench, subject, kKinds, read_kinds(bench.quick ? 1 : SIZE_MAX), kKinds.question);
}

void run_seeds(Bench& bench) {
  const Settings& its = bench.options.settings;
  const std::string command = "build/nanospec experiments --only seeds --model " + its.model + " --threads " +
                              std::to_string(its.threads),
                    missing = kinds_missing(its.model);
  if (!missing.empty()) return bench.print(command, left_out(missing));
  Options options = asking(bench.options);
  for (const Topic& topic : kSeeds) make_room(options.settings, methods_of(topic.methods, {}));
  Subject subject(options);
  const std::vector<Text> kinds = read_kinds(bench.quick ? 1 : kEachKind);
  Text all = {"all kinds", {}};
  for (const Text& kind : kinds) all.prompts.insert(all.prompts.end(), kind.prompts.begin(), kind.prompts.end());
  bench.seconds /= double(kSeeds.size());
  for (const Topic& topic : kSeeds)
    if (!interrupted())
      run_topic(bench, subject, topic, topic.from.texts == std::string("kinds") ? kinds : std::vector<Text>{all},
                topic.name + (": " + std::string(topic.question)) + "\n" + command);
}

}  // namespace nanospec
