// course/teacher/table.cpp: a class in one table: of each student the points, of all of them the commonest mistakes.
//
// usage: table FOLDER     FOLDER has NAME.json of each student, as the grader writes it, with a person's points in
//                         `predictions` and `questions`; NAME.failed where the grader itself ended otherwise.
// It writes FOLDER/class.csv, mistakes.txt and race.txt, each whole or not at all. `make grade SUBMISSIONS=` calls it.
#include <cctype>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "course/files.h"

using namespace course;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace {

struct Student {
  Json chapters = Json::object();  // by number
  Json tests = Json::array();
  std::string problem;  // why there is nothing else
};
using Class = std::map<std::string, Student>;  // by name

Class read_class(const fs::path& folder) {
  Class students;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string kind = entry.path().extension(), name = entry.path().stem();
    if (kind == ".failed") students[name].problem = "not graded: see " + name + ".txt";
    if (kind != ".json") continue;
    Student& student = students[name];
    try {
      const Json results = Json::parse(read_file(entry.path()));
      student.chapters = results.at("extra_data").at("chapters");
      student.tests = results.at("tests");
    } catch (const std::exception&) { student.problem = name + ".json is no results.json"; }
  }
  return students;
}

// ---------------------------------------------------------------------------------------------------------------
// The CSV

// A field with a comma, a quote or a newline stands in quotes. One that a spreadsheet would compute is kept as text.
std::string field(const std::string& text) {
  std::string quoted = text.find_first_of("=+-@") == 0 ? "'" : "";
  for (char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted.find_first_of(",\"\n\r") == std::string::npos ? quoted : '"' + quoted + '"';
}
double points_of(const Json& chapter, const char* name) {
  const Json points = chapter.value(name, Json());
  return points.is_number() ? points.get<double>() : 0;
}

std::string csv_of(const Class& students) {
  std::set<int> numbers;
  for (const auto& [name, student] : students)
    for (const auto& chapter : student.chapters.items()) numbers.insert(atoi(chapter.key().c_str()));
  std::ostringstream text;
  text << "student,sum";
  for (const int n : numbers) text << ",chapter " << n;
  text << ",predictions,questions";
  for (const int n : numbers) text << ",state " << n;
  text << ",problem\n";
  for (const auto& [name, student] : students) {
    double sum = 0, predictions = 0, questions = 0;
    std::ostringstream points, states;
    for (const int n : numbers) {
      const Json chapter = student.chapters.value(std::to_string(n), Json::object());
      points << ",";
      if (!chapter.empty()) points << points_of(chapter, "points");
      states << "," << field(chapter.value("state", ""));
      sum += points_of(chapter, "points");
      predictions += points_of(chapter, "predictions");
      questions += points_of(chapter, "questions");
    }
    text << field(name) << "," << sum + predictions + questions << points.str() << "," << predictions << ","
         << questions << states.str() << "," << field(student.problem) << "\n";
  }
  return text.str();
}

// ---------------------------------------------------------------------------------------------------------------
// The commonest mistakes

// The message without what the inputs decide: a list becomes [], a number #.
std::string kind_of(const std::string& message) {
  std::string kind;
  for (size_t i = 0; i < message.size(); i++) {
    if (message[i] == '[') {
      i = std::min(message.find(']', i), message.size() - 1);
      kind += "[]";
    } else if (isdigit(static_cast<unsigned char>(message[i]))) {
      while (i + 1 < message.size() && (isxdigit(static_cast<unsigned char>(message[i + 1])) || message[i + 1] == '.' ||
                                        (message[i + 1] == '-' && message[i] == 'e')))
        i++;
      kind += '#';
    } else kind += message[i];
  }
  return kind;
}

std::string mistakes_of(const Class& students) {
  struct Mistake {
    std::string chapter, check, example, names;
    int count = 0;
  };
  std::map<std::pair<int, std::string>, Mistake> all;  // by chapter and kind
  for (const auto& [name, student] : students) {
    std::set<std::pair<std::string, std::string>> theirs;  // a message that stands at several checks counts once
    for (const auto& test : student.tests) {
      const std::string chapter = test.value("number", ""), message = test.value("output", "");
      if (message.empty() || test.value("status", "") == "passed" || !theirs.insert({chapter, kind_of(message)}).second)
        continue;
      Mistake& mistake = all[{atoi(chapter.c_str()), kind_of(message)}];
      if (mistake.count++ == 0) mistake = {chapter, test.value("name", ""), message, "", 1};
      mistake.names += (mistake.names.empty() ? "" : ", ") + name;
    }
  }
  std::multimap<int, Mistake, std::greater<int>> sorted;
  for (const auto& [kind, mistake] : all) sorted.insert({mistake.count, mistake});
  std::string text;
  for (const auto& [count, mistake] : sorted)
    text += std::to_string(count) + " of " + std::to_string(students.size()) + "  chapter " + mistake.chapter + ", " +
            mistake.check + ": " + mistake.example + "\n      " + mistake.names + "\n";
  return text.empty() ? "no mistakes\n" : text;
}

// ---------------------------------------------------------------------------------------------------------------
// The race

// Who finished, the fastest first: what the last check of the race says begins with tokens a second.
std::string race_of(const Class& students) {
  std::multimap<double, std::string, std::greater<double>> sorted;
  for (const auto& [name, student] : students) {
    std::string said;
    for (const auto& test : student.tests)
      if (test.value("number", "") == "13" && test.value("status", "") == "passed") said = test.value("output", "");
    if (!said.empty()) sorted.insert({atof(said.c_str()), name + "  " + said});
  }
  std::string text;
  int place = 0;
  for (const auto& line : sorted) text += std::to_string(++place) + "  " + line.second + "\n";
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || !fs::is_directory(argv[1])) {
    fprintf(stderr, "usage: table FOLDER\n");
    return 2;
  }
  const fs::path folder = argv[1];
  const Class students = read_class(folder);
  write_file(folder / "class.csv", csv_of(students));
  write_file(folder / "mistakes.txt", mistakes_of(students));
  write_file(folder / "race.txt", race_of(students));
  return 0;
}
