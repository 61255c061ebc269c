// tests/core/test_single.cpp: the core stands alone: `make single` writes it as one file, which the commands on its
// first lines compile, typed from the project's root, and which trains a model and decodes by a tree what it decodes
// plain.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/folder.h"

using namespace nanospec;

namespace {
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
// A text whose letters follow each other by habit.
std::string made_up(int n) {
  std::string text;
  for (int i = 0; i < n; i++) text += "the king and the queen of the land sing "[(i * 7 + i / 90) % 40];
  return text;
}

// A folder that has of the project no more than build/nanospec_single.cu, and a text.
struct Root {
  Folder folder;
  std::string source;
  Root() {
    std::filesystem::create_directory(folder.file("build"));
    REQUIRE(run("sh machine/single.sh >" + folder.file("build/nanospec_single.cu")) == 0);
    source = read_file(folder.file("build/nanospec_single.cu"));
    write_file(folder.file("text"), made_up(20000));
  }
  int run(const std::string& command) const {
    return std::system(("{ " + command + "; } >" + folder.file("out") + " 2>" + folder.file("errors")).c_str());
  }
  int run_here(const std::string& command) const { return run("cd " + folder.path + " && " + command); }
  // The command of the first lines that begins so, up to " && ", or what is behind that.
  std::string typed(const std::string& compiler, bool behind) const {
    const size_t at = source.find(compiler), middle = source.find(" && ", at), end = source.find('\n', at);
    REQUIRE((at < middle && middle < end && end != std::string::npos));
    return behind ? source.substr(middle + 4, end - middle - 4) : source.substr(at, middle - at);
  }
  // How many forwards the trees took for the 300 tokens.
  int forwards() const {
    const std::string said = read_file(folder.file("errors"));
    CHECK(contains(said, "the same bytes"));
    CHECK(read_file(folder.file("out")).size() == 320);  // the prompt, and the text
    const size_t at = said.find("tree:3x2 ");
    REQUIRE(at != std::string::npos);
    return std::atoi(said.c_str() + at + 9);
  }
};
}  // namespace

TEST_CASE("single: the core as one file compiles as it says, trains, and decodes a tree byte for byte as plain") {
  const Root root;
  CHECK(!contains(root.source, "#include \""));   // it needs nothing of the project
  CHECK(!contains(root.source, "matmul_twin("));  // nor what is tuned
  CHECK(!contains(root.source, "emulator::"));    // nor of its tests
  REQUIRE(root.run_here(root.typed("g++", false) + " -Wall -Wextra -Werror") == 0);
  REQUIRE(root.run_here(root.typed("g++", true) + " 1") == 0);  // the text is there
  REQUIRE(root.run_here("build/single text 20") == 0);
  const int forwards = root.forwards();
  CHECK((forwards > 75 && forwards < 290));  // it speculates, and no forward commits more than four
}

TEST_CASE("single: nvcc compiles it as it says, without a word; with a GPU it runs there") {
  const Root root;
  REQUIRE(root.run_here(root.typed("nvcc", false)) == 0);
  CHECK(read_file(root.folder.file("errors")) == "");
  CHECK(root.typed("nvcc", true) == root.typed("g++", true));
  REQUIRE(root.run_here("build/single text 1") == 0);
  root.forwards();
}
