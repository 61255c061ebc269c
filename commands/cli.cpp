// commands/cli.cpp: see cli.h. In order: values; flags; help; how a program ends; progress, tables, numbers for people.
#include "commands/cli.h"

#include <sys/ioctl.h>

#include <charconv>
#include <csignal>
#include <system_error>

#include "files/io.h"
#include "files/unfinished.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Values

namespace {

std::string limit_text(double x) { return std::fabs(x) < 1e15 && x == std::floor(x) ? decimals(x, 0) : as_text(x); }

// "a number from 0 to 1", "a whole number of at least 1"
std::string wanted(const std::string& kind, const Accepts& accepts, const std::string& high) {
  const std::string low = limit_text(accepts.low);
  if (accepts.without_low) return kind + " above " + low + (accepts.high < 1e300 ? ", at most " + high : "");
  if (accepts.high < 1e300) return kind + " from " + low + " to " + high;
  return kind + (accepts.low > -1e300 ? " of at least " + low : "");
}

// What is used of `asked`: with a line where that is less, once for each number, though a command line be read twice.
int capped(int asked, const Flag& flag) {
  static int said = 0;
  const double most = flag.accepts.most;
  if (asked <= most) return asked;
  if (std::exchange(said, asked) != asked)
    fprintf(stderr, "%s %d: this machine has %.0f core%s: %.0f used\n", flag.name.c_str(), asked, most,
            most == 1 ? "" : "s", most);
  return int(most);
}

// What the help shows as the default: what the flag's variable holds; nothing for switches and lists.
std::string default_text(const Flag& flag) {
  if (const auto n = std::get_if<int*>(&flag.value)) return as_text(**n);
  if (const auto n = std::get_if<uint64_t*>(&flag.value)) return as_text(**n);
  if (const auto x = std::get_if<float*>(&flag.value)) return as_text(**x);
  if (const auto its = std::get_if<std::string*>(&flag.value)) return **its;
  return "";
}

}  // namespace

template <class Number>
Number parse_number(const std::string& text, const std::string& where, Accepts accepts) {
  constexpr bool kWhole = std::is_integral_v<Number>;
  constexpr Number kMost = std::numeric_limits<Number>::max();
  const std::string kind = kWhole ? "a whole number" : "a number";
  accepts.low = std::max(accepts.low, double(std::numeric_limits<Number>::lowest()));
  accepts.high = std::min(accepts.high, double(kMost));
  // A double does not hold the largest number of 64 bits.
  const std::string high = accepts.high == double(kMost) ? std::to_string(kMost) : limit_text(accepts.high);
  const auto refuse_number = [&](const std::string& wrong) {
    refuse_usage("{} is {}: {}: give {}", quoted(text), wrong, where, wanted(kind, accepts, high));
  };
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool all = end == text.data() + text.size() && !text.empty(), fits = all && error == std::errc();
  const bool real = (fits && std::isfinite(double(value))) || (all && error == std::errc::result_out_of_range);
  if (!(kWhole ? is_whole(text) : real)) refuse_number("not " + kind);
  const double x = double(value);
  if (!fits || x > accepts.high || (accepts.without_low ? x <= accepts.low : x < accepts.low))
    refuse_number("out of range");
  return value;
}
template int parse_number(const std::string&, const std::string&, Accepts);
template double parse_number(const std::string&, const std::string&, Accepts);

void set_flag(const Flag& flag, const std::string& text) {
  const Accepts& accepts = flag.accepts;
  if (!accepts.words.empty()) check_word("word", text, flag.name, accepts.words);
  if (const auto on = std::get_if<bool*>(&flag.value)) **on = true;
  if (const auto n = std::get_if<int*>(&flag.value)) **n = capped(parse_number<int>(text, flag.name, accepts), flag);
  if (const auto n = std::get_if<uint64_t*>(&flag.value)) **n = parse_number<uint64_t>(text, flag.name, accepts);
  if (const auto x = std::get_if<float*>(&flag.value)) {
    const double number = parse_number<double>(text, flag.name, accepts);
    if (!fits_float(number))
      refuse_usage("{} is out of range: {}: give a number that a float holds", quoted(text), flag.name);
    **x = float(number);
  }
  if (const auto its = std::get_if<std::string*>(&flag.value)) **its = text;
  if (const auto list = std::get_if<std::vector<std::string>*>(&flag.value)) (**list).push_back(text);
}

// ---------------------------------------------------------------------------------------------------------------
// Flags

std::vector<Flag> together(const std::vector<std::vector<Flag>>& parts) {
  std::vector<Flag> flags;
  for (const std::vector<Flag>& part : parts) flags.insert(flags.end(), part.begin(), part.end());
  return flags;
}

const Flag* find_flag(const Command& command, const std::string& name) {
  for (const Flag& flag : command.flags)
    if (!flag.name.empty() && flag.name == name) return &flag;
  return nullptr;
}

namespace {

std::string name_in(const std::string& word) { return word.substr(0, word.find('=')); }  // of --name=value too

// A word of the command line that is no flag's value.
[[noreturn]] void surplus(const Command& command, const std::string& word) {
  const std::string list = "build/" + command.name + " --help lists the flags";
  if (word.size() < 2 || word[0] != '-')
    refuse_usage("surplus word {}: {}: every value follows its flag (quote a text with spaces); {}", quoted(word),
                 command.name, list);
  std::vector<std::string> known = {"--help"};
  for (const Flag& flag : command.flags)
    if (!flag.name.empty()) known.push_back(flag.name);
  refuse_word("flag", word, command.name, closest_word(name_in(word), known), list);
}

bool is_value(const std::string& word) { return word.empty() || word[0] != '-' || word == "-"; }

// Which texts each flag was given; a switch has an empty one. Words that belong to no flag are left over.
Given sorted_by_flag(const Command& command, std::vector<std::string> words, std::vector<std::string>& left) {
  Given given{command};
  bool stands_alone = false;  // the word of the command's first flag, without its name
  for (size_t i = 0; i < words.size(); i++) {
    if (!command.first.empty() && is_value(words[i]) && !given.has(command.first)) {
      words.insert(words.begin() + long(i), command.first);
      stands_alone = true;
    }
    const std::string &word = words[i], name = name_in(word);
    const Flag* const flag = find_flag(command, name);
    if (word == "--help" || word == "-h") given.help = true;
    else if (!flag) left.push_back(word);
    if (!flag) continue;
    if (stands_alone && name == command.first && given.has(name))
      refuse_usage("{} is given twice: {}: once without its name", name, command.name);
    std::vector<std::string>& texts = given.flags[name];
    const bool with_value = name.size() < word.size(), is_switch = std::holds_alternative<bool*>(flag->value);
    if (is_switch && with_value) refuse_usage("a switch takes no value: {}: give it alone or leave it out", name);
    if (!with_value && !is_switch && ++i == words.size())
      refuse_usage("a value is missing: {}: it takes one; build/{} --help shows it", name, command.name);
    texts.push_back(with_value ? word.substr(name.size() + 1) : is_switch ? "" : words[i]);
    const bool several = flag->takes.size() > 3 && flag->takes.substr(flag->takes.size() - 3) == "...";
    while (several && i + 1 < words.size() && is_value(words[i + 1])) texts.push_back(words[++i]);
  }
  return given;
}

}  // namespace

Given parse_flags(const Command& command, int argc, const char* const* argv) {
  std::vector<std::string> left;
  Given given = sorted_by_flag(command, {argv + std::min(argc, 1), argv + argc}, left);
  if (given.help) print_out(help_text(command));
  if (given.help) return given;
  if (!left.empty()) surplus(command, left.front());
  for (const Flag& flag : command.flags) {
    if (flag.accepts.required && !given.has(flag.name))
      refuse_usage("a flag is missing: {}: add {} {}", command.name, flag.name, flag.takes);
    if (!given.has(flag.name)) continue;
    std::vector<std::string>& texts = given.flags.at(flag.name);
    for (const std::string& text : texts) {
      if (find_flag(command, name_in(text)))  // where a value is due: it was forgotten
        refuse_usage("a value is missing: {}: it takes one, and {} is itself a flag", flag.name, text);
      set_flag(flag, text);
    }
    if (!std::holds_alternative<std::vector<std::string>*>(flag.value)) texts = {texts.back()};
  }
  notes().quiet = given.has("--quiet");
  return given;
}

std::vector<std::pair<std::string, std::string>> named_flags(int argc, const char* const* argv) {
  std::vector<std::pair<std::string, std::string>> flags;
  for (int i = 1; i < argc; i++) {
    const std::string word = argv[i], name = name_in(word);
    flags.emplace_back(name, name != word ? word.substr(name.size() + 1) : i + 1 < argc ? argv[i + 1] : "");
  }
  return flags;
}

// ---------------------------------------------------------------------------------------------------------------
// Help

// A text takes as many columns as it has characters: no wide ones are ever printed here.
constexpr size_t kHelpWidth = 80, kHelpColumn = 26;  // where what is said of a form begins

std::vector<std::string> wrapped(const std::vector<std::string>& parts, double most,
                                 const std::function<double(const std::string&)>& measure, bool breaks) {
  std::vector<std::string> lines;
  for (const std::string& part : parts) {
    if (!lines.empty() && measure(lines.back() + " " + part) <= most) {
      lines.back() += " " + part;
      continue;
    }
    lines.emplace_back();
    for (char c : part) {
      const bool begins = (c & 0xc0) != 0x80;  // a character
      if (breaks && begins && !lines.back().empty() && measure(lines.back() + c) > most) lines.emplace_back();
      lines.back() += c;
    }
  }
  return lines;
}

std::string help_paragraph(const std::string& text) {
  return joined(wrapped(split_at(text, ' '), kHelpWidth, characters), "\n") + "\n";
}

std::string help_item(const std::string& form, const std::string& what) {
  std::string text;
  for (const std::string& part : split_at(what, '\n')) {
    const size_t further = kHelpColumn + (text.empty() ? 0 : 2);  // where an entry's further lines begin
    const std::vector<std::string> lines = wrapped(split_at(part, ' '), kHelpWidth - further, characters);
    text += std::string(kHelpColumn, ' ') + joined(lines, "\n" + std::string(further, ' ')) + "\n";
  }
  const std::string begin = "  " + form;
  if (text.empty() || characters(begin) + 2 > kHelpColumn) return begin + "\n" + text;
  return text.replace(0, begin.size(), begin);
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
    text += "  " + joined(wrapped(parts, kHelpWidth - 6, characters), " \\\n    ") + "\n";
  }
  return text;
}

std::string help_text(const Command& command) {
  std::string text = help_paragraph(command.what) + "\nUsage: build/" + command.name;
  if (const Flag* const first = find_flag(command, command.first)) text += " " + first->takes;
  text += " [FLAGS]\n";
  if (!command.flags.empty() && !command.flags[0].name.empty()) text += "\nFlags:\n";  // there is no heading
  for (const Flag& flag : command.flags) {
    if (flag.name.empty()) {
      text += "\n" + flag.help + ":\n";
      continue;
    }
    std::string what = flag.help;
    const std::string standard = flag.accepts.required ? "required" : default_text(flag);
    if (!flag.accepts.words.empty()) what += (what.empty() ? "" : ": ") + joined(flag.accepts.words);
    if (!standard.empty()) what += " (" + standard + ")";
    text += help_item(flag.name + (flag.takes.empty() ? "" : " " + flag.takes), what);
  }
  text += "\nHelp:\n" + help_item("--help, -h", "show this and end");
  return text + (command.examples.empty() ? "" : "\n" + help_examples(command.examples));
}

// ---------------------------------------------------------------------------------------------------------------
// Ending

namespace {
volatile std::sig_atomic_t interrupt_mark = 0;
const char* volatile last_words = nullptr;

void end_at_once(int number) {
  remove_unfinished();
  const char* const words = last_words;
  if (words && write(STDERR_FILENO, words, strlen(words)) < 0) {}  // there is nobody to tell
  signal(number, SIG_DFL);
  raise(number);  // it comes when this returns
}
void mark_interrupt(int number) {
  interrupt_mark = number;
  if (number != SIGHUP) signal(number, end_at_once);  // a terminal that closes sends more than one HUP
}

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
    line = filled("cannot use the path: {} ({}): check the path and its permissions",
                  printable(error.path1().string(), 300), error.code().message());
  } catch (const std::system_error& error) {
    line = error.what();
    if (error.code() == std::errc::resource_unavailable_try_again)
      line =
          "cannot start a thread: the system allows no more (ulimit -u, ulimit -v): use fewer --threads, --ahead off";
  } catch (const std::exception& error) { line = error.what(); }
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
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
  const std::string own = self.filename(), suffix = "-cuda";
  const bool cuda = own.size() > suffix.size() && own.substr(own.size() - suffix.size()) == suffix;
  fs::path program = self.replace_filename(name);
  if (cuda && fs::exists(program.string() + suffix, error)) program += suffix;
  execv(program.c_str(), argv);
  refuse("cannot start " + name, filled("{} ({})", program.string(), std::strerror(errno)), "build it with " + build);
}

void print_out(const std::string& bytes, bool flush) {
  errno = 0;
  const bool written = fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size();
  if (!written || (flush && fflush(stdout) != 0) || ferror(stdout))
    refuse("cannot write", "standard output",
           filled("{}; make room or give another place", errno ? strerror(errno) : "it failed"));
}

bool is_drawn_on(int file) {
  const char* const kind = getenv("TERM");
  return isatty(file) && kind && std::string(kind) != "dumb";
}

void watch_interrupts(const std::string& last_line) {
  static std::string words;
  last_words = nullptr;
  words = last_line.empty() ? "" : (is_drawn_on(STDERR_FILENO) ? "\r\x1b[K" : "") + last_line + "\n";
  last_words = words.c_str();
  for (int number : {SIGINT, SIGTERM}) signal(number, mark_interrupt);
  if (signal(SIGHUP, mark_interrupt) == SIG_IGN) signal(SIGHUP, SIG_IGN);
}
bool interrupted() { return interrupt_mark != 0; }
int stopped(const std::string& what) {
  fprintf(stderr, "stopped%s\n", what.c_str());
  return kInterruptedStatus;
}
bool forget_interrupt() {
  if (interrupt_mark != 0 && interrupt_mark != SIGINT) return false;
  signal(SIGINT, mark_interrupt);
  interrupt_mark = 0;
  return true;
}

// ---------------------------------------------------------------------------------------------------------------
// Progress, tables, numbers for people

Progress::Progress(bool quiet, double first) : quiet_(quiet), terminal_(is_drawn_on(STDERR_FILENO)) {
  const double wait = first > 0 ? first : terminal_ ? 0.5 : 5;
  next_ = start_ + std::chrono::milliseconds(std::llround(1e3 * wait));
}

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

void Progress::tell(double done, double total, const char* what, double tokens, double share) {
  if (!due()) return;
  const std::string speed = thousands(tokens / seconds()) + " tok/s";
  show(filled("{} of {}, {}, {}", thousands(done), count(total, what), speed, left(share, 1)));
}

void Progress::clear() {
  if (shown_) fprintf(stderr, "\r\x1b[K");
  shown_ = false;
}

std::string thousands(double x) {
  std::string text = decimals(std::fabs(x), 0);
  for (int i = int(text.size()) - 3; i > 0; i -= 3) text.insert(size_t(i), ",");
  return (x <= -0.5 ? "-" : "") + text;
}

std::string duration(double seconds) {
  if (seconds < 0.9995) return decimals(seconds * 1e3, seconds < 0.01 ? 2 : 0) + " ms";
  if (seconds < 59.95) return decimals(seconds, 1) + " s";
  const int64_t whole = std::llround(std::min(seconds, 1e15)), hours = whole / 3600, minutes = whole / 60 % 60;
  const auto two = [](int64_t n) { return (n < 10 ? "0" : "") + std::to_string(n); };
  return hours > 0 ? filled("{} h {} min", hours, two(minutes)) : filled("{} min {} s", minutes, two(whole % 60));
}

std::string bytes_text(double bytes) {
  const char* units[] = {"bytes", "kB", "MB", "GB", "TB"};
  int unit = 0;
  for (; bytes >= 999.5 && unit < 4; unit++) bytes /= 1000;
  return decimals(bytes, unit == 0 || bytes >= 99.95 ? 0 : 1) + " " + units[unit];
}

std::string format_table(const TableRows& rows, const std::string& align) {
  std::vector<size_t> width(align.size(), 0);
  for (const Row& row : rows)
    for (size_t c = 0; c < row.size() && c < width.size(); c++) width[c] = std::max(width[c], characters(row[c]));
  std::string text, rule;
  for (size_t c = 0; c < width.size(); c++) rule += (c ? "  " : "") + std::string(width[c], '-');
  for (const Row& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size() && c < width.size(); c++) {
      const std::string space(width[c] - characters(row[c]), ' ');
      line += (c ? "  " : "") + (align[c] == 'l' ? row[c] + space : space + row[c]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    if (&row == &rows.front() && rows.size() > 1) text += rule + "\n";
  }
  return text;
}

// ---------------------------------------------------------------------------------------------------------------
// The process

double peak_bytes() {
  // The kernel's mark for this program; getrusage would also count what the process was before it became it.
  if (const size_t kilobytes = system_number("/proc/self/status", "VmHWM:", 0)) return 1024.0 * double(kilobytes);
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return double(usage.ru_maxrss) * 1024;
}

}  // namespace nanospec
