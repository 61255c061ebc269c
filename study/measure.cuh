// study/measure.cuh: a GPU's limits, and how long the engine's kernels take at GPT-2's shapes: what `bench` shows in
// its section gpu. study/gpu.h says what the figures mean.
//
// In order: how a kernel is timed; the limits; the kernels, each by the function that the model calls it by. Every
// operand that a launch streams through lies there in many copies, which launches take by turns: otherwise the second
// launch would find it in L2, where the model, which reads all its layers in between, never does.
#pragma once

#include "cuda/decode.cuh"
#include "study/gpu.h"
#include "study/limits.cuh"
#include "train.h"

namespace nanospec {

const Team kGpuTeam{0, 1, nullptr, true};

// ---------------------------------------------------------------------------------------------------------------
// Timing

// Seconds of one launch of `launch(turn)`: each entry the mean of as many as fill two milliseconds, replayed as one
// graph, so that the host is not in their way.
template <class F>
std::vector<double> repeated_seconds(int runs, F launch) {
  constexpr int few = 3, most = 256;
  constexpr double wanted = 0.002;
  const auto launches = [&](int turns) {
    for (int turn = 0; turn < turns; turn++) launch(turn);
  };
  launches(1);  // what is made once is made now
  const double once = gpu_seconds([&] { launches(few); }) / few;
  const int n = int(std::clamp(wanted / std::max(once, 1e-9), 1.0, double(most)));
  Graph graph;
  graph.capture([&] { launches(n); });
  graph.replay();
  std::vector<double> seconds;
  for (int run = 0; run < runs; run++) seconds.push_back(gpu_seconds([&] { graph.replay(); }) / n);
  return seconds;
}

// Numbers from -1/2 to 1/2 in no order: zeros would cost the GPU less power. A row of this operation is 4,096 of them.
template <class T>
struct Fill {
  T* data;
  size_t n;
  static constexpr int block = 4096;
  HD int rows() const { return int((n + block - 1) / block); }
  template <class G>
  HD void operator()(const G& g, int row) const {
    const size_t first = size_t(row) * block;
    g.each(int(smaller(size_t(block), n - first)), [&](int i) {
      uint32_t bits = uint32_t(first + i) * 0x9E3779B1u;
      bits = (bits ^ bits >> 15) * 0x85EBCA77u;
      data[first + i] = rounded<T>(float(bits >> 8) * 0x1p-24f - 0.5f);
    });
  }
};
template <class T>
void fill(const Array<T>& array) {
  const Fill<T> op{array.data(), array.size()};
  launch(kGpuTeam, op.rows(), op);
}
template <class T>
Array<T> filled(size_t n) {
  Array<T> array(n, true);
  fill(array);
  return array;
}

// ---------------------------------------------------------------------------------------------------------------
// The device, and its limits

inline GpuFacts facts_of_gpu() {
  int device = 0, driver = 0, runtime = 0;
  cudaDeviceProp p;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaGetDeviceProperties(&p, device));
  CUDA_CHECK(cudaDriverGetVersion(&driver));
  CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  const auto version = [](int a, int b) { return std::to_string(a) + "." + std::to_string(b); };
  return {p.name,
          version(p.major, p.minor),
          p.multiProcessorCount,
          double(p.totalGlobalMem),
          double(p.l2CacheSize),
          version(driver / 1000, driver % 1000 / 10),
          version(runtime / 1000, runtime % 1000 / 10)};
}

// What one launch of each does: about a millisecond on a large GPU.
struct LimitWork {
  double bytes = 2147483648.0;  // or half of what is free
  int turns = 2048, tensor_turns = 512;
};

inline GpuLimits limits_of_gpu(LimitWork work, int runs, const GpuWorking& working) {
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const int blocks = facts_of_gpu().multiprocessors * kLimitBlocks, repeats = 4;
  const double chunk = kReadChunk * sizeof(float4);
  const int chunks = std::max(1, int(std::min(work.bytes, double(free) / 2) / chunk));
  const Array<float> data = filled<float>(size_t(chunks) * kReadChunk * 4), out(size_t(blocks) * kLimitThreads, true);
  GpuLimits limits;
  // Rates at which `repeats` launches do `amount` each; the first run only wakes the GPU.
  const auto measure = [&](std::vector<double>& rates, bool counts, double amount, const auto& launch) {
    const double seconds = gpu_seconds([&] {
      for (int i = 0; i < repeats; i++) launch();
    });
    if (counts) rates.push_back(repeats * amount / seconds);
  };
  for (int run = -1; run < runs; run++) {
    if (!working("limits", double(run + 1) / (runs + 1)) && run > 0) break;  // one run at least: figures beat none
    measure(limits.read, run >= 0, chunks * chunk, [&] { read_memory(data.data(), chunks, blocks, out.data()); });
    measure(limits.fp32, run >= 0, multiply_add_flops(work.turns, blocks),
            [&] { multiply_add(work.turns, blocks, 0.9990234375f, 0.00341796875f, out.data()); });
    measure(limits.bf16, run >= 0, multiply_tensors_flops(work.tensor_turns, blocks),
            [&] { multiply_tensors(work.tensor_turns, blocks, 0x3f9abf2bu, 0x3f31bfc5u, out.data()); });
  }
  return limits;
}

// ---------------------------------------------------------------------------------------------------------------
// Kernels

struct KernelShapes {
  int channels = 768, heads = 12, vocab = 50257;
  std::vector<int> rows = {1, 8, 16, 64}, tree_rows = {1, 16, 64};
  int past = 900, prefill = 512, sequence = 1024, sequences = 8;
  double copied = 268435456;  // bytes of all copies of an operand together, far more than L2 holds
  int hidden() const { return 4 * channels; }
  int copies(double bytes) const { return int(std::clamp(std::ceil(copied / bytes), 1.0, 256.0)); }
};
inline KernelShapes quick_shapes() { return {128, 4, 2003, {1, 8, 16, 64}, {1, 16, 64}, 48, 63, 64, 8, 16777216}; }

// Collects the lines. A line's `launch(turn)` starts the kernel on the operands that are due at that turn.
struct KernelTimes {
  const int runs;
  const GpuWorking& working;
  std::vector<KernelTime> lines = {};
  bool stopped = false;

  template <class F>
  void add(const std::string& name, const std::string& shape, double bytes, double flops, const F& launch,
           Peak peak = Peak::kFp32) {
    constexpr double about = 45;  // lines
    stopped = stopped || !working(name + ", " + shape, std::min(1.0, double(lines.size()) / about));
    if (!stopped) lines.push_back({name, shape, bytes, flops, peak, repeated_seconds(runs, launch)});
  }
};

inline std::string by(int a, int b) { return std::to_string(a) + " x " + std::to_string(b); }
template <class W>
constexpr const char* kNumbers = sizeof(W) == 2 ? "bf16" : "fp32";

template <class W>
void time_matmuls(const KernelShapes& s, KernelTimes& times) {
  const auto time = [&](int K, int N, const std::vector<int>& row_counts) {
    Panels<W> panels;
    panels.k = K;
    panels.n = N;
    panels.cuda = true;
    const size_t size = panels.size(), most = *std::max_element(row_counts.begin(), row_counts.end()), spare = 16;
    const int copies = s.copies(double(size * sizeof(W)));
    const Array<W> weights = filled<W>(copies * size);
    const Array<float> x = filled<float>(most * pad16(K) + spare), out(most * pad16(N) + spare, true);
    for (int rows : row_counts)
      times.add(
          std::string("matmul ") + kNumbers<W>, by(rows, K) + " x " + std::to_string(N),
          double(sizeof(W)) * K * N + 4.0 * rows * (K + N), 2.0 * rows * K * N,
          [&](int turn) {
            Panels<W> w = panels;
            w.data = weights.data() + size_t(turn % copies) * size;
            matmul(kGpuTeam, rows, Matmul<float, W>{x.data(), pad16(K), w, out.data(), pad16(N)});
          },
          sizeof(W) == 2 ? Peak::kBf16 : Peak::kFp32);
  };
  std::vector<int> with_prefill = s.rows;
  with_prefill.push_back(s.prefill);
  time(s.channels, s.hidden(), with_prefill);
  time(s.hidden(), s.channels, with_prefill);
  time(s.channels, s.vocab, s.rows);
}

// A model of so many layers, of which only the attention is run.
inline Config attention_config(const KernelShapes& s, int layers) {
  return {layers, s.heads, s.heads, s.channels, s.sequence, 16};
}

template <class T, class S>
void run_attention(const DeviceBatch& batch, const Activations<T, S>& a, int layer, bool plain = false) {
  const Team team{0, 1, nullptr, true, plain};
  Attention<T, S> heads = attention_of(team, batch, a, layer, {});
  heads.in_cache = true;  // qkv's product writes keys and values
  attention(team, heads, a.attention_scratch.data(), a.slots);
}

// A root and its children over a past. Launches take the layers by turns.
template <class S>
void time_tree_attention(const KernelShapes& s, KernelTimes& times) {
  const int most = *std::max_element(s.tree_rows.begin(), s.tree_rows.end());
  const Config c = attention_config(s, s.copies(2.0 * s.past * s.channels * sizeof(S)));
  const Activations<float, S> a(c, most, pad64(s.past + most), false, 1, true);
  fill(a.qkv);
  fill(a.k);
  fill(a.v);
  for (int rows : s.tree_rows) {
    std::vector<int> token(rows, 0), depth(rows, 1), end(rows, rows);
    depth[0] = 0;
    for (int i = 1; i < rows; i++) end[i] = i + 1;
    Batch host;
    host.add_tree(token.data(), depth.data(), end.data(), rows, 0, s.past);
    DeviceBatch batch(rows, 1, true);
    batch.upload(host);
    const double keys = double(rows) * s.past + 2.0 * rows - 1;
    for (bool plain : {false, true})
      times.add(std::string(plain ? "its first version " : "tree attention ") + kNumbers<S>,
                std::to_string(rows) + " rows, past " + std::to_string(s.past),
                2.0 * sizeof(S) * s.past * s.channels + 4.0 * rows * 4 * s.channels, 4.0 * keys * s.channels,
                [&](int turn) { run_attention(batch, a, turn % c.n_layer, plain); });
  }
}

// For training: sequences without a past. The backward computes five products, the forward two. The five are the scores
// and their gradients, and the gradients of queries, keys and values.
inline void time_causal_attention(const KernelShapes& s, KernelTimes& times) {
  const int R = s.sequence * s.sequences, slots = pad64(s.sequence);
  const Config c = attention_config(s, 1);
  const Activations<float> a(c, R, s.sequences * slots, true, 1, true);
  const Gradients<float> g{a, false};
  fill(a.qkv);
  fill(g.att);
  Batch host;
  const std::vector<int> tokens(s.sequence, 0);
  for (int i = 0; i < s.sequences; i++) host.add_chain(tokens.data(), s.sequence, i * slots, 0);
  DeviceBatch batch(R, s.sequences, true);
  batch.upload(host);
  const std::string shape = by(s.sequences, s.sequence);
  const double pairs = 0.5 * s.sequences * s.sequence * (s.sequence + 1.0), row = 4.0 * R * s.channels;
  times.add("causal attention", shape, 4 * row, 4 * pairs * s.channels, [&](int) { run_attention(batch, a, 0); });
  times.add("causal attention, backward", shape, 8 * row, 10 * pairs * s.channels, [&](int) {
    attention_backward(kGpuTeam,
                       AttentionBackward<float>{attention_of(kGpuTeam, batch, a, 0, {}), g.att.data(), g.k.data(),
                                                g.v.data(), g.qkv.data()},
                       g.p.data(), g.ds.data(), a.slots);
  });
}

// What an iteration of decoding does beside the forward.
inline void time_decoding(const KernelShapes& s, KernelTimes& times) {
  const State state;
  Array<State> on_gpu(1, true);
  on_gpu.upload(&state, 1);
  const int V = s.vocab, stride = pad16(V), parts = sample_parts(V);
  for (int rows : {s.tree_rows.front(), s.tree_rows.back()}) {
    const size_t size = size_t(rows) * stride;
    const int copies = s.copies(4.0 * double(size));
    const Array<float> logits = filled<float>(size_t(copies) * size);
    const Array<int> depth(size_t(rows), true);
    const Array<int64_t> best(size_t(rows) * parts, true);
    times.add("sampling", by(rows, V), 4.0 * rows * V, 0, [&](int turn) {
      const float* const from = logits.data() + size_t(turn % copies) * size;
      start(sample_kernel<kSampleThreads>, dim3(unsigned(parts), unsigned(rows)), kSampleThreads,
            Sample{from, stride, V, on_gpu.data(), depth.data(), nullptr, best.data()});
    });
  }
}
// Every second row of a tree stays, in twelve layers. L2 holds them, as it does when a forward has just written them.
inline void time_gather(const KernelShapes& s, KernelTimes& times) {
  const int rows = s.tree_rows.back(), stays = (rows + 1) / 2;
  const Config c = attention_config(s, 12);
  const Activations<float> a(c, rows, pad64(s.past + rows), false, 1, true);
  fill(a.k);
  fill(a.v);
  std::vector<int> kept = {s.past, stays};  // where the tree begins, how many stay, which
  for (int i = 0; i < stays; i++) kept.push_back(2 * i);
  Array<int> on_gpu(kept.size(), true);
  on_gpu.upload(kept.data(), kept.size());
  const KeepRows<float> op{a.k.data(),  a.v.data(), a.k_layer,           a.v_layer,
                           c.n_kv_head, a.slots,    c.n_embd / c.n_head, on_gpu.data()};
  times.add("KV gather fp32", std::to_string(stays) + " rows, 12 layers",
            4.0 * (stays - 1) * 2 * 2 * c.n_layer * s.channels, 0, [&](int) { keep_rows(kGpuTeam, op, c.n_layer); });
}

// What lies between two kernels of a graph. 132 blocks, as a product of a decoding step may have.
inline void time_gaps(KernelTimes& times) {
  const dim3 blocks(132);
  times.add("empty kernel", "each waits", 0, 0, [&](int) { start(empty_kernel<void>, blocks, kProductThreads, 0); });
  times.add("empty kernel", "begins early", 0, 0,
            [&](int) { start_early(empty_kernel<void>, blocks, kProductThreads, 0); });
}

inline std::vector<KernelTime> kernels_of_gpu(const KernelShapes& s, int runs, const GpuWorking& working) {
  KernelTimes times{runs, working};
  time_gaps(times);
  time_matmuls<float>(s, times);
  time_matmuls<bf16>(s, times);
  time_tree_attention<float>(s, times);
  time_tree_attention<bf16>(s, times);
  time_decoding(s, times);
  time_gather(s, times);
  time_causal_attention(s, times);
  return times.lines;
}

}  // namespace nanospec
