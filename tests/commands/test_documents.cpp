// tests/commands/test_documents.cpp: the documents held against the folder that they describe: the README is short,
// every relative link leads somewhere, and every file that is named is there. That their commands run is seen by
// `make documents` (tests/documents/run.sh); here that script is tried.
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

#include "tests/folder.h"

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

// What run.sh says at its end of a made-up page: "1 passed, 0 failed, 0 skipped".
static std::string tried(const std::string& page) {
  const Folder folder;
  std::ofstream(folder.file("page.md")) << page;
  const std::string log = folder.file("log");
  const int status = std::system(("sh tests/documents/run.sh --here " + folder.file("page.md") + " >" + log).c_str());
  std::ifstream said(log);
  std::string line, last;
  while (std::getline(said, line)) last = line;
  CHECK((status == 0) == (last.find(" 0 failed") != std::string::npos));
  return last;
}

TEST_CASE("documents: a command that is not what its page says is found out") {
  if (documents().empty()) return;
  const std::string passed = "1 passed, 0 failed, 0 skipped", failed = "0 passed, 1 failed, 0 skipped";
  const auto commands = [](const std::string& lines) { return tried("```sh\n" + lines + "\n```\n"); };
  CHECK(tried("```text\nfalse\n```\n\n`tree.h` and `build/nanospec bench`\n") == "0 passed, 0 failed, 0 skipped");
  CHECK(tried("```\ntrue\n```\n") == failed);
  CHECK(tried("```ruby\ntrue\n```\n") == failed);
  CHECK(commands("true   # what it does") == passed);
  CHECK(commands("test a \\\n  = a") == passed);
  CHECK(commands("false") == failed);
  CHECK(commands("exit 2   # exit status 2") == passed);
  CHECK(commands("true   # exit status 2") == failed);
  CHECK(commands("false   # needs a network: what for") == "0 passed, 0 failed, 1 skipped");
  CHECK(commands("# needs a terminal\nfalse\nexit 3\n\ntrue") == "1 passed, 0 failed, 2 skipped");
  CHECK(commands("true   # needs luck") == failed);
  CHECK(commands("sh tests/gone.sh   # needs a network") == failed);
  CHECK(commands("sleep 60   # takes a minute") == passed);  // it is only begun
  CHECK(commands("false   # takes a minute") == failed);
  CHECK(tried("Type `sh -c true`.\n") == passed);
  CHECK(tried("Type `sh -c false`.\n") == failed);
  CHECK(tried("Type `nanospec help drafters`.\n") == failed);  // it is not on the path
}

TEST_CASE("documents: a transcript that is not what its command prints is found out") {
  if (documents().empty()) return;
  const auto transcript = [](const std::string& output, const std::string& block) {
    return tried("<!-- transcript: printf '" + output + "'; keeps: \"a\" 1; \"b\" 4 -->\n\n```text\n$ printf '" +
                 output + "'  # commit 1234567, 2026-11-20\n" + block + "\n```\n");
  };
  const std::string passed = "1 passed, 0 failed, 0 skipped", failed = "0 passed, 1 failed, 0 skipped";
  CHECK(transcript("a\\nx\\nb\\n", "a\n...\nb") == passed);
  CHECK(transcript("a\\nx\\nb\\n", "a\nb") == failed);
  CHECK(transcript("a\\nx\\nb\\n", "a\n...\nc") == failed);
  CHECK(transcript("a\\nx\\n", "a") == failed);  // nothing holds b
  CHECK(transcript("a: 3.5 ms, 7 tok/s, 2 rows\\nb\\n", "a: 12.25 ms, 1,000 tok/s, 2 rows\nb") == passed);
  CHECK(transcript("a in 31.6 s; x\\nb\\n", "a in 6 min 46 s; x\nb") == passed);
  CHECK(transcript("a: 3.5 ms, 7 tok/s, 2 rows\\nb\\n", "a: 3.5 ms, 7 tok/s, 3 rows\nb") == failed);
  const std::string head = "b       tok/s  acceptance\n------  -----  ----------\n";
  const auto table = [&](const std::string& rows) {
    return std::regex_replace("a\n" + head + rows, std::regex("\n"), "\\n");
  };
  CHECK(tried("```text\n$ true\na\n```\n") == failed);  // no comment makes it
  CHECK(tried("<!-- transcript: true -->\n") == failed);
  CHECK(transcript(table("n          17        2.30\n"), "a\n" + head + "n           9        2.30") == passed);
  CHECK(transcript(table("n          17        2.30\n"), "a\n" + head + "n          17        2.31") == failed);
  CHECK(transcript(table("n auto     17        2.30\n"), "a\n" + head + "n auto     17        2.31") == passed);
}
