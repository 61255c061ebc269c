// commands/verify.cpp: whether a text is what a model says after a prompt, with these settings and this seed.
//
// A transcript (generate --transcript) has all that a text depends on, and its tokens. The text runs through the loop
// of decoding once more, with a drafter that knows it (archive/known.h): so the picks of many places come out of one
// forward, by the code that generates. The first pick that differs ends it. In order: a transcript as it is written;
// as it is read; its check.
#include <climits>

#include "archive/archive.h"
#include "archive/known.h"
#include "commands/prompts.h"
#include "model.h"

namespace nanospec {
namespace {

constexpr const char *kFormat = "nanospec transcript 1",
                     *kNot = "it is not this model's text, or not by these settings";
constexpr int kChain = 127;  // tokens of a forward, but for the root
// Flags of generate that a text depends on, beside those of the sampling.
constexpr const char* kDepends = "--prompt --max_new_tokens --context --device --kernels --dtype --cache_dtype";

struct Claim : Generation {
  std::string model, ended_by, text_sha256;
  bool as_written = false;  // by its own hash
  Tokens said;
};

Command describe(Claim& c) {
  Options& o = c.options;
  return {
      "nanospec verify",
      "Says whether a text is, token by token, what this model says after its prompt, with its settings and its seed: "
      "then the exit status is 0. If not, it is 1, and the first place is named where the model says something else.",
      "nanospec generate --model runs/small --prompt \"ROMEO:\" --transcript build/romeo.json\n"
      "nanospec verify --model runs/small build/romeo.json\n",
      {{"--transcript", "FILE", &c.transcript_file, "what generate --transcript wrote", required()},
       {"--model", "FILE|DIR", &o.settings.model, "a GGUF file, or a model's folder", required()},
       {"--threads", "N", &o.settings.threads, "CPU threads", threads()},
       {"--quiet", "", &o.settings.quiet, "say nothing where it is the model's text"}},
      "--transcript"};
}

void read_claim(Claim& c, const std::string& where) {
  Json json = parse_json(read_file(c.transcript_file), where);
  // The value under a key, of the type that `value` has.
  const auto read = [&](const std::string& key, auto& value) {
    try {
      json.at(key).get_to(value);
    } catch (const Json::exception&) {
      refuse(filled("\"{}\" is missing, or of another type", key), where, "give what generate --transcript wrote");
    }
  };
  Options& o = c.options;
  std::string format, hash;
  read("format", format);
  if (format != kFormat)
    refuse(nanospec::quoted(format) + " is another kind of transcript", where, "use the program that wrote it");
  read("model", c.model);
  read("hash", hash);
  json.erase("hash");
  c.as_written = hash == hash_of(json_text(json, -1));
  read("stop", c.stops);
  std::vector<Json> said;
  read("tokens", said);
  for (const Json& token : said) {
    if (!is_below(token, INT_MAX)) refuse(token.dump() + " is no token", where, kNot);
    c.said.push_back(token.get<int>());
  }
  read("ended_by", c.ended_by);
  read("text_sha256", c.text_sha256);
  read("chat", o.chat);
  read("ignore_eos", o.ignore_eos);
  if (json.contains("system")) read("system", o.system);
  if (json.contains("system")) o.given.flags["--system"] = {o.system};
  const std::vector<Flag> sampling = sampling_flags(o);
  const Command known = {"", "", "", together({text_flags(o), model_text_flags(o), sampling, machine_flags(o)})};
  std::vector<std::string> names = split_at(kDepends, ' ');
  for (const Flag& flag : sampling) names.push_back(flag.name);
  try {
    for (const std::string& name : names) {
      if (name.empty()) continue;  // a heading
      Json value;
      read(name.substr(2), value);
      set_flag(*find_flag(known, name), value.is_string() ? value.get<std::string>() : value.dump());
    }
    check_options(o);
  } catch (const std::invalid_argument& error) { refuse(error.what(), where, "give another transcript"); }
}

// Throws runtime_error at the first place where the text is not what the model says.
void check(const Claim& c, Engine& engine, const std::string& where) {
  const Options& o = c.options;
  const Tokens prompt = encode_prompt(engine, o, o.prompt, "the prompt"), ends = ends_of(o, engine);
  const int vocab = std::min(engine.config().vocab_size, engine.tokenizer().vocab_size()), n = int(c.said.size());
  const auto refuse_token = [&](int i, const std::string& wrong) {
    refuse(wrong, i < n ? filled("{}, token {} of {}", where, i + 1, n) : where, kNot);
  };
  const auto shown = [&](int token) { return filled("{} ({})", nanospec::quoted(engine.decode(token)), token); };
  for (int i = 0; i < n; i++)
    if (const int token = c.said[size_t(i)]; token >= vocab)
      refuse_token(i, filled("the text says {}, which is no token", token));
  const auto known = [&](Drafter&) { return std::make_unique<Known>(vocab, followed_by(prompt, c.said)); };
  Growing grown{ShownText(c.stops), o.prompt + (o.chat ? "\n" : "")};
  int done = 0;
  const auto on_token = [&](int token) {
    const int said = c.said[size_t(done)];
    if (token != said) refuse_token(done, filled("the text says {}, the model {}", shown(said), shown(token)));
    if (grown.is_over()) refuse_token(done, "the text goes on after its end");
    grown.put(engine, token, is_among(ends, token));
    return ++done < n && !interrupted();
  };
  if (n > 0) engine.generate(o.method, o.sampling, prompt, n, on_token, {nullptr, known});
  if (interrupted()) return;
  grown.finish();
  if (!grown.is_over() && n != o.max_new_tokens && c.ended_by != "interrupt") refuse_token(n, "the text is cut");
  if (sha256(grown.text) != c.text_sha256) refuse("the text has another SHA-256 than its tokens", where, kNot);
  if (!c.as_written) refuse("the transcript is not as it was written, though its text is the model's", where, kNot);
}

}  // namespace

std::string transcript_json(const Generation& g, const Engine& engine, const std::string& prompt, const Tokens& tokens,
                            const std::string& text, const std::string& why) {
  const Options& o = g.options;
  const Settings& s = o.settings;
  OrderedJson json = {{"format", kFormat},
                      {"model", hash_of_model(s.model)},
                      {"device", engine.device()},
                      {"kernels", s.kernels},
                      {"dtype", s.dtype},
                      {"cache_dtype", s.cache_dtype},
                      {"context", engine.context()},
                      {"prompt", prompt},
                      {"chat", o.chat},
                      {"ignore_eos", o.ignore_eos},
                      {"stop", g.stops},
                      {"max_new_tokens", o.max_new_tokens}};
  if (o.given.has("--system")) json["system"] = o.system;
  json.update(sampling_json(o.sampling));
  json.update({{"ended_by", why}, {"tokens", tokens}, {"text_sha256", sha256(text)}});
  json["hash"] = hash_of(json_text(Json(json), -1));
  return json_text(json, -1);
}

int verify_command(int argc, char** argv) {
  Claim c;
  Options& o = c.options;
  o.given = parse_flags(describe(c), argc, argv);
  if (o.given.help) return 0;
  const std::string where = printable(c.transcript_file, 300);
  read_claim(c, where);
  if (hash_of_model(o.settings.model) != c.model)
    refuse("the text is of another model than " + printable(o.settings.model, 300), where, "give --model its own");
  o.settings.budget = kChain;
  o.settings.rows = kChain + 1;
  o.method = {kTextDrafter, filled("chain:{}", kChain)};
  Engine engine(o.settings);
  watch_interrupts();
  const Progress clock(true);
  check(c, engine, where);
  if (interrupted()) return stopped(": the text is not verified");
  if (!o.settings.quiet)
    print_out(filled("It is this model's text: {} in {}.\n", count(c.said.size(), "token"), duration(clock.seconds())));
  return 0;
}

}  // namespace nanospec
