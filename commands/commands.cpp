// commands/commands.cpp: see commands.h.
#include "commands/commands.h"

#include <charconv>

#include "commands/calibration.h"
#include "files/advice.h"
#include "files/tables.h"

namespace nanospec {

// ---------------------------------------------------------------------------------------------------------------
// What follows from the other functions of the Engine, whichever it is

static_assert(kMaxWindow == kMaxBlock, "one limit for the flag --context and for models");

int Engine::context() const { return config().block_size; }
const std::string& Engine::decode(int token) const { return tokenizer().decode(token); }

Tokens Engine::encode_prompt(const std::string& prompt, const std::string& what) const {
  Tokens tokens = tokenizer().encode(prompt, what);
  if (tokenizer().begin >= 0) tokens.insert(tokens.begin(), tokenizer().begin);
  if (tokens.empty()) refuse("there is nothing to continue", what, "give at least one character");
  return tokens;
}

// ---------------------------------------------------------------------------------------------------------------
// Flags

std::vector<Flag> text_flags(Options& o) {
  return {
      heading("Text"),
      {"--model", "DIR", &o.settings.model, "a folder with a model, or FILE.gguf (docs/formats.md says which load)",
       required()},
      {"--prompt", "TEXT", &o.prompt, "the text to continue"},
      {"--prompt_file", "FILE", &o.prompt_file, "a file that holds it, byte for byte; -: standard input"},
      {"--max_new_tokens", "N", &o.max_new_tokens, "tokens to add", from(0, 1e9)},
  };
}

std::vector<Flag> prompts_flags(Options& o) {
  return {
      {"--prompts", "FILE", &o.prompts_file, "several prompts: one {\"prompt\": \"...\"} per line"},
      {"--data", "FILE", &o.data_file,
       "the training text: prompts from its last tenth, which train_gpt held out (default: the text in data/)"},
      {"--held_out", "N", &o.held_out, "how many prompts --data gives", from(1, 100000)},
  };
}

std::vector<Flag> chat_flags(Options& o) {
  return {
      {"--chat", "", &o.chat, "a prompt is a question, given to the model in its chat template"},
      {"--system", "TEXT", &o.system, "with --chat: the text before the question; default: the template's own"},
  };
}

std::vector<Flag> model_text_flags(Options& o) {
  return {
      {"--context", "N", &o.settings.context,
       "tokens that the model sees at once, an even number; 0: the model's own, for a GGUF file at most 4,096",
       from(0, kMaxWindow)},
      {"--ignore_eos", "", &o.ignore_eos, "continue after the end-of-text token"},
  };
}

std::vector<Flag> sampling_flags(Options& o) {
  return {
      heading("Sampling"),
      {"--temperature", "T", &o.sampling.temperature,
       "0: always the likeliest; above 1: unlikely tokens more often. The default is 1 for a model of train_gpt. For "
       "others it, the next two and the repetition penalty are as the model's files say, or 0.7, 0, 0.95 and 1",
       from(0, kHottest)},
      {"--top_k", "K", &o.sampling.top_k, "sample among the K likeliest tokens; 0: all", from(0)},
      {"--top_p", "P", &o.sampling.top_p, "sample among the likeliest tokens that make up P", above(0, 1)},
      {"--min_p", "P", &o.sampling.min_p,
       "sample among tokens whose chance is at least this share of the likeliest one's; 0: all", from(0, 1)},
      {"--repetition_penalty", "R", &o.sampling.repetition_penalty,
       "divide the logits of tokens that the text already contains by R, or multiply them, where they are negative; 1: "
       "none",
       from(kLeastRepetition, kMostRepetition)},
      {"--presence_penalty", "P", &o.sampling.presence_penalty,
       "subtract P from the logits of tokens that the text already contains; 0: none", from(-100, 100)},
      {"--frequency_penalty", "P", &o.sampling.frequency_penalty,
       "subtract P for each time that the text contains the token; 0: none", from(-100, 100)},
      {"--seed", "N", &o.sampling.seed, "a different seed gives a different text"},
  };
}

std::vector<Flag> machine_flags(Options& o) {
  return {
      heading("Machine"),
      {"--device", "WORD", &o.settings.device, "where the target runs", one_of({"auto", "cpu", "cuda"})},
      {"--dtype", "WORD", &o.settings.dtype,
       "how weights are stored; q8, q4: 8 and 4 bits, as Q8_0 and Q4_0 of GGUF; auto: as in the file",
       one_of({"auto", "fp32", "bf16", "f16", "q8", "q4"})},
      {"--cache_dtype", "WORD", &o.settings.cache_dtype, "how keys and values are stored", one_of({"fp32", "bf16"})},
      {"--kernels", "WORD", &o.settings.kernels, "on a GPU: the simple kernels (kernels.cuh), or the tuned kernels",
       one_of({"plain", "tuned"})},
      {"--early", "WORD", &o.settings.early,
       "on a GPU of 9.0 or above: kernels begin before the one before has ended, and ask for their weights (on); begin "
       "only (launches); neither (off). The text does not depend on it",
       one_of({"on", "launches", "off"})},
      {"--threads", "N", &o.settings.threads, "CPU threads; the text does not depend on them", threads()},
  };
}

void check_options(const Options& o) {
  if (o.sampling.temperature > 0 && o.sampling.temperature < float(kColdest))
    refuse_usage("too cold: --temperature: give 0 (always the likeliest token) or at least 1e-6");
  if (o.settings.model.empty()) refuse_usage("an empty name: --model: give a folder with a model, or a FILE.gguf");
  if (o.settings.context % 2 != 0)
    refuse_usage("'{}' is odd: --context: give an even number, since a full context moves by half", o.settings.context);
}

void take_beside_temperature(Sampling& to, const Sampling& from, const Given& given) {
  if (!given.has("--top_k")) to.top_k = from.top_k;
  if (!given.has("--top_p")) to.top_p = from.top_p;
  if (!given.has("--repetition_penalty")) to.repetition_penalty = from.repetition_penalty;
}

void choose_sampling(Options& o) {
  if (o.given.has("--temperature")) return;  // what is advised belongs to its own temperature
  const Advice advice = advice_of(o.settings.model);
  if (advice.its_own_way) return;
  o.sampling.temperature = advice.sampling.temperature;
  take_beside_temperature(o.sampling, advice.sampling, o.given);
  const bool none = advice.from.empty();
  note(sampling_text(o.sampling), printable(none ? o.settings.model : advice.from, 300),
       filled("it advises {}; --temperature gives another", none ? "none, so this is what is usual" : "this"));
}

void choose_prompts(Options& o) {
  const Command& command = o.given.command;
  std::vector<std::string> known;
  int found = 0;
  for (const char* name : {"--prompt", "--prompt_file", "--prompts", "--data"}) {
    if (find_flag(command, name)) known.push_back(name);
    found += o.given.has(name);
  }
  if (known.empty()) return;
  const bool takes_data = known.back() == "--data";
  if (found == 0 && takes_data) o.data_file = find_text(o.settings.model, false);
  if (found == 0 && o.data_file.empty())
    refuse_usage("there is no prompt{}: {}: add {}", takes_data ? ", and " + not_found_text(o.settings.model) : "",
                 command.name, joined(known, " or "));
  if (found > 1) refuse_usage("more than one prompt: {}: give only one of {}", command.name, joined(known, " or "));
  if (o.given.has("--held_out") && o.data_file.empty())
    refuse_usage("--held_out says how many prompts --data gives: {}: add --data FILE", command.name);
}

std::string find_text(const std::string& model, bool any) {
  const Metadata said = model_metadata(model);
  const std::string wanted = said_by(said, "text_sha256"), own = "data/" + said_by(said, "text");
  const std::vector<std::string> usual = {"data/tinyshakespeare.txt", "data/shakespeare.txt"};
  const auto there = [](const std::string& path) { return std::filesystem::is_regular_file(path); };
  for (const std::string& path : {own, usual[0], usual[1]})
    if (!wanted.empty() && there(path) && sha256(read_file(path)) == wanted) return path;
  const auto found = std::find_if(usual.begin(), usual.end(), there);
  return (wanted.empty() || any) && found != usual.end() ? *found : "";
}

std::string not_found_text(const std::string& model) {
  std::error_code error;
  const std::string name = said_by(model_metadata(model), "text");
  return "the text that the model learned" + (name.empty() ? "" : ", " + printable(name) + ",") + " is not in " +
         printable((std::filesystem::current_path(error) / "data").string(), 300);
}

void check_held_out(const std::string& model, const std::string& text, const std::string& path) {
  const Metadata said = model_metadata(model);
  if (said.count("text_sha256") && said.at("text_sha256") != sha256(text))
    note("the model " + printable(model, 300) + " learned" + named_text(said, " another text"), printable(path, 300),
         "prompts from here are not held out from that; give --data that text");
}

std::vector<std::string> read_prompts(const Options& options) {
  if (options.given.has("--prompts"))
    return read_prompts_jsonl(read_file(options.prompts_file), printable(options.prompts_file, 300));
  if (options.given.has("--data") || !options.data_file.empty())
    return held_out_prompts(options.data_file, options.held_out, kHeldOutBytes, options.settings.model);
  return {read_prompt(options)};
}

size_t held_out_begin(const std::string& text) {
  size_t at = character_from(text, 0);
  for (size_t left = training_part(characters(text)); left > 0; left--) at = character_from(text, at + 1);
  return at;
}

std::vector<std::string> prompts_of(const std::string& text, size_t from, int n, size_t bytes) {
  const size_t begin = std::min(from, text.size()), last = text.size() > bytes ? text.size() - bytes : 0;
  std::vector<std::string> prompts;
  for (int i = 0; i < n; i++) {
    size_t place = std::min(begin + (text.size() - begin) * size_t(i) / size_t(n), last);
    const size_t line = text.find('\n', place);
    if (line != std::string::npos && line + 1 <= last && line < place + 200) place = line + 1;
    place = character_from(text, place);
    const size_t end = character_from(text, std::min(place + bytes, text.size()));
    if (end > place) prompts.push_back(text.substr(place, end - place));
  }
  return prompts;
}

std::vector<std::string> held_out_prompts(const std::string& path, int n, size_t bytes, const std::string& model) {
  const std::string text = read_file(path);
  if (text.empty()) refuse("the text is empty", printable(path, 300), "give the text that the model was trained on");
  check_held_out(model, text, path);
  return prompts_of(text, held_out_begin(text), n, bytes);
}

Generated continue_text(Engine& engine, const Options& options, const Method& method, const Tokens& prompt,
                        int max_new_tokens, const OnToken& on_token, const Observation& observation,
                        uint32_t sequence) {
  const Tokens end_tokens = ends_of(options, engine);
  Sampling sampling = options.sampling;
  sampling.sequence = sequence;
  const auto goes_on = [&](int token) {
    const bool ends = is_among(end_tokens, token);
    return on_token(token, ends) && !ends && !interrupted();
  };
  return engine.generate(method, sampling, prompt, max_new_tokens, goes_on, observation);
}

std::string sampling_text(const Sampling& s) {
  return filled("temperature {}", s.temperature) + (s.top_k > 0 ? filled(", top_k {}", s.top_k) : "") +
         (s.top_p < 1 ? filled(", top_p {}", s.top_p) : "") + (s.min_p > 0 ? filled(", min_p {}", s.min_p) : "") +
         (s.repetition_penalty != 1 ? filled(", repetition_penalty {}", s.repetition_penalty) : "") +
         (s.presence_penalty != 0 ? filled(", presence_penalty {}", s.presence_penalty) : "") +
         (s.frequency_penalty != 0 ? filled(", frequency_penalty {}", s.frequency_penalty) : "");
}

std::string circumstances(const Options& o, const Engine& engine, size_t prompts) {
  const Config& c = engine.config();
  return filled("{}: {}, {}, {}, block {}; {}; {}, {} each, {}, seed {}", o.settings.model, count(c.n_layer, "layer"),
                count(c.n_head, "head"), count(c.n_embd, "channel"), c.block_size, machine_text(o.settings, engine),
                count(prompts, "prompt"), count(o.max_new_tokens, "new token"), sampling_text(o.sampling),
                o.sampling.seed);
}

// ---------------------------------------------------------------------------------------------------------------
// Methods

Meaning read_method(const Method& method, int budget) {
  Meaning meaning;
  meaning.drafter = parse_drafter(method.drafter);
  if (!method.knows_noise && method.verify != "match")
    refuse_usage("no drafter knows the noise under rule {}: noise=unknown: leave it out, or choose verify=match",
                 printable(method.verify));
  meaning.rule = parse_rule(method.verify);
  meaning.shape = parse_shape(method.shape, method.budget > 0 ? method.budget : budget);
  check_rule(meaning.rule, meaning.shape);
  meaning.ahead = parse_ahead(method.ahead);
  check_ahead(meaning.ahead, meaning.rule);
  return meaning;
}

void check_methods(const std::vector<Method>& methods, Options& options) {
  Settings& settings = options.settings;
  std::vector<std::string> paths;  // that methods name
  for (const Method& method : methods) {
    const Meaning meaning = read_method(method, settings.budget);
    check_drafter(meaning.drafter, settings.model);
    for (const DrafterName& name : meaning.drafter) paths.push_back(name.dir);
    paths.push_back(meaning.shape.file);
  }
  choose_prompts(options);
  paths.push_back(options.data_file);
  check_outputs(options.given, paths);
  if (find_flag(options.given.command, "--temperature")) choose_sampling(options);
  settings.rows = 1;
  make_room(settings, methods);
  for (const Method& method : methods) {
    const Meaning meaning = read_method(method, settings.budget);
    const Shape& shape = meaning.shape;
    if (meaning.plain() || !from_file(shape)) continue;
    if (shape.kind == Shape::kStatic) read_static(shape.file);
    else find_calibration(shape.file, method.drafter, settings.model, options.sampling.temperature);
  }
}

bool has_bigrams(const std::string& model) {
  namespace fs = std::filesystem;
  return !is_gguf(model) && (fs::exists(bigram_path(model)) || !fs::exists(model + "/config.json"));
}

bool read_flags(const Command& command, int argc, char** argv, Options& options) {
  options.given = parse_flags(command, argc, argv);
  if (options.given.help) return false;
  check_options(options);
  return true;
}

bool read_command_line(const Command& command, int argc, char** argv, Options& options) {
  if (!read_flags(command, argc, argv, options)) return false;
  if (!options.given.has("--drafter") && !has_bigrams(options.settings.model)) options.method.drafter = kTextDrafter;
  check_methods({options.method}, options);
  return true;
}

std::vector<Flag> speculation_flags(Options& o) {
  const auto words_of = [](const auto& table, auto form, const char* topic) {
    return joined(column(table, form)) + "; see build/nanospec help " + topic;
  };
  return {
      heading("Speculation"),
      {"--drafter", "WORD", &o.method.drafter,
       "who guesses: " + words_of(kDrafters, &DrafterWord::form, "drafters") +
           "; for a GGUF file, or a folder without bigrams, the default is " + kTextDrafter},
      {"--shape", "SHAPE", &o.method.shape,
       "which guesses are worth a node: " + words_of(kShapes, &ShapeWord::form, "shapes")},
      {"--budget", "N", &o.settings.budget, "most nodes in a tree, its root not counted", from(0, kMaxBudget)},
      {"--verify", "RULE", &o.method.verify, "the rule that accepts: " + words_of(kRules, &RuleWord::word, "rules")},
      {"--ahead", "WORD", &o.method.ahead,
       "whether to draft on a thread of its own while the model verifies, or only where that is faster",
       one_of({"off", "on", "auto"})},
  };
}

namespace {
constexpr const char* kBlank = " \t\n\r";

// The words of each method of a list. Quotes hold blanks and ';' together, and are no part of a word.
std::vector<std::vector<std::string>> words_of_methods(const std::string& text) {
  std::vector<std::vector<std::string>> methods(1);
  std::string word;
  bool begun = false;
  char quote = 0;
  for (char c : text + ";") {
    const bool marks = quote ? c == quote : c == '"' || c == '\'';  // a quote's begin or end
    const bool between = !quote && (c == ';' || strchr(kBlank, c));
    if (between && begun) methods.back().push_back(std::exchange(word, ""));
    if (between && c == ';' && !methods.back().empty()) methods.emplace_back();
    begun = !between;
    if (marks) quote = quote ? 0 : c;
    else if (!between) word += c;
  }
  if (quote) refuse_usage("a quote is never closed: --methods: write another {} after the name that has blanks", quote);
  methods.pop_back();  // which the last ';' began
  return methods;
}

// One method, of its words.
Method method_of(const std::vector<std::string>& words, const std::string& where) {
  Method method;
  method.drafter = words[0];
  for (size_t i = 1, shapes = 0; i < words.size(); i++) {
    const size_t equals = words[i].find('=');
    if (equals < words[i].find(':')) {  // a shape's own settings stand behind its colon
      const std::string name = words[i].substr(0, equals), value = words[i].substr(equals + 1);
      check_word("setting", name, where, {"verify", "budget", "noise", "ahead"});
      if (name == "noise") check_word("noise", value, where, {"known", "unknown"});
      if (name == "ahead") check_word("way", value, where, {"off", "on", "auto"});
      if (name == "verify") method.verify = value;
      else if (name == "ahead") method.ahead = value;
      else if (name == "noise") method.knows_noise = value == "known";
      else method.budget = parse_number<int>(value, where + ", budget", from(1, kMaxBudget));
    } else if (shapes++ == 0) {
      method.shape = words[i];
    } else {
      refuse_usage(
          "surplus word {}: {}: write DRAFTER SHAPE [verify=RULE] [budget=N] [noise=unknown] [ahead=on|auto], and ';' "
          "between methods",
          quoted(words[i]), where);
    }
  }
  return method;
}

// A word as words_of_methods reads it.
std::string as_word(const std::string& word) {
  if (word.find_first_of(std::string(kBlank) + ";'\"") == std::string::npos) return word;
  const char quote = word.find('"') == std::string::npos ? '"' : '\'';
  return quote + word + quote;
}
}  // namespace

std::vector<Method> parse_methods(const std::string& text, int budget) {
  std::vector<Method> methods;
  for (const std::vector<std::string>& words : words_of_methods(text)) {
    const std::string where = "--methods, method " + std::to_string(methods.size() + 1);
    methods.push_back(method_of(words, where));
    try {
      read_method(methods.back(), budget);
    } catch (const std::invalid_argument& error) { refuse_usage("{} ({})", error.what(), where); }
  }
  if (methods.empty()) refuse_usage("there is no method: --methods: write for instance \"none; bigram chain:4\"");
  return methods;
}

std::string method_text(const Method& method) {
  if (method.drafter == "none") return "none";
  return as_word(method.drafter) + " " + as_word(method.shape) +
         (method.verify == "match" ? "" : " verify=" + method.verify) +
         (method.budget == 0 ? "" : " budget=" + std::to_string(method.budget)) +
         (method.knows_noise ? "" : " noise=unknown") + (method.ahead == "off" ? "" : " ahead=" + method.ahead);
}

int most_nodes(const Method& method, int budget) {
  const Meaning meaning = read_method(method, budget);
  if (meaning.plain()) return 0;
  return meaning.shape.plan ? meaning.shape.plan->nodes() : meaning.shape.budget;
}

// ---------------------------------------------------------------------------------------------------------------
// Statistics

void add(Stats& sum, const Stats& part) {
  for (auto count : {&Stats::tokens, &Stats::target_forwards, &Stats::slide_prefills, &Stats::drafted_nodes})
    sum.*count += part.*count;
  for (auto seconds : {&Stats::prefill_seconds, &Stats::seconds, &Stats::seconds_draft, &Stats::seconds_forward,
                       &Stats::seconds_verify, &Stats::seconds_keep, &Stats::seconds_slide})
    sum.*seconds += part.*seconds;
  sum.accept_histogram.resize(std::max(sum.accept_histogram.size(), part.accept_histogram.size()));
  for (size_t i = 0; i < part.accept_histogram.size(); i++) sum.accept_histogram[i] += part.accept_histogram[i];
  for (const auto& [drafter, nodes] : part.accepted_by) sum.accepted_by[drafter] += nodes;
  for (size_t i = 0; i < part.reliability.size(); i++) {
    for (auto count : {&Reliability::nodes, &Reliability::accepted})
      sum.reliability[i].*count += part.reliability[i].*count;
    for (auto chance : {&Reliability::raw, &Reliability::corrected})
      sum.reliability[i].*chance += part.reliability[i].*chance;
  }
  add(sum.ahead, part.ahead);
}

// Seconds and what follows from them: null where they are not known.
static OrderedJson ahead_json(const AheadStats& a) {
  const auto known = [](double x) { return x > 0 ? OrderedJson(x) : OrderedJson(); };
  return {{"wanted", a.wanted},
          {"why", ahead_text(a)},
          {"passes", a.forwards},
          {"passes_without", a.forwards_without},
          {"outcomes", a.outcomes},
          {"fan_out", a.fan_out()},
          {"cut", a.cut},
          {"hits", a.hits},
          {"misses", a.misses},
          {"hit_rate", a.hit_rate()},
          {"seconds_saved", a.seconds_saved},
          {"seconds_waited", a.seconds_waited},
          {"contention", known(a.contention())},
          {"gain", known(a.gain)}};
}

std::string ahead_text(const AheadStats& ahead) {
  if (!ahead.wanted) return "";
  if (!ahead.able) return "not used: this drafter cannot draft while the model is at work, or needs no time to";
  std::string text;
  if (ahead.gain > 0)
    text = filled("{}: {} of the speed without; ", ahead.forwards > ahead.forwards_without ? "used" : "not used",
                  decimals(ahead.gain, 2));
  text += filled("{} in {}, {} hits, {} saved, {} waited", count(ahead.outcomes, "tree"),
                 count(ahead.forwards, "forward"), percent(ahead.hits, ahead.hits + ahead.misses),
                 duration(ahead.seconds_saved), duration(ahead.seconds_waited));
  if (ahead.contention() > 0) text += ", forwards took " + decimals(ahead.contention(), 2) + " times as long";
  return text;
}

OrderedJson stats_json(const Engine& engine, const Stats& stats) {
  OrderedJson reliability = OrderedJson::array();
  for (const Reliability& tenth : stats.reliability)
    reliability.push_back({{"nodes", tenth.nodes},
                           {"accepted", tenth.accepted},
                           {"raw", ratio(tenth.raw, tenth.nodes)},
                           {"corrected", ratio(tenth.corrected, tenth.nodes)}});
  return {{"tokens", stats.tokens},
          {"seconds", stats.seconds},
          {"prefill_seconds", stats.prefill_seconds},
          {"tokens_per_second", ratio(stats.tokens, stats.seconds)},
          {"target_forwards", stats.target_forwards},
          {"slide_prefills", stats.slide_prefills},
          {"acceptance_length", ratio(stats.tokens, stats.target_forwards)},
          {"accept_histogram", stats.accept_histogram},
          {"drafted_nodes", stats.drafted_nodes},
          {"accepted_by", stats.accepted_by},
          {"reliability", reliability},
          {"ahead", ahead_json(stats.ahead)},
          {"seconds_draft", stats.seconds_draft},
          {"seconds_forward", stats.seconds_forward},
          {"seconds_verify", stats.seconds_verify},
          {"seconds_keep", stats.seconds_keep},
          {"seconds_slide", stats.seconds_slide},
          {"gigabytes_per_second", gigabytes_per_second(engine, stats)}};
}

double as_typed(float x) {
  char text[32] = {};
  std::to_chars(text, std::end(text), x);  // as few digits as tell it from all other floats
  return strtod(text, nullptr);
}

OrderedJson sampling_json(const Sampling& s) {
  return {{"temperature", as_typed(s.temperature)},
          {"top_k", s.top_k},
          {"top_p", as_typed(s.top_p)},
          {"min_p", as_typed(s.min_p)},
          {"repetition_penalty", as_typed(s.repetition_penalty)},
          {"presence_penalty", as_typed(s.presence_penalty)},
          {"frequency_penalty", as_typed(s.frequency_penalty)},
          {"seed", s.seed}};
}

OrderedJson settings_json(const Options& o, const Engine& engine, bool generates) {
  OrderedJson json = {{"model", o.settings.model},
                      {"device", engine.device()},
                      {"dtype", engine.dtype()},
                      {"cache_dtype", o.settings.cache_dtype},
                      {"threads", engine.threads()}};
  if (generates) json.update({{"budget", o.settings.budget}, {"max_new_tokens", o.max_new_tokens}});
  if (generates) json.update(sampling_json(o.sampling));
  json.update({{"weight_bytes", uint64_t(engine.weight_bytes())}, {"peak_bytes", uint64_t(peak_bytes())}});
  return json;
}

OrderedJson method_json(const Method& method) {
  const Promise promise = promise_of(method);
  OrderedJson json = {{"drafter", method.drafter},
                      {"shape", method.shape},
                      {"verify", method.verify},
                      {"exact", promise == Promise::kSameBytes},
                      {"biased", promise == Promise::kBiased},
                      {"lossy", promise == Promise::kLossy}};
  if (method.budget > 0) json["budget"] = method.budget;
  if (!method.knows_noise) json["noise"] = "unknown";
  if (method.ahead != "off") json["ahead_wanted"] = method.ahead;
  return json;
}

}  // namespace nanospec
