// tests/growth/test_calibration.cpp: growth/calibration.h: the file of rates, trees by hand, and the templates made of
// both.
#include "growth/calibration.h"

#include <doctest/doctest.h>

#include <thread>

#include "tests/command_line.h"
#include "tests/error_of.h"
#include "tests/mock.h"

using namespace nanospec;

namespace {

Calibration example(const std::string& drafter, double temperature, double first) {
  Accuracy a;
  a.depths = 2, a.ranks = 3, a.rate = {first, 0.2, 0.1, 0.5, 0.25, 0}, a.seen = {40, 20}, a.expand_seconds = 2e-6;
  return {drafter, temperature, 60, a};
}

}  // namespace

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

TEST_CASE("calibration: what several write at the same time stays") {
  const Folder folder;
  const std::string path = folder.file("calibration.json");
  std::vector<std::thread> threads;
  for (int i = 1; i <= 8; i++)
    threads.emplace_back([&path, i] { write_calibration(path, example(filled("ngram:{}", i), 1, 0.5)); });
  for (std::thread& thread : threads) thread.join();
  CHECK(read_calibrations(path).size() == 8);
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
