// tests/error_of.h: what a call complains of.
#pragma once

#include <stdexcept>
#include <string>

// The message of the runtime_error that f raises; "" when it raises none.
template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const std::runtime_error& error) { return error.what(); }
  return "";
}
