// tests/warp.h: a warp without a GPU: 32 lanes as fibers, which take turns and meet where a warp's lanes would.
//
// EmulatedWarp is a group (numbers.h) like Warp, so that an operation's lane arithmetic runs in every `make test`. A
// lane that does not come to a meeting that the others come to is an error.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <vector>

#include "../numbers.h"

namespace nanospec {

class Fibers {
 public:
  uint64_t exchange[kLanes];  // what lanes show each other: the bits of a value of any type

  // Runs body(lane) for every lane; a call of meet() returns when all lanes have called it.
  void run(const std::function<void(int)>& body) {
    body_ = &body;
    std::vector<std::vector<char>> stacks(kLanes, std::vector<char>(1 << 16));
    for (int lane = 0; lane < kLanes; lane++) {
      getcontext(&lanes_[lane]);
      lanes_[lane].uc_stack.ss_sp = stacks[lane].data();
      lanes_[lane].uc_stack.ss_size = stacks[lane].size();
      lanes_[lane].uc_link = &home_;
      done_[lane] = false;
      makecontext(&lanes_[lane], reinterpret_cast<void (*)()>(&Fibers::enter), 2, int(uintptr_t(this) >> 32),
                  int(uint32_t(uintptr_t(this))));
    }
    for (int finished = 0; finished < kLanes;) {
      finished = 0;
      for (current_ = 0; current_ < kLanes; current_++) {
        if (!done_[current_]) swapcontext(&home_, &lanes_[current_]);
        finished += done_[current_];
      }
      if (finished != 0 && finished != kLanes) throw std::logic_error("some lanes of the warp missed a meeting");
    }
  }
  void meet() { swapcontext(&lanes_[current_], &home_); }

 private:
  static void enter(int high, int low) {
    Fibers* self = reinterpret_cast<Fibers*>(uintptr_t(uint32_t(high)) << 32 | uint32_t(low));
    (*self->body_)(self->current_);
    self->done_[self->current_] = true;
  }
  const std::function<void(int)>* body_ = nullptr;
  ucontext_t home_, lanes_[kLanes];
  bool done_[kLanes];
  int current_ = 0;
};

struct EmulatedWarp {
  Fibers* fibers;
  int lane;

  template <class F>
  void each(int n, F f) const {
    for (int i = lane; i < n; i += kLanes) f(i);
    fibers->meet();
  }
  template <class T, class F>
  T sum(int n, F f) const {
    T part = T(0);
    for (int i = lane; i < n; i += kLanes) part += f(i);
    return butterfly(part, [](T a, T b) { return a + b; });
  }
  template <class T, class F>
  T largest(int n, F f) const {
    T best = f(0);
    for (int i = lane; i < n; i += kLanes) best = larger(best, f(i));
    return butterfly(best, [](T a, T b) { return larger(a, b); });
  }

 private:
  template <class T, class F>
  T butterfly(T value, F join) const {
    static_assert(sizeof(T) <= sizeof(uint64_t));
    for (int half = kLanes / 2; half > 0; half /= 2) {
      memcpy(&fibers->exchange[lane], &value, sizeof value);
      fibers->meet();
      T other;
      memcpy(&other, &fibers->exchange[lane ^ half], sizeof other);
      fibers->meet();
      value = join(value, other);
    }
    return value;
  }
};

// op(warp, row) for each row.
template <class Op>
void launch_on_warps(int rows, const Op& op) {
  Fibers fibers;
  for (int row = 0; row < rows; row++) fibers.run([&](int lane) { op(EmulatedWarp{&fibers, lane}, row); });
}

}  // namespace nanospec
