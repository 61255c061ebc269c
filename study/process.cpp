// study/process.cpp: other programs, run and waited for: see process.h.
#include "study/process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "commands/commands.h"
#include "growth/clock.h"

extern char** environ;

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
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_t attributes;  // a process group of its own, so that a signal reaches its children too
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  pid_t child = 0;
  const int error = posix_spawn(&child, words[0].c_str(), &files, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) return 127;
  int status = 0;
  bool late = false, told = false;
  Stopwatch watch;
  for (double spent = 0; waitpid(child, &status, WNOHANG) == 0; spent += watch.lap()) {
    late = late || spent > most_seconds;
    if ((interrupted() || late) && !told) {
      kill(-child, SIGTERM);
      told = true;
    }
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
