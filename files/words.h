// files/words.h: words that people type: which known one was meant, and how an unknown one is refused. In between,
// texts with values in them.
#pragma once

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace nanospec {

// Fewest edits (insert, drop or change a character, swap two neighbours) that turn one word into the other.
inline int edit_distance(const std::string& a, const std::string& b) {
  const int m = int(a.size()), n = int(b.size());
  std::vector<std::vector<int>> edits(m + 1, std::vector<int>(n + 1));  // [i][j]: of the first i and j characters
  for (int i = 0; i <= m; i++)
    for (int j = 0; j <= n; j++) {
      edits[i][j] = i + j;
      if (i == 0 || j == 0) continue;
      edits[i][j] = std::min({edits[i - 1][j - 1] + (a[i - 1] != b[j - 1]), edits[i - 1][j] + 1, edits[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        edits[i][j] = std::min(edits[i][j], edits[i - 2][j - 2] + 1);
    }
  return edits[m][n];
}

// Edits between two words that people take for one another, capitals and the dashes of flags apart: at most a third of
// the longer one's letters; one that begins with the other is nearer than any edit. Else kFar.
constexpr int kFar = std::numeric_limits<int>::max();
inline int nearness(const std::string& word, const std::string& known) {
  const auto letters = [](const std::string& text) {
    std::string lower = text.substr(std::min(text.find_first_not_of('-'), text.size()), 64);
    for (char& c : lower) c = char(std::tolower((unsigned char)c));
    return lower;
  };
  const std::string a = letters(word), b = letters(known);
  const size_t shorter = std::min(a.size(), b.size()), longer = std::max(a.size(), b.size());
  if (shorter >= 3 && a.compare(0, shorter, b, 0, shorter) == 0) return 0;
  const int edits = edit_distance(a, b);
  return shorter > 0 && size_t(edits) * 3 <= longer ? edits : kFar;
}

// The nearest of `known` to a word that is not among them, the first of several, as `forms` writes it (as `known` does,
// where there are none); "" where none is near.
inline std::string closest_word(const std::string& word, const std::vector<std::string>& known,
                                const std::vector<std::string>& forms = {}) {
  const auto nearer = [&](const std::string& a, const std::string& b) { return nearness(word, a) < nearness(word, b); };
  const auto nearest = std::min_element(known.begin(), known.end(), nearer);
  if (nearest == known.end() || nearness(word, *nearest) == kFar) return "";
  return forms.empty() ? *nearest : forms[size_t(nearest - known.begin())];
}

// A word as an error line shows it: shortened, and with no byte that could break the line or upset a terminal.
inline std::string quoted(const std::string& word) {
  std::string shown = "'";
  for (const char c : word.substr(0, 60)) {
    char text[5] = {c};
    if ((unsigned char)c < 0x20 || c == 0x7f) snprintf(text, sizeof text, "\\x%02x", c);
    shown += text;
  }
  return shown + (word.size() > 60 ? "...'" : "'");
}

// A value as a stream writes it.
template <class T>
std::string as_text(const T& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}
// A number with so many places: "1.50".
inline std::string decimals(double x, int places) {
  char text[352];
  snprintf(text, sizeof text, "%.*f", places, x);
  return text;
}
// A text with values: each {} in turn becomes the next of them.
template <class... Values>
std::string filled(std::string text, const Values&... values) {
  size_t at = 0;
  for (const std::string& value : std::initializer_list<std::string>{as_text(values)...}) {
    at = text.find("{}", at);
    text.replace(at, 2, value);
    at += value.size();
  }
  return text;
}

// A text with `to` for each `from`.
inline std::string replaced(const std::string& text, const std::string& from, const std::string& to) {
  std::string all;
  size_t done = 0;
  for (size_t at; (at = text.find(from, done)) != std::string::npos; done = at + from.size())
    all.append(text, done, at - done).append(to);
  return all.append(text, done);
}

// Whether a number is neither too large nor too small for a float.
inline bool fits_float(double x) {
  return std::abs(x) <= double(std::numeric_limits<float>::max()) && (x == 0 || float(x) != 0);
}
inline bool is_above_0(double x) { return x > 0 && x < 1e9 && fits_float(x); }  // the settings of models are below 1e9

// Throws invalid_argument, for a command line that is wrong: the line "what is wrong: where: what to do", filled.
template <class... Values>
[[noreturn]] void refuse_usage(const std::string& line, const Values&... values) {
  throw std::invalid_argument(filled(line, values...));
}

// The items of a list, each as text_of(item) has it.
template <class List, class Text = std::string (*)(const typename List::value_type&)>
std::string joined(const List& items, const std::string& between = ", ", Text text_of = as_text) {
  std::string text;
  for (const auto& item : items) text += (text.empty() ? "" : between) + text_of(item);
  return text;
}

// "a,b" at ',' is "a" and "b".
inline std::vector<std::string> split_at(const std::string& text, char between) {
  std::vector<std::string> parts;
  std::istringstream list(text);
  for (std::string part; std::getline(list, part, between);) parts.push_back(part);
  return parts;
}

// Throws invalid_argument: "unknown KIND 'WORD': WHERE: did you mean NEAREST? ADVICE"; nearest "": it asks nothing.
[[noreturn]] inline void refuse_word(const std::string& kind, const std::string& word, const std::string& where,
                                     const std::string& nearest, const std::string& advice) {
  refuse_usage("unknown {} {}: {}: {}{}", kind, quoted(word), where,
               nearest.empty() ? "" : "did you mean " + nearest + "? ", advice);
}
// Throws so unless the word is known.
inline void check_word(const std::string& kind, const std::string& word, const std::string& where,
                       const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), word) == known.end())
    refuse_word(kind, word, where, closest_word(word, known), "known: " + joined(known));
}

// One column of a table of words.
template <class Row, size_t N>
std::vector<std::string> column(const Row (&table)[N], const char* Row::*its) {
  std::vector<std::string> words;
  for (const Row& row : table) words.push_back(row.*its);
  return words;
}
// The row of a table that has this value there; null where none has.
template <class Row, size_t N, class Its, class Value>
const Row* row_of(const Row (&table)[N], Its Row::*its, const Value& value) {
  const Row* const row = std::find_if(table, table + N, [&](const Row& one) { return value == one.*its; });
  return row == table + N ? nullptr : row;
}
// The place of a word among the known ones; of one that is not, throws as refuse_word() does. text: all that was typed;
// forms: how the known ones are written, and perhaps others.
inline size_t place_of(const std::string& kind, const std::string& word, const std::string& text,
                       const std::string& where, const std::vector<std::string>& known,
                       const std::vector<std::string>& forms) {
  const size_t place = size_t(std::find(known.begin(), known.end(), word) - known.begin());
  if (place == known.size())
    refuse_word(kind, text, where, closest_word(word, known, forms), "known are " + joined(forms));
  return place;
}

// Is the text an optional minus sign and digits?
inline bool is_whole(const std::string& text) {
  const size_t start = !text.empty() && text[0] == '-';
  return text.size() > start && text.find_first_not_of("0123456789", start) == std::string::npos;
}

// Reads a whole number from 1 to 999,999,999; 0 for anything else.
inline int parse_count(const std::string& text) {
  return is_whole(text) && text[0] != '-' && text.size() <= 9 ? std::stoi(text) : 0;
}

}  // namespace nanospec
