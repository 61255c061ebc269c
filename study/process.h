// study/process.h: other programs, run and waited for: what the parts of `bench` share that measure processes.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace nanospec {

// A folder that goes when the work is done. Throws std::runtime_error where it cannot be made.
struct Scratch {
  std::string path;
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

constexpr int kTooLong = 124;

// Runs a program whose output goes to `log`; returns its exit status, 127 where it cannot be started, kTooLong where it
// took more seconds than it was given. `waiting` is called meanwhile. Ctrl-C ends the program and all that it started.
int run_process(std::vector<std::string> words, const std::string& log, double most_seconds,
                const std::function<void()>& waiting);

std::string last_line(const std::string& path);  // of a log, for an error; "" where there is none
std::string program_folder();                    // where this program lies

inline std::string left_out(const std::string& why) { return "left out: " + why + "\n"; }

}  // namespace nanospec
