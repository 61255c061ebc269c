// study/experiments_study.cpp: see experiments.h: the laboratory, studies, what is said of them; an experiment, run.

#include "study/experiments.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The laboratory

namespace {
constexpr int kLargest = 64;  // nodes of a tree

OrderedJson interval_json(const Interval& i) { return {i.middle, i.low, i.high}; }
constexpr const char* kLoops =
    "Temperature 0 is listed separately: small models fall into loops there, and any drafter guesses loops. It says "
    "nothing about speculation at other temperatures.\n";

// "a {b|c}" as "a b" and "a c".
std::vector<std::string> alternatives(const std::string& text) {
  const size_t open = text.find('{'), close = text.find('}', open);
  if (close == std::string::npos) return {text};
  std::vector<std::string> all;
  for (const std::string& one : split_at(text.substr(open + 1, close - open - 1), '|'))
    for (const std::string& rest : alternatives(text.substr(0, open) + one + text.substr(close + 1)))
      all.push_back(rest);
  return all;
}
}  // namespace

std::vector<Method> Subject::usable(const std::vector<Method>& methods, const Tokens& prompt, std::string& missing) {
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

Subject& Lab::target(bool small) {
  Options its = options;
  if (small) its.settings.model = drafter_model;
  return targets_.try_emplace(its.settings.model, its).first->second;
}

// ---------------------------------------------------------------------------------------------------------------
// A study

std::vector<Method> methods_of(const std::string& text, const std::map<char, std::string>& words) {
  std::vector<Method> methods;
  std::set<std::string> known;
  for (const std::string& part : split_at(text, ';'))
    for (std::string one : alternatives(part)) {
      for (const auto& [letter, word] : words)
        for (size_t at; (at = one.find(letter)) != std::string::npos;) one.replace(at, 1, word);
      const Method method = parse_methods(one, kLargest).at(0);
      if (known.insert(method_text(method)).second) methods.push_back(method);
    }
  return methods;
}

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
      const double pair = ratio(ratio(other.seconds, other.tokens), ratio(own.seconds, own.tokens));
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
    if (sum.tokens > 0) forwards.push_back(ratio(sum.target_forwards, sum.tokens));
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

double Experiment::nodes_per_forward(size_t m) const {
  const Stats sum = sum_of(outcomes[m]);
  return ratio(sum.drafted_nodes, sum.target_forwards);
}

namespace {

// New tokens for each prompt, so that the repeats find time: a run takes its prefill, and then for each token
// plan.share of what plain decoding takes.
int affordable_tokens(Engine& engine, const Trial& trial, const Plan& plan, double seconds) {
  if (plan.fewest == plan.most) return plan.most;
  const Tokens prompt = engine.encode_prompt(trial.prompts[0].prompt, "a prompt");
  std::vector<double> prefill, token;
  for (int round = 0; round < 4; round++) {
    const Stats stats =
        engine.generate(kPlain, trial.options.sampling, prompt, 24, [](int) { return !interrupted(); }).stats;
    if (round == 0) continue;  // warms up
    prefill.push_back(stats.prefill_seconds);
    token.push_back(ratio(stats.seconds, stats.tokens));
  }
  const double warm_up = 2, runs = double(size_t(plan.repeats) * trial.methods.size()) + warm_up;
  const double each = seconds / (double(trial.prompts.size()) * runs) - median(prefill);
  return int(std::clamp(ratio(each, plan.share * median(token)), double(plan.fewest), double(plan.most)));
}

// Runs it; empty where it was interrupted before all was run once. stretch: of the section, for the progress line.
Experiment run_study(const Bench& bench, Subject& subject, const std::vector<Method>& methods, const Text& text,
                     Plan plan, float temperature, double seconds, const Stretch& stretch) {
  if (plan.repeats == 0) plan.repeats = bench.repeats;
  Experiment study = {&subject.engine, {subject.options, methods, 0, {text.prompts.begin(), text.prompts.end()}}, {}};
  Trial& trial = study.trial;
  trial.options.sampling.temperature = temperature;
  trial.choose_plain();
  trial.by_prompt = trial.own_noise = true;
  trial.repeats = bench.quick ? 1 : plan.repeats;
  trial.most_seconds = seconds * 1.2;
  trial.options.max_new_tokens =
      bench.quick ? std::min(plan.most, 16) : affordable_tokens(subject.engine, trial, plan, seconds);
  study.outcomes = run_all(trial, subject.engine, [&](const std::string& doing, double done) {
    bench.show(filled("temperature {}, {}", temperature, doing), stretch.at(std::min(done, 1.0)));
  });
  if (!study.empty()) refuse_broken(broken(trial, study.outcomes));
  return study;
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------
// Saying

std::string with_interval(const Interval& i, int places) {
  return decimals(i.middle, places) + " (" + decimals(i.low, places) + " to " + decimals(i.high, places) + ")";
}

std::string Experiment::circumstances(bool with_temperature) const {
  const Options& o = trial.options;
  return filled("{}; {}{}; {}, {} each; {}", o.settings.model, machine_text(o.settings, *engine),
                with_temperature ? filled("; temperature {}", temperature()) : "",
                count(trial.prompts.size(), "prompt"), count(o.max_new_tokens, "new token"),
                count(outcomes[0].runs.size(), "repeat"));
}

OrderedJson Experiment::json() const {
  OrderedJson json = comparison_json(trial, *engine, outcomes,
                                     {{"intervals", "middle, low, high: 95% by Student's t, over prompts"},
                                      {"samples_are", {"tokens", "target_forwards", "drafted_nodes", "seconds"}}});
  for (size_t m = 0; m < outcomes.size(); m++) {
    OrderedJson& method = json["methods"][m];
    method["times_plain"] = interval_json(times_plain(m));
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

// What the data has not is `missing`.
std::vector<Text> texts_of(const Lab& lab, const std::string& names, int prompts, size_t bytes, std::string& missing) {
  constexpr int kTurns = 4, kAny = 1 << 20;
  const size_t held_out = held_out_begin(lab.text);
  const int n = lab.quick ? 2 : prompts;
  std::vector<Text> texts;
  for (const std::string& name : split_at(names, ',')) {
    Text text = {name, {}};
    if (name == "held-out") text.prompts = prompts_of(lab.text, held_out, n, bytes);
    if (name == "seen") text.prompts = prompts_of(lab.text.substr(0, held_out), 0, n, bytes);
    if (name == "foreign" && lab.readme.size() > 2 * bytes) text.prompts = prompts_of(lab.readme, 0, n, bytes);
    if (name == "prose") text.prompts = passages_of(lab.text, held_out, n, bytes, 0, 0);
    if (name == "structured") text.prompts = passages_of(lab.text, held_out, n, bytes, kTurns, kAny);
    if (!text.prompts.empty()) texts.push_back(text);
    else
      missing += "left out: " + name +
                 " prompts: " + (name == "foreign" ? "there is no README.md here" : "the text has no such passages") +
                 "\n";
  }
  if (texts.empty())
    texts.push_back({"held-out", prompts_of(lab.text, held_out, n, std::min(bytes, (lab.text.size() - held_out) / 2))});
  return texts;
}

// ---------------------------------------------------------------------------------------------------------------
// An experiment

// A method a row: speedup over plain decoding, tokens per forward, both with intervals; nodes; what it has over the
// method that it is held against, which goes to `json` too; the drafter's share of the time; the text.
std::string study_table(const Experiment& study, const Topic& topic, OrderedJson& json) {
  const bool held = topic.held.base;
  TableRows rows = {together({"method", "tok/s", "times plain", "tokens/forward", "nodes/forward"},
                             {held ? Row{topic.held.over} : Row{}, {"drafting", "identical"}})};
  for (size_t m = 0; m < study.trial.methods.size(); m++) {
    const Method& method = study.trial.methods[m];
    const Stats sum = sum_of(study.outcomes[m]);
    Row over(held ? 1 : 0);
    if (held && method.drafter != "none") {
      const size_t at = study.at(topic.held.base(method));
      const size_t base = at < study.trial.methods.size() ? at : m;  // itself where there is no such method
      const Interval gain = topic.held.measure.over(study, m, base);
      if (base != m) over[0] = with_interval(gain, 2);
      json.push_back({{"drafter", method.drafter},
                      {"shape", method.shape},
                      {"budget", method.budget},
                      {"method", method_text(method)},
                      {"times", interval_json(gain)}});
    }
    rows.push_back(together(
        {method_text(method), thousands(median(speeds(study.outcomes[m]))), with_interval(study.times_plain(m), 2),
         with_interval(study.tokens_per_forward(m), 2), decimals(study.nodes_per_forward(m), 1)},
        {over, {percent(sum.seconds_draft, sum.seconds), identical(method, study.outcomes[m])}}));
  }
  return format_table(rows, "l" + std::string(rows[0].size() - 2, 'r') + "l");
}

// A line for each kind of shape, by the nodes that a tree may have.
Panel budget_panel(const Experiment& study, const Measure& measure) {
  Panel panel{filled("temperature {}", study.temperature()), "most nodes of a tree", measure.name, {}, {}, true};
  for (size_t m = 0; m < study.trial.methods.size(); m++) {
    const Method& method = study.trial.methods[m];
    if (method.drafter == "none") continue;
    const bool chain = method.shape.find("chain") == 0, full = method.shape.find("tree") == 0;
    const std::string name = method.drafter + " " + (chain ? "chains" : full ? "full trees" : method.shape);
    const Series::Style style = chain || full ? Series::Style::kDashes : Series::Style::kLine;
    auto series = std::find_if(panel.series.begin(), panel.series.end(), [&](auto& one) { return one.name == name; });
    if (series == panel.series.end())
      series = panel.series.insert(series, {name, colour_at(panel.series.size()), style});
    series->points.push_back({double(most_nodes(method, kLargest)), measure.of(study, m).middle});
  }
  return panel;
}

// For each temperature: a line for each kind of shape, or a bar for each method and text.
std::string topic_picture(const std::vector<Experiment>& studies, const std::vector<Text>& texts, const Topic& topic) {
  std::vector<Panel> panels;
  std::vector<std::string> pictures;
  const Measure& measure = topic.held.measure;
  BarAxis axis{measure.name, 1, "plain decoding"};
  for (size_t t = 0; texts.size() > 1 && t < texts.size(); t++) axis.colours.push_back({texts[t].name, colour_at(t)});
  for (size_t first = 0; first < studies.size(); first += texts.size()) {
    if (topic.held.by_budget)
      for (const Measure* of : {&kTokens, &kSpeed}) panels.push_back(budget_panel(studies[first], *of));
    std::vector<IntervalBar> bars;
    for (size_t m = 0; m < studies[first].trial.methods.size(); m++)
      for (size_t t = 0; t < texts.size(); t++) {
        const Method& method = studies[first].trial.methods[m];
        if (method.drafter == "none") continue;
        const Interval i = measure.of(studies[first + t], m);
        const std::string wrong = flaw(promise_of(method));
        bars.push_back({t == 0 ? method_text(method) : "", i,
                        decimals(i.middle, 2) + (wrong.empty() ? "" : ", " + wrong),
                        wrong.empty() ? colour_at(t) : kPlainColour});
      }
    pictures.push_back(interval_picture(topic.question, studies[first].circumstances(), axis, bars));
  }
  if (topic.held.by_budget) return chart_picture(topic.question, studies[0].circumstances(false), panels, 2);
  return svg_below_each_other(pictures);
}

}  // namespace

void run_topic(Bench& bench, Subject& subject, const Topic& topic, const std::vector<Text>& texts,
               const std::string& heading, std::string missing, const std::map<char, std::string>& words) {
  const Tokens first = encode_prompt(subject.engine, subject.options, texts.at(0).prompts.at(0), "a prompt");
  std::vector<Method> methods = subject.usable(methods_of(topic.methods, words), first, missing);
  if (methods.empty()) return bench.print(heading, missing);
  if (bench.quick && methods.size() > 40) methods.resize(40);
  const double share = 1.0 / double(texts.size() * topic.plan.temperatures.size());
  std::vector<Experiment> studies;
  std::string tables;
  OrderedJson json, over;
  const auto text_of = [&](int token) { return subject.engine.decode(token); };
  for (float temperature : topic.plan.temperatures)
    for (const Text& text : texts) {
      studies.push_back(run_study(bench, subject, methods, text, topic.plan, temperature, bench.seconds * share,
                                  {double(studies.size()) * share, share}));
      const Experiment& study = studies.back();
      if (study.empty()) return;  // interrupted
      bench.evenness.push_back({filled("plain decoding, {}, temperature {}", text.name, temperature),
                                unevenness(speeds(study.outcomes[study.trial.plain]))});
      tables += (texts.size() > 1 ? text.name + ": " : "") + study.circumstances() + "\n" +
                (temperature > 0 ? "" : kLoops) + study_table(study, topic, over) + "\n";
      json["studies"].push_back(study.json());
      json["studies"].back()["text"] = text.name;
      if (!subject.options.chat) continue;
      for (const Tokens& prompt : encoded(subject.engine, subject.options, study.trial.prompts))  // with control tokens
        json["studies"].back()["asked"].push_back(joined(prompt, "", text_of));
    }
  if (!over.is_null()) json["over_base"] = over;
  bench.print(heading, tables + missing);
  bench.write_json(topic.name, json);
  bench.write_svg(topic.name, topic_picture(studies, texts, topic));
}

void run_in_lab(Lab& lab, const Topic& topic) {
  std::string missing;
  const std::vector<Text> texts = texts_of(lab, topic.from.texts, topic.from.prompts, topic.from.bytes, missing);
  const std::string &model = lab.options.settings.model, &small = lab.drafter_model;
  const std::string heading = filled(
      "{}: {}\nbuild/nanospec experiments --only {} --model {}{} --data {} --threads {}", topic.name, topic.question,
      topic.name, model, small == model ? "" : " --drafter_model " + small, lab.data, lab.options.settings.threads);
  run_topic(lab, lab.target(topic.from.on_small), topic, texts, heading, missing, {{'%', lab.drafter}, {'@', model}});
}

}  // namespace nanospec
