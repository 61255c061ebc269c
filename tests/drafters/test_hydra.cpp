// tests/drafters/test_hydra.cpp: the heads that learn from what a model said, Hydra's and Medusa's: their gradient, the
// drafter against the trainer, their file; and whole trainings by the program, the parallel drafter's among them.
#include <doctest/doctest.h>

#include "files/model_drafters.h"
#include "tests/error_of.h"
#include "tests/gradient.h"
#include "tests/mock.h"
#include "tests/parallel_world.h"
#include "tests/random.h"
#include "tests/world.h"
#include "training/train_hydra.h"

using namespace nanospec;

namespace {

// Examples with A tokens each behind the first one.
Shard random_examples(Chance& chance, int examples, int channels, int after, int vocab) {
  Shard shard;
  shard.sizes = {examples, 1, channels, Recorded::kExamples, after};
  for (int i = 0; i < shard.sizes.tokens(); i++) shard.token.push_back(chance.below(vocab));
  shard.states.resize(size_t(examples * channels));
  chance.fill(shard.states.data(), shard.states.size(), 2);
  return shard;
}
Embeddings embeddings_of(const std::vector<float>& table, int channels) {
  return [=](const int* tokens, int n, float* to) {
    for (int i = 0; i < n; i++) std::copy_n(table.begin() + tokens[i] * channels, channels, to + i * channels);
  };
}

// Heads for the world's model, by chance.
HydraFile random_hydra(int tokens, double size, int heads = 0, uint64_t seed = 5) {
  HydraFile file;
  file.sizes = {world().config.n_embd, 20, tokens, heads};
  Chance chance(seed);
  file.weights.resize(numbers_of(hydra_table(file.sizes)));
  chance.fill(file.weights.data(), file.weights.size(), size);
  for (int i = 0; i < tokens; i++) file.token.push_back(world().config.vocab_size - 1 - i);
  return file;
}

// The weights as the drafter holds them.
std::vector<float> in_four_bits(const HydraFile& file) {
  HydraWeights<float, AnyNumber> packed(file.sizes, file.weights.data(), false);
  packed.pack(Team{});
  std::vector<float> weights = file.weights;
  const std::vector<TensorSpec> table = hydra_table(file.sizes);
  size_t tensor = 0;
  const auto round = [&](const Panels<AnyNumber>& any, bool rows_are_outputs = false) {
    any.visit([&](const auto& panels) {
      for (int k = 0; k < panels.k; k++)
        for (int n = 0; n < panels.n; n++)
          weights[table[tensor].offset + size_t(rows_are_outputs ? n * panels.k + k : k * panels.n + n)] =
              panels.weight(k, n);
    });
    tensor++;
  };
  round(packed.features.forward);
  for (const auto& step : packed.step) {
    round(step.forward);
    tensor++;  // its bias is not rounded
  }
  round(packed.down.forward);
  round(packed.guess.forward, true);
  return weights;
}

std::string name_of_heads(int heads) { return heads == 0 ? "hydra" : "medusa"; }
void write_hydra(const std::string& dir, const HydraFile& file, const Metadata& metadata) {
  write_arrays(heads_path(dir, name_of_heads(file.sizes.heads)), hydra_table(file.sizes), {{"", file.weights.data()}},
               metadata, {{"token", {file.sizes.tokens}, file.token.data(), "I32"}});
}

// What the world's model says after pieces of its text, in the file of nanospec distill; every fifth text is held out.
std::string said_by_world(int texts, int length) {
  const LearnedWorld& w = world();
  Target target(w.config, w.weights.data(), Dtype::fp32, false, 1, 17);
  const std::vector<int> all = w.tokenizer.encode(read_file(w.data));
  std::string lines;
  for (int i = 0; i < texts; i++) {
    Decoding decoding;
    decoding.max_new_tokens = length;
    decoding.sampling.temperature = 0.5f;
    decoding.sampling.sequence = uint32_t(i);
    std::vector<int> text(all.begin() + 31 * i, all.begin() + 31 * i + 9);
    generate(target, nullptr, decoding, text, [](int) { return true; });
    lines +=
        Json({{"question", std::to_string(i)}, {"text", "x"}, {"held_out", i % 5 == 0}, {"begin", 9}, {"tokens", text}})
            .dump() +
        "\n";
    if (i == 3) lines += "{\"dropped\": \"loops\"}\n";
  }
  return lines;
}
int train_on_said(Words words) {
  const std::string name = words[0];
  const bool heads = name != "--parallel";
  words.insert(words.begin(), {"train_drafter", "--quiet", "--threads", "1", "--batch_size", heads ? "64" : "8",
                               "--learning_rate", "1e-2", "--min_lr", "1e-2", "--warmup_iters", "0",
                               name + (name == "--medusa" ? "_heads" : "_ahead"), "3"});
  if (!heads) words.insert(words.end(), {"--parallel_window", "18"});
  HydraOptions hydra(name.substr(2));
  ParallelOptions parallel(Recorded::kPassages);
  DrafterOptions& options = heads ? static_cast<DrafterOptions&>(hydra) : parallel;
  return train_drafter(options, int(words.size()), arguments(words).data());
}

}  // namespace

TEST_CASE("hydra: gradients against differences of the loss, in double") {
  const int V = 13;
  for (const HydraSizes& sizes : {HydraSizes{6, 9, 4}, HydraSizes{6, 9, 4, 3}}) {
    Chance chance(31);
    const Shard shard = random_examples(chance, 5, sizes.features(), 4, V);
    std::vector<float> table(size_t(V * sizes.n_embd));
    chance.fill(table.data(), table.size());
    const std::vector<int> pieces = {4, 0, 2, 1};
    const Examples batch{shard, pieces.data(), 4};
    Pool pool(1);
    HydraTrainer<double> trainer(sizes, every_third_class(V, 4), embeddings_of(table, 6), 3, 5, pool);
    std::vector<double> weights(trainer.size);
    chance.fill(weights.data(), weights.size(), 0.7);
    check_gradient(trainer, weights, batch);
  }
}

TEST_CASE("hydra: any number of threads gives the same bits") {
  for (const HydraSizes& sizes : {HydraSizes{40, 70, 50}, HydraSizes{40, 70, 50, 4}}) {
    Chance chance(32);
    const Shard shard = random_examples(chance, 37, sizes.features(), 5, 160);
    std::vector<float> table(size_t(160 * sizes.n_embd)), weights;
    chance.fill(table.data(), table.size());
    const std::vector<int> pieces = numbers_to(37);
    const auto stepped = [&](int threads) {
      Pool pool(threads);
      HydraTrainer<float> trainer(sizes, every_third_class(160, 50), embeddings_of(table, 40), 4, 40, pool);
      weights = initial_weights(trainer.table, 3);
      trainer.set_weights(weights.data());
      for (int i = 0; i < 2; i++) {
        Update update;
        update.iteration = i;
        trainer.step({shard, pieces.data(), 37}, update);
      }
      return std::vector<float>(trainer.weights.data(), trainer.weights.data() + trainer.size);
    };
    const std::vector<float> alone = stepped(1);
    CHECK(alone != weights);
    CHECK(alone == stepped(2));
    CHECK(alone == stepped(3));
  }
}

// Counts the operations that begin on this thread.
struct Operations : Observer {
  int begun = 0;
  Operations() { observer = this; }
  ~Operations() override { observer = nullptr; }
  void begins(const std::type_info&, const void*) override { begun++; }
};

// Of every node of a tree the drafter says what the trainer does of the node's path, with weights of 4 bits; and it
// says the same bits in whatever order, and however many at a time, nodes are asked about. Medusa's heads say it of as
// many depths as there are.
void check_guesses(int heads_in_file) {
  const LearnedWorld& w = world();
  const int V = w.config.vocab_size, C = w.config.n_embd;
  Target target(w.config, w.weights.data(), Dtype::fp32, false, 2, 9);
  const HydraFile file = random_hydra(V - 3, 0.3, heads_in_file);
  const auto heads = std::make_shared<HydraHeads>(file, target);
  const std::vector<int> prompt = w.tokenizer.encode("the king");
  target.prefill(prompt.data(), int(prompt.size()) - 1);
  const int depth = 0, end = 1, row = 0;
  target.forward(&prompt.back(), &depth, &end, 1);
  Features features(target);
  MadeUpRows rows;
  rows.of_features = [&](int i) { return features.row(i); };
  const int root = 4;
  const Commit commit = {&root, &row, 1, Tree()};

  Chance chance(9);
  Growth growth;
  growth.start(root);
  for (int i = 1; i < 12; i++) growth.add(chance.below(i), {chance.below(V), 0.5f});
  const auto says = [&](Hydra& hydra, int node) {
    const float* const logits = hydra.logits(growth, node);
    return logits ? std::vector<float>(logits, logits + V) : std::vector<float>();
  };
  Hydra at_once(heads, V), in_turn(heads, V);
  for (Hydra* hydra : {&at_once, &in_turn}) {
    hydra->begin(prompt.data(), int(prompt.size()));
    CHECK(says(*hydra, 0).empty());  // before the target has run
    tell(*hydra, commit, rows);
    CHECK(says(*hydra, 0).empty());  // before it has run itself
  }
  Operations operations;
  at_once.prepare(growth, numbers_to(12).data(), 12);
  const int together = operations.begun;
  CHECK(together > 0);
  at_once.prepare(growth, numbers_to(12).data(), 12);
  CHECK(operations.begun == together);  // what has run does not run again
  for (int node = 11; node >= 0; node--) in_turn.prepare(growth, &node, 1);
  CHECK((operations.begun == 2 * together) == (heads_in_file > 0));  // nodes by themselves take more

  const std::vector<float> rounded = in_four_bits(file);
  std::vector<int> class_of(size_t(V), V - 3);
  for (size_t i = 0; i < file.token.size(); i++) class_of[size_t(file.token[i])] = int(i);
  for (int node = 0; node < 12; node++) {
    CAPTURE(node);
    CHECK(says(at_once, node) == says(in_turn, node));
    CHECK(says(at_once, node).empty() == (heads_in_file > 0 && growth.depth[node] >= heads_in_file));
    if (says(at_once, node).empty()) continue;
    std::vector<int> path = {0};  // what comes behind it does not matter
    for (int at = node; at >= 0; at = growth.parent[at]) path.insert(path.begin(), growth.token[at]);
    const int K = growth.depth[node] + 1;
    Shard shard;
    shard.sizes = {1, 1, kFeatures * C, Recorded::kExamples, K + 1};
    shard.token.push_back(0);
    shard.token.insert(shard.token.end(), path.begin(), path.end());
    shard.states.assign(features.row(0), features.row(0) + kFeatures * C);
    Pool pool(1);
    const Embeddings embeddings = [&](const int* tokens, int n, float* to) {
      for (int i = 0; i < n; i++) std::copy_n(w.weights.data() + tokens[i] * C, C, to + i * C);
    };
    HydraTrainer<float> trainer(file.sizes, class_of, embeddings, K, 1, pool);  // of Medusa's heads the first ones
    trainer.set_weights(rounded.data());
    const std::vector<float> drafted = says(at_once, node);
    const Likely& likely = *at_once.likely(growth, node);
    const int piece = 0;
    trainer.loss({shard, &piece, 1}, [&](int k, int before, int, const float* logits, float) {
      if (k + 1 < K) return;
      CHECK(before == class_of[size_t(growth.token[heads_in_file > 0 ? 0 : node])]);
      double wrong = 0, size = 0;
      for (int token : likely.token) {
        const double its = double(logits[class_of[size_t(token)]]);
        wrong += std::pow(double(drafted[size_t(token)]) - its, 2), size += its * its;
      }
      CHECK(std::sqrt(wrong) < 0.03 * std::sqrt(size));  // of states in 8 bits
    });
    for (int token = 0; token < V; token++)  // others are rarer than the likely ones
      if (class_of[size_t(token)] == V - 3) CHECK(likely.find(token) < 0);
  }
}

TEST_CASE("hydra: the drafter's guesses are the trainer's, node by node of a tree") {
  for (int heads : {0, 3}) check_guesses(heads);
}

TEST_CASE("hydra: the best of some classes, and what is left for all others") {
  Chance chance(4);
  for (int t = 0; t < 200; t++) {
    const int classes = 2 + chance.below(40), known = classes - chance.below(2), most = 1 + chance.below(classes);
    std::vector<int> token;
    for (int i = 0; i < known; i++) token.push_back(3 * i + 1);
    std::vector<float> logits(static_cast<size_t>(classes));
    chance.fill(logits.data(), logits.size(), 4);
    Likely likely(200);
    best_likely(logits.data(), classes, token, 1, most, likely);
    std::vector<int> order = numbers_to(known);
    std::sort(order.begin(), order.end(), [&](int a, int b) { return logits[size_t(a)] > logits[size_t(b)]; });
    REQUIRE(likely.token.size() == size_t(std::min(most, known)));
    double all = 0, listed = 0;
    for (float logit : logits) all += std::exp(double(logit));
    for (size_t i = 0; i < likely.token.size(); i++) {
      CHECK(likely.token[i] == token[size_t(order[i])]);
      CHECK(likely.logit[i] == logits[size_t(order[i])]);
      listed += std::exp(double(likely.logit[i]));
    }
    if (all - listed > 1e-3 * all)
      CHECK(std::exp(double(likely.rest)) * likely.others() == doctest::Approx(all - listed).epsilon(1e-2));
  }
}

void check_file(int heads) {
  const LearnedWorld& w = world();
  const Folder folder;
  const std::string name = name_of_heads(heads), path = heads_path(folder.path, name);
  const auto read = [&] { return read_hydra(folder.path, w.config, w.dir, name); };
  CHECK(holds(error_of([&] { read(); }),
              name + " has no heads: " + path + ": train them: train_drafter --" + name + " " + w.dir));
  const HydraFile file = random_hydra(9, 1, heads);
  write_hydra(folder.path, file, {{"tokenizer", tokenizer_hash(w.dir)}});
  const HydraFile again = read();
  CHECK(again.sizes.width == 20);
  CHECK(again.sizes.heads == heads);
  CHECK(again.token == file.token);
  CHECK(again.weights == file.weights);
  const std::string whole = read_file(path);
  for (size_t cut : {size_t(0), size_t(7), size_t(60), whole.size() / 2, whole.size() - 1}) {
    write_file(path, whole.substr(0, cut));
    CHECK(!error_of([&] { read(); }).empty());
  }
  const auto refused = [&](HydraFile other, const Metadata& metadata = {}) {
    write_hydra(folder.path, other, metadata);
    return error_of([&] { read(); });
  };
  HydraFile other = file;
  other.token[2] = other.token[5];
  CHECK(holds(refused(other), "not different ones of this model"));
  other.token[2] = w.config.vocab_size;
  CHECK(holds(refused(other), "not different ones of this model"));
  other = file, other.weights[3] = NAN;
  CHECK(holds(refused(other), "not finite"));
  CHECK(holds(refused(file, {{"tokenizer", "xxh64:0"}}), "different tokenizer than the model's"));
  const float one = 1;
  write_safetensors(path, {{"something.else", {1}, &one}}, {});
  CHECK(holds(error_of([&] { read(); }), "not heads for this model"));
}
TEST_CASE("hydra: heads come back from their file; files that do not fit are refused") {
  for (int heads : {0, 2}) check_file(heads);
}

void check_program(const std::string& name) {
  CAPTURE(name);
  const LearnedWorld& w = world();
  const Folder folder;
  const std::string dir = folder.file("model"), data = folder.file("said.jsonl"), its = "/" + name + ".safetensors",
                    path = dir + its;
  std::filesystem::copy(w.dir, dir);
  write_file(data, said_by_world(150, 22));
  const Words usual = {"--" + name, dir, "--data", data, "--max_iters", "120", "--eval_interval", "60"};
  const auto with = [&](const Words& more) {
    Words words = usual;
    words.insert(words.end(), more.begin(), more.end());
    return train_on_said(words);
  };
  const std::string stats = folder.file("stats.json");
  REQUIRE(with({"--stats", stats}) == 0);
  const Json figures = parse_json(read_file(stats), stats);
  const double first = figures["curve"][0]["loss"], last = figures["curve"].back()["loss"];
  CHECK(last < first);
  CHECK(figures["accuracy"][0][0].get<double>() > figures["accuracy_unigram"][0].get<double>());
  CHECK(figures["iterations"] == 120);

  // They are this model's, and of no text that the model did not learn: nothing is noted.
  const Metadata metadata = read_header(path).metadata;
  CHECK(metadata.at("model") == model_hash(dir));
  CHECK(metadata.at("said") == "said.jsonl");
  CHECK(metadata.count("text_sha256") == 0);

  // Stopped and gone on with: the same bits; another text or another width is another run.
  const std::string straight = read_file(path);
  const std::string parts = folder.file("parts");
  Words half = usual;
  half[5] = "60";
  half.insert(half.end(), {"--out", parts});
  REQUIRE(train_on_said(half) == 0);
  CHECK(read_file(parts + its) != straight);
  REQUIRE(with({"--out", parts, "--resume", "--threads", "2"}) == 0);
  CHECK(read_file(parts + its) == straight);
  CHECK(holds(error_of([&] { with({"--resume", "--" + name + "_vocabulary", "7"}); }), "had vocabulary"));
  CHECK(holds(error_of([&] { with({}); }), "--overwrite"));

  // It drafts, alone and in a union; the bytes are plain decoding's.
  Target target(w.config, w.weights.data(), Dtype::fp32, false, 2, 17);
  const MakeModelDrafter make = model_drafters(target, dir, w.config, w.tokenizer, Dtype::fp32, Dtype::fp32);
  for (const std::string& drafts : {name, "suffix+" + name})
    for (float temperature : {0.0f, 0.8f}) {
      CAPTURE(drafts);
      CAPTURE(temperature);
      const std::unique_ptr<Drafter> drafter = load_drafter(drafts, dir, w.config.vocab_size, make);
      Decoding decoding;
      decoding.max_new_tokens = 100;
      decoding.sampling.temperature = temperature;
      decoding.shape = parse_shape("best-first", 8);
      std::vector<int> plain = w.tokenizer.encode("the king"), text = plain;
      generate(target, nullptr, decoding, plain, [](int) { return true; });
      const Stats its = generate(target, drafter.get(), decoding, text, [](int) { return true; });
      CHECK(text == plain);
      CHECK(double(its.tokens) > 1.3 * double(its.target_forwards));
    }

  // What is no file of distill, and one that holds too little.
  const auto refused = [&](const std::string& bytes) {
    write_file(data, bytes);
    return error_of([&] { with({"--out", folder.file("other")}); });
  };
  CHECK(holds(refused("{}\n"), "no text of this model: " + data + ", line 1"));
  CHECK(holds(refused(said_by_world(1, 22)), " to learn from and "));
  CHECK(holds(refused("x"), "line 1"));
}
TEST_CASE("hydra: the program trains on what the model said, goes on to the same bits, and the drafts are right") {
  check_program("hydra");
  check_program("medusa");
  check_program("parallel");
}
