// commands/engine.cpp: what follows from the other functions of the Engine, whichever it is.
#include "commands/commands.h"
#include "files/checkpoint.h"
#include "files/text.h"

namespace nanospec {

static_assert(kMaxWindow == kMaxBlock, "one limit for the flag --context and for models");

int Engine::context() const { return config().block_size; }
int Engine::vocab_size() const { return config().vocab_size; }

std::string Engine::sizes_text() const {
  const Config& c = config();
  return count(c.n_layer, "layer") + ", " + count(c.n_head, "head") + ", " + count(c.n_embd, "channel") + ", block " +
         std::to_string(c.block_size);
}

std::vector<int> Engine::encode_prompt(const std::string& prompt, const std::string& what) const {
  std::vector<int> tokens = tokenizer().encode(prompt, what);
  if (begin_token() >= 0) tokens.insert(tokens.begin(), begin_token());
  return tokens;
}

}  // namespace nanospec
