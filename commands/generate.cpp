// commands/generate.cpp: continues one prompt and says what that took.
//
// Standard output gets the prompt and the text, byte for byte, and nothing else; what people read goes to standard
// error, what programs read into --stats.
#include <unistd.h>

#include "commands/commands.h"

namespace nanospec {
namespace {

struct Generation {
  Options options;
  Method method;
  std::string stats_file;
  bool stream = false;
};

Command describe(Generation& g) {
  Command command;
  command.name = "nanospec generate";
  command.what =
      "Continues a prompt. Standard output gets the prompt and the text, nothing else. The text depends on the model, "
      "how its numbers are stored, the prompt, the seed and the sampling alone: --drafter, --shape and --budget change "
      "how fast it appears, never one character of it.";
  command.examples =
      "nanospec generate --model runs/small --prompt \"ROMEO:\"\n"
      "nanospec generate --model runs/small --prompt \"ROMEO:\" --drafter ngram:4 --shape auto\n"
      "nanospec generate --model runs/small --prompt \"ROMEO:\" --drafter none\n"
      "nanospec generate --model runs/small --prompt_file start.txt --shape tree:3x2 --stats stats.json\n";
  const auto append = [&](std::vector<Flag> flags) {
    command.flags.insert(command.flags.end(), flags.begin(), flags.end());
  };
  append(text_flags(g.options));
  append(sampling_flags(g.options));
  append(speculation_flags(g.options, g.method));
  append(machine_flags(g.options));
  append({heading("Output"),
          {"--stream", "", &g.stream, "write each token as it is found"},
          {"--stats", "FILE", &g.stats_file, "write what it took, as JSON", written()},
          {"--quiet", "", &g.options.quiet, "no progress, no summary"}});
  return command;
}

// What a rule other than match makes of the text, in one line.
std::string promise_text(const Method& method) {
  const std::string wrong = flaw(promise_of(method)), rule = "--verify " + method.verify;
  if (promise_of(method) == Promise::kSameBytes) return "";
  if (wrong.empty()) return rule + ": another draw than plain decoding's, of the same distribution\n";
  return rule + " is " + wrong + ": this text does not follow the model's distribution\n";
}

// What it took, for people.
std::string summary(const Generation& g, const Engine& engine, const Stats& stats) {
  const double tokens = double(stats.tokens), forwards = double(stats.target_forwards);
  std::string text = count(tokens, "token") + " in " + duration(stats.seconds) + ": " +
                     thousands(ratio(tokens, stats.seconds)) + " tok/s  (" + method_text(g.method) + "; " +
                     engine.device() + ", " + numbers_text(g.options.settings) + ", " +
                     count(engine.threads(), "thread") + "; prefill " + duration(stats.prefill_seconds) + ")\n";
  text += "acceptance length " + decimals(ratio(tokens, forwards), 2) + ": " + count(forwards, "target forward") +
          ", " + count(double(stats.drafted_nodes), "drafted node") + ", " +
          count(double(stats.slide_prefills), "window slide") + "\n";
  if (g.method.drafter != "none") {
    text += "forwards by tokens committed:";
    for (size_t i = 0; i < stats.accept_histogram.size(); i++)
      if (stats.accept_histogram[i] > 0)
        text += "  " + std::to_string(i) + ": " + thousands(double(stats.accept_histogram[i]));
    text += "\n";
  }
  if (stats.accepted_by.size() > 1) {
    text += "accepted nodes by drafter:";
    for (const auto& [drafter, nodes] : stats.accepted_by) text += "  " + drafter + ": " + thousands(double(nodes));
    text += "\n";
  }
  if (stats.ahead.wanted) text += "ahead: " + ahead_text(stats.ahead) + "\n";
  return promise_text(g.method) + text + "time: draft " + percent(stats.seconds_draft, stats.seconds) + ", forward " +
         percent(stats.seconds_forward, stats.seconds) + ", verify " + percent(stats.seconds_verify, stats.seconds) +
         ", keep " + percent(stats.seconds_keep, stats.seconds) + ", slides " +
         percent(stats.seconds_slide, stats.seconds) + "; weights read at " +
         decimals(gigabytes_per_second(engine, stats), 1) + " GB/s\n";
}

std::string report_json(const Generation& g, const Engine& engine, const Stats& stats, const std::string& text) {
  nlohmann::ordered_json json = stats_json(engine, stats);
  json.update(method_json(g.method));
  json.update(settings_json(g.options, engine));
  json["text_sha256"] = sha256(text);
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

int generate_command(int argc, char** argv) {
  Generation g;
  const Command command = describe(g);
  Given given;
  if (!read_command_line(command, argc, argv, g.options, g.method, given)) return 0;
  const std::string prompt = read_prompt(g.options, given);
  Engine engine(g.options.settings);
  const std::vector<int> prompt_tokens = engine.encode(prompt, "the prompt");

  const int wanted = g.options.max_new_tokens;
  std::string text = prompt;  // what standard output gets
  int done = 0;
  Progress progress(g.options.quiet || (g.stream && isatty(STDOUT_FILENO)));
  watch_interrupts();
  const Generated generated = engine.generate(g.method, g.options.sampling, prompt_tokens, wanted, [&](int token) {
    text += engine.decode(token);
    done++;
    if (g.stream) print_out(done == 1 ? text : engine.decode(token), true);  // the prompt with it: nothing was refused
    if (progress.due())
      progress.show(thousands(done) + " of " + count(wanted, "token") + ", " +
                    thousands(ratio(done, progress.seconds())) + " tok/s, " +
                    time_left(done, wanted, progress.seconds()));
    return !interrupted();
  });
  progress.clear();
  if (!g.stream || done == 0) print_out(text);
  print_out("", true);

  if (given.has("--stats")) write_file(g.stats_file, report_json(g, engine, generated.stats, text));
  if (!g.options.quiet) {
    if (isatty(STDOUT_FILENO) && isatty(STDERR_FILENO)) fputs(text.back() == '\n' ? "\n" : "\n\n", stderr);
    if (interrupted()) fputs("stopped early\n", stderr);
    fputs(summary(g, engine, generated.stats).c_str(), stderr);
  }
  return interrupted() ? kInterruptedStatus : 0;
}

}  // namespace nanospec
