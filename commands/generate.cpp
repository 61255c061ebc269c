// commands/generate.cpp: continues one prompt and says what that took; many prompts, with --prompts: prompts.cpp.
//
// Standard output gets the prompt and the text, byte for byte, and nothing else; what people read goes to standard
// error, what programs read into --stats. A text ends at its end-of-text token, where the model has one, before a
// --stop, or after --max_new_tokens.

#include "commands/prompts.h"

namespace nanospec {
namespace {

Command describe(Generation& g) {
  return {
      "nanospec generate",
      "Continues a prompt. Standard output gets the prompt and the text, nothing else. The text depends on the model, "
      "how its numbers are stored, the prompt, the seed and the sampling alone: --drafter, --shape and --budget change "
      "how fast it appears, never one character of it.",
      "nanospec generate --model runs/small --prompt \"ROMEO:\"\n"
      "nanospec generate --model runs/small --prompt \"ROMEO:\" --drafter ngram:4 --shape auto\n"
      "nanospec generate --model runs/small --prompt \"ROMEO:\" --drafter none\n"
      "nanospec generate --model runs/small --prompt \"JULIET:\" --shape tree:3x2 --stats build/stats.json\n"
      "nanospec generate --model models/SmolLM2-135M-Instruct.Q4_1.gguf --prompt \"Name three colours.\" --chat\n"
      "nanospec generate --model models/SmolLM2-135M-Instruct.Q4_1.gguf --prompt \"def f(\" --stop \"#\" --stop class\n"
      "nanospec generate --model runs/small --prompts data/prompts.jsonl --out build/texts.jsonl\n",
      together(
          {text_flags(g.options),
           model_text_flags(g.options),
           {{"--stop", "TEXT", &g.stops, "end before this text, which is not written; may be given several times"}},
           chat_flags(g.options),
           {heading("Many prompts"),
            {"--prompts", "FILE", &g.options.prompts_file,
             "many texts: each line is an object of JSON, with \"prompt\", or \"messages\" for a chat: a list of "
             "\"role\" and \"content\". It may have its own max_new_tokens, temperature, top_k, top_p, min_p, seed, "
             "repetition_penalty, presence_penalty, frequency_penalty, and stop, a text or a list; else the flags' "
             "hold"},
            {"--out", "FILE", &g.out_file,
             "where the texts go: a line for each, in the same order, with \"index\" from 0, \"text\" without the "
             "prompt, \"tokens\", their number, \"ended_by\" (length, end of text, stop) and \"stats\". After Ctrl-C "
             "the same command goes on",
             written()},
            {"--batch", "N", &g.batch, "texts that are generated side by side; 0: as many as pay, at most 16",
             from(0, 4096)}},
           run_flags(g.options, speculation_flags(g.options)),
           {heading("Output"),
            {"--stream", "", &g.stream, "write each token when it is generated"},
            {"--stats", "FILE", &g.stats_file, "write counts and times, as JSON", written()},
            {"--transcript", "FILE", &g.transcript_file,
             "write the text's tokens and all that they depend on, as JSON: nanospec verify checks it", written()},
            {"--quiet", "", &g.options.settings.quiet, "no progress, no summary"}}})};
}

void check_command_line(const Generation& g) {
  const Given& given = g.options.given;
  const bool many = given.has("--prompts");
  if (many && !given.has("--out"))
    refuse_usage("many texts go into a file: nanospec generate: add --out FILE to --prompts");
  if (many && g.stream) refuse_usage("--stream writes one text: nanospec generate: leave it out, or give --prompt");
  for (const char* flag : {"--out", "--batch"})
    if (!many && given.has(flag))
      refuse_usage("{} is for many texts: nanospec generate: add --prompts FILE, or leave it out", flag);
  if (!many) check_chat(g.options, "nanospec generate");  // a line may be a chat
  if (given.has("--transcript") && (many || promise_of(g.options.method) != Promise::kSameBytes))
    refuse_usage(
        "a transcript is of one text by --verify match: --transcript: leave it out, or --prompts and --verify");
  for (const std::string& stop : g.stops)
    if (stop.empty()) refuse_usage("an empty text: --stop: give at least one character");
}

// What it took, for people.
std::string summary(const Generation& g, const Engine& engine, const Stats& stats) {
  std::string text = promise_text(g.options.method);
  text += filled("{} in {}: {} tok/s  ({}; {}; {}; prefill {})\n", count(stats.tokens, "token"),
                 duration(stats.seconds), thousands(ratio(stats.tokens, stats.seconds)), method_text(g.options.method),
                 sampling_text(g.options.sampling), machine_text(g.options.settings, engine),
                 duration(stats.prefill_seconds));
  text += filled("acceptance length {}: {}, {}, {}\n", decimals(ratio(stats.tokens, stats.target_forwards), 2),
                 count(stats.target_forwards, "target forward"), count(stats.drafted_nodes, "drafted node"),
                 count(stats.slide_prefills, "window slide"));
  std::string committed, accepted;
  for (size_t i = 0; i < stats.accept_histogram.size(); i++)
    if (stats.accept_histogram[i] > 0) committed += filled("  {}: {}", i, thousands(stats.accept_histogram[i]));
  for (const auto& [drafter, nodes] : stats.accepted_by) accepted += filled("  {}: {}", drafter, thousands(nodes));
  if (g.options.method.drafter != "none") text += "forwards by tokens committed:" + committed + "\n";
  if (stats.accepted_by.size() > 1) text += "accepted nodes by drafter:" + accepted + "\n";
  if (stats.ahead.wanted) text += "ahead: " + ahead_text(stats.ahead) + "\n";
  const auto share = [&](double seconds) { return percent(seconds, stats.seconds); };
  return text + filled("time: draft {}, forward {}, verify {}, keep {}, slides {}; weights read at {} GB/s\n",
                       share(stats.seconds_draft), share(stats.seconds_forward), share(stats.seconds_verify),
                       share(stats.seconds_keep), share(stats.seconds_slide),
                       decimals(gigabytes_per_second(engine, stats), 1));
}

}  // namespace

std::string promise_text(const Method& method) {
  const std::string wrong = flaw(promise_of(method)), rule = "--verify " + method.verify;
  if (promise_of(method) == Promise::kSameBytes) return "";
  if (wrong.empty()) return rule + ": another draw than plain decoding's, of the same distribution\n";
  return rule + " is " + wrong + ": this text does not follow the model's distribution\n";
}

void write_stats(const Generation& g, const Engine& engine, const Stats& stats, const OrderedJson& more) {
  if (g.stats_file.empty()) return;
  OrderedJson json = stats_json(engine, stats);
  json.update(method_json(g.options.method));
  json.update(settings_json(g.options, engine));
  json["context"] = engine.context();
  json.update(more);
  write_file(g.stats_file, json_text(json, 2));
}

int generate_command(int argc, char** argv) {
  Generation g;
  if (!read_command_line(describe(g), argc, argv, g.options)) return 0;
  check_command_line(g);
  if (g.options.given.has("--prompts")) return generate_prompts(g);
  const std::string prompt = read_prompt(g.options);
  if (!g.transcript_file.empty()) for_each_code_point(prompt, "the prompt", [](uint32_t, size_t, int) {});  // as JSON
  Engine engine(g.options.settings);
  const Tokens prompt_tokens = encode_prompt(engine, g.options, prompt, "the prompt");

  const int wanted = g.options.max_new_tokens;
  Growing grown{ShownText(g.stops), prompt + (g.options.chat ? "\n" : "")};  // what standard output gets
  const std::string& text = grown.text;
  int done = 0;
  Progress progress(g.options.settings.quiet || (g.stream && isatty(STDOUT_FILENO)));
  watch_interrupts();
  const auto on_token = [&](int token, bool ends) {
    done++;
    const bool goes_on = grown.put(engine, token, ends);
    if (g.stream) grown.print();  // with the prompt: nothing was refused
    progress.tell(done, wanted, "token", done, ratio(done, wanted));
    return goes_on;
  };
  const Generated generated = continue_text(engine, g.options, g.options.method, prompt_tokens, wanted, on_token);
  const Stats& stats = generated.stats;
  progress.clear();
  grown.finish();
  grown.print();

  const std::string why = grown.why(interrupted() ? "interrupt" : "length");
  write_stats(g, engine, stats, {{"ended_by", why}, {"text_sha256", sha256(text)}});
  if (!g.transcript_file.empty())
    write_file(g.transcript_file, transcript_json(g, engine, prompt, generated.tokens, text, why));
  if (!g.options.settings.quiet) {
    if (isatty(STDOUT_FILENO) && isatty(STDERR_FILENO))
      fputs(text.empty() || text.back() == '\n' ? "\n" : "\n\n", stderr);
    if (interrupted()) fputs("stopped early\n", stderr);
    fputs(summary(g, engine, stats).c_str(), stderr);
  }
  return interrupted() ? kInterruptedStatus : 0;
}

}  // namespace nanospec
