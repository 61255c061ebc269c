// tests/commands/test_svg.cpp: pictures: that they are whole, that nothing in them is cut or covered, and that axes,
// bars, whiskers, legends and marks tell what they are drawn from.
#include <doctest/doctest.h>

#include <set>

#include "tests/picture.h"

using namespace nanospec;
using Style = Series::Style;

namespace {

// What is wrong with an XML text: tags that do not nest, an attribute without quotes, a bare '&'. "" when nothing is.
std::string xml_problem(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t i = 0; i < xml.size(); i++) {
    if (xml[i] == '&' && xml.compare(i, 4, "&lt;") && xml.compare(i, 4, "&gt;") && xml.compare(i, 5, "&amp;") &&
        xml.compare(i, 6, "&quot;"))
      return "a bare & at " + std::to_string(i);
    if (xml[i] == '>') return "a bare > at " + std::to_string(i);
    if (xml[i] != '<') continue;
    const size_t end = xml.find('>', i);
    if (end == std::string::npos) return "a tag without end";
    const std::string tag = xml.substr(i + 1, end - i - 1), name = tag.substr(0, tag.find_first_of(" /", 1));
    if (std::count(tag.begin(), tag.end(), '"') % 2 || tag.find("nan") != std::string::npos) return "in <" + tag;
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return "</" + tag;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    i = end;
  }
  return open.empty() ? "" : "never closed: " + open.back();
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) n++;
  return n;
}

}  // namespace

TEST_CASE("svg: ticks are round numbers that reach over the largest value") {
  CHECK(axis_ticks(1) == std::vector<double>{0, 0.2, 0.4, 0.6000000000000001, 0.8, 1});
  CHECK(axis_ticks(16).back() >= 16);
  for (double most : {1e-9, 0.03, 0.99, 1.01, 7.0, 99.0, 12345.0, 3e11}) {
    const std::vector<double> ticks = axis_ticks(most);
    CHECK(ticks.front() == 0);
    CHECK(ticks.back() >= 0.999 * most);
    CHECK(ticks.size() >= 4);
    CHECK(ticks.size() <= 9);
  }
  CHECK(axis_ticks(0) == std::vector<double>{0, 1});
}

TEST_CASE("svg: every kind is a whole file, escapes its words and shows its points") {
  const Series line{"a<b&c", kColours[0], Style::kLine, {{1, 2, 1, 3}, {16, 5}}},
      dashes{"bound", kColours[1], Style::kDashes, {{1, 1}, {16, 4}}},
      dots{"dots", kColours[2], Style::kDots, {{3, 2}}}, bars{"bars", kColours[3], Style::kBars, {{1, 2}, {2, 3}}},
      none{"none", kInk, Style::kLine, {}};
  const std::string chart = chart_picture("title", "sub<title>",
                                          {{"one", "x", "y", {line, dashes, dots}},
                                           {"two", "x", "y", {line}, {}, true},
                                           {"three", "x", "y", {bars, bars}},
                                           {"\"empty\"", "x", "y", {none}}},
                                          2);
  CHECK(xml_problem(chart) == "");
  CHECK(picture_problem(chart) == "");
  CHECK(chart.find("a&lt;b&amp;c") != std::string::npos);
  CHECK(chart.find("sub&lt;title&gt;") != std::string::npos);
  CHECK(chart.find("&quot;empty&quot;") != std::string::npos);
  CHECK(count_of(chart, "<path") == (2 + 2 + 1 + 2) + 3);  // points, and the marks in a legend
  CHECK(count_of(chart, "<polyline") == 3);
  CHECK(count_of(chart, "too little was measured") == 1);

  BarAxis shares{"share, %"};
  shares.colours = {{"a", colour_at(0)}, {"b", colour_at(1)}};
  const std::string stacked = interval_picture(
      "t", "s", shares, {{"first", {100}, "x", "", {}, {1, 3}}, {"nothing", {100}, "", "", {}, {0, 0}}});
  CHECK(xml_problem(stacked) == "");
  CHECK(picture_problem(stacked) == "");
  CHECK(stacked.find(">25%<") != std::string::npos);
  CHECK(stacked.find(">75%<") != std::string::npos);

  const std::string reliable = chart_picture(
      "t", "s", {{"", "x", "y", {{"auto", kColours[0], Style::kLine, {{0.1, 0.2}, {0.9, 0.8}}}}, {}, false, true}}, 1);
  CHECK(xml_problem(reliable) == "");
  CHECK(count_of(reliable, "stroke-dasharray=\"4 4\"") == 1);  // the diagonal

  CHECK(picture_problem(interval_picture("t", "s", {"a", 1, "a line", "a mark"}, {})) == "");
  const std::string both = svg_below_each_other({svg_warning("beware"), chart, stacked});
  CHECK(xml_problem(both) == "");
  CHECK(picture_problem(both) == "");
  const Picture whole = read_picture(both), first = read_picture(chart);
  CHECK(whole.high == doctest::Approx(38 + first.high + read_picture(stacked).high));
  CHECK(whole.word("title").top == doctest::Approx(38 + first.word("title").top));
}

TEST_CASE("svg: no word is cut or stands over another one, however long they are") {
  const std::string longest(90, 'W'), words = "many words that take more than one line, many more than one line of it";
  std::vector<Series> lines;
  std::vector<IntervalBar> bars, stacked;
  for (size_t i = 0; i < 8; i++) {
    lines.push_back({words + std::to_string(i), colour_at(i), Style::kLine});
    for (double x = 0; x < 40; x++) lines.back().points.push_back({1e6 + x, 123456 + double(i), 1, 2e6});
    bars.push_back({(i % 2 ? longest : words), {-12345.0 * double(i), -1e6, 3}, "-1,000.0 tok/s", kColours[0], 9e4});
    stacked.push_back({words, {100}, "2,000 us/token", "", {}, {1, 2, 3, 4, 50}});
  }
  for (int columns : {1, 2}) {
    Panel panel{words, words, words, lines};
    panel.whisker = words;
    for (double x = 0; x < 40; x++) panel.x_ticks.push_back(1e6 + x);
    CHECK(picture_problem(chart_picture(longest, words + words + words, {panel, panel, panel}, columns)) == "");
  }
  BarAxis axis{words, 1, words, words};
  axis.colours = {{longest, kInk}, {words, kInk}};
  CHECK(picture_problem(interval_picture(words, longest, axis, bars)) == "");
  BarAxis shares{words};
  for (const std::string& name : {std::string("a"), std::string("b"), words, std::string("d"), std::string("e")})
    shares.colours.push_back({name, colour_at(shares.colours.size())});
  CHECK(picture_problem(interval_picture(words, longest, shares, stacked)) == "");
}

TEST_CASE("svg: bars begin at 0 and are as long as their values") {
  const Series some{"some", kColours[0], Style::kBars, {{1, 3}, {2, 4}}};
  const Picture chart = read_picture(chart_picture("t", "s", {{"p", "x", "y", {some}}}, 1));
  REQUIRE(chart.bars.size() == 3);  // the page, and no legend where there is nothing to tell apart
  const Drawn three = chart.bars[1], four = chart.bars[2], zero = chart.word("0");
  CHECK(three.bottom == doctest::Approx(four.bottom).epsilon(0.001));
  CHECK(three.bottom > zero.top);
  CHECK(three.bottom < zero.bottom);
  CHECK((four.bottom - four.top) / (three.bottom - three.top) == doctest::Approx(4.0 / 3).epsilon(0.01));

  const Picture rows = read_picture(interval_picture("t", "s", {"percent", 1, "a line"},
                                                     {{"gain", {3, 2.5, 4}, "3", kColours[0]},
                                                      {"less", {1.5}, "1.5", kColours[1]},
                                                      {"loss", {-1.5}, "-1.5", kColours[2]}}));
  REQUIRE(rows.bars.size() == 4);
  const Drawn gain = rows.bars[1], less = rows.bars[2], loss = rows.bars[3], at_zero = rows.word("0");
  CHECK(gain.left == doctest::Approx((at_zero.left + at_zero.right) / 2).epsilon(0.001));
  CHECK(less.left == gain.left);
  CHECK(loss.right == doctest::Approx(gain.left).epsilon(0.001));
  CHECK((gain.right - gain.left) / (less.right - less.left) == doctest::Approx(2).epsilon(0.01));
  CHECK(gain.top > rows.word("gain").top);
  CHECK(gain.bottom < rows.word("less").bottom);
}

TEST_CASE("svg: each axis has its name and numbers, each panel its legend") {
  const Series a{"first", kColours[0], Style::kLine, {{1, 10}, {3, 30}}},
      b = {"second", kColours[1], Style::kLine, {{1, 0.5}, {3, 0.25}}},
      c = {"third", kColours[2], Style::kDots, {{1, 0.5}}}, d = {"fourth", kColours[3], Style::kDots, {{8, 1}}};
  const Picture p = read_picture(
      chart_picture("t", "s", {{"above", "x1", "y1", {a, b}}, {"below", "x2", "y2", {c, d}, {}, true}}, 1));
  const auto order = [&](const std::vector<std::string>& words) {
    for (size_t i = 1; i < words.size(); i++)
      CHECK_MESSAGE(p.word(words[i - 1]).top < p.word(words[i]).top, words[i - 1] << " " << words[i]);
  };
  order({"above", "y1", "30", "10", "0", "1", "x1", "first", "below", "y2", "x2", "third"});
  CHECK(p.word("second").bottom < p.word("below").top);
  for (const char* tick : {"1", "2", "3", "4", "8", "0.6"}) CHECK_MESSAGE(p.word(tick).left > 0, tick);

  const Picture rows = read_picture(interval_picture("t", "s", {"times plain", 1, "plain", "a bar to reach"},
                                                     {{"gain", {3, 2.5, 4}, "3", kColours[0], 2.0}}));
  for (const char* word : {"times plain", "plain", "a bar to reach", kOverPrompts, "0", "1", "2", "3", "4"}) {
    CHECK_MESSAGE(rows.word(word).left > 0, word);
    CHECK_MESSAGE(rows.word(word).top < rows.bars[1].top, word);
  }
}

TEST_CASE("svg: whiskers say what they are, and an arrow where they go on") {
  const auto chart = [](double high) {
    Panel panel{"p", "x", "y", {{"line", kColours[0], Style::kLine, {{1, 10, 5, high}, {2, 10}}}}};
    panel.whisker = "lowest to highest";
    return chart_picture("t", "s", {panel}, 1);
  };
  const auto rows = [](double low, double high) {
    return interval_picture("t", "s", {"a"}, {{"row", {10, low, high}, "", kColours[0]}});
  };
  CHECK(count_of(chart(12), "lowest to highest") == 1);
  CHECK(count_of(chart(0), "lowest to highest") == 0);
  CHECK(count_of(rows(8, 12), kOverPrompts) == 1);
  CHECK(count_of(rows(10, 10), kOverPrompts) == 0);
  for (const std::string& svg : {chart(12), rows(8, 12)}) CHECK(count_of(svg, "goes on") == 0);
  for (const std::string& svg : {chart(99), rows(8, 99), rows(-99, 12)}) {
    CHECK(count_of(svg, "goes on") == 1);
    const Picture p = read_picture(svg);
    for (const Drawn& line : p.lines) CHECK((line.top >= 0 && line.left >= 0 && line.right <= p.wide));
  }
  CHECK(count_of(rows(-99, 99), "<path") == count_of(rows(8, 99), "<path") + 1);
}

TEST_CASE("svg: series are told apart by their marks too") {
  std::set<std::string> marks;
  for (const char* colour : kColours) {
    const std::string svg = chart_picture("t", "s", {{"p", "x", "y", {{"s", colour, Style::kLine, {{1, 1}}}}}}, 1);
    const size_t at = svg.find("<path d=");
    REQUIRE(at != std::string::npos);
    marks.insert(svg.substr(at, svg.find(" transform", at) - at));
  }
  CHECK(marks.size() == std::size(kColours));
}
