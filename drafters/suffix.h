// drafters/suffix.h: where a context occurred before, and which tokens followed it there.
//
// In order: the matches of a context; their interpolation, whose weights are learned during generation; two ways to
// find matches, looking back and a suffix automaton. The file knows nothing of models and trees.
//
// Matches are n-grams of all orders at once. Their counts are interpolated from the longest down, as in ngram.h. But no
// formula says how much a token counts that once followed 12 tokens of the generated text: that is learned.
#pragma once

#include "drafters/logits.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Matches

constexpr int kLongestMatch = 32;  // tokens: a longer match counts as one of this length
constexpr int kMostMatches = 32;   // of one context

struct Follower {
  int32_t token, count;
};

// The tokens that followed at earlier places of the last `length` tokens of a context.
struct Match {
  int length;
  int begin, end;  // of its followers
  int total;       // the sum of their counts, at least 1

  int types() const { return end - begin; }
};

// The matches of one context, the longest first. A shorter match also counts the places of the longer ones.
struct Matches {
  std::vector<Match> match;
  std::vector<Follower> follower;

  void clear() {
    match.clear();
    follower.clear();
  }

  // Makes a match of the followers that were pushed since the last one, if there are any.
  void close(int length) {
    Match m = {std::min(length, kLongestMatch), match.empty() ? 0 : match.back().end, int(follower.size()), 0};
    for (int i = m.begin; i < m.end; i++) m.total += follower[i].count;
    if (m.total > 0) match.push_back(m);
  }
  int count(const Match& m, int token) const {
    for (int i = m.begin; i < m.end; i++)
      if (follower[i].token == token) return follower[i].count;
    return 0;
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Interpolation

// Interpolates the matches of a context (Jelinek, Mercer 1980):
//   p_m(x) = b_m count_m(x) / total_m + (1 - b_m) p_{m+1}(x),   m = 0, 1, ... from the longest match; the last: 1 / V.
// The weight b_m belongs to the match's class: its length, how many followers it had, and whether all were the same
// token. It is learned online by expectation maximization. When x has followed:
//   r_m = b_m count_m(x) / (total_m p_m(x))    the responsibility of match m for x, if no longer match is responsible
//   reach_m = (1 - r_0) ... (1 - r_{m-1})      the chance that no longer match is
// The b of a class is its sum of reach r divided by its sum of reach; older tokens weigh less.
class Interpolation {
 public:
  Interpolation() : classes_(size_t(kLongestMatch + 1) * kSightings * 2), smoothing_(kLongestMatch + 1, 0.5) {
    for (int n = 1; n <= kLongestMatch; n++) smoothing_[n] = 0.9 * smoothing_[n - 1];
  }

  // b_m. At first it is Witten and Bell's, with a w that is smaller for longer matches:
  //   total / (total + w types),   w = 0.9^length / 2
  double weight(const Match& m) const {
    constexpr double kPrior = 2;  // the start weighs as much as this many tokens
    const Class& c = classes_[class_of(m)];
    return (kPrior * m.total / (m.total + smoothing_[m.length] * m.types()) + c.taken) / (kPrior + c.reached);
  }

  // p: p_0 of the tokens that followed, and of every other token.
  void blend(const Matches& matches, int vocab, Likely& p) const {
    p.clear();
    double left = 1;
    for (const Match& m : matches.match) {
      const double b = weight(m);
      const float each = float(left * b / m.total);
      for (int i = m.begin; i < m.end; i++) p.add(matches.follower[i].token) += each * float(matches.follower[i].count);
      left *= 1 - b;
    }
    p.rest = float(larger(left, kLeast) / vocab);
    for (float& one : p.logit) one += p.rest;
  }

  // Learns that token x followed a context with these matches.
  void learn(const Matches& matches, int x, int vocab) {
    const int n = int(matches.match.size());
    double p = 1.0 / vocab;
    responsibility_.resize(size_t(n));  // r
    for (int m = n - 1; m >= 0; m--) {
      const Match& match = matches.match[m];
      const double b = weight(match), own = b * matches.count(match, x) / match.total;
      p = own + (1 - b) * p;
      responsibility_[m] = own / p;
    }
    double reach = 1;
    for (int m = 0; m < n; reach *= 1 - responsibility_[m++]) {
      Class& c = classes_[class_of(matches.match[m])];
      c.taken += reach * responsibility_[m];
      c.reached += reach;
      if (c.reached <= kMemory) continue;
      c.taken /= 2;
      c.reached /= 2;
    }
  }

 private:
  static constexpr double kLeast = 1e-4;   // the least chance of all tokens that no match has
  static constexpr double kMemory = 1000;  // tokens: then the sums of a class are halved
  static constexpr int kSightings = 4;     // classes of counts: 1, 2 or 3, 4 to 7, 8 or more followers
  struct Class {
    double taken = 0, reached = 0;
  };

  static size_t class_of(const Match& m) {
    const int seen = std::min(kSightings - 1, 31 - __builtin_clz(unsigned(m.total)));
    return size_t((m.length * kSightings + seen) * 2 + (m.types() == 1));
  }

  std::vector<Class> classes_;
  std::vector<double> smoothing_;       // w, by length
  std::vector<double> responsibility_;  // r; scratch
};

// ---------------------------------------------------------------------------------------------------------------
// Looking back

// The text, and for each token its latest place. It compares the latest kMostPlaces places of a context's last token.
// It takes 8 bytes for each token of the text, and 8 for each of the vocabulary.
class LookBack {
 public:
  explicit LookBack(int vocab) : latest_(size_t(vocab), -1), count_(vocab) {}

  void clear() {
    text_.clear();
    earlier_.clear();
    std::fill(latest_.begin(), latest_.end(), -1);
  }

  void extend(int token) {
    earlier_.push_back(latest_[token]);
    latest_[token] = int(text_.size());
    text_.push_back(token);
  }

  // The matches of the text followed by n more tokens.
  void find(const int* more, int n, Matches& matches) {
    matches.clear();
    const int size = int(text_.size());
    const auto back = [&](int i) { return i <= n ? more[n - i] : text_[size + n - i]; };  // the i-th last token
    const int longest = std::min(kLongestMatch, size + n);
    if (longest == 0) return;
    for (std::vector<int>& next : places_) next.clear();
    int looked = 0;
    for (int place = latest_[back(1)]; place >= 0 && looked < kMostPlaces; place = earlier_[place], looked++) {
      if (place + 1 == size + n) continue;  // the context itself
      int length = 1;
      while (length < longest && length <= place && text_[place - length] == back(length + 1)) length++;
      places_[length].push_back(place + 1 < size ? text_[place + 1] : more[0]);
    }
    // Counts the tokens that followed, from the longest matches down.
    count_.clear();
    for (int length = kLongestMatch; length > 0; length--) {
      if (places_[length].empty()) continue;
      for (int token : places_[length]) count_.add(token)++;
      for (int token : count_.token) matches.follower.push_back({token, int32_t(count_.of(token))});
      matches.close(length);
    }
  }

 private:
  static constexpr int kMostPlaces = 256;

  std::vector<int> text_, earlier_;             // (n)
  std::vector<int> latest_;                     // (V) latest place of each token; -1: none
  Likely count_;                                // scratch: of a token that followed, how often
  std::vector<int> places_[kLongestMatch + 1];  // the tokens that followed, by length of the match; scratch
};

// ---------------------------------------------------------------------------------------------------------------
// Suffix automaton

// The smallest automaton of all substrings of a text, built online (Blumer et al. 1985). A state is a class of
// substrings that end at the same places: those of length(link) + 1 .. length tokens. Its link is the state of the next
// shorter suffix. A text of n tokens has fewer than 2n states and 3n edges, of 16 and 12 bytes: at most 68 bytes a
// token. Beyond `most` tokens it does not grow. 1.0 million characters of Shakespeare give 1.5 million states and 2.2
// million edges, 50 MB.
class SuffixAutomaton {
 public:
  // The state of a context: that of its longest suffix that occurs in the text.
  struct Cursor {
    int state = 0, length = 0;
  };

  explicit SuffixAutomaton(int vocab, int most = 1 << 22) : most_(most), root_(size_t(vocab), -1) { clear(); }

  void clear() {
    states_.assign(1, {0, -1, 0, -1});
    edges_.clear();
    last_ = size_ = 0;
    end_ = {};
    std::fill(root_.begin(), root_.end(), -1);
  }

  // Appends a token.
  void extend(int token) {
    if (size_ == most_) {
      end_ = step(end_, token);
      return;
    }
    const int state = add({++size_, 0, 0, -1});
    int at = last_;
    for (; at >= 0 && edge(at, token) < 0; at = states_[at].link) connect(at, token, state);
    if (at >= 0) states_[state].link = edges_[edge(at, token)].to;
    if (at >= 0 && states_[at].length + 1 < states_[states_[state].link].length)
      states_[state].link = split(at, token, states_[state].link);
    last_ = state;
    end_ = {states_[state].link, states_[states_[state].link].length};
    // Counts one more place for it and for its suffixes. Only a text that repeats the same few tokens again and again
    // has more suffixes than are counted here.
    for (int s = state, n = 0; s > 0 && n < kMostCounted; s = states_[s].link, n++) states_[s].count++;
  }

  Cursor step(Cursor c, int token) const {
    while (c.state > 0 && edge(c.state, token) < 0) c = shorter(c);
    const int e = edge(c.state, token);
    return e < 0 ? Cursor() : Cursor{edges_[e].to, c.length + 1};
  }

  // The matches of the text followed by n more tokens.
  void find(const int* more, int n, Matches& matches) const {
    Cursor c = end_;
    for (int i = 0; i < n; i++) c = step(c, more[i]);
    matches.clear();
    for (int found = 0; c.state > 0 && found < kMostMatches; found++) {
      for (int e = states_[c.state].first; e >= 0; e = edges_[e].next)
        matches.follower.push_back({edges_[e].token, states_[edges_[e].to].count});
      matches.close(c.length);
      c = shorter(c);
    }
  }

  size_t bytes() const {
    return states_.capacity() * sizeof(State) + edges_.capacity() * sizeof(Edge) + root_.size() * sizeof(int);
  }
  int states() const { return int(states_.size()); }
  int edges() const { return int(edges_.size()); }

 private:
  static constexpr int kMostCounted = 64;
  struct State {
    int32_t length, link, count, first;  // of the longest substring; next shorter suffix; places; first edge
  };
  struct Edge {
    int32_t token, to, next;  // next: of the same state, -1: none
  };

  Cursor shorter(Cursor c) const {
    const int link = states_[c.state].link;
    return {link, states_[link].length};
  }
  int add(const State& state) {
    states_.push_back(state);
    return int(states_.size()) - 1;
  }
  int edge(int state, int token) const {
    if (state == 0) return root_[token];
    int e = states_[state].first;
    while (e >= 0 && edges_[e].token != token) e = edges_[e].next;
    return e;
  }

  void connect(int state, int token, int to) {
    if (state == 0) root_[token] = int(edges_.size());
    edges_.push_back({token, to, states_[state].first});
    states_[state].first = int(edges_.size()) - 1;
  }

  // State `to` also has substrings longer than those of `at` and the token: the shorter ones get a new state.
  int split(int at, int token, int to) {
    const int shorter = add({states_[at].length + 1, states_[to].link, states_[to].count, -1});
    for (int e = states_[to].first; e >= 0; e = edges_[e].next) connect(shorter, edges_[e].token, edges_[e].to);
    states_[to].link = shorter;
    for (int e; at >= 0 && (e = edge(at, token)) >= 0 && edges_[e].to == to; at = states_[at].link)
      edges_[e].to = shorter;
    return shorter;
  }

  int most_, size_ = 0, last_ = 0;  // tokens; the state of the whole text
  Cursor end_;                      // the text's longest suffix that also occurs elsewhere in it
  std::vector<State> states_;       // 0: the empty substring
  std::vector<Edge> edges_;
  std::vector<int> root_;  // (V) the root's edges
};

}  // namespace nanospec
