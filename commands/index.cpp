// commands/index.cpp: counts the n-grams of texts in a model's tokens, for the drafter ngram:N.
//
// It reads the model's tokenizer and none of its weights. The counts are written beside the model (ngram_path in
// files/tables.h), where `--drafter ngram:4` looks for them. They change how often drafts are right, never the text.

#include "commands/commands.h"
#include "files/folder.h"
#include "files/said.h"
#include "files/tables.h"

namespace nanospec {
namespace {

constexpr int kIndexOrders = 4;  // six take three times the bytes and draft no better: docs/results.md

struct Indexing {
  std::string model;
  std::vector<std::string> texts;
  std::string said_file;
  int order = kIndexOrders;
  bool overwrite = false, quiet = false;

  Tokens tokens;
  double bytes = 0;    // of the texts
  size_t counted = 0;  // texts
  Metadata metadata;   // names and hashes of the texts, and the tokenizer's
};

Command describe(Indexing& i) {
  return {
      "nanospec index",
      "Counts which tokens follow which in your texts, in a model's tokens, and writes the counts next to the model. "
      "The drafter ngram:N then guesses with these counts. It guesses best where the model writes texts similar to "
      "yours. The text that the model writes stays the same.",
      "nanospec index --model models/SmolLM2-135M-Instruct.Q4_1.gguf --text docs/*.md README.md\n"
      "nanospec generate --model models/SmolLM2-135M-Instruct.Q4_1.gguf --prompt \"# Usage\" --drafter suffix+ngram:4\n"
      "nanospec index --model runs/small --text data/*shakespeare.txt --order 6 --overwrite\n",
      {heading("Texts"),
       {"--model", "FILE|DIR", &i.model, "a GGUF file, or the folder that train_gpt wrote", required()},
       {"--text", "FILE...", &i.texts, "the texts to count, one after another"},
       {"--data", "FILE", &i.said_file,
        "what the model itself said, by nanospec distill: but for the texts that are held out"},
       {"--order", "N", &i.order, "count n-grams of up to N tokens, for ngram:1 to ngram:N", from(1, kNgramOrders)},
       heading("Output"),
       {"--overwrite", "", &i.overwrite, "replace counts that are there already"},
       {"--quiet", "", &i.quiet, "no progress, no summary"}}};
}

// Throws runtime_error where nothing may be written at `path`, or a text would be lost by it.
void check_place(const Indexing& i, const std::vector<std::string>& texts, const std::string& path) {
  if (std::filesystem::exists(path) && !i.overwrite)
    refuse("the model has counts already", printable(path, 300), "--overwrite replaces them");
  for (const std::string& text : texts)
    if (same_file(text, path)) refuse("the counts would be written over a text", printable(path, 300), "move the text");
  check_writable(path);
}

// Reads a text, and says in the metadata that it was counted.
std::string text_of(Indexing& i, const std::string& path) {
  const std::string text = read_file(path);
  const Metadata origin = text_origin(path, sha256(text));
  for (const char* key : {"text", "text_sha256"}) {
    std::string& all = i.metadata[key];
    all += (all.empty() ? "" : ", ") + said_by(origin, key);
  }
  return text;
}

// Appends a text's tokens.
void add_text(Indexing& i, const Tokenizer& tokenizer, const std::string& path, Preparing& preparing) {
  constexpr size_t kTurn = 1 << 16;  // tokens
  const std::string text = text_of(i, path);
  preparing.step("encoding " + printable(path));
  size_t done = 0;
  const auto put = [&](int id) {
    i.tokens.push_back(id);
    done += tokenizer.decode(id).size();
    if (i.tokens.size() % kTurn == 0) preparing.told()(double(done) / double(text.size()));
  };
  tokenizer.encode_to(put, text, printable(path, 300));
  i.bytes += double(text.size());
  i.counted++;
}

// Appends what the model wrote, each text behind the last tokens that it follows.
void add_said(Indexing& i, int vocab, Preparing& preparing) {
  preparing.step("reading " + printable(i.said_file));
  each_said(text_of(i, i.said_file), i.said_file, vocab, i.metadata.at("tokenizer"), [&](const SaidText& said) {
    if (said.held_out || !said.dropped.empty()) return;
    const size_t before = std::min(said.begin, size_t(i.order - 1));
    i.tokens.insert(i.tokens.end(), said.tokens.begin() + long(said.begin - before), said.tokens.end());
    i.bytes += double(said.text.size());
    i.counted++;
  });
}

std::string summary(const Indexing& i, const NgramTrie& trie, const std::string& path) {
  std::string text =
      filled("{} in {} of {}: {} different n-grams of 1 to {}.\n", count(i.tokens.size(), "token"), bytes_text(i.bytes),
             count(i.counted, "text"), thousands(trie.token.size() - 1), count(trie.orders(), "token"));
  if (i.tokens.size() > kNgramText) text += "Only the first " + count(kNgramText, "token") + " are counted.\n";
  return text +
         filled("Written to {}, {}: for --drafter ngram:{}.\n", path, bytes_text(file_bytes(path)), trie.orders());
}

}  // namespace

int index_command(int argc, char** argv) {
  Indexing i;
  const Given given = parse_flags(describe(i), argc, argv);
  if (given.help) return 0;
  std::vector<std::string> files = i.texts;
  if (!i.said_file.empty()) files.push_back(i.said_file);
  if (files.empty())
    refuse_usage("there is nothing to count: nanospec index: add --text FILE..., or --data FILE by nanospec distill");
  const std::string path = ngram_path(i.model);
  std::optional<LockedFolder> folder;  // a GGUF file's folder is not ours to lock
  if (!is_gguf(i.model)) folder.emplace(i.model, "wait for its end");
  i.metadata["tokenizer"] = tokenizer_hash(i.model);  // or it says which file is missing
  check_place(i, files, path);

  double bytes = 0;
  for (const std::string& file : files) bytes += file_bytes(file);
  check_memory(files.front(), bytes, takes_counts(bytes));
  Preparing preparing(bytes, i.quiet);
  int vocab = 0;
  {
    const Tokenizer tokenizer = load_tokenizer(i.model);  // gone before the counting, which needs memory too
    for (const std::string& text : i.texts) add_text(i, tokenizer, text, preparing);
    vocab = tokenizer.vocab_size();
    if (!i.said_file.empty()) add_said(i, vocab, preparing);
  }
  if (i.tokens.empty()) refuse("there is no text", printable(files.front(), 300), "give a file with text in it");
  preparing.step("counting n-grams");
  const NgramTrie trie = count_ngrams(i.tokens, vocab, i.order, kNgramText, preparing.told());

  watch_interrupts();  // a file that is being written is finished; before, Ctrl-C leaves all as it was
  write_safetensors(path, ngram_tensors(trie), i.metadata);
  preparing.clear();
  if (!i.quiet) print_out(summary(i, trie, path));
  return 0;
}

}  // namespace nanospec
