// archive/archive.cpp: what archive.h declares, in the same order.
#include "archive/archive.h"

#include "files/model_path.h"
#include "files/origin.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The file

template <class T>
static std::string_view bytes_in(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string format_archive(const Archive& archive) {
  std::string bytes(bytes_in(archive.head));
  for (const ArchiveBlock& block : archive.blocks) bytes += bytes_in(block);
  for (const std::string& coded : archive.coded) bytes += coded;
  return bytes += bytes_in(number_of(hash_of(bytes)));
}

Archive parse_archive(const std::string& bytes, const std::string& path) {
  const std::string where = printable(path, 300), again = "make it again with nanospec compress";
  Archive archive;
  ArchiveHead& head = archive.head;
  const size_t least = sizeof head + sizeof(uint64_t);
  if (bytes.size() < least || bytes.compare(0, sizeof head.magic, head.magic, sizeof head.magic) != 0)
    refuse("this is no archive of nanospec, or its beginning alone", where, "give a file that nanospec compress wrote");
  head = load<ArchiveHead>(bytes.data());
  if (head.version != kArchiveVersion)
    refuse(filled("the archive has version {}, and this program reads version {}", head.version, kArchiveVersion),
           where, "use the program that wrote it");
  const std::string_view rest = std::string_view(bytes).substr(0, bytes.size() - sizeof(uint64_t));
  if (load<uint64_t>(rest.data() + rest.size()) != number_of(hash_of({rest})))
    refuse("the archive is damaged, or cut: its hash does not fit", where, again);
  size_t at = sizeof head, coded = 0, text = 0;
  bool fits = (rest.size() - at) / sizeof(ArchiveBlock) >= head.blocks && head.blocks > 0 && head.context <= 1u << 20;
  for (uint32_t i = 0; fits && i < head.blocks; i++, at += sizeof(ArchiveBlock)) {
    archive.blocks.push_back(load<ArchiveBlock>(bytes.data() + at));
    const ArchiveBlock& block = archive.blocks.back();
    coded += block.coded;
    text += block.bytes;
    fits = block.tokens <= block.bytes && text <= kMostArchived;
  }
  if (!fits || rest.size() - at != coded) refuse("the archive contradicts itself", where, again);
  for (const ArchiveBlock& block : archive.blocks) {
    archive.coded.push_back(bytes.substr(at, block.coded));
    at += block.coded;
  }
  return archive;
}

uint64_t number_of(const std::string& hash) {
  return std::stoull(hash.substr(std::string(kHashPrefix).size()), nullptr, 16);
}

std::array<uint64_t, 4> digest_of(const std::string& text) {
  const std::string digits = sha256(text);
  std::array<uint64_t, 4> numbers;
  for (size_t i = 0; i < 4; i++) numbers[i] = std::stoull(digits.substr(16 * i, 16), nullptr, 16);
  return numbers;
}

std::string hash_of_model(const std::string& model) {
  if (is_gguf(model)) return weights_hash(model);
  std::string all = read_regular(model + "/config.json") + tokenizer_hash(model);
  std::set<std::string> parts;  // the weights, in one file or in several
  for (const auto& entry : std::filesystem::directory_iterator(model))
    if (entry.path().extension() == ".safetensors" && entry.path().filename().string().compare(0, 5, "model") == 0)
      parts.insert(entry.path().string());
  for (const std::string& part : parts) all += hash_of(read_regular(part));
  return hash_of(all);
}

// ---------------------------------------------------------------------------------------------------------------
// Blocks

constexpr size_t kMostRun = 256;  // raw bytes of one escape

BlockWriter::BlockWriter(const Tokenizer& tokenizer, int vocab, int begin, std::string_view text)
    : pieces_(pieces_of(tokenizer, text)), counts_(vocab) {
  std::copy_if(pieces_.begin(), pieces_.end(), std::back_inserter(tokens_), [](TextPiece piece) { return piece >= 0; });
  raw_ = pieces_.size() - tokens_.size();
  if (tokens_.empty()) return;
  if (begin >= 0) tokens_.insert(tokens_.begin(), begin);
  else pick(nullptr);
}

int BlockWriter::pick(const float* logits) {
  if (logits) counts_.of(logits);
  while (pieces_[at_] < 0) {
    size_t end = at_ + 1;
    while (end - at_ < kMostRun && pieces_[end] < 0) end++;
    encoder_.put(counts_.share(counts_.escape()));
    encoder_.put({end - at_ - 1, 1, kMostRun});
    for (; at_ < end; at_++) encoder_.put({uint8_t(byte_of(pieces_[at_])), 1, 256});
  }
  encoder_.put(counts_.share(pieces_[at_]));
  return pieces_[at_++];
}

std::string BlockWriter::finish() {
  for (; at_ < pieces_.size(); at_++) encoder_.put({uint8_t(byte_of(pieces_[at_])), 1, 256});
  return encoder_.finish();
}

BlockReader::BlockReader(const Tokenizer& tokenizer, int vocab, int begin, const ArchiveBlock& block,
                         std::string_view coded)
    : tokenizer_(tokenizer), block_(block), left_(int(block.tokens)), counts_(vocab), decoder_(coded) {
  if (left_ > 0) prompt_ = {begin >= 0 ? begin : pick(nullptr)};
}

int BlockReader::pick(const float* logits) {
  if (logits) counts_.of(logits);
  for (;;) {
    const int symbol = counts_.symbol_at(decoder_.place(counts_.total()));
    decoder_.take(counts_.share(symbol));
    if (symbol != counts_.escape()) {
      left_--;
      if (symbol < tokenizer_.vocab_size()) text_ += tokenizer_.decode(symbol);
      return symbol;
    }
    if (damaged()) return 0;
    for (uint64_t n = decoder_.even(kMostRun) + 1; n > 0; n--) text_ += char(decoder_.even(256));
  }
}

std::string BlockReader::finish() {
  while (text_.size() < block_.bytes && !damaged()) text_ += char(decoder_.even(256));
  return text_;
}

}  // namespace nanospec
