// tests/growth/test_ahead.cpp: drafting while the target verifies: the bytes of plain decoding, the trees of ordinary
// drafting, drafters that come back from what they assumed, and nothing that two threads hold at once.
//
// The last is for ThreadSanitizer: this file and tests/main.cpp compiled with -fsanitize=thread. No test goes by the
// clock: where a hit must happen, the target waits in its forward until the worker has drafted.
#include "growth/ahead.h"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>

#include "drafters/draft_model.h"
#include "drafters/medusa.h"
#include "tests/error_of.h"
#include "tests/mock.h"
#include "tests/random.h"

using namespace nanospec;

namespace {

constexpr int kGameRows = 65;

int threads_alive() {
  int n = 0;
  for (const auto& one : std::filesystem::directory_iterator("/proc/self/task")) n += one.exists();
  return n;
}

void pause(int microseconds) { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); }

// Whether no more than n threads are left. Linux may still list one that was joined: it gets up to five seconds to go.
bool threads_left(int n) {
  for (int tries = 0; tries < 5000 && threads_alive() > n; tries++) pause(1000);
  return threads_alive() <= n;
}

// How far the worker is with a forward, told by the drafter to the target.
struct Progress {
  std::atomic<int> trees{0};      // outcomes that were begun: all but the last of them are done with
  std::atomic<bool> over{false};  // all of them
};

// A target whose forward takes until so many trees are drafted ahead, or all that there are; or a random while.
template <class Inner>
struct Slow {
  Inner& inner;
  Progress& progress;
  int trees = 0, delay = 0;  // delay: microseconds at most, where no trees are awaited
  uint64_t calls = 0, forwards = 0;

  int block_size() const { return inner.block_size(); }
  int vocab_size() const { return inner.vocab_size(); }
  int past() const { return inner.past(); }
  void prefill(const int* tokens, int n) { inner.prefill(tokens, n); }
  void forward(const int* token, const int* depth, const int* end, int n) {
    inner.forward(token, depth, end, n);
    if (delay > 0) pause(int(random_bits(3, 0, 1000, calls++, 0) % uint64_t(delay)));
    const bool alone = forwards++ % 32 == 31;  // the forward that goes without a worker
    for (int turns = 0; trees > 0 && !alone && !progress.over && progress.trees < trees && turns < 20000; turns++)
      pause(50);
  }
  const float* logits(int row) { return inner.logits(row); }
  const float* hidden(int row) { return inner.hidden(row); }
  const float* features(int) { return nullptr; }
  void keep(const int* rows, int n) { inner.keep(rows, n); }
};

// Any drafter, watched: tells its progress, takes its time, and can refuse to be asked by two at once.
struct Watched : Drafter, DraftsAhead {
  Drafter& inner;
  DraftsAhead* const can_assume;
  Progress& progress;
  int delay = 0;  // microseconds at most of an expansion
  uint64_t calls = 0;
  std::atomic<int> inside{0};
  bool clashed = false, assuming = false;
  std::vector<std::vector<int>> assumed;  // outcomes of this forward that were drafted for, or begun to be
  int64_t foreseen = 0;                   // forwards that came out as one of them
  const std::thread::id home = std::this_thread::get_id();

  Watched(Drafter& its, Progress& shared) : inner(its), can_assume(dynamic_cast<DraftsAhead*>(&its)), progress(shared) {
    vocab = its.vocab, name = its.name;
  }

  struct Visit {
    Watched& of;
    explicit Visit(Watched& watched) : of(watched) { of.clashed |= of.inside.fetch_add(1) > 0; }
    ~Visit() { of.inside.fetch_sub(1); }
  };
  void begin(const int* text, int n) override {
    Visit visit(*this);
    inner.temperature = temperature, inner.begin(text, n);
  }
  void prepare(const Growth& growth, const int* nodes, int n) override { inner.prepare(growth, nodes, n); }
  const float* logits(const Growth& growth, int node) override { return inner.logits(growth, node); }
  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    Visit visit(*this);
    if (delay > 0) pause(int(random_bits(4, 0, 1000, calls++, 0) % uint64_t(delay)));
    inner.expand(growth, nodes, n, width, draws, candidates, count);
  }
  void committed(const Commit& commit) override {
    Visit visit(*this);
    clashed |= assuming;  // the worker must have gone home
    progress.trees = 0, progress.over = false;
    foreseen += std::count(assumed.begin(), assumed.end(), std::vector<int>(commit.tokens, commit.tokens + commit.n));
    assumed.clear();
    inner.committed(commit);
  }
  bool assume(const int* tokens, int n) override {
    Visit visit(*this);
    if (n == 0) progress.trees = -1, progress.over = false;
    progress.trees++;
    const bool can = can_assume && can_assume->assume(tokens, n);
    assuming = assuming || can;
    if (can && n > 0) assumed.emplace_back(tokens, tokens + n);
    return can;
  }
  void rollback() override {
    Visit visit(*this);
    if (can_assume) can_assume->rollback();
    assuming = false, progress.over = std::this_thread::get_id() != home;
  }
  void attach(const TargetRows* rows) override { inner.attach(rows); }
};

// SelfDrafter that can assume tokens: its model goes to the assumed text and back.
template <class Target>
struct Assuming : SelfDrafter<Target>, DraftsAhead {
  using SelfDrafter<Target>::SelfDrafter;
  size_t assumed = 0;

  void begin(const int* tokens, int n) override { assumed = 0, SelfDrafter<Target>::begin(tokens, n); }
  bool assume(const int* tokens, int n) override {
    rollback();
    this->text.insert(this->text.end(), tokens, tokens + n), assumed = size_t(n);
    if (n > 0) open_window(this->model, this->text), this->forwarded = 0;
    return true;
  }
  void rollback() override {
    if (assumed == 0) return;
    this->text.resize(this->text.size() - assumed), assumed = 0, this->forwarded = 0;
    open_window(this->model, this->text);
  }
  void committed(const Commit& commit) override {
    rollback();
    SelfDrafter<Target>::committed(commit);
  }
};

Decoding decoding_of(const std::string& shape, float temperature, int tokens, Ahead ahead) {
  Decoding decoding;
  decoding.shape = ready_shape(shape, 64);
  std::vector<double> seconds;
  for (int n = 0; n <= 64; n++) seconds.push_back(1e-3 * (1 + 0.05 * n));
  decoding.cost = std::make_shared<Cost>(seconds);
  decoding.sampling.temperature = temperature, decoding.max_new_tokens = tokens;
  decoding.ahead = ahead;
  return decoding;
}

template <class Target>
std::vector<int> text_of(Target& target, Drafter* drafter, const Decoding& decoding, std::vector<int> prompt,
                         Stats* stats = nullptr) {
  const Stats counted = generate(target, drafter, decoding, prompt, [](int) { return true; });
  if (stats) *stats = counted;
  return prompt;
}

// What must hold of any run.
void check_counts(const Stats& stats) {
  const AheadStats& a = stats.ahead;
  CHECK(a.wanted);
  CHECK(a.forwards + a.forwards_without == (a.able ? stats.target_forwards : 0));
  // The outcome of the last forward has no next iteration.
  CHECK(a.hits + a.misses <= a.forwards);
  CHECK(a.hits + a.misses + 1 >= a.forwards);
  CHECK(a.cut <= a.forwards);  // one tree can be unfinished
  CHECK(a.hits <= a.outcomes);
  CHECK((a.hits > 0) == (a.seconds_saved > 0));
  CHECK(a.hit_rate() <= 1);
}

// The trees of a run, iteration by iteration.
using Trees = std::vector<std::pair<std::vector<int>, std::vector<int>>>;  // tokens, parents
void record(Decoding& decoding, Trees& trees) {
  decoding.on_iteration = [&trees](const IterationReport& report) {
    trees.push_back({report.tree.token, report.tree.parent});
  };
}

// A random forward for a drafter: a tree, of which some nodes are asked about; a verdict on it.
struct AskedGame {
  Chance chance;
  Growth growth;
  Tree tree;

  explicit AskedGame(uint32_t seed) : chance(seed) {}
  std::vector<int> tokens(int n) {
    std::vector<int> all;
    for (int i = 0; i < n; i++) all.push_back(chance.below(kSmallVocab));
    return all;
  }
  // Grows under `root` and asks for every node; the logits of all that there were.
  std::vector<float> ask(Drafter& drafter, int root, int most) {
    std::vector<float> said;
    growth.start(root);
    for (int i = 0; i < most; i++) {
      drafter.prepare(growth, &i, 1);
      const float* const row = drafter.logits(growth, i);
      if (row) said.insert(said.end(), row, row + kSmallVocab);
      growth.add(chance.below(3) ? growth.size() - 1 : chance.below(growth.size()), {chance.below(kSmallVocab), 1});
    }
    flatten(growth, tree);
    return said;
  }
};

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !std::memcmp(a.data(), b.data(), a.size() * sizeof(float));
}

MedusaHeads random_heads(const MedusaSizes& sizes, uint64_t seed, double scale) {
  MedusaHeads heads{sizes, std::vector<float>(numbers_of(medusa_table(sizes)))};
  Chance(seed).fill(heads.weights.data(), heads.weights.size(), scale);
  return heads;
}

}  // namespace

TEST_CASE("ahead: a drafter that was right about the forward has the next tree at once, and it is the ordinary one") {
  for (const char* shape : {"chain:3", "tree:2x3", "cartesian:2,1,2"})
    for (float temperature : {0.0f, 0.7f, 1.0f}) {
      CAPTURE(shape);
      CAPTURE(temperature);
      Mock verifies(kSmallVocab, 16, 1.8f, 0.9f), drafts(kSmallVocab, 16, 1.8f, 0.9f);
      Progress progress;
      Assuming<Mock> self(drafts);
      Watched watched(self, progress);
      Slow<Mock> slow{verifies, progress, 1000};  // waits for all outcomes
      Trees ordinary, ahead;
      Stats stats;
      const std::vector<int> plain = text_of(verifies, nullptr, decoding_of(shape, temperature, 90, Ahead::kOff), {1});
      Decoding off = decoding_of(shape, temperature, 90, Ahead::kOff),
               on = decoding_of(shape, temperature, 90, Ahead::kOn);
      record(off, ordinary), record(on, ahead);
      CHECK(text_of(verifies, &self, off, {1}) == plain);
      CHECK(text_of(slow, &watched, on, {1}, &stats) == plain);
      CHECK(ahead == ordinary);  // the same trees: no tree of another outcome, place, noise or window
      CHECK(!watched.clashed);
      check_counts(stats);
      // It knows the target's every pick, so only before it has learned to trust itself an outcome seems too unlikely.
      CHECK(stats.ahead.hits == watched.foreseen);
      CHECK(stats.ahead.hits > 10);
      CHECK(stats.ahead.misses <= 1 + stats.ahead.forwards_without);
      CHECK(stats.ahead.cut == 0);
    }
}

TEST_CASE("ahead: the same trees where the drafter is but half right, and an outcome is often another than thought") {
  int64_t hits = 0, misses = 0, cut = 0;  // hits: where the target waits
  for (int delay : {0, 300})
    for (const char* shape : {"chain:3", "tree:2x2"})
      for (float temperature : {0.0f, 1.0f}) {
        CAPTURE(shape);
        CAPTURE(temperature);
        const Config config = small_config(2, 32), small = small_config(1, 64);
        const std::vector<float> weights = loud_weights(config, 4), other = loud_weights(small, 5);
        Target target(config, weights.data(), Dtype::fp32, false, 1, kGameRows);
        SmallModel gpt(std::make_unique<Target>(small, other.data(), Dtype::fp32, false, 1, kGameRows));
        Progress progress;
        Watched watched(gpt, progress);
        watched.delay = delay;
        Slow<Target> slow{target, progress, delay == 0 ? 40 : 0, 4 * delay};
        Trees ordinary, ahead;
        Stats stats;
        Decoding off = decoding_of(shape, temperature, 120, Ahead::kOff),
                 on = decoding_of(shape, temperature, 120, Ahead::kOn);
        const std::vector<int> plain = text_of(target, nullptr, off, {1, 2});
        record(off, ordinary), record(on, ahead);
        CHECK(text_of(target, &gpt, off, {1, 2}) == plain);
        CHECK(text_of(slow, &watched, on, {1, 2}, &stats) == plain);
        CHECK(ahead == ordinary);
        CHECK(!watched.clashed);
        check_counts(stats);
        misses += stats.ahead.misses, cut += stats.ahead.cut;
        if (delay > 0) continue;  // its hits depend on the clock
        CHECK(stats.ahead.hits == watched.foreseen);
        hits += stats.ahead.hits;
      }
  INFO(hits << " hits, " << misses << " misses, " << cut << " cut short");
  CHECK(hits > 90);
  CHECK(misses > 100);
}

TEST_CASE("ahead: a small model that was its target's copy drafts every next tree before it is asked") {
  const Config config = small_config(2, 128);
  const std::vector<float> weights = loud_weights(config, 6);
  for (int threads : {1, 2})
    for (float temperature : {0.0f, 0.7f}) {
      Target target(config, weights.data(), Dtype::fp32, false, threads, kGameRows);
      SmallModel copy(std::make_unique<Target>(config, weights.data(), Dtype::fp32, target.pool(), kGameRows));
      Progress progress;
      Watched watched(copy, progress);
      Slow<Target> slow{target, progress, 1000};
      Stats stats;
      text_of(slow, &watched, decoding_of("chain:5", temperature, 96, Ahead::kOn), {1, 2, 3}, &stats);
      CHECK(stats.target_forwards == 96 / 6);
      CHECK(stats.ahead.hits == watched.foreseen);
      CHECK(stats.ahead.hits + stats.ahead.misses == 96 / 6 - 1);
      CHECK(stats.ahead.misses <= 1);
    }
}

TEST_CASE("ahead: every shape and kind of drafter prints plain decoding's bytes, however the two threads meet") {
  const Config config = small_config(2, 32), small = small_config(1, 16);
  const std::vector<float> weights = loud_weights(config, 4), other = loud_weights(small, 5);
  const std::vector<float> wte(weights.begin(), weights.begin() + kSmallVocab * config.n_embd);
  int generations = 0;
  size_t tried = 0;
  std::map<std::string, int64_t> hits;
  for (int threads : {1, 2}) {
    Target target(config, weights.data(), Dtype::fp32, false, threads, kGameRows);
    Target own(config, weights.data(), Dtype::fp32, false, 1, kGameRows);
    SmallModel gpt(std::make_unique<Target>(small, other.data(), Dtype::fp32, target.pool(), kGameRows));
    SmallModel copy(std::make_unique<Target>(config, weights.data(), Dtype::fp32, target.pool(), kGameRows));
    Medusa medusa(random_heads({4, kOwnProjection, config.n_embd, kSmallVocab, false}, 8, 3), nullptr);
    Medusa rooted(random_heads({3, 0, config.n_embd, kSmallVocab, true}, 9, 1), wte.data());
    Assuming<Target> self(own);
    WrongDrafter<Target> wrong(own);
    const std::vector<std::pair<std::string, Drafter*>> drafters = {
        {"gpt", &gpt}, {"copy", &copy}, {"medusa", &medusa}, {"rooted", &rooted}, {"self", &self}, {"wrong", &wrong}};
    for (float temperature : {0.0f, 0.7f, 1.0f}) {
      // Two texts in turn: a new prompt must not meet what the last one left.
      const std::vector<std::vector<int>> prompts = {{1, 2, 3}, {7}, std::vector<int>(40, 5)};
      std::vector<std::vector<int>> plain;
      for (const auto& prompt : prompts)
        plain.push_back(text_of(target, nullptr, decoding_of("chain:1", temperature, 70, Ahead::kOff), prompt));
      for (const auto& entry : drafters) {
        const std::string& name = entry.first;
        std::shared_ptr<Experience> experience;
        size_t nth = 0;
        for (const char* shape : kAllShapes)
          for (Ahead ahead : {Ahead::kOn, Ahead::kAuto}) {
            // Of a sixtieth besides what is drawn each drafter's first ones, until enough was drafted ahead.
            const bool enough = !a_sixtieth() || name == "wrong" || hits[name] > 10;
            if (!drawn(tried++, a_sixtieth() ? 16 : a_tenth() ? 5 : threads == 2 ? 4 : 1) && enough) {
              nth++;
              continue;
            }
            CAPTURE(shape);
            CAPTURE(name);
            CAPTURE(temperature);
            Progress progress;
            Watched watched(*entry.second, progress);
            const int how = int(nth % 3);  // swift; both slow; the worker is awaited
            const bool awaits = how == 2 && ahead == Ahead::kOn && name != "wrong";
            watched.delay = how == 1 ? 200 : 0;
            Slow<Target> slow{target, progress, awaits ? 3 : 0, how == 1 ? 500 : 0};
            Decoding decoding = decoding_of(shape, temperature, 70, ahead);
            if (!experience || nth % 7 == 0) experience = std::make_shared<Experience>();
            decoding.experience = experience;
            Stats stats;
            CHECK(text_of(slow, &watched, decoding, prompts[nth % 3], &stats) == plain[nth % 3]);
            CHECK(!watched.clashed);
            CHECK(stats.ahead.able == (name != "wrong"));
            check_counts(stats);
            hits[name] += stats.ahead.hits;
            generations++, nth++;
          }
      }
    }
  }
  CHECK(generations > (a_sixtieth() ? 50 : a_tenth() ? 100 : 750));
  for (const char* name : {"gpt", "copy", "medusa", "rooted", "self"}) {
    CAPTURE(name);
    CHECK(hits[name] > 10);
  }
  INFO(generations << " generations");
  CHECK(hits["wrong"] == 0);
}

TEST_CASE("ahead: a text may end anywhere, and no thread is left") {
  const int before = threads_alive();
  Mock verifies(kSmallVocab, 16, 1.8f, 0.9f), drafts(kSmallVocab, 16, 1.8f, 0.9f);
  Progress progress;
  Assuming<Mock> self(drafts);
  const Decoding on = decoding_of("tree:2x2", 1, 40, Ahead::kOn);
  const std::vector<int> plain = text_of(verifies, nullptr, decoding_of("chain:1", 1, 40, Ahead::kOff), {1});
  for (int last = 1; last <= 40; last++) {
    Watched watched(self, progress);
    watched.delay = last % 2 ? 300 : 0;
    std::vector<int> text = {1};
    const Stats stats = generate(verifies, &watched, on, text, [&](int) { return int(text.size()) <= last; });
    CHECK(stats.tokens == last);
    CHECK(text == std::vector<int>(plain.begin(), plain.begin() + 1 + last));
    check_counts(stats);
    CHECK(!watched.assuming);
    CHECK(threads_left(before));
  }
  // What is thrown on either thread arrives, and the other ends too.
  std::vector<int> text = {1};
  CHECK_THROWS_AS(generate(verifies, &self, on, text, [&](int) -> bool { throw std::runtime_error("stop"); }),
                  std::runtime_error);
  CHECK(threads_left(before));
  struct Failing : Assuming<Mock> {
    using Assuming<Mock>::Assuming;
    bool assume(const int* tokens, int n) override {
      if (n > 0) throw std::runtime_error("the worker fails");
      return Assuming<Mock>::assume(tokens, n);
    }
  } failing(drafts);
  Slow<Mock> slow{verifies, progress, 0, 2000};
  text = {1};
  CHECK(holds(error_of([&] { generate(slow, &failing, on, text, [](int) { return true; }); }), "the worker fails"));
  CHECK(threads_left(before));
}

TEST_CASE("ahead: after assuming tokens and rolling back, gpt: says what it says without, bit for bit") {
  for (int block : {32, 64})
    for (Dtype cache : {Dtype::fp32, Dtype::bf16}) {
      const Config config = small_config(2, block);
      const std::vector<float> weights = loud_weights(config, 3);
      const auto make = [&] {
        return SmallModel(std::make_unique<Target>(config, weights.data(), Dtype::fp32, false, 1, kGameRows, cache));
      };
      SmallModel asked = make(), never = make();
      int64_t compared = 0, assumed = 0;
      for (uint32_t seed = 1; seed <= 6; seed++) {
        AskedGame game(seed);
        const std::vector<int> prompt = game.tokens(1 + int(seed) * 4);
        int root = prompt.back();
        for (SmallModel* one : {&asked, &never}) one->begin(prompt.data(), int(prompt.size()));
        for (int turn = 0; turn < 30; turn++) {
          const uint32_t move = seed * 1000 + uint32_t(turn);
          const int nodes = 1 + game.chance.below(6);
          AskedGame own(move), other(move);  // the same questions to both
          if (game.chance.below(5) > 0) {    // else a forward whose tree was drafted ahead
            const std::vector<float> a = own.ask(asked, root, nodes), b = other.ask(never, root, nodes);
            CHECK(same(a, b));
            compared += int64_t(a.size());
          } else {
            own.growth.start(root), flatten(own.growth, own.tree);
          }
          // Assumptions: along the tree and beside it, of which some are drafted for, some under the last one's path.
          CHECK(asked.assume(nullptr, 0));
          if (game.chance.below(2)) {  // the tree is looked at again, as for its outcomes
            std::vector<int> all;
            for (int i = 0; i < own.growth.size(); i++) all.push_back(i);
            asked.prepare(own.growth, all.data(), int(all.size()));
          }
          std::vector<int> path;
          for (int turns = game.chance.below(4); turns > 0; turns--) {
            if (path.empty() || game.chance.below(2)) {
              path.clear();
              for (int i = 0; i < own.tree.size() - 1 && game.chance.below(4); i++)
                path.push_back(own.tree.token[i + 1]);
            }
            path.push_back(game.chance.below(kSmallVocab));
            if (!asked.assume(path.data(), int(path.size()))) continue;
            assumed++;
            AskedGame(move + 7).ask(asked, path.back(), 1 + game.chance.below(4));
          }
          if (game.chance.below(4) > 0) asked.rollback();  // else committed() does
          std::vector<int> tokens, rows;
          for (int node = 0; node >= 0;) {
            rows.push_back(node);
            node = game.chance.below(4) ? own.tree.first_child(node) : -1;
            tokens.push_back(node >= 0 ? own.tree.token[node] : game.chance.below(kSmallVocab));
          }
          for (SmallModel* one : {&asked, &never})
            one->committed({tokens.data(), rows.data(), int(rows.size()), own.tree});
          root = tokens.back();
        }
      }
      CHECK(compared > 1000);
      CHECK(assumed > 100);
    }
}

TEST_CASE("ahead: what gpt: says of an assumed text is what it says once that is committed") {
  const Config config = small_config(2, 64);
  const std::vector<float> weights = loud_weights(config, 3);
  SmallModel first(std::make_unique<Target>(config, weights.data(), Dtype::fp32, false, 1, kGameRows));
  SmallModel second(std::make_unique<Target>(config, weights.data(), Dtype::fp32, false, 1, kGameRows));
  AskedGame game(3);
  const std::vector<int> prompt = game.tokens(20);
  for (SmallModel* one : {&first, &second}) one->begin(prompt.data(), 20);
  game.ask(first, prompt.back(), 4);
  const Tree tree = game.tree;
  const std::vector<int> tokens = {tree.token[1], 9}, rows = {0, 1};
  first.assume(nullptr, 0);
  REQUIRE(first.assume(tokens.data(), 2));
  const std::vector<float> ahead = AskedGame(5).ask(first, 9, 5);
  second.committed({tokens.data(), rows.data(), 2, tree});
  CHECK(same(ahead, AskedGame(5).ask(second, 9, 5)));
  CHECK(ahead.size() == 5 * kSmallVocab);
  first.committed({tokens.data(), rows.data(), 2, tree});
  CHECK(same(ahead, AskedGame(5).ask(first, 9, 5)));
  const std::vector<int> across(60, 1);  // the window would move: not ahead of time
  CHECK(!first.assume(across.data(), 60));
}

TEST_CASE("ahead: medusa's later heads stand in for those of a state that is not known yet") {
  const MedusaSizes sizes = {4, kOwnProjection, 8, kSmallVocab, false};
  Medusa medusa(random_heads(sizes, 4, 2), nullptr);
  const std::vector<float> state = {1, -2, 3, 4, -1, 0.5f, 2, 1};
  MadeUpRows rows;
  rows.of_hidden = [&](int) { return state.data(); };
  const int tokens[] = {3, 4}, row = 0;
  Tree tree;
  Growth growth;
  growth.start(3);
  tell(medusa, {tokens, &row, 1, tree}, rows);
  for (int depth = 0; depth < 3; depth++) growth.add(depth, {1, 1});
  std::vector<std::vector<float>> heads;
  for (int k = 0; k < 4; k++) heads.emplace_back(medusa.logits(growth, k), medusa.logits(growth, k) + kSmallVocab);
  CHECK(heads[0] != heads[1]);
  CHECK(medusa.assume(nullptr, 0));
  CHECK(same(heads[1], std::vector<float>(medusa.logits(growth, 1), medusa.logits(growth, 1) + kSmallVocab)));
  CHECK(medusa.assume(tokens, 2));
  CHECK(same(heads[2], std::vector<float>(medusa.logits(growth, 0), medusa.logits(growth, 0) + kSmallVocab)));
  CHECK(medusa.logits(growth, 2) == nullptr);
  medusa.rollback();
  CHECK(same(heads[2], std::vector<float>(medusa.logits(growth, 2), medusa.logits(growth, 2) + kSmallVocab)));
  CHECK(!medusa.assume(tokens, 4));
  tell(medusa, {tokens, &row, 1, tree}, rows);
  CHECK(same(heads[0], std::vector<float>(medusa.logits(growth, 0), medusa.logits(growth, 0) + kSmallVocab)));
}

TEST_CASE("ahead: the test of drafting ahead keeps what is faster, says by how much, and looks again") {
  for (bool faster : {true, false}) {
    ABTest ahead_test;
    CHECK(ahead_test.gain() == 0);
    int with = 0;
    const int forwards = 3000;
    for (int i = 0; i < forwards; i++) {
      with += ahead_test.on();
      ahead_test.observe(ahead_test.on(), ahead_test.on() == faster ? 1e-3 : 2e-3, 2);
    }
    CHECK(ahead_test.gain() == doctest::Approx(faster ? 2 : 0.5));
    CHECK(ahead_test.on() == faster);
    CHECK((faster ? forwards - with : with) < forwards / 10);
    CHECK((faster ? forwards - with : with) > 3 * 9);  // the trial, and looks later on
    for (int i = 0; i < forwards; i++) ahead_test.observe(ahead_test.on(), ahead_test.on() == faster ? 2e-3 : 1e-3, 2);
    CHECK(ahead_test.on() == !faster);
  }
  ABTest ahead_test;  // a forward that is not what it said is none
  for (int i = 0; i < 100; i++) ahead_test.observe(true, 1, 1);
  CHECK(!ahead_test.on());
}

TEST_CASE("ahead: what cannot be is said") {
  Mock target(kSmallVocab, 16, 1, 1), own(kSmallVocab, 16, 1, 1);
  Assuming<Mock> self(own);
  for (const RuleWord& rule : kRules) {
    Decoding decoding = decoding_of("chain:3", 1, 10, Ahead::kOn);
    decoding.rule = parse_rule(rule.word);
    std::vector<int> text = {1};
    if (decoding.rule == Rule::kMatch) continue;
    CHECK(holds(message_of([&] { generate(target, &self, decoding, text, [](int) { return true; }); }), "--ahead"));
  }
  CHECK(parse_ahead("auto") == Ahead::kAuto);
  CHECK(holds(message_of([] { parse_ahead("atuo"); }), "did you mean auto?"));
  // No drafter, or one that cannot: nothing is counted, no thread is made.
  Stats stats;
  text_of(target, nullptr, decoding_of("chain:3", 1, 10, Ahead::kOn), {1}, &stats);
  CHECK(!stats.ahead.wanted);
  SelfDrafter<Mock> cannot(own);
  text_of(target, &cannot, decoding_of("chain:3", 1, 10, Ahead::kOn), {1}, &stats);
  CHECK(stats.ahead.wanted);
  CHECK(!stats.ahead.able);
  CHECK(stats.ahead.forwards + stats.ahead.forwards_without + stats.ahead.outcomes == 0);
}

TEST_CASE("ahead: after a text that ended by an exception the next one is plain decoding's") {
  Mock verifies(kSmallVocab, 16, 1.8f, 0.9f), drafts(kSmallVocab, 16, 1.8f, 0.9f);
  Progress progress;
  Assuming<Mock> self(drafts);
  Watched watched(self, progress);
  watched.delay = 500;  // so that the worker is in the midst of a tree
  const Decoding on = decoding_of("tree:2x3", 1, 60, Ahead::kOn);
  const std::vector<int> plain = text_of(verifies, nullptr, decoding_of("chain:1", 1, 60, Ahead::kOff), {1});
  for (int last : {1, 2, 5, 9, 20}) {
    std::vector<int> text = {1};
    int left = last;
    const auto breaks = [&](int) -> bool {
      if (--left == 0) throw std::runtime_error("full");
      return true;
    };
    CHECK_THROWS_AS(generate(verifies, &watched, on, text, breaks), std::runtime_error);
    CHECK(text == std::vector<int>(plain.begin(), plain.begin() + 1 + last));
    CHECK(text_of(verifies, &watched, on, {1}) == plain);
  }
  CHECK(!watched.clashed);
}
