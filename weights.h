// weights.h: a model's weights on their way from where they come from into memory, for decoding.
//
// In order: the source; where each tensor goes; load_weights(). Each matrix is packed before the next one is read. So
// memory holds but one of them as it is stored. The file knows no file formats: files/ makes sources.
#pragma once

#include <functional>
#include <utility>

#include "model.h"

namespace nanospec {

// Where a model's weights come from: read() writes one tensor of the table to host memory. type() says how the source
// stores it; of 8 to 4 bits blocks() gives every output's blocks of k as they are. A pointer stands for the flat array
// of all.
struct TensorSource {
  using SetBlock = std::function<void(int output, int b, const IntegerBlock& block)>;
  std::function<void(const TensorSpec& spec, float* to)> read;
  std::function<Dtype(const TensorSpec& spec)> type = [](const TensorSpec&) { return Dtype::fp32; };
  std::function<void(const TensorSpec& spec, const SetBlock& set)> blocks;
  TensorSource() = default;
  TensorSource(const float* flat)
      : read([flat](const TensorSpec& spec, float* to) { std::copy_n(flat + spec.offset, spec.size, to); }) {}
};

// Where one tensor of the table goes: it stays as it is, or is packed.
template <class W>
struct Destination {
  TensorSpec spec;
  Dtype type;                          // how it is held: as the user or the source says
  bool in_blocks;                      // whether the source has the panels' own blocks
  float* kept = nullptr;               // in Weights::stored: norms, biases, wpe, and wte where it is not quantized
  Weight<float, W>* packed = nullptr;  // or the matrix whose panels it becomes

  bool stays() const {
    return !spec.decay || spec.name == "wpe.weight" || (spec.name == "wte.weight" && !is_quantized(type));
  }
};

// Brings tensors to their places one at a time, by way of memory for the largest of them.
template <class W>
struct Passage {
  Pool& pool;
  std::vector<float> host;
  Array<float> device;  // on a GPU: what is packed there
  Passage(Pool& its, size_t largest) : pool(its), host(largest), device(its.cuda() ? largest : 0, its.cuda()) {}

  void bring(const Destination<W>& one, const TensorSource& source, Weights<float, W>& w) {
    if (one.packed && one.in_blocks)
      return set_blocks(one.packed->forward, w.memory,
                        [&](const TensorSource::SetBlock& set) { source.blocks(one.spec, set); });
    source.read(one.spec, one.kept && !pool.cuda() ? one.kept : host.data());
    if (one.kept && pool.cuda()) w.stored.upload(host.data(), one.spec.size, size_t(one.kept - w.stored.data()));
    if (one.kept) return;
    if (pool.cuda()) device.upload(host.data(), one.spec.size);
    pack(*one.packed, pool.cuda() ? device.data() : host.data());
  }
  void pack(Weight<float, W>& weight, const float* from) {
    weight.from = from;
    pool.run([&](const Team& team) { weight.pack(team); });
  }
};

// The weights of a model that decodes, held as numbers of that type (as_stored: as the source stores each). Throws
// std::bad_alloc, std::runtime_error for the GPU, and what the source throws.
template <class W>
Weights<float, W> load_weights(const Config& c, const TensorSource& source, Dtype dtype, Pool& pool) {
  const bool cuda = pool.cuda();
  Weights<float, W> w;
  std::vector<Destination<W>> all;
  for (const TensorSpec& spec : tensor_table(c)) {
    const Dtype stored = source.type(spec), type = dtype == Dtype::as_stored ? stored : dtype;
    all.push_back({spec, type, is_quantized(type) && stored == type});
  }
  const bool packs_wte = !all[0].stays();

  // What stays: one array, into which w.tensors points.
  size_t stay = 0, largest = 0;
  for (const auto& one : all) {
    if (one.stays()) stay += one.spec.size;
    if (one.stays() ? cuda : !one.in_blocks) largest = std::max(largest, one.spec.size);
  }
  w.stored = Array<float>(stay, cuda);
  auto next = all.begin();
  float* place = w.stored.data();
  w.tensors.each(c, [&](const std::string&, const std::vector<int>&, float, const float*& tensor) {
    if (next->stays()) next->kept = std::exchange(place, place + next->spec.size);
    tensor = next++->kept;
  });

  // What is packed: in the order of the table, in which an embedding comes first and a head of its own last.
  std::vector<Weight<float, W>*> matrices = w.list(c, cuda), in_table = matrices;
  Weight<float, W> wte{nullptr, c.n_embd, c.vocab_size, true};
  if (c.tied) in_table.pop_back();
  if (packs_wte) in_table.insert(in_table.begin(), c.tied ? &w.head : &wte);
  if (packs_wte && !c.tied) matrices.push_back(&wte);
  auto matrix = in_table.begin();
  for (auto& one : all)
    if (!one.stays()) {
      one.packed = *matrix++;
      one.packed->forward.dtype = one.type;
    }
  if (c.tied) w.head.forward.dtype = all[0].type;
  w.memory = place_weights(matrices, false, cuda);
  if (packs_wte) w.symbols = (c.tied ? w.head : wte).forward;

  Passage<W> passage(pool, largest);
  for (const auto& one : all) passage.bring(one, source, w);
  if (c.tied && !packs_wte) passage.pack(w.head, w.tensors.wte);
  return w;
}

#ifdef INSTANTIATE  // machine/library.cpp
INSTANTIATE Weights<float, AnyNumber> load_weights(const Config&, const TensorSource&, Dtype, Pool&);
#endif

}  // namespace nanospec
