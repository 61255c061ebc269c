// study/experiments_budgets.cpp: acceptance and speed against the budget, of every shape that has one and of the
// fixed ones of that size; and against the temperature.
#include <algorithm>

#include "commands/samples.h"
#include "study/experiments.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Budgets

namespace {

constexpr int kBudgets[] = {4, 8, 16, 32, 64};
constexpr const char* kBudgeted[] = {"best-first", "beam:4", "calibrated", "sequoia", "auto", "entropy-width"};
struct Fixed {
  const char *kind, *shape;
};
constexpr Fixed kFixed[] = {{"chains", "chain:4"},      {"chains", "chain:8"},      {"chains", "chain:16"},
                            {"full trees", "tree:2x2"}, {"full trees", "tree:3x2"}, {"full trees", "tree:4x2"},
                            {"full trees", "tree:5x2"}};

// One line for each kind of shape: points (budget, what `value` says).
template <class Value>
Panel budgets_panel(const Experiment& study, const std::string& y_name, Value value) {
  Panel panel{"", "nodes that the tree may have", y_name, {}, {4, 8, 16, 32, 64}, true, false};
  std::vector<std::string> kinds;
  for (const char* kind : kBudgeted) kinds.push_back(kind);
  kinds.push_back("chains"), kinds.push_back("full trees");
  for (size_t k = 0; k < kinds.size(); k++) {
    Series series{kinds[k],
                  k < std::size(kColours)    ? kColours[k]
                  : k == std::size(kColours) ? kPlainColour
                                             : kInk,
                  k < std::size(kBudgeted) ? Series::Style::kLine : Series::Style::kDashes,
                  {}};
    for (size_t m = 0; m < study.trial.methods.size(); m++) {
      const Method& method = study.trial.methods[m];
      const auto same = [&](const Fixed& f) { return f.shape == method.shape && f.kind == kinds[k]; };
      if (method.drafter == "none") continue;
      if (method.shape != kinds[k] && std::none_of(std::begin(kFixed), std::end(kFixed), same)) continue;
      const Interval i = value(m);
      series.points.push_back({double(most_nodes(method, kBudgets[4])), i.middle, 0, 0, ""});
    }
    if (!series.points.empty()) panel.series.push_back(series);
  }
  return panel;
}

// A row for each kind of shape, a column for each budget.
template <class Cell>
std::string by_budget(const Experiment& study, const std::string& drafter, Cell cell) {
  std::vector<std::vector<std::string>> rows = {{"shape", "4", "8", "16", "32", "64"}};
  for (const char* shape : kBudgeted) {
    std::vector<std::string> row = {shape};
    for (int budget : kBudgets) {
      const Method method = matched(drafter, shape, budget);
      row.push_back(study.has(method) ? cell(study.at(method)) : "");
    }
    if (row[1] != "") rows.push_back(row);
  }
  std::string fixed;
  for (const Fixed& f : kFixed) {
    const Method method = matched(drafter, f.shape);
    if (study.has(method))
      fixed += (fixed.empty() ? "" : "; ") + std::string(f.shape) + " (" + count(most_nodes(method, 64), "node") +
               ") " + cell(study.at(method));
  }
  return format_table(rows, "lrrrrr") + "fixed: " + fixed + "\n";
}

}  // namespace

void budgets_experiment(Lab& lab) {
  Engine& engine = lab.target();
  std::vector<Method> methods = {kPlain};
  for (const Fixed& f : kFixed) methods.push_back(matched(kStrong, f.shape));
  for (const char* shape : kBudgeted)
    for (int budget : kBudgets)
      if (!lab.bench.quick || budget == 16) methods.push_back(matched(kStrong, shape, budget));
  std::string missing;
  methods = lab.usable(engine, methods, missing);
  const Experiment study =
      run_study(lab, engine, lab.bench.options, methods, lab.held_out(12), {1, lab.seconds, 2, 16, 200, 0}, {});
  if (study.empty()) return;
  const auto acceptance = [&](size_t m) { return study.tokens_per_forward(m); };
  const auto speedup = [&](size_t m) { return study.speedup(m, study.trial.plain); };
  const auto short_text = [](const Interval& i) {
    return decimals(i.middle, 2) + " +-" + decimals((i.high - i.low) / 2, 2);
  };
  print_section(lab, "Budgets: what does each shape make of a budget of nodes?",
                "drafter " + std::string(kStrong) + "; " + study_circumstances(study, engine),
                "tokens per forward\n" +
                    by_budget(study, kStrong, [&](size_t m) { return short_text(acceptance(m)); }) +
                    "\ntimes plain decoding\n" +
                    by_budget(study, kStrong, [&](size_t m) { return short_text(speedup(m)); }) + missing);
  lab.bench.write_json("budgets", {{"studies", {study_json(engine, study)}}});
  lab.bench.write_svg("budgets", chart_picture("What a budget of nodes brings", study_circumstances(study, engine),
                                               {budgets_panel(study, "tokens per forward", acceptance),
                                                budgets_panel(study, "times plain decoding", speedup)},
                                               2));
}

// ---------------------------------------------------------------------------------------------------------------
// Temperatures

namespace {
constexpr float kTemperatures[] = {0.4f, 0.7f, 1, 1.3f, 0};  // greedy decoding stands apart, so it comes last

template <class Value>
Panel temperatures_panel(const std::vector<Experiment>& studies, const std::string& y_name, Value value) {
  Panel panel{"", "temperature (0 stands apart: see the table)", y_name, {}, {0, 0.4, 0.7, 1, 1.3}, false, false};
  for (size_t m = 1; m < studies[0].trial.methods.size(); m++) {
    Series line{method_text(studies[0].trial.methods[m]), colour_at(m - 1), Series::Style::kLine, {}},
        greedy{line.name, line.colour, Series::Style::kDots, {}};
    for (const Experiment& study : studies) {
      const double t = double(study.trial.options.sampling.temperature);
      const Interval i = value(study, m);
      (t > 0 ? line : greedy).points.push_back({t, i.middle, i.low, i.high, ""});
    }
    panel.series.push_back(line), panel.series.push_back(greedy);
  }
  return panel;
}
}  // namespace

void temperatures_experiment(Lab& lab) {
  Engine& engine = lab.target();
  const std::vector<Method> methods = {kPlain, matched(kStrong, "chain:4"), matched(kStrong, "tree:3x2"),
                                       matched(kStrong, "best-first", 16), matched(kStrong, "auto")};
  std::vector<Experiment> studies;
  std::string text;
  nlohmann::ordered_json json;
  for (size_t i = 0; i < std::size(kTemperatures); i++) {
    const double share = 1.0 / double(std::size(kTemperatures));
    const Experiment study =
        run_study(lab, engine, lab.bench.options, methods, lab.held_out(12),
                  {kTemperatures[i], lab.seconds * share, 2, 16, 200, 0}, {double(i) * share, share});
    if (study.empty()) return;
    text += study_circumstances(study, engine) + "\n" + loop_warning(kTemperatures[i]) + study_table(study) + "\n";
    json["studies"].push_back(study_json(engine, study));
    studies.push_back(study);
  }
  print_section(lab, "Temperatures: how much of the gain does each temperature leave?",
                "drafter " + std::string(kStrong), text);
  lab.bench.write_json("temperatures", json);
  lab.bench.write_svg(
      "temperatures",
      chart_picture("What the temperature leaves of the gain", study_circumstances(studies[0], engine, false),
                    {temperatures_panel(studies, "tokens per forward",
                                        [](const Experiment& s, size_t m) { return s.tokens_per_forward(m); }),
                     temperatures_panel(studies, "times plain decoding",
                                        [](const Experiment& s, size_t m) { return s.speedup(m, 0); })},
                    2));
}

}  // namespace nanospec
