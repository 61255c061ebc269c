// tests/core/test_real.cpp: the promise, on the model that `make chat` gets: whatever drafter, shape, temperature,
// number type and number of threads, the bytes of plain decoding.
//
// `make prove` decodes 300 texts of 100 tokens by speculation, which takes six minutes on two cores; `make test`
// three of them. Without the model all of this counts as skipped.
#include <doctest/doctest.h>

#include <set>

#include "decode.h"
#include "drafters/adapt.h"
#include "files/bpe.h"
#include "files/gguf_model.h"
#include "files/model_drafters.h"
#include "target.h"
#include "tests/mock.h"

using namespace nanospec;

namespace {

const char* const kModel = "models/SmolLM2-135M-Instruct.Q4_1.gguf";
constexpr int kTokensEach = 100;

// A target to prove. Where the context is 96 tokens, every text outgrows it, and the window slides.
struct Machine {
  Dtype dtype, cache;
  int threads, context;
};
constexpr Machine kMachines[] = {{Dtype::q4_1, Dtype::fp32, 2, 96},  {Dtype::q4_1, Dtype::fp32, 1, 96},
                                 {Dtype::q8_0, Dtype::bf16, 2, 512}, {Dtype::q4_0, Dtype::bf16, 1, 512},
                                 {Dtype::bf16, Dtype::bf16, 2, 512}, {Dtype::fp32, Dtype::fp32, 1, 512}};

struct Setting {
  const char* prompt;
  float temperature, top_p;
};
constexpr Setting kSettings[] = {
    {"The three states of matter are solid, liquid and gas. In a solid, the particles", 0, 1},
    {"<|im_start|>user\nName ten animals, and say of each where it lives.<|im_end|>\n<|im_start|>assistant\n", 0.7f, 1},
    {"def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n    return a - b\n\ndef", 1, 1},
    {"caf\xC3\xA9 1, caf\xC3\xA9 2, caf\xC3\xA9 3, caf\xC3\xA9", 1.5f, 1},
    {"Once upon a time there was a king who", 1, 0.9f}};

// Every drafter that needs nothing beside the model; the n-grams are counted in this project's own documents.
struct Drafters {
  std::vector<std::pair<std::string, std::unique_ptr<Drafter>>> all;

  explicit Drafters(const Tokenizer& tokenizer, Target& target) {
    const int vocab = tokenizer.vocab_size();
    std::vector<int> text;
    for (const char* path : {"README.md", "docs/commands.md", "docs/shapes.md", "docs/drafters.md"})
      for (int token : tokenizer.encode(read_file(path))) text.push_back(token);
    const auto ngram = [&](int order) {
      return std::make_unique<Ngram>(interpolated(count_ngrams(text, vocab, order), order, vocab));
    };
    const auto both = [](std::unique_ptr<Drafter> a, std::unique_ptr<Drafter> b) {
      std::vector<std::unique_ptr<Drafter>> parts;
      parts.push_back(std::move(a)), parts.push_back(std::move(b));
      return std::make_unique<Union>(std::move(parts));
    };
    const auto add = [&](const char* name, std::unique_ptr<Drafter> drafter) {
      all.push_back({name, std::move(drafter)});
    };
    add("suffix", std::make_unique<Suffix>(vocab));
    add("ngram:2", ngram(2));
    add("ngram:4", ngram(4));
    add("suffix+ngram:4", both(std::make_unique<Suffix>(vocab), ngram(4)));
    add("lookup", std::make_unique<Lookup>(vocab));
    add("recycle", std::make_unique<Recycle>(vocab));
    add("suffix+recycle", both(std::make_unique<Suffix>(vocab), std::make_unique<Recycle>(vocab)));
    add("self:3", std::make_unique<FirstLayers>(target, 3));
  }
};

Decoding decoding_of(const Setting& setting) {
  Decoding decoding;
  decoding.sampling.temperature = setting.temperature;
  decoding.sampling.top_p = setting.top_p;
  decoding.sampling.seed = 16;
  decoding.max_new_tokens = kTokensEach;
  return decoding;
}

std::vector<int> continued(Target& target, Drafter* drafter, const Decoding& decoding, std::vector<int> text,
                           Stats* stats) {
  target.forget();
  *stats = generate(target, drafter, decoding, text, [](int) { return true; });
  return text;
}

struct Tally {
  int generations = 0, equal = 0;
  std::set<std::string> pairs;  // of a drafter and a shape
  std::map<std::string, Stats> by_drafter;
  std::map<std::string, std::vector<int>> plain;  // by setting, of one number type: threads must not change it
};

// Decodes one setting `n` times by speculation, each time with the next drafter and shape.
void prove(Target& target, Drafters& drafters, const Loaded& loaded, const Setting& setting, int n,
           const std::shared_ptr<Cost>& cost, Tally& tally) {
  Decoding decoding = decoding_of(setting);
  const std::vector<int> prompt = loaded.tokenizer.bpe->encode(setting.prompt, Control::found);
  Stats stats;
  const std::vector<int> plain = continued(target, nullptr, decoding, prompt, &stats);
  CHECK(stats.target_forwards == kTokensEach);
  CHECK((stats.slide_prefills > 0) == (int(plain.size()) > loaded.config.block_size));
  const auto known = tally.plain.emplace(setting.prompt, plain).first;
  CHECK(known->second == plain);
  for (int i = 0; i < n; i++, tally.generations++) {
    const auto& drafter = drafters.all[size_t(tally.generations) % drafters.all.size()];
    const std::string& name = drafter.first;
    // 8 and 17 have no common divisor: every drafter meets every shape. Trees are small, or this took an hour.
    const std::string shape = kAllShapes[size_t(tally.generations) % std::size(kAllShapes)];
    decoding.shape = ready_shape(shape, shape == "tree:5x2" ? 62 : 20);
    decoding.cost = decoding.shape.kind == Shape::kAuto ? cost : nullptr;
    decoding.ahead = tally.generations % 5 == 4 ? Ahead::kOn : Ahead::kOff;
    CAPTURE(name);
    CAPTURE(shape);
    CAPTURE(setting.temperature);
    const std::vector<int> text = continued(target, drafter.second.get(), decoding, prompt, &stats);
    CHECK(text == plain);
    tally.equal += text == plain;
    tally.pairs.insert(name + " " + shape);
    tally.by_drafter[name].tokens += stats.tokens;
    tally.by_drafter[name].target_forwards += stats.target_forwards;
  }
}

}  // namespace

TEST_CASE("real: whatever drafter, shape, temperature, numbers and threads, the bytes of plain decoding") {
  const bool whole = !a_tenth();
  Tally tally;
  Dtype weights = Dtype::fp32, cache = Dtype::bf16;  // what no machine has
  size_t machines = 0, settings = 0;
  if (!whole) tally.generations = int(sweep_seed() % 1000);  // where the drafters and the shapes begin
  const int before = tally.generations;
  for (const Machine& machine : kMachines) {
    if (!runs(machines++, std::size(kMachines))) continue;
    CAPTURE(int(machine.dtype));
    CAPTURE(int(machine.cache));
    CAPTURE(machine.threads);
    if (machine.dtype != weights || machine.cache != cache) tally.plain.clear();
    weights = machine.dtype, cache = machine.cache;
    const Loaded loaded = load_gguf(read_gguf(kModel), machine.context);
    Target target(loaded.config, loaded.tensors, machine.dtype, false, machine.threads, 65, machine.cache);
    Drafters drafters(loaded.tokenizer, target);
    const auto cost = std::make_shared<Cost>(measure_cost(target, 20));
    for (const Setting& setting : kSettings)
      if (runs(settings++, std::size(kSettings))) prove(target, drafters, loaded, setting, whole ? 10 : 3, cost, tally);
  }
  CHECK(tally.equal == tally.generations - before);
  CHECK(tally.generations - before == (whole ? 300 : 3));
  if (whole) CHECK(tally.pairs.size() == 8 * std::size(kAllShapes));
  for (const auto& drafter : tally.by_drafter) {
    CAPTURE(drafter.first);
    if (whole) CHECK(drafter.second.tokens > drafter.second.target_forwards);  // else the sweep proves nothing
  }
}
