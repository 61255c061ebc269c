// tests/course/test_course.cpp: the course: marks, what a starter holds and does not, what the grader says of right,
// wrong and broken submissions, and the worked examples of the chapters' pages.
//
// The starter is made by `make starter`, in build/course, as a teacher makes it.
#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "course/regions.h"
#include "files/io.h"
#include "kernels.cuh"
#include "rules/verify.h"
#include "tests/folder.h"
#include "tests/tenth.h"
#include "tree.h"

using namespace nanospec;
namespace fs = std::filesystem;

namespace {

// ---------------------------------------------------------------------------------------------------------------
// Marks

const std::string kMarked =
    "#pragma once\n"
    "int f() {\n"
    "  // course 5.1\n"
    "  int x = 1;\n"
    "  return x;\n"
    "  // end\n"
    "}\n"
    "int g() { return 2; }  // course 5.2 (until then: return 0;)\n"
    "// A comment that says `// course 5.1` is no mark.\n"
    "int h() {\n"
    "  // course 5\n"
    "  return 3;\n"
    "  // end\n"
    "}\n";

TEST_CASE("course: regions are read, cut out and put back") {
  const std::vector<course::Region> regions = course::regions_of(kMarked);
  REQUIRE(regions.size() == 3);
  CHECK(kMarked.substr(regions[0].begin, regions[0].end - regions[0].begin) == "  int x = 1;\n  return x;\n");
  CHECK(kMarked.substr(regions[1].begin, regions[1].end - regions[1].begin) == " return 2; ");
  CHECK(course::is_written(regions[0]));
  CHECK(!course::is_written(regions[2]));
  const std::string blank = course::cut(kMarked);
  CHECK(blank ==
        "#pragma once\n\n#include <stdexcept>\n"
        "int f() {\n"
        "  // course 5.1\n"
        "  throw std::runtime_error(\"chapter 5.1 is not written yet\");\n"
        "  // end\n"
        "}\n"
        "int g() {\n"
        "  // course 5.2\n"
        "  return 0;\n"
        "  // end\n"
        "}\n"
        "// A comment that says `// course 5.1` is no mark.\n"
        "int h() {\n"
        "  // course 5\n"
        "  throw std::runtime_error(\"left out of the course\");\n"
        "  // end\n"
        "}\n");
  const std::string whole = course::paste(blank, course::bodies_of(kMarked));
  CHECK(course::bodies_of(whole)["5.1"] == course::bodies_of(kMarked)["5.1"]);
  CHECK(whole.find("    return 2;\n") != std::string::npos);
  CHECK(whole.find("not written") == std::string::npos);
  CHECK(course::paste(blank, {}) == blank);
}

TEST_CASE("course: a wrong mark is named, and costs its own region alone") {
  const auto problems = [](const std::string& text) { return course::read_marks(text).problems; };
  CHECK(problems(kMarked).empty());
  CHECK(problems("// course 1.1\n") == std::vector<std::string>{"line 1: region 1.1 has no `// end` before this line"});
  CHECK(problems("\n// end\n") == std::vector<std::string>{"line 2: `// end` without a beginning"});
  CHECK(problems("int x; }  // course 1.1\n") ==
        std::vector<std::string>{"line 1: region 1.1 has no braces before its mark"});
  const std::string lost = "// course 1.1\na\n// course 1.2\nb\n// end\n// course 1.3\nc";  // without a last newline
  CHECK(course::bodies_of(lost) == course::Bodies{{"1.2", {"b\n"}}});
  CHECK_THROWS_AS(course::regions_of(lost), std::runtime_error);
}

// ---------------------------------------------------------------------------------------------------------------
// The starter

#ifndef SANITIZED

// What the command prints, and its exit status.
struct Ran {
  std::string text;
  int status;
};
Ran run(const std::string& command) {
  Ran ran;
  FILE* const pipe = popen(("unset MAKEFLAGS MAKELEVEL; " + command + " 2>&1").c_str(), "r");
  REQUIRE(pipe);
  char part[4096];
  for (size_t n; (n = fread(part, 1, sizeof part, pipe)) > 0;) ran.text.append(part, n);
  ran.status = WEXITSTATUS(pclose(pipe));
  return ran;
}

const std::string kStarter = "build/course";
const std::vector<int> kChapters = {1, 2, 4, 5, 6, 10};

void make_starter() {
  static const Ran made = run("make course");
  INFO(made.text);
  REQUIRE(made.status == 0);
}

// Grades a submission; results.json is read.
nlohmann::json graded(const std::string& submission, const std::string& chapter = "", const std::string& more = "") {
  const Folder folder;
  const Ran ran =
      run("cd " + kStarter + " && build/grade --submission " + submission + " --results " +
          folder.file("results.json") + (chapter.empty() ? "" : " --chapter '" + chapter + "'") + " " + more);
  INFO(ran.text);
  REQUIRE(fs::exists(folder.file("results.json")));
  return nlohmann::json::parse(read_file(folder.file("results.json")));
}
std::string state(const nlohmann::json& results, int chapter) {
  return results["extra_data"]["chapters"][std::to_string(chapter)]["state"];
}
std::string why(const nlohmann::json& results, int chapter) {
  return results["extra_data"]["chapters"][std::to_string(chapter)]["why"];
}
const std::string kWithReference = "--seed 7 --reference " + fs::absolute("build/reference").string();

std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files[entry.path().string()] = read_file(entry.path().string());
  return files;
}

std::string trimmed(const std::string& line) {
  const size_t first = line.find_first_not_of(' ');
  return first == std::string::npos ? "" : line.substr(first);
}

TEST_CASE("course: a starter holds no line of an answer, in no file") {
  make_starter();
  const Folder folder;
  REQUIRE(run("tar -xzf build/course.tar.gz -C " + folder.path).status == 0);
  const auto files = files_of(folder.path);
  CHECK(files.size() > 40);
  int lines = 0;
  for (const char* source : {"tree.h", "kernels.cuh", "rules/verify.h"})
    for (const auto& [number, bodies] : course::bodies_of(read_file(source)))
      for (const std::string& body : bodies) {
        std::istringstream in(body);
        for (std::string line; std::getline(in, line);) {
          line = trimmed(line);
          // Short lines prove nothing, nor does what stands outside the marks of the operation.
          if (line.size() < 31 || line == "const int* const rows = s.kept + 2;") continue;
          lines++;
          for (const auto& [name, text] : files) {
            INFO(name << " has a line of region " << number << ": " << line);
            CHECK(text.find(line) == std::string::npos);
          }
        }
      }
  CHECK(lines > 60);
  // No tuned version, no other engine's test, no history, no teacher's file.
  for (const auto& [name, text] : files) {
    INFO(name);
    const std::string path = name.substr(folder.path.size() + 8);  // behind /course/
    for (const char* no :
         {"tuned", "products.h", "attention.h", "cuda/attention", "test_", "teacher", ".git", "build/"})
      CHECK(path.find(no) == std::string::npos);
  }
}

TEST_CASE("course: the starter compiles, and every chapter says that it is not written yet") {
  make_starter();
  const nlohmann::json results = graded(".");
  CHECK(results["score"] == 0);
  for (int chapter : kChapters) {
    CHECK(state(results, chapter) == "failed");
    CHECK(why(results, chapter) == "chapter " + std::to_string(chapter) + ".1 is not written yet");
  }
  int points = 0;
  for (const auto& test : results["tests"]) {
    points += test["max_score"].get<int>();
    CHECK(test["status"] == "failed");
    CHECK(!test["name"].get<std::string>().empty());
  }
  CHECK(points == 60);
  // A prompt measure says the same, in a line.
  const Ran measure = run("make -C " + kStarter + " measure CHAPTER=5");
  CHECK(measure.status != 0);
  CHECK(measure.text.find("chapter 5.1 is not written yet") != std::string::npos);
}

TEST_CASE("course: the engine itself passes, by recorded answers and by a new seed") {
  make_starter();
  for (const std::string& way : {std::string(), kWithReference}) {
    const nlohmann::json results = graded(fs::absolute(".").string(), "", way);
    CHECK(results["score"] == 60);
    for (int chapter : kChapters) CHECK(why(results, chapter) == "");
  }
}

TEST_CASE("course: stored solutions are judged as they say") {
  make_starter();
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator("course/teacher/solutions")) files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  CHECK(files.size() == 8);
  int right = 0, wrong = 0;
  for (const std::string& file : files) {
    const Folder folder;
    const Ran made = run("build/make_course solutions " + file + " " + folder.path);
    INFO(made.text);
    REQUIRE(made.status == 0);
    const std::string number = fs::path(file).stem().string(), chapter = number.substr(0, number.find('.'));
    int of_file[2] = {0, 0}, taken[2] = {0, 0};
    for (int i = 1; fs::exists(folder.file(std::to_string(i))); i++) {
      const std::string submission = folder.file(std::to_string(i));
      std::istringstream expected(read_file(submission + "/expected"));
      std::string kind, says;
      std::getline(expected, kind);
      std::getline(expected, says);
      of_file[kind == "right"]++;
      if (a_tenth() && taken[kind == "right"]++ > 0) continue;  // one of each kind
      const nlohmann::json results = graded(submission, chapter, kWithReference);
      INFO(number << ": " << kind << ": " << read_file(submission + "/name") << results.dump(1));
      CHECK(state(results, std::stoi(chapter)) == (kind == "right" ? "passed" : "failed"));
      bool said = false;
      for (const auto& test : results["tests"])
        said |= test["output"].get<std::string>().find(says) != std::string::npos;
      CHECK(said);
      (kind == "right" ? right : wrong)++;
    }
    INFO(file);
    CHECK(of_file[0] >= 6);
    CHECK(of_file[1] >= 2);
  }
  CHECK(right >= 8);
  CHECK(wrong >= 8);
}

// The engine's solution with one file changed.
std::string changed(const Folder& folder, const std::string& file, const std::string& from, const std::string& to) {
  for (const char* source : {"tree.h", "kernels.cuh", "rules/verify.h"}) {
    std::string text = read_file(source);
    const size_t at = source == file ? text.find(from) : std::string::npos;
    if (source == file) REQUIRE(at != std::string::npos);
    if (source == file) text.replace(at, from.size(), to);
    fs::create_directories(fs::path(folder.file(source)).parent_path());
    folder.file(source, text);
  }
  return folder.path;
}

TEST_CASE("course: a chapter that does not compile, crashes, or lost its marks costs no other chapter") {
  make_starter();
  const struct {
    const char *file, *from, *to, *says;
  } cases[] = {
      {"tree.h", "const int N = size[0];", "const int N = size[0]", "tree.h:"},
      {"tree.h", "const int N = size[0];", "const int N = size[0];\n#if 0", "it does not compile"},
      {"tree.h", "const int N = size[0];", "const int N = size[0];\n  std::abort();", "the program ended by a fault"},
      {"tree.h", "const int N = size[0];", "const int N = size[0];\n  while (tree.size() != -1) tree.token.clear();",
       "no answer in time"},
      {"tree.h", "    tree.origin[at] = i;\n  }\n  // end\n", "    tree.origin[at] = i;\n  }\n", "5.1"},
  };
  for (const auto& one : cases) {
    const Folder folder;
    const nlohmann::json results = graded(changed(folder, one.file, one.from, one.to), "5 6", kWithReference);
    INFO(results.dump(1));
    CHECK(state(results, 5) == "failed");
    CHECK(why(results, 5).find(one.says) != std::string::npos);
    CHECK(state(results, 6) == "passed");
  }
}

TEST_CASE("course: the grader says what it lacks") {
  make_starter();
  const Ran nowhere = run("cd /tmp && " + fs::absolute(kStarter).string() + "/build/grade");
  CHECK(nowhere.status == 2);
  CHECK(nowhere.text.find("run it in the starter's folder") != std::string::npos);
  const Ran no_chapter = run("cd " + kStarter + " && build/grade --chapter 3");
  CHECK(no_chapter.status == 2);
  CHECK(no_chapter.text.find("choose of 1 2 4 5 6 10") != std::string::npos);
  const Folder folder;
  CHECK(graded(folder.path, "4")["extra_data"]["chapters"]["4"]["why"] == "the submission has no rules/verify.h");
  // Without a compiler nothing is wrong, but blocked.
  const Ran blocked =
      run("cd " + kStarter +
          " && rm -f build/chapter4 build/chapter4.o && CXX=no-such-compiler build/grade --chapter 4 --submission " +
          fs::absolute(".").string() + " --results " + folder.file("r.json"));
  CHECK(blocked.text.find("blocked") != std::string::npos);
  CHECK(nlohmann::json::parse(read_file(folder.file("r.json")))["extra_data"]["chapters"]["4"]["state"] == "blocked");
}
#endif

// ---------------------------------------------------------------------------------------------------------------
// The worked examples of the pages, computed again

// Whether the page has these lines, one below the other.
bool page_has(int chapter, const std::string& lines) {
  return read_file("course/chapter" + std::to_string(chapter) + ".md").find(lines) != std::string::npos;
}
std::string row_of(const std::string& name, const std::vector<int>& numbers) {
  std::string line = name;
  for (int n : numbers) {
    char text[16];
    snprintf(text, sizeof text, "%4d", n);
    line += text;
  }
  return line + "\n";
}
std::string fixed(const std::string& name, const std::vector<double>& numbers, const char* form) {
  std::string line = name;
  for (double n : numbers) {
    char text[32];
    snprintf(text, sizeof text, form, n);
    line += text;
  }
  return line + "\n";
}

std::vector<float> product(int rows, int K, int N, const std::vector<float>& x, const std::vector<float>& w) {
  Panels<float> panels{nullptr, K, N};
  std::vector<float> memory(panels.size()), out(size_t(rows) * pad16(N)), result;
  panels.data = memory.data();
  const Pack<float, float> pack{w.data(), size_t(N), 1, panels};
  for (int row = 0; row < pack.rows(); row++) pack(Solo{}, row);
  Matmul<float, float>{x.data(), K, panels, out.data(), pad16(N)}(Solo{}, rows, 0, pad16(N));
  for (int row = 0; row < rows; row++)
    for (int n = 0; n < N; n++) result.push_back(out[size_t(row) * pad16(N) + n]);
  return result;
}

TEST_CASE("course: the worked examples of chapter 1 are what the engine computes") {
  const auto in_order = [](const std::vector<float>& x) { return int(product(1, 3, 1, x, {1, 1, 1})[0]); };
  const int first = in_order({1e8f, 1, -1e8f}), second = in_order({1e8f, -1e8f, 1});
  CHECK(page_has(1, "k = 0, 1, 2: " + std::to_string(first) + "\nk = 0, 2, 1: " + std::to_string(second) + "\n"));
  const auto out = product(2, 2, 3, {1, 2, 3, -1}, {1, 0, 2, 2, 2, -1});
  char text[200];
  snprintf(text, sizeof text,
           "x   1  2      w   1  0  2      out  %3.0f%3.0f%3.0f\n    3 -1          2  2 -1           %3.0f%3.0f%3.0f\n",
           double(out[0]), double(out[1]), double(out[2]), double(out[3]), double(out[4]), double(out[5]));
  INFO(text);
  CHECK(page_has(1, text));
}

TEST_CASE("course: the worked example of chapter 2 is what the engine computes") {
  const int n = 3, slots = 64;
  const std::vector<int> end(n, n), depth = {0, 1, 2}, root(n, 0), first_row = {0, n}, slot = {0}, past = {0};
  const Forest forest{n, 1, end.data(), depth.data(), root.data(), first_row.data(), slot.data(), past.data()};
  const std::vector<float> qkv = {0, 0, 1, 0, 1, 0, 1, 2, 4};  // query, key, value of each row
  std::vector<float> k(slots), v(KeyValues<float>::value_numbers(slots, 1)), out(n), log_sum(n), weights(n * n);
  const Attention<float> s{forest,         1, 1, 1, qkv.data(), 3, {k.data(), v.data(), slots, 1}, out.data(), 1,
                           log_sum.data(), {}};
  for (int row = 0; row < n; row++) WriteCache<float, float>{s}(Solo{}, row);
  for (int row = 0; row < n; row++) AttentionForward<float, float>{s, weights.data(), n}(Solo{}, row);
  const float total = weights[6] + weights[7] + weights[8];
  const std::string lines =
      fixed("scores  ", {0, 1, 2}, " %.4f") +
      fixed("weights ", {double(weights[6] / total), double(weights[7] / total), double(weights[8] / total)}, " %.4f") +
      fixed("out     ", {double(out[2])}, " %.4f") + fixed("log_sum ", {double(log_sum[2])}, " %.4f");
  INFO(lines);
  CHECK(page_has(2, lines));
}

TEST_CASE("course: the worked example of chapter 4 is what the engine computes") {
  const Chances p = {0.5, 0.3, 0.2}, q = {0.2, 0.6, 0.2};
  Chances residual = p, accepted(3), text(3);
  take_residual(residual, 1, q);
  double all = 0;
  for (int x = 0; x < 3; x++) {
    accepted[x] = std::min(1.0, p[x] / q[x]);
    all += q[x] * accepted[x];
  }
  for (int x = 0; x < 3; x++) text[x] = q[x] * accepted[x] + (1 - all) * residual[x];
  const std::string lines = fixed("p        ", p, "  %.2f") + fixed("q        ", q, "  %.2f") +
                            fixed("accepted ", accepted, "  %.2f") + fixed("residual ", residual, "  %.2f") +
                            fixed("text     ", text, "  %.2f");
  INFO(lines);
  CHECK(page_has(4, lines));
  CHECK(all == doctest::Approx(0.7));
}

Tree tree_of_the_pages() {
  Growth growth;
  growth.start(7);
  for (const auto& [parent, token] : std::vector<std::pair<int, int>>{{0, 3}, {0, 5}, {1, 8}, {2, 2}, {1, 9}})
    growth.add(parent, {token, 0.5f});
  CHECK(page_has(5, row_of("token ", growth.token) + row_of("parent", growth.parent)));
  Tree tree;
  flatten(growth, tree);
  return tree;
}

TEST_CASE("course: the worked examples of chapters 5 and 6 are what the engine computes") {
  const Tree tree = tree_of_the_pages();
  CHECK(page_has(5, row_of("token ", tree.token) + row_of("parent", tree.parent) + row_of("depth ", tree.depth) +
                        row_of("end   ", tree.end) + row_of("origin", tree.origin)));
  std::string mask;
  for (int i = 0; i < tree.size(); i++) {
    mask += "row " + std::to_string(i) + "   ";
    for (int j = 0; j < tree.size(); j++) mask += tree.sees(i, j) ? 'x' : '.';
    mask += "\n";
  }
  CHECK(page_has(5, mask));
  const std::vector<int> picks = {3, 9, 1, 4, 6, 6};
  const Verdict verdict = match(tree, [&](int node) { return picks[size_t(node)]; });
  std::string slots = "slots ", kept;
  for (size_t i = 0; i < verdict.rows.size(); i++) {
    slots += "  " + std::to_string(10 + verdict.rows[i]);
    kept += "  " + std::to_string(10 + int(i));
  }
  const std::string lines = row_of("token ", tree.token) + row_of("parent", tree.parent) + row_of("pick  ", picks) +
                            row_of("rows  ", verdict.rows) + row_of("tokens", verdict.tokens) + slots + "  ->" + kept +
                            "\n";
  INFO(lines);
  CHECK(page_has(6, lines));
}

TEST_CASE("course: the worked example of chapter 10 is how the cache lies") {
  std::vector<float> keys(64 * 64);
  const KeyValues<float> cache{keys.data(), nullptr, 64, 64};
  std::map<size_t, int> side_by_side, in_a_row;  // sectors of 32 bytes
  for (int key = 0; key < 32; key++) {
    side_by_side[size_t(cache.key(0, key, 0) - keys.data()) * 4 / 32]++;
    in_a_row[size_t(key) * 64 * 4 / 32]++;
  }
  char lines[200];
  snprintf(lines, sizeof lines,
           "sixteen keys side by side:      %2d sectors\neach key's 64 numbers in a row: %2d sectors\n",
           int(side_by_side.size()), int(in_a_row.size()));
  INFO(lines);
  CHECK(page_has(10, lines));
}

}  // namespace
