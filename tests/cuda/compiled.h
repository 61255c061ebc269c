// tests/cuda/compiled.h: what the tests of compiled kernels read (test_budgets.cpp, test_sass.cpp): files, and a
// kernel's name in a source and in what the compiler says.
#pragma once

#include <cxxabi.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

namespace nanospec {

inline std::string contents(const std::string& path) {
  std::ifstream file(path);
  REQUIRE_MESSAGE(file.good(), path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A kernel in a source, as a regular expression; its name is the group.
constexpr const char* kKernelInSource =
    "__global__(?:\\s+void|\\s+__launch_bounds__\\((?:[^()]|\\([^()]*\\))*\\))+\\s+(\\w+)";

// The kernel that the linker calls `symbol`: its name, and its template arguments behind that.
inline std::string kernel_name(const std::string& symbol) {
  int status = 0;
  char* readable = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
  std::string name = readable ? readable : symbol;
  free(readable);
  for (const char* word : {"void ", "nanospec::", "(anonymous namespace)::"})
    for (size_t at; (at = name.find(word)) != std::string::npos;) name.erase(at, strlen(word));
  return name.substr(0, name.find('('));
}
inline std::string without_arguments(const std::string& name) { return name.substr(0, name.find('<')); }

}  // namespace nanospec
