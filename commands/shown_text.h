// commands/shown_text.h: what of a generated text may be shown while it grows.
//
// Tokens bring bytes, and a token may end inside a character, or inside a text that ends the generation (--stop). So
// bytes are held back until it is sure that they are shown. All that is shown, end to end, does not depend on where
// tokens end.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "files/bpe.h"

namespace nanospec {

class ShownText {
 public:
  // stops: the text ends before the first of these that it contains; none is empty.
  explicit ShownText(std::vector<std::string> stops = {}) : stops_(std::move(stops)) {}

  // Takes more bytes of the text; returns what may be shown now, whole characters. After a stop it takes nothing.
  std::string put(std::string_view bytes) {
    for (size_t i = 0; i < bytes.size() && !stopped_; i++) {
      held_ += bytes[i];
      const size_t stop = stop_at_end();
      stopped_ = stop > 0;
      held_.resize(held_.size() - stop);
    }
    return release(stopped_ ? 0 : begun_stop());
  }
  // Returns what is left at the text's end. The beginning of a character that never ended is left out.
  std::string finish() { return release(0); }

  bool stopped() const { return stopped_; }

 private:
  // How many bytes at the end are a stop; of several the longest.
  size_t stop_at_end() const {
    size_t most = 0;
    for (const std::string& stop : stops_)
      if (held_.size() >= stop.size() && held_.compare(held_.size() - stop.size(), stop.size(), stop) == 0)
        most = std::max(most, stop.size());
    return most;
  }
  // How many bytes at the end may become a stop.
  size_t begun_stop() const {
    size_t most = 0;
    for (const std::string& stop : stops_)
      for (size_t n = std::min(held_.size(), stop.size() - 1); n > most; n--)
        if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) most = n;
    return most;
  }
  std::string release(size_t keep) {
    const std::string ready = held_.substr(0, held_.size() - keep);
    held_.erase(0, ready.size());
    return characters_.put(ready);
  }

  const std::vector<std::string> stops_;
  Utf8Stream characters_;
  std::string held_;  // bytes that may be the beginning of a stop
  bool stopped_ = false;
};

}  // namespace nanospec
