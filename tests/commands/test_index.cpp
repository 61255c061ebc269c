// tests/commands/test_index.cpp: the counts that nanospec index writes: beside a GGUF file and in a folder, equal to a
// plain recount, read back as a drafter, and refused with another tokenizer.
#include <doctest/doctest.h>

#include <map>

#include "commands/commands.h"
#include "files/checkpoint.h"
#include "files/drafters.h"
#include "files/tables.h"
#include "tests/command_line.h"
#include "tests/error_of.h"
#include "tests/gguf_file.h"

using namespace nanospec;

namespace {

std::string index(Words words) {
  words.insert(words.begin(), "index");
  std::vector<char*> argv = arguments(words);
  std::string out;
  captured(2, [&] { out = captured(1, [&] { CHECK(index_command(int(argv.size()), argv.data()) == 0); }); });
  return out;
}
std::string refusal(const Words& words) {
  return line_of<std::runtime_error>([&] { index(words); });
}

using Ngram = std::vector<int>;

// How often each n-gram of up to `orders` tokens occurs.
std::map<Ngram, int> recount(const std::vector<int>& tokens, int orders) {
  std::map<Ngram, int> counts;
  for (size_t i = 0; i < tokens.size(); i++)
    for (size_t k = 1; k <= size_t(orders) && i + k <= tokens.size(); k++)
      counts[Ngram(tokens.begin() + long(i), tokens.begin() + long(i + k))]++;
  return counts;
}

// The same out of a trie.
std::map<Ngram, int> counts_of(const NgramTrie& trie) {
  std::map<Ngram, int> counts;
  std::vector<Ngram> ngram(trie.token.size());
  const int inner = int(trie.suffix.size());
  for (int i = 0; i < inner; i++)
    for (int child = trie.first[size_t(i)]; child < trie.first[size_t(i) + 1]; child++) {
      ngram[size_t(child)] = ngram[size_t(i)];
      ngram[size_t(child)].push_back(trie.token[size_t(child)]);
      counts[ngram[size_t(child)]] = trie.count[size_t(child)];
    }
  return counts;
}

const std::string kOne = "The king of the north is the king of winter, and 12 ravens sing of the king.\n",
                  kOther = "na\xc3\xafve ravens, ravens of the north\n";

}  // namespace

TEST_CASE("index: beside a GGUF file, in its model's tokens, as a plain recount counts them") {
  const Folder folder;
  const std::string model = folder.file("m.gguf", llama_with_tokenizer().bytes());
  const std::string one = folder.file("one.txt", kOne), other = folder.file("other.txt", kOther);
  const std::string path = folder.file("m.ngram.safetensors");
  CHECK(ngram_path(model) == path);

  const std::string said = index({"--model", model, "--text", one, other});
  CHECK(contains(said, "of 2 texts: "));
  CHECK(contains(said, "n-grams of 1 to 4 tokens"));
  CHECK(contains(said, path));

  const Tokenizer tokenizer = load_tokenizer(model);
  std::vector<int> tokens = tokenizer.encode(kOne);
  const std::vector<int> more = tokenizer.encode(kOther);
  tokens.insert(tokens.end(), more.begin(), more.end());
  const SafeTensors file = read_safetensors(path);
  CHECK(counts_of(parse_ngrams(file, 1001, path)) == recount(tokens, 4));
  CHECK(file.metadata.at("text") == "one.txt, other.txt");
  CHECK(file.metadata.at("text_sha256") == sha256(kOne) + ", " + sha256(kOther));
  CHECK(file.metadata.at("tokenizer") == tokenizer_hash(model));

  CHECK(load_drafter("ngram:4", model, 1001)->name == "ngram:4");
  CHECK(load_drafter("suffix+ngram:2", model, 1001)->name == "suffix+ngram:2");
  CHECK(contains(error_of([&] { load_drafter("ngram:5", model, 1001); }), "the counts end at order 4"));
  CHECK(contains(error_of([&] { load_drafter("bigram", model, 1001); }),
                 "ngram:2, which is the same, after nanospec index"));

  CHECK(
      contains(refusal({"--model", model, "--text", one}), "the model has counts already: " + path + ": --overwrite"));
  CHECK(counts_of(parse_ngrams(read_safetensors(path), 1001, path)) == recount(tokens, 4));
  index({"--model", model, "--text", other, "--order", "2", "--overwrite", "--quiet"});
  CHECK(counts_of(parse_ngrams(read_safetensors(path), 1001, path)) == recount(more, 2));
}

TEST_CASE("index: what the model said, each text behind the tokens before it, but not what is held out") {
  const Folder folder;
  const std::string model = folder.file("m.gguf", llama_with_tokenizer().bytes()), said = folder.file("said.jsonl");
  const auto count = [&](const std::string& lines) {
    write_file(said, lines);
    index({"--model", model, "--data", said, "--order", "3", "--overwrite", "--quiet"});
  };
  count(
      "{\"begin\":3,\"text\":\"a\",\"tokens\":[10,11,12,13,14],\"held_out\":false}\n{\"index\":1,\"dropped\":\"loops\"}"
      "\n"
      "{\"begin\":1,\"text\":\"c\",\"tokens\":[4,4,4,4],\"held_out\":true}\n{\"begin\":1,\"text\":\"b\",\"tokens\":[14,"
      "13,12],\"held_"
      "out\":false}\n");
  const SafeTensors file = read_safetensors(ngram_path(model));
  CHECK(counts_of(parse_ngrams(file, 1001, "")) == recount({11, 12, 13, 14, 14, 13, 12}, 3));
  CHECK(file.metadata.at("text") == "said.jsonl");
  for (const char* line : {"{}", "{\"begin\":1,\"tokens\":[1,1001]}", "{\"begin\":9,\"tokens\":[1]}", "[1]",
                           "{\"begin\":0,\"tokens\":[-1]}", "{\"begin\":0,\"tokens\":3}",
                           R"({"begin":0,"text":"","tokens":[9223372036854775809]})",   // below 0 as an int64,
                           R"({"begin":0,"text":"","tokens":[18446744069414584321]})",  // and 1 as an int
                           R"({"begin":18446744073709551615,"text":"","tokens":[1]})", R"({"dropped":1})"})
    CHECK(contains(line_of<std::runtime_error>([&] { count(std::string(line) + "\n"); }),
                   "no text of this model: " + said + ", line 1: nanospec distill writes such a file"));

  // Numbers of another tokenizer are not this model's, be they as small.
  const auto made_by = [](const std::string& tokenizer) {
    return R"({"begin":1,"text":"c","tokens":[4,5,6],"tokenizer":)" + tokenizer + "}\n";
  };
  count(made_by(Json(tokenizer_hash(model)).dump()));
  CHECK(counts_of(parse_ngrams(read_safetensors(ngram_path(model)), 1001, "")) == recount({4, 5, 6}, 3));
  for (const char* other : {"\"xxh64:0123456789abcdef\"", "7"})
    CHECK(contains(line_of<std::runtime_error>([&] { count("\n" + made_by(other)); }),
                   "a text of a model with another tokenizer: " + said + ", line 2: let nanospec distill"));
}

TEST_CASE("index: counts of another tokenizer, or damaged ones, are refused with what makes them anew") {
  const Folder folder;
  const std::string model = folder.file("m.gguf", llama_with_tokenizer().bytes()), text = folder.file("t.txt", kOne);
  const std::string path = ngram_path(model), again = "build/nanospec index --model " + model + " --text FILE";
  CHECK(contains(error_of([&] { load_drafter("ngram:4", model, 1001); }),
                 "drafter ngram has no counts: " + path + ": " + again));
  index({"--model", model, "--text", text});

  const auto complaint = [&](const auto& change) {
    Draft draft = llama_with_tokenizer();
    change(draft);
    write_file(model, draft.bytes());
    return error_of([&] { load_drafter("ngram:4", model, 1001); });
  };
  CHECK(complaint([](Draft&) {}) == "");
  CHECK(complaint([](Draft& d) { d.set(words("general.name", "another name")); }) == "");
  CHECK(contains(
      complaint([](Draft& d) { d.set(words("tokenizer.ggml.pre", "gpt-2")); }),
      "the n-grams were counted with a different tokenizer than the model's: " + path + ": " + again + " --overwrite"));
  std::string bytes = read_file(path);
  bytes.back() = char(bytes.back() ^ 1);
  write_file(path, bytes);
  CHECK(contains(complaint([](Draft&) {}), "damaged"));
  CHECK(contains(complaint([](Draft&) {}), again + " --overwrite"));
}

TEST_CASE("index: in a folder of train_gpt's, where its counts stand until they are to be replaced") {
  const Folder folder;
  const std::string text = folder.file("t.txt", "abcabcaab"), foreign = folder.file("f.txt", "abcx");
  Config config;
  config.n_layer = 1, config.n_head = config.n_kv_head = 1, config.n_embd = 2, config.block_size = 4;
  const Tokenizer tokenizer = {{"a", "b", "c"}};
  config.vocab_size = 3;
  const std::vector<float> weights(parameter_count(config), 0.5f);
  const std::string model = folder.file("m");
  save_model(model, config, tokenizer, weights.data(), {{"text", "old"}, {"text_sha256", std::string(64, '1')}});
  save_ngrams(model, {0, 0, 0}, 3);
  const std::string before = read_file(ngram_path(model));
  CHECK(contains(refusal({"--model", model, "--text", text}), "the model has counts already"));
  CHECK(
      contains(refusal({"--model", model, "--text", foreign, "--overwrite"}), "'x' (U+0078) is not in the vocabulary"));
  CHECK(read_file(ngram_path(model)) == before);
  index({"--model", model, "--text", text, "--overwrite"});
  CHECK(counts_of(parse_ngrams(read_safetensors(ngram_path(model)), 3, "x")) ==
        recount({0, 1, 2, 0, 1, 2, 0, 0, 1}, 4));
  notes() = Notes();
  CHECK(captured(2, [&] { load_drafter("ngram:4", model, 3); }) == "");  // another text than the model's, on purpose
}

TEST_CASE("index: what it refuses") {
  const Folder folder;
  const std::string model = folder.file("m.gguf", llama_with_tokenizer().bytes()), text = folder.file("t.txt", kOne);
  CHECK(contains(refusal({"--model", model, "--text", folder.file("empty", "")}), "there is no text"));
  CHECK(contains(refusal({"--model", model, "--text", folder.file("none")}), "cannot read the file"));
  CHECK(contains(refusal({"--model", folder.file("none.gguf"), "--text", text}), "cannot read the file"));
  CHECK(contains(refusal({"--model", folder.file("none"), "--text", text}),
                 "cannot read the file: " + folder.file("none/tokenizer.json")));
  CHECK(contains(BAD_COMMAND_LINE(index({"--model", model})), "add --text FILE..."));
  CHECK(contains(BAD_COMMAND_LINE(index({"--model", model, "--text", text, "--order", "7"})), "from 1 to 6"));
  Draft other = llama_with_tokenizer();
  other.set(words("tokenizer.ggml.model", "bert"));
  CHECK(contains(refusal({"--model", folder.file("o.gguf", other.bytes()), "--text", text}), "not byte-level BPE"));
  const std::string own = folder.file("p.ngram.safetensors", kOne);
  const std::string other_model = folder.file("p.gguf", llama_with_tokenizer().bytes());
  CHECK(contains(refusal({"--model", other_model, "--text", own, "--overwrite"}), "would be written over a text"));
  CHECK(read_file(own) == kOne);
  CHECK(folder.files() == Words{"empty", "m.gguf", "o.gguf", "p.gguf", "p.ngram.safetensors", "t.txt"});
}
