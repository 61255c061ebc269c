// course/wire.h: what the grader and a student's program say to each other: messages, over two pipes.
//
// The grader makes inputs and compares outputs; the student's code runs in a process of its own, which reads questions
// from file 3 and writes answers to file 4. So it cannot see what is expected, and what it prints harms nobody. Both
// run on one machine: numbers are sent as they lie in memory.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace course {

constexpr int kQuestions = 3, kAnswers = 4;

// Values one behind the other: put in by `put`, taken out in the same order by `get` and `list`.
struct Message {
  std::vector<char> bytes;
  size_t at = 0;  // of the next value to take out

  template <class T>
  Message& put(const T& value) {
    static_assert(std::is_trivially_copyable<T>::value, "a number, or a struct of numbers");
    const char* from = reinterpret_cast<const char*>(&value);
    bytes.insert(bytes.end(), from, from + sizeof value);
    return *this;
  }
  template <class T>
  Message& put(const std::vector<T>& list) {
    put(uint32_t(list.size()));
    const char* from = reinterpret_cast<const char*>(list.data());
    bytes.insert(bytes.end(), from, from + list.size() * sizeof(T));
    return *this;
  }
  Message& put(const std::string& text) { return put(std::vector<char>(text.begin(), text.end())); }

  // These throw std::runtime_error where the message ends too early.
  template <class T>
  T get() {
    T value;
    memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  template <class T, class List = std::vector<T>>
  List list() {
    const size_t n = get<uint32_t>();
    const char* from = take(n * sizeof(T));
    List values(n, T());
    if (n > 0) memcpy(values.data(), from, n * sizeof(T));
    return values;
  }
  std::string text() { return list<char, std::string>(); }

 private:
  const char* take(size_t n) {
    if (bytes.size() - at < n) throw std::runtime_error("a message ends too early");
    at += n;
    return bytes.data() + at - n;
  }
};

}  // namespace course
