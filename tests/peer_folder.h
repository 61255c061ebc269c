// tests/peer_folder.h: another engine's program, as a script, for tests of what `bench` makes of it.
#pragma once

#include <sys/stat.h>

#include "study/process.h"
#include "tests/folder.h"

// While it lives, the script lies where `make peers` puts such programs, and the working folder is an empty one.
struct PeerFolder {
  std::string path = nanospec::program_folder() + "/peers/bin";  // of the script
  Folder folder;
  std::filesystem::path before = std::filesystem::current_path();

  PeerFolder(const std::string& name, const std::string& script) {
    std::filesystem::create_directories(path);
    nanospec::write_file(path + "/" + name, "#!/bin/sh\n" + script);
    chmod((path + "/" + name).c_str(), 0755);
    std::filesystem::current_path(folder.path);
  }
  ~PeerFolder() {
    std::filesystem::current_path(before);
    std::filesystem::remove_all(nanospec::program_folder() + "/peers");
  }
};
