// course/course.cpp: makes the course out of the engine.
//
// usage: course starter FOLDER           a starter: the engine with the students' regions cut out, chapters, a grader
//        course solutions FILE FOLDER    stored solutions of one region, each as a submission of its own
//        course student FOLDER TO 1 5    the engine's marked files with a submission's regions of these chapters
//   Run it in the project's root.
//
// In order: the starter's files; the starter; a student's engine; stored solutions.
#include <cstdio>
#include <sstream>

#include "course/files.h"
#include "course/regions.h"
#include "files/words.h"

using namespace course;
namespace fs = std::filesystem;

namespace {

// What a starter holds of the engine, under the same paths. The tuned versions, for CPU and GPU, stay away: a student's
// own code runs, or nothing does. Of machine/ more is there than is compiled: single.sh takes parts of these files.
const std::vector<std::string> kEngine = nanospec::split_at(
    "tree.h sample.h draft.h decode.h kernels.cuh rows.h model.h target.h gradients.cuh train.h machine/numbers.h "
    "machine/single.sh machine/single.cpp machine/single_floor.cuh machine/launch.h machine/launch_gradients.h "
    "machine/packing.h rules/verify.h growth/shapes.h growth/likeliest.h growth/cost.h files/words.h cuda/machine.cuh "
    "course/warps.cuh course/race.h tests/cuda/emulator.h data/get.sh data/pip.sh LICENSE",
    ' ');
// Folders of course/ that students do not get, or get elsewhere; and this program.
const std::vector<std::string> kTeachers = {"teacher", "starter", "course.cpp", "README.md"};

std::string project_file(const std::string& path) {
  if (!fs::exists(path)) throw std::runtime_error(path + ": no such file: run it in the project's root");
  return read_file(path);
}

// The engine's files that have marks, each by its path and what it holds, in the order of kEngine.
std::vector<std::pair<std::string, std::string>> marked_files() {
  std::vector<std::pair<std::string, std::string>> files;
  for (const std::string& file : kEngine) {
    const std::string kind = fs::path(file).extension(), text = project_file(file);
    try {
      if ((kind == ".h" || kind == ".cuh") && !regions_of(text).empty()) files.emplace_back(file, text);
    } catch (const std::runtime_error& error) { throw std::runtime_error(file + ": " + error.what()); }
  }
  return files;
}

// ---------------------------------------------------------------------------------------------------------------
// The starter

void make_starter(const fs::path& to) {
  std::map<std::string, std::string> files;    // what each holds
  std::map<std::string, std::string> regions;  // in which files each is
  for (const std::string& file : kEngine) files[file] = project_file(file);
  for (const auto& [file, text] : marked_files()) {
    files[file] = files["blank/" + file] = cut(text);
    for (const Region& region : regions_of(text))
      if (is_written(region) && regions[region.number].find(file) == std::string::npos)
        regions[region.number] += " " + file;
  }
  for (const auto& entry : fs::recursive_directory_iterator("course")) {
    const std::string name = fs::relative(entry.path(), "course").string();
    if (!entry.is_regular_file()) continue;
    const std::string top = name.substr(0, name.find('/'));
    if (top == "starter") files[name.substr(8)] = read_file(entry.path());
    else if (std::find(kTeachers.begin(), kTeachers.end(), top) == kTeachers.end())
      files.insert({"course/" + name, read_file(entry.path())});  // where a student writes, it is cut already
  }
  for (const auto& [name, text] : files) write_file(to / name, text);
  // What an earlier starter had and this one has not goes; what its grader built or recorded stays.
  std::vector<fs::path> old;
  for (const auto& entry : fs::recursive_directory_iterator(to)) {
    const std::string name = fs::relative(entry.path(), to).string();
    const bool built = name.compare(0, 6, "build/") == 0 || name.compare(0, 16, "course/recorded/") == 0;
    if (entry.is_regular_file() && !built && !files.count(name)) old.push_back(entry.path());
  }
  for (const fs::path& file : old) fs::remove(file);
  for (const auto& [number, where] : regions) printf("  region %-5s of%s\n", number.c_str(), where.c_str());
}

// ---------------------------------------------------------------------------------------------------------------
// A student's engine

// Of these chapters the submission's regions, which are graded before; the others are the engine's.
void make_student(const fs::path& submission, const fs::path& to, const std::vector<std::string>& chapters) {
  for (const auto& [source, text] : marked_files()) {
    Bodies bodies = bodies_of(text);
    for (auto& [number, body] : bodies) {
      const size_t dot = number.find('.');
      if (dot == std::string::npos || !std::count(chapters.begin(), chapters.end(), number.substr(0, dot))) continue;
      const fs::path file = submission / source;
      body = bodies_of(read_file(fs::exists(file) ? file : submission / file.filename())).at(number);
    }
    write_file(to / source, paste(cut(text), bodies));
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Stored solutions: course/teacher/solutions/5.1.txt, one behind the other:
//   ### right: its name            or wrong: its name
//   says: part of the line that the grader must say                       (of wrong ones)
//   change: a part of the engine's own body     to: what stands there instead
//   body:                                                                 or the whole body, all lines that follow

struct Solution {
  std::string kind, name, says, body;
};

std::vector<Solution> read_solutions(const std::string& file, const std::string& engine_body) {
  std::vector<Solution> all;
  std::istringstream lines(project_file(file));
  std::string change;
  bool in_body = false;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    number++;
    const auto begins = [&](const std::string& word) { return line.compare(0, word.size(), word) == 0; };
    const auto wrong = [&](const std::string& what) {
      throw std::runtime_error(file + ":" + std::to_string(number) + ": " + what);
    };
    if (begins("### ")) {
      const size_t colon = line.find(": ");
      if (colon == std::string::npos) wrong("a name is missing");
      all.push_back({line.substr(4, colon - 4), line.substr(colon + 2), "", engine_body});
      in_body = false;
    } else if (all.empty()) {
      continue;  // the file's head
    } else if (in_body) {
      all.back().body += line + "\n";
    } else if (begins("says: ")) {
      all.back().says = line.substr(6);
    } else if (begins("change: ")) {
      change = line.substr(8);
    } else if (begins("to: ") || line == "to:") {
      const size_t at = all.back().body.find(change);
      if (at == std::string::npos) wrong("the engine's body has no such part: " + change);
      all.back().body.replace(at, change.size(), line.size() > 4 ? line.substr(4) : "");
    } else if (line == "body:") {
      all.back().body.clear();
      in_body = true;
    } else if (!line.empty()) {
      wrong("what is this: " + line);
    }
  }
  return all;
}

// Each solution as FOLDER/1/, 2/, ...: the engine's files with this body in its region; `name`; and `expected`, of two
// lines: right or wrong, and what the grader must say.
void make_solutions(const std::string& file, const fs::path& to) {
  const std::string number = fs::path(file).stem().string();
  const auto texts = marked_files();
  std::string body;
  for (const auto& [source, text] : texts)
    if (const Bodies bodies = bodies_of(text); bodies.count(number)) body = bodies.at(number)[0];
  if (body.empty()) throw std::runtime_error(file + ": the engine has no region " + number);
  int at = 0;
  for (const Solution& solution : read_solutions(file, body)) {
    const fs::path folder = to / std::to_string(++at);
    for (const auto& [source, text] : texts) {
      Bodies bodies = bodies_of(text);
      if (bodies.count(number)) bodies[number] = {solution.body};
      write_file(folder / source, paste(cut(text), bodies));
    }
    write_file(folder / "expected", solution.kind + "\n" + solution.says + "\n");
    write_file(folder / "name", solution.name + "\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  try {
    if (what == "starter" && argc == 3) make_starter(argv[2]);
    else if (what == "solutions" && argc == 4) make_solutions(argv[2], argv[3]);
    else if (what == "student" && argc > 4) make_student(argv[2], argv[3], {argv + 4, argv + argc});
    else {
      fprintf(stderr,
              "usage: course starter FOLDER | course solutions FILE FOLDER | course student FOLDER TO CHAPTERS\n");
      return 2;
    }
  } catch (const std::exception& error) {
    fprintf(stderr, "course: %s\n", error.what());
    return 1;
  }
  return 0;
}
