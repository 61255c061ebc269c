// commands/inspect.cpp: says what a model's files hold, as far as can be said without loading the weights: sizes,
// tokenizer, tensors, files.
//
// A GGUF file is mapped, and only its header and its tokens are read. Of a folder every file of tensors is read, to see
// whether its hash fits. A model that nanospec does not load is described too: "obstacles" says why it does not.
//
// In order: what is found out, and the command line; a model's sizes; its tensors and files; GGUF files; folders; what
// is written for people. What is found out is collected as the JSON that --json writes, and with it, line by line, what
// people read of a model's facts.

#include "commands/commands.h"
#include "files/folder.h"
#include "files/gguf_model.h"
#include "files/tables.h"

namespace nanospec {
namespace {

// What --json writes, before anything is found out.
constexpr const char* kUnsaid = R"({"path": "", "format": "", "bytes": 0, "loads": true, "obstacles": [], "model": {},
    "sizes": {}, "tokenizer": {}, "tensors": [], "types": [], "files": [], "metadata": {}})";

struct Inspection {
  std::string path, json_file;  // of the command line
  bool shows_tensors = false, shows_metadata = false;

  OrderedJson said = OrderedJson::parse(kUnsaid);
  std::optional<Config> config;              // where it is known
  std::map<std::string, std::string> facts;  // lines for people, by part: model, sizes, tokenizer

  OrderedJson& operator[](const char* key) { return said[key]; }

  // Does f; what it refuses becomes an obstacle, with the place where that is not the model itself.
  void attempt(const std::function<void()>& f) {
    try {
      f();
    } catch (const Refusal& refusal) {
      said["obstacles"].push_back(refusal.wrong + (refusal.where == path ? "" : ": " + refusal.where));
    }
  }
  // Adds a fact to a part. label, text: what people read in place of its name and its value; "": these.
  void say(const char* part, const std::string& name, const OrderedJson& value, const std::string& label = "",
           const std::string& text = "") {
    constexpr size_t kColumn = 24;  // where values begin
    said[part][name] = value;
    std::string line = "  " + (label.empty() ? name : label);
    line.resize(std::max(line.size() + 1, kColumn), ' ');
    facts[part] += line + (!text.empty()             ? text
                           : value.is_string()       ? printable(value.get<std::string>(), 200)
                           : value.is_number_float() ? as_text(value.get<double>())
                                                     : thousands(value));
    facts[part] += "\n";
  }
  void add_tensor(const std::string& name, const std::vector<int64_t>& shape, const std::string& type, size_t bytes) {
    said["tensors"].push_back(
        {{"name", name}, {"shape", shape}, {"type", type}, {"numbers", numbers_in(shape)}, {"bytes", bytes}});
  }
};

Command describe(Inspection& all) {
  return {"nanospec inspect",
          "Says what a model's files hold: its sizes, tokenizer, tensors and files, and whether nanospec loads it. It "
          "reads no more than it needs to, so a GGUF file of any size takes an instant.",
          "nanospec inspect models/SmolLM2-135M-Instruct.Q4_1.gguf\n"
          "nanospec inspect models/SmolLM2-135M-Instruct.Q4_1.gguf --tensors --metadata\n"
          "nanospec inspect runs/small --json build/small.json\n",
          {{"--model", "FILE|DIR", &all.path, "a GGUF file, or a folder; --model may be left out", required()},
           {"--tensors", "", &all.shows_tensors, "a line for every tensor, not for every kind"},
           {"--metadata", "", &all.shows_metadata, "all keys of the file, with their values"},
           {"--json", "FILE", &all.json_file, "write all of it, as JSON", written()}},
          "--model"};
}

// ---------------------------------------------------------------------------------------------------------------
// A model's sizes

struct Described : Config {
  int context;  // tokens that it was trained to see; its block_size: that it sees here
};
// What is said of a model: its name, and the word that people read; what a config says, 0 or "" where that is nothing;
// and the key of a GGUF file, behind the architecture's name.
struct Fact {
  const char *name, *label;
  std::function<OrderedJson(const Described&)> of;
  const char* gguf_key = "";
};
const Fact kFacts[] = {
    {"n_layer", "layers", &Config::n_layer, "block_count"},
    {"n_embd", "channels", &Config::n_embd, "embedding_length"},
    {"n_head", "heads", &Config::n_head, "attention.head_count"},
    {"n_kv_head", "key/value heads", &Config::n_kv_head, "attention.head_count_kv"},
    {"head_dim", "head size", &Config::head_size, "attention.key_length"},
    {"n_inner", "MLP channels", &Config::inner, "feed_forward_length"},
    {"mlp", "MLP",
     [](auto& c) {
       return c.swiglu ? "SwiGLU, three matrices" : c.tanh ? "GELU by tanh, two matrices" : "GELU, two matrices";
     }},
    {"positions", "positions", [](auto& c) { return c.rotary ? "rotary" : "learned"; }},
    {"rope_theta", "rotary theta", [](auto& c) { return c.rotary ? c.rope_theta : 0; }, "rope.freq_base"},
    {"rope_scaling", "rotary scaling", [](auto& c) { return c.rope_factors.empty() ? "" : "yes"; }},
    {"sliding_window", "sliding_window", &Config::span},
    {"head_norms", "head norms", [](auto& c) { return c.qk_norm ? "of queries and keys" : ""; }},
    {"norm", "norm", [](auto& c) { return c.center ? "LayerNorm" : "RMSNorm"; }},
    {"norm_epsilon", "norm epsilon", &Config::norm_epsilon, "attention.layer_norm_epsilon"},
    {"norm_epsilon", "norm epsilon", &Config::norm_epsilon, "attention.layer_norm_rms_epsilon"},
    {"bias", "biases", [](auto& c) { return c.bias       ? "yes"
                                            : c.qkv_bias ? "of queries, keys and values"
                                                         : "no"; }},
    {"head", "head", [](auto& c) { return c.tied ? "tied: the embedding" : "its own matrix"; }},
    {"context", "context", &Described::context, "context_length"},
    {"window", "window here", [](auto& c) { return c.block_size < c.context ? c.block_size : 0; }},
    {"vocab_size", "vocabulary", &Config::vocab_size, "vocab_size"},
};

// its: the value of a fact; 0 or "" where it has none.
void describe_model(Inspection& all, const std::string& architecture,
                    const std::function<OrderedJson(const Fact&)>& its) {
  all.say("model", "architecture", architecture);
  for (const Fact& fact : kFacts)
    if (const OrderedJson value = its(fact); value != 0 && value != "" && !all["model"].contains(fact.name))
      all.say("model", fact.name, value, fact.label);
}

// A folder's file holds more than its model, zeros for biases: of a model whose config is known its own table counts.
void describe_sizes(Inspection& all) {
  constexpr int64_t kMost = int64_t(1) << 60;
  int64_t numbers = 0, vectors = 0;
  const auto add = [&](int64_t its, size_t dimensions) {
    if (its > kMost - numbers) refuse("the tensors have more than 2^60 numbers", all.path, "get the file again");
    numbers += its;
    if (dimensions < 2) vectors += its;
  };
  if (all.config)
    for (const TensorSpec& one : tensor_table(*all.config)) add(int64_t(one.size), one.shape.size());
  else
    for (const OrderedJson& one : all["tensors"]) add(one["numbers"], one["shape"].size());
  const auto say_bytes = [&](const char* name, const char* label, int64_t bytes) {
    all.say("sizes", name, bytes, label, bytes_text(double(bytes)));
  };
  all.say("sizes", "parameters", numbers);
  say_bytes("weight_bytes_fp32", "weights, fp32", 4 * numbers);
  say_bytes("weight_bytes_bf16", "weights, bf16", 2 * numbers + 2 * vectors);  // norms and biases stay fp32
  if (!all.config) return;
  const int64_t cached = int64_t(2) * all.config->n_layer * all.config->n_kv_head * all.config->head_size();
  say_bytes("cache_bytes_fp32", "cache, a token, fp32", 4 * cached);
  say_bytes("cache_bytes_bf16", "cache, a token, bf16", 2 * cached);
}

// ---------------------------------------------------------------------------------------------------------------
// Its tensors and files

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
    const size_t place = places.emplace(kind, kinds.size()).first->second;
    if (place == kinds.size()) kinds.push_back(kind);
    for (const char* sum : {"tensors", "numbers", "bytes"})
      kinds[place][sum] = kinds[place].value(sum, int64_t(0)) + tensor.value(sum, int64_t(1));
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

// Adds a file, or a folder with all that is in it.
void add_file(Inspection& all, const std::filesystem::path& path, const std::string& name, const std::string& what) {
  std::error_code error;
  double bytes = std::filesystem::is_directory(path, error) ? 0 : file_bytes(path.string());
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path, error))  // of a file none
    if (entry.is_regular_file(error)) bytes += file_bytes(entry.path().string());
  const std::string state = path.extension() == ".safetensors" ? state_of(path.string(), all.path) : "";
  all["files"].push_back({{"name", name}, {"what", what}, {"bytes", int64_t(bytes)}, {"state", state}});
}

// ---------------------------------------------------------------------------------------------------------------
// GGUF files

std::string template_kind(const std::string& text) {
  if (text.empty()) return kLines.name;
  for (const ChatForm& form : kChatForms)
    if (is_like(text, form)) return form.name;
  return "not recognized";
}

// Of a model of another architecture it says what the keys say, as far as they have the usual names.
void describe_model(Inspection& all, const GgufFile& file) {
  std::string architecture = "not named";
  all.attempt([&] { architecture = file.text("general.architecture"); });
  all.attempt([&] {
    const Config header = read_gguf_header(file), read = config_of(header, kMostContext);
    const std::string problem = config_problem(read);
    if (!problem.empty()) refuse(problem, file.path, "use another model");
    describe_model(all, architecture, [&](const Fact& fact) { return fact.of({read, header.block_size}); });
    all.config = read;
  });
  if (all.config) return;
  describe_model(all, architecture, [&](const Fact& fact) {
    const std::string key = architecture + "." + fact.gguf_key;
    return *fact.gguf_key && file.has(key) ? shown_value(file.metadata.at(key)) : "";
  });
}

void describe_special(Inspection& all, const GgufFile& file, const std::vector<std::string>& tokens) {
  constexpr size_t kShown = 6;
  const auto named = [&](int64_t id) { return std::to_string(id) + " " + printable(tokens[size_t(id)]); };
  for (const auto& [key, label] : {std::pair("bos_token_id", "beginning of text"),
                                   {"eos_token_id", "end of text"},
                                   {"unknown_token_id", "unknown token"},
                                   {"padding_token_id", "padding"}}) {
    if (!file.has(kTokenizerKey + key)) continue;
    const int64_t id = file.integer(kTokenizerKey + key, 0, int64_t(tokens.size()) - 1);
    all.say("tokenizer", key, id, label, named(id));
  }
  const int begin = gguf_begin_token(file);
  all.say("tokenizer", "add_bos_token", begin < 0 ? "nothing" : named(begin), "before every text");

  OrderedJson special = OrderedJson::array();
  std::vector<std::string> names;
  const std::vector<int64_t> types = file.integers(kTokenizerKey + "token_type", 0, 6, std::vector<int64_t>());
  for (size_t id = 0; id < std::min(types.size(), tokens.size()); id++) {
    if (types[id] != int64_t(TokenType::control) && types[id] != int64_t(TokenType::user_defined)) continue;
    if (names.size() < kShown) names.push_back(printable(tokens[id]));
    special.push_back({{"id", id}, {"text", tokens[id]}});
  }
  const size_t n = special.size();
  all.say("tokenizer", "special", special, "special tokens",
          std::to_string(n) + (n ? ": " + joined(names) : "") + (n > kShown ? ", ..." : ""));
}

void describe_tokenizer(Inspection& all, const GgufFile& file) {
  if (!file.has(kTokenizerKey + "model")) {
    all.say("tokenizer", "kind", "none");
    return all["obstacles"].push_back("there is no tokenizer");
  }
  all.attempt([&] {
    const std::string kind = file.text(kTokenizerKey + "model");
    all.say("tokenizer", "kind",
            kind == "gpt2"     ? "byte-level BPE (gpt2)"
            : has_pieces(file) ? "SentencePiece's BPE (llama)"
                               : kind);
    if (file.has(kTokenizerKey + "pre")) all.say("tokenizer", "pre", file.text(kTokenizerKey + "pre"), "pre-split");
    const std::vector<std::string> tokens = file.texts(kTokenizerKey + "tokens");
    all.say("tokenizer", "tokens", tokens.size());
    if (file.has(kTokenizerKey + "merges")) all.say("tokenizer", "merges", file.length(kTokenizerKey + "merges"));
    describe_special(all, file, tokens);
    all.say("tokenizer", "chat_template", template_kind(file.text("tokenizer.chat_template", "")), "chat template");
    gguf_tokenizer(file);  // whether it can be used
  });
}

// Throws runtime_error where the file is no GGUF.
void inspect_gguf(Inspection& all) {
  const GgufFile file = read_gguf(all.path, GgufTypes::any);
  all["format"] = filled("GGUF {}", file.version);
  all["bytes"] = file.size;
  if (file.has("general.name")) all.attempt([&] { all.say("model", "name", file.text("general.name")); });
  describe_model(all, file);
  std::vector<std::string> others;
  for (const GgufTensor& tensor : file.tensors) {
    const std::string type = type_name(tensor.type);
    all.add_tensor(tensor.name, tensor.shape, type, tensor.bytes);
    if (!is_readable(tensor.type) && std::find(others.begin(), others.end(), type) == others.end())
      others.push_back(type);
  }
  if (!others.empty()) all["obstacles"].push_back("tensors of types that are not read: " + joined(others));
  describe_sizes(all);
  describe_tokenizer(all, file);
  for (const auto& [key, value] : file.metadata) all["metadata"][key] = shown_value(value);
  const std::filesystem::path ngrams = ngram_path(all.path);
  if (std::filesystem::exists(ngrams))
    add_file(all, ngrams, ngrams.filename().string(), "counts, for the drafter ngram");
}

// ---------------------------------------------------------------------------------------------------------------
// Folders

void list_files(Inspection& all) {
  std::error_code error;
  std::map<std::string, std::filesystem::path> entries;
  for (const auto& entry : std::filesystem::directory_iterator(all.path))
    entries[entry.path().filename().string() + (entry.is_directory(error) ? "/" : "")] = entry.path();
  for (const auto& [name, path] : entries) {
    const std::string whole = name.substr(0, name.find(kTemporary)), known = known_file(whole);
    add_file(all, path, name, known.empty() ? "another's" : known + (whole == name ? "" : ", unfinished"));
  }
  for (const OrderedJson& file : all["files"])
    all["bytes"] = all["bytes"].get<int64_t>() + file["bytes"].get<int64_t>();
}

void describe_tokenizer(Inspection& all) {
  const Tokenizer tokenizer = load_tokenizer(all.path);
  const bool pieces = tokenizer.bpe && tokenizer.bpe->settings.sentencepiece;
  all.say("tokenizer", "kind", pieces ? "SentencePiece's BPE" : tokenizer.bpe ? "byte-level BPE" : "characters");
  if (tokenizer.bpe && !pieces) all.say("tokenizer", "pre", tokenizer.bpe->settings.pre, "pre-split");
  all.say("tokenizer", "tokens", tokenizer.vocab_size());
  const std::string symbols = joined(tokenizer.symbols, "");
  if (!tokenizer.bpe) all.say("tokenizer", "characters", symbols, "", printable(symbols, 50));
  if (all.config && tokenizer.vocab_size() != all.config->vocab_size)
    refuse(filled("the tokenizer has {} tokens, config.json says vocab_size {}", tokenizer.vocab_size(),
                  all.config->vocab_size),
           all.path, "use files of one and the same model");
}

// Throws runtime_error where there is no config.json.
void inspect_folder(Inspection& all) {
  const std::string config_path = all.path + "/config.json", bytes = read_regular(config_path);
  all["format"] = "folder";
  all.attempt([&] {
    const Config c = *(all.config = parse_config(bytes, config_path));
    describe_model(all, is_llama(c) ? family_of(c).type : "gpt2", [&](const Fact& fact) {
      return fact.of({c, c.block_size});
    });
  });
  all.attempt([&] {
    const std::string model_path = weights_path(all.path);
    const SafeTensors header = read_header(model_path);
    for (const Tensor& one : header.tensors) all.add_tensor(one.name, one.shape, one.dtype, one.end - one.begin);
    for (const auto& [key, value] : header.metadata) all["metadata"][key] = printable(value);
    if (all.config) check_model(header, *all.config, model_path);
  });
  describe_sizes(all);
  all.attempt([&] { describe_tokenizer(all); });
  list_files(all);
}

// ---------------------------------------------------------------------------------------------------------------
// For people

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

std::string report(const Inspection& all) {
  const OrderedJson& said = all.said;
  std::string text = filled("{}: {}, {}. nanospec {}\n", all.path, said["format"].get<std::string>(),
                            bytes_text(said["bytes"]), said["loads"] ? "loads it." : "does not load it:");
  for (const OrderedJson& obstacle : said["obstacles"]) text += "  " + obstacle.get<std::string>() + "\n";
  for (const auto& [part, facts] : all.facts)
    text += filled("\n{}{}\n{}", char(std::toupper(part[0])), part.substr(1), facts);
  text += table_text(all.shows_tensors ? said["tensors"] : grouped(said["tensors"], {"name", "shape", "type"}),
                     {"tensor", "number", "shape", "type", "bytes"}, {"name", "tensors", "shape", "type", "bytes"},
                     "lrllr");
  text += table_text(said["types"], {"type", "tensors", "numbers", "bytes", "bits a number"},
                     {"type", "tensors", "numbers", "bytes", "bits"}, "lrrrr");
  text +=
      table_text(said["files"], {"file", "bytes", "what it is", "state"}, {"name", "bytes", "what", "state"}, "lrll");
  if (!all.shows_metadata) return text;
  text += "\nMetadata\n";
  for (const auto& [key, value] : said["metadata"].items())
    text += "  " + printable(key) + " = " + value.get<std::string>() + "\n";
  return text;
}

}  // namespace

int inspect_command(int argc, char** argv) {
  Inspection all;
  const Given given = parse_flags(describe(all), argc, argv);
  if (given.help) return 0;
  if (all.path.empty()) refuse_usage("an empty name: --model: give a GGUF file or a folder");
  check_outputs(given);
  all["path"] = all.path;
  if (std::filesystem::is_directory(all.path)) inspect_folder(all);
  else inspect_gguf(all);
  all["types"] = grouped(all["tensors"], {"type"});
  all["loads"] = all["obstacles"].empty();
  print_out(report(all));
  if (!all.json_file.empty()) write_file(all.json_file, json_text(all.said, 2));
  return 0;
}

}  // namespace nanospec
