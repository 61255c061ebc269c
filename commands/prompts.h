// commands/prompts.h: what the command line of generate asks for: one text, or with --prompts many.
#pragma once

#include "commands/commands.h"

namespace nanospec {

struct Generation {
  Options options;
  std::string stats_file, system;
  std::string out_file;  // of many texts
  std::vector<std::string> stops;
  int batch = 0;  // texts that decode side by side; 0: chosen
  bool stream = false, chat = false;
};

// The texts of --prompts, into --out. Returns the exit status. Throws std::runtime_error.
int generate_prompts(Generation& g);

// What a rule other than match makes of the texts, in one line; "" for match.
std::string promise_text(const Method& method);

}  // namespace nanospec
