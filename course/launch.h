// course/launch.h: kernels on the emulated GPU: how a launch is watched, and a launch of attention.
//
// Chapters 10 and 11 use it. The Makefile puts tests/cuda/emulator.h in front, and has the compiler report each access
// (course/accesses.h).
#pragma once

#include <new>

#include "course/accesses.h"
#include "course/cache.h"
#include "course/student.h"

#include "course/warps.cuh"

namespace course {

using namespace nanospec;

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
template <class List>
Watched whole(const List& list) {
  return {list.data(), list.size() * sizeof(list[0])};
}

// Memory that begins where a line of a cache does, as cudaMalloc gives it: so counts are the same on every machine.
template <class T>
struct OnLine {
  using value_type = T;
  static constexpr std::align_val_t kBytes{128};
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kBytes)); }
  void deallocate(T* at, size_t) { ::operator delete(at, kBytes); }
  bool operator==(const OnLine&) const { return true; }
  bool operator!=(const OnLine&) const { return false; }
};
template <class T>
using DeviceList = std::vector<T, OnLine<T>>;
template <class T>
DeviceList<T> to_device(const std::vector<T>& list) {
  return {list.begin(), list.end()};
}

// One launch of attention. What nobody may read is NaN.
struct Launch {
  int H, KV, D, slots, rows;
  DeviceList<int> end, depth, root, first_row, first_slot, past;
  DeviceList<float> qkv, out;
  LayersCache<float, DeviceList<float>> cache = {};

  // qkv: (rows, (H + 2 KV) D); keys, values: (KV, slots, D)
  explicit Launch(Message& question) {
    for (int* n : {&H, &KV, &D, &slots}) *n = question.get<int>();
    for (auto* list : {&end, &depth, &root, &first_row, &first_slot, &past}) *list = to_device(question.list<int>());
    rows = int(end.size());
    qkv = to_device(question.list<float>());
    set_parents({depth.begin(), depth.end()});
    const auto keys = question.list<float>(), values = question.list<float>();
    cache = {1, KV, slots, D};
    for (int slot = 0; slot < slots; slot++)
      cache.each_of(slot, [&](int, int head, int d, bool value, float& number) {
        number = (value ? values : keys)[(size_t(head) * slots + slot) * D + d];
      });
  }

  std::vector<float> result() const { return {out.begin(), out.end()}; }
  // kernel(s): starts it.
  template <class F>
  Counted run(int order, F kernel) {
    out.assign(size_t(rows) * H * D, NAN);
    const Forest forest{rows,        int(past.size()), end.data(),        depth.data(),
                        root.data(), first_row.data(), first_slot.data(), past.data()};
    const Attention<float> s{forest,      H,          KV,    D,       qkv.data(), (H + 2 * KV) * D,
                             cache.of(0), out.data(), H * D, nullptr, {}};
    std::vector<Watched> global;
    for (const auto* list : {&end, &depth, &root, &first_row, &first_slot, &past}) global.push_back(whole(*list));
    for (const auto* list : {&qkv, &out, &cache.k, &cache.v}) global.push_back(whole(*list));
    return watched(order, global, [&] { kernel(s); });
  }
};

inline int most_rows(const Forest& forest) {  // of a root
  int most = 0;
  for (int root = 0; root < forest.roots; root++)
    most = std::max(most, forest.first_row[root + 1] - forest.first_row[root]);
  return most;
}

// One head: a root and two chains, n rows in all, behind a past.
inline Launch two_chains(int n, int D, int past) {
  const int slots = pad64(past + n), chain = n / 2;
  std::vector<int> parent(n, -1);
  for (int i = 1; i < n; i++) parent[i] = (i - 1) % chain == 0 ? 0 : i - 1;
  std::vector<float> qkv(size_t(n) * 3 * D, 0.25f), keys(size_t(slots) * D, 0.5f);
  Message question;
  for (int number : {1, 1, D, slots}) question.put(number);
  question.put(ends_of(parent)).put(depths_of(parent)).put(std::vector<int>(n, 0));
  question.put(std::vector<int>{0, n}).put(std::vector<int>{0});
  question.put(std::vector<int>{past}).put(qkv).put(keys).put(keys);
  return Launch(question);
}

}  // namespace course
