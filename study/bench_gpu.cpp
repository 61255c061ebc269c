// study/bench_gpu.cpp: section gpu: what the GPU can do at most, how near each kernel comes to it, plain decoding
// and the cost of rows, prefill, training. What runs on the GPU is asked for through gpu.h, commands/engine.h and
// update.h.
#include "commands/svg.h"
#include "study/forwards.h"

namespace nanospec {

KernelShares shares_of(const KernelTime& kernel, const GpuLimits& limits) {
  const double seconds = median(kernel.seconds), peak = median(kernel.peak == Peak::kBf16 ? limits.bf16 : limits.fp32);
  return {ratio(ratio(kernel.bytes, seconds), median(limits.read)), ratio(ratio(kernel.flops, seconds), peak)};
}

namespace {

const std::vector<int> kGpuRows = {1, 2, 4, 8, 16, 32, 64};

// ---------------------------------------------------------------------------------------------------------------
// What each part says: its table and picture; its figures go to `json`

std::string facts_line(const GpuFacts& f, const std::string& date, OrderedJson& json) {
  json["gpu"] = {{"name", f.name},
                 {"compute_capability", f.capability},
                 {"multiprocessors", f.multiprocessors},
                 {"memory_bytes", f.memory_bytes},
                 {"l2_bytes", f.l2_bytes},
                 {"cuda_driver", f.driver},
                 {"cuda_runtime", f.runtime}};
  return f.name + ", " + std::to_string(f.multiprocessors) + " multiprocessors, compute capability " + f.capability +
         ", " + bytes_text(f.memory_bytes) + ", L2 " + bytes_text(f.l2_bytes) + "; CUDA " + f.runtime +
         ", driver for " + f.driver + "; " + date;
}

std::string limits_table(const GpuLimits& limits, OrderedJson& json) {
  TableRows rows = {{"limit", "measured", "lowest", "highest", ""}};
  const auto row = [&](const char* what, const char* name, const std::vector<double>& rates, const char* unit) {
    rows.push_back(together({what}, {middle_and_ends(rates, 1e-9, -1), {unit}}));
    json["limits"][name] = {{"median", median(rates)}, {"runs", rates}};
  };
  row("reading memory", "read_bytes_per_second", limits.read, "GB/s");
  row("multiply-add fp32", "fp32_flops_per_second", limits.fp32, "GFLOP/s");
  row("multiply-add bf16", "bf16_flops_per_second", limits.bf16, "GFLOP/s");
  return format_table(rows, "lrrrl") + "bf16 by mma m16n8k16; a multiply-add counts two operations.\n";
}

// line: of the GPU, below the picture's title.
std::string kernels_table(const std::vector<KernelTime>& kernels, const GpuLimits& limits, const std::string& line,
                          OrderedJson& json, std::string& svg) {
  TableRows rows = {
      {"kernel", "shape", "us", "lowest", "highest", "GB/s", "of memory", "GFLOP/s", "of compute", "limit"}};
  std::vector<IntervalBar> bars;
  for (const KernelTime& k : kernels) {
    const KernelShares shares = shares_of(k, limits);
    const double seconds = median(k.seconds);
    const bool memory = shares.memory_binds(), computes = k.flops > 0;
    const std::string peak = k.peak == Peak::kBf16 ? "bf16" : "fp32", limit = memory ? "memory" : "compute",
                      bytes = thousands(ratio(k.bytes, seconds) / 1e9),
                      flops = thousands(ratio(k.flops, seconds) / 1e9);
    rows.push_back(together({k.name, k.shape}, {middle_and_ends(k.seconds, 1e6, 1),
                                                {bytes, percent(shares.memory, 1), computes ? flops : "",
                                                 computes ? percent(shares.compute, 1) : "", limit}}));
    json["kernels"].push_back({{"kernel", k.name},
                               {"shape", k.shape},
                               {"bytes", k.bytes},
                               {"flops", k.flops},
                               {"peak", peak},
                               {"share_of_memory", shares.memory},
                               {"share_of_compute", shares.compute},
                               {"limit", limit},
                               {"seconds", k.seconds}});
    bars.push_back({k.name + ", " + k.shape,
                    {100 * shares.of_limit()},
                    memory ? bytes + " GB/s" : flops + " GFLOP/s in " + peak,
                    kColours[memory ? 0 : 1]});
  }
  BarAxis axis{"percent of the limit that binds it", 100, "the limit"};
  axis.colours = {{"memory binds", kColours[0]}, {"computing binds", kColours[1]}};
  svg = interval_picture("How near each kernel comes to its limit", line, axis, bars);
  return format_table(rows, "llrrrrrrrl") +
         "GB/s: of the least bytes that the kernel must move. limit: the one that takes longer. Launches follow "
         "each\nother in one CUDA graph, on operands that L2 does not hold (but the gather's: a forward has just "
         "written\nthem).\n";
}

// One row, in bf16, with and without what kernels do early (--early).
std::string early_table(Bench& bench, Size size, const GpuLimits& limits, OrderedJson& json) {
  TableRows rows = {{"--early", "past", "us of one row", "lowest", "highest"}};
  for (const char* word : {"on", "launches", "off"}) {
    gpu_early(word);
    size.name = std::string("--early ") + word;
    for (const Forwards& f : measure_forwards(bench, size, "bf16", &limits, {1}, {0.7, 0.02}).pasts) {
      rows.push_back(together({word, std::to_string(f.past)}, {middle_and_ends(f.seconds.at(1), 1e6, 1)}));
      json["early"].push_back({{"early", word}, {"past", f.past}, {"seconds", f.seconds.at(1)}});
    }
  }
  gpu_early("on");
  return format_table(rows, "lrrrr") +
         "on: kernels begin before the one before has ended, and ask for their weights in one piece. launches: they\n"
         "only begin. off: neither.\n";
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------
// The section. What was measured is written after each part: a run that is cut loses the rest alone.

void bench_gpu(Bench& bench) {
  if (const std::string missing = gpu_missing(); !missing.empty()) return bench.print("GPU", left_out(missing));
  const int runs = bench.quick ? 2 : 3 * bench.repeats;
  const auto working = [&](const Stretch& stretch) {
    return [&bench, stretch](const std::string& doing, double done) { return bench.show(doing, stretch.at(done)); };
  };
  OrderedJson json;
  const GpuFacts facts = gpu_facts();
  const std::string line = facts_line(facts, bench.machine.date, json), on_it = " on " + facts.name;
  const GpuLimits limits = measure_gpu_limits(runs, working({0, 0.02}));
  bench.print("GPU: " + line, limits_table(limits, json));
  const std::vector<KernelTime> kernels = measure_gpu_kernels(bench.quick, runs, working({0.02, 0.2}));
  if (interrupted()) return;
  std::string svg;
  bench.print("Kernels" + on_it, kernels_table(kernels, limits, line, json, svg));
  bench.write_svg("kernels", svg);
  bench.write_json("gpu", json);

  const Size size = bench.quick ? small_size() : gpt2_size();
  std::vector<Result> results;
  for (const char* dtype : {"fp32", "bf16"}) {
    results.push_back(
        measure_forwards(bench, size, dtype, &limits, kGpuRows, {0.22 + 0.25 * double(results.size()), 0.25}));
    if (interrupted()) return;
    json["configurations"] = forwards_json(results);
    bench.write_json("gpu", json);
  }
  bench.print("Decoding" + on_it, forwards_text(results));
  bench.print("Early" + on_it, early_table(bench, size, limits, json));
  if (interrupted()) return;

  const std::string text = updates_text(bench, true, median(limits.fp32), {0.72, 0.28}, json["training"]);
  if (interrupted()) return;
  bench.print("Training" + on_it, text);
  bench.write_json("gpu", json);
}

}  // namespace nanospec
