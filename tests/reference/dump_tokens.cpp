// tests/reference/dump_tokens.cpp: writes our tokens of many lines, for bpe_check.py to compare with those of Hugging
// Face's `tokenizers`. It also says how fast that was, and checks that the tokens give the lines back.
//
//   make build/dump_tokens && build/dump_tokens TOKENIZER LINES IDS plain|found [PRE]
//
// TOKENIZER is a tokenizer.json or a GGUF file; PRE a pre-split in place of its own. LINES and IDS are the same in
// form: for each line a uint32 with its length, then so many bytes, or int32 ids. `found`: control tokens are found in
// the lines.
#include <chrono>
#include <cstdio>
#include <cstring>

#include "files/io.h"
#include "files/model_path.h"

using namespace nanospec;

static Tokenizer tokenizer_of(const std::string& path, const std::string& pre) {
  if (is_gguf(path)) return gguf_tokenizer(read_gguf(path));
  BpeParts parts = parse_bpe(read_file(path), path);
  if (!pre.empty()) parts.pre = pre;
  return bpe_tokenizer(parts, path);
}

// What of a text comes back: SentencePiece adds spaces before parts, and does not tell them from U+2581.
static std::string readable(const Bpe& bpe, const std::string& text) {
  std::string kept;
  for (size_t at = 0; at < text.size(); at++) {
    if (bpe.settings.sentencepiece && text[at] == ' ') continue;
    if (bpe.settings.sentencepiece && text.compare(at, 3, "\xE2\x96\x81") == 0) at += 2;
    else kept += text[at];
  }
  return kept;
}

int main(int argc, char** argv) try {
  if (argc < 5 || argc > 6) throw std::invalid_argument("usage: dump_tokens TOKENIZER LINES IDS plain|found [PRE]");
  const Tokenizer tokenizer = tokenizer_of(argv[1], argc == 6 ? argv[5] : "");
  const Bpe& bpe = *tokenizer.bpe;
  const std::string lines = read_file(argv[2]);
  const Control control = std::string(argv[4]) == "found" ? Control::found : Control::plain;
  std::string out;
  BpeCounts all;
  double seconds = 0;
  size_t bytes = 0;
  for (size_t at = 0; at + 4 <= lines.size();) {
    uint32_t size;
    memcpy(&size, &lines[at], 4);
    const std::string line = lines.substr(at + 4, size);
    const auto begin = std::chrono::steady_clock::now();
    BpeCounts counts;
    const std::vector<int> ids = bpe.encode(line, control, &counts);
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (!counts.repaired && !counts.left_out && !counts.composed &&
        readable(bpe, tokenizer.decode(ids)) != readable(bpe, line))
      refuse("the tokens do not give the line back", "byte " + std::to_string(at) + " of LINES", "mend files/bpe.cpp");
    all.repaired += counts.repaired;
    all.left_out += counts.left_out;
    all.composed += counts.composed;
    const uint32_t n = uint32_t(ids.size());
    out.append(reinterpret_cast<const char*>(&n), 4);
    out.append(reinterpret_cast<const char*>(ids.data()), 4 * ids.size());
    bytes += size;
    at += 4 + size;
  }
  write_file(argv[3], out);
  printf("%zu bytes, %.1f MB/s, %zu runs of bad bytes, %zu bytes left out, %zu runs composed\n", bytes,
         double(bytes) * 1e-6 / seconds, all.repaired, all.left_out, all.composed);
  return 0;
} catch (const std::exception& error) {
  fprintf(stderr, "dump_tokens: %s\n", error.what());
  return 1;
}
