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

Subject& Lab::target() {
  if (!target_) target_ = std::make_unique<Subject>(options);
  return *target_;
}
Subject& Lab::small() {
  if (drafter_model == options.settings.model) return target();
  Options its = options;
  its.settings.model = drafter_model;
  if (!small_) small_ = std::make_unique<Subject>(its);
  return *small_;
}

std::vector<std::string> Lab::held_out(int count, size_t bytes) const {
  return prompts_of(text, held_out_begin(text), quick ? std::min(count, 2) : count, bytes);
}

std::vector<Method> Lab::usable(const std::vector<Method>& methods, std::string& missing) {
  Engine& engine = target().engine;
  const std::vector<int> prompt = engine.encode_prompt(held_out(1).at(0), "a prompt of " + data);
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
    if (why.empty() || std::find(said.begin(), said.end(), why) != said.end()) continue;
    said.push_back(why);
    missing += "left out: " + method.drafter + " " + method.shape + ": " + why + "\n";
  }
  return found;
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

std::vector<Stats> Experiment::by_prompt(size_t m) const {
  std::vector<Stats> sums(outcomes[m].runs[0].prompts.size());
  for (const Run& run : outcomes[m].runs)
    for (size_t p = 0; p < sums.size(); p++) add(sums[p], run.prompts[p]);
  return sums;
}

// Every prompt gets the same number of tokens, so the mean of its forwards per token is that of all.
Interval Experiment::tokens_per_forward(size_t m) const {
  std::vector<double> forwards;
  for (const Stats& sum : by_prompt(m))
    if (sum.tokens > 0) forwards.push_back(ratio(double(sum.target_forwards), double(sum.tokens)));
  return inverse_interval(forwards);
}

Interval Experiment::forwards_saved(size_t m, size_t base) const {
  const std::vector<Stats> own = by_prompt(m), other = by_prompt(base);
  std::vector<double> logarithms;
  for (size_t p = 0; p < own.size(); p++) {
    const double pair = ratio(double(own[p].tokens) * double(other[p].target_forwards),
                              double(other[p].tokens) * double(own[p].target_forwards));
    if (pair > 0) logarithms.push_back(std::log(pair));
  }
  return ratio_interval(logarithms);
}

std::vector<size_t> Experiment::by_speed(const std::function<bool(const Method&)>& which) const {
  std::vector<std::pair<double, size_t>> order;
  for (size_t m = 0; m < trial.methods.size(); m++)
    if (which(trial.methods[m])) order.push_back({-speedup(m, trial.plain).middle, m});
  std::sort(order.begin(), order.end());
  std::vector<size_t> places;
  for (const auto& [speed, m] : order) places.push_back(m);
  return places;
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
  const std::vector<int> prompt = engine.encode_prompt(prompts[0], "a prompt");
  std::vector<double> prefill, token;
  for (int round = 0; round < 4; round++) {
    const Stats stats = engine.generate(kPlain, sampling, prompt, 24, [](int) { return !interrupted(); }).stats;
    if (round == 0) continue;  // warms up
    prefill.push_back(stats.prefill_seconds);
    token.push_back(ratio(stats.seconds, double(stats.tokens)));
  }
  const double runs = double(prompts.size()) * double(size_t(plan.repeats) * methods.size() + 2);  // 2: warming up
  const double each = plan.seconds / runs - median(prefill);
  return int(std::clamp(ratio(each, plan.share * median(token)), double(plan.fewest), double(plan.most)));
}

}  // namespace

Experiment run_study(Lab& lab, Subject& subject, const std::vector<Method>& methods,
                     const std::vector<std::string>& prompts, const Plan& plan, const Stretch& stretch) {
  Experiment study;
  study.engine = &subject.engine;
  Trial& trial = study.trial;
  trial.options = subject.options;
  trial.options.sampling.temperature = plan.temperature;
  if (plan.seed > 0) trial.options.sampling.seed = plan.seed;
  trial.methods = methods;
  if (!study.has(kPlain)) trial.methods.insert(trial.methods.begin(), kPlain);
  trial.plain = study.at(kPlain);
  trial.prompts = prompts;
  trial.by_prompt = trial.own_noise = true;
  trial.repeats = lab.quick ? 1 : plan.repeats;
  trial.most_seconds = plan.seconds * 1.2;
  const auto show = [&](const std::string& doing, double done) {
    lab.time->show("temperature " + temperature_text(plan.temperature) + ", " + doing, stretch.at(std::min(done, 1.0)));
  };
  trial.options.max_new_tokens =
      lab.quick ? std::min(plan.most, 12)
                : affordable_tokens(subject.engine, trial.options.sampling, trial.methods, prompts, plan);
  study.outcomes = run_all(trial, subject.engine, show);
  if (!study.empty()) refuse_broken(broken(trial, study.outcomes));
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
  set_speedups(study.outcomes, study.trial.plain);
}

// ---------------------------------------------------------------------------------------------------------------
// Saying

std::string with_interval(const Interval& i, int places) {
  return decimals(i.middle, places) + " (" + decimals(i.low, places) + " to " + decimals(i.high, places) + ")";
}
OrderedJson interval_json(const Interval& i) { return {i.middle, i.low, i.high}; }
std::string shape_text(const Method& method) {
  return method.shape + (method.budget > 0 ? " budget=" + std::to_string(method.budget) : "");
}
std::string temperature_text(float t) { return decimals(double(t), t == float(int(t)) ? 0 : 1); }
std::string loop_warning(float temperature) {
  return temperature > 0 ? ""
                         : "Temperature 0 is listed separately: small models fall into loops there, and any drafter "
                           "guesses loops. It says nothing about speculation at other temperatures.\n";
}

std::string Experiment::circumstances(bool with_temperature) const {
  const Options& o = trial.options;
  return o.settings.model + "; " + engine->device() + ", " + numbers_text(o.settings, *engine) + ", " +
         count(engine->threads(), "thread") +
         (with_temperature ? "; temperature " + temperature_text(o.sampling.temperature) : "") + "; " +
         count(double(trial.prompts.size()), "prompt") + ", " + count(o.max_new_tokens, "new token") + " each; " +
         count(double(outcomes[0].runs.size()), "repeat");
}

std::string study_table(const Experiment& study) {
  TableRows rows = {{"method", "tok/s", "times plain", "tokens/forward", "nodes/forward", "identical"}};
  for (size_t m = 0; m < study.trial.methods.size(); m++)
    rows.push_back({method_text(study.trial.methods[m]), thousands(study.tokens_per_second(m)),
                    with_interval(study.speedup(m, study.trial.plain), 2),
                    with_interval(study.tokens_per_forward(m), 2), decimals(study.nodes_per_forward(m), 1),
                    identical(study.trial.methods[m], study.outcomes[m])});
  return format_table(rows, "lrrrrl");
}

OrderedJson Experiment::json() const {
  OrderedJson json = settings_json(trial.options, *engine);
  json["prompts"] = trial.prompts;
  json["repeats"] = outcomes[0].runs.size();
  json["intervals"] = "middle, low, high: 95% by Student's t, over prompts";
  json["samples_are"] = {"tokens", "target_forwards", "drafted_nodes", "seconds"};
  for (size_t m = 0; m < outcomes.size(); m++) {
    OrderedJson method = outcome_json(*engine, trial.methods[m], outcomes[m]);
    method["times_plain"] = interval_json(speedup(m, trial.plain));
    method["tokens_per_forward"] = interval_json(tokens_per_forward(m));
    method["nodes_per_forward"] = nodes_per_forward(m);
    for (const Run& run : outcomes[m].runs) {  // one entry a repeat, in it one a prompt
      OrderedJson repeat = OrderedJson::array();
      for (const Stats& s : run.prompts) repeat.push_back({s.tokens, s.target_forwards, s.drafted_nodes, s.seconds});
      method["samples"].push_back(repeat);
    }
    json["methods"].push_back(method);
  }
  return json;
}

OrderedJson studies_json(const std::vector<Experiment>& studies) {
  OrderedJson json;
  for (const Experiment& study : studies) json["studies"].push_back(study.json());
  return json;
}

void publish(Lab& lab, const Findings& f) {
  const Settings& settings = lab.options.settings;
  const bool one_model = lab.drafter_model == settings.model;  // which no flag may name twice
  const std::string command = "build/nanospec experiments --only " + lab.section + " --model " + settings.model +
                              (one_model ? "" : " --drafter_model " + lab.drafter_model) + " --data " + lab.data +
                              " --threads " + std::to_string(settings.threads);
  lab.print(f.question + "\n" + command + "\n" + f.circumstances, f.tables);
  if (f.json.is_null()) return;
  lab.write_json(lab.section, f.json);
  lab.write_svg(lab.section, f.svg);
}

}  // namespace nanospec
