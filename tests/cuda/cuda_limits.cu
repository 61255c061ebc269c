// tests/cuda/cuda_limits.cu: the kernels that measure a GPU's limits do what their rates are computed from; and every
// line of `bench`'s table of kernels runs, at small shapes.
#include "tests/cuda/cuda_test.h"  // first: it brings the emulator

#include "study/measure.cuh"

namespace nanospec {

namespace {
double total(const std::vector<float>& values) {
  double sum = 0;
  for (float x : values) sum += x;
  return sum;
}
}  // namespace

TEST_CASE(ON "limits: every number of memory is read once, whatever the chunks and blocks") {
  for (const auto& both : {std::pair{1, 1}, {3, 2}, {2, 5}}) {
    const int chunks = both.first, blocks = both.second;
    CAPTURE(chunks);
    CAPTURE(blocks);
    std::vector<float> numbers(size_t(chunks) * kReadChunk * 4);
    for (size_t i = 0; i < numbers.size(); i++) numbers[i] = float(int(i * 7919 % 17) - 5);  // sums are exact
    const auto sums = in_every_order([&] {
      const Array<float> data = on_device(numbers), out(size_t(blocks) * kLimitThreads / kLanes, true);
      read_memory(data.data(), chunks, blocks, out.data());
      return to_host(out);
    });
    CHECK(total(sums) == total(numbers));
  }
}

TEST_CASE(ON "limits: multiply-adds are as many as are counted, in every thread") {
  const int turns = 3, blocks = 2;
  const auto sums = in_every_order([&] {
    const Array<float> out(size_t(blocks) * kLimitThreads, true);
    multiply_add(turns, blocks, 1, 1, out.data());
    return to_host(out);
  });
  double added = 0;  // each multiply-add adds 1 to a chain, which began at its number
  for (float sum : sums) {
    REQUIRE(sum == sums[0]);
    added += sum - kChains * (kChains - 1) / 2;
  }
  CHECK(2 * added == multiply_add_flops(turns, blocks));
}

TEST_CASE(ON "limits: so are those of the tensor cores") {
  const int turns = 1, blocks = 1;
  const uint32_t one = 0x3f803f80, halves = 0x3f003f00;
  const auto sums = in_every_order([&] {
    const Array<float> out(size_t(blocks) * kLimitThreads, true);
    multiply_tensors(turns, blocks, one, halves, out.data());
    return to_host(out);
  });
  double added = 0;  // each adds 1/2
  for (float sum : sums) {
    REQUIRE(sum == sums[0]);
    added += 2 * sum;
  }
  CHECK(2 * added == multiply_tensors_flops(turns, blocks));
}

TEST_CASE(ON "limits: measured until told to stop, every rate positive") {
  const GpuFacts facts = facts_of_gpu();
  CHECK(!facts.name.empty());
  CHECK(facts.multiprocessors > 0);
  CHECK(facts.memory_bytes > 0);
  CHECK(facts.capability.find('.') != std::string::npos);
  CHECK(facts.runtime.find('.') != std::string::npos);
  std::vector<double> done;
  const GpuLimits limits = limits_of_gpu({1e5, 1, 1}, 2, [&](const std::string&, double share) {
    done.push_back(share);
    return false;
  });
  CHECK(done.size() == 3);
  for (const std::vector<double>* rates : {&limits.read, &limits.fp32, &limits.bf16}) {
    REQUIRE(rates->size() == 1);
    CHECK(rates->front() > 0);
  }
}

TEST_CASE(ON "limits: every kernel of bench's table runs and is counted") {
  KernelShapes s;
  s.channels = 32, s.heads = 2, s.vocab = 65, s.past = 9, s.prefill = 5, s.sequence = 6, s.sequences = 2;
  s.rows = {1, 3}, s.tree_rows = {1, 4}, s.copied = 10000;
  std::vector<std::string> names;
  const std::vector<KernelTime> lines = kernels_of_gpu(s, 2, [&](const std::string& name, double done) {
    CHECK(done <= 1);
    names.push_back(name);
    return true;
  });
  CHECK(lines.size() == 2 + 2 * 8 + 2 * 2 * 2 + 2 + 1 + 2);
  REQUIRE(lines.size() == names.size());
  for (size_t i = 0; i < lines.size(); i++) {
    const KernelTime& line = lines[i];
    CAPTURE(line.name);
    CHECK(names[i] == line.name + ", " + line.shape);
    const auto named = [&](const char* part) { return line.name.find(part) != std::string::npos; };
    CHECK((line.bytes > 0) == !named("empty"));
    CHECK((line.flops > 0) == (line.name.find("matmul") == 0 || named("attention") || named("first")));
    REQUIRE(line.seconds.size() == 2);
    for (double seconds : line.seconds) CHECK(seconds > 0);
  }
  int asked = 0;
  CHECK(kernels_of_gpu(s, 2, [&](const std::string&, double) { return ++asked < 3; }).size() == 2);
  CHECK(asked == 3);
}

}  // namespace nanospec
