// commands/program.cpp: nanospec as one program: the table of commands, its help, and the lists of words that
// `nanospec help` explains.
#include "commands/commands.h"

namespace nanospec {
namespace {

constexpr const char* kVersion = "nanospec 0.1";

// Becomes build/study, whose commands these are. Before argv[0], the command's name, stands the program's, always.
int study_command(int, char** argv) { hand_over("study", argv - 1, "make study"); }

constexpr CommandLine kCommands[] = {
    {"generate", generate_command, "continue a prompt: plain, or speculating"},
    {"chat", chat_command, "talk with a model: lines in, answers out"},
    {"compare", compare_command, "decode with several methods, and say what each gains"},
    {"perplexity", perplexity_command, "measure how well a model predicts a text"},
    {"inspect", inspect_command, "say what a model's files hold"},
    {"index", index_command, "count n-grams of your texts, for the drafter ngram:N"},
    {"distill", distill_command, "let a model write the texts that a drafter learns from"},
    {"compress", compress_command, "keep a file as what surprises a model in it"},
    {"decompress", decompress_command, "get the file back"},
    {"verify", verify_command, "say whether a text is what a model says"},
    {"calibrate", calibrate_command, "measure how often a drafter guesses right, for shapes"},
    {"diagnose", study_command, "say why drafts are accepted or not"},
    {"show", show_command, "write a page that steps through a generation"},
    {"bench", study_command, "measure this machine, and how near nanospec comes to its limits"},
    {"experiments", study_command, "repeat the literature's experiments"},
    {"exact", study_command, "prove the verification rules, without a model"},
};

// ---------------------------------------------------------------------------------------------------------------
// Lists of words

// Each word of a table with what it says.
template <class Word, size_t n>
std::string words_help(const Word (&words)[n], const char* Word::*form) {
  return "\n" + joined(words, "", [&](const Word& known) { return help_item(known.*form, known.what); });
}

struct Topic {
  const char *name, *what, *begin;
  std::string (*words)();
  const char* examples;
};
const Topic kTopics[] = {
    {"drafters", "who guesses", "A drafter guesses the tokens to come; the model checks its guesses. --drafter:",
     [] { return words_help(kDrafters, &DrafterWord::form) + help_item(kUnionForm, kUnionWhat); },
     "nanospec generate --model runs/small --prompt \"ROMEO:\" --drafter ngram:4\n"
     "nanospec generate --model runs/medium --prompt \"ROMEO:\" --drafter gpt:runs/small\n"
     "train_drafter --medusa runs/small --data data/*shakespeare.txt --medusa_root --medusa_target distribution  # "
     "takes a minute\n"},
    {"shapes", "which guesses are worth a node", "A shape says which guesses are worth a node of the tree. --shape:",
     [] {
       return words_help(kShapes, &ShapeWord::form) + "\n" +
              help_paragraph(
                  "The four entropy shapes take settings after a colon, each of which may be left out: threshold=H in "
                  "nats, depth=D, of=q or of=confidence; entropy-naive also width=K.");
     },
     "nanospec generate --model runs/small --prompt \"ROMEO:\" --shape tree:3x2\n"
     "nanospec generate --model runs/small --prompt \"ROMEO:\" --shape best-first --budget 16\n"
     "nanospec generate --model runs/small --prompt \"ROMEO:\" --shape entropy-stop:threshold=1,depth=8\n"},
    {"rules", "which guesses are accepted",
     "A rule says which guesses are accepted. All but match are for study: nanospec exact compares each with what it "
     "promises. --verify:",
     [] { return words_help(kRules, &RuleWord::word); },
     "nanospec exact\n"
     "nanospec compare --model runs/small --prompt \"ROMEO:\" --methods \"none; bigram chain:4 verify=rejection\"\n"}};

// ---------------------------------------------------------------------------------------------------------------
// The program

std::string program_help() {
  std::string text = help_paragraph(
                         "Generates text with a small GPT, by tree-based speculative decoding: faster than one token "
                         "at a time, and the same text, byte for byte.") +
                     "\nUsage: build/nanospec COMMAND [FLAGS]\n\nCommands:\n";
  for (const CommandLine& command : kCommands) text += help_item(command.name, command.what);
  text += "\nHelp:\n" + help_item("help COMMAND", "a command's flags, as nanospec COMMAND --help");
  for (const Topic& topic : kTopics) text += help_item("help " + std::string(topic.name), topic.what);
  return text + help_item("--help, -h", "show this and end") + help_item("--version", "show the version and end") +
         "\n" +
         help_examples(
             "nanospec generate --model runs/small --prompt \"ROMEO:\"\n"
             "nanospec compare --model runs/small --prompt \"ROMEO:\"\n"
             "nanospec bench --roofline\n");
}

int print(const std::string& text) {
  print_out(text);
  return 0;
}

// nanospec help [WORD]
int help(int argc, char** argv) {
  if (argc > 2) refuse_usage("surplus word {}: nanospec help: name one thing", quoted(argv[2]));
  const std::string word = argc < 2 ? "help" : argv[1];
  if (word == "help" || word == "--help" || word == "-h") return print(program_help());
  if (const Topic* const topic = row_of(kTopics, &Topic::name, word))
    return print(help_paragraph(topic->begin) + topic->words() + "\n" + help_examples(topic->examples));
  std::vector<std::string> names = column(kTopics, &Topic::name);
  for (const std::string& command : column(kCommands, &CommandLine::name)) names.push_back(command);
  check_word("word", word, "nanospec help", names);
  char program[] = "nanospec", flag[] = "--help";
  char* line[] = {program, argv[1], flag, nullptr};
  return row_of(kCommands, &CommandLine::name, word)->run(2, line + 1);
}

}  // namespace

int nanospec_program(int argc, char** argv) {
  const std::string word = argc > 1 ? argv[1] : "";
  if (const CommandLine* const its = row_of(kCommands, &CommandLine::name, word)) return its->run(argc - 1, argv + 1);
  std::vector<std::string> names = column(kCommands, &CommandLine::name);
  if (argc < 2)
    refuse_usage("a command is missing: nanospec: give one of {}; build/nanospec help says what each does",
                 joined(names));
  if (word == "help") return help(argc - 1, argv + 1);
  if (word == "--help" || word == "-h") return help(1, argv);
  if (word == "--version") return print(std::string(kVersion) + "\n");
  if (word[0] == '-') check_word("flag", word, "nanospec, where a command is due", {"--help", "--version"});
  names.push_back("help");
  check_word("command", word, "nanospec", names);
  return 2;
}

}  // namespace nanospec
