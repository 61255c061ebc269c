// tests/cuda/test_architectures.cpp: for which GPUs the Makefile lets nvcc compile: those of the machine, or all. Both
// nvcc and nvidia-smi are made up, and make only says what it would do.
#include <doctest/doctest.h>

#include <cstdlib>
#include <set>
#include <string>

#include "tests/folder.h"

using namespace nanospec;

namespace {

// Which code nvcc is asked for by `make -n TARGET` on a machine with GPUs of these compute capabilities, a line each.
std::set<std::string> asked(const std::string& target, const std::string& capabilities) {
  const Folder folder;
  write_file(folder.file("nvcc"), "#!/bin/sh\nprintf 'compute_75\\ncompute_80\\ncompute_90\\ncompute_100\\n'\n");
  write_file(folder.file("nvidia-smi"),
             "#!/bin/sh\ncase $1 in -L) echo GPU 0 ;; *) printf '" + capabilities + "' ;; esac\n");
  REQUIRE(std::system(("chmod +x " + folder.file("nvcc") + " " + folder.file("nvidia-smi")).c_str()) == 0);
  const std::string command = "env -u MAKEFLAGS -u T -u CAPABILITIES PATH=" + folder.path + ":\"$PATH\" make -n " +
                              target + " BUILD=" + folder.file("build") + " >" + folder.file("out") + " 2>&1";
  REQUIRE(std::system(command.c_str()) == 0);
  const std::string said = read_file(folder.file("out"));
  std::set<std::string> codes;
  for (size_t at = 0; (at = said.find("code=[", at)) != std::string::npos; at++)
    codes.insert(said.substr(at + 6, said.find(']', at) - at - 6));
  return codes;
}

}  // namespace

TEST_CASE("architectures: make compiles for the machine's GPUs alone, make cuda for all") {
  const std::set<std::string> all = {"sm_80,compute_80", "sm_90,compute_90"}, hopper = {"sm_90,compute_90"};
  CHECK(asked("programs", "9.0\\n") == hopper);
  CHECK(asked("tests", "9.0\\n9.0\\n") == hopper);
  CHECK(asked("programs", "8.0\\n10.0\\n") == std::set<std::string>{"sm_80,compute_80", "sm_100,compute_100"});
  CHECK(asked("programs", "7.5\\n") == all);   // the kernels want 8.0
  CHECK(asked("programs", "12.0\\n") == all);  // this nvcc does not know it: the driver compiles for it
  CHECK(asked("cuda", "9.0\\n") == all);
}
