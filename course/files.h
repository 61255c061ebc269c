// course/files.h: whole files, read and written.
#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace course {

// "" where there is no such file.
inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The file's bytes, each a token.
inline std::vector<int> bytes_of(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
  return {bytes, bytes + text.size()};
}

// Writes beside it and renames. A file that holds this already is left alone, so that nothing is compiled again.
inline void write_file(const std::filesystem::path& path, const std::string& text) {
  if (std::filesystem::exists(path) && read_file(path) == text) return;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
  const std::string beside = path.string() + ".new";
  std::ofstream(beside, std::ios::binary) << text;
  std::filesystem::rename(beside, path);
}

}  // namespace course
