// tests/study/test_experiments.cpp: the parts of `experiments` that are pure: intervals, what is said of made-up
// outcomes, prompts. How the command runs is in tests/study/test_experiments_command.cpp.
#include <doctest/doctest.h>

#include "study/experiments.h"
#include "tests/error_of.h"
#include "tests/mock.h"

using namespace nanospec;

// ---------------------------------------------------------------------------------------------------------------
// Intervals

TEST_CASE("samples: intervals: Student's t, from its table and beyond") {
  CHECK(student_t(0) == 0);
  CHECK(student_t(1) == doctest::Approx(12.706));
  CHECK(student_t(9) == doctest::Approx(2.262));
  CHECK(student_t(30) == doctest::Approx(2.042));
  CHECK(student_t(44) == doctest::Approx(2.0154).epsilon(1e-4));  // 45 prompts
  CHECK(student_t(120) == doctest::Approx(1.9799).epsilon(1e-4));
  CHECK(student_t(1000000) == doctest::Approx(1.95996).epsilon(1e-5));
  for (size_t n = 1; n < 200; n++) CHECK(student_t(n) > student_t(n + 1));
}

TEST_CASE("samples: intervals: known numbers") {
  const Interval i = mean_interval({1, 2, 3, 4, 5});  // s = sqrt(2.5), t = 2.776
  CHECK(i.middle == doctest::Approx(3));
  CHECK(i.high - 3 == doctest::Approx(2.776 * std::sqrt(2.5 / 5)));
  CHECK(3 - i.low == doctest::Approx(i.high - 3));
  CHECK(mean_interval({}).middle == 0);
  for (double end : {mean_interval({7}).low, mean_interval({7}).middle, mean_interval({7}).high}) CHECK(end == 7);
  CHECK(mean_interval({2, 2, 2}).high == 2);

  const Interval ratio = ratio_interval({std::log(2.0), std::log(0.5)});  // these cancel out
  CHECK(ratio.middle == doctest::Approx(1));
  CHECK(ratio.low * ratio.high == doctest::Approx(1));
  CHECK(ratio.high == doctest::Approx(std::exp(12.706 * std::log(2.0))));  // s / sqrt(2) is log 2

  const Interval inverse = inverse_interval({0.25, 0.25, 0.5, 0.5});
  CHECK(inverse.middle == doctest::Approx(1 / 0.375));
  CHECK(inverse.low > 0);
  CHECK(inverse.low * inverse.high == doctest::Approx(inverse.middle * inverse.middle));
  CHECK(inverse_interval({}).high == 0);

  const Interval saved = percent_saved({2, 1.25, 4});
  CHECK(saved.middle == doctest::Approx(50));
  CHECK(saved.low == doctest::Approx(20));
  CHECK(saved.high == doctest::Approx(75));
  CHECK(percent_saved({0.5, 0.5, 0.5}).middle == doctest::Approx(-100));  // twice the time
  CHECK(with_interval({1.234, 1, 1.5}, 2) == "1.23 (1.00 to 1.50)");
}

// ---------------------------------------------------------------------------------------------------------------
// Studies

namespace {

Stats made_up(int64_t tokens, int64_t forwards, int64_t nodes, double seconds) {
  Stats s;
  s.tokens = tokens, s.target_forwards = forwards, s.drafted_nodes = nodes, s.seconds = seconds;
  return s;
}

// repeats x prompts
Outcome outcome_of(const std::vector<std::vector<Stats>>& repeats) {
  Outcome outcome;
  for (const std::vector<Stats>& prompts : repeats) {
    Run run;
    for (const Stats& s : prompts) add(run.stats, s), run.prompts.push_back(s);
    outcome.runs.push_back(run);
  }
  return outcome;
}

// Plain decoding takes 1 s for 10 tokens of the first prompt, 2 s of the second; everything in the second repeat takes
// three times as long. The chain is twice as fast on both, but for one run that was disturbed.
Experiment made_up_study() {
  Experiment study;
  study.trial.methods = {kPlain, matched("bigram", "chain:2"), matched("bigram", "best-first", 8)};
  study.trial.prompts = {"a", "b"};
  study.outcomes = {outcome_of({{made_up(10, 10, 0, 1), made_up(10, 10, 0, 2)},
                                {made_up(10, 10, 0, 3), made_up(10, 10, 0, 6)},
                                {made_up(10, 10, 0, 1), made_up(10, 10, 0, 2)}}),
                    outcome_of({{made_up(10, 5, 10, 0.5), made_up(10, 4, 8, 1)},
                                {made_up(10, 5, 10, 1.5), made_up(10, 4, 8, 3)},
                                {made_up(10, 5, 10, 50), made_up(10, 4, 8, 1)}}),
                    outcome_of({{made_up(10, 4, 32, 1), made_up(10, 4, 32, 2)},
                                {made_up(10, 4, 32, 3), made_up(10, 4, 32, 6)},
                                {made_up(10, 4, 32, 1), made_up(10, 4, 32, 2)}})};
  return study;
}

}  // namespace

TEST_CASE("experiments: pairs are those of one repeat and prompt, and a disturbed run does not show") {
  const Experiment study = made_up_study();
  CHECK(study.at(kPlain) == 0);
  CHECK(study.at(matched("bigram", "best-first", 8)) == 2);
  CHECK(!study.has(matched("bigram", "best-first", 16)));
  Method untold = matched("bigram", "chain:2");
  untold.knows_noise = false;
  CHECK(!study.has(untold));
  REQUIRE(study.gains(1, 0).size() == 2);
  CHECK(study.speedup(1, 0).middle == doctest::Approx(2));
  CHECK(study.speedup(1, 0).low == doctest::Approx(2));
  CHECK(study.speedup(0, 1).middle == doctest::Approx(0.5));
  CHECK(study.speedup(2, 0).middle == doctest::Approx(1));
  CHECK(percent_saved(study.speedup(1, 2)).middle == doctest::Approx(50));
  CHECK(study.tokens_per_forward(1).middle == doctest::Approx(20.0 / 9));
  CHECK(study.tokens_per_forward(2).low == doctest::Approx(2.5));
  CHECK(study.nodes_per_forward(1) == doctest::Approx(2));
  CHECK(study.nodes_per_forward(2) == doctest::Approx(8));
  CHECK(study.forwards_saved(1, 0).middle == doctest::Approx(std::sqrt(2 * 2.5)));
}

TEST_CASE("experiments: studies of several seeds are joined prompt by prompt") {
  Experiment study = made_up_study();
  Experiment other = made_up_study();
  for (Outcome& outcome : other.outcomes) outcome.runs.pop_back();
  other.outcomes[1].runs[0].prompts[0].target_forwards = 10;
  other.outcomes[2].difference = "byte 3";
  join(study, other);
  CHECK(study.trial.prompts.size() == 4);
  REQUIRE(study.outcomes[0].runs.size() == 2);
  CHECK(study.outcomes[1].runs[0].prompts.size() == 4);
  CHECK(study.outcomes[1].runs[0].stats.tokens == 40);
  CHECK(study.outcomes[0].speedups == std::vector<double>{1, 1});
  CHECK(study.tokens_per_forward(1).middle == doctest::Approx(80 / (5 + 4 + 10 + 4 + 5 + 4 + 5 + 4.0)));
  CHECK(error_of([&] {
          refuse_broken(broken(study.trial, study.outcomes));
        }).find("bigram best-first budget=8 (byte 3)") != std::string::npos);
  CHECK(broken(made_up_study().trial, made_up_study().outcomes) == "");
}

// ---------------------------------------------------------------------------------------------------------------
// Drafters that learn

namespace {

// What a drafter's first choices are worth along the mock's text, in chains of `depths`.
AlongCounts along(Drafter& drafter, float temperature, int depths, int tokens) {
  Mock mock(20, 128, 1, 2);  // whose window does not move
  Decoding decoding;
  decoding.sampling.temperature = temperature, decoding.max_new_tokens = tokens;
  std::vector<int> text = {1, 2, 3}, again = text;
  const auto go_on = [](int) { return true; };
  generate(mock, nullptr, decoding, text, go_on);
  AlongCounts counts(depths);
  Along stand_in(drafter, text, counts);
  decoding.shape = parse_shape("chain:" + std::to_string(depths), 64);
  const Stats stats = generate(mock, &stand_in, decoding, again, go_on);
  CHECK(again == text);
  CHECK(stats.target_forwards == (tokens + depths) / (depths + 1));  // whole chains, all of them accepted
  return counts;
}

// Says nothing below a depth, and counts a forward of its model for every node that it is asked about.
struct Shallow : SelfDrafter<Mock> {
  int most;
  Shallow(Mock& own, int most_depth) : SelfDrafter(own), most(most_depth) {}
  const float* logits(const Growth& growth, int node) override {
    return growth.depth[node] < most ? SelfDrafter::logits(growth, node) : nullptr;
  }
  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    model_forwards += n;
    SelfDrafter::expand(growth, nodes, n, width, draws, candidates, count);
  }
};

AlongCounts made_up_counts(int64_t right, int64_t places, double nats) {
  AlongCounts counts(2);
  counts.right = {right, 0}, counts.places = counts.judged = {places, 0}, counts.nats = {nats, 0};
  return counts;
}

}  // namespace

TEST_CASE("along: the same places for every drafter, whatever it says, but for the first forward") {
  for (float temperature : {0.0f, 1.0f}) {
    CAPTURE(temperature);
    Mock own(20, 128, 1, 2);
    SelfDrafter<Mock> self(own);
    const AlongCounts all = along(self, temperature, 4, 100);  // 20 forwards of 5
    CHECK(all.places == std::vector<int64_t>(4, 19));
    CHECK(all.right == all.places);
    CHECK(all.judged == all.places);
    CHECK(all.rounds == 19);
    CHECK(all.drafted() == 76);
    CHECK(all.model_forwards == 0);
    CHECK(all.seconds > 0);
    for (double nats : all.nats) CHECK(nats > 0);

    WrongDrafter<Mock> wrong(own);
    const AlongCounts none = along(wrong, temperature, 4, 100);
    CHECK(none.places == all.places);
    CHECK(none.right == std::vector<int64_t>(4, 0));
    for (int d = 0; d < 4; d++) CHECK(none.nats[d] == doctest::Approx(all.nats[d]));  // the same distribution

    Shallow shallow(own, 2);
    const AlongCounts half = along(shallow, temperature, 4, 100);
    for (int d = 0; d < 4; d++) CHECK(half.places[size_t(d)] == (d < 2 ? 19 : 0));
    CHECK(half.right == half.places);
    CHECK(half.rounds == 19);
    CHECK(half.model_forwards == 4 * 19);
  }
  const float logits[] = {1, 3, 2};
  CHECK(nats_of(logits, 3, 1) == doctest::Approx(std::log(1 + std::exp(-1.0) + std::exp(-2.0))));
  CHECK(nats_of(logits, 3, 0) == doctest::Approx(2 + std::log(1 + std::exp(-1.0) + std::exp(-2.0))));
}

TEST_CASE("experiments: drafters: accuracy over prompts, and over another drafter's on the same prompts") {
  const std::vector<AlongCounts> own = {made_up_counts(8, 10, 20), made_up_counts(6, 10, 10), AlongCounts(2)},
                                 other = {made_up_counts(6, 10, 30), made_up_counts(3, 10, 30), AlongCounts(2)};
  CHECK(right_at(own, 0).middle == doctest::Approx(0.7));
  CHECK(right_at(own, 1).middle == 0);
  const Interval above = right_above(own, other, 0);
  CHECK(above.middle == doctest::Approx(0.25));
  CHECK(above.high - above.middle == doctest::Approx(12.706 * 0.05));  // 0.2 and 0.3
  CHECK(nats_at(own, 0) == doctest::Approx(1.5));
  CHECK(nats_at(own, 1) == 0);
}

TEST_CASE(
    "experiments: drafters: prose has one speaker, structured prompts have the most changes of speaker that there "
    "are") {
  std::string text(100, 'x');
  text += "\n";
  for (int i = 0; i < 6; i++) text += "a long speech of one who says much, and more of it yet\n";
  for (int i = 0; i < 8; i++) text += "\nA" + std::to_string(i) + ":\nyes.\n";
  const Passages all = passages_of(text, 100, 3, 50);
  REQUIRE(all.prose.size() == 3);
  CHECK(all.prose_places == 6);  // whose end lies before the first empty line
  for (const std::string& prompt : all.prose) {
    CHECK(prompt.substr(0, 6) == "a long");
    CHECK(prompt.find("\n\n") == std::string::npos);
  }
  CHECK(all.turns == kTurns);
  REQUIRE(all.structured.size() == 3);
  for (const std::string& prompt : all.structured) {
    CHECK(prompt.size() == 50);
    int turns = 0;
    for (size_t at = 0; (at = prompt.find("\n\n", at)) != std::string::npos; at++) turns++;
    CHECK(turns >= kTurns);
    CHECK((prompt[0] == 'A' || prompt[0] == 'y'));
  }
  CHECK(all.structured[0] != all.structured[2]);
  CHECK(passages_of(text, 100, 3, 60).prose_places == 5);  // the last speech ends too soon
  const Passages many = passages_of(text, 100, 1000, 50);  // too many for four turns
  CHECK(many.turns == 1);
  CHECK(many.structured.size() == many.structured_places);
  const Passages flat = passages_of(std::string(500, 'a'), 100, 3, 50);
  CHECK(flat.prose.empty());
  CHECK(flat.structured.empty());
}

TEST_CASE("experiments: drafters: a loss against a table is said, with what explains it") {
  const Rated table = {"ngram:4 auto", 2, 0.7, 0.65, 1.5, 0.04};
  CHECK(why_slower({"medusa auto", 2, 0.5, 0.5, 2, 0.3}, table) == "");
  const std::string worse = why_slower({"medusa auto", 1.5, 0.6, 0.3, 1.75, 0.125}, table);
  CHECK(worse ==
        "medusa auto is slower than ngram:4 auto, 1.50x against 2.00x: it guesses the next token less well and its "
        "drafts take longer. Right at depth 1 60% against 70%, at depth 4 30% against 65%; cross-entropy at "
        "temperature 1 1.75 nats against 1.50; drafting takes 12% against 4% of the time.\n");
  const std::string below = why_slower({"medusa auto", 1.5, 0.8, 0.3, 1.2, 0.01}, table);
  CHECK(below.find(": it guesses less well further down. Right") != std::string::npos);
  CHECK(why_slower({"medusa auto", 1.9, 0.8, 0.7, 1, 0}, table).find("within what the clock") != std::string::npos);
}

TEST_CASE("experiments: drafters: what a trainer's file says") {
  const TrainingRun run = parse_training(
      R"({"parameters": 7, "seconds": 90, "peak_bytes": 1e6, "hidden_bytes": 500, "hidden_seconds": 60,
          "accuracy_bigram": [0.25, 0.1], "curve": [{"iteration": 10, "epoch": 0.5, "loss": 3, "accuracy": [0.2, 0.1]},
          {"iteration": 20, "epoch": 1, "loss": 2, "accuracy": [0.4, 0.3]}]})",
      "here");
  CHECK(run.seconds == 90);
  CHECK(run.state_bytes == 500);
  CHECK(run.state_seconds == 60);
  CHECK(run.bigram == 0.25);
  REQUIRE(run.curve.size() == 2);
  CHECK(run.curve[1].epoch == 1);
  CHECK(run.curve[1].accuracy == std::vector<double>{0.4, 0.3});
  CHECK(parse_training(R"({"hidden_bytes": 9, "hidden_seconds": 2})", "here").state_bytes == 9);
  const TrainingRun other = parse_training(R"({"curve": 5, "accuracy_bigram": [], "seconds": "long"})", "here");
  CHECK(other.curve.empty());
  CHECK(other.seconds == 0);
  CHECK(error_of([] { parse_training("{", "here"); }).find("here") != std::string::npos);
}

// ---------------------------------------------------------------------------------------------------------------
// Prompts

TEST_CASE("experiments: prompts are whole characters, at the beginning of lines, from the given place on") {
  std::string text(1000, 'a');
  text[910] = '\n', text[911] = 'b';
  const std::vector<std::string> prompts = prompts_of(text, 900, 2, 20);
  REQUIRE(prompts.size() == 2);
  CHECK(prompts[0] == "b" + std::string(19, 'a'));
  CHECK(prompts[1] == std::string(20, 'a'));
  std::string accents;
  for (int i = 0; i < 500; i++) accents += i == 0 ? "a" : "\xc3\xa9";
  for (const std::string& prompt : prompts_of(accents, 0, 5, 20)) {
    CHECK((prompt[0] & 0xc0) != 0x80);
    CHECK((prompt.back() & 0xc0) == 0x80);
  }
  CHECK(prompts_of("", 0, 3, 20).empty());
  Lab lab;
  lab.text = std::string(900, 'x') + std::string(100, 'y');
  for (const std::string& prompt : lab.held_out(4, 10)) CHECK(prompt == "yyyyyyyyyy");  // its last tenth alone
}
