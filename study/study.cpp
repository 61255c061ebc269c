// study/study.cpp: the program build/study: the table of its commands. nanospec hands over to it.
#include "study/study.h"

namespace nanospec {
namespace {

constexpr CommandLine kCommands[] = {{"bench", bench_command},
                                     {"experiments", experiments_command},
                                     {"exact", exact_command},
                                     {"diagnose", diagnose_command}};

int study_program(int argc, char** argv) {
  const std::string word = argc > 1 ? argv[1] : "";
  if (const CommandLine* const its = row_of(kCommands, &CommandLine::name, word)) return its->run(argc - 1, argv + 1);
  if (word == "--help" || word == "-h") {
    print_out(
        "Usage: build/study bench|experiments|exact|diagnose [FLAGS]\n\n" +
        help_paragraph("nanospec hands over to this program. build/study COMMAND --help lists a command's flags."));
    return 0;
  }
  check_word("command", word, "study", column(kCommands, &CommandLine::name));
  return 2;
}

}  // namespace
}  // namespace nanospec

int main(int argc, char** argv) { return nanospec::run_program("nanospec", nanospec::study_program, argc, argv); }
