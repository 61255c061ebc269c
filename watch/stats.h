// watch/stats.h: what is counted of a text's decoding. Who counts it: recorder.h.
//
// The ring watch/ adds what a run is known by: counts and times (here; taken in recorder.h); and it wires planner,
// runner and watcher together (decoding.h), by the settings of one run (settings.h). It includes the core, drafters/,
// growth/ and rules/. It hooks into the core's Watcher (decode.h): nothing that watches can change a text. It costs a
// look at the clock between the steps.
//
// How to add a count: a field of Stats, counted in the Recorder, added up and written in commands/commands.cpp. How to
// study forwards one by one: Decoding::on_pass, which gets a PassReport. How to add another watcher: derive from
// Watcher and let generate() of decoding.h call it; the Recorder tells one more, its `inner`.
//
// Here, in order: the counts; one forward, as those see it who study it.
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
// What is counted

struct Stats {
  int64_t tokens = 0;                           // emitted after the prompt
  int64_t target_forwards = 0;                  // of the target: one for each tree
  int64_t slide_prefills = 0;                   // prefills because the window moved
  int64_t drafted_nodes = 0;                    // nodes that the target verified, the roots not counted
  std::vector<int64_t> accept_histogram = {0};  // [i]: forwards that committed i tokens; [0] is 0
  ReliabilityCurve reliability;                 // of the chances of the nodes that the target verified
  std::map<std::string, int64_t> accepted_by;   // accepted nodes that were emitted, by the drafter whose they were
  AheadStats ahead;                             // of drafting while the target verifies
  double prefill_seconds = 0;                   // the prompt
  double seconds = 0;                           // all after the prompt's prefill, but on_token: the sum of those below
  double seconds_draft = 0;                     // drafter and shape, and what is learned of them
  double seconds_forward = 0;                   // the target's forwards; whole ones with drafts, picks and gathers
  double seconds_verify = 0;                    // picks and the walk
  double seconds_keep = 0;                      // the cache's gather
  double seconds_slide = 0;                     // the prefills of moved windows
};

// All but the prefills.
inline double work_seconds(const Stats& stats) {
  return stats.seconds_draft + stats.seconds_forward + stats.seconds_verify + stats.seconds_keep;
}

// ---------------------------------------------------------------------------------------------------------------
// One forward

struct LogitsDrafter;  // drafters/logits.h

// As those see it who study it; all of it is valid until the call ends. The drafter may still be asked about nodes that
// it has expanded.
struct PassReport {
  int64_t index;           // place in the text of the root's children
  int past;                // cached positions: node i stands at past + depth[i]
  int deepest;             // no node could be deeper: the window's end, or that of the text that is wanted
  bool drafted;            // whether the drafter was asked
  LogitsDrafter* drafter;  // null for plain decoding
  const Draws& draws;
  const Growth& growth;
  const Tree& tree;
  const Verdict& verdict;
  int emitted;                   // tokens of the verdict that the text got
  std::function<int(int)> pick;  // what the target chooses after a node; null where it keeps its logits to itself
  double draft_seconds, forward_seconds, verify_seconds;
};

}  // namespace nanospec
