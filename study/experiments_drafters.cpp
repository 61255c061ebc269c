// study/experiments_drafters.cpp: drafters that were trained on the target (Medusa's heads, the parallel drafter and
// its sequential form) against tables, a smaller model and plain decoding.
//
// In order: the drafters; accuracy by depth; speed; the cost of training; the notes above the tables; functions for
// tests too, such as prose and structured prompts; the section.
#include <algorithm>
#include <filesystem>

#include "files/safetensors.h"
#include "study/along.h"
#include "study/experiments.h"

namespace nanospec {
namespace {

// ---------------------------------------------------------------------------------------------------------------
// Who drafts

constexpr const char* kUnigram = "ngram:1";
constexpr int kWideNodes = 340;  // of cartesian:4,4,4,4

// Trained on the target itself.
bool learned(const std::string& drafter) { return drafter.find("medusa") == 0 || drafter.find("parallel") == 0; }

std::vector<std::string> all_drafters(const Lab& lab) {
  const std::string& model = lab.options.settings.model;
  std::vector<std::string> drafters = {"medusa"};
  if (std::filesystem::exists(model + "/rootless")) drafters.push_back("medusa:" + model + "/rootless");
  drafters.insert(drafters.end(), {"parallel", "parallel:" + model + "/sequential"});
  for (const std::string& drafter : {lab.drafter, std::string(kStrong), std::string(kWeak)})
    if (std::find(drafters.begin(), drafters.end(), drafter) == drafters.end()) drafters.push_back(drafter);
  return drafters;
}

std::vector<Method> methods_of(const std::string& drafter) {
  std::vector<Method> methods = {matched(drafter, "best-first", 16), matched(drafter, "chain:4"),
                                 matched(drafter, "auto")};
  if (learned(drafter) || drafter == kStrong) methods.push_back(matched(drafter, "calibrated", 64));
  return methods;
}

// Where the trainer of this drafter says what the run was.
std::string stats_path(const Lab& lab, const std::string& drafter) {
  const size_t colon = std::min(drafter.find(':'), drafter.size());
  const std::string word = drafter.substr(0, colon), dir = drafter.substr(std::min(colon + 1, drafter.size()));
  return (dir.empty() ? lab.options.settings.model : dir) + "/" + (word == "gpt" ? "train" : word) + ".json";
}

// ---------------------------------------------------------------------------------------------------------------
// Accuracy by depth

constexpr int kDepths = 6, kAlongTokens = 112;  // new tokens of each prompt: 15 whole chains, and the first iteration

// One drafter's, at one temperature: by kind and prompt.
using Accuracies = std::vector<std::vector<AlongCounts>>;

std::vector<AlongCounts> all_kinds(const Accuracies& kinds) {
  std::vector<AlongCounts> all;
  for (const std::vector<AlongCounts>& kind : kinds) all.insert(all.end(), kind.begin(), kind.end());
  return all;
}

// By drafter; empty where it was interrupted. Every drafter goes along the same texts.
std::map<std::string, Accuracies> measure_along(Lab& lab, const std::vector<std::string>& drafters,
                                                const std::vector<Kind>& kinds, float temperature,
                                                const Stretch& stretch) {
  Engine& engine = lab.target().engine;
  std::map<std::string, Accuracies> all;
  double done = 0, prompts = 0;
  for (const Kind& kind : kinds) prompts += double(kind.prompts.size());
  const auto on_token = [](int) { return !interrupted(); };
  for (size_t k = 0; k < kinds.size(); k++)
    for (size_t p = 0; p < kinds[k].prompts.size(); p++) {
      Sampling sampling = lab.options.sampling;
      sampling.temperature = temperature;
      sampling.sequence = uint32_t(p);
      const std::vector<int> prompt = engine.encode_prompt(kinds[k].prompts[p], "a prompt of " + lab.data);
      const int tokens = lab.quick ? 24 : kAlongTokens;
      const std::vector<int> known = engine.generate(kPlain, sampling, prompt, tokens, on_token).tokens;
      std::vector<int> text = prompt;
      text.insert(text.end(), known.begin(), known.end());
      for (const std::string& drafter : drafters) {
        lab.time->show("temperature " + temperature_text(temperature) + ", guesses of " + drafter,
                       stretch.at(done / prompts));
        AlongCounts counts(kDepths);
        Observation observation;
        observation.stand_in = [&](Drafter& own) { return std::make_unique<Along>(own, text, counts); };
        const Method chain = matched(drafter, "chain:" + std::to_string(kDepths));
        const std::vector<int> again = engine.generate(chain, sampling, prompt, tokens, on_token, observation).tokens;
        if (interrupted()) return {};
        if (again != known)
          throw std::runtime_error("a chain's text is not plain decoding's: " + drafter +
                                   ": this is a bug of nanospec: report the command line");
        all[drafter].resize(kinds.size());
        all[drafter][k].push_back(counts);
      }
      done++;
    }
  return all;
}

std::string percent_text(const Interval& i) { return decimals(100 * i.middle, 1); }
std::string points_text(const Interval& i) { return with_interval({100 * i.middle, 100 * i.low, 100 * i.high}, 1); }

bool speaks_at(const std::vector<AlongCounts>& prompts, int depth) {
  return std::any_of(prompts.begin(), prompts.end(), [&](const AlongCounts& c) { return c.places[size_t(depth)] > 0; });
}
double forwards_a_round(const std::vector<AlongCounts>& prompts) {
  double model_forwards = 0, rounds = 0;
  for (const AlongCounts& c : prompts) {
    model_forwards += double(c.model_forwards);
    rounds += double(c.rounds);
  }
  return ratio(model_forwards, rounds);
}
double seconds_a_token(const std::vector<AlongCounts>& prompts) {
  double seconds = 0, drafted = 0;
  for (const AlongCounts& c : prompts) {
    seconds += c.seconds;
    drafted += double(c.drafted());
  }
  return ratio(seconds, drafted);
}

std::string accuracy_table(const std::map<std::string, Accuracies>& all, const std::vector<std::string>& drafters,
                           float temperature) {
  TableRows rows = {{"drafter"}};
  for (int d = 1; d <= kDepths; d++) rows[0].push_back((d == 1 ? "depth " : "") + std::to_string(d));
  for (const char* column : {"nats", "over the unigram", "over the bigram", "passes/round", "us/token"})
    rows[0].push_back(column);
  for (const std::string& drafter : drafters) {
    const Accuracies& kinds = all.at(drafter);
    const std::vector<AlongCounts> prompts = all_kinds(kinds);
    rows.push_back({drafter});
    for (int d = 0; d < kDepths; d++) {
      std::string cell;
      for (const std::vector<AlongCounts>& kind : kinds)
        cell += (cell.empty() ? "" : " / ") + percent_text(right_at(kind, d));
      rows.back().push_back(speaks_at(prompts, d) ? cell : "");
    }
    rows.back().push_back(temperature == 1 ? decimals(nats_at(prompts, 0), 2) : "");
    for (const char* other : {kUnigram, kWeak})
      rows.back().push_back(
          drafter == other || !all.count(other) ? "" : points_text(right_above(prompts, all_kinds(all.at(other)), 0)));
    rows.back().push_back(decimals(forwards_a_round(prompts), 2));
    rows.back().push_back(decimals(1e6 * seconds_a_token(prompts), 1));
  }
  return format_table(rows, "l" + std::string(rows[0].size() - 1, 'r'));
}

OrderedJson accuracy_json(const std::map<std::string, Accuracies>& all, const std::vector<Kind>& kinds,
                          float temperature) {
  OrderedJson json = {{"temperature", as_typed(temperature)}};
  for (const auto& [drafter, accuracies] : all)
    for (size_t k = 0; k < kinds.size(); k++) {
      OrderedJson one = {{"drafter", drafter},
                         {"prompts", kinds[k].name},
                         {"passes_per_round", forwards_a_round(accuracies[k])},
                         {"seconds_per_token", seconds_a_token(accuracies[k])}};
      for (int d = 0; d < kDepths; d++) {
        one["accuracy"].push_back(interval_json(right_at(accuracies[k], d)));
        one["nats"].push_back(nats_at(accuracies[k], d));
      }
      for (const AlongCounts& c : accuracies[k]) one["samples"].push_back({{"right", c.right}, {"places", c.places}});
      json["drafters"].push_back(one);
    }
  return json;
}

std::vector<Panel> accuracy_panels(const std::map<std::string, Accuracies>& all,
                                   const std::vector<std::string>& drafters, const std::vector<Kind>& kinds,
                                   float temperature) {
  std::vector<Panel> panels;
  for (size_t k = 0; k < kinds.size(); k++) {
    Panel panel{kinds[k].name + ", temperature " + temperature_text(temperature), "depth of the guess",
                "first choices that were right, %"};
    panel.whisker = kOverPrompts;
    for (size_t i = 0; i < drafters.size(); i++) {
      const auto style = learned(drafters[i]) ? Series::Style::kLine : Series::Style::kDashes;
      Series line{drafters[i], colour_at(i), style, {}};
      const std::vector<AlongCounts>& prompts = all.at(drafters[i])[k];
      for (int d = 0; d < kDepths; d++) {
        const Interval right = right_at(prompts, d);
        if (speaks_at(prompts, d))
          line.points.push_back(
              {double(d + 1), 100 * right.middle, std::max(0.0, 100 * right.low), std::min(100.0, 100 * right.high)});
      }
      panel.series.push_back(line);
    }
    panels.push_back(panel);
  }
  return panels;
}

// ---------------------------------------------------------------------------------------------------------------
// Speed

// One temperature: a study of each kind of prompts, and all of them as one.
struct Speeds {
  std::vector<Experiment> kinds;
  Experiment all;
};

double draft_share(const Experiment& study, size_t m) {
  const Stats sum = sum_of(study.outcomes[m]);
  return ratio(sum.seconds_draft, sum.seconds);
}

std::string speed_table(const Speeds& s, const std::vector<Kind>& kinds) {
  TableRows rows = {{"method", "tok/s"}};
  for (const char* what : {"times plain", "tokens/forward"})
    for (const Kind& kind : kinds) rows[0].push_back(std::string(what) + ", " + kind.name);
  for (const char* column : {"nodes/forward", "drafting", "identical"}) rows[0].push_back(column);
  for (size_t m = 0; m < s.all.trial.methods.size(); m++) {
    rows.push_back({method_text(s.all.trial.methods[m]), thousands(s.all.tokens_per_second(m))});
    for (const Experiment& kind : s.kinds) rows.back().push_back(with_interval(kind.speedup(m, kind.trial.plain), 2));
    for (const Experiment& kind : s.kinds) rows.back().push_back(with_interval(kind.tokens_per_forward(m), 2));
    rows.back().push_back(decimals(s.all.nodes_per_forward(m), 1));
    rows.back().push_back(decimals(100 * draft_share(s.all, m), 0) + "%");
    rows.back().push_back(identical(s.all.trial.methods[m], s.all.outcomes[m]));
  }
  return format_table(rows, "l" + std::string(rows[0].size() - 2, 'r') + "l");
}

// The fastest method of a drafter; methods.size() where it has none.
size_t fastest_of(const Experiment& study, const std::string& drafter) {
  const std::vector<size_t> order = study.by_speed([&](const Method& one) { return one.drafter == drafter; });
  return order.empty() ? study.trial.methods.size() : order[0];
}

// judged: along text of temperature 1, for the cross-entropy.
Rated rated(const Experiment& study, size_t m, const std::map<std::string, Accuracies>& along,
            const std::map<std::string, Accuracies>& judged) {
  const std::string& drafter = study.trial.methods[m].drafter;
  const std::vector<AlongCounts> prompts = all_kinds(along.at(drafter));
  return {method_text(study.trial.methods[m]), study.speedup(m, study.trial.plain).middle, right_at(prompts, 0).middle,
          right_at(prompts, 3).middle,         nats_at(all_kinds(judged.at(drafter)), 0),  draft_share(study, m)};
}

std::string losses(const Experiment& study, const std::vector<std::string>& drafters,
                   const std::map<std::string, Accuracies>& along, const std::map<std::string, Accuracies>& judged) {
  std::string text;
  const size_t table = fastest_of(study, kStrong);
  for (const std::string& drafter : drafters) {
    const size_t m = fastest_of(study, drafter);
    if (!learned(drafter) || std::max(m, table) >= study.trial.methods.size()) continue;
    text += why_slower(rated(study, m, along, judged), rated(study, table, along, judged));
  }
  return text;
}

// Empty if it was interrupted. All kinds get as many tokens as the first. A longer text is worth more than a repeated
// one: of a short text the first iteration, where heads have no state to read, is too large a part.
Speeds run_speeds(Lab& lab, const std::vector<Method>& methods, const std::vector<Kind>& kinds, float temperature,
                  double seconds, const Stretch& stretch) {
  Speeds s;
  int fewest = 40, most = 160;
  for (size_t k = 0; k < kinds.size(); k++) {
    const double share = 1.0 / double(kinds.size());
    s.kinds.push_back(run_study(lab, lab.target(), methods, kinds[k].prompts,
                                {temperature, seconds * share, 1, fewest, most, 0, 0.9},
                                {stretch.at(double(k) * share), stretch.share * share}));
    if (s.kinds.back().empty()) return {};
    fewest = most = s.kinds.back().trial.options.max_new_tokens;
    if (k == 0) s.all = s.kinds[0];
    else join(s.all, s.kinds[k]);
  }
  return s;
}

// Medusa's own widest tree, for its tokens per forward; "" where there are no heads, or it was interrupted.
std::string wide_text(Lab& lab, const std::vector<Kind>& kinds, double seconds, const Stretch& stretch,
                      OrderedJson& json) {
  Options options = lab.options;
  options.settings.budget = kWideNodes;
  options.settings.rows = kWideNodes + 1;
  Subject subject(options);
  std::vector<std::string> prompts;
  for (const Kind& kind : kinds)
    prompts.insert(prompts.end(), kind.prompts.begin(),
                   kind.prompts.begin() + long(std::min<size_t>(4, kind.prompts.size())));
  const Method wide = matched("medusa", "cartesian:4,4,4,4");
  const Experiment study = run_study(lab, subject, {kPlain, wide}, prompts, {0.7f, seconds, 1, 24, 64, 0, 6}, stretch);
  if (study.empty()) return "";
  json = study.json();
  return study.circumstances() + "; both kinds of prompts\n" + study_table(study) + "\n";
}

// ---------------------------------------------------------------------------------------------------------------
// What training took

std::string training_table(const std::vector<std::pair<std::string, TrainingRun>>& runs) {
  TableRows rows = {{"drafter", "parameters", "iterations", "epochs", "target's states", "made in", "trained in",
                     "memory", "validation, depth 1, 2, ..."}};
  for (const auto& [drafter, run] : runs) {
    std::string accuracy;
    if (!run.curve.empty())
      for (double right : run.curve.back().accuracy)
        accuracy += (accuracy.empty() ? "" : ", ") + decimals(100 * right, 1);
    rows.push_back({drafter, thousands(run.parameters), thousands(run.iterations),
                    run.curve.empty() ? "" : decimals(run.curve.back().epoch, 1),
                    run.state_bytes > 0 ? bytes_text(run.state_bytes) : "",
                    run.state_seconds > 0 ? duration(run.state_seconds) : "", duration(run.seconds - run.state_seconds),
                    bytes_text(run.peak_bytes), accuracy});
  }
  return format_table(rows, "lrrrrrrrl");
}

std::vector<Panel> curve_panels(const std::vector<std::pair<std::string, TrainingRun>>& runs) {
  std::vector<Panel> panels;
  for (const auto& [drafter, run] : runs) {
    if (run.curve.empty()) continue;
    Panel panel{drafter, "epochs of training", "right in validation, %"};
    for (size_t d = 0; d < run.curve[0].accuracy.size(); d++) {
      Series line{"depth " + std::to_string(d + 1), colour_at(d), Series::Style::kLine};
      for (const CurvePoint& point : run.curve)
        if (d < point.accuracy.size()) line.points.push_back({point.epoch, 100 * point.accuracy[d]});
      panel.series.push_back(line);
    }
    if (run.bigram > 0)
      panel.series.push_back(
          {"bigram, depth 1",
           kPlainColour,
           Series::Style::kDashes,
           {{run.curve.front().epoch, 100 * run.bigram}, {run.curve.back().epoch, 100 * run.bigram}}});
    panels.push_back(panel);
  }
  return panels;
}

// ---------------------------------------------------------------------------------------------------------------
// What is said above the tables

std::string about_prompts(const Passages& p, size_t bytes) {
  return "prompts of " + std::to_string(bytes) +
         " bytes from the data's last tenth, from the beginning of a line on: prose has no empty line (" +
         thousands(double(p.prose_places)) + " places), structured at least " + std::to_string(p.turns) +
         ", a change of speaker each (" + thousands(double(p.structured_places)) + " places)";
}
std::string about_accuracy(const std::vector<Kind>& kinds) {
  return "first tables: how often the first choice is right, in percent, " + kinds[0].name +
         (kinds.size() > 1 ? " / " + kinds[1].name : "") +
         "; nats: cross-entropy at depth 1 of text at temperature 1; points over the unigram and the bigram at depth "
         "1; "
         "passes of the drafter's model for " +
         std::to_string(kDepths) + " tokens, and its time for each";
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------
// What tests hold

Passages passages_of(const std::string& text, size_t from, int n, size_t bytes) {
  std::vector<std::vector<size_t>> places;  // of passages with at least so many empty lines; [0]: with none
  for (size_t at = from; at + bytes <= text.size(); at++) {
    if (at > 0 && text[at - 1] != '\n') continue;
    if (text[at] == '\n' || (text[at] & 0xc0) == 0x80) continue;
    size_t turns = 0;
    for (size_t i = at + 1; i < at + bytes; i++) turns += text[i] == '\n' && text[i - 1] == '\n';
    places.resize(std::max(places.size(), turns + 1));
    if (turns == 0) places[0].push_back(at);
    for (size_t t = 1; t <= turns; t++) places[t].push_back(at);
  }
  places.resize(std::max<size_t>(places.size(), 2));
  const auto evenly = [&](const std::vector<size_t>& list) {
    std::vector<std::string> passages;
    const size_t count = std::min(list.size(), size_t(n));
    for (size_t i = 0; i < count; i++) {
      const size_t at = list[list.size() * i / count];
      size_t end = at + bytes;
      while (end < text.size() && (text[end] & 0xc0) == 0x80) end++;  // to the end of a character
      passages.push_back(text.substr(at, end - at));
    }
    return passages;
  };
  Passages found;
  found.turns = std::min(kTurns, int(places.size()) - 1);
  while (found.turns > 1 && places[size_t(found.turns)].size() < size_t(n)) found.turns--;
  found.prose = evenly(places[0]);
  found.structured = evenly(places[size_t(found.turns)]);
  found.prose_places = places[0].size();
  found.structured_places = places[size_t(found.turns)].size();
  return found;
}

Interval right_at(const std::vector<AlongCounts>& prompts, int depth) {
  std::vector<double> rates;
  for (const AlongCounts& c : prompts)
    if (c.places[size_t(depth)] > 0) rates.push_back(c.rate(depth));
  return mean_interval(rates);
}

Interval right_above(const std::vector<AlongCounts>& own, const std::vector<AlongCounts>& other, int depth) {
  std::vector<double> differences;
  const size_t d = size_t(depth);
  for (size_t p = 0; p < std::min(own.size(), other.size()); p++)
    if (own[p].places[d] > 0 && other[p].places[d] > 0)
      differences.push_back(own[p].rate(depth) - other[p].rate(depth));
  return mean_interval(differences);
}

double nats_at(const std::vector<AlongCounts>& prompts, int depth) {
  double nats = 0, judged = 0;
  for (const AlongCounts& c : prompts) {
    nats += c.nats[size_t(depth)];
    judged += double(c.judged[size_t(depth)]);
  }
  return ratio(nats, judged);
}

std::string why_slower(const Rated& own, const Rated& table) {
  if (own.times_plain >= table.times_plain) return "";
  std::vector<std::string> causes;
  if (own.right < table.right) causes.push_back("it guesses the next token less well");
  else if (own.deeper < table.deeper) causes.push_back("it guesses less well further down");
  if (own.draft_share > table.draft_share) causes.push_back("its drafts take longer");
  std::string why = causes.empty() ? "within what the clock can tell" : causes[0];
  if (causes.size() > 1) why += " and " + causes[1];
  const auto both = [](double a, double b) { return decimals(100 * a, 0) + "% against " + decimals(100 * b, 0) + "%"; };
  return own.method + " is slower than " + table.method + ", " + times(own.times_plain) + " against " +
         times(table.times_plain) + ": " + why + ". Right at depth 1 " + both(own.right, table.right) +
         ", at depth 4 " + both(own.deeper, table.deeper) + "; cross-entropy at temperature 1 " +
         decimals(own.nats, 2) + " nats against " + decimals(table.nats, 2) + "; drafting takes " +
         both(own.draft_share, table.draft_share) + " of the time.\n";
}

TrainingRun parse_training(const std::string& text, const std::string& where) {
  const Json file = parse_json(text, where);
  const auto number = [](const Json& object, const char* name) {
    const Json& value = member(object, name);
    return value.is_number() ? value.get<double>() : 0.0;
  };
  TrainingRun run;
  run.parameters = number(file, "parameters");
  run.iterations = number(file, "iterations");
  run.seconds = number(file, "seconds");
  run.peak_bytes = number(file, "peak_bytes");
  run.state_bytes = number(file, "hidden_bytes");
  run.state_seconds = number(file, "hidden_seconds");
  const Json &bigram = member(file, "accuracy_bigram"), &curve = member(file, "curve");
  if (bigram.is_array() && !bigram.empty() && bigram[0].is_number()) run.bigram = bigram[0].get<double>();
  for (const Json& one : curve.is_array() ? curve : Json::array()) {
    CurvePoint point = {number(one, "iteration"), number(one, "epoch"), number(one, "loss"), {}};
    const Json& accuracy = member(one, "accuracy");
    for (const Json& right : accuracy.is_array() ? accuracy : Json::array())
      point.accuracy.push_back(right.is_number() ? right.get<double>() : 0);
    run.curve.push_back(point);
  }
  return run;
}

// ---------------------------------------------------------------------------------------------------------------
// The section

void drafters_experiment(Lab& lab) {
  constexpr struct {
    float temperature;
    double speed_share, along_share;  // of the section's time, about
  } kParts[] = {{1, 0.21, 0.06}, {0.7f, 0.36, 0.06}, {0, 0.21, 0.06}};
  constexpr double kWideShare = 0.04;
  const size_t begin = held_out_begin(lab.text), bytes = std::min<size_t>(160, (lab.text.size() - begin) / 2);
  const Passages passages = passages_of(lab.text, begin, lab.quick ? 2 : 8, bytes);
  std::vector<Kind> kinds;
  if (!passages.prose.empty()) kinds.push_back({"prose", passages.prose});
  if (!passages.structured.empty()) kinds.push_back({"structured", passages.structured});
  if (kinds.empty()) kinds.push_back({"text", lab.held_out(8, bytes)});

  std::string missing;
  if (passages.structured.empty()) missing = "left out: structured prompts: the text has no empty lines\n";
  std::vector<Method> methods = {kPlain};
  std::vector<std::string> drafters;
  for (const std::string& drafter : all_drafters(lab)) {
    const std::vector<Method> found = lab.usable(methods_of(drafter), missing);
    if (!found.empty()) drafters.push_back(drafter);
    methods.insert(methods.end(), found.begin(), found.end());
  }
  std::vector<std::string> asked = drafters;
  if (!lab.usable({matched(kUnigram, "chain:4")}, missing).empty()) asked.push_back(kUnigram);

  std::string text, subtitle;
  OrderedJson json;
  std::map<std::string, Accuracies> judged;  // at temperature 1
  std::vector<std::string> pictures;
  double done = 0;
  for (const auto& part : kParts) {
    const auto along = measure_along(lab, asked, kinds, part.temperature, {done, part.along_share});
    done += part.along_share;
    const Speeds speeds =
        run_speeds(lab, methods, kinds, part.temperature, lab.seconds * part.speed_share, {done, part.speed_share});
    done += part.speed_share;
    if (along.empty() || speeds.kinds.empty()) return;
    if (part.temperature == 1) judged = along;
    subtitle = speeds.all.circumstances();
    text += subtitle + "\n" + loop_warning(part.temperature) + "\n" + accuracy_table(along, asked, part.temperature) +
            "\n" + speed_table(speeds, kinds) + losses(speeds.all, drafters, along, judged) + "\n";
    json["accuracy"].push_back(accuracy_json(along, kinds, part.temperature));
    for (size_t k = 0; k < kinds.size(); k++) {
      json["studies"].push_back(speeds.kinds[k].json());
      json["studies"].back()["text"] = kinds[k].name;
    }
    if (part.temperature != 0.7f) continue;
    std::vector<IntervalBar> bars;
    for (size_t m = 0; m < methods.size(); m++)
      if (m != speeds.all.trial.plain)
        for (size_t k = 0; k < kinds.size(); k++) {
          const Interval i = speeds.kinds[k].speedup(m, speeds.all.trial.plain);
          bars.push_back(
              {k == 0 ? method_text(methods[m]) : "", i, times(i.middle) + " " + kinds[k].name, colour_at(k)});
        }
    pictures = {chart_picture("First choices along what the target emits", subtitle,
                              accuracy_panels(along, asked, kinds, part.temperature), 1),
                interval_picture("Speed over plain decoding", subtitle,
                                 {"times plain decoding's speed", 1, "plain decoding"}, bars)};
  }
  if (std::find(drafters.begin(), drafters.end(), "medusa") != drafters.end()) {
    OrderedJson wide;
    text += wide_text(lab, kinds, lab.seconds * kWideShare, {done, kWideShare}, wide);
    json["wide"] = wide;
  }
  std::vector<std::pair<std::string, TrainingRun>> runs;
  for (const std::string& drafter : drafters) {
    const std::string path = stats_path(lab, drafter);
    if (drafter != kStrong && drafter != kWeak && std::filesystem::exists(path))
      runs.push_back({drafter, parse_training(read_file(path), printable(path, 300))});
    else if (learned(drafter))
      missing +=
          "of the training of " + drafter + " nothing is known: " + path + ": train it with --stats " + path + "\n";
  }
  if (!runs.empty()) text += "What training took\n" + training_table(runs);
  const std::vector<Panel> curves = curve_panels(runs);
  if (!curves.empty())
    pictures.push_back(
        chart_picture("Training curves", "first choices, by depth: the trainer's own figures", curves, 2));
  for (const auto& [drafter, run] : runs) {
    OrderedJson points;
    for (const CurvePoint& p : run.curve)
      points.push_back({{"iteration", p.iteration}, {"epoch", p.epoch}, {"loss", p.loss}, {"accuracy", p.accuracy}});
    json["training"].push_back({{"drafter", drafter},
                                {"seconds", run.seconds},
                                {"peak_bytes", run.peak_bytes},
                                {"state_bytes", run.state_bytes},
                                {"curve", points}});
  }
  publish(lab, {"Drafters that learn: what do they guess, gain and cost, against tables?",
                about_prompts(passages, bytes) + "\n" + about_accuracy(kinds), text + missing, json,
                svg_below_each_other(pictures)});
}

}  // namespace nanospec
