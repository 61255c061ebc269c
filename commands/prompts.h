// commands/prompts.h: what the command line asks for: one text, or with --prompts many, each a prompt or a chat; how a
// text grows and ends; and the file of lines that generate's go into, as those of distill do.
#pragma once

#include "commands/commands.h"

namespace nanospec {

// A text that is asked for.
struct Asked {
  std::string prompt;  // of a chat the last question
  Json messages;       // or those of a chat: system, if any; then user and assistant in turn; the last is user
  Asked(std::string its_prompt = "", Json its = {}) : prompt(std::move(its_prompt)), messages(std::move(its)) {}
};
// The texts that the command line asks for, one at least; a line of --prompts may have "messages" in place of "prompt".
// Throws std::runtime_error as read_prompts.
std::vector<Asked> read_asked(const Options& options);
// Its tokens; of a chat, and of a prompt after --chat, in the model's template. What people say is plain text, as in
// "<|im_end|>"; the template alone brings control tokens. what: the prompt's name in errors. Throws std::runtime_error.
Tokens encode_prompt(const Engine& engine, const Options& options, const Asked& asked, const std::string& what);

// A text that grows token by token, until it ends.
struct Growing {
  ShownText shown;
  std::string text;
  bool ended = false;  // by an end-of-text token, which is no part of what people read
  size_t printed = 0;  // bytes of the text

  // Takes one more token. Returns whether the text goes on.
  bool put(const Engine& engine, int token, bool ends) {
    ended = ends;
    if (!ended) text += shown.put(engine.decode(token));
    return !is_over();
  }
  bool is_over() const { return ended || shown.stopped(); }
  // No token comes any more.
  void finish() { text += shown.finish(); }
  // Writes what is new to standard output.
  void print() { print_out(text.substr(std::exchange(printed, text.size())), true); }
  // Why it ended; otherwise: neither by such a token nor before a --stop.
  std::string why(const char* otherwise) const { return ended ? "end of text" : shown.stopped() ? "stop" : otherwise; }
};

struct Generation {
  Options options;
  std::string stats_file;
  std::string out_file;  // of many texts
  std::string transcript_file;
  std::vector<std::string> stops;
  int batch = 0;  // texts that decode side by side; 0: chosen
  bool stream = false;
};

// What a rule other than match makes of the texts, in one line; "" for match.
std::string promise_text(const Method& method);

// Writes --stats, where it is given: what was counted, the method, the settings, and `more`.
void write_stats(const Generation& g, const Engine& engine, const Stats& stats, const OrderedJson& more);

// The texts of --prompts, into --out. Returns the exit status. Throws std::runtime_error.
int generate_prompts(Generation& g);

// ---------------------------------------------------------------------------------------------------------------
// A file of lines, one for each text, that a later run goes on with

// What a line begins with: {"index":3,"request":"xxh64:...", with a hash of what the text depends on.
inline std::string line_head(size_t index, const std::string& hash) {
  return filled("{\"index\":{},\"request\":{},", index, Json(hash));
}
// A hash of the model, or its path where it has none.
inline std::string identity_of(const std::string& model) {
  const std::string hash = weights_hash(model);
  return hash.empty() ? model : hash;
}

struct Written {
  size_t texts = 0, bytes = 0;  // whole lines
  size_t size = 0;              // bytes of the file
};
// What is written already. head_of: of line i; "" where there is none. Throws std::runtime_error where the file is
// not one of these lines'.
Written find_written(const std::string& path, const std::function<std::string(size_t)>& head_of);
// Opens the file, to be written behind its whole lines: the rest is cut off. Returns its handle.
int open_output(const std::string& path, const Written& written);

// Thrown out of the engine where no other text is to begin: by Ctrl-C, or because there are enough.
struct Interrupted {};

// ---------------------------------------------------------------------------------------------------------------
// A transcript: a text of one prompt, with all that it depends on, for `nanospec verify`

// tokens: those that were generated; text: what standard output got; why: it ended.
std::string transcript_json(const Generation& g, const Engine& engine, const std::string& prompt, const Tokens& tokens,
                            const std::string& text, const std::string& why);

}  // namespace nanospec
