// files/bpe.cpp: see bpe.h. In order: GPT-2's characters for bytes; the pre-splits; making a tokenizer; special tokens,
// bad bytes and NFC; one text's encoding; the stream.
#include "files/bpe.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <uninorm.h>

#include <queue>

namespace nanospec {

// SentencePiece's name of a byte: "<0x0A>".
static std::string byte_name(int byte) {
  char name[8];
  snprintf(name, sizeof name, "<0x%02X>", unsigned(byte));
  return name;
}
int byte_of(const std::string& name) {
  const int byte = name.size() == 6 ? int(strtol(name.c_str() + 3, nullptr, 16)) : -1;
  return byte >= 0 && byte_name(byte) == name ? byte : -1;
}

namespace {

// ---------------------------------------------------------------------------------------------------------------
// GPT-2's characters for bytes: a byte that can be seen is the code point of its number; the others, in order, are
// U+0100, U+0101, ... So a token's name has no space and no control character.

constexpr uint32_t kAlphabet = 256 + 68;
constexpr std::array<int, kAlphabet> kByteOf = [] {  // by code point; -1: no byte's
  std::array<int, kAlphabet> byte_of = {};
  for (int& byte : byte_of) byte = -1;
  size_t next = 256;
  for (size_t b = 0; b < 256; b++) {
    const bool seen = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    byte_of[seen ? b : next++] = int(b);
  }
  return byte_of;
}();

// The bytes that a normal token's name stands for. Returns false if it has another character, or none.
bool bytes_of(const std::string& name, int type, std::string& bytes) {
  bytes.clear();
  for (size_t at = 0; at < name.size();) {
    const int n = code_point_bytes(name, at);
    const uint32_t c = n ? code_point(name, at, n) : kAlphabet;
    if (c >= kAlphabet || kByteOf[c] < 0) return false;
    bytes += char(kByteOf[c]);
    at += size_t(n);
  }
  return type == kByte ? bytes.size() == 1 : !bytes.empty();
}

// As bytes_of, of SentencePiece's names.
bool piece_of(const std::string& name, int type, std::string& bytes) {
  const int byte = type == kByte ? byte_of(name) : 0;
  bytes = type == kByte ? std::string(1, char(byte)) : replaced(name, kSpaceMark, " ");  // a space for each U+2581
  return byte >= 0 && !bytes.empty();
}

// Bytes that hardly occur in texts: a vocabulary may lack them. They are control characters, and the first bytes of
// planes without characters; some are in no UTF-8 at all.
bool rare(int byte) {
  const bool blank = byte == '\t' || byte == '\n' || byte == '\r';
  return (byte < 0x20 && !blank) || byte == 0x7F || byte == 0xC0 || byte == 0xC1 || (byte >= 0xF1 && byte != 0xF3);
}

// ---------------------------------------------------------------------------------------------------------------
// The pre-splits

// A pattern is written as tokenizer.json has it. The last space before a word belongs to the word, and each place of a
// text has a match. smollm takes each digit alone: Hugging Face cuts at digits first, and then the parts between them;
// so a digit ends a run of spaces, as the end of the text does. So it is with `default` and signs: it stands for the
// four patterns, one after the other, with which llama.cpp reads files of that name.
constexpr const char *kLlama3 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                                R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
                     *kDefault = R"([\p{P}$+<=>^~|]+|[0-9]{3}|(?:(?![0-9]{3})\p{N})+| ?\p{L}+|)"
                                 R"( ?[^\s\p{L}\p{N}\p{P}$+<=>^~|]+|\s+(?![^\s\p{P}$+<=>^~|])|\s+)";
struct PreSplit {
  const char *name, *regex;
};
constexpr PreSplit kPreSplits[] = {
    {"smollm", R"(\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+)"},
    {"gpt-2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {"qwen2", R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
              R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"llama-bpe", kLlama3},
    {"llama3", kLlama3},
    {"llama-v3", kLlama3},
    {"default", kDefault},
};

std::string message_of_pcre2(int code) {
  char message[120];
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof message);
  return message;
}

std::shared_ptr<const pcre2_code> compile_split(const std::string& pre, const std::string& where) {
  const PreSplit* const found = row_of(kPreSplits, &PreSplit::name, pre);
  if (!found)
    refuse("the pre-split \"" + printable(pre) + "\" is not known", where,
           "give a model whose pre-split is one of " + joined(column(kPreSplits, &PreSplit::name)));
  // What `\s` is for Hugging Face, within brackets: Unicode's White_Space. PCRE2's has U+180E too.
  const std::string kSpaces =
      "\\t-\\r\\x20\\x85\\xA0\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";
  const std::pair<const char*, std::string> forms[] = {
      {"[^\\s", "[^" + kSpaces}, {"\\s", "[" + kSpaces + "]"}, {"\\S", "[^" + kSpaces + "]"}};
  std::string pattern = found->regex;  // for PCRE2
  for (const auto& [form, ours] : forms) pattern = replaced(pattern, form, ours);
  int error;
  PCRE2_SIZE at;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.c_str()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &at, nullptr);
  if (!code) refuse("PCRE2 does not take the pattern (" + message_of_pcre2(error) + ")", where, "install libpcre2-8-0");
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where that fails, matching is slower
  return {code, pcre2_code_free};
}

// ---------------------------------------------------------------------------------------------------------------
// Making one

std::string token_name(int id, const std::string& name) { return filled("token {}, \"{}\",", id, printable(name)); }

}  // namespace

std::string gpt2_name(int byte) {
  const auto c = std::find(kByteOf.begin(), kByteOf.end(), byte) - kByteOf.begin();  // below U+0800
  if (c < 0x80) return std::string(1, char(c));
  return {char(0xC0 | c >> 6), char(0x80 | (c & 0x3F))};
}

const char* split_by(const Json& regex) {
  const PreSplit* const found = row_of(kPreSplits, &PreSplit::regex, regex);
  return found ? found->name : nullptr;
}

bool is_llama3(const std::string& pre) {
  const PreSplit* const found = row_of(kPreSplits, &PreSplit::name, pre);
  return found && found->regex == kLlama3;
}

Bpe::Bpe(const BpeParts& parts, const std::string& where) : settings(parts) {
  const Ids ids = read_tokens(parts, where);
  for (int byte = 0; byte < 256; byte++) {
    const auto found = ids.find(settings.sentencepiece ? byte_name(byte) : gpt2_name(byte));
    byte_id_[size_t(byte)] = found == ids.end() ? -1 : found->second;
    if (found == ids.end() && (settings.sentencepiece || !rare(byte)))
      refuse("the vocabulary lacks the byte '" + printable(std::string(1, char(byte))) + "'", where);
  }
  for (const auto& [name, id] : ids) {  // no text of SentencePiece's has a name with a space, or that of a byte
    const bool found = !settings.sentencepiece || (parts.types[size_t(id)] != kByte && name.find(' ') == name.npos);
    if ((settings.sentencepiece || settings.ignore_merges) && found && type(id) == TokenType::normal)
      whole_.emplace(bytes_[size_t(id)], id);
  }
  if (settings.sentencepiece && parts.scores.empty() && parts.merges.empty()) refuse("no merges and no scores", where);
  if (parts.scores.empty()) read_merges(parts, ids, where);
  else merge_by_scores(parts, where);
  if (parts.begin < -1 || parts.begin >= vocab_size())
    refuse(filled("the id {} of a special token is not below {}", parts.begin, vocab_size()), where);
  if (!settings.sentencepiece) split_ = compile_split(settings.pre, where);
}

Bpe::Ids Bpe::read_tokens(const BpeParts& parts, const std::string& where) {
  Ids id_of;
  const size_t all = parts.tokens.size();
  if (all == 0 || all > size_t(INT32_MAX)) refuse("no vocabulary", where);
  if ((settings.sentencepiece || !parts.types.empty()) && parts.types.size() != all)
    refuse(filled("{} token types for {} tokens", parts.types.size(), all), where);
  bytes_.resize(all);
  types_.resize(all, TokenType::normal);
  for (size_t i = 0; i < all; i++) {
    const int id = int(i), type = parts.types.empty() ? 1 : parts.types[i];
    const std::string& name = parts.tokens[i];
    if (type < 1 || type > kByte || (type == kUnknown && !settings.sentencepiece))
      refuse(filled("{} has the type {}", token_name(id, name), type), where, "give a model with byte-level BPE");
    types_[i] = TokenType(type == kByte ? 1 : type == kUnknown ? 3 : type);
    if (types_[i] == TokenType::unused) continue;
    if (!id_of.emplace(name, id).second) refuse(token_name(id, name) + " is there twice", where);
    if (types_[i] == TokenType::normal) {
      if (settings.sentencepiece ? !piece_of(name, type, bytes_[i]) : !bytes_of(name, type, bytes_[i]))
        refuse(token_name(id, name) + (settings.sentencepiece ? " is no byte and no piece of a text"
                                                              : " is not written in GPT-2's characters for bytes"),
               where,
               "give a model with " + std::string(settings.sentencepiece ? "SentencePiece's BPE" : "byte-level BPE"));
    } else {
      if (name.empty()) refuse(token_name(id, name) + " is special, but has no text", where);
      for (size_t at = 0, n; at < name.size(); at += n)
        if (n = size_t(code_point_bytes(name, at)); n == 0)
          refuse(token_name(id, name) + " is special, but its text is not UTF-8", where);
      bytes_[i] = name;
      specials_[uint8_t(name[0])].push_back(id);
    }
  }
  for (std::vector<int>& list : specials_)
    std::stable_sort(list.begin(), list.end(),
                     [&](int a, int b) { return bytes_[size_t(a)].size() > bytes_[size_t(b)].size(); });
  return id_of;
}

void Bpe::read_merges(const BpeParts& parts, const Ids& ids, const std::string& where) {
  merges_.reserve(parts.merges.size());
  for (const std::string& merge : parts.merges) {
    const uint32_t rank = uint32_t(merges_.size());
    const auto wrong = [&](const std::string& what) {
      refuse(filled("merge {}, \"{}\", {}", rank, printable(merge), what), where);
    };
    const auto id_of = [&](const std::string& name) {
      const auto found = ids.find(name);
      if (found == ids.end()) wrong("names \"" + printable(name) + "\", which is no token");
      return found->second;
    };
    const size_t space = merge.find(' ');
    if (space == std::string::npos || merge.find(' ', space + 1) != std::string::npos) wrong("is not two tokens");
    const std::string left = merge.substr(0, space), right = merge.substr(space + 1);
    const int result = id_of(left + right);
    if (!merges_.emplace(pair(id_of(left), id_of(right)), Merge{rank, result}).second) wrong("is there twice");
  }
}

// Any two tokens merge whose texts make a third one. Its rank is its place among the different scores.
void Bpe::merge_by_scores(const BpeParts& parts, const std::string& where) {
  constexpr size_t kLongest = 1024;  // bytes: each cut of a token is tried
  if (!settings.sentencepiece || parts.scores.size() != parts.tokens.size())
    refuse(filled("{} scores for {} tokens", parts.scores.size(), parts.tokens.size()), where);
  const std::set<double, std::greater<double>> sorted(parts.scores.begin(), parts.scores.end());
  std::map<double, uint32_t> rank_of;
  for (double score : sorted) rank_of.emplace(score, uint32_t(rank_of.size()));
  for (const auto& [text, id] : whole_) {
    if (text.size() > kLongest)
      refuse(filled("{} has more than {} bytes", token_name(id, std::string(text)), kLongest), where);
    for (size_t cut = 1; cut < text.size(); cut++) {
      const auto left = whole_.find(text.substr(0, cut)), right = whole_.find(text.substr(cut));
      if (left == whole_.end() || right == whole_.end()) continue;
      merges_.emplace(pair(left->second, right->second), Merge{rank_of[parts.scores[size_t(id)]], id});
    }
  }
}

Tokenizer bpe_tokenizer(const BpeParts& parts, const std::string& where) {
  const auto bpe = std::make_shared<const Bpe>(parts, where);
  return {bpe->symbols(), bpe, parts.puts_space(), parts.begin};
}

// ---------------------------------------------------------------------------------------------------------------
// Special tokens, bad bytes, and NFC

// The longest special token at text[at]; -1: there is none.
int Bpe::special_at(std::string_view text, size_t at) const {
  for (int id : specials_[uint8_t(text[at])])
    if (text.compare(at, bytes_[size_t(id)].size(), bytes_[size_t(id)]) == 0) return id;
  return -1;
}
int Bpe::special(const std::string& text) const {
  const int longest = text.empty() ? -1 : special_at(text, 0);
  return longest >= 0 && bytes_[size_t(longest)] == text ? longest : -1;
}

// Puts U+FFFD for each run of bad bytes, into `repaired`. Returns how many there were; where there are none, nothing is
// copied.
static size_t repair(std::string_view text, std::string& repaired) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(text.data());
  size_t runs = 0, done = 0;
  while (const uint8_t* const bad = u8_check(bytes + done, text.size() - done)) {
    const size_t good = size_t(bad - bytes) - done;
    const bool begins = good > 0 || runs == 0;  // a run
    repaired.append(text, done, good).append(begins ? "\xEF\xBF\xBD" : "");
    runs += begins;
    done += good + 1;
  }
  if (runs) repaired.append(text, done);
  return runs;
}

static std::string in_nfc(const std::string& text) {
  size_t size;
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  const std::unique_ptr<uint8_t, decltype(&free)> normal(u8_normalize(UNINORM_NFC, bytes, text.size(), nullptr, &size),
                                                         free);
  if (!normal) throw std::bad_alloc();
  return std::string(reinterpret_cast<const char*>(normal.get()), size);
}

// Puts a valid text into `composed`, in NFC. Returns how many runs changed; where none did, `composed` is of no use.
// Only characters from U+0300 on, whose first byte is 0xCC or more, ever change, or change one before them. An ASCII
// character takes no part in what comes before it: so each run begins with one.
static size_t compose(std::string_view text, std::string& composed) {
  const auto byte = [&](size_t i) { return uint8_t(text[i]); };
  size_t changed = 0, done = 0;
  for (size_t at = 0; at < text.size(); at++) {
    if (byte(at) < 0xCC) continue;
    size_t begin = at;
    while (begin > done && byte(begin) >= 0x80) begin--;
    while (at < text.size() && byte(at) >= 0x80) at++;
    const std::string run(text.substr(begin, at - begin)), normal = in_nfc(run);
    changed += run != normal;
    composed.append(text, done, begin - done).append(normal);
    done = at;
  }
  composed.append(text, done);
  return changed;
}

// ---------------------------------------------------------------------------------------------------------------
// Encoding

// The encoding of one text, with its memory.
class BpeRun {
 public:
  BpeRun(const Bpe& bpe, const PutId& put, BpeCounts& counts)
      : bpe_(bpe), put_(put), counts_(counts), match_(pcre2_match_data_create(1, nullptr), pcre2_match_data_free) {
    if (!match_) throw std::bad_alloc();
  }

  // Text without special tokens.
  void plain(std::string_view text, Begins begins) {
    if (bpe_.settings.sentencepiece && !text.empty()) return piece(spaced(text, begins));
    std::string composed;
    const size_t changed = bpe_.settings.nfc ? compose(text, composed) : 0;
    counts_.composed += changed;
    if (changed) text = composed;
    for (size_t at = 0; at < text.size();) {
      const int found = pcre2_match(bpe_.split_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                    PCRE2_NO_UTF_CHECK, match_.get(), nullptr);
      const size_t end = found > 0 ? pcre2_get_ovector_pointer(match_.get())[1] : at;
      if (end <= at)
        refuse("PCRE2 stopped (" + message_of_pcre2(found) + ")", filled("byte {} of a text", at + 1),
               "give another text");
      piece(text.substr(at, end - at));
      at = end;
    }
  }

 private:
  static constexpr size_t kLongestCached = 32, kMostCached = size_t(1) << 16;

  std::string spaced(std::string_view part, Begins begins) const {
    const SpaceFirst where = bpe_.settings.space_first;
    const std::string text = replaced(std::string(part), kSpaceMark, " ");
    if (!bpe_.settings.puts_space() || begins == Begins::nothing) return text;
    const bool missing = text[0] != ' ' && (where == SpaceFirst::if_missing || begins == Begins::text);
    return where == SpaceFirst::always || missing ? " " + text : text;
  }

  void piece(std::string_view bytes) {
    counts_.pieces++;
    key_.assign(bytes);
    const auto known = cache_.find(key_);
    counts_.cached += known != cache_.end();
    if (known == cache_.end()) merge(bytes);
    for (int id : known == cache_.end() ? merged_ : known->second) put_(id);
    if (known != cache_.end() || bytes.size() > kLongestCached) return;
    if (cache_.size() == kMostCached) cache_.clear();
    cache_.emplace(key_, merged_);
  }

  // Makes one piece the tokens in merged_. They are a list, linked both ways; the pairs of neighbours wait in a queue
  // by rank, then by place. A merge makes two new pairs at most, so that n bytes take O(n log n), however long the
  // piece.
  void merge(std::string_view bytes) {
    if (bytes.size() >= kEnd) refuse("a piece of more than 4 GB without a space", "a text", "give another text");
    const auto whole = bpe_.whole_.find(bytes);
    if (bpe_.settings.ignore_merges && whole != bpe_.whole_.end()) return merged_.assign(1, whole->second);
    nodes_.clear();
    for (size_t at = 0, n = 1; at < bytes.size(); at += n) {
      if (bpe_.settings.sentencepiece) n = size_t(code_point_bytes(bytes, at));
      const auto character = bpe_.settings.sentencepiece ? bpe_.whole_.find(bytes.substr(at, n)) : bpe_.whole_.end();
      if (character != bpe_.whole_.end()) add(character->second);
      else
        for (char c : bytes.substr(at, n)) add(bpe_.byte_id_[uint8_t(c)]);
    }
    merged_.clear();
    if (nodes_.empty()) return;
    nodes_.back().next = kEnd;
    for (uint32_t i = 0; i < nodes_.size(); i++) look_up(i);
    while (!queue_.empty()) {
      const uint32_t rank = uint32_t(queue_.top() >> 32), at = uint32_t(queue_.top());
      queue_.pop();
      Node& left = nodes_[at];
      if (left.rank != rank) continue;  // one of the two has merged since
      Node& right = nodes_[left.next];
      left.id = left.made;
      left.next = right.next;
      right.rank = kNone;
      if (left.next != kEnd) nodes_[left.next].before = at;
      look_up(at);
      if (left.before != kEnd) look_up(left.before);
    }
    for (uint32_t i = 0; i != kEnd; i = nodes_[i].next) merged_.push_back(nodes_[i].id);
  }

  void add(int id) {
    const uint32_t i = uint32_t(nodes_.size());
    if (id < 0) counts_.left_out++;
    else nodes_.push_back({id, i - 1, i + 1, kNone, 0});  // the first has no node before it: i - 1 is kEnd
  }

  // Finds the rank of the pair of a node and the next one, and queues it.
  void look_up(uint32_t at) {
    Node& left = nodes_[at];
    left.rank = kNone;
    if (left.next == kEnd) return;
    counts_.pairs++;
    const auto found = bpe_.merges_.find(Bpe::pair(left.id, nodes_[left.next].id));
    if (found == bpe_.merges_.end()) return;
    left.rank = found->second.rank;
    left.made = found->second.id;
    queue_.push(uint64_t(left.rank) << 32 | at);
  }

  static constexpr uint32_t kEnd = UINT32_MAX, kNone = UINT32_MAX;
  struct Node {
    int id;
    uint32_t before, next, rank;  // rank: of the merge with the next one; kNone: there is none
    int made;                     // by that merge
  };

  const Bpe& bpe_;
  const PutId& put_;
  BpeCounts& counts_;
  std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match_;
  std::string key_;
  std::unordered_map<std::string, std::vector<int>> cache_;
  std::vector<Node> nodes_;
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<uint64_t>> queue_;  // rank, then place
  std::vector<int> merged_;
};

void Bpe::encode_to(const PutId& put, std::string_view text, Control control, BpeCounts* counts, Begins begins) const {
  BpeCounts own;
  BpeCounts& counted = counts ? *counts : own;
  std::string repaired;
  const size_t bad = repair(text, repaired);
  counted.repaired += bad;
  if (bad) text = repaired;
  BpeRun run(*this, put, counted);
  size_t begin = 0;  // of the plain text before `at`
  for (size_t at = 0; at < text.size();) {
    const int id = special_at(text, at);
    const size_t size = id < 0 ? 1 : bytes_[size_t(id)].size();
    if (id >= 0 && (type(id) == TokenType::user_defined || control == Control::found)) {
      run.plain(text.substr(begin, at - begin), begin == 0 ? begins : Begins::part);
      put(id);
      begin = at + size;
    }
    at += size;  // a control token that is plain text hides user-defined ones within it, as with Hugging Face
  }
  run.plain(text.substr(begin), begin == 0 ? begins : Begins::part);
}

std::vector<int> Bpe::encode(std::string_view text, Control control, BpeCounts* counts) const {
  std::vector<int> ids;
  encode_to([&](int id) { ids.push_back(id); }, text, control, counts);
  return ids;
}

void encode_bpe(const Bpe& bpe, const PutId& put, const std::string& text, const std::string& what, Begins begins) {
  BpeCounts counts;
  bpe.encode_to(put, text, Control::plain, &counts, begins);
  if (counts.repaired)
    note(filled("bytes that are not UTF-8, {} times, became U+FFFD", counts.repaired), what, "give the text in UTF-8");
  if (counts.left_out)
    note(filled("bytes that no token has, {}, were left out", counts.left_out), what,
         "nothing need be done; the model knows no control characters");
}

// ---------------------------------------------------------------------------------------------------------------
// The stream

std::string Utf8Stream::put(std::string_view bytes) {
  std::string ready = finish().append(bytes);
  for (size_t n = std::min<size_t>(3, ready.size()); n > 0; n--) {
    const auto* const tail = reinterpret_cast<const uint8_t*>(&ready[ready.size() - n]);
    ucs4_t unused;
    if (u8_mbtoucr(&unused, tail, n) != -2 || *tail > 0xF4) continue;  // -2: more bytes may make it a character
    held_ = ready.substr(ready.size() - n);
    ready.resize(ready.size() - n);
    break;
  }
  return ready;
}

}  // namespace nanospec
