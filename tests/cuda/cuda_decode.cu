// tests/cuda/cuda_decode.cu: decoding on the GPU: its kernels against sample.h, draft.h and tree.h, bit for bit;
// then whole iterations against the host's loop on the same device; then the promise: the text of plain decoding.
#include "tests/cuda/cuda_test.h"  // first: it brings the emulator

#include "decode.h"
#include "drafters/draft_model.h"
#include "drafters/logits.cpp"  // these two are in the library, but under another namespace
#include "forest/forest.h"
#include "growth/shapes.cpp"
#include "target.h"
#include "tests/error_of.h"
#include "tests/mock.h"
#include "tests/random.h"

namespace nanospec {
using Ints = std::vector<int>;

namespace {

// ---------------------------------------------------------------------------------------------------------------
// Rows of logits and settings that have gone wrong somewhere, or could

std::vector<float> random_logits(Chance& chance, int vocab, int kind) {
  const float inf = Format<float>::kInfinity, nan = Format<float>::kNaN;
  std::vector<float> row(vocab);
  for (float& x : row) x = float(chance.number() * 20 - 10);
  const auto some = [&](float value) {
    for (int i = 0; i < 1 + vocab / 3; i++) row[chance.below(vocab)] = value;
  };
  switch (kind) {
    case 1:  // ties
      for (float& x : row) x = float(chance.below(4));
      break;
    case 2:
      some(nan);
      break;
    case 3:
      row.assign(vocab, nan);
      break;
    case 4:  // both zeros
      for (float& x : row) x = chance.below(2) ? 0.0f : -0.0f;
      break;
    case 5:
      some(-inf);
      break;
    case 6:
      some(inf);
      break;
    case 7:
      for (float& x : row) x *= 1e30f;
      break;
    case 8:  // subnormal differences, and below what exp can tell
      for (float& x : row) x *= 1e-41f;
      break;
  }
  return row;
}
constexpr int kKinds = 9;

std::vector<Sampling> settings(int vocab) {
  std::vector<Sampling> all;
  for (float temperature : {0.0f, 0.7f, 1.0f, 3.0f})
    for (int top_k : {0, 1, 5, vocab - 1, vocab + 3})
      for (float top_p : {1.0f, 0.9f, 0.3f, 1e-6f}) {
        Sampling s;
        s.temperature = temperature, s.top_k = std::max(0, top_k), s.top_p = top_p;
        s.min_p = all.size() % 3 == 1 ? 0.2f : 0;
        s.seed = 0x123456789abcdefull + all.size(), s.sequence = uint32_t(all.size());
        all.push_back(s);
      }
  return all;
}

Array<State> state_on_device(const Sampling& sampling, int64_t index, int root = 0, int past = 0) {
  State state;
  state.sampling = sampling, state.index = index, state.root = root, state.past = past;
  state.scale = sharpness(sampling, sampling.temperature > 0);
  return on_device(std::vector<State>{state});
}

Tree tree_of(const RandomTree& tree) { return Tree{tree.token, tree.parent, tree.depth, tree.end, {}}; }

template <int kThreads>
__global__ void group_kernel(const float* x, int n, float* out) {
  const Block<kThreads> block;
  const float sum = block.template sum<float>(n, [=](int i) { return x[i]; });
  const double wide = block.template sum<double>(n, [=](int i) { return double(x[i]) / 3; });
  const float top = block.template largest<float>(n, [=](int i) { return x[i]; });
  const float again = block.template sum<float>(n, [=](int i) { return x[i] * top; });
  const int high = block.count(n, [=](int i) { return x[i] > 0; });
  block.map(out + 5, n, [=](int i) { return x[i]; });
  block.map([=](int i, float y) { out[5 + i] = y; }, n, [=](int i) { return out[5 + i] - sum; });
  block.each(1, [=](int) { out[4] = float(high); });
  if (threadIdx.x == 0) out[0] = sum, out[1] = float(wide), out[2] = top, out[3] = again;
}

}  // namespace

TEST_CASE(ON "a block adds and compares as a core does") {
  Chance chance(1);
  for (int n : {1, 5, 31, 32, 33, 127, 128, 129, 300, 1003}) {
    std::vector<float> x(n);
    chance.fill(x.data(), x.size(), 10);
    const Array<float> there = on_device(x);
    const auto run = [&](auto kernel, int threads) {
      return in_every_order([&] {
        Array<float> out(5 + n, true);
        start(kernel, 1, threads, there.data(), n, out.data());
        return to_host(out);
      });
    };
    const Solo solo;
    const float* p = x.data();
    std::vector<float> expected(5 + n);
    const float sum = expected[0] = solo.sum<float>(n, [=](int i) { return p[i]; });
    expected[1] = float(solo.sum<double>(n, [=](int i) { return double(p[i]) / 3; }));
    const float top = expected[2] = solo.largest<float>(n, [=](int i) { return p[i]; });
    expected[3] = solo.sum<float>(n, [=](int i) { return p[i] * top; });
    expected[4] = float(solo.count(n, [=](int i) { return p[i] > 0; }));
    for (int i = 0; i < n; i++) expected[5 + i] = x[i] - sum;
    CHECK(same_bits(run(group_kernel<128>, 128), expected));
    CHECK(same_bits(run(group_kernel<512>, 512), expected));
  }
}

TEST_CASE(ON "the picks and thresholds of equal logits are the CPU's") {
  Chance chance(2);
  for (int vocab : {1, 2, 37, 65, 129, 1003, 2100}) {
    const int rows = vocab > 2000 ? 3 : kKinds, stride = vocab + 3, parts = sample_parts(vocab);
    std::vector<float> logits(size_t(rows) * stride, Format<float>::kNaN);
    Ints depth(rows);
    for (int row = 0; row < rows; row++) {
      const std::vector<float> one = random_logits(chance, vocab, row);
      std::copy(one.begin(), one.end(), logits.begin() + row * stride);
      depth[row] = chance.below(9);
    }
    const Array<float> there = on_device(logits);
    const Array<int> depth_there = on_device(depth);
    size_t tried = size_t(vocab) * 1000;
    for (const Sampling& sampling : settings(vocab)) {
      if (!drawn(tried++, vocab > 2000 ? 37 : vocab > 100 || a_tenth() ? 11 : 3)) continue;
      const int64_t index = chance.below(2) ? 17 : (int64_t(5) << 32) + 3;
      const Array<State> state = state_on_device(sampling, index);
      Array<float> least(rows, true);
      Array<int64_t> best(size_t(rows) * parts, true);
      const bool filters = sampling.drops(vocab);
      const auto run = [&] {
        if (filters) threshold(rows, there.data(), stride, vocab, state.data(), least.data());
        start(sample_kernel<kSampleThreads>, dim3(unsigned(parts), unsigned(rows)), kSampleThreads,
              Sample{there.data(), stride, vocab, state.data(), depth_there.data(), filters ? least.data() : nullptr,
                     best.data()});
        return to_host(best);
      };
      const std::vector<int64_t> ranks = vocab < 1000 && tried % 8 == 1 ? in_every_order(run) : run();
      const std::vector<float> thresholds = to_host(least);
      Noise noise(sampling, vocab);
      for (int row = 0; row < rows; row++) {
        CAPTURE(vocab);
        CAPTURE(row);
        CAPTURE(sampling.temperature);
        CAPTURE(sampling.top_k);
        CAPTURE(sampling.top_p);
        const float* const one = logits.data() + row * stride;
        const auto from = ranks.begin() + row * parts;
        CHECK(token_of(*std::max_element(from, from + parts)) ==
              pick(one, noise.row(index + depth[row]), vocab, sampling));
        if (filters)
          CHECK(bits_as<uint32_t>(thresholds[row]) == bits_as<uint32_t>(kept_threshold(Solo{}, one, vocab, sampling)));
      }
    }
  }
}

TEST_CASE(ON "noise is made of the same bits, token by token") {
  Sampling sampling;
  sampling.seed = 77;
  for (int vocab : {1, 65, 131, 300}) {
    Noise noise(sampling, vocab);
    for (int x = 0; x < vocab; x += 7) {  // all logits but one are NaN: its rank shows the noise
      std::vector<float> logits(vocab, Format<float>::kNaN);
      logits[x] = 0;
      const Array<float> there = on_device(logits);
      const Array<State> state = state_on_device(sampling, 41);
      const Array<int> depth(1, true);
      const int parts = sample_parts(vocab);
      Array<int64_t> best(parts, true);
      start(sample_kernel<kSampleThreads>, dim3(unsigned(parts), 1), kSampleThreads,
            Sample{there.data(), vocab, vocab, state.data(), depth.data(), nullptr, best.data()});
      const std::vector<int64_t> ranks = to_host(best);
      CHECK(*std::max_element(ranks.begin(), ranks.end()) == ranked(noise.row(41)[x], x));
    }
  }
}

TEST_CASE(ON "the walk is rule match") {
  Chance chance(3);
  int64_t deep = 0;
  for (int trial = 0; trial < (a_tenth() ? 30 : 150); trial++) {
    const int n = trial < 5 ? 1 + trial : 1 + chance.below(trial % 10 == 0 ? 300 : 60), vocab = 1 + chance.below(4);
    const int parts = 1 + chance.below(32);
    const RandomTree random = random_tree(chance, n, vocab, trial % 4 == 0 ? 0 : 0.3 + 1.2 * chance.number());
    const Tree tree = tree_of(random);
    Ints picks(n);
    std::vector<int64_t> best;
    for (int& token : picks) {
      token = chance.below(vocab);
      const int where = chance.below(parts);
      for (int part = 0; part < parts; part++) best.push_back(part == where ? ranked(1, token) : ranked(0, vocab));
    }
    const int padding = chance.below(9);  // rows that nobody sees
    Ints token = tree.token, depth = tree.depth, end = tree.end;
    for (int i = 0; i < padding; i++) token.push_back(0), depth.push_back(0), end.push_back(n + i + 1);
    best.resize(size_t(n + padding) * parts, ranked(0, 0));
    const Array<int> token_there = on_device(token), depth_there = on_device(depth), end_there = on_device(end);
    const Array<int64_t> best_there = on_device(best);
    const Ints found = in_every_order([&] {
      const Array<State> state = state_on_device(Sampling(), 1000, 99, 7);
      const Array<int> kept(2 + n + padding, true);
      const auto rows = pinned<int>(1 + n + padding), tokens = pinned<int>(n + padding);
      start(walk_kernel<kLanes>, 1, kLanes,
            Walk{best_there.data(), parts, token_there.data(), depth_there.data(), end_there.data(), state.data(),
                 kept.data(), rows.get(), tokens.get(), 0});
      const State after = to_host(state)[0];
      const Ints kept_back = to_host(kept);
      const int count = rows[0];
      Ints all = {count, int(after.index), after.past, after.root};
      all.insert(all.end(), rows.get() + 1, rows.get() + 1 + count);
      all.insert(all.end(), tokens.get(), tokens.get() + count);
      all.insert(all.end(), kept_back.begin(), kept_back.begin() + 2 + count);
      return all;
    });
    const Verdict verdict = match(tree, [&](int node) { return picks[node]; });
    const int count = int(verdict.rows.size());
    Ints expected = {count, 1000 + count, 7 + count, verdict.tokens.back()};
    expected.insert(expected.end(), verdict.rows.begin(), verdict.rows.end());
    expected.insert(expected.end(), verdict.tokens.begin(), verdict.tokens.end());
    expected.push_back(7), expected.push_back(count);
    expected.insert(expected.end(), verdict.rows.begin(), verdict.rows.end());
    CHECK(found == expected);
    deep += count > 2;
  }
  CHECK(deep > 5);
}

namespace {
template <class S>
void check_gather(Chance& chance, int layers, int heads, int head_size, int slots) {
  const size_t k_layer = heads * KeyValues<S>::key_numbers(slots, head_size),
               v_layer = heads * KeyValues<S>::value_numbers(slots, head_size);
  std::vector<S> k(layers * k_layer), v(layers * v_layer);
  chance.fill(k.data(), k.size()), chance.fill(v.data(), v.size());
  const int first = chance.below(slots / 2), most = slots - first;
  Ints rows;  // ascending, from 0 on
  for (int row = 0; row < most; row += 1 + (chance.below(3) == 0 ? chance.below(9) : 0)) rows.push_back(row);
  rows.resize(std::min<size_t>(rows.size(), size_t(1 + chance.below(14))));
  const int n = int(rows.size());
  Ints kept = {first, n};
  kept.insert(kept.end(), rows.begin(), rows.end());
  const Array<int> kept_there = on_device(kept);
  const auto moved = [&](const Team& team) {
    const Array<S> k_there = on_device(k), v_there = on_device(v);
    keep_rows(team,
              KeepRows<S>{k_there.data(), v_there.data(), k_layer, v_layer, heads, slots, head_size, kept_there.data()},
              layers);
    std::vector<S> both = to_host(k_there), values = to_host(v_there);
    both.insert(both.end(), values.begin(), values.end());
    return both;
  };
  const std::vector<S> tuned = in_every_order([&] { return moved(kGpu); }),
                       plain = in_every_order([&] { return moved(kPlainGpu); });
  const KeepRows<S> op{k.data(), v.data(), k_layer, v_layer, heads, slots, head_size, kept.data()};
  for (int item = 0; item < layers * heads; item++) op(Solo{}, item);
  k.insert(k.end(), v.begin(), v.end());
  CHECK(same_bits(tuned, k));
  CHECK(same_bits(plain, k));
}
}  // namespace

TEST_CASE(ON "the gathers, tuned and plain, move what the portable one moves, and nothing else") {
  Chance chance(4);
  for (int trial = 0; trial < 8; trial++)
    for (int head_size : {5, 16, 24, 64, 128}) {
      check_gather<float>(chance, 1 + trial % 3, 1 + chance.below(3), head_size, 64);
      check_gather<bf16>(chance, 1 + trial % 3, 1 + chance.below(3), head_size, 64);
    }
}

TEST_CASE(ON "a drafted tree has the tokens and chances that the host drafts") {
  Chance chance(5);
  struct Case {
    int vocab, depth, width;
  };
  for (const Case& c : {Case{1, 3, 1},
                        {5, 4, 1},
                        {65, 7, 1},
                        {65, 3, 2},
                        {37, 1, 37},
                        {131, 2, 5},
                        {300, 2, 3},
                        {12, 4, 3},
                        {1003, 2, 2},
                        {65, 1, 64}})
    for (float temperature : {0.0f, 0.6f, 1.0f, 2.5f}) {
      if (c.vocab > 200 && temperature != 0.6f) continue;
      CAPTURE(c.vocab);
      CAPTURE(c.depth);
      CAPTURE(c.width);
      CAPTURE(temperature);
      std::vector<float> table(size_t(c.vocab) * c.vocab);
      for (float& x : table) x = float(chance.below(3) == 0 ? -chance.below(4) : -6 * chance.number());  // some ties
      Bigram drafter(table, c.vocab);
      Sampling sampling;
      sampling.temperature = temperature, sampling.seed = 9;
      const int64_t index = 123;
      const int root = chance.below(c.vocab), n = 1 + int(full_tree_nodes(c.depth, c.width));

      Noise noise(sampling, c.vocab);
      const Draws draws = {&sampling, temperature > 0 ? &noise : nullptr, index, false};
      const Shape shape = parse_shape("tree:" + std::to_string(c.depth) + "x" + std::to_string(c.width), 1 << 20);
      Growth growth;
      growth.start(root);
      grow(shape, Limits{c.depth}, growth,
           [&](const int* nodes, int count, int width, Candidate* candidates, int* found) {
             drafter.expand(growth, nodes, count, width, draws, candidates, found);
           });
      REQUIRE(growth.size() == n);
      Tree tree;
      flatten(growth, tree);

      const Array<float> there = on_device(table);
      const Array<State> state = state_on_device(sampling, index, root);
      const auto bits = in_every_order([&] {
        Array<int> token(n, true);
        const auto found = pinned<DraftedNode>(n);
        draft(Draft{there.data(), c.vocab, c.width, state.data(), token.data(), found.get(), 0}, c.depth);
        std::vector<uint32_t> all;
        for (int x : to_host(token)) all.push_back(uint32_t(x));
        for (int i = 0; i + 1 < n; i++)
          all.push_back(uint32_t(found[i].token)), all.push_back(bits_as<uint32_t>(found[i].chance));
        return all;
      });
      std::vector<uint32_t> expected(tree.token.begin(), tree.token.end());
      for (int i = 1; i < n; i++)
        expected.push_back(uint32_t(growth.token[i])), expected.push_back(bits_as<uint32_t>(growth.chance[i]));
      CHECK(bits == expected);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Whole iterations

namespace {

constexpr int kVocab = 37, kBlock = 16, kRows = 24;

Config tiny(int layers = 1) {
  Config c;
  c.n_layer = layers, c.n_head = c.n_kv_head = 2, c.n_embd = 12, c.block_size = kBlock, c.vocab_size = kVocab;
  return c;
}
std::vector<float> tiny_weights(int layers = 1) {
  std::vector<float> weights = initial_weights(tiny(layers), 3);
  for (float& x : weights) x *= 12;  // so that it has opinions
  return weights;
}

Sampling sampling_of(float temperature, int top_k = 0, float top_p = 1, uint64_t seed = 1, float min_p = 0) {
  Sampling s;
  s.temperature = temperature, s.top_k = top_k, s.top_p = top_p, s.seed = seed;
  s.min_p = min_p;
  return s;
}

// What the model itself writes, for drafters to learn from.
const Ints& tiny_text() {
  static const Ints text = [] {
    Target target(tiny(), tiny_weights().data(), Dtype::fp32, false, 1, kRows);
    Decoding decoding;
    decoding.sampling = sampling_of(0.8f, 0, 1, 50);
    decoding.max_new_tokens = 6000;
    Ints written = {0};
    generate(target, nullptr, decoding, written, [](int) { return true; });
    return written;
  }();
  return text;
}

// The target without its iterations: the host's loop, on the same device.
struct ByHost {
  Target& target;
  int64_t rows = 0;
  int block_size() const { return target.block_size(); }
  int vocab_size() const { return target.vocab_size(); }
  int past() const { return target.past(); }
  void prefill(const int* tokens, int n) { target.prefill(tokens, n); }
  void forward(const int* token, const int* depth, const int* end, int n) {
    target.forward(token, depth, end, n), rows += n;
  }
  const float* logits(int row) const { return target.logits(row); }
  const float* hidden(int row) const { return target.hidden(row); }
  const float* features(int) const { return nullptr; }
  void keep(const int* kept, int n) { target.keep(kept, n); }
};
static_assert(!Iterates<ByHost>::value && Iterates<Target>::value, "the host's loop runs in the one alone");

Ints prompt_of(int n) { return Ints(tiny_text().begin() + 100, tiny_text().begin() + 100 + n); }

struct Still {
  double lap() { return 0; }
};

template <class AnyTarget>
Ints continued(AnyTarget& target, Drafter* drafter, const Decoding& decoding, Ints text, Stats* stats = nullptr) {
  const Stats s = generate(
      target, drafter, decoding, text, [](int) { return true; }, Still{});
  int64_t forwards = 0, tokens = 0;
  for (size_t i = 0; i < s.accept_histogram.size(); i++)
    forwards += s.accept_histogram[i], tokens += int64_t(i) * s.accept_histogram[i];
  CHECK(forwards == s.target_forwards);
  CHECK(tokens == s.tokens);
  CHECK(s.tokens == decoding.max_new_tokens);
  if (stats) *stats = s;
  return text;
}

bool same_curve(const ReliabilityCurve& a, const ReliabilityCurve& b) {
  bool same = true;
  for (size_t i = 0; i < a.size(); i++)
    same = same && a[i].nodes == b[i].nodes && a[i].accepted == b[i].accepted && a[i].raw == b[i].raw &&
           a[i].corrected == b[i].corrected;
  return same;
}

std::shared_ptr<Cost> fixed_cost() {
  std::vector<double> seconds;
  for (int n = 0; n < kRows; n++) seconds.push_back(1e-3 * (1 + 0.03 * n));
  return std::make_shared<Cost>(seconds);
}

}  // namespace

TEST_CASE(ON "an iteration does what forward, pick, match and keep do, and leaves the same cache") {
  Chance chance(6);
  int longest = 0, moved = 0;
  for (int turn = 0; turn < 4; turn++) {
    if (!runs(size_t(turn), 2)) continue;
    const Dtype weights = turn == 3 ? Dtype::q8_0 : Dtype::fp32;  // whose rows pass through a scratch
    const Dtype cache = turn == 1 ? Dtype::bf16 : Dtype::fp32;
    const bool plain = turn == 2;  // the plain kernels, as the tuned ones, can be recorded
    const auto pool = std::make_shared<Pool>(1, true, plain);
    Target whole(tiny(2), tiny_weights(2).data(), weights, pool, kRows, cache),
        steps(tiny(2), tiny_weights(2).data(), weights, pool, kRows, cache);
    const Sampling sampling = cache == Dtype::fp32 ? sampling_of(0.8f) : sampling_of(0.8f, 20, 0.95f);
    Decoding decoding;
    decoding.sampling = sampling, decoding.max_new_tokens = kBlock;
    const Ints text = continued(steps, nullptr, decoding, prompt_of(1));  // what is to come
    Noise noise(sampling, kVocab);
    for (int trial = 0; trial < (a_tenth() ? 2 : 3); trial++) {
      int n = 1;
      whole.prefill(text.data(), 0), steps.prefill(text.data(), 0);
      while (n < kBlock - 1) {
        Tree tree = tree_of(random_tree(chance, 1 + chance.below(kRows), kVocab, 0.7));
        for (int i = 0; i < tree.size(); i++) {
          if (tree.depth[i] + n - 1 >= kBlock) {  // the window ends here
            tree.token.resize(i), tree.parent.resize(i), tree.depth.resize(i), tree.end.resize(i);
            for (int& end : tree.end) end = std::min(end, i);
            break;
          }
          if (i == 0 || chance.number() < 0.75) tree.token[i] = text[n - 1 + tree.depth[i]];
        }
        const Verdict found = whole.iterate(tree, sampling, n);
        steps.forward(tree.token.data(), tree.depth.data(), tree.end.data(), tree.size());
        const Verdict expected = match(tree, [&](int node) {
          return pick(steps.logits(node), noise.row(n + tree.depth[node]), kVocab, sampling);
        });
        steps.keep(expected.rows.data(), int(expected.rows.size()));
        CHECK(found.rows == expected.rows);
        CHECK(found.tokens == expected.tokens);
        REQUIRE(whole.past() == steps.past());
        n += int(found.rows.size());
        longest = std::max(longest, int(found.rows.size())), moved += found.rows.back() + 1 > int(found.rows.size());
        for (int position = 0; position < whole.past(); position++)
          for (bool values : {false, true})
            CHECK(same_bits(cached(whole, position, values), cached(steps, position, values)));
      }
    }
  }
  CHECK(longest > (a_tenth() ? 2 : 3));
  CHECK(moved > (a_tenth() ? 1 : 4));
}

TEST_CASE(ON "every drafter, shape and setting prints the text of plain decoding, as the host's loop does") {
  Target target(tiny(), tiny_weights().data(), Dtype::fp32, true, 1, kRows);
  ByHost by_host{target};
  Bigram bigram(bigram_table(tiny_text(), kVocab), kVocab);
  Ngram ngram(interpolated(count_ngrams(tiny_text(), kVocab), 3, kVocab));
  RandomDrafter random(kVocab);
  struct Method {
    Drafter* drafter;
    const char* shape;
  };
  const Method always[] = {{&bigram, "chain:4"}, {&bigram, "tree:3x2"}};
  const Method by_turns[] = {{&bigram, "auto"}, {&ngram, "tree:2x2"},  {&bigram, "tree:1x8"},
                             {&ngram, "auto"},  {&random, "tree:3x2"}, {&random, "auto"}};
  const Sampling all[] = {sampling_of(0),
                          sampling_of(0.7f),
                          sampling_of(1),
                          sampling_of(1, 5, 1, 2),
                          sampling_of(0.9f, 0, 0.7f, 3, 0.1f),
                          sampling_of(0.7f, 12, 0.9f, 4)};
  double tokens = 0, forwards = 0;
  for (int nth = 0; nth < 6; nth++) {
    if (!runs(size_t(nth), 3)) continue;
    Decoding decoding;
    decoding.sampling = all[nth];
    decoding.max_new_tokens = 18;  // past two slides of the window
    const Ints prompt = prompt_of(nth % 2 ? 13 : 21);
    Stats plain_stats;
    const Ints plain = continued(target, nullptr, decoding, prompt, &plain_stats);
    CHECK(plain_stats.target_forwards == 18);
    CHECK(plain_stats.slide_prefills == 2);
    CHECK(continued(by_host, nullptr, decoding, prompt) == plain);
    std::vector<Method> methods(always, always + 2);
    for (int turn : {nth, nth + 1, nth + 3}) methods.push_back(by_turns[turn % 6]);
    for (const Method& method : methods) {
      CAPTURE(nth);
      CAPTURE(method.shape);
      decoding.shape = parse_shape(method.shape, kRows - 1);
      Stats on_device, on_host;
      decoding.cost = fixed_cost(), random.calls = 0;
      CHECK(continued(target, method.drafter, decoding, prompt, &on_device) == plain);
      decoding.cost = fixed_cost(), random.calls = 0;
      CHECK(continued(by_host, method.drafter, decoding, prompt, &on_host) == plain);
      CHECK(on_device.drafted_nodes == on_host.drafted_nodes);
      CHECK(on_device.accept_histogram == on_host.accept_histogram);
      CHECK(on_device.slide_prefills == on_host.slide_prefills);
      CHECK(same_curve(on_device.reliability, on_host.reliability));
      if (method.drafter == &bigram) tokens += double(on_device.tokens), forwards += double(on_device.target_forwards);
    }
  }
  CHECK(tokens / forwards > 1.2);  // or little would be tried
}

TEST_CASE(ON "drafters that run a model leave the text as it is, and draft as beside the host's loop") {
  Target target(tiny(2), tiny_weights(2).data(), Dtype::fp32, true, 1, kRows);
  ByHost by_host{target};
  SmallModel copy(std::make_unique<Target>(tiny(2), tiny_weights(2).data(), Dtype::fp32, target.pool(), kRows));
  FirstLayers self(target, 1);
  size_t tried = 0;
  for (float temperature : {0.0f, 1.0f})
    for (Drafter* drafter : {static_cast<Drafter*>(&copy), static_cast<Drafter*>(&self)})
      for (const char* shape : {"chain:3", "tree:2x2", "auto"}) {
        if (!runs(tried++, a_sixtieth() ? 6 : 3)) continue;  // a shape of the three for each, or each second
        CAPTURE(temperature);
        CAPTURE(shape);
        Decoding decoding;
        decoding.sampling = sampling_of(temperature);
        decoding.max_new_tokens = 18;  // past two slides of the window
        const Ints plain = continued(target, nullptr, decoding, prompt_of(13));
        decoding.shape = parse_shape(shape, kRows - 1);
        Stats on_device, on_host;
        decoding.cost = fixed_cost();
        CHECK(continued(target, drafter, decoding, prompt_of(13), &on_device) == plain);
        decoding.cost = fixed_cost();
        CHECK(continued(by_host, drafter, decoding, prompt_of(13), &on_host) == plain);
        CHECK(on_device.drafted_nodes == on_host.drafted_nodes);
        CHECK(on_device.accept_histogram == on_host.accept_histogram);
        if (drafter == &copy) CHECK(on_device.target_forwards <= 11);  // all is accepted, windows are short
      }
}

TEST_CASE(ON "a text may end anywhere") {
  Target target(tiny(), tiny_weights().data(), Dtype::bf16, true, 1, kRows);
  Bigram bigram(bigram_table(tiny_text(), kVocab), kVocab);
  Decoding decoding;
  decoding.sampling = sampling_of(0.7f);
  decoding.max_new_tokens = 14;
  const Ints prompt = prompt_of(9), plain = continued(target, nullptr, decoding, prompt);
  for (const char* shape : {"chain:5", "tree:2x3"}) {
    decoding.shape = parse_shape(shape, kRows - 1);
    for (int most : {1, 2, 3, 4, 7, 8, 9, 13}) {
      decoding.max_new_tokens = most;
      CHECK(continued(target, &bigram, decoding, prompt) == Ints(plain.begin(), plain.begin() + 9 + most));
    }
    decoding.max_new_tokens = 14;
    for (int stop : {1, 5, 10}) {
      Ints text = prompt;
      int emitted = 0;
      const Stats stats = generate(target, &bigram, decoding, text, [&](int) { return ++emitted < stop; });
      CHECK(stats.tokens == stop);
      CHECK(text == Ints(plain.begin(), plain.begin() + 9 + stop));
    }
  }
}

TEST_CASE(ON "a graph is recorded once for its kind and serves every setting") {
  Target target(tiny(), tiny_weights().data(), Dtype::fp32, true, 1, kRows),
      fresh(tiny(), tiny_weights().data(), Dtype::fp32, true, 1, kRows);
  Bigram bigram(bigram_table(tiny_text(), kVocab), kVocab),
      other(bigram_table(Ints(tiny_text().begin(), tiny_text().begin() + 300), kVocab), kVocab);
  Decoding decoding;
  decoding.max_new_tokens = 20;
  decoding.shape = parse_shape("chain:3", 8);
  const auto both = [&](const Sampling& sampling, Drafter* drafter) {
    decoding.sampling = sampling;
    Stats a, b;
    ByHost by_host{fresh};
    const Ints text = continued(target, drafter, decoding, prompt_of(6), &a);
    CHECK(text == continued(by_host, drafter, decoding, prompt_of(6), &b));
    CHECK(a.accept_histogram == b.accept_histogram);
  };
  for (int i = 0; i < 2; i++) both(sampling_of(1), &bigram);
  const int recorded = target.iterations().recordings();
  CHECK(recorded >= 1);
  CHECK(recorded <= 4);  // chain:3, and cut at the window's end: chain:2, chain:1, the root alone
  Sampling elsewhere = sampling_of(1.3f, 0, 1, 8);
  elsewhere.sequence = 5;
  both(sampling_of(0), &bigram), both(elsewhere, &bigram), both(sampling_of(1), &other), both(sampling_of(1), &bigram);
  CHECK(target.iterations().recordings() <= 4);
  for (int i = 0; i < 2; i++) both(sampling_of(1.5f, 2), &bigram);  // kinds of their own: they need thresholds
  both(sampling_of(1.5f), nullptr), both(sampling_of(1.5f), nullptr), both(sampling_of(1.5f, 2), nullptr);
  CHECK(target.iterations().recordings() > recorded);
  CHECK(target.iterations().recordings() <= 8);
  decoding.shape = parse_shape("tree:1x2", 8);  // as many rows as chain:2
  for (int i = 0; i < 2; i++) both(sampling_of(1), &bigram);
}

#ifdef STAND_IN
TEST_CASE(ON
          "--early: launches that begin early and weights asked for in one piece change no text, and can be left out") {
  Bigram bigram(bigram_table(tiny_text(), kVocab), kVocab);
  Decoding decoding;
  decoding.max_new_tokens = 12;
  decoding.shape = parse_shape("chain:3", 8);
  decoding.sampling = sampling_of(1);
  for (Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
    Ints text;
    for (const char* word : {"on", "launches", "off"}) {
      CAPTURE(word);
      set_early(word);
      const auto before = done_early();
      Target target(tiny(), tiny_weights().data(), dtype, true, 1, kRows);
      const Ints its = continued(target, &bigram, decoding, prompt_of(6));
      CHECK(target.iterations().recordings() > 0);
      const auto after = done_early();
      CHECK((after.first > before.first) == (word != std::string("off")));
      CHECK((after.second > before.second) == (word == std::string("on")));
      if (text.empty()) text = its;
      CHECK(its == text);
    }
  }
  set_early("on");
}

TEST_CASE(ON "a driver that refuses to record launches that begin early gets them without, from then on") {
  Decoding decoding;
  decoding.max_new_tokens = 12;
  decoding.sampling = sampling_of(1);
  Ints text;
  for (int how : {0, 1, 2}) {  // it refuses nothing, the launch, the graph
    CAPTURE(how);
    set_early("on");
    refuse_early(how);
    Target target(tiny(), tiny_weights().data(), Dtype::fp32, true, 1, kRows);
    const Ints its = continued(target, nullptr, decoding, prompt_of(6));
    CHECK(target.iterations().recordings() == 1);
    CHECK(early.launches == (how == 0));
    if (text.empty()) text = its;
    CHECK(its == text);
    const long before = done_early().first;
    CHECK(continued(target, nullptr, decoding, prompt_of(6)) == text);
    CHECK((done_early().first > before) == (how == 0));
    Graph graph;  // what fails for another reason fails, and the next ones still begin early
    set_early("on");
    CHECK_THROWS_AS(graph.capture([] { throw std::runtime_error("another reason"); }), std::runtime_error);
    CHECK(early.launches);
    refuse_early(0);
  }
}
#endif

namespace {

// Calls run() while the device is as slow as it may be, and as fast: what is behind an event runs after the host has
// read what it waited for, or before. A real device is what it is.
template <class F>
void slow_and_fast(F run) {
#ifdef __CUDACC__
  run();
#else
  for (bool hurries : {false, true}) {
    CAPTURE(hurries);
    emulator::hurries = hurries;
    run();
  }
  emulator::hurries = false;
#endif
}

Config longer() {  // windows in which much may run ahead
  Config c = tiny();
  c.block_size = 40;
  return c;
}
std::vector<float> longer_weights() {
  std::vector<float> weights = initial_weights(longer(), 3);
  for (float& x : weights) x *= 12;
  return weights;
}

}  // namespace

TEST_CASE(ON "the next iteration runs ahead, and texts and counts are those of the host's loop") {
  Target fresh(longer(), longer_weights().data(), Dtype::fp32, true, 1, kRows);
  ByHost by_host{fresh};
  Bigram bigram(bigram_table(tiny_text(), kVocab), kVocab);
  struct Method {
    Drafter* drafter;
    const char* shape;
    Sampling sampling;
    int least_used;
  };
  const Sampling few = sampling_of(1.2f, 9, 0.95f, 3);
  std::vector<Method> methods = {{nullptr, "chain:1", sampling_of(0.8f), 30},
                                 {&bigram, "chain:2", few, 4},
                                 {&bigram, "tree:2x2", sampling_of(0.8f), 4},
                                 {nullptr, "chain:1", few, 30},
                                 {&bigram, "tree:1x3", few, 6}};
  if (a_sixtieth()) {  // two that follow each other
    std::rotate(methods.begin(), methods.begin() + int(sweep_seed() % 4), methods.end());
    methods.erase(methods.begin() + 2, methods.end());
  }
  std::vector<Decoding> decodings;
  std::vector<Ints> texts;
  std::vector<Stats> stats;
  for (const Method& method : methods) {
    Decoding decoding;
    decoding.sampling = method.sampling;
    decoding.max_new_tokens = 42;  // past a slide of the window
    decoding.shape = parse_shape(method.shape, kRows - 1);
    stats.emplace_back(), decodings.push_back(decoding);
    texts.push_back(continued(by_host, method.drafter, decoding, prompt_of(7), &stats.back()));
  }
  Decoding decoding;  // of texts that end early
  decoding.sampling = sampling_of(0.8f);
  decoding.max_new_tokens = 24;
  const Ints prompt = prompt_of(9), plain = continued(by_host, nullptr, decoding, prompt);
  slow_and_fast([&] {
    Target target(longer(), longer_weights().data(), Dtype::fp32, true, 1, kRows);
    const Iterations& iterations = target.iterations();
    for (size_t i = 0; i < texts.size(); i++) {
      CAPTURE(methods[i].shape);
      Stats found;
      const int64_t used = iterations.used_ahead(), dropped = iterations.dropped_ahead();
      CHECK(continued(target, methods[i].drafter, decodings[i], prompt_of(7), &found) == texts[i]);
      CHECK(found.target_forwards == stats[i].target_forwards);
      CHECK(found.drafted_nodes == stats[i].drafted_nodes);
      CHECK(found.accept_histogram == stats[i].accept_histogram);
      CHECK(found.slide_prefills == stats[i].slide_prefills);
      CHECK(found.slide_prefills > 0);
      CHECK(same_curve(found.reliability, stats[i].reliability));
      CHECK(iterations.used_ahead() - used >= methods[i].least_used);
      CHECK(iterations.dropped_ahead() - dropped <= 2);  // at the end of this text, and of the last
    }
    // A text that is stopped, one that ends by an exception, and one that goes on where another ended.
    for (int stop : {5, 6, 11}) {
      Ints text = prompt, thrown = prompt;
      int emitted = 0;
      CHECK(generate(target, nullptr, decoding, text, [&](int) { return ++emitted < stop; }).tokens == stop);
      CHECK(text == Ints(plain.begin(), plain.begin() + 9 + stop));
      CHECK_THROWS_AS(generate(target, nullptr, decoding, thrown,
                               [&](int) {
                                 if (--emitted == 0) throw std::runtime_error("enough");
                                 return true;
                               }),
                      std::runtime_error);
      decoding.max_new_tokens = 24 - stop;
      CHECK(continued(target, nullptr, decoding, text) == plain);
      decoding.max_new_tokens = 24;
    }
  });  // where the target is destroyed while one runs ahead
}

TEST_CASE(ON "what ran ahead is dropped if anything else is asked for") {
  const auto table = bigram_table(tiny_text(), kVocab),
             another = bigram_table(Ints(tiny_text().begin(), tiny_text().begin() + 300), kVocab);
  const Bigram bigram(table, kVocab), other(another, kVocab);
  Target anew(longer(), longer_weights().data(), Dtype::fp32, true, 1, kRows);  // which caches everything each time
  size_t tried = 0;
  for (const int depth : {0, 1})
    slow_and_fast([&, depth] {
      CAPTURE(depth);
      std::unique_ptr<Target> target;
      const Bigram* drafter = &bigram;
      Sampling sampling;
      float scale = 1;
      Ints text;
      const auto step = [&](int depth, int width) {  // an iteration that the device drafts; depth 0: the root alone
        const int n = int(text.size());
        const Tree root{{text.back()}, {-1}, {0}, {1}, {}};
        std::vector<Candidate> drafted, expected;
        const auto run = [&](Target& its, std::vector<Candidate>& nodes) {
          if (depth == 0) return its.iterate(root, sampling, n);
          CHECK(its.load_table(drafter->table, depth, width));
          return its.iterate_drafting(text.back(), depth, width, scale, sampling, n, nodes);
        };
        anew.prefill(text.data(), n - 1);
        const Verdict right = run(anew, expected), found = run(*target, drafted);
        CHECK(found.rows == right.rows);
        CHECK(found.tokens == right.tokens);
        REQUIRE(drafted.size() == expected.size());
        for (size_t i = 0; i < drafted.size(); i++) {
          CHECK(drafted[i].token == expected[i].token);
          CHECK(bits_as<uint32_t>(drafted[i].chance) == bits_as<uint32_t>(expected[i].chance));
        }
        text.insert(text.end(), found.tokens.begin(), found.tokens.end());
        REQUIRE(target->past() == int(text.size()) - 1);
      };
      struct Change {
        const char* name;
        bool drops;
        std::function<void()> make;
      };
      const Change changes[] = {
          {"none", false, [] {}},
          {"seed", true, [&] { sampling.seed++; }},
          {"temperature", true, [&] { sampling.temperature = 0.9f; }},
          {"sequence", true, [&] { sampling.sequence = 3; }},
          {"another kind", true, [&] { sampling.top_k = 5; }},
          {"rewound", true, [&] { text.resize(text.size() - 2), target->rewind(target->past() - 2); }},
          {"another text that looks the same", true,
           [&] {
             text[1] = (text[1] + 1) % kVocab;
             target->prefill(text.data(), int(text.size()) - 1);
           }},
          {"a forward", true,
           [&] {
             const int depth = 0, end = 1;
             target->forward(&text.back(), &depth, &end, 1);
           }},
          {"a tree of the host's", true,
           [&] {
             const Tree tree{{text.back(), 1, 2}, {-1, 0, 0}, {0, 1, 1}, {3, 2, 3}, {}};
             const Verdict verdict = target->iterate(tree, sampling, int64_t(text.size()));
             text.insert(text.end(), verdict.tokens.begin(), verdict.tokens.end());
           }},
          {"another shape of as many rows", true, [&] { step(2, 1), step(1, 2); }},
          {"scale", true, [&] { scale *= 2, step(1, 2); }},
          {"another table", true, [&] { drafter = drafter == &bigram ? &other : &bigram, step(1, 2); }},
      };
      for (const Change& change : changes) {
        if (a_sixtieth() && !drawn(tried++, 4)) continue;
        CAPTURE(change.name);
        target.reset(new Target(longer(), longer_weights().data(), Dtype::fp32, true, 1, kRows));
        sampling = sampling_of(1, 0, 1, 4), text = prompt_of(3);
        target->prefill(text.data(), 2);
        for (int i = 0; i < 3; i++) step(depth, 2);  // the third is the second as expected: behind it one runs ahead
        CHECK(target->iterations().used_ahead() == 0);
        change.make();
        step(depth, 2);
        CHECK(target->iterations().dropped_ahead() == int(change.drops));
        CHECK(target->iterations().used_ahead() == int(!change.drops));
        for (int i = 0; i < 6; i++) step(depth, 2);
        CHECK(target->iterations().used_ahead() > 0);
        CHECK(target->iterations().dropped_ahead() == int(change.drops));
      }
    });
}

TEST_CASE(ON "a forward alone, for a drafter, is recorded once for its rows and layers") {
  Target target(tiny(), tiny_weights().data(), Dtype::fp32, true, 1, kRows);
  const Ints text = prompt_of(20);
  const auto logits = [&](int past, int layers) {  // of a root with two children
    const int depth[] = {0, 1, 1}, end[] = {3, 2, 3};
    target.prefill(text.data(), past);
    target.clear_rows();
    target.add_tree(text.data() + past, depth, end, 3);
    target.run_rows(3, layers);
    return std::vector<float>(target.logits(0), target.logits(0) + 3 * pad16(kVocab));
  };
  for (int layers : {0, 1}) {
    const int recorded = target.iterations().recordings();
    const std::vector<float> launched = logits(9, layers);
    CHECK(target.iterations().recordings() == recorded);
    const std::vector<float> elsewhere = logits(5, layers);  // recorded, and replayed
    CHECK(target.iterations().recordings() == recorded + 1);
    CHECK(same_bits(logits(9, layers), launched));
    CHECK(!same_bits(elsewhere, launched));
    CHECK(target.iterations().recordings() == recorded + 1);
  }
}

TEST_CASE(ON "trees that the device cannot draft are drafted on the host") {
  Target target(tiny(), tiny_weights().data(), Dtype::fp32, true, 1, kRows);
  Bigram bigram(bigram_table(tiny_text(), kVocab), kVocab);
  CHECK(target.load_table(bigram.table, 2, 4));
  CHECK(target.load_table(bigram.table, 23, 1));
  CHECK(!target.load_table(bigram.table, 24, 1));          // more rows than there is room for
  CHECK(!target.load_table(bigram.table, 1, kVocab + 1));  // more children than tokens
  CHECK(!target.load_table(nullptr, 3, 1));
  CHECK(!target.load_table(bigram.table, 100, 100));
  Tree tree;
  tree.token.assign(kRows + 1, 0), tree.depth.assign(kRows + 1, 1), tree.end.assign(kRows + 1, kRows + 1);
  CHECK_THROWS_AS(target.iterate(tree, Sampling(), 1), std::logic_error);

  Target wide(tiny(), tiny_weights().data(), Dtype::fp32, true, 1, kVocab + 3);
  Decoding decoding;  // a shape wider than the vocabulary
  decoding.sampling = sampling_of(1);
  decoding.max_new_tokens = 9;
  decoding.shape = parse_shape("tree:1x38", 38);
  Stats stats;
  const Ints plain = continued(wide, nullptr, decoding, prompt_of(3));
  CHECK(continued(wide, &bigram, decoding, prompt_of(3), &stats) == plain);
  CHECK(stats.target_forwards == 5);  // every token is among the candidates, but none is drafted for the last forward
}

TEST_CASE(ON "what a forward costs is measured on whole iterations") {
  Target target(tiny(), tiny_weights().data(), Dtype::fp32, true, 1, kRows);
  const std::vector<double> cost = measure_cost(target, 20, 0.01);
  CHECK(cost.size() == 21);
  for (double seconds : cost) CHECK(seconds > 0);
  CHECK(target.iterations().recordings() >= 1);
}

TEST_CASE(ON "texts side by side have the bytes that each has alone") {
  constexpr int kSeats = 3, kTexts = 5;
  size_t tried = 0;
  for (const Dtype dtype : {Dtype::fp32, Dtype::q8_0}) {
    if (a_sixtieth() && !drawn(tried++, 2)) continue;
    Target target(tiny(), tiny_weights().data(), dtype, true, 1, kRows, Dtype::bf16, kSeats);
    Target alone(tiny(), tiny_weights().data(), dtype, true, 1, kRows, Dtype::bf16);
    Bigram bigram(bigram_table(tiny_text(), kVocab), kVocab);
    std::vector<std::unique_ptr<Drafter>> drafters;
    for (int seat = 0; seat < kSeats; seat++) drafters.push_back(bigram.another(seat));
    const Shape shape = parse_shape("tree:2x2", 64);
    std::vector<Decoding> settings(kTexts);
    std::vector<Ints> expected;
    for (int i = 0; i < kTexts; i++) {
      settings[size_t(i)].sampling = sampling_of(float(i % 2));
      settings[size_t(i)].sampling.seed = uint64_t(i);
      settings[size_t(i)].max_new_tokens = 12 + 9 * i;
      expected.push_back(continued(alone, nullptr, settings[size_t(i)], prompt_of(2 + 5 * i)));
    }
    int begun = 0, ended = 0;
    generate_forest(target, shape, Rule::kMatch, nullptr, [&](int seat) -> std::unique_ptr<Job> {
      if (begun == kTexts) return nullptr;
      auto job = std::make_unique<Job>();
      job->drafter = drafters[size_t(seat)].get();
      job->settings = settings[size_t(begun)];
      job->settings.shape = shape;
      job->tokens = prompt_of(2 + 5 * begun);
      job->on_token = [](int) { return true; };
      job->on_end = [&ended, tokens = &job->tokens, wanted = &expected[size_t(begun)]](const Stats&) {
        CHECK(*tokens == *wanted);
        ended++;
      };
      begun++;
      return job;
    });
    CHECK(ended == kTexts);
  }
}

#ifndef __CUDACC__
TEST_CASE("emulated: what a GPU lacks is said in one line, with what to do") {
  const auto asked = [](cudaError_t driver) {
    emulator::driver = driver;
    const std::string error = error_of([] { choose_cuda("cuda"); });
    CHECK(!choose_cuda("auto"));
    CHECK(!choose_cuda("cpu"));
    emulator::driver = cudaSuccess;
    return error;
  };
  CHECK(asked(cudaErrorNoDevice) ==
        "there is no CUDA device: --device cuda: use --device cpu, or see what nvidia-smi says");
  CHECK(asked(cudaErrorInsufficientDriver) ==
        "the NVIDIA driver is too old for this program, built with CUDA 12.4: --device cuda: use --device cpu, or see "
        "what nvidia-smi says");
  CHECK(asked(1).find("CUDA: an error of the emulator: --device cuda: ") == 0);
  emulator::capability[0] = 7, emulator::capability[1] = 5;
  CHECK(asked(cudaSuccess) ==
        "the GPU has compute capability 7.5, and no kernel here was compiled for that: --device cuda: use --device "
        "cpu, or see what "
        "nvidia-smi says");
  emulator::capability[0] = 9, emulator::capability[1] = 0;
  CHECK(choose_cuda("cuda"));
  CHECK(error_of([] { Array<float>(size_t(1) << 30, true); }) ==
        "out of memory on the GPU: 4294967296 bytes asked, 1073741824 free: use a smaller model or batch, or --device "
        "cpu");
}
#endif

}  // namespace nanospec
