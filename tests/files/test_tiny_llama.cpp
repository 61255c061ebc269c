// tests/files/test_tiny_llama.cpp: tiny models, Llamas and of other families, that tests/reference/tiny_llama.py made
// with `transformers` and `gguf`: read as every model is, they have the logits that `transformers` computes.
//
// In order: the files; their logits, all at once and from the cache; damaged files; how much each setting would change.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "decode.h"
#include "files/gguf_model.h"
#include "target.h"
#include "tests/damaged.h"
#include "tests/error_of.h"
#include "tests/folder.h"
#include "tests/tenth.h"
#include "tests/tiny_tokenizer.h"

using namespace nanospec;

namespace {

constexpr int kTokens = 32;  // with stored logits, at most
const std::string kNames[] = {"grouped", "single", "plain"};
const std::string kFamilyNames[] = {"llama3", "mistral", "qwen2", "qwen3", "gpt2"};  // each as a folder too

std::string file_of(const std::string& name, const char* ending) { return "tests/files/llama_" + name + ending; }
Loaded tiny(const std::string& name) { return load_gguf(read_gguf(file_of(name, ".gguf"))); }

// A model once more, as transformers itself stores it, with more files. The tokenizer is that of the GGUF file.
Loaded tiny_folder(const std::map<std::string, std::string>& more = {}, const std::string& name = "llama_folder") {
  const Folder folder;
  for (const char* file : {"config.json", "model.safetensors"})
    folder.file(file, read_file("tests/files/" + name + "/" + file));
  folder.file("tokenizer.json", (name == "llama_folder" ? small_file() : tiny_file()).dump());
  for (const auto& [name, text] : more) folder.file(name, text);
  notes().quiet = true;  // the weights carry no hash
  Loaded loaded = load_model(folder.path);
  notes() = Notes();
  return loaded;
}

struct Stored {
  std::vector<int> tokens;
  std::vector<float> logits;  // (tokens, V)
  float largest = 0;
  Stored(const std::string& name, int vocab) {
    const std::string path = file_of(name, ".safetensors");
    const SafeTensors file = read_safetensors(path);
    const std::vector<int64_t> n = file.find("tokens")->shape;
    for (float token : read_tensor(file, "tokens", n, path)) tokens.push_back(int(token));
    logits = read_tensor(file, "logits", {n[0], vocab}, path);
    for (float x : logits) largest = std::max(largest, std::fabs(x));
  }
};

// The largest difference from the stored logits, as a part of the largest logit. `cached` tokens are prefilled.
double difference(const Loaded& loaded, const Stored& stored, int cached = 0, int threads = 1,
                  Dtype dtype = Dtype::fp32) {
  Target target(loaded.config, loaded.source(), dtype, false, threads, kTokens);
  const int n = int(stored.tokens.size()) - cached, vocab = loaded.config.vocab_size;
  std::vector<int> depth(n), end(n, n);  // a sequence: the tree with one branch
  for (int i = 0; i < n; i++) depth[i] = i;
  target.prefill(stored.tokens.data(), cached);
  target.forward(stored.tokens.data() + cached, depth.data(), end.data(), n);
  double most = 0;
  for (int i = 0; i < n; i++)
    for (int x = 0; x < vocab; x++) {
      const double apart = std::fabs(double(target.logits(i)[x]) - stored.logits[size_t(cached + i) * vocab + x]);
      if (!(apart <= most)) most = apart;  // and not a number stays so
    }
  return most / stored.largest;
}

size_t tensor_bytes(const GgufFile& file) {
  size_t bytes = 0;
  for (const GgufTensor& tensor : file.tensors) bytes += tensor.bytes;
  return bytes;
}

}  // namespace

TEST_CASE("llama: GGUF files of random models have transformers' logits") {
  for (const std::string& name : kNames) {
    CAPTURE(name);
    const Loaded loaded = tiny(name);
    const Stored stored(name, loaded.config.vocab_size);
    CHECK(stored.largest > 1);
    for (int cached : {0, 1, 19})
      for (int threads : {1, 2}) {
        CAPTURE(cached);
        CHECK(difference(loaded, stored, cached, threads) < 1e-5);
      }
  }
}

// Activations of 8 bits, and weights as the files have them: of 8 and 4 bits among others.
TEST_CASE("llama: weights as the file stores them") {
  for (const std::string& name : kNames) {
    CAPTURE(name);
    const Loaded loaded = tiny(name);
    const Stored stored(name, loaded.config.vocab_size);
    const double apart = difference(loaded, stored, 0, 1, Dtype::as_stored);
    CHECK(apart < 0.03);
    CHECK(apart > 0);
    CHECK(difference(loaded, stored, 0, 2, Dtype::as_stored) == apart);
    CHECK(difference(loaded, stored, 19, 1, Dtype::as_stored) <= apart);
  }
}

// Bytes anywhere in the file: most are weights, which are used whatever they say, unless a scale is no finite number;
// the others are sizes, tokens, names and types of tensors.
TEST_CASE("llama: a damaged file is refused with one line, or decoded with its weights as they are") {
  const std::string good = read_file(file_of("grouped", ".gguf"));
  const size_t header = good.size() - tensor_bytes(parse_gguf(good, "m.gguf"));
  std::mt19937_64 random(20261124 + sweep_seed());
  int decoded = 0, of_weights = 0;
  const int files = a_tenth() ? 200 : 2000;
  for (int i = 0; i < files; i++) {
    std::string bytes = good;
    const bool weights = random() % 2;
    for (int changes = weights ? 200 : 1; changes > 0; changes--)
      bytes[weights ? header + random() % (bytes.size() - header) : random() % header] = char(random());
    const DamagedRead result = read_damaged(65536 + 16 * bytes.size(), [&] {
      const Loaded loaded = load_gguf(parse_gguf(bytes, "m.gguf"), 0, Dtype::as_stored);
      Target target(loaded.config, loaded.source(), Dtype::as_stored, false, 1, 4);
      const int tokens[4] = {0, 1, 2, 3}, depth[4] = {0, 1, 1, 2}, end[4] = {4, 2, 4, 4};
      target.forward(tokens, depth, end, 4);
      const int best = pick(target.logits(3), nullptr, loaded.config.vocab_size, Sampling{0});
      if (best < 0 || best >= loaded.config.vocab_size) throw std::logic_error("no token");
    });
    if (!result.wrong.empty()) FAIL("file " << i << ": " << result.wrong);
    decoded += result.loaded;
    of_weights += result.loaded && weights;
  }
  INFO(files << " files: " << decoded << " decoded, " << of_weights << " of them with other weights");
  CHECK(decoded < files * 9 / 10);
  CHECK(of_weights > files / 10);
}

TEST_CASE("llama: blocks of numbers are those of the file again, by whose makers' formulas they are made") {
  int blocks = 0;
  for (const std::string& name : kNames) {
    const GgufFile file = read_gguf(file_of(name, ".gguf"));
    for (const GgufTensor& tensor : file.tensors) {
      CAPTURE(tensor.name);
      std::vector<float> numbers(tensor.size());
      dequantize(tensor, 0, numbers.size(), numbers.data());
      const auto check = [&](auto format, auto ours) {
        using Blocks = decltype(format);
        using Q = decltype(ours);
        int different = 0;
        for (size_t at = 0; at < numbers.size(); at += kBlockNumbers, blocks++) {
          const IntegerBlock block = integer_block<Blocks>(tensor, at / kBlockNumbers),
                             again = quantized<Q>(&numbers[at]);
          different += block.scale[0] != again.scale[0] || block.min != again.min ||
                       !std::equal(block.codes, block.codes + kBlockNumbers, again.codes);
        }
        CHECK(different == 0);
      };
      visit_blocks(tensor.type, [&](auto format) {
        if (tensor.type == GgufType::Q8_0) check(format, Q8_0());
        if (tensor.type == GgufType::Q4_0) check(format, Q4_0());
        if (tensor.type == GgufType::Q4_1) check(format, Q4_1());
      });
    }
  }
  CHECK(blocks > 1000);
}

TEST_CASE("llama: a folder's chat template is that of its own file, else that of tokenizer_config.json") {
  CHECK(tiny_folder().tokenizer.chat_template == "");
  CHECK(tiny_folder({{"tokenizer_config.json", R"({"chat_template": "one"})"}}).tokenizer.chat_template == "one");
  CHECK(tiny_folder({{"tokenizer_config.json", R"({"chat_template": [{"name": "a"}]})"}}).tokenizer.chat_template ==
        "");
  CHECK(tiny_folder({{"tokenizer_config.json", R"({"chat_template": "one"})"}, {"chat_template.jinja", "two"}})
            .tokenizer.chat_template == "two");
}

TEST_CASE("llama: a folder's begin token is the one that its tokenizer puts before a text") {
  CHECK(tiny_folder().tokenizer.begin == -1);
  Json file = small_file();
  file["post_processor"] = parse_json(R"({"type": "TemplateProcessing", "single":
      [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}}})",
                                      "template");
  CHECK(tiny_folder({{"tokenizer.json", file.dump()}}).tokenizer.begin == 1);
}

TEST_CASE("llama: a folder that transformers wrote has the logits of the GGUF file with the same numbers") {
  const Loaded folder = tiny_folder(), file = tiny("plain");
  const Stored stored("plain", file.config.vocab_size);
  CHECK(folder.config.rope_theta == 100);
  CHECK(difference(folder, stored) < 1e-5);
  CHECK(folder.tokenizer.symbols == file.tokenizer.symbols);
  for (const TensorSpec& spec : tensor_table(file.config)) {
    CAPTURE(spec.name);
    std::vector<float> numbers(spec.size);
    file.tensors.read(spec, numbers.data());
    CHECK(std::equal(numbers.begin(), numbers.end(), folder.weights.begin() + long(spec.offset)));
  }
}

TEST_CASE("llama: models of other families have transformers' logits, as GGUF files and as folders") {
  for (const std::string& name : kFamilyNames) {
    CAPTURE(name);
    const Loaded file = tiny(name), folder = tiny_folder({}, "folder_" + name);
    const Stored stored(name, file.config.vocab_size);
    CHECK(stored.largest > 1);
    for (int cached : {0, 5})
      for (const Loaded* loaded : {&file, &folder}) CHECK(difference(*loaded, stored, cached, 1 + cached % 2) < 1e-5);
    // Each setting counts: without it the logits are others.
    const std::pair<bool, std::function<void(Config&)>> settings[] = {
        {name == "llama3", [](Config& c) { c.rope_factors.clear(); }},
        {name == "mistral", [](Config& c) { c.span = 6; }},
        {name == "qwen2", [](Config& c) { c.rope_theta *= 2; }},
        {name == "qwen3", [](Config& c) { c.norm_epsilon *= 100; }},
        {name == "gpt2", [](Config& c) { c.tanh = false; }}};
    for (const auto& [its, change] : settings) {
      if (!its) continue;
      Loaded other = tiny(name);
      change(other.config);
      CHECK(difference(other, stored) > 1e-5);
    }
    CHECK(parse_config(format_config(file.config), "c").span == (name == "mistral" ? 5 : 0));
    CHECK(parse_config(format_config(file.config), "c").qkv_bias == (name == "qwen2"));
    CHECK(parse_config(format_config(file.config), "c").qk_norm == (name == "qwen3"));
    CHECK(parse_config(format_config(file.config), "c").tanh == (name == "gpt2"));
  }
}

TEST_CASE("llama: a folder may have fewer tokens than its model has rows: the others have no bytes") {
  const std::string name = "folder_qwen2";
  Json tokenizer = tiny_file();
  Json& added = tokenizer["added_tokens"];
  added.erase(added.size() - 1);
  const Loaded loaded = tiny_folder({{"tokenizer.json", tokenizer.dump()}}, name);
  CHECK(loaded.tokenizer.vocab_size() == loaded.config.vocab_size);
  CHECK(loaded.tokenizer.decode(loaded.config.vocab_size - 1).empty());
  CHECK(tiny_folder({}, name).tokenizer.decode(loaded.config.vocab_size - 1) == "<tool>");
}

TEST_CASE("llama: the files have the settings that they are there for, and the logits tell each from another") {
  const auto config = [](const char* name) { return tiny(name).config; };
  CHECK(config("grouped").tied);
  CHECK(config("grouped").n_head == 2 * config("grouped").n_kv_head);
  CHECK(!config("single").tied);
  CHECK(config("single").n_kv_head == 1);
  CHECK(config("plain").n_head == config("plain").n_kv_head);
  CHECK(config("plain").head_size() != config("plain").n_embd / config("plain").n_head);

  const std::pair<std::string, std::function<void(Config&)>> others[] = {
      {"rope_theta", [](Config& c) { c.rope_theta *= 2; }},
      {"norm_epsilon", [](Config& c) { c.norm_epsilon *= 2; }},
      {"rotary", [](Config& c) { c.rope_theta = 1e30f; }}};  // hardly any turn but the fastest
  for (const std::string& name : kNames)
    for (const auto& other : others) {
      const std::string& what = other.first;
      CAPTURE(name);
      CAPTURE(what);
      Loaded loaded = tiny(name);
      other.second(loaded.config);
      CHECK(difference(loaded, Stored(name, loaded.config.vocab_size)) > 1e-5);
    }
  for (const std::string& name : kNames) {  // rows of queries and keys as the file has them, not put in order
    const GgufFile file = read_gguf(file_of(name, ".gguf"));
    Loaded loaded = tiny(name);
    const int other_size = 2;  // in heads of two channels both orders are one
    loaded.tensors.read = [file, parts = model_parts(loaded.config)](const TensorSpec& spec, float* to) {
      read_gguf_tensor(file, parts, other_size, spec, to);
    };
    CHECK(difference(loaded, Stored(name, loaded.config.vocab_size)) > 1e-3);
  }
}

TEST_CASE(
    "llama: config.json: a sliding window is Mistral's in all layers, Qwen's where the file says so, no Llama's") {
  const auto config = [](const std::string& folder, const Json& more) {
    Json json = Json::parse(read_file("tests/files/" + folder + "/config.json"));
    json.erase("max_window_layers"), json.erase("use_sliding_window"), json["sliding_window"] = 6;
    json.update(more);
    return parse_config(json.dump(), "c");
  };
  CHECK(config("folder_mistral", Json::object()).span == 6);
  CHECK(config("folder_mistral", {{"sliding_window", 256}}).span == 0);  // the context has no more tokens
  CHECK(config("llama_folder", Json::object()).span == 0);
  CHECK(config("folder_qwen2", Json::object()).span == 0);
  CHECK(config("folder_qwen2", {{"use_sliding_window", true}}).span == 0);  // of layers from the 28th on
  CHECK(config("folder_qwen3", {{"use_sliding_window", true}, {"max_window_layers", 0}}).span == 6);
  const Config some = config("folder_qwen2", {{"use_sliding_window", true}, {"max_window_layers", 1}});
  CHECK(some.span == 0);
  CHECK(some.block_size == 6);
  CHECK(config("folder_qwen2", {{"use_sliding_window", true}, {"max_window_layers", 2}}).block_size == 256);
}

TEST_CASE("llama: config.json: theta among the rope_parameters, as transformers 5 writes it, or beside them") {
  const std::string text = read_file("tests/files/llama_folder/config.json");
  const auto with = [&](const char* key, const Json& value) {
    Json json = Json::parse(text);
    json[key] = value;
    return json.dump();
  };
  const auto theta = [](const std::string& config) { return parse_config(config, "c").rope_theta; };
  CHECK(theta(text) == 100);
  CHECK(theta(with("rope_theta", 7)) == 100);  // what the newer key says counts
  Json older = Json::parse(with("rope_theta", 7));
  older.erase("rope_parameters");
  CHECK(theta(older.dump()) == 7);
  older["rope_parameters"] = nullptr;
  CHECK(theta(older.dump()) == 7);
  const auto refused = [&](const Json& value) {
    return error_of([&] { parse_config(with("rope_parameters", value), "c"); });
  };
  CHECK(refused({{"rope_theta", 100}, {"rope_type", "yarn"}}).find("rope_parameters has the type \"yarn\", expected") ==
        0);
  CHECK(refused({{"rope_type", "default"}}).find("rope_theta is null, expected a number above 0") == 0);
  CHECK(refused({{"rope_theta", 100}, {"factor", 8}}).find("rope_parameters has the type null, expected") == 0);
  CHECK(refused(12).find("rope_parameters is 12, expected an object") == 0);
}
