// study/bench_decode.cpp: what speculation gains with a trained model, on prompts that it was not trained on: every
// drafter with a sweep of fixed shapes and with `auto` at several budgets, against plain decoding.
#include <algorithm>
#include <filesystem>
#include <map>

#include "study/experiments.h"

namespace nanospec {
namespace {

constexpr int64_t kFewNodes = 20;  // that say nothing of a chance
constexpr const char* kSweep[] = {"chain:1",  "chain:2",  "chain:3",  "chain:4",  "chain:5",
                                  "chain:6",  "chain:7",  "chain:8",  "tree:2x2", "tree:2x3",
                                  "tree:3x2", "tree:2x4", "tree:4x2", "tree:3x3", "tree:5x2"};
constexpr int kBudgets[] = {2, 4, 8, 16, 32, 64};
constexpr int kLargest = 64;  // nodes
constexpr int kPrompts = 4, kPromptBytes = 64, kNewTokens = 300, kFewestTokens = 60;
constexpr double kSweepSeconds = 75, kGreedySeconds = 20, kFinalSeconds = 30;  // at most, for one temperature
constexpr double kSweepShare = 0.7;                                            // of a temperature's time
constexpr int kFinalRepeats = 11;

constexpr const char* kBlind = "random";
constexpr const char* kDrafters[] = {kWeak, kStrong, kBlind};

// What was decoded at one temperature.
struct Part : Experiment {
  float degrees() const { return trial.options.sampling.temperature; }
  std::string temperature() const { return "temperature " + temperature_text(degrees()); }
  size_t largest_auto(const std::string& drafter) const { return at(matched(drafter, "auto", kLargest)); }
  // The drafter's fastest fixed shape; methods.size() where it has none.
  size_t best_fixed(const std::string& drafter) const {
    size_t best = trial.methods.size();
    for (size_t m = 0; m < trial.methods.size(); m++)
      if (trial.methods[m].drafter == drafter && trial.methods[m].shape != "auto" &&
          (!has(best) || median(outcomes[m].speedups) > median(outcomes[best].speedups)))
        best = m;
    return best;
  }
  bool has(size_t m) const { return m < trial.methods.size(); }
  // Plain, and of each drafter the best fixed shape and auto with the largest budget.
  std::vector<size_t> best() const {
    std::vector<size_t> places = {trial.plain};
    for (const char* drafter : kDrafters)
      for (size_t m : {best_fixed(drafter), largest_auto(drafter)})
        if (has(m)) places.push_back(m);
    return places;
  }
  // Speeds of a over those of b in the same repeat.
  std::vector<double> paired(size_t a, size_t b) const {
    std::vector<double> ratios;
    for (size_t r = 0; r < outcomes[a].runs.size(); r++)
      ratios.push_back(ratio(outcomes[a].runs[r].tokens_per_second(), outcomes[b].runs[r].tokens_per_second()));
    return ratios;
  }
};

// ---------------------------------------------------------------------------------------------------------------
// What to run

// The drafters that this model has; the others are named in `missing`, with the reason.
std::vector<std::string> usable_drafters(Engine& engine, const std::vector<int>& prompt, std::string& missing) {
  std::vector<std::string> usable;
  for (const char* drafter : kDrafters) {
    const Method method = matched(drafter, "chain:1");
    try {
      check_method(method, kLargest);
      engine.generate(method, {}, prompt, 1, [](int) { return true; });
      usable.push_back(drafter);
    } catch (const std::exception& error) {
      missing += std::string("left out: ") + drafter + ": " + error.what() + "\n";
    }
  }
  return usable;
}

// New tokens for each prompt: kNewTokens, or on a slow machine fewer, so that three repeats of the sweep find time.
int affordable_tokens(Engine& engine, const std::vector<int>& prompt, int methods) {
  const Stats stats = engine.generate(kPlain, {}, prompt, kFewestTokens, [](int) { return !interrupted(); }).stats;
  const double one = ratio(stats.seconds, double(stats.tokens));
  return int(
      std::clamp(ratio(kSweepSeconds, 3.0 * methods * kPrompts * one), double(kFewestTokens), double(kNewTokens)));
}

std::vector<Method> methods_of(const std::vector<std::string>& drafters, bool sweep, bool quick) {
  std::vector<Method> methods = {kPlain};
  for (const std::string& drafter : drafters) {
    const bool whole = sweep && !quick && drafter != kBlind;
    if (whole)
      for (const char* shape : kSweep) methods.push_back(matched(drafter, shape));
    else if (drafter != kBlind)
      for (const char* shape : {"chain:4", "tree:3x2"}) methods.push_back(matched(drafter, shape));
    for (int budget : kBudgets)
      if (whole || budget == kLargest) methods.push_back(matched(drafter, "auto", budget));
  }
  return methods;
}

// The best of many by a few repeats is the luckiest, too: they run again, oftener.
std::vector<Method> finalists(const Part& part) {
  std::vector<Method> methods;
  for (size_t m : part.best()) methods.push_back(part.trial.methods[m]);
  return methods;
}

// ---------------------------------------------------------------------------------------------------------------
// Saying

std::string part_table(const Part& part) {
  TableRows rows = {{"method", "tok/s", "speedup", "lowest", "highest", "acceptance", "nodes/forward", "draft",
                     "forward", "verify", "keep", "slides", "identical"}};
  for (size_t m = 0; m < part.outcomes.size(); m++) {
    const Outcome& outcome = part.outcomes[m];
    const Stats sum = sum_of(outcome);
    const double forwards = double(sum.target_forwards);
    std::vector<std::string> row = {method_text(part.trial.methods[m]),
                                    thousands(median(speeds(outcome))),
                                    times(median(outcome.speedups)),
                                    times(lowest(outcome.speedups)),
                                    times(highest(outcome.speedups)),
                                    decimals(ratio(double(sum.tokens), forwards), 2),
                                    decimals(ratio(double(sum.drafted_nodes), forwards), 1)};
    for (double seconds :
         {sum.seconds_draft, sum.seconds_forward, sum.seconds_verify, sum.seconds_keep, sum.seconds_slide})
      row.push_back(decimals(100 * ratio(seconds, sum.seconds), 1) + "%");
    row.push_back(identical(part.trial.methods[m], outcome));
    rows.push_back(row);
  }
  return format_table(rows, "lrrrrrrrrrrrl");
}

// ---------------------------------------------------------------------------------------------------------------
// Pictures

std::string circumstances(const Part& part) {
  const Options& o = part.trial.options;
  return o.settings.model + "; " + part.engine->device() + ", " + numbers_text(o.settings, *part.engine) + ", " +
         count(part.engine->threads(), "thread") + "; " + count(double(part.trial.prompts.size()), "held-out prompt") +
         ", " + count(o.max_new_tokens, "new token") + " each; medians of " +
         count(double(part.outcomes[part.trial.plain].runs.size()), "repeat");
}

const char* colour_of(const std::string& drafter) {
  return drafter == "none"    ? kPlainColour
         : drafter == kWeak   ? kColours[0]
         : drafter == kStrong ? kColours[1]
                              : kColours[2];
}

// Tokens a second against the nodes that a tree may have: full trees are points, chains and auto are lines.
std::string speed_picture(const std::vector<Part>& parts) {
  std::vector<Panel> panels;
  for (const Part& part : parts) {
    Panel panel{part.temperature(), "nodes of a tree, or auto's budget", "tokens per second", {}, {}, true};
    panel.whisker = "auto, lowest to highest";
    const double plain = median(speeds(part.outcomes[part.trial.plain]));
    panel.series.push_back(
        {"plain decoding", kPlainColour, Series::Style::kDashes, {{1, plain}, {double(kLargest), plain}}});
    std::map<std::string, Series> kinds;
    for (size_t m = 0; m < part.outcomes.size(); m++) {
      const Method& method = part.trial.methods[m];
      if (method.drafter == "none") continue;
      const std::vector<double> speed = speeds(part.outcomes[m]);
      const bool is_auto = method.shape == "auto", is_chain = method.shape.compare(0, 5, "chain") == 0;
      const std::string name = method.drafter + (is_auto ? " auto" : is_chain ? " chains" : " full trees");
      Series& series = kinds[name];
      series.name = name;
      series.colour = colour_of(method.drafter);
      series.style = is_auto ? Series::Style::kLine : is_chain ? Series::Style::kDashes : Series::Style::kDots;
      series.points.push_back({double(most_nodes(method, kLargest)), median(speed), is_auto ? lowest(speed) : 0,
                               is_auto ? highest(speed) : 0});
    }
    for (const auto& [name, series] : kinds) panel.series.push_back(series);
    panels.push_back(panel);
  }
  return chart_picture("Tokens per second, by shape and budget", circumstances(parts[0]), panels, 1);
}

// How many tokens one forward commits.
std::string acceptance_picture(const std::vector<Part>& parts) {
  std::vector<Panel> panels;
  for (const Part& part : parts) {
    Panel panel{part.temperature(), "tokens of one forward", "share of the forwards, %"};
    for (const char* drafter : kDrafters) {
      const size_t m = part.largest_auto(drafter);
      if (!part.has(m)) continue;
      const Stats sum = sum_of(part.outcomes[m]);
      Series series{std::string(drafter) + " auto", colour_of(drafter), Series::Style::kBars};
      for (size_t i = 1; i < sum.accept_histogram.size(); i++)
        series.points.push_back({double(i), 100 * ratio(double(sum.accept_histogram[i]), double(sum.target_forwards))});
      panel.series.push_back(series);
    }
    panels.push_back(panel);
  }
  return chart_picture("How many tokens a forward commits", circumstances(parts[0]), panels, 2);
}

// How far the chances could be trusted that `auto` goes by: the drafter's own, and as corrected by what was accepted.
std::string reliability_of(const std::vector<Part>& parts) {
  std::vector<Series> series;
  for (const Part& part : parts)
    for (const char* drafter : {kWeak, kStrong}) {
      const size_t m = part.largest_auto(drafter);
      if (!part.has(m) || part.degrees() != 1) continue;
      Series raw{std::string(drafter) + ", its own chances", colour_of(drafter), Series::Style::kDots};
      Series corrected{std::string(drafter) + ", corrected", colour_of(drafter), Series::Style::kLine};
      for (const Reliability& tenth : sum_of(part.outcomes[m]).reliability) {
        if (tenth.nodes < kFewNodes) continue;
        const double n = double(tenth.nodes), accepted = double(tenth.accepted) / n;
        raw.points.push_back({tenth.raw / n, accepted});
        corrected.points.push_back({tenth.corrected / n, accepted});
      }
      series.push_back(raw);
      series.push_back(corrected);
    }
  return chart_picture(
      "Is auto's confidence honest?", circumstances(parts[0]),
      {{"", "predicted chance, 0 to 1", "share of the nodes that was accepted, 0 to 1", series, {}, false, true}}, 1);
}

// Where the time goes: plain, each drafter's best fixed shape and auto.
std::string shares_picture(const std::vector<Part>& parts) {
  std::vector<StackedBar> bars;
  for (const Part& part : parts) {
    for (size_t m : part.best()) {
      const Stats s = sum_of(part.outcomes[m]);
      bars.push_back({"T = " + temperature_text(part.degrees()) + ", " +
                          (m == part.trial.plain ? "plain" : method_text(part.trial.methods[m])),
                      {s.seconds_forward, s.seconds_slide, s.seconds_draft, s.seconds_verify, s.seconds_keep},
                      decimals(1e6 * ratio(s.seconds, double(s.tokens)), 0) + " us/token"});
    }
  }
  return stacked_picture("Where the time goes", circumstances(parts[0]), "share of the time, %",
                         {"forward", "window slides", "draft", "verify and sample", "keep"}, bars);
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
  const std::string &data = bench.data, &model = bench.options.settings.model;
  std::string missing = decode_missing(bench);
  if (!missing.empty()) return bench.print("Speculation", "left out: " + missing + "\n");

  Trial trial;
  trial.options = bench.options;
  trial.options.settings.budget = kLargest;
  trial.options.settings.rows = kLargest + 1;
  trial.prompts = held_out_prompts(data, bench.quick ? 1 : kPrompts, kPromptBytes, model);
  trial.repeats = bench.quick ? 1 : bench.repeats;
  Engine engine(trial.options.settings);
  const std::vector<int> prompt = engine.encode_prompt(trial.prompts[0], "a prompt from " + data);
  const std::vector<std::string> drafters = usable_drafters(engine, prompt, missing);
  trial.options.max_new_tokens =
      bench.quick ? 24 : affordable_tokens(engine, prompt, int(methods_of(drafters, true, false).size()));

  struct Plan {
    float temperature;
    bool sweep;
    double seconds, share;  // at most; of the section
  };
  std::vector<Part> parts, finals;
  double done = 0;
  for (const Plan& plan : {Plan{1, true, kSweepSeconds, 0.45}, Plan{0.7f, true, kSweepSeconds, 0.45},
                           Plan{0, false, kGreedySeconds, 0.1}}) {
    const auto run = [&](const std::vector<Method>& methods, int repeats, double most_seconds, double share) {
      Part part;
      part.engine = &engine;
      part.trial = trial;
      part.trial.options.sampling.temperature = plan.temperature;
      part.trial.methods = methods;
      part.trial.repeats = repeats;
      part.trial.most_seconds = most_seconds;
      part.outcomes = run_all(part.trial, engine, [&](const std::string& doing, double its_done) {
        bench.time->show(part.temperature() + ", " + doing, done + plan.share * share * its_done);
      });
      done += plan.share * share;
      return part;
    };
    parts.push_back(run(methods_of(drafters, plan.sweep, bench.quick), trial.repeats, plan.seconds, kSweepShare));
    const Part& part = parts.back();
    if (part.empty()) return;  // interrupted
    finals.push_back(run(finalists(part), bench.quick ? 1 : kFinalRepeats, kFinalSeconds, 1 - kSweepShare));
    const Part& final = finals.back();
    if (final.empty()) return;  // interrupted
    bench.evenness.push_back({"plain decoding, " + part.temperature(), unevenness(speeds(final.outcomes[0]))});
    bench.print("Speculation at " + part.temperature() +
                    (plan.temperature == 0 ? " (apart: small models loop there, and any drafter guesses loops)" : "") +
                    "; " + circumstances(part),
                part_table(part) + (plan.temperature == 1 ? missing : ""));
    bench.print("The best of these at " + part.temperature() + " again; medians of " +
                    count(double(final.outcomes[0].runs.size()), "repeat"),
                part_table(final));
    OrderedJson json;
    for (const Part& p : parts) json["temperatures"].push_back(comparison_json(p.trial, engine, p.outcomes));
    for (const Part& p : finals) json["finals"].push_back(comparison_json(p.trial, engine, p.outcomes));
    bench.write_json("decode", json);
    bench.write_svg("speed", speed_picture(parts));
    bench.write_svg("acceptance", acceptance_picture(finals));
    bench.write_svg("shares", shares_picture(finals));
    bench.write_svg("reliability", reliability_of(finals));
    refuse_broken(broken(part.trial, part.outcomes));
    if (interrupted()) return;
  }
}

}  // namespace nanospec
