// study/bench_train.cpp: training, by running train_gpt for a few iterations; one update by operation, in this process;
// and PyTorch on the same work, by running the scripts of tests/reference. Each run of a program is a process of its
// own. On the CPU training is a section, and PyTorch a part of section peers; on a GPU they are parts of section gpu.
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "commands/samples.h"
#include "files/words.h"
#include "study/forwards.h"
#include "study/process.h"
#include "study/update.h"

namespace nanospec {
namespace {

std::string median_and_ends(const std::vector<double>& values, int places) {
  return decimals(median(values), places) + " (" + decimals(lowest(values), places) + " to " +
         decimals(highest(values), places) + ")";
}

// ---------------------------------------------------------------------------------------------------------------
// Training

struct Training {
  std::string preset;
  int iterations;
  std::vector<double> ms, gflops, peak_bytes;  // one a run
};

constexpr double kRunSeconds = 60, kScriptSeconds = 130;  // at most, for one process

const char* suffix(const std::string& device) { return device == "cuda" ? "-cuda" : ""; }  // of our programs

}  // namespace

std::string train_text(Bench& bench, const std::string& device, double peak, const Stretch& stretch,
                       OrderedJson& json) {
  const std::string program = program_folder() + "/train_gpt" + suffix(device);
  if (access(program.c_str(), X_OK) != 0) return left_out("there is no train_gpt: " + program + ": build it with make");
  if (bench.data.empty() || !std::filesystem::exists(bench.data))
    return left_out("there is no text: " + (bench.data.empty() ? "data" : printable(bench.data, 300)) +
                    ": get it with make data, or name one with --data");

  const Scratch scratch;
  std::vector<Training> trainings = {{"small", bench.quick ? 5 : 150, {}, {}, {}}};
  if (!bench.quick) trainings.push_back({"medium", device == "cuda" ? 100 : 10, {}, {}, {}});
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
      t.ms.push_back(result.at("ms_per_iter"));
      t.gflops.push_back(result.at("gflops"));
      t.peak_bytes.push_back(result.at("peak_bytes"));
    }

  TableRows rows = {{"training, batch 12", "ms/iter", "GFLOP/s", "share of fp32 peak", "peak memory"}};
  for (const Training& t : trainings) {
    rows.push_back({t.preset, median_and_ends(t.ms, 2), decimals(median(t.gflops), 0),
                    percent(median(t.gflops) * 1e9, peak), bytes_text(median(t.peak_bytes))});
    json["presets"].push_back({{"preset", t.preset},
                               {"iterations", t.iterations},
                               {"ms_per_iter", t.ms},
                               {"gflops", t.gflops},
                               {"share", ratio(median(t.gflops) * 1e9, peak)},
                               {"peak_bytes", t.peak_bytes}});
    bench.evenness.push_back({(device == "cuda" ? "GPU: training " : "training ") + t.preset, unevenness(t.ms)});
  }
  return format_table(rows, "lrrrr");
}

// ---------------------------------------------------------------------------------------------------------------
// One update by operation

namespace {

constexpr int kSequences = 12;  // the presets' batch

Config config_of(const Size& size) {
  Config c;
  c.n_layer = size.n_layer;
  c.n_head = c.n_kv_head = size.n_head;
  c.n_embd = size.n_embd;
  c.block_size = size.block_size;
  c.vocab_size = size.vocab_size;
  return c;
}

std::string update_table(const Bench& bench, const Config& c, const UpdateTimes& times, OrderedJson& json) {
  const int threads = bench.options.settings.threads;
  const Level level = level_of(update_bytes(c, kSequences), threads, bench.machine.caches);
  const double peak = bench.roofline.peak(), reads = bench.roofline.bandwidth(level);
  const size_t fastest = times.fastest();
  const double sum = times.sum(fastest), whole = lowest(times.whole);
  const std::vector<UpdateWork> work = update_work(c, kSequences);
  TableRows rows = {{"operation", "ms", "share", "GFLOP/s", "GB/s", "of the limit", "", "MB"}};
  double bytes = 0;
  for (int i = 0; i < kUpdateOperations; i++) {
    const UpdateWork& w = work[size_t(i)];
    const double seconds = times.seconds[size_t(i)][fastest];
    const UpdateBound bound = update_bound(w, peak, reads);
    const bool known = seconds > 0 && w.bytes > 0;
    rows.push_back({w.name, decimals(seconds * 1e3, 2), percent(seconds, sum),
                    w.flops > 0 && known ? decimals(w.flops / seconds * 1e-9, 0) : "",
                    known ? decimals(w.bytes / seconds * 1e-9, 1) : "", known ? percent(bound.seconds, seconds) : "",
                    known ? (bound.computes ? "fp32" : level_name(level)) : "", decimals(w.bytes * 1e-6, 1)});
    bytes += w.bytes;
    json["operations"].push_back({{"operation", w.name},
                                  {"flops", w.flops},
                                  {"bytes", w.bytes},
                                  {"share_of_limit", ratio(bound.seconds, seconds)},
                                  {"limit", bound.computes ? "fp32" : level_name(level)},
                                  {"seconds", times.seconds[size_t(i)]}});
  }
  json["bytes"] = bytes;
  json["sum_seconds"] = sum;
  json["whole_seconds"] = times.whole;
  return format_table(rows, "lrrrrrlr") + "The fastest of " + count(double(times.whole.size()), "update") + ": sum " +
         decimals(sum * 1e3, 2) + " ms, " + bytes_text(bytes) +
         ". The fastest of as many whole updates, unwatched: " + decimals(whole * 1e3, 2) + " ms; the sum is " +
         percent(sum, whole) + " of it.\n";
}

// Prints the table of each preset.
void update_tables(Bench& bench, const Stretch& stretch, OrderedJson& json) {
  std::vector<Size> sizes = {small_size()};
  if (!bench.quick) sizes.push_back(medium_size());
  Pool pool(bench.options.settings.threads);
  for (size_t i = 0; i < sizes.size(); i++) {
    const Config c = config_of(sizes[i]);
    const int pairs = bench.quick ? 2 : i == 0 ? 10 * bench.repeats : bench.repeats;
    const UpdateTimes times = measure_update(c, kSequences, pairs, pool, [&](double done) {
      bench.time->show("an update of " + sizes[i].name, stretch.at((double(i) + done) / double(sizes.size())));
      return !interrupted();
    });
    if (interrupted()) return;
    if (times.whole.empty()) return bench.print("One update by operation", left_out("build/nanospec measures it"));
    OrderedJson one = {{"preset", sizes[i].name}};
    const std::string table = update_table(bench, c, times, one);
    json["updates"].push_back(one);
    bench.print(
        "One update of " + sizes[i].name + " by operation, " + std::to_string(kSequences) + " x " +
            std::to_string(c.block_size) + " tokens, " + count(pool.size(), "thread"),
        table + (i + 1 < sizes.size() ? ""
                                      : "MB: inputs, weights and outputs, each once. The limit: fp32's peak, or "
                                        "reading so many bytes from the\nlevel that holds all of an update; the "
                                        "slower of the two.\n"));
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

// ---------------------------------------------------------------------------------------------------------------
// PyTorch

namespace {

std::string training_table(const Json& json) {
  TableRows rows = {{"training", "", "ms/iter", "ours over it", "lowest", "highest", "peak memory"}};
  for (const Json& preset : json.at("presets")) {
    const std::string name = preset.at("preset");
    const Json& ours = preset.at("ways").back();  // nanospec comes last
    for (const Json& way : preset.at("ways")) {
      const std::vector<double> ms = way.at("ms");
      rows.push_back(together({name, way.at("name"), decimals(median(ms), 2)},
                              {&way == &ours ? Row(3) : middle_and_ends(way.at("ours_over_it"), 1, 2),
                               {way.contains("peak_bytes") ? bytes_text(way.at("peak_bytes")) : ""}}));
    }
  }
  return format_table(rows, "llrrrrr");
}

std::string decoding_table(const Json& json) {
  TableRows rows = {{"plain decoding", "tokens", "", "how", "tok/s", "ours over it", "lowest", "highest"}};
  for (const Json& run : json.at("runs"))
    for (const Json& way : run.at("ways")) {
      Row row = {run.at("model"), std::to_string(run.at("tokens").get<int>()), way.at("name"), way.at("how"),
                 thousands(median(way.at("tokens_per_second")))};
      if (way.contains("ours_over_it"))
        for (const std::string& cell : middle_and_ends(way.at("ours_over_it"), 1, 2)) row.push_back(cell);
      rows.push_back(row);
    }
  return format_table(rows, "lrllrrrr");
}

std::string forward_table(const Json& json) {
  std::vector<std::string> head = {"PyTorch, 124 M", "past", "ms, one row", "GB/s"};
  for (const Json& rows : json.at("rows"))
    if (rows.get<int>() > 1) head.push_back("cost of " + std::to_string(rows.get<int>()));
  TableRows rows = {head};
  for (const Json& run : json.at("runs")) {
    const std::vector<double> one = run.at("seconds").front();
    Row row = {run.at("dtype"), std::to_string(run.at("past").get<int>()),
               median_and_ends({median(one) * 1e3, lowest(one) * 1e3, highest(one) * 1e3}, 2),
               decimals(run.at("bytes").get<double>() / median(one) / 1e9, 1)};
    for (const Json& seconds : run.at("seconds")) {
      if (seconds == run.at("seconds").front()) continue;
      std::vector<double> costs;
      for (size_t r = 0; r < one.size(); r++) costs.push_back(seconds[r].get<double>() / one[r]);
      row.push_back(decimals(median(costs), 2));
    }
    rows.push_back(row);
  }
  return format_table(rows, "lr" + std::string(head.size() - 2, 'r'));
}

struct Peer {
  std::string name, script;
  std::vector<std::string> flags;
  std::string (*table)(const Json&);
};

std::vector<Peer> peers_of(const Bench& bench, const std::string& device) {
  const std::string rounds = std::to_string(bench.quick ? 1 : 2), folder = program_folder(),
                    threads = std::to_string(bench.options.settings.threads);
  std::vector<Peer> peers;
  if (device == "cpu")
    peers.push_back(
        {"forward", "forward_speed.py", {"--threads", threads, "--rounds", bench.quick ? "2" : "7"}, forward_table});
  const auto train = [&](const char* preset, int iterations) {
    peers.push_back(
        {std::string("train ") + preset,
         "train_speed.py",
         {"--ours", folder + "/train_gpt" + suffix(device), "--device", device, "--data", bench.data, "--threads",
          threads, "--rounds", rounds, "--presets", preset, "--iters", std::to_string(iterations)},
         training_table});
  };
  if (bench.quick) {
    train("small", 3);
    peers.back().flags.push_back("--no-compile");
    return peers;
  }
  train("small", device == "cpu" ? 60 : 200);
  train("medium", device == "cpu" ? 4 : 100);
  const std::string model = bench.options.settings.model;
  if (device == "cpu" && !model.empty() && std::filesystem::exists(model + "/model.safetensors"))
    peers.push_back({"decode",
                     "decode_speed.py",
                     {model, "--ours", folder + "/nanospec", "--threads", threads, "--rounds", rounds, "--repeats", "3",
                      "--tokens", "0"},
                     decoding_table});
  return peers;
}

}  // namespace

std::string peers_text(Bench& bench, const std::string& device, const Stretch& stretch, OrderedJson& json) {
  const std::string folder = program_folder(), venv = folder + "/venv/bin/python";
  const std::string python = access(venv.c_str(), X_OK) == 0 ? venv : "python3";  // what this machine has
  const Scratch scratch;
  const std::string log = scratch.path + "/log", result = scratch.path + "/result.json";
  const bool cuda = device == "cuda";
  if (run_process({python, "-c", cuda ? "import torch; torch.zeros(1).cuda()" : "import torch"}, log, kScriptSeconds,
                  [&] { bench.time->show("looking for PyTorch", stretch.at(0)); }) != 0)
    return left_out(std::string("there is no PyTorch") + (cuda ? " that finds the GPU: " : ": ") + python +
                    ": python3 -m venv build/venv && build/venv/bin/pip install torch numpy transformers");
  const std::vector<Peer> peers = peers_of(bench, device);
  std::string tables;
  for (size_t i = 0; i < peers.size(); i++) {
    std::vector<std::string> words = {python, folder + "/../tests/reference/" + peers[i].script, "--json", result};
    words.insert(words.end(), peers[i].flags.begin(), peers[i].flags.end());
    const int status = run_process(words, log, kScriptSeconds, [&] {
      bench.time->show("PyTorch, " + peers[i].name, stretch.at(double(i) / double(peers.size())));
    });
    if (interrupted()) return "";
    if (status != 0) {
      tables += left_out(peers[i].script + (status == kTooLong ? " took more than " + duration(kScriptSeconds)
                                                               : " failed: " + last_line(log))) +
                "\n";
      continue;
    }
    const Json measured = parse_json(read_file(result), result);
    tables += (tables.empty() ? "PyTorch " + measured.at("torch").get<std::string>() + "\n\n" : "") +
              peers[i].table(measured) + "\n";
    json[peers[i].name] = measured;
  }
  tables.pop_back();
  return tables;
}

}  // namespace nanospec
