// course/checks1.cpp: the grader's checks of chapter 1: matmul.
#include "course/judge.h"

namespace course {
namespace {

constexpr float kUnwritten = 12345678.0f;

struct Product {
  int rows, K, N, begin, end, lanes, small;
};

int out_row(int n) { return (n + 15) / 16 * 16 + 16; }

void same_as_reference(Examiner& judge, const Product& product) {
  Message question;
  question.put(product).put(kUnwritten);
  question.put(judge.numbers(size_t(product.rows) * product.K));
  question.put(judge.numbers(size_t(product.K) * product.N));
  const auto right = judge.reference.ask(question).list<float>(), got = judge.student.ask(question).list<float>();
  const int columns = out_row(product.N);
  for (size_t i = 0; i < got.size(); i++)
    if (int column = int(i) % columns; (column < product.begin || column >= product.end) && got[i] != kUnwritten)
      not_passed("columns ", product.begin, " to ", product.end - 1, " were asked for, and column ", column, " of row ",
                 int(i) / columns, " was written");
  same_bits(got, right, [&](int i) {
    return line_of("R ", product.rows, ", K ", product.K, ", N ", product.N, ": out[row ", i / columns, "][column ",
                   i % columns, "]");
  });
}

}  // namespace

Chapter chapter1() {
  return {
      1,
      "decoding reads weights",
      {{"one row", 2,
        [](Examiner& judge) {
          for (int K : {1, 2, 5, 64, 333}) same_as_reference(judge, {1, K, 48, 0, 48, 0, 0});
        }},
       {"1 to 64 rows", 3,
        [](Examiner& judge) {
          for (int rows = 1; rows <= 64; rows++)
            same_as_reference(judge, {rows, judge.between(1, 200), 16 * judge.between(1, 5) - 3, 0, 16, rows % 2, 0});
        }},
       {"the asked columns alone", 2,
        [](Examiner& judge) {
          for (int begin : {0, 16, 32, 96}) same_as_reference(judge, {5, 77, 150, begin, begin + 32, 0, 0});
        }},
       {"lanes in another order", 1,
        [](Examiner& judge) {
          same_as_reference(judge, {9, 100, 64, 0, 64, 1, 0});
        }},
       {"weights in bf16", 2,
        [](Examiner& judge) {
          for (int K : {2, 7, 120}) same_as_reference(judge, {11, K, 64, 32, 64, 0, 1});
        }}},
      {}};
}

}  // namespace course
