// study/bench_forward.cpp: how near a forward comes to the machine's limits: bytes read per second, the cost of
// rows, prefill. Models of random weights: nothing needs to be trained.

#include "commands/svg.h"
#include "study/forwards.h"

namespace nanospec {
namespace {

const char* const kDtypes[] = {"fp32", "bf16", "q8", "q4"};
bool is_float(const Result& result) { return result.dtype[0] != 'q'; }  // else its products are of integers

const std::vector<int> kRows = {1, 2, 3, 4, 6, 8, 12, 16};

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
  const std::vector<Size> sizes =
      bench.quick ? std::vector<Size>{small_size()} : std::vector<Size>{small_size(), medium_size(), gpt2_size()};
  const double share = 1 / double(std::size(kDtypes) * sizes.size());
  for (const Size& size : sizes)
    for (const char* dtype : kDtypes) {
      results.push_back(measure_forwards(bench, size, dtype, bench.options.settings.device, kRows,
                                         {double(results.size()) * share, share}));
      if (interrupted()) return;
    }
  const ForwardLimits limits = {[&](const Forwards& f) { return bench.roofline.bandwidth(f.level); },
                                [&](const Result&) { return bench.roofline.peak(); }};

  bench.print("Forwards of one row", forwards_text(results, limits));
  bench.write_json("forward", {{"configurations", forwards_json(results, limits)}});
  bench.write_svg("cost", cost_picture(bench, results));
}

}  // namespace nanospec
