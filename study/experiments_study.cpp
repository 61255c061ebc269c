// study/experiments_study.cpp: see experiments.h: the laboratory, studies, and what is said of them.
#include <algorithm>
#include <filesystem>

#include "commands/samples.h"
#include "study/experiments.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The laboratory

namespace {
constexpr int kLargest = 64;  // nodes of a tree
}

Engine& Lab::target() {
  if (!target_) target_ = std::make_unique<Engine>(bench.options.settings);
  return *target_;
}
Engine& Lab::small() {
  if (drafter_model == bench.options.settings.model) return target();
  if (!small_) small_ = std::make_unique<Engine>(small_options().settings);
  return *small_;
}
Options Lab::small_options() const {
  Options options = bench.options;
  options.settings.model = drafter_model;
  return options;
}

std::vector<std::string> Lab::held_out(int count, size_t bytes) const {
  return prompts_of(text, held_out_begin(text), bench.quick ? std::min(count, 2) : count, bytes);
}

std::vector<Method> Lab::usable(Engine& engine, const std::vector<Method>& methods, std::string& missing) {
  const std::vector<int> prompt = engine.encode(held_out(1).at(0), "a prompt of " + bench.data);
  std::vector<Method> found;
  std::vector<std::string> said;
  for (const Method& method : methods) {
    const std::string key = method.drafter + " " + method.shape.substr(0, method.shape.find(':'));
    if (!known_.count(key)) {
      known_[key] = "";
      try {
        check_method(method, kLargest);
        engine.generate(method, {}, prompt, 2, [](int) { return true; });
      } catch (const std::exception& error) { known_[key] = error.what(); }
    }
    const std::string& why = known_[key];
    if (why.empty()) found.push_back(method);
    else if (std::find(said.begin(), said.end(), why) == said.end())
      said.push_back(why), missing += "left out: " + method.drafter + " " + method.shape + ": " + why + "\n";
  }
  return found;
}

std::string command_line(const Lab& lab) {
  const Options& o = lab.bench.options;
  return "build/nanospec experiments --only " + lab.section + " --model " + o.settings.model + " --drafter_model " +
         lab.drafter_model + " --data " + lab.bench.data + " --threads " + std::to_string(o.settings.threads);
}

// ---------------------------------------------------------------------------------------------------------------
// A study

size_t Experiment::at(const Method& method) const {
  const auto same = [&](const Method& other) { return method_text(other) == method_text(method); };
  return size_t(std::find_if(trial.methods.begin(), trial.methods.end(), same) - trial.methods.begin());
}

std::vector<double> Experiment::gains(size_t m, size_t base) const {
  std::vector<double> gains;
  for (size_t p = 0; p < outcomes[m].runs[0].prompts.size(); p++) {
    std::vector<double> repeats;
    for (size_t r = 0; r < outcomes[m].runs.size(); r++) {
      const Stats &own = outcomes[m].runs[r].prompts[p], &other = outcomes[base].runs[r].prompts[p];
      const double pair = ratio(ratio(other.seconds, double(other.tokens)), ratio(own.seconds, double(own.tokens)));
      if (pair > 0) repeats.push_back(std::log(pair));
    }
    if (!repeats.empty()) gains.push_back(median(repeats));
  }
  return gains;
}

// Every prompt gets the same number of tokens, so the mean of its forwards per token is that of all.
Interval Experiment::tokens_per_forward(size_t m) const {
  std::vector<double> forwards;
  for (size_t p = 0; p < outcomes[m].runs[0].prompts.size(); p++) {
    Stats sum;
    for (const Run& run : outcomes[m].runs) add(sum, run.prompts[p]);
    if (sum.tokens > 0) forwards.push_back(ratio(double(sum.target_forwards), double(sum.tokens)));
  }
  return inverse_interval(forwards);
}

Interval Experiment::forwards_saved(size_t m, size_t base) const {
  std::vector<double> logarithms;
  for (size_t p = 0; p < outcomes[m].runs[0].prompts.size(); p++) {
    Stats own, other;
    for (size_t r = 0; r < outcomes[m].runs.size(); r++)
      add(own, outcomes[m].runs[r].prompts[p]), add(other, outcomes[base].runs[r].prompts[p]);
    const double pair =
        ratio(double(own.tokens) * double(other.target_forwards), double(other.tokens) * double(own.target_forwards));
    if (pair > 0) logarithms.push_back(std::log(pair));
  }
  return ratio_interval(logarithms);
}

double Experiment::nodes_per_forward(size_t m) const {
  const Stats sum = sum_of(outcomes[m]);
  return ratio(double(sum.drafted_nodes), double(sum.target_forwards));
}
double Experiment::tokens_per_second(size_t m) const { return median(speeds(outcomes[m])); }

namespace {

// New tokens for each prompt, so that the repeats find time: a run takes its prefill, and then for each token
// plan.share of what plain decoding takes.
int affordable_tokens(Engine& engine, const Sampling& sampling, const std::vector<Method>& methods,
                      const std::vector<std::string>& prompts, const Plan& plan) {
  if (plan.fewest == plan.most) return plan.most;
  const std::vector<int> prompt = engine.encode(prompts[0], "a prompt");
  std::vector<double> prefill, token;
  for (int round = 0; round < 4; round++) {
    const Stats stats = engine.generate(kPlain, sampling, prompt, 24, [](int) { return !interrupted(); }).stats;
    if (round == 0) continue;  // warms up
    prefill.push_back(stats.prefill_seconds), token.push_back(ratio(stats.seconds, double(stats.tokens)));
  }
  const double runs = double(prompts.size()) * double(size_t(plan.repeats) * methods.size() + 2);  // 2: warming up
  const double each = plan.seconds / runs - median(prefill);
  return int(std::clamp(ratio(each, plan.share * median(token)), double(plan.fewest), double(plan.most)));
}

}  // namespace

Experiment run_study(Lab& lab, Engine& engine, const Options& options, const std::vector<Method>& methods,
                     const std::vector<std::string>& prompts, const Plan& plan, const Stretch& stretch) {
  Experiment study;
  Trial& trial = study.trial;
  trial.options = options;
  trial.options.sampling.temperature = plan.temperature;
  if (plan.seed > 0) trial.options.sampling.seed = plan.seed;
  trial.methods = methods;
  if (!study.has(kPlain)) trial.methods.insert(trial.methods.begin(), kPlain);
  trial.plain = study.at(kPlain);
  trial.prompts = prompts;
  trial.by_prompt = trial.own_noise = true;
  trial.repeats = lab.bench.quick ? 1 : plan.repeats;
  trial.most_seconds = plan.seconds * 1.2;
  const auto show = [&](const std::string& doing, double done) {
    lab.bench.time->show("temperature " + temperature_text(plan.temperature) + ", " + doing,
                         stretch.at(std::min(done, 1.0)));
  };
  trial.options.max_new_tokens = lab.bench.quick
                                     ? std::min(plan.most, 12)
                                     : affordable_tokens(engine, trial.options.sampling, trial.methods, prompts, plan);
  study.outcomes = run_all(trial, engine, show);
  if (!study.empty()) check_exact(study);
  return study;
}

void join(Experiment& study, const Experiment& other) {
  for (size_t m = 0; m < study.outcomes.size(); m++) {
    std::vector<Run>& runs = study.outcomes[m].runs;
    const std::vector<Run>& more = other.outcomes[m].runs;
    runs.resize(std::min(runs.size(), more.size()));
    for (size_t r = 0; r < runs.size(); r++) {
      add(runs[r].stats, more[r].stats);
      runs[r].prompts.insert(runs[r].prompts.end(), more[r].prompts.begin(), more[r].prompts.end());
    }
    if (study.outcomes[m].difference.empty()) study.outcomes[m].difference = other.outcomes[m].difference;
  }
  study.trial.prompts.insert(study.trial.prompts.end(), other.trial.prompts.begin(), other.trial.prompts.end());
  for (Outcome& outcome : study.outcomes) {
    outcome.speedups.clear();
    for (size_t r = 0; r < outcome.runs.size(); r++)
      outcome.speedups.push_back(
          ratio(outcome.runs[r].tokens_per_second(), study.outcomes[study.trial.plain].runs[r].tokens_per_second()));
  }
}

void check_exact(const Experiment& study) {
  const std::vector<std::string> wrong = broken(study.trial, study.outcomes);
  if (!wrong.empty())
    throw std::runtime_error("the text is not plain decoding's: " + wrong[0] +
                             ": this is a bug of nanospec: report the command line");
}

// ---------------------------------------------------------------------------------------------------------------
// Saying

std::string with_interval(const Interval& i, int places) {
  return decimals(i.middle, places) + " (" + decimals(i.low, places) + " to " + decimals(i.high, places) + ")";
}
std::string temperature_text(float t) { return decimals(double(t), t == float(int(t)) ? 0 : 1); }
std::string loop_warning(float temperature) {
  return temperature > 0 ? ""
                         : "Temperature 0 stands apart: small models fall into loops there, and any drafter guesses "
                           "loops. It says nothing of speculation elsewhere.\n";
}

std::string study_circumstances(const Experiment& study, const Engine& engine, bool with_temperature) {
  const Options& o = study.trial.options;
  return o.settings.model + "; " + engine.device() + ", " + numbers_text(o.settings) + ", " +
         count(engine.threads(), "thread") +
         (with_temperature ? "; temperature " + temperature_text(o.sampling.temperature) : "") + "; " +
         count(double(study.trial.prompts.size()), "prompt") + ", " + count(o.max_new_tokens, "new token") + " each; " +
         count(double(study.outcomes[0].runs.size()), "repeat");
}

std::string study_table(const Experiment& study) {
  std::vector<std::vector<std::string>> rows = {
      {"method", "tok/s", "times plain", "tokens/forward", "nodes/forward", "identical"}};
  for (size_t m = 0; m < study.trial.methods.size(); m++)
    rows.push_back({method_text(study.trial.methods[m]), thousands(study.tokens_per_second(m)),
                    with_interval(study.speedup(m, study.trial.plain), 2),
                    with_interval(study.tokens_per_forward(m), 2), decimals(study.nodes_per_forward(m), 1),
                    identical(study.trial.methods[m], study.outcomes[m])});
  return format_table(rows, "lrrrrl");
}

namespace {
nlohmann::ordered_json interval_json(const Interval& i) { return {i.middle, i.low, i.high}; }

// One entry a repeat, in it one a prompt.
nlohmann::ordered_json samples_json(const Outcome& outcome) {
  nlohmann::ordered_json json;
  for (const Run& run : outcome.runs) {
    nlohmann::ordered_json repeat = nlohmann::ordered_json::array();
    for (const Stats& s : run.prompts) repeat.push_back({s.tokens, s.target_forwards, s.drafted_nodes, s.seconds});
    json.push_back(repeat);
  }
  return json;
}
}  // namespace

nlohmann::ordered_json study_json(const Engine& engine, const Experiment& study) {
  nlohmann::ordered_json json = settings_json(study.trial.options, engine);
  json["prompts"] = study.trial.prompts;
  json["repeats"] = study.outcomes[0].runs.size();
  json["intervals"] = "middle, low, high: 95% by Student's t, over prompts";
  json["samples_are"] = {"tokens", "target_forwards", "drafted_nodes", "seconds"};
  for (size_t m = 0; m < study.outcomes.size(); m++) {
    nlohmann::ordered_json method = outcome_json(engine, study.trial.methods[m], study.outcomes[m]);
    method["times_plain"] = interval_json(study.speedup(m, study.trial.plain));
    method["tokens_per_forward"] = interval_json(study.tokens_per_forward(m));
    method["nodes_per_forward"] = study.nodes_per_forward(m);
    method["samples"] = samples_json(study.outcomes[m]);
    json["methods"].push_back(method);
  }
  return json;
}

void print_section(Lab& lab, const std::string& question, const std::string& circumstances, const std::string& table) {
  lab.bench.print(question + "\n" + command_line(lab) + "\n" + circumstances, table);
}

const char* colour_at(size_t i) { return kColours[i % std::size(kColours)]; }

}  // namespace nanospec
