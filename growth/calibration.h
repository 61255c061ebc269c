// growth/calibration.h: templates of shapes that are in files: how often a drafter's guesses were right, or trees by
// hand.
//
// In order: the file of what was measured, DIR/calibration.json; the templates of `static`, `calibrated` and `sequoia`.
// What is measured is counted in commands/calibration.h.
#pragma once

#include <numeric>

#include "files/model_path.h"
#include "files/origin.h"
#include "growth/cost.h"
#include "growth/shapes.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// The file

struct Calibration {
  std::string drafter;
  double temperature = 1;
  int64_t places = 0;
  Accuracy accuracy;
  Metadata origin = {};  // the model, and the text that prompts were taken from
};

inline std::string calibration_path(const std::string& model) { return file_of_model(model, "calibration.json"); }

constexpr size_t kMostRanks = 1024;  // of a node's guesses

inline Calibration parse_calibration(const Json& entry, int number, const std::string& where) {
  const auto bad = [&](const std::string& wrong) { refuse(filled("entry {} has {}", number, wrong), where); };
  const auto is_within = [](const Json& value, double most) {
    return value.is_number() && value.get<double>() >= 0 && value.get<double>() <= most;
  };
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
  for (const char* key : {"model", "text", "text_sha256"})
    if (member(entry, key).is_string()) c.origin[key] = member(entry, key).get<std::string>();
  return c;
}

inline Json to_json(const Calibration& c) {
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

// Throws std::runtime_error if the text is wrong.
inline std::vector<Calibration> parse_calibrations(const std::string& text, const std::string& where) {
  const Json file = parse_json(text, where);
  const Json& list = member(file, "calibrations");
  if (!list.is_array()) refuse("no list of \"calibrations\"", where);
  std::vector<Calibration> all;
  for (const Json& entry : list) all.push_back(parse_calibration(entry, int(all.size()) + 1, where));
  return all;
}

// Throws std::runtime_error if the file is missing or wrong.
inline std::vector<Calibration> read_calibrations(const std::string& path) {
  const std::string text = read_file(path);
  return made_by("remove the file and measure again with build/nanospec calibrate",
                 [&] { return parse_calibrations(text, printable(path, 300)); });
}

// Adds a calibration to the file, or replaces that of the same drafter and temperature. Others that do so wait.
inline void write_calibration(const std::string& path, const Calibration& calibration) {
  const OpenFile turn{lock_shortly(path)};
  std::vector<Calibration> all;
  if (std::filesystem::exists(path)) all = read_calibrations(path);
  Json file;
  for (const Calibration& one : all)
    if (one.drafter != calibration.drafter || one.temperature != calibration.temperature)
      file["calibrations"].push_back(to_json(one));
  file["calibrations"].push_back(to_json(calibration));
  write_file(path, json_text(file, 1));
}

// The calibration of this drafter with the nearest temperature. file: empty for the model's own. One of another model
// or text is used, and that is said. Throws std::runtime_error, with the command that measures it, where there is none.
inline Calibration find_calibration(const std::string& file, const std::string& drafter, const std::string& model_dir,
                                    double temperature) {
  const std::string path = file.empty() ? calibration_path(model_dir) : file;
  const std::string advice = filled(
      "run build/nanospec calibrate --model {} --drafter {} --temperature {}{} --data TEXT", printable(model_dir, 300),
      printable(drafter), temperature, file.empty() ? "" : " --out " + printable(file, 300));
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

// A tree of ranks by hand, as Medusa's choices: a JSON list of paths such as [[0], [0, 0], [1]], in any order. Throws
// std::runtime_error where a node's parent or the sibling before it is missing.
inline Template parse_static(const std::string& text, const std::string& where) {
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
      if (!is_below(rank, kMostRanks + 1)) bad(shown(rank) + " is no rank");
    const Path ranks = one.get<Path>();
    if (!nodes.insert({ranks.size(), ranks}).second) bad("the path " + shown_path(one) + " comes twice");
  }
  Template t;
  std::map<Path, int> place = {{{}, 0}};
  for (const auto& [length, node] : nodes) {
    const Path above(node.begin(), node.end() - 1);
    Path before = node;
    before.back()--;
    if (!place.count(above)) bad(filled("the path {} has no parent {}", shown_path(node), shown_path(above)));
    if (node.back() > 0 && !place.count(before))
      bad(filled("the path {} has no sibling {} before it", shown_path(node), shown_path(before)));
    place[node] = t.add(place[above], node.back());
  }
  return by_levels(t.parent, t.rank);
}

inline Template read_static(const std::string& path) { return parse_static(read_file(path), printable(path, 300)); }

// Whether the shape's template comes out of a file.
inline bool from_file(const Shape& shape) {
  return shape.kind == Shape::kStatic || shape.kind == Shape::kCalibrated || shape.kind == Shape::kSequoia;
}

// Makes its template. cost: of the target's forwards, for `sequoia`. Throws std::runtime_error as the above.
inline void prepare_shape(Shape& shape, const std::string& drafter, const std::string& model_dir, double temperature,
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
