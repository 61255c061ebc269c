// course/cache.h: trees, and keys and values of some layers, as a student's code gets them: what nobody wrote is NaN.
#pragma once

#include <cmath>
#include <vector>

#include "course/parents.h"

#include "kernels.cuh"

namespace course {

// The trees as kernels get them; the mask of parents.h knows them from now on.
template <class List>
nanospec::Forest forest_of(const Planted<List>& trees) {
  const auto& [slots, parent, end, depth, root, first_row, first_slot, past] = trees;
  parents.assign(parent.begin(), parent.end());
  return {int(end.size()), int(past.size()), end.data(),        depth.data(),
          root.data(),     first_row.data(), first_slot.data(), past.data()};
}

template <class T, class List = std::vector<T>>
struct LayersCache {
  int layers, heads, slots, head_size;
  List k = List(layers * heads * nanospec::KeyValues<T>::key_numbers(slots, head_size), NAN);
  List v = List(layers * heads * nanospec::KeyValues<T>::value_numbers(slots, head_size), NAN);

  nanospec::KeyValues<T> of(int layer) {
    return {&k[k.size() / layers * layer], &v[v.size() / layers * layer], slots, head_size};
  }
  T& number(int layer, int head, int slot, int d, bool value) {
    return value ? *of(layer).value(head, slot, d) : *of(layer).key(head, slot, d);
  }
  // Calls f(layer, head, d, value, number) for all numbers of a slot.
  template <class F>
  void each_of(int slot, F f) {
    for (int layer = 0; layer < layers; layer++)
      for (int head = 0; head < heads; head++)
        for (int d = 0; d < head_size; d++)
          for (bool value : {false, true}) f(layer, head, d, value, number(layer, head, slot, d, value));
  }
  // The numbers of the first so many slots, one slot behind the other, after change(): before it they are these.
  template <class F>
  List changed(int end, List numbers, F change) {
    size_t at = 0, to = 0;
    for (int slot = 0; slot < end; slot++)
      each_of(slot, [&](int, int, int, bool, T& number) { number = numbers[at++]; });
    change();
    for (int slot = 0; slot < end; slot++)
      each_of(slot, [&](int, int, int, bool, T& number) { numbers[to++] = number; });
    return numbers;
  }
  // The student's gather. kept: first, count, then which rows.
  nanospec::KeepRows<T> gather(const std::vector<int>& kept) {
    return {k.data(), v.data(), k.size() / layers, v.size() / layers, heads, slots, head_size, kept.data()};
  }
};

}  // namespace course
