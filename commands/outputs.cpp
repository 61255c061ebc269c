// commands/outputs.cpp: what cli.h says of the files that a run writes.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "commands/cli.h"
#include "files/io.h"
#include "files/unfinished.h"

namespace nanospec {
namespace {

// Whether it is the name of a file of a model: train_gpt, train_drafter, nanospec index or calibrate wrote it, or it is
// a model of llama.cpp.
bool names_model_file(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  return path.extension() == ".safetensors" || path.extension() == ".gguf" || name == "config.json" ||
         name == "tokenizer.json" || name == "tokenizer_config.json" || name == "calibration.json";
}

// Where a path leads, as far as it is there.
std::filesystem::path resolved(const std::string& path) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error);
  const std::filesystem::path place = std::filesystem::weakly_canonical(behind_links(whole.string()), error);
  if (error) return whole;
  return place.has_filename() ? place : place.parent_path();  // "a/" is "a"
}

// Whether it is a file of a model's folder, or would be; folders: where models lie.
bool is_model_file(const std::string& path, const std::vector<std::string>& folders) {
  if (names_model_file(path) || names_model_file(resolved(path))) return true;
  for (const std::string& folder : folders) {
    std::error_code error;
    for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(folder, error))
      if (names_model_file(entry.path()) && same_file(entry.path().string(), path)) return true;
  }
  return false;
}

// A path and the flag that names it.
struct NamedPath {
  std::string flag, path;
};

[[noreturn]] void refuse_output(const NamedPath& output, const std::string& why) {
  refuse_usage("{} {}: {}: give it another name", output.flag, why, printable(output.path, 300));
}

// Throws std::invalid_argument where what is written there would be lost, or something else by it. reads: the run's
// files; places: where its models lie. own: a model's file that it may write.
void check_output(const NamedPath& output, const std::vector<NamedPath>& reads, const std::vector<std::string>& places,
                  const std::string& own) {
  if (output.path == "-") refuse_output(output, "is a file, never standard output");
  for (const NamedPath& one : reads)
    if (same_file(output.path, one.path)) refuse_output(output, "would write over what " + one.flag + " reads");
  if (std::filesystem::path(output.path).filename() != own && is_model_file(output.path, places))
    refuse_output(output, "would write over a file of a model");
  std::error_code error;
  if (!std::filesystem::exists(output.path, error)) return;
  if (same_file(output.path, "/proc/self/fd/1")) refuse_output(output, "is what standard output writes");
  if (same_file(output.path, "/proc/self/fd/2")) refuse_output(output, "is what standard error writes");
}

}  // namespace

bool same_file(const std::string& a, const std::string& b) {
  struct stat one, other;
  if (stat(a.c_str(), &one) != 0 || stat(b.c_str(), &other) != 0) return resolved(a) == resolved(b);
  const bool nowhere = S_ISCHR(one.st_mode) && one.st_rdev == makedev(1, 3);
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino && !nowhere;
}

void check_writable(const std::string& path) {
  if (path.empty()) refuse("an empty name", "the file to write", "give its name");
  struct stat status;
  const bool exists = stat(path.c_str(), &status) == 0, folder = exists && S_ISDIR(status.st_mode);
  if (folder || (exists ? access(path.c_str(), W_OK) != 0 : errno != ENOENT))
    refuse_path("cannot write the file", path, folder ? EISDIR : errno);
  if (exists && !S_ISREG(status.st_mode)) return;
  // What stands beside it for a moment says more than permissions do.
  const Unfinished beside(temporary_name(resolved(path).string()));
  const OpenFile file{open(beside.path().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)};
  if (file.handle < 0) refuse_path("cannot write the file", path, errno);
}

void check_outputs(const Given& given, const std::vector<std::string>& also_reads, const std::string& own) {
  std::vector<NamedPath> files, folders, reads;  // that are written; that are read
  std::vector<std::string> places = also_reads;
  for (const std::string& path : also_reads)
    if (!path.empty()) reads.push_back({"this run", path});
  for (const Flag& flag : given.command.flags) {
    if (!given.has(flag.name)) continue;
    const bool file = flag.takes.compare(0, 4, "FILE") == 0, folder = flag.takes.find("DIR") != std::string::npos;
    for (const std::string& path : given.flags.at(flag.name)) {
      if (folder) places.push_back(path);
      if (flag.accepts.written) (file ? files : folders).push_back({flag.name, path});
      else if (file) reads.push_back({flag.name, path == "-" ? "/dev/stdin" : path});
    }
  }
  for (const NamedPath& folder : folders)
    for (const NamedPath& one : reads)
      if (names_model_file(one.path) && same_file(resolved(one.path).parent_path().string(), folder.path))
        refuse_output(folder, "would write over what " + one.flag + " reads");
  std::vector<NamedPath> all = folders;
  for (const NamedPath& output : files) {
    check_output(output, reads, places, own);
    for (const NamedPath& other : all)
      if (same_file(output.path, other.path)) refuse_output(output, "and " + other.flag + " are one file");
    all.push_back(output);
    const std::string within = resolved(output.path).parent_path().string();
    const bool to_come = std::any_of(folders.begin(), folders.end(), [&](const NamedPath& one) {
      return same_file(one.path, within) && !std::filesystem::exists(one.path);  // the run makes it
    });
    if (!to_come) check_writable(output.path);
  }
}

}  // namespace nanospec
