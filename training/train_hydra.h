// training/train_hydra.h: training heads on what the model itself said: those that see the path, train_drafter --hydra
// MODEL; and Medusa's, which see the root alone, train_drafter --medusa MODEL where the data are such texts.
//
// In order: the trainer; its options. The lessons are in lessons.h, the loop and the program in train_drafter.h.
#pragma once

#include "training/train_drafter.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The trainer

// The embeddings of n tokens, (n, C).
using Embeddings = std::function<void(const int* tokens, int n, float* to)>;

// Its examples are pieces of a shard of examples. Guess k = 0 .. K - 1 is made at the node of the k-th token behind the
// root, the root's own for k = 0, and is to say the token after that. Of Medusa's heads each is at the root.
template <class T>
class HydraTrainer : public DrafterTrainer<T> {
  using typename DrafterTrainer<T>::Said;

 public:
  const HydraSizes sizes;

  // class_of: (V) which guess a token is; ahead: K; rows: most of an update.
  HydraTrainer(const HydraSizes& s, std::vector<int> class_of, Embeddings embeddings, int ahead, int rows, Pool& pool)
      : DrafterTrainer<T>(hydra_table(s), pool),
        sizes(s),
        class_of_(std::move(class_of)),
        embeddings_(std::move(embeddings)),
        K_(ahead),
        most_(rows) {}

 private:
  T run(const Examples& some, bool with_gradient, const Said& said) override {
    const int R = some.n;
    load(some);
    this->pool_.run([&](const Team& team) { run(team, R, with_gradient); });
    for (int row = 0; said && row < K_ * R; row++)
      said(row / R, class_of_[size_t(token_[size_t(row)])], target_[size_t(row)], a_.logits.at(0, row),
           losses_.data()[row]);
    return loss_.data()[0];
  }
  void pack(const Team& team) const override { packed_.pack(team); }

  // Rows k R .. k R + R - 1 are the nodes of the k-th token behind the roots.
  void load(const Examples& some) {
    const int R = some.n, C = sizes.n_embd;
    for (int i = 0; i < R; i++) {
      std::copy_n(some.shard.state(some.pieces[i], 0), sizes.features(), a_.features.at(0, i));
      const int32_t* const tokens = some.shard.tokens(some.pieces[i]) + 1;  // from the root on
      for (int k = 0; k < K_; k++) {
        token_[size_t(k * R + i)] = tokens[sees_root(k) ? 0 : k];
        target_[size_t(k * R + i)] = class_of_[size_t(tokens[k + 1])];
      }
    }
    embeddings_(token_.data(), K_ * R, embedded_.data());
    for (int row = 0; row < K_ * R; row++)
      std::copy_n(embedded_.data() + size_t(row) * size_t(C), C, a_.input.at(0, row) + sizes.width);
  }
  bool sees_root(int k) const { return k == 0 || sizes.heads > 0; }
  int step_of(int k) const { return sizes.heads > 0 ? k : 0; }
  View<T> above(int k, int R) const { return sees_root(k) ? view(a_.above, 0) : view(a_.state, (k - 1) * R); }

  void run(const Team& team, int R, bool with_gradient) {
    const int rows = K_ * R;
    project_features(team, R, sizes.n_embd, false, view(a_.features, 0), packed_.features, view(a_.above, 0));
    for (int k = 0; k < K_; k++) hydra_step(team, sizes, packed_, step_of(k), k * R, R, above(k, R), a_);
    hydra_guess(team, sizes, packed_, rows, a_);
    const int V = int(a_.logits.stride);
    loss_of_rows(team, rows,
                 CrossEntropy<T>{a_.logits.data(), V, sizes.classes(), target_.data(), losses_.data(), with_gradient,
                                 T(1) / T(rows)});
    if (with_gradient) backward(team, R);
    launch_sum(team, Mean<T>{losses_.data(), rows, loss_.data()});
  }

  // With dlogits where the logits were.
  void backward(const Team& team, int R) {
    const int rows = K_ * R, S = sizes.width, C = sizes.n_embd, N = sizes.classes();
    const int s_row = int(a_.state.stride), low_row = int(a_.low.stride), logits_row = int(a_.logits.stride);
    const T* const dlogits = a_.logits.data();
    matmul_gradient(team, MatmulGradient<T>{rows, N, C, dlogits, logits_row, a_.low.data(), low_row, by_name_.guess});
    matmul(team, rows, Matmul<T, T>{dlogits, logits_row, packed_.guess.transposed, dlow_.data(), low_row});
    team.wait();
    matmul_gradient(team, MatmulGradient<T>{rows, S, C, a_.norm.data(), s_row, dlow_.data(), low_row, by_name_.down});
    matmul(team, rows, Matmul<T, T>{dlow_.data(), low_row, packed_.down.transposed, dnorm_.data(), s_row});
    zero(team, dstate_.data(), dstate_.size());
    zero(team, dabove_.data(), dabove_.size());
    team.wait();
    launch(team, rows,
           norm_backward(norm_of_states(sizes, view(a_.state, 0), view(a_.norm, 0), a_.rstd.data()), view(dnorm_, 0),
                         view(dstate_, 0)));
    for (int k = K_ - 1; k >= 0; k--) step_backward(team, R, k);
    matmul_gradient(team, MatmulGradient<T>{R, sizes.features(), S, a_.features.data(), int(a_.features.stride),
                                            dabove_.data(), s_row, by_name_.features});
    team.wait();
  }
  // s = p + SiLU(pre), pre = W [n(p); n(e)] + b.
  void step_backward(const Team& team, int R, int k) {
    const int S = sizes.width, in_row = int(a_.input.stride), s_row = int(a_.state.stride), first = k * R;
    T *const dstate = dstate_.at(0, first), *const dpre = dpre_.data();
    const View<T> dparent = sees_root(k) ? view(dabove_, 0) : view(dstate_, first - R);
    const size_t its = size_t(step_of(k));
    add(team, dstate, dpre, size_t(R) * size_t(s_row), true);
    add(team, dstate, dparent.at, size_t(R) * size_t(s_row));
    launch_columns(team, R, S, SiluBackward<T>{a_.pre.at(0, first), dpre, s_row});
    matmul_gradient(team, MatmulGradient<T>{R, sizes.inputs(), S, a_.input.at(0, first), in_row, dpre, s_row,
                                            by_name_.step[its], by_name_.bias[its]});
    matmul(team, R, Matmul<T, T>{dpre, s_row, packed_.step[its].transposed, dinput_.data(), in_row});
    team.wait();
    launch(team, R,
           norm_backward(norm_of_states(sizes, above(k, R), view(a_.input, first), a_.rstd_in.at(0, first)),
                         view(dinput_, 0), dparent));
  }

  const std::vector<int> class_of_;  // (V)
  const Embeddings embeddings_;
  const int K_, most_;  // guesses of an example; examples
  HydraWeights<T, T> packed_{sizes, this->weights.data(), true};
  HydraTensors<T> by_name_{sizes, this->gradient.data()};
  HydraActivations<T> a_{sizes, most_, K_* most_};
  Rows<T> dlow_ = a_.of(a_.R, sizes.n_embd), dnorm_ = a_.of(a_.R, sizes.width), dstate_ = a_.of(a_.R, sizes.width);
  Rows<T> dabove_ = a_.of(most_, sizes.width), dpre_ = a_.of(most_, sizes.width);  // (R, S)
  Rows<T> dinput_ = a_.of(most_, sizes.inputs());                                  // (R, S + C)
  Array<T> losses_{size_t(K_ * most_)}, loss_{1};
  std::vector<int> token_ = std::vector<int>(size_t(a_.R)), target_ = token_;  // (K R) of nodes; classes that came
  std::vector<float> embedded_ = std::vector<float>(size_t(a_.R) * size_t(sizes.n_embd));  // (K R, C)
};

// ---------------------------------------------------------------------------------------------------------------
// Its options

struct HydraOptions : DrafterOptions {
  int ahead_tokens = 4, width = 0;
  HydraSizes sizes;

  explicit HydraOptions(const std::string& name = "hydra")
      : DrafterOptions({name, "heads", "depth", Recorded::kExamples}) {
    batch_size = 256;
  }
  bool sees_path() const { return words.name == "hydra"; }
  Command command() override {
    const std::string flag = "--" + words.name;
    const std::vector<Flag> own = {
        heading("Heads"),
        {sees_path() ? "--hydra_ahead" : "--medusa_heads", "N", &ahead_tokens,
         sees_path() ? "how many tokens of a path they learn to say"
                     : "how many: head k says the k-th token after the next",
         from(1, kMostAhead)},
        {flag + "_width", "N", &width, "numbers of a state; 0: twice the model's channels", from(0, kMaxChannels)}};
    const std::string see = sees_path() ? "that see the path" : "that see the root";
    return {"train_drafter " + flag,
            "Trains heads " + see + " on MODEL, which stays as it is, for nanospec --drafter " + words.name +
                ". They learn from what the model itself said: nanospec distill writes that. Runs on the CPU.",
            "nanospec distill --model models/SmolLM2-135M-Instruct.Q4_1.gguf --tokens 800k --out said.jsonl\n"
            "train_drafter " +
                flag + " models/SmolLM2-135M-Instruct.Q4_1.gguf --data said.jsonl\n",
            drafter_flags(*this, own)};
  }
  void set_sizes(const DrafterRun& run) override {
    const int C = run.model.config.n_embd;
    sizes = {C, width > 0 ? width : 2 * C, run.guesses, sees_path() ? 0 : ahead_tokens};
  }
  Metadata settings() const override {
    return {{"ahead", std::to_string(ahead_tokens)}, {"width", std::to_string(sizes.width)}};
  }
  int ahead() const override { return ahead_tokens; }
  std::unique_ptr<DrafterTrainer<float>> trainer(const DrafterRun& run, Pool& pool) const override {
    const auto embeddings = [its = lessons](const int* tokens, int n, float* to) { its->embeddings(tokens, n, to); };
    auto heads = std::make_unique<HydraTrainer<float>>(sizes, lessons->class_of, embeddings, ahead_tokens,
                                                       std::min(batch_size, run.sizes.sequences), pool);
    heads->set_weights(lessons->initial(hydra_table(sizes), seed).data());
    return heads;
  }
  std::string described() const override {
    return filled(", {} tokens {}, {} different ones", ahead_tokens, sees_path() ? "of a path" : "behind the root",
                  thousands(sizes.tokens));
  }
  void add_figures(Json& stats) const override {
    stats.update({{sees_path() ? "hydra_ahead" : "medusa_heads", ahead_tokens},
                  {words.name + "_width", sizes.width},
                  {words.name + "_vocabulary", sizes.tokens}});
  }
};

}  // namespace nanospec
