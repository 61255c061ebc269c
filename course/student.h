// course/student.h: what the file of a chapter gives the program that runs a student's code.
//
// chapter5.cpp has both functions: one answers the grader's questions by calling the student's code, the other measures
// it. student.cpp has the main().
#pragma once

#include "course/wire.h"

namespace course {

// Throws what the student's code throws.
Message answer(Message& question);

// Prints a table.
void measure();

}  // namespace course
