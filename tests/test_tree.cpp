// Tests of tree.h: a tree by hand, then random ones against a mask built the slow way; shapes and their growth.
#include "../tree.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <random>
#include <set>

#include "error_of.h"
#include "tree_by_hand.h"

using namespace nanospec;
using Ints = std::vector<int>;

namespace {

// A drafter whose candidates are a function of the path: falling chances, fewer than asked for now and then.
struct PathDrafter {
  const Growth& growth;
  uint32_t seed;
  int calls = 0, nodes = 0;

  std::vector<Candidate> candidates(int node, int width) const {
    std::seed_seq path = [&] {
      Ints tokens = {int(seed)};
      for (int i = node; i >= 0; i = growth.parent[i]) tokens.push_back(growth.token[i]);
      return std::seed_seq(tokens.begin(), tokens.end());
    }();
    std::mt19937 random(path);
    const int count = std::min(width, int(1 + random() % 10));
    std::vector<Candidate> out;
    float left = 1, chance = 1;
    for (int i = 0; i < count; i++) {
      chance = std::min(chance, left) * (0.2f + 0.75f * float(random() % 1000) / 1000);
      left -= chance;
      out.push_back({int(i * 7 + random() % 7), chance});
    }
    return out;
  }
  void operator()(const int* list, int n, int width, Candidate* out, int* count) {
    calls++, nodes += n;
    for (int k = 0; k < n; k++) {
      const std::vector<Candidate> found = candidates(list[k], width);
      std::copy(found.begin(), found.end(), out + k * width);
      count[k] = int(found.size());
    }
  }
};

}  // namespace

TEST_CASE("tree: cur -> c0 (c2, c3), c1 (c4, c5) by hand") {
  const Tree tree = tree_by_hand();
  CHECK(tree.token == Ints{9, 0, 2, 3, 1, 4, 5});
  CHECK(tree.parent == Ints{-1, 0, 1, 1, 0, 4, 4});
  CHECK(tree.end == Ints{7, 4, 3, 4, 7, 6, 7});
  CHECK(tree.origin == Ints{0, 1, 3, 4, 2, 5, 6});
  const int L = 10;  // cached positions, cur's own place being L
  Ints positions;
  for (int i = 1; i < 7; i++) positions.push_back(L + tree.depth[i]);
  CHECK(positions == Ints{L + 1, L + 2, L + 2, L + 1, L + 2, L + 2});

  const char* mask[7] = {"1000000",   // cur
                         "1100000",   // c0
                         "1110000",   // c2
                         "1101000",   // c3
                         "1000100",   // c1
                         "1000110",   // c4
                         "1000101"};  // c5
  for (int i = 0; i < 7; i++)
    for (int j = 0; j < 7; j++) CHECK_MESSAGE(tree.sees(i, j) == (mask[i][j] == '1'), "row " << i << " column " << j);

  CHECK(tree.child(0, 1) == 4);
  CHECK(tree.child(4, 5) == 6);
  CHECK(tree.child(4, 2) == -1);
  CHECK(tree.child(6, 2) == -1);
}

TEST_CASE("tree: random trees of up to 500 nodes against a dense mask built by walking the parents") {
  std::mt19937 random(4);
  for (int round = 0; round < 60; round++) {
    const int n = round < 50 ? 1 + int(random() % 120) : 400 + int(random() % 100);
    const int reach = 1 + int(random() % n);  // how far back a parent may lie: 1 is a chain
    Growth growth;
    growth.start(0);
    for (int i = 1; i < n; i++) growth.add(i - 1 - int(random() % std::min(i, reach)), {i, 0.5f});
    Tree tree;
    flatten(growth, tree);
    REQUIRE(tree.size() == n);

    std::vector<std::vector<char>> dense(n, std::vector<char>(n, 0));
    for (int i = 0; i < n; i++)
      for (int j = i; j >= 0; j = growth.parent[j]) dense[i][j] = 1;
    int wrong = 0;
    Ints seen(n, 0), children(n, -1);
    for (int i = 0; i < n; i++) {
      const int from = tree.origin[i];
      seen[from]++;
      wrong += tree.token[i] != growth.token[from] || tree.depth[i] != growth.depth[from];
      wrong += i > 0 && tree.origin[tree.parent[i]] != growth.parent[from];
      if (i > 0) {  // siblings in the order of addition
        wrong += children[tree.parent[i]] > from;
        children[tree.parent[i]] = from;
        wrong += tree.child(tree.parent[i], tree.token[i]) != i;
      }
      for (int j = 0; j < n; j++) wrong += tree.sees(i, j) != bool(dense[from][tree.origin[j]]);
    }
    for (int count : seen) wrong += count != 1;
    CHECK(wrong == 0);
  }
}

TEST_CASE("tree: a growth cut short is the tree of its first nodes") {
  Growth growth;
  growth.start(9);
  growth.add(0, {1, 0.5f}), growth.add(1, {2, 0.5f}), growth.add(0, {3, 0.25f});
  CHECK(growth.reach == std::vector<float>{1, 0.5f, 0.25f, 0.25f});
  growth.shrink(2);
  Tree tree;
  flatten(growth, tree);
  CHECK(tree.token == Ints{9, 1});
  CHECK(tree.end == Ints{2, 2});
}

TEST_CASE("shapes: read from words") {
  CHECK(full_tree_nodes(3, 2) == 14);
  CHECK(full_tree_nodes(12, 1) == 12);
  CHECK(full_tree_nodes(1, 8) == 8);
  CHECK(full_tree_nodes(62, 2) == std::numeric_limits<int64_t>::max() - 1);
  CHECK(full_tree_nodes(63, 2) == std::numeric_limits<int64_t>::max());
  CHECK(full_tree_nodes(999999999, 999999999) == std::numeric_limits<int64_t>::max());
  Shape shape = parse_shape("chain:64", 64);
  CHECK(shape.kind == Shape::kChain);
  CHECK(shape.depth == 64);
  shape = parse_shape("tree:3x2", 14);
  CHECK(shape.kind == Shape::kFull);
  CHECK(shape.depth == 3);
  CHECK(shape.width == 2);
  CHECK(parse_shape("auto", 0).kind == Shape::kAuto);
}

TEST_CASE("shapes: what is wrong is said in one line") {
  const auto refused = [](const std::string& text, int budget = 64) {
    const std::string line = message_of([&] { parse_shape(text, budget); });
    CHECK_MESSAGE(!line.empty(), text);
    CHECK(line.find('\n') == std::string::npos);
    return line;
  };
  CHECK(holds(refused("chain:65"), "65 nodes, the budget is 64"));
  CHECK(holds(refused("tree:9x9"), "435848049 nodes, the budget is 64"));
  CHECK(holds(refused("tree:3x2", 13), "14 nodes, the budget is 13"));
  CHECK(holds(refused("tree:999999999x999999999"), "more than 9223372036854775807 nodes, the budget is 64"));
  CHECK(holds(refused("trees:3x2"), "did you mean tree:DxW?"));
  CHECK(holds(refused("chian:3"), "did you mean chain:K?"));
  CHECK(holds(refused("auot"), "did you mean auto?"));
  for (const char* text : {"",           ":",
                           "chain",      "chain:",
                           "chain:0",    "chain:-4",
                           "chain:+4",   "chain:4x2",
                           "chain: 4",   "chain:4.0",
                           "tree",       "tree:3",
                           "tree:3x",    "tree:x3",
                           "tree:0x2",   "tree:3x0",
                           "tree:3x2x2", "tree:3X2",
                           "auto:",      "auto:3",
                           "AUTO",       "chain:99999999999999999999",
                           "chain:4\n",  "\xff\xff"})
    refused(text);
  refused(std::string(100000, 'x'));
}

TEST_CASE("words: the nearest") {
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("chian", "chain") == 1);
  CHECK(closest_word("matchh", {"match", "independent", "rejection"}) == "match");
  CHECK(closest_word("rejetcion", {"match", "independent", "rejection"}) == "rejection");
}

TEST_CASE("shapes: chains and full trees grow level by level, no deeper than allowed") {
  const auto grown = [](const std::string& text, int deepest) {
    Growth growth;
    growth.start(100);
    int calls = 0;
    grow(parse_shape(text, 1000), {deepest}, growth,
         [&](const int* nodes, int n, int width, Candidate* out, int* count) {
           calls++;
           for (int k = 0; k < n; k++) {
             count[k] = width;
             for (int i = 0; i < width; i++) out[k * width + i] = {10 * growth.token[nodes[k]] + i, 0.5f};
           }
         });
    CHECK(calls <= deepest);
    Tree tree;
    flatten(growth, tree);
    return tree;
  };
  CHECK(grown("chain:4", 9).token == Ints{100, 1000, 10000, 100000, 1000000});
  CHECK(grown("chain:4", 2).token == Ints{100, 1000, 10000});
  CHECK(grown("chain:4", 0).token == Ints{100});
  CHECK(grown("tree:2x2", 9).token == Ints{100, 1000, 10000, 10001, 1001, 10010, 10011});
  CHECK(grown("tree:2x2", 1).token == Ints{100, 1000, 1001});
  CHECK(grown("tree:2x2", 0).token == Ints{100});
  CHECK(grown("tree:1x3", 9).end == Ints{4, 2, 3, 4});
  CHECK(grown("tree:5x3", 9).size() == 1 + 363);

  for (uint32_t seed = 0; seed < 20; seed++) {  // a drafter that knows fewer candidates than asked for
    Growth growth;
    growth.start(0);
    PathDrafter drafter{growth, seed};
    grow(parse_shape("tree:3x4", 1000), {3}, growth, drafter);
    Ints children(growth.size(), 0);
    for (int i = 1; i < growth.size(); i++) children[growth.parent[i]]++;
    for (int i = 0; i < growth.size(); i++)
      CHECK(children[i] == (growth.depth[i] == 3 ? 0 : int(drafter.candidates(i, 4).size())));
  }
}

TEST_CASE("cost: it never falls, and the slope bounds what any number of further nodes costs") {
  const Cost by_hand({1, 1.5, 1.6, 2.6});
  CHECK(by_hand.most() == 3);
  CHECK(by_hand.seconds(2) == doctest::Approx(1.6));
  CHECK(by_hand.slope(0) == doctest::Approx(0.3));  // two nodes for 0.6
  CHECK(by_hand.slope(1) == doctest::Approx(0.1));
  CHECK(by_hand.slope(2) == doctest::Approx(1));
  CHECK(by_hand.slope(3) == std::numeric_limits<double>::infinity());
  const Cost repaired({1, 3, 2, 4});  // a pause while one node was measured
  CHECK(repaired.seconds(1) == doctest::Approx(2.5));
  CHECK(repaired.seconds(2) == doctest::Approx(2.5));
  std::mt19937 random(3);
  for (int round = 0; round < 50; round++) {
    std::vector<double> seconds;
    const int sizes = 1 + int(random() % 60);
    for (int n = 0; n < sizes; n++) seconds.push_back(double(random() % 1000 + 1) / 10 + n);
    if (round % 2) std::sort(seconds.begin(), seconds.end());
    const Cost cost(seconds);
    for (int from = 0; from < sizes; from++) {
      double least = std::numeric_limits<double>::infinity();
      for (int to = from + 1; to < sizes; to++)
        least = std::min(least, (cost.seconds(to) - cost.seconds(from)) / (to - from));
      if (from + 1 < sizes) {
        CHECK(cost.slope(from) == doctest::Approx(least));
        CHECK(cost.seconds(from) <= cost.seconds(from + 1));
      }
      if (round % 2) CHECK(cost.seconds(from) == doctest::Approx(seconds[from]));
    }
  }
}

TEST_CASE("cost: kept current: a pause moves it by little, a lasting change arrives, for all sizes") {
  std::vector<double> seconds;
  for (int n = 0; n <= 64; n++) seconds.push_back(1e-3 * (1 + 0.05 * n));
  const auto settle = [](Cost& cost, double factor, int passes, const Ints& sizes) {
    for (int i = 0; i < passes; i++) {
      const int n = sizes[i % sizes.size()];
      cost.observe(n, factor * 1e-3 * (1 + 0.05 * n));
    }
  };
  const auto expect = [&](const Cost& cost, int n, double factor, double within) {
    const double found = cost.seconds(n) / seconds[n];
    CHECK_MESSAGE(std::fabs(found - factor) <= within * factor, n << " nodes: " << found << ", not " << factor);
  };
  Cost cost(seconds);
  settle(cost, 1, 100, {0, 3, 8});
  for (int n : {0, 3, 8, 64}) expect(cost, n, 1, 1e-9);

  for (double pause : {2.0, 1e6}) {  // however long it is
    Cost paused(seconds);
    paused.observe(3, pause * seconds[3]);
    settle(paused, 1, 31, {0, 3, 8});
    for (int n : {0, 3, 8, 64}) expect(paused, n, 1, 0.02);
  }
  for (double factor : {0.5, 0.8, 1.3, 2.0}) {  // half of the cores taken, and given back
    Cost changed(seconds);
    settle(changed, factor, 96, {0, 2, 5, 6, 8});
    for (int n : {0, 2, 5, 6, 8}) expect(changed, n, factor, 0.05);
    for (int n : {20, 64}) expect(changed, n, factor, 0.25);  // never seen: by what is common to all
    settle(changed, 1, 96, {0, 2, 5, 6, 8});
    for (int n : {0, 2, 5, 6, 8}) expect(changed, n, 1, 0.05);
  }
  Cost own(seconds);  // one size alone is dearer than was measured: the others stay
  for (int i = 0; i < 400; i++) {
    settle(own, 1, 4, {0, 2, 5, 6});
    own.observe(8, 1.3 * seconds[8]);
  }
  expect(own, 8, 1.3, 0.04);
  for (int n : {0, 2, 5, 6}) expect(own, n, 1, 0.02);
  for (int n = 0; n < 64; n++) CHECK(own.seconds(n) <= own.seconds(n + 1));
  own.observe(65, 1), own.observe(5, 0);  // sizes that nobody asked for, clocks that do not tick: no samples
  expect(own, 5, 1, 0.02);
}

TEST_CASE("auto: the best prefix of the likeliest nodes, as if all had been tried") {
  std::mt19937 random(8);
  int sizes[3] = {0, 0, 0}, spared = 0;
  for (uint32_t round = 0; round < 300; round++) {
    const int budget = int(random() % 40), deepest = int(random() % 8);
    const Shape shape = parse_shape("auto", budget);
    std::vector<double> seconds = {1};
    const double steep = std::pow(10.0, -double(random() % 4));
    for (int n = 1; n <= budget; n++)  // now and then a step, now and then cheaper than before
      seconds.push_back(seconds.back() + steep * (double(random() % 100) / 100 + (random() % 8 == 0 ? 2.0 : -0.1)));
    for (double& one : seconds) one = std::max(0.5, one) * 1e-3;
    const Cost cost(seconds);
    Growth growth;
    growth.start(3);
    PathDrafter drafter{growth, round};
    grow(shape, {deepest, &cost}, growth, drafter);

    Growth all;  // the slow way: always the likeliest of all candidates of all nodes, until the budget is used
    all.start(3);
    PathDrafter everything{all, round};
    std::vector<double> tokens = {1};
    std::set<std::pair<int, int>> taken;
    while (all.size() <= budget) {
      float best = -1;
      std::pair<int, int> which;
      for (int node = 0; node < all.size(); node++) {
        if (all.depth[node] == deepest) continue;
        const std::vector<Candidate> found = everything.candidates(node, 8);
        for (int rank = 0; rank < int(found.size()); rank++)
          if (!taken.count({node, rank}) && all.reach[node] * found[rank].chance > best)
            best = all.reach[node] * found[rank].chance, which = {node, rank};
      }
      if (best < 0) break;
      taken.insert(which);
      all.add(which.first, everything.candidates(which.first, 8)[which.second]);
      tokens.push_back(tokens.back() + all.reach.back());
    }
    int best = 0;
    const auto rate = [&](int n) { return tokens[n] / cost.seconds(n); };
    for (int n = 1; n < int(tokens.size()); n++)
      if (rate(n) > rate(best)) best = n;
    CHECK(growth.size() == best + 1);
    all.shrink(best + 1);
    CHECK(growth.token == all.token);
    CHECK(growth.parent == all.parent);
    sizes[best == 0 ? 0 : best < budget ? 1 : 2]++;
    spared += budget - drafter.nodes;
  }
  for (int count : sizes) CHECK(count > 20);  // nothing, something, everything: all three happened
  CHECK(spared > 1000);                       // and growth often ended early
}

TEST_CASE("auto: the drafter is asked less where its answers cost time, and still less where little is hoped for") {
  std::vector<double> seconds;
  for (int n = 0; n <= 64; n++) seconds.push_back(1e-3 * (1 + 0.04 * n));
  const Cost cost(seconds);
  const double expand_seconds = 3e-5;
  struct Outcome {
    double tokens = 0, seconds = 0;
    int asked = 0;
    double rate() const { return tokens / seconds; }
  };
  const auto outcome = [&](double told, float promise) {
    Outcome sum;
    for (uint32_t seed = 0; seed < 300; seed++) {
      Growth growth;
      growth.start(3);
      PathDrafter drafter{growth, seed};
      grow(parse_shape("auto", 64), {100, &cost, told, promise}, growth, drafter);
      for (float reach : growth.reach) sum.tokens += double(reach);
      sum.seconds += cost.seconds(growth.size() - 1) + drafter.nodes * expand_seconds, sum.asked += drafter.nodes;
    }
    return sum;
  };
  const Outcome untold = outcome(0, 1), told = outcome(expand_seconds, 1), wise = outcome(expand_seconds, 0.5f);
  CHECK(told.asked < untold.asked);
  CHECK(told.rate() > untold.rate());
  CHECK(wise.asked < 0.8 * told.asked);
  CHECK(wise.rate() > 0.99 * told.rate());
}

TEST_CASE("auto: no node, and no question to the drafter, where rows cost more than passes") {
  const Shape shape = parse_shape("auto", 64);
  std::vector<double> seconds;
  for (int n = 0; n <= 64; n++) seconds.push_back(1e-3 * (1 + 1.5 * n));
  const Cost dear(seconds), nothing(std::vector<double>(65, 1e-3));
  Growth growth;
  growth.start(3);
  PathDrafter drafter{growth, 1};
  grow(shape, {10, &dear}, growth, drafter);
  CHECK(growth.size() == 1);
  CHECK(drafter.calls == 0);
  grow(shape, {10, &nothing, 2e-3}, growth, drafter);  // and where the question itself costs more
  CHECK(growth.size() == 1);
  CHECK(drafter.calls == 0);
  grow(shape, {100, &nothing}, growth, drafter);  // and all that the budget allows where they cost nothing
  CHECK(growth.size() == 65);
  CHECK_THROWS_AS(grow(shape, {100}, growth, drafter), std::logic_error);
}
