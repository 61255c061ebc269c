// tests/commands/test_page.cpp: the page of `nanospec show`, made by the real programs and tried in a browser without a
// window.
//
// main.cpp leaves it out, and counts it as skipped, where there is no Chromium, and under the sanitizers, which have no
// programs of their own.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "files/checkpoint.h"
#include "tests/error_of.h"

using namespace nanospec;

TEST_CASE("page: show writes one that loads, steps and races without an error") {
  char name[] = "/tmp/nanospec_page_XXXXXX";
  const std::string folder = mkdtemp(name), page = folder + "/show.html";
  const auto done = [&](const std::string& command) {
    const std::string log = folder + "/log";
    const int status = std::system((command + " >" + log + " 2>&1").c_str());
    CHECK_MESSAGE(status == 0, command << "\n" << read_file(log));
    return status == 0;
  };
  const bool ready = done("build/train_gpt --data README.md --preset article --out " + folder + "/model --quiet") &&
                     done("build/nanospec show --model " + folder +
                          "/model --prompt \"The \" --drafter suffix+ngram:3 --shape best-first --budget 9 "
                          "--max_new_tokens 60 --html " +
                          page);
  if (ready) {
    CHECK(!holds(read_file(page), "/*DATA*/"));
    done("sh tests/commands/page.sh " + page);
  }
  std::filesystem::remove_all(folder);
}
