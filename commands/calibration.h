// commands/calibration.h: what the shapes are made from that are known by measurement or by hand.
//
// In order: how often a drafter's guesses are right, counted; its file, DIR/calibration.json; the templates of
// `static`, `calibrated` and `sequoia`. The command that measures is in calibrate.cpp.
#pragma once

#include <string>
#include <vector>

#include "drafters/logits.h"
#include "files/origin.h"
#include "growth/grow.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Counting

// Of the places at depth d whose path was drafted: at how many the rank-r candidate was right.
struct RankCounts {
  int depths, ranks;
  std::vector<int64_t> seen;    // (depths) depth 0: the root's children
  std::vector<int64_t> silent;  // (depths) of these, where the drafter guessed nothing at all
  std::vector<int64_t> right;   // (depths, ranks)
  std::vector<double> seconds;  // what the drafter took for each node that it expanded

  RankCounts(int most_depths, int most_ranks)
      : depths(most_depths),
        ranks(most_ranks),
        seen(size_t(depths)),
        silent(size_t(depths)),
        right(size_t(depths) * ranks) {}

  int64_t places() const;
  // A depth that was seldom seen is believed to be like the one above it; one where the drafter was always silent, as
  // heads are below the last of them, is believed at once.
  Accuracy accuracy() const;
};

// Stands in for a drafter where the text to come is known, and guesses only what is right: the next token, where
// goes_on() says so. On the way down the drafter is asked, with the noise that it would have, what it would have said.
// For rule match, and for chains, which are accepted whole and end where a tree's path would.
class Knowing : public StandIn {
 public:
  // text: the prompt and what the target makes of it. Both must outlive this.
  Knowing(LogitsDrafter& its, const std::vector<int>& text) : StandIn(its), text_(text) {}

  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override;

 protected:
  // A node that is to be expanded, and the token that comes after it; -1: the text ends. Asks the drafter, counts, and
  // says whether to guess the token.
  virtual bool goes_on(const Growth& growth, int node, const Draws& draws, int token) = 0;

 private:
  const std::vector<int>& text_;
};

// Goes on as long as the token is one of the drafter's kFollowed best guesses: so every place is seen at one depth, and
// a root comes after a token that was guessed badly, as in decoding.
constexpr int kFollowed = 2;
class Forced : public Knowing {
 public:
  // counts must outlive this.
  Forced(LogitsDrafter& its, const std::vector<int>& text, RankCounts& counts);

 private:
  bool goes_on(const Growth& growth, int node, const Draws& draws, int token) override;

  RankCounts& counts_;
  std::vector<Candidate> guesses_;  // (ranks) scratch
};

// ---------------------------------------------------------------------------------------------------------------
// The file

struct Calibration {
  std::string drafter;
  double temperature = 1;
  int64_t places = 0;
  Accuracy accuracy;
  Metadata origin = {};  // the model, and the text that prompts were taken from
};

std::string calibration_path(const std::string& model_dir);

// Throws std::runtime_error where there is no such file, or what it says cannot be.
std::vector<Calibration> read_calibrations(const std::string& path);
std::vector<Calibration> parse_calibrations(const std::string& text, const std::string& where);

// Adds one to the file, or replaces that of the same drafter and temperature.
void write_calibration(const std::string& path, const Calibration& calibration);

// The calibration of this drafter with the nearest temperature. file: empty for the model's own. One of another model
// or text is used, and that is said. Throws std::runtime_error, with the command that measures it, where there is none.
Calibration find_calibration(const std::string& file, const std::string& drafter, const std::string& model_dir,
                             double temperature);

// ---------------------------------------------------------------------------------------------------------------
// Templates

// A tree of ranks by hand, as Medusa's choices: a JSON list of paths such as [[0], [0, 0], [1]], in any order. Throws
// std::runtime_error where a node's parent or the sibling before it is missing.
Template read_static(const std::string& path);
Template parse_static(const std::string& text, const std::string& where);

// Whether the shape's template comes out of a file.
inline bool from_file(const Shape& shape) {
  return shape.kind == Shape::kStatic || shape.kind == Shape::kCalibrated || shape.kind == Shape::kSequoia;
}

// Makes its template. cost: of the target's forwards, for `sequoia`. Throws std::runtime_error as the above.
void prepare_shape(Shape& shape, const std::string& drafter, const std::string& model_dir, double temperature,
                   const Cost* cost);

}  // namespace nanospec
