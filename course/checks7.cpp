// course/checks7.cpp: the grader's checks of chapter 7: the likeliest nodes, known by what is left when each is added;
// and, of small trees, by trying all.
#include <algorithm>
#include <set>

#include "course/guesses7.h"
#include "course/judge.h"

namespace course {
namespace {

std::string named(const AskedTree& asked) {
  static const char* const kinds[] = {"any chances", "chances of a quarter, a quarter, an eighth, ...",
                                      "few guesses, or none", "one guess each, of chance 0.999",
                                      "the drafter of the page"};
  return line_of("budget ", asked.budget, ", deepest ", asked.deepest, ", root ", asked.root, " (", kinds[asked.kind],
                 "): ");
}

// What the student grew, and whom the drafter was asked about.
struct Answered {
  std::vector<int> token, parent;
  std::vector<float> reach;
  std::vector<int> asked;
};
// Refuses what is no tree below the asked root, each node behind its parent: the others need not look.
void is_tree(const AskedTree& asked, const Answered& got) {
  const auto wrong = [&](const auto&... what) { not_passed(named(asked), what...); };
  const size_t nodes = got.token.size();
  if (nodes == 0 || got.parent.size() != nodes || got.reach.size() != nodes)
    wrong("a growth of ", int(nodes), " tokens, ", int(got.parent.size()), " parents, ", int(got.reach.size()),
          " reaches: should be as many of each, the root's first");
  if (got.token[0] != asked.root || got.parent[0] != -1)
    wrong("node 0 is token ", got.token[0], " after node ", got.parent[0], ": it should be the root");
  for (int node = 1; node < int(nodes); node++)
    if (const int above = got.parent[node]; above < 0 || above >= node) wrong("node ", node, ": its parent is ", above);
}
// Asks for all in one question, and has each answer judged.
void each(Examiner& judge, const std::vector<AskedTree>& all, void (*judged)(const AskedTree&, const Answered&)) {
  const auto put = [](Message& question, const AskedTree& asked) { question.put(asked); };
  ask_of_each(judge.student, Message(), all, put, [&](const AskedTree& asked, Message& answer) {
    const Answered got{answer.list<int>(), answer.list<int>(), answer.list<float>(), answer.list<int>()};
    is_tree(asked, got);
    judged(asked, got);
  });
}

// A node's guess that is no node yet.
struct Left {
  int node = -1, rank = 0;
  Guess guess{-1, 0};
  float reach = -1;
};

// Right is a growth in which no guess that was left when a node was added is likelier than it, nor as likely and of an
// earlier node.
void right_growth(const AskedTree& asked, const Answered& got) {
  const auto wrong = [&](const auto&... what) { not_passed(named(asked), what...); };
  const int nodes = int(got.token.size());
  const std::vector<int> depth = depths_of(got.parent);
  std::vector<uint64_t> path = {longer_path(0, asked.root)};
  std::vector<std::vector<Guess>> after;  // of each node
  std::vector<size_t> used(size_t(nodes), 0);
  const auto told = [](const Left& left) {
    return line_of("token ", left.guess.token, ", guess ", left.rank, " after node ", left.node, ", of reach ",
                   left.reach);
  };
  for (int node = 0;; node++) {
    Left left;
    for (int above = 0; above < node; above++) {
      const size_t rank = used[above];
      if (rank >= after[above].size()) continue;
      const float reach = got.reach[above] * after[above][rank].chance;
      if (reach > left.reach) left = {above, int(rank), after[above][rank], reach};
    }
    if (node > 0 && node == nodes) {
      if (nodes <= asked.budget && left.reach > 0)
        wrong(nodes - 1, " nodes below the root, and there is a next one: ", told(left));
      return;
    }
    const size_t n = size_t(node);
    if (node > 0) {
      if (node > asked.budget) wrong(nodes - 1, " nodes below the root: the root is not counted");
      const int above = got.parent[n];
      const std::string its =
          line_of("node ", node, " is token ", got.token[n], " after node ", above, ", of reach ", got.reach[n],
                  " (parents ", std::vector<int>(got.parent.begin(), got.parent.begin() + node + 1), "): ");
      path.push_back(longer_path(path[above], got.token[n]));
      if (depth[n] > asked.deepest) wrong(its, "it is too deep, ", depth[n]);
      if (got.reach[n] <= 0) wrong(its, "it is never reached");
      if (got.reach[n] < left.reach) wrong(its, "likelier is ", told(left));
      if (got.reach[n] == left.reach && left.node < above)
        wrong(its, "of equal ones the first parent's comes first: ", told(left));
      const std::vector<Guess>& its_guesses = after[above];
      const size_t rank = used[above]++;
      if (rank >= its_guesses.size() || its_guesses[rank].token != got.token[n])
        wrong(its, "the drafter's guess ", int(rank), " after node ", above,
              rank < its_guesses.size() ? line_of(" is token ", its_guesses[rank].token) : " is none");
    }
    after.push_back(depth[n] < asked.deepest ? guesses(path[n], got.token[n], asked.most, asked.kind)
                                             : std::vector<Guess>());
  }
}

// The drafter is asked about each node at most once, none at the deepest depth, and not the last one of a full tree.
void asked_in_turn(const AskedTree& asked, const Answered& got) {
  const auto wrong = [&](int node, const auto&... what) {
    not_passed(named(asked), "the drafter was asked about node ", node, what...);
  };
  const std::vector<int> depth = depths_of(got.parent);
  std::set<int> seen;
  for (int node : got.asked) {
    if (node < 0 || node >= int(got.parent.size())) wrong(node, ", which there is not");
    if (!seen.insert(node).second) wrong(node, " twice");
    if (depth[node] >= asked.deepest) wrong(node, ", of depth ", depth[node], ": its children would be too deep");
    if (node == asked.budget)
      wrong(node, ", the last one: the tree is full. Ask when a node is the best that is left, not when it is added");
  }
}

// A node of a tree that may be.
struct Offer {
  uint64_t path;  // up to it, and with it
  int token, depth;
  float reach;
};
void offer_below(const Offer& node, const AskedTree& asked, std::vector<Offer>& offers) {
  if (node.depth == asked.deepest) return;
  for (const Guess& guess : guesses(node.path, node.token, asked.most, asked.kind))
    offers.push_back({longer_path(node.path, guess.token), guess.token, node.depth + 1, node.reach * guess.chance});
}
// The largest sum of reach of all trees: what is on offer is taken or left out, one after the other.
double best_of_all(const AskedTree& asked, std::vector<Offer> offers, size_t at, int left) {
  if (left == 0 || at == offers.size()) return 0;
  const double without = best_of_all(asked, offers, at + 1, left);
  const Offer taken = offers[at];
  offer_below(taken, asked, offers);
  return std::max(double(taken.reach) + best_of_all(asked, offers, at + 1, left - 1), without);
}

void largest_sum(const AskedTree& asked, const Answered& got) {
  std::vector<Offer> offers;
  offer_below({longer_path(0, asked.root), asked.root, 0, 1}, asked, offers);
  const double most = best_of_all(asked, offers, 0, asked.budget);
  double sum = 0;
  for (size_t i = 1; i < got.reach.size(); i++) sum += double(got.reach[i]);
  if (sum < most - 1e-6 || int(got.reach.size()) > asked.budget + 1)
    not_passed(named(asked), int(got.reach.size()) - 1, " nodes with a sum of reach of ", sum,
               ": another tree of at most ", asked.budget, " nodes has ", most);
}

std::vector<AskedTree> any(Examiner& judge, int many, int kind, int most_budget) {
  return times(many, [&] {
    return AskedTree{kind, judge.between(1, 8), judge.below(100000), judge.between(1, most_budget),
                     judge.between(1, 9)};
  });
}

}  // namespace

Chapter chapter7() {
  return {7,
          "which nodes",
          {{"the tree of the page", 1, cases(each, {{std::vector<AskedTree>{{kPage, 8, 0, 6, 64}}, right_growth}})},
           {"2,000 trees: nothing likelier is left", 3,
            [](Examiner& judge) { each(judge, any(judge, 2000, kMixed, 40), right_growth); }},
           {"small trees: no other has a larger sum", 1,
            [](Examiner& judge) {
              const auto one = [&] {
                return AskedTree{kMixed, 2, judge.below(100000), judge.between(1, 6), judge.between(1, 3)};
              };
              each(judge, times(40, one), largest_sum);
            }},
           {"no budget, no depth, few guesses", 1,
            [](Examiner& judge) {
              std::vector<AskedTree> all = any(judge, 300, kFew, 40);
              all.push_back({kMixed, 8, 1, 0, 5});
              all.push_back({kMixed, 8, 1, 5, 0});
              all.push_back({kMixed, 8, 1, 20, 1});
              each(judge, all, right_growth);
            }},
           {"equal reach", 1, [](Examiner& judge) { each(judge, any(judge, 300, kEqual, 30), right_growth); }},
           {"the drafter is asked once, and not in vain", 2,
            [](Examiner& judge) {
              for (int kind : {kMixed, kFew, kSure}) each(judge, any(judge, 200, kind, 30), asked_in_turn);
              each(judge, {{kMixed, 8, 3, 0, 5}}, asked_in_turn);
            }},
           {"long chains, large budgets", 1,
            cases(each, {{std::vector<AskedTree>{{kSure, 1, 7, 60, 60}, {kMixed, 8, 7, 1000, 20}}, right_growth}})}}};
}

}  // namespace course
