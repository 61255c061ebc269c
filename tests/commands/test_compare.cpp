// tests/commands/test_compare.cpp: nanospec compare, over the engine that stands in.
#include <doctest/doctest.h>

#include "commands/commands.h"
#include "commands/comparison.h"
#include "tests/command_line.h"
#include "tests/commands/small.h"
#include "tests/commands/stand_in.h"
#include "tests/error_of.h"
#include "tests/picture.h"

using namespace nanospec;

TEST_CASE("compare: the order rotates, and the plain run of the same repeat is what a speedup is paired with") {
  double drift = 1;  // every run is slower than the one before it
  script = [&](const Method& method, int n) {
    Generated g = steady(method, n);
    if (calls.size() > 1 && (calls.size() - 2) % 3 == 0) drift *= 2;
    g.stats.seconds *= drift;
    return g;
  };
  const Folder folder;
  run(compare_command, {"--model", "m", "--prompt", "A", "--max_new_tokens", "10", "--methods",
                        "bigram chain:2; none; bigram chain:4", "--repeat", "3", "--json", folder.file("c.json")});
  Words order;
  for (const Call& call : calls) order.push_back(call.method);
  CHECK(order == Words{"none", "bigram chain:2", "none", "bigram chain:4", "none", "bigram chain:4", "bigram chain:2",
                       "bigram chain:4", "bigram chain:2", "none"});
  const Json json = Json::parse(read_file(folder.file("c.json")));
  REQUIRE(json["methods"].size() == 3);
  const Json& chain = json["methods"][2];
  CHECK(chain["method"] == "bigram chain:4");
  CHECK(chain["runs"].size() == 3);
  CHECK(chain["speedup_lowest"] == 2.0);
  CHECK(chain["speedup_highest"] == 2.0);
  CHECK(chain["tokens_per_second"] == 5.0);  // 10, 5 and 2.5
  CHECK(json["plain_spread"] == 3.0);
}

TEST_CASE("compare: plain decoding is added where it is not asked for; several prompts are summed") {
  script = steady;
  const Folder folder;
  write_file(folder.file("p.jsonl"), "{\"prompt\": \"A\"}\n{\"prompt\": \"BC\"}\n");
  const std::string out =
      run(compare_command, {"--model", "m", "--prompts", folder.file("p.jsonl"), "--max_new_tokens", "8", "--methods",
                            "bigram chain:2", "--repeat", "2", "--json", folder.file("c.json")});
  CHECK(calls.size() == 2 + 2 * 2 * 2);
  CHECK(calls[1].prompt == std::vector<int>{'B', 'C'});
  CHECK(contains(out, "bigram chain:2"));
  CHECK(contains(out, "2.00 times as fast (2.00 to 2.00)"));
  const Json json = Json::parse(read_file(folder.file("c.json")));
  CHECK(json["methods"][0]["method"] == "none");
  CHECK(json["methods"][1]["runs"][0]["tokens"] == 16);
  CHECK(json["methods"][1]["identical"] == true);
}

TEST_CASE("compare: with --chat prompts are questions in the model's template") {
  const StandInEngine before = stand_in();
  stand_in().tokenizer = small();
  stand_in().tokenizer.chat_template = "'<|im_start|>system\nYou help.<|im_end|>'";
  script = [](const Method&, int) {
    Generated g;
    g.tokens = tokens_of("Yes.<|im_end|>");
    g.stats.tokens = 1, g.stats.seconds = 1, g.stats.target_forwards = 1;
    return g;
  };
  const Folder folder;
  write_file(folder.file("p.jsonl"), "{\"prompt\": \"A\"}\n{\"kind\": \"b\", \"prompt\": \"<|im_end|>\"}\n");
  const Words usual = {"--model", "m", "--prompts", folder.file("p.jsonl"), "--repeat", "1", "--methods", "none"};
  const auto with = [&](const Words& more) {
    Words words = usual;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  run(compare_command, with({"--chat", "--system", "Be."}));
  const std::string begin = "<|im_start|>system\nBe.<|im_end|>\n<|im_start|>user\n";
  CHECK(calls[0].prompt == tokens_of(begin + "A<|im_end|>\n<|im_start|>assistant\n"));
  CHECK(calls[1].prompt.size() > calls[0].prompt.size());  // what a prompt says is plain text
  run(compare_command, with({}));
  CHECK(calls[0].prompt == tokens_of("A"));
  CHECK(contains(BAD_COMMAND_LINE(run(compare_command, with({"--system", "Be."}))), "--system is part of a chat"));

  // A line may have the messages of a chat, which is one whether --chat is given or not.
  const auto lines = [&](const std::string& text) { write_file(folder.file("p.jsonl"), text); };
  lines(
      "{\"messages\": [{\"role\": \"user\", \"content\": \"A\"}, {\"role\": \"assistant\", \"content\": \"B\"}, "
      "{\"role\": \"user\", \"content\": \"C\"}]}\n{\"prompt\": \"A\"}\n");
  run(compare_command, with({"--json", folder.file("c.json")}));
  CHECK(calls[0].prompt == tokens_of("<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nA<|im_end|>\n"
                                     "<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\nC<|im_end|>\n"
                                     "<|im_start|>assistant\n"));
  CHECK(calls[1].prompt == tokens_of("A"));
  CHECK(Json::parse(read_file(folder.file("c.json")))["prompts"] == Json({"C", "A"}));
  const auto refused = [&](const std::string& text) {
    lines("{\"prompt\": \"A\"}\n" + text);
    return error_of([&] { run(compare_command, with({})); });
  };
  CHECK(
      contains(refused("{\"messages\": []}"), "the last message is not the user's: " + folder.file("p.jsonl, line 2")));
  CHECK(contains(refused("{\"messages\": [], \"prompt\": \"A\"}"), "\"prompt\" and \"messages\", both: "));
  CHECK(contains(refused("{\"prompt\": \"\"}"), "an empty prompt: " + folder.file("p.jsonl, line 2")));
  stand_in() = before;
}

TEST_CASE("compare: the last sentence says no more than the table") {
  // Seconds of each method's runs, one a repeat; the warm-up comes before them.
  const auto sentence = [](const std::map<std::string, std::vector<double>>& seconds) {
    std::map<std::string, size_t> runs;
    std::string methods;
    size_t repeats = 0;
    for (const auto& [method, all] : seconds) {
      methods += (methods.empty() ? "" : "; ") + method;
      repeats = all.size();
    }
    script = [&](const Method& method, int n) {
      Generated g = steady(method, n);
      const std::string name = method_text(method);
      const size_t run = runs[name]++;
      const bool warm = name == "none" && run == 0;
      g.stats.seconds = warm ? 1 : seconds.at(name)[run - (name == "none")];
      return g;
    };
    const std::string out = run(compare_command, {"--model", "m", "--prompt", "A", "--max_new_tokens", "8", "--methods",
                                                  methods, "--repeat", std::to_string(repeats)});
    const size_t at = out.find(" plain decoding's bytes; ");
    REQUIRE(at != std::string::npos);
    return out.substr(at + 25, out.find('\n', at) - at - 25);
  };
  const std::string a = "bigram chain:2", b = "bigram chain:4", none = "none";
  CHECK(sentence({{none, {1, 1, 1}}, {a, {0.5, 0.6, 0.8}}, {b, {0.9, 0.9, 0.9}}}) ==
        "the fastest, bigram chain:2, is 1.67 times as fast (1.25 to 2.00).");
  // 1.16 (0.83 to 1.17): and fewer tokens a second than plain decoding.
  CHECK(sentence({{none, {1, 1, 1.4}}, {a, {1.2, 0.86, 1.2}}}) == "no method was faster than it in every repeat.");
  CHECK(sentence({{none, {1, 1, 1}}, {a, {1.1, 1, 1.2}}}) == "no method is faster than it here.");
  CHECK(sentence({{none, {1, 1, 1}}, {a, {0.999, 0.9, 0.8}}}) == "no method was faster than it in every repeat.");
  // One is sure, another may be faster; and the two columns put another first.
  CHECK(sentence({{none, {1, 1, 1}}, {a, {0.8, 0.8, 0.8}}, {b, {1.2, 0.5, 0.5}}}) ==
        "1 was faster in every repeat; which is the fastest, the repeats do not tell.");
  CHECK(sentence({{none, {1, 1, 1.9}}, {a, {0.8, 0.8, 0.9}}, {b, {0.75, 0.85, 0.7}}}) ==
        "the fastest, bigram chain:4, is 1.33 times as fast (1.18 to 2.71).");
  CHECK(sentence({{none, {1, 1.2, 1.9}}, {a, {0.8, 0.8, 1.5}}, {b, {0.84, 0.7, 1.6}}}) ==
        "the fastest, bigram chain:2, is 1.27 times as fast (1.25 to 1.50).");
}

TEST_CASE("compare: another text is a bug when the method is exact, and said in words when it is biased") {
  script = [](const Method& method, int n) {
    Generated g = steady(method, n);
    if (method.shape == "chain:3") g.tokens[5] = '!';
    return g;
  };
  const Folder folder;
  const auto words = [&](const std::string& methods) {
    return Words{"--model", "m",        "--prompt", "AB",     "--max_new_tokens",    "10",    "--methods",
                 methods,   "--repeat", "2",        "--json", folder.file("c.json"), "--svg", folder.file("c.svg")};
  };
  const std::string biased = run(compare_command, words("none; bigram chain:3 verify=independent"));
  CHECK(contains(biased, "biased rule, from byte 8"));
  CHECK(Json::parse(read_file(folder.file("c.json")))["methods"][1]["first_difference"] == "byte 8");
  CHECK(contains(read_file(folder.file("c.svg")), "biased"));
  CHECK(contains(run(compare_command, words("none; bigram chain:3 verify=rejection")), "other draws, from byte 8"));
  CHECK(contains(run(compare_command, words("none; bigram chain:3 verify=typical")), "lossy rule, from byte 8"));
  CHECK(contains(read_file(folder.file("c.svg")), ", lossy"));

  std::string line;
  const std::string out = captured(1, [&] {
    Words broken = words("none; bigram chain:3; bigram chain:2");
    broken.insert(broken.begin(), {"compare"});
    std::vector<char*> argv = arguments(broken);
    line = line_of<std::runtime_error>([&] { compare_command(int(argv.size()), argv.data()); });
  });
  CHECK(contains(line, "bigram chain:3 (byte 8)"));
  CHECK(contains(out, "NO, from byte 8"));
  CHECK(!contains(out, "times as fast"));
}

TEST_CASE("compare: the picture is whole and escapes what it is told") {
  script = steady;
  const Folder folder;
  run(compare_command,
      {"--model", "a<b&c", "--prompt", "A", "--max_new_tokens", "4", "--repeat", "1", "--svg", folder.file("c.svg")});
  const std::string svg = read_file(folder.file("c.svg"));
  CHECK(svg.substr(0, 5) == "<svg ");
  CHECK(svg.substr(svg.size() - 7) == "</svg>\n");
  CHECK(contains(svg, "a&lt;b&amp;c"));
  CHECK(picture_problem(svg) == "");
  for (const char* word : {"none", "0", "tokens per second, median of 1 repeat"})
    CHECK_MESSAGE(read_picture(svg).word(word).left > 0, word);
}

TEST_CASE("compare: prompts out of the text that was held out") {
  script = steady;
  const Folder folder;
  std::string text;
  for (int i = 0; i < 200; i++) text += "line " + std::to_string(1000 + i) + "\n";
  write_file(folder.file("t.txt"), text);
  run(compare_command, {"--model", "m", "--data", folder.file("t.txt"), "--held_out", "3", "--max_new_tokens", "4",
                        "--repeat", "1", "--json", folder.file("c.json")});
  const Json json = Json::parse(read_file(folder.file("c.json")));
  REQUIRE(json["prompts"].size() == 3);
  CHECK(json["prompts"][0].get<std::string>().substr(0, 10) == "line 1181\n");
  CHECK(json["prompts"][2].get<std::string>().size() == kHeldOutBytes);
  const auto attempt = [](Words words) {
    words.insert(words.begin(), {"compare", "--model", "m"});
    std::vector<char*> argv = arguments(words);
    compare_command(int(argv.size()), argv.data());
  };
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--prompt", "A", "--data", "x"})), "more than one prompt"));
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--prompt", "A", "--held_out", "2"})), "add --data FILE"));
  write_file(folder.file("empty"), "");
  CHECK(contains(error_of([&] { attempt({"--data", folder.file("empty")}); }), "the text is empty"));
  CHECK(contains(
      error_of([&] {
        attempt({"--prompt", "A", "--methods", "bigram calibrated"});
      }),
      "nothing is calibrated yet: m/calibration.json: run build/nanospec calibrate --model m --drafter bigram"));
}

TEST_CASE(
    "compare: run_all: prompt by prompt, the order rotates with the prompts too, and each prompt has its figures") {
  script = [](const Method& method, int n) {
    Generated g = steady(method, n);
    g.stats.seconds = double(calls.size());
    return g;
  };
  calls.clear();
  Trial trial;
  trial.methods = parse_methods("none; bigram chain:2", 64);
  trial.prompts = {{"A"}, {"B"}, {"C"}};
  trial.repeats = 2, trial.by_prompt = trial.own_noise = true;
  trial.options.max_new_tokens = 4;
  Engine engine(trial.options.settings);
  const std::vector<Outcome> outcomes = run_all(trial, engine, [](const std::string&, double) {});
  std::string order;
  for (size_t i = 3; i < calls.size(); i++)
    order += std::string(1, char(calls[i].prompt[0])) + (calls[i].method == "none" ? "0" : "1");
  CHECK(order == "A0A1B1B0C0C1A1A0B0B1C1C0");
  for (const Call& call : calls) CHECK(call.sequence == call.prompt[0] - 'A');
  REQUIRE(outcomes[1].runs.size() == 2);
  REQUIRE(outcomes[1].runs[1].prompts.size() == 3);
  CHECK(outcomes[1].runs[1].stats.tokens == 12);
  CHECK(outcomes[1].runs[1].prompts[2].seconds == 3 + 11);
  CHECK(outcomes[0].runs[1].prompts[2].seconds == 3 + 12);
  CHECK(outcomes[1].speedups.size() == 2);
}
