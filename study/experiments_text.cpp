// study/experiments_text.cpp: two experiments without clocks: the noise-aware best-first tree against its bars, and
// acceptance by drafter on text that no drafter was trained on.
#include "study/experiments.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Noise-aware trees

namespace {
struct Goal {
  int budget;
  double bar, simulated;  // tokens per forward
};
constexpr Goal kGoals[] = {{4, 2.5, 2.56}, {8, 3.0, 3.08}, {16, 3.5, 3.59}, {32, 3.9, 4.02}};
constexpr int kNoiseAwarePrompts = 45, kNoiseAwareTokens = 500;
}  // namespace

Bar noise_aware_bar(int budget, double tokens_per_forward) {
  for (const Goal& goal : kGoals)
    if (goal.budget == budget)
      return {"best-first, budget " + std::to_string(budget) + ": tokens per forward", tokens_per_forward, true,
              goal.bar};
  throw std::logic_error("there is no bar for budget " + std::to_string(budget));
}

void noise_aware_experiment(Lab& lab) {
  Engine& engine = lab.small();
  std::vector<Method> methods = {kPlain};
  for (const Goal& goal : kGoals) methods.push_back(matched(kStrong, "best-first", goal.budget));
  const Experiment study = run_study(lab, engine, lab.small_options(), methods, lab.held_out(kNoiseAwarePrompts),
                                     {1, lab.seconds, 1, kNoiseAwareTokens, kNoiseAwareTokens, 0}, {});
  if (study.empty()) return;
  std::vector<std::vector<std::string>> rows = {
      {"budget", "tokens/forward", "bar", "simulated", "nodes/forward", "times plain", "identical"}};
  std::vector<IntervalBar> bars;
  for (size_t i = 0; i < std::size(kGoals); i++) {
    const size_t m = i + 1;
    const Interval tokens = study.tokens_per_forward(m);
    rows.push_back({std::to_string(kGoals[i].budget), with_interval(tokens, 3), decimals(kGoals[i].bar, 1),
                    decimals(kGoals[i].simulated, 2), decimals(study.nodes_per_forward(m), 1),
                    with_interval(study.speedup(m, 0), 2), identical(methods[m], study.outcomes[m])});
    bars.push_back({"budget " + std::to_string(kGoals[i].budget), tokens.middle, tokens.low, tokens.high,
                    decimals(tokens.middle, 2), kColours[0], true, kGoals[i].bar});
    lab.bench.bars.push_back(noise_aware_bar(kGoals[i].budget, tokens.middle));
  }
  print_section(lab, "Noise-aware trees: how many tokens does a forward commit when the tree knows the noise?",
                "drafter " + std::string(kStrong) + "; " + study_circumstances(study, engine) +
                    "; prompts of 64 characters from the data's last tenth",
                format_table(rows, "rrrrrrl") +
                    "tokens/forward depends on no clock: the same figures on every run of one build.\n");
  lab.bench.write_json("noise-aware", {{"studies", {study_json(engine, study)}}});
  lab.bench.write_svg(
      "noise-aware",
      interval_picture("Tokens per forward of noise-aware best-first trees", study_circumstances(study, engine),
                       "tokens per forward, from plain decoding's 1 on", 1, bars, "the bar"));
}

// ---------------------------------------------------------------------------------------------------------------
// Held-out text

void held_out_experiment(Lab& lab) {
  Engine& engine = lab.target();
  std::vector<std::string> drafters = {"bigram", "ngram:3", "ngram:4", "ngram:5",       "ngram:6",
                                       "lookup", "suffix",  "recycle", "suffix+ngram:4"};
  if (lab.drafter != kStrong) drafters.push_back(lab.drafter), drafters.push_back("suffix+" + lab.drafter);
  std::vector<Method> methods = {kPlain};
  for (const std::string& drafter : drafters) methods.push_back(matched(drafter, "best-first", 16));
  std::string missing;
  methods = lab.usable(engine, methods, missing);
  struct Source {
    std::string name;
    std::vector<std::string> prompts;
  };
  const int n = lab.bench.quick ? 2 : 12;
  constexpr size_t kBytes = 160;  // so that drafters which copy have something to copy
  std::vector<Source> sources = {
      {"seen: the data's first nine tenths", prompts_of(lab.text.substr(0, held_out_begin(lab.text)), 0, n, kBytes)},
      {"held out: its last tenth", lab.held_out(n, kBytes)}};
  if (lab.readme.size() > 2 * kBytes) sources.push_back({"foreign: README.md", prompts_of(lab.readme, 0, n, kBytes)});
  else missing += "left out: foreign text: there is no README.md here\n";

  std::vector<Experiment> studies;
  nlohmann::ordered_json json;
  for (size_t s = 0; s < sources.size(); s++) {
    const double share = 1.0 / double(sources.size());
    const Experiment study = run_study(lab, engine, lab.bench.options, methods, sources[s].prompts,
                                       {1, lab.seconds * share, 1, 24, 100, 0}, {double(s) * share, share});
    if (study.empty()) return;
    nlohmann::ordered_json one = study_json(engine, study);
    one["text"] = sources[s].name;
    json["studies"].push_back(one);
    studies.push_back(study);
  }
  std::vector<std::vector<std::string>> rows = {{"drafter"}};
  for (const Source& source : sources) rows[0].push_back(source.name);
  rows[0].push_back("identical");
  std::vector<IntervalBar> bars;
  for (size_t m = 1; m < methods.size(); m++) {
    std::vector<std::string> row = {methods[m].drafter};
    for (size_t s = 0; s < studies.size(); s++) {
      const Interval tokens = studies[s].tokens_per_forward(m);
      row.push_back(with_interval(tokens, 2));
      bars.push_back({s == 0 ? methods[m].drafter : "", tokens.middle, tokens.low, tokens.high,
                      decimals(tokens.middle, 2) + " " + sources[s].name.substr(0, sources[s].name.find(':')),
                      colour_at(s), false, 0});
    }
    row.push_back(identical(methods[m], studies[0].outcomes[m]));
    rows.push_back(row);
  }
  print_section(lab, "Held-out text: what is each drafter worth after a prompt that nobody was trained on?",
                "tokens per forward, best-first budget=16; " + study_circumstances(studies[0], engine),
                format_table(rows, "l" + std::string(sources.size(), 'r') + "l") + missing);
  lab.bench.write_json("held-out", json);
  lab.bench.write_svg(
      "held-out", interval_picture("Tokens per forward, by drafter and text", study_circumstances(studies[0], engine),
                                   "tokens per forward, from plain decoding's 1 on", 1, bars));
}

}  // namespace nanospec
