// files/checkpoint.cpp: the reader and writer that checkpoint.h declares, in the same order.
#include "files/checkpoint.h"

#include <charconv>

#include "files/bpe.h"
#include "files/families.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// config.json

namespace {

// The sizes of a config.json, by the keys of GPT2LMHeadModel and LlamaForCausalLM.
struct SizeKey {
  int Config::*size;
  const char *gpt, *llama;  // null: the model has no such key
};
constexpr SizeKey kSizeKeys[] = {
    {&Config::vocab_size, "vocab_size", "vocab_size"},
    {&Config::block_size, "n_positions", "max_position_embeddings"},
    {&Config::n_embd, "n_embd", "hidden_size"},
    {&Config::n_inner, nullptr, "intermediate_size"},
    {&Config::n_layer, "n_layer", "num_hidden_layers"},
    {&Config::n_head, "n_head", "num_attention_heads"},
    {&Config::n_kv_head, nullptr, "num_key_value_heads"},
    {&Config::head_dim, nullptr, "head_dim"},
};
// What GPT-2's activation_function says, exact and by tanh.
const char* gelu_name(bool tanh) { return tanh ? "gelu_new" : "gelu"; }
// What else each has in a file of ours.
Json gpt_settings(const Config& config) {
  Json file = Json::parse(R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_inner": null,
                              "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0})");
  file.update({{"activation_function", gelu_name(config.tanh)}, {"bias", config.bias}});
  return file;
}
Json llama_settings(const Config& config) {
  Json file = {{"architectures", {family_of(config).architecture}},
               {"model_type", family_of(config).type},
               {"hidden_act", "silu"},
               {"rms_norm_eps", config.norm_epsilon},
               {"rope_theta", config.rope_theta},
               {"attention_bias", false},  // those of Qwen2 have no key
               {"mlp_bias", false},
               {"attention_dropout", 0.0}};
  if (config.span)
    file.update({{"sliding_window", config.span}, {"use_sliding_window", true}, {"max_window_layers", 0}});
  return file;
}

// Reads the values of a config.json. Its functions throw std::runtime_error with the key.
struct ConfigFile {
  const Json file;
  const std::string where;

  int number(const char* key) const {
    const Json& value = member(file, key);
    if (!is_below(value, uint64_t(INT32_MAX) + 1)) wrong(key, "a whole number above 0");
    return value.get<int>();
  }
  float real(const char* key) const {
    const Json& value = member(file, key);
    if (!value.is_number() || !is_above_0(value.get<double>())) wrong(key, "a number above 0");
    return value.get<float>();
  }
  bool flag(const char* key, bool otherwise) const {
    const Json value = file.value(key, Json(otherwise));
    if (!value.is_boolean()) wrong(key, "true or false");
    return value.get<bool>();
  }
  void fixed(const char* key, const Json& expected, bool required = false) const {
    if ((file.contains(key) || required) && member(file, key) != expected)
      wrong(key, shown(expected), "use a model of that kind");
  }
  [[noreturn]] void wrong(const char* key, const std::string& expected, const char* advice = kAdvice) const {
    refuse(filled("{} is {}, expected {}", key, shown(member(file, key)), expected), where, advice);
  }
  static constexpr const char* kAdvice = "correct the file";
};

Config gpt_config(const ConfigFile& file, Config config) {
  config.n_kv_head = config.n_head;
  config.tanh = member(file.file, "activation_function") == Json(gelu_name(true));
  if (!config.tanh) file.fixed("activation_function", gelu_name(false), true);
  if (member(file.file, "n_inner") != Json(4 * int64_t(config.n_embd))) file.fixed("n_inner", nullptr);
  file.fixed("layer_norm_epsilon", 1e-5);
  file.fixed("scale_attn_weights", true);
  file.fixed("scale_attn_by_inverse_layer_idx", false);
  file.fixed("tie_word_embeddings", true);
  config.bias = file.flag("bias", true);  // Hugging Face's GPT-2 has them and no such key
  return config;
}

// By which factor Llama 3.1 slows a pair of that wavelength, in positions (transformers' _compute_llama3_parameters):
// long waves by `factor`, short ones not at all, between them a mixture of both speeds.
double llama3_factor(const ConfigFile& rope, double wavelength) {
  const double factor = rope.real("factor"), low = rope.real("low_freq_factor"), high = rope.real("high_freq_factor");
  const double turns = rope.real("original_max_position_embeddings") / wavelength;
  const double share = std::clamp((turns - low) / (high - low), 0.0, 1.0);  // of the speed that is not scaled
  return 1 / ((1 - share) / factor + share);
}
// How rotary positions are scaled: as `rope_scaling` says, or since transformers 5 `rope_parameters`, which have theta
// too.
void read_rope(const ConfigFile& file, Config& config) {
  const char* const name = member(file.file, "rope_parameters").is_null() ? "rope_scaling" : "rope_parameters";
  const Json& parameters = member(file.file, name);
  if (!parameters.is_null() && !parameters.is_object()) file.wrong(name, "an object");
  const ConfigFile rope = {parameters, file.where};
  const bool own_theta = parameters.is_object() && parameters.contains("rope_theta");
  config.rope_theta = (own_theta ? rope : file).real("rope_theta");
  if (parameters.is_null()) return;
  const Json type = member(parameters, parameters.contains("rope_type") ? "rope_type" : "type");
  const int pairs = config.head_size() / 2;
  if (type == Json("linear")) config.rope_factors.assign(size_t(pairs), rope.real("factor"));
  else if (type == Json("llama3"))
    for (int d = 0; d < pairs; d++)
      config.rope_factors.push_back(
          float(llama3_factor(rope, 6.283185307179586 * exp(double(d) / pairs * log(double(config.rope_theta))))));
  else if (type != Json("default"))
    refuse(filled("{} has the type {}, expected default, linear or llama3", name, shown(type)), file.where,
           "use a model of that kind");
}
// A sliding window: of Mistral in all layers, of Qwen only if the file says so, in those from max_window_layers on
// (28). Where only some layers have one, the context is at most as long: then every key is seen.
void read_span(const ConfigFile& file, Config& config, const Family& family) {
  const bool qwen = family.qkv_bias || family.qk_norm;
  if (!family.span || member(file.file, "sliding_window").is_null() || !file.flag("use_sliding_window", !qwen)) return;
  const int span = file.number("sliding_window"), all = config.n_layer;
  const int without = !qwen ? 0 : file.file.contains("max_window_layers") ? file.number("max_window_layers") : 28;
  if (without > 0 && without < all) config.block_size = std::min(config.block_size, span);
  else if (without == 0 && span < config.block_size) config.span = span;
}
Config llama_config(const ConfigFile& file, Config config, const Family& family) {
  file.fixed("attention_bias", false);
  file.fixed("mlp_bias", false);
  config.rotary = config.swiglu = true;
  config.center = false;
  config.qkv_bias = family.qkv_bias;
  config.qk_norm = family.qk_norm;
  config.norm_epsilon = file.real("rms_norm_eps");
  config.tied = file.flag("tie_word_embeddings", false);
  read_span(file, config, family);
  return config;
}

}  // namespace

std::string format_config(const Config& config) {
  const bool llama = is_llama(config);
  Config sizes = config;
  sizes.n_inner = config.inner();
  sizes.head_dim = config.head_size();
  Json file = llama ? llama_settings(config) : gpt_settings(config);
  for (const SizeKey& key : kSizeKeys)
    if (const char* name = llama ? key.llama : key.gpt) file[name] = sizes.*key.size;
  file["initializer_range"] = 0.02;
  file["tie_word_embeddings"] = config.tied;
  file["bos_token_id"] = file["eos_token_id"] = nullptr;
  return file.dump(2) + "\n";
}

Config parse_config(const std::string& text, const std::string& where) {
  const ConfigFile file = {parse_json(text, where), where};
  if (!file.file.is_object()) refuse("not a JSON object", where, ConfigFile::kAdvice);
  const Family* const llama = row_of(kFamilies, &Family::type, member_text(file.file, "model_type"));
  if (!llama && member_text(file.file, "model_type") != "gpt2")
    file.wrong("model_type", "gpt2, llama, mistral, qwen2 or qwen3", "use a model of that kind");
  if (llama) file.fixed("hidden_act", "silu", true);
  Config config;
  for (const SizeKey& key : kSizeKeys)
    if (const char* name = llama ? key.llama : key.gpt)
      if (key.size != &Config::head_dim || file.file.contains(name)) config.*key.size = file.number(name);
  config = llama ? llama_config(file, config, *llama) : gpt_config(file, config);
  const std::string problem = config_problem(config);
  if (!problem.empty()) refuse(problem, where, ConfigFile::kAdvice);
  if (llama) read_rope(file, config);
  return config;
}

// ---------------------------------------------------------------------------------------------------------------
// The model's tensors

void write_arrays(const std::string& path, const std::vector<TensorSpec>& table, const std::vector<FlatArray>& arrays,
                  const Metadata& metadata, const std::vector<TensorData>& more) {
  std::vector<TensorData> tensors = more;
  for (const auto& [prefix, flat] : arrays)
    for (const TensorSpec& spec : table) tensors.push_back({prefix + spec.name, shape_of(spec), flat + spec.offset});
  write_safetensors(path, tensors, metadata);
}

std::vector<std::vector<float>> read_arrays(const SafeTensors& file, const std::vector<TensorSpec>& table,
                                            const std::vector<std::string>& prefixes, const std::string& where,
                                            const Expected& more) {
  Expected expected = more;
  for (const std::string& prefix : prefixes)
    for (const TensorSpec& spec : table) expected[prefix + spec.name] = shape_of(spec);
  check_tensors(file, expected, where);
  std::vector<std::vector<float>> arrays;
  for (const std::string& prefix : prefixes) {
    arrays.emplace_back(table.back().offset + table.back().size);
    for (const TensorSpec& spec : table)
      copy_floats(file, *file.find(prefix + spec.name), arrays.back().data() + spec.offset, where);
  }
  return arrays;
}

// What a file of such a model holds, and of which of ours each tensor is a part: in the order of tensor_table(config),
// among them biases, which Hugging Face's GPT-2 always has.
static std::vector<FileTensor> file_tensors(Config config) {
  if (is_llama(config)) return model_parts(config);
  config.bias = true;
  std::vector<FileTensor> tensors;
  for (const TensorSpec& spec : tensor_table(config))
    tensors.push_back({spec.name, "transformer." + spec.name, "", shape_of(spec), 0, 0, false});
  return tensors;
}

static std::map<std::string, size_t> offsets_of(const Config& config) {
  std::map<std::string, size_t> offsets;
  for (const TensorSpec& spec : tensor_table(config)) offsets[spec.name] = spec.offset;
  return offsets;
}

std::vector<TensorData> model_tensors(const Config& config, const float* weights, std::vector<float>& extra) {
  const std::map<std::string, size_t> offset = offsets_of(config);
  extra.assign(size_t(4) * size_t(config.n_embd), 0);  // zeros for the longest bias, (4 C)
  if (is_llama(config)) extra.reserve(extra.size() + parameter_count(config));
  std::vector<TensorData> tensors;
  for (const FileTensor& part : file_tensors(config)) {
    const auto found = offset.find(part.ours);
    const float* const ours = found == offset.end() ? extra.data() : weights + found->second;
    tensors.push_back({part.name, part.shape, part.transposed() ? extra.data() + extra.size() : ours});
    if (part.transposed()) copy_for_file(part, ours, extra);
  }
  return tensors;
}

// GPT-2's own files have its names without "transformer.", and its mask, which here is no tensor.
static const std::string& name_in(const SafeTensors& file, const FileTensor& part) {
  return file.find("wte.weight") && part.name == "transformer." + part.ours ? part.ours : part.name;
}
static bool is_mask(const Tensor& tensor) {
  return tensor.shape.size() != 1 && tensor.name.find(".attn.bias") != std::string::npos;
}

void check_model(const SafeTensors& file, const Config& config, const std::string& where) {
  if (size_t(config.n_layer) > file.tensors.size())  // before a table is made of that many
    refuse(filled("too few tensors for the {} layers of config.json: {}", config.n_layer, file.tensors.size()), where,
           "use files of one and the same model");
  Expected expected;
  for (const FileTensor& part : file_tensors(config)) expected[name_in(file, part)] = part.shape;
  for (const Tensor& tensor : file.tensors)
    if (!is_llama(config) && is_mask(tensor)) expected[tensor.name] = tensor.shape;
  if (!is_llama(config) && file.find("lm_head.weight")) expected["lm_head.weight"] = {config.vocab_size, config.n_embd};
  check_tensors(file, expected, where);
}

std::vector<float> parse_model(const SafeTensors& file, const Config& config, const std::string& where) {
  check_model(file, config, where);
  const std::map<std::string, size_t> offset = offsets_of(config);
  std::vector<float> weights(parameter_count(config));
  std::set<std::string> placed;
  for (const FileTensor& part : file_tensors(config)) {
    const auto found = offset.find(part.ours);
    if (found == offset.end()) continue;
    const std::string name = name_in(file, part);
    const std::vector<float> numbers = read_tensor(file, name, part.shape, where);
    const size_t columns = numbers.size() / size_t(part.shape[0]);
    const auto rows = [&](size_t first, size_t n, float* out) {
      std::copy_n(numbers.begin() + long(first * columns), n * columns, out);
    };
    copy_from_file(part, weights.data() + found->second, rows, [](size_t row) { return row; });
    placed.insert(name);
  }
  for (const Tensor& tensor : file.tensors) {
    if (placed.count(tensor.name) || is_mask(tensor)) continue;
    const std::vector<float> other = read_tensor(file, tensor.name, tensor.shape, where);
    if (tensor.name != "lm_head.weight" && size_t(std::count(other.begin(), other.end(), 0.0f)) != other.size())
      refuse("tensor " + tensor.name + " is not zero, but the config has \"bias\": false", where, "set it to true");
    if (tensor.name == "lm_head.weight" && !std::equal(other.begin(), other.end(), weights.begin()))
      refuse("tensor lm_head.weight differs from transformer.wte.weight, expected one for both", where,
             "use a tied model");
  }
  return weights;
}

// ---------------------------------------------------------------------------------------------------------------
// The folder of a model

// Notes that a file has no hash, as those of other programs, and of early versions of nanospec.
static void check_hashed(const SafeTensors& file, const std::string& dir) {
  if (!file.metadata.count("hash"))
    note("the weights carry no hash, so that damage could pass unseen", dir,
         "nothing need be done; where train_gpt made them, the same command with --resume adds it");
}

// How a chat is written: in a file of its own, or in tokenizer_config.json; "": not known.
static std::string chat_template_in(const std::string& dir) {
  const std::string own = dir + "/chat_template.jinja", shared = dir + "/tokenizer_config.json";
  if (std::filesystem::is_regular_file(own)) return read_file(own);
  if (!std::filesystem::is_regular_file(shared)) return "";
  return member_text(parse_json(read_file(shared), shared), "chat_template");
}

// The tokens that end a text: none, one or a list, by config.json and by generation_config.json.
static std::vector<int> ends_in(const std::string& dir) {
  std::vector<int> ends;
  for (const std::string& path : {dir + "/config.json", dir + "/generation_config.json"}) {
    if (!std::filesystem::is_regular_file(path)) continue;
    const Json file = parse_json(read_file(path), path), &said = member(file, "eos_token_id");
    for (const Json& id : said.is_array() ? said : Json::array({said})) {
      if (!id.is_null() && !id.is_number_integer())
        ConfigFile{file, path}.wrong("eos_token_id", "a token or a list of them");
      if (is_below(id, INT32_MAX)) ends.push_back(id.get<int>());
    }
  }
  return ends;
}

static constexpr const char* kMendIndex = "get the model's files anew";

std::string weights_path(const std::string& dir) {
  if (access((dir + "/.").c_str(), F_OK) != 0 && errno == ENOTDIR)
    refuse("a file, where the folder of a model is due", printable(dir, 300),
           "give a folder, or to --model a file named NAME.gguf");
  const std::string path = dir + "/model.safetensors", index = path + ".index.json";
  return access(path.c_str(), F_OK) != 0 && access(index.c_str(), F_OK) == 0 ? index : path;
}

// The files that lie there: one, or those that an index names.
static std::vector<std::string> weights_files(const std::string& dir, const std::string& path) {
  if (path == dir + "/model.safetensors") return {path};
  const Json index = parse_json(read_regular(path), path);
  const Json& names = member(index, "weight_map");
  std::set<std::string> files;
  for (const auto& [tensor, name] : names.items()) {
    if (!names.is_object() || !name.is_string() || name.get<std::string>().find('/') != std::string::npos)
      refuse("\"weight_map\" names no file of this folder for the tensor " + printable(tensor), path, kMendIndex);
    files.insert(dir + "/" + name.get<std::string>());
  }
  if (files.empty()) refuse("\"weight_map\" names no files", path, kMendIndex);
  return {files.begin(), files.end()};
}
// Their tensors, as of one file. read: of one, read_header or read_safetensors.
static SafeTensors joined(const std::vector<std::string>& files, SafeTensors (*read)(const std::string&)) {
  SafeTensors all = read(files[0]);
  for (size_t i = 1; i < files.size(); i++) {
    SafeTensors more = read(files[i]);
    for (Tensor tensor : more.tensors) {
      if (!all.index.emplace(tensor.name, all.tensors.size()).second)
        refuse("tensor " + printable(tensor.name) + " lies in another file too", files[i], kMendIndex);
      tensor.begin += all.bytes.size();
      tensor.end += all.bytes.size();
      all.tensors.push_back(tensor);
    }
    all.bytes += more.bytes;
    if (!more.metadata.count("hash")) all.metadata.erase("hash");
  }
  return all;
}

Loaded load_model(const std::string& dir) {
  const std::string config_path = dir + "/config.json", model_path = weights_path(dir);
  Loaded loaded;
  loaded.config = parse_config(read_regular(config_path), config_path);
  loaded.tokenizer = parse_any_tokenizer(read_regular(dir + "/tokenizer.json"), dir + "/tokenizer.json");
  const int symbols = loaded.tokenizer.vocab_size(), vocab = loaded.config.vocab_size;
  if (symbols > vocab || (symbols < vocab && !loaded.tokenizer.bpe))
    refuse(filled("the tokenizer has {} symbols, config.json says vocab_size {}", symbols, vocab), dir,
           "use files of one and the same model");
  const std::vector<std::string> files = weights_files(dir, model_path);
  check_model(joined(files, read_header), loaded.config, model_path);
  const SafeTensors file = joined(files, read_safetensors);
  check_hashed(file, dir);
  loaded.tokenizer.ends = ends_in(dir);
  loaded.tokenizer.symbols.resize(size_t(vocab));  // Qwen's models have more rows than tokens: those have no bytes
  loaded.weights = parse_model(file, loaded.config, model_path);
  loaded.tokenizer.chat_template = chat_template_in(dir);
  return loaded;
}

std::vector<std::pair<std::string, std::string>> texts_of_model(const Config& config, const Tokenizer& tokenizer) {
  const Json transformers = {{"tokenizer_class", "PreTrainedTokenizerFast"},  // use tokenizer.json and nothing else
                             {"clean_up_tokenization_spaces", false},
                             {"model_max_length", config.block_size}};
  return {{"config.json", format_config(config)},
          {"tokenizer.json", format_tokenizer(tokenizer)},
          {"tokenizer_config.json", transformers.dump(2) + "\n"}};
}

void save_model(const std::string& dir, const Config& config, const Tokenizer& tokenizer, const float* weights,
                const Metadata& metadata) {
  create_folder(dir);
  const std::string model_path = dir + "/model.safetensors";
  for (const auto& [name, text] : texts_of_model(config, tokenizer)) {
    const std::string path = dir + "/" + name;
    if (access(path.c_str(), F_OK) == 0 && read_file(path) == text) continue;
    if (unlink(model_path.c_str()) != 0 && errno != ENOENT) refuse_path("cannot replace the file", model_path, errno);
    write_file(path, text);
  }
  std::vector<float> zeros;
  write_safetensors(model_path, model_tensors(config, weights, zeros), metadata);
}

std::string hash_model(const Config& config, const float* weights, const Metadata& metadata) {
  std::vector<float> zeros;
  return with_hash(model_tensors(config, weights, zeros), metadata)["hash"];
}

// ---------------------------------------------------------------------------------------------------------------
// A training's state: one file with all that --resume needs, so that a kill between two renames cannot mix two states.

void save_training(const std::string& path, const std::vector<TensorSpec>& table, int64_t iteration,
                   const Metadata& settings, const OptimizerArrays& arrays, Metadata metadata) {
  metadata["iteration"] = std::to_string(iteration);
  metadata["settings"] = Json(settings).dump();
  write_arrays(path, table, {{"weights.", arrays.weights}, {"m.", arrays.m}, {"v.", arrays.v}}, metadata);
}

static constexpr const char* kNewRun = "start a new run, without --resume";
static const std::string& entry_of(const SafeTensors& file, const std::string& key, const std::string& where) {
  const auto found = file.metadata.find(key);
  if (found == file.metadata.end()) refuse("the metadata lack \"" + key + "\"", where, kNewRun);
  return found->second;
}

TrainingState parse_training_metadata(const SafeTensors& file, const std::string& where) {
  TrainingState state;
  const std::string iteration = entry_of(file, "iteration", where);
  const auto parsed = std::from_chars(iteration.data(), iteration.data() + iteration.size(), state.iteration);
  if (parsed.ec != std::errc() || parsed.ptr != iteration.data() + iteration.size() || state.iteration < 0)
    refuse("the metadata's iteration is \"" + printable(iteration) + "\", expected a whole number", where, kNewRun);
  const Json settings = parse_json(entry_of(file, "settings", where), where + ", metadata \"settings\"");
  if (!settings.is_object()) refuse("the metadata's settings are no JSON object", where, kNewRun);
  for (const auto& [key, value] : settings.items()) {
    if (!value.is_string()) refuse("the metadata's setting " + printable(key) + " is no text", where, kNewRun);
    state.settings[key] = value.get<std::string>();
  }
  return state;
}

TrainingState parse_training(const SafeTensors& file, const std::vector<TensorSpec>& table, const std::string& where) {
  TrainingState state = parse_training_metadata(file, where);
  std::vector<std::vector<float>> arrays = read_arrays(file, table, {"weights.", "m.", "v."}, where);
  state.weights.swap(arrays[0]);
  state.m.swap(arrays[1]);
  state.v.swap(arrays[2]);
  return state;
}

void check_resumable(const Metadata& before, const Metadata& now, const std::string& where) {
  for (const auto& [name, value] : now) {
    const auto was = before.find(name);
    if (was == before.end() || was->second != value)
      refuse("the run to resume had " + name + " " + (was == before.end() ? "(none)" : printable(was->second)) +
                 ", this one has " + value,
             where, "give the same, or another --out");
  }
}

TrainingState parse_optimizer(const SafeTensors& file, const std::string& where) {
  const Config config = parse_config(entry_of(file, "config", where), where + ", metadata \"config\"");
  TrainingState state = parse_training(file, tensor_table(config), where);
  state.config = config;
  return state;
}

void save_optimizer(const std::string& dir, const Config& config, int64_t iteration, const Metadata& settings,
                    const OptimizerArrays& arrays, Metadata metadata) {
  metadata["config"] = format_config(config);
  save_training(dir + "/optimizer.safetensors", tensor_table(config), iteration, settings, arrays, metadata);
}

TrainingState load_optimizer(const std::string& dir) {
  const std::string path = dir + "/optimizer.safetensors";
  const SafeTensors file = read_safetensors(path);
  check_hashed(file, dir);
  return parse_optimizer(file, path);
}

}  // namespace nanospec
