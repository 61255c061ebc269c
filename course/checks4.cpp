// course/checks4.cpp: the grader's checks of chapter 4: the rejection rule. It follows every way that the rule can go,
// so that the distribution of the text is a sum, not an estimate.
#include "course/judge.h"

namespace course {
namespace {

struct Case {
  int V;
  std::vector<double> p, q;  // (depths, V): what follows a node depends on its depth alone
  int depths() const { return int(p.size()) / V; }
  double p_at(int depth, int token) const { return p[size_t(depth) * V + token]; }
  double q_at(int depth, int token) const { return q[size_t(depth) * V + token]; }
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
    for (auto* rows : {&made.p, &made.q}) {
      const auto row = distribution(judge, V, zeros);
      rows->insert(rows->end(), row.begin(), row.end());
    }
  return made;
}

// What the rule says of a tree, with this script of answers. p, q: of each node.
Message ask(Answerer& student, int V, Drafts drafts, const std::vector<int>& token, const std::vector<int>& parent,
            const std::vector<double>& p, const std::vector<double>& q, const std::vector<int>& script) {
  return student.ask(Message().put(V).put(drafts).put(token).put(parent).put(p).put(q).put(script));
}

struct Walk {
  const Case& given;
  Drafts drafts;
  const std::vector<int>&parent, &depth;  // of a tree in preorder
  Answerer& student;
  const std::vector<int>& token;             // of the nodes; [0] is the root's
  std::map<std::vector<int>, double>& mass;  // of each text of as many tokens as there are depths

  std::vector<double> by_node(const std::vector<double>& rows) const {
    std::vector<double> all;
    for (size_t node = 0; node < token.size(); node++) {
      const auto row = rows.begin() + long(depth[node]) * given.V;
      all.insert(all.end(), row, row + given.V);
    }
    return all;
  }

  // The rule's way after these answers, which has this chance: every answer to what it asks next in turn.
  void follow(std::vector<int>& script, double chance) {
    if (chance <= 0) return;
    if (script.size() > 4 * token.size()) not_passed("the rule goes on asking: ", int(script.size()), " times");
    Message answer = ask(student, given.V, drafts, token, parent, by_node(given.p), by_node(given.q), script);
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
      double sum = 0;
      for (int x = 0; x < given.V; x++) {
        chances.push_back(what == 'p' ? given.p_at(depth[size_t(node)], x) : weights[x]);
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
      if (rows[i] < 0 || rows[i] >= int(token.size()) || parent[size_t(rows[i])] != (i > 0 ? rows[i - 1] : -1))
        wrong(drafts == Drafts::kChain ? "the rows are 0, 1, 2, ... of the chain"
                                       : "the rows are a path: the root, a child of it, a child of that, ...");
      if (tokens[i] < 0 || tokens[i] >= given.V) wrong("a token that the vocabulary lacks");
      if (i > 0 && tokens[i - 1] != token[size_t(rows[i])]) wrong("the token of an accepted node is the node's");
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
      complete(next, chance * given.p_at(int(text.size()), x));
    }
  }
};

double plain_chance(const Case& given, const std::vector<int>& text) {
  double chance = 1;
  for (size_t i = 0; i < text.size(); i++) chance *= given.p_at(int(i), text[i]);
  return chance;
}

// Draws every token of the tree from q, follows the rule in every way, and compares with plain decoding.
void exact(Examiner& judge, const Case& given, Drafts drafts, const std::vector<int>& parent) {
  std::map<std::vector<int>, double> mass;
  const std::vector<int> depths = depths_of(parent);
  std::vector<int> token = {0};
  const std::function<void(double)> draw = [&](double chance) {
    if (chance <= 0) return;
    const size_t node = token.size();
    if (node < parent.size()) {
      std::vector<bool> taken(size_t(given.V), false);  // by an earlier sibling
      for (size_t i = 1; i < node && drafts == Drafts::kDistinct; i++)
        if (parent[i] == parent[node]) taken[size_t(token[i])] = true;
      const int depth = depths[size_t(parent[node])];
      double left = 0;
      for (int x = 0; x < given.V; x++) left += taken[size_t(x)] ? 0 : given.q_at(depth, x);
      for (int x = 0; x < given.V; x++) {
        if (taken[size_t(x)]) continue;
        token.push_back(x);
        draw(chance * given.q_at(depth, x) / left);
        token.pop_back();
      }
      return;
    }
    std::vector<int> script;
    Walk{given, drafts, parent, depths, judge.student, token, mass}.follow(script, chance);
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
    not_passed("vocabulary ", given.V, ", ", int(parent.size()) - 1, " drafts",
               drafts == Drafts::kChain ? "" : " with parents " + text_of(parent), ": total variation ", distance,
               " from plain decoding; the text ", where, " has chance ", plain_chance(given, where) + farthest,
               ", should be ", plain_chance(given, where));
}

// A chain of as many drafts as the case has places for.
void exact(Examiner& judge, const Case& given) { exact(judge, given, Drafts::kChain, chain(given.depths())); }
// After the last token is rejected, each of the others may come: so a q that is wrong for the second sibling shows.
const std::vector<double> kP = {0.45, 0.45, 0.1}, kQ = {0.1, 0.3, 0.6};

// A rule that looks at the first sibling alone has the right distribution, too, and wastes the others.
void judges_the_second(Examiner& judge, Drafts drafts) {
  std::vector<double> ps, qs;
  for (int node = 0; node < 3; node++) {
    ps.insert(ps.end(), kP.begin(), kP.end());
    qs.insert(qs.end(), kQ.begin(), kQ.end());
  }
  const std::vector<int> token = {0, 2, 1}, parent = {-1, 0, 0}, rejected = {0};
  Message answer = ask(judge.student, 3, drafts, token, parent, ps, qs, rejected);
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
  std::copy(kP.begin(), kP.end(), known.p.begin());
  std::copy(kQ.begin(), kQ.end(), known.q.begin());
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
  return {
      4,
      "speculative sampling",
      {{"no draft: a token of p", 1, [](Examiner& judge) { exact(judge, random_case(judge, 4, 0, false)); }},
       {"p = q: every draft is accepted", 1,
        [](Examiner& judge) {
          Case same = random_case(judge, 3, 2, false);
          same.q = same.p;
          exact(judge, same);
          Message answer = ask(judge.student, same.V, Drafts::kChain, {0, 1, 2}, chain(3), same.p, same.q, {1, 1, 0});
          if (answer.get<char>() != 'v' || answer.list<int>().size() != 3)
            not_passed("both drafts were accepted, and the verdict should have 3 rows");
        }},
       {"one draft: the distribution is p", 2,
        [](Examiner& judge) {
          for (int V : {2, 3, 5}) exact(judge, random_case(judge, V, 1, false));
        }},
       {"chains of two and three", 2,
        [](Examiner& judge) {
          exact(judge, random_case(judge, 3, 2, false));
          exact(judge, random_case(judge, 2, 3, false));
        }},
       {"tokens of chance 0", 1,
        [](Examiner& judge) {
          for (int i = 0; i < 12; i++) exact(judge, random_case(judge, 4, 1 + i % 2, true));
        }},
       {"siblings, drawn independently", 2, [](Examiner& judge) { siblings(judge, Drafts::kIndependent); }},
       {"siblings, drawn without replacement", 1, [](Examiner& judge) { siblings(judge, Drafts::kDistinct); }}}};
}

}  // namespace course
