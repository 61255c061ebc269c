// study/bench_peers.cpp: section peers: other engines on the same work. The script tests/reference/peers.py runs them
// and holds them against ours. Section rows: what it asks of ours, forwards of one model as llama-bench makes them.
#include <algorithm>
#include <filesystem>

#include "commands/svg.h"
#include "files/gguf_model.h"
#include "study/forwards.h"
#include "study/process.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The script

std::string peers_text(Bench& bench, std::vector<std::string> words, const Stretch& stretch, OrderedJson& json) {
  constexpr double kMostSeconds = 4 * 3600;
  const std::string folder = program_folder(), venv = folder + "/venv/bin/python", name = "/tests/reference/peers.py";
  std::string top = folder;  // the programs lie below the project's folder
  while (!std::filesystem::exists(top + name) && top.size() < folder.size() + 12) top += "/..";
  const Scratch scratch;
  const std::string log = scratch.path + "/log", result = scratch.path + "/result.json";
  words.insert(words.begin(), {std::filesystem::exists(venv) ? venv : "python3", top + name});
  words.insert(
      words.end(),
      {"--ours", folder, "--json", result, "--threads", std::to_string(bench.options.settings.threads), "--rounds",
       std::to_string(bench.quick ? 1 : bench.repeats), "--data", bench.data, "--model", bench.options.settings.model});
  if (bench.quick) words.push_back("--quick");
  const int status =
      run_process(words, log, kMostSeconds, [&] { bench.time->show("other engines: " + words[2], stretch.at(0)); });
  const bool measured = std::filesystem::exists(result);  // by Ctrl-C all that was whole by then
  if (measured) json.update(OrderedJson::parse(read_file(result)));
  if (interrupted() && !measured) return "";
  if (status == 127) return left_out("there is no Python: python3: install it");
  if (!measured) return left_out("peers.py failed: " + last_line(log));
  std::string text = read_file(log);
  while (text.size() > 1 && text.compare(text.size() - 2, 2, "\n\n") == 0) text.pop_back();
  return text;
}

namespace {

// Times as fast as llama.cpp, by file and work.
std::string llama_picture(const Bench& bench, const OrderedJson& files) {
  std::vector<IntervalBar> bars;
  for (const OrderedJson& file : files)
    for (const OrderedJson& work : file.at("work")) {
      std::vector<double> times;
      for (size_t r = 0; r < work.at("seconds").size(); r++)
        times.push_back(work.at("peer_seconds")[r].get<double>() / work.at("seconds")[r].get<double>());
      bars.push_back({file.at("type").get<std::string>() + ", " + work.at("name").get<std::string>(), spread_of(times),
                      decimals(median(times), 2), colour_at(size_t(&file - &files[0]))});
    }
  const BarAxis axis{"times as fast as llama.cpp", 1, "llama.cpp", "", "lowest to highest"};
  return interval_picture("Speed over llama.cpp's, on the same files", machine_line(bench), axis, bars);
}

}  // namespace

void bench_peers(Bench& bench) {
  OrderedJson json = OrderedJson::object();
  for (const char* peer : {"torch", "llama"}) {
    const std::string text = peers_text(bench, {peer}, {}, json);
    if (!text.empty()) bench.print(peer == std::string("torch") ? "Peers: PyTorch" : "Peers: llama.cpp", text);
    if (!json.empty()) bench.write_json("peers", json);
    if (interrupted()) break;
  }
  if (!json.contains("llama_cpp")) return;
  const OrderedJson& files = json["llama_cpp"]["files"];
  for (const OrderedJson& file : files)
    bench.evenness.push_back({file["type"].get<std::string>() + ", one row", unevenness(file["work"][0]["seconds"])});
  bench.write_svg("peers", llama_picture(bench, files));
}

// ---------------------------------------------------------------------------------------------------------------
// Rows

namespace {

// Forwards of so many rows after so many tokens; how many of them are made. llama-bench generates (one row) or reads a
// prompt (several: it computes the logits of the last row alone, and we those of all).
struct Work {
  const char* name;
  int rows, depth, times;
};
constexpr Work kWork[] = {{"one row", 1, 0, 64},
                          {"8 rows", 8, 0, 16},
                          {"16 rows", 16, 0, 16},
                          {"prefill", 512, 0, 1},
                          {"one row, deep", 1, 1900, 32}};
constexpr int kMostRows = 16, kContext = 2048;  // that the work needs

// One row goes from an empty past to as many tokens as it makes: as llama-bench's, here all at the middle. A prefill
// ends with the logits of its last token.
double our_seconds(Probe& probe, const Work& work) {
  if (work.rows > kMostRows) {
    const double before = probe.prefill_seconds(work.rows - 1);
    return before + probe.forward_seconds(1, work.rows - 1);
  }
  const int past = work.depth + (work.rows == 1 ? work.times / 2 : 0);
  probe.forward_seconds(work.rows, past);  // makes the past
  double sum = 0;
  for (int i = 0; i < work.times; i++) sum += probe.forward_seconds(work.rows, past);
  return sum / work.times;
}

std::string most_numbers(const GgufFile& file) {
  std::map<std::string, double> numbers;
  for (const GgufTensor& tensor : file.tensors) numbers[type_name(tensor.type)] += double(tensor.size());
  return std::max_element(numbers.begin(), numbers.end(), [](auto& a, auto& b) { return a.second < b.second; })->first;
}

}  // namespace

void bench_rows(Bench& bench) {
  Settings settings = bench.options.settings;
  if (!is_gguf(settings.model)) refuse("this is no GGUF file", settings.model, "name one with --model");
  const GgufFile file = read_gguf(settings.model);
  if (read_llama_header(file).block_size < kContext)
    throw std::runtime_error("it sees fewer than " + count(kContext, "token") + ": " + printable(settings.model, 300) +
                             ": --model: name another GGUF file");
  const std::string type = most_numbers(file);  // with which both compute
  settings.rows = kMostRows;
  settings.context = kContext;
  if (type[0] == 'Q') settings.cache_dtype = "bf16";
  Probe probe(settings);
  OrderedJson json = {{"file", std::filesystem::path(settings.model).filename().string()},
                      {"type", type},
                      {"weight_bytes", probe.weight_bytes()}};
  TableRows rows = {{"work", "ms"}};
  for (const Work& work : kWork) {
    const double seconds = our_seconds(probe, work);
    rows.push_back({work.name, decimals(1e3 * seconds, 2)});
    json["work"].push_back({{"name", work.name}, {"rows", work.rows}, {"depth", work.depth}, {"seconds", seconds}});
  }
  bench.print("Forwards of " + settings.model, format_table(rows, "lr"));
  bench.write_json("rows", json);
}

}  // namespace nanospec
