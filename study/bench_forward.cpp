// study/bench_forward.cpp: how near a forward comes to the machine's limits: bytes read per second, the cost of rows,
// prefill. The models have random weights, so nothing needs to be trained; or it is that of a GGUF file.

#include "commands/svg.h"
#include "files/gguf_model.h"
#include "study/forwards.h"

namespace nanospec {
namespace {

const char* const kDtypes[] = {"fp32", "bf16", "q8", "q4"};
// Else its products are of integers.
bool is_float(const Result& result) { return std::tolower(result.dtype[0]) != 'q'; }

const std::vector<int> kRows = {1, 2, 3, 4, 6, 8, 12, 16};

// ---------------------------------------------------------------------------------------------------------------
// What is measured

// Sizes and types.
using Models = std::vector<std::pair<Size, std::string>>;

// Of a file: one row after as many tokens as llama-bench has on average where it generates 64, and after 1,900.
Size size_of_file(const GgufFile& file, const std::string& path) {
  constexpr int kShortPast = 32, kLongPast = 1900, kContext = 2048, kPrefill = 512;
  const Config c = config_of(read_gguf_header(file), kContext);
  const int most = c.block_size - kRows.back() - 1;
  const std::string name = std::filesystem::path(path).filename().string();
  return {name, c, std::min(kShortPast, most), std::min(kLongPast, most), std::min(kPrefill, c.block_size - 1), path};
}

// The type that most of its numbers have.
std::string type_of_file(const GgufFile& file) {
  std::map<std::string, double> numbers;
  for (const GgufTensor& tensor : file.tensors) numbers[type_name(tensor.type)] += double(tensor.size());
  return std::max_element(numbers.begin(), numbers.end(), [](auto& a, auto& b) { return a.second < b.second; })->first;
}

Models models_of(const Bench& bench) {
  const std::string& path = bench.options.settings.model;
  if (!path.empty() && is_gguf(path)) {
    const GgufFile file = read_gguf(path);
    return {{size_of_file(file, path), type_of_file(file)}};
  }
  std::vector<Size> sizes = {small_size()};
  if (!bench.quick) sizes.insert(sizes.end(), {medium_size(), gpt2_size()});
  Models models;
  for (const Size& size : sizes)
    for (const char* dtype : kDtypes) models.push_back({size, dtype});
  return models;
}

// ---------------------------------------------------------------------------------------------------------------
// The picture

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
      const std::string past = f.past == 0 ? "empty past" : p == 0 ? "short past" : "long past";
      Series measured{past + ", measured", kColours[p], Series::Style::kLine},
          bound{past + ", least by roofline", kColours[p], Series::Style::kDashes};
      for (int rows : kRows) {
        const std::vector<double> costs = f.costs(rows);
        const double flops = is_float(result) ? forward_flops(result.size.config, rows, f.past) : 0,
                     least = bound_of(f.bytes, flops, median(f.plain_reads), bench.roofline.peak()).seconds;
        measured.points.push_back({double(rows), median(costs), lowest(costs), highest(costs)});
        bound.points.push_back({double(rows), least / f.one()});
      }
      panel.series.insert(panel.series.end(), {measured, bound});
    }
    panels.push_back(panel);
  }
  return chart_picture("What N rows cost beside one", machine_line(bench), panels, 2);
}

}  // namespace

void bench_forward(Bench& bench) {
  std::vector<Result> results;
  const Models models = models_of(bench);
  const double share = 1 / double(models.size());
  for (const auto& [size, dtype] : models) {
    results.push_back(measure_forwards(bench, size, dtype, nullptr, kRows, {double(results.size()) * share, share}));
    if (interrupted()) return;
  }
  bench.print("Forwards of one row", forwards_text(results));
  bench.write_json("forward", {{"configurations", forwards_json(results)}});
  bench.write_svg("cost", cost_picture(bench, results));
}

}  // namespace nanospec
