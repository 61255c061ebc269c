// tests/main.cpp: runs all tests and ends with one line that counts them.
//
// Tests whose name begins with "GPU" need a device: they are left out, and counted as skipped, where none is.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

namespace {

unsigned passed, failed, skipped;

struct Counts : doctest::IReporter {
  explicit Counts(const doctest::ContextOptions&) {}
  void test_run_end(const doctest::TestRunStats& s) override {
    failed = s.numTestCasesFailed;
    passed = s.numTestCasesPassingFilters - failed;
    skipped = s.numTestCases - s.numTestCasesPassingFilters;
  }
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};
DOCTEST_REGISTER_LISTENER("counts", 1, Counts);

}  // namespace

bool device_for_tests();  // test_gpu.cu

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  context.setOption("no-version", true);
  context.setOption("duration", false);
  if (!device_for_tests()) {
    context.addFilter("test-case-exclude", "GPU*");
    printf("no CUDA device: the GPU tests are skipped\n");
  }
  const int status = context.run();
  printf("%u passed, %u failed, %u skipped\n", passed, failed, skipped);
  return status;
}
