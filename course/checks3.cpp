// course/checks3.cpp: the grader's checks of chapter 3: the table of the bigram, by counts in a map; the candidates, by
// a sort.
#include <algorithm>
#include <numeric>

#include "course/judge.h"

namespace course {
namespace {

struct Text {
  std::vector<int> tokens;
  int v;
};

Text text(Examiner& judge, int n, int v, int used) {  // tokens below `used` alone occur
  Text text{{}, v};
  for (int i = 0; i < n; i++) text.tokens.push_back(std::min(judge.below(used), judge.below(used)));
  return text;
}

// The table of chances of this text, (v, v).
std::vector<double> right_table(const Text& text) {
  constexpr double prior = 4;
  const double n = double(text.tokens.size());
  std::map<int, int> seen, followed;
  std::map<std::pair<int, int>, int> pairs;
  for (size_t i = 0; i < text.tokens.size(); i++) {
    seen[text.tokens[i]]++;
    if (i + 1 == text.tokens.size()) continue;
    followed[text.tokens[i]]++;
    pairs[{text.tokens[i], text.tokens[i + 1]}]++;
  }
  std::vector<double> chances;
  for (int c = 0; c < text.v; c++)
    for (int x = 0; x < text.v; x++)
      chances.push_back((pairs[{c, x}] + prior * (seen[x] + 1) / (n + text.v)) / (followed[c] + prior));
  return chances;
}

std::vector<std::vector<float>> tables(Examiner& judge, const std::vector<Text>& texts) {
  Message question;
  question.put('b').put(int(texts.size()));
  for (const Text& text : texts) question.put(text.v).put(text.tokens);
  Message answer = judge.student.ask(question);
  std::vector<std::vector<float>> all;
  for (const Text& text : texts) {
    all.push_back(answer.list<float>());
    if (all.back().size() != size_t(text.v) * size_t(text.v))
      not_passed("text ", text.tokens, ", V ", text.v, ": ", int(all.back().size()),
                 " numbers in the table, should be ", text.v * text.v);
  }
  return all;
}

// What a row's sum may mean.
const char* of_sum(double sum) { return sum > 1 ? "more than 1: what is it divided by?" : "less than 1"; }

void right_tables(Examiner& judge, const std::vector<Text>& texts) {
  const auto got = tables(judge, texts);
  for (size_t t = 0; t < texts.size(); t++) {
    const std::vector<double> right = right_table(texts[t]);
    for (size_t i = 0; i < right.size(); i++) {
      if (std::fabs(double(got[t][i]) - std::log(right[i])) <= 1e-5) continue;
      const int c = int(i) / texts[t].v, x = int(i) % texts[t].v, n = int(texts[t].tokens.size());
      int pairs = 0, followed = 0;
      for (int k = 0; k + 1 < n; k++) {
        followed += texts[t].tokens[size_t(k)] == c;
        pairs += texts[t].tokens[size_t(k)] == c && texts[t].tokens[size_t(k) + 1] == x;
      }
      const double is = double(got[t][i]), chance = right[i];
      const char* const hint = std::fabs(is - chance) < 1e-5              ? ": the table holds logarithms"
                               : std::fabs(is - std::log2(chance)) < 1e-5 ? ": take the natural logarithm"
                                                                          : "";
      not_passed("text ", texts[t].tokens, " of ", n, ", V ", texts[t].v, ": table[", c, "][", x, "], for token ", x,
                 " after ", c, " (", pairs, " such pairs; something follows ", c, " in ", followed, " places; ", x,
                 " occurs ", int(std::count(texts[t].tokens.begin(), texts[t].tokens.end(), x)), " times), is ",
                 got[t][i], ", should be the log of ", chance, ", ", std::log(chance), hint);
    }
  }
}

void rows_sum_to_one(Examiner& judge, const std::vector<Text>& texts) {
  const auto got = tables(judge, texts);
  for (size_t t = 0; t < texts.size(); t++)
    for (int c = 0; c < texts[t].v; c++) {
      double sum = 0;
      for (int x = 0; x < texts[t].v; x++) {
        const float one = got[t][size_t(c * texts[t].v + x)];
        if (!std::isfinite(one))
          not_passed("text ", texts[t].tokens, ", V ", texts[t].v, ": table[", c, "][", x, "] is ", one,
                     ": no token has chance 0");
        sum += std::exp(double(one));
      }
      if (std::fabs(sum - 1) > 1e-5)
        not_passed("text ", texts[t].tokens, ", V ", texts[t].v, ": the chances after token ", c, " add up to ", sum,
                   ", ", of_sum(sum));
    }
}

struct Row {
  std::vector<float> logits;
  int width;
};

// levels: how many different logits there are; few give many that are equal. none: the chance of -infinity or NaN.
Row row(Examiner& judge, int v, int width, int levels, double none) {
  Row row{{}, width};
  for (int x = 0; x < v; x++) {
    const float logit = float(judge.below(levels)) * 8 / float(levels) - 4;
    row.logits.push_back(judge.unit() >= none ? logit : judge.below(2) ? -INFINITY : NAN);
  }
  return row;
}

std::string shown(const std::vector<float>& list) {
  std::string text = "[";
  for (size_t i = 0; i < list.size() && i < 12; i++) text += (i ? " " : "") + text_of(list[i]);
  return text + (list.size() > 12 ? " ...]" : "]");
}

void candidates(Examiner& judge, const std::vector<Row>& rows) {
  Message question;
  question.put('t').put(int(rows.size()));
  for (const Row& row : rows) question.put(row.width).put(row.logits);
  Message answer = judge.student.ask(question);
  for (const Row& row : rows) {
    const auto wrong = [&](const std::string& what) {
      not_passed("logits ", shown(row.logits), ", V ", int(row.logits.size()), ", width ", row.width, ": ", what);
    };
    std::vector<int> order;
    double total = 0;
    for (int x = 0; x < int(row.logits.size()); x++)
      if (row.logits[size_t(x)] > -INFINITY) {
        order.push_back(x);
        total += std::exp(double(row.logits[size_t(x)]));
      }
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return row.logits[size_t(a)] > row.logits[size_t(b)]; });
    order.resize(std::min(order.size(), size_t(row.width)));
    const int found = answer.get<int>();
    const auto token = answer.list<int>();
    const auto chance = answer.list<float>();
    for (size_t i = size_t(row.width); i < token.size(); i++)
      if (token[i] != -7) wrong(line_of("best[", int(i), "] was written: there is room for ", row.width));
    const std::vector<int> got(token.begin(), token.begin() + std::max(0, std::min(found, row.width)));
    if (found != int(order.size()))
      wrong(line_of("found is ", found, ", should be ", int(order.size()), ": tokens ", got,
                    found <= int(order.size())           ? ""
                    : int(row.logits.size()) < row.width ? ": there are fewer tokens than that"
                                                         : ": a score of -infinity is no candidate"));
    for (size_t i = 0; i < order.size(); i++) {
      const int x = order[i];
      if (got[i] != x && got[i] >= 0 && got[i] < int(row.logits.size()) &&
          row.logits[size_t(got[i])] == row.logits[size_t(x)])
        wrong(line_of("tokens ", got, ", should be ", order, ": of equal scores the lowest token comes first"));
      if (got[i] != x)
        wrong(
            line_of("tokens ", got, ", should be ", order,
                    std::is_permutation(got.begin(), got.end(), order.begin(), order.end()) ? ": the best first" : ""));
    }
    for (size_t i = 0; i < order.size(); i++)
      if (const double right = std::exp(double(row.logits[size_t(order[i])])) / total;
          !(std::fabs(double(chance[i]) - right) <= 1e-5))
        wrong(line_of("token ", order[i], " has chance ", chance[i], ", should be ", right,
                      ": `chance` holds the score until all are found"));
  }
}

}  // namespace

Chapter chapter3() {
  return {3,
          "a drafter",
          {{"bigram_table: the text of the page", 1,
            [](Examiner& judge) {
              right_tables(judge, {{{0, 1, 0, 2, 0, 1}, 4}});
            }},
           {"bigram_table: rows add up to 1", 1,
            [](Examiner& judge) {
              for (int used : {2, 5, 12}) rows_sum_to_one(judge, {text(judge, 40, 12, used)});
            }},
           {"bigram_table: 300 texts, counted by a map", 2,
            [](Examiner& judge) {
              std::vector<Text> texts;
              for (int i = 0; i < 300; i++) {
                const int v = judge.between(1, 20);
                texts.push_back(text(judge, judge.between(2, 200), v, judge.between(1, v)));
              }
              right_tables(judge, texts);
            }},
           {"bigram_table: no token, one token", 1,
            [](Examiner& judge) {
              right_tables(judge, {{{}, 3}, {{2}, 4}, {{0, 0}, 1}});
            }},
           {"top_candidates: 2,000 rows, against a sort", 2,
            [](Examiner& judge) {
              std::vector<Row> rows;
              for (int i = 0; i < 2000; i++)
                rows.push_back(row(judge, judge.between(1, 120), judge.between(1, 12), 1 << 20, 0));
              candidates(judge, rows);
            }},
           {"top_candidates: equal scores", 1,
            [](Examiner& judge) {
              std::vector<Row> rows;
              for (int i = 0; i < 500; i++)
                rows.push_back(row(judge, judge.between(1, 60), judge.between(1, 9), judge.between(1, 6), 0));
              candidates(judge, rows);
            }},
           {"top_candidates: tokens that may not be guessed", 1,
            [](Examiner& judge) {
              std::vector<Row> rows;
              for (int i = 0; i < 500; i++)
                rows.push_back(row(judge, judge.between(1, 60), judge.between(1, 9), 1 << 20, judge.unit()));
              candidates(judge, rows);
            }},
           {"top_candidates: 50,257 tokens", 1,
            [](Examiner& judge) {
              for (int way : {0, 1, 2}) {
                Row one = row(judge, 50257, 8, 1 << 20, 0);
                if (way > 0) std::sort(one.logits.begin(), one.logits.end());
                if (way > 1) std::reverse(one.logits.begin(), one.logits.end());
                candidates(judge, {one});
              }
            }}},
          {}};
}

}  // namespace course
