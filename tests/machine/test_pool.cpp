// tests/machine/test_pool.cpp: a pool whose threads cannot all be started; memory that is taken when it is written.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "machine/threads.h"

using namespace nanospec;

namespace {

// What a pool of so many threads says where address space ends that much above what the process has: "" when it works.
[[maybe_unused]] std::string said_within(size_t bytes, int threads) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t most = pages * size_t(sysconf(_SC_PAGESIZE)) + bytes;
    const rlimit limit = {most, most};
    setrlimit(RLIMIT_AS, &limit);
    std::string line;
    try {
      Pool pool(threads);
      std::atomic<int> here{0};
      pool.run([&](const Team&) { here++; });
      if (here != threads) line = "not all were there";
    } catch (const std::runtime_error& error) { line = error.what(); }
    _exit(::write(ends[1], line.data(), line.size()) < 0);
  }
  close(ends[1]);
  std::string line(4096, ' ');
  const ssize_t n = ::read(ends[0], &line[0], line.size());
  line.resize(size_t(n < 0 ? 0 : n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? line : "it ended with " + std::to_string(status);
}

}  // namespace

#ifndef SANITIZED  // which takes all address space
TEST_CASE("threads: where no more can be started it is said which, and what to do, and those that were end") {
  CHECK(said_within(size_t(1) << 30, 4) == "");
  const std::string line = said_within(size_t(60) << 20, 200);
  CHECK(line.find("cannot start thread ") == 0);
  CHECK(line.find(" of 200: --threads: ") != std::string::npos);
  CHECK(line.find("--threads 1") != std::string::npos);
}

TEST_CASE(
    "threads: of a large piece of memory only what is written is taken, all of it is zero, and it is given back") {
  const auto resident = [] {
    size_t pages = 0, here = 0;
    std::ifstream("/proc/self/statm") >> pages >> here;
    return here * size_t(sysconf(_SC_PAGESIZE));
  };
  const auto addresses = [] {
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages * size_t(sysconf(_SC_PAGESIZE));
  };
  constexpr size_t kBytes = size_t(100) << 20, kLittle = size_t(16) << 20;
  for (size_t odd : {size_t(0), size_t(5), kHugePage - 1}) {
    const size_t before = resident(), mapped = addresses();
    char* const piece = static_cast<char*>(allocate_zeroed(kBytes + odd));
    CHECK(reinterpret_cast<uintptr_t>(piece) % kHugePage == 0);
    piece[kBytes / 2] = 1;
    CHECK(resident() < before + kLittle);
    CHECK(addresses() >= mapped + kBytes);
    CHECK(addresses() < mapped + kBytes + kLittle);
    size_t sum = 0;
    for (size_t i = 0; i < kBytes + odd; i += 512) sum += size_t(piece[i]);
    CHECK(sum == 1);
    memset(piece, 1, kBytes + odd);
    CHECK(resident() >= before + kBytes);
    free_zeroed(piece, kBytes + odd);
    CHECK(resident() < before + kLittle);
    CHECK(addresses() < mapped + kLittle);
  }
}
#endif
