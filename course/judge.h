// course/judge.h: what a chapter's checks are made of: random inputs, the student's answers, the reference's, and what
// is wrong with them.
//
// checks5.cpp has the checks of chapter 5, grade.cpp runs them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "course/parents.h"
#include "course/wire.h"

namespace course {

// Why a check is not passed, in a line.
struct NotPassed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What answers questions: a process of its own under limits of time and memory, or a file of recorded answers.
class Answerer {
 public:
  virtual ~Answerer() = default;
  // Throws NotPassed where the program threw, ended, or took too long.
  virtual Message ask(const Message& question) = 0;
  // The student's line that stands at this place in the program, "" where that cannot be said.
  virtual std::string line_at(uintptr_t) const { return ""; }
};

// What a check gets: it examines a student. What is asked of the reference is drawn in statements of its own, never in
// the arguments of one call: compilers differ in their order, and would not meet the recorded answers.
struct Examiner {
  std::mt19937_64 random;  // of the seed, the chapter and the check: the student's process knows none of them
  Answerer& student;
  Answerer& reference;    // the engine's own code, or its recorded answers
  std::string note = {};  // what a check that is passed has to say

  int below(int n) { return int(random() % uint64_t(n)); }
  int between(int least, int most) { return least + below(most - least + 1); }
  double unit() { return double(random() >> 11) / 9007199254740992.0; }  // in [0, 1)
  template <class T = float>
  std::vector<T> numbers(size_t n, double largest = 1) {
    std::vector<T> list(n);
    for (T& x : list) x = T((2 * unit() - 1) * largest);
    return list;
  }
  // A tree of n nodes in preorder, by their parents. up: the chance to go up once more before the next node is added.
  std::vector<int> shape(int n, double up) {
    std::vector<int> parent;
    for (int i = 0; i < n; i++) {
      int above = i - 1;
      while (above > 0 && unit() < up) above = parent[above];
      parent.push_back(above);
    }
    return parent;
  }
};

// What so many calls of make() return, one behind the other.
template <class Make>
auto times(int n, Make make) {
  std::vector<decltype(make())> all;
  for (int i = 0; i < n; i++) all.push_back(make());
  return all;
}

// Asks one question about all of these: put(question, one) puts in what it needs of each. Then calls take(one, answer)
// for each.
template <class One, class Put, class Take>
void ask_of_each(Answerer& who, Message question, const std::vector<One>& all, Put put, Take take) {
  question.put(int(all.size()));
  for (const One& one : all) put(question, one);
  Message answer = who.ask(question);
  for (const One& one : all) take(one, answer);
}

// The run of a check that calls examine(judge, ...) with each of these lists of arguments in turn.
template <class... Of>
std::function<void(Examiner&)> cases(void (*examine)(Examiner&, Of...),
                                     const std::vector<std::tuple<std::decay_t<Of>...>>& all) {
  return [=](Examiner& judge) {
    for (const auto& one : all) std::apply([&](const auto&... its) { examine(judge, its...); }, one);
  };
}

struct Check {
  const char* name;
  int points;
  std::function<void(Examiner&)> run;  // throws NotPassed
};
struct Chapter {
  int number;
  const char* title;
  std::vector<Check> checks;                          // their points add up to 10
  std::map<std::string, std::string> stand_ins = {};  // bodies of other chapters' regions that it needs
};
const std::map<std::string, std::string> kMask = {  // course/parents.h
    {"5.2", "return course::sees_by_parents(i, j);"}};
Chapter chapter1(), chapter2(), chapter3(), chapter4(), chapter5(), chapter6(), chapter7(), chapter8(), chapter9(),
    chapter10(), chapter11(), chapter12(), chapter13();

// ---------------------------------------------------------------------------------------------------------------
// Words for what is wrong

inline std::string text_of(int x) { return std::to_string(x); }
inline std::string text_of(double x, const char* form = "%.9g") {
  char text[32];
  snprintf(text, sizeof text, form, x);
  return text;
}
inline std::string text_of(const std::string& text) { return text; }
// A list's first numbers.
template <class T>
std::string text_of(const std::vector<T>& list) {
  constexpr size_t most = std::is_same_v<T, int> ? 24 : 12;
  std::string text = "[";
  for (size_t i = 0; i < list.size() && i < most; i++) {
    text += i ? " " : "";
    if constexpr (std::is_same_v<T, double>) text += text_of(list[i], "%.4g");
    else text += text_of(list[i]);
  }
  return text + (list.size() > most ? " ...]" : "]");
}
// The parts one behind the other.
template <class... Parts>
std::string line_of(const Parts&... parts) {
  std::string line;
  for (const std::string& part : {text_of(parts)...}) line += part;
  return line;
}
template <class... Parts>
[[noreturn]] void not_passed(const Parts&... parts) {
  throw NotPassed(line_of(parts...));
}

// Throws where the two differ in a bit. where(i): the name of place i.
template <class Where>
void same_bits(const std::vector<float>& got, const std::vector<float>& right, Where where) {
  if (got.size() != right.size()) not_passed(int(got.size()), " numbers, not ", int(right.size()));
  for (size_t i = 0; i < got.size(); i++)
    if (memcmp(&got[i], &right[i], sizeof(float)) != 0)
      not_passed(where(int(i)), " is ", got[i], ", should be ", right[i],
                 text_of(got[i]) == text_of(right[i]) ? " (they differ in the last bits)" : "");
}

}  // namespace course
