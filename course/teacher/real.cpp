// course/teacher/real.cpp: a real model, SmolLM2-135M-Instruct, decodes with a student's matmul, norm, rotary
// positions, attention, mask, match and gather. `make real SUBMISSION=folder` puts the student's regions into a copy of
// the engine, and compiles it without tuned versions (-DPORTABLE): a student's own code runs, or nothing does.
//
// usage: real MODEL.gguf
//   It decodes plain, then by trees whose drafter knows the plain text, and guesses a wrong token beside each right
//   one. So the text must come out again, in a quarter of the forwards. And it must be the engine's.
#include <chrono>
#include <cstdio>

#include "archive/known.h"
#include "decode.h"
#include "files/gguf_model.h"
#include "files/model_path.h"
#include "target.h"

namespace nanospec {
namespace {

constexpr int kNewTokens = 16, kBudget = 14, kWindow = 32;
const std::string kPrompt = "The capital of France is", kRight = kPrompt + " Paris.\n\nThe answer is: 2018-01";

// Behind each right guess a wrong one.
struct Forked : Known {
  using Known::Known;
  void expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
              int* count) override {
    Known::expand(growth, nodes, n, width, draws, candidates, count);
    for (int k = 0; k < n; k++) {
      if (count[k] == 0) continue;
      candidates[k * width + 1] = {(candidates[k * width].token + 1) % vocab, 0.25f};
      count[k] = 2;
    }
  }
};

struct Counter : Watcher {
  int forwards = 0;
  void forwarded(const Tree&) override { forwards++; }
};

// Decodes kNewTokens tokens behind the text, of which the likeliest is taken; says how long it took.
std::vector<int> decode(const char* name, Target& target, Drafter* drafter, std::vector<int> text) {
  const auto start = std::chrono::steady_clock::now();
  Sampling sampling;
  sampling.temperature = 0;
  Noise noise(sampling, target.vocab_size());
  Host<Target> host(target);
  FullTree tree(3, 2);
  Counter counter;
  Sequence decoded = {
      text, int64_t(text.size()) + kNewTokens, drafter, counter, noise, {&sampling, &noise, 0, false}, [](int) {
        return true;
      }};
  generate(host, tree, decoded);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  printf("%-5s %2d tokens in %2d forwards, %.1f s\n", name, kNewTokens, counter.forwards, taken.count());
  return text;
}

bool runs(const std::string& path) {
  const Loaded model = load_gguf(read_gguf(path), kWindow);
  Target target(model.config, model.source(), Dtype::fp32, std::make_shared<Pool>(2), kBudget + 1);
  const std::vector<int> prompt = model.tokenizer.encode(kPrompt);
  const std::vector<int> plain = decode("plain", target, nullptr, prompt);
  Forked forked(target.vocab_size(), plain);
  const std::vector<int> tree = decode("tree", target, &forked, prompt);
  const std::string text = model.tokenizer.decode(plain);
  printf("%s\n", text.c_str());
  if (text != kRight) printf("real: this is not the engine's text, which is:\n%s\n", kRight.c_str());
  if (plain != tree) printf("real: by trees another text:\n%s\n", model.tokenizer.decode(tree).c_str());
  return text == kRight && plain == tree;
}

}  // namespace
}  // namespace nanospec

int main(int argc, char** argv) {
  try {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    return argc == 2 && nanospec::runs(argv[1]) ? 0 : 1;
  } catch (const std::exception& error) {
    fprintf(stderr, "real: %s\n", error.what());
    return 1;
  }
}

// The rest of the engine that it needs, in one unit.
#include "files/bpe.cpp"
#include "files/checkpoint.cpp"
#include "files/gguf.cpp"
#include "files/gguf_model.cpp"
#include "files/io.cpp"
#include "files/safetensors.cpp"
#include "files/text.cpp"
#include "files/tokenizer_json.cpp"
