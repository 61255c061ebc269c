// study/forwards.cpp: forwards of models with random weights, measured: see forwards.h.
#include "study/forwards.h"

#include "growth/clock.h"
#include "model.h"

#include <algorithm>

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Measuring

namespace {

constexpr double kMostSeconds = 6;  // of one table row, where three rounds are made

// The median of as many calls as fill two milliseconds, so that the clock and a wakeup do not count.
double forward_seconds(Probe& probe, int rows, int past, double once) {
  std::vector<double> calls;
  const int n = int(std::clamp(0.002 / std::max(once, 1e-6), 1.0, 64.0));
  for (int i = 0; i < n; i++) calls.push_back(probe.forward_seconds(rows, past));
  return median(calls);
}

// In each round all numbers of rows, in an order that rotates; and one plain read, where there is a reader.
void measure_rows(Probe& probe, const std::vector<int>& all_rows, int rounds, Reader* reader, Forwards& f,
                  const std::function<void(int)>& working) {
  probe.forward_seconds(1, f.past);  // makes the past
  std::map<int, double> once;
  for (int rows : all_rows)
    for (int i = 0; i < 3; i++) once[rows] = probe.forward_seconds(rows, f.past);  // a GPU records the second
  Stopwatch watch;
  double spent = 0;
  for (int round = 0; round < rounds && (round < 3 || spent < kMostSeconds); round++, spent += watch.lap()) {
    if (round > 0 && interrupted()) return;
    working(round);
    for (size_t k = 0; k < all_rows.size(); k++) {
      const int rows = all_rows[(k + size_t(round)) % all_rows.size()];
      f.seconds[rows].push_back(forward_seconds(probe, rows, f.past, once[rows]));
    }
    if (reader) f.plain_reads.push_back(reader->bytes_per_second(f.bytes));
  }
}

}  // namespace

Result measure_forwards(Bench& bench, const Size& size, const std::string& dtype, const std::string& device,
                        const std::vector<int>& rows, double done, double share) {
  Result result{size, dtype, 0, {}, {}};
  const int rounds = bench.quick ? 2 : 3 * bench.repeats, threads = bench.options.settings.threads;
  bench.time->show(result.name() + ": making weights", done);
  Config config{size.n_layer, size.n_head, size.n_head, size.n_embd, size.block_size, size.vocab_size, false};
  Probe probe(config, dtype, device, threads, *std::max_element(rows.begin(), rows.end()));
  result.weight_bytes = probe.weight_bytes();
  for (int past : {0, size.long_past}) {
    Forwards f;
    f.past = past;
    f.bytes = result.weight_bytes + probe.cache_bytes(past);
    f.level = level_of(f.bytes, threads, bench.machine.caches);
    std::unique_ptr<Reader> reader;
    if (device == "cpu") reader.reset(new Reader(f.bytes, threads));
    measure_rows(probe, rows, rounds, reader.get(), f, [&](int round) {
      bench.time->show(result.name() + ", past " + std::to_string(past),
                       done + share * 0.4 * ((past > 0) + double(round) / rounds));
    });
    result.pasts.push_back(f);
    bench.evenness.push_back(
        {(device == "cpu" ? "" : "GPU: ") + result.name() + ", one row, past " + std::to_string(past),
         unevenness(f.seconds[1])});
  }
  probe.prefill_seconds(size.prefill);
  for (int round = 0; round < (bench.quick ? 2 : bench.repeats) && (round == 0 || !interrupted()); round++) {
    bench.time->show(result.name() + ", prefill", done + share * 0.9);
    result.prefill_seconds.push_back(probe.prefill_seconds(size.prefill));
  }
  return result;
}

// ---------------------------------------------------------------------------------------------------------------
// Saying

std::string cost_table(const std::vector<Result>& results, const std::vector<int>& all_rows) {
  std::vector<std::string> head = {"cost of N rows", "past"};
  for (int rows : all_rows)
    if (rows > 1) head.push_back(std::to_string(rows));
  TableRows table = {head};
  for (const Result& result : results)
    for (const Forwards& f : result.pasts) {
      std::vector<std::string> median_row = {result.name(), std::to_string(f.past)}, ends = {"", ""};
      for (int rows : all_rows) {
        if (rows == 1) continue;
        const std::vector<double> costs = f.costs(rows);
        median_row.push_back(decimals(median(costs), 2));
        ends.push_back(decimals(lowest(costs), 2) + "-" + decimals(highest(costs), 2));
      }
      table.push_back(median_row);
      table.push_back(ends);
    }
  return format_table(table, "lr" + std::string(all_rows.size() - 1, 'r')) +
         "A forward of N rows over one row of the same round: median, below it lowest and highest.\n";
}

Row timed_cells(const std::string& what, int tokens, const std::vector<double>& seconds, int places) {
  return together({what, std::to_string(tokens)}, {middle_and_ends(seconds, 1e3, places)});
}

std::string prefill_table(const std::vector<Result>& results, const std::string& peak_name,
                          const std::function<double(const Result&)>& peak, int places) {
  TableRows rows = {{"prefill", "tokens", "ms", "lowest", "highest", "tok/s", "GFLOP/s", peak_name}};
  for (const Result& result : results) {
    const int tokens = result.size.prefill;
    const double seconds = median(result.prefill_seconds), flops = ratio(prefill_flops(result.size, tokens), seconds);
    rows.push_back(together(timed_cells(result.name(), tokens, result.prefill_seconds, 2),
                            {{thousands(ratio(tokens, seconds)), middle_and_ends({flops}, 1e-9, places)[0],
                              percent(flops, peak(result))}}));
  }
  return format_table(rows, "lrrrrrrr");
}

OrderedJson forwards_json(const Forwards& f, double limit) {
  OrderedJson json = {{"past", f.past},
                      {"bytes", f.bytes},
                      {"seconds", f.one()},
                      {"bytes_per_second", f.bytes_per_second()},
                      {"limit_bytes_per_second", limit},
                      {"share", ratio(f.bytes_per_second(), limit)}};
  for (const auto& [rows, seconds] : f.seconds) {
    const std::vector<double> costs = f.costs(rows);
    json["rows"].push_back({{"rows", rows},
                            {"cost", median(costs)},
                            {"cost_lowest", lowest(costs)},
                            {"cost_highest", highest(costs)},
                            {"seconds", seconds}});
  }
  return json;
}

OrderedJson configuration_json(const Result& result) {
  const Size& size = result.size;
  return {{"name", size.name},
          {"dtype", result.dtype},
          {"n_layer", size.n_layer},
          {"n_head", size.n_head},
          {"n_embd", size.n_embd},
          {"block_size", size.block_size},
          {"vocab_size", size.vocab_size},
          {"weight_bytes", result.weight_bytes}};
}

OrderedJson prefill_json(const Result& result, double peak) {
  const double flops = prefill_flops(result.size, result.size.prefill);
  const double rate = ratio(flops, median(result.prefill_seconds));
  return {{"tokens", result.size.prefill},
          {"flops", flops},
          {"flops_per_second", rate},
          {"share", ratio(rate, peak)},
          {"seconds", result.prefill_seconds}};
}

// ---------------------------------------------------------------------------------------------------------------
// Arithmetic

double forward_flops(const Size& size, int rows, int past) {
  const double channels = size.n_embd, weights = size.n_layer * 12.0 * channels * channels + size.vocab_size * channels;
  const double keys = double(rows) * past + 2.0 * rows - 1;  // a child sees the past, its root and itself
  return 2.0 * rows * weights + 4.0 * size.n_layer * channels * keys;
}

double prefill_flops(const Size& size, int tokens) {
  const double channels = size.n_embd, layers = size.n_layer;
  const double weights = (layers - 1) * 12 * channels * channels + 3 * channels * channels;  // the last layer's K, V, Q
  return tokens * 2 * weights + (layers - 1) * 4 * channels * (double(tokens) * (tokens + 1) / 2);
}

double row_flops(const Config& c) {
  double numbers = c.tied ? double(c.vocab_size) * c.n_embd : 0;
  for (const TensorSpec& spec : tensor_table(c))
    if (spec.decay && spec.name[0] != 'w') numbers += double(spec.size);  // wte and wpe are looked up, not multiplied
  return 2 * numbers;
}

double least_seconds(double bytes, double flops, double bandwidth, double peak) {
  return std::max(ratio(bytes, bandwidth), ratio(flops, peak));
}

}  // namespace nanospec
