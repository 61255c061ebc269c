// tests/study/test_bench.cpp: the parts of `bench` that are pure: levels of memory, samples, operations, places
// in a text. How the command runs is in tests/study/test_bench_command.cpp.
#include <doctest/doctest.h>

#include <algorithm>

#include "commands/svg.h"
#include "study/forwards.h"
#include "tests/command_line.h"

using namespace nanospec;

TEST_CASE("bench: the level of memory that bytes fit") {
  const Caches caches{1e6, 32e6, false};
  CHECK(level_of(1e6, 1, caches) == Level::kL2);
  CHECK(level_of(1.1e6, 1, caches) == Level::kL3);
  CHECK(level_of(1.9e6, 2, caches) == Level::kL2);  // each thread's share fits
  CHECK(level_of(32e6, 2, caches) == Level::kL3);
  CHECK(level_of(33e6, 2, caches) == Level::kMemory);
  CHECK(level_name(Level::kMemory) == std::string("memory"));
}

TEST_CASE("bench: lists of CPUs as the kernel writes them") {
  CHECK(listed_cpus("0") == 1);
  CHECK(listed_cpus("0-3") == 4);
  CHECK(listed_cpus("0-3,8,10-11\n") == 7);
  CHECK(listed_cpus("") == 0);
}

TEST_CASE("samples: medians, ends, unevenness") {
  CHECK(median({}) == 0);
  CHECK(median({3, 1, 2}) == 2);
  CHECK(median({4, 1, 2, 3}) == 2.5);
  CHECK(lowest({2, 1, 3}) == 1);
  CHECK(highest({2, 3, 1}) == 3);
  CHECK(unevenness({2, 2, 2}) == 0);
  CHECK(unevenness({1, 2, 3}) == 1);
  CHECK(unevenness(std::vector<double>(9, 2)) == 0);
  CHECK(unevenness({9, 2, 2, 2, 2, 2, 2, 2, 2, 2}) == 0);    // one disturbed run in ten
  CHECK(unevenness({9, 9, 9, 2, 2, 2, 2, 2, 2, 2}) == 3.5);  // three
}

TEST_CASE("bench: a busy machine is noticed") {
  CHECK(busy_line({{"a", 0.01}, {"b", 0.15}}) == "");
  CHECK(busy_line({}) == "");
  const std::string line = busy_line({{"a", 0.01}, {"reading L2", 0.4}, {"c", 0.2}});
  CHECK(line.find("reading L2") != std::string::npos);
  CHECK(line.find("40%") != std::string::npos);
  CHECK(line.find('\n') == line.size() - 1);
}

// Multiplies and adds of every product, one after the other.
TEST_CASE("bench: operations of a forward and of a prefill") {
  const Size size = size_of("tiny", 3, 2, 8, 32, 11, 16);
  const double C = 8, layer = C * 3 * C + C * C + C * 4 * C + 4 * C * C;
  for (int rows : {1, 5})
    for (int past : {0, 7}) {
      double expected = 0;
      for (int row = 0; row < rows; row++) {
        const double keys = past + (row == 0 ? 1 : 2);
        expected += 3 * (2 * layer + 2 * 2 * C * keys) + 2 * C * 11;
      }
      CHECK(forward_flops(size.config, rows, past) == doctest::Approx(expected));
    }
  double expected = 0;
  for (int row = 0; row < 6; row++) expected += 2 * (2 * layer + 2 * 2 * C * (row + 1)) + 2 * C * 3 * C;
  CHECK(prefill_flops(size.config, 6) == doctest::Approx(expected));
}

TEST_CASE("bench: the roofline's bound is the slower of reading and multiplying") {
  CHECK(bound_of(100, 10, 50, 1).seconds == 10);
  CHECK(bound_of(100, 10, 50, 1).computes);
  CHECK(bound_of(100, 10, 5, 1).seconds == 20);
  CHECK(!bound_of(100, 10, 5, 1).computes);
}

TEST_CASE("bench: a kernel's shares of a GPU's limits, and which of them binds") {
  const GpuLimits limits = {{90, 100, 300}, {1000, 1000}, {4000}};
  KernelTime kernel{"matmul", "", 100, 1000, Peak::kFp32, {9, 2, 1}};
  CHECK(shares_of(kernel, limits).memory == 0.5);
  CHECK(shares_of(kernel, limits).compute == 0.5);
  CHECK(shares_of(kernel, limits).memory_binds());
  kernel.peak = Peak::kBf16;
  CHECK(shares_of(kernel, limits).compute == 0.125);
  kernel.bytes = 10;
  CHECK(!shares_of(kernel, limits).memory_binds());
  CHECK(shares_of(kernel, limits).of_limit() == 0.125);
  kernel.seconds.clear();  // nothing was measured: no division by it
  CHECK(shares_of(kernel, limits).of_limit() == 0);
}

TEST_CASE("bench: held-out prompts begin in the last tenth, at a line where one is near, at a character always") {
  std::string text;
  for (int i = 0; i < 250; i++) text += std::to_string(1000 + i);  // any 20 bytes are there once
  const auto places = [&](size_t bytes) {
    std::vector<size_t> found;
    for (const std::string& prompt : prompts_of(text, held_out_begin(text), 2, bytes)) {
      CHECK(prompt.size() == bytes);
      found.push_back(text.find(prompt));
    }
    return found;
  };
  CHECK(places(20) == std::vector<size_t>{900, 950});
  text[910] = '\n';
  CHECK(places(20) == std::vector<size_t>{911, 950});
  CHECK(places(90) == std::vector<size_t>{900, 910});  // no room after the line
  std::string accents;
  for (int i = 0; i < 500; i++) accents += i == 0 ? "a" : "\xc3\xa9";
  for (const std::string& prompt : prompts_of(accents, held_out_begin(accents), 5, 20)) {
    CHECK((prompt[0] & 0xc0) != 0x80);
    CHECK(prompt.size() % 2 == 0);  // its last character is whole
  }
  CHECK(prompts_of("", held_out_begin(""), 1, 20).empty());
  CHECK(held_out_begin(std::string(50, 'x') + accents.substr(1, 100)) == 50 + 2 * 40);  // 90 of 100 characters
}

TEST_CASE("bench: the roofline is measured until it is told to stop") {
  Machine machine = this_machine();
  CHECK(machine.threads >= 1);
  CHECK(machine.caches.l2 > 0);
  CHECK(machine.caches.l3 > 0);
  machine.caches = {1 << 16, 1 << 20, false};  // little to touch
  std::vector<double> done;
  const Roofline r = measure_roofline(machine, 2, 3, [&](double share) {
    done.push_back(share);
    return share < 0.5;
  });
  CHECK(done == std::vector<double>{0, 1.0 / 3, 2.0 / 3});
  CHECK(r.threads == 2);
  for (Level level : kLevels) {
    CHECK(r.read[int(level)].one.size() == 2);
    CHECK(r.read[int(level)].all.size() == 2);
    CHECK(r.bandwidth(level) > 0);
  }
  CHECK(r.peak() > 0);
  CHECK(r.fp32.all.size() == 2);
}

TEST_CASE("bench: the roofline keeps to its memory and its time") {
  const Caches large = {4e6, 1e9, false}, usual = {1 << 20, 32e6, false};
  for (Level level : kLevels) {
    CHECK(working_set(level, 512, large, 1e12) <= 900e6);
    CHECK(working_set(level, 2, usual, 80e6) <= 10e6);
  }
  CHECK(working_set(Level::kMemory, 2, usual, 1e12) == double(128 << 20));
  CHECK(working_set(Level::kL2, 2, usual, 1e12) == 1 << 20);
  Machine machine = this_machine();
  machine.caches = {1 << 16, 1 << 20, false};
  const Roofline r = measure_roofline(
      machine, 1, 1000, [](double) { return true; }, 0.5);
  CHECK(r.fp32.one.size() >= 1);
  CHECK(r.fp32.one.size() < 1000);
}

TEST_CASE("bench: what a quick run made says so in pictures, tables and figures, and nothing else does") {
  const Folder folder;
  for (bool quick : {false, true}) {
    Bench bench;
    bench.out = folder.path;
    bench.quick = quick;
    bench.progress = std::make_unique<Progress>(true);
    bench.write_svg("p", svg_warning("a picture"));
    bench.write_json("j", OrderedJson::object());
    const std::string table = captured(1, [&] { bench.print("heading", "table\n"); });
    for (const std::string& made : {read_file(folder.file("p.svg")), read_file(folder.file("j.json")), table})
      CHECK(contains(made, kQuickRun) == quick);
    CHECK(contains(read_file(folder.file("p.svg")), "a picture"));
    CHECK(contains(table, "heading\n" + (quick ? kQuickRun + std::string("\n") : "") + "\ntable\n"));
  }
}
