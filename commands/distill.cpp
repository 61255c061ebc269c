// commands/distill.cpp: a model writes texts, from which a drafter learns what the model says: `index` counts them.
//
// A chat model asks itself: behind the opening of a user's turn it goes on by itself, and that is a question, which it
// then answers (Magpie, Xu et al. 2024, arXiv 2406.08464). Or it answers prompts, or it continues pieces of a text.
// Text i is a function of the model, the settings and i alone; so is the file, whatever decodes side by side, and a run
// that was stopped goes on where it was.
//
// A line of the file is one text: "tokens", which the model has seen and written, and where its own begin ("begin").
// Some are dropped: see why_dropped(). Of the others a tenth is held out, by a hash of the question: nothing learns
// from these, so that what was learned can be measured on them.
//
// In order: the command line; how a text begins; which are dropped; the texts; the run.

#include "commands/comparison.h"
#include "files/advice.h"
#include "files/said.h"

namespace nanospec {
namespace {

struct Distilling {
  Options options;
  std::string wanted = "100k", out_file, text_file;
  double tokens = 0;  // that the model is to write: `wanted`
  Sampling asking;    // of its own questions
  int batch = 0;
};

Command describe(Distilling& d) {
  Options& o = d.options;
  o.max_new_tokens = 300;
  return {
      "nanospec distill",
      "Lets a model write texts, from which drafters learn what it says. A chat model asks itself questions and "
      "answers them, so no data are needed. `nanospec index --data` counts what it wrote, for the drafter ngram:N.",
      "nanospec distill --model models/SmolLM2-135M-Instruct.Q4_1.gguf --tokens 20k --out build/said.jsonl  # takes "
      "a minute\n"
      "nanospec index --model models/SmolLM2-135M-Instruct.Q4_1.gguf --data build/said.jsonl --overwrite\n"
      "nanospec distill --model runs/small --text data/*shakespeare.txt --out build/lines.jsonl\n",
      together({{text_flags(o)[0],
                 text_flags(o)[1],
                 {"--tokens", "N", &d.wanted, "how many tokens the model writes: 5000, 100k, 2M"},
                 {"--out", "FILE", &d.out_file,
                  "where the texts go, a line for each. After Ctrl-C the same command goes on", written(true)},
                 {"--prompts", "FILE", &o.prompts_file,
                  "instead of its own questions: one {\"prompt\": \"...\"} per line; the texts end with them"},
                 {"--text", "FILE", &d.text_file, "instead: it continues pieces of this text"},
                 {"--max_new_tokens", "N", &o.max_new_tokens, "the most tokens of a text", from(1, 1e9)},
                 {"--ask_temperature", "T", &d.asking.temperature, "the temperature of its own questions",
                  from(0.1, kHottest)},
                 model_text_flags(o).front(),
                 {"--batch", "N", &d.batch, "texts that are written side by side; 0: as many as pay, at most 16",
                  from(0, 4096)}},
                run_flags(o),
                {heading("Output"), {"--quiet", "", &o.settings.quiet, "no progress, no summary"}}})};
}

// "2M" as 2,000,000. Throws invalid_argument.
double number_of_tokens(std::string text) {
  const std::string whole = text;
  double unit = 1;
  if (!text.empty() && strchr("kKmM", text.back())) {
    unit = tolower(text.back()) == 'k' ? 1e3 : 1e6;
    text.pop_back();
  }
  try {
    const double tokens = unit * parse_number<double>(text, "--tokens", from(0, 1e9));
    if (tokens >= 1 && tokens == std::floor(tokens)) return tokens;
  } catch (const std::invalid_argument&) {}
  refuse_usage("{} is no number of tokens: --tokens: give one from 1 on, like 5000, 100k or 2M", quoted(whole));
}

void check_command_line(Distilling& d) {
  Options& o = d.options;
  d.tokens = number_of_tokens(d.wanted);
  if (o.given.has("--prompts") && o.given.has("--text"))
    refuse_usage("--prompts and --text are two sources: nanospec distill: leave one of them out");
  check_outputs(o.given, {});
  choose_sampling(o);
  d.asking.seed = o.sampling.seed;
}

// ---------------------------------------------------------------------------------------------------------------
// How a text begins

constexpr int kPiece = 64;       // most tokens of a text that the model continues; at most a quarter of its context
constexpr int kMostAsked = 100;  // tokens of its own question

// Where the texts come from. Without prompts and without a text the model asks itself.
struct Source {
  std::optional<Conversation> talk;  // none with a text
  std::vector<std::string> prompts;
  Tokens text;
  int piece = 0;  // tokens of it that a text begins with
  bool asks_itself() const { return prompts.empty() && text.empty(); }
};

Source source_of(const Distilling& d, const Engine& engine) {
  Source source;
  if (d.text_file.empty()) source.talk.emplace(conversation_of(engine, d.options));
  if (!d.options.prompts_file.empty()) source.prompts = read_prompts(d.options);
  if (!d.text_file.empty()) {
    source.text = engine.tokenizer().encode(read_file(d.text_file), printable(d.text_file, 300));
    source.piece = std::clamp(engine.context() / 4, 1, kPiece);
    if (int(source.text.size()) <= source.piece)
      refuse(filled("it has no more than {} tokens", source.piece), printable(d.text_file, 300), "give a longer text");
  }
  if (source.asks_itself() && !source.talk->may_ask_itself())
    refuse("its chat template, or that it has none, does not let the model ask itself",
           printable(d.options.settings.model, 300), "give --prompts FILE or --text FILE");
  return source;
}

struct Writing : SaidText {  // its text is that of its tokens
  bool ended = false;        // by a token that ends a text
  bool done = false;
};

// What tokens say, as a line of the file holds it: bytes that are no whole character are U+FFFD there.
std::string text_of(const Engine& engine, const Tokens& tokens) {
  const std::string bytes = joined(tokens, "", [&](int token) { return engine.decode(token); });
  return Json::parse(json_text(Json(bytes), -1)).get<std::string>();
}

// What the index-th text begins with, where the model does not ask.
Writing begun(const Distilling& d, const Engine& engine, const Source& source, size_t index) {
  Writing w;
  if (source.text.empty()) {
    Conversation talk = *source.talk;
    w.question = source.prompts[index];
    talk.ask(w.question);
    w.tokens = talk.tokens();
  } else {
    const uint64_t drawn = random_bits(d.options.sampling.seed, 0, kStreamInitialize, index, 0);
    const auto place = source.text.begin() + long(drawn % (source.text.size() - size_t(source.piece)));
    w.question = text_of(engine, {place, place + source.piece});
    if (engine.tokenizer().begin >= 0) w.tokens.push_back(engine.tokenizer().begin);
    w.tokens.insert(w.tokens.end(), place, place + source.piece);
  }
  w.begin = w.tokens.size();
  return w;
}

// ---------------------------------------------------------------------------------------------------------------
// Which are dropped

constexpr size_t kRun = 8;         // tokens
constexpr int kMostDropped = 100;  // in a row

// Whether more than half of its runs of eight tokens stood in it before.
bool loops(const Tokens& tokens, size_t begin) {
  std::set<Tokens> known;
  size_t runs = 0;
  for (size_t i = begin; i + kRun <= tokens.size(); i++, runs++)
    known.emplace(tokens.begin() + long(i), tokens.begin() + long(i + kRun));
  return 2 * known.size() < runs;
}

// Why a text is dropped; "": it is not. asked: the questions of the texts before it.
std::string why_dropped(const Writing& w, const std::set<std::string>& asked) {
  if (w.tokens.size() == w.begin) return "nothing written";
  if (asked.count(w.question)) return "asked before";
  if (loops(w.tokens, w.begin)) return "loops";
  return "";
}

bool is_held_out(const std::string& question) {
  return std::stoull(hash_of(question).substr(strlen(kHashPrefix)), nullptr, 16) % 10 == 0;
}

// ---------------------------------------------------------------------------------------------------------------
// The texts

class Distiller {
 public:
  Distiller(const Distilling& d, Engine& engine)
      : d_(d), engine_(engine), source_(source_of(d, engine)), ends_(ends_of(d.options, engine)) {
    const Options& o = d.options;
    const Sampling& s = o.sampling;
    const Json all = Json::array({identity_of(o.settings.model), engine.dtype(), o.settings.cache_dtype,
                                  engine.context(), o.max_new_tokens, d.asking.temperature, s.temperature, s.top_k,
                                  s.top_p, s.min_p, s.repetition_penalty, s.presence_penalty, s.frequency_penalty,
                                  s.seed, source_.prompts, source_.text});
    hash_ = hash_of(json_text(all, -1));
  }

  // Goes on with the file. Returns whether the texts are as many as were wanted.
  bool run() {
    const Written before = find_written(d_.out_file, [&](size_t i) { return line_head(i, hash_); });
    const int vocab = std::max(engine_.config().vocab_size, engine_.tokenizer().vocab_size());
    const std::string lines = before.texts == 0 ? "" : read_file(d_.out_file).substr(0, before.bytes);
    each_said(lines, d_.out_file, vocab, tokenizer_, [&](const SaidText& said) { take(said); });
    at_first_ = tokens_;
    if (enough()) return true;
    output_.handle = open_output(d_.out_file, before);
    for (int seat = 0; seat < engine_.seats(); seat++) start();
    try {
      engine_.generate(kPlain, requests_);
    } catch (const Interrupted&) {}  // the file has whole lines
    seconds_ = progress_.seconds();
    return enough();
  }

  std::string summary() const {
    std::string text = filled("{} in {}", count(tokens_, "token"), count(double(lengths_.size()), "text"));
    if (!lengths_.empty())
      text += filled(" of {} to {}, median {}", thousands(lowest(lengths_)), thousands(highest(lengths_)),
                     thousands(median(lengths_)));
    if (seconds_ > 0) text += filled(": {} tok/s", thousands(ratio(written_now_, seconds_)));
    text += filled(" (batch {}; {})\nheld out: {}", engine_.seats(), machine_text(d_.options.settings, engine_),
                   count(std::count_if(asked_.begin(), asked_.end(), is_held_out), "text"));
    for (const auto& [why, n] : dropped_)
      text += filled("; dropped, {}: {} of {}", why, percent(n, next_line_), count(next_line_, "text"));
    return text + "\n";
  }

 private:
  bool enough() const {
    return tokens_ >= d_.tokens || (!source_.prompts.empty() && next_line_ >= source_.prompts.size());
  }

  // Counts the text of the next line.
  void take(const SaidText& said) {
    next_line_++;
    if (said.dropped.empty()) {
      asked_.insert(said.question);
      lengths_.push_back(double(said.tokens.size() - said.begin));
      tokens_ += lengths_.back();
    } else dropped_[said.dropped]++;
  }

  // Begins the next text.
  void start() {
    const size_t index = next_line_ + open_.size();
    if (!source_.prompts.empty() && index >= source_.prompts.size()) return;
    open_.push_back(source_.asks_itself() ? Writing() : begun(d_, engine_, source_, index));
    request(index);
  }
  // Asks the engine for tokens: for a question, where there is none yet; then for its answer.
  void request(size_t index) {
    const bool asks = source_.asks_itself() && text(index).begin == 0;
    Sampling sampling = asks ? d_.asking : d_.options.sampling;
    sampling.sequence = uint32_t(2 * index + asks);
    requests_.push_back({asks ? source_.talk->before_question() : text(index).tokens, sampling,
                         asks ? kMostAsked : d_.options.max_new_tokens});
    requests_.back().on_token = [this, index, asks](int token) {
      if (interrupted()) throw Interrupted();
      Writing& w = text(index);
      w.ended = is_among(ends_, token);
      if (!w.ended) w.tokens.push_back(token);
      written_now_++;
      answered_ += !asks;
      const double share = answered_ / (d_.tokens - at_first_);
      progress_.tell(at_first_ + answered_, d_.tokens, "token", written_now_, share);
      return !w.ended;
    };
    requests_.back().on_end = [this, index, asks](const Stats&) { asks ? take_question(index) : finish(index); };
  }
  void take_question(size_t index) {
    Writing& w = text(index);
    w.question = text_of(engine_, w.tokens);
    const bool blank = w.question.find_first_not_of(" \t\r\n") == std::string::npos;
    w.tokens = source_.talk->after_question(w.tokens);
    w.begin = w.tokens.size();
    if (w.ended && !blank) request(index);
    else finish(index);  // nothing written
  }
  // Writes what is done, in order, and begins another text.
  void finish(size_t index) {
    text(index).done = true;
    while (!open_.empty() && open_.front().done) {
      Writing& w = open_.front();
      w.dropped = why_dropped(w, asked_);
      if (const int error = write_all(output_.handle, {line_of(w)}))
        refuse_path("cannot write the file", d_.out_file, error);
      dropped_in_a_row_ = w.dropped.empty() ? 0 : dropped_in_a_row_ + 1;
      if (!w.dropped.empty()) answered_ -= double(w.tokens.size() - w.begin);
      take(w);
      open_.pop_front();
      if (dropped_in_a_row_ == kMostDropped)
        refuse(filled("of the last {} texts none could be kept", kMostDropped), printable(d_.out_file, 300),
               "docs/commands.md says why a text is dropped; try --prompts FILE, or another --temperature");
      if (enough()) throw Interrupted();
    }
    start();
  }
  std::string line_of(const Writing& w) const {
    OrderedJson json = {{"dropped", w.dropped}};
    if (w.dropped.empty())
      json = {{"question", w.question},
              {"text", text_of(engine_, {w.tokens.begin() + long(w.begin), w.tokens.end()})},
              {"held_out", is_held_out(w.question)},
              {"ended_by", w.ended ? "end of text" : "length"},
              {"tokenizer", tokenizer_},
              {"begin", w.begin},
              {"tokens", w.tokens}};
    return line_head(next_line_, hash_) + json_text(json, -1).substr(1);
  }
  Writing& text(size_t index) { return open_[index - next_line_]; }

  const Distilling& d_;
  Engine& engine_;
  const Source source_;
  const Tokens ends_;
  const std::string tokenizer_ = tokenizer_hash(d_.options.settings.model);
  std::string hash_;
  std::deque<Request> requests_;
  std::deque<Writing> open_;  // from next_line_ on
  size_t next_line_ = 0;      // to be written
  OpenFile output_{-1};
  Progress progress_{d_.options.settings.quiet};
  double seconds_ = 0, written_now_ = 0, answered_ = 0;  // of this run: tokens, and those of answers
  // Of the file:
  double tokens_ = 0, at_first_ = 0;  // at_first_: when this run began
  std::vector<double> lengths_;       // of its texts, in tokens
  std::set<std::string> asked_;
  std::map<std::string, size_t> dropped_;
  int dropped_in_a_row_ = 0;  // by this run
};

}  // namespace

int distill_command(int argc, char** argv) {
  Distilling d;
  if (!read_flags(describe(d), argc, argv, d.options)) return 0;
  check_command_line(d);
  Settings& settings = d.options.settings;
  choose_seats(settings, std::numeric_limits<size_t>::max(), d.batch);
  settings.rows = 1;
  Engine engine(settings);
  watch_interrupts();
  Distiller distiller(d, engine);
  const bool enough = distiller.run();
  if (!d.options.settings.quiet) fputs(distiller.summary().c_str(), stderr);
  if (enough || !interrupted()) return 0;
  return stopped(filled(": the same command goes on with {}", printable(d.out_file, 300)));
}

}  // namespace nanospec
