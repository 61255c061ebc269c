// files/folder.h: a folder that one process at a time may write, and files that are moved into it together.
//
// The lock is one of the system, on the folder itself. It ends with its process, also if that is killed, and leaves
// nothing behind. Readers need no lock: every file is renamed when it is whole. On a file system without locks there is
// none.
#pragma once

#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "files/io.h"
#include "files/unfinished.h"

namespace nanospec {

// The names under which programs of ours write into a model's folder, and what each file is.
struct KnownFile {
  const char *name, *what;  // a folder's name ends with a slash
};
constexpr KnownFile kKnownFiles[] = {
    {"model.safetensors", "the weights"},
    {"config.json", "the sizes"},
    {"tokenizer.json", "the tokenizer"},
    {"tokenizer_config.json", "the tokenizer, for transformers"},
    {"optimizer.safetensors", "all that --resume needs"},
    {"bigram.safetensors", "counts, for the drafter bigram"},
    {"ngram.safetensors", "counts, for the drafter ngram"},
    {"medusa.safetensors", "heads, for the drafter medusa"},
    {"medusa-optimizer.safetensors", "their training, for --resume"},
    {"hydra.safetensors", "heads, for the drafter hydra"},
    {"hydra-optimizer.safetensors", "their training, for --resume"},
    {"parallel.safetensors", "the drafter parallel"},
    {"parallel-optimizer.safetensors", "its training, for --resume"},
    {"calibration.json", "hit rates of drafters, for shapes"},
    {"train.json", "figures of the training"},
    {"medusa.json", "figures of the heads' training"},
    {"parallel.json", "figures of the drafter's training"},
    {"compare.json", "figures of a comparison"},
    {"compare.svg", "a picture of a comparison"},
    {"sequential/", "the drafter parallel in its sequential form"},
    {"hidden/", "states of texts, for training heads"},
    {"features/", "states of texts, for training the drafter parallel"},
    {"examples/", "states of what the model said, for training heads"},
    {"passages/", "states of what the model said, for training the drafter parallel"},
    {"index.json", "what the states are of"},  // in the last four, with train-N and validation-N.safetensors
};

// What the file of this name is; "" where no program of ours writes one.
inline std::string known_file(const std::string& name) {
  if (const KnownFile* const known = row_of(kKnownFiles, &KnownFile::name, name)) return known->what;
  const size_t dash = name.find('-'), dot = name.find('.');
  const std::string part = name.substr(0, dash), more = name.substr(std::min(dot, name.size()));
  if ((part != "train" && part != "validation") || more != ".safetensors" || dot <= dash + 1) return "";
  return name.find_first_not_of("0123456789", dash + 1) == dot ? "states of texts" : "";
}

// The process that holds the lock on an open folder; 0 if the system does not show it.
inline int lock_holder(int folder) {
  struct stat status;
  if (access("/proc/locks", R_OK) != 0 || fstat(folder, &status) != 0) return 0;
  char wanted[64];
  snprintf(wanted, sizeof wanted, "%02x:%02x:%llu", major(status.st_dev), minor(status.st_dev),
           static_cast<unsigned long long>(status.st_ino));
  char file[sizeof wanted];
  int process = 0;
  // A line is "1: FLOCK  ADVISORY  WRITE 12 fd:01:5 0 EOF".
  for (const std::string& line : split_at(read_file("/proc/locks"), '\n'))
    if (sscanf(line.c_str(), "%*d: FLOCK %*s %*s %d %63s", &process, file) == 2 && !strcmp(file, wanted))
      return process;
  return 0;
}

// The name of which this is the temporary one (io.h), where its process is this one or has ended; else "".
inline std::string left_over(const std::string& name) {
  const size_t mark = name.rfind(kTemporary);
  if (mark == std::string::npos) return "";
  const pid_t process = parse_count(name.substr(mark + std::string(kTemporary).size()));
  const bool ended = process == getpid() || (process > 0 && kill(process, 0) != 0 && errno == ESRCH);
  return ended ? name.substr(0, mark) : "";
}

// What a process of ours leaves in a folder if it is killed: files whose names ours have, and the folder of Staged,
// with such files in it. Whatever else lies there is somebody's, and stays.
constexpr const char* kStaged = "staged";
inline void remove_left_over(const std::string& folder, bool staged = false) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string path = entry.path(), name = entry.path().filename(), finished = left_over(name);
    const auto kind = entry.symlink_status(error).type();
    const bool known = !known_file(finished).empty() || (staged && !known_file(name).empty());
    if (kind == std::filesystem::file_type::regular && known) unlink(path.c_str());
    if (kind != std::filesystem::file_type::directory || finished != kStaged || staged) continue;
    remove_left_over(path, true);
    rmdir(path.c_str());
  }
}

class LockedFolder {
 public:
  // advice: what to do where another process holds the lock. A folder that is there is locked at once; make() makes
  // what is missing. Both throw runtime_error.
  LockedFolder(std::string path, std::string advice) : path_(std::move(path)), advice_(std::move(advice)) {
    if (std::filesystem::is_directory(path_)) lock();
  }
  LockedFolder(const LockedFolder&) = delete;

  // Makes the folder, and those around it, and locks it. Call it after all other checks.
  void make() {
    constexpr int kAttempts = 10;  // another process may remove what is made here
    std::vector<std::string> made;
    for (int attempt = 0; lock_.handle < 0; attempt++) {
      if (attempt == kAttempts) refuse_made(made, ENOENT);
      std::vector<std::string> missing;
      for (std::filesystem::path at = path_; !at.empty() && !std::filesystem::exists(at); at = at.parent_path())
        missing.push_back(at);
      for (; !missing.empty(); missing.pop_back()) {
        if (mkdir(missing.back().c_str(), 0777) == 0) made.push_back(missing.back());
        else if (errno != EEXIST) refuse_made(made, errno);
      }
      lock();
    }
    for (const std::string& path : made) made_.emplace_back(path);  // not before: the lock keeps others out now
    if (access(path_.c_str(), W_OK | X_OK) != 0) refuse_path("cannot write into the folder", path_, errno);
  }

 private:
  [[noreturn]] void refuse_made(const std::vector<std::string>& made, int error) const {
    for (size_t i = made.size(); i-- > 0;) rmdir(made[i].c_str());
    refuse_path("cannot create the folder", path_, error);
  }
  // Leaves the handle closed where the folder was removed meanwhile.
  void lock() {
    lock_.handle = open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock_.handle < 0 && errno == ENOENT) return;
    if (lock_.handle < 0) refuse_path("cannot open the folder", path_, errno);
    if (flock(lock_.handle, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      const int process = lock_holder(lock_.handle);
      refuse("another process writes into the folder",
             printable(path_, 300) + (process ? " (process " + std::to_string(process) + ")" : ""), advice_);
    }
    struct stat held, there;
    if (fstat(lock_.handle, &held) != 0 || stat(path_.c_str(), &there) != 0 || held.st_dev != there.st_dev ||
        held.st_ino != there.st_ino)
      close(std::exchange(lock_.handle, -1));
    else remove_left_over(path_);
  }

  const std::string path_, advice_;
  OpenFile lock_{-1};
  UnfinishedList made_;  // the innermost last: what is still empty is removed at the end
};

// Files that are first written into a temporary folder, inside the one that they are for, and moved up later.
class Staged {
 public:
  const std::string path;  // write them here

  // names: each begins with a slash.
  Staged(const std::string& folder, std::vector<std::string> names)
      : path(temporary_name(folder + "/" + kStaged)), folder_(folder), names_(std::move(names)), made_(path) {
    create_folder(path);
    for (const std::string& name : names_) files_.emplace_back(path + name);
  }
  // Moves them up: once, however often it is called. Throws runtime_error.
  void publish() {
    for (const std::string& name : names_)
      if (rename((path + name).c_str(), (folder_ + name).c_str()) != 0 && errno != ENOENT)
        refuse_path("cannot write the file", folder_ + name, errno);
    rmdir(path.c_str());
  }

 private:
  const std::string folder_;
  const std::vector<std::string> names_;
  const Unfinished made_;
  UnfinishedList files_;
};

}  // namespace nanospec
