// target.h: the target: a model that decodes, with its cache: prefill, a forward over the rows of a tree, keep.
//
// It has what decode.h asks of a target, and what drafters read of one: hidden states, the embedding, the head. Its
// cache has a seat for each of the texts that share its forwards (forest/); a text alone sits on the first. On a GPU
// whole iterations of a text alone run as one graph (cuda/iteration.cuh).
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <variant>
#include <vector>

#include "tree.h"
#include "weights.h"
#ifdef TUNED_CUDA
#include "cuda/iteration.cuh"
#endif

namespace nanospec {

// Packed weights, the caches of some texts, and forwards of their trees.
class Target {
 public:
  // most_rows: the rows of the largest tree, its root among them; every seat may have one in a forward. cache_dtype:
  // fp32 or bf16. Throws std::bad_alloc, or std::runtime_error for the GPU, and what weights.read() throws.
  Target(const Config& config, const TensorSource& weights, Dtype dtype, bool cuda, int threads, int most_rows,
         Dtype cache_dtype = Dtype::fp32, int seats = 1)
      : Target(config, weights, dtype, std::make_shared<Pool>(threads, cuda), most_rows, cache_dtype, seats) {}
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  // The same on another target's threads: the two must not run at the same time.
  Target(const Config& config, const TensorSource& weights, Dtype dtype, std::shared_ptr<Pool> pool, int most_rows,
         Dtype cache_dtype = Dtype::fp32, int seats = 1)
      : config_(config),
        pool_(std::move(pool)),
        most_rows_(std::max(most_rows, std::min(config.block_size, kPrefillRows))),
        all_rows_(most_rows_ + (seats - 1) * most_rows),
        slots_(pad64(config.block_size + most_rows_)),
        batch_(all_rows_, seats, pool_->cuda()),
        kept_(2 + most_rows_, pool_->cuda()),
        seats_(size_t(seats)) {
    const bool cuda = pool_->cuda();
    weights_ = load_weights<AnyNumber>(config, weights, dtype, *pool_);
    const int slots = slots_ * seats;
    if (cache_dtype == Dtype::fp32)
      activations_ = Activations<float, float>(config, all_rows_, slots, false, pool_->size(), cuda);
    else activations_ = Activations<float, bf16>(config, all_rows_, slots, false, pool_->size(), cuda);
    const auto point = [&](auto& a) {
      for (auto* cache : {&a.k, &a.v})  // of several seats parts alone are used
        if (seats > 1 && !cuda) take_small_pages(cache->data(), cache->size() * sizeof(*cache->data()));
      x_ = &a.x;
      norm_ = &a.norm_f;
      device_logits_ = &a.logits;
      V_ = a.V;
    };
    std::visit(point, activations_);
    if (cuda) prepare_iterations();
    const std::vector<int> token(size_t(most_rows_), 0);
    const auto try_chain = [&](int rows) {
      rows_.clear();
      rows_.add_chain(token.data(), rows, 0, 0);
      batch_.upload(rows_);
      run(batch_, rows <= most_rows ? rows : 0);  // of more, as in a prefill, no logits: their memory is never touched
    };
    if (!cuda) team_.measure(pool_->size(), std::min(config.block_size, most_rows_), try_chain);
    layers_run_ = 0;  // no text has had a forward yet
  }

  int block_size() const { return config_.block_size; }
  int vocab_size() const { return config_.vocab_size; }
  int most_rows() const { return most_rows_; }  // of a seat, in one forward
  int all_rows() const { return all_rows_; }    // of all seats
  bool cuda() const { return pool_->cuda(); }
  const std::shared_ptr<Pool>& pool() const { return pool_; }
  const auto& activations() const { return activations_; }
  const Config& config() const { return config_; }
  const Weights<float, AnyNumber>& weights() const { return weights_; }
  // Bytes of keys and values that a row reads for each position before it.
  size_t cache_bytes() const {
    const auto bytes = [](const auto& a) { return (a.k_layer + a.v_layer) / a.slots * sizeof(*a.k.data()); };
    return std::visit(bytes, activations_) * config_.n_layer;
  }

  // The seat of which the functions below speak; at first 0.
  int seats() const { return int(seats_.size()); }
  void sit(int seat) { seat_ = &seats_[size_t(seat)]; }

  // As many of n tokens as the cache begins with already stay in it, at positions 0, 1, ...; all others are forgotten.
  void reuse(const int* tokens, int n) {
    std::vector<int>& cached = seat_->cached;
    seat_->past =
        int(std::mismatch(tokens, tokens + std::min(size_t(n), cached.size()), cached.begin()).first - tokens);
  }
  // Caches n tokens at positions 0 .. n - 1, and forgets all others. Those that the cache begins with already are not
  // run again. Returns how many were run.
  int prefill(const int* tokens, int n) {
    reuse(tokens, n);
    const int first = past();
    for (int rows = 0; past() < n; seat_->past += rows) {
      rows = std::min(n - past(), most_rows_);
      rows_.clear();
      rows_.add_chain(tokens + past(), rows, first_slot(), past());
      batch_.upload(rows_);
      run(batch_, 0);
    }
    if (cuda()) wait_for_iterations();  // so that it can be timed; the next iteration begins anew
    seat_->cached.assign(tokens, tokens + n);
    return n - first;
  }
  // After this, a prefill runs all of its tokens.
  void forget() {
    for (Seat& seat : seats_) seat.cached.clear();
  }
  // Runs the rows of one tree in preorder, row i at position past() + depth[i]. logits() then gives their logits.
  void forward(const int* token, const int* depth, const int* end, int n) {
    clear_rows();
    add_tree(token, depth, end, n);
    run_rows(n);
  }
  // The same for the trees of several seats: clear_rows(); add_tree() of each; run_rows(n, layers). The first n rows
  // have logits. layers: how many layers run before the final norm and the head; 0: all. Throws std::length_error where
  // there is no room for a tree.
  void clear_rows() { rows_.clear(); }
  void add_tree(const int* token, const int* depth, const int* end, int n) {
    if (n > most_rows_ || rows_.rows() + n > all_rows_) throw std::length_error("no room for a tree");
    overwrite();
    seat_->first_row = rows_.rows();
    rows_.add_tree(token, depth, end, n, first_slot(), past());
  }
  void run_rows(int with_logits, int layers = 0) {
    batch_.upload(rows_);
    whole_ = layers == 0;
    const bool alone = seats() == 1 && rows_.rows() == with_logits;
    host_logits_ = cuda() && alone ? forward_on_gpu(with_logits, layers) : forward_here(with_logits, layers);
  }
  // Of the seat's rows in the last forward.
  const float* logits(int row) const { return host_logits_ + size_t(seat_->first_row + row) * V_; }
  // (C) of a row of the last forward: the residual stream after `layer` layers, 1 .. L; and the final norm's output.
  // Null on a GPU; the first one also where that forward ran fewer layers, or was a prefill's.
  const float* state(int layer, int row) const {
    return cuda() || layer > layers_run_ ? nullptr : x_->at(layer, seat_->first_row + row);
  }
  const float* hidden(int row) const { return cuda() ? nullptr : norm_->at(0, seat_->first_row + row); }

  // The rows of the last forward (ascending) that join the past; the others are forgotten.
  void keep(const int* rows, int n) {
    bool moves = false;
    for (int i = 0; i < n; i++) moves = moves || rows[i] != i;
    if (moves) gather(kept(rows, n), n);
    for (int i = 0; whole_ && i < n && int(seat_->cached.size()) == past() + i; i++)
      seat_->cached.push_back(rows_.token[size_t(seat_->first_row + rows[i])]);
    seat_->past += n;
  }
  int past() const { return seat_->past; }
  // Sets how many positions count as cached. Those behind stay in memory until a forward overwrites them, and a larger
  // `past` brings them back.
  void rewind(int past) { seat_->past = past; }

  // Calls f(team) on the threads that a forward of so many rows would use.
  template <class F>
  void on_threads(int rows, F&& f) const {
    pool_->run(f, team_.alone(rows));
  }

#ifdef TUNED_CUDA
  // Whole iterations on the GPU: cuda/whole.h says what these functions do.
  bool iterates() const { return cuda(); }
  Verdict iterate(const Tree& tree, const Sampling& sampling, int64_t index) {
    overwrite();
    const Verdict verdict = iterations_->run(tree, sampling, index, past(), Launches{this});
    seat_->past += int(verdict.rows.size());
    return verdict;
  }
  bool load_table(const Iterations::Table& table, int depth, int width) {
    return iterations_->load_table(table, depth, width);
  }
  Verdict iterate_drafting(int root, int depth, int width, float scale, const Sampling& sampling, int64_t index,
                           std::vector<Candidate>& drafted) {
    overwrite();
    const Verdict verdict =
        iterations_->run_drafting(root, depth, width, scale, sampling, index, past(), drafted, Launches{this});
    seat_->past += int(verdict.rows.size());
    return verdict;
  }
  const Iterations& iterations() const { return *iterations_; }
#endif

 private:
  static constexpr int kPrefillRows = 256;  // of one forward: a longer prefill takes several

  // A text's place in the cache.
  struct Seat {
    int past = 0;
    int first_row = 0;        // in the last forward
    std::vector<int> cached;  // tokens that all layers have cached, from position 0 on
  };
  int first_slot() const { return int(seat_ - seats_.data()) * slots_; }

  // The next forward writes behind the past.
  void overwrite() {
    if (int(seat_->cached.size()) > past()) seat_->cached.resize(size_t(past()));
  }
  void run(const DeviceBatch& batch, int with_logits, int layers = 0) {
    Config config = config_;
    if (layers > 0) config.n_layer = layers;
    layers_run_ = with_logits > 0 ? config.n_layer : 0;
    const auto forward = [&](const auto& a) {
      on_threads(batch.forest.rows,
                 [&](const Team& team) { nanospec::forward(team, config, weights_, batch, a, with_logits); });
    };
    const auto start = std::chrono::steady_clock::now();
    std::visit(forward, activations_);
    team_.took(batch.forest.rows, seconds_since(start));
  }
  // Uploads what the gather reads (KeepRows): the seat's first slot behind the past, n, and the rows that stay.
  const int* kept(const int* rows, int n) {
    std::vector<int> kept = {first_slot() + past(), n};
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
  const float* forward_here(int n, int layers) {
    run(batch_, n, layers);
    return device_logits_->on_host(size_t(n) * V_, copied_logits_);
  }
#ifdef TUNED_CUDA
  // The parts of an iteration that the model launches.
  struct Launches {
    Target* target;
    void forward(const int* token, const Forest& forest) const { target->run(DeviceBatch(token, forest), forest.rows); }
    void gather(const int* kept) const { target->gather(kept, 1); }
  };
  void prepare_iterations() {
    iterations_.reset(new Iterations(most_rows_, block_size(), vocab_size(), device_logits_->data(), V_));
  }
  void wait_for_iterations() const { iterations_->wait(); }
  const float* forward_on_gpu(int n, int layers) {
    return iterations_->forward(n, layers, [&] { run(batch_, n, layers); });
  }
#else  // a GPU runs the portable version, or there is none
  void prepare_iterations() {}
  void wait_for_iterations() const {}
  const float* forward_on_gpu(int n, int layers) { return forward_here(n, layers); }
#endif

  const Config config_;
  const std::shared_ptr<Pool> pool_;
  const int most_rows_, all_rows_, slots_;  // of a seat in a forward; of a forward; of a seat in the cache
  TeamChoice team_;
  Weights<float, AnyNumber> weights_;
  std::variant<Activations<float, float>, Activations<float, bf16>> activations_;
  const Rows<float>*x_ = nullptr, *norm_ = nullptr, *device_logits_ = nullptr;  // of the activations
  const float* host_logits_ = nullptr;                                          // of the last forward
  int V_ = 0, layers_run_ = 0;  // the row stride of the logits; how many layers the last forward ran
  bool whole_ = true;           // whether it was to run all: then what keep() keeps is a token's whole cache
  Batch rows_;                  // of the current forward
  DeviceBatch batch_;
  Array<int> kept_;
  std::vector<float> copied_logits_;  // where they come from a GPU
  std::vector<Seat> seats_;
  Seat* seat_ = seats_.data();
#ifdef TUNED_CUDA
  std::unique_ptr<Iterations> iterations_;
#endif
};

}  // namespace nanospec
