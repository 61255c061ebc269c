// tests/drafters/test_parallel.cpp: the parallel drafter: its file, its cache, and drafting: whatever it says, the text
// is plain decoding's. Training it is in tests/training/test_train_parallel.cpp.
#include <doctest/doctest.h>

#include <cstring>

#include "files/heads.h"
#include "tests/error_of.h"
#include "tests/mock.h"
#include "tests/parallel_world.h"

using namespace nanospec;

namespace {

// A text that came with features, told to drafters piece by piece.
struct Telling {
  Chance chance;
  const int V, W;  // W: 3 C
  std::vector<int> tokens;
  std::vector<float> features;  // (tokens, W) of the position before each

  Telling(const Config& config, uint64_t seed, int n)
      : chance(seed), V(config.vocab_size), W(kFeatures * config.n_embd), features(size_t(n) * size_t(W)) {
    for (int i = 0; i < n; i++) tokens.push_back(chance.below(V));
    chance.fill(features.data(), features.size(), 3);
  }
  // Tokens begin .. end - 1 are committed.
  void tell(Drafter& drafter, int begin, int end) const {
    const Tree tree;
    std::vector<int> rows;
    for (int i = begin; i < end; i++) rows.push_back(i);
    MadeUpRows states;
    states.of_features = [&](int row) { return features.data() + size_t(row) * size_t(W); };
    nanospec::tell(drafter, {tokens.data() + begin, rows.data(), end - begin, tree}, states);
  }
  // A new drafter's, that is told the same from `begin` on, `piece` tokens at a time, and asked for one path.
  std::vector<float> afresh(Drafter& drafter, int begin, int end, int piece, const Growth& growth, int node) const {
    drafter.begin(nullptr, 0);
    std::vector<int> path;
    for (int i = node; i > 0; i = growth.parent[size_t(i)]) path.insert(path.begin(), growth.token[size_t(i)]);
    Growth chain;
    for (int told = begin; told < end;) {
      const int next = std::min(end, told + piece), root = 0;
      tell(drafter, told, next);
      chain.start(tokens[size_t(next - 1)]);
      drafter.prepare(chain, &root, 1);
      told = next;
    }
    for (int i = 0; i < int(path.size()); i++) {
      const int added = chain.add(i, {path[size_t(i)], 1});
      drafter.prepare(chain, &added, 1);
    }
    const float* const said = drafter.logits(chain, chain.size() - 1);
    return said ? std::vector<float>(said, said + V) : std::vector<float>();
  }
  // Grows a tree at random and asks for many of its nodes, some at a time, each after the one above it, as a shape
  // does. each(node).
  template <class Each>
  void ask(Drafter& drafter, int told, Growth& growth, Each each) {
    growth.start(tokens[size_t(told - 1)]);
    for (int n = chance.below(12); n > 0; n--)
      growth.add(chance.below(2) ? growth.size() - 1 : chance.below(growth.size()), {chance.below(V), 1});
    std::vector<char> known(size_t(growth.size()), 0);
    std::vector<int> nodes = {0};
    for (int first = 1; !nodes.empty() || first < growth.size();) {
      if (!nodes.empty()) drafter.prepare(growth, nodes.data(), int(nodes.size()));
      for (int node : nodes) known[size_t(node)] = 1, each(node);
      nodes.clear();
      for (const int end = std::min(growth.size(), first + 1 + chance.below(4)); first < end; first++)
        if (known[size_t(growth.parent[size_t(first)])] && chance.below(8) > 0) nodes.push_back(first);
    }
  }
};

}  // namespace

// ---------------------------------------------------------------------------------------------------------------
// Its file

TEST_CASE("parallel: drafters come back from their file; files that do not fit are refused in a line") {
  const Config config = tiny_config();
  const Folder folder;
  const std::string path = heads_path(folder.path, "parallel");
  const auto line = [&] {
    const std::string text = error_of([&] { read_parallel(folder.path, config); });
    CHECK(text.find('\n') == std::string::npos);
    return text;
  };
  CHECK(holds(line(), "drafter parallel is not trained: " + path));
  for (bool sequential : {false, true}) {
    CAPTURE(sequential);
    ParallelSizes s = tiny_sizes(config, sequential, 3);
    s.raw = sequential, s.n_kv_head = 1;
    const std::vector<float> weights = start_of<float>(s);
    write_arrays(heads_path(folder.path, "parallel"), parallel_table(s), {{"", weights.data()}}, parallel_metadata(s));
    const ParallelFile again = read_parallel(folder.path, config);
    CHECK(again.weights == weights);
    CHECK(parallel_metadata(again.sizes) == parallel_metadata(s));
    CHECK(again.sizes.n_layer == 3);
    CHECK(again.sizes.n_kv_head == 1);
    Target target(config, some_weights(config, 2).data(), Dtype::fp32, false, 1, 9);
    const auto drafter = load_parallel(folder.path, folder.path, target, config);
    CHECK((dynamic_cast<Sequential*>(drafter.get()) != nullptr) == sequential);

    const std::string whole = read_file(path);
    for (size_t cut : {size_t(0), size_t(7), size_t(60), whole.size() / 2, whole.size() - 1}) {
      CAPTURE(cut);
      write_file(path, whole.substr(0, cut));
      CHECK(holds(line(), path));
    }
    const auto with = [&](const std::string& key, const std::string& value) {
      std::vector<TensorData> tensors;
      for (const TensorSpec& spec : parallel_table(s))
        tensors.push_back({spec.name, shape_of(spec), weights.data() + spec.offset});
      std::map<std::string, std::string> metadata = parallel_metadata(s);
      metadata[key] = value;
      write_safetensors(path, tensors, metadata);
      return line();
    };
    for (const char* wrong : {"", "0", "17", "four", "-1"}) CHECK(holds(with("ahead", wrong), "tokens at once"));
    for (const char* wrong : {"", "0", "3", "many"}) CHECK(holds(with("n_head", wrong), "heads"));
    CHECK(holds(with("n_head", "10"), "not a drafter for this model"));
    for (const char* wrong : {"", "Yes", "maybe"})
      for (const char* key : {"sequential", "raw"}) CHECK(holds(with(key, wrong), std::string(key) + " is neither"));
    CHECK(with("comment", "by hand").empty());

    Config other = config;
    other.n_embd = 32;
    CHECK(holds(error_of([&] { read_parallel(folder.path, other); }), path));
    std::vector<float> broken = weights;
    broken[7] = NAN;
    write_arrays(heads_path(folder.path, "parallel"), parallel_table(s), {{"", broken.data()}}, parallel_metadata(s));
    CHECK(holds(line(), "not finite"));
    unlink(path.c_str());
  }
  const float one = 1;
  write_safetensors(path, {{"something.else", {1}, &one}}, {});
  CHECK(holds(line(), "not a drafter for this model: 0 layers"));

  // With tokens of its own.
  ParallelFile own = {tiny_sizes(config, false), {}, {3, 1, 22}};
  own.sizes.tokens = 3, own.sizes.window = 17;
  own.weights = start_of<float>(own.sizes);
  write_parallel(folder.path, own);
  const ParallelFile again = read_parallel(folder.path, config);
  CHECK(again.token == own.token);
  CHECK(again.sizes.window == 17);
  CHECK(again.weights == own.weights);
  own.token[1] = 3;
  write_parallel(folder.path, own);
  CHECK(holds(line(), "its 3 tokens are not different ones of this model"));
  own.token[1] = 1, own.sizes.sequential = true;
  write_parallel(folder.path, own);
  CHECK(holds(line(), "a sequential drafter with tokens of its own"));
}

// ---------------------------------------------------------------------------------------------------------------
// What it says

TEST_CASE("parallel: a drafter says what it said in training, to the bit, however the text came") {
  const Config config = tiny_config();
  const std::vector<float> model = some_weights(config, 2);
  const int n = 20, V = config.vocab_size;
  Pool pool(1);
  Target target(config, model.data(), Dtype::fp32, false, 1, 64);
  for (bool sequential : {false, true}) {  // the rounds that feed states back make four depths of a path exact
    CAPTURE(sequential);
    const ParallelSizes s = tiny_sizes(config, sequential);
    const std::vector<float> weights = start_of<float>(s);
    const int first = 0;
    const Shard shard = some_shard(config, 1, n, s.ahead);
    ParallelTrainer<float> trainer(s, config, {config, model.data()}, n, 3, pool);
    trainer.set_weights(weights.data());
    std::vector<float> said(size_t(n * s.ahead * V));
    std::vector<int> told(size_t(s.ahead), 0);
    trainer.loss({shard, &first, 1}, [&](int depth, int before, int token, const float* logits, float cost) {
      const int number = told[size_t(depth)]++, t = depth == 0 ? number : segment_order(n, 3)[size_t(number)];
      CHECK(before == shard.token[size_t(t + 1 + depth)]);
      CHECK(token == shard.token[size_t(t + 2 + depth)]);
      std::copy_n(logits, V, said.begin() + (t * s.ahead + depth) * V);
      double sum = 0;
      for (int x = 0; x < V; x++) sum += std::exp(double(logits[x]));
      CHECK(double(cost) == doctest::Approx(std::log(sum) - double(logits[token])));
    });

    const auto drafter = drafter_of({s, weights}, target, config);
    Telling telling(config, 4, 0);
    telling.tokens.assign(shard.token.begin() + 1, shard.token.end()), telling.features = shard.states;
    for (int round = 0; round < 5; round++) {
      drafter->begin(nullptr, 0);
      for (int t = 0; t < n;) {
        const int m = round == 0 ? 1 : std::min(n - t, 1 + telling.chance.below(5));
        telling.tell(*drafter, t, t + m);
        t += m;
        Growth growth;
        growth.start(telling.tokens[size_t(t - 1)]);
        for (int d = 0; d < s.ahead; d++) {
          CAPTURE(t);
          CAPTURE(d);
          drafter->prepare(growth, &d, 1);
          const float* const logits = drafter->logits(growth, d);
          REQUIRE(logits != nullptr);
          CHECK(memcmp(logits, said.data() + ((t - 1) * s.ahead + d) * V, sizeof(float) * size_t(V)) == 0);
          growth.add(d, {telling.tokens[size_t(t + d)], 1});
        }
        if (sequential) continue;
        const int beyond = growth.size() - 1;
        drafter->prepare(growth, &beyond, 1);
        CHECK(drafter->logits(growth, beyond) == nullptr);
      }
    }
  }
}

// In 4 bits, so nearly; and of the likely tokens alone.
TEST_CASE("parallel: with a head of its own it says nearly what it said in training") {
  Config config = tiny_config();
  config.n_embd = 64;
  const std::vector<float> model = some_weights(config, 2);
  const int n = 20, V = config.vocab_size, N = 7;
  Target target(config, model.data(), Dtype::fp32, false, 1, 64);
  ParallelFile file = {tiny_sizes(config, false), {}, {}};
  ParallelSizes& s = file.sizes;
  s.tokens = N, s.window = 16;
  file.weights = start_of<float>(s);
  for (int i = 0; i < N; i++) file.token.push_back(3 * i);
  const std::vector<int> class_of = every_third_class(V, N);

  // Numbers that 4 bits hold exactly.
  const ParallelWeights<float, AnyNumber> packed(s, n, file.weights.data(), false);
  packed.pack(Team{});
  std::vector<const Weight<float, AnyNumber>*> next = {&packed.features, &packed.input, &packed.guess};
  for (const auto& layer : packed.layers.layers)
    for (const auto* weight : {&layer.qkv, &layer.proj, &layer.fc, &layer.fc_proj}) next.push_back(weight);
  auto weight = next.begin();
  for (const TensorSpec& spec : parallel_table(s)) {
    if (spec.shape.size() < 2) continue;
    const bool rows_are_outputs = spec.name == "guess.weight";
    (*weight++)->forward.visit([&](const auto& panels) {
      for (int k = 0; k < panels.k; k++)
        for (int out = 0; out < panels.n; out++)
          file.weights[spec.offset + size_t(rows_are_outputs ? out * panels.k + k : k * panels.n + out)] =
              panels.weight(k, out);
    });
  }
  REQUIRE(weight == next.end());

  const int first = 0;
  const Shard shard = some_shard(config, 1, n, s.ahead);
  Pool pool(1);
  ParallelTrainer<float> trainer(s, config, {config, model.data()}, n, 1, pool, class_of);
  trainer.set_weights(file.weights.data());
  std::vector<float> said(size_t(n * s.ahead * (N + 1)));
  std::vector<int> told(size_t(s.ahead), 0);
  trainer.loss({shard, &first, 1}, [&](int depth, int before, int token, const float* logits, float) {
    const int number = told[size_t(depth)]++, t = depth == 0 ? number : segment_order(n, 1)[size_t(number)];
    CHECK(before == class_of[size_t(shard.token[size_t(t + 1 + depth)])]);
    CHECK(token == class_of[size_t(shard.token[size_t(t + 2 + depth)])]);
    std::copy_n(logits, N + 1, said.begin() + (t * s.ahead + depth) * (N + 1));
  });
  const auto drafter = drafter_of(file, target, config);
  Telling telling(config, 4, 0);
  telling.tokens.assign(shard.token.begin() + 1, shard.token.end()), telling.features = shard.states;
  drafter->begin(nullptr, 0);
  double wrong = 0, size = 0;
  int moved = 0;  // whether the window has, and it says something else
  for (int t = 0; t < n; t++) {
    telling.tell(*drafter, t, t + 1);
    Growth growth;
    growth.start(telling.tokens[size_t(t)]);
    for (int d = 0; d < s.ahead; d++) {
      drafter->prepare(growth, &d, 1);
      const Likely* const likely = dynamic_cast<LikelyDrafter&>(*drafter).likely(growth, d);
      REQUIRE(likely != nullptr);
      CHECK(likely->token.size() == size_t(N));
      double apart = 0;
      for (int i = 0; i < N; i++) {
        const double its = double(said[size_t((t * s.ahead + d) * (N + 1) + i)]);
        apart += std::pow(double(likely->of(3 * i)) - its, 2);
        if (t < s.window) size += its * its;
      }
      if (t < s.window) wrong += apart;
      else moved += apart > 1e-3;
      CHECK(drafter->logits(growth, d)[3] == likely->of(3));
      CHECK(likely->find(1) < 0);
      growth.add(d, {telling.tokens[size_t(t + d + 1)], 1});
    }
  }
  CHECK(std::sqrt(wrong) < 0.05 * std::sqrt(size));
  CHECK(moved > 0);
}

TEST_CASE("parallel: after any commits it says what a drafter says that was told them at once, to the bit") {
  const Config config = tiny_config(128);  // of these texts the window never moves
  const std::vector<float> model = some_weights(config, 2);
  Target target(config, model.data(), Dtype::fp32, false, 1, 33);
  for (bool sequential : {false, true}) {
    const ParallelSizes s = tiny_sizes(config, sequential);
    const ParallelFile file{s, start_of<float>(s)};
    const auto drafter = drafter_of(file, target, config), fresh = drafter_of(file, target, config);
    int asked = 0, beyond = 0;
    for (uint64_t seed = 1; seed <= (a_tenth() ? 3 : 16); seed++) {
      Telling telling(config, seed, 60);
      drafter->begin(nullptr, 0);
      Growth growth;
      growth.start(1);
      const int root = 0;
      drafter->prepare(growth, &root, 1);
      CHECK(drafter->logits(growth, 0) == nullptr);  // of the last text nothing is left
      for (int told = 0; told < 60;) {
        const int n = std::min(60 - told, 1 + telling.chance.below(5));  // from a full rejection on
        telling.tell(*drafter, told, told + n);
        told += n;
        if (telling.chance.below(4) == 0) continue;  // an iteration without drafting
        telling.ask(*drafter, told, growth, [&](int node) {
          CAPTURE(sequential);
          const float* const said = drafter->logits(growth, node);
          const std::vector<float> expected = telling.afresh(*fresh, 0, told, told, growth, node);
          asked++, beyond += !said;
          CHECK((said != nullptr) == (sequential || growth.depth[size_t(node)] < s.ahead));
          REQUIRE((said != nullptr) == !expected.empty());
          if (said) CHECK(memcmp(said, expected.data(), sizeof(float) * expected.size()) == 0);
        });
      }
    }
    CHECK(asked > (a_tenth() ? 100 : 500));
    CHECK((beyond > 0) == !sequential);
  }
}

TEST_CASE("parallel: a window that moved says what a drafter says that never saw what is gone, to the bit") {
  const Config config = tiny_config(32);
  const std::vector<float> model = some_weights(config, 2);
  Target target(config, model.data(), Dtype::fp32, false, 1, 33);
  constexpr int kWindow = 32, kHalf = 16, kTold = 400;
  for (bool sequential : {false, true}) {
    const ParallelSizes s = tiny_sizes(config, sequential, 2);
    const ParallelFile file{s, start_of<float>(s)};
    const auto drafter = drafter_of(file, target, config), fresh = drafter_of(file, target, config);
    Telling telling(config, 9, kTold);
    drafter->begin(nullptr, 0);
    Growth growth;
    int kept = 0, moves = 0, wrong = 0, asked = 0;  // kept: the first row of the window
    double least_else = 1e9;
    for (int told = 0; told < kTold;) {
      const int n = std::min(kTold - told, telling.chance.below(20) == 0 ? 20 : 1 + telling.chance.below(6));
      telling.tell(*drafter, told, told + n);
      told += n;
      if (told - kept > kWindow) kept = told - kHalf, moves++;
      if (told < kTold && telling.chance.below(4) == 0) continue;
      telling.ask(*drafter, told, growth, [&](int node) {
        const float* const said = drafter->logits(growth, node);
        if (!said) return;
        const auto apart = [&](int begin) {
          const std::vector<float> expected = telling.afresh(*fresh, begin, told, 10, growth, node);
          double most = 0;
          for (size_t x = 0; x < expected.size(); x++)
            most = std::isfinite(said[x]) ? std::max(most, double(std::abs(said[x] - expected[x]))) : 1e9;
          return most;
        };
        asked++, wrong += apart(kept) > 0;
        if (moves > 0) least_else = std::min({least_else, apart(kept + 1), apart(kept - 1)});
      });
    }
    CAPTURE(sequential);
    CHECK(moves >= 8);
    CHECK(asked > 100);
    CHECK(wrong == 0);
    CHECK(least_else > 0);
  }
}

TEST_CASE("parallel: a layer of loud features is heard like the others, but by a raw drafter") {
  const Config config = tiny_config();
  const std::vector<float> model = some_weights(config, 2);
  Target target(config, model.data(), Dtype::fp32, false, 1, 33);
  for (bool sequential : {false, true})
    for (bool raw : {false, true}) {
      ParallelSizes s = tiny_sizes(config, sequential);
      s.raw = raw;
      const auto drafter = drafter_of({s, start_of<float>(s)}, target, config);
      Telling telling(config, 3, 12);
      Growth growth;
      growth.start(telling.tokens.back());
      const auto says = [&] { return telling.afresh(*drafter, 0, 12, 12, growth, 0); };
      for (int third = 0; third < kFeatures; third++) {
        const std::vector<float> before = says();
        for (size_t i = 0; i < telling.features.size(); i++)
          if (int(i) % telling.W / config.n_embd == third) telling.features[i] *= 300;
        const std::vector<float> after = says();
        double apart = 0;
        for (size_t x = 0; x < before.size(); x++) apart = std::max(apart, double(std::abs(before[x] - after[x])));
        CAPTURE(raw);
        CAPTURE(third);
        if (raw && third == 0) CHECK(apart > 0.1);
        if (!raw) CHECK(apart < 1e-4);
      }
      const std::vector<float> before = says();
      for (float& f : telling.features) f = -f;
      CHECK(says() != before);  // it does hear them
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Drafting

namespace {

// Drafters of `world`, trained once.
const ParallelFile& trained(bool sequential) {
  static const std::vector<ParallelFile> files = [] {
    const Folder folder;
    const std::string dir = folder.file("model"), other = folder.file("sequential");
    std::filesystem::copy(world().dir, dir);
    train(usual(dir, {}));
    train(usual(dir, {"--parallel_sequential", "--out", other}));
    return std::vector<ParallelFile>{read_parallel(dir, world().config), read_parallel(other, world().config)};
  }();
  return files[sequential];
}
std::vector<int> generated(Target& target, Drafter* drafter, const Decoding& decoding, const std::string& prompt,
                           Stats* stats) {
  std::vector<int> text = world().tokenizer.encode(prompt);
  *stats = generate(target, drafter, decoding, text, [](int) { return true; });
  return text;
}

}  // namespace

TEST_CASE("parallel: whatever it says, the text is plain decoding's") {
  const LearnedWorld& w = world();
  ParallelSizes wild_sizes = tiny_sizes(w.config, false);
  const ParallelFile wild_file{wild_sizes, start_of<float>(wild_sizes)};
  const MedusaSizes heads = {3, kOwnProjection, w.config.n_embd, w.config.vocab_size, false};
  MedusaHeads wild_heads{heads, std::vector<float>(numbers_of(medusa_table(heads)))};
  Chance(8).fill(wild_heads.weights.data(), wild_heads.weights.size(), 2);
  const struct {
    float temperature, top_p;
    int top_k;
    uint64_t seed;
  } settings[] = {{0, 1, 0, 1}, {0.7f, 1, 0, 2}, {0.7f, 0.8f, 0, 3}, {1, 1, 0, 4}, {1, 1, 5, 5}, {1, 0.9f, 9, 6}};
  const char* prompts[] = {"the king", "a", "fool sings of the crown and the fair queen of a sword"};

  int generations = 0, different = 0, tried = 0;
  size_t setting_tried = 0, pair = 0;
  std::map<std::string, std::pair<double, double>> lengths;
  for (Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
    Target target(w.config, w.weights.data(), dtype, false, 1, 65);
    const std::vector<double> cost = measure_cost(target, 64);
    std::map<std::string, std::unique_ptr<Drafter>> drafters;
    const auto both = [&](bool sequential, std::unique_ptr<Drafter> other) {
      std::vector<std::unique_ptr<Drafter>> parts;
      parts.push_back(drafter_of(trained(sequential), target, w.config));
      parts.push_back(std::move(other));
      return std::make_unique<Union>(std::move(parts));
    };
    drafters["parallel"] = drafter_of(trained(false), target, w.config);
    drafters["sequential"] = drafter_of(trained(true), target, w.config);
    drafters["wild"] = drafter_of(wild_file, target, w.config);
    drafters["parallel+ngram:2"] = both(false, load_drafter("ngram:2", w.dir, w.config.vocab_size));
    drafters["sequential+ngram:2"] = both(true, load_drafter("ngram:2", w.dir, w.config.vocab_size));
    drafters["parallel+medusa"] = both(false, std::make_unique<Medusa>(wild_heads, nullptr));
    for (const auto& setting : settings)
      for (const char* prompt : prompts) {
        // The first setting by all, for the lengths below; in a tenth of the other 35 one, where each shape has a
        // drafter.
        const bool by_all = generations == 0 || !a_tenth();
        if (!by_all && !drawn(setting_tried++, 35)) continue;
        Decoding decoding;
        decoding.sampling.temperature = setting.temperature, decoding.sampling.seed = setting.seed;
        decoding.sampling.top_p = setting.top_p, decoding.sampling.top_k = setting.top_k;
        decoding.max_new_tokens = 40;  // the window moves
        Stats stats;
        const std::vector<int> plain = generated(target, nullptr, decoding, prompt, &stats);
        for (const char* shape : kAllShapes)
          for (const auto& entry : drafters) {
            if (!by_all && !drawn(pair++, drafters.size())) continue;
            if (by_all && a_sixtieth() && tried++ % 5) continue;  // and 6 drafters: each has its turn
            const std::string& name = entry.first;
            CAPTURE(name);
            CAPTURE(shape);
            CAPTURE(setting.temperature);
            decoding.shape = ready_shape(shape, 64);
            if (decoding.shape.kind == Shape::kAuto) decoding.cost = std::make_shared<Cost>(cost);
            different += generated(target, entry.second.get(), decoding, prompt, &stats) != plain;
            CHECK(different == 0);
            if (by_all)
              lengths[name].first += double(stats.tokens), lengths[name].second += double(stats.target_forwards);
            generations++;
          }
      }
  }
  CHECK(generations >= (a_sixtieth() ? 20 : a_tenth() ? 100 : 3000));
  const auto mean = [&](const char* name) { return lengths[name].first / lengths[name].second; };
  INFO(generations << " generations, acceptance length: parallel " << mean("parallel") << ", sequential "
                   << mean("sequential") << ", wild " << mean("wild") << ", parallel+ngram:2 "
                   << mean("parallel+ngram:2") << ", parallel+medusa " << mean("parallel+medusa"));
  CHECK(mean("parallel") > 1.7);
  CHECK(mean("sequential") > mean("parallel"));
  CHECK(mean("parallel") > mean("wild") + 0.5);
}

TEST_CASE("parallel: every rule has its tokens, and `match` the text of plain decoding") {
  const LearnedWorld& w = world();
  Target target(w.config, w.weights.data(), Dtype::fp32, false, 1, 65);
  int runs = 0;
  for (bool sequential : {false, true}) {
    const auto drafter = drafter_of(trained(sequential), target, w.config);
    for (const RuleWord& rule : kRules)
      for (const char* shape : {"chain:6", "tree:2x2", "best-first"})
        for (float temperature : {0.0f, 1.0f}) {
          CAPTURE(rule.word);
          CAPTURE(shape);
          Decoding decoding;
          decoding.rule = parse_rule(rule.word), decoding.shape = parse_shape(shape, 8);
          decoding.sampling.temperature = temperature, decoding.max_new_tokens = 50;
          try {
            check_rule(decoding.rule, decoding.shape);
          } catch (const std::invalid_argument&) { continue; }
          Stats stats, alone;
          const std::vector<int> text = generated(target, drafter.get(), decoding, "the king", &stats);
          CHECK(stats.tokens == 50);
          CHECK(stats.drafted_nodes > 0);
          if (decoding.rule == Rule::kMatch) CHECK(text == generated(target, nullptr, decoding, "the king", &alone));
          runs++;
        }
  }
  CHECK(runs >= 30);
}
