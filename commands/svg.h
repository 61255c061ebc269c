// commands/svg.h: pictures.
//
// In order: the pieces that every picture is drawn with; charts, points on two axes; stacked bars; bars with
// intervals. A picture is one string, a whole SVG file. Colours and letters are chosen here, once, for all of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "commands/samples.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Pieces

constexpr const char *kInk = "#222222", *kGrey = "#666666", *kFaint = "#dddddd", *kPlainColour = "#9aa3ad";
// Told apart also by who sees few colours (Okabe, Ito 2008).
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};

std::string svg_escaped(const std::string& text);
std::string svg_text(double x, double y, const std::string& style, const std::string& text);
std::string svg_bar(double x, double y, double width, double height, const std::string& colour);
std::string svg_line(double x1, double y1, double x2, double y2, const std::string& style);
double svg_text_width(const std::string& text, double font_size);  // about: letters differ

// The whole file around what was drawn: a white page with title and subtitle in its first kSvgHead units.
constexpr double kSvgHead = 62;
std::string svg_page(double width, double height, const std::string& title, const std::string& subtitle,
                     const std::string& body);

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
// Stacked bars

struct StackedBar {
  std::string name;
  std::vector<double> parts;  // one for each part's name; they are drawn as shares of their sum
  std::string label;          // after the bar
};
std::string stacked_picture(const std::string& title, const std::string& subtitle,
                            const std::vector<std::string>& part_names, const std::vector<StackedBar>& bars);

// ---------------------------------------------------------------------------------------------------------------
// Several pictures

// Whole pictures as one, each below the one before.
std::string svg_below_each_other(const std::vector<std::string>& pictures);

// ---------------------------------------------------------------------------------------------------------------
// Bars with intervals

struct IntervalBar {
  std::string name;
  Interval value;     // a whisker, where high > low
  std::string label;  // after the bar
  std::string colour;
  std::optional<double> mark = {};  // a diamond: what others reported, or a bar to reach
};

// Bars lie one below the other and begin at `zero`, to its left or right. mark_name: what a diamond says; "": nothing.
std::string interval_picture(const std::string& title, const std::string& subtitle, const std::string& axis,
                             double zero, const std::vector<IntervalBar>& bars, const std::string& mark_name = "");

// ---------------------------------------------------------------------------------------------------------------
// Reliability

// How often nodes were accepted against the chance that was foretold of them: points (foretold, measured), one series
// for each way to foretell. On the diagonal a forecast is honest.
std::string reliability_picture(const std::string& subtitle, const std::vector<Series>& series);

}  // namespace nanospec
