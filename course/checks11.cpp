// course/checks11.cpp: the grader's checks of chapter 11: attention of 16 rows, its bits in three orders of threads,
// and what it reads.
#include "course/trees.h"

namespace course {
namespace {

void same_as_reference(Examiner& judge, const Trees& launch, bool all_orders = false) {
  const auto right = judge.reference.ask(launch.question(11, 0)).list<float>();
  for (int order = 0; order < (all_orders ? 3 : 1); order++) {
    Message answer = judge.student.ask(launch.question(11, order));
    const auto got = answer.list<float>();
    no_race(judge.student, answer.get<Counted>(), kOrders[order]);
    const int D = launch.D, H = launch.H;
    same_bits(got, right, [&](int i) {
      const int row = i / (H * D), root = launch.root[row], position = launch.past[root] + launch.depth[row];
      return line_of(kOrders[order], ": ", H, " heads of ", D, ", pasts ", launch.past, ": out of row ", row, " (row ",
                     row - launch.first_row[root], " of its root, at position ", position, ": parts 0 to ",
                     position / 64, "), head ", i / D % H, ", channel ", i % D);
    });
  }
}

// Of one launch: by the student's kernel, the engine's, and the engine's of chapter 10.
std::array<Counted, 3> counted(Examiner& judge) {
  const Trees launch(judge, 1, 1, 64, {40}, 16);
  return {counts_of(judge.student, launch, 11), counts_of(judge.reference, launch, 11),
          counts_of(judge.reference, launch, 10)};
}

}  // namespace

Chapter chapter11() {
  return {11,
          "attention, faster",
          {{"one row, no past", 1, [](Examiner& judge) { same_as_reference(judge, Trees(judge, 1, 1, 8, {0}, 1)); }},
           {"the bits of the stated order", 3,
            [](Examiner& judge) {
              same_as_reference(judge, Trees(judge, 1, 1, 16, {20}, 9));        // one part
              same_as_reference(judge, Trees(judge, 1, 1, 33, {61, 131}, 18));  // several, and two blocks of a root
              Trees steep(judge, 2, 1, 16, {70}, 9);                            // scores far above others: m is raised
              for (float& x : steep.qkv) x *= 5;
              same_as_reference(judge, steep);
            }},
           {"three orders of threads", 2,
            [](Examiner& judge) { same_as_reference(judge, Trees(judge, 1, 1, 40, {61}, 20), true); }},
           {"a quarter of chapter 10's sectors", 2,
            [](Examiner& judge) {
              const auto [got, right, row_by_row] = counted(judge);
              within("sectors of global memory, read and written: a quarter of chapter 10's", got.reads + got.writes,
                     double(row_by_row.reads + row_by_row.writes) / 4);
            }},
           {"each key is read once for 16 rows", 1,
            [](Examiner& judge) {
              const auto [got, right, row_by_row] = counted(judge);
              within("sectors of global memory, read", got.reads, 1.25 * double(right.reads));
            }},
           {"shared memory: banks", 1,
            [](Examiner& judge) {
              const auto [got, right, row_by_row] = counted(judge);
              within("bank conflicts in shared memory", got.conflicts, double(right.conflicts) + 100);
            }}},
          kMask};
}

}  // namespace course
