// forest/forest.h: many texts in one forward, each with the bytes that it has alone.
//
// The ring forest/ decodes texts side by side. It includes the core, growth/, rules/ and watch/, and hooks into the
// core's Runner and Planner (decode.h): the loop is that of a text alone. A row's numbers never depend on the rows
// beside it, and a text's noise on nothing but its seed and place: so neither company nor the order of arrival changes
// a text. On a GPU a forest takes the host's path.
//
// Here, in order: the runner, which caches prompts in pieces; the planner, which shares one budget of nodes among all
// trees; a text that waits, and generate_forest().
#pragma once

#include <deque>
#include <memory>
#include <set>

#include "watch/decoding.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The runner

// Beside texts that are decoded, so many tokens of windows are cached in one forward, or as many as their trees have
// rows: so it takes at most twice the time, and no text waits longer for another's prompt.
constexpr int kPieceRows = 16;

// One forward runs the trees of all texts whose windows are cached, then pieces of the windows of the others, first
// come, first served. A window that slides is cached in the same way.
template <class Target>
struct ForestRunner : Judge<Target> {
  using Judge<Target>::target;
  Clock& clock;
  Cost* const cost;  // of forwards, which is updated; or null
  std::function<void(Sequence&)> on_close;
  std::function<const Pick&(const Sequence&)> pick_of;

  ForestRunner(Target& its, Rule rule, Clock& its_clock, Cost* its_cost)
      : Judge<Target>(its, rule), clock(its_clock), cost(its_cost) {}

  void open(Sequence& text) override {
    const int start = window_start(text.size(), this->block_size), n = text.size() - 1 - start;
    target.sit(text.seat);
    target.reuse(text.tokens.data() + start, n);
    if (target.past() < n) opening_.push_back({&text, start, n});
  }
  bool opened(const Sequence& text) override {
    return std::none_of(opening_.begin(), opening_.end(), [&](const Opening& its) { return its.text == &text; });
  }
  void forward(const std::vector<Sequence*>& texts) override {
    int trees = 0;
    target.clear_rows();
    for (const Sequence* text : texts) {
      const Tree& tree = text->tree;
      target.sit(text->seat);
      target.add_tree(tree.token.data(), tree.depth.data(), tree.end.data(), tree.size());
      trees += tree.size();
    }
    const int free = target.all_rows() - trees;
    const int pieces = add_pieces(trees > 0 ? std::min(std::max(kPieceRows, trees), free) : free);
    if (trees + pieces == 0) return;
    const double began = clock.now();
    target.run_rows(trees);
    if (cost && trees > 0 && pieces == 0) cost->observe(trees - 1, clock.now() - began);
    keep_pieces();
  }
  Verdict verify(Sequence& text) override {
    target.sit(text.seat);
    const Pick& pick = pick_of(text);
    if (!pick) return Judge<Target>::verify(text);
    return match(text.tree, [&](int node) { return pick(target.logits(node)); });
  }
  void keep(Sequence& text, const Verdict& verdict) override {
    target.sit(text.seat);
    Judge<Target>::keep(text, verdict);
  }
  void close(Sequence& text) override { on_close(text); }

 private:
  // A window that is being cached: n tokens of the text, from `start` on.
  struct Opening {
    Sequence* text;
    int start, n;
    int rows = 0;  // in this forward
  };
  // Adds up to `most` rows of windows to the forward. Returns how many.
  int add_pieces(int most) {
    int added = 0;
    for (Opening& its : opening_) {
      target.sit(its.text->seat);
      its.rows = std::min(its.n - target.past(), most - added);
      Batch chain;
      chain.add_chain(its.text->tokens.data() + its.start + target.past(), its.rows, 0, 0);
      if (its.rows > 0) target.add_tree(chain.token.data(), chain.depth.data(), chain.end.data(), its.rows);
      added += its.rows;
    }
    return added;
  }
  void keep_pieces() {
    std::vector<Opening> rest;  // whose windows are not cached yet
    for (const Opening& its : opening_) {
      target.sit(its.text->seat);
      target.keep(numbers_to(its.rows).data(), its.rows);
      if (target.past() != its.n) rest.push_back(its);
    }
    opening_ = std::move(rest);
  }

  std::vector<Opening> opening_;  // in the order of their coming
};

// ---------------------------------------------------------------------------------------------------------------
// The planner

// A drafter whose model runs for all texts at once: if a node is not prepared, its tree's growth stops, and begins anew
// when it is. What was expanded is not asked for again.
struct Halting : StandIn {
  struct NotPrepared {};   // thrown
  std::vector<int> nodes;  // that must be prepared for the growth to go on
  explicit Halting(Drafter& its) : StandIn(its) {}

  // Before the growth, `nodes` have been prepared.
  void restart() {
    prepared_.insert(nodes.begin(), nodes.end());
    nodes.clear();
    asked_ = 0;
  }
  void prepare(const Growth&, const int* wanted, int n) override {
    nodes.assign(wanted, wanted + n);
    const auto known = [&](int node) { return prepared_.count(node) > 0; };
    if (!std::all_of(nodes.begin(), nodes.end(), known)) throw NotPrepared();
    nodes.clear();
  }
  void expand(const Growth& growth, const int* wanted, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    if (asked_ == said_.size()) {
      prepare(growth, wanted, n);
      drafter.expand(growth, wanted, n, width, draws, candidates, count);
      said_.push_back({{candidates, candidates + size_t(n) * size_t(width)}, {count, count + n}});
    }
    const auto& [said, how_many] = said_[asked_++];
    std::copy(said.begin(), said.end(), candidates);
    std::copy(how_many.begin(), how_many.end(), count);
  }

 private:
  std::set<int> prepared_;
  std::vector<std::pair<std::vector<Candidate>, std::vector<int>>> said_;  // to each question
  size_t asked_ = 0;                                                       // of this growth
};

// Shape `auto` takes the likeliest nodes of all trees, as many as pay by the cost of a forward of so many rows; the
// other shapes grow each tree for itself, and a drafter's model runs for all of them at once. of(text): the text's own
// planner, which knows what its guesses are worth.
class ForestPlanner : public Planner {
 public:
  ForestPlanner(const Shape& shape, const Cost* cost, Clock& clock, std::function<ShapePlanner&(Sequence&)> of)
      : shape_(shape), cost_(cost), clock_(clock), of_(std::move(of)) {}

  void plan(const std::vector<Sequence*>& texts) override {
    if (texts.empty() || !texts[0]->drafter) return;
    if (shape_.kind == Shape::kAuto) grow_together(texts);
    else grow_each(texts);
  }

 private:
  // In rounds, where a model runs: what the growths stop for is prepared for all of them at once.
  void grow_each(const std::vector<Sequence*>& texts) {
    std::deque<Halting> drafters;
    std::vector<Expansion> next;  // the roots, at first
    for (Sequence* text : texts) {
      drafters.emplace_back(*text->drafter).nodes = {0};
      if (text->room > 0) next.push_back({text->drafter, &text->growth, {0}});
    }
    if (next.empty() || !next[0].drafter->prepare_all(next)) {  // no model runs
      for (Sequence* text : texts) of_(*text).grow(*text->drafter, text->draws, text->room, text->growth);
      return;
    }
    while (!next.empty()) {
      next.clear();
      for (size_t i = 0; i < texts.size(); i++) {
        Sequence& text = *texts[i];
        if (drafters[i].nodes.empty()) continue;  // it has grown
        drafters[i].restart();
        text.growth.start(text.growth.token[0]);
        try {
          of_(text).grow(drafters[i], text.draws, text.room, text.growth);
        } catch (const Halting::NotPrepared&) { next.push_back({text.drafter, &text.growth, drafters[i].nodes}); }
      }
      if (!next.empty()) texts[0]->drafter->prepare_all(next);
    }
  }

  // A text while its tree grows.
  struct Part {
    Limits limits;
    Corrected drafter;
  };
  void grow_together(const std::vector<Sequence*>& texts) {
    const double began = clock_.now();
    std::deque<Part> parts;  // which stay where they are
    const auto expand = [&](size_t i) {
      return [text = texts[i], &drafter = parts[i].drafter](int node, Candidate* candidates) {
        int count = 0;
        drafter.expand(text->growth, &node, 1, kLikeliestWidth, text->draws, candidates, &count);
        return count;
      };
    };
    std::vector<LikeliestTree<decltype(expand(0))>> trees;
    for (Sequence* text : texts) {
      ShapePlanner& plan = of_(*text);
      const bool asks = plan.begin();
      parts.push_back({plan.limits_now(asks ? text->room : 0), plan.corrected(*text->drafter)});
      trees.push_back({text->growth, parts.back().limits, expand(parts.size() - 1)});
    }
    grow_likeliest(*cost_, shape_.budget, trees, [&] {
      std::vector<Expansion> next;
      for (size_t i = 0; i < texts.size(); i++)
        if (!trees[i].next.empty()) next.push_back({texts[i]->drafter, &texts[i]->growth, trees[i].next});
      return texts[0]->drafter->prepare_all(next);
    });
    learn(texts, parts, clock_.now() - began);
  }
  // Learns what each tree is worth: the tokens that it may bring, against what its rows and its drafter cost, at the
  // rate of plain decoding.
  void learn(const std::vector<Sequence*>& texts, std::deque<Part>& parts, double seconds) const {
    int rows = -1, expanded = 0;
    for (const Sequence* text : texts) rows += text->growth.size();
    for (const Part& part : parts) expanded += part.drafter.asked.expanded;
    const double each = seconds / std::max(1, expanded), roots = double(texts.size());
    const double rate = roots / cost_->seconds(int(texts.size()) - 1);
    for (size_t i = 0; i < parts.size(); i++) {
      const int nodes = texts[i]->growth.size() - 1, asked = parts[i].drafter.asked.expanded;
      const double costs = cost_->seconds(rows) - cost_->seconds(rows - nodes) + asked * each;
      of_(*texts[i]).end(parts[i].drafter.asked, texts[i]->growth, costs * rate, each);
    }
  }

  const Shape& shape_;
  const Cost* const cost_;
  Clock& clock_;
  const std::function<ShapePlanner&(Sequence&)> of_;
};

// ---------------------------------------------------------------------------------------------------------------
// Decoding

// A text that waits for a seat.
struct Job {
  Drafter* drafter;   // of this text alone; null: plain decoding
  Decoding settings;  // rule and shape are those of all texts; the cost is not used
  std::vector<int> tokens;
  std::function<bool(int)> on_token;         // as in generate() of watch/decoding.h
  std::function<void(const Stats&)> on_end;  // the text is over
  Pick pick = nullptr;                       // in place of the sampling's; null: that
};

// Decodes texts side by side, as many as the target has seats. next(seat): the next text, for this seat; null: none
// waits at present, and the loop ends when no text is left. shape, rule: of all. cost: of forwards; for shape auto.
// Throws what generate() of watch/decoding.h throws.
template <class Target>
void generate_forest(Target& target, const Shape& shape, Rule rule, Cost* cost,
                     const std::function<std::unique_ptr<Job>(int seat)>& next) {
  struct Seat {
    std::unique_ptr<Job> job;
    std::unique_ptr<Decoded<Target>> decoded;
    bool free = true;
  };
  std::vector<Seat> seats(static_cast<size_t>(target.seats()));
  Stopwatch watch;
  Clock clock([&] { return watch.lap(); });
  ForestRunner<Target> runner(target, rule, clock, cost);
  ForestPlanner planner(shape, cost, clock,
                        [&](Sequence& text) -> ShapePlanner& { return seats[size_t(text.seat)].decoded->plan; });
  runner.pick_of = [&](const Sequence& text) -> const Pick& { return seats[size_t(text.seat)].job->pick; };
  runner.on_close = [&](Sequence& text) {
    Seat& seat = seats[size_t(text.seat)];
    seat.free = true;
    seat.job->on_end(seat.decoded->finished());
  };
  generate(runner, planner, target.seats(), [&]() -> Sequence* {
    const auto free = std::find_if(seats.begin(), seats.end(), [](const Seat& seat) { return seat.free; });
    const int at = int(free - seats.begin());
    std::unique_ptr<Job> job = next(at);
    if (!job) return nullptr;
    check_settings(job->settings, job->drafter);
    job->settings.cost = nullptr;
    free->decoded.reset();  // before what it refers to
    free->job = std::move(job);
    Job& its = *free->job;
    free->decoded = std::make_unique<Decoded<Target>>(target, its.settings, its.drafter, its.tokens, at, clock,
                                                      its.on_token, &runner);
    free->free = false;
    return &free->decoded->text;
  });
}

}  // namespace nanospec
