// tests/tenth.h: how much to run.
#pragma once

#include <cstdlib>
#include <string>

namespace nanospec {

// Whether tests of many repeats are to run a tenth of them: always, but for `make prove`.
inline bool a_tenth() {
  const char* asked = std::getenv("NANOSPEC_PROVE");
  return !asked || std::string(asked) != "1";
}

// Whether the longest of them are to run a sixtieth or so: under AddressSanitizer, which asks about memory, not
// statistics.
inline bool a_sixtieth() {
#ifdef SANITIZED
  return a_tenth();
#else
  return false;
#endif
}

}  // namespace nanospec
