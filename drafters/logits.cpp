// drafters/logits.cpp: what goes through a whole vocabulary to find candidates, compiled once and optimized whole.
//
// In order: the best candidates of logits, and their entropy; those of a few likely tokens; a drafter with logits.
#include "drafters/logits.h"

namespace nanospec {

namespace {

// A score that the `width` best of V tokens all reach; -infinity where none is known. The tokens are divided into eight
// groups: the result is the smallest of the groups' largest scores.
float reached_by_best(const float* scores, int vocab, int width) {
  constexpr int kGroups = 8;
  if (width > kGroups || vocab < kLanes) return -Format<float>::kInfinity;
  float most[kLanes];  // the largest score of each lane, then of each group of lanes
  for (int l = 0; l < kLanes; l++) most[l] = scores[l];
  for (int x = kLanes; x + kLanes <= vocab; x += kLanes)
    for (int l = 0; l < kLanes; l++) most[l] = larger(most[l], scores[x + l]);
  for (int half = kLanes / 2; half >= kGroups; half /= 2)
    for (int l = 0; l < half; l++) most[l] = larger(most[l], most[l + half]);
  for (int half = kGroups / 2; half > 0; half /= 2)
    for (int l = 0; l < half; l++) most[l] = smaller(most[l], most[l + half]);
  return most[0];
}

}  // namespace

// It compares few tokens, since it knows a score that the best ones reach.
int best_candidates(const float* logits, const float* noise, int vocab, const Sampling& sampling, bool kept_only,
                    int width, Candidate* best, float* scores) {
  const float lowest = -Format<float>::kInfinity;
  score(logits, noise, vocab, sampling, kept_only, scores);
  // The next candidate must beat this: at first the number just below the score that the best ones reach.
  float worst = std::nextafter(reached_by_best(scores, vocab, width), lowest);
  int found = 0;
  const auto consider = [&](int x) {
    const float score = scores[x];
    if (!(score > worst)) return;
    int at = found < width ? found++ : width - 1;
    for (; at > 0 && best[at - 1].chance < score; at--) best[at] = best[at - 1];
    best[at] = {x, score};  // `chance` holds the score until all are found
    if (found == width) worst = best[width - 1].chance;
  };
  int x = 0;
  for (; x + kLanes <= vocab; x += kLanes) {
    uint32_t near = 0;  // bit l: token x + l may enter
    for (int l = 0; l < kLanes; l++) near |= uint32_t(scores[x + l] > worst) << l;
    for (; near != 0; near &= near - 1) consider(x + __builtin_ctz(near));
  }
  for (; x < vocab; x++) consider(x);
  score_to_chance(scores, vocab, sharpness(sampling, noise != nullptr), found, best);
  return found;
}

float entropy(const float* logits, const float* noise, int vocab, const Sampling& sampling, bool of_confidence,
              float* scores) {
  const Solo solo;
  const bool coupled = of_confidence && noise;
  const float t = coupled ? sampling.temperature : 0;
  const float scale =
      of_confidence ? sharpness(sampling, coupled) : 1 / (sampling.temperature > 0 ? sampling.temperature : 1.0f);
  const float* const g = coupled ? noise : logits;
  solo.each(vocab, [=](int x) { scores[x] = fused(t, g[x], logits[x]) * scale; });
  const float top = solo.largest<float>(vocab, [=](int x) { return scores[x]; });
  solo.each(vocab, [=](int x) { scores[x] = larger(scores[x] - top, Format<float>::kLogLeast); });
  // With weights w = exp(s) and their sum Z: H = log Z - sum of w s / Z.
  const float Z = solo.sum<float>(vocab, [=](int x) { return exp_normal(scores[x]); });
  const float mean = solo.sum<float>(vocab, [=](int x) { return exp_normal(scores[x]) * scores[x]; }) / Z;
  return log(Z) - mean;
}

int best_of_likely(const Likely& likely, const float* noise, const Sampling& sampling, int width, Candidate* best,
                   std::vector<float>& scores) {
  const Solo solo;
  const int n = int(likely.token.size());
  const float t = noise ? sampling.temperature : 0, lowest = -Format<float>::kInfinity;
  if (n == 0) return 0;
  const float* const logit = likely.logit.data();
  const float top = solo.largest<float>(n, [=](int i) { return logit[i]; }), scale = sharpness(sampling, false);
  const auto weight = [=](float score) { return exp_normal(larger(score * scale, Format<float>::kLogLeast)); };
  const float known = solo.sum<float>(n, [=](int i) { return weight(logit[i] - top); });
  const float unknown = float(likely.others()) * exp((likely.rest - top) * scale);

  scores.resize(size_t(n));
  int found = 0;
  for (int i = 0; i < n; i++) {
    const int x = likely.token[i];
    const float score = noise ? fused(t, noise[x], logit[i]) : logit[i];
    scores[i] = score > lowest ? score : lowest;
    const auto before = [&](const Candidate& one) {
      return one.chance > score || (one.chance == score && one.token < x);
    };
    if (!(score > lowest) || (found == width && before(best[width - 1]))) continue;
    int at = found < width ? found++ : width - 1;
    for (; at > 0 && !before(best[at - 1]); at--) best[at] = best[at - 1];
    best[at] = {x, score};  // `chance` holds the score until all are found
  }
  score_to_chance(scores.data(), n, sharpness(sampling, noise != nullptr), found, best);
  for (int rank = 0; rank < found; rank++) best[rank].chance *= known / (known + unknown);
  return found;
}

const Likely* LogitsDrafter::likely(const Growth& growth, int node) {
  constexpr int kBest = 8;
  const float* const row = logits(growth, node);
  if (!row) return nullptr;
  clear_likely();
  scores_.resize(size_t(vocab));
  Candidate best[kBest];
  Sampling sampling;
  sampling.temperature = temperature;
  const int n = best_candidates(row, nullptr, vocab, sampling, false, kBest, best, scores_.data());
  if (n == 0) return nullptr;
  float left = 1;
  for (int i = 0; i < n; i++) {
    likely_.add(best[i].token) = row[best[i].token];
    left -= best[i].chance;
  }
  const float each = larger(left, 1e-6f) / float(likely_.others());
  likely_.rest = row[best[0].token] + log(each / best[0].chance) / sharpness(sampling, false);
  return &likely_;
}
void LogitsDrafter::expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws,
                           Candidate* candidates, int* count) {
  prepare(growth, nodes, n);
  const bool few = few_tokens() && !draws.kept_only;  // top-k and top-p go by all logits
  if (!few) scores_.resize(size_t(vocab));
  for (int k = 0; k < n; k++) {
    const Likely* const some = few ? likely(growth, nodes[k]) : nullptr;
    const float* const row = few ? nullptr : logits(growth, nodes[k]);
    count[k] = 0;
    if (!some && !row) continue;
    const float* noise = draws.noise ? draws.noise->row(draws.index + growth.depth[nodes[k]]) : nullptr;
    Candidate* const best = candidates + size_t(k) * size_t(width);
    count[k] = some ? best_of_likely(*some, noise, *draws.sampling, width, best, scores_)
                    : best_candidates(row, noise, vocab, *draws.sampling, draws.kept_only, width, best, scores_.data());
  }
}

void LogitsDrafter::entropies(const Growth& growth, const int* nodes, int n, const Draws& draws, bool of_confidence,
                              float* H) {
  scores_.resize(size_t(vocab));
  prepare(growth, nodes, n);
  for (int k = 0; k < n; k++) {
    const float* const row = logits(growth, nodes[k]);
    const float* const noise = draws.noise ? draws.noise->row(draws.index + growth.depth[nodes[k]]) : nullptr;
    H[k] = row ? entropy(row, noise, vocab, *draws.sampling, of_confidence, scores_.data()) : 0;
  }
}

}  // namespace nanospec
