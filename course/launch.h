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

// One launch of attention. What nobody may read is NaN.
struct Launch {
  int H, KV, D;
  Planted<DeviceList<int>> trees;
  DeviceList<float> qkv, out;
  LayersCache<float, DeviceList<float>> cache = {};

  // H, KV, D, the trees' pasts, the parents of each; qkv: (rows, (H + 2 KV) D); keys, values: (KV, slots, D)
  explicit Launch(Message& question) {
    for (int* n : {&H, &KV, &D}) *n = question.get<int>();
    for (int past : question.list<int>()) trees.add(question.list<int>(), past);
    qkv = question.list<float, DeviceList<float>>();
    const auto keys = question.list<float>(), values = question.list<float>();
    cache = {1, KV, trees.slots, D};
    for (int slot = 0; slot < trees.slots; slot++)
      cache.each_of(slot, [&](int, int head, int d, bool value, float& number) {
        number = (value ? values : keys)[(size_t(head) * trees.slots + slot) * D + d];
      });
  }

  std::vector<float> result() const { return {out.begin(), out.end()}; }
  // kernel(s): starts it.
  Counted run(int order, void (*kernel)(const Attention<float>& s)) {
    out.assign(trees.end.size() * H * D, NAN);
    const Attention<float> s{forest_of(trees), H,          KV,    D,       qkv.data(), (H + 2 * KV) * D,
                             cache.of(0),      out.data(), H * D, nullptr, {}};
    const std::vector<Watched> global = {
        whole(trees.end),  whole(trees.depth), whole(trees.root), whole(trees.first_row), whole(trees.first_slot),
        whole(trees.past), whole(qkv),         whole(out),        whole(cache.k),         whole(cache.v)};
    return watched(order, global, [&] { kernel(s); });
  }
};

// One head: a root and two chains, n rows in all, behind a past.
inline Launch two_chains(int n, int D, int past) {
  const int chain = n / 2;
  std::vector<int> parent(n, -1);
  for (int i = 1; i < n; i++) parent[i] = (i - 1) % chain == 0 ? 0 : i - 1;
  const std::vector<float> qkv(size_t(n) * 3 * D, 0.25f), keys(size_t(pad64(past + n)) * D, 0.5f);
  Message question = Message().put(1).put(1).put(D).put(std::vector<int>{past}).put(parent);
  question.put(qkv).put(keys).put(keys);
  return Launch(question);
}

}  // namespace course
