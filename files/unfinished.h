// files/unfinished.h: what must not stay where work ends early: a file half written, a folder still empty.
//
// It goes with the object that names it, whatever exception passes, and with the process where a handler of signals
// calls remove_unfinished(). Only SIGKILL and a power cut leave it: folder.h removes that later.
#pragma once

#include <unistd.h>

#include <atomic>
#include <string>

namespace nanospec {

// A path that is removed with this object. A file that was renamed is not there any more, and a folder is removed only
// while it is empty: so what is finished stays. The last one made is the first to go; one thread makes them all.
class Unfinished {
 public:
  explicit Unfinished(std::string path) : path_(std::move(path)), before_(newest_) { newest_ = this; }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;
  ~Unfinished() {
    remove();
    newest_ = before_;
  }
  const std::string& path() const { return path_; }

 private:
  friend void remove_unfinished();
  void remove() const {
    if (unlink(path_.c_str()) != 0) rmdir(path_.c_str());
  }
  inline static std::atomic<const Unfinished*> newest_{nullptr};
  const std::string path_;
  const Unfinished* const before_;
};

// Removes all that there is, for a process that is about to end. A handler of signals may call it.
inline void remove_unfinished() {
  for (const Unfinished* one = Unfinished::newest_; one; one = one->before_) one->remove();
}

}  // namespace nanospec
