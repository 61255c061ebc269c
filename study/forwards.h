// study/forwards.h: forwards of models with random weights, or of a file, measured: what one row takes, what N rows
// cost beside it, prefill. bench_forward.cpp shows those of the CPU, bench_gpu.cpp those of a GPU.
#pragma once

#include "model.h"
#include "study/bench.h"

namespace nanospec {

struct Size {
  std::string name;
  Config config;
  int short_past, long_past, prefill;
  std::string file = "";  // whose weights these are; else they are random
};
inline Size size_of(const std::string& name, int layers, int heads, int channels, int block, int vocab, int long_past) {
  return {name, {layers, heads, heads, channels, block, vocab, false}, 0, long_past, std::min(512, block - 1)};
}
inline Size small_size() { return size_of("small", 4, 4, 128, 64, 65, 48); }
inline Size medium_size() { return size_of("medium", 6, 6, 384, 256, 65, 192); }
inline Size gpt2_size() { return size_of("gpt2", 12, 12, 768, 1024, 50257, 900); }  // 124 M parameters

// Forwards over one past: seconds by number of rows, one entry a round.
struct Forwards {
  int past = 0;
  double bytes = 0;                 // that one row reads
  double limit = 0;                 // bytes that it may read a second: the bandwidth of the memory that holds them
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
  // Times of N rows over that of one row in the same round.
  std::vector<double> costs(int rows) const { return quotients(seconds.at(rows), seconds.at(1)); }
};

struct Result {
  Size size;
  std::string dtype;
  double weight_bytes = 0, peak = 0;  // peak: operations a second
  std::vector<Forwards> pasts;        // the short one, and the long one
  std::vector<double> prefill_seconds;
  std::string name() const { return size.name + " " + dtype; }
};

// On the CPU, or on the GPU that has these limits. In each round all of `rows`, which begin with 1, in an order that
// rotates. The work is the section's of `stretch`. An interrupted measurement has fewer rounds, or lacks the prefill.
Result measure_forwards(Bench& bench, const Size& size, const std::string& dtype, const GpuLimits* gpu,
                        const std::vector<int>& rows, const Stretch& stretch);

// Tables: one row; the cost of N rows; prefill.
std::string forwards_text(const std::vector<Result>& results);
OrderedJson forwards_json(const std::vector<Result>& results);  // one entry a result

// ---------------------------------------------------------------------------------------------------------------
// Arithmetic of a model; a multiply-add counts two

double forward_flops(const Config& c, int rows, int past);  // of the rows of one tree: all but row operations
double prefill_flops(const Config& c, int tokens);          // without the head and what only the head needs

}  // namespace nanospec
