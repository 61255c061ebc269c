// study/experiments.cpp: repeats the literature's experiments on the models that are there: see experiments.h.
#include <algorithm>
#include <filesystem>
#include <set>

#include "files/drafter_names.h"
#include "files/origin.h"
#include "study/experiments.h"
#include "study/study.h"

namespace nanospec {
namespace {

Sections sections_of(Lab& lab) {
  return {
      {"entropy", [&] { entropy_experiment(lab); }, 110,
       "trees that follow the entropy, against a chain: the paper's experiment"},
      {"budgets", [&] { budgets_experiment(lab); }, 70, "every shape against its budget"},
      {"temperatures", [&] { temperatures_experiment(lab); }, 45, "what each temperature leaves of the gain"},
      {"rules", [&] { rules_experiment(lab); }, 35, "verification rules at equal candidates"},
      {"coupling", [&] { coupling_experiment(lab); }, 30, "the same drafter with and without the target's noise"},
      {"noise-aware", [&] { noise_aware_experiment(lab); }, 20, "best-first trees that know the noise"},
      {"auto", [&] { auto_experiment(lab); }, 130, "auto against the best of all shapes"},
      {"unions", [&] { unions_experiment(lab); }, 30, "two drafters in one tree against the better of them"},
      {"held-out", [&] { held_out_experiment(lab); }, 25, "text that no drafter was trained on"},
      {"drafters", [&] { drafters_experiment(lab); }, 150, "drafters that learn, against tables and plain decoding"},
  };
}

struct CommandLine {
  Lab lab;
  std::string only;
  float minutes = 0;
};

Command describe(CommandLine& c) {
  Lab& b = c.lab;
  b.out = "build/experiments";
  b.options.settings.model = "runs/medium";
  return {
      "nanospec experiments",
      "Repeats the literature's experiments, and those of this project, on the models that are there: tables on "
      "standard output, every sample and the pictures in a folder. Methods run one after the other, prompt by prompt, "
      "and a figure comes with its 95% interval over the prompts. Everything takes eleven to fifteen minutes.",
      "nanospec experiments --model runs/medium --drafter_model runs/small  # takes 12 minutes\n"
      "nanospec experiments --only entropy,auto --model runs/medium  # takes three minutes\n"
      "nanospec experiments --quick --model runs/small --out build/quick\n",
      together(
          {{heading("What to repeat"),
            {"--only", "LIST", &c.only, "some of these, with ',' between:\n" + sections_help(sections_of(b))},
            {"--quick", "", &b.quick, "a short version of all: seconds, and figures that prove nothing"},
            {"--minutes", "M", &c.minutes, "about as long as all sections may take together; 0: their own",
             from(0, 100000)},
            heading("Text and models"),
            {"--model", "DIR", &b.options.settings.model, "the target"},
            {"--drafter_model", "DIR", &b.drafter_model,
             "a small model: it drafts, and is the target where no clock runs"},
            {"--drafter", "WORD", &b.drafter,
             "the trained drafter (gpt:DRAFTER_MODEL; where that cannot run, ngram:4)"},
            {"--data", "FILE", &b.data,
             "the text that they were trained on: prompts come from its last tenth (the one that the target learned, "
             "where it is in data/)"},
            {"--seed", "N", &b.options.sampling.seed, "of the texts that are decoded"}},
           machine_flags(b.options),
           {heading("Output"),
            {"--out", "DIR", &b.out, "the folder for JSON and SVG files"},
            {"--quiet", "", &b.options.quiet, "no progress"}}})};
}

void need(const std::string& path, const std::string& what, const std::string& flag, const std::string& advice) {
  if (path.empty() || !std::filesystem::exists(path))
    throw std::runtime_error("there is no " + what + ": " + (path.empty() ? flag : printable(path, 300)) + ": " +
                             advice);
}

bool is_target(const Lab& lab, const std::string& small) {
  const std::string hash = model_hash(small);
  return !hash.empty() && hash == model_hash(lab.options.settings.model);
}
// Throws std::invalid_argument where the small model is the target itself: every guess would be right.
void refuse_itself(const Lab& lab, const std::string& small, const std::string& flag) {
  if (is_target(lab, small))
    throw std::invalid_argument("the target would draft for itself: " + flag + ": " + printable(small, 300) +
                                " holds the model of --model: name a smaller one, trained on the same text");
}

// What is left of a text when only the characters of another one may stay: lines stay lines.
std::string in_alphabet(const std::string& text, const std::string& alphabet) {
  const std::set<char> known(alphabet.begin(), alphabet.end());
  std::string kept;
  for (char c : text)
    if (known.count(c) && (unsigned char)c < 0x80) kept += c;
  return kept;
}

// The models that no flag names. The target is the small model where there is no other; and where no second model is
// there, it stands in for the small one.
void choose_models(Lab& lab, const Given& given) {
  const auto there = [](const std::string& model) { return std::filesystem::exists(model + "/model.safetensors"); };
  std::string& target = lab.options.settings.model;
  if (!given.has("--model") && !there(target) && there(lab.drafter_model)) target = lab.drafter_model;
  if (given.has("--drafter_model") || !there(target)) return;
  if (!there(lab.drafter_model) || is_target(lab, lab.drafter_model)) lab.drafter_model = target;
}

// The trained drafter, or the next best one, which is said.
void choose_drafter(Lab& lab) {
  std::string missing;
  if (lab.drafter.empty() && lab.drafter_model == lab.options.settings.model)
    missing = "left out: a smaller model as drafter: there is one model here: make experiments trains a second\n";
  if (lab.drafter.empty()) lab.drafter = "gpt:" + lab.drafter_model;
  if (missing.empty() && !lab.usable({matched(lab.drafter, "chain:4")}, missing).empty()) return;
  print_out(missing + "The trained drafter is " + kStrong + " instead.\n\n", true);
  lab.drafter = kStrong;
}

}  // namespace

int experiments_command(int argc, char** argv) {
  CommandLine c;
  Lab& lab = c.lab;
  const Command command = describe(c);
  const Given given = parse_flags(command, argc, argv);
  if (given.help) return 0;
  const Sections all = sections_of(lab);
  Sections sections = chosen(all, c.only);
  check_options(lab.options);
  if (!lab.drafter.empty()) check_method(matched(lab.drafter, "chain:4"), 64);
  choose_models(lab, given);
  if (!given.has("--data")) lab.data = find_text(lab.options.settings.model, true);
  need(lab.options.settings.model + "/model.safetensors", "target", "--model",
       "train one with train_gpt --preset medium --max_iters 1000, or name another with --model");
  need(lab.drafter_model + "/model.safetensors", "drafter model", "--drafter_model",
       "train it with train_gpt, or name another with --drafter_model");
  if (given.has("--drafter_model")) refuse_itself(lab, lab.drafter_model, "--drafter_model");
  for (const DrafterName& part : parse_drafter(lab.drafter.empty() ? kStrong : lab.drafter))
    if (part.kind == DrafterName::kGpt) refuse_itself(lab, part.dir, "--drafter");
  if (lab.data.empty())
    refuse("there is no text", not_found_text(lab.options.settings.model),
           "make data gets one, or name it with --data");
  need(lab.data, "text", "--data", "check the path");
  lab.text = read_file(lab.data);
  if (lab.text.size() < 2000)
    throw std::runtime_error("the text is too short: " + printable(lab.data, 300) +
                             ": give one of at least 2,000 bytes, so that its last tenth holds prompts");
  for (const std::string& model : {lab.options.settings.model, lab.drafter_model})
    check_held_out(model, lab.text, lab.data);
  if (std::filesystem::exists("README.md")) lab.readme = in_alphabet(read_file("README.md"), lab.text);

  lab.target().engine.tokenizer().encode(lab.text, lab.data);  // what does not fit is refused before a folder is made

  double seconds = 0;
  for (const Section& section : all) seconds += section.seconds;
  const auto begin = [&] {
    print_out("Experiments: " + machine_line(lab) + "\n\n");
    choose_drafter(lab);
  };
  sections.insert(sections.begin(), {"models", begin, 0, "what is there"});
  lab.run(sections, c.minutes > 0 ? 60 * double(c.minutes) / seconds : 1);
  lab.conclude();
  return interrupted() ? kInterruptedStatus : 0;
}

}  // namespace nanospec
