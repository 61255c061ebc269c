// commands/compare.cpp: plain decoding and speculation side by side, in the same run.

#include "commands/comparison.h"
#include "commands/svg.h"

namespace nanospec {
namespace {

struct Comparison : Trial {
  std::string json_file, svg_file;
  std::string methods_text = "none; bigram chain:4; bigram tree:3x2; bigram auto";
};

constexpr const char* kTextMethods = "none; suffix chain:4; suffix auto";  // without bigrams

Command describe(Comparison& c) {
  return {"nanospec compare",
          "Decodes the same prompts by several methods, again and again in an order that rotates, and prints what each "
          "gains over plain decoding and whether its text is the same, byte for byte.",
          "nanospec compare --model runs/small --prompt \"ROMEO:\"\n"
          "nanospec compare --model runs/small --prompts data/prompts.jsonl --methods \"none; bigram chain:2; bigram "
          "auto\"\n"
          "nanospec compare --model runs/small --data data/*shakespeare.txt --held_out 4 --svg build/compare.svg\n"
          "nanospec compare --model runs/small --prompt A --repeat 9 --json build/a.json --svg build/a.svg\n",
          together({text_flags(c.options),
                    prompts_flags(c.options),
                    model_text_flags(c.options),
                    chat_flags(c.options),
                    {heading("Methods"),
                     {"--methods", "LIST", &c.methods_text,
                      "DRAFTER SHAPE [verify=RULE] [budget=N] [noise=unknown] [ahead=on|auto], with ';' between; put a "
                      "name in quotes if it has blanks; see build/nanospec help drafters, shapes, rules; for a GGUF "
                      "file, or a folder without bigrams, the default is " +
                          std::string(kTextMethods)},
                     speculation_flags(c.options)[3],  // budget
                     {"--repeat", "N", &c.repeats, "how often every method runs", from(1, 10000)}},
                    run_flags(c.options),
                    {heading("Output"),
                     {"--json", "FILE", &c.json_file, "write every run's figures", written()},
                     {"--svg", "FILE", &c.svg_file, "write a picture", written()},
                     {"--quiet", "", &c.options.settings.quiet, "no progress"}}})};
}

// ---------------------------------------------------------------------------------------------------------------
// Saying

std::string table(const Comparison& c, const std::vector<Outcome>& outcomes) {
  TableRows rows = {{"method", "tok/s", "speedup", "lowest", "highest", "acceptance", "nodes/forward", "ms/forward",
                     "draft", "identical to plain"}};
  for (size_t m = 0; m < outcomes.size(); m++) {
    const Outcome& outcome = outcomes[m];
    const Stats sum = sum_of(outcome);
    const Interval gain = spread_of(outcome.speedups);
    const double forwards = double(sum.target_forwards);
    rows.push_back({method_text(c.methods[m]), thousands(median(speeds(outcome))), times(gain.middle), times(gain.low),
                    times(gain.high), decimals(ratio(sum.tokens, forwards), 2),
                    decimals(ratio(sum.drafted_nodes, forwards), 1),
                    decimals(1e3 * ratio(sum.seconds_forward, forwards), 3), percent(sum.seconds_draft, sum.seconds),
                    identical(c.methods[m], outcome)});
  }
  return format_table(rows, "lrrrrrrrrl");
}

// As times() prints it.
double rounded(double x) { return std::round(100 * x) / 100; }

// One line: what the table comes to. The fastest is named where the table leaves no doubt: it is first in both columns,
// and was faster than plain decoding in every repeat. spread: of plain decoding's speeds.
std::string verdict(const Comparison& c, const std::vector<Outcome>& outcomes, double spread) {
  size_t best = c.plain, most = c.plain, exact = 0, faster = 0;  // by speedup, by tokens a second
  double highest_of_all = 0;
  for (size_t m = 0; m < outcomes.size(); m++) {
    if (promise_of(c.methods[m]) != Promise::kSameBytes || c.methods[m].drafter == "none") continue;
    exact++;
    faster += rounded(lowest(outcomes[m].speedups)) > 1;
    highest_of_all = std::max(highest_of_all, rounded(highest(outcomes[m].speedups)));
    if (median(outcomes[m].speedups) > median(outcomes[best].speedups)) best = m;
    if (median(speeds(outcomes[m])) > median(speeds(outcomes[most]))) most = m;
  }
  if (exact == 0) return "";
  const std::string same = (exact == 1 ? "The exact method prints" : filled("All {} exact methods print", exact)) +
                           " plain decoding's bytes; ";
  const Interval gain = spread_of(outcomes[best].speedups);
  if (spread > 1) return same + "the speeds are too uneven to tell more.\n";
  if (highest_of_all <= 1) return same + "no method is faster than it here.\n";
  if (faster == 0) return same + "no method was faster than it in every repeat.\n";
  if (best != most || rounded(gain.low) <= 1)
    return same + filled("{} faster in every repeat; which is the fastest, the repeats do not tell.\n",
                         faster == 1 ? "1 was" : filled("{} were", faster));
  return same + filled("the fastest, {}, is {} times as fast ({} to {}).\n", method_text(c.methods[best]),
                       decimals(gain.middle, 2), decimals(gain.low, 2), decimals(gain.high, 2));
}

// ---------------------------------------------------------------------------------------------------------------
// The picture

// A bar for each method: its median tokens per second, a whisker from the slowest to the fastest repeat, the speedup.
std::string picture(const Comparison& c, const Engine& engine, const std::vector<Outcome>& outcomes) {
  std::vector<IntervalBar> bars;
  for (size_t m = 0; m < outcomes.size(); m++) {
    const Interval speed = spread_of(speeds(outcomes[m])), gain = spread_of(outcomes[m].speedups);
    const std::string wrong = flaw(promise_of(c.methods[m]));
    std::string name = method_text(c.methods[m]) + (wrong.empty() ? "" : ", " + wrong);
    if (m != c.plain)
      name += filled(": {} ({} to {})", times(gain.middle), decimals(gain.low, 2), decimals(gain.high, 2));
    const char* const colour = wrong.empty() ? kColours[0] : kColours[4];
    bars.push_back({name, speed, thousands(speed.middle), c.methods[m].drafter == "none" ? kPlainColour : colour});
  }
  const std::string name = "tokens per second, median of " + count(outcomes[0].runs.size(), "repeat");
  return interval_picture("Tokens per second, and times plain decoding",
                          circumstances(c.options, engine, c.prompts.size()) +
                              "; times plain decoding: median (lowest to highest) of the pairs of one repeat",
                          {name, 0, "", "slowest to fastest repeat"}, bars);
}

}  // namespace

int compare_command(int argc, char** argv) {
  Comparison c;
  if (!read_flags(describe(c), argc, argv, c.options)) return 0;
  check_chat(c.options, "nanospec compare");
  if (!c.options.given.has("--methods") && !has_bigrams(c.options.settings.model)) c.methods_text = kTextMethods;
  c.methods = parse_methods(c.methods_text, c.options.settings.budget);
  check_methods(c.methods, c.options);
  c.choose_plain();
  c.prompts = read_asked(c.options);

  Engine engine(c.options.settings);
  watch_interrupts();
  Progress progress(c.options.settings.quiet);
  const std::vector<Outcome> outcomes = run_all(c, engine, [&](const std::string& doing, double done) {
    if (progress.due()) progress.show(doing + ", " + progress.left(done, 1));
  });
  progress.clear();
  const size_t repeats = outcomes[c.plain].runs.size();
  if (repeats == 0) return stopped(": not one repeat is complete, so there is nothing to show");

  print_out(filled("{}, {}\n\n{}\n", circumstances(c.options, engine, c.prompts.size()), count(repeats, "repeat"),
                   table(c, outcomes)));
  const std::string wrong = broken(c, outcomes);
  const Interval plain = spread_of(speeds(outcomes[c.plain]));
  const double spread = ratio(plain.high, plain.low) - 1;
  if (wrong.empty()) print_out(verdict(c, outcomes, spread));
  if (spread > 0.15)
    print_out(
        filled("Plain decoding itself ran at {} to {} tok/s: something else was busy on this machine, so judge by "
               "lowest and highest.\n",
               thousands(plain.low), thousands(plain.high)));
  print_out("", true);
  const OrderedJson json = comparison_json(c, engine, outcomes, {{"plain_spread", spread}});
  if (!c.json_file.empty()) write_file(c.json_file, json_text(json, 2));
  if (!c.svg_file.empty()) write_file(c.svg_file, picture(c, engine, outcomes));
  refuse_broken(wrong);
  return interrupted() ? kInterruptedStatus : 0;
}

}  // namespace nanospec
