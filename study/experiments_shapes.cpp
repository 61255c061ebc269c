// study/experiments_shapes.cpp: the entropy paper's experiment; acceptance and speed against the budget, of every shape
// that has one and of the fixed ones of that size; and against the temperature.
#include <algorithm>

#include "study/experiments.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Entropy: whether a tree that follows the drafter's entropy saves time over a chain. Temperature 0.4, 45 prompts; the
// paper's five shapes, with its entropy and with that of the confidence, and beside them the shapes that go by reach.

namespace {

struct Entry {
  const char* shape;
  int budget = 0;
  std::optional<double> paper = {};  // percent of the time saved
};
const Entry kEntries[] = {
    {"chain:4", 0, 0.0},
    {"tree:4x2", 0, 2.3},
    {"entropy-stop:depth=4", 0, 4.43},
    {"entropy-depth-width", 0, 6.65},
    {"entropy-width", 0, 7.16},
    {"entropy-stop:depth=4,of=confidence"},
    {"entropy-depth-width:of=confidence"},
    {"entropy-width:of=confidence"},
    {"entropy-depth-width", 8},
    {"entropy-width", 8},
    {"sequoia"},
    {"calibrated", 16},
    {"best-first", 16},
    {"auto"},
};

std::string entropy_table(const Experiment& study, const std::string& drafter, std::vector<IntervalBar>& bars,
                          OrderedJson& json) {
  TableRows rows = {{"shape", "time saved, %", "paper", "tokens/forward", "nodes/forward", "identical"}};
  const size_t base = study.at(matched(drafter, kEntries[0].shape));
  for (const auto& [shape, budget, paper] : kEntries) {
    const Method method = matched(drafter, shape, budget);
    const size_t m = study.at(method);
    if (!study.has(method)) continue;
    const Interval saved = percent_saved(study.speedup(m, base));
    rows.push_back({shape_text(method), m == base ? "0" : with_interval(saved, 1), paper ? decimals(*paper, 2) : "",
                    with_interval(study.tokens_per_forward(m), 2), decimals(study.nodes_per_forward(m), 1),
                    identical(method, study.outcomes[m])});
    bars.push_back({drafter.substr(0, drafter.find(':')) + ": " + shape_text(method), saved,
                    decimals(saved.middle, 1) + "%", paper ? kColours[0] : kColours[2], paper});
    json.push_back({{"drafter", drafter},
                    {"shape", shape},
                    {"budget", budget},
                    {"percent_saved", interval_json(saved)},
                    {"paper", paper ? OrderedJson(*paper) : OrderedJson()}});
  }
  return format_table(rows, "lrrrrl");
}

}  // namespace

void entropy_experiment(Lab& lab) {
  std::vector<std::string> drafters = {lab.drafter};
  if (lab.drafter != kStrong) drafters.push_back(kStrong);
  const std::vector<std::string> prompts = lab.held_out(45);
  const double share = 1.0 / double(drafters.size());
  std::vector<IntervalBar> bars;
  std::vector<Experiment> studies;
  OrderedJson saved;
  std::string text, subtitle;
  for (size_t d = 0; d < drafters.size(); d++) {
    std::vector<Method> methods = {kPlain};
    for (const Entry& entry : kEntries) methods.push_back(matched(drafters[d], entry.shape, entry.budget));
    std::string missing;
    methods = lab.usable(methods, missing);
    if (std::none_of(methods.begin(), methods.end(), [](const Method& m) { return m.shape == "chain:4"; })) {
      text += "drafter " + drafters[d] + ": " + missing + "\n";
      continue;
    }
    studies.push_back(run_study(lab, lab.target(), methods, prompts, {0.4f, lab.seconds * share, 2, 16, 64, 0, 0.9},
                                {double(d) * share, share}));
    if (studies.back().empty()) return;  // interrupted
    subtitle = studies.back().circumstances();
    text += "drafter " + drafters[d] + "; " + subtitle + "\n" +
            entropy_table(studies.back(), drafters[d], bars, saved) + missing + "\n";
  }
  OrderedJson json = studies_json(studies);
  json["time_saved"] = saved;
  BarAxis axis{"time saved, percent of that of chain:4", 0, "", "what the entropy paper reported, on its own models"};
  axis.colours = {{"a shape of the paper", kColours[0]}, {"another", kColours[2]}};
  publish(lab, {"Entropy: does a tree that follows the drafter's entropy save time over a chain of 4, as its paper "
                "reports?",
                "temperature 0.4; time saved against chain:4 of the same drafter", text,
                saved.empty() ? OrderedJson() : json,
                interval_picture("Time saved against a chain of 4, temperature 0.4", subtitle, axis, bars)});
}

// ---------------------------------------------------------------------------------------------------------------
// Budgets

namespace {

// What both of the pictures below are of.
struct Quantity {
  const char* name;
  Interval (*of)(const Experiment&, size_t m);
};
constexpr Quantity kQuantities[] = {
    {"tokens per forward", [](const Experiment& s, size_t m) { return s.tokens_per_forward(m); }},
    {"times plain decoding", [](const Experiment& s, size_t m) { return s.speedup(m, s.trial.plain); }}};

constexpr int kBudgets[] = {4, 8, 16, 32, 64};
constexpr const char* kBudgeted[] = {"best-first", "beam:4", "calibrated", "sequoia", "auto", "entropy-width"};
struct Fixed {
  const char *kind, *shape;
};
constexpr Fixed kFixed[] = {{"chains", "chain:4"},      {"chains", "chain:8"},      {"chains", "chain:16"},
                            {"full trees", "tree:2x2"}, {"full trees", "tree:3x2"}, {"full trees", "tree:4x2"},
                            {"full trees", "tree:5x2"}};

// One line for each kind of shape: points (budget, the quantity).
Panel budgets_panel(const Experiment& study, const Quantity& quantity) {
  Panel panel{"", "most nodes of a tree", quantity.name, {}, {}, true};
  std::vector<std::string> kinds(std::begin(kBudgeted), std::end(kBudgeted));
  kinds.insert(kinds.end(), {"chains", "full trees"});
  for (size_t k = 0; k < kinds.size(); k++) {
    const auto style = k < std::size(kBudgeted) ? Series::Style::kLine : Series::Style::kDashes;
    Series series{kinds[k], colour_at(k), style, {}};
    for (size_t m = 0; m < study.trial.methods.size(); m++) {
      const Method& method = study.trial.methods[m];
      const auto same = [&](const Fixed& f) { return f.shape == method.shape && f.kind == kinds[k]; };
      if (method.drafter == "none") continue;
      if (method.shape != kinds[k] && std::none_of(std::begin(kFixed), std::end(kFixed), same)) continue;
      series.points.push_back({double(most_nodes(method, kBudgets[4])), quantity.of(study, m).middle});
    }
    if (!series.points.empty()) panel.series.push_back(series);
  }
  return panel;
}

// A row for each kind of shape, a column for each budget.
std::string by_budget(const Experiment& study, const Quantity& quantity) {
  const auto cell = [&](const Method& method) -> std::string {
    if (!study.has(method)) return "";
    const Interval i = quantity.of(study, study.at(method));
    return decimals(i.middle, 2) + " +-" + decimals((i.high - i.low) / 2, 2);
  };
  TableRows rows = {{"shape", "4", "8", "16", "32", "64"}};
  for (const char* shape : kBudgeted) {
    Row row = {shape};
    for (int budget : kBudgets) row.push_back(cell(matched(kStrong, shape, budget)));
    if (row[1] != "") rows.push_back(row);
  }
  std::vector<std::string> fixed;
  for (const Fixed& f : kFixed)
    if (const Method method = matched(kStrong, f.shape); study.has(method))
      fixed.push_back(f.shape + (" (" + count(most_nodes(method, 64), "node")) + ") " + cell(method));
  return quantity.name + ("\n" + format_table(rows, "lrrrrr")) + "fixed: " + joined(fixed, "; ") + "\n";
}

}  // namespace

void budgets_experiment(Lab& lab) {
  std::vector<Method> methods = {kPlain};
  for (const Fixed& f : kFixed) methods.push_back(matched(kStrong, f.shape));
  for (const char* shape : kBudgeted)
    for (int budget : kBudgets)
      if (!lab.quick || budget == 16) methods.push_back(matched(kStrong, shape, budget));
  std::string missing;
  methods = lab.usable(methods, missing);
  const Experiment study = run_study(lab, lab.target(), methods, lab.held_out(12), {1, lab.seconds, 2, 16, 200});
  if (study.empty()) return;
  publish(lab,
          {"Budgets: what does each shape make of a budget of nodes?",
           "drafter " + std::string(kStrong) + "; " + study.circumstances(),
           by_budget(study, kQuantities[0]) + "\n" + by_budget(study, kQuantities[1]) + missing, studies_json({study}),
           chart_picture("What a budget of nodes brings", study.circumstances(),
                         {budgets_panel(study, kQuantities[0]), budgets_panel(study, kQuantities[1])}, 2)});
}

// ---------------------------------------------------------------------------------------------------------------
// Temperatures

namespace {
constexpr float kTemperatures[] = {0.4f, 0.7f, 1, 1.3f, 0};  // greedy decoding stands apart, so it comes last

Panel temperatures_panel(const std::vector<Experiment>& studies, const Quantity& quantity) {
  Panel panel{"", "temperature, 0: greedy", quantity.name, {}, {0, 0.4, 0.7, 1, 1.3}};
  panel.whisker = kOverPrompts;
  for (size_t m = 1; m < studies[0].trial.methods.size(); m++) {
    Series line{method_text(studies[0].trial.methods[m]), colour_at(m - 1), Series::Style::kLine},
        greedy{line.name, line.colour, Series::Style::kDots};
    for (const Experiment& study : studies) {
      const double t = double(study.trial.options.sampling.temperature);
      const Interval i = quantity.of(study, m);
      (t > 0 ? line : greedy).points.push_back({t, i.middle, i.low, i.high});
    }
    panel.series.push_back(line);
    panel.series.push_back(greedy);
  }
  return panel;
}
}  // namespace

void temperatures_experiment(Lab& lab) {
  const std::vector<Method> methods = {kPlain, matched(kStrong, "chain:4"), matched(kStrong, "tree:3x2"),
                                       matched(kStrong, "best-first", 16), matched(kStrong, "auto")};
  constexpr double kShare = 1.0 / double(std::size(kTemperatures));
  std::vector<Experiment> studies;
  std::string text;
  for (float temperature : kTemperatures) {
    studies.push_back(run_study(lab, lab.target(), methods, lab.held_out(12),
                                {temperature, lab.seconds * kShare, 2, 16, 200},
                                {double(studies.size()) * kShare, kShare}));
    if (studies.back().empty()) return;
    text += studies.back().circumstances() + "\n" + loop_warning(temperature) + study_table(studies.back()) + "\n";
  }
  publish(lab, {"Temperatures: how much of the gain does each temperature leave?", "drafter " + std::string(kStrong),
                text, studies_json(studies),
                chart_picture(
                    "What the temperature leaves of the gain", studies[0].circumstances(false),
                    {temperatures_panel(studies, kQuantities[0]), temperatures_panel(studies, kQuantities[1])}, 2)});
}

}  // namespace nanospec
