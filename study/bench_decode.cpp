// study/bench_decode.cpp: what speculation gains with a trained model, on prompts that it was not trained on: every
// drafter with a sweep of fixed shapes and with `auto` at several budgets, against plain decoding.
#include <algorithm>
#include <filesystem>

#include "study/experiments.h"

namespace nanospec {
namespace {

constexpr int kLargest = 64;  // nodes
constexpr const char* kBlind = "random";
constexpr const char* kDrafters[] = {kWeak, kStrong, kBlind};

constexpr const char *kFixed = "chain:4;tree:3x2",
                     *kSweep = "chain:{1|2|3|4|5|6|7|8};tree:{2x2|2x3|3x2|2x4|4x2|3x3|5x2}";
constexpr int kBudgets[] = {2, 4, 8, 16, 32, kLargest};

// The work at one temperature, and its share of the section.
constexpr struct {
  float temperature;
  bool sweep;
  double seconds, share;
} kParts[] = {{1, true, 75, 0.45}, {0.7f, true, 75, 0.45}, {0, false, 20, 0.1}};
constexpr int kPrompts = 4, kFinalRepeats = 11;
constexpr double kFinalSeconds = 30, kSweepShare = 0.7;  // of a temperature's time

std::vector<Method> methods_of(bool sweep) {
  std::vector<Method> methods;
  for (const char* drafter : kDrafters) {
    const bool whole = sweep && drafter != kBlind;
    if (drafter != kBlind)
      for (const std::string& words : split_at(sweep ? kSweep : kFixed, ';'))
        for (const std::string& shape : alternatives(words)) methods.push_back(matched(drafter, shape));
    for (int budget : kBudgets)
      if (whole || budget == kLargest) methods.push_back(matched(drafter, "auto", budget));
  }
  return methods;
}

// Of each drafter the fastest fixed shape, and auto with the largest budget. The best of many by a few repeats is the
// luckiest, too: they run again, oftener.
std::vector<Method> best_of(const Experiment& part) {
  std::vector<Method> methods;
  for (const char* drafter : kDrafters) {
    for (const Method& method : part.fastest(1, [&](auto& m) { return m.drafter == drafter && m.shape != "auto"; }))
      methods.push_back(method);
    if (const Method last = matched(drafter, "auto", kLargest); part.has(last)) methods.push_back(last);
  }
  return methods;
}

// ---------------------------------------------------------------------------------------------------------------
// Saying

constexpr struct {
  const char *name, *in_picture;
  double Stats::*seconds;
} kSteps[] = {{"forward", "forward", &Stats::seconds_forward},
              {"slides", "window slides", &Stats::seconds_slide},
              {"draft", "draft", &Stats::seconds_draft},
              {"verify", "verify and sample", &Stats::seconds_verify},
              {"keep", "keep", &Stats::seconds_keep}};

std::string part_table(const Experiment& part) {
  std::vector<Column> columns;
  for (const auto& step : kSteps)
    columns.push_back({step.name, [&part, seconds = step.seconds](size_t m) {
                         const Stats sum = sum_of(part.outcomes[m]);
                         return decimals(100 * ratio(sum.*seconds, sum.seconds), 1) + "%";
                       }});
  return study_table(part, columns);
}

std::string temperature_of(const Experiment& part) { return "temperature " + temperature_text(part.temperature()); }

// Speed against the nodes that a tree may have.
Panel speed_panel(const Experiment& part) {
  Panel panel = lines_panel({part}, kSpeedQuantity, true);
  panel.title = temperature_of(part);
  return panel;
}

// How many tokens one forward commits.
Panel acceptance_panel(const Experiment& part) {
  Panel panel{temperature_of(part), "tokens of one forward", "share of the forwards, %"};
  for (size_t m = 0; m < part.outcomes.size(); m++) {
    const Method& method = part.trial.methods[m];
    if (method.shape != "auto" || method.drafter == "none") continue;
    const Stats sum = sum_of(part.outcomes[m]);
    Series series{method.drafter + " auto", colour_at(panel.series.size()), Series::Style::kBars};
    for (size_t i = 1; i < sum.accept_histogram.size(); i++)
      series.points.push_back({double(i), 100 * ratio(double(sum.accept_histogram[i]), double(sum.target_forwards))});
    panel.series.push_back(series);
  }
  return panel;
}

// Where the time goes.
std::string shares_picture(const std::vector<Experiment>& parts) {
  BarAxis axis{"share of the time, %"};
  for (const auto& step : kSteps) axis.colours.push_back({step.in_picture, colour_at(axis.colours.size())});
  std::vector<IntervalBar> bars;
  for (const Experiment& part : parts)
    for (size_t m = 0; m < part.outcomes.size(); m++) {
      const Stats sum = sum_of(part.outcomes[m]);
      bars.push_back({"T = " + temperature_text(part.temperature()) + ", " +
                          (m == part.trial.plain ? "plain" : method_text(part.trial.methods[m])),
                      {100},
                      decimals(1e6 * ratio(sum.seconds, double(sum.tokens)), 0) + " us/token",
                      ""});
      for (const auto& step : kSteps) bars.back().parts.push_back(sum.*step.seconds);
    }
  return interval_picture("Where the time goes", parts[0].circumstances(false), axis, bars);
}

std::string panels_picture(const std::string& title, const std::vector<Experiment>& parts,
                           Panel (*panel)(const Experiment&), int columns) {
  std::vector<Panel> panels;
  for (const Experiment& part : parts) panels.push_back(panel(part));
  return chart_picture(title, parts[0].circumstances(false), panels, columns);
}

}  // namespace

std::string decode_missing(const Bench& bench) {
  const std::string &data = bench.data, &model = bench.options.settings.model;
  if (model.empty() || !std::filesystem::exists(model + "/model.safetensors"))
    return "there is no trained model: " + (model.empty() ? "runs/medium, runs/small" : printable(model, 300)) +
           ": train one with train_gpt, or name another with --model";
  if (data.empty() || !std::filesystem::exists(data))
    return "there is no text: " + (data.empty() ? "data" : printable(data, 300)) +
           ": get it with make data, or name one with --data";
  return "";
}

void bench_decode(Bench& bench) {
  std::string missing = decode_missing(bench);
  if (!missing.empty()) return bench.print("Speculation", "left out: " + missing + "\n");
  Options options = bench.options;
  options.settings.budget = kLargest;
  options.settings.rows = kLargest + 1;
  Subject subject(options);
  const std::vector<std::string> prompts =
      held_out_prompts(bench.data, bench.quick ? 1 : kPrompts, kHeldOutBytes, options.settings.model);
  const std::vector<int> prompt = subject.engine.encode_prompt(prompts[0], "a prompt from " + bench.data);

  std::vector<Experiment> parts, finals;
  OrderedJson json;
  double done = 0;
  for (const auto& plan : kParts) {
    const auto run = [&](const std::vector<Method>& methods, int repeats, double seconds, double share) {
      const Stretch stretch = {done, plan.share * share};
      done += plan.share * share;
      return run_study(bench, subject, methods, prompts, {repeats, 60, 300, 1}, plan.temperature, seconds, stretch);
    };
    std::string left_out;
    const std::vector<Method> methods = subject.usable(methods_of(plan.sweep && !bench.quick), prompt, left_out);
    parts.push_back(run(methods, bench.repeats, plan.seconds, kSweepShare));
    const Experiment& part = parts.back();
    if (part.empty()) return;  // interrupted
    finals.push_back(run(best_of(part), kFinalRepeats, kFinalSeconds, 1 - kSweepShare));
    const Experiment& last = finals.back();
    if (last.empty()) return;  // interrupted
    const std::string at = temperature_of(part);
    bench.evenness.push_back({"plain decoding, " + at, unevenness(speeds(last.outcomes[last.trial.plain]))});
    bench.print("Speculation at " + at + "; " + part.circumstances(false),
                loop_warning(plan.temperature) + part_table(part) + (done < 0.5 ? left_out : ""));
    bench.print("The best of these at " + at + " again; " + count(double(last.outcomes[0].runs.size()), "repeat"),
                part_table(last));
    json["temperatures"].push_back(part.json());
    json["finals"].push_back(last.json());
    bench.write_json("decode", json);
    bench.write_svg("speed", panels_picture("Speed, by shape and budget", parts, speed_panel, 1));
    bench.write_svg("acceptance", panels_picture("How many tokens a forward commits", finals, acceptance_panel, 2));
    bench.write_svg("shares", shares_picture(finals));
  }
}

}  // namespace nanospec
