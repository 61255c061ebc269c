// course/student.cpp: the main() of the program that runs a student's text.
//
// usage: chapter5 [--measure]
//   It answers the grader (file 3 to file 4) until that has no more questions. --measure prints the chapter's table.
#include "course/student.h"

#include <sys/resource.h>

#include <cstdio>
#include <cstring>
#include <exception>

using namespace course;

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "--measure") == 0) {
    try {
      measure();
      return 0;
    } catch (const std::exception& error) {
      fprintf(stderr, "%s: %s\n", argv[0], error.what());
      return 1;
    }
  }
  const rlimit no_more{kAnswers + 1, kAnswers + 1};
  setrlimit(RLIMIT_NOFILE, &no_more);  // a student's text opens no file
  for (Message question, reply; receive(kQuestions, question);) {
    try {
      reply = Message().put('a');
      const Message answered = answer(question);
      reply.bytes.insert(reply.bytes.end(), answered.bytes.begin(), answered.bytes.end());
    } catch (const std::exception& error) { reply = Message().put('e').put(std::string(error.what())); }
    if (!send(kAnswers, reply)) break;
  }
  return 0;
}
