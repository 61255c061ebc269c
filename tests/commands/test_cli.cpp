// tests/commands/test_cli.cpp: flags and their errors; how a program ends; numbers and tables for people.
#include "commands/cli.h"

#include <cerrno>
#include <functional>
#include <limits>
#include <system_error>

#include "tests/command_line.h"

using namespace nanospec;

// ---------------------------------------------------------------------------------------------------------------
// Flags

namespace {

struct Values {
  std::string data, prompt, device = "auto";
  int n_layer = 4;
  uint64_t seed = 1;
  float temperature = 1;
  bool quiet = false;
  std::vector<std::string> stops;
};

Given parse(Values& v, Words words) {
  const Command command{"program",
                        "What it does.",
                        "program --data a.txt\n",
                        {heading("First"),
                         {"--data", "FILE", &v.data, "the text", required()},
                         {"--prompt", "TEXT", &v.prompt, "the start"},
                         {"--n_layer", "N", &v.n_layer, "layers", from(1, 100)},
                         heading("Second"),
                         {"--seed", "N", &v.seed, "the seed"},
                         {"--temperature", "T", &v.temperature, "warmth", above(0, 10)},
                         {"--device", "WORD", &v.device, "where", one_of({"auto", "cpu", "cuda"})},
                         {"--stop", "TEXT", &v.stops, "an end"},
                         {"--quiet", "", &v.quiet, "silence"}}};
  words.insert(words.begin(), "program");
  const std::vector<char*> argv = arguments(words);
  return parse_flags(command, int(argv.size()), argv.data());
}

}  // namespace

TEST_CASE("cli: flags: values go where the table says, and only those given") {
  Values v;
  const Given given = parse(v, {"--data", "a b.txt", "--n_layer=7", "--temperature", "0.25", "--quiet"});
  CHECK(v.data == "a b.txt");
  CHECK(v.n_layer == 7);
  CHECK(v.temperature == 0.25f);
  CHECK(v.quiet);
  CHECK(v.seed == 1);
  CHECK(v.device == "auto");
  CHECK(given.has("--n_layer"));
  CHECK(!given.has("--seed"));
  CHECK(!given.help);
}

TEST_CASE("cli: flags: the last of two counts; texts may be empty, or look like anything") {
  Values v;
  parse(v, {"--data", "x", "--data", "y", "--prompt", "", "--seed", "18446744073709551615"});
  CHECK(v.data == "y");
  CHECK(v.prompt == "");
  CHECK(v.seed == 18446744073709551615ull);
  for (const std::string text : {"--x", "-5", "a=b", "[a,b]", "{}", "\"q\"", "two\nlines", " ", "na\xc3\xafve", "--"}) {
    Values w;
    parse(w, {"--data", "x", "--prompt=" + text, "--quiet"});
    CHECK(w.prompt == text);
    CHECK(w.quiet);
    parse(w, {"--data", "x", "--prompt", text, "--n_layer", "9"});
    CHECK(w.prompt == text);
    CHECK(w.n_layer == 9);
  }
  parse(v, {"--data", "x", "--prompt=", "--quiet"});
  CHECK(v.prompt == "");
  CHECK(v.quiet);
}

TEST_CASE("cli: flags: a list takes one value each time it is named") {
  Values v;
  parse(v, {"--stop", "one", "--data", "a", "--stop=-two", "--stop", ""});
  CHECK(v.stops == Words{"one", "-two", ""});
  CHECK(contains(BAD_COMMAND_LINE(parse(v, {"--data", "a", "--stop", "one", "two"})), "surplus word 'two'"));
  CHECK(contains(BAD_COMMAND_LINE(parse(v, {"--data", "a", "--stop", "--quiet"})), "--quiet is itself a flag"));
  CHECK(contains(BAD_COMMAND_LINE(parse(v, {"--data", "a", "--stop"})), "a value is missing: --stop"));
}

TEST_CASE("cli: flags: a list takes the words up to the next flag; the first flag's name may be left out") {
  std::string model;
  std::vector<std::string> texts;
  bool quiet = false;
  const auto read = [&](Words words) {
    texts.clear(), model.clear(), quiet = false;
    const Command command = {"tool",
                             "",
                             "",
                             {{"--model", "FILE|DIR", &model, "", required()},
                              {"--text", "FILE...", &texts, ""},
                              {"--quiet", "", &quiet, ""}},
                             "--model"};
    words.insert(words.begin(), "tool");
    const std::vector<char*> argv = arguments(words);
    return parse_flags(command, int(argv.size()), argv.data());
  };
  CHECK(read({"m", "--text", "a", "b c", "d", "--quiet"}).has("--text"));
  CHECK(model == "m");
  CHECK(texts == Words{"a", "b c", "d"});
  CHECK(quiet);
  read({"--text=a", "b", "--text", "c", "--model", "m"});
  CHECK(model == "m");
  CHECK(texts == Words{"a", "b", "c"});
  CHECK(!read({"m"}).has("--text"));
  CHECK(contains(BAD_COMMAND_LINE(read({"m", "--text"})), "a value is missing: --text"));
  CHECK(contains(BAD_COMMAND_LINE(read({"m", "--text", "--quiet"})), "a value is missing: --text"));
  CHECK(contains(BAD_COMMAND_LINE(read({"m", "n"})), "surplus word 'n'"));
  CHECK(contains(BAD_COMMAND_LINE(read({"m", "--quiet", "n"})), "surplus word 'n'"));
  read({"--quiet", "m"});  // behind other flags too
  CHECK(model == "m");
  CHECK(contains(BAD_COMMAND_LINE(read({"--quiet", "m", "n"})), "surplus word 'n'"));
  read({"-"});
  CHECK(model == "-");
  CHECK(contains(BAD_COMMAND_LINE(read({"m", "--model", "n"})), "--model is given twice: tool: once without its name"));
  read({"--model", "m", "--model=n"});  // as of any flag, the last one counts
  CHECK(model == "n");
  CHECK(contains(captured(1, [&] { read({"--help"}); }), "Usage: build/tool FILE|DIR [FLAGS]\n"));
}

TEST_CASE("cli: flags: each mistake has its line, with what to type") {
  Values v;
  CHECK(contains(BAD_COMMAND_LINE(parse(v, {"--data", "x", "--temprature", "1"})), "did you mean --temperature?"));
  CHECK(contains(BAD_COMMAND_LINE(parse(v, {"--data", "x", "--n-layer=1"})), "did you mean --n_layer?"));
  CHECK(contains(BAD_COMMAND_LINE(parse(v, {"--data", "x", "y"})), "surplus word 'y'"));
  CHECK(contains(BAD_COMMAND_LINE(parse(v, {"--data", "x", "-q"})), "unknown flag '-q'"));
  CHECK(contains(BAD_COMMAND_LINE(parse(v, {"--data", "x", "--seed"})), "a value is missing: --seed"));
  CHECK(contains(BAD_COMMAND_LINE(parse(v, {"--data", "--quiet"})), "a value is missing: --data"));
  CHECK(contains(BAD_COMMAND_LINE(parse(v, {"--data", "x", "--quiet=yes"})), "a switch takes no value: --quiet"));
  CHECK(contains(BAD_COMMAND_LINE(parse(v, {"--quiet"})), "add --data FILE"));
  CHECK(contains(BAD_COMMAND_LINE(parse(v, {"--data", "x", "--device", "gpu"})),
                 "did you mean cpu? known: auto, cpu, cuda"));
  for (const char* far : {"--unknown", "-q", "--x=1"}) {  // a question that helps nobody is not asked
    const std::string line = BAD_COMMAND_LINE(parse(v, {"--data", "x", far}));
    CHECK(contains(line, "unknown flag '" + std::string(far) + "'"));
    CHECK(!contains(line, "did you mean"));
  }
  CHECK(contains(BAD_COMMAND_LINE(parse(v, {"--data", "x", "--device", "CPU"})), "did you mean cpu?"));
  CHECK(!contains(BAD_COMMAND_LINE(parse(v, {"--data", "x", "--device", "abacus"})), "did you mean"));
  const std::string escaped = BAD_COMMAND_LINE(parse(v, {"--data", "x", "--a\nb"}));
  CHECK(escaped.find('\n') == std::string::npos);
}

TEST_CASE("cli: flags: numbers are whole texts, finite and in range") {
  Values v;
  for (const char* text : {"x", "", " 1", "1 ", "1x", "nan", "-nan", "inf", "-inf", "infinity", "0x10", "+1", "1,5"})
    CHECK(
        contains(BAD_COMMAND_LINE(parse(v, {"--data", "x", "--temperature", text})), "is not a number: --temperature"));
  for (const char* text : {"-1", "0", "-0", "10.001", "1e999", "-1e999", "1e-999", "1e-300"})
    CHECK(
        contains(BAD_COMMAND_LINE(parse(v, {"--data", "x", "--temperature", text})), "is out of range: --temperature"));
  for (const char* text : {"x", "", "1.5", "1e1", "0x1", "+1", "--1", "-", "1-"})
    CHECK(contains(BAD_COMMAND_LINE(parse(v, {"--data", "x", "--n_layer", text})), "is not a whole number: --n_layer"));
  for (const char* text : {"0", "-1", "101", "2147483648", "4294967297", "99999999999999999999"})
    CHECK(contains(BAD_COMMAND_LINE(parse(v, {"--data", "x", "--n_layer", text})),
                   "is out of range: --n_layer: give a whole number from 1 to 100"));
  for (const char* text : {"-1", "18446744073709551616"})
    CHECK(contains(BAD_COMMAND_LINE(parse(v, {"--data", "x", "--seed", text})),
                   "is out of range: --seed: give a whole number from 0 to 18446744073709551615"));
  for (const char* text : {"10", "1e-3", "1.e0", ".5", "0.1"}) parse(v, {"--data", "x", "--temperature", text});
  CHECK(v.temperature == 0.1f);
  CHECK(parse_number<double>("-2.5e-3", "here") == -2.5e-3);
  CHECK(parse_number<int>("-2147483648", "here") == std::numeric_limits<int>::min());
}

TEST_CASE("cli: flags: of more threads than cores as many as cores are used, and a line says so") {
  const int cores = usable_cores();
  int count = 1;
  const auto said = [&](const std::string& asked) {
    Words words = {"program", "--threads", asked};
    const std::vector<char*> argv = arguments(words);
    return captured(2, [&] {
      for (int i = 0; i < 2; i++)  // as train_gpt reads them
        parse_flags({"program", "", "", {{"--threads", "N", &count, "", threads()}}}, 3, argv.data());
    });
  };
  CHECK(said("1").empty());
  CHECK(count == 1);
  CHECK(said(std::to_string(cores)).empty());
  CHECK(count == cores);
  for (int asked : {1024, 999}) {
    if (cores >= asked) continue;
    const std::string number = std::to_string(cores);
    CHECK(said(std::to_string(asked)) == "--threads " + std::to_string(asked) + ": this machine has " + number +
                                             (cores > 1 ? " cores: " : " core: ") + number + " used\n");
    CHECK(count == cores);
  }
  CHECK(contains(BAD_COMMAND_LINE(said("1025")), "out of range"));
}

TEST_CASE("cli: flags: --help shows every flag, its default and the examples, and asks for nothing else") {
  Values v;
  Given given;
  const std::string help = captured(1, [&] { given = parse(v, {"--n_layer", "2", "--help"}); });
  CHECK(given.help);
  for (const char* part : {"What it does.", "First:", "Second:", "--data FILE", "(required)", "--n_layer N",
                           "layers (4)", "--seed N", "--temperature T", "auto, cpu, cuda (auto)",
                           "--quiet                 silence\n", "\n  build/program --data a.txt\n"})
    CHECK_MESSAGE(contains(help, part), part);
}

TEST_CASE("cli: help: lists stay lists, long lines and long command lines are broken") {
  const std::string words = "one two three four five six seven eight nine ten eleven twelve thirteen";
  CHECK(help_paragraph(words + " " + words) ==
        words + " one two\nthree four five six seven eight nine ten eleven twelve thirteen\n");
  CHECK(help_item("--name N", words) ==
        "  --name N                one two three four five six seven eight nine ten\n"
        "                          eleven twelve thirteen\n");
  CHECK(help_item("--quite_a_long_name NUMBER", "what: \nfirst: " + words) ==
        "  --quite_a_long_name NUMBER\n"
        "                          what:\n"
        "                          first: one two three four five six seven eight nine\n"
        "                            ten eleven twelve thirteen\n");
  const std::string examples = help_examples("tool --a 1 --b \"two words\"\ntool " + words + " --long " + words + "\n");
  CHECK(examples ==
        "Examples:\n  build/tool --a 1 --b \"two words\"\n  build/tool " + words + " \\\n    --long " + words + "\n");
}

// ---------------------------------------------------------------------------------------------------------------
// Ending

namespace {
std::function<int()> body;
int program(int, char**) { return body(); }
int status_of(const std::function<int()>& f, std::string& line) {
  body = f;
  int status = -1;
  line = captured(2, [&] { status = run_program("prog", program, 0, nullptr); });
  return status;
}
}  // namespace

TEST_CASE("cli: a program ends with one line and the right status") {
  std::string line;
  CHECK(status_of([] { return 0; }, line) == 0);
  CHECK(line == "");
  CHECK(status_of([]() -> int { throw std::invalid_argument("a: b: c"); }, line) == 2);
  CHECK(line == "prog: a: b: c\n");
  CHECK(status_of([]() -> int { throw std::runtime_error("a\nb\x1b[2J"); }, line) == 1);
  CHECK(line == "prog: a b [2J\n");
  CHECK(status_of([]() -> int { throw std::bad_alloc(); }, line) == 1);
  CHECK(contains(line, "prog: out of memory: "));
  CHECK(status_of([]() -> int { return int(std::vector<int>().at(0)); }, line) == 1);
  CHECK(status_of([]() -> int { throw std::system_error(EAGAIN, std::generic_category()); }, line) == 1);
  CHECK(contains(line, "prog: cannot start a thread: "));
  CHECK(status_of([]() -> int { return std::vector<char>(size_t(-1)).at(0); }, line) == 1);
  CHECK(contains(line, "prog: out of memory: "));
}

// ---------------------------------------------------------------------------------------------------------------
// Numbers and tables

TEST_CASE("cli: numbers for people") {
  CHECK(thousands(0) == "0");
  CHECK(thousands(999.4) == "999");
  CHECK(thousands(1234567) == "1,234,567");
  CHECK(thousands(-1234) == "-1,234");
  CHECK(duration(0.00123) == "1.23 ms");
  CHECK(duration(0.5) == "500 ms");
  CHECK(duration(4.25) == "4.2 s");
  CHECK(duration(59.97) == "1 min 00 s");
  CHECK(duration(185) == "3 min 05 s");
  CHECK(duration(2 * 3600 + 7 * 60) == "2 h 07 min");
  CHECK(bytes_text(512) == "512 bytes");
  CHECK(bytes_text(42.6e6) == "42.6 MB");
  CHECK(time_left(1, 4, 2) == "6.0 s left");
  CHECK(time_left(0, 4, 2) == "");
}

TEST_CASE("cli: a table's columns line up, also with letters of several bytes") {
  CHECK(format_table({{"name", "n"}, {"na\xc3\xafve", "7"}, {"x", "1,234"}}, "lr") ==
        "name       n\n-----  -----\nna\xc3\xafve      7\nx      1,234\n");
}
