// commands/svg.cpp: see svg.h.
#include "commands/svg.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "commands/cli.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Pieces

namespace {

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '&') out += "&amp;";
    else if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '"') out += "&quot;";
    else out += c;
  }
  return out;
}
std::string attribute(const char* name, double value) {
  return std::string(" ") + name + "=\"" + decimals(value, 1) + "\"";
}
std::string small(const std::string& more = "") {
  return "font-size=\"11\" fill=\"" + std::string(kGrey) + "\"" + (more.empty() ? "" : " " + more);
}
std::string stroke(const std::string& colour, double width) {
  return "stroke=\"" + colour + "\" stroke-width=\"" + decimals(width, 1) + "\"";
}
std::string svg_text(double x, double y, const std::string& style, const std::string& text) {
  return "<text" + attribute("x", x) + attribute("y", y) + " " + style + ">" + escaped(text) + "</text>\n";
}
std::string svg_bar(double x, double y, double width, double height, const std::string& colour) {
  return "<rect" + attribute("x", x) + attribute("y", y) + attribute("width", width) + attribute("height", height) +
         " fill=\"" + colour + "\"/>\n";
}
std::string svg_line(double x1, double y1, double x2, double y2, const std::string& style) {
  return "<line" + attribute("x1", x1) + attribute("y1", y1) + attribute("x2", x2) + attribute("y2", y2) + " " + style +
         "/>\n";
}
double svg_text_width(const std::string& text, double font_size) {  // about: letters differ
  return 0.58 * font_size * double(text.size());
}

// A white page with this on it.
std::string svg_file(double width, double height, const std::string& body) {
  const std::string wide = decimals(width, 0), high = decimals(height, 0);
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + wide + " " + high + "\" width=\"" + wide +
         "\" height=\"" + high + "\" font-family=\"sans-serif\" font-size=\"13\" fill=\"" + kInk + "\">\n" +
         svg_bar(0, 0, width, height, "#ffffff") + body + "</svg>\n";
}

constexpr double kSvgHead = 62;  // what title and subtitle take
std::string svg_page(double width, double height, const std::string& title, const std::string& subtitle,
                     const std::string& body) {
  return svg_file(
      width, height,
      svg_text(16, 24, "font-size=\"16\" font-weight=\"bold\"", title) + svg_text(16, 44, small(), subtitle) + body);
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------
// Charts

std::vector<double> axis_ticks(double most) {
  if (!(most > 0)) return {0, 1};
  const double rough = most / 5, power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (double nice : {1.0, 2.0, 2.5, 5.0})
    if (nice * power >= rough * 0.8) {
      step = nice * power;
      break;
    }
  std::vector<double> ticks;
  for (int i = 0; ticks.empty() || ticks.back() < most * 0.9999; i++) ticks.push_back(i * step);
  return ticks;
}

namespace {

constexpr double kPanelWidth = 330, kPanelHeight = 250;              // the plot itself
constexpr double kLeft = 62, kRight = 24, kAbove = 30, kBelow = 50;  // around it, for names and numbers
constexpr double kLegendRow = 20;
constexpr double kBarWidth = 430, kBarRow = 27, kBarThick = 17;  // of bars below each other

// As short as it can be said: 0.5, 2, 40,000.
std::string tick_text(double x) {
  if (x >= 1000) return thousands(x);
  for (int places = 0; places < 3; places++)
    if (std::fabs(x - std::strtod(decimals(x, places).c_str(), nullptr)) < 1e-9) return decimals(x, places);
  return decimals(x, 3);
}

// One panel's axes: where numbers lie on the page.
class Axes {
 public:
  Axes(const Panel& panel, double left, double top) : log_x_(panel.log_x), left_(left), top_(top) {
    double most_x = 1, most_y = 0, most_high = 0;
    low_x_ = panel.log_x ? 0 : 1e300;
    for (const Series& series : panel.series)
      for (const Point& point : series.points) {
        bars_ = bars_ || series.style == Series::Style::kBars;
        most_x = std::max(most_x, point.x), most_y = std::max(most_y, point.y),
        most_high = std::max(most_high, point.high);
        if (!log_x_) low_x_ = std::min(low_x_, point.x);
      }
    most_y = std::max(most_y, std::min(most_high, 1.4 * most_y));  // one disturbed run must not flatten the rest
    y_ticks_ = axis_ticks(panel.square ? 1 : most_y);
    if (panel.square) low_x_ = 0, high_x_ = 1, x_ticks_ = y_ticks_;
    else if (log_x_) {
      for (double tick = 1; x_ticks_.empty() || x_ticks_.back() < most_x; tick *= 2) x_ticks_.push_back(tick);
      high_x_ = std::log2(x_ticks_.back());
    } else {
      if (low_x_ > most_x) low_x_ = 0;
      x_ticks_ = panel.x_ticks;
      for (double tick : x_ticks_.empty() ? axis_ticks(most_x) : std::vector<double>())
        if (tick >= low_x_ && tick <= most_x + 1e-9 && tick == std::floor(tick)) x_ticks_.push_back(tick);
      if (x_ticks_.empty() || x_ticks_.front() != low_x_) x_ticks_.insert(x_ticks_.begin(), low_x_);
      high_x_ = most_x;
    }
    if (bars_) low_x_ -= 0.6 * panel.bar_step, high_x_ += 0.6 * panel.bar_step;
    if (high_x_ <= low_x_) high_x_ = low_x_ + 1;
  }

  double x(double value) const {
    const double place = log_x_ ? std::log2(std::max(value, 1.0)) : value;
    return left_ + kPanelWidth * (place - low_x_) / (high_x_ - low_x_);
  }
  double y(double value) const { return top_ + kPanelHeight * std::max(0.0, 1 - value / y_ticks_.back()); }
  double unit() const { return kPanelWidth / (high_x_ - low_x_); }  // of x

  std::string drawn(const Panel& panel) const {
    const double bottom = top_ + kPanelHeight, right = left_ + kPanelWidth;
    std::string svg = svg_text(left_, top_ - 10, "font-weight=\"bold\"", panel.title);
    for (double tick : y_ticks_) {
      svg += svg_line(left_, y(tick), right, y(tick), stroke(tick == 0 ? kInk : kFaint, 1));
      svg += svg_text(left_ - 7, y(tick) + 4, small("text-anchor=\"end\""), tick_text(tick));
    }
    for (double tick : x_ticks_) {
      svg += svg_line(x(tick), bottom, x(tick), bottom + 4, stroke(kInk, 1));
      svg += svg_text(x(tick), bottom + 17, small("text-anchor=\"middle\""), tick_text(tick));
    }
    if (panel.square) svg += svg_line(x(0), y(0), x(1), y(1), stroke(kPlainColour, 1) + " stroke-dasharray=\"4 4\"");
    svg += svg_text(left_ + kPanelWidth / 2, bottom + 36, "font-size=\"12\" text-anchor=\"middle\"", panel.x_name);
    const double middle = top_ + kPanelHeight / 2, at = left_ - 48;
    return svg + svg_text(at, middle,
                          "font-size=\"12\" text-anchor=\"middle\" transform=\"rotate(-90 " + decimals(at, 1) + " " +
                              decimals(middle, 1) + ")\"",
                          panel.y_name);
  }

 private:
  bool log_x_, bars_ = false;
  double left_, top_, low_x_ = 0, high_x_ = 1;
  std::vector<double> x_ticks_, y_ticks_;
};

// Full on a line, hollow on its own.
std::string dot(double x, double y, const Series& series) {
  const bool hollow = series.style == Series::Style::kDots;
  return "<circle" + attribute("cx", x) + attribute("cy", y) + " r=\"3.5\" fill=\"" +
         (hollow ? "#ffffff" : series.colour) + "\" " + stroke(hollow ? series.colour : "#ffffff", hollow ? 1.6 : 0.7) +
         "/>\n";
}

// place: which of `of` series of bars it is; step: how far bars of one series stand apart.
std::string drawn_series(const Series& series, const Axes& axes, int place, int of, double step) {
  using Style = Series::Style;
  std::string svg, corners;
  if (series.style == Style::kBars) {
    const double width = axes.unit() * step * 0.84 / of;
    for (const Point& point : series.points)
      svg += svg_bar(axes.x(point.x) + width * (place - of / 2.0), axes.y(point.y), width * 0.94,
                     axes.y(0) - axes.y(point.y), series.colour);
    return svg;
  }
  for (const Point& point : series.points)
    corners += decimals(axes.x(point.x), 1) + "," + decimals(axes.y(point.y), 1) + " ";
  if (series.style != Style::kDots && !corners.empty()) {
    corners.pop_back();
    svg += "<polyline points=\"" + corners + "\" fill=\"none\" " + stroke(series.colour, 1.8) +
           (series.style == Style::kDashes ? " stroke-dasharray=\"6 4\"" : "") + "/>\n";
  }
  bool above = false;
  for (const Point& point : series.points) {
    const double x = axes.x(point.x), y = axes.y(point.y);
    if (point.high > point.low)
      svg += svg_line(x, axes.y(point.low), x, axes.y(point.high), stroke(series.colour, 1.2));
    if (series.style != Style::kDashes) svg += dot(x, y, series);
    if (point.label.empty()) continue;
    above = !above;  // right above and left below by turns, so that neighbours' labels do not meet
    svg += svg_text(
        x + (above ? 5 : -5), y + (above ? -5 : 12),
        std::string("font-size=\"9\" text-anchor=\"") + (above ? "start" : "end") + "\" fill=\"" + series.colour + "\"",
        point.label);
  }
  return svg;
}

std::string legend_mark(const Series& series, double x, double y) {
  using Style = Series::Style;
  if (series.style == Style::kBars) return svg_bar(x + 4, y - 5, 12, 10, series.colour);
  std::string svg;
  if (series.style != Style::kDots)
    svg += svg_line(x, y, x + 22, y,
                    stroke(series.colour, 1.8) + (series.style == Style::kDashes ? " stroke-dasharray=\"6 4\"" : ""));
  return series.style == Style::kDashes ? svg : svg + dot(x + 11, y, series);
}

// Names and marks in rows as wide as the page; returns where the last row ends.
double draw_legend(const std::vector<Series>& entries, double width, double top, std::string& svg) {
  double x = kLeft, y = top;
  for (const Series& entry : entries) {
    const double takes = 30 + svg_text_width(entry.name, 12) + 22;
    if (x > kLeft && x + takes > width) x = kLeft, y += kLegendRow;
    svg += legend_mark(entry, x, y) + svg_text(x + 30, y + 4, "font-size=\"12\"", entry.name);
    x += takes;
  }
  return y + kLegendRow;
}

}  // namespace

std::string chart_picture(const std::string& title, const std::string& subtitle, const std::vector<Panel>& panels,
                          int columns) {
  const int across = std::max(1, std::min(columns, int(panels.size()))),
            down = (int(panels.size()) + across - 1) / across;
  const double wide = kLeft + kPanelWidth + kRight, high = kAbove + kPanelHeight + kBelow;
  const double width = std::max({across * wide, 32 + svg_text_width(subtitle, 11), 32 + svg_text_width(title, 16)});
  std::string svg;
  std::vector<Series> legend;
  for (size_t i = 0; i < panels.size(); i++) {
    const Panel& panel = panels[i];
    const Axes axes(panel, double(int(i) % across) * wide + kLeft, kSvgHead + double(int(i) / across) * high + kAbove);
    svg += axes.drawn(panel);
    const auto is_bars = [](const Series& series) { return series.style == Series::Style::kBars; };
    const int of = int(std::count_if(panel.series.begin(), panel.series.end(), is_bars));
    int place = 0;
    for (const Series& series : panel.series) {
      svg += drawn_series(series, axes, is_bars(series) ? place++ : 0, of, panel.bar_step);
      const auto same = [&](const Series& entry) { return entry.name == series.name; };
      if (std::none_of(legend.begin(), legend.end(), same)) legend.push_back(series);
    }
  }
  const double bottom = draw_legend(legend, width, kSvgHead + down * high + 12, svg);
  return svg_page(width, bottom, title, subtitle, svg);
}

// ---------------------------------------------------------------------------------------------------------------
// Bars below each other

namespace {

// A name before each bar, its label after it; `drawn` gives what a bar at (left, y) is; `foot` adds what stands from
// (left, y) on below all, and returns where that ends; wide: how wide it is at least.
template <class Bar, class Drawn, class Foot>
std::string rows_picture(const std::string& title, const std::string& subtitle, const std::vector<Bar>& bars,
                         double wide, const Drawn& drawn, const Foot& foot) {
  double left = 0, after = 0, y = kSvgHead;
  for (const Bar& bar : bars) {
    left = std::max(left, 34 + svg_text_width(bar.name, 13));
    after = std::max(after, 30 + svg_text_width(bar.label, 12));
  }
  std::string svg;
  for (const Bar& bar : bars) {
    svg += svg_text(left - 10, y + 13, "text-anchor=\"end\"", bar.name) + drawn(bar, left, y) +
           svg_text(left + kBarWidth + 14, y + 13, "font-size=\"12\"", bar.label);
    y += kBarRow;
  }
  const double width = std::max(
      {left + kBarWidth + after, 32 + svg_text_width(subtitle, 11), 32 + svg_text_width(title, 16), left + 16 + wide});
  const double bottom = foot(svg, left, y, width);
  return svg_page(width, bottom, title, subtitle, svg);
}

std::string diamond(double x, double y) {
  const auto corner = [&](double right, double down) { return decimals(x + right, 1) + "," + decimals(y + down, 1); };
  return "<polygon points=\"" + corner(0, -6) + " " + corner(5, 0) + " " + corner(0, 6) + " " + corner(-5, 0) +
         "\" fill=\"#ffffff\" " + stroke(kInk, 1.4) + "/>\n";
}

}  // namespace

std::string stacked_picture(const std::string& title, const std::string& subtitle,
                            const std::vector<std::string>& part_names, const std::vector<StackedBar>& bars) {
  const auto drawn = [](const StackedBar& bar, double x, double y) {
    std::string svg;
    double sum = 0;
    for (double part : bar.parts) sum += part;
    for (size_t p = 0; p < bar.parts.size() && sum > 0; p++) {
      const double share = bar.parts[p] / sum, wide = kBarWidth * share;
      svg += svg_bar(x, y, wide, kBarThick, colour_at(p));
      if (share >= 0.05)
        svg += svg_text(x + wide / 2, y + 13, "font-size=\"11\" fill=\"#ffffff\" text-anchor=\"middle\"",
                        decimals(100 * share, 0) + "%");
      x += wide;
    }
    return svg;
  };
  std::vector<Series> legend;
  for (const std::string& name : part_names) legend.push_back({name, colour_at(legend.size()), Series::Style::kBars});
  return rows_picture(title, subtitle, bars, 0, drawn, [&](std::string& svg, double, double y, double width) {
    return draw_legend(legend, width, y + 14, svg);
  });
}

std::string interval_picture(const std::string& title, const std::string& subtitle, const std::string& axis,
                             double zero, const std::vector<IntervalBar>& bars, const std::string& mark_name,
                             const std::string& whisker) {
  const std::string below = axis + "; whisker: " + whisker;
  double least = zero, most = zero;
  for (const IntervalBar& bar : bars) {
    least = std::min({least, bar.value.middle, bar.value.low, bar.mark.value_or(zero)});
    most = std::max({most, bar.value.middle, bar.value.high, bar.mark.value_or(zero)});
  }
  const auto at = [&](double value) { return most > least ? kBarWidth * (value - least) / (most - least) : 0; };
  const auto drawn = [&](const IntervalBar& bar, double left, double y) {
    const double middle = y + kBarThick / 2, from = left + at(zero), end = left + at(bar.value.middle);
    std::string svg = svg_bar(std::min(from, end), y, std::max(std::fabs(end - from), 0.5), kBarThick, bar.colour);
    if (bar.value.high > bar.value.low) {
      const double low = left + at(bar.value.low), high = left + at(bar.value.high);
      svg += svg_line(low, middle, high, middle, stroke(kInk, 1.4));
      for (double x : {low, high}) svg += svg_line(x, middle - 4, x, middle + 4, stroke(kInk, 1.4));
    }
    return bar.mark ? svg + diamond(left + at(*bar.mark), middle) : svg;
  };
  const auto foot = [&](std::string& svg, double left, double y, double) {
    svg += svg_line(left + at(zero), kSvgHead - 6, left + at(zero), y + 2, stroke(kInk, 1)) +
           svg_text(left, y + 18, small(), below);
    if (!mark_name.empty()) svg += diamond(left + 6, y + 34) + svg_text(left + 18, y + 38, small(), mark_name);
    return y + 50;
  };
  return rows_picture(title, subtitle, bars, svg_text_width(below, 11), drawn, foot);
}

// ---------------------------------------------------------------------------------------------------------------
// Several pictures

std::string svg_below_each_other(const std::vector<std::string>& pictures) {
  double width = 0, height = 0;
  std::string svg;
  for (const std::string& picture : pictures) {
    double wide = 0, high = 0;
    sscanf(picture.c_str(), "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %lf %lf", &wide, &high);
    svg += "<svg" + attribute("x", 0) + attribute("y", height) + picture.substr(4);
    width = std::max(width, wide), height += high;
  }
  return svg_file(width, height, svg);
}

}  // namespace nanospec
