// tests/growth/test_shapes.cpp: growth/shapes.h and growth/grow.h: names; templates, and which one is the best; growth,
// and what it costs; the words.
#include "growth/shapes.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <random>
#include <set>

#include "growth/grow.h"
#include "tests/error_of.h"

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
  CHECK(parse_shape("cartesian:4,4,4,4", 340).plan->nodes() == 340);
  CHECK(parse_shape("best-first", 8).kind == Shape::kBestFirst);
  CHECK(parse_shape("beam:5", 8).width == 5);
  CHECK(parse_shape("static:a:b.json", 8).file == "a:b.json");
  CHECK(parse_shape("calibrated", 8).file == "");
  CHECK(parse_shape("sequoia:x.json", 8).file == "x.json");
  shape = parse_shape("entropy-naive:threshold=0.25,depth=7,width=3,of=confidence", 8);
  CHECK(shape.kind == Shape::kEntropyNaive);
  CHECK(shape.threshold == 0.25f);
  CHECK(shape.depth == 7);
  CHECK(shape.width == 3);
  CHECK(shape.of_confidence);
  CHECK(!parse_shape("entropy-width", 8).of_confidence);
  for (const ShapeWord& known : kShapes)  // in the order of Shape::Kind
    if (std::string(known.form).find_first_of(":[") == std::string::npos)
      CHECK(kShapes[parse_shape(known.word, 8).kind].word == std::string(known.word));
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
  CHECK(holds(refused("cartesian:4,4,4"), "84 nodes, the budget is 64"));
  CHECK(holds(refused("beam:1025"), "choose beam:1024 or less"));
  CHECK(holds(refused("entropy-stop:threshold=1,"), "has a setting ''"));
  CHECK(holds(refused("best-fist"), "did you mean best-first?"));
  CHECK(holds(refused("entropy-stop:depht=3"), "write entropy-stop:threshold=H,depth=D"));
  CHECK(holds(refused("trees:3x2"), "did you mean tree:DxW?"));
  CHECK(holds(refused("chian:3"), "did you mean chain:K?"));
  CHECK(holds(refused("auot"), "did you mean auto?"));
  CHECK(holds(refused("CHAIN:4"), "did you mean chain:K?"));
  CHECK(!holds(refused("pyramid:3"), "did you mean"));
  CHECK(holds(refused("chain:0"), "shape 'chain:0' is out of range: --shape: write chain:K"));
  for (const char* far : {"tree:0x3", "tree:3x-1", "tree:99999999999x1", "beam:0", "cartesian:4,0", "chain:-4"})
    CHECK_MESSAGE(holds(refused(far), "is out of range: --shape: "), far);
  for (const char* other : {"tree:3", "tree:3x2x2", "chain:x", "chain:1,2", "chain", "auto:3", "static", "beam:1.5"})
    CHECK_MESSAGE(holds(refused(other), "is not written so: --shape: write "), other);
  for (const char* text : {"",
                           ":",
                           "chain",
                           "chain:",
                           "chain:0",
                           "chain:-4",
                           "chain:+4",
                           "chain:4x2",
                           "chain: 4",
                           "chain:4.0",
                           "tree",
                           "tree:3",
                           "tree:3x",
                           "tree:x3",
                           "tree:0x2",
                           "tree:3x0",
                           "tree:3x2x2",
                           "tree:3X2",
                           "auto:",
                           "auto:3",
                           "cartesian",
                           "cartesian:",
                           "cartesian:4,",
                           "cartesian:4,0",
                           "static",
                           "static:",
                           "sequoia:",
                           "calibrated:",
                           "beam",
                           "beam:0",
                           "beam:9999",
                           "best-first:4",
                           "entropy-stop:",
                           "entropy-stop:3",
                           "entropy-stop:depth=0",
                           "entropy-stop:depth=65",
                           "entropy-stop:of=p",
                           "entropy-width:width=3",
                           "entropy-stop:threshold=",
                           "entropy-stop:threshold=1x",
                           "entropy-stop:threshold=nan",
                           "entropy-stop:threshold=-1",
                           "AUTO",
                           "chain:99999999999999999999",
                           "chain:4\n",
                           "\xff\xff"})
    refused(text);
  refused(std::string(100000, 'x'));
}

TEST_CASE("words: the nearest") {
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("chian", "chain") == 1);
  CHECK(closest_word("matchh", {"match", "independent", "rejection"}) == "match");
  CHECK(closest_word("rejetcion", {"match", "independent", "rejection"}) == "rejection");
  CHECK(closest_word("BIGRAM", {"none", "bigram"}) == "bigram");
  CHECK(closest_word("temp", {"--top_k", "--temperature"}) == "--temperature");
  CHECK(closest_word("bigrm", {"none", "bigram"}, {"none", "bigram!"}) == "bigram!");
  for (const char* far : {"unknown", "", "-", "x", "no", "--"}) CHECK(closest_word(far, {"none", "bigram"}) == "");
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
  const auto settle = [](Cost& cost, double factor, int forwards, const Ints& sizes) {
    for (int i = 0; i < forwards; i++) {
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

TEST_CASE("auto: no node, and no question to the drafter, where rows cost more than forwards") {
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

namespace {

// Expected tokens of a forward by a template, where the rank-th child at depth d of an accepted node is the accepted
// one with chance rate(d, rank): one, and the chance to reach each node.
template <class Rate>
double expected_tokens(const Template& t, Rate rate) {
  std::vector<double> reach(t.parent.size(), 1);
  double sum = 1;
  for (int d = 1; d <= t.depth(); d++)
    for (int i = t.level[d]; i < t.level[d + 1]; i++) sum += reach[i] = reach[t.parent[i]] * rate(d - 1, t.rank[i]);
  return sum;
}

// The most that any tree of n nodes below its root can expect, over all of them: each is a smaller one and one leaf
// more, the next rank of some node.
template <class Rate>
double most_of_all_trees(int n, int depths, int ranks, Rate rate) {
  double most = 0;
  std::set<std::vector<Ints>> trees = {{{}}}, larger_trees;  // as sorted lists of paths of ranks
  for (int size = 0; size < n; size++, trees.swap(larger_trees), larger_trees.clear())
    for (const std::vector<Ints>& tree : trees)
      for (const Ints& path : tree) {
        Ints child = path;
        child.push_back(0);
        while (std::count(tree.begin(), tree.end(), child)) child.back()++;
        if (int(child.size()) > depths || child.back() >= ranks) continue;
        std::vector<Ints> grown = tree;
        grown.push_back(child);
        std::sort(grown.begin(), grown.end());
        larger_trees.insert(grown);
      }
  for (const std::vector<Ints>& tree : trees) {
    double sum = 0;
    for (const Ints& path : tree) {
      double reach = 1;
      for (size_t d = 0; d < path.size(); d++) reach *= rate(int(d), path[d]);
      sum += reach;
    }
    most = std::max(most, sum);
  }
  return most;
}

void check_template(const Template& t) {
  REQUIRE(t.parent.size() == t.rank.size());
  REQUIRE(t.level.back() == int(t.parent.size()));
  for (int d = 1; d <= t.depth(); d++)
    for (int i = t.level[d]; i < t.level[d + 1]; i++) {
      CHECK(t.parent[i] >= t.level[d - 1]);
      CHECK(t.parent[i] < t.level[d]);
      const bool first = i == t.level[d] || t.parent[i] != t.parent[i - 1];
      CHECK(t.rank[i] == (first ? 0 : t.rank[i - 1] + 1));
      if (i > t.level[d]) CHECK(t.parent[i] >= t.parent[i - 1]);
    }
}

Accuracy random_accuracy(uint32_t seed, int depths, int ranks) {
  std::mt19937 random(seed);
  Accuracy a;
  a.depths = depths, a.ranks = ranks, a.seen.assign(depths, 100);
  for (int d = 0; d < depths; d++) {
    double rate = 0.2 + 0.6 * double(random() % 1000) / 1000;
    for (int r = 0; r < ranks; r++) a.rate.push_back(rate), rate *= 0.2 + 0.6 * double(random() % 1000) / 1000;
  }
  return a;
}

}  // namespace

TEST_CASE("shapes: templates: products, by hand and cut short") {
  const Template t = cartesian_template({2, 1, 2});
  CHECK(t.parent == Ints{-1, 0, 0, 1, 2, 3, 3, 4, 4});
  CHECK(t.rank == Ints{0, 0, 1, 0, 0, 0, 1, 0, 1});
  CHECK(t.level == Ints{0, 1, 3, 5, 9});
  CHECK(t.nodes() == 8);
  CHECK(t.depth() == 3);
  check_template(t);
  const Template cut = truncated(t, 5);
  CHECK(cut.parent == Ints{-1, 0, 0, 1, 2, 3});
  CHECK(cut.level == Ints{0, 1, 3, 5, 6});
  CHECK(truncated(t, 4).level == Ints{0, 1, 3, 5});
  CHECK(truncated(t, 0).level == Ints{0, 1});
  CHECK(truncated(t, 8).level == t.level);
  CHECK(cartesian_template({4, 4, 4, 4}).nodes() == 340);
  // In any order, with the parents before their children.
  const Template sorted = by_levels({-1, 0, 1, 0, 3, 1}, {0, 1, 0, 0, 0, 1});
  CHECK(sorted.parent == Ints{-1, 0, 0, 1, 2, 2});
  CHECK(sorted.rank == Ints{0, 0, 1, 0, 0, 1});
  CHECK(sorted.level == Ints{0, 1, 3, 6});
}

TEST_CASE("shapes: calibrated: no tree of as many nodes can expect more") {
  for (uint32_t seed = 0; seed < 6; seed++)
    for (int n : {1, 3, 6}) {
      const Accuracy a = random_accuracy(seed, 3, 3);
      const auto rate = [&](int d, int r) { return a.at(d, r); };
      const Template t = calibrated_template(a, n);
      check_template(t);
      CHECK(t.nodes() == n);
      CHECK(expected_tokens(t, rate) == doctest::Approx(most_of_all_trees(n, 3, 3, rate)).epsilon(1e-12));
    }
}

TEST_CASE("shapes: sequoia: the program finds what the heap finds, and what trying all trees finds") {
  for (uint32_t seed = 0; seed < 8; seed++) {
    Accuracy a = random_accuracy(seed, 1, 6);
    const std::vector<double> ranks = a.by_rank();
    const auto rate = [&](int, int r) { return ranks[r]; };
    const Sequoia program(ranks, 16, 6);
    for (int depths : {1, 3, 4, 6})
      for (int n : {0, 1, 2, 5, 6, 16}) {
        const double expected = program.tokens(n + 1, depths + 1);
        if (n > 0 && depths == 1 && n > 6) {  // six ranks: a root has no more children
          CHECK(expected < 0);
          continue;
        }
        const Template t = program.tree(n + 1, depths + 1), heap = likeliest_template(depths, 6, n, rate);
        check_template(t);
        CHECK(t.nodes() == n);
        CHECK(t.depth() <= depths);
        CHECK(expected_tokens(t, rate) == doctest::Approx(expected).epsilon(1e-12));
        CHECK(expected_tokens(heap, rate) == doctest::Approx(expected).epsilon(1e-12));
        if (n <= 6) CHECK(most_of_all_trees(n, depths, 6, rate) == doctest::Approx(expected).epsilon(1e-12));
      }
  }
}

TEST_CASE("shapes: sequoia: the size that pays") {
  Accuracy a = random_accuracy(3, 4, 4);
  a.expand_seconds = 0;
  CHECK(sequoia_template(a, 20, [](int) { return 1.0; }).nodes() == 20);                 // nodes are free
  CHECK(sequoia_template(a, 20, [](int n) { return 1.0 + n; }).nodes() == 0);            // each costs a forward
  CHECK(sequoia_template(a, 20, [](int n) { return n > 7 ? 9.0 : 1.0; }).nodes() == 7);  // a cliff
  a.expand_seconds = 5;                                                                  // drafting costs too much
  CHECK(sequoia_template(a, 20, [](int) { return 1.0; }).nodes() == 0);
}

TEST_CASE("grow: fixed shapes: what the drafter lacks is left out, and what hangs from it") {
  const Shape shape = parse_shape("cartesian:3,2", 64);
  Growth growth;
  growth.start(0);
  grow(shape, {9}, growth, [&](const int* nodes, int n, int width, Candidate* out, int* count) {
    for (int k = 0; k < n; k++) {
      count[k] = nodes[k] == 0 ? 2 : nodes[k] == 1 ? 0 : width;
      for (int i = 0; i < count[k]; i++) out[k * width + i] = {10 * nodes[k] + i, 0.5f};
    }
  });
  CHECK(growth.token == Ints{0, 0, 1, 20, 21});
  CHECK(growth.parent == Ints{-1, 0, 0, 2, 2});
  CHECK_THROWS_AS(grow(parse_shape("static:x", 64), {9}, growth, PathDrafter{growth, 1}), std::logic_error);
}

TEST_CASE("grow: best-first: the N likeliest nodes of all that there are") {
  for (uint32_t seed = 0; seed < 30; seed++) {
    const int deepest = 1 + int(seed % 5);
    Growth all;  // every candidate of every node, as deep as allowed
    all.start(0);
    PathDrafter everything{all, seed};
    for (int i = 0; i < all.size() && all.size() < 4000; i++)
      if (all.depth[i] < deepest)
        for (const Candidate& c : everything.candidates(i, 8)) all.add(i, c);
    std::vector<float> reach(all.reach.begin() + 1, all.reach.end());
    std::sort(reach.begin(), reach.end(), std::greater<float>());
    for (int budget : {1, 4, 16}) {
      if (all.size() >= 4000 && deepest > 3) continue;  // not all of them
      Growth growth;
      growth.start(0);
      grow(parse_shape("best-first", budget), {deepest}, growth, PathDrafter{growth, seed});
      std::vector<float> grown(growth.reach.begin() + 1, growth.reach.end());
      std::sort(grown.begin(), grown.end(), std::greater<float>());
      const size_t n = std::min(reach.size(), size_t(budget));
      REQUIRE(grown.size() == n);
      CHECK(std::equal(grown.begin(), grown.end(), reach.begin()));
      const Cost nothing(std::vector<double>(size_t(budget) + 1, 1e-3));  // `auto` chooses the same nodes
      Growth same;
      same.start(0);
      grow(parse_shape("auto", budget), {deepest, &nothing}, same, PathDrafter{same, seed});
      CHECK(same.token == growth.token);
      CHECK(same.parent == growth.parent);
    }
  }
}

TEST_CASE("grow: beam: the likeliest W of a depth are expanded, the likeliest of all stay") {
  for (uint32_t seed = 0; seed < 20; seed++)
    for (const char* text : {"beam:1", "beam:3", "beam:8"}) {
      Shape shape = parse_shape(text, 10);
      Growth growth;
      growth.start(0);
      PathDrafter drafter{growth, seed};
      grow(shape, {4}, growth, drafter);
      std::vector<Ints> by_depth(6);
      for (int i = 0; i < growth.size(); i++) by_depth[growth.depth[i]].push_back(i);
      CHECK(by_depth[5].empty());
      for (int d = 1; d < 4; d++) {
        Ints& level = by_depth[d];
        std::sort(level.begin(), level.end(), [&](int a, int b) {
          return growth.reach[a] != growth.reach[b] ? growth.reach[a] > growth.reach[b] : a < b;
        });
        std::set<int> expanded;
        for (int i : by_depth[d + 1]) expanded.insert(growth.parent[i]);
        const size_t wide = std::min(level.size(), size_t(shape.width));
        CHECK(expanded == std::set<int>(level.begin(), level.begin() + long(wide)));
      }
      Tree tree;
      flatten(growth, tree);
      CHECK(tree.size() == std::min(11, growth.size()));
      float least_kept = 1, most_dropped = 0;
      for (int i = 0; i < growth.size(); i++)
        if (growth.dropped[i]) most_dropped = std::max(most_dropped, growth.reach[i]);
        else least_kept = std::min(least_kept, growth.reach[i]);
      CHECK(least_kept >= most_dropped);
    }
}

TEST_CASE("grow: the entropy family: children by entropy, depth and budget") {
  // A drafter after whose node i the entropy is H[i]; its tokens are 0, 1, 2, ...
  const auto grown = [](const std::string& text, std::vector<float> H, int budget = 64, int deepest = 9) {
    Growth growth;
    growth.start(0);
    Limits limits = {deepest};
    limits.entropy = [&](const int* nodes, int n, float* out) {
      for (int k = 0; k < n; k++) out[k] = H[std::min(size_t(nodes[k]), H.size() - 1)];
    };
    grow(parse_shape(text, budget), limits, growth, [&](const int*, int n, int width, Candidate* out, int* count) {
      for (int k = 0; k < n; k++) {
        count[k] = width;
        for (int i = 0; i < width; i++) out[k * width + i] = {i, 0.5f};
      }
    });
    return growth;
  };
  CHECK(grown("entropy-stop", {0.5f, 1, 1.01f}).parent == Ints{-1, 0, 1});
  CHECK(grown("entropy-stop", {1.5f}).size() == 1);
  CHECK(grown("entropy-stop", {0.5f}, 6).size() == 7);
  CHECK(grown("entropy-stop:depth=3", {0.5f}).size() == 4);
  CHECK(grown("entropy-stop:threshold=2,depth=2", {1.5f}).size() == 3);
  CHECK(grown("entropy-naive", {0.5f, 1.5f}).parent == Ints{-1, 0, 1, 1, 1, 1});
  CHECK(grown("entropy-naive:width=2", {0.5f, 1.5f}).parent == Ints{-1, 0, 1, 1});
  CHECK(grown("entropy-naive", {0.5f, 1.5f}, 4).parent == Ints{-1, 0});  // four more than are left
  CHECK(grown("entropy-width:depth=1", {0.01f}).size() == 2);
  CHECK(grown("entropy-width:depth=1", {0.02f}).size() == 3);
  CHECK(grown("entropy-width:depth=1", {0.99f}).size() == 3);
  CHECK(grown("entropy-width:depth=1", {1}).size() == 5);
  CHECK(grown("entropy-width:depth=1", {1.1f}).size() == 6);
  CHECK(grown("entropy-width:depth=1", {9}).size() == 8);
  CHECK(grown("entropy-width", {0.01f}).size() == 5);  // four deep
  CHECK(grown("entropy-width", {0.5f}).size() == 31);
  CHECK(grown("entropy-width", {0.5f}, 64, 2).size() == 7);
  CHECK(grown("entropy-width", {0.5f, 3, 0.01f, 0.01f}, 6).parent == Ints{-1, 0, 0, 2, 3, 4});  // seven are too many
  CHECK(grown("entropy-depth-width", {0.5f, 2.1f, 0.01f, 0.01f}).parent == Ints{-1, 0, 0, 2, 3, 4});
  CHECK(grown("entropy-depth-width:threshold=0.1", {0.5f}).size() == 1);
}
