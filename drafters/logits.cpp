// drafters/logits.cpp: what goes through a whole vocabulary to find candidates, compiled once and optimized whole.
//
// In order: the entropy of logits; the best of a few likely tokens, and which these are; a drafter that knows these.
#include "drafters/logits.h"

namespace nanospec {

namespace {

// The entropy of a distribution, see entropies(). scores: (V) scratch.
float entropy_of(const float* logits, const float* noise, int vocab, const Sampling& sampling, bool of_confidence,
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

}  // namespace

void entropies(Drafter& drafter, const Growth& growth, const int* nodes, int n, const Draws& draws, bool of_confidence,
               float* H) {
  std::vector<float> scores(size_t(drafter.vocab));
  drafter.prepare(growth, nodes, n);
  for (int k = 0; k < n; k++) {
    const float* const row = drafter.logits(growth, nodes[k]);
    const float* const noise = draws.noise ? draws.noise->row(draws.index + growth.depth[nodes[k]]) : nullptr;
    H[k] = row ? entropy_of(row, noise, drafter.vocab, *draws.sampling, of_confidence, scores.data()) : 0;
  }
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

void best_likely(const float* logits, int classes, const std::vector<int>& token, float temperature, int most,
                 Likely& best) {
  std::vector<float> scores(static_cast<size_t>(classes));
  std::vector<Candidate> found(size_t(most) + 1);
  Sampling sampling;
  sampling.temperature = temperature;
  const int known = token.empty() ? classes : int(token.size());
  const int n = top_candidates(Solo{}, logits, nullptr, classes, {&sampling, nullptr, 0, false}, most + 1, found.data(),
                               scores.data());
  best.clear();
  float left = 1;
  for (int i = 0; i < n && int(best.token.size()) < most; i++) {
    const int its = found[size_t(i)].token;
    if (its >= known) continue;
    best.add(token.empty() ? its : token[size_t(its)]) = logits[its];
    left -= found[size_t(i)].chance;
  }
  if (best.others() == 0 || n == 0) return;
  const float each = larger(left, 1e-6f) / float(best.others());
  best.rest = logits[found[0].token] + log(each / found[0].chance) / sharpness(sampling, false);
}

const Likely* likely_of(Drafter& drafter, const Growth& growth, int node, Likely& best) {
  constexpr int kBest = 8;
  if (auto* const knows = dynamic_cast<LikelyDrafter*>(&drafter)) return knows->likely(growth, node);
  const float* const row = drafter.logits(growth, node);
  if (!row) return nullptr;
  best_likely(row, drafter.vocab, {}, drafter.temperature, kBest, best);
  return best.token.empty() ? nullptr : &best;
}

void LikelyDrafter::expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws,
                           Candidate* candidates, int* count) {
  if (!few_tokens() || draws.kept_only)  // top-k and top-p go by all logits
    return Drafter::expand(growth, nodes, n, width, draws, candidates, count);
  prepare(growth, nodes, n);
  for (int k = 0; k < n; k++) {
    const Likely* const some = likely(growth, nodes[k]);
    const float* const noise = some && draws.noise ? draws.noise->row(draws.index + growth.depth[nodes[k]]) : nullptr;
    Candidate* const best = candidates + size_t(k) * size_t(width);
    count[k] = some ? best_of_likely(*some, noise, *draws.sampling, width, best, some_) : 0;
  }
}

}  // namespace nanospec
