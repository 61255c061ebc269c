// drafters/draft_model.h: drafters that run a model: a smaller GPT, or the first layers of the target itself.
//
// In order: what they share with the sequential form of parallel.h: small forwards over one cache, several for each
// tree; `gpt:DIR`; `self:K`.
#pragma once

#include <map>

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
    const int id = seen_.find(growth, node);
    return id < 0 ? nullptr : logits_.data() + size_t(id) * vocab;
  }

  void prepare(const Growth& growth, const int* nodes, int n) override {
    prepare_all({{this, &growth, {nodes, nodes + n}}});
  }
  // Runs one forward for all of these nodes, and for those above them that no forward has run. Before it, where an
  // iteration begins, one for the roots.
  bool prepare_all(const std::vector<Expansion>& all) override {
    std::vector<ModelDrafter*> run;  // those whose rows the next forward has
    for (const Expansion& e : all) {
      ModelDrafter& its = *static_cast<ModelDrafter*>(e.drafter);
      if (its.seen_.size() > 0) continue;
      its.model_.sit(its.seat_);
      its.run_root(e.growth->token[0]);
      run.push_back(&its);
    }
    run_together(run);
    for (size_t part = 0, parts = 1; part < parts; part++) {
      for (const Expansion& e : all) {
        const bool all_at_once = e.growth->size() <= model_.most_rows();  // else there may not be room for all
        const size_t n = all_at_once ? 1 : e.nodes.size();
        ModelDrafter& its = *static_cast<ModelDrafter*>(e.drafter);
        its.model_.sit(its.seat_);
        if (part < n && its.place_nodes(*e.growth, e.nodes.data() + part, all_at_once ? int(e.nodes.size()) : 1))
          run.push_back(&its);
        parts = std::max(parts, n);
      }
      run_together(run);
    }
    return true;
  }

 protected:
  // Calls run_text, or start, for the root and for the text before it that is not cached.
  virtual void run_root(int root) = 0;

  // The n tokens of the text that follow the cached ones are to run; the last one is the root.
  void run_text(const int* tokens, int n) {
    for (const int most = model_.most_rows(); n > most; n -= most, tokens += most, base_ += most) {
      place_text(tokens, most);
      model_.clear_rows();
      add_rows();
      model_.run_rows(most, layers_);
      model_.keep(numbers_to(most).data(), most);
    }
    place_text(tokens, n);
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
      id = seen_.child(id, tokens[i]);
    }
    follow(path);
  }
  // Ends the iteration. Appends the tokens of the trunk, which is cached behind base_ positions.
  void end_iteration(std::vector<int>& tokens) {
    for (int id : trunk_) tokens.push_back(seen_.token[id]);
    forget();
  }
  void forget() {
    seen_.shrink(0);
    trunk_.clear();
    row_of_.clear();
  }

  // For a model whose rows need more than their tokens. before(): the text's rows of the next forward stand under these
  // nodes. after(): this row of the last forward was this node.
  virtual void before(const std::vector<int>& /*above*/) {}
  virtual void after(int /*id*/, int /*row*/) {}

  Model& model_;
  const int layers_, seat_;
  int base_ = 0;

 private:
  // The text's rows of the next forward: a part of the text or, with ids, nodes.
  struct Placed {
    Batch rows;
    std::vector<int> ids, above;  // (rows) the nodes, and those that they stand under
    int first_new;                // the first id that no forward has run
  };
  // Runs what they have placed in one forward.
  static void run_together(std::vector<ModelDrafter*>& all) {
    int rows = 0;
    if (!all.empty()) all[0]->model_.clear_rows();
    for (ModelDrafter* its : all) rows += its->add_rows();
    if (rows > 0) all[0]->model_.run_rows(rows, all[0]->layers_);
    for (ModelDrafter* its : all) its->take_rows();
    all.clear();
  }
  int add_rows() {
    const Batch& rows = placed_.rows;
    model_.sit(seat_);
    if (rows.rows() > 0) model_.add_tree(rows.token.data(), rows.depth.data(), rows.end.data(), rows.rows());
    before(placed_.above);
    return rows.rows();
  }
  void take_rows() {
    model_.sit(seat_);
    const Placed its = std::exchange(placed_, {});
    const int n = its.rows.rows();
    if (n > 0 && its.ids.empty()) {  // the text, and the root at its end
      base_ += n - 1;
      start(its.rows.token.back(), n - 1);
    }
    for (int row = 0; row < int(its.ids.size()); row++) {
      const int id = its.ids[size_t(row)];
      row_of_[id] = row;
      if (id >= its.first_new) store(id, row);
    }
    model_.rewind(base_);  // nothing has been overwritten, so the next forward can continue the trunk
  }
  void place_text(const int* tokens, int n) {
    placed_ = {};
    placed_.rows.add_chain(tokens, n, 0, 0);
  }
  // Makes the trunk as much of `path` as is cached: what trunk and path share, then rows of the last forward.
  void follow(const std::vector<int>& path) {
    const auto apart = std::mismatch(trunk_.begin(), trunk_.end(), path.begin(), path.end()).first;
    const size_t n = size_t(apart - trunk_.begin());
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

  // Places those of these nodes that are new, and those above them that are not on the trunk. Returns whether there are
  // any: if not, a later look at this iteration must not touch the cache.
  bool place_nodes(const Growth& growth, const int* nodes, int count) {
    const int first = seen_.size();
    for (int k = 0; k < count; k++)
      if (first > 0 && base_ + growth.depth[nodes[k]] < model_.block_size()) seen_.enter(growth, nodes[k]);
    const int n = seen_.size();
    if (n == first) return false;
    std::vector<int> under(size_t(n), 0), path;  // how many new nodes stand under a node; the ancestors of all of them
    for (int id = first; id < n; id++)
      for (int above = seen_.parent[id]; above >= 0; above = seen_.parent[above]) under[above]++;
    for (int id = 0; id < n; id++)
      if (under[id] == n - first) path.push_back(id);
    follow(path);

    Growth rows;  // to run, under the trunk's last node, which is not run
    rows.start(seen_.token[trunk_.back()]);
    std::vector<int> place(size_t(n), 0), ids = {trunk_.back()};
    for (int id = 0; id < n; id++) {
      const bool on_trunk = std::find(trunk_.begin(), trunk_.end(), id) != trunk_.end();
      if (on_trunk || (id < first && under[id] == 0)) continue;
      place[id] = rows.add(place[seen_.parent[id]], {seen_.token[id], 1});
      ids.push_back(id);
    }
    flatten(rows, tree_);
    placed_ = {{}, {}, {}, first};
    for (int row = 1; row < tree_.size(); row++) {
      tree_.depth[row]--;
      tree_.end[row]--;
      placed_.ids.push_back(ids[tree_.origin[row]]);
      placed_.above.push_back(seen_.parent[placed_.ids.back()]);
    }
    placed_.rows.add_tree(tree_.token.data() + 1, tree_.depth.data() + 1, tree_.end.data() + 1, tree_.size() - 1, 0, 0);
    return true;
  }
  void store(int id, int row) {
    logits_.resize(std::max(logits_.size(), size_t(seen_.size()) * vocab));
    std::copy_n(model_.logits(row), vocab, logits_.begin() + long(id) * vocab);
    after(id, row);
  }

  SeenNodes seen_;             // the nodes that a forward of this iteration has run; an id is an index here
  std::vector<float> logits_;  // (ids, V)
  std::vector<int> trunk_;     // ids, the root first
  std::map<int, int> row_of_;  // by id: the last forward's rows, which are cached behind the trunk
  Placed placed_;
  Tree tree_;  // scratch
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
  std::unique_ptr<Drafter> another(int seat) const override { return named<SmallModel>(name, own_, seat); }

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
  }

 private:
  void run_root(int) override {
    if (window_start(int(text_.size()), model_.block_size()) != start_) open();
    const int *const window = text_.data() + start_, n = int(text_.size()) - start_;
    base_ = int(std::mismatch(window, window + std::min(n - 1, int(cached_.size())), cached_.begin()).first - window);
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
    end_iteration(cached_);
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
  std::unique_ptr<Drafter> another(int seat) const override { return named<FirstLayers>(name, model_, layers_, seat); }
  void begin(const int*, int) override { forget(); }
  void committed(const Commit&) override { forget(); }

 private:
  void run_root(int root) override {
    base_ = model_.past();
    run_text(&root, 1);
  }
};

}  // namespace nanospec
