// commands/cli.h: what every command line of this project shares.
//
// In order: one table of flags that drives the parser, its errors and --help; what a run writes (outputs.cpp); how a
// program ends; Ctrl-C; progress lines and tables; facts about the process. Nothing here knows of models or texts.
//
// How a program uses it (train_gpt and nanospec alike):
//   int train(int argc, char** argv) {
//     int n_layer = 4; std::string data; bool quiet = false;      // what a variable holds before is the default
//     const Given given = parse_flags({"train_gpt", "Trains a GPT.", "train_gpt --data a.txt --out runs/a\n", {
//         heading("Model"),
//         {"--data", "FILE", &data, "the text to learn", required()},
//         {"--n_layer", "N", &n_layer, "layers", from(1, 1000)},
//         {"--quiet", "", &quiet, "no progress"}}}, argc, argv);  // throws std::invalid_argument: exit status 2
//     if (given.help) return 0;                                   // --help has been printed
//     ...                                                         // and the work
//   }
//   int main(int argc, char** argv) { return run_program("train_gpt", train, argc, argv); }
#pragma once

#include <functional>
#include <map>
#include <variant>

#include "files/words.h"
#include "machine/threads.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// Flags

// Where a flag's value goes. A bool is a switch: it takes no value. A list takes one value each time the flag is given,
// or, if its Flag::takes ends with "...", all words up to the next flag.
using FlagValue = std::variant<bool*, int*, uint64_t*, float*, std::string*, std::vector<std::string>*>;

// What a value must be. The default is: anything of its type (numbers are finite and fit the type, always).
struct Accepts {
  double low = -1e300, high = 1e300;
  bool without_low = false;             // low itself is refused
  std::vector<std::string> words = {};  // not empty: the text must be one of these
  bool required = false;                // the flag must be given
  bool written = false;                 // it names a file, or a folder, that the run writes: check_outputs() checks it
  double most = 1e300;                  // what is used where more is asked for
};
inline Accepts from(double low, double high = 1e300) { return {low, high}; }
inline Accepts above(double low, double high) { return {low, high, true}; }
inline Accepts one_of(std::vector<std::string> words) { return {-1e300, 1e300, false, std::move(words)}; }
// Of --threads: no more than there are cores are used.
inline Accepts threads() { return {1, 1024, false, {}, false, false, double(usable_cores())}; }
inline Accepts required() { return {-1e300, 1e300, false, {}, true}; }
inline Accepts written(bool required = false) { return {-1e300, 1e300, false, {}, required, true}; }

struct Flag {
  std::string name;   // "--max_new_tokens"; empty: a heading of the help
  std::string takes;  // what the help calls its value: "N", "FILE"; empty for a switch
  FlagValue value;
  std::string help;  // one line, or several: a list
  Accepts accepts = {};
};
inline Flag heading(std::string title) { return {"", "", {}, std::move(title), {}}; }

// Several parts of a table as one.
std::vector<Flag> together(const std::vector<std::vector<Flag>>& parts);

struct Command {
  std::string name;      // as typed: "nanospec generate"
  std::string what;      // what it does
  std::string examples;  // command lines, one a line, without the folder build/
  std::vector<Flag> flags;
  std::string first = "";  // the flag whose name may be left out before a word of its own; empty: none
};

// The flag of this name; null for a word that is none.
const Flag* find_flag(const Command& command, const std::string& name);

struct Given {
  Command command;    // whose table it was read by
  bool help = false;  // --help was asked for and has been printed: end with status 0
  // Those that the command line held, with the texts that count.
  std::map<std::string, std::vector<std::string>> flags = {};
  bool has(const std::string& name) const { return flags.count(name) > 0; }
};

// Reads argv[1..argc-1] into the table's variables; of a flag given twice the last counts, except for a list. Throws
// std::invalid_argument with the line to print: unknown flag (with the nearest), surplus word, missing value, no
// number, not finite, out of range, unknown word (with the nearest), required flag missing.
Given parse_flags(const Command& command, int argc, const char* const* argv);

// Puts a text where the flag's value goes, as parse_flags() does. Throws as it does.
void set_flag(const Flag& flag, const std::string& text);
// The words of a command line as flags, each with the value that it would have: for what decides which table reads it.
std::vector<std::pair<std::string, std::string>> named_flags(int argc, const char* const* argv);

// What --help shows, in lines of at most 80 columns; and what it is made of: running text; a form and what it is, whose
// lines stay lines; command lines, as they are typed in the project's root.
std::string help_text(const Command& command);
std::string help_paragraph(const std::string& text);
std::string help_item(const std::string& form, const std::string& what);
std::string help_examples(const std::string& examples);

// The parts in lines that measure at most so much, with blanks in between. A part that measures more has a line of its
// own, or is broken into several.
std::vector<std::string> wrapped(const std::vector<std::string>& parts, double most,
                                 const std::function<double(const std::string&)>& measure, bool breaks = false);

// A whole text as an int, a uint64_t or a double; throws std::invalid_argument "'x' is no number: WHERE: ...". Leading
// or trailing characters, nan, inf and hexadecimal are refused.
template <class Number>
Number parse_number(const std::string& text, const std::string& where, Accepts accepts = {});

// ---------------------------------------------------------------------------------------------------------------
// What a run writes
//
// It is looked at before the work begins: nothing is lost by a slip of the hand, and no work is done for a file that
// cannot be written. The table of flags says what a run writes (written()) and what it reads (every other FILE or DIR).
// Two names are one file where they lead to the same place, by whatever links.

// Whether two names lead to one place; /dev/null is none.
bool same_file(const std::string& a, const std::string& b);

// Throws std::runtime_error where no file can be written.
void check_writable(const std::string& path);

// All outputs that the command line names: none is another, what the run reads, a file of a model, or where its
// standard output or error goes (std::invalid_argument), and each can be written (std::runtime_error). also_reads:
// files and folders that no flag names alone. own: as above.
void check_outputs(const Given& given, const std::vector<std::string>& also_reads = {}, const std::string& own = "");

// ---------------------------------------------------------------------------------------------------------------
// Ending

// Runs the program; an exception becomes one line on standard error, "NAME: what is wrong: where: what to do", and
// the exit status: 2 for std::invalid_argument (the command line is wrong), 1 for everything else. Output that could
// not be written is an error too.
int run_program(const char* name, int (*program)(int, char**), int argc, char** argv);

// Becomes the program of this name that lies beside this one: beside nanospec-cuda lies NAME-cuda, where there is one.
// Throws std::runtime_error where it cannot be started; build: the command that makes it.
[[noreturn]] void hand_over(const std::string& name, char** argv, const std::string& build);

// Writes bytes to standard output; throws std::runtime_error when they cannot be written.
void print_out(const std::string& bytes, bool flush = false);

// From here on the first Ctrl-C, TERM or HUP (a terminal that closes; not under nohup) only sets a mark that
// interrupted() shows. A second Ctrl-C or TERM ends the process at once: it leaves no unfinished file, and this line.
void watch_interrupts(const std::string& last_line = "");
bool interrupted();
// Forgets a Ctrl-C: the next one only sets the mark again. False, and the mark stays, after TERM or HUP, which ask the
// process to end.
bool forget_interrupt();
constexpr int kInterruptedStatus = 130;
int stopped(const std::string& what);  // says on standard error "stopped" and what, and returns that status

// ---------------------------------------------------------------------------------------------------------------
// Numbers for people, progress, tables

std::string thousands(double x);  // 12,345
// "1 token", "12,345 tokens"
inline std::string count(double n, const std::string& what) { return thousands(n) + " " + what + (n == 1 ? "" : "s"); }
std::string duration(double seconds);  // "12.3 ms", "4.2 s", "3 min 05 s", "2 h 07 min"
std::string bytes_text(double bytes);  // "42.6 MB"
// "4.2 s left"; "" when nothing is done yet
inline std::string time_left(double done, double total, double seconds) {
  return done > 0 && total >= done ? duration(seconds / done * (total - done)) + " left" : "";
}

// Whether a file is a terminal that knows escape sequences.
bool is_drawn_on(int file);

// A line on standard error that rewrites itself on a terminal; plain lines, ever rarer, where it is none.
class Progress {
 public:
  explicit Progress(bool quiet, double first = 0);  // first: seconds until the first line; 0: as it is usual
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { clear(); }
  // Is it time for another line? Never when quiet.
  bool due() const { return !quiet_ && std::chrono::steady_clock::now() >= next_; }
  void show(const std::string& line);                       // rewrites the line, or adds one
  double seconds() const { return seconds_since(start_); }  // since it was made
  std::string left(double done, double total) const { return time_left(done, total, seconds()); }
  // Where another line is due: "1,234 of 5,000 WHATs, 987 tok/s, 4.2 s left". So many tokens came; share: of all that
  // is to be done.
  void tell(double done, double total, const char* what, double tokens, double share);
  void clear();  // takes the rewritten line away, so that others can be printed

 private:
  bool quiet_, terminal_, shown_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now(), next_;
};

// What is said while a text is read, encoded and counted: a progress line at every step of a large text, and of any
// text after a second.
class Preparing : public Progress {
 public:
  Preparing(double bytes, bool quiet) : Progress(quiet, 1), bytes_(bytes) {}  // of a text

  void step(const std::string& name) {
    step_ = "preparing " + bytes_text(bytes_) + " of text: " + name;
    if (bytes_ >= 8e6 || due()) show(step_);  // about a second's
  }
  // To be told of the step's progress. It lives no longer than this object.
  std::function<void(double share)> told() {
    return [this](double share) {
      if (due()) show(step_ + "  " + decimals(100 * share, 0) + "%");
    };
  }

 private:
  double bytes_;
  std::string step_;
};

using Row = std::vector<std::string>;  // cells
using TableRows = std::vector<Row>;

// TableRows as aligned columns, the first row a head with a rule below. `align`: 'l' or 'r' for each column.
std::string format_table(const TableRows& rows, const std::string& align);

// ---------------------------------------------------------------------------------------------------------------
// The process

double peak_bytes();  // most memory held at any time

}  // namespace nanospec
