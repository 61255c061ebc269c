// study/experiments_entropy.cpp: the entropy paper's experiment: whether a tree that follows the drafter's entropy
// saves time over a chain. Temperature 0.4, 45 prompts; the paper's five shapes, with its entropy and with that of the
// confidence, and beside them the shapes that go by reach.
#include "study/experiments.h"

namespace nanospec {
namespace {

constexpr float kTemperature = 0.4f;
constexpr int kPrompts = 45;

struct Row {
  const char* shape;
  int budget;
  double paper;  // percent of the time saved; below 0: not in the paper
};
constexpr Row kRows[] = {
    {"chain:4", 0, 0},
    {"tree:4x2", 0, 2.3},
    {"entropy-stop:depth=4", 0, 4.43},
    {"entropy-depth-width", 0, 6.65},
    {"entropy-width", 0, 7.16},
    {"entropy-stop:depth=4,of=confidence", 0, -1},
    {"entropy-depth-width:of=confidence", 0, -1},
    {"entropy-width:of=confidence", 0, -1},
    {"entropy-depth-width", 8, -1},
    {"entropy-width", 8, -1},
    {"sequoia", 0, -1},
    {"calibrated", 16, -1},
    {"best-first", 16, -1},
    {"auto", 0, -1},
};

std::string table(const Experiment& study, const std::string& drafter, std::vector<IntervalBar>& bars,
                  nlohmann::ordered_json& json) {
  std::vector<std::vector<std::string>> rows = {
      {"shape", "time saved, %", "paper", "tokens/forward", "nodes/forward", "identical"}};
  const size_t base = study.at(matched(drafter, kRows[0].shape));
  for (const Row& row : kRows) {
    const Method method = matched(drafter, row.shape, row.budget);
    const size_t m = study.at(method);
    if (!study.has(method)) continue;
    const Interval saved = percent_saved(study.speedup(m, base));
    const bool in_paper = row.paper >= 0;
    const std::string name = row.shape + std::string(row.budget > 0 ? " budget=" + std::to_string(row.budget) : "");
    rows.push_back({name, m == base ? "0" : with_interval(saved, 1), in_paper ? decimals(row.paper, 2) : "",
                    with_interval(study.tokens_per_forward(m), 2), decimals(study.nodes_per_forward(m), 1),
                    identical(method, study.outcomes[m])});
    bars.push_back({drafter.substr(0, drafter.find(':')) + ": " + name, saved.middle, saved.low, saved.high,
                    decimals(saved.middle, 1) + "%", in_paper ? kColours[0] : kColours[2], in_paper, row.paper});
    json.push_back({{"drafter", drafter},
                    {"shape", row.shape},
                    {"budget", row.budget},
                    {"percent_saved", {saved.middle, saved.low, saved.high}},
                    {"paper", in_paper ? nlohmann::ordered_json(row.paper) : nlohmann::ordered_json()}});
  }
  return format_table(rows, "lrrrrl");
}

}  // namespace

void entropy_experiment(Lab& lab) {
  Engine& engine = lab.target();
  std::vector<std::string> drafters = {lab.drafter};
  if (lab.drafter != kStrong) drafters.push_back(kStrong);
  const std::vector<std::string> prompts = lab.held_out(kPrompts);
  std::vector<IntervalBar> bars;
  nlohmann::ordered_json json, saved;
  std::string text, subtitle;
  for (size_t d = 0; d < drafters.size(); d++) {
    std::vector<Method> methods = {kPlain};
    for (const Row& row : kRows) methods.push_back(matched(drafters[d], row.shape, row.budget));
    std::string missing;
    methods = lab.usable(engine, methods, missing);
    const bool drafts =
        std::any_of(methods.begin(), methods.end(), [](const Method& m) { return m.shape == "chain:4"; });
    if (!drafts) {
      text += "drafter " + drafters[d] + ": " + missing + "\n";
      continue;
    }
    const double share = 1.0 / double(drafters.size());
    const Experiment study =
        run_study(lab, engine, lab.bench.options, methods, prompts,
                  {kTemperature, lab.seconds * share, 2, 16, 64, 0, 0.9}, {double(d) * share, share});
    if (study.empty()) return;  // interrupted
    subtitle = study_circumstances(study, engine);
    text += "drafter " + drafters[d] + "; " + subtitle + "\n" + table(study, drafters[d], bars, saved) + missing + "\n";
    json["studies"].push_back(study_json(engine, study));
  }
  json["time_saved"] = saved;
  print_section(lab,
                "Entropy: does a tree that follows the drafter's entropy save time over a chain of 4, as its paper "
                "reports?",
                "temperature 0.4; time saved against chain:4 of the same drafter", text);
  if (saved.empty()) return;
  lab.bench.write_json("entropy", json);
  lab.bench.write_svg("entropy", interval_picture("Time saved against a chain of 4, temperature 0.4", subtitle,
                                                  "percent of the time of chain:4", 0, bars,
                                                  "what the entropy paper reported, on its own models"));
}

}  // namespace nanospec
