// drafters/hydra.h: heads that see the path: every node of a tree has a state, made of its parent's state and of its
// own token (Hydra, Ankner et al. 2024).
//
// In order: the table of their tensors; their weights and forward; the heads that all texts share; the drafter. Their
// file is in files/heads.h, their training in training/train_hydra.h. h_1, h_2, h_3 are what an early, a middle and the
// last layer of the target left at the position whose pick is the root; e is the target's embedding of a node's token;
// n(x) is x over its root mean square:
//   above the root  s = F [n(h_1); n(h_2); n(h_3)]
//   a node          s = p + SiLU(W [n(p); n(e)] + b), p the state above it
//   its guesses     logits = P D n(s)
// A guess is one of N tokens, those that the target says most often, or "another token", which is never drafted. So no
// draft goes through a whole vocabulary (FR-Spec, Zhao et al. 2025).
//
// Medusa's heads (Cai et al. 2024) that learn from what a model said are these without the path: head k has a step of
// its own, W_k and b_k, from the state above the root and the root's token to the state that guesses the token k behind
// the root. All nodes of a depth have the same guesses.
#pragma once

#include "drafters/features.h"
#include "drafters/logits.h"
#include "drafters/operations.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The table of their tensors

struct HydraSizes {
  int n_embd = 0;  // C, of the target
  int width = 0;   // S, of a state
  int tokens = 0;  // N
  int heads = 0;   // K of Medusa, each with a step of its own; 0: one step, which sees the path
  int steps() const { return std::max(1, heads); }
  int classes() const { return tokens + 1; }
  int features() const { return kFeatures * n_embd; }
  int inputs() const { return width + n_embd; }
};

// The tensors of one flat array (weights, or gradients), by name.
template <class T>
struct HydraTensors {
  T *features = nullptr, *down = nullptr, *guess = nullptr;
  std::vector<T*> step, bias;  // of each step

  HydraTensors() = default;
  HydraTensors(const HydraSizes& sizes, T* flat) { point_into(flat, *this, sizes); }

  // See Tensors::each(). Matrices are (in, out); guess is (N + 1, C), as an embedding is.
  template <class F>
  void each(const HydraSizes& s, F f) {
    const float init_std = 0.02f;
    f("features.weight", {s.features(), s.width}, init_std, features);
    step.resize(size_t(s.steps()));
    bias.resize(size_t(s.steps()));
    for (int k = 0; k < s.steps(); k++) {
      const std::string name = s.heads > 0 ? "head." + std::to_string(k + 1) + "." : "step.";
      f(name + "weight", {s.inputs(), s.width}, init_std, step[size_t(k)]);
      f(name + "bias", {s.width}, 0, bias[size_t(k)]);
    }
    f("down.weight", {s.width, s.n_embd}, init_std, down);
    f("guess.weight", {s.classes(), s.n_embd}, init_std, guess);
  }
};
inline std::vector<TensorSpec> hydra_table(const HydraSizes& sizes) { return table_of<HydraTensors>(sizes); }
using HydraFile = DrafterFile<HydraSizes>;

// ---------------------------------------------------------------------------------------------------------------
// Weights and forward

template <class T, class W>
struct HydraWeights {
  Weight<T, W> features, down, guess;
  std::vector<Weight<T, W>> step;
  Array<W> memory;

  // flat: hydra_table(s); each pack() reads it again. AnyNumber stands for 4 bits.
  HydraWeights(const HydraSizes& s, const T* flat, bool training) {
    const HydraTensors<const T> tensors(s, flat);
    features = {tensors.features, s.features(), s.width};
    for (size_t k = 0; k < tensors.step.size(); k++)
      step.push_back({tensors.step[k], s.inputs(), s.width, false, tensors.bias[k]});
    down = {tensors.down, s.width, s.n_embd};
    guess = {tensors.guess, s.n_embd, s.classes(), true};
    std::vector<Weight<T, W>*> all = {&features, &down, &guess};
    for (Weight<T, W>& one : step) all.push_back(&one);
    hold_as(Dtype::q4_0, all);
    memory = place_weights(all, training);
  }
  void pack(const Team& team) const {
    for (const auto* weight : {&features, &down, &guess}) weight->pack(team);
    for (const Weight<T, W>& one : step) one.pack(team);
  }
};

// What a forward of R nodes computes.
template <class T>
struct HydraActivations {
  HydraSizes s;
  int roots, R;  // most of a forward
  Rows<T> of(int rows, int numbers) const { return Rows<T>(1, rows, pad16(numbers)); }

  Rows<T> features = of(roots, s.features()), above = of(roots, s.width);  // (roots, 3 C), (roots, S) of the roots
  // (R, S + C), (R, S) before SiLU, (R, S)
  Rows<T> input = of(R, s.inputs()), pre = of(R, s.width), state = of(R, s.width);
  Rows<T> norm = of(R, s.width), low = of(R, s.n_embd), logits = of(R, s.classes());  // (R, S), (R, C), (R, N + 1)
  Rows<T> rstd_in{1, size_t(R), 1}, rstd{1, size_t(R), 1};  // of the states above, of the states; for the backward
};

// Every thread of the team calls the functions below.

// The norms of n states.
template <class T>
Norm<T> norm_of_states(const HydraSizes& s, View<T> states, View<T> to, T* rstd) {
  return rms_norm<T>(states.at, states.stride, s.width, nullptr, to.at, to.stride, rstd);
}

// The states of the nodes first .. first + n - 1 from those above them, by the k-th step. The embeddings of their
// tokens are the last C numbers of their rows in a.input.
template <class T, class W>
void hydra_step(const Team& team, const HydraSizes& s, const HydraWeights<T, W>& w, int k, int first, int n,
                View<T> above, const HydraActivations<T>& a) {
  const Weight<T, W>& step = w.step[size_t(k)];
  const View<T> input = view(a.input, first), pre = view(a.pre, first);
  T* const embedding = input.at + s.width;
  launch(team, n, norm_of_states(s, above, input, a.rstd_in.at(0, first)));
  launch(team, n, rms_norm<T>(embedding, input.stride, s.n_embd, nullptr, embedding, input.stride, nullptr));
  matmul(team, n, product(input, step.forward, pre));
  team.wait();
  launch_columns(team, n, s.width, JoinSilu<T>{pre.at, a.state.at(0, first), pre.stride, step.bias, above.at});
}

// The guesses of the first n nodes.
template <class T, class W>
void hydra_guess(const Team& team, const HydraSizes& s, const HydraWeights<T, W>& w, int n,
                 const HydraActivations<T>& a) {
  launch(team, n, norm_of_states(s, view(a.state, 0), view(a.norm, 0), a.rstd.data()));
  matmul(team, n, product(view(a.norm, 0), w.down.forward, view(a.low, 0)));
  team.wait();
  matmul(team, n, product(view(a.low, 0), w.guess.forward, view(a.logits, 0)));
  team.wait();
}

// ---------------------------------------------------------------------------------------------------------------
// The heads, for all texts that draft with them

// They run on the target's threads, while it does not. A forward of the target drives their weights out of the caches,
// so that each tree reads them from memory: they are held in 4 bits.
struct HydraHeads {
  const HydraSizes sizes;
  const std::vector<int> token;  // (N) which guesses are of which tokens
  const Target& target;
  HydraWeights<float, AnyNumber> weights;
  std::vector<std::vector<float>> biases = {};  // of each step
  HydraActivations<float> a{sizes, 1, 1};

  HydraHeads(const HydraFile& file, const Target& its)
      : sizes(file.sizes), token(file.token), target(its), weights(sizes, file.weights.data(), false) {
    for (auto& step : weights.step) step.bias = biases.emplace_back(step.bias, step.bias + sizes.width).data();
    target.on_threads(kLeastRows, [&](const Team& team) { weights.pack(team); });
  }

  // Gives nodes of these tokens their states and guesses. The first ones are roots, whose features are in a.features;
  // the states above the others are in a.above. steps: that they take; each step's nodes stand together.
  void run(const std::vector<int>& tokens, const std::vector<int>& steps, int roots) {
    const int n = int(tokens.size());
    target.on_threads(n, [&](const Team& team) {
      embed(target, team, n, tokens.data(), {a.input.data() + sizes.width, int(a.input.stride)});
      project_features(team, roots, sizes.n_embd, false, view(a.features, 0), weights.features, view(a.above, 0));
      for (int first = 0, end = 0; first < n; first = end) {
        const int step = steps[size_t(first)];
        while (end < n && steps[size_t(end)] == step) end++;
        hydra_step(team, sizes, weights, step, first, end - first, view(a.above, first), a);
      }
      hydra_guess(team, sizes, weights, n, a);
    });
  }
};

// ---------------------------------------------------------------------------------------------------------------
// The drafter

// `hydra[:DIR]`, and `medusa[:DIR]` where its heads are such. There are no candidates in the first iteration of a text,
// before the target has run a row. All nodes that are asked about at once run in one forward, and all of Medusa's
// heads; a node's state stays until the iteration ends.
class Hydra : public LikelyDrafter {
 public:
  Hydra(std::shared_ptr<HydraHeads> heads, int vocabulary) : LikelyDrafter(vocabulary), heads_(std::move(heads)) {}
  std::unique_ptr<Drafter> another(int) const override { return named<Hydra>(name, heads_, vocab); }

  void begin(const int*, int) override { forget(false); }
  void committed(const Commit& commit) override {
    const float* const last = rows ? rows->features(commit.rows[commit.n - 1]) : nullptr;
    if (last) features_.assign(last, last + heads_->sizes.features());
    forget(last != nullptr);
  }

  void prepare(const Growth& growth, const int* nodes, int n) override {
    prepare_all({{this, &growth, {nodes, nodes + n}}});
  }
  bool prepare_all(const std::vector<Expansion>& all) override {
    for (bool more = true; more;) {  // where a node above has not run, it runs first
      std::vector<std::pair<Hydra*, int>> next;
      for (const Expansion& e : all) static_cast<Hydra*>(e.drafter)->place(*e.growth, e.nodes, next);
      more = !next.empty();
      if (more) run(next);
    }
    return true;
  }
  // The likeliest of its tokens; null for nodes that have not run.
  const Likely* likely(const Growth& growth, int node) override {
    const int id = !ready_ ? -1 : sees_path() ? seen_.find(growth, node) : growth.depth[node];
    if (id < 0 || id >= ran_) return nullptr;
    best_likely(logits_of(id), heads_->sizes.classes(), heads_->token, temperature, kGuesses, likely_);
    return &likely_;
  }

 private:
  bool sees_path() const { return heads_->sizes.heads == 0; }
  void forget(bool ready) {
    ready_ = ready;
    seen_.shrink(0);
    ran_ = 0;
  }
  float* state_of(int id) { return states_.data() + size_t(id) * size_t(heads_->sizes.width); }
  float* logits_of(int id) { return logits_.data() + size_t(id) * size_t(heads_->sizes.classes()); }

  // Adds to `next` the nodes that can run now: those of the nodes, or of those above them, whose parents have run.
  void place(const Growth& growth, const std::vector<int>& nodes, std::vector<std::pair<Hydra*, int>>& next) {
    if (!ready_ || nodes.empty()) return;
    if (seen_.size() == 0) seen_.start(growth.token[0]);
    if (!sees_path()) {
      for (int id = ran_; id < heads_->sizes.heads; id++) next.emplace_back(this, id);
      return;
    }
    for (int node : nodes) seen_.enter(growth, node);
    const int end = ran_ == 0 ? 1 : seen_.size();
    for (int id = ran_; id < end && seen_.parent[id] < ran_; id++) next.emplace_back(this, id);
  }
  // Runs these nodes of some texts in one forward: the roots first, and each step's together.
  static void run(std::vector<std::pair<Hydra*, int>>& next) {
    HydraHeads& heads = *next[0].first->heads_;
    HydraActivations<float>& a = heads.a;
    const HydraSizes& s = heads.sizes;
    const auto turn = [&](const auto& node) { return s.heads > 0 ? node.second : int(node.second > 0); };
    std::stable_sort(next.begin(), next.end(), [&](const auto& x, const auto& y) { return turn(x) < turn(y); });
    const int n = int(next.size());
    if (n > a.R) a = {s, n, n};
    std::vector<int> tokens, steps;
    int roots = 0;
    for (const auto& [its, id] : next) {
      const bool root = s.heads > 0 || id == 0;
      const size_t ids = size_t(std::max(its->seen_.size(), s.heads));
      its->ran_ = id + 1;
      its->states_.resize(std::max(its->states_.size(), ids * size_t(s.width)));
      its->logits_.resize(std::max(its->logits_.size(), ids * size_t(s.classes())));
      if (root) std::copy_n(its->features_.data(), s.features(), a.features.at(0, roots++));
      else std::copy_n(its->state_of(its->seen_.parent[id]), s.width, a.above.at(0, int(tokens.size())));
      tokens.push_back(its->seen_.token[root ? 0 : id]);
      steps.push_back(s.heads > 0 ? id : 0);
    }
    heads.run(tokens, steps, roots);
    for (int row = 0; row < n; row++) {
      const auto& [its, id] = next[size_t(row)];
      std::copy_n(a.state.at(0, row), s.width, its->state_of(id));
      std::copy_n(a.logits.at(0, row), s.classes(), its->logits_of(id));
    }
  }

  const std::shared_ptr<HydraHeads> heads_;  // of all texts
  std::vector<float> features_;              // (3 C) where the root was picked
  bool ready_ = false;                       // whether there are any
  SeenNodes seen_;                           // of this iteration; an id is an index here or, without the path, a depth
  int ran_ = 0;                              // how many of them have run, the first ones
  std::vector<float> states_, logits_;       // (ids, S), (ids, N + 1)
};

}  // namespace nanospec
