// commands/outputs.h: what a run writes, looked at before its work begins: nothing is lost by a slip of the hand, and
// no work for a file that cannot be written.
//
// The table of flags says what a run writes (written() of cli.h) and what it reads (every other FILE or DIR). Two names
// are one file where they lead to the same place, by whatever links.
#pragma once

#include <string>
#include <vector>

#include "commands/cli.h"

namespace nanospec {

// Whether two names lead to one place; /dev/null is none.
bool same_file(const std::string& a, const std::string& b);

// Throws std::runtime_error where no file can be written.
void check_writable(const std::string& path);

// All outputs that the command line names: none is another, what the run reads, a file of a model, or where its
// standard output or error goes (std::invalid_argument), and each can be written (std::runtime_error). also_reads:
// files and folders that no flag names alone. own: as above.
void check_outputs(const Command& command, const Given& given, const std::vector<std::string>& also_reads = {},
                   const std::string& own = "");

}  // namespace nanospec
