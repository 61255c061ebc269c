// files/tables.h: files of counts: the bigram's table of the training text, and the n-grams of that or of other texts.
//
// Both are beside the model. train_gpt writes them of the training text, nanospec index the n-grams of any, with the
// texts' names and hashes. Nothing in a file is trusted: a reader throws std::runtime_error with one line if it is
// missing, broken, or of another vocabulary or tokenizer.
#pragma once

#include "draft.h"
#include "drafters/ngram.h"
#include "files/model_path.h"
#include "files/origin.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The bigram's table

constexpr int kBigramMostTokens = 8192;  // the table is (V, V) floats

std::string bigram_path(const std::string& dir);

// Throws runtime_error where no table is so large.
void check_bigram_size(int vocab, const std::string& where);

// Counts the training tokens and writes DIR/bigram.safetensors. metadata: of the text (origin.h). Throws runtime_error
// when it cannot be written or the vocabulary is larger than kBigramMostTokens.
void save_bigram(const std::string& dir, const std::vector<int>& tokens, int vocab, const Metadata& metadata = {});

// Reads DIR/bigram.safetensors. Throws runtime_error when it is missing, or not a (V, V) table of finite numbers.
std::unique_ptr<Bigram> load_bigram(const std::string& dir, int vocab);

// ---------------------------------------------------------------------------------------------------------------
// The n-grams: the four arrays of the trie as they are

std::vector<TensorData> ngram_tensors(const NgramTrie& trie);
std::string format_ngrams(const NgramTrie& trie);

// What makes the n-grams of a model.
std::string ngrams_maker(const std::string& model);

// Throws std::runtime_error unless the arrays are a trie over tokens in [0, vocab), so that it is safe to walk. It does
// not check that the counts are those of a text.
NgramTrie parse_ngrams(const SafeTensors& file, int vocab, const std::string& where,
                       const std::string& advice = ngrams_maker(""));

std::string ngram_path(const std::string& model);

// Counts the first kNgramText training tokens and writes DIR/ngram.safetensors. metadata: of the text (origin.h).
// Throws runtime_error when it cannot be written.
void save_ngrams(const std::string& dir, const std::vector<int>& tokens, int vocab, const Metadata& metadata = {},
                 const Told& told = {});

// How many bytes counting needs, and the text and its tokens (takes_tokens): two numbers for each token while they are
// sorted.
double takes_counts(double text_bytes);

// Reads the n-grams beside a model. Throws runtime_error when they are missing, broken, of another vocabulary or
// tokenizer, or none has `order` tokens.
std::unique_ptr<LogitsDrafter> load_ngram(const std::string& model, int order, int vocab);

}  // namespace nanospec
