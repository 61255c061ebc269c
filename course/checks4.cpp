// course/checks4.cpp: the grader's checks of chapter 4: the rejection rule. It follows every way that the rule can go,
// so that the distribution of the text is a sum, not an estimate.
#include "course/judge.h"

namespace course {
namespace {

struct Case {
  int V;
  std::vector<double> p, q;  // (nodes, V)
  int nodes() const { return int(p.size()) / V; }
  double p_at(int node, int token) const { return p[size_t(node) * V + token]; }
  double q_at(int node, int token) const { return q[size_t(node) * V + token]; }
};

// A distribution, with zeros now and then.
std::vector<double> distribution(Examiner& judge, int V, bool zeros) {
  std::vector<double> row(V);
  double sum = 0;
  for (double& x : row) sum += x = zeros && judge.below(3) == 0 ? 0 : judge.unit() + 0.01;
  if (sum == 0) sum += row[judge.below(V)] = 1;
  for (double& x : row) x /= sum;
  return row;
}
Case random_case(Examiner& judge, int V, int drafts, bool zeros) {
  Case made{V, {}, {}};
  for (int node = 0; node <= drafts; node++)
    for (auto* rows : {&made.p, &made.q}) {
      const auto row = distribution(judge, V, zeros);
      rows->insert(rows->end(), row.begin(), row.end());
    }
  return made;
}

struct Walk {
  const Case& given;
  Answerer& student;
  std::vector<int> chain;                    // tokens; [0] is the root's
  std::map<std::vector<int>, double>& mass;  // of each text of as many tokens as the chain has nodes

  // The rule's way after these answers, which has this chance: every answer to what it asks next in turn.
  void follow(std::vector<int>& script, double chance) {
    if (chance <= 0) return;
    if (script.size() > 4 * chain.size()) not_passed("the rule goes on asking: ", int(script.size()), " times");
    Message answer = student.ask(Message().put(given.V).put(chain).put(given.p).put(given.q).put(script));
    const char what = answer.get<char>();
    if (what == 'v') return verdict(answer, chance);
    const int node = answer.get<int>();
    const double asked = answer.get<double>();
    const auto weights = answer.list<double>();
    if (node < 0 || node >= given.nodes())
      not_passed("it asks about node ", node, ", and the chain has ", given.nodes());
    std::vector<double> chances;
    if (what == 'a') {
      const double accepted = std::isnan(asked) ? 0 : std::min(1.0, std::max(0.0, asked));
      chances = {1 - accepted, accepted};
    } else {
      double sum = 0;
      for (int x = 0; x < given.V; x++) {
        chances.push_back(what == 'p' ? given.p_at(node, x) : weights[x]);
        if (!(chances.back() >= 0)) not_passed("draw: a weight is ", chances.back());
        sum += chances.back();
      }
      if (!(sum > 0)) not_passed("draw at node ", node, ": the weights' sum is ", sum);
      for (double& one : chances) one /= sum;
    }
    for (size_t i = 0; i < chances.size(); i++) {
      script.push_back(int(i));
      follow(script, chance * chances[i]);
      script.pop_back();
    }
  }

  void verdict(Message& answer, double chance) {
    const auto rows = answer.list<int>(), tokens = answer.list<int>();
    const auto wrong = [&](const char* what) {
      not_passed("chain ", chain, ": a verdict of rows ", rows, ", tokens ", tokens, ": ", what);
    };
    if (rows.empty() || rows.size() != tokens.size()) wrong("as many rows as tokens, the root first");
    for (size_t i = 0; i < rows.size(); i++) {
      if (rows[i] != int(i) || i >= chain.size()) wrong("the rows are 0, 1, 2, ... of the chain");
      if (tokens[i] < 0 || tokens[i] >= given.V) wrong("a token that the vocabulary lacks");
      if (i > 0 && tokens[i - 1] != chain[i]) wrong("the token of an accepted node is the node's");
    }
    complete(tokens, chance);
  }
  // What plain decoding would write behind a text that ends early: the node's p where the chain has the text, else
  // any fixed distribution, for which the last is taken.
  void complete(std::vector<int> text, double chance) {
    if (text.size() >= chain.size()) {
      mass[text] += chance;
      return;
    }
    for (int x = 0; x < given.V; x++) {
      std::vector<int> next = text;
      next.push_back(x);
      complete(next, chance * given.p_at(int(text.size()), x));
    }
  }
};

double plain_chance(const Case& given, const std::vector<int>& text) {
  double chance = 1;
  for (size_t i = 0; i < text.size(); i++) chance *= given.p_at(int(i), text[i]);
  return chance;
}

// Draws every chain from q, follows the rule in every way, and compares with plain decoding. The rows of p and q depend
// on the place alone.
void exact(Examiner& judge, const Case& given) {
  const int drafts = given.nodes() - 1;
  std::map<std::vector<int>, double> mass;
  std::vector<int> chain = {0};
  const std::function<void(double)> draw = [&](double chance) {
    if (chance <= 0) return;
    if (int(chain.size()) <= drafts) {
      for (int x = 0; x < given.V; x++) {
        chain.push_back(x);
        draw(chance * given.q_at(int(chain.size()) - 2, x));
        chain.pop_back();
      }
      return;
    }
    std::vector<int> script;
    Walk{given, judge.student, chain, mass}.follow(script, chance);
  };
  draw(1);
  double distance = 0, farthest = 0;
  std::vector<int> where;
  for (const auto& [text, chance] : mass) {
    const double off = chance - plain_chance(given, text);
    distance += std::abs(off) / 2;
    if (std::abs(off) > std::abs(farthest)) {
      farthest = off;
      where = text;
    }
  }
  if (!(distance < 1e-12))
    not_passed("vocabulary ", given.V, ", ", drafts, " drafts: total variation ", distance,
               " from plain decoding; the text ", where, " has chance ", plain_chance(given, where) + farthest,
               ", should be ", plain_chance(given, where));
}

}  // namespace

Chapter chapter4() {
  return {4,
          "speculative sampling",
          {{"no draft: a token of p", 1, [](Examiner& judge) { exact(judge, random_case(judge, 4, 0, false)); }},
           {"p = q: every draft is accepted", 1,
            [](Examiner& judge) {
              Case same = random_case(judge, 3, 2, false);
              same.q = same.p;
              exact(judge, same);
              Message answer = judge.student.ask(Message()
                                                     .put(same.V)
                                                     .put(std::vector<int>{0, 1, 2})
                                                     .put(same.p)
                                                     .put(same.q)
                                                     .put(std::vector<int>{1, 1, 0}));
              if (answer.get<char>() != 'v' || answer.list<int>().size() != 3)
                not_passed("both drafts were accepted, and the verdict should have 3 rows");
            }},
           {"one draft: the distribution is p", 3,
            [](Examiner& judge) {
              for (int V : {2, 3, 5}) exact(judge, random_case(judge, V, 1, false));
            }},
           {"chains of two and three", 3,
            [](Examiner& judge) {
              exact(judge, random_case(judge, 3, 2, false));
              exact(judge, random_case(judge, 2, 3, false));
            }},
           {"tokens of chance 0", 2,
            [](Examiner& judge) {
              for (int i = 0; i < 12; i++) exact(judge, random_case(judge, 4, 1 + i % 2, true));
            }}},
          {}};
}

}  // namespace course
