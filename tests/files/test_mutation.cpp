// tests/files/test_mutation.cpp: every reader of files against 100,000 mutated files each, made in memory: it raises a
// runtime_error with one line, or loads; it never crashes, raises anything else, or asks for memory that the file does
// not warrant. `make test` runs a tenth, `make prove` all.
#include <doctest/doctest.h>

#include <fstream>
#include <functional>
#include <random>
#include <utility>

#include "commands/calibration.h"
#include "files/advice.h"
#include "files/checkpoint.h"
#include "files/tables.h"
#include "tests/damaged.h"
#include "tests/folder.h"
#include "tests/tenth.h"

using namespace nanospec;

namespace {

std::string format_model(const Config& config, const float* weights) {
  std::vector<float> zeros;
  return format_safetensors(model_tensors(config, weights, zeros), {{"format", "pt"}});
}

// What a number, or anything else in a file, may be replaced by.
const char* const kExtremes[] = {"0",
                                 "-1",
                                 "1",
                                 "2",
                                 "3",
                                 "7",
                                 "65535",
                                 "65536",
                                 "1048576",
                                 "2147483647",
                                 "2147483648",
                                 "4294967295",
                                 "4294967296",
                                 "4294967297",
                                 "9007199254740993",
                                 "9223372036854775807",
                                 "9223372036854775808",
                                 "18446744073709551615",
                                 "18446744073709551616",
                                 "99999999999999999999",
                                 "-9223372036854775808",
                                 "1e9",
                                 "1e308",
                                 "1e999",
                                 "1.5",
                                 "-0",
                                 "null",
                                 "true",
                                 "\"\"",
                                 "[]",
                                 "{}",
                                 "[[[[",
                                 "{\"\":",
                                 "\"\\ud800\"",
                                 "\"\\u0000\"",
                                 "NaN",
                                 "\xFF",
                                 "\xC3",
                                 "\"",
                                 "}",
                                 "]",
                                 ",",
                                 "F32",
                                 "BF16",
                                 "../../x\n"};

// One change to a text, in place: of bits, of length, of what stands where, or of one number.
void mutate(std::string& text, Random& random, const std::string& other) {
  const size_t size = text.size(), at = size ? below(random, size) : 0;
  const size_t span = size ? 1 + below(random, std::min<size_t>(size - at, 64)) : 0;
  switch (below(random, 9)) {
    case 0:
      if (size) text[at] = char(text[at] ^ 1 << below(random, 8));
      break;
    case 1:
      if (size) text[at] = char(random());
      break;
    case 2:
      text.resize(at);
      break;
    case 3:
      text.erase(at, span);
      break;
    case 4:
      text.insert(at, text.substr(size ? below(random, size) : 0, span));
      break;
    case 5:
      text.insert(at, other.substr(below(random, other.size()), 1 + below(random, 64)));
      break;
    case 6:
      text.insert(at, kExtremes[below(random, std::size(kExtremes))]);
      break;
    default: {  // the first number at or after `at`
      const size_t begin = text.find_first_of("0123456789", at);
      if (begin == std::string::npos) break;
      const size_t end = std::min(text.find_first_not_of("0123456789", begin), size);
      text.replace(begin, end - begin, kExtremes[below(random, std::size(kExtremes))]);
    }
  }
}

// A safetensors file is changed as a whole, or in its header with its length set right, so that the change gets past
// the first check, or in its length alone.
std::string mutate_tensors(std::string bytes, Random& random, const std::string& other) {
  const size_t changes = 1 + below(random, 3);
  const size_t kind = below(random, 8);
  size_t length = 0;
  for (int i = 7; i >= 0; i--) length = length << 8 | uint8_t(bytes[size_t(i)]);
  std::string header = bytes.substr(8, length), data = bytes.substr(8 + length);
  if (kind == 0) {
    for (size_t i = 0; i < changes; i++) mutate(bytes, random, other);
    return bytes;
  }
  if (kind == 1) {
    length = below(random, 2) ? size_t(random()) : length + below(random, 64) - 32;
  } else {
    for (size_t i = 0; i < changes; i++) mutate(header, random, other);
    if (kind == 2) mutate(data, random, other);
    length = header.size();
  }
  std::string prefix;
  for (int i = 0; i < 8; i++) prefix += char(length >> (8 * i) & 255);
  return prefix + header + data;
}

// Numbers of the tensors are replaced by others that could stand there; or the file is changed as any other.
std::string mutate_integers(std::string bytes, Random& random, const std::string& other) {
  if (below(random, 2)) return mutate_tensors(std::move(bytes), random, other);
  size_t length = 0;
  for (int i = 7; i >= 0; i--) length = length << 8 | uint8_t(bytes[size_t(i)]);
  const size_t numbers = (bytes.size() - 8 - length) / 4;
  for (size_t changes = 1 + below(random, 3); changes > 0; changes--) {
    char* const at = &bytes[8 + length + 4 * below(random, numbers)];
    uint32_t number;
    memcpy(&number, at, 4);
    const uint32_t others[] = {number + 1, number - 1, uint32_t(below(random, numbers)), ~0u, 1u << 31, ~0u >> 1};
    memcpy(at, &others[below(random, 6)], 4);
  }
  return bytes;
}

std::string mutate_text(std::string text, Random& random, const std::string& other) {
  for (size_t changes = 1 + below(random, 3); changes > 0; changes--) mutate(text, random, other);
  return text;
}

// Reads 100,000 mutations of a good file. `read` gets the file, loads what it can of it and uses it. more: bytes that
// a file may ask for besides.
using Mutate = std::string (*)(std::string, Random&, const std::string&);
void survive(const std::string& good, Mutate change, const std::function<void(const std::string&)>& read,
             size_t more = 0) {
  read(good);  // raises nothing
  const int files = a_sixtieth() ? 2000 : a_tenth() ? 10000 : 100000;
  Random random(20240229 + sweep_seed());
  int loaded = 0;
  std::set<std::string> messages;
  for (int i = 0; i < files; i++) {
    const std::string file = change(good, random, good);
    const DamagedRead result = read_damaged(65536 + 16 * file.size() + more, [&] { read(file); });
    loaded += result.loaded;
    if (!result.loaded) messages.insert(result.refused.substr(0, result.refused.find(':')));
    if (!result.wrong.empty()) FAIL("mutation " << i << ": " << result.wrong << "\n" << printable(file, 2000));
  }
  INFO(files << " files: " << loaded << " loaded, " << messages.size() << " different errors");
  CHECK(loaded > 0);            // else nothing gets past the first check
  CHECK(messages.size() >= 5);  // and the later ones are reached
  CHECK(loaded < files);
}

Config mutated_config() {
  Config config;
  config.n_layer = 1, config.n_head = config.n_kv_head = 1, config.n_embd = 2, config.block_size = 2,
  config.vocab_size = 3;
  return config;
}
Config small_llama() {
  Config config = mutated_config();
  config.head_dim = 2, config.n_inner = 3;
  config.rotary = config.swiglu = true;
  config.center = config.tied = false;
  return config;
}
const Tokenizer kThree = {{"\n", "a", "\xC3\xA9"}};

std::vector<float> counted(size_t n) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; i++) values[i] = float(i);
  return values;
}

// A model's tensors into memory, as load_model takes them.
void load_weights(const SafeTensors& file, const Config& config) {
  check_model(file, config, "m");
  parse_model(file, config, "m");
}

}  // namespace

TEST_CASE("mutation: model.safetensors") {
  for (const Config& config : {mutated_config(), small_llama()}) {
    const std::string good = format_model(config, counted(parameter_count(config)).data());
    survive(good, mutate_tensors,
            [&](const std::string& bytes) { load_weights(parse_safetensors(bytes, "m"), config); });
  }
}

TEST_CASE("mutation: a safetensors file of any tensors, read by name") {
  const std::vector<float> values = counted(6);
  const std::string good =
      format_safetensors({{"logits", {2, 3}, values.data()}, {"s", {0}, values.data()}}, {{"format", "pt"}});
  survive(good, mutate_tensors, [](const std::string& bytes) {
    const SafeTensors file = parse_safetensors(bytes, "m");
    for (const Tensor& tensor : file.tensors) read_tensor(file, tensor.name, tensor.shape, "m");
    read_tensor(file, "logits", {2, 3}, "m");
  });
}

TEST_CASE("mutation: ngram.safetensors, and a walk through it") {
  survive(format_safetensors(ngram_tensors(count_ngrams({0, 1, 0, 1, 1, 2, 0, 1, 0}, 3, 3)), {}), mutate_integers,
          [](const std::string& bytes) {
            const NgramTrie trie = parse_ngrams(parse_safetensors(bytes, "n"), 3, "n");
            for (int order = 1; order <= trie.orders(); order++) {
              const Ngrams ngrams = interpolated(trie, order, 3);
              float row[3];
              for (int i = 0, context = 0; i < 12; i++) {
                context = ngrams.next(context, i * i % 7 % 3);
                ngrams.log_probabilities(context, row);
                for (float x : row)
                  if (!(x <= 1e-3f)) throw std::logic_error("no log-probability: n");
              }
            }
          });
}

TEST_CASE("mutation: optimizer.safetensors") {
  TrainingState state;
  state.config = mutated_config();
  state.iteration = 100;
  state.weights = state.m = state.v = counted(parameter_count(state.config));
  state.settings = {{"seed", "1337"}};
  const Folder folder;
  save_optimizer(folder.path, state.config, state.iteration, state.settings,
                 {state.weights.data(), state.m.data(), state.v.data()});
  SafeTensors file = read_safetensors(folder.file("optimizer.safetensors"));
  file.metadata.erase("hash");  // which would refuse all that is damaged at once
  std::vector<TensorData> tensors;
  for (const Tensor& tensor : file.tensors)
    tensors.push_back({tensor.name, tensor.shape, file.bytes.data() + tensor.begin});
  survive(format_safetensors(tensors, file.metadata), mutate_tensors,
          [](const std::string& bytes) { parse_optimizer(parse_safetensors(bytes, "o"), "o"); });
}

TEST_CASE("mutation: config.json beside a whole model") {
  for (const Config& config : {mutated_config(), small_llama()}) {
    const SafeTensors model = parse_safetensors(format_model(config, counted(parameter_count(config)).data()), "m");
    survive(format_config(config), mutate_text,
            [&](const std::string& text) { load_weights(model, parse_config(text, "c")); });
  }
}

TEST_CASE("mutation: config.json of the models that people have") {
  for (const std::string folder : {"llama3", "qwen2", "qwen3", "gpt2"}) {
    CAPTURE(folder);
    const std::string path = "tests/files/folder_" + folder;
    const SafeTensors model = read_header(path + "/model.safetensors");
    survive(
        read_file(path + "/config.json"), mutate_text,
        [&](const std::string& text) { check_model(model, parse_config(text, "c"), "m"); },
        kMaxChannels / 2 * sizeof(float));  // a factor for each pair of a head's channels
  }
}

TEST_CASE("mutation: generation_config.json, and the index of weights in several files") {
  const bool quiet = std::exchange(notes().quiet, true);  // of each load: the weights have no hash
  const Folder folder;
  const auto anew = [&](const char* name, const std::string& text) {
    std::filesystem::remove(folder.file(name));
    std::ofstream(folder.file(name)) << text;  // write_file would wait for the disk, 20,000 times
    return folder.file(name);
  };
  const Config config = mutated_config();
  save_model(folder.path, config, kThree, counted(parameter_count(config)).data());
  survive(R"({"eos_token_id": [1, 2], "temperature": 0.5, "top_k": 20, "do_sample": true})", mutate_text,
          [&](const std::string& text) {
            folder_advice(anew("generation_config.json", text));
            for (int id : load_model(folder.path).tokenizer.ends)
              if (id < 0) throw std::logic_error("no token ends: g");
          });
  std::filesystem::remove(folder.file("generation_config.json"));
  std::filesystem::rename(folder.file("model.safetensors"), folder.file("one.safetensors"));
  survive(R"({"metadata": {"total_size": 96}, "weight_map": {"wte.weight": "one.safetensors"}})", mutate_text,
          [&](const std::string& text) {
            anew("model.safetensors.index.json", text);
            load_model(folder.path);
          });
  notes().quiet = quiet;
}

TEST_CASE("mutation: tokenizer.json, and a text through it") {
  survive(format_tokenizer(kThree), mutate_text, [](const std::string& text) {
    const Tokenizer tokenizer = parse_tokenizer(text, "t");
    for (int id = 0; id < tokenizer.vocab_size(); id++)
      if (tokenizer.encode(tokenizer.decode(id)) != std::vector<int>{id}) throw std::logic_error("encode, decode: t");
    tokenizer.encode("a\xC3\xA9\n");
  });
}

TEST_CASE("mutation: a file of prompts") {
  survive("{\"prompt\": \"ROMEO:\"}\n{\"id\": 12, \"prompt\": \"a\\n\\u00e9\"}\n", mutate_text,
          [](const std::string& text) { read_prompts_jsonl(text, "p"); });
}

TEST_CASE("mutation: calibration.json, and a tree by it") {
  const std::string good =
      "{\"calibrations\": [{\"drafter\": \"bigram\", \"temperature\": 0.7, \"places\": 60, \"expand_seconds\": 2e-06, "
      "\"seen\": [40, 20], \"accuracy\": [[0.5, 0.25], [0.75, 0]]}]}";
  survive(good, mutate_text, [](const std::string& text) {
    for (const Calibration& one : parse_calibrations(text, "c"))
      if (calibrated_template(one.accuracy, 8).nodes() > 8) throw std::logic_error("too many nodes: c");
  });
}

TEST_CASE("mutation: a tree of ranks by hand") {
  survive("[[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0], [2]]", mutate_text, [](const std::string& text) {
    const Template t = parse_static(text, "t");
    if (t.level.back() != t.nodes() + 1) throw std::logic_error("no levels: t");
  });
}

TEST_CASE("mutation: a prompt, and a training text") {
  const Tokenizer letters = character_tokenizer("na\xC3\xAFve 0123456789\n\xF0\x9F\x98\x80\xE4\xB8\x96");
  survive("na\xC3\xAFve 10\n\xE4\xB8\x96\xE4\xB8\x96 \xF0\x9F\x98\x80 na 42", mutate_text,
          [&](const std::string& text) {
            if (letters.decode(letters.encode(text)) != text) throw std::logic_error("encode, decode: p");
            if (text.empty()) return;
            const Tokenizer own = character_tokenizer(text);
            if (own.decode(own.encode(text)) != text) throw std::logic_error("encode, decode: p");
          });
}
