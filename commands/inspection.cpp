// commands/inspection.cpp: see inspection.h. In order: facts; a model's sizes; tensors; files beside
// the weights; GGUF files; folders.
#include "commands/inspection.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <functional>

#include "commands/cli.h"
#include "files/folder.h"
#include "files/gguf_model.h"
#include "files/model_path.h"
#include "files/origin.h"
#include "files/tables.h"

namespace nanospec {
namespace {

// ---------------------------------------------------------------------------------------------------------------
// Facts

std::string short_text(double x) {
  char text[32];
  snprintf(text, sizeof text, "%.6g", x);
  return text;
}
void add(std::vector<Fact>& facts, const char* key, const char* label, int64_t value) {
  facts.push_back({key, label, value, thousands(double(value))});
}
void add(std::vector<Fact>& facts, const char* key, const char* label, const std::string& value) {
  facts.push_back({key, label, value, printable(value, 200)});
}
void add_bytes(std::vector<Fact>& facts, const char* key, const char* label, double value) {
  facts.push_back({key, label, int64_t(value), bytes_text(value)});
}
void add_number(std::vector<Fact>& facts, const char* key, const char* label, double value) {
  facts.push_back({key, label, value, short_text(value)});
}

// Does f; what it refuses becomes an obstacle, with the place where that is not the model itself.
void attempt(Inspection& all, const std::function<void()>& f) {
  try {
    f();
  } catch (const Refusal& refusal) {
    all.obstacles.push_back(refusal.wrong + (refusal.where == all.path ? "" : ": " + refusal.where));
  }
}

// ---------------------------------------------------------------------------------------------------------------
// A model's sizes

// context: tokens that it was trained to see.
void describe_config(Inspection& all, const Config& c, const std::string& architecture, int context) {
  std::vector<Fact>& m = all.model;
  add(m, "architecture", "architecture", architecture);
  add(m, "n_layer", "layers", c.n_layer);
  add(m, "n_embd", "channels", c.n_embd);
  add(m, "n_head", "heads", c.n_head);
  add(m, "n_kv_head", "key/value heads", c.n_kv_head);
  add(m, "head_dim", "head size", c.head_size());
  add(m, "n_inner", "MLP channels", c.inner());
  add(m, "mlp", "MLP", c.swiglu ? "SwiGLU, three matrices" : "GELU, two matrices");
  add(m, "positions", "positions", c.rotary ? "rotary" : "learned");
  if (c.rotary) add_number(m, "rope_theta", "rotary theta", double(c.rope_theta));
  add(m, "norm", "norm", c.center ? "LayerNorm" : "RMSNorm");
  add_number(m, "norm_epsilon", "norm epsilon", double(c.norm_epsilon));
  add(m, "bias", "biases", c.bias ? "yes" : "no");
  add(m, "head", "head", c.tied ? "tied: the embedding" : "its own matrix");
  add(m, "context", "context", context);
  if (c.block_size < context) add(m, "window", "window here", c.block_size);
  add(m, "vocab_size", "vocabulary", c.vocab_size);

  const double cached = 2.0 * c.n_layer * c.n_kv_head * c.head_size();  // numbers for each token
  add_bytes(all.sizes, "cache_bytes_fp32", "cache, a token, fp32", 4 * cached);
  add_bytes(all.sizes, "cache_bytes_bf16", "cache, a token, bf16", 2 * cached);
}

// What all tensors make: they stand before the cache. A folder's file holds more than its model, zeros for biases: of
// a model whose config is known its own table counts.
void describe_sizes(Inspection& all, const std::optional<Config>& config) {
  double numbers = 0, vectors = 0;
  const auto count = [&](double size, size_t dimensions) {
    numbers += size;
    if (dimensions < 2) vectors += size;
  };
  if (config)
    for (const TensorSpec& tensor : tensor_table(*config)) count(double(tensor.size), tensor.shape.size());
  else
    for (const TensorFact& tensor : all.tensors) count(tensor.numbers, tensor.shape.size());
  std::vector<Fact> sizes;
  add(sizes, "parameters", "parameters", int64_t(numbers));
  add_bytes(sizes, "weight_bytes_fp32", "weights, fp32", 4 * numbers);
  add_bytes(sizes, "weight_bytes_bf16", "weights, bf16", 2 * numbers + 2 * vectors);  // norms and biases stay fp32
  all.sizes.insert(all.sizes.begin(), sizes.begin(), sizes.end());
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------
// Tensors

namespace {
// The name with N for its first number between dots.
std::string kind_name(const std::string& name) {
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    size_t end = dot + 1;
    while (end < name.size() && isdigit(static_cast<unsigned char>(name[end]))) end++;
    if (end > dot + 1 && end < name.size() && name[end] == '.') return name.substr(0, dot + 1) + "N" + name.substr(end);
  }
  return name;
}

std::vector<TensorKind> grouped(const std::vector<TensorFact>& tensors,
                                const std::function<TensorFact(TensorFact)>& kind) {
  std::vector<TensorKind> kinds;
  for (const TensorFact& tensor : tensors) {
    const TensorFact one = kind(tensor);
    const auto same = [&](const TensorKind& other) {
      return other.one.name == one.name && other.one.type == one.type && other.one.shape == one.shape;
    };
    const auto found = std::find_if(kinds.begin(), kinds.end(), same);
    if (found == kinds.end()) kinds.push_back({one, 1});
    else {
      found->n++;
      found->one.numbers += one.numbers;
      found->one.bytes += one.bytes;
    }
  }
  return kinds;
}
}  // namespace

std::vector<TensorKind> kinds_of(const std::vector<TensorFact>& tensors) {
  return grouped(tensors, [](TensorFact tensor) {
    tensor.name = kind_name(tensor.name);
    return tensor;
  });
}
std::vector<TensorKind> types_of(const std::vector<TensorFact>& tensors) {
  return grouped(tensors, [](TensorFact tensor) {
    tensor.name = tensor.type;
    tensor.shape.clear();
    return tensor;
  });
}

// ---------------------------------------------------------------------------------------------------------------
// Files beside the weights

namespace {
// What f finds out of the model; "" where that file of it cannot be read, which its own line says.
std::string found_out(const std::function<std::string()>& f) {
  try {
    return f();
  } catch (const Refusal&) { return ""; }
}

// Whether a file of tensors is whole, and of this model's text, weights and tokenizer.
std::string state_of(const std::string& path, const std::string& model) {
  try {
    const Metadata said = read_safetensors(path).metadata, own = model_metadata(model);
    std::string state = said.count("hash") ? "hash fits" : "no hash";
    const auto compare = [&](const char* key, const std::string& its, const char* what) {
      const std::string found = said_by(said, key);
      if (!found.empty() && !its.empty()) state += std::string(found == its ? "; of this " : "; of another ") + what;
    };
    const std::string tokenizer = said_by(said, "tokenizer");
    if (tokenizer.empty()) compare("text_sha256", said_by(own, "text_sha256"), "text");
    else compare("tokenizer", found_out([&] { return tokenizer_hash(model); }), "tokenizer");
    compare("model", found_out([&] { return model_hash(model); }), "model");
    if (said.count("text")) state += ": " + printable(said.at("text"), 60);
    return state;
  } catch (const Refusal& refusal) { return refusal.wrong; }
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------
// GGUF files

std::string template_kind(const std::string& text) {
  const auto has = [&](const char* part) { return text.find(part) != std::string::npos; };
  if (text.empty()) return "none";
  if (has("<|im_start|>") && has("<|im_end|>")) return "ChatML";
  if (has("<|start_header_id|>")) return "Llama 3";
  if (has("[INST]")) return "Llama 2";
  return "not recognized";
}

namespace {

// Of a model of another architecture: what its keys say, as far as they have the usual names.
void describe_keys(Inspection& all, const GgufFile& file) {
  constexpr const char* kKeys[][3] = {
      {"block_count", "n_layer", "layers"},
      {"embedding_length", "n_embd", "channels"},
      {"attention.head_count", "n_head", "heads"},
      {"attention.head_count_kv", "n_kv_head", "key/value heads"},
      {"attention.key_length", "head_dim", "head size"},
      {"feed_forward_length", "n_inner", "MLP channels"},
      {"rope.freq_base", "rope_theta", "rotary theta"},
      {"attention.layer_norm_rms_epsilon", "norm_epsilon", "norm epsilon"},
      {"attention.layer_norm_epsilon", "norm_epsilon", "norm epsilon"},
      {"context_length", "context", "context"},
      {"vocab_size", "vocab_size", "vocabulary"},
  };
  std::string architecture = "not named";
  attempt(all, [&] { architecture = file.text("general.architecture"); });
  add(all.model, "architecture", "architecture", architecture);
  for (const auto& [key, name, label] : kKeys) {
    const auto found = file.metadata.find(architecture + "." + key);
    if (found != file.metadata.end()) add(all.model, name, label, shown_value(found->second));
  }
}

std::optional<Config> describe_model(Inspection& all, const GgufFile& file) {
  Config config;
  Config header;
  const size_t before = all.obstacles.size();
  attempt(all, [&] {
    header = read_llama_header(file);
    config = config_of(header, kMostContext);
    const std::string problem = config_problem(config);
    if (!problem.empty()) refuse(problem, file.path, "use another model");
  });
  if (all.obstacles.size() > before) {
    describe_keys(all, file);
    return {};
  }
  describe_config(all, config, "llama", header.block_size);
  return config;
}

void describe_special(std::vector<Fact>& t, const GgufFile& file, const std::vector<std::string>& tokens) {
  const std::string prefix = "tokenizer.ggml.";
  constexpr const char* kIds[][2] = {
      {"bos", "beginning of text"}, {"eos", "end of text"}, {"unknown", "unknown token"}, {"padding", "padding"}};
  const auto named = [&](int64_t id) { return std::to_string(id) + " " + printable(tokens[size_t(id)]); };
  for (const auto& [id, label] : kIds) {
    const std::string key = std::string(id) + "_token_id";
    if (!file.has(prefix + key)) continue;
    const int64_t number = file.integer(prefix + key, 0, int64_t(tokens.size()) - 1);
    t.push_back({key, label, number, named(number)});
  }
  const int begin = gguf_begin_token(file);
  add(t, "add_bos_token", "before every text", begin < 0 ? "nothing" : named(begin));

  constexpr size_t kShown = 6;
  OrderedJson special = OrderedJson::array();
  std::string text;
  const std::vector<int64_t> types = file.integers(prefix + "token_type", 0, 6, std::vector<int64_t>());
  for (size_t id = 0; id < std::min(types.size(), tokens.size()); id++) {
    if (types[id] != int64_t(TokenType::control) && types[id] != int64_t(TokenType::user_defined)) continue;
    if (special.size() < kShown) text += (text.empty() ? "" : ", ") + printable(tokens[id]);
    special.push_back({{"id", id}, {"text", tokens[id]}});
  }
  const size_t n = special.size();
  t.push_back(
      {"special", "special tokens", special, std::to_string(n) + (n ? ": " + text : "") + (n > kShown ? ", ..." : "")});
}

void describe_tokenizer(Inspection& all, const GgufFile& file) {
  const std::string prefix = "tokenizer.ggml.";
  std::vector<Fact>& t = all.tokenizer;
  if (!file.has(prefix + "model")) {
    add(t, "kind", "kind", "none");
    all.obstacles.push_back("there is no tokenizer");
    return;
  }
  attempt(all, [&] {
    const std::string kind = file.text(prefix + "model");
    add(t, "kind", "kind", kind == "gpt2" ? "byte-level BPE (gpt2)" : kind);
    if (file.has(prefix + "pre")) add(t, "pre", "pre-split", file.text(prefix + "pre"));
    const std::vector<std::string> tokens = file.texts(prefix + "tokens");
    add(t, "tokens", "tokens", int64_t(tokens.size()));
    if (file.has(prefix + "merges")) add(t, "merges", "merges", int64_t(file.length(prefix + "merges")));
    describe_special(t, file, tokens);
    add(t, "chat_template", "chat template", template_kind(file.text("tokenizer.chat_template", "")));
    gguf_tokenizer(file);  // whether it can be used
  });
}

void list_tensors(Inspection& all, const GgufFile& file) {
  std::string others;
  for (const GgufTensor& tensor : file.tensors) {
    all.tensors.push_back(
        {tensor.name, type_name(tensor.type), tensor.shape, double(tensor.size()), double(tensor.bytes)});
    const std::string& type = all.tensors.back().type;
    if (!is_readable(tensor.type) && (", " + others + ",").find(", " + type + ",") == std::string::npos)
      others += (others.empty() ? "" : ", ") + type;
  }
  if (!others.empty()) all.obstacles.push_back("tensors of types that are not read: " + others);
}

}  // namespace

Inspection inspect_gguf(const std::string& path) {
  const GgufFile file = read_gguf(path, GgufTypes::any);
  Inspection all;
  all.path = path;
  all.format = "GGUF " + std::to_string(file.version);
  all.bytes = double(file.size);
  if (file.has("general.name")) attempt(all, [&] { add(all.model, "name", "name", file.text("general.name")); });
  const std::optional<Config> config = describe_model(all, file);
  list_tensors(all, file);
  describe_sizes(all, config);
  describe_tokenizer(all, file);
  for (const auto& [key, value] : file.metadata) all.metadata.push_back({key, shown_value(value)});
  const std::string ngrams = ngram_path(path);
  if (std::filesystem::exists(ngrams))
    all.files.push_back({std::filesystem::path(ngrams).filename().string(), "counts, for the drafter ngram",
                         file_bytes(ngrams), state_of(ngrams, path)});
  return all;
}

// ---------------------------------------------------------------------------------------------------------------
// Folders

namespace {

double bytes_within(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return file_bytes(path.string());
  double bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path, error))
    if (entry.is_regular_file(error)) bytes += file_bytes(entry.path().string());
  return bytes;
}

void list_files(Inspection& all, const std::string& dir) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    const std::string name = entry.path().filename().string() + (entry.is_directory(error) ? "/" : "");
    const bool tensors = entry.path().extension() == ".safetensors";
    const std::string whole = name.substr(0, name.find(kTemporary)), known = known_file(whole);
    all.files.push_back({name, known.empty() ? "another's" : known + (whole == name ? "" : ", unfinished"),
                         bytes_within(entry.path()), tensors ? state_of(entry.path().string(), dir) : ""});
    all.bytes += all.files.back().bytes;
  }
  std::sort(all.files.begin(), all.files.end(), [](const FileFact& a, const FileFact& b) { return a.name < b.name; });
}

void describe_tokenizer(Inspection& all, const std::string& dir, int vocab) {
  attempt(all, [&] {
    const Tokenizer tokenizer = load_tokenizer(dir);
    std::vector<Fact>& t = all.tokenizer;
    add(t, "kind", "kind", tokenizer.bpe ? "byte-level BPE" : "characters");
    if (tokenizer.bpe) add(t, "pre", "pre-split", tokenizer.bpe->pre());
    add(t, "tokens", "tokens", tokenizer.vocab_size());
    if (!tokenizer.bpe) {
      std::string symbols;
      for (const std::string& symbol : tokenizer.symbols) symbols += symbol;
      t.push_back({"characters", "characters", symbols, printable(symbols, 50)});
    }
    if (vocab > 0 && tokenizer.vocab_size() != vocab)
      refuse("the tokenizer has " + std::to_string(tokenizer.vocab_size()) + " tokens, config.json says vocab_size " +
                 std::to_string(vocab),
             dir, "use files of one and the same model");
  });
}

}  // namespace

Inspection inspect_folder(const std::string& dir) {
  const std::string config_path = dir + "/config.json", bytes = read_regular(config_path);
  Inspection all;
  all.path = dir;
  all.format = "folder";
  std::optional<Config> config;
  attempt(all, [&] {
    config = parse_config(bytes, config_path);
    describe_config(all, *config, is_llama(*config) ? "llama" : "gpt2", config->block_size);
  });
  attempt(all, [&] {
    const std::string model_path = weights_path(dir);
    const SafeTensors header = read_header(model_path);
    for (const Tensor& tensor : header.tensors) {
      const double size = double(tensor.end - tensor.begin);
      double numbers = 1;
      for (int64_t dimension : tensor.shape) numbers *= double(dimension);
      all.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, numbers, size});
    }
    for (const auto& [key, value] : header.metadata) all.metadata.push_back({key, printable(value)});
    if (config) check_model(header, *config, model_path);
  });
  describe_sizes(all, config);
  describe_tokenizer(all, dir, config ? config->vocab_size : 0);
  list_files(all, dir);
  return all;
}

}  // namespace nanospec
