// study/experiments.cpp: repeats the literature's experiments on the models that are there: see experiments.h.

#include "study/experiments.h"
#include "study/study.h"

namespace nanospec {
namespace {

Sections sections_of(Lab& lab) {
  Sections sections;
  for (const Topic& topic : kTopics)
    sections.push_back({topic.name, [&lab, &topic] { run_in_lab(lab, topic); }, topic.plan.seconds, topic.question});
  sections.push_back(
      {"seeds", [&lab] { run_seeds(lab); }, 600,
       "what do the methods that nanospec began with make of a model in a GGUF file, by what it is asked "
       "for? Dynamic trees, Medusa's heads, the parallel drafter, drafting ahead; only where it is named",
       false});
  return sections;
}

Command describe(Lab& b, std::string& only, float& minutes) {
  b.out = "build/experiments";
  b.options.settings.model = "runs/medium";
  return {"nanospec experiments",
          "Repeats the literature's experiments, and those of this project, on the models that are there: tables on "
          "standard output, every sample and the pictures in a folder. Methods run one after the other, prompt by "
          "prompt, and a figure comes with its 95% interval over the prompts. Everything takes eight to ten minutes.",
          "nanospec experiments --model runs/medium --drafter_model runs/small  # takes eight minutes\n"
          "nanospec experiments --only budgets,auto --model runs/medium  # takes three minutes\n"
          "nanospec experiments --only seeds --model models/SmolLM2-135M-Instruct.Q4_1.gguf  # takes ten minutes\n"
          "nanospec experiments --quick --model runs/small --out build/quick\n",
          together({{heading("What to repeat"),
                     {"--only", "LIST", &only, "some of these, with ',' between:\n" + sections_help(sections_of(b))},
                     {"--quick", "", &b.quick, "a short version of all: seconds, and figures that prove nothing"},
                     {"--minutes", "M", &minutes, "about as long as the sections may take together; 0: their own",
                      from(0, 100000)},
                     heading("Text and models"),
                     {"--model", "DIR", &b.options.settings.model, "the target"},
                     {"--drafter_model", "DIR", &b.drafter_model,
                      "a small model: it drafts, and is the target where no clock runs"},
                     {"--drafter", "WORD", &b.drafter,
                      "the trained drafter (gpt:DRAFTER_MODEL; where that cannot run, ngram:4)"},
                     {"--data", "FILE", &b.data,
                      "the text that they were trained on: prompts come from its last tenth (the one that the target "
                      "learned, where it is in data/)"},
                     {"--seed", "N", &b.options.sampling.seed, "of the texts that are decoded"}},
                    machine_flags(b.options),
                    {heading("Output"),
                     {"--out", "DIR", &b.out, "the folder for JSON and SVG files"},
                     {"--quiet", "", &b.options.settings.quiet, "no progress"}}})};
}

void need(const std::string& path, const std::string& what, const std::string& advice) {
  if (!std::filesystem::exists(path)) refuse("there is no " + what, printable(path, 300), advice);
}

bool is_target(const Lab& lab, const std::string& small) {
  const std::string hash = model_hash(small);
  return !hash.empty() && hash == model_hash(lab.options.settings.model);
}
// Throws std::invalid_argument where the small model is the target itself: every guess would be right.
void refuse_itself(const Lab& lab, const std::string& small, const std::string& flag) {
  if (is_target(lab, small))
    refuse_usage(
        "the target would draft for itself: {}: {} holds the model of --model: name a smaller one, trained on the same "
        "text",
        flag, printable(small, 300));
}

// What is left of a text when only the characters of another one may stay: lines stay lines.
std::string in_alphabet(const std::string& text, const std::string& alphabet) {
  const std::set<char> known(alphabet.begin(), alphabet.end());
  std::string kept;
  std::copy_if(text.begin(), text.end(), std::back_inserter(kept),
               [&](char c) { return known.count(c) && (unsigned char)c < 0x80; });
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
  Subject& target = lab.target();
  const Tokens prompt = target.engine.encode_prompt(
      prompts_of(lab.text, held_out_begin(lab.text), 1, kHeldOutBytes).at(0), "a prompt of " + lab.data);
  if (missing.empty() && !target.usable({matched(lab.drafter, "chain:4")}, prompt, missing).empty()) return;
  print_out(missing + "The trained drafter is " + kStrong + " instead.\n\n", true);
  lab.drafter = kStrong;
}

}  // namespace

// In --help's order.
const std::vector<Topic> kTopics = {
    {"budgets",
     "what does each shape make of a budget of nodes?",
     "ngram:4 {chain:4|chain:8|chain:16|tree:2x2|tree:3x2|tree:4x2|tree:5x2};ngram:4 "
     "{best-first|beam:4|calibrated|sequoia|auto|entropy-width} budget={4|8|16|32|64}",
     {70},
     {},
     {kSpeed, "", nullptr, true}},
    {"rules",
     "of the same number of candidates, how many tokens does each rule accept? One that is not exact wins nothing.",
     "ngram:4 {chain:4|tree:2x2} "
     "{verify=match|noise=unknown|verify=traversal|verify=typical|verify=independent};ngram:4 chain:4 "
     "verify={rejection|block};ngram:4 tree:2x2 verify={specinfer|without-replacement}",
     {35, {1}, 1, 250, 250},
     {"held-out", 48, 64, true},
     {kTokens, "tokens over rejection's, specinfer's",
      [](Method m) {
        return Method{m.drafter, m.shape, m.shape == "chain:4" ? "rejection" : "specinfer", 0, true};
      }}},
    {"coupling",
     "what does a drafter gain by drafting with the target's noise?",
     "{bigram chain:4|ngram:4 chain:4|ngram:4 tree:3x2|ngram:4 best-first budget=16|ngram:4 auto|'%' chain:4|'%' "
     "best-first budget=16} {verify=match|noise=unknown}",
     {30},
     {"held-out", 16},
     {kTokens, "tokens, told over not told", [](Method m) { return matched(m.drafter, m.shape, m.budget, false); }}},
    {"noise-aware",
     "how many tokens does a forward commit when a best-first tree knows the noise?",
     "ngram:4 best-first budget={4|8|16|32}",
     {20, {1}, 1, 500, 500},
     {"held-out", 45, 64, true},
     {kTokens}},
    {"auto",
     "how near does auto come to the best of all shapes, whatever the workload?",
     "{ngram:4|bigram|suffix+ngram:4|'%'} "
     "{auto|chain:2|chain:4|chain:8|tree:2x2|tree:3x2|tree:4x2|cartesian:4,2,1,1|entropy-stop:of=confidence|best-first "
     "budget=8|best-first budget=16|best-first budget=32|beam:4 budget=16|calibrated budget=16|sequoia budget=16}",
     {130, {1, 0.7f, 0}, 1, 12, 200},
     {},
     {kSpeed, "speed over auto's", [](Method m) { return matched(m.drafter, "auto"); }}},
    {"held-out",
     "what is each drafter worth after seen text, held-out text and foreign text (README.md)?",
     "{bigram|ngram:3|ngram:4|ngram:5|ngram:6|lookup|suffix|recycle|suffix+ngram:4|'%'|'suffix+%'} best-first "
     "budget=16",
     {25, {1}, 1, 24, 100},
     {"seen,held-out,foreign", 12, 160},
     {kTokens}},
    {"drafters",
     "what do drafters that learn gain and cost, against tables? prose: no change of speaker; structured: four",
     "{medusa|parallel|'parallel:@/sequential'|'%'|ngram:4|bigram} {best-first "
     "budget=16|chain:4|auto};{medusa|parallel|'parallel:@/sequential'|ngram:4} calibrated budget=64",
     {150, {0.7f, 1, 0}, 1, 40, 160, 0.9},
     {"prose,structured", 8, 160}}};

// See kSeeds: what a drafter needs that is not there is said, and it is left out.
const std::vector<Topic> kSeeds = {
    {"dynamic-trees",
     "where should a tree stop, and how wide should it be? (EAGLE-2, arXiv 2406.16858: a dynamic tree is 1.2 to 1.4 "
     "times as fast as EAGLE's fixed one)",
     "{hydra|suffix+ngram:4} "
     "{tree:3x2|entropy-stop|entropy-naive|entropy-width|entropy-depth-width|best-first|auto} budget=15",
     {0, {0.4f}, 2, 64, 64},
     {"all"}},
    {"heads",
     "what do heads make of many nodes, of few, and of those that are right most often? (Medusa, arXiv 2401.10774: 2.2 "
     "to 3.6 times plain decoding on a GPU; Hydra, 2402.05109: up to 1.31 times Medusa)",
     "medusa {cartesian:4,4,4,4 budget=340|cartesian:2,2,2|calibrated budget=64|best-first budget=15|auto};hydra "
     "{best-first budget=15|auto}",
     {0, {0, 0.7f}, 2, 64, 64},
     {"all"}},
    {"parallel",
     "the parallel drafter: a chain or a tree, and for what?",
     "parallel {chain:5|cartesian:2,2,2|best-first budget=15|auto}",
     {0, {0}, 2, 64, 64},
     {"kinds"},
     {kTokens}},
    {"ahead",
     "what does it gain to draft while the target runs?",
     "{parallel|suffix+ngram:4} auto {ahead=off|ahead=auto}",
     {0, {0}, 2, 64, 64},
     {"all"}}};

int experiments_command(int argc, char** argv) {
  Lab lab;
  std::string only;
  float minutes = 0;
  const Given given = parse_flags(describe(lab, only, minutes), argc, argv);
  if (given.help) return 0;
  Sections sections = chosen(sections_of(lab), given, only);
  check_options(lab.options);
  if (!lab.drafter.empty()) read_method(matched(lab.drafter, "chain:4"), 64);
  const auto run = [&] {
    double seconds = 0;
    for (const Section& section : sections) seconds += section.seconds;
    lab.run(sections, minutes > 0 ? 60 * double(minutes) / seconds : 1);
    lab.conclude();
    return interrupted() ? kInterruptedStatus : 0;
  };
  if (sections[0].name == std::string("seeds")) return run();  // the last of all, so it is alone
  if (is_gguf(lab.options.settings.model))
    refuse_usage("of a model in a GGUF file there is one experiment: --model: add --only seeds");
  choose_models(lab, given);
  if (!given.has("--data")) lab.data = find_text(lab.options.settings.model, true);
  need(lab.options.settings.model + "/model.safetensors", "target",
       "train one with train_gpt --preset medium --max_iters 1000, or name another with --model");
  need(lab.drafter_model + "/model.safetensors", "drafter model",
       "train it with train_gpt, or name another with --drafter_model");
  if (given.has("--drafter_model")) refuse_itself(lab, lab.drafter_model, "--drafter_model");
  for (const DrafterName& part : parse_drafter(lab.drafter.empty() ? kStrong : lab.drafter))
    if (part.kind == DrafterName::kGpt) refuse_itself(lab, part.dir, "--drafter");
  if (lab.data.empty())
    refuse("there is no text", not_found_text(lab.options.settings.model),
           "make data gets one, or name it with --data");
  need(lab.data, "text", "check the path");
  lab.text = read_file(lab.data);
  if (lab.text.size() < 2000)
    refuse("the text is too short", printable(lab.data, 300),
           "give one of at least 2,000 bytes, so that its last tenth holds prompts");
  for (const std::string& model : {lab.options.settings.model, lab.drafter_model})
    check_held_out(model, lab.text, lab.data);
  if (std::filesystem::exists("README.md")) lab.readme = in_alphabet(read_file("README.md"), lab.text);

  lab.target().engine.tokenizer().encode(lab.text, lab.data);  // what does not fit is refused before a folder is made

  const auto begin = [&] {
    print_out("Experiments: " + machine_line(lab) + "\n\n");
    choose_drafter(lab);
  };
  sections.insert(sections.begin(), {"models", begin, 0, "what is there"});
  return run();
}

}  // namespace nanospec
