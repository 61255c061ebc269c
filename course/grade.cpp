// course/grade.cpp: the grader: takes a student's regions, compiles each chapter, asks its program, and says what is
// right.
//
// usage: grade [--submission DIR] [--chapter N] [--reference DIR] [--hide DIR] [--seed N] [--record] [--results FILE]
//              [--keep] [--seconds N]
//   Run it in the starter's folder. Of the submission only what stands between marks is taken: it is put into blank/,
//   the files as they were given out, one chapter at a time. So a chapter that does not compile costs no other.
//   --reference: a folder with the engine's own chapter1, chapter2 ..., asked for right answers. Without it the
//   recorded ones are right, and the seed is theirs. --record records them, and --seed with them.
//   --keep: what FILE has of other chapters stays in it, and so do the points that a person gave.
//   --seconds: that it waits for an answer, 10; three times as many for a chapter.
//   --hide: the compiler may read nothing in this folder, the engine's own, but what is in the starter's.
//
// In order: the student's process; right answers; a submission's code; compiling; one chapter; the table and
// results.json.
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#if __has_include(<linux/landlock.h>)
#include <linux/landlock.h>
#endif

#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>

#include "course/files.h"
#include "course/judge.h"
#include "course/regions.h"

using namespace course;
namespace fs = std::filesystem;

namespace {

constexpr int kRace = 13;                      // the chapter that has all regions
constexpr int kChapterAnswers = 3;             // a chapter has as long as so many answers may take
constexpr size_t kMemory = size_t(2) << 30;    // bytes of a student's process
constexpr size_t kKept = 64 << 10;             // bytes of what it prints
constexpr uint32_t kLongestAnswer = 16 << 20;  // bytes
constexpr uint64_t kRecordedSeed = 20261124;   // where `make course` names none
const std::string kSeedFile = "course/recorded/seed";

struct Options {
  std::string submission = ".", reference, hidden, results = "results.json";
  std::vector<int> chapters;
  uint64_t seed = 0;
  bool record = false, keep = false;
  int seconds = 10;  // that the grader waits for an answer
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// ---------------------------------------------------------------------------------------------------------------
// The student's process

// It begins with the first question, and ends with this object.
class Program : public Answerer {
 public:
  // seconds: for an answer. left: for all answers of its chapter.
  Program(std::string path, int seconds, double& left) : path_(std::move(path)), seconds_(seconds), left_(left) {}
  ~Program() override { end(); }

  Message ask(const Message& question) override {
    if (process_ < 0) begin();
    const double start = now();
    until_ = start + std::min(left_, double(seconds_));
    Message answer, sent = Message().put(question.bytes);  // their number goes before them
    uint32_t length = 0;
    const bool came =
        move(to_, POLLOUT, sent.bytes.data(), sent.bytes.size()) && move(from_, POLLIN, &length, sizeof length);
    if (came && length > kLongestAnswer)
      not_passed("an answer of ", std::to_string(length), " bytes: does a list still hold what was in it before?");
    answer.bytes.resize(came ? length : 0);
    const bool whole = came && move(from_, POLLIN, answer.bytes.data(), length);
    const std::string ended = whole ? "" : how_it_ended();
    left_ = std::max(0.0, left_ - (now() - start));
    if (!whole) throw NotPassed(ended);
    if (answer.get<char>() == 'a') return answer;
    throw NotPassed(answer.text().substr(0, 500));
  }

  // By addr2line, which comes with the compiler: it names the line, and those that it was inlined into.
  std::string line_at(uintptr_t at) const override {
    char command[512];
    snprintf(command, sizeof command, "addr2line -ie '%s' %#zx 2>/dev/null", path_.c_str(), size_t(at) - 1);
    FILE* const said = popen(command, "r");
    std::string line;
    for (char text[1024]; said && fgets(text, sizeof text, said);) {
      const std::string place = text, file = place.substr(0, place.rfind(':'));
      if (!line.empty() || file.find("graded/") == std::string::npos) continue;
      std::istringstream lines(read_file(file));
      for (int left = atoi(place.c_str() + file.size() + 1); left > 0; left--) std::getline(lines, line);
      line.erase(0, line.find_first_not_of(' '));
    }
    if (said) pclose(said);
    return line;
  }

 private:
  void begin() {
    int questions[2], answers[2];
    if (pipe2(questions, O_CLOEXEC) != 0 || pipe2(answers, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    process_ = fork();
    if (process_ < 0) throw std::runtime_error("no process");
    setpgid(process_, process_);  // whom it starts ends with it; the process itself does the same, who is first
    if (process_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const rlimit memory{kMemory, kMemory}, seconds{rlim_t(in_all()), rlim_t(in_all())}, kept{kKept, kKept},
          none{0, 0};
      setrlimit(RLIMIT_AS, &memory);
      setrlimit(RLIMIT_CPU, &seconds);
      setrlimit(RLIMIT_FSIZE, &kept);
      setrlimit(RLIMIT_CORE, &none);
      signal(SIGXFSZ, SIG_IGN);
      // Beyond 3 and 4.
      const int in = fcntl(questions[0], F_DUPFD_CLOEXEC, 10), out = fcntl(answers[1], F_DUPFD_CLOEXEC, 10);
      const int said = open((path_ + ".said").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
      dup2(in, kQuestions);
      dup2(out, kAnswers);
      dup2(said, 1);
      dup2(said, 2);
      char* const arguments[] = {path_.data(), nullptr};
      char* const environment[] = {nullptr};
      execve(path_.c_str(), arguments, environment);
      _exit(127);
    }
    close(questions[0]);
    close(answers[1]);
    to_ = questions[1];
    from_ = answers[0];
    fcntl(to_, F_SETFL, O_NONBLOCK);
  }
  void end() {
    if (process_ < 0) return;
    kill(-process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    close(to_);
    close(from_);
    process_ = -1;
  }
  int in_all() const { return kChapterAnswers * seconds_; }
  int milliseconds_left() const { return std::max(0, int((until_ - now()) * 1000)); }
  // Reads or writes n bytes; false where the other side is gone, or time is up.
  bool move(int file, short events, void* bytes, size_t n) {
    for (char* at = static_cast<char*>(bytes); n > 0;) {
      pollfd waits{file, events, 0};
      if (poll(&waits, 1, milliseconds_left()) != 1) return false;
      const ssize_t moved = events == POLLIN ? read(file, at, n) : write(file, at, n);
      if (moved <= 0) return false;
      at += moved;
      n -= size_t(moved);
    }
    return true;
  }
  std::string how_it_ended() {
    int status = 0;
    pid_t ended = 0;
    for (; ended == 0 && milliseconds_left() > 0; usleep(1000)) ended = waitpid(process_, &status, WNOHANG);
    if (ended != process_)
      return line_of("no answer in time (", seconds_, " seconds, ", in_all(),
                     " for a chapter): a loop without an end?");
    end();
    if (!WIFSIGNALED(status)) return "the program ended before it answered";
    const int signal = WTERMSIG(status);
    if (signal == SIGXCPU || signal == SIGKILL) return line_of("the program took more than ", in_all(), " seconds");
    return line_of("the program ended by a fault: ", strsignal(signal),
                   signal == SIGSEGV ? ": an index out of range, or a null pointer?" : "");
  }

  std::string path_;
  const int seconds_;
  double& left_;
  pid_t process_ = -1;
  int to_ = -1, from_ = -1;
  double until_ = 0;  // when an answer is too late
};

// ---------------------------------------------------------------------------------------------------------------
// Right answers, where a chapter needs them: the engine's own program, or what it once answered

class Recorded : public Answerer {
 public:
  // With `live` it asks that, and remembers; else it looks the question up.
  Recorded(const std::string& file, Answerer* live) : file_(file), live_(live) {
    if (live) return;
    const std::string text = read_file(file);
    Message all{{text.begin(), text.end()}};
    while (all.at < all.bytes.size()) {
      const auto key = all.get<uint64_t>();
      answers_[key] = all.list<char>();
    }
  }
  Message ask(const Message& question) override {
    const uint64_t key = hash(question);
    if (live_ && !answers_.count(key)) {
      const Message answer = live_->ask(question);
      answers_[key] = {answer.bytes.begin() + 1, answer.bytes.end()};
      written_.put(key).put(answers_[key]);
    }
    if (!answers_.count(key))
      throw std::runtime_error(file_ + ": no recorded answer: it is of another seed or grader: get the starter again");
    return {answers_[key]};
  }
  void save() const { write_file(file_, {written_.bytes.begin(), written_.bytes.end()}); }

 private:
  static uint64_t hash(const Message& message) {  // FNV-1a
    uint64_t sum = 14695981039346656037u;
    for (char c : message.bytes) sum = (sum ^ uint8_t(c)) * 1099511628211u;
    return sum;
  }
  std::string file_;
  Answerer* live_;
  std::map<uint64_t, std::vector<char>> answers_;
  Message written_;
};

// ---------------------------------------------------------------------------------------------------------------
// A submission's code

std::string program_of(int chapter) { return "chapter" + std::to_string(chapter); }

// The submission's file of this name, also if it was uploaded without folders; "" where it has none of its own.
fs::path file_of(const std::string& submission, const fs::path& name) {
  const fs::path folder = fs::canonical(submission);
  for (const fs::path& path : {folder / name, folder / name.filename()}) {
    const fs::path real = fs::weakly_canonical(path);  // a link leads to another's file
    if (fs::is_regular_file(real) &&
        std::mismatch(folder.begin(), folder.end(), real.begin(), real.end()).first == folder.end())
      return real;
  }
  return "";
}

// Puts the submission's regions of this chapter into the blank files. Returns what the student should know.
std::vector<std::string> take_regions(const Options& options, const Chapter& of) {
  const std::string chapter = std::to_string(of.number), its = chapter + ".";
  std::vector<std::string> notes;
  for (const auto& entry : fs::recursive_directory_iterator("blank")) {
    if (!entry.is_regular_file()) continue;
    const std::string name = fs::relative(entry.path(), "blank").string(), blank = read_file(entry.path());
    Bodies bodies;
    for (const auto& [number, body] : of.stand_ins) bodies[number] = {body};
    const fs::path theirs = file_of(options.submission, name);
    const Bodies given = bodies_of(read_file(theirs));
    for (const auto& [number, until] : bodies_of(blank)) {
      if (number.compare(0, its.size(), its) != 0) continue;
      if (theirs.empty()) {
        notes.push_back("the submission has no " + name);
        break;
      }
      const std::string where = name + ": region " + number + ": ";
      const auto found = given.find(number);
      if (found == given.end())
        notes.push_back(where + "its marks are not there: `// course " + number + "` and `// end`");
      else bodies[number] = found->second;
      for (const std::string& body : bodies[number])
        if (!refusal(body).empty())
          notes.push_back(where + refusal(body) + ": what you write must stay within its function");
    }
    // The race may call whatever its student wrote: the regions of all chapters that may come in, and are not in yet.
    for (const auto& [number, written] : of.number == kRace ? given : Bodies())
      if (number.find('.') != std::string::npos &&
          std::all_of(written.begin(), written.end(), [](const std::string& body) { return refusal(body).empty(); }))
        bodies.insert({number, written});
    try {
      write_file(fs::path("build/graded") / chapter / name, paste(blank, notes.empty() ? bodies : Bodies()));
    } catch (const std::runtime_error& error) { notes.push_back(name + ": " + error.what()); }
  }
  return notes;
}

// ---------------------------------------------------------------------------------------------------------------
// Compiling

// From now on this process, and whom it starts, read no file in `folder` but those in the working folder. Where Linux
// has no Landlock nothing happens: then the compiler is kept from the engine's files by refusal() alone.
void hide([[maybe_unused]] const fs::path& folder) {
#if __has_include(<linux/landlock.h>)
  landlock_ruleset_attr reads{};
  reads.handled_access_fs = LANDLOCK_ACCESS_FS_READ_FILE;
  const int rules = int(syscall(SYS_landlock_create_ruleset, &reads, sizeof reads.handled_access_fs, 0));
  if (rules < 0) return;
  const auto allow = [&](const fs::path& path) {
    landlock_path_beneath_attr below{};
    below.allowed_access = LANDLOCK_ACCESS_FS_READ_FILE;
    below.parent_fd = open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC);
    syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &below, 0);
    close(below.parent_fd);
  };
  fs::path at = "/";
  for (const fs::path& next : fs::canonical(folder).relative_path()) {  // all that lies beside the way to the folder
    for (const auto& entry : fs::directory_iterator(at, fs::directory_options::skip_permission_denied))
      if (entry.path().filename() != next) allow(entry.path());
    at /= next;
  }
  allow(fs::current_path());
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  syscall(SYS_landlock_restrict_self, rules, 0);
#endif
}

// Has make compile the chapters' programs, as many at a time as there are cores. make says which it could not.
void compile(const std::vector<Chapter>& chapters, const std::string& hidden) {
  std::string targets;
  for (const Chapter& chapter : chapters) {
    const std::string program = "build/" + program_of(chapter.number);
    targets += " " + program;
    fs::remove(program + ".failed");
  }
  // The compiler's own files lie where it may read; it has two minutes and 4 GiB.
  const std::string command =
      "ulimit -t 120; ulimit -v 4194304; TMPDIR=$PWD/build make -k -s -j$(nproc)" + targets + " >build/make.log 2>&1";
  const pid_t process = fork();
  if (process == 0) {
    if (!hidden.empty()) hide(hidden);
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  waitpid(process, nullptr, 0);  // how it ended the files tell
}

// Behind such words of a compiler, what a student should think of.
constexpr const char* kHints[][2] = {
    {"expected primary-expression before", " (is the word `template` missing?)"},
    {"was not declared in this scope", " (what stands outside the marks, or in other chapters, is not taken)"},
    {"there are no arguments to", " (what stands outside the marks, or in other chapters, is not taken)"}};

// The first error in a compiler's words, in the student's own file.
std::string first_error(const std::string& log) {
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("error: ") == std::string::npos && line.find("undefined reference") == std::string::npos) continue;
    if (line.compare(0, 13, "build/graded/") == 0) line = line.substr(line.find('/', 13) + 1);
    for (const auto& [words, hint] : kHints)
      if (line.find(words) != std::string::npos) return line + hint;
    return line;
  }
  return "see build/make.log";
}

bool has_compiler() {
  return std::system("printf 'int main() {}' | ${CXX:-g++} -std=c++17 -x c++ - -o build/compiles >/dev/null 2>&1") == 0;
}

// ---------------------------------------------------------------------------------------------------------------
// One chapter

enum class State { kPassed, kFailed, kBlocked };
constexpr const char* kStates[] = {"passed", "failed", "blocked"};

struct Outcome {
  const Check* check;
  State state;
  std::string why;
};
struct Graded {
  Chapter chapter;
  std::vector<Outcome> outcomes = {};
  int points = 0;
  State state = State::kPassed;  // the worst of its checks
  std::string why = {};          // of the first check that is not passed
  double seconds = 0;
};

Graded grade(const Options& options, const Chapter& chapter) {
  Graded graded{chapter};
  const double start = now();
  const std::string program = "build/" + program_of(chapter.number);
  const std::vector<std::string> notes = take_regions(options, chapter);
  State without = State::kPassed;
  std::string why;
  fs::remove(program + ".said");
  if (!fs::exists(program) || fs::exists(program + ".failed")) {
    const bool could = has_compiler();
    without = could ? State::kFailed : State::kBlocked;
    why = could ? "it does not compile: " + first_error(read_file(program + ".log"))
                : "there is no C++17 compiler here: install g++";
  }
  if (!notes.empty()) {
    without = std::max(without, State::kFailed);
    why = notes[0];
  }
  const bool live = !options.reference.empty();
  double left = kChapterAnswers * options.seconds, left_of_reference = 3600;
  Program reference(options.reference + "/" + program_of(chapter.number), 600, left_of_reference);
  Recorded right("course/recorded/" + std::to_string(chapter.number), live ? &reference : nullptr);
  for (size_t i = 0; i < graded.chapter.checks.size(); i++) {
    const Check& check = graded.chapter.checks[i];
    Outcome outcome{&check, without, why};
    Program student(program, options.seconds, left);
    std::seed_seq seed{uint32_t(options.seed), uint32_t(options.seed >> 32), uint32_t(chapter.number), uint32_t(i)};
    Examiner judge{std::mt19937_64(seed), student, right};
    try {
      if (without == State::kPassed) check.run(judge);
      outcome.why += judge.note;
    } catch (const NotPassed& wrong) {
      outcome = {&check, State::kFailed, wrong.what()};
    } catch (const std::exception& error) {  // an answer that is none
      outcome = {&check, State::kFailed, std::string("the grader: ") + error.what()};
    }
    graded.outcomes.push_back(outcome);
    if (outcome.state == State::kPassed) graded.points += check.points;
    else if (graded.state == State::kPassed) graded.why = outcome.why;
    graded.state = std::max(graded.state, outcome.state);
  }
  if (options.record) right.save();
  graded.seconds = now() - start;
  return graded;
}

// ---------------------------------------------------------------------------------------------------------------
// What it says

void print(const Graded& graded) {
  printf("chapter %-2d  %-34s %-8s %2d of 10   %.1f s\n", graded.chapter.number, graded.chapter.title,
         kStates[int(graded.state)], graded.points, graded.seconds);
  std::string said;
  for (const Outcome& one : graded.outcomes) {
    printf("    %s %d  %s\n", one.state == State::kPassed ? "+" : "-", one.check->points, one.check->name);
    if (one.why != said && !one.why.empty()) printf("         %s\n", one.why.c_str());
    said = one.why;
  }
  const std::string file = "build/" + program_of(graded.chapter.number) + ".said";
  std::istringstream printed(read_file(file));
  int lines = 0;
  for (std::string line; std::getline(printed, line) && lines < 10; lines++)
    printf("    it printed: %s\n", line.substr(0, 200).c_str());
  if (lines == 10) printf("    %s has its first %zu KB\n", file.c_str(), kKept >> 10);
  fflush(stdout);
}

// As Gradescope reads it: a test for each check. `predictions` and `questions` are points that a person writes.
void write_results(const Options& options, const std::vector<Graded>& all) {
  const auto before =
      nlohmann::ordered_json::parse(options.keep && fs::exists(options.results) ? read_file(options.results) : "{}");
  nlohmann::ordered_json results = before;
  results["tests"] = nlohmann::json::array();
  auto& chapters = results["extra_data"]["chapters"];
  for (const Graded& graded : all) {
    const std::string number = std::to_string(graded.chapter.number);
    for (const Outcome& one : graded.outcomes) {
      const bool passed = one.state == State::kPassed;
      results["tests"].push_back({{"name", one.check->name},
                                  {"number", number},
                                  {"score", passed ? one.check->points : 0},
                                  {"max_score", one.check->points},
                                  {"status", passed ? "passed" : "failed"},
                                  {"output", one.why}});
    }
    nlohmann::ordered_json by_hand = {{"predictions", nullptr}, {"questions", nullptr}};
    for (auto& [name, points] : by_hand.items())
      if (chapters.contains(number)) points = chapters[number].value(name, points);
    chapters[number] = {{"state", kStates[int(graded.state)]}, {"points", graded.points}, {"why", graded.why}};
    chapters[number].update(by_hand);
  }
  for (const auto& test : before.value("tests", nlohmann::ordered_json::array()))
    if (std::none_of(all.begin(), all.end(),
                     [&](const Graded& now) { return std::to_string(now.chapter.number) == test.value("number", ""); }))
      results["tests"].push_back(test);
  int score = 0;
  for (const auto& chapter : chapters) score += chapter.value("points", 0);
  results["score"] = score;
  write_file(options.results, results.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

Options read_options(int argc, char** argv) {
  Options options;
  const option names[] = {{"submission", 1, nullptr, 's'}, {"chapter", 1, nullptr, 'c'}, {"reference", 1, nullptr, 'r'},
                          {"hide", 1, nullptr, 'h'},       {"seed", 1, nullptr, 'n'},    {"record", 0, nullptr, 'w'},
                          {"results", 1, nullptr, 'o'},    {"seconds", 1, nullptr, 't'}, {"keep", 0, nullptr, 'k'},
                          {nullptr, 0, nullptr, 0}};
  std::string chapters, seed = "0", seconds = std::to_string(options.seconds);
  const std::map<int, std::string*> texts = {
      {'s', &options.submission}, {'r', &options.reference}, {'h', &options.hidden}, {'n', &seed}, {'t', &seconds},
      {'o', &options.results}};
  for (int given; (given = getopt_long(argc, argv, "", names, nullptr)) >= 0;)
    if (given == 'w') options.record = true;
    else if (given == 'k') options.keep = true;
    else if (given == 'c') chapters += std::string(" ") + optarg;
    else if (texts.count(given)) *texts.at(given) = optarg;
    else exit(2);
  std::istringstream words(chapters);
  for (std::string word; words >> word;) options.chapters.push_back(atoi(word.c_str()));  // 0 is no chapter
  options.seed = strtoull(seed.c_str(), nullptr, 10);
  options.seconds = std::max(1, atoi(seconds.c_str()));
  if (options.record && options.seed == 0) options.seed = kRecordedSeed;
  if (options.record) write_file(kSeedFile, std::to_string(options.seed) + "\n");
  else if (options.reference.empty()) options.seed = strtoull(read_file(kSeedFile).c_str(), nullptr, 10);
  else if (options.seed == 0) options.seed = uint64_t(std::random_device{}()) << 32 | std::random_device{}();
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  const Options options = read_options(argc, argv);
  const std::vector<Chapter> all = {chapter1(),  chapter2(),  chapter3(), chapter4(), chapter5(),
                                    chapter6(),  chapter7(),  chapter8(), chapter9(), chapter10(),
                                    chapter11(), chapter12(), chapter13()};
  std::vector<Chapter> chosen;
  std::string numbers, lacks;
  for (const Chapter& chapter : all) {
    numbers += " " + std::to_string(chapter.number);
    if (options.chapters.empty() || std::count(options.chapters.begin(), options.chapters.end(), chapter.number))
      chosen.push_back(chapter);
  }
  if (!fs::exists("blank")) lacks = "no folder blank/ here: run it in the starter's folder";
  else if (chosen.empty()) lacks = "there is no such chapter: choose of" + numbers;
  else if (!fs::is_directory(options.submission)) lacks = "there is no such folder: --submission";
  else if (options.keep && fs::exists(options.results) && !nlohmann::json::accept(read_file(options.results)))
    lacks = options.results + " is no JSON any more: mend it, or remove it";
  if (!lacks.empty()) {
    fprintf(stderr, "grade: %s\n", lacks.c_str());
    return 2;
  }
  fs::create_directories("build");
  // All chapters are compiled together, then judged one by one.
  for (const Chapter& chapter : chosen) take_regions(options, chapter);
  fprintf(stderr, "compiling ...\n");
  compile(chosen, options.hidden);
  std::vector<Graded> graded;
  int points = 0, passed = 0;
  for (const Chapter& chapter : chosen) {
    graded.push_back(grade(options, chapter));
    print(graded.back());
    points += graded.back().points;
    passed += graded.back().state == State::kPassed;
  }
  write_results(options, graded);
  printf("%d of %d chapters passed, %d of %d points; %s has all of it\n", passed, int(chosen.size()), points,
         10 * int(chosen.size()), options.results.c_str());
  return passed == int(chosen.size()) ? 0 : 1;
}
