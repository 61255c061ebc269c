// cuda/whole.h: a target that runs whole iterations by itself, as a GPU does: forward, picks, walk and gather in one.
//
// It is plain C++: the graph that is replayed lies in iteration.cuh, behind the target. In order: whether a target is
// one; the runner; a drafter that is the target itself. Such a target has, beside what decode.h lists:
//   bool iterates();  whether it does
//   Verdict iterate(const Tree& tree, const Sampling& sampling, int64_t index);
//     forward, the verdict of rule match on it for a tree whose root's children stand at place `index` of the text, and
//     keep() of the verdict's rows, as one
//   bool hold(const Table& table, int depth, int width);
//     whether it can draft full trees of that size from a bigram's table; makes it ready
//   Verdict iterate_drafting(int root, int depth, int width, float sharpness, const Sampling& sampling, int64_t index,
//                            std::vector<Candidate>& drafted);
//     the same as iterate, of the full tree that it drafts under `root`; drafted: its nodes, in the order of growth
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

// Runs whole iterations. What the device has drafted is run already.
template <class Target>
struct Whole : Runner {
  Target& target;
  const Sampling& sampling;
  Verdict verdict;      // of the last iteration
  int64_t ran_at = -1;  // the place that was drafted for on the device, and so has been run
  Whole(Target& its, const Sampling& s) : Runner(its.block_size(), its.vocab_size()), target(its), sampling(s) {}

  void open(const std::vector<int>& text) override { open_window(target, text); }
  void forward(const Tree& tree, int64_t index) override {
    if (ran_at != index) verdict = target.iterate(tree, sampling, index);
  }
  Verdict verify(const Growth&, const Tree&, int64_t) override { return verdict; }
  void keep(const Verdict&) override {}  // it has kept them
};

// A bigram that drafts full trees on the device, with the same chances. When it is first asked in a forward, all of
// that forward runs: it then tells candidates out of what the device has drafted.
template <class Target>
struct DeviceDrafter : Drafter {
  Whole<Target>& runner;
  const int depth, width;  // of the full trees
  const int64_t end;       // tokens that the text is to have
  DeviceDrafter(Whole<Target>& its, int levels, int children, int64_t text_end)
      : runner(its), depth(levels), width(children), end(text_end) {}

  void expand(const Growth& growth, const int*, int n, int each, const Draws& draws, Candidate* candidates,
              int* count) override {
    if (runner.ran_at != draws.index) {
      const int levels = std::min(depth, room_at(draws.index, end, runner.block_size));
      const bool noise = runner.sampling.temperature > 0;
      runner.verdict = runner.target.iterate_drafting(growth.token[0], levels, width, sharpness(runner.sampling, noise),
                                                      runner.sampling, draws.index, drafted_);
      runner.ran_at = draws.index, taken_ = 0;
    }
    std::copy_n(drafted_.begin() + long(taken_), n * each, candidates);
    std::fill_n(count, n, each), taken_ += size_t(n) * size_t(each);
  }

 private:
  std::vector<Candidate> drafted_;
  size_t taken_ = 0;  // of these
};

}  // namespace nanospec
