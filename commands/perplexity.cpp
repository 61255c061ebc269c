// commands/perplexity.cpp: measures how well a model predicts a text.
//
// The text's tokens are cut into windows of N, one behind another; what is left at the end, less than a window, is left
// out. Each window is read from an empty cache. Its first half is context. Of the second half, the tokens N / 2 + 1 to
// N - 1 (counted from 0) count: N - N / 2 - 1 of them, each after all tokens of its window before it. Where the model
// puts a token before every text (a GGUF file's add_bos_token), that token stands before the text, and in place of each
// window's first token. So does llama.cpp's perplexity tool, whose default of N is 512 too.

#include "commands/commands.h"
#include "commands/losses.h"

namespace nanospec {
namespace {

constexpr int kRows = 128;  // of one forward: a chain

struct Reading {
  Options options;
  std::string text_file, stats_file;
  int window = 512, max_windows = 0;

  NamedText text;
  Tokens tokens;
  size_t windows = 0, done = 0;  // how many are to be read, and have been
  MeanLoss loss;
  double counted = 0;  // bytes of the tokens that count
  double seconds = 0;

  int first() const { return window / 2 + 1; }           // of a window's tokens that count
  double read() const { return double(done) * window; }  // tokens
  double bits_per_byte() const { return ratio(loss.sum, counted) / std::log(2.0); }
};

Command describe(Reading& m) {
  return {
      "nanospec perplexity",
      "Measures how well a model predicts a text: its mean loss, perplexity, and bits per byte. The text is read in "
      "windows; the tokens in the second half of each count. The figures are those of llama.cpp's perplexity tool.",
      "nanospec perplexity --model models/SmolLM2-135M-Instruct.Q4_1.gguf --text README.md\n"
      "nanospec perplexity --model models/SmolLM2-135M-Instruct.Q4_1.gguf --text data/*shakespeare.txt --max_windows "
      "20 --stats build/perplexity.json\n"
      "nanospec perplexity --model runs/small --data data/*shakespeare.txt\n",
      together(
          {{heading("Text"),
            {"--model", "FILE|DIR", &m.options.settings.model, "a GGUF file, or the folder that train_gpt wrote",
             required()},
            {"--text", "FILE", &m.text_file, "the text; -: standard input"},
            {"--data", "FILE", &m.options.data_file,
             "or the training text: its last tenth, which train_gpt held out (default: the text in data/)"},
            {"--window", "N", &m.window, "tokens of a window; at most as many as the model sees", from(4, kMaxWindow)},
            {"--max_windows", "N", &m.max_windows, "the most windows to read; 0: all", from(0)}},
           machine_flags(m.options),
           {heading("Output"),
            {"--stats", "FILE", &m.stats_file, "write the figures, as JSON", written()},
            {"--quiet", "", &m.options.settings.quiet, "no progress"}}})};
}

void check_command_line(Reading& m) {
  Options& o = m.options;
  const bool text = o.given.has("--text"), data = o.given.has("--data");
  if (text && data) refuse_usage("more than one text: nanospec perplexity: give only one of --text or --data");
  if (!text && !data && !is_gguf(o.settings.model)) o.data_file = find_text(o.settings.model, false);
  if (m.text_file.empty() && o.data_file.empty())
    refuse_usage("there is no text{}: nanospec perplexity: add --text FILE",
                 is_gguf(o.settings.model) ? "" : ", and " + not_found_text(o.settings.model));
  check_outputs(o.given, {o.data_file});
  o.settings.rows = kRows;
}

// Reads the text that is measured. Throws runtime_error.
void read_text(Reading& m) {
  const std::string& data = m.options.data_file;
  m.text = data.empty() ? text_in(m.text_file) : NamedText{printable(data, 300), read_file(data)};
  if (data.empty()) return;
  check_held_out(m.options.settings.model, m.text.bytes, data);
  m.text = {"the last tenth of " + m.text.name, m.text.bytes.substr(held_out_begin(m.text.bytes))};
}

// ---------------------------------------------------------------------------------------------------------------
// Measuring

// Makes the windows. Throws invalid_argument where the model sees fewer tokens than --window says, and runtime_error
// where the text has too few.
void cut(Reading& m, const Engine& engine) {
  const int block = engine.context();
  if (m.options.given.has("--window") && m.window > block)
    refuse_usage("the model sees at most {} tokens: --window {}: give a smaller one", block, m.window);
  m.window = std::min(m.window, block);
  const int begin = engine.tokenizer().begin;  // the token that the model wants before every text
  m.tokens = engine.tokenizer().encode(m.text.bytes, m.text.name);
  if (begin >= 0) m.tokens.insert(m.tokens.begin(), begin);
  m.windows = m.tokens.size() / size_t(m.window);
  if (m.windows == 0)
    refuse(filled("the text has {}, less than a window of {}", count(m.tokens.size(), "token"), m.window), m.text.name,
           "give a longer text, or a smaller --window");
  if (m.max_windows > 0) m.windows = std::min(m.windows, size_t(m.max_windows));
}

// All windows; an interrupt ends it after the window that is being read.
void measure(Reading& m, Engine& engine) {
  Progress progress(m.options.settings.quiet);
  while (m.done < m.windows && !interrupted()) {
    const auto from = m.tokens.begin() + long(m.done * size_t(m.window));
    Tokens window(from, from + m.window);
    if (engine.tokenizer().begin >= 0) window[0] = engine.tokenizer().begin;
    for (double loss : engine.losses(window, m.first())) m.loss.add(loss);
    for (size_t i = size_t(m.first()); i < window.size(); i++) m.counted += double(engine.decode(window[i]).size());
    m.done++;
    m.seconds = progress.seconds();
    if (progress.due())
      progress.show(filled("{} of {}, perplexity {}, {} tok/s, {}", thousands(m.done), count(m.windows, "window"),
                           decimals(m.loss.perplexity(), 2), thousands(ratio(m.read(), m.seconds)),
                           progress.left(m.done, m.windows)));
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Saying

std::string summary(const Reading& m, const Engine& engine) {
  const MeanLoss& loss = m.loss;
  return filled(
      "loss           {} nats per token, standard error {}\n"
      "perplexity     {}, standard error {}\n"
      "bits per byte  {}\n"
      "{} of {} of {}, after {} each; {} in {}: {} tok/s  ({})\n",
      decimals(loss.mean(), 4), decimals(loss.error(), 4), decimals(loss.perplexity(), 3),
      decimals(loss.perplexity_error(), 3), decimals(m.bits_per_byte(), 4), count(loss.n, "token"),
      count(m.done, "window"), count(m.window, "token"), m.first(), count(m.read(), "token"), duration(m.seconds),
      thousands(ratio(m.read(), m.seconds)), machine_text(m.options.settings, engine));
}

OrderedJson stats_json(const Reading& m, const Engine& engine) {
  OrderedJson json = {{"loss", m.loss.mean()},
                      {"loss_error", m.loss.error()},
                      {"perplexity", m.loss.perplexity()},
                      {"perplexity_error", m.loss.perplexity_error()},
                      {"bits_per_byte", m.bits_per_byte()},
                      {"tokens", m.loss.n},
                      {"bytes", int64_t(m.counted)},
                      {"window", m.window},
                      {"windows", m.done},
                      {"whole", m.done == m.windows},
                      {"begin_token", engine.tokenizer().begin},
                      {"seconds", m.seconds},
                      {"tokens_per_second", ratio(m.read(), m.seconds)},
                      {"text", m.text.name},
                      {"text_sha256", sha256(m.text.bytes)}};
  json.update(settings_json(m.options, engine, false));
  return json;
}

}  // namespace

int perplexity_command(int argc, char** argv) {
  Reading m;
  if (!read_flags(describe(m), argc, argv, m.options)) return 0;
  check_command_line(m);
  read_text(m);
  Engine engine(m.options.settings);
  cut(m, engine);

  watch_interrupts();
  measure(m, engine);
  if (m.done == 0) return stopped(": nothing is measured");
  print_out(summary(m, engine));
  if (!m.stats_file.empty()) write_file(m.stats_file, json_text(stats_json(m, engine), 2));
  if (!interrupted()) return 0;
  return stopped(" after " + std::to_string(m.done) + " of " + std::to_string(m.windows) + " windows");
}

}  // namespace nanospec
