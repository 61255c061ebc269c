// commands/calibration.h: templates of shapes, from measurements or written by hand.
//
// In order: counting how often a drafter's guesses are right; the file of these counts, DIR/calibration.json; the
// templates of `static`, `calibrated` and `sequoia`. The command that measures is in calibrate.cpp.
#pragma once

#include <string>
#include <vector>

#include "drafters/logits.h"
#include "files/origin.h"
#include "growth/grow.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Counting

// Counts, of the places at depth d whose path was drafted, at how many the candidate of rank r was right.
struct RankCounts {
  int depths, ranks;
  std::vector<int64_t> seen;    // (depths) depth 0: the root's children
  std::vector<int64_t> silent;  // (depths) places where the drafter had no candidates
  std::vector<int64_t> right;   // (depths, ranks)
  std::vector<double> seconds;  // that the drafter took, for each node that it expanded

  RankCounts(int most_depths, int most_ranks)
      : depths(most_depths),
        ranks(most_ranks),
        seen(size_t(depths)),
        silent(size_t(depths)),
        right(size_t(depths) * ranks) {}

  int64_t places() const;
  // The rates of a depth that was seldom seen are smoothed towards those of the depth above. A depth where the drafter
  // never had candidates, as heads have none beyond the last one, is not smoothed.
  Accuracy accuracy() const;
};

// Replaces a drafter when the text to come is known, and counts what the drafter would have guessed. At each place it
// asks the drafter, with the noise that the drafter would know, for its candidates; then it proposes the right token,
// where that is one of the drafter's kFollowed best, and nothing elsewhere. So every place is counted at one depth, and
// a root follows a token that was drafted badly, as in decoding. It is for rule match and for chains, which are
// accepted whole.
constexpr int kFollowed = 2;
class Forced : public StandIn {
 public:
  // text: the prompt and the target's continuation. All three arguments must outlive this object.
  Forced(Drafter& its, const std::vector<int>& text, RankCounts& counts);

  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override;

 private:
  bool follows(const Growth& growth, int node, const Draws& draws, int token);

  const std::vector<int>& text_;
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

std::string calibration_path(const std::string& model);

// Throws std::runtime_error if the file is missing or wrong.
std::vector<Calibration> read_calibrations(const std::string& path);
std::vector<Calibration> parse_calibrations(const std::string& text, const std::string& where);

// Adds a calibration to the file, or replaces that of the same drafter and temperature.
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
