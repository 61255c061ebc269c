// tests/tenth.h: how much to run.
#pragma once

#include <cstdlib>
#include <string>

namespace nanospec {

// Whether tests of many repeats are to run a tenth of them: for sanitizers, which see what a plain run cannot.
inline bool a_tenth() {
  const char* asked = std::getenv("NANOSPEC_TENTH");
  return asked && std::string(asked) == "1";
}

}  // namespace nanospec
