// course/regions.h: the parts of the engine that students write: how they are marked, cut out, and pasted in.
//
// The ring course/ makes a course out of the engine itself. What a student writes is marked in the sources, a region:
//   // course 5.1                      whole lines, from below this one
//   ...
//   // end                             to above this one
//   int f() { return 1; }  // course 5.2 (until then: return 0;)      what stands between the braces of one line
// 5.1 is the first thing to write in chapter 5. `// course 5` marks what would give an answer away, such as a second
// version: it is cut out too, and nobody writes it. A number may stand at several places.
//
// In order: reading the marks; cutting the bodies out; which bodies may come in; pasting them in. All are functions
// from texts to texts. Of the engine a mark that is wrong is an error; of a submission it costs its own region and no
// other.
#pragma once

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace course {

// ---------------------------------------------------------------------------------------------------------------
// Marks

struct Region {
  std::string number;  // "5.1", or "5" for what nobody writes
  std::string until;   // the body that it has in the starter, in place of a throw; mostly empty
  size_t begin, end;   // where the body lies in the text: whole lines, or what is between the braces of one line
  bool one_line;
};

inline bool is_written(const Region& region) { return region.number.find('.') != std::string::npos; }

struct Marks {
  std::vector<Region> regions;
  std::vector<std::string> problems;  // one line each: which line, and what is wrong with it
};

// The number in a line that begins a region, "" in others. A mark stands alone or behind a brace.
inline std::string number_in(const std::string& line) {
  const size_t mark = line.find("// course ");
  if (mark == std::string::npos) return "";
  const size_t before = line.find_last_not_of(' ', mark - 1);
  if (mark > 0 && before != std::string::npos && line[before] != '}') return "";
  const size_t end = std::min(line.find_first_not_of("0123456789.", mark + 10), line.size());
  return line.substr(mark + 10, end - mark - 10);
}

// The regions of a text, in order, those whose marks are wrong left out.
inline Marks read_marks(const std::string& text) {
  Marks marks;
  Region open{"", "", 0, 0, false};  // with a number: its end is to come
  int line = 0;
  const auto wrong = [&](const std::string& what) {
    marks.problems.push_back("line " + std::to_string(line) + ": " + what);
  };
  const auto give_up = [&] {
    if (!open.number.empty()) wrong("region " + open.number + " has no `// end` before this line");
    open.number.clear();
  };
  for (size_t at = 0; at < text.size();) {
    const size_t stop = std::min(text.find('\n', at), text.size());
    const std::string words = text.substr(at, stop - at), number = number_in(words);
    const size_t first = std::min(words.find_first_not_of(' '), words.size());
    line++;
    if (words.compare(first, std::string::npos, "// end") == 0) {
      if (open.number.empty()) wrong("`// end` without a beginning");
      open.end = at;
      if (!open.number.empty()) marks.regions.push_back(open);
      open.number.clear();
    } else if (!number.empty()) {
      give_up();
      const size_t mark = words.find("// course "), until = words.find("(until then: "), behind = words.rfind(')');
      open = {number, "", stop + 1, 0, mark != first};
      if (until != std::string::npos) open.until = words.substr(until + 13, behind - until - 13);
      if (open.one_line) {
        const size_t left = words.find('{'), right = words.rfind('}', mark);
        open.begin = at + left + 1;
        open.end = at + right;
        if (left < right && right < mark) marks.regions.push_back(open);
        else wrong("region " + number + " has no braces before its mark");
        open.number.clear();
      }
    }
    at = stop + 1;
  }
  give_up();
  return marks;
}

// The same of a text that must be right. Throws std::runtime_error with the first problem.
inline std::vector<Region> regions_of(const std::string& text) {
  const Marks marks = read_marks(text);
  if (!marks.problems.empty()) throw std::runtime_error(marks.problems[0]);
  return marks.regions;
}

// The bodies of a text by their numbers, in the order of their places.
using Bodies = std::map<std::string, std::vector<std::string>>;
inline Bodies bodies_of(const std::string& text) {
  Bodies bodies;
  for (const Region& region : read_marks(text).regions) {
    std::string body = text.substr(region.begin, region.end - region.begin);
    if (region.one_line) body = body.substr(1, body.size() - 2);  // without the blanks inside the braces
    bodies[region.number].push_back(body);
  }
  return bodies;
}

// ---------------------------------------------------------------------------------------------------------------
// Cutting

// What stands in a body's place.
inline std::string stand_in(const Region& region) {
  if (!region.until.empty()) return region.until;
  return is_written(region) ? "throw std::runtime_error(\"chapter " + region.number + " is not written yet\");"
                            : "throw std::runtime_error(\"left out of the course\");";
}

// The text without its bodies. A region of one line becomes one of whole lines, so that there is room to write.
inline std::string cut(const std::string& text) {
  std::string out;
  size_t done = 0;
  for (const Region& region : regions_of(text)) {
    const size_t begin = text.rfind('\n', region.begin - (region.one_line ? 0 : 2)) + 1;  // of the line with the mark
    const std::string indent = text.substr(begin, text.find_first_not_of(' ', begin) - begin);
    out += text.substr(done, region.begin - done);
    done = region.end;
    if (region.one_line) {
      out += "\n" + indent + "  // course " + region.number + "\n" + indent + "  " + stand_in(region) + "\n" + indent +
             "  // end\n" + indent + "}";
      done = text.find('\n', region.end);
    } else {
      out += indent + stand_in(region) + "\n";
    }
  }
  out += text.substr(done);
  const std::string once = "#pragma once\n";
  const size_t head = out.find(once);
  if (done > 0 && head != std::string::npos) out.insert(head + once.size(), "\n#include <stdexcept>\n");
  return out;
}

// ---------------------------------------------------------------------------------------------------------------
// Pasting

// Why a body may not be pasted in, "" if it may. It must stay within its function: its braces are in pairs, and it asks
// nothing of the preprocessor, which could read other files.
inline std::string refusal(const std::string& body) {
  for (size_t at = 0; (at = body.find('\\', at)) != std::string::npos; at++)
    if (body[std::min(body.find_first_not_of(" \t\r\f\v", at + 1), body.size() - 1)] == '\n')
      return "a \\ at the end of a line";
  int open = 0;
  char before = ' ';
  for (size_t i = 0; i < body.size(); before = body[i++]) {
    const std::string two = body.substr(i, 2), unroll = "#pragma unroll";
    const char c = two[0];
    if (two == "//") {
      i = std::min(body.find('\n', i), body.size()) - 1;
    } else if (two == "/*") {
      i = body.find("*/", i + 2);
      if (i++ == std::string::npos) return "a comment without an end";
    } else if (c == '"' || c == '\'') {
      if (isalnum(uint8_t(before)) || before == '_') return std::string("a letter or digit before ") + c;
      for (i++; i < body.size() && body[i] != c && body[i] != '\n'; i++) i += body[i] == '\\';
      if (i >= body.size() || body[i] != c) return std::string("a ") + c + " without another one in its line";
    } else if (body.compare(i, unroll.size(), unroll) == 0) {
      i += unroll.size() - 1;
    } else if (c == '#' || two == "%:" || two == "<%" || two == "%>") {
      return "a line for the preprocessor (" + two.substr(0, c == '#' ? 1 : 2) + ")";
    }
    open += c == '{';
    if (c == '}' && --open < 0) return "a } without its {";
  }
  return open == 0 ? "" : "a { without its }";
}

// The text, which cut() made, with these bodies in their places. A number that `bodies` lacks stays as it is; one text
// for a number with several places serves all of them. Throws std::runtime_error where places and texts do not fit.
inline std::string paste(const std::string& text, const Bodies& bodies) {
  std::string out;
  size_t done = 0;
  std::map<std::string, size_t> place;
  for (const Region& region : regions_of(text)) {
    const auto found = bodies.find(region.number);
    if (found == bodies.end()) continue;
    const size_t number = found->second.size() == 1 ? 0 : place[region.number]++;
    if (number >= found->second.size())
      throw std::runtime_error("region " + region.number + " has fewer bodies than places");
    std::string body = found->second[number];
    if (body.find('\n') == std::string::npos) body = "    " + body + "\n";  // it was one line's
    out += text.substr(done, region.begin - done) + body;
    done = region.end;
  }
  return out + text.substr(done);
}

}  // namespace course
