// tests/commands/test_chat.cpp: nanospec chat, and generate on models with a chat template and an end-of-text token,
// over the engine that stands in; at the end the program itself, with a tiny model and with a real one.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "commands/calibration.h"
#include "commands/commands.h"
#include "commands/conversation.h"
#include "files/gguf_model.h"
#include "study/study.h"
#include "tests/command_line.h"
#include "tests/commands/small.h"
#include "tests/commands/stand_in.h"
#include "watch/decoding.h"

using namespace nanospec;

namespace {

// While it lives, the engine has a chat template and answers with these texts, one after the other.
struct Answers {
  const StandInEngine before = stand_in();
  explicit Answers(std::vector<std::string> texts) {
    stand_in().calls.clear();
    stand_in().tokenizer = small();
    stand_in().tokenizer.chat_template = "'<|im_start|>system\nYou help.<|im_end|>'";
    stand_in().script = [texts, next = size_t(0)](const Method&, int most) mutable {
      Generated generated;
      generated.tokens = tokens_of(texts[next++ % texts.size()]);
      if (int(generated.tokens.size()) > most) generated.tokens.resize(size_t(most));
      generated.stats.tokens = generated.stats.target_forwards = int64_t(generated.tokens.size());
      generated.stats.seconds = 0.5;
      return generated;
    };
  }
  ~Answers() { stand_in() = before; }
};
std::string prompt_of(size_t call) { return small().decode(stand_in().calls.at(call).prompt); }

struct Said {
  std::string out, error;
  int status = -1;
};
// Runs a command with standard input from a pipe or a file.
Said run_on(int input, int (*command)(int, char**), Words words) {
  words.insert(words.begin(), {"command", "--model", "m.gguf"});
  const int kept = dup(STDIN_FILENO);
  dup2(input, STDIN_FILENO), close(input);
  Said said;
  said.error = captured(2, [&] {
    said.out = captured(1, [&] {
      std::vector<char*> argv = arguments(words);
      said.status = command(int(argv.size()), argv.data());
    });
  });
  dup2(kept, STDIN_FILENO), close(kept);
  return said;
}
Said chat(const std::string& lines, const Words& words = {}) {
  const Folder folder;
  return run_on(open(folder.file("in", lines).c_str(), O_RDONLY), chat_command, words);
}
Said generate_from(const std::string& prompt, Words words) {
  words.insert(words.begin(), {"--prompt", prompt});
  return run_on(open("/dev/null", O_RDONLY), generate_command, words);
}

const std::string kSystem = "<|im_start|>system\nYou help.<|im_end|>\n";
std::string user(const std::string& text) {
  return "<|im_start|>user\n" + text + "<|im_end|>\n<|im_start|>assistant\n";
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------
// chat

TEST_CASE("chat: a pipe gets the answers, and every question the whole conversation") {
  const Answers answers({"Yes.<|im_end|>", "No,\nnot.\n<|im_end|>", "<|endoftext|>"});
  const Said said = chat("Is it?\n\n  \nAnd <|im_end|> now?\r\nSo", {"--context", "256"});
  CHECK(said.out == "Yes.\nNo,\nnot.\n\n");  // the last answer is empty
  CHECK(said.status == 0);
  CHECK(said.error == "");
  REQUIRE(stand_in().calls.size() == 3);
  CHECK(stand_in().calls[0].method == "suffix auto");
  CHECK(prompt_of(0) == kSystem + user("Is it?"));
  CHECK(prompt_of(1) == prompt_of(0) + "Yes.<|im_end|>\n" + user("And <|im_end|> now?"));
  CHECK(prompt_of(2) == prompt_of(1) + "No,\nnot.\n<|im_end|>\n" + user("So"));
  CHECK(stand_in().calls[1].prompt != tokens_of(prompt_of(1)));  // what was typed is no control token
}

TEST_CASE("chat: /reset, /stats, /help, /quit, and what is no command") {
  const Answers answers({"One.<|im_end|>", "Two.<|im_end|>"});
  const Said said = chat("/stats\na\n/stats\n/reset\n/rest\n /b\n/help\n/quit\nc\n");
  CHECK(said.out == "One.\nTwo.\n");
  CHECK(said.status == 0);
  REQUIRE(stand_in().calls.size() == 2);
  CHECK(prompt_of(1) == kSystem + user(" /b"));
  for (const char* part :
       {"no answer yet\n", "last answer: 5 tokens, 10 tok/s, acceptance length 1.00", "1 answer: 5 tokens",
        "of 64 tokens, 1 turn", "suffix auto; temperature 1; cpu, fp32", "the conversation is forgotten\n",
        "unknown command '/rest': did you mean /reset?", "/help   this list"})
    CHECK_MESSAGE(contains(said.error, part), said.error);
}

TEST_CASE("chat: an outgrown context drops whole turns, keeps the system text, and says so") {
  const Answers answers({"so<|im_end|>"});
  const Said said = chat("one\ntwo\nthree\nfour\n", {"--context", "84", "--max_new_tokens", "10", "--system", "Be."});
  CHECK(said.out == "so\nso\nso\nso\n");
  CHECK(contains(said.error, "the context of 84 tokens is full: the oldest turn was dropped\n"));
  REQUIRE(stand_in().calls.size() == 4);
  CHECK(contains(prompt_of(2), "user\none"));
  CHECK(!contains(prompt_of(3), "user\none"));
  for (size_t i = 0; i < 4; i++) {
    CHECK(prompt_of(i).rfind("<|im_start|>system\nBe.<|im_end|>\n", 0) == 0);
    CHECK(int(stand_in().calls[i].prompt.size()) + stand_in().calls[i].max_new_tokens <= 84);
  }
  const std::string longer(300, 'x');
  const Said refused = chat(longer + "\nshort\n", {"--context", "60"});
  CHECK(refused.out == "so\n");
  CHECK(refused.status == 1);  // an answer is missing
  CHECK(said.status == 0);
  CHECK(contains(refused.error, "leaves no room for an answer: the context has 60: ask a shorter one"));
  CHECK(!contains(prompt_of(4), "xxx"));
}

TEST_CASE("chat: an answer has at most --max_new_tokens, and at most what the context holds") {
  const Answers answers({"no end of it at all, not in a hundred years"});
  const Said said = chat("a\n", {"--max_new_tokens", "3"});
  CHECK(stand_in().calls[0].max_new_tokens == 3);
  CHECK(contains(said.error, "the answer was cut after 3 tokens"));
  CHECK(chat("a\n", {"--max_new_tokens", "3", "--quiet"}).error == "");
  chat("a\n", {"--context", "40"});
  CHECK(stand_in().calls.back().max_new_tokens == 40 - int(stand_in().calls.back().prompt.size()));
}

TEST_CASE("chat: without a template it continues lines, and says so") {
  const Answers answers({"and so on<|endoftext|>"});
  stand_in().tokenizer.chat_template = "{{ '[INST]' }}";
  const Said said = chat("Once\n", {"--system", "A tale."});
  CHECK(said.out == "and so on\n");
  CHECK(prompt_of(0) == "A tale.\nOnce\n");
  CHECK(contains(said.error, "note: its chat template is not known: m.gguf: "));
  stand_in().tokenizer = {};
  stand_in().tokenizer.symbols = {"\n", "a"};
  stand_in().script = [](const Method&, int) {
    Generated generated;
    generated.tokens = {1, 1};
    return generated;
  };
  const Said few = chat("ab\naa\n");
  CHECK(few.out == "aa\n");  // the chat goes on
  CHECK(few.status == 1);
  CHECK(contains(few.error, "character 'b' (U+0062) is not in the vocabulary"));
}

TEST_CASE("chat: half a character waits for the rest, and is left out at the end") {
  const Answers answers({""});
  const std::vector<int> bytes = tokens_of("\xC3\xA9");
  REQUIRE(bytes.size() == 2);  // a token for each byte
  stand_in().script = [bytes](const Method&, int) {
    Generated generated;
    generated.tokens = {bytes[0], bytes[1], bytes[0]};
    return generated;
  };
  CHECK(chat("a\n").out == "\xC3\xA9\n");
}

TEST_CASE("chat: Ctrl-C stops an answer, at the prompt it leaves") {
  const Answers answers({"One two three.<|im_end|>", "More.<|im_end|>"});
  const auto script = stand_in().script;
  bool stop = true;  // the first answer
  stand_in().script = [&](const Method& method, int most) {
    if (std::exchange(stop, false)) raise(SIGINT);
    return script(method, most);
  };
  const Said stopped = chat("a\nb\n");
  CHECK(stopped.out == "O\nMore.\n");  // "O" is a token
  CHECK(contains(stopped.error, "stopped\n"));
  CHECK(stopped.status == 0);

  int ends[2];
  REQUIRE(pipe(ends) == 0);
  REQUIRE(write(ends[1], "a\nb", 3) == 3);  // the second line never ends
  const pthread_t here = pthread_self();
  std::thread presses([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    pthread_kill(here, SIGINT);
  });
  const Said left = run_on(ends[0], chat_command, {});
  presses.join();
  close(ends[1]);
  CHECK(left.out == "One two three.\n");
  CHECK(left.status == 0);
}

// What a terminal shows while somebody types: at each mark the next of these; kCtrlC is a signal. Who waits for a mark
// for ten seconds leaves.
const std::string kCtrlC = "\x03", kCtrlD = "\x04", kUp = "\x1b[A", kLeft = "\x1b[D";
struct Terminal {
  std::string shown;
  int status = -1;
  bool as_before = false;  // the terminal's settings
  explicit Terminal(std::vector<std::string> typed) {
    setenv("TERM", "xterm", 1);
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    REQUIRE(terminal >= 0);
    REQUIRE(grantpt(terminal) == 0);
    REQUIRE(unlockpt(terminal) == 0);
    const int side = open(ptsname(terminal), O_RDWR | O_NOCTTY), in = dup(0), out = dup(1), error = dup(2);
    termios before, after;
    tcgetattr(side, &before);
    std::thread person([&, here = pthread_self()] { type(terminal, typed, here); });
    fflush(stdout), fflush(stderr);
    for (int handle : {0, 1, 2}) dup2(side, handle);
    Words words = {"chat", "--model", "m.gguf", "--context", "512"};
    std::vector<char*> argv = arguments(words);
    status = chat_command(int(argv.size()), argv.data());
    fflush(stdout), fflush(stderr);
    dup2(in, 0), dup2(out, 1), dup2(error, 2);
    tcgetattr(side, &after);
    as_before = before.c_lflag == after.c_lflag && before.c_iflag == after.c_iflag;
    for (int handle : {side, in, out, error}) close(handle);
    person.join();
    close(terminal);
  }

 private:
  void type(int terminal, const std::vector<std::string>& typed, pthread_t chat) {
    size_t next = 0, seen = 0;
    char bytes[4096];
    for (pollfd output = {terminal, POLLIN, 0};;) {
      if (poll(&output, 1, 10000) <= 0) pthread_kill(chat, SIGINT);
      const ssize_t n = read(terminal, bytes, sizeof bytes);
      if (n <= 0) return;  // it has left
      shown.append(bytes, size_t(n));
      if (next == typed.size() || shown.size() == seen || shown.substr(shown.size() - 2) != "> ") continue;
      seen = shown.size();
      const std::string& keys = typed[next++];
      if (keys == kCtrlC) pthread_kill(chat, SIGINT);
      else CHECK(write(terminal, keys.data(), keys.size()) == ssize_t(keys.size()));
    }
  }
};

TEST_CASE("terminal: a terminal shows what it talks with, a mark, what is typed, and dim notes") {
  const Answers answers({"Yes.<|im_end|>"});
  const Terminal terminal({"Is it?\r", "/quit\r"});
  CHECK_MESSAGE(contains(terminal.shown, "m.gguf: fp32, context 512 tokens, temperature 1; drafter suffix auto\r\n"),
                terminal.shown);
  CHECK(contains(terminal.shown, "Ctrl-D or /quit leaves, /help lists the commands\x1b[0m\r\n"));
  CHECK_MESSAGE(contains(terminal.shown, "> Is it?\r\nYes.\r\n\x1b[2m4 tokens, 8 tok/s"), terminal.shown);
  CHECK_MESSAGE(contains(terminal.shown, "> /quit\r\n"), terminal.shown);
  CHECK(terminal.as_before);
}

TEST_CASE("terminal: a terminal's arrow keys give earlier lines, and edit; Ctrl-D and Ctrl-C leave") {
  const Answers answers({"Yes.<|im_end|>", "No.<|im_end|>"});
  const std::string where = "O\xC3\xB9 est-ce?";
  const Terminal terminal({where + "\r", "/help\r", kUp + kUp + "\r", "Iz" + kLeft + kCtrlD + "s\r", kCtrlD});
  REQUIRE(stand_in().calls.size() == 3);
  CHECK(prompt_of(0) == kSystem + user(where));
  CHECK(prompt_of(1) == prompt_of(0) + "Yes.<|im_end|>\n" + user(where));
  CHECK(prompt_of(2) == prompt_of(1) + "No.<|im_end|>\n" + user("Is"));
  CHECK(terminal.status == 0);
  CHECK(terminal.as_before);
  const Terminal left_by_signal({kCtrlC});
  CHECK(stand_in().calls.size() == 3);
  CHECK(left_by_signal.status == 0);
  CHECK(left_by_signal.as_before);
  for (const Terminal* one : {&terminal, &left_by_signal}) CHECK(one->shown.substr(one->shown.size() - 2) == "\r\n");
}

// ---------------------------------------------------------------------------------------------------------------
// generate

TEST_CASE("chat: generate ends at the end of text, or goes on with --ignore_eos") {
  const Answers answers({" so.<|im_end|> And"});
  const Folder folder;
  const std::string stats = folder.file("s.json");
  const auto ended_by = [&] { return Json::parse(read_file(stats))["ended_by"].get<std::string>(); };
  CHECK(generate_from("Is it", {"--stats", stats}).out == "Is it so.");
  CHECK(ended_by() == "end of text");
  CHECK(stand_in().calls[0].method == "suffix auto");
  CHECK(stand_in().calls[0].prompt == small().encode("Is it"));
  CHECK(generate_from("Is it", {"--stream"}).out == "Is it so.");
  CHECK(generate_from("Is it", {"--ignore_eos", "--stats", stats}).out == "Is it so.<|im_end|> And");
  CHECK(ended_by() == "length");
  CHECK(generate_from("a <|im_end|>", {}).out == "a <|im_end|> so.");
  CHECK(stand_in().calls.back().prompt == small().bpe->encode("a <|im_end|>", Control::plain));
}

TEST_CASE("chat: the token that a model wants before every text stands before prompts and conversations") {
  const Answers answers({"Yes.<|im_end|>"});
  const Tokens text = small().encode("Is it");
  stand_in().tokenizer.begin = 7;
  generate_from("Is it", {});
  generate_from("Is it", {"--chat"});
  stand_in().tokenizer.begin = -1;
  generate_from("Is it", {"--chat"});
  std::vector<Tokens> prompts;
  for (const auto& call : stand_in().calls) prompts.push_back(call.prompt);
  REQUIRE(prompts.size() == 3);
  CHECK(prompts[0].front() == 7);
  CHECK(Tokens(prompts[0].begin() + 1, prompts[0].end()) == text);
  CHECK(prompts[1].front() == 7);
  CHECK(Tokens(prompts[1].begin() + 1, prompts[1].end()) == prompts[2]);
}

TEST_CASE("chat: generate stops before a text, across tokens, streaming or not") {
  const Answers answers({"one, two, three<|im_end|>"});
  REQUIRE(tokens_of(", tw").size() > 1);
  const Folder folder;
  for (const bool stream : {false, true}) {
    const auto out = [&](Words words) {
      if (stream) words.push_back("--stream");
      return generate_from("two ", words).out;
    };
    CHECK(out({"--stop", ", tw"}) == "two one");  // the prompt is not searched
    CHECK(out({"--stop", "three!"}) == "two one, two, three");
    CHECK(out({"--stop", "three", "--stop", "wo"}) == "two one, t");
    CHECK(out({"--stop", "four", "--stop", "five"}) == "two one, two, three");
  }
  generate_from("a", {"--stop", "two", "--stats", folder.file("s.json")});
  CHECK(Json::parse(read_file(folder.file("s.json")))["ended_by"] == "stop");
  CHECK(contains(BAD_COMMAND_LINE(generate_from("a", {"--stop", ""})), "an empty text: --stop"));
  CHECK(contains(BAD_COMMAND_LINE(generate_from("a", {"--stop"})), "a value is missing: --stop"));
  CHECK(contains(BAD_COMMAND_LINE(generate_from("a", {"--stop", "--quiet"})), "a value is missing: --stop"));
}

TEST_CASE("chat: generate --chat asks by the template") {
  const Answers answers({"Yes.<|im_end|>"});
  CHECK(generate_from("Is it?", {"--chat"}).out == "Is it?\nYes.");
  CHECK(prompt_of(0) == kSystem + user("Is it?"));
  generate_from("Is it?", {"--chat", "--system", ""});
  CHECK(prompt_of(1) == user("Is it?"));
  CHECK(contains(BAD_COMMAND_LINE(generate_from("a", {"--system", "b"})), "--system is part of a chat"));
  CHECK(contains(BAD_COMMAND_LINE(generate_from("a", {"--context", "33"})), "'33' is odd: --context"));
}

TEST_CASE("chat: compare ends every text at the end of text, and takes --context") {
  const Answers answers({""});
  stand_in().script = [](const Method& method, int) {  // all that differs stands behind the end
    Generated generated;
    generated.tokens = tokens_of(method.drafter == "none" ? "so.<|im_end|> And" : "so.<|im_end|> Or");
    generated.stats.tokens = generated.stats.target_forwards = 3;
    generated.stats.seconds = 0.5;
    return generated;
  };
  const auto compared = [](Words words) {
    words.insert(words.begin(), {"--prompt", "Is it", "--methods", "none; suffix", "--repeat", "1", "--context", "32"});
    return run_on(open("/dev/null", O_RDONLY), compare_command, words);
  };
  const Said said = compared({});
  CHECK(said.status == 0);
  CHECK_MESSAGE(contains(said.out, "block 32;"), said.out);
  CHECK_MESSAGE(contains(said.out, "exact method prints plain decoding's bytes"), said.out);
  CHECK(contains(line_of<std::runtime_error>([&] { compared({"--ignore_eos"}); }), "the text is not plain decoding's"));
}

TEST_CASE("chat: diagnose and show end at the end of text, or go on with --ignore_eos, and take --context") {
  const Answers answers({""});
  stand_in().decodes = true;  // by a mock, whose 128 tokens are the first of the vocabulary; 0 and 2 end a text
  const Folder folder;
  const std::string json = folder.file("d.json"), page = folder.file("p.html");
  const auto run = [&](int (*command)(int, char**), Words words) {
    words.insert(words.begin(), {"--prompt", "a", "--temperature", "1", "--max_new_tokens", "300", "--context", "48",
                                 "--shape", "chain:3"});
    return run_on(open("/dev/null", O_RDONLY), command, words).out;
  };
  const auto diagnosed = [&](const Words& more) {
    Words words = {"--json", json};
    words.insert(words.end(), more.begin(), more.end());
    CHECK(contains(run(diagnose_command, words), "block 48;"));
    return Json::parse(read_file(json))["tokens"].get<int>();
  };
  const int tokens = diagnosed({});
  CHECK(tokens > 1);
  CHECK(tokens < 300);
  CHECK(diagnosed({"--ignore_eos"}) == 300);
  CHECK(contains(run(show_command, {"--html", page}), ", " + count(tokens, "token") + ", where the text ends; open"));
  CHECK(contains(read_file(page), "\"block_size\":48"));
  CHECK(contains(read_file(page), "', which ends the text\""));
  CHECK(contains(run(show_command, {"--html", page, "--ignore_eos"}), ", 300 tokens; open"));
  CHECK(!contains(read_file(page), "which ends the text"));
}

TEST_CASE("chat: calibrate looks at places before the end of text, or goes on with --ignore_eos") {
  const Answers answers({""});
  stand_in().decodes = true;
  const Folder folder;
  const std::string file = folder.file("c.json");
  const auto places = [&](Words words) {
    words.insert(words.begin(), {"--prompt", "a", "--drafter", "bigram", "--temperature", "1", "--places", "300",
                                 "--depths", "3", "--context", "48", "--out", file});
    CHECK(run_on(open("/dev/null", O_RDONLY), calibrate_command, words).status == 0);
    return read_calibrations(file).at(0).places;
  };
  const int64_t before_the_end = places({});
  CHECK(before_the_end > 0);
  CHECK(before_the_end < 150);
  CHECK(places({"--ignore_eos"}) > 200);
}

TEST_CASE("chat: the context is the model's own, up to 4,096 tokens, or what is asked for within it") {
  Config header;
  header.block_size = 8192;
  CHECK(context_of(header, 0, "m.gguf") == 4096);
  CHECK(context_of(header, 8192, "m.gguf") == 8192);
  CHECK(context_of(header, 2, "m.gguf") == 2);
  const std::string line = line_of<std::runtime_error>([&] { context_of(header, 8194, "m.gguf"); });
  CHECK(line == "a context of 8194 tokens is more than the model's own 8192: m.gguf: give at most that to --context");
  header.block_size = 512;
  CHECK(context_of(header, 0, "m.gguf") == 512);
}

TEST_CASE("chat: drafters that need more than a GGUF file are refused by name") {
  const Answers answers({"a"});
  for (const char* drafter : {"bigram", "suffix+bigram"}) {
    const std::string line = line_of<std::runtime_error>([&] { generate_from("a", {"--drafter", drafter}); });
    CHECK_MESSAGE(contains(line, "which a GGUF file does not have: m.gguf: use --drafter suffix"), line);
  }
  const std::string methods = "none; suffix auto; bigram chain:4";  // refused before the first method runs
  CHECK(contains(line_of<std::runtime_error>([&] {
                   run_on(open("/dev/null", O_RDONLY), compare_command, {"--prompt", "a", "--methods", methods});
                 }),
                 "drafter bigram needs bigrams"));
  CHECK(stand_in().calls.empty());
  CHECK(generate_from("a", {"--drafter", "suffix+recycle"}).out == "aa");
  CHECK(generate_from("a", {"--drafter", "none"}).out == "aa");
}

// ---------------------------------------------------------------------------------------------------------------
// A tiny model, and the program itself: one process, whose cache lives from question to question

namespace {

constexpr int kAnswer = 12;  // most tokens of an answer of the tiny model

// The five answers of the tiny model (tests/reference/tiny_llama.py).
std::string program_answers(const std::string& questions, const std::string& flags) {
  const Folder folder;
  const std::string in = folder.file("in", questions), out = folder.file("out");
  const std::string command = "build/nanospec chat --quiet --model tests/files/llama_grouped.gguf --max_new_tokens " +
                              std::to_string(kAnswer) + " " + flags + " <" + in + " >" + out;
  REQUIRE_MESSAGE(std::system(command.c_str()) == 0, "this test needs build/nanospec: " << command);
  return read_file(out);
}

// What a fresh target says to one long prompt, put together here by hand: ChatML's text, where the answers are the
// tokens that were chosen. `room`: tokens that a prompt may have; the oldest turns are dropped until it has no more.
struct LongPrompts {
  std::vector<std::string> questions;
  float temperature;
  int context, room;
  int dropped = 0;

  std::string answers() {
    Loaded loaded = load_gguf(read_gguf("tests/files/llama_grouped.gguf"), context);
    std::vector<std::vector<int>> turns;
    std::string all;
    for (const std::string& question : questions) {
      turns.push_back(tokens_of(user(question)));
      while (int(prompt(turns).size()) > room) turns.erase(turns.begin()), dropped++;
      const std::string text = small().decode(prompt(turns));
      CHECK(text.rfind(kSystem + "<|im_start|>user\n", 0) == 0);
      CHECK(text.substr(text.size() - user(question).size()) == user(question));

      Target target(loaded.config, loaded.tensors, Dtype::as_stored, false, 1, 65);
      Decoding decoding;
      decoding.sampling.temperature = temperature;
      decoding.sampling.seed = 7;
      decoding.max_new_tokens = kAnswer;
      std::vector<int> tokens = prompt(turns);
      const long begin = long(tokens.size());
      generate(target, nullptr, decoding, tokens, [](int token) { return token != 0 && token != 2; });
      const bool ended = tokens.back() == 0 || tokens.back() == 2;
      if (ended) tokens.pop_back();
      turns.back().insert(turns.back().end(), tokens.begin() + begin, tokens.end());
      for (int token : tokens_of("<|im_end|>\n")) turns.back().push_back(token);
      const std::string said = whole_characters({tokens.begin() + begin, tokens.end()});
      all += said + (said.empty() || said.back() != '\n' ? "\n" : "");
    }
    return all;
  }

 private:
  static std::vector<int> prompt(const std::vector<std::vector<int>>& turns) {
    std::vector<int> tokens = tokens_of(kSystem);
    for (const std::vector<int>& turn : turns) tokens.insert(tokens.end(), turn.begin(), turn.end());
    return tokens;
  }
  static std::string whole_characters(const std::vector<int>& tokens) {
    Utf8Stream stream;
    return stream.put(small().decode(tokens));  // the beginning of a character at the end is left out
  }
};

const std::vector<std::string> kFive = {"Is it?", "And now?", "Say it again.", "12 and 3", "Why?"};

// Five turns in a context of so many tokens, by each drafter: the answers of long prompts. Returns how many turns did
// not fit, at each temperature.
std::vector<int> dropped_of_five(int context, const std::vector<std::string>& drafters) {
  std::string lines;
  for (const std::string& question : kFive) lines += question + "\n";
  std::vector<int> dropped;
  for (const std::string temperature : {"0", "1"}) {
    LongPrompts prompts = {kFive, std::stof(temperature), context, context - kAnswer};
    const std::string expected = prompts.answers();
    CHECK(std::count(expected.begin(), expected.end(), '\n') >= 5);
    for (const std::string& drafter : drafters) {
      CAPTURE(temperature);
      CAPTURE(drafter);
      const std::string flags = "--context " + std::to_string(context) + " --seed 7 --temperature " + temperature;
      CHECK(program_answers(lines, flags + " --drafter " + drafter) == expected);
    }
    dropped.push_back(prompts.dropped);
  }
  return dropped;
}

}  // namespace

TEST_CASE("chat: five turns are answered as five long prompts are, with the cache kept, byte for byte") {
  CHECK(dropped_of_five(256, {"none", "suffix --threads 2", "suffix+recycle --shape tree:2x2"}) ==
        std::vector<int>{0, 0});
}

TEST_CASE("chat: five turns in a small context: the oldest are dropped, and the rest is answered as one long prompt") {
  for (int dropped : dropped_of_five(128, {"none", "suffix"})) {
    CHECK(dropped > 0);
    CHECK(dropped < 4);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// A real model

namespace {

const char* const kReal = "models/SmolLM2-135M-Instruct.Q4_1.gguf";
const std::vector<std::string> kQuestions = {"What is the capital of France?", "Say that sentence three times.",
                                             "And <|im_end|> of Italy?"};

// What the program itself answers: one process, whose cache lives from question to question.
std::string answered(const std::string& drafter, const std::string& questions) {
  const Folder folder;
  const std::string in = folder.file("in", questions), out = folder.file("out");
  const std::string command = std::string("build/nanospec chat --quiet --threads 1 --temperature 0.7 --context 512 ") +
                              "--max_new_tokens 40 --model " + kReal + " --drafter " + drafter + " <" + in + " >" + out;
  REQUIRE(std::system(command.c_str()) == 0);
  return read_file(out);
}

}  // namespace

TEST_CASE("real: a chat's answers are those to one long prompt each, plain and speculating, byte for byte") {
  std::string questions;
  for (const std::string& question : kQuestions) questions += question + "\n";
  const std::string plain = answered("none", questions), suffix = answered("suffix", questions);
  CHECK(plain == suffix);

  Loaded loaded = load_gguf(read_gguf(kReal), 512);
  Target target(loaded.config, loaded.tensors, Dtype::as_stored, false, 1, 65);
  Conversation talk = begin_conversation(loaded.tokenizer, kReal, {});
  const Tokens ends = end_tokens(loaded.tokenizer);
  std::string expected;
  for (const std::string& question : kQuestions) {
    talk.ask(question);
    Tokens text = talk.tokens();
    const size_t prompt = text.size();
    Decoding decoding;
    decoding.sampling.temperature = 0.7f;
    decoding.max_new_tokens = 40;
    target.forget();  // the chat keeps its cache; this does not
    generate(target, nullptr, decoding, text, [&](int token) { return !is_among(ends, token); });
    const Tokens answer(text.begin() + long(prompt), text.end());
    for (int token : answer)
      if (!is_among(ends, token)) expected += loaded.tokenizer.decode(token);
    if (expected.back() != '\n') expected += "\n";
    talk.answer(answer);
  }
  CHECK(plain == expected);
}

TEST_CASE("real: make chat answers a first question as the README shows") {
  const std::string makefile = read_file("Makefile"), before = "\nCHAT := ";
  const size_t at = makefile.find(before) + before.size();
  const std::string flags = makefile.substr(at, makefile.find('\n', at) - at);
  const Folder folder;
  const std::string in = folder.file("in", kQuestions[0] + "\n"), out = folder.file("out");
  REQUIRE(std::system(("build/nanospec chat --quiet " + flags + " <" + in + " >" + out).c_str()) == 0);
  CHECK(read_file(out) == "The capital of France is Paris.\n");
  const std::string readme = read_file("README.md"), asked = "\n$ echo \"" + kQuestions[0] + "\" | make chat";
  CHECK(contains(readme, asked));
  CHECK(contains(readme.substr(readme.find(asked)), "\n" + read_file(out) + "```"));
}
