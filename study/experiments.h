// study/experiments.h: what the sections of `experiments` share, each in a file of its own: experiments_shapes.cpp
// (entropy, budgets, temperatures), experiments_auto.cpp (and unions), experiments_rules.cpp (and coupling,
// noise-aware, held-out), experiments_drafters.cpp. experiments.cpp has the command line and the order.
//
// In order: the laboratory; an experiment, several methods over the same prompts; what is said and drawn of it; the
// sections.
//
// How to add a section: write `void NAME_experiment(Lab&)`: it runs studies with run_study() and hands what it found
// to publish(). Declare it below, and give it a line in sections_of of experiments.cpp, with the seconds that it may
// take.
#pragma once

#include <map>
#include <memory>

#include "commands/comparison.h"
#include "commands/samples.h"
#include "commands/svg.h"
#include "study/along.h"
#include "study/bench.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The laboratory

// A model that is studied as the target.
struct Subject {
  Options options;
  Engine engine;
  explicit Subject(const Options& its_options) : options(its_options), engine(options.settings) {}
};

struct Lab : Bench {  // options: the target's
  std::string drafter_model = "runs/small", drafter;
  std::string text;    // of --data
  std::string readme;  // text that is no part of it, in its alphabet

  // The target, loaded when first asked for, and the small model as a target of its own: where no clock is read, it
  // gives fifty times the text.
  Subject& target();
  Subject& small();

  // Prompts of so many bytes: from the data's last tenth, which no model and no drafter was trained on, evenly.
  std::vector<std::string> held_out(int count, size_t bytes = 64) const;

  // Of these methods those that the target can run; of the others a line each that says why not.
  std::vector<Method> usable(const std::vector<Method>& methods, std::string& missing);

 private:
  std::unique_ptr<Subject> target_, small_;
  std::map<std::string, std::string> known_;  // of drafters and shapes that were tried: "", or why not
};

// Prompts of one kind.
struct Kind {
  std::string name;
  std::vector<std::string> prompts;
};

// ---------------------------------------------------------------------------------------------------------------
// A study

constexpr const char *kStrong = "ngram:4", *kWeak = "bigram";
inline Method matched(const std::string& drafter, const std::string& shape, int budget = 0) {
  return {drafter, shape, "match", budget, true};
}

// What is asked for; whatever its methods, they go through all prompts in turn, prompt by prompt.
struct Plan {
  float temperature = 1;
  double seconds = 30;          // of the whole study, about
  int repeats = 3;              // at most
  int fewest = 16, most = 200;  // new tokens of each prompt: what finds time
  uint64_t seed = 0;            // 0: the command line's
  double share = 0.6;           // of plain decoding's time for a token, on average over the methods
};

struct Experiment {
  const Engine* engine = nullptr;
  Trial trial;
  std::vector<Outcome> outcomes;

  bool empty() const { return outcomes.empty() || outcomes[0].runs.empty(); }
  size_t at(const Method& method) const;  // its place; methods.size() where it has none
  bool has(const Method& method) const { return at(method) < trial.methods.size(); }

  // For each prompt the median over repeats of log(base's seconds a token / m's), pairs of one repeat.
  std::vector<double> gains(size_t m, size_t base) const;
  Interval speedup(size_t m, size_t base) const { return ratio_interval(gains(m, base)); }
  Interval tokens_per_forward(size_t m) const;
  // Of m's tokens per forward and base's, prompt by prompt.
  Interval forwards_saved(size_t m, size_t base) const;
  double nodes_per_forward(size_t m) const;
  double tokens_per_second(size_t m) const;
  std::vector<Stats> by_prompt(size_t m) const;  // sums over the repeats
  // The places of the methods that `which` takes, the fastest first.
  std::vector<size_t> by_speed(const std::function<bool(const Method&)>& which) const;

  std::string circumstances(bool with_temperature = true) const;
  OrderedJson json() const;
};

// Runs it; empty where it was interrupted before all was run once. stretch: of the section, for the progress line.
Experiment run_study(Lab& lab, Subject& subject, const std::vector<Method>& methods,
                     const std::vector<std::string>& prompts, const Plan& plan, const Stretch& stretch = {});

// Appends the other's prompts: the same methods, other prompts; repeats that both have.
void join(Experiment& study, const Experiment& other);

// ---------------------------------------------------------------------------------------------------------------
// Saying

std::string with_interval(const Interval& interval, int places);  // "2.31 (2.25 to 2.38)"
OrderedJson interval_json(const Interval& interval);              // middle, low, high
std::string temperature_text(float temperature);                  // "0.7"
std::string shape_text(const Method& method);                     // "beam:4 budget=8"
std::string loop_warning(float temperature);                      // "" but for greedy decoding

// The usual table: speedup over plain decoding, tokens per forward, both with intervals; nodes, the text.
std::string study_table(const Experiment& study);

OrderedJson studies_json(const std::vector<Experiment>& studies);  // {"studies": [...]}

// What a section found: printed below the command that repeats it; written to OUT/SECTION.json and
// OUT/SECTION.svg, where there are figures.
struct Findings {
  std::string question, circumstances, tables;
  OrderedJson json;
  std::string svg;
};
void publish(Lab& lab, const Findings& findings);

// ---------------------------------------------------------------------------------------------------------------
// The sections

void entropy_experiment(Lab& lab);
void budgets_experiment(Lab& lab);
void temperatures_experiment(Lab& lab);
void rules_experiment(Lab& lab);
void coupling_experiment(Lab& lab);
void noise_aware_experiment(Lab& lab);
void auto_experiment(Lab& lab);
void unions_experiment(Lab& lab);
void held_out_experiment(Lab& lab);
void drafters_experiment(Lab& lab);

// ---------------------------------------------------------------------------------------------------------------
// Parts of section drafters

// Passages of so many bytes from the beginnings of lines on, evenly among all such places from `from` on: prose has no
// empty line, which is to say one speaker; structured ones at least `turns`: kTurns, or what n passages reach.
constexpr int kTurns = 4;
struct Passages {
  std::vector<std::string> prose, structured;
  int turns = 0;
  size_t prose_places = 0, structured_places = 0;  // that there were to choose from
};
Passages passages_of(const std::string& text, size_t from, int n, size_t bytes);

// Of counts by prompt: how often the first choice at a depth (0: the root's child) was right; by how much oftener than
// another drafter's, prompt by prompt; the mean cross-entropy, 0 where there was nothing to judge.
Interval right_at(const std::vector<AlongCounts>& prompts, int depth);
Interval right_above(const std::vector<AlongCounts>& own, const std::vector<AlongCounts>& other, int depth);
double nats_at(const std::vector<AlongCounts>& prompts, int depth);

// A drafter's fastest method, and what explains its speed; why it loses to a table, in a line; "" where it does not.
struct Rated {
  std::string method;
  double times_plain, right, deeper, nats, draft_share;  // right: at depth 1; deeper: at depth 4
};
std::string why_slower(const Rated& own, const Rated& table);

// What a trainer's --stats file says; 0 or empty for what it does not. Throws std::runtime_error where it is no JSON.
struct CurvePoint {
  double iteration, epoch, loss;
  std::vector<double> accuracy;  // in validation, by depth
};
struct TrainingRun {
  double parameters = 0, iterations = 0, seconds = 0, peak_bytes = 0;
  double state_bytes = 0, state_seconds = 0;  // of the target's states on disk
  double bigram = 0;                          // its accuracy at depth 1
  std::vector<CurvePoint> curve;
};
TrainingRun parse_training(const std::string& text, const std::string& where);

}  // namespace nanospec
