// drafters/draft_model.h: drafters that run a model: a smaller GPT, or the first layers of the target itself.
//
// In order: what they share with the sequential form of parallel.h: small forwards over one cache, several for each
// tree; `gpt:DIR`; `self:K`.
#pragma once

#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "decode.h"
#include "drafters/logits.h"
#include "target.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Drafting with a model

// Runs a model over the nodes of the growing tree that are about to be expanded, and keeps the logits of all nodes
// until the iteration ends. The model's cache holds, one behind the other:
//   the text up to the root         base_ positions, the root not counted
//   the trunk                       a path of nodes, from the root on
//   the last forward's other rows   until the next forward overwrites them
// A forward continues the trunk: on a chain it costs one row for each node. Nodes on another branch shorten the trunk,
// and the missing nodes of their path run again, with them.
// Model: a Target, or a class with those functions of a Target that are called here.
template <class Model>
class ModelDrafter : public Drafter {
 public:
  // layers: how many of the model's layers run; 0: all. seat: of the model, where the text's cache is.
  ModelDrafter(Model& model, int layers, int seat = 0) : model_(model), layers_(layers), seat_(seat) {
    vocab = model.vocab_size();
  }

  // Null for nodes that no forward has run: beyond the model's own window, or before it can run.
  const float* logits(const Growth& growth, int node) override {
    const int id = find(growth, node);
    return id < 0 ? nullptr : logits_.data() + size_t(id) * vocab;
  }

  // Runs one forward for all of these nodes, and for those above them that no forward has run.
  void prepare(const Growth& growth, const int* nodes, int n) override {
    model_.sit(seat_);
    if (n > 1 && growth.size() > model_.most_rows()) {  // the model may not have room for all at once
      prepare(growth, nodes, n / 2);
      return prepare(growth, nodes + n / 2, n - n / 2);
    }
    const bool fresh = seen_.size() == 0;
    if (fresh) run_root(growth.token[0]);
    const int before = seen_.size();
    for (int k = 0; k < n; k++)
      if (base_ + growth.depth[nodes[k]] < model_.block_size()) enter(growth, nodes[k]);
    if (seen_.size() > before) run_nodes(before);
    else if (!fresh) return;  // all have been run: a later look at this iteration must not touch the cache
    model_.rewind(base_);     // nothing has been overwritten, so the next forward can continue the trunk
  }

 protected:
  // Calls run_text, or start, for the root and for the text before it that is not cached.
  virtual void run_root(int root) = 0;

  // Runs the n tokens of the text that follow the cached ones; the last one is the root.
  void run_text(const int* tokens, int n) {
    for (const int most = model_.most_rows(); n > most; n -= most, tokens += most, base_ += most) {
      run_chain(tokens, most);
      std::vector<int> all(static_cast<size_t>(most));
      std::iota(all.begin(), all.end(), 0);
      model_.keep(all.data(), most);
    }
    run_chain(tokens, n);
    base_ += n - 1;
    start(tokens[n - 1], n - 1);
  }
  // The root has been run: it is this row of the last forward, cached behind base_ positions.
  void start(int root, int row) {
    seen_.start(root);
    trunk_ = {0};
    row_of_.clear();
    store(0, row);
  }

  // Makes the trunk the path along these tokens from the root on, as far as the nodes have been run.
  void follow_tokens(const int* tokens, int n) {
    std::vector<int> path;
    for (int id = seen_.size() > 0 ? 0 : -1, i = 0; id >= 0 && i < n; i++) {
      path.push_back(id);
      id = child(id, tokens[i]);
    }
    follow(path);
  }
  // Ends the iteration. Returns the tokens of the trunk, which is cached behind base_ positions.
  std::vector<int> end_iteration() {
    std::vector<int> tokens;
    for (int id : trunk_) tokens.push_back(seen_.token[id]);
    forget();
    return tokens;
  }
  void forget() {
    seen_.shrink(0);
    trunk_.clear();
    row_of_.clear();
  }

  // For a model whose rows need more than their tokens. before(): the next forward's rows stand under these nodes.
  // after(): this row of the last forward was this node.
  virtual void before(const std::vector<int>& /*above*/) {}
  virtual void after(int /*id*/, int /*row*/) {}

  Model& model_;
  const int layers_, seat_;
  int base_ = 0;

 private:
  void run_chain(const int* tokens, int n) {
    Batch chain;
    chain.add_chain(tokens, n, 0, 0);
    model_.forward(tokens, chain.depth.data(), chain.end.data(), n, layers_);
    model_forwards++;
  }
  // A node is known by the tokens of its path: in another growth, or in this one grown again, it is the same node.
  int find(const Growth& growth, int node) const {
    if (node == 0) return seen_.size() > 0 ? 0 : -1;
    const int above = find(growth, growth.parent[node]);
    return above < 0 ? -1 : child(above, growth.token[node]);
  }
  int child(int above, int token) const {
    for (int id = above + 1; id < seen_.size(); id++)
      if (seen_.parent[id] == above && seen_.token[id] == token) return id;
    return -1;
  }
  int enter(const Growth& growth, int node) {
    const int id = find(growth, node);
    return id >= 0 ? id : seen_.add(enter(growth, growth.parent[node]), {growth.token[node], 1});
  }

  // Makes the trunk as much of `path` as is cached: what trunk and path share, then rows of the last forward.
  void follow(const std::vector<int>& path) {
    size_t n = 0;
    while (n < trunk_.size() && n < path.size() && trunk_[n] == path[n]) n++;
    model_.rewind(base_ + int(n));
    std::vector<int> rows;
    for (size_t i = n; n == trunk_.size() && i < path.size(); i++) {
      const auto row = row_of_.find(path[i]);
      if (row == row_of_.end()) break;
      rows.push_back(row->second);
    }
    if (!rows.empty()) model_.keep(rows.data(), int(rows.size()));
    trunk_.assign(path.begin(), path.begin() + long(n + rows.size()));
    row_of_.clear();  // the gather may have overwritten them
  }

  // Runs a forward of the nodes from `first` on, which are new, and of those above them that are not on the trunk.
  void run_nodes(int first) {
    const int n = seen_.size();
    std::vector<int> under(size_t(n), 0), path;  // how many new nodes stand under a node; the ancestors of all of them
    for (int id = first; id < n; id++)
      for (int above = seen_.parent[id]; above >= 0; above = seen_.parent[above]) under[above]++;
    for (int id = 0; id < n; id++)
      if (under[id] == n - first) path.push_back(id);
    follow(path);

    Growth growth;  // the rows to run, under the trunk's last node, which is not run
    growth.start(seen_.token[trunk_.back()]);
    std::vector<int> place(size_t(n), 0), ids = {trunk_.back()};
    for (int id = 0; id < n; id++) {
      const bool on_trunk = std::find(trunk_.begin(), trunk_.end(), id) != trunk_.end();
      if (on_trunk || (id < first && under[id] == 0)) continue;
      place[id] = growth.add(place[seen_.parent[id]], {seen_.token[id], 1});
      ids.push_back(id);
    }
    flatten(growth, tree_);
    const int rows = tree_.size() - 1;
    std::vector<int> above;
    for (int row = 1; row <= rows; row++) {
      tree_.depth[row]--;
      tree_.end[row]--;
      above.push_back(seen_.parent[ids[tree_.origin[row]]]);
    }
    before(above);
    model_.forward(tree_.token.data() + 1, tree_.depth.data() + 1, tree_.end.data() + 1, rows, layers_);
    model_forwards++;
    for (int row = 0; row < rows; row++) {
      const int id = ids[tree_.origin[row + 1]];
      row_of_[id] = row;
      if (id >= first) store(id, row);
    }
  }
  void store(int id, int row) {
    logits_.resize(std::max(logits_.size(), size_t(seen_.size()) * vocab));
    std::copy_n(model_.logits(row), vocab, logits_.begin() + long(id) * vocab);
    after(id, row);
  }

  Growth seen_;                // the nodes that a forward of this iteration has run; an id is an index here
  std::vector<float> logits_;  // (ids, V)
  std::vector<int> trunk_;     // ids, the root first
  std::map<int, int> row_of_;  // by id: the last forward's rows, which are cached behind the trunk
  Tree tree_;                  // scratch
};

// ---------------------------------------------------------------------------------------------------------------
// A smaller GPT

// `gpt:DIR`. Its cache follows the text as the target's does: rows that were accepted stay, and other committed tokens
// run before the next root. It has its own window, which slides by the same rule, when it next drafts. Assumed tokens
// stand at the text's end like others. Their rows stay cached, for assumptions that begin with the same tokens.
class SmallModel : public ModelDrafter<Target>, public DraftsAhead {
 public:
  explicit SmallModel(std::shared_ptr<Target> model, int its_seat = 0)
      : ModelDrafter(*model, 0, its_seat), own_(std::move(model)) {}
  std::unique_ptr<Drafter> another(int seat) const override {
    auto its = std::make_unique<SmallModel>(own_, seat);
    its->name = name;
    return its;
  }

  void begin(const int* text, int n) override {
    model_.sit(seat_);
    text_.assign(text, text + n);
    assumed_ = 0;
    forget();
    open();
  }
  void committed(const Commit& commit) override {
    model_.sit(seat_);
    rollback();
    go_on(commit.tokens, commit.n);
  }
  bool assume(const int* tokens, int n) override {
    if (model_.cuda()) return false;  // there the two models would wait for each other
    rollback();
    model_.use_pool(false);
    if (n == 0) return true;
    if (window_start(int(text_.size()) + n, model_.block_size()) != start_) return false;  // it could not slide back
    go_on(tokens, n);
    assumed_ = n;
    return true;
  }
  void rollback() override {
    if (assumed_ > 0) settle();
    text_.resize(text_.size() - size_t(assumed_));
    assumed_ = 0;
    model_.use_pool(true);
  }

 private:
  void run_root(int) override {
    if (window_start(int(text_.size()), model_.block_size()) != start_) open();
    const int *const window = text_.data() + start_, n = int(text_.size()) - start_;
    base_ = 0;
    while (base_ < n - 1 && base_ < int(cached_.size()) && cached_[size_t(base_)] == window[base_]) base_++;
    model_.rewind(base_);
    run_text(window + base_, n - base_);
    cached_.assign(window, window + n - 1);
  }
  void open() {
    open_window(model_, text_);
    start_ = window_start(int(text_.size()), model_.block_size());
    base_ = model_.past();
    cached_.assign(text_.begin() + start_, text_.end() - 1);
  }
  void go_on(const int* tokens, int n) {
    follow_tokens(tokens, n);
    settle();
    text_.insert(text_.end(), tokens, tokens + n);
  }
  // Ends the iteration: its trunk stays cached.
  void settle() {
    const std::vector<int> trunk = end_iteration();
    cached_.insert(cached_.end(), trunk.begin(), trunk.end());
    model_.rewind(int(cached_.size()));
  }

  std::shared_ptr<Target> own_;  // which has a seat for each text
  std::vector<int> text_;        // with the root at its end
  std::vector<int> cached_;      // tokens of the cached positions: the window's without the root, or assumed ones
  int start_ = 0;                // where the cached window begins
  int assumed_ = 0;              // how many tokens at the text's end are assumed
};

// ---------------------------------------------------------------------------------------------------------------
// The target's first layers

// `self:K` (as Draft & Verify, Zhang et al. 2023, and LayerSkip, Elhoushi et al. 2024): the first K layers, then the
// final norm and the head. These layers have already cached the text. Drafting writes behind it, where verification
// writes the same bits again. So it must draft while the target does not run: only in prepare().
class FirstLayers : public ModelDrafter<Target> {
 public:
  using ModelDrafter::ModelDrafter;
  std::unique_ptr<Drafter> another(int its_seat) const override {
    auto its = std::make_unique<FirstLayers>(model_, layers_, its_seat);
    its->name = name;
    return its;
  }
  void begin(const int*, int) override { forget(); }
  void committed(const Commit&) override { forget(); }

 private:
  void run_root(int root) override {
    base_ = model_.past();
    run_text(&root, 1);
  }
};

}  // namespace nanospec
