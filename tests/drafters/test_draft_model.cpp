// tests/drafters/test_draft_model.cpp: drafters that run a model: whatever was drafted, accepted and rejected before,
// they say what their model says of the path alone; and the text stays plain decoding's.
#include "drafters/draft_model.h"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>

#include "files/model_drafters.h"
#include "tests/error_of.h"
#include "tests/random.h"
#include "tests/tenth.h"
#include "watch/decoding.h"

using namespace nanospec;

namespace {

constexpr int kTargetRows = 33;

// The first layers of a model, its embeddings and its last norm, as a model of their own.
std::vector<float> first_weights(const Config& whole, const std::vector<float>& weights, const Config& part) {
  std::vector<float> out(parameter_count(part));
  for (const TensorSpec& to : tensor_table(part))
    for (const TensorSpec& from : tensor_table(whole))
      if (from.name == to.name)
        std::copy_n(weights.begin() + long(from.offset), to.size, out.begin() + long(to.offset));
  return out;
}

// What a model says after a text, one token at a time, by a cache of its own: the plainest way to it.
struct PlainWindow {
  Target target;
  std::vector<int> cached;

  PlainWindow(const Config& config, const std::vector<float>& weights, Dtype cache_dtype = Dtype::fp32)
      : target(config, weights.data(), Dtype::fp32, false, 1, kTargetRows, cache_dtype) {}
  // text: what the window holds, the tokens of the path at its end.
  std::vector<float> operator()(const std::vector<int>& text) {
    size_t same = 0;
    while (same + 1 < text.size() && same < cached.size() && cached[same] == text[same]) same++;
    target.rewind(int(same));
    const int depth = 0, end = 1;
    for (size_t i = same; i < text.size(); i++) target.forward(&text[i], &depth, &end, 1), target.rewind(int(i) + 1);
    cached = text;
    return std::vector<float>(target.logits(0), target.logits(0) + kSmallVocab);
  }
};

// Plays a target that the drafter meets: grows random trees, asks for nodes one by one or many at once, accepts a path
// by chance, of any length, and commits it.
struct Game {
  Chance chance;
  std::vector<int> text;
  Growth growth;
  Tree tree;
  int64_t asked = 0, beyond = 0;

  explicit Game(uint32_t seed, int prompt) : chance(seed) {
    for (int i = 0; i < prompt; i++) text.push_back(chance.below(kSmallVocab));
  }
  // The window of `block` as the drafter sees it, and the path to a node behind it.
  std::vector<int> window(int block, int node) const {
    std::vector<int> seen(text.begin() + window_start(int(text.size()), block), text.end()), path;
    for (int i = node; i > 0; i = growth.parent[i]) path.push_back(growth.token[i]);
    seen.insert(seen.end(), path.rbegin(), path.rend());
    return seen;
  }
  void grow_randomly(int most) {
    growth.start(text.back());
    const bool chain = chance.below(3) == 0;
    for (int n = chance.below(most); n > 0; n--) {
      const int under = chain ? growth.size() - 1 : chance.below(growth.size());
      growth.add(under, {chance.below(kSmallVocab), 1});
    }
  }
  // Held against `plain`, a model of window `block`; past that window there must be nothing.
  void check(Drafter& drafter, PlainWindow& plain, int block, const Growth& which, int node) {
    const std::vector<int> seen = window(block, node);
    const float* logits = drafter.logits(which, node);
    asked++;
    if (int(seen.size()) > block) {
      beyond++;
      CHECK(logits == nullptr);
      return;
    }
    REQUIRE(logits != nullptr);
    const std::vector<float> expected = plain(seen);
    CHECK(std::memcmp(logits, expected.data(), sizeof(float) * kSmallVocab) == 0);
  }
  // Asks as a shape would: parents before children; `batch` nodes at a time.
  void ask(Drafter& drafter, PlainWindow& plain, int block) {
    std::vector<int> nodes = {0};
    drafter.prepare(growth, nodes.data(), 1);
    for (int first = 1; first < growth.size();) {
      const int batch = std::min(growth.size() - first, 1 + chance.below(4) * chance.below(4));
      nodes.clear();
      for (int i = 0; i < batch; i++)
        if (chance.below(4) > 0) nodes.push_back(first + i);
      if (!nodes.empty()) drafter.prepare(growth, nodes.data(), int(nodes.size()));
      for (int node : nodes) check(drafter, plain, block, growth, node);
      first += batch;
    }
    for (int again = 0; again < 3; again++) check(drafter, plain, block, growth, 0);
  }
  // A random path of the tree, of any length, and one token more.
  Verdict accept() {
    flatten(growth, tree);
    Verdict verdict;
    for (int node = 0; node >= 0;) {
      verdict.rows.push_back(node);
      std::vector<int> children;
      for (int c = tree.first_child(node); c >= 0; c = tree.next_sibling(c)) children.push_back(c);
      node = children.empty() || chance.below(5) == 0 ? -1 : children[chance.below(int(children.size()))];
      verdict.tokens.push_back(node >= 0 ? tree.token[node] : chance.below(kSmallVocab));
    }
    return verdict;
  }
  Commit commit(const Verdict& verdict) const {
    return {verdict.tokens.data(), verdict.rows.data(), int(verdict.rows.size()), tree};
  }
};

}  // namespace

TEST_CASE("gpt: says of every node what the model says of its path, whatever was accepted before") {
  int64_t asked = 0, beyond = 0;
  for (int block : {16, 64})
    for (Dtype cache : {Dtype::fp32, Dtype::bf16}) {
      const Config config = small_config(2, block);
      const std::vector<float> weights = loud_weights(config, 3);
      PlainWindow plain(config, weights, cache);
      SmallModel drafter(std::make_unique<Target>(config, weights.data(), Dtype::fp32, false, 1, kTargetRows, cache));
      for (uint32_t seed = 1; seed <= (a_tenth() ? 2 : 8); seed++) {
        Game game(seed, 1 + int(seed) * 5);
        drafter.begin(game.text.data(), int(game.text.size()));
        for (int turn = 0; turn < 40; turn++) {
          game.grow_randomly(kTargetRows);
          if (game.chance.below(6) > 0) game.ask(drafter, plain, block);  // else an iteration without drafting
          const Verdict verdict = game.accept();
          drafter.committed(game.commit(verdict));
          game.text.insert(game.text.end(), verdict.tokens.begin(), verdict.tokens.end());
        }
        asked += game.asked, beyond += game.beyond;
      }
    }
  CHECK(asked > (a_tenth() ? 1000 : 6000));
  CHECK(beyond > 10);
}

TEST_CASE("gpt: self says what a model of the first layers says, and leaves the target as it was") {
  for (Dtype cache : {Dtype::fp32, Dtype::bf16})
    for (int layers : {1, 2}) {
      const Config config = small_config(3, 64), part = small_config(layers, 64);
      const std::vector<float> weights = loud_weights(config, 4);
      PlainWindow plain(part, first_weights(config, weights, part), cache), whole(config, weights, cache);
      Target target(config, weights.data(), Dtype::fp32, false, 2, kTargetRows, cache);
      FirstLayers drafter(target, layers);
      for (uint32_t seed = 1; seed <= (a_tenth() ? 1 : 4); seed++) {
        Game game(seed, 1 + int(seed) * 5);
        open_window(target, game.text);
        drafter.begin(game.text.data(), int(game.text.size()));
        for (int turn = 0; turn < 25; turn++) {
          const int past = target.past(), room = 64 - 1 - past;  // how deep the tree may be
          game.grow_randomly(std::min(20, room + 1));
          if (game.chance.below(6) > 0) game.ask(drafter, plain, 64);
          else game.growth.shrink(1);  // an iteration without drafting
          CHECK(target.past() == past);
          const Verdict verdict = game.accept();
          const Tree& t = game.tree;
          target.forward(t.token.data(), t.depth.data(), t.end.data(), t.size());
          for (int row = 0; row < t.size(); row++) {  // the first forward of verification, on the same cache
            const std::vector<float> expected = whole(game.window(64, t.origin[row]));
            CHECK(std::memcmp(target.logits(row), expected.data(), sizeof(float) * kSmallVocab) == 0);
          }
          drafter.committed(game.commit(verdict));
          const int before = window_start(int(game.text.size()), 64);
          game.text.insert(game.text.end(), verdict.tokens.begin(), verdict.tokens.end());
          if (window_start(int(game.text.size()), 64) == before)
            target.keep(verdict.rows.data(), int(verdict.rows.size()));
          else open_window(target, game.text);
        }
        CHECK(game.asked > 20);
      }
    }
}

TEST_CASE("gpt: the accepted path is not run twice; a chain costs one row a node") {
  const Config config = small_config(2, 64);
  const std::vector<float> weights = loud_weights(config, 3);
  auto own = std::make_unique<Target>(config, weights.data(), Dtype::fp32, false, 1, kTargetRows);
  Target& model = *own;
  SmallModel drafter(std::move(own));
  const std::vector<int> prompt = {1, 2, 3, 4};
  drafter.begin(prompt.data(), 4);
  CHECK(model.past() == 3);
  Growth growth;
  growth.start(4);
  const int path[] = {5, 6, 7};
  for (int i = 0; i < 3; i++) {
    drafter.prepare(growth, &i, 1);
    growth.add(i, {path[i], 1});
  }
  Tree tree;
  flatten(growth, tree);
  const int rows[] = {0, 1, 2, 3}, tokens[] = {5, 6, 7, 8};
  for (int n : {1, 2, 3, 4}) {  // first, middle, last, none rejected
    drafter.begin(prompt.data(), 4);
    growth.start(4);
    for (int i = 0; i < 3; i++) {
      drafter.prepare(growth, &i, 1);
      growth.add(i, {path[i], 1});
    }
    drafter.committed({tokens, rows, n, tree});
    CHECK(model.past() == 3 + std::min(n, 3));  // of 4 the last, a leaf, was never run
  }
}

TEST_CASE("gpt: a text that went on for long without it is run in pieces") {
  const Config config = small_config(2, 600);
  const std::vector<float> weights = loud_weights(config, 3);
  PlainWindow plain(config, weights, Dtype::fp32);
  auto own = std::make_unique<Target>(config, weights.data(), Dtype::fp32, false, 1, 8);
  REQUIRE(own->most_rows() < 500);
  SmallModel drafter(std::move(own));
  std::vector<int> text = {1, 2};
  drafter.begin(text.data(), 2);
  Growth growth;
  Tree tree;
  const int row = 0, root = 0;
  for (int i = 0; i < 560; i++) {
    growth.start(text.back());
    flatten(growth, tree);
    text.push_back((i * i + 3) % 7);
    drafter.committed({&text.back(), &row, 1, tree});
  }
  growth.start(text.back());
  drafter.prepare(growth, &root, 1);
  const std::vector<float> expected = plain(text);
  CHECK(memcmp(drafter.logits(growth, 0), expected.data(), expected.size() * sizeof(float)) == 0);
}

TEST_CASE("gpt: self too: a drafter that never was prepared says nothing, and runs nothing") {
  const Config config = small_config(2, 64);
  const std::vector<float> weights = loud_weights(config, 3);
  Target target(config, weights.data(), Dtype::fp32, false, 1, kTargetRows);
  FirstLayers self(target, 1);
  const std::vector<int> prompt = {1, 2, 3, 4};
  open_window(target, prompt);
  self.begin(prompt.data(), 4);
  Growth growth;
  growth.start(4), growth.add(0, {5, 1}), growth.add(0, {6, 1});
  CHECK(self.logits(growth, 0) == nullptr);
  const int root = 0;
  self.prepare(growth, &root, 1);
  CHECK(self.logits(growth, 0) != nullptr);
  CHECK(self.logits(growth, 1) == nullptr);
  Growth other;  // the same path in another growth
  other.start(4), other.add(0, {6, 1});
  const int both[] = {1, 2};
  self.prepare(growth, both, 2);
  const std::vector<float> row(self.logits(growth, 2), self.logits(growth, 2) + kSmallVocab);
  CHECK(std::memcmp(row.data(), self.logits(other, 1), sizeof(float) * kSmallVocab) == 0);
}

TEST_CASE("gpt: self too: every shape prints the bytes of plain decoding, alone and in unions") {
  const Config config = small_config(3, 64), small = small_config(1, 32);
  const std::vector<float> weights = loud_weights(config, 4), small_weights = loud_weights(small, 5);
  int generations = 0;
  size_t setting = 0;
  for (Dtype cache : {Dtype::fp32, Dtype::bf16})
    for (int threads : {1, 2}) {
      Target target(config, weights.data(), Dtype::fp32, false, threads, 65, cache);
      const auto make = [&](const DrafterName& name) -> std::unique_ptr<Drafter> {
        if (name.kind == DrafterName::kSelf) return first_layers(target, name.layers, "");
        const bool copy = name.dir == "copy";
        return std::make_unique<SmallModel>(std::make_unique<Target>(
            copy ? config : small, copy ? weights.data() : small_weights.data(), Dtype::fp32, false, 1, 65, cache));
      };
      const std::vector<double> cost = measure_cost(target, 64);
      std::map<std::string, std::unique_ptr<Drafter>> drafters;
      for (const char* name : {"gpt:small", "gpt:copy", "self:1", "self:2", "suffix+gpt:small", "self:2+lookup",
                               "gpt:small+self:1+recycle"})
        drafters[name] = load_drafter(name, "", kSmallVocab, make);
      for (float temperature : {0.0f, 0.7f, 1.0f}) {
        Decoding decoding;
        decoding.sampling.temperature = temperature;
        decoding.max_new_tokens = 150;  // past both windows
        Stats stats;
        const std::vector<int> prompt = {1, 2, 3};
        std::vector<int> plain = prompt;
        stats = generate(target, nullptr, decoding, plain, [](int) { return true; });
        for (const auto& one : drafters)
          for (const char* shape : {"chain:4", "tree:3x2", "tree:1x8", "auto"}) {
            if (!runs(setting++)) continue;
            CAPTURE(one.first);
            CAPTURE(shape);
            CAPTURE(temperature);
            decoding.shape = parse_shape(shape, 64);
            if (decoding.shape.kind == Shape::kAuto) decoding.cost = std::make_shared<Cost>(cost);
            std::vector<int> text = prompt;
            stats = generate(target, one.second.get(), decoding, text, [](int) { return true; });
            CHECK(text == plain);
            generations++;
            if (one.first == "gpt:copy" && decoding.shape.kind == Shape::kChain)
              CHECK(stats.target_forwards < 40);  // 30, and short ones at the windows' ends
          }
      }
    }
  CHECK(generations >= (a_tenth() ? 30 : 300));
}

TEST_CASE("gpt: a copy of the target is accepted in full, always") {
  const Config config = small_config(2, 64);
  const std::vector<float> weights = loud_weights(config, 6);
  for (float temperature : {0.0f, 0.7f, 1.5f})
    for (const char* shape : {"chain:5", "tree:3x2"}) {
      Target target(config, weights.data(), Dtype::fp32, false, 2, 65);
      SmallModel copy(std::make_unique<Target>(config, weights.data(), Dtype::fp32, false, 1, 65));
      Decoding decoding;
      decoding.shape = parse_shape(shape, 64);
      decoding.sampling.temperature = temperature;
      decoding.max_new_tokens = 48;  // within the window: 8 forwards of 6, or 12 of 4
      std::vector<int> text = {1, 2, 3};
      const Stats stats = generate(target, &copy, decoding, text, [](int) { return true; });
      const int whole = decoding.shape.kind == Shape::kChain ? 6 : 4;
      CHECK(stats.target_forwards == 48 / whole);
      CHECK(stats.accept_histogram[whole] == 48 / whole);
    }
}

TEST_CASE("gpt: self too: the rules that want a sample of q have one, also where the drafter's window ends") {
  const Config config = small_config(2, 64), small = small_config(1, 16);
  const std::vector<float> weights = loud_weights(config, 4), small_weights = loud_weights(small, 5);
  Target target(config, weights.data(), Dtype::fp32, false, 2, 65);
  const auto make = [&](const DrafterName& name) -> std::unique_ptr<Drafter> {
    if (name.kind == DrafterName::kSelf) return first_layers(target, name.layers, "");
    return std::make_unique<SmallModel>(
        std::make_unique<Target>(small, small_weights.data(), Dtype::fp32, false, 1, 65));
  };
  for (const char* name : {"gpt:small", "self:1", "self:1+gpt:small"}) {
    const std::unique_ptr<Drafter> drafter = load_drafter(name, "", kSmallVocab, make);
    for (const RuleWord& rule : kRules) {
      CAPTURE(rule.word);
      Decoding decoding;
      decoding.shape = parse_shape(rule.chains_only ? "chain:12" : "tree:4x2", 64);
      decoding.rule = parse_rule(rule.word);
      decoding.max_new_tokens = 100;
      std::vector<int> text = {1, 2, 3};
      const Stats stats = generate(target, drafter.get(), decoding, text, [](int) { return true; });
      CHECK(stats.tokens == 100);
      CHECK(stats.drafted_nodes > 100);
    }
  }
}

TEST_CASE("gpt: self too: by name; what is wrong is said in one line") {
  const std::string dir =
      (std::filesystem::temp_directory_path() / ("nanospec_model_" + std::to_string(getpid()))).string();
  const Config config = small_config(2, 64);
  const std::vector<float> weights = loud_weights(config, 4);
  Target target(config, weights.data(), Dtype::fp32, false, 1, kTargetRows);
  std::string letters = "abcdefghijklmnopqrstuvwxyzABC", others = "abcdefghijklmnopqrstuvwxyzABD";
  const Tokenizer tokenizer = character_tokenizer(letters);
  REQUIRE(tokenizer.vocab_size() == kSmallVocab);
  const auto load = [&](const Tokenizer& own) { return load_small_model(dir, own, Dtype::fp32, Dtype::fp32, target); };
  CHECK(holds(error_of([&] { load(tokenizer); }), dir.c_str()));  // a folder that is not there
  CHECK_THROWS_AS(load(tokenizer), std::runtime_error);
  save_model(dir, config, tokenizer, weights.data());
  CHECK(load(tokenizer)->vocab == kSmallVocab);
  CHECK(holds(error_of([&] { load(character_tokenizer(others)); }), "other tokens than the target"));
  std::filesystem::remove_all(dir);

  CHECK(first_layers(target, 1, "runs/x")->vocab == kSmallVocab);
  for (const char* part : {"self:2 needs 2", "has 2 in all", ": runs/x: ", "choose self:1 or less"})
    CHECK(holds(error_of([&] { first_layers(target, 2, "runs/x"); }), part));
  CHECK(holds(error_of([&] { first_layers(target, 7, "m.gguf"); }), " in all: m.gguf: choose self:"));

  for (const char* name : {"gpt", "gpt:", "gpt:a+", "self", "self:", "self:0", "self:x", "self:-1", "self:1+self:2"}) {
    CAPTURE(name);
    CHECK_THROWS_AS(parse_drafter(name), std::invalid_argument);
    CHECK(holds(message_of([&] { parse_drafter(name); }), "--drafter"));
  }
  CHECK(holds(message_of([] { parse_drafter("gtp:runs/small"); }), "did you mean gpt:DIR?"));
  CHECK(parse_drafter("gpt:C:/my runs/a")[0].dir == "C:/my runs/a");
  CHECK(parse_drafter("ngram:4+gpt:runs/small+self:2")[1].dir == "runs/small");
  CHECK(parse_drafter("ngram:4+gpt:runs/small+self:2")[2].layers == 2);
}
