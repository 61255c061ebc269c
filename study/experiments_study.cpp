// study/experiments_study.cpp: see experiments.h: the laboratory, studies, what is said of them; an experiment, run.
#include <algorithm>
#include <filesystem>
#include <set>

#include "study/experiments.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The laboratory

namespace {
constexpr int kLargest = 64;  // nodes of a tree
bool go_on(int) { return !interrupted(); }
}  // namespace

std::vector<Method> Subject::usable(const std::vector<Method>& methods, const std::vector<int>& prompt,
                                    std::string& missing) {
  std::vector<Method> found;
  std::set<std::string> said;
  for (const Method& method : methods) {
    const std::string key = method.drafter + " " + method.shape.substr(0, method.shape.find(':'));
    if (!known_.count(key)) {
      known_[key] = "";
      try {
        read_method(method, kLargest);
        engine.generate(method, {}, prompt, 2, [](int) { return true; });
      } catch (const std::exception& error) { known_[key] = error.what(); }
    }
    const std::string& why = known_[key];
    if (why.empty()) found.push_back(method);
    else if (said.insert(why).second) missing += "left out: " + method.drafter + " " + method.shape + ": " + why + "\n";
  }
  return found;
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
  return target().usable(methods, target().engine.encode_prompt(held_out(1).at(0), "a prompt of " + data), missing);
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

std::vector<Method> Experiment::fastest(size_t most, const std::function<bool(const Method&)>& which) const {
  std::vector<std::pair<double, size_t>> order;
  for (size_t m = 0; m < trial.methods.size(); m++)
    if (which(trial.methods[m])) order.push_back({-speedup(m, trial.plain).middle, m});
  std::sort(order.begin(), order.end());
  std::vector<Method> methods;
  for (size_t i = 0; i < std::min(most, order.size()); i++) methods.push_back(trial.methods[order[i].second]);
  return methods;
}

double Experiment::nodes_per_forward(size_t m) const {
  const Stats sum = sum_of(outcomes[m]);
  return ratio(double(sum.drafted_nodes), double(sum.target_forwards));
}

namespace {

// New tokens for each prompt, so that the repeats find time: a run takes its prefill, and then for each token
// plan.share of what plain decoding takes.
int affordable_tokens(Engine& engine, const Trial& trial, const Plan& plan, double seconds) {
  if (plan.fewest == plan.most) return plan.most;
  const std::vector<int> prompt = engine.encode_prompt(trial.prompts[0], "a prompt");
  std::vector<double> prefill, token;
  for (int round = 0; round < 4; round++) {
    const Stats stats = engine.generate(kPlain, trial.options.sampling, prompt, 24, go_on).stats;
    if (round == 0) continue;  // warms up
    prefill.push_back(stats.prefill_seconds);
    token.push_back(ratio(stats.seconds, double(stats.tokens)));
  }
  const double warm_up = 2, runs = double(size_t(plan.repeats) * trial.methods.size()) + warm_up;
  const double each = seconds / (double(trial.prompts.size()) * runs) - median(prefill);
  return int(std::clamp(ratio(each, plan.share * median(token)), double(plan.fewest), double(plan.most)));
}

}  // namespace

Experiment run_study(const Bench& bench, Subject& subject, const std::vector<Method>& methods,
                     const std::vector<std::string>& prompts, const Plan& plan, float temperature, double seconds,
                     const Stretch& stretch, const std::vector<std::vector<int>>& tokens) {
  Experiment study;
  study.engine = &subject.engine;
  Trial& trial = study.trial;
  trial.options = subject.options;
  trial.options.sampling.temperature = temperature;
  trial.methods = methods;
  if (!study.has(kPlain)) trial.methods.insert(trial.methods.begin(), kPlain);
  trial.plain = study.at(kPlain);
  trial.prompts = prompts;
  trial.tokens = tokens;
  trial.by_prompt = trial.own_noise = true;
  trial.repeats = bench.quick ? 1 : plan.repeats;
  trial.most_seconds = seconds * 1.2;
  trial.options.max_new_tokens =
      bench.quick ? std::min(plan.most, 16) : affordable_tokens(subject.engine, trial, plan, seconds);
  study.outcomes = run_all(trial, subject.engine, [&](const std::string& doing, double done) {
    bench.time->show("temperature " + temperature_text(temperature) + ", " + doing, stretch.at(std::min(done, 1.0)));
  });
  if (!study.empty()) refuse_broken(broken(trial, study.outcomes));
  return study;
}

// ---------------------------------------------------------------------------------------------------------------
// Saying

std::string with_interval(const Interval& i, int places) {
  return decimals(i.middle, places) + " (" + decimals(i.low, places) + " to " + decimals(i.high, places) + ")";
}
OrderedJson interval_json(const Interval& i) { return {i.middle, i.low, i.high}; }
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
         (with_temperature ? "; temperature " + temperature_text(temperature()) : "") + "; " +
         count(double(trial.prompts.size()), "prompt") + ", " + count(o.max_new_tokens, "new token") + " each; " +
         count(double(outcomes[0].runs.size()), "repeat");
}

std::string study_table(const Experiment& study, const std::vector<Column>& more) {
  TableRows rows = {{"method", "tok/s", "times plain", "tokens/forward", "nodes/forward"}};
  for (const Column& column : more) rows[0].push_back(column.name);
  rows[0].push_back("identical");
  for (size_t m = 0; m < study.trial.methods.size(); m++) {
    rows.push_back({method_text(study.trial.methods[m]), thousands(median(speeds(study.outcomes[m]))),
                    with_interval(study.speedup(m, study.trial.plain), 2),
                    with_interval(study.tokens_per_forward(m), 2), decimals(study.nodes_per_forward(m), 1)});
    for (const Column& column : more) rows.back().push_back(column.cell(m));
    rows.back().push_back(identical(study.trial.methods[m], study.outcomes[m]));
  }
  return format_table(rows, "l" + std::string(rows[0].size() - 2, 'r') + "l");
}

OrderedJson Experiment::json() const {
  OrderedJson json = comparison_json(trial, *engine, outcomes,
                                     {{"intervals", "middle, low, high: 95% by Student's t, over prompts"},
                                      {"samples_are", {"tokens", "target_forwards", "drafted_nodes", "seconds"}}});
  for (size_t m = 0; m < outcomes.size(); m++) {
    OrderedJson& method = json["methods"][m];
    method["times_plain"] = interval_json(speedup(m, trial.plain));
    method["tokens_per_forward"] = interval_json(tokens_per_forward(m));
    method["nodes_per_forward"] = nodes_per_forward(m);
    for (const Run& run : outcomes[m].runs) {  // one entry a repeat, in it one a prompt
      OrderedJson repeat = OrderedJson::array();
      for (const Stats& s : run.prompts) repeat.push_back({s.tokens, s.target_forwards, s.drafted_nodes, s.seconds});
      method["samples"].push_back(repeat);
    }
  }
  return json;
}

const Quantity kTokensQuantity = {"tokens per forward",
                                  [](const Experiment& s, size_t m) { return s.tokens_per_forward(m); }};
const Quantity kSpeedQuantity = {"times plain decoding",
                                 [](const Experiment& s, size_t m) { return s.speedup(m, s.trial.plain); }};

Panel lines_panel(const std::vector<Experiment>& studies, const Quantity& quantity, bool by_budget) {
  Panel panel{"", by_budget ? "most nodes of a tree" : "temperature, 0: greedy", quantity.name, {}, {}, by_budget};
  if (!by_budget) {
    panel.whisker = kOverPrompts;
    for (const Experiment& study : studies) panel.x_ticks.push_back(as_typed(study.temperature()));
    std::sort(panel.x_ticks.begin(), panel.x_ticks.end());
  }
  std::map<std::string, size_t> places;
  for (size_t m = 0; m < studies[0].trial.methods.size(); m++)
    for (const Experiment& study : studies) {
      const Method& method = study.trial.methods[m];
      if (method.drafter == "none") continue;
      const bool chain = method.shape.find("chain") == 0, full = method.shape.find("tree") == 0;
      const bool greedy = !by_budget && study.temperature() == 0;
      const std::string kind = chain  ? "chains"
                               : full ? "full trees"
                                      : method.shape,
                        name = by_budget ? method.drafter + " " + kind : method_text(method);
      const auto style = greedy                         ? Series::Style::kDots
                         : by_budget && (chain || full) ? Series::Style::kDashes
                                                        : Series::Style::kLine;
      const auto [place, added] = places.insert({name + (greedy ? " greedy" : ""), panel.series.size()});
      if (added) panel.series.push_back({name, colour_at(by_budget ? panel.series.size() : m - 1), style, {}});
      const Interval i = quantity.of(study, m);
      std::vector<Point>& points = panel.series[place->second].points;
      if (by_budget) points.push_back({double(most_nodes(method, kLargest)), i.middle});
      else points.push_back({as_typed(study.temperature()), i.middle, i.low, i.high});
    }
  return panel;
}

// ---------------------------------------------------------------------------------------------------------------
// Texts

std::vector<std::string> passages_of(const std::string& text, size_t from, int n, size_t bytes, int fewest, int most) {
  std::vector<size_t> places;
  for (size_t at = from; at + bytes <= text.size(); at++) {
    if ((at > 0 && text[at - 1] != '\n') || text[at] == '\n' || (text[at] & 0xc0) == 0x80) continue;
    int turns = 0;
    for (size_t i = at + 1; i < at + bytes; i++) turns += text[i] == '\n' && text[i - 1] == '\n';
    if (turns >= fewest && turns <= most) places.push_back(at);
  }
  std::vector<std::string> passages;
  const size_t count = std::min(places.size(), size_t(n));
  for (size_t i = 0; i < count; i++) {
    const size_t at = places[places.size() * i / count];
    passages.push_back(text.substr(at, character_from(text, at + bytes) - at));
  }
  return passages;
}

namespace {

// Prompts of one kind. "copying" is greedy: a model of this size copies at temperature 0 alone.
struct Text {
  std::string name;
  std::vector<std::string> prompts;
};

// What the data has not is `missing`.
std::vector<Text> texts_of(const Lab& lab, const std::string& names, int prompts, size_t bytes, std::string& missing) {
  constexpr int kTurns = 4, kAny = 1 << 20;
  const size_t held_out = held_out_begin(lab.text);
  const int n = lab.quick ? 2 : prompts;
  std::vector<Text> texts;
  for (const std::string& name : split_at(names, ',')) {
    Text text = {name, {}};
    if (name == "held-out") text.prompts = lab.held_out(n, bytes);
    if (name == "seen") text.prompts = prompts_of(lab.text.substr(0, held_out), 0, n, bytes);
    if (name == "foreign" && lab.readme.size() > 2 * bytes) text.prompts = prompts_of(lab.readme, 0, n, bytes);
    if (name == "prose") text.prompts = passages_of(lab.text, held_out, n, bytes, 0, 0);
    if (name == "structured") text.prompts = passages_of(lab.text, held_out, n, bytes, kTurns, kAny);
    if (name == "copying")  // a passage, and the same again
      for (const std::string& passage : lab.held_out(n, 40))
        text.prompts.push_back(passage + "\n" + passage + "\n" + passage + "\n");
    if (!text.prompts.empty()) texts.push_back(text);
    else
      missing += "left out: " + name +
                 " prompts: " + (name == "foreign" ? "there is no README.md here" : "the text has no such passages") +
                 "\n";
  }
  if (texts.empty()) texts.push_back({"held-out", lab.held_out(n, std::min(bytes, (lab.text.size() - held_out) / 2))});
  return texts;
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------
// An experiment

std::vector<std::string> alternatives(const std::string& text) {
  const size_t open = text.find('{'), close = text.find('}', open);
  if (close == std::string::npos) return {text};
  std::vector<std::string> all;
  for (const std::string& one : split_at(text.substr(open + 1, close - open - 1), '|'))
    for (const std::string& rest : alternatives(text.substr(0, open) + one + text.substr(close + 1)))
      all.push_back(rest);
  return all;
}

namespace {

std::vector<Method> methods_of(const Lab& lab, const Topic& topic) {
  std::vector<Method> methods = {kPlain};
  std::set<std::string> known;
  for (const std::string& words : split_at(topic.methods, ';'))
    for (std::string one : alternatives(words)) {
      for (const auto& [sign, word] : {std::pair{'%', lab.drafter}, {'@', lab.options.settings.model}})
        for (size_t at; (at = one.find(sign)) != std::string::npos;) one.replace(at, 1, word);
      const Method method = parse_methods(one, kLargest).at(0);
      if (known.insert(method_text(method)).second) methods.push_back(method);
    }
  if (lab.quick && methods.size() > 40) methods.resize(40);
  return methods;
}

Interval measured(const Experiment& study, Measure measure, size_t m, size_t base) {
  if (measure == Measure::kTokens) return study.forwards_saved(m, base);
  return measure == Measure::kSpeed ? study.speedup(m, base) : percent_saved(study.speedup(m, base));
}

// What one method is held against; its own place where there is no such method.
size_t base_of(const Experiment& study, const Topic& topic, size_t m) {
  const Method& method = study.trial.methods[m];
  if (!topic.held.base || method.drafter == "none") return m;
  const size_t base = study.at(topic.held.base(method));
  return base < study.trial.methods.size() ? base : m;
}

std::optional<double> reported_of(const Topic& topic, const Method& method) {
  for (const auto& [shape, percent] : topic.held.reported)
    if (method.shape == shape && method.budget == 0) return percent;
  return {};
}

std::string topic_table(const Experiment& study, const Topic& topic, OrderedJson& json) {
  std::vector<Column> columns;
  const auto over = [&](size_t m) -> std::string {
    const size_t base = base_of(study, topic, m);
    return base == m ? "" : with_interval(measured(study, topic.held.measure, m, base), 2);
  };
  const auto reported = [&](size_t m) {
    const std::optional<double> percent = reported_of(topic, study.trial.methods[m]);
    return percent ? decimals(*percent, 2) : "";
  };
  const auto drafting = [&](size_t m) {
    const Stats sum = sum_of(study.outcomes[m]);
    return percent(sum.seconds_draft, sum.seconds);
  };
  if (topic.held.base) columns.push_back({topic.held.over, over});
  if (!topic.held.reported.empty()) columns.push_back({"paper", reported});
  columns.push_back({"drafting", drafting});
  for (size_t m = 0; topic.held.base && m < study.trial.methods.size(); m++) {
    const Method& method = study.trial.methods[m];
    const std::optional<double> percent = reported_of(topic, method);
    if (method.drafter == "none") continue;
    const char* what = topic.held.measure == Measure::kSaved ? "percent_saved" : "times";
    json.push_back({{"drafter", method.drafter},
                    {"shape", method.shape},
                    {"budget", method.budget},
                    {"method", method_text(method)},
                    {what, interval_json(measured(study, topic.held.measure, m, base_of(study, topic, m)))},
                    {"paper", percent ? OrderedJson(*percent) : OrderedJson()}});
  }
  return study_table(study, columns);
}

std::string bars_picture(const std::vector<Experiment>& studies, const std::vector<Text>& texts, const Topic& topic) {
  const bool saved = topic.held.measure == Measure::kSaved;
  const Quantity& quantity = topic.held.measure == Measure::kSpeed ? kSpeedQuantity : kTokensQuantity;
  BarAxis axis{saved ? topic.held.over : quantity.name, saved ? 0.0 : 1.0, saved ? "" : "plain decoding",
               saved ? "what the paper reported, on its own models" : ""};
  for (size_t t = 0; texts.size() > 1 && t < texts.size(); t++) axis.colours.push_back({texts[t].name, colour_at(t)});
  std::vector<IntervalBar> bars;
  for (size_t m = 0; m < studies[0].trial.methods.size(); m++)
    for (size_t t = 0; t < texts.size(); t++) {
      const Experiment& study = studies[t];
      const Method& method = study.trial.methods[m];
      if (method.drafter == "none") continue;
      const Interval i =
          saved ? measured(study, topic.held.measure, m, base_of(study, topic, m)) : quantity.of(study, m);
      const std::string wrong = flaw(promise_of(method));
      bars.push_back({t == 0 ? method_text(method) : "", i,
                      decimals(i.middle, saved ? 1 : 2) + (wrong.empty() ? "" : ", " + wrong),
                      wrong.empty() ? colour_at(t) : kPlainColour, reported_of(topic, method)});
    }
  return interval_picture(topic.question, studies[0].circumstances(), axis, bars);
}

std::string topic_picture(const std::vector<Experiment>& studies, const std::vector<Text>& texts, const Topic& topic) {
  if (topic.drawing == Drawing::kBars) return bars_picture(studies, texts, topic);
  const bool by_budget = topic.drawing == Drawing::kByBudget;
  return chart_picture(
      topic.question, studies[0].circumstances(by_budget),
      {lines_panel(studies, kTokensQuantity, by_budget), lines_panel(studies, kSpeedQuantity, by_budget)}, 2);
}

}  // namespace

void run_topic(Lab& lab, const Topic& topic) {
  std::string missing, tables;
  const std::vector<Text> texts = texts_of(lab, topic.from.texts, topic.from.prompts, topic.from.bytes, missing);
  const std::vector<Method> methods = lab.usable(methods_of(lab, topic), missing);
  if (methods.size() < 2) return lab.print(topic.name + (": " + std::string(topic.question)), missing);  // plain alone
  const double share = 1.0 / double(texts.size() * topic.temperatures.size());
  std::vector<Experiment> studies;
  OrderedJson json, over;
  for (float wanted : topic.temperatures)
    for (const Text& text : texts) {
      const float temperature = text.name == "copying" ? 0 : wanted;
      studies.push_back(run_study(lab, topic.from.on_small ? lab.small() : lab.target(), methods, text.prompts,
                                  topic.plan, temperature, lab.seconds * share,
                                  {double(studies.size()) * share, share}));
      const Experiment& study = studies.back();
      if (study.empty()) return;  // interrupted
      lab.evenness.push_back({"plain decoding, " + text.name + ", temperature " + temperature_text(temperature),
                              unevenness(speeds(study.outcomes[study.trial.plain]))});
      tables += (texts.size() > 1 ? text.name + ": " : "") + study.circumstances() + "\n" + loop_warning(temperature) +
                topic_table(study, topic, over) + "\n";
      json["studies"].push_back(study.json());
      json["studies"].back()["text"] = text.name;
    }
  if (!over.is_null()) json[topic.held.measure == Measure::kSaved ? "time_saved" : "over_base"] = over;
  const std::string &model = lab.options.settings.model, &small = lab.drafter_model;
  lab.print(topic.name + (": " + std::string(topic.question)) + "\nbuild/nanospec experiments --only " + topic.name +
                " --model " + model + (small == model ? "" : " --drafter_model " + small) + " --data " + lab.data +
                " --threads " + std::to_string(lab.options.settings.threads),
            tables + missing);
  lab.write_json(topic.name, json);
  lab.write_svg(topic.name, topic_picture(studies, texts, topic));
}

}  // namespace nanospec
