// commands/calibration.cpp: see calibration.h.
#include "commands/calibration.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>

#include "commands/cli.h"
#include "commands/samples.h"
#include "files/model_path.h"
#include "files/safetensors.h"
#include "growth/clock.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Counting

int64_t RankCounts::places() const { return std::accumulate(seen.begin(), seen.end(), int64_t(0)); }

Accuracy RankCounts::accuracy() const {
  constexpr double kPrior = 20;  // places
  Accuracy a;
  a.depths = depths;
  a.ranks = ranks;
  if (!seconds.empty()) a.expand_seconds = std::max(1e-9, median(seconds));
  for (int d = 0; d < depths; d++) {
    a.seen.push_back(double(seen[size_t(d)]));
    const bool mute = seen[size_t(d)] > 0 && silent[size_t(d)] == seen[size_t(d)];
    for (int r = 0; r < ranks; r++) {
      const size_t at = size_t(d) * ranks + r;
      const double prior = d > 0 && !mute ? kPrior : 0, above = d > 0 ? a.at(d - 1, r) : 0;
      const double n = double(seen[size_t(d)]) + prior;
      a.rate.push_back(n > 0 ? (double(right[at]) + prior * above) / n : 0);
    }
  }
  return a;
}

Forced::Forced(Drafter& its, const std::vector<int>& text, RankCounts& counts)
    : StandIn(its), text_(text), counts_(counts), guesses_(size_t(counts.ranks)) {}

void Forced::expand(const Growth& growth, const int* nodes, int n, int width, const Draws& draws, Candidate* candidates,
                    int* count) {
  for (int k = 0; k < n; k++) {
    const size_t place = size_t(draws.index + growth.depth[nodes[k]]);
    const int token = place < text_.size() ? text_[place] : -1;
    count[k] = follows(growth, nodes[k], draws, token);
    if (count[k]) candidates[size_t(k) * size_t(width)] = {token, 1};
  }
}

// Asks the drafter for what follows a node, and counts it. Whether the token (-1: the text ends) is to be proposed.
bool Forced::follows(const Growth& growth, int node, const Draws& draws, int token) {
  int found = 0, rank = 0;
  Stopwatch watch;
  drafter.expand(growth, &node, 1, counts_.ranks, draws, guesses_.data(), &found);
  counts_.seconds.push_back(watch.lap());
  if (token < 0) return false;
  while (rank < found && guesses_[size_t(rank)].token != token) rank++;
  const size_t depth = size_t(growth.depth[node]);  // below that of the counts
  counts_.seen[depth]++;
  counts_.silent[depth] += found == 0;
  if (rank < found) counts_.right[depth * size_t(counts_.ranks) + size_t(rank)]++;
  return (rank < found ? rank : counts_.ranks) < kFollowed;
}

// ---------------------------------------------------------------------------------------------------------------
// The file

std::string calibration_path(const std::string& model) { return file_of_model(model, "calibration.json"); }

namespace {

constexpr size_t kMostRanks = 1024;  // of a node's guesses
constexpr const char* kOrigin[] = {"model", "text", "text_sha256"};

bool is_within(const Json& value, double most) {
  return value.is_number() && value.get<double>() >= 0 && value.get<double>() <= most;
}

Calibration parse_calibration(const Json& entry, int number, const std::string& where) {
  const auto bad = [&](const std::string& wrong) { refuse(filled("entry {} has {}", number, wrong), where); };
  const auto number_of = [&](const char* name, double most) {
    if (!is_within(member(entry, name), most)) bad(filled("no \"{}\" from 0 on", name));
    return member(entry, name).get<double>();
  };
  const auto numbers = [&](const Json& list, double most, const char* what) {
    if (!list.is_array()) bad(filled("no list of {}", what));
    for (const Json& one : list)
      if (!is_within(one, most)) bad(filled("{} among the {}", shown(one), what));
    return list.get<std::vector<double>>();
  };
  Calibration c;
  const Json &drafter = member(entry, "drafter"), &table = member(entry, "accuracy");
  if (!drafter.is_string()) bad("no \"drafter\"");
  c.drafter = drafter.get<std::string>();
  c.temperature = number_of("temperature", 1e6);
  c.places = int64_t(number_of("places", 1e15));
  Accuracy& a = c.accuracy;
  a.expand_seconds = number_of("expand_seconds", 1e6);
  if (!table.is_array() || table.empty() || table.size() > size_t(kMostDepth)) bad("no \"accuracy\" by depth");
  for (const Json& depth : table) {
    const std::vector<double> rates = numbers(depth, 1, "rates");
    if (rates.empty() || rates.size() > kMostRanks) bad("no rates at some depth");
    if (a.depths++ == 0) a.ranks = int(rates.size());
    if (int(rates.size()) != a.ranks) bad("more rates at one depth than at another");
    if (std::accumulate(rates.begin(), rates.end(), 0.0) > 1 + 1e-9)
      bad("rates of one depth that add up to more than 1");
    a.rate.insert(a.rate.end(), rates.begin(), rates.end());
  }
  a.seen = numbers(member(entry, "seen"), 1e15, "places seen");
  if (int(a.seen.size()) != a.depths) bad("not one number of places seen for each depth");
  for (const char* key : kOrigin)
    if (member(entry, key).is_string()) c.origin[key] = member(entry, key).get<std::string>();
  return c;
}

Json to_json(const Calibration& c) {
  Json json = {{"drafter", c.drafter},
               {"temperature", c.temperature},
               {"places", c.places},
               {"expand_seconds", c.accuracy.expand_seconds},
               {"seen", c.accuracy.seen}};
  for (int d = 0; d < c.accuracy.depths; d++) {
    const auto row = c.accuracy.rate.begin() + long(d) * c.accuracy.ranks;
    json["accuracy"].push_back(std::vector<double>(row, row + c.accuracy.ranks));
  }
  for (const auto& [key, value] : c.origin) json[key] = value;
  return json;
}

// What measures it.
std::string command_for(const std::string& file, const std::string& drafter, const std::string& model_dir,
                        double temperature) {
  return filled("run build/nanospec calibrate --model {} --drafter {} --temperature {}{} --data TEXT",
                printable(model_dir, 300), printable(drafter), temperature,
                file.empty() ? "" : " --out " + printable(file, 300));
}

}  // namespace

std::vector<Calibration> read_calibrations(const std::string& path) {
  const std::string text = read_file(path);
  return made_by("remove the file and measure again with build/nanospec calibrate",
                 [&] { return parse_calibrations(text, printable(path, 300)); });
}

std::vector<Calibration> parse_calibrations(const std::string& text, const std::string& where) {
  const Json file = parse_json(text, where);
  const Json& list = member(file, "calibrations");
  if (!list.is_array()) refuse("no list of \"calibrations\"", where);
  std::vector<Calibration> all;
  for (const Json& entry : list) all.push_back(parse_calibration(entry, int(all.size()) + 1, where));
  return all;
}

void write_calibration(const std::string& path, const Calibration& calibration) {
  std::vector<Calibration> all;
  if (std::filesystem::exists(path)) all = read_calibrations(path);
  const auto same = [&](const Calibration& one) {
    return one.drafter == calibration.drafter && one.temperature == calibration.temperature;
  };
  all.erase(std::remove_if(all.begin(), all.end(), same), all.end());
  all.push_back(calibration);
  Json file;
  for (const Calibration& one : all) file["calibrations"].push_back(to_json(one));
  write_file(path, json_text(file, 1));
}

Calibration find_calibration(const std::string& file, const std::string& drafter, const std::string& model_dir,
                             double temperature) {
  const std::string path = file.empty() ? calibration_path(model_dir) : file;
  const std::string advice = command_for(file, drafter, model_dir, temperature);
  if (!std::filesystem::exists(path)) refuse("nothing is calibrated yet", printable(path, 300), advice);
  const std::vector<Calibration> all = read_calibrations(path);
  const Calibration* best = nullptr;
  for (const Calibration& one : all)
    if (one.drafter == drafter &&
        (!best || std::fabs(one.temperature - temperature) < std::fabs(best->temperature - temperature)))
      best = &one;
  if (!best) refuse("drafter " + printable(drafter) + " is not calibrated yet", printable(path, 300), advice);
  check_origin(best->origin, "the rates of drafter " + printable(drafter) + " were measured", path, model_dir,
               "its trees fit less well; " + advice);
  return *best;
}

// ---------------------------------------------------------------------------------------------------------------
// Templates

Template read_static(const std::string& path) { return parse_static(read_file(path), printable(path, 300)); }

Template parse_static(const std::string& text, const std::string& where) {
  const auto bad = [&](const std::string& wrong) {
    refuse(wrong, where, "write a list of paths of ranks, for instance [[0], [0, 0], [1]]");
  };
  const auto shown_path = [](const Json& path) { return printable(path.dump()); };
  const Json file = parse_json(text, where);
  if (!file.is_array() || file.empty()) bad("no tree of ranks");
  using Path = std::vector<int>;
  std::set<std::pair<size_t, Path>> nodes;  // by length, then by ranks: a parent before its children
  for (const Json& one : file) {
    if (!one.is_array() || one.empty()) bad(shown(one) + " is no path of ranks");
    for (const Json& rank : one)
      if (!rank.is_number_unsigned() || rank.get<uint64_t>() > kMostRanks) bad(shown(rank) + " is no rank");
    const Path ranks = one.get<Path>();
    if (!nodes.insert({ranks.size(), ranks}).second) bad("the path " + shown_path(one) + " comes twice");
  }
  std::vector<int> parent = {-1}, rank = {0};
  std::map<Path, int> place = {{{}, 0}};
  for (const auto& [length, node] : nodes) {
    const Path above(node.begin(), node.end() - 1);
    Path before = node;
    before.back()--;
    if (!place.count(above)) bad(filled("the path {} has no parent {}", shown_path(node), shown_path(above)));
    if (node.back() > 0 && !place.count(before))
      bad(filled("the path {} has no sibling {} before it", shown_path(node), shown_path(before)));
    place[node] = int(parent.size());
    parent.push_back(place[above]);
    rank.push_back(node.back());
  }
  return by_levels(parent, rank);
}

void prepare_shape(Shape& shape, const std::string& drafter, const std::string& model_dir, double temperature,
                   const Cost* cost) {
  if (!from_file(shape)) return;
  const auto plan = [&]() -> Template {
    if (shape.kind == Shape::kStatic) return truncated(read_static(shape.file), shape.budget);
    const Accuracy accuracy = find_calibration(shape.file, drafter, model_dir, temperature).accuracy;
    if (shape.kind == Shape::kCalibrated) return calibrated_template(accuracy, shape.budget);
    if (!cost) throw std::logic_error("shape sequoia knows no costs: measure them first");
    return sequoia_template(accuracy, std::min(shape.budget, cost->most()), [&](int n) { return cost->seconds(n); });
  };
  shape.plan = std::make_shared<const Template>(plan());
}

}  // namespace nanospec
