// tests/reference/dump_gguf.cpp: writes what files/gguf.h reads in a GGUF file, for gguf_check.py to compare with what
// the Python package `gguf` reads: the metadata, the tensors and the sizes of a Llama model on standard output, all
// tensors as floats, end to end in the file's order, into FLOATS.
//
//   make build/dump_gguf && build/dump_gguf FILE [FLOATS]
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "files/gguf_model.h"

using namespace nanospec;

namespace {

void write_floats(const GgufFile& file, FILE* out) {
  std::vector<float> row;
  for (const GgufTensor& tensor : file.tensors) {
    row.resize(tensor.columns());
    for (size_t at = 0; at < tensor.size(); at += row.size()) {
      dequantize(tensor, at, row.size(), row.data());
      if (fwrite(row.data(), sizeof(float), row.size(), out) != row.size()) throw std::runtime_error("cannot write");
    }
  }
}

void print_header(const Config& h) {
  printf("llama\tV %d  block %d  L %d  C %d  F %d  H %d  KV %d  D %d  eps %.9g  theta %.9g  %s\n", h.vocab_size,
         h.block_size, h.n_layer, h.n_embd, h.n_inner, h.n_head, h.n_kv_head, h.head_dim, double(h.norm_epsilon),
         double(h.rope_theta), h.tied ? "tied" : "a head of its own");
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2 && argc != 3) throw std::invalid_argument("usage: dump_gguf FILE [FLOATS]");
  const GgufFile file = read_gguf(argv[1]);
  printf("version\t%u\nalignment\t%zu\n", file.version, file.alignment);
  for (const auto& [key, value] : file.metadata) printf("key\t%s\t%s\n", key.c_str(), shown_value(value).c_str());
  for (const GgufTensor& tensor : file.tensors) {
    printf("tensor\t%s\t%s\t", tensor.name.c_str(), type_name(tensor.type).c_str());
    for (size_t i = 0; i < tensor.shape.size(); i++) printf("%s%lld", i ? "," : "", (long long)tensor.shape[i]);
    printf("\n");
  }
  if (argc == 3) {
    FILE* out = fopen(argv[2], "wb");
    if (!out) throw std::runtime_error(std::string("cannot write ") + argv[2]);
    write_floats(file, out);
    if (fclose(out) != 0) throw std::runtime_error(std::string("cannot write ") + argv[2]);
  }
  if (file.has("general.architecture") && file.text("general.architecture") == "llama")
    print_header(read_gguf_header(file));
  return 0;
} catch (const std::exception& error) {
  fprintf(stderr, "dump_gguf: %s\n", error.what());
  return 1;
}
