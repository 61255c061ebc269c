// growth/plan.h: the planner of all shapes: it asks the drafter, corrects its chances, and learns.
//
// The ring growth/ decides which nodes are worth a row: shapes.h (names and templates), calibration.h (templates
// in files), grow.h and likeliest.h (growth), cost.h and measure.h (the time of a forward), trust.h (what is learned),
// clock.h (time), ahead.h (drafting while the target verifies). It includes the core, drafters/ and files/. It hooks
// into the core's Planner and Watcher (decode.h), and under rule `match` it cannot change the text. Its time counts as
// drafting; `auto` also measures forwards once, at load.
//
// How to add a shape: see the head of shapes.h. How to add another planner: derive from Planner, as AheadPlanner of
// ahead.h does, and let generate() of watch/decoding.h choose it.
//
// Here, in order: the questions to a drafter; growth by a shape; the planner.
#pragma once

#include "decode.h"
#include "drafters/logits.h"
#include "growth/clock.h"
#include "growth/grow.h"
#include "growth/trust.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The questions to a drafter

// What a drafter was asked for one tree.
struct Questions {
  Candidate guess = {-1, 0};  // its best candidate after the root, which may not have become a node
  int expanded = 0;           // nodes that it was asked about
};

// A drafter with corrected chances.
struct Corrected : StandIn {
  const Trust& trust;
  float& best_chance;  // the smoothed chance of a node's best child: it is updated
  Questions asked;
  std::function<void()> after_root = nullptr;  // called when the root has been expanded

  Corrected(Drafter& its, const Trust& learned, float& chance) : StandIn(its), trust(learned), best_chance(chance) {}

  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    drafter.expand(growth, nodes, n, width, draws, candidates, count);
    for (int k = 0; k < n; k++) {
      Candidate* const best = candidates + size_t(k) * size_t(width);
      trust.correct(best, count[k]);
      if (count[k] > 0) best_chance += (best->chance - best_chance) / 64;
      if (count[k] > 0 && nodes[k] == 0) asked.guess = *best;
    }
    if (asked.expanded == 0 && after_root) after_root();
    asked.expanded += n;
  }
};

// Grows a tree of that shape.
inline void grow_shape(const Shape& shape, Limits limits, Drafter& drafter, const Draws& draws, Growth& growth) {
  if (shape.full()) return FullTree(shape.depth, shape.width).grow(drafter, draws, limits.depth, growth);
  if (shape.by_entropy())
    limits.entropy = [&](const int* nodes, int n, float* H) {
      entropies(drafter, growth, nodes, n, draws, shape.of_confidence, H);
    };
  grow(shape, limits, growth, [&](const int* nodes, int n, int width, Candidate* candidates, int* count) {
    drafter.expand(growth, nodes, n, width, draws, candidates, count);
  });
}

// ---------------------------------------------------------------------------------------------------------------
// The planner

class ShapePlanner : public TreePlanner, public Watcher {
 public:
  ReliabilityCurve reliability;  // of the chances of verified nodes
  bool drafts = false;           // whether the drafter was asked for this tree, or has drafted it ahead

  // cost: of the target's forwards, which it updates; null for shapes that do not use it: then no time is measured.
  // experience: with the drafter.
  ShapePlanner(const Shape& shape, Cost* cost, Experience& experience, Clock& clock)
      : shape_(shape), cost_(cost), experience_(experience), clock_(clock) {}

  const Shape& shape() const { return shape_; }
  Experience& experience() const { return experience_; }
  Limits limits(int room) const { return {room, cost_, experience_.expand_seconds, experience_.best_chance}; }

  void grow(Drafter& drafter, const Draws& draws, int room, Growth& growth) override {
    if (!begin()) return;
    Corrected corrected = this->corrected(drafter);
    if (cost_) corrected.after_root = [&] { root_at_ = clock_.now(); };
    grow_shape(shape_, limits_now(room), corrected, draws, growth);
    asked_ = corrected.asked;
  }
  // The parts of it, for trees that grow together (forest/forest.h). Returns whether the drafter is to be asked.
  bool begin() {
    asked_ = {};
    began();
    return drafts = shape_.kind != Shape::kAuto || experience_.pace.due();
  }
  Limits limits_now(int room) const { return experience_.pace.rare() ? Limits{room, cost_} : limits(room); }
  Corrected corrected(Drafter& drafter) const { return {drafter, experience_.trust, experience_.best_chance}; }
  // The tree has grown. costs: of its rows and its drafter, in tokens that plain decoding would give in that time.
  // each: the seconds of an expansion.
  void end(const Questions& asked, const Growth& growth, double costs, double each) {
    asked_ = asked;
    if (drafts) learn_draft(growth, costs, asked.expanded, each);
  }
  // Called instead of grow() if the tree was drafted ahead.
  void take(const Questions& asked) {
    asked_ = {asked.guess, 0};
    drafts = true;
    began();
  }

  void drafted(const Growth& growth, const Tree&) override {
    if (!cost_) return;
    if (drafts && shape_.kind == Shape::kAuto) {
      // root: its expansion, which may include a forward of the drafter's model that serves all nodes.
      const double root = root_at_ - began_, others = clock_.now() - root_at_;
      const double costs = (cost_->seconds(growth.size() - 1) + root + others) / cost_->seconds(0) - 1;
      const int expanded = asked_.expanded - 1;
      learn_draft(growth, costs, expanded, others / std::max(1, expanded));
    }
    began();
  }
  void forwarded(const Tree& tree) override {
    if (cost_) observe(tree, clock_.now() - began_);
  }
  void observe(const Tree& tree, double forward_seconds) {
    if (cost_) cost_->observe(tree.size() - 1, forward_seconds);
  }
  void verified(const Growth& growth, const Tree& tree, const Verdict& verdict, int) override {
    const bool correct = verdict.tokens[0] == asked_.guess.token;
    if (asked_.guess.token >= 0 && tree.size() == 1) experience_.trust.observe(asked_.guess, 0, correct);
    if (shape_.kind == Shape::kAuto && correct) experience_.pace.was_correct();
    if (drafts) learn_trust(growth, tree, verdict);
  }

 private:
  void began() {
    if (cost_) began_ = root_at_ = clock_.now();
  }
  // Learns from the seconds that each of some expansions took, and from the growth that they gave, with its costs as in
  // end(). A pause of the machine at most doubles the estimate.
  void learn_draft(const Growth& growth, double costs, int expanded, double seconds) {
    double& each = experience_.expand_seconds;
    if (expanded > 0) each = std::max(1e-9, each + (std::min(seconds, 2 * each) - each) / 4);
    double tokens = -1;  // expected, but for the one that plain decoding gives too
    for (float reach : growth.reach) tokens += double(reach);
    const double penalty = growth.size() == 1 ? 0.01 : 0;  // a tree without nodes counts as a loss
    experience_.pace.observe(tokens - costs - penalty);
  }
  // Learns from a verdict: it shows which children of the accepted path's nodes were right. It says nothing about other
  // nodes.
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
  Clock& clock_;
  Questions asked_;
  double began_ = 0, root_at_ = 0;  // when the draft, or the forward, began; when the root was expanded
};

}  // namespace nanospec
