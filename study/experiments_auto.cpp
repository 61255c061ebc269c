// study/experiments_auto.cpp: shape auto against the best of all shapes, on several workloads; and unions of
// drafters against their parts where prose and copying are mixed.
//
// The best of many by a few runs is the luckiest too. So all shapes run once, the better ones again, and the winner of
// both runs once more beside auto, oftener: that final counts.
#include <algorithm>

#include "study/experiments.h"

namespace nanospec {
namespace {

constexpr const char *kShapesToBeat =
                         "chain:1 chain:2 chain:3 chain:4 chain:6 chain:8 tree:2x2 tree:2x3 tree:3x2 "
                         "tree:4x2 cartesian:4,2,1,1 entropy-stop entropy-stop:of=confidence "
                         "entropy-naive:of=confidence",
                     *kBudgetedToBeat =
                         "best-first beam:4 calibrated sequoia entropy-width:of=confidence "
                         "entropy-depth-width:of=confidence";
constexpr int kPrompts = 16, kFewPrompts = 8;

struct Workload {
  std::string name, drafter;
  float temperature;
  std::vector<std::string> prompts;
};

// A passage, and the same again. A model of this size copies at temperature 0 alone, where it repeats its prompt or
// itself: at 0.4 `suffix` guesses no more after such a prompt than after any other.
std::vector<std::string> copying_prompts(const Lab& lab, int count) {
  constexpr size_t kPassage = 40;
  std::vector<std::string> prompts;
  for (const std::string& passage : lab.held_out(count, kPassage))
    prompts.push_back(passage + "\n" + passage + "\n" + passage + "\n");
  return prompts;
}

std::vector<Method> all_shapes(const std::string& drafter, bool quick) {
  std::vector<Method> methods = {kPlain, matched(drafter, "auto")};
  for (const std::string& shape : split_at(kShapesToBeat, ' ')) methods.push_back(matched(drafter, shape));
  for (const std::string& shape : split_at(kBudgetedToBeat, ' '))
    for (int budget : {4, 8, 16, 32})
      if (shape == "best-first" || budget == 8 || budget == 16) methods.push_back(matched(drafter, shape, budget));
  if (quick) methods.resize(4);
  return methods;
}

// The fastest shapes but auto, best first.
std::vector<Method> fastest(const Experiment& study, size_t n) {
  std::vector<Method> methods;
  for (size_t m : study.by_speed([](const Method& one) { return one.shape != "auto" && one.drafter != "none"; }))
    if (methods.size() < n) methods.push_back(study.trial.methods[m]);
  return methods;
}

struct Contest {  // of one workload
  Workload workload;
  Experiment sweep, final;
  Method best;
  Interval ratio;  // auto's speed over the best's
};

// False where it was interrupted.
bool run_contest(Lab& lab, Contest& v, std::string& missing, double seconds, const Stretch& stretch) {
  const auto run = [&](const std::vector<Method>& methods, double share, int repeats, double begin, bool all) {
    std::vector<std::string> prompts = v.workload.prompts;
    if (!all) prompts.resize(std::min<size_t>(kFewPrompts, prompts.size()));
    return run_study(lab, lab.target(), methods, prompts, {v.workload.temperature, seconds * share, repeats, 12, 200},
                     {stretch.at(begin), stretch.share * share});
  };
  const Method automatic = matched(v.workload.drafter, "auto");
  v.sweep = run(lab.usable(all_shapes(v.workload.drafter, lab.quick), missing), 0.35, 1, 0, false);
  if (v.sweep.empty()) return false;
  std::vector<Method> again = {kPlain, automatic};
  for (const Method& method : fastest(v.sweep, 5)) again.push_back(method);
  const Experiment second = run(again, 0.2, 2, 0.35, false);
  if (second.empty()) return false;
  v.best = fastest(second, 1).at(0);
  v.final = run({kPlain, automatic, v.best}, 0.45, 3, 0.55, true);
  if (v.final.empty()) return false;
  v.ratio = v.final.speedup(v.final.at(automatic), v.final.at(v.best));
  return true;
}

}  // namespace

void auto_experiment(Lab& lab) {
  const std::vector<std::string> prose = lab.held_out(kPrompts), copies = copying_prompts(lab, kPrompts);
  std::vector<Workload> workloads;
  for (float t : {1.0f, 0.7f, 0.0f}) workloads.push_back({"prose", kStrong, t, prose});
  for (float t : {1.0f, 0.7f}) workloads.push_back({"prose", kWeak, t, prose});
  if (lab.drafter != kStrong) workloads.push_back({"prose", lab.drafter, 1, prose});
  workloads.push_back({"prose", "suffix+ngram:4", 1, prose});
  workloads.push_back({"copying", "suffix+ngram:4", 0, copies});
  if (lab.quick) workloads.resize(1);

  TableRows rows = {{"workload", "drafter", "T", "auto, times plain", "best of all shapes", "times plain",
                     "auto over it", "tokens/forward", "nodes/forward"}};
  std::vector<IntervalBar> bars;
  OrderedJson json;
  std::string missing, subtitle;  // of the finals
  for (size_t w = 0; w < workloads.size(); w++) {
    const double share = 1.0 / double(workloads.size());
    Contest v{workloads[w], {}, {}, {}, {}};
    std::string left_out;
    if (lab.usable({matched(v.workload.drafter, "chain:4")}, missing).empty()) continue;
    if (!run_contest(lab, v, left_out, lab.seconds * share, {double(w) * share, share})) return;
    if (missing.find(left_out) == std::string::npos) missing += left_out;
    const Method automatic = matched(v.workload.drafter, "auto");
    const size_t a = v.final.at(automatic), b = v.final.at(v.best);
    const std::string temperature = temperature_text(v.workload.temperature),
                      name = v.workload.name + ", " + v.workload.drafter + ", T = " + temperature;
    const std::string best = shape_text(v.best);
    rows.push_back(
        {v.workload.name, v.workload.drafter, temperature, with_interval(v.final.speedup(a, 0), 2), best,
         with_interval(v.final.speedup(b, 0), 2), with_interval(v.ratio, 3),
         decimals(v.final.tokens_per_forward(a).middle, 2) + " / " + decimals(v.final.tokens_per_forward(b).middle, 2),
         decimals(v.final.nodes_per_forward(a), 1) + " / " + decimals(v.final.nodes_per_forward(b), 1)});
    bars.push_back({name + " / " + best, v.ratio, decimals(v.ratio.middle, 3), colour_at(0)});
    lab.evenness.push_back({"plain decoding, " + name, unevenness(speeds(v.final.outcomes[0]))});
    subtitle = v.final.circumstances(false);
    json["workloads"].push_back({{"workload", v.workload.name},
                                 {"drafter", v.workload.drafter},
                                 {"temperature", v.workload.temperature},
                                 {"best", method_text(v.best)},
                                 {"auto_over_best", interval_json(v.ratio)},
                                 {"sweep", v.sweep.json()},
                                 {"final", v.final.json()}});
  }
  if (bars.empty()) return lab.print("Auto", "left out: " + missing);
  BarAxis axis{"speed of auto, in times that of the best shape", 1, "as fast"};
  publish(lab, {"Auto: how near does it come to the best of all shapes, whatever the workload?", subtitle + " (finals)",
                format_table(rows, "llrrlrrrr") + loop_warning(0) + missing, json,
                interval_picture("Auto's speed over that of the best of all shapes", subtitle, axis, bars)});
}

// ---------------------------------------------------------------------------------------------------------------
// Unions

void unions_experiment(Lab& lab) {
  constexpr const char* kDrafters[] = {"suffix", "ngram:4", "suffix+ngram:4"};
  std::vector<Method> methods = {kPlain};
  for (const char* drafter : kDrafters) methods.push_back(matched(drafter, "auto"));
  const Experiment prose =
      run_study(lab, lab.target(), methods, lab.held_out(12), {1, lab.seconds * 0.5, 3, 24, 120}, {0, 0.5});
  if (prose.empty()) return;
  const int tokens = prose.trial.options.max_new_tokens;
  const Experiment copying = run_study(lab, lab.target(), methods, copying_prompts(lab, 12),
                                       {0, lab.seconds * 0.5, 3, tokens, tokens}, {0.5, 0.5});
  if (copying.empty()) return;
  Experiment mixed = prose;
  join(mixed, copying);

  const size_t all = methods.size() - 1;
  OrderedJson json = studies_json({prose, copying});
  for (size_t m = 1; m < all; m++) json["union_over"][methods[m].drafter] = interval_json(mixed.speedup(all, m));
  TableRows rows = {{"drafter", "mixed, times plain", "union over it", "prose", "tokens/forward", "copying",
                     "tokens/forward", "identical"}};
  std::vector<IntervalBar> bars;
  for (size_t m = 1; m < methods.size(); m++) {
    const Interval speedup = mixed.speedup(m, 0);
    rows.push_back({methods[m].drafter, with_interval(speedup, 2),
                    m == all ? "" : with_interval(mixed.speedup(all, m), 3), times(prose.speedup(m, 0).middle),
                    decimals(prose.tokens_per_forward(m).middle, 2), times(copying.speedup(m, 0).middle),
                    decimals(copying.tokens_per_forward(m).middle, 2), identical(methods[m], mixed.outcomes[m])});
    const std::pair<const Experiment*, const char*> parts[] = {
        {&prose, "prose, T = 1"}, {&copying, "copying, T = 0"}, {&mixed, "both"}};
    for (size_t i = 0; i < std::size(parts); i++) {
      const Interval part = parts[i].first->speedup(m, 0);
      bars.push_back(
          {i == 0 ? methods[m].drafter : "", part, times(part.middle) + " " + parts[i].second, colour_at(i)});
    }
  }
  const std::string subtitle = mixed.circumstances(false);
  publish(lab,
          {"Unions: are two drafters in one tree at least as fast as the better of them?",
           subtitle + "; half prose at temperature 1, half copying: greedy decoding of prompts that say everything "
                      "three times",
           format_table(rows, "lrrrrrrl"), json,
           interval_picture("Unions of drafters, prose and copying mixed", subtitle,
                            {"times plain decoding's speed", 1, "plain decoding"}, bars)});
}

}  // namespace nanospec
