// tests/commands/stand_in.cpp: the Engine, the Probe and the GPU that stand in for nanospec.cu's, as stand_in.h says. A
// token is a character, and speed is scripted.
#include "tests/commands/stand_in.h"

#include <csignal>
#include <filesystem>
#include <list>

#include "commands/commands.h"
#include "study/bench.h"
#include "study/timed_update.h"
#include "tests/mock.h"

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

void check_quick_tables(const std::string& out, const Words& headings) {
  for (const std::string& heading : headings) {
    const size_t at = out.find(heading), table = out.find("\n\n", at);
    CHECK_MESSAGE(contains(out.substr(at, table - at) + "\n", "\n" + std::string(kQuickRun) + "\n"), heading);
  }
}

std::string run(int (*command)(int, char**), Words words, int expected_status) {
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

namespace {

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
  if (observation.stand_in) other = observation.stand_in(*drafter);
  std::vector<int> text = prompt;
  Drafter* const used = method.drafter == "none" ? nullptr : other ? other.get() : drafter.get();
  Generated g;
  g.stats = generate(mock, used, decoding, text, on_token);
  g.tokens.assign(text.begin() + long(prompt.size()), text.end());
  return g;
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
Generated Engine::generate(const Method& method, const Sampling& sampling, const std::vector<int>& prompt,
                           int max_new_tokens, const std::function<bool(int)>& on_token,
                           const Observation& observation) {
  const Settings& its = parts_->settings;
  if (most_nodes(method, its.budget) >= its.rows) throw std::logic_error("no room for " + method_text(method));
  calls.push_back({method_text(method), prompt, int(sampling.sequence), max_new_tokens, sampling});
  if (decodes) return decoded(method, sampling, prompt, max_new_tokens, on_token, observation);
  const Generated generated = script(method, max_new_tokens);
  for (int token : generated.tokens)
    if (!on_token(token)) break;
  return generated;
}
// Side by side, a token of each text in turn, the newest first: so texts end in any order.
void Engine::generate(const Method& method, std::deque<Request>& requests) {
  struct Seat {
    Request& request;
    Generated text;
    size_t given = 0;  // tokens
  };
  std::list<Seat> seats;
  for (size_t next = 0; next < requests.size() || !seats.empty();) {
    for (; next < requests.size() && int(seats.size()) < parts_->settings.seats; next++) {
      Request& r = requests[next];
      seats.push_front({r, generate(method, r.sampling, r.prompt, r.max_new_tokens, [](int) { return true; }, {})});
    }
    for (auto seat = seats.begin(); seat != seats.end();) {
      Generated& text = seat->text;
      const bool on = seat->given < text.tokens.size() && seat->request.on_token(text.tokens[seat->given++]);
      const auto here = seat++;
      if (on && here->given < text.tokens.size()) continue;
      text.stats.tokens = int64_t(here->given);
      here->request.on_end(text.stats);
      seats.erase(here);
    }
  }
}
std::vector<double> Engine::losses(const std::vector<int>& tokens, int first) {
  if (int(windows.size()) == stand_in().interrupted_at) raise(SIGINT);
  windows.push_back({tokens, first});
  std::vector<double> losses;
  for (size_t i = size_t(first); i < tokens.size(); i++) losses.push_back(0.01 * tokens[i]);
  return losses;
}
const Config& Engine::config() const { return parts_->config; }
std::string Engine::device() const { return "cpu"; }
std::string Engine::dtype() const { return parts_->settings.dtype == "auto" ? "fp32" : parts_->settings.dtype; }
int Engine::seats() const { return parts_->settings.seats; }
int Engine::threads() const { return parts_->settings.threads; }
double Engine::weight_bytes() const { return 1e6; }

struct Probe::Parts {};
Probe::Probe(const Config&, const std::string&, const std::string&, int, int) {}
Probe::Probe(const Settings&) {}
Probe::~Probe() = default;
double Probe::forward_seconds(int rows, int past) { return 0.01 * (1 + 0.1 * (rows - 1)) + 1e-5 * past; }
double Probe::prefill_seconds(int tokens) { return 0.001 * tokens; }
double Probe::weight_bytes() const { return 3e6; }
double Probe::cache_bytes(int past) const { return 1e3 * past; }

std::string gpu_missing() { return stand_in().gpu ? "" : "there is no CUDA device: --device cuda: buy one"; }
GpuFacts gpu_facts() { return {"Abacus <9>", "9.0", 4, 1e9, 1e6, "13.0", "12.8"}; }
void gpu_early(const std::string& word) { stand_in().early += word + " "; }
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
