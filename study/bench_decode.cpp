// study/bench_decode.cpp: what speculation gains. Section decode: a trained model, on prompts that it was not trained
// on: every drafter with a sweep of fixed shapes and with `auto` at several budgets. Section kinds: a real model, by
// what it is asked for; what llama.cpp's own ways to speculate make of the same questions, tests/reference/peers.py
// measures.
#include <filesystem>

#include "files/gguf.h"
#include "study/experiments.h"

namespace nanospec {

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
  if (!missing.empty()) return bench.print("Speculation", left_out(missing));
  constexpr int kPrompts = 4;
  const std::string shapes =
                        " {chain:1|chain:2|chain:3|chain:4|chain:5|chain:6|chain:7|chain:8"
                        "|tree:2x2|tree:2x3|tree:3x2|tree:2x4|tree:4x2|tree:3x3|tree:5x2};",
                    autos = " auto budget={2|4|8|16|32|64};";
  Topic topic = {"decode", 0, "Speculation, by shape and budget", ""};
  topic.methods =
      "bigram" + shapes + "bigram" + autos + "ngram:4" + shapes + "ngram:4" + autos + "random auto budget=64";
  topic.plan = {bench.repeats, 60, 300, 1};
  topic.temperatures = {1, 0.7f, 0};
  topic.by_budget = true;
  Subject subject(bench.options);
  const std::vector<std::string> prompts =
      held_out_prompts(bench.data, bench.quick ? 1 : kPrompts, kHeldOutBytes, bench.options.settings.model);
  run_topic(bench, subject, topic, {{"held-out", prompts}}, topic.question);
}

// ---------------------------------------------------------------------------------------------------------------
// Kinds

namespace {

// Questions of each kind, at most so many, in the model's chat template.
std::vector<Text> read_kinds(const std::string& path, const Subject& subject, size_t most) {
  const Tokenizer& tokenizer = subject.engine.tokenizer();
  std::vector<Text> kinds;
  for (const std::string& line : split_at(read_file(path), '\n')) {
    const Json question = parse_json(line, path);
    if (kinds.empty() || kinds.back().name != question.at("kind")) kinds.push_back({question.at("kind"), {}});
    Text& kind = kinds.back();
    if (kind.prompts.size() == most) continue;
    kind.prompts.push_back(question.at("prompt"));
    Conversation talk = conversation_of(subject.engine, subject.options, {}, "");
    talk.ask(kind.prompts.back());
    kind.tokens.push_back(talk.tokens());
    kind.asked.emplace_back();  // with the text of control tokens
    for (int token : kind.tokens.back())
      kind.asked.back() += (tokenizer.bpe ? tokenizer.bpe->symbols() : tokenizer.symbols)[size_t(token)];
  }
  return kinds;
}

}  // namespace

void bench_kinds(Bench& bench) {
  const std::string questions = "data/kinds.jsonl", heading = "Speculation on a real model, by what is asked for";
  constexpr int kAnswerTokens = 128, kAnswerContext = 2048;
  if (!is_gguf(bench.options.settings.model))
    return bench.print(heading, left_out("there is no GGUF file: --model: name one; sh data/get_model.sh gets one"));
  if (!std::filesystem::exists(questions))
    return bench.print(heading, left_out("there is no " + questions + ": run it in the project's folder"));
  Options options = bench.options;
  options.settings.context = kAnswerContext;
  options.settings.keeps_cache = true;
  Subject subject(options);
  Topic topic = {"kinds", 0, heading.c_str(), "{suffix|suffix+ngram:4} auto"};
  topic.plan = {bench.repeats, kAnswerTokens, kAnswerTokens};
  topic.temperatures = {0, 0.7f, 1};
  run_topic(bench, subject, topic, read_kinds(questions, subject, bench.quick ? 1 : SIZE_MAX), heading);
}

}  // namespace nanospec
