// course/chapter10.cpp: the student's CUDA kernel on the emulated GPU, for the grader and for a table.
//
// The Makefile puts tests/cuda/emulator.h in front, and has the compiler report each access (course/accesses.h).
#include <cmath>
#include <cstdio>

#include "course/accesses.h"
#include "course/parents.h"
#include "course/student.h"

#include "kernels.cuh"

using namespace nanospec;

namespace course {
namespace {

// One launch of the kernel. What nobody may read is NaN.
struct Launch {
  int H, KV, D, slots, rows;
  std::vector<int> end, depth, root, first_row, first_slot, past;
  std::vector<float> qkv, out;
  std::vector<float> k, v;

  // qkv: (rows, (H + 2 KV) D); keys, values: (KV, slots, D)
  explicit Launch(Message& question) {
    for (int* n : {&H, &KV, &D, &slots}) *n = question.get<int>();
    for (auto* list : {&end, &depth, &root, &first_row, &first_slot, &past}) *list = question.list<int>();
    rows = int(end.size());
    qkv = question.list<float>();
    set_parents(depth);
    const auto keys = question.list<float>(), values = question.list<float>();
    k.assign(KV * KeyValues<float>::key_numbers(slots, D), NAN);
    v.assign(KV * KeyValues<float>::value_numbers(slots, D), NAN);
    const KeyValues<float> cache{k.data(), v.data(), slots, D};
    for (int head = 0; head < KV; head++)
      for (int slot = 0; slot < slots; slot++)
        for (int d = 0; d < D; d++) {
          const size_t at = (size_t(head) * slots + slot) * D + d;
          *cache.key(head, slot, d) = keys[at];
          *cache.value(head, slot, d) = values[at];
        }
  }

  Counted run(int order) {
    out.assign(size_t(rows) * H * D, NAN);
    const Forest forest{rows,        int(past.size()), end.data(),        depth.data(),
                        root.data(), first_row.data(), first_slot.data(), past.data()};
    const Attention<float> s{
        forest, H, KV, D, qkv.data(), (H + 2 * KV) * D, {k.data(), v.data(), slots, D}, out.data(), H * D, nullptr, {}};
    std::vector<Watched> global;
    for (const auto* list : {&end, &depth, &root, &first_row, &first_slot, &past})
      global.push_back({list->data(), list->size() * sizeof(int)});
    for (const auto* list : {&qkv, &out, &k, &v}) global.push_back({list->data(), list->size() * sizeof(float)});
    emulator::order = emulator::Order(order);
    emulator::block.barriers = emulator::block.warp_meetings = 0;
    watch_accesses(global);
    try {
      attention_plain(s);
      emulator::wait();
    } catch (...) {
      watched_accesses();
      throw;
    }
    return {watched_accesses(), emulator::block.warp_meetings, emulator::block.barriers};
  }
};

}  // namespace

// order, the launch -> out, counts
Message answer(Message& question) {
  const int order = question.get<int>();
  Launch launch(question);
  const Counted counted = launch.run(order);
  return Message().put(launch.out).put(counted);
}

// A tree of a root and two chains of 6, behind a past.
void measure() {
  printf("One query head of 64, a root and two chains of 6 behind it; for each row\n\n");
  printf("   past    shuffles, votes,    sectors    sectors      turns for     sectors if each number\n");
  printf("           __syncwarp             read    written    the banks       were read once\n");
  for (int past : {0, 16, 64, 256}) {
    constexpr int n = 13, D = 64;
    const int slots = pad64(past + n);
    std::vector<int> end(n, n), depth(n), root(n, 0);
    for (int i = 1; i < n; i++) {
      depth[i] = (i - 1) % 6 + 1;
      end[i] = i <= 6 ? 7 : n;
    }
    std::vector<float> qkv(size_t(n) * 3 * D, 0.25f), keys(size_t(slots) * D, 0.5f);
    Message question;
    for (int number : {1, 1, D, slots}) question.put(number);
    question.put(end).put(depth).put(root).put(std::vector<int>{0, n}).put(std::vector<int>{0});
    question.put(std::vector<int>{past}).put(qkv).put(keys).put(keys);
    Launch launch(question);
    const Counted c = launch.run(0);
    printf("%7d %18.1f %11.1f %10.1f %14.1f %25.1f\n", past, double(c.meetings + c.barriers) / n, double(c.reads) / n,
           double(c.writes) / n, double(c.conflicts) / n, (2.0 * (past + n / 2.0) * D + D) * 4 / 32);
  }
}

}  // namespace course
