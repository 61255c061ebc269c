// decode.h: the loop of decoding: draft, grow, flatten, forward, verify, keep.
//
// In order: the window; the target, which is a model with a cache; what the loop calls, the drafter apart: a planner of
// trees, a runner of forwards, a watcher; the planner and the runner of the core; the loop. It reads no clock and no
// command line. Other planners are in growth/, other rules in rules/, other watchers in watch/.
//
// A target is anything that has these, so that a mock with known logits can stand in:
//   int block_size(); int vocab_size();
//   prefill(const int* tokens, int n);
//     caches n tokens at positions 0 .. n - 1 and forgets all others; n may be 0
//   void forward(const int* token, const int* depth, const int* end, int n);
//     runs the rows of one tree in preorder; row i stands at position past() + depth[i]
//   const float* logits(int row);  (V) of the last forward
//   void keep(const int* rows, int n);
//     these rows of the last forward, ascending, stay cached: past() grows by n
//   int past();  cached positions
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "draft.h"
#include "model.h"
#include "sample.h"
#include "tree.h"
#ifdef TUNED_CUDA
#include "cuda/iteration.cuh"
#endif

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The window

// The model sees the last part of a text of n tokens: the window. This is the index where it begins. It holds at most
// `block` (even) tokens and slides by half of that. It depends on n alone, never on how the text was generated.
inline int window_start(int n, int block) {
  const int half = block / 2;
  return n <= block ? 0 : (n - block + half - 1) / half * half;
}

// How deep a tree may be after n of the text's `end` tokens. It must stay inside the window, and it must not emit more
// than the text needs: a tree of depth d emits up to d + 1 tokens.
inline int room_at(int64_t n, int64_t end, int block) {
  return int(std::min(block - (n - window_start(int(n), block)), end - n - 1));
}

// Caches all tokens of the window but the text's last one, which is the root of the next forward.
template <class Target>
void open_window(Target& target, const std::vector<int>& text) {
  const int n = int(text.size()), start = window_start(n, target.block_size());
  target.prefill(text.data() + start, n - 1 - start);
}

// ---------------------------------------------------------------------------------------------------------------
// The target

// The model that decodes: packed weights, one sequence's cache, and forwards of one tree.
class Target {
 public:
  // Called after each layer of a forward with logits, on every thread of the team. On a CPU alone. May be null.
  AfterLayer<float> after_layer;

  // most_rows: the rows of the largest tree, its root among them. cache_dtype: fp32 or bf16. Throws std::bad_alloc, or
  // std::runtime_error for the GPU, and what weights.read() throws.
  Target(const Config& config, const TensorSource& weights, Dtype dtype, bool cuda, int threads, int most_rows,
         Dtype cache_dtype = Dtype::fp32)
      : Target(config, weights, dtype, std::make_shared<Pool>(threads, cuda), most_rows, cache_dtype) {}
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  // The same on another target's threads: the two must not run at the same time.
  Target(const Config& config, const TensorSource& weights, Dtype dtype, std::shared_ptr<Pool> pool, int most_rows,
         Dtype cache_dtype = Dtype::fp32)
      : config_(config),
        pool_(std::move(pool)),
        most_rows_(std::max(most_rows, std::min(config.block_size, kPrefillRows))),
        batch_(most_rows_, 1, pool_->cuda()),
        kept_(2 + most_rows_, pool_->cuda()) {
    const bool cuda = pool_->cuda();
    weights_ = Weights<float, AnyNumber>(config, weights, dtype, *pool_);
    const int slots = pad64(config.block_size + most_rows_);
    if (cache_dtype == Dtype::fp32)
      activations_ = Activations<float, float>(config, most_rows_, slots, false, pool_->size(), cuda);
    else activations_ = Activations<float, bf16>(config, most_rows_, slots, false, pool_->size(), cuda);
    const auto point = [&](auto& a) {
      device_logits_ = &a.logits;
      norm_ = a.norm_f.data();
      C_ = a.C;
      V_ = a.V;
    };
    std::visit(point, activations_);
#ifdef TUNED_CUDA
    if (cuda) iterations_.reset(new Iterations(most_rows_, block_size(), vocab_size(), device_logits_->data(), V_));
#endif
    const std::vector<int> token(size_t(most_rows_), 0);
    const auto try_chain = [&](int rows) {
      rows_.clear();
      rows_.add_chain(token.data(), rows, 0, 0);
      batch_.upload(rows_);
      run(batch_, rows <= most_rows);  // of more, as in a prefill, no logits: their memory is never touched
    };
    if (!cuda) team_.measure(pool_->size(), std::min(config.block_size, most_rows_), try_chain);
  }

  int block_size() const { return config_.block_size; }
  int vocab_size() const { return config_.vocab_size; }
  int layers() const { return config_.n_layer; }
  int channels() const { return config_.n_embd; }
  int most_rows() const { return most_rows_; }  // of one forward
  int threads() const { return pool_->size(); }
  bool cuda() const { return pool_->cuda(); }
  const std::shared_ptr<Pool>& pool() const { return pool_; }
  // (V, C). Not while threads of the team run.
  const float* embedding() const {
    if (!weights_.symbols.data) return weights_.plain.wte;
    if (embedding_.size() == 0) {
      embedding_ = Array<float>(size_t(config_.vocab_size) * config_.n_embd, cuda());
      std::vector<int> tokens(size_t(config_.vocab_size));
      std::iota(tokens.begin(), tokens.end(), 0);
      Array<int> all(tokens.size(), cuda());
      all.upload(tokens.data(), tokens.size());
      pool_->run([&](const Team& team) {
        unpack(team, config_.vocab_size,
               Unpack<float, AnyNumber>{all.data(), weights_.symbols, embedding_.data(), config_.n_embd});
      });
    }
    return embedding_.data();
  }
  const auto& activations() const { return activations_; }
  size_t weight_bytes() const { return weights_.bytes(); }
  // Bytes of keys and values that a row reads for each position before it.
  size_t cache_bytes() const {
    const auto bytes = [](const auto& a) { return (a.k_layer + a.v_layer) / a.slots * sizeof(*a.k.data()); };
    return std::visit(bytes, activations_) * config_.n_layer;
  }

  // Caches n tokens at positions 0 .. n - 1, and forgets all others. As many of them as the cache begins with already
  // are not run again. Returns how many were run.
  int prefill(const int* tokens, int n) {
    past_ = int(std::mismatch(tokens, tokens + std::min(size_t(n), cached_.size()), cached_.begin()).first - tokens);
    const int first = past_;
    for (int rows = 0; past_ < n; past_ += rows) {
      rows = std::min(n - past_, most_rows_);
      rows_.clear();
      rows_.add_chain(tokens + past_, rows, 0, past_);
      batch_.upload(rows_);
      run(batch_, false);
    }
#ifdef TUNED_CUDA
    if (cuda()) iterations_->wait();  // so that it can be timed; the next iteration begins anew
#endif
    cached_.assign(tokens, tokens + n);
    return n - first;
  }
  // After this, a prefill runs all of its tokens.
  void forget() { cached_.clear(); }
  // Runs the rows of one tree in preorder, row i at position past() + depth[i]. logits() then gives their logits.
  // layers: how many layers run before the final norm and the head; 0: all.
  void forward(const int* token, const int* depth, const int* end, int n, int layers = 0) {
    rows_.clear();
    rows_.add_tree(token, depth, end, n, 0, past_);
    batch_.upload(rows_);
    overwrite(layers == 0);
    const auto launches = [&] { run(batch_, true, layers); };
#ifdef TUNED_CUDA
    if (cuda()) return void(host_logits_ = iterations_->forward(n, layers, !after_layer, launches));
#endif
    launches();
    host_logits_ = device_logits_->on_host(size_t(n) * V_, copied_logits_);
  }
  const float* logits(int row) const { return host_logits_ + size_t(row) * V_; }
  // (C) the final norm's output for a row of the last forward; null on a GPU.
  const float* hidden(int row) const { return cuda() ? nullptr : norm_ + size_t(row) * C_; }

  // The rows of the last forward (ascending) that join the past; the others are forgotten.
  void keep(const int* rows, int n) {
    bool moves = false;
    for (int i = 0; i < n; i++) moves = moves || rows[i] != i;
    if (moves) gather(kept(rows, n), n);
    for (int i = 0; all_layers_ && i < n && int(cached_.size()) == past_ + i; i++)
      cached_.push_back(rows_.token[size_t(rows[i])]);
    past_ += n;
  }
  int past() const { return past_; }
  // Sets how many positions count as cached. Those behind stay in memory until a forward overwrites them, and a larger
  // `past` brings them back.
  void rewind(int past) { past_ = past; }

  // Calls f(team) on the threads that a forward of so many rows would use; after use_pool(false) on the calling thread
  // alone, so that another target may use the pool at the same time.
  template <class F>
  void on_threads(int rows, F&& f) const {
    pool_->run(f, !uses_pool_ || team_.alone(rows));
  }
  void use_pool(bool uses) { uses_pool_ = uses; }
  // Applies the final norm and the head to `rows` rows x of a residual stream. norm: (rows, x_row) scratch; logits:
  // (rows, pad16(V)). On a CPU alone; every thread of the team calls it.
  void head(const Team& team, int rows, const float* x, int x_row, float* norm, float* logits) const {
    const auto& plain = weights_.plain;
    launch(team, rows, norm_of<float>(config_, x, x_row, plain.ln_f, plain.ln_f_bias, norm, nullptr, nullptr));
    matmul(team, rows, Matmul<float, AnyNumber>{norm, x_row, weights_.head.forward, logits, V_});
    team.wait();
  }

#ifdef TUNED_CUDA
  // Whole iterations on the GPU: cuda/whole.h says what these functions do.
  bool iterates() const { return cuda(); }
  Verdict iterate(const Tree& tree, const Sampling& sampling, int64_t index) {
    overwrite(false);
    const Verdict verdict = iterations_->run(tree, sampling, index, past_, Launches{this});
    past_ += int(verdict.rows.size());
    return verdict;
  }
  bool load_table(const Iterations::Table& table, int depth, int width) {
    return iterations_->load_table(table, depth, width);
  }
  Verdict iterate_drafting(int root, int depth, int width, float scale, const Sampling& sampling, int64_t index,
                           std::vector<Candidate>& drafted) {
    overwrite(false);
    const Verdict verdict =
        iterations_->run_drafting(root, depth, width, scale, sampling, index, past_, drafted, Launches{this});
    past_ += int(verdict.rows.size());
    return verdict;
  }
  const Iterations& iterations() const { return *iterations_; }
#endif

 private:
  static constexpr int kPrefillRows = 256;  // of one forward: a longer prefill takes several

  // The next forward writes behind the past. all_layers: whether what keep() keeps of it is a token's whole cache.
  void overwrite(bool all_layers) {
    all_layers_ = all_layers;
    if (int(cached_.size()) > past_) cached_.resize(size_t(past_));
  }
  void run(const DeviceBatch& batch, bool with_logits, int layers = 0) {
    Config config = config_;
    if (layers > 0) config.n_layer = layers;
    const auto forward = [&](const auto& a) {
      on_threads(batch.forest.rows, [&](const Team& team) {
        nanospec::forward(team, config, weights_, batch, a, with_logits, {}, after_layer);
      });
    };
    const auto start = std::chrono::steady_clock::now();
    std::visit(forward, activations_);
    team_.took(batch.forest.rows, seconds_since(start));
  }
  // Uploads what the gather reads (KeepRows): the first slot behind the past, n, and the rows that stay.
  const int* kept(const int* rows, int n) {
    std::vector<int> kept = {past_, n};
    kept.insert(kept.end(), rows, rows + n);
    kept_.upload(kept.data(), kept.size());
    return kept_.data();
  }
  void gather(const int* kept, int n) const {
    const auto move = [&](const auto& a) {
      const KeepRows<std::remove_pointer_t<decltype(a.k.data())>> op{
          a.k.data(), a.v.data(), a.k_layer, a.v_layer, config_.n_kv_head, a.slots, a.D, kept};
      on_threads(n, [&](const Team& team) { keep_rows(team, op, config_.n_layer); });
    };
    std::visit(move, activations_);
  }
#ifdef TUNED_CUDA
  // The parts of an iteration that the model launches.
  struct Launches {
    Target* target;
    void forward(const int* token, const Forest& forest) const { target->run(DeviceBatch(token, forest), true); }
    void gather(const int* kept) const { target->gather(kept, 1); }
  };
#endif

  const Config config_;
  const std::shared_ptr<Pool> pool_;
  const int most_rows_;
  bool uses_pool_ = true;
  TeamChoice team_;
  Weights<float, AnyNumber> weights_;
  mutable Array<float> embedding_;  // made when it is asked for, where the weights have it packed
  std::variant<Activations<float, float>, Activations<float, bf16>> activations_;
  const Array<float>* device_logits_ = nullptr;
  const float *norm_ = nullptr, *host_logits_ = nullptr;  // of the last forward
  int C_ = 0, V_ = 0;                                     // row strides of norm_ and the logits
  Batch rows_;                                            // of the current forward
  DeviceBatch batch_;
  Array<int> kept_;
  std::vector<float> copied_logits_;  // where they come from a GPU
  int past_ = 0;
  std::vector<int> cached_;  // tokens that all layers have cached, from position 0 on
  bool all_layers_ = true;   // whether the last forward ran all layers
#ifdef TUNED_CUDA
  std::unique_ptr<Iterations> iterations_;
#endif
};

// ---------------------------------------------------------------------------------------------------------------
// What the loop calls

// Decides which nodes the tree has.
struct Planner {
  virtual ~Planner() = default;
  // Grows the tree of the next forward from the growth's root, no node deeper than `room`. It asks the drafter for
  // candidates in any order. A tree of the root alone is plain decoding.
  virtual void grow(Drafter& drafter, const Draws& draws, int room, Growth& growth) = 0;
};

// Runs a forward, verifies the tree, and owns the cache. `index` is the index in the text of the root's children.
struct Runner {
  const int block_size, vocab_size;
  Runner(int block, int vocab) : block_size(block), vocab_size(vocab) {}
  virtual ~Runner() = default;

  virtual void open(const std::vector<int>& text) = 0;        // caches the text's window, all but the root
  virtual void forward(const Tree& tree, int64_t index) = 0;  // runs all nodes of the tree
  virtual Verdict verify(const Growth& growth, const Tree& tree, int64_t index) = 0;  // after its forward
  virtual void keep(const Verdict& verdict) = 0;  // the accepted rows stay cached, the others are forgotten
};

// Learns, counts, takes the time. The loop calls it after each step; it changes nothing of what the loop does.
struct Watcher {
  virtual ~Watcher() = default;
  virtual void ready() {}  // the cache is ready for the next forward
  virtual void drafted(const Growth&, const Tree&) {}
  virtual void forwarded(const Tree&) {}
  virtual void verified(const Growth&, const Tree&, const Verdict&, int /*emitted*/) {}  // tokens added to the text
  virtual void committed() {}                                                            // the drafter has been told
};

// ---------------------------------------------------------------------------------------------------------------
// The planner and the runner of the core

// The full tree: `depth` levels, `width` children of every node. Width 1: a chain.
struct FullTree : Planner {
  const int depth, width;
  FullTree(int levels, int children) : depth(levels), width(children) {}

  void grow(Drafter& drafter, const Draws& draws, int room, Growth& growth) override {
    for (int d = 0, first = 0; d < std::min(depth, room); d++) {  // the level's nodes begin at `first`
      const int n = growth.size() - first;
      if (n == 0) return;
      level_.resize(size_t(n));
      count_.resize(size_t(n));
      candidates_.resize(size_t(n) * size_t(width));
      for (int k = 0; k < n; k++) level_[size_t(k)] = first + k;
      drafter.expand(growth, level_.data(), n, width, draws, candidates_.data(), count_.data());
      first += n;
      for (int k = 0; k < n; k++)
        for (int rank = 0; rank < count_[size_t(k)]; rank++)
          growth.add(level_[size_t(k)], candidates_[size_t(k * width + rank)]);
    }
  }

 private:
  std::vector<int> level_, count_;     // of one level
  std::vector<Candidate> candidates_;  // (level, width)
};

// Runs forwards on a target and picks tokens on the host, by the rule `match`.
template <class Target>
struct Host : Runner {
  Target& target;
  const Sampling& sampling;
  Noise& noise;  // the target's
  Host(Target& its, const Sampling& s, Noise& n)
      : Runner(its.block_size(), its.vocab_size()), target(its), sampling(s), noise(n) {}

  void open(const std::vector<int>& text) override { open_window(target, text); }
  void forward(const Tree& tree, int64_t) override {
    target.forward(tree.token.data(), tree.depth.data(), tree.end.data(), tree.size());
  }
  Verdict verify(const Growth&, const Tree& tree, int64_t index) override {
    return match(tree, [&](int node) { return pick_after(tree, node, index); });
  }
  void keep(const Verdict& verdict) override { target.keep(verdict.rows.data(), int(verdict.rows.size())); }

  // The token that the target picks after a node of the tree that was run.
  int pick_after(const Tree& tree, int node, int64_t index) {
    const float* const row = sampling.temperature > 0 ? noise.row(index + tree.depth[node]) : nullptr;
    return pick(target.logits(node), row, vocab_size, sampling);
  }
};

// ---------------------------------------------------------------------------------------------------------------
// The loop

// Throws std::runtime_error for an empty prompt or a token outside the vocabulary.
inline void check_prompt(const std::vector<int>& text, int vocab) {
  if (text.empty()) throw std::runtime_error("the prompt is empty: --prompt: give at least one token to start from");
  for (int token : text)
    if (token < 0 || token >= vocab)
      throw std::runtime_error("token " + std::to_string(token) + " is outside the vocabulary of " +
                               std::to_string(vocab) + ": the prompt: encode it with this model's tokenizer");
}

// Appends max_new_tokens tokens to `text`, which begins as the prompt. on_token(int) is called for each token as it is
// emitted; if it returns false, generation ends with that token. drafter: null for plain decoding, whose trees are the
// root alone. Throws what check_prompt throws.
inline void generate(Runner& runner, Planner& planner, Drafter* drafter, Watcher& watcher, Draws draws,
                     std::vector<int>& text, int max_new_tokens, const std::function<bool(int)>& on_token) {
  check_prompt(text, runner.vocab_size);
  const int64_t end = int64_t(text.size()) + max_new_tokens;
  Growth growth;
  Tree tree;
  runner.open(text);
  if (drafter) drafter->begin(text.data(), int(text.size()));
  watcher.ready();

  for (bool wanted = max_new_tokens > 0; wanted;) {
    const int n = int(text.size());

    // Draft and grow: the drafter says which tokens may come next, the planner which of them become nodes.
    growth.start(text.back());
    draws.index = n;
    if (drafter) planner.grow(*drafter, draws, room_at(n, end, runner.block_size), growth);

    // Flatten: depth first, so that the attention mask is one integer a row.
    flatten(growth, tree);
    watcher.drafted(growth, tree);

    // One forward of the target over the root and all nodes.
    runner.forward(tree, n);
    watcher.forwarded(tree);

    // Verify: the tokens of the accepted path and the bonus token are emitted.
    const Verdict verdict = runner.verify(growth, tree, n);
    int emitted = 0;
    while (wanted && emitted < int(verdict.tokens.size())) {
      text.push_back(verdict.tokens[emitted++]);
      wanted = on_token(text.back()) && int64_t(text.size()) < end;
    }
    watcher.verified(growth, tree, verdict, emitted);
    if (!wanted) return;

    // Tell the drafter, while the target still holds this forward's rows.
    if (drafter) drafter->committed({verdict.tokens.data(), verdict.rows.data(), int(verdict.rows.size()), tree});
    watcher.committed();

    // Keep the path's rows and forget the others; or, where the window slides, cache the new window.
    const bool same_window = window_start(int(text.size()), runner.block_size) == window_start(n, runner.block_size);
    if (same_window) runner.keep(verdict);
    else runner.open(text);
    watcher.ready();
  }
}

}  // namespace nanospec
