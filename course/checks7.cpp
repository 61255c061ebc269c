// course/checks7.cpp: the grader's checks of chapter 7: the likeliest nodes, found by looking at all candidates of all
// nodes again and again; and, of small trees, by trying all.
#include <algorithm>
#include <set>

#include "course/guesses7.h"
#include "course/judge.h"

namespace course {
namespace {

struct Asked {
  int kind, most, root, budget, deepest;
};

struct Grown {
  std::vector<int> token, parent, depth, rank;
  std::vector<float> reach;
  std::vector<uint64_t> path;
  int size() const { return int(token.size()); }
  void add(int under, const Guess& guess, int its_rank) {
    token.push_back(guess.token);
    parent.push_back(under);
    depth.push_back(under < 0 ? 0 : depth[size_t(under)] + 1);
    rank.push_back(its_rank);
    reach.push_back(under < 0 ? 1 : reach[size_t(under)] * guess.chance);
    path.push_back(longer_path(under < 0 ? 0 : path[size_t(under)], guess.token));
  }
};

// The slow way: each time the likeliest candidate of all nodes that is no node yet; of equal ones the first.
Grown right_growth(const Asked& asked) {
  Grown growth;
  std::vector<std::vector<Guess>> after;
  std::vector<size_t> used;  // of each node's candidates, so many
  const auto add = [&](int under, const Guess& guess, int rank) {
    growth.add(under, guess, rank);
    after.push_back(growth.depth.back() < asked.deepest
                        ? guesses(growth.path.back(), guess.token, asked.most, asked.kind)
                        : std::vector<Guess>());
    used.push_back(0);
  };
  add(-1, {asked.root, 1}, 0);
  while (growth.size() <= asked.budget) {
    int best = -1;
    const auto reach_of = [&](int node) {
      return growth.reach[size_t(node)] * after[size_t(node)][used[size_t(node)]].chance;
    };
    for (int node = 0; node < growth.size(); node++)
      if (used[size_t(node)] < after[size_t(node)].size() && (best < 0 || reach_of(node) > reach_of(best))) best = node;
    if (best < 0 || !(reach_of(best) > 0)) break;
    const size_t rank = used[size_t(best)]++;
    add(best, after[size_t(best)][rank], int(rank));
  }
  return growth;
}

std::string named(const Asked& asked) {
  static const char* const kinds[] = {"any chances", "chances of a half, a quarter, ...", "few guesses, or none",
                                      "one guess each, of chance 0.999", "the drafter of the page"};
  return line_of("budget ", asked.budget, ", deepest ", asked.deepest, ", root ", asked.root, " (", kinds[asked.kind],
                 "): ");
}

// What the student grew, and whom the drafter was asked about.
struct Answered {
  std::vector<int> token, parent, asked;
  std::vector<float> reach;
};
std::vector<Answered> ask(Examiner& judge, const std::vector<Asked>& all) {
  Message question;
  question.put(int(all.size()));
  for (const Asked& asked : all) question.put(asked);
  Message answer = judge.student.ask(question);
  std::vector<Answered> answered(all.size());
  for (Answered& one : answered) {
    one.token = answer.list<int>();
    one.parent = answer.list<int>();
    one.reach = answer.list<float>();
    one.asked = answer.list<int>();
  }
  return answered;
}

void grows(Examiner& judge, const std::vector<Asked>& all) {
  const std::vector<Answered> answered = ask(judge, all);
  for (size_t t = 0; t < all.size(); t++) {
    const Grown right = right_growth(all[t]);
    const Answered& got = answered[t];
    const int nodes = int(got.token.size());
    for (int node = 1; node < std::min(nodes, right.size()); node++) {
      const size_t i = size_t(node);
      if (got.token[i] == right.token[i] && got.parent[i] == right.parent[i]) continue;
      const std::string what =
          line_of("node ", node, " is token ", got.token[i], " after node ", got.parent[i], ", of reach ", got.reach[i],
                  "; should be token ", right.token[i], ", candidate ", right.rank[i], " after node ", right.parent[i],
                  ", of reach ", right.reach[i], " (parents until then ",
                  std::vector<int>(right.parent.begin(), right.parent.begin() + node), ")");
      not_passed(named(all[t]), what,
                 got.reach[i] == right.reach[i] ? ": of equal ones the first parent's comes first" : "");
    }
    if (nodes != right.size())
      not_passed(named(all[t]), nodes - 1, " nodes below the root, should be ", right.size() - 1,
                 nodes < right.size() ? line_of(": the next is token ", right.token[size_t(nodes)], " after node ",
                                                right.parent[size_t(nodes)], ", of depth ", right.depth[size_t(nodes)])
                 : right.size() <= all[t].budget
                     ? ": the drafter has no more guesses that are not too deep, nor of chance 0"
                     : ": the root is not counted");
  }
}

// Each node at most once, none at the deepest depth, and not the last one of a full tree.
void asks(Examiner& judge, const std::vector<Asked>& all) {
  const std::vector<Answered> answered = ask(judge, all);
  for (size_t t = 0; t < all.size(); t++) {
    const Answered& got = answered[t];
    std::set<int> seen;
    for (int node : got.asked) {
      if (!seen.insert(node).second) not_passed(named(all[t]), "the drafter was asked about node ", node, " twice");
      int depth = 0;
      for (int above = node; got.parent.at(size_t(above)) >= 0; above = got.parent.at(size_t(above))) depth++;
      if (depth >= all[t].deepest)
        not_passed(named(all[t]), "the drafter was asked about node ", node, ", of depth ", depth,
                   ": its children would be too deep");
      if (node > 0 && node == all[t].budget)
        not_passed(named(all[t]), "the drafter was asked about node ", node,
                   ", the last one: the tree is full. Ask when a node is the best that is left, not when it is added");
    }
  }
}

// The largest sum of reach of all trees: what is on offer is taken or left out, one after the other.
double best_of_all(const Asked& asked, std::vector<Grown>& stack, std::vector<std::pair<int, int>> offers, size_t at,
                   int left) {
  if (left == 0 || at == offers.size()) return 0;
  const double without = best_of_all(asked, stack, offers, at + 1, left);
  Grown& growth = stack.back();
  const auto [under, rank] = offers[at];
  const Guess guess =
      guesses(growth.path[size_t(under)], growth.token[size_t(under)], asked.most, asked.kind)[size_t(rank)];
  stack.push_back(growth);
  stack.back().add(under, guess, rank);
  const Grown& grown = stack.back();
  const int node = grown.size() - 1;
  const double its = double(grown.reach.back());
  if (grown.depth.back() < asked.deepest) {
    const auto below = guesses(grown.path.back(), grown.token.back(), asked.most, asked.kind);
    for (int r = 0; r < int(below.size()); r++) offers.push_back({node, r});
  }
  const double with = its + best_of_all(asked, stack, offers, at + 1, left - 1);
  stack.pop_back();
  return std::max(with, without);
}

void best(Examiner& judge, const std::vector<Asked>& all) {
  const std::vector<Answered> answered = ask(judge, all);
  for (size_t t = 0; t < all.size(); t++) {
    std::vector<Grown> stack(1);
    stack.reserve(64);
    stack[0].add(-1, {all[t].root, 1}, 0);
    std::vector<std::pair<int, int>> offers;
    const int first = int(guesses(stack[0].path[0], all[t].root, all[t].most, all[t].kind).size());
    for (int r = 0; r < first; r++) offers.push_back({0, r});
    const double most = best_of_all(all[t], stack, offers, 0, all[t].budget);
    double sum = 0;
    for (size_t i = 1; i < answered[t].reach.size(); i++) sum += double(answered[t].reach[i]);
    if (sum < most - 1e-6 || int(answered[t].reach.size()) > all[t].budget + 1)
      not_passed(named(all[t]), int(answered[t].reach.size()) - 1, " nodes with a sum of reach of ", sum,
                 ": another tree of at most ", all[t].budget, " nodes has ", most);
  }
}

std::vector<Asked> any(Examiner& judge, int many, int kind, int most_budget) {
  std::vector<Asked> all;
  for (int i = 0; i < many; i++)
    all.push_back({kind, judge.between(1, 8), judge.below(100000), judge.between(1, most_budget), judge.between(1, 9)});
  return all;
}

}  // namespace

Chapter chapter7() {
  return {
      7,
      "which nodes",
      {{"the tree of the page", 1,
        [](Examiner& judge) {
          grows(judge, {{kPage, 8, 0, 6, 64}});
        }},
       {"2,000 trees, against a search of all", 3, [](Examiner& judge) { grows(judge, any(judge, 2000, kMixed, 40)); }},
       {"small trees: no other has a larger sum", 1,
        [](Examiner& judge) {
          std::vector<Asked> all;
          for (int i = 0; i < 40; i++)
            all.push_back({kMixed, 2, judge.below(100000), judge.between(1, 6), judge.between(1, 3)});
          best(judge, all);
        }},
       {"no budget, no depth, few guesses", 1,
        [](Examiner& judge) {
          std::vector<Asked> all = any(judge, 300, kFew, 40);
          all.push_back({kMixed, 8, 1, 0, 5});
          all.push_back({kMixed, 8, 1, 5, 0});
          all.push_back({kMixed, 8, 1, 20, 1});
          grows(judge, all);
        }},
       {"equal reach", 1, [](Examiner& judge) { grows(judge, any(judge, 300, kEqual, 30)); }},
       {"the drafter is asked once, and not in vain", 2,
        [](Examiner& judge) {
          for (int kind : {kMixed, kFew, kSure}) asks(judge, any(judge, 200, kind, 30));
        }},
       {"long chains, large budgets", 1,
        [](Examiner& judge) {
          grows(judge, {{kSure, 1, 7, 60, 60}, {kMixed, 8, 7, 1000, 20}});
        }}},
      {}};
}

}  // namespace course
