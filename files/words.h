// files/words.h: words that people type: which known one was meant, and how an unknown one is refused.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace nanospec {

// Fewest edits (insert, drop or change a character, swap two neighbours) that turn one word into the other.
int edit_distance(const std::string& a, const std::string& b);

// Edits between two words that people take for one another, capitals and the dashes of flags apart: at most a third of
// the longer one's letters; one that begins with the other is nearer than any edit. Else -1.
int nearness(const std::string& word, const std::string& known);

// The nearest of `known` to a word that is not among them, the first of several, as `forms` writes it (as `known` does,
// where there are none); "" where none is near.
std::string closest_word(const std::string& word, const std::vector<std::string>& known,
                         const std::vector<std::string>& forms = {});

// A word as an error line shows it: shortened, and with no byte that could break the line or upset a terminal.
std::string quoted(const std::string& word);

inline std::string joined(const std::vector<std::string>& words, const std::string& between = ", ") {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

// "a,b" at ',' is "a" and "b".
std::vector<std::string> split_at(const std::string& text, char between);

// Throws invalid_argument: "unknown KIND 'WORD': WHERE: did you mean NEAREST? ADVICE"; nearest "": it asks nothing.
[[noreturn]] inline void refuse_word(const std::string& kind, const std::string& word, const std::string& where,
                                     const std::string& nearest, const std::string& advice) {
  throw std::invalid_argument("unknown " + kind + " " + quoted(word) + ": " + where + ": " +
                              (nearest.empty() ? "" : "did you mean " + nearest + "? ") + advice);
}
[[noreturn]] inline void refuse_word(const std::string& kind, const std::string& word, const std::string& where,
                                     const std::string& nearest, const std::vector<std::string>& known) {
  refuse_word(kind, word, where, nearest, "known are " + joined(known));
}

// Is the text an optional minus sign and digits?
inline bool is_whole(const std::string& text) {
  const size_t start = !text.empty() && text[0] == '-';
  return text.size() > start && text.find_first_not_of("0123456789", start) == std::string::npos;
}

// Reads a whole number from 1 to 999,999,999; 0 for anything else.
int parse_count(const std::string& text);

}  // namespace nanospec
