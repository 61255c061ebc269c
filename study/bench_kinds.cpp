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
constexpr double kRepeatSeconds = 90;  // no repeat of all begins that would end later

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

  std::string name() const { return type + ", temperature " + temperature_text(temperature()); }
  std::vector<std::string> each_kind() const {
    std::vector<std::string> each;
    for (const std::string& kind : kinds)
      if (each.empty() || each.back() != kind) each.push_back(kind);
    return each;
  }
  template <class Numbers>
  Numbers of_kind(const Numbers& numbers, const std::string& kind) const {
    Numbers its;
    for (size_t p = 0; p < kinds.size(); p++)
      if (kinds[p] == kind) its.push_back(numbers[p]);
    return its;
  }
  Interval speedup_of(const std::string& kind, size_t m) const {
    return ratio_interval(of_kind(gains(m, trial.plain), kind));
  }
  // m's tokens a second, prompt by prompt: the median of the repeats.
  std::vector<double> prompt_speeds(size_t m) const {
    std::vector<double> all;
    for (size_t p = 0; p < kinds.size(); p++) {
      std::vector<double> repeats;
      for (const Run& run : outcomes[m].runs)
        repeats.push_back(ratio(double(run.prompts[p].tokens), run.prompts[p].seconds));
      all.push_back(median(repeats));
    }
    return all;
  }
};

std::string kinds_table(const Answers& a) {
  TableRows rows = {
      {"kind", "drafter", "tok/s", "times plain", "95% interval", "tokens/forward", "nodes/forward", "identical"}};
  for (const std::string& kind : a.each_kind())
    for (size_t m = 0; m < a.trial.methods.size(); m++) {
      const Interval gain = a.speedup_of(kind, m);
      Stats sum;
      for (const Stats& its : a.of_kind(a.by_prompt(m), kind)) add(sum, its);
      const double forwards = double(sum.target_forwards);
      rows.push_back(
          {m ? "" : kind, a.trial.methods[m].drafter, decimals(median(a.of_kind(a.prompt_speeds(m), kind)), 1),
           decimals(gain.middle, 2), m ? decimals(gain.low, 2) + " to " + decimals(gain.high, 2) : "",
           decimals(ratio(double(sum.tokens), forwards), 2), decimals(ratio(double(sum.drafted_nodes), forwards), 1),
           identical(a.trial.methods[m], a.outcomes[m])});
    }
  return format_table(rows, "llrrrrrl");
}

OrderedJson answers_json(const Answers& a) {
  OrderedJson json = comparison_json(a.trial, *a.engine, a.outcomes, {{"kinds", a.kinds}, {"asked", a.asked}});
  for (size_t m = 0; m < a.trial.methods.size(); m++)
    json["methods"][m]["tokens_per_second_by_prompt"] = a.prompt_speeds(m);
  for (const std::string& kind : a.each_kind()) {
    OrderedJson of = {{"kind", kind}};
    for (size_t m = 0; m < a.trial.methods.size(); m++)
      of["times_plain"][a.trial.methods[m].drafter] = interval_json(a.speedup_of(kind, m));
    json["by_kind"].push_back(of);
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
      const Interval gain = a.speedup_of(kind, a.trial.methods.size() - 1);
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
    options.max_new_tokens = bench.quick ? 16 : kAnswerTokens;
    subjects.push_back(std::make_unique<Subject>(options));
    Subject& subject = *subjects.back();
    Engine& engine = subject.engine;
    Answers a;
    a.engine = &engine;
    a.type = type;
    Trial& trial = a.trial;
    trial.options = options;
    trial.by_prompt = trial.own_noise = true;
    trial.repeats = bench.quick ? 1 : bench.repeats;
    trial.most_seconds = kRepeatSeconds;
    for (const Json& question : questions) {
      Conversation talk =
          begin_conversation(engine.tokenizer(), engine.chat_template(), path, std::nullopt, engine.begin_token());
      talk.ask(question.at("prompt"));
      const Tokenizer& tokenizer = engine.tokenizer();
      a.kinds.push_back(question.at("kind"));
      trial.prompts.push_back(question.at("prompt"));
      trial.tokens.push_back(talk.tokens());
      std::string asked;  // with the text of control tokens
      for (int token : talk.tokens())
        asked += (tokenizer.bpe ? tokenizer.bpe->symbols() : tokenizer.symbols)[size_t(token)];
      a.asked.push_back(asked);
    }
    std::string missing;
    trial.methods = subject.usable({kPlain, matched("suffix", "auto"), matched("suffix+ngram:4", "auto")},
                                   trial.tokens[0], missing);
    for (float temperature : kTemperatures) {
      trial.options.sampling.temperature = temperature;
      a.outcomes = run_all(trial, engine, [&](const std::string& doing, double done) {
        bench.time->show(a.name() + ", " + doing, share * (double(all.size()) + 0.5 * done));
      });
      if (a.empty() || interrupted()) return;
      all.push_back(a);
      bench.evenness.push_back({a.name() + ", plain decoding", unevenness(speeds(a.outcomes[trial.plain]))});
      bench.print("Speculation by what is asked for: " + a.circumstances(), kinds_table(a) + missing);
      json["answers"].push_back(answers_json(a));
      bench.write_json("kinds", json);
      refuse_broken(broken(trial, a.outcomes));
      missing.clear();
    }
  }
  bench.write_svg("kinds", kinds_picture(bench, all));
  const std::string text = peers_text(bench, {"kinds", "--kinds", bench.out + "/kinds.json"}, {0.5, 0.5}, json);
  if (interrupted()) return;
  bench.print("llama.cpp's own speculation, on three questions of each kind", text);
  bench.write_json("kinds", json);
}

}  // namespace nanospec
