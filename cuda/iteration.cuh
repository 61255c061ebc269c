// cuda/iteration.cuh: an iteration of decoding as one CUDA graph: draft, forward, pick, walk, gather.
//
// In order: memory that host and device share; the iterations. Trees drafted on the host are padded to a few
// capacities: each capacity is one kind of iteration. Each full tree that the device drafts itself is one kind too. The
// first iteration of a kind is launched piece by piece, the second is recorded as a graph, and from then on the
// recording is replayed: the host launches once, waits once, and reads the verdict in its own memory. A forward alone,
// of a model that drafts, is recorded in the same way. The file does not know the model: the caller launches its
// forward and its gather.
//
// Running ahead. Where the device has all that the next iteration needs, which is so if it drafts the tree or there is
// only a root, that one is launched before the host waits for this one: then the device never waits for the host. The
// caller knows nothing of it. If it then asks for exactly that iteration, the host has only to wait; if it asks for
// anything else, what ran ahead is dropped. That costs the time of a forward, and nothing else, because an iteration
// writes keys and values only behind the past, and the stream runs what is launched later after it.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "cuda/decode.cuh"
#include "machine/launch.h"
#include "tree.h"

namespace nanospec {

// n numbers in the host's memory that kernels write and copies read without the host's help.
template <class T>
using Pinned = std::unique_ptr<T[], cudaError_t (*)(void*)>;
template <class T>
Pinned<T> pinned(size_t n) {
  void* data = nullptr;
  CUDA_CHECK(cudaMallocHost(&data, n * sizeof(T)));
  return {static_cast<T*>(data), cudaFreeHost};
}

class Iterations {
 public:
  using Table = std::shared_ptr<const std::vector<float>>;

  // For trees of up to `most_rows` rows over V tokens, in a window of `block` positions. logits: (most_rows,
  // row_stride), where a forward writes them.
  Iterations(int most_rows, int block, int vocab, const float* logits, int row_stride)
      : most_rows_(most_rows), block_(block), vocab_(vocab), logits_(logits), row_stride_(row_stride) {}
  ~Iterations() {  // an iteration may run ahead, in memory that is freed here
    try {
      for (const Event& done : done_) done.wait();
    } catch (const std::exception&) {}  // nobody asks any more
  }

  // Runs an iteration for a tree drafted on the host: forward, picks, walk, gather. The caller's past grows by the
  // verdict's rows.
  //   model.forward(token, forest)  launches the model over the rows, with logits
  //   model.gather(kept)            launches the gather of the rows that stay
  template <class Launches>
  Verdict run(const Tree& tree, const Sampling& sampling, int64_t index, int past, const Launches& model) {
    const int n = tree.size(), rows = capacity(n);
    if (n > most_rows_)
      throw std::logic_error("a tree of " + std::to_string(n) + " rows, room for " + std::to_string(most_rows_));
    State state{sampling, index, 1, tree.token[0], past, 0, {0, rows}};
    if (n == 1) {
      std::vector<Candidate> none;
      return run_on_device({1, 1, sampling.drops(vocab_)}, 0, state, none, model);
    }
    drop();
    state.turn = turn_;
    host_state() = state;
    int *token = host_input_.get() + kStateInts, *depth = token + rows, *end = depth + rows;
    for (int i = 0; i < rows; i++) {  // the rows from n on are padding: no other row sees them
      token[i] = i < n ? tree.token[i] : 0;
      depth[i] = i < n ? tree.depth[i] : 0;
      end[i] = i < n ? tree.end[i] : i + 1;
    }
    known_.past = -1;
    send({rows, 0, sampling.drops(vocab_)}, [&](Recording&) {
      copy_input(kStateInts + 3 * size_t(rows));
      const int* const at = input_.data() + kStateInts;
      decode(at, at, rows, sampling.drops(vocab_), model);
    });
    return finish(state, 1 - turn_);
  }

  // Whether the device can draft full trees of this depth and width from this table: (V, V) logits of the token after a
  // token. Uploads the table, if it is not there yet.
  bool load_table(const Table& table, int depth, int width) {
    if (!table || vocab_ > kDraftVocabulary || width > vocab_ || full_tree_nodes(depth, width) >= most_rows_)
      return false;
    if (table_.size() == 0) table_ = Array<float>(size_t(vocab_) * vocab_, true);
    if (table == table_source_) return true;
    drop();
    table_.upload(table->data(), table_.size());
    table_source_ = table;
    return true;
  }

  // The same as run(), for a full tree under `root` that the device drafts from the loaded table. scale: see State; it
  // goes into the chances of the nodes, so nothing that ran ahead with another one is used. drafted: the nodes, in the
  // order in which grow() asks for them.
  template <class Launches>
  Verdict run_drafting(int root, int depth, int width, float scale, const Sampling& sampling, int64_t index, int past,
                       std::vector<Candidate>& drafted, const Launches& model) {
    const int n = 1 + int(full_tree_nodes(depth, width));
    const State state{sampling, index, scale, root, past, 0, {0, n}};
    return run_on_device({n, width, sampling.drops(vocab_)}, depth, state, drafted, model);
  }

  // Runs a forward alone, for a drafter on the host; returns the logits in the host's memory, valid until the next one.
  // The arrays that it reads must lie where they did for as many rows and layers before.
  template <class F>
  const float* forward(int rows, int layers, F launches) {
    drop();
    if (!host_logits_) host_logits_ = pinned<float>(size_t(most_rows_) * row_stride_);
    known_.past = -1;
    send({rows, 0, false, layers}, [&](Recording&) {
      launches();
      CUDA_CHECK(cudaMemcpyAsync(host_logits_.get(), logits_, size_t(rows) * row_stride_ * sizeof(float),
                                 cudaMemcpyDeviceToHost, stream()));
    });
    CUDA_CHECK(cudaStreamSynchronize(stream()));
    return host_logits_.get();
  }

  // Waits for all that was launched. The caller has changed the cache: what ran ahead is dropped.
  void wait() {
    drop();
    CUDA_CHECK(cudaStreamSynchronize(stream()));
  }

  int recordings() const { return recordings_; }  // how many were made so far
  // Iterations that were launched before they were asked for, and then used; and dropped.
  int64_t used_ahead() const { return used_; }
  int64_t dropped_ahead() const { return dropped_; }

 private:
  // The kind of an iteration: all that a recording fixes. What lies in memory may change from one replay to the next.
  struct Kind {
    int rows;      // of the forward
    int width;     // of the full tree that the device drafts (with the rows it says how deep it is), 1 of a root alone;
                   // 0: the host drafts
    bool filters;  // whether top-k, top-p or min-p may drop a token
    int layers = -1;  // of a forward alone; -1: an iteration
    auto all() const { return std::tie(rows, width, filters, layers); }
    bool operator<(const Kind& b) const { return all() < b.all(); }
  };
  struct Recording {
    Array<int> tree;  // (3, N) token, depth, end of a tree that the device drafts; depth and end never change
    bool launched = false;
    Graph graph;
  };
  static constexpr size_t kStateInts = sizeof(State) / sizeof(int);
  static_assert(sizeof(State) % sizeof(int) == 0, "the tree's arrays follow the state");
  // How many iterations must have been as expected before one runs ahead. The streak that is asked for doubles with
  // each one dropped, and shrinks by one with each one used: so a caller who does this and that wastes little.
  static constexpr int kShortStreak = 2, kLongStreak = 64;

  // Powers of two up to 16 rows, then multiples of 16: a few more rows cost little, another recording costs much.
  int capacity(int n) const {
    int rows = 1;
    while (rows < n) rows = rows < 16 ? 2 * rows : rows + 16;
    return std::min(rows, most_rows_);
  }
  static bool same(const State& a, const State& b) {
    const auto all = [](const State& s) {
      return std::tie(s.sampling.temperature, s.sampling.top_k, s.sampling.top_p, s.sampling.min_p, s.sampling.seed,
                      s.sampling.sequence, s.index, s.scale, s.root, s.past, s.first_row[1]);
    };
    return all(a) == all(b);
  }
  int half() const { return 1 + 2 * most_rows_; }  // numbers of a verdict: how many rows, which, as many tokens
  State* device_state() const { return reinterpret_cast<State*>(input_.data()); }
  State& host_state() const { return *reinterpret_cast<State*>(host_input_.get()); }
  void copy_input(size_t ints) const {
    CUDA_CHECK(cudaMemcpyAsync(input_.data(), host_input_.get(), ints * sizeof(int), cudaMemcpyHostToDevice, stream()));
  }

  // Launches a forward or an iteration of this kind: the first time as it is, then it is recorded and replayed.
  template <class F>
  void send(const Kind& kind, F launches) {
    last_ = kind;
    Recording& recording = recordings_of_[kind];
    if (!recording.launched && kind.width > 0) recording.tree = full_tree(kind);
    if (!recording.graph && recording.launched) {
      recording.graph.capture([&] { launches(recording); });
      recordings_++;
    }
    if (recording.graph) recording.graph.replay();
    else launches(recording);
    recording.launched = true;
    if (kind.layers >= 0) return;
    done_[turn_].record();
    turn_ = 1 - turn_;
  }
  // Gives up the iteration that runs ahead, if there is one. It has written the state.
  void drop() {
    if (!ahead_) return;
    ahead_ = false;
    known_.past = -1;
    dropped_++;
    streak_asked_ = std::min(2 * streak_asked_, kLongStreak);
  }
  // An iteration of a full tree of `depth` levels, all of which is in the device's memory; of none, if that ran ahead.
  template <class Launches>
  Verdict run_on_device(const Kind& kind, int depth, State state, std::vector<Candidate>& drafted,
                        const Launches& model) {
    const int n = kind.rows;
    const auto launches = [&](Recording& recording) {
      int* const token = recording.tree.data();
      if (depth > 0) draft({table_.data(), vocab_, kind.width, device_state(), token, found_.get(), most_rows_}, depth);
      decode(depth > 0 ? token : &device_state()->root, token, n, kind.filters, model);
    };
    const bool expected = same(state, known_) && kind.all() == last_.all();
    if (!expected) drop();
    const bool uploads = !same(state, known_);
    known_.past = -1;  // unknown until the iteration is done
    if (ahead_) {
      ahead_ = false;
      used_++;
      streak_asked_ = std::max(streak_asked_ - 1, kShortStreak);
    } else {
      if (uploads) {
        state.turn = turn_;
        host_state() = state;
        copy_input(kStateInts);
      }
      send(kind, launches);
    }
    // The next one runs ahead only if it surely can: this one commits up to depth + 1 tokens, and so many positions the
    // next one takes. Where the window ends before that, it slides, or trees become smaller.
    streak_ = expected ? streak_ + 1 : 0;
    const bool goes_ahead =
        streak_ >= streak_asked_ && recordings_of_[kind].graph && state.past + 2 * (depth + 1) <= block_;
    if (goes_ahead) send(kind, launches);
    const int turn = goes_ahead ? turn_ : 1 - turn_;  // of the iteration asked for
    const Verdict verdict = finish(state, turn);
    ahead_ = goes_ahead;
    drafted.clear();
    const DraftedNode* const found = found_.get() + turn * most_rows_;
    for (int i = 0; i + 1 < n; i++) drafted.push_back({found[i].token, found[i].chance});
    return verdict;
  }
  // Launches the forward of n rows, and what follows it. tree: (3, n), of which depth and end are read here.
  template <class Launches>
  void decode(const int* token, const int* tree, int n, bool filters, const Launches& model) {
    State* const state = device_state();
    const int *const depth = tree + n, *const end = depth + n;
    model.forward(token, Forest{n, 1, end, depth, root_.data(), state->first_row, &state->first_slot, &state->past});
    if (filters) threshold(n, logits_, row_stride_, vocab_, state, least_.data());
    const int parts = sample_parts(vocab_);
    start_early(sample_kernel<kSampleThreads>, dim3(unsigned(parts), unsigned(n)), kSampleThreads,
                Sample{logits_, row_stride_, vocab_, state, depth, filters ? least_.data() : nullptr, best_.data()});
    int* const verdict = verdicts_.get();
    start_early(
        walk_kernel<kLanes>, 1, kLanes,
        Walk{best_.data(), parts, token, depth, end, state, kept_.data(), verdict, verdict + 1 + most_rows_, half()});
    if (n > 1) model.gather(kept_.data());  // a root alone stays where it is
  }
  // Waits for the iteration that has written to the half `turn`, no longer, and reads its verdict.
  Verdict finish(const State& state, int turn) {
    done_[turn].wait();
    const int *const rows = verdicts_.get() + turn * half(), *const tokens = rows + 1 + most_rows_, n = rows[0];
    const Verdict verdict = {{rows + 1, rows + 1 + n}, {tokens, tokens + n}};
    known_ = state;
    known_.past += n;  // as the walk has written it
    known_.index += n;
    known_.root = verdict.tokens.back();
    return verdict;
  }
  // A node at depth d of the full tree has a subtree of size 1 + W + ... + W^(D - d).
  static Array<int> full_tree(const Kind& kind) {
    std::vector<int> ints(size_t(3) * kind.rows, 0);
    int *const depth = ints.data() + kind.rows, *const end = depth + kind.rows;
    end[0] = kind.rows;
    for (int row = 0; row < kind.rows; row++) {
      const int below = end[row] - row - 1;
      for (int c = row + 1; c < end[row]; c = end[c]) {
        depth[c] = depth[row] + 1;
        end[c] = c + below / kind.width;
      }
    }
    Array<int> tree(ints.size(), true);
    tree.upload(ints.data(), ints.size());
    return tree;
  }

  const int most_rows_, block_, vocab_;
  const float* const logits_;
  const int row_stride_;
  // State, then token, depth and end of a host-drafted tree of `rows` rows, at (0, 1, 2) * rows.
  Array<int> input_{kStateInts + 3 * size_t(most_rows_), true};
  Pinned<int> host_input_ = pinned<int>(input_.size());
  Array<int> root_{size_t(most_rows_), true}, kept_{2 + size_t(most_rows_), true};  // all 0: one root; see Walk
  Array<int64_t> best_{size_t(most_rows_) * sample_parts(vocab_), true};
  Array<float> least_{size_t(most_rows_), true}, table_;
  // What the host reads, a half for each turn. done_[turn]: the last iteration that writes there has ended.
  Pinned<int> verdicts_ = pinned<int>(2 * size_t(half()));                   // (2, half())
  Pinned<DraftedNode> found_ = pinned<DraftedNode>(2 * size_t(most_rows_));  // (2, R)
  Event done_[2];
  int turn_ = 0;                                      // of the iteration that is launched next
  Pinned<float> host_logits_{nullptr, cudaFreeHost};  // (most rows, row_stride), made when it is asked for
  Table table_source_;
  State known_;  // the device's state, except for first_slot, which is always 0, and turn; before what runs ahead
  Kind last_{};  // what was launched last
  bool ahead_ = false;  // whether an iteration of that kind has been launched behind the one that was asked for last
  int streak_ = 0, streak_asked_ = kShortStreak;  // iterations as expected, without a break: so far, for the next ahead
  int64_t used_ = 0, dropped_ = 0;
  std::map<Kind, Recording> recordings_of_;
  int recordings_ = 0;
};

}  // namespace nanospec
