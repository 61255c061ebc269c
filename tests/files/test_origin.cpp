// tests/files/test_origin.cpp: files/io.h's hash and files/origin.h: what files say of themselves. Flipped bits are
// found, what cannot be right is refused before it is read, and files of another model or text are said to be.
#include <doctest/doctest.h>

#include <ctime>
#include <fstream>
#include <random>

#include "files/heads.h"
#include "files/tables.h"
#include "tests/command_line.h"
#include "tests/error_of.h"

using namespace nanospec;
namespace fs = std::filesystem;

namespace {

const Tokenizer kAbc = {{"a", "b", "c", "d"}};

Config origin_config() {
  Config config;
  config.n_layer = 2, config.n_head = config.n_kv_head = 2, config.n_embd = 4, config.block_size = 6;
  config.vocab_size = 4;
  return config;
}

std::vector<float> weights(size_t n, float first) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; i++) values[i] = first + 0.01f * float(i % 97);
  return values;
}

const std::string kOneText(64, '1'), kOtherText(64, '2');
Metadata one_text() { return {{"text", "one.txt"}, {"text_sha256", kOneText}}; }

// What train_gpt writes of one text, and train_drafter beside it.
void save_all(const std::string& dir, float first = 0, Metadata text = one_text()) {
  const Config config = origin_config();
  const std::vector<float> values = weights(parameter_count(config), first);
  save_model(dir, config, kAbc, values.data(), text);
  save_bigram(dir, {0, 1, 2, 3, 0, 1}, 4, text), save_ngrams(dir, {0, 1, 2, 3, 0, 1}, 4, text);
  text["model"] = model_hash(dir);
  save_optimizer(dir, config, 7, {{"seed", "1337"}}, {values.data(), values.data(), values.data()}, text);
  MedusaSizes sizes;
  sizes.heads = 2, sizes.n_embd = config.n_embd, sizes.vocab_size = config.vocab_size, sizes.rank = 2;
  const std::vector<TensorSpec> table = medusa_table(sizes);
  write_arrays(heads_path(dir, "medusa"), table, {{"", weights(table.back().offset + table.back().size, 1).data()}},
               text);
}

// What a call says on standard error, to a reader who has heard nothing yet.
template <class F>
std::string notes_of(F f) {
  notes() = Notes();
  const std::string said = captured(2, f);
  notes() = Notes();
  return said;
}

}  // namespace

TEST_CASE("checkpoint: xxh64: its known answers, whole and in pieces") {
  CHECK(hash_of("") == "xxh64:ef46db3751d8e999");
  CHECK(hash_of("abc") == "xxh64:44bc2cf5ad770999");
  CHECK(hash_of("Nobody inspects the spammish repetition") == "xxh64:fbcea83c8a378bf1");
  std::mt19937 random(5);
  std::string bytes;
  for (int i = 0; i < 1000; i++) bytes += char(random());
  for (int round = 0; round < 200; round++) {
    Pieces pieces;
    for (size_t at = 0; at < bytes.size(); at += pieces.back().size())
      pieces.push_back(std::string_view(bytes).substr(at, 1 + random() % 80));
    CHECK(hash_of(pieces) == hash_of(bytes));
  }
}

TEST_CASE("checkpoint: a flipped bit is found, wherever it is, in every file of tensors") {
  const Folder folder;
  save_all(folder.path);
  std::mt19937 random(6);
  for (const char* name : {"model", "optimizer", "bigram", "ngram", "medusa"}) {
    const std::string path = folder.file(name) + ".safetensors", good = read_file(path);
    CHECK(error_of([&] { parse_safetensors(good, "f"); }) == "");
    const size_t metadata = good.find("\"__metadata__\""), end = good.find('}', metadata);
    int found = 0, tried = 0;
    const auto flip = [&](size_t bit) {
      std::string bad = good;
      bad[bit / 8] = char(bad[bit / 8] ^ 1 << bit % 8);
      const bool caught = !error_of([&] { parse_safetensors(bad, "f"); }).empty();
      found += caught, tried++;
      if (!caught) MESSAGE(name << ": bit " << bit % 8 << " of byte " << bit / 8 << ": " << printable(bad, 300));
    };
    for (size_t bit = 0; bit < 8 * 8; bit++) flip(bit);  // the header's length
    for (size_t bit = 8 * metadata; bit < 8 * end; bit++) flip(bit);
    for (int i = 0; i < 1500; i++) flip(random() % (8 * good.size()));
    CHECK(found == tried);
  }
  // Without the hash a file is read, whatever hashes it names of others; under a damaged key the hash is found.
  const std::string heads = read_file(folder.file("medusa.safetensors"));
  const auto without = [&](const std::string& key) {
    SafeTensors file = parse_safetensors(heads, "f");
    if (!key.empty()) file.metadata[key] = file.metadata.at("hash");
    file.metadata.erase("hash");
    std::vector<TensorData> tensors;
    for (const Tensor& t : file.tensors) tensors.push_back({t.name, t.shape, file.bytes.data() + t.begin});
    return error_of([&] { parse_safetensors(format_safetensors(tensors, file.metadata), "f"); });
  };
  CHECK(parse_safetensors(heads, "f").metadata.count("model") == 1);
  CHECK(without("") == "");
  CHECK(without("tokenizer") == "");
  CHECK(holds(without("hasi"), "the file is damaged"));
  // Through the loaders, in a line that says what to do.
  const std::string path = folder.file("model.safetensors"), good = read_file(path);
  std::string bad = good;
  bad[bad.size() - 1] = char(bad[bad.size() - 1] ^ 1);
  write_file(path, bad);
  CHECK(error_of([&] { load_model(folder.path); }) ==
        "the file is damaged: its bytes are not those that its hash was made of: " + path + ": replace the file");
}

TEST_CASE("checkpoint: a header of 40,000 empty tensors is read in a moment") {
  std::string header = "{", bytes;
  for (int i = 0; i < 40000; i++)
    header += (i ? ",\"" : "\"") + std::to_string(i) + R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  header += "}";
  for (int i = 0; i < 8; i++) bytes += char(header.size() >> (8 * i) & 255);
  const std::clock_t start = std::clock();  // this processor's time, whatever else runs
  CHECK(parse_safetensors(bytes + header, "f").tensors.size() == 40000);
  CHECK(std::clock() - start < 5 * CLOCKS_PER_SEC);  // it was 39
}

TEST_CASE("checkpoint: a large file that cannot be right is refused before it is read") {
  const Folder folder;
  save_all(folder.path);
  const std::string path = folder.file("model.safetensors");
  const auto bytes_read = [] {  // by this process, with read(); 0 where the system does not count them
    std::ifstream file("/proc/self/io");
    for (std::string word; file >> word;)
      if (word == "rchar:") return file >> word, std::stod(word);
    return 0.0;
  };
  const auto refused = [&](const std::string& begin) {
    write_file(path, begin);
    fs::resize_file(path, size_t(2) << 30);  // no byte of it on the disk
    const double before = bytes_read();
    const std::string message = error_of([&] { load_model(folder.path); });
    CHECK(bytes_read() - before < 1e6);
    return message;
  };
  CHECK(holds(refused(""), "not valid JSON"));
  CHECK(holds(refused(std::string("\xff\xff\xff\x7f\0\0\0\0{}", 10)), "a header of 2147483647 bytes in a file of"));
  const auto file_of = [](const std::string& header) {
    std::string bytes;
    for (int i = 0; i < 8; i++) bytes += char(header.size() >> (8 * i) & 255);
    return bytes + header;
  };
  CHECK(holds(refused(file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})")),
              "the tensors take 8 bytes, the file holds 2147483"));
  // All is well, but for the model's shapes.
  std::string header = R"({"transformer.wte.weight":{"dtype":"F16","shape":[)";
  const size_t data = ((size_t(2) << 30) - 8 - 128);
  header += std::to_string(data / 2) + R"(],"data_offsets":[0,)" + std::to_string(data) + "]}}";
  header.resize(128, ' ');
  CHECK(holds(refused(file_of(header)), "too few tensors for the"));
}

TEST_CASE("checkpoint: a folder without hashes loads, with one line, and none where it is quiet") {
  const Folder folder;
  save_all(folder.path);
  const std::string path = folder.file("model.safetensors");
  CHECK(notes_of([&] { load_model(folder.path), load_optimizer(folder.path); }) == "");
  for (const char* name : {"model", "optimizer"}) {  // as before there were hashes
    const std::string file_path = folder.file(name) + ".safetensors";
    SafeTensors file = read_safetensors(file_path);
    Metadata metadata = file.metadata;
    for (const char* key : {"hash", "model", "text", "text_sha256"}) metadata.erase(key);
    std::vector<TensorData> tensors;
    for (const Tensor& tensor : file.tensors)
      tensors.push_back({tensor.name, tensor.shape, file.bytes.data() + tensor.begin, tensor.dtype});
    write_file(file_path, format_safetensors(tensors, metadata));
  }
  const std::string said = notes_of([&] {
    CHECK(load_model(folder.path).weights == weights(parameter_count(origin_config()), 0));
    load_model(folder.path), load_optimizer(folder.path), load_bigram(folder.path, 4);
    CHECK(read_medusa(folder.path, origin_config(), folder.path).sizes.heads == 2);
  });
  CHECK(said.find("note: the weights carry no hash, so that damage could pass unseen: " + folder.path + ": ") == 0);
  CHECK(said.find("\nnote: the heads were trained with another model than this one") != std::string::npos);
  CHECK(std::count(said.begin(), said.end(), '\n') == 2);
  CHECK(model_hash(folder.path) == hash_of(read_file(path)));
  notes() = Notes();
  notes().quiet = true;
  CHECK(captured(2, [&] { load_model(folder.path); }) == "");
  notes() = Notes();
}

TEST_CASE("checkpoint: counts and heads name their text and model, and what does not fit the model is said") {
  const Folder folder;
  const std::string dir = folder.file("m"), other = folder.file("other");
  const Config config = origin_config();
  save_all(dir), save_all(other, 3, {{"text", "two.txt"}, {"text_sha256", kOtherText}});
  const auto load = [&] {
    load_bigram(dir, 4), load_ngram(dir, 2, 4);
    read_medusa(dir, config, dir);
    const std::string state = dir + "/optimizer.safetensors";
    check_origin(read_header(state).metadata, "the state was saved", state, dir, "going on");
  };
  CHECK(notes_of(load) == "");
  CHECK(read_header(dir + "/medusa.safetensors").metadata.at("model") == model_hash(dir));
  CHECK(read_header(dir + "/ngram.safetensors").metadata.at("text_sha256") == kOneText);
  CHECK(read_header(dir + "/model.safetensors").metadata.at("format") == "pt");

  // Trained further on the same text: heads and state are of another model, counts are not.
  save_model(dir, config, kAbc, weights(parameter_count(config), 2).data(), one_text());
  const std::string further = notes_of(load);
  CHECK(holds(further, "note: the heads were trained with another model than this one: " + dir +
                           "/medusa.safetensors: drafts are right less often; train again: train_drafter --medusa " +
                           dir));
  CHECK(holds(further, "note: the state was saved with another model than this one: " + dir + "/optimizer.safeten"));
  CHECK(!holds(further, "counts"));

  // Files of a model of another text, beside this one, or named by their own folder.
  for (const char* name : {"/bigram.safetensors", "/ngram.safetensors"})
    fs::copy_file(other + name, dir + name, fs::copy_options::overwrite_existing);
  const std::string mixed = notes_of(load);
  for (const char* name : {"/bigram.safetensors", "/ngram.safetensors"})
    CHECK(holds(mixed, "note: the counts were made on another text, two.txt, than the model, one.txt: " + dir + name));
  CHECK(
      holds(notes_of([&] { read_medusa(other, config, dir); }), "trained with another model than this one: " + other));
  CHECK(notes_of([&] { read_medusa(other, config); }) == "");
}

TEST_CASE("checkpoint: a text is named without its folder, through a link too; what came through a pipe has no name") {
  const Folder folder;
  write_file(folder.file("t.txt"), "abc");
  fs::create_symlink("t.txt", folder.file("link"));
  for (const char* name : {"t.txt", "link"})
    CHECK(text_origin(folder.file(name), kOneText) == Metadata{{"text", "t.txt"}, {"text_sha256", kOneText}});
  CHECK(text_origin("/dev/null", kOneText) == Metadata{{"text_sha256", kOneText}});
}
