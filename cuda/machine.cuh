// cuda/machine.cuh: the GPU as a machine: errors, launches, graphs, events, shared memory.
//
// It is to the GPU what machine/threads.h is to the CPU. nvcc compiles it, and g++ in the tests, where
// tests/cuda/emulator.h emulates the GPU: the kernels' code is the same. It knows nothing of operations.
#pragma once

#ifdef __CUDACC__
#include <cuda_runtime.h>
#endif

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

#include "machine/numbers.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Errors

#define CUDA_CHECK(call) ::nanospec::check_cuda((call), __FILE__, __LINE__)
inline void check_cuda(cudaError_t error, const char* file, int line) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error) + ": " + file + ":" +
                           std::to_string(line) + ": check nvidia-smi, or use --device cpu");
}

// ---------------------------------------------------------------------------------------------------------------
// A kernel and those before and behind it

// Waits until the kernels before this one have ended and their writes are seen. Each thread calls it, once, before it
// returns.
__device__ __forceinline__ void wait_for_earlier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#elif !defined(__CUDACC__)
  emulator::wait_for_earlier();
#endif
}
// Lets the next kernel's blocks start where there is room, once each block has come here or has ended. A short kernel
// calls it at once, one that works long behind its longest loop: blocks that wait there from the beginning take
// registers, and memory's time, from those that work (an H100 was then slower than without early launches).
__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// A kernel that does nothing: what the runtime says of it is so of all kernels, and so is what `bench` measures: the
// time from one launch to the next.
// Budget: 8 registers, 0 bytes shared.
template <class>
__global__ void empty_kernel(int) {
  let_next_start();
  wait_for_earlier();
}

// ---------------------------------------------------------------------------------------------------------------
// Whether there is a GPU

// For which compute capability the code was compiled that this GPU runs: 90 for 9.0; 0 if the program has none for it.
inline int compiled_for() {
  cudaFuncAttributes its = {};
  if (cudaFuncGetAttributes(&its, empty_kernel<void>) == cudaSuccess) return its.ptxVersion;
  cudaGetLastError();
  return 0;
}

// Why this program cannot use the GPU that is there, in words; "" if it can, or if there is none.
inline std::string device_problem() {
  int devices = 0, device = 0, major = 0, minor = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return "";
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  if (compiled_for() > 0) return "";
  return "the GPU has compute capability " + std::to_string(major) + "." + std::to_string(minor) +
         ", and no kernel here was compiled for that";
}

// Why this program cannot use a GPU, in words; "" if it can.
inline std::string cuda_problem() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return device_problem();
  cudaGetLastError();  // clears the error, which else the next launch would throw
  int driver = 0;      // a missing driver is reported as one that is too old
  cudaDriverGetVersion(&driver);
  if (error == cudaErrorInsufficientDriver && driver == 0) return "there is no NVIDIA driver";
  if (error == cudaErrorInsufficientDriver)
    return "the NVIDIA driver is too old for this program, built with CUDA " + std::to_string(CUDART_VERSION / 1000) +
           "." + std::to_string(CUDART_VERSION % 1000 / 10);
  if (error == cudaSuccess || error == cudaErrorNoDevice) return "there is no CUDA device";
  return std::string("CUDA: ") + cudaGetErrorString(error);
}
inline bool cuda_available() { return cuda_problem().empty(); }

// ---------------------------------------------------------------------------------------------------------------
// Launches, graphs, events

// What a decoding step may do before the kernels before it have ended: its kernels begin; its products ask for their
// weights in one piece (matmul.cuh). It decides about time alone. --early sets it.
struct Early {
  bool launches = true, pieces = true;
};
inline Early early;

// Everything runs in one stream, in the order of the calls. It is not the default stream, which cannot be captured.
inline cudaStream_t stream() { return cudaStreamPerThread; }

// Launches kernel<<<grid, threads>>>(arguments...). Throws std::runtime_error.
template <class... Parameters, class... Arguments>
void start(void (*kernel)(Parameters...), dim3 grid, int threads, const Arguments&... arguments) {
#ifdef __CUDACC__
  kernel<<<grid, threads, 0, stream()>>>(arguments...);
#else
  emulator::launch(grid, threads, [=] { kernel(arguments...); });
#endif
  CUDA_CHECK(cudaGetLastError());
}

// The same, for a kernel in the middle of a decoding step. It may start before the kernels before it have ended, where
// its code waits for them (from sm_90 on: programmatic dependent launch). So it calls wait_for_earlier() before it
// reads or overwrites what they write. The first kernel of a step is launched by start(): it waits for all that was
// there before.
template <class... Parameters, class... Arguments>
void start_early(void (*kernel)(Parameters...), dim3 grid, int threads, const Arguments&... arguments) {
  static const bool waits = compiled_for() >= 90;  // not: what the GPU is. Code for 8.0 runs on a 9.0 too
  cudaLaunchAttribute programmatic{};
  programmatic.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  programmatic.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(unsigned(threads));
  config.stream = stream();
  config.attrs = &programmatic;
  config.numAttrs = waits && early.launches ? 1 : 0;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}

// What the runtime has made, with the function that takes it back.
template <class Made>
using Owned = std::unique_ptr<std::remove_pointer_t<Made>, cudaError_t (*)(Made)>;

// Launches that are recorded once and replayed together: to the host they cost as much as one launch.
class Graph {
 public:
  explicit operator bool() const { return ready_ != nullptr; }

  // Records what `launches` launches, and does not run it. A driver that is too old refuses to record launches that
  // begin early: then it is recorded anew without, and so is all that follows.
  template <class F>
  void capture(F&& launches) {
    try {
      record(launches);
    } catch (const std::exception& refused) {
      if (!early.launches) throw;
      cudaGetLastError();  // clears the error
      early.launches = false;
      try {
        record(launches);
      } catch (const std::exception&) {
        early.launches = true;  // they were not to blame
        throw;
      }
      fprintf(stderr, "%s: this driver does not record launches that begin early, so from here on none does\n",
              refused.what());
    }
  }
  void replay() const { CUDA_CHECK(cudaGraphLaunch(ready_.get(), stream())); }

 private:
  template <class F>
  void record(F&& launches) {
    cudaGraph_t recorded = nullptr;
    CUDA_CHECK(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal));
    try {
      launches();
    } catch (...) {
      if (cudaStreamEndCapture(stream(), &recorded) == cudaSuccess) cudaGraphDestroy(recorded);
      throw;
    }
    CUDA_CHECK(cudaStreamEndCapture(stream(), &recorded));
    cudaGraphExec_t ready = nullptr;
    const cudaError_t error = cudaGraphInstantiate(&ready, recorded, 0);
    cudaGraphDestroy(recorded);
    CUDA_CHECK(error);
    ready_.reset(ready);
  }

  Owned<cudaGraphExec_t> ready_{nullptr, cudaGraphExecDestroy};
};

// A place in the stream, which the host can wait for. timed: it also keeps the time when the GPU came by.
class Event {
 public:
  explicit Event(bool timed = false) {
    cudaEvent_t made = {};
    CUDA_CHECK(cudaEventCreateWithFlags(&made, timed ? cudaEventDefault : cudaEventDisableTiming));
    event_.reset(made);
  }
  void record() { CUDA_CHECK(cudaEventRecord(event_.get(), stream())); }
  void wait() const { CUDA_CHECK(cudaEventSynchronize(event_.get())); }  // for what was launched before it, no longer
  double seconds_since(const Event& before) const {                      // both are timed
    float ms = 0;
    wait();
    CUDA_CHECK(cudaEventElapsedTime(&ms, before.event_.get(), event_.get()));
    return ms * 1e-3;
  }

 private:
  Owned<cudaEvent_t> event_{nullptr, cudaEventDestroy};
};

// ---------------------------------------------------------------------------------------------------------------
// Shared memory

// An S in the block's shared memory, one for each type S that a kernel uses. It is not initialized.
template <class S>
__device__ __forceinline__ S& shared() {
#ifdef __CUDACC__
  __shared__ S memory;
  return memory;
#else
  static const char tag = 0;  // its address stands for the type
  return *static_cast<S*>(emulator::shared(&tag, sizeof(S)));
#endif
}

}  // namespace nanospec
