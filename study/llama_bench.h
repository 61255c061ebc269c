// study/llama_bench.h: what llama.cpp's program llama-bench prints with `-o json`, read.
#pragma once

#include <string>
#include <vector>

namespace nanospec {

// One of its tests: a prompt in one forward, or tokens one by one, after `depth` tokens.
struct LlamaTest {
  int prompt = 0, generated = 0, depth = 0;
  std::string build, cpu;       // of llama.cpp, and where it ran
  std::vector<double> seconds;  // of one forward, an entry a repeat
};

// `output` may have other lines before and after the list. Throws std::runtime_error where that is not there or lacks
// something; `where` names it.
std::vector<LlamaTest> parse_llama_bench(const std::string& output, const std::string& where);

// The test of so many tokens. Throws std::runtime_error.
const LlamaTest& find_test(const std::vector<LlamaTest>& tests, int prompt, int generated, int depth);

}  // namespace nanospec
