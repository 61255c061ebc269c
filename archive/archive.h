// archive/archive.h: an archive: a text as the surprises that it holds for a model.
//
// The ring archive/ writes texts by a model's chances: coder.h, pieces.h, and this file. It includes the core and
// files/. It hooks into the loop twice: known.h is a drafter that knows the text, and a pick that asks the coder stands
// in for the sampling's (Job::pick of forest/forest.h). So the walk down the tree is `match`, and the loop, the window
// and its slides are those of generation. The commands are compress.cpp and verify.cpp of commands/.
//
// An archive holds one or more blocks: parts of the text that are coded apart, each from an empty context. A block's
// first token has the chance of any symbol, 1 / (V + 1), unless the model has a token that begins every text. Before a
// token may stand runs of raw bytes: the symbol `escape`, the run's length less 1 as one of 256, its bytes as one of
// 256 each. Raw bytes behind the last token need no such head: how many bytes the block has is known.
//
// The file, little-endian: ArchiveHead; an ArchiveBlock each; their coded bytes, one block after another; XXH64 of all
// that. In order: the file; a block as it is written, and as it is read.
#pragma once

#include <array>

#include "archive/coder.h"
#include "archive/pieces.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The file

constexpr uint32_t kArchiveVersion = 1;
constexpr size_t kMostArchived = size_t(1) << 30;  // bytes of a text

struct ArchiveHead {
  char magic[4] = {'N', 'S', 'Z', '\n'};
  uint32_t version = kArchiveVersion;
  uint64_t model = 0;                       // hash_of_model, as a number
  std::array<uint64_t, 4> sha256 = {};      // of the text
  uint32_t context = 0, blocks = 0;         // tokens of the window; how many blocks
  char dtype[4] = {}, cache_dtype[4] = {};  // the flags' words: "auto", "fp32", "bf16", "f16", ...
};
struct ArchiveBlock {
  uint32_t tokens, bytes, coded;  // bytes: of the text
};
static_assert(sizeof(ArchiveHead) == 64 && sizeof(ArchiveBlock) == 12, "no gaps");

struct Archive {
  ArchiveHead head;
  std::vector<ArchiveBlock> blocks;
  std::vector<std::string> coded;  // (blocks)
};
std::string format_archive(const Archive& archive);
// Throws runtime_error unless these are the bytes of an archive, whole and unchanged; path: its name in errors.
Archive parse_archive(const std::string& bytes, const std::string& path);

// A hash of all of a model that texts depend on, number types apart: its configuration, tokenizer and weights, or its
// GGUF file. Throws runtime_error.
std::string hash_of_model(const std::string& model);
// The number that a hash of io.h stands for.
uint64_t number_of(const std::string& hash);
// The SHA-256 of a text, as a head has it.
std::array<uint64_t, 4> digest_of(const std::string& text);

// ---------------------------------------------------------------------------------------------------------------
// Blocks

// Codes a block, as the loop asks it for the tokens one by one, from the second on.
class BlockWriter {
 public:
  // begin: the token that begins every text; -1: none.
  BlockWriter(const Tokenizer& tokenizer, int vocab, int begin, std::string_view text);

  // All, `begin` first; none where there are raw bytes alone.
  const std::vector<int>& tokens() const { return tokens_; }
  size_t raw() const { return raw_; }  // bytes that no token says
  // The next token, which is coded by the logits (V); null, where none were before: each symbol has the same chance.
  int pick(const float* logits);
  std::string finish();  // call it once, when all tokens have been picked

 private:
  std::vector<TextPiece> pieces_;
  std::vector<int> tokens_;
  size_t at_ = 0, raw_ = 0;
  Counts counts_;
  Encoder encoder_;
};

// Decodes one. Whatever the coded bytes are, it ends, and its text has at most the bytes that the block says.
class BlockReader {
 public:
  BlockReader(const Tokenizer& tokenizer, int vocab, int begin, const ArchiveBlock& block, std::string_view coded);

  const std::vector<int>& prompt() const { return prompt_; }  // what the loop begins with
  int left() const { return left_; }                          // tokens to come
  int pick(const float* logits);                              // as BlockWriter's
  bool damaged() const { return text_.size() > block_.bytes || decoder_.spent(); }
  std::string finish();  // the text

 private:
  const Tokenizer& tokenizer_;
  const ArchiveBlock block_;
  std::string text_;
  std::vector<int> prompt_;
  int left_;
  Counts counts_;
  Decoder decoder_;
};

}  // namespace nanospec
