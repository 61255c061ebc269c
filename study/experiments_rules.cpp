// study/experiments_rules.cpp: verification rules at equal candidates; and the same drafter with and without the
// target's noise.
#include "study/experiments.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Rules

namespace {

constexpr int kPrompts = 48, kTokens = 250;

std::string promise_text(const Method& method) {
  switch (promise_of(method)) {
    case Promise::kSameBytes:
      return method.knows_noise ? "exact: plain decoding's bytes" : "exact: the same bytes; the noise is not told";
    case Promise::kSameDistribution:
      return "exact: plain decoding's distribution";
    case Promise::kBiased:
      return "BIASED: another distribution, it proves nothing";
    case Promise::kLossy:
      return "LOSSY: another distribution, by intent";
  }
  return "";
}

std::vector<Method> rules_of(const std::string& shape, const std::vector<const char*>& rules) {
  std::vector<Method> methods = {matched(kStrong, shape), {kStrong, shape, "match", 0, false}};
  for (const char* rule : rules) methods.push_back({kStrong, shape, rule, 0, true});
  return methods;
}

}  // namespace

void rules_experiment(Lab& lab) {
  Engine& engine = lab.small();
  std::vector<Method> methods = {kPlain};
  for (const Method& method : rules_of("chain:4", {"rejection", "block", "traversal", "typical", "independent"}))
    methods.push_back(method);
  for (const Method& method :
       rules_of("tree:2x2", {"specinfer", "without-replacement", "traversal", "typical", "independent"}))
    methods.push_back(method);
  const Experiment study = run_study(lab, engine, lab.small_options(), methods, lab.held_out(kPrompts),
                                     {1, lab.seconds, 1, kTokens, kTokens, lab.bench.options.sampling.seed}, {});
  if (study.empty()) return;

  std::vector<std::vector<std::string>> rows = {{"candidates", "rule", "tokens/forward", "beside", "what its text is"}};
  std::vector<IntervalBar> bars;
  for (size_t m = 1; m < methods.size(); m++) {
    const Method& method = methods[m];
    const Interval tokens = study.tokens_per_forward(m);
    const bool sound = flaw(promise_of(method)).empty();
    const std::string name = method.verify + (method.knows_noise ? "" : ", noise unknown");
    const size_t first = study.at(method.shape == "chain:4" ? Method{kStrong, "chain:4", "rejection", 0, true}
                                                            : Method{kStrong, "tree:2x2", "specinfer", 0, true});
    rows.push_back({method.shape, name, with_interval(tokens, 3),
                    decimals(ratio(tokens.middle, study.tokens_per_forward(first).middle), 3), promise_text(method)});
    bars.push_back({method.shape + " " + name, tokens.middle, tokens.low, tokens.high,
                    decimals(tokens.middle, 2) + (sound ? "" : ", " + flaw(promise_of(method))),
                    !sound                                      ? kPlainColour
                    : promise_of(method) == Promise::kSameBytes ? kColours[1]
                                                                : kColours[0],
                    false, 0});
  }
  print_section(lab, "Rules: of the same number of candidates, how many tokens does each rule accept?",
                "drafter " + std::string(kStrong) + "; " + study_circumstances(study, engine) +
                    "; no clock is read, so the small model serves",
                format_table(rows, "llrrl") +
                    "beside: over rejection (chains) or specinfer (trees). A rule that accepts more and is not exact "
                    "has won nothing.\n");
  lab.bench.write_json("rules", {{"studies", {study_json(engine, study)}}});
  lab.bench.write_svg(
      "rules",
      interval_picture("Tokens per forward, by rule", study_circumstances(study, engine),
                       "tokens per forward, from plain decoding's 1 on; grey: not the target's distribution", 1, bars));
}

// ---------------------------------------------------------------------------------------------------------------
// Coupling

void coupling_experiment(Lab& lab) {
  Engine& engine = lab.target();
  std::vector<Method> told = {matched(kWeak, "chain:4"), matched(kStrong, "chain:4"), matched(kStrong, "tree:3x2"),
                              matched(kStrong, "best-first", 16), matched(kStrong, "auto")};
  if (lab.drafter != kStrong)
    for (const char* shape : {"chain:4", "best-first"})
      told.push_back(matched(lab.drafter, shape, shape == std::string("best-first") ? 16 : 0));
  std::string missing;
  told = lab.usable(engine, told, missing);
  std::vector<Method> methods = {kPlain};
  const auto untold = [](Method method) { return method.knows_noise = false, method; };
  for (const Method& method : told) methods.push_back(method), methods.push_back(untold(method));
  const Experiment study =
      run_study(lab, engine, lab.bench.options, methods, lab.held_out(16), {1, lab.seconds, 2, 16, 200, 0}, {});
  if (study.empty()) return;

  std::vector<std::vector<std::string>> rows = {
      {"method", "tokens/forward, told", "not told", "told over not told", "speed, told over not told", "identical"}};
  std::vector<IntervalBar> bars;
  for (const Method& method : told) {
    const size_t a = study.at(method), b = study.at(untold(method));
    const Interval knows = study.tokens_per_forward(a), not_knows = study.tokens_per_forward(b);
    rows.push_back({method_text(method), decimals(knows.middle, 2), decimals(not_knows.middle, 2),
                    with_interval(study.forwards_saved(a, b), 2), with_interval(study.speedup(a, b), 2),
                    identical(method, study.outcomes[a]) + ", " + identical(method, study.outcomes[b])});
    bars.push_back({method_text(method) + ", told", knows.middle, knows.low, knows.high, decimals(knows.middle, 2),
                    kColours[1], false, 0});
    bars.push_back({"not told", not_knows.middle, not_knows.low, not_knows.high, decimals(not_knows.middle, 2),
                    kColours[0], false, 0});
  }
  print_section(lab, "Coupling: what does a drafter gain by drafting with the target's noise?",
                study_circumstances(study, engine), format_table(rows, "lrrrrl") + missing);
  lab.bench.write_json("coupling", {{"studies", {study_json(engine, study)}}});
  lab.bench.write_svg("coupling", interval_picture("Tokens per forward, with and without the target's noise",
                                                   study_circumstances(study, engine),
                                                   "tokens per forward, from plain decoding's 1 on", 1, bars));
}

}  // namespace nanospec
