// course/trees.h: what the grader asks of a kernel of attention: trees behind pasts, in an order of threads.
//
// Chapters 10 and 11 use it.
#pragma once

#include <limits>

#include "course/accesses.h"
#include "course/judge.h"

namespace course {

struct Sizes {
  int H, KV, D, slots;
};

// Trees, one for each root, behind pasts of so many keys. What nobody may read is NaN.
struct Trees {
  Sizes sizes;
  std::vector<int> end, depth, root, first_row = {0}, first_slot, past;
  std::vector<float> qkv, keys, values;

  Trees(Examiner& judge, int H, int KV, int D, const std::vector<int>& pasts, int rows) {
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
  Message question(int kernel, int order) const {
    Message message;
    message.put(kernel).put(order).put(sizes);
    for (const auto* list : {&end, &depth, &root, &first_row, &first_slot, &past}) message.put(*list);
    return message.put(qkv).put(keys).put(values);
  }
};

// Throws where lanes of the student's kernel raced.
inline void no_race(const Answerer& student, const Counted& counted, const std::string& where) {
  if (counted.races == 0) return;
  const std::string first = student.line_at(counted.racing[0]), second = student.line_at(counted.racing[1]);
  not_passed(where, ": a race: ", int(counted.races), " times a lane reads what another one writes, or the other way ",
             "round, and no __syncwarp or __syncthreads stands between them",
             first.empty() || second.empty() ? "" : line_of(": the first are `", first, "` and `", second, "`"));
}

constexpr const char* kOrders[] = {"the lowest thread first", "the highest thread first", "any thread first"};

inline void within(const char* what, long got, double budget) {
  if (double(got) > budget) not_passed(what, ": ", int(got), ", the budget is ", int(budget));
}

}  // namespace course
