// tests/main.cpp: runs all tests. Each check that failed is told once more at the end, and the last line counts the
// tests. It also has the allocator that notes the largest allocation.
//
// A test of the CUDA kernels is one text for two machines (tests/cuda/cuda_*.cu): "emulated: " runs everywhere, its
// counterpart "GPU: " is counted as skipped where there is no device. So are those that begin with "ptxas: " or "sass:
// " outside `make cuda`, "page: " without Chromium, or "real: " without the model that `make chat` gets.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "tests/allocation.h"

// In a plain build, every allocation of this program is noted, so that the largest one can be held against the file.
// Sanitizers bring their own allocator, and a limit of their own on what it gives.

namespace {

unsigned passed, failed, skipped;
bool on_device;

struct Counts : doctest::IReporter {
  explicit Counts(const doctest::ContextOptions&) {}
  void test_run_end(const doctest::TestRunStats& s) override {
    for (const std::string& place : wrong_) printf("failed: %s\n", place.c_str());
    failed = s.numTestCasesFailed;
    passed = s.numTestCasesPassingFilters - failed;
    skipped = others_ + unsigned(without_device_.size());
  }
  void test_case_start(const doctest::TestCaseData& test) override {
    name_ = test.m_name;
    if (!on_device && begins(test, "emulated: ")) without_device_.insert(test.m_name + 10);
  }
  void test_case_skipped(const doctest::TestCaseData& test) override {
    if (begins(test, "GPU: ")) without_device_.insert(test.m_name + 5);
    else others_++;
  }
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException& e) override {
    wrong_.push_back(std::string(e.error_string.c_str()) + ", in " + name_);
  }
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData& a) override {
    if (a.m_failed)
      wrong_.push_back(std::string(a.m_file) + ":" + std::to_string(a.m_line) + ": " + a.m_expr + ", in " + name_);
  }
  void log_message(const doctest::MessageData&) override {}

 private:
  static bool begins(const doctest::TestCaseData& test, const std::string& with) {
    return std::string(test.m_name).compare(0, with.size(), with) == 0;
  }
  std::set<std::string> without_device_;  // tests that were compiled for a device or not, but have not run on one
  unsigned others_ = 0;
  std::string name_;                // of the test that runs
  std::vector<std::string> wrong_;  // told once more at the end, where one looks
};
DOCTEST_REGISTER_LISTENER("counts", 1, Counts);

}  // namespace

size_t& largest_allocation() {
  static thread_local size_t bytes = 0;
  return bytes;
}
#ifndef SANITIZED
__attribute__((noinline)) void* operator new(size_t size) {
  if (size > largest_allocation()) largest_allocation() = size;
  if (void* memory = malloc(size ? size : 1)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { free(memory); }
#endif

// Defined by cuda_model.cu where it was compiled for a device.
__attribute__((weak)) bool device_for_tests();

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  context.setOption("no-version", true);
  on_device = device_for_tests && device_for_tests();
  if (!on_device) {
    context.addFilter("test-case-exclude", "GPU: *");
    printf("no CUDA device: the GPU tests are skipped; an emulator runs the kernels\n");
  }
  if (!std::getenv("NANOSPEC_SASS")) context.addFilter("test-case-exclude", "sass: *");
  if (!std::getenv("NANOSPEC_PTXAS")) {
    context.addFilter("test-case-exclude", "ptxas: *");
    printf("the kernels' budgets of registers are not checked here: `make cuda` does\n");
  }
#ifdef SANITIZED
  context.addFilter("test-case-exclude", "single: *");
  printf("the core as one file is not compiled once more: sanitizers would see nothing of it\n");
  const bool browser = false, real = false;
#else
  const bool browser = std::system("command -v chromium >/dev/null 2>&1") == 0;
  const bool real = access("models/SmolLM2-135M-Instruct.Q4_1.gguf", R_OK) == 0;
#endif
  if (!browser) {
    context.addFilter("test-case-exclude", "page: *");
    printf("no chromium, or sanitizers: the page of `nanospec show` is not tried\n");
  }
  if (!real) {
    context.addFilter("test-case-exclude", "real: *");
    printf("no real model, or sanitizers: make chat gets one, for some more tests\n");
  }
  const int status = context.run();
  printf("%u passed, %u failed, %u skipped\n", passed, failed, skipped);
  return status;
}
