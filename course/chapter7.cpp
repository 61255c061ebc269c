// course/chapter7.cpp: the student's grow_likeliest, for the grader and for a table.
#include <cstdio>
#include <functional>
#include <stdexcept>

#include "course/guesses7.h"
#include "course/student.h"
#include "growth/likeliest.h"

using namespace nanospec;

namespace course {
namespace {

// The guesses after a path, by its hash and its last token.
using Guesses = std::function<std::vector<Guess>(uint64_t path, int last)>;

// A growth from this root, and the nodes that the drafter was asked about, in turn.
Growth grown(int root, int budget, int deepest, const Guesses& guesses_after, std::vector<int>& asked) {
  Growth growth;
  growth.start(root);
  grow_likeliest(budget, deepest, growth, [&](int node, Candidate* candidates) {
    if (node < 0 || node >= growth.size())
      throw std::runtime_error("expand was called for node " + std::to_string(node) + ", and the growth has " +
                               std::to_string(growth.size()));
    if (asked.size() > 100000) throw std::runtime_error("expand was called 100,000 times: a loop without an end?");
    asked.push_back(node);
    std::vector<int> path;
    for (int above = node; above >= 0; above = growth.parent[above]) path.push_back(growth.token[above]);
    uint64_t hash = 0;
    for (size_t i = path.size(); i-- > 0;) hash = longer_path(hash, path[i]);
    const std::vector<Guess> found = guesses_after(hash, growth.token[node]);
    for (size_t i = 0; i < found.size(); i++) candidates[i] = {found[i].token, found[i].chance};
    return int(found.size());
  });
  return growth;
}

}  // namespace

// Of each drafter: its kind, how many guesses it has, the root, the budget, the deepest depth -> the growth, and whom
// it was asked about.
Message answer(Message& question) {
  return answer_each(question, [&](Message& answer) {
    const auto its = question.get<AskedTree>();
    std::vector<int> asked;
    const auto after = [&](uint64_t path, int last) { return guesses(path, last, its.most, its.kind); };
    const Growth growth = grown(its.root, its.budget, its.deepest, after, asked);
    answer.put(growth.token).put(growth.parent).put(growth.reach).put(asked);
  });
}

// Two drafters whose first guess is right in 55 percent of all places, the second in 12 percent, and so on. One is
// equally sure everywhere. The other is sure in half of the places and unsure in the others, and knows which.
std::vector<Guess> guesses_of(bool varies, uint64_t path) {
  static const std::vector<float> same = {0.55f, 0.12f, 0.1f, 0.08f}, sure = {0.9f, 0.04f, 0.03f, 0.02f};
  std::vector<Guess> all;
  const bool is_sure = mixed(path, 5) >> 20 & 1;
  for (int rank = 0; rank < 4; rank++)
    all.push_back({rank, !varies ? same[rank] : is_sure ? sure[rank] : 2 * same[rank] - sure[rank]});
  return all;
}

// The sum of reach of a full tree, at most `left` levels below a node of this path and reach: `width` children each.
double full_tree(const Guesses& after, uint64_t path, double reach, int left, int width) {
  double sum = 0;
  const std::vector<Guess> all = after(path, 0);
  for (int rank = 0; left > 0 && rank < width; rank++) {
    const double below = reach * double(all[rank].chance);
    sum += below + full_tree(after, longer_path(path, all[rank].token), below, left - 1, width);
  }
  return sum;
}

void measure() {
  constexpr int places = 500;
  printf(
      "Tokens for each forward, over %d places of a text. Both drafters' first guess is right in 55 percent of all\n",
      places);
  printf("places, their second in 12.\n");
  for (const bool varies : {false, true}) {
    printf("\n%s\n\n  nodes      chain   two children each    best-first    its deepest node    nodes asked about\n",
           varies ? "A drafter that is sure in half of the places, unsure in the others, and knows which"
                  : "A drafter that is equally sure everywhere");
    for (int levels = 1; levels <= 6; levels++) {
      const int nodes = (2 << levels) - 2;
      double chain = 0, full = 0, best = 0, depth = 0, questions = 0;
      for (int place = 0; place < places; place++) {
        const Guesses after = [=](uint64_t path, int) { return guesses_of(varies, path); };
        const uint64_t start = longer_path(0, place);
        chain += full_tree(after, start, 1, nodes, 1);
        full += full_tree(after, start, 1, levels, 2);
        std::vector<int> asked;
        const Growth growth = grown(place, nodes, 64, after, asked);
        for (int node = 1; node < growth.size(); node++) best += double(growth.reach[node]);
        depth += *std::max_element(growth.depth.begin(), growth.depth.end());
        questions += double(asked.size());
      }
      printf("%7d %10.2f %19.2f %13.2f %19.1f %20.1f\n", nodes, 1 + chain / places, 1 + full / places,
             1 + best / places, depth / places, questions / places);
    }
  }
}

}  // namespace course
