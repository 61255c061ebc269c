// tests/commands/test_commands.cpp: methods, and the commands over an engine whose answers are written down here.
//
// In order: methods; generate; compare; perplexity; calibrate and diagnose; experiments; bench; exact. The Engine, the
// Probe and the GPU below stand in for nanospec.cu's: a token is a character, and speed is scripted.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <sstream>

#include "commands/calibration.h"
#include "commands/commands.h"
#include "commands/comparison.h"
#include "study/bench.h"
#include "tests/command_line.h"
#include "tests/commands/stand_in.h"
#include "tests/error_of.h"
#include "tests/mock.h"
#include "tests/picture.h"

using namespace nanospec;

// ---------------------------------------------------------------------------------------------------------------
// The engine of these tests

StandInEngine& stand_in() {
  static StandInEngine engine = [] {
    StandInEngine made;
    for (int c = 0; c < 128; c++) made.tokenizer.symbols.push_back(std::string(1, char(c)));
    return made;
  }();
  return engine;
}

namespace {

auto& calls = stand_in().calls;
auto& script = stand_in().script;
auto& decodes = stand_in().decodes;
bool gpu = false;                                       // whether this machine has one
std::vector<std::pair<std::vector<int>, int>> windows;  // whose losses were asked for, and from which token on
int interrupted_at = -1;                                // the window that meets a Ctrl-C

// "abcd...": the text that every exact method must print.
std::vector<int> alphabet(int n) {
  std::vector<int> tokens;
  for (int i = 0; i < n; i++) tokens.push_back('a' + i % 26);
  return tokens;
}

Generated steady(const Method& method, int n) {
  const bool plain = method.drafter == "none";
  Generated g;
  g.tokens = alphabet(n);
  g.stats.tokens = n;
  g.stats.target_forwards = plain ? n : n / 2;
  g.stats.accept_histogram = plain ? std::vector<int64_t>{0, n} : std::vector<int64_t>{0, 0, n / 2};
  g.stats.drafted_nodes = plain ? 0 : 2 * n;
  g.stats.seconds = plain ? 1.0 : 0.5;
  g.stats.seconds_forward = g.stats.seconds * 0.8;
  return g;
}

// What the mock's logits are without its whim: a drafter that is mostly right.
std::unique_ptr<Drafter> mock_drafter() {
  Mock habits(128, 64, 3, 0);
  std::vector<float> table;
  Tree tree;
  tree.token = {0}, tree.depth = {0}, tree.end = {1};
  for (tree.token[0] = 0; tree.token[0] < 128; tree.token[0]++) {
    habits.forward(tree.token.data(), tree.depth.data(), tree.end.data(), 1);
    table.insert(table.end(), habits.logits(0), habits.logits(0) + 128);
  }
  auto drafter = std::make_unique<Bigram>(table, 128);
  drafter->name = "bigram";
  return drafter;
}

Generated decoded(const Method& method, const Sampling& sampling, const std::vector<int>& prompt, int n,
                  const std::function<bool(int)>& on_token, const Observation& observation) {
  static Mock mock(128, 64, 3, 1);
  static const std::unique_ptr<Drafter> drafter = mock_drafter();
  Decoding decoding;
  decoding.shape = parse_shape(method.shape, 340), decoding.sampling = sampling, decoding.max_new_tokens = n;
  decoding.on_iteration = observation.on_iteration;
  std::unique_ptr<Drafter> other;
  std::unique_ptr<LogitsDrafter> made;
  if (observation.stand_in) other = observation.stand_in(*with_logits(drafter.get(), made));
  std::vector<int> text = prompt;
  Drafter* const used = method.drafter == "none" ? nullptr : other ? other.get() : drafter.get();
  Generated g;
  g.stats = generate(mock, used, decoding, text, on_token);
  g.tokens.assign(text.begin() + long(prompt.size()), text.end());
  return g;
}

// Each of these headings is followed, still above its table, by the line that says that the run was a quick one.
void check_quick_tables(const std::string& out, const Words& headings) {
  for (const std::string& heading : headings) {
    const size_t at = out.find(heading), table = out.find("\n\n", at);
    CHECK_MESSAGE(contains(out.substr(at, table - at) + "\n", "\n" + std::string(kQuickRun) + "\n"), heading);
  }
}

// Runs a command in silence on standard error and returns its standard output.
std::string run(int (*command)(int, char**), Words words, int expected_status = 0) {
  words.insert(words.begin(), "command");
  calls.clear();
  std::string out;
  captured(2, [&] {
    out = captured(1, [&] {
      std::vector<char*> argv = arguments(words);
      CHECK(command(int(argv.size()), argv.data()) == expected_status);
    });
  });
  return out;
}

}  // namespace

namespace nanospec {
struct Engine::Parts {
  Settings settings;
  Config config;
};
Engine::Engine(const Settings& settings) : parts_(new Parts{settings, {}}) {
  if (settings.context > 0) parts_->config.block_size = settings.context;
  if (std::filesystem::exists(settings.model + "/damaged")) throw std::runtime_error("damaged: " + settings.model);
}
Engine::~Engine() = default;
const Tokenizer& Engine::tokenizer() const { return stand_in().tokenizer; }
const std::string& Engine::chat_template() const { return stand_in().chat_template; }
std::vector<int> Engine::encode_prompt(const std::string& prompt, const std::string& what) const {
  std::vector<int> tokens = tokenizer().encode(prompt, what);
  if (begin_token() >= 0) tokens.insert(tokens.begin(), begin_token());
  return tokens;
}
const std::string& Engine::decode(int token) const { return stand_in().tokenizer.decode(token); }
Generated Engine::generate(const Method& method, const Sampling& sampling, const std::vector<int>& prompt,
                           int max_new_tokens, const std::function<bool(int)>& on_token,
                           const Observation& observation) {
  calls.push_back({method_text(method), prompt, int(sampling.sequence), max_new_tokens});
  if (decodes) return decoded(method, sampling, prompt, max_new_tokens, on_token, observation);
  const Generated generated = script(method, max_new_tokens);
  for (int token : generated.tokens)
    if (!on_token(token)) break;
  return generated;
}
std::vector<double> Engine::losses(const std::vector<int>& tokens, int first) {
  if (int(windows.size()) == interrupted_at) raise(SIGINT);
  windows.push_back({tokens, first});
  std::vector<double> losses;
  for (size_t i = size_t(first); i < tokens.size(); i++) losses.push_back(0.01 * tokens[i]);
  return losses;
}
const Config& Engine::config() const { return parts_->config; }
int Engine::context() const { return config().block_size; }
int Engine::vocab_size() const { return config().vocab_size; }
int Engine::begin_token() const { return stand_in().begin_token; }
std::string Engine::device() const { return "cpu"; }
int Engine::threads() const { return parts_->settings.threads; }
double Engine::weight_bytes() const { return 1e6; }

struct Probe::Parts {
  Config config;
};
Probe::Probe(const Config& config, const std::string&, const std::string&, int, int) : parts_(new Parts{config}) {}
Probe::Probe(const Settings&) : parts_(new Parts) {}
Probe::~Probe() = default;
double Probe::forward_seconds(int rows, int past) { return 0.01 * (1 + 0.1 * (rows - 1)) + 1e-5 * past; }
double Probe::prefill_seconds(int tokens) { return 0.001 * tokens; }
const Config& Probe::config() const { return parts_->config; }
double Probe::weight_bytes() const { return 3e6; }
double Probe::cache_bytes(int past) const { return 1e3 * past; }

std::string gpu_missing() { return gpu ? "" : "there is no CUDA device: --device cuda: buy one"; }
GpuFacts gpu_facts() { return {"Abacus <9>", "9.0", 4, 1e9, 1e6, "13.0", "12.8"}; }
GpuLimits measure_gpu_limits(int runs, const GpuWorking& working) {
  working("limits", 0.5);
  return {std::vector<double>(size_t(runs), 1e9), std::vector<double>(size_t(runs), 2e12),
          std::vector<double>(size_t(runs), 8e12)};
}
std::vector<KernelTime> measure_gpu_kernels(bool, int, const GpuWorking& working) {
  working("matmul", 0.5);
  return {{"matmul bf16", "16 x 2 x 3", 5e5, 1e9, Peak::kBf16, {0.001, 0.001, 0.002}},
          {"matmul fp32", "64 x 2 x 3", 5e5, 1.5e9, Peak::kFp32, {0.001, 0.001}},
          {"LayerNorm", "64 x 2", 2e6, 0, Peak::kFp32, {0.001, 0.001}}};
}
}  // namespace nanospec

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

// ---------------------------------------------------------------------------------------------------------------
// generate

TEST_CASE("generate: standard output gets prompt and text, the statistics go to their file") {
  script = steady;
  const Folder folder;
  const Words words = {
      "--model", "m",       "--prompt", "Hi\n",    "--max_new_tokens",   "30", "--threads", "3", "--temperature",
      "0.7",     "--shape", "chain:2",  "--stats", folder.file("s.json")};
  const std::string expected = "Hi\nabcdefghijklmnopqrstuvwxyzabcd";
  CHECK(run(generate_command, words) == expected);
  REQUIRE(calls.size() == 1);
  CHECK(calls[0].prompt == std::vector<int>{'H', 'i', '\n'});
  const Json stats = Json::parse(read_file(folder.file("s.json")));
  for (const char* field : {"tokens",
                            "seconds",
                            "prefill_seconds",
                            "tokens_per_second",
                            "target_forwards",
                            "slide_prefills",
                            "acceptance_length",
                            "accept_histogram",
                            "drafted_nodes",
                            "seconds_draft",
                            "seconds_forward",
                            "seconds_verify",
                            "seconds_keep",
                            "device",
                            "dtype",
                            "threads",
                            "drafter",
                            "shape",
                            "verify",
                            "weight_bytes",
                            "gigabytes_per_second",
                            "text_sha256",
                            "peak_bytes"})
    CHECK_MESSAGE(stats.contains(field), field);
  CHECK(stats["tokens"] == 30);
  CHECK(stats["tokens_per_second"] == 60.0);
  CHECK(stats["acceptance_length"] == 2.0);
  CHECK(stats["threads"] == std::min(3, usable_cpus()));
  CHECK(stats["temperature"] == 0.7);
  CHECK(stats["drafter"] == "bigram");
  CHECK(stats["shape"] == "chain:2");
  CHECK(stats["verify"] == "match");
  CHECK(stats["gigabytes_per_second"].get<double>() == doctest::Approx(15 * 1e6 / 0.4 / 1e9));
  CHECK(stats["text_sha256"] == sha256(expected));

  Words streamed = words;
  streamed.push_back("--stream");
  CHECK(run(generate_command, streamed) == expected);
}

TEST_CASE("generate: a prompt from a file, byte for byte") {
  script = steady;
  const Folder folder;
  write_file(folder.file("p.txt"), " two\n\n");
  CHECK(run(generate_command, {"--model", "m", "--prompt_file", folder.file("p.txt"), "--max_new_tokens", "3"}) ==
        " two\n\nabc");
}

TEST_CASE("generate: a prompt from standard input") {
  script = steady;
  const Folder folder;
  const int kept = dup(STDIN_FILENO), file = open(folder.file("p", "two\nlines").c_str(), O_RDONLY);
  dup2(file, STDIN_FILENO), close(file);
  const std::string text = run(generate_command, {"--model", "m", "--prompt_file", "-", "--max_new_tokens", "3"});
  Words words = {"generate", "--model", "m", "--prompt_file", "-", "--stats", folder.file("p")};
  std::vector<char*> argv = arguments(words);
  const std::string line = BAD_COMMAND_LINE(generate_command(int(argv.size()), argv.data()));
  dup2(kept, STDIN_FILENO), close(kept);
  CHECK(text == "two\nlinesabc");
  CHECK(contains(line, "--stats would write over what --prompt_file reads"));
}

TEST_CASE("generate: on a terminal an empty line parts text and summary; a pipe gets the text alone") {
  script = steady;
  const auto shown = [](const std::string& prompt) {  // on a terminal that is standard output and error
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0) return std::string();  // there is none
    const int side = open(ptsname(terminal), O_RDWR | O_NOCTTY), out = dup(1), error = dup(2);
    termios raw;
    tcgetattr(side, &raw), cfmakeraw(&raw), tcsetattr(side, TCSANOW, &raw);
    fflush(stdout), fflush(stderr);
    dup2(side, 1), dup2(side, 2);
    Words words = {"generate", "--model", "m", "--prompt", prompt, "--max_new_tokens", "3"};
    std::vector<char*> argv = arguments(words);
    generate_command(int(argv.size()), argv.data());
    fflush(stdout), fflush(stderr);
    dup2(out, 1), dup2(error, 2);
    for (int handle : {side, out, error}) close(handle);
    std::string text;  // in as many parts as the system likes, until the other side is closed
    char bytes[4096];
    for (ssize_t n; (n = read(terminal, bytes, sizeof bytes)) > 0;) text.append(bytes, size_t(n));
    close(terminal);
    return text;
  };
  const std::string text = shown("Hi ");
  if (text.empty()) return;
  CHECK(text.substr(0, 8) == "Hi abc\n\n");
  CHECK(contains(text, "\n\n3 tokens in "));
  script = [](const Method& method, int n) {
    Generated g = steady(method, n);
    g.tokens.back() = '\n';
    return g;
  };
  CHECK(contains(shown("Hi "), "Hi ab\n\n3 tokens in "));  // its line has ended
  CHECK(run(generate_command, {"--model", "m", "--prompt", "Hi ", "--max_new_tokens", "3"}) == "Hi ab\n");
}

TEST_CASE("generate: what a rule makes of the text is said, in the summary and in the statistics") {
  script = steady;
  const Folder folder;
  const auto said = [&](Words words) {
    words.insert(words.begin(), {"generate", "--model", "m", "--prompt", "A", "--max_new_tokens", "3", "--stats",
                                 folder.file("s.json")});
    std::vector<char*> argv = arguments(words);
    return captured(2, [&] { captured(1, [&] { generate_command(int(argv.size()), argv.data()); }); });
  };
  CHECK(!contains(said({}), "--verify"));
  CHECK(Json::parse(read_file(folder.file("s.json")))["exact"] == true);
  CHECK(contains(said({"--verify", "independent"}), "--verify independent is biased: "));
  CHECK(Json::parse(read_file(folder.file("s.json")))["biased"] == true);
  CHECK(contains(said({"--verify", "typical"}), "--verify typical is lossy: "));
  CHECK(Json::parse(read_file(folder.file("s.json")))["lossy"] == true);
  CHECK(contains(said({"--verify", "rejection", "--shape", "chain:2"}), "of the same distribution"));
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

TEST_CASE("generate: what it refuses, and with which status") {
  script = steady;
  const auto attempt = [](Words words) {
    words.insert(words.begin(), {"generate", "--model", "m"});
    std::vector<char*> argv = arguments(words);
    generate_command(int(argv.size()), argv.data());
  };
  CHECK_THROWS_AS(attempt({}), std::invalid_argument);
  CHECK_THROWS_AS(attempt({"--prompt", "A", "--prompt_file", "x"}), std::invalid_argument);
  CHECK_THROWS_AS(attempt({"--prompt", "A", "--shape", "tree:9x9"}), std::invalid_argument);
  CHECK_THROWS_AS(attempt({"--prompt", "A", "--shape", "chain:65"}), std::invalid_argument);
  CHECK_THROWS_AS(attempt({"--prompt", "A", "--temperature", "1e-9"}), std::invalid_argument);
  CHECK_THROWS_AS(attempt({"--prompt", ""}), std::runtime_error);
  CHECK_THROWS_AS(attempt({"--prompt_file", "/nonexistent"}), std::runtime_error);
  CHECK_THROWS_AS(attempt({"--prompt", "A", "--stats", "/nonexistent/s.json"}), std::runtime_error);
}

// ---------------------------------------------------------------------------------------------------------------
// perplexity

namespace {

std::string letters(size_t n) {
  std::string text;
  for (size_t i = 0; i < n; i++) text += char('a' + i * 7 % 26);
  return text;
}

// What the command measured of a text, in its JSON.
Json measured(const Folder& folder, const std::string& text, Words words) {
  words.insert(words.begin(), {"--model", "m", "--text", folder.file("t", text), "--stats", folder.file("s.json")});
  windows.clear();
  run(perplexity_command, words);
  return Json::parse(read_file(folder.file("s.json")));
}

}  // namespace

TEST_CASE("perplexity: windows one behind another, of each the tokens behind its middle; the figures by a recount") {
  const Folder folder;
  const std::string text = letters(213);
  const Json said = measured(folder, text, {"--window", "20"});
  REQUIRE(windows.size() == 10);
  double sum = 0, squares = 0;
  for (size_t w = 0; w < 10; w++) {
    CHECK(windows[w].first == std::vector<int>(text.begin() + long(20 * w), text.begin() + long(20 * w + 20)));
    CHECK(windows[w].second == 11);
    for (size_t i = 11; i < 20; i++) {
      const double loss = 0.01 * text[20 * w + i];
      sum += loss, squares += loss * loss;
    }
  }
  const double mean = sum / 90, error = std::sqrt((squares / 90 - mean * mean) / 89);
  CHECK(said["tokens"] == 90);
  CHECK(said["bytes"] == 90);
  CHECK(said["windows"] == 10);
  CHECK(said["whole"] == true);
  CHECK(said["loss"].get<double>() == doctest::Approx(mean));
  CHECK(said["loss_error"].get<double>() == doctest::Approx(error));
  CHECK(said["perplexity"].get<double>() == doctest::Approx(std::exp(mean)));
  CHECK(said["perplexity_error"].get<double>() == doctest::Approx(std::exp(mean) * error));
  CHECK(said["bits_per_byte"].get<double>() == doctest::Approx(mean / std::log(2)));
  CHECK(said["text_sha256"] == sha256(text));
  CHECK(said["begin_token"] == -1);
}

TEST_CASE("perplexity: an odd window, fewer windows, the model's own window, and a token before every text") {
  const Folder folder;
  const std::string text = letters(213);
  CHECK(measured(folder, text, {"--window", "15"})["tokens"] == 14 * 7);
  CHECK(windows[0].second == 8);
  CHECK(measured(folder, text, {"--window", "20", "--max_windows", "3"})["windows"] == 3);
  CHECK(measured(folder, text, {})["window"] == 64);  // the stand-in sees no more
  CHECK(windows.size() == 3);
  stand_in().begin_token = 'A';
  const Json said = measured(folder, text, {"--window", "20"});
  stand_in().begin_token = -1;
  REQUIRE(windows.size() == 10);
  CHECK(said["begin_token"] == 'A');
  CHECK(windows[0].first[1] == text[0]);
  for (size_t w = 0; w < 10; w++) {
    CHECK(windows[w].first[0] == 'A');
    CHECK(windows[w].first[19] == text[20 * w + 18]);
  }
}

TEST_CASE("perplexity: what it refuses, and with which status") {
  const Folder folder;
  const std::string text = folder.file("t", letters(30));
  const auto attempt = [](Words words) {
    words.insert(words.begin(), {"perplexity", "--model", "m"});
    std::vector<char*> argv = arguments(words);
    perplexity_command(int(argv.size()), argv.data());
  };
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--text", text, "--data", text})), "give only one of --text or --data"));
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--text", text, "--window", "65"})), "the model sees at most 64 tokens"));
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--text", text, "--window", "3"})), "out of range"));
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--text", text, "--stats", text})), "would write over"));
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--text", text, "--stats", "m.gguf"})), "a file of a model"));
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--model", "m.gguf"})), "there is no text: nanospec perplexity"));
  CHECK(contains(line_of<std::runtime_error>([&] {
                   attempt({"--text", text});
                 }),
                 "the text has 30 tokens, less than a window of 64: " + text));
  CHECK_THROWS_AS(attempt({"--text", folder.file("none")}), std::runtime_error);
}

TEST_CASE("perplexity: Ctrl-C gives the result so far") {
  const Folder folder;
  const std::string text = folder.file("t", letters(200)), stats = folder.file("s.json"), out = folder.file("out");
  windows.clear();
  const pid_t child = fork();  // the mark of a Ctrl-C stays for the rest of a process
  if (child == 0) {
    interrupted_at = 2;
    if (!freopen(out.c_str(), "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(1);
    Words words = {"perplexity", "--model", "m", "--text", text, "--window", "20", "--stats", stats};
    std::vector<char*> argv = arguments(words);
    const int status = perplexity_command(int(argv.size()), argv.data());
    fflush(stdout);
    _exit(status);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == kInterruptedStatus);
  const Json said = Json::parse(read_file(stats));
  CHECK(said["windows"] == 3);
  CHECK(said["whole"] == false);
  CHECK(contains(read_file(out), "27 tokens of 3 windows of 20 tokens"));
}

// ---------------------------------------------------------------------------------------------------------------
// compare

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
  CHECK(contains(error_of([&] {
                   attempt({"--prompt", "A", "--methods", "bigram calibrated"});
                 }),
                 "nothing is calibrated yet: m/calibration.json: run nanospec calibrate --model m --drafter bigram"));
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
  CHECK(contains(BAD_COMMAND_LINE(compare_command(3, argv.data())), "there is no prompt: nanospec compare: add --pro"));
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
                 "one: mine/calibration.json: its trees fit less well; run nanospec calibrate"));
  write_file("mine/calibration.json",
             "{\"calibrations\": [{\"drafter\": \"bigram\", \"temperature\": 1, "
             "\"places\": 60, \"expand_seconds\": 2e-06, \"seen\": [40], "
             "\"accuracy\": [[0.5]], \"model\": 7}]}");
  CHECK(find("shakespeare") == "");  // of no model that is named
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

// ---------------------------------------------------------------------------------------------------------------
// calibrate and diagnose, over the engine that decodes

namespace {
struct Decodes {
  Decodes() { decodes = true; }
  ~Decodes() { decodes = false; }
};
}  // namespace

TEST_CASE("calibrate: measures, prints, and keeps what the file already holds") {
  const Decodes on;
  const Folder folder;
  const Words words = {"--model",  folder.path, "--prompt", "abcd", "--drafter", "bigram",
                       "--depths", "3",         "--places", "600",  "--ranks",   "4"};
  Words cold = words;
  cold.insert(cold.end(), {"--temperature", "0"});
  const std::string out = run(calibrate_command, words);
  run(calibrate_command, cold);
  CHECK(contains(out, "depth  rank 0  rank 1  rank 2  rank 3  none of them  places"));
  CHECK(contains(out, "Written to " + folder.path + "/calibration.json: bigram at temperature 1.00"));
  const std::vector<Calibration> all = read_calibrations(calibration_path(folder.path));
  REQUIRE(all.size() == 2);
  CHECK(all[0].temperature == 1);
  CHECK(all[1].temperature == 0);
  CHECK(all[0].accuracy.depths == 3);
  CHECK(all[0].accuracy.ranks == 4);
  CHECK(all[0].accuracy.at(0, 0) > 0.5);
  CHECK(all[0].places > 440);  // of 600 tokens, a quarter of which may end a chain
  CHECK(all[0].places <= 600);

  const auto attempt = [&](Words more) {
    Words line = {"calibrate", "--model", folder.path, "--prompt", "A"};
    line.insert(line.end(), more.begin(), more.end());
    std::vector<char*> argv = arguments(line);
    calibrate_command(int(argv.size()), argv.data());
  };
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--drafter", "none"})), "guesses nothing"));
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--depths", "65"})), "--depths: give a whole number from 1 to 64"));
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--drafter", "bigrm"})), "did you mean bigram?"));
  write_file(folder.file("broken.json"), "{");
  CHECK(contains(error_of([&] { attempt({"--out", folder.file("broken.json")}); }), "not valid JSON"));
  CHECK(read_file(folder.file("broken.json")) == "{");
}

TEST_CASE("show: the page of a long text holds a part of it, and says so") {
  const Decodes on;
  const Folder folder;
  const auto page = [&](const std::string& tokens, const Words& more) {
    Words words = {"--model", "m", "--prompt", "abcd", "--max_new_tokens", tokens, "--html", folder.file("p.html")};
    words.insert(words.end(), more.begin(), more.end());
    return run(show_command, words);
  };
  const std::string whole = page("300", {"--shape", "chain:2"});
  CHECK(contains(whole, ", 300 tokens; open it in a browser"));
  const std::string part = page("100000", {"--drafter", "none"});
  CHECK(contains(part, "4,001 target forwards of none, 4,001 tokens of 100,000, as many as a page holds"));
  CHECK(std::filesystem::file_size(folder.file("p.html")) < 4 << 20);
  const std::string wide = page("100000", {"--shape", "tree:4x4", "--budget", "340"});
  CHECK(contains(wide, "as many as a page holds"));
  CHECK(std::filesystem::file_size(folder.file("p.html")) < 10 << 20);
}

TEST_CASE("diagnose: every table, the JSON, and a whole picture") {
  const Decodes on;
  const Folder folder;
  write_file(folder.file("p.jsonl"), "{\"prompt\": \"ab\"}\n{\"prompt\": \"cd\"}\n");
  const std::string out = run(
      diagnose_command, {"--model", "a<b", "--prompts", folder.file("p.jsonl"), "--shape", "tree:3x2",
                         "--max_new_tokens", "200", "--json", folder.file("d.json"), "--svg", folder.file("d.svg")});
  for (const char* part : {"bigram tree:3x2: 400 tokens in ", "Why each forward", "the token was guessed, but got no",
                           "leaf: the shape ended there", "H, nats", "% of pairs by H of q", "rank 7  none of them",
                           "Brier score", "wasted share", "microseconds a token", "slides"})
    CHECK_MESSAGE(contains(out, part), part);
  CHECK(!contains(out, "perplexity"));
  const Json json = Json::parse(read_file(folder.file("d.json")));
  int64_t stops = 0, drafted = 0, accepted = 0, promised = 0;
  for (const Json& n : json["stops"]) stops += n.get<int64_t>();
  for (const Json& depth : json["nodes"])
    drafted += depth["drafted"].get<int64_t>(), accepted += depth["accepted"].get<int64_t>();
  for (const Json& tenth : json["forecasts"]["raw"]["tenths"]) promised += tenth["nodes"].get<int64_t>();
  CHECK(stops == json["target_forwards"]);
  CHECK(drafted == json["drafted_nodes"]);
  CHECK(accepted + stops == 400);
  CHECK(promised > accepted);
  CHECK(json["accuracy"][0]["right_by_rank"].size() == 8);
  CHECK(json["entropy"]["of_q"]["bins"].size() == 10);
  CHECK(json["entropy"]["of_confidence"]["separation"].get<double>() > 0.5);
  CHECK(json["drafter"] == "bigram");
  const std::string svg = read_file(folder.file("d.svg"));
  CHECK(svg.substr(0, 5) == "<svg ");
  CHECK(svg.substr(svg.size() - 7) == "</svg>\n");
  CHECK(picture_problem(svg) == "");
  for (const char* part : {"a&lt;b", "Entropy of the confidence", "Accuracy by rank", "Where the time went",
                           "the token was guessed, but got no node"})
    CHECK_MESSAGE(contains(svg, part), part);

  const auto attempt = [](Words words) {
    words.insert(words.begin(), {"diagnose", "--model", "m"});
    std::vector<char*> argv = arguments(words);
    diagnose_command(int(argv.size()), argv.data());
  };
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--prompt", "A", "--drafter", "none"})), "guesses nothing"));
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--prompt", "A", "--data", "text"})), "more than one prompt"));
  CHECK(contains(error_of([&] { attempt({"--prompt", "A", "--shape", "static:/nowhere.json"}); }), "/nowhere.json"));
}

// ---------------------------------------------------------------------------------------------------------------
// experiments

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
  trial.prompts = {"A", "B", "C"};
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

namespace {
// Two models, of which the engine of these tests asks for no more; returns where the small one lies.
std::string small_model(const Folder& folder) {
  folder.file("model.safetensors", "large");
  std::filesystem::create_directory(folder.file("small"));
  folder.file("small/model.safetensors", "small, and other weights");
  return folder.file("small");
}
}  // namespace

TEST_CASE("experiments: a quick run prints every section and leaves whole files") {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 200; i++) text += "line " + std::to_string(i) + " of a text\n";
  write_file(folder.file("text.txt"), text);
  const std::string small = small_model(folder);
  script = [](const Method& method, int n) {
    if (method.shape == "sequoia") throw std::logic_error("there is no calibration");
    if (method.drafter.substr(0, 4) == "gpt:") throw std::runtime_error("it has other tokens");
    if (method.drafter.substr(0, 8) == "parallel") throw std::runtime_error("it is not trained");
    Generated g = steady(method, n);
    if (method.shape == "chain:2" || method.shape == "chain:4") g.stats.seconds = 0.4;
    if (method.drafter == "suffix+ngram:4") g.stats.seconds = 0.25;
    return g;
  };
  const Words words = {
      "--quick", "--model",         folder.path, "--drafter_model", small, "--data", folder.file("text.txt"),
      "--out",   folder.file("out")};
  const std::string out = run(experiments_command, words);
  for (const char* part : {"Experiments: ",
                           "The trained drafter is ngram:4 instead",
                           "Entropy: does",
                           "Budgets: what",
                           "Temperatures: how",
                           "small models fall into loops",
                           "Rules: of",
                           "BIASED",
                           "LOSSY",
                           "Coupling: what",
                           "Noise-aware trees: how",
                           "Auto: is",
                           "Unions: are",
                           "Held-out text: what",
                           "Drafters that learn: what",
                           "left out: parallel",
                           "left out: structured prompts",
                           "sequoia: there is no calibration",
                           "not judged",
                           "build/nanospec experiments --only entropy --model "})
    CHECK_MESSAGE(contains(out, part), part);
  check_quick_tables(
      out, {"Entropy: does", "Budgets: what", "Temperatures: how", "Rules: of", "Coupling: what",
            "Noise-aware trees: how", "Auto: is", "Unions: are", "Held-out text: what", "Drafters that learn: what"});
  const auto json = [&](const std::string& name) {
    return Json::parse(read_file(folder.file("out/" + name + ".json")));
  };
  for (const char* name : {"entropy", "budgets", "temperatures", "rules", "coupling", "noise-aware", "auto", "unions",
                           "held-out", "drafters"}) {
    CAPTURE(name);
    CHECK(json(name)["machine"].contains("cpu"));
    CHECK(!json(name).contains("roofline"));  // which nobody measured
    const std::string svg = read_file(folder.file("out/" + std::string(name) + ".svg"));
    CHECK(svg.substr(svg.size() - 7) == "</svg>\n");
    CHECK(picture_problem(svg) == "");
    CHECK(read_picture(svg).word(kQuickRun).left > 0);
    if (name == std::string("auto")) continue;
    const Json file = json(name);
    for (const Json& study : file["studies"]) {
      CHECK(study["prompts"].size() >= 2);
      for (const Json& method : study["methods"]) {
        for (const char* field : {"method", "times_plain", "tokens_per_forward", "nodes_per_forward", "identical"})
          CHECK_MESSAGE(method.contains(field), field);
        REQUIRE(method["samples"].size() == study["repeats"]);
        CHECK(method["samples"][0].size() == study["prompts"].size());
        CHECK(method["samples"][0][0].size() == 4);
      }
    }
  }
  const Json entropy = json("entropy");
  CHECK(entropy["studies"][0]["temperature"] == 0.4);
  bool found = false;
  for (const Json& row : entropy["time_saved"]) {
    if (row["shape"] == "tree:4x2") CHECK(row["percent_saved"][0].get<double>() == doctest::Approx(-25));
    if (row["shape"] == "entropy-width") found |= row["paper"] == 7.16;
    CHECK(row["shape"] != "sequoia");
  }
  CHECK(found);
  CHECK(json("bars")["bars"].size() == 4 + 1 + 1 + 3);
  const Json all_bars = json("bars");
  for (const Json& bar : all_bars["bars"])  // the union takes half the time of its parts
    if (contains(bar["bar"].get<std::string>(), "suffix+ngram:4"))
      CHECK(bar["measured"].get<double>() == doctest::Approx(2));
  CHECK(json("auto")["workloads"][0]["auto_over_best"][0].get<double>() == doctest::Approx(0.8));
}

TEST_CASE("experiments: drafters by depth, by kind of prompt and temperature, and how they were trained") {
  const Decodes on;
  const Folder folder;
  std::string text;
  for (int i = 0; i < 120; i++) text += "a speech of one who says much " + std::to_string(i) + "\n";
  for (int i = 0; i < 20; i++) text += "\nA:\nyes.\n";
  write_file(folder.file("text.txt"), text);
  const std::string small = small_model(folder);
  write_file(folder.file("medusa.json"),
             R"({"parameters": 7, "iterations": 20, "seconds": 90, "peak_bytes": 1e6, "hidden_bytes": 500,
                 "hidden_seconds": 60, "accuracy_bigram": [0.25], "curve": [
                 {"iteration": 10, "epoch": 0.5, "seconds": 1, "loss": 3, "accuracy": [0.2, 0.1]},
                 {"iteration": 20, "epoch": 1, "seconds": 2, "loss": 2, "accuracy": [0.4, 0.3]}]})");
  const std::string out =
      run(experiments_command, {"--quick", "--only", "drafters", "--model", folder.path, "--drafter_model", small,
                                "--data", folder.file("text.txt"), "--out", folder.file("out")});
  for (const char* part :
       {"Drafters that learn: what", "over the unigram", "times plain, prose", "times plain, structured",
        "at least 4, a change of speaker each", "small models fall into loops", "medusa cartesian:4,4,4,4",
        "What training took", "40.0, 30.0", "gpt:", "passes/round"})
    CHECK_MESSAGE(contains(out, part), part);
  CHECK(!contains(out, "NO, from"));
  const Json file = Json::parse(read_file(folder.file("out/drafters.json")));
  CHECK(file["studies"].size() == 6);  // three temperatures, two kinds of prompts
  CHECK(file["studies"][1]["text"] == "structured");
  REQUIRE(file["accuracy"].size() == 3);
  for (const Json& part : file["accuracy"])
    for (const Json& one : part["drafters"]) {
      CHECK(one["accuracy"].size() == 6);
      CHECK(one["accuracy"][0][0].get<double>() > 0.3);  // the mock's habits
      CHECK(one["samples"].size() == 2);
    }
  CHECK(file["training"][0]["curve"][1]["accuracy"][1] == 0.3);
  CHECK(file["wide"]["methods"][1]["nodes_per_forward"].get<double>() > 100);
  const std::string svg = read_file(folder.file("out/drafters.svg"));
  CHECK(contains(svg, "Training curves"));
  CHECK(contains(svg, ">epochs of training<"));
  CHECK(picture_problem(svg) == "");
}

TEST_CASE("experiments: --only chooses; what is missing is said with what to type") {
  const Folder folder;
  write_file(folder.file("text.txt"), std::string(5000, 'a'));
  write_file(folder.file("short.txt"), "a");
  const std::string small = small_model(folder);
  script = steady;
  const std::string out =
      run(experiments_command, {"--quick", "--only", "rules,coupling", "--model", folder.path, "--drafter_model", small,
                                "--data", folder.file("text.txt"), "--out", folder.file("out")});
  CHECK(contains(out, "Rules: of"));
  CHECK(contains(out, "Coupling: what"));
  CHECK(!contains(out, "Entropy: does"));
  CHECK(!std::filesystem::exists(folder.file("out/entropy.json")));
  bool untold = false;
  for (const Call& call : calls) untold |= contains(call.method, "noise=unknown");
  CHECK(untold);

  const auto attempt = [&](Words words) {
    words.insert(words.begin(), {"experiments", "--out", folder.file("out")});
    std::vector<char*> argv = arguments(words);
    experiments_command(int(argv.size()), argv.data());
  };
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--only", "entropie"})), "did you mean entropy?"));
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--drafter", "ngramm:4"})), "did you mean ngram:N?"));
  CHECK(contains(error_of([&] { attempt({"--model", folder.file("none")}); }), "train_gpt --preset medium"));
  CHECK(contains(error_of([&] {
                   attempt({"--model", folder.path, "--drafter_model", folder.file("none")});
                 }),
                 "there is no drafter model"));
  CHECK(contains(error_of([&] {
                   attempt({"--model", folder.path, "--drafter_model", small, "--data", folder.file("short.txt")});
                 }),
                 "the text is too short"));

  // A target that drafts for itself, under whatever name.
  std::filesystem::create_directory(folder.file("copy"));
  std::filesystem::copy_file(folder.file("model.safetensors"), folder.file("copy/model.safetensors"));
  std::filesystem::create_directory_symlink(folder.path, folder.file("link"));
  for (const std::string& same : {folder.path, folder.path + "/.", folder.file("copy"), folder.file("link")}) {
    const Words models = {"--model", folder.path, "--drafter_model", same};
    CHECK(contains(BAD_COMMAND_LINE(attempt(models)), "the target would draft for itself: --drafter_model: "));
    CHECK(contains(BAD_COMMAND_LINE(
                       attempt({"--model", folder.path, "--drafter_model", small, "--drafter", "suffix+gpt:" + same})),
                   "the target would draft for itself: --drafter: "));
  }
}

// ---------------------------------------------------------------------------------------------------------------
// bench

TEST_CASE("bench: a quick run prints its tables and leaves whole files") {
  script = steady;
  const Folder folder;
  write_file(folder.file("model.safetensors"), "");
  std::string text;
  for (int i = 0; i < 500; i++) text += "line " + std::to_string(i) + "\n";
  write_file(folder.file("text.txt"), text);
  const std::string out = run(bench_command, {"--quick", "--model", folder.path, "--data", folder.file("text.txt"),
                                              "--out", folder.file("out"), "--threads", "2"});
  for (const char* part : {"Roofline: ", "reading L2", "multiply-add bf16", "cost of N rows", "small bf16", "prefill",
                           "Speculation at temperature 0.7", "bigram auto budget=64", "left out: there is no train_gpt",
                           "left out: there is no PyTorch", "not judged"})
    CHECK_MESSAGE(contains(out, part), part);
  check_quick_tables(out, {"Roofline: ", "Forwards of one row", "Speculation at temperature 0.7", "The best of these"});
  for (const Call& call : calls) CHECK(call.prompt.size() == 64);

  const auto json = [&](const std::string& name) {
    return Json::parse(read_file(folder.file("out/" + name + ".json")));
  };
  for (const char* name : {"roofline", "forward", "decode", "bars"}) {
    const Json file = json(name);
    for (const char* field : {"cpu", "cores", "l2_bytes", "l3_bytes", "simd", "compiler", "date"})
      CHECK_MESSAGE(file["machine"].contains(field), field);
    CHECK(file["roofline"]["read_bytes_per_second"]["memory"]["all_threads"] > 0);
    const size_t runs = file["roofline"]["flops_per_second"]["fp32"]["one_thread_runs"].size();
    CHECK(runs >= 1);  // two, where time allows them
    CHECK(runs <= 2);
  }
  const Json forward = json("forward");
  REQUIRE(forward["configurations"].size() == 2);
  const Json& past = forward["configurations"][1]["pasts"][1];
  CHECK(forward["configurations"][1]["dtype"] == "bf16");
  CHECK(past["past"] == 48);
  CHECK(past["bytes"] == 3e6 + 48e3);
  CHECK(past["seconds"].get<double>() == doctest::Approx(0.01 + 48e-5));
  CHECK(past["bytes_per_second"].get<double>() == doctest::Approx(past["bytes"].get<double>() / (0.01 + 48e-5)));
  REQUIRE(past["rows"].size() == 8);
  CHECK(past["rows"][7]["rows"] == 16);
  CHECK(past["rows"][7]["cost"].get<double>() == doctest::Approx((0.025 + 48e-5) / (0.01 + 48e-5)));
  CHECK(past["rows"][7]["seconds"].size() == 2);
  CHECK(forward["configurations"][0]["prefill"]["tokens"] == 63);

  const Json decode = json("decode");
  REQUIRE(decode["temperatures"].size() == 3);
  CHECK(decode["temperatures"][1]["temperature"] == 0.7);
  CHECK(decode["temperatures"][0]["methods"][1]["speedup"] == 2.0);
  CHECK(decode["temperatures"][0]["methods"][3]["budget"] == 64);
  bool found = false;
  const Json bars = json("bars");
  for (const Json& bar : bars["bars"])
    if (bar["bar"] == "temperature 1, bigram auto: over the best fixed shape, chain:4") {
      found = true;
      CHECK(bar["measured"] == 1.0);
      CHECK(bar["met"] == true);
    }
  CHECK_MESSAGE(found, out);
  for (const char* name : {"cost", "speed", "acceptance", "shares", "reliability"}) {
    CAPTURE(name);
    const std::string svg = read_file(folder.file("out/" + std::string(name) + ".svg"));
    CHECK(picture_problem(svg) == "");
    CHECK(read_picture(svg).word(kQuickRun).left > 0);
  }
}

TEST_CASE("bench: section gpu holds kernels and decoding against the limits, and is left out where there is none") {
  const Folder folder;
  const Words words = {"--quick", "--only", "gpu", "--data", folder.path, "--out", folder.file("out")};
  gpu = false;
  CHECK(contains(run(bench_command, words), "left out: there is no CUDA device"));
  CHECK(!std::filesystem::exists(folder.file("out/gpu.json")));

  gpu = true;
  const std::string out = run(bench_command, words);
  gpu = false;
  for (const char* part : {"GPU: Abacus <9>, 4 multiprocessors, compute capability 9.0", "reading memory", "8,000",
                           "Kernels on Abacus <9>", "Decoding on Abacus <9>", "cost of N rows", "small bf16",
                           "Training on Abacus <9>", "left out: there is no train_gpt", "PyTorch that finds the GPU",
                           "share of memory's limit", "cost of 16 rows", "not judged"})
    CHECK_MESSAGE(contains(out, part), part);
  const Json json = Json::parse(read_file(folder.file("out/gpu.json")));
  CHECK(json["gpu"]["name"] == "Abacus <9>");
  CHECK(json["bars"]["share_of_memory"]["next"] == 0.8);
  CHECK(json["limits"]["bf16_flops_per_second"]["runs"].size() == 2);
  REQUIRE(json["kernels"].size() == 3);
  CHECK(json["kernels"][0]["share_of_memory"] == doctest::Approx(0.5));
  CHECK(json["kernels"][0]["share_of_compute"] == doctest::Approx(0.125));
  CHECK(json["kernels"][1]["limit"] == "compute");
  CHECK(json["kernels"][0]["seconds"].size() == 3);
  REQUIRE(json["configurations"].size() == 2);
  const Json& past = json["configurations"][0]["pasts"][1];
  CHECK(past["share"].get<double>() == doctest::Approx((3e6 + 48e3) / (0.01 + 48e-5) / 1e9));
  REQUIRE(past["rows"].size() == 7);
  CHECK(past["rows"][6]["rows"] == 64);
  CHECK(!past.contains("plain_read_share"));
  const std::string svg = read_file(folder.file("out/kernels.svg"));
  CHECK(contains(svg, "Abacus &lt;9&gt;"));
  CHECK(contains(svg, "matmul fp32, 64 x 2 x 3"));
  CHECK(contains(svg, "1,500 GFLOP/s in fp32"));
  CHECK(picture_problem(svg) == "");
}

TEST_CASE("bench: --roofline and --only choose; what is missing is said, not fatal") {
  const Folder folder;
  const std::string roofline = run(bench_command, {"--roofline", "--quick", "--out", folder.file("out")});
  CHECK(contains(roofline, "reading memory"));
  CHECK(!contains(roofline, "Forwards"));
  CHECK(!std::filesystem::exists(folder.file("out/forward.json")));
  const std::string decode =
      run(bench_command, {"--quick", "--only", "decode", "--model", folder.path, "--out", folder.file("out")});
  CHECK(contains(decode, "left out: there is no trained model: " + folder.path));
  CHECK(!contains(decode, "Forwards"));

  const auto attempt = [](Words words) {
    words.insert(words.begin(), "bench");
    std::vector<char*> argv = arguments(words);
    bench_command(int(argv.size()), argv.data());
  };
  CHECK(error_of([&] {
          attempt({"--model", folder.file("none")});
        }) == "there is no such file or folder: " + folder.file("none") + ": --model: check the path");
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--only", "forwards"})), "did you mean forward?"));
  CHECK(contains(BAD_COMMAND_LINE(attempt({"--only", "decode", "--roofline"})), "give one of the two"));
  CHECK_THROWS_AS(attempt({"--repeat", "0"}), std::invalid_argument);
  CHECK_THROWS_AS(attempt({"--roofline", "--out", "/proc/nanospec"}), std::runtime_error);
}

// ---------------------------------------------------------------------------------------------------------------
// exact

TEST_CASE("exact: its tables, its JSON, and the last line") {
  const Folder folder;
  const std::string out =
      run(exact_command, {"--distributions", "1", "--samples", "500", "--vocab", "8", "--json", folder.file("e.json")});
  for (const RuleWord& rule : kRules) CHECK(contains(out, std::string("\n") + rule.word + " "));
  CHECK(contains(out, "the control, judged as with"));
  const std::string last = "Every rule that promises exactness held, in 30 rows of these tables; the control failed";
  CHECK(contains(out.substr(out.size() - 120), last));
  const Json json = Json::parse(read_file(folder.file("e.json")));
  CHECK(json["held"] == true);
  CHECK(json["sampled"].size() == 2 * std::size(kRules));
  for (const Json& row : json["enumerated"]) {
    CHECK(row["distributions"].size() == 8);
    if (row["promises_exactness"] == true) CHECK(row["largest_distance"].get<double>() < 1e-12);
  }
  CHECK(!contains(run(exact_command, {"--distributions", "1", "--samples", "0"}), "texts"));
}
