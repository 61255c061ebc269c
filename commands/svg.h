// commands/svg.h: pictures.
//
// In order: colours; charts, points on two axes; bars below each other, with intervals; whole pictures. A picture is
// one string, a whole SVG file. Colours and letters are chosen here, once, for all of them: every picture is as wide as
// every other one, and its letters can be read where it is shown 390 pixels wide.
#pragma once

#include <string>

#include "growth/clock.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Colours

constexpr const char *kInk = "#222222", *kGrey = "#5c5c5c", *kFaint = "#dddddd", *kPlainColour = "#9aa3ad";
// Told apart also by who sees few colours (the first six: Okabe, Ito 2008); points of each have a mark of their own.
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                    "#e69f00", "#56b4e9", "#7a5230", "#333333"};

inline const char* colour_at(size_t i) { return kColours[i % std::size(kColours)]; }  // of a series

// ---------------------------------------------------------------------------------------------------------------
// Charts

struct Point {
  double x, y;
  double low = 0, high = 0;  // a whisker, where high > low
};

// Points of one kind: joined by a line, on their own, or as bars side by side with other series' bars.
struct Series {
  enum class Style { kLine, kDashes, kDots, kBars };
  std::string name, colour;
  Style style;
  std::vector<Point> points = {};
};

constexpr const char* kOverPrompts = "95% interval of the mean over prompts";  // what whiskers may be

struct Panel {
  std::string title, x_name, y_name;  // names of the axes, with their units
  std::vector<Series> series = {};
  std::vector<double> x_ticks = {};  // empty: chosen
  bool log_x = false;                // by powers of two
  bool square = false;               // both axes from 0 to 1, and the diagonal
  double bar_step = 1;               // how far bars of one series stand apart
  std::string whisker = {};          // what whiskers reach from and to
};

// Panels in rows of `columns`, each with its legend below it. The y axis begins at 0.
std::string chart_picture(const std::string& title, const std::string& subtitle, const std::vector<Panel>& panels,
                          size_t columns);

// Round numbers from 0 on that part an axis up to `most` into four to eight pieces.
std::vector<double> axis_ticks(double most);

// ---------------------------------------------------------------------------------------------------------------
// Bars below each other

struct IntervalBar {
  std::string name;   // above the bar; "": it belongs to the one before
  Interval value;     // a whisker, where high > low
  std::string label;  // after the bar
  std::string colour;
};

// What they are read by.
struct BarAxis {
  std::string name;                                               // with the unit
  double line = 0;                                                // one more line than that of 0
  std::string line_name = {};                                     // what it says
  std::string whisker = kOverPrompts;                             // what one reaches from and to
  std::vector<std::pair<std::string, std::string>> colours = {};  // what each says, where labels do not
};

// They begin at 0, and go to its left or right.
std::string interval_picture(const std::string& title, const std::string& subtitle, const BarAxis& axis,
                             const std::vector<IntervalBar>& bars);

// ---------------------------------------------------------------------------------------------------------------
// Whole pictures

// As one, each below the one before.
std::string svg_below_each_other(const std::vector<std::string>& pictures);

// A picture of one line, to stand above another one.
std::string svg_warning(const std::string& line);

// At most so wide are these letters, whichever of the usual fonts draws them.
double svg_text_width(const std::string& text, double font_size, bool bold = false);

}  // namespace nanospec
