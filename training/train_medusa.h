// training/train_medusa.h: training Medusa heads on a frozen target: train_drafter --medusa DIR.
//
// In order: the trainer, loss and gradient of all heads; its options: what train_drafter.h asks of a drafter. The loop
// and the program are there.
#pragma once

#include "training/train_drafter.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The trainer

// Its examples are rows of a shard of hidden states. Row l has seen token l; token l + 1 is its root, which the
// target's own head is to say, and head k is to say token l + 1 + k.
template <class T>
class MedusaTrainer : public DrafterTrainer<T> {
  using typename DrafterTrainer<T>::Said;

 public:
  const MedusaSizes sizes;

  // distribution: the heads learn all that the target said where it was to say their token, not that token alone.
  // rows: most of an update.
  MedusaTrainer(const MedusaSizes& s, const TargetEnds<T>& target, bool distribution, int rows, Pool& pool)
      : DrafterTrainer<T>(medusa_table(s), pool),
        sizes(s),
        distribution_(distribution),
        head_(target.head, target.head + size_t(s.vocab_size) * size_t(s.n_embd)),
        roots_(s.root ? root_table(s, target.embedding) : std::vector<T>()),
        a_{s, rows, s.heads} {
    pool.run([&](const Team& team) { packed_.target.pack(team); });
  }

 private:
  T run(const Examples& some, bool with_gradient, const Said& said) override {
    load(some);
    const int R = some.n;
    this->pool_.run([&](const Team& team) { run(team, R, with_gradient, distribution_ && !said); });
    for (int row = 0; said && row < sizes.heads * R; row++)
      said(row / R, token_[size_t(row)], token_[size_t(row + R)], a_.logits.at(0, row), losses_.data()[row]);
    return loss_.data()[0];
  }
  void pack(const Team& team) const override { packed_.pack(team); }
  void load(const Examples& some) {
    const int R = some.n, K = sizes.heads, C = sizes.n_embd, usable = usable_rows(some.shard.sizes, K);
    for (int row = 0; row < R; row++) {
      const int sequence = some.pieces[row] / usable, l = some.pieces[row] % usable;
      state_[size_t(row)] = some.shard.state(sequence, l);
      std::copy_n(state_[size_t(row)], C, a_.hidden.at(0, row));
      for (int k = 0; k <= K; k++) token_[size_t(k * R + row)] = some.shard.tokens(sequence)[l + 1 + k];
      if (!sizes.root) continue;
      T* const root = std::copy_n(state_[size_t(row)], C, a_.input.at(0, row));
      std::copy_n(roots_.data() + size_t(token_[size_t(row)]) * size_t(C), C, root);
    }
  }
  Rows<T> rows(int stride) const { return Rows<T>(1, a_.R, stride); }

  // All heads' losses, one head after the other.
  void run(const Team& team, int R, bool with_gradient, bool distribution) {
    const int V = sizes.vocab_size, K = sizes.heads;
    const T scale = T(1) / (T(R) * T(K));
    for (int k = 0; k < K; k++) {
      const int at = k * R;
      T *const logits = a_.logits.at(0, at), *const losses = losses_.data() + at;
      medusa_forward(team, packed_, k, R, a_.hidden.data(), a_.inputs(), a_, at);
      if (distribution) {
        target_says(team, R, k + 1);
        launch(team, R, SoftCrossEntropy<T>{logits, teacher_.data(), a_.V, V, losses, with_gradient, scale});
      } else {
        loss_of_rows(team, R, CrossEntropy<T>{logits, a_.V, V, token_.data() + at + R, losses, with_gradient, scale});
      }
      if (with_gradient) backward(team, R, k, at);
    }
    launch_sum(team, Mean<T>{losses_.data(), R * K, loss_.data()});
  }
  // teacher_ becomes what the target said so many rows later.
  void target_says(const Team& team, int R, int later) {
    const int C = sizes.n_embd;
    if (team.rank == 0)
      for (int row = 0; row < R; row++) std::copy_n(state_[size_t(row)] + later * C, C, ahead_.at(0, row));
    team.wait();
    matmul(team, R, Matmul<T, T>{ahead_.data(), a_.C, packed_.target.forward, teacher_.data(), a_.V});
    team.wait();
  }

  // With dlogits where the logits were: the gradients of one head. h itself is the target's, and frozen.
  void backward(const Team& team, int R, int k, int at) {
    const int C = sizes.n_embd, V = sizes.vocab_size, C_row = a_.C, V_row = a_.V;
    const auto& head = packed_.heads[size_t(k)];
    const auto& d = gradients_.heads[size_t(k)];
    const T *dlogits = a_.logits.at(0, at), *g = a_.g.at(0, at);
    T* const dg = dg_.data();
    const SiluBackward<T> silu{a_.pre.at(0, at), dg, C_row};
    if (head.low_rank.empty()) {
      if (packed_.own) matmul_gradient(team, MatmulGradient<T>{R, V, C, dlogits, V_row, g, C_row, d.projection});
      matmul(team, R, Matmul<T, T>{dlogits, V_row, head.projection.transposed, dg, C_row}, silu);
    } else {
      const int r = sizes.rank, r_row = a_.r;
      T *const ddown = ddown_.data(), *const through = through_.data();
      matmul(team, R, Matmul<T, T>{dlogits, V_row, head.projection.transposed, through, C_row});
      matmul_gradient(team, MatmulGradient<T>{R, r, V, a_.down.at(0, at), r_row, dlogits, V_row, d.up});
      matmul(team, R, Matmul<T, T>{dlogits, V_row, head.low_rank[1].transposed, ddown, r_row});
      team.wait();
      matmul_gradient(team, MatmulGradient<T>{R, C, r, g, C_row, ddown, r_row, d.down});
      matmul(team, R, Matmul<T, T>{ddown, r_row, head.low_rank[0].transposed, dg, C_row},
             JoinResidual<T>{through, dg, C_row, nullptr});
      team.wait();
      launch_columns(team, R, C, silu);
    }
    team.wait();
    matmul_gradient(team, MatmulGradient<T>{R, sizes.inputs(), C, a_.inputs(), a_.X, dg, C_row, d.linear, d.bias});
    team.wait();
  }

  const bool distribution_;
  const std::vector<T> head_, roots_;  // (V, C); where the heads read no root, no roots
  MedusaWeights<T> packed_{sizes, this->weights.data(), head_.data(), true};
  MedusaTensors<T> gradients_{sizes, this->gradient.data()};
  MedusaActivations<T> a_;                                                       // head k's row i is row k R + i
  Rows<T> ahead_ = rows(a_.C), teacher_ = rows(a_.V);                            // of one head: (R, C), (R, V)
  Rows<T> dg_ = rows(a_.C), through_ = rows(a_.C), ddown_ = rows(a_.r);          // of one head: (R, C), (R, C), (R, r)
  Array<T> losses_{size_t(a_.R) * size_t(sizes.heads)}, loss_{1};                // (K, R), (1)
  std::vector<const float*> state_ = std::vector<const float*>(size_t(a_.R));    // (R) in the shard
  std::vector<int> token_ = std::vector<int>(size_t((sizes.heads + 1) * a_.R));  // (K + 1, R) the roots; what follows
};

// ---------------------------------------------------------------------------------------------------------------
// Its options

// The heads before training: flat, as medusa_table() says. head: (V, C) the target's, where projections start.
inline std::vector<float> initial_medusa(const MedusaSizes& sizes, const float* head, uint64_t seed) {
  std::vector<float> weights = initial_weights(medusa_table(sizes), seed);
  for (const TensorSpec& spec : medusa_table(sizes))
    if (spec.name.find("projection") != std::string::npos)
      std::copy_n(head, spec.size, weights.begin() + long(spec.offset));
  return weights;
}

struct MedusaOptions : DrafterOptions {
  MedusaSizes sizes;
  MedusaOptions() : DrafterOptions({"medusa", "heads", "head", Recorded::kHidden}) {}

  Command command() override {
    const std::vector<Flag> own = {
        heading("Heads"),
        {"--medusa_heads", "N", &sizes.heads, "how many: head k says the k-th token after the next",
         from(1, kMostHeads)},
        {"--medusa_rank", "N", &sizes.rank,
         "-1: each has a projection onto the vocabulary of its own; 0: the model's; above: the model's plus a product\n"
         "of this rank",
         from(-1, 1 << 16)},
        {"--medusa_root", "", &sizes.root, "the heads see the root, too: the next token, known when they draft"}};
    return {"train_drafter --medusa",
            "Trains Medusa heads on the model in DIR, which stays as it is, for nanospec --drafter medusa. Runs on the "
            "CPU.\nOn what nanospec distill wrote of any model: train_drafter --medusa MODEL --data FILE.jsonl; with "
            "--help it says more.",
            "train_drafter --medusa runs/small --data data/*shakespeare.txt --medusa_root --medusa_target distribution"
            "  # takes a minute\n"
            "train_drafter --medusa runs/medium --data data/*shakespeare.txt --medusa_target text --out runs/heads"
            "  # takes minutes\n",
            drafter_flags(*this, own)};
  }
  void set_sizes(const DrafterRun& run) override {
    check_window(run, sizes.heads, 1, std::to_string(sizes.heads) + " heads", "--medusa_heads");
    sizes.n_embd = run.model.config.n_embd;
    sizes.vocab_size = run.model.config.vocab_size;
  }
  Metadata settings() const override {
    return {{"heads", std::to_string(sizes.heads)},
            {"rank", std::to_string(sizes.rank)},
            {"root", std::to_string(sizes.root)}};
  }
  int ahead() const override { return sizes.heads; }
  std::unique_ptr<DrafterTrainer<float>> trainer(const DrafterRun& run, Pool& pool) const override {
    const TargetEnds<float> ends(run.model.config, run.model.weights.data());
    auto heads = std::make_unique<MedusaTrainer<float>>(sizes, ends, target == "distribution", batch_size, pool);
    heads->set_weights(initial_medusa(sizes, ends.head, seed).data());
    return heads;
  }
  std::string described() const override { return " in " + std::to_string(sizes.heads) + " heads"; }
  void add_figures(Json& stats) const override {
    stats.update({{"medusa_heads", sizes.heads}, {"medusa_rank", sizes.rank}, {"medusa_root", sizes.root}});
  }
};

}  // namespace nanospec
