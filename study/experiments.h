// study/experiments.h: what `experiments` and the sections of `bench` that decode share: a Topic, which one loop runs.
// experiments.cpp has the command line and the table of experiments; experiments_study.cpp has the loop.
//
// In order: the laboratory; a study, several methods over the same prompts; what is said of it; an experiment; parts of
// them that tests hold.
//
// How to add an experiment: a row of kTopics in experiments.cpp.
#pragma once

#include "commands/comparison.h"
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
  std::vector<Method> usable(const std::vector<Method>& methods, const Tokens& prompt, std::string& missing);

 private:
  std::map<std::string, std::string> known_;  // of drafters and shapes that were tried: "", or why not
};

struct Lab : Bench {  // options: the target's
  std::string drafter_model = "runs/small", drafter;
  std::string text;    // of --data
  std::string readme;  // text that is no part of it, in its alphabet

  // The target, loaded when first asked for; or the small model as a target of its own: where no clock is read, it
  // gives fifty times the text.
  Subject& target(bool small = false);

 private:
  std::map<std::string, Subject> targets_;  // by model
};

// ---------------------------------------------------------------------------------------------------------------
// A study

constexpr const char* kStrong = "ngram:4";
inline Method matched(const std::string& drafter, const std::string& shape, int budget = 0, bool knows_noise = true) {
  return {drafter, shape, "match", budget, knows_noise};
}

// The methods of a text as `compare` reads it, in which {a|b} stands for each of these in turn, and a letter of `words`
// for a word; none twice.
std::vector<Method> methods_of(const std::string& text, const std::map<char, std::string>& words = {});

// How much is decoded; whatever its methods, they go through all prompts in turn, prompt by prompt.
struct Plan {
  double seconds = 0;  // that an experiment may take, about
  std::vector<float> temperatures = {1};
  int repeats = 2;              // at most; 0: as --repeat says
  int fewest = 16, most = 200;  // new tokens of each prompt: what finds time
  double share = 0.6;           // of plain decoding's time for a token, on average over the methods
};

struct Experiment {
  const Engine* engine = nullptr;
  Trial trial;
  std::vector<Outcome> outcomes;

  bool empty() const { return outcomes.empty() || outcomes[0].runs.empty(); }
  size_t at(const Method& method) const;  // its place; methods.size() where it has none
  float temperature() const { return trial.options.sampling.temperature; }

  // For each prompt the median over repeats of log(base's seconds a token / m's), pairs of one repeat.
  std::vector<double> gains(size_t m, size_t base) const;
  Interval speedup(size_t m, size_t base) const { return ratio_interval(gains(m, base)); }
  Interval times_plain(size_t m) const { return speedup(m, trial.plain); }
  Interval tokens_per_forward(size_t m) const;
  // Of m's tokens per forward and base's, prompt by prompt.
  Interval forwards_saved(size_t m, size_t base) const;
  double nodes_per_forward(size_t m) const;
  std::vector<Stats> by_prompt(size_t m) const;  // sums over the repeats

  std::string circumstances(bool with_temperature = true) const;
  OrderedJson json() const;
};

// ---------------------------------------------------------------------------------------------------------------
// Saying

std::string with_interval(const Interval& interval, int places);  // "2.31 (2.25 to 2.38)"

// What is measured of a method, and how many times as much of it as another one has.
struct Measure {
  const char* name;
  std::function<Interval(const Experiment&, size_t m)> of;
  std::function<Interval(const Experiment&, size_t m, size_t base)> over;
};
inline const Measure kTokens = {"tokens per forward", &Experiment::tokens_per_forward, &Experiment::forwards_saved},
                     kSpeed = {"times plain decoding", &Experiment::times_plain, &Experiment::speedup};

// ---------------------------------------------------------------------------------------------------------------
// Experiments

// What an experiment asks: methods, prompts, a measure and a sentence.
struct Topic {
  const char *name, *question;
  std::string methods;  // see methods_of(); %: the trained drafter; @: the model
  Plan plan = {};
  struct {
    const char* texts = "held-out";  // of these, seen, foreign, prose, structured, with ',' between; of kSeeds kinds,
                                     // one by one, or all
    int prompts = 12;
    size_t bytes = 64;
    bool on_small = false;  // the small model is the target: no clock matters
  } from = {};
  struct {
    const Measure& measure = kSpeed;   // of the picture, and over the base
    const char* over = "";             // what that is called
    Method (*base)(Method) = nullptr;  // what a method is held against beside plain decoding
    bool by_budget = false;            // whether the picture is of budget_panel(), and not a bar for each method
  } held = {};
};
// Those of the laboratory; and, of the methods that nanospec began with, those of a model in a GGUF file.
extern const std::vector<Topic> kTopics, kSeeds;

// Prompts of one kind.
struct Text {
  std::string name;
  std::vector<std::string> prompts;
};

// Runs a topic, which may take bench.seconds: its methods on each text at each temperature. Prints all tables below the
// heading, with what is `missing` already, and writes OUT/NAME.json and OUT/NAME.svg. words: of methods_of().
void run_topic(Bench& bench, Subject& subject, const Topic& topic, const std::vector<Text>& texts,
               const std::string& heading, std::string missing = "", const std::map<char, std::string>& words = {});
void run_in_lab(Lab& lab, const Topic& topic);  // below the command that repeats it
// kSeeds, on a model in a GGUF file, by what it is asked for: the questions of data/kinds.jsonl (bench_decode.cpp).
void run_seeds(Bench& bench);

// ---------------------------------------------------------------------------------------------------------------
// What tests hold

// Passages of so many bytes from the beginnings of lines on, evenly among all such places from `from` on that have from
// `fewest` to `most` empty lines: an empty line is a change of speaker.
std::vector<std::string> passages_of(const std::string& text, size_t from, int n, size_t bytes, int fewest, int most);

}  // namespace nanospec
