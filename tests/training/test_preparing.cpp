// tests/training/test_preparing.cpp: what a text takes before the first update: memory by the character, its refusal
// where there is too little, and what is said meanwhile.
#include <doctest/doctest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "tests/command_line.h"
#include "tests/error_of.h"
#include "tests/random.h"
#include "training/train_gpt.h"

using namespace nanospec;

namespace {

// Words of a few letters: as varied as English.
std::string made_up_words(size_t bytes) {
  Chance chance(5);
  std::string text;
  while (text.size() < bytes) {
    for (int k = 2 + chance.below(3); k > 0; k--) text += {"bdfgklmnprst"[chance.below(12)], "aeiou"[chance.below(5)]};
    text += chance.below(9) ? " " : ".\n";
  }
  text.resize(bytes);
  return text;
}

// What f writes, run by a process of its own.
std::string from_a_child(const std::function<std::string()>& f) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    const std::string line = f();
    _exit(write(ends[1], line.data(), line.size()) == ssize_t(line.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string line;
  char buffer[512];
  for (ssize_t got; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;) line.append(buffer, size_t(got));
  close(ends[0]), waitpid(child, nullptr, 0);
  return line;
}

GptOptions options(const Folder& folder, const std::string& data) {
  GptOptions o;
  o.data = data, o.out = folder.path, o.quiet = true;
  return o;
}

// The most that a process holds beside what it held before, in bytes, while it reads and counts a text.
[[maybe_unused]] double most_held(const Folder& folder, size_t bytes) {
  const std::string few = folder.file("few", made_up_words(10000)), all = folder.file("text", made_up_words(bytes));
  return std::stod(from_a_child([&] {
    const auto prepare = [&](const std::string& data) {
      GptOptions o = options(folder, data);
      Staged tables(folder.path, {bigram_path(""), ngram_path("")});
      save_tables(tables, o, read_text(o));
      tables.publish();
    };
    prepare(few);  // so that the program's own pages are there, which the system may have put away
    // As in a process that has not freed much yet: what is freed is given back. The tests before left holes in the
    // heap, where an array would stay: they are filled, and the filling is not touched.
    malloc_trim(0);
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    [[maybe_unused]] void* volatile filling;
    for (const void* end = sbrk(0); sbrk(0) == end;) filling = malloc(1000000);
    const double before = double(system_number("/proc/self/status", "VmRSS:", 0)) * 1024;
    prepare(all);
    return std::to_string(peak_bytes() - before);
  }));
}

std::string sparse_file(const Folder& folder, off_t bytes) {
  const std::string path = folder.file("sparse", "");
  REQUIRE(truncate(path.c_str(), bytes) == 0);
  return path;
}

}  // namespace

#ifndef SANITIZED  // which holds what was freed
TEST_CASE("preparing: reading and counting a text takes at most 12 bytes a character beside the table") {
  const Folder folder;
  double held[2], table[2];
  const size_t bytes[2] = {2000000, 6000000};
  for (int i = 0; i < 2; i++) {
    held[i] = most_held(folder, bytes[i]);
    table[i] = double(std::filesystem::file_size(ngram_path(folder.path)));
  }
  const double each = (held[1] - held[0] - (table[1] - table[0])) / double(bytes[1] - bytes[0]);
  CAPTURE(held[0]);
  CAPTURE(held[1]);
  CHECK(each <= 12);
  CHECK(held[1] <= 12 * double(bytes[1]) + table[1] + 4e6);
}
#endif

TEST_CASE("preparing: a text that does not fit is refused before it is read, with both numbers") {
  const Folder folder;
  const std::string data = sparse_file(folder, off_t(1) << 40);
  GptOptions o = options(folder, data);
  const double before = peak_bytes();
  const std::string line = error_of([&] { read_text(o); });
  CHECK(holds(line, "the file does not fit in memory: " + data + " (1099.5 GB): it takes 5497.6 GB, "));
  CHECK(holds(line, " GB are free; give a smaller file"));
  CHECK(holds(error_of([&] { read_file(data); }), "it takes 1099.5 GB, "));
  CHECK(peak_bytes() - before < 32e6);
}

#ifndef SANITIZED  // which has all addresses
TEST_CASE("preparing: the counts belong to what must fit") {
  const Folder folder;
  const std::string data = sparse_file(folder, 50000000);
  const std::string line = from_a_child([&] {
    const size_t taken = system_number("/proc/self/status", "VmSize:", 0) << 10, more = size_t(400) << 20;
    const rlimit limit = {taken + more, taken + more};
    setrlimit(RLIMIT_AS, &limit);
    GptOptions o = options(folder, data);
    return error_of([&] { read_text(o); });
  });
  CHECK(holds(line, "it takes 0.6 GB, 0.4 GB are free"));  // the tokens alone would fit
}
#endif

TEST_CASE("preparing: what is not counted is said") {
  CHECK(counted_text(1000, 1000).empty());
  CHECK(counted_text(12345, 1000) == "n-grams are counted in the first 1,000 of 12,345 training characters\n");
  CHECK(kNgramText == 64000000);
  CHECK(takes_counts(1e6) <= 12e6);
  CHECK(takes_counts(2e9) < 6 * 2e9);  // what is counted no longer grows
}

TEST_CASE("preparing: a large text has a line at each step, a small one none") {
  const auto said = [](double bytes, bool quiet) {
    return captured(2, [&] {
      Preparing preparing(bytes, quiet);
      preparing.step("reading"), preparing.step("counting");
      preparing.told()(0.5);
    });
  };
  CHECK(contains(said(60e6, false), "preparing 60.0 MB of text: reading\npreparing 60.0 MB of text: counting\n"));
  CHECK(said(60e6, true).empty());
  CHECK(said(1e6, false).empty());
}
