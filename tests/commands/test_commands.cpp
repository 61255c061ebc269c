// tests/commands/test_commands.cpp: what commands share: methods, outputs, prompts, over the engine that stands in.
#include <doctest/doctest.h>

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "commands/calibration.h"
#include "commands/commands.h"
#include "study/bench.h"
#include "study/study.h"
#include "tests/command_line.h"
#include "tests/commands/stand_in.h"
#include "tests/error_of.h"

using namespace nanospec;

// ---------------------------------------------------------------------------------------------------------------
// Methods

TEST_CASE("commands: counts for people") {
  CHECK(count(1, "token") == "1 token");
  CHECK(count(1200, "token") == "1,200 tokens");
}

TEST_CASE("commands: methods: drafter, shape, rule") {
  const std::vector<Method> methods =
      parse_methods(" none;bigram chain:4 ; bigram  tree:3x2 verify=independent;bigram;bigram auto budget=8", 64);
  REQUIRE(methods.size() == 5);
  CHECK(method_text(methods[0]) == "none");
  CHECK(method_text(methods[1]) == "bigram chain:4");
  CHECK(method_text(methods[2]) == "bigram tree:3x2 verify=independent");
  CHECK(method_text(methods[3]) == "bigram auto");
  CHECK(promise_of(methods[0]) == Promise::kSameBytes);
  CHECK(promise_of(methods[1]) == Promise::kSameBytes);
  CHECK(promise_of(methods[2]) == Promise::kBiased);
  CHECK(promise_of({"bigram", "chain:2", "rejection"}) == Promise::kSameDistribution);
  CHECK(promise_of({"bigram", "tree:2x2", "traversal"}) == Promise::kSameDistribution);
  CHECK(promise_of({"bigram", "auto", "typical"}) == Promise::kLossy);
  CHECK(most_nodes(methods[0], 64) == 0);
  CHECK(most_nodes(methods[1], 64) == 4);
  CHECK(most_nodes(methods[2], 64) == 14);
  CHECK(most_nodes(methods[3], 64) == 64);
  CHECK(method_text(methods[4]) == "bigram auto budget=8");
  CHECK(most_nodes(methods[4], 64) == 8);
  CHECK(method_json(methods[4])["budget"] == 8);

  const std::vector<Method> told = parse_methods("bigram chain:4 noise=unknown; bigram chain:4 noise=known", 64);
  CHECK(!told[0].knows_noise);
  CHECK(told[1].knows_noise);
  CHECK(method_text(told[0]) == "bigram chain:4 noise=unknown");
  CHECK(method_text(told[1]) == "bigram chain:4");
  CHECK(promise_of(told[0]) == Promise::kSameBytes);
  CHECK(method_json(told[0])["noise"] == "unknown");

  const std::vector<Method> ahead = parse_methods("gpt:x chain:4 ahead=on; gpt:x ahead=auto; gpt:x ahead=off", 64);
  CHECK(method_text(ahead[0]) == "gpt:x chain:4 ahead=on");
  CHECK(method_text(ahead[1]) == "gpt:x auto ahead=auto");
  CHECK(method_text(ahead[2]) == "gpt:x auto");
  CHECK(method_json(ahead[1])["ahead_wanted"] == "auto");
  CHECK(promise_of(ahead[0]) == Promise::kSameBytes);
  CHECK(contains(BAD_COMMAND_LINE(parse_methods("gpt:x ahead=yes", 64)), "on"));
  CHECK(contains(BAD_COMMAND_LINE(parse_methods("gpt:x tree:2x2 verify=traversal ahead=on", 64)), "--verify match"));
}

TEST_CASE("commands: drafting ahead: what came of it, in words and in the statistics") {
  Stats sum, part;
  CHECK(ahead_text(sum.ahead) == "");
  part.ahead.wanted = true;
  CHECK(contains(ahead_text(part.ahead), "not used: this drafter cannot"));
  AheadStats& a = part.ahead;
  a.able = true, a.forwards = 10, a.forwards_without = 50, a.outcomes = 30, a.hits = 6, a.misses = 3,
  a.seconds_saved = 0.25;
  a.forward_seconds = 12, a.forward_seconds_without = 50, a.gain = 0.82;
  for (const char* said : {"not used: 0.82 of the speed without", "30 trees in 10 forwards", "67% hits", "1.20 times"})
    CHECK(contains(ahead_text(a), said));
  a.gain = 1.07, a.forwards_without = 5, a.forward_seconds_without = 5;
  CHECK(ahead_text(a).find("used: 1.07") == 0);
  add(sum, part), add(sum, part);
  CHECK(sum.ahead.forwards == 20);
  CHECK(sum.ahead.hits == 12);
  CHECK(sum.ahead.fan_out() == 3);
  CHECK(sum.ahead.contention() == doctest::Approx(1.2));
  CHECK(sum.ahead.able);
}

TEST_CASE("commands: methods: a shape's own settings stand behind its colon") {
  const std::vector<Method> methods =
      parse_methods("bigram entropy-stop:threshold=0.5,of=confidence budget=8; bigram static:a=b.json", 64);
  REQUIRE(methods.size() == 2);
  CHECK(methods[0].shape == "entropy-stop:threshold=0.5,of=confidence");
  CHECK(methods[0].budget == 8);
  CHECK(methods[1].shape == "static:a=b.json");
  CHECK(method_text(methods[0]) == "bigram entropy-stop:threshold=0.5,of=confidence budget=8");
}

TEST_CASE("commands: methods: quotes hold a name with blanks together") {
  const std::vector<Method> methods = parse_methods(
      "'gpt:my models/small' chain:4; bigram \"static:a;b c.json\" budget=8;\tgpt:\"it's mine\"\tauto;", 64);
  REQUIRE(methods.size() == 3);
  CHECK(methods[0].drafter == "gpt:my models/small");
  CHECK(methods[0].shape == "chain:4");
  CHECK(methods[1].shape == "static:a;b c.json");
  CHECK(methods[1].budget == 8);
  CHECK(methods[2].drafter == "gpt:it's mine");
  CHECK(method_text(methods[2]) == "\"gpt:it's mine\" auto");
  for (const Method& method : methods) {  // what is shown is read again
    const std::vector<Method> again = parse_methods(method_text(method), 64);
    REQUIRE(again.size() == 1);
    CHECK(again[0].drafter == method.drafter);
    CHECK(again[0].shape == method.shape);
  }
  CHECK(contains(BAD_COMMAND_LINE(parse_methods("none; gpt:'my model auto", 64)), "a quote is never closed"));
  CHECK(contains(BAD_COMMAND_LINE(parse_methods("''", 64)), "unknown drafter ''"));
}

TEST_CASE("commands: methods: mistakes name the method and the nearest word") {
  CHECK(contains(BAD_COMMAND_LINE(parse_methods("none; bigrams chain:4", 64)), "did you mean bigram?"));
  CHECK(contains(BAD_COMMAND_LINE(parse_methods("none; bigrams chain:4", 64)), "method 2"));
  CHECK(contains(BAD_COMMAND_LINE(parse_methods("bigram chian:4", 64)), "chain"));
  CHECK(contains(BAD_COMMAND_LINE(parse_methods("bigram chain:4 verify=matchh", 64)), "match"));
  CHECK(contains(BAD_COMMAND_LINE(parse_methods("bigram chain:4 verfy=match", 64)), "did you mean verify?"));
  CHECK(contains(BAD_COMMAND_LINE(parse_methods("bigram auto budget=0", 64)),
                 "out of range: --methods, method 1, budget"));
  CHECK(contains(BAD_COMMAND_LINE(parse_methods("bigram chain:4 budget=3", 64)), "the budget is 3"));
  CHECK(contains(BAD_COMMAND_LINE(parse_methods("bigram chain:4 chain:5", 64)), "surplus word 'chain:5'"));
  CHECK(contains(BAD_COMMAND_LINE(parse_methods("", 64)), "there is no method"));
  CHECK(contains(BAD_COMMAND_LINE(parse_methods(" ; ;", 64)), "there is no method"));
  for (const char* part : {"65", "64"}) CHECK(contains(BAD_COMMAND_LINE(parse_methods("bigram chain:65", 64)), part));
  CHECK_THROWS_AS(parse_methods("bigram tree:3x2 verify=rejection", 64), std::invalid_argument);
  CHECK(contains(BAD_COMMAND_LINE(parse_methods("bigram chain:4 noise=unkown", 64)), "did you mean unknown?"));
  CHECK(contains(BAD_COMMAND_LINE(parse_methods("bigram chain:4 verify=rejection noise=unknown", 64)),
                 "no drafter knows the noise under rule rejection"));
  CHECK(contains(BAD_COMMAND_LINE(parse_methods("bigram auto verify=specinfer", 64)), "tree:DxW"));
}

TEST_CASE("commands: outputs that would lose something are refused by every command, before its work") {
  script = steady;
  const Folder folder;
  const std::string model = folder.file("model.safetensors", "weights"), text = folder.file("text", "a text");
  calls.clear();
  const auto refused = [&](int (*command)(int, char**), Words words) {
    words.insert(words.begin(), "command");
    std::vector<char*> argv = arguments(words);
    return BAD_COMMAND_LINE(command(int(argv.size()), argv.data()));
  };
  const Words one = {"--model", folder.path, "--prompt_file", text};
  const std::vector<std::pair<int (*)(int, char**), Words>> outputs = {{generate_command, {"--stats"}},
                                                                       {compare_command, {"--json", "--svg"}},
                                                                       {diagnose_command, {"--json", "--svg"}},
                                                                       {show_command, {"--html"}},
                                                                       {calibrate_command, {"--out"}}};
  for (const auto& [command, flags] : outputs)
    for (const std::string& flag : flags) {
      for (const std::string& path : {model, text}) {
        Words words = one;
        words.insert(words.end(), {flag, path});
        CHECK(contains(refused(command, words), flag + " would write over "));
      }
      if (flag != "--svg") continue;
      Words words = one;
      words.insert(words.end(), {"--svg", folder.file("x"), "--json", folder.file("x")});
      CHECK(contains(refused(command, words), " are one file"));
    }
  CHECK(contains(refused(exact_command, {"--json", model}), "a file of a model"));
  const std::string shape = folder.file("tree.json", "[[0]]");
  CHECK(contains(
      refused(generate_command, {"--model", "m", "--prompt", "A", "--shape", "static:" + shape, "--stats", shape}),
      "would write over what this run reads"));
  CHECK(contains(refused(compare_command,
                         {"--model", "m", "--prompt", "A", "--methods", "bigram static:" + shape, "--svg", shape}),
                 "would write over what this run reads"));
  CHECK(calls.empty());
  CHECK(read_file(model) == "weights");
  CHECK(read_file(text) == "a text");
}

// ---------------------------------------------------------------------------------------------------------------
// The text that a model learned

namespace {

// Commands run in this folder, which has data/ with both texts of `make data`, and models by the text that they name.
struct Place {
  Folder folder;
  std::filesystem::path before = std::filesystem::current_path();
  Place() {
    std::filesystem::current_path(folder.path);
    std::filesystem::create_directory("data");
    for (const char* name : {"tinyshakespeare", "shakespeare", "mine"}) {
      write_file(std::string("data/") + name + ".txt", text(name));
      model(name, name, text(name));
    }
    model("lost", "lost", "a text that is nowhere");
    std::filesystem::create_directory("silent");
    write_safetensors("silent/model.safetensors", {}, {});
  }
  ~Place() { std::filesystem::current_path(before); }
  static std::string text(const std::string& name) {
    std::string text;
    for (int i = 0; i < 400; i++) text += name + " " + std::to_string(1000 + i) + "\n";
    return text;
  }
  static void model(const std::string& dir, const std::string& name, const std::string& text) {
    std::filesystem::create_directory(dir);
    write_safetensors(dir + "/model.safetensors", {}, {{"text", name + ".txt"}, {"text_sha256", sha256(text)}});
  }
};

// Runs a command and returns the notes that it says on standard error. A slow machine gets lines of progress there too.
std::string said_by_command(int (*command)(int, char**), Words words) {
  words.insert(words.begin(), "command");
  notes() = Notes();
  std::string said;
  captured(1, [&] {
    said = captured(2, [&] {
      std::vector<char*> argv = arguments(words);
      CHECK(command(int(argv.size()), argv.data()) == 0);
    });
  });
  notes() = Notes();
  std::istringstream lines(said);
  std::string only;
  for (std::string line; std::getline(lines, line);)
    if (line.compare(0, 6, "note: ") == 0) only += line + "\n";
  return only;
}

}  // namespace

TEST_CASE("commands: prompts come from the text that the model learned, whichever it was") {
  script = steady;
  const Place place;
  const auto prompts = [](const std::string& model) {
    const std::string said = said_by_command(compare_command, {"--model", model, "--held_out", "2", "--max_new_tokens",
                                                               "4", "--repeat", "1", "--json", "c.json"});
    CHECK(said == "");
    return Json::parse(read_file("c.json"))["prompts"];
  };
  CHECK(prompts("tinyshakespeare")[0].get<std::string>().substr(0, 21) == "tinyshakespeare 1361\n");
  CHECK(prompts("shakespeare")[0].get<std::string>().substr(0, 17) == "shakespeare 1361\n");
  CHECK(prompts("mine")[1].get<std::string>().substr(0, 10) == "mine 1381\n");
  CHECK(prompts("silent")[0].get<std::string>().substr(0, 21) == "tinyshakespeare 1361\n");
  std::filesystem::remove("data/tinyshakespeare.txt");
  CHECK(prompts("silent")[0].get<std::string>().substr(0, 17) == "shakespeare 1361\n");
  Words words = {"compare", "--model", "lost"};
  std::vector<char*> argv = arguments(words);
  const std::string data = std::filesystem::current_path().string() + "/data";
  CHECK(contains(BAD_COMMAND_LINE(compare_command(3, argv.data())),
                 "there is no prompt, and the text that the model learned, lost.txt, is not in " + data +
                     ": nanospec compare: add --pro"));
  words[0] = "perplexity", argv = arguments(words);
  CHECK(contains(BAD_COMMAND_LINE(perplexity_command(3, argv.data())),
                 "there is no text, and the text that the model learned, lost.txt, is not in " + data));
  words[2] = "silent", argv = arguments(words);
  std::filesystem::rename("data", "elsewhere");
  CHECK(contains(BAD_COMMAND_LINE(perplexity_command(3, argv.data())),
                 "there is no text, and the text that the model learned is not in " + data));
  std::filesystem::rename("elsewhere", "data");
  CHECK(find_text("lost", true) == "data/shakespeare.txt");
  CHECK(find_text("tinyshakespeare", false) == "");
}

TEST_CASE("commands: a text that the model did not learn is said where prompts are taken from it") {
  script = steady;
  const Place place;
  const std::string line =
      "note: the model mine learned another text, mine.txt: data/shakespeare.txt: prompts from here are not held out "
      "from that; give --data that text\n";
  const Words other = {"--model", "mine", "--data", "data/shakespeare.txt"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), other.begin(), other.end());
    return more;
  };
  CHECK(said_by_command(compare_command, with({"--max_new_tokens", "4", "--repeat", "1"})) == line);
  CHECK(said_by_command(compare_command, with({"--max_new_tokens", "4", "--repeat", "1", "--quiet"})) == "");
  CHECK(said_by_command(compare_command, {"--model", "mine", "--data", "data/mine.txt", "--max_new_tokens", "4"}) ==
        "");
  CHECK(said_by_command(compare_command, {"--model", "silent", "--data", "data/mine.txt", "--max_new_tokens", "4"}) ==
        "");
  CHECK(said_by_command(bench_command, with({"--only", "decode", "--quick", "--out", "out"})) == line);
  const std::string both = said_by_command(
      experiments_command, with({"--only", "rules", "--quick", "--out", "out", "--drafter_model", "tinyshakespeare"}));
  CHECK(contains(both, line));
  CHECK(contains(both, "note: the model tinyshakespeare learned another text, tinyshakespeare.txt: data/shak"));
  decodes = true;
  CHECK(said_by_command(calibrate_command, with({"--places", "200"})) == line);
  CHECK(said_by_command(diagnose_command, with({"--max_new_tokens", "20", "--held_out", "1", "--shape", "chain:4"})) ==
        line);
  decodes = false;
}

TEST_CASE("calibrate: names its model and its text, and rates of others are said to be") {
  const Place place;
  decodes = true;
  CHECK(said_by_command(calibrate_command, {"--model", "mine", "--places", "200"}) == "");
  decodes = false;
  const Metadata origin = read_calibrations("mine/calibration.json").at(0).origin;
  CHECK(origin ==
        Metadata{{"model", model_hash("mine")}, {"text", "mine.txt"}, {"text_sha256", sha256(Place::text("mine"))}});
  const auto find = [](const std::string& model) {
    notes() = Notes();
    const std::string said = captured(2, [&] { find_calibration("mine/calibration.json", "bigram", model, 1); });
    notes() = Notes();
    return said;
  };
  CHECK(find("mine") == "");
  CHECK(contains(find("shakespeare"),
                 "note: the rates of drafter bigram were measured with another model than this "
                 "one: mine/calibration.json: its trees fit less well; run build/nanospec calibrate"));
  write_file("mine/calibration.json",
             "{\"calibrations\": [{\"drafter\": \"bigram\", \"temperature\": 1, "
             "\"places\": 60, \"expand_seconds\": 2e-06, \"seen\": [40], "
             "\"accuracy\": [[0.5]], \"model\": 7}]}");
  CHECK(find("shakespeare") == "");  // of no model that is named
}

TEST_CASE("commands: Ctrl-C before there is anything to show ends with its own status, and leaves no file") {
  const Folder folder;
  const auto stopped = [&](int (*command)(int, char**), Words words) {
    words.insert(words.begin(), {"command", "--model", "m", "--prompt", "A"});
    const std::string said = folder.file("said");
    const pid_t child = fork();  // the mark of a Ctrl-C stays for the rest of a process
    if (child == 0) {
      if (!freopen(said.c_str(), "w", stderr)) _exit(1);
      script = [](const Method& method, int n) {
        if (!interrupted()) raise(SIGINT);
        return steady(method, n);
      };
      std::vector<char*> argv = arguments(words);
      const int status = run_program("nanospec", command, int(argv.size()), argv.data());
      fflush(stderr);
      _exit(status);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == kInterruptedStatus);
    CHECK(folder.files() == Words{"said"});
    return read_file(said);
  };
  CHECK(stopped(compare_command, {"--json", folder.file("c.json"), "--quiet"}) ==
        "stopped: not one repeat is complete, so there is nothing to show\n");
  CHECK(stopped(show_command, {"--html", folder.file("s.html"), "--quiet"}) ==
        "stopped: the generation is not complete, so no page is written\n");
}

TEST_CASE("commands: a path that the system refuses is one line of ours") {
  const Folder folder;
  const std::string loop = folder.file("loop"), deep = folder.file(std::string(300, 'x'));
  std::filesystem::create_symlink("loop", loop);
  const auto ends = [&](int (*command)(int, char**), Words words) {
    words.insert(words.begin(), "command");
    std::vector<char*> argv = arguments(words);
    return captured(2, [&] { CHECK(run_program("nanospec", command, int(argv.size()), argv.data()) == 1); });
  };
  for (const std::string& path : {loop, deep}) {
    const std::string why = path == loop ? "Too many levels of symbolic links" : "File name too long";
    for (const std::string& said :
         {ends(inspect_command, {path}), ends(index_command, {"--model", path, "--text", folder.file("none")}),
          ends(experiments_command, {"--model", path})}) {
      CHECK(said.compare(0, 17, "nanospec: cannot ") == 0);
      CHECK(contains(said, " (" + why + "): check the path and its permissions\n"));
      CHECK(std::count(said.begin(), said.end(), '\n') == 1);
    }
  }
}

TEST_CASE("commands: nothing is left where a command refuses") {
  const Place place;
  write_file("mine/damaged", "");
  const auto files = [] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(".")) names.insert(entry.path());
    return names;
  };
  const std::set<std::string> before = files();
  const auto refused = [&](int (*command)(int, char**), Words words) {
    words.insert(words.begin(), {"command", "--model", "mine"});
    std::vector<char*> argv = arguments(words);
    std::string message;
    const std::string out = captured(1, [&] { message = error_of([&] { command(int(argv.size()), argv.data()); }); });
    CHECK(message == "damaged: mine");
    CHECK(out == "");
    CHECK(files() == before);
  };
  refused(generate_command, {"--prompt", "A", "--stats", "s.json"});
  std::filesystem::remove("mine/damaged");  // a drafter's file is read only when it drafts
  script = [](const Method&, int) -> Generated { throw std::runtime_error("damaged: mine"); };
  const std::set<std::string> whole = files();
  const std::string out = captured(1, [&] {
    Words words = {"generate", "--model", "mine", "--prompt", "A", "--stream", "--stats", "s.json"};
    std::vector<char*> argv = arguments(words);
    CHECK(error_of([&] { generate_command(int(argv.size()), argv.data()); }) == "damaged: mine");
  });
  CHECK(out == "");
  CHECK(files() == whole);
  write_file("mine/damaged", "");
  refused(compare_command, {"--json", "c.json", "--svg", "c.svg"});
  refused(calibrate_command, {});
  refused(diagnose_command, {"--json", "d.json", "--svg", "d.svg"});
  refused(show_command, {"--prompt", "A", "--html", "s.html"});
  refused(bench_command, {"--only", "decode", "--quick", "--out", "out"});
  refused(experiments_command, {"--quick", "--drafter_model", "silent", "--out", "out"});
}

TEST_CASE("commands: a float is written as it was typed") {
  for (double typed : {0.7, 1e-6, 0.00097666, 0.0012207, 3.4e38, 16777216.0}) CHECK(as_typed(float(typed)) == typed);
}
