// sample.h: from logits to a token.
//
// In order: the settings; the order of floats as integers; which tokens top-k, top-p and min-p keep; the noise; the
// pick; the distribution that the pick samples, for the rules that need probabilities. A row of logits is read again
// and again, and never sorted. There is no random state: noise is a pure function of (seed, sequence, stream, index in
// the text, token). So the text cannot depend on who drafted it, or when. The file does not know where logits come
// from.
//
// The next token is the argmax over the kept tokens x of logit(x) / temperature + gumbel(x), ties to the lowest id:
// a sample of softmax(logits / temperature) (Gumbel 1954). It is computed as logit + temperature * gumbel, which orders
// the tokens alike and needs no division. At temperature 0 it is the argmax of the logits. A NaN logit is picked only
// where all are NaN.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "machine/numbers.h"

namespace nanospec {

struct Sampling {
  float temperature = 1;  // >= 0; 0: the likeliest token, always
  int top_k = 0;          // keep the k likeliest tokens; 0: all
  float top_p = 1;        // of these keep the fewest likeliest tokens whose chances sum to at least this; 1: all
  uint64_t seed = 1;
  uint32_t sequence = 0;  // tells apart texts that are generated under one seed
  float min_p = 0;        // keep those whose chance is at least this share of the likeliest token's; 0: all
  // A token that the text already contains becomes less likely (rules/penalties.h); 1, 0 and 0: it does not.
  float repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  HD bool drops(int vocab) const { return temperature > 0 && ((top_k > 0 && top_k < vocab) || top_p < 1 || min_p > 0); }
  bool penalizes() const { return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0; }
};

// ---------------------------------------------------------------------------------------------------------------
// Order

// Floats as integers of the same order; -0 is 0, and a NaN is below everything.
constexpr int32_t kNotANumber = std::numeric_limits<int32_t>::min();
HD inline int32_t ordered(float x) {
  const int32_t bits = bits_as<int32_t>(x + 0.0f);
  return x == x ? bits ^ ((bits >> 31) & 0x7fffffff) : kNotANumber;
}
HD inline float from_ordered(int32_t key) { return bits_as<float>(key ^ ((key >> 31) & 0x7fffffff)); }

// A score and its token as one integer: the largest has the best score, and of equal scores the lowest token.
HD inline int64_t ranked(float score, int token) {
  return int64_t(uint64_t(uint32_t(ordered(score))) << 32 | uint32_t(~token));
}
HD inline int token_of(int64_t rank) { return int(~uint32_t(rank)); }
HD inline int32_t key_of(int64_t rank) { return int32_t(rank >> 32); }

// ---------------------------------------------------------------------------------------------------------------
// What top-k, top-p and min-p keep

// The largest threshold t, as an ordered key, for which enough(n, t) holds; n is the number of logits >= t. enough()
// must hold at `low`; where it fails it must fail for all larger t. `top` is the largest logit. The function bisects
// the value and the key by turns: the value is quick where logits are spread evenly; the key takes at most 32 steps,
// whatever the logits are. It stops as soon as one logit lies between true and false, or `exact` logits are kept. So
// the result need not be a logit. group: the lanes that share the work, Solo or Warp.
template <class Group, class Enough>
HD int32_t largest_threshold(Group group, const float* logits, int vocab, int32_t low, float top, int exact,
                             Enough enough) {
  const auto count = [&](int32_t key) {
    const float t = from_ordered(key);
    return group.count(vocab, [=](int x) { return logits[x] >= t; });
  };
  int64_t from = low, to = int64_t(ordered(top)) + 1;
  int kept_from = count(low), kept_to = 0;
  for (int step = 0; to - from > 1 && kept_from - kept_to > 1 && kept_from != exact; step++) {
    const float a = larger(from_ordered(int32_t(from)), top - 32), b = from_ordered(int32_t(to - 1));
    const int64_t by_value = ordered(a + (b - a) / 2), by_key = (from + to) >> 1;
    const int64_t middle = step % 2 == 0 && from < by_value && by_value < to ? by_value : by_key;
    const int kept = count(int32_t(middle));
    if (kept == kept_from || (kept != kept_to && enough(kept, int32_t(middle)))) {
      from = middle;
      kept_from = kept;
    } else {
      to = middle;
      kept_to = kept;
    }
  }
  return int32_t(from);
}

// exp((logit - top) / t) of a kept logit, else 0. The choice comes before exp, so that compilers vectorize it.
HD inline float weight(float logit, float least, float top, float t) {
  const float kept = logit >= least ? logit : -Format<float>::kInfinity;
  return exp((kept - top) / t);
}

// A token is kept exactly when its logit is >= this threshold. First the top_k largest logits are kept; then, of these,
// the fewest largest whose softmax at this temperature reaches top_p, as Hugging Face's warpers do it. Logits equal to
// the last one kept are kept too. Of these stay those with exp((logit - top) / t) >= min_p (Nguyen et al. 2024). At
// temperature 0, or when all are kept, it is -infinity.
template <class Group>
HD float kept_threshold(Group group, const float* logits, int vocab, const Sampling& sampling) {
  const float t = sampling.temperature;
  int32_t kept = ordered(-Format<float>::kInfinity);
  if (!sampling.drops(vocab)) return from_ordered(kept);
  const float top = from_ordered(group.template largest<int32_t>(vocab, [=](int x) { return ordered(logits[x]); }));
  const int32_t by_min = ordered(fused(t, log(sampling.min_p), top));
  if (const int k = sampling.top_k; k > 0 && k < vocab)
    kept = largest_threshold(group, logits, vocab, kept, top, k, [=](int n, int32_t) { return n >= k; });
  if (sampling.top_p < 1) {
    const auto mass = [&](int32_t key) {
      const float least = from_ordered(key);
      return group.template sum<double>(vocab, [=](int x) { return double(weight(logits[x], least, top, t)); });
    };
    const double wanted = double(sampling.top_p) * mass(kept);
    kept = largest_threshold(group, logits, vocab, kept, top, 0, [&](int, int32_t key) { return mass(key) >= wanted; });
  }
  return from_ordered(larger(kept, by_min));
}

// ---------------------------------------------------------------------------------------------------------------
// Noise and chance

// A draw of the exponential distribution: -log(u), u = (bits + 1/2) / 2^32. Near 1 a float cannot hold u. It can hold
// d = 1 - u, so the upper half computes log(1 - d).
HD_INLINE float exponential(uint32_t bits) {
  const bool upper = bits >> 31;
  const int32_t steps = int32_t(bits) ^ (int32_t(bits) >> 31);  // from the nearer of 0 and 1
  const float d = (float(steps) + 0.5f) * 0x1p-32f;
  Scaled<float> u = scaled(choose(upper, 1 - d, d));
  u.f = choose(upper & (u.k == 0), -d, u.f);  // the exact d, where 1 - d was rounded
  return -log_normal(u);
}

// A draw of the standard Gumbel distribution, -log(-log(u)): between -3.13 and 22.88.
// The largest error of all 2^32 draws is 3.1e-7, relative where the draw is above 1.
HD_INLINE float gumbel(float exponential) { return -log_normal(scaled(exponential)); }

// Noise is computed in blocks of tokens: one call of Philox serves four tokens, those that one lane visits.
constexpr int kNoiseBlock = 4 * kLanes;

// n rounded up to whole blocks.
HD inline int whole(int n, int block) { return (n + block - 1) / block * block; }

// row: (V, rounded up to whole blocks) the noise for the token at this index of the text.
template <class Group>
HD void make_noise(Group group, const Sampling& sampling, Stream stream, int64_t index, int vocab, float* row) {
  // course 8.1
  const uint64_t seed = sampling.seed;
  const uint32_t sequence = sampling.sequence;
  for (int first = 0; first < vocab; first += kNoiseBlock) {
    float* const block = row + first;  // first the bits, then the noise: compilers vectorize these short loops
    group.each(kLanes, [=](int lane) {
      const Bits128 bits = philox(seed, sequence, stream, uint64_t(index), uint32_t(first / 4 + lane));
      for (int i = 0; i < 4; i++) block[i * kLanes + lane] = bits_as<float>(bits.word[i]);
    });
    const int n = whole(smaller(vocab - first, kNoiseBlock), kLanes);
    group.each(n, [=](int x) { block[x] = exponential(bits_as<uint32_t>(block[x])); });
    group.each(n, [=](int x) { block[x] = gumbel(block[x]); });
  }
  // end
}

// Rows of Gumbel noise. Each is computed once: the target and its drafters share one Noise.
class Noise {
 public:
  Noise(const Sampling& sampling, int vocab, Stream stream = kStreamSample)
      : sampling_(sampling), stream_(stream), vocab_(vocab), stride_(whole(vocab, kNoiseBlock)), held_(kRows, -1) {}

  // (V) the noise for the token at this index (>= 0) of the text. It is valid until the row of another index, equal to
  // this one modulo kRows, is asked for.
  const float* row(int64_t index) {
    if (!rows_) rows_.reset(new float[size_t(kRows) * stride_]);
    const size_t slot = size_t(index % kRows);
    float* row = rows_.get() + slot * stride_;
    if (held_[slot] != index) make_noise(Solo{}, sampling_, stream_, index, vocab_, row);
    held_[slot] = index;
    return row;
  }

 private:
  static constexpr int kRows = 64;  // deeper than most trees; a deeper tree costs time, and changes nothing
  Sampling sampling_;
  Stream stream_;
  int vocab_, stride_;
  std::unique_ptr<float[]> rows_;  // (kRows, stride)
  std::vector<int64_t> held_;      // (kRows) the index whose noise the row holds; -1: none
};

// ---------------------------------------------------------------------------------------------------------------
// Pick

// The next token. noise: (V), unused (may be null) at temperature 0.
template <class Group>
HD int pick(Group group, const float* logits, const float* noise, int vocab, const Sampling& sampling) {
  // course 8.2
  const float t = sampling.temperature;
  if (t == 0) return token_of(group.template largest<int64_t>(vocab, [=](int x) { return ranked(logits[x], x); }));
  const float least = kept_threshold(group, logits, vocab, sampling);
  const float dropped = Format<float>::kNaN;
  return token_of(group.template largest<int64_t>(
      vocab, [=](int x) { return ranked(logits[x] >= least ? fused(t, noise[x], logits[x]) : dropped, x); }));
  // end
}
inline int pick(const float* logits, const float* noise, int vocab, const Sampling& sampling) {
  return pick(Solo{}, logits, noise, vocab, sampling);
}

// p: (V) the distribution that `pick` samples: softmax(logits / temperature) over the kept tokens, 0 for the others.
template <class Group = Solo>
HD void distribution(const float* logits, int vocab, const Sampling& sampling, float* p, Group group = {}) {
  const int64_t best = group.template largest<int64_t>(vocab, [=](int x) { return ranked(logits[x], x); });
  if (sampling.temperature == 0 || key_of(best) == kNotANumber)
    return group.each(vocab, [=](int x) { p[x] = x == token_of(best) ? 1.0f : 0.0f; });
  const float least = kept_threshold(group, logits, vocab, sampling);
  const float top = from_ordered(key_of(best)), t = sampling.temperature;
  group.each(vocab, [=](int x) { p[x] = weight(logits[x], least, top, t); });
  const float total = group.template sum<float>(vocab, [=](int x) { return p[x]; });
  group.each(vocab, [=](int x) { p[x] /= total; });
}

#ifdef INSTANTIATE  // machine/sampling.cpp
INSTANTIATE void make_noise(Solo, const Sampling&, Stream, int64_t, int, float*);
INSTANTIATE int pick(Solo, const float*, const float*, int, const Sampling&);
INSTANTIATE void distribution(const float*, int, const Sampling&, float*, Solo);
#endif

}  // namespace nanospec
