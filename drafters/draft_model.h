// drafters/draft_model.h: drafters that run a model: a smaller GPT, or the first layers of the target itself.
//
// In order: what they do, and one of parallel.h too: many small forwards over one cache for each tree; `gpt:DIR`;
// `self:K`.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "decode.h"
#include "drafters/logits.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// A pass of drafting

// Runs a model over the nodes of the growing tree that are about to be expanded, and keeps the logits of all of them
// until the pass ends. The model's cache holds, one behind the other:
//   the text up to the root         base_ positions, the root not counted
//   the trunk                       a path of nodes, from the root on
//   the last forward's other rows   until the next one is written over them
// A forward continues the trunk: one that stays on a chain costs one row a node. Nodes on another branch shorten the
// trunk, and what is missing of their path runs again, with them.
// Model: a Target, or what has of one what is called here.
template <class Model>
class ModelDrafter : public LogitsDrafter {
 public:
  // layers: how many of the model's run; 0: all.
  ModelDrafter(Model& model, int layers) : model_(model), layers_(layers) { vocab = model.vocab_size(); }

  // Null where no forward has been: beyond the model's own window, or before it knows anything.
  const float* logits(const Growth& growth, int node) override {
    const int id = find(growth, node);
    return id < 0 ? nullptr : logits_.data() + size_t(id) * vocab;
  }

  // One forward for all of these nodes, and for those above them that no forward has seen.
  void prepare(const Growth& growth, const int* nodes, int n) override {
    if (n > 1 && growth.size() > model_.most_rows()) {  // there may not be room for all at once
      prepare(growth, nodes, n / 2);
      return prepare(growth, nodes + n / 2, n - n / 2);
    }
    const bool fresh = seen_.size() == 0;
    if (fresh) run_root(growth.token[0]);
    const int before = seen_.size();
    for (int k = 0; k < n; k++)
      if (base_ + growth.depth[nodes[k]] < model_.block_size()) enter(growth, nodes[k]);
    if (seen_.size() > before) run_nodes(before);
    else if (!fresh) return;  // all are known: who looks back at a pass must not touch the cache
    model_.rewind(base_);     // as it was; nothing has been written over, so the trunk can be taken up again
  }

 protected:
  // Calls run_text, or start, for the root and what the cache misses of the text before it.
  virtual void run_root(int root) = 0;

  // n tokens of the text that follow those cached; the last one is the root.
  void run_text(const int* tokens, int n) {
    Batch chain;
    chain.add_chain(tokens, n, 0, 0);
    model_.forward(tokens, chain.depth.data(), chain.end.data(), n, layers_), model_passes++;
    base_ += n - 1;
    start(tokens[n - 1], n - 1);
  }
  // The root has been run: as that row of the last forward, cached behind base_ positions.
  void start(int root, int row) {
    seen_.start(root), trunk_ = {0}, row_of_.clear();
    store(0, row);
  }

  // Makes the trunk the path along these tokens from the root on, as far as it is at hand.
  void follow_tokens(const int* tokens, int n) {
    std::vector<int> path;
    for (int id = seen_.size() > 0 ? 0 : -1, i = 0; id >= 0 && i < n; i++) {
      path.push_back(id);
      id = child(id, tokens[i]);
    }
    follow(path);
  }
  // Ends the pass. Its trunk's tokens: they stand in the cache behind base_ positions.
  std::vector<int> end_pass() {
    std::vector<int> tokens;
    for (int id : trunk_) tokens.push_back(seen_.token[id]);
    forget();
    return tokens;
  }
  void forget() { seen_.shrink(0), trunk_.clear(), row_of_.clear(); }

  // For a model whose rows want more than their tokens: the next forward is of rows under these nodes; a row of the
  // last forward was this node's.
  virtual void before(const std::vector<int>& /*above*/) {}
  virtual void after(int /*id*/, int /*row*/) {}

  Model& model_;
  int base_ = 0;

 private:
  // Nodes go by their tokens: the same path of another growth, or of this one pruned and grown again, is the same node.
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

  // Makes the trunk as much of `path` as is cached: what the two share, then what the last forward has of it.
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
    row_of_.clear();  // the gather may have moved others over them
  }

  // A forward of the nodes from `first` on, which are new, and of those above them that are not on the trunk.
  void run_nodes(int first) {
    const int n = seen_.size();
    std::vector<int> under(size_t(n), 0), path;  // how many new nodes stand under a node; what is above them all
    for (int id = first; id < n; id++)
      for (int above = seen_.parent[id]; above >= 0; above = seen_.parent[above]) under[above]++;
    for (int id = 0; id < n; id++)
      if (under[id] == n - first) path.push_back(id);
    follow(path);

    Growth growth;  // under the trunk's end, whose own row is left out
    growth.start(seen_.token[trunk_.back()]);
    std::vector<int> place(size_t(n), 0), ids = {trunk_.back()};
    for (int id = 0; id < n; id++) {
      const bool on_trunk = std::find(trunk_.begin(), trunk_.end(), id) != trunk_.end();
      if (on_trunk || (id < first && under[id] == 0)) continue;
      place[id] = growth.add(place[seen_.parent[id]], {seen_.token[id], 1}), ids.push_back(id);
    }
    flatten(growth, tree_);
    const int rows = tree_.size() - 1;
    for (int row = 1; row <= rows; row++) tree_.depth[row]--, tree_.end[row]--;
    std::vector<int> above;
    for (int row = 1; row <= rows; row++) above.push_back(seen_.parent[ids[tree_.origin[row]]]);
    before(above);
    model_.forward(tree_.token.data() + 1, tree_.depth.data() + 1, tree_.end.data() + 1, rows, layers_), model_passes++;
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

  const int layers_;
  Growth seen_;                // the nodes that a forward has seen in this pass; an id is a place here
  std::vector<float> logits_;  // (ids, V)
  std::vector<int> trunk_;     // ids, the root first
  std::map<int, int> row_of_;  // by id: the last forward's rows, which stand behind the trunk
  Tree tree_;                  // scratch
};

// ---------------------------------------------------------------------------------------------------------------
// A smaller GPT

// `gpt:DIR`. Its cache follows the text as the target's does: the accepted rows stay, what was committed beside them
// runs before the next root. The window is its own, moved by the same rule, when it next drafts. Tokens that are
// supposed stand at the text's end like others; what is cached of them stays for those that begin with the same.
class SmallModel : public ModelDrafter<Target>, public Supposes {
 public:
  explicit SmallModel(std::unique_ptr<Target> model) : ModelDrafter(*model, 0), own_(std::move(model)) {}

  void begin(const int* text, int n) override {
    text_.assign(text, text + n), supposed_ = 0;
    forget(), open();
  }
  void committed(const Commit& commit) override {
    unsuppose();
    go_on(commit.tokens, commit.n);
  }
  bool suppose(const int* tokens, int n) override {
    if (model_.cuda()) return false;  // there the target's work and this would wait for each other
    unsuppose();
    model_.use_pool(false);
    if (n == 0) return true;
    if (window_start(int(text_.size()) + n, model_.block_size()) != start_) return false;  // it would have to come back
    go_on(tokens, n), supposed_ = n;
    return true;
  }
  void unsuppose() override {
    if (supposed_ > 0) settle(), text_.resize(text_.size() - size_t(supposed_)), supposed_ = 0;
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
    start_ = window_start(int(text_.size()), model_.block_size()), base_ = model_.past();
    cached_.assign(text_.begin() + start_, text_.end() - 1);
  }
  void go_on(const int* tokens, int n) {
    follow_tokens(tokens, n), settle();
    text_.insert(text_.end(), tokens, tokens + n);
  }
  // Ends the pass: what it ran of its trunk stays cached.
  void settle() {
    const std::vector<int> trunk = end_pass();
    cached_.insert(cached_.end(), trunk.begin(), trunk.end());
    model_.rewind(int(cached_.size()));
  }

  std::unique_ptr<Target> own_;
  std::vector<int> text_;    // the root at its end
  std::vector<int> cached_;  // tokens of the cached positions: the window's but the root, or what was thought to come
  int start_ = 0;            // of the window that is cached
  int supposed_ = 0;         // tokens at the text's end
};

// ---------------------------------------------------------------------------------------------------------------
// The target's first layers

// `self:K` (as Draft & Verify, Zhang et al. 2023, and LayerSkip, Elhoushi et al. 2024): the first K layers, then the
// final norm and the head. What these layers cached of the text is there already. What drafting writes lies behind it,
// where verification writes the same bits again, so it drafts while the target is at rest: only in prepare().
class FirstLayers : public ModelDrafter<Target> {
 public:
  using ModelDrafter::ModelDrafter;
  void begin(const int*, int) override { forget(); }
  void committed(const Commit&) override { forget(); }

 private:
  void run_root(int root) override {
    base_ = model_.past();
    run_text(&root, 1);
  }
};

}  // namespace nanospec
