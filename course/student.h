// course/student.h: what the file of a chapter gives the program that runs a student's code.
//
// chapter5.cpp has answer() and measure(): one answers the grader's questions by calling the student's code, the other
// measures it. student.cpp has the main().
#pragma once

#include <algorithm>
#include <chrono>

#include "course/wire.h"

namespace course {

// Throws what the student's code throws.
Message answer(Message& question);

// Prints a table.
void measure();

// The answer to a question about many (ask_of_each in judge.h): f(answer) takes one out of it and puts in its answer.
template <class F>
Message answer_each(Message& question, F f) {
  Message answer;
  for (int many = question.get<int>(); many > 0; many--) f(answer);
  return answer;
}

// The seconds of the fastest of so many runs.
template <class F>
double fastest(int runs, F f) {
  double best = 1e9;
  for (int run = 0; run < runs; run++) {
    const auto start = std::chrono::steady_clock::now();
    f();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace course
