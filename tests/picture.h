// tests/picture.h: reads a picture back: where its words, bars and lines lie, and what a reader would complain of.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "commands/svg.h"

namespace {

struct Drawn {
  std::string what;  // the words, or the colour
  double left, top, right, bottom;
  double size = 0;  // of letters
};

struct Picture {
  double wide = 0, high = 0;
  std::vector<Drawn> words, bars, lines;

  // The first of these words; a place nowhere where there is none.
  Drawn word(const std::string& text) const {
    for (const Drawn& piece : words)
      if (piece.what == text) return piece;
    return {"", -1, -1, -1, -1};
  }
};

inline std::string attribute_of(const std::string& tag, const std::string& name) {
  const size_t at = tag.find(" " + name + "=\"");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 3;
  return tag.substr(begin, tag.find('"', begin) - begin);
}

inline std::string unescaped(std::string text) {
  const std::pair<const char*, const char*> names[] = {{"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&amp;", "&"}};
  for (const auto& [name, letter] : names)
    for (size_t at; (at = text.find(name)) != std::string::npos;) text.replace(at, std::string(name).size(), letter);
  return text;
}

inline Picture read_picture(const std::string& svg) {
  Picture picture;
  std::vector<std::pair<double, double>> moved = {{0, 0}};
  for (size_t i = svg.find('<'); i != std::string::npos; i = svg.find('<', i + 1)) {
    const std::string tag = svg.substr(i, svg.find('>', i) - i), name = tag.substr(1, tag.find_first_of(" >", 1) - 1);
    const auto number = [&](const char* of) { return std::strtod(attribute_of(tag, of).c_str(), nullptr); };
    const auto [right, down] = moved.back();
    const double x = number("x") + right, y = number("y") + down;
    if (name == "svg") sscanf(attribute_of(tag, "viewBox").c_str(), "0 0 %lf %lf", &picture.wide, &picture.high);
    else if (name == "/g") moved.pop_back();
    else if (name == "g") {
      double more_right = 0, more_down = 0;
      sscanf(attribute_of(tag, "transform").c_str(), "translate(%lf %lf)", &more_right, &more_down);
      moved.push_back({right + more_right, down + more_down});
    } else if (name == "rect") {
      picture.bars.push_back({attribute_of(tag, "fill"), x, y, x + number("width"), y + number("height")});
    } else if (name == "line") {
      picture.lines.push_back({attribute_of(tag, "stroke"), number("x1") + right, number("y1") + down,
                               number("x2") + right, number("y2") + down});
    } else if (name == "text") {
      const size_t begin = i + tag.size() + 1;
      const std::string text = unescaped(svg.substr(begin, svg.find('<', begin) - begin)),
                        anchor = attribute_of(tag, "text-anchor");
      const double size = number("font-size"),
                   wide = nanospec::svg_text_width(text, size, attribute_of(tag, "font-weight") == "bold"),
                   left = x - wide * (anchor == "end"      ? 1
                                      : anchor == "middle" ? 0.5
                                                           : 0);
      picture.words.push_back({text, left, y - 0.76 * size, left + wide, y + 0.2 * size, size});
    }
  }
  return picture;
}

// "" where there is nothing to complain of.
inline std::string picture_problem(const std::string& svg) {
  for (const char* nothing : {"nan\"", "inf\"", ">nan", ">inf", "nan,", "inf,"})
    if (svg.find(nothing) != std::string::npos) return std::string("holds ") + nothing;
  const Picture p = read_picture(svg);
  if (p.bars.empty() || p.bars[0].what != "#ffffff" || p.bars[0].right < p.wide || p.bars[0].bottom < p.high)
    return "no white page";
  for (size_t i = 0; i < p.words.size(); i++) {
    const Drawn& a = p.words[i];
    if (a.left < 0 || a.top < 0 || a.right > p.wide || a.bottom > p.high) return "cut: " + a.what;
    if (a.size * 390 / p.wide < 8) return "too small at 390 pixels: " + a.what;
    for (size_t j = 0; j < i; j++) {
      const Drawn& b = p.words[j];
      if (std::min(a.right, b.right) > std::max(a.left, b.left) + 1 &&
          std::min(a.bottom, b.bottom) > std::max(a.top, b.top) + 1)
        return "one over the other: " + b.what + ", " + a.what;
    }
  }
  return "";
}

}  // namespace
