// tests/commands/stand_in.h: the Engine that stands in for nanospec.cu's in tests of commands, and what these share.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "commands/engine.h"
#include "files/text.h"
#include "tests/command_line.h"

// One call of Engine::generate.
struct Call {
  std::string method;
  std::vector<int> prompt;
  int sequence, max_new_tokens;
  nanospec::Sampling sampling;
};

struct StandInEngine {
  std::vector<Call> calls;
  std::function<nanospec::Generated(const nanospec::Method&, int max_new_tokens)> script;  // what a call answers
  bool decodes = false;           // instead of asking the script, it decodes with a mock and a bigram drafter
  nanospec::Tokenizer tokenizer;  // to begin with, a token is a character of ASCII, by its number
  bool gpu = false;               // whether this machine has one
  std::string early;              // what gpu_early() was told, word by word
  std::vector<std::pair<std::vector<int>, int>> windows;  // whose losses were asked for, and from which token on
  int interrupted_at = -1;                                // the window that meets a Ctrl-C
};
StandInEngine& stand_in();
inline auto& calls = stand_in().calls;
inline auto& script = stand_in().script;
inline auto& decodes = stand_in().decodes;
inline auto& windows = stand_in().windows;

// While it lives, the engine decodes.
struct Decodes {
  Decodes() { decodes = true; }
  ~Decodes() { decodes = false; }
};

// "abcd...": the text that every exact method must print.
std::vector<int> alphabet(int n);

// What a run of n tokens came to: plain decoding takes a second, any other method half of it, for two tokens a forward.
nanospec::Generated steady(const nanospec::Method& method, int n);

// Runs a command in silence on standard error and returns its standard output.
std::string run(int (*command)(int, char**), Words words, int expected_status = 0);

// Each of these headings is followed, still above its table, by the line that says that the run was a quick one.
void check_quick_tables(const std::string& out, const Words& headings);
