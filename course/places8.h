// course/places8.h: a place that has noise: what the grader of chapter 8 and a student's program both name it by.
#pragma once

#include <cstdint>

namespace course {

struct Place {
  uint64_t seed;
  int64_t index;  // in the text
  uint32_t sequence, stream;
};

}  // namespace course
