// watch/stats.h: the counts and times of decoding a text.
//
// The ring watch/ adds counts and times (here). It also connects planner, runner and watcher (decoding.h), by the
// settings of one run (settings.h). It includes the core, drafters/, growth/ and rules/. It hooks into the core's
// Watcher (decode.h): a watcher cannot change the text. It costs a reading of the clock between the steps.
//
// How to add a count: make it a field of Stats, count it in the Recorder, and add it up and write it in
// commands/commands.cpp. How to study single iterations: set Decoding::on_iteration, which gets an IterationReport. How
// to add another watcher: derive from Watcher and let generate() of decoding.h call it; the Recorder calls one more,
// its `inner`.
//
// Here, in order: the counts; the report of one iteration; the recorder.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "growth/ahead.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The counts

struct Stats {
  int64_t tokens = 0;                           // emitted after the prompt
  int64_t target_forwards = 0;                  // one for each tree
  int64_t slide_prefills = 0;                   // prefills because the window slid
  int64_t drafted_nodes = 0;                    // verified nodes, the roots not counted
  std::vector<int64_t> accept_histogram = {0};  // [i]: forwards that committed i tokens; [0] is 0
  ReliabilityCurve reliability;                 // of the chances of verified nodes
  std::map<std::string, int64_t> accepted_by;   // accepted nodes that were emitted, by their drafter's name
  AheadStats ahead;                             // of drafting while the target verifies
  double prefill_seconds = 0;                   // the prompt's
  double seconds = 0;                           // after the prompt's prefill, without on_token: the sum of those below
  double seconds_draft = 0;                     // drafter and shape, and learning
  double seconds_forward = 0;                   // forwards; whole iterations with their drafts, picks and gathers
  double seconds_verify = 0;                    // picks and the walk
  double seconds_keep = 0;                      // the cache's gather
  double seconds_slide = 0;                     // prefills because the window slid
};

// All seconds but those of prefills.
inline double work_seconds(const Stats& stats) {
  return stats.seconds_draft + stats.seconds_forward + stats.seconds_verify + stats.seconds_keep;
}

// ---------------------------------------------------------------------------------------------------------------
// The report of one iteration

// All of it is valid until the call ends. The drafter may still be asked about nodes that it has expanded.
struct IterationReport {
  int64_t index;           // index in the text of the root's children
  int past;                // cached positions: node i stands at past + depth[i]
  int deepest;             // the depth that no node could exceed: at the window's end, or at the text's
  bool drafted;            // whether the drafter was asked
  LogitsDrafter* drafter;  // null for plain decoding
  const Draws& draws;
  const Growth& growth;
  const Tree& tree;
  const Verdict& verdict;
  int emitted;                   // tokens of the verdict that were added to the text
  std::function<int(int)> pick;  // the target's pick after a node; null if its logits cannot be read
  double draft_seconds, forward_seconds, verify_seconds;
};

// ---------------------------------------------------------------------------------------------------------------
// The recorder

// Counts, takes the time of each step, and calls the inner watcher, whose time counts with the step that follows.
class Recorder : public Watcher {
 public:
  Stats stats;

  // What it needs to report an iteration.
  struct Sources {
    int64_t begin, end;  // tokens of the prompt, and of the text at its end
    int block_size;
    Draws draws;
    LogitsDrafter* drafter;  // null if it has no distribution, or if there is no drafter
    std::string name;        // of the drafter
    const ShapePlanner& plan;
    bool drafts_on_device;
    std::function<int()> past;
    std::function<int(const Tree& tree, int node, int64_t index)> pick;  // or null
    std::function<void(const IterationReport&)> on_iteration;            // or null; its time does not count
  };

  Recorder(Clock& clock, Watcher& inner, Sources sources)
      : clock_(clock), inner_(inner), sources_(std::move(sources)), n_(sources_.begin) {
    lap();
  }
  // Wraps the callback of generate(), whose time does not count.
  std::function<bool(int)> timed(std::function<bool(int)> on_token) {
    return [this, on_token = std::move(on_token)](int token) {
      if (!emitting_) verify_ += lap();
      emitting_ = true;
      return on_token(token);
    };
  }

  void ready() override {
    const int64_t before = n_ - emitted_;
    const bool slid = window_start(int(n_), sources_.block_size) != window_start(int(before), sources_.block_size);
    (stats.target_forwards == 0 ? stats.prefill_seconds : slid ? stats.seconds_slide : stats.seconds_keep) += lap();
    stats.slide_prefills += stats.target_forwards > 0 && slid;
    inner_.ready();
    draft_ = forward_ = verify_ = 0;
  }
  void drafted(const Growth& growth, const Tree& tree) override {
    if (sources_.drafts_on_device && tree.size() > 1) forward_ += lap();  // the device has run the whole iteration
    stats.drafted_nodes += tree.size() - 1;
    inner_.drafted(growth, tree);
    draft_ += lap();
  }
  void forwarded(const Tree& tree) override {
    forward_ += lap();
    stats.target_forwards++;
    inner_.forwarded(tree);
  }
  void verified(const Growth& growth, const Tree& tree, const Verdict& verdict, int emitted) override {
    lap();  // the callback's time
    emitting_ = false;
    inner_.verified(growth, tree, verdict, emitted);
    stats.seconds_draft += draft_ + lap();
    stats.seconds_forward += forward_;
    stats.seconds_verify += verify_;
    stats.tokens += emitted;
    for (int i = 0; i < emitted && i + 1 < int(verdict.rows.size()); i++)
      stats.accepted_by[author(tree.origin[verdict.rows[i]], verdict.tokens[i])]++;
    if (size_t(emitted) >= stats.accept_histogram.size()) stats.accept_histogram.resize(size_t(emitted) + 1, 0);
    stats.accept_histogram[size_t(emitted)]++;
    if (sources_.on_iteration) {
      report(growth, tree, verdict, emitted);
      lap();
    }
    n_ += emitted;
    emitted_ = emitted;
  }
  void committed() override { stats.seconds_draft += lap(); }

 private:
  const std::string& author(int node, int token) const {
    return sources_.drafter ? sources_.drafter->author(node, token) : sources_.name;
  }
  void report(const Growth& growth, const Tree& tree, const Verdict& verdict, int emitted) {
    Draws draws = sources_.draws;
    draws.index = n_;
    IterationReport report = {n_,
                              sources_.past(),
                              room_at(n_, sources_.end, sources_.block_size),
                              sources_.drafter && sources_.plan.drafts,
                              sources_.drafter,
                              draws,
                              growth,
                              tree,
                              verdict,
                              emitted,
                              nullptr,
                              draft_,
                              forward_,
                              verify_};
    if (sources_.pick) report.pick = [&](int node) { return sources_.pick(tree, node, n_); };
    else report.past -= int(verdict.rows.size());  // the device has kept these rows already
    sources_.on_iteration(report);
  }
  double lap() {
    const double now = clock_.now();
    return now - std::exchange(last_, now);
  }

  Clock& clock_;
  Watcher& inner_;
  const Sources sources_;
  int64_t n_;                                               // tokens of the text
  int emitted_ = 0;                                         // by the last forward
  bool emitting_ = false;                                   // whether the callback has been called in this iteration
  double last_ = 0, draft_ = 0, forward_ = 0, verify_ = 0;  // seconds, of this iteration
};

}  // namespace nanospec
