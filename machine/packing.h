// machine/packing.h: weights as a matmul reads them: packed into panels.
//
// In order: panels of 8 to 4 bits, filled by blocks; a matrix, packed; one piece of memory for several panels;
// `Weight`, one matrix of a model packed for its products.
#pragma once

#include <type_traits>
#include <vector>

#include "machine/launch.h"

namespace nanospec {

// Fills panels of 8 to 4 bits, a piece of `memory`: each(set) calls set(output, block of k, its numbers) for all
// blocks.
template <class Each>
void set_blocks(Panels<AnyNumber> panels, Array<AnyNumber>& memory, Each each) {
  const size_t at = size_t(panels.data - memory.data());
  Array<AnyNumber> host(panels.cuda ? panels.size() : 0);
  if (panels.cuda) panels.data = host.data();
  panels.visit([&](const auto& to) {
    if constexpr (kIsQuantized<std::remove_reference_t<decltype(*to.data)>>)
      each([&](int output, int b, const IntegerBlock& block) { to.set(output, b, block); });
  });
  if (panels.cuda) memory.upload(host.data(), host.size(), at);
}

// Packs one matrix.
template <class T, class W>
void pack_panels(const Team& team, const Pack<T, W>& op) {
  if constexpr (std::is_same<W, AnyNumber>::value)
    op.to.visit([&](const auto& to) {
      using Its = std::remove_pointer_t<decltype(to.data)>;
      const Pack<T, Its> its{op.from, op.k_stride, op.n_stride, to};
      launch(team, its.rows(), its);
    });
  else if (!tuned(team, op)) launch(team, op.rows(), op);
}

// ---------------------------------------------------------------------------------------------------------------
// The weights of a model

constexpr int kManyCaches = 16;  // panels of more than so many L2 caches come from far away

// Memory for all these panels, side by side in this order: one large piece can use huge pages. Sets where each one
// lies. Behind them is the scratch that they share: one product runs at a time.
template <class W>
Array<W> place_panels(const std::vector<Panels<W>*>& all, bool cuda = false) {
  size_t size = 0, scratch = 0;
  for (Panels<W>* panels : all) {
    panels->cuda = cuda;
    size += panels->size();
    if constexpr (std::is_same<W, AnyNumber>::value) scratch = larger(scratch, panels->scratch_bytes());
  }
  Array<W> memory(size + scratch, cuda);
  W* next = memory.data();
  for (Panels<W>* panels : all) {
    panels->far = size * sizeof(W) > kManyCaches * l2_bytes();
    panels->data = next;
    next += panels->size();
    if constexpr (std::is_same<W, AnyNumber>::value) panels->scratch = scratch ? memory.data() + size : nullptr;
  }
  return memory;
}

// A weight for the matmul: packed for the forward; and, for training, its transpose packed for the backward. pack()
// leaves out panels that have no memory.
template <class T, class W>
struct Weight {
  Panels<W> forward, transposed;
  const T *from = nullptr, *bias = nullptr;  // as they are stored; the bias (out) may be null
  size_t k_stride = 0, n_stride = 0;

  Weight() = default;
  // stored: (in, out); if `out_first` (out, in), as a head is, and the embedding that is also one.
  Weight(const T* stored, int in, int out, bool out_first = false, const T* its_bias = nullptr)
      : from(stored), bias(its_bias), k_stride(out_first ? 1 : size_t(out)), n_stride(out_first ? size_t(in) : 1) {
    forward.k = transposed.n = in;
    forward.n = transposed.k = out;
  }
  // Without panels: both products read the parameters as they are stored.
  void use_stored() {
    if constexpr (std::is_same<T, W>::value) {
      forward.stored = transposed.stored = from;
      forward.k_stride = transposed.n_stride = k_stride;
      forward.n_stride = transposed.k_stride = n_stride;
    }
  }
  void pack(const Team& team) const {
    if (forward.data) pack_panels<T, W>(team, {from, k_stride, n_stride, forward});
    if (transposed.data) pack_panels<T, W>(team, {from, n_stride, k_stride, transposed});
  }
  size_t bytes() const { return forward.size() * sizeof(W); }
};

// Memory for the panels of all these weights: first those of the forward, in this order, then those of the backward,
// the other way round. So behind each lies the one that is read after it.
template <class T, class W>
Array<W> place_weights(const std::vector<Weight<T, W>*>& all, bool training, bool cuda = false) {
  std::vector<Panels<W>*> panels;
  for (Weight<T, W>* weight : all) panels.push_back(&weight->forward);
  for (size_t i = all.size(); training && i-- > 0;) panels.push_back(&all[i]->transposed);
  return place_panels(panels, cuda);
}

}  // namespace nanospec
