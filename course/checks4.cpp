// course/checks4.cpp: the grader's checks of chapter 4: the rejection rule. It follows every way that the rule can go,
// so that the distribution of the text is a sum, not an estimate.
#include "course/judge.h"

namespace course {
namespace {

struct Case {
  int V;
  std::vector<std::vector<double>> p, q;  // (depths, V): what follows a node depends on its depth alone
  int depths() const { return int(p.size()); }
};
// Which rule is asked, of what drafts.
enum class Drafts : char { kChain = 'c', kIndependent = 's', kDistinct = 'd' };

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
  for (int depth = 0; depth <= drafts; depth++)
    for (auto* rows : {&made.p, &made.q}) rows->push_back(distribution(judge, V, zeros));
  return made;
}

// What the rule says of a tree, with this script of answers.
Message ask(Answerer& student, const Case& given, Drafts drafts, const std::vector<int>& token,
            const std::vector<int>& parent, const std::vector<int>& script) {
  Message question = Message().put(given.V).put(drafts).put(token).put(parent);
  for (const auto* rows : {&given.p, &given.q}) {
    std::vector<double> of_nodes;
    for (int depth : depths_of(parent)) of_nodes.insert(of_nodes.end(), rows->at(depth).begin(), rows->at(depth).end());
    question.put(of_nodes);
  }
  return student.ask(question.put(script));
}

struct Walk {
  Answerer& student;
  const Case& given;
  Drafts drafts;
  const std::vector<int>& parent;  // of a tree in preorder
  std::vector<int> depth = depths_of(parent);
  std::vector<int> token = {0};                  // of the nodes; [0] is the root's
  std::map<std::vector<int>, double> mass = {};  // of each text of as many tokens as there are depths

  // Draws the tokens that are left from q, in every way that has a chance, and follows the rule.
  void draw(double chance) {
    if (chance <= 0) return;
    const size_t node = token.size();
    std::vector<int> script;
    if (node == parent.size()) return follow(script, chance);
    std::vector<bool> taken(size_t(given.V), false);  // by an earlier sibling
    for (size_t i = 1; i < node && drafts == Drafts::kDistinct; i++)
      if (parent[i] == parent[node]) taken[token[i]] = true;
    const std::vector<double>& q = given.q[depth[parent[node]]];
    double left = 0;
    for (int x = 0; x < given.V; x++) left += taken[x] ? 0 : q[x];
    for (int x = 0; x < given.V; x++) {
      if (taken[x]) continue;
      token.push_back(x);
      draw(chance * q[x] / left);
      token.pop_back();
    }
  }
  // The rule's way after these answers, which has this chance: every answer to what it asks next in turn.
  void follow(std::vector<int>& script, double chance) {
    if (chance <= 0) return;
    if (script.size() > 4 * token.size()) not_passed("the rule goes on asking: ", int(script.size()), " times");
    Message answer = ask(student, given, drafts, token, parent, script);
    const char what = answer.get<char>();
    if (what == 'v') return verdict(answer, chance);
    const int node = answer.get<int>();
    const double asked = answer.get<double>();
    const auto weights = answer.list<double>();
    if (node < 0 || node >= int(token.size()))
      not_passed("it asks about node ", node, ", and the tree has ", int(token.size()));
    std::vector<double> chances;
    if (what == 'a') {
      const double accepted = std::isnan(asked) ? 0 : std::min(1.0, std::max(0.0, asked));
      chances = {1 - accepted, accepted};
    } else {
      if (what != 'p' && weights.size() != size_t(given.V))
        not_passed("draw at node ", node, ": ", int(weights.size()), " weights, should be ", given.V);
      double sum = 0;
      for (int x = 0; x < given.V; x++) {
        chances.push_back(what == 'p' ? given.p[depth[node]][x] : weights[x]);
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
      not_passed(drafts == Drafts::kChain ? "chain " : "tree with parents " + text_of(parent) + ", tokens ", token,
                 ": a verdict of rows ", rows, ", tokens ", tokens, ": ", what);
    };
    if (rows.empty() || rows.size() != tokens.size()) wrong("as many rows as tokens, the root first");
    for (size_t i = 0; i < rows.size(); i++) {
      if (rows[i] < 0 || rows[i] >= int(token.size()) || parent[rows[i]] != (i > 0 ? rows[i - 1] : -1))
        wrong(drafts == Drafts::kChain ? "the rows are 0, 1, 2, ... of the chain"
                                       : "the rows are a path: the root, a child of it, a child of that, ...");
      if (tokens[i] < 0 || tokens[i] >= given.V) wrong("a token that the vocabulary lacks");
      if (i > 0 && tokens[i - 1] != token[rows[i]]) wrong("the token of an accepted node is the node's");
    }
    complete(tokens, chance);
  }
  // What plain decoding would write behind a text that ends early.
  void complete(std::vector<int> text, double chance) {
    if (int(text.size()) >= given.depths()) {
      mass[text] += chance;
      return;
    }
    for (int x = 0; x < given.V; x++) {
      std::vector<int> next = text;
      next.push_back(x);
      complete(next, chance * given.p[text.size()][x]);
    }
  }
};

double plain_chance(const Case& given, const std::vector<int>& text) {
  double chance = 1;
  for (size_t i = 0; i < text.size(); i++) chance *= given.p[i][text[i]];
  return chance;
}

// Draws every token of the tree from q, follows the rule in every way, and compares with plain decoding.
void exact(Examiner& judge, const Case& given, Drafts drafts, const std::vector<int>& parent) {
  Walk walk{judge.student, given, drafts, parent};
  walk.draw(1);
  double distance = 0, farthest = 0;
  std::vector<int> where;
  for (const auto& [text, chance] : walk.mass) {
    const double off = chance - plain_chance(given, text);
    distance += std::abs(off) / 2;
    if (std::abs(off) > std::abs(farthest)) {
      farthest = off;
      where = text;
    }
  }
  if (!(distance < 1e-12))
    not_passed("vocabulary ", given.V, ", ", int(parent.size()) - 1, " drafts",
               drafts == Drafts::kChain ? "" : " with parents " + text_of(parent), ": total variation ", distance,
               " from plain decoding; the text ", where, " has chance ", plain_chance(given, where) + farthest,
               ", should be ", plain_chance(given, where));
}

void random_chain(Examiner& judge, int V, int drafts, bool zeros) {
  exact(judge, random_case(judge, V, drafts, zeros), Drafts::kChain, chain(drafts + 1));
}
// After the last token is rejected, each of the others may come: so a q that is wrong for the second sibling shows.
const std::vector<double> kP = {0.45, 0.45, 0.1}, kQ = {0.1, 0.3, 0.6};

// A rule that looks at the first sibling alone has the right distribution, too, and wastes the others.
void judges_the_second(Examiner& judge, Drafts drafts) {
  const std::vector<int> token = {0, 2, 1}, parent = {-1, 0, 0}, rejected = {0};
  Message answer = ask(judge.student, {3, {kP, kP}, {kQ, kQ}}, drafts, token, parent, rejected);
  const char call = answer.get<char>();
  const int node = call == 'a' ? answer.get<int>() : -1;
  if (call != 'a' || node != 2)
    not_passed("tree with parents ", parent, ", tokens ", token,
               ": node 1 was rejected, and node 2 should be judged next; ",
               call == 'a' ? line_of("accept was asked about node ", node) : "accept was not asked again");
}
void siblings(Examiner& judge, Drafts drafts) {
  judges_the_second(judge, drafts);
  Case known = random_case(judge, 3, 1, false);
  known.p[0] = kP;
  known.q[0] = kQ;
  exact(judge, known, drafts, {-1, 0, 0});
  exact(judge, random_case(judge, 3, 1, false), drafts, {-1, 0});
  exact(judge, random_case(judge, 3, 1, false), drafts, {-1, 0, 0});
  // Where q has no second token, none can be drawn without replacement.
  exact(judge, random_case(judge, 4, 1, drafts == Drafts::kIndependent), drafts, {-1, 0, 0});
  exact(judge, random_case(judge, 3, 1, false), drafts, {-1, 0, 0, 0});
  exact(judge, random_case(judge, 3, 2, false), drafts, {-1, 0, 1, 0});
  exact(judge, random_case(judge, 2, 2, false), drafts, {-1, 0, 1, 1, 0, 4});
}

}  // namespace

Chapter chapter4() {
  return {4,
          "speculative sampling",
          {{"no draft: a token of p", 1, cases(random_chain, {{4, 0, false}})},
           {"p = q: every draft is accepted", 1,
            [](Examiner& judge) {
              Case same = random_case(judge, 3, 2, false);
              same.q = same.p;
              exact(judge, same, Drafts::kChain, chain(3));
              Message answer = ask(judge.student, same, Drafts::kChain, {0, 1, 2}, chain(3), {1, 1, 0});
              if (answer.get<char>() != 'v' || answer.list<int>().size() != 3)
                not_passed("both drafts were accepted, and the verdict should have 3 rows");
            }},
           {"one draft: the distribution is p", 2, cases(random_chain, {{2, 1, false}, {3, 1, false}, {5, 1, false}})},
           {"chains of two and three", 2, cases(random_chain, {{3, 2, false}, {2, 3, false}})},
           {"tokens of chance 0", 1,
            [](Examiner& judge) {
              for (int i = 0; i < 12; i++) random_chain(judge, 4, 1 + i % 2, true);
            }},
           {"siblings, drawn independently", 2, [](Examiner& judge) { siblings(judge, Drafts::kIndependent); }},
           {"siblings, drawn without replacement", 1, [](Examiner& judge) { siblings(judge, Drafts::kDistinct); }}}};
}

}  // namespace course
