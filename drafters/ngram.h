// drafters/ngram.h: counts the n-grams of a text, and interpolates them to predict the next token.
//
// In order: the trie of counts; the probabilities of one order; the drafter.
//
// Each node of the trie is an n-gram of the text; its children are the n-grams one token longer. The nodes lie level by
// level, within a level by parent, under a parent by token. So the children of node i are adjacent,
// first[i] .. first[i + 1] - 1, and need no pointers. A node also has a suffix link: to the node of its n-gram without
// the first token (the automaton of Aho, Corasick 1975). These links shorten a context from the left. So one number,
// the node of the longest known context, is all that is stored of a text. One more token costs a binary search, seldom
// a second; the shorter contexts need no search.
#pragma once

#include <functional>

#include "drafters/logits.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Counts

constexpr int kNgramOrders = 6;              // how many orders are counted
constexpr size_t kNgramMost = 1u << 26;      // nodes: when there are so many, no further order is counted
constexpr size_t kNgramText = 64 * 1000000;  // tokens: only so many at a text's beginning are counted
constexpr int kNgramKeys = 1 << 16;          // the most keys of one counting sort

// A node takes 16 bytes, one of the last level 8. The 1.0 million training characters of tinyshakespeare have 65,
// 1,380, 11,228, 48,539, 133,293 and 264,623 different n-grams of 1 to 6 characters: 5.2 MB. A seventh level would
// double that, and the sixth drafts no better than the fifth.
struct NgramTrie {
  std::vector<int32_t> token;   // (n) the n-gram's last token; 0 for the root, the empty n-gram
  std::vector<int32_t> count;   // (n) how often it occurs in the text
  std::vector<int32_t> first;   // (inner + 1) where the children of a node begin; [inner] = n
  std::vector<int32_t> suffix;  // (inner) the n-gram without its first token; 0 for the root
  std::vector<int32_t> level;   // (orders + 2) where the n-grams of k tokens begin; [orders] = inner, [orders + 1] = n

  int orders() const { return int(level.size()) - 2; }  // tokens in the longest n-grams, which have no children
  // The n-gram one token longer than a node that may have children; 0 if it does not occur in the text.
  int child(int node, int32_t last) const {
    const auto begin = token.begin() + first[node], end = token.begin() + first[node + 1];
    const auto found = std::lower_bound(begin, end, last);
    return found != end && *found == last ? int(found - token.begin()) : 0;
  }
};

// Called now and then by work that takes long, with the share that is done.
using Told = std::function<void(double share)>;

// Prefetches the tokens of the place that a loop reaches some steps later, k tokens behind that place: the places of
// two steps do not lie together in memory.
inline void prefetch_place(const int* tokens, const std::vector<int>& places, int turn, int k) {
  constexpr int kTurns = 32;
  if (turn + kTurns < int(places.size())) __builtin_prefetch(tokens + places[turn + kTurns] + k);
}

// The places of a text, sorted by the `depth` tokens that begin there; equal ones in the order of the text. The text's
// end comes before any token. These are counting sorts by some tokens at a time, the last tokens first.
inline std::vector<int> sorted_places(const int* tokens, int n, int vocab, int depth, const Told& told) {
  int digit = 1, keys = vocab + 1;  // tokens at a time; how many such there are, the text's end among them
  for (; digit < depth && keys <= kNgramKeys / (vocab + 1); digit++) keys *= vocab + 1;
  std::vector<int> places = numbers_to(n), sorted(n), start;
  for (int k = (depth - 1) / digit * digit; k >= 0; k -= digit) {
    const auto key = [=](int place) {
      int number = 0;
      for (int i = k; i < k + digit; i++) number = number * (vocab + 1) + (i < n - place ? tokens[place + i] + 1 : 0);
      return number;
    };
    start.assign(size_t(keys) + 1, 0);
    for (int i = 0; i < n; i++) start[key(i) + 1]++;
    std::partial_sum(start.begin(), start.end(), start.begin());
    for (int i = 0; i < n; i++) {
      prefetch_place(tokens, places, i, k);
      sorted[start[key(places[i])]++] = places[i];
    }
    places.swap(sorted);
    if (told) told(double(depth - k) / (depth + 2));
  }
  return places;
}

// For each of these places, how many of its tokens are the same as at the place before it.
inline std::vector<uint8_t> same_as_before(const int* tokens, int n, const std::vector<int>& places, int depth) {
  std::vector<uint8_t> same(n, 0);
  for (int i = 1; i < n; i++) {
    prefetch_place(tokens, places, i, 0);
    const int most = std::min(depth, n - std::max(places[i - 1], places[i]));
    while (same[i] < most && tokens[places[i - 1] + same[i]] == tokens[places[i] + same[i]]) same[i]++;
  }
  return same;
}

// Counts all n-grams of up to `orders` tokens, or of fewer if the text is shorter or the nodes become too many, of a
// text's first `most` tokens. tokens: each in [0, vocab). A node's places are adjacent among the sorted places, on
// every level.
inline NgramTrie count_ngrams(const std::vector<int>& tokens, int vocab, int orders = kNgramOrders,
                              size_t most = kNgramText, const Told& told = {}) {
  const int n = int(std::min(tokens.size(), most)), deepest = std::max(1, std::min(orders, n));
  const std::vector<int> places = sorted_places(tokens.data(), n, vocab, deepest, told);
  const std::vector<uint8_t> same = same_as_before(tokens.data(), n, places, deepest);
  if (told) told((deepest + 1.0) / (deepest + 2));
  std::vector<int> nodes(size_t(deepest) + 1, 0);  // of each level
  for (int i = 0; i < n; i++)
    for (int k = same[i] + 1; k <= std::min(deepest, n - places[i]); k++) nodes[k]++;

  NgramTrie trie;
  trie.level = {0, 1};
  for (int k = 1; k <= deepest && (k == 1 || size_t(trie.level[k]) < kNgramMost); k++)
    trie.level.push_back(trie.level[k] + nodes[k]);
  const int depth = trie.orders(), inner = trie.level[depth];
  trie.token.resize(trie.level[depth + 1]);
  trie.count.resize(trie.level[depth + 1]);
  trie.first.resize(inner + 1);
  trie.suffix.resize(inner);
  trie.count[0] = n;
  std::vector<int> node(size_t(depth) + 1, 0), next = trie.level;  // of each level: the current node; the next new one
  for (int i = 0; i < n; i++)
    for (int k = 1; k <= std::min(depth, n - places[i]); k++) {
      if (k > same[i]) {
        node[k] = next[k]++;
        trie.token[node[k]] = tokens[places[i] + k - 1];
        trie.first[node[k - 1]]++;  // the number of children, for now
      }
      trie.count[node[k]]++;
    }
  int at = 1;
  for (int32_t& first : trie.first) at += std::exchange(first, at);
  for (int parent = 1; parent < inner; parent++)
    for (int child = trie.first[parent]; child < std::min(trie.first[parent + 1], inner); child++)
      trie.suffix[child] = trie.child(trie.suffix[parent], trie.token[child]);
  return trie;
}

// ---------------------------------------------------------------------------------------------------------------
// Probabilities

constexpr double kNgramSmoothing = 2;  // the longer a context the less its counts weigh: see interpolated()

constexpr int kMostFollowers = 64;  // of a context, that a draft looks at

// The distribution of the next token: an interpolation of the orders 1 .. order.
struct Ngrams {
  int order = 1, vocab = 0;    // N, V
  NgramTrie trie;              // up to `order`, without counts
  std::vector<float> share;    // (n) the weight of the node's token among what its parent's context adds
  std::vector<float> rest;     // (inner) the weight of the next shorter context
  std::vector<float> unigram;  // (V) p_1
  // The contexts with more than kMostFollowers followers, and of each, in the same order, the nodes of the likeliest.
  std::vector<int32_t> crowded, likeliest;

  // The longest known context, of fewer than `order` tokens, after one more token. A context is a node; 0: none.
  int next(int context, int token) const {
    for (;; context = trie.suffix[context]) {
      const bool may_grow = context < trie.level[order - 1];  // else its children would be too long
      if (const int longer = may_grow ? trie.child(context, token) : 0) return longer;
      if (context == 0) return 0;
    }
  }

  // out: (V) log p(x | context). It goes from the longest context to the shortest; each adds its shares of the weight
  // that the longer ones have left. At order 4 and V = 65 this takes 0.1 microseconds.
  void log_probabilities(int context, float* out) const {
    std::fill(out, out + vocab, 0.0f);
    float left = 1;
    for (; context > 0; context = trie.suffix[context]) {
      for (int i = trie.first[context]; i < trie.first[context + 1]; i++) out[trie.token[i]] += left * share[i];
      left *= rest[context];
    }
    const float* const shortest = unigram.data();
    Solo{}.each(vocab, [=](int x) { out[x] = log(fused(left, shortest[x], out[x])); });
  }

  // The same of the likeliest tokens that are known to follow the context. All others have the mean of what is left.
  // Where a context has more followers than a draft looks at, a token that only other contexts bring misses its share
  // there.
  void log_probabilities(int context, Likely& out) const {
    out.clear();
    float left = 1, others = 1;
    for (; context > 0; context = trie.suffix[context]) {
      each_likely(context, [&](int i) { out.add(trie.token[i]) += left * share[i]; });
      left *= rest[context];
    }
    for (size_t i = 0; i < out.token.size(); i++) {
      const float p = fused(left, unigram[out.token[i]], out.logit[i]);
      others -= p;
      out.logit[i] = log(p);
    }
    out.rest = log(larger(others, 1e-6f) / float(std::max(1, out.others())));
  }

 private:
  // Calls f(node) for the followers of a context, at most kMostFollowers. A frequent word has thousands.
  template <class F>
  void each_likely(int context, F f) const {
    const int begin = trie.first[context], end = trie.first[context + 1];
    if (end - begin <= kMostFollowers) {
      for (int i = begin; i < end; i++) f(i);
      return;
    }
    const auto at = std::lower_bound(crowded.begin(), crowded.end(), context) - crowded.begin();
    for (int i = 0; i < kMostFollowers; i++) f(likeliest[size_t(at) * kMostFollowers + size_t(i)]);
  }
};

// Fills in `crowded` and `likeliest`.
inline void find_crowded(Ngrams& ngrams) {
  const NgramTrie& trie = ngrams.trie;
  std::vector<int32_t> followers;
  for (int context = 1; context + 1 < int(trie.first.size()); context++) {
    if (trie.first[context + 1] - trie.first[context] <= kMostFollowers) continue;
    followers.resize(size_t(trie.first[context + 1] - trie.first[context]));
    std::iota(followers.begin(), followers.end(), trie.first[context]);
    std::partial_sort(followers.begin(), followers.begin() + kMostFollowers, followers.end(), [&](int i, int j) {
      return ngrams.share[i] > ngrams.share[j] || (ngrams.share[i] == ngrams.share[j] && i < j);
    });
    ngrams.crowded.push_back(context);
    ngrams.likeliest.insert(ngrams.likeliest.end(), followers.begin(), followers.begin() + kMostFollowers);
  }
}

// Witten-Bell interpolation, tempered. order: 1 .. trie.orders().
//   p_k(x | c) = (count(c x) + w types(c) p_{k-1}(x | shorter c)) / (count(c) + w types(c)),   w = D^(k - 1)
// D: kNgramSmoothing. types(c): how many different tokens follow c; count(c): how many tokens follow it; p_0: uniform.
// Witten and Bell's w is 1. Here the distribution must predict a GPT, not the text, and a GPT follows the counts of a
// long context less.
// Tokens per forward at temperature 1, chain:4, orders 4, 5, 6 (four prompts of 500 tokens):
//   small model, w = 1: 2.50, 2.23, 2.10; 2^(k-1): 2.64, 2.56, 2.52; 3^(k-1): 2.72, 2.77, 2.75
//   medium model, w = 1: 3.19, 2.99, 2.69; 2^(k-1): 3.21, 3.32, 3.24; 3^(k-1): 2.95, 3.13, 3.16
// Modified Kneser-Ney (small model: 2.50, 2.33, 2.24) drafts no better than Witten and Bell's own weights, though it
// predicts the validation text by far the best.
inline Ngrams interpolated(NgramTrie trie, int order, int vocab) {
  const int inner = trie.level[order], n = trie.level[order + 1];
  Ngrams ngrams;
  ngrams.order = order;
  ngrams.vocab = vocab;
  ngrams.share.resize(n);
  ngrams.rest.resize(inner);
  double w = 1;
  for (int k = 1; k <= order; k++, w *= kNgramSmoothing)
    for (int context = trie.level[k - 1]; context < trie.level[k]; context++) {
      const int begin = trie.first[context], end = trie.first[context + 1];
      double total = 0;
      for (int i = begin; i < end; i++) total += trie.count[i];
      const double unseen = w * (end - begin);
      for (int i = begin; i < end; i++) ngrams.share[i] = float(trie.count[i] / (total + unseen));
      ngrams.rest[context] = begin < end ? float(unseen / (total + unseen)) : 1;  // nothing follows the text's end
    }
  ngrams.unigram.assign(vocab, ngrams.rest[0] / float(vocab));
  for (int i = 1; i < trie.first[1]; i++) ngrams.unigram[trie.token[i]] += ngrams.share[i];

  trie.level.resize(order + 2);
  trie.token.resize(n);
  trie.first.resize(inner + 1);
  trie.suffix.resize(inner);
  trie.count.clear();
  ngrams.trie = std::move(trie);
  find_crowded(ngrams);
  return ngrams;
}

// ---------------------------------------------------------------------------------------------------------------
// N-gram: the next token from the last N - 1

struct Ngram : LikelyDrafter {
  explicit Ngram(Ngrams ngrams)
      : LikelyDrafter(ngrams.vocab), shared_(std::make_shared<const Ngrams>(std::move(ngrams))) {}
  std::unique_ptr<Drafter> another(int) const override { return std::make_unique<Ngram>(*this); }

  void begin(const int* text, int n) override {
    root_ = 0;
    for (int i = std::max(0, n - (table().order - 1)); i < n; i++) root_ = table().next(root_, text[i]);
  }
  void committed(const Commit& commit) override {
    for (int i = 0; i < commit.n; i++) root_ = table().next(root_, commit.tokens[i]);
  }
  const float* logits(const Growth& growth, int node) override {
    table().log_probabilities(context(growth, node, table().order - 1), row_.data());
    return row_.data();
  }
  const Likely* likely(const Growth& growth, int node) override {
    table().log_probabilities(context(growth, node, table().order - 1), likely_);
    return &likely_;
  }
  const Ngrams& table() const { return *shared_; }

 private:
  // The longest known context after a node, of at least the last `tokens` tokens if the text has as many.
  int context(const Growth& growth, int node, int tokens) const {
    if (tokens == 0) return 0;
    if (node == 0) return root_;
    return table().next(context(growth, growth.parent[node], tokens - 1), growth.token[node]);
  }

  std::shared_ptr<const Ngrams> shared_;
  int root_ = 0;  // the context after the text, whose last token is the growth's root
};

}  // namespace nanospec
