// tests/machine/test_threads.cpp: machine/threads.h: teams of every size, more threads than cores, and the memory that
// there is.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <vector>

#include "machine/threads.h"
#include "tests/tenth.h"

using namespace nanospec;

namespace {

// What this process and all its threads have used of the processor.
rusage used() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage;
}
double seconds(const rusage& usage) {
  return double(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * double(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// The exit status of a process of its own that runs f.
[[maybe_unused]] int in_a_child(const std::function<int()>& f) {
  const pid_t child = fork();
  if (child == 0) _exit(f());
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("threads: of every size, with rounds of the caller's alone between: each thread runs a round once") {
  for (int threads = 1; threads <= 5; threads++) {
    Pool pool(threads);
    int wrong = 0;
    for (int round = 0; round < (a_tenth() ? 100 : 1000); round++) {
      const bool on_caller = round % 3 == 1;
      const int size = on_caller ? 1 : threads;
      std::vector<int> ran(size_t(threads), 0), seen(size_t(threads), 0);
      auto work = [&](const Team& team) {
        ran[team.rank]++;
        team.wait();
        for (int rank = 0; rank < team.size; rank++) seen[team.rank] += ran[rank];
      };
      pool.run(work, on_caller);
      for (int rank = 0; rank < threads; rank++)
        wrong += ran[rank] != (rank < size) || seen[rank] != (rank < size ? size : 0);
    }
    CAPTURE(threads);
    CHECK(wrong == 0);
  }
}

TEST_CASE("threads: an even team's halves run one half of the work each; another team runs one after the other") {
  for (int threads = 1; threads <= 6; threads++) {
    CAPTURE(threads);
    Pool pool(threads);
    const int each = threads % 2 ? threads : threads / 2;
    int wrong = 0;
    for (int round = 0; round < 100; round++) {
      const bool on_caller = round % 5 == 1;
      const int size = on_caller ? 1 : each;
      std::vector<int> ran[2] = {std::vector<int>(size_t(each)), std::vector<int>(size_t(each))};
      std::vector<int> seen[2] = {ran[0], ran[1]}, after(size_t(threads), 0);
      pool.run(
          [&](const Team& team) {
            team.halves([&](const Team& some, int half) {
              ran[half][size_t(some.rank)] += some.size == size;
              some.wait();
              for (int rank = 0; rank < some.size; rank++) seen[half][size_t(some.rank)] += ran[half][size_t(rank)];
            });
            for (int half : {0, 1})
              for (int rank = 0; rank < size; rank++) after[size_t(team.rank)] += seen[half][size_t(rank)];
          },
          on_caller);
      for (int half : {0, 1})
        for (int rank = 0; rank < each; rank++)
          wrong += ran[half][size_t(rank)] != (rank < size) || seen[half][size_t(rank)] != (rank < size ? size : 0);
      for (int rank = 0; rank < threads; rank++)
        wrong += after[size_t(rank)] != (rank < (on_caller ? 1 : threads) ? 2 * size * size : 0);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("threads: where they outnumber the cores, who waits sleeps at once, and wakes for every round") {
  constexpr int kThreads = 64, kRounds = 1000;
  REQUIRE(usable_cores() < kThreads);
  std::vector<int> ran(kThreads, 0);
  const rusage before = used();
  {
    Pool pool(kThreads);
    for (int round = 0; round < kRounds; round++) pool.run([&](const Team& team) { ran[team.rank]++; });
  }
  const rusage after = used();
  CHECK(ran == std::vector<int>(kThreads, kRounds));
  CHECK(after.ru_nvcsw - before.ru_nvcsw > kThreads * kRounds / 2);  // sleeps, of two waits a round
  // A spin of Signal::kSpins at each wait would be 6 seconds and more.
  CHECK(seconds(after) - seconds(before) < 4);
}

TEST_CASE("threads: one thread goes on alone while its team is late, for longer where it is late again") {
  TeamChoice choice;
  choice.measure(2, 1, [&](int rows) {  // a millisecond on one thread, less by two
    const auto start = std::chrono::steady_clock::now();
    while (seconds_since(start) < (choice.alone(rows) ? 0.001 : 0.0003)) continue;
  });
  CHECK(!choice.alone(1));
  const auto forwards_alone = [&](double seconds) {
    int n = 0;
    for (; choice.alone(1); n++) choice.took(1, seconds);
    return n;
  };
  for (int i = 0; i < 1000; i++) choice.took(1, 0.0019), choice.took(16, 0.016);
  CHECK(!choice.alone(1));
  choice.took(1, 0.05);
  CHECK(forwards_alone(0.001) == doctest::Approx(20).epsilon(0.06));
  choice.took(1, 0.0003), choice.took(1, 0.05);  // the team has run for less than that pause
  CHECK(forwards_alone(0.001) == doctest::Approx(40).epsilon(0.06));
  for (int i = 0; i < 1000; i++) choice.took(1, 0.0003);
  choice.took(1, 0.05);  // a long time later
  CHECK(forwards_alone(0.06) == 1);
  choice.took(1, 0.07);  // behind a long past, where one thread takes as long
  CHECK(!choice.alone(1));

  // One thread is better for one row, the team for two. A team that is late while two rows are tried changes nothing.
  TeamChoice small;
  int forwards_of_two = 0;
  small.measure(2, 2, [&](int rows) {
    const bool late = rows == 2 && ++forwards_of_two == 1;
    const double seconds = late ? 0.005 : small.alone(rows) == (rows == 1) ? 0.0003 : 0.001;
    const auto start = std::chrono::steady_clock::now();
    while (seconds_since(start) < seconds) continue;
    small.took(rows, seconds);
  });
  CHECK(small.alone(1));
  CHECK(!small.alone(2));
}

TEST_CASE("threads: a limit on a process's addresses counts as memory that is not there") {
#ifndef SANITIZED
  CHECK(in_a_child([] {
          const size_t taken = system_number("/proc/self/status", "VmSize:", 0) << 10, more = size_t(100) << 20;
          const rlimit limit = {taken + more, taken + more};
          return setrlimit(RLIMIT_AS, &limit) == 0 && available_bytes() <= more && available_bytes() > more / 2 ? 0 : 1;
        }) == 0);
#endif
  CHECK(available_bytes() > 0);
  CHECK((system_number("/proc/meminfo", "MemTotal:", 0) << 10) > available_bytes());
  CHECK(system_number("/proc/meminfo", "Nothing:", 7) == 7);
  CHECK(system_number("/proc/no such file", "", 9) == 9);
}
