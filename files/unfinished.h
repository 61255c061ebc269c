// files/unfinished.h: removes what must not stay if work ends early: a file half written, a folder still empty.
//
// The destructor removes it, also after an exception; a signal handler removes it by remove_unfinished(). Only SIGKILL
// and a power cut leave it: folder.h removes it later.
#pragma once

#include <unistd.h>

#include <atomic>
#include <list>
#include <string>

namespace nanospec {

// A path that is removed with this object. What is finished stays: a file has been renamed by then, and a folder is
// removed only if it is empty. The objects are destroyed in the reverse order of their making; one thread makes them
// all.
class Unfinished {
 public:
  explicit Unfinished(std::string path) : path_(std::move(path)), before_(newest_) { newest_ = this; }
  Unfinished(const Unfinished&) = delete;
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

// Several of them, which are destroyed in the reverse order of their making.
struct UnfinishedList : std::list<Unfinished> {
  ~UnfinishedList() {
    while (!empty()) pop_back();
  }
};

// Removes all of them, for a process that is about to end. A signal handler may call it.
inline void remove_unfinished() {
  for (const Unfinished* one = Unfinished::newest_; one; one = one->before_) one->remove();
}

}  // namespace nanospec
