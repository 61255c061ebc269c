// commands/comparison.h: several methods over the same prompts, in turn: what `compare` and `bench` share.
//
// Every repeat runs every method once, in an order that rotates, and a speedup is that of two runs of the same repeat,
// so that a machine that speeds up or slows down hits all methods alike. Texts are compared byte by byte.
#pragma once

#include "commands/prompts.h"
#include "growth/clock.h"

namespace nanospec {

inline const Method kPlain = {"none", "auto", "match"};

struct Trial {
  Options options;
  std::vector<Method> methods;
  size_t plain = 0;  // the method that the others are measured against
  std::vector<Asked> prompts;
  int repeats = 5;
  bool by_prompt = false;  // all methods on one prompt before the next: the runs of a pair lie nearer together
  bool own_noise = false;  // each prompt has noise of its own; else equal places of all prompts meet the same
  double most_seconds = std::numeric_limits<double>::infinity();  // no repeat begins that would end later

  void choose_plain();  // the first method that drafts nothing; put before all others where there is none
};

// The prompts' tokens. Throws std::runtime_error, with the prompt's number, as Tokenizer::encode.
std::vector<Tokens> encoded(const Engine& engine, const Options& options, const std::vector<Asked>& prompts);

// One method's part of one repeat.
struct Run {
  Stats stats;                 // summed over the prompts
  std::vector<Stats> prompts;  // of each
  double tokens_per_second() const { return ratio(stats.tokens, stats.seconds); }
};

struct Outcome {
  std::vector<Run> runs;         // one a repeat
  std::vector<double> speedups;  // over the plain run of the same repeat
  std::string difference;        // "" while every text was plain's; else where the first one differed
};

// What goes on now, and which share of all is done; called for every token.
using Report = std::function<void(const std::string& doing, double done)>;

// Runs everything; after an interrupt only whole repeats are kept, perhaps none.
std::vector<Outcome> run_all(const Trial& trial, Engine& engine, const Report& report);

inline std::vector<double> speeds(const Outcome& outcome) {  // tokens per second of each run
  std::vector<double> values;
  for (const Run& run : outcome.runs) values.push_back(run.tokens_per_second());
  return values;
}
inline Stats sum_of(const Outcome& outcome) {
  Stats sum;
  for (const Run& run : outcome.runs) add(sum, run.stats);
  return sum;
}

// Whether the text was plain decoding's, for people.
std::string identical(const Method& method, const Outcome& outcome);

// An exact method whose text was not plain's, "" where there is none: a bug of ours, always. The other one throws
// std::runtime_error where there is one.
std::string broken(const Trial& trial, const std::vector<Outcome>& outcomes);
inline void refuse_broken(const std::string& method) {
  if (method.empty()) return;
  refuse("the text is not plain decoding's", method, "this is a bug of nanospec: report the command line");
}

inline std::string times(double x) { return decimals(x, 2) + "x"; }  // 1.25x

// The settings, the prompts, `more`, and of every method its words and, for each run, all that was counted.
OrderedJson comparison_json(const Trial& trial, const Engine& engine, const std::vector<Outcome>& outcomes,
                            const OrderedJson& more = OrderedJson::object());

}  // namespace nanospec
