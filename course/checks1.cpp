// course/checks1.cpp: the grader's checks of chapter 1: matmul, norm, rotary positions.
#include "course/judge.h"

namespace course {
namespace {

constexpr float kUnwritten = 12345678.0f;

struct Product {
  int rows, K, N, begin, end, lanes, small;
};

void same_as_reference(Examiner& judge, const Product& product) {
  Message question = Message().put(1).put(product).put(kUnwritten);
  question.put(judge.numbers(size_t(product.rows) * product.K));
  question.put(judge.numbers(size_t(product.K) * product.N));
  const auto right = judge.reference.ask(question).list<float>(), got = judge.student.ask(question).list<float>();
  const int columns = (product.N + 15) / 16 * 16 + 16;  // of out, as course/chapter1.cpp has it
  for (size_t i = 0; i < got.size(); i++)
    if (int column = int(i) % columns; (column < product.begin || column >= product.end) && got[i] != kUnwritten)
      not_passed("columns ", product.begin, " to ", product.end - 1, " were asked for, and column ", column, " of row ",
                 int(i) / columns, " was written");
  same_bits(got, right, [&](int i) {
    return line_of("R ", product.rows, ", K ", product.K, ", N ", product.N, ": out[row ", i / columns, "][column ",
                   i % columns, "]");
  });
}

// form: 0 without weight, 1 with it, 2 with weight and bias.
void norms(Examiner& judge, int rows, int C, bool center, int form, int lanes, float epsilon) {
  Message question = Message().put(2).put(std::array<int, 4>{rows, C, center, lanes}).put(epsilon).put(kUnwritten);
  std::vector<float> x = judge.numbers(size_t(rows) * C);
  for (float& number : x) number += 0.5f;  // a mean that is not zero
  question.put(x).put(judge.numbers(form > 0 ? C : 0)).put(judge.numbers(form > 1 ? C : 0));
  Message answer = judge.student.ask(question), reference = judge.reference.ask(question);
  const char* const what = center ? "LayerNorm" : "RMSNorm";
  constexpr const char* kForms[] = {" without weight", " with weight", " with weight and bias"};
  const auto got = answer.list<float>(), right = reference.list<float>();
  same_bits(got, right, [&](int i) {
    return line_of(what, kForms[form], ", C ", C, lanes ? ", lanes in reverse order" : "", ": y[row ", i / (C + 3),
                   "][channel ", i % (C + 3), "]");
  });
  same_bits(answer.list<float>(), reference.list<float>(), [&](int i) {
    return line_of(what, ": ", i < rows ? "mean" : "rstd", "[row ", i % rows, "]",
                   rows > 1 && i % rows == rows - 1 ? ", which is null for this row," : "");
  });
}

void rotates(Examiner& judge, int rows, int heads, int D, bool back, int lanes) {
  const int past = judge.between(1, 9), row = heads * D + 8;
  std::vector<float> angles;
  for (int i = 0; i < (past + rows) * D / 2; i++) {
    const double t = 2 * judge.unit() - 1, length = 1 + t * t;  // t: the tangent of half the angle
    angles.push_back(float((1 - t * t) / length));
    angles.push_back(float(2 * t / length));
  }
  Message question = Message().put(3).put(std::array<int, 6>{rows, heads, D, back, lanes, past});
  question.put(judge.numbers(size_t(rows) * row)).put(angles);
  const auto right = judge.reference.ask(question).list<float>(), got = judge.student.ask(question).list<float>();
  same_bits(got, right, [&](int i) {
    const int column = i % row;
    return line_of("rotary, heads of ", D, back ? ", back" : "", lanes ? ", lanes in reverse order" : "", ": row ",
                   i / row, " at position ", past + (i / row + 1) / 2,
                   column < heads * D ? line_of(", head ", column / D, ", channel ", column % D)
                                      : line_of(", a value behind the heads"));
  });
}

}  // namespace

Chapter chapter1() {
  return {
      1,
      "decoding reads weights",
      {{"one row", 1,
        [](Examiner& judge) {
          for (int K : {1, 2, 5, 64, 333}) same_as_reference(judge, {1, K, 48, 0, 48, 0, 0});
        }},
       {"1 to 64 rows", 2,
        [](Examiner& judge) {
          for (int rows = 1; rows <= 64; rows++)
            same_as_reference(judge, {rows, judge.between(1, 200), 16 * judge.between(1, 5) - 3, 0, 16, rows % 2, 0});
        }},
       {"the asked columns alone", 1,
        [](Examiner& judge) {
          for (int begin : {0, 16, 32, 96}) same_as_reference(judge, {5, 77, 150, begin, begin + 32, 0, 0});
        }},
       {"lanes in another order", 1, cases(same_as_reference, {{{9, 100, 64, 0, 64, 1, 0}}})},
       {"weights in bf16", 1,
        cases(same_as_reference,
              {{{11, 2, 64, 32, 64, 0, 1}}, {{11, 7, 64, 32, 64, 0, 1}}, {{11, 120, 64, 32, 64, 0, 1}}})},
       {"1.2: the norm of a row", 2,
        [](Examiner& judge) {
          for (int center = 0; center < 2; center++)
            for (int form = 0; form < 3; form++)
              for (int C : {3, 32, 200}) norms(judge, C == 3 ? 1 : 4, C, center != 0, form, C == 200, 0.0078125f);
        }},
       {"1.3: rotary positions", 2, [](Examiner& judge) {
          rotates(judge, 1, 1, 2, false, 0);
          for (int back = 0; back < 2; back++)
            for (int lanes = 0; lanes < 2; lanes++) rotates(judge, 7, 3, 36, back != 0, lanes);
        }}}};
}

}  // namespace course
