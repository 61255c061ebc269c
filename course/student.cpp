// course/student.cpp: the main() of the program that runs a student's code.
//
// usage: chapter5 [--measure]
//   It answers the grader (file 3 to file 4) until that has no more questions. --measure prints the chapter's table.
#include "course/student.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <exception>

using namespace course;

namespace {

// Reads or writes n bytes; false where the other side is gone.
template <class Move>
bool all(Move move, int file, void* bytes, size_t n) {
  for (char* at = static_cast<char*>(bytes); n > 0;) {
    const ssize_t moved = move(file, at, n);
    if (moved <= 0) return false;
    at += moved;
    n -= size_t(moved);
  }
  return true;
}
bool receive(Message& message) {
  uint32_t size = 0;
  if (!all(read, kQuestions, &size, sizeof size)) return false;
  message = {std::vector<char>(size)};
  return all(read, kQuestions, message.bytes.data(), size);
}
bool send(Message& message) {
  uint32_t size = uint32_t(message.bytes.size());
  return all(write, kAnswers, &size, sizeof size) && all(write, kAnswers, message.bytes.data(), size);
}

}  // namespace

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
  const rlimit none{0, 0};
  setrlimit(RLIMIT_NOFILE, &none);  // a student's code opens no file
  for (Message question, reply; receive(question);) {
    try {
      reply = Message().put('a');
      const Message answered = answer(question);
      reply.bytes.insert(reply.bytes.end(), answered.bytes.begin(), answered.bytes.end());
    } catch (const std::bad_alloc&) {
      reply = Message().put('e').put(std::string("it ran out of memory: a loop without an end?"));
    } catch (const std::exception& error) { reply = Message().put('e').put(std::string(error.what())); }
    if (!send(reply)) break;
  }
  return 0;
}
