// tests/files/test_checkpoint.cpp: files/checkpoint.h and the table of tensors (model.h): safetensors by hand and by
// mutilation, config.json, models and optimizer states through files, and what a kill or a full disk leaves behind.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <climits>
#include <random>

#include "files/checkpoint.h"
#include "files/model_path.h"
#include "files/origin.h"
#include "tests/error_of.h"
#include "tests/folder.h"

using namespace nanospec;
namespace fs = std::filesystem;

namespace {

bool begins(const std::string& text, const std::string& start) { return text.compare(0, start.size(), start) == 0; }

Config tiny_config(bool bias = false) {
  Config config;
  config.n_layer = 2, config.n_head = config.n_kv_head = 2, config.n_embd = 4, config.block_size = 6;
  config.vocab_size = 5, config.bias = bias;
  return config;
}

// The tensors of a model's file: Hugging Face's GPT-2 always has biases.
std::vector<TensorSpec> with_biases(Config config) {
  config.bias = true;
  return tensor_table(config);
}

const Tokenizer kFiveLetters = {{"a", "b", "c", "d", "e"}};

std::vector<float> random_weights(const Config& config, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> weights(parameter_count(config));
  for (float& w : weights) w = normal(random);
  return weights;
}

// A safetensors file with this header and `data` zero bytes after it.
std::string raw_file(const std::string& header, size_t data) {
  std::string bytes;
  for (int i = 0; i < 8; i++) bytes += char(header.size() >> (8 * i) & 255);
  return bytes + header + std::string(data, '\0');
}

}  // namespace

TEST_CASE("checkpoint: sha256: the known answers of FIPS 180-4") {
  CHECK(sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("model: the table of a tiny model, by hand") {
  const auto table = tensor_table(tiny_config());
  std::vector<std::string> names;
  for (const TensorSpec& spec : table) names.push_back(spec.name);
  CHECK(names == std::vector<std::string>{"wte.weight", "wpe.weight",  //
                                          "h.0.ln_1.weight", "h.0.attn.c_attn.weight", "h.0.attn.c_proj.weight",
                                          "h.0.ln_2.weight", "h.0.mlp.c_fc.weight", "h.0.mlp.c_proj.weight",  //
                                          "h.1.ln_1.weight", "h.1.attn.c_attn.weight", "h.1.attn.c_proj.weight",
                                          "h.1.ln_2.weight", "h.1.mlp.c_fc.weight", "h.1.mlp.c_proj.weight",  //
                                          "ln_f.weight"});
  CHECK(table[0].shape == std::vector<int>{5, 4});
  CHECK(table[1].shape == std::vector<int>{6, 4});
  CHECK(table[3].shape == std::vector<int>{4, 12});
  CHECK(table[7].shape == std::vector<int>{16, 4});
  CHECK(table[2].offset == 44);
  CHECK(table[3].offset == 48);
  CHECK(table[14].offset + table[14].size == 20 + 24 + 2 * (4 + 48 + 16 + 4 + 64 + 64) + 4);
  for (const TensorSpec& spec : table) CHECK(spec.decay == (spec.shape.size() == 2));
  CHECK(table[0].init_std == 0.02f);
  CHECK(table[2].init_std < 0);
  CHECK(table[4].init_std == doctest::Approx(0.01));  // 0.02 / sqrt(2 * 2)
  CHECK(table[7].init_std == doctest::Approx(0.01));
  CHECK(table[6].init_std == 0.02f);
  const auto with_bias = tensor_table(tiny_config(true));
  CHECK(with_bias.size() == 2 + 2 * 12 + 2);
  CHECK(with_bias[5].name == "h.0.attn.c_attn.bias");
  CHECK(with_bias[5].shape == std::vector<int>{12});
  CHECK(with_bias[5].init_std == 0);
  CHECK(!with_bias[5].decay);
}

TEST_CASE("model: parameters are counted as the table adds up, without gaps") {
  std::mt19937 random(2);
  for (int i = 0; i < 50; i++) {
    Config config;
    config.n_layer = 1 + int(random() % 5), config.n_head = config.n_kv_head = 1 + int(random() % 4);
    config.n_embd = config.n_head * (1 + int(random() % 9)), config.block_size = 2 + 2 * int(random() % 9);
    config.vocab_size = 1 + int(random() % 99), config.bias = random() % 2;
    size_t end = 0;
    for (const TensorSpec& spec : tensor_table(config)) {
      CHECK(spec.offset == end);
      end += spec.size;
    }
    CHECK(parameter_count(config) == end);
    CHECK(config_problem(config) == "");
  }
  Config article;  // the teaching article's model has 53,568 parameters
  article.n_embd = 32;
  CHECK(parameter_count(article) == 53568);
}

TEST_CASE("model: impossible sizes are usage errors that name the flag") {
  const auto message = [](auto change) {
    Config config;
    change(config);
    try {
      validate(config);
    } catch (const std::invalid_argument& error) { return std::string(error.what()); }
    return std::string();
  };
  CHECK(message([](Config&) {}) == "");
  CHECK(message([](Config& c) { c.n_embd = 130; }) ==
        "n_embd is 130, not a multiple of n_head, 4: the model's size: choose other sizes");
  CHECK(begins(message([](Config& c) { c.n_layer = 0; }), "n_layer is 0, expected 1 to 1024"));
  CHECK(begins(message([](Config& c) { c.n_head = 0; }), "n_head is 0"));
  CHECK(begins(message([](Config& c) { c.n_head = -4; }), "n_head is -4"));
  CHECK(begins(message([](Config& c) { c.n_kv_head = 3; }), "n_head is 4, not a multiple of n_kv_head, 3"));
  CHECK(begins(message([](Config& c) { c.n_kv_head = 8; }), "n_kv_head is 8, expected 1 to 4"));
  CHECK(begins(message([](Config& c) { c.head_dim = -1; }), "head_dim is -1"));
  CHECK(begins(message([](Config& c) { c.rotary = true, c.head_dim = 7; }), "head_dim is 7, expected an even number"));
  CHECK(begins(message([](Config& c) { c.n_head = c.head_dim = kMaxChannels, c.n_kv_head = 1; }),
               "n_head * head_dim is 4294967296, expected at most 262144"));
  CHECK(begins(message([](Config& c) { c.n_embd = INT_MAX; }), "n_embd is 2147483647"));
  CHECK(begins(message([](Config& c) { c.block_size = 63; }), "block_size is 63, expected an even number"));
  CHECK(begins(message([](Config& c) { c.block_size = 0; }), "block_size is 0"));
  CHECK(begins(message([](Config& c) { c.vocab_size = 0; }), "vocab_size is 0"));
  CHECK(begins(message([](Config& c) { c.n_embd = kMaxChannels; }), "the model would have 206"));
  CHECK(begins(message([](Config& c) { c.n_layer = 1024, c.n_embd = 65536, c.vocab_size = c.block_size = 1 << 20; }),
               "the model would have 52914"));
}

TEST_CASE("checkpoint: a safetensors file written by hand") {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]},)"
      R"("a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"h":{"dtype":"F16","shape":[3],"data_offsets":[12,18]},)"
      R"("s":{"dtype":"F32","shape":[0,7],"data_offsets":[12,12]}}  )";
  std::string bytes = raw_file(header, 0);
  bytes += std::string("\x00\x00\x80\x3f\x00\x00\x20\xc1", 8);  // 1, -10
  bytes += std::string("\x80\x3f\x20\xc1", 4);                  // 1, -10
  bytes += std::string("\x00\x3c\x00\xc9\x01\x00", 6);          // 1, -10, 2^-24
  const SafeTensors file = parse_safetensors(bytes, "x.safetensors");
  REQUIRE(file.tensors.size() == 4);
  CHECK(file.metadata == std::map<std::string, std::string>{{"format", "pt"}});
  CHECK(file.tensors[0].name == "a");
  CHECK(file.tensors[0].shape == std::vector<int64_t>{1, 2});
  CHECK(file.tensors[0].begin == 8 + header.size());
  CHECK(file.tensors[3].name == "h");
  CHECK(read_tensor(file, "a", {1, 2}, "x") == std::vector<float>{1, -10});
  CHECK(read_tensor(file, "b", {2}, "x") == std::vector<float>{1, -10});
  CHECK(read_tensor(file, "h", {3}, "x") == std::vector<float>{1, -10, std::ldexp(1.0f, -24)});
  CHECK(read_tensor(file, "s", {0, 7}, "x").empty());
  CHECK(begins(error_of([&] {
                 read_tensor(file, "a", {2, 1}, "x");
               }),
               "tensor a has shape (1, 2), expected (2, 1): x: "));
  CHECK(
      begins(error_of([&] { read_tensor(file, "c", {2}, "x"); }), "tensor c is missing, expected with shape (2): x: "));
}

TEST_CASE("checkpoint: half precision, at its ends") {
  CHECK(half_to_float(0x3555) == 0.333251953125f);
  CHECK(half_to_float(0x7BFF) == 65504.0f);
  CHECK(half_to_float(0x0400) == std::ldexp(1.0f, -14));
  CHECK(half_to_float(0x03FF) == std::ldexp(1023.0f, -24));
  CHECK(half_to_float(0x8000) == 0.0f);
  CHECK(std::signbit(half_to_float(0x8000)));
  CHECK(half_to_float(0xFC00) == -INFINITY);
  CHECK(std::isnan(half_to_float(0x7C01)));
}

TEST_CASE("checkpoint: what is written is read back, and its data is aligned") {
  const std::vector<float> a = {1, 2, 3, 4, 5, 6}, b = {-1};
  const std::string bytes = format_safetensors({{"b", {1}, b.data()}, {"a", {2, 3}, a.data()}}, {{"k", "\"v\"\n"}});
  const SafeTensors file = parse_safetensors(bytes, "x");
  CHECK(file.metadata.at("k") == "\"v\"\n");
  CHECK(file.tensors[0].name == "b");
  CHECK(file.tensors[0].begin % 8 == 0);
  CHECK(file.bytes == bytes);
  CHECK(read_tensor(file, "a", {2, 3}, "x") == a);
  CHECK(read_tensor(file, "b", {1}, "x") == b);
  CHECK(parse_safetensors(format_safetensors({}, {}), "x").tensors.empty());

  const std::vector<int32_t> whole = {INT32_MIN, -1, 0, 7, INT32_MAX};
  const SafeTensors mixed = parse_safetensors(
      format_safetensors({{"i", {5}, whole.data(), "I32"}, {"b", {1}, b.data()}, {"m", {1, 5}, whole.data(), "I32"}},
                         {}),
      "x");
  CHECK(read_integers(mixed, "i", "x") == whole);
  CHECK(read_tensor(mixed, "b", {1}, "x") == b);
  CHECK(begins(error_of([&] { read_tensor(mixed, "i", {5}, "x"); }), "tensor i has dtype I32, expected floats: x: "));
  CHECK(begins(error_of([&] { read_integers(mixed, "b", "x"); }), "tensor b has dtype F32 and shape (1), expected"));
  CHECK(begins(error_of([&] { read_integers(mixed, "m", "x"); }), "tensor m has dtype I32 and shape (1, 5), expected"));
  CHECK(error_of([&] { read_integers(mixed, "c", "x"); }) == "tensor c is missing: x: replace the file");
}

TEST_CASE("checkpoint: a safetensors file that does not hold together is refused with the reason") {
  const auto message = [](const std::string& bytes) { return error_of([&] { parse_safetensors(bytes, "x.st"); }); };
  const auto one = [&](const std::string& entry, size_t data) {
    return message(raw_file("{\"a\":" + entry + "}", data));
  };
  CHECK(message("") == "not a safetensors file: only 0 bytes: x.st: replace the file");
  CHECK(message("1234567") == "not a safetensors file: only 7 bytes: x.st: replace the file");
  CHECK(message(std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10)) ==
        "not a whole safetensors file: a header of 9223372036854775807 bytes in a file of 10: x.st: replace the file");
  CHECK(begins(message(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10)), "not a whole safetensors file"));
  CHECK(begins(message(std::string("\x03\0\0\0\0\0\0\0{}", 10)), "not a whole safetensors file: a header of 3 bytes"));
  CHECK(begins(message(raw_file("", 0)), "not valid JSON"));
  CHECK(begins(message(raw_file("[]", 0)), "the header is no JSON object: x.st"));
  CHECK(begins(message(raw_file("{\"__metadata__\":{\"a\":1}}", 0)), "__metadata__ is no map of texts"));
  CHECK(begins(message(raw_file("{\"__metadata__\":[\"a\"]}", 0)), "__metadata__ is no map of texts"));
  CHECK(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 8) == "");
  CHECK(one(R"({"dtype":"F64","shape":[1],"data_offsets":[0,8]})", 8) ==
        "tensor a has dtype \"F64\", expected \"F32\", \"F16\", \"BF16\" or \"I32\": x.st: replace the file");
  CHECK(begins(one("7", 8), "tensor a has dtype null"));
  CHECK(begins(one(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})", 8), "tensor a has no list of at most 8 sizes"));
  CHECK(begins(one(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]})", 8),
               "tensor a has no list of at"));
  CHECK(begins(one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", 8), "tensor a has a shape with -2"));
  CHECK(begins(one(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})", 8), "tensor a has a shape with 2.0"));
  CHECK(begins(one(R"({"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8]})", 8),
               "tensor a has a shape with 1"));
  // 256^8 wraps to 0 though no size is larger than the file; 2^62 floats would take 0 bytes
  CHECK(begins(one(R"({"dtype":"F32","shape":[256,256,256,256,256,256,256,256],"data_offsets":[0,0]})", 256),
               "tensor a has a shape larger"));
  CHECK(begins(one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})", 0),
               "tensor a has a shape larger"));
  CHECK(begins(one(R"({"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]})", 0),
               "tensor a has a shape larger"));
  CHECK(begins(one(R"({"dtype":"F32","shape":[0,9223372036854775808],"data_offsets":[0,0]})", 0),
               "tensor a has a shape larger"));
  CHECK(begins(one(R"({"dtype":"F32","shape":[2]})", 8), "tensor a has no data_offsets"));
  CHECK(begins(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,8]})", 8), "tensor a has no data_offsets"));
  CHECK(begins(one(R"({"dtype":"F32","shape":[2],"data_offsets":[-8,8]})", 8), "tensor a has no data_offsets"));
  CHECK(begins(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 7),
               "tensor a lies at 0 to 8, but the file holds 7"));
  CHECK(begins(one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", 8), "tensor a lies at 8 to 0"));
  CHECK(begins(one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,8]})", 8),
               "tensor a of shape (1) and dtype F32 has 8 bytes"));
  CHECK(begins(one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,7]})", 8),
               "tensor a of shape (1) and dtype F32 has 7 bytes"));
  CHECK(begins(one(R"({"dtype":"F32","shape":[1],"data_offsets":[2,6]})", 8),
               "tensor a begins at 2, not a multiple of its 4"));
  CHECK(begins(one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", 8),
               "tensor a begins at 4, expected 0 (a gap or an o"));
  CHECK(begins(one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", 8),
               "the tensors take 4 bytes, the file holds 8"));
  const auto two = [&](const std::string& name, int begin, int end, size_t data) {
    return message(raw_file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},")" + name +
                                R"(":{"dtype":"F32","shape":[1],"data_offsets":[)" + std::to_string(begin) + "," +
                                std::to_string(end) + "]}}",
                            data));
  };
  CHECK(two("b", 8, 12, 12) == "");
  CHECK(begins(two("b", 4, 8, 12), "tensor b begins at 4, expected 8 (a gap or an overlap)"));
  CHECK(begins(two("b", 12, 16, 16), "tensor b begins at 12, expected 8"));
  CHECK(begins(two("a", 8, 12, 12), "\"a\" named twice: x.st"));
  CHECK(two("b\\n", 12, 16, 16).find('\n') == std::string::npos);
}

TEST_CASE("checkpoint: config.json gives the config back, and says what Hugging Face asks") {
  for (bool bias : {false, true}) {
    const Config config = tiny_config(bias), back = parse_config(format_config(config), "c");
    CHECK(back.n_layer == 2);
    CHECK(back.n_head == 2);
    CHECK(back.n_kv_head == 2);
    CHECK(back.n_embd == 4);
    CHECK(back.block_size == 6);
    CHECK(back.vocab_size == 5);
    CHECK(back.bias == bias);
  }
  const Json file = parse_json(format_config(Config()), "c");
  CHECK(file["activation_function"] == "gelu");
  CHECK(file["n_inner"] == nullptr);
  CHECK(file["bos_token_id"] == nullptr);
  CHECK(file["tie_word_embeddings"] == true);
}

TEST_CASE("checkpoint: a config.json that cannot be is refused by key, value and expectation") {
  const Json good = parse_json(format_config(tiny_config()), "c");
  const auto with = [&](const char* key, const Json& value) {
    Json file = good;
    file[key] = value;
    return error_of([&] { parse_config(file.dump(), "m/config.json"); });
  };
  const auto raw = [&](const std::string& value) {
    std::string text = good.dump();
    text.replace(text.find("\"n_layer\":2"), 11, "\"n_layer\":" + value);
    return error_of([&] { parse_config(text, "m/config.json"); });
  };
  CHECK(raw("2") == "");
  CHECK(raw("-1") == "n_layer is -1, expected a whole number above 0: m/config.json: correct the file");
  CHECK(begins(raw("99999999999999999999"), "n_layer is 1e+20, expected a whole number above 0: m/config.json: "));
  CHECK(begins(raw("1.5"), "n_layer is 1.5, expected"));
  CHECK(begins(raw("\"x\""), "n_layer is \"x\", expected"));
  CHECK(begins(raw("null"), "n_layer is null, expected"));
  CHECK(begins(raw("{}"), "n_layer is an object, expected"));
  CHECK(begins(raw("4294967298"), "n_layer is 4294967298, expected"));
  CHECK(begins(raw("0"), "n_layer is 0, expected 1 to 1024: m/config.json: "));
  CHECK(begins(raw("2000"), "n_layer is 2000, expected 1 to 1024"));
  CHECK(begins(raw("2,\"n_layer\":2"), "\"n_layer\" named twice"));
  CHECK(begins(with("n_head", 3), "n_embd is 4, not a multiple of n_head, 3"));
  CHECK(begins(with("n_positions", 7), "block_size is 7, expected an even number"));
  CHECK(begins(with("model_type", "mamba"),
               "model_type is \"mamba\", expected gpt2, llama, mistral, qwen2 or qwen3: m/"));
  CHECK(begins(with("model_type", "llama"), "hidden_act is null, expected \"silu\""));
  CHECK(with("activation_function", "gelu_new") == "");  // as GPT-2's own files have it
  CHECK(begins(with("activation_function", "relu"), "activation_function is \"relu\", expected \"gelu\""));
  CHECK(begins(with("layer_norm_epsilon", 1e-6), "layer_norm_epsilon is 1e-06"));
  CHECK(begins(with("n_inner", 17), "n_inner is 17"));
  CHECK(with("n_inner", 16) == "");
  CHECK(begins(with("tie_word_embeddings", false), "tie_word_embeddings is false"));
  CHECK(begins(with("bias", 1), "bias is 1, expected true or false"));
  CHECK(with("resid_pdrop", 0.1) == "");
  Json less = good;
  less.erase("bias");
  CHECK(parse_config(less.dump(), "c").bias);
  less.erase("n_embd");
  CHECK(begins(error_of([&] { parse_config(less.dump(), "c"); }), "n_embd is null"));
  CHECK(begins(error_of([] { parse_config("{", "c"); }), "not valid JSON"));
  CHECK(begins(error_of([] { parse_config("[1]", "c"); }), "not a JSON object: c"));
}

TEST_CASE("checkpoint: a model goes through its folder bit for bit, under Hugging Face's names") {
  for (bool bias : {false, true}) {
    const Folder folder;
    const std::string dir = folder.path + "/new/m";
    const Config config = tiny_config(bias);
    const std::vector<float> weights = random_weights(config);
    save_model(dir, config, kFiveLetters, weights.data());
    const Loaded loaded = load_model(dir);
    CHECK(loaded.weights == weights);
    CHECK(loaded.config.bias == bias);
    CHECK(loaded.tokenizer.symbols == kFiveLetters.symbols);
    const SafeTensors file = read_safetensors(dir + "/model.safetensors");
    CHECK(file.tensors.size() == 2 + 2 * 12 + 2);
    CHECK(file.metadata.at("format") == "pt");
    CHECK(read_tensor(file, "transformer.h.1.mlp.c_fc.weight", {4, 16}, "x").size() == 64);
    const auto zero = read_tensor(file, "transformer.h.0.attn.c_attn.bias", {12}, "x");
    CHECK(std::all_of(zero.begin(), zero.end(), [](float x) { return x == 0; }) == !bias);
    save_model(dir, config, kFiveLetters, random_weights(config, 2).data());
    CHECK(load_model(dir).weights == random_weights(config, 2));
  }
}

TEST_CASE("checkpoint: weights in half precision load as floats") {
  const Config config = tiny_config();
  const std::vector<float> weights(parameter_count(config), 1.0f);
  std::string header = "{", data;
  for (const TensorSpec& spec : with_biases(config)) {
    const bool zero = spec.name.find(".bias") != std::string::npos;
    const Json entry = {
        {"dtype", "BF16"}, {"shape", spec.shape}, {"data_offsets", {data.size(), data.size() + 2 * spec.size}}};
    header += (data.empty() ? "" : ",") + Json("transformer." + spec.name).dump() + ":" + entry.dump();
    for (size_t i = 0; i < spec.size; i++) data += zero ? std::string(2, '\0') : "\x80\x3f";
  }
  const SafeTensors file = parse_safetensors(raw_file(header + "}", 0) + data, "x");
  CHECK(parse_model(file, config, "x") == weights);
}

TEST_CASE("checkpoint: a model's file with a tensor too few, too many or of another shape is refused") {
  const Config config = tiny_config();
  const std::vector<float> weights = random_weights(config);
  std::vector<TensorData> tensors;
  const std::vector<float> zeros(16);
  for (const TensorSpec& spec : with_biases(config))
    tensors.push_back({"transformer." + spec.name, shape_of(spec), zeros.data()});
  for (const TensorSpec& spec : tensor_table(config))
    for (TensorData& tensor : tensors)
      if (tensor.name == "transformer." + spec.name) tensor.data = weights.data() + spec.offset;
  const auto message = [&](const std::vector<TensorData>& changed) {
    const SafeTensors file = parse_safetensors(format_safetensors(changed, {}), "x");
    return error_of([&] {
      const std::vector<float> loaded = parse_model(file, config, "m/model.safetensors");
      CHECK(loaded == weights);
    });
  };
  CHECK(message(tensors) == "");
  auto changed = tensors;
  changed.erase(changed.begin() + 4);  // h.0.attn.c_attn.weight
  CHECK(message(changed) ==
        "tensor transformer.h.0.attn.c_attn.weight is missing, expected with shape (4, 12): m/model.safetensors: use "
        "files "
        "of one and the same model");
  changed = tensors, changed[4].shape = {12, 4};
  CHECK(begins(message(changed),
               "tensor transformer.h.0.attn.c_attn.weight has shape (12, 4), expected (4, 12): m/model.safetensors: "));
  changed = tensors, changed.push_back({"transformer.h.2.ln_1.weight", {4}, zeros.data()});
  CHECK(begins(message(changed), "tensor transformer.h.2.ln_1.weight of shape (4) does not belong to this model"));
  changed = tensors, changed[3].data = weights.data();  // h.0.ln_1.bias
  CHECK(begins(message(changed), "tensor transformer.h.0.ln_1.bias is not zero, but the config has \"bias\": false"));
  changed = tensors, changed.push_back({"lm_head.weight", {5, 4}, weights.data()});
  CHECK(message(changed) == "");
  changed.back().data = weights.data() + 1;
  CHECK(begins(message(changed), "tensor lm_head.weight differs from transformer.wte.weight"));
  changed.back().shape = {4, 5};
  CHECK(begins(message(changed), "tensor lm_head.weight has shape (4, 5), expected (5, 4)"));
  for (float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> sick(weights.begin(), weights.begin() + 20);
    sick[7] = bad;
    changed = tensors, changed[0].data = sick.data();
    CHECK(begins(message(changed),
                 "tensor transformer.wte.weight holds numbers that are not finite: m/model.safetensors: "));
  }
}

TEST_CASE("checkpoint: a Llama goes through its folder bit for bit, as LlamaForCausalLM has it") {
  for (bool tied : {false, true}) {
    const Folder folder;
    Config config = tiny_config();
    config.n_head = 2, config.n_kv_head = 1, config.head_dim = 6, config.n_inner = 5;
    config.rotary = config.swiglu = true;
    config.center = false, config.tied = tied;
    config.norm_epsilon = 1e-6f, config.rope_theta = 5e5f;
    const std::vector<float> weights = random_weights(config);
    save_model(folder.path, config, kFiveLetters, weights.data());
    const Loaded loaded = load_model(folder.path);
    CHECK(loaded.weights == weights);
    CHECK(format_config(loaded.config) == format_config(config));
    CHECK(loaded.config.norm_epsilon == 1e-6f);
    CHECK(loaded.config.rope_theta == 5e5f);
    CHECK(loaded.config.tied == tied);
    const std::string path = folder.file("model.safetensors");
    const SafeTensors file = read_safetensors(path);
    CHECK(file.tensors.size() == size_t(1 + 2 * 9 + 1 + !tied));
    const Tensors<const float> ours(config, weights.data());
    // (outputs, inputs) there; ours is (inputs, outputs), with 12 queries, 6 keys and 6 values side by side.
    const auto keys = read_tensor(file, "model.layers.1.self_attn.k_proj.weight", {6, 4}, path);
    const auto ups = read_tensor(file, "model.layers.0.mlp.up_proj.weight", {5, 4}, path);
    for (int in = 0; in < 4; in++) {
      for (int out = 0; out < 6; out++) CHECK(keys[out * 4 + in] == ours.layers[1].qkv[in * 24 + 12 + out]);
      for (int out = 0; out < 5; out++) CHECK(ups[out * 4 + in] == ours.layers[0].fc[in * 10 + 5 + out]);
    }
    const OptimizerArrays arrays = {weights.data(), weights.data(), weights.data()};
    save_optimizer(folder.path, config, 3, {}, arrays);
    CHECK(load_optimizer(folder.path).weights == weights);
    CHECK(format_config(load_optimizer(folder.path).config) == format_config(config));
  }
}

TEST_CASE("checkpoint: the config.json of a Llama is refused by key, value and expectation") {
  Config config = tiny_config();
  config.rotary = config.swiglu = true;
  config.center = false;
  const Json good = Json::parse(format_config(config));
  const auto with = [&](const char* key, const Json& value) {
    Json file = good;
    file[key] = value;
    return error_of([&] { parse_config(file.dump(), "m/config.json"); });
  };
  CHECK(with("rope_scaling", nullptr) == "");
  CHECK(begins(with("rope_scaling", "yarn"), "rope_scaling is \"yarn\", expected an object"));
  CHECK(begins(with("rope_scaling", {{"type", "yarn"}}), "rope_scaling has the type \"yarn\", expected default"));
  CHECK(begins(with("rope_scaling", {{"factor", 8}}), "rope_scaling has the type null, expected default"));
  CHECK(begins(with("rope_scaling", {{"type", "linear"}}), "factor is null, expected a number above 0"));
  CHECK(begins(with("hidden_act", "gelu"), "hidden_act is \"gelu\", expected \"silu\""));
  CHECK(begins(with("attention_bias", true), "attention_bias is true, expected false"));
  CHECK(begins(with("mlp_bias", true), "mlp_bias is true, expected false"));
  CHECK(begins(with("rope_theta", 0), "rope_theta is 0, expected a number above 0"));
  CHECK(begins(with("rope_theta", 1e-300), "rope_theta is 1e-300, expected a number above 0"));  // as a float it is 0
  CHECK(begins(with("rope_scaling", {{"type", "linear"}, {"factor", 1e-300}}), "factor is 1e-300, expected a number"));
  CHECK(begins(with("rms_norm_eps", "x"), "rms_norm_eps is \"x\", expected a number above 0"));
  CHECK(begins(with("num_key_value_heads", 3), "n_kv_head is 3, expected 1 to 2"));
  CHECK(begins(with("head_dim", 3), "head_dim is 3, expected an even number"));
  CHECK(begins(with("intermediate_size", nullptr), "intermediate_size is null, expected a whole number"));
  CHECK(begins(with("tie_word_embeddings", 1), "tie_word_embeddings is 1, expected true or false"));
}

TEST_CASE("checkpoint: the files of a folder must fit each other") {
  const Folder folder;
  const Config config = tiny_config();
  save_model(folder.path, config, kFiveLetters, random_weights(config).data());
  const auto message = [&] { return error_of([&] { load_model(folder.path); }); };
  CHECK(message() == "");
  write_file(folder.path + "/tokenizer.json", format_tokenizer({{"a", "b"}}));
  CHECK(begins(message(), "the tokenizer has 2 symbols, config.json says vocab_size 5: " + folder.path));
  write_file(folder.path + "/tokenizer.json", format_tokenizer(kFiveLetters));
  // A config that asks for much memory beside a file of 2 kB fails by the shape, before memory is asked for.
  Config large = config;
  large.n_embd = 1 << 16, large.n_layer = 64;
  CHECK(config_problem(large).find("the model would have") == 0);
  large.n_embd = 8192, large.n_layer = config.n_layer;
  write_file(folder.path + "/config.json", format_config(large));
  CHECK(begins(message(), "tensor transformer.h.0.attn.c_attn.bias has shape (12), expected (24576): " + folder.path));
  write_file(folder.path + "/config.json", format_config(config));
  const std::string model = read_file(folder.path + "/model.safetensors");
  for (size_t cut = 0; cut < model.size(); cut += 97) {
    write_file(folder.path + "/model.safetensors", model.substr(0, cut));
    CHECK(message().find(folder.path + "/model.safetensors") != std::string::npos);
  }
  fs::remove(folder.path + "/model.safetensors");
  CHECK(message() == "cannot read the file: " + folder.path +
                         "/model.safetensors (No such file or directory): check the path and its permissions");
  CHECK(begins(error_of([] { load_model("/tmp/no/such/model"); }),
               "cannot read the file: /tmp/no/such/model/config.json (No such"));
}

TEST_CASE("checkpoint: an optimizer's state goes through its file bit for bit") {
  const Folder folder;
  for (bool bias : {false, true}) {
    TrainingState state;
    state.config = tiny_config(bias);
    state.iteration = 123456789012;
    state.weights = random_weights(state.config, 1), state.m = random_weights(state.config, 2),
    state.v = random_weights(state.config, 3);
    state.settings = {{"seed", "1337"}, {"data", "a \"b\"\n\xC3\xA9"}};
    save_optimizer(folder.path, state.config, state.iteration, state.settings,
                   {state.weights.data(), state.m.data(), state.v.data()});
    const TrainingState back = load_optimizer(folder.path);
    CHECK(back.config.bias == bias);
    CHECK(back.config.n_embd == 4);
    CHECK(back.iteration == state.iteration);
    CHECK(back.weights == state.weights);
    CHECK(back.m == state.m);
    CHECK(back.v == state.v);
    CHECK(back.settings == state.settings);
  }
  SafeTensors file = read_safetensors(folder.path + "/optimizer.safetensors");
  const auto with = [&](const std::string& key, const std::string& value) {
    SafeTensors changed = file;
    changed.metadata[key] = value;
    return error_of([&] { parse_optimizer(changed, "o"); });
  };
  CHECK(begins(with("iteration", "-1"), "the metadata's iteration is \"-1\", expected a whole number: o: "));
  CHECK(begins(with("iteration", "12x"), "the metadata's iteration is \"12x\""));
  CHECK(begins(with("iteration", ""), "the metadata's iteration is \"\""));
  CHECK(begins(with("iteration", "99999999999999999999"), "the metadata's iteration is"));
  CHECK(begins(with("settings", "[]"), "the metadata's settings are no JSON object"));
  CHECK(begins(with("settings", "{\"seed\": 1}"), "the metadata's setting seed is no text"));
  CHECK(begins(with("config", format_config(Config())),
               "tensor m.h.0.attn.c_attn.weight has shape (4, 12), expected (128, 384)"));
  file.metadata.erase("config");
  CHECK(begins(error_of([&] { parse_optimizer(file, "o"); }), "the metadata lack \"config\": o: "));
  CHECK(begins(error_of([] { load_optimizer("/tmp/no/such"); }),
               "cannot read the file: /tmp/no/such/optimizer.safetensors"));
}

TEST_CASE("checkpoint: files are whole or not there, whatever goes wrong") {
  const Folder folder;
  const std::string path = folder.path + "/f";
  write_file(path, "old");
  CHECK(read_file(path) == "old");
  write_file(path, std::string(300000, 'x') + "new");
  CHECK(read_file(path) == std::string(300000, 'x') + "new");
  write_file(path, "");
  CHECK(read_file(path) == "");
  write_file(path, "old");

  CHECK(error_of([] { write_file("/proc/nowhere/f", "x"); }) ==
        "cannot write the file: /proc/nowhere/f (No such file or directory): check the path and its permissions");
  CHECK(begins(error_of([] { create_folder("/proc/nowhere"); }), "cannot create the folder: /proc/nowhere ("));
  CHECK(begins(error_of([&] { create_folder(path); }), "cannot create the folder: " + path));
  CHECK(begins(error_of([&] { write_file(folder.path, "x"); }),
               "cannot write the file: " + folder.path + " (Is a directory)"));
  CHECK(
      begins(error_of([&] { read_file(folder.path); }), "cannot read the file: " + folder.path + " (Is a directory)"));
  CHECK(begins(error_of([&] { read_file(path + "/g"); }), "cannot read the file: " + path + "/g (Not a directory)"));

  // A full device, and a limit on the size of files as a full disk: the old file stays, nothing lies beside it.
  CHECK(error_of([] { write_file("/dev/full", "x"); }) ==
        "cannot write the file: /dev/full (No space left on device): make room");
  struct rlimit limit, small;
  getrlimit(RLIMIT_FSIZE, &limit);
  small = limit, small.rlim_cur = 100000;
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = error_of([&] { write_file(path, std::string(200000, 'x')); });
  setrlimit(RLIMIT_FSIZE, &limit);
  signal(SIGXFSZ, handler);
  CHECK(begins(message, "cannot write the file: " + path + " (File too large)"));
  CHECK(read_file(path) == "old");
  CHECK(folder.files() == std::vector<std::string>{"f"});

  // Through a link, the file it points to changes; devices are written into and stay what they are.
  fs::create_symlink("f", folder.path + "/link");
  write_file(folder.path + "/link", "through");
  CHECK(fs::is_symlink(folder.path + "/link"));
  CHECK(read_file(path) == "through");
  write_file("/dev/null", "x");
  CHECK(fs::is_character_file("/dev/null"));
  CHECK(folder.files() == std::vector<std::string>{"f", "link"});

  // A file keeps its mode, and a link stays one where nothing is there yet, through other links too. A loop is refused.
  for (const mode_t mode : {0600, 0755}) {
    chmod(path.c_str(), mode);
    write_file(folder.path + "/link", "again");
    struct stat status;
    REQUIRE(stat(path.c_str(), &status) == 0);
    CHECK((status.st_mode & 07777) == mode);
  }
  fs::create_directory(folder.path + "/d");
  fs::create_symlink("d/next", folder.path + "/first");
  fs::create_symlink("last", folder.path + "/d/next");
  write_file(folder.path + "/first", "at the end");
  CHECK(fs::is_symlink(folder.path + "/first"));
  CHECK(fs::is_symlink(folder.path + "/d/next"));
  CHECK(read_file(folder.path + "/d/last") == "at the end");
  REQUIRE(mkfifo((folder.path + "/pipe").c_str(), 0600) == 0);
  CHECK(error_of([&] { write_file(folder.path + "/pipe", "x"); }) ==
        "nobody reads the pipe: " + folder.path + "/pipe: start its reader first, or give a file");
  fs::create_symlink("loop", folder.path + "/loop");
  CHECK(begins(error_of([&] { write_file(folder.path + "/loop", "x"); }),
               "cannot write the file: " + folder.path + "/loop (Too many levels of symbolic links)"));
  CHECK(fs::is_symlink(folder.path + "/loop"));
}

TEST_CASE("checkpoint: a pipe where a file of a model is due is refused, and not waited for") {
  const Folder folder;
  for (const char* name : {"m.gguf", "model.safetensors", "config.json", "tokenizer.json"}) {
    const std::string path = folder.file(name);
    REQUIRE(mkfifo(path.c_str(), 0600) == 0);
    const std::string line = "a pipe or a device, where a file of a model is due: " + path + ": give a file";
    CHECK(error_of([&] { read_regular(path); }) == line);
    if (name == std::string("m.gguf")) CHECK(error_of([&] { read_gguf(path); }) == line);
    if (name == std::string("model.safetensors")) CHECK(error_of([&] { read_safetensors(path); }) == line);
    if (name == std::string("config.json")) CHECK(error_of([&] { load_model(folder.path); }) == line);
    if (name == std::string("tokenizer.json")) CHECK(error_of([&] { load_tokenizer(folder.path); }) == line);
  }
  CHECK(model_metadata(folder.path).empty());
}

TEST_CASE("checkpoint: weights in several files are those of one") {
  const Folder folder;
  const Config config = tiny_config();
  const std::vector<float> weights = random_weights(config, 3);
  std::vector<float> extra;
  std::vector<TensorData> tensors[2];  // by turns, so that neither file has what lies together
  Json map;
  for (const TensorData& tensor : model_tensors(config, weights.data(), extra)) {
    map[tensor.name] = map.size() % 2 ? "b.safetensors" : "a.safetensors";
    tensors[(map.size() + 1) % 2].push_back(tensor);
  }
  const auto write_index = [&](const Json& names) {
    return folder.file("model.safetensors.index.json", Json{{"weight_map", names}}.dump());
  };
  folder.file("config.json", format_config(config));
  folder.file("tokenizer.json", format_tokenizer(kFiveLetters));
  const std::string index = write_index(map), a = folder.file("a.safetensors", format_safetensors(tensors[0], {})),
                    b = folder.file("b.safetensors", format_safetensors(tensors[1], {}));
  const auto message = [&] { return error_of([&] { load_model(folder.path); }); };
  CHECK(weights_path(folder.path) == index);
  CHECK(load_model(folder.path).weights == weights);

  fs::remove(b);
  CHECK(begins(message(), "cannot read the file: " + b));
  folder.file("b.safetensors", format_safetensors({tensors[1][0], tensors[0][0]}, {}));
  CHECK(begins(message(), "tensor " + tensors[0][0].name + " lies in another file too: " + b));
  folder.file("b.safetensors", format_safetensors({tensors[1][0]}, {}));
  CHECK(message().find(" is missing, expected with shape ") != std::string::npos);
  for (const Json& wrong :
       {Json(), Json::object(), Json{{"x", 1}}, Json{{"x", "../a.safetensors"}}, Json::array({"x"})}) {
    write_index(wrong);
    CHECK(message().find("\"weight_map\" names no file") != std::string::npos);
  }
  folder.file("model.safetensors.index.json", "{");
  CHECK(message().find(index) != std::string::npos);
  folder.file("model.safetensors", "");
  CHECK(weights_path(folder.path) == folder.file("model.safetensors"));
}

TEST_CASE("checkpoint: a file where a folder is due is refused by what it is not") {
  const Folder folder;
  const std::string file = folder.file("model", "");
  CHECK(begins(error_of([&] { load_model(file); }), "a file, where the folder of a model is due: " + file + ": give"));
}

TEST_CASE("checkpoint: a kill at any moment leaves a whole older or newer model") {
  const Folder folder;
  const Config config = tiny_config();
  const std::vector<float> one(parameter_count(config), 1.0f), two(parameter_count(config), 2.0f);
  save_model(folder.path, config, kFiveLetters, one.data());
  int newer = 0;
  for (int round = 0; round < 30; round++) {
    const pid_t child = fork();
    if (child == 0) {
      for (;;) {
        save_model(folder.path, config, kFiveLetters, two.data());
        save_model(folder.path, config, kFiveLetters, one.data());
      }
    }
    REQUIRE(child > 0);
    usleep(useconds_t(500 + 777 * round));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const Loaded loaded = load_model(folder.path);
    CHECK((loaded.weights == one || loaded.weights == two));
    newer += loaded.weights == two;
  }
  CHECK(newer > 0);
  CHECK(newer < 30);
  save_model(folder.path, config, kFiveLetters, one.data());  // whatever a kill left lying about is no hindrance
  CHECK(load_model(folder.path).weights == one);
}

TEST_CASE("checkpoint: over another model's folder, no mixture of the two is ever there") {
  const Folder folder;
  const Config config = tiny_config();
  save_model(folder.path, config, kFiveLetters, random_weights(config).data());
  // Same sizes, other characters: were the new weights not to come, the old ones must not pass for them.
  const std::string in_the_way = temporary_name(folder.path + "/model.safetensors");
  fs::create_directories(in_the_way + "/full");
  const Tokenizer other = {{"v", "w", "x", "y", "z"}};
  CHECK(begins(error_of([&] { save_model(folder.path, config, other, random_weights(config, 2).data()); }),
               "cannot write the file"));
  CHECK(begins(error_of([&] { load_model(folder.path); }),
               "cannot read the file: " + folder.path + "/model.safetensors"));
  fs::remove_all(in_the_way);
  save_model(folder.path, config, other, random_weights(config, 2).data());
  CHECK(load_model(folder.path).weights == random_weights(config, 2));
  CHECK(load_model(folder.path).tokenizer.symbols == other.symbols);
}
