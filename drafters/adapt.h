// drafters/adapt.h: drafters that learn while the text is written.
//
// In order: two that go by what followed the same context before, `lookup` and `suffix`; one that goes by what the
// target said after the same token before, `recycle`; the union of several, which learns whom to believe. A new text
// makes them forget the last one; what they have learned of whom and what to believe stays, as experience does
// (growth/trust.h).
#pragma once

#include <array>
#include <utility>

#include "drafters/logits.h"
#include "drafters/newton.h"
#include "drafters/suffix.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// What followed the same context before

// Blends the matches that `Text` finds in the text so far. What it learns from are the target's picks, at some
// temperature T: so what it predicts, p, is the target's distribution at T, and its logits are max(T, kLeastSharpness)
// log p. Where the context is new they are all equal.
template <class Text>
struct Matching : LogitsDrafter {
  explicit Matching(int vocab_size) : text_(vocab_size), row_(size_t(vocab_size)) { vocab = vocab_size; }

  void begin(const int* text, int n) override {
    text_.clear();
    for (int i = 0; i < n; i++) read(text[i]);
  }
  void committed(const Commit& commit) override {
    for (int i = 0; i < commit.n; i++) read(commit.tokens[i]);
  }
  const float* logits(const Growth& growth, int node) override {
    path_.clear();
    for (int i = node; i > 0; i = growth.parent[i]) path_.push_back(growth.token[i]);
    std::reverse(path_.begin(), path_.end());
    text_.find(path_.data(), int(path_.size()), matches_);
    belief_.blend(matches_, vocab, row_.data());
    float* const row = row_.data();
    const float t = larger(temperature, kLeastSharpness);
    Solo{}.each(vocab, [=](int x) { row[x] = t * log(row[x]); });
    return row;
  }

 private:
  void read(int token) {
    text_.find(nullptr, 0, matches_);
    belief_.learn(matches_, token, vocab);
    text_.extend(token);
  }

  Text text_;
  Belief belief_;
  Matches matches_;         // scratch
  std::vector<int> path_;   // scratch
  std::vector<float> row_;  // (V)
};

// Prompt lookup (Saxena 2023), of all lengths at once: looks back at the latest places of the context's last token.
using Lookup = Matching<LookBack>;

// Suffix decoding (SAM-Decoding, Hu et al. 2024; SuffixDecoding, Oliaro et al. 2024): a suffix automaton knows how
// often anything followed anything in the whole text. The corpus that these keep beside the text is here the training
// text's n-grams: `suffix+ngram:5`.
using Suffix = Matching<SuffixAutomaton>;

// ---------------------------------------------------------------------------------------------------------------
// What the target said after the same token before

// Token recycling (Luo et al. 2024): after each token, the likeliest of what the target last said there, on the path or
// off it; the other tokens share the rest. Where the target keeps its logits to itself its picks stand in: the newest
// gets half of the chance. 68 bytes a word of the vocabulary.
struct Recycle : LogitsDrafter {
  explicit Recycle(int vocab_size) : after_(size_t(vocab_size)), row_(size_t(vocab_size)), scores_(row_) {
    vocab = vocab_size;
  }
  void attach(const TargetRows* rows) override { rows_ = rows; }

  void begin(const int*, int) override { after_.assign(after_.size(), {}); }

  // Of rows with the same token the last one stays: in preorder, but those on the path after all others.
  void committed(const Commit& commit) override {
    const auto token = [&](int i) { return commit.tree.token[commit.rows[i]]; };
    if (!rows_ || !rows_->logits(0)) {
      for (int i = 0; i < commit.n; i++) learn(after_[token(i)], commit.tokens[i]);
      return;
    }
    for (int row = 0; row < commit.tree.size(); row++) learn(after_[commit.tree.token[row]], rows_->logits(row));
    for (int i = 0; i < commit.n; i++) learn(after_[token(i)], rows_->logits(commit.rows[i]));
  }

  const float* logits(const Growth& growth, int node) override {
    const Successors& s = after_[growth.token[node]];
    float rest = 1;
    for (int i = 0; i < s.n; i++) rest -= s.chance[i];
    const float each = larger(rest, kLeast) / float(std::max(1, vocab - s.n));
    std::fill(row_.begin(), row_.end(), log(each));
    for (int i = 0; i < s.n; i++) row_[s.token[i]] = log(larger(s.chance[i], each));
    return row_.data();
  }

 private:
  static constexpr int kSuccessors = 8;
  static constexpr float kLeast = 1e-4f;  // of the chance, for all other tokens
  struct Successors {
    int n = 0;
    int token[kSuccessors];
    float chance[kSuccessors];
  };

  void learn(Successors& s, const float* logits) {
    Candidate best[kSuccessors];
    s.n = best_candidates(logits, nullptr, vocab, Sampling(), false, kSuccessors, best, scores_.data());
    for (int i = 0; i < s.n; i++) s.token[i] = best[i].token, s.chance[i] = best[i].chance;
  }
  static void learn(Successors& s, int pick) {  // to the front, in the place of the oldest if there is no room
    int at = int(std::find(s.token, s.token + s.n, pick) - s.token);
    float chance = at < s.n ? s.chance[at] : 0;
    if (at == kSuccessors) at--;
    s.n = std::max(s.n, at + 1);
    for (; at > 0; at--) s.token[at] = s.token[at - 1], s.chance[at] = s.chance[at - 1];
    s.token[0] = pick, s.chance[0] = chance + 1;
    for (int i = 0; i < s.n; i++) s.chance[i] /= 2;
  }

  const TargetRows* rows_ = nullptr;
  std::vector<Successors> after_;    // (V)
  std::vector<float> row_, scores_;  // (V)
};

// ---------------------------------------------------------------------------------------------------------------
// Unions

// Several drafters as one, by logarithmic pooling (Genest and Zidek 1986), as PAQ mixes its models (Mahoney 2005):
//   p(x) ~ exp(sum over the parts i of  w_i l_i(x) / t),   w_i = a_i + b_i m_i,   t = max(T, kLeastSharpness)
// l_i: the part's logits; m_i: its chance of its own first guess, so that one may count for more when it is sure of
// itself. a and b are moved by one Newton step a token, up the log-likelihood of the target's picks: by the gradient of
// the new token, over the curvature of all before, the older the less. So one tree holds the candidates of all, each
// token once, and the nodes go to those that were right; where all but one are useless, it drafts as that one alone.
class Union : public LogitsDrafter {
 public:
  static constexpr int kMostParts = 4;

  explicit Union(std::vector<std::unique_ptr<LogitsDrafter>> parts)
      : parts_(std::move(parts)), newton_(2 * int(parts_.size()), kPrior) {
    vocab = parts_.front()->vocab;
    const int k = int(parts_.size());
    row_.resize(size_t(vocab)), said_.resize(size_t(k) * vocab);
    for (int i = 0; i < k; i++) weight_[i] = 1.0 / k;
  }

  void attach(const TargetRows* rows) override {
    for (auto& part : parts_) part->attach(rows);
  }

  void begin(const int* text, int n) override {
    for (auto& part : parts_) part->temperature = temperature, part->begin(text, n);
    authors_.clear();
  }

  void prepare(const Growth& growth, const int* nodes, int n) override {
    for (auto& part : parts_) part->prepare(growth, nodes, n);
  }

  const float* logits(const Growth& growth, int node) override {
    ask(growth, node);
    pool(kContrast * t());
    return row_.data();
  }

  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    prepare(growth, nodes, n);
    for (int k = 0; k < n; k++) {
      Candidate* const best = candidates + size_t(k) * width;
      LogitsDrafter::expand(growth, nodes + k, 1, width, draws, best, count + k);  // which asks for the logits
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
    Growth path;  // what came, as a tree under the last root
    path.start(commit.tree.token[0]);
    for (int i = 0; i < commit.n; i++) {
      learn(path, i, commit.tokens[i]);
      path.add(i, {commit.tokens[i], 1});
    }
    for (auto& part : parts_) part->committed(commit);
    authors_.clear();
  }

 private:
  // The weights make p predict, which wants caution. But a candidate is drawn to be the target's very pick: that wants
  // more contrast. Tokens per forward of suffix+ngram:5 at temperature 1 (medium model, auto): 1: 5.18; 1.1: 5.26;
  // 1.2: 5.24.
  static constexpr float kContrast = 1.1f;
  static constexpr double kPrior = 10, kForget = 1.0 / 500;  // of the curvature
  static constexpr double kFarthest = 4, kStep = 0.5;        // of a weight
  static constexpr int kMost = 2 * kMostParts;

  double weight(int part) const { return weight_[part] + weight_[parts_.size() + size_t(part)] * double(sure_[part]); }

  float t() const { return larger(temperature, kLeastSharpness); }
  float* said(int part) { return said_.data() + size_t(part) * vocab; }

  // Asks all parts about a node. said: l_i / t, the largest 0. A part that has no distribution there says nothing.
  void ask(const Growth& growth, int node) {
    const Solo solo;
    for (int i = 0; i < int(parts_.size()); i++) {
      float* const f = said(i);
      const float* const l = parts_[i]->logits(growth, node);
      if (!l) std::fill(f, f + vocab, 0.0f), sure_[i] = 1 / float(vocab);
      if (!l) continue;
      const float top = solo.largest<float>(vocab, [=](int x) { return l[x]; }), scale = 1 / t();
      solo.each(vocab, [=](int x) { f[x] = larger((l[x] - top) * scale, Format<float>::kLogLeast); });
      sure_[i] = 1 / solo.sum<float>(vocab, [=](int x) { return exp_normal(f[x]); });
    }
  }

  // row_: `times` the sum of w_i l_i / t.
  void pool(float times) {
    float* const row = row_.data();
    std::fill(row_.begin(), row_.end(), 0.0f);
    for (int i = 0; i < int(parts_.size()); i++) {
      const float* const f = said(i);
      const float w = times * float(weight(i));
      Solo{}.each(vocab, [=](int x) { row[x] = fused(w, f[x], row[x]); });
    }
  }

  // Who raised the token most above an even chance: w_i log(V p_i(token)).
  int author_of(int token) {
    int best = 0;
    double most = -std::numeric_limits<double>::infinity();
    for (int i = 0; i < int(parts_.size()); i++) {
      const double raised = weight(i) * double(said(i)[token] + log(sure_[i] * float(vocab)));
      if (raised > most) most = raised, best = i;
    }
    return best;
  }

  // A token has come after a node of `path`. With f_i = l_i / t for a_i and m_i l_i / t for b_i, the log-likelihood has
  // the gradient f(token) - E f and the curvature Cov f, under p.
  void learn(const Growth& path, int node, int token) {
    const Solo solo;
    const int k = int(parts_.size());
    ask(path, node);
    pool(1);
    float* const p = row_.data();
    const float top = solo.largest<float>(vocab, [=](int x) { return p[x]; });
    solo.each(vocab, [=](int x) { p[x] = exp_normal(larger(p[x] - top, Format<float>::kLogLeast)); });
    const float total = solo.sum<float>(vocab, [=](int x) { return p[x]; });

    double gradient[kMost] = {};
    float mean[kMostParts] = {};
    for (int i = 0; i < k; i++) {
      const float* const f = said(i);
      mean[i] = solo.sum<float>(vocab, [=](int x) { return p[x] * f[x]; }) / total;
      gradient[i] = double(f[token] - mean[i]);
      gradient[k + i] = double(sure_[i]) * gradient[i];
    }
    for (int i = 0; i < k; i++)
      for (int j = 0; j <= i; j++) {
        const float *const f = said(i), *const g = said(j), from_f = mean[i], from_g = mean[j];
        const double covariance =
            double(solo.sum<float>(vocab, [=](int x) { return p[x] * (f[x] - from_f) * (g[x] - from_g); }) / total);
        const double m_i = double(sure_[i]), m_j = double(sure_[j]);
        newton_.curvature(i, j) += covariance;
        newton_.curvature(k + i, j) += m_i * covariance;
        if (i != j) newton_.curvature(k + j, i) += m_j * covariance;
        newton_.curvature(k + i, k + j) += m_i * m_j * covariance;
      }
    move(2 * k, gradient);
  }

  // The step. What is forgotten of the curvature becomes the prior again, and so do the weights: that is its part of
  // the gradient.
  void move(int n, double* gradient) {
    for (int i = 0; i < n; i++) gradient[i] += kForget * kPrior * ((i < n / 2 ? 2.0 / n : 0) - weight_[i]);
    double step[kMost];
    newton_.solve(gradient, step);
    for (int i = 0; i < n; i++) {
      const double moved = weight_[i] + larger(-kStep, smaller(kStep, step[i]));
      weight_[i] = larger(-kFarthest, smaller(kFarthest, moved));
    }
    newton_.forget(kForget);
  }

  struct Author {
    int node, token, part;
  };
  std::vector<std::unique_ptr<LogitsDrafter>> parts_;  // k
  std::array<double, kMost> weight_{};                 // a_0 .. a_{k-1}, b_0 .. b_{k-1}
  Newton<kMost> newton_;
  std::array<float, kMostParts> sure_{};  // m, at the node that was asked about last
  std::vector<float> said_;               // (k, V) at that node
  std::vector<float> row_;                // (V)
  std::vector<Author> authors_;           // of this pass's candidates
};

}  // namespace nanospec
