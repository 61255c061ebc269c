// drafters/medusa.h: heads on the target's last hidden state that predict the tokens after the next one (Medusa, Cai et
// al. 2024).
//
// In order: the table of their tensors; their weights and forward; the drafter. Their file is in files/heads.h, their
// training in training/train_medusa.h. h is the target's hidden state after the final norm at position t. The target's
// own head predicts token t + 1; head k = 1 .. K predicts token t + k + 1:
//   g = h + SiLU(W h + b),  logits = P g
// At the start W and b are zero and P is the target's head, so an untrained head predicts what the target's predicts. P
// may be the head's own (V, C) matrix; or the target's, tied, which costs nothing; or, for a large vocabulary, the
// target's plus a product of low rank, P g + U (D g). A head may also read the root, token t + 1: it is known when the
// head drafts, though the target has not run it (as in Hydra, Ankner et al. 2024). W then reads [h; e]; e is the
// target's embedding of the root, scaled to mean square 1.
#pragma once

#include "drafters/logits.h"
#include "drafters/operations.h"
#include "model.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The table of their tensors

constexpr int kMostHeads = 16, kOwnProjection = -1;

struct MedusaSizes {
  int heads = 4;              // K
  int rank = kOwnProjection;  // of the low-rank product; 0: tied; kOwnProjection: a matrix of its own
  int n_embd = 0, vocab_size = 0;
  bool root = false;  // whether the heads read the root
  int inputs() const { return root ? 2 * n_embd : n_embd; }
};

// The heads' tensors in one flat array (weights, or gradients); null where the heads have none.
template <class T>
struct MedusaTensors {
  struct Head {
    T *linear, *bias, *projection, *down, *up;
  };
  std::vector<Head> heads;

  MedusaTensors() = default;
  MedusaTensors(const MedusaSizes& sizes, T* flat) { point_into(flat, *this, sizes); }

  // See Tensors::each(). Matrices are (in, out); the projection is (V, C), as the embedding is, since it starts as the
  // target's head.
  template <class F>
  void each(const MedusaSizes& sizes, F f) {
    const int C = sizes.n_embd, V = sizes.vocab_size;
    heads.resize(size_t(sizes.heads));
    for (int k = 1; k <= sizes.heads; k++) {
      Head& head = heads[size_t(k - 1)];
      const std::string name = "head." + std::to_string(k) + ".";
      f(name + "linear.weight", {sizes.inputs(), C}, 0, head.linear);
      f(name + "linear.bias", {C}, 0, head.bias);
      if (sizes.rank == kOwnProjection) f(name + "projection.weight", {V, C}, 0, head.projection);
      if (sizes.rank > 0) f(name + "down.weight", {C, sizes.rank}, 0.02f, head.down);
      if (sizes.rank > 0) f(name + "up.weight", {sizes.rank, V}, 0, head.up);
    }
  }
};
inline std::vector<TensorSpec> medusa_table(const MedusaSizes& sizes) { return table_of<MedusaTensors>(sizes); }
using MedusaHeads = DrafterFile<MedusaSizes>;

// What the heads use of the target: its embedding and its head, (V, C) each. They are one where the head is tied.
template <class T>
struct TargetEnds {
  const T *embedding, *head;
  TargetEnds(const T* tied) : embedding(tied), head(tied) {}
  // flat: tensor_table(config).
  TargetEnds(const Config& config, const T* flat) {
    const Tensors<const T> tensors(config, flat);
    embedding = tensors.wte;
    head = config.tied ? tensors.wte : tensors.lm_head;
  }
};

// (V, C) the rows of the embedding, each scaled to mean square 1: what a head reads of the root.
template <class T>
std::vector<T> root_table(const MedusaSizes& sizes, const T* embedding) {
  const size_t C = size_t(sizes.n_embd);
  std::vector<T> table(embedding, embedding + size_t(sizes.vocab_size) * C);
  for (size_t row = 0; row < table.size(); row += C) {
    T squares = 0;
    for (size_t c = 0; c < C; c++) squares += table[row + c] * table[row + c];
    const T scale = T(1) / square_root(squares / T(C) + T(1e-12));
    for (size_t c = 0; c < C; c++) table[row + c] *= scale;
  }
  return table;
}

// ---------------------------------------------------------------------------------------------------------------
// Weights and forward

template <class T>
struct MedusaWeights {
  struct Head {
    Weight<T, T> linear, projection;     // tied heads share the projection
    std::vector<Weight<T, T>> low_rank;  // down, up; or none
  };
  std::vector<Head> heads;
  Weight<T, T> target;  // the target's head
  bool own;             // whether each head has its own projection
  Array<T> memory;      // all panels

  // flat: medusa_table(sizes); target_head: (V, C). Each pack() reads both again.
  MedusaWeights(const MedusaSizes& s, const T* flat, const T* target_head, bool training)
      : target(target_head, s.n_embd, s.vocab_size, true), own(s.rank == kOwnProjection) {
    for (const auto& head : MedusaTensors<const T>(s, flat).heads) {
      heads.push_back({{head.linear, s.inputs(), s.n_embd, false, head.bias}, {}, {}});
      if (own) heads.back().projection = {head.projection, s.n_embd, s.vocab_size, true};
      if (s.rank > 0) heads.back().low_rank = {{head.down, s.n_embd, s.rank}, {head.up, s.rank, s.vocab_size}};
    }
    std::vector<Panels<T>*> all;  // h is not trained: no gradient goes through `linear`
    const auto both = [&](Weight<T, T>& weight) {
      all.push_back(&weight.forward);
      if (training) all.push_back(&weight.transposed);
    };
    if (!own) both(target);
    else if (training) all.push_back(&target.forward);
    for (Head& head : heads) {
      all.push_back(&head.linear.forward);
      if (own) both(head.projection);
      for (Weight<T, T>& weight : head.low_rank) both(weight);
    }
    memory = place_panels(all);
    for (Head& head : heads)
      if (!own) head.projection = target;
  }
  // Packs the weights that are trained. The target's, which never change, are packed once.
  void pack(const Team& team) const {
    for (const Head& head : heads) {
      head.linear.pack(team);
      if (own) head.projection.pack(team);
      for (const Weight<T, T>& w : head.low_rank) w.pack(team);
    }
  }
};

// What the heads read, and compute for up to R rows: the arrays of one head or, for training, of each. Row r of head k
// is row k R + r.
template <class T>
struct MedusaActivations {
  MedusaSizes s;
  int R, heads;  // most rows; how many heads' arrays there are
  Rows<T> of(int stride) const { return Rows<T>(heads, R, stride); }

  int C = pad16(s.n_embd), X = pad16(s.inputs()), V = pad16(s.vocab_size), r = pad16(std::max(0, s.rank));  // strides
  Rows<T> hidden = Rows<T>(1, R, C), input = Rows<T>(1, R, s.root ? X : 0);  // (R, C); with the roots (R, inputs)
  const T* inputs() const { return s.root ? input.data() : hidden.data(); }
  Rows<T> pre = of(C), g = of(C);       // (heads, R, C) before SiLU; h + SiLU of it
  Rows<T> down = of(r);                 // (heads, R, rank) g times the first matrix of the low-rank product
  Rows<T> base = Rows<T>(r > 0, R, V);  // (R, V) the target's head on g
  Rows<T> logits = of(V);               // (heads, R, V)
};

// Runs head k (from 0) on R rows of hidden states h (R, a.C). x (R, a.X): h and the roots, or h itself. Its logits go
// to rows at .. at + R - 1 of `a`. Every thread of the team calls it.
template <class T>
void medusa_forward(const Team& team, const MedusaWeights<T>& w, int k, int R, const T* h, const T* x,
                    const MedusaActivations<T>& a, int at = 0) {
  const typename MedusaWeights<T>::Head& head = w.heads[size_t(k)];
  T *pre = a.pre.at(0, at), *g = a.g.at(0, at), *logits = a.logits.at(0, at);
  matmul(team, R, Matmul<T, T>{x, a.X, head.linear.forward, pre, a.C}, JoinSilu<T>{pre, g, a.C, head.linear.bias, h});
  team.wait();
  if (head.low_rank.empty()) {
    matmul(team, R, Matmul<T, T>{g, a.C, head.projection.forward, logits, a.V});
  } else {
    T* const down = a.down.at(0, at);
    matmul(team, R, Matmul<T, T>{g, a.C, head.projection.forward, a.base.data(), a.V});
    matmul(team, R, Matmul<T, T>{g, a.C, head.low_rank[0].forward, down, a.r});
    team.wait();
    matmul(team, R, Matmul<T, T>{down, a.r, head.low_rank[1].forward, logits, a.V},
           JoinResidual<T>{a.base.data(), logits, a.V, nullptr});
  }
  team.wait();
}

// ---------------------------------------------------------------------------------------------------------------
// The drafter

// The heads, for all texts that draft with them.
struct SharedHeads {
  const MedusaSizes sizes;
  MedusaWeights<float> weights;
  std::vector<float> roots;                     // (V, C) where the heads read the root, or none
  std::vector<std::vector<float>> biases = {};  // of each head
  MedusaActivations<float> activations{sizes, 1, 1};

  SharedHeads(const MedusaHeads& heads, const TargetEnds<float>& target)
      : sizes(heads.sizes),
        weights(sizes, heads.weights.data(), target.head, false),
        roots(sizes.root ? root_table(sizes, target.embedding) : std::vector<float>()) {
    weights.target.pack(Team{});
    weights.pack(Team{});
    for (auto& head : weights.heads)
      head.linear.bias = biases.emplace_back(head.linear.bias, head.linear.bias + sizes.n_embd).data();
  }
};

// A node's distribution depends on its depth alone: head depth + 1 gives it, at the row whose pick is the root. There
// are no candidates in the first iteration of a text, before the target has run a row, and none beyond the last head.
class Medusa : public DepthDrafter {
 public:
  // target: not read if the heads have their own projections and do not read the root.
  Medusa(const MedusaHeads& heads, const TargetEnds<float>& target)
      : Medusa(std::make_shared<SharedHeads>(heads, target)) {}
  explicit Medusa(std::shared_ptr<SharedHeads> heads)
      : DepthDrafter(heads->sizes.vocab_size, heads->sizes.heads), heads_(std::move(heads)) {}
  std::unique_ptr<Drafter> another(int) const override { return named<Medusa>(name, heads_); }

  void begin(const int*, int) override {
    known_.clear();
    rollback();
  }
  void committed(const Commit& commit) override {
    rollback();
    const size_t C = size_t(heads_->sizes.n_embd);
    const float* const last = rows ? rows->hidden(commit.rows[commit.n - 1]) : nullptr;
    if (last) std::copy_n(last, C, input_.data());
    if (heads_->sizes.root)
      std::copy_n(heads_->roots.data() + size_t(commit.tokens[commit.n - 1]) * C, C, input_.data() + C);
    known_.assign(size_t(last ? depths : 0), 0);
  }

  bool prepare_all(const std::vector<Expansion>& all) override {
    for (int k = 0; k < depths; k++) {
      std::vector<Medusa*> asked;
      for (const Expansion& e : all) {
        auto* const its = static_cast<Medusa*>(e.drafter);
        const auto at_k = [&](int node) { return e.growth->depth[node] + its->shift == k; };
        if (!its->known_.empty() && !its->known_[size_t(k)] && std::any_of(e.nodes.begin(), e.nodes.end(), at_k))
          asked.push_back(its);
      }
      if (!asked.empty()) run(k, asked);
    }
    return true;
  }
  const float* at_depth(int k) override {
    if (known_.empty()) return nullptr;
    if (!known_[size_t(k)]) run(k, {this});
    return kept_at(k);
  }

 private:
  // Runs head k for these texts, in one forward.
  void run(int k, const std::vector<Medusa*>& all) {
    const MedusaSizes& sizes = heads_->sizes;
    MedusaActivations<float>& a = heads_->activations;
    const int R = int(all.size());
    if (R > a.R) a = {sizes, R, 1};
    for (int row = 0; row < R; row++) {
      const float* const input = all[size_t(row)]->input_.data();
      std::copy_n(input, sizes.n_embd, a.hidden.at(0, row));
      if (sizes.root) std::copy_n(input, sizes.inputs(), a.input.at(0, row));
    }
    medusa_forward(Team{}, heads_->weights, k, R, a.hidden.data(), a.inputs(), a);
    for (int row = 0; row < R; row++) {
      std::copy_n(a.logits.at(0, row), vocab, all[size_t(row)]->kept_at(k));
      all[size_t(row)]->known_[size_t(k)] = 1;
    }
  }

  const std::shared_ptr<SharedHeads> heads_;  // of all texts
  // (inputs) the hidden state that picked the root, and perhaps the root's row
  std::vector<float> input_ = std::vector<float>(size_t(heads_->sizes.inputs()));
  std::vector<char> known_;  // (K) whether the head has run in this iteration; none where there is no hidden state
};

}  // namespace nanospec
