// course/chapter10.cpp: the student's CUDA kernels on the emulated GPU, for the grader and for a table.
//
// The Makefile puts tests/cuda/emulator.h in front, and has the compiler report each access (course/accesses.h).
#include <cmath>
#include <cstdio>

#include "course/accesses.h"
#include "course/parents.h"
#include "course/student.h"

#include "course/warps.cuh"

using namespace nanospec;

namespace course {
namespace {

// Runs the kernel in this order of threads; counts what it does to these arrays and to shared memory.
template <class F>
Counted watched(int order, const std::vector<Watched>& global, F kernel) {
  emulator::order = emulator::Order(order);
  emulator::block.barriers = emulator::block.warp_meetings = 0;
  watch_accesses(global);
  try {
    kernel();
    emulator::wait();
  } catch (...) {
    watched_accesses();
    throw;
  }
  return {watched_accesses(), emulator::block.warp_meetings, emulator::block.barriers};
}
template <class T>
Watched whole(const std::vector<T>& list) {
  return {list.data(), list.size() * sizeof(T)};
}

// One launch of attention. What nobody may read is NaN.
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
    for (const auto* list : {&end, &depth, &root, &first_row, &first_slot, &past}) global.push_back(whole(*list));
    for (const auto* list : {&qkv, &out, &k, &v}) global.push_back(whole(*list));
    return watched(order, global, [&] { attention_plain(s); });
  }
};

// The gather: order, layers, heads, D, slots, what is kept, then keys and values (layers, heads, slots, D) -> both
// behind it, and counts.
Message gathered(Message& question) {
  const auto [order, layers, heads, D, slots] = question.get<std::array<int, 5>>();
  const auto kept = question.list<int>();
  std::vector<float> numbers[2];
  for (auto& list : numbers) list = question.list<float>();
  const size_t k_layer = heads * KeyValues<float>::key_numbers(slots, D);
  const size_t v_layer = heads * KeyValues<float>::value_numbers(slots, D);
  std::vector<float> k(layers * k_layer, NAN), v(layers * v_layer, NAN);
  const KeepRows<float> s{k.data(), v.data(), k_layer, v_layer, heads, slots, D, kept.data()};
  const auto each = [&](auto f) {  // f(number of a key, of a value, where they lie)
    size_t i = 0;
    for (int layer = 0; layer < int(k.size() / k_layer); layer++)
      for (int head = 0; head < s.n_kv_head; head++)
        for (int slot = 0; slot < s.slots; slot++)
          for (int d = 0; d < s.head_size; d++, i++)
            f(numbers[0][i], numbers[1][i], s.cache(layer).key(head, slot, d), s.cache(layer).value(head, slot, d));
  };
  each([](float& key, float& value, float* its_key, float* its_value) {
    *its_key = key;
    *its_value = value;
  });
  const int all = layers;
  const Counted counted = watched(order, {whole(kept), whole(k), whole(v)}, [&] { gather_plain(s, all); });
  each([](float& key, float& value, float* its_key, float* its_value) {
    key = *its_key;
    value = *its_value;
  });
  return Message().put(numbers[0]).put(numbers[1]).put(counted);
}

// The norm: order, rows, C, epsilon, x (rows, C), weight -> y (rows, C), counts. Behind each row stand some NaNs.
Message normed(Message& question) {
  const auto [order, rows, C] = question.get<std::array<int, 3>>();
  const float epsilon = question.get<float>();
  const auto given = question.list<float>(), weight = question.list<float>();
  const int x_row = C + 5, y_row = C + 3;
  std::vector<float> x(size_t(rows) * x_row, NAN), y(size_t(rows) * y_row, NAN), out;
  for (int row = 0; row < rows; row++) std::copy_n(&given[size_t(row) * C], C, &x[size_t(row) * x_row]);
  const Norm<float> s{x.data(), x_row, C, weight.data(), nullptr, y.data(), y_row, nullptr, nullptr, false, epsilon};
  const int all = rows;
  const Counted counted = watched(order, {whole(x), whole(y), whole(weight)}, [&] { norm_by_warps(s, all); });
  for (int row = 0; row < rows; row++) out.insert(out.end(), &y[size_t(row) * y_row], &y[size_t(row) * y_row] + C);
  return Message().put(out).put(counted);
}

}  // namespace

// The kernel's region (1 gather, 2 norm, 3 attention), then what it works on; of attention: order, the launch -> out,
// counts.
Message answer(Message& question) {
  const int region = question.get<int>();
  if (region == 1) return gathered(question);
  if (region == 2) return normed(question);
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
