// commands/calibrate.cpp: measures how often a drafter's rank-r guess at depth d is right, for the shapes that are made
// from that (calibration.h).
//
// It first decodes the texts plainly, side by side. Then it decodes each again by chains of a stand-in, which knows the
// text and asks the drafter for its candidates at every place.

#include "commands/calibration.h"
#include "commands/comparison.h"

namespace nanospec {
namespace {

constexpr int kTokensEach = 125;  // that follow a held-out prompt

struct Measurement {
  Options options;
  std::string drafter = "bigram", out_file;
  int places = 4000, depths = 8, ranks = 8;
};

Command describe(Measurement& m) {
  std::vector<Flag> text = text_flags(m.options), prompts = prompts_flags(m.options);
  text.pop_back();  // max_new_tokens
  prompts.back().help += "; as many as the places take, unless given";
  return {"nanospec calibrate",
          "Measures how often a drafter's best, second best, ... guess is right at each depth of a tree, given that "
          "the path to it was right. The shapes calibrated and sequoia are made from that; they look for it in "
          "calibration.json in the model's folder, or beside FILE.gguf in FILE.calibration.json, by drafter and "
          "temperature.",
          "nanospec calibrate --model runs/small --drafter ngram:4\n"
          "nanospec calibrate --model runs/small --drafter ngram:4 --temperature 0.7\n"
          "nanospec generate --model runs/small --prompt \"ROMEO:\" --drafter ngram:4 --shape calibrated --budget 16\n",
          together({text,
                    model_text_flags(m.options),
                    prompts,
                    {heading("Measurement"),
                     {"--drafter", "WORD", &m.drafter, "whose guesses are counted: build/nanospec help drafters"},
                     {"--places", "N", &m.places, "about how many places in texts to examine", from(10, 1e8)},
                     {"--depths", "N", &m.depths, "depths to measure separately", from(1, kMostDepth)},
                     {"--ranks", "N", &m.ranks, "guesses to ask for at a place", from(1, 64)}},
                    run_flags(m.options),
                    {heading("Output"),
                     {"--out", "FILE", &m.out_file, "the file to write, if not the default one", written()},
                     {"--quiet", "", &m.options.settings.quiet, "no progress"}}})};
}

void check_command_line(Measurement& m) {
  Options& o = m.options;
  if (parse_drafter(m.drafter)[0].kind == DrafterName::kNone)
    refuse_usage("drafter none guesses nothing: --drafter: name another, for instance ngram:4");
  choose_prompts(o);
  check_outputs(o.given, {o.data_file}, "calibration.json");
  choose_sampling(o);
  if (m.out_file.empty()) m.out_file = calibration_path(o.settings.model);
  o.settings.budget = m.depths;
  o.settings.rows = m.depths + 1;
  // Nearly every token is looked at: all but those that end a whole chain.
  if (!o.data_file.empty() && !o.given.has("--held_out")) o.held_out = (m.places + kTokensEach - 1) / kTokensEach;
}

// ---------------------------------------------------------------------------------------------------------------
// Measuring

// All of the prompts; an interrupt ends it early.
RankCounts measure(const Measurement& m, Engine& engine, const std::vector<std::string>& prompts) {
  RankCounts counts{m.depths, m.ranks};
  const Options& o = m.options;
  const Method chain = {m.drafter, "chain:" + std::to_string(m.depths), "match"};
  const int each = int((int64_t(m.places) + int64_t(prompts.size()) - 1) / int64_t(prompts.size()));
  const double all = 2.0 * each * double(prompts.size());
  double done = 0;
  Progress progress(o.settings.quiet);
  const auto on_token = [&](int, bool) {
    done++;
    if (progress.due()) progress.show(thousands(counts.places()) + " places, " + progress.left(done, all));
    return true;
  };
  // Noise of its own for each text, or all would meet the same at the same place.
  std::vector<Tokens> texts = encoded(engine, m.options, {prompts.begin(), prompts.end()});
  const Tokens ends = ends_of(o, engine);
  std::deque<Request> requests;
  for (Tokens& text : texts) {
    requests.push_back({text, o.sampling, each});
    requests.back().sampling.sequence = uint32_t(requests.size() - 1);
    requests.back().on_token = [&](int token) {
      text.push_back(token);
      return on_token(token, false) && !is_among(ends, token) && !interrupted();
    };
  }
  engine.generate(kPlain, requests);
  for (size_t p = 0; p < texts.size() && !interrupted(); p++) {
    const auto forced = [&](Drafter& drafter) { return std::make_unique<Forced>(drafter, texts[p], counts); };
    const Tokens& prompt = requests[p].prompt;
    const Generated its = continue_text(engine, o, chain, prompt, each, on_token, {nullptr, forced}, uint32_t(p));
    if (followed_by(prompt, its.tokens) != texts[p] && !interrupted())
      refuse("a chain's text is not plain decoding's", "nanospec calibrate", "this is a bug: report it");
  }
  return counts;
}

// ---------------------------------------------------------------------------------------------------------------
// Saying

std::string table(const Accuracy& a) {
  TableRows rows = {{"depth"}};
  for (int r = 0; r < a.ranks; r++) rows[0].push_back("rank " + std::to_string(r));
  rows[0].insert(rows[0].end(), {"none of them", "places"});
  for (int d = 0; d < a.depths; d++) {
    rows.push_back({std::to_string(d + 1)});
    double any = 0;
    for (int r = 0; r < a.ranks; r++) {
      any += a.at(d, r);
      rows.back().push_back(decimals(a.at(d, r), 3));
    }
    rows.back().insert(rows.back().end(), {decimals(1 - any, 3), thousands(a.seen[d])});
  }
  return format_table(rows, std::string(rows[0].size(), 'r'));
}

// Tokens that the calibrated tree of so many nodes commits in a forward, if the rates hold.
double expected_tokens(const Accuracy& a, int nodes) {
  const Template plan = calibrated_template(a, nodes);
  std::vector<double> reach = {1};
  for (int d = 1; d <= plan.depth(); d++)
    for (int i = plan.level[d]; i < plan.level[d + 1]; i++)
      reach.push_back(reach[plan.parent[i]] * a.at(d - 1, plan.rank[i]));
  return std::accumulate(reach.begin(), reach.end(), 0.0);
}

std::string summary(const Measurement& m, const Accuracy& a) {
  std::vector<std::string> trees;
  for (int nodes : {4, 16, 64}) trees.push_back(filled("{} ({} nodes)", decimals(expected_tokens(a, nodes), 2), nodes));
  return filled(
      "One guess takes the drafter {} microseconds. With these rates, calibrated trees commit\nin a forward, except at "
      "the end of a window, {} tokens.\nWritten to {}: {} at temperature {}.\n",
      decimals(1e6 * a.expand_seconds, 2), joined(trees), m.out_file, m.drafter,
      decimals(m.options.sampling.temperature, 2));
}

}  // namespace

int calibrate_command(int argc, char** argv) {
  Measurement m;
  if (!read_flags(describe(m), argc, argv, m.options)) return 0;
  check_command_line(m);
  const std::vector<std::string> prompts = read_prompts(m.options);
  if (size_t(m.places) <= prompts.size())  // the end of a text is no place
    refuse_usage("{} places in {} texts are less than one in each: --places: give more, or fewer texts", m.places,
                 prompts.size());
  if (std::filesystem::exists(m.out_file)) read_calibrations(m.out_file);  // what it holds is to stay
  choose_seats(m.options.settings, prompts.size());
  Engine engine(m.options.settings);
  check_writable(m.out_file);

  watch_interrupts();
  const RankCounts counts = measure(m, engine, prompts);
  if (interrupted()) return stopped(": nothing is written");
  if (counts.places() == 0)
    refuse("every text ended at once, so that there is nothing to look at", m.options.settings.model,
           "give other prompts, or --ignore_eos");
  const Accuracy accuracy = counts.accuracy();
  Metadata origin;
  const std::string& data = m.options.data_file;
  if (std::filesystem::is_regular_file(data)) origin = text_origin(data, sha256(read_file(data)));
  origin["model"] = model_hash(m.options.settings.model);
  write_calibration(m.out_file,
                    {m.drafter, as_typed(m.options.sampling.temperature), counts.places(), accuracy, origin});
  print_out(
      "How often the drafter's guess was right where the path to it was: rank 0 is its best guess, depth 1 the\n"
      "token after the root.\n\n" +
      table(accuracy) + "\n" + summary(m, accuracy));
  return 0;
}

}  // namespace nanospec
