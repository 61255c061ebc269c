// study/bench_train.cpp: training: what an update takes, and each operation of it. On a GPU, where the whole alone is
// measured, it is a part of section gpu.

#include "study/forwards.h"
#include "study/update.h"

namespace nanospec {
namespace {

constexpr int kSequences = 12;  // the presets' batch

std::string operations_table(const Bench& bench, const Config& c, const UpdateTimes& times, OrderedJson& json) {
  const Level level = level_of(update_bytes(c, kSequences), bench.options.settings.threads, bench.machine.caches);
  const double peak = bench.roofline.peak(), reads = bench.roofline.bandwidth(level);
  const size_t fastest = times.fastest();
  const double sum = times.sum(fastest), whole = lowest(times.whole);
  const std::vector<UpdateWork> work = update_work(c, kSequences);
  TableRows rows = {{"operation", "ms", "share", "GFLOP/s", "GB/s", "of the limit", "", "MB"}};
  double bytes = 0;
  for (size_t i = 0; i < work.size(); i++) {
    const UpdateWork& w = work[i];
    const double seconds = times.seconds[i][fastest];
    const Bound bound = bound_of(w.bytes, w.flops, reads, peak);
    const std::string limit = bound.computes ? "fp32" : level_name(level);
    const bool known = seconds > 0 && w.bytes > 0;
    rows.push_back({w.name, decimals(seconds * 1e3, 2), percent(seconds, sum),
                    w.flops > 0 && known ? decimals(w.flops / seconds * 1e-9, 0) : "",
                    known ? decimals(w.bytes / seconds * 1e-9, 1) : "", known ? percent(bound.seconds, seconds) : "",
                    known ? limit : "", decimals(w.bytes * 1e-6, 1)});
    bytes += w.bytes;
    json["operations"].push_back({{"operation", w.name},
                                  {"flops", w.flops},
                                  {"bytes", w.bytes},
                                  {"share_of_limit", ratio(bound.seconds, seconds)},
                                  {"limit", limit},
                                  {"seconds", times.seconds[i]}});
  }
  json["bytes"] = bytes;
  json["sum_seconds"] = sum;
  return format_table(rows, "lrrrrrlr") + "The fastest of " + count(times.whole.size(), "update") + ": sum " +
         decimals(sum * 1e3, 2) + " ms, " + bytes_text(bytes) +
         ". The fastest of as many whole updates, unwatched: " + decimals(whole * 1e3, 2) + " ms; the sum is " +
         percent(sum, whole) +
         " of it.\nMB: inputs, weights and outputs, each once. The limit: fp32's peak, or reading so many bytes from "
         "the\nlevel that holds all of an update; the slower of the two.\n";
}

}  // namespace

std::string updates_text(Bench& bench, bool cuda, double peak, const Stretch& stretch, OrderedJson& json) {
  std::vector<Size> sizes = {small_size()};
  if (!bench.quick) sizes.push_back(medium_size());
  const int threads = cuda ? 0 : bench.options.settings.threads;
  TableRows rows = {{"training, batch 12", "ms/iter", "lowest", "highest", "GFLOP/s", "share of fp32 peak"}};
  for (size_t i = 0; i < sizes.size(); i++) {
    const std::string& name = sizes[i].name;
    const Config& c = sizes[i].config;
    const int pairs = bench.quick ? 2 : (i == 0 || cuda ? 10 : 2) * bench.repeats;
    const UpdateTimes times = measure_update(c, kSequences, pairs, threads, [&](double done) {
      return bench.show("an update of " + name, stretch.at((double(i) + done) / double(sizes.size())));
    });
    if (interrupted()) return "";
    double flops = 0;
    for (const UpdateWork& work : update_work(c, kSequences)) flops += work.flops;
    const double rate = ratio(flops, median(times.whole));
    rows.push_back(
        together({name}, {middle_and_ends(times.whole, 1e3, 2), {decimals(rate * 1e-9, 0), percent(rate, peak)}}));
    OrderedJson one = {
        {"preset", name}, {"flops", flops}, {"share", ratio(rate, peak)}, {"whole_seconds", times.whole}};
    if (!times.seconds.empty())
      bench.print(filled("One update of {} by operation, {} x {} tokens, {}", name, kSequences, c.block_size,
                         count(threads, "thread")),
                  operations_table(bench, c, times, one));
    json["updates"].push_back(one);
    bench.evenness.push_back({(cuda ? "GPU: an update of " : "an update of ") + name, unevenness(times.whole)});
  }
  return format_table(rows, "lrrrrr");
}

void bench_train(Bench& bench) {
  OrderedJson json;
  const std::string text = updates_text(bench, false, bench.roofline.peak(), {}, json);
  if (interrupted()) return;
  bench.print("Training", text);
  bench.write_json("train", json);
}

}  // namespace nanospec
