// study/bench_peers.cpp: section peers: nanospec beside other engines on the same work: PyTorch (bench_train.cpp), and
// llama.cpp, whose llama-bench `make peers` builds. The same GGUF files, as many threads, the same minutes: in each
// round both do all of it, and who begins takes turns.
//
// In order: arithmetic, and llama-bench's words read; the work; llama-bench, run; the rounds; tables,
// figures and a picture.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "commands/commands.h"
#include "commands/samples.h"
#include "commands/svg.h"
#include "files/gguf_model.h"
#include "study/forwards.h"
#include "study/llama_bench.h"
#include "study/process.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// llama-bench's words

std::vector<LlamaTest> parse_llama_bench(const std::string& output, const std::string& where) {
  const size_t begin = output.compare(0, 1, "[") == 0 ? 0 : output.find("\n[");
  const size_t end = output.rfind("\n]");
  if (begin == std::string::npos || end == std::string::npos || end < begin)
    throw std::runtime_error("no list of tests: " + where + ": is this llama-bench -o json?");
  std::vector<LlamaTest> tests;
  try {
    for (const Json& json : Json::parse(output.substr(begin, end + 2 - begin))) {
      LlamaTest test{json.at("n_prompt"),     json.at("n_gen"),    json.at("n_depth"),
                     json.at("build_commit"), json.at("cpu_info"), json.at("samples_ns")};
      for (double& sample : test.seconds) sample /= 1e9 * std::max(test.generated, 1);
      tests.push_back(test);
    }
  } catch (const Json::exception& error) {
    throw std::runtime_error(std::string("not what llama-bench prints: ") + where + ": " + error.what());
  }
  return tests;
}

const LlamaTest& find_test(const std::vector<LlamaTest>& tests, int prompt, int generated, int depth) {
  for (const LlamaTest& test : tests)
    if (test.prompt == prompt && test.generated == generated && test.depth == depth && !test.seconds.empty())
      return test;
  throw std::runtime_error("llama-bench did not run the test of " + std::to_string(prompt) + " and " +
                           std::to_string(generated) + " tokens at " + std::to_string(depth));
}

namespace {

using Words = std::vector<std::string>;

// ---------------------------------------------------------------------------------------------------------------
// The work

// Forwards of so many rows after so many tokens; how many of them one round makes. llama-bench generates (one row) or
// reads a prompt (several: it computes the logits of the last row alone, and we those of all).
struct Work {
  const char* name;
  int rows, depth, times;
};
enum { kOne, kEight, kSixteen, kPrefill, kDeep, kWorks };
constexpr Work kWork[kWorks] = {
    {"one row", 1, 0, 64},  {"8 rows", 8, 0, 16},           {"16 rows", 16, 0, 16},
    {"prefill", 512, 0, 1}, {"one row, deep", 1, 1900, 32},
};

constexpr int kContext = 2048;  // that the work needs

struct PeerFile {
  std::string path, type;  // type: of most of its numbers, with which both compute
  double weight_bytes = 0, flops = 0;
  std::string build, cpu;                                      // llama.cpp's
  std::vector<double> ours[kWorks] = {}, theirs[kWorks] = {};  // seconds of a forward, an entry a round

  std::vector<double> times_as_fast(int work) const {
    std::vector<double> ratios;
    for (size_t r = 0; r < ours[work].size(); r++) ratios.push_back(theirs[work][r] / ours[work][r]);
    return ratios;
  }
};
std::vector<double> costs(const std::vector<double> (&seconds)[kWorks], int work) {
  std::vector<double> ratios;
  for (size_t r = 0; r < seconds[work].size(); r++) ratios.push_back(seconds[work][r] / seconds[kOne][r]);
  return ratios;
}

std::string most_numbers(const GgufFile& file) {
  std::map<std::string, double> numbers;
  for (const GgufTensor& tensor : file.tensors) numbers[type_name(tensor.type)] += double(tensor.size());
  return std::max_element(numbers.begin(), numbers.end(), [](auto& a, auto& b) { return a.second < b.second; })->first;
}

// The GGUF files in models/ that load and see enough tokens, the largest first.
std::vector<PeerFile> peer_files() {
  std::vector<PeerFile> files;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("models", none)) {
    PeerFile file;
    file.path = entry.path().string();
    if (!is_gguf(file.path)) continue;
    try {
      const GgufFile read = read_gguf(file.path);
      if (read_llama_header(read).block_size < kContext) continue;
      file.type = most_numbers(read);
    } catch (const std::runtime_error&) { continue; }
    files.push_back(file);
  }
  std::sort(files.begin(), files.end(), [](const PeerFile& a, const PeerFile& b) {
    const auto size = [](const PeerFile& f) { return std::filesystem::file_size(f.path); };
    return size(a) != size(b) ? size(a) > size(b) : a.path < b.path;
  });
  return files;
}

// ---------------------------------------------------------------------------------------------------------------
// llama-bench

constexpr double kLlamaSeconds = 120;  // at most, for one process

std::string llama_bench() { return program_folder() + "/peers/bin/llama-bench"; }

struct LlamaFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws LlamaFailed, but not where it was interrupted.
std::vector<LlamaTest> run_llama_bench(const Bench& bench, const PeerFile& file, const Words& flags,
                                       const std::function<void()>& waiting) {
  const Scratch scratch;
  const std::string log = scratch.path + "/log";
  Words words = {llama_bench(), "-m", file.path, "-t",  std::to_string(bench.options.settings.threads),
                 "-fa",         "0",  "-o",      "json"};
  words.insert(words.end(), flags.begin(), flags.end());
  const int status = run_process(words, log, kLlamaSeconds, waiting);
  if (interrupted()) return {};
  if (status != 0)
    throw LlamaFailed("llama-bench " +
                      (status == kTooLong ? "took more than " + duration(kLlamaSeconds) : "failed: " + last_line(log)));
  return parse_llama_bench(read_file(log), "llama-bench");
}

void measure_theirs(const Bench& bench, PeerFile& file, const std::function<void()>& waiting) {
  std::vector<LlamaTest> tests;
  for (const Words& flags : {Words{"-p", "8,16", "-n", "0", "-r", "16"}, Words{"-p", "512", "-n", "64", "-r", "1"},
                             Words{"-p", "0", "-n", "32", "-d", "1900", "-r", "1"}}) {
    for (const LlamaTest& test : run_llama_bench(bench, file, flags, waiting)) tests.push_back(test);
    if (interrupted()) return;
  }
  file.build = tests.front().build;
  file.cpu = tests.front().cpu;
  for (int w = 0; w < kWorks; w++) {
    const Work& work = kWork[w];
    const std::vector<double>& seconds = work.rows > 1 ? find_test(tests, work.rows, 0, work.depth).seconds
                                                       : find_test(tests, 0, work.times, work.depth).seconds;
    file.theirs[w].push_back(std::accumulate(seconds.begin(), seconds.end(), 0.0) / double(seconds.size()));
  }
}

// ---------------------------------------------------------------------------------------------------------------
// The rounds

// One row goes from an empty past to as many tokens as it makes: as llama-bench's, here all at the middle. A prefill
// ends with the logits of its last token.
double our_seconds(Probe& probe, const Work& work) {
  if (work.rows > 16) {
    const double before = probe.prefill_seconds(work.rows - 1);
    return before + probe.forward_seconds(1, work.rows - 1);
  }
  const int past = work.depth + (work.rows == 1 ? work.times / 2 : 0);
  probe.forward_seconds(work.rows, past);  // makes the past
  double sum = 0;
  for (int i = 0; i < work.times; i++) sum += probe.forward_seconds(work.rows, past);
  return sum / work.times;
}

void measure_file(Bench& bench, PeerFile& file, const Stretch& stretch) {
  Settings settings = bench.options.settings;
  settings.model = file.path;
  settings.rows = 16;
  settings.context = kContext;
  if (file.type[0] == 'Q') settings.cache_dtype = "bf16";
  Probe probe(settings);
  file.weight_bytes = probe.weight_bytes();
  file.flops = row_flops(probe.config());
  const int rounds = bench.quick ? 1 : bench.repeats;
  for (int round = 0; round < rounds; round++) {
    const auto show = [&] { bench.time->show("llama.cpp, " + file.type, stretch.at(double(round) / rounds)); };
    for (bool ours : {round % 2 == 0, round % 2 != 0}) {
      show();
      if (!ours) measure_theirs(bench, file, show);
      else
        for (int w = 0; w < kWorks; w++) file.ours[w].push_back(our_seconds(probe, kWork[w]));
      if (interrupted()) return;
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Saying

std::string llama_table(const std::vector<PeerFile>& files) {
  TableRows rows = {
      {"file", "work", "ms", "over one row", "llama.cpp, ms", "over one row", "times as fast", "lowest", "highest"}};
  for (const PeerFile& f : files)
    for (int w = 0; w < kWorks; w++)
      rows.push_back(together(
          {w ? "" : f.type, kWork[w].name, decimals(1e3 * median(f.ours[w]), 2), decimals(median(costs(f.ours, w)), 2),
           decimals(1e3 * median(f.theirs[w]), 2), decimals(median(costs(f.theirs, w)), 2)},
          {middle_and_ends(f.times_as_fast(w), 1, 2)}));
  return format_table(rows, "llrrrrrrr") +
         "One forward of each, in the same minutes: one row after 0 to 64 tokens; 8 and 16 rows; 512 tokens; one row\n"
         "after 1,900. Of several rows llama.cpp computes the logits of the last alone, nanospec those of all, but in "
         "a\n"
         "prefill. Its cache has 16 bits; ours too with weights of 8 and 4 bits, and else 32. Its flash attention is\n"
         "off (-fa 0).\n";
}

OrderedJson file_json(const PeerFile& f) {
  OrderedJson json = {
      {"file", std::filesystem::path(f.path).filename().string()}, {"type", f.type}, {"weight_bytes", f.weight_bytes}};
  for (int w = 0; w < kWorks; w++)
    json["work"].push_back({{"name", kWork[w].name},
                            {"rows", kWork[w].rows},
                            {"depth", kWork[w].depth},
                            {"times_as_fast", median(f.times_as_fast(w))},
                            {"cost", median(costs(f.ours, w))},
                            {"peer_cost", median(costs(f.theirs, w))},
                            {"seconds", f.ours[w]},
                            {"peer_seconds", f.theirs[w]}});
  return json;
}

std::string llama_picture(const Bench& bench, const std::vector<PeerFile>& files) {
  std::vector<IntervalBar> bars;
  for (size_t i = 0; i < files.size(); i++)
    for (int w = 0; w < kWorks; w++) {
      const std::vector<double> ratios = files[i].times_as_fast(w);
      bars.push_back({files[i].type + ", " + kWork[w].name,
                      {median(ratios), lowest(ratios), highest(ratios)},
                      decimals(median(ratios), 2),
                      colour_at(i)});
    }
  BarAxis axis{"times as fast as llama.cpp"};
  axis.line = 1;
  axis.line_name = "llama.cpp";
  axis.whisker = "lowest to highest";
  return interval_picture("Speed over llama.cpp's, on the same files", machine_line(bench), axis, bars);
}

// Prints, and fills in `json`, or says why it is left out.
void against_llama(Bench& bench, const Stretch& stretch, OrderedJson& json) {
  const auto leave_out = [&](const std::string& why) { bench.print("llama.cpp", left_out(why)); };
  if (access(llama_bench().c_str(), X_OK) != 0)
    return leave_out("there is no llama.cpp: " + llama_bench() + ": build it with make peers");
  std::vector<PeerFile> files = peer_files();
  if (files.empty()) return leave_out("there is no GGUF file in models/ that loads: sh data/get_model.sh gets one");
  if (bench.quick) files = {files.back()};
  for (size_t i = 0; i < files.size(); i++) {
    const double share = stretch.share / double(files.size());
    try {
      measure_file(bench, files[i], {stretch.begin + share * double(i), share});
    } catch (const LlamaFailed& failed) { return leave_out(failed.what()); }
    if (interrupted()) return;
    bench.evenness.push_back({files[i].type + ", one row", unevenness(files[i].ours[kOne])});
  }
  bench.print("llama.cpp of " + files[0].build + ", on " + files[0].cpu, llama_table(files));
  json = {{"build", files[0].build}, {"cpu", files[0].cpu}};
  for (const PeerFile& file : files) json["files"].push_back(file_json(file));
  bench.write_svg("peers", llama_picture(bench, files));
}

}  // namespace

double peers_seconds() {
  return 250 + (access(llama_bench().c_str(), X_OK) == 0 ? 60.0 * double(peer_files().size()) : 0);
}

void bench_peers(Bench& bench) {
  OrderedJson json, llama;
  const std::string text = peers_text(bench, "cpu", {0, 0.5}, json);
  if (interrupted()) return;
  bench.print("Peers", text);
  against_llama(bench, {0.5, 0.5}, llama);
  if (!llama.is_null()) json["llama_cpp"] = llama;
  if (!json.is_null()) bench.write_json("peers", json);
}

}  // namespace nanospec
