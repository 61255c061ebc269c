// tests/core/test_single.cpp: the core stands alone: `make single` writes it as one file, which the command on its
// first line compiles, and which trains a model and decodes by a tree what it decodes plain.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/command_line.h"

using namespace nanospec;

namespace {
// A text whose letters follow each other by habit.
std::string made_up(int n) {
  std::string text;
  for (int i = 0; i < n; i++) text += "the king and the queen of the land sing "[(i * 7 + i / 90) % 40];
  return text;
}
}  // namespace

TEST_CASE("single: the core as one file compiles as it says, trains, and decodes a tree byte for byte as plain") {
  const Folder folder;
  const auto run = [&](const std::string& command) {
    return std::system(("{ " + command + "; } >" + folder.file("out") + " 2>" + folder.file("errors")).c_str());
  };
  REQUIRE(run("sh machine/single.sh >" + folder.file("nanospec_single.cu")) == 0);
  const std::string source = read_file(folder.file("nanospec_single.cu"));
  CHECK(!contains(source, "#include \""));   // it needs nothing of the project
  CHECK(!contains(source, "matmul_twin("));  // nor what is tuned
  std::string line = source.substr(0, source.find('\n'));
  line = line.substr(line.find("g++"));  // ... -o single
  line = line.substr(0, line.find(" &&"));
  REQUIRE(run("cd " + folder.path + " && " + line + " -O1 -Wall -Wextra -Werror") == 0);
  write_file(folder.file("text"), made_up(20000));
  REQUIRE(run(folder.path + "/single " + folder.file("text") + " 20") == 0);
  const std::string said = read_file(folder.file("errors"));
  CHECK(contains(said, "the same bytes"));
  CHECK(read_file(folder.file("out")).size() == 320);  // the prompt, and the text
  const size_t at = said.find("tree:3x2 ");
  REQUIRE(at != std::string::npos);
  const int forwards = std::atoi(said.c_str() + at + 9);
  CHECK((forwards > 75 && forwards < 290));  // it speculates, and no forward commits more than four
}
