// study/experiments.h: what `experiments` and the sections of `bench` that decode share. experiments.cpp has the
// command line and the table of experiments; experiments_study.cpp runs studies, and an experiment of the table.
//
// In order: the laboratory; a study, several methods over the same prompts; what is said of it; an experiment; parts of
// them that tests hold.
//
// How to add an experiment: a row of kTopics in experiments.cpp.
#pragma once

#include <map>
#include <memory>

#include "commands/comparison.h"
#include "commands/samples.h"
#include "commands/svg.h"
#include "study/bench.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The laboratory

// A model that is studied as the target.
struct Subject {
  Options options;
  Engine engine;
  explicit Subject(const Options& its_options) : options(its_options), engine(options.settings) {}

  // Of these methods those that it can run after this prompt; of the others a line each that says why not.
  std::vector<Method> usable(const std::vector<Method>& methods, const std::vector<int>& prompt, std::string& missing);

 private:
  std::map<std::string, std::string> known_;  // of drafters and shapes that were tried: "", or why not
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
  std::vector<Method> usable(const std::vector<Method>& methods, std::string& missing);  // by the target

 private:
  std::unique_ptr<Subject> target_, small_;
};

// ---------------------------------------------------------------------------------------------------------------
// A study

constexpr const char *kStrong = "ngram:4", *kWeak = "bigram";
inline Method matched(const std::string& drafter, const std::string& shape, int budget = 0) {
  return {drafter, shape, "match", budget, true};
}

// How much is decoded; whatever its methods, they go through all prompts in turn, prompt by prompt.
struct Plan {
  int repeats = 2;              // at most
  int fewest = 16, most = 200;  // new tokens of each prompt: what finds time
  double share = 0.6;           // of plain decoding's time for a token, on average over the methods
};

struct Experiment {
  const Engine* engine = nullptr;
  Trial trial;
  std::vector<Outcome> outcomes;

  bool empty() const { return outcomes.empty() || outcomes[0].runs.empty(); }
  size_t at(const Method& method) const;  // its place; methods.size() where it has none
  bool has(const Method& method) const { return at(method) < trial.methods.size(); }
  float temperature() const { return trial.options.sampling.temperature; }

  // For each prompt the median over repeats of log(base's seconds a token / m's), pairs of one repeat.
  std::vector<double> gains(size_t m, size_t base) const;
  Interval speedup(size_t m, size_t base) const { return ratio_interval(gains(m, base)); }
  Interval tokens_per_forward(size_t m) const;
  // Of m's tokens per forward and base's, prompt by prompt.
  Interval forwards_saved(size_t m, size_t base) const;
  double nodes_per_forward(size_t m) const;
  std::vector<Stats> by_prompt(size_t m) const;  // sums over the repeats
  // The methods that `which` takes, the fastest first; `most` of them.
  std::vector<Method> fastest(size_t most, const std::function<bool(const Method&)>& which) const;

  std::string circumstances(bool with_temperature = true) const;
  OrderedJson json() const;
};

// Runs it; empty where it was interrupted before all was run once. stretch: of the section, for the progress line.
// tokens: the prompts', where the engine's encoding would make others.
Experiment run_study(const Bench& bench, Subject& subject, const std::vector<Method>& methods,
                     const std::vector<std::string>& prompts, const Plan& plan, float temperature, double seconds,
                     const Stretch& stretch = {}, const std::vector<std::vector<int>>& tokens = {});

// ---------------------------------------------------------------------------------------------------------------
// Saying

std::string with_interval(const Interval& interval, int places);  // "2.31 (2.25 to 2.38)"
OrderedJson interval_json(const Interval& interval);              // middle, low, high
std::string temperature_text(float temperature);                  // "0.7"
std::string loop_warning(float temperature);                      // "" but for greedy decoding

// A column of a study's table: what stands in it for a method.
struct Column {
  std::string name;
  std::function<std::string(size_t m)> cell;
};
// A method a row: speedup over plain decoding, tokens per forward, both with intervals; nodes; these; the text.
std::string study_table(const Experiment& study, const std::vector<Column>& more = {});

// What a picture is of; and a line in it for each kind of shape, by the nodes of a tree, or for each method, by
// temperature (greedy decoding apart).
struct Quantity {
  const char* name;
  Interval (*of)(const Experiment&, size_t m);
};
extern const Quantity kTokensQuantity, kSpeedQuantity;
Panel lines_panel(const std::vector<Experiment>& studies, const Quantity& quantity, bool by_budget);

// ---------------------------------------------------------------------------------------------------------------
// Experiments

enum class Measure { kTokens, kSpeed, kSaved };           // tokens per forward, times the speed, percent of the time
enum class Drawing { kBars, kByBudget, kByTemperature };  // what the picture is

// An experiment: methods, prompts, a measure and a sentence.
struct Topic {
  const char* name;
  double seconds;  // that it may take, about
  const char* question;
  const char* methods;  // as `compare` reads them; {a|b}: each of these in turn; %: the trained drafter; @: the model
  struct {
    const char* texts = "held-out";  // of these, seen, foreign, copying, prose, structured, with ',' between
    int prompts = 12;
    size_t bytes = 64;
    bool on_small = false;  // the small model is the target: no clock matters
  } from = {};
  Plan plan = {};
  struct {
    Measure measure = Measure::kSpeed;                          // of the picture; and over the base
    const char* over = "";                                      // what that is called
    Method (*base)(Method) = nullptr;                           // what a method is held against beside plain decoding
    std::vector<std::pair<const char*, double>> reported = {};  // the literature's figure for a shape, in percent saved
  } held = {};
  std::vector<float> temperatures = {1};
  Drawing drawing = Drawing::kBars;
};
extern const std::vector<Topic> kTopics;
// Prints it below the command that repeats it, and writes OUT/NAME.json and OUT/NAME.svg.
void run_topic(Lab& lab, const Topic& topic);

// ---------------------------------------------------------------------------------------------------------------
// What tests hold

// "a {b|c}" as "a b" and "a c".
std::vector<std::string> alternatives(const std::string& text);

// Passages of so many bytes from the beginnings of lines on, evenly among all such places from `from` on that have from
// `fewest` to `most` empty lines: an empty line is a change of speaker.
std::vector<std::string> passages_of(const std::string& text, size_t from, int n, size_t bytes, int fewest, int most);

}  // namespace nanospec
