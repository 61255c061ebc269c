// drafters/medusa.h: heads on the target's last hidden state that say the tokens after the next (Medusa, Cai et al.
// 2024).
//
// In order: the table of their tensors; their weights and forward; the drafter. Their file is in files/heads.h, their
// training in train_medusa.h. With h the target's hidden state after the final norm at position t, head k = 1 .. K says
// token t + k + 1 (the target's own head says t + 1):
//   g = h + SiLU(W h + b),  logits = P g
// W and b are zero at the start and P is the target's head, so an untrained head says what that says. P may be the
// head's own (V, C) matrix; or the target's, tied, which costs nothing; or the target's plus a product of low rank,
// P g + U (D g), where the vocabulary is large. A head may also see the root, token t + 1, which is known by the time
// it drafts though the target has not run it (as Hydra's heads do, Ankner et al. 2024): W then reads [h; e], e the
// target's embedding of the root, each row scaled to mean square 1.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "draft.h"
#include "model.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The table of their tensors

constexpr int kMostHeads = 16, kOwnProjection = -1;

struct MedusaSizes {
  int heads = 4;              // K
  int rank = kOwnProjection;  // of the low-rank product; 0: tied; kOwnProjection: a matrix of its own
  int n_embd = 0, vocab_size = 0;
  bool root = false;  // whether the heads see the root
  int inputs() const { return root ? 2 * n_embd : n_embd; }
};

// Matrices are (in, out), the projection (V, C) as the embedding it starts from. init_std: see config.h; the
// projection's start is the target's head.
inline std::vector<TensorSpec> medusa_table(const MedusaSizes& sizes) {
  std::vector<TensorSpec> table;
  const auto add = [&](const std::string& name, const std::vector<int>& shape, float init_std) {
    add_tensor(table, name, shape, init_std);
  };
  const int C = sizes.n_embd, V = sizes.vocab_size;
  for (int k = 1; k <= sizes.heads; k++) {
    const std::string head = "head." + std::to_string(k) + ".";
    add(head + "linear.weight", {sizes.inputs(), C}, 0);
    add(head + "linear.bias", {C}, 0);
    if (sizes.rank == kOwnProjection) add(head + "projection.weight", {V, C}, 0);
    if (sizes.rank > 0) add(head + "down.weight", {C, sizes.rank}, 0.02f), add(head + "up.weight", {sizes.rank, V}, 0);
  }
  return table;
}
inline size_t medusa_parameters(const MedusaSizes& sizes) {
  const TensorSpec last = medusa_table(sizes).back();
  return last.offset + last.size;
}

// (V, C) the rows of wte, each scaled to mean square 1: what a head sees of the root.
template <class T>
std::vector<T> root_table(const MedusaSizes& sizes, const T* wte) {
  const size_t C = size_t(sizes.n_embd);
  std::vector<T> table(wte, wte + size_t(sizes.vocab_size) * C);
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
    Weight<T, T> linear, projection;     // of tied heads the projection is shared
    std::vector<Weight<T, T>> low_rank;  // down, up; or none
    const T* bias;
  };
  std::vector<Head> heads;
  Weight<T, T> target;  // the target's head
  bool own;             // whether each head has a projection of its own
  Array<T> memory;      // all panels

  // flat: medusa_table(sizes); wte: the target's head (V, C). Both are read again at each pack().
  MedusaWeights(const MedusaSizes& s, const T* flat, const T* wte, bool training)
      : target(wte, s.n_embd, s.vocab_size, true), own(s.rank == kOwnProjection) {
    const std::vector<TensorSpec> table = medusa_table(s);
    const size_t each = table.size() / size_t(s.heads);
    for (size_t k = 0; k < size_t(s.heads); k++) {
      const auto at = [&](size_t i) { return flat + table[k * each + i].offset; };
      Head head = {Weight<T, T>(at(0), s.inputs(), s.n_embd, false), target, {}, at(1)};
      if (own) head.projection = Weight<T, T>(at(2), s.n_embd, s.vocab_size, true);
      if (s.rank > 0)
        head.low_rank = {Weight<T, T>(at(2), s.n_embd, s.rank, false),
                         Weight<T, T>(at(3), s.rank, s.vocab_size, false)};
      heads.push_back(head);
    }
    for (int round = 0; round < 2; round++) {  // to count, then to hand out
      size_t size = 0;
      const auto place = [&](Panels<T>& panels) {
        if (memory.size()) panels.data = memory.data() + size;
        size += panels.size();
      };
      if (training || !own) place(target.forward);
      if (training && !own) place(target.transposed);
      for (Head& head : heads) {
        place(head.linear.forward);
        if (!own) head.projection = target;
        else place(head.projection.forward);
        if (training && own) place(head.projection.transposed);
        for (Weight<T, T>& w : head.low_rank) place(w.forward);
        if (training)
          for (Weight<T, T>& w : head.low_rank) place(w.transposed);
      }
      if (round == 0) memory = Array<T>(size);
    }
  }
  // The trained ones; at first with what never changes.
  void pack(const Team& team, bool frozen) const {
    if (frozen) target.pack(team);
    for (const Head& head : heads) {
      head.linear.pack(team);
      if (own) head.projection.pack(team);
      for (const Weight<T, T>& w : head.low_rank) w.pack(team);
    }
  }
};

// What the heads compute on their way, of up to R rows: of one head, or for training of each.
template <class T>
struct MedusaActivations {
  int C, X, V, r;  // row strides, padded to 16: channels, a head's inputs, vocabulary, rank
  Array<T> pre, g, down, base, logits;

  MedusaActivations(const MedusaSizes& s, int rows, int heads_kept)
      : C(pad16(s.n_embd)), X(pad16(s.inputs())), V(pad16(s.vocab_size)), r(pad16(std::max(0, s.rank))) {
    const size_t R = rows, H = heads_kept, spare = 16;
    pre = Array<T>(H * R * C + spare), g = Array<T>(H * R * C + spare), logits = Array<T>(H * R * V + spare);
    if (r > 0) down = Array<T>(H * R * r + spare), base = Array<T>(R * V + spare);
  }
};

// Head k (from 0) on R rows of hidden states h (R, a.C), which with the roots are x (R, a.X), or are x themselves: its
// logits into rows at + 0 .. at + R - 1 of `a`. Every thread of the team calls it.
template <class T>
void medusa_forward(const Team& team, const MedusaSizes& sizes, const MedusaWeights<T>& w, int k, int R, const T* h,
                    const T* x, const MedusaActivations<T>& a, size_t at = 0) {
  const typename MedusaWeights<T>::Head& head = w.heads[size_t(k)];
  T *pre = a.pre.data() + at * a.C, *g = a.g.data() + at * a.C, *logits = a.logits.data() + at * a.V;
  matmul(team, R, Matmul<T, T>{x, a.X, head.linear.forward, pre, a.C}, BiasSilu<T>{pre, g, a.C, head.bias, h});
  team.wait();
  if (head.low_rank.empty()) {
    matmul(team, R, Matmul<T, T>{g, a.C, head.projection.forward, logits, a.V});
  } else {
    T* const down = a.down.data() + at * a.r;
    matmul(team, R, Matmul<T, T>{g, a.C, head.projection.forward, a.base.data(), a.V});
    matmul(team, R, Matmul<T, T>{g, a.C, head.low_rank[0].forward, down, a.r});
    team.wait();
    matmul(team, R, Matmul<T, T>{down, a.r, head.low_rank[1].forward, logits, a.V},
           JoinResidual<T>{a.base.data(), logits, a.V, sizes.vocab_size, nullptr, {}});
  }
  team.wait();
}

struct MedusaHeads {
  MedusaSizes sizes;
  std::vector<float> weights;
};

// ---------------------------------------------------------------------------------------------------------------
// The drafter

// A node's distribution follows from its depth alone: what head depth + 1 said at the row whose pick is the root. In
// the first pass of a text no row has been seen, and beyond the last head nobody speaks: no candidates there.
class Medusa : public DepthDrafter {
 public:
  // wte: (V, C) the target's head; may be empty where the heads have projections of their own, and see no root.
  Medusa(const MedusaHeads& heads, const std::vector<float>& wte)
      : sizes_(heads.sizes),
        weights_(sizes_, heads.weights.data(), wte.data(), false),
        activations_(sizes_, 1, sizes_.heads),
        roots_(sizes_.root ? root_table(sizes_, wte.data()) : std::vector<float>()),
        input_(size_t(activations_.X) + 16),
        known_(size_t(sizes_.heads), 0) {
    vocab = sizes_.vocab_size;
    weights_.pack(kAlone, true);
    for (auto& head : weights_.heads) biases_.emplace_back(head.bias, head.bias + sizes_.n_embd);
    for (size_t k = 0; k < biases_.size(); k++) weights_.heads[k].bias = biases_[k].data();
  }
  bool wants_hidden() const override { return true; }

  int depths() const override { return sizes_.heads; }

  void begin(const int*, int) override { seen_ = false, unsuppose(); }
  void committed(const Commit& commit) override {
    unsuppose();
    const float* const last = commit.hidden ? commit.hidden[commit.n - 1] : nullptr;
    seen_ = last != nullptr;
    if (seen_) std::copy_n(last, sizes_.n_embd, input_.data());
    const int C = sizes_.n_embd, root = commit.tokens[commit.n - 1];
    if (sizes_.root) std::copy_n(roots_.data() + size_t(root) * size_t(C), C, input_.data() + C);
    std::fill(known_.begin(), known_.end(), 0);
  }

  const float* logits(const Growth& growth, int node) override {
    const int k = growth.depth[node] + shift;
    if (!seen_ || k >= sizes_.heads) return nullptr;
    if (!known_[size_t(k)]) {
      medusa_forward(kAlone, sizes_, weights_, k, 1, input_.data(), input_.data(), activations_, size_t(k));
      known_[size_t(k)] = 1, model_passes++;
    }
    return activations_.logits.data() + size_t(k) * activations_.V;
  }

 private:
  static constexpr Team kAlone{0, 1, nullptr, false};
  const MedusaSizes sizes_;
  MedusaWeights<float> weights_;
  std::vector<std::vector<float>> biases_;
  MedusaActivations<float> activations_;  // row k: head k + 1's
  std::vector<float> roots_;              // (V, C) or none
  std::vector<float> input_;              // (C) the hidden state where the root was picked, and (C) the root's row
  std::vector<char> known_;               // (K) whether the head has spoken in this pass
  bool seen_ = false;
};

}  // namespace nanospec
