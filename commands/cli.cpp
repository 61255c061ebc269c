// commands/cli.cpp: see cli.h. The parser is CLI11, which splits the command line; every message is our own, since an
// error must say what to type next.
#include "commands/cli.h"

#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "files/text.h"
#include "files/unfinished.h"
#include "files/words.h"
#include "machine/threads.h"

namespace nanospec {
namespace {

std::string short_number(double x) {
  char text[32];
  snprintf(text, sizeof text, "%.6g", x);
  return std::fabs(x) < 1e15 && x == std::floor(x) ? std::to_string((long long)x) : text;
}

// "a number from 0 to 1", "a whole number of at least 1"
std::string wanted(const Accepts& accepts, std::string text) {
  if (accepts.without_low) text += " above " + short_number(accepts.low);
  if (accepts.high < 1e300) {
    if (!accepts.without_low) text += " from " + short_number(accepts.low);
    text += accepts.without_low ? ", at most " : " to ";
    text += short_number(accepts.high);
  } else if (!accepts.without_low && accepts.low > -1e300) {
    text += " of at least " + short_number(accepts.low);
  }
  return text;
}

[[noreturn]] void refuse_number(const std::string& text, const std::string& wrong, const std::string& where,
                                const Accepts& accepts, const std::string& kind) {
  throw std::invalid_argument(quoted(text) + " is " + wrong + ": " + where + ": give " + wanted(accepts, kind));
}
constexpr const char *kOutOfRange = "out of range", *kNumber = "a number", *kWhole = "a whole number";

bool within(double x, const Accepts& accepts) {
  return x <= accepts.high && (accepts.without_low ? x > accepts.low : x >= accepts.low);
}

template <class Integer>
Integer parse_integer(const std::string& text, const std::string& where, Accepts accepts) {
  accepts.low = std::max(accepts.low, double(std::numeric_limits<Integer>::min()));
  std::string kind = kWhole;
  if (accepts.high < 1e300 || sizeof(Integer) < 8)
    accepts.high = std::min(accepts.high, double(std::numeric_limits<Integer>::max()));
  else kind += " from " + short_number(accepts.low) + " to " + std::to_string(std::numeric_limits<Integer>::max());
  const Accepts& said = kind == kWhole ? accepts : Accepts();  // a double does not hold the largest of 64 bits
  if (!is_whole(text)) refuse_number(text, std::string("not ") + kWhole, where, said, kind);
  Integer value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !within(double(value), accepts))
    refuse_number(text, kOutOfRange, where, said, kind);
  return value;
}

// What is used of `asked`: with a line where that is less, once for each number, though a command line be read twice.
int capped(int asked, const std::string& where, const Accepts& accepts) {
  static int said = 0;
  if (asked <= accepts.most) return asked;
  if (std::exchange(said, asked) != asked)
    fprintf(stderr, "%s %d: this machine has %.0f core%s: %.0f used\n", where.c_str(), asked, accepts.most,
            accepts.most == 1 ? "" : "s", accepts.most);
  return int(accepts.most);
}

void store(const Flag& flag, const std::string& text) {
  const std::string& where = flag.name;
  if (auto* const* whole = std::get_if<int*>(&flag.value))
    **whole = capped(parse_int(text, where, flag.accepts), where, flag.accepts);
  if (auto* const* seed = std::get_if<uint64_t*>(&flag.value)) **seed = parse_uint64(text, where, flag.accepts);
  if (auto* const* real = std::get_if<float*>(&flag.value)) **real = float(parse_number(text, where, flag.accepts));
  if (auto* const* list = std::get_if<std::vector<std::string>*>(&flag.value)) (**list).push_back(text);
  if (auto* const* word = std::get_if<std::string*>(&flag.value)) {
    if (!flag.accepts.words.empty()) check_word("word", text, where, flag.accepts.words);
    **word = text;
  }
}

// What the help shows as the default: what the flag's variable holds; nothing for switches and empty texts.
std::string default_text(const Flag& flag) {
  char text[32] = "";
  if (auto* const* whole = std::get_if<int*>(&flag.value)) snprintf(text, sizeof text, "%d", **whole);
  if (auto* const* seed = std::get_if<uint64_t*>(&flag.value))
    snprintf(text, sizeof text, "%llu", (unsigned long long)**seed);
  if (auto* const* real = std::get_if<float*>(&flag.value)) snprintf(text, sizeof text, "%.6g", double(**real));
  if (auto* const* word = std::get_if<std::string*>(&flag.value)) return **word;
  return text;
}

bool is_switch(const Flag& flag) { return std::holds_alternative<bool*>(flag.value); }
// Whether all words up to the next flag are its values.
bool takes_several(const Flag& flag) {
  return flag.takes.size() > 3 && flag.takes.substr(flag.takes.size() - 3) == "...";
}
bool is_list(const Flag& flag) { return std::holds_alternative<std::vector<std::string>*>(flag.value); }

// The library's view of one flag: its text, or those of a list, are collected here, and checked by us afterwards.
struct Collected {
  CLI::Option* option = nullptr;
  std::string text;
  std::vector<std::string> list;
};

struct Parser {
  CLI::App app;
  std::vector<Collected> collected;  // one a flag

  explicit Parser(const Command& command) : app(command.what, command.name), collected(command.flags.size()) {
    for (size_t i = 0; i < command.flags.size(); i++) {
      const Flag& flag = command.flags[i];
      if (flag.name.empty()) continue;
      CLI::Option*& option = collected[i].option;
      if (is_switch(flag)) option = app.add_flag(flag.name);
      else if (is_list(flag)) option = app.add_option(flag.name, collected[i].list)->allow_extra_args(false);
      else option = app.add_option(flag.name, collected[i].text);
      if (!is_list(flag)) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    }
    app.set_help_flag("--help,-h");
    app.allow_extras();
  }
};

[[noreturn]] void surplus(const Command& command, const std::string& word) {
  const std::string list = "build/" + command.name + " --help lists the flags";
  if (word.size() < 2 || word[0] != '-')
    throw std::invalid_argument("surplus word " + quoted(word) + ": " + command.name +
                                ": every value follows its flag (quote a text with spaces); " + list);
  std::vector<std::string> known = {"--help"};
  for (const Flag& flag : command.flags)
    if (!flag.name.empty()) known.push_back(flag.name);
  refuse_word("flag", word, command.name, closest_word(word.substr(0, word.find('=')), known), list);
}

// A flag's name where a value is due: the value was forgotten.
void check_no_flag(const Command& command, const Flag& flag, const std::string& text) {
  for (const Flag& other : command.flags)
    if (!other.name.empty() && text == other.name)
      throw std::invalid_argument("a value is missing: " + flag.name + ": it takes one, and " + text +
                                  " is itself a flag");
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------
// Flags

double parse_number(const std::string& text, const std::string& where, const Accepts& accepts) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole_text = end == text.data() + text.size() && !text.empty();
  const bool too_far = whole_text && error == std::errc::result_out_of_range;
  if (!too_far && (!whole_text || error != std::errc() || !std::isfinite(value)))
    refuse_number(text, std::string("not ") + kNumber, where, accepts, kNumber);
  if (too_far || !within(value, accepts)) refuse_number(text, kOutOfRange, where, accepts, kNumber);
  return value;
}
int parse_int(const std::string& text, const std::string& where, const Accepts& accepts) {
  return parse_integer<int>(text, where, accepts);
}
uint64_t parse_uint64(const std::string& text, const std::string& where, const Accepts& accepts) {
  return parse_integer<uint64_t>(text, where, accepts);
}

void check_word(const std::string& kind, const std::string& word, const std::string& where,
                const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), word) != known.end()) return;
  refuse_word(kind, word, where, closest_word(word, known), "known: " + joined(known));
}

std::vector<Flag> together(const std::vector<std::vector<Flag>>& parts) {
  std::vector<Flag> flags;
  for (const std::vector<Flag>& part : parts) flags.insert(flags.end(), part.begin(), part.end());
  return flags;
}

namespace {
// The words of a command line as the library reads them: each value follows its flag. --flag=value becomes two words,
// or the library would take the word after "--flag=" for its value; the name of a list that takes several words stands
// before each.
std::vector<std::string> words_of(const Command& command, int argc, const char* const* argv) {
  std::vector<std::string> words;
  std::string list;  // whose words these are; empty: none
  for (int i = 1; i < argc; i++) {
    const std::string word = argv[i], name = word.substr(0, word.find('='));
    const bool value = word.empty() || word[0] != '-';
    if (i == 1 && value && !command.first.empty()) words.push_back(command.first);
    const auto flag = std::find_if(command.flags.begin(), command.flags.end(),
                                   [&](const Flag& f) { return !f.name.empty() && f.name == name; });
    const bool known = flag != command.flags.end(), with_value = known && name.size() < word.size();
    if (with_value && is_switch(*flag))
      throw std::invalid_argument("a switch takes no value: " + name + ": give it alone or leave it out");
    if (!list.empty() && value && words.back() != list) words.push_back(list);
    if (with_value) words.push_back(name);
    words.push_back(with_value ? word.substr(name.size() + 1) : word);
    if (!value) list = known && takes_several(*flag) ? name : "";
  }
  return words;
}
}  // namespace

Given parse_flags(const Command& command, int argc, const char* const* argv) {
  Parser parser(command);
  std::vector<std::string> words = words_of(command, argc, argv);
  std::reverse(words.begin(), words.end());  // the library wants them last to first
  const std::string last = words.empty() ? "" : words.front();
  Given given;
  try {
    parser.app.parse(words);
  } catch (const CLI::CallForHelp&) {
    print_out(help_text(command));
    given.help = true;
    return given;
  } catch (const CLI::ArgumentMismatch&) {  // only the last word can lack its value
    throw std::invalid_argument("a value is missing: " + last + ": it takes one; build/" + command.name +
                                " --help shows it");
  }
  if (!parser.app.remaining().empty()) surplus(command, parser.app.remaining().front());
  for (size_t i = 0; i < command.flags.size(); i++) {
    const Flag& flag = command.flags[i];
    if (flag.name.empty()) continue;
    if (parser.collected[i].option->count() > 0) given.flags.insert(flag.name);
    else if (flag.accepts.required)
      throw std::invalid_argument("a flag is missing: " + command.name + ": add " + flag.name + " " + flag.takes);
    else continue;
    if (is_switch(flag)) {
      *std::get<bool*>(flag.value) = true;
      continue;
    }
    std::vector<std::string> texts = parser.collected[i].list;
    if (!is_list(flag)) texts = {parser.collected[i].text};
    for (const std::string& text : texts) {
      check_no_flag(command, flag, text);
      store(flag, text);
    }
  }
  notes().quiet = given.has("--quiet");
  return given;
}

// ---------------------------------------------------------------------------------------------------------------
// Help

namespace {
// Columns that a UTF-8 text takes: its code points (no wide ones are ever printed here).
size_t columns(const std::string& text) {
  return size_t(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

constexpr size_t kHelpWidth = 80, kHelpColumn = 26;  // where what is said of a form begins

// The text in lines of at most so many columns, `between` its parts; a part that is longer has a line of its own.
std::vector<std::string> wrapped(const std::vector<std::string>& parts, const std::string& between, size_t width) {
  std::vector<std::string> lines;
  for (const std::string& part : parts) {
    if (lines.empty() || columns(lines.back() + between + part) > width) lines.push_back(part);
    else lines.back() += between + part;
  }
  return lines;
}
}  // namespace

std::string help_paragraph(const std::string& text) {
  return joined(wrapped(split_at(text, ' '), " ", kHelpWidth), "\n") + "\n";
}

std::string help_item(const std::string& form, const std::string& what) {
  std::string text;
  size_t hanging = 0;  // columns by which further lines of an entry stand in
  for (const std::string& part : split_at(what, '\n')) {
    const std::vector<std::string> lines = wrapped(split_at(part, ' '), " ", kHelpWidth - kHelpColumn - hanging);
    for (size_t i = 0; i < lines.size(); i++)
      text += std::string(kHelpColumn + (i > 0 ? hanging : 0), ' ') + lines[i] + "\n";
    hanging = 2;
  }
  const std::string begin = "  " + form;
  if (columns(begin) + 2 > kHelpColumn) return begin + "\n" + text;
  return text.empty() ? begin + "\n" : text.replace(0, begin.size(), begin);
}

std::string help_examples(const std::string& examples) {
  std::string text = "Examples:\n";
  for (const std::string& line : split_at(examples, '\n')) {
    const std::string example = "build/" + line;
    std::vector<std::string> parts;  // a flag with its value each
    for (size_t at = 0, next; at < example.size(); at = next) {
      next = std::min(example.find(" --", at + 1), example.size());
      parts.push_back(example.substr(at + (at > 0), next - at - (at > 0)));
    }
    text += "  " + joined(wrapped(parts, " ", kHelpWidth - 6), " \\\n    ") + "\n";
  }
  return text;
}

std::string help_text(const Command& command) {
  std::string text = help_paragraph(command.what) + "\nUsage: build/" + command.name;
  for (const Flag& flag : command.flags)
    if (!command.first.empty() && flag.name == command.first) text += " " + flag.takes;
  text += " [FLAGS]\n";
  const char* group = "\nFlags:\n";  // unless the table begins with a heading
  for (const Flag& flag : command.flags) {
    if (flag.name.empty()) {
      text += "\n" + flag.help + ":\n";
      group = "";
      continue;
    }
    std::string what = flag.help;
    const std::string standard = default_text(flag);
    if (!flag.accepts.words.empty()) what += (what.empty() ? "" : ": ") + joined(flag.accepts.words);
    if (flag.accepts.required) what += " (required)";
    else if (!standard.empty()) what += " (" + standard + ")";
    text += group + help_item(flag.name + (flag.takes.empty() ? "" : " " + flag.takes), what);
    group = "";
  }
  text += "\nHelp:\n" + help_item("--help, -h", "show this and end");
  return text + (command.examples.empty() ? "" : "\n" + help_examples(command.examples));
}

// ---------------------------------------------------------------------------------------------------------------
// Ending

namespace {
volatile std::sig_atomic_t interrupt_mark = 0;

constexpr const char* kSmaller = ": make the model, the batch or the budget smaller, or use fewer --threads";

// Says in one line what was thrown. Returns the exit status.
int say_end(const char* name, const std::exception_ptr& thrown) {
  int status = 1;
  std::string line;
  try {
    std::rethrow_exception(thrown);
  } catch (const std::invalid_argument& error) {
    status = 2;
    line = error.what();
  } catch (const std::bad_alloc&) {
    line = std::string("out of memory: this machine, or the limit of a process (ulimit -v), has no more") + kSmaller;
  } catch (const std::length_error&) {
    line = std::string("out of memory: a size asked for is larger than any machine holds") + kSmaller;
  } catch (const std::filesystem::filesystem_error& error) {  // a loop of links, a name too long, a folder shut
    line = "cannot use the path: " + printable(error.path1().string(), 300) + " (" + error.code().message() +
           "): check the path and its permissions";
  } catch (const std::system_error& error) {
    line = error.what();
    if (error.code() == std::errc::resource_unavailable_try_again)
      line =
          "cannot start a thread: the system allows no more (ulimit -u, ulimit -v): use fewer --threads, --ahead off";
  } catch (const std::exception& error) { line = error.what(); }
  for (char& c : line)
    if ((unsigned char)c < 0x20 || c == 0x7f) c = ' ';
  fprintf(stderr, "%s: %s\n", name, line.c_str());
  return status;
}

const char* program_name = "";
}  // namespace

int run_program(const char* name, int (*program)(int, char**), int argc, char** argv) {
  signal(SIGXFSZ, SIG_IGN);  // a file that grows too large is an error of write(), as on a full disk
  program_name = name;
  std::set_terminate([] {  // what a thread of its own throws: memory, mostly
    remove_unfinished();
    _exit(std::current_exception() ? say_end(program_name, std::current_exception()) : 1);
  });
  try {
    const int status = program(argc, argv);
    print_out("", true);
    return status;
  } catch (...) { return say_end(name, std::current_exception()); }
}

void hand_over(const std::string& name, char** argv, const std::string& build) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (error) self = argv[0];
  const std::string own = self.filename();
  fs::path program = self;
  program.replace_filename(name);
  const std::string suffix = "-cuda";
  const bool cuda = own.size() > suffix.size() && own.compare(own.size() - suffix.size(), suffix.size(), suffix) == 0;
  if (cuda && fs::exists(program.string() + suffix, error)) program += suffix;
  execv(program.c_str(), argv);
  throw std::runtime_error("cannot start " + name + ": " + program.string() + " (" + std::strerror(errno) +
                           "): build it with " + build);
}

void print_out(const std::string& bytes, bool flush) {
  errno = 0;
  const bool written = fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size();
  if (!written || (flush && fflush(stdout) != 0) || ferror(stdout))
    throw std::runtime_error("cannot write: standard output: " + std::string(errno ? strerror(errno) : "it failed") +
                             "; make room or give another place");
}

namespace {
const char* volatile last_words = nullptr;

void handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}
void end_at_once(int signal) {
  remove_unfinished();
  const char* const words = last_words;
  if (words && write(STDERR_FILENO, words, strlen(words)) < 0) {}  // there is nobody to tell
  handle(signal, SIG_DFL);
  raise(signal);  // it comes when this returns
}
void mark_interrupt(int signal) {
  interrupt_mark = signal;
  if (signal != SIGHUP) handle(signal, end_at_once);  // a terminal that closes sends more than one HUP
}
}  // namespace

void watch_interrupts(const std::string& last_line) {
  static std::string words;
  last_words = nullptr;
  words = last_line.empty() ? "" : (isatty(STDERR_FILENO) ? "\r\x1b[K" : "") + last_line + "\n";
  last_words = words.c_str();
  handle(SIGINT, mark_interrupt);
  handle(SIGTERM, mark_interrupt);
  struct sigaction hup = {};
  if (sigaction(SIGHUP, nullptr, &hup) == 0 && hup.sa_handler != SIG_IGN) handle(SIGHUP, mark_interrupt);
}
bool interrupted() { return interrupt_mark != 0; }
bool forget_interrupt() {
  if (interrupt_mark != 0 && interrupt_mark != SIGINT) return false;
  handle(SIGINT, mark_interrupt);
  interrupt_mark = 0;
  return true;
}

// ---------------------------------------------------------------------------------------------------------------
// Progress, tables, numbers for people

Progress::Progress(bool quiet, double first) : quiet_(quiet), terminal_(isatty(STDERR_FILENO)) {
  start_ = std::chrono::steady_clock::now();
  const double wait = first > 0 ? first : terminal_ ? 0.5 : 5;
  next_ = start_ + std::chrono::milliseconds(std::llround(1e3 * wait));
}

bool Progress::due() const { return !quiet_ && std::chrono::steady_clock::now() >= next_; }

double Progress::seconds() const { return seconds_since(start_); }

void Progress::show(const std::string& line) {
  if (quiet_) return;
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_) {
    fprintf(stderr, "%s\n", line.c_str());
    next_ = now + std::max<std::chrono::steady_clock::duration>(std::chrono::seconds(5), (now - start_) / 200);
    return;
  }
  winsize size = {};
  const size_t width = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
  fprintf(stderr, "\r%s\x1b[K", line.substr(0, width).c_str());
  fflush(stderr);
  shown_ = true;
  next_ = now + std::chrono::milliseconds(100);
}

void Progress::clear() {
  if (shown_) fprintf(stderr, "\r\x1b[K");
  shown_ = false;
}

std::string decimals(double x, int places) {
  char text[352];
  snprintf(text, sizeof text, "%.*f", places, x);
  return text;
}

std::string thousands(double x) {
  std::string text = decimals(std::fabs(x), 0);
  for (int i = int(text.size()) - 3; i > 0; i -= 3) text.insert(size_t(i), ",");
  return (x <= -0.5 ? "-" : "") + text;
}

std::string duration(double seconds) {
  char text[64];
  const long long whole = std::llround(std::min(seconds, 1e15));
  if (seconds < 0.9995) snprintf(text, sizeof text, "%.*f ms", seconds < 0.01 ? 2 : 0, seconds * 1e3);
  else if (seconds < 59.95) snprintf(text, sizeof text, "%.1f s", seconds);
  else if (whole < 3600) snprintf(text, sizeof text, "%lld min %02lld s", whole / 60, whole % 60);
  else snprintf(text, sizeof text, "%lld h %02lld min", whole / 3600, whole % 3600 / 60);
  return text;
}

std::string bytes_text(double bytes) {
  const char* units[] = {"bytes", "kB", "MB", "GB", "TB"};
  int unit = 0;
  for (; bytes >= 999.5 && unit < 4; unit++) bytes /= 1000;
  return decimals(bytes, unit == 0 || bytes >= 99.95 ? 0 : 1) + " " + units[unit];
}

std::string time_left(double done, double total, double seconds) {
  return done > 0 && total >= done ? duration(seconds / done * (total - done)) + " left" : "";
}

std::string format_table(const TableRows& rows, const std::string& align) {
  std::vector<size_t> width(align.size(), 0);
  for (const Row& row : rows)
    for (size_t c = 0; c < row.size() && c < width.size(); c++) width[c] = std::max(width[c], columns(row[c]));
  std::string text;
  for (size_t r = 0; r < rows.size(); r++) {
    std::string line;
    for (size_t c = 0; c < rows[r].size() && c < width.size(); c++) {
      const std::string space(width[c] - columns(rows[r][c]), ' ');
      line += (c ? "  " : "") + (align[c] == 'l' ? rows[r][c] + space : space + rows[r][c]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    if (r > 0 || rows.size() < 2) continue;
    for (size_t c = 0; c < width.size(); c++) text += (c ? "  " : "") + std::string(width[c], '-');
    text += "\n";
  }
  return text;
}

// ---------------------------------------------------------------------------------------------------------------
// The process

int usable_cpus() { return usable_cores(); }

double peak_bytes() {
  // The kernel's mark for this program; getrusage would also count what the process was before it became it.
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.compare(0, 6, "VmHWM:") == 0) return std::strtod(line.c_str() + 6, nullptr) * 1024;
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return double(usage.ru_maxrss) * 1024;
}

}  // namespace nanospec
