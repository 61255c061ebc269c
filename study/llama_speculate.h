// study/llama_speculate.h: what tests/reference/llama_speculate.cpp prints, read: llama.cpp's answers, timed.
#pragma once

#include <string>
#include <vector>

namespace nanospec {

struct LlamaAnswer {
  int prompt = 0;                  // its place among those that were asked
  std::string method;              // plain, or how it speculated
  double tokens = 0, seconds = 0;  // of the answer, without the prompt
};

// Lines that are no JSON object are passed over. Throws std::runtime_error where an object lacks something; `where`
// names the output.
std::vector<LlamaAnswer> parse_llama_speculate(const std::string& output, const std::string& where);

}  // namespace nanospec
