// tests/forest/test_forest.cpp: each text of a forest has the bytes that it has alone; the one heap takes the best
// nodes.
//
// Forests are drawn: models, types of weights, seats, texts of any length that arrive at any time, drafters, shapes,
// temperatures. The draws are new each time; NANOSPEC_SEED repeats them. `make prove` draws more of them.
#include "forest/forest.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "drafters/adapt.h"
#include "drafters/draft_model.h"
#include "drafters/hydra.h"
#include "drafters/medusa.h"
#include "drafters/ngram.h"
#include "drafters/parallel.h"
#include "target.h"
#include "tests/mock.h"
#include "tests/random.h"
#include "tests/tenth.h"

using namespace nanospec;

namespace {

// ---------------------------------------------------------------------------------------------------------------
// Forests, drawn

Config drawn_config(Chance& chance) {
  Config config = small_config(1 + chance.below(3), 2 * (8 + chance.below(25)));
  if (chance.below(2)) return config;
  config.n_kv_head = 1 + chance.below(2), config.n_inner = 48;  // of 4 heads
  config.rotary = config.swiglu = true, config.center = config.tied = false;
  return config;
}

// A text of a forest, and the same text alone.
struct Wanted {
  std::vector<int> prompt, alone;
  Decoding decoding;
  int64_t forwards = -1, drafted = -1;  // with the forest's drafter and shape, where these do not look at the clock
};

Decoding drawn_decoding(Chance& chance) {
  Decoding decoding;
  decoding.sampling.temperature = float(chance.below(4)) / 2;
  decoding.sampling.seed = uint64_t(chance.below(5));
  decoding.sampling.top_k = chance.below(3) ? 0 : 1 + chance.below(kSmallVocab);
  if (chance.below(3) == 0) {
    decoding.sampling.repetition_penalty = float(1 + chance.below(4)) / 2;
    decoding.sampling.presence_penalty = float(chance.below(3)) / 2 - 0.5f;
    decoding.sampling.frequency_penalty = float(chance.below(3)) / 8;
  }
  decoding.max_new_tokens = chance.below(100);
  return decoding;
}

template <class Sizes>
std::vector<float> loud(const Sizes& table, Chance& chance) {
  std::vector<float> weights(numbers_of(table));
  chance.fill(weights.data(), weights.size(), 1);
  return weights;
}
std::unique_ptr<Drafter> drawn_medusa(Chance& chance, const Target& target, const float* weights) {
  const int rank = chance.below(4) - 1;  // -1: kOwnProjection
  const MedusaSizes sizes = {1 + chance.below(4), rank, target.config().n_embd, target.vocab_size(),
                             chance.below(2) > 0};
  const MedusaHeads heads = {sizes, loud(medusa_table(sizes), chance)};
  return std::make_unique<Medusa>(heads, TargetEnds<float>(target.config(), weights));
}
std::unique_ptr<Drafter> drawn_hydra(Chance& chance, const Target& target) {
  const int medusa = chance.below(2) * chance.below(5);  // heads, each of a depth
  HydraFile file = {
      {target.config().n_embd, 1 + chance.below(40), 1 + chance.below(target.vocab_size()), medusa}, {}, {}};
  file.weights = loud(hydra_table(file.sizes), chance);
  for (int i = 0; i < file.sizes.tokens; i++) file.token.push_back(target.vocab_size() - 1 - i);
  return std::make_unique<Hydra>(std::make_shared<HydraHeads>(file, target), target.vocab_size());
}
std::unique_ptr<Drafter> drawn_parallel(Chance& chance, Target& target) {
  ParallelSizes s;
  s.n_layer = 1 + chance.below(2), s.n_head = 2, s.n_kv_head = 1 + chance.below(2), s.n_embd = target.config().n_embd;
  s.vocab_size = target.vocab_size(), s.ahead = 1 + chance.below(5), s.sequential = chance.below(2) > 0;
  if (!s.sequential && chance.below(2) > 0) s.tokens = 1 + chance.below(s.vocab_size), s.window = 2 + chance.below(30);
  ParallelFile file = {s, loud(parallel_table(s), chance), {}};
  for (int i = 0; i < s.tokens; i++) file.token.push_back(s.vocab_size - 1 - i);
  const auto streams = std::make_shared<Streams>(file, target, s.sequential ? target.most_rows() : kMostAhead);
  if (s.sequential) return std::make_unique<Sequential>(streams);
  return std::make_unique<Parallel>(streams);
}

// What drafts in a forest: one of these, for each seat anew. weights: the target's. small: a model that may draft, with
// as many seats.
std::unique_ptr<Drafter> drawn_drafter(Chance& chance, Target& target, const float* weights,
                                       const std::shared_ptr<Target>& small, const std::vector<int>& read) {
  const int vocab = target.vocab_size();
  std::vector<std::unique_ptr<Drafter>> parts;
  switch (chance.below(13)) {
    case 0:
      return nullptr;
    case 1:
      return std::make_unique<Bigram>(bigram_table(read, size_t(vocab)), vocab);
    case 2:
      return std::make_unique<Ngram>(interpolated(count_ngrams(read, vocab), 3, vocab));
    case 3:
      return std::make_unique<Suffix>(vocab);
    case 4:
      return std::make_unique<Recycle>(vocab);
    case 5:
      if (target.config().n_layer > 1) return std::make_unique<FirstLayers>(target, target.config().n_layer - 1);
      return std::make_unique<RandomLogits>(vocab);
    case 6:
      return std::make_unique<SmallModel>(small);
    case 7:
      return drawn_medusa(chance, target, weights);
    case 8:
      return drawn_parallel(chance, target);
    case 9:
      return drawn_hydra(chance, target);
    case 10:
      parts.push_back(std::make_unique<Suffix>(vocab));
      parts.push_back(drawn_hydra(chance, target));
      return std::make_unique<Union>(std::move(parts));
    case 11:
      parts.push_back(drawn_medusa(chance, target, weights));
      parts.push_back(std::make_unique<SmallModel>(small));
      return std::make_unique<Union>(std::move(parts));
    default:
      parts.push_back(std::make_unique<Suffix>(vocab));
      parts.push_back(std::make_unique<Bigram>(bigram_table(read, size_t(vocab)), vocab));
      return std::make_unique<Union>(std::move(parts));
  }
}

int draws() { return a_sixtieth() ? 6 : a_tenth() ? 25 : 600; }

// Of all forests.
struct Outcome {
  int texts = 0, different = 0;
  double tokens = 0, forwards = 0;
};
// Decodes these texts side by side, and holds each to itself alone. first: the drafter of the first seat, or null.
void run_forest(Chance& chance, Target& target, Drafter* first, const Shape& shape, Cost* cost,
                std::vector<Wanted>& all, Outcome& outcome) {
  std::vector<std::unique_ptr<Drafter>> drafters;
  for (int seat = 0; seat < target.seats(); seat++) drafters.push_back(first ? first->another(seat) : nullptr);
  size_t begun = 0;
  int running = 0;
  std::set<int> taken;
  const auto next = [&](int seat) -> std::unique_ptr<Job> {
    CHECK(seat >= 0);
    CHECK(seat < target.seats());
    if (begun == all.size() || (running > 0 && chance.below(3))) return nullptr;  // it arrives later
    Wanted& its = all[begun++];
    auto job = std::make_unique<Job>();
    job->drafter = drafters[size_t(seat)].get();
    job->settings = its.decoding;
    job->settings.shape = shape;
    job->tokens = its.prompt;
    job->on_token = [](int) { return true; };
    CHECK(taken.insert(seat).second);
    job->on_end = [&, seat, tokens = &job->tokens](const Stats& stats) {
      running--;
      taken.erase(seat);
      outcome.texts++;
      if (*tokens != its.alone) outcome.different++;
      CHECK(*tokens == its.alone);
      if (its.forwards >= 0) {
        CHECK(stats.target_forwards == its.forwards);
        CHECK(stats.drafted_nodes == its.drafted);
      }
      outcome.tokens += double(stats.tokens);
      outcome.forwards += double(stats.target_forwards);
    };
    running++;
    return job;
  };
  generate_forest(target, shape, Rule::kMatch, cost, next);
  CHECK(begun == all.size());
  CHECK(taken.empty());
}

// ---------------------------------------------------------------------------------------------------------------
// Trees whose chances are made up

// The chances of up to three candidates after a node: a function of its tree and of its path's ranks. Their sum is at
// most 1, best first.
std::vector<float> made_up_chances(uint64_t tree, uint64_t path) {
  std::vector<float> chances;
  float left = 1;
  for (uint32_t rank = 0; rank < 3; rank++) {
    const float last = rank == 0 ? 1 : chances.back();
    chances.push_back(std::min(last, left * float(uniform(random_bits(tree, rank, 71, path, 0)))));
    left -= chances.back();
  }
  return chances;
}
uint64_t path_of(const Growth& growth, int node) {
  return node == 0 ? 0 : 4 * path_of(growth, growth.parent[node]) + uint64_t(growth.token[node]) + 1;
}

// The reach of every node down to that depth, of all trees.
void list_reaches(uint64_t tree, uint64_t path, float reach, int depth, std::vector<float>& all) {
  const std::vector<float> chances = made_up_chances(tree, path);
  for (uint64_t rank = 0; depth > 0 && rank < 3; rank++) {
    all.push_back(reach * chances[rank]);
    list_reaches(tree, 4 * path + rank + 1, reach * chances[rank], depth - 1, all);
  }
}

}  // namespace

TEST_CASE("forest: the one heap takes the likeliest nodes of all trees, and as many as pay") {
  Chance chance(sweep_seed() + 2);
  for (int trial = 0; trial < 200; trial++) {
    const int roots = 1 + chance.below(4), depth = 1 + chance.below(4), most = roots - 1 + chance.below(30);
    const double first = 1 + chance.number(), each = trial % 3 ? chance.number() / 3 : 0;
    std::vector<double> seconds(1, first);
    for (int n = 1; n <= most; n++) seconds.push_back(first + each * n);
    const Cost cost(seconds);

    std::vector<float> reaches;  // of every node that there may be
    std::vector<Growth> growths(static_cast<size_t>(roots));
    Limits limits;
    limits.depth = depth;
    const uint64_t seed = 100 * uint64_t(trial);
    const auto expand = [&](size_t tree) {
      return [&, tree](int node, Candidate* candidates) {
        const std::vector<float> chances = made_up_chances(seed + tree, path_of(growths[tree], node));
        for (int rank = 0; rank < 3; rank++) candidates[rank] = {rank, chances[size_t(rank)]};
        return 3;
      };
    };
    std::vector<LikeliestTree<decltype(expand(0))>> trees;
    for (size_t tree = 0; tree < growths.size(); tree++) {
      list_reaches(seed + tree, 0, 1, depth, reaches);
      growths[tree].start(0);
      trees.push_back({growths[tree], limits, expand(tree)});
    }
    grow_likeliest(cost, 1000, trees);

    std::sort(reaches.begin(), reaches.end(), std::greater<float>());
    double tokens = roots, best = tokens / cost.seconds(roots - 1);
    for (size_t n = 0; n < reaches.size() && roots + int(n) <= most; n++) {
      tokens += double(reaches[n]);
      best = std::max(best, tokens / cost.seconds(roots + int(n)));
    }
    double chosen = 0;
    int nodes = -1;
    for (const Growth& growth : growths) {
      nodes += growth.size();
      for (float reach : growth.reach) chosen += double(reach);
    }
    CAPTURE(trial);
    CHECK(nodes <= most);
    CHECK(chosen / cost.seconds(nodes) == doctest::Approx(best).epsilon(1e-6));
  }
}

TEST_CASE("forest: every text has the bytes that it has alone, whoever drafts it, beside whom, from when on") {
  Chance chance(sweep_seed() + 1);
  Outcome outcome;
  for (int trial = 0; trial < draws(); trial++) {
    const Config config = drawn_config(chance);
    const std::vector<float> weights = loud_weights(config, uint64_t(trial) + 1);
    const Dtype dtypes[] = {Dtype::fp32, Dtype::bf16, Dtype::f16,  Dtype::q8_0, Dtype::q4_0, Dtype::q4_1,
                            Dtype::q5_0, Dtype::q3_k, Dtype::q4_k, Dtype::q5_k, Dtype::q6_k, Dtype::q_any};
    const Dtype dtype = dtypes[chance.below(12)], cache = chance.below(2) ? Dtype::fp32 : Dtype::bf16;
    const int threads = 1 + chance.below(2), seats = 1 + chance.below(chance.below(5) ? 8 : 32);
    Target single(config, weights.data(), dtype, false, threads, 65, cache);
    std::vector<Wanted> all(static_cast<size_t>(1 + chance.below(2 * seats)));
    std::vector<int> read = {0};
    for (Wanted& its : all) {
      for (int i = chance.below(2 * config.block_size); i >= 0; i--) its.prompt.push_back(chance.below(kSmallVocab));
      its.decoding = drawn_decoding(chance);
      its.alone = its.prompt;
      generate(single, nullptr, its.decoding, its.alone, [](int) { return true; });
      read.insert(read.end(), its.alone.begin(), its.alone.end());
    }
    Target target(config, weights.data(), dtype, false, threads, 65, cache, seats);
    const auto small = std::make_shared<Target>(config, weights.data(), Dtype::q8_0, target.pool(), 65, cache, seats);
    const uint64_t kind = chance.below(1 << 20);
    Chance one(kind), other(kind);
    const std::unique_ptr<Drafter> drafter = drawn_drafter(one, target, weights.data(), small, read);
    const Shape shape = ready_shape(kAllShapes[chance.below(int(std::size(kAllShapes)))], 64);
    const bool learns = dynamic_cast<Suffix*>(drafter.get()) || dynamic_cast<Recycle*>(drafter.get()) ||
                        dynamic_cast<Union*>(drafter.get());  // from text to text
    if (drafter && !learns && shape.kind != Shape::kAuto) {
      const auto one_small = std::make_shared<Target>(config, weights.data(), Dtype::q8_0, single.pool(), 65, cache);
      const std::unique_ptr<Drafter> its_own = drawn_drafter(other, single, weights.data(), one_small, read);
      for (Wanted& its : all) {
        std::vector<int> text = its.prompt;
        its.decoding.shape = shape;
        const Stats stats = generate(single, its_own->another(0).get(), its.decoding, text, [](int) { return true; });
        its.forwards = stats.target_forwards, its.drafted = stats.drafted_nodes;
      }
    }
    Cost cost(std::vector<double>(size_t(64 * seats) + 1, 1));  // a row costs nothing: all trees grow
    CAPTURE(trial);
    CAPTURE(shape.name);
    CAPTURE(kind);
    CAPTURE(seats);
    run_forest(chance, target, drafter.get(), shape, &cost, all, outcome);
  }
  CHECK(outcome.different == 0);
  CHECK(outcome.texts >= (a_tenth() ? draws() : 3000));
  CHECK(outcome.tokens > 1.05 * outcome.forwards);  // a sweep that accepts nothing proves nothing
}

namespace {

// A model that counts its forwards, and drafts after the root alone.
struct CountedModel : Target {
  using Target::Target;
  int forwards = 0;
  void run_rows(int with_logits, int layers) {
    forwards++;
    Target::run_rows(with_logits, layers);
  }
};
struct CountedDrafter : ModelDrafter<CountedModel> {
  using ModelDrafter::ModelDrafter;
  std::unique_ptr<Drafter> another(int seat) const override {
    return std::make_unique<CountedDrafter>(model_, 0, seat);
  }
  void begin(const int*, int) override { forget(); }
  void committed(const Commit&) override { forget(); }
  void run_root(int root) override {
    base_ = 0;
    model_.rewind(0);
    run_text(&root, 1);
  }
};

}  // namespace

TEST_CASE("forest: a drafter's model runs once for all texts, whatever the shape") {
  const Config config = small_config(2, 64);
  const std::vector<float> weights = loud_weights(config, 3);
  for (const std::string shape : {"chain:3", "tree:2x2", "best-first", "beam:3", "entropy-stop:depth=4", "auto"}) {
    CAPTURE(shape);
    std::vector<int> forwards;
    for (int seats : {1, 5}) {  // the same text on each, so that all are at one place
      CAPTURE(seats);
      Target target(config, weights.data(), Dtype::fp32, false, 1, 9, Dtype::fp32, seats);
      CountedModel model(config, weights.data(), Dtype::fp32, false, 1, 9, Dtype::fp32, seats);
      CountedDrafter drafter(model, 0);
      std::vector<std::unique_ptr<Drafter>> drafters;
      Cost cost(std::vector<double>(size_t(9 * seats), 1));
      int begun = 0;
      generate_forest(target, ready_shape(shape, 8), Rule::kMatch, &cost, [&](int seat) -> std::unique_ptr<Job> {
        if (begun == seats) return nullptr;
        begun++;
        drafters.push_back(drafter.another(seat));
        auto job = std::make_unique<Job>();
        job->drafter = drafters.back().get();
        job->settings.shape = ready_shape(shape, 8);
        job->settings.max_new_tokens = 40;
        job->tokens = {1, 2, 3};
        job->on_token = [](int) { return true; };
        job->on_end = [](const Stats&) {};
        return job;
      });
      forwards.push_back(model.forwards);
    }
    CHECK(forwards[0] > 20);
    if (shape != "auto") CHECK(forwards[1] == forwards[0]);
    else CHECK(forwards[1] < 2 * forwards[0]);  // which also asks the clock
  }
}

TEST_CASE("forest: a long prompt that arrives delays nobody: it is cached in pieces, beside the texts that run") {
  const Config config = small_config(2, 512);
  const std::vector<float> weights = loud_weights(config, 3);
  Target target(config, weights.data(), Dtype::fp32, false, 1, 1 + kPieceRows, Dtype::fp32, 3);
  const int prompt = 400;
  int begun = 0, beside = 0;  // tokens of the others between the arrival and the first token of the long text
  bool waits = false;
  const auto next = [&](int) -> std::unique_ptr<Job> {
    if (begun == 3 || (begun == 2 && beside < 20)) return nullptr;
    auto job = std::make_unique<Job>();
    const bool is_long = begun++ == 2;
    if (is_long) waits = true, beside = 0;
    job->drafter = nullptr;
    job->tokens.assign(is_long ? size_t(prompt) : 2, 1);
    job->settings.max_new_tokens = is_long ? 1 : 100;
    job->on_token = [&, is_long](int) {
      if (is_long) waits = false;
      else beside += begun < 3 || waits;
      return true;
    };
    job->on_end = [](const Stats&) {};
    return job;
  };
  generate_forest(target, Shape(), Rule::kMatch, nullptr, next);
  CHECK(begun == 3);
  CHECK(beside == 2 * ((prompt - 1 + kPieceRows - 1) / kPieceRows + 1));  // and the forward of its root
}

TEST_CASE("forest: after forget() no seat has anything cached") {
  const Config config = small_config(1, 32);
  Target target(config, loud_weights(config, 3).data(), Dtype::fp32, false, 1, 9, Dtype::fp32, 2);
  const std::vector<int> tokens = {1, 2, 3, 4};
  const auto run = [&](int seat) {  // how many of the tokens the seat's prefill ran
    target.sit(seat);
    return target.prefill(tokens.data(), 4);
  };
  for (int seat : {0, 1}) CHECK(run(seat) == 4);
  for (int seat : {0, 1}) CHECK(run(seat) == 0);
  target.forget();
  for (int seat : {0, 1}) CHECK(run(seat) == 4);
}
