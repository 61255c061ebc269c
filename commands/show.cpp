// commands/show.cpp: one generation as a page that is stepped through: every tree, what the target chose, what was
// kept, and a race against plain decoding. The page itself is commands/page.html; here it gets its data.
#include "commands/comparison.h"

namespace nanospec {
namespace {

// commands/page.html, which the Makefile has made a string of.
constexpr const char* kPage =
#include "page.inc"
    ;
constexpr const char* kPlaceOfData = "/*DATA*/";

// The page stays one that a browser can open: its forwards take no more than this.
constexpr size_t kMostForwards = 4000, kMostBytes = 8 << 20;
constexpr size_t kMostPrompt = 16 << 10;  // bytes of the prompt's end
constexpr int kUnseen = 500;              // tokens that are decoded first, and not shown

struct Show {
  Options options;
  std::string html_file;
};

Command describe(Show& s) {
  s.options.max_new_tokens = 200;
  return {
      "nanospec show",
      "Writes one self-contained page that steps through a generation: the tree of each forward, what the target "
      "chose, the flat rows and their mask, what was kept; and a race against plain decoding.",
      "nanospec show --model runs/small --prompt \"ROMEO:\" --html build/show.html\n"
      "nanospec show --model runs/small --prompt \"ROMEO:\" --drafter ngram:4 --shape tree:3x2 --html build/show.html\n"
      "nanospec show --model runs/small --prompt \"ROMEO:\" --drafter suffix+ngram:4 --html build/show.html\n",
      together({text_flags(s.options),
                model_text_flags(s.options),
                run_flags(s.options, speculation_flags(s.options)),
                {heading("Output"),
                 {"--html", "FILE", &s.html_file, "the page to write; open it in a browser", written(true)},
                 {"--quiet", "", &s.options.settings.quiet, "no messages, no progress"}}})};
}

struct Timed {
  Generated generated;
  std::vector<double> times;  // when each token came, in seconds since the prompt's prefill
};

// doing: for the progress line. The text ends early where `full` turns true.
Timed timed(Engine& engine, const Show& s, const Method& method, const Tokens& prompt, int wanted,
            const std::string& doing, const Observation& observation = {}, const bool& full = false) {
  Timed run;
  Progress progress(s.options.settings.quiet);
  const auto on_token = [&](int, bool) {
    run.times.push_back(progress.seconds());
    if (progress.due())
      progress.show(filled("{}: {} of {}, {}", doing, thousands(run.times.size()), count(wanted, "token"),
                           progress.left(run.times.size(), wanted)));
    return !full;
  };
  run.generated = continue_text(engine, s.options, method, prompt, wanted, on_token, observation);
  for (double& time : run.times) time -= run.generated.stats.prefill_seconds;
  return run;
}

// The drafter's own chance of a node's token after its parent, at the sampling's temperature (at 0 as at 1).
OrderedJson chance_of(const IterationReport& report, int node, Sampling sampling) {
  const int above = report.tree.origin[report.tree.parent[node]], vocab = report.drafter->vocab;
  const float* const logits = report.drafter->logits(report.growth, above);
  if (!logits) return nullptr;
  if (sampling.temperature == 0) sampling.temperature = 1;
  std::vector<float> q(static_cast<size_t>(vocab));
  distribution(logits, vocab, sampling, q.data());
  return q[size_t(report.tree.token[node])];
}

// Why the path went no further.
std::string stop_text(const IterationReport& report, const Engine& engine, const Tokens& ends) {
  const int last = report.verdict.rows.back();
  const int token = report.emitted > 0 ? report.verdict.tokens[size_t(report.emitted) - 1] : -1;
  if (is_among(ends, token)) return "the target chose '" + engine.decode(token) + "', which ends the text";
  if (!report.drafter) return "plain decoding drafts nothing";
  if (!report.drafted) return "nothing was drafted, since it has not paid of late";
  if (report.emitted < int(report.verdict.tokens.size())) return "the text was long enough";
  if (report.tree.first_child(last) >= 0)
    return "the target chose '" + engine.decode(report.verdict.tokens.back()) + "', which no child carried";
  if (report.tree.depth[last] >= report.deepest) return "no node may stand deeper: the window or the text ends there";
  if (report.tree.size() == 1) return "no guess was thought worth a node";
  return "the tree ended there: every guess on the path was right";
}

OrderedJson texts_of(const Engine& engine, const Tokens& tokens) {
  OrderedJson texts = OrderedJson::array();
  for (int token : tokens) texts.push_back(engine.decode(token));
  return texts;
}

OrderedJson report_json(const IterationReport& report, const Engine& engine, const Options& options) {
  const Tree& tree = report.tree;
  const Tokens& tokens = report.verdict.tokens;
  OrderedJson nodes = OrderedJson::array();
  for (int row = 0; row < tree.size(); row++) {
    const size_t origin = size_t(tree.origin[row]);
    OrderedJson node = {{"token", engine.decode(tree.token[row])},
                        {"parent", tree.parent[row]},
                        {"depth", tree.depth[row]},
                        {"end", tree.end[row]}};
    if (row > 0) {
      node["q"] = chance_of(report, row, options.sampling);
      node["confidence"] = report.growth.chance[origin];
      node["reach"] = report.growth.reach[origin];
      node["author"] = report.drafter->author(tree.origin[tree.parent[row]], tree.token[row]);
    }
    node["pick"] = report.pick ? OrderedJson(engine.decode(report.pick(row))) : OrderedJson();
    nodes.push_back(std::move(node));
  }
  for (size_t i = 0; i < report.verdict.rows.size(); i++)
    nodes[size_t(report.verdict.rows[i])]["pick"] = engine.decode(tokens[i]);
  return {{"index", report.index},
          {"past", report.past},
          {"slide", report.slides},
          {"nodes", std::move(nodes)},
          {"rows", report.verdict.rows},
          {"emitted", texts_of(engine, {tokens.begin(), tokens.begin() + report.emitted})},
          {"seconds",
           {{"draft", report.draft_seconds}, {"forward", report.forward_seconds}, {"verify", report.verify_seconds}}},
          {"stop", stop_text(report, engine, ends_of(options, engine))}};
}

// JSON that may stand inside <script>: no '<' is left, so nothing can end it.
std::string script_json(const OrderedJson& json) {
  return replaced(json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace), "<", "\\u003c");
}

}  // namespace

int show_command(int argc, char** argv) {
  Show s;
  if (!read_command_line(describe(s), argc, argv, s.options)) return 0;
  const std::string prompt = read_prompt(s.options);
  Engine engine(s.options.settings);
  const Tokens tokens = engine.encode_prompt(prompt, "the prompt");

  // A part runs unseen, which brings it near and measures what `auto` goes by; then the trees are looked at, up to what
  // a page holds; then each side is timed, as far as the page shows it.
  watch_interrupts();
  const int asked = s.options.max_new_tokens, unseen = std::min(asked, kUnseen);
  timed(engine, s, kPlain, tokens, unseen, "warming up");
  timed(engine, s, s.options.method, tokens, unseen, "warming up");
  OrderedJson iterations = OrderedJson::array();
  size_t bytes = 0;
  bool full = false;  // the page
  const Observation observation = {[&](const IterationReport& report) {
    iterations.push_back(report_json(report, engine, s.options));
    bytes += script_json(iterations.back()).size();
    full = iterations.size() >= kMostForwards || bytes >= kMostBytes;
  }};
  const Timed watched = timed(engine, s, s.options.method, tokens, asked, "looking at each tree", observation, full);
  const int wanted = int(watched.times.size());
  const Timed plain = timed(engine, s, kPlain, tokens, wanted, "timing plain decoding");
  const Timed fast = timed(engine, s, s.options.method, tokens, wanted, "timing " + method_text(s.options.method));
  if (interrupted()) return stopped(": the generation is not complete, so no page is written");

  const auto side = [&](const Timed& run) {  // its own tokens too: rules other than match may write another text
    return OrderedJson{{"seconds", run.generated.stats.seconds},
                       {"times", run.times},
                       {"tokens", texts_of(engine, run.generated.tokens)}};
  };
  const size_t cut = prompt.size() > kMostPrompt ? character_from(prompt, prompt.size() - kMostPrompt) : 0;
  OrderedJson data = {{"model", s.options.settings.model},
                      {"method", method_json(s.options.method)},
                      {"device", engine.device()},
                      {"sampling", sampling_json(s.options.sampling)},
                      {"block_size", engine.context()},
                      {"prompt", (cut > 0 ? "..." : "") + prompt.substr(cut)},
                      {"plain", side(plain)},
                      {"speculative", side(fast)},
                      {"tokens", texts_of(engine, watched.generated.tokens)},
                      {"iterations", std::move(iterations)}};
  write_file(s.html_file, replaced(kPage, kPlaceOfData, script_json(data)));
  if (!s.options.settings.quiet)
    print_out(filled("wrote {}: {} of {}, {}{}; open it in a browser\n", s.html_file,
                     count(data["iterations"].size(), "target forward"), method_text(s.options.method),
                     count(wanted, "token"),
                     wanted == asked ? ""
                     : full          ? " of " + thousands(asked) + ", as many as a page holds"
                                     : ", where the text ends"));
  return 0;
}

}  // namespace nanospec
