// commands/preparing.h: what is said while a text is read, encoded and counted, which takes long where it is large.
#pragma once

#include <functional>
#include <string>

#include "commands/cli.h"

namespace nanospec {

// A progress line at every step of a large text, and of any text after a second.
class Preparing {
 public:
  // Of a text of so many bytes.
  Preparing(double bytes, bool quiet)
      : progress_(quiet, 1), what_("preparing " + bytes_text(bytes) + " of text: "), large_(bytes >= kLarge) {}

  void step(const std::string& name) {
    step_ = name;
    if (large_ || progress_.due()) progress_.show(what_ + step_);
  }
  void clear() { progress_.clear(); }
  // To be told of the step's progress. It lives no longer than this object.
  std::function<void(double share)> told() {
    return [this](double share) {
      if (progress_.due()) progress_.show(what_ + step_ + "  " + decimals(100 * share, 0) + "%");
    };
  }

 private:
  static constexpr double kLarge = 8e6;  // about a second's
  Progress progress_;
  std::string what_, step_;
  bool large_;
};

}  // namespace nanospec
