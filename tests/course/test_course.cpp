// tests/course/test_course.cpp: the course: marks, what a starter holds and does not, what the grader says of right,
// wrong and broken submissions, and the worked examples of the chapters' pages.
//
// The starter is made in build/course by the steps of `make course`, as a teacher makes it.
#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "course/guesses7.h"
#include "course/lap.h"
#include "course/regions.h"
#include "draft.h"
#include "files/io.h"
#include "gradients.cuh"
#include "growth/cost.h"
#include "growth/likeliest.h"
#include "kernels.cuh"
#include "rules/verify.h"
#include "sample.h"
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

TEST_CASE("course: what a student writes stays within its function, and asks nothing of the preprocessor") {
  for (const char* good : {"", "int x = 1;\n", "  if (x) { y(); }  // } #\n", "  char c = '}', d = '\\'';\n",
                           "  f(\"} \\\" #\");\n", "  /* } \n # */\n", "#pragma unroll\n  for (;;) {\n  }\n"})
    CHECK_MESSAGE(course::refusal(good) == "", good);
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"}\n}\n#include \"../../tree.h\"\nnamespace {\nvoid f() {\n", "a } without its {"},
      {"{\n", "a { without its }"},
      {"  {}\n  #include \"tree.h\"\n", "a line for the preprocessor (#)"},
      {"%:include \"tree.h\"\n", "a line for the preprocessor (%:)"},
      {"/* */ #include \"tree.h\"\n", "a line for the preprocessor (#)"},
      {"#pragma unroll /*\n } {\n", "a comment without an end"},
      {"<% } %>\n", "a line for the preprocessor (<%)"},
      {"// \\\n{ }\n", "a \\ at the end of a line"},
      {"#\\ \n include \"tree.h\"\n", "a \\ at the end of a line"},
      {"R\"(\" } /*)\"; // */ {\n", "a letter or digit before \""},
      {"int x = 1'000, y = '{';\n", "a letter or digit before '"},
      {"char c = '{;\n", "a ' without another one in its line"}};
  for (const auto& region : bad) CHECK_MESSAGE(course::refusal(region.first) == region.second, region.first);
}

std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files[entry.path().string()] = read_file(entry.path().string());
  return files;
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
const std::vector<int> kChapters = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};

const std::string kReference = fs::absolute("build/reference").string();

// The steps of `make course`, each once. The first of them are tests of their own, so that none of these takes long.
void make_starter(size_t steps = 4) {
  const std::string reference = "make -C " + kStarter + " FROM=" + fs::absolute(".").string() + " B=" + kReference;
  const std::string commands[] = {"make build/make_course && build/make_course starter " + kStarter + " && make -C " +
                                      kStarter + " deps && " + "make -j2 -C " + kStarter +
                                      " build/checks1.o build/checks2.o build/checks4.o build/checks5.o",
                                  "make -j2 -C " + kStarter + " build/grade",
                                  reference + " -j2" +
                                      [] {
                                        std::string all;
                                        for (int chapter : kChapters)
                                          all += " " + kReference + "/chapter" + std::to_string(chapter);
                                        return all;
                                      }(),
                                  "make course"};
  static size_t done = 0;
  for (; done < steps; done++) {
    const Ran made = run(commands[done]);
    INFO(commands[done] << "\n" << made.text);
    REQUIRE(made.status == 0);
  }
}

TEST_CASE("course: a starter is made") { make_starter(1); }
TEST_CASE("course: its grader compiles") { make_starter(2); }
TEST_CASE("course: the engine's chapters compile") { make_starter(3); }
TEST_CASE("course: the engine is graded, and its answers recorded") { make_starter(4); }

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
const std::string kWithReference = "--seed 7 --reference " + kReference + " --hide " + fs::absolute(".").string();

// What a student hands in: the starter's files, with these bodies between the marks; of `bodies` those of the
// engine where it lacks a region.
const std::vector<std::string> kHandIn = {
    "tree.h",         "sample.h",           "draft.h",       "kernels.cuh",      "gradients.cuh",
    "rules/verify.h", "growth/likeliest.h", "growth/cost.h", "course/warps.cuh", "course/race.h"};
void hand_in(const std::string& folder, const course::Bodies& bodies = {}) {
  for (const std::string& file : kHandIn) {
    course::Bodies written;
    for (const auto& [number, body] : course::bodies_of(read_file(file)))
      if (number.find('.') != std::string::npos) written[number] = bodies.count(number) ? bodies.at(number) : body;
    fs::create_directories(fs::path(folder + "/" + file).parent_path());
    write_file(folder + "/" + file, course::paste(read_file(kStarter + "/blank/" + file), written));
  }
}

std::string trimmed(const std::string& line) {
  const size_t first = line.find_first_not_of(' ');
  return first == std::string::npos ? "" : line.substr(first);
}

// Lines of answers that stand outside the marks, too: there they say nothing.
const std::vector<std::string> kOutside = {"const int* const rows = s.kept + 2;",
                                           "const float t = sampling.temperature;",
                                           "const float least = kept_threshold(group, logits, vocab, sampling);"};

TEST_CASE("course: a starter holds no line of an answer, in no file") {
  make_starter();
  const Folder folder;
  REQUIRE(run("tar -xzf build/course.tar.gz -C " + folder.path).status == 0);
  const auto files = files_of(folder.path);
  CHECK(files.size() > 40);
  int lines = 0;
  for (const std::string& source : kHandIn)
    for (const auto& region : course::bodies_of(read_file(source)))
      for (const std::string& body : region.second) {
        std::istringstream in(body);
        for (std::string line; std::getline(in, line);) {
          line = trimmed(line);
          // Short lines prove nothing.
          if (line.size() < 31 || std::find(kOutside.begin(), kOutside.end(), line) != kOutside.end()) continue;
          lines++;
          for (const auto& file : files) {
            INFO(file.first << " has a line of region " << region.first << ": " << line);
            CHECK(file.second.find(line) == std::string::npos);
          }
        }
      }
  CHECK(lines > 60);
  // No tuned version, no other engine's test, no history, no teacher's file.
  for (const auto& file : files) {
    const std::string& name = file.first;
    INFO(name);
    const std::string path = name.substr(folder.path.size() + 8);  // behind /course/
    for (const char* no :
         {"tuned", "products.h", "attention.h", "cuda/attention", "test_", "teacher", ".git", "build/"})
      CHECK(path.find(no) == std::string::npos);
  }
}

// As a student hands in: all files, by folder or without folders; by recorded answers and by a new seed.
void passes(const std::string& way, bool folders) {
  make_starter();
  const Folder folder;
  hand_in(folder.path);
  if (!folders) fs::rename(folder.file("rules/verify.h"), folder.file("verify.h"));
  const nlohmann::json results = graded(folder.path, "", way);
  CHECK(results["score"] == 10 * int(kChapters.size()));
  for (int chapter : kChapters) CHECK(why(results, chapter) == "");
}
TEST_CASE("course: the files with right answers have all points, by recorded answers") { passes("", true); }
TEST_CASE("course: the files with right answers have all points, by a new seed") { passes(kWithReference, false); }

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
  CHECK(points == 10 * int(kChapters.size()));
  // A prompt measure says the same, in a line.
  const Ran measure = run("make -C " + kStarter + " measure CHAPTER=5");
  CHECK(measure.status != 0);
  CHECK(measure.text.find("chapter 5.1 is not written yet") != std::string::npos);
}

// Of each kind, right and wrong, all that are stored, or one of each `of`, drawn.
void judged(const std::string& region, const std::string& kind_asked, size_t of) {
  make_starter();
  const Folder folder;
  const Ran made = run("build/make_course solutions course/teacher/solutions/" + region + ".txt " + folder.path);
  INFO(made.text);
  REQUIRE(made.status == 0);
  const std::string chapter = region.substr(0, region.find('.'));
  size_t found = 0;
  for (int i = 1; fs::exists(folder.file(std::to_string(i))); i++) {
    const std::string submission = folder.file(std::to_string(i));
    std::istringstream expected(read_file(submission + "/expected"));
    std::string kind, says;
    std::getline(expected, kind);
    std::getline(expected, says);
    if (kind != kind_asked || !runs(found++, of)) continue;
    const nlohmann::json results = graded(submission, chapter, kWithReference);
    INFO(region << ": " << kind << ": " << read_file(submission + "/name") << results.dump(1));
    CHECK(state(results, std::stoi(chapter)) == (kind == "right" ? "passed" : "failed"));
    bool said = false;
    for (const auto& test : results["tests"]) said |= test["output"].get<std::string>().find(says) != std::string::npos;
    CHECK(said);
  }
  CHECK(found >= (kind_asked == "right" ? 2 : 6));
}
#define JUDGED(region)                                                                         \
  TEST_CASE("course: wrong solutions of " region " are found") { judged(region, "wrong", 5); } \
  TEST_CASE("course: right solutions of " region " have all points") { judged(region, "right", 2); }
JUDGED("1.1")
JUDGED("1.2")
JUDGED("1.3")
JUDGED("2.1")
JUDGED("3.1")
JUDGED("3.2")
JUDGED("4.1")
JUDGED("4.2")
JUDGED("4.3")
JUDGED("5.1")
JUDGED("5.2")
JUDGED("6.1")
JUDGED("6.2")
JUDGED("7.1")
JUDGED("8.1")
JUDGED("8.2")
JUDGED("9.1")
JUDGED("9.2")
JUDGED("10.1")
JUDGED("10.2")
JUDGED("10.3")
JUDGED("11.1")
JUDGED("12.1")
JUDGED("12.2")
JUDGED("12.3")
JUDGED("13.1")
TEST_CASE("course: every region has solutions") {
  size_t regions = 0, files = 0;
  for (const std::string& file : kHandIn)
    for (const course::Region& region : course::regions_of(read_file(file)))
      regions += course::is_written(region) && (file != "kernels.cuh" || region.number != "5.2");  // it stands twice
  for (const auto& entry : fs::directory_iterator("course/teacher/solutions")) files += entry.is_regular_file();
  CHECK(regions == files);
}

TEST_CASE("course: a class is graded: one student's failure stops no other, and what a person gave stays") {
  make_starter();
  const Folder folder;
  hand_in(folder.file("anna"));
  fs::create_directories(folder.file("class/ben b."));
  REQUIRE(run("tar -czf " + folder.file("class/anna.tar.gz") + " -C " + folder.path + " anna").status == 0);
  folder.file("class/cy.zip", "no archive");
  const auto grade = [&](const std::string& chapter) {
    const Ran ran = run("make grade SEED=7 SUBMISSIONS=" + folder.file("class") + " CHAPTER=" + chapter);
    INFO(ran.text);
    CHECK(ran.status == 0);
    return read_file(folder.file("class.results/class.csv"));
  };
  CHECK(grade("4") ==
        "student,sum,chapter 4,predictions,questions,state 4,problem\n"
        "anna,10,10,0,0,passed,\nben b.,0,0,0,0,failed,\ncy,0,,0,0,,not graded: see cy.txt\n");
  CHECK(contains(read_file(folder.file("class.results/mistakes.txt")), "1 of 3  chapter 4, no draft"));
  auto results = nlohmann::json::parse(read_file(folder.file("class.results/anna.json")));
  results["extra_data"]["chapters"]["4"]["questions"] = 3.5;
  folder.file("class.results/anna.json", results.dump());
  fs::remove_all(folder.file("class/ben b."));
  CHECK(contains(grade("5"), "\nanna,23.5,10,10,0,3.5,passed,passed,\n"));
}

TEST_CASE("course: another seed gives other inputs, and the starter's grader has answers to them") {
  make_starter();
  const Folder folder;
  const std::string grade = "cp -r " + kStarter + " " + folder.file("course") + " && cd " + folder.file("course") +
                            " && build/grade --chapter 2 --submission " + fs::absolute(".").string();
  const Ran first = run(grade + " --record --seed 2 --reference " + kReference + " && cat course/recorded/seed");
  INFO(first.text);
  CHECK(contains(first.text, "10 of 10 points; results.json has all of it\n2\n"));
  CHECK(contains(
      run("cd " + folder.file("course") + " && build/grade --chapter 2 --submission " + fs::absolute(".").string())
          .text,
      "10 of 10 points"));
  CHECK(read_file(folder.file("course/course/recorded/2")) != read_file(kStarter + "/course/recorded/2"));
}

// The engine's bodies, one of them with `to` in place of `from`.
course::Bodies changed(const std::string& region, const std::string& from, const std::string& to) {
  for (const std::string& source : kHandIn) {
    course::Bodies bodies = course::bodies_of(read_file(source));
    if (!bodies.count(region)) continue;
    const size_t at = bodies[region][0].find(from);
    REQUIRE(at != std::string::npos);
    bodies[region][0].replace(at, from.size(), to);
    return bodies;
  }
  return {};
}

// What the grader says of chapter 5 when flatten begins with this.
std::string of_flatten(const std::string& beginning, const std::string& chapters = "5") {
  make_starter();
  const Folder folder;
  hand_in(folder.path,
          changed("5.1", "  const int n = growth.size();", beginning + "\n  const int n = growth.size();"));
  const nlohmann::json results = graded(folder.path, chapters, kWithReference + " --seconds 1");
  CHECK(state(results, 5) == "failed");
  if (chapters != "5") CHECK(state(results, 6) == "passed");
  return why(results, 5);
}
TEST_CASE("course: a chapter that does not compile or has lost its marks costs no other chapter") {
  CHECK(contains(of_flatten("  const int N = 1", "5 6"), "it does not compile: tree.h:"));
  const Folder folder;
  hand_in(folder.path);
  std::string text = read_file(folder.file("tree.h"));
  text.replace(text.find("// course 5.1\n"), 14, "// course 5,1\n");
  const nlohmann::json results = graded(folder.file("tree.h", text).substr(0, folder.path.size()), "5 6");
  CHECK(why(results, 5) == "tree.h: region 5.1: its marks are not there: `// course 5.1` and `// end`");
  CHECK(state(results, 6) == "passed");
}

TEST_CASE("course: code that leaves its function is not compiled") {
  CHECK(contains(
      of_flatten("}\n}\n#include \"" + fs::absolute("tree.h").string() + "\"\nnamespace nanospec {\nvoid f() {"),
      "tree.h: region 5.1: a } without its {"));
  CHECK(contains(of_flatten("#if 0"), "tree.h: region 5.1: a line for the preprocessor (#)"));
}

TEST_CASE("course: a link to another's file is no submission, nor is a pipe") {
  make_starter();
  const Folder folder;
  hand_in(folder.path);
  fs::remove(folder.file("tree.h"));
  fs::create_symlink(fs::absolute("tree.h"), folder.file("tree.h"));
  CHECK(why(graded(folder.path, "5"), 5) == "the submission has no tree.h");
  fs::remove(folder.file("tree.h"));
  REQUIRE(run("mkfifo " + folder.file("tree.h")).status == 0);
  CHECK(why(graded(folder.path, "5"), 5) == "the submission has no tree.h");
}

TEST_CASE("course: the compiler cannot read the engine's files") {
  make_starter();
  if (syscall(444, nullptr, 0, 1) < 1) return;  // this kernel has no Landlock
  const Folder folder;
  hand_in(folder.path);
  const std::string grade = "cd " + kStarter + " && rm -f build/chapter4.o build/chapter4 && CXX='g++ -include " +
                            fs::absolute("tests/tenth.h").string() + "' build/grade --chapter 4 --submission " +
                            folder.path + " --results " + folder.file("r.json");
  const std::string hidden = run(grade + " --hide " + fs::absolute(".").string()).text;
  CHECK_MESSAGE(contains(hidden, "Permission denied"), hidden);
  CHECK(contains(run(grade).text, "10 of 10"));
}

TEST_CASE("course: code that crashes, or does not answer, is ended in time") {
  CHECK(contains(of_flatten("  std::abort();"), "the program ended by a fault: Aborted"));
  CHECK(contains(of_flatten("  for (;;) tree.token.clear();"), "no answer in time (1 seconds"));
  CHECK(contains(of_flatten("  fclose(fdopen(4, \"w\"));\n  select(0, nullptr, nullptr, nullptr, nullptr);"),
                 "no answer in time"));
}

TEST_CASE("course: half an answer, and a long one, is none") {
  const auto writes = [](const std::string& bytes) {
    return of_flatten("  FILE* const answers = fdopen(4, \"w\");\n  for (char c : {" + bytes +
                      "}) fputc(c, answers);\n  fflush(answers);\n  select(0, nullptr, nullptr, nullptr, nullptr);");
  };
  CHECK(contains(writes("'a'"), "no answer in time"));
  CHECK(contains(writes("'\\x10', '\\0', '\\0', '\\0', 'a'"), "no answer in time"));
  CHECK(contains(writes("'\\0', '\\0', '\\0', '\\x0c'"), "an answer of 201326592 bytes"));
}

TEST_CASE("course: a growth that lacks numbers, or is no tree, is refused before it is read") {
  make_starter();
  const auto of_growth = [](const std::string& end) {
    const Folder folder;
    hand_in(folder.path, changed("7.1", "  constexpr int kUnexpanded = -1;",
                                 "  for (int i = 0; i < 2; i++) growth.add(0, {1, 0.5f});\n  " + end +
                                     "\n  return;\n  constexpr int kUnexpanded = -1;"));
    const nlohmann::json results = graded(folder.path, "7", kWithReference);
    CHECK(results["tests"].size() == 7);
    CHECK(results["score"] == 0);
    return why(results, 7);
  };
  const std::string all = ": should be as many of each, the root's first";
  CHECK(contains(of_growth("growth.reach.clear();"), "a growth of 3 tokens, 3 parents, 0 reaches" + all));
  CHECK(contains(of_growth("growth.parent.pop_back();"), "a growth of 3 tokens, 2 parents, 3 reaches" + all));
  CHECK(contains(of_growth("growth.token.clear();"), "a growth of 0 tokens, 3 parents, 3 reaches" + all));
  CHECK(contains(of_growth("growth.parent[0] = 2;"), " after node 2: it should be the root"));
  CHECK(contains(of_growth("growth.token[0] = -1;"), "node 0 is token -1 after node -1: it should be the root"));
  CHECK(contains(of_growth("growth.parent[1] = 2;"), "node 1: its parent is 2"));
}

TEST_CASE("course: a draw from too few weights is refused before they are read") {
  make_starter();
  const Folder folder;
  // As if it drew at node 0: what a rule can say only by itself.
  hand_in(folder.path,
          changed("4.1", "  Verdict verdict;",
                  "  FILE* const answers = fdopen(4, \"w\");\n"
                  "  for (char c : {'\\x12', '\\0', '\\0', '\\0', 'a', 'd'}) fputc(c, answers);\n"
                  "  for (int i = 0; i < 16; i++) fputc(0, answers);\n  fflush(answers);\n  Verdict verdict;"));
  const nlohmann::json results = graded(folder.path, "4", kWithReference);
  CHECK(results["tests"].size() == 7);
  CHECK(why(results, 4) == "draw at node 0: 0 weights, should be 4");
}

TEST_CASE("course: of what code prints, or throws, a little is kept") {
  CHECK(contains(of_flatten("  for (;;) printf(\"at node %d\\n\", tree.size());"), "no answer in time"));
  CHECK(fs::file_size(kStarter + "/build/chapter5.said") <= 64 << 10);
  CHECK(contains(read_file(kStarter + "/build/chapter5.said"), "at node 0\n"));
  const std::string thrown = of_flatten("  throw std::runtime_error(std::string(1000000, '\\xff'));");
  CHECK(thrown.size() < 2000);  // each of 500 bytes, which are no UTF-8, as a sign of three
}

TEST_CASE("course: code opens no file, not even in place of another") {
  CHECK(
      of_flatten(
          "  fclose(stdin);\n  throw std::runtime_error(fopen(\"/dev/null\", \"r\") ? \"opened\" : \"not opened\");") ==
      "not opened");
}

TEST_CASE("course: processes that code starts end with it") {
  make_starter();
  const Folder folder;
  hand_in(folder.path, changed("10.3", "struct Memory {", "if (fork() == 0) for (;;) pause();\n  struct Memory {"));
  graded(folder.path, "10", kWithReference + " --seconds 1");
  const std::string program = fs::absolute(kStarter + "/build/chapter10").string();
  const auto living = [&] {
    int n = 0;
    std::error_code gone;
    for (const auto& entry : fs::directory_iterator("/proc"))
      n += fs::read_symlink(entry.path() / "exe", gone) == program;
    return n;
  };
  // Killed they are at once, but hundreds of them take a while to end on a busy machine.
  for (int i = 0; i < 100 && living() > 0; i++) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(living() == 0);
}

TEST_CASE("course: a student's engine has the submission's regions of some chapters, and else the engine's") {
  make_starter();
  const Folder folder, to;
  course::Bodies written = changed("5.1", "  const int n = growth.size();", "  const int n = growth.size();  // mine");
  written["8.2"] = {"  // not asked for\n"};
  hand_in(folder.path, written);
  fs::rename(folder.file("course/warps.cuh"), folder.file("warps.cuh"));
  REQUIRE(run("build/make_course student " + folder.path + " " + to.path + " 1 2 5 6").status == 0);
  for (const std::string& file : kHandIn) {
    course::Bodies right = course::bodies_of(read_file(file)), theirs = course::bodies_of(read_file(to.file(file)));
    if (right.count("5.1")) right["5.1"] = written["5.1"];
    for (course::Bodies* bodies : {&right, &theirs})  // a body of one line gets lines of its own
      for (auto& [number, texts] : *bodies)
        for (std::string& text : texts) text.erase(std::remove_if(text.begin(), text.end(), ::isspace), text.end());
    CHECK(theirs == right);
  }
}

// What students get, unpacked, with their answers in it; what is compiled already is brought along. The text to train
// on is got without a network.
const std::string& unpacked() {
  static const Folder folder;
  static const std::string path = folder.path + "/course";
  if (fs::exists(path)) return path;
  make_starter();
  REQUIRE(run("tar -xzf build/course.tar.gz -C " + folder.path + " && mkdir " + path + "/build && cp -a " + kStarter +
              "/build/*.o " + kStarter + "/build/*.dep " + kStarter + "/build/grade " + path + "/build")
              .status == 0);
  write_file(path + "/data/get.sh", "cat course/chapter*.md course/chapter*.md >data/shakespeare.txt\n");
  return path;
}

TEST_CASE("course: make hand-in packs the files that have marks, and the notes") {
  const std::string path = unpacked();
  write_file(path + "/notes.md", "I predict nothing.\n");
  const Ran ran = run("make -s -C " + path + " hand-in && tar -tzf " + path + "/hand-in.tar.gz");
  std::vector<std::string> right = kHandIn, packed;
  right.push_back("notes.md");
  std::istringstream lines(ran.text);
  for (std::string line; std::getline(lines, line);) packed.push_back(line);
  REQUIRE_MESSAGE(!packed.empty(), ran.text);
  CHECK(packed[0] == "hand-in.tar.gz is what you hand in");
  packed.erase(packed.begin());
  std::sort(right.begin(), right.end());
  std::sort(packed.begin(), packed.end());
  CHECK(packed == right);
}

TEST_CASE("clang: the starter's grader, by clang++, asks what the answers recorded by this compiler answer") {
  make_starter();
  const Folder folder;
  REQUIRE(run("tar -xzf build/course.tar.gz -C " + folder.path).status == 0);
  hand_in(folder.path + "/course");
  const Ran ran = run("make -j2 -C " + folder.path + "/course CXX=clang++ grade CHAPTER='3 8 10'");
  INFO(ran.text);
  CHECK(ran.status == 0);
  CHECK(contains(ran.text, "3 of 3 chapters passed, 30 of 30 points"));
}

TEST_CASE("course: make play grades first: with a wrong mask nothing is played") {
  const std::string path = unpacked();
  hand_in(path, {{"5.2", {"    return j <= i;\n"}}});
  const Ran played = run("make -C " + path + " play");
  INFO(played.text);
  CHECK(played.status != 0);
  CHECK(contains(played.text, "sees("));
  CHECK(contains(played.text, "make play: it needs all points of chapters 1 2 3 5 6 first"));
  CHECK(!fs::exists(path + "/data/shakespeare.txt"));
  const auto chapters = nlohmann::json::parse(read_file(path + "/build/play.json"))["extra_data"]["chapters"];
  for (const char* chapter : {"1", "2", "3", "6"}) CHECK(chapters[chapter]["state"] == "passed");
  CHECK(chapters["5"]["state"] == "failed");
}

TEST_CASE("course: make play trains and decodes in a folder as it was unpacked, where the text is not there yet") {
  const std::string path = unpacked();
  hand_in(path);
  const Ran played = run("make -C " + path + " play" + (a_tenth() ? " UPDATES=2" : ""));
  INFO(played.text);
  CHECK(played.status == 0);
  CHECK(contains(played.text, "3000 tokens on the CPU: plain 3000 forwards, tree:3x2 "));
  CHECK(contains(played.text, ", the same bytes"));
}

TEST_CASE("course: make play decodes without chapters 8 and 12: something simpler stands in for them") {
  const std::string path = unpacked();
  hand_in(path);
  for (const char* file : {"sample.h", "gradients.cuh"})
    write_file(path + "/" + file, read_file(kStarter + "/blank/" + file));
  const Ran played = run("make -C " + path + " play");
  INFO(played.text);
  CHECK(played.status == 0);
  CHECK(contains(played.text, "chapter 8 is not written yet: something simpler stands in for it"));
  CHECK(contains(played.text, "chapter 12 is not written yet: something simpler stands in for it"));
  CHECK(!contains(played.text, "update 1 of"));
  CHECK(contains(played.text, ", the same bytes"));
  // What is written, and wrong, stops it.
  hand_in(path, changed("12.1", "x[target[row]] -= factor", "x[target[row]] += factor"));
  const Ran wrong = run("make -C " + path + " play");
  CHECK(wrong.status != 0);
  CHECK_MESSAGE(contains(wrong.text, "make play: chapter 12 is written, and not right yet"), wrong.text);
}

TEST_CASE("course: the grader says what it lacks") {
  make_starter();
  const Ran nowhere = run("cd /tmp && " + fs::absolute(kStarter).string() + "/build/grade");
  CHECK(nowhere.status == 2);
  CHECK(nowhere.text.find("run it in the starter's folder") != std::string::npos);
  const Ran no_chapter = run("cd " + kStarter + " && build/grade --chapter 99");
  CHECK(no_chapter.status == 2);
  CHECK(no_chapter.text.find("choose of 1 2 3 4 5 6 7 8 9 10 11 12 13") != std::string::npos);
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

TEST_CASE("course: slides are six to ten for a chapter, and have their pictures") {
  for (const auto& file : files_of("course/teacher/slides")) {
    if (fs::path(file.first).extension() != ".md") continue;
    INFO(file.first);
    int slides = 1;
    for (size_t at = 0; (at = file.second.find("\n---\n", at)) != std::string::npos; at++) slides++;
    CHECK(slides >= 6);
    CHECK(slides <= 10);
    for (size_t at = 0; (at = file.second.find("](", at)) != std::string::npos; at++)
      CHECK(fs::exists(fs::path(file.first).parent_path() /
                       file.second.substr(at + 2, file.second.find(')', at) - at - 2)));
  }
}

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

TEST_CASE("course: the norms and the rotation of chapter 1 are what the engine computes") {
  const float x[] = {1, 7}, angles[] = {0, 1, -1, 0};
  float rms[2], layer[2], head[] = {3, 1, 4, 0};
  Norm<float>{x, 2, 2, nullptr, nullptr, rms, 2, nullptr, nullptr, false, 0}(Solo{}, 0);
  Norm<float>{x, 2, 2, nullptr, nullptr, layer, 2, nullptr, nullptr, true, 0}(Solo{}, 0);
  const int zero = 0;
  Forest forest;
  forest.rows = forest.roots = 1;
  forest.depth = forest.root = forest.past = &zero;
  Rope<float>{forest, 0, head, 4, 1, 4, angles, false}(Solo{}, 0);
  const auto line = [](const char* name, const float* from, int n) {
    std::string text = name;
    for (int i = 0; i < n; i++) {
      char number[16];
      snprintf(number, sizeof number, "%4g", double(from[i] + 0.0f));
      text += number;
    }
    return text + "\n";
  };
  const float before[] = {3, 1, 4, 0};
  const std::string lines = line("x         ", x, 2) + line("RMSNorm   ", rms, 2) + line("LayerNorm ", layer, 2) +
                            line("head      ", before, 4) + line("rotated   ", head, 4);
  INFO(lines);
  CHECK(page_has(1, lines));
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

TEST_CASE("course: the worked example of chapter 3 is what the engine computes") {
  const std::vector<int> text = {0, 1, 0, 2, 0, 1};
  const std::vector<float> table = bigram_table(text, 4);
  std::vector<std::vector<double>> after(4);
  for (size_t i = 0; i < table.size(); i++) after[i / 4].push_back(exp(double(table[i])));
  std::string lines = fixed("unigram   ", after[3], " %.4f");  // what is known after a token that does not occur
  for (size_t c = 0; c < 4; c++) lines += fixed("after " + std::to_string(c) + "   ", after[c], " %.4f");
  INFO(lines);
  CHECK(page_has(3, lines));
  const Sampling sampling;
  std::vector<float> scores(4);
  Candidate best[2];
  REQUIRE(top_candidates(Solo{}, table.data(), nullptr, 4, {&sampling, nullptr, 0, false}, 2, best, scores.data()) ==
          2);
  char two[100];
  snprintf(two, sizeof two, "token %6d %6d\nchance     %.4f %.4f\n", best[0].token, best[1].token,
           double(best[0].chance), double(best[1].chance));
  INFO(two);
  CHECK(page_has(3, two));
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
  double second = 0;
  for (int x = 0; x < 3; x++) second += std::min(residual[x], q[x]);
  char line[80];
  snprintf(line, sizeof line, "%.2f + %.2f * %.2f = %.2f\n", all, 1 - all, second, all + (1 - all) * second);
  CHECK(page_has(4, line));
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

TEST_CASE("course: the worked example of chapter 7 is what the engine computes") {
  std::string lines;
  for (int token = 0; token < 4; token++) {
    lines += "after " + std::to_string(token) + ":";
    for (const course::Guess& one : course::guesses(0, token, 8, course::kPage)) {
      char text[32];
      snprintf(text, sizeof text, "  %d (%.2f)", one.token, double(one.chance));
      lines += text;
    }
    lines += "\n";
  }
  CHECK_MESSAGE(page_has(7, lines), lines);
  Growth growth;
  growth.start(0);
  std::vector<int> asked, nodes;
  grow_likeliest(6, 64, growth, [&](int node, Candidate* candidates) {
    asked.push_back(node);
    const auto found = course::guesses(0, growth.token[size_t(node)], 8, course::kPage);
    for (size_t i = 0; i < found.size(); i++) candidates[i] = {found[i].token, found[i].chance};
    return int(found.size());
  });
  const auto row = [](std::string name, const auto& numbers, const char* form) {
    return fixed(name, {numbers.begin(), numbers.end()}, form);
  };
  for (int node = 0; node < growth.size(); node++) nodes.push_back(node);
  lines = row("node   ", nodes, "%6.0f") + row("token  ", growth.token, "%6.0f") +
          row("parent ", growth.parent, "%6.0f") + row("reach  ", growth.reach, "%6.3f") +
          row("asked  ", asked, "%6.0f");
  CHECK_MESSAGE(page_has(7, lines), lines);
}

TEST_CASE("course: the ballot of chapter 10 is that of the tree's mask") {
  const Tree tree = tree_of_the_pages();
  std::string lanes = "lane         ", sees = "row 4 sees it", before = "before it    ";
  unsigned ballot = 0;
  for (int j = 0; j < tree.size(); j++) {
    const auto number = [](int n) { return (n < 10 ? " " : "") + std::to_string(n) + " "; };
    lanes += number(j);
    sees += number(tree.sees(4, j));
    before += number(__builtin_popcount(ballot));
    ballot |= unsigned(tree.sees(4, j)) << j;
  }
  const auto line = [](const std::string& text) { return text.substr(0, text.size() - 1) + "\n"; };
  sees += "  the ballot is " + std::to_string(ballot) + " ";
  INFO(lanes << "\n" << sees << "\n" << before);
  CHECK(page_has(10, line(lanes) + line(sees) + line(before)));
}

TEST_CASE("course: the worked example of chapter 11 is its formula") {
  struct Part {
    float m = -Format<float>::kMost, l = 0, sum = 0;
  } part, total;
  const float scores[] = {1, 0, 2, 11};
  std::string lines = "position  score  value       m       l       sum\n";
  char line[100];
  for (int position = 0; position < 4; position++) {
    const float score = scores[position], value = float(position + 1);
    if (score > part.m + 8) {
      const float c = exp(part.m - score);
      part = {score, part.l * c, part.sum * c};
    }
    const float weight = exp(score - part.m);
    part.l += weight;
    part.sum = fused(weight, value, part.sum);
    snprintf(line, sizeof line, "%d %13.0f %6.0f %7.0f %7.4f %9.4f\n", position, double(score), double(value),
             double(part.m), double(part.l), double(part.sum));
    lines += line;
    if (position % 2 == 0) continue;
    const float top = larger(total.m, part.m), a = exp(total.m - top), b = exp(part.m - top);
    total = {top, fused(part.l, b, total.l * a), fused(part.sum, b, total.sum * a)};
    part = {};
    snprintf(line, sizeof line, "join %25.0f %7.4f %9.4f\n", double(total.m), double(total.l), double(total.sum));
    lines += line;
  }
  snprintf(line, sizeof line, "out %.4f\n", double(total.sum / total.l));
  lines += line;
  INFO(lines);
  CHECK(page_has(11, lines));
}

TEST_CASE("course: the worked example of chapter 8 is what the engine computes") {
  const std::vector<float> logits = {2, 1, 0, 1.5f};
  std::string lines = fixed("logit    ", {logits.begin(), logits.end()}, "%7.2f");
  Noise all({}, 4);
  const float* const noise = all.row(5);
  lines += fixed("noise    ", {noise, noise + 4}, "%7.2f");
  for (float t : {0.5f, 1.0f}) {
    std::vector<double> sums;
    for (int x = 0; x < 4; x++) sums.push_back(fused(t, noise[x], logits[x]));
    Sampling sampling;
    sampling.temperature = t;
    lines += fixed(t < 1 ? "T = 0.5  " : "T = 1    ", sums, "%7.2f");
    lines.back() = ' ';
    lines += "    pick " + std::to_string(pick(logits.data(), noise, 4, sampling)) + "\n";
  }
  INFO(lines);
  CHECK(page_has(8, lines));
}

TEST_CASE("course: the worked example of the race is how its laps are counted") {
  course::Lap lap;
  run_lap(
      {'a', 'b', 'c', 'a', 'b'}, 2,
      [](const std::vector<int>&) {
        return course::Guesses{{'b', 'c', 'a', 'x'}, {-1, 0, 1, 0}};
      },
      lap);
  char line[100];
  snprintf(line, sizeof line, "%d tokens, %d forward, %d nodes: %.1f ms, %.0f tokens a second\n", lap.tokens,
           lap.forwards, lap.nodes, lap.milliseconds(), lap.a_second());
  INFO(line);
  CHECK(page_has(13, line));
}

TEST_CASE("course: the worked examples of chapter 9 are what the engine computes") {
  const std::vector<double> measured = {10, 10.4, 10.2, 11.6, 11, 14}, once(6, 1);
  const std::vector<double> fitted = never_falling(measured, once);
  const std::vector<float> reach = {0.6f, 0.3f, 0.25f, 0.21f, 0.189f};
  std::string lines = fixed("rows        ", {1, 2, 3, 4, 5, 6}, "%7.0f") + fixed("measured    ", measured, "%7.2f") +
                      fixed("fitted      ", fitted, "%7.2f");
  CHECK_MESSAGE(page_has(9, lines), lines);
  std::vector<double> tokens = {1}, rates;
  for (float one : reach) tokens.push_back(tokens.back() + double(one));
  for (size_t n = 0; n < tokens.size(); n++) rates.push_back(1e3 * tokens[n] / fitted[n]);
  lines = fixed("nodes       ", {0, 1, 2, 3, 4, 5}, "%7.0f") + fixed("tokens      ", tokens, "%7.3f") +
          fixed("a second    ", rates, "%7.1f");
  CHECK_MESSAGE(page_has(9, lines), lines);
  CHECK(best_prefix(reach, 1, [&](int rows) { return fitted[size_t(rows) - 1]; }) == 4);
  CHECK(never_falling({10.4, 10.2}, {3, 1})[0] == doctest::Approx(10.35));
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

TEST_CASE("course: the worked example of chapter 12 is what the engine computes") {
  std::vector<double> logits = {2, 1, 0}, loss(1);
  const std::vector<int> target = {1};
  std::string lines = fixed("logits   ", logits, "%8.4f");
  lines +=
      fixed("softmax  ",
            {exp(2.0) / (exp(2.0) + exp(1.0) + 1), exp(1.0) / (exp(2.0) + exp(1.0) + 1), 1 / (exp(2.0) + exp(1.0) + 1)},
            "%8.4f");
  CrossEntropy<double>{logits.data(), 3, 3, target.data(), loss.data(), true, 1}(Solo{}, 0);
  lines += fixed("loss     ", loss, "%8.4f") + fixed("gradient ", logits, "%8.4f");
  INFO(lines);
  CHECK(page_has(12, lines));

  const int n = 3, slots = 64;
  const std::vector<int> end(n, n), depth = {0, 1, 2}, root(n, 0), first_row = {0, n}, slot = {0}, past = {0};
  const Forest forest{n, 1, end.data(), depth.data(), root.data(), first_row.data(), slot.data(), past.data()};
  const std::vector<double> qkv = {0, 0, 1, 0, 1, 0, 1, 2, 4}, dout = {0, 0, 1};
  std::vector<double> k(slots), v(KeyValues<double>::value_numbers(slots, 1)), out(n), log_sum(n), weights(n * n),
      dk(slots * 16), dv(slots * 16), dqkv(9), p(n * n), ds(n * n), dp;
  const Attention<double> s{forest,         1, 1, 1, qkv.data(), 3, {k.data(), v.data(), slots, 1}, out.data(), 1,
                            log_sum.data(), {}};
  for (int row = 0; row < n; row++) WriteCache<double, double>{s}(Solo{}, row);
  for (int row = 0; row < n; row++) AttentionForward<double, double>{s, weights.data(), n}(Solo{}, row);
  const AttentionBackward<double> b{s, dout.data(), dk.data(), dv.data(), dqkv.data()};
  AttentionBackwardQueries<double>{b, p.data(), ds.data(), n}(Solo{}, 2);
  for (int j = 0; j < n; j++) dp.push_back(dout[2] * *s.cache.value(0, j, 0));
  lines = fixed("P        ", {p.begin() + 6, p.end()}, "%8.4f") + fixed("dP       ", dp, "%8.4f") +
          fixed("dS       ", {ds.begin() + 6, ds.end()}, "%8.4f") + fixed("dq       ", {dqkv[6]}, "%8.4f");
  INFO(lines);
  CHECK(page_has(12, lines));
}

}  // namespace
