// files/tables.h: files of counts: the bigram's table of the training text, and the n-grams of that or of other texts.
//
// Both are beside the model. train_gpt writes them of the training text, nanospec index the n-grams of any, with the
// texts' names and hashes. Nothing in a file is trusted: a reader throws std::runtime_error with one line if it is
// missing, broken, or of another vocabulary or tokenizer.
#pragma once

#include <climits>

#include "draft.h"
#include "drafters/ngram.h"
#include "files/model_path.h"
#include "files/origin.h"

namespace nanospec {

// Counts of another text than the model's are used, with a note.
inline void check_counts(const SafeTensors& file, const std::string& path, const std::string& dir) {
  check_origin(file.metadata, "the counts were made", path, dir,
               "drafts are right less often; repeat the train_gpt command that made the model, with --resume");
}

// N-grams that nanospec index counted name the tokenizer: with another one they would be of other tokens, so they are
// refused. Whoever counts a text of their own knows that it is not the model's, and gets no note.
inline void check_ngrams(const SafeTensors& file, const std::string& path, const std::string& model) {
  const std::string tokenizer = said_by(file.metadata, "tokenizer");
  if (tokenizer.empty()) return check_counts(file, path, model);
  if (tokenizer != tokenizer_hash(model))
    refuse("the n-grams were counted with a different tokenizer than the model's", path,
           "build/nanospec index --model " + printable(model, 300) + " --text FILE --overwrite counts them anew");
}

// ---------------------------------------------------------------------------------------------------------------
// The bigram's table

constexpr int kBigramMostTokens = 8192;  // the table is (V, V) floats

inline std::string bigram_path(const std::string& dir) { return dir + "/bigram.safetensors"; }

// Throws runtime_error where no table is so large.
inline void check_bigram_size(int vocab, const std::string& where) {
  if (vocab > kBigramMostTokens)
    refuse(filled("a text of {} different characters, and a bigram table holds at most {}", vocab, kBigramMostTokens),
           where, "leave out or replace the rarest");
}

// Counts the training tokens and writes DIR/bigram.safetensors. metadata: of the text (origin.h). Throws runtime_error
// when it cannot be written or the vocabulary is larger than kBigramMostTokens.
inline void save_bigram(const std::string& dir, const std::vector<int>& tokens, int vocab,
                        const Metadata& metadata = {}) {
  check_bigram_size(vocab, bigram_path(dir));
  const std::vector<float> table = bigram_table(tokens, vocab);
  write_safetensors(bigram_path(dir), {{"log_probabilities", {vocab, vocab}, table.data()}}, metadata);
}

// Reads DIR/bigram.safetensors. Throws runtime_error when it is missing, or not a (V, V) table of finite numbers.
inline std::unique_ptr<Bigram> load_bigram(const std::string& dir, int vocab) {
  const std::string path = bigram_path(dir);
  const SafeTensors file =
      read_made(path, "drafter bigram has no table", "train with train_gpt, which writes it, or use --drafter none");
  std::vector<float> table = read_tensor(file, "log_probabilities", {vocab, vocab}, path);
  check_counts(file, path, dir);
  return std::make_unique<Bigram>(std::move(table), vocab);
}

// ---------------------------------------------------------------------------------------------------------------
// The n-grams: the four arrays of the trie as they are

inline std::vector<TensorData> ngram_tensors(const NgramTrie& trie) {
  const auto list = [](const char* name, const std::vector<int32_t>& numbers) {
    return TensorData{name, {int64_t(numbers.size())}, numbers.data(), "I32"};
  };
  return {list("token", trie.token), list("count", trie.count), list("first", trie.first), list("suffix", trie.suffix)};
}

// What makes the n-grams of a model, for the first time or anew.
inline std::string ngrams_maker(const std::string& model, bool anew = true) {
  if (is_gguf(model))
    return filled("build/nanospec index --model {} --text FILE{} makes them", printable(model, 300),
                  anew ? " --overwrite" : "");
  return filled("repeat the train_gpt command that made the model, with --resume: it writes them {}",
                anew ? "anew" : "at once");
}

// Throws std::runtime_error unless the arrays are a trie over tokens in [0, vocab), so that it is safe to walk. It does
// not check that the counts are those of a text.
inline NgramTrie parse_ngrams(const SafeTensors& file, int vocab, const std::string& where,
                              const std::string& advice = ngrams_maker("")) {
  const auto require = [&](bool holds, const char* wrong) {
    if (!holds) refuse(std::string("not the n-grams of this model's text: ") + wrong, where, advice);
  };
  const auto list = [&](const char* name) { return read_integers(file, name, where); };
  NgramTrie trie = {list("token"), list("count"), list("first"), list("suffix"), {}};
  const auto& [token, count, first, suffix, level] = trie;
  require(token.size() < size_t(INT_MAX) && count.size() == token.size() && !suffix.empty() &&
              suffix.size() <= token.size() && first.size() == suffix.size() + 1,
          "arrays of lengths that do not fit each other");
  const int n = int(token.size()), inner = int(suffix.size());
  require(first[0] == 1 && first[inner] == n, "nodes without a parent");
  for (int i = 0; i < inner; i++) require(first[i] > i && first[i] <= first[i + 1], "children out of order");
  for (int i = 1; i < n; i++)
    require(token[i] >= 0 && token[i] < vocab && count[i] >= 1, "a token or count out of range");
  for (int i = 0; i < inner; i++)
    for (int c = first[i] + 1; c < first[i + 1]; c++) require(token[c - 1] < token[c], "tokens out of order");

  trie.level = {0, 1};
  while (level.back() < inner) trie.level.push_back(first[level.back()]);
  require(level.back() == inner, "a last level that begins too early");
  trie.level.push_back(n);
  require(suffix[0] == 0, "a root with a suffix");
  for (int k = 1; k < trie.orders(); k++)  // each in the level above: so a walk along suffixes ends at the root
    for (int i = level[k]; i < level[k + 1]; i++)
      require(suffix[i] >= level[k - 1] && suffix[i] < level[k] && (k == 1 || token[suffix[i]] == token[i]),
              "a suffix that is none");
  return trie;
}

inline std::string ngram_path(const std::string& model) { return file_of_model(model, "ngram.safetensors"); }

// Counts the first kNgramText training tokens and writes DIR/ngram.safetensors. metadata: of the text (origin.h).
// Throws runtime_error when it cannot be written.
inline void save_ngrams(const std::string& dir, const std::vector<int>& tokens, int vocab,
                        const Metadata& metadata = {}, const Told& told = {}) {
  const NgramTrie trie = count_ngrams(tokens, vocab, kNgramOrders, kNgramText, told);
  write_safetensors(ngram_path(dir), ngram_tensors(trie), metadata);
}

// How many bytes counting needs, and the text and its tokens (takes_tokens): two numbers for each token while they are
// sorted.
inline double takes_counts(double text_bytes) {
  const double counted = std::min(0.9 * text_bytes, double(kNgramText));
  return std::max(takes_tokens(text_bytes), sizeof(int) * (text_bytes + 2 * counted));
}

// Reads the n-grams beside a model. Throws runtime_error when they are missing, broken, of another vocabulary or
// tokenizer, or none has `order` tokens.
inline std::unique_ptr<Drafter> load_ngram(const std::string& model, int order, int vocab) {
  const std::string path = ngram_path(model);
  const SafeTensors file = read_made(path, "drafter ngram has no counts", ngrams_maker(model, false));
  check_ngrams(file, path, model);
  NgramTrie trie = parse_ngrams(file, vocab, path, ngrams_maker(model));
  if (order > trie.orders())
    refuse(filled("drafter ngram:{} needs order {}, the counts end at order {}", order, order, trie.orders()), path,
           filled("choose ngram:{} or less", trie.orders()));
  return std::make_unique<Ngram>(interpolated(std::move(trie), order, vocab));
}

}  // namespace nanospec
