// growth/shapes.cpp: what shapes.h declares, in the same order.
#include "growth/shapes.h"

#include <cstdlib>

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Templates

Template by_levels(const std::vector<int>& parent, const std::vector<int>& rank) {
  std::vector<std::vector<int>> children(parent.size());
  for (size_t i = 1; i < parent.size(); i++) children[parent[i]].push_back(int(i));
  Template t;
  std::vector<int> order(1, 0);  // of the nodes
  for (int at = 0; at < int(order.size()); at++) {
    if (at == t.level.back()) t.level.push_back(int(order.size()));  // a level begins; its nodes are in
    std::vector<int>& own = children[order[at]];
    std::sort(own.begin(), own.end(), [&](int a, int b) { return rank[a] < rank[b]; });
    for (int child : own) {
      order.push_back(child);
      t.add(at, rank[child]);
    }
  }
  return t;
}

Template cartesian_template(const std::vector<int>& widths) {
  Template t;
  for (int width : widths) {
    const int first = t.level.end()[-2], last = t.level.back();
    for (int above = first; above < last; above++)
      for (int rank = 0; rank < width; rank++) t.add(above, rank);
    t.level.push_back(int(t.parent.size()));
  }
  return t;
}

Template truncated(Template t, int nodes) {
  if (t.nodes() <= nodes) return t;
  t.parent.resize(nodes + 1);
  t.rank.resize(nodes + 1);
  while (t.level.end()[-2] >= nodes + 1) t.level.pop_back();
  t.level.back() = nodes + 1;
  return t;
}

// ---------------------------------------------------------------------------------------------------------------
// Shapes by name

namespace {

// Throws invalid_argument for a known word with settings that it does not take: whole numbers out of range, or others.
[[noreturn]] void refuse_settings(const Shape& shape, const std::string& settings) {
  const ShapeWord& known = kShapes[shape.kind];
  const bool full = shape.kind == Shape::kFull, list = shape.kind == Shape::kCartesian;
  const bool counted = shape.kind <= Shape::kCartesian || shape.kind == Shape::kBeam;
  const std::vector<std::string> numbers = split_at(settings, full ? 'x' : ',');
  const bool as_many = list ? !numbers.empty() : numbers.size() == (full ? 2 : 1);
  const bool whole = counted && as_many && std::all_of(numbers.begin(), numbers.end(), is_whole);
  refuse_usage("shape {} is {}: --shape: write {} ({}){}", quoted(shape.name),
               whole ? "out of range" : "not written so", known.form, known.what, whole ? ", each from 1 on" : "");
}

// "4,4,2" at ',' as {4, 4, 2}; empty if a part is no count.
std::vector<int> counts(const std::string& text, char between) {
  std::vector<int> list;
  for (const std::string& one : split_at(text + between, between)) {
    list.push_back(parse_count(one));
    if (list.back() == 0) return {};
  }
  return list;
}

// Reads settings of the entropy family: "threshold=0.5,depth=8,of=confidence".
void read_settings(Shape& shape, const std::string& settings) {
  for (const std::string& one : split_at(settings.empty() ? "" : settings + ",", ',')) {
    const std::string key = one.substr(0, one.find('=')), value = one.substr(std::min(key.size() + 1, one.size()));
    char* end = nullptr;
    const float number = std::strtof(value.c_str(), &end);
    const int count = parse_count(value);
    if (key == "threshold" && !value.empty() && *end == 0 && number >= 0 && number < 1e6f) shape.threshold = number;
    else if (key == "depth" && count > 0 && count <= kMostDepth) shape.depth = count;
    else if (key == "width" && count > 0 && shape.kind == Shape::kEntropyNaive) shape.width = count;
    else if (key == "of" && (value == "q" || value == "confidence")) shape.of_confidence = value == "confidence";
    else
      refuse_usage(
          "shape {} has a setting '{}': --shape: write {}:threshold=H,depth=D,of=q or of=confidence{}, D up to {}; "
          "each may be left out",
          shape.name.substr(0, 64), one.substr(0, 64), kShapes[shape.kind].word,
          shape.kind == Shape::kEntropyNaive ? ",width=K" : "", kMostDepth);
  }
}

}  // namespace

Shape parse_shape(const std::string& text, int budget) {
  const std::string word = text.substr(0, text.find(':')), rest = text.substr(std::min(word.size() + 1, text.size()));
  Shape shape;
  shape.kind = Shape::Kind(
      place_of("shape", word, text, "--shape", column(kShapes, &ShapeWord::word), column(kShapes, &ShapeWord::form)));
  shape.budget = budget;
  shape.name = text;
  std::vector<int> widths;  // of a cartesian template; depth and width of a chain or a full tree
  if (shape.kind <= Shape::kCartesian) widths = counts(rest, shape.kind == Shape::kCartesian ? ',' : 'x');
  if (shape.kind == Shape::kChain) widths.push_back(1);
  if (shape.full() && widths.size() == 2) {
    shape.depth = widths[0];
    shape.width = widths[1];
  } else if (shape.kind == Shape::kCartesian) {
    shape.depth = int(widths.size());
  } else if (shape.kind == Shape::kBeam) {
    shape.width = parse_count(rest);
    shape.depth = shape.width > 0 ? kBeamDepth : 0;
    if (shape.width > kMostBeam)
      refuse_usage("shape {} is too wide: --shape: choose beam:{} or less", text.substr(0, 64), kMostBeam);
  } else if (shape.kind == Shape::kBestFirst || shape.kind == Shape::kAuto) {
    shape.depth = text == word;
  } else if (shape.by_entropy()) {
    shape.depth = shape.kind >= Shape::kEntropyWidth ? 4 : kMostDepth;
    shape.width = 4;
    shape.threshold = shape.kind == Shape::kEntropyDepthWidth ? 2 : 1;
    if (text != word && rest.empty()) refuse_settings(shape, rest);
    read_settings(shape, rest);
  } else if (!shape.full()) {  // out of a file
    shape.file = rest;
    shape.depth = !rest.empty() || (text == word && shape.kind != Shape::kStatic);
  }
  if (shape.depth < 1) refuse_settings(shape, rest);
  const int64_t nodes = shape.full() ? full_tree_nodes(shape.depth, shape.width)
                                     : tree_nodes(int64_t(widths.size()), [&](int64_t d) { return widths[size_t(d)]; });
  if (nodes > budget)
    refuse_usage("shape {} has {}{} nodes, the budget is {}: --shape: choose a smaller shape or raise --budget",
                 text.substr(0, 64), nodes == std::numeric_limits<int64_t>::max() ? "more than " : "", nodes, budget);
  if (shape.full()) widths.assign(shape.depth, shape.width);
  if (!widths.empty()) shape.plan = std::make_shared<Template>(cartesian_template(widths));
  return shape;
}

}  // namespace nanospec
