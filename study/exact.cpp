// study/exact.cpp: holds every verification rule against what it promises, and prints what came of it.

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

// What all rows come to.
struct Judged {
  int promised = 0;            // rows of rules that promise exactness
  bool control_failed = true;  // as it must
  std::string broken;          // rows that did not hold
  std::string last_line() const {
    if (!broken.empty()) return "NOT every rule that promises exactness held: " + broken + ".\n";
    return "Every rule that promises exactness held, in " + count(promised, "row") + " of these tables; " +
           (control_failed ? "the control failed, as it must.\n" : "but the control did NOT fail: try other seeds.\n");
  }
  // A row's last cell: "yes" or "NO" for a rule that promises its distribution; else what it is known for.
  std::string judge(bool held, const std::string& row, const std::string& known_flaw) {
    if (!known_flaw.empty()) return known_flaw;
    promised++;
    if (!held) broken += (broken.empty() ? "" : "; ") + row;
    return held ? "yes" : "NO";
  }
};

std::string small(double x) {
  char text[32];
  snprintf(text, sizeof text, x > 0 && x < 1e-3 ? "%.1e" : "%.4f", x);
  return text;
}

std::string candidates_text(const Study& study) {
  if (study.choosing == Choosing::kTop) return "likeliest";
  if (parse_shape(study.shape, 64).width == 1) return "drawn";
  return study.choosing == Choosing::kWithReplacement ? "drawn with replacement" : "drawn without replacement";
}

// Adds a row to the first table, and its figures to the JSON.
void add_enumerated(const Study& study, const Proof& p, Judged& judged, TableRows& rows, OrderedJson& json) {
  const std::vector<World> worlds =
      make_worlds(study.vocab, parse_shape(study.shape, 64).depth, p.distributions, p.seed);
  const bool control = is_control(study);
  const std::string word = about(study.rule).word, candidates = candidates_text(study),
                    known = control ? "biased: the control, judged as with" : flaw(promise_of(study));
  double farthest = 0, tokens = 0, bound = 0;
  int far = 0;  // distributions that are plainly off
  OrderedJson distributions;
  for (const World& world : worlds) {
    const Exactness one = enumerate(study, world);
    farthest = std::max(farthest, one.distance);
    far += one.distance > 1e-3;
    tokens += one.tokens / double(worlds.size());
    bound += one.bound / double(worlds.size());
    distributions.push_back({{"name", world.name},
                             {"distance", one.distance},
                             {"tokens_per_pass", one.tokens},
                             {"bound", one.bound},
                             {"outcomes", one.outcomes}});
  }
  if (control) judged.control_failed = judged.control_failed && far > 0;
  json.push_back({{"rule", word},
                  {"candidates", candidates},
                  {"shape", study.shape},
                  {"vocab", study.vocab},
                  {"promises_exactness", known.empty()},
                  {"control", control},
                  {"largest_distance", farthest},
                  {"tokens_per_pass", tokens},
                  {"bound", bound},
                  {"distributions", distributions}});
  rows.push_back({word, candidates, study.shape, std::to_string(study.vocab), thousands(worlds.size()), small(farthest),
                  thousands(far), decimals(tokens, 4), decimals(bound, 4),
                  judged.judge(farthest < kRounding, word + " " + study.shape, known)});
}

// The same of the second table.
void add_sampled(const SampledStudy& study, const Proof& p, Judged& judged, TableRows& rows, OrderedJson& json) {
  const Sampled r = sample(study, p.vocab, p.samples, p.seed);
  const std::string word = about(study.rule).word, known = flaw(about(study.rule).promise),
                    temperature = decimals(study.temperature, 1);
  json.push_back({{"rule", word},
                  {"shape", study.shape},
                  {"temperature", std::stod(temperature)},
                  {"top_k", study.top_k},
                  {"promises_exactness", known.empty()},
                  {"distance", r.distance},
                  {"distance_by_chance", r.by_chance},
                  {"z", r.z},
                  {"tokens_per_pass", r.tokens}});
  rows.push_back({word, study.shape, temperature, std::to_string(study.top_k), small(r.distance), small(r.by_chance),
                  decimals(r.z, 1), decimals(r.tokens, 4),
                  judged.judge(r.z < kFarZ, word + " " + study.shape + ", sampled", known)});
}

}  // namespace

int exact_command(int argc, char** argv) {
  Proof p;
  const Given given = parse_flags(describe(p), argc, argv);
  if (given.help) return 0;
  check_outputs(given);

  TableRows enumerated = {{"rule", "candidates", "shape", "vocab", "distributions", "largest TV", "TV > 0.001",
                           "tokens/pass", "bound", "exact?"}},
            sampled = {{"rule", "shape", "temperature", "top_k", "TV", "TV by chance", "z", "tokens/pass", "exact?"}};
  OrderedJson json = {{"seed", p.seed}, {"vocab", p.vocab}, {"samples", p.samples}};
  Judged judged;
  Progress progress(p.quiet);
  const auto say = [&](const std::string& doing, const TableRows& rows, size_t all) {
    if (progress.due()) progress.show(doing + ", row " + std::to_string(rows.size()) + " of " + std::to_string(all));
  };
  for (const Study& study : kStudies) {
    say("enumerating", enumerated, kStudies.size());
    add_enumerated(study, p, judged, enumerated, json["enumerated"]);
  }
  for (const SampledStudy& study : p.samples > 0 ? sampled_studies() : std::vector<SampledStudy>()) {
    say("sampling", sampled, 2 * std::size(kRules));
    add_sampled(study, p, judged, sampled, json["sampled"]);
  }
  json["held"] = judged.broken.empty();
  progress.clear();

  print_out(
      "Every draft and every outcome of chance, summed. TV: total variation distance of what is emitted to the\n"
      "target's distribution. Bound: no exact rule commits more tokens a pass with these candidates.\n\n" +
      format_table(enumerated, "lllrrrrrrl") + "\n");
  if (sampled.size() > 1)
    print_out(thousands(p.samples) + " texts each by the generating loop, vocabulary of " + std::to_string(p.vocab) +
              ", the first two tokens: TV, what as many draws\nof the target itself would have, and chi-square in "
              "standard deviations above its mean.\nUnder match the candidates share the target's noise.\n\n" +
              format_table(sampled, "llrrrrrrl") + "\n");
  print_out(judged.last_line());
  if (given.has("--json")) write_file(p.json_file, json.dump(2) + "\n");
  return 0;
}

}  // namespace nanospec
