// drafters/adapt.h: drafters that learn during generation.
//
// In order: `lookup` and `suffix`, which use what followed the same context before; `recycle`, which uses the target's
// logits after the same token before; the union of several drafters, which learns their weights. When a new text begins
// they forget the last one, but keep the weights that they have learned, as Experience does (growth/trust.h).
#pragma once

#include <array>

#include "drafters/logits.h"
#include "drafters/newton.h"
#include "drafters/suffix.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// What followed the same context before

// Interpolates the matches that `Text` finds in the text so far. It learns from the target's picks at some temperature
// T, so it predicts p, the target's distribution at T. Its logits are max(T, kLeastSharpness) log p. Where the context
// is new they are all equal.
template <class Text>
struct Matching : LikelyDrafter {
  explicit Matching(int vocab_size) : LikelyDrafter(vocab_size), text_(vocab_size) {}
  std::unique_ptr<Drafter> another(int) const override { return std::make_unique<Matching>(*this); }

  void begin(const int* text, int n) override {
    text_.clear();
    for (int i = 0; i < n; i++) read(text[i]);
  }
  void committed(const Commit& commit) override {
    for (int i = 0; i < commit.n; i++) read(commit.tokens[i]);
  }
  const Likely* likely(const Growth& growth, int node) override {
    path_.clear();
    for (int i = node; i > 0; i = growth.parent[i]) path_.push_back(growth.token[i]);
    std::reverse(path_.begin(), path_.end());
    text_.find(path_.data(), int(path_.size()), matches_);
    if (matches_.match.empty() && few_tokens()) return nullptr;
    interpolation_.blend(matches_, vocab, likely_);
    const float t = larger(temperature, kLeastSharpness);
    for (float& p : likely_.logit) p = t * log(p);
    likely_.rest = t * log(likely_.rest);
    return &likely_;
  }

 private:
  void read(int token) {
    text_.find(nullptr, 0, matches_);
    interpolation_.learn(matches_, token, vocab);
    text_.extend(token);
  }

  Text text_;
  Interpolation interpolation_;
  Matches matches_;        // scratch
  std::vector<int> path_;  // scratch
};

// Prompt lookup (Saxena 2023), for all lengths at once: it compares the latest places of the context's last token.
using Lookup = Matching<LookBack>;

// Suffix decoding (SAM-Decoding, Hu et al. 2024; SuffixDecoding, Oliaro et al. 2024): a suffix automaton knows how
// often each token followed each substring of the text. Those papers also keep a corpus; here that is the n-grams of
// the training text: `suffix+ngram:5`.
using Suffix = Matching<SuffixAutomaton>;

// ---------------------------------------------------------------------------------------------------------------
// What the target predicted after the same token before

// Token recycling (Luo et al. 2024). For each token it stores the likeliest tokens of the target's last logits after
// it, on the path or off it; the other tokens share the rest. Where the target's logits cannot be read, its picks are
// used: the newest gets half of the chance. 68 bytes for each token of the vocabulary.
struct Recycle : LikelyDrafter {
  explicit Recycle(int vocab_size)
      : LikelyDrafter(vocab_size), after_(size_t(vocab_size)), scores_(size_t(vocab_size)) {}
  std::unique_ptr<Drafter> another(int) const override { return std::make_unique<Recycle>(*this); }

  void begin(const int*, int) override { after_.assign(after_.size(), {}); }

  // Of rows with the same token the last one counts. The order is preorder, but the rows of the path come last.
  void committed(const Commit& commit) override {
    const auto token = [&](int i) { return commit.tree.token[commit.rows[i]]; };
    if (!rows || !rows->logits(0)) {
      for (int i = 0; i < commit.n; i++) learn(after_[token(i)], commit.tokens[i]);
      return;
    }
    for (int row = 0; row < commit.tree.size(); row++) learn(after_[commit.tree.token[row]], rows->logits(row));
    for (int i = 0; i < commit.n; i++) learn(after_[token(i)], rows->logits(commit.rows[i]));
  }

  const Likely* likely(const Growth& growth, int node) override {
    const Successors& s = after_[growth.token[node]];
    float rest = 1;
    for (int i = 0; i < s.n; i++) rest -= s.chance[i];
    const float each = larger(rest, kLeast) / float(std::max(1, vocab - s.n));
    likely_.clear();
    for (int i = 0; i < s.n; i++) likely_.add(s.token[i]) = log(larger(s.chance[i], each));
    likely_.rest = log(each);
    return &likely_;
  }

 private:
  static constexpr int kSuccessors = 8;
  static constexpr float kLeast = 1e-4f;  // the least chance of all other tokens together
  struct Successors {
    int n = 0;
    int token[kSuccessors];
    float chance[kSuccessors];
  };

  void learn(Successors& s, const float* logits) {
    Candidate best[kSuccessors];
    const Sampling sampling;
    s.n = top_candidates(Solo{}, logits, nullptr, vocab, {&sampling, nullptr, 0, false}, kSuccessors, best,
                         scores_.data());
    for (int i = 0; i < s.n; i++) {
      s.token[i] = best[i].token;
      s.chance[i] = best[i].chance;
    }
  }
  static void learn(Successors& s, int pick) {  // moves it to the front; drops the oldest where there is no room
    int at = int(std::find(s.token, s.token + s.n, pick) - s.token);
    float chance = at < s.n ? s.chance[at] : 0;
    if (at == kSuccessors) at--;
    s.n = std::max(s.n, at + 1);
    std::copy_backward(s.token, s.token + at, s.token + at + 1);
    std::copy_backward(s.chance, s.chance + at, s.chance + at + 1);
    s.token[0] = pick;
    s.chance[0] = chance + 1;
    for (int i = 0; i < s.n; i++) s.chance[i] /= 2;
  }

  std::vector<Successors> after_;  // (V)
  std::vector<float> scores_;      // (V) scratch
};

// ---------------------------------------------------------------------------------------------------------------
// Unions

// Several drafters as one, by logarithmic pooling (Genest, Zidek 1986), as PAQ mixes its models (Mahoney 2005):
//   p(x) ~ exp(sum over the parts i of  w_i l_i(x) / t),   w_i = a_i + b_i m_i,   t = max(T, kLeastSharpness)
// l_i: the part's logits. m_i: the chance of its first candidate, so that a confident part may weigh more. Each token
// moves a and b by one Newton step up the log-likelihood of the target's picks: the gradient is the new token's, the
// curvature that of all tokens before, with older ones weighing less. So one tree holds the candidates of all parts,
// each token once, and the parts that were right get more nodes. If only one part is useful, the union drafts like it.
//
// Of a large vocabulary only the tokens that some part calls likely are told apart; all others are one entry, which
// counts as many times as there are others. The formulas are the same.
class Union : public LikelyDrafter {
 public:
  static constexpr int kMostParts = 4;

  explicit Union(std::vector<std::unique_ptr<Drafter>> parts)
      : LikelyDrafter(parts.front()->vocab), parts_(std::move(parts)), newton_(2 * int(parts_.size()), kPrior) {
    for (size_t i = 0; i < parts_.size(); i++) weight_[i] = 1.0 / double(parts_.size());
    best_.assign(parts_.size(), Likely(few_tokens() ? vocab : 0));
    resize(vocab, 1);
  }
  std::unique_ptr<Drafter> another(int seat) const override {
    std::vector<std::unique_ptr<Drafter>> parts;
    for (const auto& part : parts_) {
      parts.push_back(part->another(seat));
      if (!parts.back()) return nullptr;
    }
    return named<Union>(name, std::move(parts));
  }

  void attach(const TargetRows* its) override {
    for (auto& part : parts_) part->attach(its);
  }

  void begin(const int* text, int n) override {
    for (auto& part : parts_) {
      part->temperature = temperature;
      part->begin(text, n);
    }
    authors_.clear();
    asked_root_ = -1;
  }

  void prepare(const Growth& growth, const int* nodes, int n) override {
    for (auto& part : parts_) part->prepare(growth, nodes, n);
  }
  bool prepare_all(const std::vector<Expansion>& all) override {
    bool any = false;
    for (size_t part = 0; part < parts_.size(); part++) {
      std::vector<Expansion> its = all;
      for (Expansion& e : its) e.drafter = static_cast<Union*>(e.drafter)->parts_[part].get();
      any |= its[0].drafter->prepare_all(its);
    }
    return any;
  }

  const Likely* likely(const Growth& growth, int node) override {
    ask(growth, node);
    if (unsure()) return nullptr;
    pool(kContrast * t());
    std::copy(pooled_.begin(), pooled_.end() - 1, likely_.logit.begin());
    likely_.rest = pooled_.back();
    return &likely_;
  }
  const float* logits(const Growth& growth, int node) override {
    if (few_tokens()) return LikelyDrafter::logits(growth, node);
    ask(growth, node);
    pool(kContrast * t());
    return pooled_.data();
  }

  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    prepare(growth, nodes, n);
    for (int k = 0; k < n; k++) {
      Candidate* const best = candidates + size_t(k) * width;
      LikelyDrafter::expand(growth, nodes + k, 1, width, draws, best, count + k);  // it asks about that node
      for (int rank = 0; rank < count[k]; rank++)
        authors_.push_back({nodes[k], best[rank].token, author_of(best[rank].token)});
    }
  }

  const std::string& author(int node, int token) const override {
    for (const Author& a : authors_)
      if (a.node == node && a.token == token) return parts_[a.part]->author(node, token);
    return name;
  }

  void committed(const Commit& commit) override {
    Growth path;  // the committed tokens, as a tree under the last root
    path.start(commit.tree.token[0]);
    for (int i = 0; i < commit.n; i++) {
      learn(path, i, commit.tokens[i]);
      path.add(i, {commit.tokens[i], 1});
    }
    for (auto& part : parts_) part->committed(commit);
    authors_.clear();
    asked_root_ = -1;
  }

 private:
  // The weights are learned to predict. To draft the target's very pick, a sharper distribution is better. Tokens per
  // forward of suffix+ngram:5 at temperature 1 (medium model, auto): 1: 5.18; 1.1: 5.26; 1.2: 5.24.
  static constexpr float kContrast = 1.1f;
  static constexpr double kPrior = 10, kForget = 1.0 / 500;  // of the curvature
  static constexpr float kUnsure = 0.1f;                     // chance of the likeliest candidate
  static constexpr double kMostWeight = 4, kMostStep = 0.5;  // in size
  static constexpr int kMost = 2 * kMostParts;

  double weight(int part) const {
    return weight_[part] + weight_[parts_.size() + size_t(part)] * double(confidence_[part]);
  }

  // Nothing will be drafted where no part has a likely candidate. Of a large vocabulary such a place is passed over:
  // neither is anything drafted, nor learned. It depends on the context alone, not on what follows, so what is learned
  // elsewhere stays unbiased.
  bool unsure() const {
    return few_tokens() && *std::max_element(confidence_.begin(), confidence_.begin() + long(parts_.size())) < kUnsure;
  }

  float t() const { return larger(temperature, kLeastSharpness); }

  // The entries of all arrays: the tokens, or those of likely_ and an entry for `others` others.
  void resize(int entries, int others) {
    entries_ = entries;
    others_ = others;
    pooled_.resize(size_t(entries));
    part_logits_.resize(parts_.size() * size_t(entries));
  }
  int entry_of(int token) const {
    if (!few_tokens()) return token;
    const int at = likely_.find(token);
    return at < 0 ? entries_ - 1 : at;
  }
  float* logits_of(int part) { return part_logits_.data() + size_t(part) * size_t(entries_); }

  // Asks all parts about a node. logits_of(i) becomes l_i / t, shifted so that the largest is 0. A part that has no
  // distribution there has equal logits.
  void ask(const Growth& growth, int node) {
    if (node == 0 && growth.token[0] == asked_root_) return;  // the parts have not changed since
    asked_root_ = node == 0 ? growth.token[0] : -1;
    if (few_tokens()) return ask_about_likely(growth, node);
    for (int i = 0; i < int(parts_.size()); i++) {
      const float* const l = parts_[i]->logits(growth, node);
      if (l) std::copy_n(l, vocab, logits_of(i));
      scale(i, l != nullptr);
    }
  }
  void ask_about_likely(const Growth& growth, int node) {
    const Likely* said[kMostParts];
    likely_.clear();
    for (size_t i = 0; i < parts_.size(); i++) {
      said[i] = likely_of(*parts_[i], growth, node, best_[i]);
      if (said[i])
        for (int token : said[i]->token) likely_.add(token);
    }
    const int n = int(likely_.token.size());
    resize(n + 1, likely_.others());
    for (int i = 0; i < int(parts_.size()); i++) {
      float* const f = logits_of(i);
      for (int entry = 0; said[i] && entry < n; entry++) f[entry] = said[i]->of(likely_.token[entry]);
      if (said[i]) f[n] = said[i]->rest;
      scale(i, said[i] != nullptr);
    }
  }
  // logits_of(part): from l_i to l_i / t.
  void scale(int part, bool said) {
    const Solo solo;
    float* const f = logits_of(part);
    if (!said) {
      std::fill(f, f + entries_, 0.0f);
      confidence_[part] = 1 / float(vocab);
      return;
    }
    const float top = solo.largest<float>(entries_, [=](int x) { return f[x]; }), times = 1 / t();
    solo.each(entries_, [=](int x) { f[x] = larger((f[x] - top) * times, Format<float>::kLogLeast); });
    const float sum = solo.sum<float>(entries_, [=](int x) { return exp_normal(f[x]); });
    confidence_[part] = 1 / (sum + float(others_ - 1) * exp_normal(f[entries_ - 1]));
  }

  // pooled_ = `times` the sum of w_i l_i / t.
  void pool(float times) {
    float* const row = pooled_.data();
    std::fill(pooled_.begin(), pooled_.end(), 0.0f);
    for (int i = 0; i < int(parts_.size()); i++) {
      const float* const f = logits_of(i);
      const float w = times * float(weight(i));
      Solo{}.each(entries_, [=](int x) { row[x] = fused(w, f[x], row[x]); });
    }
  }

  // The part that raised the token's chance most above 1 / V: the largest w_i log(V p_i(token)).
  int author_of(int token) {
    int best = 0;
    double most = -std::numeric_limits<double>::infinity();
    for (int i = 0; i < int(parts_.size()); i++) {
      const double gain = weight(i) * double(logits_of(i)[entry_of(token)] + log(confidence_[i] * float(vocab)));
      if (!(gain > most)) continue;
      most = gain;
      best = i;
    }
    return best;
  }

  // Learns that a token followed a node of `path`. With f_i = l_i / t for a_i and m_i l_i / t for b_i, the
  // log-likelihood has the gradient f(token) - E f and the curvature Cov f, under p.
  void learn(const Growth& path, int node, int token) {
    const Solo solo;
    const int k = int(parts_.size());
    ask(path, node);
    if (unsure()) return;
    pool(1);
    const int n = entries_, entry = entry_of(token);
    float* const p = pooled_.data();
    p[n - 1] += log(float(others_));
    const float top = solo.largest<float>(n, [=](int x) { return p[x]; });
    solo.each(n, [=](int x) { p[x] = exp_normal(larger(p[x] - top, Format<float>::kLogLeast)); });
    const float total = solo.sum<float>(n, [=](int x) { return p[x]; });

    double gradient[kMost] = {};
    float mean[kMostParts] = {};
    for (int i = 0; i < k; i++) {
      const float* const f = logits_of(i);
      mean[i] = solo.sum<float>(n, [=](int x) { return p[x] * f[x]; }) / total;
      gradient[i] = double(f[entry] - mean[i]);
      gradient[k + i] = double(confidence_[i]) * gradient[i];
    }
    for (int i = 0; i < k; i++)
      for (int j = 0; j <= i; j++) {
        const float *const f = logits_of(i), *const g = logits_of(j), from_f = mean[i], from_g = mean[j];
        const double covariance =
            double(solo.sum<float>(n, [=](int x) { return p[x] * (f[x] - from_f) * (g[x] - from_g); }) / total);
        const double m_i = double(confidence_[i]), m_j = double(confidence_[j]);
        newton_.curvature(i, j) += covariance;
        newton_.curvature(k + i, j) += m_i * covariance;
        if (i != j) newton_.curvature(k + j, i) += m_j * covariance;
        newton_.curvature(k + i, k + j) += m_i * m_j * covariance;
      }
    move(2 * k, gradient);
  }

  // The Newton step. The prior replaces the curvature that is forgotten. It also draws the weights back to their start:
  // that is its part of the gradient.
  void move(int n, double* gradient) {
    for (int i = 0; i < n; i++) gradient[i] += kForget * kPrior * ((i < n / 2 ? 2.0 / n : 0) - weight_[i]);
    newton_.move(gradient, kMostStep, weight_.data());
    for (double& weight : weight_) weight = larger(-kMostWeight, smaller(kMostWeight, weight));
    newton_.forget(kForget);
  }

  struct Author {
    int node, token, part;
  };
  std::vector<std::unique_ptr<Drafter>> parts_;  // k
  std::array<double, kMost> weight_{};           // a_0 .. a_{k-1}, b_0 .. b_{k-1}
  Newton<kMost> newton_;
  std::array<float, kMostParts> confidence_{};  // m, at the node that was asked about last
  int entries_ = 0, others_ = 1;                // E; how many tokens the last entry stands for
  std::vector<float> part_logits_;              // (k, E) at that node, divided by t
  std::vector<float> pooled_;                   // (E)
  std::vector<Likely> best_;                    // (k) of a large vocabulary, of parts that have logits alone
  std::vector<Author> authors_;                 // of this iteration's candidates
  int asked_root_ = -1;                         // the root, if it was asked about last and nothing is committed since
};

}  // namespace nanospec
