// course/checks2.cpp: the grader's checks of chapter 2: causal attention over a cache.
#include "course/judge.h"

namespace course {
namespace {

struct Heads {
  int H, KV, D, first_slot, lanes;
};

struct Outcome {
  std::vector<float> out, log_sum;
};

Outcome run(Answerer& who, const Heads& heads, const std::vector<int>& forwards, const std::vector<float>& qkv) {
  Message answer = who.ask(Message().put(heads).put(forwards).put(qkv));
  return {answer.list<float>(), answer.list<float>()};
}

std::vector<float> queries_keys_values(Examiner& judge, const Heads& heads, int length, double largest = 1) {
  return judge.numbers(size_t(length) * (heads.H + 2 * heads.KV) * heads.D, largest);
}

std::string place(const Heads& heads, const std::vector<int>& forwards, int i) {
  const int row = i / (heads.H * heads.D), head = i / heads.D % heads.H, d = i % heads.D;
  return line_of("forwards of ", forwards, " rows: position ", row, ", head ", head, ", channel ", d);
}

// Within 1e-5 of the reference, relative to the largest number there may be.
void near(const std::vector<float>& got, const std::vector<float>& right, double largest,
          const std::function<std::string(int)>& where) {
  if (got.size() != right.size()) not_passed(int(got.size()), " numbers, not ", int(right.size()));
  for (size_t i = 0; i < got.size(); i++)
    if (!(std::abs(double(got[i]) - double(right[i])) <= 1e-5 * largest))
      not_passed(where(int(i)), " is ", got[i], ", should be ", right[i]);
}

// whole: of whole numbers, whose scores have no rounding error in any order of their sum.
void near_reference(Examiner& judge, const Heads& heads, const std::vector<int>& forwards, double largest, bool whole) {
  int length = 0;
  for (int rows : forwards) length += rows;
  auto qkv = queries_keys_values(judge, heads, length, largest);
  for (float& x : qkv) x = whole ? std::round(x) : x;
  const Outcome right = run(judge.reference, heads, forwards, qkv), got = run(judge.student, heads, forwards, qkv);
  near(got.out, right.out, largest, [&](int i) { return place(heads, forwards, i); });
}

void incremental_equals_full(Examiner& judge, const Heads& heads, int length) {
  const auto qkv = queries_keys_values(judge, heads, length, 2);
  const Outcome full = run(judge.student, heads, {length}, qkv);
  for (int way = 0; way < 3; way++) {
    std::vector<int> forwards;  // one by one; a prefill and single tokens; anything
    for (int left = length; left > 0; left -= forwards.back())
      forwards.push_back(way == 0   ? 1
                         : way == 1 ? (left == length ? std::max(1, length / 2) : 1)
                                    : judge.between(1, left));
    const Outcome parts = run(judge.student, heads, forwards, qkv);
    for (float x : parts.out)
      if (std::isnan(x))
        not_passed(
            "forwards of ", forwards,
            " rows: a number is NaN: a slot was read that nobody wrote, or a number of the output was not written");
    same_bits(parts.out, full.out, [&](int i) { return place(heads, forwards, i); });
    same_bits(parts.log_sum, full.log_sum, [&](int i) {
      return line_of("forwards of ", forwards, " rows: log_sum of position ", i / heads.H, ", head ", i % heads.H);
    });
  }
}

// A row of a tree has the bits that it has at the end of a text: what is behind the root, then the row's path.
void tree_equals_text(Examiner& judge, const Heads& heads, const std::vector<int>& pasts, int rows) {
  Message question = Message().put(std::array<int, 4>{0, heads.H, heads.KV, heads.D}).put(pasts);
  std::vector<std::vector<int>> parents;
  std::vector<std::vector<float>> texts, trees;
  for (int past : pasts) {
    parents.push_back(judge.shape(rows, 0.5));
    question.put(parents.back());
    texts.push_back(queries_keys_values(judge, heads, past));
    trees.push_back(queries_keys_values(judge, heads, rows));
  }
  std::vector<float> qkv;
  for (const auto* lists : {&texts, &trees})
    for (const auto& list : *lists) qkv.insert(qkv.end(), list.begin(), list.end());
  const auto got = judge.student.ask(question.put(qkv)).list<float>();
  const size_t columns = size_t(heads.H + 2 * heads.KV) * heads.D, width = size_t(heads.H) * heads.D;
  if (got.size() != pasts.size() * rows * width) not_passed(int(got.size()), " numbers");
  for (size_t r = 0; r < pasts.size(); r++)
    for (int row = 0; row < rows; row++) {
      std::vector<float> text = texts[r];
      for (int node = row; node >= 0; node = parents[r][node])
        text.insert(text.begin() + long(texts[r].size()), &trees[r][node * columns],
                    &trees[r][node * columns] + columns);
      const int length = int(text.size() / columns);
      const auto alone = run(judge.student, heads, {length}, text).out;
      const size_t at = (r * rows + row) * width;
      same_bits({got.begin() + long(at), got.begin() + long(at + width)}, {alone.end() - long(width), alone.end()},
                [&](int i) {
                  return line_of("trees behind texts of ", pasts, "; row ", row, " of tree ", int(r),
                                 ", whose parents are ", parents[r], ": head ", i / heads.D, ", channel ", i % heads.D);
                });
    }
}

}  // namespace

Chapter chapter2() {
  return {2,
          "attention and its cache",
          {{"one row sees itself", 1,
            [](Examiner& judge) {
              const Heads heads{1, 1, 8, 0, 0};
              const auto qkv = queries_keys_values(judge, heads, 1);
              const Outcome got = run(judge.student, heads, {1}, qkv);
              near(got.out, {qkv.begin() + 16, qkv.end()}, 1, [](int i) { return line_of("channel ", i); });
            }},
           {"a forward of many rows", 2,
            cases(near_reference, {{{1, 1, 4, 0, 0}, {2}, 1, false},
                                   {{2, 2, 16, 0, 0}, {3}, 1, false},
                                   {{2, 2, 16, 0, 0}, {17}, 1, false},
                                   {{2, 2, 16, 0, 0}, {70}, 1, false}})},
           {"heads that share keys and values", 1, cases(near_reference, {{{6, 2, 20, 0, 0}, {5, 1, 30}, 1, false}})},
           {"incremental equals full, bit for bit", 3,
            cases(incremental_equals_full,
                  {{{4, 2, 12, 0, 0}, 2}, {{4, 2, 12, 64, 1}, 9}, {{4, 2, 12, 64, 1}, 33}, {{4, 2, 12, 0, 0}, 80}})},
           {"trees: a row has the bits of a text of its path", 1,
            cases(tree_equals_text, {{{4, 2, 12, 0, 0}, {19, 0, 40}, 14}})},
           {"large scores", 1, cases(near_reference, {{{2, 1, 16, 64, 1}, {20, 1, 1}, 30, true}})},
           {"log_sum, which training needs", 1,
            [](Examiner& judge) {
              const Heads heads{3, 1, 16, 0, 0};
              const auto qkv = queries_keys_values(judge, heads, 25, 3);
              const Outcome right = run(judge.reference, heads, {10, 15}, qkv),
                            got = run(judge.student, heads, {10, 15}, qkv);
              near(got.log_sum, right.log_sum, 3,
                   [&](int i) { return line_of("log_sum of position ", i / heads.H, ", head ", i % heads.H); });
            }}},
          kMask};
}

}  // namespace course
