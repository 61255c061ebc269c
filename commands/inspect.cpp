// commands/inspect.cpp: says what a model's files hold, as far as can be said without loading the weights: sizes,
// tokenizer, tensors, files.
//
// A GGUF file is mapped and only its header is read; so are its tokens. Of a folder every file is read, to see whether
// its hash fits. A model that nanospec does not load is described too: "obstacles" says why it does not.
//
// In order: the command line; a model's sizes; GGUF files; folders; what is written for people. What is found out is
// collected as the JSON that --json writes; a label or a text of its own is given to what people read otherwise.

#include "commands/commands.h"
#include "files/folder.h"
#include "files/gguf_model.h"
#include "files/tables.h"

namespace nanospec {
namespace {

struct Wanted {
  std::string model, json_file;
  bool tensors = false, metadata = false;
};

Command describe(Wanted& w) {
  return {"nanospec inspect",
          "Says what a model's files hold: its sizes, tokenizer, tensors and files, and whether nanospec loads it. It "
          "reads no more than it needs to, so a GGUF file of any size takes an instant.",
          "nanospec inspect models/SmolLM2-135M-Instruct.Q4_1.gguf\n"
          "nanospec inspect models/SmolLM2-135M-Instruct.Q4_1.gguf --tensors --metadata\n"
          "nanospec inspect runs/small --json build/small.json\n",
          {{"--model", "FILE|DIR", &w.model, "a GGUF file, or a folder; --model may be left out", required()},
           {"--tensors", "", &w.tensors, "a line for every tensor, not for every kind"},
           {"--metadata", "", &w.metadata, "all keys of the file, with their values"},
           {"--json", "FILE", &w.json_file, "write all of it, as JSON", written()}},
          "--model"};
}

// What people read in place of a name, where that is another word; and a GGUF file's key of it.
struct Field {
  const char *name, *label, *gguf_key = "";
};
constexpr Field kFields[] = {
    {"n_layer", "layers", "block_count"},
    {"n_embd", "channels", "embedding_length"},
    {"n_head", "heads", "attention.head_count"},
    {"n_kv_head", "key/value heads", "attention.head_count_kv"},
    {"head_dim", "head size", "attention.key_length"},
    {"n_inner", "MLP channels", "feed_forward_length"},
    {"mlp", "MLP"},
    {"rope_theta", "rotary theta", "rope.freq_base"},
    {"rope_scaling", "rotary scaling"},
    {"head_norms", "head norms"},
    {"norm_epsilon", "norm epsilon", "attention.layer_norm_rms_epsilon"},
    {"norm_epsilon", "norm epsilon", "attention.layer_norm_epsilon"},
    {"bias", "biases"},
    {"context", "context", "context_length"},
    {"window", "window here"},
    {"vocab_size", "vocabulary", "vocab_size"},
    {"weight_bytes_fp32", "weights, fp32"},
    {"weight_bytes_bf16", "weights, bf16"},
    {"cache_bytes_fp32", "cache, a token, fp32"},
    {"cache_bytes_bf16", "cache, a token, bf16"},
    {"pre", "pre-split"},
    {"bos_token_id", "beginning of text"},
    {"eos_token_id", "end of text"},
    {"unknown_token_id", "unknown token"},
    {"padding_token_id", "padding"},
    {"add_bos_token", "before every text"},
    {"special", "special tokens"},
    {"chat_template", "chat template"},
};

// What --json writes, before anything is found out.
constexpr const char* kUnsaid = R"({"path": "", "format": "", "bytes": 0, "loads": true, "obstacles": [], "model": {},
    "sizes": {}, "tokenizer": {}, "tensors": [], "types": [], "files": [], "metadata": {}})";

struct Inspection {
  OrderedJson said = OrderedJson::parse(kUnsaid);
  std::map<std::string, std::string> shown;  // what people read in place of a value, by its key

  Inspection(const std::string& path, const std::string& format) {
    said["path"] = path;
    said["format"] = format;
  }
  OrderedJson& operator[](const char* key) { return said[key]; }

  // Does f; what it refuses becomes an obstacle, with the place where that is not the model itself.
  void attempt(const std::function<void()>& f) {
    try {
      f();
    } catch (const Refusal& refusal) {
      said["obstacles"].push_back(refusal.wrong + (refusal.where == said["path"] ? "" : ": " + refusal.where));
    }
  }
  void add_tensor(const std::string& name, const std::vector<int64_t>& shape, const std::string& type, size_t bytes) {
    said["tensors"].push_back(
        {{"name", name}, {"shape", shape}, {"type", type}, {"numbers", numbers_in(shape)}, {"bytes", bytes}});
  }
  void add_file(const std::string& name, const std::string& what, double bytes, const std::string& state) {
    said["files"].push_back({{"name", name}, {"what", what}, {"bytes", int64_t(bytes)}, {"state", state}});
  }
};

// ---------------------------------------------------------------------------------------------------------------
// A model's sizes

// context: tokens that it was trained to see.
void describe_config(Inspection& all, const Config& c, const std::string& architecture, int context) {
  OrderedJson& m = all["model"];
  m["architecture"] = architecture;
  m["n_layer"] = c.n_layer;
  m["n_embd"] = c.n_embd;
  m["n_head"] = c.n_head;
  m["n_kv_head"] = c.n_kv_head;
  m["head_dim"] = c.head_size();
  m["n_inner"] = c.inner();
  m["mlp"] = c.swiglu ? "SwiGLU, three matrices" : c.tanh ? "GELU by tanh, two matrices" : "GELU, two matrices";
  m["positions"] = c.rotary ? "rotary" : "learned";
  if (c.rotary) m["rope_theta"] = double(c.rope_theta);
  if (!c.rope_factors.empty()) m["rope_scaling"] = "yes";
  if (c.span) m["sliding_window"] = c.span;
  if (c.qk_norm) m["head_norms"] = "of queries and keys";
  m["norm"] = c.center ? "LayerNorm" : "RMSNorm";
  m["norm_epsilon"] = double(c.norm_epsilon);
  m["bias"] = c.bias ? "yes" : c.qkv_bias ? "of queries, keys and values" : "no";
  m["head"] = c.tied ? "tied: the embedding" : "its own matrix";
  m["context"] = context;
  if (c.block_size < context) m["window"] = c.block_size;
  m["vocab_size"] = c.vocab_size;
}

// A folder's file holds more than its model, zeros for biases: of a model whose config is known its own table counts.
void describe_sizes(Inspection& all, const std::optional<Config>& config) {
  OrderedJson tensors = config ? OrderedJson() : all["tensors"];
  if (config)
    for (const TensorSpec& one : tensor_table(*config))
      tensors.push_back({{"numbers", one.size}, {"shape", one.shape}});
  constexpr int64_t kMost = int64_t(1) << 60;
  int64_t numbers = 0, vectors = 0;
  for (const OrderedJson& tensor : tensors) {
    const int64_t its = tensor["numbers"].get<int64_t>();
    if (its > kMost - numbers)
      refuse("the tensors have more than 2^60 numbers", all.said["path"], "get the file again");
    numbers += its;
    if (tensor["shape"].size() < 2) vectors += its;
  }
  all["sizes"] = {{"parameters", numbers},
                  {"weight_bytes_fp32", 4 * numbers},
                  {"weight_bytes_bf16", 2 * numbers + 2 * vectors}};  // norms and biases stay fp32
  if (!config) return;
  const int64_t cached = int64_t(2) * config->n_layer * config->n_kv_head * config->head_size();  // of each token
  all["sizes"]["cache_bytes_fp32"] = 4 * cached;
  all["sizes"]["cache_bytes_bf16"] = 2 * cached;
}

// The name with N for its first number between dots, of nine digits at most.
std::string kind_name(std::string name) {
  for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1)) {
    const size_t end = std::min(name.find_first_not_of("0123456789", dot + 1), name.size()), digits = end - dot - 1;
    if (name[end] == '.' && digits > 0 && digits <= 9) return name.replace(dot + 1, digits, "N");
  }
  return name;
}

// Tensors that are alike in these members count as one: how many they are, their numbers and bytes. Those of all layers
// have one name: "blk.N.attn_q.weight", 30 of them.
OrderedJson grouped(const OrderedJson& tensors, const std::vector<const char*>& members) {
  OrderedJson kinds = OrderedJson::array();
  std::map<OrderedJson, size_t> places;
  for (const OrderedJson& tensor : tensors) {
    OrderedJson kind;
    for (const char* member : members) kind[member] = tensor[member];
    if (kind.contains("name")) kind["name"] = kind_name(kind["name"]);
    const auto [place, is_new] = places.emplace(kind, kinds.size());
    if (is_new) kinds.push_back(kind);
    OrderedJson& found = kinds[place->second];
    for (const char* sum : {"tensors", "numbers", "bytes"})
      found[sum] = found.value(sum, int64_t(0)) + tensor.value(sum, int64_t(1));
  }
  return kinds;
}

// Whether a file of tensors is whole, and of this model's text, weights and tokenizer.
std::string state_of(const std::string& path, const std::string& model) {
  try {
    const Metadata said = read_safetensors(path).metadata, own = model_metadata(model);
    std::string state = said.count("hash") ? "hash fits" : "no hash";
    const auto compare = [&](const char* key, const std::string& what, const auto& of_model) {
      try {
        const std::string found = said_by(said, key), its = of_model();
        if (!found.empty() && !its.empty()) state += (found == its ? "; of this " : "; of another ") + what;
      } catch (const Refusal&) {}  // that file of the model cannot be read, which its own line says
    };
    if (said_by(said, "tokenizer").empty()) compare("text_sha256", "text", [&] { return said_by(own, "text_sha256"); });
    else compare("tokenizer", "tokenizer", [&] { return tokenizer_hash(model); });
    compare("model", "model", [&] { return model_hash(model); });
    if (said.count("text")) state += ": " + printable(said.at("text"), 60);
    return state;
  } catch (const Refusal& refusal) { return refusal.wrong; }
}

// ---------------------------------------------------------------------------------------------------------------
// GGUF files

std::string template_kind(const std::string& text) {
  if (text.empty()) return kLines.name;
  for (const ChatForm& form : kChatForms)
    if (is_like(text, form)) return form.name;
  return "not recognized";
}

// Of a model of another architecture: what its keys say, as far as they have the usual names.
void describe_keys(Inspection& all, const GgufFile& file) {
  std::string architecture = "not named";
  all.attempt([&] { architecture = file.text("general.architecture"); });
  all["model"]["architecture"] = architecture;
  for (const Field& field : kFields) {
    const auto found = file.metadata.find(architecture + "." + field.gguf_key);
    if (found != file.metadata.end()) all["model"][field.name] = shown_value(found->second);
  }
}

std::optional<Config> describe_model(Inspection& all, const GgufFile& file) {
  std::optional<Config> config;
  all.attempt([&] {
    const Config header = read_gguf_header(file), read = config_of(header, kMostContext);
    const std::string problem = config_problem(read);
    if (!problem.empty()) refuse(problem, file.path, "use another model");
    describe_config(all, read, "llama", header.block_size);
    config = read;
  });
  if (!config) describe_keys(all, file);
  return config;
}

void describe_special(Inspection& all, const GgufFile& file, const std::vector<std::string>& tokens) {
  constexpr size_t kShown = 6;
  const auto named = [&](int64_t id) { return std::to_string(id) + " " + printable(tokens[size_t(id)]); };
  for (const char* key : {"bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id"}) {
    if (!file.has(kTokenizerKey + key)) continue;
    const int64_t id = file.integer(kTokenizerKey + key, 0, int64_t(tokens.size()) - 1);
    all["tokenizer"][key] = id;
    all.shown[key] = named(id);
  }
  const int begin = gguf_begin_token(file);
  all["tokenizer"]["add_bos_token"] = begin < 0 ? "nothing" : named(begin);

  OrderedJson& special = all["tokenizer"]["special"] = OrderedJson::array();
  std::vector<std::string> names;
  const std::vector<int64_t> types = file.integers(kTokenizerKey + "token_type", 0, 6, std::vector<int64_t>());
  for (size_t id = 0; id < std::min(types.size(), tokens.size()); id++) {
    if (types[id] != int64_t(TokenType::control) && types[id] != int64_t(TokenType::user_defined)) continue;
    if (names.size() < kShown) names.push_back(printable(tokens[id]));
    special.push_back({{"id", id}, {"text", tokens[id]}});
  }
  const size_t n = special.size();
  all.shown["special"] = std::to_string(n) + (n ? ": " + joined(names) : "") + (n > kShown ? ", ..." : "");
}

void describe_tokenizer(Inspection& all, const GgufFile& file) {
  OrderedJson& t = all["tokenizer"];
  if (!file.has(kTokenizerKey + "model")) {
    t["kind"] = "none";
    return all["obstacles"].push_back("there is no tokenizer");
  }
  all.attempt([&] {
    const std::string kind = file.text(kTokenizerKey + "model");
    t["kind"] = kind == "gpt2" ? "byte-level BPE (gpt2)" : has_pieces(file) ? "SentencePiece's BPE (llama)" : kind;
    if (file.has(kTokenizerKey + "pre")) t["pre"] = file.text(kTokenizerKey + "pre");
    const std::vector<std::string> tokens = file.texts(kTokenizerKey + "tokens");
    t["tokens"] = tokens.size();
    if (file.has(kTokenizerKey + "merges")) t["merges"] = file.length(kTokenizerKey + "merges");
    describe_special(all, file, tokens);
    t["chat_template"] = template_kind(file.text("tokenizer.chat_template", ""));
    gguf_tokenizer(file);  // whether it can be used
  });
}

void list_tensors(Inspection& all, const GgufFile& file) {
  std::vector<std::string> others;
  for (const GgufTensor& tensor : file.tensors) {
    const std::string type = type_name(tensor.type);
    all.add_tensor(tensor.name, tensor.shape, type, tensor.bytes);
    if (!is_readable(tensor.type) && std::find(others.begin(), others.end(), type) == others.end())
      others.push_back(type);
  }
  if (!others.empty()) all["obstacles"].push_back("tensors of types that are not read: " + joined(others));
}

// Throws runtime_error where the file is no GGUF.
Inspection inspect_gguf(const std::string& path) {
  const GgufFile file = read_gguf(path, GgufTypes::any);
  Inspection all(path, filled("GGUF {}", file.version));
  all["bytes"] = file.size;
  if (file.has("general.name")) all.attempt([&] { all["model"]["name"] = file.text("general.name"); });
  const std::optional<Config> config = describe_model(all, file);
  list_tensors(all, file);
  describe_sizes(all, config);
  describe_tokenizer(all, file);
  for (const auto& [key, value] : file.metadata) all["metadata"][key] = shown_value(value);
  const std::string ngrams = ngram_path(path);
  if (std::filesystem::exists(ngrams))
    all.add_file(std::filesystem::path(ngrams).filename().string(), "counts, for the drafter ngram", file_bytes(ngrams),
                 state_of(ngrams, path));
  return all;
}

// ---------------------------------------------------------------------------------------------------------------
// Folders

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
  std::map<std::string, std::filesystem::path> entries;
  for (const auto& entry : std::filesystem::directory_iterator(dir))
    entries[entry.path().filename().string() + (entry.is_directory(error) ? "/" : "")] = entry.path();
  double sum = 0;
  for (const auto& [name, path] : entries) {
    const std::string whole = name.substr(0, name.find(kTemporary)), known = known_file(whole);
    const double bytes = bytes_within(path);
    all.add_file(name, known.empty() ? "another's" : known + (whole == name ? "" : ", unfinished"), bytes,
                 path.extension() == ".safetensors" ? state_of(path.string(), dir) : "");
    sum += bytes;
  }
  all["bytes"] = int64_t(sum);
}

void describe_tokenizer(Inspection& all, const std::string& dir, int vocab) {
  const Tokenizer tokenizer = load_tokenizer(dir);
  OrderedJson& t = all["tokenizer"];
  const bool pieces = tokenizer.bpe && tokenizer.bpe->settings.sentencepiece;
  t["kind"] = pieces ? "SentencePiece's BPE" : tokenizer.bpe ? "byte-level BPE" : "characters";
  if (tokenizer.bpe && !pieces) t["pre"] = tokenizer.bpe->settings.pre;
  t["tokens"] = tokenizer.vocab_size();
  if (!tokenizer.bpe) {
    const std::string symbols = joined(tokenizer.symbols, "");
    t["characters"] = symbols;
    all.shown["characters"] = printable(symbols, 50);
  }
  if (vocab > 0 && tokenizer.vocab_size() != vocab)
    refuse(filled("the tokenizer has {} tokens, config.json says vocab_size {}", tokenizer.vocab_size(), vocab), dir,
           "use files of one and the same model");
}

// Throws runtime_error where there is no config.json.
Inspection inspect_folder(const std::string& dir) {
  const std::string config_path = dir + "/config.json", bytes = read_regular(config_path);
  Inspection all(dir, "folder");
  std::optional<Config> config;
  all.attempt([&] {
    config = parse_config(bytes, config_path);
    describe_config(all, *config, is_llama(*config) ? family_of(*config).type : "gpt2", config->block_size);
  });
  all.attempt([&] {
    const std::string model_path = weights_path(dir);
    const SafeTensors header = read_header(model_path);
    for (const Tensor& one : header.tensors) all.add_tensor(one.name, one.shape, one.dtype, one.end - one.begin);
    for (const auto& [key, value] : header.metadata) all["metadata"][key] = printable(value);
    if (config) check_model(header, *config, model_path);
  });
  describe_sizes(all, config);
  all.attempt([&] { describe_tokenizer(all, dir, config ? config->vocab_size : 0); });
  list_files(all, dir);
  return all;
}

// ---------------------------------------------------------------------------------------------------------------
// For people

std::string shown_fact(const std::string& key, const OrderedJson& value) {
  if (value.is_string()) return printable(value.get<std::string>(), 200);
  if (value.is_number_float()) return as_text(value.get<double>());
  return key.find("_bytes_") != std::string::npos ? bytes_text(value) : thousands(value);
}

std::string facts_text(const Inspection& all, const std::string& title, const char* part) {
  constexpr size_t kColumn = 24;  // where values begin
  std::string text = all.said[part].empty() ? "" : "\n" + title + "\n";
  for (const auto& [key, value] : all.said[part].items()) {
    const Field* const field = row_of(kFields, &Field::name, key);
    std::string line = "  " + (field ? field->label : key);
    line.resize(std::max(line.size() + 1, kColumn), ' ');
    const auto shown = all.shown.find(key);
    text += line + (shown != all.shown.end() ? shown->second : shown_fact(key, value)) + "\n";
  }
  return text;
}

// A table of these members of each; head: what they are called.
std::string table_text(const OrderedJson& list, const Row& head, const Row& members, const std::string& align) {
  if (list.empty()) return "";
  TableRows rows = {head};
  for (const OrderedJson& one : list) {
    rows.emplace_back();
    for (const std::string& member : members) {
      const OrderedJson value = one.value(member, OrderedJson(1));  // one tensor of a name
      rows.back().push_back(member == "tensors" ? std::to_string(value.get<int>())
                            : member == "shape" ? shown_shape(value)
                            : member == "bits"  ? decimals(8 * ratio(one["bytes"], one["numbers"]), 2)
                            : value.is_string() ? printable(value.get<std::string>(), member == "name" ? 80 : 1000)
                                                : thousands(value));
    }
  }
  return "\n" + format_table(rows, align);
}

std::string report(const Inspection& all, const Wanted& w) {
  const OrderedJson& said = all.said;
  std::string text =
      filled("{}: {}, {}. nanospec {}\n", said["path"].get<std::string>(), said["format"].get<std::string>(),
             bytes_text(said["bytes"]), said["loads"] ? "loads it." : "does not load it:");
  for (const OrderedJson& obstacle : said["obstacles"]) text += "  " + obstacle.get<std::string>() + "\n";
  text += facts_text(all, "Model", "model") + facts_text(all, "Sizes", "sizes");
  text += facts_text(all, "Tokenizer", "tokenizer");
  text += table_text(w.tensors ? said["tensors"] : grouped(said["tensors"], {"name", "shape", "type"}),
                     {"tensor", "number", "shape", "type", "bytes"}, {"name", "tensors", "shape", "type", "bytes"},
                     "lrllr");
  text += table_text(said["types"], {"type", "tensors", "numbers", "bytes", "bits a number"},
                     {"type", "tensors", "numbers", "bytes", "bits"}, "lrrrr");
  text +=
      table_text(said["files"], {"file", "bytes", "what it is", "state"}, {"name", "bytes", "what", "state"}, "lrll");
  if (!w.metadata) return text;
  text += "\nMetadata\n";
  for (const auto& [key, value] : said["metadata"].items())
    text += "  " + printable(key) + " = " + value.get<std::string>() + "\n";
  return text;
}

}  // namespace

int inspect_command(int argc, char** argv) {
  Wanted w;
  const Given given = parse_flags(describe(w), argc, argv);
  if (given.help) return 0;
  if (w.model.empty()) refuse_usage("an empty name: --model: give a GGUF file or a folder");
  check_outputs(given);
  Inspection all = std::filesystem::is_directory(w.model) ? inspect_folder(w.model) : inspect_gguf(w.model);
  all["types"] = grouped(all["tensors"], {"type"});
  all["loads"] = all["obstacles"].empty();
  print_out(report(all, w));
  if (!w.json_file.empty()) write_file(w.json_file, json_text(all.said, 2));
  return 0;
}

}  // namespace nanospec
