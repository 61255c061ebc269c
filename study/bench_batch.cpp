// study/bench_batch.cpp: many texts side by side: tokens a second of 1, 2, 4, ... 64 texts, plain and speculating. What
// another engine makes of as many, tests/reference/peers.py measures.

#include "commands/comparison.h"
#include "commands/svg.h"
#include "files/gguf.h"
#include "model.h"
#include "study/bench.h"

namespace nanospec {
namespace {

constexpr int kMostBeside = 64, kOfEach = 64, kContext = 512;
const Method kDrafted = {"suffix", "auto", "match"};

// Tokens a second of so many texts, by repeat.
struct Beside {
  int texts;
  std::vector<double> plain, drafted;
  double kept_bytes = 0;  // keys and values that the texts hold at their end
  int64_t prompt_tokens = 0;

  double gain() const { return median(quotients(drafted, plain)); }  // of speculation
};

// A prompt for each text: of the held-out text, or of the questions of section kinds.
std::vector<Tokens> prompts_for(const Bench& bench, const Engine& engine, int n) {
  const std::string &model = bench.options.settings.model, questions = "data/kinds.jsonl";
  const std::vector<std::string> texts = is_gguf(model) ? read_prompts_jsonl(read_file(questions), questions)
                                                        : held_out_prompts(bench.data, n, kHeldOutBytes, model);
  std::vector<Tokens> prompts;
  const size_t step = is_gguf(model) ? 11 : 1;  // few questions are of many kinds
  for (int i = 0; i < n; i++) {
    prompts.push_back(engine.encode_prompt(texts[step * size_t(i) % texts.size()], "the prompt"));
    if (prompts.back().size() > kContext / 2) prompts.back().resize(kContext / 2);
  }
  return prompts;
}

// Decodes the first n of them side by side until they have kOfEach tokens each, on average: a text that is fast goes
// on, so that none is left to the end alone. Tokens a second, prefill among it.
double run_batch(const Sampling& sampling, Engine& engine, const Method& method, const std::vector<Tokens>& prompts,
                 int n) {
  std::deque<Request> requests;
  int64_t tokens = 0;
  const auto go_on = [&](int) { return ++tokens < int64_t(n) * kOfEach && !interrupted(); };
  for (int i = 0; i < n; i++) requests.push_back({prompts[size_t(i)], sampling, kContext / 2, go_on});
  Stopwatch watch;
  engine.generate(method, requests);
  return double(tokens) / watch.lap();
}

std::string batch_text(const std::vector<Beside>& batches) {
  TableRows rows = {{"texts", "plain, tok/s", "lowest", "highest", "of one text's", "suffix auto, tok/s", "lowest",
                     "highest", "over plain", "keys and values"}};
  for (const Beside& b : batches)
    rows.push_back(together(
        {std::to_string(b.texts)},
        std::vector<Row>{middle_and_ends(b.plain, 1, -1), Row{decimals(median(b.plain) / median(batches[0].plain), 2)},
                         middle_and_ends(b.drafted, 1, -1), Row{decimals(b.gain(), 2), bytes_text(b.kept_bytes)}}));
  return format_table(rows, "rrrrrrrrrr");
}

std::string batch_picture(const Bench& bench, const std::vector<Beside>& batches) {
  Panel panel{"", "texts side by side", "tokens a second, of all"};
  panel.log_x = true;
  panel.whisker = "lowest to highest";
  Series plain{"plain", kPlainColour, Series::Style::kLine}, drafted{"suffix auto", kColours[0], Series::Style::kLine};
  for (const Beside& b : batches) {
    panel.x_ticks.push_back(b.texts);
    plain.points.push_back({double(b.texts), median(b.plain), lowest(b.plain), highest(b.plain)});
    drafted.points.push_back({double(b.texts), median(b.drafted), lowest(b.drafted), highest(b.drafted)});
  }
  panel.series = {plain, drafted};
  return chart_picture("Many texts in one forward", machine_line(bench), {panel}, 1);
}

}  // namespace

void bench_batch(Bench& bench) {
  const std::string missing = decode_missing(bench);
  if (!is_gguf(bench.options.settings.model) && !missing.empty())
    return bench.print("Many texts in one forward", left_out(missing));
  Settings settings = bench.options.settings;
  settings.seats = bench.quick ? 4 : kMostBeside;
  settings.fewer = true;
  settings.budget = 16;
  settings.rows = settings.budget + 1;
  if (is_gguf(settings.model)) settings.context = kContext;
  Engine engine(settings);
  const std::vector<Tokens> prompts = prompts_for(bench, engine, engine.seats());
  const Config& c = engine.config();
  Sampling sampling = bench.options.sampling;
  if (is_gguf(settings.model)) sampling.temperature = 0;  // questions are answered with the likeliest tokens
  const double position = 2.0 * sizeof(float) * c.n_layer * c.n_kv_head * c.head_size();
  std::vector<Beside> batches;
  for (int n = 1; n <= engine.seats(); n *= 2) {
    batches.push_back({n, {}, {}});
    for (int i = 0; i < n; i++) {
      batches.back().kept_bytes +=
          position * std::min(double(c.block_size), double(prompts[size_t(i)].size()) + kOfEach);
      batches.back().prompt_tokens += int64_t(prompts[size_t(i)].size());
    }
  }
  run_batch(sampling, engine, kDrafted, prompts, 1);  // loads the drafter, and measures what rows cost
  int done = 0;
  for (int repeat = 0; repeat < bench.repeats; repeat++)
    for (size_t k = 0; k < batches.size(); k++) {
      Beside& b = batches[(k + size_t(repeat)) % batches.size()];
      bench.show(std::to_string(b.texts) + " texts", done++ / double(bench.repeats * int(batches.size())));
      const bool first = (repeat + int(k)) % 2 == 0;  // who runs first changes
      if (first) b.plain.push_back(run_batch(sampling, engine, kPlain, prompts, b.texts));
      b.drafted.push_back(run_batch(sampling, engine, kDrafted, prompts, b.texts));
      if (!first) b.plain.push_back(run_batch(sampling, engine, kPlain, prompts, b.texts));
      if (interrupted()) return;
    }
  OrderedJson json = OrderedJson::array();
  for (const Beside& b : batches) {
    json.push_back({{"texts", b.texts},
                    {"prompt_tokens", b.prompt_tokens},
                    {"plain_tokens_per_second", b.plain},
                    {"drafted_tokens_per_second", b.drafted},
                    {"kept_bytes", b.kept_bytes}});
    bench.evenness.push_back({std::to_string(b.texts) + " texts", unevenness(b.plain)});
  }
  bench.print("Many texts in one forward: " + count(kOfEach, "token") + " a text, temperature " +
                  decimals(sampling.temperature, 1),
              batch_text(batches));
  bench.write_json("batch", {{"method", "suffix auto"}, {"batches", json}});
  bench.write_svg("batch", batch_picture(bench, batches));
}

}  // namespace nanospec
