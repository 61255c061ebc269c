// study/diagnose.cpp: decodes by one method and says why its guesses were right or wrong, which nodes were wasted,
// where the time went, and why each forward committed no more.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "commands/comparison.h"
#include "commands/conversation.h"
#include "commands/svg.h"
#include "drafters/ngram.h"
#include "files/drafter_names.h"
#include "files/tables.h"
#include "study/diagnosis.h"
#include "study/study.h"

namespace nanospec {
namespace {

struct Examination {
  Options options;
  Method method;
  std::string json_file, svg_file;
  std::vector<std::string> prompts;
};

// What came of it.
struct Examined {
  Diagnosis diagnosis;
  Stats stats;
  std::vector<double> cross_entropy;  // [k - 1]: of n-grams of order k, nats a token of held-out text
  double target_loss = 0;             // what train_gpt found the target's to be; 0: not known
};

Command describe(Examination& e) {
  return {"nanospec diagnose",
          "Decodes by one method and says why: how sure the drafter was where it was right or wrong, which of its "
          "guesses were right, whether its chances can be believed, which nodes were wasted, where the time went, "
          "and why each forward committed no more tokens.",
          "nanospec diagnose --model runs/small --drafter ngram:4\n"
          "nanospec diagnose --model runs/small --drafter ngram:4 --shape tree:3x2 --prompt \"ROMEO:\"\n"
          "nanospec diagnose --model runs/small --json build/why.json --svg build/why.svg\n",
          together({text_flags(e.options),
                    prompts_flags(e.options),
                    model_text_flags(e.options),
                    speculation_flags(e.options, e.method),
                    sampling_flags(e.options),
                    machine_flags(e.options),
                    {heading("Output"),
                     {"--json", "FILE", &e.json_file, "write every figure", written()},
                     {"--svg", "FILE", &e.svg_file, "write pictures of them", written()},
                     {"--quiet", "", &e.options.quiet, "no progress"}}})};
}

// ---------------------------------------------------------------------------------------------------------------
// Finding out

// The highest order of the n-grams among the drafter's parts; 0: there are none.
int ngram_order(const std::string& drafter) {
  int order = 0;
  for (const DrafterName& part : parse_drafter(drafter))
    if (part.kind == DrafterName::kNgram) order = std::max(order, part.order);
  return order;
}

// How well n-grams of each order predict the text that train_gpt held out, and how well the target does.
void measure_cross_entropy(const Examination& e, const Engine& engine, Examined& f) {
  const std::string& model = e.options.settings.model;
  const int orders = e.options.data_file.empty() ? 0 : ngram_order(e.method.drafter);
  if (orders == 0) return;
  const double bytes = file_bytes(e.options.data_file);
  check_memory(e.options.data_file, bytes, takes_tokens(bytes));
  const std::vector<int> held_out =
      split(engine.tokenizer().encode(read_file(e.options.data_file), e.options.data_file)).validation;
  for (int order = 1; order <= orders; order++) {
    const std::unique_ptr<Drafter> drafter = load_ngram(model, order, engine.vocab_size());
    f.cross_entropy.push_back(cross_entropy(static_cast<Ngram&>(*drafter).table, held_out));
  }
  const std::string trained = model + "/train.json";
  if (!std::filesystem::exists(trained)) return;
  const Json file = parse_json(read_file(trained), printable(trained, 300));
  if (member(file, "val_loss").is_number()) f.target_loss = member(file, "val_loss").get<double>();
}

Examined examine(const Examination& e, Engine& engine) {
  const Options& o = e.options;
  Examined f = {Diagnosis(parse_shape(e.method.shape, o.settings.budget)), {}, {}, 0};
  measure_cross_entropy(e, engine, f);  // first: what is wrong with a file is better said before the work
  Observation observation;
  observation.on_iteration = [&](const IterationReport& report) { f.diagnosis.add(report); };
  double done = 0;
  const double all = double(o.max_new_tokens) * double(e.prompts.size());
  Progress progress(o.quiet);
  const std::vector<std::vector<int>> prompts = encoded(engine, e.prompts);
  const Tokens ends = ends_of(o, engine);
  for (size_t p = 0; p < prompts.size() && !interrupted(); p++) {
    Sampling sampling = o.sampling;
    sampling.sequence = uint32_t(p);  // noise of its own, or all prompts would meet the same at the same place
    const auto on_token = [&](int token) {
      done++;
      if (progress.due())
        progress.show(thousands(done) + " of " + count(all, "token") + ", " + time_left(done, all, progress.seconds()));
      return !is_among(ends, token) && !interrupted();
    };
    add(f.stats, engine.generate(e.method, sampling, prompts[p], o.max_new_tokens, on_token, observation).stats);
  }
  return f;
}

// ---------------------------------------------------------------------------------------------------------------
// Tables

std::string share(double part, double whole) { return decimals(100 * ratio(part, whole), 1) + "%"; }

std::string stops_table(const Diagnosis& d) {
  TableRows rows = {{"why", "forwards", "share"}};
  for (int stop = 0; stop < kStopKinds; stop++) {
    const double n = double(d.stops[size_t(stop)]);
    if (n > 0) rows.push_back({kStops[stop], thousands(n), share(n, double(d.forwards))});
  }
  std::string text =
      "Why each forward committed no more tokens: the target chose a token that no node carried, or the "
      "accepted\npath ended in a leaf.\n\n" +
      format_table(rows, "lrr");
  const double no_node = double(d.stops[size_t(Stop::kNoNode)]);
  if (no_node == 0) return text;
  text += "Of the guesses without a node, by rank (1: the second best):";
  for (int rank = 0; rank < kAskedRanks; rank++)
    if (d.missing_rank[size_t(rank)] > 0)
      text += "  " + std::to_string(rank) + ": " + share(double(d.missing_rank[size_t(rank)]), no_node);
  return text + "\n";
}

std::string entropy_table(const Diagnosis& d) {
  const auto of_q = by_entropy(d.unsure, false), of_confidence = by_entropy(d.unsure, true);
  TableRows rows = {{"H, nats", "right", "wrong", "right, H of q", "right", "wrong", "right, H of confidence"}};
  const auto cells = [&](const EntropyBin& bin) {
    const double all = double(bin.matched + bin.mismatched);
    rows.back().push_back(thousands(double(bin.matched)));
    rows.back().push_back(thousands(double(bin.mismatched)));
    rows.back().push_back(all > 0 ? share(double(bin.matched), all) : "");
  };
  for (size_t i = 0; i < kEntropyBins; i++) {
    if (of_q[i].matched + of_q[i].mismatched + of_confidence[i].matched + of_confidence[i].mismatched == 0) continue;
    rows.push_back({decimals(double(i) * kEntropyBin, 1) +
                    (i + 1 < kEntropyBins ? " to " + decimals(double(i + 1) * kEntropyBin, 1) : " or more")});
    cells(of_q[i]);
    cells(of_confidence[i]);
  }
  return "How unsure the drafter was where a child was right, and where none was: the entropy H of its distribution "
         "q,\nand of its confidence, which knows the noise. Nodes on the path that had children.\n\n" +
         format_table(rows, "lrrrrrr") + "A wrong one is the less sure of two in " +
         share(separation(d.unsure, false), 1) + " of pairs by H of q, in " + share(separation(d.unsure, true), 1) +
         " by that of the confidence (50%: it says nothing).\n";
}

std::string accuracy_table(const Diagnosis& d) {
  TableRows rows = {{"depth", "nodes"}};
  for (int rank = 0; rank < kAskedRanks; rank++) rows[0].push_back("rank " + std::to_string(rank));
  rows[0].push_back("none of them");
  const auto row = [&](const std::string& name, double asked, const auto& right) {
    rows.push_back({name, thousands(asked)});
    double any = 0;
    for (int rank = 0; rank < kAskedRanks; rank++) {
      any += double(right[rank]);
      rows.back().push_back(decimals(ratio(double(right[rank]), asked), 3));
    }
    rows.back().push_back(decimals(1 - ratio(any, asked), 3));
  };
  std::array<int64_t, kAskedRanks> sum = {};
  int64_t asked = 0;
  for (size_t depth = 0; depth < d.asked.size(); depth++) {
    for (int rank = 0; rank < kAskedRanks; rank++) sum[size_t(rank)] += d.right[depth][size_t(rank)];
    asked += d.asked[depth];
    if (d.asked[depth] > 0) row(std::to_string(depth + 1), double(d.asked[depth]), d.right[depth]);
  }
  row("all", double(asked), sum);
  return "Which of the drafter's guesses was the target's token (rank 0: the best), whether it got a node or not; "
         "depth 1\nis the token after the root. Of the nodes on the path that had children.\n\n" +
         format_table(rows, std::string(rows[0].size(), 'r'));
}

std::string reliability_table(const Diagnosis& d) {
  TableRows rows = {{"chance", "nodes", "foretold", "accepted", "nodes", "foretold", "accepted"}};
  for (size_t i = 0; i < 10; i++) {
    if (d.raw.tenths[i].nodes + d.corrected.tenths[i].nodes == 0) continue;
    rows.push_back({decimals(double(i) / 10, 1) + " to " + decimals(double(i + 1) / 10, 1)});
    for (const Forecast* forecast : {&d.raw, &d.corrected}) {
      const Reliability& tenth = forecast->tenths[i];
      const double n = double(tenth.nodes);
      rows.back().push_back(thousands(n));
      rows.back().push_back(n > 0 ? decimals(forecast->promised(tenth) / n, 3) : "");
      rows.back().push_back(n > 0 ? decimals(double(tenth.accepted) / n, 3) : "");
    }
  }
  return "Whether the drafter's chances can be believed, as it gives them (left) and as experience corrects them "
         "(right):\nnodes whose parent was on the path.\n\n" +
         format_table(rows, "lrrrrrr") +
         "Brier score (0: all certain and right; 0.25: a coin): " + decimals(d.raw.brier(), 4) + " as given, " +
         decimals(d.corrected.brier(), 4) +
         " corrected. Expected calibration error: " + decimals(d.raw.calibration_error(), 4) + " and " +
         decimals(d.corrected.calibration_error(), 4) + ".\n";
}

std::string nodes_table(const Diagnosis& d) {
  TableRows rows = {{"depth", "drafted", "accepted", "wasted", "wasted share"}};
  double drafted = 0, accepted = 0;
  const auto row = [&](const std::string& name, double its_drafted, double its_accepted) {
    rows.push_back({name, thousands(its_drafted), thousands(its_accepted), thousands(its_drafted - its_accepted),
                    share(its_drafted - its_accepted, its_drafted)});
  };
  for (size_t depth = 1; depth < d.drafted.size(); depth++) {
    drafted += double(d.drafted[depth]);
    accepted += double(d.accepted[depth]);
    row(std::to_string(depth), double(d.drafted[depth]), double(d.accepted[depth]));
  }
  row("all", drafted, accepted);
  return "Nodes that the target computed, and how many of them the text got.\n\n" + format_table(rows, "rrrrr");
}

std::vector<std::pair<std::string, double>> time_parts(const Stats& s) {
  return {{"draft", s.seconds_draft},
          {"forward", s.seconds_forward},
          {"verify", s.seconds_verify},
          {"keep", s.seconds_keep},
          {"slides", s.seconds_slide}};
}

std::string time_table(const Stats& stats) {
  TableRows rows = {{"part", "share", "microseconds a forward", "microseconds a token"}};
  const auto row = [&](const std::string& name, double seconds) {
    rows.push_back({name, share(seconds, stats.seconds),
                    decimals(1e6 * ratio(seconds, double(stats.target_forwards)), 2),
                    decimals(1e6 * ratio(seconds, double(stats.tokens)), 2)});
  };
  for (const auto& [name, seconds] : time_parts(stats)) row(name, seconds);
  row("all", stats.seconds);
  return "Where the time went: the drafter and the tree; the target; the walk down the tree; the cache's gather; and\n"
         "the prefills of moved windows.\n\n" +
         format_table(rows, "lrrr");
}

std::string cross_entropy_table(const Examined& f) {
  TableRows rows = {{"order", "nats a token", "perplexity"}};
  for (size_t k = 0; k < f.cross_entropy.size(); k++)
    rows.push_back({std::to_string(k + 1), decimals(f.cross_entropy[k], 4), decimals(std::exp(f.cross_entropy[k]), 2)});
  if (f.target_loss > 0)
    rows.push_back({"the target", decimals(f.target_loss, 4), decimals(std::exp(f.target_loss), 2)});
  return "How well the n-grams predict text that was held out from training, by their order: the less, the better.\n"
         "But a drafter must guess the target's picks, not this text.\n\n" +
         format_table(rows, "lrr");
}

std::string report_text(const Examination& e, const Engine& engine, const Examined& f) {
  const Stats& s = f.stats;
  std::string text = circumstances(e.options, engine, e.prompts.size()) + "\n" + method_text(e.method) + ": " +
                     count(double(s.tokens), "token") + " in " + count(double(s.target_forwards), "forward") + ", " +
                     decimals(ratio(double(s.tokens), double(s.target_forwards)), 2) + " each, " +
                     decimals(ratio(double(s.drafted_nodes), double(s.target_forwards)), 1) + " nodes each, " +
                     thousands(ratio(double(s.tokens), s.seconds)) + " tok/s\n";
  for (const std::string& table : {stops_table(f.diagnosis), entropy_table(f.diagnosis), accuracy_table(f.diagnosis),
                                   reliability_table(f.diagnosis), nodes_table(f.diagnosis), time_table(s)})
    text += "\n" + table;
  return f.cross_entropy.empty() ? text : text + "\n" + cross_entropy_table(f);
}

// ---------------------------------------------------------------------------------------------------------------
// JSON

OrderedJson entropy_json(const Diagnosis& d, bool of_confidence) {
  OrderedJson json = {{"separation", separation(d.unsure, of_confidence)}};
  double from = 0;
  for (const EntropyBin& bin : by_entropy(d.unsure, of_confidence)) {
    json["bins"].push_back({{"from", from}, {"matched", bin.matched}, {"mismatched", bin.mismatched}});
    from += kEntropyBin;
  }
  return json;
}

OrderedJson forecast_json(const Forecast& forecast) {
  OrderedJson json = {{"brier", forecast.brier()}, {"calibration_error", forecast.calibration_error()}};
  for (const Reliability& tenth : forecast.tenths)
    json["tenths"].push_back({{"nodes", tenth.nodes},
                              {"accepted", tenth.accepted},
                              {"foretold", ratio(forecast.promised(tenth), double(tenth.nodes))}});
  return json;
}

std::string report_json(const Examination& e, const Engine& engine, const Examined& f) {
  const Diagnosis& d = f.diagnosis;
  OrderedJson json = stats_json(engine, f.stats);
  json.update(method_json(e.method));
  json.update(settings_json(e.options, engine));
  json["prompts"] = e.prompts;
  for (int stop = 0; stop < kStopKinds; stop++) json["stops"][kStops[stop]] = d.stops[size_t(stop)];
  json["guessed_without_node_by_rank"] = d.missing_rank;
  json["entropy"] = {{"of_q", entropy_json(d, false)}, {"of_confidence", entropy_json(d, true)}};
  json["accuracy"] = OrderedJson::array();
  json["nodes"] = OrderedJson::array();
  for (size_t depth = 0; depth < d.asked.size(); depth++)
    json["accuracy"].push_back({{"depth", depth + 1}, {"nodes", d.asked[depth]}, {"right_by_rank", d.right[depth]}});
  json["forecasts"] = {{"raw", forecast_json(d.raw)}, {"corrected", forecast_json(d.corrected)}};
  for (size_t depth = 1; depth < d.drafted.size(); depth++)
    json["nodes"].push_back({{"depth", depth}, {"drafted", d.drafted[depth]}, {"accepted", d.accepted[depth]}});
  json["held_out_cross_entropy"] = f.cross_entropy;
  if (f.target_loss > 0) json["target_loss"] = f.target_loss;
  return json_text(json, 2);
}

// ---------------------------------------------------------------------------------------------------------------
// Pictures

constexpr const char *kRight = kColours[2], *kWrong = kColours[1];

Panel entropy_panel(const Diagnosis& d, bool of_confidence) {
  using Style = Series::Style;
  Series right = {"a child was right", kRight, Style::kBars}, wrong = {"none was", kWrong, Style::kBars};
  double at = 0;
  for (const EntropyBin& bin : by_entropy(d.unsure, of_confidence)) {
    right.points.push_back({at + kEntropyBin / 2, double(bin.matched)});
    wrong.points.push_back({at + kEntropyBin / 2, double(bin.mismatched)});
    at += kEntropyBin;
  }
  Panel panel = {of_confidence ? "Entropy of the confidence" : "Entropy of q",
                 "entropy, nats",
                 "nodes on the path, by 0.5 nats",
                 {right, wrong}};
  panel.bar_step = kEntropyBin;
  for (double nats = 0; nats <= at; nats++) panel.x_ticks.push_back(nats);
  return panel;
}

Panel accuracy_panel(const Diagnosis& d) {
  Panel panel = {"Accuracy by depth", "depth of the guess", "guesses that were right, %", {}};
  int colour = 0;
  for (int ranks : {1, 2, 4, kAskedRanks}) {
    Series series = {ranks == 1 ? "best guess" : "one of " + std::to_string(ranks), kColours[colour++],
                     Series::Style::kLine};
    for (size_t depth = 0; depth < d.asked.size(); depth++) {
      double right = 0;
      for (int rank = 0; rank < ranks; rank++) right += double(d.right[depth][size_t(rank)]);
      constexpr int64_t kFew = 20;  // that say nothing of a share
      if (d.asked[depth] >= kFew) series.points.push_back({double(depth + 1), 100 * right / double(d.asked[depth])});
    }
    panel.series.push_back(series);
  }
  return panel;
}

Panel ranks_panel(const Diagnosis& d) {
  Series series = {"all depths", kColours[4], Series::Style::kBars};
  for (int rank = 0; rank < kAskedRanks; rank++) {
    double asked = 0, right = 0;
    for (size_t depth = 0; depth < d.asked.size(); depth++) {
      asked += double(d.asked[depth]);
      right += double(d.right[depth][size_t(rank)]);
    }
    series.points.push_back({double(rank), 100 * ratio(right, asked)});
  }
  return {"Accuracy by rank", "rank, 0: the best guess", "guesses that were right, %", {series}};
}

Panel reliability_panel(const Diagnosis& d) {
  Panel panel = {"Are the chances right?", "predicted chance, 0 to 1", "share accepted, 0 to 1", {}};
  panel.square = true;
  for (const Forecast* forecast : {&d.raw, &d.corrected}) {
    Series series = {forecast->by_raw ? "as given" : "corrected",
                     kColours[forecast->by_raw ? 3 : 5],
                     forecast->by_raw ? Series::Style::kDots : Series::Style::kLine,
                     {}};
    for (const Reliability& tenth : forecast->tenths) {
      const double n = double(tenth.nodes);
      if (n >= 20) series.points.push_back({forecast->promised(tenth) / n, double(tenth.accepted) / n});
    }
    panel.series.push_back(series);
  }
  return panel;
}

Panel nodes_panel(const Diagnosis& d) {
  using Style = Series::Style;
  Series drafted = {"drafted", kPlainColour, Style::kBars}, accepted = {"accepted", kColours[0], Style::kBars};
  for (size_t depth = 1; depth < d.drafted.size(); depth++) {
    drafted.points.push_back({double(depth), double(d.drafted[depth])});
    accepted.points.push_back({double(depth), double(d.accepted[depth])});
  }
  return {"Nodes by depth", "depth below the root", "nodes", {drafted, accepted}};
}

std::string picture(const Examination& e, const Engine& engine, const Examined& f) {
  const Diagnosis& d = f.diagnosis;
  const std::string charts = chart_picture("Why drafts are accepted or not: " + method_text(e.method),
                                           circumstances(e.options, engine, e.prompts.size()),
                                           {entropy_panel(d, false), entropy_panel(d, true), accuracy_panel(d),
                                            ranks_panel(d), reliability_panel(d), nodes_panel(d)},
                                           2);
  const auto bar = [](const std::string& name, double part, double all) {
    return IntervalBar{name, {100 * ratio(part, all)}, share(part, all), kColours[0]};
  };
  std::vector<IntervalBar> time, stops;
  for (const auto& [name, seconds] : time_parts(f.stats)) time.push_back(bar(name, seconds, f.stats.seconds));
  for (int i = 0; i < kStopKinds; i++) stops.push_back(bar(kStops[i], double(d.stops[size_t(i)]), double(d.forwards)));
  return svg_below_each_other(
      {charts,
       interval_picture("Why each forward committed no more", "",
                        {"percent of " + count(double(d.forwards), "forward")}, stops),
       interval_picture("Where the time went", "", {"percent of " + duration(f.stats.seconds)}, time)});
}

}  // namespace

int diagnose_command(int argc, char** argv) {
  Examination e;
  const Command command = describe(e);
  Given given;
  if (!read_command_line(command, argc, argv, e.options, e.method, given)) return 0;
  if (e.method.drafter == "none")
    throw std::invalid_argument("drafter none guesses nothing: --drafter: name another, for instance ngram:4");
  e.prompts = read_prompts(e.options, given);

  Engine engine(e.options.settings);
  watch_interrupts();
  const Examined f = examine(e, engine);
  if (f.diagnosis.forwards == 0)
    throw std::runtime_error(
        "there is nothing to tell: nanospec diagnose: let it run, and give --max_new_tokens of at least 1");
  print_out(report_text(e, engine, f), true);
  if (given.has("--json")) write_file(e.json_file, report_json(e, engine, f));
  if (given.has("--svg")) write_file(e.svg_file, picture(e, engine, f));
  if (interrupted()) fprintf(stderr, "stopped early\n");
  return interrupted() ? kInterruptedStatus : 0;
}

}  // namespace nanospec
