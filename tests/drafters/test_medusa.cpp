// tests/drafters/test_medusa.cpp: Medusa heads: arithmetic and gradients, what is on disk, training as the program does
// it, and drafting: whatever the heads say, the text is plain decoding's.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/error_of.h"
#include "tests/gradient.h"
#include "tests/mock.h"
#include "tests/world.h"
#include "training/train_medusa.h"

using namespace nanospec;

namespace {

MedusaSizes sizes_of(int heads, int rank, bool root = false) {
  return {heads, rank, world().config.n_embd, world().config.vocab_size, root};
}

std::vector<float> head_of_world() {
  const LearnedWorld& w = world();
  return {w.weights.begin(), w.weights.begin() + w.config.vocab_size * w.config.n_embd};
}

MedusaHeads random_heads(const MedusaSizes& sizes, uint64_t seed, double scale) {
  MedusaHeads heads{sizes, std::vector<float>(numbers_of(medusa_table(sizes)))};
  Chance(seed).fill(heads.weights.data(), heads.weights.size(), scale);
  return heads;
}

std::vector<int> text_by(Target& target, Drafter* drafter, const Decoding& decoding, const std::string& prompt,
                         Stats* stats) {
  std::vector<int> text = world().tokenizer.encode(prompt);
  *stats = generate(target, drafter, decoding, text, [](int) { return true; });
  return text;
}

// Runs the program; returns its status.
int train_heads(std::vector<std::string> words) {
  words.insert(words.begin(), {"train_drafter", "--quiet", "--threads", "1"});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(&word[0]);
  MedusaOptions options;
  return train_drafter(options, int(argv.size()), argv.data());
}
std::vector<std::string> medusa_words(const std::string& dir, const std::vector<std::string>& more) {
  std::vector<std::string> words = {"--medusa",        dir,   "--data",       world().data, "--medusa_tokens", "6000",
                                    "--max_iters",     "300", "--batch_size", "256",        "--warmup_iters",  "10",
                                    "--learning_rate", "1e-2"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}
// One sequence with so many rows whose tokens are known for all heads.
Shard random_shard(Chance& chance, const MedusaSizes& sizes, int rows) {
  Shard shard;
  shard.sizes = {1, rows + sizes.heads, sizes.n_embd};
  for (int i = 0; i <= shard.sizes.rows; i++) shard.token.push_back(chance.below(sizes.vocab_size));
  shard.states.resize(size_t(shard.sizes.rows) * size_t(sizes.n_embd));
  chance.fill(shard.states.data(), shard.states.size(), 2);
  return shard;
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------
// Arithmetic

TEST_CASE("medusa: SiLU and its slope, far from zero too") {
  for (double x : {-1e4, -90.0, -20.0, -1.5, -1e-3, 0.0, 0.3, 2.0, 30.0, 1e4}) {
    CAPTURE(x);
    const double s = 1 / (1 + std::exp(-x)), residual = 0.25, bias = 0;
    double pre = x, out = 0, d = 2;
    JoinSilu<double>{&pre, &out, 1, &bias, &residual}(Solo{}, 0, 0, 1);
    SiluBackward<double>{&pre, &d, 1}(Solo{}, 0, 0, 1);
    CHECK(pre == x);
    CHECK(out == doctest::Approx(0.25 + x * s).epsilon(1e-13));
    CHECK(d == doctest::Approx(2 * s * (1 + x * (1 - s))).epsilon(1e-12));
  }
}

TEST_CASE("medusa: untrained heads say what the target's head says, bit for bit") {
  Config llama = world().config;
  llama.tied = llama.center = false, llama.rotary = llama.swiglu = true;
  const std::vector<float> llama_weights = initial_weights(llama, 5);
  const RandomTree tree = [] {
    Chance chance(3);
    return random_tree(chance, 9, 5, 0.8);
  }();
  for (const bool tied : {true, false})
    for (const MedusaSizes& sizes :
         {sizes_of(3, kOwnProjection), sizes_of(3, 0), sizes_of(3, 3), sizes_of(3, kOwnProjection, true)}) {
      CAPTURE(tied);
      CAPTURE(sizes.rank);
      CAPTURE(sizes.root);
      const Config& config = tied ? world().config : llama;
      const float* const weights = tied ? world().weights.data() : llama_weights.data();
      Target target(config, weights, Dtype::fp32, false, 1, 9);
      target.prefill(tree.token.data(), 4);
      target.forward(tree.token.data(), tree.depth.data(), tree.end.data(), 9);
      const TargetEnds<float> ends(config, weights);
      CHECK((ends.embedding == weights));
      CHECK((ends.head == ends.embedding) == tied);
      Medusa medusa({sizes, initial_medusa(sizes, ends.head, 7)}, ends);
      Growth growth;
      growth.start(0);
      growth.add(0, {1, 1}), growth.add(1, {1, 1});
      const Tree root_only;
      for (int row = 0; row < 9; row++) {
        MadeUpRows hidden;
        hidden.of_hidden = [&](int) { return target.hidden(row); };
        const int token = 0, kept = 0;
        tell(medusa, {&token, &kept, 1, root_only}, hidden);
        for (int depth = 0; depth < 3; depth++)
          CHECK(memcmp(medusa.logits(growth, depth), target.logits(row), size_t(sizes.vocab_size) * 4) == 0);
      }
    }
}

TEST_CASE("medusa: what heads see of a root is the embedding, scaled to mean square 1") {
  const MedusaSizes sizes = sizes_of(1, 0, true);
  const size_t C = size_t(sizes.n_embd);
  const std::vector<float> wte = head_of_world(), table = root_table(sizes, wte.data());
  CHECK(table.size() == wte.size());
  for (size_t row = 0; row < table.size(); row += C) {
    double squares = 0, along = 0, length = 0;
    for (size_t i = row; i < row + C; i++)
      squares += double(table[i] * table[i]), along += double(table[i] * wte[i]), length += double(wte[i] * wte[i]);
    CHECK(squares / double(C) == doctest::Approx(1).epsilon(1e-5));
    CHECK(along == doctest::Approx(std::sqrt(squares * length)).epsilon(1e-5));  // the same direction
  }
}

TEST_CASE("medusa: gradients against differences of the loss, in double") {
  for (const MedusaSizes& sizes : {MedusaSizes{2, kOwnProjection, 6, 11, false}, MedusaSizes{2, 0, 6, 11, false},
                                   MedusaSizes{2, 3, 6, 11, false}, MedusaSizes{2, kOwnProjection, 6, 11, true}})
    for (bool distribution : {false, true}) {
      CAPTURE(sizes.rank);
      CAPTURE(sizes.root);
      CAPTURE(distribution);
      Chance chance(31);
      const Shard shard = random_shard(chance, sizes, 5);
      const std::vector<int> places = numbers_to(5);
      const Examples batch{shard, places.data(), 5};
      std::vector<double> wte(66), weights(numbers_of(medusa_table(sizes)));
      chance.fill(wte.data(), wte.size()), chance.fill(weights.data(), weights.size(), 0.7);
      Pool pool(1);
      MedusaTrainer<double> trainer(sizes, wte.data(), distribution, 5, pool);
      check_gradient(trainer, weights, batch);
    }
}

TEST_CASE("medusa: float follows double, and any number of threads gives the same bits") {
  for (const MedusaSizes& sizes : {MedusaSizes{3, kOwnProjection, 40, 70, true}, MedusaSizes{3, 0, 40, 70, false},
                                   MedusaSizes{3, 5, 40, 70, false}})
    for (bool distribution : {false, true}) {
      CAPTURE(sizes.rank);
      CAPTURE(distribution);
      Chance chance(32);
      const Shard shard = random_shard(chance, sizes, 37);
      const std::vector<int> places = numbers_to(37);
      const Examples batch{shard, places.data(), 37};
      std::vector<float> wte(40 * 70), weights(numbers_of(medusa_table(sizes)));
      chance.fill(wte.data(), wte.size(), 0.3), chance.fill(weights.data(), weights.size(), 0.2);
      const auto stepped = [&](int threads) {
        Pool pool(threads);
        MedusaTrainer<float> trainer(sizes, wte.data(), distribution, 40, pool);
        trainer.set_weights(weights.data());
        for (int i = 0; i < 2; i++) {
          Update update;
          update.iteration = i;
          trainer.step(batch, update);
        }
        return std::vector<float>(trainer.weights.data(), trainer.weights.data() + trainer.weights.size());
      };
      const std::vector<float> alone = stepped(1);
      CHECK(alone != weights);
      CHECK(alone == stepped(2));
      CHECK(alone == stepped(3));

      Pool pool(1);
      MedusaTrainer<float> single(sizes, wte.data(), distribution, 37, pool);
      const std::vector<double> wte_d(wte.begin(), wte.end()), weights_d(weights.begin(), weights.end());
      MedusaTrainer<double> twice(sizes, wte_d.data(), distribution, 37, pool);
      single.set_weights(weights.data()), twice.set_weights(weights_d.data());
      CHECK(double(single.loss_and_gradient(batch)) == doctest::Approx(twice.loss_and_gradient(batch)).epsilon(1e-5));
      double wrong = 0, norm = 0;
      for (size_t i = 0; i < weights.size(); i++) {
        const double g = twice.gradient.data()[i];
        wrong += std::pow(double(single.gradient.data()[i]) - g, 2), norm += g * g;
      }
      CHECK(std::sqrt(wrong) < 1e-5 * std::sqrt(norm));
    }
}

// ---------------------------------------------------------------------------------------------------------------
// On disk

TEST_CASE("medusa: heads come back from their file; files that do not fit are refused") {
  const LearnedWorld& w = world();
  const Folder folder;
  const std::string path = heads_path(folder.path, "medusa");
  const auto read = [&] { return read_medusa(folder.path, w.config); };
  CHECK(holds(error_of([&] { read(); }), "has no heads"));
  for (int rank : {kOwnProjection, 0, 3})
    for (bool root : {false, true}) {
      const MedusaHeads heads = random_heads(sizes_of(2, rank, root), 5, 1);
      write_arrays(path, medusa_table(heads.sizes), {{"", heads.weights.data()}}, {});
      const MedusaHeads again = read();
      CHECK(again.sizes.heads == 2);
      CHECK(again.sizes.rank == rank);
      CHECK(again.sizes.root == root);
      CHECK(again.weights == heads.weights);
    }
  const std::string whole = read_file(path);
  for (size_t cut : {size_t(0), size_t(7), size_t(60), whole.size() / 2, whole.size() - 1}) {
    write_file(path, whole.substr(0, cut));
    CHECK(!error_of([&] { read(); }).empty());
  }
  MedusaSizes other = sizes_of(2, kOwnProjection);
  const auto refused = [&](const MedusaSizes& sizes, const std::string& why) {
    const MedusaHeads heads = random_heads(sizes, 5, 1);
    write_arrays(path, medusa_table(sizes), {{"", heads.weights.data()}}, {});
    CHECK(holds(error_of([&] { read(); }), why));
  };
  other.n_embd += 2, refused(other, "has shape");
  other = sizes_of(2, kOwnProjection), other.vocab_size++, refused(other, "has shape");
  other = sizes_of(kMostHeads + 1, 0), refused(other, "holds 17 heads");

  const MedusaSizes sizes = sizes_of(2, 0);
  MedusaHeads heads = random_heads(sizes, 5, 1);
  heads.weights[3] = NAN;
  write_arrays(path, medusa_table(sizes), {{"", heads.weights.data()}}, {});
  CHECK(holds(error_of([&] { read(); }), "not finite"));
  const float one = 1;
  write_safetensors(path, {{"something.else", {1}, &one}}, {});
  CHECK(holds(error_of([&] { read(); }), "holds 0 heads"));
}

TEST_CASE("medusa: words") {
  CHECK(parse_drafter("medusa")[0].dir.empty());
  CHECK(parse_drafter("medusa:runs/x")[0].dir == "runs/x");
  CHECK(parse_drafter("medusa+ngram:4").size() == 2);
  CHECK(holds(message_of([] { parse_drafter("medusa:"); }), "medusa[:DIR]"));
  CHECK(holds(message_of([] { parse_drafter("medus"); }), "did you mean medusa"));
}

TEST_CASE("medusa: shards are the text and the hidden states of plain decoding") {
  const LearnedWorld& w = world();
  const int L = 70, C = w.config.n_embd;  // past the window
  Target target(w.config, w.weights.data(), Dtype::fp32, false, 1, 17);
  Decoding decoding;
  decoding.shape = parse_shape("best-first", 8);
  decoding.sampling.temperature = 0.8f;
  const std::vector<int> prompt = w.tokenizer.encode("the king");
  const std::unique_ptr<Drafter> ngram = load_drafter("ngram:4", w.dir, w.config.vocab_size);
  Shard plain, fast;
  plain.sizes = fast.sizes = {1, L, C};
  record_generated(target, nullptr, decoding, prompt, plain);
  record_generated(target, ngram.get(), decoding, prompt, fast);
  CHECK(plain.token.size() == L + 1);
  CHECK(plain.token == fast.token);
  CHECK(plain.states == fast.states);
  CHECK(plain.states.size() == size_t(L * C));
  for (int l : {0, 1, 30, 69}) {  // from nothing: the window as it stood, one token at a time
    std::vector<int> text(prompt.begin(), prompt.end() - 1);
    text.insert(text.end(), plain.token.begin(), plain.token.begin() + l + 1);
    open_window(target, text);
    const int depth = 0, end = 1;
    target.forward(&text.back(), &depth, &end, 1);
    CHECK(memcmp(target.hidden(0), plain.state(0, l), size_t(C) * 4) == 0);
  }
  Shard given;
  given.sizes = {1, 20, C};
  record_text(target, plain.token.data(), given);
  target.prefill(plain.token.data(), 11);
  const int depth = 0, end = 1;
  target.forward(plain.token.data() + 11, &depth, &end, 1);
  CHECK(memcmp(target.hidden(0), given.state(0, 11), size_t(C) * 4) == 0);

  // Which token each head is to say, and after which: untrained heads say what the target's head says of the state.
  const MedusaSizes sizes = sizes_of(3, 0);
  const TargetEnds<float> ends(w.config, w.weights.data());
  const std::vector<int> places = {0, 5, usable_rows(plain.sizes, 3) - 1};
  Pool pool(1);
  MedusaTrainer<float> trainer(sizes, ends, true, 3, pool);
  trainer.set_weights(initial_medusa(sizes, ends.head, 7).data());
  int told = 0;
  trainer.loss({plain, places.data(), 3}, [&](int k, int before, int token, const float* logits, float cost) {
    const size_t place = size_t(places[size_t(told % 3)]);
    CHECK(k == told++ / 3);
    CHECK(before == plain.token[place + size_t(k) + 1]);
    CHECK(token == plain.token[place + size_t(k) + 2]);
    double sum = 0;
    for (int x = 0; x < sizes.vocab_size; x++) {
      double product = 0;
      for (int c = 0; c < C; c++) product += double(plain.state(0, int(place))[c]) * double(ends.head[x * C + c]);
      CHECK(double(logits[x]) == doctest::Approx(product).epsilon(1e-4));
      sum += std::exp(double(logits[x]));
    }
    CHECK(double(cost) == doctest::Approx(std::log(sum) - double(logits[token])));
  });
  CHECK(told == 9);
  // Of the distribution a head learns what the target's head says of the state where it was to say the token.
  double expected = 0;
  for (int k = 1; k <= 3; k++)
    for (int place : places) {
      const auto says = [&](int row) {
        std::vector<double> logits(size_t(sizes.vocab_size), 0);
        for (int x = 0; x < sizes.vocab_size; x++)
          for (int c = 0; c < C; c++)
            logits[size_t(x)] += double(plain.state(0, row)[c]) * double(ends.head[x * C + c]);
        double sum = 0;
        for (double logit : logits) sum += std::exp(logit);
        for (double& logit : logits) logit -= std::log(sum);
        return logits;
      };
      const std::vector<double> head = says(place), teacher = says(place + k);
      for (size_t x = 0; x < head.size(); x++) expected -= std::exp(teacher[x]) * head[x] / 9;
    }
  CHECK(double(trainer.loss({plain, places.data(), 3})) == doctest::Approx(expected).epsilon(1e-5));
}

TEST_CASE("medusa: a folder of shards knows its own") {
  const Folder folder;
  const ShardSizes sizes = {1, 2, 3};
  Shard shard;
  shard.sizes = sizes, shard.token = {1, 2, 3}, shard.states = {1, 2, 3, 4, 5, 6};
  const std::map<std::string, std::string> settings = {{"seed", "1"}};
  Recordings states(folder.path, settings, sizes, 5);
  CHECK(!states.has("train-0"));
  states.write("train-0", shard);
  CHECK(states.read("train-0").states == shard.states);
  CHECK(Recordings(folder.path, settings, sizes, 5).has("train-0"));
  CHECK(holds(error_of([&] { Recordings(folder.path, settings, sizes, 3).read("train-0"); }), "not the hidden"));
  const std::string path = folder.file("train-0.safetensors");
  std::string bytes = read_file(path);
  bytes.back() ^= 1;
  write_file(path, bytes);
  CHECK(holds(error_of([&] { states.read("train-0"); }), "not the bytes"));
  unlink(path.c_str());
  CHECK(!Recordings(folder.path, settings, sizes, 5).has("train-0"));
  states.write("train-0", shard);
  CHECK(!Recordings(folder.path, {{"seed", "2"}}, sizes, 5).has("train-0"));
  CHECK(!std::filesystem::exists(path));
  write_file(folder.file("index.json"), std::string(R"({"shards": {"../x": "1"}, "settings": 1})"));
  CHECK(holds(error_of([&] { Recordings(folder.path, settings, sizes, 5); }), "slash"));
}

// ---------------------------------------------------------------------------------------------------------------
// The program

TEST_CASE("medusa: train_gpt --medusa leaves the model as it is, learns, and repeats itself") {
  const LearnedWorld& w = world();
  const Folder folder;
  const std::string dir = folder.file("model");
  std::filesystem::copy(w.dir, dir);
  const auto before = files_of(dir);

  CHECK(train_heads(medusa_words(dir, {"--stats", folder.file("stats.json")})) == 0);
  auto after = files_of(dir);
  const std::string heads = after["medusa.safetensors"];
  CHECK(!heads.empty());
  after.erase("medusa.safetensors"), after.erase("medusa-optimizer.safetensors");
  CHECK(after == before);
  const Json stats = parse_json(read_file(folder.file("stats.json")), "stats");
  CHECK(stats["accuracy"].size() == 4);
  CHECK(double(stats["hidden_seconds"]) > 0);

  // The curve begins before the first update and ends with what the run came to.
  const Json &curve = stats["curve"], &begin = curve.front(), &end = curve.back();
  REQUIRE(curve.size() >= 2);
  CHECK(int(begin["iteration"]) == 0);
  CHECK(double(begin["epoch"]) == 0);
  CHECK(end["iteration"] == stats["iterations"]);
  CHECK(double(end["epoch"]) > 0);
  double mean = 0;
  for (int k = 0; k < 4; k++) {
    CHECK(end["accuracy"][k] == stats["accuracy"][k][0]);
    mean += double(stats["val_loss"][k]) / 4;
  }
  CHECK(double(end["loss"]) == doctest::Approx(mean));
  CHECK(double(end["loss"]) < double(begin["loss"]));

  // A head in training says more than before it: the untrained head says token t + 1, not t + 1 + k.
  CHECK(train_heads(medusa_words(dir, {"--stats", folder.file("untrained.json"), "--max_iters", "1", "--learning_rate",
                                       "1e-9", "--min_lr", "0", "--out", folder.file("elsewhere")})) == 0);
  const Json untrained = parse_json(read_file(folder.file("untrained.json")), "stats");
  CHECK(double(untrained["hidden_seconds"]) == 0);  // the target has not run again
  CHECK(untrained["curve"].size() == 2);
  CHECK(untrained["curve"][0]["accuracy"] == begin["accuracy"]);
  for (int k = 0; k < 4; k++) {
    CHECK(double(stats["val_loss"][k]) < 0.8 * double(untrained["val_loss"][k]));
    CHECK(double(stats["accuracy"][k][0]) > double(untrained["accuracy"][k][0]));
  }
  CHECK(double(stats["accuracy"][0][0]) > double(stats["accuracy_unigram"][0]));
  CHECK(read_file(heads_path(dir, "medusa")) == heads);  // --out went elsewhere

  // Who sees the root knows more of what follows it.
  CHECK(train_heads(medusa_words(dir, {"--stats", folder.file("root.json"), "--medusa_root", "--overwrite", "--out",
                                       folder.file("elsewhere")})) == 0);
  const Json root = parse_json(read_file(folder.file("root.json")), "stats");
  CHECK(double(root["accuracy"][0][0]) > double(stats["accuracy"][0][0]) + 0.05);
  CHECK(read_medusa(folder.file("elsewhere"), w.config).sizes.root);
  CHECK(load_medusa(folder.file("elsewhere"), dir, w.config)->vocab == w.config.vocab_size);

  // The same again, on two threads, the hidden states made anew.
  std::filesystem::remove_all(dir + "/hidden");
  CHECK(train_heads(medusa_words(dir, {"--threads", "2", "--overwrite"})) == 0);
  CHECK(read_file(heads_path(dir, "medusa")) == heads);

  for (const char* target : {"text", "distribution"})
    for (const char* rank : {"-1", "0", "4"}) {
      CAPTURE(target);
      CAPTURE(rank);
      CHECK(train_heads(medusa_words(dir, {"--medusa_target", target, "--medusa_rank", rank, "--medusa_heads", "2",
                                           "--overwrite", "--stats", folder.file("stats.json")})) == 0);
      const Json kind = parse_json(read_file(folder.file("stats.json")), "stats");
      for (int k = 0; k < 2; k++) CHECK(double(kind["val_loss"][k]) < 0.8 * double(untrained["val_loss"][k]));
    }
}

TEST_CASE("medusa: train_gpt --medusa refuses what it cannot use") {
  const LearnedWorld& w = world();
  const Folder folder;
  CHECK(holds(error_of([&] { train_heads({"--medusa", folder.path, "--data", w.data}); }), "config.json"));
  write_file(folder.file("short"), std::string("the king"));
  CHECK(holds(error_of([&] {
                train_heads({"--medusa", w.dir, "--data", folder.file("short")});
              }),
              "only 8 characters"));
  write_file(folder.file("strange"), std::string("the k\xC3\xB6nig"));
  CHECK(holds(error_of([&] {
                train_heads({"--medusa", w.dir, "--data", folder.file("strange")});
              }),
              "not in the vocab"));
  CHECK(holds(message_of([&] { train_heads(medusa_words(w.dir, {"--min_lr", "1"})); }), "is above"));
  CHECK(holds(message_of([&] {
                train_heads(medusa_words(w.dir, {"--medusa_target", "selfish"}));
              }),
              "did you mean self"));
  CHECK(holds(message_of([&] { train_heads(medusa_words(w.dir, {"--medusa_heads", "17"})); }), "out of range"));
  CHECK(!std::filesystem::exists(w.dir + "/hidden"));
}

// ---------------------------------------------------------------------------------------------------------------
// Drafting

namespace {

// The heads of `world`, trained once.
const MedusaHeads& trained_heads(bool root = false) {
  static const std::vector<MedusaHeads> heads = [] {
    const Folder folder;
    const std::string dir = folder.file("model");
    std::filesystem::copy(world().dir, dir);
    train_heads(medusa_words(dir, {}));
    train_heads(medusa_words(dir, {"--medusa_root", "--out", folder.file("root")}));
    return std::vector<MedusaHeads>{read_medusa(dir, world().config), read_medusa(folder.file("root"), world().config)};
  }();
  return heads[root];
}

// Knows what is to come, and drafts a chain that is right for `right` nodes and then wrong. After every forward the
// heads must say what they say of the hidden state that a target of its own, from nothing, has for the token before the
// root.
struct ScriptedHeads : Drafter {
  Medusa medusa;
  MedusaSizes sizes;
  Target fresh;
  std::vector<int> coming, text;  // all that plain decoding prints; what is committed
  int right, forwards = 0;
  MedusaWeights<float> weights;
  MedusaActivations<float> activations;

  ScriptedHeads(const MedusaHeads& heads, std::vector<int> all, int right_nodes)
      : medusa(heads, head_of_world().data()),
        sizes(heads.sizes),
        fresh(world().config, world().weights.data(), Dtype::fp32, false, 1, 4),
        coming(std::move(all)),
        right(right_nodes),
        weights(heads.sizes, heads.weights.data(), nullptr, false),
        activations{heads.sizes, 1, 1} {
    vocab = heads.sizes.vocab_size;
    weights.target.pack(Team{});
    weights.pack(Team{});
  }
  void attach(const TargetRows* rows) override { medusa.attach(rows); }
  void begin(const int* tokens, int n) override {
    text.assign(tokens, tokens + n);
    medusa.begin(tokens, n);
    Growth growth;
    growth.start(0);
    CHECK(medusa.logits(growth, 0) == nullptr);  // nothing of the last text is left
  }
  const float* logits(const Growth&, int) override { return nullptr; }
  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws&, Candidate* candidates,
              int* count) override {
    for (int k = 0; k < n; k++) {
      const int depth = growth.depth[nodes[k]];
      const int next = coming[std::min(coming.size() - 1, text.size() + size_t(depth))];
      count[k] = 1;
      candidates[size_t(k) * size_t(width)] = {depth < right ? next : (next + 1) % vocab, 0.9f};
    }
  }
  void committed(const Commit& commit) override {
    forwards++;
    text.insert(text.end(), commit.tokens, commit.tokens + commit.n);
    medusa.committed(commit);
    const std::vector<int> before(text.begin(), text.end() - 1);
    open_window(fresh, before);
    const int zero = 0, one = 1;
    fresh.forward(&before.back(), &zero, &one, 1);
    const int C = sizes.n_embd;
    std::vector<float> hidden(fresh.hidden(0), fresh.hidden(0) + C + 16), input(hidden.begin(), hidden.begin() + C);
    const std::vector<float> roots = root_table(sizes, head_of_world().data());
    input.insert(input.end(), roots.begin() + text.back() * C, roots.begin() + (text.back() + 1) * C);
    input.resize(input.size() + 16);
    Growth growth;
    growth.start(text.back());
    for (int k = 0; k < sizes.heads; k++) {
      medusa_forward(Team{}, weights, k, 1, hidden.data(), input.data(), activations);
      const float* const said = medusa.logits(growth, k);
      REQUIRE(said);
      CHECK(memcmp(said, activations.logits.data(), size_t(vocab) * 4) == 0);
      growth.add(k, {0, 1});
    }
    CHECK(medusa.logits(growth, growth.size() - 1) == nullptr);  // beyond the last head
  }
};

}  // namespace

TEST_CASE("medusa: the state after a first, a middle, a last and no rejection is the text's own") {
  const LearnedWorld& w = world();
  Target target(w.config, w.weights.data(), Dtype::fp32, false, 1, 9);
  Decoding decoding;
  decoding.max_new_tokens = 90;  // the window moves
  Stats stats;
  const std::vector<int> plain = text_by(target, nullptr, decoding, "the fool", &stats);
  for (int right : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    CAPTURE(right);
    ScriptedHeads drafter(trained_heads(right >= 5), plain, right % 5);
    decoding.shape = parse_shape("chain:4", 64);
    for (int text = 0; text < 2; text++) CHECK(text_by(target, &drafter, decoding, "the fool", &stats) == plain);
    CHECK(drafter.forwards > 2 * 90 / 6);
    CHECK(stats.accept_histogram[size_t(right % 5 + 1)] >= 90 / (right % 5 + 1) / 2);
  }
}

TEST_CASE("medusa: whatever the heads say, the text is plain decoding's") {
  const LearnedWorld& w = world();
  Medusa trained(trained_heads(), nullptr), wild(random_heads(sizes_of(3, kOwnProjection), 8, 3), nullptr);
  const std::vector<float> wte = head_of_world();
  Medusa rooted(trained_heads(true), wte.data()), low(random_heads(sizes_of(5, 2), 9, 1), wte.data());
  std::vector<std::unique_ptr<Drafter>> parts;
  parts.push_back(std::make_unique<Medusa>(trained_heads(), nullptr));
  parts.push_back(load_drafter("ngram:4", w.dir, w.config.vocab_size));
  Union both(std::move(parts));
  const std::vector<Drafter*> drafters = {&trained, &rooted, &wild, &low, &both};
  std::map<Drafter*, std::pair<double, double>> lengths;
  std::vector<std::string> shapes(std::begin(kAllShapes), std::end(kAllShapes));
  shapes.push_back("cartesian:4,4,4,4");
  struct Setting {
    float temperature, top_p;
    int top_k;
  };
  const std::vector<Setting> settings = {{0, 1, 0}, {0.7f, 1, 0}, {0.7f, 0.8f, 0},
                                         {1, 1, 0}, {1, 1, 5},    {1.5f, 0.9f, 9}};
  int generations = 0, different = 0;
  size_t setting_tried = 0, pair = 0;
  for (Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
    Target target(w.config, w.weights.data(), dtype, false, 1, 341);
    const std::vector<double> cost = measure_cost(target, 64);
    for (const Setting& setting : settings)
      for (const char* prompt : {"the king", "a", "fool sings of the crown and the fair queen of a sword"}) {
        // The first setting by all, for the lengths below; in a tenth of the other 35 one, where each shape has a
        // drafter.
        const bool by_all = generations == 0 || !a_tenth();
        if (!by_all && !drawn(setting_tried++, 35)) continue;
        Decoding decoding;
        decoding.sampling.temperature = setting.temperature, decoding.max_new_tokens = 60;
        decoding.sampling.top_p = setting.top_p, decoding.sampling.top_k = setting.top_k;
        Stats stats;
        const std::vector<int> plain = text_by(target, nullptr, decoding, prompt, &stats);
        for (const std::string& shape : shapes)
          for (Drafter* drafter : drafters) {
            if (!by_all && !drawn(pair++, drafters.size())) continue;
            CAPTURE(shape);
            CAPTURE(setting.temperature);
            decoding.shape = ready_shape(shape, shape == "cartesian:4,4,4,4" ? 340 : 64);
            if (decoding.shape.kind == Shape::kAuto) decoding.cost = std::make_shared<Cost>(cost);
            int largest = 0;
            decoding.on_iteration = [&](const IterationReport& report) {
              largest = std::max(largest, report.tree.size());
            };
            different += text_by(target, drafter, decoding, prompt, &stats) != plain;
            CHECK(different == 0);
            generations++;
            if (!by_all) continue;
            lengths[drafter].first += double(stats.tokens), lengths[drafter].second += double(stats.target_forwards);
            if (shape == "cartesian:4,4,4,4" && drafter == &trained) CHECK(largest == 341);
            if (drafter == &trained) CHECK(stats.accept_histogram[1] > 0);  // the first forward has nothing to go by
          }
      }
  }
  CHECK(generations >= (a_tenth() ? 90 : 3000));
  const auto mean = [&](Drafter* drafter) { return lengths[drafter].first / lengths[drafter].second; };
  CHECK(mean(&trained) > 1.5);
  INFO(generations << " generations, acceptance length: trained " << mean(&trained) << ", seeing the root "
                   << mean(&rooted) << ", wild " << mean(&wild) << ", medusa+ngram:4 " << mean(&both));
  CHECK(mean(&trained) > mean(&wild) + 0.2);
  CHECK(mean(&rooted) > mean(&trained) + 0.2);
  CHECK(mean(&both) > mean(&trained));
}

TEST_CASE("medusa: on the mock, whose hidden states are its tokens, in every rule") {
  const MedusaSizes sizes = {3, kOwnProjection, 1, 7};
  Mock target(7, 16, 1, 1);
  Medusa medusa(random_heads(sizes, 4, 2), nullptr);
  for (const RuleWord& rule : kRules) {
    CAPTURE(rule.word);
    Decoding decoding;
    decoding.rule = parse_rule(rule.word);
    decoding.max_new_tokens = 50;
    for (const char* shape : {"chain:5", "tree:2x2", "best-first"})
      for (float temperature : {0.0f, 1.0f}) {
        decoding.shape = parse_shape(shape, 8);
        decoding.sampling.temperature = temperature;
        try {
          check_rule(decoding.rule, decoding.shape);
        } catch (const std::invalid_argument&) { continue; }
        std::vector<int> text = {1, 2, 3}, plain = text;
        const Stats stats = generate(target, &medusa, decoding, text, [](int) { return true; });
        CHECK(stats.tokens == 50);
        CHECK(stats.drafted_nodes > 0);
        generate(target, nullptr, decoding, plain, [](int) { return true; });
        if (decoding.rule == Rule::kMatch) CHECK(text == plain);
      }
  }
}

TEST_CASE("medusa: a target that keeps its hidden states to itself is drafted nothing for") {
  Medusa medusa(random_heads({2, kOwnProjection, 4, 7}, 4, 2), nullptr);
  const int token = 1, row = 0;
  MadeUpRows known, none;
  Growth growth;
  growth.start(1);
  Sampling sampling;
  const Draws draws = {&sampling, nullptr, 1, false};
  Candidate candidate;
  int root = 0, count = 7;
  const float state[] = {1, 2, 3, 4};
  known.of_hidden = [&](int) { return state; };
  const Tree tree;
  tell(medusa, {&token, &row, 1, tree}, known);
  medusa.expand(growth, &root, 1, 1, draws, &candidate, &count);
  CHECK(count == 1);
  tell(medusa, {&token, &row, 1, tree}, none);
  medusa.expand(growth, &root, 1, 1, draws, &candidate, &count);
  CHECK(count == 0);
  medusa.committed({&token, &row, 1, tree});
  CHECK(medusa.logits(growth, 0) == nullptr);
}
