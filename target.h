// target.h: the model that decodes.
//
// In order: which layers' features a drafter may read; `Target`: packed weights, one sequence's cache, and passes of
// one tree through the forward of model.h. On a GPU it runs whole passes of decoding (cuda/iteration.cuh), and may
// draft from a table that it is given. It knows no drafters, files or command lines.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <variant>
#include <vector>

#include "model.h"
#ifdef WITH_CUDA
#include "cuda/iteration.cuh"
#endif

namespace nanospec {

enum class Dtype { fp32, bf16 };

// After how many layers a drafter reads the residual stream, unnormalized: an early, a middle and the last one
// (EAGLE-3, Li et al. 2025). A model of fewer than three layers is read at one place more than once.
constexpr int kFeatures = 3;
inline std::vector<int> feature_layers(int n_layer) { return {(n_layer + 3) / 4, (n_layer + 1) / 2, n_layer}; }

// The model that decodes: packed weights, one sequence's cache, and passes of one tree. It is what decode.h asks of a
// target; the loop there says how its calls follow each other.
class Target {
 public:
  // weights: the flat array of tensor_table(config), in host memory. most_rows: the largest tree, its root counted.
  // Throws std::bad_alloc, or std::runtime_error from the GPU.
  Target(const Config& config, const float* weights, Dtype dtype, bool cuda, int threads, int most_rows,
         Dtype cache_dtype = Dtype::fp32)
      : Target(config, weights, dtype, std::make_shared<Pool>(threads, cuda), most_rows, cache_dtype) {}
  // The same on another target's threads: the two run by turns.
  Target(const Config& config, const float* weights, Dtype dtype, std::shared_ptr<Pool> pool, int most_rows,
         Dtype cache_dtype = Dtype::fp32)
      : config_(config),
        pool_(std::move(pool)),
        most_rows_(std::max(most_rows, config.block_size)),
        plain_(parameter_count(config), pool_->cuda()),
        pass_(most_rows_, 1, pool_->cuda()),
        kept_(pool_->cuda() ? 0 : most_rows_) {
    const bool cuda = pool_->cuda();
    plain_.upload(weights, plain_.size());
    if (dtype == Dtype::fp32) weights_ = Weights<float, float>(config, plain_.data(), false, cuda);
    else weights_ = Weights<float, bf16>(config, plain_.data(), false, cuda);
    std::visit([&](auto& w) { pool_->run([&](const Team& team) { w.pack(team); }); }, weights_);
    const int slots = pad64(config.block_size + most_rows_);
    if (cache_dtype == Dtype::fp32)
      activations_ = Activations<float, float>(config, most_rows_, slots, false, pool_->size(), cuda);
    else activations_ = Activations<float, bf16>(config, most_rows_, slots, false, pool_->size(), cuda);
    std::visit([&](auto& a) { device_logits_ = &a.logits, norm_ = a.norm_f.data(), C_ = a.C, V_ = a.V; }, activations_);
#ifdef WITH_CUDA
    if (cuda) iterations_.reset(new Iterations(most_rows_, config.vocab_size, device_logits_->data(), V_));
#endif
    if (!cuda) choose_threads();
  }

  int block_size() const { return config_.block_size; }
  int vocab_size() const { return config_.vocab_size; }
  int past() const { return past_; }
  // From now on all runs on the calling thread, so that another target may use the pool's meanwhile; or no longer.
  void alone(bool alone) { alone_ = alone; }
  int layers() const { return config_.n_layer; }
  int most_rows() const { return most_rows_; }  // of one forward
  const std::shared_ptr<Pool>& pool() const { return pool_; }
  int threads() const { return pool_->size(); }
  bool cuda() const { return pool_->cuda(); }
  // For drafters that share what is the target's, on a CPU: f(team) on its threads, for a pass of so many rows, alone()
  // or not; its embedding, (V, C); its final norm and head on `rows` rows of a residual stream, with norm (rows, x_row)
  // as scratch and logits (rows, pad16(V)). Every thread of the team calls the last one.
  template <class F>
  void beside(int rows, F&& f) const {
    pool_->run(f, rows <= rows_alone_);
  }
  const float* embedding() const { return plain_.data(); }
  void head(const Team& team, int rows, const float* x, int x_row, float* norm, float* logits) const {
    const Tensors<const float>& plain = std::visit(
        [](const auto& w) -> const auto& { return w.plain; }, weights_);
    launch(team, rows,
           LayerNorm<float>{x, x_row, config_.n_embd, plain.ln_f, plain.ln_f_bias, norm, x_row, nullptr, nullptr});
    const auto multiply = [&](const auto& panels) {
      using W = std::remove_pointer_t<decltype(panels.data)>;
      matmul(team, rows, Matmul<float, W>{norm, x_row, panels, logits, V_});
    };
    std::visit([&](const auto& w) { multiply(w.head.forward); }, weights_);
    team.wait();
  }
  size_t weight_bytes() const {
    return std::visit([](const auto& w) { return w.bytes(); }, weights_);
  }
  // Bytes of keys and values that a row reads of each position before it.
  size_t cache_bytes() const {
    return std::visit([&](const auto& a) { return (a.k_layer + a.v_layer) / a.slots * sizeof(*a.k.data()); },
                      activations_) *
           config_.n_layer;
  }

  // Forgets the cache, then caches n tokens at positions 0 .. n - 1.
  void prefill(const int* tokens, int n) {
    past_ = 0;
    if (n == 0) return;
    rows_.clear();
    rows_.add_chain(tokens, n, 0, 0);
    pass_.upload(rows_);
    run(pass_, false);
    if (float one; cuda()) device_logits_->download(&one, 1);  // waits: who times a prefill means all of it
    past_ = n;
  }
  // The rows of one tree in preorder, row i at position past() + depth[i]; their logits are kept for logits().
  // layers: how many of the first ones are run before the final norm and the head; 0: all.
  void forward(const int* token, const int* depth, const int* end, int n, int layers = 0) {
    rows_.clear();
    rows_.add_tree(token, depth, end, n, 0, past_);
    pass_.upload(rows_);
    run(pass_, true, layers);
    if (!cuda()) return;
    logits_.resize(std::max(logits_.size(), size_t(n) * V_));
    device_logits_->download(logits_.data(), size_t(n) * V_);
  }
  const float* logits(int row) const { return (cuda() ? logits_.data() : device_logits_->data()) + size_t(row) * V_; }
  // (C) the final norm's output for a row of the last forward; null where it lies on a GPU.
  const float* hidden(int row) const { return cuda() ? nullptr : norm_ + size_t(row) * C_; }
  // From now on a forward keeps the residual stream after so many layers (1 .. n_layer), side by side, for features().
  // A prefill keeps none, and neither does a GPU. To be called between passes; costs nothing where nobody calls it.
  void tap(const std::vector<int>& layers) {
    if (cuda() || layers == taps_) return;
    taps_ = layers, tapped_ = false;
    features_.resize(size_t(most_rows_) * layers.size() * size_t(config_.n_embd));
  }
  void tap() { tap(feature_layers(config_.n_layer)); }
  // (taps C) what was kept of a row of the last forward; null where it was not tapped, or ran too few layers for that.
  const float* features(int row) const {
    return tapped_ ? features_.data() + size_t(row) * taps_.size() * size_t(config_.n_embd) : nullptr;
  }
  // The rows of the last forward (ascending) that join the past; the others are forgotten.
  void keep(const int* rows, int n) {
    bool moves = false;
    for (int i = 0; i < n; i++) moves = moves || rows[i] != i;
    if (moves) std::visit([&](auto& a) { move_rows(a, rows, n); }, activations_);
    past_ += n;
  }
#ifdef WITH_CUDA
  // Whole passes on the GPU: forward, picks by `sampling` from place `index` of the text on, the walk by rule match,
  // and keep() of the verdict's rows. The second drafts the tree itself, from the table that hold() has been given.
  bool iterates() const { return cuda(); }
  Verdict iterate(const Tree& tree, const Sampling& sampling, int64_t index) {
    const Verdict verdict = iterations_->run(tree, sampling, index, past_, Launches{this});
    return past_ += int(verdict.rows.size()), verdict;
  }
  bool hold(const Iterations::Table& table, int depth, int width) { return iterations_->hold(table, depth, width); }
  Verdict iterate_drafting(int root, int depth, int width, float scale, const Sampling& sampling, int64_t index,
                           std::vector<Candidate>& drafted) {
    const Verdict verdict =
        iterations_->run_drafting(root, depth, width, scale, sampling, index, past_, drafted, Launches{this});
    return past_ += int(verdict.rows.size()), verdict;
  }
  int recordings() const { return iterations_->recordings(); }  // CUDA graphs made so far
#endif
  // So many positions are cached from now on. What lies behind stays as it is until a forward writes over it: a larger
  // `past` takes it back.
  void rewind(int past) { past_ = past; }
  // For tests: the keys, or the values, of one cached position: all layers and heads in turn.
  std::vector<float> cached(int position, bool values) const {
    return std::visit([&](const auto& a) { return cached(a, position, values); }, activations_);
  }

 private:
  void run(const DevicePass& pass, bool with_logits, int layers = 0) {
    Config config = config_;
    if (layers > 0) config.n_layer = layers;
    tapped_ = with_logits && !taps_.empty() && *std::max_element(taps_.begin(), taps_.end()) <= config.n_layer;
    AfterLayer<float> keeps;
    if (tapped_)
      keeps = [this](const Team& team, int done, int rows, const float* x, int x_row) {
        keep_features(team, done, rows, x, x_row);
      };
    std::visit(
        [&](auto& w, auto& a) {
          pool_->run([&](const Team& team) { nanospec::forward(team, config, w, pass, a, with_logits, {}, keeps); },
                     alone_ || pass.forest.rows <= rows_alone_);
        },
        weights_, activations_);
  }
  // Keeps this thread's share of the stream after so many layers, wherever it is tapped.
  void keep_features(const Team& team, int layers, int rows, const float* x, int x_row) {
    const size_t taps = taps_.size(), C = size_t(config_.n_embd);
    const Range mine = team.share(rows);
    for (size_t tap = 0; tap < taps; tap++)
      for (int row = mine.begin; taps_[tap] == layers && row < mine.end; row++)
        std::copy_n(x + size_t(row) * x_row, C, features_.data() + (size_t(row) * taps + tap) * C);
  }
  template <class S>
  void move_rows(const Activations<float, S>& a, const int* rows, int n) {
#ifdef WITH_CUDA
    if (cuda()) return gather_rows(a, iterations_->keep(past_, rows, n));
#endif
    kept_.upload(rows, n);
    const KeepRows<S> op{
        a.k.data(), a.v.data(), a.k_layer,   a.v_layer, config_.n_kv_head, a.slots, config_.n_embd / config_.n_head,
        past_,      n,          kept_.data()};
    pool_->run([&](const Team& team) { launch(team, config_.n_layer * config_.n_kv_head, op); },
               alone_ || n <= rows_alone_);
  }
#ifdef WITH_CUDA
  template <class S>
  void gather_rows(const Activations<float, S>& a, const int* kept) const {
    gather(Gather<S>{a.k.data(), a.v.data(), a.k_layer, a.v_layer, config_.n_kv_head, a.slots,
                     config_.n_embd / config_.n_head, kept},
           config_.n_layer);
  }
  // What an iteration launches of the model.
  struct Launches {
    Target* target;
    void forward(const int* token, const Forest& forest) const {
      const DevicePass pass(token, forest);
      target->run(pass, true);
    }
    void gather(const int* kept) const {
      std::visit([&](auto& a) { target->gather_rows(a, kept); }, target->activations_);
    }
  };
#endif
  template <class S>
  std::vector<float> cached(const Activations<float, S>& a, int position, bool values) const {
    std::vector<S> all(values ? a.v.size() : a.k.size());
    std::vector<float> out;
    (values ? a.v : a.k).download(all.data(), all.size());
    const int D = config_.n_embd / config_.n_head;
    for (int l = 0; l < config_.n_layer; l++) {
      const KeyValues<S> cache{all.data() + l * a.k_layer, all.data() + l * a.v_layer, a.slots, D};
      for (int head = 0; head < config_.n_kv_head; head++)
        for (int d = 0; d < D; d++)
          out.push_back(to_float(values ? *cache.value(head, position, d) : *cache.key(head, position, d)));
    }
    return out;
  }

  // A small model may run faster on one thread, which waits for nobody: finds out up to how many rows. The passes also
  // bring the weights near and the threads to their feet, so that no token pays for that.
  void choose_threads() {
    constexpr int kRounds = 9;
    constexpr double kLeastSeconds = 0.004;  // longer than most pauses of one core
    for (int rows : {1, 2, 4, 8, 16, 32}) {
      if (rows > config_.block_size) return;
      double fastest[2] = {1e9, 1e9};  // by the team, alone
      const std::vector<int> token(rows, 0), end(rows, rows);
      std::vector<int> depth(rows);
      for (int i = 0; i < rows; i++) depth[i] = i;
      for (int alone : {0, 1, 0}) {  // not by turns: threads that wait too long sleep
        rows_alone_ = alone ? rows : 0;
        double spent = 0;
        for (int round = 0; round < kRounds || spent < kLeastSeconds; round++) {
          const auto start = std::chrono::steady_clock::now();
          forward(token.data(), depth.data(), end.data(), rows);
          const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
          fastest[alone] = std::min(fastest[alone], taken.count()), spent += taken.count();
          if (pool_->size() == 1) return;
          if (alone && round > 0 && fastest[1] > 2 * fastest[0]) break;  // it is settled
        }
      }
      rows_alone_ = fastest[1] < fastest[0] ? rows : rows / 2;
      if (rows_alone_ < rows) return;
    }
  }

  const Config config_;
  const std::shared_ptr<Pool> pool_;
  const int most_rows_;
  bool alone_ = false;
  int rows_alone_ = 0;  // passes of up to so many rows run on one thread
  Array<float> plain_;
  std::variant<Weights<float, float>, Weights<float, bf16>> weights_;
  std::variant<Activations<float, float>, Activations<float, bf16>> activations_;
  const Array<float>* device_logits_ = nullptr;
  const float* norm_ = nullptr;
  std::vector<int> taps_;
  std::vector<float> features_;  // (R, taps C)
  bool tapped_ = false;          // whether the last forward ran all layers that are tapped
  int C_ = 0, V_ = 0;            // row strides of norm_ and the logits
  Pass rows_;                    // of the pass under way
  DevicePass pass_;
  Array<int> kept_;
  std::vector<float> logits_;
  int past_ = 0;
#ifdef WITH_CUDA
  std::unique_ptr<Iterations> iterations_;
#endif
};

}  // namespace nanospec
