// study/experiments_rules.cpp: verification rules at equal candidates; the same drafter with and without the target's
// noise; the noise-aware best-first tree; acceptance by drafter on text that no drafter was trained
// on.
#include "study/experiments.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Rules

namespace {

const BarAxis kAcceptanceAxis = {"tokens per forward", 1, "plain decoding"};

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

constexpr struct {
  const char *shape, *rules[5];  // the first is what the others stand beside
} kJudged[] = {{"chain:4", {"rejection", "block", "traversal", "typical", "independent"}},
               {"tree:2x2", {"specinfer", "without-replacement", "traversal", "typical", "independent"}}};

}  // namespace

void rules_experiment(Lab& lab) {
  constexpr int kPrompts = 48, kTokens = 250;
  std::vector<Method> methods = {kPlain};
  for (const auto& [shape, rules] : kJudged) {
    methods.push_back(matched(kStrong, shape));
    methods.push_back({kStrong, shape, "match", 0, false});
    for (const char* rule : rules) methods.push_back({kStrong, shape, rule, 0, true});
  }
  const Experiment study = run_study(lab, lab.small(), methods, lab.held_out(kPrompts),
                                     {1, lab.seconds, 1, kTokens, kTokens, lab.options.sampling.seed});
  if (study.empty()) return;

  TableRows rows = {{"candidates", "rule", "tokens/forward", "beside", "what its text is"}};
  std::vector<IntervalBar> bars;
  for (size_t m = 1; m < methods.size(); m++) {
    const Method& method = methods[m];
    const Interval tokens = study.tokens_per_forward(m);
    const std::string name = method.verify + (method.knows_noise ? "" : ", noise unknown"),
                      wrong = flaw(promise_of(method));
    const auto& judged = kJudged[method.shape == kJudged[0].shape ? 0 : 1];
    const size_t first = study.at({kStrong, judged.shape, judged.rules[0], 0, true});
    rows.push_back({method.shape, name, with_interval(tokens, 3),
                    decimals(ratio(tokens.middle, study.tokens_per_forward(first).middle), 3), promise_text(method)});
    bars.push_back({method.shape + " " + name, tokens, decimals(tokens.middle, 2) + (wrong.empty() ? "" : ", " + wrong),
                    !wrong.empty()                              ? kPlainColour
                    : promise_of(method) == Promise::kSameBytes ? kColours[1]
                                                                : kColours[0]});
  }
  BarAxis axis = kAcceptanceAxis;
  axis.colours = {{"exact, plain decoding's text", kColours[1]},
                  {"exact, another draw", kColours[0]},
                  {"not the target's distribution", kPlainColour}};
  publish(lab,
          {"Rules: of the same number of candidates, how many tokens does each rule accept?",
           "drafter " + std::string(kStrong) + "; " + study.circumstances() +
               "; no clock is read, so the small model serves",
           format_table(rows, "llrrl") +
               "beside: over rejection (chains) or specinfer (trees). A rule that accepts more and is not exact "
               "has won nothing.\n",
           studies_json({study}), interval_picture("Tokens per forward, by rule", study.circumstances(), axis, bars)});
}

// ---------------------------------------------------------------------------------------------------------------
// Coupling

void coupling_experiment(Lab& lab) {
  std::vector<Method> told = {matched(kWeak, "chain:4"), matched(kStrong, "chain:4"), matched(kStrong, "tree:3x2"),
                              matched(kStrong, "best-first", 16), matched(kStrong, "auto")};
  if (lab.drafter != kStrong)
    told.insert(told.end(), {matched(lab.drafter, "chain:4"), matched(lab.drafter, "best-first", 16)});
  std::string missing;
  told = lab.usable(told, missing);
  std::vector<Method> methods = {kPlain};
  const auto untold = [](Method method) {
    method.knows_noise = false;
    return method;
  };
  for (const Method& method : told) {
    methods.push_back(method);
    methods.push_back(untold(method));
  }
  const Experiment study = run_study(lab, lab.target(), methods, lab.held_out(16), {1, lab.seconds, 2, 16, 200});
  if (study.empty()) return;

  TableRows rows = {
      {"method", "tokens/forward, told", "not told", "told over not told", "speed, told over not told", "identical"}};
  std::vector<IntervalBar> bars;
  for (const Method& method : told) {
    const size_t a = study.at(method), b = study.at(untold(method));
    const Interval knows = study.tokens_per_forward(a), not_knows = study.tokens_per_forward(b);
    rows.push_back({method_text(method), decimals(knows.middle, 2), decimals(not_knows.middle, 2),
                    with_interval(study.forwards_saved(a, b), 2), with_interval(study.speedup(a, b), 2),
                    identical(method, study.outcomes[a]) + ", " + identical(method, study.outcomes[b])});
    bars.push_back({method_text(method), knows, decimals(knows.middle, 2) + " told", kColours[1]});
    bars.push_back({"", not_knows, decimals(not_knows.middle, 2) + " not told", kColours[0]});
  }
  publish(lab, {"Coupling: what does a drafter gain by drafting with the target's noise?", study.circumstances(),
                format_table(rows, "lrrrrl") + missing, studies_json({study}),
                interval_picture("Tokens per forward, with and without the target's noise", study.circumstances(),
                                 kAcceptanceAxis, bars)});
}

// ---------------------------------------------------------------------------------------------------------------
// Noise-aware trees

namespace {
struct Simulated {
  int budget;
  double tokens;  // per forward
};
constexpr Simulated kSimulated[] = {{4, 2.56}, {8, 3.08}, {16, 3.59}, {32, 4.02}};
}  // namespace

void noise_aware_experiment(Lab& lab) {
  constexpr int kPrompts = 45, kTokens = 500;
  std::vector<Method> methods = {kPlain};
  for (const Simulated& one : kSimulated) methods.push_back(matched(kStrong, "best-first", one.budget));
  const Experiment study =
      run_study(lab, lab.small(), methods, lab.held_out(kPrompts), {1, lab.seconds, 1, kTokens, kTokens});
  if (study.empty()) return;
  TableRows rows = {{"budget", "tokens/forward", "simulated", "nodes/forward", "times plain", "identical"}};
  std::vector<IntervalBar> bars;
  for (size_t m = 1; m < methods.size(); m++) {
    const Simulated& simulated = kSimulated[m - 1];
    const Interval tokens = study.tokens_per_forward(m);
    rows.push_back({std::to_string(simulated.budget), with_interval(tokens, 3), decimals(simulated.tokens, 2),
                    decimals(study.nodes_per_forward(m), 1), with_interval(study.speedup(m, 0), 2),
                    identical(methods[m], study.outcomes[m])});
    bars.push_back({"budget " + std::to_string(simulated.budget), tokens, decimals(tokens.middle, 2), kColours[0],
                    simulated.tokens});
  }
  publish(lab, {"Noise-aware trees: how many tokens does a forward commit when the tree knows the noise?",
                "drafter " + std::string(kStrong) + "; " + study.circumstances() +
                    "; prompts of 64 characters from the data's last tenth",
                format_table(rows, "rrrrrl") +
                    "tokens/forward depends on no clock: the same figures on every run of one build.\n",
                studies_json({study}),
                interval_picture("Tokens per forward of noise-aware best-first trees", study.circumstances(),
                                 {"tokens per forward", 1, "plain decoding", "simulated"}, bars)});
}

// ---------------------------------------------------------------------------------------------------------------
// Held-out text

void held_out_experiment(Lab& lab) {
  std::vector<std::string> drafters = {"bigram", "ngram:3", "ngram:4", "ngram:5",       "ngram:6",
                                       "lookup", "suffix",  "recycle", "suffix+ngram:4"};
  if (lab.drafter != kStrong) {
    drafters.push_back(lab.drafter);
    drafters.push_back("suffix+" + lab.drafter);
  }
  std::vector<Method> methods = {kPlain};
  for (const std::string& drafter : drafters) methods.push_back(matched(drafter, "best-first", 16));
  std::string missing;
  methods = lab.usable(methods, missing);
  const int n = lab.quick ? 2 : 12;
  constexpr size_t kBytes = 160;  // so that drafters which copy have something to copy
  std::vector<Kind> sources = {
      {"seen: the data's first nine tenths", prompts_of(lab.text.substr(0, held_out_begin(lab.text)), 0, n, kBytes)},
      {"held out: its last tenth", lab.held_out(n, kBytes)}};
  if (lab.readme.size() > 2 * kBytes) sources.push_back({"foreign: README.md", prompts_of(lab.readme, 0, n, kBytes)});
  else missing += "left out: foreign text: there is no README.md here\n";

  std::vector<Experiment> studies;
  const double share = 1.0 / double(sources.size());
  Row head = {"drafter"};
  for (const Kind& source : sources) {
    studies.push_back(run_study(lab, lab.target(), methods, source.prompts, {1, lab.seconds * share, 1, 24, 100},
                                {double(studies.size()) * share, share}));
    if (studies.back().empty()) return;
    head.push_back(source.name);
  }
  head.push_back("identical");
  OrderedJson json = studies_json(studies);
  for (size_t s = 0; s < sources.size(); s++) json["studies"][s]["text"] = sources[s].name;

  TableRows rows = {head};
  std::vector<IntervalBar> bars;
  for (size_t m = 1; m < methods.size(); m++) {
    rows.push_back({methods[m].drafter});
    for (size_t s = 0; s < studies.size(); s++) {
      const Interval tokens = studies[s].tokens_per_forward(m);
      const std::string source = sources[s].name.substr(0, sources[s].name.find(':'));
      rows.back().push_back(with_interval(tokens, 2));
      bars.push_back(
          {s == 0 ? methods[m].drafter : "", tokens, decimals(tokens.middle, 2) + " " + source, colour_at(s)});
    }
    rows.back().push_back(identical(methods[m], studies[0].outcomes[m]));
  }
  publish(lab, {"Held-out text: what is each drafter worth after a prompt that nobody was trained on?",
                "tokens per forward, best-first budget=16; " + studies[0].circumstances(),
                format_table(rows, "l" + std::string(sources.size(), 'r') + "l") + missing, json,
                interval_picture("Tokens per forward, by drafter and text", studies[0].circumstances(), kAcceptanceAxis,
                                 bars)});
}

}  // namespace nanospec
