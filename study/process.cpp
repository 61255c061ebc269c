// study/process.cpp: other programs, run and waited for: see process.h.
#include "study/process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "commands/commands.h"
#include "growth/clock.h"

namespace nanospec {

Scratch::Scratch() {
  std::string name = (std::filesystem::temp_directory_path() / "nanospec_bench_XXXXXX").string();
  if (!mkdtemp(&name[0])) refuse_path("cannot create the folder", name, errno);
  path = name;
}
Scratch::~Scratch() {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

int run_process(std::vector<std::string> words, const std::string& log, double most_seconds,
                const std::function<void()>& waiting) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(&word[0]);
  argv.push_back(nullptr);
  const int in = open("/dev/null", O_RDONLY | O_CLOEXEC),
            out = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  const pid_t child = fork();
  if (child == 0) {
    setpgid(0, 0);  // a process group of its own, so that a signal reaches its children too
    for (const auto& [from, to] : {std::pair{in, STDIN_FILENO}, {out, STDOUT_FILENO}, {out, STDERR_FILENO}})
      dup2(from, to);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  close(in);
  close(out);
  if (child < 0) return 127;
  int status = 0;
  bool late = false, told = false;
  Stopwatch watch;
  for (double spent = 0; waitpid(child, &status, WNOHANG) == 0; spent += watch.lap()) {
    late = late || spent > most_seconds;
    if ((interrupted() || late) && !told) told = kill(-child, SIGTERM) == 0;
    waiting();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (late) return kTooLong;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string last_line(const std::string& path) {
  if (!std::filesystem::exists(path)) return "";
  std::string text = read_file(path);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return printable(text.substr(text.find_last_of("\r\n") + 1), 300);
}

std::string program_folder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

}  // namespace nanospec
