// commands/chat.cpp: a conversation with a model: lines in, answers out.
//
// Standard output gets the answers and nothing else, each ended by a line end. The prompt's mark, notes, and what the
// commands say (/stats) go to standard error: so a pipe gets clean lines, and a terminal shows a chat.
//
// In order: the command line; the lines that come in; the session; what a line may ask for; the loop.
#include <histedit.h>
#include <poll.h>

#include <clocale>
#include <csignal>
#include <cwchar>

#include "commands/prompts.h"

namespace nanospec {
namespace {

Command describe(Options& o) {
  const std::string start = "nanospec chat --model models/SmolLM2-135M-Instruct.Q4_1.gguf ";
  return {
      "nanospec chat",
      "Answers each line of standard input, as part of one conversation. Standard output gets the answers, nothing "
      "else. Ctrl-C stops an answer; at the prompt it leaves, as the end of the input does. /help lists what else a "
      "line may say. --drafter, --shape and --budget change how fast an answer appears, never one character of it.",
      start + "--temperature 0.2 --top_p 0.9\n" + start + "--system \"You answer in one word.\"\n" + start +
          "--temperature 0 --quiet <questions.txt >build/answers.txt  # needs a file of yours\n",
      together({{text_flags(o)[0],
                 text_flags(o)[1],
                 {"--system", "TEXT", &o.system,
                  "the text that comes first and is never dropped; the default is the template's own"},
                 {"--max_new_tokens", "N", &o.max_new_tokens, "most tokens of an answer", from(1, 1e9)},
                 model_text_flags(o)[0]},
                run_flags(o, speculation_flags(o)),
                {heading("Output"), {"--quiet", "", &o.settings.quiet, "no notes"}}})};
}

// ---------------------------------------------------------------------------------------------------------------
// The lines that come in

// Reads what comes next. 0: the end of the input. -1: errno says why; EINTR is a signal, which ends the wait: poll() is
// never taken up again, as read() is. It looks up once a second, for a Ctrl-C that came just before it.
ssize_t read_input(char* bytes, size_t most) {
  pollfd input = {STDIN_FILENO, POLLIN, 0};
  int ready = 0;
  while (ready == 0 && !interrupted()) ready = poll(&input, 1, 1000);
  if (ready > 0) return read(STDIN_FILENO, bytes, most);
  if (ready == 0) errno = EINTR;
  return -1;
}

// Waits for the next line of a pipe or a file. False at the end of the input, and after Ctrl-C.
bool next_line(std::string& line) {
  line.clear();
  for (char byte;;) {
    const ssize_t n = read_input(&byte, 1);
    if (interrupted()) return false;
    if (n == 0) return !line.empty();
    if (n < 0 && errno != EINTR) refuse("cannot read", "standard input", strerror(errno));
    if (n > 0 && byte == '\n') return true;
    if (n > 0) line += byte;
  }
}

// The lines that a person types: libedit draws them on standard error, and knows the earlier ones.
class TypedLines {
 public:
  TypedLines() {
    setlocale(LC_CTYPE, "C.UTF-8");  // what is typed, whatever the machine's language
    for (int signal : {SIGWINCH, SIGCONT}) std::signal(signal, [](int) {});  // they end a wait, no more
    HistEvent event;
    history(history_.get(), &event, H_SETSIZE, 1000);
    history(history_.get(), &event, H_SETUNIQUE, 1);
    el_set(editor_.get(), EL_PROMPT, mark);
    el_set(editor_.get(), EL_HIST, history, history_.get());
    el_set(editor_.get(), EL_GETCFN, next_character);
    el_set(editor_.get(), EL_EDITOR, "emacs");
    el_set(editor_.get(), EL_BIND, "^U", "vi-kill-line-prev", nullptr);  // as a terminal itself does
    el_set(editor_.get(), EL_BIND, "^W", "ed-delete-prev-word", nullptr);
    el_set(editor_.get(), EL_BIND, "^R", "em-inc-search-prev", nullptr);
  }

  // As next_line().
  bool next(std::string& line) {
    el_set(editor_.get(), EL_PREP_TERM, 1);  // before the mark, which asks for keys
    int length = 0;
    const char* const typed = el_gets(editor_.get(), &length);
    if (typed == nullptr || length <= 0 || interrupted()) return false;
    line.assign(typed, size_t(length));
    line.erase(std::min(line.find('\n'), line.size()));
    HistEvent event;
    if (!line.empty()) history(history_.get(), &event, H_ENTER, line.c_str());
    return true;
  }

 private:
  static inline char mark_[] = "> ";
  static char* mark(EditLine*) { return mark_; }

  // One character of UTF-8; other bytes are left out. Returns 1; 0 at the end of the input, -1 after Ctrl-C.
  static int next_character(EditLine* editor, wchar_t* character) {
    mbstate_t state = {};
    for (char byte;;) {
      const ssize_t n = read_input(&byte, 1);
      if (interrupted()) return -1;
      if (n < 0 && errno == EINTR) draw_again(editor);
      else if (n <= 0) return 0;
      else if (const size_t used = mbrtowc(character, &byte, 1, &state); used <= 1) return 1;
      else if (used == size_t(-1)) state = {};
    }
  }
  // The window has another size; or the process was stopped, and the terminal has forgotten how it was set.
  static void draw_again(EditLine* editor) {
    el_set(editor, EL_PREP_TERM, 0);
    fputs(is_drawn_on(STDERR_FILENO) ? "\r\x1b[J" : "\n", stderr);
    el_resize(editor);
    el_set(editor, EL_PREP_TERM, 1);
    el_set(editor, EL_REFRESH);
  }

  std::unique_ptr<History, void (*)(History*)> history_{history_init(), history_end};
  std::unique_ptr<EditLine, void (*)(EditLine*)> editor_{el_init("nanospec", stdin, stderr, stderr), el_end};
};

// ---------------------------------------------------------------------------------------------------------------
// The session

struct Session {
  const Options& options;
  Engine& engine;
  Conversation talk;
  const bool person = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);  // somebody types
  int answers = 0;
  Stats last = {}, all = {};  // of the answers
};

// Notes for people: dim on a terminal.
void say(const std::string& text) {
  const char* const plain = getenv("NO_COLOR");
  const bool dim = is_drawn_on(STDERR_FILENO) && !(plain && *plain);
  fprintf(stderr, "%s%s%s\n", dim ? "\x1b[2m" : "", text.c_str(), dim ? "\x1b[0m" : "");
}
void tell(const Session& s, const std::string& text) {
  if (!s.options.settings.quiet) say(text);
}

std::string speed_text(const Stats& stats) {
  return filled("{}, {} tok/s, acceptance length {}, prefill {}", count(stats.tokens, "token"),
                thousands(ratio(stats.tokens, stats.seconds)), decimals(ratio(stats.tokens, stats.target_forwards), 2),
                duration(stats.prefill_seconds));
}

// Answers the last question of the conversation, and adds the answer to it.
void answer(Session& s) {
  const Tokens prompt = s.talk.tokens();
  const int most = std::min(s.options.max_new_tokens, s.engine.context() - int(prompt.size()));
  Growing grown;
  const auto on_token = [&](int token, bool ends) {
    const bool goes_on = grown.put(s.engine, token, ends);
    grown.print();
    return goes_on;
  };
  const Generated generated = continue_text(s.engine, s.options, s.options.method, prompt, most, on_token);
  grown.finish();
  if (grown.text.empty() || grown.text.back() != '\n') grown.text += '\n';
  grown.print();
  s.talk.answer(generated.tokens);
  s.last = generated.stats;
  add(s.all, s.last);
  s.answers++;
  if (interrupted()) tell(s, "stopped");
  else if (!grown.ended) tell(s, "the answer was cut after " + count(most, "token"));
  if (s.person) tell(s, speed_text(s.last));
}

// ---------------------------------------------------------------------------------------------------------------
// What a line may ask for

constexpr const char* kHelp =
    "/reset  forget the conversation; the system text stays\n"
    "/stats  what the answers took, and how full the context is\n"
    "/help   this list\n"
    "/quit   leave; so do Ctrl-D, and Ctrl-C at the prompt. Ctrl-C stops an answer\n"
    "A line that begins with a blank is always a question.";

std::string stats_text(const Session& s) {
  const std::string context = filled("context: {} of {}, {}", thousands(s.talk.tokens().size()),
                                     count(s.engine.context(), "token"), count(s.talk.turns(), "turn"));
  if (s.answers == 0) return "no answer yet\n" + context;
  return filled("last answer: {}\n{}: {}\n{}\n{}; {}; {}", speed_text(s.last), count(s.answers, "answer"),
                speed_text(s.all), context, method_text(s.options.method), sampling_text(s.options.sampling),
                machine_text(s.options.settings, s.engine));
}

// Returns whether the conversation goes on.
bool obey(Session& s, const std::string& word) {
  if (word == "/quit") return false;
  if (word == "/help") say(kHelp);
  else if (word == "/stats") say(stats_text(s));
  else if (word == "/reset") {
    s.talk.reset();
    tell(s, "the conversation is forgotten");
  } else {
    const std::string closest = closest_word(word, {"/reset", "/stats", "/help", "/quit"});
    say(filled("unknown command '{}': {}", printable(word),
               closest.empty() ? "/help lists them" : "did you mean " + closest + "?"));
  }
  return true;
}

// A question that cannot be asked, for a character that the model does not know or for want of room, is said and
// forgotten: then false. Room for its answer is made by dropping turns, which is said.
bool ask(Session& s, const std::string& line) {
  const int context = s.engine.context();
  const int room = std::min(s.options.max_new_tokens, std::max(1, context / 4));  // for an answer
  try {
    s.talk.ask(line);
  } catch (const Refusal& refusal) {
    say(refusal.what());
    return false;
  }
  const int dropped = s.talk.fit(context - room);
  if (dropped < 0) {
    say(
        filled("a question of {} with the system text leaves no room for an answer: the context has {}: ask a shorter "
               "one, or start with a larger --context",
               count(s.talk.least(), "token"), thousands(context)));
    s.talk.take_back();
    return false;
  }
  if (dropped > 0)
    tell(s, filled("the context of {} tokens is full: the oldest {} dropped", thousands(context),
                   dropped == 1 ? "turn was" : count(dropped, "turn") + " were"));
  answer(s);
  return true;
}

// ---------------------------------------------------------------------------------------------------------------
// The loop

// Returns the exit status.
int converse(Session& s) {
  std::optional<TypedLines> typed;
  if (s.person) typed.emplace();
  std::string line;
  bool on = true, all = true;  // whether the chat goes on; whether each question was asked
  while (on && (typed ? typed->next(line) : next_line(line))) {
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (line.empty()) continue;
    if (line[0] == '/') on = obey(s, line);
    else all &= ask(s, line);
    if (!forget_interrupt()) return kInterruptedStatus;
  }
  if (s.person && on) fputs("\n", stderr);
  if (!forget_interrupt()) return kInterruptedStatus;
  return s.person || all ? 0 : 1;  // who reads the answers from a file must know that one is missing
}

}  // namespace

int chat_command(int argc, char** argv) {
  Options o;
  if (!read_command_line(describe(o), argc, argv, o)) return 0;
  o.settings.keeps_cache = true;
  Progress progress(o.settings.quiet || !isatty(STDIN_FILENO));
  progress.show("loading " + o.settings.model);
  Engine engine(o.settings);
  progress.clear();
  Session session{o, engine, conversation_of(engine, o)};
  watch_interrupts();
  if (session.person)
    tell(session, filled("{}: {}, context {}, {}; drafter {}\nCtrl-C stops an answer, Ctrl-D or /quit leaves, /help "
                         "lists the commands",
                         o.settings.model, numbers_text(o.settings, engine), count(engine.context(), "token"),
                         sampling_text(o.sampling), method_text(o.method)));
  return converse(session);
}

}  // namespace nanospec
