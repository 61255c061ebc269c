// growth/ahead.h: drafting while the target verifies (speculative speculative decoding, Kumar, Dao, May 2026).
//
// In order: one pass's draft; what is counted; when, and under which rule; the worker: what may come of a pass, a tree
// for each such outcome, and the cache of these trees. A pass comes out as a node of its tree and the target's own
// token after it, and with the noise known the drafter can often tell both. So a thread of its own drafts the trees of
// the next pass for the likeliest outcomes while the target is busy with this one: where the guess was right, the next
// tree is there at once. Under rule `match` any tree gives the same text, so nothing that happens here can change it.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "commands/words.h"
#include "draft.h"
#include "growth/grow.h"
#include "growth/trust.h"
#include "machine/threads.h"
#include "rules/verify.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// One pass's draft

struct PassDraft {
  Growth growth;
  Candidate guess = {-1, 0};  // the drafter's best, also where it is not worth a node
  int expanded = 0;           // nodes that the drafter was asked about

  void start(int root) { growth.start(root), guess = {-1, 0}, expanded = 0; }
};

// Grows a started draft. ask: as grow() asks. promise: the smoothed chance of a node's best child, kept current.
template <class Ask>
void draft_tree(Drafter& drafter, const Shape& shape, Limits limits, const Draws& draws, const Trust& trust,
                float& promise, PassDraft& draft, Ask&& ask) {
  Growth& growth = draft.growth;
  if (shape.by_entropy())
    limits.entropy = [&](const int* nodes, int n, float* H) {
      drafter.entropies(growth, nodes, n, draws, shape.of_confidence, H);
    };
  grow(shape, limits, growth, [&](const int* nodes, int n, int width, Candidate* candidates, int* count) {
    ask(nodes, n, width, candidates, count);
    for (int k = 0; k < n; k++) {
      Candidate* const best = candidates + size_t(k) * width;
      trust.correct(best, count[k]);
      if (count[k] > 0) promise += (best->chance - promise) / 64;
      if (count[k] > 0 && nodes[k] == 0) draft.guess = *best;
    }
    draft.expanded += n;
  });
}

// ---------------------------------------------------------------------------------------------------------------
// What is counted

enum class Ahead { kOff, kOn, kAuto };  // auto: where it pays, by Duel (trust.h)

// Reads off, on or auto. Raises invalid_argument.
inline Ahead parse_ahead(const std::string& word) {
  const std::vector<std::string> known = {"off", "on", "auto"};
  const auto at = std::find(known.begin(), known.end(), word);
  if (at == known.end()) refuse_word("way of drafting ahead", word, "--ahead", closest_word(word, known), known);
  return Ahead(at - known.begin());
}

struct AheadStats {
  bool wanted = false, able = false;   // whether it was asked for, and the drafter can
  double gain = 0;                     // auto: the speed with it over that without; 0: not known
  int64_t passes = 0;                  // of the target with the worker at work
  int64_t outcomes = 0, cut = 0;       // trees drafted ahead; others, which the verdict cut short
  int64_t hits = 0, misses = 0;        // next passes whose tree was there, or was not
  double seconds_saved = 0;            // that the trees of hits took the worker
  double seconds_waited = 0;           // for the worker, after the verdict
  double forward_seconds = 0;          // of those passes
  int64_t passes_without = 0;          // with the worker at rest
  double forward_seconds_without = 0;  // of these

  double hit_rate() const { return hits + misses > 0 ? double(hits) / double(hits + misses) : 0; }
  double fan_out() const { return passes > 0 ? double(outcomes) / double(passes) : 0; }  // trees a pass
  // How many times as long a forward takes while the worker drafts; 0: not known.
  double contention() const {
    if (passes == 0 || passes_without == 0 || !(forward_seconds_without > 0)) return 0;
    return forward_seconds / double(passes) / (forward_seconds_without / double(passes_without));
  }
};

inline void count_forward(AheadStats& stats, bool at_work, double seconds) {
  if (at_work) stats.forward_seconds += seconds;
  else stats.passes_without++, stats.forward_seconds_without += seconds;
}

inline void add(AheadStats& sum, const AheadStats& part) {
  sum.wanted |= part.wanted, sum.able |= part.able, sum.gain = part.gain;
  sum.passes += part.passes, sum.outcomes += part.outcomes, sum.cut += part.cut;
  sum.hits += part.hits, sum.misses += part.misses;
  sum.seconds_saved += part.seconds_saved, sum.seconds_waited += part.seconds_waited;
  sum.forward_seconds += part.forward_seconds, sum.passes_without += part.passes_without;
  sum.forward_seconds_without += part.forward_seconds_without;
}

// ---------------------------------------------------------------------------------------------------------------
// When, and under which rule

// Whether this pass is to have the worker at work, the pass-th of a text.
inline bool due(Ahead ahead, const Duel& duel, int64_t pass) {
  constexpr int64_t kRest = 32;  // one in so many goes without, so that the contention is known
  return ahead == Ahead::kAuto ? duel.with() : pass % kRest != kRest - 1;
}

// Throws invalid_argument where the rule does not allow it: under the others the text would depend on who was faster.
inline void check_ahead(Ahead ahead, Rule rule) {
  if (ahead != Ahead::kOff && rule != Rule::kMatch)
    throw std::invalid_argument(std::string("only rule match drafts while the target verifies, not ") +
                                about(rule).word + ": --ahead: leave it out, or choose --verify match");
}

// ---------------------------------------------------------------------------------------------------------------
// The worker

// A thread that lives as long as this object. Between start() and finish() the drafter, the draft, the tree and all
// that `limits_at` reads are the worker's, and nobody may write to them; else they are the caller's, and it is idle.
class DraftingAhead {
 public:
  // limits_at(n): what a tree must heed under a text of n tokens; a depth below 1 where there is nothing to draft.
  DraftingAhead(Drafter& drafter, const Shape& shape, const Sampling& sampling, bool knows_noise,
                std::function<Limits(int n)> limits_at)
      : drafter_(drafter),
        shape_(shape),
        sampling_(sampling),
        knows_noise_(knows_noise),
        limits_at_(std::move(limits_at)),
        noise_(sampling, drafter.vocab),
        worker_([this, home = current_cpu()] {
          leave_home(1, home);
          give_way();
          for (unsigned round = 0; !ends_;) {
            asked_.wait_beyond(round);
            round = asked_.value();
            Order order = kAsked;
            if (!order_.compare_exchange_strong(order, kBegun)) continue;  // withdrawn before it was seen
            try {
              work();
            } catch (...) { error_ = std::current_exception(); }
            done_.raise();
          }
        }) {}
  DraftingAhead(const DraftingAhead&) = delete;
  DraftingAhead& operator=(const DraftingAhead&) = delete;
  ~DraftingAhead() {
    if (at_work_) halt({});
    ends_ = true;
    asked_.raise();
    worker_.join();
  }

  // The target begins to verify `tree`, which came of `growth` and stands at the end of a text of n tokens.
  void start(const Growth& growth, const Tree& tree, const Trust& trust, float promise, int n) {
    growth_ = &growth, tree_ = &tree, trust_ = trust, promise_ = promise, n_ = n;
    cache_.clear(), cut_ = 0;
    stop_.store(false, std::memory_order_relaxed);
    at_work_ = true;
    order_.store(kAsked);
    asked_.raise();
  }
  bool at_work() const { return at_work_; }

  // The verdict: the pass has committed these tokens. Stops the worker, but for the very tree that is now wanted, if
  // that is under way. Throws what the drafter threw.
  void finish(const std::vector<int>& tokens, AheadStats& stats) {
    const auto before = std::chrono::steady_clock::now();
    halt(tokens);
    stats.seconds_waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    stats.passes++, stats.outcomes += int64_t(cache_.size()), stats.cut += cut_;
    const auto at = cache_.find(tokens);
    found_ = at == cache_.end() ? nullptr : &at->second;
    awaited_ = true;
  }

  // The tree for the pass after the finished one, if it was drafted: once.
  bool take(PassDraft& draft, AheadStats& stats) {
    if (!std::exchange(awaited_, false)) return false;
    Ready* const ready = std::exchange(found_, nullptr);
    if (!ready) return stats.misses++, false;  // also where there was no room for a tree
    std::swap(draft, ready->draft);
    stats.hits++, stats.seconds_saved += ready->seconds;
    return true;
  }

 private:
  static constexpr int kFan = 3;               // tokens after a node that are no children of it, and how many outcomes
  static constexpr size_t kMostOutcomes = 64;  // of a pass are drafted for, none less likely than
  static constexpr float kLeastChance = 1.0f / 256;

  struct Outcome {
    int node, token;  // accepted, of the tree; the target's own after it
    float chance;
  };
  struct Ready {
    PassDraft draft;
    double seconds;
  };
  using Key = std::vector<int>;  // the tokens that an outcome commits

  void halt(const Key& tokens) {
    came_ = tokens;
    stop_.store(true, std::memory_order_release);
    Order order = kAsked;  // a worker that has found no core yet is not waited for
    if (!order_.compare_exchange_strong(order, kWithdrawn)) done_.wait_beyond(rounds_++);
    at_work_ = false;
  }
  // Whether the tree for this outcome is wanted no more.
  bool halted(const Key& key) const { return stop_.load(std::memory_order_acquire) && came_ != key; }

  Draws draws_at(int n) {
    return {&sampling_, knows_noise_ && sampling_.temperature > 0 ? &noise_ : nullptr, n, false};
  }

  void work() {
    struct Back {
      Drafter& drafter;
      ~Back() { drafter.unsuppose(); }
    } back{drafter_};
    drafter_.suppose(nullptr, 0);
    for (const Outcome& outcome : outcomes()) {
      Key key;
      for (int node = outcome.node; node > 0; node = tree_->parent[node]) key.push_back(tree_->token[node]);
      std::reverse(key.begin(), key.end());
      key.push_back(outcome.token);
      if (stop_.load(std::memory_order_acquire)) return;
      const Limits limits = limits_at_(n_ + int(key.size()));
      if (limits.depth > 0) draft(key, limits);
    }
  }

  // What may come of the pass, the likeliest first. reach: the chance that the walk comes to a node; a candidate's
  // chance is that the target chooses it there, whatever the children are. So for one that is no child their product is
  // the chance that the walk ends there, with this token.
  std::vector<Outcome> outcomes() {
    const Tree& tree = *tree_;
    std::vector<int> order(size_t(tree.size())), children(order.size(), 0), nodes, count(order.size());
    for (int i = 0; i < tree.size(); i++) order[i] = i;
    for (int i = 1; i < tree.size(); i++) children[tree.parent[i]]++;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return tree.depth[a] < tree.depth[b]; });
    for (int i : order) nodes.push_back(tree.origin[i]);
    const int width = std::min(drafter_.vocab, *std::max_element(children.begin(), children.end()) + kFan);
    std::vector<Candidate> candidates(nodes.size() * size_t(width));
    drafter_.expand(*growth_, nodes.data(), int(nodes.size()), width, draws_at(n_), candidates.data(), count.data());

    std::vector<Outcome> all;
    for (size_t k = 0; k < order.size(); k++) {
      Candidate* const best = &candidates[k * size_t(width)];
      trust_.correct(best, count[k]);
      for (int rank = 0; rank < count[k]; rank++) {
        const float chance = growth_->reach[nodes[k]] * best[rank].chance;
        if (chance >= kLeastChance && tree.child(order[k], best[rank].token) < 0)
          all.push_back({order[k], best[rank].token, chance});
      }
    }
    std::stable_sort(all.begin(), all.end(), [](const Outcome& a, const Outcome& b) { return a.chance > b.chance; });
    if (all.size() > kMostOutcomes) all.resize(kMostOutcomes);
    return all;
  }

  // The tree of the next pass, if this one commits these tokens.
  void draft(const Key& key, const Limits& limits) {
    const auto before = std::chrono::steady_clock::now();
    if (!drafter_.suppose(key.data(), int(key.size()))) return;
    const Draws draws = draws_at(n_ + int(key.size()));
    Ready ready;
    ready.draft.start(key.back());
    bool cut = false;
    draft_tree(drafter_, shape_, limits, draws, trust_, promise_, ready.draft,
               [&](const int* nodes, int n, int width, Candidate* candidates, int* count) {
                 cut = cut || halted(key);
                 if (cut) std::fill_n(count, n, 0);
                 else drafter_.expand(ready.draft.growth, nodes, n, width, draws, candidates, count);
               });
    cut_ += cut;
    ready.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
    if (!cut) cache_.emplace(key, std::move(ready));
  }

  Drafter& drafter_;
  const Shape shape_;
  const Sampling sampling_;
  const bool knows_noise_;
  const std::function<Limits(int)> limits_at_;
  Noise noise_;  // its own rows

  // The pass at hand.
  const Growth* growth_ = nullptr;
  const Tree* tree_ = nullptr;
  Trust trust_;
  float promise_ = 0;
  int n_ = 0;
  std::map<Key, Ready> cache_;
  int64_t cut_ = 0;
  std::exception_ptr error_;

  // Of the two threads.
  enum Order { kWithdrawn, kAsked, kBegun };
  std::atomic<Order> order_{kWithdrawn};
  Signal asked_, done_;            // raised for each order; for each that was begun
  unsigned rounds_ = 0;            // orders done
  std::atomic<bool> stop_{false};  // set after came_
  Key came_;                       // what the pass committed
  std::atomic<bool> ends_{false};  // set before asked_ is raised for the last time
  bool at_work_ = false, awaited_ = false;
  Ready* found_ = nullptr;  // in the cache
  std::thread worker_;      // the last member: it begins when all others are there
};

}  // namespace nanospec
