// course/checks10.cpp: the grader's checks of chapter 10: the kernels' bits in three orders of threads, and what
// attention does to reach them.
#include <limits>

#include "course/trees.h"

namespace course {
namespace {

// What stands in each slot after a gather.
void gathers(Examiner& judge, int layers, int heads, int D, const std::vector<int>& rows, int order) {
  const int first = judge.between(5, 25), slots = 64;
  std::vector<int> kept = {first, int(rows.size())};
  kept.insert(kept.end(), rows.begin(), rows.end());
  const size_t one = size_t(layers) * heads * D * 2;  // numbers of a slot
  const std::vector<float> before = judge.numbers(one * slots);
  const std::array<int, 5> sizes{order, layers, heads, D, slots};
  const auto got = judge.student.ask(Message().put(1).put(sizes).put(kept).put(before)).list<float>();
  auto right = before;
  std::vector<std::string> from(slots, "what it held");
  for (size_t i = 0; i < rows.size(); i++) {
    from[first + i] = line_of("what slot ", first + rows[i], " held");
    std::copy_n(&before[(first + rows[i]) * one], one, &right[(first + i) * one]);
  }
  same_bits(got, right, [&](int i) {
    const int slot = i / int(one), row = i / 2 / D;  // of (slots, layers, heads)
    return line_of("gather, ", kOrders[order], ": first ", first, ", rows ", rows, ": layer ", row / heads % layers,
                   ", head ", row % heads, ", slot ", slot, " should hold ", from[slot], ": channel ", i / 2 % D,
                   i % 2 == 0 ? " of its key" : " of its value");
  });
}

void norms(Examiner& judge, int rows, int C, float epsilon, int order) {
  Message question = Message().put(2).put(std::array<int, 3>{order, rows, C}).put(epsilon);
  question.put(judge.numbers(size_t(rows) * C, 2)).put(judge.numbers(C, 2));
  Message answer = judge.student.ask(question), reference = judge.reference.ask(question);
  const auto got = answer.list<float>(), right = reference.list<float>();
  same_bits(got, right, [&](int i) {
    return line_of("norm, ", kOrders[order], ": rows of ", C, ", epsilon ", epsilon, ": y of row ", i / C, ", channel ",
                   i % C);
  });
  const auto of_student = answer.get<Counted>(), of_reference = reference.get<Counted>();
  no_race(judge.student, of_student, "norm");
  if (of_student.meetings + of_student.barriers > 2 * of_reference.meetings)
    not_passed("norm: ", int(of_student.meetings + of_student.barriers), " synchronizations of ", rows,
               " warps: twice as many as the engine's are ", int(2 * of_reference.meetings));
}

void same_as_reference(Examiner& judge, const Trees& launch, bool all_orders) {
  const auto right = judge.reference.ask(launch.question(3, 0)).list<float>();
  for (int order = 0; order < (all_orders ? 3 : 1); order++) {
    Message answer = judge.student.ask(launch.question(3, order));
    const auto got = answer.list<float>();
    const int D = launch.D, H = launch.H;
    same_bits(got, right, [&](int i) {
      return line_of(kOrders[order], ": ", H, " heads of ", D, ", pasts ", launch.past, ": out of row ", i / (H * D),
                     ", head ", i / D % H, ", channel ", i % D);
    });
    no_race(judge.student, answer.get<Counted>(), kOrders[order]);
  }
}

// Of one launch, the student's and the reference's.
std::pair<Counted, Counted> counted(Examiner& judge) {
  const Trees launch(judge, 4, 2, 64, {90, 17}, 13);
  return {counts_of(judge.student, launch, 3), counts_of(judge.reference, launch, 3)};
}

}  // namespace

Chapter chapter10() {
  return {
      10,
      "a tree attention kernel in CUDA",
      {{"10.1: the gather, in three orders of threads", 1,
        [](Examiner& judge) {
          for (int order = 0; order < 3; order++) {
            gathers(judge, 2, 3, 40, {0, 2, 3, 7, 11}, order);
            gathers(judge, 1, 1, 100, {1, 2, 3, 4, 5, 6, 20}, order);
          }
          gathers(judge, 1, 2, 8, {}, 0);
          gathers(judge, 1, 1, 600, {1, 2, 6}, 0);  // more numbers than threads
        }},
       {"10.2: a row's norm, in three orders of threads", 1,
        [](Examiner& judge) {
          norms(judge, 1, 32, 0.25f, 0);
          norms(judge, 1, 7, 0.0078125f, 0);
          for (int order = 0; order < 3; order++) norms(judge, 30, 333, 0.0078125f, order);
        }},
       {"one row, no past", 1, [](Examiner& judge) { same_as_reference(judge, Trees(judge, 1, 1, 8, {0}, 1), false); }},
       {"the bits of the stated order", 2,
        [](Examiner& judge) {
          same_as_reference(judge, Trees(judge, 2, 2, 16, {40}, 9), false);
          same_as_reference(judge, Trees(judge, 2, 1, 40, {33, 0, 100}, 15), false);
          // Equal weights, and one value so small that half of it is a minus zero.
          Trees zeros(judge, 1, 1, 4, {0}, 3);
          for (auto* list : {&zeros.qkv, &zeros.keys, &zeros.values}) std::fill(list->begin(), list->end(), 0.0f);
          zeros.values[0] = -std::numeric_limits<float>::denorm_min();
          same_as_reference(judge, zeros, false);
        }},
       {"three orders of threads", 2,
        [](Examiner& judge) {
          same_as_reference(judge, Trees(judge, 3, 1, 70, {61, 5}, 24), true);
        }},
       {"synchronizations: shuffles, votes, barriers", 1,
        [](Examiner& judge) {
          const auto [got, right] = counted(judge);
          within("synchronizations of warps and blocks", got.meetings + got.barriers, 5.0 * double(right.meetings));
        }},
       {"global memory: sectors", 1,
        [](Examiner& judge) {
          const auto [got, right] = counted(judge);
          within("sectors of global memory read", got.reads, 1.25 * double(right.reads));
          within("sectors of global memory written", got.writes, 1.25 * double(right.writes));
        }},
       {"shared memory: banks", 1,
        [](Examiner& judge) {
          const auto [got, right] = counted(judge);
          within("bank conflicts in shared memory", got.conflicts, double(right.conflicts) + 100);
        }}},
      kMask};
}

}  // namespace course
