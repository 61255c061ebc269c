// tests/cuda/ptx/runtime.cpp: the functions of the CUDA runtime, by which a program that nvcc compiled comes here.
//
// A program is linked against this in place of NVIDIA's runtime (nvcc --cudart none). Each object brings its PTX along,
// uncompressed, and registers its kernels before main begins. There is one device and one stream, the first that is
// used. A launch runs at once, and to its end; in a capture it is kept, and runs when the graph is launched.
//
// Faults beside those of kernels: another stream; shared memory by a launch's third number; within a capture a copy, a
// wait, an allocation, an event; at the end, memory, graphs, events and captures that are not given back.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <sstream>
#include <utility>

#include "tests/cuda/ptx/machine.h"

namespace {

using ptx::fault;

// ---------------------------------------------------------------------------------------------------------------
// What there is

struct Function {
  ptx::Program* program;
  std::string name;
};
struct Graph {
  std::vector<std::function<void()>> work;
  bool has_early = false;
};
// Old drivers refuse to record launches that begin early: as they are recorded, or when the graph is made.
enum Refusal { kNone, kLaunch, kGraph };
struct Device {
  std::vector<std::unique_ptr<ptx::Program>> programs;
  std::map<const void*, Function> functions;  // by their addresses on the host
  std::vector<cudaLaunchConfig_t> pushed;     // of kernel<<<...>>>
  std::optional<cudaStream_t> stream;         // that everything runs in
  Graph* capture = nullptr;
  bool invalid = false;  // the capture: a launch in it was refused
  Refusal refusal = kNone;
  std::string problem;  // of the last call that failed
  long graphs = 0, events = 0;
  // Mutants: graphs run their launches in another order; a piece of memory is never freed.
  bool reorders = false, keeps = false;

  ~Device();
};
// Other objects register their kernels before main, so before this file's variables are there.
Device& device() {
  static Device one;
  return one;
}

// Words of NANOSPEC_PTX.
void read_settings() {
  const std::map<std::string, std::function<void()>> known = {
      {"ascending", [] { ptx::settings.order = ptx::Order::kAscending; }},
      {"descending", [] { ptx::settings.order = ptx::Order::kDescending; }},
      {"shuffled", [] { ptx::settings.order = ptx::Order::kShuffled; }},
      {"early", [] { ptx::settings.late = false; }},
      {"reordered", [] { device().reorders = true; }},
      {"kept", [] { device().keeps = true; }},
      {"together", [] { ptx::settings.together = true; }},
      {"ampere", [] { ptx::settings.rounding = ptx::Rounding::kAmpere; }},
      {"fused", [] { ptx::settings.rounding = ptx::Rounding::kFused; }}};
  const char* given = getenv("NANOSPEC_PTX");
  std::istringstream words(given ? given : "");
  for (std::string word; words >> word;) {
    if (!known.count(word)) fprintf(stderr, "NANOSPEC_PTX: no setting %s\n", word.c_str()), exit(2);
    known.at(word)();
  }
}

// Appends lines to the file that a variable of the environment names.
void append(const char* variable, const std::set<std::string>& lines) {
  const char* path = getenv(variable);
  FILE* file = path ? fopen(path, "a") : nullptr;
  if (!file) return;
  for (const std::string& line : lines) fprintf(file, "%s\n", line.c_str());
  fclose(file);
}

// At the program's end: what ran, what nvcc wrote, and what was not given back.
Device::~Device() {
  const auto& counts = ptx::counts;
  fprintf(stderr, "witness: %ld launches of %zu kernels, %ld instructions of threads\n", counts.launches,
          counts.kernels.size(), counts.instructions);
  append("NANOSPEC_PTX_KERNELS", counts.kernels);
  std::set<std::string> opcodes;
  for (const auto& program : programs)
    if (getenv("NANOSPEC_PTX_OPCODES"))
      for (const std::string& name : program->names())
        for (const ptx::Instruction& it : program->kernel(name).code) {
          std::string opcode;
          for (const std::string& word : it.words) opcode += (opcode.empty() ? "" : ".") + word;
          opcodes.insert(opcode);
        }
  append("NANOSPEC_PTX_OPCODES", opcodes);
  const auto [pieces, bytes] = ptx::not_released();
  if (!capture && graphs == 0 && events == 0 && pieces == 0) return;
  fprintf(stderr, "witness: not given back: %ld graphs, %ld events, %zu pieces of memory (%zu bytes)%s\n", graphs,
          events, pieces, bytes, capture ? ", a capture" : "");
  _exit(1);
}

// ---------------------------------------------------------------------------------------------------------------
// How calls run and fail

// Runs it. What it throws is the call's error, and cudaGetErrorString's words.
template <class F>
cudaError_t call(F run) {
  try {
    run();
    return cudaSuccess;
  } catch (const std::exception& error) {
    device().problem = error.what();
    return cudaErrorLaunchFailure;
  }
}
// The same for what may not stand in a capture.
template <class F>
cudaError_t outside(const char* what, F run) {
  return call([&] {
    if (device().capture) fault(std::string("within a capture: ") + what);
    run();
  });
}
// In the stream: at once, or when the graph runs that is being captured.
template <class F>
cudaError_t in_stream(cudaStream_t stream, F run) {
  return call([&] {
    if (!device().stream) device().stream = stream;
    if (device().stream != stream) fault("a call in another stream");
    if (device().capture) device().capture->work.push_back(run);
    else run();
  });
}

// Both ends of a copy are the host's memory; where one is the device's it must be all there.
void copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (bytes == 0) return;
  if ((to_device && !ptx::is_allocated(uint64_t(to), bytes)) ||
      (from_device && !ptx::is_allocated(uint64_t(from), bytes)))
    fault("a copy of " + std::to_string(bytes) + " bytes that are not all of one allocation");
  memcpy(to, from, bytes);
  ptx::all_is_seen();
}
void fill(void* at, int value, size_t bytes) {
  if (bytes > 0 && !ptx::is_allocated(uint64_t(at), bytes)) fault("memset of what is not allocated");
  memset(at, value, bytes);
  ptx::all_is_seen();
}

const Function& function_at(const void* address) {
  const auto found = device().functions.find(address);
  if (found == device().functions.end()) fault("no kernel was registered here");
  return found->second;
}

// What an old driver answers.
cudaError_t refuse() {
  device().problem = "operation not supported";
  return cudaErrorNotSupported;
}

cudaError_t launch(const void* address, const cudaLaunchConfig_t& config, void** arguments) {
  ptx::Launch it;
  const cudaError_t error = call([&] {
    const Function& function = function_at(address);
    it.kernel = &function.program->kernel(function.name);
    if (config.blockDim.y != 1 || config.blockDim.z != 1 || config.dynamicSmemBytes != 0)
      fault("not provided for: a block of several dimensions, or more shared memory than the kernel says");
    const dim3& grid = config.gridDim;
    it.grid[0] = grid.x, it.grid[1] = grid.y, it.grid[2] = grid.z;
    it.threads = int(config.blockDim.x);
    it.parameters.resize(size_t(it.kernel->parameter_bytes));
    for (size_t i = 0; i < it.kernel->parameters.size(); i++) {
      const ptx::Parameter& one = it.kernel->parameters[i];
      memcpy(&it.parameters[size_t(one.offset)], arguments[i], size_t(one.bytes));
    }
    for (unsigned i = 0; i < config.numAttrs; i++) {
      const cudaLaunchAttribute& one = config.attrs[i];
      if (one.id == cudaLaunchAttributeProgrammaticStreamSerialization)
        it.early = one.val.programmaticStreamSerializationAllowed;
      else if (one.id == cudaLaunchAttributeCooperative) it.together = one.val.cooperative;
      else fault("not provided for: a launch's attribute " + std::to_string(int(one.id)));
    }
  });
  if (error != cudaSuccess) return error;
  if (device().capture && it.early) {
    device().capture->has_early = true;
    if (device().refusal == kLaunch) {
      device().invalid = true;
      return refuse();
    }
  }
  return in_stream(config.stream, [it] {
    ptx::Launch once = it;
    ptx::run(once);
  });
}

// The PTX in an object: nvcc's wrapper points to a piece with a head, of which a number says how long it is.
std::string ptx_of(const void* wrapper) {
  struct Wrapper {
    int magic, version;
    const char* data;
  };
  struct Head {
    uint32_t magic;
    uint16_t version, head_bytes;
    uint64_t bytes;
  };
  const char* data = static_cast<const Wrapper*>(wrapper)->data;
  const Head* head = reinterpret_cast<const Head*>(data);
  const std::string all(data, head->head_bytes + head->bytes);
  const size_t begin = all.find(".version ");
  if (begin == std::string::npos) return "";  // none, or it is compressed
  return all.substr(begin, all.find('\0', begin) - begin);
}

// A statement whose first two registers of its second group {a, b, ...} have changed places.
std::string swapped(std::string statement) {
  const size_t first = statement.find('{', statement.find('{') + 1), comma = statement.find(',', first);
  const size_t end = statement.find_first_of(",}", comma + 1);
  const std::string a = statement.substr(first + 1, comma - first - 1);
  const std::string b = statement.substr(comma + 1, end - comma - 1);
  return statement.replace(first + 1, end - first - 1, b + "," + a);
}

// NANOSPEC_PTX_EDIT="KERNEL;FIND;N;WORDS": in the kernels whose names contain KERNEL the N-th FIND becomes WORDS; with
// no words its statement goes; "swap" swaps. Such a mutant's tests must fail (mutants.sh).
void edit(std::string& text) {
  const char* given = getenv("NANOSPEC_PTX_EDIT");
  if (!given || !*given || text.empty()) return;
  std::istringstream fields(given);
  std::string kernel, find, number, words;
  for (std::string* field : {&kernel, &find, &number, &words}) std::getline(fields, *field, ';');
  int edited = 0;
  for (size_t at = 0; (at = text.find(".entry ", at)) != std::string::npos; at++) {
    if (text.substr(at, text.find('\n', at) - at).find(kernel) == std::string::npos) continue;
    const size_t end = std::min(text.find(".entry ", at + 1), text.size());
    size_t place = at;
    for (int n = std::stoi(number); n > 0; n--) place = std::min(text.find(find, place + 1), text.size());
    if (place >= end) continue;
    const size_t length = text.find(';', place) - place;
    if (words == "swap") text.replace(place, length, swapped(text.substr(place, length)));
    else text.replace(place, words.empty() ? length : find.size(), words.empty() ? ".pragma \"\"" : words);
    edited++;
  }
  if (edited == 0) fprintf(stderr, "NANOSPEC_PTX_EDIT: nothing to edit: %s\n", given), _exit(3);
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------
// What tests ask for (cuda_test.h)

void witness_refuses(int how) { device().refusal = Refusal(how); }
long witness_early_launches() { return ptx::counts.early; }
long witness_pieces_asked() { return ptx::counts.pieces; }

// ---------------------------------------------------------------------------------------------------------------
// The functions, in the order in which a program needs them

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  auto& programs = device().programs;
  if (programs.empty()) read_settings();
  std::string text = ptx_of(wrapper);
  edit(text);
  programs.push_back(std::make_unique<ptx::Program>(text));
  return reinterpret_cast<void**>(programs.back().get());
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 0; }
void __cudaRegisterFunction(void** program, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {
  device().functions[host] = {reinterpret_cast<ptx::Program*>(program), name};
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* number) {
  *number = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  return call([&] {
    if (which == cudaDevAttrComputeCapabilityMajor) *value = 9;
    else if (which == cudaDevAttrComputeCapabilityMinor) *value = 0;
    else if (which == cudaDevAttrMultiProcessorCount) *value = 132;
    else fault("not provided for: attribute " + std::to_string(int(which)));
  });
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* its, int) {
  *its = {};
  strcpy(its->name, "the witness, no GPU");
  its->major = 9;
  its->multiProcessorCount = 132;
  its->totalGlobalMem = ptx::kMemory;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* its, const void* function) {
  return call([&] {
    function_at(function);
    *its = {};
    its->ptxVersion = its->binaryVersion = 90;
  });
}

cudaError_t cudaMalloc(void** at, size_t bytes) {
  const cudaError_t error = outside("an allocation", [&] { *at = ptx::allocate(bytes); });
  return error == cudaSuccess && !*at ? cudaErrorMemoryAllocation : error;
}
cudaError_t cudaMallocHost(void** at, size_t bytes) { return cudaMalloc(at, bytes); }
cudaError_t cudaFree(void* at) {
  return outside("a free", [&] {
    if (at && std::exchange(device().keeps, false)) return;
    if (at && !ptx::release(at)) fault("a free of what was not allocated");
  });
}
cudaError_t cudaFreeHost(void* at) { return cudaFree(at); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = ptx::kMemory;
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return outside("a copy", [&] { copy(to, from, bytes, kind); });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return in_stream(stream, [=] { copy(to, from, bytes, kind); });
}
cudaError_t cudaMemset(void* at, int value, size_t bytes) {
  return outside("memset", [&] { fill(at, value, bytes); });
}
cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t stream) {
  return in_stream(stream, [=] { fill(at, value, bytes); });
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st* stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared, config.stream = stream;
  device().pushed.push_back(config);
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  const cudaLaunchConfig_t config = device().pushed.back();
  device().pushed.pop_back();
  *grid = config.gridDim, *block = config.blockDim, *shared = config.dynamicSmemBytes;
  *static_cast<cudaStream_t*>(stream) = config.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = cudaKernel_t(function);
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                               cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared, config.stream = stream;
  return launch(static_cast<const void*>(kernel), config, arguments);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  return launch(function, *config, arguments);
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : device().problem.c_str();
}
cudaError_t cudaGetLastError() {
  static std::string shown;  // the words stay until the next error
  if (device().problem == shown) return cudaSuccess;
  shown = device().problem;
  return shown.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return outside("a wait", [] { ptx::all_is_seen(); });
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  return outside("another capture", [] { device().capture = new Graph; });
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  std::unique_ptr<Graph> recorded(std::exchange(device().capture, nullptr));
  *graph = nullptr;
  if (std::exchange(device().invalid, false)) return cudaErrorStreamCaptureInvalidated;
  *graph = reinterpret_cast<cudaGraph_t>(recorded.release());
  device().graphs++;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
  if (device().refusal == kGraph && reinterpret_cast<Graph*>(graph)->has_early) return refuse();
  Graph* const copy = new Graph(*reinterpret_cast<Graph*>(graph));
  if (device().reorders && copy->work.size() > 3) std::swap(copy->work[2], copy->work[3]);
  *ready = reinterpret_cast<cudaGraphExec_t>(copy);
  device().graphs++;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Graph*>(graph);
  device().graphs--;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  return cudaGraphDestroy(reinterpret_cast<cudaGraph_t>(graph));
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
  return outside("a graph's launch", [&] {
    for (const auto& one : reinterpret_cast<Graph*>(graph)->work) one();
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new char);
  device().events++;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<char*>(event);
  device().events--;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  return outside("an event", [] {});
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return outside("a wait", [] { ptx::all_is_seen(); });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;  // there is no time here
  return cudaSuccess;
}

}  // extern "C"
