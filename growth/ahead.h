// growth/ahead.h: drafting while the target verifies (speculative speculative decoding, Kumar, Dao, May 2026).
//
// In order: the worker, which drafts a tree for each likely outcome of a forward, and caches these trees; the planner
// that takes them. The outcome of a forward is the last accepted node of its tree, and the bonus token. A drafter that
// knows the noise can often predict both. So while the target runs, another thread drafts the next trees for the
// likeliest outcomes. If one of them comes true, the next tree is there at once. Under rule `match` any tree gives the
// same text, so nothing here can change it.
#pragma once

#include <exception>
#include <map>

#include "growth/ahead_stats.h"
#include "growth/plan.h"
#include "machine/threads.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The worker

// A thread that lives as long as this object. Between start() and finish() the worker uses the drafter, the growth, the
// tree and all that `limits_at` reads, and no other thread may write to them. At other times it is idle.
class DraftingAhead {
 public:
  // drafter: one that can assume() tokens. limits_at(n): the limits of a tree after a text of n tokens; a depth below 1
  // where there is nothing to draft.
  DraftingAhead(Drafter& drafter, const Shape& shape, const Sampling& sampling, bool knows_noise,
                std::function<Limits(int n)> limits_at)
      : drafter_(drafter),
        shape_(shape),
        sampling_(sampling),
        knows_noise_(knows_noise),
        limits_at_(std::move(limits_at)),
        worker_([this, first_cpu = sched_getcpu()] {
          move_to_cpu(1, first_cpu);
          never_preempt();
          for (unsigned round = 0; !ends_;) {
            asked_.wait_beyond(round);
            round = asked_.value();
            Order order = kAsked;
            if (!order_.compare_exchange_strong(order, kBegun)) continue;  // withdrawn before the worker saw it
            try {
              work();
            } catch (...) { error_ = std::current_exception(); }
            assumes_.rollback();
            done_.raise();
          }
        }) {}
  ~DraftingAhead() {
    if (drafting_) stop({});
    ends_ = true;
    asked_.raise();
    worker_.join();
  }

  // The target begins to verify `tree`, which came from `growth`, after a text of n tokens.
  void start(const Growth& growth, const Tree& tree, const Trust& trust, float best_chance, int n) {
    growth_ = growth;
    tree_ = tree;
    trust_ = trust;
    best_chance_ = best_chance;
    n_ = n;
    cache_.clear();
    cut_ = 0;
    stop_.store(false, std::memory_order_relaxed);
    drafting_ = true;
    order_.store(kAsked);
    asked_.raise();
  }

  // The forward has committed these tokens. Stops the worker, unless it is drafting the tree for just these tokens:
  // then waits for it. Throws what the drafter threw.
  void finish(const std::vector<int>& tokens, AheadStats& stats) {
    Stopwatch watch;
    stop(tokens);
    stats.seconds_waited += watch.lap();
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    stats.forwards++;
    stats.outcomes += int64_t(cache_.size());
    stats.cut += cut_;
    finished_ = true;
  }

  // Gives the tree of the next iteration, if it was drafted ahead. Called once after finish().
  bool take(Growth& growth, Questions& asked, AheadStats& stats) {
    if (!std::exchange(finished_, false)) return false;
    const auto at = cache_.find(committed_);
    if (at == cache_.end()) {
      stats.misses++;  // also where there was no room for a tree
      return false;
    }
    std::swap(growth, at->second.growth);
    asked = at->second.asked;
    stats.hits++;
    stats.seconds_saved += at->second.seconds;
    return true;
  }

 private:
  static constexpr int kFan = 3;                     // tokens tried after a node, beside its children
  static constexpr size_t kMostOutcomes = 64;        // of one forward
  static constexpr float kLeastChance = 1.0f / 256;  // of an outcome

  struct Outcome {
    int node, token;  // the last accepted node; the bonus token
    float chance;
  };
  struct Ready {
    Growth growth;
    Questions asked;
    double seconds;
  };
  using Key = std::vector<int>;  // the tokens that the outcome commits

  void stop(const Key& tokens) {
    committed_ = tokens;
    stop_.store(true, std::memory_order_release);
    Order order = kAsked;  // a worker that has not begun, for want of a free core, is not waited for
    if (!order_.compare_exchange_strong(order, kWithdrawn)) done_.wait_beyond(rounds_++);
    drafting_ = false;
  }
  // Whether the tree for this outcome is not needed any more.
  bool stopped(const Key& key) const { return stop_.load(std::memory_order_acquire) && committed_ != key; }

  Draws draws_at(int n) {
    return {&sampling_, knows_noise_ && sampling_.temperature > 0 ? &noise_ : nullptr, n, false};
  }

  void work() {
    assumes_.assume(nullptr, 0);
    for (const Outcome& outcome : outcomes()) {
      Key key(1, outcome.token);
      for (int node = outcome.node; node > 0; node = tree_.parent[node]) key.insert(key.begin(), tree_.token[node]);
      if (stop_.load(std::memory_order_acquire)) return;
      const Limits limits = limits_at_(n_ + int(key.size()));
      if (limits.depth > 0) draft(key, limits);
    }
  }

  // The likeliest outcomes of the forward, best first. A node's reach is the chance that it is accepted; a candidate's
  // chance is that the target picks it there. So for a candidate that is no child, their product is the chance that the
  // walk ends at the node, with the candidate as bonus token.
  std::vector<Outcome> outcomes() {
    const Tree& tree = tree_;
    std::vector<int> order = numbers_to(tree.size()), children(order.size(), 0), nodes, count(order.size());
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

  // The drafter, until its tree is not needed any more: then it has no candidates.
  struct Stoppable : StandIn {
    DraftingAhead& worker;
    const Key& key;
    bool cut = false;
    Stoppable(DraftingAhead& its, const Key& tokens) : StandIn(its.drafter_), worker(its), key(tokens) {}
    void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
                int* count) override {
      cut = cut || worker.stopped(key);
      if (cut) std::fill_n(count, n, 0);
      else drafter.expand(growth, nodes, n, width, draws, candidates, count);
    }
  };

  // Drafts the tree of the next forward, for the case that this one commits these tokens.
  void draft(const Key& key, const Limits& limits) {
    Stopwatch watch;
    if (!assumes_.assume(key.data(), int(key.size()))) return;
    Ready ready;
    ready.growth.start(key.back());
    Stoppable stoppable(*this, key);
    Corrected corrected(stoppable, trust_, best_chance_);
    grow_shape(shape_, limits, corrected, draws_at(n_ + int(key.size())), ready.growth);
    ready.asked = corrected.asked;
    cut_ += stoppable.cut;
    ready.seconds = watch.lap();
    if (!stoppable.cut) cache_.emplace(key, std::move(ready));
  }

  Drafter& drafter_;
  DraftsAhead& assumes_ = dynamic_cast<DraftsAhead&>(drafter_);
  const Shape shape_;
  const Sampling sampling_;
  const bool knows_noise_;
  const std::function<Limits(int)> limits_at_;
  Noise noise_{sampling_, drafter_.vocab};  // its own rows

  // The current forward.
  Growth growth_;  // copies: the thread that decodes may end by an exception
  Tree tree_;
  Trust trust_;
  float best_chance_ = 0;
  int n_ = 0;
  std::map<Key, Ready> cache_;
  int64_t cut_ = 0;
  std::exception_ptr error_;

  // Shared by the two threads.
  enum Order { kWithdrawn, kAsked, kBegun };
  std::atomic<Order> order_{kWithdrawn};
  Signal asked_, done_;            // asked_: for each order; done_: for each order that the worker began
  unsigned rounds_ = 0;            // orders done
  std::atomic<bool> stop_{false};  // set after committed_
  Key committed_;                  // by the forward
  std::atomic<bool> ends_{false};  // set before the last signal of asked_
  bool drafting_ = false, finished_ = false;
  std::thread worker_;  // the last member: it starts after all others are initialized
};

// ---------------------------------------------------------------------------------------------------------------
// The planner

// Takes the trees that were drafted ahead; where there is none it plans as another planner does. decoding_seconds():
// seconds of decoding so far, without prefills.
class AheadPlanner : public TreePlanner, public Watcher {
 public:
  AheadStats stats;

  // room(n): how deep a tree may be after a text of n tokens.
  AheadPlanner(ShapePlanner& plan, Drafter& drafter, Ahead when, const Sampling& sampling, bool knows_noise,
               Clock& clock, std::function<int(int n)> room, std::function<double()> decoding_seconds)
      : plan_(plan), when_(when), clock_(clock), decoding_seconds_(std::move(decoding_seconds)) {
    DraftsAhead* const can_assume = dynamic_cast<DraftsAhead*>(&drafter);
    stats.wanted = true;
    stats.able = can_assume && can_assume->assume(nullptr, 0);
    if (!stats.able) return;
    can_assume->rollback();
    worker_ = std::make_unique<DraftingAhead>(drafter, plan.shape(), sampling, knows_noise,
                                              [this, room](int n) { return plan_.limits(room(n)); });
  }

  void grow(Drafter& drafter, const Draws& draws, int room, Growth& growth) override {
    Questions asked;
    index_ = int(draws.index);
    if (worker_ && worker_->take(growth, asked, stats)) plan_.take(asked);
    else plan_.grow(drafter, draws, room, growth);
  }
  void ready() override {
    if (begun_ && worker_ && when_ == Ahead::kAuto)
      plan_.experience().ahead_test.observe(drafting_, decoding_seconds_() - spent_, emitted_);
    begun_ = true;
    spent_ = decoding_seconds_();
  }
  // From here to the verdict the worker drafts for the outcomes of this forward.
  void drafted(const Growth& growth, const Tree& tree) override {
    plan_.drafted(growth, tree);
    const Experience& experience = plan_.experience();
    constexpr int64_t kRest = 32;  // in one of so many forwards the worker rests, to measure the contention
    drafting_ = worker_ && (when_ == Ahead::kAuto ? experience.ahead_test.on() : forwards_++ % kRest != kRest - 1);
    if (drafting_) worker_->start(growth, tree, experience.trust, experience.best_chance, index_);
    forward_began_ = clock_.now();
  }
  void forwarded(const Tree&) override { forward_seconds_ = clock_.now() - forward_began_; }
  void verified(const Growth& growth, const Tree& tree, const Verdict& verdict, int emitted) override {
    if (drafting_) worker_->finish(verdict.tokens, stats);
    if (worker_) {
      stats.forwards_without += !drafting_;
      (drafting_ ? stats.forward_seconds : stats.forward_seconds_without) += forward_seconds_;
    }
    plan_.observe(tree, forward_seconds_);  // only now: the worker has read the costs until finish()
    plan_.verified(growth, tree, verdict, emitted);
    emitted_ = emitted;
    if (worker_ && when_ == Ahead::kAuto) stats.gain = plan_.experience().ahead_test.gain();
  }

 private:
  ShapePlanner& plan_;
  const Ahead when_;
  Clock& clock_;
  const std::function<double()> decoding_seconds_;
  std::unique_ptr<DraftingAhead> worker_;  // null if the drafter cannot draft ahead
  bool begun_ = false, drafting_ = false;
  int index_ = 0, emitted_ = 0;
  int64_t forwards_ = 0;
  double spent_ = 0, forward_began_ = 0, forward_seconds_ = 0;
};

}  // namespace nanospec
