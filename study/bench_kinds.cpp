// study/bench_kinds.cpp: section kinds: what speculation gains on real models, by what they are asked for. Each of 48
// questions, eight of a kind, is answered by plain decoding and by speculation in turn, at several temperatures; and by
// llama.cpp with each of its own ways to speculate without a second model, by llama_speculate, which `make peers`
// builds (tests/reference/llama_speculate.cpp).
//
// In order: llama_speculate's words, read; questions and files; what one file makes of them; the runs; what is said.
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "commands/conversation.h"
#include "commands/samples.h"
#include "commands/svg.h"
#include "files/gguf.h"
#include "study/experiments.h"
#include "study/llama_speculate.h"
#include "study/process.h"

namespace nanospec {

std::vector<LlamaAnswer> parse_llama_speculate(const std::string& output, const std::string& where) {
  std::vector<LlamaAnswer> answers;
  try {
    for (const std::string& line : split_at(output, '\n')) {
      if (line.empty() || line[0] != '{') continue;
      const Json json = Json::parse(line);
      answers.push_back({json.at("prompt"), json.at("method"), json.at("tokens"), json.at("seconds")});
    }
  } catch (const Json::exception& error) {
    throw std::runtime_error(std::string("not what llama_speculate prints: ") + where + ": " + error.what());
  }
  return answers;
}

namespace {

// ---------------------------------------------------------------------------------------------------------------
// Questions and files

constexpr const char* kQuestions = "data/kinds.jsonl";
constexpr float kTemperatures[] = {0, 0.7f, 1};
constexpr const char* kTypes[] = {"Q8_0", "Q4_1"};
constexpr int kAnswerTokens = 128, kAnswerContext = 2048, kBudget = 64;
constexpr size_t kPeerQuestions = 3;     // of a kind, that llama.cpp answers by each of its methods
constexpr double kRepeatSeconds = 90;    // no repeat of all begins that would end later
constexpr double kProcessSeconds = 600;  // at most, for one process

struct Question {
  std::string kind, prompt;
};

std::vector<Question> read_questions(bool quick) {
  std::vector<Question> questions;
  std::map<std::string, int> of_kind;
  for (const std::string& line : split_at(read_file(kQuestions), '\n')) {
    if (line.empty()) continue;
    const Json json = Json::parse(line);
    const Question question{json.at("kind"), json.at("prompt")};
    if (!quick || of_kind[question.kind]++ < 1) questions.push_back(question);
  }
  return questions;
}

// For each type the first file of models/ whose name has it.
struct KindsFile {
  std::string type, path;
};
std::vector<KindsFile> kinds_files() {
  std::vector<KindsFile> files;
  std::error_code none;
  for (const char* type : kTypes) {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator("models", none))
      if (entry.path().filename().string().find(type) != std::string::npos && is_gguf(entry.path().string()))
        found.insert(entry.path().string());
    if (!found.empty()) files.push_back({type, *found.begin()});
  }
  return files;
}

// ---------------------------------------------------------------------------------------------------------------
// What one file makes of them at one temperature

struct Answers : Experiment {
  std::string type;
  std::vector<std::string> kinds;  // of the prompts
  std::vector<LlamaAnswer> llama;  // empty: it was left out

  float degrees() const { return trial.options.sampling.temperature; }
  std::string name() const { return type + ", temperature " + temperature_text(degrees()); }
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
  // Logarithms of m's tokens a second, prompt by prompt: the median of the repeats.
  std::vector<double> log_speeds(size_t m) const {
    std::vector<double> logs;
    for (size_t p = 0; p < kinds.size(); p++) {
      std::vector<double> repeats;
      for (const Run& run : outcomes[m].runs)
        repeats.push_back(ratio(double(run.prompts[p].tokens), run.prompts[p].seconds));
      logs.push_back(std::log(median(repeats)));
    }
    return logs;
  }
};

double geometric_mean(const std::vector<double>& logarithms) {
  return logarithms.empty() ? 0 : ratio_interval(logarithms).middle;
}

// The places of the questions that llama.cpp answers: the first of each kind.
std::vector<size_t> peer_places(const Answers& a) {
  std::vector<size_t> places;
  std::map<std::string, size_t> of_kind;
  for (size_t p = 0; p < a.kinds.size(); p++)
    if (of_kind[a.kinds[p]]++ < kPeerQuestions) places.push_back(p);
  return places;
}

// llama.cpp's best way of one kind, plain decoding among them: the geometric means of tokens a second.
struct LlamaBest {
  std::string method;
  double speed = 0, plain = 0;  // tokens a second
  std::vector<size_t> prompts;  // that it is the mean of
};
LlamaBest llama_best(const Answers& a, const std::string& kind) {
  std::map<std::string, std::vector<double>> by_method;  // logarithms of tokens a second
  LlamaBest best;
  const std::vector<size_t> places = peer_places(a);
  for (const LlamaAnswer& answer : a.llama) {
    const size_t p = places.at(size_t(answer.prompt));
    if (a.kinds[p] != kind || !(answer.seconds > 0)) continue;
    by_method[answer.method].push_back(std::log(answer.tokens / answer.seconds));
    if (answer.method == "plain") best.prompts.push_back(p);
  }
  best.plain = geometric_mean(by_method["plain"]);
  for (const auto& [method, logarithms] : by_method)
    if (const double speed = geometric_mean(logarithms); speed > best.speed) {
      best.method = method;
      best.speed = speed;
    }
  return best;
}
// m's speed on the questions that llama.cpp answered, over llama.cpp's best.
double over_llama(const Answers& a, size_t m, const LlamaBest& best) {
  const std::vector<double> all = a.log_speeds(m);
  std::vector<double> its;
  for (size_t p : best.prompts) its.push_back(all[p]);
  return ratio(geometric_mean(its), best.speed);
}

// ---------------------------------------------------------------------------------------------------------------
// Runs

std::string llama_speculate() { return program_folder() + "/peers/bin/llama_speculate"; }

// The question's tokens as the file's chat template puts it.
std::vector<int> asked(const Engine& engine, const std::string& model, const std::string& question) {
  Conversation talk =
      begin_conversation(engine.tokenizer(), engine.chat_template(), model, std::nullopt, engine.begin_token());
  talk.ask(question);
  return talk.tokens();
}

// none and suffix, and with the counts of `nanospec index` suffix+ngram; or why not, in `missing`.
std::vector<Method> kinds_methods(Engine& engine, const std::vector<int>& prompt, std::string& missing) {
  std::vector<Method> methods = {kPlain, matched("suffix", "auto")};
  const Method joint = matched("suffix+ngram:4", "auto");
  try {
    check_method(joint, kBudget);
    engine.generate(joint, {}, prompt, 1, [](int) { return true; });
    methods.push_back(joint);
  } catch (const std::exception& error) { missing += "left out: suffix+ngram:4: " + std::string(error.what()) + "\n"; }
  return methods;
}

// Fills in a.llama; returns why it is left out, or "".
std::string ask_llama(Answers& a, const std::function<void()>& waiting) {
  if (access(llama_speculate().c_str(), X_OK) != 0)
    return "left out: llama.cpp: there is no " + llama_speculate() + ": build it with make peers\n";
  const Scratch scratch;
  const std::string questions = scratch.path + "/questions.jsonl", log = scratch.path + "/log";
  const Tokenizer& tokenizer = a.engine->tokenizer();
  std::string lines;
  for (size_t p : peer_places(a)) {
    const std::vector<int>& tokens = a.trial.tokens[p];
    lines += Json{{"prompt", tokenizer.decode(tokens)}}.dump() + "\n";
  }
  write_file(questions, lines);
  const Settings& settings = a.trial.options.settings;
  const int status =
      run_process({llama_speculate(), settings.model, questions, std::to_string(a.trial.options.max_new_tokens),
                   std::to_string(settings.threads), temperature_text(a.degrees())},
                  log, kProcessSeconds, waiting);
  if (interrupted()) return "";
  if (status != 0) return "left out: llama.cpp: llama_speculate failed: " + last_line(log) + "\n";
  a.llama = parse_llama_speculate(read_file(log), "llama_speculate");
  return "";
}

Answers answer_all(Bench& bench, Engine& engine, const Trial& trial, const std::vector<std::string>& kinds,
                   const std::string& type, const Stretch& stretch, std::string& missing) {
  Answers a;
  a.engine = &engine;
  a.trial = trial;
  a.kinds = kinds;
  a.type = type;
  a.outcomes = run_all(trial, engine, [&](const std::string& doing, double done) {
    bench.time->show(a.name() + ", " + doing, stretch.at(0.5 * done));
  });
  if (a.empty()) return a;
  const std::string why = ask_llama(a, [&] { bench.time->show(a.name() + ", llama.cpp", stretch.at(0.5)); });
  if (missing.find(why) == std::string::npos) missing += why;
  return a;
}

// ---------------------------------------------------------------------------------------------------------------
// What is said

std::string kinds_table(const Answers& a) {
  TableRows rows = {{"kind", "drafter", "tok/s", "times plain", "95% interval", "tokens/forward", "nodes/forward",
                     "identical", "llama.cpp's best", "tok/s", "its plain", "times it"}};
  for (const std::string& kind : a.each_kind())
    for (size_t m = 0; m < a.trial.methods.size(); m++) {
      const Interval gain = a.speedup_of(kind, m);
      Stats sum;
      for (const Stats& its : a.of_kind(a.by_prompt(m), kind)) add(sum, its);
      const double forwards = double(sum.target_forwards);
      const LlamaBest best = llama_best(a, kind);
      const bool known = best.speed > 0, first = m == 0;
      rows.push_back(
          {first ? kind : "", a.trial.methods[m].drafter, decimals(geometric_mean(a.of_kind(a.log_speeds(m), kind)), 1),
           decimals(gain.middle, 2), first ? "" : decimals(gain.low, 2) + " to " + decimals(gain.high, 2),
           decimals(ratio(double(sum.tokens), forwards), 2), decimals(ratio(double(sum.drafted_nodes), forwards), 1),
           identical(a.trial.methods[m], a.outcomes[m]), first && known ? best.method : "",
           first && known ? decimals(best.speed, 1) : "", first && known ? decimals(best.plain, 1) : "",
           known ? decimals(over_llama(a, m, best), 2) : ""});
    }
  return format_table(rows, "llrrrrrllrrr");
}

OrderedJson answers_json(const Answers& a) {
  OrderedJson json = comparison_json(a.trial, *a.engine, a.outcomes);
  json["kinds"] = a.kinds;
  for (const std::string& kind : a.each_kind()) {
    OrderedJson of;
    of["kind"] = kind;
    for (size_t m = 0; m < a.trial.methods.size(); m++)
      of["times_plain"][a.trial.methods[m].drafter] = interval_json(a.speedup_of(kind, m));
    const LlamaBest best = llama_best(a, kind);
    if (best.speed > 0) {
      of["llama_cpp"] = {{"best", best.method}, {"speed", best.speed}, {"plain", best.plain}};
      for (size_t m = 0; m < a.trial.methods.size(); m++)
        of["llama_cpp"]["over"][a.trial.methods[m].drafter] = over_llama(a, m, best);
    }
    json["by_kind"].push_back(of);
  }
  for (const LlamaAnswer& l : a.llama)
    json["llama_cpp"].push_back(
        {{"prompt", l.prompt}, {"method", l.method}, {"tokens", l.tokens}, {"seconds", l.seconds}});
  return json;
}

// A bar for each kind and temperature: the last method (the union, where it is there) over plain decoding.
std::string kinds_picture(const Bench& bench, const std::vector<Answers>& all) {
  std::vector<IntervalBar> bars;
  BarAxis axis{"times plain decoding"};
  axis.line = 1;
  axis.line_name = "plain decoding";
  axis.mark_name = "llama.cpp's best, on three of the eight";
  for (size_t t = 0; t < std::size(kTemperatures); t++)
    axis.colours.push_back({colour_at(t), "temperature " + temperature_text(kTemperatures[t])});
  std::string before;
  for (const std::string type : kTypes)
    for (const std::string& kind : all[0].each_kind())
      for (size_t t = 0; t < std::size(kTemperatures); t++)
        for (const Answers& a : all) {
          if (a.type != type || a.degrees() != kTemperatures[t]) continue;
          const std::string name = type + ", " + kind;
          const size_t m = a.trial.methods.size() - 1;
          const Interval gain = a.speedup_of(kind, m);
          bars.push_back({name == before ? "" : name, gain, decimals(gain.middle, 2), colour_at(t)});
          const LlamaBest best = llama_best(a, kind);
          if (best.speed > 0) bars.back().mark = gain.middle / over_llama(a, m, best);
          before = name;
        }
  return interval_picture("Speculation by what is asked for: " + all[0].trial.methods.back().drafter + " auto",
                          machine_line(bench), axis, bars);
}

}  // namespace

double kinds_seconds() { return 240.0 * double(kinds_files().size() * std::size(kTemperatures)); }

void bench_kinds(Bench& bench) {
  const std::vector<KindsFile> files = kinds_files();
  if (files.empty() || !std::filesystem::exists(kQuestions))
    return bench.print(
        "Speculation on real models",
        left_out(files.empty() ? "there is no GGUF file of 8 or 4 bits (Q8_0, Q4_1) in models/: sh "
                                 "data/get_model.sh gets one"
                               : "there is no " + std::string(kQuestions) + ": run it in the project's folder"));
  const std::vector<Question> questions = read_questions(bench.quick);
  std::vector<Answers> all;
  std::vector<std::unique_ptr<Engine>> engines;
  OrderedJson json;
  const double share = 1.0 / double(files.size() * std::size(kTemperatures));
  for (const auto& [type, path] : files) {
    Trial trial;
    trial.options = bench.options;
    trial.options.settings.model = path;
    trial.options.settings.context = kAnswerContext;
    trial.options.settings.keeps_cache = true;
    trial.options.max_new_tokens = bench.quick ? 16 : kAnswerTokens;
    trial.by_prompt = trial.own_noise = true;
    trial.repeats = bench.quick ? 1 : bench.repeats;
    trial.most_seconds = kRepeatSeconds;
    engines.push_back(std::make_unique<Engine>(trial.options.settings));
    Engine& engine = *engines.back();
    std::vector<std::string> kinds;
    for (const Question& question : questions) {
      kinds.push_back(question.kind);
      trial.prompts.push_back(question.prompt);
      trial.tokens.push_back(asked(engine, path, question.prompt));
    }
    std::string missing;
    trial.methods = kinds_methods(engine, trial.tokens[0], missing);
    for (float temperature : kTemperatures) {
      trial.options.sampling.temperature = temperature;
      all.push_back(answer_all(bench, engine, trial, kinds, type, {share * double(all.size()), share}, missing));
      const Answers& a = all.back();
      if (a.empty() || interrupted()) return;
      bench.evenness.push_back({a.name() + ", plain decoding", unevenness(speeds(a.outcomes[trial.plain]))});
      bench.print("Speculation by what is asked for: " + a.circumstances(), kinds_table(a) + missing);
      json["answers"].push_back(answers_json(a));
      bench.write_json("kinds", json);
      refuse_broken(broken(a.trial, a.outcomes));
      missing.clear();
    }
  }
  bench.write_svg("kinds", kinds_picture(bench, all));
}

}  // namespace nanospec
