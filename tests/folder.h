// tests/folder.h: a folder for the files of one test; and whether a text has a part.
#pragma once

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "files/io.h"

// It is gone at the end of its scope.
struct Folder {
  std::string path;
  Folder() {
    char name[] = "/tmp/nanospec_test_XXXXXX";
    if (!mkdtemp(name)) throw std::runtime_error("no folder for a test in /tmp");
    path = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path); }

  std::string file(const std::string& name) const { return path + "/" + name; }
  std::string file(const std::string& name, const std::string& bytes) const {
    nanospec::write_file(file(name), bytes);
    return file(name);
  }
  std::vector<std::string> files() const {  // sorted
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
};

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
