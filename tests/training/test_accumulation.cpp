// tests/training/test_accumulation.cpp: updates of many batches: the sum of their gradients, and the flag
// --gradient_accumulation_steps of the real program, build/train_gpt.
#include <sys/wait.h>

#include <cmath>

#include "commands/cli.h"
#include "tests/world.h"
#include "training/accumulate.h"
#include "training/train_gpt.h"

using namespace nanospec;

// ---------------------------------------------------------------------------------------------------------------
// The sum

namespace {

Config two_tiny_layers() {
  Config c;
  c.n_layer = 2, c.n_head = c.n_kv_head = 2, c.n_embd = 8, c.block_size = 16, c.vocab_size = 11, c.bias = true;
  return c;
}
std::vector<int> random_tokens(Chance& chance) {
  std::vector<int> tokens(17);
  for (int& token : tokens) token = chance.below(11);
  return tokens;
}
void add_sequence(Batch& batch, const std::vector<int>& tokens) {
  batch.add_chain(tokens.data(), 16, 64 * batch.roots(), 0);
  batch.target.insert(batch.target.end(), tokens.begin() + 1, tokens.end());
}
double relative_error(const Array<float>& a, const Array<float>& b) {
  double wrong = 0, norm = 0;
  for (size_t i = 0; i < a.size(); i++)
    wrong += std::pow(double(a.data()[i]) - b.data()[i], 2), norm += std::pow(double(b.data()[i]), 2);
  return std::sqrt(wrong / norm);
}

// Other sequences and other dropout than any other part's.
MicroBatch part_of(uint64_t number) {
  Chance chance(2000 + number);
  MicroBatch part{{}, Dropout{0.1f, 9, uint32_t(number), 0}};
  for (int b = 0; b < 2; b++) add_sequence(part.batch, random_tokens(chance));
  return part;
}

// The sum of the gradients of parts [first, last), as accumulate.h states its order.
std::vector<float> tree_sum(Trainer<float>& trainer, int i, int parts, int first, int last, double& loss) {
  if (last - first == 1) {
    const MicroBatch part = part_of(uint64_t(i * parts + first));
    loss += trainer.loss_and_gradient(part.batch, part.dropout, parts);
    return {trainer.gradient.data(), trainer.gradient.data() + trainer.gradient.size()};
  }
  const int middle = first + (last - first) / 2;
  std::vector<float> left = tree_sum(trainer, i, parts, first, middle, loss);
  const std::vector<float> right = tree_sum(trainer, i, parts, middle, last, loss);
  for (size_t k = 0; k < left.size(); k++) left[k] += right[k];
  return left;
}

}  // namespace

TEST_CASE("accumulation: an update of N parts adds their gradients in a tree, bit for bit, on any number of threads") {
  const Config config = two_tiny_layers();
  const std::vector<float> weights = initial_weights(config, 37);
  for (int threads : {1, 2, 3})
    for (int parts : {1, 2, 3, 4, 7}) {
      CAPTURE(threads);
      CAPTURE(parts);
      Pool pool(threads), one(1);
      Trainer<float> tested(config, pool), by_hand(config, one);
      Accumulation accumulation(tested, pool, parts);
      tested.set_weights(weights.data());
      by_hand.set_weights(weights.data());
      for (int i = 0; i < 3; i++) {
        Update update;
        update.iteration = i;
        double loss = 0;
        const std::vector<float> sum = tree_sum(by_hand, i, parts, 0, parts, loss);
        by_hand.gradient.upload(sum.data(), sum.size());
        by_hand.apply(update);
        std::vector<uint64_t> asked;
        const auto part = [&](uint64_t number) {
          asked.push_back(number);
          return part_of(number);
        };
        const float mean = accumulation.step(part, update);
        CHECK(mean == float(loss / parts));
        REQUIRE(int(asked.size()) == parts);
        for (int p = 0; p < parts; p++) CHECK(asked[size_t(p)] == uint64_t(i * parts + p));
        CHECK(memcmp(tested.gradient.data(), sum.data(), sum.size() * sizeof(float)) == 0);
        CHECK(memcmp(tested.weights.data(), by_hand.weights.data(), weights.size() * sizeof(float)) == 0);
      }
    }
  CHECK(gradients_held(1) == 1);
  CHECK(gradients_held(2) == 2);
  CHECK(gradients_held(3) == 3);
  CHECK(gradients_held(5) == 4);
  CHECK(gradients_held(8) == 4);
}

TEST_CASE(
    "accumulation: an update of N parts has the gradient of one batch of all their sequences, nearly; of one part, "
    "all") {
  const Config config = two_tiny_layers();
  const std::vector<float> weights = initial_weights(config, 38);
  Chance chance(39);
  Batch all;
  std::vector<MicroBatch> parts(4);
  for (int p = 0; p < 4; p++) {
    const std::vector<int> tokens = random_tokens(chance);
    for (Batch* batch : {&all, &parts[size_t(p)].batch}) add_sequence(*batch, tokens);
  }
  Pool pool(1);
  Trainer<float> whole(config, pool), summed(config, pool), alone(config, pool);
  for (Trainer<float>* trainer : {&whole, &summed, &alone}) trainer->set_weights(weights.data());
  const float loss = whole.step(all, {});
  CHECK(Accumulation(summed, pool, 4).step([&](uint64_t p) { return parts[p]; }, {}) ==
        doctest::Approx(loss).epsilon(1e-6));
  CHECK(relative_error(summed.gradient, whole.gradient) < 1e-6);
  CHECK(Accumulation(alone, pool, 1).step([&](uint64_t) { return MicroBatch{all, {}}; }, {}) == loss);
  CHECK(memcmp(alone.weights.data(), whole.weights.data(), weights.size() * sizeof(float)) == 0);
}

// ---------------------------------------------------------------------------------------------------------------
// The program

namespace {

// 2 layers, dropout, blocks of 32: what both the program and the reference get.
Words flags(const std::string& out, const Words& more) {
  Words words = {"train_gpt",
                 "--data",
                 world().data,
                 "--out",
                 out,
                 "--n_layer",
                 "2",
                 "--n_head",
                 "2",
                 "--n_embd",
                 "24",
                 "--dropout",
                 "0.1",
                 "--block_size",
                 "32",
                 "--warmup_iters",
                 "2",
                 "--threads",
                 "1",
                 "--quiet",
                 "--eval_iters",
                 "1",
                 "--batch_size",
                 "3",
                 "--seed",
                 "5"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

int run_training(const std::string& out, const Words& more, std::string* said = nullptr) {
  const Folder folder;
  std::string line = "build/";
  for (const std::string& word : flags(out, more)) line += "'" + word + "' ";
  const int status = std::system((line + "2>" + folder.file("log")).c_str());
  if (said) *said = read_file(folder.file("log"));
  return WEXITSTATUS(status);
}

// The three files that a training's numbers are in.
std::string bytes_in(const std::string& dir) {
  return read_file(dir + "/model.safetensors") + read_file(dir + "/optimizer.safetensors");
}

// The weights after some updates: each part has the batch and the dropout of an iteration of its own, and the parts'
// gradients are added in a tree.
std::vector<float> reference(int updates, int parts) {
  Words words = flags("/nowhere", {"--gradient_accumulation_steps", std::to_string(parts)});
  std::vector<char*> argv = arguments(words);
  argv.push_back(nullptr);
  GptOptions o;
  CHECK(read_flags(int(argv.size()) - 1, argv.data(), o));
  const std::vector<int> tokens = read_text(o).parts.train;
  const int B = o.batch_size, T = o.config.block_size;
  Pool pool(1);
  Trainer<float> trainer(o.config, pool);
  trainer.initialize(o.seed);
  const auto gradient_of = [&](int number) {
    Batch batch;
    for (int b = 0; b < B; b++) {
      const uint64_t start = random_bits(o.seed, uint32_t(b), kStreamBatch, uint64_t(number), 0) % (tokens.size() - T);
      batch.add_chain(&tokens[start], T, b * pad64(T), 0);
      batch.target.insert(batch.target.end(), &tokens[start + 1], &tokens[start + 1] + T);
    }
    trainer.loss_and_gradient(batch, Dropout{o.dropout, o.seed, uint32_t(number), 0}, parts);
    return std::vector<float>(trainer.gradient.data(), trainer.gradient.data() + trainer.gradient.size());
  };
  const auto plus = [](std::vector<float> a, const std::vector<float>& b) {
    for (size_t i = 0; i < a.size(); i++) a[i] += b[i];
    return a;
  };
  UpdateLoop run(o, 0);
  for (; run.iteration < updates; run.iteration++) {
    const int first = int(run.iteration) * parts;
    std::vector<float> sum = gradient_of(first);
    if (parts == 3) sum = plus(sum, plus(gradient_of(first + 1), gradient_of(first + 2)));
    if (parts == 4) sum = plus(plus(sum, gradient_of(first + 1)), plus(gradient_of(first + 2), gradient_of(first + 3)));
    trainer.gradient.upload(sum.data(), sum.size());
    trainer.apply(run.update());
  }
  return {trainer.weights.data(), trainer.weights.data() + trainer.weights.size()};
}

}  // namespace

TEST_CASE("accumulation: train_gpt's weights are those of parts added in a tree, on any number of threads") {
  const Folder folder;
  for (int parts : {1, 3, 4}) {
    CAPTURE(parts);
    const std::string out = folder.file(std::to_string(parts)), steps = std::to_string(parts);
    const Words more = {"--gradient_accumulation_steps", steps, "--max_iters", "3"};
    REQUIRE_MESSAGE(run_training(out, more) == 0, "this test needs build/train_gpt");
    CHECK(load_optimizer(out).weights == reference(3, parts));
    for (const char* threads : {"2", "3"}) {
      Words others = more;
      others.insert(others.end(), {"--threads", threads, "--overwrite"});
      const std::string first = bytes_in(out);
      CHECK(run_training(out, others) == 0);
      CHECK(bytes_in(out) == first);
    }
  }
  const std::string out = folder.file("without");
  CHECK(run_training(out, {"--max_iters", "3"}) == 0);
  CHECK(bytes_in(out) == bytes_in(folder.file("1")));
}

TEST_CASE("accumulation: a resumed run has the bytes of an unbroken one, and must have as many steps") {
  const Folder folder;
  const std::string whole = folder.file("whole"), broken = folder.file("broken");
  const std::string steps = "--gradient_accumulation_steps";
  REQUIRE(run_training(whole, {steps, "3", "--max_iters", "5"}) == 0);
  REQUIRE(run_training(broken, {steps, "3", "--max_iters", "2"}) == 0);
  std::string said;
  for (const Words& other : {Words{steps, "4"}, Words{}}) {
    Words more = {"--max_iters", "5", "--resume"};
    more.insert(more.end(), other.begin(), other.end());
    CHECK(run_training(broken, more, &said) == 1);
    CHECK(contains(said, "the run to resume had gradient_accumulation_steps 3, this one has "));
  }
  CHECK(run_training(broken, {steps, "3", "--max_iters", "5", "--resume"}) == 0);
  CHECK(bytes_in(broken) == bytes_in(whole));

  // A state of an older version does not name them: it had one.
  const std::string old = folder.file("old");
  REQUIRE(run_training(old, {"--max_iters", "2"}) == 0);
  TrainingState state = load_optimizer(old);
  CHECK(state.settings.erase(kAccumulation) == 1);
  Metadata origin = read_header(old + "/optimizer.safetensors").metadata;
  for (const char* own : {"iteration", "settings", "config"}) origin.erase(own);
  save_optimizer(old, state.config, 2, state.settings, {state.weights.data(), state.m.data(), state.v.data()}, origin);
  CHECK(run_training(old, {steps, "2", "--max_iters", "3", "--resume"}, &said) == 1);
  CHECK(contains(said, "had gradient_accumulation_steps 1, this one has 2"));
  CHECK(run_training(old, {"--max_iters", "3", "--resume"}) == 0);
}

TEST_CASE("accumulation: the figures count all parts; what is no number of steps is refused") {
  const Folder folder;
  GptOptions one, four;
  four.gradient_accumulation_steps = 4;
  CHECK(tokens_per_iteration(four) == 4 * tokens_per_iteration(one));
  CHECK(flops_per_iteration(four) == 4 * flops_per_iteration(one));
  for (const char* bad : {"0", "-1", "x", "1.5", ""}) {
    CAPTURE(bad);
    std::string said;
    CHECK(run_training(folder.file("bad"), {"--gradient_accumulation_steps", bad, "--max_iters", "1"}, &said) == 2);
    CHECK(contains(said, "--gradient_accumulation_steps"));
    CHECK(!std::filesystem::exists(folder.file("bad")));
  }
}
