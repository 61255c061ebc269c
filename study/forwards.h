// study/forwards.h: forwards of models with random weights, measured: what one row takes, what N rows cost beside
// it, prefill. bench_forward.cpp shows those of the CPU, bench_gpu.cpp those of a GPU.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "commands/samples.h"
#include "study/bench.h"

namespace nanospec {

struct Config;  // model.h

struct Size {
  std::string name;
  int n_layer, n_head, n_embd, block_size, vocab_size;  // of a GPT
  int long_past, prefill;
};
inline Size size_of(const std::string& name, int layers, int heads, int channels, int block, int vocab, int long_past) {
  return {name, layers, heads, channels, block, vocab, long_past, std::min(512, block - 1)};
}
inline Size small_size() { return size_of("small", 4, 4, 128, 64, 65, 48); }
inline Size medium_size() { return size_of("medium", 6, 6, 384, 256, 65, 192); }
inline Size gpt2_size() {  // 124 M parameters
  return size_of("gpt2", 12, 12, 768, 1024, 50257, 900);
}

// Forwards over one past: seconds by number of rows, one entry a round.
struct Forwards {
  int past = 0;
  double bytes = 0;                 // that one row reads
  Level level = Level::kMemory;     // of the CPU's memory that holds them
  std::vector<double> plain_reads;  // bytes a second of a bare sum over as many bytes, one entry a round; CPU alone
  std::map<int, std::vector<double>> seconds;

  double one() const { return median(seconds.at(1)); }
  double bytes_per_second() const { return ratio(bytes, one()); }
  std::vector<double> shares() const {  // bytes a second of one row over those of the same round's plain read
    std::vector<double> ratios;
    for (size_t r = 0; r < plain_reads.size(); r++) ratios.push_back(bytes / seconds.at(1)[r] / plain_reads[r]);
    return ratios;
  }
  std::vector<double> costs(int rows) const {  // times of N rows over that of one row in the same round
    std::vector<double> ratios;
    for (size_t r = 0; r < seconds.at(rows).size(); r++) ratios.push_back(seconds.at(rows)[r] / seconds.at(1)[r]);
    return ratios;
  }
};

struct Result {
  Size size;
  std::string dtype;
  double weight_bytes = 0;
  std::vector<Forwards> pasts;  // empty, and long
  std::vector<double> prefill_seconds;
  std::string name() const { return size.name + " " + dtype; }
};

// In each round all of `rows`, which begin with 1, in an order that rotates. The work is the section's from `done` to
// `done + share`. An interrupted measurement has fewer rounds, or lacks the prefill.
Result measure_forwards(Bench& bench, const Size& size, const std::string& dtype, const std::string& device,
                        const std::vector<int>& rows, double done, double share);

std::string cost_table(const std::vector<Result>& results, const std::vector<int>& rows);

// Cells that begin a row: what and over how many tokens; milliseconds, lowest and highest.
Row timed_cells(const std::string& what, int tokens, const std::vector<double>& seconds, int places);

// peak: the flop/s that a result is held against, and its name; places: of its GFLOP/s, as in middle_and_ends.
std::string prefill_table(const std::vector<Result>& results, const std::string& peak_name,
                          const std::function<double(const Result&)>& peak, int places);

// One past of a configuration: `limit` is the bandwidth that one row is held against.
OrderedJson forwards_json(const Forwards& forwards, double limit);
// A configuration without its pasts, and its prefill: `peak` is the flop/s that it is held against.
OrderedJson configuration_json(const Result& result);
OrderedJson prefill_json(const Result& result, double peak);

// ---------------------------------------------------------------------------------------------------------------
// Arithmetic of a GPT; a multiply-add counts two

double forward_flops(const Size& size, int rows, int past);  // of the rows of one tree: all but row operations
double prefill_flops(const Size& size, int tokens);          // without the head and what only the head needs
double row_flops(const Config& config);  // of the products of one row with weights, head too; of any architecture

// The least seconds that a forward can take: it must read its bytes, and it must multiply.
double least_seconds(double bytes, double flops, double bandwidth, double peak);

}  // namespace nanospec
