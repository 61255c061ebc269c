// archive/coder.cpp: the counts of coder.h.
#include "archive/coder.h"

#include <numeric>

#include "sample.h"

namespace nanospec {

void Counts::of(const float* logits) {
  const float top = from_ordered(Solo{}.largest<int32_t>(escape(), [=](int x) { return ordered(logits[x]); }));
  int32_t* const count = count_.data();
  Solo{}.each(escape(), [=](int x) {  // what is not a number counts as the least that there is
    count[x] = 1 + int32_t(kScale * exp_normal(larger(logits[x] - top, Format<float>::kLogLeast)));
  });
  total_ = before(escape()) + 1;
}

uint64_t Counts::before(int symbol) const {
  return std::accumulate(count_.begin(), count_.begin() + symbol, uint64_t(0));
}

int Counts::symbol_at(uint64_t place) const {
  size_t symbol = 0;
  for (; place >= uint64_t(count_[symbol]); symbol++) place -= uint64_t(count_[symbol]);
  return int(symbol);
}

}  // namespace nanospec
