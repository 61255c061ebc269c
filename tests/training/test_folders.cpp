// tests/training/test_folders.cpp: nothing is lost in the folder of a training, and nothing is left behind: what is
// written over, who may write, signals, full disks. The program is the real one, build/train_gpt; what train_drafter
// does with a folder is in tests/training/test_train_drafter.cpp.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <functional>
#include <map>

#include "commands/cli.h"
#include "files/folder.h"
#include "tests/command_line.h"
#include "tests/error_of.h"

using namespace nanospec;
namespace fs = std::filesystem;

namespace {

// What is in a folder: the bytes of each file; a folder ends with a slash.
using Found = std::map<std::string, std::string>;
Found found(const std::string& dir) {
  Found all;
  if (!fs::exists(dir)) return all;
  for (const auto& entry : fs::recursive_directory_iterator(dir)) {
    const std::string name = fs::relative(entry.path(), dir);
    if (entry.is_directory()) all[name + "/"];
    else all[name] = read_file(entry.path());
  }
  return all;
}
// By its names alone: another process may be writing there.
bool has_temporary(const std::string& dir) {
  std::error_code gone;
  for (fs::recursive_directory_iterator at(dir, gone), end; at != end && !gone; at.increment(gone))
    if (contains(at->path().filename(), kTemporary)) return true;
  return false;
}

bool until(const std::function<bool()>& holds) {
  for (int i = 0; i < 300000; i++, usleep(1000))  // five minutes: sanitizers on a busy machine
    if (holds()) return true;
  return false;
}

// A child of this process whose standard error goes to a file.
struct Child {
  Folder folder;
  pid_t pid;

  explicit Child(const std::function<void()>& work) : pid(fork()) {
    if (pid != 0) return;
    const int log = open(folder.file("log").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    dup2(log, STDERR_FILENO);
    for (int one : {SIGINT, SIGTERM, SIGHUP}) signal(one, SIG_DFL);  // the tests may run under nohup
    work();
    _exit(99);
  }
  ~Child() {
    if (running()) kill(pid, SIGKILL), wait();
  }
  bool running() {
    if (pid > 0 && waitpid(pid, &status_, WNOHANG) == pid) pid = 0;
    return pid > 0;
  }
  // Its exit status; 128 and the signal that ended it.
  int wait() {
    if (pid > 0) waitpid(pid, &status_, 0), pid = 0;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  }
  // Sends a signal, and waits until it has come: two of a kind that wait together are one.
  void send(int signal) {
    kill(pid, signal);
    const std::string path = "/proc/" + std::to_string(pid) + "/status";
    until([&] {
      const std::string text = fs::exists(path) ? read_file(path) : "";
      const size_t at = text.find("ShdPnd:\t");
      return at == std::string::npos || !(std::stoull(text.substr(at + 8, 16), nullptr, 16) >> (signal - 1) & 1);
    });
  }
  std::string said() const { return read_file(folder.file("log")); }

 private:
  int status_ = 0;
};

const std::string& text_file() {
  static const Folder folder;
  static const std::string path = [] {
    std::string text;
    for (int i = 0; i < 3000; i++) text += "the king and the queen of the land sing "[(i * 7 + i / 90) % 40];
    return folder.file("text", text);
  }();
  return path;
}

// train_gpt, on a small model; `before` is called in the child.
struct Train : Child {
  Train(
      const std::string& out, const Words& more, const std::function<void()>& before = [] {})
      : Child([&, data = text_file()] {  // which the parent makes, and removes
          Words words = {"build/train_gpt", "--data",    data, "--out",        out, "--preset",
                         "article",         "--threads", "1",  "--eval_iters", "1"};
          words.insert(words.end(), more.begin(), more.end());
          std::vector<char*> argv = arguments(words);
          argv.push_back(nullptr);
          before();
          execv(argv[0], argv.data());
        }) {}
};
// Runs it to its end.
int train(const std::string& out, const Words& more, std::string* said = nullptr) {
  Train training(out, more);
  const int status = training.wait();
  if (said) *said = training.said();
  return status;
}
const Words kForever = {"--max_iters", "1000000", "--eval_interval", "1", "--quiet"};  // nearly always in a save
Words forever(const Words& more) {
  Words words = kForever;
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------
// The means

TEST_CASE("folders: a lock is one process's, says whose it is, and takes along what it made and nobody filled") {
  const Folder folder;
  const std::string outer = folder.file("a"), path = outer + "/b/c";
  const std::string ours = " (process " + std::to_string(getpid()) + "): wait";
  const auto refused = [&] { return error_of([&] { LockedFolder(path, "wait").make(); }); };
  {
    LockedFolder one(path, "wait");
    CHECK(!fs::exists(outer));
    one.make();
    CHECK(fs::is_directory(path));
    CHECK(refused() == "another process writes into the folder: " + path + ours);
    CHECK(found(path).empty());  // the lock is no file
  }
  CHECK(!fs::exists(outer));
  {
    LockedFolder one(path + "/", "wait");
    one.make();
    write_file(path + "/file", "kept");
  }
  CHECK(found(outer) == Found{{"b/", ""}, {"b/c/", ""}, {"b/c/file", "kept"}});
  CHECK(refused() == "");
  CHECK(read_file(path + "/file") == "kept");

  // Of a process that was killed, the lock goes and what it left is removed; what is somebody's stays.
  Child child([&] {
    LockedFolder one(path, "wait");
    write_file(temporary_name(path + "/train.json"), "");
    write_file(temporary_name(path + "/train-12.safetensors"), "");
    create_folder(temporary_name(path + "/staged"));
    write_file(temporary_name(path + "/staged") + "/bigram.safetensors", "");
    write_file(temporary_name(temporary_name(path + "/staged") + "/ngram.safetensors"), "");
    write_file(path + "/ready", "");
    for (;;) pause();
  });
  const int pid = child.pid;
  REQUIRE(until([&] { return fs::exists(path + "/ready"); }));
  CHECK(refused() ==
        "another process writes into the folder: " + path + " (process " + std::to_string(pid) + "): wait");
  kill(pid, SIGKILL);
  CHECK(child.wait() == 128 + SIGKILL);
  CHECK(has_temporary(path));
  const std::string own = path + "/config.json" + kTemporary, ended = std::to_string(pid),
                    folder_of_own_name = path + "/model.safetensors" + kTemporary + ended + "/",
                    staged = path + "/staged" + kTemporary + "4194304";
  const std::vector<std::string> others = {
      own + std::to_string(getppid()), own + "1a",         own + "0", path + "/thesis" + kTemporary + ended,
      folder_of_own_name + "chapter",  staged + "/chapter"};
  for (const std::string& name : others) {
    fs::create_directories(fs::path(name).parent_path());
    write_file(name, "");
  }
  fs::create_symlink("file", path + "/compare.json" + kTemporary + ended);
  LockedFolder(path, "wait").make();
  CHECK(fs::is_symlink(path + "/compare.json" + kTemporary + ended));
  fs::remove(path + "/compare.json" + kTemporary + ended);
  for (const std::string& name : others) {
    CHECK(fs::exists(name));
    fs::remove(name);
  }
  fs::remove(folder_of_own_name.substr(0, folder_of_own_name.size() - 1)), fs::remove(staged);
  CHECK(!has_temporary(path));
  CHECK(read_file(path + "/file") == "kept");

  fs::create_symlink("nowhere", folder.file("dangling"));
  CHECK(holds(error_of([&] { LockedFolder(folder.file("dangling"), "").make(); }), "cannot create the folder: "));
  CHECK(holds(error_of([&] { LockedFolder(path + "/file", "").make(); }), "/file (Not a directory)"));
  CHECK(
      holds(error_of([&] { LockedFolder(folder.file("new/" + std::string(300, 'x')), "").make(); }), "(File name too"));
  CHECK(!fs::exists(folder.file("new")));
  CHECK(holds(error_of([&] { LockedFolder("/proc/nowhere", "").make(); }), "cannot create the folder: /proc/nowhere"));
}

TEST_CASE("folders: staged files come together, or are gone") {
  const Folder folder;
  write_file(folder.file("one"), "old");
  {
    const Staged staged(folder.path, {"/one", "/two"});
    write_file(staged.path + "/one", "new");
    CHECK(read_file(folder.file("one")) == "old");
  }
  CHECK(found(folder.path) == Found{{"one", "old"}});
  {
    Staged staged(folder.path, {"/one", "/two"});
    write_file(staged.path + "/one", "new");
    write_file(staged.path + "/two", "newer");
    staged.publish();
    CHECK(found(folder.path) == Found{{"one", "new"}, {"two", "newer"}});
    staged.publish();
  }
  CHECK(found(folder.path) == Found{{"one", "new"}, {"two", "newer"}});
}

TEST_CASE("folders: a second Ctrl-C leaves nothing unfinished, wherever it comes") {
  const Folder folder;
  const std::string path = folder.file("f"), old(1 << 20, 'o'), fresh(1 << 20, 'n');
  write_file(path, old);
  int during = 0;
  for (int round = 0; round < 20; round++) {
    Child child([&] {
      watch_interrupts("go on so");
      write_file(folder.file("ready"), "");
      for (;;) write_file(path, fresh), write_file(path, old);
    });
    REQUIRE(until([&] { return fs::exists(folder.file("ready")); }));
    child.send(SIGINT);
    CHECK(child.running());
    usleep(useconds_t(200 + 377 * round));
    during += has_temporary(folder.path);
    child.send(SIGINT);
    CHECK(child.wait() == 128 + SIGINT);
    CHECK(child.said() == "go on so\n");
    CHECK(!has_temporary(folder.path));
    const std::string left = read_file(path);
    CHECK((left == old || left == fresh));
    fs::remove(folder.file("ready"));
  }
  CHECK(during > 0);
}

// ---------------------------------------------------------------------------------------------------------------
// The program

TEST_CASE("folders: what train_gpt finds is written over only when that is asked for") {
  const Folder folder;
  const std::string out = folder.file("model"), other = folder.file("other");
  REQUIRE_MESSAGE(train(out, {"--max_iters", "3"}) == 0, "this test needs build/train_gpt");
  const Found first = found(out);
  CHECK(first.count("ngram.safetensors") == 1);
  std::string said;
  const auto refused = [&](const Words& more, int status) {
    const Found before = found(out);
    CHECK(train(out, more, &said) == status);
    CHECK(found(out) == before);
    return said;
  };
  const std::string anew = "start anew with --overwrite, or give another --out\n";
  CHECK(refused({}, 1) == "train_gpt: a training has written here: " + out +
                              " (model.safetensors, optimizer.safetensors): --resume goes on with it; " + anew);
  CHECK(refused({"--seed", "2", "--data", "/no/such"}, 1) == refused({}, 1));  // before the text is read
  CHECK(holds(refused({"--resume", "--overwrite"}, 2), "--resume goes on, --overwrite starts anew: "));

  CHECK(train(other, {"--max_iters", "3", "--seed", "2"}) == 0);
  CHECK(train(out, {"--max_iters", "3", "--seed", "2", "--overwrite"}) == 0);
  CHECK(found(out) == found(other));
  CHECK(found(out) != first);
  CHECK(train(out, {"--max_iters", "5", "--seed", "2", "--resume"}) == 0);
  CHECK(found(out) != found(other));

  fs::remove(out + "/optimizer.safetensors");
  CHECK(refused({}, 1) == "train_gpt: a training has written here: " + out + " (model.safetensors): " + anew);
  CHECK(refused({"--resume"}, 1) == "train_gpt: there is no run to resume: " + out + "/optimizer.safetensors: " + anew);
  fs::remove_all(out);
  CHECK(train(out, {"--resume"}, &said) == 1);
  CHECK(holds(said, "there is no run to resume: " + out + "/optimizer.safetensors: leave out --resume\n"));
  CHECK(!fs::exists(out));

  // The state is written before the weights: no kill leaves weights that nothing goes on from.
  fs::create_directories(out + "/model.safetensors/in/the/way");
  CHECK(train(out, {"--max_iters", "3", "--overwrite"}) == 1);
  CHECK(fs::exists(out + "/optimizer.safetensors"));
  CHECK(!has_temporary(out));
}

TEST_CASE("folders: where train_gpt refuses or fails, nothing is left and all is as it was") {
  const Folder folder;
  const auto limit = [](rlim_t bytes) {
    return [bytes] {
      const rlimit small = {bytes, bytes};
      setrlimit(RLIMIT_FSIZE, &small);
    };
  };
  const std::string fresh = folder.file("a/b");
  const auto nothing_left = [&](Words more) {
    std::string said;
    more.push_back("--quiet");
    const int status = train(fresh, more, &said);
    CHECK((status == 1 || status == 2));
    CHECK(std::count(said.begin(), said.end(), '\n') == 1);
    CHECK(found(folder.path).empty());
  };
  nothing_left({"--data", "/no/such"});
  nothing_left({"--batch_size", "1000000"});
  nothing_left({"--n_layer", "1000", "--n_embd", "4096"});
  nothing_left({"--stats", "x", "--n_head", "3"});
  nothing_left({"--resume"});

  // A file that grows too large is an error as on a full disk, first in the tables, then in the state.
  for (rlim_t bytes : {1000, 200000}) {
    CAPTURE(bytes);
    Train training(fresh, {"--max_iters", "3", "--quiet"}, limit(bytes));
    CHECK(training.wait() == 1);
    CHECK(holds(training.said(), "train_gpt: cannot write the file: " + fresh));
    CHECK(holds(training.said(), " (File too large): make room for files of this size (ulimit -f)\n"));
    CHECK(found(folder.path).empty());
  }
  CHECK(train(fresh, {"--max_iters", "3"}) == 0);
  const Found before = found(fresh);
  for (const char* flag : {"--resume", "--overwrite"}) {
    Train training(fresh, {"--max_iters", "5", "--seed", flag[2] == 'r' ? "1337" : "4", flag}, limit(200000));
    CHECK(training.wait() == 1);
    CHECK(found(fresh) == before);
  }
}

TEST_CASE("folders: of two trainings in one folder the second is refused, until the first is gone") {
  const Folder folder;
  const std::string out = folder.file("model");
  Train first(out, kForever);
  REQUIRE(until([&] { return fs::exists(out + "/model.safetensors"); }));
  for (const char* flag : {"--resume", "--overwrite", "--quiet"}) {
    std::string said;
    CHECK(train(out, {flag}, &said) == 1);
    CHECK(said == "train_gpt: another process writes into the folder: " + out + " (process " +
                      std::to_string(first.pid) + "): wait for its end, or give another --out\n");
  }
  CHECK(first.running());
  kill(first.pid, SIGKILL);
  first.wait();
  CHECK(train(out, {"--max_iters", "1", "--resume"}) == 0);
  CHECK(!has_temporary(out));

  for (int round = 0; round < 3; round++) {  // at once, where nothing is yet
    const std::string fresh = folder.file("fresh" + std::to_string(round));
    Train one(fresh, kForever), two(fresh, kForever);
    REQUIRE(until([&] { return one.running() != two.running(); }));
    Train& left = one.running() ? one : two;
    CHECK((one.running() ? two : one).wait() == 1);
    CHECK(until([&] { return fs::exists(fresh + "/model.safetensors"); }));
    CHECK(left.running());
  }
}

TEST_CASE("folders: Ctrl-C, TERM and HUP lead to a checkpoint that goes on as if nothing had been") {
  const Folder folder;
  const Words pace = {"--lr_decay_iters", "30", "--warmup_iters", "0", "--quiet"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), pace.begin(), pace.end());
    return more;
  };
  const std::string whole = folder.file("whole");
  REQUIRE(train(whole, with({"--max_iters", "30"})) == 0);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    CAPTURE(signal);
    const std::string out = folder.file(std::to_string(signal));
    Train training(out, with({"--max_iters", "1000000", "--eval_interval", "2"}));
    REQUIRE(until([&] { return fs::exists(out + "/model.safetensors"); }));
    training.send(signal);
    if (signal == SIGHUP) kill(training.pid, SIGHUP), kill(training.pid, SIGHUP);  // a terminal that closes
    CHECK(training.wait() == kInterruptedStatus);
    REQUIRE(training.said().find("train_gpt: stopped after iteration ") == 0);
    CHECK(holds(training.said(), ": " + out + ": go on with --resume\n"));
    CHECK(!has_temporary(out));
    if (std::atoi(training.said().c_str() + std::string("train_gpt: stopped after iteration ").size()) < 30) {
      CHECK(train(out, with({"--max_iters", "30", "--resume"})) == 0);
      CHECK(found(out) == found(whole));
    }
  }
  // Under nohup HUP is nothing.
  const std::string out = folder.file("nohup");
  Train training(out, kForever, [] { signal(SIGHUP, SIG_IGN); });
  REQUIRE(until([&] { return fs::exists(out + "/model.safetensors"); }));
  training.send(SIGHUP);
  usleep(300000);
  CHECK(training.running());
}

TEST_CASE("folders: train_gpt that is stopped at once leaves the last checkpoint, or nothing") {
  const Folder folder;
  const std::string out = folder.file("a/model");
  const std::string line =
      "train_gpt: stopped at once: " + out + ": --resume goes on from the last checkpoint, if any\n";
  // Before the first checkpoint, in an update of some 100 ms: where the second came too late, again.
  const auto stopped = [&](const Words& more) {
    for (int attempt = 0; attempt < 5; attempt++) {
      Words words = {"--batch_size", "600", "--quiet"};
      words.insert(words.end(), more.begin(), more.end());
      Train training(out, words);
      CHECK(until([&] { return has_temporary(out); }));  // the tables are staged
      usleep(300000);
      training.send(SIGINT), training.send(SIGINT);
      if (training.wait() == 128 + SIGINT) return training.said();
      fs::remove_all(folder.file("a"));
    }
    return std::string("never in time");
  };
  CHECK(stopped({}) == line);
  CHECK(found(folder.path).empty());

  // In an evaluation without end; and anywhere in updates and saves.
  {
    Train training(out, {"--eval_interval", "1", "--eval_iters", "1000000"});
    REQUIRE(until([&] { return fs::exists(out + "/model.safetensors"); }));
    usleep(50000);
    training.send(SIGTERM);
    CHECK(training.running());
    training.send(SIGTERM);
    CHECK(training.wait() == 128 + SIGTERM);
    CHECK(holds(training.said(), line));
    CHECK(!has_temporary(out));
  }
  for (int round = 0; round < 5; round++) {
    Train training(out, forever({"--resume"}));
    const std::string state = out + "/optimizer.safetensors", before = read_file(state);
    REQUIRE(until([&] { return read_file(state) != before; }));
    usleep(useconds_t(1000 + 1777 * round));
    training.send(SIGINT), training.send(SIGINT);
    const int status = training.wait();
    CHECK((status == 128 + SIGINT || status == kInterruptedStatus));
    CHECK(!has_temporary(out));
  }
  CHECK(train(out, {"--max_iters", "1", "--resume"}) == 0);

  // A first Ctrl-C before there is anything to save: --overwrite has written over nothing.
  const Found before = found(out);
  Train training(out, {"--batch_size", "600", "--overwrite", "--quiet"});
  REQUIRE(until([&] { return has_temporary(out); }));
  training.send(SIGINT);
  CHECK(training.wait() == kInterruptedStatus);
  CHECK(!holds(training.said(), "after iteration 0"));
  if (training.said() == "train_gpt: stopped before the first update: no checkpoint: give the same command again\n")
    CHECK(found(out) == before);
}
