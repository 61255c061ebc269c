// study/diagnose.cpp: decodes by one method and says why its guesses were right or wrong, which nodes were wasted,
// where the time went, and why each forward committed no more.

#include "commands/comparison.h"
#include "commands/svg.h"
#include "study/diagnosis.h"
#include "study/study.h"

namespace nanospec {
namespace {

struct Examination {
  Options options;
  std::string json_file, svg_file;
  std::vector<Asked> prompts;
  std::optional<Diagnosis> diagnosis;  // what came of it, and `stats`
  Stats stats;
};

Command describe(Examination& e) {
  return {"nanospec diagnose",
          "Decodes by one method and says why: how sure the drafter was where it was right or wrong, which of its "
          "guesses were right, whether its chances can be believed, which nodes were wasted, where the time went, and "
          "why each forward committed no more tokens.",
          "nanospec diagnose --model runs/small --drafter ngram:4\n"
          "nanospec diagnose --model runs/small --drafter ngram:4 --shape tree:3x2 --prompt \"ROMEO:\"\n"
          "nanospec diagnose --model runs/small --json build/why.json --svg build/why.svg\n",
          together({text_flags(e.options),
                    prompts_flags(e.options),
                    chat_flags(e.options),
                    model_text_flags(e.options),
                    speculation_flags(e.options),
                    run_flags(e.options),
                    {heading("Output"),
                     {"--json", "FILE", &e.json_file, "write every figure", written()},
                     {"--svg", "FILE", &e.svg_file, "write pictures of them", written()},
                     {"--quiet", "", &e.options.settings.quiet, "no progress"}}})};
}

// ---------------------------------------------------------------------------------------------------------------
// Finding out

void examine(Examination& e, Engine& engine) {
  const Options& o = e.options;
  e.diagnosis.emplace(parse_shape(o.method.shape, o.settings.budget));
  const auto on_iteration = [&](const IterationReport& report) { e.diagnosis->add(report); };
  double done = 0;
  const double all = double(o.max_new_tokens) * double(e.prompts.size());
  Progress progress(o.settings.quiet);
  const std::vector<Tokens> prompts = encoded(engine, e.options, e.prompts);
  const auto on_token = [&](int, bool) {
    done++;
    if (progress.due()) progress.show(thousands(done) + " of " + count(all, "token") + ", " + progress.left(done, all));
    return true;
  };
  for (size_t p = 0; p < prompts.size() && !interrupted(); p++)  // each with noise of its own
    add(e.stats,
        continue_text(engine, o, o.method, prompts[p], o.max_new_tokens, on_token, {on_iteration}, uint32_t(p)).stats);
}

// ---------------------------------------------------------------------------------------------------------------
// Tables: what a report says, one after the other

std::string share(double part, double whole) { return percent(part, whole, 1); }

// A row for each bin that has nodes on one side or the other: the bin, and three cells for each side.
TableRows bins_rows(const Row& head, const Bins& left, const Bins& right, double step, Row (*cells)(const Bin&)) {
  TableRows rows = {head};
  for (size_t i = 0; i < kBins; i++) {
    if (left[i].nodes + right[i].nodes == 0) continue;
    rows.push_back({decimals(double(i) * step, 1) + " to " + decimals(double(i + 1) * step, 1)});
    for (const Bin& bin : {left[i], right[i]})
      for (const std::string& cell : cells(bin)) rows.back().push_back(cell);
  }
  return rows;
}

std::string stops_table(const Diagnosis& d) {
  TableRows rows = {{"why", "forwards", "share"}};
  for (size_t stop = 0; stop < kStopKinds; stop++)
    if (d.stops[stop] > 0) rows.push_back({kStops[stop], thousands(d.stops[stop]), share(d.stops[stop], d.forwards)});
  std::string text =
      "Why each forward committed no more tokens: the target chose a token that no node carried, or the accepted\npath "
      "ended in a leaf.\n\n" +
      format_table(rows, "lrr");
  const double no_node = double(d.stops[size_t(Stop::kNoNode)]);
  if (no_node == 0) return text;
  text += "Of the guesses without a node, by rank (1: the second best):";
  for (size_t rank = 0; rank < kAskedRanks; rank++)
    if (d.missing_rank[rank] > 0) text += "  " + std::to_string(rank) + ": " + share(d.missing_rank[rank], no_node);
  return text + "\n";
}

std::string entropy_table(const Diagnosis& d) {
  const Bins of_q = by_entropy(d.by_q), of_confidence = by_entropy(d.by_confidence);
  TableRows rows = bins_rows({"H, nats", "right", "wrong", "right, H of q", "right", "wrong", "right, H of confidence"},
                             of_q, of_confidence, kEntropyBin, [](const Bin& bin) -> Row {
                               return {thousands(bin.right), thousands(bin.nodes - bin.right),
                                       bin.nodes > 0 ? share(bin.right, bin.nodes) : ""};
                             });
  if (of_q[kBins - 1].nodes + of_confidence[kBins - 1].nodes > 0)
    rows.back()[0] = decimals(double(kBins - 1) * kEntropyBin, 1) + " or more";
  return "How unsure the drafter was where a child was right, and where none was: the entropy H of its distribution "
         "q,\nand of its confidence, which knows the noise. Nodes on the path that had children.\n\n" +
         format_table(rows, "lrrrrrr") + "A wrong one is the less sure of two in " + share(separation(d.by_q), 1) +
         " of pairs by H of q, in " + share(separation(d.by_confidence), 1) +
         " by that of the confidence (50%: it says nothing).\n";
}

std::string accuracy_table(const Diagnosis& d) {
  TableRows rows = {{"depth", "nodes"}};
  for (int rank = 0; rank < kAskedRanks; rank++) rows[0].push_back("rank " + std::to_string(rank));
  rows[0].push_back("none of them");
  const auto row = [&](const std::string& name, int64_t asked, const Ranks& right) {
    rows.push_back({name, thousands(asked)});
    int64_t none = asked;
    for (int64_t n : right) {
      none -= n;
      rows.back().push_back(decimals(ratio(n, asked), 3));
    }
    rows.back().push_back(decimals(ratio(none, asked), 3));
  };
  for (size_t depth = 0; depth < d.asked.size(); depth++)
    if (d.asked[depth] > 0) row(std::to_string(depth + 1), d.asked[depth], d.right[depth]);
  row("all", sum_of(d.asked), d.right_by_rank());
  return "Which of the drafter's guesses was the target's token (rank 0: the best), whether it got a node or not; "
         "depth 1\nis the token after the root. Of the nodes on the path that had children.\n\n" +
         format_table(rows, std::string(rows[0].size(), 'r'));
}

std::string reliability_table(const Diagnosis& d) {
  const TableRows rows = bins_rows(
      {"chance", "nodes", "foretold", "accepted", "nodes", "foretold", "accepted"}, d.raw.tenths, d.corrected.tenths,
      0.1, [](const Bin& bin) -> Row {
        const bool any = bin.nodes > 0;
        return {thousands(bin.nodes), any ? decimals(bin.foretold(), 3) : "", any ? decimals(bin.share(), 3) : ""};
      });
  return "Whether the drafter's chances can be believed, as it gives them (left) and as experience corrects them "
         "(right):\nnodes whose parent was on the path.\n\n" +
         format_table(rows, "lrrrrrr") +
         filled(
             "Brier score (0: all certain and right; 0.25: a coin): {} as given, {} corrected. Expected calibration "
             "error: {} and {}.\n",
             decimals(d.raw.brier(), 4), decimals(d.corrected.brier(), 4), decimals(d.raw.calibration_error(), 4),
             decimals(d.corrected.calibration_error(), 4));
}

std::string nodes_table(const Diagnosis& d) {
  TableRows rows = {{"depth", "drafted", "accepted", "wasted", "wasted share"}};
  const auto row = [&](const std::string& name, double drafted, double accepted) {
    rows.push_back({name, thousands(drafted), thousands(accepted), thousands(drafted - accepted),
                    share(drafted - accepted, drafted)});
  };
  for (size_t depth = 1; depth < d.drafted.size(); depth++)
    row(std::to_string(depth), double(d.drafted[depth]), double(d.accepted[depth]));
  row("all", double(sum_of(d.drafted)), double(sum_of(d.accepted)));
  return "Nodes that the target computed, and how many of them the text got.\n\n" + format_table(rows, "rrrrr");
}

constexpr std::pair<const char*, double Stats::*> kTimes[] = {
    {"draft", &Stats::seconds_draft}, {"forward", &Stats::seconds_forward}, {"verify", &Stats::seconds_verify},
    {"keep", &Stats::seconds_keep},   {"slides", &Stats::seconds_slide},    {"all", &Stats::seconds}};

std::string time_table(const Stats& stats) {
  TableRows rows = {{"part", "share", "microseconds a forward", "microseconds a token"}};
  for (const auto& [name, seconds] : kTimes)
    rows.push_back({name, share(stats.*seconds, stats.seconds),
                    decimals(1e6 * ratio(stats.*seconds, stats.target_forwards), 2),
                    decimals(1e6 * ratio(stats.*seconds, stats.tokens), 2)});
  return "Where the time went: the drafter and the tree; the target; the walk down the tree; the cache's gather; and\n"
         "the prefills of moved windows.\n\n" +
         format_table(rows, "lrrr");
}

std::string report_text(const Examination& e, const Engine& engine) {
  const Stats& s = e.stats;
  std::string text =
      filled("{}\n{}: {} in {}, {} each, {} nodes each, {} tok/s\n", circumstances(e.options, engine, e.prompts.size()),
             method_text(e.options.method), count(s.tokens, "token"), count(s.target_forwards, "forward"),
             decimals(ratio(s.tokens, s.target_forwards), 2), decimals(ratio(s.drafted_nodes, s.target_forwards), 1),
             thousands(ratio(s.tokens, s.seconds)));
  for (auto table : {stops_table, entropy_table, accuracy_table, reliability_table, nodes_table})
    text += "\n" + table(*e.diagnosis);
  return text + "\n" + time_table(s);
}

// ---------------------------------------------------------------------------------------------------------------
// JSON

OrderedJson entropy_json(const std::vector<Unsure>& nodes) {
  OrderedJson bins;
  for (const Bin& bin : by_entropy(nodes))
    bins.push_back(
        {{"from", kEntropyBin * double(bins.size())}, {"matched", bin.right}, {"mismatched", bin.nodes - bin.right}});
  return {{"separation", separation(nodes)}, {"bins", bins}};
}

OrderedJson forecast_json(const Forecast& forecast) {
  OrderedJson tenths;
  for (const Bin& tenth : forecast.tenths)
    tenths.push_back({{"nodes", tenth.nodes}, {"accepted", tenth.right}, {"foretold", tenth.foretold()}});
  return {{"brier", forecast.brier()}, {"calibration_error", forecast.calibration_error()}, {"tenths", tenths}};
}

std::string report_json(const Examination& e, const Engine& engine) {
  const Diagnosis& d = *e.diagnosis;
  OrderedJson json = stats_json(engine, e.stats);
  json.update(method_json(e.options.method));
  json.update(settings_json(e.options, engine));
  for (const Asked& one : e.prompts) json["prompts"].push_back(one.prompt);
  for (size_t stop = 0; stop < kStopKinds; stop++) json["stops"][kStops[stop]] = d.stops[stop];
  json["guessed_without_node_by_rank"] = d.missing_rank;
  json["entropy"] = {{"of_q", entropy_json(d.by_q)}, {"of_confidence", entropy_json(d.by_confidence)}};
  json["accuracy"] = OrderedJson::array();
  json["nodes"] = OrderedJson::array();
  for (size_t depth = 0; depth < d.asked.size(); depth++)
    json["accuracy"].push_back({{"depth", depth + 1}, {"nodes", d.asked[depth]}, {"right_by_rank", d.right[depth]}});
  json["forecasts"] = {{"raw", forecast_json(d.raw)}, {"corrected", forecast_json(d.corrected)}};
  for (size_t depth = 1; depth < d.drafted.size(); depth++)
    json["nodes"].push_back({{"depth", depth}, {"drafted", d.drafted[depth]}, {"accepted", d.accepted[depth]}});
  return json_text(json, 2);
}

// ---------------------------------------------------------------------------------------------------------------
// Pictures

constexpr int64_t kFew = 20;  // nodes, that say nothing of a share
using Style = Series::Style;

Panel entropy_panel(const std::string& title, const std::vector<Unsure>& nodes) {
  Series right = {"a child was right", kColours[2], Style::kBars}, wrong = {"none was", kColours[1], Style::kBars};
  double at = kEntropyBin / 2;
  for (const Bin& bin : by_entropy(nodes)) {
    right.points.push_back({at, double(bin.right)});
    wrong.points.push_back({at, double(bin.nodes - bin.right)});
    at += kEntropyBin;
  }
  const std::vector<double> nats = {0, 1, 2, 3, 4, 5};
  return {title, "entropy, nats", "nodes on the path, by 0.5 nats", {right, wrong}, nats, false, false, kEntropyBin};
}

Panel accuracy_panel(const Diagnosis& d) {
  Panel panel = {"Accuracy by depth", "depth of the guess", "guesses that were right, %"};
  for (int ranks : {1, 2, 4, kAskedRanks}) {
    Series series = {ranks == 1 ? "best guess" : "one of " + std::to_string(ranks), colour_at(panel.series.size()),
                     Style::kLine};
    for (size_t depth = 0; depth < d.asked.size(); depth++) {
      const double right = double(std::accumulate(d.right[depth].begin(), d.right[depth].begin() + ranks, int64_t(0)));
      if (d.asked[depth] >= kFew) series.points.push_back({double(depth + 1), 100 * right / double(d.asked[depth])});
    }
    panel.series.push_back(series);
  }
  return panel;
}

Panel ranks_panel(const Diagnosis& d) {
  Series series = {"all depths", kColours[4], Style::kBars};
  for (int64_t right : d.right_by_rank())
    series.points.push_back({double(series.points.size()), 100 * ratio(right, sum_of(d.asked))});
  return {"Accuracy by rank", "rank, 0: the best guess", "guesses that were right, %", {series}};
}

Panel reliability_panel(const Diagnosis& d) {
  Panel panel = {"Are the chances right?", "predicted chance, 0 to 1", "share accepted, 0 to 1"};
  panel.square = true;
  panel.series = {{"as given", kColours[3], Style::kDots}, {"corrected", kColours[5], Style::kLine}};
  for (size_t side : {0, 1})
    for (const Bin& tenth : (side == 0 ? d.raw : d.corrected).tenths)
      if (tenth.nodes >= kFew) panel.series[side].points.push_back({tenth.foretold(), tenth.share()});
  return panel;
}

Panel nodes_panel(const Diagnosis& d) {
  Series drafted = {"drafted", kPlainColour, Style::kBars}, accepted = {"accepted", kColours[0], Style::kBars};
  for (size_t depth = 1; depth < d.drafted.size(); depth++) {
    drafted.points.push_back({double(depth), double(d.drafted[depth])});
    accepted.points.push_back({double(depth), double(d.accepted[depth])});
  }
  return {"Nodes by depth", "depth below the root", "nodes", {drafted, accepted}};
}

std::string picture(const Examination& e, const Engine& engine) {
  const Diagnosis& d = *e.diagnosis;
  const std::string charts =
      chart_picture("Why drafts are accepted or not: " + method_text(e.options.method),
                    circumstances(e.options, engine, e.prompts.size()),
                    {entropy_panel("Entropy of q", d.by_q), entropy_panel("Entropy of the confidence", d.by_confidence),
                     accuracy_panel(d), ranks_panel(d), reliability_panel(d), nodes_panel(d)},
                    2);
  std::vector<IntervalBar> time, stops;
  const auto add = [](std::vector<IntervalBar>& bars, const char* name, double part, double all) {
    bars.push_back({name, {100 * ratio(part, all)}, share(part, all), kColours[0]});
  };
  for (const auto& [name, seconds] : kTimes)
    if (seconds != &Stats::seconds) add(time, name, e.stats.*seconds, e.stats.seconds);
  for (size_t i = 0; i < kStopKinds; i++) add(stops, kStops[i], double(d.stops[i]), double(d.forwards));
  return svg_below_each_other(
      {charts,
       interval_picture("Why each forward committed no more", "", {"percent of " + count(d.forwards, "forward")},
                        stops),
       interval_picture("Where the time went", "", {"percent of " + duration(e.stats.seconds)}, time)});
}

}  // namespace

int diagnose_command(int argc, char** argv) {
  Examination e;
  if (!read_command_line(describe(e), argc, argv, e.options)) return 0;
  check_chat(e.options, "nanospec diagnose");
  if (e.options.method.drafter == "none")
    refuse_usage("drafter none guesses nothing: --drafter: name another, for instance ngram:4");
  e.prompts = read_asked(e.options);

  Engine engine(e.options.settings);
  watch_interrupts();
  examine(e, engine);
  if (e.diagnosis->forwards == 0)
    refuse("there is nothing to tell", "nanospec diagnose", "let it run, and give --max_new_tokens of at least 1");
  print_out(report_text(e, engine), true);
  if (!e.json_file.empty()) write_file(e.json_file, report_json(e, engine));
  if (!e.svg_file.empty()) write_file(e.svg_file, picture(e, engine));
  return interrupted() ? stopped(" early") : 0;
}

}  // namespace nanospec
