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
  std::vector<std::vector<float>> all;
  const auto put = [](Message& question, const Text& text) { question.put(text.v).put(text.tokens); };
  ask_of_each(program, Message().put('b'), texts, put, [&](const Text& text, Message& answer) {
    all.push_back(answer.list<float>());
    if (all.back().size() != size_t(text.v) * size_t(text.v))
      not_passed("text ", text.tokens, ", V ", text.v, ": ", int(all.back().size()),
                 " numbers in the table, should be ", text.v * text.v);
  });
  return all;
}

void right_tables(Examiner& judge, const std::vector<Text>& texts) {
  const auto right = tables(judge.reference, texts), got = tables(judge.student, texts);
  for (size_t t = 0; t < texts.size(); t++) {
    const auto& [tokens, v] = texts[t];
    for (size_t i = 0; i < right[t].size(); i++) {
      if (std::fabs(double(got[t][i]) - double(right[t][i])) <= 1e-5) continue;
      const int c = int(i) / v, x = int(i) % v, n = int(tokens.size());
      int pairs = 0, followed = 0;
      for (int k = 0; k + 1 < n; k++) {
        followed += tokens[k] == c;
        pairs += tokens[k] == c && tokens[k + 1] == x;
      }
      const double is = double(got[t][i]), chance = nanospec::exp(double(right[t][i]));
      const char* const hint = std::fabs(is - chance) < 1e-5 ? ": the table holds logarithms"
                               : std::fabs(is - nanospec::log(chance) / nanospec::log(2.0)) < 1e-5
                                   ? ": take the natural logarithm"
                                   : "";
      not_passed("text ", tokens, " of ", n, ", V ", v, ": table[", c, "][", x, "], for token ", x, " after ", c, " (",
                 pairs, " such pairs; something follows ", c, " in ", followed, " places; ", x, " occurs ",
                 int(std::count(tokens.begin(), tokens.end(), x)), " times), is ", got[t][i], ", should be the log of ",
                 chance, ", ", nanospec::log(chance), hint);
    }
  }
}

void rows_sum_to_one(Examiner& judge, int used) {
  const Text asked = text(judge, 40, 12, used);
  const std::vector<float> table = tables(judge.student, {asked})[0];
  for (int c = 0; c < asked.v; c++) {
    double sum = 0;
    for (int x = 0; x < asked.v; x++) {
      const float one = table[c * asked.v + x];
      if (!std::isfinite(one))
        not_passed("text ", asked.tokens, ", V ", asked.v, ": table[", c, "][", x, "] is ", one,
                   ": no token has chance 0");
      sum += nanospec::exp(double(one));
    }
    if (std::fabs(sum - 1) > 1e-5)
      not_passed("text ", asked.tokens, ", V ", asked.v, ": the chances after token ", c, " add up to ", sum,
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

// Right candidates of a row are known by their order, and by who is left out.
void right_candidates(const Row& row, int found, const std::vector<int>& token, const std::vector<float>& chance) {
  const int V = int(row.logits.size());
  const auto wrong = [&](const auto&... what) {
    not_passed("logits ", row.logits, ", V ", V, ", width ", row.width, ": ", what...);
  };
  const auto score = [&](int x) { return row.logits[x]; };
  int allowed = 0;
  double total = 0;
  for (int x = 0; x < V; x++)
    if (score(x) > -INFINITY) {
      allowed++;
      total += nanospec::exp(double(score(x)));
    }
  if (token.size() < size_t(row.width) || chance.size() < size_t(row.width))
    wrong(int(token.size()), " tokens and ", int(chance.size()), " chances, should be ", row.width, " or more");
  for (size_t i = size_t(row.width); i < token.size(); i++)
    if (token[i] != -7) wrong("best[", int(i), "] was written: there is room for ", row.width);
  const std::vector<int> got(token.begin(), token.begin() + std::max(0, std::min(found, row.width)));
  const std::string tokens = line_of("tokens ", got, ": ");
  if (const int right = std::min(row.width, allowed); found != right)
    wrong(tokens, "found is ", found, ", should be ", right,
          found <= right ? ""
          : found > V    ? ": there are fewer tokens than that"
                         : ": a score of -infinity is no candidate");
  std::vector<char> taken(row.logits.size(), 0);
  for (int i = 0; i < found; i++) {
    const int x = got[i];
    if (x < 0 || x >= V) wrong(tokens, "best[", i, "] is token ", x, ", which there is not");
    if (!(score(x) > -INFINITY)) wrong(tokens, "token ", x, " has the score ", score(x), ": no candidate");
    if (taken[x]) wrong(tokens, "token ", x, " stands there twice");
    taken[x] = 1;
    if (i == 0) continue;
    const int before = got[i - 1];
    if (score(x) > score(before))
      wrong(tokens, "best[", i, "] has a higher score than best[", i - 1, "], ", score(x), " and ", score(before),
            ": the best first");
    if (score(x) == score(before) && x < before)
      wrong(tokens, before, " and ", x, ": of equal scores the lowest token comes first");
  }
  for (int x = 0; x < V && found > 0; x++) {
    const int last = got.back();
    if (taken[x] || score(x) < score(last) || !(score(x) > -INFINITY)) continue;
    if (score(x) > score(last))
      wrong(tokens, "token ", x, " is left out: its score is ", score(x), ", that of token ", last, " is ",
            score(last));
    if (x < last)
      wrong(tokens, "token ", x, " is left out, and ", last, " is not: of equal scores the lowest token comes first");
  }
  for (int i = 0; i < found; i++)
    if (const double right = nanospec::exp(double(score(got[i]))) / total;
        !(std::fabs(double(chance[i]) - right) <= 1e-5))
      wrong("token ", got[i], " has chance ", chance[i], ", should be ", right,
            ": `chance` holds the score until all are found");
}

void candidates(Examiner& judge, const std::vector<Row>& rows) {
  const auto put = [](Message& question, const Row& row) { question.put(row.width).put(row.logits); };
  ask_of_each(judge.student, Message().put('t'), rows, put, [](const Row& row, Message& answer) {
    const int found = answer.get<int>();
    const auto token = answer.list<int>();
    right_candidates(row, found, token, answer.list<float>());
  });
}

// Rows of up to so many logits and candidates. equal: many logits are; none: many tokens may not be guessed.
void rows_of(Examiner& judge, int many, int most_v, int most_width, bool equal, bool none) {
  const auto one = [&] {
    const double left_out = none ? judge.unit() : 0;
    const int levels = equal ? judge.between(1, 6) : 1 << 20, width = judge.between(1, most_width);
    return row(judge, judge.between(1, most_v), width, levels, left_out);
  };
  candidates(judge, times(many, one));
}

}  // namespace

Chapter chapter3() {
  return {
      3,
      "a drafter",
      {{"bigram_table: the text of the page", 1, cases(right_tables, {{std::vector<Text>{{{0, 1, 0, 2, 0, 1}, 4}}}})},
       {"bigram_table: rows add up to 1", 1, cases(rows_sum_to_one, {{2}, {5}, {12}})},
       {"bigram_table: 300 texts", 2,
        [](Examiner& judge) {
          const auto one = [&] {
            const int v = judge.between(1, 20), used = judge.between(1, v);
            return text(judge, judge.between(2, 200), v, used);
          };
          right_tables(judge, times(300, one));
        }},
       {"bigram_table: no token, one token", 1,
        cases(right_tables, {{std::vector<Text>{{{}, 3}, {{2}, 4}, {{0, 0}, 1}}}})},
       {"top_candidates: 2,000 rows", 2, cases(rows_of, {{2000, 120, 12, false, false}})},
       {"top_candidates: equal scores", 1, cases(rows_of, {{500, 60, 9, true, false}})},
       {"top_candidates: tokens that may not be guessed", 1, cases(rows_of, {{500, 60, 9, false, true}})},
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
