// course/trees.h: what the grader asks of a kernel of attention: trees behind pasts, in an order of threads.
//
// Chapters 10 and 11 use it.
#pragma once

#include "course/accesses.h"
#include "course/judge.h"

namespace course {

// Trees, one for each root, behind pasts of so many keys. What nobody may read is NaN.
struct Trees : Planted<> {
  int H, KV, D;
  std::vector<std::vector<int>> shapes;  // their parents
  std::vector<float> qkv, keys, values;

  Trees(Examiner& judge, int heads, int kv_heads, int head_size, const std::vector<int>& pasts, int rows)
      : H(heads), KV(kv_heads), D(head_size) {
    for (int its_past : pasts) {
      shapes.push_back(judge.shape(rows, judge.unit() * 0.8));
      add(shapes.back(), its_past);
    }
    qkv = judge.numbers(end.size() * size_t(H + 2 * KV) * D, 2);
    keys.assign(size_t(KV) * slots * D, NAN);
    values = keys;
    for (size_t r = 0; r < past.size(); r++)
      for (int head = 0; head < KV; head++)
        for (int i = 0; i < past[r] + rows; i++) {
          const size_t at = (size_t(head) * slots + first_slot[r] + i) * D;
          const auto key = judge.numbers(D, 2), value = judge.numbers(D, 2);
          std::copy(key.begin(), key.end(), keys.begin() + long(at));
          std::copy(value.begin(), value.end(), values.begin() + long(at));
        }
  }
  Message question(int kernel, int order) const {
    Message message = Message().put(kernel).put(order).put(std::array<int, 3>{H, KV, D}).put(past);
    for (const auto& shape : shapes) message.put(shape);
    return message.put(qkv).put(keys).put(values);
  }
};

// What a kernel takes.
inline Counted counts_of(Answerer& who, const Trees& launch, int kernel) {
  Message answer = who.ask(launch.question(kernel, 0));
  answer.list<float>();
  return answer.get<Counted>();
}

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
