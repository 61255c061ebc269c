// study/bench_forward.cpp: how near a forward comes to the machine's limits: bytes read per second, the cost of
// rows, prefill; and how little sampling takes beside it. Models of random weights: nothing needs to be trained.
#include <algorithm>
#include <cmath>

#include "commands/samples.h"
#include "commands/svg.h"
#include "drafters/logits.h"
#include "growth/clock.h"
#include "study/forwards.h"

namespace nanospec {
namespace {

std::vector<Size> sizes(bool quick) {
  if (quick) return {small_size()};
  return {small_size(), medium_size(), gpt2_size()};
}

const char* const kDtypes[] = {"fp32", "bf16", "q8", "q4"};
bool is_float(const Result& result) { return result.dtype[0] != 'q'; }  // else its products are of integers

const std::vector<int> kRows = {1, 2, 3, 4, 6, 8, 12, 16};

// ---------------------------------------------------------------------------------------------------------------
// Sampling

// Seconds that an iteration takes beside the forward at a vocabulary of V: the noise of one place, the target's pick,
// a drafter's four best candidates under the same noise. Logits as of Zipf's law, scattered over the tokens.
std::vector<double> sampling_seconds(int vocab, const Sampling& sampling, int rounds) {
  std::vector<float> logits(size_t(vocab), 0), scores(size_t(vocab), 0);
  for (int x = 0; x < vocab; x++) logits[size_t(x)] = -std::log(1.0f + float(int64_t(x) * 7919 % vocab));
  Noise noise(sampling, vocab);
  Candidate candidates[4];
  std::vector<double> seconds;
  Stopwatch watch;
  int picked = 0;
  for (int round = 0; round <= rounds; round++) {
    watch.lap();
    const float* row = noise.row(round);
    picked += pick(logits.data(), row, vocab, sampling);
    picked +=
        top_candidates(Solo{}, logits.data(), row, vocab, {&sampling, nullptr, 0, false}, 4, candidates, scores.data());
    if (round > 0) seconds.push_back(watch.lap());  // the first one asks for memory
  }
  if (picked < 0) throw std::logic_error("a token below 0");  // and so nothing above can be left out
  return seconds;
}

// ---------------------------------------------------------------------------------------------------------------
// Saying

std::string reading_table(const Bench& bench, const std::vector<Result>& results) {
  TableRows rows = {
      {"model", "past", "ms", "lowest", "highest", "read", "fits", "GB/s", "limit", "share", "plain read", "share"}};
  for (const Result& result : results)
    for (const Forwards& f : result.pasts) {
      const double limit = bench.roofline.bandwidth(f.level);
      rows.push_back(together(timed_cells(result.name(), f.past, f.seconds.at(1), 3),
                              {{bytes_text(f.bytes), level_name(f.level), decimals(f.bytes_per_second() / 1e9, 1),
                                decimals(limit / 1e9, 1), percent(f.bytes_per_second(), limit),
                                decimals(median(f.plain_reads) / 1e9, 1), percent(median(f.shares()), 1)}}));
    }
  return format_table(rows, "lrrrrrlrrrrr") +
         "read: bytes of weights and cache that one row needs. limit: the measured bandwidth of the level that they\n"
         "fit. plain read: a bare sum over as many bytes, in the same rounds: what this machine gave just then, also\n"
         "where the bytes lie half in one level, half in the next.\n";
}

OrderedJson result_json(const Bench& bench, const Result& result) {
  OrderedJson json = configuration_json(result);
  for (const Forwards& f : result.pasts) {
    OrderedJson past = forwards_json(f, bench.roofline.bandwidth(f.level));
    past["fits"] = level_name(f.level);
    past["plain_read_share"] = median(f.shares());
    past["plain_read_bytes_per_second"] = f.plain_reads;
    json["pasts"].push_back(past);
  }
  json["prefill"] = prefill_json(result, bench.roofline.peak());
  return json;
}

// cost(N), and beside it the least that the roofline allows (reading as the plain read beside it; computing floats at
// the peak), both over the measured time of one row: at N = 1 their distance is what one row leaves of the machine.
std::string cost_picture(const Bench& bench, const std::vector<Result>& results) {
  std::vector<Panel> panels;
  for (const Result& result : results) {
    Panel panel{result.name() + " (" + bytes_text(result.weight_bytes) + ")", "rows of one forward",
                "time, in times that of one row"};
    panel.x_ticks = {1, 2, 4, 6, 8, 12, 16};
    panel.whisker = "lowest to highest";
    for (size_t p = 0; p < result.pasts.size(); p++) {
      const Forwards& f = result.pasts[p];
      const std::string past = p == 0 ? "empty past" : "long past";
      Series measured{past + ", measured", kColours[p], Series::Style::kLine},
          bound{past + ", least by roofline", kColours[p], Series::Style::kDashes};
      const auto least = [&](int rows) {
        const double flops = is_float(result) ? forward_flops(result.size, rows, f.past) : 0;
        return least_seconds(f.bytes, flops, median(f.plain_reads), bench.roofline.peak());
      };
      for (int rows : kRows) {
        const std::vector<double> costs = f.costs(rows);
        measured.points.push_back({double(rows), median(costs), lowest(costs), highest(costs)});
        bound.points.push_back({double(rows), least(rows) / f.one()});
      }
      panel.series.push_back(measured);
      panel.series.push_back(bound);
    }
    panels.push_back(panel);
  }
  return chart_picture("What N rows cost beside one", machine_line(bench), panels, 2);
}

}  // namespace

void bench_forward(Bench& bench) {
  std::vector<Result> results;
  const std::vector<Size> all = sizes(bench.quick);
  const double pieces = double(std::size(kDtypes) * all.size());
  for (const Size& size : all)
    for (const char* dtype : kDtypes) {
      results.push_back(measure_forwards(bench, size, dtype, bench.options.settings.device, kRows,
                                         double(results.size()) / pieces, 1 / pieces));
      if (interrupted()) return;
    }
  const Result& largest = results[results.size() - std::size(kDtypes)];  // in fp32
  const int vocab = largest.size.vocab_size;
  const std::vector<double> sampling = sampling_seconds(vocab, bench.options.sampling, bench.quick ? 5 : 101);
  const double share = median(sampling) / (median(sampling) + largest.pasts[0].one());

  bench.print("Forwards of one row",
              reading_table(bench, results) + "\n" + cost_table(results, kRows) + "\n" +
                  prefill_table(
                      results, "share of fp32 peak", [&](const Result&) { return bench.roofline.peak(); }, 1) +
                  "\nSampling at a vocabulary of " + thousands(vocab) + ": noise, pick and four candidates take " +
                  duration(median(sampling)) + ", " + decimals(100 * share, 1) + "% of an iteration of " +
                  largest.name() + ".\n");
  OrderedJson json;
  for (const Result& result : results) json["configurations"].push_back(result_json(bench, result));
  json["sampling"] = {{"vocab_size", vocab}, {"share", share}, {"seconds", sampling}};
  bench.write_json("forward", json);
  bench.write_svg("cost", cost_picture(bench, results));
}

}  // namespace nanospec
