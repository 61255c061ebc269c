// rows.h: the rows of one forward: which token each has, and which rows and keys it sees.
//
// In order: a Batch, which is made on the host root after root; a DeviceBatch, where the forward reads it (Forest,
// kernels.cuh). To decode, a batch is one tree with a past, or one for each text; to train, chains without a past.
#pragma once

#include <algorithm>
#include <vector>

#include "machine/launch.h"

namespace nanospec {

// The rows of one forward in preorder, root after root: see Forest. `target` is for training.
struct Batch {
  std::vector<int> token, target, end, depth, root, first_row{0}, first_slot, past;
  int rows() const { return int(token.size()); }
  int roots() const { return int(past.size()); }
  void clear() {  // keeps the memory
    for (auto* list : {&token, &target, &end, &depth, &root, &first_slot, &past}) list->clear();
    first_row = {0};
  }

  // Adds a root whose rows are a tree. Depths and ends count from the tree's first row.
  void add_tree(const int* tokens, const int* depths, const int* ends, int n, int slot, int keys_before) {
    const int at = rows();
    token.insert(token.end(), tokens, tokens + n);
    depth.insert(depth.end(), depths, depths + n);
    root.insert(root.end(), size_t(n), roots());
    for (int i = 0; i < n; i++) end.push_back(at + ends[i]);
    first_row.push_back(at + n);
    first_slot.push_back(slot);
    past.push_back(keys_before);
  }
  // Adds a root whose rows are a sequence: a tree with one branch.
  void add_chain(const int* tokens, int n, int slot, int keys_before) {
    std::vector<int> depths(n), ends(n, n);
    for (int i = 0; i < n; i++) depths[i] = i;
    add_tree(tokens, depths.data(), ends.data(), n, slot, keys_before);
  }
  // The roots first .. last - 1 as a batch of their own, with slots from 0 on.
  Batch part(int first, int last) const {
    Batch some;
    for (int r = first; r < last; r++) {
      const int at = first_row[r], n = first_row[r + 1] - at;
      std::vector<int> ends(end.begin() + at, end.begin() + at + n);
      for (int& its : ends) its -= at;
      some.add_tree(token.data() + at, depth.data() + at, ends.data(), n, first_slot[r] - first_slot[first], past[r]);
      if (!target.empty()) some.target.insert(some.target.end(), target.begin() + at, target.begin() + at + n);
    }
    return some;
  }
  // How many slots its caches take together.
  int slots() const {
    int most = 0;
    for (int r = 0; r < roots(); r++)
      most = std::max(most, first_slot[r] + pad64(past[r] + first_row[r + 1] - first_row[r]));
    return most;
  }
};

// A batch in the memory of the device, in arrays of fixed capacity.
class DeviceBatch {
 public:
  DeviceBatch() = default;
  DeviceBatch(int rows, int roots, bool cuda)
      : rows_(rows),
        roots_(roots),
        ints_(size_t(5) * rows + 3 * roots + 1, cuda),
        host_(cuda ? ints_.size() : 0),
        token_(ints_.data()) {}
  // A batch whose arrays are somebody else's, in the device's memory.
  DeviceBatch(const int* tokens, const Forest& where) : forest(where), token_(tokens) {}

  void upload(const Batch& batch) {
    const std::vector<int>* from[] = {&batch.token, &batch.target,    &batch.end,        &batch.depth,
                                      &batch.root,  &batch.first_row, &batch.first_slot, &batch.past};
    int* const to = host_.empty() ? ints_.data() : host_.data();
    for (int i = 0; i < 8; i++) std::copy(from[i]->begin(), from[i]->end(), to + place(i));
    ints_.upload(host_.data(), host_.size());  // one copy for all arrays: a copy costs microseconds
    forest = {batch.rows(), batch.roots(), at(2), at(3), at(4), at(5), at(6), at(7)};
  }
  bool holds(const Batch& batch) const { return batch.rows() <= rows_ && batch.roots() <= roots_; }
  const int* token() const { return token_; }
  int* target() const { return at(1); }

  Forest forest;

 private:
  // Where the i-th of its arrays begins: those of upload(), of which the first five are of rows.
  size_t place(int i) const { return size_t(smaller(i, 5)) * rows_ + size_t(larger(i - 5, 0)) * roots_ + (i > 5); }
  int* at(int i) const { return ints_.data() + place(i); }

  int rows_ = 0, roots_ = 0;
  Array<int> ints_;
  std::vector<int> host_;  // the host's copy for a GPU; empty on a CPU
  const int* token_ = nullptr;
};

}  // namespace nanospec
