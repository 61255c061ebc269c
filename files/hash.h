// files/hash.h: XXH64, the checksum of files of tensors. It is as fast as memory, so every file can be checked at every
// start. It finds damage, not forgery. The checksum of a text is SHA-256 (io.h).
#pragma once

#define XXH_INLINE_ALL  // a header is all of the library that is needed
#include <xxhash.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace nanospec {

// XXH64 with seed 0, as `xxhsum -H1` prints it. The bytes come piece by piece.
class Xxh64 {
 public:
  Xxh64() { XXH64_reset(&state_, 0); }
  void add(std::string_view bytes) { XXH64_update(&state_, bytes.data(), bytes.size()); }
  uint64_t value() const { return XXH64_digest(&state_); }

 private:
  XXH64_state_t state_;
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
