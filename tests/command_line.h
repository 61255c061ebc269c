// tests/command_line.h: what tests of commands share: a folder of their own, what a command prints, what it refuses.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "files/checkpoint.h"
#include "tests/folder.h"

namespace {

// Runs f with one of the process's outputs (1 or 2) going to a file, and returns what came.
template <class F>
std::string captured(int output, F f) {
  fflush(stdout), fflush(stderr);
  const Folder folder;
  const int kept = dup(output);
  FILE* file = fopen(folder.file("out").c_str(), "w");
  dup2(fileno(file), output);
  try {
    f();
  } catch (...) {
    fflush(stdout), fflush(stderr);
    dup2(kept, output), close(kept), fclose(file);
    throw;
  }
  fflush(stdout), fflush(stderr);
  dup2(kept, output), close(kept), fclose(file);
  return nanospec::read_file(folder.file("out"));
}

using Words = std::vector<std::string>;
inline std::vector<char*> arguments(Words& words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(&word[0]);
  return argv;
}

// The line of the exception that f throws; fails when it throws none of that kind.
template <class Exception, class F>
std::string line_of(F f) {
  try {
    f();
  } catch (const Exception& error) { return error.what(); }
  FAIL("nothing was thrown");
  return "";
}

}  // namespace

#define BAD_COMMAND_LINE(...) line_of<std::invalid_argument>([&] { __VA_ARGS__; })
