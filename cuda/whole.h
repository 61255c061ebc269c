// cuda/whole.h: targets that run whole iterations, as a GPU does: forward, picks, walk and gather in one call.
//
// This is plain C++: the graph is in iteration.cuh, behind the target. In order: whether a target is of this kind; the
// runner; the drafter that lets the target draft. Such a target has the functions that decode.h lists, and these:
//   bool iterates();  whether it runs whole iterations
//   Verdict iterate(const Tree& tree, const Sampling& sampling, int64_t index);
//     one iteration: forward, the verdict of the rule `match`, and keep() of the verdict's rows. index: the index in
//     the text of the root's children
//   bool load_table(const Table& table, int depth, int width);
//     whether it can draft full trees of that size from a bigram's table; uploads the table
//   Verdict iterate_drafting(int root, int depth, int width, float sharpness, const Sampling& sampling, int64_t index,
//                            std::vector<Candidate>& drafted);
//     the same as iterate(), for the full tree that it drafts under `root`; drafted: its nodes, in the order of growth
#pragma once

#include <memory>
#include <type_traits>
#include <vector>

#include "decode.h"

namespace nanospec {

using Table = std::shared_ptr<const std::vector<float>>;  // (V, V) a bigram's

template <class Target, class = void>
struct Iterates : std::false_type {};
template <class Target>
struct Iterates<Target, std::void_t<decltype(&Target::iterates)>> : std::true_type {};

template <class Target>
bool iterates(const Target& target) {
  if constexpr (Iterates<Target>::value) return target.iterates();
  else return false;
}

// Runs whole iterations. If the device has drafted the tree, it has run it too.
template <class Target>
struct Whole : Runner {
  Target& target;
  Verdict verdict;      // of the last iteration
  int64_t ran_at = -1;  // the index of the last iteration that the device drafted, and so has run
  explicit Whole(Target& its) : Runner(its.block_size(), its.vocab_size()), target(its) {}

  void open(Sequence& text) override { open_window(target, text.tokens); }
  void forward(const std::vector<Sequence*>& texts) override {
    for (const Sequence* text : texts)  // one, or none
      if (ran_at != text->draws.index) verdict = target.iterate(text->tree, *text->draws.sampling, text->draws.index);
  }
  Verdict verify(Sequence&) override { return verdict; }
  void keep(Sequence&, const Verdict&) override {}  // the iteration has kept them
};

// A bigram that drafts full trees on the device, with the same chances as on the host. At the first question of an
// iteration the device runs the whole iteration; the candidates are then read from what it has drafted.
template <class Target>
struct DeviceDrafter : Drafter {
  Whole<Target>& runner;
  const int depth, width;  // of the full trees
  const int64_t end;       // how many tokens the text will have
  DeviceDrafter(Whole<Target>& its, int levels, int children, int64_t text_end)
      : runner(its), depth(levels), width(children), end(text_end) {}

  const float* logits(const Growth&, int) override { return nullptr; }  // they stay on the device
  void expand(const Growth& growth, const int*, int n, int each, const Draws& draws, Candidate* candidates,
              int* count) override {
    if (runner.ran_at != draws.index) {
      const int levels = std::min(depth, room_at(draws.index, end, runner.block_size));
      const bool noise = draws.sampling->temperature > 0;
      runner.verdict = runner.target.iterate_drafting(growth.token[0], levels, width, sharpness(*draws.sampling, noise),
                                                      *draws.sampling, draws.index, drafted_);
      runner.ran_at = draws.index;
      taken_ = 0;
    }
    std::copy_n(drafted_.begin() + long(taken_), n * each, candidates);
    std::fill_n(count, n, each);
    taken_ += size_t(n) * size_t(each);
  }

 private:
  std::vector<Candidate> drafted_;
  size_t taken_ = 0;  // how many of these have been read
};

}  // namespace nanospec
