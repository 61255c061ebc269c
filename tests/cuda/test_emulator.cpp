// tests/cuda/test_emulator.cpp: what emulator.h promises: right kernels run right, and each kind of fault is caught.
#include "tests/cuda/cuda_test.h"  // first: it brings the emulator

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>

using namespace nanospec;

namespace {

constexpr int kThreads = 128;

// In how many of the other two orders `run` returns something else than in ascending order: a race shows here.
template <class F>
int orders_that_disagree(F run) {
  int disagree = 0;
  const auto first = run();
  for (const auto order : {emulator::Order::kDescending, emulator::Order::kShuffled}) {
    emulator::order = order;
    const auto again = run();
    disagree += memcmp(first.data(), again.data(), first.size() * sizeof(first[0])) != 0;
  }
  emulator::order = emulator::Order::kAscending;
  return disagree;
}

struct Partial {
  float of_warp[kThreads / 32];
};

// out[block] = the sum of the block's part of x (grid * kThreads).
__global__ void sum_kernel(const float* x, float* out) {
  Partial& partial = shared<Partial>();
  float sum = x[blockIdx.x * kThreads + threadIdx.x];
  for (int half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(~0u, sum, half);
  if (threadIdx.x % 32 == 0) partial.of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0;
    for (float part : partial.of_warp) total += part;
    out[blockIdx.x] = total;
  }
}

std::vector<float> sums(int blocks) {
  std::vector<float> x(size_t(blocks) * kThreads);
  for (size_t i = 0; i < x.size(); i++) x[i] = float(i % 1000);
  const auto in = on_device(x);
  Array<float> out(blocks, true);
  start(sum_kernel, blocks, kThreads, in.data(), out.data());
  return to_host(out);
}

// A launch of this kernel throws a fault that says `what`; the next one works.
template <class... Parameters, class... Arguments>
void check_fault(const char* what, void (*kernel)(Parameters...), int threads, Arguments... arguments) {
  CAPTURE(what);
  for (const auto order : {emulator::Order::kAscending, emulator::Order::kDescending, emulator::Order::kShuffled}) {
    emulator::order = order;
    std::string said = "nothing";
    try {
      start(kernel, 3, threads, arguments...);
      cudaStreamSynchronize(stream());
    } catch (const std::runtime_error& error) { said = error.what(); }
    CAPTURE(said);
    CHECK(said.find(what) != std::string::npos);
    CHECK(sums(1)[0] == 127 * 64);
  }
  emulator::order = emulator::Order::kAscending;
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------
// Right kernels

TEST_CASE("emulator: barriers, shuffles and shared memory give a block's sum, in every order") {
  const std::vector<float> got = in_every_order([] { return sums(40); });
  for (int block = 0; block < 40; block++) {
    float want = 0;
    for (int i = 0; i < kThreads; i++) want += float((block * kThreads + i) % 1000);
    CHECK(got[block] == want);
  }
}

namespace {
__global__ void votes_kernel(int* out) {  // (threads, 9)
  const int t = threadIdx.x, lane = t % 32;
  int* mine = out + t * 9;
  mine[0] = __syncthreads_count(t % 3 == 0);
  mine[1] = __syncthreads_or(t == 70) + 2 * __syncthreads_or(false);
  mine[2] = __syncthreads_and(t < 96) + 2 * __syncthreads_and(t < 95);
  mine[3] = int(__ballot_sync(~0u, lane % 4 == 1 && t >= 32));
  mine[4] = __any_sync(~0u, t == 64) + 2 * __all_sync(~0u, t >= 32);
  mine[5] = __shfl_up_sync(~0u, t, 3);
  mine[6] = __shfl_down_sync(~0u, t, 1, 8);
  mine[7] = __shfl_sync(~0u, t, 5, 16);
  mine[8] = __shfl_xor_sync(~0u, t, 8, 8);
}
}  // namespace

TEST_CASE("emulator: votes and shuffles are CUDA's") {
  const auto got = in_every_order([] {
    Array<int> out(96 * 9, true);
    start(votes_kernel, 1, 96, out.data());
    return to_host(out);
  });
  for (int t = 0; t < 96; t++) {
    CAPTURE(t);
    const int lane = t % 32, *mine = &got[t * 9];
    CHECK(mine[0] == 32);
    CHECK(mine[1] == 1);
    CHECK(mine[2] == 1);
    CHECK(mine[3] == (t < 32 ? 0 : 0x22222222));
    CHECK(mine[4] == int(t >= 64) + 2 * (t >= 32));
    CHECK(mine[5] == (lane < 3 ? t : t - 3));
    CHECK(mine[6] == (lane % 8 == 7 ? t : t + 1));
    CHECK(mine[7] == t / 16 * 16 + 5);
    CHECK(mine[8] == (lane % 16 < 8 ? t : t - 8));  // only earlier groups can be read
  }
}

namespace {
__global__ void count_kernel(int* counter, int by) {
  atomicAdd(counter, by);
  atomicMax(counter + 1, int(blockIdx.x * blockDim.x + threadIdx.x));
}
}  // namespace

TEST_CASE("emulator: a captured graph runs when it is replayed, on what memory holds then") {
  Array<int> counter(2, true);
  Graph graph;
  graph.capture([&] {
    start(count_kernel, 2, 64, counter.data(), 1);
    start(count_kernel, 1, 32, counter.data(), 100);
  });
  CHECK(to_host(counter)[0] == 0);
  graph.replay();
  graph.replay();
  CHECK(to_host(counter) == std::vector<int>{2 * (128 + 3200), 127});
}

TEST_CASE("emulator: what waits or allocates cannot be captured, and a capture that failed leaves nothing behind") {
  Array<int> counter(2, true);
  int host = 0;
  const auto refused = [&](auto call) {
    Graph graph;
    CHECK_THROWS_AS(graph.capture(call), std::runtime_error);
    CHECK(!graph);
    CHECK(sums(1)[0] == 127 * 64);  // not recorded: it runs
  };
  refused([&] { Array<int> another(1, true); });
  refused([&] { counter.download(&host, 1); });
  refused([&] { cudaMemset(counter.data(), 0, 4); });
  refused([&] { cudaStreamSynchronize(stream()); });
  refused([&] { Graph().capture([] {}); });
  refused([&] { start(count_kernel, 1, 2000, counter.data(), 1); });
}

// ---------------------------------------------------------------------------------------------------------------
// Races: the orders disagree

namespace {
struct Line {
  int at[kThreads];
};
template <bool barrier>
__global__ void reverse_kernel(int* out) {
  Line& line = shared<Line>();
  line.at[threadIdx.x] = int(threadIdx.x);
  if (barrier) __syncthreads();
  out[threadIdx.x] = line.at[kThreads - 1 - threadIdx.x];
}
template <bool barrier>
std::vector<int> reversed() {
  Array<int> out(kThreads, true);
  start(reverse_kernel<barrier>, 1, kThreads, out.data());
  return to_host(out);
}

__global__ void blocks_race_kernel(int* out) {
  if (threadIdx.x == 0) *out = int(blockIdx.x);
}
}  // namespace

TEST_CASE("emulator: a missing barrier shows") {
  CHECK(orders_that_disagree(reversed<true>) == 0);
  CHECK(orders_that_disagree(reversed<false>) == 2);
}

TEST_CASE("emulator: two blocks that write one number show") {
  CHECK(orders_that_disagree([] {
          Array<int> out(1, true);
          start(blocks_race_kernel, 5, 32, out.data());
          return to_host(out);
        }) == 2);
}

namespace {
// KeepRows as it must not be: a thread for each row and column (kernels.cuh says why).
__global__ void keep_rows_at_once(KeepRows<float> s) {
  const int i = int(threadIdx.x) / s.head_size, d = int(threadIdx.x) % s.head_size;
  const KeyValues<float> cache = s.cache(0);
  const int first = s.kept[0];
  *cache.key(0, first + i, d) = *cache.key(0, first + s.kept[2 + i], d);
}
}  // namespace

TEST_CASE("emulator: the cache's rows cannot be moved all at once, only each column row after row") {
  const std::vector<int> kept = {
      3, 5, 0, 2, 4, 5, 7};  // to slot 3, five rows; slot 4 is read by row 2 and written by row 4, and so on
  constexpr int D = 16, slots = 64;
  const auto moved = [&](bool at_once) {
    std::vector<float> cache(slots * D);
    for (size_t i = 0; i < cache.size(); i++) cache[i] = float(i);
    const auto k = on_device(cache), v = on_device(cache);
    const auto rows = on_device(kept);
    const KeepRows<float> keep{k.data(), v.data(), 0, 0, 1, slots, D, rows.data()};
    if (at_once) start(keep_rows_at_once, 1, kept[1] * D, keep);
    else launch(kGpu, 1, keep);
    return to_host(k);
  };
  CHECK(orders_that_disagree([&] { return moved(false); }) == 0);
  CHECK(orders_that_disagree([&] { return moved(true); }) == 2);
}

// ---------------------------------------------------------------------------------------------------------------
// Faults that end the work

namespace {
__global__ void two_barriers_kernel() {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void early_leaver_kernel() {
  if (threadIdx.x == 77) return;
  __syncthreads();
}
__global__ void lane_misses_shuffle_kernel() {
  if (threadIdx.x != 5) __shfl_xor_sync(~0u, 1, 1);
}
__global__ void lanes_in_two_lines_kernel() {
  if (threadIdx.x % 2 == 0) {
    __shfl_xor_sync(~0u, 1, 1);
  } else {
    __syncwarp();
  }
}
__global__ void shuffle_or_barrier_kernel() {
  if (threadIdx.x == 3) {
    __shfl_xor_sync(~0u, 1, 1);
  } else {
    __syncthreads();
  }
}
__global__ void one_shuffle_more_kernel() {
  for (unsigned i = 0; i < 3 + (threadIdx.x == 9); i++) __shfl_xor_sync(~0u, 1, 1);
}
__global__ void ballot_kernel(unsigned mask) { __ballot_sync(mask, true); }
__global__ void shuffle_kernel(unsigned mask) { __shfl_sync(mask, 1.0, 0); }
__global__ void throwing_kernel(int at) {
  __syncthreads();
  if (int(threadIdx.x) == at) throw std::out_of_range("thrown by a kernel");
  __syncthreads();
}
__global__ void throwing_int_kernel() { throw 1; }
template <class Number>
__global__ void waiting_kernel(Number all_but) {
  if (Number(threadIdx.x) != all_but) wait_for_earlier();
}
struct TooMuch {
  char bytes[(48 << 10) - 15];
};
__global__ void shared_too_large_kernel() {
  shared<float4>().x = 1;
  shared<TooMuch>().bytes[0] = 1;
}
}  // namespace

TEST_CASE("emulator: barriers and shuffles that not all threads come to are faults") {
  check_fault("the threads of a block wait in different lines", two_barriers_kernel, 64);
  check_fault("1 have ended, 95 at the barrier in line", early_leaver_kernel, 96);
  check_fault("1 have ended, 31 of a warp in line", lane_misses_shuffle_kernel, 32);
  check_fault("the lanes of a warp wait in different lines", lanes_in_two_lines_kernel, 64);
  check_fault("0 have ended, 63 at the barrier in line", shuffle_or_barrier_kernel, 64);
  check_fault("1 of a warp in line", one_shuffle_more_kernel, 64);
}

TEST_CASE("emulator: a mask that is not the warp's lanes is a fault") {
  check_fault("not the lanes of its warp", ballot_kernel, 64, 0x7fffffffu);
  check_fault("not the lanes of its warp", shuffle_kernel, 64, 1u);
  check_fault("not the lanes of its warp", shuffle_kernel, 40, ~0u);  // the last warp has eight lanes
  start(ballot_kernel, 1, 8, 0xffu);
  CHECK_NOTHROW(cudaStreamSynchronize(stream()));
}

TEST_CASE("emulator: an exception, too much shared memory or a launch out of bounds is a fault") {
  check_fault("thrown by a kernel", throwing_kernel, 64, 33);
  check_fault("something was thrown", throwing_int_kernel, 64);
  check_fault("more shared memory", shared_too_large_kernel, 64);
  check_fault("a launch of no threads, or of too many", throwing_kernel, 0, 0);
  check_fault("a launch of no threads, or of too many", throwing_kernel, 1025, 0);
  CHECK_THROWS_AS(start(throwing_kernel, dim3(0), 32, 0), std::runtime_error);
}

TEST_CASE("emulator: a kernel whose code can wait is launched early, and a thread that does not wait is a fault") {
  // start_early() asks once for each type of kernels.
  const auto fault_of = [](int code, auto all_but) {
    std::string said;
    emulator::code = code;
    try {
      start_early(waiting_kernel<decltype(all_but)>, 2, 64, all_but);
      cudaStreamSynchronize(stream());
    } catch (const std::runtime_error& error) { said = error.what(); }
    emulator::code = 90;
    return said;
  };
  const std::string fault = "emulator: launched early, but not every thread waits for the kernel before";
  REQUIRE(emulator::capability[0] == 9);
  CHECK(fault_of(90, -1) == "");
  CHECK(fault_of(90, 63) == fault);
  CHECK(fault_of(75, -1L) == "");  // this code cannot wait, though the GPU could: it is not launched early
  CHECK(fault_of(80, short(-1)) == "");
}

// ---------------------------------------------------------------------------------------------------------------
// Memory

namespace {
__global__ void unset_kernel(float* out) {  // reads what the block before it wrote, were it still there
  Partial& partial = shared<Partial>();
  if (threadIdx.x == 0) out[blockIdx.x] = partial.of_warp[1];
  __syncthreads();
  if (threadIdx.x == 0) partial.of_warp[1] = 1;
}
}  // namespace

TEST_CASE("emulator: memory that nobody set is NaN: shared memory in each block, the device's when it is allocated") {
  Array<float> out(3, true);
  start(unset_kernel, 3, 64, out.data());
  for (float x : to_host(out)) CHECK(std::isnan(x));
  float* fresh = nullptr;
  REQUIRE(cudaMalloc(reinterpret_cast<void**>(&fresh), 40) == cudaSuccess);
  float seen[10] = {};
  cudaMemcpy(seen, fresh, sizeof seen, cudaMemcpyDeviceToHost);
  for (float x : seen) CHECK(std::isnan(x));
  cudaFree(fresh);
}

#ifndef SANITIZED
namespace {
// What a child process says on its way out, and whether a signal ended it.
template <class F>
std::pair<std::string, bool> last_words(F f) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], 2);
    f();
    _exit(0);
  }
  close(ends[1]);
  std::string said;
  char part[4096];
  for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;) said.append(part, size_t(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return {said, WIFSIGNALED(status)};
}
}  // namespace

TEST_CASE("emulator: the host cannot touch device memory outside of launches and copies") {
  const Array<float> x = on_device(std::vector<float>{1, 2, 3});
  const std::string line = "emulator: the host touched device memory outside of launches and copies\n";
  CHECK(last_words([&] { cudaStreamSynchronize(stream()); }) == std::make_pair(std::string(), false));
  CHECK(last_words([&] { _exit(int(*static_cast<volatile float*>(x.data()))); }) == std::make_pair(line, true));
  CHECK(last_words([&] { *static_cast<volatile float*>(x.data() + 2) = 1; }) == std::make_pair(line, true));
  CHECK(to_host(x) == std::vector<float>{1, 2, 3});
}
#endif

// ---------------------------------------------------------------------------------------------------------------
// The queue

namespace {
__global__ void tell_kernel(int* told) { *told = 1; }
}  // namespace

TEST_CASE("emulator: work runs when somebody waits, in the order of the calls") {
  int *told = nullptr, *number = nullptr;  // in the host's memory, where kernels may write
  REQUIRE(cudaMallocHost(reinterpret_cast<void**>(&told), sizeof(int)) == cudaSuccess);
  REQUIRE(cudaMallocHost(reinterpret_cast<void**>(&number), sizeof(int)) == cudaSuccess);
  Graph graph;
  graph.capture([&] { start(tell_kernel, 1, 1, told); });
  const auto told_by = [&](auto work, auto waits) {
    *told = 0;
    work();
    CHECK(*told == 0);
    waits();
    CHECK(*told == 1);
  };
  const auto launched = [&] { start(tell_kernel, 1, 1, told); };
  const auto synchronize = [] { cudaStreamSynchronize(stream()); };
  Array<int> there(1, true);
  told_by(launched, synchronize);
  told_by(launched, [&] { to_host(there); });
  told_by(launched, [] { Array<int>(1, true); });  // before memory is freed, all runs that may use it
  told_by([&] { graph.replay(); }, synchronize);

  // An event stands for what was launched before it. A device that hurries has run more by then.
  Event event;
  event.wait();  // it stands nowhere yet
  for (bool hurries : {false, true}) {
    emulator::hurries = hurries;
    *number = 0;
    told_by([&] { launched(), event.record(), start(tell_kernel, 1, 1, number); }, [&] { event.wait(); });
    CHECK(*number == int(hurries));
    emulator::hurries = false;
    synchronize();
    CHECK(*number == 1);
  }

  // A copy reads pinned memory when its turn comes, and pageable memory when it is called.
  const auto copied = [&](int* from) {
    *from = 1;
    cudaMemcpyAsync(there.data(), from, sizeof(int), cudaMemcpyHostToDevice, stream());
    *from = 2;
    return to_host(there)[0];
  };
  int pageable = 0;
  CHECK(copied(number) == 2);
  CHECK(copied(&pageable) == 1);
  cudaFreeHost(told), cudaFreeHost(number);
}

#ifdef ADDRESS_SANITIZER
namespace {

struct Seven {
  float at[7];
};
__global__ void global_kernel(float* x, int at) { x[at + int(threadIdx.x)] += 1; }
__global__ void shared_kernel(float* x, int at) {
  Seven& seven = shared<Seven>();
  if (int(threadIdx.x) < 7) seven.at[threadIdx.x] = 1;
  __syncthreads();
  *x = *(&seven.at[0] + at);
}
[[gnu::noinline]] float element(const float* array, int at) { return array[at]; }
__global__ void stack_kernel(float* x, int at) {
  float local[9] = {};
  __syncthreads();
  *x = element(local, at);
}

// What AddressSanitizer says when `kernel` runs on 31 numbers, in a process of its own; "" if it is content.
std::string report_of(void (*kernel)(float*, int), int threads, int at) {
  sums(1);  // whatever it has to say of fibers, it says once
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], 2);
    const Array<float> x(31, true);
    start(kernel, 1, threads, x.data(), at);
    cudaStreamSynchronize(stream());
    _exit(0);
  }
  close(ends[1]);
  std::string said;
  char part[4096];
  for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;) said.append(part, size_t(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  CHECK((status == 0) == said.empty());
  return said.substr(0, said.find('\n', said.find("ERROR: AddressSanitizer")));
}

}  // namespace

TEST_CASE("emulator: AddressSanitizer sees an access outside of device, shared and local memory, to the number") {
  const auto holds = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  CHECK(report_of(global_kernel, 31, 0) == "");
  CHECK(holds(report_of(global_kernel, 31, 1), "heap-buffer-overflow"));
  CHECK(holds(report_of(global_kernel, 31, -1), "heap-buffer-overflow"));
  CHECK(report_of(shared_kernel, 64, 6) == "");
  CHECK(holds(report_of(shared_kernel, 64, 7), "heap-buffer-overflow"));
  CHECK(report_of(stack_kernel, 64, 8) == "");
  CHECK(holds(report_of(stack_kernel, 64, 9), "stack-buffer-overflow"));
}
#endif
