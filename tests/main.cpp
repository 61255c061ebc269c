// tests/main.cpp: runs all tests. The first line says by what seed the long sweeps are cut (tests/tenth.h). Each check
// that failed is told once more at the end, with the command that runs its test again, and the last line counts the
// tests. It also has the allocator that notes the largest allocation.
//
// A test of the CUDA kernels is one text for two machines (tests/cuda/cuda_*.cu): "emulated: " runs everywhere, its
// counterpart "GPU: " needs a device. kKinds names the other kinds that need something; where that is missing they are
// counted as skipped, and a line says why. So are costly tests whose turn it is not: kTurns. A clock of its own says
// every few seconds which test runs.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/allocation.h"
#include "tests/tenth.h"

// In a plain build, every allocation of this program is noted, so that the largest one can be held against the file.
// Sanitizers bring their own allocator, and a limit of their own on what it gives.

namespace {

bool begins(const std::string& name, const std::string& with) { return name.compare(0, with.size(), with) == 0; }

// ---------------------------------------------------------------------------------------------------------------
// What a kind of test needs, and whether it is here

bool found(const std::string& program) {
  return std::system(("command -v " + program + " >/dev/null 2>&1").c_str()) == 0;
}
bool has_terminals() {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  const bool has = terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0;
  if (terminal >= 0) close(terminal);
  return has;
}
bool is_set(const char* variable) { return std::getenv(variable) != nullptr; }
#ifdef SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

bool on_device;

struct Kind {
  const char* begins;  // the names of its tests
  bool (*here)();
  const char* why;  // it is skipped
};
const Kind kKinds[] = {
    {"GPU: ", [] { return on_device; }, "no CUDA device; an emulator runs the kernels"},
    {"ptxas: ", [] { return is_set("NANOSPEC_PTXAS"); }, "make cuda holds the kernels to their budgets"},
    {"sass: ", [] { return is_set("NANOSPEC_SASS"); }, "make cuda counts the kernels' loads"},
    {"witness opcodes: ", [] { return is_set("NANOSPEC_PTX_OPCODES"); },
     "make cuda lists the opcodes that nvcc writes"},
    {"single: nvcc", [] { return !kSanitized && found("nvcc"); }, "no nvcc, or sanitizers: the single file"},
    {"single: ", [] { return !kSanitized; }, "sanitizers would see nothing of a program of its own"},
    {"terminal: ", has_terminals, "no pseudo-terminal can be had here: what a person types in a chat is not tried"},
    {"page: ", [] { return !kSanitized && found("chromium"); },
     "no chromium, or sanitizers: the page of nanospec show is not tried"},
    {"clang: ", [] { return !kSanitized && found("clang++"); },
     "no clang++, or sanitizers: the course's grader by another compiler"},
    {"real: ", [] { return !kSanitized && access("models/SmolLM2-135M-Instruct.Q4_1.gguf", R_OK) == 0; },
     "no real model, or sanitizers: make chat gets one"}};
constexpr const char* kFiltered = "not asked for on this command line";

// ---------------------------------------------------------------------------------------------------------------
// What takes turns

// Tests that cost much, and whose answer seldom changes: the grader against many answers, files and pages that other
// programs compile and read. Under the sanitizers too what computes long: its bits the plain run holds, and of memory a
// few cases tell. Of those whose names begin so, in the order of their lines, a run draws one of each eight
// (tests/tenth.h). `make prove` runs all, and so does who asks by name.
const std::regex kTurns(
    kSanitized
        ? "(bench|emulated|exactness|experiments|hydra|kernels|kinds|medusa|parallel|quantized|sweep): |"
          "(ahead|forest): every|archive: (2,000|verify)|bpe: mutated|checkpoint: a flipped|conversation: ten|"
          "decode: the sweep|exact: its tables|"
          "model: (every node|gradient|the cache)|ngram: counts|rules: distributions|show: the page"
        : "clang: |course: (a chapter|code|half|make play|of what|processes|right|the compiler|the grader|the starter|"
          "wrong)|(medusa|parallel): train_gpt|page: |parallel: a run|peers: a llama|"
          "single: (its|nvcc|on the|the core)");
constexpr const char* kRests =
    "it takes turns with tests of its kind: NANOSPEC_PROVE=1, or its name after -tc, runs it";
std::set<std::string> resting;

// A name, for doctest's filters: there ? is any letter.
std::string pattern(std::string name) {
  for (char& letter : name)
    if (letter == ',' || letter == '\'' || letter == '\\') letter = '?';
  return name;
}

void take_turns(doctest::Context& context) {
  size_t nth = 0;
  for (const auto& test : doctest::detail::getRegisteredTests())
    if (std::regex_search(test.m_name, kTurns, std::regex_constants::match_continuous) && !nanospec::runs(nth++, 8))
      resting.insert(test.m_name);
  for (const std::string& name : resting) context.addFilter("test-case-exclude", pattern(name).c_str());
}

// ---------------------------------------------------------------------------------------------------------------
// Where the tests are: a line every eight seconds

class Whereabouts {
 public:
  Whereabouts() : thread_([this] { tell(); }) {}
  ~Whereabouts() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    end_.notify_one();
    thread_.join();
  }
  void begins(const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    name_ = name, number_++;
  }

 private:
  void tell() {
    const auto start = std::chrono::steady_clock::now();
    std::unique_lock<std::mutex> lock(mutex_);
    while (!end_.wait_for(lock, std::chrono::seconds(8), [this] { return ended_; })) {
      const std::chrono::duration<double> run = std::chrono::steady_clock::now() - start;
      const std::string line =
          "  " + std::to_string(int(run.count())) + " s: test " + std::to_string(number_) + ", " + name_ + "\n";
      if (write(out_, line.data(), line.size()) < 0) return;  // not by stdio: a test may hold its lock
    }
  }
  const int out_ = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 100);  // a test may read what goes to standard error
  std::mutex mutex_;
  std::condition_variable end_;
  bool ended_ = false;
  int number_ = 0;    // of the test that runs
  std::string name_;  // its name
  std::thread thread_;
};

Whereabouts* whereabouts;

// ---------------------------------------------------------------------------------------------------------------
// Counts, and failures once more

unsigned passed, failed;
std::map<std::string, unsigned> skipped;  // by the reason

std::string program;  // this one, as it was called

// The command that runs a test again as it ran: with the same cases.
std::string again(const std::string& name) {
  return (nanospec::a_tenth() ? "NANOSPEC_SEED=" + std::to_string(nanospec::sweep_seed()) : "NANOSPEC_PROVE=1") + " " +
         program + " -tc='" + pattern(name) + "'";
}

struct Counts : doctest::IReporter {
  explicit Counts(const doctest::ContextOptions&) {}
  void test_run_end(const doctest::TestRunStats& s) override {
    for (const std::string& place : wrong_) printf("failed: %s\n", place.c_str());
    for (const std::string& name : failed_) printf("again: %s\n", again(name).c_str());
    failed = s.numTestCasesFailed;
    passed = begun_ - failed;
    if (!without_device_.empty() && !later_part()) skipped[kKinds[0].why] = unsigned(without_device_.size());
  }
  void test_case_start(const doctest::TestCaseData& test) override {
    name_ = test.m_name;
    begun_++;
    if (whereabouts) whereabouts->begins(name_);
    if (!on_device && begins(name_, "emulated: ")) without_device_.insert(test.m_name + 10);
  }
  void test_case_skipped(const doctest::TestCaseData& test) override {
    if (later_part()) return;
    for (const Kind& kind : kKinds) {
      if (!begins(test.m_name, kind.begins) || kind.here()) continue;
      if (&kind == kKinds) without_device_.insert(test.m_name + 5);
      else skipped[kind.why]++;
      return;
    }
    if (resting.count(test.m_name)) skipped[kRests]++;
    else if (doctest::getContextOptions()->last == UINT_MAX) skipped[kFiltered]++;
  }
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {
    if (nanospec::a_tenth())
      printf("Of the long sweeps a tenth: NANOSPEC_SEED=%s draws the same one again.\n", std::getenv("NANOSPEC_SEED"));
    fflush(stdout);
  }
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException& e) override {
    if (e.is_crash) {  // no memory can be asked for: the crash may be malloc's
      dprintf(1, "failed: %s, in %s\n", e.error_string.c_str(), name_.c_str());
      _exit(1);
    }
    wrong_.push_back(std::string(e.error_string.c_str()) + ", in " + name_), failed_.insert(name_);
  }
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData& a) override {
    if (!a.m_failed) return;
    wrong_.push_back(std::string(a.m_file) + ":" + std::to_string(a.m_line) + ": " + a.m_expr + ", in " + name_);
    for (int i = 0; i < get_num_active_contexts(); i++) {  // what its message says
      std::ostringstream said;
      get_active_contexts()[i]->stringify(&said);
      wrong_.back() += ": " + said.str();
    }
    failed_.insert(name_);
  }
  void log_message(const doctest::MessageData&) override {}

 private:
  // With --last=N and --first=N+1 two processes run all tests between them: what is skipped counts in the first.
  static bool later_part() { return doctest::getContextOptions()->first > 0; }

  unsigned begun_ = 0;
  std::set<std::string> without_device_;  // tests that were compiled for a device or not, but have not run on one
  std::string name_;                      // of the test that runs
  std::vector<std::string> wrong_;        // told once more at the end, where one looks
  std::set<std::string> failed_;          // the tests that these are in
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
  program = argv[0];
  const auto clock_now = std::chrono::system_clock::now().time_since_epoch();
  const auto microseconds = std::chrono::duration_cast<std::chrono::microseconds>(clock_now).count();
  setenv("NANOSPEC_SEED", std::to_string(microseconds % 1000000 + 1).c_str(), 0);  // unless it is set
  doctest::Context context(argc, argv);
  context.setOption("no-version", true);
  on_device = device_for_tests && device_for_tests();
  for (const Kind& kind : kKinds)
    if (!kind.here()) context.addFilter("test-case-exclude", (std::string(kind.begins) + "*").c_str());
  bool by_name = false;
  for (int i = 1; i < argc; i++) by_name |= begins(argv[i], "-tc=") || begins(argv[i], "--test-case=");
  if (!by_name) take_turns(context);
  Whereabouts clock;
  whereabouts = &clock;
  const int status = context.run();
  whereabouts = nullptr;
  unsigned left_out = 0;
  for (const auto& [why, n] : skipped) {
    left_out += n;
    printf("skipped: %u: %s\n", n, why.c_str());
  }
  printf("%u passed, %u failed, %u skipped\n", passed, failed, left_out);
  return status;
}
