// archive/coder.h: an arithmetic coder: symbols of known chances become one number, and come back out of it.
//
// A range of numbers stands for all that was said so far. A symbol takes a part of it, in proportion to its chance, and
// leaves that part as the range; when its first byte is settled, it is written, and the range widens (Witten, Neal,
// Cleary 1987; by bytes, with carries: Schindler 1998). So a symbol of chance p costs -log2(p) bits, and a text less
// than two bytes more than the sum. All is arithmetic of whole numbers: the same on every machine.
//
// Here, in order: a symbol's share; the counts that a model's logits become; the encoder; the decoder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nanospec {

// A symbol has `size` of `total` parts, behind those of the symbols before it.
struct Share {
  uint64_t below, size, total;  // size >= 1; total <= kMostParts
};
constexpr uint64_t kMostParts = uint64_t(1) << 52;

// The chances of the next token as whole numbers: 1 + floor(kScale exp(logit - largest logit)), so that any token can
// come, and one symbol more, of count 1, for what is no token. A logit is a float and exp the engine's own, hence the
// counts are the same in every build. They are whole, so their sums are the same in any order. Each 1 takes from the
// others: of 49,152 tokens all take at most 3.3e-5 bits from a token (49,153 / kScale, over ln 2).
class Counts {
 public:
  // Each symbol is 1, until there are logits.
  explicit Counts(int tokens) : count_(size_t(tokens) + 1, 1) {}

  int escape() const { return int(count_.size()) - 1; }  // the symbol that is no token
  void of(const float* logits);                          // logits: (V)
  Share share(int symbol) const { return {before(symbol), uint64_t(count_[size_t(symbol)]), total_}; }
  int symbol_at(uint64_t place) const;  // whose part a place in [0, total) lies in
  uint64_t total() const { return total_; }

 private:
  static constexpr float kScale = 0x1.fffffep30f;  // the largest float below 2^31
  uint64_t before(int symbol) const;

  std::vector<int32_t> count_;  // (V + 1)
  uint64_t total_ = count_.size();
};

// Widened, the range has at least 2^56 numbers: a share's part is off by less than 1 of its 2^56 / kMostParts or more.
constexpr int kTopByte = 56;
using Wide = unsigned __int128;
// Leaves a share's part of a range. Returns where it begins.
inline uint64_t narrow(uint64_t& range, const Share& s) {
  const Wide from = Wide(range) * s.below / s.total, to = Wide(range) * (s.below + s.size) / s.total;
  range = uint64_t(to - from);
  return uint64_t(from);
}

class Encoder {
 public:
  void put(const Share& s) {
    move_up(narrow(range_, s));
    for (; range_ >> kTopByte == 0; range_ <<= 8, low_ <<= 8) bytes_ += char(low_ >> kTopByte);
  }
  // The shortest number in the range; zeros follow it.
  std::string finish() {
    move_up((uint64_t(1) << kTopByte) - 1);
    bytes_ += char(low_ >> kTopByte);
    return std::move(bytes_);
  }

 private:
  void move_up(uint64_t by) {
    low_ += by;
    if (low_ >= by) return;
    size_t at = bytes_.size();  // a carry: the first byte never overflows, for all ranges lie in [0, 1)
    while (++bytes_[--at] == 0) {}
  }
  std::string bytes_;
  uint64_t low_ = 0, range_ = ~uint64_t(0);  // of the range, below what is written
};

class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : bytes_(bytes) {
    for (int i = 0; i < 8; i++) read();
  }
  // A place in [0, total), in the next symbol's part.
  uint64_t place(uint64_t total) const {
    return std::min(uint64_t(((Wide(code_) + 1) * total - 1) / range_), total - 1);
  }
  void take(const Share& s) {
    code_ -= narrow(range_, s);
    for (; range_ >> kTopByte == 0; range_ <<= 8) read();
  }
  // A symbol of `total` that are equally likely.
  uint64_t even(uint64_t total) {
    const uint64_t symbol = place(total);
    take({symbol, 1, total});
    return symbol;
  }
  // Whether it was asked for more symbols than were ever put in.
  bool spent() const { return at_ > bytes_.size() + 7; }

 private:
  void read() {
    code_ = code_ << 8 | (at_ < bytes_.size() ? uint8_t(bytes_[at_]) : 0);
    at_++;
  }
  std::string_view bytes_;
  size_t at_ = 0;
  uint64_t code_ = 0, range_ = ~uint64_t(0);  // where in the range the number lies
};

}  // namespace nanospec
