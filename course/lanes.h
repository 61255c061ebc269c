// course/lanes.h: groups of lanes that take their work in an unusual order.
//
// An operation must give the same bits for any group (machine/numbers.h). These two are for the grader: what counts on
// an order that `each` does not promise goes wrong under one of them.
#pragma once

#include "machine/numbers.h"

namespace course {

struct LastFirst : nanospec::Solo {
  template <class F>
  void each(int n, F f) const {
    for (int i = n - 1; i >= 0; i--) f(i);
  }
};

// Calls f with a group: 0 is Solo, 1 is LastFirst.
template <class F>
void with_lanes(int which, F f) {
  if (which == 0) f(nanospec::Solo{});
  else f(LastFirst{});
}

// All n items of an operation, by this group.
template <class Operation>
void run_items(int lanes, int n, const Operation& operation) {
  with_lanes(lanes, [&](const auto& group) {
    for (int item = 0; item < n; item++) operation(group, item);
  });
}

}  // namespace course
