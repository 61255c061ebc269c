// course/checks12.cpp: the grader's checks of chapter 12: gradients against central differences, all in double.
#include "course/judge.h"

namespace course {
namespace {

using Numbers = std::vector<double>;

// What all numbers from this one on have in common with the right ones, for who looks for the mistake.
std::string hint(const Numbers& got, const Numbers& right, size_t at) {
  if (std::isnan(got[at])) return " (it was not written)";
  const double times = got[at] / right[at];
  if (std::abs(times + 1) < 1e-6) return " (the sign is the other one)";
  const double square = std::max(times * times, 1 / (times * times));  // of a scale that is left out: whole
  if (!(std::abs(square - std::round(square)) < 1e-5 * square)) return "";
  int alike = 0;
  for (size_t i = at + 1; i < got.size() && i < at + 4; i++) {
    if (std::abs(right[i]) < 1e-9) continue;
    if (!(std::abs(got[i] - times * right[i]) < 1e-6 * std::abs(got[i]))) return "";
    alike++;
  }
  return alike < 2 ? "" : line_of(" (", times, " times as much; so are the next numbers)");
}

// Throws where the two differ by more than `tolerance`.
template <class Where>
void near(const Numbers& got, const Numbers& right, double tolerance, Where where) {
  if (got.size() != right.size()) not_passed(int(got.size()), " numbers, not ", int(right.size()));
  for (size_t i = 0; i < got.size(); i++)
    if (!(std::abs(got[i] - right[i]) <= tolerance * std::max(1.0, std::abs(right[i]))))
      not_passed(where(int(i)), " is ", got[i], ", should be ", right[i], hint(got, right, i));
}

// ---------------------------------------------------------------------------------------------------------------
// The loss

struct Losses {
  int rows, V, row_stride, lanes, gradient, by_differences;
  double scale;
};

void cross_entropy(Examiner& judge, Losses sizes, double largest) {
  const std::vector<int> target = times(sizes.rows, [&] { return judge.below(sizes.V); });
  Numbers logits = judge.numbers<double>(size_t(sizes.rows) * sizes.row_stride, largest);
  const auto ask = [&](Answerer& who) { return who.ask(Message().put('c').put(sizes).put(target).put(logits)); };
  Message got = ask(judge.student);
  sizes.by_differences = 1;
  Message right = ask(judge.reference);
  near(got.list<double>(), right.list<double>(), 1e-9, [&](int row) {
    return line_of("the loss of row ", row, " (", sizes.V, " tokens, logits up to ", largest, ", target ", target[row],
                   ")");
  });
  Numbers slope = right.list<double>();
  const Numbers after = got.list<double>();
  for (size_t i = 0; i < slope.size(); i++)  // what is behind the vocabulary stays, and without `gradient` all does
    if (!sizes.gradient || int(i) % sizes.row_stride >= sizes.V) slope[i] = logits[i];
  near(after, slope, 1e-7, [&](int i) {
    const int row = i / sizes.row_stride, x = i % sizes.row_stride;
    return line_of(!sizes.gradient    ? "without `gradient`, the logit of token "
                   : x >= sizes.V     ? "behind the vocabulary, number "
                   : x == target[row] ? "the gradient of the target, token "
                                      : "the gradient of another token than the target, ",
                   x, " of row ", row, " (scale ", sizes.scale, ", logit ", logits[i], "),");
  });
}

// ---------------------------------------------------------------------------------------------------------------
// The gradient of a weight

// sizes: rows, K, N, the lengths of a row of x and of dy, lanes
template <class Where>
void weight_gradient(Examiner& judge, const std::array<int, 6>& sizes, const Numbers& x, const Numbers& dy,
                     const Numbers& before, Where where) {
  const Message question = Message().put('m').put(sizes).put(x).put(dy).put(before);
  near(judge.student.ask(question).list<double>(), judge.reference.ask(question).list<double>(), 1e-9, where);
}
// x and dy have one number each that is not 0: what should become of them is asked for alone.
void one_product(Examiner& judge) {
  const int rows = 4, K = 5, N = 6;
  for (int i = 0; i < 40; i++) {
    const int row = judge.below(rows), k = judge.below(K), n = judge.below(N);
    Numbers x(rows * K, 0), dy(rows * N, 0), before = judge.numbers<double>(K * N, 1);
    x[row * K + k] = judge.unit() + 1;
    dy[row * N + n] = judge.unit() - 2;
    weight_gradient(judge, {rows, K, N, K, N, 0}, x, dy, before, [&](int at) {
      return line_of("x has one number that is not 0, ", x[row * K + k], " in row ", row, ", input ", k, "; dy has ",
                     dy[row * N + n], " in row ", row, ", output ", n, "; dw held ", before[at],
                     " there: the gradient of input ", at / N, ", output ", at % N);
    });
  }
}
void many_products(Examiner& judge, int rows, int K, int N, int lanes) {
  const int x_row = K + judge.between(1, 4), dy_row = N + judge.between(1, 4);  // longer: a wrong length is seen
  const Numbers x = judge.numbers<double>(size_t(rows * x_row), 1),
                dy = judge.numbers<double>(size_t(rows * dy_row), 1), before = judge.numbers<double>(size_t(K * N), 1);
  weight_gradient(judge, {rows, K, N, x_row, dy_row, lanes}, x, dy, before, [&](int at) {
    return line_of(rows, " rows of ", K, " inputs (a row of x has ", x_row, " numbers) and ", N,
                   " outputs (a row of dy has ", dy_row, "): the gradient of input ", at / N, ", output ", at % N);
  });
}

// ---------------------------------------------------------------------------------------------------------------
// Attention

struct Heads {
  int H, KV, D, past, lanes;
};

// parent: of the tree's rows.
void attention(Examiner& judge, const Heads& heads, const std::vector<int>& parent, double largest) {
  const int rows = int(parent.size()), columns = (heads.H + 2 * heads.KV) * heads.D;
  const Numbers qkv = judge.numbers<double>(size_t((heads.past + rows) * columns), largest),
                dout = judge.numbers<double>(size_t(rows * heads.H * heads.D), 1);
  const auto question = [&](int by_differences) {
    return Message().put('a').put(heads).put(by_differences).put(parent).put(qkv).put(dout);
  };
  Message right = judge.reference.ask(question(1));
  const Numbers slope = right.list<double>(), out = right.list<double>(), log_sum = right.list<double>();
  const auto got = judge.student.ask(question(0).put(out).put(log_sum)).list<double>();
  near(got, slope, 1e-6, [&](int i) {
    const int position = i / columns, column = i % columns / heads.D, d = i % heads.D;
    const struct {
      int begin;
      const char *name, *from;
    } kinds[] = {{0, "query", "dS"},
                 {heads.H, "key", "ds, which you store"},
                 {heads.H + heads.KV, "value", "p, which you store"}};
    const auto& [begin, name, from] = kinds[(column >= heads.H) + (column >= heads.H + heads.KV)];
    const bool alone = column < heads.H && position == 0 && heads.past == 0;
    return line_of(heads.H, " heads of ", heads.D, ", ", heads.KV, " of keys, a past of ", heads.past,
                   ", a tree with parents ", parent, ": the gradient of the ", name,
                   position < heads.past ? line_of(" at position ", position, " of the past")
                                         : line_of(" of row ", position - heads.past),
                   ", head ", column - begin, ", channel ", d,
                   alone ? " (a row that sees one key: P is 1, whatever the query)" : line_of(" (from ", from, ")"),
                   ",");
  });
}

}  // namespace

Chapter chapter12() {
  return {12,
          "training",
          {{"the loss, and no gradient where none is asked for", 1,
            cases(cross_entropy, {{{3, 7, 7, 0, 0, 0, 1}, 4},
                                  {{5, 40, 48, 0, 0, 0, 1}, 4},
                                  {{2, 9, 9, 0, 0, 0, 1}, 2000}})},  // logits so large that exp would overflow
           {"the loss's gradient", 2,
            cases(cross_entropy,
                  {{{1, 2, 2, 0, 1, 0, 1}, 4}, {{4, 12, 16, 0, 1, 0, 0.25}, 4}, {{3, 30, 32, 1, 1, 0, 0.125}, 4}})},
           {"a weight's gradient: one product", 1, one_product},
           {"a weight's gradient: sums over rows", 1,
            cases(many_products, {{1, 3, 4, 0}, {17, 5, 40, 0}, {70, 20, 33, 1}})},
           {"attention: one row, then a text", 2,
            cases(attention,
                  {{{1, 1, 3, 0, 0}, chain(1), 1}, {{1, 1, 4, 0, 0}, chain(2), 1}, {{2, 2, 3, 0, 0}, chain(7), 1}})},
           {"attention: a past, and heads that share keys", 1,
            cases(attention, {{{2, 2, 4, 5, 0}, chain(4), 1}, {{4, 2, 3, 3, 0}, chain(5), 1}})},
           {"attention: trees", 1,
            [](Examiner& judge) {
              for (int i = 0; i < 4; i++) attention(judge, {2, 1, 3, i, 0}, judge.shape(8, 0.5), 1);
            }},
           {"attention: lanes in another order", 1,
            [](Examiner& judge) {
              attention(judge, {2, 1, 5, 2, 1}, judge.shape(6, 0.5), 2);
            }}},
          kMask};
}

}  // namespace course
