// tests/machine/test_threads.cpp: machine/threads.h: teams of every size, more threads than cores, a team that yields
// to other programs, and the memory that there is.
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

double processor_seconds() {
  timespec ran = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ran);
  return double(ran.tv_sec) + 1e-9 * double(ran.tv_nsec);
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

TEST_CASE("threads: teams of changing size: each of a round's threads runs it once, and no other") {
  constexpr int kThreads = 5;
  Pool pool(kThreads);
  int wrong = 0;
  for (int round = 0; round < (a_tenth() ? 300 : 3000); round++) {
    const int threads = 1 + (round * 7 + round / 11) % kThreads;
    std::vector<int> ran(kThreads, 0), seen(kThreads, 0);
    pool.run_on(threads, [&](const Team& team) {
      ran[team.rank]++;
      team.wait();
      for (int rank = 0; rank < team.size; rank++) seen[team.rank] += ran[rank];
    });
    for (int rank = 0; rank < kThreads; rank++)
      wrong += ran[rank] != (rank < threads) || seen[rank] != (rank < threads ? threads : 0);
  }
  CHECK(wrong == 0);
}

TEST_CASE("threads: where they outnumber the cores, who waits sleeps at once, and wakes for every round") {
  constexpr int kThreads = 64, kRounds = 1000;
  REQUIRE(usable_cores() < kThreads);
  std::vector<int64_t> slept_times(kThreads, 0);
  std::vector<int> ran(kThreads, 0);
  const double before = processor_seconds();
  {
    Pool pool(kThreads);
    for (int round = 0; round < kRounds; round++)
      pool.run([&](const Team& team) { ran[team.rank]++, slept_times[team.rank] = slept().times; });
  }
  int64_t times = 0;
  for (int64_t own : slept_times) times += own;
  CHECK(ran == std::vector<int>(kThreads, kRounds));
  CHECK(times > kThreads * kRounds / 2);  // of two waits a round
  // A spin of Signal::kTurns at each wait would be 6 seconds and more.
  CHECK(processor_seconds() - before < 4);
}

TEST_CASE("threads: a team yields where it was kept waiting twice in a row, and comes back after a rest") {
  TeamSize team(2);
  double now = 0;
  const auto stretch = [&](double lost) {
    now += 0.02, team.judge(now, 0.02, lost);
    return team.at(now);
  };
  CHECK(team.at(now) == 2);
  for (int i = 0; i < 5; i++) CHECK(stretch(0.1) == 2);
  for (int i = 0; i < 3; i++) {  // never twice in a row
    CHECK(stretch(0.6) == 2);
    CHECK(stretch(0.0) == 2);
  }
  CHECK(stretch(0.5) == 2);
  CHECK(stretch(0.5) == 1);
  const auto rest = [&] {
    int stretches = 0;
    while (team.at(now) == 1) now += 0.02, stretches++;
    return stretches;
  };
  const int first = rest(), first_again = (stretch(0.5), rest());
  CHECK(first >= 8);
  CHECK(first_again >= 15);  // one trial was enough
  stretch(0.5), rest(), stretch(0.5);
  CHECK(rest() < 35);  // never rests for long
  CHECK(stretch(0.0) == 2);
  CHECK(stretch(0.5) == 2);
  CHECK(stretch(0.5) == 1);
  CHECK(rest() <= first + 1);
}

TEST_CASE("threads: a team yields as many threads as cores are lost, and one is left") {
  for (const auto& [lost, left] :
       {std::pair<double, int>{0.2, 8}, {0.35, 7}, {0.5, 7}, {1.0, 6}, {1.6, 5}, {3.9, 1}, {7.5, 1}}) {
    TeamSize team(8);
    team.judge(1, 1, lost), team.judge(2, 1, lost);
    CAPTURE(lost);
    CHECK(team.at(2) == left);
  }
}

TEST_CASE("threads: a pool sees that its thread neither runs nor sleeps by its own will, and takes it back") {
  if (usable_cores() < 2) return;  // threads that outnumber the cores are never judged
  Pool pool(2);
  pool.yields = true;
  int size = 0;
  const auto run = [&](int microseconds) {
    pool.run([&](const Team& team) {
      if (team.rank == 0) size = team.size;
      if (team.rank == 1) usleep(useconds_t(microseconds));  // stands for a core that another program has
    });
    return size;
  };
  int runs = 0;
  while (run(30000) == 2 && runs < 10) runs++;
  CHECK(size == 1);
  CHECK(runs >= 2);
  int turns = 0;
  while (run(0) == 1 && turns < 1000) usleep(20000), turns++;
  CHECK(size == 2);
  threads_beside_team++;  // one of the program's own takes the core: that is meant
  for (int i = 0; i < 6; i++) CHECK(run(30000) == 2);
  threads_beside_team--;
}

TEST_CASE("threads: a limit on a process's addresses counts as memory that is not there") {
#if !defined(__SANITIZE_ADDRESS__)
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
