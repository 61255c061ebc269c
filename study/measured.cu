// study/measured.cu: what `bench` measures beside the engine: a GPU (study/gpu.h), and an update of training on the CPU
// (study/update.h). It is compiled once for each machine, as nanospec.cu is, and no header of CUDA is seen in the files
// that ask.
#include "study/gpu.h"
#include "study/timed_update.h"
#ifdef WITH_CUDA
#include "study/measure.cuh"
#endif

namespace nanospec {

std::string gpu_missing() { return cuda_available() ? "" : cuda_problem() + ": " + kCudaAdvice; }
void gpu_early(const std::string& word) { set_early(word); }
#ifdef WITH_CUDA
GpuFacts gpu_facts() { return facts_of_gpu(); }
GpuLimits measure_gpu_limits(int runs, const GpuWorking& working) { return limits_of_gpu({}, runs, working); }
std::vector<KernelTime> measure_gpu_kernels(bool quick, int runs, const GpuWorking& working) {
  return kernels_of_gpu(quick ? quick_shapes() : KernelShapes(), runs, working);
}
#else
GpuFacts gpu_facts() { throw std::runtime_error(gpu_missing()); }
GpuLimits measure_gpu_limits(int, const GpuWorking&) { throw std::runtime_error(gpu_missing()); }
std::vector<KernelTime> measure_gpu_kernels(bool, int, const GpuWorking&) { throw std::runtime_error(gpu_missing()); }
#endif

}  // namespace nanospec
