// tests/files/test_quantized.cpp: GGUF files whose tensors are of Q6_K, Q5_K, Q4_K, Q3_K, Q5_0, Q5_1 and older types,
// as they come mixed in one file.
//
// In order: numbers of the Python package `gguf`; a Llama of random blocks; how each type is stored here; its weights
// in memory, logits and texts; damaged files.
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "decode.h"
#include "files/gguf_model.h"
#include "target.h"
#include "tests/damaged.h"
#include "tests/gguf_file.h"
#include "tests/mock.h"
#include "tests/random.h"
#include "tests/tenth.h"

using namespace nanospec;

namespace {

// Where a block has its floats, and what they are in a Llama below: so large that weights are about 0.06.
struct Floats {
  GgufType type;
  int at;
  float scale;
  int min_at = -1;
  float min = 0;
};
constexpr Floats kFloats[] = {{GgufType::Q8_0, 0, 8e-4f},
                              {GgufType::Q4_0, 0, 0.013f},
                              {GgufType::Q4_1, 0, 0.013f, 2, -0.1f},
                              {GgufType::Q5_0, 0, 0.0065f},
                              {GgufType::Q5_1, 0, 0.0065f, 2, -0.1f},
                              {GgufType::Q3_K, 108, 1.4e-3f},
                              {GgufType::Q4_K, 0, 4e-4f, 2, 3e-3f},
                              {GgufType::Q5_K, 0, 2e-4f, 2, 3e-3f},
                              {GgufType::Q6_K, 208, 4.4e-5f}};
const Floats& floats_of(GgufType type) { return *row_of(kFloats, &Floats::type, type); }

// A matrix of random blocks.
Part random_part(const std::string& name, GgufType type, uint64_t columns, uint64_t rows, Chance& chance) {
  const Readable& its = *readable(type);
  const Floats& floats = floats_of(type);
  std::string data;
  for (uint64_t block = columns * rows / its.numbers; block > 0; block--) {
    const size_t at = data.size();
    for (size_t i = 0; i < its.bytes; i++) data += char(chance.below(256));
    const auto put = [&](int where, float x) {
      const uint16_t half = to_f16(x * float(0.5 + chance.number())).bits;
      memcpy(&data[at + size_t(where)], &half, 2);
    };
    put(floats.at, chance.below(8) ? floats.scale : -floats.scale);
    if (floats.min_at >= 0) put(floats.min_at, floats.min);
  }
  return {name, uint32_t(type), {columns, rows}, data};
}

// A Llama with C = 256, F = 256, two heads that share keys, V = 1001 and two layers, whose matrices have these types in
// turn: the embedding, then of each layer the queries, keys, values, outputs, gate, up, down; then the head.
Draft random_llama(const std::vector<GgufType>& types, uint64_t seed = 1) {
  Draft draft = llama_with_tokenizer();
  for (const char* size : {"embedding_length", "feed_forward_length"})
    draft.set(whole(std::string("llama.") + size, 256));
  draft.set(whole("llama.context_length", 64));
  Chance chance(seed);
  size_t turn = 0;
  draft.tensors.push_back({"output.weight", 0, {256, 1001}, ""});
  for (Part& part : draft.tensors) {
    if (part.shape.size() == 2)
      part = random_part(part.name, types[turn++ % types.size()], 256, part.shape[1] < 100 ? part.shape[1] * 64 : 1001,
                         chance);
    else part = {part.name, uint32_t(GgufType::F32), {256}, ""};
    for (int i = 0; i < 256 && part.shape.size() == 1; i++) part.data += raw(float(0.5 + chance.number()));
  }
  for (const std::string layer : {"blk.0.", "blk.1."})
    for (const char* name : {"ffn_gate", "ffn_up", "ffn_down"}) {
      Part& part = draft.tensor(layer + name + ".weight");
      part = random_part(part.name, GgufType(part.type), 256, 256, chance);
    }
  return draft;
}
Loaded loaded_llama(const std::vector<GgufType>& types, uint64_t seed = 1) {
  return load_gguf(parse_gguf(random_llama(types, seed).bytes(), "m.gguf"), 0, Dtype::as_stored);
}

// As llama-quantize mixes them, and all in turn.
using Type = GgufType;
const std::vector<GgufType> kMixes[] = {
    {Type::Q6_K, Type::Q4_K, Type::Q4_K, Type::Q6_K, Type::Q4_K, Type::Q4_K, Type::Q4_K, Type::Q6_K, Type::Q4_K,
     Type::Q4_K, Type::Q4_K},
    {Type::Q6_K, Type::Q5_K, Type::Q5_K, Type::Q6_K, Type::Q5_K},
    {Type::Q6_K, Type::Q3_K, Type::Q3_K, Type::Q5_K, Type::Q4_K, Type::Q3_K, Type::Q3_K, Type::Q4_K},
    {Type::Q6_K, Type::Q4_0, Type::Q4_0, Type::Q4_0, Type::Q4_0, Type::Q4_0, Type::Q4_0, Type::Q4_0},
    {Type::Q8_0, Type::Q5_1, Type::Q5_1, Type::Q8_0, Type::Q5_1},
    {Type::Q8_0, Type::Q6_K, Type::Q5_K, Type::Q5_1, Type::Q5_0, Type::Q4_K, Type::Q4_1, Type::Q4_0, Type::Q3_K}};

// A panel's weight as the operations see it.
float weight_of(const Panels<AnyNumber>& panels, int k, int n) {
  return panels.visit([&](const auto& its) -> float {
    if constexpr (kIsQuantized<std::remove_reference_t<decltype(*its.data)>>) return its.weight(k, n);
    else return NAN;
  });
}

// (n, V) the logits of a chain of tokens.
std::vector<float> logits_of(const Loaded& loaded, Dtype dtype, int threads, int n) {
  Target target(loaded.config, loaded.source(), dtype, false, threads, n);
  std::vector<int> tokens, depth, end(size_t(n), n);
  for (int i = 0; i < n; i++) tokens.push_back(i * 37 % loaded.config.vocab_size), depth.push_back(i);
  target.forward(tokens.data(), depth.data(), end.data(), n);
  std::vector<float> all;
  for (int i = 0; i < n; i++) all.insert(all.end(), target.logits(i), target.logits(i) + loaded.config.vocab_size);
  return all;
}

}  // namespace

// `tests/reference/gguf_check.py --stored` printed the digests, and makes the same blocks.
TEST_CASE("quantized: blocks of 6 to 3 bits have the numbers of the Python package, bit for bit") {
  const std::pair<GgufType, const char*> digests[] = {
      {Type::Q5_0, "838b7226c0f5a009e47791141e5c7a258f6821e402dedb66bbcff363cf5856cc"},
      {Type::Q5_1, "6baa2947f23a0a2d72767bce1d41f2b9cbc41c51412279fc918ac8686394c284"},
      {Type::Q3_K, "067eef71c75855a013d9115e54c2f5b696d42e3c335a062ee65b9df3cd6485b2"},
      {Type::Q4_K, "9f5f84566156fd011d96d3c8938ba1988dfd36bcb1601071acacb0c2edc902c4"},
      {Type::Q5_K, "5dc6352b0a338114a0395aa8b3e016e66535531b4b79ded4294c760d73479301"},
      {Type::Q6_K, "5ab1df23ee586c664d074fda461b14e7fac786653fda90eceb268c2fb3284388"}};
  constexpr size_t kBlocks = 64;
  for (const auto& one : digests) {
    const GgufType type = one.first;
    const std::string digest = one.second;
    const Readable& its = *readable(type);
    uint32_t state = uint32_t(type);
    std::string data;
    for (size_t i = 0; i < kBlocks * its.bytes; i++) {
      state = state * 1664525u + 1013904223u;
      const int in_block = int(i % its.bytes);
      const Floats& floats = floats_of(type);
      const bool high_byte = in_block == floats.at + 1 || (floats.min_at >= 0 && in_block == floats.min_at + 1);
      data += char(state >> 24 & (high_byte ? 0xBF : 0xFF));
    }
    Draft draft;
    draft.tensors = {{"a", uint32_t(type), {its.numbers, kBlocks}, data}};
    const GgufFile file = parse_gguf(draft.bytes(), "f.gguf");
    std::string numbers(kBlocks * its.numbers * 4, '\0');
    dequantize(file.tensor("a"), 0, kBlocks * its.numbers, reinterpret_cast<float*>(&numbers[0]));
    CAPTURE(type_name(type));
    CHECK(sha256(numbers) == digest);
  }
}

TEST_CASE("quantized: each type has the smallest format that holds its numbers, and so has each mixture") {
  CHECK(stored_type({Type::Q8_0}) == Dtype::q8_0);
  CHECK(stored_type({Type::Q4_0}) == Dtype::q4_0);
  CHECK(stored_type({Type::Q4_1}) == Dtype::q4_1);
  CHECK(stored_type({Type::Q5_0}) == Dtype::q5_0);
  CHECK(stored_type({Type::Q5_1}) == Dtype::q5_k);
  CHECK(stored_type({Type::Q3_K}) == Dtype::q3_k);
  CHECK(stored_type({Type::Q4_K}) == Dtype::q4_k);
  CHECK(stored_type({Type::Q5_K}) == Dtype::q5_k);
  CHECK(stored_type({Type::Q6_K}) == Dtype::q6_k);
  CHECK(stored_type({Type::Q4_K, Type::Q5_K}) == Dtype::q5_k);
  CHECK(stored_type({Type::Q4_0, Type::Q3_K}) == Dtype::q3_k);
  CHECK(stored_type({Type::Q5_0, Type::Q8_0}) == Dtype::q8_0);
  CHECK(stored_type({Type::Q5_0, Type::Q6_K}) == Dtype::q6_k);
  CHECK(stored_type({Type::Q4_K, Type::Q6_K}) == Dtype::q_any);
  CHECK(stored_type({Type::Q5_1, Type::Q8_0}) == Dtype::q_any);
  CHECK(stored_type({GgufType::F32}) == Dtype::fp32);
  CHECK(stored_type({Type::Q4_0, Type::Q8_0}) == Dtype::bf16);
  CHECK(stored_type({Type::Q4_0, Type::Q5_0}) == Dtype::q5_0);
  CHECK(stored_type({GgufType::F16}) == Dtype::f16);
  CHECK(stored_type({GgufType::BF16}) == Dtype::bf16);
  CHECK(stored_type({GgufType::F32, GgufType::F16}) == Dtype::bf16);
  CHECK(stored_type({GgufType::F32, Type::Q6_K}) == Dtype::bf16);

  const std::pair<GgufType, double> most[] = {{Type::Q8_0, 1},    {Type::Q4_0, 1},    {Type::Q4_1, 1},
                                              {Type::Q5_0, 1},    {Type::Q5_1, 1.17}, {Type::Q6_K, 1.22},
                                              {Type::Q5_K, 1.28}, {Type::Q4_K, 1.34}, {Type::Q3_K, 1.75}};
  for (const auto& one : most) {  // of the bytes in the file
    const GgufType type = one.first;
    const double ratio = one.second;
    Panels<AnyNumber> panels;
    panels.k = 256, panels.n = 64, panels.dtype = stored_type({type});
    CAPTURE(type_name(type));
    CHECK(double(panels.size()) <= ratio * 256 * 64 / double(readable(type)->numbers) * double(readable(type)->bytes));
  }
}

TEST_CASE("quantized: weights in memory are those of the file, bit for bit, of each type and in any mixture") {
  std::vector<std::vector<GgufType>> all(std::begin(kMixes), std::end(kMixes));
  for (const Floats& one : kFloats) all.push_back({one.type});
  for (const std::vector<GgufType>& types : all) {
    const Loaded loaded = loaded_llama(types);
    Target target(loaded.config, loaded.source(), Dtype::as_stored, false, 1, 4);
    const Weights<float, AnyNumber>& w = target.weights();
    std::vector<const Panels<AnyNumber>*> panels = {&w.symbols};
    for (const auto& layer : w.layers)
      for (auto* weight : {&layer.qkv, &layer.proj, &layer.fc, &layer.fc_proj}) panels.push_back(&weight->forward);
    panels.push_back(&w.head.forward);
    size_t next = 0;
    for (const TensorSpec& spec : tensor_table(loaded.config)) {
      if (spec.shape.size() < 2) continue;
      std::vector<float> numbers(spec.size), ours;
      loaded.tensors.read(spec, numbers.data());
      const Panels<AnyNumber>& its = *panels[next++];
      const bool by_rows = spec.name[0] != 'h';  // embedding and head
      const int rows = std::min(spec.shape[0], 256);
      for (int i = 0; i < rows; i++)
        for (int j = 0; j < spec.shape[1]; j++) ours.push_back(by_rows ? weight_of(its, j, i) : weight_of(its, i, j));
      CAPTURE(type_name(types[0]));
      CAPTURE(spec.name);
      CHECK(memcmp(ours.data(), numbers.data(), sizeof(float) * ours.size()) == 0);
    }
    CHECK(next == panels.size());
  }
}

TEST_CASE("quantized: logits are near those of the same numbers in fp32") {
  for (const std::vector<GgufType>& types : kMixes) {
    const Loaded loaded = loaded_llama(types);
    const std::vector<float> exact = logits_of(loaded, Dtype::fp32, 1, 12),
                             ours = logits_of(loaded, Dtype::as_stored, 1, 12);
    double size = 0, apart = 0;
    for (size_t i = 0; i < exact.size(); i++) {
      size += double(exact[i]) * exact[i];
      apart += (double(ours[i]) - exact[i]) * (double(ours[i]) - exact[i]);
    }
    CHECK(apart > 0);
    CHECK(apart < 0.06 * 0.06 * size);  // the activations' 8 bits
    CHECK(logits_of(loaded, Dtype::as_stored, 2, 12) == ours);
  }
}

TEST_CASE("quantized: a tree prints the bytes of plain decoding") {
  for (size_t nth = 0; nth < std::size(kMixes); nth++) {
    const Loaded loaded = loaded_llama(kMixes[nth]);
    Target target(loaded.config, loaded.source(), Dtype::as_stored, false, 2, 65),
        own(loaded.config, loaded.source(), Dtype::as_stored, false, 1, 65);
    SelfDrafter<Target> self(own);
    RandomDrafter random(loaded.config.vocab_size);
    Decoding decoding;
    decoding.sampling.temperature = nth % 2 ? 1.0f : 0.0f;
    decoding.max_new_tokens = 24;
    const std::vector<int> prompt = {5, 6, 7};
    std::vector<int> plain = prompt;
    generate(target, nullptr, decoding, plain, [](int) { return true; });
    decoding.shape = parse_shape("tree:3x2", 64);
    for (Drafter* drafter : {static_cast<Drafter*>(&self), static_cast<Drafter*>(&random)}) {
      std::vector<int> text = prompt;
      const Stats stats = generate(target, drafter, decoding, text, [](int) { return true; });
      CHECK(text == plain);
      if (drafter == &self) CHECK(stats.target_forwards == 6);
    }
  }
}

TEST_CASE("quantized: a damaged file is refused with one line, or decoded with its weights as they are") {
  Draft draft = random_llama(kMixes[5]);
  const std::string good = draft.bytes();
  std::mt19937_64 random(20261127 + sweep_seed());
  int decoded = 0;
  const int files = a_tenth() ? 60 : 600;
  for (int i = 0; i < files; i++) {
    std::string bytes = good;
    const bool weights = random() % 4;
    for (int changes = weights ? 1 + int(random() % 60) : 1; changes > 0; changes--)
      bytes[weights ? draft.header + random() % (bytes.size() - draft.header) : random() % draft.header] =
          char(random());
    const DamagedRead result = read_damaged(65536 + 16 * bytes.size(), [&] {
      const Loaded loaded = load_gguf(parse_gguf(bytes, "m.gguf"), 0, Dtype::as_stored);
      Target target(loaded.config, loaded.source(), Dtype::as_stored, false, 1, 4);
      const int tokens[4] = {0, 1, 2, 3}, depth[4] = {0, 1, 1, 2}, end[4] = {4, 2, 4, 4};
      target.forward(tokens, depth, end, 4);
    });
    if (!result.wrong.empty()) FAIL("file " << i << ": " << result.wrong);
    decoded += result.loaded;
  }
  INFO(files << " files: " << decoded << " decoded");
  CHECK(decoded > files / 10);
  CHECK(decoded < files);
}
