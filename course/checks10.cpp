// course/checks10.cpp: the grader's checks of chapter 10: the kernel's bits in three orders of threads, and what it
// does to reach them.
#include <limits>

#include "course/accesses.h"
#include "course/judge.h"

namespace course {
namespace {

struct Sizes {
  int H, KV, D, slots;
};

// Trees, one for each root, behind pasts of so many keys. What nobody may read is NaN.
struct Launch {
  Sizes sizes;
  std::vector<int> end, depth, root, first_row = {0}, first_slot, past;
  std::vector<float> qkv, keys, values;

  Launch(Examiner& judge, int H, int KV, int D, const std::vector<int>& pasts, int rows) {
    int slot = 0;
    for (size_t r = 0; r < pasts.size(); r++) {
      const int first = first_row.back(), n = rows;
      const std::vector<int> parent = judge.shape(n, judge.unit() * 0.8);
      for (int i = 0; i < n; i++) {
        depth.push_back(i == 0 ? 0 : depth[first + parent[i]] + 1);
        root.push_back(int(r));
        end.push_back(0);
        for (int node = i; node >= 0; node = parent[node]) end[first + node] = first + i + 1;
      }
      first_row.push_back(first + n);
      first_slot.push_back(slot);
      past.push_back(pasts[r]);
      slot += (pasts[r] + n + 63) / 64 * 64;
    }
    sizes = {H, KV, D, slot};
    qkv = judge.numbers(end.size() * size_t(H + 2 * KV) * D, 2);
    keys.assign(size_t(KV) * slot * D, std::numeric_limits<float>::quiet_NaN());
    values = keys;
    for (size_t r = 0; r < pasts.size(); r++)
      for (int head = 0; head < KV; head++)
        for (int i = 0; i < pasts[r] + rows; i++) {
          const size_t at = (size_t(head) * slot + first_slot[r] + i) * D;
          const auto key = judge.numbers(D, 2), value = judge.numbers(D, 2);
          std::copy(key.begin(), key.end(), keys.begin() + long(at));
          std::copy(value.begin(), value.end(), values.begin() + long(at));
        }
  }
  Message question(int order) const {
    Message message;
    message.put(order).put(sizes);
    for (const auto* list : {&end, &depth, &root, &first_row, &first_slot, &past}) message.put(*list);
    return message.put(qkv).put(keys).put(values);
  }
};

constexpr const char* kOrders[] = {"the lowest thread first", "the highest thread first", "any thread first"};

void same_as_reference(Examiner& judge, const Launch& launch, bool all_orders) {
  const auto right = judge.reference.ask(launch.question(0)).list<float>();
  for (int order = 0; order < (all_orders ? 3 : 1); order++) {
    Message answer = judge.student.ask(launch.question(order));
    const auto got = answer.list<float>();
    const int D = launch.sizes.D, H = launch.sizes.H;
    same_bits(got, right, [&](int i) {
      return line_of(kOrders[order], ": ", H, " heads of ", D, ", pasts ", launch.past, ": out of row ", i / (H * D),
                     ", head ", i / D % H, ", channel ", i % D);
    });
    if (const long races = answer.get<Counted>().races; races > 0)
      not_passed("a race: ", int(races), " times a lane reads what another one writes, or the other way round, and no ",
                 "__syncwarp or __syncthreads stands between them");
  }
}

// Of one launch, the student's and the reference's.
std::pair<Counted, Counted> counted(Examiner& judge) {
  const Launch launch(judge, 4, 2, 64, {90, 17}, 13);
  Message got = judge.student.ask(launch.question(0)), right = judge.reference.ask(launch.question(0));
  got.list<float>();
  right.list<float>();
  const auto of_student = got.get<Counted>();
  return {of_student, right.get<Counted>()};
}
void within(const char* what, long got, double budget) {
  if (double(got) > budget) not_passed(what, ": ", int(got), ", the budget is ", int(budget));
}

}  // namespace

Chapter chapter10() {
  return {10,
          "a tree attention kernel in CUDA",
          {{"one row, no past", 1,
            [](Examiner& judge) { same_as_reference(judge, Launch(judge, 1, 1, 8, {0}, 1), false); }},
           {"the bits of the stated order", 3,
            [](Examiner& judge) {
              same_as_reference(judge, Launch(judge, 2, 2, 16, {40}, 9), false);
              same_as_reference(judge, Launch(judge, 2, 1, 40, {33, 0, 100}, 15), false);
              // Equal weights, and one value so small that half of it is a minus zero.
              Launch zeros(judge, 1, 1, 4, {0}, 3);
              for (auto* list : {&zeros.qkv, &zeros.keys, &zeros.values}) std::fill(list->begin(), list->end(), 0.0f);
              zeros.values[0] = -std::numeric_limits<float>::denorm_min();
              same_as_reference(judge, zeros, false);
            }},
           {"three orders of threads", 2,
            [](Examiner& judge) {
              same_as_reference(judge, Launch(judge, 3, 1, 70, {61, 5}, 24), true);
            }},
           {"synchronizations: shuffles, votes, barriers", 1,
            [](Examiner& judge) {
              const auto [got, right] = counted(judge);
              within("synchronizations of warps and blocks", got.meetings + got.barriers, 5.0 * double(right.meetings));
            }},
           {"global memory: sectors", 2,
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
          {{"5.2", "return course::sees_by_parents(i, j);"}}};
}

}  // namespace course
