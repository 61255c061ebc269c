// train.h: the gradients of a model, and what training does with them: forward, backward, update.
//
// In order: the gradients of activations; backward, which walks model.h's forward from its end to its beginning; the
// update of whatever is trained; `Trainer`, which owns what the training of a model needs. The file knows nothing of
// decoding.
//
// T is the number type: float, or double for the gradient check. Shapes are model.h's.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "machine/launch_gradients.h"
#include "model.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Backward

// The gradients of activations. One layer's arrays serve for all layers in turn, except, perhaps, those of k and v.
template <class T>
struct Gradients {
  const Activations<T>& a;
  // Whether there are gradients of every layer's keys and values, the past's too. Then backward() adds to what is in
  // them; else it begins at zero.
  bool past_gradients = false;

  static constexpr bool portable = !kTuned || !std::is_same<T, float>::value;  // attention is the portable version
  Rows<T> stream = a.once(a.R, a.C);                                           // (R, C) the residual stream's
  Rows<T> norm = a.once(a.R, a.C);                                             // (R, C) a norm's
  Rows<T> branch = a.once(a.R, a.C);  // (R, C) the part of the stream's that flows into a branch with dropout
  Rows<T> qkv = a.once(a.R, a.Q);     // (R, H D + 2 KV D)
  Rows<T> att = a.once(a.R, a.A);     // (R, H D)
  Rows<T> k = a.rows_of(past_gradients ? a.L : 1, 1, a.v_layer);  // (1, KV, slots, pad16(D)), or (L, ...)
  Rows<T> v = a.rows_of(past_gradients ? a.L : 1, 1, a.v_layer);
  // Scratch of attention: attention_backward() says what it needs.
  Rows<T> p = a.once(portable || a.cuda ? a.R : 0, size_t(a.H) * (portable ? a.slots : 1));
  Rows<T> ds = a.once(portable ? a.R : 0, size_t(a.H) * a.slots);
  Rows<int> order =
      a.template rows_of<int>(1, a.cuda ? 2 : 0, a.R);  // scratch of the embedding on a GPU: rows by token
};

// The gradient of a weight (in, out) and its bias: of out = x W + b, where dy is the gradient of out.
template <class T>
MatmulGradient<T> weight_gradient(int rows, View<T> x, int in, View<T> dy, int out, T* dw, T* dbias) {
  return {rows, in, out, x.at, x.stride, dy.at, dy.stride, dw, dbias};
}
// The gradients of a norm's weight and bias.
template <class T>
NormWeights<T> norm_gradient(int rows, const Norm<T>& s, View<T> dy, T* dweight, T* dbias) {
  return {rows, s.x, s.x_row, s.channels, s.center ? s.mean : nullptr, s.rstd, dy.at, dy.stride, dweight, dbias};
}
// The gradient through one norm: dy (R, C) comes from above, and adds to dx (R, C).
template <class T>
NormBackward<T> norm_backward(const Norm<T>& s, View<T> dy, View<T> dx) {
  return {s.x, s.x_row, s.channels, s.weight, s.center ? s.mean : nullptr, s.rstd, dy.at, dy.stride, dx.at};
}

// The gradient through norm and product, of y = norm(x) W: from dy to dx, by way of `between`, the norm's.
template <class T, class W>
void back_to_stream(const RowBlock& b, View<T> dy, const Weight<T, W>& w, const Norm<T>& norm, View<T> between,
                    View<T> dx) {
  matmul(b.team, b.rows, product(dy, w.transposed, between));
  b.team.wait();
  launch(b.team, b.rows, norm_backward(norm, between, dx));
}

// The gradient of pre (R, a.G), into pre, from dy, that of act W. Then act is again what the forward had there, and did
// not store.
template <class T, class W>
void activate_backward(const RowBlock& b, const Config& c, View<T> dy, const Weight<T, W>& w, View<T> pre,
                       View<T> act) {
  const auto through = product(dy, w.transposed, act);
  if (!c.swiglu) {
    matmul(b.team, b.rows, through, GeluBackward<T>{pre.at, act.at, act.stride, c.tanh});
    return b.team.wait();
  }
  matmul(b.team, b.rows, through);
  b.team.wait();
  launch(b.team, b.rows, SwiGluBackward<T>{pre.at, pre.stride, c.inner(), act.at, act.stride});
}

// The gradient through the last norm and the head: into g.stream.
template <class T, class W>
void head_backward(const Team& team, const Config& c, const Weights<T, W>& w, const RowBlock& all,
                   const Activations<T>& a, const Gradients<T>& g, const Tensors<T>& d) {
  zero(team, g.stream.data(), size_t(all.rows) * a.C);
  matmul_gradient(team, weight_gradient<T>(all.rows, a.logits(0, all), c.vocab_size, a.norm_f(0, all), c.n_embd,
                                           c.tied ? d.wte : d.lm_head, nullptr));
  by_blocks(team, all.rows, a.row_bytes(), [&](const RowBlock& b) {
    back_to_stream(b, a.logits(0, b), w.head, last_norm(a, w, c.n_layer, b), g.norm(0, b), g.stream(0, b));
  });
  norm_weights(team, norm_gradient(all.rows, last_norm(a, w, c.n_layer, all), g.norm(0, all), d.ln_f, d.ln_f_bias));
}

// Queries and keys, of all rows, turn back, and go back through their norms.
template <class T, class W>
void head_norms_backward(const RowBlock& all, const Activations<T>& a, const Weights<T, W>& w, int l,
                         const Attention<T>& heads, const Gradients<T>& g, const typename Tensors<T>::Layer& d) {
  if (a.config.rotary) turn(all, heads, g.qkv.data(), w.rope, true);
  all.team.wait();
  const HeadNorm<T> norm = head_norm(a, w, l, all);
  for (int head = 0; head < norm.heads; head++) {
    const Norm<T> its = norm.at(0, head);
    const bool query = head < norm.n_head;
    norm_weights(all.team,
                 NormWeights<T>{all.rows, norm.raw + head * a.D, a.Q, a.D, nullptr, its.rstd,
                                g.qkv.at(0, all.row) + head * a.D, a.Q, query ? d.q_norm : d.k_norm, nullptr});
    all.team.wait();
  }
  launch(all.team, all.rows * norm.heads, HeadNormBackward<T>{norm, g.qkv.at(0, all.row)});
  all.team.wait();
}

// Adds every parameter's gradient to d. It follows a forward whose a.logits have become dlogits; without a vocabulary
// g.stream is the gradient of the last x, and becomes that of the first. Every thread of the team calls it.
template <class T, class W>
void backward(const Team& team, const Config& c, const Weights<T, W>& w, const DeviceBatch& batch,
              const Activations<T>& a, const Gradients<T>& g, const Tensors<T>& d, const Dropout& dropout = {}) {
  const int R = batch.forest.rows, C = c.n_embd, A = c.heads_size(), F = c.inner(), Q = c.qkv_size();
  const RowBlock all{team, 0, R, 0};
  // Norms and act are computed again, and all rows of them are kept, for the gradients of weights.
  const auto blocks = [&](const auto& f) {
    by_blocks(team, R, a.row_bytes(), [&](const RowBlock& b) { f(RowBlock{b.team, b.row, b.rows, b.row}); });
  };
  // The gradient that flows from the stream into a branch, through the branch's dropout, lies in dout.
  const Rows<T>& dout = dropout.rate == 0 ? g.stream : g.branch;
  const auto into_branch = [&](const RowBlock& b, int l, int site) {
    T *const from = g.stream.at(0, b.row), *const to = g.branch.at(0, b.row);
    drop(b.team, b.rows, Drop<T>{from, to, a.C, C, dropout_at(dropout, l, site, b.row)});
  };

  if (c.vocab_size) head_backward(team, c, w, all, a, g, d);  // logits = norm_f(x) wte^T
  for (int l = c.n_layer - 1; l >= 0; l--) {
    const auto& layer = w.layers[l];
    const auto& dl = d.layers[l];
    // x of the next layer = mid + act W + bias
    blocks([&](const RowBlock& b) {
      into_branch(b, l, kDropMlp);
      activate_backward(b, c, dout(0, b), layer.fc_proj, a.pre(l, b), a.act.in_scratch(b));
    });
    matmul_gradient(team, weight_gradient(R, a.act(0, all), F, dout(0, all), C, dl.fc_proj, dl.fc_proj_bias));
    team.wait();  // the gradient of the stream goes on to mid
    blocks([&](const RowBlock& b) {
      // pre = norm_2(mid) W + bias
      launch(b.team, b.rows, norm_2(a, w, l, b));
      back_to_stream(b, a.pre(l, b), layer.fc, norm_2(a, w, l, b), g.norm(0, b), g.stream(0, b));
      // mid = x + att W + bias
      into_branch(b, l, kDropProjection);
      matmul(b.team, b.rows, product(dout(0, b), layer.proj.transposed, g.att(0, b)));
      b.team.wait();
    });
    matmul_gradient(team, weight_gradient(R, a.norm_2(0, all), C, a.pre(l, all), c.hidden(), dl.fc, dl.fc_bias));
    norm_weights(team, norm_gradient(R, norm_2(a, w, l, all), g.norm(0, all), dl.ln_2, dl.ln_2_bias));
    matmul_gradient(team, weight_gradient(R, a.att(l, all), A, dout(0, all), C, dl.proj, dl.proj_bias));
    // att = attention(qkv, cache)
    const Attention<T> heads = attention_of(team, batch, a, l, dropout);
    attention_backward(
        team, AttentionBackward<T>{heads, g.att.data(), g.k.at(l, 0), g.v.at(l, 0), g.qkv.data(), g.past_gradients},
        g.p.data(), g.ds.data(), a.slots);
    // qkv = norm_1(x) W + bias
    if (c.qk_norm) head_norms_backward(all, a, w, l, heads, g, dl);
    blocks([&](const RowBlock& b) {
      launch(b.team, b.rows, norm_1(a, w, l, b));
      if (c.rotary && !c.qk_norm) turn(b, heads, g.qkv.data(), w.rope, true);
      back_to_stream(b, g.qkv(0, b), layer.qkv, norm_1(a, w, l, b), g.norm(0, b), g.stream(0, b));
    });
    matmul_gradient(team, weight_gradient(R, a.norm_1(0, all), C, g.qkv(0, all), Q, dl.qkv, dl.qkv_bias));
    norm_weights(team, norm_gradient(R, norm_1(a, w, l, all), g.norm(0, all), dl.ln_1, dl.ln_1_bias));
    team.wait();  // the next layer's norms overwrite these
  }
  if (!c.vocab_size) return;
  T* const dx = g.stream.data();
  drop(team, R, Drop<T>{dx, dx, a.C, C, dropout_at(dropout, c.n_layer, kDropEmbedding)});
  embed_backward(team, EmbedBackward<T>{R, batch.token(), batch.forest, dx, a.C, C, d.wte, d.wpe}, g.order.data());
}

// ---------------------------------------------------------------------------------------------------------------
// The update

// What one AdamW update needs to know; names and defaults are nanoGPT's.
struct Update {
  int64_t iteration = 0;  // updates made before this one
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.99, weight_decay = 0.1, grad_clip = 1.0;
};

// The learning rate: a warm-up, then a cosine down to the lowest rate (Loshchilov, Hutter 2017), as nanoGPT's get_lr.
inline double cosine_rate(int64_t iteration, int warmup, int decay, double most, double least) {
  if (iteration < warmup) return most * double(iteration + 1) / (warmup + 1.0);
  if (iteration > decay) return least;
  const double decayed = double(iteration - warmup) / std::max(1, decay - warmup);
  return least + 0.5 * (1 + cos(3.14159265358979323846 * decayed)) * (most - least);
}

// What is trained: the tensors of one table in a flat array, with their gradient and AdamW's moments, which begin at
// zero. Who derives from it packs the weights as its forward reads them.
template <class T>
class Trained {
 public:
  const std::vector<TensorSpec> table;
  const size_t size = table.back().offset + table.back().size;
  Array<T> weights, gradient, m, v;  // flat: `table` says what lies where

  Trained(std::vector<TensorSpec> tensors, Pool& pool)
      : table(std::move(tensors)),
        weights(size, pool.cuda()),
        gradient(size, pool.cuda()),
        m(size, pool.cuda()),
        v(size, pool.cuda()),
        pool_(pool),
        norm_(2, pool.cuda()) {
    std::vector<Piece> pieces;
    const size_t most = pool.cuda() ? 1024 : 8192;  // of one piece: on a GPU, so few that a small model's fill it
    for (const TensorSpec& spec : table)
      for (size_t at = 0; at < spec.size; at += most)
        pieces.push_back({spec.offset + at, int(std::min(most, spec.size - at)), spec.decay ? 1.0f : 0.0f});
    pieces_ = Array<Piece>(pieces.size(), pool.cuda());
    pieces_.upload(pieces.data(), pieces.size());
    squares_ = Array<T>(pieces.size(), pool.cuda());
  }
  virtual ~Trained() = default;

  // Sets the parameters; the moments stay as they are.
  void set_weights(const T* flat) {
    weights.upload(flat, size);
    pool_.run([&](const Team& team) { pack(team); });
  }
  // One AdamW update with `gradient` as it is, after all of it has been clipped.
  void apply(const Update& update) {
    pool_.run([&](const Team& team) { apply(team, update); });
  }

 protected:
  void apply(const Team& team, const Update& u) const {
    const int pieces = int(pieces_.size());
    const int64_t t = u.iteration + 1;
    launch(team, pieces, SumSquares<T>{pieces_.data(), gradient.data(), squares_.data()});
    launch_sum(team, ClipFactor<T>{squares_.data(), pieces, T(u.grad_clip), norm_.data()});
    launch(
        team, pieces,
        AdamW<T>{pieces_.data(), weights.data(), m.data(), v.data(), gradient.data(), norm_.data(), T(u.learning_rate),
                 T(u.weight_decay), T(u.beta1), T(u.beta2), T(1 - power(u.beta1, t)), T(1 - power(u.beta2, t))});
    pack(team);
  }
  virtual void pack(const Team& team) const = 0;

  Pool& pool_;

 private:
  Array<T> norm_, squares_;
  Array<Piece> pieces_;
};

// ---------------------------------------------------------------------------------------------------------------
// Trainer

// Everything that training needs: parameters, their packed forms, gradients, moments, and what a forward computes.
//
// On a CPU the first half of a batch's sequences and the second have a gradient each, and the two are added, whatever
// the threads. So the halves of a team need neither wait for each other nor read what lies in the other's caches.
template <class T>
class Trainer : public Trained<T> {
 public:
  using Trained<T>::gradient, Trained<T>::weights;
  const Config config;

  Trainer(const Config& sizes, Pool& pool) : Trained<T>(tensor_table(sizes), pool), config(sizes) {}

  // Sets the parameters to their initial values.
  void initialize(uint64_t seed) {
    const std::vector<float> values = initial_weights(config, seed);
    this->set_weights(std::vector<T>(values.begin(), values.end()).data());
  }

  // The mean cross-entropy of batch.target (natural logarithm).
  T loss(const Batch& batch, const Dropout& dropout = {}) {
    return run(batch, [&](const Team& team) { loss_of_batch(team, false, dropout); });
  }
  // The same, and sets `gradient`: that of the loss divided by `parts`.
  T loss_and_gradient(const Batch& batch, const Dropout& dropout = {}, int parts = 1) {
    return run(batch, [&](const Team& team) { loss_of_batch(team, true, dropout, parts); });
  }
  // One update of training; returns the loss before it.
  T step(const Batch& batch, const Update& update, const Dropout& dropout = {}) {
    return run(batch, [&](const Team& team) {
      loss_of_batch(team, true, dropout);
      this->apply(team, update);
    });
  }

 private:
  using Trained<T>::pool_;
  // Half of a batch, or all of it: what its forward and backward compute.
  struct Half {
    const Array<T>& sums;  // every parameter's gradient
    Tensors<T> by_name;
    Activations<T> activations;
    Gradients<T> gradients;
    DeviceBatch batch;
    int first_row = 0;
    Half(const Config& c, const Batch& b, Pool& pool, const Array<T>& gradient)
        : sums(gradient),
          by_name(c, sums.data()),
          activations(c, b.rows(), b.slots(), true, pool.size(), pool.cuda()),
          gradients{activations},
          batch(b.rows(), b.roots(), pool.cuda()) {}
  };

  void upload(const Batch& batch) {
    count_ = pool_.cuda() || batch.roots() < 2 ? 1 : 2;
    if (losses_.size() < size_t(batch.rows())) losses_ = Array<T>(size_t(batch.rows()), pool_.cuda());
    if (count_ == 2 && second_.size() == 0) second_ = Array<T>(gradient.size());
    for (int i = 0; i < count_; i++) {
      const int first = batch.roots() * i / count_;
      const Batch its = batch.part(first, batch.roots() * (i + 1) / count_);
      auto& half = halves_[i];
      if (!half || !half->batch.holds(its) || half->activations.slots < its.slots()) {
        half.reset();  // before the next one takes its memory
        half.reset(new Half(config, its, pool_, i == 0 ? gradient : second_));
      }
      half->batch.upload(its);
      half->first_row = batch.first_row[first];
    }
    rows_ = batch.rows();
  }
  // Runs f(team) on the batch; returns the loss.
  template <class F>
  T run(const Batch& batch, F f) {
    upload(batch);
    pool_.run(f);
    T loss = 0;
    loss_.download(&loss, 1);
    return loss;
  }
  // Sets loss_ and, with_gradient, the gradient of the loss over `parts`.
  void loss_of_batch(const Team& team, bool with_gradient, const Dropout& dropout, int parts = 1) {
    const T scale = T(1) / (T(rows_) * T(parts));
    const auto run = [&](const Team& some, int i) { loss_of_half(some, *halves_[i], with_gradient, scale, dropout); };
    if (count_ == 2) team.halves(run);
    else run(team, 0);
    launch_sum(team, Mean<T>{losses_.data(), rows_, loss_.data()});
    if (with_gradient && count_ == 2) add(team, second_.data(), gradient.data(), gradient.size());
  }
  void loss_of_half(const Team& team, const Half& half, bool with_gradient, T scale, Dropout dropout) {
    const Activations<T>& a = half.activations;
    dropout.first_row = half.first_row;
    if (with_gradient) zero(team, half.sums.data(), half.sums.size());
    forward(team, config, packed_, half.batch, a, half.batch.forest.rows, dropout);
    loss_of_rows(team, half.batch.forest.rows,
                 CrossEntropy<T>{a.logits.data(), a.V, config.vocab_size, half.batch.target(),
                                 losses_.data() + half.first_row, with_gradient, scale});
    if (!with_gradient) return;
    backward(team, config, packed_, half.batch, a, half.gradients, half.by_name, dropout);
    team.wait();
  }
  void pack(const Team& team) const override { packed_.pack(team); }

  Weights<T, T> packed_{config, {config, weights.data()}, pool_.cuda()};
  std::unique_ptr<Half> halves_[2];
  int count_ = 1, rows_ = 0;                          // of halves (1: all in one), of the batch's rows
  Array<T> losses_, loss_{1, pool_.cuda()}, second_;  // second_: the gradient of the second half
};

// ---------------------------------------------------------------------------------------------------------------
// Compiled once: machine/library.cpp

#ifdef INSTANTIATE
INSTANTIATE void backward(const Team&, const Config&, const Weights<float, float>&, const DeviceBatch&,
                          const Activations<float>&, const Gradients<float>&, const Tensors<float>&, const Dropout&);
INSTANTIATE class Trained<float>;
INSTANTIATE class Trainer<float>;
#endif

}  // namespace nanospec
