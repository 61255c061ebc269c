// tests/commands/test_inspect.cpp: what nanospec inspect says of GGUF files and folders, those that load and those that
// do not.
#include <doctest/doctest.h>

#include "commands/commands.h"
#include "files/tables.h"
#include "tests/command_line.h"
#include "tests/error_of.h"
#include "tests/gguf_file.h"

using namespace nanospec;

namespace {

std::string inspect(Words words) {
  words.insert(words.begin(), "inspect");
  std::vector<char*> argv = arguments(words);
  return captured(1, [&] { CHECK(inspect_command(int(argv.size()), argv.data()) == 0); });
}

Json inspected(const Folder& folder, const std::string& path) {
  inspect({path, "--json", folder.file("i.json")});
  return Json::parse(read_file(folder.file("i.json")));
}

Json gguf_inspected(Draft draft, const std::function<void(Draft&)>& change = {}) {
  const Folder folder;
  if (change) change(draft);
  return inspected(folder, folder.file("m.gguf", draft.bytes()));
}

// A folder as train_gpt leaves it.
void save_folder(const std::string& dir, float first = 0) {
  Config config;
  config.n_layer = 2, config.n_head = config.n_kv_head = 2, config.n_embd = 4, config.block_size = 6;
  config.vocab_size = 3;
  std::vector<float> weights(parameter_count(config), first);
  const Metadata text = {{"text", "one.txt"}, {"text_sha256", std::string(64, '1')}};
  save_model(dir, config, {{"a", "b", "\n"}}, weights.data(), text);
  save_bigram(dir, {0, 1, 2}, 3, text);
}

// The state of a file of the folder.
std::string state_of(const Json& said, const std::string& name) {
  for (const Json& file : said["files"])
    if (file["name"] == name) return file["state"];
  return "not there";
}

}  // namespace

TEST_CASE("inspect: a GGUF file that loads: sizes, tokenizer, tensors, metadata") {
  const Folder folder;
  const std::string path = folder.file("m.gguf", llama_with_tokenizer().bytes());
  const Json said = inspected(folder, path);
  CHECK(said["loads"] == true);
  CHECK(said["obstacles"].empty());
  CHECK(said["format"] == "GGUF 3");
  CHECK(said["bytes"] == file_bytes(path));
  const Json& model = said["model"];
  CHECK(model["architecture"] == "llama");
  for (const auto& entry : std::map<std::string, int>{{"n_layer", 2},
                                                      {"n_embd", 4},
                                                      {"n_head", 2},
                                                      {"n_kv_head", 1},
                                                      {"head_dim", 2},
                                                      {"n_inner", 6},
                                                      {"context", 16},
                                                      {"vocab_size", 1001},
                                                      {"rope_theta", 10000}}) {
    const std::string& key = entry.first;
    CAPTURE(key);
    CHECK(model[key] == entry.second);
  }
  CHECK(model["positions"] == "rotary");
  CHECK(model["norm"] == "RMSNorm");
  CHECK(model["head"] == "tied: the embedding");
  // Embedding; the last norm; for each layer two norms, q, k, v, the output, and the MLP's three.
  const int matrices = 1001 * 4 + 2 * (16 + 8 + 8 + 16 + 3 * 24), vectors = 4 + 2 * 8;
  CHECK(said["sizes"]["parameters"] == matrices + vectors);
  CHECK(said["sizes"]["weight_bytes_fp32"] == 4 * (matrices + vectors));
  CHECK(said["sizes"]["weight_bytes_bf16"] == 2 * matrices + 4 * vectors);
  CHECK(said["sizes"]["cache_bytes_fp32"] == 2 * 2 * 1 * 2 * 4);  // keys and values, layers, heads, channels, bytes
  CHECK(said["sizes"]["cache_bytes_bf16"] == 2 * 2 * 1 * 2 * 2);
  CHECK(said["tokenizer"]["kind"] == "byte-level BPE (gpt2)");
  CHECK(said["tokenizer"]["pre"] == "smollm");
  CHECK(said["tokenizer"]["tokens"] == 1001);
  CHECK(said["tokenizer"]["bos_token_id"] == 1);
  CHECK(said["tokenizer"]["add_bos_token"] == "nothing");
  CHECK(said["tokenizer"]["special"].size() == 5);
  CHECK(said["tokenizer"]["special"][1]["text"] == "<|im_start|>");
  CHECK(said["tokenizer"]["chat_template"] == "none");
  CHECK(said["tensors"].size() == 20);
  CHECK(said["tensors"][0]["shape"] == std::vector<int>{1001, 4});
  CHECK(said["types"][0]["bytes"] == 4 * (matrices + vectors));
  CHECK(said["metadata"]["llama.block_count"] == "2");
  CHECK(said["files"].empty());

  const std::string text = inspect({"--model", path});
  CHECK(contains(text, path + ": GGUF 3, "));
  CHECK(contains(text, ". nanospec loads it.\n"));
  CHECK(contains(text, "\n  layers                2\n"));
  CHECK(contains(text, "blk.N.ffn_up.weight            2  (6, 4)     F32"));
  CHECK(!contains(text, "blk.1."));
  CHECK(!contains(text, "llama.block_count"));
  CHECK(contains(inspect({path, "--tensors"}), "blk.1.ffn_up.weight"));
  CHECK(contains(inspect({path, "--metadata"}), "\n  llama.block_count = 2\n"));
}

TEST_CASE("inspect: a GGUF file that does not load is described as far as it goes, with what is in the way") {
  const auto obstacles = [](const Json& said) { return said["obstacles"].dump(); };
  const Json other = gguf_inspected(llama_with_tokenizer(), [](Draft& d) {
    d.set(words("general.architecture", "mamba"));
    d.set(whole("mamba.block_count", 2));
    d.set(whole("mamba.embedding_length", 4));
  });
  CHECK(other["loads"] == false);
  CHECK(contains(obstacles(other), "a model of the architecture \\\"mamba\\\", expected"));
  CHECK(other["model"]["n_layer"] == "2");
  CHECK(other["sizes"]["parameters"].get<int>() > 4000);
  CHECK(other["tokenizer"]["tokens"] == 1001);

  const Json type = gguf_inspected(llama_with_tokenizer(), [](Draft& d) {
    d.tensor("blk.0.attn_q.weight").type = 10;  // Q2_K
    d.tensor("blk.1.attn_q.weight").type = 10;
  });
  CHECK(obstacles(type) == "[\"tensors of types that are not read: Q2_K\"]");
  CHECK(type["model"]["n_layer"] == 2);
  CHECK(type["types"][1]["type"] == "Q2_K");
  CHECK(type["types"][1]["tensors"] == 2);
  CHECK(type["types"][1]["bytes"] == 128);

  const auto of_kind = [](const char* kind) {
    return gguf_inspected(llama_with_tokenizer(), [&](Draft& d) { d.set(words("tokenizer.ggml.model", kind)); });
  };
  const Json words_alone = of_kind("bert"), no_scores = of_kind("llama");
  CHECK(contains(obstacles(words_alone), "not byte-level BPE (\\\"gpt2\\\") or SentencePiece's (\\\"llama\\\")"));
  CHECK(words_alone["tokenizer"]["kind"] == "bert");
  CHECK(words_alone["model"]["n_layer"] == 2);
  CHECK(contains(obstacles(no_scores), "the metadata lack tokenizer.ggml.scores"));
  CHECK(obstacles(gguf_inspected(llama_gguf(), [](Draft& d) { d.remove("tokenizer.ggml.tokens"); })) ==
        "[\"there is no tokenizer\"]");
  CHECK(contains(obstacles(gguf_inspected(llama_with_tokenizer(), [](Draft& d) { d.remove("blk.1.ffn_norm.weight"); })),
                 "tensor blk.1.ffn_norm.weight is missing"));
  CHECK(gguf_inspected(llama_with_tokenizer(), [](Draft& d) {
          d.set(key_of("tokenizer.ggml.add_bos_token", GgufKind::flag, std::string(1, '\1')));
        })["tokenizer"]["add_bos_token"] == "1 <|im_start|>");
  const auto begin_of_llama3 = [](const std::string& flag) {
    return gguf_inspected(llama_with_tokenizer(), [&](Draft& d) {
      d.set(words("tokenizer.ggml.pre", "llama-bpe"));
      if (!flag.empty()) d.set(key_of("tokenizer.ggml.add_bos_token", GgufKind::flag, flag));
    })["tokenizer"]["add_bos_token"];
  };
  CHECK(begin_of_llama3("") == "1 <|im_start|>");  // as llama.cpp does where a file does not say
  CHECK(begin_of_llama3(std::string(1, '\0')) == "nothing");

  const Json odd = gguf_inspected(llama_with_tokenizer(), [](Draft& d) {
    d.set(list("tokenizer.ggml.token_type", uint32_t(GgufKind::i32), 1, raw(int32_t(7))));
  });
  CHECK(contains(obstacles(odd), "token_type"));
  CHECK(odd["tokenizer"]["tokens"] == 1001);
  const Folder folder;
  for (const std::string architecture : {"gpt2", "qwen2", "qwen3"})
    CHECK(inspected(folder, filled("tests/files/llama_{}.gguf", architecture))["model"]["architecture"] ==
          architecture);
}

TEST_CASE("inspect: a GGUF file with SentencePiece's BPE loads, and puts a space and a token before a text") {
  const Json pieces = gguf_inspected(llama_with_pieces(), [](Draft&) {});
  CHECK(pieces["obstacles"].empty());
  CHECK(pieces["tokenizer"]["kind"] == "SentencePiece's BPE (llama)");
  CHECK(pieces["tokenizer"]["add_bos_token"] == "1 <s>");  // where the file does not say

  const Folder folder;
  Draft other = llama_with_pieces();
  const std::string one = folder.file("one.gguf", other.bytes()), text = "To be\n\n or not";
  const Tokenizer tokenizer = load_tokenizer(one);
  CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
  CHECK(tokenizer.decode(tokenizer.encode(text)[0])[0] == ' ');
  CHECK(tokenizer.begin == 1);
  other.set(key_of("tokenizer.ggml.add_space_prefix", GgufKind::flag, std::string(1, '\0')));
  const std::string two = folder.file("two.gguf", other.bytes());
  CHECK(tokenizer_hash(one) != tokenizer_hash(two));
  CHECK(load_tokenizer(two).decode(load_tokenizer(two).encode(text)) == text);
}

TEST_CASE("inspect: chat templates by kind, tensors by kind") {
  const std::pair<const char*, const char*> templates[] = {
      {"", "none"},
      {"{{'<|im_start|>' + role}}<|im_end|>", "ChatML"},
      {"'[INST] ' {{x}} [/INST]", "Mistral"},
      {"'[INST]' {{x}} [/INST]", "not recognized"},
      {"[INST] <<SYS>>", "Llama 2"},
      {"<|start_header_id|><|eot_id|>Cutting Knowledge Date: December 2023", "Llama 3.1"},
      {"<|start_header_id|><|eot_id|>", "Llama 3"},
      {"{{x}}", "not recognized"}};
  for (const auto& [source, kind] : templates) {
    const auto set = [text = source](Draft& d) { d.set(words("tokenizer.chat_template", text)); };
    CHECK(gguf_inspected(llama_with_tokenizer(), set)["tokenizer"]["chat_template"] == kind);
  }
  Draft odd = llama_with_tokenizer();
  odd.tensors.push_back({"blk.0.attn_q.bias", 28, {4}, std::string(32, '\0')});  // F64, which is not read
  const Folder elsewhere;
  CHECK(
      contains(inspect({elsewhere.file("m.gguf", odd.bytes())}), "tensor blk.0.attn_q.bias is not expected (biases)"));
  Draft draft = llama_with_tokenizer();
  draft.tensor("blk.1.attn_q.weight").type = 10;  // Q2_K
  const Folder folder;
  const std::string text = inspect({folder.file("m.gguf", draft.bytes())});
  CHECK(contains(text, "blk.N.attn_q.weight            1  (4, 4)     F32 "));
  CHECK(contains(text, "blk.N.attn_q.weight            1  (4, 4)     Q2_K"));
  CHECK(contains(text, "blk.N.attn_k.weight            2  (2, 4)     F32 "));
}

TEST_CASE("inspect: a folder: what each file is, and whether it is whole and of this model") {
  const Folder folder;
  const std::string dir = folder.file("m");
  save_folder(dir);
  save_ngrams(dir, {0, 1, 2}, 3, {{"tokenizer", tokenizer_hash(dir)}, {"text", "mine.txt"}});
  write_file(dir + "/notes", "mine");
  Json said = inspected(folder, dir);
  CHECK(said["loads"] == true);
  CHECK(said["format"] == "folder");
  CHECK(said["model"]["architecture"] == "gpt2");
  CHECK(said["model"]["positions"] == "learned");
  CHECK(said["tokenizer"]["kind"] == "characters");
  CHECK(said["tokenizer"]["characters"] == "ab\n");
  CHECK(said["sizes"]["parameters"] == 3 * 4 + 6 * 4 + 2 * (4 + 48 + 16 + 4 + 64 + 64) + 4);
  CHECK(state_of(said, "model.safetensors") == "hash fits; of this text: one.txt");
  CHECK(state_of(said, "bigram.safetensors") == "hash fits; of this text: one.txt");
  CHECK(state_of(said, "ngram.safetensors") == "hash fits; of this tokenizer: mine.txt");
  CHECK(state_of(said, "config.json") == "");
  CHECK(contains(inspect({dir}), "another's"));
  for (const char* name :
       {"compare.json", "compare.svg", "train.json", "medusa.json", "bigram.safetensors.unfinished.7",
        "hydra.safetensors.unfinished.7", "hydra-optimizer.safetensors.unfinished.7"})
    write_file(dir + "/" + name, "");
  for (const char* name : {"/hidden", "/examples", "/passages"}) std::filesystem::create_directory(dir + name);
  said = inspected(folder, dir);
  const auto what = [&](const std::string& name) {
    for (const Json& file : said["files"])
      if (file["name"] == name) return file["what"].get<std::string>();
    return std::string("not there");
  };
  CHECK(what("compare.json") == "figures of a comparison");
  CHECK(what("hidden/") == "states of texts, for training heads");
  CHECK(what("bigram.safetensors.unfinished.7") == "counts, for the drafter bigram, unfinished");
  for (const Json& file : said["files"]) CHECK((file["what"] == "another's") == (file["name"] == "notes"));

  save_bigram(dir, {0, 1, 2}, 3, {{"text_sha256", std::string(64, '2')}, {"model", "xxh64:0"}});
  std::string bytes = read_file(dir + "/ngram.safetensors");
  bytes.back() = char(bytes.back() ^ 1);
  write_file(dir + "/ngram.safetensors", bytes);
  said = inspected(folder, dir);
  CHECK(state_of(said, "bigram.safetensors") == "hash fits; of another text; of another model");
  CHECK(contains(state_of(said, "ngram.safetensors"), "the file is damaged"));
  CHECK(said["loads"] == true);

  write_file(dir + "/tokenizer.json", "{}");
  said = inspected(folder, dir);
  CHECK(said["loads"] == false);
  CHECK(said["model"]["n_layer"] == 2);
  // What cannot be read is said of that file alone.
  save_folder(dir);
  save_bigram(dir, {0, 1, 2}, 3, {{"text", "one.txt"}, {"model", "xxh64:0"}});
  save_ngrams(dir, {0, 1, 2}, 3, {{"tokenizer", "xxh64:0"}, {"text", "mine.txt"}});
  for (const char* name : {"model.safetensors", "tokenizer.json"}) {
    std::filesystem::remove(dir + "/" + name);
    std::filesystem::create_directory(dir + "/" + name);
  }
  said = inspected(folder, dir);
  REQUIRE(said["obstacles"].size() == 2);
  CHECK(said["obstacles"][0] == "cannot read the file: " + dir + "/model.safetensors (Is a directory)");
  CHECK(state_of(said, "bigram.safetensors") == "hash fits: one.txt");
  CHECK(state_of(said, "ngram.safetensors") == "hash fits: mine.txt");
  std::filesystem::remove(dir + "/model.safetensors");
  CHECK(inspected(folder, dir)["obstacles"].size() == 2);
}

TEST_CASE("inspect: what it refuses") {
  const Folder folder;
  const auto refused = [](const Words& words) { return line_of<std::runtime_error>([&] { inspect(words); }); };
  CHECK(contains(refused({folder.path}), "cannot read the file: " + folder.path + "/config.json"));
  CHECK(contains(refused({folder.file("none.gguf")}), "cannot read the file"));
  CHECK(contains(refused({folder.file("x", "text")}), "not a GGUF file: it begins with \"text\""));
  CHECK(contains(BAD_COMMAND_LINE(inspect({})), "add --model FILE|DIR"));
  CHECK(contains(BAD_COMMAND_LINE(inspect({""})), "an empty name"));
  const std::string model = folder.file("m.gguf", llama_with_tokenizer().bytes());
  CHECK(contains(BAD_COMMAND_LINE(inspect({model, "--json", model})), "would write over"));
}
