// files/hash.h: XXH64, the checksum of files of tensors. It is as fast as memory, so every file can be checked at every
// start. It finds damage, not forgery. The checksum of a text is SHA-256 (io.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

namespace nanospec {

// XXH64 with seed 0, as `xxhsum -H1` prints it. The bytes come piece by piece; four lanes take 8 of them each in turn.
class Xxh64 {
 public:
  void add(std::string_view bytes) {
    total_ += bytes.size();
    if (kept_ > 0 && !bytes.empty()) {
      const size_t more = std::min(bytes.size(), sizeof kept_bytes_ - kept_);
      memcpy(kept_bytes_ + kept_, bytes.data(), more);
      bytes.remove_prefix(more);
      kept_ += more;
      if (kept_ < sizeof kept_bytes_) return;
      stripe(kept_bytes_);
      kept_ = 0;
    }
    for (; bytes.size() >= sizeof kept_bytes_; bytes.remove_prefix(sizeof kept_bytes_)) stripe(bytes.data());
    if (!bytes.empty()) memcpy(kept_bytes_, bytes.data(), kept_ = bytes.size());
  }

  uint64_t value() const {
    uint64_t h = kFifth;
    if (total_ >= sizeof kept_bytes_) {
      h = turned(lane_[0], 1) + turned(lane_[1], 7) + turned(lane_[2], 12) + turned(lane_[3], 18);
      for (uint64_t lane : lane_) h = (h ^ step(0, lane)) * kFirst + kFourth;
    }
    h += total_;
    size_t at = 0;
    for (; at + 8 <= kept_; at += 8) h = turned(h ^ step(0, word<uint64_t>(at)), 27) * kFirst + kFourth;
    for (; at + 4 <= kept_; at += 4) h = turned(h ^ word<uint32_t>(at) * kFirst, 23) * kSecond + kThird;
    for (; at < kept_; at++) h = turned(h ^ word<uint8_t>(at) * kFifth, 11) * kFirst;
    h = (h ^ h >> 33) * kSecond;
    h = (h ^ h >> 29) * kThird;
    return h ^ h >> 32;
  }

 private:
  static constexpr uint64_t kFirst = 0x9E3779B185EBCA87, kSecond = 0xC2B2AE3D27D4EB4F, kThird = 0x165667B19E3779F9,
                            kFourth = 0x85EBCA77C2B2AE63, kFifth = 0x27D4EB2F165667C5;

  static uint64_t turned(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }
  static uint64_t step(uint64_t lane, uint64_t x) { return turned(lane + x * kSecond, 31) * kFirst; }
  void stripe(const char* bytes) {
    uint64_t x[4];
    memcpy(x, bytes, sizeof x);
    for (int i = 0; i < 4; i++) lane_[i] = step(lane_[i], x[i]);
  }
  template <class T>
  uint64_t word(size_t at) const {
    T x;
    memcpy(&x, kept_bytes_ + at, sizeof x);
    return x;
  }

  uint64_t lane_[4] = {kFirst + kSecond, kSecond, 0, 0 - kFirst}, total_ = 0;
  char kept_bytes_[32];  // what does not fill a stripe yet
  size_t kept_ = 0;
};

// "xxh64:" and 16 hexadecimal digits.
constexpr const char* kHashPrefix = "xxh64:";
inline std::string hash_text(const Xxh64& hash) {
  char digits[17];
  snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash.value()));
  return kHashPrefix + std::string(digits);
}
inline std::string hash_of(std::string_view bytes) {
  Xxh64 hash;
  hash.add(bytes);
  return hash_text(hash);
}

}  // namespace nanospec
