// commands/prompts.cpp: generate --prompts: many texts, from a file of lines into a file of lines. docs/batch.md says
// what a line holds.
//
// Every line in is checked before the first text begins. Texts end in any order, and are written in the order of the
// lines: one that ends early waits for those before it. So the file always holds the first texts; where the process was
// killed, also a part of the next line. A line out begins with its number and a hash of all that its text depends on.
// By these the next run knows whether the file is its own, and goes on.
//
// In order: a line in; what is written already; the texts; the run. How to add a key: a word of kKeys, read in
// read_line() or, if it is a flag with a number, in read_numbers(); what the text depends on goes into head_of().
#include "commands/prompts.h"

#include <fcntl.h>
#include <sys/file.h>

namespace nanospec {
namespace {

// ---------------------------------------------------------------------------------------------------------------
// A line in

const std::vector<std::string> kKeys = {
    "prompt", "messages",           "max_new_tokens",   "temperature",       "top_k", "top_p",
    "min_p",  "repetition_penalty", "presence_penalty", "frequency_penalty", "seed",  "stop"};
constexpr const char* kAdvice = "write {\"prompt\": \"...\"}, or {\"messages\": [...]} as docs/batch.md says";

struct Line : Asked {
  std::string place;  // for errors: "prompts.jsonl, line 3"
  Sampling sampling;
  int max_new_tokens = 0;
  std::vector<std::string> stops;
  std::string head;  // what its line out begins with
};

void check_messages(const Json& messages, const std::string& place) {
  if (!messages.is_array()) refuse("\"messages\" is not a list", place, kAdvice);
  std::string before;  // the role of the message before
  for (const Json& message : messages) {
    const Json &role = member(message, "role"), &content = member(message, "content");
    if (!role.is_string() || !content.is_string() || message.size() != 2)
      refuse("a message is not \"role\" and \"content\", both texts", place, kAdvice);
    const std::string who = role.get<std::string>();
    const bool may_ask = before != "user" && who == "user", may_answer = before == "user" && who == "assistant";
    if (!may_ask && !may_answer && !(before.empty() && who == "system"))
      refuse(filled("a message of {} cannot stand here", quoted(who)), place,
             "first system, if any, then user and assistant in turn");
    if (may_ask && content == "") refuse("an empty question", place, kAdvice);
    before = who;
  }
  if (before != "user") refuse("the last message is not the user's", place, "end with a question");
}

Json said(const std::string& role, const Json& content) { return {{"role", role}, {"content", content}}; }
Json question(const Json& prompt) { return Json::array({said("user", prompt)}); }

// A line's messages, and --system before them where they have none.
Json read_messages(Json messages, const std::string& place, const Options& options) {
  check_messages(messages, place);
  if (options.given.has("--system") && messages[0]["role"] != "system")
    messages.insert(messages.begin(), said("system", options.system));
  return messages;
}

std::vector<std::string> stops_of(const Json& stop, const std::string& place) {
  std::vector<std::string> stops;
  for (const Json& text : stop.is_array() ? stop : Json::array({stop})) {
    if (!text.is_string() || text == "")
      refuse("\"stop\" is not a text, or an empty one", place, "give a text of at least one character, or a list");
    stops.push_back(text.get<std::string>());
  }
  return stops;
}

// The numbers, within the limits of their flags. What a model's files advise belongs to their own temperature.
void read_numbers(const Json& json, const Options& options, Line& line) {
  Options own = options;
  if (json.contains("temperature") && !options.given.has("--temperature"))
    take_beside_temperature(own.sampling, Sampling(), options.given);
  try {
    for (const Flag& flag : together({sampling_flags(own), {text_flags(own).back()}}))  // and --max_new_tokens
      if (!flag.name.empty() && json.contains(flag.name.substr(2))) set_flag(flag, json[flag.name.substr(2)].dump());
    check_options(own);
  } catch (const std::invalid_argument& error) {
    std::string wrong = error.what();
    throw std::runtime_error(wrong.replace(wrong.rfind(": --"), 4, ": " + line.place + ", "));
  }
  line.sampling = own.sampling;
  line.max_new_tokens = own.max_new_tokens;
}

Line read_line(const Json& json, const std::string& place, const Generation& g) {
  if (!json.is_object()) refuse("not an object of JSON", place, kAdvice);
  try {
    for (const auto& [key, value] : json.items()) place_of("key", key, key, place, kKeys, kKeys);
  } catch (const std::invalid_argument& error) { throw std::runtime_error(error.what()); }
  if (json.contains("prompt") == json.contains("messages"))
    refuse("there must be a \"prompt\" or \"messages\", and not both", place, kAdvice);
  if (json.contains("prompt") && !json["prompt"].is_string()) refuse("\"prompt\" is not a text", place, kAdvice);
  Line line;
  line.place = place;
  if (json.contains("messages")) line.messages = read_messages(json["messages"], place, g.options);
  else if (g.options.chat) line.messages = read_messages(question(json["prompt"]), place, g.options);
  else line.prompt = json["prompt"].get<std::string>();
  line.stops = json.contains("stop") ? stops_of(json["stop"], place) : g.stops;
  read_numbers(json, g.options, line);
  return line;
}

}  // namespace

std::vector<Asked> read_asked(const Options& options) {
  std::vector<Asked> asked;
  if (!options.given.has("--prompts")) {
    for (const std::string& prompt : read_prompts(options)) asked.push_back({prompt});
    return asked;
  }
  const std::string where = printable(options.prompts_file, 300);
  each_json_line(read_file(options.prompts_file), where, [&](const Json& line, const std::string& place) {
    if (!line.is_object() || !line.contains("messages")) return asked.push_back({read_prompt(line, place)});
    if (line.contains("prompt")) refuse("\"prompt\" and \"messages\", both", place, kAdvice);
    const Json messages = read_messages(line["messages"], place, options);
    asked.push_back({messages.back()["content"].get<std::string>(), messages});
  });
  if (asked.empty()) refuse("there are no prompts", where, kAdvice);
  return asked;
}

Tokens encode_prompt(const Engine& engine, const Options& options, const Asked& asked, const std::string& what) {
  Json messages = asked.messages;
  if (messages.is_null()) {
    if (!options.chat) return engine.encode_prompt(asked.prompt, what);
    if (asked.prompt.empty()) refuse("an empty question", what, "give at least one character");
    messages = read_messages(question(asked.prompt), what, options);
  }
  std::optional<std::string> system;
  if (messages[0]["role"] == "system") system = messages[0]["content"].get<std::string>();
  Conversation talk = begin_conversation(engine.tokenizer(), options.settings.model, system);
  for (const Json& message : messages) {
    const std::string content = message["content"].get<std::string>();
    if (message["role"] == "user") talk.ask(content);
    if (message["role"] == "assistant") talk.answer(content);
  }
  return talk.tokens();
}

// ---------------------------------------------------------------------------------------------------------------
// What is written already

Written find_written(const std::string& path, const std::function<std::string(size_t)>& head_of) {
  Written w;
  if (!std::filesystem::is_regular_file(path)) return w;
  const std::string bytes = read_file(path);
  w.size = bytes.size();
  while (w.bytes < w.size) {
    const size_t end = bytes.find('\n', w.bytes);
    const std::string head = head_of(w.texts);
    // The last one may be cut.
    if (head.empty() || bytes.compare(w.bytes, head.size(), head, 0, w.size - w.bytes) != 0)
      refuse("it has texts of other prompts, settings or of another model, or is no file of this command",
             filled("{}, line {}", printable(path, 300), w.texts + 1), "give --out another name");
    if (end == std::string::npos) break;
    w.bytes = end + 1;
    w.texts++;
  }
  return w;
}

int open_output(const std::string& path, const Written& w) {
  const int handle = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (handle < 0) refuse_path("cannot write the file", path, errno);
  if (flock(handle, LOCK_EX | LOCK_NB) != 0 || file_bytes(path) != double(w.size))
    refuse("another process writes this file", printable(path, 300), "wait for it, or give --out another name");
  if (w.bytes < w.size && ftruncate(handle, off_t(w.bytes)) != 0) refuse_path("cannot write the file", path, errno);
  return handle;
}

namespace {

// ---------------------------------------------------------------------------------------------------------------
// The texts

// The head of a line out; the hash is one of all that the text depends on.
std::string head_of(size_t index, const Line& line, const std::string& model, const Options& o) {
  const Sampling& s = line.sampling;
  const std::string method = promise_of(o.method) == Promise::kSameBytes ? "" : method_text(o.method);
  Json all = Json::array({model, o.settings.dtype, o.settings.cache_dtype, o.settings.context, o.ignore_eos, method,
                          line.prompt, line.messages, line.max_new_tokens, s.temperature, s.top_k, s.top_p, s.min_p,
                          s.seed, line.stops});
  if (s.penalizes()) all.push_back({s.repetition_penalty, s.presence_penalty, s.frequency_penalty});
  return line_head(index, hash_of(json_text(all, -1)));
}

std::vector<Line> read_lines(const Generation& g) {
  const std::string where = printable(g.options.prompts_file, 300), model = identity_of(g.options.settings.model);
  std::vector<Line> lines;
  each_json_line(read_file(g.options.prompts_file), where, [&](const Json& json, const std::string& place) {
    lines.push_back(read_line(json, place, g));
    lines.back().head = head_of(lines.size() - 1, lines.back(), model, g.options);
  });
  if (lines.empty()) refuse("there are no prompts", where, kAdvice);
  return lines;
}

Tokens encode(const Line& line, const Options& options, const Engine& engine) {
  try {
    return encode_prompt(engine, options, line, "the prompt");
  } catch (const Refusal& refusal) { refuse(refusal.wrong, line.place + ", " + refusal.where, refusal.advice); }
}

struct Sums {
  size_t texts = 0, written = 0;  // that are over; that are in the file
  double done = 0;                // texts, each that runs by its share
  int64_t tokens = 0;
  double seconds = 0;
  Stats stats;  // of those that are over
};

// Continues the lines from `first` on, whose prompts are in `requests`. Ctrl-C ends it early. output: a handle. Throws
// std::runtime_error where it cannot be written.
Sums continue_lines(const std::vector<Line>& lines, size_t first, std::deque<Request>& requests, const Generation& g,
                    Engine& engine, int output) {
  const Tokens ends = ends_of(g.options, engine);
  Sums sums;
  std::vector<Growing> texts;
  std::vector<std::string> over(requests.size());  // the lines of texts that are over
  Progress progress(g.options.settings.quiet);
  for (size_t i = 0; i < requests.size(); i++) {
    texts.push_back({ShownText(lines[first + i].stops), ""});
    requests[i].on_token = [&, i](int token) {
      if (interrupted()) throw Interrupted();
      sums.tokens++;
      sums.done += 1.0 / requests[i].max_new_tokens;
      progress.tell(first + sums.texts, lines.size(), "text", sums.tokens, sums.done / texts.size());
      return texts[i].put(engine, token, is_among(ends, token));
    };
    requests[i].on_end = [&, i](const Stats& stats) {
      Growing& t = texts[i];
      t.finish();
      const OrderedJson json = {{"text", std::exchange(t.text, "")},
                                {"tokens", stats.tokens},
                                {"ended_by", t.why("length")},
                                {"stats", stats_json(engine, stats)}};
      over[i] = lines[first + i].head + json_text(json, -1).substr(1);
      sums.texts++;
      sums.done += 1 - ratio(stats.tokens, requests[i].max_new_tokens);
      add(sums.stats, stats);
      for (; sums.written < over.size() && !over[sums.written].empty(); sums.written++)
        if (const int error = write_all(output, {std::exchange(over[sums.written], "")}))
          refuse_path("cannot write the file", g.out_file, error);
    };
  }
  try {
    engine.generate(g.options.method, requests);
  } catch (const Interrupted&) {}  // the file has whole lines
  sums.seconds = progress.seconds();
  return sums;
}

// ---------------------------------------------------------------------------------------------------------------
// The run

}  // namespace

int generate_prompts(Generation& g) {
  Options& o = g.options;
  const std::vector<Line> lines = read_lines(g);
  const Written before =
      find_written(g.out_file, [&](size_t i) { return i < lines.size() ? lines[i].head : std::string(); });
  const size_t first = before.texts;
  const std::string file = printable(g.out_file, 300);
  const auto say = [&](const std::string& text) { fputs(o.settings.quiet ? "" : (text + "\n").c_str(), stderr); };
  if (first == lines.size()) {
    say(filled("nothing is left to do: {} has {}", file, count(first, "text")));
    if (!g.stats_file.empty())
      note("no figures are written", printable(g.stats_file, 300), "a run that decodes nothing has none");
    return 0;
  }
  choose_seats(o.settings, lines.size() - first, g.batch);
  Engine engine(o.settings);
  std::deque<Request> requests;
  for (size_t i = first; i < lines.size(); i++)
    requests.push_back({encode(lines[i], o, engine), lines[i].sampling, lines[i].max_new_tokens});
  const OpenFile output{open_output(g.out_file, before)};
  if (first > 0) say(filled("{} has {}: going on", file, count(first, "text")));
  watch_interrupts();
  const Sums sums = continue_lines(lines, first, requests, g, engine, output.handle);

  write_stats(
      g, engine, sums.stats,
      {{"batch", engine.seats()}, {"texts", sums.texts}, {"texts_before", first}, {"wall_seconds", sums.seconds}});
  say(promise_text(o.method) + filled("{}, {} in {}: {} tok/s  (batch {}; {}; {})", count(sums.texts, "text"),
                                      count(sums.tokens, "token"), duration(sums.seconds),
                                      thousands(ratio(sums.tokens, sums.seconds)), engine.seats(),
                                      method_text(o.method), machine_text(o.settings, engine)));
  if (!interrupted()) return 0;
  return stopped(
      filled(": {} has {} of {}; the same command goes on", file, first + sums.written, count(lines.size(), "text")));
}

}  // namespace nanospec
