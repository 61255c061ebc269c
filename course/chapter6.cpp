// course/chapter6.cpp: the student's match and gather, for the grader and for a table.
#include <cmath>
#include <cstdio>
#include <map>

#include "course/cache.h"
#include "course/lanes.h"
#include "course/student.h"
#include "course/text6.h"
#include "tree.h"

using namespace nanospec;

namespace course {
namespace {

// A tree by its nodes' parents, in preorder; tokens are to come.
Tree shaped(const std::vector<int>& parent) {
  const std::vector<int> zeros(parent.size(), 0);
  return {zeros, parent, depths_of(parent), ends_of(parent), zeros};
}

// ---------------------------------------------------------------------------------------------------------------
// match, alone

// tokens, parents, each node's pick -> rows, tokens, for which nodes it asked
Message matched(Message& question) {
  const auto token = question.list<int>();
  Tree tree = shaped(question.list<int>());
  tree.token = token;
  const auto picks = question.list<int>();
  std::vector<int> asked;
  const Verdict verdict = match(tree, [&](int node) {
    asked.push_back(node);
    return picks.at(size_t(node));
  });
  return Message().put(verdict.rows).put(verdict.tokens).put(asked);
}

// ---------------------------------------------------------------------------------------------------------------
// The cache, and the gather

using Cache = LayersCache<float>;

void keep(Cache& cache, int first, const std::vector<int>& rows, int lanes) {
  std::vector<int> kept = {first, int(rows.size())};
  kept.insert(kept.end(), rows.begin(), rows.end());
  run_items(lanes, cache.layers * cache.heads, cache.gather(kept));
}

// layers, heads, slots, head size, first, lanes, kept rows, all numbers -> all numbers
Message gathered(Message& question) {
  const auto [layers, heads, slots, head_size, first, lanes] = question.get<std::array<int, 6>>();
  const auto kept = question.list<int>();
  Cache cache{layers, heads, pad64(slots), head_size};
  const auto gather = [&, from = first, by = lanes] { keep(cache, from, kept, by); };
  return Message().put(cache.changed(slots, question.list<float>(), gather));
}

// ---------------------------------------------------------------------------------------------------------------
// Decoding: a target whose next token is a hash of the cache, a drafter that is right now and then, and the student's
// match and gather

struct Decoding {
  Tree tree;  // of one shape, always
  int vocab, percent, lanes;
  uint64_t seed;
  std::vector<int> text;  // the prompt, and what comes behind it
  int longest;            // so many tokens are wanted
  Cache cache{kLayers, kHeads, pad64(longest + 2 * tree.size()), kHeadSize};
  std::vector<uint64_t> hash = std::vector<uint64_t>(tree.token.size());  // of the text up to each node, by its tokens
  int past = 0;                                                           // slots that are kept
  int forwards = 0;

  // Decodes until the text is so long, or longer.
  void run() {
    for (; past + 1 < int(text.size()); past++) write(past, text[past], past);
    while (int(text.size()) < longest) step();
  }
  void write(int slot, int token, int position) {
    cache.each_of(slot, [&](int layer, int head, int d, bool value, float& number) {
      number = cached_number(token, position, layer, head, d, value);
    });
  }
  // The target's token after this node, out of the cache: what is kept, then the node's ancestors, then the node.
  int pick(int node) {
    uint64_t sum = seed;
    const auto add = [&](int slot) {
      sum = longer_text(
          sum, [&](int layer, int head, int d, bool value) { return cache.number(layer, head, slot, d, value); });
    };
    for (int slot = 0; slot < past; slot++) add(slot);
    for (int above = 0; above <= node; above++)
      if (node < tree.end[above]) add(past + above);
    return next_token(sum, vocab);
  }

  // One forward: drafts, verifies, keeps.
  void step() {
    uint64_t before = seed;
    for (int i = 0; i + 1 < int(text.size()); i++) before = longer_text(before, text[i], i);
    std::vector<int> children(tree.token.size(), 0);
    for (int i = 0; i < tree.size(); i++) {
      const int above = tree.parent[i];
      tree.token[i] = i == 0 ? text.back() : drafted(hash[above], children[above]++, percent, vocab);
      hash[i] = longer_text(i == 0 ? before : hash[above], tree.token[i], past + tree.depth[i]);
      write(past + i, tree.token[i], past + tree.depth[i]);
    }
    const Verdict verdict = match(tree, [&](int node) {
      if (node < 0 || node >= tree.size())
        throw std::runtime_error("match asked for a node that the tree does not have");
      return pick(node);
    });
    const int kept = int(verdict.rows.size());
    if (kept == 0 || verdict.tokens.size() != verdict.rows.size())
      throw std::runtime_error("a verdict of " + std::to_string(kept) + " rows and " +
                               std::to_string(verdict.tokens.size()) + " tokens");
    for (int row : verdict.rows)
      if (row < 0 || row >= tree.size()) throw std::runtime_error("a verdict with a row that the tree does not have");
    keep(cache, past, verdict.rows, lanes);
    for (int slot = past + kept; slot < past + tree.size(); slot++)
      cache.each_of(slot, [](int, int, int, bool, float& number) { number = NAN; });
    past += kept;
    text.insert(text.end(), verdict.tokens.begin(), verdict.tokens.end());
    forwards++;
  }
};

// V, percent, lanes, how many tokens, seed, parents, prompt -> the text, forwards
Message decoded(Message& question) {
  const auto [V, percent, lanes, count] = question.get<std::array<int, 4>>();
  const auto seed = question.get<uint64_t>();
  const Tree tree = shaped(question.list<int>());
  const auto prompt = question.list<int>();
  const int length = int(prompt.size()) + count;
  Decoding decoding{tree, V, percent, lanes, seed, prompt, length};
  decoding.run();
  decoding.text.resize(size_t(length));
  return Message().put(decoding.text).put(decoding.forwards);
}

}  // namespace

Message answer(Message& question) {
  const char what = question.get<char>();
  return what == 'm' ? matched(question) : what == 'g' ? gathered(question) : decoded(question);
}

// ---------------------------------------------------------------------------------------------------------------
// Time

// A stand-in for a forward of this many rows, in seconds: it reads 64 MB of weights, and uses each once for each row.
double forward_time(int rows) {
  static const std::vector<float> weights(16 << 20, 0.5f);
  constexpr int kTogether = 16, kMost = 15;  // floats of a vector; rows
  float sum[kMost][kTogether] = {};
  const double best = fastest(20, [&] {
    for (size_t at = 0; at < weights.size(); at += kTogether)
      for (int r = 0; r < rows; r++)
        for (int i = 0; i < kTogether; i++) sum[r][i] += weights[at + i] * 0.5f;
  });
  if (std::isnan(sum[rows - 1][0])) printf("never\n");  // so that the compiler must compute it
  return best;
}

// Seconds of the student's gather: these rows of 12 layers, 12 heads of 64, after 100 positions.
double gather_time(const std::vector<int>& rows) {
  Cache cache{12, 12, 128, 64};
  for (auto* list : {&cache.k, &cache.v}) std::fill(list->begin(), list->end(), 1.0f);
  return fastest(5, [&] { keep(cache, 100, rows, 0); });
}
// Seconds of the student's match, where every first child is right.
double match_time(Tree tree) {
  for (int i = 0; i < tree.size(); i++) tree.token[i] = i;
  constexpr int times = 1000;
  size_t rows = 0;
  const double all = fastest(5, [&] {
    for (int i = 0; i < times; i++) rows += match(tree, [&](int node) { return node + 1; }).rows.size();
  });
  return rows > 0 ? all / times : 0;
}

void measure() {
  const struct {
    const char* name;
    std::vector<int> parent;
  } shapes[] = {{"none", {-1}},
                {"chain:3", chain(4)},
                {"chain:6", chain(7)},
                {"tree:2x2", {-1, 0, 1, 1, 0, 4, 4}},
                {"tree:3x2", {-1, 0, 1, 2, 2, 1, 5, 5, 0, 8, 9, 9, 8, 12, 12}},
                {"chain:14", chain(15)}};
  constexpr int count = 400;
  printf("Tokens for each forward, over %d tokens, where the drafter's best token is right this often;\n", count);
  printf("the second is right in half of the other places\n\n  shape       nodes");
  for (int percent = 30; percent <= 90; percent += 20) printf("%9d %%", percent);
  printf("\n");
  std::vector<std::vector<double>> tokens;  // for each forward, of each shape at each percentage
  for (const auto& shape : shapes) {
    const Tree tree = shaped(shape.parent);
    tokens.emplace_back();
    printf("  %-10s %6d", shape.name, tree.size() - 1);
    for (int percent = 30; percent <= 90; percent += 20) {
      Decoding decoding{tree, 50, percent, 0, 5, {1, 2, 3}, 3 + count};
      decoding.run();
      tokens.back().push_back(double(decoding.text.size() - 3) / decoding.forwards);
      printf("%11.2f", tokens.back().back());
    }
    printf("\n");
  }
  printf(
      "\nThe same as time: a forward reads 64 MB of weights and uses them for the root and all nodes, by one core;\n");
  printf("your match, and your gather of the root and all depths, are in it\n\n");
  printf("  shape        forward     match    gather   milliseconds a token\n");
  std::map<int, double> forwards;  // by rows
  for (const auto& shape : shapes) forwards[int(shape.parent.size())] = 0;
  for (auto& [rows, seconds] : forwards) seconds = forward_time(rows);
  for (size_t i = 0; i < tokens.size(); i++) {
    const Tree tree = shaped(shapes[i].parent);
    std::vector<int> kept = {0};  // the last branch
    for (int row = 1; row < tree.size(); row++)
      if (tree.end[row] == tree.size() && tree.depth[row] == int(kept.size())) kept.push_back(row);
    const double forward = forwards[tree.size()], matching = match_time(tree), gather = gather_time(kept);
    printf("  %-10s %6.2f ms %6.2f us %6.1f us", shapes[i].name, forward * 1e3, matching * 1e6, gather * 1e6);
    for (double one : tokens[i]) printf("%11.2f", (forward + matching + gather) / one * 1e3);
    printf("\n");
  }
}

}  // namespace course
