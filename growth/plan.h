// growth/plan.h: the planner that shapes of every kind share: it asks the drafter, corrects its chances, and learns.
//
// The ring growth/ adds which nodes are worth a row: shapes.h (names and templates), grow.h (growth), cost.h and
// measure.h (what a forward takes), trust.h (what is learned), clock.h (time), ahead.h (drafting while the target
// verifies). It includes the core, drafters/, and files/ for words.h alone. It hooks into the core's Planner and
// Watcher (decode.h), and under rule `match` it cannot change the text. What it costs is counted as drafting; `auto`
// also measures forwards once, at load.
//
// How to add a shape: the head of shapes.h. How to add another planner: derive from Planner, as AheadPlanner of ahead.h
// does, and let generate() of watch/decoding.h choose it.
//
// Here, in order: one tree's draft; growth by a shape; the planner.
#pragma once

#include <memory>

#include "decode.h"
#include "drafters/logits.h"
#include "growth/clock.h"
#include "growth/grow.h"
#include "growth/trust.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// One tree's draft

// What a drafter was asked for one tree.
struct Questions {
  Candidate guess = {-1, 0};  // its best, also where that is not worth a node
  int expanded = 0;           // nodes that it was asked about
};

// Any drafter, with what experience says of its chances in their place.
struct Corrected : Drafter {
  Drafter& drafter;
  const Trust& trust;
  float& promise;  // the smoothed chance of a node's best child, kept current
  Questions asked;
  std::function<void()> after_root = nullptr;  // told when the root has been expanded

  Corrected(Drafter& its, const Trust& learned, float& hope) : drafter(its), trust(learned), promise(hope) {}

  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    drafter.expand(growth, nodes, n, width, draws, candidates, count);
    for (int k = 0; k < n; k++) {
      Candidate* const best = candidates + size_t(k) * size_t(width);
      trust.correct(best, count[k]);
      if (count[k] > 0) promise += (best->chance - promise) / 64;
      if (count[k] > 0 && nodes[k] == 0) asked.guess = *best;
    }
    if (asked.expanded == 0 && after_root) after_root();
    asked.expanded += n;
  }
};

// Grows a tree of that shape. entropies: of the drafter without corrections, for the shapes that go by them.
inline void grow_shape(const Shape& shape, Limits limits, Drafter& drafter, LogitsDrafter* entropies,
                       const Draws& draws, Growth& growth) {
  if (shape.full()) return FullTree(shape.depth, shape.width).grow(drafter, draws, limits.depth, growth);
  if (shape.by_entropy() && entropies)
    limits.entropy = [&](const int* nodes, int n, float* H) {
      entropies->entropies(growth, nodes, n, draws, shape.of_confidence, H);
    };
  grow(shape, limits, growth, [&](const int* nodes, int n, int width, Candidate* candidates, int* count) {
    drafter.expand(growth, nodes, n, width, draws, candidates, count);
  });
}

// ---------------------------------------------------------------------------------------------------------------
// The planner

class ShapePlanner : public Planner, public Watcher {
 public:
  ReliabilityCurve reliability;  // of the chances of the nodes that the target verified
  bool drafts = false;           // whether the drafter was asked for this tree, or had drafted it ahead

  // cost: of the target's forwards, kept current; null for shapes that do not go by it. experience: with the drafter.
  ShapePlanner(const Shape& shape, Cost* cost, Experience& experience, LogitsDrafter* entropies, Clock& clock)
      : shape_(shape), cost_(cost), experience_(experience), entropies_(entropies), clock_(clock) {}

  const Shape& shape() const { return shape_; }
  Experience& experience() const { return experience_; }
  Limits limits(int room) const { return {room, cost_, experience_.expand_seconds, experience_.promise}; }

  void grow(Drafter& drafter, const Draws& draws, int room, Growth& growth) override {
    asked_ = {}, began();
    drafts = shape_.kind != Shape::kAuto || experience_.pace.due();
    if (!drafts) return;
    Limits limits = this->limits(room);
    if (experience_.pace.rare()) limits.expand_seconds = 0, limits.promise = 1;
    Corrected corrected(drafter, experience_.trust, experience_.promise);
    if (by_costs()) corrected.after_root = [&] { root_at_ = clock_.now(); };
    grow_shape(shape_, limits, corrected, entropies_, draws, growth);
    asked_ = corrected.asked;
  }
  // Instead of grow(): the tree was drafted ahead.
  void take(const Questions& asked) {
    asked_ = asked, asked_.expanded = 0, drafts = true;
    began();
  }

  void drafted(const Growth& growth, const Tree&) override {
    if (!by_costs()) return;
    if (drafts && shape_.kind == Shape::kAuto) learn_pace(growth, root_at_ - began_, clock_.now() - root_at_);
    began();
  }
  void forwarded(const Tree& tree) override {
    if (by_costs()) observe(tree, clock_.now() - began_);
  }
  void observe(const Tree& tree, double forward_seconds) {
    if (cost_) cost_->observe(tree.size() - 1, forward_seconds);
  }
  void verified(const Growth& growth, const Tree& tree, const Verdict& verdict, int) override {
    const bool right = verdict.tokens[0] == asked_.guess.token;
    if (asked_.guess.token >= 0 && tree.size() == 1) experience_.trust.observe(asked_.guess, 0, right);
    if (shape_.kind == Shape::kAuto && right) experience_.pace.was_right();
    if (drafts) learn_trust(growth, tree, verdict);
  }

 private:
  bool by_costs() const { return cost_ != nullptr; }  // else no time need be taken
  void began() {
    if (by_costs()) began_ = root_at_ = clock_.now();
  }
  // Learns from what drafting took, in seconds: the root's expansion, which may hold a forward of the drafter's own
  // that serves all others too, and that of the other nodes; of the growth that came of it. A pause of the machine
  // counts as no more than a doubling.
  void learn_pace(const Growth& growth, double root, double others) {
    double& each = experience_.expand_seconds;
    const int expanded = asked_.expanded - 1;
    if (expanded > 0) each = std::max(1e-9, each + (std::min(others / expanded, 2 * each) - each) / 4);
    double tokens = 0;  // expected
    for (float reach : growth.reach) tokens += double(reach);
    const double regret = growth.size() == 1 ? 0.01 : 0;  // a try without a node counts as one in vain
    experience_.pace.tried(tokens - (cost_->seconds(growth.size() - 1) + root + others) / cost_->seconds(0) - regret);
  }
  // Learns from a verdict: the nodes under the accepted path were guessed right or wrong; of the others nothing is
  // known.
  void learn_trust(const Growth& growth, const Tree& tree, const Verdict& verdict) {
    for (size_t i = 0; i < verdict.rows.size(); i++) {
      int rank = 0;
      for (int c = tree.first_child(verdict.rows[i]); c >= 0; c = tree.next_sibling(c)) {
        const bool accepted = i + 1 < verdict.rows.size() && verdict.rows[i + 1] == c;
        const int origin = tree.origin[c];
        experience_.trust.observe({tree.token[c], growth.chance[origin], growth.raw[origin]}, rank++, accepted);
        count(reliability, growth.raw[origin], growth.chance[origin], accepted);
      }
    }
    experience_.trust.learn();
  }

  const Shape shape_;
  Cost* const cost_;
  Experience& experience_;
  LogitsDrafter* const entropies_;
  Clock& clock_;
  Questions asked_;
  double began_ = 0, root_at_ = 0;  // when the draft, or the forward, began; when the root was expanded
};

}  // namespace nanospec
