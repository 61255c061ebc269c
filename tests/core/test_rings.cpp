// tests/core/test_rings.cpp: the project's own rules, checked in its sources: includes point inward; the core stays
// small, commented, and free of every word of a ring; one word means one thing; a statement does one thing.
//
// In order: the table of rings; sources, and what is code in them; the includes; the core's size; the core's words; the
// words of all sources; comma operators; types of one name. Every check is a function from sources to messages, so that
// the tests also try it on sources that are made up, with each fault in them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Words = std::vector<std::string>;
using Sources = std::map<std::string, std::string>;  // what each file holds, by its path from the project's root

// ---------------------------------------------------------------------------------------------------------------
// The table: who may include whom

// The core's two readings: what decodes, in the order in which it is read, and what training adds.
const Words kDecoding = {"tree.h", "sample.h", "draft.h",   "decode.h", "kernels.cuh",
                         "rows.h", "model.h",  "weights.h", "target.h"};
const Words kTraining = {"gradients.cuh", "train.h"};
const Words kHeaders = [] {
  Words all = kDecoding;
  all.insert(all.end(), kTraining.begin(), kTraining.end());
  return all;
}();
const Words kSpeculation = {"tree.h", "sample.h", "draft.h", "decode.h"};  // read before any model
const Words kPrograms = {"train_gpt.cu", "nanospec.cu"};                   // doors: they alone include anything
const Words kFloor = {"machine", "cuda"};  // these and the headers include one another, and no ring
// Lowest first. A ring includes the headers, the floor, itself and the rings before it. drafters/ so knows no file
// format, and cuda/ no command line. training/ stands on commands/: a trainer is something that a user runs.
const Words kRings = {"drafters", "files",    "growth",   "rules", "watch", "forest",
                      "archive",  "commands", "training", "study", "course"};
// Included, and made by the Makefile from another file.
const std::map<std::string, std::string> kMade = {{"page.inc", "commands/page.html"}};

constexpr int kCoreCode = 2550, kFileLines = 650, kFunctionLines = 70, kLoopLines = 60;
constexpr double kComments = 0.15;

// What no word of the headers begins with: features of rings. "pace" is a whole word, for there are spaces.
const Words kForeign = {"medusa", "parallel drafter", "suffix",    "lookup", "recycl", "eagle", "wants_", "trust",
                        "pace",   "feature",          "experience"};

bool among(const Words& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string joined(const Words& words, const std::string& between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

std::string the_order() {
  return "lowest first: the headers with " + joined(kFloor, "/ and ") + "/ < " + joined(kRings, "/ < ") +
         "/ < the two programs";
}

// How far out a file lies: 0 the headers and the floor, then ring after ring, then the programs; -1: nowhere.
int place(const std::string& path) {
  const size_t slash = path.find('/');
  if (slash == std::string::npos)
    return among(kHeaders, path) ? 0 : among(kPrograms, path) ? int(kRings.size()) + 1 : -1;
  const std::string folder = path.substr(0, slash);
  if (among(kFloor, folder)) return 0;
  const auto ring = std::find(kRings.begin(), kRings.end(), folder);
  return ring == kRings.end() ? -1 : int(ring - kRings.begin()) + 1;
}

// ---------------------------------------------------------------------------------------------------------------
// Sources

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool is_source(const std::filesystem::path& path) {
  return among({".h", ".cuh", ".cu", ".cpp"}, path.extension().string());
}

// All sources under the project's root, where the tests run, but for tests and what git does not keep.
Sources read_sources() {
  namespace fs = std::filesystem;
  Sources sources;
  for (const fs::directory_entry& entry : fs::directory_iterator(".")) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && is_source(name)) sources[name] = read(entry.path());
    if (!entry.is_directory() || name[0] == '.' || name.compare(0, 5, "build") == 0) continue;
    if (among({"tests", "runs", "data", "shared"}, name)) continue;
    for (const fs::directory_entry& inner : fs::recursive_directory_iterator(entry.path()))
      if (inner.is_regular_file() && is_source(inner.path()))
        sources[inner.path().lexically_normal().generic_string()] = read(inner.path());
  }
  return sources;
}

std::string lowered(std::string text) {
  for (char& c : text) c = char(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

Words lines_of(const std::string& text) {
  Words lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// The text with blanks for its comments and x for what stands between quotes: as long, line by line.
std::string code_of(std::string text) {
  const auto fill = [&](size_t begin, size_t end, char with) {
    for (size_t i = begin; i < std::min(end, text.size()); i++)
      if (text[i] != '\n') text[i] = with;
    return std::min(end, text.size());
  };
  const auto past = [&](size_t found, size_t n) { return found == std::string::npos ? text.size() : found + n; };
  for (size_t i = 0; i < text.size();) {
    const bool after_word = i > 0 && (std::isalnum(static_cast<unsigned char>(text[i - 1])) || text[i - 1] == '_');
    if (text.compare(i, 2, "//") == 0) i = fill(i, past(text.find('\n', i), 0), ' ');
    else if (text.compare(i, 2, "/*") == 0) i = fill(i, past(text.find("*/", i + 2), 2), ' ');
    else if (text.compare(i, 2, "R\"") == 0 && !after_word) {
      const std::string end = ")" + text.substr(i + 2, text.find('(', i) - i - 2) + "\"";
      i = fill(i, past(text.find(end, i), end.size()), 'x');
    } else if (text[i] == '"' || (text[i] == '\'' && !after_word)) {  // 1'000 is a number
      size_t end = i + 1;
      while (end < text.size() && text[end] != text[i]) end += text[end] == '\\' ? 2 : 1;
      i = fill(i, end + 1, 'x');
    } else i++;
  }
  return text;
}

// The code with blanks for the preprocessor's lines, and for those that they go on in.
std::string without_preprocessor(std::string code) {
  for (size_t i = 0; i < code.size();) {
    const size_t mark = code.find_first_not_of(" \t", i);
    size_t end = std::min(code.find('\n', i), code.size());
    if (mark != std::string::npos && code[mark] == '#') {
      while (end < code.size() && code[end - 1] == '\\') end = std::min(code.find('\n', end + 1), code.size());
      for (size_t k = i; k < end; k++)
        if (code[k] != '\n') code[k] = ' ';
    }
    i = end + 1;
  }
  return code;
}

// ---------------------------------------------------------------------------------------------------------------
// Includes

// exists: whether there is such a file besides the sources.
Words wrong_includes(const Sources& sources, const std::function<bool(const std::string&)>& exists) {
  static const std::regex include("^\\s*#\\s*include\\s*\"([^\"]*)\".*");
  Words wrong;
  for (const auto& [file, text] : sources) {
    if (place(file) < 0) {
      wrong.push_back(file.find('/') == std::string::npos
                          ? file + ": the top level has the sources of the core alone"
                          : file + ": its folder is no ring of the table in tests/core/test_rings.cpp");
      continue;
    }
    for (const std::string& line : lines_of(text)) {
      std::smatch found;
      if (!std::regex_match(line, found, include)) continue;
      const std::string other = found[1];
      const auto made = kMade.find(other);
      if (made != kMade.end() && exists(made->second)) continue;
      std::string why;
      if (!sources.count(other) && !exists(other)) why = "there is no such file under the project's root";
      else if (place(other) < 0) why = "that is neither core nor floor nor ring";
      else if (place(other) > place(file)) why = "the arrow points inward; " + the_order();
      if (!why.empty()) wrong.push_back(file + " includes " + other + ": " + why);
    }
  }
  for (const Words& files : {kHeaders, kPrograms})
    for (const std::string& file : files)
      if (!sources.count(file)) wrong.push_back(file + ": the core lacks it");
  return wrong;
}

// All files that `file` includes, by way of others too.
Words reached_from(const Sources& sources, const std::string& file) {
  static const std::regex include("#include \"([^\"]*)\"");
  Words reached = {file};
  for (size_t i = 0; i < reached.size(); i++) {
    const auto source = sources.find(reached[i]);
    if (source == sources.end()) continue;
    const std::string& text = source->second;
    for (std::sregex_iterator it(text.begin(), text.end(), include), end; it != end; ++it)
      if (!among(reached, (*it)[1])) reached.push_back((*it)[1]);
  }
  return reached;
}

// A reading is whole without the other: who decodes needs nothing of training, and the loop no model.
Words wrong_readings(const Sources& sources) {
  Words wrong;
  const auto apart = [&](const Words& files, const Words& others) {
    for (const std::string& file : files)
      for (const std::string& reached : reached_from(sources, file))
        if (among(others, reached)) wrong.push_back(file + " reaches " + reached);
  };
  apart(kDecoding, kTraining);
  apart(kSpeculation, {"kernels.cuh", "rows.h", "model.h", "weights.h", "target.h"});
  return wrong;
}

// ---------------------------------------------------------------------------------------------------------------
// Functions

struct Function {
  std::string name;
  int first, last;  // lines
  int lines() const { return last - first + 1; }
};

// What stands before a brace, without `template <...>`.
std::string without_template(std::string head) {
  while (head.compare(0, 8, "template") == 0) {
    size_t at = head.find('<');
    for (int open = 0; at < head.size(); at++) {
      open += head[at] == '<' ? 1 : head[at] == '>' ? -1 : 0;
      if (open == 0) break;
    }
    at = head.find_first_not_of(" \n", std::min(at + 1, head.size()));
    head = at == std::string::npos ? "" : head.substr(at);
  }
  return head;
}

// The functions of namespaces and classes (lambdas and classes within a function are part of it), each from its head's
// first line to its closing brace. Throws where braces do not match.
std::vector<Function> functions_of(const std::string& text) {
  static const std::regex type("^(typedef\\s+)?(struct|class|union|enum)\\b[^(]*(alignas\\([^)]*\\)[^(]*)?$");
  static const std::regex access("^(public|private|protected)\\s*$");
  static const std::regex called("([~\\w]+)\\s*\\(");
  const std::string code = without_preprocessor(code_of(text));
  std::vector<Function> functions;
  enum Kind { kScope, kFunction, kValue };
  std::vector<Kind> open;
  size_t head = std::string::npos;  // where what has begun at this level begins
  int line = 1, head_line = 0, parentheses = 0;
  for (size_t i = 0; i < code.size(); i++) {
    const char c = code[i];
    if (c == '\n') line++;
    if (std::isspace(static_cast<unsigned char>(c))) continue;
    if (!open.empty() && open.back() != kScope) {  // in a body: only braces count
      if (c == '{') open.push_back(kValue);
      if (c != '}') continue;
      const bool whole = open.back() == kFunction;
      open.pop_back();
      if (!whole) continue;
      const size_t next = code.find_first_not_of(" \n", i + 1);
      if (next != std::string::npos && (code[next] == ',' || code[next] == '{')) continue;  // of an initializer's list
      std::smatch name;
      const std::string declared = without_template(code.substr(head, i - head));
      std::regex_search(declared, name, called);
      functions.push_back({name[1], head_line, line});
      head = std::string::npos;
      continue;
    }
    if (c == '}') {
      if (open.empty()) throw std::runtime_error("line " + std::to_string(line) + ": a brace too many");
      open.pop_back(), head = std::string::npos;
      continue;
    }
    if (c == ';' && parentheses == 0) {
      head = std::string::npos;
      continue;
    }
    if (head == std::string::npos) head = i, head_line = line;
    if (c == '(' || c == ')') parentheses += c == '(' ? 1 : -1;
    const std::string before = code.substr(head, i - head);
    if (c == ':' && std::regex_match(before, access)) head = std::string::npos;
    if (c != '{') continue;
    const std::string declared = without_template(before);
    if (parentheses > 0) open.push_back(kValue);
    else if (declared.compare(0, 9, "namespace") == 0 || std::regex_search(declared, type))
      open.push_back(kScope), head = std::string::npos;
    else open.push_back(declared.find('(') == std::string::npos ? kValue : kFunction);
  }
  if (!open.empty()) throw std::runtime_error("its end: a brace too few");
  return functions;
}

// ---------------------------------------------------------------------------------------------------------------
// The core's measure and words

Words wrong_measures(const Sources& sources) {
  Words wrong;
  int code = 0, comments = 0, loops = 0;
  const auto too_many = [&](const std::string& what, int lines, int most) {
    if (lines > most)
      wrong.push_back(what + " has " + std::to_string(lines) + " lines: at most " + std::to_string(most));
  };
  for (const auto& [file, text] : sources) {
    if (!among(kHeaders, file) && !among(kPrograms, file)) continue;
    const Words all = lines_of(text), bare = lines_of(code_of(text));
    const auto blank = [](const std::string& line) { return line.find_first_not_of(" \t") == std::string::npos; };
    for (size_t i = 0; i < all.size() && among(kHeaders, file); i++)
      if (!blank(bare[i])) code++;
      else comments += !blank(all[i]);
    too_many(file, int(all.size()), kFileLines);
    try {
      for (const Function& f : functions_of(text)) {
        const bool loop = file == "decode.h" && f.name == "generate";
        loops += loop;
        const std::string name = file + ":" + std::to_string(f.first) + ": " + f.name + "()";
        too_many(name, f.lines(), loop ? kLoopLines : kFunctionLines);
        for (int i = f.first; i < f.last; i++)
          if (all[size_t(i)].compare(0, 3, "#if") == 0) wrong.push_back(name + " has an #if inside");
      }
    } catch (const std::runtime_error& e) { wrong.push_back(file + ": " + e.what()); }
  }
  if (loops == 0) wrong.push_back("decode.h has no generate()");
  if (code > kCoreCode)
    wrong.push_back("the core's headers have " + std::to_string(code) + " lines of code: at most " +
                    std::to_string(kCoreCode));
  if (comments < kComments * code)
    wrong.push_back("the core's headers have " + std::to_string(comments) + " lines of comment on " +
                    std::to_string(code) + " of code: at least " + std::to_string(int(kComments * 100)) +
                    " of a hundred");
  return wrong;
}

// The comment at a file's head may say in which file of a ring something lives.
Words foreign_words(const Sources& sources) {
  static const std::regex pointer("\\b(" + joined(kRings, "|") + ")/[\\w.]+");
  Words wrong;
  for (const auto& [file, text] : sources) {
    if (!among(kHeaders, file)) continue;
    int number = 0;
    bool in_head = true;
    for (const std::string& written : lines_of(text)) {
      number++;
      in_head = in_head && written.compare(0, 2, "//") == 0;
      const std::string line = in_head ? std::regex_replace(written, pointer, "") : written;
      const std::string small = lowered(line);
      const auto letter = [&](size_t at) { return at < small.size() && small[at] >= 'a' && small[at] <= 'z'; };
      for (const std::string& word : kForeign)
        for (size_t at = 0; (at = small.find(word, at)) != std::string::npos; at++) {
          const bool begins = at == 0 || !letter(at - 1) || (line[at] != small[at] && line[at - 1] == small[at - 1]);
          if (!begins || (word == "pace" && letter(at + word.size()))) continue;
          wrong.push_back(file + ":" + std::to_string(number) + ": \"" + word + "\" is a ring's word, not the core's");
        }
    }
  }
  return wrong;
}

// ---------------------------------------------------------------------------------------------------------------
// The words of all sources: each of these phrases has a better one

struct Phrase {
  const char *phrase, *better;  // phrase: a regular expression in small letters; its first four stand for themselves
  Words allowed = {};           // files and folders
};
const Words kStatistics = {"commands", "study"};  // what they compute by libm is for people's eyes
const std::vector<Phrase> kPhrases = {
    {"portable text", "portable version"},
    {"forward pass", "forward"},
    {"backward pass", "backward"},
    {"one pass", "one forward"},
    {"twin",
     "version (a twin is the tuned CPU version of an operation)",
     {"machine", "kernels.cuh", "cuda", "drafters"}},
    {"raises? an", "throws"},
    {"under way", "current, pending or in flight"},
    {"nobody's", "a sentence with a subject"},
    {"heed", "a word of the field"},
    {"std::(exp|log|log2|log1p|pow|sin|cos|tanh|erf)", "numbers.h's own: libm's bits are another machine's",
     kStatistics},
};

Words worse_phrases(const Sources& sources) {
  std::map<std::string, Words> lowered_lines;
  for (const auto& [file, text] : sources) lowered_lines[file] = lines_of(lowered(text));
  Words wrong;
  for (const Phrase& p : kPhrases) {
    const std::regex phrase("\\b" + std::string(p.phrase) + "s?\\b");
    const std::string begins(p.phrase, 4);  // looked for first, which takes a hundredth of the time
    for (const auto& [file, lines] : lowered_lines) {
      if (among(p.allowed, file) || among(p.allowed, file.substr(0, file.find('/')))) continue;
      for (size_t i = 0; i < lines.size(); i++)
        if (lines[i].find(begins) != std::string::npos && std::regex_search(lines[i], phrase))
          wrong.push_back(file + ":" + std::to_string(i + 1) + ": \"" + p.phrase + "\": write " + p.better);
    }
  }
  return wrong;
}

// ---------------------------------------------------------------------------------------------------------------
// Comma operators: a statement does one thing, except in the head of a `for`

// Where the bracket opens that closes at `at`.
size_t opening(const std::string& code, size_t at) {
  for (int depth = 0;; at--) {
    if (std::strchr(")]}", code[at])) depth++;
    if (std::strchr("([{", code[at])) depth--;
    if (depth == 0 || at == 0) return at;
  }
}

// The statement that ends at `end`, with empty brackets; "" within parentheses or brackets.
std::string statement_before(const std::string& code, size_t end) {
  static const std::regex block("(^|[;){}]|\\b(else|do|const|override|noexcept|try|mutable))\\s*$");
  std::string reversed;
  for (size_t i = end; i-- > 0 && code[i] != ';' && code[i] != '{';) {
    if (code[i] == '(' || code[i] == '[') return "";
    const bool closes = std::strchr(")]}", code[i]);
    const size_t open = closes ? opening(code, i) : i;
    const size_t before = open < 12 ? 0 : open - 12;
    if (code[i] == '}' && std::regex_search(code.substr(before, open - before), block)) break;
    reversed += code[i];
    if (closes) reversed += code[open];
    i = open;
  }
  return {reversed.rbegin(), reversed.rend()};
}

// The lines of a source on which a statement with a comma operator ends: it has a comma outside all brackets, and is no
// declaration.
std::vector<int> comma_operators(const std::string& text) {
  static const std::regex angles("<<<.*?>>>|<([^<>=(){};]|\\(\\)|\\{\\})*>");
  static const std::regex control(
      "^\\s*((if|for|while|switch)\\s*(constexpr\\s*)?\\(\\)\\s*|else\\b\\s*|do\\b\\s*|[A-Z]{4,}\\s+|"
      "(case\\b[^:?]*|default\\s*|public\\s*|private\\s*|protected\\s*):\\s+)+");
  static const std::regex declaration(
      "^\\s*((template|using|struct|class|enum|union|typedef|friend|extern|namespace|const|static|constexpr|inline|"
      "auto|"
      "volatile|thread_local|mutable)\\b|[\\w:.>-]+(\\[\\])*(\\(\\))?([\\s*&]*\\s|[*&]+)[*&]*\\w)");
  const std::string code = without_preprocessor(code_of(text));
  std::vector<int> lines;
  for (size_t end = code.find(';'); end != std::string::npos; end = code.find(';', end + 1)) {
    std::string statement = statement_before(code, end);
    for (char& c : statement) c = c == '\n' ? ' ' : c;
    statement.erase(0, std::min(statement.find_first_not_of(' '), statement.size()));
    for (std::string before; before != statement && statement.find(',') != std::string::npos;) {
      before = statement;
      statement = std::regex_replace(statement, angles, "");
    }
    if (statement.find(',') == std::string::npos) continue;
    statement = std::regex_replace(statement, control, "");
    const bool returns = statement.compare(0, 7, "return ") == 0;
    if (returns || !std::regex_search(statement, declaration))
      lines.push_back(1 + int(std::count(code.begin(), code.begin() + long(end), '\n')));
  }
  return lines;
}

// Types that two headers define under one name. The linker would take one of them for both. No program includes
// machine/single_floor.cuh: in the single file it stands in the floor's place.
Words defined_twice(const Sources& sources) {
  static const std::regex definition("(^|\n)(struct|class|enum class|enum) (\\w+)(?!\\w|::|<)[^;{]*\\{");
  std::map<std::string, std::string> file_of;
  Words messages;
  for (const auto& [file, text] : sources) {
    if (std::filesystem::path(file).extension() == ".cpp" || file == "machine/single_floor.cuh") continue;
    const std::string code = code_of(text);
    for (std::sregex_iterator at(code.begin(), code.end(), definition), end; at != end; ++at) {
      const std::string name = (*at)[3];
      if (!file_of.insert({name, file}).second && file_of[name] != file)
        messages.push_back(name + " is a type of " + file_of[name] + " and of " + file);
    }
  }
  return messages;
}

void show(const Words& messages) {
  for (const std::string& message : messages) FAIL_CHECK(message);
}

bool on_disk(const std::string& path) { return std::filesystem::is_regular_file(path); }

}  // namespace

TEST_CASE("rings: the arrow of the includes points inward, file by file") {
  const Sources sources = read_sources();
  for (const Words& folders : {kFloor, kRings})
    for (const std::string& folder : folders) {
      CAPTURE(folder);  // one that is empty is a line too many in the table
      const auto first = sources.lower_bound(folder + "/");
      CHECK((first != sources.end() && first->first.compare(0, folder.size() + 1, folder + "/") == 0));
    }
  show(wrong_includes(sources, on_disk));
  show(wrong_readings(sources));
}

TEST_CASE("rings: the core is small, its functions short, and its comments many") {
  show(wrong_measures(read_sources()));
}

TEST_CASE("rings: no word of the core names a ring's feature") { show(foreign_words(read_sources())); }

TEST_CASE("words: one word for one thing, in comments and code") { show(worse_phrases(read_sources())); }

TEST_CASE("words: a statement does one thing") {
  Words wrong;
  for (const auto& [file, text] : read_sources())
    for (int line : comma_operators(text)) wrong.push_back(file + ":" + std::to_string(line) + ": a comma operator");
  show(wrong);
}

TEST_CASE("rings: two types have two names") {
  show(defined_twice(read_sources()));
  CHECK(defined_twice({{"a.h", "struct A {\n};\nstruct B;\nstruct B<int> {\n};\n"},
                       {"b.h", "class A : C {};\nstruct B {};\n"}}) == Words{"A is a type of a.h and of b.h"});
}

TEST_CASE("words: a phrase that has a better one is found, and a comma operator") {
  CHECK(
      worse_phrases({{"model.h", "// The backward\n// is a forward too.\n"}, {"machine/a.h", "// A twin.\n"}}).empty());
  CHECK(worse_phrases({{"model.h", "int i;\n// Twins under way\n"}}) ==
        Words{"model.h:2: \"twin\": write version (a twin is the tuned CPU version of an operation)",
              "model.h:2: \"under way\": write current, pending or in flight"});
  const auto commas = [](const std::string& text) { return int(comma_operators(text).size()); };
  for (const char* fault :
       {"a = 1, b = 2;", "void f() { i++, j++; }", "if (x) a.b(), c->d[1](2, 3);", "else *p = 1, q = {1};",
        "int f() {\n  return a = b, b;\n}", "case kOne: x = 1, y = 2;", "for (;;) v[i] = 1, i++;",
        "g([&](int i) { a[i] = 1, b[i] = 2; });", "#define M 1,2\na = 1,\n  b = 2;"}) {
    CAPTURE(fault);
    CHECK(commas(fault) == 1);
  }
  for (const char* right :
       {"int a = 1, b = 2;", "const auto [a, b] = f(c, d);", "std::map<int, std::vector<int>> m;",
        "for (int i = 0, j = 1; i < j; i++, j--) f(i, j);", "float *a, *b;", "Array<T> x(1), y(2);", "a = {1, 2};",
        "enum { kOne, kTwo };", "A() : a_(1), b_{2} {}\nint c;", "k<<<1, 2>>>(3, 4);", "return {a, b};",
        "template <class T, class U>\nT f(U a, T b);", "std::string s = \"a, b\";"}) {
    CAPTURE(right);
    CHECK(commas(right) == 0);
  }
}

TEST_CASE("rings: an include that points outward is found, and one of nothing") {
  Sources house;
  for (const Words& files : {kHeaders, kPrograms})
    for (const std::string& file : files) house[file] = "";
  const auto made_up = [](const std::string& path) { return path == "commands/page.html" || path == "tests/a.h"; };
  house["cuda/a.cuh"] = "#include \"tree.h\"\n#include \"machine/a.h\"\n";
  house["machine/a.h"] = "#include \"decode.h\"\n#include <vector>\n";
  house["drafters/a.h"] = "#include \"draft.h\"\n";
  house["commands/a.cpp"] = "#include \"page.inc\"\n#include \"drafters/a.h\"\n#include \"commands/a.cpp\"\n";
  house["nanospec.cu"] = "#include \"commands/a.cpp\"\n";
  CHECK(wrong_includes(house, made_up).empty());

  const auto fault = [&](const std::string& file, const std::string& other, const std::string& why) {
    Sources broken = house;
    broken[file] += "  # include  \"" + other + "\"  // why not\n";
    const Words wrong = wrong_includes(broken, made_up);
    REQUIRE(wrong.size() == 1);
    CHECK(wrong[0].find(file + " includes " + other + ": " + why) == 0);
  };
  fault("tree.h", "drafters/a.h", "the arrow points inward; lowest first: ");
  fault("machine/a.h", "commands/a.cpp", "the arrow");
  fault("drafters/a.h", "commands/a.cpp", "the arrow");
  fault("drafters/a.h", "nanospec.cu", "the arrow");
  fault("nanospec.cu", "drafters/b.h", "there is no such file");
  fault("commands/a.cpp", "a.cpp", "there is no such file");  // beside it: includes are written from the root
  fault("commands/a.cpp", "tests/a.h", "that is neither");
  CHECK(wrong_readings(house).empty());
  Sources mixed = house;
  mixed["target.h"] = "#include \"machine/b.h\"\n", mixed["machine/b.h"] = "#include \"train.h\"\n";
  mixed["draft.h"] = "#include \"model.h\"\n";
  CHECK(wrong_readings(mixed) == Words{"target.h reaches train.h", "draft.h reaches model.h"});
  house["more.h"] = house["attic/a.h"] = "", house.erase("sample.h");
  CHECK(wrong_includes(house, made_up).size() == 3);
}

TEST_CASE("rings: what is a function, and how long") {
  const std::string text =
      "#define BRACE {\\\n  {\n"
      "namespace n { struct Point { int x = 0, y{}; };\n"
      "/* { */ const char* text = \"{\\\"\"; const char brace = '{', raw[] = R\"(\n{)\"; const int many = 1'000;\n"
      "template <class T, class = std::enable_if_t<true>>\n"
      "struct Box : Point {\n"
      " public:\n"
      "  Box(int a, Point p = {})\n"
      "      : first_{a}, second_(p),\n"
      "        third_{} {\n"
      "  }\n"
      "  int get() const { return [&] { return 1; }(); }\n"
      " private:\n"
      "  enum class Kind { one, two } kind;\n"
      "};\n"
      "template <class T>\n"
      "void go(const std::vector<T>& list = {1, 2}) {\n"
      "  struct Local { void f() {} };\n"
      "  if (true) {\n"
      "  }  // }\n"
      "}\n"
      "int declared(int);\n"
      "}\n";
  std::ostringstream found;
  for (const Function& f : functions_of(text)) found << f.name << ' ' << f.first << '-' << f.last << "; ";
  CHECK(found.str() == "Box 9-12; get 13-13; go 17-22; ");
  CHECK_THROWS_AS(functions_of("void f() {"), std::runtime_error);
  CHECK_THROWS_AS(functions_of("void f() {}}"), std::runtime_error);
}

TEST_CASE("rings: a core that grew, fell silent or learned a ring's word is found") {
  const auto many = [](int n, const std::string& line) {
    std::string text;
    for (int i = 0; i < n; i++) text += line + "\n";
    return text;
  };
  const auto function = [&](const std::string& name, int lines) {
    return "void " + name + "() {\n" + many(lines - 2, "  f();  // why") + "}\n";
  };
  const std::string said = many(600, "// so");
  const Sources house = {{"tree.h", function("flatten", kFunctionLines)},
                         {"decode.h", function("generate", kLoopLines)},
                         {"sample.h", said},
                         {"study/a.h", many(kFileLines + 1, "int i;")}};
  CHECK(wrong_measures(house).empty());
  const auto fault = [&](const std::string& file, const std::string& text, const std::string& message) {
    Sources broken = house;
    broken[file] = text;
    CHECK(wrong_measures(broken) == Words{message});
  };
  fault("tree.h", "\n" + function("flatten", 71), "tree.h:2: flatten() has 71 lines: at most 70");
  fault("decode.h", function("generate", 61), "decode.h:1: generate() has 61 lines: at most 60");
  fault("tree.h", "void flatten() {\n  a();  // so\n#ifdef B\n  b();\n#endif\n}\n",
        "tree.h:1: flatten() has an #if inside");
  fault("decode.h", function("degenerate", 61), "decode.h has no generate()");
  fault("model.h", many(651, "\n").substr(0, 651), "model.h has 651 lines: at most 650");
  fault("sample.h", many(15, "// so"),
        "the core's headers have 15 lines of comment on 130 of code: at least 15 of a hundred");
  Sources broken = house;
  for (const char* file : {"model.h", "draft.h", "train.h", "target.h", "nanospec.cu"})
    broken[file] = many(620, "int i;");
  CHECK(wrong_measures(broken) == Words{"the core's headers have 2610 lines of code: at most 2550"});

  const auto foreign = [](const std::string& text) { return foreign_words({{"draft.h", text}}).size(); };
  CHECK(foreign("// What learns: growth/trust.h. A namespace has spaces.\n#include \"distrust.h\"\n") == 0);
  CHECK(foreign("int x;  // growth/trust.h\n") == 1);
  CHECK(foreign("// draft.h: medusa\nbool wants_features();\n") == 3);
  CHECK(foreign("int kSuffix, no_suffix;\n// the pace\n// Parallel drafter\n") == 4);
  CHECK(foreign_words({{"growth/trust.h", "trust"}, {"nanospec.cu", "Experience"}}).empty());
}
