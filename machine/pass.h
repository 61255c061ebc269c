// machine/pass.h: the rows that go through the model together, on the host and in the memory of the device.
//
// In order: `Pass`, which a caller fills; `DevicePass`, which an operation reads (Forest says how).
#pragma once

#include <algorithm>
#include <vector>

#include "machine/launch.h"

namespace nanospec {

// Rows in preorder, root after root; see Forest. `target` is for training.
struct Pass {
  std::vector<int> token, target, end, depth, root, first_row{0}, first_slot, past;
  int rows() const { return int(token.size()); }
  int roots() const { return int(past.size()); }
  void clear() {  // keeps the memory
    for (auto* list : {&token, &target, &end, &depth, &root, &first_slot, &past}) list->clear();
    first_row.resize(1);
  }

  // Adds a root whose rows form a tree: depths and subtree ends count from the tree's own first row.
  void add_tree(const int* tokens, const int* depths, const int* ends, int n, int slot, int keys_before) {
    const int at = rows();
    for (int i = 0; i < n; i++) {
      token.push_back(tokens[i]);
      depth.push_back(depths[i]);
      end.push_back(at + ends[i]);
      root.push_back(roots());
    }
    first_row.push_back(at + n);
    first_slot.push_back(slot);
    past.push_back(keys_before);
  }
  // Adds a root whose rows form a sequence: the tree with one branch.
  void add_chain(const int* tokens, int n, int slot, int keys_before) {
    std::vector<int> depths(n), ends(n, n);
    for (int i = 0; i < n; i++) depths[i] = i;
    add_tree(tokens, depths.data(), ends.data(), n, slot, keys_before);
  }
  int most_keys() const {
    int most = 0;
    for (int r = 0; r < roots(); r++) most = std::max(most, past[r] + first_row[r + 1] - first_row[r]);
    return most;
  }
};

// A pass in the memory of the device, in arrays of fixed capacity.
class DevicePass {
 public:
  DevicePass() = default;
  DevicePass(int rows, int roots, bool cuda)
      : rows_(rows),
        roots_(roots),
        ints_(size_t(5) * rows + 3 * roots + 1, cuda),
        host_(cuda ? ints_.size() : 0),
        token_(ints_.data()) {}
  // Rows that lie elsewhere in the device's memory.
  DevicePass(const int* tokens, const Forest& where) : forest(where), token_(tokens) {}

  void upload(const Pass& pass) {
    int* at[] = {ints_.data(), target(), end(), depth(), root(), first_row(), first_slot(), past()};
    const std::vector<int>* from[] = {&pass.token, &pass.target,    &pass.end,        &pass.depth,
                                      &pass.root,  &pass.first_row, &pass.first_slot, &pass.past};
    int* const to = host_.empty() ? ints_.data() : host_.data();
    for (int i = 0; i < 8; i++) std::copy(from[i]->begin(), from[i]->end(), to + (at[i] - ints_.data()));
    ints_.upload(host_.data(), host_.size());  // one copy for all: each costs microseconds
    forest = Forest{pass.rows(), pass.roots(), end(), depth(), root(), first_row(), first_slot(), past()};
  }
  const int* token() const { return token_; }
  int* target() const { return ints_.data() + rows_; }

  Forest forest;

 private:
  int* end() const { return ints_.data() + 2 * size_t(rows_); }
  int* depth() const { return ints_.data() + 3 * size_t(rows_); }
  int* root() const { return ints_.data() + 4 * size_t(rows_); }
  int* first_row() const { return ints_.data() + 5 * size_t(rows_); }
  int* first_slot() const { return first_row() + roots_ + 1; }
  int* past() const { return first_slot() + roots_; }

  int rows_ = 0, roots_ = 0;
  Array<int> ints_;
  std::vector<int> host_;  // what a GPU's are copied from; none on a CPU
  const int* token_ = nullptr;
};

}  // namespace nanospec
