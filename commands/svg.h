// commands/svg.h: pictures.
//
// In order: colours; charts, points on two axes; bars below each other, stacked or with intervals. A picture is one
// string, a whole SVG file. Colours and letters are chosen here, once, for all of them.
#pragma once

#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "commands/samples.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Colours

constexpr const char *kInk = "#222222", *kGrey = "#666666", *kFaint = "#dddddd", *kPlainColour = "#9aa3ad";
// Told apart also by who sees few colours (Okabe, Ito 2008).
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};

inline const char* colour_at(size_t i) { return kColours[i % std::size(kColours)]; }  // of a series

// ---------------------------------------------------------------------------------------------------------------
// Charts

struct Point {
  double x, y;
  double low = 0, high = 0;  // a whisker, where high > low
  std::string label = {};    // written beside it
};

// Points of one kind: joined by a line, on their own, or as bars side by side with other series' bars.
struct Series {
  enum class Style { kLine, kDashes, kDots, kBars };
  std::string name, colour;
  Style style;
  std::vector<Point> points = {};
};

struct Panel {
  std::string title, x_name, y_name;  // names of the axes, with their units
  std::vector<Series> series = {};
  std::vector<double> x_ticks = {};  // empty: chosen
  bool log_x = false;                // by powers of two
  bool square = false;               // both axes from 0 to 1, and the diagonal
  double bar_step = 1;               // how far bars of one series stand apart
};

// Panels in rows of `columns`, below them one legend of all series.
std::string chart_picture(const std::string& title, const std::string& subtitle, const std::vector<Panel>& panels,
                          int columns);

// Round numbers from 0 on that part an axis up to `most` into four to eight pieces.
std::vector<double> axis_ticks(double most);

// ---------------------------------------------------------------------------------------------------------------
// Bars below each other

struct StackedBar {
  std::string name;
  std::vector<double> parts;  // one for each part's name; they are drawn as shares of their sum
  std::string label;          // after the bar
};
std::string stacked_picture(const std::string& title, const std::string& subtitle,
                            const std::vector<std::string>& part_names, const std::vector<StackedBar>& bars);

struct IntervalBar {
  std::string name;
  Interval value;     // a whisker, where high > low
  std::string label;  // after the bar
  std::string colour;
  std::optional<double> mark = {};  // a diamond: what others reported, or a bar to reach
};

// They begin at `zero`, to its left or right. axis: what they are of; mark_name: what a diamond says; "": nothing.
std::string interval_picture(const std::string& title, const std::string& subtitle, const std::string& axis,
                             double zero, const std::vector<IntervalBar>& bars, const std::string& mark_name = "",
                             const std::string& whisker = "95% interval of the mean over prompts");

// Whole pictures as one, each below the one before.
std::string svg_below_each_other(const std::vector<std::string>& pictures);

}  // namespace nanospec
