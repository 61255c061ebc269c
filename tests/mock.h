// tests/mock.h: what stands in for models and data in the tests of decoding.
//
// In order: one of every shape; a target with known logits that checks how it is called; drafters made for tests, each
// over any target; the chi-square test. The drafters are templates on the target, so that the same ones try the real
// model.
#pragma once

#include <array>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "files/drafters.h"
#include "tests/tenth.h"
#include "watch/decoding.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Every shape

// As a user would write them, one of each kind at least; budgets bind those that are not fixed.
constexpr const char* kAllShapes[] = {"chain:1",
                                      "chain:4",
                                      "chain:12",
                                      "tree:3x2",
                                      "tree:2x4",
                                      "tree:1x8",
                                      "tree:5x2",
                                      "auto",
                                      "cartesian:3,1,2",
                                      "calibrated",
                                      "sequoia",
                                      "best-first",
                                      "beam:3",
                                      "entropy-stop:depth=6",
                                      "entropy-naive:of=confidence",
                                      "entropy-width",
                                      "entropy-depth-width:of=confidence,threshold=1.5"};

// A shape by its words; where its template would come from a file, out of rates that fall with depth and rank.
inline Shape ready_shape(const std::string& text, int budget) {
  Shape shape = parse_shape(text, budget);
  if (!shape.fixed() || shape.plan) return shape;
  Accuracy a;
  a.depths = 5, a.ranks = 4, a.seen.assign(5, 100);
  for (int d = 0; d < a.depths; d++)
    for (int r = 0; r < a.ranks; r++) a.rate.push_back(0.6 / ((1 + d) * (1 + r)));
  const auto seconds = [](int n) { return 1 + 0.05 * n; };
  shape.plan = std::make_shared<Template>(shape.kind == Shape::kSequoia ? sequoia_template(a, budget, seconds)
                                                                        : calibrated_template(a, budget));
  return shape;
}

// ---------------------------------------------------------------------------------------------------------------
// A target with known logits

inline uint64_t mix(uint64_t hash, uint64_t value) { return random_bits(hash, 0, 1000, value, 0); }

// Its logits are a hash of the tokens that a row may see, from the window's start on, in their order: whatever goes
// wrong with masks, positions, the cache or the window gives other logits. `habit` of them depends on the last token
// alone, so that a bigram drafter can be good or bad. Calls that the interface does not allow raise logic_error.
class Mock {
 public:
  Mock(int vocab, int block, float habit, float whim, uint64_t seed = 5, int capacity = 1 << 20)
      : vocab_(vocab), block_(block), capacity_(capacity), seed_(seed), whim_(whim), habits_(vocab * vocab) {
    for (int c = 0; c < vocab; c++)
      for (int x = 0; x < vocab; x++) habits_[c * vocab + x] = habit * bell(mix(seed, uint64_t(c)), x);
  }

  int block_size() const { return block_; }
  int vocab_size() const { return vocab_; }
  int past() const { return int(cached_.size()); }

  void prefill(const int* tokens, int n) {
    require(n >= 0 && n < block_, "prefill of as many tokens as the window holds, or more");
    cached_.clear(), rows_.clear();
    for (int i = 0; i < n; i++) cached_.push_back(seen(past() ? cached_.back() : start(), tokens[i]));
    prefills++;
  }

  void forward(const int* token, const int* depth, const int* end, int n) {
    require(n >= 1 && n <= capacity_, "as many rows as there is room for");
    require(depth[0] == 0 && end[0] == n, "one root, over all rows");
    rows_.clear(), last_.clear(), depth_.clear(), end_.clear();
    std::vector<int> above;  // the path to the row
    for (int i = 0; i < n; i++) {
      while (!above.empty() && end[above.back()] <= i) above.pop_back();
      require(end[i] > i && end[i] <= (above.empty() ? n : end[above.back()]), "subtrees lie within each other");
      require(depth[i] == int(above.size()), "depth counts the ancestors");
      require(past() + depth[i] < block_, "positions lie within the window");
      const uint64_t before = !above.empty() ? rows_[above.back()] : past() ? cached_.back() : start();
      rows_.push_back(seen(before, token[i]));
      last_.push_back(token[i]), depth_.push_back(depth[i]), end_.push_back(end[i]);
      above.push_back(i);
    }
    logits_.resize(size_t(n) * vocab_), known_.assign(n, 0);
    forwards++, rows_forwarded += n;
  }

  const float* logits(int row) {
    require(row >= 0 && row < int(rows_.size()), "logits of a row of the last forward");
    float* out = logits_.data() + size_t(row) * vocab_;
    if (!known_[row])
      for (int x = 0; x < vocab_; x++) out[x] = habits_[last_[row] * vocab_ + x] + whim_ * bell(rows_[row], x);
    known_[row] = 1;
    return out;
  }

  const float* hidden(int row) {
    require(row >= 0 && row < int(rows_.size()), "hidden state of a row of the last forward");
    hidden_[row] = float(last_[row]);  // a state of one channel: the row's token
    return &hidden_[row];
  }

  const float* features(int row) {
    require(row >= 0 && row < int(rows_.size()), "features of a row of the last forward");
    for (int i = 0; i < 3; i++) features_[row][i] = float(3 * last_[row] + i);  // of one channel: the row's token
    return features_[row].data();
  }

  void keep(const int* rows, int n) {
    require(n >= 1 && rows[0] == 0, "the root is kept");
    for (int i = 0; i < n; i++) {
      require(rows[i] >= 0 && rows[i] < int(rows_.size()) && depth_[rows[i]] == i, "kept rows are a path");
      if (i > 0) require(rows[i] > rows[i - 1] && rows[i] < end_[rows[i - 1]], "each under the one before");
      cached_.push_back(rows_[rows[i]]);
    }
    require(past() < block_, "room for the next root");
    rows_.clear();
  }

  int64_t forwards = 0, prefills = 0, rows_forwarded = 0;

 private:
  static void require(bool holds, const char* what) {
    if (!holds) throw std::logic_error(std::string("the mock requires: ") + what);
  }
  uint64_t start() const { return mix(seed_, 77); }
  uint64_t seen(uint64_t before, int token) const {
    require(token >= 0 && token < vocab_, "tokens of the vocabulary");
    return mix(before, uint64_t(token));
  }
  static float bell(uint64_t hash, int x) {  // sum of four uniforms: mean 0, standard deviation 1
    double sum = 0;
    for (uint64_t bits = random_bits(hash, 1, 1000, 0, uint32_t(x)), part = 0; part < 4; part++)
      sum += double(bits >> (16 * part) & 0xffff) / 65536 - 0.5;
    return float(sum * 1.7320508);
  }

  int vocab_, block_, capacity_;
  uint64_t seed_;
  float whim_;
  std::vector<float> habits_;     // (V, V)
  std::vector<uint64_t> cached_;  // (past) hash of the window up to each cached token
  std::vector<uint64_t> rows_;    // (n) the same for the rows of the last forward
  std::vector<int> last_, depth_, end_;
  std::vector<float> logits_;  // (n, V), those with known_
  std::vector<char> known_;
  std::map<int, float> hidden_;
  std::map<int, std::array<float, 3>> features_;
};

// Decodes n tokens of a mock.
inline Stats decode_mock(Mock& mock, Drafter* drafter, const Shape& shape, const Sampling& sampling, int n,
                         std::vector<int>& text) {
  Decoding decoding;
  decoding.shape = shape, decoding.sampling = sampling, decoding.max_new_tokens = n;
  return generate(mock, drafter, decoding, text, [](int) { return true; });
}

// ---------------------------------------------------------------------------------------------------------------
// Drafters

// Drafts with the target's own function: by a model and a cache of its own, fed only by what it is told.
template <class Target>
struct SelfDrafter : Drafter {
  Target& model;  // not the one that verifies
  std::vector<int> text;
  Tree tree;          // the last forward's
  int forwarded = 0;  // nodes in it; 0: none in this forward

  explicit SelfDrafter(Target& own) : model(own) { vocab = own.vocab_size(); }

  void begin(const int* tokens, int n) override {
    text.assign(tokens, tokens + n), forwarded = 0;
    open_window(model, text);
  }
  const float* logits(const Growth& growth, int node) override {
    if (forwarded != growth.size()) {
      flatten(growth, tree);
      model.forward(tree.token.data(), tree.depth.data(), tree.end.data(), tree.size());
      forwarded = growth.size();
    }
    return model.logits(int(std::find(tree.origin.begin(), tree.origin.end(), node) - tree.origin.begin()));
  }
  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    Draws kept = draws;
    kept.kept_only = true;  // the very target drops what top-k and top-p drop
    Drafter::expand(growth, nodes, n, width, kept, candidates, count);
  }
  void committed(const Commit& commit) override {
    const int n = commit.n;
    Growth chain;
    chain.start(text.back());
    for (int i = 0; i + 1 < n; i++) chain.add(i, {commit.tokens[i], 1});
    const int before = window_start(int(text.size()), model.block_size());
    text.insert(text.end(), commit.tokens, commit.tokens + n), forwarded = 0;
    if (window_start(int(text.size()), model.block_size()) != before) return open_window(model, text);
    flatten(chain, tree);
    model.forward(tree.token.data(), tree.depth.data(), tree.end.data(), n);
    std::vector<int> rows(n);
    for (int i = 0; i < n; i++) rows[i] = i;
    model.keep(rows.data(), n);
  }
};

// Never proposes the token that the target will pick.
template <class Target>
struct WrongDrafter : SelfDrafter<Target> {
  using SelfDrafter<Target>::SelfDrafter;
  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    std::vector<Candidate> more(width + 1);
    for (int k = 0; k < n; k++) {
      int found = 0;
      SelfDrafter<Target>::expand(growth, nodes + k, 1, width + 1, draws, more.data(), &found);
      count[k] = std::max(0, found - 1);
      for (int i = 0; i < count[k]; i++) candidates[k * width + i] = more[i + 1];
    }
  }
};

// Proposes tokens, and fewer of them than asked for, by chance alone; sure of all or of none.
struct RandomDrafter : Drafter {
  uint64_t calls = 0;
  std::vector<float> noise;

  explicit RandomDrafter(int vocab_size) : noise(vocab_size) { vocab = vocab_size; }
  const float* logits(const Growth& growth, int node) override {  // a fixed function of the node and its token
    for (int x = 0; x < vocab; x++)
      noise[x] = 3 * float(uniform(random_bits(9, uint32_t(node), 1000, uint64_t(growth.token[node]), uint32_t(x))));
    return noise.data();
  }
  void expand(const Growth&, const int*, int n, int width, const Draws&, Candidate* candidates, int* count) override {
    for (int k = 0; k < n; k++) {
      const uint64_t bits = random_bits(11, 0, 1000, calls++, 0);
      count[k] = int(bits % (std::min(width, vocab) + 1));
      for (int i = 0; i < count[k]; i++)
        candidates[k * width + i] = {int((bits / 64 + i) % vocab), i == 0 ? float(bits >> 8 & 255) / 255 : 0.2f};
    }
  }
};

// States of a target that a test makes up.
struct MadeUpRows : TargetRows {
  std::function<const float*(int row)> of_logits, of_hidden, of_features;
  static const float* said(const std::function<const float*(int)>& of, int row) { return of ? of(row) : nullptr; }
  const float* logits(int row) const override { return said(of_logits, row); }
  const float* hidden(int row) const override { return said(of_hidden, row); }
  const float* features(int row) const override { return said(of_features, row); }
};
// Tells a drafter what came, with such states.
inline void tell(Drafter& drafter, const Commit& commit, const MadeUpRows& rows) {
  drafter.attach(&rows);
  drafter.committed(commit);
  drafter.attach(nullptr);
}

// ---------------------------------------------------------------------------------------------------------------
// Chi-square

// The chance that a chi-square variable of k degrees of freedom exceeds x: 1 - P(k/2, x/2), the regularized incomplete
// gamma function by its series (x small) or Lentz's continued fraction.
inline double chi_square_tail(double x, double k) {
  const double a = k / 2, z = x / 2, front = std::exp(a * std::log(z) - z - std::lgamma(a));
  if (z < a + 1) {
    double term = 1 / a, sum = term;
    for (double n = a + 1; term > sum * 1e-15; n++) sum += term *= z / n;
    return 1 - front * sum;
  }
  double b = z + 1 - a, c = 1e300, d = 1 / b, h = d;
  for (int i = 1; i < 10000; i++) {
    const double an = -i * (i - a);
    b += 2, d = 1 / (an * d + b), c = b + an / c;
    h *= c * d;
    if (std::fabs(c * d - 1) < 1e-14) break;
  }
  return front * h;
}

// The p-value of counts under the chances `expected`; cells that are expected fewer than five times count as one.
inline double chi_square_p(const std::vector<int64_t>& counts, const std::vector<double>& expected) {
  double n = 0, statistic = 0, rare = 0, rare_count = 0;
  for (int64_t count : counts) n += double(count);
  int cells = 0;
  for (size_t i = 0; i < counts.size(); i++) {
    const double e = n * expected[i];
    if (e < 5) rare += e, rare_count += double(counts[i]);
    else statistic += (double(counts[i]) - e) * (double(counts[i]) - e) / e, cells++;
  }
  if (rare == 0 && rare_count > 0) return 0;  // what cannot happen has happened
  if (rare > 0) statistic += (rare_count - rare) * (rare_count - rare) / rare, cells++;
  return chi_square_tail(statistic, cells - 1);
}

}  // namespace nanospec
