// course/checks3.cpp: the grader's checks of chapter 3: the table of the bigram, as the engine counts it; the
// candidates, by their order and by who is left out.
#include <algorithm>

#include "course/judge.h"
#include "machine/numbers.h"

namespace course {
namespace {

struct Text {
  std::vector<int> tokens;
  int v;
};

Text text(Examiner& judge, int n, int v, int used) {  // tokens below `used` alone occur
  return {times(n, [&] { return std::min(judge.below(used), judge.below(used)); }), v};
}

std::vector<std::vector<float>> tables(Answerer& program, const std::vector<Text>& texts) {
  Message question;
  question.put('b').put(int(texts.size()));
  for (const Text& text : texts) question.put(text.v).put(text.tokens);
  Message answer = program.ask(question);
  std::vector<std::vector<float>> all;
  for (const Text& text : texts) {
    all.push_back(answer.list<float>());
    if (all.back().size() != size_t(text.v) * size_t(text.v))
      not_passed("text ", text.tokens, ", V ", text.v, ": ", int(all.back().size()),
                 " numbers in the table, should be ", text.v * text.v);
  }
  return all;
}

void right_tables(Examiner& judge, const std::vector<Text>& texts) {
  const auto all = tables(judge.reference, texts), got = tables(judge.student, texts);
  for (size_t t = 0; t < texts.size(); t++) {
    const std::vector<float>& right = all[t];
    for (size_t i = 0; i < right.size(); i++) {
      if (std::fabs(double(got[t][i]) - double(right[i])) <= 1e-5) continue;
      const int c = int(i) / texts[t].v, x = int(i) % texts[t].v, n = int(texts[t].tokens.size());
      int pairs = 0, followed = 0;
      for (int k = 0; k + 1 < n; k++) {
        followed += texts[t].tokens[size_t(k)] == c;
        pairs += texts[t].tokens[size_t(k)] == c && texts[t].tokens[size_t(k) + 1] == x;
      }
      const double is = double(got[t][i]), chance = nanospec::exp(double(right[i]));
      const char* const hint = std::fabs(is - chance) < 1e-5 ? ": the table holds logarithms"
                               : std::fabs(is - nanospec::log(chance) / nanospec::log(2.0)) < 1e-5
                                   ? ": take the natural logarithm"
                                   : "";
      not_passed("text ", texts[t].tokens, " of ", n, ", V ", texts[t].v, ": table[", c, "][", x, "], for token ", x,
                 " after ", c, " (", pairs, " such pairs; something follows ", c, " in ", followed, " places; ", x,
                 " occurs ", int(std::count(texts[t].tokens.begin(), texts[t].tokens.end(), x)), " times), is ",
                 got[t][i], ", should be the log of ", chance, ", ", nanospec::log(chance), hint);
    }
  }
}

void rows_sum_to_one(Examiner& judge, const std::vector<Text>& texts) {
  const auto got = tables(judge.student, texts);
  for (size_t t = 0; t < texts.size(); t++)
    for (int c = 0; c < texts[t].v; c++) {
      double sum = 0;
      for (int x = 0; x < texts[t].v; x++) {
        const float one = got[t][size_t(c * texts[t].v + x)];
        if (!std::isfinite(one))
          not_passed("text ", texts[t].tokens, ", V ", texts[t].v, ": table[", c, "][", x, "] is ", one,
                     ": no token has chance 0");
        sum += nanospec::exp(double(one));
      }
      if (std::fabs(sum - 1) > 1e-5)
        not_passed("text ", texts[t].tokens, ", V ", texts[t].v, ": the chances after token ", c, " add up to ", sum,
                   sum > 1 ? ", more than 1: what is it divided by?" : ", less than 1");
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

// What is wrong with the candidates of a row, beginning with the place; "" if nothing is. Right ones are known by their
// order, and by who is left out.
std::string wrong_in(const Row& row, int found, const std::vector<int>& token, const std::vector<float>& chance) {
  const int V = int(row.logits.size());
  const auto score = [&](int x) { return row.logits[size_t(x)]; };
  int allowed = 0;
  double total = 0;
  for (int x = 0; x < V; x++)
    if (score(x) > -INFINITY) {
      allowed++;
      total += nanospec::exp(double(score(x)));
    }
  for (size_t i = size_t(row.width); i < token.size(); i++)
    if (token[i] != -7) return line_of("best[", int(i), "] was written: there is room for ", row.width);
  const std::vector<int> got(token.begin(), token.begin() + std::max(0, std::min(found, row.width)));
  const std::string tokens = line_of("tokens ", got, ": ");
  if (const int right = std::min(row.width, allowed); found != right)
    return line_of(tokens, "found is ", found, ", should be ", right,
                   found <= right ? ""
                   : found > V    ? ": there are fewer tokens than that"
                                  : ": a score of -infinity is no candidate");
  std::vector<char> taken(row.logits.size(), 0);
  for (int i = 0; i < found; i++) {
    const int x = got[size_t(i)];
    if (x < 0 || x >= V) return line_of(tokens, "best[", i, "] is token ", x, ", which there is not");
    if (!(score(x) > -INFINITY)) return line_of(tokens, "token ", x, " has the score ", score(x), ": no candidate");
    if (taken[size_t(x)]) return line_of(tokens, "token ", x, " stands there twice");
    taken[size_t(x)] = 1;
    if (i == 0) continue;
    const int before = got[size_t(i) - 1];
    if (score(x) > score(before))
      return line_of(tokens, "best[", i, "] has a higher score than best[", i - 1, "], ", score(x), " and ",
                     score(before), ": the best first");
    if (score(x) == score(before) && x < before)
      return line_of(tokens, before, " and ", x, ": of equal scores the lowest token comes first");
  }
  for (int x = 0; x < V && found > 0; x++) {
    const int last = got.back();
    if (taken[size_t(x)] || score(x) < score(last) || !(score(x) > -INFINITY)) continue;
    if (score(x) > score(last))
      return line_of(tokens, "token ", x, " is left out: its score is ", score(x), ", that of token ", last, " is ",
                     score(last));
    if (x < last)
      return line_of(tokens, "token ", x, " is left out, and ", last,
                     " is not: of equal scores the lowest token comes first");
  }
  for (int i = 0; i < found; i++)
    if (const double right = nanospec::exp(double(score(got[size_t(i)]))) / total;
        !(std::fabs(double(chance[size_t(i)]) - right) <= 1e-5))
      return line_of("token ", got[size_t(i)], " has chance ", chance[size_t(i)], ", should be ", right,
                     ": `chance` holds the score until all are found");
  return "";
}

void candidates(Examiner& judge, const std::vector<Row>& rows) {
  Message question;
  question.put('t').put(int(rows.size()));
  for (const Row& row : rows) question.put(row.width).put(row.logits);
  Message answer = judge.student.ask(question);
  for (const Row& row : rows) {
    const int found = answer.get<int>();
    const auto token = answer.list<int>();
    const auto chance = answer.list<float>();
    const std::string wrong = wrong_in(row, found, token, chance);
    if (!wrong.empty())
      not_passed("logits ", row.logits, ", V ", int(row.logits.size()), ", width ", row.width, ": ", wrong);
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
           {"bigram_table: 300 texts", 2,
            [](Examiner& judge) {
              const auto one = [&] {
                const int v = judge.between(1, 20), used = judge.between(1, v);
                return text(judge, judge.between(2, 200), v, used);
              };
              right_tables(judge, times(300, one));
            }},
           {"bigram_table: no token, one token", 1,
            [](Examiner& judge) {
              right_tables(judge, {{{}, 3}, {{2}, 4}, {{0, 0}, 1}});
            }},
           {"top_candidates: 2,000 rows", 2,
            [](Examiner& judge) {
              const auto one = [&] { return row(judge, judge.between(1, 120), judge.between(1, 12), 1 << 20, 0); };
              candidates(judge, times(2000, one));
            }},
           {"top_candidates: equal scores", 1,
            [](Examiner& judge) {
              const auto one = [&] {
                return row(judge, judge.between(1, 60), judge.between(1, 9), judge.between(1, 6), 0);
              };
              candidates(judge, times(500, one));
            }},
           {"top_candidates: tokens that may not be guessed", 1,
            [](Examiner& judge) {
              const auto one = [&] {
                return row(judge, judge.between(1, 60), judge.between(1, 9), 1 << 20, judge.unit());
              };
              candidates(judge, times(500, one));
            }},
           {"top_candidates: 50,257 tokens", 1, [](Examiner& judge) {
              for (int way : {0, 1, 2}) {
                Row one = row(judge, 50257, 8, 1 << 20, 0);
                if (way > 0) std::sort(one.logits.begin(), one.logits.end());
                if (way > 1) std::reverse(one.logits.begin(), one.logits.end());
                candidates(judge, {one});
              }
            }}}};
}

}  // namespace course
