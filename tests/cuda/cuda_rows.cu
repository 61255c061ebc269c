// tests/cuda/cuda_rows.cu: every row operation, and the sampler, on a warp against the same text on a CPU core, bit for
// bit.
#include "tests/cuda/cuda_test.h"  // first: it brings the emulator

#include <tuple>

#include "course/warps.cuh"
#include "drafters/operations.h"
#include "sample.h"
#include "tests/random.h"
#include "training/accumulate.h"

namespace nanospec {

namespace {

const Piece kPieces[] = {{0, 100, 1}, {100, 37, 0}, {137, 1000, 1}};
const int kKept[] = {4, 3, 0, 2, 5};  // to slot 4, three rows

// Numbers, in the memory of either machine, that an operation may use as it likes.
struct Desk {
  std::vector<Array<float>> arrays;
  float *f[8], *positive;
  Array<int> ints, kept_rows;
  Array<Piece> piece_array;
  std::tuple<Array<bf16>, Array<f16>, Array<Q8_0>, Array<Q4_0>, Array<Q4_1>, Array<Q5_0>, Array<Q5_K>, Array<Q6_K>,
             Array<Q4_K>, Array<Q3_K>, Array<QAny>>
      weights;  // (45, 70)
  Array<bf16> keys, values;
  DeviceBatch batch;

  Desk(bool cuda, const Batch& host_batch)
      : ints(4096, cuda), kept_rows(5, cuda), piece_array(3, cuda), batch(host_batch.rows(), host_batch.roots(), cuda) {
    Chance chance(5);
    std::vector<float> numbers(1 << 15);
    for (int k = 0; k < 9; k++) {
      chance.fill(numbers.data(), numbers.size());
      if (k == 8)
        for (float& x : numbers) x = x * x;
      arrays.emplace_back(numbers.size(), cuda);
      arrays[k].upload(numbers.data(), numbers.size());
      (k < 8 ? f[k] : positive) = arrays[k].data();
    }
    std::vector<int> small(4096);
    for (int& x : small) x = chance.below(7);
    ints.upload(small.data(), small.size());
    kept_rows.upload(kKept, 5), piece_array.upload(kPieces, 3);
    batch.upload(host_batch);
    const auto pack = [&](auto& array) {
      using W = std::remove_pointer_t<decltype(array.data())>;
      Panels<W> host{nullptr, 45, 70};
      std::vector<W> packed(host.size());
      host.data = packed.data();
      const Pack<float, W> op{numbers.data(), 70, 1, host};
      for (int row = 0; row < op.rows(); row++) op(Solo{}, row);
      array = Array<W>(packed.size(), cuda);
      array.upload(packed.data(), packed.size());
    };
    std::apply([&](auto&... each) { (pack(each), ...); }, weights);
    std::vector<bf16> rounded_numbers;
    for (float x : numbers) rounded_numbers.push_back(rounded<bf16>(x));
    for (Array<bf16>* array : {&keys, &values}) {
      *array = Array<bf16>(numbers.size(), cuda);
      array->upload(rounded_numbers.data(), numbers.size());
    }
  }
  template <class W>
  Panels<W> panels() const {
    return {std::get<Array<W>>(weights).data(), 45, 70};
  }
  const int* below_7() const { return ints.data(); }
  const int* kept() const { return kept_rows.data(); }
  const Piece* pieces() const { return piece_array.data(); }
};

// Runs the operation that `make` builds over a desk's arrays on a core and on warps: all arrays must end alike.
template <class Make>
void check_groups(const char* name, const Batch& batch, int rows, Make make) {
  CAPTURE(name);
  const auto numbers_after = [&](bool cuda, int n) {
    Desk desk(cuda, batch);
    launch(Team{0, 1, nullptr, cuda}, n, make(desk));
    std::vector<float> all;
    for (const auto& array : desk.arrays) {
      const auto numbers = to_host(array);
      all.insert(all.end(), numbers.begin(), numbers.end());
    }
    return all;
  };
  const auto on_core = numbers_after(false, rows), untouched = numbers_after(false, 0);
  const auto on_warps = in_every_order([&] { return numbers_after(true, rows); });
  const size_t each = on_core.size() / 9;
  for (size_t k = 0; k < 9; k++) {
    CAPTURE(k);
    CHECK(memcmp(&on_core[k * each], &on_warps[k * each], each * sizeof(float)) == 0);
  }
  CHECK(memcmp(on_core.data(), untouched.data(), on_core.size() * sizeof(float)) != 0);
}

}  // namespace

TEST_CASE(ON "row operations: a warp gives a core's bits") {
  constexpr int rows = 5, C = 45, stride = 48;  // sizes that no number of lanes divides
  const Dropout drop{0.3f, 7, 2, 1};
  Chance chance(1);
  const Batch batch = random_batch(chance, 1, 6, 9, 7);
  const auto check = [&](const char* name, int n, auto make) { check_groups(name, batch, n, make); };

  check("LayerNorm", rows,
        [&](Desk& d) { return Norm<float>{d.f[0], stride, C, d.f[1], d.f[2], d.f[3], stride, d.f[4], d.f[5]}; });
  check("LayerNorm without bias", rows,
        [&](Desk& d) { return Norm<float>{d.f[0], stride, C, d.f[1], nullptr, d.f[3], stride, nullptr, nullptr}; });
  check("NormBackward", rows, [&](Desk& d) {
    return NormBackward<float>{d.f[0], stride, C, d.f[1], d.f[2], d.f[3], d.f[4], stride, d.f[5]};
  });
  check("NormWeights", 2, [&](Desk& d) {
    return Strips<NormWeights<float>>{{rows, d.f[0], stride, C, d.f[1], d.f[2], d.f[3], stride, d.f[4], d.f[5]}, C, 32};
  });
  check("RmsNorm", rows, [&](Desk& d) { return rms_norm<float>(d.f[0], stride, C, d.f[1], d.f[3], stride, d.f[4]); });
  check("RmsNorm without weight", rows,
        [&](Desk& d) { return rms_norm<float>(d.f[0], stride, C, nullptr, d.f[3], stride, nullptr); });
  check("RmsNormBackward", rows, [&](Desk& d) {
    return NormBackward<float>{d.f[0], stride, C, d.f[1], nullptr, d.f[2], d.f[3], stride, d.f[4]};
  });
  check("RmsNormBackward without weight", rows, [&](Desk& d) {
    return NormBackward<float>{d.f[0], stride, C, nullptr, nullptr, d.f[2], d.f[3], stride, d.f[4]};
  });
  check("NormWeights of RMSNorm", 2, [&](Desk& d) {
    return Strips<NormWeights<float>>{
        {rows, d.f[0], stride, C, nullptr, d.f[1], d.f[2], stride, d.f[3], nullptr}, C, 32};
  });
  const auto heads_of = [=](Desk& d) {  // two of queries, one of keys
    return HeadNorm<float>{rms_norm<float>(d.f[0], 80, 16, d.f[1], d.f[0], 80, d.f[3]), d.f[2], d.f[4], 2, 3, rows};
  };
  check("HeadNorm", 3 * rows, heads_of);
  check("HeadNormBackward", 3 * rows, [&](Desk& d) { return HeadNormBackward<float>{heads_of(d), d.f[5]}; });
  check("Rope", 2 * (batch.rows() - 1),
        [&](Desk& d) { return Rope<float>{d.batch.forest, 1, d.f[0], 80, 2, 34, d.f[1], false}; });
  check("Rope, back", 2 * batch.rows(),
        [&](Desk& d) { return Rope<float>{d.batch.forest, 0, d.f[0], 80, 2, 34, d.f[1], true}; });
  check("SwiGlu", 2 * rows, [&](Desk& d) { return Strips<SwiGlu<float>>{{d.f[0], 96, C, d.f[1], stride}, C, 24}; });
  check("SwiGluBackward", rows, [&](Desk& d) { return SwiGluBackward<float>{d.f[0], 96, C, d.f[1], stride}; });
  check("ColumnSum", 2, [&](Desk& d) { return Strips<ColumnSum<float>>{{rows, C, d.f[0], stride, d.f[1]}, C, 32}; });
  check("Embed", batch.rows(),
        [&](Desk& d) { return Embed<float>{d.batch.token(), d.batch.forest, d.f[0], d.f[1], d.f[2], stride, C}; });
  check("EmbedBackward", 2, [&](Desk& d) {
    return Strips<EmbedBackward<float>>{
        {batch.rows(), d.batch.token(), d.batch.forest, d.f[0], stride, C, d.f[1], d.f[2]}, C, 32};
  });
  check("BiasGelu", rows, [&](Desk& d) { return Strips<BiasGelu<float>>{{d.f[0], d.f[1], stride, d.f[2]}, C}; });
  check("GeluBackward", rows, [&](Desk& d) { return Strips<GeluBackward<float>>{{d.f[0], d.f[1], stride}, C}; });
  check("SiluBackward", rows, [&](Desk& d) { return Strips<SiluBackward<float>>{{d.f[0], d.f[1], stride}, C}; });
  check("JoinResidual", rows, [&](Desk& d) {
    return Strips<JoinResidual<float>>{{d.f[0], d.f[1], stride, d.f[2]}, C};
  });
  check("Drop", rows, [&](Desk& d) { return Strips<Drop<float>>{{d.f[0], d.f[1], stride, C, drop}, C}; });
  check("JoinSilu", rows, [&](Desk& d) {
    return Strips<JoinSilu<float>>{{d.f[0], d.f[1], stride, d.f[2], d.f[3]}, C};
  });
  check("SoftCrossEntropy", rows,
        [&](Desk& d) { return SoftCrossEntropy<float>{d.f[0], d.f[1], stride, C, d.f[2], true, 0.25f}; });
  check("CrossEntropy", rows,
        [&](Desk& d) { return CrossEntropy<float>{d.f[0], stride, C, d.below_7(), d.f[1], true, 0.25f}; });
  check("Mean", 1, [&](Desk& d) { return SumRow<Mean<float>>{{d.f[0], 1000, d.f[1]}}; });
  check("SumSquares", 3, [&](Desk& d) { return SumSquares<float>{d.pieces(), d.f[0], d.f[1]}; });
  check("Add", 2, [&](Desk& d) { return Add<float>{d.f[0], d.f[1], 5000, false}; });
  check("Add, a copy", 2, [&](Desk& d) { return Add<float>{d.f[0], d.f[1], 5000, true}; });
  check("ClipFactor", 1, [&](Desk& d) { return SumRow<ClipFactor<float>>{{d.positive, 40, 0.5f, d.f[1]}}; });
  check("AdamW", 3, [&](Desk& d) {
    return AdamW<float>{d.pieces(), d.f[0], d.f[1], d.positive, d.f[3], d.f[4], 0.01f, 0.1f, 0.9f, 0.99f, 0.1f, 0.01f};
  });
  check("Pack", 3, [&](Desk& d) { return Pack<float, float>{d.f[0], 70, 1, Panels<float>{d.f[1], C, 70}}; });
  check("Pack, turned", 3, [&](Desk& d) { return Pack<float, float>{d.f[0], 1, C, Panels<float>{d.f[1], C, 70}}; });
  check("Pack, bf16", 3, [&](Desk& d) {
    return Pack<float, bf16>{d.f[0], 70, 1, Panels<bf16>{reinterpret_cast<bf16*>(d.f[1]), C, 70}};
  });
  check("Pack, 8 bits", 2, [&](Desk& d) {
    return Pack<float, Q8_0>{d.f[0], 1, C, Panels<Q8_0>{reinterpret_cast<Q8_0*>(d.f[1]), C, 70}};
  });
  check("Pack, 4 bits", 2, [&](Desk& d) {
    return Pack<float, Q4_1>{d.f[0], 70, 1, Panels<Q4_1>{reinterpret_cast<Q4_1*>(d.f[1]), C, 70}};
  });
  check("Pack, 6 bits", 2, [&](Desk& d) {
    return Pack<float, Q6_K>{d.f[0], 70, 1, Panels<Q6_K>{reinterpret_cast<Q6_K*>(d.f[1]), C, 70}};
  });
  check("ToIntegers, by halves", rows * 2, [&](Desk& d) {
    return ToIntegers<Q6_K>{d.f[0], stride, C, IntegerRows{d.f[1], rows, 2}};
  });
  check("ToIntegers", rows * 2, [&](Desk& d) {
    return ToIntegers<Q4_0>{d.f[0], stride, C, IntegerRows{d.f[1], rows, 2}};
  });
  const auto check_weights = [&](auto one) {
    using W = decltype(one);
    check("Matmul of weights of less than 32 bits", 3, [&](Desk& d) {
      return ColumnBlocks<Matmul<float, W>>{{d.f[0], stride, d.panels<W>(), d.f[2], 80}, rows};
    });
    check("Unpack", rows, [&](Desk& d) { return Unpack<float, W>{d.below_7(), d.panels<W>(), d.f[2], stride}; });
  };
  check_weights(bf16()), check_weights(f16()), check_weights(Q8_0()), check_weights(Q4_0()), check_weights(Q4_1());
  check_weights(Q5_0()), check_weights(Q5_K()), check_weights(Q6_K()), check_weights(Q4_K()), check_weights(Q3_K());
  check_weights(QAny());
  check("Unpack, fp32", rows, [&](Desk& d) {
    return Unpack<float, float>{d.below_7(), Panels<float>{d.f[1], C, 70}, d.f[2], stride};
  });
  check("JoinInput", rows,
        [&](Desk& d) { return JoinInput<float>{d.below_7(), d.f[0], d.f[1], stride, d.f[2], 96, C}; });
  check("Matmul", 3, [&](Desk& d) {
    return ColumnBlocks<Matmul<float, float>>{{d.f[0], stride, Panels<float>{d.f[1], C, 70}, d.f[2], 80}, rows};
  });
  check("MatmulGradient", C,
        [&](Desk& d) { return MatmulGradient<float>{rows, C, 70, d.f[0], stride, d.f[1], 80, d.f[2]}; });
}

TEST_CASE(ON "the course's norm has the bits of Norm") {
  constexpr int rows = 3, C = 77, stride = 80;
  std::vector<float> x(rows * stride), weight(C), right(rows * stride);
  Chance chance(3);
  chance.fill(x.data(), x.size());
  chance.fill(weight.data(), weight.size());
  const Norm<float> on_core{x.data(), stride, C, weight.data(), nullptr, right.data(), stride, nullptr, nullptr, false};
  for (int row = 0; row < rows; row++) on_core(Solo{}, row);
  const Array<float> from = on_device(x), w = on_device(weight);
  const auto on_warps = in_every_order([&] {
    Array<float> to(right.size(), true);
    to.upload(std::vector<float>(right.size()).data(), right.size());
    norm_by_warps(Norm<float>{from.data(), stride, C, w.data(), nullptr, to.data(), stride, nullptr, nullptr, false},
                  rows);
    return to_host(to);
  });
  CHECK(same_bits(on_warps, right));
}

TEST_CASE(ON "tree attention and the cache, row by row: a warp gives a core's bits") {
  Chance chance(2);
  const Batch batch = random_batch(chance, 3, 9, 20, 7);
  const int slots = batch.slots(), H = 4, KV = 2, D = 5, most = pad64(most_keys(batch));
  const auto check = [&](const char* name, int n, auto make) { check_groups(name, batch, n, make); };
  const auto attention_on = [&](Desk& d) {
    const KeyValues<float> cache{d.f[1], d.f[2], slots, D};
    return Attention<float>{d.batch.forest, H, KV, D, d.f[0], 48, cache, d.f[3], 32, d.f[4], {}};
  };
  check("WriteCache", batch.rows(), [&](Desk& d) { return WriteCache<float, float>{attention_on(d)}; });
  check("AttentionForward", batch.rows() * H, [&](Desk& d) {
    return AttentionForward<float, float>{attention_on(d), d.f[5], most};
  });
  check("AttentionForward, bf16", batch.rows() * H, [&](Desk& d) {
    const KeyValues<bf16> cache{d.keys.data(), d.values.data(), slots, D};
    return AttentionForward<float, bf16>{
        {d.batch.forest, H, KV, D, d.f[0], 48, cache, d.f[3], 32, d.f[4], {}}, d.f[5], most};
  });
  const auto backward_on = [&](Desk& d) {
    return AttentionBackward<float>{attention_on(d), d.f[6], d.f[7], d.f[7] + 8192, d.f[5] + 16384};
  };
  check("AttentionBackwardQueries", batch.rows() * H, [&](Desk& d) {
    return AttentionBackwardQueries<float>{backward_on(d), d.f[3] + 8192, d.f[4] + 8192, most};
  });
  check("AttentionBackwardKeys", batch.roots() * KV * most, [&](Desk& d) {
    return AttentionBackwardKeys<float>{backward_on(d), d.f[3] + 8192, d.f[4] + 8192, most};
  });
  check("ReadCacheGradient", batch.rows(), [&](Desk& d) { return ReadCacheGradient<float>{backward_on(d)}; });
  check("KeepRows", 2 * KV, [&](Desk& d) {
    const size_t k_layer = size_t(KV) * slots * D, v_layer = size_t(KV) * slots * 16;
    return KeepRows<float>{d.f[1], d.f[2], k_layer, v_layer, KV, slots, D, d.kept()};
  });
  check("KeepRows, bf16", 2 * KV, [&](Desk& d) {
    const size_t k_layer = size_t(KV) * slots * 6, v_layer = size_t(KV) * slots * 16;  // pairs of channels
    return KeepRows<bf16>{
        reinterpret_cast<bf16*>(d.f[1]), reinterpret_cast<bf16*>(d.f[2]), k_layer, v_layer, KV, slots, D, d.kept()};
  });
}

// A row: the noise of one place of the text, and the token picked, by every lane for itself.
struct NoiseAndPick {
  Sampling sampling;
  int64_t index;
  int vocab;
  const float* logits;
  float* noise;
  int* picked;  // (kLanes)
  template <class G>
  HD void operator()(const G& g, int) const {
    make_noise(g, sampling, kStreamSample, uint64_t(index), vocab, noise);
    const int token = pick(g, logits, noise, vocab, sampling);
    int* const out = picked;
    g.each(kLanes, [=](int lane) { out[lane] = token; });
  }
};

TEST_CASE(ON "sample: a warp makes a core's noise and picks its tokens, bit for bit") {
  for (int vocab : {1, 31, 65, 129, 1000}) {
    CAPTURE(vocab);
    Chance chance(8);
    std::vector<float> logits(vocab);
    for (float& x : logits) x = float(int(chance.number() * 16 - 8)) / 2;  // with ties
    if (vocab > 40) logits[7] = Format<float>::kNaN, logits[40] = -Format<float>::kInfinity;
    for (const Sampling& sampling :
         {Sampling{0}, Sampling{1}, Sampling{0.7f, 20}, Sampling{1, 0, 0.8f}, Sampling{1.5f, 9, 0.9f}})
      for (int64_t index : {3, 1000000}) {
        const auto noise_and_picks = [&](bool cuda) {
          const int n = whole(vocab, kNoiseBlock);
          Array<float> device_logits(logits.size(), cuda), noise(n, cuda);
          Array<int> picked(kLanes, cuda);
          device_logits.upload(logits.data(), logits.size());
          launch(Team{0, 1, nullptr, cuda}, 1,
                 NoiseAndPick{sampling, index, vocab, device_logits.data(), noise.data(), picked.data()});
          std::vector<float> all = to_host(noise);
          all.resize(vocab);
          for (int token : to_host(picked)) all.push_back(float(token));
          return all;
        };
        const auto on_core = noise_and_picks(false);
        const auto on_warp = in_every_order([&] { return noise_and_picks(true); });
        CHECK(memcmp(on_core.data(), on_warp.data(), on_core.size() * sizeof(float)) == 0);
        CHECK(on_core.back() == float(pick(logits.data(), Noise(sampling, vocab).row(index), vocab, sampling)));
      }
  }
}

}  // namespace nanospec
