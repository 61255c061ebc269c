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
  study.trial.prompts = {{"a"}, {"b"}};
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
  CHECK(study.at(matched("bigram", "best-first", 16)) == study.trial.methods.size());
  Method untold = matched("bigram", "chain:2");
  untold.knows_noise = false;
  CHECK(study.at(untold) == study.trial.methods.size());
  REQUIRE(study.gains(1, 0).size() == 2);
  CHECK(study.speedup(1, 0).middle == doctest::Approx(2));
  CHECK(study.speedup(1, 0).low == doctest::Approx(2));
  CHECK(study.speedup(0, 1).middle == doctest::Approx(0.5));
  CHECK(study.speedup(2, 0).middle == doctest::Approx(1));
  CHECK(kSpeed.over(study, 1, 2).middle == doctest::Approx(2));
  CHECK(study.tokens_per_forward(1).middle == doctest::Approx(20.0 / 9));
  CHECK(study.tokens_per_forward(2).low == doctest::Approx(2.5));
  CHECK(study.nodes_per_forward(1) == doctest::Approx(2));
  CHECK(study.nodes_per_forward(2) == doctest::Approx(8));
  CHECK(study.forwards_saved(1, 0).middle == doctest::Approx(std::sqrt(2 * 2.5)));
}

TEST_CASE("experiments: a text that should be plain's and is not is refused") {
  Experiment study = made_up_study();
  CHECK(broken(study.trial, study.outcomes) == "");
  study.outcomes[2].difference = "byte 3";
  CHECK(error_of([&] {
          refuse_broken(broken(study.trial, study.outcomes));
        }).find("bigram best-first budget=8 (byte 3)") != std::string::npos);
}

TEST_CASE("experiments: methods are written out, in order, none twice") {
  const auto texts = [](const std::string& text) {
    std::vector<std::string> all;
    for (const Method& method : methods_of(text, {{'%', "gpt:a b"}})) all.push_back(method_text(method));
    return all;
  };
  CHECK(texts("bigram chain:2") == std::vector<std::string>{"bigram chain:2"});
  CHECK(texts("bigram {auto|beam:4} budget={8|16};bigram auto budget=8;'%' chain:2") ==
        std::vector<std::string>{"bigram auto budget=8", "bigram auto budget=16", "bigram beam:4 budget=8",
                                 "bigram beam:4 budget=16", "\"gpt:a b\" chain:2"});
}

TEST_CASE("experiments: passages begin a line and have as many changes of speaker as were asked for") {
  std::string text(100, 'x');
  text += "\n";
  for (int i = 0; i < 6; i++) text += "a long speech of one who says much, and more of it yet\n";
  for (int i = 0; i < 8; i++) text += "\nA" + std::to_string(i) + ":\nyes.\n";
  const std::vector<std::string> prose = passages_of(text, 100, 3, 50, 0, 0);
  REQUIRE(prose.size() == 3);
  for (const std::string& prompt : prose) {
    CHECK(prompt.substr(0, 6) == "a long");
    CHECK(prompt.find("\n\n") == std::string::npos);
  }
  const std::vector<std::string> structured = passages_of(text, 100, 3, 50, 4, 100);
  REQUIRE(structured.size() == 3);
  for (const std::string& prompt : structured) {
    CHECK(prompt.size() == 50);
    int turns = 0;
    for (size_t at = 0; (at = prompt.find("\n\n", at)) != std::string::npos; at++) turns++;
    CHECK(turns >= 4);
    CHECK((prompt[0] == 'A' || prompt[0] == 'y'));
  }
  CHECK(structured[0] != structured[2]);
  CHECK(passages_of(text, 100, 1000, 50, 0, 0).size() == 6);  // whose end lies before the first empty line
  CHECK(passages_of(text, 100, 1000, 60, 0, 0).size() == 5);  // the last speech ends too soon
  CHECK(passages_of(std::string(500, 'a'), 100, 3, 50, 0, 100).empty());
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
  for (const std::string& prompt : prompts_of(lab.text, held_out_begin(lab.text), 4, 10))
    CHECK(prompt == "yyyyyyyyyy");  // its last tenth alone
}
