// tests/core/test_draft.cpp: draft.h, drafters/ngram.h and files/drafters.h: candidates out of logits and noise, and
// how sure a drafter is of them; the bigram table and its file; n-grams against a count by maps; drafters by name.
#include "files/checkpoint.h"
#include "files/drafters.h"
#include "files/tables.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <random>

#include "tests/error_of.h"
#include "tests/mock.h"

using namespace nanospec;

namespace {

// The cross-entropy of a text under a model of n-grams: the mean of -log p(token | tokens before), in nats. 0 for an
// empty text.
double cross_entropy(const Ngrams& ngrams, const std::vector<int>& tokens) {
  std::vector<float> row(size_t(ngrams.vocab));
  double sum = 0;
  int context = 0;
  for (int token : tokens) {
    ngrams.log_probabilities(context, row.data());
    sum -= double(row[size_t(token)]);
    context = ngrams.next(context, token);
  }
  return tokens.empty() ? 0 : sum / double(tokens.size());
}

std::vector<float> random_numbers(uint32_t seed, int n, float spread) {
  std::mt19937 random(seed);
  std::normal_distribution<float> bell(0, spread);
  std::vector<float> numbers(n);
  for (float& x : numbers) x = bell(random);
  return numbers;
}

std::vector<Candidate> best_of(const std::vector<float>& logits, const std::vector<float>& noise,
                               const Sampling& sampling, int width, bool kept_only = false) {
  const int vocab = int(logits.size());
  std::vector<Candidate> best(width);
  std::vector<float> scores(vocab);
  best.resize(top_candidates(Solo{}, logits.data(), noise.empty() ? nullptr : noise.data(), vocab,
                             {&sampling, nullptr, 0, kept_only}, width, best.data(), scores.data()));
  return best;
}

std::string folder() {
  const std::string dir =
      (std::filesystem::temp_directory_path() / ("nanospec_draft_" + std::to_string(getpid()))).string();
  std::filesystem::create_directories(dir);
  return dir;
}

}  // namespace

TEST_CASE("draft: the best candidates are those of a full sort, their chances those of a full softmax") {
  for (int vocab : {1, 3, 31, 65, 1000, 50257})
    for (float temperature : {0.0f, 0.4f, 1.0f, 1.5f})
      for (bool noisy : {false, true}) {
        Sampling sampling;
        sampling.temperature = temperature;
        std::vector<float> logits = random_numbers(vocab, vocab, 2), noise;
        if (vocab > 30) logits[7] = logits[20] = logits[3];  // a tie: the lowest token first
        if (noisy && temperature > 0) noise = random_numbers(vocab + 1, vocab, 1.3f);
        if (!noise.empty() && vocab > 30) noise[7] = noise[20] = noise[3];
        std::vector<double> score(vocab);
        std::vector<int> order(vocab);
        for (int x = 0; x < vocab; x++) {
          order[x] = x;
          score[x] = noise.empty() ? logits[x] : fused(temperature, noise[x], logits[x]);
        }
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return score[a] > score[b]; });
        const double width_of_doubt = std::max(noise.empty() ? double(temperature) : 0.7 * temperature, 0.5);
        double total = 0;
        for (int x = 0; x < vocab; x++) total += std::exp((score[x] - score[order[0]]) / width_of_doubt);
        for (int width : {1, 4, 8, 64}) {
          const std::vector<Candidate> best = best_of(logits, noise, sampling, width);
          REQUIRE(int(best.size()) == std::min(width, vocab));
          for (int rank = 0; rank < int(best.size()); rank++) {
            CHECK(best[rank].token == order[rank]);
            const double chance = std::exp((score[order[rank]] - score[order[0]]) / width_of_doubt) / total;
            CHECK(double(best[rank].chance) == doctest::Approx(chance).epsilon(1e-4));
          }
        }
      }
}

TEST_CASE("draft: of equal scores the lowest tokens are proposed, wherever they stand") {
  Sampling sampling;
  sampling.temperature = 0;
  for (int vocab : {1, 7, 32, 65, 130, 1000})
    for (float same : {0.0f, -0.0f, 1.5f, -1e30f})
      for (int width : {1, 2, 7, 8, 9, 40}) {
        std::vector<float> logits(vocab, same);
        std::vector<int> expected;
        if (vocab > 100) logits[99] = logits[64] = same + std::fabs(same) + 1, expected = {64, 99};
        for (int x = 0; x < vocab; x++)
          if (vocab <= 100 || (x != 99 && x != 64)) expected.push_back(x);
        expected.resize(std::min(width, vocab));
        std::vector<int> tokens;
        for (const Candidate& candidate : best_of(logits, {}, sampling, width)) tokens.push_back(candidate.token);
        CHECK(tokens == expected);
      }
}

TEST_CASE("draft: only tokens with a chance are proposed") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> logits = {nan, 1, -inf, 3, 2}, noise = {0, 0.5f, 9, 0, 0};
  Sampling sampling;
  for (const std::vector<float>& g : {noise, std::vector<float>()}) {
    const std::vector<Candidate> best = best_of(logits, g, sampling, 5);
    REQUIRE(best.size() == 3);
    CHECK(best[0].token == 3);
    CHECK(best[1].token == 4);
    CHECK(best[2].token == 1);
    CHECK(best[0].chance + best[1].chance + best[2].chance == doctest::Approx(1));
  }
  sampling.top_k = 2;  // heeded where the rule needs a q that drops what the target drops
  CHECK(best_of(logits, noise, sampling, 5).size() == 3);
  CHECK(best_of(logits, noise, sampling, 5, true).size() == 2);
  CHECK(best_of(std::vector<float>(5, nan), noise, sampling, 5).empty());
  CHECK(best_of(std::vector<float>(5, -inf), {}, sampling, 5).empty());
  for (const Candidate& odd : best_of({inf, inf, 0}, {}, sampling, 3)) CHECK((odd.chance >= 0 && odd.chance <= 1));
}

TEST_CASE("draft: a drafter with the target's logits and noise proposes the very token that will be picked") {
  for (float temperature : {0.0f, 0.4f, 1.0f, 1.5f})
    for (const auto& [top_k, top_p] : {std::pair<int, float>{0, 1.0f}, {5, 1.0f}, {0, 0.7f}}) {
      Sampling sampling;
      sampling.temperature = temperature, sampling.top_k = top_k, sampling.top_p = top_p;
      const int vocab = 65;
      Noise noise(sampling, vocab);
      for (int i = 0; i < 200; i++) {
        const std::vector<float> logits = random_numbers(i, vocab, 2);
        const std::vector<float> row(noise.row(i), noise.row(i) + vocab);
        const std::vector<Candidate> best =
            best_of(logits, temperature > 0 ? row : std::vector<float>(), sampling, 1, true);
        CHECK(best[0].token == pick(logits.data(), row.data(), vocab, sampling));
      }
    }
}

TEST_CASE("draft: coupled draws of p and q agree more often than (1 - TV) / (1 + TV)") {  // Daliri, Musco, Suresh 2024
  Sampling sampling;
  const int vocab = 20, draws = 20000;
  Noise noise(sampling, vocab), other(sampling, vocab, kStreamDraft);
  for (uint32_t seed = 1; seed <= 5; seed++) {
    const std::vector<float> a = random_numbers(seed, vocab, 1.5f), shift = random_numbers(seed + 50, vocab, 0.7f);
    std::vector<float> b = a, p(vocab), q(vocab);
    for (int x = 0; x < vocab; x++) b[x] += shift[x];
    distribution(a.data(), vocab, sampling, p.data());
    distribution(b.data(), vocab, sampling, q.data());
    double far = 0, same = 0, agree = 0, apart = 0;
    for (int x = 0; x < vocab; x++) far += std::fabs(p[x] - q[x]) / 2, same += p[x] * q[x];
    for (int i = 0; i < draws; i++) {
      const int token = pick(a.data(), noise.row(i), vocab, sampling);
      std::vector<float> row(noise.row(i), noise.row(i) + vocab), own(other.row(i), other.row(i) + vocab);
      agree += best_of(b, row, sampling, 1)[0].token == token;
      apart += best_of(b, own, sampling, 1)[0].token == token;
    }
    CHECK(agree / draws > (1 - far) / (1 + far) - 0.01);
    CHECK(apart / draws == doctest::Approx(same).epsilon(0.05));  // by noise of its own it agrees by chance alone
    CHECK(agree / draws > apart / draws + 0.2);
  }
}

TEST_CASE("draft: the bigram's table by hand") {
  const std::vector<float> table = bigram_table({0, 1, 0, 1, 1, 2}, 4);
  // unigram (2+1, 3+1, 1+1, 0+1) / 10; after 1 came 0, 1 and 2, once each
  CHECK(table[1 * 4 + 0] == doctest::Approx(std::log((1 + 4 * 0.3) / 7)));
  CHECK(table[1 * 4 + 1] == doctest::Approx(std::log((1 + 4 * 0.4) / 7)));
  CHECK(table[1 * 4 + 3] == doctest::Approx(std::log((0 + 4 * 0.1) / 7)));
  CHECK(table[0 * 4 + 1] == doctest::Approx(std::log((2 + 4 * 0.4) / 6)));
  for (int c = 0; c < 4; c++) {
    double sum = 0;
    for (int x = 0; x < 4; x++) sum += std::exp(double(table[c * 4 + x]));
    CHECK(sum == doctest::Approx(1));
  }
  for (float x : bigram_table({}, 3)) CHECK(std::exp(x) == doctest::Approx(1.0 / 3));  // nothing seen: nothing known
}

TEST_CASE("draft: the bigram expands each node by the row of its token and the noise of its place") {
  Sampling sampling;
  const int vocab = 7;
  Noise noise(sampling, vocab);
  Bigram drafter(random_numbers(3, vocab * vocab, 2), vocab);
  Growth growth;
  growth.start(4);
  growth.add(0, {2, 1}), growth.add(1, {6, 1});
  const int nodes[2] = {2, 0};
  Candidate candidates[6];
  int count[2];
  drafter.expand(growth, nodes, 2, 3, {&sampling, &noise, 100, false}, candidates, count);
  for (int k = 0; k < 2; k++) {
    const int token = growth.token[nodes[k]], depth = growth.depth[nodes[k]];
    const float* row = noise.row(100 + depth);
    const std::vector<Candidate> expected =
        best_of({drafter.table->begin() + token * vocab, drafter.table->begin() + (token + 1) * vocab},
                {row, row + vocab}, sampling, 3);
    REQUIRE(count[k] == 3);
    for (int i = 0; i < 3; i++) CHECK(candidates[k * 3 + i].token == expected[i].token);
    for (int i = 0; i < 3; i++) CHECK(candidates[k * 3 + i].chance == expected[i].chance);
  }
}

TEST_CASE("tables: the bigram saved and loaded; what is wrong is said in one line") {
  const std::string dir = folder();
  const auto message = [&](const std::string& name, int vocab) -> std::string {
    try {
      load_drafter(name, dir, vocab);
    } catch (const std::exception& error) { return error.what(); }
    return "";
  };
  const auto holds = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  std::filesystem::remove(bigram_path(dir));
  CHECK(load_drafter("none", dir, 3) == nullptr);
  CHECK(holds(message("bigram", 3), "drafter bigram"));
  CHECK(holds(message("bigram", 3), "train_gpt"));
  CHECK(holds(message("bigram", 3), "--drafter none"));
  CHECK(holds(message("bigrams", 3), "did you mean bigram?"));
  CHECK_THROWS_AS(load_drafter("bigrams", dir, 3), std::invalid_argument);
  CHECK_THROWS_AS(load_drafter("bigram", dir, 3), std::runtime_error);

  save_bigram(dir, {0, 1, 0, 1, 1, 2}, 3);
  const std::unique_ptr<Drafter> loaded = load_drafter("bigram", dir, 3);
  const Bigram& bigram = dynamic_cast<Bigram&>(*loaded);
  CHECK(bigram.vocab == 3);
  CHECK(*bigram.table == bigram_table({0, 1, 0, 1, 1, 2}, 3));
  CHECK(holds(message("bigram", 4), "expected (4, 4)"));
  CHECK_THROWS_AS(save_bigram(dir, {0}, kBigramMostTokens + 1), std::runtime_error);

  std::string bytes = read_file(bigram_path(dir));
  write_file(bigram_path(dir), bytes.substr(0, bytes.size() - 3));
  CHECK(!message("bigram", 3).empty());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  memcpy(&bytes[bytes.size() - 4], &nan, 4);
  write_file(bigram_path(dir), bytes);
  CHECK(holds(message("bigram", 3), "damaged"));
  std::filesystem::remove_all(dir);
}

// ---------------------------------------------------------------------------------------------------------------
// N-grams

namespace {

std::string ngram_file(const NgramTrie& trie) { return format_safetensors(ngram_tensors(trie), {}); }

using Ints = std::vector<int>;

Ints random_text(uint32_t seed, int n, int vocab) {  // each token leans on the two before it
  std::mt19937 random(seed);
  Ints text;
  for (int i = 0; i < n; i++)
    text.push_back(random() % 3 || i < 2 ? int(random() % uint32_t(vocab)) : (2 * text[i - 1] + text[i - 2]) % vocab);
  return text;
}

// What a map of all n-grams says: how often an n-gram occurs, and the formula of interpolated(), word for word.
struct Naive {
  std::map<Ints, int> count;
  int vocab;

  Naive(const Ints& text, int vocab_size) : vocab(vocab_size) {
    for (size_t i = 0; i < text.size(); i++)
      for (size_t k = 1; k <= 6 && i + k <= text.size(); k++) count[{text.begin() + i, text.begin() + i + k}]++;
  }
  double probability(int x, Ints context) const {
    double total = 0, types = 0, seen = 0;
    for (int y = 0; y < vocab; y++) {
      context.push_back(y);
      const auto found = count.find(context);
      context.pop_back();
      if (found == count.end()) continue;
      total += found->second, types++;
      if (x == y) seen = found->second;
    }
    const double w = std::pow(kNgramSmoothing, double(context.size()));
    const double shorter = context.empty() ? 1.0 / vocab : probability(x, {context.begin() + 1, context.end()});
    return total == 0 ? shorter : (seen + w * types * shorter) / (total + w * types);
  }
};

std::unique_ptr<Ngram> ngram_drafter(const Ints& text, int order, int vocab) {
  return std::make_unique<Ngram>(interpolated(count_ngrams(text, vocab), order, vocab));
}

}  // namespace

TEST_CASE("ngram: a few counts and probabilities by hand") {
  const NgramTrie trie = count_ngrams({0, 1, 0, 1, 1, 2}, 3, 2);
  CHECK(trie.orders() == 2);
  //                                 -  0  1  2  01 10 11 12
  CHECK(trie.token == Ints{0, 0, 1, 2, 1, 0, 1, 2});
  CHECK(trie.count == Ints{6, 2, 3, 1, 2, 1, 1, 1});
  CHECK(trie.first == Ints{1, 4, 5, 8, 8});
  CHECK(trie.suffix == Ints{0, 0, 0, 0});
  CHECK(trie.level == Ints{0, 1, 4, 8});
  const Ngrams ngrams = interpolated(trie, 2, 3);
  float row[3];
  ngrams.log_probabilities(ngrams.next(0, 1), row);
  // after 1 came 0, 1 and 2, once each: w = 2 for each of the three; p_1 = (count + 3 / 3) / (6 + 3)
  CHECK(row[0] == doctest::Approx(std::log((1 + 6 * (3 / 9.0)) / 9)));
  CHECK(row[1] == doctest::Approx(std::log((1 + 6 * (4 / 9.0)) / 9)));
  CHECK(row[2] == doctest::Approx(std::log((1 + 6 * (2 / 9.0)) / 9)));
}

TEST_CASE("ngram: counts and probabilities are those of a naive count, of every order, and sum to 1") {
  for (const auto& [vocab, n] : {std::pair<int, int>{5, 400}, {3, 60}, {40, 300}, {2, 7}, {4, 1}, {3, 0}}) {
    const Ints text = random_text(uint32_t(n), n, vocab), other = random_text(77, 60, vocab);
    const Naive naive(text, vocab);
    const NgramTrie trie = count_ngrams(text, vocab, 6);
    CHECK(trie.orders() == std::max(1, std::min(6, n)));
    CHECK(trie.token.size() == naive.count.size() + 1);
    for (int order = 1; order <= trie.orders(); order++) {
      const Ngrams ngrams = interpolated(trie, order, vocab);
      std::vector<float> row(vocab);
      int context = 0;
      for (size_t i = 0; i < other.size(); i++) {
        ngrams.log_probabilities(context, row.data());
        double sum = 0, apart = 0;
        const Ints last(other.begin() + (i < size_t(order) ? 0 : i - order + 1), other.begin() + i);
        for (int x = 0; x < vocab; x++) {
          sum += std::exp(double(row[x]));
          apart = std::max(apart, std::fabs(row[x] - std::log(naive.probability(x, last))));
        }
        CHECK(sum == doctest::Approx(1));
        CHECK(apart < 1e-5);
        context = ngrams.next(context, other[i]);
      }
    }
  }
}

TEST_CASE("ngram: the tokens known to follow have the chances of all, the others the rest together") {
  const int vocab = 50;
  const Ngrams ngrams = interpolated(count_ngrams(random_text(11, 300, vocab), vocab, 4), 4, vocab);
  std::vector<float> row(vocab);
  Likely likely(vocab);
  int context = 0, known = 0;
  for (int token : random_text(12, 100, vocab)) {
    ngrams.log_probabilities(context, row.data());
    ngrams.log_probabilities(context, likely);
    double rest = 0, expected = 0;
    for (int x = 0; x < vocab; x++) {
      if (likely.find(x) >= 0) CHECK(likely.of(x) == row[x]);
      else rest += std::exp(double(likely.of(x))), expected += std::exp(double(row[x]));
    }
    CHECK(rest == doctest::Approx(expected));
    known += int(likely.token.size());
    context = ngrams.next(context, token);
  }
  CHECK(known > 100);
}

TEST_CASE("ngram: of a frequent token's followers a draft looks at the likeliest, and the chances sum to 1") {
  const int vocab = 300;
  Ints text;
  for (int token : random_text(13, 4000, vocab)) {
    text.push_back(token * token / vocab);  // small numbers are frequent
    text.push_back(7);
  }
  const Ngrams ngrams = interpolated(count_ngrams(text, vocab, 2), 2, vocab);
  const int context = ngrams.next(0, 7);
  CHECK(ngrams.trie.first[context + 1] - ngrams.trie.first[context] > 2 * kMostFollowers);
  std::vector<float> row(vocab);
  Likely likely(vocab);
  ngrams.log_probabilities(context, row.data());
  ngrams.log_probabilities(context, likely);
  CHECK(likely.token.size() == size_t(kMostFollowers));
  double sum = likely.others() * std::exp(double(likely.rest));
  float least = 0;
  for (int token : likely.token) {
    CHECK(likely.of(token) == row[token]);
    sum += std::exp(double(row[token]));
    least = std::min(least, row[token]);
  }
  CHECK(sum == doctest::Approx(1));
  for (int x = 0; x < vocab; x++)
    if (likely.find(x) < 0) CHECK(row[x] <= doctest::Approx(least));
}

TEST_CASE("ngram: no more of a text is counted than is asked for, and the work tells how far it is") {
  const Ints text = random_text(9, 500, 4), begun(text.begin(), text.begin() + 130);
  std::vector<double> shares;
  const NgramTrie whole = count_ngrams(begun, 4, 6),
                  some = count_ngrams(text, 4, 6, 130, [&](double share) { shares.push_back(share); });
  CHECK(ngram_file(some) == ngram_file(whole));
  CHECK(some.count[0] == 130);
  CHECK(ngram_file(some) != ngram_file(count_ngrams(text, 4, 6)));
  CHECK(shares.size() >= 2);
  CHECK(std::is_sorted(shares.begin(), shares.end()));
  CHECK(shares.front() > 0);
  CHECK(shares.back() < 1);
}

TEST_CASE("ngram: the cross-entropy of a text is the mean of its naive costs, and falls with order on its own text") {
  const Ints text = random_text(4, 600, 4), other = random_text(8, 80, 4);
  const Naive naive(text, 4);
  double last = 1e9;
  for (int order = 1; order <= 6; order++) {
    const Ngrams ngrams = interpolated(count_ngrams(text, 4), order, 4);
    double sum = 0;
    for (size_t i = 0; i < other.size(); i++)
      sum -= std::log(
          naive.probability(other[i], {other.begin() + (i < size_t(order) ? 0 : i - order + 1), other.begin() + i}));
    CHECK(cross_entropy(ngrams, other) == doctest::Approx(sum / 80).epsilon(1e-4));
    CHECK(cross_entropy(ngrams, text) < last);
    last = cross_entropy(ngrams, text);
    CHECK(cross_entropy(ngrams, {}) == 0);
  }
}

TEST_CASE("ngram: a node's logits are those of its path read as text") {
  const int vocab = 4;
  const Ints text = random_text(5, 500, vocab);
  for (int order = 1; order <= 6; order++)
    for (int length : {1, 2, 7}) {
      const auto drafter = ngram_drafter(text, order, vocab), fresh = ngram_drafter(text, order, vocab);
      Ints before = random_text(9, length, vocab);
      drafter->begin(before.data(), length);
      for (int turn = 0; turn < 3; turn++) {
        Growth growth, root;
        growth.start(before.back()), root.start(0);
        std::mt19937 random(uint32_t(order * 10 + turn));
        for (int i = 0; i < 40; i++) growth.add(int(random() % uint32_t(growth.size())), {int(random() % vocab), 1});
        for (int i = 0; i < 12; i++) growth.add(growth.size() - 1, {int(random() % vocab), 1});  // deep
        for (int node = growth.size() - 1; node >= 0; node--) {
          Ints path;
          for (int i = node; i > 0; i = growth.parent[i]) path.insert(path.begin(), growth.token[i]);
          path.insert(path.begin(), before.begin(), before.end());
          fresh->begin(path.data(), int(path.size()));
          const float* expected = fresh->logits(root, 0);
          CHECK(memcmp(drafter->logits(growth, node), expected, size_t(vocab) * sizeof(float)) == 0);
        }
        const Ints news = random_text(uint32_t(turn), 1 + turn * 3, vocab), rows(news.size());
        drafter->committed({news.data(), rows.data(), int(news.size()), Tree()});
        before.insert(before.end(), news.begin(), news.end());
      }
    }
}

TEST_CASE("ngram: the file gives back what was counted, and refuses what is no trie") {
  const Ints text = random_text(3, 200, 5);
  const NgramTrie trie = count_ngrams(text, 5);
  const auto read = [](const NgramTrie& changed, int vocab) {
    return parse_ngrams(parse_safetensors(ngram_file(changed), "x"), vocab, "x");
  };
  const NgramTrie back = read(trie, 5);
  CHECK(back.token == trie.token);
  CHECK(back.count == trie.count);
  CHECK(back.first == trie.first);
  CHECK(back.suffix == trie.suffix);
  CHECK(back.level == trie.level);

  const auto wrong = [&](auto change) {
    NgramTrie changed = trie;
    change(changed);
    return error_of([&] { read(changed, 5); });
  };
  const auto holds = [](const std::string& line, const char* part) { return line.find(part) != std::string::npos; };
  const int inner = trie.level[6];
  CHECK(holds(error_of([&] { read(trie, 4); }), "out of range"));
  CHECK(holds(wrong([&](NgramTrie& t) { t.token[3] = -1; }), "out of range"));
  CHECK(holds(wrong([&](NgramTrie& t) { t.count[9] = 0; }), "out of range"));
  CHECK(holds(wrong([&](NgramTrie& t) { t.token[2] = t.token[1]; }), "tokens out of order"));
  CHECK(holds(wrong([&](NgramTrie& t) { t.first[7]++, t.first[8] = t.first[7] - 1; }), "children out of order"));
  CHECK(holds(wrong([&](NgramTrie& t) { t.first[inner]++; }), "without a parent"));
  CHECK(holds(wrong([&](NgramTrie& t) { t.first[0] = 0; }), "without a parent"));
  CHECK(holds(wrong([&](NgramTrie& t) { t.suffix[0] = 1; }), "root"));
  CHECK(holds(wrong([&](NgramTrie& t) { t.suffix[trie.level[3]] = trie.level[3]; }), "suffix"));
  CHECK(holds(wrong([&](NgramTrie& t) { t.suffix[trie.level[3]] = 0; }), "suffix"));
  CHECK(holds(wrong([&](NgramTrie& t) { t.count.pop_back(); }), "lengths"));
  CHECK(holds(wrong([&](NgramTrie& t) { t.first.pop_back(); }), "lengths"));
  CHECK(holds(wrong([&](NgramTrie& t) { t.suffix.pop_back(), t.first.erase(t.first.end() - 2); }), "level"));
  const float one = 1;
  CHECK(holds(error_of([&] {
                parse_ngrams(parse_safetensors(format_safetensors({{"token", {1}, &one}}, {}), "x"), 5, "x");
              }),
              "expected a list of I32"));
}

TEST_CASE("drafters: by name: orders and files that do not fit are refused in one line") {
  const std::string dir = folder();
  const auto message = [&](const std::string& name) -> std::string {
    try {
      load_drafter(name, dir, 3);
    } catch (const std::exception& error) { return error.what(); }
    return "";
  };
  const auto holds = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  for (const char* name : {"ngram", "ngram:", "ngram:0", "ngram:x", "ngram:-1", "ngram:4:4", "ngrams:4", "bigram:2",
                           "none:1", "", "random:1", "ngram:99", "ngram:7"}) {
    CAPTURE(name);
    CHECK_THROWS_AS(load_drafter(name, dir, 3), std::invalid_argument);
    CHECK(holds(message(name), "--drafter"));
  }
  CHECK(holds(message("ngram"), "write ngram:N with N from 1 to 6"));
  CHECK(holds(message("bigrom"),
              "did you mean bigram? known are none, bigram, ngram:N, lookup, suffix, recycle, gpt:DIR, self:K, "
              "medusa[:DIR], hydra[:DIR], parallel[:DIR], random, a+b"));
  CHECK(holds(message("ngrm:4"), "did you mean ngram:N?"));
  for (const char* part : {"order 99", "order 6"}) CHECK(holds(message("ngram:99"), part));

  std::filesystem::remove(ngram_path(dir));
  CHECK_THROWS_AS(load_drafter("ngram:4", dir, 3), std::runtime_error);
  for (const char* part : {"ngram.safetensors", "train_gpt", "--resume"}) CHECK(holds(message("ngram:4"), part));
  save_ngrams(dir, {0, 1, 2}, 3);
  CHECK(load_drafter("ngram:3", dir, 3)->vocab == 3);
  CHECK_THROWS_AS(load_drafter("ngram:4", dir, 3), std::runtime_error);
  for (const char* part : {"order 4", "order 3"}) CHECK(holds(message("ngram:4"), part));

  const std::unique_ptr<Drafter> random = load_drafter("random", dir, 3);
  Growth growth;
  growth.start(1), growth.add(0, {2, 1}), growth.add(1, {1, 1});
  const auto row = [&](int node) {
    const float* logits = random->logits(growth, node);
    return std::vector<float>(logits, logits + 3);
  };
  CHECK(row(0) == row(2));
  CHECK(row(0) != row(1));
  std::filesystem::remove_all(dir);
}

TEST_CASE("draft: the core's full tree is the template of the same width at every depth") {
  const std::vector<float> table = bigram_table({0, 1, 2, 3, 1, 2, 0, 4, 4, 1, 3, 2, 0, 1}, 5);
  Bigram drafter(table, 5);
  Sampling sampling;
  Noise noise(sampling, 5);
  const Draws draws = {&sampling, &noise, 7, false};
  for (int depth : {1, 2, 3, 4})
    for (int width : {1, 2, 3, 7})  // 7: more children than tokens
      for (int room : {0, 1, 2, 9}) {
        Growth plain, planned;
        plain.start(2), planned.start(2);
        FullTree(depth, width).grow(drafter, draws, room, plain);
        Limits limits{room};
        Shape shape;
        shape.kind = Shape::kCartesian;
        shape.plan = std::make_shared<Template>(cartesian_template(std::vector<int>(size_t(depth), width)));
        grow(shape, limits, planned, [&](const int* nodes, int n, int w, Candidate* candidates, int* count) {
          drafter.expand(planned, nodes, n, w, draws, candidates, count);
        });
        CHECK(plain.token == planned.token);
        CHECK(plain.parent == planned.parent);
        CHECK(plain.chance == planned.chance);
        CHECK(plain.size() == 1 + full_tree_nodes(std::min(depth, room), std::min(width, 5)));
      }
}

namespace {

// The candidates by their definition: all tokens that may be drafted, in the order of their scores. NaNs have none.
std::vector<Candidate> sorted_candidates(const std::vector<float>& logits, const float* noise, const Sampling& sampling,
                                         bool kept_only, int width) {
  const int vocab = int(logits.size());
  const float t = noise ? sampling.temperature : 0, infinity = std::numeric_limits<float>::infinity();
  const float least = kept_only ? kept_threshold(Solo{}, logits.data(), vocab, sampling) : -infinity;
  std::vector<Candidate> all;
  for (int x = 0; x < vocab; x++) {
    const float score = std::fma(t, noise ? noise[x] : 0.0f, logits[size_t(x)]);
    if (logits[size_t(x)] >= least && score > -infinity) all.push_back({x, score});
  }
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.chance > b.chance; });
  const double sharp = 1 / std::max(noise ? 0.7 * sampling.temperature : double(sampling.temperature), 0.5);
  double total = 0;
  for (const Candidate& one : all) total += std::exp((double(one.chance) - all[0].chance) * sharp);
  const double top = all.empty() ? 0 : all[0].chance;
  for (Candidate& one : all) one.chance = float(std::exp((one.chance - top) * sharp) / total);
  all.resize(std::min(all.size(), size_t(width)));
  return all;
}

}  // namespace

TEST_CASE("draft: the candidates are those of a sort, whatever the vocabulary and the width") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  int64_t compared = 0;
  for (int vocab : {1, 2, 7, 31, 32, 33, 65, 300, 5000})
    for (int width : {1, 2, 4, 8, 9, 20})
      for (uint64_t seed = 0; seed < 24; seed++) {
        std::vector<float> logits(size_t(vocab), 0), noise(size_t(vocab), 0), scores(size_t(vocab), 0);
        for (int x = 0; x < vocab; x++) {
          const uint64_t bits = random_bits(seed, 3, 1000, uint64_t(x), uint32_t(vocab));
          logits[size_t(x)] = seed % 3 == 0 ? float(bits % 5) : float(bits % 1000) / 100;  // with equal ones
          noise[size_t(x)] = float(bits >> 40) / float(1 << 24);
          if (seed % 4 == 1 && bits % 11 == 0) logits[size_t(x)] = bits % 2 ? -inf : nan;
        }
        Sampling sampling;
        sampling.temperature = float(seed % 4) / 2;
        sampling.top_k = int(seed % 5);
        sampling.top_p = seed % 2 ? 0.8f : 1;
        for (const float* g : {static_cast<const float*>(nullptr), static_cast<const float*>(noise.data())})
          for (bool kept_only : {false, true}) {
            std::vector<Candidate> found(size_t(width), Candidate{-1, 0});
            found.resize(size_t(top_candidates(Solo{}, logits.data(), g, vocab, {&sampling, nullptr, 0, kept_only},
                                               width, found.data(), scores.data())));
            const std::vector<Candidate> expected = sorted_candidates(logits, g, sampling, kept_only, width);
            REQUIRE(found.size() == expected.size());
            for (size_t i = 0; i < found.size(); i++) {
              CHECK(found[i].token == expected[i].token);
              CHECK(found[i].chance == doctest::Approx(expected[i].chance).epsilon(1e-4));
            }
            compared += int64_t(found.size());
          }
      }
  CHECK(compared > 20000);
}
