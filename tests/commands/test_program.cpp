// tests/commands/test_program.cpp: nanospec as one program: which command, and its help.
#include "commands/commands.h"
#include "files/drafters.h"
#include "files/words.h"
#include "study/study.h"
#include "tests/command_line.h"
#include "tests/error_of.h"
#include "watch/settings.h"

using namespace nanospec;

namespace {

// What the program prints.
std::string printed(Words words, int* status = nullptr) {
  words.insert(words.begin(), "nanospec");
  std::vector<char*> argv = arguments(words);
  argv.push_back(nullptr);
  return captured(1, [&] {
    const int ended = nanospec_program(int(argv.size()) - 1, argv.data());
    if (status) *status = ended;
  });
}

// The commands that are a program of their own.
const std::map<std::string, int (*)(int, char**)> kStudy = {{"bench", bench_command},
                                                            {"experiments", experiments_command},
                                                            {"exact", exact_command},
                                                            {"diagnose", diagnose_command}};
void help_of(const std::string& name, int (*command)(int, char**)) {
  std::vector<std::string> words = {name, "--help"};
  std::vector<char*> argv = arguments(words);
  CHECK(command(int(argv.size()), argv.data()) == 0);
}

// The first words of the lines that stand in by two.
Words listed(const std::string& help) {
  Words names;
  for (const std::string& line : split_at(help, '\n'))
    if (line.size() > 3 && line.compare(0, 2, "  ") == 0 && line[2] != ' ')
      names.push_back(line.substr(2, line.find(' ', 2) - 2));
  return names;
}

}  // namespace

TEST_CASE("program: help of every command, and of every list, fits 80 columns and ends with examples") {
  const Words commands = {"generate",    "chat",      "compare",  "perplexity", "inspect",
                          "index",       "calibrate", "diagnose", "show",       "bench",
                          "experiments", "exact",     "compress", "decompress", "verify"};
  const Words named = listed(printed({"help"}));
  for (const std::string& command : commands) CHECK(std::count(named.begin(), named.end(), command) == 1);
  std::vector<std::string> helps = {printed({"help"})};
  for (const std::string& command : commands) {
    const auto study = kStudy.find(command);
    helps.push_back(study == kStudy.end() ? printed({"help", command})
                                          : captured(1, [&] { help_of(command, study->second); }));
    if (study == kStudy.end()) CHECK(helps.back() == printed({command, "--help"}));
    CHECK(contains(helps.back(), "Usage: build/nanospec " + command));
  }
  for (const char* topic : {"drafters", "shapes", "rules"}) helps.push_back(printed({"help", topic}));
  for (const std::string& help : helps) {
    CHECK_MESSAGE(contains(help, "\nExamples:\n  "), help);
    // An example goes on where a line ends with a backslash, and nowhere else.
    const std::vector<std::string> examples = split_at(help.substr(help.find("\nExamples:\n") + 11), '\n');
    for (size_t i = 0; i + 1 < examples.size(); i++)
      if (i == 0 || examples[i - 1].back() != '\\')
        CHECK_MESSAGE(contains(examples[i].substr(0, 16), "  build/"), examples[i]);
    for (const std::string& line : split_at(help, '\n')) {
      const auto columns = std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; });
      CHECK_MESSAGE(columns <= 80, line);
    }
  }
}

TEST_CASE("program: help lists every drafter, shape and rule with what it is") {
  const std::string drafters = printed({"help", "drafters"}), shapes = printed({"help", "shapes"}),
                    rules = printed({"help", "rules"});
  for (const DrafterWord& known : kDrafters) CHECK(contains(drafters, std::string("\n  ") + known.form + " "));
  for (const ShapeWord& known : kShapes) CHECK(contains(shapes, std::string("\n  ") + known.form + " "));
  for (const RuleWord& known : kRules) CHECK(contains(rules, std::string("\n  ") + known.word + " "));
  CHECK(contains(shapes, "threshold=H"));
}

TEST_CASE("program: bench and the others are handed over to build/study; where that is missing, a line says so") {
  for (const auto& study : kStudy) {  // nothing of that name lies beside the tests
    const std::string name = study.first;
    const std::string line = error_of([&] { printed({name, "--quick"}); });
    CHECK_MESSAGE(contains(line, "cannot start study: "), line);
    CHECK_MESSAGE(contains(line, "/study (No such file or directory): build it with make study"), line);
    CHECK(error_of([&] { printed({"help", name}); }) == line);
  }
}

TEST_CASE("program: words, and how it ends") {
  int status = -1;
  for (const Words& words : {Words{"help"}, Words{"--help"}, Words{"-h"}, Words{"help", "help"}, Words{"--version"},
                             Words{"help", "generate"}, Words{"help", "drafters"}}) {
    CHECK(!printed(words, &status).empty());
    CHECK(status == 0);
  }
  CHECK(printed({"help"}) == printed({"--help"}));
  const std::string alone = BAD_COMMAND_LINE(printed({}));  // it lists the commands, in its one line
  CHECK(contains(alone, "a command is missing: nanospec: give one of "));
  for (const char* command : {"generate", "chat", "compare", "inspect", "experiments", "exact"})
    CHECK(contains(alone, command));
  CHECK(
      contains(BAD_COMMAND_LINE(printed({"generte"})), "unknown command 'generte': nanospec: did you mean generate?"));
  CHECK(contains(BAD_COMMAND_LINE(printed({"HELP"})), "did you mean help?"));
  CHECK(contains(BAD_COMMAND_LINE(printed({"help", "drafter"})), "did you mean drafters?"));
  CHECK(contains(BAD_COMMAND_LINE(printed({"help", "exact", "x"})), "surplus word 'x'"));
  for (const Words& far : {Words{"--unknown"}, Words{"frobnicate"}, Words{"help", "zebra"}, Words{""}}) {
    const std::string line = BAD_COMMAND_LINE(printed(far));
    CHECK_MESSAGE(!contains(line, "did you mean"), line);
    CHECK_MESSAGE(contains(line, "known: "), line);
  }
}
