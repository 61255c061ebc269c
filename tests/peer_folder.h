// tests/peer_folder.h: a folder to work in, for tests of what nanospec and other engines make of the same work.
#pragma once

#include <sys/stat.h>

#include <cstdlib>

#include "tests/command_line.h"
#include "tests/commands/stand_in.h"
#include "tests/gguf_file.h"

namespace {

const Words kKindsWords = {
    "--quick", "--only", "kinds", "--out", "out", "--threads", "2", "--model", "models/tiny.Q8_0.gguf"};

// While it lives, it is the working folder.
struct PeerFolder {
  Folder folder;
  std::filesystem::path before = std::filesystem::current_path();
  PeerFolder() { std::filesystem::current_path(folder.path); }
  ~PeerFolder() { std::filesystem::current_path(before); }

  // A model, and two questions of two kinds.
  void write_questions() const {
    std::filesystem::create_directory("models");
    std::filesystem::create_directory("data");
    nanospec::write_file("models/tiny.Q8_0.gguf", nanospec::llama_gguf().bytes());
    nanospec::write_file(
        "data/kinds.jsonl",
        "{\"kind\": \"copying\", \"prompt\": \"Copy me.\"}\n{\"kind\": \"story\", \"prompt\": \"A fox\"}\n");
    script = [](const nanospec::Method& method, int n) { return steady(method, n); };
  }

  // A program that is a script.
  void write_program(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    nanospec::write_file(path, "#!/bin/sh\n" + text);
    chmod(path.c_str(), 0755);
  }

  // What tests/reference/peers.py says of the programs in ours/; it writes peers.json.
  std::string peers(const std::string& words) const {
    const std::string python = "python3 '" + (before / "tests/reference/peers.py").string() + "' ";
    CHECK(system((python + words + " --ours ours --json peers.json >said 2>&1").c_str()) == 0);
    return nanospec::read_file("said");
  }
};

inline bool has_python() { return system("python3 -c pass >/dev/null 2>&1") == 0; }

}  // namespace
