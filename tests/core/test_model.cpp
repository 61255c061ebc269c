// tests/core/test_model.cpp: the GPT of model.h.
//
// Its gradients against differences and against PyTorch's; training that repeats itself bit for bit; decoding whose
// rows do not know of each other. Reference values: tests/reference/make_values.py.
#include <doctest/doctest.h>

#include <numeric>

#include "drafters/features.h"
#include "files/checkpoint.h"
#include "tests/random.h"
#include "tests/tenth.h"
#include "train.h"

using namespace nanospec;

namespace {

Config tiny(bool bias) {
  Config c;
  c.n_layer = 2, c.n_head = c.n_kv_head = 2, c.n_embd = 8, c.block_size = 16, c.vocab_size = 11, c.bias = bias;
  return c;
}

// Like Llama: query heads share keys, heads are not C / H wide, and the head is a tensor of its own.
Config tiny_llama(bool bias) {
  Config c = tiny(bias);
  c.n_head = 4, c.head_dim = 6, c.n_inner = 10, c.norm_epsilon = 1e-6f, c.rope_theta = 100;
  c.rotary = c.swiglu = true, c.center = c.tied = false;
  return c;
}

// What other families do otherwise: GPT-2; Qwen 2 and 3, together, with scaled positions and Mistral's window.
Config tiny_gpt2() {
  Config c = tiny(true);
  c.tanh = true;
  return c;
}
Config tiny_qwen() {
  Config c = tiny_llama(false);
  c.qkv_bias = c.qk_norm = true, c.rope_factors = {1, 2.5f, 8}, c.span = 5;
  return c;
}

// Weights of standard deviation 0.3: large enough that every path through the model carries gradient.
template <class T>
std::vector<T> rough_weights(const Config& config, uint64_t seed) {
  std::vector<T> weights(parameter_count(config));
  Chance chance(seed);
  for (const TensorSpec& spec : tensor_table(config))
    for (size_t i = 0; i < spec.size; i++)
      weights[spec.offset + i] = T((spec.init_std < 0 ? 1 : 0) + 0.3 * std::sqrt(12.0) * (chance.number() - 0.5));
  return weights;
}

// |a - b| / |b| over n numbers.
template <class A, class B>
double relative_error(const A* a, const B* b, size_t n) {
  double wrong = 0, norm = 0;
  for (size_t i = 0; i < n; i++) wrong += std::pow(double(a[i]) - b[i], 2), norm += std::pow(double(b[i]), 2);
  return std::sqrt(wrong) / std::sqrt(norm);
}

// One batch of plain sequences; or a branching tree with a past beside a chain with one.
Batch batch_of(Chance& chance, bool with_past) {
  Batch batch;
  std::vector<int> tokens(16);
  for (int& token : tokens) token = chance.below(11);
  if (!with_past) {
    batch.add_chain(tokens.data(), 16, 0, 0);
    batch.add_chain(tokens.data() + 3, 9, 64, 0);
  } else {
    const RandomTree tree = random_tree(chance, 9, 11, 0.9);
    batch.add_tree(tree.token.data(), tree.depth.data(), tree.end.data(), 9, 0, 5);
    batch.add_chain(tokens.data(), 4, 64, 3);
  }
  for (int i = 0; i < batch.rows(); i++) batch.target.push_back(chance.below(11));
  return batch;
}

// f'(x) by a stencil of fourth order in h.
template <class F>
double difference(double h, F f) {
  return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h);
}

// A model that is trained on a whole batch in one thread, as Trainer does halves: with the gradients of all layers'
// keys and values, the past's too.
struct WholeBatch {
  const Config config;
  Array<double> parameters{parameter_count(config)}, gradient{parameter_count(config)};
  Weights<double, double> packed{config, {config, parameters.data()}, false};
  std::unique_ptr<Activations<double>> a{};
  std::unique_ptr<Gradients<double>> g{};

  void set_weights(const double* flat) {
    parameters.upload(flat, parameters.size());
    packed.pack(Team());
  }
  double loss(const Batch& batch, const Dropout& dropout = {}) { return run(batch, dropout, 0); }
  double loss_and_gradient(const Batch& batch, const Dropout& dropout = {}, int parts = 1) {
    return run(batch, dropout, parts);
  }

 private:
  double run(const Batch& batch, const Dropout& dropout, int parts) {
    const Team team;
    const int R = batch.rows();
    if (!a || a->R < R || a->slots < batch.slots()) {
      a.reset(new Activations<double>(config, R, batch.slots(), true, 1, false));
      g.reset(new Gradients<double>{*a, true});
    }
    DeviceBatch rows(R, batch.roots(), false);
    rows.upload(batch);
    std::vector<double> losses(static_cast<size_t>(R));
    nanospec::forward(team, config, packed, rows, *a, rows.forest.rows, dropout);
    loss_of_rows(team, R,
                 CrossEntropy<double>{a->logits.data(), a->V, config.vocab_size, rows.target(), losses.data(),
                                      parts > 0, 1.0 / (double(R) * std::max(parts, 1))});
    if (parts > 0) {
      for (auto* sums : {&g->k, &g->v}) std::fill_n(sums->data(), sums->size(), 0.0);
      std::fill_n(gradient.data(), gradient.size(), 0.0);
      backward(team, config, packed, rows, *a, *g, Tensors<double>(config, gradient.data()), dropout);
    }
    return std::accumulate(losses.begin(), losses.end(), 0.0) / R;
  }
};

// Every parameter's gradient, and those of the past's keys and values, against differences of the loss.
void check_gradients(const Config& config, bool with_past, float dropout_rate) {
  CAPTURE(config.bias);
  CAPTURE(config.rotary);
  CAPTURE(with_past);
  CAPTURE(dropout_rate);
  Chance chance(with_past ? 21 : 22);
  const Batch batch = batch_of(chance, with_past);
  WholeBatch trainer{config};
  trainer.loss(batch);  // now there is a cache
  const Activations<double>& a = *trainer.a;
  chance.fill(a.k.data(), a.k.size());
  chance.fill(a.v.data(), a.v.size());
  const Dropout dropout{dropout_rate, 3, 4, 0};
  const std::vector<double> weights = rough_weights<double>(config, 23);
  trainer.set_weights(weights.data());
  trainer.loss_and_gradient(batch, dropout);
  const std::vector<double> gradient(trainer.gradient.data(), trainer.gradient.data() + trainer.gradient.size());

  std::vector<double> moved = weights;
  for (const TensorSpec& spec : tensor_table(config)) {
    CAPTURE(spec.name);
    double wrong = 0, norm = 0, key_bias = 0;
    // Without a past the key bias moves all scores of a row alike, which softmax does not see; a past's keys stay.
    const bool has_key_bias = !with_past && !config.rotary && spec.name.find("c_attn.bias") != std::string::npos;
    for (size_t i = 0; i < spec.size; i++) {
      const size_t at = spec.offset + i;
      if (has_key_bias && i / size_t(config.n_embd) == 1) {
        key_bias = std::max(key_bias, std::abs(gradient[at]));
        continue;
      }
      const double slope = difference(4e-4, [&](double h) {
        moved[at] = weights[at] + h;
        trainer.set_weights(moved.data());
        moved[at] = weights[at];
        return trainer.loss(batch, dropout);
      });
      wrong += (slope - gradient[at]) * (slope - gradient[at]);
      norm += slope * slope;
    }
    CHECK(std::sqrt(wrong) < 1e-7 * std::sqrt(norm));
    CHECK(key_bias < 1e-12);
  }
  if (!with_past) return;

  trainer.set_weights(weights.data());
  const int D = config.head_size();
  for (int l = 0; l < config.n_layer; l++)
    for (bool values : {false, true}) {
      CAPTURE(l);
      CAPTURE(values);
      double wrong = 0, norm = 0;
      for (int root = 0; root < batch.roots(); root++)
        for (int head = 0; head < config.n_kv_head; head++)
          for (int j = 0; j < batch.past[root]; j++)
            for (int d = 0; d < D; d++) {
              const KeyValues<double> cache = a.cache(l);
              const int slot = batch.first_slot[root] + j;
              double* x = values ? cache.value(head, slot, d) : cache.key(head, slot, d);
              const double before = *x;
              const double slope = difference(4e-4, [&](double h) {
                *x = before + h;
                const double loss = trainer.loss(batch, dropout);
                *x = before;
                return loss;
              });
              const auto& sums = values ? trainer.g->v : trainer.g->k;
              const double exact = sums.at(l, 0)[(size_t(head) * cache.slots + slot) * pad16(D) + d];
              wrong += (slope - exact) * (slope - exact);
              norm += slope * slope;
            }
      CHECK(norm > 0);
      CHECK(std::sqrt(wrong) < 1e-7 * std::sqrt(norm));
    }
}

}  // namespace

TEST_CASE("model: gradient check of every tensor: causal sequences, and a branching tree with a past") {
  size_t tried = 0;
  for (const Config& config : {tiny(false), tiny(true), tiny_gpt2(), tiny_llama(false), tiny_llama(true), tiny_qwen()})
    for (bool with_past : {false, true})
      if (!a_sixtieth() || drawn(tried++, 4)) check_gradients(config, with_past, 0);
}

TEST_CASE("model: gradient check with dropout") {
  size_t tried = 0;
  for (const Config& config : {tiny(true), tiny_gpt2(), tiny_llama(false), tiny_qwen()})
    if (!a_sixtieth() || drawn(tried++, 4)) check_gradients(config, true, 0.2f);
}

TEST_CASE("model: the float gradient, by the twins, is the double one") {
  for (const Config& config : {tiny(true), tiny_gpt2(), tiny_llama(false), tiny_qwen()}) {
    CAPTURE(config.rotary);
    Chance chance(31);
    const Batch batch = batch_of(chance, true);
    Pool pool(2);
    Trainer<double> exact(config, pool);
    Trainer<float> fast(config, pool);
    const std::vector<float> weights = rough_weights<float>(config, 32);
    exact.set_weights(std::vector<double>(weights.begin(), weights.end()).data());
    fast.set_weights(weights.data());
    CHECK(fast.loss_and_gradient(batch) == doctest::Approx(exact.loss_and_gradient(batch)).epsilon(1e-5));
    CHECK(relative_error(fast.gradient.data(), exact.gradient.data(), exact.gradient.size()) < 1e-5);
  }
}

TEST_CASE("model: a part of a batch is its roots, as if they had been added alone") {
  Chance chance(37);
  Batch whole;
  std::vector<int> starts{0};  // the slot of each root
  Batch parts[2];              // of two roots and of three
  for (int root = 0; root < 5; root++) {
    const RandomTree tree = random_tree(chance, 3 + root, 11, 0.6);
    Batch& part = parts[root >= 2];
    const int n = 3 + root, past = 60 - root, slot = starts.back();
    whole.add_tree(tree.token.data(), tree.depth.data(), tree.end.data(), n, slot, past);
    part.add_tree(tree.token.data(), tree.depth.data(), tree.end.data(), n, slot - starts[root < 2 ? 0 : 2], past);
    for (int i = 0; i < n; i++) {
      whole.target.push_back(10 * root + i);
      part.target.push_back(10 * root + i);
    }
    starts.push_back(slot + pad64(past + n));
  }
  CHECK(whole.slots() == starts.back());
  CHECK(Batch().slots() == 0);
  for (int i : {0, 1}) {
    const Batch part = whole.part(2 * i, i ? 5 : 2);
    CHECK(part.slots() == (i ? starts[5] - starts[2] : starts[2]));
    for (auto list : {&Batch::token, &Batch::target, &Batch::end, &Batch::depth, &Batch::root, &Batch::first_row,
                      &Batch::first_slot, &Batch::past})
      CHECK(part.*list == parts[i].*list);
  }
  whole.target.clear();  // a batch that is not trained on
  CHECK(whole.part(2, 5).target.empty());
}

TEST_CASE("model: the halves of a batch have its loss and gradient, dropout included, whatever was trained before") {
  for (const Config& config : {tiny(true), tiny_gpt2(), tiny_llama(false), tiny_qwen()}) {
    CAPTURE(config.rotary);
    Chance chance(33);
    Pool pool(2);
    Trainer<double> halves(config, pool);
    const std::vector<double> weights = rough_weights<double>(config, 34);
    halves.set_weights(weights.data());
    for (int roots : {2, 3, 1, 7, 4})  // also more than before, and fewer
      for (int parts : {1, 4}) {
        CAPTURE(roots);
        CAPTURE(parts);
        const Batch batch = random_batch(chance, roots, 9, 0, 11);
        const Dropout dropout{roots % 2 * 0.2f, 3, uint32_t(roots)};
        WholeBatch whole{config};
        whole.set_weights(weights.data());
        const double loss = whole.loss_and_gradient(batch, dropout, parts);
        CHECK(halves.loss(batch, dropout) == doctest::Approx(loss).epsilon(1e-12));
        CHECK(halves.loss_and_gradient(batch, dropout, parts) == doctest::Approx(loss).epsilon(1e-12));
        CHECK(relative_error(halves.gradient.data(), whole.gradient.data(), whole.gradient.size()) < 1e-12);
      }
  }
}

namespace {

std::vector<float> reference(const SafeTensors& file, const std::string& name) {
  for (const Tensor& tensor : file.tensors)
    if (tensor.name == name) return read_tensor(file, name, tensor.shape, "the reference file");
  FAIL("the reference file lacks " << name);
  return {};
}

void check_reference(const std::string& path, bool bias) {
  const SafeTensors file = read_safetensors(path);
  Config config;
  config.n_layer = 2, config.n_head = config.n_kv_head = 2, config.n_embd = 32, config.block_size = 16;
  config.vocab_size = 23, config.bias = bias;
  const std::vector<TensorSpec> table = tensor_table(config);
  const auto flat = [&](const std::string& prefix) {
    std::vector<float> all(parameter_count(config));
    for (const TensorSpec& spec : table) {
      const std::vector<float> tensor = reference(file, prefix + spec.name);
      REQUIRE(tensor.size() == spec.size);
      std::copy(tensor.begin(), tensor.end(), all.begin() + spec.offset);
    }
    return all;
  };
  const std::vector<float> tokens = reference(file, "tokens"), targets = reference(file, "targets");
  const std::vector<int> ids(tokens.begin(), tokens.end());
  Batch batch;
  for (int b = 0; b < 3; b++) batch.add_chain(ids.data() + 16 * b, 16, 64 * b, 0);
  batch.target.assign(targets.begin(), targets.end());
  Pool pool(2);
  Trainer<float> trainer(config, pool);
  trainer.set_weights(flat("weights.").data());
  CHECK(trainer.loss_and_gradient(batch) == doctest::Approx(reference(file, "loss")[0]).epsilon(1e-5));
  const std::vector<float> gradient = flat("grads."), after = flat("after.");
  const auto compare = [&](const Array<float>& ours, const std::vector<float>& theirs) {
    for (const TensorSpec& spec : table) {
      CAPTURE(spec.name);
      CHECK(relative_error(ours.data() + spec.offset, theirs.data() + spec.offset, spec.size) <= 1e-5);
    }
  };
  compare(trainer.gradient, gradient);
  // AdamW from the stored gradient: it divides by the gradient's size, so that a tiny one's rounding would show in full
  trainer.gradient.upload(gradient.data(), gradient.size());
  Update update;
  update.learning_rate = 1e-3;
  trainer.apply(update);
  compare(trainer.weights, after);
  // a second update, by -0.5 times that gradient: in the first one the moments' decay cancels out
  std::vector<float> second(gradient.size());
  for (size_t i = 0; i < second.size(); i++) second[i] = -0.5f * gradient[i];
  trainer.gradient.upload(second.data(), second.size());
  update.iteration = 1;
  trainer.apply(update);
  for (const TensorSpec& spec : table) {
    if (std::none_of(file.tensors.begin(), file.tensors.end(),
                     [&](const Tensor& t) { return t.name == "after2." + spec.name; }))
      continue;
    const std::vector<float> theirs = reference(file, "after2." + spec.name);
    CAPTURE(spec.name);
    CHECK(relative_error(trainer.weights.data() + spec.offset, theirs.data(), spec.size) <= 1e-5);
  }
}

}  // namespace

TEST_CASE("model: loss, gradients and one AdamW update equal PyTorch's to 1e-5") {
  check_reference("tests/reference/values_nobias.safetensors", false);
  check_reference("tests/reference/values_bias.safetensors", true);
}

namespace {

std::vector<float> trained(int threads, int from, int to, std::vector<std::vector<float>>* state) {
  Config config = tiny(true);
  config.n_embd = 40;
  Pool pool(threads);
  Trainer<float> trainer(config, pool);
  trainer.set_weights(initial_weights(config, 5).data());
  if (from > 0) {
    trainer.m.upload((*state)[1].data(), trainer.m.size());
    trainer.v.upload((*state)[2].data(), trainer.v.size());
    trainer.set_weights((*state)[0].data());
  }
  for (int i = from; i < to; i++) {
    Batch batch;
    Chance chance(1000 + i);
    for (int b = 0; b < 3; b++) {
      std::vector<int> tokens(17);
      for (int& token : tokens) token = chance.below(11);
      batch.add_chain(tokens.data(), 16, 64 * b, 0);
      batch.target.insert(batch.target.end(), tokens.begin() + 1, tokens.end());
    }
    Update update;
    update.iteration = i;
    trainer.step(batch, update, Dropout{0.1f, 9, uint32_t(i), 0});
  }
  const auto host = [](const Array<float>& a) { return std::vector<float>(a.data(), a.data() + a.size()); };
  if (state) *state = {host(trainer.weights), host(trainer.m), host(trainer.v)};
  return host(trainer.weights);
}

}  // namespace

TEST_CASE("model: training gives the same bits again, on any number of threads, and in two goes") {
  const std::vector<float> once = trained(1, 0, 12, nullptr);
  CHECK(once == trained(1, 0, 12, nullptr));
  CHECK(once == trained(2, 0, 12, nullptr));
  CHECK(once == trained(3, 0, 12, nullptr));
  CHECK(once == trained(4, 0, 12, nullptr));
  std::vector<std::vector<float>> state;
  trained(2, 0, 5, &state);
  CHECK(once == trained(2, 5, 12, &state));
}

TEST_CASE("model: a step is the loss, its gradient and an update") {
  const Config config = tiny(true);
  Chance chance(35);
  const Batch batch = batch_of(chance, false);
  Pool pool(2);
  Trainer<float> whole(config, pool);
  Trainer<float> parts(config, pool);
  const std::vector<float> weights = rough_weights<float>(config, 36);
  whole.set_weights(weights.data());
  parts.set_weights(weights.data());
  for (int i = 0; i < 10; i++) {
    CAPTURE(i);
    Update update;
    update.iteration = i;
    const float loss = parts.loss_and_gradient(batch);
    parts.apply(update);
    CHECK(whole.step(batch, update) == loss);
    CHECK(memcmp(whole.weights.data(), parts.weights.data(), weights.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("model: training learns: a repeated sequence becomes certain") {
  const Config config = tiny(false);
  Pool pool(2);
  Trainer<float> trainer(config, pool);
  trainer.initialize(6);
  CHECK(std::vector<float>(trainer.weights.data(), trainer.weights.data() + trainer.weights.size()) ==
        initial_weights(config, 6));
  Batch batch;
  const int tokens[] = {1, 4, 2, 8, 5, 7, 1, 4, 2, 8, 5, 7, 1, 4, 2, 8, 5};
  batch.add_chain(tokens, 16, 0, 0);
  batch.target.assign(tokens + 1, tokens + 17);
  const float first = trainer.loss(batch);
  CHECK(first == doctest::Approx(std::log(11.0)).epsilon(0.02));
  Update update;
  update.learning_rate = 1e-2;
  for (int i = 0; i < 300; i++) update.iteration = i, trainer.step(batch, update);
  CHECK(trainer.loss(batch) < 0.05f);
}

TEST_CASE("model: the start: nanoGPT's standard deviations, another seed another start") {
  Config config;
  const std::vector<float> weights = initial_weights(config, 1), other = initial_weights(config, 2);
  CHECK(weights != other);
  for (const TensorSpec& spec : tensor_table(config)) {
    double sum = 0;
    for (size_t i = 0; i < spec.size; i++) sum += weights[spec.offset + i] * weights[spec.offset + i];
    const double std = std::sqrt(sum / spec.size);
    CAPTURE(spec.name);
    CHECK(std == doctest::Approx(spec.init_std < 0 ? 1.0 : spec.init_std).epsilon(0.05));
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Decoding

namespace {

struct Numbers {
  Dtype weights, cache;
};
constexpr Numbers kNumbers[] = {{Dtype::fp32, Dtype::fp32}, {Dtype::bf16, Dtype::fp32}, {Dtype::fp32, Dtype::bf16},
                                {Dtype::bf16, Dtype::bf16}, {Dtype::f16, Dtype::fp32},  {Dtype::f16, Dtype::bf16}};

struct Decoder {
  Config config;
  std::vector<float> weights;
  Target target;
  Decoder(Numbers numbers, int threads, int n_embd = 48, bool llama = false)
      : config(sizes(n_embd, llama)),
        weights(rough_weights<float>(config, 41)),
        target(config, weights.data(), numbers.weights, false, threads, 100, numbers.cache) {}
  static Config sizes(int n_embd, bool llama) {
    Config c;
    c.n_layer = 2, c.n_head = c.n_kv_head = 3, c.n_embd = n_embd, c.block_size = 64, c.vocab_size = 37;
    if (!llama) return c;
    c.n_head = 6, c.head_dim = 64, c.n_inner = 50, c.rotary = c.swiglu = true, c.center = c.tied = false;
    return c;
  }
  std::vector<float> row(int i) const { return {target.logits(i), target.logits(i) + config.vocab_size}; }
  // Decodes tokens one at a time from an empty cache; returns the last one's logits.
  std::vector<float> one_by_one(const std::vector<int>& tokens) {
    target.prefill(nullptr, 0);
    const int zero = 0, one = 1;
    for (int token : tokens) {
      target.forward(&token, &zero, &one, 1);
      target.keep(&zero, 1);
    }
    return row(0);
  }
};

}  // namespace

TEST_CASE("model: every node of a tree gets the bits of its path decoded one token at a time") {
  for (Numbers numbers : kNumbers)
    for (int threads : {1, 2})
      for (int number = 0; number < 8; number++) {
        const int round = number % 4;
        const bool llama = number >= 4;
        CAPTURE(llama);
        CAPTURE(int(numbers.weights));
        CAPTURE(int(numbers.cache));
        CAPTURE(threads);
        CAPTURE(round);
        Decoder tree_side(numbers, threads, round % 2 ? 48 : 33, llama),
            path_side(numbers, 1, round % 2 ? 48 : 33, llama);
        Chance chance(50 + round);
        std::vector<int> text(1 + chance.below(40));
        for (int& token : text) token = chance.below(37);
        const int sizes[] = {1, 8, 30, 77};
        RandomTree tree = random_tree(chance, sizes[round], 37, 0.95);
        int deepest = *std::max_element(tree.depth.begin(), tree.depth.end());
        while (int(text.size()) + deepest >= 64) text.pop_back();
        tree_side.target.prefill(text.data(), int(text.size()));
        tree_side.target.forward(tree.token.data(), tree.depth.data(), tree.end.data(), tree.size());
        for (int i = 0; i < tree.size(); i += 1 + tree.size() / 12) {
          CAPTURE(i);
          std::vector<int> path;
          for (int j = i; j >= 0; j = tree.parent[j]) path.insert(path.begin(), tree.token[j]);
          path.insert(path.begin(), text.begin(), text.end());
          const std::vector<float> expected = path_side.one_by_one(path), got = tree_side.row(i);
          CHECK(memcmp(expected.data(), got.data(), got.size() * sizeof(float)) == 0);
        }
      }
}

TEST_CASE("model: a tree that its target has no room for is refused, before a row of it is written") {
  const Config config = tiny(true);
  const std::vector<double> exact = rough_weights<double>(config, 23);
  const std::vector<float> weights(exact.begin(), exact.end());
  Target target(config, weights.data(), Dtype::fp32, false, 1, 5, Dtype::fp32, 2);
  std::vector<int> token(size_t(target.most_rows()) + 1), depth = token, end = token;
  std::iota(depth.begin(), depth.end(), 0);
  std::fill(end.begin(), end.end(), int(end.size()));
  const auto add = [&](int rows) { target.add_tree(token.data(), depth.data(), end.data(), rows); };
  target.clear_rows();
  CHECK_THROWS_AS(add(target.most_rows() + 1), std::length_error);
  add(target.most_rows());
  target.sit(1);
  CHECK_THROWS_AS(add(target.all_rows() - target.most_rows() + 1), std::length_error);
  add(target.all_rows() - target.most_rows());
}

TEST_CASE("features: the residual stream after those layers, for every row of a tree that of its path") {
  CHECK(feature_layers(1) == std::vector<int>{1, 1, 1});
  CHECK(feature_layers(4) == std::vector<int>{1, 2, 4});
  CHECK(feature_layers(6) == std::vector<int>{2, 3, 6});
  CHECK(feature_layers(9) == std::vector<int>{3, 5, 9});
  Config config = tiny(true);
  config.n_layer = 5;
  const int C = config.n_embd, W = kFeatures * C;
  const std::vector<double> exact = rough_weights<double>(config, 23);
  const std::vector<float> weights(exact.begin(), exact.end());
  Chance chance(83);
  for (int threads : {1, 3}) {
    CAPTURE(threads);
    Target target(config, weights.data(), Dtype::fp32, false, threads, 12),
        chain(config, weights.data(), Dtype::fp32, false, 1, 12);
    WholeBatch trainer{config};
    trainer.set_weights(exact.data());
    const RandomTree tree = random_tree(chance, 12, 11, 0.7);
    const auto run = [&](Target& which, int layers) {
      which.prefill(tree.token.data(), 2);
      which.clear_rows();
      which.add_tree(tree.token.data(), tree.depth.data(), tree.end.data(), 12);
      which.run_rows(12, layers);
    };
    run(target, 0);
    Features features(target), chains(chain);
    CHECK(chains.row(0) == nullptr);  // of no forward yet
    run(target, 4);
    CHECK(features.row(0) == nullptr);
    run(target, 0);
    REQUIRE(features.row(0));

    for (int row = 0; row < 12; row++) {
      CAPTURE(row);
      std::vector<int> path;  // the prefilled tokens, then the way from the root
      for (int j = row; j >= 0; j = tree.parent[j]) path.insert(path.begin(), tree.token[j]);
      path.insert(path.begin(), tree.token.begin(), tree.token.begin() + 2);
      const int n = int(path.size()), zero = 0, one = 1;
      chain.prefill(path.data(), n - 1);
      chain.forward(&path.back(), &zero, &one, 1);
      CHECK(std::equal(chains.row(0), chains.row(0) + W, features.row(row)));
      Batch batch;
      batch.add_chain(path.data(), n, 0, 0);
      batch.target.assign(size_t(n), 0);
      trainer.loss(batch);
      for (int i = 0; i < kFeatures; i++) {
        const int layers = feature_layers(5)[size_t(i)];
        const double* const stream = trainer.a->x.at(layers, n - 1);
        CHECK(relative_error(features.row(row) + i * C, stream, size_t(C)) < 1e-5);
      }
    }
    Features others(target, {5, 2});                                    // other layers, in another order
    const std::vector<float> before(chains.row(0), chains.row(0) + W);  // of row 11: layers 2, 3, 5
    run(target, 0);
    CHECK(std::equal(before.begin() + 2 * C, before.end(), others.row(11)));
    CHECK(std::equal(before.begin(), before.begin() + C, others.row(11) + C));
    CHECK(std::equal(chains.row(0), chains.row(0) + W, features.row(11)));
    target.forget();
    target.prefill(tree.token.data(), 2);
    CHECK(others.row(0) == nullptr);
  }
}

TEST_CASE("model: the cache after keep is that of plain decoding, bit for bit, and so is that of a prefill") {
  for (int number = 0; number < 8; number++) {
    const Numbers numbers = kNumbers[number % 4];
    const bool llama = number >= 4;
    CAPTURE(llama);
    Decoder tree_side(numbers, 2, 48, llama), plain(numbers, 1, 48, llama);
    Chance chance(61);
    std::vector<int> text = {3, 1, 4, 1, 5};
    tree_side.target.prefill(text.data(), 5);
    for (int turn = 0; turn < 6; turn++) {
      const RandomTree tree = random_tree(chance, 12, 37, 0.7);
      tree_side.target.forward(tree.token.data(), tree.depth.data(), tree.end.data(), tree.size());
      std::vector<int> rows;  // the path to some node: gaps wherever it branches
      for (int j = chance.below(12); j >= 0; j = tree.parent[j]) rows.insert(rows.begin(), j);
      for (int row : rows) text.push_back(tree.token[row]);
      tree_side.target.keep(rows.data(), int(rows.size()));
      CHECK(tree_side.target.past() == int(text.size()));
    }
    plain.one_by_one(text);
    Decoder prefilled(numbers, 2, 48, llama);
    prefilled.target.prefill(text.data(), int(text.size()));
    for (int position = 0; position < int(text.size()); position++)
      for (bool values : {false, true}) {
        CAPTURE(position);
        CAPTURE(values);
        CHECK(cached(tree_side.target, position, values) == cached(plain.target, position, values));
        CHECK(cached(prefilled.target, position, values) == cached(plain.target, position, values));
      }
  }
}

TEST_CASE("model: a prefill runs what the cache does not begin with, and gives the bits of one that runs all") {
  for (bool llama : {false, true}) {
    Decoder goes_on({Dtype::fp32, Dtype::fp32}, 2, 48, llama), fresh({Dtype::fp32, Dtype::fp32}, 1, 48, llama);
    const int token = 9, zero = 0, one = 1;
    const auto same_next = [&](std::vector<int> text, int runs) {
      CHECK(goes_on.target.prefill(text.data(), int(text.size())) == runs);
      fresh.target.forget();
      CHECK(fresh.target.prefill(text.data(), int(text.size())) == int(text.size()));
      for (Target* target : {&goes_on.target, &fresh.target}) target->forward(&token, &zero, &one, 1);
      const std::vector<float> expected = fresh.row(0), got = goes_on.row(0);
      CHECK(memcmp(expected.data(), got.data(), got.size() * sizeof(float)) == 0);
      CHECK(goes_on.target.past() == int(text.size()));
    };
    same_next({3, 1, 4, 1, 5}, 5);
    goes_on.target.keep(&zero, 1);
    same_next({3, 1, 4, 1, 5, 9, 2, 6}, 2);  // 9 was kept
    same_next({3, 1, 4, 1, 5, 9, 2, 6}, 0);
    same_next({3, 1, 4, 8, 5, 9, 2}, 4);
    same_next({3, 1}, 0);
    same_next({3, 1, 4, 8, 5}, 3);  // a forward has written over 4
    // Rows on two branches: those that are kept, and not the others.
    const int tokens[] = {7, 8, 6, 5}, depth[] = {0, 1, 1, 2}, end[] = {4, 2, 4, 4}, rows[] = {0, 2, 3};
    goes_on.target.forward(tokens, depth, end, 4);
    goes_on.target.keep(rows, 3);
    same_next({3, 1, 4, 8, 5, 7, 6, 5}, 0);
    // Rows of the first layer alone are nobody's cache; and what it wrote over is not either.
    goes_on.target.rewind(4);
    goes_on.target.clear_rows();
    goes_on.target.add_tree(&token, &zero, &one, 1);
    goes_on.target.run_rows(1, 1);
    goes_on.target.keep(&zero, 1);
    same_next({3, 1, 4, 8, 9, 7}, 2);
  }
}

TEST_CASE("model: a prefill of more rows than a forward takes has the bits of single forwards") {
  Config config = Decoder::sizes(16, true);
  config.block_size = 600;
  const std::vector<float> weights = rough_weights<float>(config, 3);
  Target target(config, weights.data(), Dtype::fp32, false, 1, 8),
      single(config, weights.data(), Dtype::fp32, false, 1, 8);
  CHECK(target.most_rows() < 300);
  std::vector<int> text;
  Chance chance(5);
  for (int i = 0; i < 590; i++) text.push_back(chance.below(config.vocab_size));
  const int zero = 0, one = 1;
  target.prefill(text.data(), 589);
  target.forward(&text.back(), &zero, &one, 1);
  for (int token : text) {
    single.forward(&token, &zero, &one, 1);
    single.keep(&zero, 1);
  }
  CHECK(memcmp(target.logits(0), single.logits(0), size_t(config.vocab_size) * sizeof(float)) == 0);
}

TEST_CASE("model: weights of 16 bits, or a cache of bf16, are the rounded ones, not others") {
  Decoder fp32(kNumbers[0], 1);
  const std::vector<int> text = {1, 2, 3, 4, 5, 6};
  const std::vector<float> exact = fp32.one_by_one(text);
  for (Numbers numbers : {kNumbers[1], kNumbers[2], kNumbers[3], kNumbers[4]}) {
    Decoder rounded(numbers, 1);
    const std::vector<float> got = rounded.one_by_one(text);
    CHECK(got != exact);
    CHECK(relative_error(got.data(), exact.data(), exact.size()) < 0.05);
  }
  CHECK(2 * Decoder(kNumbers[2], 1).target.cache_bytes() == fp32.target.cache_bytes());
}
