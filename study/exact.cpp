// study/exact.cpp: holds every verification rule against what it promises, and prints what came of it.
#include <algorithm>
#include <cstdio>

#include "commands/commands.h"
#include "commands/outputs.h"
#include "study/exactness.h"
#include "study/study.h"

namespace nanospec {
namespace {

struct Proof {
  int distributions = 12, samples = 20000, vocab = 16;
  uint64_t seed = 1;
  std::string json_file;
  bool quiet = false;
};

Command describe(Proof& p) {
  return {"nanospec exact",
          "Holds every verification rule against what it promises, without a model. With a vocabulary of 3 or 4 tokens "
          "every draft and every outcome of chance is gone through, by the code that generates, and the distribution "
          "of the emitted tokens is compared with the target's; with a larger one texts are sampled.",
          "nanospec exact\n"
          "nanospec exact --distributions 100 --samples 0\n"
          "nanospec exact --vocab 50 --samples 200000 --json build/exact.json  # takes half a minute\n",
          {heading("Enumeration"),
           {"--distributions", "N", &p.distributions, "target and drafter of each of 8 kinds", from(1, 100000)},
           heading("Sampling"),
           {"--samples", "N", &p.samples, "texts for each row; 0: none", from(0, 1e8)},
           {"--vocab", "N", &p.vocab, "tokens in the vocabulary", from(2, 256)},
           heading("Both"),
           {"--seed", "N", &p.seed, "another seed, other distributions"},
           {"--json", "FILE", &p.json_file, "write every figure", written()},
           {"--quiet", "", &p.quiet, "no progress"}}};
}

// ---------------------------------------------------------------------------------------------------------------
// One row of each table

struct Enumerated {
  Study study;
  std::vector<World> worlds;
  std::vector<Exactness> results;  // one a world

  double farthest() const {
    double most = 0;
    for (const Exactness& one : results) most = std::max(most, one.distance);
    return most;
  }
  int far() const {  // distributions that are plainly off
    return int(std::count_if(results.begin(), results.end(), [](const Exactness& one) { return one.distance > 1e-3; }));
  }
  double tokens() const { return mean(&Exactness::tokens); }
  double bound() const { return mean(&Exactness::bound); }
  bool promises() const { return flaw(promise_of(study)).empty(); }
  bool held() const {
    return std::all_of(results.begin(), results.end(), [](const Exactness& one) { return one.distance < kRounding; });
  }

 private:
  double mean(double Exactness::*value) const {
    double sum = 0;
    for (const Exactness& one : results) sum += one.*value;
    return sum / double(results.size());
  }
};

struct Drawn {
  SampledStudy study;
  Sampled result;

  bool promises() const { return flaw(about(study.rule).promise).empty(); }
  bool held() const { return result.z < kFarZ; }
};

Enumerated run(const Study& study, const Proof& p) {
  Enumerated row = {study, make_worlds(study.vocab, parse_shape(study.shape, 64).depth, p.distributions, p.seed), {}};
  for (const World& world : row.worlds) row.results.push_back(enumerate(study, world));
  return row;
}

// ---------------------------------------------------------------------------------------------------------------
// Saying

std::string candidates_text(const Study& study) {
  if (study.choosing == Choosing::kTop) return "likeliest";
  if (parse_shape(study.shape, 64).width == 1) return "drawn";
  return study.choosing == Choosing::kWithReplacement ? "drawn with replacement" : "drawn without replacement";
}

std::string small(double x) {
  char text[32];
  snprintf(text, sizeof text, x > 0 && x < 1e-3 ? "%.1e" : "%.4f", x);
  return text;
}

// "yes" or "NO" for a rule that promises its distribution; else what it is known for.
std::string verdict(bool promises, bool held, const std::string& known_flaw) {
  if (promises) return held ? "yes" : "NO";
  return known_flaw;
}

std::string enumerated_table(const std::vector<Enumerated>& all) {
  TableRows rows = {{"rule", "candidates", "shape", "vocab", "distributions", "largest TV", "TV > 0.001", "tokens/pass",
                     "bound", "exact?"}};
  for (const Enumerated& one : all) {
    const std::string known =
        is_control(one.study) ? "biased: the control, judged as with" : flaw(promise_of(one.study));
    rows.push_back({about(one.study.rule).word, candidates_text(one.study), one.study.shape,
                    std::to_string(one.study.vocab), thousands(double(one.results.size())), small(one.farthest()),
                    thousands(one.far()), decimals(one.tokens(), 4), decimals(one.bound(), 4),
                    verdict(one.promises(), one.held(), known)});
  }
  return format_table(rows, "lllrrrrrrl");
}

std::string sampled_table(const std::vector<Drawn>& all) {
  TableRows rows = {{"rule", "shape", "temperature", "top_k", "TV", "TV by chance", "z", "tokens/pass", "exact?"}};
  for (const Drawn& one : all)
    rows.push_back({about(one.study.rule).word, one.study.shape, decimals(double(one.study.temperature), 1),
                    std::to_string(one.study.top_k), small(one.result.distance), small(one.result.by_chance),
                    decimals(one.result.z, 1), decimals(one.result.tokens, 4),
                    verdict(one.promises(), one.held(), flaw(about(one.study.rule).promise))});
  return format_table(rows, "llrrrrrrl");
}

// The line that the tables come to.
std::string last_line(const std::vector<Enumerated>& enumerated, const std::vector<Drawn>& sampled) {
  std::string broken;
  int promised = 0;
  const auto hold = [&](bool promises, bool held, const std::string& what) {
    promised += promises;
    if (promises && !held) broken += (broken.empty() ? "" : "; ") + what;
  };
  bool control_failed = true;
  for (const Enumerated& one : enumerated) {
    hold(one.promises(), one.held(), std::string(about(one.study.rule).word) + " " + one.study.shape);
    if (is_control(one.study)) control_failed = control_failed && one.farthest() > 1e-3;
  }
  for (const Drawn& one : sampled)
    hold(one.promises(), one.held(), std::string(about(one.study.rule).word) + " " + one.study.shape + ", sampled");
  if (!broken.empty()) return "NOT every rule that promises exactness held: " + broken + ".\n";
  return "Every rule that promises exactness held, in " + count(promised, "row") + " of these tables; " +
         (control_failed ? "the control failed, as it must.\n" : "but the control did NOT fail: try other seeds.\n");
}

std::string report_json(const Proof& p, const std::vector<Enumerated>& enumerated, const std::vector<Drawn>& sampled) {
  OrderedJson json = {{"seed", p.seed}, {"vocab", p.vocab}, {"samples", p.samples}};
  bool held = true;
  for (const Enumerated& one : enumerated) {
    held = held && (!one.promises() || one.held());
    OrderedJson row = {{"rule", about(one.study.rule).word},
                       {"candidates", candidates_text(one.study)},
                       {"shape", one.study.shape},
                       {"vocab", one.study.vocab},
                       {"promises_exactness", one.promises()},
                       {"control", is_control(one.study)},
                       {"largest_distance", one.farthest()},
                       {"tokens_per_pass", one.tokens()},
                       {"bound", one.bound()}};
    for (size_t i = 0; i < one.results.size(); i++)
      row["distributions"].push_back({{"name", one.worlds[i].name},
                                      {"distance", one.results[i].distance},
                                      {"tokens_per_pass", one.results[i].tokens},
                                      {"bound", one.results[i].bound},
                                      {"outcomes", one.results[i].outcomes}});
    json["enumerated"].push_back(row);
  }
  for (const Drawn& one : sampled) {
    held = held && (!one.promises() || one.held());
    json["sampled"].push_back({{"rule", about(one.study.rule).word},
                               {"shape", one.study.shape},
                               {"temperature", std::stod(decimals(double(one.study.temperature), 1))},
                               {"top_k", one.study.top_k},
                               {"promises_exactness", one.promises()},
                               {"distance", one.result.distance},
                               {"distance_by_chance", one.result.by_chance},
                               {"z", one.result.z},
                               {"tokens_per_pass", one.result.tokens}});
  }
  json["held"] = held;
  return json.dump(2) + "\n";
}

}  // namespace

int exact_command(int argc, char** argv) {
  Proof p;
  const Command command = describe(p);
  const Given given = parse_flags(command, argc, argv);
  if (given.help) return 0;
  check_outputs(command, given);

  const std::vector<SampledStudy> to_sample = p.samples > 0 ? sampled_studies() : std::vector<SampledStudy>();
  std::vector<Enumerated> enumerated;
  std::vector<Drawn> sampled;
  Progress progress(p.quiet);
  const auto say = [&](const std::string& doing, size_t done, size_t all) {
    if (progress.due()) progress.show(doing + ", row " + std::to_string(done + 1) + " of " + std::to_string(all));
  };
  for (const Study& study : kStudies) {
    say("enumerating", enumerated.size(), kStudies.size());
    enumerated.push_back(run(study, p));
  }
  for (const SampledStudy& study : to_sample) {
    say("sampling", sampled.size(), to_sample.size());
    sampled.push_back({study, sample(study, p.vocab, p.samples, p.seed)});
  }
  progress.clear();

  print_out(
      "Every draft and every outcome of chance, summed. TV: total variation distance of what is emitted to the\n"
      "target's distribution. Bound: no exact rule commits more tokens a pass with these candidates.\n\n" +
      enumerated_table(enumerated) + "\n");
  if (!sampled.empty())
    print_out(thousands(p.samples) + " texts each by the generating loop, vocabulary of " + std::to_string(p.vocab) +
              ", the first two tokens: TV, what as many draws\nof the target itself would have, and chi-square in "
              "standard deviations above its mean.\nUnder match the candidates share the target's noise.\n\n" +
              sampled_table(sampled) + "\n");
  print_out(last_line(enumerated, sampled));
  if (given.has("--json")) write_file(p.json_file, report_json(p, enumerated, sampled));
  return 0;
}

}  // namespace nanospec
