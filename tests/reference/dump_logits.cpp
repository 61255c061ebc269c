// tests/reference/dump_logits.cpp: writes our logits of a text, for hf_check.py to compare with those of transformers.
//
//   make build/dump_logits && build/dump_logits runs/small "First Citizen:" build/logits.bin
//   build/venv/bin/python tests/reference/hf_check.py runs/small "First Citizen:" build/logits.bin
// The model is a folder or a GGUF file.
#include <cstdio>

#include "decode.h"
#include "files/gguf_model.h"
#include "target.h"

using namespace nanospec;

int main(int argc, char** argv) try {
  if (argc != 4) throw std::invalid_argument("usage: dump_logits DIR|FILE.gguf TEXT FILE");
  const Loaded loaded = is_gguf(argv[1]) ? load_gguf(read_gguf(argv[1])) : load_model(argv[1]);
  const std::vector<int> tokens = loaded.tokenizer.encode(argv[2], "TEXT");
  const int n = int(tokens.size());
  if (n < 1 || n > loaded.config.block_size) throw std::invalid_argument("TEXT must fit the model's window");
  Target target(loaded.config, loaded.source(), Dtype::fp32, false, 1, n);
  std::vector<int> depth(n), end(n, n);  // a sequence: the tree with one branch
  for (int i = 0; i < n; i++) depth[i] = i;
  target.forward(tokens.data(), depth.data(), end.data(), n);
  std::string bytes;
  for (int i = 0; i < n; i++)
    bytes.append(reinterpret_cast<const char*>(target.logits(i)), sizeof(float) * loaded.config.vocab_size);
  write_file(argv[3], bytes);
  return 0;
} catch (const std::exception& error) {
  fprintf(stderr, "dump_logits: %s\n", error.what());
  return 1;
}
