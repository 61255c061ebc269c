// study/gpu.h: what `bench` asks of a GPU: what it is, what it can do at most, how long each kernel takes.
//
// As in commands/engine.h the answer is compiled for each machine (study/measured.cu), and no header of CUDA is seen
// here. Where the program has no GPU, gpu_missing() says why, and nothing else may be called.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace nanospec {

// "" where there is a GPU to run on; else what is missing and what to do about it.
std::string gpu_missing();

struct GpuFacts {
  std::string name, capability;  // the driver's name for it; "9.0"
  int multiprocessors = 0;
  double memory_bytes = 0, l2_bytes = 0;
  std::string driver, runtime;  // the versions of CUDA that they know: "13.0"
};
GpuFacts gpu_facts();  // throws std::runtime_error

// What kernels do before the one before has ended, from here on: the words of --early.
void gpu_early(const std::string& word);

// Bytes, or floating-point operations (a multiply-add is two), in a second: one entry a run.
struct GpuLimits {
  std::vector<double> read, fp32, bf16;
};
enum class Peak { kFp32, kBf16 };  // which of the two a kernel's operations are held against

// Called before each piece of work with its name and the share that is done; when it returns false, the measurement
// ends with what it has.
using GpuWorking = std::function<bool(const std::string& doing, double done)>;

GpuLimits measure_gpu_limits(int runs, const GpuWorking& working);

// One kernel at one shape: the least bytes that it must move through memory, the operations that its result is made of,
// and the time of one launch, where launches follow each other in a CUDA graph and find their operands in no cache.
struct KernelTime {
  std::string name, shape;
  double bytes = 0, flops = 0;
  Peak peak = Peak::kFp32;
  std::vector<double> seconds;  // one entry a run
};

// At GPT-2's shapes; `quick`: at small ones. Throws std::runtime_error, also where the GPU's memory is too small.
std::vector<KernelTime> measure_gpu_kernels(bool quick, int runs, const GpuWorking& working);

}  // namespace nanospec
