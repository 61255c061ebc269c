// commands/commands.h: the commands of nanospec, and what they share: flags, the words of a method, statistics.
//
// The ring commands/ adds what a user runs. `generate` continues a prompt; `chat` answers; `compare` compares methods;
// `calibrate` measures a drafter's guesses, for shapes that need them; `show` writes a page that steps through a
// generation; `perplexity` measures a model on a text; `inspect` says what its files hold; `index` counts texts for a
// drafter; `distill` lets a model write such texts; `compress` and `decompress` keep a text as what surprises a model,
// and `verify` says whether a model wrote it. The ring turns words into a Method and Settings, and calls the Engine
// with them (engine.h); it touches neither arrays nor the model. It includes the core, drafters/, files/, growth/,
// rules/, watch/ and archive/. It hooks into the loop through Observation: on_iteration and stand_in. A run that is not
// observed pays nothing. What a header of the project includes, the files that include it do not include again.
//
// How to add a command: write commands/NAME.cpp with `int NAME_command(int argc, char** argv)`; argv[0] is its name.
// describe() gives its flags, put together() from the parts below. Parse; check everything before the Engine is made;
// run; print; write files. Declare it here, and give it a line in kCommands of program.cpp.
//
// Here, in order: the commands; flags; methods; statistics.
#pragma once

#include "commands/cli.h"
#include "commands/conversation.h"
#include "commands/engine.h"
#include "files/drafters.h"
#include "files/origin.h"

namespace nanospec {

// Each returns the exit status and throws as run_program() wants it.
using CommandFunction = int(int argc, char** argv);
struct CommandLine {
  const char* name;
  CommandFunction* run;
  const char* what = "";
};
CommandFunction generate_command, chat_command, compare_command, perplexity_command, inspect_command, index_command,
    distill_command, calibrate_command, show_command, compress_command, decompress_command, verify_command;

// The program: any of these by its name, help and the version.
int nanospec_program(int argc, char** argv);

// ---------------------------------------------------------------------------------------------------------------
// Flags

struct Options {
  Given given;  // what of these the command line held
  Settings settings;
  Sampling sampling;
  Method method;                                             // of a command that has one
  std::string prompt, prompt_file, prompts_file, data_file;  // one of these
  int held_out = 8;                                          // prompts that are taken from data_file
  int max_new_tokens = 500;
  bool ignore_eos = false;
  bool chat = false;   // whether prompts are questions
  std::string system;  // of a chat

  Options() { settings.threads = usable_cores(); }
};

constexpr int kMaxBudget = 1 << 14;
constexpr int kMaxWindow = 1 << 20;  // tokens; model.h takes no longer ones

// Parts of a command's table of flags; the values go to `options`.
std::vector<Flag> text_flags(Options& options);        // model, prompt, prompt_file, max_new_tokens
std::vector<Flag> model_text_flags(Options& options);  // context, ignore_eos: what real models' texts want
std::vector<Flag> chat_flags(Options& options);        // chat, system
std::vector<Flag> prompts_flags(Options& options);     // prompts, data, held_out: for commands that take several
std::vector<Flag> sampling_flags(Options& options);    // temperature, top_k, top_p, min_p, penalties, seed
std::vector<Flag> machine_flags(Options& options);     // device, dtype, cache_dtype, threads
// How texts are drawn, then `between`, then where.
inline std::vector<Flag> run_flags(Options& options, const std::vector<Flag>& between = {}) {
  return together({sampling_flags(options), between, machine_flags(options)});
}

// Checks flags that depend on each other. Throws std::invalid_argument.
void check_options(const Options& options);

// Throws std::invalid_argument where a system text is given for no chat.
inline void check_chat(const Options& options, const std::string& command) {
  if (options.given.has("--system") && !options.chat)
    refuse_usage("--system is part of a chat: {}: add --chat, or put it into the prompt", command);
}

// What is not given of temperature, top_k and top_p becomes what the model's files advise (files/advice.h), with a
// note. Throws std::runtime_error where they cannot be read.
void choose_sampling(Options& options);
// What belongs to a temperature, where no flag gives it: top-k, top-p and the repetition penalty.
void take_beside_temperature(Sampling& to, const Sampling& from, const Given& given);

// Where no source of prompts was given, of those that the command has flags for, data_file becomes the text that the
// model learned, if the command takes one. Throws std::invalid_argument where there is none, and where several sources
// were given.
void choose_prompts(Options& options);

// The text in data/ that the model in this folder learned, by its hash; one that `make data` gets, where the model
// names none or any will do; "" where there is none.
std::string find_text(const std::string& model, bool any);
// Where it is not: "the text that the model learned, NAME, is not in FOLDER/data".
std::string not_found_text(const std::string& model);

// Says where the model learned another text than this one, of which no prompt is then held out.
void check_held_out(const std::string& model, const std::string& text, const std::string& path);

// A file byte for byte ("-": standard input), and what errors call it. Throws std::runtime_error where it is
// unreadable.
struct NamedText {
  std::string name, bytes;
};
inline NamedText text_in(const std::string& path) {
  if (path == "-") return {"standard input", read_file("/dev/stdin")};
  return {printable(path, 300), read_file(path)};
}

// The text of --prompt, or of --prompt_file byte for byte ("-": standard input). Throws std::runtime_error where it is
// empty or unreadable.
inline std::string read_prompt(const Options& options) {
  return options.given.has("--prompt_file") ? text_in(options.prompt_file).bytes : options.prompt;
}

// The prompts of whichever source was given, one at least. Throws std::runtime_error as read_prompt.
std::vector<std::string> read_prompts(const Options& options);

// The first place from `at` on where a character of UTF-8 begins, or the text ends.
inline size_t character_from(const std::string& text, size_t at) {
  while (at < text.size() && (text[at] & 0xc0) == 0x80) at++;
  return at;
}

// Where the part of a text begins that train_gpt holds out: its last tenth, in characters.
size_t held_out_begin(const std::string& text);

// `n` prompts of `bytes` bytes (a character is not cut): they begin evenly from `from` on, each at the beginning of a
// line where one is near, and at that of a character always; and those of the part of a file that was held out from the
// model. The latter throws std::runtime_error where the file is empty or cannot be read.
std::vector<std::string> prompts_of(const std::string& text, size_t from, int n, size_t bytes);
std::vector<std::string> held_out_prompts(const std::string& path, int n, size_t bytes, const std::string& model);
constexpr size_t kHeldOutBytes = 64;  // of a prompt

// A conversation by the model's own template.
inline Conversation conversation_of(const Engine& engine, const Options& options) {
  return begin_conversation(engine.tokenizer(), options.settings.model,
                            options.given.has("--system") ? std::optional(options.system) : std::nullopt);
}

// Texts decode side by side: `batch` of them, or, if that is 0, as many as mostly pay and as memory has room for.
inline void choose_seats(Settings& settings, size_t texts, int batch = 0) {
  settings.seats = int(std::min(texts, batch > 0 ? size_t(batch) : kMostSeats));
  settings.fewer = batch == 0;
}

// The tokens that end a text; none after --ignore_eos, and of models that have no such token.
inline Tokens ends_of(const Options& options, const Engine& engine) {
  return options.ignore_eos ? Tokens() : end_tokens(engine.tokenizer());
}

// Continues a prompt, as every command does: the text ends with an end-of-text token (`ends`; it is no part of what
// people read), with a Ctrl-C, and where on_token returns false. sequence: texts of different ones have noise of their
// own.
using OnToken = std::function<bool(int token, bool ends)>;
Generated continue_text(Engine& engine, const Options& options, const Method& method, const Tokens& prompt,
                        int max_new_tokens, const OnToken& on_token, const Observation& observation = {},
                        uint32_t sequence = 0);

inline std::string numbers_text(const Settings& settings, const Engine& engine) {  // "fp32", "bf16, cache bf16"
  return engine.dtype() + (settings.cache_dtype == "fp32" ? "" : ", cache " + settings.cache_dtype);
}
// The machine and the numbers, as lines for people end: "cpu, fp32, 2 threads".
inline std::string machine_text(const Settings& settings, const Engine& engine) {
  return engine.device() + ", " + numbers_text(settings, engine) + ", " + count(engine.threads(), "thread");
}

std::string sampling_text(const Sampling& sampling);  // "temperature 0.7, top_p 0.95"

// The settings that the figures of a run depend on, in one line.
std::string circumstances(const Options& options, const Engine& engine, size_t prompts);

// ---------------------------------------------------------------------------------------------------------------
// Methods

// A method whose words have been read.
struct Meaning {
  std::vector<DrafterName> drafter;  // the parts of a union, or one; kNone: plain decoding
  Shape shape;
  Rule rule;
  Ahead ahead;
  bool plain() const { return drafter.front().kind == DrafterName::kNone; }
};
// budget: where the method has none of its own. Throws std::invalid_argument for an unknown drafter, shape, rule or way
// of drafting ahead, for a shape larger than the budget, and where the rule cannot judge the shape or does not allow
// drafting ahead.
Meaning read_method(const Method& method, int budget);

// The nodes of the largest tree that the method may draft.
int most_nodes(const Method& method, int budget);
// Gives a forward the rows that the methods' trees may have, if it has fewer.
inline void make_room(Settings& settings, const std::vector<Method>& methods) {
  for (const Method& method : methods) settings.rows = std::max(settings.rows, most_nodes(method, settings.budget) + 1);
}

// Checks, of a command whose methods are known, all that can be told before the model is loaded, and makes room for the
// methods' trees. Throws std::invalid_argument and std::runtime_error.
void check_methods(const std::vector<Method>& methods, Options& options);

// Reads a command's flags, and checks those that depend on each other. Returns false where only help was asked for.
// Throws std::invalid_argument.
bool read_flags(const Command& command, int argc, char** argv, Options& options);

// What a command with one method begins with: reads its flags, then checks all that can be told before the model is
// loaded, and makes room for the method's trees. Where it has no bigrams the default drafter is kTextDrafter.
// Returns false where only help was asked for. Throws std::invalid_argument and std::runtime_error.
bool read_command_line(const Command& command, int argc, char** argv, Options& options);
constexpr const char* kTextDrafter = "suffix";  // it needs nothing but the text itself
// Whether train_gpt made the model, and counted bigrams: a GGUF file has none. (Where there is no model, it would
// have.)
bool has_bigrams(const std::string& model);

// The flags that make up one method: drafter, shape, budget, verify, ahead.
std::vector<Flag> speculation_flags(Options& options);

// Reads "none; bigram chain:4; bigram tree:3x2 verify=independent; 'gpt:my model' auto budget=8": a drafter, a shape
// (auto where left out), a rule, a budget of its own; noise=unknown: the drafter is not told the target's noise;
// ahead=on or auto: it drafts while the target verifies. Quotes, of either kind, hold blanks and ';' together. Throws
// std::invalid_argument.
std::vector<Method> parse_methods(const std::string& text, int budget);

std::string method_text(const Method& method);  // as parse_methods reads it

inline Promise promise_of(const Method& method) {  // what its text is to plain decoding's
  const Meaning meaning = read_method(method, kMaxBudget);
  return meaning.plain() ? Promise::kSameBytes : about(meaning.rule).promise;
}
inline std::string flaw(Promise promise) {  // "biased", "lossy"; "" where the distribution is the target's
  return promise == Promise::kBiased ? "biased" : promise == Promise::kLossy ? "lossy" : "";
}

// ---------------------------------------------------------------------------------------------------------------
// Statistics

inline double ratio(double a, double b) { return b > 0 ? a / b : 0; }
double as_typed(float x);  // 0.7f as 0.7, not as 0.699999988
void add(Stats& sum, const Stats& part);
inline double gigabytes_per_second(const Engine& engine, const Stats& stats) {  // of weights, while the target ran
  return ratio(engine.weight_bytes() * double(stats.target_forwards), stats.seconds_forward) / 1e9;
}

// Every field of Stats and those that follow from it, under the names that scripts read.
OrderedJson stats_json(const Engine& engine, const Stats& stats);
OrderedJson sampling_json(const Sampling& sampling);
// Model, device, types; sampling, where the command generates; memory.
OrderedJson settings_json(const Options& options, const Engine& engine, bool generates = true);
OrderedJson method_json(const Method& method);  // drafter, shape, verify, and what the rule promises

// The result of drafting while the target verifies, in one line; "" if it was not asked for.
std::string ahead_text(const AheadStats& ahead);

// "12%"
inline std::string percent(double part, double whole, int places = 0) {
  return decimals(100 * ratio(part, whole), places) + "%";
}

}  // namespace nanospec
