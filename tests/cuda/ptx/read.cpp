// tests/cuda/ptx/read.cpp: reads PTX: from a text to kernels, from a kernel to its instructions.
//
// In order: words and types; variables and registers; operands; statements; a kernel; a program.
#include <algorithm>
#include <cstring>
#include <sstream>
#include <stdexcept>

#include "tests/cuda/ptx/program.h"

namespace ptx {

void fault(const std::string& what) { throw std::runtime_error("ptx: " + what); }

bool Instruction::has(const char* word) const { return std::find(words.begin(), words.end(), word) != words.end(); }

// ---------------------------------------------------------------------------------------------------------------
// Words and types

namespace {

bool begins(const std::string& text, const char* with) { return text.compare(0, strlen(with), with) == 0; }

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\n"), last = text.find_last_not_of(" \t\n");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

// Cuts at a letter that stands outside of braces and brackets.
std::vector<std::string> cut(const std::string& text, char at) {
  std::vector<std::string> pieces(1);
  int depth = 0;
  for (char c : text) {
    depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    if (c == at && depth == 0) pieces.emplace_back();
    else pieces.back() += c;
  }
  for (std::string& piece : pieces) piece = trimmed(piece);
  if (pieces.back().empty()) pieces.pop_back();
  return pieces;
}

// "u32" -> {'u', 4}; kind 0 where the word is no type.
Type type_of(const std::string& word) {
  if (word == "pred") return {'p', 1};
  for (const char* name :
       {"b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"})
    if (word == name) return {word[0], std::stoi(word.substr(1)) / 8};
  return {};
}

// A declaration such as ".align 16 .b8 name[64]".
struct Declared {
  std::string name;
  int align = 1, bytes = 0;
};
Declared declared(const std::string& text) {
  Declared it;
  Type type;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (word == ".align") words >> it.align;
    else if (word[0] == '.' && type_of(word.substr(1)).kind) type = type_of(word.substr(1));
    else if (word[0] != '.') it.name = word;
  }
  const size_t bracket = it.name.find('[');
  it.bytes = type.bytes * (bracket == std::string::npos ? 1 : std::stoi(it.name.substr(bracket + 1)));
  it.name = it.name.substr(0, bracket);
  it.align = std::max(it.align, type.bytes);
  return it;
}

// Places `bytes` behind those that are there. Returns where.
int place(int& end, int align, int bytes) {
  const int at = (end + align - 1) / align * align;
  end = at + bytes;
  return at;
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------
// One kernel

class Reader {
 public:
  Reader(const Program& program, Kernel& kernel) : program_(program), kernel_(kernel) {}

  void header(const std::string& text) {
    const size_t open = text.find('('), close = text.find(')', open);
    if (open == std::string::npos) return;
    for (const std::string& one : cut(text.substr(open + 1, close - open - 1), ',')) {
      const Declared it = declared(one);
      kernel_.parameters.push_back({it.name, place(kernel_.parameter_bytes, it.align, it.bytes), it.bytes});
    }
  }

  void body(const std::string& text, int line) {
    for (size_t at = 0; at < text.size();) {
      const char c = text[at];
      if (c == '\n') line++;
      if (isspace(uint8_t(c))) {
        at++;
      } else if (text.compare(at, 2, "//") == 0) {
        at = std::min(text.find('\n', at), text.size());
      } else if (c == '{' || c == '}') {
        if (c == '{') scopes_.emplace_back();
        else scopes_.pop_back();
        at++;
      } else {
        const size_t end = text.find_first_of(c == '$' ? ":" : ";", at);
        if (end == std::string::npos) fault(kernel_.name + ": no end of the statement in line " + std::to_string(line));
        const std::string one = text.substr(at, end - at);
        if (c == '$') labels_[one] = int(kernel_.code.size());
        else statement(one, line);
        line += int(std::count(one.begin(), one.end(), '\n'));
        at = end + 1;
      }
    }
    for (const auto& [instruction, label] : branches_) {
      if (!labels_.count(label)) fault(kernel_.name + ": no label " + label);
      kernel_.code[instruction].target = labels_[label];
    }
    statement("ret", line);  // the end of the text ends a thread too
  }

 private:
  void statement(const std::string& text, int line) {
    if (text[0] == '.') return declaration(text);
    Instruction it;
    it.line = line;
    for (char c : text) it.text += isspace(uint8_t(c)) ? ' ' : c;
    std::string rest = it.text;
    if (rest[0] == '@') {
      const size_t end = rest.find(' ');
      it.guard_is_not = rest[1] == '!';
      it.guard = source(rest.substr(it.guard_is_not ? 2 : 1, end - (it.guard_is_not ? 2 : 1)));
      rest = trimmed(rest.substr(end));
    }
    const size_t end = std::min(rest.find(' '), rest.size());
    it.words = cut(rest.substr(0, end), '.');
    for (const std::string& word : it.words)
      if (const Type type = type_of(word); type.kind) (it.type.kind ? it.second : it.type) = type;
    try {
      operands(it, cut(rest.substr(end), ','));
    } catch (const std::exception& error) {
      fault(kernel_.name + ":" + std::to_string(line) + " [" + it.text + "]: " + error.what());
    }
    kernel_.code.push_back(it);
  }

  void operands(Instruction& it, const std::vector<std::string>& given) {
    const std::string shape = understand(it);
    // A letter in parentheses need not be there: "ds(d)".
    const size_t open = shape.find('(');
    const std::string all = open == std::string::npos ? shape : shape.substr(0, open) + shape.substr(open + 1, 1);
    if (given.size() > all.size() || given.size() < std::min(open, all.size())) fault("so many operands are not known");
    for (size_t i = 0; i < given.size(); i++) {
      const std::string& one = given[i];
      if (all[i] == 'd') {
        for (const std::string& name : several(one)) it.to.at(size_t(it.outputs++)) = destination(name);
      } else if (all[i] == 's') {
        for (const std::string& name : several(one)) it.from.at(size_t(it.inputs++)) = source(name);
      } else if (all[i] == 'a') {
        it.at.at(size_t(it.addresses++)) = address(one);
      } else if (all[i] == 'n') {
        it.choice = std::stoi(one);
      } else {
        branches_.push_back({kernel_.code.size(), one});
      }
    }
    if (it.words[0] == "griddepcontrol" && it.has("wait")) kernel_.waits = true;
    const bool reaches = it.words[0] == "ld" || it.words[0] == "st" || it.words[0] == "atom" || it.words[0] == "red";
    if (reaches && it.space != Space::kParameter && it.space != Space::kLocal)
      kernel_.smallest = std::min(kernel_.smallest, it.type.bytes);
  }

  // {a, b}, or a|b, or a alone.
  static std::vector<std::string> several(const std::string& text) {
    return text[0] == '{' ? cut(text.substr(1, text.size() - 2), ',') : cut(text, '|');
  }

  void declaration(const std::string& text) {
    const size_t space = std::min(text.find_first_of(" \t"), text.size());
    const std::string word = text.substr(0, space), rest = trimmed(text.substr(space));
    if (word == ".reg") {  // ".reg .f32 %f<7>" is %f0 to %f6
      for (const std::string& one : cut(rest.substr(rest.find_first_of(" \t")), ',')) {
        const size_t bracket = one.find('<');
        const int count = bracket == std::string::npos ? 0 : std::stoi(one.substr(bracket + 1));
        if (count == 0) scopes_.back()[one] = kernel_.registers++;
        for (int i = 0; i < count; i++)
          scopes_.back()[one.substr(0, bracket) + std::to_string(i)] = kernel_.registers++;
      }
    } else if (word == ".shared" || word == ".local") {
      const Declared it = declared(rest);
      variables_[it.name] = place(word == ".shared" ? kernel_.shared_bytes : kernel_.local_bytes, it.align, it.bytes);
    } else if (word != ".pragma") {
      fault(kernel_.name + ": not provided for: " + text);
    }
  }

  int named(const std::string& name) const {
    for (size_t i = scopes_.size(); i-- > 0;)
      if (const auto found = scopes_[i].find(name); found != scopes_[i].end()) return found->second;
    return -1;
  }
  int destination(const std::string& name) const {
    if (name != "_" && named(name) < 0) fault("no register " + name);
    return name == "_" ? -1 : named(name);
  }
  // The register that holds an operand: its own, or one made for a constant, for where a variable lies, for %tid.x.
  int source(const std::string& text) {
    if (named(text) >= 0) return named(text);
    if (text[0] == '%') {
      for (const Special& one : kernel_.specials)
        if (one.name == text) return one.to;
      kernel_.specials.push_back({kernel_.registers, text});
      return kernel_.registers++;
    }
    if (begins(text, "0f") || begins(text, "0F") || begins(text, "0d") || begins(text, "0D"))
      return constant(std::stoull(text.substr(2), nullptr, 16));
    if (isdigit(uint8_t(text[0]))) return constant(std::stoull(text, nullptr, 0));
    if (text[0] == '-') return constant(uint64_t(std::stoll(text, nullptr, 0)));
    return constant(uint64_t(variable(text)));
  }
  int variable(const std::string& name) {
    for (const Parameter& one : kernel_.parameters)
      if (one.name == name) return one.offset;
    if (const auto found = variables_.find(name); found != variables_.end()) return found->second;
    const auto found = program_.shared_.find(name);
    if (found == program_.shared_.end()) fault("what is " + name + "?");
    return variables_[name] = place(kernel_.shared_bytes, found->second.align, found->second.bytes);
  }
  int constant(uint64_t bits) {
    const auto [found, is_new] = constants_.try_emplace(bits, kernel_.registers);
    if (is_new) kernel_.constants.push_back({kernel_.registers++, bits});
    return found->second;
  }
  Address address(const std::string& text) {
    if (text[0] != '[' || text.back() != ']') fault("no address: " + text);
    const std::string inside = text.substr(1, text.size() - 2);
    const size_t plus = inside.find('+');
    const int64_t offset = plus == std::string::npos ? 0 : std::stoll(inside.substr(plus + 1), nullptr, 0);
    return {source(trimmed(inside.substr(0, plus))), offset};
  }

  const Program& program_;
  Kernel& kernel_;
  std::vector<std::map<std::string, int>> scopes_{1};  // registers by their names, the innermost scope last
  std::map<std::string, int> variables_, labels_;      // where they lie
  std::map<uint64_t, int> constants_;
  std::vector<std::pair<size_t, std::string>> branches_;
};

// ---------------------------------------------------------------------------------------------------------------
// A program

Program::Program(std::string text) : text_(std::move(text)) {
  int line = 1;
  size_t counted = 0;
  const auto line_of = [&](size_t at) {  // of places that only grow
    line += int(std::count(text_.begin() + ptrdiff_t(counted), text_.begin() + ptrdiff_t(at), '\n'));
    counted = at;
    return line;
  };
  for (size_t at = 0, next; at < text_.size(); at = next) {
    next = std::min(text_.find('\n', at), text_.size() - 1) + 1;
    const std::string one = text_.substr(at, next - at);
    if (begins(one, ".shared")) {
      const Declared it = declared(one.substr(7, one.find(';') - 7));
      shared_[it.name] = {it.align, it.bytes};
    } else if (one[0] == '.' && one.find(".entry") != std::string::npos) {
      const std::string name = trimmed(one.substr(one.find(".entry") + 6));
      const size_t open = std::min(text_.find('{', at), text_.size());
      size_t end = open;
      for (int depth = 0; end < text_.size() && (depth += (text_[end] == '{') - (text_[end] == '}')) > 0;) end++;
      if (end == text_.size()) fault("a kernel without an end: " + name);
      places_[name.substr(0, name.find('('))] = {at, open + 1, end, line_of(open + 1)};
      next = end + 1;
    } else if (begins(one, ".global") || begins(one, ".const") || one.find(".func") != std::string::npos) {
      fault("not provided for: " + one);
    }
  }
}

const Kernel& Program::kernel(const std::string& name) {
  const auto found = places_.find(name);
  if (found == places_.end()) fault("no kernel " + name);
  std::unique_ptr<Kernel>& kernel = kernels_[name];
  if (kernel) return *kernel;
  auto fresh = std::make_unique<Kernel>();
  fresh->name = name;
  const Place& place = found->second;
  Reader reader(*this, *fresh);
  reader.header(text_.substr(place.header, place.body - place.header));
  reader.body(text_.substr(place.body, place.end - place.body), place.line);
  kernel = std::move(fresh);
  return *kernel;
}

std::vector<std::string> Program::names() const {
  std::vector<std::string> all;
  for (const auto& [name, place] : places_) all.push_back(name);
  return all;
}

}  // namespace ptx
