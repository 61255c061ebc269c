// study/diagnosis.h: why drafts are accepted or not, counted pass by pass.
//
// Nodes "on the path" are those that the target came to, the root included. Whatever is said of guesses is said of
// them: of the others nobody knows what the target would have chosen there.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "watch/stats.h"

namespace nanospec {

constexpr int kAskedRanks = 8;  // guesses of the drafter that are looked through for the target's token

// Why a pass committed no more tokens.
enum class Stop {
  kNoNode,      // the target's token was among the drafter's best guesses, but it got no node
  kNotGuessed,  // it was not among them
  kBudget,      // the path ended in a leaf: the budget was full
  kShape,       // the shape had no more levels, or wanted no further node
  kEnd,         // no node could be deeper: the window's end, or that of the text
  kNotTried     // nothing was drafted
};
constexpr const char* kStops[] = {
    "the token was guessed, but got no node",
    "the token was not among the 8 best guesses",
    "leaf: the budget was full",
    "leaf: the shape ended there",
    "leaf: the window's end, or that of the text",
    "drafting was not tried",
};
constexpr int kStopKinds = int(std::size(kStops));

// A node on the path that had children: how unsure the drafter was, and whether one of them was right.
struct Unsure {
  float of_q, of_confidence;  // entropies, in nats
  bool matched;
};

// What was promised of nodes whose parent was on the path, by tenths, and how far off that was.
struct Forecast {
  std::array<Reliability, 10> tenths;  // [i]: chances from i / 10 on; `raw` and `corrected` as in growth/trust.h
  double squares = 0;                  // sum of (chance - 0 or 1)^2

  int64_t nodes() const;
  double brier() const;              // mean square; a coin scores 0.25
  double calibration_error() const;  // expected: |promised - measured|, over the tenths by their nodes
  double promised(const Reliability& tenth) const { return by_raw ? tenth.raw : tenth.corrected; }  // sum of chances
  bool by_raw = false;  // whether it goes by the raw chances or the corrected ones
};

struct Diagnosis {
  explicit Diagnosis(const Shape& its_shape) : shape(its_shape) { raw.by_raw = true; }

  void add(const PassReport& pass);

  Shape shape;
  int64_t passes = 0;
  std::vector<Unsure> unsure;
  std::vector<int64_t> asked;                           // [d]: nodes of depth d on the path that had children
  std::vector<std::array<int64_t, kAskedRanks>> right;  // [d][r]: whose rank-r guess was the target's token
  Forecast raw, corrected;
  std::vector<int64_t> drafted, accepted;              // [d]: nodes of depth d; [0]: nothing, the roots do not count
  std::array<int64_t, kStopKinds> stops = {};          // passes
  std::array<int64_t, kAskedRanks> missing_rank = {};  // kNoNode: the guess's rank

 private:
  void look_at(const PassReport& pass, int node, int token, int accepted_child);
  int rank_of(const PassReport& pass, int node, int token);
  Stop stop_of(const PassReport& pass);
};

// The chance that a mismatched node was less sure than a matched one: 0.5 says nothing, 1 everything (the area under
// the ROC curve; of equal ones each counts half). 0.5 where there are none of one kind.
double separation(const std::vector<Unsure>& unsure, bool of_confidence);

// Matched and mismatched nodes by entropy, in bins of kEntropyBin nats; the last holds all from there on.
constexpr double kEntropyBin = 0.5;
constexpr int kEntropyBins = 10;
struct EntropyBin {
  int64_t matched = 0, mismatched = 0;
};
std::array<EntropyBin, kEntropyBins> by_entropy(const std::vector<Unsure>& unsure, bool of_confidence);

}  // namespace nanospec
