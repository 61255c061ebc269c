// commands/comparison.cpp: see comparison.h.
#include "commands/comparison.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Running

void Trial::choose_plain() {
  const auto is_plain = [](const Method& method) { return method.drafter == "none"; };
  const auto found = std::find_if(methods.begin(), methods.end(), is_plain);
  if (found == methods.end()) methods.insert(methods.begin(), kPlain);
  else plain = size_t(found - methods.begin());
}

std::vector<Tokens> encoded(const Engine& engine, const Options& options, const std::vector<Asked>& prompts) {
  std::vector<Tokens> tokens;
  for (const Asked& one : prompts) {
    const std::string name = prompts.size() == 1 ? "the prompt" : filled("prompt {}", tokens.size() + 1);
    tokens.push_back(encode_prompt(engine, options, one, name));
  }
  return tokens;
}

std::vector<Outcome> run_all(const Trial& c, Engine& engine, const Report& report) {
  const std::vector<Tokens> prompts = encoded(engine, c.options, c.prompts);
  Clock clock([watch = Stopwatch()]() mutable { return watch.lap(); });
  const double total = double(prompts.size()) * double(1 + c.methods.size() * size_t(c.repeats));
  double done = 0;
  const auto decode = [&](const Method& method, size_t prompt, const std::string& doing) {
    std::string text = c.prompts[prompt].prompt;
    const auto on_token = [&](int token, bool) {
      text += engine.decode(token);
      report(doing, std::max(done / total, clock.now() / c.most_seconds));
      return true;
    };
    const Generated generated = continue_text(engine, c.options, method, prompts[prompt], c.options.max_new_tokens,
                                              on_token, {}, c.own_noise ? uint32_t(prompt) : 0);
    done++;
    return std::pair(std::move(text), generated.stats);
  };

  std::vector<std::string> expected;
  for (size_t p = 0; p < prompts.size(); p++) expected.push_back(decode(c.methods[c.plain], p, "warming up").first);

  std::vector<Outcome> outcomes(c.methods.size());
  const size_t block = c.by_prompt ? 1 : std::max<size_t>(prompts.size(), 1);  // prompts in a row by one method
  for (int repeat = 0; repeat < c.repeats && !interrupted(); repeat++) {
    if (repeat > 0 && clock.now() * (repeat + 1) / repeat > c.most_seconds) break;
    std::vector<Run> runs(c.methods.size());
    for (size_t first = 0, turn = size_t(repeat); first < prompts.size() || first == 0; first += block, turn++)
      for (size_t k = 0; k < c.methods.size() && !interrupted(); k++) {
        const size_t m = (k + turn) % c.methods.size();
        const std::string doing = filled("repeat {} of {}: {}", repeat + 1, c.repeats, method_text(c.methods[m]));
        for (size_t p = first; p < std::min(first + block, prompts.size()) && !interrupted(); p++) {
          const auto [text, stats] = decode(c.methods[m], p, doing);
          add(runs[m].stats, stats);
          runs[m].prompts.push_back(stats);
          if (text == expected[p] || !outcomes[m].difference.empty() || interrupted()) continue;
          const auto parted = std::mismatch(text.begin(), text.end(), expected[p].begin(), expected[p].end()).first;
          outcomes[m].difference = (prompts.size() > 1 ? filled("prompt {}, ", p + 1) : "") +
                                   filled("byte {}", parted - text.begin() + 1);  // from 1, as cmp counts
        }
      }
    if (interrupted()) break;  // only whole repeats
    for (size_t m = 0; m < c.methods.size(); m++) {
      outcomes[m].runs.push_back(runs[m]);
      outcomes[m].speedups.push_back(ratio(runs[m].tokens_per_second(), runs[c.plain].tokens_per_second()));
    }
  }
  return outcomes;
}

// ---------------------------------------------------------------------------------------------------------------
// Saying

std::string identical(const Method& method, const Outcome& outcome) {
  const std::string where = outcome.difference, wrong = flaw(promise_of(method));
  if (!wrong.empty()) return wrong + (where.empty() ? " rule; here the same" : " rule, from " + where);
  if (promise_of(method) == Promise::kSameBytes) return where.empty() ? "yes" : "NO, from " + where;
  return where.empty() ? "yes (by chance)" : "other draws, from " + where;
}

std::string broken(const Trial& c, const std::vector<Outcome>& outcomes) {
  for (size_t m = 0; m < outcomes.size(); m++)
    if (promise_of(c.methods[m]) == Promise::kSameBytes && !outcomes[m].difference.empty())
      return method_text(c.methods[m]) + " (" + outcomes[m].difference + ")";
  return "";
}
OrderedJson comparison_json(const Trial& trial, const Engine& engine, const std::vector<Outcome>& outcomes,
                            const OrderedJson& more) {
  OrderedJson json = settings_json(trial.options, engine);
  json["repeats"] = outcomes[trial.plain].runs.size();
  for (const Asked& one : trial.prompts) json["prompts"].push_back(one.prompt);
  json.update(more);
  for (size_t m = 0; m < outcomes.size(); m++) {
    const Outcome& outcome = outcomes[m];
    OrderedJson method = method_json(trial.methods[m]);
    method["method"] = method_text(trial.methods[m]);
    method["identical"] = outcome.difference.empty();
    method["first_difference"] = outcome.difference;
    method["tokens_per_second"] = median(speeds(outcome));
    method["speedup"] = median(outcome.speedups);
    method["speedup_lowest"] = lowest(outcome.speedups);
    method["speedup_highest"] = highest(outcome.speedups);
    for (size_t r = 0; r < outcome.runs.size(); r++) {
      method["runs"].push_back(stats_json(engine, outcome.runs[r].stats));
      method["runs"].back()["speedup"] = outcome.speedups[r];
    }
    json["methods"].push_back(method);
  }
  return json;
}

}  // namespace nanospec
