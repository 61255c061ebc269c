// growth/ahead.h: drafting while the target verifies (speculative speculative decoding, Kumar, Dao, May 2026).
//
// In order: what is counted; when; the worker: what may come of a forward, a tree for each such outcome, and the cache
// of these trees; the planner that takes them. A forward comes out as a node of its tree and the target's own
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

#include "files/words.h"
#include "growth/plan.h"
#include "machine/threads.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// What is counted

enum class Ahead { kOff, kOn, kAuto };  // auto: where it pays, by Duel (trust.h)

// Reads off, on or auto. Throws invalid_argument.
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
// When

// Whether this pass is to have the worker at work, the pass-th of a text.
inline bool due(Ahead ahead, const Duel& duel, int64_t pass) {
  constexpr int64_t kRest = 32;  // one in so many goes without, so that the contention is known
  return ahead == Ahead::kAuto ? duel.with() : pass % kRest != kRest - 1;
}

// ---------------------------------------------------------------------------------------------------------------
// The worker

// A thread that lives as long as this object. Between start() and finish() the drafter, the draft, the tree and all
// that `limits_at` reads are the worker's, and nobody may write to them; else they are the caller's, and it is idle.
class DraftingAhead {
 public:
  // drafter: one that supposes. limits_at(n): of a tree under a text of n tokens; a depth below 1 where there is
  // nothing to draft.
  DraftingAhead(LogitsDrafter& drafter, const Shape& shape, const Sampling& sampling, bool knows_noise,
                std::function<Limits(int n)> limits_at)
      : drafter_(drafter),
        assumes_(dynamic_cast<DraftsAhead&>(drafter)),
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
    growth_ = growth, tree_ = tree, trust_ = trust, promise_ = promise, n_ = n;
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
  bool take(Growth& growth, Questions& asked, AheadStats& stats) {
    if (!std::exchange(awaited_, false)) return false;
    Ready* const ready = std::exchange(found_, nullptr);
    if (!ready) return stats.misses++, false;  // also where there was no room for a tree
    std::swap(growth, ready->growth), asked = ready->asked;
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
    Growth growth;
    Questions asked;
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
      DraftsAhead& drafter;
      ~Back() { drafter.rollback(); }
    } back{assumes_};
    assumes_.assume(nullptr, 0);
    for (const Outcome& outcome : outcomes()) {
      Key key;
      for (int node = outcome.node; node > 0; node = tree_.parent[node]) key.push_back(tree_.token[node]);
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
    const Tree& tree = tree_;
    std::vector<int> order(size_t(tree.size())), children(order.size(), 0), nodes, count(order.size());
    for (int i = 0; i < tree.size(); i++) order[i] = i;
    for (int i = 1; i < tree.size(); i++) children[tree.parent[i]]++;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return tree.depth[a] < tree.depth[b]; });
    for (int i : order) nodes.push_back(tree.origin[i]);
    const int width = std::min(drafter_.vocab, *std::max_element(children.begin(), children.end()) + kFan);
    std::vector<Candidate> candidates(nodes.size() * size_t(width));
    drafter_.expand(growth_, nodes.data(), int(nodes.size()), width, draws_at(n_), candidates.data(), count.data());

    std::vector<Outcome> all;
    for (size_t k = 0; k < order.size(); k++) {
      Candidate* const best = &candidates[k * size_t(width)];
      trust_.correct(best, count[k]);
      for (int rank = 0; rank < count[k]; rank++) {
        const float chance = growth_.reach[nodes[k]] * best[rank].chance;
        if (chance >= kLeastChance && tree.child(order[k], best[rank].token) < 0)
          all.push_back({order[k], best[rank].token, chance});
      }
    }
    std::stable_sort(all.begin(), all.end(), [](const Outcome& a, const Outcome& b) { return a.chance > b.chance; });
    if (all.size() > kMostOutcomes) all.resize(kMostOutcomes);
    return all;
  }

  // Any drafter until its tree is not wanted any more: then it has no candidates.
  struct Haltable : Drafter {
    DraftingAhead& of;
    const Key& key;
    bool cut = false;
    Haltable(DraftingAhead& worker, const Key& tokens) : of(worker), key(tokens) {}
    void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
                int* count) override {
      cut = cut || of.halted(key);
      if (cut) std::fill_n(count, n, 0);
      else of.drafter_.expand(growth, nodes, n, width, draws, candidates, count);
    }
  };

  // The tree of the next forward, if this one commits these tokens.
  void draft(const Key& key, const Limits& limits) {
    const auto before = std::chrono::steady_clock::now();
    if (!assumes_.assume(key.data(), int(key.size()))) return;
    Ready ready;
    ready.growth.start(key.back());
    Haltable haltable(*this, key);
    Corrected corrected(haltable, trust_, promise_);
    grow_shape(shape_, limits, corrected, &drafter_, draws_at(n_ + int(key.size())), ready.growth);
    ready.asked = corrected.asked;
    cut_ += haltable.cut;
    ready.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
    if (!haltable.cut) cache_.emplace(key, std::move(ready));
  }

  LogitsDrafter& drafter_;
  DraftsAhead& assumes_;
  const Shape shape_;
  const Sampling sampling_;
  const bool knows_noise_;
  const std::function<Limits(int)> limits_at_;
  Noise noise_;  // its own rows

  // The pass at hand.
  Growth growth_;  // its own copies: whoever decodes may end by an exception
  Tree tree_;
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

// ---------------------------------------------------------------------------------------------------------------
// The planner

// Plans as another does, with the trees that were drafted ahead where there are any. worked(): seconds of decoding so
// far, all but prefills.
class AheadPlanner : public Planner, public Watcher {
 public:
  AheadStats stats;

  // room(n): how deep a tree may be under a text of n tokens.
  AheadPlanner(ShapePlanner& plan, LogitsDrafter& drafter, Ahead when, const Sampling& sampling, bool knows_noise,
               Clock& clock, std::function<int(int n)> room, std::function<double()> worked)
      : plan_(plan), drafter_(drafter), when_(when), clock_(clock), worked_(std::move(worked)) {
    make_worker_ = [this, sampling, knows_noise, room] {
      worker_ = std::make_unique<DraftingAhead>(drafter_, plan_.shape(), sampling, knows_noise,
                                                [this, room](int n) { return plan_.limits(room(n)); });
    };
    stats.wanted = true;
  }

  void grow(Drafter& drafter, const Draws& draws, int room, Growth& growth) override {
    Questions asked;
    index_ = int(draws.index);
    if (worker_ && worker_->take(growth, asked, stats)) plan_.take(asked);
    else plan_.grow(drafter, draws, room, growth);
  }
  void ready() override {
    DraftsAhead* const can_assume = dynamic_cast<DraftsAhead*>(&drafter_);
    if (!begun_ && can_assume && can_assume->assume(nullptr, 0)) {  // a text begins
      can_assume->rollback();
      stats.able = true, make_worker_();
    } else if (begun_ && stats.able && when_ == Ahead::kAuto) {
      plan_.experience().duel.passed(at_work_, worked_() - spent_, emitted_);
    }
    begun_ = true, spent_ = worked_();
  }
  // What may come of this forward is drafted for from here to the verdict.
  void drafted(const Growth& growth, const Tree& tree) override {
    plan_.drafted(growth, tree);
    const Experience& experience = plan_.experience();
    at_work_ = worker_ && due(when_, experience.duel, forwards_++);
    if (at_work_) worker_->start(growth, tree, experience.trust, experience.promise, index_);
    forward_began_ = clock_.now();
  }
  void forwarded(const Tree&) override { forward_seconds_ = clock_.now() - forward_began_; }
  void verified(const Growth& growth, const Tree& tree, const Verdict& verdict, int emitted) override {
    if (at_work_) worker_->finish(verdict.tokens, stats);
    if (worker_) count_forward(stats, at_work_, forward_seconds_);
    plan_.observe(tree, forward_seconds_);  // not earlier: the worker reads the costs
    plan_.verified(growth, tree, verdict, emitted);
    emitted_ = emitted;
    if (worker_ && when_ == Ahead::kAuto) stats.gain = plan_.experience().duel.gain();
  }

 private:
  ShapePlanner& plan_;
  LogitsDrafter& drafter_;
  const Ahead when_;
  Clock& clock_;
  const std::function<double()> worked_;
  std::function<void()> make_worker_;
  std::unique_ptr<DraftingAhead> worker_;  // null where there is none
  bool begun_ = false, at_work_ = false;
  int index_ = 0, emitted_ = 0;
  int64_t forwards_ = 0;
  double spent_ = 0, forward_began_ = 0, forward_seconds_ = 0;
};

}  // namespace nanospec
