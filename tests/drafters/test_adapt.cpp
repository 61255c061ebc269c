// tests/drafters/test_adapt.cpp: drafters/suffix.h and drafters/adapt.h: matches against a naive count, what is
// believed of them, what long texts cost; lookup, suffix and recycle on texts made by hand; unions, and whom they come
// to believe.
#include "drafters/adapt.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "tests/mock.h"

using namespace nanospec;

namespace {

using Ints = std::vector<int>;

Ints some_text(uint32_t seed, int n, int vocab) {  // repeats itself now and then
  std::mt19937 random(seed);
  Ints text;
  while (int(text.size()) < n) {
    const int size = int(text.size());
    if (size > 10 && random() % 8 == 0) {
      const int from = int(random() % uint32_t(size - 8));
      for (int i = 0; i < 6; i++) text.push_back(text[size_t(from + i)]);
    }
    text.push_back(int(random() % uint32_t(vocab)));
  }
  text.resize(size_t(n));
  return text;
}

// What followed the last `length` tokens of text and more, wherever they stand in the text.
std::map<int, int> naive_followers(const Ints& text, const Ints& more, int length, bool also_at_the_end) {
  Ints all = text;
  all.insert(all.end(), more.begin(), more.end());
  std::map<int, int> count;
  const int last = int(text.size()) - (also_at_the_end && !more.empty() ? 0 : 1);
  for (int next = length; next <= last && next < int(all.size()); next++)
    if (std::equal(all.end() - length, all.end(), all.begin() + next - length)) count[all[size_t(next)]]++;
  return count;
}

template <class Text>
void check_matches(const Text& finder, const Ints& text, const Ints& more, bool also_at_the_end) {
  Text copy = finder;
  Matches matches;
  copy.find(more.data(), int(more.size()), matches);
  size_t at = 0;
  for (int length = std::min(kLongestMatch, int(text.size() + more.size())); length > 0; length--) {
    const std::map<int, int> expected = naive_followers(text, more, length, also_at_the_end);
    if (expected.empty()) {
      CHECK((matches.match.empty() || length > matches.match[0].length));
      continue;
    }
    REQUIRE(!matches.match.empty());
    while (at + 1 < matches.match.size() && matches.match[at + 1].length >= length) at++;
    const Match& m = matches.match[at];  // the shortest of at least that length
    CHECK(length <= m.length);
    std::map<int, int> found;
    for (int i = m.begin; i < m.end; i++) found[matches.follower[size_t(i)].token] = matches.follower[size_t(i)].count;
    CHECK(found == expected);
  }
}

Candidate best_of(Drafter& drafter, const Growth& growth, int node, float temperature = 0) {
  Sampling sampling;
  sampling.temperature = temperature;
  Candidate best;
  int count = 0;
  drafter.expand(growth, &node, 1, 1, {&sampling, nullptr, 0, false}, &best, &count);
  CHECK(count == 1);
  return best;
}

Growth rooted(int token) {
  Growth growth;
  growth.start(token);
  return growth;
}

// Commits tokens one forward at a time, without a tree.
void commit(Drafter& drafter, int& root, const Ints& tokens) {
  for (int token : tokens) {
    Tree tree;
    flatten(rooted(root), tree);
    const int row = 0;
    drafter.committed({&token, &row, 1, tree});
    root = token;
  }
}

Ints repeated(const Ints& some, int times) {
  Ints text;
  for (int i = 0; i < times; i++) text.insert(text.end(), some.begin(), some.end());
  return text;
}

struct ByParity : Drafter {  // one row after even tokens, one after odd ones
  std::vector<float> rows[2];
  ByParity(std::vector<float> even, std::vector<float> odd) : rows{std::move(even), std::move(odd)} {
    vocab = int(rows[0].size());
  }
  const float* logits(const Growth& growth, int node) override { return rows[growth.token[node] % 2].data(); }
};

struct Fixed : Drafter {  // the same logits always
  std::vector<float> row;
  bool silent = false;
  explicit Fixed(std::vector<float> logits) : row(std::move(logits)) { vocab = int(row.size()); }
  const float* logits(const Growth&, int) override { return silent ? nullptr : row.data(); }
};

}  // namespace

TEST_CASE("suffix: matches are those of a naive count, of every length, after the text and after more") {
  for (int vocab : {2, 3, 7, 30})
    for (int n : {0, 1, 2, 5, 40, 200}) {
      const Ints text = some_text(uint32_t(vocab * 1000 + n), n, vocab);
      SuffixAutomaton automaton(vocab);
      LookBack look_back(vocab);
      for (int token : text) automaton.extend(token), look_back.extend(token);
      CHECK(automaton.states() <= std::max(2, 2 * n));
      CHECK(automaton.edges() <= std::max(1, 3 * n));
      Ints more;
      for (int i = 0; i < 6; i++) {
        check_matches(automaton, text, more, false);
        check_matches(look_back, text, more, true);
        more.push_back(n > 12 && i < 4 ? text[size_t(n / 2 + i)] : i % vocab);
      }
    }
}

TEST_CASE("suffix: grows token by token, and forgets") {
  const Ints text = some_text(5, 60, 3);
  SuffixAutomaton grown(3);
  LookBack back(3);
  for (int round = 0; round < 2; round++) {
    grown.clear(), back.clear();
    Ints so_far;
    for (int token : text) {
      grown.extend(token), back.extend(token), so_far.push_back(token);
      check_matches(grown, so_far, {}, false);
      check_matches(back, so_far, {}, true);
    }
  }
}

TEST_CASE("suffix: a text longer than is learned is still followed") {
  const Ints text = some_text(6, 120, 3), start(text.begin(), text.begin() + 80);
  SuffixAutomaton full(3, 80), short_one(3);
  for (int token : text) full.extend(token);
  for (int token : start) short_one.extend(token);
  CHECK(full.states() == short_one.states());
  CHECK(full.edges() == short_one.edges());
  Matches a, b;
  full.find(nullptr, 0, a), short_one.find(text.data() + 80, 40, b);
  REQUIRE(a.match.size() == b.match.size());
  REQUIRE(!a.match.empty());
  for (size_t i = 0; i < a.match.size(); i++) CHECK(a.match[i].length == b.match[i].length);
  CHECK(a.follower.size() == b.follower.size());
}

TEST_CASE("suffix: long texts, the most repetitive too, take bounded memory and little time") {
  for (int period : {1, 2, 1000, 1 << 30}) {
    const int n = 200000, vocab = 50;
    SuffixAutomaton automaton(vocab);
    LookBack look_back(vocab);
    std::mt19937 random(3);
    Ints text;
    Matches matches;
    Stopwatch watch;
    for (int i = 0; i < n; i++) {
      text.push_back(i < period ? int(random() % vocab) : text[size_t(i - period)]);
      automaton.extend(text.back()), look_back.extend(text.back());
      if (i % 16) continue;
      automaton.find(nullptr, 0, matches);
      CHECK(matches.match.size() <= kMostMatches);
      look_back.find(nullptr, 0, matches);
      CHECK(matches.match.size() <= kLongestMatch);
    }
    CHECK(watch.lap() < 30);  // it takes a fraction of a second; quadratic time would take minutes
    CHECK(automaton.states() < 2 * n);
    CHECK(automaton.edges() < 3 * n);
    CHECK(automaton.bytes() < size_t(n) * 68 * 2);  // arrays may have room to grow
  }
}

TEST_CASE("adapt: belief: a chance for everything, the formula by hand, and it learns") {
  Matches matches;
  matches.follower = {{2, 1}};
  matches.close(5);
  matches.follower.push_back({2, 3}), matches.follower.push_back({0, 1});
  matches.close(1);
  Interpolation interpolation;
  const double longer = 1 / (1 + 0.5 * std::pow(0.9, 5)), shorter = 4 / (4 + 2 * 0.45);
  CHECK(interpolation.weight(matches.match[0]) == doctest::Approx(longer));
  CHECK(interpolation.weight(matches.match[1]) == doctest::Approx(shorter));
  const auto blended = [&](int x) {
    Likely p(8);
    interpolation.blend(matches, 8, p);
    CHECK(std::accumulate(p.logit.begin(), p.logit.end(), float(p.others()) * p.rest) == doctest::Approx(1));
    return double(p.of(x));
  };
  const double rest = (1 - longer) * (1 - shorter) / 8;
  CHECK(blended(2) == doctest::Approx(longer + (1 - longer) * shorter * 3 / 4 + rest));
  CHECK(blended(0) == doctest::Approx((1 - longer) * shorter / 4 + rest));
  CHECK(blended(3) == doctest::Approx(rest));

  // Token 0 has come: not from the longer match, and from the shorter one by r.
  const double r = shorter / 4 / (shorter / 4 + (1 - shorter) / 8);
  interpolation.learn(matches, 0, 8);
  CHECK(interpolation.weight(matches.match[0]) == doctest::Approx(2 * longer / 3));
  CHECK(interpolation.weight(matches.match[1]) == doctest::Approx((2 * shorter + r) / 3));
  for (int i = 0; i < 3000; i++) interpolation.learn(matches, 2, 8);
  CHECK(interpolation.weight(matches.match[0]) > 0.9);
  for (int i = 0; i < 300; i++) interpolation.learn(matches, 3, 8);  // the older counts less
  CHECK(interpolation.weight(matches.match[0]) < 0.8);
  CHECK(blended(1) > 0);
  matches.clear();
  CHECK(blended(1) == doctest::Approx(1.0 / 8));  // nothing known
}

TEST_CASE("adapt: lookup and suffix: propose what followed, surer the longer the match, and draft on along it") {
  const Ints passage = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  for (const char* word : {"lookup", "suffix"}) {
    CAPTURE(word);
    const std::unique_ptr<Drafter> drafter = load_drafter(word, "", 20);
    Ints text = passage;
    text.insert(text.end(), {0, 3, 15, 0});
    float last = 0;
    for (int i = 0; i < 8; i++) {  // the passage begins again
      text.push_back(passage[size_t(i)]);
      drafter->begin(text.data(), int(text.size()));
      const Candidate best = best_of(*drafter, rooted(text.back()), 0);
      CHECK(best.token == passage[size_t(i + 1)]);
      if (i != 2 && i != 3) CHECK(best.chance > last);  // 3 had another follower
      last = best.chance;
    }
    Growth growth = rooted(text.back());
    for (int i = 8; i < 11; i++) {
      const Candidate best = best_of(*drafter, growth, growth.size() - 1);
      CHECK(best.token == passage[size_t(i)]);
      growth.add(growth.size() - 1, best);
    }
    const int stranger = growth.add(0, {19, 1});  // never seen: nothing is likelier than anything else
    const float* row = drafter->logits(growth, stranger);
    for (int x = 1; x < 20; x++) CHECK(row[x] == doctest::Approx(row[0]));
    drafter->begin(text.data(), 1);
    row = drafter->logits(rooted(text[0]), 0);
    for (int x = 1; x < 20; x++) CHECK(row[x] == doctest::Approx(row[0]));  // the last text is forgotten
  }
}

TEST_CASE("adapt: recycle: the target's last word after a token, on the path or off it; its picks where that is all") {
  Recycle recycle(12);
  recycle.begin(nullptr, 0);
  Growth growth = rooted(3);
  growth.add(0, {4, 1}), growth.add(0, {5, 1}), growth.add(1, {5, 1});
  Tree tree;
  flatten(growth, tree);
  CHECK(tree.token == Ints{3, 4, 5, 5});
  std::vector<std::vector<float>> said(4, std::vector<float>(12, 0));
  said[0][1] = 9, said[1][2] = 9, said[2][6] = 9, said[3][7] = 9;
  MadeUpRows rows;
  rows.of_logits = [&](int row) { return said[size_t(row)].data(); };
  const auto after = [&](int token) { return best_of(recycle, rooted(token), 0).token; };
  const int path[] = {0, 1, 2}, tokens[] = {4, 5, 8};
  tell(recycle, {tokens, path, 3, tree}, rows);
  CHECK(after(3) == 1);
  CHECK(after(4) == 2);
  CHECK(after(5) == 6);  // row 3 said 7, but is not on the path
  tell(recycle, {tokens, path, 1, tree}, rows);
  CHECK(after(5) == 7);  // now neither is: the later one
  const float* row = recycle.logits(growth, 2);
  double sum = 0;
  for (int x = 0; x < 12; x++) sum += std::exp(double(row[x]));
  CHECK(sum == doctest::Approx(1).epsilon(1e-3));

  recycle.begin(nullptr, 0);
  const int one[] = {0};
  for (int next : {1, 2, 9, 4, 5, 6, 7, 8, 10, 11, 2}) recycle.committed({&next, one, 1, tree});
  CHECK(after(3) == 2);
  int best = 3, count = 0;
  std::vector<Candidate> list(12);
  Growth root = rooted(3);
  best = 0;
  recycle.expand(root, &best, 1, 3, {std::make_unique<Sampling>().get(), nullptr, 0, false}, list.data(), &count);
  CHECK(list[1].token == 11);
  CHECK(list[2].token == 10);
}

TEST_CASE("adapt: union: comes to believe the part that is right, and drafts as that one alone") {
  const Ints song = {1, 2, 3, 4, 5, 6, 7, 8};
  for (int place : {0, 1}) {
    std::vector<std::unique_ptr<Drafter>> parts(2);
    parts[size_t(place)] = std::make_unique<Suffix>(12), parts[size_t(place)]->name = "suffix";
    parts[size_t(1 - place)] = std::make_unique<RandomLogits>(12), parts[size_t(1 - place)]->name = "random";
    Union both(std::move(parts));
    int root = 8;
    both.begin(&root, 1);
    commit(both, root, repeated(song, 30));
    for (int next : song) {
      const Candidate best = best_of(both, rooted(root), 0);
      CHECK(best.token == next);
      CHECK(best.chance > 0.9f);
      CHECK(both.author(0, best.token) == "suffix");
      commit(both, root, {next});
    }
    CHECK(both.author(0, 3) == both.name);  // of none: no candidate of this iteration
  }
}

TEST_CASE("adapt: union: two halves of the truth are better than each, and each token is a candidate once") {
  // one part knows tokens 0 to 3 apart, the other one the parity: together they know token 2
  std::vector<std::unique_ptr<Drafter>> parts;
  parts.push_back(std::make_unique<Fixed>(std::vector<float>{0, 0, 2, 2}));
  parts.push_back(std::make_unique<Fixed>(std::vector<float>{2, 0, 2, 0}));
  Union both(std::move(parts));
  int root = 0;
  both.begin(&root, 1);
  CHECK(best_of(both, rooted(0), 0).token == 2);
  std::mt19937 random(2);
  for (int i = 0; i < 500; i++) {
    const int draw = int(random() % 10);  // of chances 1 : 1 : 7 : 1
    commit(both, root, {draw < 7 ? 2 : draw == 7 ? 0 : draw == 8 ? 1 : 3});
  }
  Candidate all[8];
  Sampling sampling;
  const int node = 0;
  int count = 0;
  both.expand(rooted(root), &node, 1, 8, {&sampling, nullptr, 0, false}, all, &count);
  REQUIRE(count == 4);
  CHECK(all[0].token == 2);
  CHECK(double(all[0].chance) == doctest::Approx(0.7).epsilon(0.15));
  Ints tokens;
  for (const Candidate& candidate : all)
    if (tokens.size() < 4) tokens.push_back(candidate.token);
  std::sort(tokens.begin(), tokens.end());
  CHECK(tokens == Ints{0, 1, 2, 3});
}

TEST_CASE("adapt: union: a part may count for much where it is sure of itself, and for little where it is not") {
  std::vector<std::unique_ptr<Drafter>> parts;  // 0 and 1 take turns; the first part is sure, and right, after 0 only
  parts.push_back(
      std::make_unique<ByParity>(std::vector<float>{0, 3, 0, 0, 0, 0}, std::vector<float>{0, 0, 3, 3, 0, 0}));
  parts.push_back(
      std::make_unique<ByParity>(std::vector<float>{0, 0, 0, 0, 2, 0}, std::vector<float>{2, 0, 0, 0, 0, 0}));
  const Drafter& part = *parts[0];
  Union both(std::move(parts));
  both.temperature = 0.9f;
  int root = 0;
  both.begin(&root, 1);
  CHECK(part.temperature == 0.9f);
  commit(both, root, repeated({1, 0}, 1000));
  for (int token : {0, 1}) {
    const Candidate best = best_of(both, rooted(token), 0, 0.9f);
    CHECK(best.token == 1 - token);
    CHECK(best.chance > 0.6f);
  }
}

TEST_CASE("adapt: union: of a large vocabulary nothing is drafted where no part is sure") {
  std::vector<float> flat(size_t(kManyTokens), 0.0f), peaked = flat;
  peaked[7] = 12;  // a chance of 0.98
  for (const auto& [logits, drafted] : {std::pair{flat, 0}, std::pair{peaked, 1}}) {
    std::vector<std::unique_ptr<Drafter>> parts;
    parts.push_back(std::make_unique<Fixed>(logits));
    parts.push_back(std::make_unique<Fixed>(flat));
    Union both(std::move(parts));
    int root = 0;
    both.begin(&root, 1);
    Candidate best;
    Sampling sampling;
    const int node = 0;
    int count = -1;
    both.expand(rooted(root), &node, 1, 1, {&sampling, nullptr, 0, false}, &best, &count);
    CHECK(count == drafted);
    if (count == 1) CHECK(best.token == 7);
  }
}

TEST_CASE("adapt: suffix: a new context has equal logits; of a large vocabulary, none") {
  int root = 0;
  for (int vocab : {kManyTokens - 1, kManyTokens}) {
    Suffix suffix(vocab);
    suffix.begin(&root, 1);
    CHECK((suffix.logits(rooted(root), 0) == nullptr) == (vocab == kManyTokens));
  }
}

TEST_CASE("adapt: union: of a large vocabulary it learns and drafts by few tokens as it would by all") {
  const int few = 6;
  std::vector<Candidate> drafted[2];
  for (int many : {0, 1}) {  // one token less, and all are told apart
    const int vocab = kManyTokens - 1 + many;
    std::vector<std::unique_ptr<Drafter>> parts;
    for (uint32_t part : {0u, 1u}) {
      std::vector<float> rows[2];
      std::mt19937 random(part);
      for (std::vector<float>& row : rows) {
        row.assign(size_t(vocab), -3);
        for (int i = 0; i < few; i++) row[size_t(i * 100 + int(part) * 200)] = 3 + float(random() % 1000) / 200;
      }
      parts.push_back(std::make_unique<ByParity>(rows[0], rows[1]));
    }
    Union both(std::move(parts));
    CHECK(both.few_tokens() == bool(many));
    int root = 0;
    both.begin(&root, 1);
    std::mt19937 random(9);
    Ints text;
    for (int i = 0; i < 300; i++) text.push_back(random() % 8 ? int(random() % 8) * 100 : int(random() % 4000));
    commit(both, root, text);
    for (int node : {0, 1}) {
      Growth growth = rooted(root);
      growth.add(0, {root + 1, 1});
      std::vector<Candidate> best(8);
      Sampling sampling;
      int count = 0;
      both.expand(growth, &node, 1, 8, {&sampling, nullptr, 0, false}, best.data(), &count);
      CHECK(count == 8);
      drafted[many].insert(drafted[many].end(), best.begin(), best.end());
      const std::string author = both.author(node, best[0].token);
      CHECK(author == "");  // the parts have no names
      const std::vector<float> row(both.logits(growth, node), both.logits(growth, node) + vocab);
      std::vector<float> scores(row.size());
      std::vector<Candidate> by_all(8);
      CHECK(top_candidates(Solo{}, row.data(), nullptr, vocab, {&sampling, nullptr, 0, false}, 8, by_all.data(),
                           scores.data()) == 8);
      for (size_t i = 0; i < 8; i++) {
        CHECK(by_all[i].token == best[i].token);
        CHECK(by_all[i].chance == doctest::Approx(best[i].chance).epsilon(1e-4));
      }
    }
  }
  for (size_t i = 0; i < drafted[0].size(); i++) {
    CAPTURE(i);
    CHECK(drafted[0][i].token == drafted[1][i].token);
    CHECK(drafted[0][i].chance == doctest::Approx(drafted[1][i].chance).epsilon(2e-3));
  }
}

TEST_CASE("adapt: likely: with noise the best of them are those of all, and their chances shrink by the others'") {
  const int vocab = 5000, width = 6;
  std::mt19937 random(4);
  Likely likely(vocab);
  for (int i = 0; i < 300; i++) likely.add(int(random() % vocab)) = float(random() % 4096) / 512;  // some are equal
  likely.rest = -20;
  CHECK(likely.others() == vocab - int(likely.token.size()));
  std::vector<float> row(vocab), scores;
  likely.spread(row.data());
  Sampling sampling;
  Noise noise(sampling, vocab);
  for (float temperature : {0.0f, 0.4f, 1.0f})
    for (float rest : {-20.0f, 0.0f})
      for (const float* const g : {static_cast<const float*>(nullptr), noise.row(3)}) {
        sampling.temperature = temperature;
        likely.rest = -20;
        Candidate by_few[width], by_all[width];
        std::vector<float> all(vocab);
        REQUIRE(top_candidates(Solo{}, row.data(), g, vocab, {&sampling, nullptr, 0, false}, width, by_all,
                               all.data()) == width);
        REQUIRE(best_of_likely(likely, g, sampling, width, by_few, scores) == width);
        likely.rest = rest;
        Candidate fewer[width];
        REQUIRE(best_of_likely(likely, g, sampling, width, fewer, scores) == width);
        double known = 0, unknown = double(likely.others()) * std::exp(double(rest * sharpness(sampling, false)));
        for (float logit : likely.logit) known += std::exp(double(logit * sharpness(sampling, false)));
        for (int i = 0; i < width; i++) {
          CHECK(by_few[i].token == by_all[i].token);
          CHECK(by_few[i].chance == doctest::Approx(by_all[i].chance).epsilon(1e-3));
          CHECK(fewer[i].token == by_few[i].token);
          if (rest == 0)
            CHECK(double(fewer[i].chance / by_few[i].chance) == doctest::Approx(known / (known + unknown)));
        }
      }
  likely.clear();
  Candidate none;
  CHECK(best_of_likely(likely, nullptr, sampling, 1, &none, scores) == 0);
}

TEST_CASE("adapt: union: a part that says nothing, or nonsense, does no harm") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& odd : {std::vector<float>{0, -inf, -inf, 0, -inf},
                                        {nan, nan, nan, nan, nan},
                                        {-inf, -inf, -inf, -inf, -inf},
                                        {1e30f, -1e30f, 0, nan, 1}}) {
    std::vector<std::unique_ptr<Drafter>> parts;
    parts.push_back(std::make_unique<Fixed>(std::vector<float>{0, 1, 2, 3, 9}));
    parts.push_back(std::make_unique<Fixed>(odd));
    parts.push_back(std::make_unique<Fixed>(odd));
    static_cast<Fixed&>(*parts[2]).silent = true;
    Union all(std::move(parts));
    int root = 0;
    all.begin(&root, 1);
    commit(all, root, repeated({4}, 200));
    const Candidate best = best_of(all, rooted(root), 0, 1);
    CHECK(best.token == 4);
    CHECK(best.chance > 0.5f);
  }
}

TEST_CASE("adapt: union: keeps its head where text is certain for long and then is not") {
  const std::unique_ptr<Drafter> both = load_drafter("suffix+lookup", "", 30);
  both->temperature = 0;
  int root = 0;
  both->begin(&root, 1);
  std::mt19937 random(8);
  for (int round = 0; round < 3; round++) {
    commit(*both, root, repeated({1, 2, 3}, 1000));
    const Candidate sure = best_of(*both, rooted(root), 0);
    CHECK(sure.token == 1);
    CHECK(sure.chance > 0.99f);
    for (int i = 0; i < 50; i++) commit(*both, root, {int(random() % 30)});
  }
  commit(*both, root, repeated({1, 2, 3}, 20));
  CHECK(best_of(*both, rooted(root), 0).token == 1);
}

TEST_CASE("adapt: lookup and suffix: nothing is impossible, however long the text was certain") {
  for (const char* word : {"lookup", "suffix"}) {
    const std::unique_ptr<Drafter> drafter = load_drafter(word, "", 30);
    const Ints text = repeated({1}, 5000);
    drafter->begin(text.data(), 5000);
    const float* row = drafter->logits(rooted(1), 0);
    for (int x = 0; x < 30; x++) CHECK(row[x] > -20);
    CHECK(row[1] > -0.01f);
  }
}

TEST_CASE("adapt: unions by name: parts in any number up to four, and what is wrong in one line") {
  const auto message = [](const std::string& name) -> std::string {
    try {
      load_drafter(name, "", 5);
    } catch (const std::invalid_argument& error) { return error.what(); }
    return "";
  };
  const auto holds = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  for (const char* name : {"lookup", "suffix", "recycle", "suffix+lookup", "random+suffix+recycle+lookup"}) {
    const std::unique_ptr<Drafter> drafter = load_drafter(name, "", 5);
    CHECK(drafter->name == name);
    CHECK(drafter->vocab == 5);
  }
  CHECK(holds(message("sufix"), "did you mean suffix?"));
  CHECK(holds(message("suffix+lokup"), "unknown drafter 'lokup'"));
  CHECK(holds(message("suffix+lokup"), "did you mean lookup?"));
  CHECK(holds(message("suffix+none"), "leave it out"));
  CHECK(holds(message("suffix+"), "unknown drafter ''"));
  CHECK(holds(message("+suffix"), "unknown drafter ''"));
  CHECK(holds(message("suffix:3"), "did you mean suffix?"));
  CHECK(holds(message("suffix+ngram"), "write ngram:N"));
  CHECK(holds(message("lookup+lookup+lookup+lookup+lookup"), "at most 4"));
  CHECK(parse_drafter("suffix+ngram:4")[1].order == 4);
}

TEST_CASE("adapt: union: every part may read the target's rows, until the text is over") {
  struct Reader : Fixed {
    const TargetRows* its = nullptr;
    Reader() : Fixed({0, 1, 2}) {}
    void attach(const TargetRows* rows) override { its = rows; }
  };
  std::vector<std::unique_ptr<Drafter>> parts;
  for (int i = 0; i < 3; i++) parts.push_back(std::make_unique<Reader>());
  const auto* const last = static_cast<Reader*>(parts[2].get());
  Union all(std::move(parts));
  const MadeUpRows rows;
  all.attach(&rows);
  CHECK(last->its == &rows);
  all.attach(nullptr);
  CHECK(last->its == nullptr);
}
