// study/bench_kinds.cpp: section kinds: what speculation gains on real models, by what they are asked for. Each of 48
// questions, eight of a kind, is answered by plain decoding and by speculation in turn, at several temperatures; and by
// llama.cpp's own ways to speculate (tests/reference/peers.py).
#include <filesystem>
#include <set>

#include "commands/conversation.h"
#include "files/gguf.h"
#include "study/experiments.h"
#include "study/process.h"

namespace nanospec {
namespace {

constexpr const char* kQuestions = "data/kinds.jsonl";
constexpr float kTemperatures[] = {0, 0.7f, 1};
constexpr const char* kTypes[] = {"Q8_0", "Q4_1"};
constexpr int kAnswerTokens = 128, kAnswerContext = 2048;
constexpr double kRepeatSeconds = 75;  // no repeat of all begins that would end much later

// For each type the first file of models/ whose name has it.
std::map<std::string, std::string> kinds_files() {
  std::map<std::string, std::string> files;
  std::error_code none;
  std::set<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator("models", none))
    if (is_gguf(entry.path().string())) paths.insert(entry.path().string());
  for (const std::string& path : paths)
    for (const char* type : kTypes)
      if (path.find(type) != std::string::npos) files.insert({type, path});
  return files;
}

// What one file makes of the questions at one temperature.
struct Answers : Experiment {
  std::string type;
  std::vector<std::string> kinds, asked;  // of the prompts; in the file's chat template

  std::vector<std::string> each_kind() const {
    std::vector<std::string> each;
    for (const std::string& kind : kinds)
      if (each.empty() || each.back() != kind) each.push_back(kind);
    return each;
  }
  Experiment of_kind(const std::string& kind) const {  // these prompts alone
    Experiment its = *this;
    for (Outcome& outcome : its.outcomes)
      for (Run& run : outcome.runs) {
        const std::vector<Stats> all = std::move(run.prompts);
        run = {};
        for (size_t p = 0; p < kinds.size(); p++) {
          if (kinds[p] != kind) continue;
          run.prompts.push_back(all[p]);
          add(run.stats, all[p]);
        }
      }
    return its;
  }
};

OrderedJson answers_json(const Answers& a) {
  OrderedJson json = a.json();
  json["kinds"] = a.kinds;
  json["asked"] = a.asked;
  for (const std::string& kind : a.each_kind()) {
    const Experiment its = a.of_kind(kind);
    OrderedJson times;
    for (size_t m = 0; m < a.trial.methods.size(); m++)
      times[a.trial.methods[m].drafter] = interval_json(its.speedup(m, a.trial.plain));
    json["by_kind"].push_back({{"kind", kind}, {"times_plain", times}});
  }
  return json;
}

// A bar for each kind and temperature: the last method (the union, where it is there) over plain decoding.
std::string kinds_picture(const Bench& bench, const std::vector<Answers>& all) {
  std::map<std::string, std::vector<IntervalBar>> bars;  // by type and kind
  BarAxis axis{"times plain decoding", 1, "plain decoding"};
  for (size_t t = 0; t < std::size(kTemperatures); t++)
    axis.colours.push_back({"temperature " + temperature_text(kTemperatures[t]), colour_at(t)});
  for (const Answers& a : all)
    for (const std::string& kind : a.each_kind()) {
      std::vector<IntervalBar>& its = bars[a.type + ", " + kind];
      const Interval gain = a.of_kind(kind).speedup(a.trial.methods.size() - 1, a.trial.plain);
      its.push_back({its.empty() ? a.type + ", " + kind : "", gain, decimals(gain.middle, 2), colour_at(its.size())});
    }
  std::vector<IntervalBar> in_turn;
  for (const auto& [name, its] : bars) in_turn.insert(in_turn.end(), its.begin(), its.end());
  return interval_picture("Speculation by what is asked for: " + all[0].trial.methods.back().drafter + " auto",
                          machine_line(bench), axis, in_turn);
}

}  // namespace

double kinds_seconds() { return 240.0 * double(kinds_files().size() * std::size(kTemperatures)); }

void bench_kinds(Bench& bench) {
  const std::map<std::string, std::string> files = kinds_files();
  if (files.empty() || !std::filesystem::exists(kQuestions))
    return bench.print(
        "Speculation on real models",
        left_out(files.empty() ? "there is no GGUF file of 8 or 4 bits (Q8_0, Q4_1) in models/: sh "
                                 "data/get_model.sh gets one"
                               : "there is no " + std::string(kQuestions) + ": run it in the project's folder"));
  std::vector<Json> questions;
  std::map<std::string, int> of_kind;
  for (const std::string& line : split_at(read_file(kQuestions), '\n'))
    if (const Json json = parse_json(line, kQuestions); !bench.quick || of_kind[json.at("kind")]++ < 1)
      questions.push_back(json);

  std::vector<Answers> all;
  std::vector<std::unique_ptr<Subject>> subjects;
  OrderedJson json;
  const double share = 1.0 / double(files.size() * std::size(kTemperatures));
  for (const auto& [type, path] : files) {
    Options options = bench.options;
    options.settings.model = path;
    options.settings.context = kAnswerContext;
    options.settings.keeps_cache = true;
    subjects.push_back(std::make_unique<Subject>(options));
    Subject& subject = *subjects.back();
    Engine& engine = subject.engine;
    Answers a;
    a.type = type;
    std::vector<std::string> prompts;
    std::vector<std::vector<int>> tokens;  // theirs, in the chat template
    for (const Json& question : questions) {
      Conversation talk =
          begin_conversation(engine.tokenizer(), engine.chat_template(), path, std::nullopt, engine.begin_token());
      talk.ask(question.at("prompt"));
      const Tokenizer& tokenizer = engine.tokenizer();
      a.kinds.push_back(question.at("kind"));
      prompts.push_back(question.at("prompt"));
      tokens.push_back(talk.tokens());
      std::string asked;  // with the text of control tokens
      for (int token : tokens.back())
        asked += (tokenizer.bpe ? tokenizer.bpe->symbols() : tokenizer.symbols)[size_t(token)];
      a.asked.push_back(asked);
    }
    std::string missing;
    const std::vector<Method> methods =
        subject.usable({kPlain, matched("suffix", "auto"), matched("suffix+ngram:4", "auto")}, tokens[0], missing);
    for (float temperature : kTemperatures) {
      static_cast<Experiment&>(a) =
          run_study(bench, subject, methods, prompts, {bench.repeats, kAnswerTokens, kAnswerTokens}, temperature,
                    kRepeatSeconds, {share * double(all.size()), share / 2}, tokens);
      if (a.empty() || interrupted()) return;
      all.push_back(a);
      bench.evenness.push_back({type + ", temperature " + temperature_text(temperature) + ", plain decoding",
                                unevenness(speeds(a.outcomes[a.trial.plain]))});
      std::string tables;
      for (const std::string& kind : a.each_kind()) tables += kind + "\n" + study_table(a.of_kind(kind)) + "\n";
      bench.print("Speculation by what is asked for: " + a.circumstances(), tables + missing);
      json["answers"].push_back(answers_json(a));
      bench.write_json("kinds", json);
      missing.clear();
    }
  }
  bench.write_svg("kinds", kinds_picture(bench, all));
  const std::string text = peers_text(bench, {"kinds", "--kinds", bench.out + "/kinds.json"}, {0.5, 0.5}, json);
  if (text.empty()) return;
  bench.print("llama.cpp's own speculation, on three questions of each kind", text);
  bench.write_json("kinds", json);
}

}  // namespace nanospec
