// tests/error_of.h: what a call complains of.
#pragma once

#include <stdexcept>
#include <string>

// The message of the Error that f raises; "" when it raises none.
template <class Error = std::runtime_error, class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& error) { return error.what(); }
  return "";
}

// The same of a word that is refused.
template <class F>
std::string message_of(F f) {
  return error_of<std::invalid_argument>(f);
}
inline bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
