// commands/svg.cpp: see svg.h.
#include "commands/svg.h"

#include "commands/cli.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Pieces

double svg_text_width(const std::string& text, double font_size, bool bold) {
  constexpr std::pair<const char*, double> kWidths[] = {{" ijlIJ.,:;'|!", 0.34}, {"frt()[]/-\"", 0.41},
                                                        {"cksvxyz_*?FL", 0.58},  {"mwMW%@", 0.96},
                                                        {"+=<>~#", 0.84},        {"GHNOQUD", 0.78}};
  double ems = 0;
  for (char c : text) {
    if ((c & 0xc0) == 0x80) continue;  // the rest of a character
    const auto has = [&](const auto& kind) { return std::string(kind.first).find(c) != std::string::npos; };
    const auto kind = std::find_if(std::begin(kWidths), std::end(kWidths), has);
    ems += kind != std::end(kWidths) ? kind->second : std::isupper((unsigned char)c) ? 0.7 : c & 0x80 ? 1 : 0.64;
  }
  return ems * font_size * (bold ? 1.1 : 1);
}

std::vector<double> axis_ticks(double most) {
  if (!(most > 0)) return {0, 1};
  const double rough = most / 5, power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (double nice : {5.0, 2.5, 2.0, 1.0})
    if (nice * power >= rough * 0.8) step = nice * power;
  std::vector<double> ticks;
  for (int i = 0; ticks.empty() || ticks.back() < most * 0.9999; i++) ticks.push_back(i * step);
  return ticks;
}

namespace {

constexpr double kWidth = 600, kMargin = 16, kInner = kWidth - 2 * kMargin, kGap = 22;  // of every picture
constexpr double kTitle = 20, kText = 15, kSmall = 14;                                  // letters

std::string escaped(const std::string& text) {
  const std::string out = replaced(replaced(text, "&", "&amp;"), "<", "&lt;");
  return replaced(replaced(out, ">", "&gt;"), "\"", "&quot;");
}
// The beginning of a tag, with its numbers.
std::string tag(const char* name, const std::vector<std::pair<const char*, double>>& numbers) {
  std::string svg = std::string("<") + name;
  for (const auto& [attribute, value] : numbers)
    svg += std::string(" ") + attribute + "=\"" + decimals(value, 1) + "\"";
  return svg;
}
std::string stroke(const std::string& colour, double width) {
  return " stroke=\"" + colour + "\" stroke-width=\"" + decimals(width, 1) + "\"";
}
std::string svg_bar(double x, double y, double width, double height, const std::string& colour) {
  return tag("rect", {{"x", x}, {"y", y}, {"width", width}, {"height", height}}) + " fill=\"" + colour + "\"/>\n";
}
std::string svg_line(double x1, double y1, double x2, double y2, const std::string& style) {
  return tag("line", {{"x1", x1}, {"y1", y1}, {"x2", x2}, {"y2", y2}}) + style + "/>\n";
}

// Letters of one size and colour.
struct Letters {
  double size;
  const char* colour = kInk;
  bool bold = false;

  double width(const std::string& text) const { return svg_text_width(text, size, bold); }
  // anchor: of x, "start", "middle" or "end".
  std::string at(double x, double y, const std::string& text, const char* anchor = "start") const {
    return tag("text", {{"x", x}, {"y", y}, {"font-size", size}}) + " fill=\"" + colour + "\"" +
           (bold ? " font-weight=\"bold\"" : "") + " text-anchor=\"" + anchor + "\">" + escaped(text) + "</text>\n";
  }
  // Adds as many lines of at most `wide` as it takes; y: where they begin, then where they end.
  void lines(std::string& svg, double x, double& y, double wide, const std::string& text,
             const char* anchor = "start") const {
    const auto measure = [&](const std::string& line) { return width(line); };
    for (const std::string& line : wrapped(split_at(text, ' '), wide, measure, true)) {
      svg += at(x, y + size, line, anchor);
      y += 1.3 * size;
    }
  }
};
constexpr Letters kTitles{kTitle, kInk, true}, kHeadings{16, kInk, true}, kWords{kText}, kNotes{kSmall, kGrey};

// A white page with this on it; where a browser shows it on its own it shrinks to the window's width.
std::string svg_file(double height, const std::string& body) {
  const std::string wide = decimals(kWidth, 0), high = decimals(std::ceil(height), 0);
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + wide + " " + high + "\" width=\"" + wide +
         "\" height=\"" + high + "\" style=\"max-width:100%;height:auto\" font-family=\"sans-serif\">\n" +
         svg_bar(0, 0, kWidth, std::ceil(height), "#ffffff") + body + "</svg>\n";
}

// What is drawn piece by piece is added to `svg`; y: where the next piece begins.
std::string svg_head(const std::string& title, const std::string& subtitle, double& y) {
  std::string svg;
  y = kMargin;
  kTitles.lines(svg, kMargin, y, kInner, title);
  kNotes.lines(svg, kMargin, y, kInner, subtitle);
  return svg;
}

// ---------------------------------------------------------------------------------------------------------------
// Legends

// Points of a colour have its mark, so that a line can be followed without it.
constexpr const char* kMarks[] = {
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "M-3.6-3.6h7.2v7.2h-7.2z",    "M0-4.8l4.6 8.2h-9.2z",
    "M0-5.2l5.2 5.2l-5.2 5.2l-5.2-5.2z",  "M0 4.8l4.6-8.2h-9.2z",       "M-1.4-4.4h2.8v3h3v2.8h-3v3h-2.8v-3h-3v-2.8h3z",
    "M0-5l4.8 3.5l-1.8 5.6h-6l-1.8-5.6z", "M-4.2-4.2h8.4l-8.4 8.4h8.4z"};
static_assert(std::size(kMarks) == std::size(kColours), "a mark for each colour");

std::string shape(const char* path, double x, double y, const std::string& fill, const std::string& outline) {
  return "<path d=\"" + std::string(path) + "\" transform=\"translate(" + decimals(x, 1) + " " + decimals(y, 1) +
         ")\" fill=\"" + fill + "\"" + outline + "/>\n";
}

// "" for a colour that has none. Full on a full line, else hollow.
std::string mark(double x, double y, const Series& series) {
  const auto found = std::find(std::begin(kColours), std::end(kColours), series.colour);
  if (found == std::end(kColours)) return "";
  const bool full = series.style == Series::Style::kLine;
  return shape(kMarks[found - std::begin(kColours)], x, y, full ? series.colour : "#ffffff",
               full ? stroke("#ffffff", 0.7) : stroke(series.colour, 1.6));
}
std::string line_style(const Series& series) {
  return stroke(series.colour, 2) + (series.style == Series::Style::kDashes ? " stroke-dasharray=\"7 4\"" : "");
}
std::string whisker(double x1, double y1, double x2, double y2, const std::string& colour) {
  const double across = x1 == x2 ? 3.5 : 0, down = 3.5 - across;
  std::string svg = svg_line(x1, y1, x2, y2, stroke(colour, 1.4));
  svg += svg_line(x1 - across, y1 - down, x1 + across, y1 + down, stroke(colour, 1.4));
  return svg + svg_line(x2 - across, y2 - down, x2 + across, y2 + down, stroke(colour, 1.4));
}
// Where a whisker goes on.
constexpr const char *kUp = "M0-6l5 9h-10z", *kLeftwards = "M-6 0l9-5v10z", *kRightwards = "M6 0l-9-5v10z";

struct Entry {              // of a legend
  std::string name, drawn;  // around (11, 0)
};
Entry goes_on(const char* path) { return {"the whisker goes on", shape(path, 11, 0, kInk, "")}; }
Entry entry_of(const Series& series) {
  if (series.style == Series::Style::kBars) return {series.name, svg_bar(4, -6, 14, 12, series.colour)};
  const std::string line = series.style == Series::Style::kDots ? "" : svg_line(0, 0, 22, 0, line_style(series));
  return {series.name, line + mark(11, 0, series)};
}

// Below each other or, where there is room, in a row.
void draw_legend(std::string& svg, const std::vector<Entry>& entries, double left, double& y, double wide) {
  constexpr double kName = 29, kRow = 20;
  double x = left, down = 0;
  for (const Entry& entry : entries) {
    const double takes = kName + kNotes.width(entry.name);
    if (x > left && x + takes > left + wide) {
      x = left;
      y += down;
    }
    svg += "<g transform=\"translate(" + decimals(x, 1) + " " + decimals(y + 10, 1) + ")\">" + entry.drawn + "</g>\n";
    double below = y;
    kNotes.lines(svg, x + kName, below, wide - kName, entry.name);
    x += takes + 14;
    down = std::max(kRow, below - y);
  }
  y += down;
}

// ---------------------------------------------------------------------------------------------------------------
// Charts

// As short as it can be said: 0.5, 2, 40,000.
std::string tick_text(double x) {
  if (std::fabs(x) >= 1000) return thousands(x);
  for (int places = 0; places < 3; places++)
    if (std::fabs(x - std::strtod(decimals(x, places).c_str(), nullptr)) < 1e-9) return decimals(x, places);
  return decimals(x, 3);
}

using Place = std::function<double(double)>;  // of a number on the page

// Numbers centred below or above an axis, those that have room.
void draw_ticks(std::string& svg, const std::vector<double>& ticks, double y, const Place& place) {
  double free = -1e300;
  for (double tick : ticks) {
    const double half = kNotes.width(tick_text(tick)) / 2, x = place(tick);
    if (x - half < free) continue;
    svg += kNotes.at(x, y, tick_text(tick), "middle");
    free = x + half + 4;
  }
}

// Whiskers may go beyond the largest value by 0.4 of it: one disturbed run must not flatten the rest.
double reach(double value, double whisker) { return std::max(value, std::min(whisker, 1.4 * value)); }

bool whole(double x) { return x == std::floor(x); }
bool is_bars(const Series& series) { return series.style == Series::Style::kBars; }

// One panel's axes: where numbers lie on the page, and what its points are like.
struct Axes {
  const Panel& panel;
  double left = 0, top = 0, wide = 1, high = 1;  // their box on the page
  std::vector<double> x_ticks = panel.x_ticks, y_ticks = {};
  double low_x = 0, high_x = 1;
  int bars = 0;                           // series of them
  bool empty = true;                      // no points
  bool whiskers = false, beyond = false;  // whether there are any, and some that leave the box

  double x(double value) const {
    const double place = panel.log_x ? std::log2(std::max(value, 1.0)) : value;
    return left + pad() + unit() * (place - low_x);
  }
  double y(double value) const { return top + high * std::clamp(1 - value / y_ticks.back(), 0.0, 1.0); }
  double unit() const { return (wide - 2 * pad()) / (high_x - low_x); }  // of x
  double pad() const { return panel.square || bars > 0 ? 0 : 12; }       // room for marks left and right
};

// Where all points are at whole numbers, so are the ticks. A line's first point has one, bars begin where they do.
void choose_x_ticks(Axes& axes, bool counts) {
  std::vector<double>& ticks = axes.x_ticks;
  if (counts && axes.high_x - axes.low_x <= 10)
    for (double tick = axes.low_x; tick <= axes.high_x; tick++) ticks.push_back(tick);
  else
    for (double tick : axis_ticks(axes.high_x))
      if (tick >= axes.low_x && tick <= axes.high_x * (1 + 1e-9) && (!counts || whole(tick))) ticks.push_back(tick);
  if ((counts || axes.bars == 0) && (ticks.empty() || ticks.front() != axes.low_x))
    ticks.insert(ticks.begin(), axes.low_x);
}

Axes axes_of(const Panel& panel) {
  Axes axes{panel};
  std::vector<double> x, y, high;
  for (const Series& series : panel.series) {
    axes.bars += is_bars(series);
    for (const Point& point : series.points) {
      x.push_back(point.x);
      y.push_back(point.y);
      high.push_back(point.high);
      axes.whiskers |= point.high > point.low;
    }
  }
  axes.empty = x.empty();
  if (axes.empty || panel.square) x = {0, 1};
  axes.low_x = lowest(x);
  axes.high_x = highest(x);
  axes.y_ticks = axis_ticks(panel.square ? 1 : reach(highest(y), highest(high)));
  axes.beyond = highest(high) > axes.y_ticks.back();
  if (panel.square) axes.x_ticks = axes.y_ticks;
  else if (panel.log_x) {
    axes.low_x = std::floor(std::log2(std::max(axes.low_x, 1.0)));
    axes.high_x = std::ceil(std::log2(std::max(axes.high_x, 1.0)));
    for (double power = axes.low_x; power <= axes.high_x; power++) axes.x_ticks.push_back(std::exp2(power));
  } else if (axes.x_ticks.empty()) choose_x_ticks(axes, std::all_of(x.begin(), x.end(), whole));
  const double beside = axes.bars > 0 ? 0.6 * panel.bar_step : 0;
  axes.low_x -= beside;
  axes.high_x += beside;
  if (axes.high_x <= axes.low_x) axes.high_x = axes.low_x + 1;
  return axes;
}

void draw_axes(std::string& svg, const Axes& axes) {
  for (double tick : axes.y_ticks) {
    const double y = axes.y(tick);
    svg += svg_line(axes.left, y, axes.left + axes.wide, y, stroke(tick == 0 ? kInk : kFaint, 1));
    svg += kNotes.at(axes.left - 7, y + 5, tick_text(tick), "end");
  }
  const double bottom = axes.top + axes.high;
  const auto at = [&](double tick) { return axes.x(tick); };
  for (double tick : axes.x_ticks) svg += svg_line(at(tick), bottom, at(tick), bottom + 5, stroke(kInk, 1));
  draw_ticks(svg, axes.x_ticks, bottom + 20, at);
  if (axes.panel.square)
    svg += svg_line(at(0), axes.y(0), at(1), axes.y(1), stroke(kPlainColour, 1) + " stroke-dasharray=\"4 4\"");
}

// place: which of the series of bars it is.
void draw_bars(std::string& svg, const Series& series, const Axes& axes, int place) {
  const double width = axes.unit() * axes.panel.bar_step * 0.84 / axes.bars;
  for (const Point& point : series.points)
    svg += svg_bar(axes.x(point.x) + width * (place - axes.bars / 2.0), axes.y(point.y), width * 0.94,
                   axes.y(0) - axes.y(point.y), series.colour);
}

// shift: to the right, so that whiskers of several lines do not hide each other.
void draw_points(std::string& svg, const Series& series, const Axes& axes, double shift) {
  const std::string corners = joined(series.points, " ", [&](const Point& point) {
    return decimals(axes.x(point.x) + shift, 1) + "," + decimals(axes.y(point.y), 1);
  });
  if (series.style != Series::Style::kDots && !corners.empty())
    svg += "<polyline points=\"" + corners + "\" fill=\"none\"" + line_style(series) + "/>\n";
  for (const Point& point : series.points) {
    const double x = axes.x(point.x) + shift;
    if (point.high > point.low) svg += whisker(x, axes.y(point.low), x, axes.y(point.high), series.colour);
    if (point.high > axes.y_ticks.back()) svg += shape(kUp, x, axes.top, series.colour, "");
    svg += mark(x, axes.y(point.y), series);
  }
}

void draw_series(std::string& svg, const Axes& axes) {
  std::map<std::string, size_t> places;  // series of one colour share one, so that a line stays one with its points
  for (const Series& series : axes.panel.series) places.emplace(series.colour, places.size());
  int bars = 0;
  for (const Series& series : axes.panel.series) {
    const double middle = double(places.size() - 1) / 2;
    const double shift = axes.whiskers ? 4 * (double(places[series.colour]) - middle) : 0;
    if (is_bars(series)) draw_bars(svg, series, axes, bars++);
    else draw_points(svg, series, axes, shift);
  }
}

std::vector<Entry> legend_of(const Axes& axes) {
  std::vector<Entry> legend;
  for (const Series& series : axes.panel.series) {
    const auto same = [&](const Entry& entry) { return entry.name == series.name; };
    if (std::none_of(legend.begin(), legend.end(), same)) legend.push_back(entry_of(series));
  }
  if (legend.size() == 1) legend.clear();  // the panel's title says it
  if (axes.whiskers && !axes.panel.whisker.empty())
    legend.push_back({axes.panel.whisker, whisker(11, -6, 11, 6, kInk)});
  if (axes.beyond) legend.push_back(goes_on(kUp));
  return legend;
}

// margin: what numbers take left of the axis. Returns where the panel ends.
double draw_panel(std::string& svg, Axes& axes, double left, double y, double wide, double margin) {
  const Panel& panel = axes.panel;
  kHeadings.lines(svg, left, y, wide, panel.title);
  kNotes.lines(svg, left, y, wide, panel.y_name);
  axes.left = left + margin;
  axes.top = y + 12;
  axes.wide = std::min(wide - margin - 12, panel.square ? 300.0 : kWidth);
  axes.high = panel.square ? axes.wide : std::min(0.9 * axes.wide, 240.0);
  draw_axes(svg, axes);
  draw_series(svg, axes);
  const double middle = axes.left + axes.wide / 2;
  if (axes.empty) svg += kNotes.at(middle, axes.top + 30, "too little was measured", "middle");
  y = axes.top + axes.high + 24;
  kWords.lines(svg, middle, y, axes.wide, panel.x_name, "middle");
  y += 6;
  draw_legend(svg, legend_of(axes), left, y, wide);
  return y;
}

}  // namespace

std::string chart_picture(const std::string& title, const std::string& subtitle, const std::vector<Panel>& panels,
                          size_t columns) {
  const double wide = (kInner - kGap * double(columns - 1)) / double(columns);
  std::vector<Axes> axes;
  double margin = 0, y = 0;  // margin: what the numbers left of an axis take
  for (const Panel& panel : panels) {
    axes.push_back(axes_of(panel));
    for (double tick : axes.back().y_ticks) margin = std::max(margin, kNotes.width(tick_text(tick)) + 8);
  }
  std::string svg = svg_head(title, subtitle, y);
  for (size_t i = 0; i < panels.size(); i += columns) {
    double bottom = y += kGap - 6;
    for (size_t c = 0; c < columns && i + c < panels.size(); c++)
      bottom = std::max(bottom, draw_panel(svg, axes[i + c], kMargin + (wide + kGap) * double(c), y, wide, margin));
    y = bottom;
  }
  return svg_file(y + kMargin, svg);
}

// ---------------------------------------------------------------------------------------------------------------
// Bars below each other

namespace {

constexpr double kBarThick = 15, kBarRow = 20;
const std::string kLineStyle = stroke(kInk, 1.3) + " stroke-dasharray=\"3 2\"";  // of a line that is not 0's

// Round numbers that part the bars' axis, and reach over all of them and most of each whisker; what the bars and their
// marks say.
std::vector<double> ticks_of(const BarAxis& axis, const std::vector<IntervalBar>& bars, std::vector<Entry>& legend) {
  double least = 0, most = axis.line, low = 0, high = 0;
  bool whiskers = false;
  for (const IntervalBar& bar : bars) {
    least = std::min(least, bar.value.middle);
    most = std::max(most, bar.value.middle);
    low = std::min(low, bar.value.low);
    high = std::max(high, bar.value.high);
    whiskers |= bar.value.high > bar.value.low;
  }
  least = -reach(-least, -low);
  most = reach(most, high);
  const double step = axis_ticks(most - least)[1];
  std::vector<double> ticks;
  for (double i = std::floor(least / step + 1e-4); i <= std::ceil(most / step - 1e-4); i++) ticks.push_back(i * step);
  for (const auto& [name, colour] : axis.colours) legend.push_back(entry_of({name, colour, Series::Style::kBars}));
  if (!axis.line_name.empty()) legend.push_back({axis.line_name, svg_line(11, -9, 11, 9, kLineStyle)});
  if (whiskers) legend.push_back({axis.whisker, whisker(0, 0, 22, 0, kInk)});
  if (low < ticks.front() || high > ticks.back()) legend.push_back(goes_on(kRightwards));
  return ticks;
}

void draw_interval(std::string& svg, const IntervalBar& bar, double y, const std::vector<double>& ticks,
                   const Place& at) {
  const double middle = y + kBarThick / 2, from = at(0), end = at(bar.value.middle);
  svg += svg_bar(std::min(from, end), y, std::max(std::fabs(end - from), 0.5), kBarThick, bar.colour);
  if (!(bar.value.high > bar.value.low)) return;
  const double low = at(std::max(bar.value.low, ticks.front())), high = at(std::min(bar.value.high, ticks.back()));
  svg += whisker(low, middle, high, middle, kInk);
  if (bar.value.low < ticks.front()) svg += shape(kLeftwards, low, middle, kInk, "");
  if (bar.value.high > ticks.back()) svg += shape(kRightwards, high, middle, kInk, "");
}

}  // namespace

std::string interval_picture(const std::string& title, const std::string& subtitle, const BarAxis& axis,
                             const std::vector<IntervalBar>& bars) {
  std::vector<Entry> legend;
  const std::vector<double> ticks = ticks_of(axis, bars, legend);
  double inset = 12, after = 0, y = 0;
  for (double tick : ticks) inset = std::max(inset, kNotes.width(tick_text(tick)) / 2 - kMargin / 2);
  for (const IntervalBar& bar : bars) after = std::max(after, kWords.width(bar.label));
  const double left = kMargin + inset, wide = kInner - 2 * inset - after;
  const double span = std::max(ticks.back() - ticks.front(), 1e-9);
  const Place at = [&](double value) { return left + wide * (value - ticks.front()) / span; };
  const auto upright = [&](double x, const std::string& style) {
    return svg_line(at(x), y, at(x), y + kBarRow, style);
  };

  std::string svg = svg_head(title, subtitle, y);
  y += 8;
  draw_legend(svg, legend, kMargin, y, kInner);
  y += 8;
  kNotes.lines(svg, kMargin, y, kInner, axis.name);
  draw_ticks(svg, ticks, y + kSmall + 2, at);
  y += kSmall + 8;
  for (const IntervalBar& bar : bars) {
    if (!bar.name.empty()) {
      y += 4;
      kWords.lines(svg, kMargin, y, kInner, bar.name);
      y += 2;
    }
    for (double tick : ticks) svg += upright(tick, stroke(kFaint, 1));
    draw_interval(svg, bar, y + (kBarRow - kBarThick) / 2, ticks, at);
    svg += upright(0, stroke(kInk, 1));
    if (axis.line != 0) svg += upright(axis.line, kLineStyle);
    svg += kWords.at(left + wide + inset, y + 15, bar.label);
    y += kBarRow;
  }
  draw_ticks(svg, ticks, y + kSmall + 2, at);
  return svg_file(y + kSmall + kMargin, svg);
}

// ---------------------------------------------------------------------------------------------------------------
// Whole pictures

std::string svg_below_each_other(const std::vector<std::string>& pictures) {
  double y = 0;
  std::string svg;
  for (const std::string& picture : pictures) {
    double high = 0;
    sscanf(picture.c_str(), "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %*f %lf", &high);
    const size_t begin = picture.find('\n') + 1, end = picture.rfind("</svg>");
    svg += "<g transform=\"translate(0 " + decimals(y, 0) + ")\">\n" + picture.substr(begin, end - begin) + "</g>\n";
    y += high;
  }
  return svg_file(y, svg);
}

std::string svg_warning(const std::string& line) {
  return svg_file(
      38, svg_bar(0, 0, kWidth, 38, "#fdecd2") + svg_bar(0, 0, 6, 38, kColours[1]) + kHeadings.at(kMargin, 25, line));
}

}  // namespace nanospec
