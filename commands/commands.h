// commands/commands.h: the commands of nanospec, and what they share: flags, the words of a method, statistics.
//
// How to add a command: write commands/NAME.cpp with `int NAME_command(int argc, char** argv)` (argv[0] is the
// command's name), declare it here, and give it a line in kCommands of nanospec.cu.
#pragma once

#include <string>
#include <vector>

#include "cli.h"
#include "engine.h"

namespace nanospec {

// Each returns the exit status and throws as run_program() wants it.
int generate_command(int argc, char** argv);
int compare_command(int argc, char** argv);
int bench_command(int argc, char** argv);
int exact_command(int argc, char** argv);

// ---------------------------------------------------------------------------------------------------------------
// Flags

struct Options {
  Settings settings;
  Sampling sampling;
  std::string prompt, prompt_file;
  int max_new_tokens = 500;
  bool quiet = false;
};

constexpr int kMaxBudget = 1 << 14;

// Parts of a command's table of flags; the values go to `options`.
std::vector<Flag> text_flags(Options& options);      // model, prompt, prompt_file, max_new_tokens
std::vector<Flag> sampling_flags(Options& options);  // temperature, top_k, top_p, seed
std::vector<Flag> machine_flags(Options& options);   // device, dtype, cache_dtype, threads

// What no single flag can tell. Throws std::invalid_argument.
void check_options(const Options& options);

// Throws std::invalid_argument unless exactly one of these flags was given.
void check_one_given(const Given& given, const std::vector<std::string>& names, const std::string& command);

// The text of --prompt, or of --prompt_file byte for byte. Throws std::runtime_error where it is empty or unreadable.
std::string read_prompt(const Options& options, const Given& given);

// Throws std::runtime_error where no file can be written: better said before the work than after it.
void check_writable(const std::string& path);

// ---------------------------------------------------------------------------------------------------------------
// Methods

// Throws std::invalid_argument for an unknown drafter, shape or rule, for a shape larger than the budget, and where
// the rule cannot judge the shape.
void check_method(const Method& method, int budget);

// Reads "none; bigram chain:4; bigram tree:3x2 verify=independent; bigram auto budget=8": a drafter, a shape (auto
// where left out), a rule, a budget of its own. Throws std::invalid_argument.
std::vector<Method> parse_methods(const std::string& text, int budget);

std::string method_text(const Method& method);  // as parse_methods reads it

std::string numbers_text(const Settings& settings);  // "fp32", "bf16, cache bf16"

// The nodes of the largest tree that the method may draft.
int most_nodes(const Method& method, int budget);

Promise promise_of(const Method& method);  // what its text is to plain decoding's
std::string flaw(Promise promise);         // "biased", "lossy"; "" where the distribution is the target's

// Known words as a flag's help lists them, one a line: `head`, then for each its form and what it is.
std::string listed(const std::string& head, const std::vector<std::pair<std::string, std::string>>& words);

// ---------------------------------------------------------------------------------------------------------------
// Statistics

double ratio(double a, double b);  // a / b; 0 where b is 0
void add(Stats& sum, const Stats& part);
double gigabytes_per_second(const Engine& engine, const Stats& stats);  // of weights, while the target ran

// Every field of Stats and those that follow from it, under the names that scripts read.
nlohmann::ordered_json stats_json(const Engine& engine, const Stats& stats);
nlohmann::ordered_json settings_json(const Options& options, const Engine& engine);  // model, device, sampling ...
nlohmann::ordered_json method_json(const Method& method);                            // drafter, shape, verify

std::string count(double n, const std::string& what);  // "1 token", "12,345 tokens"
std::string percent(double part, double whole);        // "12%"

}  // namespace nanospec
