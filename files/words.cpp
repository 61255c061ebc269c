// files/words.cpp: what words.h declares, in the same order.
#include "files/words.h"

namespace nanospec {

int edit_distance(const std::string& a, const std::string& b) {
  const int m = int(a.size()), n = int(b.size());
  std::vector<std::vector<int>> edits(m + 1, std::vector<int>(n + 1));  // [i][j]: of the first i and j characters
  for (int i = 0; i <= m; i++)
    for (int j = 0; j <= n; j++) {
      if (i == 0 || j == 0) {
        edits[i][j] = i + j;
        continue;
      }
      edits[i][j] = std::min({edits[i - 1][j - 1] + (a[i - 1] != b[j - 1]), edits[i - 1][j] + 1, edits[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        edits[i][j] = std::min(edits[i][j], edits[i - 2][j - 2] + 1);
    }
  return edits[m][n];
}

int nearness(const std::string& word, const std::string& known) {
  const auto letters = [](const std::string& text) {
    std::string lower = text.substr(std::min(text.find_first_not_of('-'), text.size()), 64);
    for (char& c : lower) c = char(std::tolower((unsigned char)c));
    return lower;
  };
  const std::string a = letters(word), b = letters(known);
  const size_t shorter = std::min(a.size(), b.size()), longer = std::max(a.size(), b.size());
  if (shorter >= 3 && a.compare(0, shorter, b, 0, shorter) == 0) return 0;
  const int edits = edit_distance(a, b);
  return shorter > 0 && size_t(edits) * 3 <= longer ? edits : -1;
}

std::string closest_word(const std::string& word, const std::vector<std::string>& known,
                         const std::vector<std::string>& forms) {
  std::string best;
  int fewest = std::numeric_limits<int>::max();
  for (size_t i = 0; i < known.size(); i++) {
    const int edits = nearness(word, known[i]);
    if (edits >= 0 && edits < fewest) {
      fewest = edits;
      best = forms.empty() ? known[i] : forms[i];
    }
  }
  return best;
}

std::string quoted(const std::string& word) {
  std::string shown = "'";
  for (const char c : word.substr(0, 60)) {
    char escaped[5];
    if ((unsigned char)c < 0x20 || c == 0x7f) {
      snprintf(escaped, sizeof escaped, "\\x%02x", c);
      shown += escaped;
    } else shown += c;
  }
  return shown + (word.size() > 60 ? "...'" : "'");
}

std::vector<std::string> split_at(const std::string& text, char between) {
  std::vector<std::string> parts;
  std::istringstream list(text);
  for (std::string part; std::getline(list, part, between);) parts.push_back(part);
  return parts;
}

int parse_count(const std::string& text) {
  if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != std::string::npos) return 0;
  return std::stoi(text);
}

}  // namespace nanospec
