// decode.h: the generation loop: draft, grow, verify, keep.
//
// In order: the window; what is counted; one pass's verification; the loop, and what it learns for shape auto; the cost
// of a forward. What the drafter does while the target verifies: ahead.h. A template on the model, so that a mock with
// known logits can stand in. It computes no logits and reads no command line.
//
// A target M has exactly:
//   int block_size(); int vocab_size();
//   void prefill(const int* tokens, int n);
//     forgets its cache, then caches n tokens at positions 0 .. n - 1; n may be 0
//   void forward(const int* token, const int* depth, const int* end, int n);
//     runs the rows of one tree in preorder; row i stands at position past() + depth[i]
//   const float* logits(int row);  (V) of the last forward
//   const float* hidden(int row);  (C) final hidden state of the last forward; null where there is none
//   void tap();  from now on features() is there, too: called before a text whose drafter wants it
//   const float* features(int row);  (3C) what an early, a middle and the last layer left; null where there is none
//   void keep(const int* rows, int n);
//     these rows of the last forward, ascending, stay cached: past() grows by n
//   int past();  cached positions
// One that can run whole passes by itself, as a GPU does, has also:
//   bool iterates();  whether it does
//   Verdict iterate(const Tree& tree, const Sampling& sampling, int64_t index);
//     forward, the verdict of rule match on it for a tree whose root's children stand at place `index` of the text, and
//     keep() of the verdict's rows, as one
//   bool hold(const Table& table, int depth, int width);
//     whether it can draft full trees of that size from a drafter's table; makes it ready
//   Verdict iterate_drafting(int root, int depth, int width, float sharpness, const Sampling& sampling, int64_t index,
//                            std::vector<Candidate>& drafted);
//     the same as iterate, of the full tree that it drafts under `root`; drafted: its nodes, in the order of growth
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "draft.h"
#include "growth/ahead.h"
#include "growth/grow.h"
#include "growth/trust.h"
#include "rules/verify.h"
#include "sample.h"
#include "tree.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The window

// Where the window begins that a text of n tokens is seen through: it holds at most `block` (even) tokens and moves by
// half of that. A function of n alone, never of how the text came about.
inline int window_start(int n, int block) {
  const int half = block / 2;
  return n <= block ? 0 : (n - block + half - 1) / half * half;
}

// Makes the target ready for the text's last token, the root: all tokens of the window before it are cached.
template <class Target>
void open_window(Target& target, const std::vector<int>& text) {
  const int n = int(text.size()), start = window_start(n, target.block_size());
  target.prefill(text.data() + start, n - 1 - start);
}

// ---------------------------------------------------------------------------------------------------------------
// What is asked for and what is counted

// One pass, as those see it who study it; all of it is valid until the call ends. The drafter may still be asked about
// nodes that it has expanded.
struct PassReport {
  int64_t index;  // place in the text of the root's children
  int past;       // cached positions: node i stands at past + depth[i]
  int deepest;    // no node could be deeper: the window's end, or that of the text that is wanted
  bool drafted;   // whether the drafter was asked
  Drafter* drafter;
  const Draws& draws;
  const Growth& growth;
  const Tree& tree;
  const Verdict& verdict;
  int emitted;                   // tokens of the verdict that the text got
  std::function<int(int)> pick;  // what the target chooses after a node; null where it keeps its logits to itself
  double draft_seconds, forward_seconds, verify_seconds;
};

// All that decides how to decode. Under rule match the text depends on `sampling` alone; under the others on the trees
// too, and so, with shape auto, on the clock.
struct Decoding {
  Shape shape;
  Rule rule = Rule::kMatch;
  Sampling sampling;
  int max_new_tokens = 500;
  bool knows_noise = true;  // whether the drafter is told the target's noise, under match; false: for study
  std::function<void(const PassReport&)> on_pass = nullptr;  // told of every pass, for study; its time does not count
  std::shared_ptr<Cost> cost;              // of the target's forwards, kept current; shape auto needs it
  std::shared_ptr<Experience> experience;  // with the drafter, kept from text to text; null: none yet
  Ahead ahead = Ahead::kOff;               // whether to draft while the target verifies; under match
};

struct Stats {
  int64_t tokens = 0;                           // emitted after the prompt
  int64_t target_forwards = 0;                  // passes of the target: one for each tree
  int64_t slide_prefills = 0;                   // prefills because the window moved
  int64_t drafted_nodes = 0;                    // nodes that the target verified, the roots not counted
  std::vector<int64_t> accept_histogram = {0};  // [i]: passes that committed i tokens; [0] is 0
  ReliabilityCurve reliability;                 // of the chances of the nodes that the target verified
  std::map<std::string, int64_t> accepted_by;   // accepted nodes that were emitted, by the drafter whose they were
  AheadStats ahead;                             // of drafting while the target verifies
  double prefill_seconds = 0;                   // the prompt
  double seconds = 0;                           // all after the prompt's prefill, but on_token: the sum of those below
  double seconds_draft = 0;                     // drafter and shape, and what is learned of them
  double seconds_forward = 0;                   // the target's passes; whole ones with their drafts, picks and gathers
  double seconds_verify = 0;                    // picks and the walk
  double seconds_keep = 0;                      // the cache's gather
  double seconds_slide = 0;                     // the prefills of moved windows
};

// All but the prefills.
inline double work_seconds(const Stats& stats) {
  return stats.seconds_draft + stats.seconds_forward + stats.seconds_verify + stats.seconds_keep;
}

// Seconds since it was last asked.
class Stopwatch {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// ---------------------------------------------------------------------------------------------------------------
// Verification of one pass

// What a rule may ask (verify.h), answered by the target, the drafter and random bits, about a tree whose root's
// children stand at place `index` of the text.
template <class Target, class Pick>
struct PassOracle {
  Target& target;
  Drafter* drafter;
  const Growth& growth;  // what the tree came from
  const Tree& tree;
  const Decoding& decoding;
  int64_t index;
  Pick pick_next;
  std::vector<float> p_row, q_row;  // (V)

  int vocab() { return target.vocab_size(); }
  const float* p(int node) {
    p_row.resize(vocab());
    distribution(target.logits(node), vocab(), decoding.sampling, p_row.data());
    return p_row.data();
  }
  const float* q(int node) {
    q_row.resize(vocab());
    draft_distribution(*drafter, growth, tree.origin[node], decoding.sampling, q_row.data());
    return q_row.data();
  }
  bool accept(int node, double a) {
    // No two questions share a chance. Rules that walk down from the root ask about each place of the text in one pass
    // only, and in chains a node has its own depth. Traversal asks about places to which the next pass returns, perhaps
    // with another tree: it goes by the pass.
    const int64_t place = decoding.rule == Rule::kTraversal ? index : index + tree.depth[node] - 1;
    return chance(decoding.sampling, kStreamAccept, place, node) < a;
  }
  int draw(int node, const double* weights) {
    const double u = chance(decoding.sampling, kStreamResidual, index + tree.depth[node], 0);
    return nanospec::draw(weights, vocab(), u);
  }
  int pick(int node) { return pick_next(node); }
};

// What the target chooses after a node of such a tree. noise: the target's.
template <class Target>
int pick_after(Target& target, const Tree& tree, Noise& noise, const Sampling& sampling, int64_t index, int node) {
  const float* const row = sampling.temperature > 0 ? noise.row(index + tree.depth[node]) : nullptr;
  return pick(target.logits(node), row, target.vocab_size(), sampling);
}

// The rule's verdict on the tree. noise: the target's.
template <class Target>
Verdict verify(Target& target, Drafter* drafter, const Growth& growth, const Tree& tree, const Decoding& decoding,
               Noise& noise, int64_t index) {
  const auto pick_next = [&](int node) { return pick_after(target, tree, noise, decoding.sampling, index, node); };
  if (decoding.rule == Rule::kMatch || tree.size() == 1) return match(tree, pick_next);
  PassOracle<Target, decltype(pick_next)> oracle = {target, drafter, growth, tree, decoding, index, pick_next, {}, {}};
  return judge(decoding.rule, tree, oracle);
}

// ---------------------------------------------------------------------------------------------------------------
// Targets that run whole passes by themselves

template <class Target, class = void>
struct Iterates : std::false_type {};
template <class Target>
struct Iterates<Target, std::void_t<decltype(&Target::iterates)>> : std::true_type {};

template <class Target>
bool iterates(const Target& target) {
  if constexpr (Iterates<Target>::value) return target.iterates();
  else return false;
}
template <class Target>
Verdict iterate(Target& target, const Tree& tree, const Sampling& sampling, int64_t index) {
  if constexpr (Iterates<Target>::value) return target.iterate(tree, sampling, index);
  else throw std::logic_error("this target runs no whole passes");
}

// A full tree that the target drafts itself: `drafted` gives what it drafted, in the order in which grow() asks.
template <class Target>
Verdict iterate_drafting(Target& target, int root, int depth, int width, const Sampling& sampling, int64_t index,
                         std::vector<Candidate>& drafted) {
  if constexpr (Iterates<Target>::value)
    return target.iterate_drafting(root, depth, width, sharpness(sampling, sampling.temperature > 0), sampling, index,
                                   drafted);
  else throw std::logic_error("this target drafts no trees");
}

// Whether the target can draft this drafter's trees itself: the same trees, with the same chances.
template <class Target>
bool drafts_itself(Target& target, const Drafter* drafter, const Decoding& decoding) {
  const Shape& shape = decoding.shape;
  if (!iterates(target) || !drafter || decoding.rule != Rule::kMatch || !shape.full() || !decoding.knows_noise)
    return false;
  if constexpr (Iterates<Target>::value) return target.hold(drafter->table(), shape.depth, shape.width);
  else return false;
}

// ---------------------------------------------------------------------------------------------------------------
// The loop

// Tells the drafter what a pass committed. whole: the target ran it by itself, and has left no logits here.
template <class Target>
void tell(Target& target, Drafter& drafter, const Tree& tree, const Verdict& verdict, bool whole) {
  std::vector<const float*> hidden, logits, features;
  if (drafter.wants_hidden())
    for (int row : verdict.rows) hidden.push_back(target.hidden(row));
  if (drafter.wants_features())
    for (int row : verdict.rows) features.push_back(target.features(row));
  if (drafter.wants_logits() && !whole)
    for (int row = 0; row < tree.size(); row++) logits.push_back(target.logits(row));
  drafter.committed({verdict.tokens.data(), verdict.rows.data(), int(verdict.rows.size()), tree,
                     hidden.empty() ? nullptr : hidden.data(), logits.empty() ? nullptr : logits.data(),
                     features.empty() ? nullptr : features.data()});
}

// Learns from what drafting took, in seconds: the root's expansion, which may hold a pass of the drafter's own that
// serves all others too, and that of `expanded` nodes more; of the growth that came of it. A pause of the machine
// counts as no more than a doubling.
inline void learn(Experience& experience, const Cost& cost, const Growth& growth, double root, int expanded,
                  double others) {
  double& each = experience.expand_seconds;
  if (expanded > 0) each = std::max(1e-9, each + (std::min(others / expanded, 2 * each) - each) / 4);
  const double seconds = root + others;
  double tokens = 0;  // expected
  for (float reach : growth.reach) tokens += double(reach);
  const double regret = growth.size() == 1 ? 0.01 : 0;  // a try without a node counts as one in vain
  experience.pace.tried(tokens - (cost.seconds(growth.size() - 1) + seconds) / cost.seconds(0) - regret);
}

// Learns from a verdict: the nodes under the accepted path were guessed right or wrong; of the others nothing is known.
inline void learn(Trust& trust, ReliabilityCurve& curve, const Growth& growth, const Tree& tree,
                  const Verdict& verdict) {
  for (size_t i = 0; i < verdict.rows.size(); i++) {
    int rank = 0;
    for (int c = tree.first_child(verdict.rows[i]); c >= 0; c = tree.next_sibling(c)) {
      const bool accepted = i + 1 < verdict.rows.size() && verdict.rows[i + 1] == c;
      const int origin = tree.origin[c];
      trust.observe({tree.token[c], growth.chance[origin], growth.raw[origin]}, rank++, accepted);
      count(curve, growth.raw[origin], growth.chance[origin], accepted);
    }
  }
  trust.learn();
}

// Appends max_new_tokens tokens to `text`, which begins as the prompt. on_token(int) is called for each as it is
// emitted; if it returns false, generation ends with that token. drafter: null for plain decoding, whose tree is always
// the root alone. watch: its lap() gives the seconds since the last one. Raises runtime_error for an empty prompt or a
// token outside the vocabulary, invalid_argument for a rule that does not fit the shape, or drafting ahead.
template <class Target, class OnToken, class Watch = Stopwatch>
Stats generate(Target& target, Drafter* drafter, const Decoding& decoding, std::vector<int>& text, OnToken on_token,
               Watch watch = {}) {
  const int vocab = target.vocab_size(), block = target.block_size();
  const Sampling& sampling = decoding.sampling;
  if (text.empty()) throw std::runtime_error("the prompt is empty: --prompt: give at least one token to start from");
  for (int token : text)
    if (token < 0 || token >= vocab)
      throw std::runtime_error("token " + std::to_string(token) + " is outside the vocabulary of " +
                               std::to_string(vocab) + ": the prompt: encode it with this model's tokenizer");
  if (drafter) check_rule(decoding.rule, decoding.shape);
  check_ahead(decoding.ahead, decoding.rule);

  // Under `match` the drafter knows the noise that the target will pick with. The other rules' proofs forbid that:
  // `rejection` wants its candidate sampled from q by other noise, `independent` and `typical` the likeliest tokens of
  // q. The others want a sample too, and look beyond what they emit: theirs is drawn afresh in each pass.
  Noise noise(sampling, vocab), other_noise(sampling, vocab, kStreamDraft);
  Draws draws = {&sampling, nullptr, 0, decoding.rule != Rule::kMatch};
  if (sampling.temperature > 0 && decoding.rule == Rule::kMatch && decoding.knows_noise) draws.noise = &noise;
  if (sampling.temperature > 0 && decoding.rule == Rule::kRejection) draws.noise = &other_noise;
  const Drafts wanted_drafts = about(decoding.rule).drafts;
  const bool drawn = wanted_drafts != Drafts::kAny && decoding.rule != Rule::kRejection;

  Stats stats;
  PassDraft draft;
  Growth& growth = draft.growth;
  Tree tree;
  Experience fresh, &experience = decoding.experience ? *decoding.experience : fresh;
  Trust& trust = experience.trust;
  const bool automatic = decoding.shape.kind == Shape::kAuto;
  const bool whole = decoding.rule == Rule::kMatch && iterates(target);
  const bool table = drafts_itself(target, drafter, decoding);
  std::vector<Candidate> drafted;

  // No node stands beyond the window's end, none is for a token that nobody wants any more.
  const int64_t end = int64_t(text.size()) + decoding.max_new_tokens;
  const auto limits_at = [&, cost = decoding.cost](int n) {
    const int64_t room = block - n + window_start(n, block);
    return Limits{int(std::min(room, end - n - 1)), cost.get(), experience.expand_seconds, experience.promise};
  };

  if (drafter && drafter->wants_features()) target.tap();
  watch.lap();
  open_window(target, text);
  if (drafter) drafter->temperature = sampling.temperature, drafter->begin(text.data(), int(text.size()));
  stats.ahead.wanted = drafter && decoding.ahead != Ahead::kOff;
  stats.ahead.able = stats.ahead.wanted && drafter->suppose(nullptr, 0);
  std::unique_ptr<DraftingAhead> ahead;  // null where there is none
  if (stats.ahead.able) {
    drafter->unsuppose();
    ahead = std::make_unique<DraftingAhead>(*drafter, decoding.shape, sampling, decoding.knows_noise, limits_at);
  }
  stats.prefill_seconds = watch.lap();

  for (bool wanted = true; wanted && stats.tokens < decoding.max_new_tokens;) {
    const int n = int(text.size());
    Limits limits = limits_at(n);
    const int deepest = limits.depth;
    const double spent = work_seconds(stats);

    // A target that drafts runs the whole pass now; the tree grows afterwards, out of what it drafted.
    const bool by_target = table && deepest > 0;
    Verdict verdict;
    double forward_seconds = 0;
    if (by_target) {
      verdict = iterate_drafting(target, text.back(), std::min(decoding.shape.depth, deepest), decoding.shape.width,
                                 sampling, n, drafted);
      forward_seconds = watch.lap();
      stats.seconds_forward += forward_seconds;
    }

    // Draft, where it was not done while the target verified the last pass.
    const bool ready = ahead && ahead->take(draft, stats.ahead);
    const bool drafts = ready || (drafter && (!automatic || experience.pace.due()));
    if (!ready) draft.start(text.back());
    double root_seconds = 0;
    if (drafts && !ready) {
      if (experience.pace.rare()) limits.expand_seconds = 0, limits.promise = 1;
      draws.index = n;
      size_t taken = 0;  // of `drafted`
      draft_tree(*drafter, decoding.shape, limits, draws, trust, experience.promise, draft,
                 [&](const int* nodes, int count, int width, Candidate* candidates, int* found) {
                   if (by_target) {
                     std::copy_n(drafted.begin() + long(taken), size_t(count) * width, candidates);
                     std::fill_n(found, count, width), taken += size_t(count) * width;
                     return;
                   }
                   drafter->expand(growth, nodes, count, width, draws, candidates, found);
                   if (drawn)
                     draw_candidates(*drafter, growth, nodes, count, width, draws,
                                     wanted_drafts == Drafts::kWithReplacement, candidates, found);
                   if (draft.expanded == 0) root_seconds = watch.lap();
                 });
    }
    flatten(growth, tree);
    const double other_seconds = watch.lap(), draft_seconds = root_seconds + other_seconds;
    if (drafts && automatic)
      learn(experience, *decoding.cost, growth, root_seconds, ready ? 0 : draft.expanded - 1, other_seconds);
    stats.seconds_draft += draft_seconds;
    stats.drafted_nodes += tree.size() - 1;

    // What may come of this pass is drafted for from here to the verdict.
    const bool at_work = ahead && due(decoding.ahead, experience.duel, stats.target_forwards);
    if (at_work) ahead->start(growth, tree, trust, experience.promise, n);
    stats.seconds_draft += watch.lap();

    // One forward of the target over the root and all nodes; a whole pass includes what follows, up to the cache.
    stats.target_forwards++;
    if (!by_target) {
      if (whole) verdict = iterate(target, tree, sampling, n);
      else target.forward(tree.token.data(), tree.depth.data(), tree.end.data(), tree.size());
      forward_seconds = watch.lap();
      stats.seconds_forward += forward_seconds;
    }

    // Verify: the accepted path and the target's own token after it are emitted.
    if (!whole) verdict = verify(target, drafter, growth, tree, decoding, noise, n);
    const double verify_seconds = watch.lap();
    stats.seconds_verify += verify_seconds;

    // Learn from it; no longer does the worker read any of this.
    if (at_work) ahead->finish(verdict.tokens, stats.ahead);
    if (ahead) count_forward(stats.ahead, at_work, forward_seconds);
    if (decoding.cost && !by_target) decoding.cost->observe(tree.size() - 1, forward_seconds);
    const bool right = verdict.tokens[0] == draft.guess.token;
    if (draft.guess.token >= 0 && tree.size() == 1) trust.observe(draft.guess, 0, right);
    if (automatic && right) experience.pace.was_right();
    if (drafts) learn(trust, stats.reliability, growth, tree, verdict);
    stats.seconds_draft += watch.lap();
    int emitted = 0;
    while (wanted && emitted < int(verdict.tokens.size())) {
      text.push_back(verdict.tokens[emitted++]);
      wanted = on_token(text.back());
    }
    stats.tokens += emitted;
    for (int i = 0; i < emitted && i + 1 < int(verdict.rows.size()); i++)
      stats.accepted_by[drafter->author(tree.origin[verdict.rows[i]], verdict.tokens[i])]++;
    if (size_t(emitted) >= stats.accept_histogram.size()) stats.accept_histogram.resize(emitted + 1, 0);
    stats.accept_histogram[emitted]++;
    if (decoding.on_pass) {
      PassReport report = {n,    target.past(), deepest, drafts,  drafter,       draws,           growth,
                           tree, verdict,       emitted, nullptr, draft_seconds, forward_seconds, verify_seconds};
      if (!whole) report.pick = [&](int node) { return pick_after(target, tree, noise, sampling, n, node); };
      else report.past -= int(verdict.rows.size());  // which the target has kept already
      decoding.on_pass(report);
    }
    watch.lap();  // on_token's and on_pass's own time is nobody's
    if (!wanted || stats.tokens == decoding.max_new_tokens) break;

    // Tell the drafter, while the target still holds this pass's hidden states.
    if (drafter) {
      tell(target, *drafter, tree, verdict, whole);
      stats.seconds_draft += watch.lap();
    }

    // Keep the path's rows and forget the others; or, where the window moves, cache the new one.
    if (window_start(int(text.size()), block) == window_start(n, block)) {
      if (!whole) target.keep(verdict.rows.data(), int(verdict.rows.size()));
      stats.seconds_keep += watch.lap();
    } else {
      open_window(target, text);
      stats.slide_prefills++;
      stats.seconds_slide += watch.lap();
    }
    if (decoding.ahead == Ahead::kAuto && ahead) experience.duel.passed(at_work, work_seconds(stats) - spent, emitted);
  }
  if (ahead && decoding.ahead == Ahead::kAuto) stats.ahead.gain = experience.duel.gain();
  stats.seconds = work_seconds(stats) + stats.seconds_slide;
  return stats;
}

// ---------------------------------------------------------------------------------------------------------------
// The cost of a forward

// Seconds of a target forward of N + 1 rows, N = 0 .. budget, for Cost to start from (of a whole pass, where the target
// runs those): medians at every N up to 16 and at growing steps after that, straight lines between them. Takes about
// `seconds` where a forward takes but a few hundredths of that; of a slower model only the first sizes are measured,
// and those that find no time, like those beyond the window, follow the lines of the others. On a short past, for a
// long one would take its time too, and the forwards to come tell what it costs. Forgets the target's cache.
template <class Target, class Watch = Stopwatch>
std::vector<double> measure_cost(Target& target, int budget, double seconds = 0.15, Watch watch = {}) {
  constexpr int kPast = 32, kRounds = 9;
  const int block = target.block_size(), past = std::min({kPast, block * 3 / 4, block - 2});
  const int most = std::min(budget, block - 1);
  std::vector<int> sizes = {0, std::min(7, most), 15, 3, 1, 31, 5, 2, 11, 4, most, 6, 8, 9, 10, 12, 13, 14, 16};
  for (int n = 20; n < most; n += n / 4) sizes.push_back(n);  // by their worth
  std::vector<std::vector<double>> times(most + 1);
  double spent = 0;
  const std::vector<int> zeros(past, 0);
  const auto measure = [&](int n) {  // n children of one root: each sees as much as a node anywhere in a tree
    Tree tree;
    tree.token.assign(n + 1, 0), tree.depth.assign(n + 1, 1);
    for (int i = 0; i <= n; i++) tree.end.push_back(i + 1);
    tree.depth[0] = 0, tree.end[0] = n + 1;
    watch.lap();
    if (iterates(target)) {  // the first two passes of a size may prepare what the others profit from
      for (int pass = times[n].empty() ? 0 : 2; pass < 3; pass++) {
        if (target.past() > std::min(past + kPast, block - 2)) target.prefill(zeros.data(), past);
        spent += watch.lap();
        iterate(target, tree, Sampling(), 0);
      }
    } else {
      target.forward(tree.token.data(), tree.depth.data(), tree.end.data(), tree.size());
    }
    times[n].push_back(watch.lap());
    spent += times[n].back();
  };
  watch.lap();
  target.prefill(zeros.data(), past);
  spent += watch.lap();
  measure(0), times[0].clear();  // warms up
  for (int round = 0; round < kRounds; round++)
    for (size_t k = 0; k < sizes.size(); k++)
      if (sizes[k] <= most && (spent < seconds || (round == 0 && k < 2))) measure(sizes[k]);

  std::vector<double> cost(budget + 1, 0);
  int last = -1;  // the last size measured
  double slope = 0;
  for (int n = 0; n <= budget; n++) {
    if (n > most || times[n].empty()) continue;
    std::nth_element(times[n].begin(), times[n].begin() + times[n].size() / 2, times[n].end());
    cost[n] = times[n][times[n].size() / 2];
    if (last >= 0) slope = std::max(0.0, (cost[n] - cost[last]) / (n - last));
    for (int between = last + 1; last >= 0 && between < n; between++)
      cost[between] = cost[last] + (cost[n] - cost[last]) * (between - last) / (n - last);
    last = n;
  }
  for (int n = last + 1; n <= budget; n++) cost[n] = cost[n - 1] + slope;
  return cost;
}

}  // namespace nanospec
