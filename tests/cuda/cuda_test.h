// tests/cuda/cuda_test.h: what the tests of the CUDA kernels share.
//
// Each such test is one text for three machines: g++ compiles it for the emulator, nvcc for a device, where there is
// one, and for the witness, which runs nvcc's own PTX without one (tests/cuda/ptx). Its name begins with ON. Include
// this before anything else, as emulator.h asks.
#pragma once

#ifdef WITNESS
#define ON "ptx: "
#elif defined(__CUDACC__)
#define ON "GPU: "
#else
#include "tests/cuda/emulator.h"
#define ON "emulated: "
#endif
#ifdef PORTABLE  // its code is another, and so is its name for the linker
#undef nanospec
#define nanospec nanospec_portable
#endif

#include <doctest/doctest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "rows.h"

#ifdef WITNESS  // runtime.cpp
void witness_refuses(int how);
long witness_early_launches();
long witness_pieces_asked();
#endif

namespace nanospec {

#if defined(WITNESS) || !defined(__CUDACC__)
// What a stand-in for a device can be asked. It refuses to record launches that begin early, as an old driver: 1: as
// they are recorded, 2: when the graph is made, 0: it does not. How many launches could begin early so far, and how
// often weights were asked for in one piece.
#define STAND_IN
#ifdef WITNESS
inline void refuse_early(int how) { witness_refuses(how); }
inline std::pair<long, long> done_early() { return {witness_early_launches(), witness_pieces_asked()}; }
#else
inline void refuse_early(int how) { emulator::refusal = emulator::Refusal(how); }
inline std::pair<long, long> done_early() { return {emulator::early_launches, emulator::pieces_asked}; }
#endif
#endif

constexpr Team kGpu{0, 1, nullptr, true};             // a team of one, whose work the GPU does,
constexpr Team kPlainGpu{0, 1, nullptr, true, true};  // ... by the plain kernels of kernels.cuh

// What `run` returns, a vector of plain numbers: under the emulator it must be the same bits whichever of a block's
// threads, and whichever of the blocks, go first.
template <class F>
auto in_every_order(F run) {
#ifdef __CUDACC__
  return run();
#else
  emulator::order = emulator::Order::kAscending;
  const auto first = run();
  for (const auto order : {emulator::Order::kDescending, emulator::Order::kShuffled}) {
    emulator::order = order;
    const auto again = run();
    REQUIRE(again.size() == first.size());
    CHECK(memcmp(again.data(), first.data(), first.size() * sizeof(first[0])) == 0);
  }
  emulator::order = emulator::Order::kAscending;
  return first;
#endif
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Numbers in the device's memory, and back.
template <class T>
Array<T> on_device(const std::vector<T>& values) {
  Array<T> array(values.size(), true);
  array.upload(values.data(), values.size());
  return array;
}
template <class T>
std::vector<T> to_host(const Array<T>& array) {
  std::vector<T> values(array.size());
  array.download(values.data(), values.size());
  return values;
}

}  // namespace nanospec
