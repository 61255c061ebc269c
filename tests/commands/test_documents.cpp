// tests/commands/test_documents.cpp: the documents held against the folder that they describe: the README is short,
// every relative link leads somewhere, and every file that is named is there.
//
// The checks take texts and say what is wrong, so that a made-up page with each fault in it tries them too.
#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int kReadmeLines = 220;

using Pages = std::map<std::string, std::string>;  // what each page holds, by its path from the project's root
using Exists = std::function<bool(const std::string& path)>;

std::vector<std::string> lines_of(const std::string& page) {
  std::vector<std::string> lines;
  std::istringstream in(page);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// A page without its blocks of code, where nothing is a link or a heading.
std::string prose_of(const std::string& page) {
  std::string prose;
  bool code = false;
  for (const std::string& line : lines_of(page)) {
    if (line.rfind("```", 0) == 0) code = !code;
    else if (!code) prose += line + "\n";
  }
  return prose;
}

// The names by which links reach a page's headings, as GitHub makes them: lower case, spaces become '-', of the other
// characters '-' and '_' stay.
std::set<std::string> anchors_of(const std::string& page) {
  std::set<std::string> anchors;
  for (const std::string& line : lines_of(prose_of(page))) {
    const size_t start = line.find_first_not_of('#');
    if (start == 0 || start == std::string::npos || line[start] != ' ') continue;
    std::string anchor;
    for (const unsigned char c : line.substr(start + 1))
      if (std::isalnum(c) || c == '-' || c == '_' || c == ' ') anchor += c == ' ' ? '-' : char(std::tolower(c));
    anchors.insert(anchor);
  }
  return anchors;
}

std::vector<std::string> captures(const std::string& text, const char* pattern) {
  const std::regex wanted(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), wanted), end; at != end; ++at) found.push_back((*at)[1]);
  return found;
}

// One message for each link of the pages, and each source file named in `backquotes`, that leads nowhere.
std::vector<std::string> broken(const Pages& pages, const Exists& exists) {
  std::vector<std::string> messages;
  for (const auto& [path, page] : pages) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    for (const std::string& link : captures(prose_of(page), R"(\]\(([^)]+)\))")) {
      if (link.find("://") != std::string::npos) continue;
      const size_t hash = std::min(link.find('#'), link.size());
      const std::string to = hash == 0 ? path : (folder / link.substr(0, hash)).lexically_normal().string();
      if (!exists(to)) messages.push_back(path + ": no file: " + link);
      else if (hash < link.size() && (!pages.count(to) || !anchors_of(pages.at(to)).count(link.substr(hash + 1))))
        messages.push_back(path + ": no heading: " + link);
    }
    for (const std::string& file : captures(page, "`([a-z_./]+\\.(h|cuh|cu|cpp|sh|py|html))`"))
      if (!exists(file)) messages.push_back(path + ": no file: " + file);
  }
  return messages;
}

// The documents of the folder that the tests run in; none where that is not the project's root.
Pages documents() {
  Pages pages;
  const auto add = [&](const std::filesystem::path& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    pages[path.lexically_normal().string()] = text.str();
  };
  if (!std::filesystem::exists("tree.h") || !std::filesystem::exists("docs")) return pages;
  add("README.md"), add("CONTRIBUTING.md"), add("CHANGELOG.md");
  for (const auto& entry : std::filesystem::directory_iterator("docs"))
    if (entry.path().extension() == ".md") add(entry.path());
  return pages;
}

}  // namespace

TEST_CASE("documents: the README is short, and all links and named files are there") {
  const Pages pages = documents();
  if (pages.empty()) {
    MESSAGE("not in the source folder: nothing to read");
    return;
  }
  CHECK(lines_of(pages.at("README.md")).size() <= size_t(kReadmeLines));
  const auto exists = [](const std::string& path) {
    return path.rfind("build/", 0) == 0 || std::filesystem::exists(path);  // a fresh clone has built nothing
  };
  for (const std::string& message : broken(pages, exists)) FAIL_CHECK(message);
}

TEST_CASE("documents: a page with faults is found out") {
  const auto exists = [](const std::string& path) { return path == "docs/a.md" || path == "b.h"; };
  const auto faults = [&](const std::string& page) { return broken({{"docs/a.md", page}}, exists).size(); };
  CHECK(faults("# One `x`: two\n[here](#one-x-two) [up](../b.h) [web](https://x.y/z) `b.h` `commands/NAME.cpp`\n") ==
        0);
  CHECK(faults("```\n[x](none.md)\n# No heading\n```\n") == 0);
  CHECK(faults("[x](none.md)\n") == 1);
  CHECK(faults("[x](b.h)\n") == 1);  // it lies one folder up
  CHECK(faults("# One\n[x](#two) [y](a.md#one)\n") == 1);
  CHECK(faults("```\n# One\n```\n[x](#one)\n") == 1);
  CHECK(faults("`gone.h`\n") == 1);
}
