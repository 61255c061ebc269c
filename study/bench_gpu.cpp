// study/bench_gpu.cpp: section gpu: what the GPU can do at most, how near each kernel comes to it, plain decoding
// and the cost of rows, prefill, training. What runs on the GPU is asked for through gpu.h, commands/engine.h and
// train_gpt.
#include <algorithm>

#include "commands/samples.h"
#include "commands/svg.h"
#include "study/forwards.h"
#include "study/gpu.h"

namespace nanospec {

KernelShares shares_of(const KernelTime& kernel, const GpuLimits& limits) {
  const double seconds = median(kernel.seconds), peak = median(kernel.peak == Peak::kBf16 ? limits.bf16 : limits.fp32);
  return {ratio(ratio(kernel.bytes, seconds), median(limits.read)), ratio(ratio(kernel.flops, seconds), peak)};
}

namespace {

const std::vector<int> kGpuRows = {1, 2, 4, 8, 16, 32, 64};

struct KernelsSaid {
  std::string table, svg;
  OrderedJson json;
};

struct Measured {
  GpuFacts facts;
  GpuLimits limits;
  std::vector<KernelTime> kernels;
  KernelsSaid said;  // of the kernels
  std::vector<Result> forwards;

  ForwardLimits forward_limits() const {
    return {[this](const Forwards&) { return median(limits.read); },
            [this](const Result& result) { return median(result.dtype == "bf16" ? limits.bf16 : limits.fp32); }};
  }
  std::string line(const Bench& bench) const {  // for people
    return facts.name + ", " + std::to_string(facts.multiprocessors) + " multiprocessors, compute capability " +
           facts.capability + ", " + bytes_text(facts.memory_bytes) + ", L2 " + bytes_text(facts.l2_bytes) + "; CUDA " +
           facts.runtime + ", driver for " + facts.driver + "; " + bench.machine.date;
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Tables

std::string limits_table(const GpuLimits& limits) {
  TableRows rows = {{"limit", "measured", "lowest", "highest", ""}};
  const auto row = [&](const char* what, const std::vector<double>& rates, const char* unit) {
    rows.push_back(together({what}, {middle_and_ends(rates, 1e-9, -1), {unit}}));
  };
  row("reading memory", limits.read, "GB/s");
  row("multiply-add fp32", limits.fp32, "GFLOP/s");
  row("multiply-add bf16", limits.bf16, "GFLOP/s");
  return format_table(rows, "lrrrl") + "bf16 by mma m16n8k16; a multiply-add counts two operations.\n";
}

// ---------------------------------------------------------------------------------------------------------------
// Files

OrderedJson gpu_json(const Measured& m) {
  OrderedJson json;
  const GpuFacts& f = m.facts;
  json["gpu"] = {{"name", f.name},
                 {"compute_capability", f.capability},
                 {"multiprocessors", f.multiprocessors},
                 {"memory_bytes", f.memory_bytes},
                 {"l2_bytes", f.l2_bytes},
                 {"cuda_driver", f.driver},
                 {"cuda_runtime", f.runtime}};
  const auto limit = [](const std::vector<double>& runs) {
    return OrderedJson{{"median", median(runs)}, {"runs", runs}};
  };
  json["limits"] = {{"read_bytes_per_second", limit(m.limits.read)},
                    {"fp32_flops_per_second", limit(m.limits.fp32)},
                    {"bf16_flops_per_second", limit(m.limits.bf16)}};
  if (!m.kernels.empty()) json["kernels"] = m.said.json;
  if (!m.forwards.empty()) json["configurations"] = forwards_json(m.forwards, m.forward_limits());
  return json;
}

// What is said of the kernels: their table, figures and picture.
KernelsSaid said_of(const Bench& bench, const Measured& m) {
  KernelsSaid said;
  TableRows rows = {
      {"kernel", "shape", "us", "lowest", "highest", "GB/s", "of memory", "GFLOP/s", "of compute", "limit"}};
  std::vector<IntervalBar> bars;
  for (const KernelTime& k : m.kernels) {
    const KernelShares shares = shares_of(k, m.limits);
    const double seconds = median(k.seconds);
    const bool memory = shares.memory_binds(), computes = k.flops > 0;
    const std::string peak = k.peak == Peak::kBf16 ? "bf16" : "fp32", limit = memory ? "memory" : "compute",
                      bytes = thousands(ratio(k.bytes, seconds) / 1e9),
                      flops = thousands(ratio(k.flops, seconds) / 1e9);
    rows.push_back(together({k.name, k.shape}, {middle_and_ends(k.seconds, 1e6, 1),
                                                {bytes, percent(shares.memory, 1), computes ? flops : "",
                                                 computes ? percent(shares.compute, 1) : "", limit}}));
    said.json.push_back({{"kernel", k.name},
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
  said.table = format_table(rows, "llrrrrrrrl") +
               "GB/s: of the least bytes that the kernel must move. limit: the one that takes longer. Launches follow "
               "each\nother in one CUDA graph, on operands that L2 does not hold (but the gather's: a forward has just "
               "written\nthem).\n";
  BarAxis axis{"percent of the limit that binds it", 100, "the limit"};
  axis.colours = {{"memory binds", kColours[0]}, {"computing binds", kColours[1]}};
  said.svg = interval_picture("How near each kernel comes to its limit", m.line(bench), axis, bars);
  return said;
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------
// The section. What was measured is written after each part: a run that is cut loses the rest alone.

void bench_gpu(Bench& bench) {
  if (const std::string missing = gpu_missing(); !missing.empty())
    return bench.print("GPU", "left out: " + missing + "\n");
  Measured m;
  const int runs = bench.quick ? 2 : 3 * bench.repeats;
  const auto working = [&](const Stretch& stretch) {
    return [&bench, stretch](const std::string& doing, double done) {
      bench.time->show(doing, stretch.at(done));
      return !interrupted();
    };
  };
  m.facts = gpu_facts();
  m.limits = measure_gpu_limits(runs, working({0, 0.02}));
  bench.print("GPU: " + m.line(bench), limits_table(m.limits));
  m.kernels = measure_gpu_kernels(bench.quick, runs, working({0.02, 0.1}));
  if (interrupted()) return;
  m.said = said_of(bench, m);
  bench.print("Kernels on " + m.facts.name, m.said.table);
  bench.write_svg("kernels", m.said.svg);
  bench.write_json("gpu", gpu_json(m));

  for (const char* dtype : {"fp32", "bf16"}) {
    m.forwards.push_back(measure_forwards(bench, bench.quick ? small_size() : gpt2_size(), dtype, "cuda", kGpuRows,
                                          {0.12 + 0.14 * double(m.forwards.size()), 0.14}));
    if (interrupted()) return;
    bench.write_json("gpu", gpu_json(m));
  }
  bench.print("Decoding on " + m.facts.name, forwards_text(m.forwards, m.forward_limits()));

  OrderedJson json = gpu_json(m);
  const auto add = [&](const char* name, const char* title, const std::string& text, const OrderedJson& part) {
    if (text.empty()) return;  // it was interrupted
    bench.print(title + (" on " + m.facts.name), text);
    json[name] = part;
    bench.write_json("gpu", json);
  };
  OrderedJson training, peers;
  const std::string trained = train_text(bench, "cuda", median(m.limits.fp32), {0.4, 0.2}, training);
  add("training", "Training", trained, training);
  if (interrupted()) return;
  const std::string others = peers_text(bench, {"torch", "--device", "cuda"}, {0.6, 0.4}, peers);
  add("peers", "Others", others, peers);
}

}  // namespace nanospec
