// tests/core/test_single.cpp: the core stands alone: `make single` writes it as one file, which the commands on its
// first lines compile, typed from the project's root, and which trains a model and decodes by a tree what it decodes
// plain. Its weights and its texts are the project's own, and it is a text to read from top to bottom.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "decode.h"
#include "target.h"
#include "tests/folder.h"
#include "train.h"

// The same main on the project's own core.
namespace project {
namespace nanospec {
using namespace ::nanospec;
}
#include "machine/single.cpp"
}  // namespace project

using namespace nanospec;

namespace {
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
// A text whose letters follow each other by habit.
std::string habitual(int n) {
  std::string text;
  for (int i = 0; i < n; i++) text += "the king and the queen of the land sing "[(i * 7 + i / 90) % 40];
  return text;
}

// A folder that has of the project no more than build/nanospec_single.cu, and a text.
struct SingleFile {
  Folder folder;
  std::string source;
  SingleFile() {
    std::filesystem::create_directory(folder.file("build"));
    REQUIRE(run("sh machine/single.sh >" + folder.file("build/nanospec_single.cu")) == 0);
    source = read_file(folder.file("build/nanospec_single.cu"));
    write_file(folder.file("text"), habitual(20000));
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
    CHECK(has(said, "the same bytes"));
    CHECK(read_file(folder.file("out")).size() == 320);  // the prompt, and the text
    const size_t at = said.find("tree:3x2 ");
    REQUIRE(at != std::string::npos);
    return std::atoi(said.c_str() + at + 9);
  }
};

// The numbers of the last update's weights, and behind them the tokens of a text.
#define WEIGHTS_AND_TEXT                                                     \
  const Config config = article(11);                                         \
  const auto pool = std::make_shared<Pool>(1, false, true);                  \
  std::vector<int> tokens;                                                   \
  for (int i = 0; i < 2000; i++) tokens.push_back(i* i % 97 % 11);           \
  std::vector<float> numbers = train(config, tokens, 2, *pool);              \
  Target target(config, numbers.data(), Dtype::fp32, pool, kBudget + 1);     \
  Bigram bigram(bigram_table(tokens, config.vocab_size), config.vocab_size); \
  int forwards = 0;                                                          \
  for (int token : decode(target, &bigram, {1, 2, 3}, &forwards)) numbers.push_back(float(token));
#define AS_TEXT(code) AS_TEXT_ITSELF(code)
#define AS_TEXT_ITSELF(...) #__VA_ARGS__
}  // namespace

namespace project::nanospec {
namespace {
std::vector<float> weights_and_text() {
  WEIGHTS_AND_TEXT
  return numbers;
}
}  // namespace
}  // namespace project::nanospec

TEST_CASE("single: the core as one file compiles as it says, trains, and decodes a tree byte for byte as plain") {
  const SingleFile single;
  REQUIRE(single.run_here(single.typed("g++", false) + " -Wall -Wextra -Werror") == 0);
  REQUIRE(single.run_here(single.typed("g++", true) + " 1") == 0);  // the text is there
  REQUIRE(single.run_here("build/single text 20") == 0);
  const int forwards = single.forwards();
  CHECK((forwards > 75 && forwards < 290));  // it speculates, and no forward commits more than four
}

TEST_CASE("single: its weights and its text have the project's bits") {
  const SingleFile single;
  std::string source = single.source;
  const size_t at = source.find("int main(");
  REQUIRE(at != std::string::npos);
  source.replace(at, 9, "int unused(");
  source += "namespace nanospec {\nvoid run() {\n" AS_TEXT(WEIGHTS_AND_TEXT) "\n"
            "fwrite(numbers.data(), sizeof numbers[0], numbers.size(), stdout);\n}\n}\n"
            "int main() { nanospec::run(); }\n";
  write_file(single.folder.file("build/nanospec_single.cu"), source);
  REQUIRE(single.run_here(std::regex_replace(single.typed("g++", false), std::regex("-O3"), "-O1")) == 0);
  REQUIRE(single.run_here("build/single") == 0);
  const std::string bytes = read_file(single.folder.file("out"));
  const std::vector<float> own = project::nanospec::weights_and_text();
  REQUIRE(own.size() > 303);
  REQUIRE(bytes.size() == own.size() * sizeof(float));
  CHECK(memcmp(bytes.data(), own.data(), bytes.size()) == 0);
}

TEST_CASE("single: on the emulated GPU it trains, and decodes a tree byte for byte as plain") {
  const SingleFile single;
  std::string source = single.source;
  const std::pair<const char*, const char*> changes[] = {
      {"__CUDACC__", "EMULATED_CUDA"},
      {"kernel<<<grid, threads>>>\\(arguments...\\);",
       "emulator::launch(grid, threads, [=] { kernel(arguments...); });"},
      {"kBatch = [0-9]+", "kBatch = 2"},
      {"kNewTokens = [0-9]+", "kNewTokens = 30"}};
  for (const auto& [from, to] : changes) {
    REQUIRE(std::regex_search(source, std::regex(from)));
    source = std::regex_replace(source, std::regex(from), to);
  }
  const std::string file = single.folder.file("emulated.cpp", source), program = single.folder.file("emulated");
  REQUIRE(single.run("g++ -std=c++17 -O1 -ffp-contract=off -I. -include tests/cuda/emulator.h " + file +
                     " -pthread -o " + program) == 0);
  REQUIRE(single.run(program + " " + single.folder.file("text") + " 2") == 0);
  const std::string said = read_file(single.folder.file("errors"));
  CHECK(has(said, "30 tokens on the GPU: plain 30 forwards, tree:3x2 "));
  CHECK(has(said, "the same bytes"));
}

TEST_CASE("single: it is read from top to bottom: short, the tree first, and nothing in it is elsewhere") {
  const SingleFile single;
  int lines = 0, code = 0;
  std::string parts;  // in order
  std::vector<std::string> named;
  std::istringstream text(single.source);
  for (std::string line; std::getline(text, line); lines++) {
    static const std::regex head("// ([a-z_]+\\.(h|cuh)): .*"), name("[a-z_0-9/]+\\.(h|cuh|cu|cpp|sh)\\b"),
        folder("\\b(machine|cuda|growth|rules|watch|files|drafters|training|commands|study|course|docs|tests)/");
    const size_t first = line.find_first_not_of(' ');
    if (first != std::string::npos && line.compare(first, 2, "//") != 0) code++;
    if (std::smatch its; std::regex_match(line, its, head)) parts += its.str(1) + " ";
    INFO(line);
    CHECK(!std::regex_search(line, folder));
    if (lines > 1)  // the commands
      for (std::sregex_iterator i(line.begin(), line.end(), name), end; i != end; ++i) named.push_back(i->str());
  }
  CHECK(lines <= 3500);
  CHECK(code <= 2800);
  CHECK(parts ==
        "tree.h numbers.h sample.h draft.h decode.h kernels.cuh rows.h model.h target.h gradients.cuh train.h ");
  for (const std::string& name : named) CHECK_MESSAGE(has(parts, name + " "), name);
  for (const char* word : {"#include \"", "// course", "INSTANTIATE", "TUNED_CUDA", "Q8_0", "f16 ", "emulator::"})
    CHECK_MESSAGE(!has(std::regex_replace(single.source, std::regex("bf16"), ""), word), word);
}

TEST_CASE("single: nvcc compiles it as it says, without a word; with a GPU it runs there") {
  const SingleFile single;
  REQUIRE(single.run_here(single.typed("nvcc", false)) == 0);
  CHECK(read_file(single.folder.file("errors")) == "");
  CHECK(single.typed("nvcc", true) == single.typed("g++", true));
  REQUIRE(single.run_here("build/single text 1") == 0);
  single.forwards();
}
