// tests/commands/test_calibration.cpp: commands/calibration.h: rates counted where they are known, the file, and the
// templates made from it.
#include "commands/calibration.h"

#include <doctest/doctest.h>

#include "tests/command_line.h"
#include "tests/error_of.h"
#include "tests/mock.h"

using namespace nanospec;

namespace {

Stats decode_mock(Mock& mock, Drafter* drafter, const Shape& shape, const Sampling& sampling, int n,
                  std::vector<int>& text) {
  Decoding decoding;
  decoding.shape = shape, decoding.sampling = sampling, decoding.max_new_tokens = n;
  return generate(mock, drafter, decoding, text, [](int) { return true; });
}

// What a drafter's guesses are worth against the mock: as calibrate_command measures it.
RankCounts measured(Mock& mock, Drafter& drafter, const Sampling& sampling, int depths, int ranks, int tokens) {
  std::vector<int> text = {1, 2, 3}, again = text;
  decode_mock(mock, nullptr, Shape(), sampling, tokens, text);
  RankCounts counts(depths, ranks);
  Forced forced(drafter, text, counts);
  const Stats stats =
      decode_mock(mock, &forced, parse_shape("chain:" + std::to_string(depths), 64), sampling, tokens, again);
  CHECK(again == text);
  int64_t accepted = 0;
  for (const auto& [name, n] : stats.accepted_by) accepted += n;
  CHECK(accepted == stats.drafted_nodes);  // every guess of the stand-in is right
  return counts;
}

// Its best guesses are the target's, in another order: the best one comes as the `place`-th.
struct Demoted : SelfDrafter<Mock> {
  int place;
  Demoted(Mock& own, int its_place) : SelfDrafter(own), place(its_place) {}
  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    SelfDrafter::expand(growth, nodes, n, width, draws, candidates, count);
    for (int k = 0; k < n; k++)
      std::rotate(candidates + k * width, candidates + k * width + 1, candidates + k * width + place + 1);
  }
};

Calibration example(const std::string& drafter, double temperature, double first) {
  Accuracy a;
  a.depths = 2, a.ranks = 3, a.rate = {first, 0.2, 0.1, 0.5, 0.25, 0}, a.seen = {40, 20}, a.expand_seconds = 2e-6;
  return {drafter, temperature, 60, a};
}

}  // namespace

TEST_CASE("calibration: a drafter that is the target is always right, with its first guess") {
  for (float temperature : {0.0f, 1.0f}) {
    Sampling sampling;
    sampling.temperature = temperature;
    Mock mock(20, 32, 1, 2), own(20, 32, 1, 2);
    SelfDrafter<Mock> self(own);
    const RankCounts counts = measured(mock, self, sampling, 4, 3, 100);
    const Accuracy a = counts.accuracy();
    CHECK(a.depths == 4);
    CHECK(a.ranks == 3);
    for (int d = 0; d < 4; d++) {
      CHECK(a.seen[d] >= 10);
      for (int r = 0; r < 3; r++) CHECK(a.at(d, r) == (r == 0));
    }
    CHECK(a.expand_seconds > 0);
    Demoted second(own, 1), third(own, 2);
    const Accuracy b = measured(mock, second, sampling, 4, 3, 100).accuracy();
    for (int d = 0; d < 4; d++)
      for (int r = 0; r < 3; r++) CHECK(b.at(d, r) == (r == 1));
    const Accuracy c = measured(mock, third, sampling, 4, 3, 100).accuracy();  // whom nobody follows
    CHECK(c.at(0, 2) == 1);
    CHECK(c.seen[0] > 90);
    CHECK(c.seen[1] == 0);
    CHECK(c.at(3, 2) == 1);  // for want of any
  }
}

TEST_CASE("calibration: a drafter that knows nothing is right as often as chance, and its path ends where it misses") {
  Sampling sampling;
  sampling.temperature = 0;
  Mock mock(8, 64, 0, 2);
  RandomLogits blind(8);
  const RankCounts counts = measured(mock, blind, sampling, 3, 4, 12000);
  for (int d = 0; d < 3; d++) {
    const double n = double(counts.seen[d]);
    for (int r = 0; r < 4; r++)  // each with a chance of 1 in 8, give or take four standard deviations
      CHECK(std::fabs(double(counts.right[d * 4 + r]) - n / 8) < 4 * std::sqrt(n * 7 / 64));
    const double above = d > 0 ? double(counts.seen[d - 1]) : 0;
    if (d > 0) CHECK(std::fabs(n - above / 4) < 4 * std::sqrt(above * 3 / 16) + above / 40);  // 2 of 8 are followed
  }
  RankCounts few(2, 1);
  few.seen = {100, 20}, few.right = {80, 0};
  CHECK(few.accuracy().at(0, 0) == 0.8);
  CHECK(few.accuracy().at(1, 0) == doctest::Approx(0.4));  // as much believed as the depth above
  RankCounts mute(4, 1);                                   // as heads below the last of them
  mute.seen = {100, 50, 3, 0}, mute.silent = {10, 0, 3, 0}, mute.right = {80, 40, 0, 0};
  const Accuracy heads = mute.accuracy();
  CHECK(heads.at(0, 0) == 0.8);
  CHECK(heads.at(1, 0) == doctest::Approx(0.8));
  CHECK(heads.at(2, 0) == 0);
  CHECK(heads.at(3, 0) == 0);  // nor anything below it
  const RankCounts unseen(2, 2);
  CHECK(unseen.accuracy().at(1, 0) == 0);
  CHECK(unseen.places() == 0);
}

TEST_CASE("calibration: a drafter that is silent below some depth is right there never") {
  struct Shallow : SelfDrafter<Mock> {
    using SelfDrafter::SelfDrafter;
    const float* logits(const Growth& growth, int node) override {
      return growth.depth[node] < 2 ? SelfDrafter::logits(growth, node) : nullptr;
    }
  };
  Mock mock(20, 64, 1, 2), own(20, 64, 1, 2);
  Shallow shallow(own);
  const Accuracy a = measured(mock, shallow, Sampling(), 4, 3, 50).accuracy();
  CHECK(a.at(1, 0) == 1);
  CHECK(a.seen[2] > 0);
  for (int d : {2, 3})
    for (int r = 0; r < 3; r++) CHECK(a.at(d, r) == 0);
}

TEST_CASE("calibration: the file keeps every drafter and temperature, the newest of each") {
  const Folder folder;
  const std::string path = folder.file("calibration.json");
  write_calibration(path, example("ngram:4", 1, 0.5));
  write_calibration(path, example("ngram:4", 0, 0.6));
  write_calibration(path, example("bigram", 1, 0.3));
  write_calibration(path, example("ngram:4", 1, 0.7));
  CHECK(read_calibrations(path).size() == 3);
  const Calibration one = find_calibration("", "ngram:4", folder.path, 0.8);
  CHECK(one.temperature == 1);
  CHECK(one.places == 60);
  CHECK(one.accuracy.rate == example("ngram:4", 1, 0.7).accuracy.rate);
  CHECK(one.accuracy.seen == std::vector<double>{40, 20});
  CHECK(one.accuracy.expand_seconds == 2e-6);
  CHECK(find_calibration(path, "ngram:4", "elsewhere", 0.3).temperature == 0);
  CHECK(find_calibration("", "bigram", folder.path, 5).accuracy.at(0, 0) == 0.3);
  CHECK(!std::filesystem::exists(temporary_name(path)));

  const auto missing = [&](const std::string& file, const std::string& dir) {
    return error_of([&] { find_calibration(file, "suffix", dir, 0.7); });
  };
  CHECK(missing("", folder.path) == "drafter suffix is not calibrated yet: " + path +
                                        ": run build/nanospec calibrate --model " + folder.path +
                                        " --drafter suffix --temperature 0.7 --data TEXT");
  CHECK(missing("/nowhere/c.json", "m") ==
        "nothing is calibrated yet: /nowhere/c.json: run build/nanospec calibrate --model m --drafter suffix "
        "--temperature "
        "0.7 --out /nowhere/c.json --data TEXT");
}

TEST_CASE("calibration: a broken file is refused with one line") {
  const Folder folder;
  const auto with = [&](const std::string& accuracy, const std::string& seen = "[1, 1]",
                        const std::string& rest = "\"temperature\": 1, \"places\": 2, \"expand_seconds\": 1e-6") {
    const std::string text = "{\"calibrations\": [{\"drafter\": \"bigram\", " + rest + ", \"seen\": " + seen +
                             ", \"accuracy\": " + accuracy + "}]}";
    return error_of([&] { read_calibrations(folder.file("c.json", text)); });
  };
  CHECK(with("[[0.5, 0.5], [1, 0]]") == "");
  CHECK(holds(with("[[0.5, 1.5], [1, 0]]"), "entry 1 has 1.5 among the rates"));
  CHECK(holds(with("[[0.5, -0.1], [1, 0]]"), "-0.1 among the rates"));
  CHECK(holds(with("[[0.5, \"x\"], [1, 0]]"), "\"x\" among the rates"));
  CHECK(holds(with("[[0.5, 0.6], [1, 0]]"), "add up to more than 1"));
  CHECK(holds(with("[[0.5, 0.5], [1]]"), "more rates at one depth than at another"));
  CHECK(holds(with("[[], []]"), "no rates at some depth"));
  CHECK(holds(with("[]"), "no \"accuracy\""));
  CHECK(holds(with("[0.5, 0.5]"), "no list of rates"));
  CHECK(holds(with("[[1]]"), "not one number of places seen for each depth"));
  CHECK(holds(with("[[1]]", "[-1]"), "places seen"));
  CHECK(holds(with("[[1]]", "[1]", "\"temperature\": -1, \"places\": 2, \"expand_seconds\": 1"), "no \"temperature\""));
  CHECK(holds(with("[[1]]", "[1]", "\"temperature\": 1, \"places\": 2"), "no \"expand_seconds\""));
  for (const char* text : {"{", "[]", "{}", "{\"calibrations\": 3}", "{\"calibrations\": [3]}", ""}) {
    const std::string line = error_of([&] { read_calibrations(folder.file("c.json", text)); });
    CHECK_MESSAGE(holds(line, folder.path), text);
    CHECK(line.find('\n') == std::string::npos);
    CHECK(error_of([&] { write_calibration(folder.file("c.json"), example("bigram", 1, 0.5)); }) == line);
    CHECK(read_file(folder.file("c.json")) == text);  // what it held is not lost
  }
}

TEST_CASE("shapes: static: paths of ranks in any order; a missing parent or sibling is named") {
  const Folder folder;
  const auto read = [&](const std::string& text) { return read_static(folder.file("t.json", text)); };
  const Template t = read("[[1], [0, 1, 0], [0], [0, 0], [2], [0, 1]]");
  CHECK(t.parent == std::vector<int>{-1, 0, 0, 0, 1, 1, 5});
  CHECK(t.rank == std::vector<int>{0, 0, 1, 2, 0, 1, 0});
  CHECK(t.level == std::vector<int>{0, 1, 4, 6, 7});

  const auto wrong = [&](const std::string& text) { return error_of([&] { read(text); }); };
  CHECK(wrong("[[0], [1, 0]]") == "the path [1,0] has no parent [1]: " + folder.file("t.json") +
                                      ": write a list of paths of ranks, for instance [[0], [0, 0], [1]]");
  CHECK(holds(wrong("[[0], [2]]"), "the path [2] has no sibling [1] before it"));
  CHECK(holds(wrong("[[0], [0, 1]]"), "the path [0,1] has no sibling [0,0] before it"));
  CHECK(holds(wrong("[[0], [0]]"), "the path [0] comes twice"));
  for (const char* text :
       {"[]", "{}", "3", "[[]]", "[0]", "[[\"a\"]]", "[[0.5]]", "[[-1]]", "[[4294967296]]", "[[0", ""})
    CHECK_MESSAGE(holds(wrong(text), folder.path), text);
  CHECK(holds(error_of([] { read_static("/nowhere/t.json"); }), "/nowhere/t.json"));
}

TEST_CASE("calibrate: rates stand in the model's folder, or beside its GGUF file") {
  CHECK(calibration_path("runs/small") == "runs/small/calibration.json");
  CHECK(calibration_path("models/x.Q4_1.gguf") == "models/x.Q4_1.calibration.json");
}

TEST_CASE("shapes: from files: what is made, and that no text depends on it") {
  const Folder folder;
  folder.file("t.json", "[[0], [1], [0, 0], [0, 1], [0, 0, 0], [1, 0]]");
  const Calibration calibration = example("bigram", 1, 0.7);
  write_calibration(calibration_path(folder.path), calibration);
  std::vector<double> seconds;
  for (int n = 0; n <= 16; n++) seconds.push_back(1e-5 * (10 + n));
  const Cost cost(seconds);
  const auto prepared = [&](const std::string& word, int budget) {
    Shape shape = parse_shape(word, budget);
    prepare_shape(shape, "bigram", folder.path, 1, &cost);
    return shape;
  };
  const auto same = [](const Template& a, const Template& b) { return a.parent == b.parent && a.rank == b.rank; };
  const std::string file = "static:" + folder.file("t.json");
  CHECK(prepared(file, 64).plan->nodes() == 6);
  CHECK(prepared(file, 3).plan->rank == std::vector<int>{0, 0, 1, 0});
  CHECK(same(*prepared("calibrated", 5).plan, calibrated_template(calibration.accuracy, 5)));
  const auto own = [&](int n) { return cost.seconds(n); };
  CHECK(same(*prepared("sequoia", 16).plan, sequoia_template(calibration.accuracy, 16, own)));
  CHECK(prepared("sequoia", 16).plan->nodes() > 1);
  CHECK(prepared("sequoia", 500).plan->nodes() <= 16);  // no costs are known beyond
  CHECK(parse_shape("chain:3", 8).plan->nodes() == prepared("chain:3", 8).plan->nodes());

  Mock mock(30, 32, 2, 1);
  RandomLogits drafter(30);
  for (float temperature : {0.0f, 1.0f}) {
    Sampling sampling;
    sampling.temperature = temperature;
    std::vector<int> plain = {4, 5};
    decode_mock(mock, nullptr, Shape(), sampling, 150, plain);
    for (const std::string& word :
         {file, std::string("calibrated"), std::string("sequoia:" + calibration_path(folder.path))})
      for (int budget : {1, 4, 16}) {
        std::vector<int> text = {4, 5};
        const Stats stats = decode_mock(mock, &drafter, prepared(word, budget), sampling, 150, text);
        CHECK(text == plain);
        CHECK(stats.drafted_nodes > 0);
      }
  }
}
