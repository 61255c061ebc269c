// tests/core/test_decode.cpp: decode.h, on a mock whose logits are known: the window, the loop's laws, the sweep (the
// same text whatever drafts it), and the distributions of what is emitted.
#include "watch/decoding.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "drafters/adapt.h"
#include "files/io.h"
#include "files/text.h"
#include "tests/mock.h"

using namespace nanospec;
using Ints = std::vector<int>;

namespace {

constexpr int kVocab = 13, kBlock = 16;

// A model that a bigram drafter can partly guess.
Mock make_mock(int block = kBlock) { return Mock(kVocab, block, 1.8f, 0.9f); }

Ints prompt_of(int n, uint64_t seed = 1) {
  Ints prompt;
  for (int i = 0; i < n; i++) prompt.push_back(int(random_bits(seed, 0, 1000, uint64_t(i), 0) % kVocab));
  return prompt;
}

// Of forwards that take 1 ms, and `row` of that more for each node.
std::shared_ptr<Cost> costs(double row, int budget) {
  std::vector<double> seconds;
  for (int n = 0; n <= budget; n++) seconds.push_back(1e-3 * (1 + row * n));
  return std::make_shared<Cost>(seconds);
}

// A watch that stands still: what auto does is then the same on every machine.
struct Still {
  double lap() { return 0; }
};

Decoding decoding_of(const std::string& shape, float temperature, int tokens, uint64_t seed = 1, int budget = 64) {
  Decoding decoding;
  decoding.shape = ready_shape(shape, budget);
  decoding.cost = costs(0.05, budget);
  decoding.sampling.temperature = temperature, decoding.sampling.seed = seed;
  decoding.max_new_tokens = tokens;
  return decoding;
}

// Generates and holds the counts against what they must add up to.
template <class Target, class Watch = Still>
Stats counted(Target& target, Drafter* drafter, const Decoding& decoding, Ints& text, Watch watch = {}) {
  const size_t before = text.size();
  Ints streamed;
  const Stats stats = generate(
      target, drafter, decoding, text,
      [&](int token) {
        streamed.push_back(token);
        return true;
      },
      watch);
  CHECK(stats.tokens == decoding.max_new_tokens);
  CHECK(text.size() == before + size_t(stats.tokens));
  CHECK(streamed == Ints(text.begin() + before, text.end()));
  int64_t forwards = 0, tokens = 0;
  for (size_t i = 0; i < stats.accept_histogram.size(); i++)
    forwards += stats.accept_histogram[i], tokens += int64_t(i) * stats.accept_histogram[i];
  CHECK(forwards == stats.target_forwards);
  CHECK(tokens == stats.tokens);
  CHECK(stats.accept_histogram[0] == 0);
  int64_t accepted = 0;
  for (const auto& [name, nodes] : stats.accepted_by) accepted += nodes;
  CHECK(accepted == stats.tokens - stats.target_forwards);  // each forward emits one token of the target's own
  return stats;
}

Ints plain_text(const Decoding& decoding, const Ints& prompt, int block = kBlock, Stats* stats = nullptr) {
  Mock target = make_mock(block);
  Decoding plain = decoding;
  plain.rule = Rule::kMatch;
  Ints text = prompt;
  const Stats counts = counted(target, nullptr, plain, text);
  CHECK(counts.target_forwards == plain.max_new_tokens);
  CHECK(counts.drafted_nodes == 0);
  CHECK(target.rows_forwarded == plain.max_new_tokens);
  if (stats) *stats = counts;
  return text;
}

bool same(const Ints& a, const Ints& b) { return a.size() == b.size() && !memcmp(a.data(), b.data(), 4 * a.size()); }

// What the mock itself writes, for drafters to learn from.
const Ints& mock_text() {
  static const Ints text = plain_text(decoding_of("auto", 1, 20000, 99), {0});
  return text;
}
const std::vector<float>& mock_bigrams() {
  static const std::vector<float> table = bigram_table(mock_text(), kVocab);
  return table;
}
const Ngrams& mock_ngrams();

// suffix+ngram:4+recycle
std::unique_ptr<Drafter> mock_union() {
  std::vector<std::unique_ptr<Drafter>> parts;
  parts.push_back(std::make_unique<Suffix>(kVocab)), parts.back()->name = "suffix";
  parts.push_back(std::make_unique<Ngram>(mock_ngrams())), parts.back()->name = "ngram:4";
  parts.push_back(std::make_unique<Recycle>(kVocab)), parts.back()->name = "recycle";
  return std::make_unique<Union>(std::move(parts));
}

const Ngrams& mock_ngrams() {
  static const Ngrams ngrams = interpolated(count_ngrams(mock_text(), kVocab), 4, kVocab);
  return ngrams;
}

// A mock that runs whole iterations by itself, and drafts by itself from a drafter's table: what a GPU does.
struct WholeMock : Mock {
  Table held;
  int64_t drafted_itself = 0;

  WholeMock() : Mock(make_mock()) {}
  bool iterates() const { return true; }
  Verdict iterate(const Tree& tree, const Sampling& sampling, int64_t index) {
    Noise noise(sampling, kVocab);
    forward(tree.token.data(), tree.depth.data(), tree.end.data(), tree.size());
    const Verdict verdict = match(
        tree, [&](int node) { return pick(logits(node), noise.row(index + tree.depth[node]), kVocab, sampling); });
    const bool room = past() + int(verdict.rows.size()) < kBlock;  // a mock keeps no rows for a window that moves
    if (room) keep(verdict.rows.data(), int(verdict.rows.size()));
    return verdict;
  }
  bool load_table(const Table& table, int depth, int width) {
    return held = table, table && full_tree_nodes(depth, width) < 32;
  }
  Verdict iterate_drafting(int root, int depth, int width, float, const Sampling& sampling, int64_t index,
                           std::vector<Candidate>& drafted) {
    Bigram bigram(*held, kVocab);
    Noise noise(sampling, kVocab);
    const Draws draws = {&sampling, sampling.temperature > 0 ? &noise : nullptr, index, false};
    const Shape shape = parse_shape("tree:" + std::to_string(depth) + "x" + std::to_string(width), 1 << 20);
    Growth growth;
    Tree tree;
    growth.start(root);
    grow(shape, Limits{depth}, growth, [&](const int* nodes, int n, int w, Candidate* candidates, int* found) {
      bigram.expand(growth, nodes, n, w, draws, candidates, found);
    });
    flatten(growth, tree);
    drafted.clear();
    for (int i = 1; i < growth.size(); i++) drafted.push_back({growth.token[i], growth.chance[i]});
    return drafted_itself++, iterate(tree, sampling, index);
  }
};

}  // namespace

TEST_CASE("decode: the window: where it begins is a function of the length, and it is never too long") {
  // block 16 moves by 8: up to 16 tokens are seen whole, the 17th is seen with the 8 to 15 before it
  CHECK(window_start(1, 16) == 0);
  CHECK(window_start(16, 16) == 0);
  CHECK(window_start(17, 16) == 8);
  CHECK(window_start(24, 16) == 8);
  CHECK(window_start(25, 16) == 16);
  CHECK(window_start(300, 16) == 288);
  for (int block : {2, 4, 6, 64, 1024})
    for (int n = 1; n < 5000; n++) {
      const int start = window_start(n, block), held = n - start;
      const int expected = n <= block ? 0 : int(std::ceil((n - block) / (block / 2.0))) * (block / 2);
      if (start != expected || held > block || (start > 0 && held <= block / 2)) FAIL_CHECK(block << " " << n);
    }
}

TEST_CASE("decode: plain decoding is one pick after the other, each seeing its window") {
  for (float temperature : {0.0f, 1.0f}) {
    const Decoding decoding = decoding_of("auto", temperature, 60, 3);
    const Ints prompt = prompt_of(5);
    Stats stats;
    const Ints text = plain_text(decoding, prompt, kBlock, &stats);
    Mock slow = make_mock();  // no cache: every window is read afresh
    Noise noise(decoding.sampling, kVocab);
    Ints expected = prompt;
    while (expected.size() < text.size()) {
      const int depth = 0, end = 1;
      open_window(slow, expected);
      slow.forward(&expected.back(), &depth, &end, 1);
      expected.push_back(pick(slow.logits(0), noise.row(int64_t(expected.size())), kVocab, decoding.sampling));
    }
    CHECK(same(text, expected));
    int slides = 0;  // the last token needs no new window
    for (int n = 6; n < 65; n++) slides += window_start(n, kBlock) != window_start(n - 1, kBlock);
    CHECK(stats.slide_prefills == slides);
  }
}

TEST_CASE("decode: a long prompt continues as the text that it was taken from") {
  const Decoding decoding = decoding_of("chain:4", 1, 400, 7);
  const Ints whole = plain_text(decoding, prompt_of(3));
  for (int cut : {4, 15, 16, 17, 100, 300}) {
    Decoding rest = decoding;
    rest.max_new_tokens = int(whole.size()) - cut;
    const Ints prompt(whole.begin(), whole.begin() + cut);
    CHECK(same(plain_text(rest, prompt), whole));
    Mock target = make_mock();
    Bigram drafter(mock_bigrams(), kVocab);
    Ints text = prompt;
    counted(target, &drafter, rest, text);
    CHECK(same(text, whole));
  }
}

TEST_CASE("decode: a target that drafts for itself is accepted in full, always") {
  for (float temperature : {0.0f, 0.4f, 1.0f, 1.5f})
    for (const char* shape : {"chain:1", "chain:5", "tree:3x2", "tree:2x4", "auto"})
      for (const auto& [top_k, top_p] : {std::pair<int, float>{0, 1.0f}, {4, 1.0f}, {0, 0.8f}})
        for (int length : {1, 7, 40}) {
          Decoding decoding = decoding_of(shape, temperature, 70, 5);
          decoding.sampling.top_k = top_k, decoding.sampling.top_p = top_p;
          decoding.cost = costs(0, 64);  // auto: everything pays
          Mock target = make_mock(), own = make_mock();
          SelfDrafter<Mock> drafter(own);
          Ints text = prompt_of(length);
          const Stats stats = counted(target, &drafter, decoding, text);
          CHECK(same(text, plain_text(decoding, prompt_of(length))));
          if (decoding.shape.kind == Shape::kAuto) continue;
          // every forward commits as many tokens as the tree is deep, and one: the window and the end cut it
          int64_t forwards = 0;
          for (int n = length, end = length + 70; n < end; forwards++) {
            const int room = kBlock - 1 - (n - 1 - window_start(n, kBlock));
            n += 1 + std::min({decoding.shape.depth, room, end - n - 1});
          }
          CHECK(stats.target_forwards == forwards);
        }
}

TEST_CASE("decode: a drafter that is always wrong changes nothing but speed") {
  for (float temperature : {0.0f, 1.0f})
    for (const char* shape : {"chain:3", "tree:2x3", "auto"}) {
      const Decoding decoding = decoding_of(shape, temperature, 60, 2);
      Mock target = make_mock(), own = make_mock();
      WrongDrafter<Mock> drafter(own);
      Ints text = prompt_of(4);
      const Stats stats = counted(target, &drafter, decoding, text);
      CHECK(same(text, plain_text(decoding, prompt_of(4))));
      CHECK(stats.target_forwards == 60);
      if (decoding.shape.kind != Shape::kAuto) CHECK(stats.drafted_nodes > 100);
    }
}

TEST_CASE("decode: a drafter that has logits alone is enough") {
  struct Constant : Drafter {  // always the same token
    int told = 0;
    std::vector<float> row;
    explicit Constant(int token) : row(size_t(kVocab), -std::numeric_limits<float>::infinity()) {
      vocab = kVocab, name = "constant", row[size_t(token)] = 0;
    }
    const float* logits(const Growth&, int) override { return row.data(); }
    void committed(const Commit& commit) override { told += commit.n; }
  };
  for (const char* shape : {"chain:3", "tree:2x3", "best-first", "auto"})
    for (Ahead ahead : {Ahead::kOff, Ahead::kOn}) {
      Decoding decoding = decoding_of(shape, 1, 200);
      decoding.ahead = ahead;
      Mock target = make_mock();
      Constant drafter(plain_text(decoding, prompt_of(3))[3]);
      Ints text = prompt_of(3);
      const Stats stats = counted(target, &drafter, decoding, text);
      CHECK(same(text, plain_text(decoding, prompt_of(3))));
      CHECK(drafter.told > 150);
      CHECK((stats.accepted_by.empty() || stats.accepted_by.begin()->first == "constant"));
      CHECK(stats.ahead.wanted == (ahead == Ahead::kOn));
      CHECK(!stats.ahead.able);
      if (!strcmp(shape, "chain:3")) CHECK(stats.accepted_by.count("constant") == 1);
      if (strcmp(shape, "chain:3") != 0) continue;
      decoding.rule = Rule::kIndependent, decoding.ahead = Ahead::kOff;
      CHECK(counted(target, &drafter, decoding, text).tokens == 200);
    }
}

TEST_CASE("decode: penalties count the tokens before a place, on each node's own path") {
  const auto one = [](float temperature, float repetition, float presence, float frequency) {
    Decoding decoding = decoding_of("tree:3x2", temperature, 60, 3);
    decoding.sampling.repetition_penalty = repetition;
    decoding.sampling.presence_penalty = presence, decoding.sampling.frequency_penalty = frequency;
    return decoding;
  };
  std::set<Ints> texts;
  for (const Decoding& decoding : {one(0, 1.5f, 0, 0), one(0, 1, 1.5f, 0), one(0, 1, 0, 0.4f),
                                   one(0.7f, 0.8f, 1, 0.25f), one(1, 1, -2, 0.5f), one(1, 1, 0, 0)}) {
    Ints by_hand = prompt_of(5);
    const Sampling& s = decoding.sampling;
    Mock target = make_mock();
    Noise noise(s, kVocab);
    for (int n = 5; n < 65; n++) {
      open_window(target, by_hand);
      const int zero = 0, end = 1;
      target.forward(&by_hand.back(), &zero, &end, 1);
      std::vector<float> row(target.logits(0), target.logits(0) + kVocab);
      std::map<int, int> times;
      for (int token : by_hand) times[token]++;
      for (const auto& [token, count] : times) {
        float& logit = row[size_t(token)];
        logit = logit > 0 ? logit / s.repetition_penalty : logit * s.repetition_penalty;
        logit = logit - s.frequency_penalty * float(count) - s.presence_penalty;
      }
      by_hand.push_back(pick(row.data(), noise.row(n), kVocab, s));
    }
    CHECK(same(plain_text(decoding, prompt_of(5)), by_hand));
    texts.insert(by_hand);
    for (const RuleWord& rule : kRules) {  // at temperature 0 only the likeliest token has a chance
      if (s.temperature > 0 || rule.promise == Promise::kLossy) continue;
      CAPTURE(rule.word);
      Decoding judged = decoding;
      judged.rule = parse_rule(rule.word);
      judged.shape = ready_shape(rule.chains_only ? "chain:3" : "tree:3x2", 64);
      Mock model = make_mock(), own = make_mock();
      SelfDrafter<Mock> drafter(own);
      Ints text = prompt_of(5);
      const Stats stats = counted(model, &drafter, judged, text);
      CHECK(same(text, by_hand));
      CHECK(stats.target_forwards < 60);
    }
  }
  CHECK(texts.size() > 4);  // two may be alike
}

TEST_CASE("decode: the repetition penalty is that of transformers") {
  for (const Json& row : Json::parse(read_file("tests/files/penalties.json"))) {  // tests/reference/penalties.py
    Sampling sampling;
    sampling.repetition_penalty = row["penalty"];
    const std::vector<float> logits = row["logits"], wanted = row["penalized"];
    std::map<int, int> times;
    for (const Json& token : row["tokens"]) times[token.get<int>()]++;
    for (size_t x = 0; x < logits.size(); x++)
      CHECK((times.count(int(x)) ? penalized(logits[x], times[int(x)], sampling) : logits[x]) == wanted[x]);
  }
}

TEST_CASE("decode: the sweep: the same text, whoever drafts it in whatever shape") {
  mock_bigrams(), mock_ngrams();
  struct Cut {
    float temperature;
    int top_k;
    float top_p, min_p = 0, repetition = 1, presence = 0, frequency = 0;
  };
  const Cut cuts[] = {{0, 0, 1},
                      {0.4f, 0, 1},
                      {0.8f, 0, 1, 0, 1.3f},
                      {1, 0, 1, 0, 1, 0, 0.5f},
                      {1.5f, 0, 1, 0.2f},
                      {1, 3, 1},
                      {0.8f, 0, 0.7f, 0, 0.7f, 1},
                      {1, 6, 0.9f},
                      {0, 0, 1, 0, 1.3f, -0.5f, 0.2f}};
  constexpr int kDrafters = 9;
  size_t setting = 0;
  int64_t generations = 0, tokens[kDrafters] = {}, forwards[kDrafters] = {};
  for (const Cut& cut : cuts)
    for (uint64_t seed : {1, 2})
      for (int length : {1, 9, 40})
        for (int block : {kBlock, 6}) {
          if (!runs(setting++, 8)) continue;
          const int wanted = 45;
          Decoding decoding = decoding_of("auto", cut.temperature, wanted, seed);
          decoding.sampling.top_k = cut.top_k, decoding.sampling.top_p = cut.top_p;
          decoding.sampling.min_p = cut.min_p;
          decoding.sampling.repetition_penalty = cut.repetition;
          decoding.sampling.presence_penalty = cut.presence, decoding.sampling.frequency_penalty = cut.frequency;
          const Ints prompt = prompt_of(length, seed), plain = plain_text(decoding, prompt, block);
          for (const char* shape : kAllShapes)
            for (int budget : {64, 9})
              for (int who = 0; who < kDrafters; who++) {
                if (budget == 9 && parse_shape(shape, 64).fixed()) continue;  // which a budget does not bind
                decoding.shape = ready_shape(shape, budget);
                Mock target = make_mock(block), own = make_mock(block);
                std::unique_ptr<Drafter> drafter;
                if (who == 0) drafter = std::make_unique<Bigram>(mock_bigrams(), kVocab);
                if (who == 1) drafter = std::make_unique<SelfDrafter<Mock>>(own);
                if (who == 2) drafter = std::make_unique<Ngram>(mock_ngrams());
                if (who == 3) drafter = std::make_unique<RandomLogits>(kVocab);
                if (who == 4) drafter = std::make_unique<RandomDrafter>(kVocab);
                if (who == 5) drafter = std::make_unique<Lookup>(kVocab);
                if (who == 6) drafter = std::make_unique<Suffix>(kVocab);
                if (who == 7) drafter = std::make_unique<Recycle>(kVocab);
                if (who == 8) drafter = mock_union();
                Ints text = prompt;
                const Stats stats = counted(target, drafter.get(), decoding, text);
                if (!same(text, plain))
                  FAIL_CHECK("drafter " << who << " " << shape << " budget " << budget << " temperature "
                                        << cut.temperature << " top_k " << cut.top_k << " top_p " << cut.top_p
                                        << " seed " << seed << " prompt " << length << " block " << block);
                generations++, tokens[who] += stats.tokens, forwards[who] += stats.target_forwards;
              }
        }
  const char* names[] = {"bigram", "self", "ngram:4", "random", "chance", "lookup", "suffix", "recycle", "union"};
  std::string lengths;
  for (int who = 0; who < kDrafters; who++)
    lengths += std::string(" ") + names[who] + " " + std::to_string(double(tokens[who]) / double(forwards[who]));
  INFO("generations " << generations << ", acceptance length:" << lengths);
  CHECK(generations >= (a_tenth() ? 2000 : 20000));
  CHECK(double(tokens[0]) / double(forwards[0]) > 1.2);  // a sweep that accepts nothing proves nothing
  CHECK(double(tokens[1]) / double(forwards[1]) > 1.2);
  CHECK(double(tokens[2]) / double(forwards[2]) > 1.2);
  for (int who : {5, 6, 7, 8}) CHECK(double(tokens[who]) / double(forwards[who]) > 1.1);
}

TEST_CASE("decode: trees larger than any buffer that anyone might have thought enough") {
  const int block = 400;  // deeper than the rows of noise that are held at once
  for (const char* shape : {"chain:150", "tree:8x2", "tree:2x13", "tree:1x13", "auto"}) {
    Decoding decoding = decoding_of(shape, 1, 500, 4, 600);
    decoding.cost = costs(0, 600);
    Mock target = make_mock(block), own = make_mock(block);
    SelfDrafter<Mock> self(own);
    Bigram bigram(mock_bigrams(), kVocab);
    const Ints plain = plain_text(decoding, prompt_of(3), block);
    for (Drafter* drafter : {static_cast<Drafter*>(&self), static_cast<Drafter*>(&bigram)}) {
      Ints text = prompt_of(3);
      const Stats stats = counted(target, drafter, decoding, text);
      CHECK(same(text, plain));
      if (!strcmp(shape, "chain:150") && drafter == &self)
        CHECK(stats.target_forwards == 4);  // 151 + 151 + 96 to the end of the window + 102
    }
  }
}

TEST_CASE("decode: no surplus is drafted, and a callback may end it") {
  Mock target = make_mock(), own = make_mock();
  SelfDrafter<Mock> drafter(own);
  for (int wanted : {0, 1, 2, 5}) {
    const Decoding decoding = decoding_of("chain:8", 1, wanted);
    Ints text = prompt_of(3);
    const Stats stats = counted(target, &drafter, decoding, text);
    CHECK(stats.target_forwards == (wanted > 0));
    CHECK(stats.drafted_nodes == std::max(0, wanted - 1));
  }
  const Decoding decoding = decoding_of("chain:8", 1, 50);
  const Ints whole = plain_text(decoding, prompt_of(3));
  for (int stop : {1, 4, 9, 30}) {
    Ints text = prompt_of(3);
    int left = stop;
    const Stats stats = generate(target, &drafter, decoding, text, [&](int) { return --left > 0; });
    CHECK(stats.tokens == stop);
    CHECK(same(text, Ints(whole.begin(), whole.begin() + 3 + stop)));
    int64_t tokens = 0;
    for (size_t i = 0; i < stats.accept_histogram.size(); i++) tokens += int64_t(i) * stats.accept_histogram[i];
    CHECK(tokens == stop);
  }
}

TEST_CASE("decode: wrong prompts and rules that do not fit are refused") {
  Mock target = make_mock();
  Bigram drafter(mock_bigrams(), kVocab);
  const auto run = [&](Ints text, const char* shape, Rule rule) {
    Decoding decoding = decoding_of(shape, 1, 5);
    decoding.rule = rule;
    generate(target, &drafter, decoding, text, [](int) { return true; });
  };
  CHECK_THROWS_AS(run({}, "auto", Rule::kMatch), std::runtime_error);
  CHECK_THROWS_AS(run({1, kVocab}, "auto", Rule::kMatch), std::runtime_error);
  CHECK_THROWS_AS(run({-1}, "auto", Rule::kMatch), std::runtime_error);
  CHECK_THROWS_AS(run({1}, "tree:2x2", Rule::kRejection), std::invalid_argument);
  CHECK_THROWS_AS(run({1}, "auto", Rule::kRejection), std::invalid_argument);
  CHECK_NOTHROW(run({1}, "chain:2", Rule::kRejection));
  CHECK_NOTHROW(run({1}, "tree:2x2", Rule::kIndependent));
  CHECK_THROWS_AS(run({1}, "tree:2x2", Rule::kBlock), std::invalid_argument);
  CHECK_THROWS_AS(run({1}, "auto", Rule::kTraversal), std::invalid_argument);
  CHECK_NOTHROW(run({1}, "auto", Rule::kTypical));
}

TEST_CASE("decode: the drafter is told each forward's tokens, rows, hidden states, features and logits") {
  struct Listener : SelfDrafter<Mock> {
    using SelfDrafter<Mock>::SelfDrafter;
    int heard = 0, wrong = 0;
    Mock* verifier = nullptr;
    const TargetRows* its = nullptr;
    void attach(const TargetRows* rows) override { its = rows; }
    void committed(const Commit& commit) override {
      wrong += commit.rows[0] != 0;
      for (int row = 0; row < commit.tree.size(); row++) wrong += its->logits(row) != verifier->logits(row);
      for (int i = 0; i < commit.n; i++) {  // the mock's hidden state is the row's own token
        const int here = i == 0 ? text.back() : commit.tokens[i - 1];
        wrong += int(*its->hidden(commit.rows[i])) != here || commit.tree.token[commit.rows[i]] != here;
        for (int layer = 0; layer < 3; layer++) wrong += int(its->features(commit.rows[i])[layer]) != 3 * here + layer;
      }
      heard += commit.n;
      SelfDrafter<Mock>::committed(commit);
    }
  };
  Mock target = make_mock(), own = make_mock();
  Listener listener(own);
  listener.verifier = &target;
  Ints text = prompt_of(3);
  const Stats stats = counted(target, &listener, decoding_of("tree:2x3", 1, 60), text);
  CHECK(listener.wrong == 0);
  CHECK(listener.heard > 50);  // all but the last forward's
  CHECK(listener.heard < 60);
  CHECK(listener.text == Ints(text.begin(), text.begin() + listener.heard + 3));
  CHECK(stats.target_forwards < 30);
}

// ---------------------------------------------------------------------------------------------------------------
// What shape auto learns

namespace {

// Drafts as the target itself does, but for places of the text where it is always wrong; counts its work, and says the
// same of every guess, so that experience alone can tell.
struct Moody : WrongDrafter<Mock> {
  size_t wrong_from, wrong_to;
  int asked = 0;
  Moody(Mock& own, size_t from, size_t to) : WrongDrafter(own), wrong_from(from), wrong_to(to) {}
  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    asked += n;
    if (text.size() >= wrong_from && text.size() < wrong_to)
      WrongDrafter::expand(growth, nodes, n, width, draws, candidates, count);
    else SelfDrafter::expand(growth, nodes, n, width, draws, candidates, count);
    for (int k = 0; k < n; k++)
      for (int rank = 0; rank < count[k]; rank++) candidates[k * width + rank].chance = rank == 0 ? 0.5f : 0.05f;
  }
};

// Tells the time of a machine on which a forward takes 1 ms, each row but the first `row` of that, and an answer of the
// drafter 40 us.
struct Simulated {
  const Mock* target;
  const Moody* drafter;
  double row = 0.05, last = 0;
  double lap() {
    const double now = 1e-3 * (double(target->forwards) + row * double(target->rows_forwarded - target->forwards)) +
                       4e-5 * drafter->asked;
    return now - std::exchange(last, now);
  }
};

}  // namespace

TEST_CASE("auto: a drafter that is always wrong costs next to nothing, and less in the next text") {
  Mock target = make_mock(), own = make_mock();
  Moody drafter(own, 0, 1 << 30);
  Decoding decoding = decoding_of("auto", 1, 1000);
  decoding.experience = std::make_shared<Experience>();
  Ints text = prompt_of(3);
  const Stats first = counted(target, &drafter, decoding, text, Simulated{&target, &drafter});
  CHECK(same(text, plain_text(decoding, prompt_of(3))));
  CHECK(first.seconds < 1.0 / 0.98);  // plain decoding takes a second
  CHECK(first.drafted_nodes > 0);
  CHECK(drafter.asked < 200);

  const int asked = drafter.asked;
  target = make_mock();
  text = prompt_of(5);
  drafter.asked = 0;
  const Stats second = counted(target, &drafter, decoding, text, Simulated{&target, &drafter});
  CHECK(second.seconds < 1.002);
  CHECK(drafter.asked > 8);  // it is tried now and then
  CHECK(drafter.asked < asked / 2);
}

TEST_CASE("auto: a drafter that becomes good is found, and one that becomes bad is left") {
  for (double row : {0.05, 0.3}) {  // where a row costs much, a bad drafter is not even asked for its opinion
    Mock target = make_mock(), own = make_mock();
    Moody drafter(own, 500, 1500);
    Decoding decoding = decoding_of("auto", 1, 3000);
    decoding.cost = costs(row, 64);
    Ints text = {1};
    double forwards[3] = {};  // of 500, 1000 and 1500 tokens
    const Stats stats = generate(
        target, &drafter, decoding, text,
        [&](int) {
          forwards[text.size() < 500 ? 0 : text.size() < 1500 ? 1 : 2] = double(target.forwards);
          return true;
        },
        Simulated{&target, &drafter, row});
    CHECK(stats.tokens == 3000);
    forwards[2] -= forwards[1], forwards[1] -= forwards[0];
    CHECK(forwards[0] < 500 / 2.5);
    CHECK(forwards[1] > 950);
    CHECK(forwards[2] < 1500 / 2.0);
  }
}

TEST_CASE("decode: the reliability curve counts the nodes under accepted paths, for every shape") {
  const auto sum = [](const Stats& stats) {
    Reliability all;
    for (const Reliability& tenth : stats.reliability)
      all.nodes += tenth.nodes, all.accepted += tenth.accepted, all.raw += tenth.raw, all.corrected += tenth.corrected;
    return all;
  };
  for (const char* shape : {"chain:3", "tree:2x3", "auto"}) {
    Mock target = make_mock(), own = make_mock();
    Moody right(own, 0, 0), wrong(own, 0, 1 << 30);
    Ints text = prompt_of(3);
    Stats stats = counted(target, &right, decoding_of(shape, 1, 300), text);
    Reliability all = sum(stats);
    CHECK(all.accepted == stats.tokens - stats.target_forwards);  // all but each forward's bonus
    CHECK(all.nodes <= stats.drafted_nodes);
    CHECK(all.raw >= 0.5 * double(all.accepted));
    CHECK(all.raw <= double(all.nodes));
    CHECK(all.corrected <= double(all.nodes));
    if (!strcmp(shape, "chain:3")) CHECK(all.nodes == stats.drafted_nodes);
    if (!strcmp(shape, "tree:2x3")) CHECK(all.nodes == 3 * all.accepted);
    CHECK(stats.reliability[9].nodes > 0);  // it has learned to be sure
    text = prompt_of(3);
    target = make_mock();
    stats = counted(target, &wrong, decoding_of(shape, 1, 300), text);
    all = sum(stats);
    CHECK(all.accepted == 0);
    CHECK(all.corrected < 0.1 * double(all.nodes) + 10);
    if (!strcmp(shape, "chain:3")) CHECK(all.nodes <= stats.target_forwards);
  }
}

TEST_CASE("decode: what a drafter draws with: the target's noise under match alone") {
  struct Spy : Bigram {
    using Bigram::Bigram;
    const Noise* noise = nullptr;
    bool kept_only = false;
    Ints rows;  // of the noise: 1 the target's, 2 the drafters' own, 3 neither
    Sampling sampling;
    void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
                int* count) override {
      noise = draws.noise, kept_only = draws.kept_only;
      Noise targets(sampling, vocab), own(sampling, vocab, kStreamDraft);
      if (noise)
        for (int64_t place = draws.index; place < draws.index + 4; place++) {
          const float* row = draws.noise->row(place);
          rows.push_back(!memcmp(row, targets.row(place), 4 * vocab) ? 1
                         : !memcmp(row, own.row(place), 4 * vocab)   ? 2
                                                                     : 3);
        }
      Bigram::expand(growth, nodes, n, width, draws, candidates, count);
    }
  };
  struct Case {
    Rule rule;
    float temperature;
    int rows;
    bool kept_only, knows_noise = true;
  };
  for (const Case& c :
       {Case{Rule::kMatch, 1, 1, false}, Case{Rule::kMatch, 0, 0, false}, Case{Rule::kRejection, 1, 2, true},
        Case{Rule::kRejection, 0, 0, true}, Case{Rule::kIndependent, 1, 0, true}, Case{Rule::kTypical, 1, 0, true},
        Case{Rule::kSpecInfer, 1, 0, true}, Case{Rule::kWithoutReplacement, 1, 0, true}, Case{Rule::kBlock, 1, 0, true},
        Case{Rule::kTraversal, 1, 0, true}, Case{Rule::kMatch, 1, 0, false, false},
        Case{Rule::kRejection, 1, 2, true, false}}) {
    Decoding decoding = decoding_of("chain:3", c.temperature, 12);
    decoding.rule = c.rule, decoding.knows_noise = c.knows_noise;
    Spy spy(mock_bigrams(), kVocab);
    spy.sampling = decoding.sampling;
    Mock target = make_mock();
    Ints text = prompt_of(2);
    counted(target, &spy, decoding, text);
    CHECK((spy.noise != nullptr) == (c.rows > 0));
    CHECK(spy.kept_only == c.kept_only);
    for (int row : spy.rows) CHECK(row == c.rows);
  }
}

TEST_CASE("decode: a drafter that is not told the noise guesses worse, and changes no text") {
  for (const char* shape : {"chain:3", "tree:3x2", "best-first", "entropy-width:of=confidence", "auto"})
    for (float temperature : {0.0f, 0.7f, 1.0f}) {
      int64_t forwards[2] = {};
      for (uint64_t seed : {1, 2, 3})
        for (bool told : {true, false}) {
          Decoding decoding = decoding_of(shape, temperature, 150, seed, 16);
          decoding.knows_noise = told;
          Mock target = make_mock();
          Ngram drafter(mock_ngrams());
          Ints text = prompt_of(5, seed);
          forwards[told] += counted(target, &drafter, decoding, text).target_forwards;
          CHECK(same(text, plain_text(decoding, prompt_of(5, seed))));
        }
      CAPTURE(shape);
      CAPTURE(temperature);
      if (temperature == 0 && decoding_of(shape, 1, 1).shape.kind != Shape::kAuto) CHECK(forwards[1] == forwards[0]);
      if (temperature == 1) CHECK(forwards[1] < 0.9 * double(forwards[0]));
    }
}

TEST_CASE("decode: at temperature 0 every rule gives the likeliest tokens") {
  const Decoding greedy = decoding_of("chain:4", 0, 50);
  const Ints plain = plain_text(greedy, prompt_of(3));
  for (const auto& [rule, shape] : {std::pair<Rule, const char*>{Rule::kIndependent, "tree:3x2"},
                                    {Rule::kIndependent, "auto"},
                                    {Rule::kRejection, "chain:4"},
                                    {Rule::kSpecInfer, "tree:3x2"},
                                    {Rule::kWithoutReplacement, "tree:3x2"},
                                    {Rule::kBlock, "chain:4"},
                                    {Rule::kTraversal, "tree:3x2"},
                                    {Rule::kTypical, "tree:3x2"},
                                    {Rule::kTypical, "auto"}}) {
    Decoding decoding = decoding_of(shape, 0, 50);
    decoding.rule = rule;
    Mock target = make_mock();
    Bigram drafter(mock_bigrams(), kVocab);
    Ints text = prompt_of(3);
    const Stats stats = counted(target, &drafter, decoding, text);
    CHECK(same(text, plain));
    CHECK(stats.target_forwards < 45);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Distributions

namespace {

constexpr int kFew = 4, kPlaces = 3;  // a small model: the first three tokens are one of 64 texts

Mock small_mock() { return Mock(kFew, 16, 0.9f, 0.7f, 41); }

// The chances of the first three tokens after `prompt`, by the product rule.
std::vector<double> joint_chances(const Ints& prompt, const Sampling& sampling) {
  std::vector<double> chances;
  for (int cell = 0; cell < kFew * kFew * kFew; cell++) {
    Ints text = prompt;
    double chance_of_cell = 1;
    for (int place = 0; place < kPlaces; place++) {
      Mock mock = small_mock();
      const int depth = 0, end = 1, token = cell / (place == 0 ? kFew * kFew : place == 1 ? kFew : 1) % kFew;
      open_window(mock, text);
      mock.forward(&text.back(), &depth, &end, 1);
      std::vector<float> p(kFew);
      distribution(mock.logits(0), kFew, sampling, p.data());
      chance_of_cell *= p[token];
      text.push_back(token);
    }
    chances.push_back(chance_of_cell);
  }
  return chances;
}

std::vector<int64_t> joint_counts(const Ints& prompt, const Decoding& decoding, Drafter& drafter, int samples,
                                  int64_t* forwards) {
  std::vector<int64_t> counts(kFew * kFew * kFew, 0);
  Mock target = small_mock();
  for (int i = 0; i < samples; i++) {
    Decoding one = decoding;
    one.sampling.sequence = uint32_t(i);
    Ints text = prompt;
    *forwards += generate(target, &drafter, one, text, [](int) { return true; }).target_forwards;
    const int* t = text.data() + prompt.size();
    counts[(t[0] * kFew + t[1]) * kFew + t[2]]++;
  }
  return counts;
}

}  // namespace

TEST_CASE("rules: distributions: exact rules emit the first three tokens as softmax(logits / temperature) says") {
  struct Case {
    Rule rule;
    const char* shape;
    float temperature;
    int top_k;
  };
  const int samples = a_sixtieth() ? 1300 : a_tenth() ? 4000 : 40000;
  const Ints prompt = {1, 3, 0};
  for (const Case& c : {Case{Rule::kMatch, "tree:2x2", 1, 0},
                        {Rule::kMatch, "chain:3", 0.7f, 3},
                        {Rule::kRejection, "chain:2", 1, 0},
                        {Rule::kRejection, "chain:3", 0.7f, 3},
                        {Rule::kSpecInfer, "tree:2x2", 0.8f, 0},
                        {Rule::kWithoutReplacement, "tree:2x2", 0.7f, 3},
                        {Rule::kBlock, "chain:2", 0.7f, 3},
                        {Rule::kTraversal, "tree:2x2", 0.8f, 0}}) {
    Decoding decoding = decoding_of(c.shape, c.temperature, kPlaces);
    decoding.rule = c.rule, decoding.sampling.top_k = c.top_k;
    const std::vector<double> expected = joint_chances(prompt, decoding.sampling);
    Sampling warmer = decoding.sampling;
    warmer.temperature *= 1.05f;
    const std::vector<double> wrong = joint_chances(prompt, warmer);
    Ints training;
    for (int i = 0; i < 300; i++) training.push_back(int(random_bits(6, 0, 1000, uint64_t(i), 0) % (i % 3 + 2)));
    Bigram drafter(bigram_table(training, kFew), kFew);  // a poor guess, so that much is rejected
    int64_t forwards = 0;
    double least = 1, most_wrong = 0;
    for (uint64_t seed = 1; seed <= 8; seed++) {
      decoding.sampling.seed = seed;
      const std::vector<int64_t> counts = joint_counts(prompt, decoding, drafter, samples, &forwards);
      least = std::min(least, chi_square_p(counts, expected));
      most_wrong = std::max(most_wrong, chi_square_p(counts, wrong));
    }
    const double length = 8.0 * samples * kPlaces / double(forwards);
    INFO("p-values: right temperature, least of 8 seeds " << least << "; 1.05 of it, largest " << most_wrong
                                                          << "; acceptance length " << length);
    CHECK(least > 1e-3 / 8);  // a right program fails one of a thousand choices of eight seeds
    if (!a_tenth()) CHECK(most_wrong < 1e-6);
    CHECK((length > 1.2 && length < 2.9));  // something was accepted, something was not
  }
}

TEST_CASE("rules: distributions: independent emits what can be worked out by hand, not the target's distribution") {
  // a target and a drafter that say the same after any token, so that each forward is the case of the test by hand
  struct Fixed : Drafter {
    std::vector<float> row;
    const float* logits(const Growth&, int) override { return row.data(); }
  };
  struct FixedTarget {
    std::vector<float> row;
    int held = 0;
    int block_size() { return 16; }
    int vocab_size() { return 3; }
    int past() { return held; }
    void prefill(const int*, int n) { held = n; }
    void forward(const int*, const int*, const int*, int) {}
    const float* logits(int) { return row.data(); }
    const float* hidden(int) { return nullptr; }
    const float* features(int) { return nullptr; }
    void keep(const int*, int n) { held += n; }
  };
  struct Case {
    std::vector<double> p, q, emitted;
    double distance;
  };
  // the third: accepted with chance .6, then .667, else (.133) a token of p; one uniform for both would give .64, .107
  for (const Case& c : {Case{{.5, .3, .2}, {.5, .3, .2}, {1, 0, 0}, 0.5},
                        Case{{.4, .4, .2}, {.6, .3, .1}, {2.0 / 3, 1.0 / 3, 0}, 0.267},
                        Case{{.3, .3, .4}, {.5, .45, .05}, {.64, .92 / 3, .16 / 3}, 0.347}}) {
    FixedTarget target;
    Fixed drafter;
    drafter.vocab = 3;
    for (double chance : c.p) target.row.push_back(float(std::log(chance)));
    for (double chance : c.q) drafter.row.push_back(float(std::log(chance)));
    Decoding decoding = decoding_of("tree:1x2", 1, 2);
    decoding.rule = Rule::kIndependent;
    const int samples = a_tenth() ? 6000 : 60000;
    std::vector<int64_t> counts(3, 0);
    for (int i = 0; i < samples; i++) {
      decoding.sampling.sequence = uint32_t(i);
      Ints text = {0};
      generate(target, &drafter, decoding, text, [](int) { return true; });
      counts[text[1]]++;
    }
    double distance = 0;
    for (int x = 0; x < 3; x++) distance += std::fabs(double(counts[x]) / samples - c.p[x]) / 2;
    if (!a_tenth()) CHECK(distance == doctest::Approx(c.distance).epsilon(0.03));
    if (c.emitted[0] < 1) CHECK(chi_square_p(counts, c.emitted) > 1e-3);
    if (c.emitted[2] == 0) CHECK(counts[2] == 0);
    CHECK(chi_square_p(counts, c.p) < 1e-12);
    decoding.rule = Rule::kMatch;  // which on the same tree is right
    counts.assign(3, 0);
    for (int i = 0; i < samples; i++) {
      decoding.sampling.sequence = uint32_t(i);
      Ints text = {0};
      generate(target, &drafter, decoding, text, [](int) { return true; });
      counts[text[1]]++;
    }
    CHECK(chi_square_p(counts, c.p) > 1e-3);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// The cost of a forward

TEST_CASE(
    "cost: measured where the window allows, straight lines elsewhere, legal calls, and the target usable after") {
  for (int block : {2, 4, kBlock, 256})
    for (int budget : {0, 1, 5, 64, 200}) {
      Mock target = make_mock(block);
      const std::vector<double> cost = measure_cost(target, budget, 0.002);
      REQUIRE(int(cost.size()) == budget + 1);
      for (double seconds : cost) CHECK((seconds > 0 && seconds < 1));
      Ints text = {1, 2};
      CHECK(counted(target, nullptr, decoding_of("auto", 1, 5), text).tokens == 5);
    }
}

TEST_CASE("decode: a target that runs whole iterations: the same trees, text and counts as the loop's own") {
  for (float temperature : {0.0f, 1.0f})
    for (const std::string shape : {"chain:4", "tree:3x2", "tree:2x6", "auto"}) {
      CAPTURE(temperature);
      CAPTURE(shape);
      WholeMock whole;
      Mock steps = make_mock();
      Bigram drafter(mock_bigrams(), kVocab);
      Decoding decoding = decoding_of(shape, temperature, 120);
      Ints by_whole = prompt_of(5), by_steps = by_whole;
      const Stats a = counted(whole, &drafter, decoding, by_whole);
      decoding.cost = costs(0.05, 64);
      const Stats b = counted(steps, &drafter, decoding, by_steps);
      CHECK(same(by_whole, by_steps));
      CHECK(a.accept_histogram == b.accept_histogram);
      CHECK(a.drafted_nodes == b.drafted_nodes);
      CHECK(a.slide_prefills == b.slide_prefills);
      for (size_t i = 0; i < a.reliability.size(); i++) {
        CHECK(a.reliability[i].accepted == b.reliability[i].accepted);
        CHECK(a.reliability[i].corrected == b.reliability[i].corrected);
      }
      CHECK((whole.drafted_itself > 0) == (shape == "chain:4" || shape == "tree:3x2"));
      decoding.rule = Rule::kIndependent;  // that is for the host
      CHECK_NOTHROW(counted(whole, &drafter, decoding, by_whole));
    }
}

TEST_CASE("cost: as it was told, and of a slow model only as much as there is time for") {
  struct Slow {  // a row takes 0.1 of the first one, and 9 rows or more half a forward besides; a prefilled token 0.05
    double first, clock = 0;
    int held = 0, calls = 0;
    int block_size() { return 1024; }
    int past() { return held; }
    void prefill(const int*, int n) { held = n, clock += 0.05 * first * n; }
    void forward(const int*, const int*, const int*, int n) { calls++, clock += first * told(n - 1); }
    static double told(int n) { return 1 + 0.1 * n + (n >= 8 ? 0.5 : 0); }
  };
  struct Clock {
    Slow* target;
    double last = 0;
    double lap() { return target->clock - std::exchange(last, target->clock); }
  };
  for (double first : {2e-5, 2e-3, 0.015, 0.5}) {
    Slow slow{first};
    const std::vector<double> cost = measure_cost(slow, 64, 0.15, Clock{&slow});
    if (first < 0.1) CHECK(slow.clock < 0.2);
    for (int n : {0, 7}) CHECK(cost[n] / first == doctest::Approx(Slow::told(n)));
    for (int n = 1; n <= 64; n++) CHECK(cost[n] > cost[n - 1]);
    if (first > 3e-3) continue;
    for (int n : {3, 8, 16, 50, 64}) CHECK(cost[n] / first == doctest::Approx(Slow::told(n)));
  }
}
