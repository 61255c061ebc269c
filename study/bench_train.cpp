// study/bench_train.cpp: training, by running train_gpt for a few iterations, each run a process of its own; and one
// update by operation, in this process. On the CPU training is a section; on a GPU it is a part of section gpu.
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "study/forwards.h"
#include "study/process.h"
#include "study/update.h"

namespace nanospec {

std::string train_text(Bench& bench, const std::string& device, double peak, const Stretch& stretch,
                       OrderedJson& json) {
  constexpr double kRunSeconds = 60;  // at most, for one process
  const std::string program = program_folder() + "/train_gpt" + (device == "cuda" ? "-cuda" : "");
  if (access(program.c_str(), X_OK) != 0) return left_out("there is no train_gpt: " + program + ": build it with make");
  if (bench.data.empty() || !std::filesystem::exists(bench.data))
    return left_out("there is no text: " + (bench.data.empty() ? "data" : printable(bench.data, 300)) +
                    ": get it with make data, or name one with --data");
  struct Training {
    std::string preset;
    int iterations;
    std::map<std::string, std::vector<double>> runs;  // by the name in train_gpt's --stats; one a run
  };
  const Scratch scratch;
  std::vector<Training> trainings = {{"small", bench.quick ? 5 : 150, {}}};
  if (!bench.quick) trainings.push_back({"medium", device == "cuda" ? 100 : 10, {}});
  const int rounds = bench.quick ? 1 : std::min(bench.repeats, 3);
  for (int round = 0; round < rounds; round++)
    for (size_t k = 0; k < trainings.size(); k++) {
      Training& t = trainings[(k + size_t(round)) % trainings.size()];
      const std::string stats = scratch.path + "/stats.json", log = scratch.path + "/log";
      const double done = stretch.at((round + double(k) / double(trainings.size())) / rounds);
      std::vector<std::string> words =
          split_at("--preset " + t.preset + " --max_iters " + std::to_string(t.iterations) + " --eval_interval " +
                       std::to_string(t.iterations + 1) + " --eval_iters 1 --threads " +
                       std::to_string(bench.options.settings.threads) + " --device " + device + " --overwrite --quiet",
                   ' ');
      words.insert(words.begin(),
                   {program, "--data", bench.data, "--out", scratch.path + "/" + t.preset, "--stats", stats});
      const int status = run_process(words, log, kRunSeconds, [&] { bench.time->show("training " + t.preset, done); });
      if (interrupted()) return "";
      if (status == kTooLong) return left_out(t.preset + " took more than " + duration(kRunSeconds));
      if (status != 0) throw std::runtime_error("train_gpt failed: " + t.preset + ": " + last_line(log));
      const Json result = parse_json(read_file(stats), stats);
      for (const char* name : {"ms_per_iter", "gflops", "peak_bytes"}) t.runs[name].push_back(result.at(name));
    }

  TableRows rows = {
      {"training, batch 12", "ms/iter", "lowest", "highest", "GFLOP/s", "share of fp32 peak", "peak memory"}};
  for (Training& t : trainings) {
    const double flops = median(t.runs["gflops"]) * 1e9;
    rows.push_back(together(
        {t.preset}, {middle_and_ends(t.runs["ms_per_iter"], 1, 2),
                     {decimals(flops * 1e-9, 0), percent(flops, peak), bytes_text(median(t.runs["peak_bytes"]))}}));
    OrderedJson one = {{"preset", t.preset}, {"iterations", t.iterations}, {"share", ratio(flops, peak)}};
    for (const auto& [name, runs] : t.runs) one[name] = runs;
    json["presets"].push_back(one);
    bench.evenness.push_back(
        {(device == "cuda" ? "GPU: training " : "training ") + t.preset, unevenness(t.runs["ms_per_iter"])});
  }
  return format_table(rows, "lrrrrrr");
}

// ---------------------------------------------------------------------------------------------------------------
// One update by operation

namespace {

constexpr int kSequences = 12;  // the presets' batch

std::string update_table(const Bench& bench, const Config& c, const UpdateTimes& times, OrderedJson& json) {
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
    const UpdateBound bound = update_bound(w, peak, reads);
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
  json["whole_seconds"] = times.whole;
  return format_table(rows, "lrrrrrlr") + "The fastest of " + count(double(times.whole.size()), "update") + ": sum " +
         decimals(sum * 1e3, 2) + " ms, " + bytes_text(bytes) +
         ". The fastest of as many whole updates, unwatched: " + decimals(whole * 1e3, 2) + " ms; the sum is " +
         percent(sum, whole) +
         " of it.\nMB: inputs, weights and outputs, each once. The limit: fp32's peak, or reading so many bytes from "
         "the\nlevel that holds all of an update; the slower of the two.\n";
}

// Prints the table of each preset.
void update_tables(Bench& bench, const Stretch& stretch, OrderedJson& json) {
  std::vector<Size> sizes = {small_size()};
  if (!bench.quick) sizes.push_back(medium_size());
  Pool pool(bench.options.settings.threads);
  for (size_t i = 0; i < sizes.size(); i++) {
    const Config& c = sizes[i].config;
    const int pairs = bench.quick ? 2 : i == 0 ? 10 * bench.repeats : bench.repeats;
    const UpdateTimes times = measure_update(c, kSequences, pairs, pool, [&](double done) {
      bench.time->show("an update of " + sizes[i].name, stretch.at((double(i) + done) / double(sizes.size())));
      return !interrupted();
    });
    if (interrupted()) return;
    if (times.whole.empty()) return bench.print("One update by operation", left_out("build/nanospec measures it"));
    OrderedJson one = {{"preset", sizes[i].name}};
    bench.print("One update of " + sizes[i].name + " by operation, " + std::to_string(kSequences) + " x " +
                    std::to_string(c.block_size) + " tokens, " + count(pool.size(), "thread"),
                update_table(bench, c, times, one));
    json["updates"].push_back(one);
    bench.evenness.push_back({"an update of " + sizes[i].name, unevenness(times.whole)});
  }
}

}  // namespace

void bench_train(Bench& bench) {
  OrderedJson json;
  const std::string text = train_text(bench, "cpu", bench.roofline.peak(), {0, 0.7}, json);
  if (interrupted()) return;
  bench.print("Training", text);
  update_tables(bench, {0.7, 0.3}, json);
  if (!interrupted()) bench.write_json("train", json);
}

}  // namespace nanospec
