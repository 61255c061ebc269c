// study/forwards.cpp: forwards of models with random weights, measured: see forwards.h.
#include "study/forwards.h"

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

Result measure_forwards(Bench& bench, const Size& size, const std::string& dtype, const GpuLimits* gpu,
                        const std::vector<int>& rows, const Stretch& stretch) {
  Result result{size, dtype, 0, 0, {}, {}};
  result.peak = !gpu ? bench.roofline.peak() : median(dtype == "bf16" ? gpu->bf16 : gpu->fp32);
  const int rounds = bench.quick ? 2 : 3 * bench.repeats, threads = bench.options.settings.threads;
  bench.show(result.name() + ": making weights", stretch.begin);
  Settings settings = bench.options.settings;  // of a file
  settings.model = size.file;
  settings.context = size.config.block_size;
  settings.rows = *std::max_element(rows.begin(), rows.end());
  if (dtype[0] == 'Q') settings.cache_dtype = "bf16";  // as other engines have it
  Probe probe =
      size.file.empty() ? Probe(size.config, dtype, gpu ? "cuda" : "cpu", threads, settings.rows) : Probe(settings);
  result.weight_bytes = probe.weight_bytes();
  for (int past : {size.short_past, size.long_past}) {
    const double bytes = result.weight_bytes + probe.cache_bytes(past);
    const Level level = level_of(bytes, threads, bench.machine.caches);
    Forwards f = {past, bytes, gpu ? median(gpu->read) : bench.roofline.bandwidth(level), level, {}, {}};
    const auto reader = gpu ? nullptr : std::make_unique<Reader>(bytes, threads);
    measure_rows(probe, rows, rounds, reader.get(), f, [&](int round) {
      bench.show(result.name() + ", past " + std::to_string(past),
                 stretch.at(0.4 * (double(result.pasts.size()) + double(round) / rounds)));
    });
    result.pasts.push_back(f);
    bench.evenness.push_back(
        {(gpu ? "GPU: " : "") + result.name() + ", one row, past " + std::to_string(past), unevenness(f.seconds[1])});
  }
  probe.prefill_seconds(size.prefill);
  for (int round = 0; round < (bench.quick ? 2 : bench.repeats) && (round == 0 || !interrupted()); round++) {
    bench.show(result.name() + ", prefill", stretch.at(0.9));
    result.prefill_seconds.push_back(probe.prefill_seconds(size.prefill));
  }
  return result;
}

// ---------------------------------------------------------------------------------------------------------------
// Saying

namespace {

std::string one_row_table(const std::vector<Result>& results) {
  const bool cpu = !results[0].pasts[0].plain_reads.empty();
  TableRows rows = {{"one row", "past", "ms", "lowest", "highest", "read", "GB/s", "limit", "share"}};
  if (cpu) rows[0].insert(rows[0].end(), {"fits", "plain read", "share"});
  for (const Result& result : results)
    for (const Forwards& f : result.pasts) {
      rows.push_back(together({result.name(), std::to_string(f.past)},
                              {middle_and_ends(f.seconds.at(1), 1e3, 3),
                               {bytes_text(f.bytes), decimals(f.bytes_per_second() / 1e9, 1),
                                decimals(f.limit / 1e9, 1), percent(f.bytes_per_second(), f.limit)}}));
      if (cpu)
        rows.back().insert(rows.back().end(), {level_name(f.level), decimals(median(f.plain_reads) / 1e9, 1),
                                               percent(median(f.shares()), 1)});
    }
  return format_table(rows, cpu ? "lrrrrrrrrlrr" : "lrrrrrrrr") +
         "read: bytes of weights and cache that one row needs. limit: the measured bandwidth of the memory that they\n"
         "fit. " +
         (cpu ? "plain read: a bare sum over as many bytes, in the same rounds: what this machine gave just then, "
                "also\nwhere the bytes lie half in one level, half in the next.\n"
              : "\n");
}

std::string cost_table(const std::vector<Result>& results) {
  TableRows table = {{"cost of N rows", "past"}};
  for (const auto& [rows, seconds] : results[0].pasts[0].seconds)
    if (rows > 1) table[0].push_back(std::to_string(rows));
  for (const Result& result : results)
    for (const Forwards& f : result.pasts) {
      Row medians = {result.name(), std::to_string(f.past)}, ends = {"", ""};
      for (const auto& [rows, seconds] : f.seconds) {
        if (rows == 1) continue;
        const Row cells = middle_and_ends(f.costs(rows), 1, 2);
        medians.push_back(cells[0]);
        ends.push_back(cells[1] + "-" + cells[2]);
      }
      table.insert(table.end(), {medians, ends});
    }
  return format_table(table, "lr" + std::string(table[0].size() - 2, 'r')) +
         "A forward of N rows over one row of the same round: median, below it lowest and highest.\n";
}

double prefill_rate(const Result& result) {
  return ratio(prefill_flops(result.size.config, result.size.prefill), median(result.prefill_seconds));
}

std::string prefill_table(const std::vector<Result>& results) {
  TableRows rows = {{"prefill", "tokens", "ms", "lowest", "highest", "tok/s", "GFLOP/s", "share of peak"}};
  for (const Result& result : results) {
    const int tokens = result.size.prefill;
    rows.push_back(together({result.name(), std::to_string(tokens)},
                            {middle_and_ends(result.prefill_seconds, 1e3, 2),
                             {thousands(ratio(tokens, median(result.prefill_seconds))),
                              decimals(prefill_rate(result) / 1e9, 1), percent(prefill_rate(result), result.peak)}}));
  }
  return format_table(rows, "lrrrrrrr");
}

OrderedJson past_json(const Forwards& f) {
  OrderedJson json = {{"past", f.past},
                      {"bytes", f.bytes},
                      {"seconds", f.one()},
                      {"bytes_per_second", f.bytes_per_second()},
                      {"limit_bytes_per_second", f.limit},
                      {"share", ratio(f.bytes_per_second(), f.limit)}};
  for (const auto& [rows, seconds] : f.seconds) {
    const std::vector<double> costs = f.costs(rows);
    json["rows"].push_back({{"rows", rows},
                            {"cost", median(costs)},
                            {"cost_lowest", lowest(costs)},
                            {"cost_highest", highest(costs)},
                            {"seconds", seconds}});
  }
  if (f.plain_reads.empty()) return json;
  json["fits"] = level_name(f.level);
  json["plain_read_share"] = median(f.shares());
  json["plain_read_bytes_per_second"] = f.plain_reads;
  return json;
}

}  // namespace

std::string forwards_text(const std::vector<Result>& results) {
  return one_row_table(results) + "\n" + cost_table(results) + "\n" + prefill_table(results);
}

OrderedJson forwards_json(const std::vector<Result>& results) {
  OrderedJson all;
  for (const Result& result : results) {
    const Config& c = result.size.config;
    OrderedJson json = {{"name", result.size.name},   {"dtype", result.dtype},
                        {"n_layer", c.n_layer},       {"n_head", c.n_head},
                        {"n_embd", c.n_embd},         {"block_size", c.block_size},
                        {"vocab_size", c.vocab_size}, {"weight_bytes", result.weight_bytes}};
    for (const Forwards& f : result.pasts) json["pasts"].push_back(past_json(f));
    json["prefill"] = {{"tokens", result.size.prefill},
                       {"flops", prefill_flops(c, result.size.prefill)},
                       {"flops_per_second", prefill_rate(result)},
                       {"share", ratio(prefill_rate(result), result.peak)},
                       {"seconds", result.prefill_seconds}};
    all.push_back(json);
  }
  return all;
}

// ---------------------------------------------------------------------------------------------------------------
// Arithmetic

// Numbers in a layer's matrices.
static double layer_numbers(const Config& c) {
  return double(c.n_embd) * (c.qkv_size() + c.heads_size() + c.hidden() + c.inner());
}

double forward_flops(const Config& c, int rows, int past) {
  const double weights = c.n_layer * layer_numbers(c) + double(c.vocab_size) * c.n_embd;
  const double keys = double(rows) * past + 2.0 * rows - 1;  // a child sees the past, its root and itself
  return 2.0 * rows * weights + 4.0 * c.n_layer * c.heads_size() * keys;
}

double prefill_flops(const Config& c, int tokens) {
  const double layers = c.n_layer - 1;  // of the last one queries, keys and values alone
  const double weights = layers * layer_numbers(c) + double(c.n_embd) * c.qkv_size();
  return tokens * 2 * weights + layers * 4 * c.heads_size() * (double(tokens) * (tokens + 1) / 2);
}

}  // namespace nanospec
