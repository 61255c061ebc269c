// course/text6.h: the text that the decoding of chapter 6 must give: a hash of what is in the cache, token by token.
//
// The grader computes it from tokens alone; the student's program reads it out of the cache that the student's gather
// has moved. One wrong number in the cache gives another text. Here is also the drafter, which is right now and then:
// so the grader knows how many forwards a text takes.
#pragma once

#include <cstdint>
#include <cstring>

namespace course {

constexpr int kLayers = 2, kHeads = 3, kHeadSize = 5;  // of the cache

inline uint64_t mixed(uint64_t hash, uint64_t with) {
  hash = (hash ^ with) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 29;
}

// The number that the token at this position writes into its key (value: false) or value.
inline float cached_number(int token, int position, int layer, int head, int d, bool value) {
  return float(mixed(mixed(uint64_t(token) << 32 | uint32_t(position), uint64_t(layer * 64 + head * 2 + value)), d) >>
               44);
}

// The hash of a text, one token longer. read(layer, head, d, value): the numbers that this token has in the cache.
template <class Read>
uint64_t longer_text(uint64_t hash, Read read) {
  for (int layer = 0; layer < kLayers; layer++)
    for (int head = 0; head < kHeads; head++)
      for (int d = 0; d < kHeadSize; d++)
        for (bool value : {false, true}) {
          const float number = read(layer, head, d, value);
          uint32_t bits;
          memcpy(&bits, &number, sizeof bits);
          hash = mixed(hash, bits);
        }
  return hash;
}
inline uint64_t longer_text(uint64_t hash, int token, int position) {
  return longer_text(hash, [=](int layer, int head, int d, bool value) {
    return cached_number(token, position, layer, head, d, value);
  });
}
inline int next_token(uint64_t hash, int vocab) { return int((hash >> 20) % uint64_t(vocab)); }

// What the drafter holds for the rank-th best next token: the right one, at rank 0 in `percent` of a hundred places, at
// rank 1 in half of the others, and so on. after: the hash of the text.
inline int drafted(uint64_t after, int rank, int percent, int vocab) {
  int right_at = 0;
  for (uint64_t dice = mixed(after, 77) >> 8; right_at < 8 && int(dice % 100) >= (right_at ? 50 : percent);
       dice = mixed(dice, 78) >> 8)
    right_at++;
  const int right = next_token(after, vocab);
  return rank == right_at ? right : (right + 1 + rank) % vocab;
}

}  // namespace course
