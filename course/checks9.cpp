// course/checks9.cpp: the grader's checks of chapter 9: the best prefix, by trying all; the line that never falls, by
// what makes it the nearest one, and, of short lists, by trying all.
#include <algorithm>

#include "course/judge.h"
#include "machine/numbers.h"

namespace course {
namespace {

// ---------------------------------------------------------------------------------------------------------------
// The best prefix

struct Prefix {
  std::vector<float> reach;
  int roots;
  std::vector<double> seconds;  // of 1, 2, ... rows
};

double tokens_of(const Prefix& prefix, int nodes) {
  double tokens = prefix.roots;
  for (int i = 0; i < nodes; i++) tokens += double(prefix.reach[i]);
  return tokens;
}
double rate_of(const Prefix& prefix, int nodes) {
  return tokens_of(prefix, nodes) / prefix.seconds[prefix.roots + nodes - 1];
}
std::string rate_line(const Prefix& prefix, int nodes) {
  return line_of(nodes, " nodes give ", text_of(tokens_of(prefix, nodes), "%.4g"), " tokens in ",
                 text_of(prefix.seconds[prefix.roots + nodes - 1], "%.4g"), " s (", prefix.roots + nodes,
                 " rows): ", text_of(rate_of(prefix, nodes), "%.5g"), " a second");
}

void prefixes(Examiner& judge, const std::vector<Prefix>& all) {
  const auto put = [](Message& to, const Prefix& one) { to.put(one.reach).put(one.roots).put(one.seconds); };
  ask_of_each(judge.student, Message().put('p'), all, put, [](const Prefix& one, Message& answer) {
    const int nodes = int(one.reach.size()), got = answer.get<int>();
    const std::string where =
        line_of("reach ", std::vector<double>(one.reach.begin(), one.reach.end()), ", roots ", one.roots, ", seconds ",
                std::vector<double>(one.seconds.begin() + one.roots - 1, one.seconds.end()), " of ", one.roots,
                " rows and more: ");
    if (got < 0 || got > nodes) not_passed(where, "the answer ", got, " is none: there are ", nodes, " nodes");
    bool risen = false;  // whether the rate falls somewhere between the two
    for (int n = 0; n <= nodes; n++) {
      if (n > got) risen |= rate_of(one, n) < rate_of(one, n - 1);
      const bool equal = rate_of(one, n) == rate_of(one, got);
      if (equal ? n >= got : rate_of(one, n) < rate_of(one, got)) continue;
      not_passed(where, "answer ", got, ": ", rate_line(one, got), "; ", rate_line(one, n),
                 equal   ? ": of equal rates the fewest nodes"
                 : risen ? ": the rate may fall and rise again"
                         : "");
    }
  });
}

std::vector<Prefix> any(Examiner& judge, int many, int most_roots) {
  return times(many, [&] {
    const double slope = nanospec::exp(-7 * judge.unit());  // of a row more, in parts of a forward
    const double steps = judge.below(2) * 0.15;             // the chance that it is a step up
    const int roots = judge.between(1, most_roots), nodes = judge.between(1, 40);
    Prefix one{{}, roots, {}};
    for (int i = 0; i < nodes; i++) one.reach.push_back(float(judge.unit() * judge.unit()));
    std::sort(one.reach.begin(), one.reach.end(), std::greater<float>());
    double seconds = 0.5 + judge.unit();
    for (int rows = 1; rows <= roots + nodes; rows++) {
      one.seconds.push_back(seconds);
      seconds += judge.unit() * slope + (judge.unit() < steps ? judge.unit() : 0);
    }
    return one;
  });
}

// Rates that are equal in every bit, and nothing to choose from.
const std::vector<Prefix> kEdges = {{{}, 1, {0.5}},
                                    {{}, 3, {0.5, 0.6, 0.7}},
                                    {{0.5f, 0.5f}, 1, {1, 1.5, 2}},
                                    {{1, 1, 1}, 1, {1, 1, 1.5, 2}},
                                    {{0.25f, 0.25f, 0.25f, 0.25f}, 2, {1, 1, 1.125, 1.25, 1.375, 1.5}},
                                    {{0.5f, 0}, 1, {1, 1, 1}},
                                    {{0.5f, 0.25f}, 1, {1, 8, 8}}};

// ---------------------------------------------------------------------------------------------------------------
// The line that never falls

struct Line {
  std::vector<double> measured, weight;
};

double square(double x) { return x * x; }

// Of all ways to cut the list from number `first` on into pieces, each with its mean: the least sum of squares of those
// that do not fall, not below `last` either. sum: of what stands before.
double least_squares(const Line& line, size_t first = 0, double last = -INFINITY, double sum = 0) {
  if (first == line.measured.size()) return sum;
  double least = INFINITY, total = 0, weight = 0;
  for (size_t i = first; i < line.measured.size(); i++) {
    total += line.measured[i] * line.weight[i];
    weight += line.weight[i];
    const double mean = total / weight;
    if (mean < last) continue;
    double with_piece = sum;
    for (size_t k = first; k <= i; k++) with_piece += line.weight[k] * square(line.measured[k] - mean);
    least = std::min(least, least_squares(line, i + 1, mean, with_piece));
  }
  return least;
}

std::vector<std::vector<double>> fitted(Examiner& judge, const std::vector<Line>& lines) {
  std::vector<std::vector<double>> all;
  const auto put = [](Message& question, const Line& line) { question.put(line.measured).put(line.weight); };
  ask_of_each(judge.student, Message().put('f'), lines, put, [&](const Line& line, Message& answer) {
    all.push_back(answer.list<double>());
    if (all.back().size() != line.measured.size())
      not_passed("measured ", line.measured, ": ", int(all.back().size()), " numbers, should be ",
                 int(line.measured.size()));
  });
  return all;
}

// Right is a line that never falls, whose pieces of equal numbers have the mean of what was measured there, and none of
// which could be cut in two, the first part lower.
void fits(Examiner& judge, const std::vector<Line>& lines) {
  const auto all = fitted(judge, lines);
  for (size_t t = 0; t < lines.size(); t++) {
    const Line& line = lines[t];
    const std::vector<double>& got = all[t];
    const int n = int(got.size());
    const std::string where = line_of("measured ", line.measured, ", weights ", line.weight, ", fitted ", got, ": ");
    for (int i = 1; i < n; i++)
      if (!(got[i] >= got[i - 1]))
        not_passed(where, "number ", i, ", ", got[i], ", is less than the one before it, ", got[i - 1]);
    for (int first = 0, last = 0; first < n; first = last + 1) {
      const double level = got[first], close = 1e-9 * std::fabs(level) + 1e-12;
      for (last = first; last + 1 < n && got[last + 1] <= level + close;) last++;
      double total = 0, weight = 0, below = INFINITY;
      int cut = first;
      for (int k = first; k <= last; k++) {
        total += line.measured[k] * line.weight[k];
        weight += line.weight[k];
        if (total / weight >= below) continue;
        below = total / weight;
        cut = k;
      }
      const std::string piece = first == last ? line_of("number ", first, " is ", level)
                                              : line_of("numbers ", first, " to ", last, " are ", level);
      if (std::fabs(total / weight - level) > 100 * close)
        not_passed(where, piece, ", should be ", first == last ? "what was measured, " : "their mean by weight, ",
                   total / weight, first == last ? ", if no other is equal to it" : "");
      if (below < level - 100 * close)
        not_passed(where, piece, ", and what was measured at numbers ", first, " to ", cut, " has the mean ", below,
                   ": these could be lower, and nearer");
    }
  }
}

Line line(Examiner& judge, int n, double slope, double noise, bool weighted) {
  Line line;
  for (int i = 0; i < n; i++) {
    line.measured.push_back(10 + slope * i + noise * judge.unit());
    line.weight.push_back(weighted ? judge.between(1, 9) : 1);
  }
  return line;
}
// each: of so many lines one has weights; 0: none has.
std::vector<Line> lines(Examiner& judge, int many, int most, int each) {
  std::vector<Line> all;
  for (int i = 1; i <= many; i++)
    all.push_back(line(judge, judge.between(1, most), judge.unit() - 0.3, judge.unit() * 8, each > 0 && i % each == 0));
  return all;
}

}  // namespace

Chapter chapter9() {
  return {9,
          "what a row costs",
          {{"both examples of the page", 1,
            [](Examiner& judge) {
              prefixes(judge, {{{0.6f, 0.3f, 0.25f, 0.21f, 0.189f}, 1, {10, 10.3, 10.3, 11.3, 11.3, 14}}});
              fits(judge, {{{10, 10.4, 10.2, 11.6, 11, 14}, {1, 1, 1, 1, 1, 1}}});
            }},
           {"best_prefix: one text, 1,000 trees, all prefixes tried", 2,
            [](Examiner& judge) { prefixes(judge, any(judge, 1000, 1)); }},
           {"best_prefix: 1 to 16 texts", 1, [](Examiner& judge) { prefixes(judge, any(judge, 1000, 16)); }},
           {"best_prefix: equal rates, no nodes, rows that cost too much", 1, cases(prefixes, {{kEdges}})},
           {"never_falling: 1,000 lines", 2, [](Examiner& judge) { fits(judge, lines(judge, 1000, 40, 0)); }},
           {"never_falling: weights", 1, [](Examiner& judge) { fits(judge, lines(judge, 500, 40, 1)); }},
           {"never_falling: no other line is nearer", 1,
            [](Examiner& judge) {
              const std::vector<Line> all = lines(judge, 100, 9, 2);
              const auto got = fitted(judge, all);
              for (size_t t = 0; t < all.size(); t++) {
                double sum = 0;
                for (size_t i = 0; i < got[t].size(); i++)
                  sum += all[t].weight[i] * square(all[t].measured[i] - got[t][i]);
                if (const double least = least_squares(all[t]); !(sum <= least + 1e-9))
                  not_passed("measured ", all[t].measured, ", weights ", all[t].weight, ", fitted ", got[t],
                             ": the sum of weight (fitted - measured)^2 is ", sum,
                             "; another line that never falls has ", least);
              }
            }},
           {"never_falling: lists of none, of 3,000, that rise, that fall", 1, [](Examiner& judge) {
              fits(judge, {{{}, {}},
                           {{5}, {2}},
                           line(judge, 3000, 1, 0.5, true),
                           line(judge, 3000, -1, 3, true),
                           line(judge, 3000, 0.01, 9, false)});
            }}}};
}

}  // namespace course
