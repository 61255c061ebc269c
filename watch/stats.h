// watch/stats.h: the counts and times of decoding a text; recorder.h takes them.
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
// Here, in order: the counts; the report of one iteration.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "draft.h"
#include "growth/ahead_stats.h"
#include "growth/trust.h"

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
  int64_t index;     // index in the text of the root's children
  int past;          // cached positions: node i stands at past + depth[i]
  int deepest;       // the depth that no node could exceed: at the window's end, or at the text's
  bool drafted;      // whether the drafter was asked
  Drafter* drafter;  // null for plain decoding
  const Draws& draws;
  const Growth& growth;
  const Tree& tree;
  const Verdict& verdict;
  int emitted;                   // tokens of the verdict that were added to the text
  bool slides;                   // whether the window slides then
  std::function<int(int)> pick;  // the target's pick after a node; null if its logits cannot be read
  double draft_seconds, forward_seconds, verify_seconds;
};

}  // namespace nanospec
