// tests/commands/stand_in.h: the Engine that stands in for nanospec.cu's in tests of commands. test_commands.cpp has
// it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "commands/engine.h"
#include "files/text.h"

// One call of Engine::generate.
struct Call {
  std::string method;
  std::vector<int> prompt;
  int sequence, max_new_tokens;
};

struct StandInEngine {
  std::vector<Call> calls;
  std::function<nanospec::Generated(const nanospec::Method&, int max_new_tokens)> script;  // what a call answers
  bool decodes = false;           // instead of asking the script, it decodes with a mock and a bigram drafter
  nanospec::Tokenizer tokenizer;  // to begin with, a token is a character of ASCII, by its number
  std::string chat_template;
  int begin_token = -1;
};
StandInEngine& stand_in();
