// training/train_medusa.h: training Medusa heads on a frozen target: train_drafter --medusa DIR.
//
// In order: a batch; the trainer, loss and gradient of all heads; batches out of shards; flags; what train_drafter.h
// asks of a drafter. The loop and the program are there.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "files/heads.h"
#include "training/train_drafter.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// A batch

struct HeadBatch {
  int rows = 0;               // R
  std::vector<float> hidden;  // (R, C)
  std::vector<int> root;      // (R) the token that the target's own head is to say
  std::vector<int> target;    // (K, R) the token that head k + 1 is to say
  std::vector<float> ahead;   // (K, R, C) the target's hidden state where it was to say that token; or empty
};

// ---------------------------------------------------------------------------------------------------------------
// The trainer

template <class T>
class MedusaTrainer : public DrafterTrainer<T, HeadBatch> {
 public:
  const MedusaSizes sizes;

  // rows: most of a batch.
  MedusaTrainer(const MedusaSizes& s, const TargetEnds<T>& target, int rows, Pool& pool)
      : DrafterTrainer<T, HeadBatch>(medusa_table(s), pool),
        sizes(s),
        head_(target.head, target.head + size_t(s.vocab_size) * size_t(s.n_embd)),
        roots_(root_table(s, target.embedding)),
        packed_(s, this->weights.data(), head_.data(), true),
        gradients_(s, this->gradient.data()),
        a_(s, rows, s.heads),
        hidden_(1, rows, a_.C),
        input_(s.root, rows, a_.X),
        ahead_(1, rows, a_.C),
        teacher_(1, rows, a_.V),
        dg_(1, rows, a_.C),
        through_(1, rows, a_.C),
        ddown_(1, rows, a_.r),
        losses_(size_t(rows) * s.heads),
        loss_(1) {}

  // After loss(): what a head said of a row, and what that cost.
  const T* logits(int head, int row) const { return a_.logits.at(0, head * rows_ + row); }
  T cost(int head, int row) const { return losses_.data()[size_t(head) * size_t(rows_) + size_t(row)]; }

 private:
  T run(const HeadBatch& batch, bool with_gradient) override {
    load(batch);
    this->pool_.run([&](const Team& team) { run(team, batch, with_gradient); });
    return loss_.data()[0];
  }
  void pack(const Team& team, bool frozen) override { packed_.pack(team, frozen); }
  void load(const HeadBatch& batch) {
    rows_ = batch.rows;
    spread(batch.hidden.data(), hidden_.data());
    target_.assign(batch.target.begin(), batch.target.end());
    const int C = sizes.n_embd;
    for (int row = 0; sizes.root && row < rows_; row++) {
      T* const x = std::copy_n(hidden_.at(0, row), C, input_.at(0, row));
      std::copy_n(roots_.data() + size_t(batch.root[size_t(row)]) * size_t(C), C, x);
    }
  }
  const T* input() const { return sizes.root ? input_.data() : hidden_.data(); }
  // (R, C) into rows of a_.C numbers.
  void spread(const float* from, T* to) const {
    for (int row = 0; row < rows_; row++)
      for (int c = 0; c < sizes.n_embd; c++) to[size_t(row) * a_.C + c] = T(from[size_t(row) * sizes.n_embd + c]);
  }

  // All heads' losses, one head after the other.
  void run(const Team& team, const HeadBatch& batch, bool with_gradient) {
    const int R = rows_, V = sizes.vocab_size, K = sizes.heads;
    const T scale = T(1) / (T(R) * T(K));
    for (int k = 0; k < K; k++) {
      const int at = k * R;
      T* const logits = a_.logits.at(0, at);
      medusa_forward(team, packed_, k, R, hidden_.data(), input(), a_, at);
      if (batch.ahead.empty()) {
        loss_of_rows(team, R,
                     CrossEntropy<T>{logits, a_.V, V, target_.data() + at, losses_.data() + at, with_gradient, scale});
      } else {
        if (team.rank == 0) spread(batch.ahead.data() + size_t(at) * sizes.n_embd, ahead_.data());
        team.wait();
        matmul(team, R, Matmul<T, T>{ahead_.data(), a_.C, packed_.target.forward, teacher_.data(), a_.V});
        team.wait();
        launch(team, R,
               SoftCrossEntropy<T>{logits, teacher_.data(), a_.V, V, losses_.data() + at, with_gradient, scale});
      }
      if (with_gradient) backward(team, k, at);
    }
    launch_sum(team, Mean<T>{losses_.data(), R * K, loss_.data()});
  }

  // With dlogits where the logits were: the gradients of one head. h itself is the target's, and frozen.
  void backward(const Team& team, int k, int at) {
    const int R = rows_, C = sizes.n_embd, V = sizes.vocab_size, C_row = a_.C, V_row = a_.V;
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
    matmul_gradient(team, MatmulGradient<T>{R, sizes.inputs(), C, input(), a_.X, dg, C_row, d.linear, d.bias});
    team.wait();
  }

  const std::vector<T> head_, roots_;  // (V, C)
  MedusaWeights<T> packed_;
  MedusaTensors<T> gradients_;
  MedusaActivations<T> a_;        // of all heads: head k's row i at row k R + i
  Rows<T> hidden_, input_;        // (R, C), (R, X)
  Rows<T> ahead_, teacher_;       // of one head: (R, C), (R, V)
  Rows<T> dg_, through_, ddown_;  // of one head: (R, C), (R, C), (R, r)
  Array<T> losses_, loss_;        // (K, R), (1)
  std::vector<int> target_;       // (K, R)
  int rows_ = 0;                  // R
};

// ---------------------------------------------------------------------------------------------------------------
// Batches out of shards

// places (n): each is sequence * usable_rows + row. Row l has seen token l: head k says token l + 1 + k.
inline void fill_batch(const Shard& shard, const int* places, int n, int heads, bool distribution, HeadBatch& batch) {
  const int usable = usable_rows(shard.sizes, heads), C = shard.sizes.channels;
  batch = {};
  batch.rows = n;
  const auto append = [&](std::vector<float>& to, int sequence, int row) {
    const float* const state = shard.state(sequence, row);
    to.insert(to.end(), state, state + C);
  };
  for (int i = 0; i < n; i++) {
    append(batch.hidden, places[i] / usable, places[i] % usable);
    batch.root.push_back(shard.tokens(places[i] / usable)[places[i] % usable + 1]);
  }
  for (int k = 1; k <= heads; k++)
    for (int i = 0; i < n; i++) {
      const int sequence = places[i] / usable, row = places[i] % usable;
      batch.target.push_back(shard.tokens(sequence)[row + 1 + k]);
      if (distribution) append(batch.ahead, sequence, row + k);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Flags

struct MedusaOptions : DistillOptions {
  MedusaSizes sizes;
};

inline Command medusa_command(MedusaOptions& o) {
  const DistillWords words = {"medusa",
                              "the model, as train_gpt wrote it; its hidden states are kept in DIR/hidden",
                              "positions in one update",
                              {"self", "text", "distribution"},
                              "self: the tokens of text that the model generated; text: those of the data;\n"
                              "distribution: what the model said of each token, in text that it generated"};
  return {
      "train_drafter --medusa",
      "Trains Medusa heads on the model in DIR, which stays as it is, for nanospec --drafter medusa. Runs on the CPU.",
      "train_drafter --medusa runs/small --data data/*shakespeare.txt --medusa_root --medusa_target distribution"
      "  # takes a minute\n"
      "train_drafter --medusa runs/medium --data data/*shakespeare.txt --medusa_target text --out runs/heads  # takes "
      "minutes\n",
      distill_flags(
          o, words,
          {heading("Heads"),
           {"--medusa_heads", "N", &o.sizes.heads, "how many: head k says the k-th token after the next",
            from(1, kMostHeads)},
           {"--medusa_rank", "N", &o.sizes.rank,
            "-1: each has a projection onto the vocabulary of its own; 0: the model's; above: the model's plus a "
            "product\n"
            "of this rank",
            from(-1, 1 << 16)},
           {"--medusa_root", "", &o.sizes.root,
            "the heads see the root, too: the next token, known when they draft"}})};
}

// ---------------------------------------------------------------------------------------------------------------
// What train_drafter.h asks of a drafter

// The heads before training: flat, as medusa_table() says. head: (V, C) the target's, where projections start.
inline std::vector<float> initial_medusa(const MedusaSizes& sizes, const float* head, uint64_t seed) {
  std::vector<float> weights = initial_weights(medusa_table(sizes), seed);
  for (const TensorSpec& spec : medusa_table(sizes))
    if (spec.name.find("projection") != std::string::npos)
      std::copy_n(head, spec.size, weights.begin() + long(spec.offset));
  return weights;
}

struct MedusaTraining {
  using Options = MedusaOptions;
  static constexpr const char *kName = "medusa", *kWhat = "heads", *kGuesser = "head";
  static constexpr Recorded kRecorded = Recorded::kHidden;
  static Command command(Options& o) { return medusa_command(o); }
  static MedusaSizes sizes_of(const Options& o, const DistillRun& run) {
    check_window(run, o.sizes.heads, 1, std::to_string(o.sizes.heads) + " heads", "--medusa_heads");
    MedusaSizes s = o.sizes;
    s.n_embd = run.model.config.n_embd;
    s.vocab_size = run.model.config.vocab_size;
    return s;
  }

  const Options& o;
  MedusaTrainer<float> trainer;
  const int pieces;  // rows of a shard
  HeadBatch batch;

  MedusaTraining(const Options& options, const MedusaSizes& sizes, const DistillRun& run, Pool& pool)
      : o(options),
        trainer(sizes, {run.model.config, run.model.weights.data()}, o.batch_size, pool),
        pieces(run.sizes.sequences * usable_rows(run.sizes, sizes.heads)) {
    const TargetEnds<float> target(run.model.config, run.model.weights.data());
    trainer.set_weights(initial_medusa(sizes, target.head, o.seed).data());
  }
  int ahead() const { return o.sizes.heads; }
  double positions(int rows) const { return rows; }
  double step(const ShardOrder::Some& some, const Update& update) {
    fill_batch(some.shard, some.pieces, some.n, ahead(), o.target == "distribution", batch);
    return double(trainer.step(batch, update));
  }
  // The bigram beside head 1 knows the root, the token before; the head may not.
  void validate(const Shard& shard, std::vector<RankRates>& heads, Baselines& baselines) {
    const int usable = usable_rows(shard.sizes, ahead()), n = shard.sizes.sequences * usable;
    const std::vector<int> places = numbers_to(n);
    for (int at = 0; at < n; at += o.batch_size) {
      fill_batch(shard, places.data() + at, std::min(o.batch_size, n - at), ahead(), false, batch);
      trainer.loss(batch);
      for (int k = 0; k < ahead(); k++)
        for (int row = 0; row < batch.rows; row++)
          heads[size_t(k)].count(trainer.logits(k, row), trainer.sizes.vocab_size,
                                 batch.target[size_t(k * batch.rows + row)], double(trainer.cost(k, row)));
      for (int row = 0; row < batch.rows; row++) baselines.count(batch.root[size_t(row)], batch.target[size_t(row)]);
    }
  }
  void save(const std::string& dir, const Metadata& origin) const {
    save_medusa(dir, trainer.sizes, trainer.weights.data(), origin);
  }
  static std::map<std::string, std::string> settings(const MedusaSizes& s) {
    return {{"heads", std::to_string(s.heads)}, {"rank", std::to_string(s.rank)}, {"root", std::to_string(s.root)}};
  }
  std::string described() const { return " in " + std::to_string(ahead()) + " heads"; }
  void stats(Json& stats) const {
    stats["medusa_heads"] = o.sizes.heads;
    stats["medusa_rank"] = o.sizes.rank;
    stats["medusa_root"] = o.sizes.root;
  }
};

inline int train_medusa(int argc, char** argv) { return train_drafter<MedusaTraining>(argc, argv); }

}  // namespace nanospec
