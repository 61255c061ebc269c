// commands/perplexity.cpp: measures how well a model predicts a text.
//
// The text's tokens are cut into windows of N, one behind another; what is left at the end, less than a window, is left
// out. Each window is read from an empty cache. Its first half is context. Of the second half, the tokens N / 2 + 1 to
// N - 1 (counted from 0) count: N - N / 2 - 1 of them, each after all tokens of its window before it. Where the model
// puts a token before every text (a GGUF file's add_bos_token), that token stands before the text, and in place of each
// window's first token. So does llama.cpp's perplexity tool, whose default of N is 512 too.

#include "commands/commands.h"
#include "commands/losses.h"
#include "files/model_path.h"

namespace nanospec {
namespace {

constexpr int kRows = 128;  // of one forward: a chain

struct Reading {
  Options options;
  std::string text_file, stats_file;
  int window = 512, max_windows = 0;
};

Command describe(Reading& m) {
  return {"nanospec perplexity",
          "Measures how well a model predicts a text: its mean loss, perplexity, and bits per byte. The text is read "
          "in windows; the tokens in the second half of each count. The figures are those of llama.cpp's perplexity "
          "tool.",
          "nanospec perplexity --model models/SmolLM2-135M-Instruct.Q4_1.gguf --text README.md\n"
          "nanospec perplexity --model models/SmolLM2-135M-Instruct.Q4_1.gguf --text data/*shakespeare.txt "
          "--max_windows 20 "
          "--stats build/perplexity.json\n"
          "nanospec perplexity --model runs/small --data data/*shakespeare.txt\n",
          together({{heading("Text"),
                     {"--model", "FILE|DIR", &m.options.settings.model,
                      "a GGUF file, or the folder that train_gpt wrote", required()},
                     {"--text", "FILE", &m.text_file, "the text; -: standard input"},
                     {"--data", "FILE", &m.options.data_file,
                      "or the training text: its last tenth, which train_gpt held out (default: the text in "
                      "data/)"},
                     {"--window", "N", &m.window, "tokens of a window; at most as many as the model sees",
                      from(4, kMaxWindow)},
                     {"--max_windows", "N", &m.max_windows, "the most windows to read; 0: all", from(0)}},
                    machine_flags(m.options),
                    {heading("Output"),
                     {"--stats", "FILE", &m.stats_file, "write the figures, as JSON", written()},
                     {"--quiet", "", &m.options.quiet, "no progress"}}})};
}

void check_command_line(Reading& m, const Command& command, const Given& given) {
  Options& o = m.options;
  check_options(o);
  if (given.has("--text") && given.has("--data"))
    throw std::invalid_argument("more than one text: nanospec perplexity: give only one of --text or --data");
  if (!given.has("--text") && !given.has("--data") && !is_gguf(o.settings.model))
    o.data_file = find_text(o.settings.model, false);
  if (m.text_file.empty() && o.data_file.empty())
    throw std::invalid_argument("there is no text" +
                                (is_gguf(o.settings.model) ? "" : ", and " + not_found_text(o.settings.model)) +
                                ": nanospec perplexity: add --text FILE");
  check_outputs(command, given, {o.data_file});
  o.settings.budget = 0;
  o.settings.rows = kRows;
}

// The text that is measured, and what it is called. Throws runtime_error.
struct Text {
  std::string name, bytes;
};
Text read_text(const Reading& m) {
  const std::string& data = m.options.data_file;
  if (m.text_file == "-") return {"standard input", read_file("/dev/stdin")};
  if (data.empty()) return {printable(m.text_file, 300), read_file(m.text_file)};
  const std::string bytes = read_file(data);
  check_held_out(m.options.settings.model, bytes, data);
  return {"the last tenth of " + printable(data, 300), bytes.substr(held_out_begin(bytes))};
}

// ---------------------------------------------------------------------------------------------------------------
// Measuring

struct Windows {
  std::vector<int> tokens;  // of the text
  int size = 0, begin = -1;
  size_t n = 0;  // how many are read

  int first() const { return size / 2 + 1; }  // of a window's tokens that count
  std::vector<int> at(size_t i) const {
    const auto from = tokens.begin() + long(i * size_t(size));
    std::vector<int> window(from, from + size);
    if (begin >= 0) window[0] = begin;
    return window;
  }
};

// Throws invalid_argument where the model sees fewer tokens than --window says, and runtime_error where the text has
// too few.
Windows cut(const Reading& m, const Given& given, const Engine& engine, const Text& text) {
  const int block = engine.context();
  if (given.has("--window") && m.window > block)
    throw std::invalid_argument("the model sees at most " + std::to_string(block) + " tokens: --window " +
                                std::to_string(m.window) + ": give a smaller one");
  Windows windows;
  windows.size = std::min(m.window, block);
  windows.begin = engine.begin_token();
  windows.tokens = engine.tokenizer().encode(text.bytes, text.name);
  if (windows.begin >= 0) windows.tokens.insert(windows.tokens.begin(), windows.begin);
  windows.n = windows.tokens.size() / size_t(windows.size);
  if (windows.n == 0)
    refuse("the text has " + count(double(windows.tokens.size()), "token") + ", less than a window of " +
               std::to_string(windows.size),
           text.name, "give a longer text, or a smaller --window");
  if (m.max_windows > 0) windows.n = std::min(windows.n, size_t(m.max_windows));
  return windows;
}

struct Measured {
  MeanLoss loss;
  double bytes = 0;  // of the tokens that count
  size_t windows = 0;
  double seconds = 0;

  double bits_per_byte() const { return ratio(loss.sum, bytes) / std::log(2.0); }
};

// All windows; an interrupt ends it after the window that is being read.
Measured measure(const Reading& m, Engine& engine, const Windows& windows) {
  Measured all;
  Progress progress(m.options.quiet);
  while (all.windows < windows.n && !interrupted()) {
    const std::vector<int> tokens = windows.at(all.windows);
    for (double loss : engine.losses(tokens, windows.first())) all.loss.add(loss);
    for (size_t i = size_t(windows.first()); i < tokens.size(); i++)
      all.bytes += double(engine.decode(tokens[i]).size());
    all.windows++;
    all.seconds = progress.seconds();
    const double done = double(all.windows);
    if (progress.due())
      progress.show(thousands(done) + " of " + count(double(windows.n), "window") + ", perplexity " +
                    decimals(all.loss.perplexity(), 2) + ", " + thousands(ratio(done * windows.size, all.seconds)) +
                    " tok/s, " + time_left(done, double(windows.n), all.seconds));
  }
  return all;
}

// ---------------------------------------------------------------------------------------------------------------
// Saying

std::string summary(const Reading& m, const Engine& engine, const Windows& windows, const Measured& all) {
  const double read = double(all.windows) * windows.size;
  return "loss           " + decimals(all.loss.mean(), 4) + " nats per token, standard error " +
         decimals(all.loss.error(), 4) + "\nperplexity     " + decimals(all.loss.perplexity(), 3) +
         ", standard error " + decimals(all.loss.perplexity_error(), 3) + "\nbits per byte  " +
         decimals(all.bits_per_byte(), 4) + "\n" + count(double(all.loss.n), "token") + " of " +
         count(double(all.windows), "window") + " of " + count(windows.size, "token") + ", after " +
         std::to_string(windows.first()) + " each; " + count(read, "token") + " in " + duration(all.seconds) + ": " +
         thousands(ratio(read, all.seconds)) + " tok/s  (" + machine_text(m.options.settings, engine) + ")\n";
}

std::string stats_json(const Reading& m, const Engine& engine, const Text& text, const Windows& windows,
                       const Measured& all) {
  const Settings& s = m.options.settings;
  const OrderedJson json = {{"loss", all.loss.mean()},
                            {"loss_error", all.loss.error()},
                            {"perplexity", all.loss.perplexity()},
                            {"perplexity_error", all.loss.perplexity_error()},
                            {"bits_per_byte", all.bits_per_byte()},
                            {"tokens", all.loss.n},
                            {"bytes", int64_t(all.bytes)},
                            {"window", windows.size},
                            {"windows", all.windows},
                            {"whole", all.windows == windows.n},
                            {"begin_token", windows.begin},
                            {"seconds", all.seconds},
                            {"tokens_per_second", ratio(double(all.windows) * windows.size, all.seconds)},
                            {"text", text.name},
                            {"text_sha256", sha256(text.bytes)},
                            {"model", s.model},
                            {"device", engine.device()},
                            {"dtype", engine.dtype()},
                            {"cache_dtype", s.cache_dtype},
                            {"threads", engine.threads()},
                            {"weight_bytes", uint64_t(engine.weight_bytes())},
                            {"peak_bytes", uint64_t(peak_bytes())}};
  return json_text(json, 2);
}

}  // namespace

int perplexity_command(int argc, char** argv) {
  Reading m;
  const Command command = describe(m);
  const Given given = parse_flags(command, argc, argv);
  if (given.help) return 0;
  check_command_line(m, command, given);
  const Text text = read_text(m);
  Engine engine(m.options.settings);
  const Windows windows = cut(m, given, engine, text);

  watch_interrupts();
  const Measured all = measure(m, engine, windows);
  if (all.windows == 0) {
    fprintf(stderr, "stopped: nothing is measured\n");
    return kInterruptedStatus;
  }
  print_out(summary(m, engine, windows, all));
  if (given.has("--stats")) write_file(m.stats_file, stats_json(m, engine, text, windows, all));
  if (!interrupted()) return 0;
  fprintf(stderr, "stopped after %zu of %zu windows\n", all.windows, windows.n);
  return kInterruptedStatus;
}

}  // namespace nanospec
