// study/experiments.cpp: repeats the literature's experiments on the models that are there: see experiments.h.
#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

#include "study/experiments.h"

namespace nanospec {
namespace {

struct Section {
  const char* name;
  void (*run)(Lab&);
  double seconds;  // at most, about
  const char* what;
};
constexpr Section kSections[] = {
    {"entropy", entropy_experiment, 110, "trees that follow the entropy, against a chain: the paper's experiment"},
    {"budgets", budgets_experiment, 70, "every shape against its budget"},
    {"temperatures", temperatures_experiment, 45, "what each temperature leaves of the gain"},
    {"rules", rules_experiment, 35, "verification rules at equal candidates"},
    {"coupling", coupling_experiment, 30, "the same drafter with and without the target's noise"},
    {"noise-aware", noise_aware_experiment, 20, "best-first trees, held against their bars"},
    {"auto", auto_experiment, 130, "auto against the best of all shapes"},
    {"unions", unions_experiment, 30, "two drafters in one tree against the better of them"},
    {"held-out", held_out_experiment, 25, "text that no drafter was trained on"},
    {"drafters", drafters_experiment, 150, "drafters that learn, against tables and plain decoding"},
};

struct CommandLine {
  Lab lab;
  std::string only;
  float minutes = 0;
};

Command describe(CommandLine& c) {
  Lab& lab = c.lab;
  Bench& b = lab.bench;
  b.out = "build/experiments";
  b.options.settings.model = "runs/medium";
  std::string sections;
  for (const Section& section : kSections)
    sections += std::string(sections.empty() ? "" : "\n") + section.name + ": " + section.what;
  Command command{
      "nanospec experiments",
      "Repeats the literature's experiments, and those of this project, on the models that are there: tables on\n"
      "standard output, every sample and the pictures in a folder. Methods run in turn, prompt by prompt, and a\n"
      "figure comes with its 95% interval over the prompts. Everything takes eleven to fifteen minutes.",
      "nanospec experiments --model runs/medium --drafter_model runs/small --data data/tinyshakespeare.txt\n"
      "nanospec experiments --only entropy,auto --model runs/medium\n"
      "nanospec experiments --quick --out /tmp/experiments\n",
      {heading("What to repeat"),
       {"--only", "LIST", &c.only, "some of these, with ',' between:\n" + sections},
       {"--quick", "", &b.quick, "a short version of all: seconds, and figures that prove nothing"},
       {"--minutes", "M", &c.minutes, "about as long as all sections may take together; 0: their own", from(0, 100000)},
       heading("Text and models"),
       {"--model", "DIR", &b.options.settings.model, "the target"},
       {"--drafter_model", "DIR", &lab.drafter_model,
        "a small model: it drafts, and is the target where no clock runs"},
       {"--drafter", "WORD", &lab.drafter, "the trained drafter (gpt:DRAFTER_MODEL; where that cannot run, ngram:4)"},
       {"--data", "FILE", &b.data,
        "the text that they were trained on: prompts come from its last\ntenth (data/tinyshakespeare.txt, else "
        "data/shakespeare.txt)"},
       {"--seed", "N", &b.options.sampling.seed, "of the texts that are decoded"}}};
  const std::vector<Flag> machine = machine_flags(b.options);
  command.flags.insert(command.flags.end(), machine.begin(), machine.end());
  command.flags.insert(command.flags.end(), {heading("Output"),
                                             {"--out", "DIR", &b.out, "the folder for JSON and SVG files"},
                                             {"--quiet", "", &b.options.quiet, "no progress"}});
  return command;
}

std::vector<Section> chosen(const std::string& only) {
  std::vector<std::string> words, known;
  for (const Section& section : kSections) known.push_back(section.name);
  std::istringstream list(only);
  for (std::string word; std::getline(list, word, ',');) {
    check_word("section", word, "--only", known);
    words.push_back(word);
  }
  std::vector<Section> sections;
  for (const Section& section : kSections)
    if (words.empty() || std::find(words.begin(), words.end(), section.name) != words.end())
      sections.push_back(section);
  return sections;
}

void need(const std::string& path, const std::string& what, const std::string& flag, const std::string& advice) {
  if (path.empty() || !std::filesystem::exists(path))
    throw std::runtime_error("there is no " + what + ": " + (path.empty() ? flag : printable(path, 300)) + ": " +
                             advice);
}

// What is left of a text when only the characters of another one may stay: lines stay lines.
std::string in_alphabet(const std::string& text, const std::string& alphabet) {
  const std::set<char> known(alphabet.begin(), alphabet.end());
  std::string kept;
  for (char c : text)
    if (known.count(c) && (unsigned char)c < 0x80) kept += c;
  return kept;
}

// The trained drafter, or the next best one, which is said.
void choose_drafter(Lab& lab) {
  if (lab.drafter.empty()) lab.drafter = "gpt:" + lab.drafter_model;
  std::string missing;
  if (!lab.usable(lab.target(), {matched(lab.drafter, "chain:4")}, missing).empty()) return;
  print_out(missing + "The trained drafter is " + kStrong + " instead.\n\n", true);
  lab.drafter = kStrong;
}

void conclude(Lab& lab, bool several) {
  Bench& bench = lab.bench;
  if (interrupted()) print_out("Stopped early: what is shown above is complete, the rest is missing.\n");
  if (bench.quick) {
    print_out("A quick run proves nothing; all samples and pictures: " + bench.out + "\n");
  } else {
    if (several && !bench.bars.empty()) print_out("All bars\n\n" + bars_table(bench.bars) + "\n");
    const auto is_met = [](const Bar& bar) { return met(bar); };
    const std::string bars = std::to_string(std::count_if(bench.bars.begin(), bench.bars.end(), is_met)) + " of " +
                             count(double(bench.bars.size()), "bar") + " met; ";
    print_out((bench.bars.empty() ? "" : bars) + "all samples and pictures: " + bench.out + "\n");
  }
  print_out(busy_line(bench.evenness), true);
  bench.write_json("bars", {{"bars", bars_json(bench.bars)}});
}

}  // namespace

int experiments_command(int argc, char** argv) {
  CommandLine c;
  Lab& lab = c.lab;
  Bench& bench = lab.bench;
  const Command command = describe(c);
  const Given given = parse_flags(command, argc, argv);
  if (given.help) return 0;
  const std::vector<Section> sections = chosen(c.only);
  check_options(bench.options);
  if (!lab.drafter.empty()) check_method(matched(lab.drafter, "chain:4"), 64);
  if (!given.has("--data"))
    bench.data =
        std::filesystem::exists("data/tinyshakespeare.txt") ? "data/tinyshakespeare.txt" : "data/shakespeare.txt";
  need(bench.options.settings.model + "/model.safetensors", "target", "--model",
       "train one with train_gpt --preset medium --max_iters 1000, or name another with --model");
  need(lab.drafter_model + "/model.safetensors", "drafter model", "--drafter_model",
       "train it with train_gpt, or name another with --drafter_model");
  need(bench.data, "text", "--data", "get it with make data, or name one with --data");
  lab.text = read_file(bench.data);
  if (lab.text.size() < 2000)
    throw std::runtime_error("the text is too short: " + printable(bench.data, 300) +
                             ": give one of at least 2,000 bytes, so that its last tenth holds prompts");
  if (std::filesystem::exists("README.md")) lab.readme = in_alphabet(read_file("README.md"), lab.text);
  create_folder(bench.out);

  double all = 0;
  for (const Section& section : kSections) all += section.seconds;
  const double scale = c.minutes > 0 ? 60 * double(c.minutes) / all : 1;
  std::vector<double> guesses;
  for (const Section& section : sections) guesses.push_back(section.seconds * (bench.quick ? 0.05 : scale));
  Timetable time(bench.options.quiet, guesses);
  bench.time = &time;
  bench.machine = this_machine();
  watch_interrupts();

  print_out("Experiments: " + machine_line(bench) + "\n\n");
  choose_drafter(lab);
  for (const Section& section : sections) {
    if (interrupted()) break;
    lab.section = section.name, lab.seconds = section.seconds * scale;
    time.begin(section.name);
    section.run(lab);
  }
  conclude(lab, sections.size() > 1);
  return interrupted() ? kInterruptedStatus : 0;
}

}  // namespace nanospec
