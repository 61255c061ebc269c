// files/gguf_model.cpp: what gguf_model.h declares, in the same order.
#include "files/gguf_model.h"

#include "files/model_path.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The numbers of a tensor

// (32, 64) numbers of that type, without memory.
static Panels<AnyNumber> of_type(Dtype dtype) { return {.k = kBlockNumbers, .n = 64, .dtype = dtype}; }

void read_scales(GgufScales scales, const uint8_t* block, int b, IntegerBlock& to) {
  const auto half = [&](int at) { return half_to_float(load<uint16_t>(block + at)); };
  to.scale[0] = to.scale[1] = half(scales == GgufScales::halves6 ? 108 : scales == GgufScales::halves8 ? 208 : 0);
  to.min = -0.0f;
  if (scales == GgufScales::min) to.min = half(2);
  if (scales == GgufScales::pairs) {
    // The first four numbers of each kind have 6 bits of a byte. The last four have the 2 bits that are left there, and
    // 4 bits of a byte that both kinds share.
    const uint8_t* const its = block + 4 + b % 4;
    const int scale = b < 4 ? its[0] & 63 : (its[8] & 15) | its[0] >> 6 << 4;
    const int min = b < 4 ? its[4] & 63 : its[8] >> 4 | its[4] >> 6 << 4;
    to.scale[0] = to.scale[1] = to.scale[0] * float(scale);
    to.min = -(half(2) * float(min));
  }
  for (int i = 0; i < 2; i++) {
    const int at = 2 * b + i;
    const uint8_t* const its = block + 96;  // 8 bytes with the low 4 bits of two numbers, 4 with the high 2 of four
    if (scales == GgufScales::halves6)
      to.scale[i] *= float((its[at % 8] >> at / 8 * 4 & 15) + ((its[8 + at % 4] >> at / 4 * 2 & 3) << 4) - 32);
    if (scales == GgufScales::halves8) to.scale[i] *= float(int8_t(block[192 + at]));
  }
}

Dtype stored_type(const std::set<GgufType>& types) {
  int least = 0, most = 0, with_blocks = 0;
  bool min = false, halves = false, in_half = true;
  for (GgufType type : types)
    with_blocks += visit_blocks(type, [&](auto its) {
      least = std::min(least, its.kLeast);
      most = std::max(most, its.kMost);
      min |= its.kMin;
      halves |= its.kHalves;
      in_half &= its.kInHalf;
    });
  if (with_blocks == 0 && types.size() == 1)
    return *types.begin() == GgufType::F32 ? Dtype::fp32 : *types.begin() == GgufType::F16 ? Dtype::f16 : Dtype::bf16;
  const bool small = std::all_of(types.begin(), types.end(), [](GgufType type) {
    return type == GgufType::Q8_0 || type == GgufType::Q4_0 || type == GgufType::Q4_1;
  });
  if (with_blocks < int(types.size()) || (small && types.size() > 1)) return Dtype::bf16;
  // By their size. The last one holds all.
  for (Dtype dtype :
       {Dtype::q4_0, Dtype::q4_1, Dtype::q5_0, Dtype::q3_k, Dtype::q4_k, Dtype::q5_k, Dtype::q6_k, Dtype::q8_0})
    if (of_type(dtype).visit([&](const auto& panels) {
          using Q = std::remove_pointer_t<decltype(panels.data)>;
          if constexpr (kIsQuantized<Q>)
            return least + Q::kZero >= 0 && most + Q::kZero < 1 << Q::kBits && min <= Q::kMin &&
                   (halves ? 2 : 1) <= Q::kScales && (in_half || std::is_same<typename Q::Number, float>::value);
          else return false;
        }))
      return dtype;
  return Dtype::q_any;
}

void dequantize(const GgufTensor& tensor, size_t first, size_t n, float* out) {
  const size_t block = readable(tensor.type)->numbers, size = tensor.size();
  if (first % block != 0 || n % block != 0 || first > size || n > size - first)
    throw std::invalid_argument(
        filled("dequantize: numbers {} to {} of tensor {} are no whole blocks of it", first, first + n, tensor.name));
  const bool blocks = visit_blocks(tensor.type, [&](auto format) {
    for (size_t b = first / kBlockNumbers; b < (first + n) / kBlockNumbers; b++) {
      const IntegerBlock its = integer_block<decltype(format)>(tensor, b);
      for (int i = 0; i < kBlockNumbers; i++)
        *out++ = float(its.codes[i]) * its.scale[i / (kBlockNumbers / 2)] + its.min;
    }
  });
  const size_t width = tensor.bytes / size;  // of a number, where there are no blocks
  if (!blocks) to_floats(tensor.data + first * width, type_name(tensor.type), n, out);
}

// Calls f(part, tensor of the file) for all that a tensor of the table is made of.
template <class F>
static void each_part(const GgufFile& file, const std::vector<FileTensor>& parts, const TensorSpec& spec, F f) {
  for (const FileTensor& part : parts)
    if (part.ours == spec.name) f(part, file.tensor(part.gguf));
}

static size_t our_row(const FileTensor& part, size_t row, int head_size) {
  return part.rotary ? size_t(hugging_face_row(int64_t(row), head_size)) : row;
}

static void check_finite(bool finite, const GgufFile& file) {
  if (!finite) refuse("a weight is not a finite number", file.path);
}

// The tensors of a file, which stays mapped.
static TensorSource gguf_source(const GgufFile& file, const Config& config) {
  const std::vector<FileTensor> parts = model_parts(config);
  const int head_size = config.head_size();
  TensorSource source;
  source.read = [=](const TensorSpec& spec, float* to) { read_gguf_tensor(file, parts, head_size, spec, to); };
  source.blocks = [=](const TensorSpec& spec,
                      const TensorSource::SetBlock& set) {  // throws where a scale is not finite
    each_part(file, parts, spec, [&](const FileTensor& part, const GgufTensor& tensor) {
      const size_t rows = size_t(part.shape[0]), blocks = size_t(part.shape[1]) / kBlockNumbers;
      visit_blocks(tensor.type, [&](auto format) {
        for (size_t at = 0; at < rows * blocks; at++) {
          const IntegerBlock its = integer_block<decltype(format)>(tensor, at);
          check_finite(std::isfinite(its.scale[0]) && std::isfinite(its.scale[1]) && std::isfinite(its.min), file);
          set(int(part.first + our_row(part, at / blocks, head_size)), int(at % blocks), its);
        }
      });
      file.release();
    });
  };
  source.type = [=](const TensorSpec& spec) {
    std::set<GgufType> types;
    each_part(file, parts, spec, [&](auto&, auto& tensor) { types.insert(tensor.type); });
    return stored_type(types);
  };
  return source;
}

void read_gguf_tensor(const GgufFile& file, const std::vector<FileTensor>& parts, int head_size, const TensorSpec& spec,
                      float* to) {
  each_part(file, parts, spec, [&](const FileTensor& part, const GgufTensor& tensor) {
    const size_t row_numbers = part.shape.size() > 1 ? tensor.columns() : 1;
    const auto rows = [&](size_t first, size_t n, float* out) {
      dequantize(tensor, first * row_numbers, n * row_numbers, out);
    };
    copy_from_file(part, to, rows, [&](size_t row) { return our_row(part, row, head_size); });
    file.release();
  });
  check_finite(std::all_of(to, to + spec.size, [](float x) { return std::isfinite(x); }), file);
}

// ---------------------------------------------------------------------------------------------------------------
// The sizes

namespace {

constexpr const char* kRopeFactors = "rope_freqs.weight";  // Llama 3's
constexpr const char* kAnother = "use another model (docs/formats.md says what loads)";

// Keys after "llama." that read_gguf_header reads, or that change nothing here.
constexpr const char* kRead =
    "context_length embedding_length block_count feed_forward_length vocab_size attention.head_count "
    "attention.head_count_kv attention.key_length attention.value_length attention.layer_norm_rms_epsilon "
    "attention.layer_norm_epsilon attention.sliding_window rope.freq_base rope.dimension_count "
    "rope.scaling.type rope.scaling.factor rope.scale_linear rope.scaling.original_context_length "
    "rope.scaling.finetuned";
// Keys that may be there with values that ask for nothing, between '|'.
struct Harmless {
  const char *key, *values, *feature;
};
constexpr Harmless kHarmless[] = {
    {"rope.scaling.attn_factor", "1", "scaled rotary positions"},
    {"expert_count", "0", "a mixture of experts"},
    {"expert_used_count", "0", "a mixture of experts"},
    {"attention.causal", "true", "attention to later tokens"},
    {"attention.clamp_kqv", "0", "clamped queries, keys and values"},
    {"attention.max_alibi_bias", "0", "ALiBi positions"},
    {"attn_logit_softcapping", "0", "soft-capped logits"},
    {"final_logit_softcapping", "0", "soft-capped logits"},
    {"logit_scale", "0|1", "scaled logits"},
    {"embedding_scale", "0|1", "scaled embeddings"},
    {"residual_scale", "0|1", "scaled residuals"},
    {"use_parallel_residual", "false", "attention beside the MLP"},
    {"pooling_type", "0", "pooled embeddings"},
    {"tensor_data_layout", "\"Meta AI original pth\"|\"llama.cpp\"", "rotary rows in another order"},
};

bool among(const std::string& word, const std::string& words, char between) {
  const std::vector<std::string> all = split_at(words, between);
  return std::find(all.begin(), all.end(), word) != all.end();
}

// prefix: of the keys of its architecture.
void check_keys(const GgufFile& file, const std::string& prefix) {
  for (auto at = file.metadata.lower_bound(prefix); at != file.metadata.end(); ++at) {
    const std::string& key = at->first;
    if (key.compare(0, prefix.size(), prefix) != 0) break;
    const std::string rest = key.substr(prefix.size()), value = shown_value(at->second);
    if (among(rest, kRead, ' ')) continue;
    const Harmless* const known = row_of(kHarmless, &Harmless::key, rest);
    if (!known) file.wrong(printable(key) + " is " + value + ", and its meaning is not known", kAnother);
    if (!among(value, known->values, '|'))
      file.wrong(key + " is " + value + ": " + known->feature + " cannot be computed", kAnother);
  }
}

// Why a tensor that is not expected may be there, by a part of its name.
const char* feature_of(const std::string& name) {
  constexpr const char* kFeatures[][2] = {
      {".bias", "biases"},
      {"rope_", "positions scaled in another way"},
      {"_exps.", "a mixture of experts"},
      {"_shexp.", "a mixture of experts"},
      {"ffn_gate_inp", "a mixture of experts"},
      {"attn_q_norm", "norms of queries and keys"},
      {"attn_k_norm", "norms of queries and keys"},
      {"attn_qkv", "queries, keys and values in one tensor"},
      {".scale", "scales of tensors"},
  };
  for (const auto& [part, feature] : kFeatures)
    if (name.find(part) != std::string::npos) return feature;
  return "no part of such a model";
}

// Whether a tensor changes nothing, although such a model has none of the kind: a bias of zeros.
bool does_nothing(const GgufTensor& tensor) {
  const std::string& name = tensor.name;
  if (name.substr(std::min(name.rfind('.'), name.size())) != ".bias" || tensor.type != GgufType::F32) return false;
  return std::all_of(tensor.data, tensor.data + tensor.bytes, [](uint8_t byte) { return byte == 0; });
}

void check_shapes(const GgufFile& file, const Config& config) {
  Expected expected;
  for (const FileTensor& tensor : model_parts(config)) expected[tensor.gguf] = tensor.shape;
  if (file.find(kRopeFactors)) expected[kRopeFactors] = {config.head_size() / 2};
  for (const GgufTensor& tensor : file.tensors)
    if (!expected.count(tensor.name) && !does_nothing(tensor))
      file.wrong("tensor " + printable(tensor.name) + " is not expected (" + feature_of(tensor.name) + ")", kAnother);
  for (const auto& [name, shape] : expected) {
    const GgufTensor& tensor = file.tensor(name);
    if (tensor.shape != shape)
      file.wrong(filled("tensor {} has shape {}, expected {}", name, shown_shape(tensor.shape), shown_shape(shape)));
  }
}

// What scales the rotary positions: a tensor, or one factor for all pairs.
std::vector<float> read_rope_factors(const GgufFile& file, const std::string& prefix, int head_size) {
  const std::string type = file.text(prefix + "scaling.type", "linear");
  const double factor = file.number(prefix + "scaling.factor", file.number(prefix + "scale_linear", 1.0));
  std::vector<float> factors;
  if (const GgufTensor* const tensor = file.find(kRopeFactors)) {
    if (tensor->type != GgufType::F32 || tensor->size() != size_t(head_size / 2))
      file.wrong(filled("tensor {} has shape {}, expected {} numbers of type F32", kRopeFactors,
                        shown_shape(tensor->shape), head_size / 2));
    factors.resize(tensor->size());
    dequantize(*tensor, 0, factors.size(), factors.data());
  } else if (type == "linear" && factor != 0 && factor != 1) {
    factors.assign(size_t(head_size / 2), float(factor));
  } else if (type != "none" && type != "linear" && factor != 0 && factor != 1) {
    file.wrong(prefix + "scaling.type is \"" + printable(type) + "\": such positions cannot be computed", kAnother);
  }
  for (float x : factors)
    if (!is_above_0(x)) file.wrong("a rotary position's factor is not above 0");
  return factors;
}

}  // namespace

Config read_gguf_header(const GgufFile& file) {
  const std::string architecture = file.text("general.architecture"), prefix = architecture + ".",
                    type = file.text("general.type", "model");
  const Family* const family = row_of(kFamilies, &Family::gguf, architecture);  // null: GPT-2
  if (!family && architecture != "gpt2")
    file.wrong("a model of the architecture \"" + printable(architecture) + "\", expected llama, qwen2, qwen3 or gpt2",
               kAnother);
  if (type != "model") file.wrong("a file of type \"" + printable(type) + "\", expected \"model\"", kAnother);
  if (file.integer("split.count", 0, 65535, 0) > 1)
    file.wrong("one part of a model in several files", "join them with llama-gguf-split --merge");
  check_keys(file, prefix);
  const auto size = [&](const std::string& key, const std::optional<int64_t>& otherwise = {}) {
    return int(file.integer(prefix + key, 1, INT32_MAX, otherwise));
  };
  Config h;
  h.rotary = h.swiglu = family;
  h.center = h.bias = h.tanh = !family;
  h.qkv_bias = family && family->qkv_bias;
  h.qk_norm = family && family->qk_norm;
  h.block_size = size("context_length");
  const int span = int(file.integer(prefix + "attention.sliding_window", 0, INT32_MAX, int64_t(0)));
  if (family && span < h.block_size) h.span = span;
  h.n_embd = size("embedding_length");
  h.n_layer = size("block_count");
  // The same, or a list with the number of each layer, if they are equal.
  const auto layer_size = [&](const std::string& key, const std::optional<int64_t>& otherwise = {}) {
    const auto found = file.metadata.find(prefix + key);
    if (found == file.metadata.end() || !found->second.list || found->second.count != uint64_t(h.n_layer))
      return size(key, otherwise);
    const GgufFile::Integers all = file.integers(prefix + key, 1, INT32_MAX);
    const bool equal = std::all_of(all.begin(), all.end(), [&](int64_t n) { return n == all[0]; });
    return equal ? int(all[0]) : size(key);
  };
  h.n_inner = layer_size("feed_forward_length");
  h.n_head = layer_size("attention.head_count");
  h.n_kv_head = layer_size("attention.head_count_kv", h.n_head);
  if (h.n_head % h.n_kv_head != 0)
    file.wrong(filled("{}attention.head_count_kv is {}, no divisor of the {} heads", prefix, h.n_kv_head, h.n_head));
  if (!file.has(prefix + "attention.key_length") && h.n_embd % h.n_head != 0)
    file.wrong(filled("{}embedding_length is {}, no multiple of the {} heads", prefix, h.n_embd, h.n_head));
  h.head_dim = size("attention.key_length", std::max(1, h.n_embd / h.n_head));
  if (h.head_dim % 2 != 0) file.wrong(filled("heads have {} channels, expected an even number", h.head_dim));
  for (const char* same : {"attention.value_length", "rope.dimension_count"})
    if (size(same, h.head_dim) != h.head_dim)
      file.wrong(filled("{}{} is {}, expected the {} channels of a head", prefix, same, size(same), h.head_dim));
  if (const std::string problem = heads_problem(h); !problem.empty()) file.wrong(problem);
  const auto above_0 = [&](const std::string& key, const std::optional<double>& otherwise = {}) {
    const double number = file.number(key, otherwise);
    if (!is_above_0(number)) file.wrong(key + " is not above 0");
    return float(number);
  };
  h.norm_epsilon = above_0(prefix + "attention.layer_norm_" + (family ? "rms_epsilon" : "epsilon"));
  h.rope_theta = above_0(prefix + "rope.freq_base", 10000.0);
  if (family) h.rope_factors = read_rope_factors(file, prefix + "rope.", h.head_dim);

  h.tied = !file.find("output.weight");
  const GgufTensor& embedding = file.tensor("token_embd.weight");
  if (embedding.shape.size() != 2 || embedding.shape[0] > INT32_MAX)
    file.wrong("tensor token_embd.weight has shape " + shown_shape(embedding.shape) + ", expected (tokens, channels)");
  h.vocab_size = int(embedding.shape[0]);
  if (size("vocab_size", h.vocab_size) != h.vocab_size)
    file.wrong(
        filled("{}vocab_size is {}, but token_embd.weight has {} rows", prefix, size("vocab_size"), h.vocab_size));
  if (file.has("tokenizer.ggml.tokens") && file.length("tokenizer.ggml.tokens") != uint64_t(h.vocab_size))
    file.wrong(filled("the tokenizer has {} tokens, but token_embd.weight has {} rows",
                      file.length("tokenizer.ggml.tokens"), h.vocab_size));
  if (size_t(h.n_layer) > file.tensors.size())  // before anything is made for each layer
    file.wrong(filled("{}block_count is {}, but the file has {} tensors", prefix, h.n_layer, file.tensors.size()));
  check_shapes(file, h);
  return h;
}

// ---------------------------------------------------------------------------------------------------------------
// All of it

int context_of(const Config& model, int wanted, const std::string& path) {
  if (wanted == 0) return std::min(model.block_size, kMostContext);
  if (wanted > model.block_size)
    refuse(filled("a context of {} tokens is more than the model's own {}", wanted, model.block_size), path,
           "give at most that to --context");
  return wanted;
}

// Bytes of a number of that type.
static double bytes_of(Dtype dtype) {
  const Panels<AnyNumber> panels = of_type(dtype);
  return double(panels.size()) / (panels.k * panels.n);
}

// About how many bytes decoding takes: packed matrices, cached numbers, what is read as it is stored, and the largest
// matrix while it is packed.
static double takes_decoding(const Config& c, const TensorSource& source, Dtype dtype, double cache_bytes) {
  constexpr double kRows = 256;  // of slots beyond the window, and of activations
  double matrices = 0, largest = 0;
  for (const TensorSpec& spec : tensor_table(c)) {
    const Dtype stored = source.type(spec), its = dtype == Dtype::as_stored ? stored : dtype;
    if (spec.decay) matrices += double(spec.size) * bytes_of(its);
    if (its != stored || !is_quantized(its)) largest = std::max(largest, double(spec.size));
  }
  const double cached = 2.0 * c.n_layer * c.n_kv_head * c.head_size() * (c.block_size + kRows);
  return matrices + 2 * largest * sizeof(float) + cached * cache_bytes +
         kRows * (c.vocab_size + 3.0 * c.hidden()) * sizeof(float);
}

Loaded load_gguf(const GgufFile& file, int context, Dtype dtype, Dtype cache_dtype) {
  const std::string& path = file.path;
  const Config model = read_gguf_header(file);
  Loaded loaded;
  loaded.config = config_of(model, context_of(model, context, path));
  const std::string problem = config_problem(loaded.config);
  if (!problem.empty()) refuse(problem, path, "use another model");
  loaded.tensors = gguf_source(file, loaded.config);
  check_memory(path, double(file.size), takes_decoding(loaded.config, loaded.tensors, dtype, bytes_of(cache_dtype)),
               "a smaller file, or a smaller --context");
  loaded.tokenizer = gguf_tokenizer(file);
  return loaded;
}

}  // namespace nanospec
