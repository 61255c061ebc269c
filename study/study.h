// study/study.h: the commands of build/study, the program that measures and explains.
//
// The ring study/ measures and explains what the rest does, and changes nothing. It includes every ring but training/,
// and no ring includes it. Its four commands are a program of their own, build/study, to which nanospec hands over:
// `bench` (speed, against the machine's limits), `experiments` (the literature's, on trained models), `exact` (rules
// against what they promise, without a model) and `diagnose` (why drafts are right or wrong). measured.cu answers for
// the GPU, and for an update of training. The ring hooks into Engine::generate (commands/engine.h), by on_iteration,
// which sees every iteration; into run_all (commands/comparison.h), which runs methods in turn; and into Probe, which
// measures forwards. A run that is not studied pays nothing. update.h hooks into launches, as an Observer
// (machine/threads.h). roofline.h and gpu.h ask the machine itself. What a header of the project includes, the files
// that include it do not include again.
//
// How to add a command: write study/NAME.cpp with `int NAME_command(int argc, char** argv)`, declare it here, and give
// it a line in kCommands of study.cpp, and one in that of commands/program.cpp.
#pragma once

#include "commands/commands.h"

namespace nanospec {

// Each returns the exit status and throws as run_program() (commands/cli.h) wants it.
CommandFunction bench_command, experiments_command, exact_command, diagnose_command;

}  // namespace nanospec
